/* The planner on Laguna-S-2.1's figures and on small numbers: every budget is kept, every
 * expert is counted once, and what does not fit says so. */
#include "src/placement.h"
#include "cpu/kv.h"
#include "src/options.h"
#include "tests/files.h"
#include "tests/tap.h"

#include <errno.h>
#include <math.h>

static const size_t GB = 1000000000, GiB = (size_t)1 << 30;

/* Laguna-S-2.1 in W4A16, attention in BF16: laguna.md 1.1 and 4.2. */
static void full_size(struct shape *s, struct needs *n)
{
    *s = (struct shape){ .layers = 48, .sparse_layers = 47, .hidden = 3072, .head_dim = 128,
                         .kv_heads = 8, .window = 512, .vocab = 100352, .experts = 256,
                         .topk = 10, .expert_inner = 1024, .shared_inner = 1024,
                         .dense_inner = 12288, .max_heads = 72, .max_positions = 1048576 };
    for (int i = 0; i < s->layers; i++)
        s->layer[i] = (struct layer_shape){ .full = i % 4 == 0, .heads = i % 4 ? 72 : 48 };
    *n = (struct needs){ .shape = s, .dense_bytes = 8027559424, .embed_bytes = 616562688,
                         .scratch_bytes = 100 << 20, .expert_bytes = 63870861312,
                         .slot_bytes = 5316608, .vram_dense_bytes = 8027758592,
                         .vram_slot_bytes = 5308416, .experts = 47 * 256 };
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

/* What a GPU opened by this plan takes. */
static size_t vram_of(const struct placement *p, const struct needs *n, enum kv_type type)
{
    struct gpu_config c = placement_gpu(p, n->shape, type);

    return gpu_bytes(&c);
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
    ok(p.vram_bytes <= b.vram_bytes && p.vram_bytes + p.vram_slot_bytes > b.vram_bytes &&
       p.vram_bytes == vram_of(&p, &n, KV_Q8) && p.vram == p.vram_slots &&
       p.vram_staging == VRAM_STAGING, "VRAM is full, and what the GPU takes: %.3f GB",
       (double)p.vram_bytes * 1e-9);
    ok(p.ram_slots == p.ram + s.topk && p.ram_bytes == p.mirror_bytes + p.pinned_bytes +
       n.scratch_bytes + (size_t)p.ram_slots * n.slot_bytes && p.ram_bytes <= b.ram_bytes,
       "RAM: a mirror of the rings, scratch, and no more slots than it takes, and a swap");
    /* 36 window layers of rows of 130 bytes, for keys and values of 8 heads. */
    ok(p.batch >= 2048 && p.mirror_bytes == (size_t)36 * (512 + (size_t)p.batch) * 130 * 2 * 8,
       "batches of %d, the mirror: %zu", p.batch, p.mirror_bytes);
    /* A batch's rows of 3072 floats; CUDA has some arrays of a step besides. */
    ok(p.pinned_bytes >= (size_t)p.batch * 12288 &&
       p.pinned_bytes <= (size_t)p.batch * 12288 + (gpu_is_reference() ? 0 : 8 << 20),
       "staging of a batch: %zu", p.pinned_bytes);
    b.ram_bytes = 96 * GB;
    placement_plan(&p, &n, &b);
    ok(p.copies && counts(&p, &n) && p.ram_slots == n.experts, "96 GB: RAM keeps copies");
    b.vram_experts_bytes = 100 * n.vram_slot_bytes + 1;
    placement_plan(&p, &n, &b);
    ok(p.vram == 100 && p.vram_staging == VRAM_STAGING, "--vram-experts bounds the seats alone");
    b.vram_experts_bytes = 0;
    placement_plan(&p, &n, &b);
    ok(p.fits && !p.vram && p.ram == n.experts, "--vram-experts 0: dense weights alone");
    b.kv_type = KV_F32;
    placement_plan(&p, &n, &b);
    ok(!p.fits && strstr(p.why, "f32 KV is for the CPU") && p.nvme == n.experts, "%s", p.why);
    b = budget_of(60 * GB);
    b.gpu = true;
    b.vram_bytes = 80 * GB + GiB * 8;
    placement_plan(&p, &n, &b);
    ok(p.fits && p.vram == n.experts && p.vram_staging >= VRAM_STAGING_LEAST && !p.nvme &&
       p.ram_slots == s.topk, "a large card: all are seated, and RAM has slots to read through");
    b.ram_experts_bytes = 0;
    placement_plan(&p, &n, &b);
    ok(p.fits && !p.ram_slots && p.staging_slots == s.topk, "even if RAM may keep none");
}

/* A conversation that waits: as large as the cache, which is 12 full layers of 32768 rows and 36
 * rings, of 130 bytes for keys and values of 8 heads. */
static void test_parked(void)
{
    struct shape s;
    struct needs n;
    struct placement alone, p;
    struct budget b = budget_of(40 * GB);
    size_t fixed;

    full_size(&s, &n);
    b.gpu = true;
    b.vram_bytes = 23 * GB;
    placement_plan(&alone, &n, &b);
    b.parks = b.uploads = true;
    placement_plan(&p, &n, &b);
    ok(!alone.parked_bytes && p.parked_bytes == (size_t)130 * 2 * 8 * (12 * 32768 +
       36 * (512 + (size_t)p.batch)) && p.parked_bytes == p.kv_bytes, "it takes %zu",
       p.parked_bytes);
    ok(p.fits && counts(&p, &n) && p.vram == alone.vram && p.ram_bytes <= b.ram_bytes &&
       alone.ram - p.ram == (int)(p.parked_bytes / n.slot_bytes) +
       (alone.ram - p.ram > (int)(p.parked_bytes / n.slot_bytes)),
       "which are %d experts in RAM less", alone.ram - p.ram);
    ok(p.uploads && !alone.uploads, "whether experts are uploaded is handed on");
    b.ram_bytes = GB;
    placement_plan(&p, &n, &b);
    fixed = p.mirror_bytes + p.parked_bytes + p.pinned_bytes + n.scratch_bytes;
    ok(!p.fits && strstr(p.why, "953 MB may be used (--ram)") &&
       p.ram_bytes == fixed + (size_t)s.topk * n.slot_bytes, "1 GB: %s", p.why);
    b.ram_bytes = p.ram_bytes;
    placement_plan(&p, &n, &b);
    ok(p.fits, "to the byte");
    b.gpu = false;
    b.ram_bytes = 40 * GB;
    placement_plan(&p, &n, &b);
    ok(p.fits && !p.parked_bytes && !p.pinned_bytes && !p.uploads, "nothing of it without a GPU");
}

static void test_little_vram(void)
{
    struct shape s;
    struct needs n;
    struct placement p;
    struct budget b = budget_of(60 * GB);
    size_t fixed;

    full_size(&s, &n);
    b.gpu = true;
    b.context = 512;
    b.vram_bytes = 6 * GB;
    placement_plan(&p, &n, &b);
    fixed = p.vram_bytes - VRAM_STAGING_LEAST * p.vram_slot_bytes;
    ok(!p.fits && strstr(p.why, "VRAM") && strstr(p.why, "5722 MB may be used (--vram)") &&
       p.nvme == n.experts && !p.vram, "6 GB: %s", p.why);
    b.vram_bytes = p.vram_bytes - 1;
    placement_plan(&p, &n, &b);
    ok(!p.fits, "a byte short of two slots for streaming");
    b.vram_bytes++;
    placement_plan(&p, &n, &b);
    ok(p.fits && !p.vram && p.vram_staging == 2 && p.vram_bytes == b.vram_bytes, "to the byte");
    b.vram_bytes = fixed + 11 * p.vram_slot_bytes;
    placement_plan(&p, &n, &b);
    ok(p.vram == 9 && p.vram_staging == 2, "eleven slots: two of them stream");
    b.vram_bytes = fixed + 100 * p.vram_slot_bytes;
    placement_plan(&p, &n, &b);
    ok(p.vram == 88 && p.vram_staging == 12, "a hundred: an eighth does");
    b.vram_bytes = fixed + (size_t)(n.experts - 1) * p.vram_slot_bytes;
    placement_plan(&p, &n, &b);
    ok(p.vram == n.experts - 1 - VRAM_STAGING && p.vram_staging == VRAM_STAGING,
       "one too few for all");
    n.vram_dense_bytes = SIZE_MAX;
    placement_plan(&p, &n, &b);
    ok(!p.fits && p.vram_bytes == SIZE_MAX, "sums saturate");
}

/* The batch is the largest whose scratch and rings keep their share. */
static void test_batch(void)
{
    struct shape s;
    struct needs n;
    struct placement p, least, twice;
    struct budget b = budget_of(60 * GB);

    full_size(&s, &n);
    n.vram_dense_bytes = 400000000;
    b.gpu = true;
    b.context = 8192;
    for (size_t vram = 2 * GB; vram < 8 * GB; vram += GB) {
        b.vram_bytes = vram;
        placement_plan(&p, &n, &b);
        least = twice = p;
        least.batch = GPU_BATCH_LEAST;
        twice.batch = 2 * p.batch;
        ok(p.fits && p.batch >= 512 && p.batch <= 8192 && !(p.batch & (p.batch - 1)) &&
           vram_of(&p, &n, KV_Q8) - vram_of(&least, &n, KV_Q8) <= vram / 8 &&
           (p.batch == 8192 ||
            vram_of(&twice, &n, KV_Q8) - vram_of(&least, &n, KV_Q8) > vram / 8),
           "%zu GB of VRAM: %d tokens", vram / GB, p.batch);
    }
    b.context = 3000;
    placement_plan(&p, &n, &b);
    ok(p.batch == 2048, "a batch is not longer than the context");
    b.context = 300;
    placement_plan(&p, &n, &b);
    ok(p.batch == 300, "a short context is a batch");
}

static size_t random_size(uint64_t *r, size_t most)
{
    *r = *r * 6364136223846793005u + 1442695040888963407u;
    return (size_t)((double)(*r >> 11) * 0x1p-53 * (double)most);
}

static struct budget random_budget(uint64_t *r)
{
    struct budget b = budget_of(random_size(r, 120 * GB));

    b.gpu = true;
    b.vram_bytes = random_size(r, 100 * GB);
    if (random_size(r, 2))
        b.ram_experts_bytes = random_size(r, 80 * GB);
    if (random_size(r, 2))
        b.vram_experts_bytes = random_size(r, 40 * GB);
    b.context_bytes = b.vram_bytes;
    b.context = random_size(r, 3) ? 1 + (int)random_size(r, 300000) : 0;
    b.snapshots = (int)random_size(r, 9);
    b.parks = random_size(r, 2);
    b.kv_type = (enum kv_type)random_size(r, 3);
    return b;
}

/* No plan takes more than it may, or counts an expert twice. */
static void test_random(void)
{
    struct shape s;
    struct needs n;
    struct placement p;
    uint64_t r = 1;
    int fit = 0, wrong = 0;

    full_size(&s, &n);
    for (int i = 0; i < 2000; i++) {
        struct budget b = random_budget(&r);
        bool good;

        placement_plan(&p, &n, &b);
        good = counts(&p, &n);
        fit += p.fits;
        if (p.fits)
            good &= p.vram_bytes <= b.vram_bytes && p.ram_bytes <= b.ram_bytes &&
                    p.vram_bytes == vram_of(&p, &n, b.kv_type) &&
                    (size_t)p.vram_slots * p.vram_slot_bytes <= b.vram_experts_bytes &&
                    (size_t)p.ram_slots * p.slot_bytes <= b.ram_experts_bytes &&
                    p.vram == p.vram_slots && p.ram <= p.ram_slots &&
                    p.vram <= n.experts && p.batch <= p.context &&
                    placement_slots(&p) >= s.topk && p.batch <= GPU_BATCH_MOST &&
                    p.ram_bytes == p.mirror_bytes + p.parked_bytes + p.pinned_bytes +
                    p.snapshot_bytes + p.scratch_bytes +
                    (size_t)placement_slots(&p) * p.slot_bytes &&
                    p.vram_staging >= VRAM_STAGING_LEAST;
        else
            good &= *p.why && p.nvme == n.experts;
        wrong += !good;
    }
    ok(!wrong && fit > 500 && fit < 1900, "2000 budgets by chance: %d fit, %d plans are wrong",
       fit, wrong);
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
    b.gpu = true;
    b.context_bytes = b.vram_bytes = 23 * GB;
    placement_plan(&p, &n, &b);
    ok(p.fits && p.context > 100000 && p.kv_bytes <= 23 * GB / 4 &&
       kv_bytes(&s, KV_Q8, p.context + CONTEXT_STEP, p.batch) > 23 * GB / 4,
       "auto with a GPU: %d tokens take %.2f of 23 GB", p.context, (double)p.kv_bytes * 1e-9);
    b.gpu = false;
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
                         .vram_experts_bytes = SIZE_AUTO, .vram_bytes = { SIZE_AUTO },
                         .vram_reserve_bytes = SIZE_AUTO };
    struct room r = { 20 * GiB, 32 * GiB, 0, 0, 0 };
    struct budget b;

    budget_fill(&b, &o, &r);
    ok(b.ram_bytes == 18 * GiB && !b.gpu && b.context_bytes == 32 * GiB &&
       b.ram_experts_bytes == SIZE_MAX, "auto leaves a sixteenth");
    r = (struct room){ 250 * GiB, 256 * GiB, 20 * GiB, 24 * GiB, 0 };
    budget_fill(&b, &o, &r);
    ok(b.ram_bytes == 246 * GiB && b.gpu && b.vram_bytes == 20 * GiB - 24 * GiB / 16 &&
       b.context_bytes == b.vram_bytes, "of RAM at most 4 GiB; of VRAM what is free counts");
    r.vram_free = r.vram_total = 6 * GiB;
    budget_fill(&b, &o, &r);
    ok(b.vram_bytes == 6 * GiB - GiB / 2, "of a small card 512 MiB");
    o.vram_reserve_bytes = 0;
    budget_fill(&b, &o, &r);
    ok(b.vram_bytes == 6 * GiB, "--vram-reserve 0");
    o.vram_reserve_bytes = (int64_t)(7 * GiB);
    r.ram_free = GiB;
    budget_fill(&b, &o, &r);
    ok(b.ram_bytes == 0 && b.vram_bytes == 0, "less is free than is to be left: nothing");
    o.ram_bytes = (int64_t)GiB;
    o.ram_experts_bytes = 0;
    o.vram_bytes[0] = (int64_t)(30 * GiB);
    budget_fill(&b, &o, &r);
    ok(b.ram_bytes == GiB && b.ram_experts_bytes == 0 && b.vram_bytes == 30 * GiB,
       "what is asked for counts");
    r.card = 1;
    o.vram_bytes[1] = (int64_t)(10 * GiB);
    budget_fill(&b, &o, &r);
    ok(b.vram_bytes == 10 * GiB, "the second card has the second size");
    o.vram_bytes[1] = SIZE_AUTO;
    o.vram_reserve_bytes = (int64_t)GiB;
    budget_fill(&b, &o, &r);
    ok(b.vram_bytes == 5 * GiB, "and is auto where there is none");
}

