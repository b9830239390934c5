/* Whole steps of a model on the CPU beside the machine's limits: decode against a plain read
 * loop of the same threads in the same run, prefill, start and memory.  The model is one that
 * mkmodel wrote with Laguna-S-2.1's dimensions; see tests/bench.sh. */
#include "cpu/kernels.h"
#include "src/engine.h"
#include "src/options.h"
#include "tests/bench.h"

#include <math.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>

enum { ROUNDS = 15, STEPS = 4, PREFILL = 512, CONTEXT = 4096 };

static size_t matrix_bytes(const struct matrix *m)
{
    static const int bits[W_FORMATS] = { [W_BF16] = 16, [W_INT8] = 8, [W_INT4] = 4, [W_MXFP4] = 4 };
    size_t n = (size_t)m->rows * (size_t)m->cols * (size_t)bits[m->format] / 8;

    if (m->format != W_BF16)
        n += (size_t)m->rows * (size_t)(m->cols / m->group) * (m->format == W_MXFP4 ? 1 : 2);
    return n;
}

static size_t ffn_bytes(const struct ffn *f)
{
    return matrix_bytes(&f->gate) + matrix_bytes(&f->up) + matrix_bytes(&f->down);
}

/* Bytes of weights that one token must read. */
static size_t token_bytes(const struct model *m)
{
    size_t n = matrix_bytes(&m->head);

    for (int i = 0; i < m->shape.layers; i++) {
        const struct layer_weights *w = &m->layer[i];

        n += matrix_bytes(&w->q) + matrix_bytes(&w->k) + matrix_bytes(&w->v) +
             matrix_bytes(&w->g) + matrix_bytes(&w->o) + ffn_bytes(&w->ffn);
        if (!m->shape.layer[i].dense)
            n += matrix_bytes(&w->router) +
                 (size_t)m->shape.topk * ffn_bytes(&model_expert(m, i, 0)->ffn);
    }
    return n;
}

/* Multiply-adds that one token of a long prompt costs, attention apart. */
static double token_macs(const struct model *m)
{
    double n = 0;

    for (int i = 0; i < m->shape.layers; i++) {
        const struct layer_weights *w = &m->layer[i];
        const struct matrix *all[] = { &w->q, &w->k, &w->v, &w->g, &w->o, &w->ffn.gate, &w->ffn.up,
                                       &w->ffn.down, &w->router };
        const struct ffn *x = m->shape.layer[i].dense ? NULL : &model_expert(m, i, 0)->ffn;

        for (size_t k = 0; k < sizeof(all) / sizeof(all[0]); k++)
            n += (double)all[k]->rows * all[k]->cols;
        if (x)
            n += 3.0 * m->shape.topk * x->gate.rows * x->gate.cols;
    }
    return n;
}

static struct engine *open_model(const char *dir, const char *isa, int threads)
{
    struct options o = { .model_dir = dir, .isa = isa, .kv_type = "q8", .threads = threads,
                         .context = CONTEXT, .ram_bytes = SIZE_AUTO,
                         .ram_experts_bytes = SIZE_AUTO, .io = "auto", .device = "cpu" };
    struct engine *g = NULL;
    struct err e;

    if (engine_open(&g, &o, &e))
        bench_die(&e);
    return g;
}

static void eval(struct session *s, const int32_t *ids, int n, bool steps)
{
    static atomic_int go;
    struct eval v = { .rows = EVAL_NONE, .stepwise = steps, .cancel = &go };
    struct err e;

    if (session_eval(s, ids, n, &v, &e))
        bench_die(&e);
}

/* A decode step ends with the head, so it is part of what is timed. */
static int look(void *arg, const struct position *p)
{
    *(volatile float *)arg = p->logits[0];
    return 0;
}

static double time_steps(struct session *s, const int32_t *ids)
{
    float sink;
    struct eval v = { .rows = EVAL_LAST, .each = look, .arg = &sink };
    double start = clock_now();
    struct err e;

    for (int i = 0; i < STEPS; i++)
        if (session_eval(s, ids + i, 1, &v, &e))
            bench_die(&e);
    return (clock_now() - start) / STEPS;
}

