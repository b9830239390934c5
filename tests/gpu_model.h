#ifndef LAGUNA_GPU_MODEL_H
#define LAGUNA_GPU_MODEL_H

#include "cuda/gpu.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

/* Models of any shape with random weights, for check_gpu and bench_gpu.  Memory is not given
 * back: the programs end soon. */
struct toy {
    struct shape s;
    enum wformat format;                /* of everything but router, gate, embedding and head */
    int group;
    bool zero;
    struct layer_weights layer[MAX_LAYERS];
    struct expert *expert;              /* [layers][experts] */
    struct matrix embed, head;
    float *final_norm;
    uint32_t seed;
};

static inline uint32_t toy_next(struct toy *t)
{
    t->seed ^= t->seed << 13;
    t->seed ^= t->seed >> 17;
    t->seed ^= t->seed << 5;
    return t->seed;
}

/* Between -1 and 1. */
static inline float toy_float(struct toy *t)
{
    return (float)(int32_t)toy_next(t) * 0x1p-31f;
}

/* What nobody frees lives until the program ends, in reach of a leak checker. */
struct kept {
    struct kept *before;
    void *p;
};

static inline void *toy_memory(size_t n)
{
    static struct kept *last;
    struct kept *k = malloc(sizeof(*k));
    void *p = aligned_alloc(64, align_up(n + 1, 64));

    if (!p || !k) {
        printf("Bail out! out of memory\n");
        exit(99);
    }
    *k = (struct kept){ last, p };
    last = k;
    memset(p, 0, n);
    return p;
}

static inline float *toy_floats(struct toy *t, int n, float middle, float spread)
{
    float *x = toy_memory((size_t)n * sizeof(*x));

    for (int i = 0; i < n; i++)
        x[i] = middle + spread * toy_float(t);
    return x;
}

static inline bf16 *toy_bf16(struct toy *t, size_t n, float middle, float spread)
{
    bf16 *x = toy_memory(n * sizeof(*x));

    for (size_t i = 0; i < n; i++)
        x[i] = f32_to_bf16(middle + spread * toy_float(t));
    return x;
}

static inline uint8_t *toy_bytes(struct toy *t, size_t n)
{
    uint8_t *b = toy_memory(n + 4);

    for (size_t i = 0; i < n; i += 4) {
        uint32_t v = toy_next(t);

        memcpy(b + i, &v, 4);
    }
    return b;
}

/* Random, of such a size that products of inputs around 1 are around 1. */
static inline struct matrix toy_matrix(struct toy *t, enum wformat f, int rows, int cols)
{
    static const int bits[W_FORMATS] = { 16, 8, 4, 4 };
    static const float typical[W_FORMATS] = { 0, 74, 4.6f, 3 };
    float size = 1 / sqrtf((float)cols);
    int group = t->group > 0 && cols % t->group == 0 ? t->group : 32;
    size_t n = (size_t)rows * (size_t)cols, groups = (size_t)rows * (size_t)(cols / group);
    struct matrix m = { .format = f, .rows = rows, .cols = cols, .group = group };

    if (f == W_BF16) {
        m.group = 0;
        m.weight = toy_bf16(t, n, 0, 1.7f * size);
        return m;
    }
    m.weight = toy_bytes(t, n * (size_t)bits[f] / 8);
    if (f == W_MXFP4) {
        uint8_t *scale = toy_memory(groups);

        for (size_t i = 0; i < groups; i++)
            scale[i] = (uint8_t)(127 + lrintf(log2f(size / typical[f])) - (int)(toy_next(t) % 2));
        m.scale = scale;
        return m;
    }
    m.scale = toy_bf16(t, groups, size / typical[f], size / typical[f] / 2);
    if (t->zero)
        m.zero = toy_bytes(t, ((size_t)rows * (size_t)bits[f] + 31) / 32 * 4 *
                           (size_t)(cols / group));
    return m;
}

static inline struct ffn toy_ffn(struct toy *t, int inner)
{
    struct ffn f = { toy_matrix(t, t->format, inner, t->s.hidden),
                     toy_matrix(t, t->format, inner, t->s.hidden),
                     toy_matrix(t, t->format, t->s.hidden, inner) };

    return f;
}

