#ifndef LAGUNA_GPU_STEPS_H
#define LAGUNA_GPU_STEPS_H

#include "tests/gpu_plain.h"

/* What the checks of a GPU share: the small model, and a step with the CPU's share done. */

static inline void must(int rc, const struct err *e)
{
    if (!rc)
        return;
    printf("Bail out! %d %s\n", rc, e->text);
    exit(99);
}

static inline void base_shape(struct shape *s)
{
    *s = (struct shape){ .norm_eps = 1e-6f, .route_scale = 2.5f, .norm_topk = true, .bos = -1,
                         .pad = -1 };
}

static inline void set_layers(struct shape *s, int layers, int full_heads, int window_heads)
{
    s->layers = layers;
    s->max_heads = window_heads > full_heads ? window_heads : full_heads;
    for (int i = 0; i < layers; i++) {
        int heads = i % 4 ? window_heads : full_heads;

        s->layer[i] = (struct layer_shape){ i % 4 == 0, i == 0, heads, heads };
        s->sparse_layers += i > 0;
    }
}

/* As models/nano: heads 12 and 18 over 2, head_dim 64. */
static inline void small_toy(struct toy *t, enum wformat f)
{
    struct shape *s = &t->s;

    *t = (struct toy){ .format = f, .group = 32, .seed = 12345 };
    base_shape(s);
    s->hidden = 256;
    s->head_dim = 64;
    s->kv_heads = 2;
    s->window = 64;
    s->vocab = 1003;
    s->experts = 24;
    s->topk = 8;
    s->expert_inner = s->shared_inner = 32;
    s->dense_inner = 512;
    s->rope_full = toy_rope(32, 500000, 1.277f);
    s->rope_window = toy_rope(64, 10000, 1);
    set_layers(s, 5, 12, 18);
    toy_make(t, 24);
}

/* Do the CPU's share with plain C. */
static inline void do_share(const struct toy *t, struct gpu *g, const struct gpu_share *s)
{
    size_t hidden = (size_t)t->s.hidden;

    memset(s->partial, 0, (size_t)s->tokens * hidden * sizeof(float));
    for (int i = 0; i < s->pairs; i++)
        plain_ffn(&t->expert[s->layer * t->s.experts + s->expert[i]].ffn,
                  s->h + s->token[i] * hidden, s->weight[i], s->partial + s->token[i] * hidden);
    gpu_answer(g);
}

/* One step to its end; how many shares it wanted, or the error. */
static inline int run_step(const struct toy *t, struct gpu *g, const struct batch *b,
                           float *logits, struct err *e)
{
    struct gpu_share share;
    int rc, shares = 0;

    must(gpu_step(g, b, false, e), e);
    while ((rc = gpu_next_share(g, &share, e)) > 0) {
        do_share(t, g, &share);
        shares++;
    }
    if (!rc)
        rc = gpu_read_logits(g, 0, b->tokens, logits, e);
    return rc ? rc : shares;
}

#endif
