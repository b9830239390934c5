/* Copies between a GPU and host memory in plain C: rows of the cache, and experts in slots. */
#include "cuda/gpu_ref.h"

#include <errno.h>

/* The rows of all heads, `each` bytes a row. */
static void copy_rows(const struct gpu *g, void *to, const void *from, size_t each,
                      const struct range *r)
{
    for (size_t h = 0; h < (size_t)g->shape->kv_heads; h++) {
        size_t at = (h * (size_t)r->rows + (size_t)r->from) * each;

        memcpy((uint8_t *)to + at, (const uint8_t *)from + at, (size_t)r->n * each);
    }
}

int gpu_read_rows(struct gpu *g, int layer, int from, int n, const struct gpu_rows *to,
                  struct err *e)
{
    const struct kv_layer *l = &g->kv[layer];
    struct range r = { to->rows, from, n };
    int rc = gpu_ref_check(g, e);

    if (!rc)
        rc = gpu_check_range(layer, l->rows, &r, e);
    if (rc)
        return rc;
    copy_rows(g, to->k, l->k, gpu_ref_row_bytes(&g->c), &r);
    copy_rows(g, to->v, l->v, gpu_ref_row_bytes(&g->c), &r);
    if (g->c.kv == GPU_KV_Q8) {
        copy_rows(g, to->k_scale, l->k_scale, sizeof(uint16_t), &r);
        copy_rows(g, to->v_scale, l->v_scale, sizeof(uint16_t), &r);
    }
    return 0;
}

int gpu_write_rows(struct gpu *g, int layer, int from, int n, const struct gpu_rows *rows,
                   struct err *e)
{
    struct kv_layer *l = &g->kv[layer];
    struct range r = { rows->rows, from, n };
    int rc = gpu_ref_check(g, e);

    if (!rc)
        rc = gpu_check_range(layer, l->rows, &r, e);
    if (rc)
        return rc;
    copy_rows(g, l->k, rows->k, gpu_ref_row_bytes(&g->c), &r);
    copy_rows(g, l->v, rows->v, gpu_ref_row_bytes(&g->c), &r);
    if (g->c.kv == GPU_KV_Q8) {
        copy_rows(g, l->k_scale, rows->k_scale, sizeof(uint16_t), &r);
        copy_rows(g, l->v_scale, rows->v_scale, sizeof(uint16_t), &r);
    }
    return 0;
}

int gpu_fill_slot(struct gpu *g, int slot, const struct expert *x, struct err *e)
{
    uint8_t *at = g->slot_bytes[slot];
    int rc = gpu_check_fits(&g->c, x, e);

    if (rc)
        return rc;
    g->fills++;
    g->dead |= g->fills == g->c.faults.dead_fill;
    gpu_ref_put_ffn(&at, &g->slot[slot], &x->ffn);
    return gpu_ref_check(g, e);
}

static bool same_shape(const struct matrix *a, const struct matrix *b)
{
    return a->format == b->format && a->rows == b->rows && a->cols == b->cols &&
           a->group == b->group && !a->zero == !b->zero;
}

/* The caller's memory, though a matrix promises to leave it alone. */
static void read_part(const void *to, const void *from, size_t n)
{
    if (n)
        memcpy((void *)(uintptr_t)to, from, n);
}

static void read_matrix(const struct matrix *to, const struct matrix *m)
{
    struct part_bytes b = gpu_part_bytes(m);

    read_part(to->weight, m->weight, b.weight);
    read_part(to->scale, m->scale, b.scale);
    read_part(to->zero, m->zero, b.zero);
}

int gpu_read_slot(struct gpu *g, int slot, const struct expert *into, struct err *e)
{
    const struct ffn *f = &g->slot[slot], *to = &into->ffn;

    if (!same_shape(&to->gate, &f->gate) || !same_shape(&to->up, &f->up) ||
        !same_shape(&to->down, &f->down))
        return fail(e, -EINVAL, "slot %d does not hold an expert of this shape", slot);
    read_matrix(&to->gate, &f->gate);
    read_matrix(&to->up, &f->up);
    read_matrix(&to->down, &f->down);
    return gpu_ref_check(g, e);
}

bool gpu_slot_ready(struct gpu *g, int slot)
{
    return g->dead || g->slot[slot].gate.rows > 0;
}

void gpu_seat(struct gpu *g, int layer, int id, int slot)
{
    g->seat[layer * g->shape->experts + id] = slot;
}

int gpu_seat_of(const struct gpu *g, int layer, int id)
{
    return g->seat[layer * g->shape->experts + id];
}
