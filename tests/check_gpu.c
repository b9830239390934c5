/* Every stage and kernel behind cuda/gpu.h against plain C of the same arithmetic, over odd
 * shapes.  `make check-gpu` runs it on a machine with a GPU; in builds without CUDA `make check`
 * runs it over gpu_ref.c.  With --full also at the dimensions of the real model, which takes
 * plain C minutes; with --own never through cuBLAS, whose kernels are not ours to check. */
#include "tests/gpu_steps.h"
#include "tests/tap.h"

static const char *const formats[W_FORMATS] = { "bf16", "int8", "int4", "mxfp4" };
static const char *const caches[GPU_KV_TYPES] = { "q8", "fp8", "bf16" };

static bool on_gpu, only_own;           /* set once, by main() */

/* sqrt(sum (a - b)^2 / sum b^2); large where anything is not finite. */
static double distance(const float *a, const float *b, size_t n)
{
    double d = 0, size = 0;

    for (size_t i = 0; i < n; i++) {
        d += ((double)a[i] - b[i]) * ((double)a[i] - b[i]);
        size += (double)b[i] * b[i];
    }
    return isfinite(d) && size > 0 ? sqrt(d / size) : d == 0 ? 0 : 1e9;
}

/* The same for what a stage added: a - x against b - x. */
static double step_distance(const float *a, const float *b, const float *x, size_t n)
{
    float *da = toy_memory(n * sizeof(float)), *db = toy_memory(n * sizeof(float));
    double d;

    for (size_t i = 0; i < n; i++) {
        da[i] = a[i] - x[i];
        db[i] = b[i] - x[i];
    }
    d = distance(da, db, n);
    free(da);
    free(db);
    return d;
}

static struct gpu *open_toy(const struct toy *t, struct gpu_config *c, int seated)
{
    c->own_products |= only_own;
    return toy_gpu(t, c, seated);
}

/* --- shapes ----------------------------------------------------------------------------------- */

/* Everything odd: one KV head, per-element gate, no gate, other scores, no shared expert. */
static void odd_toy(struct toy *t, enum wformat f, int group, bool zero)
{
    struct shape *s = &t->s;

    *t = (struct toy){ .format = f, .group = group, .zero = zero, .seed = 777 };
    base_shape(s);
    s->hidden = 96;
    s->head_dim = 128;
    s->kv_heads = 1;
    s->window = 33;
    s->vocab = 77;
    s->experts = 7;
    s->topk = 3;
    s->expert_inner = 160;
    s->dense_inner = 224;
    s->router_softcap = 3;
    s->sqrtsoftplus = true;
    s->norm_topk = false;
    s->rope_full = toy_rope(64, 500000, 1.485f);
    s->rope_window = toy_rope(128, 10000, 1);
    set_layers(s, 3, 6, 9);
    s->layer[1].gate_rows = 9 * 128;
    s->layer[2].gate_rows = 0;
    toy_make(t, 7);
}

/* The same with the window of S-2.1 and values so small that q8's scales are subnormal. */
static void edge_toy(struct toy *t)
{
    odd_toy(t, W_BF16, 32, false);
    t->s.window = 512;
    for (int i = 0; i < t->s.layers; i++) {
        const struct matrix *v = &t->layer[i].v;

        for (int j = 0; j < v->rows * v->cols; j++) {
            bf16 *w = (bf16 *)(uintptr_t)v->weight + j;

            *w = f32_to_bf16(bf16_to_f32(*w) / 256);
        }
    }
}

/* One full and one window layer of S-2.1, with 16 of its experts. */
static void real_toy(struct toy *t)
{
    struct shape *s = &t->s;

    *t = (struct toy){ .format = W_INT4, .group = 32, .seed = 99 };
    base_shape(s);
    s->hidden = 3072;
    s->head_dim = 128;
    s->kv_heads = 8;
    s->window = 512;
    s->vocab = 4096;
    s->experts = 16;
    s->topk = 10;
    s->expert_inner = s->shared_inner = 1024;
    s->dense_inner = 4096;
    s->rope_full = toy_rope(64, 500000, 1.485f);
    s->rope_window = toy_rope(128, 10000, 1);
    set_layers(s, 2, 48, 72);
    toy_make(t, 16);
}

/* --- products --------------------------------------------------------------------------------- */

