#ifndef LAGUNA_SLAB_H
#define LAGUNA_SLAB_H

#include "src/base.h"

/* Equal slots of anonymous memory on one NUMA node (or all), on huge pages where there are
 * any.  Reserved at once, touched later, piece by piece.  Nothing here reads a file or knows
 * what lies in a slot. */

struct slab;

enum { SLAB_ANY = -1, SLAB_INTERLEAVE = -2 };

struct slab_config {
    size_t slot_bytes;          /* rounded up to 4096; at most 1 GiB */
    int slots;                  /* 0 is no fault */
    int node;                   /* or SLAB_ANY, SLAB_INTERLEAVE */
    struct log *log;
};

/* A range that can be registered with a device: at most 1 GiB, no slot across its end. */
struct slab_chunk {
    void *base;
    size_t bytes;
};

/* -ENOMEM where the address space is refused. */
int  slab_open(struct slab **out, const struct slab_config *c, struct err *e);
void slab_close(struct slab *s);

int    slab_slots(const struct slab *s);
size_t slab_slot_bytes(const struct slab *s);
/* 4096-byte aligned; valid until slab_close(). */
void  *slab_slot(const struct slab *s, int slot);

int  slab_chunks(const struct slab *s);
struct slab_chunk slab_chunk(const struct slab *s, int chunk);

/* Have pages behind a whole chunk, without changing a byte of it: any thread, at any time,
 * even while slots in it are read into.  Blocks (0.1 to 0.3 s a GiB).  Before the chunk is
 * pinned for a GPU or a ring.  -ENOMEM where the machine has no more. */
int  slab_touch(struct slab *s, int chunk, struct err *e);

/* Of the slab's bytes, those on reserved huge pages (the rest may get transparent ones). */
size_t slab_huge_bytes(const struct slab *s);

#endif
