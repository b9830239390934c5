/* Activations for the AVX2 products. */
#include "cpu/avx2.h"
#include "cpu/avx2_pack.h"

#include <assert.h>

static void pack_group(struct act8 *a, int h, const float *x)
{
    float scale;
    int16_t sum[2];

    act8_group(a->even[h], a->odd[h], &scale, sum, x);
    for (int i = 0; i < 4; i++)
        a->scale[h][i] = scale;
    for (int i = 0; i < 8; i++)
        a->minus8[h][i] = (int16_t)(-8 * sum[i % 2]);
}

void avx2_pack_act8(uint8_t *to, const float *x, int cols)
{
    struct act8 *a = (struct act8 *)(void *)to;

    assert(cols % 32 == 0);
    for (int c = 0; c < cols; c += 64, a++) {
        if (c + 32 == cols)
            memset(a, 0, sizeof(*a));
        for (int h = 0; h < 2 && c + 32 * h < cols; h++)
            pack_group(a, h, x + c + 32 * h);
    }
}

void avx2_pack_f32(uint8_t *to, const float *x, int cols)
{
    memcpy(to, x, (size_t)cols * sizeof(*x));
}
