#include "tests/routes.h"

#include "storage/policy.h"

#include <math.h>
#include <stdlib.h>

/* Popularity is log-normal: of the usual one-parameter laws the one that gives back, at a
 * share of 0.62, the effective experts measured on the smaller model of the family. */

struct law {
    int experts;
    double *weight;             /* [experts] by rank */
    double total;
    int *at_rank;               /* [experts] which expert has this rank */
    uint64_t state;
};

static double chance(struct law *l)
{
    l->state ^= l->state << 13;
    l->state ^= l->state >> 7;
    l->state ^= l->state << 17;
    return (double)(l->state >> 11) * 0x1p-53;
}

/* The point below which a normal variable lies with probability p. */
static double quantile(double p)
{
    double low = -6, high = 6;

    for (int i = 0; i < 50; i++) {
        double mid = (low + high) / 2;

        if (erfc(-mid / sqrt(2)) / 2 < p)
            low = mid;
        else
            high = mid;
    }
    return low;
}

static void set_width(struct law *l, double width)
{
    l->total = 0;
    for (int i = 0; i < l->experts; i++) {
        l->weight[i] = exp(width * quantile((l->experts - i - 0.5) / l->experts));
        l->total += l->weight[i];
    }
}

/* topk different experts, some of them from the token before (may be NULL). */
static void draw(struct law *l, uint16_t *out, int topk, const uint16_t *before, double repeat)
{
    bool taken[1024] = { false };
    int n = 0;

    for (int i = 0; before && i < topk; i++)
        if (chance(l) < repeat) {
            out[n++] = before[i];
            taken[before[i]] = true;
        }
    while (n < topk) {
        double x = chance(l) * l->total;
        int rank = 0;

        while (rank < l->experts - 1 && x >= l->weight[rank])
            x -= l->weight[rank++];
        if (taken[l->at_rank[rank]])
            continue;
        taken[l->at_rank[rank]] = true;
        out[n++] = (uint16_t)l->at_rank[rank];
    }
}

/* Drawing without putting back flattens the shares, so the width is found by trying. */
static void fit(struct law *l, int topk, double share)
{
    double low = 0, high = 4;

    for (int step = 0; step < 12; step++) {
        double width = (low + high) / 2;
        uint16_t out[64];
        int hot = 0;

        set_width(l, width);
        for (int k = 0; k < 600; k++) {
            draw(l, out, topk, NULL, 0);
            for (int i = 0; i < topk; i++)
                hot += out[i] < l->experts / 4;
        }
        if (hot < share * 600 * topk)
            low = width;
        else
            high = width;
    }
}

static void swap(struct law *l, int a, int b)
{
    int x = l->at_rank[a];

    l->at_rank[a] = l->at_rank[b];
    l->at_rank[b] = x;
}

void routes_make(struct routes *r, int experts, int topk, int tokens, double share,
                 double repeat, int drift, uint64_t seed)
{
    struct law l = { .experts = experts, .state = seed * 0x9e3779b97f4a7c15u + 1 };

    *r = (struct routes){ tokens, topk, experts, NULL };
    r->pick = malloc((size_t)tokens * topk * sizeof(*r->pick));
    l.weight = malloc((size_t)experts * sizeof(*l.weight));
    l.at_rank = malloc((size_t)experts * sizeof(*l.at_rank));
    for (int i = 0; i < experts; i++)
        l.at_rank[i] = i;
    fit(&l, topk, share);
    for (int i = experts - 1; i > 0; i--)
        swap(&l, i, (int)(chance(&l) * (i + 1)));
    for (int t = 0; t < tokens; t++) {
        uint16_t *out = r->pick + (size_t)t * topk;

        if (t % drift == drift - 1)
            swap(&l, (int)(chance(&l) * experts / 4), (int)(chance(&l) * experts));
        draw(&l, out, topk, t ? out - topk : NULL, repeat);
    }
    free(l.weight);
    free(l.at_rank);
}

void routes_free(struct routes *r)
{
    free(r->pick);
    r->pick = NULL;
}

static int downwards(const void *a, const void *b)
{
    return *(const int *)b - *(const int *)a;
}

