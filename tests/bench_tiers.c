/* Experts on the drive: decode with all of them cached, with three in ten, a cold start, and
 * the memory bound, each beside its limit in the same run.  The model is one of mkmodel's; it
 * must lie on the drive in question, and its page cache does not matter (reads are direct). */
#include "cpu/kernels.h"
#include "src/engine.h"
#include "src/machine.h"
#include "src/options.h"
#include "tests/bench.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

enum { CONTEXT = 8192, ROUNDS = 9, STEPS = 6, WARM = 300, PROMPT = 100 };

struct place {
    struct engine *engine;
    struct session *session;
    uint32_t rng;
};

static void place_open(struct place *p, const char *dir, int64_t ram, int64_t experts, bool guess)
{
    static struct options o;
    struct err e;

    o = (struct options){ .model_dir = dir, .isa = "auto", .kv_type = "q8", .context = CONTEXT,
                          .ram_bytes = ram, .ram_experts_bytes = experts,
                          .io = "auto", .device = "cpu",
                          .guess = guess };
    *p = (struct place){ .rng = 1 };
    if (engine_open(&p->engine, &o, &e) || session_open(&p->session, p->engine, &e))
        bench_die(&e);
}

static void place_close(struct place *p)
{
    session_close(p->session);
    engine_close(p->engine);
}

static int look(void *arg, const struct position *p)
{
    *(volatile float *)arg = p->logits[0];
    return 0;
}

/* Seconds a token; the ids are the same for places that were asked equally often. */
static double steps(struct place *p, int n)
{
    float sink;
    struct eval v = { .rows = EVAL_LAST, .each = look, .arg = &sink };
    double start;
    struct err e;

    if (session_length(p->session) + n > CONTEXT)
        session_rewind(p->session, 0);
    engine_begin(p->engine);
    start = clock_now();
    for (int i = 0; i < n; i++) {
        int32_t id;

        p->rng = p->rng * 1664525 + 1013904223;
        id = 300 + (int32_t)((p->rng >> 8) % 90000) % (engine_model(p->engine)->shape.vocab - 300);
        if (session_eval(p->session, &id, 1, &v, &e))
            bench_die(&e);
    }
    start = clock_now() - start;
    engine_end(p->engine);
    return start / n;
}

static double prompt(struct place *p)
{
    static int32_t id[PROMPT];
    float sink;
    struct eval v = { .rows = EVAL_LAST, .each = look, .arg = &sink };
    double start = clock_now();
    struct err e;

    for (int i = 0; i < PROMPT; i++)
        id[i] = 300 + i * 37;
    if (session_eval(p->session, id, PROMPT, &v, &e))
        bench_die(&e);
    return clock_now() - start;
}

static double drive_gbps(const struct model *m)
{
    struct log l = { .level = LOG_QUIET };
    struct machine_ask a = { .checkpoint = m->checkpoint, .kernels = cpu_kernels_best(),
                             .remeasure = true, .log = &l };
    struct machine f;
    struct err e;

    if (machine_get(&f, &a, &e))
        bench_die(&e);
    return f.drive_read_gbps;
}

static void bench_cached(struct bench *b, struct place *all, const char *dir, size_t experts)
{
    double ratio[ROUNDS], rate[ROUNDS], limit[ROUNDS];
    struct place cached;

    place_open(&cached, dir, SIZE_AUTO, (int64_t)(experts + experts / 8), false);
    steps(&cached, WARM);
    steps(all, WARM);
    for (int r = 0; r < ROUNDS; r++) {
        double one = steps(&cached, STEPS), other = steps(all, STEPS);

        rate[r] = 1 / one;
        limit[r] = 1 / other;
        ratio[r] = one / other;
    }
    bench_row(b, "decode, all cached, against all in RAM", bench_median(rate, ROUNDS), "tok/s",
              bench_median(limit, ROUNDS), bench_median(ratio, ROUNDS), -1.03);
    place_close(&cached);
}

