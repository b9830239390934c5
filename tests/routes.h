#ifndef LAGUNA_TESTS_ROUTES_H
#define LAGUNA_TESTS_ROUTES_H

#include "src/base.h"

/* Traces of one layer's router, made or recorded, and what cache of a given size would have
 * hit on them. */

struct routes {
    int tokens, topk, experts;
    uint16_t *pick;             /* [tokens][topk] */
};

enum replay { REPLAY_LRU, REPLAY_LFU, REPLAY_POLICY, REPLAY_BELADY, REPLAYS };

/* The hottest quarter of the experts takes `share` of the picks; each expert of a token is
 * kept from the token before with probability `repeat`; after every `drift` tokens a hot
 * expert changes places with another. */
void routes_make(struct routes *r, int experts, int topk, int tokens, double share,
                 double repeat, int drift, uint64_t seed);
void routes_free(struct routes *r);

/* Of the picks, those of the hottest quarter over the trace, and those that the token
 * before made too. */
double routes_share(const struct routes *r);
double routes_repeat(const struct routes *r);

/* Per cent of picks that lay in one of `places` slots.  All experts of a token are wanted at
 * once: none of them is evicted for another. */
double routes_replay(const struct routes *r, enum replay how, int places);

#endif
