#ifndef LAGUNA_FORWARD_H
#define LAGUNA_FORWARD_H

#include "cpu/cpu.h"
#include "src/experts.h"

/* What a batch needs on its way through the layers. */
struct runner {
    const struct model *model;
    struct cpu *cpu;
    struct experts *experts;
    /* Where asked for, the router's choices: [sparse layers][batch][topk].  Else NULL. */
    uint16_t *route_id;
    float *route_weight;
    int batch;
};

/* Run the batch; its keys and values are then in kv, its residual stream in the struct cpu,
 * ready for runner_logits().  -EDOM, naming the layer, where a router's score is not finite. */
int  forward(struct runner *f, struct kv *kv, const struct batch *b, struct err *e);

/* logits [n][vocab] of the batch's tokens from, from + 1, ... */
void runner_logits(struct runner *f, int from, int n, float *logits);

#endif
