#ifndef LAGUNA_EXTENTS_H
#define LAGUNA_EXTENTS_H

#include "src/base.h"

/* Where one expert's bytes lie on disk, as a few large reads, and where each of its parts
 * lies in memory after them.  Pure arithmetic: nothing here opens a file or knows what a
 * part means. */

enum {
    EXTENT_ALIGN = 4096,        /* of offsets, lengths and memory: O_DIRECT on any drive */
    EXTENT_PARTS = 9,           /* gate, up, down: each weight, scale, zero */
};

/* Some bytes of a shard.  A part that the expert does not have has shard -1 or 0 bytes. */
struct extent_part {
    int shard;
    uint64_t offset, bytes;
};

/* One read.  Everything but `need` is a multiple of EXTENT_ALIGN; the last page may lie
 * partly behind the end of the file, so only the first `need` bytes are certain to come. */
struct extent {
    int shard;
    uint32_t bytes, need;
    uint32_t slot_offset;       /* where it goes in the slot */
    uint64_t offset;            /* in the shard's file */
};

/* One expert: parts keep the order in which they were given. */
struct extents {
    int count, parts;
    uint32_t slot_bytes;                    /* a slot must hold this many */
    struct extent extent[EXTENT_PARTS];     /* by shard, then by offset */
    uint32_t part_offset[EXTENT_PARTS];     /* in the slot */
    uint32_t part_bytes[EXTENT_PARTS];      /* 0: no such part */
};

/* Merge the n parts into as few reads as touch each page once.  Parts may come in any order
 * and may overlap.  -EBADMSG where one expert would need more than 1 GiB. */
int extents_plan(struct extents *out, const struct extent_part *part, int n, struct err *e);

#endif
