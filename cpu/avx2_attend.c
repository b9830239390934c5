/* Attention over cached keys, AVX2.  Keys are turned into float32 a block at a time, once
 * for all queries of the call: keys transposed, [dim][BLOCK], values as they lie,
 * [BLOCK][dim].  Four queries then go through each block together: avx_attend.inc. */
#include "cpu/avx_attend.h"

#include <math.h>

enum { TILE = 4, VALUES = 8 };

/* E4M3 in the low byte of each lane to float32.  Subnormal ones go
 * through an integer, as denormals may be off. */
INLINE __m256 from_fp8(__m256i b)
{
    __m256i sign = _mm256_slli_epi32(_mm256_and_si256(b, _mm256_set1_epi32(0x80)), 24);
    __m256i rest = _mm256_and_si256(b, _mm256_set1_epi32(0x7f));
    __m256i normal = _mm256_add_epi32(_mm256_slli_epi32(rest, 20), _mm256_set1_epi32(120 << 23));
    __m256 small = _mm256_mul_ps(_mm256_cvtepi32_ps(rest), _mm256_set1_ps(0x1p-9f));
    __m256i is_small = _mm256_cmpgt_epi32(_mm256_set1_epi32(8), rest);
    __m256 v = _mm256_blendv_ps(_mm256_castsi256_ps(normal), small,
                                _mm256_castsi256_ps(is_small));

    return _mm256_or_ps(v, _mm256_castsi256_ps(sign));
}

/* Element i of the dwords in v. */
INLINE __m256 element(__m256i v, int i, enum kv_type type)
{
    switch (type) {
    case KV_Q8:
        v = _mm256_slli_epi32(v, 24 - 8 * i);
        return _mm256_cvtepi32_ps(_mm256_srai_epi32(v, 24));
    case KV_FP8:
        return from_fp8(_mm256_srli_epi32(v, 8 * i));
    case KV_BF16:
        return _mm256_castsi256_ps(i ? _mm256_and_si256(v, _mm256_set1_epi32((int)0xffff0000))
                                     : _mm256_slli_epi32(v, 16));
    default:
        return _mm256_castsi256_ps(v);
    }
}

INLINE void load_keys(struct block *b, const struct attend *a, int key, enum kv_type type)
{
    int per = per_dword(type), chunk = 4 * per;
    size_t size = 4 / (size_t)per;

    for (int j = 0; j < BLOCK; j += AVX2_ROWS) {
        const uint8_t *row[8];

        for (int i = 0; i < 8; i++)
            row[i] = a->k + (size_t)(key + j + i < a->keys ? key + j + i : a->keys - 1) * a->stride;
        for (int d = 0; d < a->dim; d += chunk) {
            __m256i t[4], v[4];

            for (int i = 0; i < 4; i++)
                t[i] = pair(row[i] + (size_t)d * size, row[i + 4] + (size_t)d * size);
            transpose8(v, t);
            for (int i = 0; i < 4; i++)
                for (int e = 0; e < per; e++)
                    _mm256_storeu_ps(b->key[d + i * per + e] + j, element(v[i], e, type));
        }
    }
}

INLINE __m256 load8(const uint8_t *p, enum kv_type type)
{
    __m128i half = _mm_setzero_si128();

    if (type == KV_F32)
        return _mm256_loadu_ps((const float *)(const void *)p);
    if (type == KV_BF16) {
        half = _mm_loadu_si128((const __m128i *)(const void *)p);
        return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(half), 16));
    }
    half = _mm_loadl_epi64((const __m128i *)(const void *)p);
    if (type == KV_FP8)
        return from_fp8(_mm256_cvtepu8_epi32(half));
    return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(half));
}

INLINE void load_some(float *to, const uint8_t *p, enum kv_type type)
{
    _mm256_storeu_ps(to, load8(p, type));
}

