#ifndef LAGUNA_MODEL_BIND_H
#define LAGUNA_MODEL_BIND_H

#include "src/model.h"
#include "src/quant.h"

/* Between model.c, which opens, model_bind.c, which finds the tensors, and model_load.c,
 * which reads them. */

enum load_kind {
    LOAD_BYTES,                 /* as they are */
    LOAD_INT8,                  /* I8 becomes q + 128 */
    LOAD_SCALE,                 /* as they are, BF16, all finite */
    LOAD_E8M0,                  /* as they are, none NaN (0xff) */
    LOAD_FLOATS,                /* BF16, F16 or F32 becomes float, all finite */
    LOAD_ONE,                   /* a single positive float, not kept in the arena */
};

struct load {
    const struct tensor *tensor;
    enum load_kind kind;
    size_t at;                  /* in the arena */
    union {
        const void **bytes;     /* LOAD_BYTES to LOAD_E8M0 */
        float **floats;
        float *one;
    } to;                       /* what is to point there, in the model */
};

/* Find every tensor of m->shape in m->checkpoint; fills the matrices but for their
 * pointers, the experts' places and the list of loads. */
int model_bind(struct model *m, const struct quant *q, struct log *l, struct err *e);

#endif
