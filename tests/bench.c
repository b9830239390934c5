/* The machine's limits and the rows of the benchmarks. */
#include "tests/bench.h"
#include "cpu/pool.h"

#include <immintrin.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>

enum { THREADS_MAX = 256, DOT_ROUNDS = 2000000 };
static const size_t BUFFER = (size_t)2 << 30, READ_BYTES = (size_t)256 << 20;

struct bench {
    FILE *json;
    int missed;
    uint8_t *buffer;                    /* [BUFFER] */
    size_t at;                          /* where the next read begins */
    struct pool *pool[THREADS_MAX + 1]; /* by threads, opened when first asked for */
};

struct bench *bench_open(const char *json)
{
    struct bench *b = calloc(1, sizeof(*b));

    if (!b)
        exit((perror("bench"), 1));
    b->json = json ? fopen(json, "a") : NULL;
    if (json && !b->json)
        exit((perror(json), 1));
    printf("%-48s %10s %-8s %10s %6s %6s\n", "", "value", "", "limit", "ratio", "bar");
    return b;
}

int bench_close(struct bench *b)
{
    int missed = b->missed;

    for (int i = 0; i <= THREADS_MAX; i++)
        pool_close(b->pool[i]);
    if (b->buffer)
        munmap(b->buffer, BUFFER);
    if (b->json)
        fclose(b->json);
    free(b);
    return missed != 0;
}

static struct pool *pool_of(struct bench *b, int threads)
{
    struct pool_config c = { .threads = threads, .pin = true };
    struct err e;

    if (!b->pool[threads] && pool_open(&b->pool[threads], &c, &e))
        exit((fprintf(stderr, "%s\n", e.text), 1));
    return b->pool[threads];
}

int bench_threads_max(const struct bench *b)
{
    struct bench *mine = (struct bench *)b;

    return pool_threads(pool_of(mine, 0));
}

