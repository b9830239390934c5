/* Attention of a decode step.  The query heads of one token that share a KV head are the
 * columns of both products, keys the rows of the first and dimensions those of the second: up
 * to eight heads cost one mma where they would otherwise fill half of its 16 rows.
 *
 * A warp walks over keys 16 at a time with online softmax in float32.  Its keys and values
 * come through a ring of tiles in shared memory that cp.async fills far ahead, so what is in
 * flight costs no registers and waits for no barrier.  Keys are split over blocks and warps;
 * whichever block of a head ends last merges them in the order of the keys.  The grid is
 * fixed, since a graph replays it: blocks beyond the keys leave at once. */
#include "cuda/attend_parts.cuh"
#include "cuda/attend_tile.cuh"
#include "cuda/ticket.cuh"

enum {
    CHUNK_LEAST = ATTEND_WARPS * STEP_KEYS,
    MAX_BLOCKS = 4,                     /* on one multiprocessor */
};

/* Probabilities may grow so far above the reference before it is raised; below float16's end. */
#define MOST_PROBABLE 16384.0f

/* Blocks on one multiprocessor that registers must allow. */
static constexpr int blocks_of(int type, int eights)
{
    return MAX_BLOCKS - (eights - 1) - (type == GPU_KV_BF16);
}

/* --- softmax --------------------------------------------------------------------------------- */

/* Of heads 8 j + 2 t + c, c 0 and 1: results, and of this lane's keys the sums.  A reference
 * is what a power of 2 is taken against, for all lanes that share a head. */
template <int DIM, int EIGHTS> struct state {
    float o[EIGHTS][DIM / 16][4];
    float reference[EIGHTS][2], sum[EIGHTS][2];
};

template <int DIM, int EIGHTS>
static __device__ __forceinline__ void begin_state(struct state<DIM, EIGHTS> &st)
{
#pragma unroll
    for (int j = 0; j < EIGHTS; j++) {
#pragma unroll
        for (int i = 0; i < DIM / 16; i++)
            st.o[j][i][0] = st.o[j][i][1] = st.o[j][i][2] = st.o[j][i][3] = 0;
        st.reference[j][0] = st.reference[j][1] = NO_SCORE;
        st.sum[j][0] = st.sum[j][1] = 0;
    }
}

/* The scales of keys r and 8 + r, those of keys with the factor of scores. */
struct scales {
    float k[2], v[2];
};

/* Raise each reference to the largest product of a probability and its value's scale. */
template <int DIM, int EIGHTS>
static __device__ __forceinline__ void raise(struct state<DIM, EIGHTS> &st,
                                          const float (&s)[EIGHTS][4], const struct scales &m)
{
#pragma unroll
    for (int j = 0; j < EIGHTS; j++)
#pragma unroll
        for (int c = 0; c < 2; c++) {
            float top = st.reference[j][c], rescale;

#pragma unroll
            for (int h = 0; h < 2; h++)
                top = fmaxf(top, s[j][2 * h + c] * m.k[h] + log2f(m.v[h]));
            for (int lanes = 4; lanes < WARP; lanes *= 2)
                top = fmaxf(top, __shfl_xor_sync(~0u, top, lanes));
            rescale = power_of_2(st.reference[j][c] - top);
            st.reference[j][c] = top;
            st.sum[j][c] *= rescale;
#pragma unroll
            for (int i = 0; i < DIM / 16; i++) {
                st.o[j][i][c] *= rescale;
                st.o[j][i][2 + c] *= rescale;
            }
        }
}

