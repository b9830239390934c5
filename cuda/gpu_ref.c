/* cuda/gpu.h in plain C, on src/ref.h: what a build without CUDA links, so that all that is
 * above the header runs and is tested without a GPU.  The arithmetic is that of the kernels:
 * activations enter products as BF16, queries are float16, the cache is rounded as asked, and
 * everything else is float32.  Nothing here is fast, and every call is done when it returns. */
#include "cuda/gpu.h"
#include "src/ref.h"

#include <assert.h>
#include <errno.h>
#include <float.h>
#include <math.h>
#include <stdlib.h>

struct kv_layer {
    uint8_t *k, *v;                     /* [kv_heads][rows] rows of row_bytes */
    uint16_t *k_scale, *v_scale;        /* [kv_heads][rows] float16 */
    int rows;
};

struct gpu {
    struct gpu_config c;
    const struct shape *shape;
    void **owned;                       /* allocations, freed at the end */
    size_t owned_count;
    bool out_of_memory;
    struct layer_weights layer[MAX_LAYERS];
    struct matrix embed, head;
    float *final_norm;
    struct kv_layer kv[MAX_LAYERS];
    uint8_t **slot_bytes;               /* [slots] */
    struct ffn *slot;                   /* [slots] */
    int *seat;                          /* [layers][experts] */
    int tokens, pos, written, routed_layer;
    float *x, *h, *rounded;             /* [batch][hidden], [..], [batch][widest] */
    float *q, *k, *v, *g, *o;           /* as in the kernels */
    float *gate, *up, *out;             /* [batch][widest inner] x 2, [batch][hidden] */
    float *shared, *routed, *router;    /* [batch][hidden] x 2, [batch][experts] */
    float *keys, *values, *scores;      /* of one KV head: [context][dim] x 2, [context] */
    float *logits;                      /* [GPU_STEP_TOKENS][vocab] */
    uint16_t *route_id;                 /* [batch][topk] */
    float *route_weight;
    int argmax[GPU_STEP_TOKENS];
    bool captured[GPU_STEP_TOKENS + 1];
    /* The step in progress: layers before at_layer are done; a share may be out. */
    int at_layer;
    bool share_out, running;
    uint16_t *step_id;                  /* [layers][GPU_STEP_TOKENS][topk] */
    float *step_weight;
    uint16_t *share_id, *share_token;
    float *share_weight, *share_partial;
};

int gpu_list(struct gpu_facts out[MAX_GPUS], struct err *e)
{
    (void)out;
    (void)e;
    return 0;
}

/* --- sizes ---------------------------------------------------------------------------------- */

struct part_bytes {
    size_t weight, scale, zero;
};

static struct part_bytes parts_of(const struct matrix *m)
{
    static const size_t bits[W_FORMATS] = { 16, 8, 4, 4 };
    struct part_bytes b = { 0, 0, 0 };
    size_t rows = (size_t)m->rows, groups;

    if (!m->rows)
        return b;
    b.weight = mul_sat(rows, (size_t)m->cols * bits[m->format] / 8);
    if (m->format == W_BF16)
        return b;
    groups = (size_t)(m->cols / m->group);
    b.scale = mul_sat(rows, groups * (m->format == W_MXFP4 ? 1 : sizeof(bf16)));
    if (m->zero)
        b.zero = mul_sat((rows * bits[m->format] + 31) / 32, groups * sizeof(uint32_t));
    return b;
}

size_t gpu_matrix_bytes(const struct matrix *m)
{
    struct part_bytes b = parts_of(m);

    return align_up(b.weight, GPU_PART_ALIGN) + align_up(b.scale, GPU_PART_ALIGN) +
           align_up(b.zero, GPU_PART_ALIGN);
}

size_t gpu_ffn_bytes(const struct ffn *f)
{
    return gpu_matrix_bytes(&f->gate) + gpu_matrix_bytes(&f->up) + gpu_matrix_bytes(&f->down);
}

size_t gpu_layer_bytes(const struct layer_weights *w)
{
    size_t floats = 2 * (size_t)w->q.cols + 2 * MAX_HEAD_DIM + (size_t)w->router.rows;

    return gpu_matrix_bytes(&w->q) + gpu_matrix_bytes(&w->k) + gpu_matrix_bytes(&w->v) +
           gpu_matrix_bytes(&w->g) + gpu_matrix_bytes(&w->o) + gpu_ffn_bytes(&w->ffn) +
           gpu_matrix_bytes(&w->router) + floats * sizeof(float) + 5 * GPU_PART_ALIGN;
}

