/* A decode step and sampling in plain C.  Nothing runs beside the caller: the layers up to the
 * next share are computed when it is asked for. */
#include "cuda/gpu_ref.h"

#include <assert.h>
#include <errno.h>
#include <float.h>
#include <math.h>

int gpu_capture(struct gpu *g, int tokens, struct err *e)
{
    (void)e;
    g->captured[tokens] = true;
    return 0;
}

int gpu_step(struct gpu *g, const struct batch *b, bool offers, struct err *e)
{
    int rc = gpu_ref_check(g, e);

    if (rc)
        return rc;
    if (!g->captured[b->tokens])
        return fail(e, -EINVAL, "no step of %d tokens was captured", b->tokens);
    gpu_ref_begin(g, b);
    g->steps++;
    if (g->steps == g->c.faults.nan_step)
        g->x[0] = NAN;
    g->at_layer = 0;
    g->share_out = false;
    g->offered = 0;
    g->offers = offers;
    g->running = true;
    return 0;
}

/* The seated experts of the routed layer. */
static void run_seated(struct gpu *g, int layer)
{
    for (int x = 0; x < g->shape->experts; x++) {
        uint16_t id = (uint16_t)x;

        if (gpu_seat_of(g, layer, x) >= 0)
            gpu_experts(g, &id, 1);
    }
}

/* List what absent experts leave to the CPU; how many pairs. */
static int list_share(struct gpu *g, int layer)
{
    int pairs = 0;

    for (int i = 0; i < g->tokens * g->shape->topk; i++) {
        if (gpu_seat_of(g, layer, g->route_id[i]) >= 0)
            continue;
        g->share_id[pairs] = g->route_id[i];
        g->share_token[pairs] = (uint16_t)(i / g->shape->topk);
        g->share_weight[pairs++] = g->route_weight[i];
    }
    return pairs;
}

/* Norm, router, shared and seated experts of a layer of the step; the pairs left over. */
static int begin_sparse(struct gpu *g, int layer, struct err *e)
{
    size_t n = (size_t)g->tokens * (size_t)g->shape->topk;
    size_t at = (size_t)layer * GPU_STEP_TOKENS * (size_t)g->shape->topk;
    struct route r;
    int rc = gpu_route(g, layer, &r, e);

    if (rc)
        return rc;
    memcpy(g->step_id + at, r.expert, n * sizeof(*r.expert));
    memcpy(g->step_weight + at, r.weight, n * sizeof(*r.weight));
    run_seated(g, layer);
    return list_share(g, layer);
}

/* Experts that were offered go into their slots, and all is summed again as if they were seated:
 * the order of ids is the order of sums. */
static int take_offers(struct gpu *g, int layer, struct err *e)
{
    size_t n = (size_t)g->tokens * (size_t)g->shape->hidden * sizeof(float);
    double start = clock_now();
    int rc = 0;

    if (!g->offered)
        return 0;
    for (int i = 0; i < g->offered && !rc; i++) {
        rc = gpu_fill_slot(g, g->offer[i].slot, g->offer[i].expert, e);
        gpu_seat(g, layer, g->offer[i].expert->id, g->offer[i].slot);
    }
    g->fetch_seconds = clock_now() - start;
    memset(g->routed, 0, n);
    if (!rc)
        run_seated(g, layer);
    for (int i = 0; i < g->offered; i++)
        gpu_seat(g, layer, g->offer[i].expert->id, -1);
    g->offered = 0;
    return rc;
}

/* A fault that a test wants the step to have. */
static int check_step(struct gpu *g, struct err *e)
{
    g->dead |= g->steps == g->c.faults.dead_step;
    if (g->share_out && g->steps == g->c.faults.late_step)
        return fail(e, -ETIMEDOUT, "step %d: no answer from the CPU in %d ms", g->steps,
                    g->c.watchdog_ms);
    return gpu_ref_check(g, e);
}

