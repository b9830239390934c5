/* cuBLAS, found when the program runs: the binary starts, and works, on machines without it.
 * The numbers below are those of cublas_api.h and library_types.h, stable since CUDA 11. */
#include "cuda/blas.h"

#include <dlfcn.h>
#include <stdlib.h>

enum { OP_N = 0, OP_T = 1, TYPE_F32 = 0, TYPE_BF16 = 14, COMPUTE_F32 = 68, ALGO_DEFAULT = -1 };

struct blas {
    void *library, *handle;
    int (*create)(void **);
    int (*destroy)(void *);
    int (*set_stream)(void *, void *);
    int (*set_workspace)(void *, void *, size_t);
    int (*gemm)(void *, int, int, int, int, int, const void *, const void *, int, int,
                const void *, int, int, const void *, void *, int, int, int, int);
};

static void *find_library(void)
{
    static const char *const names[] = { "libcublas.so.13", "libcublas.so.12", "libcublas.so.11",
                                         "libcublas.so" };
    void *l = NULL;

    for (size_t i = 0; !l && i < sizeof(names) / sizeof(*names); i++)
        l = dlopen(names[i], RTLD_NOW | RTLD_LOCAL);
    return l;
}

/* dlsym() returns an object pointer; this is POSIX's way to make a function of it. */
static bool find(struct blas *b, const char *name, void *function)
{
    void *p = dlsym(b->library, name);

    memcpy(function, &p, sizeof(p));
    return p != NULL;
}

struct blas *blas_open(void *stream, void *workspace, size_t workspace_bytes)
{
    struct blas *b = calloc(1, sizeof(*b));

    if (!b)
        return NULL;
    b->library = find_library();
    if (b->library && find(b, "cublasCreate_v2", &b->create) &&
        find(b, "cublasDestroy_v2", &b->destroy) &&
        find(b, "cublasSetStream_v2", &b->set_stream) &&
        find(b, "cublasSetWorkspace_v2", &b->set_workspace) &&
        find(b, "cublasGemmEx", &b->gemm) && !b->create(&b->handle) &&
        !b->set_stream(b->handle, stream) &&
        !b->set_workspace(b->handle, workspace, workspace_bytes))
        return b;
    blas_close(b);
    return NULL;
}

void blas_close(struct blas *b)
{
    if (!b)
        return;
    if (b->handle)
        b->destroy(b->handle);
    if (b->library)
        dlclose(b->library);
    free(b);
}

/* Column-major, y is [rows] x n: the transpose of m's bytes times x. */
int blas_mul(struct blas *b, const struct blas_product *p)
{
    float one = 1, zero = 0;

    return b->gemm(b->handle, OP_T, OP_N, p->rows, p->n, p->cols, &one, p->m, TYPE_BF16, p->cols,
                   p->x, TYPE_BF16, (int)p->x_stride, &zero, p->y, TYPE_F32, (int)p->y_stride,
                   COMPUTE_F32, ALGO_DEFAULT);
}
