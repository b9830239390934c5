/* Opening a GPU: its memory, laid out once, and how faults are kept.  What is in VRAM is one
 * arena; what the CPU and a step share is one mapped block. */
#include "cuda/gpu_internal.cuh"
#include "cuda/sizes.h"

#include <errno.h>
#include <stdlib.h>

enum { LEAST_PAIRS = 16384, WORKSPACE = 32 << 20, HEAD_BLOCKS = 64 };

/* The arena is laid out twice by the same code: once to count, once for real. */
struct layout {
    uint8_t *base;
    size_t used;
};

static void *take(struct layout *l, size_t n, size_t each)
{
    void *p = l->base ? l->base + l->used : NULL;

    l->used = add_sat(l->used, mul_sat(n, each));
    if (l->used <= SIZE_MAX - GPU_PART_ALIGN)
        l->used = align_up(l->used, GPU_PART_ALIGN);
    return p;
}

static size_t larger(size_t a, size_t b)
{
    return a > b ? a : b;
}

static void lay_out_attention(struct gpu *g, struct layout *l)
{
    const struct shape *s = &g->shape;
    size_t n = g->c.batch, heads = (size_t)s->max_heads * s->head_dim;
    size_t kv = (size_t)s->kv_heads * s->head_dim;

    g->s.q = (float *)take(l, n * heads, sizeof(float));
    g->s.k = (float *)take(l, n * kv, sizeof(float));
    g->s.v = (float *)take(l, n * kv, sizeof(float));
    g->s.g = (float *)take(l, n * heads, sizeof(float));
    g->s.q16 = (uint16_t *)take(l, n * heads, sizeof(uint16_t));
    g->s.o = (bf16 *)take(l, n * heads, sizeof(bf16));
}

static void lay_out_ffn(struct gpu *g, struct layout *l)
{
    const struct shape *s = &g->shape;
    size_t n = g->c.batch, pairs = g->pairs;
    size_t dense = n * larger(s->shared_inner, s->dense_inner);
    size_t inner = pairs * grouped_stride(s->expert_inner) + n * s->shared_inner;

    g->s.gate = (float *)take(l, dense, sizeof(float));
    g->s.up = (float *)take(l, dense, sizeof(float));
    g->s.inner = (bf16 *)take(l, larger(inner, dense), sizeof(bf16));
    g->s.ordered = (bf16 *)take(l, n * grouped_stride(s->hidden), sizeof(bf16));
    g->s.pair_out = (float *)take(l, pairs * s->hidden, sizeof(float));
}

/* Attention and FFN never live at the same time: their buffers overlap. */
static void lay_out_scratch(struct gpu *g, struct layout *l)
{
    const struct shape *s = &g->shape;
    size_t n = g->c.batch, hidden = s->hidden, steps = GPU_STEP_TOKENS;
    size_t widest = larger((size_t)s->max_heads * s->head_dim, s->dense_inner);
    struct layout ffn;

    g->s.x = (float *)take(l, n * hidden, sizeof(float));
    g->s.h32 = (float *)take(l, n * hidden, sizeof(float));
    g->s.h = (bf16 *)take(l, n * hidden, sizeof(bf16));
    g->s.delta = (float *)take(l, n * hidden, sizeof(float));
    g->s.shared = (float *)take(l, n * hidden, sizeof(float));
    g->s.routed = (float *)take(l, n * hidden, sizeof(float));
    for (int full = 0; full < 2; full++)
        g->s.rope[full] = (float2 *)take(l, n * s->head_dim / 2, sizeof(float2));
    g->s.partial = (float *)take(l, larger(attend_partial_floats(g), steps * HEAD_BLOCKS * 2),
                                 sizeof(float));
    g->s.ticket = (unsigned *)take(l, ATTEND_TICKETS + ROUTER_TICKETS + HEAD_TICKETS,
                                   sizeof(unsigned));
    g->s.router = (float *)take(l, n * s->experts, sizeof(float));
    g->s.route_id = (uint16_t *)take(l, n * s->topk, sizeof(uint16_t));
    g->s.route_weight = (float *)take(l, n * s->topk, sizeof(float));
    g->s.lists = (uint8_t *)take(l, wave_bytes(g), 1);
    g->s.pair = (struct pair *)take(l, steps * s->topk, sizeof(struct pair));
    g->s.late = (struct pair *)take(l, steps * s->topk, sizeof(struct pair));
    g->s.step_id = (uint16_t *)take(l, s->layers * steps * s->topk, sizeof(uint16_t));
    g->s.step_weight = (float *)take(l, s->layers * steps * s->topk, sizeof(float));
    g->s.logits = (float *)take(l, steps * s->vocab, sizeof(float));
    g->s.dense_elements = widest * hidden;
    g->s.dense = (bf16 *)take(l, g->s.dense_elements, sizeof(bf16));
    g->s.workspace = take(l, WORKSPACE, 1);
    g->s.tokens = (int *)take(l, n, sizeof(int));
    ffn = *l;
    lay_out_attention(g, l);
    lay_out_ffn(g, &ffn);
    l->used = larger(l->used, ffn.used);
}

