#ifndef LAGUNA_AVX2_PACK_H
#define LAGUNA_AVX2_PACK_H

#include "cpu/avx2.h"

/* Activations to int8, a group of 32 columns at a time: what the layouts of ACT_INT8 for
 * AVX2 and for AVX-512 VNNI share. */

/* The sixteen even bytes, then the odd ones. */
INLINE __m256i even_first(__m256i q)
{
    const __m256i order = _mm256_setr_epi8(0, 2, 4, 6, 8, 10, 12, 14, 1, 3, 5, 7, 9, 11, 13, 15,
                                           0, 2, 4, 6, 8, 10, 12, 14, 1, 3, 5, 7, 9, 11, 13, 15);

    return _mm256_permute4x64_epi64(_mm256_shuffle_epi8(q, order), 0xd8);
}

/* Sum of the dwords of q's eight 16-bit pairs: low halves and high halves apart. */
INLINE void sums(int16_t out[2], __m256i q)
{
    __m256i pair = _mm256_maddubs_epi16(_mm256_set1_epi8(1), q);
    __m128i s = _mm_add_epi16(_mm256_castsi256_si128(pair), _mm256_extracti128_si256(pair, 1));
    int32_t both;

    s = _mm_add_epi16(s, _mm_srli_si128(s, 8));
    s = _mm_add_epi16(s, _mm_srli_si128(s, 4));
    both = _mm_cvtsi128_si32(s);
    memcpy(out, &both, sizeof(both));
}

/* The largest |x| as an integer, under which NaN is larger than infinity: a group that
 * holds one gets a scale that is one, and so do the results. */
INLINE float largest(const __m256 v[4])
{
    const __m256i abs = _mm256_set1_epi32(0x7fffffff);
    __m256i m = _mm256_setzero_si256();
    __m128i h;

    for (int i = 0; i < 4; i++)
        m = _mm256_max_epi32(m, _mm256_and_si256(_mm256_castps_si256(v[i]), abs));
    h = _mm_max_epi32(_mm256_castsi256_si128(m), _mm256_extracti128_si256(m, 1));
    h = _mm_max_epi32(h, _mm_shuffle_epi32(h, 0x4e));
    h = _mm_max_epi32(h, _mm_shuffle_epi32(h, 0xb1));
    return _mm_cvtss_f32(_mm_castsi128_ps(h));
}

INLINE void act8_group(int8_t even[16], int8_t odd[16], float *scale, int16_t sum[2],
                       const float *x)
{
    __m256 v[4], inverse;
    __m256i q[4], words[2], bytes;
    float max;

    for (int i = 0; i < 4; i++)
        v[i] = _mm256_loadu_ps(x + 8 * i);
    max = largest(v);
    *scale = max < ACT8_TINY ? 0 : max / 127;
    inverse = _mm256_set1_ps(max < ACT8_TINY ? 0 : 127 / max);
    for (int i = 0; i < 4; i++)
        q[i] = _mm256_cvtps_epi32(_mm256_mul_ps(v[i], inverse));
    words[0] = _mm256_packs_epi32(q[0], q[1]);
    words[1] = _mm256_packs_epi32(q[2], q[3]);
    bytes = _mm256_packs_epi16(words[0], words[1]);
    bytes = _mm256_permutevar8x32_epi32(bytes, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
    bytes = even_first(bytes);
    _mm_storeu_si128((__m128i *)(void *)even, _mm256_castsi256_si128(bytes));
    _mm_storeu_si128((__m128i *)(void *)odd, _mm256_extracti128_si256(bytes, 1));
    sums(sum, bytes);
}

#endif
