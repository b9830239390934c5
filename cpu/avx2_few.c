/* int4 and MXFP4 weights times int8 activations of one to four tokens, AVX2: what a decode
 * step lives from.  No transpose, but sums across lanes: a vector holds 64 columns of one
 * row, the first group of 32 in its low half, and four rows' partial sums are merged by
 * unpack and add.  The order of the additions is that of avx2_quant.c.
 *
 * The loop is bound by the number of its instructions (41 for 144 bytes of int4, one token):
 * everything that can be paid once is in the packed token (struct act8) or paid for eight
 * groups at once (block_scales()). */
#include "cpu/avx2_panel.h"
#include "cpu/avx2_scales.h"

enum {
    BLOCK = 8,                  /* groups of 32 columns: 128 bytes of a row */
    AHEAD = 1024,               /* bytes of prefetch past the next four rows */
};

INLINE __m256i load_twice(const uint8_t *p)
{
    return _mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i *)(const void *)p));
}

/* Byte k of each half goes to the exponent of lane k. */
INLINE __m256 exponents(__m256i v, __m256i lanes)
{
    v = _mm256_srli_epi32(_mm256_shuffle_epi8(v, lanes), 1);
    /* 2^-127 is denormal. */
    return _mm256_castsi256_ps(_mm256_max_epi32(v, _mm256_set1_epi32(1 << 22)));
}

/* E8M0 scales of eight groups of four rows: scale[i] has groups 2i and 2i + 1, four rows each. */
INLINE void block_e8m0(__m256 scale[4], const uint8_t *at, size_t stride)
{
    const __m256i first = _mm256_setr_epi8(
        -1, -1, -1, 0, -1, -1, -1, 1, -1, -1, -1, 2, -1, -1, -1, 3,
        -1, -1, -1, 4, -1, -1, -1, 5, -1, -1, -1, 6, -1, -1, -1, 7);
    const __m256i second = _mm256_or_si256(first, _mm256_set1_epi32(8 << 24));
    __m256i t[4], a, b;

    for (size_t i = 0; i < 4; i++) {
        int64_t eight;

        memcpy(&eight, at + i * stride, sizeof(eight));
        t[i] = _mm256_set1_epi64x(eight);
    }
    a = _mm256_unpacklo_epi8(t[0], t[1]);
    b = _mm256_unpacklo_epi8(t[2], t[3]);
    t[0] = _mm256_unpacklo_epi16(a, b);
    t[1] = _mm256_unpackhi_epi16(a, b);
    for (int i = 0; i < 4; i++)
        scale[i] = exponents(t[i / 2], i % 2 ? second : first);
}

/* The same for BF16 scales. */
INLINE void block_bf16(__m256 scale[4], const uint8_t *at, size_t stride)
{
    /* Even groups to the low half, odd ones to the high half. */
    const __m256i split = _mm256_setr_epi8(
        0, 1, 4, 5, 8, 9, 12, 13, 0, 1, 4, 5, 8, 9, 12, 13,
        2, 3, 6, 7, 10, 11, 14, 15, 2, 3, 6, 7, 10, 11, 14, 15);
    const __m256i zero = _mm256_setzero_si256();
    __m256i t[4], a, b;

    for (size_t i = 0; i < 4; i++)
        t[i] = _mm256_shuffle_epi8(load_twice(at + i * stride), split);
    a = _mm256_unpacklo_epi16(t[0], t[1]);
    b = _mm256_unpacklo_epi16(t[2], t[3]);
    t[0] = _mm256_unpacklo_epi32(a, b);
    t[1] = _mm256_unpackhi_epi32(a, b);
    for (int i = 0; i < 2; i++) {
        scale[2 * i] = _mm256_castsi256_ps(_mm256_unpacklo_epi16(zero, t[i]));
        scale[2 * i + 1] = _mm256_castsi256_ps(_mm256_unpackhi_epi16(zero, t[i]));
    }
}

/* Two groups of x with 64 columns of four rows: rows 0 to 3 for the first group in the low
 * half, for the second in the high half. */
INLINE __m256i dot4(const __m256i low[4], const __m256i high[4], const struct act8 *x,
                    enum wformat format)
{
    __m256i even = load_si256(x->even), odd = load_si256(x->odd), s[4], sum;

    for (int i = 0; i < 4; i++)
        s[i] = _mm256_add_epi16(_mm256_maddubs_epi16(low[i], even),
                                _mm256_maddubs_epi16(high[i], odd));
    s[0] = _mm256_add_epi16(_mm256_unpacklo_epi32(s[0], s[1]), _mm256_unpackhi_epi32(s[0], s[1]));
    s[2] = _mm256_add_epi16(_mm256_unpacklo_epi32(s[2], s[3]), _mm256_unpackhi_epi32(s[2], s[3]));
    sum = _mm256_add_epi16(_mm256_unpacklo_epi64(s[0], s[2]), _mm256_unpackhi_epi64(s[0], s[2]));
    /* A group's sums less its zero points fit in 16 bits, however they wrap on the way. */
    sum = less_zero(sum, load_si256(x->minus8), format);
    return _mm256_madd_epi16(sum, _mm256_set1_epi16(1));
}

