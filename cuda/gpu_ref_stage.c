/* The stages of cuda/gpu.h in plain C: src/ref.h with the roundings of the kernels. */
#include "cuda/gpu_ref.h"

#include <assert.h>
#include <errno.h>
#include <math.h>

/* y [n][rows] = m x, x [n][cols] rounded to BF16. */
static void multiply(struct gpu *g, const struct matrix *m, const float *x, int n, float *y)
{
    size_t cols = (size_t)m->cols;

    for (size_t i = 0; i < (size_t)n * cols; i++)
        g->rounded[i] = bf16_to_f32(f32_to_bf16(x[i]));
    ref_mul(y, (size_t)m->rows, m, g->rounded, cols, n, 0, m->rows);
}

static void norm_all(struct gpu *g, const float *w)
{
    size_t hidden = (size_t)g->shape->hidden;

    for (size_t t = 0; t < (size_t)g->tokens; t++)
        ref_norm(g->h + t * hidden, g->x + t * hidden, w, g->shape->hidden, g->shape->norm_eps);
}

static void add_all(struct gpu *g, float *to, const float *from, float scale)
{
    for (size_t i = 0; i < (size_t)g->tokens * (size_t)g->shape->hidden; i++)
        to[i] += scale * from[i];
}

void gpu_ref_begin(struct gpu *g, const struct batch *b)
{
    size_t hidden = (size_t)g->shape->hidden;

    assert(b->tokens > 0 && b->tokens <= g->c.batch && b->pos + b->tokens <= g->c.context);
    g->tokens = b->tokens;
    g->pos = b->pos;
    for (size_t t = 0; t < (size_t)b->tokens; t++)
        ref_row(g->x + t * hidden, &g->embed, b->token[t]);
}

void gpu_embed(struct gpu *g, const struct batch *b)
{
    gpu_ref_begin(g, b);
    g->batches++;
    g->dead |= g->batches == g->c.faults.dead_batch;
    if (g->batches == g->c.faults.nan_batch)
        g->x[0] = NAN;
}

static void store_q8(uint8_t *row, uint16_t *scale, const float *x, int dim)
{
    float largest = 0, s;

    for (int i = 0; i < dim; i++)
        largest = fmaxf(largest, fabsf(x[i]));
    *scale = ref_f16_from_f32(fminf(largest / 127, 65504));
    s = ref_f16_to_f32(*scale);
    for (int i = 0; i < dim; i++)
        row[i] = (uint8_t)(int8_t)lrintf(fmaxf(-127, fminf(127, s > 0 ? x[i] / s : 0)));
}

static void store(const struct gpu *g, uint8_t *row, uint16_t *scale, const float *x, float mul)
{
    int dim = g->shape->head_dim;

    if (g->c.kv == GPU_KV_Q8) {
        store_q8(row, scale, x, dim);
        return;
    }
    for (int i = 0; i < dim; i++) {
        bf16 b = f32_to_bf16(x[i]);

        if (g->c.kv == GPU_KV_FP8)
            row[i] = ref_fp8_from_f32(x[i] / mul);
        else
            memcpy(row + (size_t)i * sizeof(b), &b, sizeof(b));
    }
}

static float element(const struct gpu *g, const uint8_t *row, uint16_t scale, float mul, int i)
{
    bf16 b;

    if (g->c.kv == GPU_KV_Q8)
        return (float)(int8_t)row[i] * ref_f16_to_f32(scale);
    if (g->c.kv == GPU_KV_FP8)
        return ref_fp8_to_f32(row[i]) * mul;
    memcpy(&b, row + (size_t)i * sizeof(b), sizeof(b));
    return bf16_to_f32(b);
}

static const struct rope *rope_of(const struct gpu *g, int layer)
{
    return g->shape->layer[layer].full ? &g->shape->rope_full : &g->shape->rope_window;
}

