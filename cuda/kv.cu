/* Queries, keys and values of a batch: q and k normed and rotated, keys and values into the
 * cache.  One warp a head of a token; the row passes through shared memory, where rotation
 * finds its partner.  The arithmetic of storing is that of cpu/kv_store.c.  And the cache's
 * rows on their way to host memory and back. */
#include "cuda/gpu_internal.cuh"
#include "cuda/sizes.h"

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>

enum { PREPARE_WARPS = 4 };

struct prepare {
    const float *q, *k, *v;             /* [n][heads * dim], [n][kv_heads * dim] x 2 */
    const float *q_norm, *k_norm;       /* [dim] */
    const float2 *rope;                 /* [n][half] */
    uint16_t *q16;                      /* [n][heads * dim] */
    const int *pos;
    struct kv_layer cache;
    enum gpu_kv type;
    int n, heads, kv_heads, dim, half, pos0;
    float eps, k_scale, v_scale;
};

static __device__ float warp_sum(float v)
{
    for (int o = WARP / 2; o; o /= 2)
        v += __shfl_xor_sync(~0u, v, o);
    return v;
}

static __device__ float warp_max(float v)
{
    for (int o = WARP / 2; o; o /= 2)
        v = fmaxf(v, __shfl_xor_sync(~0u, v, o));
    return v;
}

/* row [dim] of this warp: normed by w, then rotated, in place. */
static __device__ void norm_and_rotate(float *row, const float *w, const float2 *rope,
                                       const struct prepare &p)
{
    int lane = threadIdx.x % WARP;
    float square = 0, scale;

    for (int i = lane; i < p.dim; i += WARP)
        square += row[i] * row[i];
    scale = 1 / sqrtf(warp_sum(square) / p.dim + p.eps);
    for (int i = lane; i < p.dim; i += WARP)
        row[i] = row[i] * scale * w[i];
    __syncwarp();
    for (int i = lane; i < p.half; i += WARP) {
        float a = row[i], b = row[i + p.half], c = rope[i].x, s = rope[i].y;

        row[i] = a * c - b * s;
        row[i + p.half] = b * c + a * s;
    }
    __syncwarp();
}

static __device__ void store_row(uint8_t *to, uint16_t *scale, const float *row, float mul,
                                 const struct prepare &p)
{
    int lane = threadIdx.x % WARP;
    float largest = 0, s = 1;

    if (p.type == GPU_KV_Q8) {
        for (int i = lane; i < p.dim; i += WARP)
            largest = fmaxf(largest, fabsf(row[i]));
        __half h = __float2half_rn(fminf(warp_max(largest) / 127, 65504));

        s = __half2float(h);
        if (lane == 0)
            *scale = __half_as_ushort(h);
    }
    for (int i = lane; i < p.dim; i += WARP)
        if (p.type == GPU_KV_Q8)
            ((int8_t *)to)[i] =
                (int8_t)lrintf(fmaxf(-127, fminf(127, s > 0 ? row[i] / s : 0)));
        else if (p.type == GPU_KV_FP8)
            to[i] = __nv_cvt_float_to_fp8(row[i] / mul, __NV_SATFINITE, __NV_E4M3);
        else
            ((bf16 *)to)[i] = __bfloat16_as_ushort(__float2bfloat16_rn(row[i]));
}

/* head counts the query heads, then the key heads, then the value heads. */
__global__ static void prepare_kernel(const struct prepare p)
{
    extern __shared__ float rows[];
    int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;
    int head = blockIdx.x * PREPARE_WARPS + warp, t = blockIdx.y;
    int kv = head - p.heads, value = kv >= p.kv_heads;
    float *row = rows + warp * p.dim;
    const float2 *rope = p.rope + (size_t)t * p.half;
    const float *from;
    size_t at;

    begin_in_order();
    if (kv >= 2 * p.kv_heads)
        return;
    kv -= value * p.kv_heads;
    if (head < p.heads)
        from = p.q + ((size_t)t * p.heads + head) * p.dim;
    else
        from = (value ? p.v : p.k) + ((size_t)t * p.kv_heads + kv) * p.dim;
    for (int i = lane; i < p.dim; i += WARP)
        row[i] = from[i];
    __syncwarp();
    if (head < p.heads) {
        norm_and_rotate(row, p.q_norm, rope, p);
        for (int i = lane; i < p.dim; i += WARP)
            p.q16[((size_t)t * p.heads + head) * p.dim + i] =
                __half_as_ushort(__float2half_rn(row[i]));
        return;
    }
    if (!value)
        norm_and_rotate(row, p.k_norm, rope, p);
    at = (size_t)kv * p.cache.rows + ((p.pos ? *p.pos : p.pos0) + t) % p.cache.rows;
    store_row((value ? p.cache.v : p.cache.k) + at * p.dim * (p.type == GPU_KV_BF16 ? 2 : 1),
              (value ? p.cache.v_scale : p.cache.k_scale) + at, row,
              value ? p.v_scale : p.k_scale, p);
}

