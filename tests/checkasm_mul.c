/* checkasm: the products. */
#include "tests/checkasm.h"

#include "src/ref.h"

#include <float.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

enum { TOKENS_MAX = 70, COLS_MAX = 4096, ROWS_MAX = 70, PAD = 5 };

/* One random case: a matrix and tokens, and where their bytes lie. */
struct mul_case {
    struct matrix m;
    enum act act;
    mul_fn mul;
    int n, row0, row1;
    struct guarded weight, scale, zero, packed, y;
    size_t x_stride, y_stride;
    float *x;                   /* [n][cols] */
    int x_kind, scale_kind;
};

enum { X_NORMAL, X_OUTLIERS, X_SPECIAL, X_LARGE, X_SMALL, X_DENORMAL, X_ONE, X_KINDS };
enum { S_NORMAL, S_ONE, S_EXTREME, S_DENORMAL, S_KINDS };

static float activation(uint64_t *rng, int kind, int col, int hot)
{
    static const float special[] = { 0, -0.0f, 1e-40f, -1e-45f, 1, -1, 127, -127, 0x1p-126f };
    float v = rng_normal(rng);

    switch (kind) {
    case X_OUTLIERS:
        return rng_below(rng, 50) ? v : v * 100;
    case X_SPECIAL:
        return special[rng_below(rng, sizeof(special) / sizeof(*special))];
    case X_LARGE:
        return v * 1e30f;
    case X_SMALL:
        return v * 1e-25f;
    case X_DENORMAL:
        return v * 1e-39f;
    case X_ONE:
        return col == hot ? 1 : 0;
    default:
        return v;
    }
}

static bf16 scale_bf16(uint64_t *rng, int kind)
{
    float v = rng_normal(rng);

    switch (kind) {
    case S_ONE:
        return 0x3f80;
    case S_EXTREME:     /* results below 1e38 for activations of about 1 */
        return f32_to_bf16(ldexpf(v, rng_below(rng, 200) - 100));
    case S_DENORMAL:
        return (bf16)(rng_next(rng) & 0x80ff);
    default:
        return f32_to_bf16(v * 0.01f);
    }
}

static uint8_t scale_e8m0(uint64_t *rng, int kind)
{
    switch (kind) {
    case S_ONE:
        return 127;
    case S_EXTREME:
        return (uint8_t)(27 + rng_below(rng, 200));
    case S_DENORMAL:
        return (uint8_t)rng_below(rng, 4);
    default:
        return (uint8_t)(117 + rng_below(rng, 6));
    }
}

static void fill_matrix(struct mul_case *c, uint64_t *rng)
{
    for (size_t i = 0; i < c->weight.size; i++)
        c->weight.at[i] = (uint8_t)rng_next(rng);
    if (c->m.format == W_BF16)
        for (size_t i = 0; i < c->weight.size; i += 2) {
            bf16 b = scale_bf16(rng, c->scale_kind == S_ONE ? S_NORMAL : c->scale_kind);

            memcpy(c->weight.at + i, &b, sizeof(b));
        }
    for (size_t i = 0; i < c->scale.size; i += c->m.format == W_MXFP4 ? 1 : 2) {
        bf16 b = scale_bf16(rng, c->scale_kind);

        if (c->m.format == W_MXFP4)
            c->scale.at[i] = scale_e8m0(rng, c->scale_kind);
        else
            memcpy(c->scale.at + i, &b, sizeof(b));
    }
    for (size_t i = 0; i < c->zero.size; i++)
        c->zero.at[i] = (uint8_t)rng_next(rng);
}

static int choose_group(uint64_t *rng, int cols)
{
    int g = cols;

    switch (rng_below(rng, 4)) {
    case 0:
        return cols;
    case 1:
        g = 32 * (1 + rng_below(rng, cols / 32));
        break;
    case 2:
        g = 128;
        break;
    default:
        break;
    }
    return g < cols && cols % g == 0 ? g : 32;
}

static void choose_shape(struct mul_case *c, uint64_t *rng, enum wformat format)
{
    static const int rows[] = { 1, 2, 3, 7, 8, 9, 15, 16, 17, 31, 33, 48, 70 };
    static const int cols[] = { 32, 64, 96, 128, 160, 256, 352, 512, 1024, 1504, 3072, 4096 };
    static const int tokens[] = { 1, 1, 2, 3, 4, 5, 8, 13, 20, 64, TOKENS_MAX };

    c->m.format = format;
    c->m.rows = rows[rng_below(rng, sizeof(rows) / sizeof(*rows))];
    c->m.cols = cols[rng_below(rng, sizeof(cols) / sizeof(*cols))];
    c->m.group = format == W_BF16 ? 0 : choose_group(rng, c->m.cols);
    c->n = tokens[rng_below(rng, sizeof(tokens) / sizeof(*tokens))];
    c->row0 = rng_below(rng, 2) ? 0 : rng_below(rng, c->m.rows);
    c->row1 = rng_below(rng, 2) ? c->m.rows : c->row0 + 1 + rng_below(rng, c->m.rows - c->row0);
    c->x_kind = rng_below(rng, X_KINDS);
    c->scale_kind = rng_below(rng, S_KINDS);
    if (c->x_kind == X_LARGE && c->scale_kind == S_EXTREME)
        c->scale_kind = S_NORMAL;
}

