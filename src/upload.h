#ifndef LAGUNA_UPLOAD_H
#define LAGUNA_UPLOAD_H

#include "cuda/gpu.h"
#include "src/waves.h"

/* Of the experts that a decode step wants and VRAM has not: those that the GPU fetches from RAM
 * across PCIe and computes itself, while the CPU computes the others.  It pays where RAM gives
 * more than the cores take, and whether it does is measured while tokens are made. */

struct upload_config {
    struct gpu *gpu;
    struct experts *experts;
    int first_slot, slots;      /* where they go: of the gpu's slots, free between batches */
    double share;               /* of the experts in RAM, 0 to 1; NaN: what is soonest */
};

/* What layers cost whose experts were computed one way. */
struct upload_cost {
    double seconds, experts;
};

struct upload {
    struct upload_config c;
    struct upload_cost without, with;
    double alone_seconds;               /* an expert on the CPU, while nothing is fetched */
    double cpu_seconds, fetch_seconds;  /* while the other side works too */
    int step, period;                   /* the step's number since the last trial began */
    bool pays;                          /* says that trial */
    int missed;                         /* experts that the last step wanted of the host */
    bool now;                           /* this step takes offers */
    double carry;                       /* of a fixed share: the part of an expert left over */
    /* Of the share in progress. */
    int experts, offered;
    double start;                       /* when it came */
    double cpu;                         /* seconds; below 0: not worth learning from */
};

void upload_open(struct upload *u, const struct upload_config *c);

/* Before a step: whether it takes offers. */
bool upload_begin(struct upload *u);

/* How many to offer of a layer's n experts that are at hand. */
int  upload_count(struct upload *u, int n);

/* A share: where the step takes offers, some of its experts are the GPU's, and leave c and r.
 * Negative: a fault of the GPU. */
int  upload_offer(struct upload *u, int layer, struct chosen *c, struct route *r, struct err *e);

/* What is left of the share took the CPU so many seconds; below 0: the drive had a part in it. */
void upload_learn(struct upload *u, double seconds);

/* After gpu_next_share(): what was offered is the host's again. */
void upload_settle(struct upload *u);

#endif
