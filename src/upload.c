/* How many experts are offered: as many as make the slower side end soonest, by what an expert has
 * cost lately: both sides read the same RAM, so the CPU is slower while the GPU fetches.  Whether
 * any are: a trial of TRIAL steps, with and without in turns, compares the time from share to
 * share, all included; what it says holds for a while. */
#include "src/upload.h"

#include <math.h>

enum { TRIAL = 32, FIRST_PERIOD = 64, LAST_PERIOD = 1024 };

static const double WEIGHT = 0.05;              /* of the latest measurement */
static const double GAIN = 0.98;                /* what offers must bring to be made */

/* The list on its way to the GPU, and the kernels behind the fetch. */
static const double LATE_SECONDS = 8e-6;

void upload_open(struct upload *u, const struct upload_config *c)
{
    *u = (struct upload){ .c = *c, .period = FIRST_PERIOD };
}

static double cost_of(const struct upload_cost *c)
{
    return c->experts > 0 ? c->seconds / c->experts : 0;
}

/* The step's place in trial and period. */
static bool is_time(struct upload *u)
{
    int step = u->step++;

    if (step == TRIAL)
        u->pays = cost_of(&u->with) < GAIN * cost_of(&u->without);
    if (u->step == u->period) {
        u->with = u->without = (struct upload_cost){ 0, 0 };
        u->period = u->period < LAST_PERIOD ? 2 * u->period : LAST_PERIOD;
        u->step = 0;
    }
    return step < TRIAL ? step % 2 == 1 : u->pays;
}

bool upload_begin(struct upload *u)
{
    if (!isnan(u->c.share))
        u->now = u->c.share > 0;
    else
        u->now = u->missed && is_time(u);
    u->experts = u->offered = u->missed = 0;
    return u->now;
}

int upload_count(struct upload *u, int n)
{
    int slots = u->c.slots < GPU_OFFERS ? u->c.slots : GPU_OFFERS, most = n < slots ? n : slots;
    double least = n * u->alone_seconds;
    int best = 0;

    if (!isnan(u->c.share)) {
        double part = u->carry + u->c.share * n;

        u->carry = part - (int)part;
        return (int)part < most ? (int)part : most;
    }
    if (!(u->fetch_seconds > 0) || !(u->cpu_seconds > 0))
        return most / 2;
    for (int k = 1; k <= most; k++) {
        double longer = fmax(k * u->fetch_seconds + LATE_SECONDS, (n - k) * u->cpu_seconds);

        if (longer < least)
            best = k;
        least = fmin(least, longer);
    }
    return best;
}

/* An expert that is in RAM, for as long as the GPU reads it. */
static bool borrow(struct upload *u, int layer, int id, struct gpu_offer *o)
{
    struct wanted w = { layer, id, true };
    struct err e;
    int loan = FEED_LOAN + u->offered;

    if (!experts_at_hand(u->c.experts, layer, id))
        return false;
    experts_lend(u->c.experts, loan, &w);
    if (experts_lent(u->c.experts, loan, &o->expert, &e) != 1) {
        experts_return(u->c.experts, loan);     /* the CPU will be told why */
        return false;
    }
    o->slot = u->c.first_slot + u->offered++;
    return true;
}

static void drop(struct route *r, int id)
{
    for (int i = 0; i < r->tokens * r->topk; i++)
        if (r->expert[i] == id)
            r->expert[i] = NO_EXPERT;
}

int upload_offer(struct upload *u, int layer, struct chosen *c, struct route *r, struct err *e)
{
    struct gpu_offer offer[GPU_OFFERS];
    int here = 0, want, kept = 0;

    u->start = clock_now();
    u->experts = c->n;
    u->missed += c->n;
    u->offered = 0;
    u->cpu = -1;
    if (!u->now)
        return 0;
    for (int i = 0; i < c->n; i++)
        here += experts_at_hand(u->c.experts, layer, c->id[i]);
    want = upload_count(u, here);
    for (int i = 0; i < c->n; i++) {
        if (u->offered < want && borrow(u, layer, c->id[i], &offer[u->offered])) {
            drop(r, c->id[i]);
            continue;
        }
        c->id[kept] = c->id[i];
        c->tokens[kept++] = c->tokens[i];
    }
    c->n = kept;
    experts_count_uploads(u->c.experts, u->offered);
    /* None is an answer too: the GPU need not wait for it until the CPU is done. */
    return gpu_offer(u->c.gpu, offer, u->offered, e);
}

void upload_learn(struct upload *u, double seconds)
{
    u->cpu = seconds;
}

static void blend(double *mean, double value)
{
    *mean += (*mean > 0 ? WEIGHT : 1) * (value - *mean);
}

void upload_settle(struct upload *u)
{
    struct upload_cost *c = u->now ? &u->with : &u->without;
    int left = u->experts - u->offered;

    for (int i = 0; i < u->offered; i++)
        experts_return(u->c.experts, FEED_LOAN + i);
    if (u->experts && u->cpu >= 0) {
        c->seconds += clock_now() - u->start;
        c->experts += u->experts;
        if (u->offered)
            blend(&u->fetch_seconds, gpu_fetch_seconds(u->c.gpu) / u->offered);
        if (left)
            blend(u->offered ? &u->cpu_seconds : &u->alone_seconds, u->cpu / left);
    }
    u->experts = u->offered = 0;
}
