/* The router: float32 logits, selection and weights of laguna.md 2.6, and in a decode step the
 * hand-over of the absent experts' work to the CPU.
 *
 * For few tokens two warps make one logit, the block that ends last for a token selects, and the
 * last of these posts: one launch for all of it. */
#include "cuda/gpu_internal.cuh"
#include "cuda/ticket.cuh"

enum { ROUTER_THREADS = 256, ROUTER_SPLIT = 2, TILE = 64, TILE_K = 32, TILE_SPLITS = 8 };
enum { ROUTER_ROWS = ROUTER_THREADS / WARP / ROUTER_SPLIT };

struct router {
    const float *h;                     /* [n][hidden] */
    const bf16 *w;                      /* [experts][hidden] */
    const float *bias;                  /* [experts] */
    float *logits;                      /* [splits][n][experts]: sums of some columns each */
    uint16_t *id;                       /* [n][topk] */
    float *weight;                      /* [n][topk] */
    struct mailbox *box;
    int n, hidden, experts, topk, layer, splits;
    float softcap;
    bool norm_topk, sqrtsoftplus;
};

/* What a decode step adds. */
struct posting {
    const int *seat;                    /* [experts] of the layer */
    const struct ffn *ffn;              /* [experts] */
    struct pair *pair;                  /* [n][topk] */
    uint16_t *step_id;                  /* of the layer: [n][topk] */
    float *step_weight;
    uint16_t *share_id, *share_token;   /* mapped, as share_weight and share_h */
    float *share_weight, *share_h;
    uint32_t *epoch;                    /* last sequence; [1]: awaited */
    unsigned *ticket;                   /* [n] of tokens, then one of the step */
};

static __device__ float score_of(const struct router &r, float logit)
{
    if (r.softcap > 0)
        logit = r.softcap * tanhf(logit / r.softcap);
    if (r.sqrtsoftplus)
        return sqrtf(logit > 20 ? logit : log1pf(expf(logit)));
    return 1 / (1 + expf(-logit));
}

/* One row of the selection in shared memory; select is read four at a time. */
struct selection {
    alignas(16) float select[MAX_EXPERTS];
    float score[MAX_EXPERTS];
    int seat[MAX_EXPERTS];              /* of a step */
    int best[MAX_TOPK];                 /* ids by rank */
    int id[MAX_TOPK];                   /* ascending, and their scores */
    float chosen[MAX_TOPK];
};

/* How many experts come before x: a better one, or an equal one of lower id. */
static __device__ int rank_of(const struct selection &s, int x, int experts)
{
    float mine = s.select[x];
    int rank = 0;

    for (int j = 0; j < experts; j += 4) {
        float4 v = *(const float4 *)(s.select + j);

        rank += v.x > mine || (v.x == mine && j < x);
        rank += v.y > mine || (v.y == mine && j + 1 < x);
        rank += v.z > mine || (v.z == mine && j + 2 < x);
        rank += v.w > mine || (v.w == mine && j + 3 < x);
    }
    return rank;
}

/* The parts of a logit, in the order of their columns. */
static __device__ float logit_of(const struct router &r, int t, int x)
{
    size_t each = (size_t)r.n * r.experts, at = (size_t)t * r.experts + x;
    float sum = __ldcg(r.logits + at);

    for (int i = 1; i < r.splits; i++)
        sum += __ldcg(r.logits + i * each + at);
    return sum;
}

static __device__ void score_experts(struct selection &s, const struct router &r, int t,
                                     const int *seat)
{
    for (int x = threadIdx.x; x < MAX_EXPERTS; x += blockDim.x) {
        float sel = -INFINITY;

        if (x < r.experts) {
            if (seat)
                s.seat[x] = seat[x];
            s.score[x] = score_of(r, logit_of(r, t, x));
            sel = s.score[x] + r.bias[x];
            if (!isfinite(sel)) {
                sel = -INFINITY;
                if (!*(volatile int *)&r.box->bad_layer)
                    *(volatile int *)&r.box->bad_layer = r.layer + 1;
            }
        }
        s.select[x] = sel;
    }
    __syncthreads();
}

/* The whole block selects for token t.  Where a score is not finite, topk distinct experts
 * come out all the same, and the mailbox names the layer. */
