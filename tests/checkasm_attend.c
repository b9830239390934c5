/* checkasm: attention and the cache's rows. */
#include "tests/checkasm.h"

#include "src/ref.h"

#include <float.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

enum { QUERIES_MAX = 40, KEYS_MAX = 300, DIM_MAX = 256 };

struct attend_case {
    struct attend a;
    enum kv_type type;
    bool ranges;
    int from[QUERIES_MAX], to[QUERIES_MAX];
    struct guarded k, v, k_scale, v_scale, q, max, sum, acc;
};

static void fill_cache(struct attend_case *c, const struct cpu_kernels *k, uint64_t *rng,
                       float spread)
{
    float x[DIM_MAX];

    for (int j = 0; j < c->a.keys; j++)
        for (int which = 0; which < 2; which++) {
            struct guarded *rows = which ? &c->v : &c->k;
            struct guarded *scales = which ? &c->v_scale : &c->k_scale;

            for (int d = 0; d < c->a.dim; d++)
                x[d] = rng_normal(rng) * spread;
            k->kv_store[c->type](rows->at + (size_t)j * c->a.stride,
                                 (uint16_t *)(void *)(scales->at + (size_t)j * c->a.scale_stride),
                                 x, c->a.dim, which ? c->a.v_mul : c->a.k_mul);
        }
}

static void case_open(struct attend_case *c, const struct cpu_kernels *k, uint64_t *rng,
                      enum kv_type type)
{
    static const int dims[] = { 16, 48, 64, 128, 128, 176, 256 };
    static const int queries[] = { 1, 2, 3, 4, 5, 6, 9, QUERIES_MAX };
    static const float spreads[] = { 1, 1, 0.01f, 8, 1e-4f };
    struct attend *a = &c->a;
    size_t rows, scales;

    memset(c, 0, sizeof(*c));
    c->type = type;
    a->dim = dims[rng_below(rng, sizeof(dims) / sizeof(*dims))];
    a->queries = queries[rng_below(rng, sizeof(queries) / sizeof(*queries))];
    a->keys = 1 + rng_below(rng, rng_below(rng, 2) ? 40 : KEYS_MAX);
    a->stride = kv_row_bytes(type, a->dim) + (size_t)(rng_below(rng, 3) * 24);
    a->scale_stride = 2 + (size_t)(rng_below(rng, 3) * 14);
    a->k_mul = a->v_mul = 1;
    if (type == KV_FP8 && rng_below(rng, 2)) {
        a->k_mul = 0.0625f;
        a->v_mul = 1.7f;
    }
    rows = a->stride * (size_t)(a->keys - 1) + kv_row_bytes(type, a->dim);
    scales = a->scale_stride * (size_t)(a->keys - 1) + 2;
    guarded_open(&c->k, rows, 0, 0);
    guarded_open(&c->v, rows, 0, 0);
    guarded_open(&c->k_scale, scales, 0, 0);
    guarded_open(&c->v_scale, scales, 0, 0);
    fill_cache(c, k, rng, spreads[rng_below(rng, sizeof(spreads) / sizeof(*spreads))]);
    guarded_open(&c->q, (size_t)(a->queries * a->dim) * sizeof(float), 0, 0);
    for (size_t i = 0; i < c->q.size / sizeof(float); i++)
        ((float *)(void *)c->q.at)[i] = rng_normal(rng) / sqrtf((float)a->dim);
    guarded_open(&c->max, (size_t)a->queries * sizeof(float), 0, 0);
    guarded_open(&c->sum, (size_t)a->queries * sizeof(float), 0, 0);
    guarded_open(&c->acc, c->q.size, 0, 0);
    a->q = (const float *)(const void *)c->q.at;
    a->max = (float *)(void *)c->max.at;
    a->sum = (float *)(void *)c->sum.at;
    a->acc = (float *)(void *)c->acc.at;
    c->ranges = rng_below(rng, 2);
    for (int i = 0; i < a->queries; i++) {
        c->from[i] = rng_below(rng, a->keys + 1);
        c->to[i] = c->from[i] + rng_below(rng, a->keys + 1 - c->from[i]);
    }
}

