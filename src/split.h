#ifndef LAGUNA_SPLIT_H
#define LAGUNA_SPLIT_H

#include "src/waves.h"

/* Of a layer's experts that the GPU has not: which the CPU computes, and which cross PCIe.
 * Both work at the same time, so the best choice is the one whose slower side ends first. */
struct split {
    double upload_seconds;      /* an expert across PCIe */
    double expert_seconds;      /* an expert on the CPU, whatever its tokens */
    double token_seconds;       /* and for each of them */
    bool fixed;                 /* nothing is learned: the same choices on every machine */
};

enum { SPLIT_TOKENS = 512 };    /* of a batch; in a larger one every expert has too many */

/* What is assumed before the first expert was computed: bytes of an expert, and of PCIe and RAM
 * a second. */
void split_guess(struct split *s, double expert_bytes, double h2d, double ram);

/* Figures that are the same on every machine: for results that are. */
void split_fix(struct split *s);

/* The CPU has computed some experts for so many pairs of token and expert. */
void split_learn(struct split *s, int experts, int pairs, double seconds);

/* Experts go to the CPU in the order of their tokens, fewest first, while that makes the slower
 * side faster.  on_cpu is set for each of c; `absent` says which are not in VRAM. */
void split_choose(const struct split *s, const struct chosen *c, const bool *absent,
                  bool *on_cpu);

#endif
