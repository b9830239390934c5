#include "cpu/kernels.h"

size_t kv_row_bytes(enum kv_type type, int dim)
{
    static const size_t bytes[KV_TYPES] = {
        [KV_Q8] = 1, [KV_FP8] = 1, [KV_BF16] = 2, [KV_F32] = 4
    };

    return bytes[type] * (size_t)dim;
}