static inline void toy_layer(struct toy *t, int i)
{
    const struct shape *s = &t->s;
    const struct layer_shape *l = &s->layer[i];
    struct layer_weights *w = &t->layer[i];

    w->attn_norm = toy_floats(t, s->hidden, 1, 0.3f);
    w->ffn_norm = toy_floats(t, s->hidden, 1, 0.3f);
    w->q_norm = toy_floats(t, s->head_dim, 1.5f, 0.5f);
    w->k_norm = toy_floats(t, s->head_dim, 1.5f, 0.5f);
    w->q = toy_matrix(t, t->format, l->heads * s->head_dim, s->hidden);
    w->k = toy_matrix(t, t->format, s->kv_heads * s->head_dim, s->hidden);
    w->v = toy_matrix(t, t->format, s->kv_heads * s->head_dim, s->hidden);
    if (l->gate_rows)
        w->g = toy_matrix(t, W_BF16, l->gate_rows, s->hidden);
    w->o = toy_matrix(t, t->format, s->hidden, l->heads * s->head_dim);
    w->k_scale = 0.5f;
    w->v_scale = 0.25f;
    if (l->dense || s->shared_inner)
        w->ffn = toy_ffn(t, l->dense ? s->dense_inner : s->shared_inner);
    if (l->dense)
        return;
    w->router = toy_matrix(t, W_BF16, s->experts, s->hidden);
    w->router_bias = toy_floats(t, s->experts, 0, 0.2f);
}

/* Everything but s, format, group, zero and seed, which the caller has set.  `distinct` experts
 * are made; all others are their bytes again. */
static inline void toy_make(struct toy *t, int distinct)
{
    const struct shape *s = &t->s;
    struct ffn *made = toy_memory((size_t)distinct * sizeof(*made));

    for (int i = 0; i < distinct; i++)
        made[i] = toy_ffn(t, s->expert_inner);
    t->expert = toy_memory((size_t)(s->layers * s->experts) * sizeof(*t->expert));
    for (int i = 0; i < s->layers; i++) {
        toy_layer(t, i);
        for (int x = 0; x < s->experts; x++)
            t->expert[i * s->experts + x] =
                (struct expert){ i, x, made[(i * 7 + x) % distinct] };
    }
    t->embed = toy_matrix(t, W_BF16, s->vocab, s->hidden);
    for (size_t i = 0; i < (size_t)s->vocab * (size_t)s->hidden; i++)
        ((bf16 *)(uintptr_t)t->embed.weight)[i] = f32_to_bf16(toy_float(t));
    t->head = toy_matrix(t, W_BF16, s->vocab, s->hidden);
    t->final_norm = toy_floats(t, s->hidden, 1, 0.3f);
}

static inline struct rope toy_rope(int dims, float base, float factor)
{
    struct rope r = { .dims = dims, .factor = factor };

    for (int i = 0; i < dims / 2; i++)
        r.inv_freq[i] = powf(base, -2.0f * (float)i / (float)dims);
    return r;
}

static inline struct gpu_config toy_config(const struct toy *t, int context, int batch,
                                           enum gpu_kv kv)
{
    struct gpu_config c = { .shape = &t->s, .context = context, .batch = batch, .kv = kv,
                            .slots = t->s.layers * t->s.experts,
                            .slot_bytes = gpu_ffn_bytes(&t->expert[0].ffn) };

    for (int i = 0; i < t->s.layers; i++)
        c.dense_bytes += gpu_layer_bytes(&t->layer[i]) + 4096;
    c.dense_bytes += gpu_matrix_bytes(&t->embed) + gpu_matrix_bytes(&t->head) +
                     (size_t)t->s.hidden * 4 + 4096;
    return c;
}

/* Open a GPU with the toy's weights; experts 0..seated - 1 of each sparse layer in slots.
 * NULL where this machine has no GPU; other failures end the program. */
static inline struct gpu *toy_gpu(const struct toy *t, const struct gpu_config *c, int seated)
{
    struct gpu_ends ends = { &t->embed, t->final_norm, &t->head };
    struct gpu *g = NULL;
    struct err e = { "" };
    int slot = 0, rc = gpu_open(&g, c, &e);

    if (rc == -ENODEV)
        return NULL;
    for (int i = 0; !rc && i < t->s.layers; i++) {
        rc = gpu_set_layer(g, i, &t->layer[i], &e);
        for (int x = 0; !rc && !t->s.layer[i].dense && x < seated; x++) {
            rc = gpu_fill_slot(g, slot, &t->expert[i * t->s.experts + x], &e);
            gpu_seat(g, i, x, slot++);
        }
    }
    if (!rc)
        rc = gpu_set_ends(g, &ends, &e);
    if (!rc)
        rc = gpu_wait(g, &e);
    if (rc) {
        printf("Bail out! %s\n", e.text);
        exit(99);
    }
    return g;
}

#endif