/* The largest error of y, in units of the sum of the magnitudes of its terms. */
static double product_error(const struct matrix *m, const float *x, int n, const float *y)
{
    static float row[REF_MAX_COLS];
    double worst = 0;

    for (int r = 0; r < m->rows; r++) {
        ref_row(row, m, r);
        for (int t = 0; t < n; t++) {
            double sum = 0, size = 1e-30;

            for (int i = 0; i < m->cols; i++) {
                double v = (double)row[i] * plain_bf16(x[(size_t)(t * m->cols + i)]);

                sum += v;
                size += fabs(v);
            }
            worst = fmax(worst, fabs(y[(size_t)(t * m->rows + r)] - sum) / size);
        }
    }
    return worst;
}

static void check_product(struct gpu *g, struct toy *t, enum wformat f, int rows, int cols, int n)
{
    struct matrix m = toy_matrix(t, f, rows, cols);
    float *x = toy_floats(t, n * cols, 0, 2), *y = toy_memory((size_t)(n * rows) * sizeof(float));
    double worst;

    memset(y, 0xff, (size_t)(n * rows) * sizeof(float));
    must(gpu_product(g, &m, x, n, y), &(struct err){ "gpu_product" });
    worst = product_error(&m, x, n, y);
    ok(worst < 2e-6, "product %s%s %dx%d, group %d, %d tokens: %.2g", formats[f],
       m.zero ? " with zero points" : "", rows, cols, m.group, n, worst);
    free(x);
    free(y);
}

static void check_products(bool own)
{
    static const int tokens[] = { 1, 2, 7, 8, 9, 16, 17, 40 };
    static const int shapes[][3] = { { 1, 32, 32 }, { 16, 96, 32 }, { 17, 256, 64 },
                                     { 333, 160, 32 }, { 48, 1024, 128 }, { 40, 3072, 32 } };
    struct toy t;
    struct gpu_config c;
    struct gpu *g;

    small_toy(&t, W_INT4);
    c = toy_config(&t, 128, 64, GPU_KV_BF16);
    c.own_products = own;
    g = open_toy(&t, &c, 0);
    for (int f = 0; f < W_FORMATS; f++)
        for (size_t i = 0; i < sizeof(shapes) / sizeof(*shapes); i++)
            for (size_t k = 0; k < sizeof(tokens) / sizeof(*tokens); k++) {
                if (!on_gpu && (i + k) % 3)
                    continue;
                t.group = shapes[i][2];
                t.zero = k % 2 == 1;
                check_product(g, &t, (enum wformat)f, shapes[i][0], shapes[i][1], tokens[k]);
            }
    gpu_close(g);
}

/* Every code of every format: the products with unit vectors are the weights themselves. */
static void check_codes(void)
{
    struct toy t;
    struct gpu_config c;
    struct gpu *g;
    static float x[16 * 256], y[16 * 64], row[256];

    small_toy(&t, W_INT4);
    c = toy_config(&t, 128, 64, GPU_KV_BF16);
    g = open_toy(&t, &c, 0);
    for (int f = W_INT8; f < W_FORMATS; f++) {
        struct matrix m = toy_matrix(&t, (enum wformat)f, 64, 256);
        uint8_t *codes = (uint8_t *)(uintptr_t)m.weight;
        int bad = 0;

        for (int i = 0; i < 64 * 256 / (f == W_INT8 ? 1 : 2); i++)
            codes[i] = (uint8_t)i;
        if (f == W_MXFP4)                       /* the range of E8M0 that BF16 can hold */
            for (int i = 0; i < 64 * 8; i++)
                ((uint8_t *)(uintptr_t)m.scale)[i] = (uint8_t)(1 + i % 251);
        for (int from = 0; from < 256; from += 16) {
            memset(x, 0, sizeof(x));
            for (int n = 0; n < 16; n++)
                x[n * 256 + from + n] = 1;
            must(gpu_product(g, &m, x, 16, y), &(struct err){ "gpu_product" });
            for (int r = 0; r < 64; r++) {
                ref_row(row, &m, r);
                for (int n = 0; n < 16; n++)
                    bad += y[n * 64 + r] != row[from + n];
            }
        }
        ok(!bad, "codes of %s: %d of %d wrong", formats[f], bad, 64 * 256);
    }
    gpu_close(g);
}

/* --- attention -------------------------------------------------------------------------------- */

