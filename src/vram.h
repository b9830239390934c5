#ifndef LAGUNA_VRAM_H
#define LAGUNA_VRAM_H

#include "cuda/gpu.h"
#include "src/experts.h"

/* Who sits in VRAM, and how that changes.  Each layer has an equal share of the seats.  At
 * first the most popular experts of each layer take them; then an expert that is worth clearly
 * more than the least one of its layer changes places with it, a few between tokens.  One
 * thread, the engine's, makes every call, between steps. */
struct vram;

struct vram_config {
    const struct model *model;
    struct gpu *gpu;
    struct experts *experts;
    int slots;                          /* seats: the first ones of the gpu's slots */
    bool fixed;                         /* by their number alone, the lowest ids, for ever */
    bool exclusive;                     /* RAM keeps no copies: who is demoted goes back there */
    double h2d_bytes_per_second;        /* of PCIe; 0: unknown, one promotion a call */
    struct log *log;
};
/* All of these are the caller's, and outlive the struct vram. */

struct vram_stats {
    uint64_t promotions, demotions;     /* a promotion: the expert has arrived in its seat */
    uint64_t bytes;                     /* copied to VRAM */
    int seats, seated;                  /* now */
};

/* Nobody is seated yet. */
int  vram_open(struct vram **out, const struct vram_config *c, struct err *e);

/* Waits for copies under way.  All seats are empty then, and the experts know. */
void vram_close(struct vram *v);

/* Fill all seats before this returns.  An expert that cannot be had leaves its seat empty, with
 * one warning for all.  Negative: a fault of the GPU. */
int  vram_fill(struct vram *v, struct err *e);

/* Seat who has arrived, and begin at most so many promotions as `seconds` of PCIe time pay for;
 * what is left of the time is kept, up to one promotion.  Never blocks.  After a fault of the
 * GPU nothing moves. */
void vram_advance(struct vram *v, double seconds);

/* The fault that has stopped it, in words, which the GPU's next call tells too; or 0. */
int  vram_fault(const struct vram *v, struct err *e);

/* Whether more calls would do something though no token is evaluated between them. */
bool vram_pending(const struct vram *v);

bool vram_busy(const struct vram *v);   /* experts are on their way */
int  vram_seated(const struct vram *v);
struct vram_stats vram_stats(const struct vram *v);

#endif
