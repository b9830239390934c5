#ifndef LAGUNA_BPE_H
#define LAGUNA_BPE_H

#include "src/pairs.h"
#include "src/tokenizer.h"

/* Byte pair encoding of one piece: of all adjacent pairs that have a merge, the one with the
 * lowest rank (of equals the leftmost) becomes one token, until none has. */

struct bpe {
    int32_t byte[256];          /* the token of each byte */
    struct pairs rank;          /* left id, right id -> rank, at most merges */
    int32_t *result;            /* [merges] by rank: the id of both together */
    size_t merges;
    bool ordered;               /* no merge needs the result of a later one: true of all that
                                 * training made */
};

/* Room for `merges` of them.  -ENOMEM. */
int  bpe_open(struct bpe *b, size_t merges);
void bpe_close(struct bpe *b);

/* Append the merge of the next rank.  -EEXIST where the pair has one already. */
int bpe_add(struct bpe *b, int32_t left, int32_t right, int32_t result);

/* After the last one: sets `ordered`.  `vocab` is above every id.  -ENOMEM. */
int bpe_finish(struct bpe *b, size_t vocab);

/* Buffers and a cache of pieces seen, for one thread; zeroed at first. */
struct bpe_scratch {
    size_t cap;
    int32_t *id;                /* [cap] */
    uint32_t *rank;             /* [cap] of the pair that begins here */
    uint32_t *next, *previous;  /* [cap], only for long pieces */
    uint64_t *heap;             /* [3 cap], only for long pieces */
    struct bpe_cached *cache;
};

void bpe_scratch_free(struct bpe_scratch *s);

/* Remember short pieces from now on: worth it for texts of some kilobytes.  Does nothing
 * where memory is short. */
void bpe_scratch_cache(struct bpe_scratch *s);

/* Append the ids of piece[0..n), n >= 1.  n log n.  -ENOMEM; -E2BIG from 4 GiB on. */
int bpe_encode(const struct bpe *b, struct bpe_scratch *s, const char *piece, size_t n,
               struct ids *out);

#endif
