/* The machine's limits and the rows of the benchmarks. */
#include "config.h"

#include "tests/bench.h"
#include "cpu/cores.h"

#include <immintrin.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <time.h>

enum { DOT_ROUNDS = 200000, DOT_CHAINS = 12, DOT_FLOP = 64, GRAIN = 4096 };
static const size_t READ_BYTES = (size_t)256 << 20;     /* a thread */

struct bench {
    const char *title;                  /* NULL once the table has its heading */
    FILE *json;
    uint8_t *memory;                    /* [BENCH_MEMORY], mapped when first asked for */
    size_t at;                          /* where the next read begins */
    struct pool *pool[CORES_MAX + 1];   /* by threads, opened when first asked for */
};

struct bench *bench_open(int *argc, char ***argv)
{
    struct bench *b = calloc(1, sizeof(*b));
    char **arg = *argv, *slash = strrchr(arg[0], '/');

    if (!b)
        exit((perror("bench"), 1));
    b->title = slash ? slash + 1 : arg[0];
    if (*argc > 2 && !strcmp(arg[1], "--json")) {
        b->json = fopen(arg[2], "a");
        if (!b->json)
            exit((perror(arg[2]), 1));
        *argc -= 2;
        *argv += 2;
    }
    return b;
}

void bench_close(struct bench *b)
{
    for (int i = 0; i <= CORES_MAX; i++)
        pool_close(b->pool[i]);
    if (b->memory)
        munmap(b->memory, BENCH_MEMORY);
    if (b->json && fclose(b->json))
        exit((perror("bench"), 1));
    free(b);
}

void bench_die(const struct err *e)
{
    fprintf(stderr, "%s\n", e->text);
    exit(1);
}

/* JSON has no word for what is not finite. */
static void put_number(FILE *f, const char *key, double value)
{
    if (isfinite(value))
        fprintf(f, ", \"%s\": %.6g", key, value);
    else
        fprintf(f, ", \"%s\": null", key);
}

static bool is_met(double ratio, double bar)
{
    return bar > 0 ? ratio >= bar : bar < 0 ? ratio <= -bar : true;
}

void bench_keep(struct bench *b, const char *name, double value, const char *unit, double limit,
                double ratio, double bar)
{
    if (!b->json)
        return;
    fprintf(b->json, "{\"name\": \"%s\"", name);
    put_number(b->json, "value", value);
    fprintf(b->json, ", \"unit\": \"%s\"", unit);
    put_number(b->json, "limit", limit);
    put_number(b->json, "ratio", ratio);
    put_number(b->json, "bar", bar ? fabs(bar) : NAN);
    fprintf(b->json, ", \"sense\": \"%s\", \"ok\": %s}\n", bar > 0 ? ">=" : bar < 0 ? "<=" : "",
            is_met(ratio, bar) ? "true" : "false");
}

void bench_row(struct bench *b, const char *name, double value, const char *unit, double limit,
               double ratio, double bar)
{
    if (b->title)
        printf("\n%-48s %10s %-8s %10s %6s %7s\n", b->title, "value", "", "limit", "ratio", "bar");
    b->title = NULL;
    printf("%-48s %10.4g %-8s %10.4g %6.3f", name, value, unit, limit, ratio);
    if (bar)
        printf(" %s %.2f %s", bar > 0 ? ">=" : "<=", fabs(bar),
               is_met(ratio, bar) ? "ok" : "MISSED");
    printf("\n");
    fflush(stdout);
    bench_keep(b, name, value, unit, limit, ratio, bar);
}

