#ifndef LAGUNA_MEMO_H
#define LAGUNA_MEMO_H

#include "src/automaton.h"

/* What the automaton has answered during one walk over the tree of tokens.  Behind the quote that
 * ends a text all tokens stand at the same place, whatever the text was, so that most steps were
 * done before.  State 0 is that without threads, state 1 that at which the walk began. */

enum {
    MEMO_STATES = 128,          /* a state is a number below; more are not remembered */
    MEMO_DEAD = 0,              /* the state without threads */
    MEMO_NONE = -1,             /* of threads that are not remembered */
    MEMO_SLOTS = 8192,          /* a power of two */
    MEMO_EDGES = 6144,          /* the most that are taken, so that a search ends soon */
};

struct memo {
    int states, edges;
    struct threads state[MEMO_STATES];
    /* From a state by what was read: the edge above the number of the state it leads to; 0 where
     * the slot is free. */
    uint64_t slot[MEMO_SLOTS];
};

/* Forget all, and begin with these threads: their state. */
int memo_start(struct memo *m, const struct threads *t);

/* The edge of a byte; text: one of up to 63 ways to get there, 0 for that of the byte alone, with
 * so many characters (below 256) of plain text in front of it that end in step s. */
static inline uint64_t memo_edge(int state, int text, uint32_t characters, enum textstep s,
                                 uint8_t b)
{
    return (uint64_t)state << 26 | (uint64_t)text << 20 | (uint64_t)characters << 12 |
           (uint64_t)s << 8 | b;
}

/* Where the edge leads, or MEMO_NONE where that is not known. */
int memo_find(const struct memo *m, uint64_t edge);

/* It leads to these threads: their state, or MEMO_NONE where there is no room.  The frames of a
 * new state have to stay until the walk is over; *fresh: it is one. */
int memo_add(struct memo *m, const struct automaton *a, uint64_t edge, const struct threads *t,
             bool *fresh);

#endif
