#ifndef LAGUNA_WAVES_H
#define LAGUNA_WAVES_H

#include "src/forward.h"

/* Routed experts on the CPU: in waves as large as its scratch, each expert computed when its
 * bytes are there. */

/* The experts that a batch chose, each once, ascending, and how many tokens each has. */
struct chosen {
    uint16_t id[MAX_EXPERTS];           /* [n] */
    int tokens[MAX_EXPERTS];            /* [n] */
    int n;
};

void chosen_collect(struct chosen *c, const struct route *r, int experts);

/* What the router of a later layer may say; route.tokens 0: nothing is known. */
struct guess {
    struct route route;
    int layer;
};

/* Experts of a layer for the tokens that chose them; guess may be NULL.  An expert that cannot
 * be had, by name. */
int  waves_run(struct runner *f, int layer, const struct route *r, const struct chosen *c,
               const struct guess *guess, struct err *e);

#endif
