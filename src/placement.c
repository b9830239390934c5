/* Decides sizes and counts, and touches nothing.  Dense weights and KV come first, because
 * every token reads them; the experts get what is left, VRAM before RAM before the drive.
 * Which expert lies where is the caches' affair: they follow the statistics. */
#include "src/placement.h"
#include "cpu/kv.h"
#include "src/experts.h"
#include "src/model_bind.h"
#include "src/options.h"
#include "storage/extents.h"

#include <stdio.h>

_Static_assert((int)EXPERT_PARTS == (int)EXTENT_PARTS, "an expert's parts become extents");
_Static_assert((int)GPU_KV_Q8 == KV_Q8 && (int)GPU_KV_FP8 == KV_FP8 &&
               (int)GPU_KV_BF16 == KV_BF16, "what the GPU keeps has the CPU's numbers");

enum {
    STAGING_SHARE = 8,                  /* of the slots in VRAM, for streaming at most */
    SYSTEM_SHARE = 16,                  /* of RAM and of VRAM that auto leaves alone */
    BATCH_SHARE = 8,                    /* of VRAM, for batches above the least */
    LAYER_SLACK = 4096,                 /* of dense weights in VRAM: gpu_config asks for it */
};

static const size_t system_most = (size_t)4 << 30, card_least = (size_t)512 << 20;

static size_t less(size_t a, size_t b)
{
    return a < b ? a : b;
}

static size_t more(size_t a, size_t b)
{
    return a > b ? a : b;
}

static size_t minus(size_t a, size_t b)
{
    return a > b ? a - b : 0;
}

/* Of the slot in VRAM that holds an expert.  Its pointers are NULL until it is read, and zero
 * points are counted by theirs. */
static size_t vram_expert_bytes(const struct expert_source *s)
{
    struct ffn f = s->ffn;
    struct matrix *const matrix[] = { &f.gate, &f.up, &f.down };

    for (int i = 0; i < 3; i++)
        if (s->part[3 * i + 2].shard >= 0)
            matrix[i]->zero = s;
    return gpu_ffn_bytes(&f);
}

static size_t vram_dense_bytes(const struct model *m)
{
    size_t n = gpu_matrix_bytes(&m->embed) + gpu_matrix_bytes(&m->head) +
               align_up((size_t)m->shape.hidden * sizeof(float), GPU_PART_ALIGN);

    for (int i = 0; i < m->shape.layers; i++)
        n += gpu_layer_bytes(&m->layer[i]) + LAYER_SLACK;
    /* Before the weights are loaded their zero points too have no pointers yet. */
    for (size_t i = 0; !m->arena && i < m->loads; i++)
        if (strstr(m->load[i].tensor->name, ".weight_zero_point"))
            n += align_up(m->load[i].tensor->bytes, GPU_PART_ALIGN);
    return n;
}

int needs_of(struct needs *out, const struct model *m, struct err *e)
{
    size_t n = (size_t)m->shape.sparse_layers * (size_t)m->shape.experts;
    size_t embed = (size_t)m->embed.rows * (size_t)m->embed.cols * sizeof(bf16);

    *out = (struct needs){ .shape = &m->shape, .dense_bytes = m->arena_bytes,
                           .embed_bytes = m->embed.format == W_BF16 ? embed : 0,
                           .vram_dense_bytes = vram_dense_bytes(m),
                           .expert_bytes = m->expert_bytes, .experts = (int)n };
    for (size_t i = 0; i < n; i++) {
        struct extent_part part[EXTENT_PARTS];
        struct extents x;
        int rc;

        expert_parts(&m->expert[i], part);
        rc = extents_plan(&x, part, EXTENT_PARTS, e);
        if (rc)
            return rc;
        out->slot_bytes = more(out->slot_bytes, x.slot_bytes);
        out->vram_slot_bytes = more(out->vram_slot_bytes, vram_expert_bytes(&m->expert[i]));
    }
    return 0;
}

static size_t size_or(int64_t asked, size_t otherwise)
{
    return asked == SIZE_AUTO ? otherwise : (size_t)asked;
}

void budget_fill(struct budget *b, const struct options *o, const struct room *r)
{
    size_t system = less(r->ram_total / SYSTEM_SHARE, system_most);
    size_t reserve = size_or(o->vram_reserve_bytes, more(r->vram_total / SYSTEM_SHARE, card_least));

    *b = (struct budget){ .gpu = r->vram_total > 0, .context = o->context,
                          .kv_type = kv_type_named(o->kv_type) };
    b->uploads = !(o->upload_share <= 0);       /* auto is no number */
    b->parks = (o->command == CMD_SERVE || o->command == CMD_PLAN) && o->sessions > 1;
    b->ram_bytes = size_or(o->ram_bytes, minus(r->ram_free, system));
    b->ram_experts_bytes = size_or(o->ram_experts_bytes, SIZE_MAX);
    b->vram_bytes = size_or(o->vram_bytes[r->card], minus(r->vram_free, reserve));
    b->vram_experts_bytes = size_or(o->vram_experts_bytes, SIZE_MAX);
    b->context_bytes = b->gpu ? b->vram_bytes : size_or(o->ram_bytes, r->ram_total);
}

