/* The forward pass: what happens to one batch of tokens, from embedding to logits.
 * Read this file first; everything else in the project serves a line of it. */
#include "src/forward.h"

#include <errno.h>

/* What the router said, and what it may say in the next layer with experts. */
struct choice {
    struct route route, guess;          /* guess.tokens 0: none */
    int guess_layer;
};

/* The experts that this batch chose, each once, ascending, and how many tokens each has. */
struct chosen {
    uint16_t id[MAX_EXPERTS];
    int tokens[MAX_EXPERTS];
    int n;
};

static void collect(const struct route *r, int experts, struct chosen *c)
{
    int tokens[MAX_EXPERTS] = { 0 };

    for (int i = 0; i < r->tokens * r->topk; i++)
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

/* Experts in the order their bytes arrive: while some are computed, others are read. */
static int run_wave(struct runner *f, int layer, const struct choice *c, const uint16_t *id, int n,
                    struct err *e)
{
    const struct expert *const *x;
    int got;

    cpu_wave_begin(f->cpu, &c->route, id, n);
    experts_request(f->experts, layer, id, n);
    if (c->guess.tokens)
        experts_guess(f->experts, c->guess_layer, &c->guess);
    while ((got = experts_next(f->experts, &x, e)) > 0) {
        cpu_wave_add(f->cpu, x, got);
        experts_release(f->experts);
    }
    experts_finish(f->experts);
    if (!got)
        cpu_wave_end(f->cpu);
    return got;
}

/* The routed experts, in as many waves as the scratch needs. */
static int run_experts(struct runner *f, int layer, const struct choice *choice, struct err *e)
{
    struct chosen c;
    int n, rc = 0;

    experts_note(f->experts, layer, &choice->route);
    collect(&choice->route, f->model->shape.experts, &c);
    for (int first = 0; first < c.n && !rc; first += n) {
        n = wave_size(f, &c, first);
        rc = run_wave(f, layer, choice, c.id + first, n, e);
    }
    return rc;
}

/* The next layer with experts, or NULL; only where reading ahead is of use. */
static const struct layer_weights *next_sparse(const struct runner *f, int layer, int *next)
{
    for (*next = layer + 1; *next < f->model->shape.layers; ++*next)
        if (!f->model->shape.layer[*next].dense)
            return experts_want_guess(f->experts) ? &f->model->layer[*next] : NULL;
    return NULL;
}

static void keep_route(struct runner *f, int layer, const struct route *r)
{
    size_t topk = (size_t)r->topk, n = (size_t)r->tokens * topk;
    size_t at = (size_t)f->model->sparse_index[layer] * (size_t)f->batch * topk;

    memcpy(f->route_id + at, r->expert, n * sizeof(*r->expert));
    memcpy(f->route_weight + at, r->weight, n * sizeof(*r->weight));
}

static int run_layer(struct runner *f, int layer, struct kv *kv, const struct batch *b,
                     struct err *e)
{
    const struct layer_weights *w = &f->model->layer[layer], *next;
    struct choice c;
    int rc;

    cpu_attention(f->cpu, layer, w, kv, b);
    if (f->model->shape.layer[layer].dense) {
        cpu_dense(f->cpu, w);
        return 0;
    }
    next = next_sparse(f, layer, &c.guess_layer);
    rc = cpu_route(f->cpu, w, next, &c.route, &c.guess);
    if (rc)
        return fail(e, rc, "layer %d: the router's scores are not finite (position %d)", layer,
                    b->pos);
    if (f->route_id)
        keep_route(f, layer, &c.route);
    rc = run_experts(f, layer, &c, e);
    if (!rc)
        cpu_combine(f->cpu);
    return rc;
}

int forward(struct runner *f, struct kv *kv, const struct batch *b, struct err *e)
{
    cpu_embed(f->cpu, &f->model->embed, b);
    for (int layer = 0; layer < f->model->shape.layers; layer++) {
        int rc = run_layer(f, layer, kv, b, e);

        if (rc)
            return rc;
    }
    return 0;
}

void runner_logits(struct runner *f, int from, int n, float *logits)
{
    cpu_logits(f->cpu, f->model->final_norm, &f->model->head, from, n, logits);
}
