/* Weights and experts on their way into VRAM, experts on their way back, and the table of who
 * sits where. */
#include "cuda/gpu_internal.cuh"
#include "cuda/sizes.h"

#include <assert.h>
#include <errno.h>

/* Where copies go: memory from `at` on, by way of the copy stream, or by a step's own kernel.
 * What is adjacent on both sides is one copy. */
struct target {
    struct gpu *g;
    uint8_t *at, *end;
    struct offers *offers;              /* the kernel's list, or NULL */
    bool full;                          /* something did not fit */
    uint8_t *to;                        /* the copy that grows, of n bytes */
    const uint8_t *from;
    size_t n;
};

static void flush(struct target *t)
{
    if (t->n && t->offers)
        t->offers->stretch[t->offers->stretches++] = { t->from, t->to, t->n };
    else if (t->n)
        TRY(t->g, cudaMemcpyAsync(t->to, t->from, t->n, cudaMemcpyHostToDevice, t->g->copy));
    t->n = 0;
}

static void *put(struct target *t, const void *from, size_t n)
{
    uint8_t *to = t->at;

    if (!n)
        return NULL;
    if (align_up(n, GPU_PART_ALIGN) > (size_t)(t->end - t->at)) {
        t->full = true;
        return NULL;
    }
    if (!t->n || t->from + t->n != from || t->to + t->n != to) {
        flush(t);
        t->to = to;
        t->from = (const uint8_t *)from;
    }
    t->n += n;
    t->at += align_up(n, GPU_PART_ALIGN);
    return to;
}

static void put_matrix(struct target *t, struct matrix *to, const struct matrix *m)
{
    struct part_bytes b = gpu_part_bytes(m);

    *to = *m;
    to->weight = put(t, m->weight, b.weight);
    to->scale = put(t, m->scale, b.scale);
    to->zero = put(t, m->zero, b.zero);
}

/* A part of an expert: where it comes from, and who wants to know where it went. */
struct piece {
    const void *from, **to;
    size_t n;
};

static int add_pieces(struct piece *p, struct matrix *to, const struct matrix *m)
{
    struct part_bytes b = gpu_part_bytes(m);

    *to = *m;
    p[0] = { m->weight, &to->weight, b.weight };
    p[1] = { m->scale, &to->scale, b.scale };
    p[2] = { m->zero, &to->zero, b.zero };
    return 3;
}

/* In the order of their addresses: an expert's parts are neighbours in the file, and six copies
 * become two or one. */
static void put_ffn(struct target *t, struct ffn *to, const struct ffn *f)
{
    struct piece p[FFN_PARTS];
    int n = add_pieces(p, &to->gate, &f->gate);

    n += add_pieces(p + n, &to->up, &f->up);
    n += add_pieces(p + n, &to->down, &f->down);
    for (int i = 1; i < n; i++)
        for (int j = i; j > 0 && (uintptr_t)p[j].from < (uintptr_t)p[j - 1].from; j--) {
            struct piece swap = p[j];

            p[j] = p[j - 1];
            p[j - 1] = swap;
        }
    for (int i = 0; i < n; i++)
        *p[i].to = put(t, p[i].from, p[i].n);
}

static struct target dense_target(struct gpu *g)
{
    struct target t = { g, g->arena + g->dense_at, g->arena + g->dense_end };

    return t;
}

static int finish(struct target *t, const char *what, struct err *e)
{
    struct gpu *g = t->g;

    flush(t);
    TRY(g, cudaStreamSynchronize(g->copy));
    if (t->full)
        return fail(e, -ENOMEM, "%s: no room in the %zu MB that were planned for dense weights",
                    what, g->c.dense_bytes >> 20);
    g->dense_at = t->at - g->arena;
    return gpu_check(g, e);
}

