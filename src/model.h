#ifndef LAGUNA_MODEL_H
#define LAGUNA_MODEL_H

#include "src/expert.h"
#include "src/shape.h"
#include "storage/checkpoint.h"

/* A checkpoint bound to the architecture: which tensor is which matrix, in which format,
 * with every name, dtype and shape checked; and the dense weights (all but the routed
 * experts) in memory.  model_open() reads headers only. */

/* Where one part of an expert lies. */
struct part {
    int shard;                  /* -1: this expert has no such part */
    uint64_t offset, bytes;     /* in the shard's file */
};

enum { EXPERT_PARTS = 9 };      /* gate, up, down: each weight, scale, zero */

/* One routed expert on disk: its parts, and its matrices with NULL pointers. */
struct expert_source {
    struct ffn ffn;
    struct part part[EXPERT_PARTS];     /* gate.weight, gate.scale, gate.zero, up.weight, ... */
};

struct load;                    /* one tensor's way into the arena: model_bind.h */

struct model {
    struct shape shape;
    struct generation_defaults defaults;
    struct checkpoint *checkpoint;
    uint64_t fingerprint;               /* of config.json and of every shard's header and size */
    struct matrix embed, head;          /* [vocab][hidden] */
    float *final_norm;                  /* [hidden] */
    struct layer_weights layer[MAX_LAYERS];
    struct expert_source *expert;       /* [sparse layer][experts] */
    int sparse_index[MAX_LAYERS];       /* row of `expert` for a layer, or -1 */
    bool kv_scales;                     /* the checkpoint ships k/v scales */
    size_t dense_bytes, expert_bytes;   /* payload */
    void *arena;                        /* dense weights, 64-byte aligned each */
    size_t arena_bytes;
    struct load *load;                  /* [loads], what model_load_dense() reads */
    size_t loads;
};

/* config.json, generation_config.json, every shard's header, every tensor's place.
 * Formats that are not read (NVFP4, FP8, GPTQ, AWQ, GGUF) are refused by name. */
int  model_open(struct model **out, const char *dir, struct log *l, struct err *e);
void model_close(struct model *m);

/* Read the dense weights into the arena, with `threads` readers.  progress (may be NULL)
 * is called with bytes done and total, now and then, from this thread. */
int  model_load_dense(struct model *m, int threads, void (*progress)(void *, size_t, size_t),
                      void *arg, struct err *e);

/* The dense weights are elsewhere now: their memory is given back. */
void model_drop_dense(struct model *m);

static inline const struct expert_source *model_expert(const struct model *m, int layer, int id)
{
    return &m->expert[(size_t)m->sparse_index[layer] * m->shape.experts + id];
}

#endif
