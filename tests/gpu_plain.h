#ifndef LAGUNA_GPU_PLAIN_H
#define LAGUNA_GPU_PLAIN_H

#include "src/ref.h"
#include "tests/gpu_model.h"

/* What the stages of cuda/gpu.h must give: src/ref.h over whole rows of floats, with the
 * roundings that the header's implementations make.  Written apart from gpu_ref.c, so that each
 * checks the other. */
struct plain {
    const struct toy *t;
    enum gpu_kv kv;
    int context;
    float *k[MAX_LAYERS], *v[MAX_LAYERS];       /* [context][kv_heads][dim], as read back */
};

static inline void plain_open(struct plain *p, const struct toy *t, enum gpu_kv kv, int context)
{
    size_t n = (size_t)context * (size_t)t->s.kv_heads * (size_t)t->s.head_dim * sizeof(float);

    *p = (struct plain){ .t = t, .kv = kv, .context = context };
    for (int i = 0; i < t->s.layers; i++) {
        p->k[i] = toy_memory(n);
        p->v[i] = toy_memory(n);
    }
}

static inline void plain_close(struct plain *p)
{
    for (int i = 0; i < p->t->s.layers; i++) {
        free(p->k[i]);
        free(p->v[i]);
    }
}

static inline float plain_bf16(float x)
{
    return bf16_to_f32(f32_to_bf16(x));
}

/* y [rows] = m x, x rounded to BF16. */
static inline void plain_mul(const struct matrix *m, const float *x, float *y)
{
    float row[REF_MAX_COLS];

    for (int i = 0; i < m->cols; i++)
        row[i] = plain_bf16(x[i]);
    ref_mul(y, (size_t)m->rows, m, row, (size_t)m->cols, 1, 0, m->rows);
}

/* A row of the cache after storing and reading back. */
static inline void plain_cached(const struct plain *p, float *to, const float *x, float mul)
{
    int dim = p->t->s.head_dim;
    float largest = 0, s;

    for (int i = 0; i < dim; i++)
        largest = fmaxf(largest, fabsf(x[i]));
    s = ref_f16_to_f32(ref_f16_from_f32(largest / 127));
    for (int i = 0; i < dim; i++) {
        float q = rintf(x[i] / s);

        if (p->kv == GPU_KV_Q8)
            to[i] = fmaxf(-127, fminf(127, q)) * s;
        else if (p->kv == GPU_KV_FP8)
            to[i] = ref_fp8_to_f32(ref_fp8_from_f32(x[i] / mul)) * mul;
        else
            to[i] = plain_bf16(x[i]);
    }
}

static inline const struct rope *plain_rope(const struct plain *p, int layer)
{
    return p->t->s.layer[layer].full ? &p->t->s.rope_full : &p->t->s.rope_window;
}

/* Keys and values of one token, from its normed hidden row, into the cache. */
static inline void plain_store(struct plain *p, int layer, const float *h, int pos)
{
    const struct shape *s = &p->t->s;
    const struct layer_weights *w = &p->t->layer[layer];
    size_t dim = (size_t)s->head_dim, width = (size_t)s->kv_heads * dim;
    float *k = toy_memory(width * sizeof(float)), *v = toy_memory(width * sizeof(float));

    plain_mul(&w->k, h, k);
    plain_mul(&w->v, h, v);
    for (size_t i = 0; i < width; i += dim) {
        size_t at = (size_t)pos * width + i;

        ref_norm(k + i, k + i, w->k_norm, s->head_dim, s->norm_eps);
        ref_rope(k + i, plain_rope(p, layer), pos);
        plain_cached(p, p->k[layer] + at, k + i, w->k_scale);
        plain_cached(p, p->v[layer] + at, v + i, w->v_scale);
    }
    free(k);
    free(v);
}

/* One token's gated attention, from its normed hidden row: o [heads * dim]. */
static inline void plain_attend(const struct plain *p, int layer, const float *h, int pos, float *o)
{
    const struct shape *s = &p->t->s;
    const struct layer_weights *w = &p->t->layer[layer];
    int heads = s->layer[layer].heads, dim = s->head_dim, group = heads / s->kv_heads;
    int first = s->layer[layer].full || pos < s->window ? 0 : pos - s->window + 1;
    size_t width = (size_t)(s->kv_heads * dim);
    float *q = toy_memory((size_t)(heads * dim) * sizeof(float));
    float *gate = toy_memory((size_t)(heads * dim) * sizeof(float));
    float *scratch = toy_memory((size_t)(pos + 1) * sizeof(float));

    plain_mul(&w->q, h, q);
    if (w->g.rows)
        plain_mul(&w->g, h, gate);
    for (int j = 0; j < heads; j++) {
        float *head = q + j * dim;
        size_t at = (size_t)first * width + (size_t)(j / group * dim);

        ref_norm(head, head, w->q_norm, dim, s->norm_eps);
        ref_rope(head, plain_rope(p, layer), pos);
        for (int i = 0; i < dim; i++)
            head[i] = ref_f16_to_f32(ref_f16_from_f32(head[i]));
        ref_attend(o + j * dim, head, p->k[layer] + at, p->v[layer] + at, width, dim,
                   pos + 1 - first, scratch);
        for (int i = 0; w->g.rows && i < dim; i++)
            o[j * dim + i] *= ref_softplus(gate[w->g.rows == heads ? j : j * dim + i]);
    }
    free(q);
    free(gate);
    free(scratch);
}

