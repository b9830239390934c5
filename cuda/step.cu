/* A decode step: one graph, recorded once for each number of tokens, and the mailbox through
 * which the CPU does its share.  The host only uploads struct step_args and spins on the flags;
 * it launches, copies and waits for nothing between layers. */
#include "cuda/gpu_internal.cuh"

#include <assert.h>
#include <errno.h>

enum { SPINS = 1 << 14 };               /* between two questions to the driver */

struct patience patience_of(const struct gpu *g)
{
    return { g->args, g->box_dev, g->c.watchdog_ms * 1000000ll };
}

/* What the kernel after a sparse layer adds: its experts, the CPU's share, the shared expert. */
static struct addition experts_of(struct gpu *g, bool offers)
{
    struct addition a = {};

    a.shared = g->shape.shared_inner ? g->s.shared : NULL;
    a.pair = g->s.pair;
    a.late = offers ? g->s.late : NULL;
    a.pair_out = g->s.pair_out;
    a.awaited = g->epoch + 1;
    a.box = g->box_dev;
    a.partial = g->share_partial_dev;
    a.patience = patience_of(g);
    a.scale = g->shape.route_scale;
    a.topk = g->shape.topk;
    return a;
}

/* The FFN half of a layer; what it made is in `add`, for the norm that follows. */
static void queue_step_ffn(struct gpu *g, int layer, int n, bool offers, struct addition *add)
{
    struct addition attention = {};

    attention.delta = g->s.delta;
    queue_norm(g, 0, n, &attention, g->layer[layer].ffn_norm);
    if (g->shape.layer[layer].dense) {
        queue_ffn(g, &g->layer[layer].ffn, n, g->s.delta);
        *add = attention;
        return;
    }
    queue_router(g, layer, n, true);
    if (offers) {
        TRY(g, cudaEventRecord(g->fork, g->stream));
        TRY(g, cudaStreamWaitEvent(g->beside, g->fork, 0));
        queue_offers(g, g->beside, layer, n);
        TRY(g, cudaEventRecord(g->join, g->beside));
    }
    queue_step_experts(g, layer, n);
    if (offers) {
        TRY(g, cudaStreamWaitEvent(g->stream, g->join, 0));
        queue_late_experts(g, n);
    }
    *add = experts_of(g, offers);
}

static void queue_step(struct gpu *g, int n, bool offers)
{
    int layers = g->shape.layers;

    queue_fetch(g, g->args, g->args_host, sizeof(*g->args));
    queue_embed(g, n, g->args->token, &g->args->pos, 0);
    queue_norm(g, 0, n, NULL, g->layer[0].attn_norm);
    for (int i = 0; i < layers; i++) {
        struct addition add;

        queue_attention(g, i, n, &g->args->pos);
        queue_step_ffn(g, i, n, offers, &add);
        queue_norm(g, 0, n, &add, i + 1 < layers ? g->layer[i + 1].attn_norm : g->final_norm);
    }
    queue_head(g, n, true);
}

static cudaGraphExec_t record(struct gpu *g, int tokens, bool offers)
{
    cudaGraph_t graph = NULL;
    cudaGraphExec_t exec = NULL;

    TRY(g, cudaStreamBeginCapture(g->stream, cudaStreamCaptureModeThreadLocal));
    queue_step(g, tokens, offers);
    TRY(g, cudaStreamEndCapture(g->stream, &graph));
    TRY(g, cudaGraphInstantiate(&exec, graph, 0));
    TRY(g, cudaGraphUpload(exec, g->stream));
    TRY(g, cudaStreamSynchronize(g->stream));
    if (graph)
        cudaGraphDestroy(graph);
    return exec;
}

int gpu_capture(struct gpu *g, int tokens, struct err *e)
{
    assert(tokens > 0 && tokens <= GPU_STEP_TOKENS && tokens <= g->c.batch);
    for (int offers = 0; offers < 2; offers++)
        if (!g->graph[offers][tokens])
            g->graph[offers][tokens] = record(g, tokens, offers);
    return gpu_check(g, e);
}

