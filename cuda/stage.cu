/* The stages of a batch, one call each: what gpu.h promises, made of the kernels' queues. */
#include "cuda/gpu_internal.cuh"

#include <assert.h>
#include <errno.h>

void gpu_embed(struct gpu *g, const struct batch *b)
{
    size_t bytes = b->tokens * sizeof(int);
    uint8_t *from = gpu_staging(g);

    assert(b->tokens > 0 && b->tokens <= g->c.batch && b->pos + b->tokens <= g->c.context);
    g->tokens = b->tokens;
    g->pos = b->pos;
    memcpy(from, b->token, bytes);
    queue_fetch(g, g->s.tokens, from, bytes);
    TRY(g, cudaEventRecord(g->staged, g->stream));
    queue_embed(g, b->tokens, g->s.tokens, NULL, b->pos);
}

/* delta = o(gate * attention(h)); pos NULL: the batch's. */
void queue_attention(struct gpu *g, int layer, int n, const int *pos)
{
    const struct layer_weights *w = &g->layer[layer];
    size_t heads = w->o.cols, hidden = g->shape.hidden;
    struct product in = { g->s.h, hidden, n, 3,
                          { { w->q, g->s.q, heads },
                            { w->k, g->s.k, (size_t)w->k.rows },
                            { w->v, g->s.v, (size_t)w->v.rows },
                            { w->g, g->s.g, (size_t)w->g.rows } } };
    struct product out = { g->s.o, heads, n, 1, { { w->o, g->s.delta, hidden } } };

    in.parts += w->g.rows > 0;
    queue_products(g, &in);
    queue_prepare(g, layer, n, pos, g->pos);
    queue_attend(g, layer, n, pos, g->pos);
    queue_products(g, &out);
}

void gpu_attention(struct gpu *g, int layer)
{
    struct addition add = {};

    queue_norm(g, 0, g->tokens, NULL, g->layer[layer].attn_norm);
    queue_attention(g, layer, g->tokens, NULL);
    add.delta = g->s.delta;
    queue_norm(g, 0, g->tokens, &add, NULL);
}

/* out = down(silu(gate(h)) * up(h)) */
void queue_ffn(struct gpu *g, const struct ffn *f, int n, float *out)
{
    size_t inner = f->gate.rows, hidden = g->shape.hidden;
    struct product in = { g->s.h, hidden, n, 2,
                          { { f->gate, g->s.gate, inner }, { f->up, g->s.up, inner } } };
    struct product down = { g->s.inner, inner, n, 1, { { f->down, out, hidden } } };

    queue_products(g, &in);
    queue_silu(g, n * inner);
    queue_products(g, &down);
}

void gpu_dense(struct gpu *g, int layer)
{
    struct addition add = {};

    queue_norm(g, 0, g->tokens, NULL, g->layer[layer].ffn_norm);
    queue_ffn(g, &g->layer[layer].ffn, g->tokens, g->s.delta);
    add.delta = g->s.delta;
    queue_norm(g, 0, g->tokens, &add, NULL);
}

int gpu_route(struct gpu *g, int layer, struct route *out, struct err *e)
{
    size_t n = (size_t)g->tokens * g->shape.topk;
    size_t hidden = (size_t)g->tokens * g->shape.hidden * sizeof(float);
    int rc;

    g->box->bad_layer = 0;
    g->routed_layer = layer;
    queue_norm(g, 0, g->tokens, NULL, g->layer[layer].ffn_norm);
    queue_router(g, layer, g->tokens, false);
    TRY(g, cudaMemcpyAsync(g->route_id, g->s.route_id, n * sizeof(*g->route_id),
                           cudaMemcpyDeviceToHost, g->stream));
    TRY(g, cudaMemcpyAsync(g->route_weight, g->s.route_weight, n * sizeof(*g->route_weight),
                           cudaMemcpyDeviceToHost, g->stream));
    TRY(g, cudaEventRecord(g->end, g->stream));
    TRY(g, cudaMemsetAsync(g->s.routed, 0, hidden, g->stream));
    queue_order(g);
    if (g->layer[layer].ffn.gate.rows)
        queue_ffn(g, &g->layer[layer].ffn, g->tokens, g->s.shared);
    else
        TRY(g, cudaMemsetAsync(g->s.shared, 0, hidden, g->stream));
    TRY(g, cudaEventSynchronize(g->end));
    rc = gpu_check(g, e);
    if (rc)
        return rc;
    if (g->box->bad_layer)
        return fail(e, -EDOM, "layer %d: the router's scores are not finite (position %d)", layer,
                    g->pos);
    *out = (struct route){ g->tokens, g->shape.topk, g->route_id, g->route_weight };
    return 0;
}

