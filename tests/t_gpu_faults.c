/* Rows I02 to I11 of the fault catalogue over gpu_ref.c: cards that cannot be used, VRAM that
 * others have, and a GPU that fails, is late or counts wrong in a step or a batch.  What a
 * request loses is itself: the next one gives the bits of a run without the fault. */
#include "src/commands.h"
#include "src/engine_faults.h"
#include "src/engine_internal.h"
#include "tests/engine_bed.h"
#include "tests/golden.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdatomic.h>
#include <time.h>

enum { PROMPT = 60, STEPS = 3, MANY = 40 };

static void describe(struct bed *b, const char *device, const struct engine_faults *f)
{
    bed_settings(b, device);
    b->o.ram_experts_bytes = 0;
    b->o.vram_experts_bytes = 4 << 20;
    b->o.gpu_watchdog = 5;
    b->o.faults = f;
}

static bool set_up(struct bed *b, const struct engine_faults *f)
{
    describe(b, "ref", f);
    return bed_open(b);
}

static int eval(struct bed *b, const int32_t *id, int n, bool stepwise)
{
    struct eval v = { .rows = EVAL_LAST, .stepwise = stepwise, .each = bed_keep, .arg = b };

    return session_eval(b->s, id, n, &v, &b->e);
}

static bool same(const struct bed *a, const struct bed *b)
{
    size_t n = (size_t)engine_model(a->g)->shape.vocab * sizeof(*a->last);

    return !memcmp(a->last, b->last, n);
}

/* --- one request fails -------------------------------------------------------------------- */

static atomic_bool broken;

static void break_reads(void *arg, const struct read *r, uint64_t offset, uint32_t bytes,
                        struct stream_fault *f)
{
    (void)arg;
    (void)r;
    (void)offset;
    (void)bytes;
    if (broken)
        f->result = -EIO;
}

struct mishap {
    const char *name, *words;
    struct engine_faults faults;
    bool in_batch;
    int rc;
};

/* Nothing of positions from..to - 1 is left in a layer's rows of the GPU's cache. */
static bool is_wiped(struct bed *b, int from, int to)
{
    const struct kv_layer *own;
    struct kv kv;
    struct gpu_rows rows;
    size_t row;
    bool clean;

    if (kv_open(&kv, &b->g->model->shape, b->g->kv_type, b->g->placement.context,
                b->g->placement.batch, &b->e))
        return false;
    own = &kv.layer[0];
    rows = (struct gpu_rows){ own->k, own->v, own->k_scale, own->v_scale, own->rows };
    row = kv.row_bytes;
    clean = !gpu_read_rows(b->g->gpu, 0, from, to - from, &rows, &b->e);
    for (size_t i = 0; i < (size_t)(to - from) * row; i++)
        clean = clean && !own->v[(size_t)from * row + i];
    kv_close(&kv);
    return clean;
}

/* Reads that have begun end while the drive is still broken. */
static void settle(struct bed *b)
{
    const struct timespec nap = { 0, 100000 };
    struct err e;

    for (int i = 0; i < 2000 && engine_idle(b->g, 0, &e) > 0; i++)
        nanosleep(&nap, NULL);
}

/* The mishap comes with the batch at MANY, or with the first step at PROMPT. */
static void survive(const struct mishap *m, const int32_t *id)
{
    struct bed whole, hurt;
    int at = m->in_batch ? MANY : PROMPT, n = m->in_batch ? PROMPT - MANY : 1, rc;

    broken = false;
    if (!set_up(&whole, NULL) || !set_up(&hurt, &m->faults))
        return;
    ok(!eval(&whole, id, MANY, false) && !eval(&hurt, id, MANY, false), "%s: before", m->name);
    if (!m->in_batch)
        ok(!eval(&whole, id + MANY, PROMPT - MANY, false) &&
           !eval(&hurt, id + MANY, PROMPT - MANY, false), "and then");
    broken = true;
    rc = eval(&hurt, id + at, n, !m->in_batch);
    settle(&hurt);
    broken = false;
    ok(rc == m->rc && strstr(hurt.e.text, m->words), "%s: %d %s", m->name, rc, hurt.e.text);
    ok(session_length(hurt.s) == at && is_wiped(&hurt, at, at + n),
       "the timeline is as long as before, and what was half written is gone");
    if (m->in_batch)
        ok(!eval(&whole, id + at, n, false) && !eval(&hurt, id + at, n, false) &&
           same(&whole, &hurt), "the batch again: the same bits");
    ok(!eval(&whole, id + PROMPT, STEPS, true) && !eval(&hurt, id + PROMPT, STEPS, true) &&
       same(&whole, &hurt), "the steps that follow: the same bits");
    bed_close(&whole);
    bed_close(&hurt);
}