int gpu_set_layer(struct gpu *g, int layer, const struct layer_weights *w, struct err *e)
{
    struct layer_weights *d = &g->layer[layer];
    struct target t = dense_target(g);
    size_t hidden = g->shape.hidden, dim = g->shape.head_dim;
    char name[32];

    if (w->router.rows && w->router.format != W_BF16)
        return fail(e, -ENOTSUP, "layer %d: the router is quantised", layer);
    *d = *w;
    d->attn_norm = (float *)put(&t, w->attn_norm, hidden * sizeof(float));
    d->ffn_norm = (float *)put(&t, w->ffn_norm, hidden * sizeof(float));
    d->q_norm = (float *)put(&t, w->q_norm, dim * sizeof(float));
    d->k_norm = (float *)put(&t, w->k_norm, dim * sizeof(float));
    put_matrix(&t, &d->q, &w->q);
    put_matrix(&t, &d->k, &w->k);
    put_matrix(&t, &d->v, &w->v);
    put_matrix(&t, &d->g, &w->g);
    put_matrix(&t, &d->o, &w->o);
    put_ffn(&t, &d->ffn, &w->ffn);
    put_matrix(&t, &d->router, &w->router);
    d->router_bias = (float *)put(&t, w->router_bias, w->router.rows * sizeof(float));
    snprintf(name, sizeof(name), "layer %d", layer);
    return finish(&t, name, e);
}

int gpu_set_ends(struct gpu *g, const struct gpu_ends *w, struct err *e)
{
    struct target t = dense_target(g);

    if (w->embed->format != W_BF16)
        return fail(e, -ENOTSUP, "the embedding is quantised");
    put_matrix(&t, &g->embed, w->embed);
    put_matrix(&t, &g->head, w->head);
    g->final_norm = (float *)put(&t, w->norm, g->shape.hidden * sizeof(float));
    return finish(&t, "embedding and head", e);
}

struct matrix gpu_place_matrix(struct gpu *g, uint8_t *at, const struct matrix *m)
{
    struct target t = { g, at, at + gpu_matrix_bytes(m) };
    struct matrix d;

    put_matrix(&t, &d, m);
    flush(&t);
    TRY(g, cudaStreamSynchronize(g->copy));
    return d;
}

static struct target slot_target(struct gpu *g, int slot)
{
    size_t each = align_up(g->c.slot_bytes, GPU_PART_ALIGN);

    return { g, g->slots + slot * each, g->slots + (slot + 1) * each };
}

int gpu_fill_slot(struct gpu *g, int slot, const struct expert *x, struct err *e)
{
    struct target t = slot_target(g, slot);
    int rc = gpu_check_fits(&g->c, x, e);

    if (rc)
        return rc;
    gpu_sync_table(g);
    TRY(g, cudaStreamWaitEvent(g->copy, g->table_used, 0));
    put_ffn(&t, &g->slot_ffn[slot], &x->ffn);
    flush(&t);
    TRY(g, cudaEventRecord(g->slot_done[slot], g->copy));
    g->slot_waited[slot] = false;
    return gpu_check(g, e);
}

static bool same_shape(const struct matrix *a, const struct matrix *b)
{
    return a->format == b->format && a->rows == b->rows && a->cols == b->cols &&
           a->group == b->group && !a->zero == !b->zero;
}

static void read_part(struct gpu *g, const void *to, const void *from, size_t n)
{
    if (n)
        TRY(g, cudaMemcpyAsync((void *)to, from, n, cudaMemcpyDefault, g->copy));
}

/* Into the caller's memory, though a matrix promises to leave it alone. */
static void read_matrix(struct gpu *g, const struct matrix *to, const struct matrix *m)
{
    struct part_bytes b = gpu_part_bytes(m);

    read_part(g, to->weight, m->weight, b.weight);
    read_part(g, to->scale, m->scale, b.scale);
    read_part(g, to->zero, m->zero, b.zero);
}

