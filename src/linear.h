#ifndef LAGUNA_LINEAR_H
#define LAGUNA_LINEAR_H

#include "src/quant.h"
#include "storage/checkpoint.h"

/* One Linear of a checkpoint: which tensors store it, in which format.  Decided by the
 * tensors that are there; the configuration must agree, except that BF16 is always legal. */

enum { LINEAR_WEIGHT, LINEAR_SCALE, LINEAR_ZERO, LINEAR_PARTS };

struct linear {
    struct matrix m;                            /* its pointers NULL */
    const struct tensor *part[LINEAR_PARTS];    /* NULL: no such part */
    const struct tensor *shape;                 /* weight_shape, or NULL */
    bool plain;                                 /* weights are q, not q + 128 */
};

enum linear_flags {
    LINEAR_BF16_ONLY = 1,       /* never quantised: embedding, head, router */
    LINEAR_SQUEEZE = 2,         /* dimensions of 1 do not count */
};

/* Find W [rows][cols] under `module`, the tensors' name without ".weight*".  -EBADMSG,
 * naming tensor, dtype and shape, got and wanted. */
int linear_find(struct linear *out, const struct checkpoint *c, const struct quant *q,
                const char *module, int rows, int cols, unsigned flags, struct err *e);

/* The tensor's place, dtype or shape is wrong: -EBADMSG with both. */
int tensor_check(const struct checkpoint *c, const struct tensor *t, enum dtype want, int rows,
                 int cols, bool squeeze, struct err *e);

#endif
