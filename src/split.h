#ifndef LAGUNA_SPLIT_H
#define LAGUNA_SPLIT_H

#include "src/waves.h"

/* Of a layer's experts that the GPU has not: which the CPU computes, and which cross PCIe.
 * Both work at the same time, so the best choice is the one whose slower side ends first. */
struct split {
    double upload_seconds;      /* an expert across PCIe */
    double expert_seconds;      /* an expert on the CPU, for one token */
    double token_seconds;       /* and for each token more */
};

enum { SPLIT_TOKENS = 512 };    /* of a batch; in a larger one every expert has too many */

/* Measured on this machine, with an expert of the model; about 20 ms.  A runner without staging
 * slots uploads nothing.  An expert that cannot be had, by name. */
int  split_measure(struct split *s, struct runner *f, struct err *e);

/* Figures that are the same on every machine: for results that are. */
void split_fix(struct split *s);

/* Experts go to the CPU in the order of their tokens, fewest first, while that makes the slower
 * side faster.  on_cpu is set for each of c; `absent` says which are not in VRAM. */
void split_choose(const struct split *s, const struct chosen *c, const bool *absent,
                  bool *on_cpu);

#endif
