#ifndef LAGUNA_AVX2_H
#define LAGUNA_AVX2_H

#include "cpu/tables.h"

#include <immintrin.h>

/* What the AVX2 kernels share.  Included only where the compiler may use AVX2, FMA and F16C.
 *
 * Every product works on eight rows at once, one to a 32-bit lane.  A row's bytes are read
 * 16 at a time; transposing four dwords of eight rows costs two shuffles a vector, and in
 * return scales, conversions and sums are paid once for eight rows, there is no sum across
 * lanes at the end, and one token or a hundred go through the same arithmetic in the same
 * order. */

#define INLINE static inline __attribute__((always_inline))

enum {
    AVX2_ROWS = 8,
    AVX2_AHEAD = 1024,          /* bytes of prefetch ahead in each of the eight rows */
    AVX2_TOKENS = 64,           /* at most in one pass over the weights */
    AVX2_L2 = 256 << 10,        /* bytes of packed tokens that stay in L2 */
};

/* Eight rows of a matrix.  Past the last row they repeat it. */
struct rows8 {
    const uint8_t *at[AVX2_ROWS];
    size_t bytes;               /* of a row */
};

INLINE struct rows8 rows8_at(const void *base, size_t bytes, int row, int row1)
{
    struct rows8 r;

    r.bytes = bytes;
    for (int i = 0; i < AVX2_ROWS; i++)
        r.at[i] = (const uint8_t *)base + (size_t)(row + i < row1 ? row + i : row1 - 1) * bytes;
    return r;
}

/* v[i]: dword i of the 16 bytes at `at`, of each of the eight rows. */
INLINE void transpose8(__m256i v[4], const __m256i t[4])
{
    __m256i a = _mm256_unpacklo_epi32(t[0], t[1]), b = _mm256_unpackhi_epi32(t[0], t[1]);
    __m256i c = _mm256_unpacklo_epi32(t[2], t[3]), d = _mm256_unpackhi_epi32(t[2], t[3]);

    v[0] = _mm256_unpacklo_epi64(a, c);
    v[1] = _mm256_unpackhi_epi64(a, c);
    v[2] = _mm256_unpacklo_epi64(b, d);
    v[3] = _mm256_unpackhi_epi64(b, d);
}

/* t[i]: 16 bytes of row i and of row i + 4. */
INLINE void rows8_load(__m256i t[4], const struct rows8 *r, size_t at)
{
    for (int i = 0; i < 4; i++) {
        __m128i low = _mm_loadu_si128((const __m128i *)(const void *)(r->at[i] + at));
        const __m128i *high = (const __m128i *)(const void *)(r->at[i + 4] + at);

        t[i] = _mm256_inserti128_si256(_mm256_castsi128_si256(low), _mm_loadu_si128(high), 1);
    }
}

/* Ask for the cache lines AVX2_AHEAD bytes after `at`, in these rows or, past their ends,
 * in the next eight.  Without it half of the memory's bandwidth is lost. */
INLINE void rows8_prefetch(const struct rows8 *r, size_t at)
{
    size_t to = at + AVX2_AHEAD;

    if (to >= r->bytes)
        to += (AVX2_ROWS - 1) * r->bytes;
    for (int i = 0; i < AVX2_ROWS; i++)
        _mm_prefetch((const char *)((uintptr_t)r->at[i] + to), _MM_HINT_T0);
}

INLINE float load_f32(const void *p)
{
    float f;

    memcpy(&f, p, sizeof(f));
    return f;
}

/* The first `rows` lanes to y. */
INLINE void store8(float *y, __m256 v, int rows)
{
    float lane[8];

    if (rows >= 8) {
        _mm256_storeu_ps(y, v);
        return;
    }
    _mm256_storeu_ps(lane, v);
    memcpy(y, lane, (size_t)rows * sizeof(*y));
}

/* e^x for x <= 88, relative error below 2e-7; 0 below -87. */
INLINE __m256 exp8(__m256 x)
{
    const __m256 log2e = _mm256_set1_ps(1.44269504f);
    __m256 n, r, p;
    __m256i e;

    /* ln 2 in two parts, the first with enough zero bits that n times it is exact. */
    n = _mm256_round_ps(_mm256_mul_ps(x, log2e), _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    r = _mm256_fnmadd_ps(n, _mm256_set1_ps(0.693145752f), x);
    r = _mm256_fnmadd_ps(n, _mm256_set1_ps(1.42860677e-6f), r);
    p = _mm256_set1_ps(1.0f / 720);
    p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(1.0f / 120));
    p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(1.0f / 24));
    p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(1.0f / 6));
    p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(0.5f));
    p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(1));
    p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(1));
    e = _mm256_slli_epi32(_mm256_cvtps_epi32(n), 23);
    p = _mm256_castsi256_ps(_mm256_add_epi32(_mm256_castps_si256(p), e));
    return _mm256_andnot_ps(_mm256_cmp_ps(x, _mm256_set1_ps(-87), _CMP_LT_OQ), p);
}

INLINE float sum8(__m256 v)
{
    __m128 s = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));

    s = _mm_add_ps(s, _mm_movehl_ps(s, s));
    return _mm_cvtss_f32(_mm_add_ss(s, _mm_movehdup_ps(s)));
}

void avx2_pack_act8(uint8_t *to, const float *x, int cols);
void avx2_pack_f32(uint8_t *to, const float *x, int cols);

void avx2_mul_int4(float *y, size_t y_stride, const struct matrix *m, const uint8_t *x,
                   size_t x_stride, int n, int row0, int row1);
void avx2_mul_mxfp4(float *y, size_t y_stride, const struct matrix *m, const uint8_t *x,
                   size_t x_stride, int n, int row0, int row1);
void avx2_mul_int8(float *y, size_t y_stride, const struct matrix *m, const uint8_t *x,
                   size_t x_stride, int n, int row0, int row1);
void avx2_mul_bf16(float *y, size_t y_stride, const struct matrix *m, const uint8_t *x,
                   size_t x_stride, int n, int row0, int row1);

void avx2_attend_q8(const struct attend *a);
void avx2_attend_fp8(const struct attend *a);
void avx2_attend_bf16(const struct attend *a);
void avx2_attend_f32(const struct attend *a);

void avx2_norm(float *y, const float *x, const float *w, int n, float eps);
void avx2_silu_mul(float *y, const float *g, const float *u, int n);

#endif
