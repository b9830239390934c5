/* Attention.  A warp holds 16 rows of queries that share a KV head: in a decode step the query
 * heads of one token, in a prefill (token, head) pairs in a row.  It walks over keys 16 at a
 * time with online softmax in float32.
 *
 * A decode step splits the keys over blocks and warps; whichever block of a head ends last
 * merges them in the order of the keys.  The grid is fixed, since a graph replays it: blocks
 * beyond the keys leave at once. */
#include "cuda/attend.cuh"
#include "cuda/ticket.cuh"

#include <cuda_bf16.h>

enum { ATTEND_WARPS = 4, STEP_KEYS = 16, CHUNK_LEAST = ATTEND_WARPS * STEP_KEYS };

enum { MAX_BLOCKS = 3 };

/* Blocks of a decode step on one multiprocessor, by the registers they need. */
static __host__ __device__ constexpr int blocks_of(int type)
{
    return type == GPU_KV_BF16 ? 2 : MAX_BLOCKS;
}

struct attend {
    const uint16_t *q;                  /* [n][heads][dim] float16 */
    const float *gate;                  /* [n][gate_rows] */
    bf16 *o;                            /* [n][heads][dim] */
    float *partial;                     /* [n][kv tiles][splits] of (dim + 2) * HEAD_ROWS */
    unsigned *ticket;                   /* [n][kv tiles] */
    const int *pos;
    struct kv_layer kv;
    int n, heads, kv_heads, gate_rows, window, splits, pos0;
    float score, value;                 /* factors of q k, in powers of 2, and of the result */
};

/* The rows of a warp's tile. */
struct rows {
    int first, group, count;            /* row i is (token, head) number first + i of the KV head */
    int kv_head, heads;
};

static __device__ __forceinline__ int token_of(const struct rows &s, int i)
{
    return (s.first + i) / s.group;
}

static __device__ __forceinline__ int head_of(const struct rows &s, int i)
{
    return s.kv_head * s.group + (s.first + i) % s.group;
}

struct range {
    int from, to;
};

static __device__ __forceinline__ struct range keys_of(const struct attend &a, int pos, int token)
{
    int to = pos + token + 1;

    return { a.window ? max(0, to - a.window) : 0, to };
}

/* Where positions from..to lie in the ring: at most one of its ends is between them. */
struct ring {
    int base, rows;
};

static __device__ __forceinline__ int row_at(const struct ring &r, int pos)
{
    int row = pos - r.base;

    return row >= r.rows ? row - r.rows : row;
}

/* Running softmax of one lane: rows r and r + 8, VALUES dims of two columns. */
template <int DIM> struct state {
    float o[DIM / 8][4];
    float max[2], sum[2];
};