static __device__ void select_experts(struct selection &s, const struct router &r, int t,
                                      const int *seat)
{
    int k = threadIdx.x;

    score_experts(s, r, t, seat);
    for (int x = threadIdx.x; x < r.experts; x += blockDim.x) {
        int rank = rank_of(s, x, r.experts);

        if (rank < r.topk)
            s.best[rank] = x;
    }
    __syncthreads();
    if (k < r.topk) {
        int mine = s.best[k], at = 0;

        for (int j = 0; j < r.topk; j++)
            at += s.best[j] < mine;
        s.id[at] = mine;
        s.chosen[at] = s.score[mine];
    }
    __syncthreads();
    if (k < r.topk) {
        float sum = 0;

        for (int j = 0; j < r.topk; j++)
            sum += s.chosen[j];
        r.id[(size_t)t * r.topk + k] = (uint16_t)s.id[k];
        r.weight[(size_t)t * r.topk + k] = r.norm_topk ? s.chosen[k] / sum : s.chosen[k];
    }
    __syncthreads();
}

/* Pairs of token t: who sits where, and for the host at the end of the step the route. */
static __device__ void resolve_pairs(const struct selection &s, const struct router &r,
                                     const struct posting &p, int t)
{
    enum { WORDS = sizeof(struct ffn) / sizeof(uint64_t) };
    int k = threadIdx.x;
    size_t first = (size_t)t * r.topk;

    if (k < r.topk) {
        p.pair[first + k].weight = p.step_weight[first + k] = r.weight[first + k];
        p.pair[first + k].slot = s.seat[s.id[k]];
        p.step_id[first + k] = (uint16_t)s.id[k];
    }
    for (int i = threadIdx.x; i < r.topk * WORDS; i += blockDim.x) {
        const uint64_t *from = (const uint64_t *)&p.ffn[s.id[i / WORDS]];

        ((uint64_t *)&p.pair[first + i / WORDS].ffn)[i % WORDS] = from[i % WORDS];
    }
}

/* The absent pairs in the mailbox, from slot [n * topk] in shared memory. */
static __device__ void list_absent(const struct router &r, const struct posting &p,
                                   const int *slot)
{
    for (int i = threadIdx.x; i < r.n * r.topk; i += blockDim.x) {
        int at = 0;

        if (slot[i] >= 0)
            continue;
        for (int j = 0; j < i; j++)
            at += slot[j] < 0;
        p.share_id[at] = __ldcg(r.id + i);
        p.share_token[at] = (uint16_t)(i / r.topk);
        p.share_weight[at] = __ldcg(r.weight + i);
    }
    for (int i = threadIdx.x; i < r.n * r.hidden / 4; i += blockDim.x)
        ((float4 *)p.share_h)[i] = ((const float4 *)r.h)[i];
}

/* All tokens are resolved: hand what is absent to the CPU and raise the flag. */
static __device__ void post_share(const struct router &r, const struct posting &p)
{
    __shared__ int slot[GPU_STEP_TOKENS * MAX_TOPK];
    int absent = 0;

    for (int i = threadIdx.x; i < r.n * r.topk; i += blockDim.x)
        slot[i] = __ldcg(&p.pair[i].slot);
    __syncthreads();
    for (int i = 0; i < r.n * r.topk; i++)
        absent += slot[i] < 0;
    if (absent) {
        list_absent(r, p, slot);
        __threadfence_system();
        __syncthreads();
    }
    if (threadIdx.x)
        return;
    p.epoch[1] = 0;
    if (absent) {
        uint32_t next = p.epoch[0] + 1;

        p.epoch[0] = p.epoch[1] = next;
        r.box->layer = r.layer;
        r.box->pairs = absent;
        asm volatile("st.release.sys.global.u32 [%0], %1;" ::"l"(&r.box->post), "r"(next)
                     : "memory");
    }
}

/* This warp's share of x w: every ROUTER_SPLIT-th run of columns. */
static __device__ float dot(const float *x, const bf16 *w, int n, int share)
{
    int lane = threadIdx.x % WARP;
    float sum = 0;

#pragma unroll 6
    for (int i = (share * WARP + lane) * 8; i < n; i += ROUTER_SPLIT * WARP * 8) {
        uint4 q = __ldg((const uint4 *)(w + i));
        float4 a = *(const float4 *)(x + i), b = *(const float4 *)(x + i + 4);

        sum += a.x * __uint_as_float(q.x << 16) + a.y * __uint_as_float(q.x & 0xffff0000);
        sum += a.z * __uint_as_float(q.y << 16) + a.w * __uint_as_float(q.y & 0xffff0000);
        sum += b.x * __uint_as_float(q.z << 16) + b.y * __uint_as_float(q.z & 0xffff0000);
        sum += b.z * __uint_as_float(q.w << 16) + b.w * __uint_as_float(q.w & 0xffff0000);
    }
    for (int o = WARP / 2; o; o /= 2)
        sum += __shfl_xor_sync(~0u, sum, o);
    return sum;
}

