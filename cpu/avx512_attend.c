/* Attention over cached keys, AVX-512: see avx2_attend.c, whose ways these are. */
#include "cpu/avx512.h"
#include "cpu/avx_attend.h"

#include <math.h>

enum { TILE = 6, VALUES = 16 };

/* E4M3 in the low byte of each lane to float32.  Subnormal ones go through an integer, as
 * denormals may be off. */
INLINE __m512 from_fp8(__m512i b)
{
    __m512i rest = _mm512_and_si512(b, _mm512_set1_epi32(0x7f));
    __m512i sign = _mm512_slli_epi32(_mm512_and_si512(b, _mm512_set1_epi32(0x80)), 24);
    __m512i normal = _mm512_add_epi32(_mm512_slli_epi32(rest, 20), _mm512_set1_epi32(120 << 23));
    __m512 small = _mm512_mul_ps(_mm512_cvtepi32_ps(rest), _mm512_set1_ps(0x1p-9f));
    __mmask16 is_small = _mm512_cmpgt_epi32_mask(_mm512_set1_epi32(8), rest);

    normal = _mm512_mask_mov_epi32(normal, is_small, _mm512_castps_si512(small));
    return _mm512_castsi512_ps(_mm512_or_si512(normal, sign));
}

/* Element i of the dwords in v. */
INLINE __m512 element(__m512i v, unsigned i, enum kv_type type)
{
    switch (type) {
    case KV_Q8:
        v = _mm512_slli_epi32(v, 24 - 8 * i);
        return _mm512_cvtepi32_ps(_mm512_srai_epi32(v, 24));
    case KV_FP8:
        return from_fp8(_mm512_srli_epi32(v, 8 * i));
    case KV_BF16:
        return _mm512_castsi512_ps(i ? _mm512_and_si512(v, _mm512_set1_epi32((int)0xffff0000))
                                     : _mm512_slli_epi32(v, 16));
    default:
        return _mm512_castsi512_ps(v);
    }
}

INLINE void load_keys(struct block *b, const struct attend *a, int key, enum kv_type type)
{
    int per = per_dword(type), chunk = 4 * per;
    size_t size = 4 / (size_t)per;

    for (int j = 0; j < BLOCK; j += AVX512_ROWS) {
        const uint8_t *row[16];

        for (int i = 0; i < 16; i++)
            row[i] = a->k + (size_t)(key + j + i < a->keys ? key + j + i : a->keys - 1) * a->stride;
        for (int d = 0; d < a->dim; d += chunk) {
            size_t at = (size_t)d * size;
            __m512i t[4], v[4];

            for (int i = 0; i < 4; i++) {
                __m256i low = pair(row[i] + at, row[i + 4] + at);
                __m256i high = pair(row[i + 8] + at, row[i + 12] + at);

                t[i] = _mm512_inserti64x4(_mm512_castsi256_si512(low), high, 1);
            }
            transpose16(v, t);
            for (int i = 0; i < 4; i++)
                for (int e = 0; e < per; e++)
                    _mm512_storeu_ps(b->key[d + i * per + e] + j,
                                     element(v[i], (unsigned)e, type));
        }
    }
}

INLINE __m512 load16(const uint8_t *p, enum kv_type type)
{
    const __m128i *narrow = (const __m128i *)(const void *)p;

    if (type == KV_F32)
        return _mm512_loadu_ps(p);
    if (type == KV_BF16) {
        __m256i half = _mm256_loadu_si256((const __m256i *)(const void *)p);

        return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(half), 16));
    }
    if (type == KV_FP8)
        return from_fp8(_mm512_cvtepu8_epi32(_mm_loadu_si128(narrow)));
    return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(narrow)));
}

INLINE void load_some(float *to, const uint8_t *p, enum kv_type type)
{
    _mm512_storeu_ps(to, load16(p, type));
}

/* e^x for x <= 88, relative error below 2e-7; 0 below -87. */
INLINE __m512 exp16(__m512 x)
{
    __m512 n = _mm512_roundscale_ps(_mm512_mul_ps(x, _mm512_set1_ps(1.44269504f)),
                                    _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    __mmask16 in = _mm512_cmp_ps_mask(x, _mm512_set1_ps(-87), _CMP_NLT_UQ);
    __m512 r, p;
    __m512i e;

    r = _mm512_fnmadd_ps(n, _mm512_set1_ps(0.693145752f), x);
    r = _mm512_fnmadd_ps(n, _mm512_set1_ps(1.42860677e-6f), r);
    p = _mm512_set1_ps(1.0f / 720);
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(1.0f / 120));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(1.0f / 24));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(1.0f / 6));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(0.5f));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(1));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(1));
    e = _mm512_slli_epi32(_mm512_cvtps_epi32(n), 23);
    return _mm512_castsi512_ps(_mm512_maskz_add_epi32(in, _mm512_castps_si512(p), e));
}

