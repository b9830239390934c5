/* Experts in the order their bytes arrive: while some are computed, others are read. */
#include "src/waves.h"

void chosen_collect(struct chosen *c, const struct route *r, int experts)
{
    int tokens[MAX_EXPERTS] = { 0 };

    for (int i = 0; i < r->tokens * r->topk; i++)
        if (r->expert[i] != NO_EXPERT)
            tokens[r->expert[i]]++;
    c->n = 0;
    for (int x = 0; x < experts; x++) {
        if (!tokens[x])
            continue;
        c->id[c->n] = (uint16_t)x;
        c->tokens[c->n++] = tokens[x];
    }
}

/* How many experts from `first` on fit one wave. */
static int wave_size(const struct runner *f, const struct chosen *c, int first)
{
    int pairs = 0, n = first;

    while (n < c->n && pairs + c->tokens[n] <= cpu_wave_pairs(f->cpu))
        pairs += c->tokens[n++];
    return n - first;
}

static int run_wave(struct runner *f, int layer, const uint16_t *id, int n,
                    const struct guess *guess, struct err *e)
{
    const struct expert *const *x;
    int got;

    experts_request(f->experts, layer, id, n);
    if (guess && guess->route.tokens)
        experts_guess(f->experts, guess->layer, &guess->route);
    while ((got = experts_next(f->experts, &x, e)) > 0) {
        cpu_wave_add(f->cpu, x, got);
        experts_release(f->experts);
    }
    experts_finish(f->experts);
    if (!got)
        cpu_wave_end(f->cpu);
    return got;
}

int waves_run(struct runner *f, int layer, const struct route *r, const struct chosen *c,
              const struct guess *guess, struct err *e)
{
    int n, rc = 0;

    for (int first = 0; first < c->n && !rc; first += n) {
        n = wave_size(f, c, first);
        cpu_wave_begin(f->cpu, r, c->id + first, n);
        rc = run_wave(f, layer, c->id + first, n, guess, e);
    }
    return rc;
}
