/* Which table: what the processor and the system allow, and which of those is fastest.
 * Nothing here computes. */
#include "cpu/kernels.h"

#include "cpu/tables.h"
#include "src/ref.h"

#include <cpuid.h>
#include <math.h>
#include <stdlib.h>

static const struct cpu_kernels *const tables[CPU_ISA_COUNT] = {
    [CPU_REF] = &cpu_table_ref,
    [CPU_AVX2] = &cpu_table_avx2,
    [CPU_AVX512] = &cpu_table_avx512,
    [CPU_AVX512VNNI] = &cpu_table_avx512vnni,
    [CPU_AVX512BF16] = &cpu_table_avx512bf16,
};

size_t kv_row_bytes(enum kv_type type, int dim)
{
    static const size_t bytes[KV_TYPES] = {
        [KV_Q8] = 1, [KV_FP8] = 1, [KV_BF16] = 2, [KV_F32] = 4
    };

    return bytes[type] * (size_t)dim;
}

size_t cpu_act_f32_bytes(int cols)
{
    return align_up((size_t)cols * sizeof(float), ACT_ALIGN);
}

size_t cpu_act8_bytes(int cols)
{
    /* An odd number, or the tokens of a block would meet in a few sets of the L1 cache. */
    return ((((size_t)cols + 63) / 64) | 1) * sizeof(struct act8);
}

enum cpu_isa cpu_isa_named(const char *name)
{
    int isa = 0;

    while (isa < CPU_ISA_COUNT && strcmp(tables[isa]->name, name))
        isa++;
    return (enum cpu_isa)isa;
}

/* The state that the system saves for us: XCR0.  Only where CPUID has OSXSAVE. */
static uint32_t system_saves(void)
{
    uint32_t low, high;

    __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    return low;
}

static bool has(uint32_t reg, uint32_t bits)
{
    return (reg & bits) == bits;
}

unsigned cpu_isas(const struct cpu_words *w)
{
    enum { SSE_AVX = 6, AVX512_STATE = 0xe6 };
    unsigned ok = 1u << CPU_REF;

    if (!has(w->c1, bit_OSXSAVE | bit_AVX | bit_FMA | bit_F16C) || !has(w->b7, bit_AVX2) ||
        !has(w->saves, SSE_AVX))
        return ok;
    ok |= 1u << CPU_AVX2;
    if (!has(w->b7, bit_AVX512F | bit_AVX512BW | bit_AVX512VL | bit_AVX512DQ) ||
        !has(w->saves, AVX512_STATE))
        return ok;
    ok |= 1u << CPU_AVX512;
    if (has(w->c7, bit_AVX512VNNI))
        ok |= 1u << CPU_AVX512VNNI;
    if (has(w->a71, bit_AVX512BF16))
        ok |= 1u << CPU_AVX512BF16;
    return ok;
}

/* The same of this machine. */
static unsigned supported(void)
{
    struct cpu_words w = { 0 };
    uint32_t a, b, c, d;

    if (!__get_cpuid(1, &a, &b, &w.c1, &d) || !(w.c1 & bit_OSXSAVE))
        return cpu_isas(&w);
    w.saves = system_saves();
    if (__get_cpuid_count(7, 0, &a, &w.b7, &w.c7, &d))
        __get_cpuid_count(7, 1, &w.a71, &b, &c, &d);
    return cpu_isas(&w);
}

const struct cpu_kernels *cpu_kernels(enum cpu_isa isa)
{
    return isa < CPU_ISA_COUNT && supported() >> isa & 1 ? tables[isa] : NULL;
}

/* The self-test's matrices: more bytes than L2 holds, like a few experts. */
enum { TEST_ROWS = 1024, TEST_COLS = 3072, TEST_MATRICES = 4, TEST_TOKENS = 16, CHECK_ROWS = 19 };

struct trial {
    uint8_t *weight;            /* [TEST_MATRICES][TEST_ROWS][TEST_COLS], used as any format */
    uint8_t *scale;             /* [TEST_ROWS][TEST_COLS / 32] bf16, or E8M0 */
    float *x;                   /* [TEST_TOKENS][TEST_COLS] */
    uint8_t *packed;            /* [TEST_TOKENS] */
    float *y, *want;            /* [TEST_TOKENS][TEST_ROWS] */
};

static void trial_close(struct trial *t)
{
    free(t->weight);
    free(t->scale);
    free(t->x);
    free(t->packed);
    free(t->y);
    free(t->want);
}

