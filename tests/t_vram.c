/* Who sits in VRAM: the experts of nano over the GPU of this build. */
#include "cpu/pool.h"
#include "src/placement.h"
#include "src/vram.h"
#include "tests/damage.h"
#include "tests/tap.h"

#include <errno.h>
#include <math.h>

enum { ROUNDS = 400 };

static const double RATE = 1e9;

struct bed {
    struct log log;
    struct model *m;
    struct pool *pool;
    struct experts *x;
    struct gpu *g;
    struct vram *v;
    struct needs needs;
    double move_seconds;                /* one expert through PCIe at RATE */
    uint8_t *memory, *disk;             /* [slot_bytes] each */
};

static void check(int rc, const struct err *e)
{
    if (rc)
        exit((printf("Bail out! %s\n", e->text), 99));
}

static void open_gpu(struct bed *b, int slots)
{
    struct gpu_config c = { .shape = &b->m->shape, .context = 64, .batch = GPU_STEP_TOKENS,
                            .kv = GPU_KV_BF16, .slots = slots, .dense_bytes = 1 << 20 };
    struct err e;
    int rc;

    for (int i = 0; i < b->needs.experts; i++) {
        size_t n = gpu_ffn_bytes(&b->m->expert[i].ffn);

        c.slot_bytes = n > c.slot_bytes ? n : c.slot_bytes;
    }
    b->move_seconds = (double)c.slot_bytes / RATE;
    rc = gpu_open(&b->g, &c, &e);
    if (rc == -ENODEV)
        exit((printf("1..0 # SKIP %s\n", e.text), 0));
    check(rc, &e);
}

/* ram: slots, or EXPERTS_ALL. */
static void set_up(struct bed *b, const char *dir, int ram, int seats)
{
    struct experts_config c = { .slots = ram, .copies = ram == EXPERTS_ALL, .log = &b->log };
    struct err e;

    memset(b, 0, sizeof(*b));
    b->log.level = LOG_QUIET;
    check(model_open(&b->m, dir, &b->log, &e), &e);
    check(needs_of(&b->needs, b->m, &e), &e);
    check(pool_open(&b->pool, &(struct pool_config){ .threads = 1 }, &e), &e);
    c.model = b->m;
    c.pool = b->pool;
    c.slot_bytes = b->needs.slot_bytes;
    check(experts_open(&b->x, &c, &e), &e);
    open_gpu(b, seats);
    b->memory = malloc(b->needs.slot_bytes);
    b->disk = malloc(b->needs.slot_bytes);
}

static void open_vram(struct bed *b, int seats, bool fixed, bool exclusive)
{
    struct vram_config c = { .model = b->m, .gpu = b->g, .experts = b->x, .slots = seats,
                             .fixed = fixed, .exclusive = exclusive,
                             .h2d_bytes_per_second = RATE, .log = &b->log };
    struct err e;

    check(vram_open(&b->v, &c, &e), &e);
}

static void fill(struct bed *b)
{
    struct err e;

    check(vram_fill(b->v, &e), &e);
}

static void tear_down(struct bed *b)
{
    vram_close(b->v);
    ok(!experts_close(b->x), "closed");
    gpu_close(b->g);
    pool_close(b->pool);
    model_close(b->m);
    free(b->memory);
    free(b->disk);
}

/* `tokens` tokens choose experts first..first + n - 1. */
static void use(struct bed *b, int layer, int first, int n, int tokens)
{
    uint16_t id[MAX_EXPERTS];
    struct route r = { .tokens = 1, .topk = n, .expert = id };

    for (int i = 0; i < n; i++)
        id[i] = (uint16_t)(first + i);
    for (int i = 0; i < tokens; i++)
        experts_note(b->x, layer, &r);
}

/* Between so many steps; two experts may move in each. */
static void steps(struct bed *b, int n)
{
    for (int i = 0; i < n; i++)
        vram_advance(b->v, 2 * b->move_seconds);
}

static bool seated(const struct bed *b, int layer, int id)
{
    return gpu_seat_of(b->g, layer, id) >= 0;
}

static int seated_of(const struct bed *b, int layer)
{
    int n = 0;

    for (int id = 0; id < b->m->shape.experts; id++)
        n += seated(b, layer, id);
    return n;
}

