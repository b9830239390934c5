#ifndef LAGUNA_QUANT_H
#define LAGUNA_QUANT_H

#include "src/weights.h"

/* quantization_config (compressed-tensors; spec: laguna.md 4.1): which Linear is stored how,
 * according to the configuration.  What the shards really hold is compared with it in
 * model_bind.c; BF16 is always legal. */

struct scheme {
    enum wformat format;
    bool plain;                 /* W_INT8 as I8 bytes ("int-quantized"), not packed into I32 */
    bool symmetric;
    int group;                  /* columns that share a scale; 0: all of a row */
};

struct quant;

/* From the text of config.json; *out is NULL where it names no quantisation.  Formats that
 * are not read are refused by name: -EBADMSG. */
int  quant_read(struct quant **out, const char *json, size_t len, const char *name,
                struct err *e);
void quant_free(struct quant *q);

/* What the configuration says about a Linear by its path ("model.layers.3.mlp.up_proj"):
 * *out is NULL where it is ignored or no target names it (q may be NULL).  -EBADMSG where a
 * pattern of the configuration takes too long. */
int  quant_find(const struct quant *q, const char *module, const struct scheme **out,
                struct err *e);

#endif