int gpu_read_slot(struct gpu *g, int slot, const struct expert *into, struct err *e)
{
    const struct ffn *f = &g->slot_ffn[slot], *to = &into->ffn;

    if (!same_shape(&to->gate, &f->gate) || !same_shape(&to->up, &f->up) ||
        !same_shape(&to->down, &f->down))
        return fail(e, -EINVAL, "slot %d does not hold an expert of this shape", slot);
    read_matrix(g, &to->gate, &f->gate);
    read_matrix(g, &to->up, &f->up);
    read_matrix(g, &to->down, &f->down);
    TRY(g, cudaEventRecord(g->slot_done[slot], g->copy));
    return gpu_check(g, e);
}

/* Bytes of an offer in slot `slot`, added to the list that the step's kernel works off. */
static void list_stretches(struct gpu *g, const struct gpu_offer *o)
{
    struct target t = slot_target(g, o->slot);

    t.offers = g->offers;
    put_ffn(&t, &g->slot_ffn[o->slot], &o->expert->ffn);
    flush(&t);
    g->offers->expert[g->offers->experts++] = { o->expert->id, o->slot, g->slot_ffn[o->slot] };
}

int gpu_offer(struct gpu *g, const struct gpu_offer *o, int n, struct err *e)
{
    assert(n >= 0 && n <= GPU_OFFERS && g->box->offer != g->seen);
    for (int i = 0; i < n; i++) {
        int rc = gpu_check_fits(&g->c, o[i].expert, e);

        if (rc)
            return rc;
    }
    g->offers->experts = g->offers->stretches = 0;
    for (int i = 0; i < n; i++)
        list_stretches(g, &o[i]);
    __atomic_store_n(&g->box->offer, g->seen, __ATOMIC_RELEASE);
    return gpu_check(g, e);
}

double gpu_fetch_seconds(const struct gpu *g)
{
    return (double)g->box->fetch_ns * 1e-9;
}

bool gpu_slot_ready(struct gpu *g, int slot)
{
    cudaError_t rc = cudaEventQuery(g->slot_done[slot]);

    if (rc != cudaErrorNotReady)
        TRY(g, rc);
    return rc != cudaErrorNotReady;
}

__global__ static void seat_kernel(int *seat, struct ffn *ffn, const struct seating *change, int n)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;

    if (i >= n)
        return;
    seat[change[i].at] = change[i].slot;
    ffn[change[i].at] = change[i].ffn;
}

/* Changes of one call are applied at once, so none may be for the same seat: gpu_seat() sees
 * to that. */
void gpu_sync_table(struct gpu *g)
{
    int n = g->changes - g->changed;

    if (!n)
        return;
    seat_kernel<<<ceil_div(n, 64), 64, 0, g->stream>>>(g->seat, g->ffn_seat,
                                                       g->change_dev + g->changed, n);
    LAUNCHED(g);
    TRY(g, cudaEventRecord(g->table_used, g->stream));
    g->changed = g->changes;
}

void gpu_seat(struct gpu *g, int layer, int id, int slot)
{
    int at = layer * g->shape.experts + id, i = g->changed;

    g->seat_host[at] = slot;
    if (slot >= 0 && !g->slot_waited[slot]) {
        TRY(g, cudaStreamWaitEvent(g->stream, g->slot_done[slot], 0));
        g->slot_waited[slot] = true;
    }
    while (i < g->changes && g->change[i].at != at)
        i++;
    if (i == CHANGES) {
        gpu_sync_table(g);
        TRY(g, cudaStreamSynchronize(g->stream));
        g->changes = g->changed = i = 0;
    }
    g->change[i].at = at;
    g->change[i].slot = slot;
    g->change[i].ffn = slot >= 0 ? g->slot_ffn[slot] : ffn{};
    if (i == g->changes)
        g->changes++;
}

int gpu_seat_of(const struct gpu *g, int layer, int id)
{
    return g->seat_host[layer * g->shape.experts + id];
}