static size_t kv_row_bytes(const struct gpu_config *c)
{
    return (size_t)c->shape->head_dim * (c->kv == GPU_KV_BF16 ? 2 : 1);
}

static int kv_rows(const struct gpu_config *c, int layer)
{
    int ring = c->shape->window + c->batch;

    return c->shape->layer[layer].full || ring > c->context ? c->context : ring;
}

size_t gpu_bytes(const struct gpu_config *c)
{
    size_t n = add_sat(c->dense_bytes, mul_sat((size_t)c->slots, c->slot_bytes));

    for (int i = 0; i < c->shape->layers; i++)
        n = add_sat(n, mul_sat(2 * kv_row_bytes(c) * (size_t)c->shape->kv_heads,
                               (size_t)kv_rows(c, i)));
    return n;
}

/* --- opening -------------------------------------------------------------------------------- */

static void *own(struct gpu *g, size_t n)
{
    void **list = realloc(g->owned, (g->owned_count + 1) * sizeof(*list));
    void *p = NULL;

    if (list) {
        g->owned = list;
        p = aligned_alloc(GPU_PART_ALIGN, align_up(n + 1, GPU_PART_ALIGN));
    }
    if (!p) {
        g->out_of_memory = true;
        return NULL;
    }
    memset(p, 0, n);
    g->owned[g->owned_count++] = p;
    return p;
}

static float *own_floats(struct gpu *g, int rows, int cols)
{
    return own(g, mul_sat((size_t)rows, (size_t)cols) * sizeof(float));
}

static int larger(int a, int b)
{
    return a > b ? a : b;
}

static void take_scratch(struct gpu *g)
{
    const struct shape *s = g->shape;
    int n = g->c.batch, heads = s->max_heads * s->head_dim, kv = s->kv_heads * s->head_dim;
    int inner = larger(larger(s->expert_inner, s->shared_inner), s->dense_inner);
    int pairs = GPU_STEP_TOKENS * s->topk;

    g->x = own_floats(g, n, s->hidden);
    g->h = own_floats(g, n, s->hidden);
    g->rounded = own_floats(g, n, larger(larger(heads, inner), s->hidden));
    g->q = own_floats(g, n, heads);
    g->k = own_floats(g, n, kv);
    g->v = own_floats(g, n, kv);
    g->g = own_floats(g, n, heads);
    g->o = own_floats(g, n, heads);
    g->gate = own_floats(g, n, inner);
    g->up = own_floats(g, n, inner);
    g->out = own_floats(g, n, s->hidden);
    g->shared = own_floats(g, n, s->hidden);
    g->routed = own_floats(g, n, s->hidden);
    g->router = own_floats(g, n, s->experts);
    g->keys = own_floats(g, g->c.context, s->head_dim);
    g->values = own_floats(g, g->c.context, s->head_dim);
    g->scores = own_floats(g, g->c.context, 1);
    g->logits = own_floats(g, GPU_STEP_TOKENS, s->vocab);
    g->route_id = own(g, (size_t)n * (size_t)s->topk * sizeof(uint16_t));
    g->route_weight = own_floats(g, n, s->topk);
    g->step_id = own(g, (size_t)s->layers * (size_t)pairs * sizeof(uint16_t));
    g->step_weight = own_floats(g, s->layers, pairs);
    g->share_id = own(g, (size_t)pairs * sizeof(uint16_t));
    g->share_token = own(g, (size_t)pairs * sizeof(uint16_t));
    g->share_weight = own_floats(g, pairs, 1);
    g->share_partial = own_floats(g, GPU_STEP_TOKENS, s->hidden);
}

static void take_cache(struct gpu *g)
{
    for (int i = 0; i < g->shape->layers; i++) {
        struct kv_layer *l = &g->kv[i];
        size_t rows;

        l->rows = kv_rows(&g->c, i);
        rows = (size_t)l->rows * (size_t)g->shape->kv_heads;
        l->k = own(g, rows * kv_row_bytes(&g->c));
        l->v = own(g, rows * kv_row_bytes(&g->c));
        l->k_scale = own(g, rows * sizeof(uint16_t));
        l->v_scale = own(g, rows * sizeof(uint16_t));
    }
}

