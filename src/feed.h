#ifndef LAGUNA_FEED_H
#define LAGUNA_FEED_H

#include "cuda/gpu.h"
#include "src/experts.h"

/* How a prompt's experts pass through VRAM: read, copied into staging slots, used once and
 * overwritten, in ascending id.  What comes next is copied while what came before is computed.
 * Nothing here decides who passes. */
struct feed;

struct feed_config {
    struct gpu *gpu;
    struct experts *experts;
    int first_slot, slots;              /* of the GPU's slots */
};

/* -ENOMEM. */
int  feed_open(struct feed **out, const struct feed_config *c, struct err *e);
void feed_close(struct feed *f);

/* Experts to seat before feed_release(), so that the others' copies go on meanwhile. */
int  feed_group(const struct feed *f);

/* What a layer wants, ascending.  What was expected and is not wanted is passed over. */
void feed_want(struct feed *f, int layer, const uint16_t *id, int n);

/* What a later layer will want as far as one can tell: copied when slots are left. */
void feed_expect(struct feed *f, int layer, const uint16_t *id, int n);

/* Go on with reads and copies.  Why an expert cannot be had, in words. */
int  feed_pump(struct feed *f, struct err *e);

/* Seat the next wanted expert: 1; 0 where those seated must be released first.  Blocks while
 * its bytes are read, not while they are copied.  Errors as feed_pump(). */
int  feed_seat(struct feed *f, struct err *e);

/* The work of those seated is queued: behind it their slots take others. */
void feed_release(struct feed *f);

/* Forget what is wanted and expected, and give all loans back.  Blocks for the copies. */
void feed_cancel(struct feed *f);

#endif
