#ifndef LAGUNA_CACHE_H
#define LAGUNA_CACHE_H

#include "src/shape.h"
#include "storage/extents.h"
#include "storage/popularity.h"
#include "storage/slab.h"
#include "storage/stream.h"

/* Routed experts in RAM.  A slot is free, reading or full; only a full slot without pins is
 * taken for another expert.  storage/README has the rules by number.  One thread, the one that
 * owns the stream, makes every call.  `layer` counts the layers with routed experts only. */

struct cache;

struct cache_config {
    int layers, experts;                /* experts a layer, <= MAX_EXPERTS */
    const struct extents *extents;      /* [layers][experts] */
    struct source *source;              /* [shards], as extents name them */
    int sources;
    struct slab *slab;                  /* at least 1 slot, each as large as any expert needs */
    struct stream *stream;
    const struct popularity *popularity;    /* read for what to evict and to warm */
    struct log *log;
    const int *layer_number;            /* [layers], for messages; NULL: as counted */
    double limit_seconds;               /* no expert comes for so long: -ETIME; 0: 120 s */
    bool copies;                        /* RAM holds everything: keep what is in VRAM too */
    /* Runs f(data, i) for 0 <= i < n, in any order and on any threads, and returns when all
     * are done: for checksums, which one thread makes no faster than a drive reads.  NULL: one
     * after the other. */
    void (*for_each)(void *arg, int n, void (*f)(void *data, int i), void *data);
    void *for_each_arg;
};
/* All of these are the caller's, and outlive the cache. */

/* An expert whose bytes are in memory.  Part i lies at slot + extents.part_offset[i]. */
struct resident {
    int layer, id;
    int index;                          /* in the ticket */
    uint8_t *slot;
};

/* The experts of one layer that a caller wants.  Fill layer, count and expert (no id twice)
 * and leave the rest to the calls below.  May be larger than the cache. */
struct ticket {
    int layer, count;
    uint16_t expert[MAX_EXPERTS];
    bool patient;                       /* nothing blocks */
    bool idle;                          /* reads give way as guesses do */

    /* Private. */
    int left;                           /* not handed over yet */
    int slot[MAX_EXPERTS];
    uint8_t stage[MAX_EXPERTS];
};

struct cache_stats {
    uint64_t hits, waits, misses;       /* asked for: there, being read already, neither */
    uint64_t evictions, guesses, warmed;
    uint64_t reads, read_bytes;         /* experts, and their bytes on disk */
    uint64_t mismatches, failures;
    double wait_seconds;                /* cache_next() blocked */
    int replaced;                       /* shards whose path names another file now */
    int full, reading;                  /* slots, now */
};

int  cache_open(struct cache **out, const struct cache_config *c, struct err *e);

/* Waits at most `seconds` for reads.  -ETIMEDOUT: the kernel still holds slots; neither slab,
 * stream nor sources may ever be freed. */
int  cache_close(struct cache *c, double seconds);

/* Pin what is there and begin to read the rest.  Does not block. */
void cache_request(struct cache *c, struct ticket *t);

/* The next expert of the ticket in order of arrival, pinned: 1 and *out.  Blocks while none
 * has arrived.  0: all were handed over.  -EBUSY: experts handed over must be released first,
 * because every slot is pinned.  Otherwise why one cannot be had, with layer, expert, file
 * and offset in words: -EIO: it cannot be read; -ENXIO: the drive is gone; -ETIME: no answer
 * for limit_seconds; -ESTALE: the file has changed; -EBADMSG: it came twice with bytes other than
 * the first time; -ENOMEM.  A patient ticket is told -EAGAIN while none has arrived, and never
 * -EBUSY or -ETIME. */
int  cache_next(struct cache *c, struct ticket *t, struct resident *out, struct err *e);

/* Unpin one expert that was handed over; its slot may then serve another of the ticket. */
void cache_release(struct cache *c, struct ticket *t, int index);

/* Unpin everything and forget the ticket, handed over or not. */
void cache_finish(struct cache *c, struct ticket *t);

/* A guess about what comes next.  Takes free slots and those of experts that are less worth
 * keeping than the guess; reads when nothing urgent does. */
void cache_prefetch(struct cache *c, int layer, const uint16_t *expert, int n);

/* Begin to fill free slots in order of popularity, behind everything else: goes on in every
 * later call, also where slots become free later. */
void cache_warm(struct cache *c);

/* Take in what has arrived and go on warming, waiting at most `seconds`.  How many experts
 * are being read. */
int  cache_poll(struct cache *c, double seconds);

bool cache_has(const struct cache *c, int layer, int id);

/* The expert moved to VRAM, or is there no more.  Exclusive tiers: without `copies` its slot
 * becomes free, at once or with its last pin. */
void cache_elsewhere(struct cache *c, int layer, int id, bool elsewhere);

/* A slot for an expert that comes from VRAM: pinned, its parts to be filled by the caller, who
 * ends with cache_adopted(); out->index is the slot's.  Whoever asks for the expert before that
 * gets it from the drive.  -EBUSY: no slot can be taken; -EEXIST: the expert is here or on its
 * way. */
int  cache_adopt(struct cache *c, int layer, int id, struct resident *out);

/* The parts are filled.  -EBADMSG, and the slot is free again, where the bytes are not those
 * that were first read.  The slot is free, too, where the expert came from the drive meanwhile. */
int  cache_adopted(struct cache *c, const struct resident *r, struct err *e);

struct cache_stats cache_stats(const struct cache *c);

/* Every rule that can be read off the state holds.  For assert() and tests. */
bool cache_sane(const struct cache *c);

#endif
