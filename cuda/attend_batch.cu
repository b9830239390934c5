/* Attention of a batch.  A block has the queries of 64 (token, head) pairs that share a KV head,
 * 16 a warp, and all their keys.  Keys and values are converted to float16 once for the block,
 * in shared memory; the next tile's bytes come by cp.async meanwhile.  Softmax is online, in
 * float32.  Tiles that no row of the block sees are never read, tiles that no row of a warp
 * sees cost that warp nothing, and only tiles at the borders are masked. */
#include "cuda/attend.cuh"

enum {
    WARP_ROWS = 16, BLOCK_ROWS = ATTEND_WARPS * WARP_ROWS,
    WARP_KEYS = 32,                     /* whose scores a warp holds at once */
};

/* The sizes of a tile.  raw: 16-byte pieces as cached; half: as float16. */
template <int DIM, int TYPE> struct sizes {
    enum {
        KEYS = 64 / cached<TYPE>::BYTES, ROW = DIM * cached<TYPE>::BYTES, CHUNKS = ROW / 16,
        PASS_ROWS = ATTEND_THREADS / CHUNKS, PASSES = KEYS / PASS_ROWS,
        RAW = KEYS * ROW, HALF_ROW = DIM * 2, HALF = KEYS * HALF_ROW,
        PAIRS = DIM / 16,               /* of float16 pieces in a row */
        SHARED = 2 * RAW + 2 * HALF,
    };
};

/* --- a tile from the cache to float16 -------------------------------------------------------- */

/* Sixteen bytes of the cache as float16. */
template <int TYPE> struct piece {
    enum { WORDS = 8 };

    static __device__ __forceinline__ void convert(uint32_t to[WORDS], const uint32_t from[4])
    {
#pragma unroll
        for (int i = 0; i < 4; i++) {
            to[2 * i] = cached<TYPE>::template two<0, 1>(from[i]);
            to[2 * i + 1] = cached<TYPE>::template two<2, 3>(from[i]);
        }
    }
};

/* Beyond float16's range values saturate; no trained model's do. */
template <> struct piece<GPU_KV_BF16> {
    enum { WORDS = 4 };

    static __device__ __forceinline__ float near(float x)
    {
        return fminf(fmaxf(x, -65504), 65504);
    }

    static __device__ __forceinline__ void convert(uint32_t to[WORDS], const uint32_t from[4])
    {
#pragma unroll
        for (int i = 0; i < 4; i++)
            to[i] = half_bits(__floats2half2_rn(near(low_float(from[i])),
                                                near(high_float(from[i]))));
    }
};

/* Where float16 piece p of a row lies: even ones in its first half, odd ones in its second, so
 * that what consecutive threads write lies in different banks; turned by the row, so that what
 * ldmatrix reads does. */
template <int DIM> static __device__ __forceinline__ int half_place(int row, int p)
{
    return row * DIM * 2 + ((p / 2 + p % 2 * (DIM / 16)) ^ row % 8) * 16;
}

