/* Every format times BF16 activations (ACT_BF16), AVX-512 BF16.  A weight is looked up as
 * BF16, which holds all of four bits exactly, and vdpbf16ps multiplies pairs; an int8
 * weight is the sum of two such, 16 h - 128 and l. */
#include "cpu/avx512.h"

/* Columns 32 h + 8 k + p and 32 h + 8 k + 4 + p are x[p][h][k]: what a shift of four-bit
 * weights by 4 p leaves at the bottom of both halves of dword k.  Groups past the last
 * column are 0. */
struct token {
    bf16 x[4][4][4][2];
    float sum[4];               /* of a group's rounded columns */
};

#define WEIGHTS 32
#define MINUS_ZERO(format) 0
#define HALF_SCALE false

/* Tables of 16 values, twice: vpermw looks at five bits, and the fifth is the next nibble's. */
static const bf16 int4_values[32] = {
    0xc100, 0xc0e0, 0xc0c0, 0xc0a0, 0xc080, 0xc040, 0xc000, 0xbf80,
    0x0000, 0x3f80, 0x4000, 0x4040, 0x4080, 0x40a0, 0x40c0, 0x40e0,
    0xc100, 0xc0e0, 0xc0c0, 0xc0a0, 0xc080, 0xc040, 0xc000, 0xbf80,
    0x0000, 0x3f80, 0x4000, 0x4040, 0x4080, 0x40a0, 0x40c0, 0x40e0,
};
static const bf16 e2m1_values[32] = {
    0x0000, 0x3f00, 0x3f80, 0x3fc0, 0x4000, 0x4040, 0x4080, 0x40c0,
    0x8000, 0xbf00, 0xbf80, 0xbfc0, 0xc000, 0xc040, 0xc080, 0xc0c0,
    0x0000, 0x3f00, 0x3f80, 0x3fc0, 0x4000, 0x4040, 0x4080, 0x40c0,
    0x8000, 0xbf00, 0xbf80, 0xbfc0, 0xc000, 0xc040, 0xc080, 0xc0c0,
};
/* 0 to 15, and 16 times -8 to 7. */
static const bf16 low_values[32] = {
    0x0000, 0x3f80, 0x4000, 0x4040, 0x4080, 0x40a0, 0x40c0, 0x40e0,
    0x4100, 0x4110, 0x4120, 0x4130, 0x4140, 0x4150, 0x4160, 0x4170,
    0x0000, 0x3f80, 0x4000, 0x4040, 0x4080, 0x40a0, 0x40c0, 0x40e0,
    0x4100, 0x4110, 0x4120, 0x4130, 0x4140, 0x4150, 0x4160, 0x4170,
};
static const bf16 high_values[32] = {
    0xc300, 0xc2e0, 0xc2c0, 0xc2a0, 0xc280, 0xc240, 0xc200, 0xc180,
    0x0000, 0x4180, 0x4200, 0x4240, 0x4280, 0x42a0, 0x42c0, 0x42e0,
    0xc300, 0xc2e0, 0xc2c0, 0xc2a0, 0xc280, 0xc240, 0xc200, 0xc180,
    0x0000, 0x4180, 0x4200, 0x4240, 0x4280, 0x42a0, 0x42c0, 0x42e0,
};

/* The values of nibble `at` of each 16-bit word. */
INLINE __m512i look_up(const bf16 table[32], __m512i v, unsigned at)
{
    return _mm512_permutexvar_epi16(_mm512_srli_epi16(v, 4 * at), load_si512(table));
}

INLINE __m512i look_up_weight(__m512i v, unsigned at, enum wformat format)
{
    return look_up(format == W_MXFP4 ? e2m1_values : int4_values, v, at);
}

/* Sixteen columns of int8: w[8 k + 2 p] and w[8 k + 2 p + 1] are the low and high parts. */
INLINE void decode_int8(__m512i w[16], const struct rows8 *r, size_t at)
{
    const __m512i low_half = _mm512_set1_epi32(0xffff);
    __m512i t[4], v[4];

    rows16_load(t, r, at);
    transpose16(v, t);
    for (size_t k = 0; k < 2; k++) {
        __m512i a = v[2 * k], b = v[2 * k + 1], words[2];

        /* Bytes 0 1 | 4 5 and 2 3 | 6 7 of eight. */
        words[0] = _mm512_or_si512(_mm512_and_si512(a, low_half), _mm512_slli_epi32(b, 16));
        words[1] = _mm512_or_si512(_mm512_srli_epi32(a, 16), _mm512_andnot_si512(low_half, b));
        for (unsigned p = 0; p < 4; p++) {
            w[8 * k + 2 * p] = look_up(low_values, words[p / 2], p % 2 * 2);
            w[8 * k + 2 * p + 1] = look_up(high_values, words[p / 2], p % 2 * 2 + 1);
        }
    }
}

