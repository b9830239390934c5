/* Every format times float32 activations (ACT_F32), AVX-512.  Weights become float32 by a
 * table of sixteen values; exact, and the slowest of the AVX-512 ways. */
#include "cpu/avx512.h"

/* Column 32 h + 8 k + p is x[p][h][k]; groups past the last column are 0. */
struct token {
    float x[8][4][4];
    float sum[4];               /* of a group's columns */
};

#define WEIGHTS 32
#define MINUS_ZERO(format) 0
#define HALF_SCALE false

/* The weight that four or eight bits mean without a zero point of their own: q - 8, q - 128. */
INLINE __m512 nibble_table(enum wformat format)
{
    if (format == W_MXFP4)
        return _mm512_setr_ps(0, 0.5f, 1, 1.5f, 2, 3, 4, 6, -0.0f, -0.5f, -1, -1.5f, -2, -3, -4,
                              -6);
    return _mm512_setr_ps(-8, -7, -6, -5, -4, -3, -2, -1, 0, 1, 2, 3, 4, 5, 6, 7);
}

/* Eight columns: dwords of nibbles. */
INLINE void decode_nibbles(__m512i w[8], __m512i v, enum wformat format)
{
    __m512 table = nibble_table(format);

    for (unsigned i = 0; i < 8; i++) {
        __m512 f = _mm512_permutexvar_ps(_mm512_srli_epi32(v, 4 * i), table);

        w[i] = _mm512_castps_si512(f);
    }
}

/* Four columns: dwords of bytes. */
INLINE void decode_bytes(__m512i w[4], __m512i v)
{
    for (unsigned i = 0; i < 4; i++) {
        __m512i q = _mm512_and_si512(_mm512_srli_epi32(v, 8 * i), _mm512_set1_epi32(255));

        q = _mm512_sub_epi32(q, _mm512_set1_epi32(128));
        w[i] = _mm512_castps_si512(_mm512_cvtepi32_ps(q));
    }
}

/* w[8 k + p]: column 8 k + p. */
INLINE void decode16(__m512i w[WEIGHTS], const struct rows8 *r, size_t g, enum wformat format)
{
    __m512i t[4], v[4];

    if (format == W_BF16) {
        for (size_t k = 0; k < 4; k++) {
            rows16_load(t, r, g * 64 + k * 16);
            transpose16(v, t);
            for (size_t i = 0; i < 4; i++) {
                w[8 * k + 2 * i] = _mm512_slli_epi32(v[i], 16);
                w[8 * k + 2 * i + 1] = _mm512_and_si512(v[i], _mm512_set1_epi32((int)0xffff0000));
            }
        }
    } else if (format == W_INT8) {
        for (size_t half = 0; half < 2; half++) {
            rows16_load(t, r, g * 32 + half * 16);
            transpose16(v, t);
            for (size_t i = 0; i < 4; i++)
                decode_bytes(w + 16 * half + 4 * i, v[i]);
        }
    } else {
        rows16_load(t, r, g * 16);
        transpose16(v, t);
        for (size_t k = 0; k < 4; k++)
            decode_nibbles(w + 8 * k, v[k], format);
    }
}

INLINE __m512 step16(__m512 acc, const __m512i w[WEIGHTS], const struct token *x, size_t h,
                     __m512 scale, __m512i minus_zero, enum wformat format, bool zero)
{
    __m512 s[4], d;

    for (size_t k = 0; k < 4; k++) {
        s[k] = _mm512_mul_ps(_mm512_castsi512_ps(w[8 * k]), _mm512_set1_ps(x->x[0][h][k]));
        for (size_t p = 1; p < 8; p++)
            s[k] = _mm512_fmadd_ps(_mm512_castsi512_ps(w[8 * k + p]),
                                   _mm512_set1_ps(x->x[p][h][k]), s[k]);
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
        __m512i w[8];

        decode_nibbles(w, v[i], format);
        s[i] = _mm512_mul_ps(_mm512_castsi512_ps(w[0]), _mm512_loadu_ps(x->x[0]));
        for (size_t p = 1; p < 8; p++)
            s[i] = _mm512_fmadd_ps(_mm512_castsi512_ps(w[p]), _mm512_loadu_ps(x->x[p]), s[i]);
    }
    d = sum_parts_f32(s);
    return _mm512_fmadd_ps(d, scale, acc);
}

#include "cpu/avx512_panel.inc"

size_t avx512_f32_bytes(int cols)
{
    return token_bytes(cols);
}

void avx512_pack_f32(uint8_t *to, const float *x, int cols)
{
    struct token *a = (struct token *)(void *)to;

    memset(to, 0, avx512_f32_bytes(cols));
    for (int g = 0; g < cols / 32; g++) {
        struct token *t = a + g / 4;

        for (int c = 0; c < 32; c++) {
            float v = x[32 * g + c];

            t->x[c % 8][g % 4][c / 8] = v;
            t->sum[g % 4] += v;
        }
    }
}

AVX512_MUL(avx512_mul_bf16)
{
    mul(y, y_stride, m, x, x_stride, n, row0, row1, W_BF16);
}

const struct cpu_kernels cpu_table_avx512 = {
    .name = "avx512",
    .act = { ACT_F32, ACT_F32, ACT_F32, ACT_F32 },
    .pack_bytes = { [ACT_F32] = avx512_f32_bytes },
    .pack = { [ACT_F32] = avx512_pack_f32 },
    .mul = { [W_BF16] = avx512_mul_bf16, [W_INT8] = mul_int8, [W_INT4] = mul_int4,
             [W_MXFP4] = mul_mxfp4 },
    AVX512_REST,
};