static void test_conversations(void)
{
    struct options o = { .kv_type = "q8", .command = CMD_SERVE, .sessions = 2,
                         .upload_share = NAN };
    struct room r = { 20 * GiB, 32 * GiB, 6 * GiB, 6 * GiB, 0 };
    struct budget b;

    budget_fill(&b, &o, &r);
    ok(b.parks && b.uploads, "of two conversations one waits; experts are uploaded");
    o.sessions = 1;
    budget_fill(&b, &o, &r);
    ok(!b.parks, "one has nothing to wait for");
    o.command = CMD_PLAN;
    o.sessions = 2;
    budget_fill(&b, &o, &r);
    ok(b.parks, "a plan is that of a server");
    o.command = CMD_RUN;
    o.upload_share = 0;
    budget_fill(&b, &o, &r);
    ok(!b.parks && !b.uploads, "a single run is not; --upload-share 0: none are");
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
        /* Each of the 3 matrices: 4096 bytes of weights and 512 of scales. */
        ok(n.vram_slot_bytes == 13824 && n.vram_dense_bytes > n.dense_bytes &&
           n.vram_dense_bytes < n.dense_bytes + n.dense_bytes / 20,
           "in VRAM: %zu bytes of dense weights for %zu", n.vram_dense_bytes, n.dense_bytes);
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
    test_parked();
    test_little_vram();
    test_batch();
    test_random();
    test_context();
    test_budget();
    test_conversations();
    test_nano();
    return done();
}