/* w[4 k + p] for the plane p of columns 8 k on; for int8 w[8 k + 2 p] and the next. */
INLINE void decode16(__m512i w[WEIGHTS], const struct rows8 *r, size_t g, enum wformat format)
{
    const __m512i planes = _mm512_broadcast_i32x4(
        _mm_setr_epi8(0, 1, 8, 9, 2, 3, 10, 11, 4, 5, 12, 13, 6, 7, 14, 15));
    __m512i t[4], v[4];

    if (format == W_BF16) {
        for (size_t k = 0; k < 4; k++) {
            rows16_load(t, r, g * 64 + k * 16);
            for (int i = 0; i < 4; i++)
                t[i] = _mm512_shuffle_epi8(t[i], planes);
            transpose16(w + 4 * k, t);
        }
    } else if (format == W_INT8) {
        for (size_t half = 0; half < 2; half++)
            decode_int8(w + 16 * half, r, g * 32 + half * 16);
    } else {
        rows16_load(t, r, g * 16);
        transpose16(v, t);
        for (size_t k = 0; k < 4; k++)
            for (unsigned p = 0; p < 4; p++)
                w[4 * k + p] = look_up_weight(v[k], p, format);
    }
}

INLINE __m512 dot_pairs(__m512 s, __m512i w, __m512i x)
{
    return _mm512_dpbf16_ps(s, (__m512bh)w, (__m512bh)x);
}

INLINE __m512 step16(__m512 acc, const __m512i w[WEIGHTS], const struct token *x, size_t h,
                     __m512 scale, __m512i minus_zero, enum wformat format, bool zero)
{
    __m512 s[4], d;

    for (size_t k = 0; k < 4; k++) {
        s[k] = _mm512_setzero_ps();
        for (size_t p = 0; p < 4; p++) {
            __m512i v = _mm512_set1_epi32(load_i32(x->x[p][h][k]));

            if (format == W_INT8) {
                s[k] = dot_pairs(s[k], w[8 * k + 2 * p], v);
                s[k] = dot_pairs(s[k], w[8 * k + 2 * p + 1], v);
            } else {
                s[k] = dot_pairs(s[k], w[4 * k + p], v);
            }
        }
    }
    d = _mm512_add_ps(_mm512_add_ps(s[0], s[2]), _mm512_add_ps(s[1], s[3]));
    if (zero)
        d = _mm512_fmadd_ps(shift_of(minus_zero, format), _mm512_set1_ps(x->sum[h]), d);
    return _mm512_fmadd_ps(d, scale, acc);
}

INLINE __m512 step4(__m512 acc, const __m512i v[4], const struct token *x, __m512 scale,
                    enum wformat format)
{
    __m512 s[4], d;

    for (int i = 0; i < 4; i++) {
        s[i] = _mm512_setzero_ps();
        for (unsigned p = 0; p < 4; p++)
            s[i] = dot_pairs(s[i], look_up_weight(v[i], p, format), load_si512(x->x[p]));
    }
    d = sum_parts_f32(s);
    return _mm512_fmadd_ps(d, scale, acc);
}

#include "cpu/avx512_panel.inc"

/* Sixteen columns as BF16, each eight in the order 0 4 1 5 2 6 3 7: dword p of eight is
 * plane p. */
INLINE __m256i round16(const float *x)
{
    const __m256i planes = _mm256_broadcastsi128_si256(
        _mm_setr_epi8(0, 1, 8, 9, 2, 3, 10, 11, 4, 5, 12, 13, 6, 7, 14, 15));

    return _mm256_shuffle_epi8((__m256i)_mm512_cvtneps_pbh(_mm512_loadu_ps(x)), planes);
}

/* Group h of t from 32 columns. */
INLINE void pack_group(struct token *t, int h, const float *x)
{
    const __m512i by_plane = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11,
                                               15);
    __m512i v = _mm512_inserti64x4(_mm512_castsi256_si512(round16(x)), round16(x + 16), 1);
    __m512 even = _mm512_castsi512_ps(_mm512_slli_epi32(v, 16));
    __m512 odd = _mm512_castsi512_ps(_mm512_and_si512(v, _mm512_set1_epi32((int)0xffff0000)));

    t->sum[h] = _mm512_reduce_add_ps(_mm512_add_ps(even, odd));
    v = _mm512_permutexvar_epi32(by_plane, v);
    _mm_storeu_si128((__m128i *)(void *)t->x[0][h], _mm512_extracti32x4_epi32(v, 0));
    _mm_storeu_si128((__m128i *)(void *)t->x[1][h], _mm512_extracti32x4_epi32(v, 1));
    _mm_storeu_si128((__m128i *)(void *)t->x[2][h], _mm512_extracti32x4_epi32(v, 2));
    _mm_storeu_si128((__m128i *)(void *)t->x[3][h], _mm512_extracti32x4_epi32(v, 3));
}

static void pack_act16(uint8_t *to, const float *x, int cols)
{
    struct token *t = (struct token *)(void *)to;

    memset(to, 0, token_bytes(cols));
    for (int g = 0; g < cols / 32; g++)
        pack_group(t + g / 4, g % 4, x + 32 * g);
}

static AVX512_MUL(mul_bf16)
{
    mul(y, y_stride, m, x, x_stride, n, row0, row1, W_BF16);
}

const struct cpu_kernels cpu_table_avx512bf16 = {
    .name = "avx512bf16",
    .act = { ACT_BF16, ACT_BF16, ACT_BF16, ACT_BF16 },
    .pack_bytes = { [ACT_F32] = avx512_f32_bytes, [ACT_BF16] = token_bytes },
    .pack = { [ACT_F32] = avx512_pack_f32, [ACT_BF16] = pack_act16 },
    .mul = { [W_BF16] = mul_bf16, [W_INT8] = mul_int8, [W_INT4] = mul_int4,
             [W_MXFP4] = mul_mxfp4 },
    AVX512_REST,
};