/* Batches of the given sizes, one after the other, through one layer. */
static void check_attention(const struct toy *t, enum gpu_kv kv, int layer, const int *sizes,
                            int batch)
{
    const struct shape *s = &t->s;
    int total = 0, pos = 0;
    struct gpu_config c;
    struct plain p;
    struct toy noise = { .seed = 5 };
    struct gpu *g;
    struct err e;

    for (const int *n = sizes; *n; n++)
        total += *n;
    c = toy_config(t, total, batch, kv);
    c.slots = 0;
    g = open_toy(t, &c, 0);
    plain_open(&p, t, kv, total);
    for (const int *n = sizes; *n; pos += *n++) {
        size_t all = (size_t)*n * (size_t)s->hidden;
        float *x = toy_floats(&noise, (int)all, 0, 1), *got = toy_memory(all * sizeof(float));
        float *want = toy_memory(all * sizeof(float));
        int32_t *token = toy_memory((size_t)*n * sizeof(int32_t));
        struct batch b = { token, *n, pos };
        double d;

        memcpy(want, x, all * sizeof(float));
        gpu_embed(g, &b);
        must(gpu_write_hidden(g, x, &e), &e);
        gpu_attention(g, layer);
        must(gpu_read_hidden(g, got, &e), &e);
        plain_attention(&p, layer, want, *n, pos);
        for (int i = 0; i < *n; i++)
            if (plain_skips(i, *n))
                memcpy(got + i * s->hidden, want + i * s->hidden, (size_t)s->hidden * 4);
        d = step_distance(got, want, x, all);
        ok(d < 4e-3, "attention %s %s, %d heads of %d: %d tokens at %d: %.2g", caches[kv],
           s->layer[layer].full ? "full" : "window", s->layer[layer].heads, s->head_dim, *n, pos,
           d);
        free(x);
        free(got);
        free(want);
        free(token);
    }
    plain_close(&p);
    gpu_close(g);
}

static void check_attentions(void)
{
    static const int sizes[] = { 1, 2, 16, 17, 28, 1, 65, 70, 3, 1, 66, 9, 0 };
    static const int odd[] = { 31, 1, 1, 1, 40, 5, 1, 0 };
    static const int far[] = { 1000, 1000, 1000, 1000, 1, 16, 1, 0 };
    /* One token at 511, 512 and 513; then the window layer's ring of 1025 rows wraps. */
    static const int edges[] = { 511, 1, 1, 1, 513, 1, 16, 17, 64, 100, 2, 0 };
    struct toy t, o, edge;

    small_toy(&t, W_INT4);
    odd_toy(&o, W_INT8, 32, true);
    edge_toy(&edge);
    /* In plain C each type once: there is one code for all layers. */
    for (int kv = 0; kv < GPU_KV_TYPES; kv++) {
        if (on_gpu || kv == GPU_KV_Q8)
            check_attention(&t, (enum gpu_kv)kv, 0, sizes, 70);
        if (on_gpu || kv == GPU_KV_FP8)
            check_attention(&t, (enum gpu_kv)kv, 1, sizes, 70);
        for (int layer = 0; layer < 3; layer++)
            check_attention(&o, (enum gpu_kv)kv, layer, odd, 40);
        for (int layer = 0; layer < 2; layer++)
            if (on_gpu || (kv == GPU_KV_Q8 && layer == 1))
                check_attention(&edge, (enum gpu_kv)kv, layer, edges, 513);
        if (on_gpu) {
            check_attention(&o, (enum gpu_kv)kv, 0, far, 1000);
            check_attention(&o, (enum gpu_kv)kv, 1, far, 1000);
        }
    }
}

/* --- FFN, router, experts --------------------------------------------------------------------- */

static void fill_random(struct gpu *g, const struct shape *s, int n, float *x, uint32_t seed)
{
    struct toy noise = { .seed = seed };
    int32_t token[128] = { 0 };
    struct batch b = { token, n, 0 };
    struct err e;

    for (size_t i = 0; i < (size_t)n * (size_t)s->hidden; i++)
        x[i] = toy_float(&noise);
    gpu_embed(g, &b);
    must(gpu_write_hidden(g, x, &e), &e);
}

static void check_dense(const struct toy *t, struct gpu *g, const struct plain *p, int n)
{
    size_t hidden = (size_t)t->s.hidden, all = (size_t)n * hidden;
    float *x = toy_memory(all * 4), *got = toy_memory(all * 4), *want = toy_memory(all * 4);
    struct err e;
    double d;

    fill_random(g, &t->s, n, x, 11);
    memcpy(want, x, all * 4);
    gpu_dense(g, 0);
    must(gpu_read_hidden(g, got, &e), &e);
    for (size_t i = 0; i < (size_t)n; i++)
        plain_ffn_half(p, 0, want + i * hidden, NULL, NULL);
    d = step_distance(got, want, x, all);
    ok(d < 4e-3, "dense %s, %d tokens: %.2g", formats[t->format], n, d);
    free(x);
    free(got);
    free(want);
}