/* score[i][key] for n <= TILE queries from query on. */
INLINE void scores(float score[TILE][BLOCK], const struct block *b, const struct attend *a,
                   int query, int n)
{
    const float *q[TILE];

    for (int i = 0; i < TILE; i++)
        q[i] = a->q + (size_t)(query + (i < n ? i : n - 1)) * (size_t)a->dim;
    for (int j = 0; j < BLOCK; j += 16) {
        __m256 s[TILE][2];

        for (int i = 0; i < TILE; i++)
            s[i][0] = s[i][1] = _mm256_setzero_ps();
        for (int d = 0; d < a->dim; d++) {
            __m256 k0 = _mm256_loadu_ps(b->key[d] + j), k1 = _mm256_loadu_ps(b->key[d] + j + 8);

            for (int i = 0; i < TILE; i++) {
                __m256 v = _mm256_broadcast_ss(q[i] + d);

                s[i][0] = _mm256_fmadd_ps(v, k0, s[i][0]);
                s[i][1] = _mm256_fmadd_ps(v, k1, s[i][1]);
            }
        }
        for (int i = 0; i < TILE; i++)
            for (int h = 0; h < 2; h++)
                _mm256_storeu_ps(score[i] + j + 8 * h,
                                 _mm256_mul_ps(s[i][h],
                                               _mm256_loadu_ps(b->key_scale + j + 8 * h)));
    }
}

/* Scores of one query to weights, values' scales included; what the sums so far are
 * multiplied by is returned.  Keys outside [from, to) weigh 0. */
INLINE float weigh(float score[BLOCK], const struct block *b, float *max, float *sum, int from,
                   int to)
{
    const __m256 never = _mm256_set1_ps(-INFINITY);
    __m256 s[BLOCK / 8], largest = never, total = _mm256_setzero_ps();
    float old = *max, m, lane[8];

    for (int j = 0; j < BLOCK / 8; j++) {
        __m256i index = _mm256_add_epi32(_mm256_set1_epi32(8 * j),
                                         _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
        __m256i in = _mm256_andnot_si256(
            _mm256_cmpgt_epi32(_mm256_set1_epi32(from), index),
            _mm256_cmpgt_epi32(_mm256_set1_epi32(to), index));

        s[j] = _mm256_blendv_ps(never, _mm256_loadu_ps(score + 8 * j), _mm256_castsi256_ps(in));
        largest = _mm256_max_ps(largest, s[j]);
    }
    _mm256_storeu_ps(lane, largest);
    m = old;
    for (int i = 0; i < 8; i++)
        m = lane[i] > m ? lane[i] : m;
    if (m == -INFINITY) {
        memset(score, 0, BLOCK * sizeof(*score));
        return 1;
    }
    for (int j = 0; j < BLOCK / 8; j++) {
        __m256 p = exp8(_mm256_sub_ps(s[j], _mm256_set1_ps(m)));

        total = _mm256_add_ps(total, p);
        p = _mm256_mul_ps(p, _mm256_loadu_ps(b->value_scale + 8 * j));
        _mm256_storeu_ps(score + 8 * j, p);
    }
    *max = m;
    m = _mm256_cvtss_f32(exp8(_mm256_set1_ps(old - m)));
    *sum = *sum * m + sum8(total);
    return m;
}

/* acc = acc * old + weights x values, n <= TILE queries, sixteen dims at a time. */
INLINE void add_values(const struct attend *a, const struct block *b, float weight[TILE][BLOCK],
                       const float old[TILE], int query, int n, int keys)
{
    float *acc = a->acc + (size_t)query * (size_t)a->dim;

    for (int d = 0; d < a->dim; d += 16) {
        __m256 s[TILE][2];

        for (int i = 0; i < TILE; i++)
            s[i][0] = s[i][1] = _mm256_setzero_ps();
        for (int j = 0; j < keys; j++) {
            __m256 v0 = _mm256_loadu_ps(b->value[j] + d), v1 = _mm256_loadu_ps(b->value[j] + d + 8);

            for (int i = 0; i < TILE; i++) {
                __m256 p = _mm256_broadcast_ss(weight[i] + j);

                s[i][0] = _mm256_fmadd_ps(p, v0, s[i][0]);
                s[i][1] = _mm256_fmadd_ps(p, v1, s[i][1]);
            }
        }
        for (int i = 0; i < n; i++)
            for (int h = 0; h < 2; h++) {
                float *to = acc + (size_t)i * (size_t)a->dim + d + 8 * h;

                _mm256_storeu_ps(to, _mm256_fmadd_ps(_mm256_loadu_ps(to),
                                                     _mm256_set1_ps(old[i]), s[i][h]));
            }
    }
}

#include "cpu/avx_attend.inc"

void avx2_attend_q8(const struct attend *a)
{
    attend(a, KV_Q8);
}

void avx2_attend_fp8(const struct attend *a)
{
    attend(a, KV_FP8);
}

void avx2_attend_bf16(const struct attend *a)
{
    attend(a, KV_BF16);
}

void avx2_attend_f32(const struct attend *a)
{
    attend(a, KV_F32);
}