/* The bytes of an expert are those of the shards. */
static bool as_on_disk(const struct bed *b, const struct expert *x)
{
    const struct expert_source *s = model_expert(b->m, x->layer, x->id);
    const struct matrix *m[] = { &x->ffn.gate, &x->ffn.up, &x->ffn.down };
    bool same = true;

    for (int i = 0; i < EXPERT_PARTS; i++) {
        const void *part[] = { m[i / 3]->weight, m[i / 3]->scale, m[i / 3]->zero };
        const struct part *p = &s->part[i];

        if (p->shard < 0)
            continue;
        same = same && part[i % 3] &&
               pread(checkpoint_fd(b->m->checkpoint, p->shard), b->disk, p->bytes,
                     (off_t)p->offset) == (ssize_t)p->bytes &&
               !memcmp(b->disk, part[i % 3], p->bytes);
    }
    return same;
}

static bool right_in_vram(const struct bed *b, int layer, int id)
{
    const struct expert_source *s = model_expert(b->m, layer, id);
    struct expert x = { layer, id, s->ffn };
    struct matrix *m[] = { &x.ffn.gate, &x.ffn.up, &x.ffn.down };
    uint8_t *at = b->memory;
    struct err e;

    memset(b->memory, 0xa5, b->needs.slot_bytes);
    for (int i = 0; i < EXPERT_PARTS; i++) {
        const void **part[] = { &m[i / 3]->weight, &m[i / 3]->scale, &m[i / 3]->zero };

        if (s->part[i].shard < 0)
            continue;
        *part[i % 3] = at;
        at += s->part[i].bytes;
    }
    return !gpu_read_slot(b->g, gpu_seat_of(b->g, layer, id), &x, &e) && !gpu_wait(b->g, &e) &&
           as_on_disk(b, &x);
}

/* Ask for an expert as a token does.  Its bytes are right, and *ram: they lay in RAM. */
static bool right_in_request(struct bed *b, int layer, int id, bool *ram)
{
    uint64_t before = experts_counts(b->x).ram;
    const struct expert *const *x;
    uint16_t want = (uint16_t)id;
    bool right = false;
    struct err e;

    experts_request(b->x, layer, &want, 1);
    *ram = experts_counts(b->x).ram > before;
    if (experts_next(b->x, &x, &e) == 1)
        right = x[0]->layer == layer && x[0]->id == id && as_on_disk(b, x[0]);
    experts_release(b->x);
    experts_finish(b->x);
    return right;
}

static int wrong_in_vram(const struct bed *b)
{
    int wrong = 0;

    for (int layer = 0; layer < b->m->shape.layers; layer++)
        for (int id = 0; id < b->m->shape.experts; id++)
            wrong += seated(b, layer, id) && !right_in_vram(b, layer, id);
    return wrong;
}

static void fills(const char *dir, int ram)
{
    struct vram_stats s;
    struct bed b;
    int shares = 0, hot = 0;

    set_up(&b, dir, ram, 50);
    use(&b, 3, 100, 6, 20);
    open_vram(&b, 50, false, ram != EXPERTS_ALL);
    ok(vram_seated(b.v) == 0 && !vram_busy(b.v), "nobody at first");
    vram_advance(b.v, b.move_seconds);
    ok(vram_busy(b.v), "one is on its way");
    fill(&b);
    s = vram_stats(b.v);
    for (int layer = 1; layer < b.m->shape.layers; layer++)
        shares += seated_of(&b, layer) == 7 + (layer == 1);
    for (int id = 100; id < 106; id++)
        hot += seated(&b, 3, id);
    ok(s.seated == 50 && s.promotions == 50 && s.demotions == 0 && !vram_busy(b.v) &&
       s.bytes >= 50 * (uint64_t)gpu_ffn_bytes(&b.m->expert[0].ffn), "%d slots in RAM: 50 seats",
       ram);
    ok(shares == 7, "an equal share for each layer");
    ok(hot == 6 && seated(&b, 3, 0) && !seated(&b, 3, 1), "the popular ones, then by id");
    ok(!wrong_in_vram(&b), "with the bytes of the shards");
    tear_down(&b);
}