/* score[i][key] for n <= TILE queries from query on. */
INLINE void scores(float score[TILE][BLOCK], const struct block *b, const struct attend *a,
                   int query, int n)
{
    const float *q[TILE];
    __m512 s[TILE][2];

    for (int i = 0; i < TILE; i++) {
        q[i] = a->q + (size_t)(query + (i < n ? i : n - 1)) * (size_t)a->dim;
        s[i][0] = s[i][1] = _mm512_setzero_ps();
    }
    for (int d = 0; d < a->dim; d++) {
        __m512 k0 = _mm512_loadu_ps(b->key[d]), k1 = _mm512_loadu_ps(b->key[d] + 16);

        for (int i = 0; i < TILE; i++) {
            __m512 v = _mm512_set1_ps(q[i][d]);

            s[i][0] = _mm512_fmadd_ps(v, k0, s[i][0]);
            s[i][1] = _mm512_fmadd_ps(v, k1, s[i][1]);
        }
    }
    for (int i = 0; i < TILE; i++)
        for (int h = 0; h < 2; h++)
            _mm512_storeu_ps(score[i] + 16 * h,
                             _mm512_mul_ps(s[i][h], _mm512_loadu_ps(b->key_scale + 16 * h)));
}

/* Scores of one query to weights, values' scales included; what the sums so far are
 * multiplied by is returned.  Keys outside [from, to) weigh 0. */
INLINE float weigh(float score[BLOCK], const struct block *b, float *max, float *sum, int from,
                   int to)
{
    const __m512i lane = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    __m512 s[BLOCK / 16], total = _mm512_setzero_ps();
    float old = *max, m = old;

    for (int j = 0; j < BLOCK / 16; j++) {
        __m512i index = _mm512_add_epi32(_mm512_set1_epi32(16 * j), lane);
        __mmask16 in = _mm512_cmpge_epi32_mask(index, _mm512_set1_epi32(from)) &
                       _mm512_cmplt_epi32_mask(index, _mm512_set1_epi32(to));

        s[j] = _mm512_mask_loadu_ps(_mm512_set1_ps(-INFINITY), in, score + 16 * j);
        m = fmaxf(m, _mm512_reduce_max_ps(s[j]));
    }
    if (m == -INFINITY) {
        memset(score, 0, BLOCK * sizeof(*score));
        return 1;
    }
    for (int j = 0; j < BLOCK / 16; j++) {
        __m512 p = exp16(_mm512_sub_ps(s[j], _mm512_set1_ps(m)));

        total = _mm512_add_ps(total, p);
        p = _mm512_mul_ps(p, _mm512_loadu_ps(b->value_scale + 16 * j));
        _mm512_storeu_ps(score + 16 * j, p);
    }
    *max = m;
    m = _mm512_cvtss_f32(exp16(_mm512_set1_ps(old - m)));
    *sum = *sum * m + _mm512_reduce_add_ps(total);
    return m;
}

/* acc = acc * old + weights x values, n <= TILE queries, sixteen dims at a time. */
INLINE void add_values(const struct attend *a, const struct block *b, float weight[TILE][BLOCK],
                       const float old[TILE], int query, int n, int keys)
{
    float *acc = a->acc + (size_t)query * (size_t)a->dim;

    for (int d = 0; d < a->dim; d += 16) {
        __m512 s[TILE];

        for (int i = 0; i < TILE; i++)
            s[i] = _mm512_setzero_ps();
        for (int j = 0; j < keys; j++) {
            __m512 v = _mm512_loadu_ps(b->value[j] + d);

            for (int i = 0; i < TILE; i++)
                s[i] = _mm512_fmadd_ps(_mm512_set1_ps(weight[i][j]), v, s[i]);
        }
        for (int i = 0; i < n; i++) {
            float *to = acc + (size_t)i * (size_t)a->dim + d;

            _mm512_storeu_ps(to, _mm512_fmadd_ps(_mm512_loadu_ps(to), _mm512_set1_ps(old[i]),
                                                 s[i]));
        }
    }
}

#include "cpu/avx_attend.inc"

void avx512_attend_q8(const struct attend *a)
{
    attend(a, KV_Q8);
}

void avx512_attend_fp8(const struct attend *a)
{
    attend(a, KV_FP8);
}

void avx512_attend_bf16(const struct attend *a)
{
    attend(a, KV_BF16);
}

void avx512_attend_f32(const struct attend *a)
{
    attend(a, KV_F32);
}