/* 32 bytes, or where only one group of 32 columns is left, 16. */
INLINE __m256i row_load(const uint8_t *at, bool both)
{
    if (both)
        return load_si256(at);
    return _mm256_zextsi128_si256(_mm_loadu_si128((const __m128i *)(const void *)at));
}

/* 64 columns of the four rows at `at`, whose scales these are. */
INLINE void step(__m256 *sum, const uint8_t *at, size_t stride, bool both, __m256 scale,
                 const uint8_t *x, size_t x_stride, int n, enum wformat format)
{
    __m256i low[4], high[4];

    for (size_t i = 0; i < 4; i++) {
        __m256i v = row_load(at + i * stride, both);

        low[i] = low_nibbles(v, format);
        high[i] = low_nibbles(_mm256_srli_epi16(v, 4), format);
    }
    for (int t = 0; t < n; t++, x += x_stride) {
        const struct act8 *a = (const struct act8 *)(const void *)x;

        sum[t] = add_scaled(sum[t], dot4(low, high, a, format), scale,
                            _mm256_loadu_ps(a->scale[0]));
    }
}

/* BLOCK groups of four rows, from group g on, with a scale for each group. */
INLINE void block(__m256 *sum, const struct rows8 *weight, const struct rows8 *scales, size_t g,
                  const uint8_t *x, size_t x_stride, int n, enum wformat format)
{
    const uint8_t *at = weight->at + g * 16;
    size_t scale_at = format == W_MXFP4 ? g : 2 * g;
    __m256 scale[BLOCK / 2];

    quad_prefetch(weight->at, weight->stride, g * 16, AHEAD, 8, false);
    quad_prefetch(scales->at, scales->stride, scale_at, QUAD_SCALES, 1, false);
    if (format == W_MXFP4)
        block_e8m0(scale, scales->at + scale_at, scales->stride);
    else
        block_bf16(scale, scales->at + scale_at, scales->stride);
    x += g / 2 * sizeof(struct act8);
    for (size_t i = 0; i < BLOCK / 2; i++, at += 32, x += sizeof(struct act8))
        step(sum, at, weight->stride, true, scale[i], x, x_stride, n, format);
}

/* Four groups, or what is left, with scales for any number of groups: they are gathered. */
INLINE void rest(__m256 *sum, const struct panel *p, const uint8_t *rows, const uint8_t *scales,
                 size_t g, size_t all, const uint8_t *x, size_t x_stride, int n,
                 enum wformat format)
{
    size_t left = all - g;
    __m256 scale[2];

    quad_prefetch(rows, p->weight.stride, g * 16, AHEAD, 4, false);
    quad_scales(scale, scales, p->scale.stride, g, p->groups, left, format, false, false);
    x += g / 2 * sizeof(struct act8);
    for (size_t i = 0; i < 2 && 2 * i < left; i++, x += sizeof(struct act8)) {
        const uint8_t *at = rows + g * 16 + i * 32;

        if (2 * i + 1 < left)
            step(sum, at, p->weight.stride, true, scale[i], x, x_stride, n, format);
        else
            step(sum, at, p->weight.stride, false, scale[i], x, x_stride, n, format);
    }
}

/* Four rows from end to end, then the next four: that is nearly the order of memory, which
 * the prefetch of the processor follows too. */
INLINE void quads(__m256 (*acc)[2], const struct panel *p, const uint8_t *x, size_t x_stride,
                  int n, size_t all, enum wformat format)
{
    size_t dense = p->groups == 1 ? all / BLOCK * BLOCK : 0;

    for (size_t q = 0; q < 2; q++) {
        struct rows8 weight = p->weight, scale = p->scale;
        __m256 sum[AVX2_FEW];
        size_t g = 0;

        weight.at += 4 * q * weight.stride;
        scale.at += 4 * q * scale.stride;
        for (int t = 0; t < n; t++)
            sum[t] = _mm256_setzero_ps();
        for (; g < dense; g += BLOCK)
            block(sum, &weight, &scale, g, x, x_stride, n, format);
        for (; g < all; g += 4)
            rest(sum, p, weight.at, scale.at, g, all, x, x_stride, n, format);
        for (int t = 0; t < n; t++)
            acc[t][q] = sum[t];
    }
    for (int t = 0; t < n; t++) {
        __m256 low = _mm256_permute2f128_ps(acc[t][0], acc[t][1], 0x20);
        __m256 high = _mm256_permute2f128_ps(acc[t][0], acc[t][1], 0x31);

        acc[t][0] = undouble(_mm256_add_ps(low, high), format);
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
        quads(acc, p, x, x_stride, AVX2_FEW, all, format);
    }
}

void avx2_few_int4(__m256 (*acc)[2], const struct panel *p, const uint8_t *x, size_t x_stride,
                   int n, size_t all)
{
    few(acc, p, x, x_stride, n, all, W_INT4);
}

void avx2_few_mxfp4(__m256 (*acc)[2], const struct panel *p, const uint8_t *x, size_t x_stride,
                    int n, size_t all)
{
    few(acc, p, x, x_stride, n, all, W_MXFP4);
}
