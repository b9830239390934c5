/* Where the keys and values of a session lie in RAM. */
#include "cpu/kv.h"

#include <errno.h>
#include <sys/mman.h>

enum { KV_ALIGN = 64 };

static int layer_rows(const struct shape *s, int layer, int context, int batch)
{
    int ring = kv_ring_rows(s, batch);

    return s->layer[layer].full || ring > context ? context : ring;
}

/* Bytes of a layer's keys (the values take as many), and of their scales. */
static size_t rows_bytes(const struct shape *s, enum kv_type type, int rows)
{
    size_t n = mul_sat((size_t)s->kv_heads * kv_row_bytes(type, s->head_dim), (size_t)rows);

    return align_up(n, KV_ALIGN);
}

static size_t scale_bytes(const struct shape *s, enum kv_type type, int rows)
{
    size_t n = type == KV_Q8 ? (size_t)s->kv_heads * (size_t)rows * sizeof(uint16_t) : 0;

    return align_up(n, KV_ALIGN);
}

size_t kv_bytes(const struct shape *s, enum kv_type type, int context, int batch)
{
    size_t n = 0;

    for (int i = 0; i < s->layers; i++) {
        int rows = layer_rows(s, i, context, batch);

        n = add_sat(n, 2 * (rows_bytes(s, type, rows) + scale_bytes(s, type, rows)));
    }
    return n;
}

static void *take(uint8_t **at, size_t n)
{
    void *p = n ? *at : NULL;

    *at += n;
    return p;
}

int kv_open(struct kv *kv, const struct shape *s, enum kv_type type, int context, int batch,
            struct err *e)
{
    size_t n = kv_bytes(s, type, context, batch);
    uint8_t *at;

    memset(kv, 0, sizeof(*kv));
    at = mmap(NULL, n, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (at == MAP_FAILED)
        return fail(e, -ENOMEM, "no memory for %zu MB of KV cache (%d tokens): choose a smaller -c",
                    n >> 20, context);
    madvise(at, n, MADV_DONTDUMP);
    kv->memory = at;
    kv->bytes = n;
    kv->type = type;
    kv->row_bytes = kv_row_bytes(type, s->head_dim);
    for (int i = 0; i < s->layers; i++) {
        struct kv_layer *l = &kv->layer[i];

        l->rows = layer_rows(s, i, context, batch);
        l->k = take(&at, rows_bytes(s, type, l->rows));
        l->v = take(&at, rows_bytes(s, type, l->rows));
        l->k_scale = take(&at, scale_bytes(s, type, l->rows));
        l->v_scale = take(&at, scale_bytes(s, type, l->rows));
    }
    return 0;
}

void kv_close(struct kv *kv)
{
    if (kv->memory)
        munmap(kv->memory, kv->bytes);
    memset(kv, 0, sizeof(*kv));
}

/* Keys or values of one row, and its scale where the type has one. */
static size_t snapshot_row(enum kv_type type, int dim)
{
    return kv_row_bytes(type, dim) + (type == KV_Q8 ? sizeof(uint16_t) : 0);
}

size_t kv_snapshot_bytes(const struct shape *s, enum kv_type type)
{
    size_t layers = 0;

    for (int i = 0; i < s->layers; i++)
        layers += !s->layer[i].full;
    return mul_sat(mul_sat(layers * 2 * (size_t)s->kv_heads, snapshot_row(type, s->head_dim)),
                   (size_t)s->window);
}

/* One row between the cache and the snapshot at *at. */
static void copy_row(const struct kv *kv, uint8_t *row, uint16_t *scale, uint8_t **at, bool save)
{
    memcpy(save ? *at : row, save ? row : *at, kv->row_bytes);
    *at += kv->row_bytes;
    if (!scale)
        return;
    memcpy(save ? (void *)*at : scale, save ? (void *)scale : *at, sizeof(*scale));
    *at += sizeof(*scale);
}

/* The window before pos, layer by layer, head by head, position by position. */
static void copy_windows(const struct kv *kv, const struct shape *s, int pos, uint8_t *at,
                         bool save)
{
    int first = pos > s->window ? pos - s->window : 0;

    for (int i = 0; i < s->layers; i++) {
        const struct kv_layer *l = &kv->layer[i];

        for (int h = 0; h < s->kv_heads && !s->layer[i].full; h++)
            for (int p = first; p < pos; p++) {
                size_t r = (size_t)h * (size_t)l->rows + (size_t)(p % l->rows);

                copy_row(kv, l->k + r * kv->row_bytes, l->k_scale ? l->k_scale + r : NULL, &at,
                         save);
                copy_row(kv, l->v + r * kv->row_bytes, l->v_scale ? l->v_scale + r : NULL, &at,
                         save);
            }
    }
}

void kv_snapshot_save(const struct kv *kv, const struct shape *s, int pos, uint8_t *out)
{
    copy_windows(kv, s, pos, out, true);
}

void kv_snapshot_restore(struct kv *kv, const struct shape *s, int pos, const uint8_t *in)
{
    copy_windows(kv, s, pos, (uint8_t *)in, false);
}

enum kv_type kv_type_named(const char *name)
{
    static const char *const names[KV_TYPES] = { "q8", "fp8", "bf16", "f32" };
    int i = 0;

    while (i < KV_TYPES && strcmp(name, names[i]))
        i++;
    return (enum kv_type)i;
}
