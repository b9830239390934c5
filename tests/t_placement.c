/* The planner on Laguna-S-2.1's figures and on small numbers: every budget is kept, every
 * expert is counted once, and what does not fit says so. */
#include "src/placement.h"
#include "cpu/kv.h"
#include "src/options.h"
#include "tests/files.h"
#include "tests/tap.h"

#include <errno.h>

static const size_t GB = 1000000000, GiB = (size_t)1 << 30;

/* Laguna-S-2.1 in W4A16, attention in BF16: laguna.md 1.1 and 4.2. */
static void full_size(struct shape *s, struct needs *n)
{
    *s = (struct shape){ .layers = 48, .sparse_layers = 47, .hidden = 3072, .head_dim = 128,
                         .kv_heads = 8, .window = 512, .vocab = 100352, .experts = 256,
                         .topk = 10, .max_positions = 1048576 };
    for (int i = 0; i < s->layers; i++)
        s->layer[i].full = i % 4 == 0;
    *n = (struct needs){ .shape = s, .dense_bytes = 8027559424, .embed_bytes = 616562688,
                         .scratch_bytes = 100 << 20, .expert_bytes = 63870861312,
                         .slot_bytes = 5316608, .experts = 47 * 256 };
}

static struct budget budget_of(size_t ram)
{
    return (struct budget){ .ram_bytes = ram, .ram_experts_bytes = SIZE_MAX,
                            .vram_experts_bytes = SIZE_MAX, .context_bytes = ram,
                            .context = 32768, .batch = 512, .kv_type = KV_Q8 };
}

static bool counts(const struct placement *p, const struct needs *n)
{
    return p->vram + p->ram + p->nvme == n->experts && p->vram >= 0 && p->ram >= 0 && p->nvme >= 0;
}

static void test_ram(void)
{
    struct shape s;
    struct needs n;
    struct placement p;
    struct budget b = budget_of(96 * GB);

    full_size(&s, &n);
    placement_plan(&p, &n, &b);
    ok(p.fits && p.ram == n.experts && p.copies && !p.nvme && !p.staging_slots,
       "96 GB hold all of Laguna-S-2.1");
    ok(p.ram_bytes == n.dense_bytes + p.kv_bytes + n.scratch_bytes +
       (size_t)n.experts * n.slot_bytes, "and what they hold adds up to %.1f GB",
       (double)p.ram_bytes * 1e-9);
    b = budget_of(48 * GB);
    placement_plan(&p, &n, &b);
    ok(p.fits && counts(&p, &n) && p.ram > 7000 && p.ram < 7500 && p.ram_bytes <= b.ram_bytes &&
       p.ram_bytes + n.slot_bytes > b.ram_bytes && !p.copies,
       "48 GB: %d experts in RAM, %d on the drive, no slot to spare", p.ram, p.nvme);
    b.ram_experts_bytes = 10 * GB;
    placement_plan(&p, &n, &b);
    ok(p.ram_slots == (int)(10 * GB / n.slot_bytes) && !p.staging_slots, "--ram-experts bounds");
    b.ram_experts_bytes = 0;
    placement_plan(&p, &n, &b);
    ok(p.fits && !p.ram && p.nvme == n.experts && p.staging_slots == s.topk &&
       (size_t)p.staging_slots * p.slot_bytes <= STAGING_BYTES,
       "none in RAM: a staging area of one token's experts");
    b.ram_experts_bytes = 3 * n.slot_bytes;
    placement_plan(&p, &n, &b);
    ok(p.ram_slots == 3 && placement_slots(&p) == s.topk, "three: staging adds what is missing");
    n.slot_bytes = STAGING_BYTES + 4096;
    b.ram_experts_bytes = 0;
    placement_plan(&p, &n, &b);
    ok(p.staging_slots == 1, "experts above 64 MB come one at a time");
}

static void test_refusal(void)
{
    struct shape s;
    struct needs n;
    struct placement p;
    struct budget b = budget_of(8 * GB);

    full_size(&s, &n);
    placement_plan(&p, &n, &b);
    ok(!p.fits && strstr(p.why, "7629 MB may be used") && strstr(p.why, "-c 32768") &&
       p.nvme == n.experts && !p.ram, "8 GB do not: %s", p.why);
    b.ram_bytes = p.ram_bytes;
    placement_plan(&p, &n, &b);
    ok(p.fits && p.staging_slots + p.ram_slots == s.topk, "to the byte: it fits");
    b.ram_bytes--;
    placement_plan(&p, &n, &b);
    ok(!p.fits, "a byte less: it does not");
    b.ram_bytes = 0;
    placement_plan(&p, &n, &b);
    ok(!p.fits, "no memory at all");
    n.dense_bytes = SIZE_MAX;
    b.ram_bytes = 8 * GB;
    placement_plan(&p, &n, &b);
    ok(!p.fits && p.ram_bytes == SIZE_MAX, "sums saturate");
}