static void case_close(struct attend_case *c)
{
    guarded_close(&c->k);
    guarded_close(&c->v);
    guarded_close(&c->k_scale);
    guarded_close(&c->v_scale);
    guarded_close(&c->q);
    guarded_close(&c->max);
    guarded_close(&c->sum);
    guarded_close(&c->acc);
}

/* All keys in two calls, split at a place that need not be a block's edge. */
static void run(struct attend_case *c, const struct cpu_kernels *k, int split)
{
    int from[QUERIES_MAX], to[QUERIES_MAX];

    for (int i = 0; i < c->a.queries; i++) {
        c->a.max[i] = -INFINITY;
        c->a.sum[i] = 0;
    }
    memset(c->a.acc, 0, c->acc.size);
    for (int part = 0; part < 2; part++) {
        struct attend a = c->a;
        int first = part ? split : 0;
        size_t skip;

        a.keys = part ? c->a.keys - split : split;
        if (!a.keys)
            continue;
        skip = (size_t)first * a.scale_stride;
        a.k = c->k.at + (size_t)first * a.stride;
        a.v = c->v.at + (size_t)first * a.stride;
        a.k_scale = (const uint16_t *)(const void *)(c->k_scale.at + skip);
        a.v_scale = (const uint16_t *)(const void *)(c->v_scale.at + skip);
        for (int i = 0; i < a.queries; i++) {
            from[i] = c->from[i] - first;
            to[i] = c->to[i] - first;
        }
        a.from = c->ranges ? from : NULL;
        a.to = c->ranges ? to : NULL;
        k->attend[c->type](&a);
    }
}

static double cached(const struct attend_case *c, bool value, int j, int d)
{
    const struct guarded *rows = value ? &c->v : &c->k;
    const struct guarded *scales = value ? &c->v_scale : &c->k_scale;

    return plain_cached(rows->at + (size_t)j * c->a.stride,
                        (const uint16_t *)(const void *)(scales->at +
                                                         (size_t)j * c->a.scale_stride),
                        value ? c->a.v_mul : c->a.k_mul, c->type, d);
}

/* The largest difference of query i's result relative to the values that went into it, as a
 * share of what rounding explains: a score of size s is the sum of up to 20 roundings of 2^-24 s
 * one after another, so that it is off by up to 2^-21 s in nearly all of a million cases, which is
 * the relative error of its weight. */
static double distance(const struct attend_case *c, int i)
{
    static double score[KEYS_MAX];
    int from = c->ranges ? c->from[i] : 0, to = c->ranges ? c->to[i] : c->a.keys;
    double max = -INFINITY, sum = 0, worst = 0, largest = 0;
    const float *acc = c->a.acc + (size_t)(i * c->a.dim);

    for (int j = from; j < to; j++) {
        double size = 0;

        score[j] = 0;
        for (int d = 0; d < c->a.dim; d++) {
            double product = (double)c->a.q[i * c->a.dim + d] * cached(c, false, j, d);

            score[j] += product;
            size += fabs(product);
        }
        max = fmax(max, score[j]);
        largest = fmax(largest, size);
    }
    for (int j = from; j < to; j++)
        sum += score[j] = exp(score[j] - max);
    if (from == to)
        return c->a.sum[i] == 0 && acc[0] == 0 ? 0 : INFINITY;
    for (int d = 0; d < c->a.dim; d++) {
        double want = 0, size = 0;

        for (int j = from; j < to; j++) {
            want += score[j] / sum * cached(c, true, j, d);
            size += fabs(score[j] / sum * cached(c, true, j, d));
        }
        worst = fmax(worst, fabs((double)(acc[d] / c->a.sum[i]) - want) / (size + 1e-30));
        if (isnan(acc[d]))
            worst = INFINITY;
    }
    return worst / (3e-6 + 0x1p-21 * largest);
}

