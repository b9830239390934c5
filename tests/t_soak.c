/* Decode steps while the drive misbehaves: short reads, errors that pass, late answers, bits
 * that flip.  The tokens must be those of a drive without faults, and nothing may leak.
 * `t_soak STEPS` for longer; make check runs a short one. */
#include "cpu/pool.h"
#include "src/forward.h"
#include "tests/files.h"
#include "tests/tap.h"

#include <errno.h>
#include <malloc.h>

enum { CONTEXT = 256, SLOTS = 3 };

struct rig {
    struct model *model;
    struct pool *pool;
    struct cpu *cpu;
    struct runner runner;
    struct kv kv;
    float *logits;
};

/* What the drive does: drawn anew for each operation. */
struct mischief {
    uint64_t state;
    uint64_t done;
    uint64_t operations, flipped;       /* the last flip's operation */
    bool learned;                       /* every expert's sum is known by now */
};

static uint64_t draw(struct mischief *m)
{
    m->state ^= m->state << 13;
    m->state ^= m->state >> 7;
    return m->state ^= m->state << 17;
}

static void misbehave(void *arg, const struct read *r, uint64_t offset, uint32_t bytes,
                      struct stream_fault *f)
{
    struct mischief *m = arg;

    (void)offset;
    m->operations++;
    switch (draw(m) % 24) {
    case 0:
        f->at_most = 4096 * (1 + (uint32_t)(draw(m) % (bytes / 4096 + 1)));
        break;
    case 1:
        f->result = -EAGAIN;
        break;
    case 2:
        f->result = r->tries ? 0 : -EIO;        /* passes: at most once a read */
        break;
    case 3:
        f->seconds = 0.001;
        break;
    case 4:
        f->twice = true;
        break;
    case 5:                             /* read again, but not twice wrong in a row */
        f->flip = m->learned && m->operations > m->flipped + 64;
        if (f->flip)
            m->flipped = m->operations;
        break;
    default:
        return;
    }
    m->done++;
}

static void die(const struct err *e)
{
    printf("Bail out! %s\n", e->text);
    exit(99);
}

static void rig_open(struct rig *r, const char *dir, int slots, struct mischief *m, struct log *l)
{
    struct pool_config pc = { .threads = 2, .pin = true };
    struct experts_config xc = { .slots = slots, .slot_bytes = 1 << 20, .log = l };
    struct cpu_config cc = { .threads = 2, .batch = 16 };
    struct err e;

    if (m) {
        xc.stream.fault = misbehave;
        xc.stream.fault_arg = m;
    }
    *r = (struct rig){ 0 };
    if (model_open(&r->model, dir, l, &e) || model_load_dense(r->model, 2, NULL, NULL, &e) ||
        pool_open(&r->pool, &pc, &e))
        die(&e);
    xc.model = r->model;
    xc.pool = cc.pool = r->pool;
    cc.shape = &r->model->shape;
    cc.kernels = cpu_kernels_best();
    r->runner = (struct runner){ .model = r->model, .batch = 16 };
    if (experts_open(&r->runner.experts, &xc, &e) || cpu_open(&r->cpu, &cc, &e) ||
        kv_open(&r->kv, &r->model->shape, KV_Q8, CONTEXT, 16, &e))
        die(&e);
    r->runner.cpu = r->cpu;
    r->logits = calloc((size_t)r->model->shape.vocab, sizeof(*r->logits));
}

static void rig_close(struct rig *r)
{
    kv_close(&r->kv);
    cpu_close(r->cpu);
    experts_close(r->runner.experts);
    pool_close(r->pool);
    model_close(r->model);
    free(r->logits);
}

/* The next token after `token` at position pos. */
static int32_t step(struct rig *r, int32_t token, int pos)
{
    struct batch b = { &token, 1, pos };
    int vocab = r->model->shape.vocab, best = 0;
    struct err e;

    if (forward(&r->runner, &r->kv, &b, &e) || runner_logits(&r->runner, 0, 1, r->logits, &e))
        die(&e);
    for (int i = 1; i < vocab; i++)
        if (r->logits[i] > r->logits[best])
            best = i;
    return best;
}

int main(int argc, char **argv)
{
    int steps = argc > 1 ? atoi(argv[1]) : 600, wrong = 0;
    struct mischief m = { .state = 88172645463325252u };
    struct log l = { .level = LOG_QUIET };
    char *dir = source_path("tests/data/nano-w4a16-1");
    size_t before = 0, after;
    struct rig good, bad;
    int32_t a = 2, b = 2;

    rig_open(&good, dir, EXPERTS_ALL, NULL, &l);
    rig_open(&bad, dir, SLOTS, &m, &l);
    for (int i = 0; i < steps; i++) {
        int pos = i % CONTEXT;

        if (i % CONTEXT == 0)
            a = b = 2 + i / CONTEXT % 400;
        a = step(&good, a, pos);
        b = step(&bad, b, pos);
        wrong += a != b;
        b = a;
        m.learned = i > steps / 4;
        if (i == steps / 2)
            before = mallinfo2().uordblks;
    }
    after = mallinfo2().uordblks;
    ok(!wrong, "%d steps under %ju faults: %d wrong tokens", steps, (uintmax_t)m.done, wrong);
    ok(m.done > (uintmax_t)steps / 10 && m.flipped, "the drive did misbehave, flips included");
    ok(after <= before + 4096, "no leak: %zu bytes in use at half time, %zu at the end", before,
       after);
    rig_close(&good);
    rig_close(&bad);
    free(dir);
    return done();
}