int gpu_open(struct gpu **out, const struct gpu_config *c, struct err *e)
{
    struct gpu *g = calloc(1, sizeof(*g));
    int seats = c->shape->layers * c->shape->experts;

    if (!g)
        return fail(e, -ENOMEM, "out of memory");
    g->c = *c;
    g->shape = c->shape;
    g->seat = own(g, (size_t)seats * sizeof(int));
    g->slot = own(g, (size_t)c->slots * sizeof(*g->slot));
    g->slot_bytes = own(g, (size_t)c->slots * sizeof(*g->slot_bytes));
    take_scratch(g);
    take_cache(g);
    for (int i = 0; i < c->slots && !g->out_of_memory; i++)
        g->slot_bytes[i] = own(g, c->slot_bytes);
    if (g->out_of_memory) {
        gpu_close(g);
        return fail(e, -ENOMEM, "out of memory");
    }
    for (int i = 0; i < seats; i++)
        g->seat[i] = -1;
    *out = g;
    return 0;
}

void gpu_close(struct gpu *g)
{
    if (!g)
        return;
    for (size_t i = 0; i < g->owned_count; i++)
        free(g->owned[i]);
    free(g->owned);
    free(g);
}

const char *gpu_slow_products(const struct gpu *g)
{
    (void)g;
    return "a GPU";
}

/* --- weights -------------------------------------------------------------------------------- */

static uint8_t *put(uint8_t **at, const void *from, size_t n)
{
    uint8_t *to = *at;

    if (!n)
        return NULL;
    memcpy(to, from, n);
    *at += align_up(n, GPU_PART_ALIGN);
    return to;
}

static void put_matrix(uint8_t **at, struct matrix *to, const struct matrix *m)
{
    struct part_bytes b = parts_of(m);

    *to = *m;
    to->weight = put(at, m->weight, b.weight);
    to->scale = put(at, m->scale, b.scale);
    to->zero = put(at, m->zero, b.zero);
}

static void put_ffn(uint8_t **at, struct ffn *to, const struct ffn *f)
{
    put_matrix(at, &to->gate, &f->gate);
    put_matrix(at, &to->up, &f->up);
    put_matrix(at, &to->down, &f->down);
}

static float *put_floats(uint8_t **at, const float *from, int n)
{
    return (float *)(void *)put(at, from, (size_t)n * sizeof(float));
}

int gpu_set_layer(struct gpu *g, int layer, const struct layer_weights *w, struct err *e)
{
    struct layer_weights *d = &g->layer[layer];
    uint8_t *at = own(g, gpu_layer_bytes(w));
    int dim = g->shape->head_dim;

    if (!at)
        return fail(e, -ENOMEM, "layer %d: out of memory", layer);
    if (w->router.rows && w->router.format != W_BF16)
        return fail(e, -ENOTSUP, "layer %d: the router is quantised", layer);
    *d = *w;
    d->attn_norm = put_floats(&at, w->attn_norm, g->shape->hidden);
    d->ffn_norm = put_floats(&at, w->ffn_norm, g->shape->hidden);
    d->q_norm = put_floats(&at, w->q_norm, dim);
    d->k_norm = put_floats(&at, w->k_norm, dim);
    put_matrix(&at, &d->q, &w->q);
    put_matrix(&at, &d->k, &w->k);
    put_matrix(&at, &d->v, &w->v);
    put_matrix(&at, &d->g, &w->g);
    put_matrix(&at, &d->o, &w->o);
    put_ffn(&at, &d->ffn, &w->ffn);
    put_matrix(&at, &d->router, &w->router);
    d->router_bias = put_floats(&at, w->router_bias, w->router.rows);
    return 0;
}

int gpu_set_ends(struct gpu *g, const struct gpu_ends *w, struct err *e)
{
    int hidden = g->shape->hidden;
    uint8_t *at = own(g, gpu_matrix_bytes(w->embed) + gpu_matrix_bytes(w->head) +
                      align_up((size_t)hidden * sizeof(float), GPU_PART_ALIGN));

    if (!at)
        return fail(e, -ENOMEM, "embedding and head: out of memory");
    if (w->embed->format != W_BF16)
        return fail(e, -ENOTSUP, "the embedding is quantised");
    put_matrix(&at, &g->embed, w->embed);
    put_matrix(&at, &g->head, w->head);
    g->final_norm = put_floats(&at, w->norm, hidden);
    return 0;
}

