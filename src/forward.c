/* The forward pass: what happens to one batch of tokens, from embedding to logits.
 * Read this file first; everything else in the project serves a line of it.  Where there is a
 * GPU the same layers run there, and the CPU helps: forward_gpu.c. */
#include "src/forward_gpu.h"
#include "src/waves.h"

#include <errno.h>

/* The next layer with experts, or NULL; only where reading ahead is of use. */
static const struct layer_weights *next_sparse(const struct runner *f, int layer, int *next)
{
    for (*next = layer + 1; *next < f->model->shape.layers; ++*next)
        if (!f->model->shape.layer[*next].dense)
            return experts_want_guess(f->experts) ? &f->model->layer[*next] : NULL;
    return NULL;
}

void runner_keep_route(struct runner *f, int layer, const struct route *r)
{
    size_t topk = (size_t)r->topk, n = (size_t)r->tokens * topk;
    size_t at = (size_t)f->model->sparse_index[layer] * (size_t)f->batch * topk;

    experts_note(f->experts, layer, r);
    if (!f->route_id)
        return;
    memcpy(f->route_id + at, r->expert, n * sizeof(*r->expert));
    memcpy(f->route_weight + at, r->weight, n * sizeof(*r->weight));
}

int runner_stopped(const struct runner *f, struct err *e)
{
    return f->cancel && *f->cancel ? fail(e, -ECANCELED, "cancelled") : 0;
}

static int run_layer(struct runner *f, int layer, struct kv *kv, const struct batch *b,
                     struct err *e)
{
    const struct layer_weights *w = &f->model->layer[layer], *next;
    struct route route;
    struct guess guess;
    struct chosen chosen;
    int rc;

    cpu_attention(f->cpu, layer, w, kv, b);
    if (f->model->shape.layer[layer].dense) {
        cpu_dense(f->cpu, w);
        return 0;
    }
    next = next_sparse(f, layer, &guess.layer);
    rc = cpu_route(f->cpu, w, next, &route, &guess.route);
    if (rc)
        return fail(e, rc, "layer %d: the router's scores are not finite (position %d)", layer,
                    b->pos);
    runner_keep_route(f, layer, &route);
    chosen_collect(&chosen, &route, f->model->shape.experts);
    rc = waves_run(f, layer, &route, &chosen, &guess, e);
    if (!rc)
        cpu_combine(f->cpu);
    return rc;
}

int forward(struct runner *f, struct kv *kv, const struct batch *b, struct err *e)
{
    if (f->gpu)
        return forward_gpu(f, b, e);
    cpu_embed(f->cpu, &f->model->embed, b);
    for (int layer = 0; layer < f->model->shape.layers; layer++) {
        int rc = runner_stopped(f, e);

        if (!rc)
            rc = run_layer(f, layer, kv, b, e);
        if (rc)
            return rc;
    }
    return 0;
}

int runner_logits(struct runner *f, int from, int n, float *logits, struct err *e)
{
    if (f->gpu)
        return forward_gpu_logits(f, from, n, logits, e);
    cpu_logits(f->cpu, f->model->final_norm, &f->model->head, from, n, logits);
    return 0;
}
