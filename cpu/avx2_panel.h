#ifndef LAGUNA_AVX2_PANEL_H
#define LAGUNA_AVX2_PANEL_H

#include "cpu/avx2.h"

/* What the AVX2 products of int4, MXFP4 and int8 weights with int8 activations share. */

/* What a panel works on: eight rows, or one row eight times. */
struct panel {
    struct rows8 weight, scale;
    int row;
    bool whole;
    size_t columns, groups;     /* scale columns; groups of 32 in each */
};

INLINE struct panel panel_at(const struct matrix *m, int row, bool whole, enum wformat format)
{
    size_t columns = (size_t)(m->cols / m->group);
    size_t row_bytes = (size_t)m->cols / (format == W_INT8 ? 1 : 2);
    struct panel p = { rows8_at(m->weight, row_bytes, row, whole),
                       rows8_at(m->scale, columns * (format == W_MXFP4 ? 1 : 2), row, whole),
                       row, whole, columns, (size_t)m->group / 32 };

    return p;
}

/* The low nibble of each byte as an unsigned weight: q + 8, or twice the E2M1 value + 16. */
INLINE __m256i low_nibbles(__m256i v, enum wformat format)
{
    const __m256i e2m1 = _mm256_setr_epi8(
        16, 17, 18, 19, 20, 22, 24, 28, 16, 15, 14, 13, 12, 10, 8, 4,
        16, 17, 18, 19, 20, 22, 24, 28, 16, 15, 14, 13, 12, 10, 8, 4);

    v = _mm256_and_si256(v, _mm256_set1_epi8(15));
    return format == W_MXFP4 ? _mm256_shuffle_epi8(e2m1, v) : v;
}

/* 16-bit sums of such weights less their zero points. */
INLINE __m256i less_zero(__m256i sum, __m256i minus8, enum wformat format)
{
    sum = _mm256_add_epi16(sum, minus8);
    return format == W_MXFP4 ? _mm256_add_epi16(sum, minus8) : sum;
}

/* acc + d * scale * x_scale.  The scales first: their product overflows only where one
 * weight times one activation does. */
INLINE __m256 add_scaled(__m256 acc, __m256i d, __m256 scale, __m256 x_scale)
{
    return _mm256_fmadd_ps(_mm256_cvtepi32_ps(d), _mm256_mul_ps(x_scale, scale), acc);
}

/* The sums of a row as they should be: weights of MXFP4 were doubled. */
INLINE __m256 undouble(__m256 sum, enum wformat format)
{
    return format == W_MXFP4 ? _mm256_mul_ps(sum, _mm256_set1_ps(0.5f)) : sum;
}

INLINE __m256i load_si256(const void *p)
{
    return _mm256_loadu_si256((const __m256i *)p);
}

/* A panel times 1 to AVX2_FEW tokens, four-bit weights without zero points, `all` groups of
 * 32 columns: the sums are in acc[t][0]. */
void avx2_few_int4(__m256 (*acc)[2], const struct panel *p, const uint8_t *x, size_t x_stride,
                   int n, size_t all);
void avx2_few_mxfp4(__m256 (*acc)[2], const struct panel *p, const uint8_t *x, size_t x_stride,
                    int n, size_t all);

#endif