static void bench_threads(struct bench *b, const char *dir, const char *isa, int threads,
                          const int32_t *ids)
{
    struct engine *g = open_model(dir, isa, threads);
    const struct model *m = engine_model(g);
    enum dot dot = bench_has_bf16() ? DOT_BF16 : DOT_INT8;
    size_t bytes = token_bytes(m);
    double read[ROUNDS], ratio[ROUNDS], rate[ROUNDS], fill[3], peak[3], best;
    struct session *s = NULL;
    struct err e;
    char name[96];

    if (session_open(&s, g, &e))
        bench_die(&e);
    eval(s, ids, 64, false);
    for (int r = 0; r < ROUNDS; r++) {
        double seconds;

        engine_begin(g);
        seconds = time_steps(s, ids + 64 + r * STEPS);
        engine_end(g);
        read[r] = bench_read_gbps(b, threads).wall;
        rate[r] = (double)bytes / seconds * 1e-9;
        ratio[r] = rate[r] / read[r];
    }
    best = bench_median(ratio, ROUNDS);
    snprintf(name, sizeof(name), "decode step, %s, %d threads, %.1f tok/s", isa, threads,
             bench_median(rate, ROUNDS) * 1e9 / (double)bytes);
    bench_row(b, name, bench_median(rate, ROUNDS), "GB/s", bench_median(read, ROUNDS), best,
              threads == 1 ? 0.82 : threads == 2 ? 0.90 : 0.80);
    for (int r = 0; r < 3; r++) {
        double start;

        session_rewind(s, 0);
        start = clock_now();
        eval(s, ids, PREFILL, false);
        fill[r] = token_macs(m) * PREFILL / (clock_now() - start) * 2e-9;
        peak[r] = bench_dot_gflops(b, threads, dot).wall;
        ratio[r] = fill[r] / peak[r];
    }
    snprintf(name, sizeof(name), "prefill %d, %s, %d threads, %.0f tok/s", PREFILL, isa, threads,
             bench_median(fill, 3) / token_macs(m) / 2e-9);
    bench_row(b, name, bench_median(fill, 3), "GFLOP/s", bench_median(peak, 3),
              bench_median(ratio, 3), dot == DOT_BF16 ? 0.40 : 0);
    session_close(s);
    engine_close(g);
}

static size_t peak_memory(void)
{
    struct rusage u;

    getrusage(RUSAGE_SELF, &u);
    return (size_t)u.ru_maxrss << 10;
}

/* Start with the page cache warm, and the most memory of a short run.  In a process of its
 * own, before anything else has been measured here. */
static void bench_start(struct bench *b, const char *dir, const int32_t *ids)
{
    double start = clock_now(), seconds, bound;
    struct engine *g = open_model(dir, "auto", 0);
    const struct model *m = engine_model(g);
    double bytes = (double)(m->dense_bytes + m->expert_bytes);
    struct session *s = NULL;
    struct err e;

    seconds = clock_now() - start;
    if (session_open(&s, g, &e))
        bench_die(&e);
    eval(s, ids, PREFILL, false);
    bench_row(b, "memory beyond weights and KV", ((double)peak_memory() - bytes) * 1e-6, "MB", 300,
              ((double)peak_memory() - bytes) * 1e-6 / 300, -1);
    session_close(s);
    engine_close(g);
    bound = 0.5 + bytes * 1e-9 / bench_read_gbps(b, bench_threads_max(b)).wall;
    bench_row(b, "start, everything cached", seconds, "s", bound, seconds / bound, -1);
}

int main(int argc, char **argv)
{
    static int32_t ids[CONTEXT];
    struct bench *b = bench_open(&argc, &argv);
    const char *dir = argc > 1 ? argv[1] : NULL, *isa = argc > 2 ? argv[2] : "auto";

    if (!dir)
        return fputs("usage: bench_step [--json FILE] MODEL [ISA|start [THREADS...]]\n",
                     stderr), 64;
    for (int i = 0; i < CONTEXT; i++)
        ids[i] = 100 + i * 37 % 3900;
    if (!strcmp(isa, "start"))
        bench_start(b, dir, ids);
    else if (argc > 3)
        for (int i = 3; i < argc; i++)
            bench_threads(b, dir, isa, atoi(argv[i]), ids);
    else
        for (int t = 0; (t = bench_threads_after(b, t));)
            bench_threads(b, dir, isa, t, ids);
    bench_close(b);
    return 0;
}