void queue_prepare(struct gpu *g, int layer, int n, const int *pos, int pos0)
{
    const struct shape *s = &g->shape;
    const struct layer_shape *l = &s->layer[layer];
    const struct layer_weights *w = &g->layer[layer];
    struct prepare p = {
        .q = g->s.q, .k = g->s.k, .v = g->s.v, .q_norm = w->q_norm, .k_norm = w->k_norm,
        .rope = g->s.rope[l->full], .q16 = g->s.q16, .pos = pos, .cache = g->kv[layer],
        .type = g->c.kv, .n = n, .heads = l->heads, .kv_heads = s->kv_heads, .dim = s->head_dim,
        .half = (l->full ? s->rope_full.dims : s->rope_window.dims) / 2, .pos0 = pos0,
        .eps = s->norm_eps, .k_scale = w->k_scale, .v_scale = w->v_scale,
    };
    int heads = l->heads + 2 * s->kv_heads;

    launch_early(g, prepare_kernel, dim3(ceil_div(heads, PREPARE_WARPS), n), PREPARE_WARPS * WARP,
                 PREPARE_WARPS * s->head_dim * sizeof(float), p);
}

/* The rows of all heads, `each` bytes a row, from the cache to host memory or the other way. */
static void queue_rows(struct gpu *g, void *to, const void *from, size_t each,
                       const struct range *r, enum cudaMemcpyKind way)
{
    size_t pitch = r->rows * each, at = r->from * each;

    TRY(g, cudaMemcpy2DAsync((uint8_t *)to + at, pitch, (const uint8_t *)from + at, pitch,
                             r->n * each, g->shape.kv_heads, way, g->stream));
}

int gpu_read_rows(struct gpu *g, int layer, int from, int n, const struct gpu_rows *to,
                  struct err *e)
{
    const struct kv_layer *l = &g->kv[layer];
    struct range r = { to->rows, from, n };
    int rc = gpu_check_range(layer, l->rows, &r, e);

    if (rc || !n)
        return rc;
    queue_rows(g, to->k, l->k, kv_row_bytes(g), &r, cudaMemcpyDeviceToHost);
    queue_rows(g, to->v, l->v, kv_row_bytes(g), &r, cudaMemcpyDeviceToHost);
    if (l->k_scale) {
        queue_rows(g, to->k_scale, l->k_scale, sizeof(uint16_t), &r, cudaMemcpyDeviceToHost);
        queue_rows(g, to->v_scale, l->v_scale, sizeof(uint16_t), &r, cudaMemcpyDeviceToHost);
    }
    return gpu_check(g, e);
}

int gpu_write_rows(struct gpu *g, int layer, int from, int n, const struct gpu_rows *rows,
                   struct err *e)
{
    const struct kv_layer *l = &g->kv[layer];
    struct range r = { rows->rows, from, n };
    int rc = gpu_check_range(layer, l->rows, &r, e);

    if (rc || !n)
        return rc;
    queue_rows(g, l->k, rows->k, kv_row_bytes(g), &r, cudaMemcpyHostToDevice);
    queue_rows(g, l->v, rows->v, kv_row_bytes(g), &r, cudaMemcpyHostToDevice);
    if (l->k_scale) {
        queue_rows(g, l->k_scale, rows->k_scale, sizeof(uint16_t), &r, cudaMemcpyHostToDevice);
        queue_rows(g, l->v_scale, rows->v_scale, sizeof(uint16_t), &r, cudaMemcpyHostToDevice);
    }
    return gpu_check(g, e);
}
