/* The header of a shard: the first byte says how much data the file has beyond what the
 * header claims, the rest is the header. */
#include "storage/safetensors.h"

#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct tensor_table t;
    uint64_t end = 0;
    struct err e;
    size_t i;

    if (size < 1)
        return 0;
    if (safetensors_parse(&t, (const char *)data + 1, size - 1, 8 + size - 1 + data[0], "f", &e))
        return 0;
    /* What was accepted lies inside the file. */
    for (i = 0; i < t.count; i++) {
        end = t.tensor[i].offset + t.tensor[i].bytes;
        if (end < t.tensor[i].offset || end > 8 + size - 1 + data[0] || !t.tensor[i].name)
            abort();
    }
    tensor_table_free(&t);
    return 0;
}
