#ifndef LAGUNA_AVX_ATTEND_H
#define LAGUNA_AVX_ATTEND_H

#include "cpu/avx2.h"

/* A block of cached keys and values as float32, for attention with either width of vectors:
 * the steps are in avx2_attend.c and avx512_attend.c, the walk in avx_attend.inc. */

enum {
    BLOCK = 32,                 /* keys: 32 x 128 floats are half of L1 */
    DIM_MAX = 256,
};

struct block {
    float key[DIM_MAX][BLOCK];          /* [dim][keys]; past the last key it repeats */
    float value[BLOCK][DIM_MAX];        /* [keys][dim]; past the last key 0 */
    float key_scale[BLOCK], value_scale[BLOCK];
};

/* Elements in a dword. */
INLINE int per_dword(enum kv_type type)
{
    return type == KV_F32 ? 1 : type == KV_BF16 ? 2 : 4;
}

#endif
