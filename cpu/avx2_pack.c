/* Activations for the AVX2 products. */
#include "cpu/avx2.h"
#include "cpu/avx2_pack.h"

#include <assert.h>

void avx2_pack_act8(uint8_t *to, const float *x, int cols)
{
    struct act8 *a = (struct act8 *)(void *)to;

    assert(cols % 32 == 0);
    for (int c = 0; c < cols; c += 64, a++) {
        if (c + 32 == cols)
            memset(a, 0, sizeof(*a));
        for (int h = 0; h < 2 && c + 32 * h < cols; h++)
            act8_group(a->even[h], a->odd[h], &a->scale[h], a->sum[h], x + c + 32 * h);
    }
}

void avx2_pack_f32(uint8_t *to, const float *x, int cols)
{
    memcpy(to, x, (size_t)cols * sizeof(*x));
}
