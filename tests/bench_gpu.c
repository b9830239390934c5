/* Kernels and decode steps of the real model's dimensions on one GPU: microseconds, the bytes
 * that must move, and the share of the card's own copy rate.  Weights are random and experts
 * share bytes on the host; on the device each has its own.
 *
 * usage: bench_gpu [--json FILE] [int4 | mxfp4] [context] [kernels | step | prefill]
 * FILE gets a row as of tests/bench.h a line. */
#include "tests/bench.h"
#include "tests/gpu_model.h"

enum { LAYERS = 8, EXPERTS = 256, BATCH = 8192 };

static double copy_rate;                /* bytes a second, measured first */
static double blas_rate;                /* TFLOP/s of a large product, or 0 */
static struct bench *bench;             /* of the rows */

static void must(int rc, const struct err *e)
{
    if (!rc)
        return;
    printf("failed: %s\n", e->text);
    exit(1);
}

static void s21_toy(struct toy *t, enum wformat f)
{
    struct shape *s = &t->s;

    *t = (struct toy){ .format = f, .group = 32, .seed = 99 };
    s->norm_eps = 1e-6f;
    s->route_scale = 2.5f;
    s->norm_topk = true;
    s->layers = LAYERS;
    s->hidden = 3072;
    s->head_dim = 128;
    s->kv_heads = 8;
    s->max_heads = 72;
    s->window = 512;
    s->vocab = 100352;
    s->experts = EXPERTS;
    s->topk = 10;
    s->expert_inner = s->shared_inner = 1024;
    s->dense_inner = 12288;
    s->rope_full = toy_rope(64, 500000, 1.485f);
    s->rope_window = toy_rope(128, 10000, 1);
    for (int i = 0; i < LAYERS; i++) {
        int heads = i % 4 ? 72 : 48;

        s->layer[i] = (struct layer_shape){ i % 4 == 0, false, heads, heads };
    }
    s->sparse_layers = LAYERS;
    toy_make(t, 3);
}

static double time_one(struct gpu *g, const char *name, struct gpu_timing t)
{
    bool deep = t.what == GPU_TIME_CACHE && t.tokens == 1 && t.pos == 131071;
    double rate;
    struct err e;

    must(gpu_time(g, &t, &e), &e);
    rate = t.bytes / t.microseconds * 1e6;
    if (t.what == GPU_TIME_COPY)
        copy_rate = rate;
    printf("%-44s %9.2f us %10.3f MB %8.1f GB/s  %.2f of copy\n", name, t.microseconds,
           t.bytes * 1e-6, rate * 1e-9, rate / copy_rate);
    fflush(stdout);
    bench_keep(bench, name, rate * 1e-9, "GB/s", copy_rate * 1e-9, rate / copy_rate,
               deep ? 0.70 : 0);
    return t.microseconds;
}

static void time_kernels(struct gpu *g, int context)
{
    static const int pos[] = { 1023, 8191, 32767, 131071 };
    char name[64];

    time_one(g, "device copy, 512 MB", (struct gpu_timing){ GPU_TIME_COPY, 0, 1, 0, 20, 0, 0 });
    for (int n = 1; n <= 16; n *= 4) {
        snprintf(name, sizeof(name), "attention stage, full, 1k, %d tokens", n);
        time_one(g, name, (struct gpu_timing){ GPU_TIME_ATTENTION, 0, n, 1000, 40, 0, 0 });
        snprintf(name, sizeof(name), "attention stage, window, 1k, %d tokens", n);
        time_one(g, name, (struct gpu_timing){ GPU_TIME_ATTENTION, 1, n, 1000, 60, 0, 0 });
        snprintf(name, sizeof(name), "router, %d tokens", n);
        time_one(g, name, (struct gpu_timing){ GPU_TIME_ROUTER, 1, n, 1000, 60, 0, 0 });
        snprintf(name, sizeof(name), "router and experts, %d tokens", n);
        time_one(g, name, (struct gpu_timing){ GPU_TIME_EXPERTS, 1, n, 1000, 60, 0, 0 });
        snprintf(name, sizeof(name), "add and norm, %d tokens", n);
        time_one(g, name, (struct gpu_timing){ GPU_TIME_NORM, 1, n, 1000, 60, 0, 0 });
        snprintf(name, sizeof(name), "head, %d tokens", n);
        time_one(g, name, (struct gpu_timing){ GPU_TIME_HEAD, 1, n, 1000, 20, 0, 0 });
    }
    time_one(g, "keys and values, window", (struct gpu_timing){ GPU_TIME_CACHE, 1, 1, 1000, 60, 0,
                                                               0 });
    for (size_t i = 0; i < sizeof(pos) / sizeof(*pos); i++) {
        if (pos[i] >= context)
            continue;
        snprintf(name, sizeof(name), "keys and values, full, %d", pos[i] + 1);
        time_one(g, name, (struct gpu_timing){ GPU_TIME_CACHE, 0, 1, pos[i], 20, 0, 0 });
    }
}

