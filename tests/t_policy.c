#include "storage/policy.h"
#include "tests/routes.h"
#include "tests/tap.h"

#include <math.h>
#include <stdlib.h>

/* The functions by themselves, then the promise against LRU on generated traces (the full
 * table is tests/bench_cache). */

static void arithmetic(void)
{
    struct policy_use use[4];
    struct policy_layer p;
    const uint16_t all[] = { 0, 1, 2, 3 }, one[] = { 1 }, two[] = { 0, 2 };
    float before;
    int bad = 0;

    policy_init(&p, use, 4);
    ok(policy_victim(&p, all, 0) == -1, "nobody to evict");
    ok(policy_victim(&p, all, 4) == 3 && policy_score(&p, 0) == 0, "all equal: the highest id");
    policy_note(&p, one, 1);
    policy_note(&p, two, 2);
    ok(policy_victim(&p, all, 4) == 3, "never used goes first");
    ok(policy_victim(&p, all, 3) == 1, "then the one used longest ago");
    before = policy_score(&p, 1);
    for (int i = 0; i < POLICY_RECENT; i++)
        policy_note(&p, two, 2);
    ok(policy_score(&p, 1) < 0.51f * before && policy_score(&p, 1) > 0.49f * before * 0.99f,
       "a use counts half after %d tokens", POLICY_RECENT);
    for (int i = 0; i < 3000000; i++) {
        policy_note(&p, two, 2);
        for (int k = 0; k < 4 && i % 1000 == 0; k++)
            bad += !(policy_score(&p, k) >= 0 && policy_score(&p, k) < 1.01f);
    }
    ok(!bad, "scores stay in 0 to 1 for ever");
    ok(fabsf(policy_score(&p, 0) - 1) < 0.02f && policy_score(&p, 1) < 1e-3f,
       "always used is 1 (%g), long unused is 0 (%g)", (double)policy_score(&p, 0),
       (double)policy_score(&p, 1));
}

/* Seats 0 to 3 of eight experts. */
static void exchange(void)
{
    struct policy_use use[8];
    struct policy_layer p;
    uint8_t place[8] = { POLICY_SEATED, POLICY_SEATED, POLICY_SEATED, POLICY_SEATED };
    const uint16_t old[] = { 0, 1 }, new[] = { 6 }, both[] = { 1, 6 };
    int in, out;

    policy_init(&p, use, 8);
    ok(!policy_exchange(&p, place, 1, &in, &out), "nothing known: nobody moves");
    policy_note(&p, new, 1);
    ok(!policy_exchange(&p, place, 1, &in, &out), "one use is noise");
    for (int i = 0; i < 1000; i++)
        policy_note(&p, old, 2);
    for (int i = 0; i < 70; i++)
        policy_note(&p, new, 1);
    ok(policy_exchange(&p, place, 1, &in, &out) && in == 6 && out == 3, "the unused goes: %d", out);
    place[3] = POLICY_APART;
    ok(policy_exchange(&p, place, 1, &in, &out) && out == 2, "unless it is not asked about");
    place[2] = POLICY_APART;
    for (int i = 0; i < 300; i++)
        policy_note(&p, new, 1);
    ok(policy_exchange(&p, place, 1, &in, &out) && out == 1, "one of two is on the floor");
    ok(!policy_exchange(&p, place, 2, &in, &out), "both are");
    for (int i = 0; i < 1000; i++)
        policy_note(&p, both, 2);
    place[0] = POLICY_APART;
    ok(!policy_exchange(&p, place, 0, &in, &out) && in == 6 && out == 1,
       "equals do not change places");
    place[0] = POLICY_SEATED;
    ok(policy_exchange(&p, place, 0, &in, &out) && out == 0, "but with a lesser one");
    place[6] = POLICY_APART;
    ok(!policy_exchange(&p, place, 0, &in, &out), "who is on the way is not sent for");
}

/* A trace with a known best: 0 1 2 0 1 3 0 1 2 with two places. */
static void known_best(void)
{
    const uint16_t pick[] = { 0, 1, 2, 0, 1, 3, 0, 1, 2 };
    struct routes r = { 9, 1, 4, (uint16_t *)pick };

    ok(routes_replay(&r, REPLAY_LRU, 2) == 0, "LRU by hand: no hit");
    ok(fabs(routes_replay(&r, REPLAY_BELADY, 2) - 200.0 / 9) < 1e-9, "Belady by hand: 2 of 9");
    ok(fabs(routes_replay(&r, REPLAY_LRU, 4) - 500.0 / 9) < 1e-9, "room for all: first touches");
}

static void promise(void)
{
    static const double share[] = { 0.32, 0.55, 0.65, 0.8 }, repeat[] = { 0, 0.3, 0.6 };
    static const int places[] = { 16, 32, 64, 128 };
    double worst = 100, mean = 0, below = 100;
    int n = 0;

    for (int i = 0; i < 12; i++) {
        struct routes r;

        routes_make(&r, 256, 10, 2000, share[i / 3], repeat[i % 3], 64, 11);
        for (int k = 0; k < 4; k++) {
            double lru = routes_replay(&r, REPLAY_LRU, places[k]);
            double ours = routes_replay(&r, REPLAY_POLICY, places[k]);

            worst = fmin(worst, ours - lru);
            below = fmin(below, routes_replay(&r, REPLAY_BELADY, places[k]) - ours);
            mean += i >= 3 ? ours - lru : 0;
            n += i >= 3;
        }
        routes_free(&r);
    }
    ok(worst >= -0.5, "never more than 0.5 points below LRU: %+.2f", worst);
    ok(mean / n >= 1, "at least 1 point above it on skewed traces: %+.2f", mean / n);
    ok(below >= 0, "and never above Belady: %.2f", below);
}

int main(void)
{
    arithmetic();
    exchange();
    known_best();
    promise();
    return done();
}
