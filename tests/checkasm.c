/* Every kernel of every instruction set that this machine has, against a plain function of
 * the same arithmetic.  Usage: checkasm [--full] [--seed N] [--isa NAME] [--bench].
 * A failure names kernel, shape, token and row; the seed of the run repeats it. */
#include "tests/checkasm.h"
#include "tests/tap.h"

#include <stdarg.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>
#include <xmmintrin.h>

uint32_t rng_next(uint64_t *state)
{
    uint64_t x = *state += 0x9e3779b97f4a7c15u;

    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
    x = (x ^ x >> 27) * 0x94d049bb133111ebu;
    return (uint32_t)(x >> 32);
}

int rng_below(uint64_t *state, int n)
{
    return (int)(rng_next(state) % (uint32_t)n);
}

float rng_normal(uint64_t *state)
{
    double sum = 0;

    for (int i = 0; i < 6; i++)
        sum += rng_next(state) * 0x1p-32;
    return (float)((sum - 3) * 1.41421356);
}

void guarded_open(struct guarded *g, size_t size, size_t slack, int fill)
{
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    size_t body = (size + slack + page - 1) / page * page;

    g->size = size;
    g->map_size = body + page;
    g->map = mmap(NULL, g->map_size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (g->map == MAP_FAILED || mprotect((uint8_t *)g->map + body, page, PROT_NONE)) {
        printf("Bail out! no memory\n");
        exit(99);
    }
    g->at = (uint8_t *)g->map + body - slack - size;
    memset(g->map, fill, body);
}

void guarded_close(struct guarded *g)
{
    munmap(g->map, g->map_size);
}

void verdict(bool good, const char *fmt, ...)
{
    char text[200];
    va_list ap;

    va_start(ap, fmt);
    vsnprintf(text, sizeof(text), fmt, ap);
    va_end(ap);
    ok(good, "%s", text);
}

const char *format_name(enum wformat f)
{
    static const char *const names[W_FORMATS] = { "bf16", "int8", "int4", "mxfp4" };

    return names[f];
}

const char *kv_name(enum kv_type t)
{
    static const char *const names[KV_TYPES] = { "q8", "fp8", "bf16", "f32" };

    return names[t];
}

static void check_isa(const struct checkasm *c)
{
    unsigned old = _mm_getcsr();

    if (c->flush)
        _mm_setcsr(old | 0x8040);
    check_small(c);
    check_mul(c);
    check_attend(c);
    _mm_setcsr(old);
}

int main(int argc, char **argv)
{
    struct checkasm c = { .cases = 40, .seed = (uint64_t)getpid() };
    const char *only = NULL;

    for (int i = 1; i < argc; i++) {
        if (!strcmp(argv[i], "--full"))
            c.cases = 1000;
        else if (!strcmp(argv[i], "--seed") && i + 1 < argc)
            c.seed = strtoull(argv[++i], NULL, 0);
        else if (!strcmp(argv[i], "--isa") && i + 1 < argc)
            only = argv[++i];
        else if (!strcmp(argv[i], "--bench"))
            return check_bench();
        else
            return 64;
    }
    printf("# seed %ju\n", (uintmax_t)c.seed);
    for (int isa = 0; isa < CPU_ISA_COUNT; isa++) {
        c.k = cpu_kernels((enum cpu_isa)isa);
        if (!c.k || (only && strcmp(only, c.k->name)))
            continue;
        for (int flush = 0; flush < 2; flush++) {
            c.flush = flush;
            check_isa(&c);
        }
    }
    if (!only) {
        ok(cpu_isa_named("avx3") == CPU_ISA_COUNT, "an ISA that does not exist");
        ok(cpu_isa_named("ref") == CPU_REF, "an ISA by name");
        ok(!cpu_kernels(CPU_AVX2) == !cpu_kernels_best(), "the self-test finds a table");
    }
    return done();
}
