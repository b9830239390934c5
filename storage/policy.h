#ifndef LAGUNA_POLICY_H
#define LAGUNA_POLICY_H

#include "src/base.h"

/* How much an expert is worth keeping: pure functions on what one layer's router chose.
 * tests/bench_cache replays recorded routes against them; see storage/NOTES.md for the
 * tables that decided the two constants. */

/* Tokens after which a use counts half.  `recent` follows the conversation, `lasting` is the
 * model's habit and is what a new start is warmed with. */
enum { POLICY_RECENT = 70, POLICY_LASTING = 8192 };

/* Uses of one expert, later ones weighing more. */
struct policy_use {
    float recent, lasting;
};

/* One layer.  The weight of a use grows by a constant factor a token, instead of all older
 * ones shrinking; both are scaled back before they overflow.  The caller owns `use`. */
struct policy_layer {
    struct policy_use *use;     /* [experts] */
    int experts;
    float recent_unit, lasting_unit;    /* what a use counts now */
};

void policy_init(struct policy_layer *p, struct policy_use *use, int experts);

/* One token chose these n experts. */
void policy_note(struct policy_layer *p, const uint16_t *expert, int n);

/* The share of tokens that will choose this expert, as far as the past can tell: 0 to 1. */
float policy_score(const struct policy_layer *p, int expert);
float policy_lasting(const struct policy_layer *p, int expert);

/* Which of n candidates is the least worth keeping: an index into `candidate`, or -1 for
 * none.  Among equals the highest id goes. */
int  policy_victim(const struct policy_layer *p, const uint16_t *candidate, int n);

/* Where an expert stands for policy_exchange(). */
enum policy_place { POLICY_OUTSIDE, POLICY_SEATED, POLICY_APART };  /* apart: not asked about */

/* Whether an expert outside is so much more worth than one that is seated that they should
 * change places.  The `floor` seated ones of the most lasting worth are never `out`.
 * place: [experts] of enum policy_place. */
bool policy_exchange(const struct policy_layer *p, const uint8_t *place, int floor, int *in,
                     int *out);

#endif
