#ifndef LAGUNA_EXPERT_H
#define LAGUNA_EXPERT_H

#include "src/weights.h"

/* The words that storage, cpu, cuda and the engine share about experts. */

enum { NO_EXPERT = 0xffff };

/* What the router decided for a batch: topk experts for each of n tokens, in ascending
 * id, which is also the order in which their results are summed.  Where a route is only a part
 * of a decision, places may hold NO_EXPERT. */
struct route {
    int tokens, topk;
    uint16_t *expert;           /* [tokens][topk] */
    float *weight;              /* [tokens][topk], normalised, before the scaling factor */
};

/* One expert whose bytes are in memory. */
struct expert {
    int layer, id;
    struct ffn ffn;
};

/* token[0] stands at position pos. */
struct batch {
    const int32_t *token;       /* [tokens] */
    int tokens, pos;
};

#endif