static void budget(const char *dir)
{
    struct bed b;

    set_up(&b, dir, EXPERTS_ALL, 28);
    open_vram(&b, 28, false, false);
    vram_advance(b.v, 0);
    ok(!vram_busy(b.v), "no time, no promotion");
    vram_advance(b.v, 2.5 * b.move_seconds);
    vram_advance(b.v, 0);
    ok(vram_seated(b.v) == 2 && !vram_busy(b.v), "time for two and a half: two");
    vram_advance(b.v, 0.3 * b.move_seconds);
    ok(!vram_busy(b.v), "0.8");
    vram_advance(b.v, 0.3 * b.move_seconds);
    vram_advance(b.v, 0);
    ok(vram_seated(b.v) == 3 && !vram_busy(b.v), "1.1: the third");
    fill(&b);
    steps(&b, ROUNDS);
    use(&b, 2, 40, 4, 200);
    use(&b, 3, 40, 4, 200);
    vram_advance(b.v, 0);
    vram_advance(b.v, 0.9 * b.move_seconds);
    for (int i = 0; i < 20; i++)
        vram_advance(b.v, 0);
    ok(vram_stats(b.v).demotions <= 1, "what is not used is not saved up: %ju",
       (uintmax_t)vram_stats(b.v).demotions);
    tear_down(&b);
}

static void follows(const char *dir, int ram, bool exclusive)
{
    struct bed b;
    int in = 0;

    set_up(&b, dir, ram, 28);
    open_vram(&b, 28, false, exclusive);
    fill(&b);
    steps(&b, ROUNDS);
    ok(vram_stats(b.v).demotions == 0, "nothing is known: nothing changes");
    use(&b, 5, 50, 4, 200);
    for (int i = 0; i < ROUNDS * 20 && (i < ROUNDS || vram_busy(b.v)); i++)
        steps(&b, 1);
    for (int id = 50; id < 54; id++)
        in += seated(&b, 5, id);
    ok(in == 4 && seated_of(&b, 5) == 4 && vram_seated(b.v) == 28 && !vram_busy(b.v) &&
       vram_stats(b.v).demotions == 4, "the layer's new favourites have the seats: %d", in);
    ok(seated(&b, 4, 0) && seated(&b, 4, 3), "other layers are as they were");
    ok(!wrong_in_vram(&b), "the right bytes");
    tear_down(&b);
}

/* Every expert is used as often as any other: the seats are not passed around. */
static void even(const char *dir)
{
    struct vram_stats s;
    struct bed b;

    set_up(&b, dir, EXPERTS_ALL, 28);
    open_vram(&b, 28, false, false);
    fill(&b);
    for (int i = 0; i < 2048; i++) {
        use(&b, 1, i * 8 % 128, 8, 1);
        steps(&b, 1);
    }
    s = vram_stats(b.v);
    ok(s.demotions <= 8, "even use: %ju exchanges in 2048 tokens", (uintmax_t)s.demotions);
    tear_down(&b);
}

/* Who is in VRAM is not in RAM; who leaves comes back there, and not from the drive. */
static void exclusive(const char *dir)
{
    int both = 0, wrong = 0, home = 0, ready = 0;
    bool ram = false;
    struct bed b;

    set_up(&b, dir, 160, 28);
    open_vram(&b, 28, false, true);
    fill(&b);
    for (int id = 60; id < 64; id++)    /* in RAM, whatever was read ahead */
        wrong += !right_in_request(&b, 6, id, &ram);
    use(&b, 6, 60, 4, 200);
    steps(&b, ROUNDS);
    ok(!vram_busy(b.v) && vram_stats(b.v).demotions == 4, "four have changed places");
    for (int id = 0; id < 4; id++) {
        wrong += !right_in_request(&b, 6, id, &ram);
        home += ram;
    }
    ok(!wrong && home == 4, "who left is in RAM, with the right bytes: %d", home);
    for (int layer = 1; layer < b.m->shape.layers; layer++)
        for (int id = 0; id < b.m->shape.experts; id++) {
            if (!seated(&b, layer, id))
                continue;
            for (int i = 0; i < 2; i++) {
                wrong += !right_in_request(&b, layer, id, &ram);
                both += ram;
            }
        }
    ok(!both && !wrong, "who is in VRAM is not in RAM: %d; the drive has it: %d", both, wrong);
    use(&b, 6, 0, 4, 400);
    for (int i = 0; i < ROUNDS; i++) {
        steps(&b, 1);
        for (int id = 0; id < 4; id++) {        /* on its way here, there, or neither */
            wrong += !right_in_request(&b, 6, id, &ram);
            wrong += !right_in_request(&b, 6, 60 + id, &ram);
        }
    }
    for (int id = 0; id < 4; id++)
        ready += seated(&b, 6, id) && right_in_vram(&b, 6, id);
    ok(!wrong && ready == 4, "and back, wanted at every moment: %d wrong, %d seated", wrong,
       ready);
    tear_down(&b);
}

