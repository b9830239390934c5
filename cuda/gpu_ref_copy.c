/* Copies between a GPU and host memory in plain C: rows of the cache. */
#include "cuda/gpu_ref.h"

#include <errno.h>

struct range {
    int rows, from, n;                  /* of each head; rows is all of them */
};

/* The rows of all heads, `each` bytes a row. */
static void copy_rows(const struct gpu *g, void *to, const void *from, size_t each,
                      const struct range *r)
{
    for (size_t h = 0; h < (size_t)g->shape->kv_heads; h++) {
        size_t at = (h * (size_t)r->rows + (size_t)r->from) * each;

        memcpy((uint8_t *)to + at, (const uint8_t *)from + at, (size_t)r->n * each);
    }
}

static int check_range(const struct gpu *g, int layer, const struct range *r, struct err *e)
{
    int rows = g->kv[layer].rows;

    if (r->rows != rows)
        return fail(e, -EINVAL, "layer %d: %d rows in host memory, %d in the GPU's cache", layer,
                    r->rows, rows);
    if (r->from < 0 || r->n < 0 || r->n > rows - r->from)
        return fail(e, -EINVAL, "layer %d: %d rows from %d on, of %d", layer, r->n, r->from, rows);
    return 0;
}

int gpu_read_rows(struct gpu *g, int layer, int from, int n, const struct gpu_rows *to,
                  struct err *e)
{
    const struct kv_layer *l = &g->kv[layer];
    struct range r = { to->rows, from, n };
    int rc = check_range(g, layer, &r, e);

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
    int rc = check_range(g, layer, &r, e);

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