static void survive_all(const int32_t *id)
{
    static const struct mishap mishaps[] = {
        { "a late answer", "no answer from the CPU in 5000 ms", { .gpu = { .late_step = 1 } },
          false, -ETIMEDOUT },
        { "a NaN in a step", "not finite", { .gpu = { .nan_step = 1 } }, false, -EDOM },
        { "a NaN in a batch", "not finite", { .gpu = { .nan_batch = 2 } }, true, -EDOM },
        { "an expert that cannot be read in a step", "expert", { .read = break_reads }, false,
          -EIO },
        { "an expert that cannot be read in a batch", "expert", { .read = break_reads }, true,
          -EIO },
    };

    for (size_t i = 0; i < sizeof(mishaps) / sizeof(*mishaps); i++)
        survive(&mishaps[i], id);
}

/* --- the GPU is lost ---------------------------------------------------------------------- */

static void lose(const char *name, const struct engine_faults *f, const int32_t *id)
{
    struct err first;
    struct bed b;
    int rc;

    if (!set_up(&b, f))
        return;
    rc = eval(&b, id, PROMPT, false);
    if (!rc)
        rc = eval(&b, id + PROMPT, STEPS, true);
    first = b.e;
    ok(rc == -EREMOTEIO && exit_status(rc) == 71 && strstr(first.text, "GPU 0"), "%s: %s", name,
       first.text);
    ok(eval(&b, id, 8, false) == -EREMOTEIO && !strcmp(first.text, b.e.text),
       "whatever comes later hears the same");
    bed_close(&b);
    ok(1, "and nothing hangs");
}

static void lose_it(const int32_t *id)
{
    static const struct engine_faults in_step = { .gpu = { .dead_step = 2 } };
    static const struct engine_faults in_batch = { .gpu = { .dead_batch = 1 } };
    static const struct engine_faults at_start = { .gpu = { .dead_fill = 5 } };
    struct engine_faults in_copy = { .gpu = { .dead_fill = 0 } };
    struct bed b;
    int rc;

    if (!set_up(&b, NULL))
        return;
    /* Behind those that fill the seats: the second one that a prompt streams. */
    in_copy.gpu.dead_fill = engine_vram(b.g).seats + 2;
    bed_close(&b);
    lose("lost in a step", &in_step, id);
    lose("lost in a batch", &in_batch, id);
    lose("lost in a copy", &in_copy, id);
    describe(&b, "ref", &at_start);
    rc = engine_open(&b.g, &b.o, &b.e);
    ok(rc == -EREMOTEIO && strstr(b.e.text, "GPU 0"), "lost while it opens: %s", b.e.text);
}

/* Two requests: the first one hears of it, and the second one is not tried.  What is written to
 * standard output goes to a file meanwhile. */
