/* int4, MXFP4 and int8 weights times int8 activations (ACT_INT8), AVX2.
 *
 * Weights enter vpmaddubsw as unsigned bytes, so that no sign trick is needed for four-bit
 * ones: q + 8, or twice the E2M1 value + 16 (a table look-up; the factor 2 is undone in the
 * row's sum).  A group of 32 columns then sums in 16 bits: the true result less the zero point
 * is at most 15 * 127 * 16 in a half lane, which fits, and wrapping on the way there does no
 * harm.  int8 weights need the sign trick and 32-bit sums.
 *
 * Here are the panels, and many tokens; avx2_few.c has the few.  Not here: more than eight
 * rows at once (measured slower, see NOTES.md). */
#include "cpu/avx2_panel.h"
#include "cpu/avx2_scales.h"

#include <assert.h>

enum { SCALES = 32 };           /* scale columns expanded at a time */

/* Scales and zero points of eight rows, a few scale columns at a time. */
struct scales8 {
    float scale[SCALES][8];
    int32_t minus_zero[SCALES][8];  /* -zero point, in both halves of the lane */
};

INLINE void expand(struct scales8 *s, const struct matrix *m, const struct panel *p, size_t from,
                   size_t to, enum wformat format, bool zero)
{
    scales_expand(s->scale[0], 8, &p->scale, from, to, format, false);
    if (zero)
        /* The sign trick reads int8 weights as they are, not as q + 128. */
        zeros_expand(s->minus_zero[0], 8, m, p->row, p->whole, from, to,
                     format == W_INT8 ? 128 : 0);
}

/* w[2i] and w[2i+1]: columns 8i + 0 2 4 6 and 8i + 1 3 5 7 of eight rows. */
INLINE void decode(__m256i w[8], const struct rows8 *r, size_t group, enum wformat format)
{
    const __m256i even_first = _mm256_setr_epi8(
        0, 2, 4, 6, 1, 3, 5, 7, 8, 10, 12, 14, 9, 11, 13, 15,
        0, 2, 4, 6, 1, 3, 5, 7, 8, 10, 12, 14, 9, 11, 13, 15);
    __m256i t[4], v[4];

    if (format == W_INT8) {
        for (size_t half = 0; half < 2; half++) {
            rows8_load(t, r, group * 32 + half * 16);
            for (int i = 0; i < 4; i++)
                t[i] = _mm256_xor_si256(_mm256_shuffle_epi8(t[i], even_first),
                                        _mm256_set1_epi8(-128));
            transpose8(w + half * 4, t);
        }
        return;
    }
    rows8_load(t, r, group * 16);
    transpose8(v, t);
    for (int i = 0; i < 4; i++) {
        w[2 * i] = low_nibbles(v[i], format);
        w[2 * i + 1] = low_nibbles(_mm256_srli_epi16(v[i], 4), format);
    }
}

/* Group h of x with 32 columns of eight rows. */
INLINE __m256i dot(const __m256i w[8], const struct act8 *x, int h, __m256i minus_zero,
                   enum wformat format, bool zero)
{
    const __m256i ones = _mm256_set1_epi16(1);
    __m256i minus8 = _mm256_set1_epi32(load_i32(x->minus8[h])), sum = _mm256_setzero_si256();

    if (zero) {
        __m256i sums = _mm256_sub_epi16(sum, _mm256_srai_epi16(minus8, 3));

        sum = format == W_INT8 ? _mm256_madd_epi16(sums, minus_zero)
                               : _mm256_mullo_epi16(sums, minus_zero);
    } else if (format != W_INT8) {
        sum = less_zero(sum, minus8, format);
    }
    for (int i = 0; i < 8; i++) {
        const int8_t *four = (i % 2 ? x->odd[h] : x->even[h]) + i / 2 * 4;
        __m256i v = _mm256_set1_epi32(load_i32(four));

        if (format == W_INT8) {
            v = _mm256_maddubs_epi16(_mm256_abs_epi8(w[i]), _mm256_sign_epi8(v, w[i]));
            sum = _mm256_add_epi32(sum, _mm256_madd_epi16(v, ones));
        } else {
            sum = _mm256_add_epi16(sum, _mm256_maddubs_epi16(w[i], v));
        }
    }
    return format == W_INT8 ? sum : _mm256_madd_epi16(sum, ones);
}

/* A panel times n tokens, eight rows to a vector.  Even and odd groups have sums of their
 * own: that is the order of avx2_few.c. */
