/* How fast the kernels are beside the limits of this machine: a plain read loop over the
 * same memory, and dot products that never leave the registers.  Every figure is a median
 * of ratios of samples taken right after each other, in time on the processor, so that a
 * busy machine slows both alike.
 *
 * bench_kernels [--json FILE] [--mb N] [--rounds N] [--isa NAME].  Not part of `make
 * check`: `make bench` runs it and prints which bars are met. */
#include "config.h"

#include "cpu/kernels.h"

#include <immintrin.h>
#include <math.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

enum { HIDDEN = 3072, INNER = 1024, PICKS = 6, TOKENS = 512, THREADS = 2, ROUNDS_MAX = 200 };

struct work {
    const struct cpu_kernels *k;        /* NULL: read the bytes and do nothing */
    enum wformat format;
    int tokens;
};

struct bench {
    uint8_t *memory;
    size_t bytes;
    int rounds, threads;
    FILE *json;
    int rows;                           /* of the JSON array */
    uint32_t rng;
    float *x;                           /* [TOKENS][HIDDEN] */
    uint8_t *packed[2];                 /* HIDDEN and INNER columns */
    float *y;                           /* [TOKENS][HIDDEN] */
    struct work work;
    int pick[PICKS];
    pthread_barrier_t start, end;
    double seconds[THREADS];            /* on the processor, of the last sample */
    bool stop;
};