int gpu_step(struct gpu *g, const struct batch *b, bool offers, struct err *e)
{
    struct step_args *a = g->args_host;
    cudaGraphExec_t graph = g->graph[offers][b->tokens];

    assert(b->tokens > 0 && b->tokens <= GPU_STEP_TOKENS && b->pos + b->tokens <= g->c.context);
    if (g->fault == cudaSuccess && !graph)
        return fail(e, -EINVAL, "no step of %d tokens was captured", b->tokens);
    if (__atomic_load_n(&g->box->done, __ATOMIC_ACQUIRE) != g->steps)
        TRY(g, cudaStreamSynchronize(g->stream));
    g->tokens = b->tokens;
    g->pos = b->pos;
    g->box->watchdog = g->box->bad_logits = 0;
    g->box->bad_layer = 0;
    *a = (struct step_args){ b->pos, b->tokens, ++g->steps, 0, {} };
    memcpy(a->token, b->token, b->tokens * sizeof(*a->token));
    g->seen = __atomic_load_n(&g->box->post, __ATOMIC_ACQUIRE);
    gpu_sync_table(g);
    TRY(g, cudaGraphLaunch(graph, g->stream));
    return gpu_check(g, e);
}

static int end_of_step(const struct gpu *g, struct err *e)
{
    const struct mailbox *box = g->box;

    if (box->watchdog)
        return fail(e, -ETIMEDOUT, "step %u: no answer from the CPU in %d ms", g->steps,
                    g->c.watchdog_ms);
    if (box->bad_layer)
        return fail(e, -EDOM, "layer %d: the router's scores are not finite (position %d)",
                    box->bad_layer - 1, g->pos);
    if (box->bad_logits)
        return fail(e, -EDOM, "a logit is not a finite number (position %d)", g->pos);
    return 0;
}

static void hand_share(const struct gpu *g, struct gpu_share *out)
{
    out->layer = g->box->layer;
    out->tokens = g->tokens;
    out->pairs = g->box->pairs;
    out->expert = g->share_id;
    out->token = g->share_token;
    out->weight = g->share_weight;
    out->h = g->share_h;
    out->partial = g->share_partial;
}

int gpu_next_share(struct gpu *g, struct gpu_share *out, struct err *e)
{
    struct mailbox *box = g->box;

    for (unsigned spin = 1;; spin++) {
        uint32_t post = __atomic_load_n(&box->post, __ATOMIC_ACQUIRE);

        if (post != g->seen) {
            g->seen = post;
            if (!__atomic_load_n(&box->watchdog, __ATOMIC_RELAXED)) {
                hand_share(g, out);
                return 1;
            }
        }
        if (__atomic_load_n(&box->done, __ATOMIC_ACQUIRE) == g->steps)
            return end_of_step(g, e);
        if (spin % SPINS == 0) {
            cudaError_t rc = cudaStreamQuery(g->stream);

            if (rc != cudaErrorNotReady)
                TRY(g, rc);
            if (g->fault != cudaSuccess)
                return gpu_check(g, e);
        }
        __builtin_ia32_pause();
    }
}

void gpu_answer(struct gpu *g)
{
    if (g->box->offer != g->seen) {     /* none was made */
        g->offers->experts = g->offers->stretches = 0;
        __atomic_store_n(&g->box->offer, g->seen, __ATOMIC_RELEASE);
    }
    __atomic_store_n(&g->box->reply, g->seen, __ATOMIC_RELEASE);
}

void gpu_step_route(const struct gpu *g, int layer, struct route *out)
{
    size_t at = (size_t)layer * GPU_STEP_TOKENS * g->shape.topk;

    *out = (struct route){ g->tokens, g->shape.topk, g->step_id + at, g->step_weight + at };
}