/* Of a long batch only some tokens are computed: a few, and the last. */
static inline bool plain_skips(int t, int n)
{
    return n > 100 && t % 37 && t < n - 2;
}

/* x [n][hidden] += attention, positions pos, pos + 1, ...; tokens skipped stay as they are. */
static inline void plain_attention(struct plain *p, int layer, float *x, int n, int pos)
{
    const struct shape *s = &p->t->s;
    const struct layer_weights *w = &p->t->layer[layer];
    size_t hidden = (size_t)s->hidden;
    float *h = toy_memory((size_t)n * hidden * sizeof(float));
    float *out = toy_memory(hidden * sizeof(float));
    float *o = toy_memory((size_t)(s->max_heads * s->head_dim) * sizeof(float));

    for (size_t t = 0; t < (size_t)n; t++) {
        ref_norm(h + t * hidden, x + t * hidden, w->attn_norm, s->hidden, s->norm_eps);
        plain_store(p, layer, h + t * hidden, pos + (int)t);
    }
    for (size_t t = 0; t < (size_t)n; t++) {
        if (plain_skips((int)t, n))
            continue;
        plain_attend(p, layer, h + t * hidden, pos + (int)t, o);
        plain_mul(&w->o, o, out);
        for (size_t i = 0; i < hidden; i++)
            x[t * hidden + i] += out[i];
    }
    free(h);
    free(out);
    free(o);
}

/* y [hidden] += weight * ffn(h) */
static inline void plain_ffn(const struct ffn *f, const float *h, float weight, float *y)
{
    float *gate = toy_memory((size_t)f->gate.rows * sizeof(float));
    float *up = toy_memory((size_t)f->gate.rows * sizeof(float));
    float *out = toy_memory((size_t)f->down.rows * sizeof(float));

    plain_mul(&f->gate, h, gate);
    plain_mul(&f->up, h, up);
    for (int i = 0; i < f->gate.rows; i++)
        gate[i] = ref_silu(gate[i]) * up[i];
    plain_mul(&f->down, gate, out);
    for (int i = 0; i < f->down.rows; i++)
        y[i] += weight * out[i];
    free(gate);
    free(up);
    free(out);
}

/* The FFN half of a layer for one token, by the route given (sparse) or dense: x [hidden]. */
static inline void plain_ffn_half(const struct plain *p, int layer, float *x, const uint16_t *id,
                                  const float *weight)
{
    const struct shape *s = &p->t->s;
    const struct layer_weights *w = &p->t->layer[layer];
    float *h = toy_memory((size_t)s->hidden * sizeof(float));
    float *routed = toy_memory((size_t)s->hidden * sizeof(float));

    ref_norm(h, x, w->ffn_norm, s->hidden, s->norm_eps);
    if (w->ffn.gate.rows)
        plain_ffn(&w->ffn, h, 1, x);
    for (int k = 0; !s->layer[layer].dense && k < s->topk; k++)
        plain_ffn(&p->t->expert[layer * s->experts + id[k]].ffn, h, weight[k], routed);
    for (int i = 0; i < s->hidden; i++)
        x[i] += routed[i] * s->route_scale;
    free(h);
    free(routed);
}

/* The route of one token, from x before the norm; -EDOM as ref_route(). */
static inline int plain_route(const struct plain *p, int layer, const float *x, uint16_t *id,
                              float *weight)
{
    const struct shape *s = &p->t->s;
    const struct layer_weights *w = &p->t->layer[layer];
    float *h = toy_memory((size_t)s->hidden * sizeof(float)), logits[MAX_EXPERTS];

    ref_norm(h, x, w->ffn_norm, s->hidden, s->norm_eps);
    ref_mul(logits, (size_t)s->experts, &w->router, h, (size_t)s->hidden, 1, 0, s->experts);
    free(h);
    return ref_route(s, logits, w->router_bias, id, weight);
}

#endif