static bool trial_open(struct trial *t)
{
    size_t weights = (size_t)TEST_MATRICES * TEST_ROWS * TEST_COLS / 2;
    size_t scales = (size_t)TEST_ROWS * TEST_COLS / 32 * 2;
    size_t floats = (size_t)TEST_TOKENS * TEST_COLS;
    uint32_t r = 1;

    t->weight = malloc(weights);
    t->scale = malloc(scales);
    t->x = malloc(floats * sizeof(float));
    t->packed = aligned_alloc(ACT_ALIGN, 2 * floats * sizeof(float));
    t->y = malloc((size_t)TEST_TOKENS * TEST_ROWS * sizeof(float));
    t->want = malloc((size_t)TEST_TOKENS * TEST_ROWS * sizeof(float));
    if (!t->weight || !t->scale || !t->x || !t->packed || !t->y || !t->want)
        return false;
    for (size_t i = 0; i < weights; i++)
        t->weight[i] = (uint8_t)((r = r * 1664525 + 1013904223) >> 24);
    /* As bf16 0x3c3d to 0x3d3c, about 0.01 to 0.05; as E8M0 2^-67 and 2^-66. */
    for (size_t i = 0; i < scales; i++)
        t->scale[i] = (uint8_t)(0x3c + ((r = r * 1664525 + 1013904223) >> 31));
    for (size_t i = 0; i < floats; i++)
        t->x[i] = (float)(int32_t)(r = r * 1664525 + 1013904223) * 0x1p-31f;
    return true;
}

static struct matrix trial_matrix(const struct trial *t, enum wformat format, int rows, int which)
{
    struct matrix m = { format, rows, TEST_COLS, format == W_BF16 ? 0 : 32, t->weight, t->scale,
                        NULL };

    m.weight = t->weight + (size_t)which * TEST_ROWS * TEST_COLS / 2;
    if (format == W_BF16)
        m.scale = NULL;
    return m;
}

/* Tokens t < n through k; packs them first. */
static void trial_pack(const struct trial *t, const struct cpu_kernels *k, enum act act, int n)
{
    size_t stride = k->pack_bytes[act](TEST_COLS);

    for (int i = 0; i < n; i++)
        k->pack[act](t->packed + (size_t)i * stride, t->x + (size_t)i * TEST_COLS, TEST_COLS);
}

/* Whether k's products are the reference's, as far as its activations' rounding allows:
 * 2 % of the results' size, where a wrong lane or scale gives 100 %. */
static bool trial_agrees(const struct trial *t, const struct cpu_kernels *k)
{
    static const enum wformat formats[] = { W_INT4, W_MXFP4, W_INT8 };
    enum { N = 3 };

    for (size_t f = 0; f < sizeof(formats) / sizeof(*formats); f++) {
        struct matrix m = trial_matrix(t, formats[f], CHECK_ROWS, 0);
        enum act act = k->act[formats[f]];
        double wrong = 0, size = 0;

        ref_mul(t->want, CHECK_ROWS, &m, t->x, TEST_COLS, N, 0, CHECK_ROWS);
        trial_pack(t, k, act, N);
        k->mul[formats[f]](t->y, CHECK_ROWS, &m, t->packed, k->pack_bytes[act](TEST_COLS), N, 0,
                           CHECK_ROWS);
        for (int i = 0; i < N * CHECK_ROWS; i++) {
            wrong += pow((double)t->y[i] - (double)t->want[i], 2);
            size += pow((double)t->want[i], 2);
        }
        if (!(wrong <= 0.02 * 0.02 * size))
            return false;
    }
    return true;
}

/* Seconds for int4: a token through every matrix, and a few through one of them. */
static double trial_time(const struct trial *t, const struct cpu_kernels *k)
{
    enum act act = k->act[W_INT4];
    size_t stride = k->pack_bytes[act](TEST_COLS);
    double best = INFINITY;

    trial_pack(t, k, act, TEST_TOKENS);
    for (int round = 0; round < 3; round++) {
        double start = clock_now();

        for (int i = 0; i <= TEST_MATRICES; i++) {
            struct matrix m = trial_matrix(t, W_INT4, TEST_ROWS, i % TEST_MATRICES);

            k->mul[W_INT4](t->y, TEST_ROWS, &m, t->packed, stride,
                           i < TEST_MATRICES ? 1 : TEST_TOKENS, 0, TEST_ROWS);
        }
        best = fmin(best, clock_now() - start);
    }
    return best;
}

const struct cpu_kernels *cpu_kernels_best(void)
{
    /* From the finest activations to the coarsest that a coarser one must beat by a
     * margin: where memory is the limit they tie. */
    static const enum cpu_isa order[] = { CPU_AVX512BF16, CPU_AVX512VNNI, CPU_AVX512, CPU_AVX2 };
    const double margin = 0.85;
    const struct cpu_kernels *best = NULL;
    double least = INFINITY;
    struct trial t;

    if (trial_open(&t)) {
        for (size_t i = 0; i < sizeof(order) / sizeof(*order); i++) {
            const struct cpu_kernels *k = cpu_kernels(order[i]);
            double s;

            if (!k || !trial_agrees(&t, k))
                continue;
            s = trial_time(&t, k);
            if (s < least * margin || !best) {
                best = k;
                least = s;
            }
        }
    }
    trial_close(&t);
    return best;
}
