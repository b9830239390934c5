/* Embedding, rotary tables, and the kernel between the stages of a layer: it adds what the last
 * stage made to the residual stream, waits for the CPU's share where there is one, and norms.
 * All in float32. */
#include "cuda/gpu_internal.cuh"
#include "cuda/mailbox.cuh"

#include <cuda_bf16.h>

__global__ static void embed_kernel(float *x, const bf16 *embed, const int *token, int hidden)
{
    const bf16 *row = embed + (size_t)token[blockIdx.x] * hidden;

    for (int i = threadIdx.x; i < hidden; i += blockDim.x)
        x[(size_t)blockIdx.x * hidden + i] = __uint_as_float((uint32_t)row[i] << 16);
}

/* Angles are float32 products with full range reduction: positions reach 2^20. */
__global__ static void rope_kernel(float2 *table, const struct rope *r, const int *pos, int pos0)
{
    int half = r->dims / 2, at = (pos ? *pos : pos0) + blockIdx.x;

    for (int i = threadIdx.x; i < half; i += blockDim.x) {
        float angle = (float)at * r->inv_freq[i];

        table[(size_t)blockIdx.x * half + i] = make_float2(cosf(angle) * r->factor,
                                                           sinf(angle) * r->factor);
    }
}

/* The sum over a block, the same in every thread, always added in the same order. */
static __device__ float block_sum(float v)
{
    __shared__ float part[NORM_THREADS / WARP];
    float sum = 0;

    for (int o = WARP / 2; o; o /= 2)
        v += __shfl_xor_sync(~0u, v, o);
    if (threadIdx.x % WARP == 0)
        part[threadIdx.x / WARP] = v;
    __syncthreads();
    for (int i = 0; i < (int)blockDim.x / WARP; i++)
        sum += part[i];
    return sum;
}

static __device__ __forceinline__ void add(float4 &to, const float4 &v, float scale = 1)
{
    to.x += scale * v.x;
    to.y += scale * v.y;
    to.z += scale * v.z;
    to.w += scale * v.w;
}

static __device__ __forceinline__ float4 vector_at(const float *row, size_t i)
{
    return *((const float4 *)row + i);
}

/* The seated experts of token t, in ascending id: vector i of their weighted sum.  All loads
 * of a run are on their way before it is known which of them count. */
static __device__ float4 sum_pairs(const struct addition &a, size_t t, size_t i, int vectors)
{
    enum { RUN = 5 };
    float4 sum = make_float4(0, 0, 0, 0);

    for (int first = 0; first < a.topk; first += RUN) {
        float4 out[RUN];

#pragma unroll
        for (int k = 0; k < RUN; k++)
            if (first + k < a.topk)
                out[k] = vector_at(a.pair_out, (t * a.topk + first + k) * vectors + i);
#pragma unroll
        for (int k = 0; k < RUN; k++) {
            const struct pair *p = &a.pair[t * a.topk + first + k];

            if (first + k < a.topk &&
                (p->slot >= 0 || (a.late && a.late[t * a.topk + first + k].slot >= 0)))
                add(sum, out[k], p->weight);
        }
    }
    return sum;
}

struct normed {
    float *x, *h32;                     /* [n][hidden] */
    bf16 *h;
    const float *w;                     /* [hidden], or NULL: add only */
    int hidden;
    float eps;
};

/* What a thread has of a row, four floats each: the row, what it gains but for the routed
 * experts, those, and the norm's weights. */
struct vectors {
    float4 x, gain, routed, w;
};

static __device__ void load_vectors(struct vectors &v, const struct normed &n,
                                    const struct addition &a, size_t t, int i)
{
    const float4 zero = make_float4(0, 0, 0, 0);
    int vectors = n.hidden / 4;
    size_t at = t * vectors + i;

    v.x = vector_at(n.x, at);
    v.gain = a.delta ? vector_at(a.delta, at) : zero;
    if (a.shared)
        add(v.gain, vector_at(a.shared, at));
    v.routed = a.routed ? vector_at(a.routed, at) : zero;
    if (a.pair)
        add(v.routed, sum_pairs(a, t, i, vectors));
}

static __device__ void store_normed(const struct normed &n, size_t at, const struct vectors &v,
                                    float scale)
{
    float4 y = make_float4(v.x.x * scale * v.w.x, v.x.y * scale * v.w.y, v.x.z * scale * v.w.z,
                           v.x.w * scale * v.w.w);
    __nv_bfloat162 lo = __floats2bfloat162_rn(y.x, y.y), hi = __floats2bfloat162_rn(y.z, y.w);

    ((float4 *)n.h32)[at] = y;
    ((uint2 *)n.h)[at] = make_uint2(*(uint32_t *)&lo, *(uint32_t *)&hi);
}

/* A block a row, of which a thread keeps V vectors.  All that does not depend on the CPU is
 * loaded before the wait. */