int gpu_next_share(struct gpu *g, struct gpu_share *out, struct err *e)
{
    int rc = check_step(g, e);

    if (rc)
        return rc;
    while (g->at_layer < g->shape->layers) {
        int layer = g->at_layer, pairs = 0;

        if (!g->share_out) {
            gpu_attention(g, layer);
            if (g->shape->layer[layer].dense)
                gpu_dense(g, layer);
            else
                pairs = begin_sparse(g, layer, e);
            if (pairs < 0)
                return pairs;
            g->share_out = pairs > 0;
            if (pairs) {
                *out = (struct gpu_share){ layer, g->tokens, pairs, g->share_id, g->share_token,
                                           g->share_weight, g->h, g->share_partial };
                return 1;
            }
        } else {
            rc = take_offers(g, layer, e);
            if (rc)
                return rc;
            gpu_add(g, g->share_partial);
        }
        if (!g->shape->layer[layer].dense)
            gpu_combine(g);
        g->share_out = false;
        g->at_layer++;
    }
    if (g->running)
        gpu_logits(g, 0, g->tokens);
    g->running = false;
    for (size_t i = 0; i < (size_t)g->tokens * (size_t)g->shape->vocab; i++)
        if (!isfinite(g->logits[i]))
            return fail(e, -EDOM, "a logit is not a finite number (position %d)", g->pos);
    return 0;
}

void gpu_answer(struct gpu *g)
{
    (void)g;
}

int gpu_offer(struct gpu *g, const struct gpu_offer *o, int n, struct err *e)
{
    assert(g->offers && g->share_out && !g->offered && n >= 0 && n <= GPU_OFFERS);
    for (int i = 0; i < n; i++) {
        int rc = gpu_check_fits(&g->c, o[i].expert, e);

        if (rc)
            return rc;
    }
    memcpy(g->offer, o, (size_t)n * sizeof(*o));
    g->offered = n;
    return gpu_ref_check(g, e);
}

double gpu_fetch_seconds(const struct gpu *g)
{
    return g->fetch_seconds;
}

int32_t gpu_argmax(const struct gpu *g, int row)
{
    return g->argmax[row];
}

void gpu_step_route(const struct gpu *g, int layer, struct route *out)
{
    size_t at = (size_t)layer * GPU_STEP_TOKENS * (size_t)g->shape->topk;

    *out = (struct route){ g->tokens, g->shape->topk, g->step_id + at, g->step_weight + at };
}

int gpu_read_logits(struct gpu *g, int row, int n, float *logits, struct err *e)
{
    size_t vocab = (size_t)g->shape->vocab;
    int rc = gpu_ref_check(g, e);

    if (rc)
        return rc;
    memcpy(logits, g->logits + (size_t)row * vocab, (size_t)n * vocab * sizeof(float));
    for (size_t i = 0; i < (size_t)n * vocab; i++)
        if (!isfinite(logits[i]))
            return fail(e, -EDOM, "a logit is not a finite number");
    return 0;
}

/* The next best at or above floor after (value, id), or -1. */
static int next_best(const float *row, int vocab, float floor, float value, int id)
{
    int best = -1;

    for (int i = 0; i < vocab; i++) {
        bool after = row[i] < value || (row[i] == value && i > id);

        if (after && row[i] >= floor && (best < 0 || row[i] > row[best]))
            best = i;
    }
    return best;
}

int gpu_sample(struct gpu *g, const struct gpu_choice *c, int32_t *id, struct err *e)
{
    const float *row = g->logits + (size_t)c->row * (size_t)g->shape->vocab;
    float top = row[g->argmax[c->row]], floor = -FLT_MAX;
    double weight[GPU_TOP], mass = 0, part = 0, left;
    int ids[GPU_TOP], n = 0, kept = 0, i = 0;

    assert(c->top_k > 0 && c->top_k <= GPU_TOP && c->temperature > 0);
    if (c->min_p > 0)
        floor = fminf((float)(top + c->temperature * log(c->min_p)), top);
    while (n < c->top_k) {
        int next = next_best(row, g->shape->vocab, floor, n ? row[ids[n - 1]] : INFINITY,
                             n ? ids[n - 1] : -1);

        if (next < 0)
            break;
        ids[n] = next;
        mass += weight[n++] = exp(((double)row[next] - top) / c->temperature);
    }
    while (kept < n && (c->top_p >= 1 || part < c->top_p * mass))
        part += weight[kept++];
    left = c->u * part;
    while (i < kept - 1 && (left -= weight[i]) >= 0)
        i++;
    *id = ids[i];
    return gpu_ref_check(g, e);
}
