/* int4, MXFP4 and int8 weights times int8 activations (ACT_INT8), AVX2.
 *
 * Weights enter vpmaddubsw as unsigned bytes, so that no sign trick is needed for four-bit
 * ones: q + 8, or twice the E2M1 value + 12 (a table look-up; the factor 2 is undone in the
 * scale).  A group of 32 columns then sums in 16 bits: the true result less the zero point
 * is at most 15 * 127 * 16 in a half lane, which fits, and wrapping on the way there does no
 * harm.  int8 weights need the sign trick and 32-bit sums.
 *
 * Not here: more than eight rows at once (measured slower, see NOTES.md). */
#include "cpu/avx2.h"
#include "cpu/avx2_scales.h"

#include <assert.h>

enum {
    SCALES = 32,                /* scale columns expanded at a time */
    QUAD_TOKENS = 4,            /* up to so many, quads() beats eights() */
};

/* Scales and zero points of eight rows, a few scale columns at a time. */
struct scales8 {
    float scale[SCALES][8];
    int32_t minus_zero[SCALES][8];  /* -zero point, in both halves of the lane */
};

INLINE __m256i both_halves(int v)
{
    return _mm256_set1_epi16((short)v);
}

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

INLINE void expand(struct scales8 *s, const struct matrix *m, const struct panel *p, size_t from,
                   size_t to, enum wformat format, bool zero)
{
    scales_expand(s->scale[0], 8, &p->scale, from, to, format, true);
    if (zero)
        /* The sign trick reads int8 weights as they are, not as q + 128. */
        zeros_expand(s->minus_zero[0], 8, m, p->row, p->whole, from, to,
                     format == W_INT8 ? 128 : 0);
}

/* The low nibble of each byte as an unsigned weight. */
INLINE __m256i low_nibbles(__m256i v, enum wformat format)
{
    const __m256i e2m1 = _mm256_setr_epi8(
        12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0,
        12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0);

    v = _mm256_and_si256(v, _mm256_set1_epi8(15));
    return format == W_MXFP4 ? _mm256_shuffle_epi8(e2m1, v) : v;
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
    __m256i sum = _mm256_setzero_si256(), zeros = _mm256_set1_epi32(load_i32(x->sum[h]));

    if (format != W_INT8)
        sum = _mm256_mullo_epi16(zeros, minus_zero);
    else if (zero)
        sum = _mm256_madd_epi16(zeros, minus_zero);
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

/* acc + d * scale * x_scale.  The scales first: their product overflows only where one
 * weight times one activation does. */
INLINE __m256 add_scaled(__m256 acc, __m256i d, __m256 scale, __m256 x_scale)
{
    return _mm256_fmadd_ps(_mm256_cvtepi32_ps(d), _mm256_mul_ps(x_scale, scale), acc);
}

INLINE __m256i load_si256(const void *p)
{
    return _mm256_loadu_si256((const __m256i *)p);
}

/* A panel times n tokens, eight rows to a vector.  Even and odd groups have sums of their
 * own: that is the order of quads(). */
INLINE void eights(__m256 (*acc)[2], const struct matrix *m, const struct panel *p,
                   const uint8_t *x, size_t x_stride, int n, enum wformat format, bool zero)
{
    size_t step = format == W_INT8 ? 32 : 16, g = 0;
    __m256i minus_zero = both_halves(format == W_MXFP4 ? -12 : -8);
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
                                           scale, _mm256_set1_ps(a->scale[h]));
                }
            }
        }
    }
    for (int t = 0; t < n; t++)
        acc[t][0] = _mm256_add_ps(acc[t][0], acc[t][1]);
}

/* Two groups of x with 64 columns of four rows: rows 0 to 3 for the first group in the low
 * half, for the second in the high half. */
INLINE __m256i dot4(const __m256i low[4], const __m256i high[4], const struct act8 *x,
                    enum wformat format)
{
    /* A group's sums less its zero points fit in 16 bits, however they wrap on the way. */
    const __m256i minus_zero = both_halves(format == W_MXFP4 ? -12 : -8);
    const __m256i to_halves = _mm256_setr_epi32(0, 0, 0, 0, 1, 1, 1, 1);
    const __m256i ones = _mm256_set1_epi16(1);
    __m256i even = load_si256(x->even), odd = load_si256(x->odd), s[4], sum, zeros;

    for (int i = 0; i < 4; i++)
        s[i] = _mm256_add_epi16(_mm256_maddubs_epi16(low[i], even),
                                _mm256_maddubs_epi16(high[i], odd));
    s[0] = _mm256_add_epi16(_mm256_unpacklo_epi32(s[0], s[1]), _mm256_unpackhi_epi32(s[0], s[1]));
    s[2] = _mm256_add_epi16(_mm256_unpacklo_epi32(s[2], s[3]), _mm256_unpackhi_epi32(s[2], s[3]));
    sum = _mm256_add_epi16(_mm256_unpacklo_epi64(s[0], s[2]), _mm256_unpackhi_epi64(s[0], s[2]));
    zeros = _mm256_castpd_si256(_mm256_broadcast_sd((const double *)(const void *)x->sum));
    zeros = _mm256_castps_si256(_mm256_permutevar_ps(_mm256_castsi256_ps(zeros), to_halves));
    sum = _mm256_add_epi16(sum, _mm256_mullo_epi16(zeros, minus_zero));
    return _mm256_madd_epi16(sum, ones);
}