static void lay_out_cache(struct gpu *g, struct layout *l)
{
    const struct shape *s = &g->shape;
    size_t bytes = kv_row_bytes(g);
    int ring = s->window + g->c.batch;

    for (int i = 0; i < s->layers; i++) {
        struct kv_layer *k = &g->kv[i];

        k->rows = s->layer[i].full || ring > g->c.context ? g->c.context : ring;
        size_t rows = mul_sat(s->kv_heads, k->rows);

        k->k = (uint8_t *)take(l, rows, bytes);
        k->v = (uint8_t *)take(l, rows, bytes);
        k->k_scale = k->v_scale = NULL;
        if (g->c.kv == GPU_KV_Q8) {
            k->k_scale = (uint16_t *)take(l, rows, sizeof(uint16_t));
            k->v_scale = (uint16_t *)take(l, rows, sizeof(uint16_t));
        }
    }
}

static void lay_out(struct gpu *g, struct layout *l)
{
    size_t seats = (size_t)g->shape.layers * g->shape.experts;

    lay_out_scratch(g, l);
    g->seat = (int *)take(l, seats, sizeof(int));
    g->ffn_seat = (struct ffn *)take(l, seats, sizeof(struct ffn));
    g->args = (struct step_args *)take(l, 1, sizeof(struct step_args));
    g->epoch = (uint32_t *)take(l, 2, sizeof(uint32_t));
    for (int full = 0; full < 2; full++)
        g->rope[full] = (struct rope *)take(l, 1, sizeof(struct rope));
    lay_out_cache(g, l);
    g->slots = (uint8_t *)take(l, g->c.slots, align_up(g->c.slot_bytes, GPU_PART_ALIGN));
    g->dense_at = l->used;
    take(l, g->c.dense_bytes, 1);
    g->dense_end = l->used;
}

static void configure(struct gpu *g, const struct gpu_config *c)
{
    size_t most = mul_sat(c->batch, c->shape->topk);
    size_t least = larger(c->batch, LEAST_PAIRS);

    g->c = *c;
    g->shape = *c->shape;
    g->pairs = (int)(most < least ? most : least);
    if (!g->pairs)
        g->pairs = 1;
    g->sms = MAX_SMS;
}

size_t gpu_bytes(const struct gpu_config *c)
{
    struct gpu *g = (struct gpu *)calloc(1, sizeof(*g));
    struct layout l = { NULL, 0 };

    if (!g)
        return SIZE_MAX;
    configure(g, c);
    lay_out(g, &l);
    free(g);
    return l.used;
}

void gpu_fault(struct gpu *g, cudaError_t rc, const char *call, int line)
{
    g->fault = rc;
    g->fault_call = call;
    g->fault_line = line;
    g->fault_step = g->steps;
}