template <int DIM, int TYPE> struct loader {
    typedef sizes<DIM, TYPE> S;

    int head_row;                       /* of the KV head's row 0 */
    struct ring ring;
    uint32_t raw;                       /* shared address: this thread's first piece */
    uint16_t k_scale, v_scale[S::PASSES];       /* of the tile on its way */

    __device__ __forceinline__ void open(const struct attend &a, int kv_head,
                                         const struct range &all, uint32_t memory)
    {
        head_row = kv_head * a.kv.rows;
        ring = ring_of(a, all);
        raw = memory + threadIdx.x * 16;
    }

    /* Queue the tile at pos.  A thread copies what it will convert itself. */
    __device__ __forceinline__ void fetch(const struct attend &a, int pos)
    {
        int first = pos + threadIdx.x / S::CHUNKS;

#pragma unroll
        for (int i = 0; i < S::PASSES; i++) {
            int row = head_row + row_at(ring, first + i * S::PASS_ROWS);
            size_t at = (size_t)row * S::ROW + threadIdx.x % S::CHUNKS * 16;
            uint32_t to = raw + i * ATTEND_THREADS * 16;

            copy_16(to, a.kv.k + at);
            copy_16(to + S::RAW, a.kv.v + at);
            if (TYPE == GPU_KV_Q8)
                v_scale[i] = __ldg(a.kv.v_scale + row);
        }
        if (TYPE == GPU_KV_Q8)
            k_scale = __ldg(a.kv.k_scale + head_row +
                            row_at(ring, pos + threadIdx.x % S::KEYS));
        end_copies();
    }

    /* The tile on its way, as float16, at half (keys, then values), the keys' scales times the
     * score's factor at scores [KEYS]. */
    __device__ __forceinline__ void convert(const struct attend &a, const uint8_t *memory,
                                            uint8_t *half, float *scores) const
    {
        await_copies<0>();
        if (threadIdx.x < S::KEYS)
            scores[threadIdx.x] =
                TYPE == GPU_KV_Q8 ? __half2float(__ushort_as_half(k_scale)) * a.score
                                  : a.score;
#pragma unroll
        for (int i = 0; i < S::PASSES; i++)
#pragma unroll
            for (int value = 0; value < 2; value++)
                convert_piece(memory + value * S::RAW, half + value * S::HALF, i, value);
    }

    __device__ __forceinline__ void convert_piece(const uint8_t *from, uint8_t *to, int i,
                                                  bool value) const
    {
        enum { WORDS = piece<TYPE>::WORDS, EACH = WORDS / 4 };
        int row = threadIdx.x / S::CHUNKS + i * S::PASS_ROWS, p = threadIdx.x % S::CHUNKS;
        uint4 v = *(const uint4 *)(from + (i * ATTEND_THREADS + threadIdx.x) * 16);
        uint32_t words[4] = { v.x, v.y, v.z, v.w }, h[WORDS];

        piece<TYPE>::convert(h, words);
        if (TYPE == GPU_KV_Q8 && value)
#pragma unroll
            for (int j = 0; j < WORDS; j++)
                h[j] = half_bits(__hmul2(half_pair(h[j]),
                                         __half2half2(__ushort_as_half(v_scale[i]))));
#pragma unroll
        for (int j = 0; j < EACH; j++)
            *(uint4 *)(to + half_place<DIM>(row, p * EACH + j)) =
                make_uint4(h[4 * j], h[4 * j + 1], h[4 * j + 2], h[4 * j + 3]);
    }
};

/* --- a warp's rows --------------------------------------------------------------------------- */

/* Of rows r and r + 8: results at dimensions 8 i + 2 t and the next, of this lane's keys the
 * sums.  A row sees the `window` keys before its end; first and last: of the warp's ends. */
template <int DIM> struct state {
    float o[DIM / 8][4];
    float max[2], sum[2];
    int end[2], first, last, window;
    uint32_t q[DIM / 16][4];
};

/* Rows that do not exist have queries of zero and see nothing. */
template <int DIM>
static __device__ __forceinline__ void begin_state(struct state<DIM> &st, const struct attend &a,
                                                   const struct rows &rs, int pos)
{
    int r = threadIdx.x % WARP / 4, t = threadIdx.x % 4;

#pragma unroll
    for (int i = 0; i < DIM / 8; i++)
        st.o[i][0] = st.o[i][1] = st.o[i][2] = st.o[i][3] = 0;
    st.max[0] = st.max[1] = NO_SCORE;
    st.sum[0] = st.sum[1] = 0;
    st.first = rs.count > 0 ? pos + token_of(rs, 0) + 1 : 0;
    st.last = rs.count > 0 ? pos + token_of(rs, rs.count - 1) + 1 : 0;
    st.window = a.window ? a.window : 1 << 30;
#pragma unroll
    for (int h = 0; h < 2; h++) {
        bool is = r + 8 * h < rs.count;
        int i = is ? r + 8 * h : 0;
        const uint16_t *at = a.q + ((size_t)(is ? token_of(rs, i) : 0) * a.heads +
                                    (is ? head_of(rs, i) : 0)) * DIM + 2 * t;

        st.end[h] = is ? pos + token_of(rs, i) + 1 : 0;
#pragma unroll
        for (int d = 0; d < DIM / 8; d++)
            st.q[d / 2][d % 2 * 2 + h] = is ? *(const uint32_t *)(at + d * 8) : 0;
    }
}