static int compare(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

double bench_median(double *v, int n)
{
    qsort(v, (size_t)n, sizeof(*v), compare);
    return (v[(n - 1) / 2] + v[n / 2]) / 2;
}

static struct pool *pool_of(struct bench *b, int threads)
{
    struct pool_config c = { .threads = threads, .pin = true };
    struct err e;

    if (threads < 0 || threads > CORES_MAX)
        exit((fprintf(stderr, "%d threads: at most %d\n", threads, CORES_MAX), 1));
    if (!b->pool[threads] && pool_open(&b->pool[threads], &c, &e))
        bench_die(&e);
    return b->pool[threads];
}

int bench_threads_max(struct bench *b)
{
    return pool_threads(pool_of(b, 0));
}

int bench_threads_after(struct bench *b, int threads)
{
    int max = bench_threads_max(b);

    return threads == max ? 0 : threads < 2 ? threads + 1 : max;
}

static double clock_used(void)
{
    struct timespec t;

    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

struct timed {
    struct pool *pool;
    pool_fn fn;
    void *arg;
    double start;                       /* worker 0's */
    double used[CORES_MAX];
};

static void timed_worker(void *arg, int worker, int workers)
{
    struct timed *t = arg;
    double before;

    pool_barrier(t->pool, worker);
    before = clock_used();
    if (!worker)
        t->start = clock_now();
    t->fn(t->arg, worker, workers);
    t->used[worker] = clock_used() - before;
}

struct clocks bench_run(struct bench *b, int threads, pool_fn fn, void *arg)
{
    struct timed t = { .pool = pool_of(b, threads), .fn = fn, .arg = arg };
    struct clocks c;

    pool_run(t.pool, timed_worker, &t);
    c.wall = clock_now() - t.start;
    c.used = 0;
    for (int i = 0; i < threads; i++)
        c.used = fmax(c.used, t.used[i]);
    return c;
}

static struct clocks rate(double amount, struct clocks seconds)
{
    return (struct clocks){ amount / seconds.wall, amount / seconds.used };
}

static void fill_memory(void *arg, int worker, int workers)
{
    uint64_t *p = arg;
    size_t from, to;

    pool_share(BENCH_MEMORY / sizeof(*p), GRAIN, worker, workers, &from, &to);
    for (; from < to; from++)
        p[from] = 0x3838383838383838 | (from * 0x9e3779b97f4a7c15 >> 3 & 0x0707070707070707);
}

const uint8_t *bench_memory(struct bench *b)
{
    void *map;

    if (b->memory)
        return b->memory;
    map = mmap(NULL, BENCH_MEMORY, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (map == MAP_FAILED)
        exit((perror("bench memory"), 1));
    madvise(map, BENCH_MEMORY, MADV_HUGEPAGE);
    pool_run(pool_of(b, 0), fill_memory, map);
    return b->memory = map;
}

__attribute__((target("avx2"))) void bench_read(const uint8_t *from, size_t bytes)
{
    __m256i sum[8];

    for (int j = 0; j < 8; j++)
        sum[j] = _mm256_setzero_si256();
    for (size_t i = 0; i < bytes; i += 256)
        for (int j = 0; j < 8; j++) {
            const __m256i *at = (const __m256i *)(const void *)(from + i + 32 * j);

            sum[j] = _mm256_xor_si256(sum[j], _mm256_loadu_si256(at));
        }
    /* The compiler must believe that somebody wants the sums. */
    __asm__ volatile("" : : "r"(sum) : "memory");
}

struct stretch {
    const uint8_t *from;
    size_t bytes;
};

static void read_worker(void *arg, int worker, int workers)
{
    const struct stretch *s = arg;
    size_t from, to;

    pool_share(s->bytes, GRAIN, worker, workers, &from, &to);
    bench_read(s->from + from, to - from);
}

struct clocks bench_read_gbps(struct bench *b, int threads)
{
    struct stretch s = { bench_memory(b), READ_BYTES * (size_t)threads };

    if (s.bytes > BENCH_MEMORY)
        s.bytes = BENCH_MEMORY;
    if (b->at + s.bytes > BENCH_MEMORY)
        b->at = 0;
    s.from += b->at;
    b->at += s.bytes;
    return rate((double)s.bytes * 1e-9, bench_run(b, threads, read_worker, &s));
}

bool bench_has_bf16(void)
{
    return __builtin_cpu_supports("avx512bf16");
}

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

static void dot_worker(void *arg, int worker, int workers)
{
    enum dot dot = *(const enum dot *)arg;

    (void)worker;
    (void)workers;
    __asm__ volatile("vzeroall" : : : "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6",
                     "xmm7", "xmm8", "xmm9", "xmm10", "xmm11", "xmm12", "xmm13", "xmm14", "xmm15");
    for (int i = 0; i < DOT_ROUNDS && dot == DOT_INT8; i++)
        TWELVE("vpmaddubsw ", "%%ymm");
    for (int i = 0; i < DOT_ROUNDS && dot == DOT_BF16; i++)
        TWELVE("vdpbf16ps ", "%%zmm");
    __asm__ volatile("vzeroupper");
}

struct clocks bench_dot_gflops(struct bench *b, int threads, enum dot dot)
{
    double flop = (double)DOT_CHAINS * DOT_FLOP * DOT_ROUNDS * threads;

    return rate(flop * 1e-9, bench_run(b, threads, dot_worker, &dot));
}