template <int DIM, int TYPE> struct walker {
    typedef cached<TYPE> C;
    enum {
        PIECES = DIM / 64, K_WORDS = 16 / C::PER_WORD, VALUES = DIM / 8,
        V_WORDS = VALUES / C::PER_WORD
    };

    /* Keys 8 j + r in two tiles; values of keys 2 t, 2 t + 1, 8 + 2 t and 9 + 2 t. */
    uint32_t k[2][PIECES][K_WORDS], v[4][V_WORDS];
    float k_scale[2][2];
    __half2 v_scale[2];
    const uint8_t *keys, *values;
    const uint16_t *k_scales, *v_scales;
    struct ring ring;
    int last, r, t;                     /* last: the range's last position */

    __device__ __forceinline__ void open(const struct attend &a, int kv_head, int from, int to)
    {
        size_t at = (size_t)kv_head * a.kv.rows;

        keys = a.kv.k + at * DIM * C::BYTES;
        values = a.kv.v + at * DIM * C::BYTES;
        k_scales = a.kv.k_scale + at;
        v_scales = a.kv.v_scale + at;
        ring = { from / a.kv.rows * a.kv.rows, a.kv.rows };
        last = to - 1;
        r = threadIdx.x % WARP / 4;
        t = threadIdx.x % 4;
    }

    __device__ __forceinline__ int row(int pos) const
    {
        return row_at(ring, min(pos, last));
    }

    __device__ __forceinline__ void load_keys(int pos)
    {
#pragma unroll
        for (int j = 0; j < 2; j++) {
            const uint8_t *at = keys + (size_t)row(pos + 8 * j + r) * DIM * C::BYTES;

#pragma unroll
            for (int p = 0; p < PIECES; p++)
                load_words<K_WORDS>(k[j][p], at + (p * 64 + t * 16) * C::BYTES);
            if (TYPE == GPU_KV_Q8)
#pragma unroll
                for (int i = 0; i < 2; i++)
                    k_scale[j][i] = __half2float(
                        __ushort_as_half(__ldg(k_scales + row(pos + 8 * j + 2 * t + i))));
        }
    }

    __device__ __forceinline__ void load_values(int pos)
    {
#pragma unroll
        for (int j = 0; j < 2; j++) {
            int a = row(pos + 8 * j + 2 * t), b = row(pos + 8 * j + 2 * t + 1);

            load_words<V_WORDS>(v[2 * j], values + ((size_t)a * DIM + r * VALUES) * C::BYTES);
            load_words<V_WORDS>(v[2 * j + 1], values + ((size_t)b * DIM + r * VALUES) * C::BYTES);
            if (TYPE == GPU_KV_Q8)
                v_scale[j] = __halves2half2(__ushort_as_half(__ldg(v_scales + a)),
                                            __ushort_as_half(__ldg(v_scales + b)));
        }
    }

    /* s[j] = 16 rows of q times keys 8 j .. 8 j + 7. */
    __device__ __forceinline__ void multiply_keys(float s[2][4], const uint32_t q[DIM / 16][4])
    {
#pragma unroll
        for (int j = 0; j < 2; j++) {
            s[j][0] = s[j][1] = s[j][2] = s[j][3] = 0;
#pragma unroll
            for (int p = 0; p < PIECES; p++)
#pragma unroll
                for (int i = 0; i < 4; i++)
                    mma_half(s[j], q[p * 4 + i], C::neighbours(k[j][p], 2 * i),
                             C::neighbours(k[j][p], 2 * i + 1));
        }
    }

    __device__ __forceinline__ uint32_t value_pair(int j, int i) const
    {
        uint32_t u = C::across(v[2 * j], v[2 * j + 1], i);

        return TYPE == GPU_KV_Q8 ? half_bits(__hmul2(half_pair(u), v_scale[j])) : u;
    }

    __device__ __forceinline__ void multiply_values(struct state<DIM> &st, const uint32_t p[4])
    {
#pragma unroll
        for (int i = 0; i < VALUES; i++)
            mma_half(st.o[i], p, value_pair(0, i), value_pair(1, i));
    }
};

/* Scores to probabilities, the running maximum and sum, and earlier results rescaled. */
template <int DIM>
static __device__ __forceinline__ void soften(struct state<DIM> &st, float s[2][4])
{
    bool moved = false;
    float old[2];

#pragma unroll
    for (int h = 0; h < 2; h++) {
        float top = fmaxf(fmaxf(s[0][2 * h], s[0][2 * h + 1]), fmaxf(s[1][2 * h], s[1][2 * h + 1]));

        top = fmaxf(top, __shfl_xor_sync(~0u, top, 1));
        top = fmaxf(top, __shfl_xor_sync(~0u, top, 2));
        top = fmaxf(top, st.max[h]);
        old[h] = top == -INFINITY ? 1 : exp2f(st.max[h] - top);
        moved |= top != st.max[h];
        st.max[h] = top;
        st.sum[h] *= old[h];
        for (int j = 0; j < 2; j++)
            for (int i = 0; i < 2; i++) {
                float *v = &s[j][2 * h + i];

                *v = *v == -INFINITY ? 0 : exp2f(*v - top);
                st.sum[h] += *v;
            }
    }
    if (!__any_sync(~0u, moved))
        return;
#pragma unroll
    for (int i = 0; i < DIM / 8; i++)
#pragma unroll
        for (int c = 0; c < 4; c++)
            st.o[i][c] *= old[c / 2];
}