/* --- context and batch -------------------------------------------------------------------- */

struct gpu_config placement_gpu(const struct placement *p, const struct shape *s,
                                enum kv_type type)
{
    return (struct gpu_config){ .shape = s, .context = p->context, .batch = p->batch,
                                .kv = (enum gpu_kv)type,
                                .slots = p->vram_slots + p->vram_staging,
                                .slot_bytes = p->vram_slot_bytes,
                                .dense_bytes = p->vram_dense_bytes };
}

/* The most tokens of a pass on the GPU: twice as many read each streamed expert half as often,
 * and take twice the scratch, and longer rings. */
static int choose_batch(const struct shape *s, const struct budget *b)
{
    int most = b->context ? b->context : s->max_positions;
    struct placement p = { .context = most, .batch = GPU_BATCH_LEAST };
    struct gpu_config c = placement_gpu(&p, s, b->kv_type);
    size_t least = gpu_bytes(&c);

    while (c.batch < GPU_BATCH_MOST && 2 * c.batch <= most) {
        c.batch *= 2;
        if (gpu_bytes(&c) - least > b->vram_bytes / BATCH_SHARE)
            return c.batch / 2;
    }
    return c.batch;
}

/* -c auto: the largest step whose KV takes a quarter of where it lives. */
static int choose_context(const struct shape *s, const struct budget *b, int batch)
{
    int n = CONTEXT_LEAST;

    if (b->context)
        return b->context;
    while (n <= s->max_positions - CONTEXT_STEP &&
           kv_bytes(s, b->kv_type, n + CONTEXT_STEP, batch) <= b->context_bytes / 4)
        n += CONTEXT_STEP;
    return n < s->max_positions ? n : s->max_positions;
}

/* What the window layers take of kv_bytes(). */
static size_t ring_bytes(const struct shape *s, enum kv_type type, int context, int batch)
{
    struct shape rings = *s;

    rings.layers = 0;
    for (int i = 0; i < s->layers; i++)
        if (!s->layer[i].full)
            rings.layer[rings.layers++] = s->layer[i];
    return kv_bytes(&rings, type, context, batch);
}

/* --- slots -------------------------------------------------------------------------------- */

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

/* More is needed than there is: the numbers in words. */
static void refuse(struct placement *p, bool vram, size_t need, size_t have)
{
    size_t dense = vram ? p->vram_dense_bytes : p->gpu ? 0 : p->dense_bytes;
    size_t kv = p->gpu && !vram ? add_sat(p->mirror_bytes, p->parked_bytes) : p->kv_bytes;
    size_t scratch = vram ? p->vram_scratch_bytes + (size_t)p->vram_staging * p->vram_slot_bytes
                          : p->scratch_bytes + p->pinned_bytes +
                            (size_t)p->staging_slots * p->slot_bytes;

    p->fits = false;
    snprintf(p->why, sizeof(p->why), "%zu MB of %s are needed and %zu MB may be used (%s): "
             "%zu MB of dense weights, %zu MB of KV cache (-c %d), %zu MB of snapshots, %zu MB "
             "of scratch and staging", need >> 20, vram ? "VRAM" : "memory", have >> 20,
             vram ? "--vram" : "--ram", dense >> 20, kv >> 20, p->context,
             vram ? 0 : p->snapshot_bytes >> 20, scratch >> 20);
}

/* Of the slots that there is room for, the first few are for streaming: without them a prompt
 * could use nothing but the seats.  Where all experts could be seated, two are enough, for the
 * time until they are.  --vram-experts bounds the seats alone. */
static void share_slots(struct placement *p, const struct needs *n, const struct budget *b,
                        int room)
{
    int seats = count_slots(b->vram_experts_bytes, p->vram_slot_bytes, n->experts);
    int staging = room / STAGING_SHARE < VRAM_STAGING ? room / STAGING_SHARE : VRAM_STAGING;

    if (room >= n->experts && seats == n->experts && staging > room - seats)
        staging = room - seats;
    if (staging < VRAM_STAGING_LEAST)
        staging = VRAM_STAGING_LEAST;
    if (seats > missing(staging, room))
        seats = missing(staging, room);
    p->vram = p->vram_slots = seats;
    p->vram_staging = n->experts ? staging : 0;
}