/* How many of the routes differ from plain_route()'s, in ids or in weights by 1e-4. */
static int route_errors(const struct plain *p, int layer, const struct route *r, const float *x)
{
    int bad = 0;

    for (int i = 0; i < r->tokens; i++) {
        uint16_t id[MAX_TOPK];
        float weight[MAX_TOPK];

        plain_route(p, layer, x + (size_t)i * (size_t)p->t->s.hidden, id, weight);
        for (int k = 0; k < r->topk; k++)
            bad += r->expert[i * r->topk + k] != id[k] ||
                   fabsf(r->weight[i * r->topk + k] - weight[k]) > 1e-4f * weight[k];
    }
    return bad;
}

/* Experts below `seated` on the GPU, in two calls; the others by plain C, through gpu_add(). */
static void run_experts(struct gpu *g, const struct plain *p, int layer, const struct route *r,
                        int seated)
{
    size_t hidden = (size_t)p->t->s.hidden, all = (size_t)r->tokens * hidden;
    float *h = toy_memory(all * 4), *partial = toy_memory(all * 4);
    uint16_t id[MAX_EXPERTS];
    struct err e;

    must(gpu_read_normed(g, h, &e), &e);
    for (int x = 0; x < seated; x++)
        id[x] = (uint16_t)x;
    gpu_experts(g, id, seated / 2);
    gpu_experts(g, id + seated / 2, seated - seated / 2);
    for (int i = 0; i < r->tokens * r->topk; i++)
        if (r->expert[i] >= seated)
            plain_ffn(&p->t->expert[layer * p->t->s.experts + r->expert[i]].ffn,
                      h + (size_t)(i / r->topk) * hidden, r->weight[i],
                      partial + (size_t)(i / r->topk) * hidden);
    if (seated < p->t->s.experts)
        gpu_add(g, partial);
    free(h);
    free(partial);
}

static void check_sparse(const struct toy *t, struct gpu *g, const struct plain *p, int n,
                         int seated)
{
    size_t hidden = (size_t)t->s.hidden, all = (size_t)n * hidden, topk = (size_t)t->s.topk;
    float *x = toy_memory(all * 4), *got = toy_memory(all * 4), *want = toy_memory(all * 4);
    struct route r = { 0, 0, NULL, NULL };
    struct err e;
    double d;
    int layer = 1, bad;

    fill_random(g, &t->s, n, x, 13);
    memcpy(want, x, all * 4);
    must(gpu_route(g, layer, &r, &e), &e);
    bad = route_errors(p, layer, &r, x);
    ok(!bad && r.tokens == n, "router, %d tokens, %d of %d: %d differences", n, t->s.topk,
       t->s.experts, bad);
    run_experts(g, p, layer, &r, seated);
    gpu_combine(g);
    must(gpu_read_hidden(g, got, &e), &e);
    for (size_t i = 0; i < (size_t)n; i++)
        plain_ffn_half(p, layer, want + i * hidden, r.expert + i * topk, r.weight + i * topk);
    d = step_distance(got, want, x, all);
    ok(d < 4e-3, "experts %s, %d tokens, %d of %d seated: %.2g", formats[t->format], n, seated,
       t->s.experts, d);
    free(x);
    free(got);
    free(want);
}

static void check_ffns(const struct toy *t, bool own)
{
    static const int tokens[] = { 1, 5, 16, 17, 100 };
    struct gpu_config c = toy_config(t, 128, 100, GPU_KV_BF16);
    struct plain p = { .t = t };
    struct gpu *g;

    c.own_products = own;
    g = open_toy(t, &c, t->s.experts);
    for (size_t i = 0; i < sizeof(tokens) / sizeof(*tokens); i++) {
        if (!on_gpu && tokens[i] > 17)          /* C takes them one by one */
            continue;
        check_dense(t, g, &p, tokens[i]);
        check_sparse(t, g, &p, tokens[i], t->s.experts);
        check_sparse(t, g, &p, tokens[i], t->s.experts / 2);
    }
    gpu_close(g);
}