/* The rows' queries as fragments, and what each of this lane's two rows sees. */
template <int DIM>
static __device__ __forceinline__ void load_queries(uint32_t q[DIM / 16][4], struct range seen[2],
                                                    const struct attend &a, const struct rows &rs,
                                                    int pos)
{
    int r = threadIdx.x % WARP / 4, t = threadIdx.x % 4;

#pragma unroll
    for (int h = 0; h < 2; h++) {
        int i = r + 8 * h;
        bool is = i < rs.count;
        const uint16_t *at = a.q + ((size_t)(is ? token_of(rs, i) : 0) * a.heads +
                                    (is ? head_of(rs, i) : 0)) * DIM;

        if (is)
            seen[h] = keys_of(a, pos, token_of(rs, i));
#pragma unroll
        for (int p = 0; p < DIM / 64; p++) {
            uint32_t words[8];

            load_words<8>(words, (const uint8_t *)(at + p * 64 + t * 16));
#pragma unroll
            for (int s = 0; s < 4; s++) {
                q[p * 4 + s][h] = is ? words[2 * s] : 0;
                q[p * 4 + s][2 + h] = is ? words[2 * s + 1] : 0;
            }
        }
    }
}

/* Keys begin, begin + stride, ... (16 each) below end, for the rows of this warp. */
template <int DIM, int TYPE>
static __device__ void walk(struct state<DIM> &st, const struct attend &a, const struct rows &rs,
                            int pos, struct range all, int begin, int end, int stride)
{
    walker<DIM, TYPE> w;
    uint32_t q[DIM / 16][4];
    struct range seen[2] = {};
    int inside_from, inside_to;

    w.open(a, rs.kv_head, all.from, all.to);
    load_queries<DIM>(q, seen, a, rs, pos);
    /* Between these no row masks anything; rows that do not exist may see what they like. */
    inside_from = keys_of(a, pos, token_of(rs, rs.count - 1)).from;
    inside_to = keys_of(a, pos, token_of(rs, 0)).to;
    if (begin < end)
        w.load_keys(begin);
    for (int at = begin; at < end; at += stride) {
        float s[2][4];
        uint32_t p[4];
        bool masked = at < inside_from || at + STEP_KEYS > min(inside_to, end);

        w.load_values(at);
        w.multiply_keys(s, q);
#pragma unroll
        for (int j = 0; j < 2; j++)
#pragma unroll
            for (int i = 0; i < 4; i++) {
                int key = at + 8 * j + 2 * w.t + i % 2;

                s[j][i] *= a.score * (TYPE == GPU_KV_Q8 ? w.k_scale[j][i % 2] : 1);
                if (masked && (key < seen[i / 2].from || key >= min(seen[i / 2].to, end)))
                    s[j][i] = -INFINITY;
            }
        if (at + stride < end)
            w.load_keys(at + stride);
        soften<DIM>(st, s);
        p[0] = half_bits(__floats2half2_rn(s[0][0], s[0][1]));
        p[1] = half_bits(__floats2half2_rn(s[0][2], s[0][3]));
        p[2] = half_bits(__floats2half2_rn(s[1][0], s[1][1]));
        p[3] = half_bits(__floats2half2_rn(s[1][2], s[1][3]));
        w.multiply_values(st, p);
    }
#pragma unroll
    for (int h = 0; h < 2; h++) {
        st.sum[h] += __shfl_xor_sync(~0u, st.sum[h], 1);
        st.sum[h] += __shfl_xor_sync(~0u, st.sum[h], 2);
    }
}

template <int DIM> static __device__ __forceinline__ void begin_state(struct state<DIM> &st)
{
#pragma unroll
    for (int i = 0; i < DIM / 8; i++)
        st.o[i][0] = st.o[i][1] = st.o[i][2] = st.o[i][3] = 0;
    st.max[0] = st.max[1] = -INFINITY;
    st.sum[0] = st.sum[1] = 0;
}

/* softplus of the output gate of one element: laguna.md 2.3. */
static __device__ float gate_of(const struct attend &a, int token, int head, int dim, int d)
{
    float g;

    if (!a.gate_rows)
        return 1;
    g = a.gate[(size_t)token * a.gate_rows + (a.gate_rows == a.heads ? head : head * dim + d)];
    return g > 20 ? g : log1pf(expf(g));
}

static __device__ void emit(const struct attend &a, const struct rows &rs, int i, int dim, int d,
                            float v)
{
    int token = token_of(rs, i), head = head_of(rs, i);

    v *= a.value * gate_of(a, token, head, dim, d);
    a.o[((size_t)token * a.heads + head) * dim + d] =
        __bfloat16_as_ushort(__float2bfloat16_rn(v));
}