/* Exact: BF16 by mul_exact. */
static void case_open(struct mul_case *c, const struct cpu_kernels *k, uint64_t *rng,
                      enum wformat format, bool exact)
{
    static const int bits[W_FORMATS] = { 16, 8, 4, 4 };
    size_t elements, scales, words = 0;
    int hot;

    memset(c, 0, sizeof(*c));
    choose_shape(c, rng, format);
    c->act = exact ? ACT_F32 : k->act[format];
    c->mul = exact ? k->mul_exact : k->mul[format];
    elements = (size_t)c->m.rows * (size_t)c->m.cols;
    scales = c->m.group ? (size_t)c->m.rows * (size_t)(c->m.cols / c->m.group) : 0;
    if ((format == W_INT4 || format == W_INT8) && rng_below(rng, 2))
        words = (size_t)((c->m.rows * bits[format] + 31) / 32 * (c->m.cols / c->m.group));
    guarded_open(&c->weight, elements * (size_t)bits[format] / 8, (size_t)rng_below(rng, 64), 0);
    guarded_open(&c->scale, scales * (format == W_MXFP4 ? 1 : 2), (size_t)rng_below(rng, 8), 0);
    guarded_open(&c->zero, words * 4, (size_t)rng_below(rng, 8), 0);
    fill_matrix(c, rng);
    c->m.weight = c->weight.at;
    c->m.scale = scales ? c->scale.at : NULL;
    c->m.zero = words ? c->zero.at : NULL;
    c->x = calloc((size_t)(c->n * c->m.cols), sizeof(float));
    hot = rng_below(rng, c->m.cols);
    for (int i = 0; i < c->n * c->m.cols; i++)
        c->x[i] = activation(rng, c->x_kind, i % c->m.cols, hot);
    c->x_stride = k->pack_bytes[c->act](c->m.cols) + ACT_ALIGN * (size_t)rng_below(rng, 3);
    guarded_open(&c->packed, c->x_stride * (size_t)c->n, 0, 0);
    for (int t = 0; t < c->n; t++)
        k->pack[c->act](c->packed.at + (size_t)t * c->x_stride, c->x + (size_t)(t * c->m.cols),
                        c->m.cols);
    c->y_stride = (size_t)c->m.rows + PAD;
    guarded_open(&c->y, c->y_stride * (size_t)c->n * sizeof(float), 0, 0xa5);
}

static void case_close(struct mul_case *c)
{
    guarded_close(&c->weight);
    guarded_close(&c->scale);
    guarded_close(&c->zero);
    guarded_close(&c->packed);
    guarded_close(&c->y);
    free(c->x);
}

static void describe(const struct mul_case *c, const struct checkasm *k, int t, int r,
                     const char *what, double got, double want, double bound)
{
    printf("# %s %s %dx%d group %d%s, %d tokens, rows %d to %d, x kind %d, scale kind %d, "
           "bytes at %zu/%zu/%zu%s: token %d row %d (lane %d): %s: %.9g, want %.9g +- %.3g\n",
           k->k->name, format_name(c->m.format), c->m.rows, c->m.cols, c->m.group,
           c->m.zero ? " zero points" : "", c->n, c->row0, c->row1, c->x_kind, c->scale_kind,
           (size_t)c->m.weight % 64, (size_t)c->m.scale % 64, (size_t)c->m.zero % 64,
           k->flush ? " flush" : "", t, r, (r - c->row0) % 16, what, got, want, bound);
}

/* What was wrong, summed over the cases of one kernel. */
struct tally {
    int numbers, distance, bytes, bits;
    double worst;
};

static bool untouched(const float *p)
{
    uint32_t u;

    memcpy(&u, p, sizeof(u));
    return u == 0xa5a5a5a5u;
}

/* Everything wanted written, nothing else. */
static void check_bytes(const struct mul_case *c, const struct checkasm *k, struct tally *sum)
{
    for (int t = 0; t < c->n; t++)
        for (int r = 0; r < (int)c->y_stride; r++) {
            const float *y = (const float *)(const void *)c->y.at + (size_t)t * c->y_stride + r;
            bool wanted = r >= c->row0 && r < c->row1;

            if (untouched(y) != wanted)
                continue;
            if (sum->bytes++ < 8)
                describe(c, k, t, r, wanted ? "not written" : "written", (double)*y, 0, 0);
        }
    for (const uint8_t *p = c->y.map; p < c->y.at; p++)
        sum->bytes += *p != 0xa5;
}