/* Attention of a batch of n tokens from position 0 on, without its products. */
static void time_batch(struct gpu *g, const struct shape *s, int layer, int n)
{
    struct gpu_timing t = { GPU_TIME_CACHE, layer, n, 0, 4, 0, 0 };
    bool full = s->layer[layer].full;
    double keys = 0;
    struct err e;

    for (int i = 0; i < n; i++)
        keys += full || i < s->window ? i + 1 : s->window;
    must(gpu_time(g, &t, &e), &e);
    printf("attention of a batch, %-6s %5d tokens        %9.2f us %10.2f TFLOP/s\n",
           full ? "full," : "window,", n, t.microseconds,
           keys * s->layer[layer].heads * s->head_dim * 4 / t.microseconds * 1e-6);
    fflush(stdout);
}

/* Steps by the host's clock too, with the CPU answering at once for experts that are away. */
static void time_hand_over(struct gpu *g, int away, bool offers)
{
    int32_t token[1] = { 1 };
    struct batch b = { token, 1, 1000 };
    struct gpu_share share;
    struct err e;
    double best = 1e9;
    int rc, shares = 0;

    for (int i = 0; i < LAYERS; i++)
        for (int x = 0; x < EXPERTS; x++)
            gpu_seat(g, i, x, x < away ? -1 : i * EXPERTS + x);
    must(gpu_capture(g, 1, &e), &e);
    for (int i = 0; i < 30; i++) {
        double start = clock_now();

        shares = 0;
        must(gpu_step(g, &b, offers, &e), &e);
        while ((rc = gpu_next_share(g, &share, &e)) > 0) {
            memset(share.partial, 0, 3072 * sizeof(float));
            gpu_answer(g);
            shares++;
        }
        must(rc, &e);
        start = clock_now() - start;
        best = start < best ? start : best;
    }
    printf("step, host's clock, %3d experts a layer away, %d shares%s: %9.2f us, %.2f a layer\n",
           away, shares, offers ? ", no offer made" : "", best * 1e6, best * 1e6 / LAYERS);
}

/* Multiply-adds of a layer's parts for n tokens, twice. */
static double part_flops(const struct toy *t, enum gpu_timed what, int n)
{
    const struct shape *s = &t->s;
    const struct layer_weights *w = &t->layer[1];
    double rows = w->q.rows + w->k.rows + w->v.rows + w->g.rows + w->o.cols;

    if (what == GPU_TIME_BATCH_ATTENTION)
        return 2.0 * n * rows * s->hidden;
    if (what == GPU_TIME_BATCH_SHARED)
        return 6.0 * n * s->shared_inner * s->hidden;
    return what == GPU_TIME_BATCH_EXPERTS ? 6.0 * n * s->topk * s->expert_inner * s->hidden : 0;
}

static double time_part(struct gpu *g, enum gpu_timed what, int layer, int n)
{
    struct gpu_timing t = { what, layer, n, 0, 5, 0, 0 };
    struct err e;

    must(gpu_time(g, &t, &e), &e);
    return t.microseconds;
}

static void print_part(const struct toy *t, const char *name, enum gpu_timed what, int n,
                       double us)
{
    double tera = part_flops(t, what, n) / us * 1e-6;

    printf("  %-40s %10.1f us", name, us);
    if (tera > 0)
        printf(" %8.1f TFLOP/s", tera);
    if (tera > 0 && blas_rate > 0)
        printf("  %.2f of a large product of cuBLAS", tera / blas_rate);
    printf("\n");
    fflush(stdout);
}

/* Where a layer's time goes, by the device's clock: a window layer with the routes that the last
 * layer of time_prefill() left behind.  Products are attention less what it does between them. */
static void time_parts(struct gpu *g, const struct toy *t, int n)
{
    int layer = LAYERS - 1;
    double attention = time_part(g, GPU_TIME_BATCH_ATTENTION, layer, n);
    double attend = time_part(g, GPU_TIME_BATCH_ATTEND, layer, n);

    print_part(t, "attention, without products", GPU_TIME_BATCH_ATTEND, n, attend);
    print_part(t, "attention, full layer", GPU_TIME_BATCH_ATTEND, n,
               time_part(g, GPU_TIME_BATCH_ATTEND, 0, n));
    print_part(t, "q k v g and o", GPU_TIME_BATCH_ATTENTION, n, attention - attend);
    print_part(t, "norm and router", GPU_TIME_BATCH_ROUTER, n,
               time_part(g, GPU_TIME_BATCH_ROUTER, layer, n));
    print_part(t, "shared expert", GPU_TIME_BATCH_SHARED, n,
               time_part(g, GPU_TIME_BATCH_SHARED, layer, n));
    print_part(t, "routed experts", GPU_TIME_BATCH_EXPERTS, n,
               time_part(g, GPU_TIME_BATCH_EXPERTS, layer, n));
}

