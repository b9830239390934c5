/* How long kernels take by the device's clock: for the bench and the planner.  Each is recorded
 * many times in one graph, over layers of a kind in turn, so that neither launches nor the L2
 * cache flatter it. */
#include "cuda/gpu_internal.cuh"

#include <errno.h>

enum { COPY_BYTES = 512 << 20 };

static int next_like(const struct gpu *g, int like, int layer)
{
    const struct layer_shape *l = g->shape.layer;

    do {
        layer = (layer + 1) % g->shape.layers;
    } while (l[layer].full != l[like].full || l[layer].dense != l[like].dense);
    return layer;
}

static size_t attention_bytes(const struct gpu *g, int layer)
{
    const struct layer_weights *w = &g->layer[layer];

    return gpu_matrix_bytes(&w->q) + gpu_matrix_bytes(&w->k) + gpu_matrix_bytes(&w->v) +
           gpu_matrix_bytes(&w->g) + gpu_matrix_bytes(&w->o);
}

static size_t cache_bytes(const struct gpu *g, int layer, int pos, int tokens)
{
    const struct shape *s = &g->shape;
    int keys = s->layer[layer].full || pos < s->window ? pos + 1 : s->window;

    return 2 * (kv_row_bytes(g) + (g->c.kv == GPU_KV_Q8 ? 2 : 0)) * s->kv_heads * keys * tokens;
}

/* Of the experts that n tokens choose, each counted. */
static size_t experts_bytes(const struct gpu *g, int layer, int n)
{
    const struct ffn *f = &g->slot_ffn[g->seat_host[layer * g->shape.experts]];

    return gpu_ffn_bytes(f) * g->shape.topk * n + gpu_ffn_bytes(&g->layer[layer].ffn);
}

static size_t layer_bytes(const struct gpu *g, int layer, int pos, int n)
{
    size_t ffn = g->shape.layer[layer].dense
                     ? gpu_ffn_bytes(&g->layer[layer].ffn)
                     : experts_bytes(g, layer, n) + gpu_matrix_bytes(&g->layer[layer].router);

    return attention_bytes(g, layer) + cache_bytes(g, layer, pos, n) + ffn;
}

/* Queue one call of the kind; what it must move at least. */
static size_t queue_one(struct gpu *g, const struct gpu_timing *t, int layer)
{
    struct addition add = {};
    size_t hidden = (size_t)g->shape.hidden * t->tokens * sizeof(float);

    switch (t->what) {
    case GPU_TIME_ATTENTION:
        queue_attention(g, layer, t->tokens, &g->args->pos);
        return attention_bytes(g, layer) + cache_bytes(g, layer, t->pos, t->tokens);
    case GPU_TIME_CACHE:
        queue_attend(g, layer, t->tokens, &g->args->pos, 0);
        return cache_bytes(g, layer, t->pos, t->tokens);
    case GPU_TIME_ROUTER:
        queue_router(g, layer, t->tokens, true);
        return gpu_matrix_bytes(&g->layer[layer].router);
    case GPU_TIME_EXPERTS:
        /* With the router: the experts' weights then come from another layer each time. */
        queue_router(g, layer, t->tokens, true);
        queue_step_experts(g, layer, t->tokens);
        return experts_bytes(g, layer, t->tokens) + gpu_matrix_bytes(&g->layer[layer].router);
    case GPU_TIME_NORM:
        add.delta = g->s.delta;
        queue_norm(g, 0, t->tokens, &add, g->layer[layer].attn_norm);
        return hidden * 9 / 2;
    default:
        queue_head(g, t->tokens, false);
        return gpu_matrix_bytes(&g->head);
    }
}

/* Microseconds of one launch, after one to warm up. */
static double time_graph(struct gpu *g, cudaGraphExec_t exec, int times)
{
    float ms = 0;

    TRY(g, cudaGraphLaunch(exec, g->stream));
    TRY(g, cudaEventRecord(g->begin, g->stream));
    for (int i = 0; i < times; i++)
        TRY(g, cudaGraphLaunch(exec, g->stream));
    TRY(g, cudaEventRecord(g->end, g->stream));
    TRY(g, cudaEventSynchronize(g->end));
    TRY(g, cudaEventElapsedTime(&ms, g->begin, g->end));
    return ms * 1000.0 / times;
}

static void time_kernel(struct gpu *g, struct gpu_timing *t)
{
    cudaGraph_t graph = NULL;
    cudaGraphExec_t exec = NULL;
    int layer = t->layer;

    TRY(g, cudaStreamBeginCapture(g->stream, cudaStreamCaptureModeThreadLocal));
    for (int i = 0; i < t->times; i++) {
        t->bytes = (double)queue_one(g, t, layer);
        layer = next_like(g, t->layer, layer);
    }
    TRY(g, cudaStreamEndCapture(g->stream, &graph));
    TRY(g, cudaGraphInstantiate(&exec, graph, 0));
    t->microseconds = time_graph(g, exec, 3) / t->times;
    if (exec)
        cudaGraphExecDestroy(exec);
    if (graph)
        cudaGraphDestroy(graph);
}

