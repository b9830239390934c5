#ifndef LAGUNA_AVX512_H
#define LAGUNA_AVX512_H

#include "cpu/avx2_scales.h"

/* What the AVX-512 kernels share.  Included only where the compiler may use AVX-512 F, BW,
 * VL and DQ.  The ways are those of AVX2 (avx2.h), with sixteen rows to a vector.
 *
 * Every product knows two ways to the same bits.  sixteens(): a row to a lane, after a
 * transpose, for many tokens.  quads(): 128 columns of four rows at a time, each row's
 * columns along the lanes, then sums across them, for up to four tokens.  So that both add
 * in the same order, group g of 32 columns goes into sum g % 4, and inside a group the
 * products of every eight columns are summed first, then (0 + 2) + (1 + 3) of those. */

enum {
    AVX512_ROWS = 16,           /* a matrix with fewer goes row by row */
    AVX512_AHEAD = 512,         /* bytes of prefetch ahead in each of the sixteen rows */
    AVX512_TOKENS = 64,         /* at most in one pass over the weights */
    AVX512_L2 = 384 << 10,      /* bytes of packed tokens that stay in L2 */
    AVX512_SCALES = 32,         /* scale columns expanded at a time */
};

/* Sixteen rows, or one row sixteen times. */
struct panel16 {
    struct rows8 weight, scale; /* the first eight of sixteen; stride 0 for one row */
    int row;
    bool whole;
    size_t columns, groups;     /* scale columns; groups of 32 in each */
};

INLINE struct panel16 panel16_at(const struct matrix *m, int row, bool whole,
                                 enum wformat format)
{
    size_t columns = format == W_BF16 ? 1 : (size_t)(m->cols / m->group);
    size_t row_bytes = (size_t)m->cols * (format == W_BF16 ? 2 : 1) /
                       (format == W_INT8 || format == W_BF16 ? 1 : 2);
    struct panel16 p = { rows8_at(m->weight, row_bytes, row, whole),
                         rows8_at(m->scale, columns * (format == W_MXFP4 ? 1 : 2), row, whole),
                         row, whole, columns, (size_t)(m->cols / 32) / columns };

    return p;
}

struct scales16 {
    float scale[AVX512_SCALES][16];
    int32_t minus_zero[AVX512_SCALES][16];      /* -zero point, in both halves of the lane */
};

INLINE void scales16_expand(struct scales16 *s, const struct matrix *m, const struct panel16 *p,
                            size_t from, size_t to, enum wformat format, bool zero, bool half)
{
    for (size_t h = 0; h < 2; h++) {
        struct rows8 r = p->scale;

        r.at += h * 8 * r.stride;
        scales_expand(s->scale[0] + 8 * h, 16, &r, from, to, format, half);
        if (zero)
            zeros_expand(s->minus_zero[0] + 8 * h, 16, m, p->row + (p->whole ? 8 * (int)h : 0),
                         p->whole, from, to, 0);
    }
}

INLINE __m512i load_si512(const void *p)
{
    return _mm512_loadu_si512(p);
}

/* t[i]: the 16 bytes at `at` of rows i, i + 4, i + 8 and i + 12. */
INLINE void rows16_load(__m512i t[4], const struct rows8 *r, size_t at)
{
    const uint8_t *p = r->at + at;

    for (size_t i = 0; i < 4; i++, p += r->stride) {
        __m512i v = _mm512_castsi256_si512(pair(p, p + 4 * r->stride));

        t[i] = _mm512_inserti64x4(v, pair(p + 8 * r->stride, p + 12 * r->stride), 1);
    }
}

/* v[i]: dword i of the 16 bytes of each of sixteen rows, row r in lane r. */
INLINE void transpose16(__m512i v[4], const __m512i t[4])
{
    __m512i a = _mm512_unpacklo_epi32(t[0], t[1]), b = _mm512_unpackhi_epi32(t[0], t[1]);
    __m512i c = _mm512_unpacklo_epi32(t[2], t[3]), d = _mm512_unpackhi_epi32(t[2], t[3]);

    v[0] = _mm512_unpacklo_epi64(a, c);
    v[1] = _mm512_unpackhi_epi64(a, c);
    v[2] = _mm512_unpacklo_epi64(b, d);
    v[3] = _mm512_unpackhi_epi64(b, d);
}

/* Ask for the lines AVX512_AHEAD bytes after `at`, in these rows or, past their ends, in
 * the next sixteen. */
INLINE void rows16_prefetch(const struct rows8 *r, size_t at)
{
    size_t to = at + AVX512_AHEAD;
    uintptr_t line;

    if (to >= r->bytes)
        to += 15 * r->stride;
    line = (uintptr_t)r->at + to;
    for (size_t i = 0; i < AVX512_ROWS; i++)
        _mm_prefetch((const char *)(line + i * r->stride), _MM_HINT_T0);
}

/* 128 columns of a four-bit row, or what is left of it: `groups` of 32. */
INLINE __m512i row_load(const struct rows8 *r, size_t i, size_t at, size_t groups)
{
    const uint8_t *p = r->at + i * r->stride + at;

    if (groups >= 4)
        return load_si512(p);
    return _mm512_maskz_loadu_epi8(((__mmask64)1 << (16 * groups)) - 1, p);
}