/* Scores to w: probabilities, above the references' powers, times the values' scales. */
template <int DIM, int EIGHTS>
static __device__ __forceinline__ void soften(struct state<DIM, EIGHTS> &st, float (&w)[EIGHTS][4],
                                              const float (&s)[EIGHTS][4], const struct scales &m)
{
    float p[EIGHTS][4], top;

    for (;;) {
        top = 0;
#pragma unroll
        for (int j = 0; j < EIGHTS; j++)
#pragma unroll
            for (int e = 0; e < 4; e++) {
                p[j][e] = power_of_2(s[j][e] * m.k[e / 2] - st.reference[j][e % 2]);
                w[j][e] = p[j][e] * m.v[e / 2];
                top = fmaxf(top, w[j][e]);
            }
        if (!__any_sync(~0u, top > MOST_PROBABLE))
            break;
        raise<DIM, EIGHTS>(st, s, m);
    }
#pragma unroll
    for (int j = 0; j < EIGHTS; j++)
#pragma unroll
        for (int e = 0; e < 4; e++)
            st.sum[j][e % 2] += p[j][e];
}

/* The 8 x 8 matrix of 16-bit elements that a register of all lanes holds, turned. */
static __device__ __forceinline__ uint32_t turned(uint32_t m)
{
    uint32_t t;

    asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(t) : "r"(m));
    return t;
}

/* --- a warp's keys --------------------------------------------------------------------------- */

/* q8's scales of 16 keys, one a lane, and those of their values: the lower lanes have the
 * keys', times the score's factor.  Loaded AHEAD steps before they are used. */
template <int TYPE> struct scale_queue {
    enum { AHEAD = 3 };
    const uint16_t *from;               /* [rows] of this lane's kind */
    float factor;
    uint32_t next[AHEAD];

    __device__ __forceinline__ void load(int i, const struct ring &ring, int pos)
    {
        if (TYPE == GPU_KV_Q8)
            next[i] = __ldg(from + row_at(ring, pos + threadIdx.x % 16));
    }

    __device__ __forceinline__ void open(const struct attend &a, int kv_head,
                                         const struct ring &ring, int pos, int stride)
    {
        bool value = threadIdx.x % WARP / 16;

        from = (value ? a.kv.v_scale : a.kv.k_scale) + (size_t)kv_head * a.kv.rows;
        factor = value ? 1 : a.score;
#pragma unroll
        for (int i = 0; i < AHEAD; i++)
            load(i, ring, pos + i * stride);
    }

    /* Of the step at pos; those AHEAD steps later are queued. */
    __device__ __forceinline__ struct scales take(const struct attend &a, const struct ring &ring,
                                                  int pos, int stride)
    {
        int r = threadIdx.x % WARP / 4;
        float mine;

        if (TYPE != GPU_KV_Q8)
            return { { a.score, a.score }, { 1, 1 } };
        /* Where a scale is 0 so are all numbers under it: any other does as well, and has a
         * logarithm. */
        mine = fmaxf(__half2float(__ushort_as_half((uint16_t)next[0])), 0x1p-24f) * factor;
#pragma unroll
        for (int i = 0; i + 1 < AHEAD; i++)
            next[i] = next[i + 1];
        load(AHEAD - 1, ring, pos + AHEAD * stride);
        return { { __shfl_sync(~0u, mine, r), __shfl_sync(~0u, mine, 8 + r) },
                 { __shfl_sync(~0u, mine, 16 + r), __shfl_sync(~0u, mine, 24 + r) } };
    }
};