static void time_blas(struct gpu *g)
{
    enum { EDGE = 8192 };
    struct gpu_timing t = { GPU_TIME_BLAS, 0, EDGE, 0, 20, 0, 0 };
    struct err e;

    if (gpu_time(g, &t, &e)) {
        printf("no product of cuBLAS to compare with: %s\n", e.text);
        return;
    }
    blas_rate = 2.0 * EDGE * EDGE * EDGE / t.microseconds * 1e-6;
    printf("cuBLAS, BF16, %d x %d x %d: %.0f us, %.1f TFLOP/s\n", EDGE, EDGE, EDGE,
           t.microseconds, blas_rate);
}

static void time_prefill(struct gpu *g, const struct toy *t, int n)
{
    int32_t *token = toy_memory((size_t)n * sizeof(*token));
    struct batch b = { token, n, 0 };
    uint16_t id[EXPERTS];
    struct route r;
    struct err e;
    double start = 0;

    for (int x = 0; x < EXPERTS; x++)
        id[x] = (uint16_t)x;
    for (int i = 0; i < n; i++)
        token[i] = i * 97 % t->s.vocab;
    for (int run = 0; run < 2; run++) {
        start = clock_now();
        gpu_embed(g, &b);
        for (int i = 0; i < LAYERS; i++) {
            gpu_attention(g, i);
            must(gpu_route(g, i, &r, &e), &e);
            gpu_experts(g, id, EXPERTS);
            gpu_combine(g);
        }
        must(gpu_wait(g, &e), &e);
    }
    start = clock_now() - start;
    printf("prefill of %d tokens, %d layers: %.1f ms, %.0f us a layer, %.0f tok/s at 48 layers\n",
           n, LAYERS, start * 1e3, start * 1e6 / LAYERS, n / start * LAYERS / 48);
    fflush(stdout);
    time_parts(g, t, n);
    free(token);
}

static void time_steps(struct gpu *g)
{
    struct gpu_timing step = { GPU_TIME_STEP, 0, 1, 1000, 50, 0, 0 };
    struct gpu_timing head = { GPU_TIME_HEAD, 1, 1, 0, 20, 0, 0 };
    double us;

    time_one(g, "device copy, 512 MB", (struct gpu_timing){ GPU_TIME_COPY, 0, 1, 0, 20, 0, 0 });
    us = time_one(g, "step of 1 token at 1k, 8 layers and head", step);
    us -= time_one(g, "head", head);
    printf("  that is %.2f us a layer, head apart\n", us / LAYERS);
    bench_keep(bench, "a layer of a step at 1k, head apart", us / LAYERS, "us", 90,
               us / LAYERS / 90, -1);
    step.tokens = 4;
    time_one(g, "step of 4 tokens at 1k", step);
    time_hand_over(g, 0, false);
    time_hand_over(g, 128, false);
    time_hand_over(g, 256, false);
    time_hand_over(g, 256, true);
    time_hand_over(g, 0, true);
    time_hand_over(g, 0, false);
}

int main(int argc, char **argv)
{
    enum wformat f;
    int context;
    const char *only;
    struct toy t;
    struct gpu_config c;
    struct gpu *g;

    bench = bench_open(&argc, &argv);
    f = argc > 1 && !strcmp(argv[1], "mxfp4") ? W_MXFP4 : W_INT4;
    context = argc > 2 && atoi(argv[2]) > 8192 ? atoi(argv[2]) : 131072;
    only = argc > 3 ? argv[3] : NULL;
    s21_toy(&t, f);
    c = toy_config(&t, context, context < BATCH ? context : BATCH, GPU_KV_Q8);
    printf("%.2f GB of VRAM\n", (double)gpu_bytes(&c) * 1e-9);
    g = toy_gpu(&t, &c, EXPERTS);
    if (!g) {
        printf("no GPU\n");
        return 1;
    }
    printf("many tokens through %s\n", gpu_slow_products(g) ? "own kernels" : "cuBLAS");
    if (!only || !strcmp(only, "kernels"))
        time_kernels(g, context);
    if (!only || !strcmp(only, "step"))
        time_steps(g);
    if (!only || !strcmp(only, "prefill")) {
        time_blas(g);
        time_prefill(g, &t, 512);
        time_prefill(g, &t, 2048);
        time_prefill(g, &t, 8192);
    }
    /* Last, since it leaves in the cache what no batch would write. */
    for (int layer = 0; layer < 2 && (!only || !strcmp(only, "kernels")); layer++)
        for (int n = 512; n <= c.batch; n *= 16)
            time_batch(g, &t.s, layer, n);
    gpu_close(g);
    bench_close(bench);
    return 0;
}
