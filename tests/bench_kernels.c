/* How fast the kernels are beside the limits of this machine: a plain read loop over the
 * same memory, and dot products that never leave the registers.  Every figure is a median
 * of ratios of samples taken right after each other, in time on the processor, so that a
 * busy machine slows both alike.
 *
 * bench_kernels [--json FILE] [--rounds N] [--isa NAME].  Not part of `make check`: `make
 * bench` runs it and prints which bars are met. */
#include "config.h"

#include "cpu/kernels.h"
#include "tests/bench.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

enum { HIDDEN = 3072, INNER = 1024, PICKS = 6, TOKENS = 512, ROUNDS_MAX = 200 };

/* What is timed: a kernel on some experts, or the reading of the same bytes. */
struct work {
    const struct cpu_kernels *k;        /* NULL: read the bytes and do nothing */
    enum wformat format;
    int tokens, threads;
    bool zero;                          /* with zero points, int4 */
};

struct kernels {
    struct bench *bench;
    const uint8_t *memory;              /* [BENCH_MEMORY], taken as experts of any format */
    int rounds;
    uint32_t rng;
    float *x;                           /* [TOKENS][HIDDEN] */
    uint8_t *packed[2];                 /* HIDDEN and INNER columns */
    float *y;                           /* [TOKENS][HIDDEN] */
    struct work work;
    int pick[PICKS];
};

static const char *const format_name[W_FORMATS] = { "bf16", "int8", "int4", "mxfp4" };

static size_t expert_bytes(const struct work *w)
{
    static const int bits[W_FORMATS] = { 256 * 2, 8 * 32 + 16, 4 * 32 + 16, 4 * 32 + 8 };

    return (size_t)3 * HIDDEN * INNER / 32 * (size_t)(bits[w->format] + (w->zero ? 4 : 0)) / 8;
}

/* Matrix 0 gate, 1 up, 2 down of an expert; the three weights lie before the scales, those
 * before the zero points. */
static struct matrix expert_matrix(const uint8_t *expert, const struct work *w, int which)
{
    static const int bits[W_FORMATS] = { 16, 8, 4, 4 };
    enum wformat f = w->format;
    size_t weights = (size_t)HIDDEN * INNER * (size_t)bits[f] / 8;
    size_t scales = f == W_BF16 ? 0 : (size_t)HIDDEN * INNER / 32 * (f == W_MXFP4 ? 1 : 2);
    struct matrix m = { f, which < 2 ? INNER : HIDDEN, which < 2 ? HIDDEN : INNER,
                        f == W_BF16 ? 0 : 32, expert + (size_t)which * weights, NULL, NULL };

    if (scales)
        m.scale = expert + 3 * weights + (size_t)which * scales;
    if (w->zero)
        m.zero = expert + 3 * (weights + scales) + (size_t)which * (scales / 4);
    return m;
}

static void run_expert(const struct kernels *b, const uint8_t *expert, int worker, int workers)
{
    const struct work *w = &b->work;
    size_t from, to;

    if (!w->k) {
        pool_share(expert_bytes(w), 4096, worker, workers, &from, &to);
        bench_read(expert + from, to - from);
        return;
    }
    for (int i = 0; i < 3; i++) {
        struct matrix m = expert_matrix(expert, w, i);
        size_t stride = w->k->pack_bytes[w->k->act[w->format]](m.cols);

        pool_share((size_t)m.rows, 16, worker, workers, &from, &to);
        w->k->mul[w->format](b->y, HIDDEN, &m, b->packed[i == 2], stride, w->tokens, (int)from,
                             (int)to);
    }
}

static void run_share(void *arg, int worker, int workers)
{
    const struct kernels *b = arg;

    for (int i = 0; i < PICKS; i++)
        run_expert(b, b->memory + (size_t)b->pick[i] * expert_bytes(&b->work), worker, workers);
}

/* Seconds for PICKS experts that were not used lately. */
static double sample(struct kernels *b, struct work w)
{
    for (int i = 0; i < PICKS; i++) {
        b->rng = b->rng * 1664525 + 1013904223;
        b->pick[i] = (int)((b->rng >> 8) % (BENCH_MEMORY / expert_bytes(&w)));
    }
    b->work = w;
    return bench_run(b->bench, w.threads, run_share, b).used;
}

