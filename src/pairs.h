#ifndef LAGUNA_PAIRS_H
#define LAGUNA_PAIRS_H

#include "src/base.h"

#include <errno.h>
#include <stdlib.h>

/* A hash table from two numbers to one: the merges of BPE (left id, right id -> rank) and the
 * tree of added tokens (node, byte -> node).  Filled once, then only read.  Its capacity is
 * fixed when it is opened. */

struct pairs {
    struct pair {
        uint64_t key;
        int32_t value;              /* -1 marks an empty place */
    } *place;
    size_t mask;
    int shift;
};

/* Room for n pairs, at most half full.  -ENOMEM. */
static inline int pairs_open(struct pairs *p, size_t n)
{
    size_t size = 16, i;
    int bits = 4;

    while (size < 2 * n) {
        size *= 2;
        bits++;
    }
    p->place = malloc(size * sizeof(*p->place));
    if (!p->place)
        return -ENOMEM;
    for (i = 0; i < size; i++)
        p->place[i] = (struct pair){ .value = -1 };
    p->mask = size - 1;
    p->shift = 64 - bits;
    return 0;
}

static inline void pairs_close(struct pairs *p)
{
    free(p->place);
    p->place = NULL;
}

/* Where the pair is, or the empty place where it belongs. */
static inline struct pair *pairs_place(const struct pairs *p, int32_t left, int32_t right)
{
    uint64_t key = (uint64_t)(uint32_t)left << 32 | (uint32_t)right;
    size_t i = (size_t)(key * 0x9e3779b97f4a7c15 >> p->shift);

    while (p->place[i].value >= 0 && p->place[i].key != key)
        i = (i + 1) & p->mask;
    return &p->place[i];
}

/* The value, or -1. */
static inline int32_t pairs_get(const struct pairs *p, int32_t left, int32_t right)
{
    return pairs_place(p, left, right)->value;
}

/* What was there before, or -1; then the value is `value` (>= 0). */
static inline int32_t pairs_set(struct pairs *p, int32_t left, int32_t right, int32_t value)
{
    struct pair *place = pairs_place(p, left, right);
    int32_t before = place->value;

    place->key = (uint64_t)(uint32_t)left << 32 | (uint32_t)right;
    place->value = value;
    return before;
}

#endif