/* Four values, each to the four lanes of one 128-bit part. */
INLINE __m512i spread4(const void *p)
{
    const __m512i to = _mm512_set_epi32(3, 3, 3, 3, 2, 2, 2, 2, 1, 1, 1, 1, 0, 0, 0, 0);
    __m128i v = _mm_loadu_si128((const __m128i *)p);

    return _mm512_permutexvar_epi32(to, _mm512_castsi128_si512(v));
}

/* Of four vectors, one to a row, the sum of each 128-bit part: rows in its four lanes. */
INLINE __m512i sum_parts_i32(const __m512i s[4])
{
    __m512i a = _mm512_add_epi32(_mm512_unpacklo_epi32(s[0], s[1]),
                                 _mm512_unpackhi_epi32(s[0], s[1]));
    __m512i b = _mm512_add_epi32(_mm512_unpacklo_epi32(s[2], s[3]),
                                 _mm512_unpackhi_epi32(s[2], s[3]));

    return _mm512_add_epi32(_mm512_unpacklo_epi64(a, b), _mm512_unpackhi_epi64(a, b));
}

/* The same for floats: (0 + 2) + (1 + 3) of each part's lanes. */
INLINE __m512 sum_parts_f32(const __m512 s[4])
{
    __m512 a = _mm512_add_ps(_mm512_unpacklo_ps(s[0], s[1]), _mm512_unpackhi_ps(s[0], s[1]));
    __m512 b = _mm512_add_ps(_mm512_unpacklo_ps(s[2], s[3]), _mm512_unpackhi_ps(s[2], s[3]));
    __m512d c = _mm512_castps_pd(a), d = _mm512_castps_pd(b);

    return _mm512_add_ps(_mm512_castpd_ps(_mm512_unpacklo_pd(c, d)),
                         _mm512_castpd_ps(_mm512_unpackhi_pd(c, d)));
}

/* sixteens(): the four sums of groups 0 to 3 mod 4. */
INLINE __m512 sum_groups(const __m512 acc[4])
{
    return _mm512_add_ps(_mm512_add_ps(acc[0], acc[1]), _mm512_add_ps(acc[2], acc[3]));
}

/* quads(): the same, where part j of acc[q] is the sum of groups j mod 4, for rows 4q to
 * 4q + 3. */
INLINE __m512 sum_quads(const __m512 acc[4])
{
    __m128 row[4];
    __m256 low, high;

    for (int q = 0; q < 4; q++) {
        __m128 a = _mm_add_ps(_mm512_castps512_ps128(acc[q]), _mm512_extractf32x4_ps(acc[q], 1));
        __m128 b = _mm_add_ps(_mm512_extractf32x4_ps(acc[q], 2),
                              _mm512_extractf32x4_ps(acc[q], 3));

        row[q] = _mm_add_ps(a, b);
    }
    low = _mm256_insertf128_ps(_mm256_castps128_ps256(row[0]), row[1], 1);
    high = _mm256_insertf128_ps(_mm256_castps128_ps256(row[2]), row[3], 1);
    return _mm512_insertf32x8(_mm512_castps256_ps512(low), high, 1);
}

/* Row r of the matrix is the first of sixteen lanes; those of [row0, row1) go to y. */
INLINE void store16(float *y, __m512 v, int r, int row0, int row1)
{
    int from = r < row0 ? row0 - r : 0, to = row1 - r < 16 ? row1 - r : 16;
    __mmask16 lanes = (__mmask16)(((1u << to) - 1) & ~((1u << from) - 1));

    _mm512_mask_storeu_ps(y + r, lanes, v);
}

/* What is missing from the weights of decode16() where a row has its own zero point. */
INLINE __m512 shift_of(__m512i minus_zero, enum wformat format)
{
    __m512i z = _mm512_srai_epi32(_mm512_slli_epi32(minus_zero, 16), 16);

    z = _mm512_add_epi32(z, _mm512_set1_epi32(format == W_INT4 ? 8 : 128));
    return _mm512_cvtepi32_ps(z);
}

/* How many tokens at a time, so that they stay in L2. */
static inline int token_block(size_t x_stride)
{
    int block = AVX512_L2 / (int)x_stride;

    return block < 8 ? 8 : block > AVX512_TOKENS ? AVX512_TOKENS : block;
}

#define AVX512_MUL(name)                                                                    \
    void name(float *y, size_t y_stride, const struct matrix *m, const uint8_t *x,          \
              size_t x_stride, int n, int row0, int row1)

AVX512_MUL(avx512_mul_bf16);

void avx512_pack_f32(uint8_t *to, const float *x, int cols);
size_t avx512_f32_bytes(int cols);

void avx512_attend_q8(const struct attend *a);
void avx512_attend_fp8(const struct attend *a);
void avx512_attend_bf16(const struct attend *a);
void avx512_attend_f32(const struct attend *a);

/* What a table of products has beside them. */
#define AVX512_REST                                                                         \
    .mul_exact = avx512_mul_bf16, .kv_store = KV_STORE,                                     \
    .attend = { [KV_Q8] = avx512_attend_q8, [KV_FP8] = avx512_attend_fp8,                   \
                [KV_BF16] = avx512_attend_bf16, [KV_F32] = avx512_attend_f32 },             \
    .norm = avx2_norm, .silu_mul = avx2_silu_mul

#endif