/* Against the same arithmetic in double, and against ref_mul(). */
static void check_numbers(const struct mul_case *c, const struct checkasm *k, struct tally *sum)
{
    static double w[COLS_MAX], x[TOKENS_MAX][COLS_MAX], error[TOKENS_MAX][COLS_MAX];
    static float reference[TOKENS_MAX][ROWS_MAX];
    enum act act = c->act;
    size_t cols = (size_t)c->m.cols;
    /* The longest chain of additions: a sum for every second group of 32, the tree inside a group
     * and that of the sums, and the products' own roundings; half a unit of the last place each. */
    double rounding = fmax(2e-6, ((double)cols / 64 + 16) * FLT_EPSILON / 2);

    for (int t = 0; t < c->n; t++)
        plain_round(x[t], error[t], c->x + (size_t)t * cols, c->m.cols, act);
    ref_mul(reference[0], ROWS_MAX, &c->m, c->x, cols, c->n, c->row0, c->row1);
    for (int r = c->row0; r < c->row1; r++) {
        plain_row(w, &c->m, r, act, k->k == cpu_kernels(CPU_REF));
        for (int t = 0; t < c->n; t++) {
            const float *y = (const float *)(const void *)c->y.at + (size_t)t * c->y_stride;
            double got = (double)y[r], want = 0, size = 0, slack = 0, bound, far;

            for (size_t i = 0; i < cols; i++) {
                want += w[i] * x[t][i];
                size += fabs(w[i] * x[t][i]);
                slack += fabs(w[i]) * error[t][i];
                /* ref_mul() rounds weights to BF16. */
                slack += fabs(w[i] * (double)c->x[(size_t)t * cols + i]) / 256;
                /* vdpbf16ps takes denormal weights as zero. */
                if (act == ACT_BF16 && c->m.format == W_BF16)
                    slack += fabs(x[t][i]) * FLT_MIN;
            }
            /* Under flushing each product or factor below FLT_MIN may have become 0. */
            bound = rounding * size + (k->flush ? 1e-30 : 2e-42 * (double)cols);
            if (k->flush && (c->scale_kind == S_DENORMAL || c->x_kind == X_LARGE))
                bound += 1e-4;
            if (act == ACT_BF16)
                bound += FLT_MIN * (double)cols;
            if (size > 0)
                sum->worst = fmax(sum->worst, fabs(got - want) / (size + 1e-30));
            if (!(fabs(got - want) <= bound) && sum->numbers++ < 8)
                describe(c, k, t, r, "sum", got, want, bound);
            far = fabs(got - (double)reference[t][r]);
            if (!(far <= slack + 4e-5 * size + bound) && sum->distance++ < 8)
                describe(c, k, t, r, "reference", got, (double)reference[t][r], slack);
        }
    }
}

/* Any other split into tokens and rows gives the same bits, but for the sign of a zero. */
static void check_bits(const struct mul_case *c, const struct checkasm *k, uint64_t *rng,
                       struct tally *sum)
{
    static float y[ROWS_MAX];

    for (int i = 0; i < 4; i++) {
        int t = rng_below(rng, c->n), r = c->row0 + rng_below(rng, c->row1 - c->row0);
        int end = r + 1 + rng_below(rng, c->row1 - r);
        const float *all = (const float *)(const void *)c->y.at + (size_t)t * c->y_stride;

        c->mul(y, ROWS_MAX, &c->m, c->packed.at + (size_t)t * c->x_stride, c->x_stride, 1, r, end);
        for (; r < end; r++)
            if (y[r] != all[r] && sum->bits++ < 8)
                describe(c, k, t, r, "alone", (double)y[r], (double)all[r], 0);
    }
}

static void check_product(const struct checkasm *k, enum wformat format, bool exact)
{
    const char *name = exact ? "bf16, exact" : format_name(format);
    const char *mode = k->flush ? ", denormals off" : "";
    uint64_t rng = k->seed + (uint64_t)format + (exact ? W_FORMATS : 0);
    struct tally sum = { 0 };

    for (int i = 0; i < k->cases; i++) {
        struct mul_case c;

        case_open(&c, k->k, &rng, format, exact);
        c.mul((float *)(void *)c.y.at, c.y_stride, &c.m, c.packed.at, c.x_stride, c.n, c.row0,
              c.row1);
        check_bytes(&c, k, &sum);
        check_numbers(&c, k, &sum);
        check_bits(&c, k, &rng, &sum);
        case_close(&c);
    }
    verdict(!sum.numbers, "%s %s: the sums, worst %.1e%s", k->k->name, name, sum.worst, mode);
    verdict(!sum.distance, "%s %s: near the reference%s", k->k->name, name, mode);
    verdict(!sum.bytes, "%s %s: writes what it should%s", k->k->name, name, mode);
    verdict(!sum.bits, "%s %s: a token alone, and part of the rows, same bits%s", k->k->name, name,
            mode);
}

void check_mul(const struct checkasm *k)
{
    for (enum wformat f = 0; f < W_FORMATS; f++)
        check_product(k, f, false);
    check_product(k, W_BF16, true);
}
