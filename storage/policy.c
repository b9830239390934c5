#include "storage/policy.h"

#include <assert.h>
#include <math.h>

/* LRFU: frequency with exponential decay, which is LRU at a half-life of no tokens and LFU
 * at an infinite one.  A quarter of the score is the lasting habit: the soft form of a static
 * floor.  Pinning a quarter of the slots outright lost 0.5 to 1 point everywhere. */

static const float lasting_share = 0.25f, rescale_at = 1e12f;

/* An exchange moves two experts through PCIe: it must promise more than the noise of a few
 * uses.  On generated traces (32 and 64 seats of 256, a look every 12 tokens) 1.25 and 1/64 hit
 * as often within half a point and exchanged up to three times as much; 1/16 lost up to 4. */
static const float exchange_factor = 1.5f, exchange_least = 1 / 32.0f;

static float growth(int half_life)
{
    return exp2f(1.0f / (float)half_life);
}

/* The most a sum of uses can be, in units of a use now: one a token for ever. */
static float ceiling(int half_life)
{
    return 1 / (1 - 1 / growth(half_life));
}

void policy_init(struct policy_layer *p, struct policy_use *use, int experts)
{
    *p = (struct policy_layer){ use, experts, 1, 1 };
    memset(use, 0, (size_t)experts * sizeof(*use));
}

static void rescale(struct policy_layer *p)
{
    bool recent = p->recent_unit > rescale_at, lasting = p->lasting_unit > rescale_at;

    if (!recent && !lasting)
        return;
    for (int i = 0; i < p->experts; i++) {
        if (recent)
            p->use[i].recent /= p->recent_unit;
        if (lasting)
            p->use[i].lasting /= p->lasting_unit;
    }
    if (recent)
        p->recent_unit = 1;
    if (lasting)
        p->lasting_unit = 1;
}

void policy_note(struct policy_layer *p, const uint16_t *expert, int n)
{
    p->recent_unit *= growth(POLICY_RECENT);
    p->lasting_unit *= growth(POLICY_LASTING);
    for (int i = 0; i < n; i++) {
        assert(expert[i] < p->experts);
        p->use[expert[i]].recent += p->recent_unit;
        p->use[expert[i]].lasting += p->lasting_unit;
    }
    rescale(p);
}

/* What turns the stored sums into the score; the same for a whole layer. */
struct weights {
    float recent, lasting;
};

static struct weights weigh(const struct policy_layer *p)
{
    return (struct weights){
        (1 - lasting_share) / (p->recent_unit * ceiling(POLICY_RECENT)),
        lasting_share / (p->lasting_unit * ceiling(POLICY_LASTING)),
    };
}

static float score(const struct policy_use *u, const struct weights *w)
{
    return u->recent * w->recent + u->lasting * w->lasting;
}

float policy_lasting(const struct policy_layer *p, int expert)
{
    return p->use[expert].lasting / (p->lasting_unit * ceiling(POLICY_LASTING));
}

float policy_score(const struct policy_layer *p, int expert)
{
    struct weights w = weigh(p);

    return score(&p->use[expert], &w);
}

int policy_victim(const struct policy_layer *p, const uint16_t *candidate, int n)
{
    struct weights w = weigh(p);
    int victim = -1;
    float least = 0;

    for (int i = 0; i < n; i++) {
        float worth = score(&p->use[candidate[i]], &w);

        if (victim < 0 || worth < least ||
            (worth == least && candidate[i] > candidate[victim])) {
            victim = i;
            least = worth;
        }
    }
    return victim;
}

/* Fewer than `floor` seated experts are of more lasting worth; equal ones by id. */
static bool on_floor(const struct policy_layer *p, const uint8_t *place, int floor, int expert)
{
    int above = 0;

    for (int i = 0; i < p->experts && above < floor; i++) {
        float more = p->use[i].lasting - p->use[expert].lasting;

        above += place[i] == POLICY_SEATED && (more > 0 || (!(more < 0) && i < expert));
    }
    return above < floor;
}

bool policy_exchange(const struct policy_layer *p, const uint8_t *place, int floor, int *in,
                     int *out)
{
    struct weights w = weigh(p);
    float most = 0, least = 0;

    *in = *out = -1;
    for (int i = 0; i < p->experts; i++) {
        float worth = score(&p->use[i], &w);

        if (place[i] == POLICY_OUTSIDE && (*in < 0 || worth > most)) {
            *in = i;
            most = worth;
        } else if (place[i] == POLICY_SEATED && (*out < 0 || worth <= least) &&
                   !on_floor(p, place, floor, i)) {
            *out = i;
            least = worth;
        }
    }
    return *in >= 0 && *out >= 0 && most > exchange_factor * least + exchange_least;
}
