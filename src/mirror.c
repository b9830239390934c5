/* Rows of the cache between VRAM and RAM: position p lies in row p % rows on both sides. */
#include "src/mirror.h"

typedef int (*rows_fn)(struct gpu *g, int layer, int from, int n, const struct gpu_rows *rows,
                       struct err *e);

static int copy_layer(const struct mirror *m, int layer, int from, int to, rows_fn copy,
                      struct err *e)
{
    const struct kv_layer *l = &m->kv->layer[layer];
    struct gpu_rows rows = { l->k, l->v, l->k_scale, l->v_scale, l->rows };
    int rc = 0;

    if (from < to - l->rows)
        from = to - l->rows;
    while (from < to && !rc) {
        int row = from % l->rows, n = to - from < l->rows - row ? to - from : l->rows - row;

        rc = copy(m->gpu, layer, row, n, &rows, e);
        from += n;
    }
    return rc;
}

static int copy_all(const struct mirror *m, int from, int to, bool windows_only, rows_fn copy,
                    struct err *e)
{
    int rc = 0;

    for (int i = 0; i < m->shape->layers && !rc; i++)
        if (!windows_only || !m->shape->layer[i].full)
            rc = copy_layer(m, i, from, to, copy, e);
    return rc ? rc : gpu_wait(m->gpu, e);
}

int mirror_save(const struct mirror *m, int from, int to, bool windows_only, struct err *e)
{
    return copy_all(m, from, to, windows_only, gpu_read_rows, e);
}

int mirror_restore(const struct mirror *m, int from, int to, bool windows_only, struct err *e)
{
    return copy_all(m, from, to, windows_only, gpu_write_rows, e);
}

static void clear(uint8_t *rows, size_t each, const struct kv_layer *l, int heads, int row)
{
    for (int h = 0; rows && h < heads; h++)
        memset(rows + ((size_t)h * (size_t)l->rows + (size_t)row) * each, 0, each);
}

int mirror_wipe(const struct mirror *m, int from, int to, struct err *e)
{
    int heads = m->shape->kv_heads;

    for (int i = 0; i < m->shape->layers; i++) {
        const struct kv_layer *l = &m->kv->layer[i];

        for (int p = from; p < to; p++) {
            clear(l->k, m->kv->row_bytes, l, heads, p % l->rows);
            clear(l->v, m->kv->row_bytes, l, heads, p % l->rows);
            clear((uint8_t *)l->k_scale, sizeof(uint16_t), l, heads, p % l->rows);
            clear((uint8_t *)l->v_scale, sizeof(uint16_t), l, heads, p % l->rows);
        }
    }
    return mirror_restore(m, from, to, false, e);
}