/* Equal scores: the lowest ids.  Scores that are no numbers: an error, and no harm after it. */
static void check_router_edges(void)
{
    static float zero[256];
    struct toy t;
    struct gpu_config c;
    struct gpu *g;
    struct route r;
    struct err e;
    float *x, saved;
    int rc, in_order = 0;

    small_toy(&t, W_INT4);
    memset((void *)(uintptr_t)t.layer[1].router.weight, 0, 24 * 256 * sizeof(bf16));
    t.layer[1].router_bias = zero;
    c = toy_config(&t, 128, 32, GPU_KV_BF16);
    g = open_toy(&t, &c, 24);
    x = toy_memory(32 * 256 * sizeof(float));
    for (int n = 1; n <= 32; n += 31) {
        fill_random(g, &t.s, n, x, 3);
        must(gpu_route(g, 1, &r, &e), &e);
        for (int i = 0; i < n * 8; i++)
            in_order += r.expert[i] == i % 8 && fabsf(r.weight[i] - 0.125f) < 1e-6f;
    }
    ok(in_order == 33 * 8, "equal router scores: the lowest ids win");
    saved = x[40];
    x[40] = NAN;
    must(gpu_write_hidden(g, x, &e), &e);
    rc = gpu_route(g, 1, &r, &e);
    ok(rc == -EDOM && strstr(e.text, "layer 1"), "router of NaN: %d %s", rc, e.text);
    x[40] = saved;
    must(gpu_write_hidden(g, x, &e), &e);
    ok(!gpu_route(g, 1, &r, &e), "and the next one works");
    gpu_close(g);
}

/* --- head and sampling ------------------------------------------------------------------------ */

static void check_head(const struct toy *t)
{
    struct gpu_config c = toy_config(t, 128, 40, GPU_KV_BF16);
    struct gpu *g = open_toy(t, &c, 0);
    size_t hidden = (size_t)t->s.hidden, vocab = (size_t)t->s.vocab;
    float *x = toy_memory(40 * hidden * 4), *h = toy_memory(hidden * 4);
    float *want = toy_memory(vocab * 4), *got = toy_memory(16 * vocab * 4);
    struct err e;
    double d = 0;
    int wrong = 0;

    fill_random(g, &t->s, 40, x, 21);
    gpu_logits(g, 20, 16);
    must(gpu_read_logits(g, 0, 16, got, &e), &e);
    for (size_t i = 0; i < 16; i++) {
        const float *row = got + i * vocab;
        int best = 0;

        ref_norm(h, x + (20 + i) * hidden, t->final_norm, t->s.hidden, t->s.norm_eps);
        plain_mul(&t->head, h, want);
        d = fmax(d, distance(row, want, vocab));
        for (int j = 1; j < t->s.vocab; j++)
            if (row[j] > row[best])
                best = j;
        wrong += gpu_argmax(g, (int)i) != best;
    }
    ok(d < 1e-3, "logits of 16 rows of %d: %.2g", t->s.vocab, d);
    ok(!wrong, "argmax of 16 rows");
    gpu_close(g);
}

/* A distribution by brute force: sort all, cut by min_p, top_k, top_p, then draw. */
static int plain_sample(const float *row, int vocab, const struct gpu_choice *c)
{
    static int order[8192];
    double mass = 0, part = 0, left;
    int n = 0, kept = 0;

    for (int i = 0; i < vocab; i++) {
        int j = i;

        for (; j > 0 && row[order[j - 1]] < row[i]; j--)
            order[j] = order[j - 1];
        order[j] = i;
    }
    while (n < c->top_k && n < vocab &&
           (c->min_p <= 0 || row[order[n]] >= row[order[0]] + c->temperature * logf(c->min_p)))
        mass += exp((row[order[n++]] - row[order[0]]) / (double)c->temperature);
    while (kept < n && (c->top_p >= 1 || part < c->top_p * mass))
        part += exp((row[order[kept++]] - row[order[0]]) / (double)c->temperature);
    left = c->u * part;
    for (int i = 0; i < kept - 1; i++) {
        left -= exp((row[order[i]] - row[order[0]]) / (double)c->temperature);
        if (left < 0)
            return order[i];
    }
    return order[kept ? kept - 1 : 0];
}

