#ifndef LAGUNA_KERNELS_H
#define LAGUNA_KERNELS_H

#include "src/weights.h"

/* Inner loops that exist once per instruction set.  Everything above them (which
 * matrix, which rows, which thread) is ordinary C and exists once. */

enum cpu_isa { CPU_REF, CPU_AVX2, CPU_AVX512, CPU_AVX512VNNI, CPU_AVX512BF16, CPU_ISA_COUNT };

/* How activations enter a product.  Each token is packed on its own, so that the result
 * for one token does not depend on its neighbours.
 *   ACT_F32   the floats as they are, in whatever order the kernel wants
 *   ACT_INT8  int8 with one float scale per 32 columns, and the sums that zero points need
 *   ACT_BF16  rounded to bf16 */
enum act { ACT_F32, ACT_INT8, ACT_BF16, ACT_KINDS };

enum { ACT_ALIGN = 64 };        /* of a packed token and of its stride */

enum kv_type { KV_Q8, KV_FP8, KV_BF16, KV_F32, KV_TYPES };

/* Query rows against cached keys and values of one KV head: online softmax, so that calls
 * over consecutive ranges of keys add up.  All strides in bytes. */
struct attend {
    int queries, dim;           /* dim: head_dim, a multiple of 16 */
    const float *q;             /* [queries][dim], already scaled by dim^-0.5 */
    const uint8_t *k, *v;       /* [keys] rows of dim elements of the KV type */
    size_t stride;              /* from one row of k (of v) to the next */
    const uint16_t *k_scale, *v_scale;  /* KV_Q8: [keys] float16, scale_stride apart */
    size_t scale_stride;
    float k_mul, v_mul;         /* KV_FP8: the checkpoint's scales; else 1 */
    int keys;
    const int *from, *to;       /* [queries]: query i sees keys from[i] <= j < to[i];
                                 * NULL: all of them see all */
    float *max, *sum;           /* [queries], running; -INFINITY and 0 before the first call */
    float *acc;                 /* [queries][dim], running, 0 before the first call */
};

/* Keys (or values) of one token for one KV head into the cache: dim floats in, the row out. */
typedef void (*kv_store_fn)(uint8_t *row, uint16_t *scale, const float *x, int dim, float mul);

/* y[t * y_stride + r] for tokens 0 <= t < n and rows row0 <= r < row1.
 *
 * x         packed tokens, x_stride bytes apart, ACT_ALIGN-aligned
 * y         floats; y_stride counts floats
 * The kernel picks its own blocking by n.  A result has the same bits whatever the other
 * tokens are, however many there are, and whatever row0 and row1 are: each row and token
 * is summed in the same order.  (Only a zero may have either sign.)  Tables differ from
 * each other in the last bits. */
typedef void (*mul_fn)(float *y, size_t y_stride, const struct matrix *m, const uint8_t *x,
                       size_t x_stride, int n, int row0, int row1);

struct cpu_kernels {
    const char *name;
    enum act act[W_FORMATS];    /* what mul[format] takes */
    /* NULL where no mul of this table takes the kind.  Bytes: of one token, a multiple of
     * ACT_ALIGN.  The layout is the table's own. */
    size_t (*pack_bytes[ACT_KINDS])(int cols);
    void (*pack[ACT_KINDS])(uint8_t *to, const float *x, int cols);
    mul_fn mul[W_FORMATS];
    mul_fn mul_exact;           /* W_BF16 times ACT_F32, for the router, whatever mul takes */
    kv_store_fn kv_store[KV_TYPES];
    void (*attend[KV_TYPES])(const struct attend *a);
    /* y[i] = x[i] / rms(x) * w[i] */
    void (*norm)(float *y, const float *x, const float *w, int n, float eps);
    /* y[i] = silu(g[i]) * u[i] */
    void (*silu_mul)(float *y, const float *g, const float *u, int n);
};

/* The table for one ISA, or NULL where this machine cannot run it (CPUID and XCR0). */
const struct cpu_kernels *cpu_kernels(enum cpu_isa isa);

/* ISA by its name on the command line, or CPU_ISA_COUNT. */
enum cpu_isa cpu_isa_named(const char *name);

/* The table that a short self-test finds fastest here, after checking its numbers against
 * the reference.  NULL where not even AVX2 runs (only --isa ref is left). */
const struct cpu_kernels *cpu_kernels_best(void);

/* Bytes of one cached row of dim elements. */
size_t kv_row_bytes(enum kv_type type, int dim);

#endif
