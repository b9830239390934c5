#ifndef LAGUNA_ROPE_H
#define LAGUNA_ROPE_H

#include "src/fields.h"
#include "src/shape.h"

/* One rotary embedding as a configuration describes it: nested by layer type, flat, or in
 * the older keys rope_theta, rope_scaling and swa_rope_parameters (spec: laguna.md 1.4).
 * `full`: for the full-attention layers, else for the sliding ones. */
void rope_read(struct config *c, struct rope *out, bool full, int head_dim, int max_positions);

#endif
