/* cuda/gpu.h in plain C, on src/ref.h: what a build without CUDA links, so that all that is
 * above the header runs and is tested without a GPU.  The arithmetic is that of the kernels:
 * activations enter products as BF16, queries are float16, the cache is rounded as asked, and
 * everything else is float32.  Nothing here is fast, and every call is done when it returns.
 * This file opens and holds the weights; the stages are gpu_ref_stage.c, a decode step is
 * gpu_ref_step.c, slots and copies to host memory gpu_ref_copy.c. */
#include "cuda/gpu_ref.h"

#include <errno.h>
#include <stdlib.h>

bool gpu_is_reference(void)
{
    return true;
}

int gpu_list(struct gpu_facts out[MAX_GPUS], struct err *e)
{
    (void)out;
    (void)e;
    return 0;
}

int gpu_measure(int device, struct gpu_speeds *out, struct err *e)
{
    (void)out;
    return fail(e, -ENODEV, "no device %d: this program was built without CUDA", device);
}

int gpu_measure_beside(int device, struct gpu_beside *b, struct err *e)
{
    (void)b;
    return fail(e, -ENODEV, "no device %d: this program was built without CUDA", device);
}

int gpu_pin(void *p, size_t bytes, struct err *e)
{
    (void)p;
    (void)bytes;
    (void)e;
    return 0;
}

void gpu_unpin(void *p)
{
    (void)p;
}

size_t gpu_ref_row_bytes(const struct gpu_config *c)
{
    return (size_t)c->shape->head_dim * (c->kv == GPU_KV_BF16 ? 2 : 1);
}

static int kv_rows(const struct gpu_config *c, int layer)
{
    int ring = c->shape->window + c->batch;

    return c->shape->layer[layer].full || ring > c->context ? c->context : ring;
}

/* Memory that goes with g; where g only counts, nothing but the size of it. */
static void *own(struct gpu *g, size_t n)
{
    void **list, *p = NULL;

    g->bytes = add_sat(g->bytes, align_up(n, GPU_PART_ALIGN));
    if (g->counts)
        return NULL;
    list = realloc(g->owned, (g->owned_count + 1) * sizeof(*list));
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
        l->k = own(g, rows * gpu_ref_row_bytes(&g->c));
        l->v = own(g, rows * gpu_ref_row_bytes(&g->c));
        l->k_scale = own(g, rows * sizeof(uint16_t));
        l->v_scale = own(g, rows * sizeof(uint16_t));
    }
}

size_t gpu_bytes(const struct gpu_config *c)
{
    struct gpu *g = calloc(1, sizeof(*g));
    size_t n;

    if (!g)
        return SIZE_MAX;
    g->c = *c;
    g->shape = c->shape;
    g->counts = true;
    take_scratch(g);
    take_cache(g);
    n = add_sat(g->bytes, add_sat(c->dense_bytes, mul_sat((size_t)c->slots, c->slot_bytes)));
    free(g);
    return n;
}

size_t gpu_host_bytes(const struct gpu_config *c)
{
    return gpu_staging_bytes(c);
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

int gpu_ref_check(const struct gpu *g, struct err *e)
{
    return g->dead ? fail(e, -EREMOTEIO, "GPU %d: it fails because a test asked for it",
                          g->c.device) : 0;
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
    struct part_bytes b = gpu_part_bytes(m);

    *to = *m;
    to->weight = put(at, m->weight, b.weight);
    to->scale = put(at, m->scale, b.scale);
    to->zero = put(at, m->zero, b.zero);
}

void gpu_ref_put_ffn(uint8_t **at, struct ffn *to, const struct ffn *f)
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
    gpu_ref_put_ffn(&at, &d->ffn, &w->ffn);
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

int gpu_time(struct gpu *g, struct gpu_timing *t, struct err *e)
{
    (void)g;
    (void)t;
    return fail(e, -ENOTSUP, "this program was built without CUDA");
}