static void lose_batch(void)
{
    static const char line[] = "{\"prompt\":\"Hello\",\"max_tokens\":9,\"ignore_eos\":true}\n";
    static const struct engine_faults f = { .gpu = { .dead_step = 4 } };
    char *dir = temp_dir(), in[4096], out[4096], got[4096] = "";
    int rc, saved = dup(1), fd;
    struct bed b;
    FILE *file;

    join_path(in, dir, "in");
    join_path(out, dir, "out");
    file = fopen(in, "w");
    fprintf(file, "%s%s", line, line);
    fclose(file);
    describe(&b, "ref", &f);
    b.o.file = in;
    fflush(stdout);
    fd = open(out, O_RDWR | O_CREAT, 0600);
    dup2(fd, 1);
    rc = cmd_batch(&b.o, &b.e);
    fflush(stdout);
    dup2(saved, 1);
    close(saved);
    rc = pread(fd, got, sizeof(got) - 1, 0) > 0 ? rc : 0;
    close(fd);
    ok(exit_status(rc) == 71 && strstr(b.e.text, "GPU 0") && strstr(got, "\"gpu_fault\"") &&
       strchr(got, '\n') == got + strlen(got) - 1, "batch: %s: %s", b.e.text, got);
    remove_dir(dir);
}

/* Between tokens, with nobody to hear of it but engine_idle(). */
static void lose_while_idle(void)
{
    static const struct engine_faults f = { .gpu = { .dead_fill = 9 } };
    struct bed b;
    int rc;

    describe(&b, "ref", &f);
    b.o.deterministic = false;
    rc = engine_open(&b.g, &b.o, &b.e);
    for (int i = 0; !rc && i < 1000000; i++)
        rc = engine_idle(b.g, 0.001, &b.e) < 0 ? 1 : 0;
    ok(rc == 1 && strstr(b.e.text, "GPU 0"), "lost while nobody asks: %s", b.e.text);
    bed_close(&b);
}

/* All seats are taken, and RAM is full, without a token; then there is nothing to do. */
static void fill_while_idle(void)
{
    struct bed b;
    int more, calls = 0;

    describe(&b, "ref", NULL);
    b.o.deterministic = false;
    b.o.ram_experts_bytes = 2 << 20;
    if (engine_open(&b.g, &b.o, &b.e)) {
        ok(0, "%s", b.e.text);
        return;
    }
    while ((more = engine_idle(b.g, 0.001, &b.e)) > 0 && calls < 10000000)
        calls++;
    ok(!more && engine_vram(b.g).seats > 0 && engine_vram(b.g).seated == engine_vram(b.g).seats,
       "%d calls while nobody asks: %d of %d seats are taken", calls, engine_vram(b.g).seated,
       engine_vram(b.g).seats);
    bed_close(&b);
}

/* --- cards -------------------------------------------------------------------------------- */

static int list_old_driver(struct gpu_facts out[MAX_GPUS], struct err *e)
{
    (void)out;
    return fail(e, -ENODEV, "CUDA: the driver is for CUDA 11.4, this program for 12.2: install "
                "a newer driver");
}

static int list_nothing(struct gpu_facts out[MAX_GPUS], struct err *e)
{
    (void)out;
    (void)e;
    return 0;
}

static int list_old_card(struct gpu_facts out[MAX_GPUS], struct err *e)
{
    (void)e;
    out[0] = (struct gpu_facts){ "Old", 8ul << 30, 8ul << 30, 7, 5, false };
    return 1;
}

static int list_display(struct gpu_facts out[MAX_GPUS], struct err *e)
{
    (void)e;
    out[0] = (struct gpu_facts){ "Shown", 1ul << 30, 1ul << 30, 8, 6, true };
    return 1;
}

/* Of a gigabyte others have all but 30 MB. */
static int list_taken(struct gpu_facts out[MAX_GPUS], struct err *e)
{
    list_display(out, e);
    out[0].time_limit = false;
    out[0].free_bytes = 30 << 20;
    return 1;
}

static int list_full(struct gpu_facts out[MAX_GPUS], struct err *e)
{
    list_taken(out, e);
    out[0].free_bytes = 2 << 20;
    return 1;
}

struct card {
    const char *device;
    int (*list)(struct gpu_facts out[MAX_GPUS], struct err *e);
    int64_t vram, reserve;
    int status;
    const char *words;          /* of the error, or of the only warning; NULL: there is none */
    bool used;
};