int gpu_check(struct gpu *g, struct err *e)
{
    if (g->fault == cudaSuccess)
        return 0;
    return fail(e, -EREMOTEIO, "GPU %d: %s (%d) in %.60s, step %u, line %d", g->c.device,
                cudaGetErrorString(g->fault), (int)g->fault, g->fault_call, g->fault_step,
                g->fault_line);
}

int gpu_wait(struct gpu *g, struct err *e)
{
    TRY(g, cudaStreamSynchronize(g->stream));
    TRY(g, cudaStreamSynchronize(g->copy));
    return gpu_check(g, e);
}

uint8_t *gpu_staging(struct gpu *g)
{
    TRY(g, cudaEventSynchronize(g->staged));
    return g->staging;
}

static int check_device(struct gpu *g, struct err *e)
{
    cudaDeviceProp p;
    const struct shape *s = &g->shape;
    int n = 0;

    if (cudaGetDeviceCount(&n) != cudaSuccess || g->c.device < 0 || g->c.device >= n)
        return fail(e, -ENODEV, "no CUDA device %d (this machine shows %d)", g->c.device, n);
    TRY(g, cudaSetDevice(g->c.device));
    TRY(g, cudaGetDeviceProperties(&p, g->c.device));
    if (g->fault != cudaSuccess)
        return fail(e, -ENODEV, "GPU %d: %s", g->c.device, cudaGetErrorString(g->fault));
    if (p.major < 8)
        return fail(e, -ENODEV, "GPU %d, %s: compute capability %d.%d, 8.0 is needed",
                    g->c.device, p.name, p.major, p.minor);
    if (s->head_dim != 64 && s->head_dim != 128)
        return fail(e, -ENOTSUP, "head_dim %d: the GPU kernels know 64 and 128", s->head_dim);
    if (s->hidden > MAX_HIDDEN)
        return fail(e, -ENOTSUP, "hidden_size %d: the GPU kernels know up to %d", s->hidden,
                    (int)MAX_HIDDEN);
    g->sms = p.multiProcessorCount < MAX_SMS ? p.multiProcessorCount : MAX_SMS;
    g->early = kernels_begin_early();
    return 0;
}

static int take_arena(struct gpu *g, struct err *e)
{
    struct layout l = { NULL, 0 };
    size_t free_bytes = 0, total = 0;
    int sms = g->sms;

    g->sms = MAX_SMS;
    lay_out(g, &l);
    TRY(g, cudaMemGetInfo(&free_bytes, &total));
    if (l.used > free_bytes || cudaMalloc((void **)&g->arena, l.used) != cudaSuccess) {
        cudaGetLastError();
        return fail(e, -ENOMEM, "GPU %d: %zu MB are needed, %zu of %zu MB are free", g->c.device,
                    l.used >> 20, free_bytes >> 20, total >> 20);
    }
    g->arena_bytes = l.used;
    l.base = g->arena;
    l.used = 0;
    lay_out(g, &l);
    g->sms = sms;
    return 0;
}

static size_t staging_bytes(const struct gpu *g)
{
    return larger(gpu_staging_bytes(&g->c), wave_bytes(g));
}

/* The mapped block, host addresses; the device's are at the same offsets. */
static void lay_out_mapped(struct gpu *g, struct layout *l)
{
    const struct shape *s = &g->shape;
    size_t steps = GPU_STEP_TOKENS, pairs = steps * s->topk, layers = s->layers;

    g->box = (struct mailbox *)take(l, 1, sizeof(*g->box));
    g->change = (struct seating *)take(l, CHANGES, sizeof(*g->change));
    g->share_id = (uint16_t *)take(l, pairs, sizeof(uint16_t));
    g->share_token = (uint16_t *)take(l, pairs, sizeof(uint16_t));
    g->share_weight = (float *)take(l, pairs, sizeof(float));
    g->share_h = (float *)take(l, steps * s->hidden, sizeof(float));
    g->share_partial = (float *)take(l, steps * s->hidden, sizeof(float));
    g->step_id = (uint16_t *)take(l, layers * pairs, sizeof(uint16_t));
    g->step_weight = (float *)take(l, layers * pairs, sizeof(float));
    g->args_host = (struct step_args *)take(l, 1, sizeof(*g->args_host));
    g->offers = (struct offers *)take(l, 1, sizeof(*g->offers));
    g->route_id = (uint16_t *)take(l, (size_t)g->c.batch * s->topk, sizeof(uint16_t));
    g->route_weight = (float *)take(l, (size_t)g->c.batch * s->topk, sizeof(float));
}

