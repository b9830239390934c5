/* Decides sizes and counts, and touches nothing.  Dense weights and KV come first, because
 * every token reads them; the experts get what is left, VRAM before RAM before the drive.
 * Which expert lies where is the caches' affair: they follow the statistics. */
#include "src/placement.h"
#include "cpu/kv.h"
#include "src/experts.h"
#include "src/options.h"
#include "storage/extents.h"

#include <stdio.h>

_Static_assert((int)EXPERT_PARTS == (int)EXTENT_PARTS, "an expert's parts become extents");

enum {
    SYSTEM_SHARE = 16,                  /* of RAM and of VRAM that auto leaves alone */
    VRAM_ALIGN = 256,                   /* of each part of an expert there */
};

static const size_t system_most = (size_t)4 << 30;

int needs_of(struct needs *out, const struct model *m, struct err *e)
{
    size_t n = (size_t)m->shape.sparse_layers * (size_t)m->shape.experts;
    size_t embed = (size_t)m->embed.rows * (size_t)m->embed.cols * sizeof(bf16);

    *out = (struct needs){ .shape = &m->shape, .dense_bytes = m->arena_bytes,
                           .embed_bytes = m->embed.format == W_BF16 ? embed : 0,
                           .expert_bytes = m->expert_bytes, .experts = (int)n };
    for (size_t i = 0; i < n; i++) {
        struct extent_part part[EXTENT_PARTS];
        struct extents x;
        int rc;

        expert_parts(&m->expert[i], part);
        rc = extents_plan(&x, part, EXTENT_PARTS, e);
        if (rc)
            return rc;
        if (x.slot_bytes > out->slot_bytes)
            out->slot_bytes = x.slot_bytes;
    }
    return 0;
}

static size_t less(size_t a, size_t b)
{
    return a < b ? a : b;
}

static size_t minus(size_t a, size_t b)
{
    return a > b ? a - b : 0;
}

void budget_fill(struct budget *b, const struct options *o, size_t ram_free, size_t ram_total,
                 size_t vram)
{
    bool ram_auto = o->ram_bytes == SIZE_AUTO, vram_auto = o->vram_bytes[0] == SIZE_AUTO;

    *b = (struct budget){ .gpu = vram > 0, .context = o->context,
                          .kv_type = kv_type_named(o->kv_type) };
    b->ram_bytes = ram_auto ? minus(ram_free, less(ram_total / SYSTEM_SHARE, system_most))
                            : (size_t)o->ram_bytes;
    b->ram_experts_bytes = o->ram_experts_bytes == SIZE_AUTO ? SIZE_MAX
                                                             : (size_t)o->ram_experts_bytes;
    b->vram_bytes = vram_auto ? vram - vram / SYSTEM_SHARE : less((size_t)o->vram_bytes[0], vram);
    b->vram_experts_bytes = o->vram_experts_bytes == SIZE_AUTO ? SIZE_MAX
                                                               : (size_t)o->vram_experts_bytes;
    b->context_bytes = b->gpu ? b->vram_bytes : ram_auto ? ram_total : b->ram_bytes;
}

/* -c auto: the largest step whose KV takes a quarter of where it lives. */
static int choose_context(const struct shape *s, const struct budget *b)
{
    int n = CONTEXT_LEAST;

    if (b->context)
        return b->context;
    while (n <= s->max_positions - CONTEXT_STEP &&
           kv_bytes(s, b->kv_type, n + CONTEXT_STEP, b->batch) <= b->context_bytes / 4)
        n += CONTEXT_STEP;
    return n < s->max_positions ? n : s->max_positions;
}

/* Slots that make a wave: what a token chooses, so that its reads can all be in flight. */
static int wave_slots(const struct needs *n)
{
    size_t most = n->slot_bytes ? STAGING_BYTES / n->slot_bytes : 0;

    if (!n->experts)
        return 0;
    return most < 1 ? 1 : (int)less(most, (size_t)n->shape->topk);
}

static int count_slots(size_t bytes, size_t slot_bytes, int most)
{
    return slot_bytes ? (int)less(bytes / slot_bytes, (size_t)most) : 0;
}