/* Four dimensions at once. */
static __device__ void emit_vector(const struct attend &a, const struct rows &rs, int i, int dim,
                                   int d, const float4 &v)
{
    int token = token_of(rs, i), head = head_of(rs, i);
    float g[4];

#pragma unroll
    for (int j = 0; j < 4; j++)
        g[j] = j && a.gate_rows <= a.heads ? g[0] : a.value * gate_of(a, token, head, dim, d + j);
    __nv_bfloat162 lo = __floats2bfloat162_rn(v.x * g[0], v.y * g[1]);
    __nv_bfloat162 hi = __floats2bfloat162_rn(v.z * g[2], v.w * g[3]);

    *(uint2 *)(a.o + ((size_t)token * a.heads + head) * dim + d) =
        make_uint2(*(uint32_t *)&lo, *(uint32_t *)&hi);
}

/* Prefill: each warp has rows of its own and all their keys. */
template <int DIM, int TYPE>
__global__ static void __launch_bounds__(ATTEND_WARPS *WARP) prefill_kernel(const struct attend a)
{
    struct state<DIM> st;
    struct rows rs;
    struct range all;
    int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP, pos = a.pos ? *a.pos : a.pos0;

    rs.group = a.heads / a.kv_heads;
    rs.first = ((gridDim.x - 1 - blockIdx.x) * ATTEND_WARPS + warp) * HEAD_ROWS;
    rs.count = min(HEAD_ROWS, a.n * rs.group - rs.first);
    rs.kv_head = blockIdx.y;
    rs.heads = a.heads;
    if (rs.count <= 0)
        return;
    all.from = keys_of(a, pos, token_of(rs, 0)).from;
    all.to = keys_of(a, pos, token_of(rs, rs.count - 1)).to;
    begin_state<DIM>(st);
    walk<DIM, TYPE>(st, a, rs, pos, all, all.from, all.to, STEP_KEYS);
#pragma unroll
    for (int h = 0; h < 2; h++) {
        int i = lane / 4 + 8 * h;

        if (i >= rs.count)
            continue;
#pragma unroll
        for (int m = 0; m < DIM / 8; m++)
#pragma unroll
            for (int c = 0; c < 2; c++)
                emit(a, rs, i, DIM, (2 * (lane % 4) + c) * (DIM / 8) + m,
                     st.o[m][2 * h + c] / st.sum[h]);
    }
}

/* A part of the keys' result: o [HEAD_ROWS][dim + 4], normalised, then the rows' maxima and
 * sums.  The pad lets eight rows be stored at once in shared memory. */
static __host__ __device__ constexpr int part_row(int dim)
{
    return dim + 4;
}

static __host__ __device__ constexpr int part_floats(int dim)
{
    return HEAD_ROWS * (part_row(dim) + 2);
}

template <int DIM> static __device__ void keep_state(float *to, const struct state<DIM> &st)
{
    int lane = threadIdx.x % WARP;

#pragma unroll
    for (int h = 0; h < 2; h++) {
        int i = lane / 4 + 8 * h;
        float scale = st.sum[h] > 0 ? 1 / st.sum[h] : 0;

#pragma unroll
        for (int c = 0; c < 2; c++)
#pragma unroll
            for (int m = 0; m < DIM / 8; m += 4)
                *(float4 *)(to + i * part_row(DIM) + (2 * (lane % 4) + c) * (DIM / 8) + m) =
                    make_float4(st.o[m][2 * h + c] * scale, st.o[m + 1][2 * h + c] * scale,
                                st.o[m + 2][2 * h + c] * scale, st.o[m + 3][2 * h + c] * scale);
        to[HEAD_ROWS * part_row(DIM) + i] = st.max[h];
        to[HEAD_ROWS * (part_row(DIM) + 1) + i] = st.sum[h];
    }
}

/* What the parts of one result weigh in it; in shared memory. */
struct weights {
    float max[MAX_SPLITS][HEAD_ROWS], part[MAX_SPLITS][HEAD_ROWS];
    float all_max[HEAD_ROWS], all_sum[HEAD_ROWS];
};