static void open_on(const struct card *c, const char *name)
{
    struct engine_faults f = { .list = c->list };
    struct bed b;
    int rc;

    describe(&b, c->device, &f);
    b.o.vram_bytes[0] = c->vram;
    b.o.vram_reserve_bytes = c->reserve;
    rc = engine_open(&b.g, &b.o, &b.e);
    ok(exit_status(rc) == c->status, "%s, --device %s: exit %d %s", name, c->device,
       exit_status(rc), b.e.text);
    if (rc)
        ok(c->words && strstr(b.e.text, c->words), "with the words");
    else
        ok(c->words ? b.o.log.notices == 1 && strstr(b.o.log.notice[0], c->words)
                    : !b.o.log.notices, "%d warnings: %s", b.o.log.notices,
           b.o.log.notices ? b.o.log.notice[0] : "");
    ok(rc || c->used == !!engine_gpu_name(b.g), "it is %sused", c->used ? "" : "not ");
    bed_close(&b);
}

static void open_cards(void)
{
    open_on(&(struct card){ "cuda", list_old_driver, SIZE_AUTO, 0, 69, "12.2", false },
            "an old driver");
    open_on(&(struct card){ "auto", list_old_driver, SIZE_AUTO, 0, 0, "newer driver", false },
            "an old driver");
    open_on(&(struct card){ "cuda", list_nothing, SIZE_AUTO, 0, 69, "no CUDA device", false },
            "no card");
    open_on(&(struct card){ "auto", list_nothing, SIZE_AUTO, 0, 0, NULL, false }, "no card");
    open_on(&(struct card){ "cuda", list_old_card, SIZE_AUTO, 0, 69, "capability 7.5", false },
            "an old card");
    open_on(&(struct card){ "auto", list_old_card, SIZE_AUTO, 0, 0, "capability 7.5", false },
            "an old card");
    open_on(&(struct card){ "cuda:1", list_display, SIZE_AUTO, 0, 69, "no CUDA device 1", false },
            "the second of one");
    open_on(&(struct card){ "auto", list_display, SIZE_AUTO, 0, 0, "--gpu-watchdog", true },
            "a card that drives a display");
    open_on(&(struct card){ "cuda", list_taken, 100 << 20, 0, 75, "100 MB are asked for, 30",
                            false }, "more than others left");
    open_on(&(struct card){ "cuda", list_full, SIZE_AUTO, 0, 75, "MB", false },
            "less than the least");
}

/* The plan shrinks to what others have left. */
static void plan_less(void)
{
    struct engine_faults f = { .list = list_display };
    int seats[2];

    for (int i = 0; i < 2; i++) {
        struct bed b;

        describe(&b, "cuda", &f);
        b.o.vram_bytes[0] = b.o.vram_experts_bytes = SIZE_AUTO;
        b.o.vram_reserve_bytes = 0;
        if (engine_open(&b.g, &b.o, &b.e)) {
            ok(0, "%s", b.e.text);
            return;
        }
        seats[i] = engine_placement(b.g)->vram_slots;
        bed_close(&b);
        f.list = list_taken;
    }
    ok(seats[1] < seats[0] && seats[1] >= 0, "%d seats instead of %d where others have VRAM",
       seats[1], seats[0]);
}

int main(void)
{
    struct golden deep;
    const int32_t *id;
    int n;

    if (!gpu_is_reference()) {
        ok(1, "faults of the GPU # SKIP this program was built with CUDA");
        return done();
    }
    golden_open(&deep, "models/nano/golden/deep.safetensors");
    id = golden_find(&deep, "ids.deep", &n);
    if (n < PROMPT + STEPS)
        exit((fprintf(stderr, "only %d ids\n", n), 99));
    survive_all(id);
    lose_it(id);
    lose_batch();
    lose_while_idle();
    fill_while_idle();
    open_cards();
    plan_less();
    golden_close(&deep);
    return done();
}