/* Few tokens: grid (experts / ROUTER_ROWS, n). */
__global__ static void __launch_bounds__(ROUTER_THREADS)
    router_kernel(const struct router r, const struct posting p)
{
    __shared__ struct selection s;
    __shared__ float part[ROUTER_ROWS][ROUTER_SPLIT];
    enum { LINE = 64 };         /* weights in a line of the cache */
    int warp = threadIdx.x / WARP, row = warp / ROUTER_SPLIT, share = warp % ROUTER_SPLIT;
    int x = blockIdx.x * ROUTER_ROWS + row, t = blockIdx.y, lane = threadIdx.x % WARP;

    if (x < r.experts)
        for (int i = (share * WARP + lane) * LINE; i < r.hidden; i += ROUTER_SPLIT * WARP * LINE)
            asm volatile("prefetch.global.L2 [%0];" ::"l"(r.w + (size_t)x * r.hidden + i));
    begin_in_order();
    if (x < r.experts) {
        float v = dot(r.h + (size_t)t * r.hidden, r.w + (size_t)x * r.hidden, r.hidden, share);

        if (threadIdx.x % WARP == 0)
            part[row][share] = v;
    }
    __syncthreads();
    x = blockIdx.x * ROUTER_ROWS + threadIdx.x;
    if (threadIdx.x < ROUTER_ROWS && x < r.experts)
        r.logits[(size_t)t * r.experts + x] = part[threadIdx.x][0] + part[threadIdx.x][1];
    if (!last_block(p.ticket + t, gridDim.x))
        return;
    select_experts(s, r, t, p.seat);
    if (!p.pair)
        return;
    resolve_pairs(s, r, p, t);
    if (r.n > 1) {
        if (!last_block(p.ticket + GPU_STEP_TOKENS, r.n))
            return;
    } else {
        __syncthreads();
    }
    post_share(r, p);
}

static_assert(ROUTER_THREADS == 4 * TILE && TILE_K == 4 * 8, "four threads bring a row");

/* What a thread brings for a tile: eight columns of a token and of an expert. */
struct run {
    float4 h[2];
    uint4 w;
};

static __device__ __forceinline__ struct run load_run(const struct router &r, int t, int x, int k,
                                                      int end)
{
    struct run v = {};

    if (k >= end)
        return v;
    if (t < r.n) {
        v.h[0] = *(const float4 *)(r.h + (size_t)t * r.hidden + k);
        v.h[1] = *(const float4 *)(r.h + (size_t)t * r.hidden + k + 4);
    }
    if (x < r.experts)
        v.w = __ldg((const uint4 *)(r.w + (size_t)x * r.hidden + k));
    return v;
}

/* Row i of column k lies at i ^ (k & ~7): the four runs of eight columns that a warp stores then
 * meet no bank twice, and four rows stay together. */
typedef float tile_columns[TILE_K][TILE];

static __device__ __forceinline__ void store_run(tile_columns &a, tile_columns &b, int row, int k,
                                                 const struct run &v)
{
    const uint32_t w[4] = { v.w.x, v.w.y, v.w.z, v.w.w };
    int at = row ^ k;

#pragma unroll
    for (int i = 0; i < 2; i++) {
        a[k + 4 * i][at] = v.h[i].x;
        a[k + 4 * i + 1][at] = v.h[i].y;
        a[k + 4 * i + 2][at] = v.h[i].z;
        a[k + 4 * i + 3][at] = v.h[i].w;
    }
#pragma unroll
    for (int i = 0; i < 4; i++) {
        b[k + 2 * i][at] = __uint_as_float(w[i] << 16);
        b[k + 2 * i + 1][at] = __uint_as_float(w[i] & 0xffff0000);
    }
}

/* acc += TILE_K columns of the four tokens from ty and the four experts from tx. */
static __device__ __forceinline__ void multiply_tiles(float (&acc)[4][4], const tile_columns &a,
                                                      const tile_columns &b, int ty, int tx)
{
#pragma unroll
    for (int c = 0; c < TILE_K; c++) {
        const float4 u = *(const float4 *)&a[c][ty ^ (c & ~7)];
        const float4 v = *(const float4 *)&b[c][tx ^ (c & ~7)];
        const float ua[4] = { u.x, u.y, u.z, u.w }, va[4] = { v.x, v.y, v.z, v.w };

#pragma unroll
        for (int i = 0; i < 4; i++)
#pragma unroll
            for (int j = 0; j < 4; j++)
                acc[i][j] += ua[i] * va[j];
    }
}