/* s = the rows' queries times the tile's keys. */
template <int DIM>
static __device__ __forceinline__ void multiply_keys(float (&s)[WARP_KEYS / 8][4],
                                                     const struct state<DIM> &st, uint32_t keys)
{
    int lane = threadIdx.x % WARP;
    uint32_t get = half_place<DIM>(lane % 8 + lane / 16 * 8, lane / 8 % 2);

#pragma unroll
    for (int j = 0; j < WARP_KEYS / 16; j++) {
#pragma unroll
        for (int e = 0; e < 4; e++)
            s[2 * j][e] = s[2 * j + 1][e] = 0;
#pragma unroll
        for (int d = 0; d < DIM / 16; d++) {
            uint32_t m[4];

            load_matrices(m, keys + j * 16 * DIM * 2 + (get ^ d * 16));
            mma_half(s[2 * j], st.q[d], m);
            mma_half(s[2 * j + 1], st.q[d], m + 2);
        }
    }
}

/* o += the probabilities s times the tile's values. */
template <int DIM>
static __device__ __forceinline__ void multiply_values(struct state<DIM> &st,
                                                       const float (&s)[WARP_KEYS / 8][4],
                                                       uint32_t values)
{
    int lane = threadIdx.x % WARP;
    uint32_t get = half_place<DIM>(lane % 16, lane / 16);

#pragma unroll
    for (int j = 0; j < WARP_KEYS / 16; j++) {
        uint32_t p[4];

#pragma unroll
        for (int e = 0; e < 4; e++)
            p[e] = half_bits(__floats2half2_rn(s[2 * j + e / 2][e % 2 * 2],
                                               s[2 * j + e / 2][e % 2 * 2 + 1]));
#pragma unroll
        for (int d = 0; d < DIM / 16; d++) {
            uint32_t m[4];

            load_turned(m, values + j * 16 * DIM * 2 + (get ^ d * 16));
            mma_half(st.o[2 * d], p, m);
            mma_half(st.o[2 * d + 1], p, m + 2);
        }
    }
}

/* Scores times their factors; -infinity where a row does not see the key. */
template <int DIM>
static __device__ __forceinline__ void scale_scores(float (&s)[WARP_KEYS / 8][4],
                                                    const struct state<DIM> &st,
                                                    const float *factor, int pos)
{
    int t = threadIdx.x % 4;

#pragma unroll
    for (int j = 0; j < WARP_KEYS / 8; j++) {
        float2 f = *(const float2 *)(factor + 8 * j + 2 * t);

#pragma unroll
        for (int e = 0; e < 4; e++)
            s[j][e] *= e % 2 ? f.y : f.x;
    }
    if (pos >= st.last - st.window && pos + WARP_KEYS <= st.first)
        return;
#pragma unroll
    for (int j = 0; j < WARP_KEYS / 8; j++)
#pragma unroll
        for (int e = 0; e < 4; e++) {
            int key = pos + 8 * j + 2 * t + e % 2;

            if (key < st.end[e / 2] - st.window || key >= st.end[e / 2])
                s[j][e] = -INFINITY;
        }
}

/* Scores to probabilities, the running maximum and sum, and earlier results rescaled. */
template <int DIM>
static __device__ __forceinline__ void soften(struct state<DIM> &st, float (&s)[WARP_KEYS / 8][4])
{
    bool moved = false;
    float rescale[2];

#pragma unroll
    for (int h = 0; h < 2; h++) {
        float top = st.max[h];

#pragma unroll
        for (int j = 0; j < WARP_KEYS / 8; j++)
            top = fmaxf(top, fmaxf(s[j][2 * h], s[j][2 * h + 1]));
        top = fmaxf(top, __shfl_xor_sync(~0u, top, 1));
        top = fmaxf(top, __shfl_xor_sync(~0u, top, 2));
        rescale[h] = power_of_2(st.max[h] - top);
        moved |= top != st.max[h];
        st.max[h] = top;
        st.sum[h] *= rescale[h];
#pragma unroll
        for (int j = 0; j < WARP_KEYS / 8; j++)
#pragma unroll
            for (int i = 0; i < 2; i++) {
                s[j][2 * h + i] = power_of_2(s[j][2 * h + i] - top);
                st.sum[h] += s[j][2 * h + i];
            }
    }
    if (!__any_sync(~0u, moved))
        return;
#pragma unroll
    for (int i = 0; i < DIM / 8; i++)
#pragma unroll
        for (int e = 0; e < 4; e++)
            st.o[i][e] *= rescale[e / 2];
}