double routes_share(const struct routes *r)
{
    int *uses = calloc((size_t)r->experts, sizeof(*uses)), n = r->tokens * r->topk;
    double hot = 0;

    for (int i = 0; i < n; i++)
        uses[r->pick[i]]++;
    qsort(uses, (size_t)r->experts, sizeof(*uses), downwards);
    for (int i = 0; i < r->experts / 4; i++)
        hot += uses[i];
    free(uses);
    return hot / n;
}

double routes_repeat(const struct routes *r)
{
    int n = r->tokens * r->topk, again = 0;

    for (int i = r->topk; i < n; i++) {
        const uint16_t *before = r->pick + (size_t)(i / r->topk - 1) * r->topk;

        for (int k = 0; k < r->topk; k++)
            again += before[k] == r->pick[i];
    }
    return (double)again / n;
}

/* State of one replay.  worth: what the evicted expert has least of. */
struct replayer {
    struct policy_layer policy;
    double *worth;              /* [experts] */
    bool *inside, *wanted;      /* [experts] */
    int full;
};

/* When each pick is made again: the next token, or never. */
static int *next_uses(const struct routes *r)
{
    int *next = malloc((size_t)r->tokens * r->topk * sizeof(*next));
    int *at = malloc((size_t)r->experts * sizeof(*at));

    for (int i = 0; i < r->experts; i++)
        at[i] = r->tokens;
    for (int i = r->tokens * r->topk - 1; i >= 0; i--) {
        next[i] = at[r->pick[i]];
        at[r->pick[i]] = i / r->topk;
    }
    free(at);
    return next;
}

static int choose(struct replayer *p, enum replay how, int experts)
{
    uint16_t candidate[1024];
    int n = 0, v = 0;

    for (int i = 0; i < experts; i++)
        if (p->inside[i] && !p->wanted[i])
            candidate[n++] = (uint16_t)i;
    if (!n)
        return -1;
    if (how == REPLAY_POLICY)
        return candidate[policy_victim(&p->policy, candidate, n)];
    for (int i = 1; i < n; i++)
        if (p->worth[candidate[i]] < p->worth[candidate[v]])
            v = i;
    return candidate[v];
}

static void note(struct replayer *p, enum replay how, const uint16_t *pick, const int *next,
                 int topk, int token)
{
    if (how == REPLAY_POLICY)
        policy_note(&p->policy, pick, topk);
    for (int i = 0; i < topk; i++) {
        if (how == REPLAY_BELADY)
            p->worth[pick[i]] = -next[i];
        else if (how == REPLAY_LFU)
            p->worth[pick[i]]++;
        else
            p->worth[pick[i]] = token;
        p->wanted[pick[i]] = true;
    }
}

double routes_replay(const struct routes *r, enum replay how, int places)
{
    struct policy_use *use = malloc((size_t)r->experts * sizeof(*use));
    struct replayer p = { .full = 0 };
    int *next = next_uses(r);
    double hits = 0;

    p.worth = calloc((size_t)r->experts, sizeof(*p.worth));
    p.inside = calloc((size_t)r->experts, 1);
    p.wanted = calloc((size_t)r->experts, 1);
    policy_init(&p.policy, use, r->experts);
    for (int t = 0; t < r->tokens; t++) {
        const uint16_t *pick = r->pick + (size_t)t * r->topk;

        note(&p, how, pick, next + (size_t)t * r->topk, r->topk, t);
        for (int i = 0; i < r->topk; i++) {
            int victim = -1;

            hits += p.inside[pick[i]];
            if (p.inside[pick[i]])
                continue;
            if (p.full == places)
                victim = choose(&p, how, r->experts);
            if (p.full == places && victim < 0)
                continue;       /* more wanted at once than there are places */
            if (victim >= 0)
                p.inside[victim] = false;
            p.full += victim < 0;
            p.inside[pick[i]] = true;
        }
        for (int i = 0; i < r->topk; i++)
            p.wanted[pick[i]] = false;
    }
    free(p.worth);
    free(p.inside);
    free(p.wanted);
    free(next);
    free(use);
    return 100 * hits / ((double)r->tokens * r->topk);
}
