/* Sizes in VRAM, which follow from the shapes alone, and ranges of rows. */
#include "cuda/sizes.h"

#include <errno.h>

struct part_bytes gpu_part_bytes(const struct matrix *m)
{
    static const size_t bits[W_FORMATS] = { 16, 8, 4, 4 };
    struct part_bytes b = { 0, 0, 0 };
    size_t rows = (size_t)m->rows, groups;

    if (!m->rows)
        return b;
    b.weight = mul_sat(rows, (size_t)m->cols * bits[m->format] / 8);
    if (m->format == W_BF16)
        return b;
    groups = (size_t)(m->cols / m->group);
    b.scale = mul_sat(rows, groups * (m->format == W_MXFP4 ? 1 : sizeof(bf16)));
    if (m->zero)
        b.zero = mul_sat((rows * bits[m->format] + 31) / 32, groups * sizeof(uint32_t));
    return b;
}

size_t gpu_matrix_bytes(const struct matrix *m)
{
    struct part_bytes b = gpu_part_bytes(m);

    return align_up(b.weight, GPU_PART_ALIGN) + align_up(b.scale, GPU_PART_ALIGN) +
           align_up(b.zero, GPU_PART_ALIGN);
}

size_t gpu_ffn_bytes(const struct ffn *f)
{
    return gpu_matrix_bytes(&f->gate) + gpu_matrix_bytes(&f->up) + gpu_matrix_bytes(&f->down);
}

size_t gpu_layer_bytes(const struct layer_weights *w)
{
    size_t floats = 2 * (size_t)w->q.cols + 2 * MAX_HEAD_DIM + (size_t)w->router.rows;

    return gpu_matrix_bytes(&w->q) + gpu_matrix_bytes(&w->k) + gpu_matrix_bytes(&w->v) +
           gpu_matrix_bytes(&w->g) + gpu_matrix_bytes(&w->o) + gpu_ffn_bytes(&w->ffn) +
           gpu_matrix_bytes(&w->router) + floats * sizeof(float) + 5 * GPU_PART_ALIGN;
}

int gpu_check_fits(const struct gpu_config *c, const struct expert *x, struct err *e)
{
    size_t bytes = gpu_ffn_bytes(&x->ffn);

    if (bytes > c->slot_bytes)
        return fail(e, -E2BIG, "layer %d expert %d: %zu bytes do not fit a slot of %zu", x->layer,
                    x->id, bytes, c->slot_bytes);
    return 0;
}

size_t gpu_staging_bytes(const struct gpu_config *c)
{
    return mul_sat((size_t)c->batch, (size_t)c->shape->hidden * sizeof(float));
}

int gpu_check_range(int layer, int rows, const struct range *r, struct err *e)
{
    if (r->rows != rows)
        return fail(e, -EINVAL, "layer %d: %d rows in host memory, %d in the GPU's cache", layer,
                    r->rows, rows);
    if (r->from < 0 || r->n < 0 || r->n > rows - r->from)
        return fail(e, -EINVAL, "layer %d: %d rows from %d on, of %d", layer, r->n, r->from, rows);
    return 0;
}