size_t gpu_host_bytes(const struct gpu_config *c)
{
    struct gpu *g = (struct gpu *)calloc(1, sizeof(*g));
    struct layout l = { NULL, 0 };

    if (!g)
        return SIZE_MAX;
    configure(g, c);
    lay_out_mapped(g, &l);
    l.used = add_sat(l.used, staging_bytes(g));
    free(g);
    return l.used;
}

template <typename T> static T *device_of(const struct gpu *g, uint8_t *device, T *host)
{
    return (T *)(device + ((uint8_t *)host - g->mapped));
}

static void take_mapped(struct gpu *g)
{
    struct layout l = { NULL, 0 };
    uint8_t *d = NULL;

    lay_out_mapped(g, &l);
    TRY(g, cudaHostAlloc((void **)&g->mapped, l.used, cudaHostAllocMapped));
    TRY(g, cudaHostAlloc((void **)&g->staging, staging_bytes(g), cudaHostAllocMapped));
    if (g->fault != cudaSuccess)
        return;
    memset(g->mapped, 0, l.used);
    l.base = g->mapped;
    l.used = 0;
    lay_out_mapped(g, &l);
    TRY(g, cudaHostGetDevicePointer((void **)&d, g->mapped, 0));
    g->box_dev = device_of(g, d, g->box);
    g->change_dev = device_of(g, d, g->change);
    g->share_id_dev = device_of(g, d, g->share_id);
    g->share_token_dev = device_of(g, d, g->share_token);
    g->share_weight_dev = device_of(g, d, g->share_weight);
    g->share_h_dev = device_of(g, d, g->share_h);
    g->share_partial_dev = device_of(g, d, g->share_partial);
    g->offers_dev = device_of(g, d, g->offers);
    g->step_id_dev = device_of(g, d, g->step_id);
    g->step_weight_dev = device_of(g, d, g->step_weight);
}

static void take_streams(struct gpu *g)
{
    TRY(g, cudaStreamCreateWithFlags(&g->stream, cudaStreamNonBlocking));
    TRY(g, cudaStreamCreateWithFlags(&g->copy, cudaStreamNonBlocking));
    TRY(g, cudaStreamCreateWithFlags(&g->beside, cudaStreamNonBlocking));
    TRY(g, cudaEventCreateWithFlags(&g->table_used, cudaEventDisableTiming));
    TRY(g, cudaEventCreateWithFlags(&g->staged, cudaEventDisableTiming));
    TRY(g, cudaEventCreateWithFlags(&g->fork, cudaEventDisableTiming));
    TRY(g, cudaEventCreateWithFlags(&g->join, cudaEventDisableTiming));
    TRY(g, cudaEventCreate(&g->begin));
    TRY(g, cudaEventCreate(&g->end));
    for (int i = 0; i < g->c.slots; i++)
        TRY(g, cudaEventCreateWithFlags(&g->slot_done[i], cudaEventDisableTiming));
}

/* Nothing is read before it was written, but for tickets, epochs and seats.  The cache too is
 * cleared: values of rows beyond the keys are loaded, though not used. */
