/* The table "ref": src/ref.c behind the interface of the kernels, float32 activations for
 * every format.  Slow on purpose; the oracle, and what runs where not even AVX2 does. */
#include "cpu/tables.h"

#include "src/ref.h"

#include <math.h>

static void pack(uint8_t *to, const float *x, int cols)
{
    memcpy(to, x, (size_t)cols * sizeof(*x));
}

static void mul(float *y, size_t y_stride, const struct matrix *m, const uint8_t *x,
                size_t x_stride, int n, int row0, int row1)
{
    ref_mul(y, y_stride, m, (const float *)(const void *)x, x_stride / sizeof(float), n, row0,
            row1);
}

static float element(const uint8_t *row, enum kv_type type, int i)
{
    bf16 b;
    float f;

    switch (type) {
    case KV_Q8:
        return (int8_t)row[i];
    case KV_FP8:
        return ref_fp8_to_f32(row[i]);
    case KV_BF16:
        memcpy(&b, row + (size_t)i * sizeof(b), sizeof(b));
        return bf16_to_f32(b);
    default:
        memcpy(&f, row + (size_t)i * sizeof(f), sizeof(f));
        return f;
    }
}

/* What the elements of row j are multiplied by. */
static float factor(const uint16_t *scale, size_t stride, float fixed, enum kv_type type, int j)
{
    uint16_t h;

    if (type != KV_Q8)
        return type == KV_FP8 ? fixed : 1;
    memcpy(&h, (const uint8_t *)scale + (size_t)j * stride, sizeof(h));
    return ref_f16_to_f32(h);
}

static void attend_key(const struct attend *a, enum kv_type type, int i, int j)
{
    const uint8_t *k = a->k + (size_t)j * a->stride, *v = a->v + (size_t)j * a->stride;
    const float *q = a->q + (size_t)i * (size_t)a->dim;
    float *acc = a->acc + (size_t)i * (size_t)a->dim;
    float score = 0, largest, old, p;

    for (int d = 0; d < a->dim; d++)
        score += q[d] * element(k, type, d);
    score *= factor(a->k_scale, a->scale_stride, a->k_mul, type, j);
    largest = fmaxf(a->max[i], score);
    old = expf(a->max[i] - largest);
    p = expf(score - largest);
    a->max[i] = largest;
    a->sum[i] = a->sum[i] * old + p;
    p *= factor(a->v_scale, a->scale_stride, a->v_mul, type, j);
    for (int d = 0; d < a->dim; d++)
        acc[d] = acc[d] * old + p * element(v, type, d);
}

static void attend(const struct attend *a, enum kv_type type)
{
    for (int i = 0; i < a->queries; i++) {
        int from = a->from ? a->from[i] : 0, to = a->to ? a->to[i] : a->keys;

        for (int j = from > 0 ? from : 0; j < to && j < a->keys; j++)
            attend_key(a, type, i, j);
    }
}

static void attend_q8(const struct attend *a)
{
    attend(a, KV_Q8);
}

static void attend_fp8(const struct attend *a)
{
    attend(a, KV_FP8);
}

static void attend_bf16(const struct attend *a)
{
    attend(a, KV_BF16);
}

static void attend_f32(const struct attend *a)
{
    attend(a, KV_F32);
}

static void silu_mul(float *y, const float *g, const float *u, int n)
{
    for (int i = 0; i < n; i++)
        y[i] = ref_silu(g[i]) * u[i];
}

const struct cpu_kernels cpu_table_ref = {
    .name = "ref",
    .act = { ACT_F32, ACT_F32, ACT_F32, ACT_F32 },
    .pack_bytes = { [ACT_F32] = cpu_act_f32_bytes },
    .pack = { [ACT_F32] = pack },
    .mul = { mul, mul, mul, mul },
    .mul_exact = mul,
    .kv_store = KV_STORE,
    .attend = { [KV_Q8] = attend_q8, [KV_FP8] = attend_fp8, [KV_BF16] = attend_bf16,
                [KV_F32] = attend_f32 },
    .norm = ref_norm,
    .silu_mul = silu_mul,
};
