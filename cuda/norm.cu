/* Embedding, rotary tables, and the kernel between the stages of a layer: it adds what the last
 * stage made to the residual stream, waits for the CPU's share where there is one, and norms.
 * All in float32. */
#include "cuda/gpu_internal.cuh"

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

static __device__ long long clock_ns(void)
{
    long long t;

    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(t));
    return t;
}

/* One thread waits until the CPU has answered.  False where it never will: the watchdog then
 * marks the step dead, so that no later layer waits again. */
static __device__ bool wait_for_cpu(const struct addition &a)
{
    uint32_t want = *a.awaited, got;
    long long start = clock_ns();
    volatile uint32_t *dead = &a.args->dead;

    if (!want)
        return false;
    while (!*dead) {
        asm volatile("ld.acquire.sys.global.u32 %0, [%1];" : "=r"(got) : "l"(&a.box->reply)
                     : "memory");
        if ((int)(got - want) >= 0)
            return true;
        if (a.limit_ns && clock_ns() - start > a.limit_ns) {
            *dead = 1;
            *(volatile uint32_t *)&a.box->watchdog = 1;
        }
    }
    return false;
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

/* What element i of token t gains.  The experts of a step are summed in ascending id, then
 * the CPU's share. */
static __device__ float gain(const struct addition &a, size_t t, size_t at, int i, int hidden,
                             bool cpu)
{
    float sum = 0, routed = 0;

    if (a.delta)
        sum += a.delta[at];
    if (a.pair) {
        for (int k = 0; k < a.topk; k++) {
            const struct pair *p = &a.pair[t * a.topk + k];

            if (p->slot >= 0)
                routed += p->weight * a.pair_out[(t * a.topk + k) * hidden + i];
        }
        if (cpu)
            routed += __ldcv(a.partial + at);
    }
    if (a.routed)
        routed += a.routed[at];
    sum += routed * a.scale;
    return a.shared ? sum + a.shared[at] : sum;
}

struct normed {
    float *x, *h32;                     /* [n][hidden] */
    bf16 *h;
    const float *w;                     /* [hidden], or NULL: add only */
    int hidden;
    float eps;
};

__global__ static void __launch_bounds__(NORM_THREADS)
    norm_kernel(const struct normed n, const struct addition a)
{
    __shared__ bool cpu;
    size_t t = blockIdx.x, row = t * n.hidden;
    float square = 0, scale;

    if (a.awaited) {
        if (threadIdx.x == 0)
            cpu = wait_for_cpu(a);
        __syncthreads();
    }
    for (int i = threadIdx.x; i < n.hidden; i += blockDim.x) {
        float v = n.x[row + i] + gain(a, t, row + i, i, n.hidden, a.awaited && cpu);

        n.x[row + i] = v;
        square += v * v;
    }
    if (!n.w)
        return;
    scale = 1 / sqrtf(block_sum(square) / n.hidden + n.eps);
    for (int i = threadIdx.x; i < n.hidden; i += blockDim.x) {
        float v = n.x[row + i] * scale * n.w[i];

        n.h32[row + i] = v;
        n.h[row + i] = __bfloat16_as_ushort(__float2bfloat16_rn(v));
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

    norm_kernel<<<n, NORM_THREADS, 0, g->stream>>>(to, add ? *add : none);
    LAUNCHED(g);
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