template <int DIM, int TYPE, int EIGHTS> struct walker {
    typedef operand<TYPE> O;
    enum { LOADS = DIM / 32 * O::PIECES, EACH = 2 / O::PIECES };

    uint32_t q[EIGHTS][DIM / 16][O::TERMS][2];

    /* Heads that do not exist are zeros. */
    __device__ __forceinline__ void load_queries(const struct attend &a, const struct rows &rs)
    {
        int r = threadIdx.x % WARP / 4, t = threadIdx.x % 4;

#pragma unroll
        for (int j = 0; j < EIGHTS; j++) {
            bool is = EIGHT * j + r < rs.count;
            int i = is ? EIGHT * j + r : 0;
            const uint16_t *at = a.q + ((size_t)token_of(rs, i) * a.heads + head_of(rs, i)) * DIM;

#pragma unroll
            for (int d = 0; d < DIM / 16; d++) {
                O::queries(q[j][d], at + d * 16, t);
#pragma unroll
                for (int e = 0; e < 2 * O::TERMS; e++)
                    q[j][d][e / 2][e % 2] = is ? q[j][d][e / 2][e % 2] : 0;
            }
        }
    }

    /* s = 16 keys times the heads' queries. */
    __device__ __forceinline__ void multiply_keys(float (&s)[EIGHTS][4],
                                                  const struct tiles<DIM, TYPE> &tile) const
    {
#pragma unroll
        for (int j = 0; j < EIGHTS; j++)
            s[j][0] = s[j][1] = s[j][2] = s[j][3] = 0;
#pragma unroll
        for (int l = 0; l < LOADS; l++) {
            uint32_t m[4], k[4];

            load_matrices(m, tile.pieces(l));
#pragma unroll
            for (int i = 0; i < EACH; i++) {
                O::keys(k, m, i);
#pragma unroll
                for (int j = 0; j < EIGHTS; j++)
                    O::multiply(s[j], k, q[j][l * EACH + i]);
            }
        }
    }

    /* o += values times w, which lies as s does. */
    __device__ __forceinline__ void multiply_values(struct state<DIM, EIGHTS> &st,
                                                    const float (&w)[EIGHTS][4],
                                                    const struct tiles<DIM, TYPE> &tile) const
    {
        uint32_t p[EIGHTS][O::TERMS][2];

#pragma unroll
        for (int j = 0; j < EIGHTS; j++)
#pragma unroll
            for (int h = 0; h < 2; h++) {
                uint32_t both[O::TERMS];

                O::split(both, w[j][2 * h], w[j][2 * h + 1]);
#pragma unroll
                for (int e = 0; e < O::TERMS; e++)
                    p[j][e][h] = turned(both[e]);
            }
#pragma unroll
        for (int l = 0; l < LOADS; l++) {
            uint32_t m[4], v[4];

            load_turned(m, tile.pieces(l));
#pragma unroll
            for (int i = 0; i < EACH; i++) {
                O::values(v, m, i);
#pragma unroll
                for (int j = 0; j < EIGHTS; j++)
                    O::multiply(st.o[j][l * EACH + i], v, p[j]);
            }
        }
    }
};

/* Keys behind the end: scores that no maximum and no sum notices. */
template <int EIGHTS>
static __device__ __forceinline__ void mask(float (&s)[EIGHTS][4], struct scales &m, int keys)
{
    int r = threadIdx.x % WARP / 4;

#pragma unroll
    for (int h = 0; h < 2; h++) {
        if (8 * h + r < keys)
            continue;
        m.k[h] = 1;
#pragma unroll
        for (int j = 0; j < EIGHTS; j++)
            s[j][2 * h] = s[j][2 * h + 1] = -INFINITY;
    }
}

/* Keys begin, begin + stride, ... (16 each) below end; memory: this warp's ring.  Where all that
 * the ring takes at first is older than this step, it is on its way before the kernel in front,
 * which writes the keys from position `pos` on, has ended. */
