#ifndef LAGUNA_KV_H
#define LAGUNA_KV_H

#include "cpu/kernels.h"
#include "src/shape.h"

/* The keys and values of one session in RAM.  Full layers keep every position; window
 * layers are rings.  One head's rows lie together: [kv_heads][rows][head_dim]. */
struct kv_layer {
    uint8_t *k, *v;                     /* [kv_heads][rows] rows of row_bytes */
    uint16_t *k_scale, *v_scale;        /* KV_Q8: [kv_heads][rows] float16, else NULL */
    int rows;                           /* position p lies in row p % rows */
};

struct kv {
    enum kv_type type;
    size_t row_bytes;
    struct kv_layer layer[MAX_LAYERS];
    void *memory;                       /* touched only as positions are written */
    size_t bytes;
};

/* Rows a window layer's ring needs so that `batch` tokens can be written before the
 * first of them looks back. */
static inline int kv_ring_rows(const struct shape *s, int batch)
{
    return s->window + batch;
}

/* Bytes that kv_open() reserves. */
size_t kv_bytes(const struct shape *s, enum kv_type type, int context, int batch);

/* context: positions of a full layer; batch: most tokens of one call.  -ENOMEM. */
int  kv_open(struct kv *kv, const struct shape *s, enum kv_type type, int context, int batch,
             struct err *e);
void kv_close(struct kv *kv);

/* A snapshot: what the window layers' rings hold for a token at position pos, so that a
 * timeline can go back there after the rings have gone on.  Full layers need none. */
size_t kv_snapshot_bytes(const struct shape *s, enum kv_type type);
void   kv_snapshot_save(const struct kv *kv, const struct shape *s, int pos, uint8_t *out);
void   kv_snapshot_restore(struct kv *kv, const struct shape *s, int pos, const uint8_t *in);

/* KV type by its name on the command line, or KV_TYPES. */
enum kv_type kv_type_named(const char *name);

#endif
