/* What the kernels compute, written plainly and in double: weights and activations rounded
 * as the kernel under test rounds them, sums not rounded at all. */
#include "tests/checkasm.h"

#include "src/ref.h"

#include <float.h>
#include <math.h>

static float largest(const float *x, int n)
{
    float max = 0;

    for (int i = 0; i < n; i++)
        max = fmaxf(max, fabsf(x[i]));
    return max;
}

static void round_int8(double *rounded, double *error, const float *x)
{
    float max = largest(x, 32);
    float scale = max < 0x1p-119f ? 0 : max / 127, inverse = max < 0x1p-119f ? 0 : 127 / max;

    for (int i = 0; i < 32; i++) {
        rounded[i] = (double)lrintf(x[i] * inverse) * (double)scale;
        error[i] = scale > 0 ? (double)max / 127 * 0.5001 : (double)max;
    }
}

void plain_round(double *rounded, double *error, const float *x, int cols, enum act act)
{
    for (int i = 0; i < cols; i += act == ACT_INT8 ? 32 : 1) {
        if (act == ACT_INT8) {
            round_int8(rounded + i, error + i, x + i);
            continue;
        }
        rounded[i] = x[i];
        error[i] = 0;
        if (act == ACT_BF16) {
            rounded[i] = bf16_to_f32(f32_to_bf16(x[i]));
            if (fabs(rounded[i]) < FLT_MIN)     /* vdpbf16ps takes denormals as zero */
                rounded[i] = 0;
            error[i] = fabs((double)x[i]) / 256 + FLT_MIN;
        }
    }
}

static double scale_at(const struct matrix *m, size_t i)
{
    bf16 s;

    if (m->format == W_MXFP4)
        return ldexp(1, ((const uint8_t *)m->scale)[i] - 127);
    memcpy(&s, (const uint8_t *)m->scale + 2 * i, sizeof(s));
    return bf16_to_f32(s);
}

static int zero_at(const struct matrix *m, int r, int g, int bits)
{
    const uint8_t *p = m->zero;
    size_t columns = (size_t)(m->cols / m->group), word;

    if (!p)
        return 1 << (bits - 1);
    word = (size_t)(r * bits / 32) * columns + (size_t)g;
    p += 4 * word + r * bits % 32 / 8;
    return bits == 8 ? *p : *p >> (r * bits % 8) & 15;
}

void plain_row(double *out, const struct matrix *m, int r, enum act act, bool rounded)
{
    static const double e2m1[16] = { 0, 0.5, 1, 1.5, 2, 3, 4, 6,
                                     -0.0, -0.5, -1, -1.5, -2, -3, -4, -6 };
    const uint8_t *w = m->weight;

    for (int c = 0; c < m->cols; c++) {
        size_t at = (size_t)r * (size_t)m->cols + (size_t)c;
        int nibble = w[at / 2] >> (c % 2 * 4) & 15, g;
        double scale;
        bf16 b;

        if (m->format == W_BF16) {
            memcpy(&b, w + 2 * at, sizeof(b));
            out[c] = bf16_to_f32(b);
            if (act == ACT_BF16 && fabs(out[c]) < FLT_MIN)
                out[c] = 0;
            continue;
        }
        g = c / m->group;
        scale = scale_at(m, (size_t)r * (size_t)(m->cols / m->group) + (size_t)g);
        if (m->format == W_MXFP4)
            out[c] = e2m1[nibble] * scale;
        else if (m->format == W_INT4)
            out[c] = (nibble - zero_at(m, r, g, 4)) * scale;
        else
            out[c] = (w[at] - zero_at(m, r, g, 8)) * scale;
        if (rounded)
            out[c] = bf16_to_f32(f32_to_bf16((float)out[c]));
    }
}

double plain_cached(const uint8_t *row, const uint16_t *scale, float mul, enum kv_type type,
                    int i)
{
    uint16_t h;
    bf16 b;
    float f;

    switch (type) {
    case KV_Q8:
        memcpy(&h, scale, sizeof(h));
        return (int8_t)row[i] * (double)ref_f16_to_f32(h);
    case KV_FP8:
        return (double)ref_fp8_to_f32(row[i]) * (double)mul;
    case KV_BF16:
        memcpy(&b, row + 2 * i, sizeof(b));
        return bf16_to_f32(b);
    default:
        memcpy(&f, row + 4 * i, sizeof(f));
        return f;
    }
}
