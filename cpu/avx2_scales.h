#ifndef LAGUNA_AVX2_SCALES_H
#define LAGUNA_AVX2_SCALES_H

#include "cpu/avx2.h"

/* Scales and zero points of eight rows, from the checkpoint's rows to lanes of a table,
 * for the AVX2 and the AVX-512 kernels.  Tables are [columns][lanes]; a table of sixteen
 * lanes takes two calls. */

/* E8M0 to 2^(b - 127), or to half of that; the smallest are denormal. */
INLINE __m256 from_e8m0(__m128i eight_bytes, bool half)
{
    __m256i b = _mm256_cvtepu8_epi32(eight_bytes), normal, tiny;

    normal = _mm256_slli_epi32(b, 23);
    if (!half)
        return _mm256_castsi256_ps(_mm256_max_epi32(normal, _mm256_set1_epi32(1 << 22)));
    normal = _mm256_sub_epi32(normal, _mm256_set1_epi32(1 << 23));
    tiny = _mm256_sllv_epi32(_mm256_set1_epi32(1 << 21),
                             _mm256_min_epi32(b, _mm256_set1_epi32(1)));
    return _mm256_castsi256_ps(_mm256_max_epi32(normal, tiny));
}

/* Eight columns of BF16 scales, of eight rows. */
INLINE void expand8_bf16(float *out, size_t lanes, const struct rows8 *r, size_t at)
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
    for (size_t i = 0; i < 4; i++) {
        __m256i zero = _mm256_setzero_si256();
        __m256i even = _mm256_unpacklo_epi16(zero, v[i]), odd = _mm256_unpackhi_epi16(zero, v[i]);

        _mm256_storeu_ps(out + 2 * i * lanes, _mm256_castsi256_ps(even));
        _mm256_storeu_ps(out + (2 * i + 1) * lanes, _mm256_castsi256_ps(odd));
    }
}

/* Eight columns of E8M0 scales, of eight rows. */
INLINE void expand8_e8m0(float *out, size_t lanes, const struct rows8 *r, size_t at, bool half)
{
    __m128i t[8], a[4], b[4], c[4];

    for (size_t i = 0; i < 8; i++)
        t[i] = _mm_loadl_epi64((const __m128i *)(const void *)(r->at + i * r->stride + at));
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
    for (size_t i = 0; i < 4; i++) {
        _mm256_storeu_ps(out + 2 * i * lanes, from_e8m0(c[i], half));
        _mm256_storeu_ps(out + (2 * i + 1) * lanes, from_e8m0(_mm_srli_si128(c[i], 8), half));
    }
}

/* One column. */
INLINE void expand1(float out[8], const struct rows8 *r, size_t col, enum wformat format, bool half)
{
    for (size_t i = 0; i < 8; i++) {
        const uint8_t *row = r->at + i * r->stride;

        if (format == W_MXFP4) {
            __m256 s = from_e8m0(_mm_cvtsi32_si128(row[col]), half);

            _mm_store_ss(out + i, _mm256_castps256_ps128(s));
        } else {
            bf16 s;

            memcpy(&s, row + 2 * col, sizeof(s));
            out[i] = bf16_to_f32(s);
        }
    }
}

/* A row's scales for groups g to g + 3 of 32 columns, in the lowest bytes; 0 for groups past
 * the last, of which `left` are ahead.  Dense: a scale for every group, and four are left. */
INLINE __m128i row_scales(const uint8_t *row, size_t g, size_t groups, size_t left,
                          enum wformat format, bool dense)
{
    size_t size = format == W_MXFP4 ? 1 : 2;
    uint8_t v[8] = { 0 };

    if (dense)
        return format == W_MXFP4 ? _mm_cvtsi32_si128(load_i32(row + g))
                                 : _mm_loadl_epi64((const __m128i *)(const void *)(row + 2 * g));
    for (size_t j = 0; j < 4 && j < left; j++)
        memcpy(v + j * size, row + (uint32_t)(g + j) / (uint32_t)groups * size, size);
    return _mm_loadl_epi64((const __m128i *)(const void *)v);
}

/* The same of four rows, as floats: s[0] groups g and g + 1, four rows each, s[1] the next
 * two groups. */
INLINE void quad_scales(__m256 s[2], const uint8_t *rows, size_t stride, size_t g,
                        size_t groups, size_t left, enum wformat format, bool dense, bool half)
{
    __m128i t[4], a, b;

    for (size_t i = 0; i < 4; i++)
        t[i] = row_scales(rows + i * stride, g, groups, left, format, dense);
    if (format == W_MXFP4) {
        a = _mm_unpacklo_epi16(_mm_unpacklo_epi8(t[0], t[1]), _mm_unpacklo_epi8(t[2], t[3]));
        s[0] = from_e8m0(a, half);
        s[1] = from_e8m0(_mm_srli_si128(a, 8), half);
        return;
    }
    a = _mm_unpacklo_epi16(t[0], t[1]);
    b = _mm_unpacklo_epi16(t[2], t[3]);
    for (int i = 0; i < 2; i++) {
        __m256i v = _mm256_cvtepu16_epi32(i ? _mm_unpackhi_epi32(a, b) : _mm_unpacklo_epi32(a, b));

        s[i] = _mm256_castsi256_ps(_mm256_slli_epi32(v, 16));
    }
}

/* Columns [from, to) of eight rows. */
INLINE void scales_expand(float *out, size_t lanes, const struct rows8 *r, size_t from, size_t to,
                          enum wformat format, bool half)
{
    size_t c = from;

    for (; c + 8 <= to; c += 8, out += 8 * lanes) {
        if (format == W_MXFP4)
            expand8_e8m0(out, lanes, r, c, half);
        else
            expand8_bf16(out, lanes, r, 2 * c);
    }
    for (; c < to; c++, out += lanes)
        expand1(out, r, c, format, half);
}

/* Minus the zero points of int4 or int8 weights, in both halves of a lane: as they are in
 * the file, which suits weights read as q + 8 or q + 128, or less by `less`.  They are
 * packed along the rows, 32 / bits to a word. */
INLINE void zeros_expand(int32_t *out, size_t lanes, const struct matrix *m, int row, bool whole,
                         size_t from, size_t to, uint32_t less)
{
    size_t columns = (size_t)(m->cols / m->group);
    int bits = m->format == W_INT4 ? 4 : 8, per_word = 32 / bits;

    for (size_t c = from; c < to; c++, out += lanes)
        for (int i = 0; i < 8; i++) {
            int r = whole ? row + i : row;
            size_t word = (size_t)(r / per_word) * columns + c;
            uint32_t v = (uint32_t)load_i32((const uint8_t *)m->zero + word * 4);

            v = v >> (r % per_word * bits) & ((1u << bits) - 1);
            v -= less;
            out[i] = (int32_t)((-v & 0xffff) * 0x10001u);
        }
}

#endif
