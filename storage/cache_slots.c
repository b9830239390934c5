#include "storage/cache_inner.h"

/* The slots of the cache: which expert is where, and who must go. */

void slot_free(struct cache *c, struct slot *s)
{
    assert(s->pins == 0 && s->state != FREE && (!s->fetch || !s->fetch->left));
    if (s->fetch)
        s->fetch->slot = NULL;
    c->stats.full -= s->state == FULL;
    c->held[layer_of(c, s->key)]--;
    if (c->slot_of[s->key] == (int)(s - c->slot))   /* not so while it is adopted */
        c->slot_of[s->key] = -1;
    *s = (struct slot){ .state = FREE, .key = -1, .next_free = c->first_free };
    c->first_free = (int)(s - c->slot);
    c->free_slots++;
}

void slot_unpin(struct cache *c, struct slot *s)
{
    assert(s->pins > 0);
    if (--s->pins)
        return;
    if (s->state == FAILED ||
        (s->state == FULL && c->elsewhere[s->key] && !c->config.copies))
        slot_free(c, s);
}

/* The full slot without pins of a layer that is least worth keeping [R3], or NULL. */
static struct slot *victim_of(struct cache *c, int layer)
{
    const int *slot_of = c->slot_of + (size_t)layer * c->config.experts;
    uint16_t candidate[MAX_EXPERTS];
    int n = 0, v;

    for (int i = 0; i < c->config.experts; i++)
        if (slot_of[i] >= 0 && c->slot[slot_of[i]].state == FULL && !c->slot[slot_of[i]].pins)
            candidate[n++] = (uint16_t)i;
    v = policy_victim(&c->config.popularity->layer[layer], candidate, n);
    return v < 0 ? NULL : &c->slot[slot_of[candidate[v]]];
}

/* A layer that has its share gives up one of its own; otherwise the layer that is furthest
 * above its share does [R4]. */
static struct slot *find_victim(struct cache *c, int layer)
{
    struct slot *best = c->held[layer] >= c->quota[layer] ? victim_of(c, layer) : NULL;
    int most = 0;

    if (best)
        return best;
    for (int l = 0; l < c->config.layers; l++) {
        int excess = c->held[l] - c->quota[l];
        struct slot *s;

        if (!c->held[l] || (best && excess <= most))
            continue;
        s = victim_of(c, l);
        if (s) {
            best = s;
            most = excess;
        }
    }
    return best;
}

struct slot *slot_take(struct cache *c, int key, float worth)
{
    int layer = layer_of(c, key);
    struct slot *s;

    if (c->first_free < 0) {
        s = worth > 0 ? find_victim(c, layer) : NULL;
        if (!s)
            return NULL;
        if (policy_score(&c->config.popularity->layer[layer_of(c, s->key)],
                         s->key % c->config.experts) >= worth)
            return NULL;
        c->stats.evictions++;
        slot_free(c, s);
    }
    s = &c->slot[c->first_free];
    c->first_free = s->next_free;
    c->free_slots--;
    *s = (struct slot){ .state = READING, .key = key };
    c->slot_of[key] = (int)(s - c->slot);
    c->held[layer]++;
    return s;
}

static bool slot_sane(const struct cache *c, const struct slot *s)
{
    if (s->state == FREE)
        return s->key == -1 && !s->pins && !s->fetch;
    if (s->state == READING && !s->fetch)
        return s->pins == 1 && c->slot_of[s->key] != (int)(s - c->slot);
    if (c->slot_of[s->key] != (int)(s - c->slot) || s->pins < 0)
        return false;
    if (s->state == FULL)
        return !s->fetch;
    if (s->state == FAILED)
        return s->fetch && s->fetch->slot == s && s->pins && !s->fetch->left;
    return s->fetch->slot == s && s->fetch->left;
}

bool cache_sane(const struct cache *c)
{
    int held = 0, taken = 0, fetching = 0, unused = 0;

    for (int i = 0; i < c->slots; i++) {
        if (!slot_sane(c, &c->slot[i]))
            return false;
        taken += c->slot[i].state != FREE;
        fetching += c->slot[i].state == READING && c->slot[i].fetch;
    }
    for (int i = 0; i < c->config.layers; i++)
        held += c->held[i];
    for (int i = c->first_free; i >= 0; i = c->slot[i].next_free)
        unused++;
    return held == taken && unused == c->free_slots && taken + unused == c->slots &&
           fetching == c->fetching;
}