template <int V>
__global__ static void __launch_bounds__(NORM_THREADS)
    norm_kernel(const struct normed n, const struct addition a)
{
    __shared__ bool cpu;
    struct vectors v[V];
    size_t row = (size_t)blockIdx.x * (n.hidden / 4);
    float square = 0, scale;

#pragma unroll
    for (int u = 0; u < V; u++) {
        int i = threadIdx.x + u * NORM_THREADS;

        if (n.w && i < n.hidden / 4)
            v[u].w = vector_at(n.w, i);
    }
    begin_in_order();
#pragma unroll
    for (int u = 0; u < V; u++) {
        int i = threadIdx.x + u * NORM_THREADS;

        if (i < n.hidden / 4)
            load_vectors(v[u], n, a, blockIdx.x, i);
    }
    if (a.awaited) {
        if (threadIdx.x == 0)
            cpu = *a.awaited && wait_for_host(&a.box->reply, *a.awaited, a.patience);
        __syncthreads();
    }
#pragma unroll
    for (int u = 0; u < V; u++) {
        int i = threadIdx.x + u * NORM_THREADS;

        if (i >= n.hidden / 4)
            continue;
        if (a.awaited && cpu)
            add(v[u].routed, __ldcv((const float4 *)a.partial + row + i));
        add(v[u].x, v[u].gain);
        add(v[u].x, v[u].routed, a.scale);
        ((float4 *)n.x)[row + i] = v[u].x;
        square += v[u].x.x * v[u].x.x + v[u].x.y * v[u].x.y + v[u].x.z * v[u].x.z +
                  v[u].x.w * v[u].x.w;
    }
    if (!n.w)
        return;
    scale = 1 / sqrtf(block_sum(square) / n.hidden + n.eps);
#pragma unroll
    for (int u = 0; u < V; u++) {
        int i = threadIdx.x + u * NORM_THREADS;

        if (i < n.hidden / 4)
            store_normed(n, row + i, v[u], scale);
    }
}

/* to = silu(gate) * up, in BF16: float16 overflows here on real weights. */
__global__ static void silu_kernel(bf16 *to, const float *gate, const float *up, size_t n)
{
    size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x;

    if (i < n)
        to[i] = __bfloat16_as_ushort(
            __float2bfloat16_rn(gate[i] / (1 + expf(-gate[i])) * up[i]));
}

__global__ static void round_kernel(bf16 *to, const float *from, size_t n)
{
    size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x;

    if (i < n)
        to[i] = __bfloat16_as_ushort(__float2bfloat16_rn(from[i]));
}

__global__ static void accumulate_kernel(float *to, const float *from, size_t n)
{
    size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x;

    if (i < n)
        to[i] += from[i];
}

/* The code that was loaded may be PTX of 8.0 compiled by the driver, whatever the device is. */
bool kernels_begin_early(void)
{
    cudaFuncAttributes a;

    return cudaFuncGetAttributes(&a, norm_kernel<1>) == cudaSuccess && a.ptxVersion >= 90;
}

void queue_embed(struct gpu *g, int n, const int *tokens, const int *pos, int pos0)
{
    embed_kernel<<<n, 256, 0, g->stream>>>(g->s.x, (const bf16 *)g->embed.weight, tokens,
                                           g->shape.hidden);
    for (int full = 0; full < 2; full++)
        rope_kernel<<<n, 64, 0, g->stream>>>(g->s.rope[full], g->rope[full], pos, pos0);
    LAUNCHED(g);
}

void queue_norm(struct gpu *g, int from, int n, const struct addition *add, const float *norm)
{
    float *x = g->s.x + (size_t)from * g->shape.hidden;
    struct normed to = { x, g->s.h32, g->s.h, norm, g->shape.hidden, g->shape.norm_eps };
    struct addition none = {};

    if (g->shape.hidden <= 4 * NORM_THREADS) {
        int threads = ceil_div(g->shape.hidden / 4, WARP) * WARP;

        launch_early(g, norm_kernel<1>, n, threads, 0, to, add ? *add : none);
    } else {
        launch_early(g, norm_kernel<NORM_VECTORS>, n, NORM_THREADS, 0, to, add ? *add : none);
    }
}

void queue_silu(struct gpu *g, size_t n)
{
    silu_kernel<<<(unsigned)((n + 255) / 256), 256, 0, g->stream>>>(g->s.inner, g->s.gate,
                                                                    g->s.up, n);
    LAUNCHED(g);
}

void queue_round(struct gpu *g, bf16 *to, const float *from, size_t n)
{
    round_kernel<<<(unsigned)((n + 255) / 256), 256, 0, g->stream>>>(to, from, n);
    LAUNCHED(g);
}

void queue_accumulate(struct gpu *g, float *to, const float *from, size_t n)
{
    accumulate_kernel<<<(unsigned)((n + 255) / 256), 256, 0, g->stream>>>(to, from, n);
    LAUNCHED(g);
}