INLINE void eights(__m256 (*acc)[2], const struct matrix *m, const struct panel *p,
                   const uint8_t *x, size_t x_stride, int n, enum wformat format, bool zero)
{
    size_t step = format == W_INT8 ? 32 : 16, g = 0;
    __m256i minus_zero = _mm256_setzero_si256();
    struct scales8 table;

    for (int t = 0; t < n; t++)
        acc[t][0] = acc[t][1] = _mm256_setzero_ps();
    for (size_t from = 0; from < p->columns; from += SCALES) {
        size_t to = from + SCALES < p->columns ? from + SCALES : p->columns;

        expand(&table, m, p, from, to, format, zero);
        for (size_t c = 0; c < to - from; c++) {
            __m256 scale = _mm256_loadu_ps(table.scale[c]);

            if (zero)
                minus_zero = load_si256(table.minus_zero[c]);
            for (size_t end = g + p->groups; g < end; g++) {
                const uint8_t *token = x + g / 2 * sizeof(struct act8);
                int h = g % 2;
                __m256i b[8];

                if (g * step % 64 == 0)
                    rows8_prefetch(&p->weight, g * step);
                decode(b, &p->weight, g, format);
                for (int t = 0; t < n; t++, token += x_stride) {
                    const struct act8 *a = (const struct act8 *)(const void *)token;

                    acc[t][h] = add_scaled(acc[t][h], dot(b, a, h, minus_zero, format, zero),
                                           scale, _mm256_set1_ps(a->scale[h][0]));
                }
            }
        }
    }
    for (int t = 0; t < n; t++)
        acc[t][0] = undouble(_mm256_add_ps(acc[t][0], acc[t][1]), format);
}

/* The last eight rows of a matrix may be some that the panel before them had, or that
 * nobody asked for: eight at a time all the same. */
INLINE void panels(float *y, size_t y_stride, const struct matrix *m, const uint8_t *x,
                   size_t x_stride, int n, int row0, int row1, enum wformat format, bool zero)
{
    bool whole = m->rows >= AVX2_ROWS;
    bool quick = n <= AVX2_FEW && !zero && format != W_INT8;

    for (int row = row0; row < row1; row += whole ? AVX2_ROWS : 1) {
        int first = whole && row > m->rows - AVX2_ROWS ? m->rows - AVX2_ROWS : row;
        struct panel p = panel_at(m, first, whole, format);
        __m256 one[1][2], two[2][2], many[AVX2_TOKENS][2], (*acc)[2] = many;

        if (quick && format == W_INT4)
            avx2_few_int4(acc, &p, x, x_stride, n, (size_t)m->cols / 32);
        else if (quick)
            avx2_few_mxfp4(acc, &p, x, x_stride, n, (size_t)m->cols / 32);
        else if (n == 1)
            eights(acc = one, m, &p, x, x_stride, 1, format, zero);
        else if (n == 2)
            eights(acc = two, m, &p, x, x_stride, 2, format, zero);
        else
            eights(acc, m, &p, x, x_stride, n, format, zero);
        for (int t = 0; t < n; t++)
            store8(y + (size_t)t * y_stride, acc[t][0], first, row, whole ? row1 : row + 1);
    }
}

INLINE void mul(float *y, size_t y_stride, const struct matrix *m, const uint8_t *x,
                size_t x_stride, int n, int row0, int row1, enum wformat format)
{
    int block = AVX2_L2 / (int)x_stride;

    assert(m->format == format && m->cols % 32 == 0 && m->group % 32 == 0);
    block = block < 8 ? 8 : block > AVX2_TOKENS ? AVX2_TOKENS : block;
    for (int t = 0; t < n; t += block) {
        int tokens = n - t < block ? n - t : block;
        float *to = y + (size_t)t * y_stride;
        const uint8_t *from = x + (size_t)t * x_stride;

        if (format != W_MXFP4 && m->zero)
            panels(to, y_stride, m, from, x_stride, tokens, row0, row1, format, true);
        else
            panels(to, y_stride, m, from, x_stride, tokens, row0, row1, format, false);
    }
}

void avx2_mul_int4(float *y, size_t y_stride, const struct matrix *m, const uint8_t *x,
                   size_t x_stride, int n, int row0, int row1)
{
    mul(y, y_stride, m, x, x_stride, n, row0, row1, W_INT4);
}

void avx2_mul_mxfp4(float *y, size_t y_stride, const struct matrix *m, const uint8_t *x,
                    size_t x_stride, int n, int row0, int row1)
{
    mul(y, y_stride, m, x, x_stride, n, row0, row1, W_MXFP4);
}

void avx2_mul_int8(float *y, size_t y_stride, const struct matrix *m, const uint8_t *x,
                   size_t x_stride, int n, int row0, int row1)
{
    mul(y, y_stride, m, x, x_stride, n, row0, row1, W_INT8);
}