int gpu_fill_slot(struct gpu *g, int slot, const struct expert *x, struct err *e)
{
    uint8_t *at = g->slot_bytes[slot];

    if (gpu_ffn_bytes(&x->ffn) > g->c.slot_bytes)
        return fail(e, -E2BIG, "layer %d expert %d: %zu bytes do not fit a slot of %zu", x->layer,
                    x->id, gpu_ffn_bytes(&x->ffn), g->c.slot_bytes);
    put_ffn(&at, &g->slot[slot], &x->ffn);
    return 0;
}

bool gpu_slot_ready(struct gpu *g, int slot)
{
    return g->slot[slot].gate.rows > 0;
}

void gpu_seat(struct gpu *g, int layer, int id, int slot)
{
    g->seat[layer * g->shape->experts + id] = slot;
}

int gpu_seat_of(const struct gpu *g, int layer, int id)
{
    return g->seat[layer * g->shape->experts + id];
}

/* --- stages --------------------------------------------------------------------------------- */

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

void gpu_embed(struct gpu *g, const struct batch *b)
{
    size_t hidden = (size_t)g->shape->hidden;

    assert(b->tokens > 0 && b->tokens <= g->c.batch && b->pos + b->tokens <= g->c.context);
    g->tokens = b->tokens;
    g->pos = b->pos;
    if (g->written < b->pos + b->tokens)
        g->written = b->pos + b->tokens;
    for (size_t t = 0; t < (size_t)b->tokens; t++)
        ref_row(g->x + t * hidden, &g->embed, b->token[t]);
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
            store(g, l->k + at * kv_row_bytes(&g->c), l->k_scale + at, g->k + from, w->k_scale);
            store(g, l->v + at * kv_row_bytes(&g->c), l->v_scale + at, g->v + from, w->v_scale);
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
        size_t to = (size_t)(p - from) * (size_t)dim, bytes = kv_row_bytes(&g->c);

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
    (void)e;
    memcpy(h, g->h, (size_t)g->tokens * (size_t)g->shape->hidden * sizeof(float));
    return 0;
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
    (void)e;
    memcpy(x, g->x, (size_t)g->tokens * (size_t)g->shape->hidden * sizeof(float));
    return 0;
}

int gpu_write_hidden(struct gpu *g, const float *x, struct err *e)
{
    (void)e;
    memcpy(g->x, x, (size_t)g->tokens * (size_t)g->shape->hidden * sizeof(float));
    return 0;
}

int gpu_wait(struct gpu *g, struct err *e)
{
    (void)g;
    (void)e;
    return 0;
}

int gpu_rewind(struct gpu *g, int n)
{
    int oldest = n - g->shape->window + 1;

    if (n < 0)
        return -ERANGE;
    for (int i = 0; n && i < g->shape->layers; i++)
        if (!g->shape->layer[i].full && oldest > 0 && g->written - oldest > g->kv[i].rows)
            return -ERANGE;
    if (!n)
        g->written = 0;
    return 0;
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

int gpu_time(struct gpu *g, struct gpu_timing *t, struct err *e)
{
    (void)g;
    (void)t;
    return fail(e, -ENOTSUP, "this program was built without CUDA");
}

/* --- decode: the layers between two shares run when the next one is asked for ----------------- */

int gpu_capture(struct gpu *g, int tokens, struct err *e)
{
    (void)e;
    g->captured[tokens] = true;
    return 0;
}

int gpu_step(struct gpu *g, const struct batch *b, struct err *e)
{
    if (!g->captured[b->tokens])
        return fail(e, -EINVAL, "no step of %d tokens was captured", b->tokens);
    gpu_embed(g, b);
    g->at_layer = 0;
    g->share_out = false;
    g->running = true;
    return 0;
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
    for (int x = 0; x < g->shape->experts; x++) {
        uint16_t id = (uint16_t)x;

        if (gpu_seat_of(g, layer, x) >= 0)
            gpu_experts(g, &id, 1);
    }
    return list_share(g, layer);
}

int gpu_next_share(struct gpu *g, struct gpu_share *out, struct err *e)
{
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

    (void)e;
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
    return 0;
}