/* The weights of n parts, `stride` floats apart.  Eight lanes a row: a fixed order of sums. */
template <int DIM>
static __device__ void weigh(struct weights &w, const float *p, size_t stride, int n)
{
    enum { LANES = ATTEND_WARPS * WARP / HEAD_ROWS };
    int i = threadIdx.x / LANES, lane = threadIdx.x % LANES;
    float max = -INFINITY, sum = 0;

    for (int e = threadIdx.x; e < n * HEAD_ROWS; e += blockDim.x) {
        const float *of = p + e / HEAD_ROWS * stride + HEAD_ROWS * part_row(DIM) +
                          e % HEAD_ROWS;

        w.max[0][e] = of[0];
        w.part[0][e] = of[HEAD_ROWS];
    }
    __syncthreads();
    for (int s = lane; s < n; s += LANES)
        max = fmaxf(max, w.max[s][i]);
    for (int o = LANES / 2; o; o /= 2)
        max = fmaxf(max, __shfl_xor_sync(~0u, max, o));
    for (int s = lane; s < n; s += LANES) {
        w.part[s][i] *= w.max[s][i] == -INFINITY ? 0 : exp2f(w.max[s][i] - max);
        sum += w.part[s][i];
    }
    for (int o = LANES / 2; o; o /= 2)
        sum += __shfl_xor_sync(~0u, sum, o);
    for (int s = lane; s < n; s += LANES)
        w.part[s][i] /= sum;
    if (lane == 0) {
        w.all_max[i] = max;
        w.all_sum[i] = sum;
    }
    __syncthreads();
}

/* Dimensions d to d + 3 of a row's weighted sum, parts in their order. */
template <int DIM>
static __device__ float4 merge(const struct weights &w, const float *p, size_t stride, int n,
                               int row, int d)
{
    float4 r = make_float4(0, 0, 0, 0);

#pragma unroll 8
    for (int s = 0; s < n; s++) {
        float4 v = *(const float4 *)(p + s * stride + row * part_row(DIM) + d);
        float f = w.part[s][row];

        r.x += f * v.x;
        r.y += f * v.y;
        r.z += f * v.z;
        r.w += f * v.w;
    }
    return r;
}

/* One result of the block's warps: to the output where it is all there is, else for later. */
template <int DIM>
static __device__ void merge_warps(const struct attend &a, const struct rows &rs,
                                   struct weights &w, const float *memory, float *to, bool only)
{
    weigh<DIM>(w, memory, part_floats(DIM), ATTEND_WARPS);
    for (int e = threadIdx.x; e < rs.count * (DIM / 4); e += blockDim.x) {
        int row = e / (DIM / 4), d = e % (DIM / 4) * 4;
        float4 v = merge<DIM>(w, memory, part_floats(DIM), ATTEND_WARPS, row, d);

        if (only)
            emit_vector(a, rs, row, DIM, d, v);
        else
            *(float4 *)(to + row * part_row(DIM) + d) = v;
    }
    if (!only && threadIdx.x < HEAD_ROWS) {
        to[HEAD_ROWS * part_row(DIM) + threadIdx.x] = w.all_max[threadIdx.x];
        to[HEAD_ROWS * (part_row(DIM) + 1) + threadIdx.x] = w.all_sum[threadIdx.x];
    }
}

/* Decode: block (split, KV head and tile of its heads, token). */
template <int DIM, int TYPE>
__global__ static void __launch_bounds__(ATTEND_WARPS *WARP, blocks_of(TYPE))
    decode_kernel(const struct attend a)
{
    enum { PARTIAL = part_floats(DIM) };
    extern __shared__ float4 memory[];  /* [ATTEND_WARPS][PARTIAL] floats */
    __shared__ struct weights w;
    struct state<DIM> st;
    struct rows rs;
    int warp = threadIdx.x / WARP, pos = a.pos ? *a.pos : a.pos0;
    int group = a.heads / a.kv_heads, tiles = (group + HEAD_ROWS - 1) / HEAD_ROWS;
    int tile = blockIdx.y % tiles, token = blockIdx.z;
    struct range all = keys_of(a, pos, token);
    int keys = all.to - all.from, chunk, active, begin, end;
    size_t at = (size_t)token * gridDim.y + blockIdx.y;
    float *partial = a.partial + at * a.splits * PARTIAL;

    begin_in_order();
    chunk = max((int)CHUNK_LEAST,
                ((keys + a.splits - 1) / a.splits + CHUNK_LEAST - 1) / CHUNK_LEAST * CHUNK_LEAST);
    active = (keys + chunk - 1) / chunk;
    if ((int)blockIdx.x >= active)
        return;
    begin = all.from + blockIdx.x * chunk;
    end = min(begin + chunk, all.to);
    rs.group = group;
    rs.first = token * group + tile * HEAD_ROWS;
    rs.count = min(HEAD_ROWS, group - tile * HEAD_ROWS);
    rs.kv_head = blockIdx.y / tiles;
    rs.heads = a.heads;
    begin_state<DIM>(st);
    walk<DIM, TYPE>(st, a, rs, pos, all, begin + warp * STEP_KEYS, end,
                    ATTEND_WARPS * STEP_KEYS);
    keep_state<DIM>((float *)memory + warp * PARTIAL, st);
    __syncthreads();
    merge_warps<DIM>(a, rs, w, (const float *)memory, partial + blockIdx.x * PARTIAL, active == 1);
    if (active == 1 || !last_block(a.ticket + at, active))
        return;
    weigh<DIM>(w, partial, PARTIAL, active);
    for (int e = threadIdx.x; e < rs.count * (DIM / 4); e += blockDim.x) {
        int row = e / (DIM / 4), d = e % (DIM / 4) * 4;

        emit_vector(a, rs, row, DIM, d, merge<DIM>(w, partial, PARTIAL, active, row, d));
    }
}