static int compare(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

double bench_median(double *v, int n)
{
    qsort(v, (size_t)n, sizeof(*v), compare);
    return n % 2 ? v[n / 2] : (v[n / 2 - 1] + v[n / 2]) / 2;
}

__attribute__((target("avx2"))) static uint64_t read_avx2(const uint8_t *p, size_t n)
{
    __m256i sum[8];

    for (int j = 0; j < 8; j++)
        sum[j] = _mm256_setzero_si256();
    for (size_t i = 0; i < n; i += 256)
        for (int j = 0; j < 8; j++)
            sum[j] = _mm256_add_epi64(sum[j], _mm256_load_si256((const void *)(p + i + 32 * j)));
    for (int j = 1; j < 8; j++)
        sum[0] = _mm256_add_epi64(sum[0], sum[j]);
    return (uint64_t)_mm256_extract_epi64(sum[0], 0) + (uint64_t)_mm256_extract_epi64(sum[0], 3);
}

struct read_job {
    const uint8_t *from;
    size_t bytes;                       /* a thread */
    _Atomic uint64_t sink;
};

static void read_worker(void *arg, int worker, int workers)
{
    struct read_job *j = arg;

    (void)workers;
    j->sink += read_avx2(j->from + (size_t)worker * j->bytes, j->bytes);
}

static void fill_buffer(void *arg, int worker, int workers)
{
    uint64_t *p = arg;
    size_t n = BUFFER / sizeof(*p), from, to;

    pool_share(n, 4096, worker, workers, &from, &to);
    for (size_t i = from; i < to; i++)
        p[i] = i * 0x9e3779b97f4a7c15;
}

double bench_read_gbps(struct bench *b, int threads)
{
    struct pool *p = pool_of(b, threads);
    struct read_job j = { .bytes = READ_BYTES };
    double start;

    if (!b->buffer) {
        b->buffer = mmap(NULL, BUFFER, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (b->buffer == MAP_FAILED)
            exit((perror("bench buffer"), 1));
        madvise(b->buffer, BUFFER, MADV_HUGEPAGE);
        pool_run(pool_of(b, 0), fill_buffer, b->buffer);
    }
    if (j.bytes * (size_t)threads > BUFFER)
        j.bytes = BUFFER / (size_t)threads / 4096 * 4096;
    if (b->at + j.bytes * (size_t)threads > BUFFER)
        b->at = 0;
    j.from = b->buffer + b->at;
    b->at += j.bytes * (size_t)threads;
    start = clock_now();
    pool_run(p, read_worker, &j);
    return (double)(j.bytes * (size_t)threads) / (clock_now() - start) * 1e-9;
}

bool bench_has_bf16(void)
{
    return __builtin_cpu_supports("avx512bf16");
}

/* Sixteen independent chains hide the latency of any of these instructions. */
__attribute__((target("avx512f,avx512bf16"))) static float dot_bf16(void)
{
    __m512 a[16];
    __m512bh x = (__m512bh)_mm512_set1_epi16(0x3f80), y = x;
    float sum = 0;

    for (int j = 0; j < 16; j++)
        a[j] = _mm512_setzero_ps();
    for (int i = 0; i < DOT_ROUNDS; i++) {
#pragma GCC unroll 16
        for (int j = 0; j < 16; j++)
            a[j] = _mm512_dpbf16_ps(a[j], x, y);
        __asm__ volatile("" : "+v"(x), "+v"(y));
    }
    for (int j = 0; j < 16; j++)
        sum += _mm512_reduce_add_ps(a[j]);
    return sum;
}

__attribute__((target("avx2"))) static float dot_int8(void)
{
    __m256i a[8], x = _mm256_set1_epi8(1), y = x, one = _mm256_set1_epi16(1), sum;

    for (int j = 0; j < 8; j++)
        a[j] = _mm256_setzero_si256();
    for (int i = 0; i < DOT_ROUNDS; i++) {
#pragma GCC unroll 8
        for (int j = 0; j < 8; j++) {
            __m256i d = _mm256_maddubs_epi16(x, y);

            __asm__ volatile("" : "+x"(d));
            a[j] = _mm256_add_epi32(a[j], _mm256_madd_epi16(d, one));
        }
        __asm__ volatile("" : "+x"(x), "+x"(y));
    }
    sum = a[0];
    for (int j = 1; j < 8; j++)
        sum = _mm256_add_epi32(sum, a[j]);
    return (float)_mm256_extract_epi32(sum, 0);
}

static void dot_worker(void *arg, int worker, int workers)
{
    _Atomic float *sink = arg;

    (void)worker;
    (void)workers;
    *sink = bench_has_bf16() ? dot_bf16() : dot_int8();
}

double bench_dot_gflops(struct bench *b, int threads)
{
    struct pool *p = pool_of(b, threads);
    _Atomic float sink = 0;
    double macs = bench_has_bf16() ? 16.0 * 32 : 8.0 * 32, start = clock_now();

    pool_run(p, dot_worker, &sink);
    return macs * DOT_ROUNDS * threads / (clock_now() - start) * 2e-9;
}

void bench_row(struct bench *b, const char *name, double value, const char *unit, double limit,
               double ratio, double bar)
{
    bool ok = bar > 0 ? ratio >= bar : bar < 0 ? ratio <= -bar : true;

    b->missed += !ok;
    printf("%-48s %10.4g %-8s %10.4g %6.3f %6.2f %s\n", name, value, unit, limit, ratio,
           bar < 0 ? -bar : bar, !bar ? "" : ok ? "ok" : "MISSED");
    fflush(stdout);
    if (!b->json)
        return;
    fprintf(b->json, "{\"name\": \"%s\", \"value\": %.6g, \"unit\": \"%s\", \"limit\": %.6g, "
            "\"ratio\": %.4g, \"bar\": %.4g, \"ok\": %s}\n", name, value, unit,
            limit, ratio, bar, ok ? "true" : "false");
}
