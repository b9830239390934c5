/* int4, MXFP4 and int8 weights times int8 activations (ACT_INT8), AVX-512 VNNI.  Weights
 * are unsigned bytes, q + 8, q + 128, or twice the E2M1 value + 12 (the 2 is undone in the
 * scale); vpdpbusd sums four columns into 32 bits, where nothing can overflow. */
#include "cpu/avx2_pack.h"
#include "cpu/avx512.h"

/* Four groups of 32 columns; x is about q * scale.  sum is as in struct act8. */
struct token {
    int8_t even[4][16], odd[4][16];
    float scale[4];
    int16_t sum[4][2];
};

#define WEIGHTS 8
#define MINUS_ZERO(format) ((short)((format) == W_INT4 ? -8 : (format) == W_MXFP4 ? -12 : -128))
#define HALF_SCALE true

/* The low nibble of each byte as an unsigned weight. */
INLINE __m512i low_nibbles(__m512i v, enum wformat format)
{
    const __m512i e2m1 = _mm512_broadcast_i32x4(
        _mm_setr_epi8(12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0));

    v = _mm512_and_si512(v, _mm512_set1_epi8(15));
    return format == W_MXFP4 ? _mm512_shuffle_epi8(e2m1, v) : v;
}

/* w[2i] and w[2i+1]: columns 8i + 0 2 4 6 and 8i + 1 3 5 7. */
INLINE void decode16(__m512i w[WEIGHTS], const struct rows8 *r, size_t g, enum wformat format)
{
    const __m512i even_first = _mm512_broadcast_i32x4(
        _mm_setr_epi8(0, 2, 4, 6, 1, 3, 5, 7, 8, 10, 12, 14, 9, 11, 13, 15));
    __m512i t[4], v[4];

    if (format == W_INT8) {
        for (size_t half = 0; half < 2; half++) {
            rows16_load(t, r, g * 32 + half * 16);
            for (int i = 0; i < 4; i++)
                t[i] = _mm512_shuffle_epi8(t[i], even_first);
            transpose16(w + half * 4, t);
        }
        return;
    }
    rows16_load(t, r, g * 16);
    transpose16(v, t);
    for (int i = 0; i < 4; i++) {
        w[2 * i] = low_nibbles(v[i], format);
        w[2 * i + 1] = low_nibbles(_mm512_srli_epi16(v[i], 4), format);
    }
}

/* acc + d * scale * x_scale.  The scales first: their product overflows only where one
 * weight times one activation does. */
INLINE __m512 add_scaled(__m512 acc, __m512i d, __m512 scale, __m512 x_scale)
{
    return _mm512_fmadd_ps(_mm512_cvtepi32_ps(d), _mm512_mul_ps(x_scale, scale), acc);
}

INLINE __m512 step16(__m512 acc, const __m512i w[WEIGHTS], const struct token *x, size_t h,
                     __m512 scale, __m512i minus_zero, enum wformat format, bool zero)
{
    __m512i d = _mm512_madd_epi16(_mm512_set1_epi32(load_i32(x->sum[h])), minus_zero);

    (void)format;
    (void)zero;
    for (int i = 0; i < 4; i++) {
        __m512i even = _mm512_set1_epi32(load_i32(x->even[h] + 4 * i));
        __m512i odd = _mm512_set1_epi32(load_i32(x->odd[h] + 4 * i));

        d = _mm512_dpbusd_epi32(d, w[2 * i], even);
        d = _mm512_dpbusd_epi32(d, w[2 * i + 1], odd);
    }
    return add_scaled(acc, d, scale, _mm512_set1_ps(x->scale[h]));
}

INLINE __m512 step4(__m512 acc, const __m512i v[4], const struct token *x, __m512 scale,
                    enum wformat format)
{
    __m512i even = load_si512(x->even), odd = load_si512(x->odd), s[4], d;

    for (int i = 0; i < 4; i++) {
        __m512i high = low_nibbles(_mm512_srli_epi16(v[i], 4), format);

        s[i] = _mm512_dpbusd_epi32(_mm512_setzero_si512(), low_nibbles(v[i], format), even);
        s[i] = _mm512_dpbusd_epi32(s[i], high, odd);
    }
    d = _mm512_madd_epi16(spread4(x->sum), _mm512_set1_epi16(MINUS_ZERO(format)));
    d = _mm512_add_epi32(sum_parts_i32(s), d);
    return add_scaled(acc, d, scale, _mm512_castsi512_ps(spread4(x->scale)));
}

#include "cpu/avx512_panel.inc"

static void pack_act8(uint8_t *to, const float *x, int cols)
{
    struct token *a = (struct token *)(void *)to;

    memset(to, 0, token_bytes(cols));
    for (int g = 0; g < cols / 32; g++) {
        struct token *t = a + g / 4;

        act8_group(t->even[g % 4], t->odd[g % 4], &t->scale[g % 4], t->sum[g % 4], x + 32 * g);
    }
}

const struct cpu_kernels cpu_table_avx512vnni = {
    .name = "avx512vnni",
    .act = { [W_BF16] = ACT_F32, [W_INT8] = ACT_INT8, [W_INT4] = ACT_INT8,
             [W_MXFP4] = ACT_INT8 },
    .pack_bytes = { [ACT_F32] = avx512_f32_bytes, [ACT_INT8] = token_bytes },
    .pack = { [ACT_F32] = avx512_pack_f32, [ACT_INT8] = pack_act8 },
    .mul = { [W_BF16] = avx512_mul_bf16, [W_INT8] = mul_int8,
             [W_INT4] = mul_int4, [W_MXFP4] = mul_mxfp4 },
    AVX512_REST,
};