static void check_sampling(void)
{
    static const struct gpu_choice kinds[] = {
        { 0, 1, 1, 1, 0, 0 }, { 0, 0.7f, 20, 1, 0, 0 }, { 0, 1, 64, 0.8f, 0, 0 },
        { 0, 2, 1000, 0.95f, 0.05f, 0 }, { 0, 5, GPU_TOP, 1, 0, 0 }, { 0, 0.3f, 40, 0.5f, 0.2f, 0 },
    };
    struct toy t;
    struct gpu_config c;
    struct gpu *g;
    float *x, *row;
    struct err e;

    small_toy(&t, W_INT4);
    /* Twenty equal rows of the head: ties at the edge of top_k. */
    for (int i = 1; i < 20; i++)
        memcpy((bf16 *)(uintptr_t)t.head.weight + (size_t)i * 37 * 256, t.head.weight, 512);
    c = toy_config(&t, 64, 8, GPU_KV_BF16);
    g = open_toy(&t, &c, 0);
    x = toy_memory(8 * 256 * 4);
    row = toy_memory(8 * 1003 * 4);
    fill_random(g, &t.s, 8, x, 31);
    gpu_logits(g, 0, 8);
    must(gpu_read_logits(g, 0, 8, row, &e), &e);
    for (size_t k = 0; k < sizeof(kinds) / sizeof(*kinds); k++) {
        int wrong = 0;

        for (int i = 0; i < 40; i++) {
            struct gpu_choice choice = kinds[k];
            int32_t id = -1;

            choice.row = i % 8;
            choice.u = (float)i / 40 + 0.0123f;
            must(gpu_sample(g, &choice, &id, &e), &e);
            wrong += id != plain_sample(row + (size_t)choice.row * 1003, 1003, &choice);
        }
        ok(wrong <= 1, "sampling, temperature %g top_k %d top_p %g min_p %g: %d of 40 differ",
           (double)kinds[k].temperature, kinds[k].top_k, (double)kinds[k].top_p,
           (double)kinds[k].min_p, wrong);
    }
    gpu_close(g);
}

/* --- the decode step -------------------------------------------------------------------------- */

/* The same batch by plain C from embedding to logits.  Experts are those that the step chose:
 * rounding may decide between two that are almost equal.  How often it did. */
static int plain_step(struct plain *p, const struct gpu *g, const struct batch *b, float *logits)
{
    const struct shape *s = &p->t->s;
    size_t hidden = (size_t)s->hidden, n = (size_t)b->tokens;
    float *x = toy_memory(n * hidden * 4), *h = toy_memory(hidden * 4);
    int others = 0;

    for (size_t t = 0; t < n; t++)
        ref_row(x + t * hidden, &p->t->embed, b->token[t]);
    for (int i = 0; i < s->layers; i++) {
        struct route r;

        plain_attention(p, i, x, b->tokens, b->pos);
        gpu_step_route(g, i, &r);
        for (size_t t = 0; t < n; t++) {
            const uint16_t *chosen = r.expert + t * (size_t)s->topk;
            uint16_t id[MAX_TOPK];
            float weight[MAX_TOPK];

            if (!s->layer[i].dense) {
                plain_route(p, i, x + t * hidden, id, weight);
                others += memcmp(id, chosen, (size_t)s->topk * sizeof(*id)) != 0;
            }
            plain_ffn_half(p, i, x + t * hidden, chosen, r.weight + t * (size_t)s->topk);
        }
    }
    for (size_t t = 0; t < n; t++) {
        ref_norm(h, x + t * hidden, p->t->final_norm, s->hidden, s->norm_eps);
        plain_mul(&p->t->head, h, logits + t * (size_t)s->vocab);
    }
    free(x);
    free(h);
    return others;
}

/* Steps of 1, 3, 16, 1 ... tokens with some experts seated, against plain C; then the first
 * again, bit for bit. */