static void clear(struct gpu *g)
{
    size_t seats = (size_t)g->shape.layers * g->shape.experts;

    TRY(g, cudaMemsetAsync(g->arena, 0, g->dense_at, g->stream));
    TRY(g, cudaMemsetAsync(g->seat, 0xff, seats * sizeof(*g->seat), g->stream));
    TRY(g, cudaMemcpyAsync(g->rope[0], &g->shape.rope_window, sizeof(struct rope),
                           cudaMemcpyHostToDevice, g->stream));
    TRY(g, cudaMemcpyAsync(g->rope[1], &g->shape.rope_full, sizeof(struct rope),
                           cudaMemcpyHostToDevice, g->stream));
    TRY(g, cudaStreamSynchronize(g->stream));
}

static int take_tables(struct gpu *g, struct err *e)
{
    size_t seats = (size_t)g->shape.layers * g->shape.experts;

    g->seat_host = (int *)malloc((seats + 1) * sizeof(int));
    g->slot_ffn = (struct ffn *)calloc(g->c.slots + 1, sizeof(struct ffn));
    g->slot_done = (cudaEvent_t *)calloc(g->c.slots + 1, sizeof(cudaEvent_t));
    g->slot_waited = (bool *)calloc(g->c.slots + 1, sizeof(bool));
    if (!g->seat_host || !g->slot_ffn || !g->slot_done || !g->slot_waited)
        return fail(e, -ENOMEM, "out of memory");
    memset(g->seat_host, 0xff, seats * sizeof(int));
    return 0;
}

/* One small product, so that the library has loaded its code before the program is ready. */
static void open_blas(struct gpu *g)
{
    struct blas_product p = { 32, 32, 1, g->s.dense, g->s.h, 32, 32, g->s.x };

    g->blas = blas_open(g->stream, g->s.workspace, WORKSPACE);
    if (g->blas && (blas_mul(g->blas, &p) || cudaStreamSynchronize(g->stream) != cudaSuccess)) {
        cudaGetLastError();
        blas_close(g->blas);
        g->blas = NULL;
    }
}

int gpu_open(struct gpu **out, const struct gpu_config *c, struct err *e)
{
    struct gpu *g = (struct gpu *)calloc(1, sizeof(*g));
    int rc;

    if (!g)
        return fail(e, -ENOMEM, "out of memory");
    configure(g, c);
    rc = check_device(g, e);
    if (!rc)
        rc = take_tables(g, e);
    if (!rc)
        rc = take_arena(g, e);
    if (!rc) {
        take_mapped(g);
        take_streams(g);
        clear(g);
        rc = gpu_check(g, e);
    }
    if (rc) {
        gpu_close(g);
        return rc;
    }
    if (!c->own_products)
        open_blas(g);
    *out = g;
    return 0;
}

const char *gpu_slow_products(const struct gpu *g)
{
    return g->blas ? NULL : "libcublas";
}

void gpu_close(struct gpu *g)
{
    if (!g)
        return;
    if (g->stream)
        cudaStreamSynchronize(g->stream);
    if (g->copy)
        cudaStreamSynchronize(g->copy);
    blas_close(g->blas);
    for (int i = 0; i <= GPU_STEP_TOKENS; i++)
        for (cudaGraphExec_t graph : { g->graph[0][i], g->graph[1][i] })
            if (graph)
                cudaGraphExecDestroy(graph);
    for (int i = 0; g->slot_done && i < g->c.slots; i++)
        if (g->slot_done[i])
            cudaEventDestroy(g->slot_done[i]);
    cudaEvent_t events[] = { g->table_used, g->staged, g->begin, g->end, g->fork, g->join };
    for (cudaEvent_t ev : events)
        if (ev)
            cudaEventDestroy(ev);
    if (g->stream)
        cudaStreamDestroy(g->stream);
    if (g->copy)
        cudaStreamDestroy(g->copy);
    if (g->beside)
        cudaStreamDestroy(g->beside);
    cudaFree(g->arena);
    cudaFreeHost(g->mapped);
    cudaFreeHost(g->staging);
    free(g->seat_host);
    free(g->slot_ffn);
    free(g->slot_done);
    free(g->slot_waited);
    free(g);
}