/* Many tokens: tiles of 64 tokens and 64 experts, 16 sums a thread, grid (tokens, experts, parts
 * of the columns).  The next columns are on their way while these are multiplied. */
__global__ static void __launch_bounds__(ROUTER_THREADS) logits_kernel(const struct router r)
{
    __shared__ alignas(16) tile_columns a, b;
    int row = threadIdx.x / 4, k = threadIdx.x % 4 * 8;
    int t0 = blockIdx.x * TILE, x0 = blockIdx.y * TILE, steps = (r.hidden + TILE_K - 1) / TILE_K;
    int from = steps * (int)blockIdx.z / r.splits * TILE_K;
    int end = min(steps * (int)(blockIdx.z + 1) / r.splits * TILE_K, r.hidden);
    int ty = threadIdx.x / 16 * 4, tx = threadIdx.x % 16 * 4;
    float *out = r.logits + (size_t)blockIdx.z * r.n * r.experts;
    struct run next = load_run(r, t0 + row, x0 + row, from + k, end);
    float acc[4][4] = {};

    for (int k0 = from; k0 < end; k0 += TILE_K) {
        store_run(a, b, row, k, next);
        __syncthreads();
        next = load_run(r, t0 + row, x0 + row, k0 + TILE_K + k, end);
        multiply_tiles(acc, a, b, ty, tx);
        __syncthreads();
    }
    for (int i = 0; i < 4; i++)
        for (int j = 0; j < 4; j++)
            if (t0 + ty + i < r.n && x0 + tx + j < r.experts)
                out[(size_t)(t0 + ty + i) * r.experts + x0 + tx + j] = acc[i][j];
}

__global__ static void __launch_bounds__(ROUTER_THREADS) select_kernel(const struct router r)
{
    __shared__ struct selection s;

    select_experts(s, r, blockIdx.x, NULL);
}

static struct posting posting_of(struct gpu *g, int layer)
{
    size_t at = (size_t)layer * g->shape.experts;
    size_t step = (size_t)layer * GPU_STEP_TOKENS * g->shape.topk;
    struct posting p = {
        .seat = g->seat + at, .ffn = g->ffn_seat + at, .pair = g->s.pair,
        .step_id = g->s.step_id + step, .step_weight = g->s.step_weight + step,
        .share_id = g->share_id_dev, .share_token = g->share_token_dev,
        .share_weight = g->share_weight_dev, .share_h = g->share_h_dev, .epoch = g->epoch,
    };

    return p;
}

/* Parts of the columns, for which the scratch of a whole batch has room: a short batch has too few
 * tiles to keep the device busy. */
static int splits_of(const struct gpu *g, int n)
{
    int most = g->c.batch / n, columns = g->shape.hidden / (4 * TILE_K);

    most = most < columns ? most : columns;
    return most < 1 ? 1 : most < TILE_SPLITS ? most : TILE_SPLITS;
}

void queue_router(struct gpu *g, int layer, int n, bool step)
{
    const struct shape *s = &g->shape;
    const struct layer_weights *w = &g->layer[layer];
    struct router r = {
        .h = g->s.h32, .w = (const bf16 *)w->router.weight, .bias = w->router_bias,
        .logits = g->s.router, .id = g->s.route_id, .weight = g->s.route_weight,
        .box = g->box_dev, .n = n, .hidden = s->hidden, .experts = s->experts, .topk = s->topk,
        .layer = layer, .splits = n <= GPU_STEP_TOKENS ? 1 : splits_of(g, n),
        .softcap = s->router_softcap, .norm_topk = s->norm_topk, .sqrtsoftplus = s->sqrtsoftplus,
    };
    struct posting p = {};

    if (step)
        p = posting_of(g, layer);
    p.ticket = g->s.ticket + ATTEND_TICKETS;
    if (n <= GPU_STEP_TOKENS) {
        launch_early(g, router_kernel, dim3(ceil_div(s->experts, ROUTER_ROWS), n), ROUTER_THREADS,
                     0, r, p);
    } else {
        logits_kernel<<<dim3(ceil_div(n, TILE), ceil_div(s->experts, TILE), r.splits),
                        ROUTER_THREADS, 0, g->stream>>>(r);
        select_kernel<<<n, ROUTER_THREADS, 0, g->stream>>>(r);
    }
    LAUNCHED(g);
}