static int kv_tiles(const struct shape *s, int heads)
{
    return s->kv_heads * ceil_div(heads / s->kv_heads, HEAD_ROWS);
}

/* As many blocks as run at the same time, whatever the number of tokens: one more would run
 * after all others. */
static int splits_of(const struct gpu *g, int tiles, int n)
{
    int splits = blocks_of(g->c.kv) * g->sms / (tiles * n);

    return splits < 1 ? 1 : splits < MAX_SPLITS ? splits : MAX_SPLITS;
}

size_t attend_partial_floats(const struct gpu *g)
{
    int tiles = kv_tiles(&g->shape, g->shape.max_heads);
    size_t blocks = (size_t)(MAX_BLOCKS * g->sms + tiles * GPU_STEP_TOKENS);

    return blocks * part_floats(g->shape.head_dim);
}

template <int DIM, int TYPE> static void queue_type(struct gpu *g, const struct attend *a)
{
    int rows = a->n * (a->heads / a->kv_heads), tiles = kv_tiles(&g->shape, a->heads);

    if (a->n > GPU_STEP_TOKENS) {
        prefill_kernel<DIM, TYPE><<<dim3(ceil_div(rows, ATTEND_WARPS * HEAD_ROWS), a->kv_heads),
                                    ATTEND_WARPS * WARP, 0, g->stream>>>(*a);
        LAUNCHED(g);
    } else {
        size_t shared = ATTEND_WARPS * part_floats(DIM) * sizeof(float);

        launch_early(g, decode_kernel<DIM, TYPE>, dim3(a->splits, tiles, a->n),
                     ATTEND_WARPS * WARP, shared, *a);
    }
}

template <int DIM> static void queue_dim(struct gpu *g, const struct attend *a)
{
    if (g->c.kv == GPU_KV_Q8)
        queue_type<DIM, GPU_KV_Q8>(g, a);
    else if (g->c.kv == GPU_KV_FP8)
        queue_type<DIM, GPU_KV_FP8>(g, a);
    else
        queue_type<DIM, GPU_KV_BF16>(g, a);
}

void queue_attend(struct gpu *g, int layer, int n, const int *pos, int pos0)
{
    const struct shape *s = &g->shape;
    const struct layer_shape *l = &s->layer[layer];
    const struct layer_weights *w = &g->layer[layer];
    bool fp8 = g->c.kv == GPU_KV_FP8;
    struct attend a = {
        .q = g->s.q16, .gate = g->s.g, .o = g->s.o, .partial = g->s.partial,
        .ticket = g->s.ticket, .pos = pos, .kv = g->kv[layer], .n = n, .heads = l->heads,
        .kv_heads = s->kv_heads, .gate_rows = w->g.rows, .window = l->full ? 0 : s->window,
        .splits = splits_of(g, kv_tiles(s, l->heads), n), .pos0 = pos0,
        .score = 1.44269504f / sqrtf((float)s->head_dim) * (fp8 ? 256 * w->k_scale : 1),
        .value = fp8 ? 256 * w->v_scale : 1,
    };

    if (s->head_dim == 64)
        queue_dim<64>(g, &a);
    else
        queue_dim<128>(g, &a);
}
