#ifndef LAGUNA_INDEX_H
#define LAGUNA_INDEX_H

#include "src/base.h"

/* model.safetensors.index.json: which tensor is in which shard. */

/* Called for each entry of weight_map, in the file's order; not 0 stops the reading and is
 * returned.  The strings live for the call. */
typedef int (*index_entry_fn)(void *arg, const char *tensor, const char *shard, struct err *e);

struct index_summary {
    size_t entries;
    bool has_total;
    uint64_t total_bytes;       /* metadata.total_size, where it is an integer */
};

/* Read `text` once.  A shard's name is a plain file name: -EBADMSG for a path. */
int index_read(struct index_summary *out, const char *text, size_t n, const char *name,
               index_entry_fn each, void *arg, struct err *e);

#endif
