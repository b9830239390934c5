/* The model's mathematics, written to be read: every kernel must agree with this file.
 * float32 throughout; only dequantised weights are rounded to BF16, as the reference
 * implementation does.  Nothing here is fast on purpose, and nothing is vectorised by hand. */
#include "src/ref.h"

#include <errno.h>
#include <math.h>

/* The zero point of row r in group g: packed along the rows, 32 / bits to a word. */
static int zero_point(const struct matrix *m, int r, int g, int bits)
{
    const uint8_t *base = m->zero;
    int per_word = 32 / bits;
    size_t word = (size_t)(r / per_word) * (size_t)(m->cols / m->group) + (size_t)g;
    uint32_t v;

    memcpy(&v, base + word * sizeof(v), sizeof(v));
    return (int)(v >> (r % per_word * bits) & ((1u << bits) - 1)) - (1 << (bits - 1));
}

static float scale_bf16(const struct matrix *m, size_t i)
{
    bf16 s;

    memcpy(&s, (const uint8_t *)m->scale + i * sizeof(s), sizeof(s));
    return bf16_to_f32(s);
}

static float round_bf16(float f)
{
    return bf16_to_f32(f32_to_bf16(f));
}

static int nibble(const uint8_t *row, int c)
{
    return c % 2 ? row[c / 2] >> 4 : row[c / 2] & 15;
}

/* Columns from to to-1 of row r; out [to - from]. */
static void row_bf16(float *out, const struct matrix *m, int r, int from, int to)
{
    const uint8_t *row = (const uint8_t *)m->weight + (size_t)r * (size_t)m->cols * sizeof(bf16);

    for (int c = from; c < to; c++) {
        bf16 b;

        memcpy(&b, row + (size_t)c * sizeof(b), sizeof(b));
        out[c - from] = bf16_to_f32(b);
    }
}

static void row_int(float *out, const struct matrix *m, int r, int bits, int from, int to)
{
    size_t groups = (size_t)(m->cols / m->group);
    const uint8_t *row = (const uint8_t *)m->weight + (size_t)r * (size_t)(m->cols * bits / 8);

    for (int c = from; c < to; c++) {
        int g = c / m->group;
        int q = (bits == 4 ? nibble(row, c) : row[c]) - (1 << (bits - 1));
        int z = m->zero ? zero_point(m, r, g, bits) : 0;

        out[c - from] = round_bf16((float)(q - z) *
                                   scale_bf16(m, (size_t)r * groups + (size_t)g));
    }
}

static void row_mxfp4(float *out, const struct matrix *m, int r, int from, int to)
{
    static const float e2m1[8] = { 0, 0.5f, 1, 1.5f, 2, 3, 4, 6 };
    const uint8_t *row = (const uint8_t *)m->weight + (size_t)r * (size_t)m->cols / 2;
    const uint8_t *scale = (const uint8_t *)m->scale + (size_t)r * (size_t)(m->cols / m->group);

    for (int c = from; c < to; c++) {
        int n = nibble(row, c);
        float v = ldexpf(e2m1[n & 7], scale[c / m->group] - 127);

        out[c - from] = n & 8 ? -v : v;
    }
}

static void row_part(float *out, const struct matrix *m, int r, int from, int to)
{
    switch (m->format) {
    case W_BF16:
        row_bf16(out, m, r, from, to);
        break;
    case W_INT8:
        row_int(out, m, r, 8, from, to);
        break;
    case W_INT4:
        row_int(out, m, r, 4, from, to);
        break;
    case W_MXFP4:
        row_mxfp4(out, m, r, from, to);
        break;
    case W_FORMATS:
        break;
    }
}

void ref_row(float *out, const struct matrix *m, int r)
{
    row_part(out, m, r, 0, m->cols);
}

/* Sixteen partial sums: the order in which a vector machine would add. */
static void add_dot(float part[16], const float *a, const float *b, int n)
{
    for (int i = 0; i < n; i += 16)
        for (int j = 0; j < 16; j++)
            part[j] += a[i + j] * b[i + j];
}

static float add_parts(const float part[16])
{
    float sum = 0;

    for (int j = 0; j < 16; j++)
        sum += part[j];
    return sum;
}

static float dot(const float *a, const float *b, int n)
{
    float part[16] = { 0 };

    add_dot(part, a, b, n);
    return add_parts(part);
}

void ref_mul(float *y, size_t y_stride, const struct matrix *m, const float *x, size_t x_stride,
             int n, int row0, int row1)
{
    /* A row in pieces, some tokens at a time: a thread's stack may be small. */
    enum { PIECE = 2048, TOKENS = 64 };
    float row[PIECE], part[TOKENS][16];

    for (int r = row0; r < row1; r++)
        for (int first = 0; first < n; first += TOKENS) {
            int tokens = n - first < TOKENS ? n - first : TOKENS;

            memset(part, 0, sizeof(part));
            for (int from = 0; from < m->cols; from += PIECE) {
                int to = m->cols - from < PIECE ? m->cols : from + PIECE;

                row_part(row, m, r, from, to);
                for (int t = 0; t < tokens; t++)
                    add_dot(part[t], row, x + (size_t)(first + t) * x_stride + from, to - from);
            }
            for (int t = 0; t < tokens; t++)
                y[(size_t)(first + t) * y_stride + (size_t)r] = add_parts(part[t]);
        }
}