static void check_steps(const struct toy *t, enum gpu_kv kv, int seated)
{
    static const int sizes[] = { 1, 3, 1, 16, 1, 9 };
    struct gpu_config c = toy_config(t, 64, 16, kv);
    struct gpu *g = open_toy(t, &c, seated);
    size_t vocab = (size_t)t->s.vocab;
    float *got = toy_memory(16 * vocab * 4), *want = toy_memory(16 * vocab * 4);
    float *first = toy_memory(16 * vocab * 4);
    struct plain p;
    struct err e = { "" };
    int pos = 0, rc, changed = 0;

    plain_open(&p, t, kv, 64);
    for (size_t i = 0; i < sizeof(sizes) / sizeof(*sizes); i++)
        must(gpu_capture(g, sizes[i], &e), &e);
    for (size_t i = 0; i < sizeof(sizes) / sizeof(*sizes); i++) {
        int32_t token[16];
        struct batch b = { token, sizes[i], pos };
        struct route r;
        double d;
        int others;

        for (int k = 0; k < 16; k++)
            token[k] = (int)(i * 31 + (size_t)k * 7) % t->s.vocab;
        rc = run_step(t, g, &b, got, &e);
        others = plain_step(&p, g, &b, want);
        d = distance(got, want, (size_t)sizes[i] * vocab);
        gpu_step_route(g, t->s.layers - 1, &r);
        /* A rounding that falls the other way moves an E4M3 key by an eighth. */
        ok(rc >= 0 && d < (kv == GPU_KV_FP8 ? 0.06 : 0.03),
           "step of %d at %d, %s %s, %d experts seated, %d shares: %.2g %s", sizes[i], pos,
           formats[t->format], caches[kv], seated, rc, d, e.text);
        ok(r.tokens == sizes[i] && r.topk == t->s.topk && others <= 1 + sizes[i] / 3,
           "and its routes: %d of %d other than plain C's", others,
           sizes[i] * t->s.sparse_layers);
        if (i == 0)
            memcpy(first, got, vocab * 4);
        pos += sizes[i];
    }
    for (int again = 0; again < 3; again++) {
        int32_t token[1] = { 0 };
        struct batch b = { token, 1, 0 };

        rc = run_step(t, g, &b, got, &e);
        changed += rc < 0 || memcmp(first, got, vocab * 4);
    }
    ok(!changed, "the same step three times: the same bits");
    plain_close(&p);
    gpu_close(g);
}

/* Moving an expert in and out of a slot leaves results as they are. */
static void check_seats(void)
{
    struct toy t;
    struct gpu_config c;
    struct gpu *g;
    int32_t token[1] = { 5 };
    struct batch b = { token, 1, 0 };
    float *a, *z;
    struct err e = { "" };
    int all, fewer, other;

    small_toy(&t, W_INT4);
    c = toy_config(&t, 64, 16, GPU_KV_BF16);
    g = open_toy(&t, &c, 24);
    a = toy_memory(1003 * 4);
    z = toy_memory(1003 * 4);
    must(gpu_capture(g, 1, &e), &e);
    all = run_step(&t, g, &b, a, &e);
    ok(all == 0, "all experts seated: no share for the CPU (%d)", all);
    for (int x = 0; x < 24; x++)
        gpu_seat(g, 2, x, -1);
    fewer = run_step(&t, g, &b, z, &e);
    ok(fewer == 1 && distance(z, a, 1003) < 0.02, "a layer's experts away: one share, %.2g",
       distance(z, a, 1003));
    for (int x = 0; x < 24; x++) {      /* expert x to the slot where 23 - x sat */
        must(gpu_fill_slot(g, 24 + 23 - x, &t.expert[2 * 24 + x], &e), &e);
        gpu_seat(g, 2, x, 24 + 23 - x);
    }
    other = run_step(&t, g, &b, z, &e);
    ok(other == 0 && !memcmp(a, z, 1003 * 4), "and back in other slots: the same bits");
    ok(gpu_seat_of(g, 2, 3) == 24 + 20 && gpu_slot_ready(g, 24), "seats and slots answer");
    gpu_close(g);
}

/* Keys and values that are all zero, as a cleared cache has them: all keys weigh the same, and the
 * answer is a number.  By a step, and by a batch. */
static void check_zeros(enum gpu_kv kv)
{
    struct toy t;
    struct gpu_config c;
    struct gpu *g;
    int32_t token[5] = { 5, 6, 7, 8, 9 };
    struct batch one = { token, 1, 200 }, five = { token, 5, 300 };
    float *x = toy_memory(1003 * 4);
    struct err e = { "" };
    bool finite = true;
    int rc;

    small_toy(&t, W_INT4);
    c = toy_config(&t, 512, 16, kv);
    g = open_toy(&t, &c, 24);
    must(gpu_capture(g, 1, &e), &e);
    rc = run_step(&t, g, &one, x, &e);
    ok(rc >= 0, "%s: a step over zeros: %d %s", caches[kv], rc, e.text);
    gpu_embed(g, &five);
    for (int i = 0; i < t.s.layers; i++)
        gpu_attention(g, i);
    x = toy_memory((size_t)(5 * t.s.hidden) * 4);
    must(gpu_read_hidden(g, x, &e), &e);
    for (int i = 0; i < 5 * t.s.hidden; i++)
        finite &= isfinite(x[i]) != 0;
    ok(finite, "%s: a batch over zeros", caches[kv]);
    gpu_close(g);
}