static void test_gpu(void)
{
    struct shape s;
    struct needs n;
    struct placement p;
    struct budget b = budget_of(60 * GB);

    full_size(&s, &n);
    b.gpu = true;
    b.vram_bytes = 23 * GB;
    placement_plan(&p, &n, &b);
    ok(p.fits && counts(&p, &n) && !p.nvme && !p.copies,
       "24 GB of VRAM and 64 of RAM: %d and %d experts, none on the drive", p.vram, p.ram);
    ok(p.vram_bytes <= b.vram_bytes && p.ram_bytes <= b.ram_bytes, "within both budgets");
    ok(p.ram_slots == p.ram + s.topk, "and no more slots in RAM than it takes, and a swap");
    b.ram_bytes = 96 * GB;
    placement_plan(&p, &n, &b);
    ok(p.copies && counts(&p, &n) && p.ram_slots == n.experts, "96 GB: RAM keeps copies");
    b.vram_experts_bytes = 0;
    placement_plan(&p, &n, &b);
    ok(p.fits && !p.vram && p.ram == n.experts, "--vram-experts 0: dense weights alone");
    b.vram_bytes = 6 * GB;
    placement_plan(&p, &n, &b);
    ok(!p.fits && strstr(p.why, "VRAM") && p.nvme == n.experts, "6 GB of VRAM: %s", p.why);
    b = budget_of(60 * GB);
    b.gpu = true;
    b.vram_bytes = 80 * GB + GiB * 8;
    placement_plan(&p, &n, &b);
    ok(p.fits && p.vram == n.experts && !p.staging_slots, "a large card needs no staging");
}

static void test_context(void)
{
    struct shape s;
    struct needs n;
    struct placement p;
    struct budget b = budget_of(64 * GB);

    full_size(&s, &n);
    b.context = 0;
    placement_plan(&p, &n, &b);
    ok(p.context % CONTEXT_STEP == 0 && p.kv_bytes <= 16 * GB &&
       kv_bytes(&s, KV_Q8, p.context + CONTEXT_STEP, 512) > 16 * GB,
       "auto: %d tokens take %.2f of 64 GB", p.context, (double)p.kv_bytes * 1e-9);
    b.context_bytes = 1 * GB;
    placement_plan(&p, &n, &b);
    ok(p.context == CONTEXT_LEAST, "auto: at least 8192");
    b.context_bytes = 2000 * GB;
    placement_plan(&p, &n, &b);
    ok(p.context == s.max_positions, "auto: at most what the model has");
    s.max_positions = 4096;
    placement_plan(&p, &n, &b);
    ok(p.context == 4096, "auto: a model with fewer than 8192 positions");
    b.context = 100;
    placement_plan(&p, &n, &b);
    ok(p.batch == 100, "a batch is not longer than the context");
    b.kv_type = KV_FP8;
    b.snapshots = 3;
    placement_plan(&p, &n, &b);
    ok(p.snapshot_bytes == 3 * (size_t)37748736, "a snapshot takes 37.7 MB at FP8");
}

static void test_budget(void)
{
    struct options o = { .kv_type = "q8", .ram_bytes = SIZE_AUTO, .ram_experts_bytes = SIZE_AUTO,
                         .vram_experts_bytes = SIZE_AUTO, .vram_bytes = { SIZE_AUTO } };
    struct budget b;

    budget_fill(&b, &o, 20 * GiB, 32 * GiB, 0);
    ok(b.ram_bytes == 18 * GiB && !b.gpu && b.context_bytes == 32 * GiB &&
       b.ram_experts_bytes == SIZE_MAX, "auto leaves a sixteenth");
    budget_fill(&b, &o, 250 * GiB, 256 * GiB, 24 * GiB);
    ok(b.ram_bytes == 246 * GiB && b.gpu && b.vram_bytes == 24 * GiB / 16 * 15,
       "of RAM at most 4 GiB");
    budget_fill(&b, &o, GiB, 256 * GiB, 0);
    ok(b.ram_bytes == 0, "less is free than is to be left: nothing");
    o.ram_bytes = (int64_t)GiB;
    o.ram_experts_bytes = 0;
    o.vram_bytes[0] = (int64_t)(30 * GiB);
    budget_fill(&b, &o, 0, 0, 24 * GiB);
    ok(b.ram_bytes == GiB && b.ram_experts_bytes == 0 && b.vram_bytes == 24 * GiB,
       "what is asked for counts, up to the size of the card");
}

/* The counts of nano, from its headers. */
static void test_nano(void)
{
    struct log quiet = { .level = LOG_QUIET };
    struct model *m = NULL;
    struct needs n;
    struct budget b = budget_of(GB);
    struct placement p;
    struct err e = { "" };
    char *dir = source_path("models/nano");
    int rc = model_open(&m, dir, &quiet, &e);

    ok(!rc, "nano opens %s", e.text);
    if (!rc) {
        ok(!needs_of(&n, m, &e) && n.experts == 7 * 128 && n.expert_bytes == 12386304 &&
           n.slot_bytes % 4096 == 0 && n.slot_bytes >= n.expert_bytes / 896,
           "nano: 896 experts of 12,386,304 bytes, slots of %zu", n.slot_bytes);
        placement_plan(&p, &n, &b);
        ok(p.fits && p.ram == 896, "a gigabyte holds them");
        b.ram_bytes = 4 << 20;
        placement_plan(&p, &n, &b);
        ok(!p.fits, "4 MB do not");
    }
    model_close(m);
    free(dir);
}

int main(void)
{
    test_ram();
    test_refusal();
    test_gpu();
    test_context();
    test_budget();
    test_nano();
    return done();
}