static void pack_all(struct kernels *b, const struct cpu_kernels *k, enum act act)
{
    for (int which = 0; which < 2; which++) {
        int cols = which ? INNER : HIDDEN;

        for (int t = 0; t < TOKENS; t++)
            k->pack[act](b->packed[which] + (size_t)t * k->pack_bytes[act](cols),
                         b->x + (size_t)t * HIDDEN, cols);
    }
}

static double peak(struct kernels *b, enum dot dot)
{
    return bench_dot_gflops(b->bench, 1, dot).used;
}

/* Medians of a value, of its limit right before and after, and of the ratio of the two. */
struct pairs {
    double value, limit, ratio;
    int n;
    double values[ROUNDS_MAX], limits[ROUNDS_MAX], ratios[ROUNDS_MAX];
};

static void pairs_add(struct pairs *p, double value, double before, double after)
{
    p->values[p->n] = value;
    p->limits[p->n] = (before + after) / 2;
    p->ratios[p->n] = value / p->limits[p->n];
    p->n++;
}

static void pairs_settle(struct pairs *p)
{
    p->value = bench_median(p->values, p->n);
    p->limit = bench_median(p->limits, p->n);
    p->ratio = bench_median(p->ratios, p->n);
}

static void pairs_row(struct kernels *b, const char *name, const char *unit,
                      const struct pairs *p, double bar)
{
    bench_row(b->bench, name, p->value, unit, p->limit, p->ratio, bar);
}

/* `work` against another kind of work over the same bytes, in GB/s. */
static void sample_pair(struct kernels *b, struct pairs *p, struct work work, struct work limit)
{
    double bytes = (double)expert_bytes(&work) * PICKS * 1e-9;
    double before = sample(b, limit), t = sample(b, work), after = sample(b, limit);

    pairs_add(p, bytes / t, bytes / before, bytes / after);
}

static double work_gflop(const struct work *w)
{
    return 6.0 * HIDDEN * INNER * PICKS * w->tokens * 1e-9;
}

/* One token against the read loop. */
static void bench_one(struct kernels *b, struct work one, double bar)
{
    struct work read = { NULL, one.format, 0, one.threads, one.zero };
    struct pairs p = { 0 };
    char name[64];

    for (int i = 0; i < b->rounds; i++)
        sample_pair(b, &p, one, read);
    pairs_settle(&p);
    snprintf(name, sizeof(name), "%s %s%s, 1 token, %d thread%s", one.k->name,
             format_name[one.format], one.zero ? " zero points" : "", one.threads,
             one.threads > 1 ? "s" : "");
    pairs_row(b, name, "GB/s", &p, bar);
}

/* Some tokens against the dot product's rate. */
static void sample_dots(struct kernels *b, struct pairs *p, struct work w, enum dot dot, int rounds)
{
    for (int i = 0; i < rounds; i++) {
        double before = peak(b, dot), t = sample(b, w);

        pairs_add(p, work_gflop(&w) / t, before, peak(b, dot));
    }
    pairs_settle(p);
}

static void bench_many(struct kernels *b, struct work many, enum dot dot, double bar)
{
    struct pairs p = { 0 };
    char name[64];

    sample_dots(b, &p, many, dot, many.tokens > 100 ? (b->rounds + 3) / 4 : b->rounds);
    snprintf(name, sizeof(name), "%s %s, %d tokens", many.k->name, format_name[many.format],
             many.tokens);
    pairs_row(b, name, "GFLOP/s", &p, bar);
}

/* A few tokens: as many bytes a second as one, or so much of the dot product's rate.  The row
 * has the limit that is nearer to its bar. */
static void bench_few(struct kernels *b, struct work few, enum dot dot, double bar)
{
    struct work one = { few.k, few.format, 1, few.threads, few.zero };
    struct pairs bytes = { 0 }, dots = { 0 };
    double dot_bar = 0.45;
    char name[64];

    for (int i = 0; i < b->rounds; i++)
        sample_pair(b, &bytes, few, one);
    pairs_settle(&bytes);
    sample_dots(b, &dots, few, dot, b->rounds);
    snprintf(name, sizeof(name), "%s %s, %d tokens", few.k->name, format_name[few.format],
             few.tokens);
    if (bytes.ratio / bar >= dots.ratio / dot_bar)
        pairs_row(b, name, "GB/s", &bytes, bar);
    else
        pairs_row(b, name, "GFLOP/s", &dots, dot_bar);
}