static void bench_few(struct bench *b, struct place *all, const char *dir, size_t experts,
                      bool guess)
{
    double ratio[ROUNDS], rate[ROUNDS], limit[ROUNDS];
    struct tier_counts t;
    struct place few;
    char name[64];

    place_open(&few, dir, SIZE_AUTO, (int64_t)(experts / 10 * 3), guess);
    steps(&few, WARM);
    for (int r = 0; r < ROUNDS; r++) {
        uint64_t before = engine_tiers(few.engine).nvme_bytes;
        double one = steps(&few, STEPS), other = steps(all, STEPS), drive;

        drive = (double)(engine_tiers(few.engine).nvme_bytes - before) / STEPS * 1e-9 /
                drive_gbps(engine_model(few.engine));
        rate[r] = 1 / one;
        limit[r] = 1 / (drive > other ? drive : other);
        ratio[r] = one * limit[r];
    }
    t = engine_tiers(few.engine);
    snprintf(name, sizeof(name), "decode, 30 %% of the experts in RAM, %s",
             guess ? "guessing" : "no guesses");
    bench_row(b, name, bench_median(rate, ROUNDS), "tok/s", bench_median(limit, ROUNDS),
              bench_median(ratio, ROUNDS), guess ? 0 : -1.15);
    if (guess)
        bench_row(b, "experts of the next layer that were guessed", (double)t.guess_right, "",
                  (double)t.guess_asked, (double)t.guess_right / (double)t.guess_asked, 0);
    place_close(&few);
}

static void bench_cold(struct bench *b, struct place *all, const char *dir, size_t experts)
{
    struct place cold;
    double seconds, compute, drive;

    session_rewind(all->session, 0);
    compute = prompt(all);
    place_open(&cold, dir, SIZE_AUTO, (int64_t)(experts / 10 * 3), true);
    seconds = prompt(&cold);
    drive = (double)engine_tiers(cold.engine).nvme_bytes * 1e-9 /
            drive_gbps(engine_model(cold.engine));
    bench_row(b, "first token of 100, cold, less its computing", seconds - compute, "s", drive,
              (seconds - compute) / drive, -1.20);
    place_close(&cold);
}

/* The most memory that a process of its own ever held under --ram. */
static void bench_memory_bound(struct bench *b, const char *dir, int gib)
{
    int64_t bound = (int64_t)gib << 30;
    struct rusage u;
    char name[64];
    int status;
    pid_t child = fork();

    if (!child) {
        struct place p;

        place_open(&p, dir, bound, SIZE_AUTO, true);
        prompt(&p);
        steps(&p, 20);
        _exit(0);
    }
    if (child < 0 || wait4(child, &status, 0, &u) < 0 || status)
        exit((fprintf(stderr, "the run under --ram %dG failed\n", gib), 1));
    snprintf(name, sizeof(name), "most memory under --ram %dG", gib);
    bench_row(b, name, (double)u.ru_maxrss / 1024, "MB", gib * 1024.0,
              (double)u.ru_maxrss * 1024 / (double)bound, -1);
}

/* The rows whose bound leaves room for the dense weights, which cannot go anywhere else. */
static void bench_bounds(struct bench *b, const char *dir)
{
    struct log l = { .level = LOG_QUIET };
    struct model *m;
    struct err e;
    size_t dense;

    if (model_open(&m, dir, &l, &e))
        bench_die(&e);
    dense = m->dense_bytes;
    model_close(m);
    for (int gib = 2; gib <= 8; gib *= 2)
        if (dense < (size_t)gib << 30)
            bench_memory_bound(b, dir, gib);
        else
            printf("no row for --ram %dG: the dense weights alone are %.1f GiB\n", gib,
                   (double)dense / (1 << 30));
}

int main(int argc, char **argv)
{
    struct bench *b = bench_open(&argc, &argv);
    const char *dir = argc > 1 ? argv[1] : NULL;
    struct place all;
    size_t experts;

    if (!dir)
        return fputs("usage: bench_tiers [--json FILE] MODEL\n", stderr), 64;
    bench_bounds(b, dir);
    place_open(&all, dir, SIZE_AUTO, SIZE_AUTO, false);
    experts = engine_model(all.engine)->expert_bytes;
    bench_few(b, &all, dir, experts, false);
    bench_few(b, &all, dir, experts, true);
    bench_cold(b, &all, dir, experts);
    bench_cached(b, &all, dir, experts);
    place_close(&all);
    bench_close(b);
    return 0;
}
