#ifndef LAGUNA_CUDA_BLAS_H
#define LAGUNA_CUDA_BLAS_H

#include <stddef.h>
#include <string.h>

#ifdef __cplusplus
extern "C" {
#endif

#include "src/base.h"

/* cuBLAS where this machine has it. */
struct blas;

/* Work goes to `stream` (a cudaStream_t) and uses `workspace` of the device.  NULL where the
 * library is not found or refuses. */
struct blas *blas_open(void *stream, void *workspace, size_t workspace_bytes);
void blas_close(struct blas *b);

/* One product: y [n][y_stride] = m x, sums in float32. */
struct blas_product {
    int rows, cols, n;
    const bf16 *m, *x;                  /* [rows][cols], [n][x_stride] */
    size_t x_stride, y_stride;
    float *y;
};

/* Queue it: 0, or the status of cuBLAS. */
int  blas_mul(struct blas *b, const struct blas_product *p);

#ifdef __cplusplus
}
#endif
#endif
