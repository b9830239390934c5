#ifndef LAGUNA_MKMODEL_H
#define LAGUNA_MKMODEL_H

#include "src/base.h"

#include <stdio.h>

/* A program of the tests that writes checkpoints of any Laguna shape with random weights:
 * mkmodel.c decides the shape, _config.c writes the text files, _layout.c says which
 * tensors there are and where, _write.c puts them there, _weights.c makes their bytes. */

enum {
    NEIGHBOURS = 64,                /* ids in a row whose embeddings have a part in common */
    GROUP = 32,                     /* columns that share a scale, in both 4-bit formats */
    EXPERTS_MAX = 1024,
};

enum format { BF16, W4A16, MXFP4, MIXED };

struct plan {
    const char *out;                /* directory to write into */
    const char *like;               /* directory of a checkpoint to copy the template from */
    enum format format;
    int layers, hidden, vocab, head_dim, heads_full, heads_window, kv_heads, window;
    int dense_inner, experts, topk, expert_inner, shared_inner;
    int rope_factor, rope_original; /* YaRN on full layers */
    int shards;
    uint64_t seed;
    /* Share of the picks that the popular quarter of a layer's experts takes, in the first
     * sparse layer and in the last; 0.25 is even. */
    double skew_first, skew_last;
    bool sparse;                    /* right headers and shapes, holes for weights */
};

static inline bool layer_is_full(int layer)
{
    return layer % 4 == 0;
}

static inline int layer_heads(const struct plan *p, int layer)
{
    return layer_is_full(layer) ? p->heads_full : p->heads_window;
}

/* How the bytes of a tensor come about. */
enum fill {
    FILL_TABLE16,                   /* table[random byte], 16 bits wide */
    FILL_TABLE8,                    /* the same, 8 bits wide */
    FILL_INT4,                      /* nibbles of value -7..7, stored + 8 */
    FILL_FP4,                       /* any nibbles */
    FILL_NEAR,                      /* a row of its own and the neighbourhood's, mixed */
    FILL_READY,                     /* from `ready` */
};

struct tensor {
    char name[88];
    const char *dtype;              /* as the header spells it */
    int order;                      /* of dtypes in a file, lowest first */
    int64_t dim[2];
    int dims;
    int shard;
    uint64_t offset, bytes;         /* in the shard, after its header */
    enum fill fill;
    uint64_t key;                   /* of its random numbers: from the seed and the name */
    uint64_t near_key;              /* FILL_NEAR: of the neighbourhoods' rows */
    float near;                     /* and their weight, 0 to 1 */
    const void *table;              /* [256]; owned by the layout */
    void *ready;                    /* [bytes], owned */
};

struct layout {
    struct tensor *tensor;          /* [n], by shard and then as in the file */
    size_t n, cap;
    void **table;                   /* [tables], owned */
    size_t tables;
    uint64_t total;
    bool failed;                    /* out of memory: sticky */
};

/* Which format a routed expert of the layer has, and everything else. */
enum format expert_format(const struct plan *p, int layer);
enum format dense_format(const struct plan *p);

/* config.json, generation_config.json, tokenizer.json and its config, chat_template.jinja. */
int config_write(const struct plan *p, struct err *e);
int tokenizer_write(const struct plan *p, struct err *e);

/* A file of the checkpoint, to be closed with file_close(), which tells of late errors. */
FILE *file_create(const struct plan *p, const char *name, struct err *e);
int file_close(FILE *f, const char *name, struct err *e);

int layout_make(struct layout *l, const struct plan *p, struct err *e);
void layout_free(struct layout *l);

/* Shards and index. */
int shards_write(const struct plan *p, const struct layout *l, struct err *e);

/* The bytes from..from+n of a tensor. */
void weights_fill(const struct tensor *t, uint64_t from, size_t n, uint8_t *to);

/* Number `i` of the stream `key`: any order, any thread. */
static inline uint64_t random_at(uint64_t key, uint64_t i)
{
    uint64_t z = key + (i + 1) * 0x9e3779b97f4a7c15;

    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9;
    z = (z ^ z >> 27) * 0x94d049bb133111eb;
    return z ^ z >> 31;
}

uint64_t random_key(uint64_t seed, const char *name);

/* Tables of 256 values: normal of the given deviation; around 1 for norms; BF16 scales of
 * int4 and E8M0 scales of FP4 that give the weights the deviation. */
void table_normal(bf16 table[256], double deviation);
void table_norm(bf16 table[256]);
void table_int4_scale(bf16 table[256], double deviation);
void table_fp4_scale(uint8_t table[256], double deviation);

/* Deviation of a router's logits. */
static const double ROUTER_DEVIATION = 1.5;

/* Router scores of many made-up tokens: [tokens][experts], the popular quarter's first, each
 * part in falling order.  The caller frees it; NULL where there is no memory. */
float *router_simulate(const struct plan *p);

/* e_score_correction_bias of a layer, [experts], such that the popular quarter takes the
 * layer's share of the picks. */
void router_bias(float *bias, const float *scores, const struct plan *p, int layer);

#endif
