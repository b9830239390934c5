/* Experts that the GPU fetches in a decode step: how many and whether, by what they cost; and over
 * gpu_ref.c the same tokens as the CPU's, whoever computes them. */
#include "src/upload.h"
#include "tests/engine_bed.h"
#include "tests/golden.h"

#include <math.h>
#include <stdlib.h>

enum { PROMPT = 40, STEPS = 40 };

static struct upload fresh(double share, int slots)
{
    struct upload u;

    upload_open(&u, &(struct upload_config){ .slots = slots, .share = share });
    return u;
}

/* An expert costs the CPU `alone` us, or `beside` while the GPU fetches, which costs it `fetch`.
 * 8 us more are the kernels behind a fetch. */
static int count(double alone, double beside, double fetch, int n, int slots)
{
    struct upload u = fresh(NAN, slots);

    u.alone_seconds = alone * 1e-6;
    u.cpu_seconds = beside * 1e-6;
    u.fetch_seconds = fetch * 1e-6;
    return upload_count(&u, n);
}

static void check_counts(void)
{
    struct upload u = fresh(0.3, 16), all = fresh(1, 16), none = fresh(0, 16);
    int made = 0;

    ok(count(60, 60, 100, 10, 16) == 4, "10 experts, 60 us here, 100 across PCIe: 4 go, 408 us");
    ok(count(60, 60, 100, 2, 16) == 1, "of 2 one: 108 us instead of 120");
    ok(count(60, 60, 100, 1, 16) == 0, "one alone stays");
    ok(count(60, 60, 20, 4, 16) == 3, "where PCIe is faster, 3 of 4");
    ok(count(60, 90, 100, 3, 16) == 0, "two at 90 us beside a fetch are no sooner than 3 at 60");
    ok(count(60, 90, 100, 10, 16) == 5, "of ten five: 508 us instead of 600");
    ok(count(60, 60, 20, 10, 2) == 2, "no more than there are slots");
    ok(count(60, 60, 0.001, 40, 96) == GPU_OFFERS, "nor than a share may offer");
    ok(count(60, 60, 100, 0, 16) == 0, "of nothing nothing");
    ok(upload_count(&(struct upload){ .c = { .slots = 16, .share = NAN } }, 8) == 4,
       "before anything is known, half");
    for (int i = 0; i < 100; i++)
        made += upload_count(&u, 1);
    ok(made == 30 || made == 29, "a share of 0.3 offers %d of 100, one at a time", made);
    ok(upload_count(&all, 9) == 9 && upload_count(&none, 9) == 0, "all of nine, and none");
}

/* Of so many steps that miss five experts, those with offers.  A layer costs `with` us an expert
 * where they are made, 60 where not. */
static int begun(struct upload *u, int steps, double with)
{
    int n = 0;

    for (int i = 0; i < steps; i++) {
        struct upload_cost *c;

        u->missed = 5;
        n += upload_begin(u);
        c = u->now ? &u->with : &u->without;
        c->seconds += 5e-6 * (u->now ? with : 60);
        c->experts += 5;
    }
    return n;
}

static void check_steps(void)
{
    struct upload u = fresh(NAN, 16), other = u, fixed = fresh(0.5, 16), none = fresh(0, 16);
    int n;

    ok(!upload_begin(&u), "no step before has missed an expert: no offers");
    n = begun(&u, 32, 40);
    ok(n == 16, "%d of a trial's 32 steps make them", n);
    n = begun(&u, 32, 40);
    ok(n == 32, "they pay: %d of the next 32", n);
    n = begun(&u, 128, 70);
    ok(n == 16, "they no longer do: %d of 128, which are the next trial's", n);
    n = begun(&other, 64 + 128 + 256 + 512 + 1024 + 1024, 59.5);
    ok(n == 6 * 16, "they bring next to nothing: %d of 3008 steps, six trials", n);
    ok(begun(&fixed, 100, 99) == 100 && begun(&none, 100, 1) == 0,
       "a fixed share: always, or never");
}

/* --- the engine ------------------------------------------------------------------------------ */

static bool set_up(struct bed *b, const char *device, float share)
{
    struct err e = { "" };

    bed_settings(b, device);
    b->o.vram_experts_bytes = 1 << 20;
    b->o.deterministic = false;
    b->o.upload_share = share;
    if (!bed_open(b))
        return false;
    ok(!engine_warm(b->g, &e), "it is warm: %s", e.text);
    return true;
}

static bool eval(struct bed *b, const int32_t *id, int n)
{
    struct eval v = { .rows = EVAL_LAST, .stepwise = n == 1, .each = bed_keep, .arg = b };
    struct err e = { "" };
    int rc = session_eval(b->s, id, n, &v, &e);

    if (rc)
        printf("# %s\n", e.text);
    return !rc;
}

/* Steps after a prompt, against the CPU alone.  What they differ by comes of BF16 on the GPU, and
 * must not grow beyond `usual`, which it is where nothing is fetched; given back. */
static double compare(const int32_t *id, float share, double usual)
{
    struct bed cpu, gpu;
    struct tier_counts before, after;
    double off = 0;
    int same = 0;

    if (!set_up(&cpu, "cpu", 0) || !set_up(&gpu, "ref", share))
        return 0;
    ok(eval(&cpu, id, PROMPT) && eval(&gpu, id, PROMPT), "a prompt");
    before = engine_tiers(gpu.g);
    for (int i = PROMPT; i < PROMPT + STEPS; i++) {
        if (!eval(&cpu, id + i, 1) || !eval(&gpu, id + i, 1))
            break;
        same += bed_best(&cpu) == bed_best(&gpu);
        for (int k = 0; k < cpu.vocab; k++)
            off += fabs((double)cpu.last[k] - (double)gpu.last[k]) / cpu.vocab / STEPS;
    }
    after = engine_tiers(gpu.g);
    ok(same >= STEPS - 5 && off < usual, "share %g: %d of %d steps choose alike, logits differ by "
       "%.4f in the mean", (double)share, same, STEPS, off);
    ok(before.uploaded == 0 && (after.uploaded > 0) == !(share <= 0) &&
       after.uploaded <= after.ram - before.ram,
       "%d experts fetched, of %d in RAM", (int)after.uploaded, (int)(after.ram - before.ram));
    if (share >= 1)
        ok(after.uploaded == after.ram - before.ram, "they are all that were there");
    bed_close(&cpu);
    bed_close(&gpu);
    return off;
}

int main(void)
{
    struct golden deep;
    const int32_t *id;
    double usual;
    int n;

    check_counts();
    check_steps();
    if (!gpu_is_reference()) {
        ok(1, "the engine over plain C # SKIP this program was built with CUDA");
        return done();
    }
    golden_open(&deep, "models/nano/golden/deep.safetensors");
    id = golden_find(&deep, "ids.deep", &n);
    ok(n >= PROMPT + STEPS, "%d ids", n);
    usual = compare(id, 0, 0.1);
    compare(id, 0.4f, 1.5 * usual);
    compare(id, 1, 1.5 * usual);
    compare(id, NAN, 1.5 * usual);
    golden_close(&deep);
    return done();
}