/* q normed and rotated in place; keys and values into the cache. */
static void prepare(struct gpu *g, int layer)
{
    const struct layer_weights *w = &g->layer[layer];
    struct kv_layer *l = &g->kv[layer];
    int dim = g->shape->head_dim, heads = g->shape->layer[layer].heads, kvh = g->shape->kv_heads;
    size_t bytes = gpu_ref_row_bytes(&g->c);
    float eps = g->shape->norm_eps;

    for (int t = 0; t < g->tokens; t++) {
        for (int h = 0; h < heads; h++) {
            float *q = g->q + ((size_t)t * (size_t)heads + (size_t)h) * (size_t)dim;

            ref_norm(q, q, w->q_norm, dim, eps);
            ref_rope(q, rope_of(g, layer), g->pos + t);
            for (int i = 0; i < dim; i++)
                q[i] = ref_f16_to_f32(ref_f16_from_f32(q[i]));
        }
        for (int h = 0; h < kvh; h++) {
            size_t from = ((size_t)t * (size_t)kvh + (size_t)h) * (size_t)dim;
            size_t at = (size_t)h * (size_t)l->rows + (size_t)((g->pos + t) % l->rows);

            ref_norm(g->k + from, g->k + from, w->k_norm, dim, eps);
            ref_rope(g->k + from, rope_of(g, layer), g->pos + t);
            store(g, l->k + at * bytes, l->k_scale + at, g->k + from, w->k_scale);
            store(g, l->v + at * bytes, l->v_scale + at, g->v + from, w->v_scale);
        }
    }
}

static int first_key(const struct gpu *g, int layer, int pos)
{
    int window = g->shape->window;

    return g->shape->layer[layer].full || pos < window ? 0 : pos - window + 1;
}

/* The keys and values of one KV head that the batch sees, as floats from position `from`. */
static void load_head(struct gpu *g, int layer, int head, int from)
{
    const struct kv_layer *l = &g->kv[layer];
    int dim = g->shape->head_dim;

    for (int p = from; p < g->pos + g->tokens; p++) {
        size_t at = (size_t)head * (size_t)l->rows + (size_t)(p % l->rows);
        size_t to = (size_t)(p - from) * (size_t)dim, bytes = gpu_ref_row_bytes(&g->c);

        for (int i = 0; i < dim; i++) {
            g->keys[to + (size_t)i] = element(g, l->k + at * bytes, l->k_scale[at],
                                              g->layer[layer].k_scale, i);
            g->values[to + (size_t)i] = element(g, l->v + at * bytes, l->v_scale[at],
                                                g->layer[layer].v_scale, i);
        }
    }
}

static void gate_head(struct gpu *g, int layer, int t, int head, float *o)
{
    int heads = g->shape->layer[layer].heads, dim = g->shape->head_dim;
    int rows = g->layer[layer].g.rows;
    const float *gate = g->g + (size_t)t * (size_t)rows;

    for (int i = 0; rows && i < dim; i++)
        o[i] *= ref_softplus(rows == heads ? gate[head] : gate[head * dim + i]);
}

static void attend(struct gpu *g, int layer)
{
    int dim = g->shape->head_dim, heads = g->shape->layer[layer].heads;
    int group = heads / g->shape->kv_heads, from = first_key(g, layer, g->pos);

    for (int h = 0; h < heads; h++) {
        if (h % group == 0)
            load_head(g, layer, h / group, from);
        for (int t = 0; t < g->tokens; t++) {
            int first = first_key(g, layer, g->pos + t), n = g->pos + t + 1 - first;
            size_t at = ((size_t)t * (size_t)heads + (size_t)h) * (size_t)dim;
            size_t skip = (size_t)(first - from) * (size_t)dim;

            ref_attend(g->o + at, g->q + at, g->keys + skip, g->values + skip, (size_t)dim, dim,
                       n, g->scores);
            gate_head(g, layer, t, h, g->o + at);
        }
    }
}

void gpu_attention(struct gpu *g, int layer)
{
    const struct layer_weights *w = &g->layer[layer];

    norm_all(g, w->attn_norm);
    multiply(g, &w->q, g->h, g->tokens, g->q);
    multiply(g, &w->k, g->h, g->tokens, g->k);
    multiply(g, &w->v, g->h, g->tokens, g->v);
    if (w->g.rows)
        multiply(g, &w->g, g->h, g->tokens, g->g);
    prepare(g, layer);
    attend(g, layer);
    multiply(g, &w->o, g->o, g->tokens, g->out);
    add_all(g, g->x, g->out, 1);
}

/* out [n][hidden] = down(silu(gate(h)) * up(h)) */
static void run_ffn(struct gpu *g, const struct ffn *f, const float *h, int n, float *out)
{
    multiply(g, &f->gate, h, n, g->gate);
    multiply(g, &f->up, h, n, g->up);
    for (size_t i = 0; i < (size_t)n * (size_t)f->gate.rows; i++)
        g->gate[i] = ref_silu(g->gate[i]) * g->up[i];
    multiply(g, &f->down, g->gate, n, out);
}

void gpu_dense(struct gpu *g, int layer)
{
    norm_all(g, g->layer[layer].ffn_norm);
    run_ffn(g, &g->layer[layer].ffn, g->h, g->tokens, g->out);
    add_all(g, g->x, g->out, 1);
}