void gpu_add(struct gpu *g, const float *partial)
{
    size_t n = (size_t)g->tokens * g->shape.hidden * sizeof(float);
    uint8_t *from = gpu_staging(g);

    /* The sum goes through delta, which no stage needs between its own kernels. */
    memcpy(from, partial, n);
    queue_fetch(g, g->s.delta, from, n);
    TRY(g, cudaEventRecord(g->staged, g->stream));
    queue_accumulate(g, g->s.routed, g->s.delta, (size_t)g->tokens * g->shape.hidden);
}

void gpu_combine(struct gpu *g)
{
    struct addition add = {};

    add.routed = g->s.routed;
    add.scale = g->shape.route_scale;
    add.shared = g->s.shared;
    queue_norm(g, 0, g->tokens, &add, NULL);
}

void gpu_logits(struct gpu *g, int from, int n)
{
    assert(n > 0 && n <= GPU_STEP_TOKENS && from >= 0 && from + n <= g->tokens);
    queue_norm(g, from, n, NULL, g->final_norm);
    queue_head(g, n, false);
}

static int read_floats(struct gpu *g, float *to, const float *from, size_t n, struct err *e)
{
    TRY(g, cudaMemcpyAsync(to, from, n * sizeof(float), cudaMemcpyDeviceToHost, g->stream));
    TRY(g, cudaStreamSynchronize(g->stream));
    return gpu_check(g, e);
}

int gpu_read_hidden(struct gpu *g, float *x, struct err *e)
{
    return read_floats(g, x, g->s.x, (size_t)g->tokens * g->shape.hidden, e);
}

int gpu_read_normed(struct gpu *g, float *h, struct err *e)
{
    return read_floats(g, h, g->s.h32, (size_t)g->tokens * g->shape.hidden, e);
}

int gpu_write_hidden(struct gpu *g, const float *x, struct err *e)
{
    size_t n = (size_t)g->tokens * g->shape.hidden * sizeof(float);

    TRY(g, cudaMemcpyAsync(g->s.x, x, n, cudaMemcpyHostToDevice, g->stream));
    TRY(g, cudaStreamSynchronize(g->stream));
    return gpu_check(g, e);
}

int gpu_read_logits(struct gpu *g, int row, int n, float *logits, struct err *e)
{
    size_t vocab = g->shape.vocab;
    int rc = read_floats(g, logits, g->s.logits + row * vocab, n * vocab, e);

    if (!rc && g->box->bad_logits) {
        g->box->bad_logits = 0;
        return fail(e, -EDOM, "a logit is not a finite number");
    }
    return rc;
}

int32_t gpu_argmax(const struct gpu *g, int row)
{
    return g->box->argmax[row];
}

int gpu_sample(struct gpu *g, const struct gpu_choice *c, int32_t *id, struct err *e)
{
    int rc;

    assert(c->top_k > 0 && c->top_k <= GPU_TOP && c->temperature > 0);
    queue_choice(g, c);
    TRY(g, cudaStreamSynchronize(g->stream));
    rc = gpu_check(g, e);
    if (!rc)
        *id = g->box->choice;
    return rc;
}

int gpu_product(struct gpu *g, const struct matrix *m, const float *x, int n, float *y)
{
    size_t xs = (size_t)n * m->cols, ys = (size_t)n * m->rows;
    size_t bytes = gpu_matrix_bytes(m);
    uint8_t *at = NULL;
    struct matrix d = *m;
    struct product p = { NULL, (size_t)m->cols, n, 1, { { d, NULL, (size_t)m->rows } } };
    struct err e;

    /* Not on the way of tokens, so this may allocate. */
    TRY(g, cudaMalloc((void **)&at, bytes + align_up(xs * 4, GPU_PART_ALIGN) * 2 + ys * 4));
    if (g->fault != cudaSuccess)
        return gpu_check(g, &e);
    p.part[0].m = gpu_place_matrix(g, at, m);
    at += bytes;
    TRY(g, cudaMemcpyAsync(at, x, xs * 4, cudaMemcpyHostToDevice, g->stream));
    p.x = (const bf16 *)(at + align_up(xs * 4, GPU_PART_ALIGN));
    queue_round(g, (bf16 *)p.x, (const float *)at, xs);
    p.part[0].y = (float *)(at + 2 * align_up(xs * 4, GPU_PART_ALIGN));
    queue_products(g, &p);
    TRY(g, cudaMemcpyAsync(y, p.part[0].y, ys * 4, cudaMemcpyDeviceToHost, g->stream));
    TRY(g, cudaStreamSynchronize(g->stream));
    TRY(g, cudaFree(at - bytes));
    return gpu_check(g, &e);
}
