/* The state behind gpu_ref*.c, and what those files share. */
#ifndef LAGUNA_GPU_REF_H
#define LAGUNA_GPU_REF_H

#include "cuda/sizes.h"
#include "src/ref.h"

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
    bool out_of_memory, counts;
    size_t bytes;                       /* asked for */
    struct layer_weights layer[MAX_LAYERS];
    struct matrix embed, head;
    float *final_norm;
    struct kv_layer kv[MAX_LAYERS];
    uint8_t **slot_bytes;               /* [slots] */
    struct ffn *slot;                   /* [slots] */
    int *seat;                          /* [layers][experts] */
    int tokens, pos, routed_layer;
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
    bool share_out, running, offers;
    struct gpu_offer offer[GPU_OFFERS]; /* of the share that is out */
    int offered;
    double fetch_seconds;
    int steps, batches, fills;          /* so far, for c.faults */
    bool dead;
    uint16_t *step_id;                  /* [layers][GPU_STEP_TOKENS][topk] */
    float *step_weight;
    uint16_t *share_id, *share_token;
    float *share_weight, *share_partial;
};

/* -EREMOTEIO with words where c.faults has made the device fail, else 0. */
int  gpu_ref_check(const struct gpu *g, struct err *e);

/* What gpu_embed() does, for a step too. */
void gpu_ref_begin(struct gpu *g, const struct batch *b);

/* Bytes of one cached row of a KV head. */
size_t gpu_ref_row_bytes(const struct gpu_config *c);

/* Copy an FFN to *at, part by part, and move *at behind it. */
void gpu_ref_put_ffn(uint8_t **at, struct ffn *to, const struct ffn *f);

#endif
