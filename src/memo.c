/* A table from edges to states, filled during a walk and emptied before the next.  What does not
 * fit is not remembered: then it is computed each time. */
#include "src/memo.h"

enum { TO_BITS = 16 };

int memo_start(struct memo *m, const struct threads *t)
{
    if (m->edges)
        memset(m->slot, 0, sizeof(m->slot));
    m->edges = 0;
    m->state[MEMO_DEAD].n = 0;
    m->state[1] = *t;
    m->states = 2;
    return 1;
}

/* The slot of the edge, or the free one where it would be. */
static size_t find_slot(const struct memo *m, uint64_t edge)
{
    size_t i = (size_t)(edge * 0x9e3779b97f4a7c15 >> 32) % MEMO_SLOTS;

    while (m->slot[i] && m->slot[i] >> TO_BITS != edge)
        i = (i + 1) % MEMO_SLOTS;
    return i;
}

int memo_find(const struct memo *m, uint64_t edge)
{
    uint64_t found = m->slot[find_slot(m, edge)];

    return found ? (int)(found & ((1 << TO_BITS) - 1)) : MEMO_NONE;
}

/* The state of the threads; *fresh: it is new. */
static int find_state(struct memo *m, const struct automaton *a, const struct threads *t,
                      bool *fresh)
{
    int i = 0;

    while (i < m->states && !automaton_same(a, &m->state[i], t))
        i++;
    *fresh = i == m->states;
    if (*fresh)
        m->state[m->states++] = *t;
    return i;
}

int memo_add(struct memo *m, const struct automaton *a, uint64_t edge, const struct threads *t,
             bool *fresh)
{
    int state;

    *fresh = false;
    if (m->edges == MEMO_EDGES || m->states == MEMO_STATES)
        return MEMO_NONE;
    state = find_state(m, a, t, fresh);
    m->slot[find_slot(m, edge)] = edge << TO_BITS | (uint64_t)state;
    m->edges++;
    return state;
}
