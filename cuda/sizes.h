#ifndef LAGUNA_CUDA_SIZES_H
#define LAGUNA_CUDA_SIZES_H

#include "cuda/gpu.h"

#ifdef __cplusplus
extern "C" {
#endif

/* What both implementations of gpu.h say alike: how large things are, and which rows there are. */

/* The three parts of a matrix in bytes; 0: it has none. */
struct part_bytes {
    size_t weight, scale, zero;
};

struct part_bytes gpu_part_bytes(const struct matrix *m);

/* -E2BIG where the expert does not fit a slot. */
int gpu_check_fits(const struct gpu_config *c, const struct expert *x, struct err *e);

/* Of the host: a batch's rows on their way to the GPU, [batch][hidden] of float32. */
size_t gpu_staging_bytes(const struct gpu_config *c);

/* Rows of each head, between the cache and host memory. */
struct range {
    int rows, from, n;          /* rows is all of them */
};

/* -EINVAL where the cache of a layer has not `rows` of them, or not those. */
int gpu_check_range(int layer, int rows, const struct range *r, struct err *e);

#ifdef __cplusplus
}
#endif
#endif