/* The GPU: all dense weights, KV for the whole context and scratch, then experts. */
static void plan_vram(struct placement *p, const struct needs *n, const struct budget *b)
{
    struct gpu_config c = placement_gpu(p, n->shape, b->kv_type);
    size_t fixed = gpu_bytes(&c);

    p->vram_scratch_bytes = minus(fixed, add_sat(p->vram_dense_bytes, p->kv_bytes));
    share_slots(p, n, b, count_slots(minus(b->vram_bytes, fixed), p->vram_slot_bytes,
                                     n->experts + VRAM_STAGING));
    p->vram_bytes = add_sat(fixed, mul_sat((size_t)(p->vram_slots + p->vram_staging),
                                           p->vram_slot_bytes));
    if (p->vram_bytes > b->vram_bytes)
        refuse(p, true, p->vram_bytes, b->vram_bytes);
}

/* What lies in RAM besides experts.  With a GPU the dense weights only pass through: they are
 * gone before there are slots. */
static size_t fixed_ram(const struct placement *p)
{
    size_t n = add_sat(p->snapshot_bytes, p->scratch_bytes);

    if (!p->gpu)
        return add_sat(n, add_sat(p->dense_bytes, p->kv_bytes));
    return add_sat(n, add_sat(p->pinned_bytes, add_sat(p->mirror_bytes, p->parked_bytes)));
}

/* RAM: what the GPU does not have, then slots for all experts or as many as there is room
 * for.  Staging is not paid for by --ram-experts, but --ram is for everything. */
static void plan_ram(struct placement *p, const struct needs *n, const struct budget *b)
{
    size_t fixed = fixed_ram(p);

    p->ram_slots = count_slots(less(minus(b->ram_bytes, fixed), b->ram_experts_bytes),
                               n->slot_bytes, n->experts);
    /* Short of a copy of everything, RAM holds what VRAM does not, and room to swap. */
    if (p->ram_slots < n->experts && p->ram_slots > n->experts - p->vram + wave_slots(n))
        p->ram_slots = n->experts - p->vram + wave_slots(n);
    /* An expert that has a seat is read through RAM too. */
    p->staging_slots = missing(p->ram_slots, wave_slots(n));
    p->ram_bytes = add_sat(fixed, mul_sat((size_t)placement_slots(p), n->slot_bytes));
    if (p->ram_bytes > b->ram_bytes)
        refuse(p, false, p->ram_bytes, b->ram_bytes);
    p->copies = n->experts && p->ram_slots == n->experts;
    p->ram = (int)less((size_t)p->ram_slots, (size_t)(n->experts - p->vram));
    p->nvme = n->experts - p->vram - p->ram;
}

/* What a GPU costs of RAM.  Of conversations that wait one is counted, as long as they get: each
 * takes memory only for what was said in it. */
static void plan_host(struct placement *p, const struct needs *n, const struct budget *b)
{
    struct gpu_config c = placement_gpu(p, n->shape, b->kv_type);

    p->uploads = b->uploads;
    p->mirror_bytes = ring_bytes(n->shape, b->kv_type, p->context, p->batch);
    p->parked_bytes = b->parks ? p->kv_bytes : 0;
    p->pinned_bytes = gpu_host_bytes(&c);
}

void placement_plan(struct placement *p, const struct needs *n, const struct budget *b)
{
    bool keeps = !b->gpu || b->kv_type != KV_F32;

    *p = (struct placement){ .fits = keeps, .gpu = b->gpu, .dense_bytes = n->dense_bytes,
                             .scratch_bytes = n->scratch_bytes, .slot_bytes = n->slot_bytes,
                             .batch = b->batch };
    if (b->gpu && keeps)
        p->batch = choose_batch(n->shape, b);
    p->context = choose_context(n->shape, b, p->batch);
    if (p->batch > p->context)
        p->batch = p->context;
    p->kv_bytes = kv_bytes(n->shape, b->kv_type, p->context, p->batch);
    p->snapshot_bytes = mul_sat((size_t)b->snapshots, kv_snapshot_bytes(n->shape, b->kv_type));
    if (b->gpu) {
        plan_host(p, n, b);
        p->vram_dense_bytes = n->vram_dense_bytes;
        p->vram_slot_bytes = align_up(n->vram_slot_bytes, GPU_PART_ALIGN);
    }
    if (!keeps)
        snprintf(p->why, sizeof(p->why), "f32 KV is for the CPU: choose another --kv-type, or "
                 "--device cpu");
    if (b->gpu && p->fits)
        plan_vram(p, n, b);
    if (p->fits)
        plan_ram(p, n, b);
    if (!p->fits)
        p->vram = p->ram = 0, p->nvme = n->experts;
}
