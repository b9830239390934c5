/* The end of a batch: logits, the likeliest token of each row, and the choice of one by chance.
 * Ties go to the lower id. */
#include "cuda/gpu_internal.cuh"
#include "cuda/ticket.cuh"

#include <float.h>

enum { SCAN_BLOCKS = 64, SCAN_THREADS = 256 };

struct best {
    float value;
    int id;
};

static __device__ __forceinline__ struct best better(struct best a, struct best b)
{
    return b.value > a.value || (b.value == a.value && b.id < a.id) ? b : a;
}

static __device__ struct best block_best(struct best b)
{
    __shared__ struct best part[SCAN_THREADS / WARP];

    for (int o = WARP / 2; o; o /= 2)
        b = better(b, { __shfl_xor_sync(~0u, b.value, o), __shfl_xor_sync(~0u, b.id, o) });
    if (threadIdx.x % WARP == 0)
        part[threadIdx.x / WARP] = b;
    __syncthreads();
    for (int i = 0; i < (int)blockDim.x / WARP; i++)
        b = better(b, part[i]);
    return b;
}

struct scan {
    const float *logits;                /* [n][vocab] */
    struct best *part;                  /* [n][SCAN_BLOCKS] */
    unsigned *ticket;                   /* [n], then one of the step */
    struct mailbox *box;
    const struct step_args *args;       /* NULL: not a step */
    int vocab, n;
    const uint16_t *step_id;            /* [layers][GPU_STEP_TOKENS][topk] of the step */
    const float *step_weight;
    uint16_t *id;                       /* mapped: where the host reads them */
    float *weight;
    int layers, topk;
};

/* The routes of a step go to the host in one piece: written layer by layer, each kernel would
 * end with a wait for PCIe. */
static __device__ void send_routes(const struct scan &s)
{
    int row = s.n * s.topk;

    for (int i = threadIdx.x; i < s.layers * row; i += blockDim.x) {
        int at = i / row * GPU_STEP_TOKENS * s.topk + i % row;

        s.id[at] = s.step_id[at];
        s.weight[at] = s.step_weight[at];
    }
    __threadfence_system();
    __syncthreads();
}


/* Grid (SCAN_BLOCKS, n).  A logit that is not finite is noted, never chosen. */
__global__ static void __launch_bounds__(SCAN_THREADS) argmax_kernel(const struct scan s)
{
    const float *row = s.logits + (size_t)blockIdx.y * s.vocab;
    struct best *part = s.part + blockIdx.y * SCAN_BLOCKS;
    struct best b = { -INFINITY, 0x7fffffff };

    begin_in_order();
    for (int i = blockIdx.x * SCAN_THREADS + threadIdx.x; i < s.vocab;
         i += SCAN_BLOCKS * SCAN_THREADS) {
        if (isfinite(row[i]))
            b = better(b, { row[i], i });
        else
            *(volatile uint32_t *)&s.box->bad_logits = 1;
    }
    b = block_best(b);
    if (threadIdx.x == 0)
        part[blockIdx.x] = b;
    if (!last_block(s.ticket + blockIdx.y, SCAN_BLOCKS))
        return;
    b = { -INFINITY, 0x7fffffff };
    if (threadIdx.x < SCAN_BLOCKS)
        b = { __ldcg(&part[threadIdx.x].value), __ldcg(&part[threadIdx.x].id) };
    b = block_best(b);
    if (threadIdx.x == 0) {
        s.box->argmax[blockIdx.y] = b.id == 0x7fffffff ? 0 : b.id;
        __threadfence_system();
    }
    if (!s.args || !last_block(s.ticket + GPU_STEP_TOKENS, s.n))
        return;
    send_routes(s);
    if (threadIdx.x == 0) {
        asm volatile("st.release.sys.global.u32 [%0], %1;" ::"l"(&s.box->done),
                     "r"(s.args->number) : "memory");
    }
}

void queue_head(struct gpu *g, int n, bool step)
{
    struct product p = { g->s.h, (size_t)g->shape.hidden, n, 1,
                         { { g->head, g->s.logits, (size_t)g->shape.vocab } } };
    struct scan s = { g->s.logits, (struct best *)g->s.partial,
                      g->s.ticket + ATTEND_TICKETS + ROUTER_TICKETS, g->box_dev,
                      step ? g->args : NULL, g->shape.vocab, n, g->s.step_id, g->s.step_weight,
                      g->step_id_dev, g->step_weight_dev, g->shape.layers, g->shape.topk };

    queue_matvec(g, &p);
    launch_early(g, argmax_kernel, dim3(SCAN_BLOCKS, n), SCAN_THREADS, 0, s);
}

enum { CHOICE_THREADS = 1024, DIGITS = 256 };

/* Floats in the order of unsigned integers. */
static __device__ __forceinline__ uint32_t key_of(float f)
{
    uint32_t u = __float_as_uint(f);

    return u & 0x80000000 ? ~u : u | 0x80000000;
}

struct candidates {
    float value[GPU_TOP];
    int id[GPU_TOP];
    int n;
};