static int missing(int have, int want)
{
    return want > have ? want - have : 0;
}

static void refuse(struct placement *p, const char *where, const char *setting, size_t need,
                   size_t have)
{
    p->fits = false;
    snprintf(p->why, sizeof(p->why), "%zu MB of %s are needed and %zu MB may be used (%s): "
             "%zu MB of dense weights, %zu MB of KV cache (-c %d), %zu MB of snapshots, %zu MB "
             "of scratch and staging", need >> 20, where, have >> 20, setting,
             p->dense_bytes >> 20, p->kv_bytes >> 20, p->context, p->snapshot_bytes >> 20,
             (p->scratch_bytes + (size_t)p->staging_slots * p->slot_bytes) >> 20);
}

/* The GPU: all dense weights, KV and scratch, then experts. */
static void plan_vram(struct placement *p, const struct needs *n, const struct budget *b)
{
    size_t fixed = add_sat(add_sat(n->dense_bytes, p->kv_bytes), p->scratch_bytes);
    size_t slot = n->experts ? align_up(n->expert_bytes / (size_t)n->experts, VRAM_ALIGN) +
                               EXPERT_PARTS * VRAM_ALIGN : 0;

    p->vram_bytes = fixed;
    if (fixed > b->vram_bytes) {
        refuse(p, "VRAM", "--vram", fixed, b->vram_bytes);
        return;
    }
    p->vram_slots = count_slots(less(b->vram_bytes - fixed, b->vram_experts_bytes), slot,
                                n->experts);
    p->vram = p->vram_slots;
    p->vram_bytes += (size_t)p->vram_slots * slot;
}

/* RAM: what the GPU does not have, then slots for all experts or as many as there is room
 * for.  Staging is not paid for by --ram-experts, but --ram is for everything. */
static void plan_ram(struct placement *p, const struct needs *n, const struct budget *b)
{
    size_t fixed = b->gpu ? p->snapshot_bytes
                          : add_sat(add_sat(n->dense_bytes, p->kv_bytes),
                                    add_sat(p->snapshot_bytes, p->scratch_bytes));

    p->ram_slots = count_slots(less(minus(b->ram_bytes, fixed), b->ram_experts_bytes),
                               n->slot_bytes, n->experts);
    /* Short of a copy of everything, RAM holds what VRAM does not, and room to swap. */
    if (p->ram_slots < n->experts && p->ram_slots > n->experts - p->vram + wave_slots(n))
        p->ram_slots = n->experts - p->vram + wave_slots(n);
    p->staging_slots = p->vram == n->experts ? 0 : missing(p->ram_slots, wave_slots(n));
    p->ram_bytes = add_sat(fixed, mul_sat((size_t)placement_slots(p), n->slot_bytes));
    if (p->ram_bytes > b->ram_bytes)
        refuse(p, "memory", "--ram", p->ram_bytes, b->ram_bytes);
    p->copies = n->experts && p->ram_slots == n->experts;
    p->ram = (int)less((size_t)p->ram_slots, (size_t)(n->experts - p->vram));
    p->nvme = n->experts - p->vram - p->ram;
}

void placement_plan(struct placement *p, const struct needs *n, const struct budget *b)
{
    *p = (struct placement){ .fits = true, .gpu = b->gpu, .dense_bytes = n->dense_bytes,
                             .scratch_bytes = n->scratch_bytes, .slot_bytes = n->slot_bytes };
    p->context = choose_context(n->shape, b);
    p->batch = p->context < b->batch ? p->context : b->batch;
    p->kv_bytes = kv_bytes(n->shape, b->kv_type, p->context, p->batch);
    p->snapshot_bytes = mul_sat((size_t)b->snapshots, kv_snapshot_bytes(n->shape, b->kv_type));
    if (b->gpu)
        plan_vram(p, n, b);
    if (p->fits)
        plan_ram(p, n, b);
    if (!p->fits)
        p->vram = p->ram = 0, p->nvme = n->experts;
}