template <int DIM>
static __device__ __forceinline__ void emit(const struct attend &a, const struct rows &rs,
                                            const struct state<DIM> &st)
{
    int r = threadIdx.x % WARP / 4, t = threadIdx.x % 4;

#pragma unroll
    for (int h = 0; h < 2; h++) {
        float sum = st.sum[h], scale;
        int i = r + 8 * h, token, head;
        bool each = a.gate_rows > a.heads;

        sum += __shfl_xor_sync(~0u, sum, 1);
        sum += __shfl_xor_sync(~0u, sum, 2);
        if (i >= rs.count)
            continue;
        token = token_of(rs, i);
        head = head_of(rs, i);
        scale = a.value / sum * (each ? 1 : gate_of(a, token, head, DIM, 0));
#pragma unroll
        for (int d = 0; d < DIM / 8; d++) {
            int at = 8 * d + 2 * t;
            float lo = st.o[d][2 * h] * scale, hi = st.o[d][2 * h + 1] * scale;

            if (each) {
                lo *= gate_of(a, token, head, DIM, at);
                hi *= gate_of(a, token, head, DIM, at + 1);
            }
            *(uint32_t *)(a.o + ((size_t)token * a.heads + head) * DIM + at) = bf16_bits(lo, hi);
        }
    }
}

/* --- the kernel ------------------------------------------------------------------------------ */

/* Block (tile of rows, KV head); the longest rows start first. */
template <int DIM, int TYPE>
__global__ static void __launch_bounds__(ATTEND_THREADS, 3) batch_kernel(const struct attend a)
{
    typedef sizes<DIM, TYPE> S;
    extern __shared__ uint4 memory[];   /* raw keys and values, float16 keys and values */
    __shared__ float scores[S::KEYS];
    uint8_t *raw = (uint8_t *)memory, *half = raw + 2 * S::RAW;
    struct loader<DIM, TYPE> in;
    struct state<DIM> st;
    int group = a.heads / a.kv_heads, pos = a.pos ? *a.pos : a.pos0;
    int first = (gridDim.x - 1 - blockIdx.x) * BLOCK_ROWS;
    int last = min(first + BLOCK_ROWS, a.n * group) - 1;
    int mine = first + threadIdx.x / WARP * WARP_ROWS;
    struct rows rs = { mine, group, min((int)WARP_ROWS, last + 1 - mine), (int)blockIdx.y };
    struct range all = { keys_of(a, pos, first / group).from, keys_of(a, pos, last / group).to };

    in.open(a, rs.kv_head, all, shared_address(raw));
    in.fetch(a, all.from);
    begin_state<DIM>(st, a, rs, pos);
    for (int at = all.from; at < all.to; at += S::KEYS) {
        __syncthreads();
        in.convert(a, raw, half, scores);
        if (at + S::KEYS < all.to)
            in.fetch(a, at + S::KEYS);
        __syncthreads();
#pragma unroll 1
        for (int i = 0; i < S::KEYS; i += WARP_KEYS) {
            uint32_t keys = shared_address(half) + i * S::HALF_ROW;
            float s[WARP_KEYS / 8][4];

            if (at + i >= st.last || at + i + WARP_KEYS <= st.first - st.window)
                continue;
            multiply_keys<DIM>(s, st, keys);
            scale_scores<DIM>(s, st, scores + i, at + i);
            soften<DIM>(st, s);
            multiply_values<DIM>(st, s, keys + S::HALF);
        }
    }
    emit<DIM>(a, rs, st);
}

template <int DIM, int TYPE> static void queue_kernel(struct gpu *g, const struct attend *a)
{
    int rows = a->n * (a->heads / a->kv_heads), shared = sizes<DIM, TYPE>::SHARED;

    TRY(g, cudaFuncSetAttribute(batch_kernel<DIM, TYPE>,
                                cudaFuncAttributeMaxDynamicSharedMemorySize, shared));
    batch_kernel<DIM, TYPE><<<dim3(ceil_div(rows, BLOCK_ROWS), a->kv_heads), ATTEND_THREADS,
                              shared, g->stream>>>(*a);
    LAUNCHED(g);
}

template <int DIM> static void queue_dim(struct gpu *g, const struct attend *a)
{
    if (g->c.kv == GPU_KV_Q8)
        queue_kernel<DIM, GPU_KV_Q8>(g, a);
    else if (g->c.kv == GPU_KV_FP8)
        queue_kernel<DIM, GPU_KV_FP8>(g, a);
    else
        queue_kernel<DIM, GPU_KV_BF16>(g, a);
}

void queue_attend_batch(struct gpu *g, const struct attend *a)
{
    if (g->shape.head_dim == 64)
        queue_dim<64>(g, a);
    else
        queue_dim<128>(g, a);
}