/* Slots for hardly anything but the request: slower, and never wrong. */
static void narrow(const char *dir)
{
    int wrong = 0;
    struct bed b;
    bool ram;

    set_up(&b, dir, 1, 28);
    open_vram(&b, 28, false, true);
    fill(&b);
    use(&b, 2, 30, 4, 200);
    for (int i = 0; i < 5 * ROUNDS; i++) {
        steps(&b, 1);
        wrong += !right_in_request(&b, 2, i % 40, &ram);
    }
    ok(!wrong && seated(&b, 2, 30) && seated(&b, 2, 33), "two slots: %d wrong", wrong);
    ok(!wrong_in_vram(&b), "the right bytes");
    tear_down(&b);
}

static void fixed(const char *dir)
{
    struct bed b;
    int low = 0;

    set_up(&b, dir, 40, 30);
    use(&b, 3, 100, 8, 500);
    open_vram(&b, 30, true, true);
    fill(&b);
    use(&b, 4, 100, 8, 500);
    steps(&b, ROUNDS);
    for (int layer = 1; layer < b.m->shape.layers; layer++)
        for (int id = 0; id < (layer <= 2 ? 5 : 4); id++)
            low += seated(&b, layer, id);
    ok(low == 30 && vram_seated(b.v) == 30, "fixed: the lowest ids");
    ok(vram_stats(b.v).promotions == 30 && !vram_busy(b.v), "for ever");
    tear_down(&b);
}

static void bounds(const char *dir)
{
    struct bed b;
    int n;

    set_up(&b, dir, 40, 0);
    open_vram(&b, 0, false, true);
    fill(&b);
    steps(&b, 3);
    ok(vram_seated(b.v) == 0 && !vram_busy(b.v), "no seats");
    tear_down(&b);

    set_up(&b, dir, 40, 1000);
    open_vram(&b, 1000, false, true);
    fill(&b);
    use(&b, 3, 100, 8, 500);
    steps(&b, ROUNDS);
    n = b.needs.experts;
    ok(vram_seated(b.v) == n && vram_stats(b.v).demotions == 0, "more seats than experts: %d", n);
    ok(!wrong_in_vram(&b), "each in its own");
    tear_down(&b);
}

/* Closed with copies under way, and opened again over the same experts and GPU. */
static void again(const char *dir)
{
    struct bed b;
    bool ram;

    set_up(&b, dir, 40, 28);
    open_vram(&b, 28, false, true);
    fill(&b);
    use(&b, 1, 50, 4, 200);
    while (!vram_busy(b.v))
        steps(&b, 1);
    vram_close(b.v);
    ok(!seated(&b, 1, 3) && !seated(&b, 1, 50) && !seated(&b, 7, 0), "closed: nobody is seated");
    ok(right_in_request(&b, 1, 0, &ram) && right_in_request(&b, 1, 0, &ram) && ram,
       "and RAM keeps them again");
    open_vram(&b, 28, false, true);
    fill(&b);
    ok(vram_seated(b.v) == 28 && !wrong_in_vram(&b), "opened again");
    tear_down(&b);
}

static void damaged(void)
{
    static const char tensor[] = "model.layers.1.mlp.experts.5.up_proj.weight_scale";
    static const bf16 nan = 0x7fc0;
    char *dir = copy_model("tests/data/nano-w4a16-1");
    struct bed b;

    patch(dir, tensor, &nan, sizeof(nan));
    set_up(&b, dir, 8, 8);
    open_vram(&b, 8, false, true);
    fill(&b);
    steps(&b, ROUNDS);
    ok(vram_seated(b.v) == 7 && !seated(&b, 1, 5) && !vram_busy(b.v),
       "a damaged expert leaves its seat empty");
    tear_down(&b);
    remove_dir(dir);
}

int main(void)
{
    char *dir = source_path("models/nano");

    fills(dir, EXPERTS_ALL);
    fills(dir, 40);
    budget(dir);
    follows(dir, EXPERTS_ALL, false);
    follows(dir, 40, true);
    follows(dir, 40, false);
    even(dir);
    exclusive(dir);
    narrow(dir);
    fixed(dir);
    bounds(dir);
    again(dir);
    damaged();
    free(dir);
    return done();
}