static void check_type(const struct checkasm *k, enum kv_type type)
{
    uint64_t rng = k->seed + 100 + type;
    double worst = 0;
    int bad = 0, bits = 0;

    for (int n = 0; n < k->cases; n++) {
        struct attend_case c;
        static float together[QUERIES_MAX * DIM_MAX];
        int i;

        case_open(&c, k->k, &rng, type);
        run(&c, k->k, rng_below(&rng, c.a.keys + 1));
        for (i = 0; i < c.a.queries; i++) {
            double far = distance(&c, i);

            worst = fmax(worst, far);
            if (!(far <= 1) && bad++ < 8)
                printf("# %s attend %s: dim %d, %d queries, %d keys, query %d sees %d to %d%s: "
                       "off by %.3g of what is allowed\n", k->k->name, kv_name(type), c.a.dim,
                       c.a.queries, c.a.keys, i, c.from[i], c.to[i], c.ranges ? "" : " (all)", far);
        }
        run(&c, k->k, 0);
        i = rng_below(&rng, c.a.queries);
        memcpy(together, c.a.acc, c.acc.size);
        c.a.queries = 1;
        c.a.q += i * c.a.dim;
        c.from[0] = c.from[i];
        c.to[0] = c.to[i];
        run(&c, k->k, 0);
        bits += memcmp(together + i * c.a.dim, c.a.acc, (size_t)c.a.dim * sizeof(float)) != 0;
        case_close(&c);
    }
    verdict(!bad, "%s attend %s, worst %.2f of what is allowed%s", k->k->name, kv_name(type), worst,
            k->flush ? ", denormals off" : "");
    verdict(!bits, "%s attend %s: a query alone, same bits", k->k->name, kv_name(type));
}

/* Every E4M3 code as a value, one key: softmax is 1. */
static void check_fp8_codes(const struct checkasm *k)
{
    uint8_t codes[256];
    float q[256] = { 0 }, max = -INFINITY, sum = 0, acc[256] = { 0 };
    struct attend a = { .queries = 1, .dim = 256, .q = q, .k = codes, .v = codes, .stride = 256,
                        .k_mul = 1, .v_mul = 1, .keys = 1, .max = &max, .sum = &sum, .acc = acc };
    int bad = 0;

    for (int i = 0; i < 256; i++)
        codes[i] = (uint8_t)((i & 0x7f) == 0x7f ? 0 : i);
    k->k->attend[KV_FP8](&a);
    for (int i = 0; i < 256; i++)
        bad += acc[i] != ref_fp8_to_f32(codes[i]);
    verdict(!bad, "%s attend fp8: every value%s", k->k->name, k->flush ? ", denormals off" : "");
}

static void check_store(const struct checkasm *k)
{
    uint64_t rng = k->seed + 200;
    int bad = 0;

    for (int n = 0; n < 10 * k->cases; n++) {
        float x[128], max = 0, spread = ldexpf(1, rng_below(&rng, 60) - 40), s;
        uint8_t row[4 * 128];
        uint16_t scale = 0;

        for (int i = 0; i < 128; i++) {
            x[i] = rng_normal(&rng) * spread;
            max = fmaxf(max, fabsf(x[i]));
        }
        k->k->kv_store[KV_Q8](row, &scale, x, 128, 1);
        s = ref_f16_to_f32(scale);
        bad += fabsf(s - max / 127) > max / 127 / 2048 + 0x1p-25f && max / 127 < 65504;
        for (int i = 0; i < 128; i++)
            bad += fabsf((int8_t)row[i] * s - x[i]) > (s > 0 ? s * 0.5001f + max * 5e-4f
                                                             : 0x1p-24f * 128) &&
                   max / 127 > 0x1p-14f && max / 127 < 65504;
        k->k->kv_store[KV_FP8](row, &scale, x, 128, 0.5f);
        for (int i = 0; i < 128; i++)
            bad += row[i] != ref_fp8_from_f32(x[i] * 2);
    }
    verdict(!bad, "%s kv_store", k->k->name);
}

void check_attend(const struct checkasm *k)
{
    for (int t = 0; t < KV_TYPES; t++)
        check_type(k, (enum kv_type)t);
    check_fp8_codes(k);
    check_store(k);
}
