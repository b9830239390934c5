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
    AVX2_ROWS = 8,              /* a matrix with fewer goes row by row */
    AVX2_AHEAD = 1024,          /* bytes of prefetch ahead in each of the eight rows */
    QUAD_AHEAD = 4096,          /* bytes of prefetch past the next four rows, where four */
    QUAD_SCALES = 1024,         /* are read at once; and past their scales */
    AVX2_FEW = 4,               /* tokens: up to so many, avx2_few.c */
    AVX2_TOKENS = 64,           /* at most in one pass over the weights */
    AVX2_L2 = 256 << 10,        /* bytes of packed tokens that stay in L2 */
};

/* Eight rows of a matrix, or one row eight times: stride is the bytes of a row, or 0. */
struct rows8 {
    const uint8_t *at;
    size_t stride, bytes;
};

/* Rows from `row` on.  Whole says that there are eight; otherwise the row stands for all. */
INLINE struct rows8 rows8_at(const void *base, size_t bytes, int row, bool whole)
{
    struct rows8 r = { (const uint8_t *)base + (size_t)row * bytes, whole ? bytes : 0, bytes };

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

INLINE int32_t load_i32(const void *p)
{
    int32_t v;

    memcpy(&v, p, sizeof(v));
    return v;
}

INLINE __m256i pair(const uint8_t *low, const uint8_t *high)
{
    __m128i a = _mm_loadu_si128((const __m128i *)(const void *)low);
    __m128i b = _mm_loadu_si128((const __m128i *)(const void *)high);

    return _mm256_inserti128_si256(_mm256_castsi128_si256(a), b, 1);
}

/* t[i]: the 16 bytes at `at` of row i and of row i + 4. */
INLINE void rows8_load(__m256i t[4], const struct rows8 *r, size_t at)
{
    const uint8_t *low = r->at + at, *high = low + 4 * r->stride;

    for (size_t i = 0; i < 4; i++)
        t[i] = pair(low + i * r->stride, high + i * r->stride);
}

/* Ask for the cache lines AVX2_AHEAD bytes after `at`, in these rows or, past their ends,
 * in the next eight.  Without it half of the memory's bandwidth is lost. */
INLINE void rows8_prefetch(const struct rows8 *r, size_t at)
{
    size_t to = at + AVX2_AHEAD;
    uintptr_t line;

    if (to >= r->bytes)
        to += 7 * r->stride;
    line = (uintptr_t)r->at + to;
    for (size_t i = 0; i < AVX2_ROWS; i++)
        _mm_prefetch((const char *)(line + i * r->stride), _MM_HINT_T0);
}

/* Four rows are read together, `done` bytes of each so far, and the next four lie behind
 * them: ask for lines `ahead` bytes past as much of those, in the order of memory.  Far:
 * into L2 only. */
INLINE void quad_prefetch(const uint8_t *rows, size_t stride, size_t done, size_t ahead,
                          size_t lines, bool far)
{
    uintptr_t line = (uintptr_t)rows + 4 * (stride + done) + ahead;

    for (size_t i = 0; i < lines; i++, line += 64) {
        if (far)
            _mm_prefetch((const char *)line, _MM_HINT_T1);
        else
            _mm_prefetch((const char *)line, _MM_HINT_T0);
    }
}

/* Row r of the matrix is the first of eight lanes; those of [row0, row1) go to y. */
INLINE void store8(float *y, __m256 v, int r, int row0, int row1)
{
    float lane[8];
    int from = r < row0 ? row0 - r : 0, to = row1 - r < 8 ? row1 - r : 8;

    if (from == 0 && to == 8) {
        _mm256_storeu_ps(y + r, v);
        return;
    }
    _mm256_storeu_ps(lane, v);
    memcpy(y + r + from, lane + from, (size_t)(to - from) * sizeof(*y));
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
