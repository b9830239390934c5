/* Routed experts of a decode step: two launches for all that are seated and the shared expert, and
 * two more for those that an offer has brought.  Blocks of other pairs leave at once. */
#include "cuda/matvec.cuh"

/* Blocks on one multiprocessor that registers must allow for up to eight tokens: with them a
 * layer of S-2.1 is on an H200 all at once, and no block runs after all others. */
enum { GATE_WARPS = 4, GATE_BLOCKS = 6, DOWN_WARPS = 2, DOWN_BLOCKS = 16 };
enum { GATE_AHEAD = 3, DOWN_AHEAD = 2 };        /* chunks of a warp in flight */

struct step_experts {
    const struct pair *pair;            /* [n][topk] */
    struct ffn shared;                  /* gate.rows 0: none */
    const bf16 *h;                      /* [n][hidden] */
    bf16 *inner, *shared_inner;         /* [n][topk][expert inner], [n][shared inner] */
    float *out, *shared_out;            /* [n][topk][hidden], [n][hidden] */
    int n, topk, hidden, expert_inner;
};

/* gate and up of 16 inner rows: half of the warps split the columns of gate, half those of up. */
template <int NT>
__global__ static void __launch_bounds__(GATE_WARPS *WARP, NT == 1 ? GATE_BLOCKS : 1)
    gate_up_kernel(const struct step_experts a)
{
    __shared__ float tile[GATE_WARPS * TILE_ROWS * 8 * NT];
    int warp = threadIdx.x / WARP, half = GATE_WARPS / 2, row0 = blockIdx.x * TILE_ROWS;
    int i = blockIdx.y, pairs = a.n * a.topk;
    bool routed = i < pairs;

    begin_in_order();
    const struct ffn *f = routed ? &a.pair[i].ffn : &a.shared;
    /* Read before it is known whether it is wanted: one latency instead of two. */
    const struct matrix m = warp < half ? f->gate : f->up;
    struct tokens v = { a.h, (size_t)a.hidden, a.n };
    float acc[NT][4] = {};

    if ((routed && a.pair[i].slot < 0) || row0 >= m.rows)
        return;
    if (routed) {
        v.x += (size_t)(i / a.topk) * a.hidden;
        v.n = 1;
    }
    tile_share<NT, GATE_AHEAD>(acc, m, row0, v, warp % half, half);
    tile_store<NT>(tile + warp * TILE_ROWS * 8 * NT, acc);
    __syncthreads();
    for (int j = threadIdx.x; j < TILE_ROWS * v.n; j += blockDim.x) {
        int row = row0 + j % TILE_ROWS, t = j / TILE_ROWS, at = j % TILE_ROWS * 8 * NT + t;
        float g = tile_sum<NT>(tile, half, at);
        float u = tile_sum<NT>(tile + half * TILE_ROWS * 8 * NT, half, at);
        bf16 y = __bfloat16_as_ushort(__float2bfloat16_rn(g / (1 + expf(-g)) * u));

        if (row >= m.rows)
            continue;
        if (routed)
            a.inner[(size_t)i * a.expert_inner + row] = y;
        else
            a.shared_inner[(size_t)t * m.rows + row] = y;
    }
}

template <int NT>
__global__ static void __launch_bounds__(DOWN_WARPS *WARP, NT == 1 ? DOWN_BLOCKS : 1)
    down_kernel(const struct step_experts a)
{
    __shared__ float tile[DOWN_WARPS * TILE_ROWS * 8 * NT];
    int warp = threadIdx.x / WARP, row0 = blockIdx.x * TILE_ROWS, i = blockIdx.y;
    bool routed = i < a.n * a.topk;
    const struct matrix m = routed ? a.pair[i].ffn.down : a.shared.down;
    struct tokens v;
    float acc[NT][4] = {};

    if (routed && a.pair[i].slot < 0) {
        begin_in_order();
        return;
    }
    if (routed)
        v = { a.inner + (size_t)i * a.expert_inner, (size_t)a.expert_inner, 1 };
    else
        v = { a.shared_inner, (size_t)m.cols, a.n };
    tile_share<NT, DOWN_AHEAD>(acc, m, row0, v, warp, DOWN_WARPS);
    tile_store<NT>(tile + warp * TILE_ROWS * 8 * NT, acc);
    __syncthreads();
    for (int j = threadIdx.x; j < TILE_ROWS * v.n; j += blockDim.x) {
        int row = row0 + j % TILE_ROWS, t = j / TILE_ROWS;
        float y = tile_sum<NT>(tile, DOWN_WARPS, j % TILE_ROWS * 8 * NT + t);

        if (row >= m.rows)
            continue;
        if (routed)
            a.out[(size_t)i * a.hidden + row] = y;
        else
            a.shared_out[(size_t)t * a.hidden + row] = y;
    }
}

static struct step_experts experts_of(struct gpu *g, int n)
{
    const struct shape *s = &g->shape;
    struct step_experts a = {};

    a.h = g->s.h;
    a.inner = g->s.inner;
    a.shared_inner = g->s.inner + (size_t)n * s->topk * s->expert_inner;
    a.out = g->s.pair_out;
    a.shared_out = g->s.shared;
    a.n = n;
    a.topk = s->topk;
    a.hidden = s->hidden;
    a.expert_inner = s->expert_inner;
    return a;
}

/* n is a template's business: 8 or 16 tokens. */
static void queue_gate_up(struct gpu *g, const struct step_experts &a, dim3 blocks, bool early)
{
    if (!early)
        (a.n <= 8 ? gate_up_kernel<1> : gate_up_kernel<2>)<<<blocks, GATE_WARPS * WARP, 0,
                                                            g->stream>>>(a);
    else
        launch_early(g, a.n <= 8 ? gate_up_kernel<1> : gate_up_kernel<2>, blocks,
                     GATE_WARPS * WARP, 0, a);
    LAUNCHED(g);
}

static void queue_down(struct gpu *g, const struct step_experts &a, dim3 blocks)
{
    launch_early(g, a.n <= 8 ? down_kernel<1> : down_kernel<2>, blocks, DOWN_WARPS * WARP, 0, a);
}

void queue_step_experts(struct gpu *g, int layer, int n)
{
    const struct shape *s = &g->shape;
    struct step_experts a = experts_of(g, n);
    int inner = s->expert_inner > s->shared_inner ? s->expert_inner : s->shared_inner;
    int many = n * s->topk + (s->shared_inner > 0);

    a.pair = g->s.pair;
    a.shared = g->layer[layer].ffn;
    queue_gate_up(g, a, dim3(ceil_div(inner, TILE_ROWS), many), true);
    queue_down(g, a, dim3(ceil_div(s->hidden, TILE_ROWS), many));
}

/* Behind two branches, so that the first of them cannot begin early. */
void queue_late_experts(struct gpu *g, int n)
{
    const struct shape *s = &g->shape;
    struct step_experts a = experts_of(g, n);

    a.pair = g->s.late;
    queue_gate_up(g, a, dim3(ceil_div(s->expert_inner, TILE_ROWS), n * s->topk), false);
    queue_down(g, a, dim3(ceil_div(s->hidden, TILE_ROWS), n * s->topk));
}
