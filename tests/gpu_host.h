#ifndef LAGUNA_GPU_HOST_H
#define LAGUNA_GPU_HOST_H

#include "tests/gpu_steps.h"

#include <errno.h>
#include <sys/mman.h>

/* Host memory that a GPU reads: pages to pin, and experts once more in them. */

enum { PIN_BYTES = 4 << 20 };

static inline uint8_t *take_pages(void)
{
    void *p = mmap(NULL, PIN_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

    if (p == MAP_FAILED)
        must(-ENOMEM, &(struct err){ "mmap" });
    return p;
}

/* The parts of a matrix: where, and how many bytes. */
struct pieces {
    const void *p[3];
    size_t n[3];
};

static inline struct pieces pieces_of(const struct matrix *m)
{
    static const size_t bits[W_FORMATS] = { 16, 8, 4, 4 };
    size_t rows = (size_t)m->rows, cols = (size_t)m->cols;
    struct pieces all = { { m->weight, m->scale, m->zero }, { rows * cols * bits[m->format] / 8 } };

    if (m->format == W_BF16)
        return all;
    all.n[1] = rows * (cols / (size_t)m->group) * (m->format == W_MXFP4 ? 1 : 2);
    if (m->zero)
        all.n[2] = (rows * bits[m->format] + 31) / 32 * 4 * (cols / (size_t)m->group);
    return all;
}

static inline struct matrix copy_matrix(const struct matrix *m, uint8_t **at)
{
    struct pieces from = pieces_of(m);
    const void *to[3] = { NULL, NULL, NULL };
    struct matrix copy = *m;

    for (int k = 0; k < 3; k++)
        if (from.n[k]) {
            to[k] = memcpy(*at, from.p[k], from.n[k]);
            *at += align_up(from.n[k], 16);
        }
    copy.weight = to[0];
    copy.scale = to[1];
    copy.zero = to[2];
    return copy;
}

/* The expert once more, in memory from `at` on, where gpu_ffn_bytes() are free. */
static inline struct expert copy_expert(const struct expert *x, void *at)
{
    uint8_t *next = at;
    struct expert copy = *x;

    copy.ffn.gate = copy_matrix(&x->ffn.gate, &next);
    copy.ffn.up = copy_matrix(&x->ffn.up, &next);
    copy.ffn.down = copy_matrix(&x->ffn.down, &next);
    return copy;
}

#endif
