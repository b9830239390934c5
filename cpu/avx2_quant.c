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

#include <assert.h>

enum { SCALES = 32 };           /* scale columns expanded at a time */

/* Scales and zero points of eight rows, a few scale columns at a time. */
struct scales8 {
    float scale[SCALES][8];
    int32_t minus_zero[SCALES][8];      /* -zero point, in both halves of the lane */
};

INLINE __m256i both_halves(int v)
{
    return _mm256_set1_epi16((short)v);
}

/* E8M0 to half of 2^(b - 127), the two smallest denormal. */
INLINE __m256 e8m0_half(__m128i eight_bytes)
{
    __m256i b = _mm256_cvtepu8_epi32(eight_bytes);
    __m256i normal = _mm256_sub_epi32(_mm256_slli_epi32(b, 23), _mm256_set1_epi32(1 << 23));
    __m256i tiny = _mm256_sllv_epi32(_mm256_set1_epi32(1 << 21),
                                     _mm256_min_epi32(b, _mm256_set1_epi32(1)));

    return _mm256_castsi256_ps(_mm256_max_epi32(normal, tiny));
}

/* Eight columns of BF16 scales, of eight rows. */
INLINE void expand8_bf16(float out[8][8], const struct rows8 *r, size_t at)
{
    __m256i t[4], a[4], v[4];

    rows8_load(t, r, at);
    /* 16-bit transpose of 4 x 8 in each half: pairs of rows, then dwords. */
    a[0] = _mm256_unpacklo_epi16(t[0], t[1]);
    a[1] = _mm256_unpackhi_epi16(t[0], t[1]);
    a[2] = _mm256_unpacklo_epi16(t[2], t[3]);
    a[3] = _mm256_unpackhi_epi16(t[2], t[3]);
    v[0] = _mm256_unpacklo_epi32(a[0], a[2]);
    v[1] = _mm256_unpackhi_epi32(a[0], a[2]);
    v[2] = _mm256_unpacklo_epi32(a[1], a[3]);
    v[3] = _mm256_unpackhi_epi32(a[1], a[3]);
    for (int i = 0; i < 4; i++) {
        __m256i zero = _mm256_setzero_si256();
        __m256i even = _mm256_unpacklo_epi16(zero, v[i]), odd = _mm256_unpackhi_epi16(zero, v[i]);

        _mm256_storeu_ps(out[2 * i], _mm256_castsi256_ps(even));
        _mm256_storeu_ps(out[2 * i + 1], _mm256_castsi256_ps(odd));
    }
}

/* Eight columns of E8M0 scales, of eight rows. */
INLINE void expand8_e8m0(float out[8][8], const struct rows8 *r, size_t at)
{
    __m128i t[8], a[4], b[4], c[4];

    for (int i = 0; i < 8; i++)
        t[i] = _mm_loadl_epi64((const __m128i *)(const void *)(r->at[i] + at));
    for (int i = 0; i < 4; i++)
        a[i] = _mm_unpacklo_epi8(t[2 * i], t[2 * i + 1]);
    for (int i = 0; i < 2; i++) {
        b[2 * i] = _mm_unpacklo_epi16(a[2 * i], a[2 * i + 1]);
        b[2 * i + 1] = _mm_unpackhi_epi16(a[2 * i], a[2 * i + 1]);
    }
    c[0] = _mm_unpacklo_epi32(b[0], b[2]);
    c[1] = _mm_unpackhi_epi32(b[0], b[2]);
    c[2] = _mm_unpacklo_epi32(b[1], b[3]);
    c[3] = _mm_unpackhi_epi32(b[1], b[3]);
    for (int i = 0; i < 4; i++) {
        _mm256_storeu_ps(out[2 * i], e8m0_half(c[i]));
        _mm256_storeu_ps(out[2 * i + 1], e8m0_half(_mm_srli_si128(c[i], 8)));
    }
}

/* One column. */
INLINE void expand1(float out[8], const struct rows8 *r, size_t col, enum wformat format)
{
    for (int i = 0; i < 8; i++) {
        if (format == W_MXFP4) {
            _mm_store_ss(out + i, _mm256_castps256_ps128(
                             e8m0_half(_mm_cvtsi32_si128(r->at[i][col]))));
        } else {
            bf16 s;

            memcpy(&s, r->at[i] + 2 * col, sizeof(s));
            out[i] = bf16_to_f32(s);
        }
    }
}

/* Zero points of column col: packed along the rows, 32 / bits to a word. */
INLINE void expand_zero(int32_t out[8], const struct matrix *m, int row, int row1, size_t col,
                        int bits)
{
    size_t columns = (size_t)(m->cols / m->group);
    int per_word = 32 / bits;

    for (int i = 0; i < 8; i++) {
        int r = row + i < row1 ? row + i : row1 - 1;
        uint32_t word, z;

        memcpy(&word, (const uint8_t *)m->zero + ((size_t)(r / per_word) * columns + col) * 4, 4);
        z = word >> (r % per_word * bits) & ((1u << bits) - 1);
        if (bits == 8)
            z -= 128;
        out[i] = (int32_t)((-z & 0xffff) * 0x10001u);
    }
}

INLINE void expand(struct scales8 *s, const struct matrix *m, const struct rows8 *r, int row,
                   int row1, size_t from, size_t to, enum wformat format, bool zero)
{
    size_t c = from;

    for (; c + 8 <= to; c += 8) {
        if (format == W_MXFP4)
            expand8_e8m0(s->scale + (c - from), r, c);
        else
            expand8_bf16(s->scale + (c - from), r, 2 * c);
    }
    for (; c < to; c++)
        expand1(s->scale[c - from], r, c, format);
    for (c = from; zero && c < to; c++)
        expand_zero(s->minus_zero[c - from], m, row, row1, c, format == W_INT4 ? 4 : 8);
}

