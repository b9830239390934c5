#ifndef LAGUNA_EXPERTS_INTERNAL_H
#define LAGUNA_EXPERTS_INTERNAL_H

#include "src/experts.h"

/* What experts.c asks of its two ways to hold experts, and what they share. */

struct expert_set;              /* all in RAM: expert_set.c */
struct expert_tiers;            /* slots in front of the drive: expert_tiers.c */

int  expert_set_open(struct expert_set **out, const struct experts_config *c, struct err *e);
void expert_set_close(struct expert_set *s);
const struct expert *expert_set_get(const struct expert_set *s, int layer, int id);

int  expert_tiers_open(struct expert_tiers **out, const struct experts_config *c,
                       const struct popularity *p, struct err *e);
int  expert_tiers_close(struct expert_tiers *t);
void expert_tiers_request(struct expert_tiers *t, int layer, const uint16_t *id, int n,
                          struct tier_counts *counts);
void expert_tiers_guess(struct expert_tiers *t, int layer, const struct route *r);
int  expert_tiers_next(struct expert_tiers *t, const struct expert *const **out, struct err *e);
void expert_tiers_release(struct expert_tiers *t);
void expert_tiers_finish(struct expert_tiers *t);
void expert_tiers_warm(struct expert_tiers *t);
bool expert_tiers_poll(struct expert_tiers *t);
void expert_tiers_fill(struct expert_tiers *t);
/* Warn once where memory could not be pinned. */
void expert_tiers_check_pins(struct expert_tiers *t);
void expert_tiers_lend(struct expert_tiers *t, int loan, const struct wanted *w,
                       struct tier_counts *counts);
int  expert_tiers_lent(struct expert_tiers *t, int loan, const struct expert **out,
                       struct err *e);
void expert_tiers_return(struct expert_tiers *t, int loan);
bool expert_tiers_at_hand(const struct expert_tiers *t, int layer, int id);
void expert_tiers_elsewhere(struct expert_tiers *t, int layer, int id, bool elsewhere);
int  expert_tiers_adopt(struct expert_tiers *t, int layer, int id, const struct expert **out);
int  expert_tiers_adopted(struct expert_tiers *t, struct err *e);
void expert_tiers_counts(const struct expert_tiers *t, struct tier_counts *counts);

/* Point the matrices of x at its parts, which begin at memory + at[i]. */
void expert_bind(struct expert *x, const struct expert_source *s, const uint8_t *memory,
                 const uint32_t at[EXPERT_PARTS]);

/* A half-downloaded shard and a broken quantizer both show in the scales. */
int  expert_check_scales(const struct expert *x, struct err *e);

#endif
