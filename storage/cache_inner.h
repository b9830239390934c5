#ifndef LAGUNA_CACHE_INNER_H
#define LAGUNA_CACHE_INNER_H

#include "storage/cache.h"

#include <assert.h>

/* What cache.c, cache_slots.c and cache_fetch.c share; nobody else includes this. */

enum state { FREE, READING, FULL, FAILED };

/* More reads than the drive needs, few enough that a wave of misses does not tie up every
 * slot; the rest of the fetches is always open to urgent ones. */
enum { FETCHES = 48, GUESSES = 16 };

struct slot {
    enum state state;
    int key;                    /* layer * experts + id; -1: free */
    int pins, next_free;
    struct fetch *fetch;        /* READING or FAILED; NULL while it is adopted */
    uint64_t arrived;
};

/* One expert being read, or the reason why it could not be. */
struct fetch {
    struct read read[EXTENT_PARTS];
    struct slot *slot;          /* NULL: not in use */
    int left, status;
    bool guess, second;
    struct err why;
};

struct cache {
    struct cache_config config;
    struct slot *slot;          /* [slots] */
    int slots, first_free, free_slots;
    int *slot_of;               /* [layers][experts]: or -1 */
    uint64_t *sum;              /* [layers][experts]: XXH3 of the parts */
    bool *summed, *elsewhere;   /* [layers][experts] */
    int *held, *quota;          /* [layers]: slots */
    int *warm;                  /* [keys] in order of popularity; NULL: not asked for */
    int warm_at, keys;
    uint64_t clock;
    int fetching, guessing;
    bool said_replaced;
    struct fetch fetch[FETCHES];
    struct cache_stats stats;
};

static inline int key_of(const struct cache *c, int layer, int id)
{
    assert(layer >= 0 && layer < c->config.layers && id >= 0 && id < c->config.experts);
    return layer * c->config.experts + id;
}

static inline int layer_of(const struct cache *c, int key)
{
    return key / c->config.experts;
}

static inline uint8_t *slot_bytes(const struct cache *c, const struct slot *s)
{
    return slab_slot(c->config.slab, (int)(s - c->slot));
}

static inline int shown_layer(const struct cache *c, int layer)
{
    return c->config.layer_number ? c->config.layer_number[layer] : layer;
}

/* cache_slots.c: who has which slot. */

/* A slot for `key`, READING and without pins.  worth: what an evicted expert must be less worth
 * than; INFINITY: any may go; 0: none, only a free slot will do.  NULL: there is none. */
struct slot *slot_take(struct cache *c, int key, float worth);
void slot_free(struct cache *c, struct slot *s);
void slot_unpin(struct cache *c, struct slot *s);

/* cache_fetch.c: one expert from its shards into its slot. */

/* Begin to read an expert that is nowhere in RAM.  NULL: no fetch or no slot now. */
struct slot *fetch_start(struct cache *c, int key, bool guess, float worth);
/* The stream has handed back one of its reads. */
void fetch_land(struct cache *c, struct read *r);
/* A guess is wanted after all. */
void fetch_hurry(struct cache *c, struct fetch *f);
/* Begin nothing more of it; what the kernel has comes back in its time. */
void fetch_cancel(struct cache *c, struct fetch *f);
/* Learn the sum of a slot's expert the first time, compare it later [R7]. */
bool fetch_sum_matches(struct cache *c, const struct slot *s);

#endif