template <int DIM, int TYPE, int EIGHTS>
static __device__ __forceinline__ void walk(struct state<DIM, EIGHTS> &st, const struct attend &a,
                                            const struct rows &rs, const struct range &all,
                                            uint32_t memory, int begin, int end, int stride,
                                            int pos)
{
    typedef tiles<DIM, TYPE> T;
    walker<DIM, TYPE, EIGHTS> w;
    T tile;
    struct scale_queue<TYPE> queue;

    if (min(begin + (T::COUNT - 1) * stride + STEP_KEYS, end) > pos)
        begin_in_order();
    tile.open(a, rs.kv_head, memory, all, end);
    tile.start(begin, stride);
    queue.open(a, rs.kv_head, tile.ring, begin, stride);
    begin_in_order();
    w.load_queries(a, rs);
    for (int at = begin; at < end; at += stride) {
        struct scales m = queue.take(a, tile.ring, at, stride);
        float s[EIGHTS][4], p[EIGHTS][4];

        tile.await();
        w.multiply_keys(s, tile);
        tile.template next<0>(at, stride);
        if (at + STEP_KEYS > end)
            mask<EIGHTS>(s, m, end - at);
        soften<DIM, EIGHTS>(st, p, s, m);
        tile.await();
        w.multiply_values(st, p, tile);
        tile.template next<1>(at, stride);
    }
}

template <int DIM, int TYPE, int EIGHTS>
static __device__ __forceinline__ void keep_state(float *to, const struct state<DIM, EIGHTS> &st)
{
    int r = threadIdx.x % WARP / 4, t = threadIdx.x % 4;

#pragma unroll
    for (int j = 0; j < EIGHTS; j++)
#pragma unroll
        for (int c = 0; c < 2; c++) {
            int head = EIGHT * j + 2 * t + c;
            float sum = st.sum[j][c], scale;

            for (int lanes = 4; lanes < WARP; lanes *= 2)
                sum += __shfl_xor_sync(~0u, sum, lanes);
            scale = sum > 0 ? 1 / sum : 0;
#pragma unroll
            for (int i = 0; i < DIM / 16; i++)
#pragma unroll
                for (int upper = 0; upper < 2; upper++)
                    to[head * part_row(DIM) + 16 * i + operand<TYPE>::dimension(r, upper)] =
                        st.o[j][i][2 * upper + c] * scale;
            if (r == 0) {
                to[EIGHTS * EIGHT * part_row(DIM) + head] = st.reference[j][c];
                to[EIGHTS * EIGHT * (part_row(DIM) + 1) + head] = sum;
            }
        }
}

/* --- the kernel ------------------------------------------------------------------------------ */

/* Dynamic shared memory: the warps' rings, and after them in time weights and parts or sums. */
template <int DIM, int TYPE, int EIGHTS> static constexpr size_t shared_bytes(void)
{
    typedef tiles<DIM, TYPE> T;
    size_t rings = (size_t)ATTEND_WARPS * T::COUNT * T::TILE;
    size_t parts = ATTEND_WARPS * part_floats(DIM, EIGHTS) * sizeof(float);
    size_t sums = (size_t)MAX_SPLITS / GROUP_PARTS * EIGHTS * EIGHT * DIM * sizeof(float);
    size_t merging = sizeof(struct weights<EIGHTS>) + (parts > sums ? parts : sums);

    return rings > merging ? rings : merging;
}

