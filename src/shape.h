#ifndef LAGUNA_SHAPE_H
#define LAGUNA_SHAPE_H

#include "src/base.h"

/* The dimensions of a checkpoint, read from its config.json and checked once.  Code
 * below shape_read() relies on the bounds and divisibilities it enforces, and never
 * tests them again. */

enum {
    MAX_LAYERS = 128,
    MAX_EXPERTS = 1024,         /* a layer */
    MAX_TOPK = 32,
    MAX_EOS = 16,
    MAX_HEAD_DIM = 256,
};

/* What one rotary embedding does to the first `dims` elements of a head, paired
 * (i, i + dims / 2).  inv_freq is final: YaRN is already in it. */
struct rope {
    int dims;                           /* even, <= head_dim */
    float factor;                       /* multiplies cos and sin */
    float inv_freq[MAX_HEAD_DIM / 2];   /* [dims / 2] */
};

struct layer_shape {
    bool full;          /* full attention; otherwise a window of shape.window keys, self included */
    bool dense;         /* one plain FFN in place of router, experts and shared expert */
    int heads;          /* query heads: a multiple of kv_heads */
    int gate_rows;      /* of g_proj: 0, heads, or heads * head_dim */
};

struct shape {
    int layers, sparse_layers, hidden, head_dim, kv_heads, window, vocab;
    int experts, topk;
    int expert_inner, shared_inner, dense_inner;        /* shared_inner 0: no shared expert */
    int max_positions;
    int max_heads;                      /* the largest heads of any layer */
    float norm_eps, route_scale, router_softcap;
    bool norm_topk, sqrtsoftplus;       /* router scores: sqrt(softplus) instead of sigmoid */
    struct rope rope_full, rope_window;
    int32_t bos, pad;                   /* -1 where the file has none */
    int32_t eos[MAX_EOS];
    int eos_count;
    struct layer_shape layer[MAX_LAYERS];
};

/* Read config.json (spec: laguna.md 1.4).  `name` stands before the key in messages.
 * -EBADMSG with key, value and allowed range. */
int shape_read(struct shape *out, const char *json, size_t len, const char *name, struct err *e);

/* Add what generation_config.json says: more eos ids, default sampling. */
struct generation_defaults {
    float temperature, top_p, min_p;    /* 1, 1, 0 where the file says nothing */
    int top_k;                          /* 0: off */
    bool do_sample;
};

int shape_read_generation(struct shape *s, struct generation_defaults *out, const char *json,
                          size_t len, const char *name, struct err *e);

#endif
