/* BF16 weights times float32 activations (ACT_F32), AVX2.  Eight columns are summed in one
 * chain and added to the total, so that the chains of successive steps overlap. */
#include "cpu/avx2.h"

#include <assert.h>

/* w[i]: column i of eight, of eight rows. */
INLINE void decode(__m256 w[8], const struct rows8 *r, size_t at)
{
    const __m256i high = _mm256_set1_epi32((int)0xffff0000);
    __m256i t[4], v[4];

    rows8_load(t, r, at);
    transpose8(v, t);
    for (int i = 0; i < 4; i++) {
        w[2 * i] = _mm256_castsi256_ps(_mm256_slli_epi32(v[i], 16));
        w[2 * i + 1] = _mm256_castsi256_ps(_mm256_and_si256(v[i], high));
    }
}

/* The rows from `row` on, eight or one, times n tokens: acc[t]. */
INLINE void panel(__m256 *acc, const struct matrix *m, const uint8_t *x, size_t x_stride, int n,
                  int row, bool whole)
{
    struct rows8 r = rows8_at(m->weight, (size_t)m->cols * sizeof(bf16), row, whole);

    for (int t = 0; t < n; t++)
        acc[t] = _mm256_setzero_ps();
    for (size_t c = 0; c < (size_t)m->cols; c += 8) {
        const uint8_t *token = x + c * sizeof(float);
        __m256 w[8];

        if (c % 32 == 0)
            rows8_prefetch(&r, c * sizeof(bf16));
        decode(w, &r, c * sizeof(bf16));
        for (int t = 0; t < n; t++, token += x_stride) {
            const float *a = (const float *)(const void *)token;
            __m256 d = _mm256_mul_ps(w[0], _mm256_set1_ps(a[0]));

            for (int i = 1; i < 8; i++)
                d = _mm256_fmadd_ps(w[i], _mm256_set1_ps(a[i]), d);
            acc[t] = _mm256_add_ps(acc[t], d);
        }
    }
}

/* One and two tokens have loops of their own, with n known to the compiler. */
INLINE void panel_store(float *y, size_t y_stride, const struct matrix *m, const uint8_t *x,
                        size_t x_stride, int n, int row, int row0, int row1, bool whole)
{
    __m256 one[1], two[2], many[AVX2_TOKENS], *acc = many;

    if (n == 1)
        panel(acc = one, m, x, x_stride, 1, row, whole);
    else if (n == 2)
        panel(acc = two, m, x, x_stride, 2, row, whole);
    else
        panel(acc, m, x, x_stride, n, row, whole);
    for (int t = 0; t < n; t++)
        store8(y + (size_t)t * y_stride, acc[t], row, row0, row1);
}

/* See avx2_quant.c. */
INLINE void panels(float *y, size_t y_stride, const struct matrix *m, const uint8_t *x,
                   size_t x_stride, int n, int row0, int row1)
{
    bool whole = m->rows >= AVX2_ROWS;

    for (int row = row0; row < row1; row += whole ? AVX2_ROWS : 1) {
        int first = whole && row > m->rows - AVX2_ROWS ? m->rows - AVX2_ROWS : row;

        panel_store(y, y_stride, m, x, x_stride, n, first, row, whole ? row1 : row + 1, whole);
    }
}

void avx2_mul_bf16(float *y, size_t y_stride, const struct matrix *m, const uint8_t *x,
                   size_t x_stride, int n, int row0, int row1)
{
    int block = AVX2_L2 / (int)x_stride;

    assert(m->format == W_BF16 && m->cols % 32 == 0);
    block = block < 8 ? 8 : block > AVX2_TOKENS ? AVX2_TOKENS : block;
    for (int t = 0; t < n; t += block)
        panels(y + (size_t)t * y_stride, y_stride, m, x + (size_t)t * x_stride, x_stride,
               n - t < block ? n - t : block, row0, row1);
}