/* w[2i] and w[2i+1]: columns 8i + 0 2 4 6 and 8i + 1 3 5 7 of eight rows. */
INLINE void decode(__m256i w[8], const struct rows8 *r, size_t group, enum wformat format)
{
    const __m256i low = _mm256_set1_epi8(15);
    const __m256i even_first = _mm256_setr_epi8(
        0, 2, 4, 6, 1, 3, 5, 7, 8, 10, 12, 14, 9, 11, 13, 15,
        0, 2, 4, 6, 1, 3, 5, 7, 8, 10, 12, 14, 9, 11, 13, 15);
    const __m256i e2m1 = _mm256_setr_epi8(
        12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0,
        12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0);
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
        w[2 * i] = _mm256_and_si256(v[i], low);
        w[2 * i + 1] = _mm256_and_si256(_mm256_srli_epi16(v[i], 4), low);
        if (format == W_MXFP4) {
            w[2 * i] = _mm256_shuffle_epi8(e2m1, w[2 * i]);
            w[2 * i + 1] = _mm256_shuffle_epi8(e2m1, w[2 * i + 1]);
        }
    }
}

/* One group of one token: 32 columns of eight rows. */
INLINE __m256i dot(const __m256i w[8], const struct act8 *x, __m256i minus_zero,
                   enum wformat format, bool zero)
{
    const __m256i ones = _mm256_set1_epi16(1);
    __m256i sum = _mm256_setzero_si256(), zeros;
    int32_t dword;

    memcpy(&dword, x->sum, sizeof(dword));
    zeros = _mm256_set1_epi32(dword);
    if (format != W_INT8)
        sum = _mm256_mullo_epi16(zeros, minus_zero);
    else if (zero)
        sum = _mm256_madd_epi16(zeros, minus_zero);
    for (int i = 0; i < 8; i++) {
        __m256i v;

        memcpy(&dword, x->q + 4 * i, sizeof(dword));
        v = _mm256_set1_epi32(dword);
        if (format == W_INT8) {
            v = _mm256_maddubs_epi16(_mm256_abs_epi8(w[i]), _mm256_sign_epi8(v, w[i]));
            sum = _mm256_add_epi32(sum, _mm256_madd_epi16(v, ones));
        } else {
            sum = _mm256_add_epi16(sum, _mm256_maddubs_epi16(w[i], v));
        }
    }
    return format == W_INT8 ? sum : _mm256_madd_epi16(sum, ones);
}

/* Eight rows (the first `rows` of them wanted) times n tokens. */
INLINE void panel(float *y, size_t y_stride, const struct matrix *m, const uint8_t *x,
                  size_t x_stride, int n, int row, int row1, enum wformat format, bool zero)
{
    size_t columns = (size_t)(m->cols / m->group), groups = (size_t)m->group / 32;
    size_t step = format == W_INT8 ? 32 : 16, scale_size = format == W_MXFP4 ? 1 : 2;
    struct rows8 w = rows8_at(m->weight, step * (size_t)m->cols / 32, row, row1);
    struct rows8 s = rows8_at(m->scale, columns * scale_size, row, row1);
    __m256i minus_zero = both_halves(format == W_MXFP4 ? -12 : -8);
    __m256 acc[AVX2_TOKENS];
    struct scales8 table;
    size_t g = 0;

    for (int t = 0; t < n; t++)
        acc[t] = _mm256_setzero_ps();
    for (size_t from = 0; from < columns; from += SCALES) {
        size_t to = from + SCALES < columns ? from + SCALES : columns;

        expand(&table, m, &s, row, row1, from, to, format, zero);
        for (size_t c = 0; c < to - from; c++) {
            __m256 scale = _mm256_loadu_ps(table.scale[c]);

            if (zero)
                minus_zero = _mm256_loadu_si256((const __m256i *)(const void *)
                                                table.minus_zero[c]);
            for (size_t end = g + groups; g < end; g++) {
                __m256i b[8];

                if (g * step % 64 == 0)
                    rows8_prefetch(&w, g * step);
                decode(b, &w, g, format);
                for (int t = 0; t < n; t++) {
                    const struct act8 *a = (const struct act8 *)(const void *)
                                           (x + (size_t)t * x_stride) + g;
                    __m256 d = _mm256_cvtepi32_ps(dot(b, a, minus_zero, format, zero));

                    /* The scales first: their product overflows only where one weight
                     * times one activation does. */
                    acc[t] = _mm256_fmadd_ps(d, _mm256_mul_ps(_mm256_set1_ps(a->scale), scale),
                                             acc[t]);
                }
            }
        }
    }
    for (int t = 0; t < n; t++)
        store8(y + (size_t)t * y_stride + row, acc[t], row1 - row);
}

/* n known to the compiler keeps the sums in registers. */
INLINE void panels(float *y, size_t y_stride, const struct matrix *m, const uint8_t *x,
                   size_t x_stride, int n, int row0, int row1, enum wformat format, bool zero)
{
    for (int row = row0; row < row1; row += AVX2_ROWS) {
        if (n == 1)
            panel(y, y_stride, m, x, x_stride, 1, row, row1, format, zero);
        else if (n == 2)
            panel(y, y_stride, m, x, x_stride, 2, row, row1, format, zero);
        else
            panel(y, y_stride, m, x, x_stride, n, row, row1, format, zero);
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