/* A CPU that never answers: the step ends with an error, and the next one works. */
static void check_watchdog(void)
{
    struct toy t;
    struct gpu_config c;
    struct gpu *g;
    struct gpu_share share;
    int32_t token[1] = { 5 };
    struct batch b = { token, 1, 0 };
    float *a, *z;
    struct err e = { "" };
    int rc;

    small_toy(&t, W_INT4);
    c = toy_config(&t, 64, 16, GPU_KV_BF16);
    c.watchdog_ms = 100;
    g = open_toy(&t, &c, 0);
    a = toy_memory(1003 * 4);
    z = toy_memory(1003 * 4);
    must(gpu_capture(g, 1, &e), &e);
    must(run_step(&t, g, &b, a, &e) < 0, &e);
    must(gpu_step(g, &b, false, &e), &e);
    while ((rc = gpu_next_share(g, &share, &e)) > 0)
        ;
    ok(rc == -ETIMEDOUT, "no answer from the CPU: %d %s", rc, e.text);
    rc = run_step(&t, g, &b, z, &e);
    ok(rc > 0 && !memcmp(a, z, 1003 * 4), "the next step: %d shares, the same bits", rc);
    gpu_close(g);
}

static void check_limits(void)
{
    struct toy t;
    struct gpu_config c;
    struct gpu *g;
    struct err e = { "" };
    struct expert big;

    small_toy(&t, W_INT4);
    c = toy_config(&t, 512, 32, GPU_KV_Q8);
    g = open_toy(&t, &c, 1);
    big = t.expert[0];
    big.ffn = t.layer[0].ffn;
    ok(gpu_fill_slot(g, 0, &big, &e) == -E2BIG, "an expert larger than its slot: %s", e.text);
    ok(gpu_bytes(&c) > c.dense_bytes + (size_t)c.slots * c.slot_bytes, "gpu_bytes counts all");
    gpu_close(g);
}

/* The dimensions of S-2.1: slow in plain C, so only where asked. */
static void check_real(void)
{
    static const int sizes[] = { 530, 1, 4, 0 };
    struct toy t;

    real_toy(&t);
    check_attention(&t, GPU_KV_Q8, 0, sizes, 530);
    check_attention(&t, GPU_KV_Q8, 1, sizes, 530);
    check_steps(&t, GPU_KV_Q8, 8);
}

int main(int argc, char **argv)
{
    struct gpu_facts facts[MAX_GPUS];
    struct toy t;
    struct err e = { "" };
    int n = gpu_list(facts, &e);
    struct gpu_config c;
    struct gpu *g;
    bool full = false;

    for (int i = 1; i < argc; i++) {
        full |= !strcmp(argv[i], "--full");
        only_own |= !strcmp(argv[i], "--own");
    }
    small_toy(&t, W_INT4);
    c = toy_config(&t, 64, 16, GPU_KV_Q8);
    g = open_toy(&t, &c, 0);
    if (!g) {
        printf("1..0 # SKIP no GPU %s\n", e.text);
        return 0;
    }
    on_gpu = n > 0;
    if (on_gpu)
        printf("# %s, %d.%d; many tokens through %s\n", facts[0].name, facts[0].major,
               facts[0].minor, gpu_slow_products(g) ? "own kernels" : "cuBLAS");
    gpu_close(g);
    check_products(true);
    if (on_gpu && !only_own)
        check_products(false);
    check_codes();
    check_attentions();
    for (int f = 0; f < W_FORMATS; f++) {
        small_toy(&t, (enum wformat)f);
        check_ffns(&t, false);
        check_steps(&t, (enum gpu_kv)(f % GPU_KV_TYPES), 12);
        odd_toy(&t, (enum wformat)f, f == W_INT4 ? 96 : 32, f != W_MXFP4);
        check_ffns(&t, true);
        check_steps(&t, GPU_KV_BF16, f == W_BF16 ? 7 : 3);
        check_head(&t);
    }
    check_router_edges();
    check_sampling();
    check_seats();
    if (on_gpu)
        check_watchdog();
    for (int kv = 0; kv < GPU_KV_TYPES; kv++)
        check_zeros((enum gpu_kv)kv);
    check_limits();
    if (on_gpu && full)
        check_real();
    return done();
}