void ref_norm(float *y, const float *x, const float *w, int n, float eps)
{
    double square = 0;
    float r;

    for (int i = 0; i < n; i++)
        square += (double)x[i] * x[i];
    r = 1 / sqrtf((float)(square / n) + eps);
    for (int i = 0; i < n; i++)
        y[i] = x[i] * r * w[i];
}

void ref_rope(float *head, const struct rope *r, int pos)
{
    int half = r->dims / 2;

    for (int i = 0; i < half; i++) {
        float angle = (float)pos * r->inv_freq[i];
        float c = cosf(angle) * r->factor, s = sinf(angle) * r->factor;
        float a = head[i], b = head[i + half];

        head[i] = a * c - b * s;
        head[i + half] = b * c + a * s;
    }
}

void ref_attend(float *out, const float *q, const float *k, const float *v, size_t stride, int dim,
                int n, float *scratch)
{
    float scale = 1 / sqrtf((float)dim), max = -INFINITY, sum = 0;

    for (int j = 0; j < n; j++) {
        scratch[j] = dot(q, k + (size_t)j * stride, dim) * scale;
        max = fmaxf(max, scratch[j]);
    }
    for (int j = 0; j < n; j++)
        sum += scratch[j] = expf(scratch[j] - max);
    for (int i = 0; i < dim; i++)
        out[i] = 0;
    for (int j = 0; j < n; j++)
        for (int i = 0; i < dim; i++)
            out[i] += scratch[j] / sum * v[(size_t)j * stride + (size_t)i];
}

float ref_softplus(float x)
{
    return x > 20 ? x : log1pf(expf(x));
}

float ref_silu(float x)
{
    return x / (1 + expf(-x));
}

static float router_score(const struct shape *s, float logit)
{
    if (s->router_softcap > 0)
        logit = s->router_softcap * tanhf(logit / s->router_softcap);
    return s->sqrtsoftplus ? sqrtf(ref_softplus(logit)) : 1 / (1 + expf(-logit));
}

int ref_route(const struct shape *s, const float *logits, const float *bias, uint16_t *expert,
              float *weight)
{
    float select[MAX_EXPERTS], sum = 0;
    int k = 0;

    for (int x = 0; x < s->experts; x++) {
        select[x] = router_score(s, logits[x]) + bias[x];
        if (!isfinite(select[x]))
            return -EDOM;
    }
    for (int n = 0; n < s->topk; n++) {
        int best = -1;

        for (int x = 0; x < s->experts; x++)
            if (select[x] > -INFINITY && (best < 0 || select[x] > select[best]))
                best = x;
        select[best] = -INFINITY;
    }
    for (int x = 0; x < s->experts; x++) {
        if (select[x] > -INFINITY)
            continue;
        expert[k] = (uint16_t)x;
        weight[k] = router_score(s, logits[x]);
        sum += weight[k++];
    }
    if (s->norm_topk)
        for (k = 0; k < s->topk; k++)
            weight[k] /= sum;
    return 0;
}

uint8_t ref_fp8_from_f32(float x)
{
    uint8_t sign = signbit(x) ? 0x80 : 0;
    float a = fabsf(x);
    int e, m;

    if (isnan(x))
        return sign | 0x7f;
    if (a >= 448)
        return sign | 0x7e;
    frexpf(a, &e);
    e = e - 1 < -6 ? -6 : e - 1;                /* 2^e <= a < 2^(e+1), or subnormal */
    m = (int)lrintf(ldexpf(a, 3 - e));          /* in eighths of 2^e; nearest even */
    if (m == 16) {
        m = 8;
        e++;
    }
    if (m < 8)                                  /* subnormal: exponent field 0 */
        return sign | (uint8_t)m;
    return sign | (uint8_t)((e + 7) << 3 | (m - 8));
}

float ref_fp8_to_f32(uint8_t b)
{
    int e = b >> 3 & 15, m = b & 7;
    float v;

    if ((b & 0x7f) == 0x7f)
        return NAN;
    v = e ? ldexpf((float)(8 + m), e - 10) : ldexpf((float)m, -9);
    return b & 0x80 ? -v : v;
}

/* IEEE half precision, round to nearest even, by hand: not every compiler has _Float16. */
uint16_t ref_f16_from_f32(float x)
{
    uint16_t sign = signbit(x) ? 0x8000 : 0;
    float a = fabsf(x);
    int e, m;

    if (isnan(x))
        return sign | 0x7e00;
    if (a >= 65520)                             /* rounds beyond the largest, 65504 */
        return sign | 0x7c00;
    frexpf(a, &e);
    e = a == 0 || e - 1 < -14 ? -14 : e - 1;    /* 2^e <= a < 2^(e+1), or subnormal */
    m = (int)lrintf(ldexpf(a, 10 - e));         /* up to 2048, which carries by itself */
    return sign | (uint16_t)(m + (m < 1024 ? 0 : (e + 14) << 10));
}

float ref_f16_to_f32(uint16_t u)
{
    int e = u >> 10 & 31, m = u & 1023;
    float v = e == 31 ? (m ? NAN : INFINITY)
                      : e ? ldexpf((float)(1024 + m), e - 25) : ldexpf((float)m, -24);

    return u & 0x8000 ? -v : v;
}
