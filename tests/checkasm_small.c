/* checkasm: norm and silu_mul; and the table of times. */
#include "tests/checkasm.h"

#include "src/ref.h"

#include <float.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

enum { N_MAX = 4096 };

static double norm_distance(const struct checkasm *k, uint64_t *rng, int n, float spread)
{
    struct guarded x, w, y;
    double worst = 0, square = 0;
    float *in, *by, *out;

    guarded_open(&x, (size_t)n * sizeof(float), 0, 0);
    guarded_open(&w, (size_t)n * sizeof(float), 0, 0);
    guarded_open(&y, (size_t)n * sizeof(float), 0, 0xa5);
    in = (float *)(void *)x.at;
    by = (float *)(void *)w.at;
    out = (float *)(void *)y.at;
    for (int i = 0; i < n; i++) {
        in[i] = rng_normal(rng) * spread;
        by[i] = rng_normal(rng);
        square += (double)in[i] * (double)in[i];
    }
    k->k->norm(out, in, by, n, 1e-6f);
    for (int i = 0; i < n; i++) {
        double want = (double)in[i] / sqrt(square / n + (double)1e-6f) * (double)by[i];

        worst = fmax(worst, fabs((double)out[i] - want) / (fabs(want) + 1e-20));
    }
    for (const uint8_t *p = y.map; p < y.at; p++)
        if (*p != 0xa5)
            worst = INFINITY;
    guarded_close(&x);
    guarded_close(&w);
    guarded_close(&y);
    return worst;
}

static double silu_distance(const struct checkasm *k, uint64_t *rng, int n, float spread)
{
    struct guarded g, u, y;
    double worst = 0;
    float *gate, *up, *out;

    guarded_open(&g, (size_t)n * sizeof(float), 0, 0);
    guarded_open(&u, (size_t)n * sizeof(float), 0, 0);
    guarded_open(&y, (size_t)n * sizeof(float), 0, 0xa5);
    gate = (float *)(void *)g.at;
    up = (float *)(void *)u.at;
    out = (float *)(void *)y.at;
    for (int i = 0; i < n; i++) {
        gate[i] = rng_normal(rng) * spread;
        up[i] = rng_normal(rng);
    }
    k->k->silu_mul(out, gate, up, n);
    for (int i = 0; i < n; i++) {
        double x = (double)gate[i], want = x / (1 + exp(-x)) * (double)up[i];

        worst = fmax(worst, fabs((double)out[i] - want) / (fabs(want) + 1e-28));
    }
    for (const uint8_t *p = y.map; p < y.at; p++)
        if (*p != 0xa5)
            worst = INFINITY;
    guarded_close(&g);
    guarded_close(&u);
    guarded_close(&y);
    return worst;
}

void check_small(const struct checkasm *k)
{
    static const float spreads[] = { 1, 1, 1e-3f, 20, 200 };
    uint64_t rng = k->seed + 300;
    double norm = 0, silu = 0;

    for (int i = 0; i < k->cases; i++) {
        int n = 1 + rng_below(&rng, i % 4 ? 70 : N_MAX);
        float spread = spreads[rng_below(&rng, sizeof(spreads) / sizeof(*spreads))];

        norm = fmax(norm, norm_distance(k, &rng, n, spread));
        silu = fmax(silu, silu_distance(k, &rng, n, spread));
    }
    verdict(norm < 2e-6, "%s norm, worst %.1e", k->k->name, norm);
    verdict(silu < 2e-6, "%s silu_mul, worst %.1e", k->k->name, silu);
}

/* Seconds of one call, the best of a few. */
static double seconds(const struct cpu_kernels *k, enum wformat format, const struct matrix *m,
                      const uint8_t *x, size_t stride, float *y, int n)
{
    double best = INFINITY;

    for (int i = 0; i < 7; i++) {
        double start = clock_now();

        k->mul[format](y, (size_t)m->rows, m, x, stride, n, 0, m->rows);
        best = fmin(best, clock_now() - start);
    }
    return best;
}

int check_bench(void)
{
    enum { ROWS = 256, COLS = 3072, TOKENS = 128 };
    static const int tokens[] = { 1, 2, 4, 8, 20, TOKENS };
    static const double bits[W_FORMATS] = { 16, 8 + 0.5, 4 + 0.5, 4 + 0.25 };
    uint8_t *w = malloc(2 * ROWS * COLS), *s = malloc(2 * ROWS * COLS / 32);
    float *x = malloc(TOKENS * COLS * sizeof(float)), *y = malloc(TOKENS * ROWS * sizeof(float));
    uint8_t *packed = aligned_alloc(ACT_ALIGN, 2 * TOKENS * COLS * sizeof(float));

    memset(w, 0x3c, 2 * ROWS * COLS);
    memset(s, 0x3c, 2 * ROWS * COLS / 32);
    for (int i = 0; i < TOKENS * COLS; i++)
        x[i] = (float)(i % 17) - 8;
    printf("weights in L2, one thread: GB/s of weights, GMAC/s\n");
    for (int isa = CPU_AVX2; isa < CPU_ISA_COUNT; isa++)
        for (int f = 0; cpu_kernels((enum cpu_isa)isa) && f < W_FORMATS; f++) {
            const struct cpu_kernels *k = cpu_kernels((enum cpu_isa)isa);
            struct matrix m = { (enum wformat)f, ROWS, COLS, f == W_BF16 ? 0 : 32, w, s, NULL };
            size_t stride = k->pack_bytes[k->act[f]](COLS);

            for (int t = 0; t < TOKENS; t++)
                k->pack[k->act[f]](packed + (size_t)t * stride, x + (size_t)t * COLS, COLS);
            printf("%-11s %-6s", k->name, format_name((enum wformat)f));
            for (size_t i = 0; i < sizeof(tokens) / sizeof(*tokens); i++) {
                double t = seconds(k, (enum wformat)f, &m, packed, stride, y, tokens[i]);

                printf("  n %d: %.1f, %.0f", tokens[i], bits[f] / 8 * ROWS * COLS / t * 1e-9,
                       (double)ROWS * COLS * tokens[i] / t * 1e-9);
            }
            printf("\n");
        }
    free(w);
    free(s);
    free(x);
    free(y);
    free(packed);
    return 0;
}