static int time_copy(struct gpu *g, struct gpu_timing *t, struct err *e)
{
    uint8_t *a = NULL;
    float ms = 0;

    if (cudaMalloc((void **)&a, 2 * (size_t)COPY_BYTES) != cudaSuccess) {
        cudaGetLastError();
        return fail(e, -ENOMEM, "no %d MB of VRAM to copy", 2 * (COPY_BYTES >> 20));
    }
    for (int i = -1; i < t->times; i++) {
        if (i == 0)
            TRY(g, cudaEventRecord(g->begin, g->stream));
        TRY(g, cudaMemcpyAsync(a + COPY_BYTES, a, COPY_BYTES, cudaMemcpyDeviceToDevice,
                               g->stream));
    }
    TRY(g, cudaEventRecord(g->end, g->stream));
    TRY(g, cudaEventSynchronize(g->end));
    TRY(g, cudaEventElapsedTime(&ms, g->begin, g->end));
    TRY(g, cudaFree(a));
    t->microseconds = ms * 1000.0 / t->times;
    t->bytes = 2.0 * COPY_BYTES;
    return gpu_check(g, e);
}

static void queue_batch_part(struct gpu *g, const struct gpu_timing *t, const uint16_t *id, int n)
{
    switch (t->what) {
    case GPU_TIME_BATCH_ATTENTION:
        queue_attention(g, t->layer, t->tokens, NULL);
        break;
    case GPU_TIME_BATCH_ATTEND:
        queue_prepare(g, t->layer, t->tokens, NULL, g->pos);
        queue_attend(g, t->layer, t->tokens, NULL, g->pos);
        break;
    case GPU_TIME_BATCH_ROUTER:
        queue_norm(g, 0, t->tokens, NULL, g->layer[t->layer].ffn_norm);
        queue_router(g, t->layer, t->tokens, false);
        break;
    case GPU_TIME_BATCH_SHARED:
        queue_ffn(g, &g->layer[t->layer].ffn, t->tokens, g->s.shared);
        break;
    default:
        gpu_experts(g, id, n);
        break;
    }
}

/* As the stages do it, launch by launch: where the host is slower than the device, so is this. */
static void time_batch(struct gpu *g, struct gpu_timing *t)
{
    uint16_t id[MAX_EXPERTS];
    int n = 0;
    float ms = 0;

    for (int x = 0; x < g->shape.experts; x++)
        if (gpu_seat_of(g, t->layer, x) >= 0)
            id[n++] = (uint16_t)x;
    for (int i = -1; i < t->times; i++) {
        if (i == 0)
            TRY(g, cudaEventRecord(g->begin, g->stream));
        queue_batch_part(g, t, id, n);
    }
    TRY(g, cudaEventRecord(g->end, g->stream));
    TRY(g, cudaEventSynchronize(g->end));
    TRY(g, cudaEventElapsedTime(&ms, g->begin, g->end));
    t->microseconds = ms * 1000.0 / t->times;
    t->bytes = 0;
}

/* The embedding's bytes are the matrices, so that the numbers are ordinary ones. */
static int time_blas(struct gpu *g, struct gpu_timing *t, struct err *e)
{
    size_t edge = t->tokens, all = edge * edge;
    const bf16 *m = (const bf16 *)g->embed.weight;
    struct blas_product p = { t->tokens, t->tokens, t->tokens, m, m + all, edge, edge, NULL };
    float ms = 0;

    if (!g->blas)
        return fail(e, -ENOTSUP, "no cuBLAS");
    if (2 * all > (size_t)g->embed.rows * g->embed.cols)
        return fail(e, -ENOTSUP, "the embedding has no %zu elements", 2 * all);
    if (cudaMalloc((void **)&p.y, all * sizeof(float)) != cudaSuccess) {
        cudaGetLastError();
        return fail(e, -ENOMEM, "no %zu MB of VRAM for a product", all * sizeof(float) >> 20);
    }
    for (int i = -1; i < t->times && g->fault == cudaSuccess; i++) {
        if (i == 0)
            TRY(g, cudaEventRecord(g->begin, g->stream));
        if (blas_mul(g->blas, &p))
            gpu_fault(g, cudaErrorUnknown, "cublasGemmEx", __LINE__);
    }
    TRY(g, cudaEventRecord(g->end, g->stream));
    TRY(g, cudaEventSynchronize(g->end));
    TRY(g, cudaEventElapsedTime(&ms, g->begin, g->end));
    TRY(g, cudaFree(p.y));
    t->microseconds = ms * 1000.0 / t->times;
    t->bytes = (double)all * (2 * sizeof(bf16) + sizeof(float));
    return gpu_check(g, e);
}

int gpu_time(struct gpu *g, struct gpu_timing *t, struct err *e)
{
    struct step_args a = { t->pos, t->tokens, g->steps, 0, {} };

    if (t->what == GPU_TIME_COPY)
        return time_copy(g, t, e);
    if (t->what == GPU_TIME_BLAS)
        return time_blas(g, t, e);
    g->tokens = t->tokens;
    if (t->what >= GPU_TIME_BATCH_ATTENTION) {
        time_batch(g, t);
        return gpu_check(g, e);
    }
    gpu_sync_table(g);
    *g->args_host = a;
    TRY(g, cudaMemcpy(g->args, &a, sizeof(a), cudaMemcpyHostToDevice));
    TRY(g, cudaStreamSynchronize(g->stream));
    if (t->what == GPU_TIME_STEP) {
        int rc = gpu_capture(g, t->tokens, e);

        if (rc)
            return rc;
        t->microseconds = time_graph(g, g->graph[0][t->tokens], t->times);
        t->bytes = gpu_matrix_bytes(&g->head);
        for (int i = 0; i < g->shape.layers; i++)
            t->bytes += layer_bytes(g, i, t->pos, t->tokens);
    } else {
        time_kernel(g, t);
    }
    return gpu_check(g, e);
}