/* Both groups' scales of x, each in its half. */
INLINE __m256 scale_halves(const struct act8 *x)
{
    const __m256i to_halves = _mm256_setr_epi32(0, 0, 0, 0, 1, 1, 1, 1);
    __m256d both = _mm256_broadcast_sd((const double *)(const void *)x->scale);

    return _mm256_permutevar_ps(_mm256_castpd_ps(both), to_halves);
}

/* The 32 bytes at `at` of row i, or where only one group of 32 columns is left, 16. */
INLINE __m256i row_load(const struct rows8 *r, size_t i, size_t at, bool both)
{
    const uint8_t *p = r->at + i * r->stride + at;

    if (both)
        return load_si256(p);
    return _mm256_zextsi128_si256(_mm_loadu_si128((const __m128i *)(const void *)p));
}

/* 64 columns of four rows, the first of which is 64 * pair. */
INLINE void quads_step(__m256 *sum, const struct panel *p, size_t q, size_t pair, bool both,
                       const uint8_t *x, size_t x_stride, int n, enum wformat format,
                       __m256 scale)
{
    __m256i low[4], high[4];

    x += pair * sizeof(struct act8);
    for (size_t i = 0; i < 4; i++) {
        __m256i v = row_load(&p->weight, 4 * q + i, pair * 32, both);

        low[i] = low_nibbles(v, format);
        high[i] = low_nibbles(_mm256_srli_epi16(v, 4), format);
    }
    for (int t = 0; t < n; t++, x += x_stride) {
        const struct act8 *a = (const struct act8 *)(const void *)x;

        sum[t] = add_scaled(sum[t], dot4(low, high, a, format), scale, scale_halves(a));
    }
}

/* 128 columns of four rows, or what is left of them.  Dense: as row_scales() has it. */
INLINE void quads_line(__m256 *sum, const struct panel *p, size_t q, size_t g, size_t all,
                       const uint8_t *x, size_t x_stride, int n, enum wformat format, bool dense)
{
    const uint8_t *weights = p->weight.at + 4 * q * p->weight.stride;
    const uint8_t *scales = p->scale.at + 4 * q * p->scale.stride;
    size_t left = dense ? 4 : all - g, size = format == W_MXFP4 ? 1 : 2;
    __m256 scale[2];

    quad_prefetch(weights, p->weight.stride, g * 16, QUAD_AHEAD, 4, false);
    if (dense)
        quad_prefetch(scales, p->scale.stride, g * size, QUAD_SCALES, 1, false);
    quad_scales(scale, scales, p->scale.stride, g, p->groups, left, format, dense, true);
    for (size_t i = 0; i < 2 && 2 * i < left; i++) {
        if (2 * i + 1 < left)
            quads_step(sum, p, q, g / 2 + i, true, x, x_stride, n, format, scale[i]);
        else
            quads_step(sum, p, q, g / 2 + i, false, x, x_stride, n, format, scale[i]);
    }
}

/* A panel times a few tokens, four-bit formats without zero points: no transpose, but sums
 * across lanes.  Four rows from end to end, then the next four: that is nearly the order of
 * memory, which the prefetch of the processor follows too. */
INLINE void quads(__m256 (*acc)[2], const struct panel *p, const uint8_t *x, size_t x_stride,
                  int n, size_t all, enum wformat format)
{
    size_t dense = p->groups == 1 ? all / 4 * 4 : 0;

    for (size_t q = 0; q < 2; q++) {
        __m256 sum[QUAD_TOKENS];
        size_t g = 0;

        for (int t = 0; t < n; t++)
            sum[t] = _mm256_setzero_ps();
        for (; g < dense; g += 4)
            quads_line(sum, p, q, g, all, x, x_stride, n, format, true);
        for (; g < all; g += 4)
            quads_line(sum, p, q, g, all, x, x_stride, n, format, false);
        for (int t = 0; t < n; t++)
            acc[t][q] = sum[t];
    }
    for (int t = 0; t < n; t++) {
        __m256 low = _mm256_permute2f128_ps(acc[t][0], acc[t][1], 0x20);
        __m256 high = _mm256_permute2f128_ps(acc[t][0], acc[t][1], 0x31);

        acc[t][0] = _mm256_add_ps(low, high);
    }
}

/* quads() with n known to the compiler. */
INLINE void few(__m256 (*acc)[2], const struct panel *p, const uint8_t *x, size_t x_stride, int n,
                size_t all, enum wformat format)
{
    switch (n) {
    case 1:
        quads(acc, p, x, x_stride, 1, all, format);
        break;
    case 2:
        quads(acc, p, x, x_stride, 2, all, format);
        break;
    case 3:
        quads(acc, p, x, x_stride, 3, all, format);
        break;
    default:
        quads(acc, p, x, x_stride, QUAD_TOKENS, all, format);
    }
}

/* The last eight rows of a matrix may be some that the panel before them had, or that
 * nobody asked for: eight at a time all the same. */
INLINE void panels(float *y, size_t y_stride, const struct matrix *m, const uint8_t *x,
                   size_t x_stride, int n, int row0, int row1, enum wformat format, bool zero)
{
    bool whole = m->rows >= AVX2_ROWS;
    bool quick = n <= QUAD_TOKENS && !zero && format != W_INT8;

    for (int row = row0; row < row1; row += whole ? AVX2_ROWS : 1) {
        int first = whole && row > m->rows - AVX2_ROWS ? m->rows - AVX2_ROWS : row;
        struct panel p = panel_at(m, first, whole, format);
        __m256 one[1][2], two[2][2], many[AVX2_TOKENS][2], (*acc)[2] = many;

        if (quick)
            few(acc, &p, x, x_stride, n, (size_t)m->cols / 32, format);
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