/* The key of the k-th best at or above floor, digit by digit; 0 where there are fewer. */
static __device__ uint32_t threshold(const float *row, int vocab, float floor, int k)
{
    __shared__ int count[DIGITS], digit, left;
    uint32_t prefix = 0;

    left = k;
    for (int shift = 24; shift >= 0; shift -= 8) {
        for (int i = threadIdx.x; i < DIGITS; i += blockDim.x)
            count[i] = 0;
        __syncthreads();
        for (int i = threadIdx.x; i < vocab; i += blockDim.x) {
            uint32_t key = key_of(row[i]);

            if (row[i] >= floor && (shift == 24 || key >> (shift + 8) == prefix))
                atomicAdd(&count[key >> shift & 255], 1);
        }
        __syncthreads();
        if (threadIdx.x == 0) {
            int d = DIGITS - 1;

            while (d > 0 && count[d] < left)
                left -= count[d--];
            digit = count[d] < left ? -1 : d;
        }
        __syncthreads();
        if (digit < 0)
            return 0;
        prefix = prefix << 8 | digit;
        __syncthreads();
    }
    return prefix;
}

/* The candidates above the key, in any order; then those equal to it, lowest ids first. */
static __device__ void collect(struct candidates &c, const float *row, int vocab, float floor,
                               uint32_t key, int k)
{
    __shared__ int warps[CHOICE_THREADS / WARP];
    int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;

    if (threadIdx.x == 0)
        c.n = 0;
    __syncthreads();
    for (int i = threadIdx.x; i < vocab; i += blockDim.x)
        if (row[i] >= floor && key_of(row[i]) > key) {
            int at = atomicAdd(&c.n, 1);

            c.value[at] = row[i];
            c.id[at] = i;
        }
    __syncthreads();
    for (int base = 0; key && base < vocab && c.n < k; base += blockDim.x) {
        int i = base + threadIdx.x, at = c.n;
        bool equal = i < vocab && row[i] >= floor && key_of(row[i]) == key;
        unsigned mask = __ballot_sync(~0u, equal);

        if (lane == 0)
            warps[warp] = __popc(mask);
        __syncthreads();
        for (int w = 0; w < warp; w++)
            at += warps[w];
        at += __popc(mask & ((1u << lane) - 1));
        if (equal && at < k) {
            c.value[at] = row[i];
            c.id[at] = i;
        }
        __syncthreads();
        if (threadIdx.x == blockDim.x - 1)
            c.n = min(k, at + (equal ? 1 : 0));
        __syncthreads();
    }
}

/* Bitonic sort, best first. */
static __device__ void sort(struct candidates &c)
{
    int i = threadIdx.x;

    if (i >= c.n) {
        c.value[i] = -INFINITY;
        c.id[i] = 0x7fffffff;
    }
    __syncthreads();
    for (int size = 2; size <= GPU_TOP; size *= 2)
        for (int step = size / 2; step; step /= 2) {
            int j = i ^ step;

            if (j > i) {
                struct best a = { c.value[i], c.id[i] }, b = { c.value[j], c.id[j] };
                bool wrong = better(a, b).id != a.id;

                if (wrong == !(i & size)) {
                    c.value[i] = b.value;
                    c.id[i] = b.id;
                    c.value[j] = a.value;
                    c.id[j] = a.id;
                }
            }
            __syncthreads();
        }
}

/* One draw from the sorted candidates: src/sample.c's order of doing things. */
static __device__ int draw(const struct candidates &c, const struct gpu_choice &p)
{
    double mass = 0, part = 0, left;
    int kept = 0;

    for (int i = 0; i < c.n; i++)
        mass += exp(((double)c.value[i] - c.value[0]) / p.temperature);
    while (kept < c.n && (p.top_p >= 1 || part < p.top_p * mass))
        part += exp(((double)c.value[kept++] - c.value[0]) / p.temperature);
    if (!kept)
        return c.id[0];
    left = p.u * part;
    for (int i = 0; i < kept - 1; i++) {
        left -= exp(((double)c.value[i] - c.value[0]) / p.temperature);
        if (left < 0)
            return c.id[i];
    }
    return c.id[kept - 1];
}

__global__ static void __launch_bounds__(CHOICE_THREADS)
    choice_kernel(const float *row, int vocab, const struct gpu_choice p, struct mailbox *box)
{
    __shared__ struct candidates c;
    float top = row[box->argmax[p.row]], floor = -FLT_MAX;

    if (p.min_p > 0)
        floor = fminf((float)(top + p.temperature * log((double)p.min_p)), top);
    collect(c, row, vocab, floor, threshold(row, vocab, floor, p.top_k), p.top_k);
    sort(c);
    if (threadIdx.x == 0)
        box->choice = draw(c, p);
}

void queue_choice(struct gpu *g, const struct gpu_choice *c)
{
    choice_kernel<<<1, CHOICE_THREADS, 0, g->stream>>>(
        g->s.logits + (size_t)c->row * g->shape.vocab, g->shape.vocab, *c, g->box_dev);
    LAUNCHED(g);
}