/* The bars are the project's; a format or count without one is shown all the same. */
static void bench_isa(struct kernels *b, enum cpu_isa isa)
{
    const struct cpu_kernels *k = cpu_kernels(isa);
    bool avx2 = isa == CPU_AVX2;
    enum dot dot = !avx2 && bench_has_bf16() ? DOT_BF16 : DOT_INT8;
    bool barred = dot == DOT_BF16 && isa != CPU_AVX512;

    for (enum wformat f = 0; f < W_FORMATS; f++) {
        double one = f == W_INT4 ? (avx2 ? 0.84 : 0.87) : f == W_MXFP4 ? (avx2 ? 0.74 : 0.87) : 0;

        pack_all(b, k, k->act[f]);
        for (int t = 0; (t = bench_threads_after(b->bench, t));)
            bench_one(b, (struct work){ k, f, 1, t, false },
                      !one || t > 2 ? 0 : t == 2 ? 0.95 : one);
        if (f == W_INT4)
            bench_one(b, (struct work){ k, f, 1, 1, true }, 0);
        if (f == W_INT4 || f == W_MXFP4) {
            bench_few(b, (struct work){ k, f, 2, 1, false }, dot, 0.90);
            bench_few(b, (struct work){ k, f, 4, 1, false }, dot, 0.75);
        }
        bench_many(b, (struct work){ k, f, 20, 1, false }, dot, barred && f == W_INT4 ? 0.45 : 0);
        bench_many(b, (struct work){ k, f, TOKENS, 1, false }, dot,
                   barred && f == W_INT4 ? 0.60 : 0);
    }
}

static void kernels_open(struct kernels *b)
{
    b->memory = bench_memory(b->bench);
    b->x = malloc((size_t)TOKENS * HIDDEN * sizeof(float));
    b->y = malloc((size_t)TOKENS * HIDDEN * sizeof(float));
    for (int i = 0; i < 2; i++)
        b->packed[i] = aligned_alloc(ACT_ALIGN, (size_t)TOKENS * HIDDEN * 2 * sizeof(float));
    if (!b->x || !b->y || !b->packed[0] || !b->packed[1])
        exit((perror("bench_kernels"), 1));
    for (size_t i = 0; i < (size_t)TOKENS * HIDDEN; i++)
        b->x[i] = (float)(int32_t)(b->rng = b->rng * 1664525 + 1013904223) * 0x1p-31f;
}

static void kernels_close(struct kernels *b)
{
    free(b->x);
    free(b->y);
    free(b->packed[0]);
    free(b->packed[1]);
}

static bool wanted(const char *only, enum cpu_isa isa)
{
    return cpu_kernels(isa) && (!only || !strcmp(only, cpu_kernels(isa)->name));
}

int main(int argc, char **argv)
{
    struct kernels b = { .rounds = 21, .rng = (uint32_t)getpid() };
    const char *only = NULL;

    b.bench = bench_open(&argc, &argv);
    for (int i = 1; i < argc; i += 2) {
        if (i + 1 < argc && !strcmp(argv[i], "--rounds"))
            b.rounds = atoi(argv[i + 1]);
        else if (i + 1 < argc && !strcmp(argv[i], "--isa"))
            only = argv[i + 1];
        else
            b.rounds = 0;
    }
    if (b.rounds < 1 || b.rounds > ROUNDS_MAX)
        return fprintf(stderr, "usage: bench_kernels [--json FILE] [--rounds 1-%d] [--isa NAME]\n",
                       ROUNDS_MAX), 64;
    kernels_open(&b);
    for (enum cpu_isa isa = CPU_AVX2; isa < CPU_ISA_COUNT; isa++)
        if (wanted(only, isa))
            bench_isa(&b, isa);
    kernels_close(&b);
    bench_close(b.bench);
    return 0;
}