int gpu_route(struct gpu *g, int layer, struct route *out, struct err *e)
{
    const struct layer_weights *w = &g->layer[layer];
    size_t n = (size_t)g->tokens * (size_t)g->shape->hidden * sizeof(float);
    size_t experts = (size_t)g->shape->experts, topk = (size_t)g->shape->topk;
    int rc = gpu_ref_check(g, e);

    if (rc)
        return rc;
    g->routed_layer = layer;
    norm_all(g, w->ffn_norm);
    ref_mul(g->router, experts, &w->router, g->h, (size_t)g->shape->hidden, g->tokens, 0,
            g->shape->experts);
    for (size_t t = 0; t < (size_t)g->tokens; t++)
        if (ref_route(g->shape, g->router + t * experts, w->router_bias, g->route_id + t * topk,
                      g->route_weight + t * topk))
            return fail(e, -EDOM, "layer %d: the router's scores are not finite (position %d)",
                        layer, g->pos);
    memset(g->routed, 0, n);
    memset(g->shared, 0, n);
    if (w->ffn.gate.rows)
        run_ffn(g, &w->ffn, g->h, g->tokens, g->shared);
    *out = (struct route){ g->tokens, g->shape->topk, g->route_id, g->route_weight };
    return 0;
}

void gpu_experts(struct gpu *g, const uint16_t *id, int n)
{
    size_t hidden = (size_t)g->shape->hidden;
    int all = g->tokens * g->shape->topk;

    for (int x = 0; x < n; x++)
        for (int i = 0; i < all; i++) {
            size_t at = (size_t)(i / g->shape->topk) * hidden;

            if (g->route_id[i] != id[x])
                continue;
            run_ffn(g, &g->slot[gpu_seat_of(g, g->routed_layer, id[x])], g->h + at, 1, g->out);
            for (size_t j = 0; j < hidden; j++)
                g->routed[at + j] += g->route_weight[i] * g->out[j];
        }
}

int gpu_read_normed(struct gpu *g, float *h, struct err *e)
{
    memcpy(h, g->h, (size_t)g->tokens * (size_t)g->shape->hidden * sizeof(float));
    return gpu_ref_check(g, e);
}

void gpu_add(struct gpu *g, const float *partial)
{
    add_all(g, g->routed, partial, 1);
}

void gpu_combine(struct gpu *g)
{
    add_all(g, g->x, g->routed, g->shape->route_scale);
    add_all(g, g->x, g->shared, 1);
}

void gpu_logits(struct gpu *g, int from, int n)
{
    size_t hidden = (size_t)g->shape->hidden, vocab = (size_t)g->shape->vocab;

    assert(n > 0 && n <= GPU_STEP_TOKENS && from >= 0 && from + n <= g->tokens);
    for (size_t t = 0; t < (size_t)n; t++)
        ref_norm(g->h + t * hidden, g->x + ((size_t)from + t) * hidden, g->final_norm,
                 g->shape->hidden, g->shape->norm_eps);
    multiply(g, &g->head, g->h, n, g->logits);
    for (int t = 0; t < n; t++) {
        const float *row = g->logits + (size_t)t * vocab;

        g->argmax[t] = 0;
        for (int i = 1; i < g->shape->vocab; i++)
            if (row[i] > row[g->argmax[t]])
                g->argmax[t] = i;
    }
}

int gpu_read_hidden(struct gpu *g, float *x, struct err *e)
{
    memcpy(x, g->x, (size_t)g->tokens * (size_t)g->shape->hidden * sizeof(float));
    return gpu_ref_check(g, e);
}

int gpu_write_hidden(struct gpu *g, const float *x, struct err *e)
{
    memcpy(g->x, x, (size_t)g->tokens * (size_t)g->shape->hidden * sizeof(float));
    return gpu_ref_check(g, e);
}

int gpu_wait(struct gpu *g, struct err *e)
{
    return gpu_ref_check(g, e);
}

int gpu_product(struct gpu *g, const struct matrix *m, const float *x, int n, float *y)
{
    (void)g;
    for (int t = 0; t < n; t++) {
        float row[REF_MAX_COLS];

        for (int i = 0; i < m->cols; i++)
            row[i] = bf16_to_f32(f32_to_bf16(x[(size_t)t * (size_t)m->cols + (size_t)i]));
        ref_mul(y + (size_t)t * (size_t)m->rows, (size_t)m->rows, m, row, (size_t)m->cols, 1, 0,
                m->rows);
    }
    return 0;
}
