/* The AVX2 table, and the kernels whose time does not matter much: RMS norm, SiLU. */
#include "cpu/avx2.h"

#include <math.h>

void avx2_norm(float *y, const float *x, const float *w, int n, float eps)
{
    __m256 sum = _mm256_setzero_ps(), scale;
    float square = 0, r;
    int i = 0;

    for (; i + 8 <= n; i += 8) {
        __m256 v = _mm256_loadu_ps(x + i);

        sum = _mm256_fmadd_ps(v, v, sum);
    }
    square = sum8(sum);
    for (int j = i; j < n; j++)
        square += x[j] * x[j];
    r = 1 / sqrtf(square / (float)n + eps);
    scale = _mm256_set1_ps(r);
    for (i = 0; i + 8 <= n; i += 8) {
        __m256 v = _mm256_mul_ps(_mm256_loadu_ps(x + i), scale);

        _mm256_storeu_ps(y + i, _mm256_mul_ps(v, _mm256_loadu_ps(w + i)));
    }
    for (; i < n; i++)
        y[i] = x[i] * r * w[i];
}

/* g / (1 + e^-g) * u.  The exponent is capped where e^-g no longer changes the result:
 * below -87 silu is 0 to float32. */
INLINE __m256 silu_mul8(__m256 g, __m256 u)
{
    const __m256 one = _mm256_set1_ps(1);
    __m256 e = exp8(_mm256_min_ps(_mm256_sub_ps(_mm256_setzero_ps(), g), _mm256_set1_ps(88)));

    return _mm256_mul_ps(_mm256_div_ps(g, _mm256_add_ps(one, e)), u);
}

void avx2_silu_mul(float *y, const float *g, const float *u, int n)
{
    float pad[3][8] = { { 0 } };
    int i = 0;

    for (; i + 8 <= n; i += 8)
        _mm256_storeu_ps(y + i, silu_mul8(_mm256_loadu_ps(g + i), _mm256_loadu_ps(u + i)));
    if (i == n)
        return;
    memcpy(pad[0], g + i, (size_t)(n - i) * sizeof(*g));
    memcpy(pad[1], u + i, (size_t)(n - i) * sizeof(*u));
    _mm256_storeu_ps(pad[2], silu_mul8(_mm256_loadu_ps(pad[0]), _mm256_loadu_ps(pad[1])));
    memcpy(y + i, pad[2], (size_t)(n - i) * sizeof(*y));
}

const struct cpu_kernels cpu_table_avx2 = {
    .name = "avx2",
    .act = { [W_BF16] = ACT_F32, [W_INT8] = ACT_INT8, [W_INT4] = ACT_INT8,
             [W_MXFP4] = ACT_INT8 },
    .pack_bytes = { [ACT_F32] = cpu_act_f32_bytes, [ACT_INT8] = cpu_act8_bytes },
    .pack = { [ACT_F32] = avx2_pack_f32, [ACT_INT8] = avx2_pack_act8 },
    .mul = { [W_BF16] = avx2_mul_bf16, [W_INT8] = avx2_mul_int8, [W_INT4] = avx2_mul_int4,
             [W_MXFP4] = avx2_mul_mxfp4 },
    .mul_exact = avx2_mul_bf16,
    .kv_store = KV_STORE,
    .attend = { [KV_Q8] = avx2_attend_q8, [KV_FP8] = avx2_attend_fp8,
                [KV_BF16] = avx2_attend_bf16, [KV_F32] = avx2_attend_f32 },
    .norm = avx2_norm,
    .silu_mul = avx2_silu_mul,
};