/* This thread's time on the processor. */
static double clock_used(void)
{
    struct timespec t;

    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static size_t expert_bytes(enum wformat f)
{
    static const int bits[W_FORMATS] = { 256 * 2, 8 * 32 + 16, 4 * 32 + 16, 4 * 32 + 8 };

    return (size_t)3 * HIDDEN * INNER / 32 * (size_t)bits[f] / 8;
}

/* Matrix 0 gate, 1 up, 2 down of an expert; the three weights lie before the scales. */
static struct matrix expert_matrix(const uint8_t *expert, enum wformat f, int which)
{
    static const int bits[W_FORMATS] = { 16, 8, 4, 4 };
    size_t weights = (size_t)HIDDEN * INNER * (size_t)bits[f] / 8;
    size_t scales = f == W_BF16 ? 0 : (size_t)HIDDEN * INNER / 32 * (f == W_MXFP4 ? 1 : 2);
    struct matrix m = { f, which < 2 ? INNER : HIDDEN, which < 2 ? HIDDEN : INNER,
                        f == W_BF16 ? 0 : 32, expert + (size_t)which * weights, NULL, NULL };

    if (scales)
        m.scale = expert + 3 * weights + (size_t)which * scales;
    return m;
}

__attribute__((target("avx2"))) static void read_bytes(const uint8_t *p, size_t n)
{
    __m256i s[4] = { _mm256_setzero_si256() };

    for (size_t i = 0; i + 128 <= n; i += 128)
        for (int j = 0; j < 4; j++) {
            const __m256i *at = (const __m256i *)(const void *)(p + i + 32 * j);

            s[j] = _mm256_xor_si256(s[j], _mm256_loadu_si256(at));
        }
    s[0] = _mm256_xor_si256(_mm256_xor_si256(s[0], s[1]), _mm256_xor_si256(s[2], s[3]));
    __asm__ volatile("" : : "x"(s[0]));
}

static size_t share(size_t n, int worker, int workers)
{
    return n / 16 * (size_t)worker / (size_t)workers * 16;
}

static void run_expert(struct bench *b, const uint8_t *expert, int worker)
{
    const struct work *w = &b->work;
    size_t bytes = expert_bytes(w->format), from, to;

    if (!w->k) {
        from = share(bytes, worker, b->threads);
        read_bytes(expert + from, share(bytes, worker + 1, b->threads) - from);
        return;
    }
    for (int i = 0; i < 3; i++) {
        struct matrix m = expert_matrix(expert, w->format, i);
        size_t stride = w->k->pack_bytes[w->k->act[w->format]](m.cols);

        from = share((size_t)m.rows, worker, b->threads);
        to = share((size_t)m.rows, worker + 1, b->threads);
        w->k->mul[w->format](b->y, HIDDEN, &m, b->packed[i == 2], stride, w->tokens, (int)from,
                             (int)to);
    }
}

static void run_share(struct bench *b, int worker)
{
    double start = clock_used();

    for (int i = 0; i < PICKS; i++)
        run_expert(b, b->memory + (size_t)b->pick[i] * expert_bytes(b->work.format), worker);
    b->seconds[worker] = clock_used() - start;
}

static void pin(int core)
{
    cpu_set_t set;

    CPU_ZERO(&set);
    CPU_SET(core, &set);
    sched_setaffinity(0, sizeof(set), &set);
    _mm_setcsr(_mm_getcsr() | 0x8040);  /* as the pool's workers do */
}

static void *second(void *arg)
{
    struct bench *b = arg;

    pin(1);
    for (;;) {
        pthread_barrier_wait(&b->start);
        if (b->stop)
            return NULL;
        if (b->threads > 1)
            run_share(b, 1);
        pthread_barrier_wait(&b->end);
    }
}

/* Seconds for PICKS experts that were not used lately. */
static double sample(struct bench *b, struct work w)
{
    for (int i = 0; i < PICKS; i++) {
        b->rng = b->rng * 1664525 + 1013904223;
        b->pick[i] = (int)((b->rng >> 8) % (b->bytes / expert_bytes(w.format)));
    }
    b->work = w;
    b->seconds[1] = 0;
    pthread_barrier_wait(&b->start);
    run_share(b, 0);
    pthread_barrier_wait(&b->end);
    return fmax(b->seconds[0], b->seconds[1]);
}

static int ascending(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

static double median(double *v, int n)
{
    qsort(v, (size_t)n, sizeof(*v), ascending);
    return v[n / 2];
}

static void pack_all(struct bench *b, const struct cpu_kernels *k, enum act act)
{
    for (int which = 0; which < 2; which++) {
        int cols = which ? INNER : HIDDEN;

        for (int t = 0; t < TOKENS; t++)
            k->pack[act](b->packed[which] + (size_t)t * k->pack_bytes[act](cols),
                         b->x + (size_t)t * HIDDEN, cols);
    }
}

/* bar 0: a figure without one. */
static void report(struct bench *b, const char *name, double value, const char *unit,
                   double limit, double ratio, double bar, bool met)
{
    printf("%-44s %8.1f %-7s %8.1f  %.2f", name, value, unit, limit, ratio);
    if (bar > 0)
        printf("  bar %.2f %s", bar, met ? "met" : "MISSED");
    printf("\n");
    fflush(stdout);
    if (b->json)
        fprintf(b->json,
                "%s\n{\"name\":\"%s\",\"value\":%.3f,\"unit\":\"%s\",\"limit\":%.3f,"
                "\"ratio\":%.4f,\"bar\":%.2f,\"ok\":%s}",
                b->rows++ ? "," : "[", name, value, unit, limit, ratio, bar,
                bar <= 0 || met ? "true" : "false");
}

/* What a register-only loop of each dot product does a second, in GFLOP. */
enum peak { PEAK_F32, PEAK_INT8, PEAK_BF16, PEAKS };

/* One instruction on twelve registers, which covers its latency. */
#define TWELVE(op, r)                                                                     \
    __asm__ volatile(op r "0," r "1," r "2\n\t" op r "0," r "1," r "3\n\t"                \
                     op r "0," r "1," r "4\n\t" op r "0," r "1," r "5\n\t"                \
                     op r "0," r "1," r "6\n\t" op r "0," r "1," r "7\n\t"                \
                     op r "0," r "1," r "8\n\t" op r "0," r "1," r "9\n\t"                \
                     op r "0," r "1," r "10\n\t" op r "0," r "1," r "11\n\t"              \
                     op r "0," r "1," r "12\n\t" op r "0," r "1," r "13"                   \
                     : : : "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8", "xmm9", \
                           "xmm10", "xmm11", "xmm12", "xmm13")

static double flops(enum peak p, int n)
{
    static const double each[PEAKS] = { [PEAK_F32] = 16, [PEAK_INT8] = 64, [PEAK_BF16] = 64 };

    __asm__ volatile("vzeroall" : : : "xmm0", "xmm1");
    for (int i = 0; i < n && p == PEAK_F32; i++)
        TWELVE("vfmadd231ps ", "%%ymm");
    for (int i = 0; i < n && p == PEAK_INT8; i++)
        TWELVE("vpmaddubsw ", "%%ymm");
    for (int i = 0; i < n && p == PEAK_BF16; i++)
        TWELVE("vdpbf16ps ", "%%zmm");
    return 12 * each[p] * n;
}

static double peak_rate(enum peak p)
{
    enum { N = 100000 };
    double start = clock_used(), flop = flops(p, N);

    return flop / (clock_used() - start) * 1e-9;
}

/* One token against the read loop. */
static void bench_read(struct bench *b, const struct cpu_kernels *k, enum wformat f, double bar)
{
    struct work mul = { k, f, 1 }, read = { NULL, f, 0 };
    static const char *const names[W_FORMATS] = { "bf16", "int8", "int4", "mxfp4" };
    double bytes = (double)expert_bytes(f) * PICKS * 1e-9;
    double rate[ROUNDS_MAX], limit[ROUNDS_MAX], ratio[ROUNDS_MAX], r;
    char name[64];

    for (int i = 0; i < b->rounds; i++) {
        double before = sample(b, read), t = sample(b, mul), after = sample(b, read);

        rate[i] = bytes / t;
        limit[i] = 2 * bytes / (before + after);
        ratio[i] = rate[i] / limit[i];
    }
    snprintf(name, sizeof(name), "%s %s, 1 token, %d thread%s", k->name, names[f], b->threads,
             b->threads > 1 ? "s" : "");
    r = median(ratio, b->rounds);
    report(b, name, median(rate, b->rounds), "GB/s", median(limit, b->rounds), r, bar, r >= bar);
}

/* A few tokens against one: the same bytes a second, or the dot product's rate. */
static void bench_few(struct bench *b, const struct cpu_kernels *k, enum wformat f, int n,
                      enum peak p, double bar)
{
    struct work one = { k, f, 1 }, few = { k, f, n };
    double bytes = (double)expert_bytes(f) * PICKS * 1e-9;
    double flop = 6.0 * HIDDEN * INNER * PICKS * n * 1e-9;
    double rate[ROUNDS_MAX], limit[ROUNDS_MAX], ratio[ROUNDS_MAX], dot[ROUNDS_MAX], r, d;
    char name[64];

    for (int i = 0; i < b->rounds; i++) {
        double before = sample(b, one), t = sample(b, few), after = sample(b, one);

        rate[i] = bytes / t;
        limit[i] = 2 * bytes / (before + after);
        ratio[i] = rate[i] / limit[i];
        dot[i] = flop / t / peak_rate(p);
    }
    r = median(ratio, b->rounds);
    d = median(dot, b->rounds);
    snprintf(name, sizeof(name), "%s %s, %d tokens (%.2f of dot peak)", k->name,
             f == W_INT4 ? "int4" : "mxfp4", n, d);
    report(b, name, median(rate, b->rounds), "GB/s", median(limit, b->rounds), r, bar,
           r >= bar || d >= 0.45);
}

/* Many tokens against the dot product's rate. */
static void bench_many(struct bench *b, const struct cpu_kernels *k, enum wformat f, int n,
                       enum peak p, double bar)
{
    static const char *const names[W_FORMATS] = { "bf16", "int8", "int4", "mxfp4" };
    struct work mul = { k, f, n };
    double flop = 6.0 * HIDDEN * INNER * PICKS * n * 1e-9;
    double rate[ROUNDS_MAX], limit[ROUNDS_MAX], ratio[ROUNDS_MAX], r;
    int rounds = n > 100 ? (b->rounds + 3) / 4 : b->rounds;
    char name[64];

    for (int i = 0; i < rounds; i++) {
        double before = peak_rate(p), t = sample(b, mul), after = peak_rate(p);

        rate[i] = flop / t;
        limit[i] = (before + after) / 2;
        ratio[i] = rate[i] / limit[i];
    }
    r = median(ratio, rounds);
    snprintf(name, sizeof(name), "%s %s x %d tokens", k->name, names[f], n);
    report(b, name, median(rate, rounds), "GFLOP/s", median(limit, rounds), r, bar, r >= bar);
}

/* The bars are the project's; a format or count without one is shown all the same. */
static void bench_isa(struct bench *b, enum cpu_isa isa)
{
    const struct cpu_kernels *k = cpu_kernels(isa);
    bool avx2 = isa == CPU_AVX2;
    enum peak p = !avx2 && cpu_kernels(CPU_AVX512BF16) ? PEAK_BF16 : PEAK_INT8;
    bool barred = p == PEAK_BF16 && isa != CPU_AVX512;

    for (int f = 0; f < W_FORMATS; f++) {
        double one = f == W_INT4 ? (avx2 ? 0.84 : 0.87) : f == W_MXFP4 ? (avx2 ? 0.74 : 0.87) : 0;

        pack_all(b, k, k->act[f]);
        for (b->threads = 1; b->threads <= THREADS; b->threads++)
            bench_read(b, k, (enum wformat)f, one > 0 && b->threads > 1 ? 0.95 : one);
        b->threads = 1;
        if (f == W_INT4 || f == W_MXFP4) {
            bench_few(b, k, (enum wformat)f, 2, p, 0.90);
            bench_few(b, k, (enum wformat)f, 4, p, 0.75);
        }
        bench_many(b, k, (enum wformat)f, 20, p, barred && f == W_INT4 ? 0.45 : 0);
        bench_many(b, k, (enum wformat)f, TOKENS, p, barred && f == W_INT4 ? 0.60 : 0);
    }
}

static int bench_open(struct bench *b, size_t mb)
{
    size_t huge = 2 << 20;
    uint32_t r = 7;
    void *map;

    b->bytes = mb << 20;
    map = mmap(NULL, b->bytes + huge, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (map == MAP_FAILED)
        return 1;
    b->memory = (uint8_t *)(((uintptr_t)map + huge - 1) / huge * huge);
    madvise(b->memory, b->bytes, MADV_HUGEPAGE);
    /* Bytes 0x38 to 0x3f: every weight and scale is an ordinary number. */
    for (size_t i = 0; i < b->bytes; i += 4) {
        uint32_t v = (r = r * 1664525 + 1013904223) >> 3 & 0x07070707;

        v |= 0x38383838;
        memcpy(b->memory + i, &v, sizeof(v));
    }
    b->x = malloc((size_t)TOKENS * HIDDEN * sizeof(float));
    b->y = malloc((size_t)TOKENS * HIDDEN * sizeof(float));
    for (int i = 0; i < 2; i++)
        b->packed[i] = aligned_alloc(ACT_ALIGN, (size_t)TOKENS * HIDDEN * 2 * sizeof(float));
    for (size_t i = 0; i < (size_t)TOKENS * HIDDEN; i++)
        b->x[i] = (float)(int32_t)(r = r * 1664525 + 1013904223) * 0x1p-31f;
    return 0;
}

static bool wanted(const char *only, enum cpu_isa isa)
{
    return cpu_kernels(isa) && (!only || !strcmp(only, cpu_kernels(isa)->name));
}

int main(int argc, char **argv)
{
    struct bench b = { .rounds = 21, .threads = 1, .rng = (uint32_t)getpid() };
    const char *only = NULL;
    size_t mb = 2048;
    pthread_t other;

    for (int i = 1; i + 1 < argc; i += 2) {
        if (!strcmp(argv[i], "--json"))
            b.json = fopen(argv[i + 1], "w");
        else if (!strcmp(argv[i], "--mb"))
            mb = strtoull(argv[i + 1], NULL, 10);
        else if (!strcmp(argv[i], "--rounds"))
            b.rounds = atoi(argv[i + 1]);
        else if (!strcmp(argv[i], "--isa"))
            only = argv[i + 1];
        else
            return 64;
    }
    if (b.rounds < 1 || b.rounds > ROUNDS_MAX || bench_open(&b, mb))
        return 64;
    pthread_barrier_init(&b.start, NULL, THREADS);
    pthread_barrier_init(&b.end, NULL, THREADS);
    pthread_create(&other, NULL, second, &b);
    pin(0);
    for (int isa = CPU_AVX2; isa < CPU_ISA_COUNT; isa++)
        if (wanted(only, (enum cpu_isa)isa))
            bench_isa(&b, (enum cpu_isa)isa);
    b.stop = true;
    pthread_barrier_wait(&b.start);
    pthread_join(other, NULL);
    if (b.json) {
        fprintf(b.json, "%s\n]\n", b.rows ? "" : "[");
        fclose(b.json);
    }
    return 0;
}