/* Block (split, KV head and tile of its heads, token). */
template <int DIM, int TYPE, int EIGHTS>
__global__ static void __launch_bounds__(ATTEND_THREADS, blocks_of(TYPE, EIGHTS))
    step_kernel(const struct attend a)
{
    enum { PART = part_floats(DIM, EIGHTS), HEADS = EIGHTS * EIGHT };
    typedef tiles<DIM, TYPE> T;
    extern __shared__ float4 memory[];
    struct weights<EIGHTS> &w = *(struct weights<EIGHTS> *)memory;
    float *parts = (float *)(&w + 1);
    struct state<DIM, EIGHTS> st;
    int warp = threadIdx.x / WARP, pos = a.pos ? *a.pos : a.pos0;
    int group = a.heads / a.kv_heads, tile_count = (group + HEADS - 1) / HEADS;
    int tile = blockIdx.y % tile_count, token = blockIdx.z;
    struct rows rs = { token * group + tile * HEADS, group, min(HEADS, group - tile * HEADS),
                       (int)blockIdx.y / tile_count };
    struct range all = keys_of(a, pos, token);
    int keys = all.to - all.from, chunk, active, begin;
    size_t at = (size_t)token * gridDim.y + blockIdx.y;
    float *partial = a.partial + at * a.splits * PART;

    chunk = max((int)CHUNK_LEAST,
                ((keys + a.splits - 1) / a.splits + CHUNK_LEAST - 1) / CHUNK_LEAST * CHUNK_LEAST);
    active = (keys + chunk - 1) / chunk;
    if ((int)blockIdx.x >= active) {
        begin_in_order();
        return;
    }
    begin = all.from + blockIdx.x * chunk;
    begin_state(st);
    walk<DIM, TYPE, EIGHTS>(st, a, rs, all, shared_address(memory) + warp * T::COUNT * T::TILE,
                            begin + warp * STEP_KEYS, min(begin + chunk, all.to), CHUNK_LEAST,
                            pos);
    __syncthreads();
    keep_state<DIM, TYPE, EIGHTS>(parts + warp * PART, st);
    __syncthreads();
    merge_warps<DIM, EIGHTS>(a, rs, w, parts, partial + blockIdx.x * PART, active == 1);
    if (active == 1 || !last_block(a.ticket + at, active))
        return;
    merge_blocks<DIM, EIGHTS>(a, rs, w, partial, active, (float4 *)parts);
}

/* --- queueing -------------------------------------------------------------------------------- */

size_t attend_partial_floats(const struct gpu *g)
{
    const struct shape *s = &g->shape;
    int tiles = s->kv_heads * ceil_div(s->max_heads / s->kv_heads, HEAD_ROWS);
    size_t blocks = (size_t)(MAX_BLOCKS * g->sms + tiles * GPU_STEP_TOKENS);

    return blocks * part_floats(s->head_dim, HEAD_ROWS / EIGHT);
}

/* As many blocks as run at the same time, whatever the number of tokens: one more would run
 * after all others. */
template <int DIM, int TYPE, int EIGHTS>
static void queue_kernel(struct gpu *g, struct attend *a)
{
    size_t shared = shared_bytes<DIM, TYPE, EIGHTS>();
    int tiles = a->kv_heads * ceil_div(a->heads / a->kv_heads, EIGHTS * EIGHT), blocks = 1;
    int most;

    TRY(g, cudaFuncSetAttribute(step_kernel<DIM, TYPE, EIGHTS>,
                                cudaFuncAttributeMaxDynamicSharedMemorySize, (int)shared));
    TRY(g, cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, step_kernel<DIM, TYPE, EIGHTS>,
                                                         ATTEND_THREADS, shared));
    most = (blocks < MAX_BLOCKS ? blocks : MAX_BLOCKS) * g->sms / (tiles * a->n);
    a->splits = most < 1 ? 1 : most < MAX_SPLITS ? most : MAX_SPLITS;
    launch_early(g, step_kernel<DIM, TYPE, EIGHTS>, dim3(a->splits, tiles, a->n), ATTEND_THREADS,
                 shared, *a);
}

template <int DIM, int TYPE> static void queue_type(struct gpu *g, struct attend *a)
{
    if (a->heads / a->kv_heads <= EIGHT)
        queue_kernel<DIM, TYPE, 1>(g, a);
    else
        queue_kernel<DIM, TYPE, 2>(g, a);
}

template <int DIM> static void queue_dim(struct gpu *g, struct attend *a)
{
    if (g->c.kv == GPU_KV_Q8)
        queue_type<DIM, GPU_KV_Q8>(g, a);
    else if (g->c.kv == GPU_KV_FP8)
        queue_type<DIM, GPU_KV_FP8>(g, a);
    else
        queue_type<DIM, GPU_KV_BF16>(g, a);
}

void queue_attend_step(struct gpu *g, struct attend *a)
{
    if (g->shape.head_dim == 64)
        queue_dim<64>(g, a);
    else
        queue_dim<128>(g, a);
}
