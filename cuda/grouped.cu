/* The routed experts of a batch: one launch multiplies the tokens of all experts of a wave, each
 * by its own matrices, which are dequantised in registers on their way to the tensor cores.
 *
 * A block takes one tile of an expert's tokens and 16 * 2 rows of weights for each of its warps:
 * gate and up of the same 16 rows, so that silu needs no second pass, or 32 rows of down.  No
 * weight is wanted by two warps, so weights go from memory to registers; activations are shared
 * by all warps and come through shared memory, 128 columns at a time, the next while these are
 * multiplied.  A row's sum runs over all columns in one warp, in ascending order whatever the
 * size of the tile: the same token gives the same bits in every batch.
 *
 * Order of columns.  Lane t of a row's four takes columns 32 t to 32 t + 31 of each 128, for
 * int4 one load of 16 bytes, and of those a pair of columns four apart for each register of a
 * fragment (codec::apart).  Activations are stored in the order this asks for: element e of
 * lane t's pair i is at 8 i + 2 t + e of its 128. */
#include "cuda/matvec.cuh"

enum {
    WARPS = 8, THREADS = WARPS * WARP,
    BLOCK = 128,                        /* columns of a stage */
    STAGE_ROW = BLOCK * sizeof(bf16), STAGES = 2,
    GATE_ROWS = WARPS * TILE_ROWS,      /* of gate, and as many of up */
    DOWN_ROWS = 2 * GATE_ROWS,
};

/* What the blocks of a launch share. */
struct grouped {
    struct lists l;                     /* on the device */
    const struct token_tile *tile;      /* [gridDim.y] */
    const bf16 *x;                      /* rows of x_stride, in the order of columns above */
    size_t x_stride;                    /* a multiple of BLOCK */
    bool down;
    bf16 *inner;                        /* [pairs][inner_stride], in the same order */
    size_t inner_stride;
    float *out;                         /* [pairs][hidden] */
};

/* Where a column of 128 lies. */
static __device__ __forceinline__ int place_of(int column)
{
    int lane = column / 32, word = column % 32 / 8, at = column % 8;

    return 8 * (4 * word + at % 4) + 2 * lane + at / 4;
}

static __device__ __forceinline__ uint32_t shared_at(const void *p)
{
    return (uint32_t)__cvta_generic_to_shared(p);
}

static __device__ __forceinline__ void copy_16(uint32_t to, const void *from)
{
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" : : "r"(to), "l"(from) : "memory");
}

static __device__ __forceinline__ void copies_done(void)
{
    asm volatile("cp.async.wait_all;" : : : "memory");
}

/* Columns 16 by 16 of 16 tokens: the second operand of two products. */
static __device__ __forceinline__ void load_tokens(uint32_t b[4], uint32_t from)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(b[0]), "=r"(b[1]), "=r"(b[2]), "=r"(b[3])
                 : "r"(from));
}

/* The activations of a tile on their way through shared memory.  A token's 128 columns are 16
 * pieces of 16 bytes; piece i of token n lies at i ^ n % 8, so that eight tokens' equal pieces
 * are in all banks. */
template <int NT> struct stream_of_tokens {
    enum { STAGE_BYTES = NT * 8 * STAGE_ROW };

    const uint8_t *x;
    const uint32_t *row;                /* shared: [8 * NT], where in x, in units of 16 bytes */
    uint32_t ring, lane_at;

    __device__ __forceinline__ stream_of_tokens(const bf16 *from, const uint32_t *rows,
                                                const uint8_t *memory)
        : x((const uint8_t *)from), row(rows), ring(shared_at(memory))
    {
        int lane = threadIdx.x % WARP, token = lane / 16 * 8 + lane % 8;

        lane_at = token * STAGE_ROW + ((lane / 8 % 2 ^ token % 8) << 4);
    }

    __device__ __forceinline__ void fill(int stage)
    {
        int piece = threadIdx.x % 16, first = threadIdx.x / 16;
        uint32_t to = ring + stage % STAGES * STAGE_BYTES + first * STAGE_ROW +
                      ((piece ^ first % 8) << 4);

#pragma unroll
        for (int i = 0; i < NT / 2; i++)
            copy_16(to + i * 16 * STAGE_ROW,
                    x + ((size_t)row[first + i * 16] + stage * 16 + piece) * 16);
    }

    /* The lane's address for 16 columns of the stage; tokens 16 further are 16 rows further. */
    __device__ __forceinline__ uint32_t step_at(int stage, int step) const
    {
        return (ring + stage % STAGES * STAGE_BYTES + lane_at) ^ step << 5;
    }
};

/* A fragment's matrix.  In shared memory, where it costs no registers: 128 columns are loaded
 * for every 256 products. */
struct side {
    struct matrix m;
    struct groups groups;
    uint32_t row_bytes;
    int row0;                           /* of warp 0; a further warp's are `step` further */
    int step;
};

/* Of two fragments, rows r and r + 8 each: what a lane loads at once, and has to multiply. */
template <enum wformat F> struct weight_rows {
    typedef codec<F> C;

    struct loaded {
        uint4 w[2][2];                  /* [fragment][row] */
        struct packed p[2][2];
    };

    struct unit {
        uint4 w[2][2];
        struct dequant d[2][2];
    };

    static __device__ __forceinline__ int row_of(const struct side &s, int h)
    {
        int warp = (int)threadIdx.x / WARP, r = (int)threadIdx.x % WARP / 4;

        return min(s.row0 + warp * s.step + r + 8 * h, s.m.rows - 1);
    }

    /* Unit u of the lane's 32 columns of a block, which share a scale, loaded with the first.
     * Columns beyond the last are some others: their activations are zero.  The side to be left
     * out loads what the other does. */
    static __device__ __forceinline__ void load(struct loaded &to, const struct side *side,
                                                int out, int block, int u)
    {
        int column = block * BLOCK + (int)threadIdx.x % 4 * 32;

#pragma unroll
        for (int f = 0; f < 2; f++) {
            const struct side &s = side[f == out ? 1 - f : f];
            const struct matrix &m = s.m;
            int k = min(column, m.cols - 32);
            const uint8_t *w = (const uint8_t *)m.weight + row_bytes(F, k + u * C::COLUMNS);

#pragma unroll
            for (int h = 0; h < 2; h++) {
                int row = row_of(s, h);

                to.w[f][h] = __ldg((const uint4 *)(w + (size_t)row * s.row_bytes));
                if (u == 0)
                    to.p[f][h] = C::fetch(m, s.groups, row, k);
            }
        }
    }

    /* The side to be left out becomes zero. */
    static __device__ __forceinline__ void unpack(struct unit &to, const struct loaded &from,
                                                  const struct side *side, int out)
    {
#pragma unroll
        for (int f = 0; f < 2; f++)
#pragma unroll
            for (int h = 0; h < 2; h++) {
                to.w[f][h] = from.w[f][h];
                to.d[f][h] = C::unpack(from.p[f][h], side[f].m, row_of(side[f], h));
                if (f == out) {
                    to.w[f][h] = make_uint4(0, 0, 0, 0);
                    to.d[f][h] = dequant{};
                }
            }
    }

    static __device__ __forceinline__ void fragment(uint32_t a[4], const struct unit &u, int f,
                                                    int s)
    {
        const uint4 &top = u.w[f][0], &low = u.w[f][1];
        const uint32_t wt[4] = { top.x, top.y, top.z, top.w };
        const uint32_t wl[4] = { low.x, low.y, low.z, low.w };

        a[0] = C::apart(wt, 2 * s, u.d[f][0]);
        a[1] = C::apart(wl, 2 * s, u.d[f][1]);
        a[2] = C::apart(wt, 2 * s + 1, u.d[f][0]);
        a[3] = C::apart(wl, 2 * s + 1, u.d[f][1]);
    }
};

/* One step of 16 columns: two fragments of weights with all tokens of the tile. */
template <int NT>
static __device__ __forceinline__ void multiply_step(float acc[2][NT][4], const uint32_t a[2][4],
                                                     uint32_t x)
{
#pragma unroll
    for (int j = 0; j < NT; j += 2) {
        uint32_t b[4];

        load_tokens(b, x + j * 8 * STAGE_ROW);
#pragma unroll
        for (int f = 0; f < 2; f++) {
            mma_bf16(acc[f][j], a[f], b[0], b[1]);
            mma_bf16(acc[f][j + 1], a[f], b[2], b[3]);
        }
    }
}

/* acc += two fragments of weights times the tile, over all columns. */
template <enum wformat F, int NT>
static __device__ __forceinline__ void multiply_all(float acc[2][NT][4], const struct side *side,
                                                    int out, struct stream_of_tokens<NT> &x)
{
    typedef weight_rows<F> W;
    typedef codec<F> C;
    enum { UNITS = 32 / C::COLUMNS };
    int blocks = (side->m.cols + BLOCK - 1) / BLOCK;
    typename W::loaded next;
    typename W::unit now;

    x.fill(0);
    W::load(next, side, out, 0, 0);
    for (int b = 0; b < blocks; b++) {
        copies_done();
        __syncthreads();
        if (b + 1 < blocks)
            x.fill(b + 1);
#pragma unroll
        for (int u = 0; u < UNITS; u++) {
            W::unpack(now, next, side, out);
            W::load(next, side, out, b + (u + 1) / UNITS, (u + 1) % UNITS);
#pragma unroll
            for (int s = 0; s < C::STEPS; s++) {
                uint32_t a[2][4];

                W::fragment(a[0], now, 0, s);
                W::fragment(a[1], now, 1, s);
                multiply_step<NT>(acc, a, x.step_at(b, u * C::STEPS + s));
            }
        }
    }
    __syncthreads();
}

/* Whatever the format.  Where gate and up differ in it, they are two passes, each of which
 * leaves the other out. */
template <int NT>
static __device__ __forceinline__ void multiply(float acc[2][NT][4], const struct side *side,
                                                struct stream_of_tokens<NT> &x)
{
    bool alike = side[0].m.format == side[1].m.format;

    for (int pass = 0; pass < (alike ? 1 : 2); pass++) {
        int out = alike ? -1 : 1 - pass;

        switch (side[pass].m.format) {
        case W_BF16:
            multiply_all<W_BF16, NT>(acc, side, out, x);
            break;
        case W_INT8:
            multiply_all<W_INT8, NT>(acc, side, out, x);
            break;
        case W_INT4:
            multiply_all<W_INT4, NT>(acc, side, out, x);
            break;
        default:
            multiply_all<W_MXFP4, NT>(acc, side, out, x);
            break;
        }
    }
}

/* inner = silu(gate) * up of 128 rows, which are 128 columns of down: through shared memory, so
 * that whole rows are written.  Rows beyond the last are the zeros that fill down's block. */
template <int NT>
static __device__ __forceinline__ void store_inner(const struct grouped &a,
                                                   const struct token_tile &t, int rows,
                                                   const float acc[2][NT][4], uint8_t *memory)
{
    int lane = threadIdx.x % WARP, row0 = threadIdx.x / WARP * TILE_ROWS + lane / 4;

#pragma unroll
    for (int j = 0; j < NT; j++)
#pragma unroll
        for (int i = 0; i < 4; i++) {
            int row = row0 + i / 2 * 8, token = j * 8 + lane % 4 * 2 + i % 2, at = place_of(row);
            float g = acc[0][j][i], y = g / (1 + expf(-g)) * acc[1][j][i];
            bf16 *to = (bf16 *)(memory + token * STAGE_ROW + ((at / 8 ^ token % 8) << 4));

            to[at % 8] = (int)blockIdx.x * GATE_ROWS + row < rows
                             ? __bfloat16_as_ushort(__float2bfloat16_rn(y)) : 0;
        }
    __syncthreads();
    for (int i = threadIdx.x; i < t.n * 16; i += THREADS) {
        int token = i / 16, piece = i % 16;
        bf16 *to = a.inner + (t.first + token) * a.inner_stride + blockIdx.x * GATE_ROWS;

        ((uint4 *)to)[piece] = *(const uint4 *)(memory + token * STAGE_ROW +
                                                ((piece ^ token % 8) << 4));
    }
}

template <int NT>
static __device__ __forceinline__ void store_out(const struct grouped &a,
                                                 const struct token_tile &t,
                                                 const struct side &s,
                                                 const float acc[2][NT][4])
{
    int lane = threadIdx.x % WARP, rows = s.m.rows;
    int row0 = s.row0 + (int)threadIdx.x / WARP * s.step + lane / 4;

#pragma unroll
    for (int j = 0; j < NT; j++)
#pragma unroll
        for (int i = 0; i < 2; i++) {
            int token = j * 8 + lane % 4 * 2 + i;
            float *to = a.out + (size_t)(t.first + token) * rows;

            if (token >= t.n)
                continue;
#pragma unroll
            for (int f = 0; f < 2; f++)
#pragma unroll
                for (int h = 0; h < 2; h++) {
                    int row = row0 + f * TILE_ROWS + h * 8;

                    if (row < rows)
                        to[row] = acc[f][j][2 * h + i];
                }
        }
}

/* What a block works with, but for its ring. */
struct work {
    struct side side[2];
    uint32_t row[WIDE_TOKENS];          /* of the activations, in units of 16 bytes */
};

/* Tokens beyond the last are the last again: nobody reads them. */
static __device__ __forceinline__ void begin_work(struct work &w, const struct grouped &a,
                                                  const struct token_tile &t)
{
    const struct ffn *f = &a.l.ffn[t.expert];
    int i = threadIdx.x;

    if (i < WIDE_TOKENS) {
        int pair = t.first + min(i, t.n - 1);

        w.row[i] = (uint32_t)((a.down ? pair : a.l.token[pair]) * (a.x_stride / 8));
    } else if (i < WIDE_TOKENS + 2) {
        struct side &s = w.side[i - WIDE_TOKENS];

        s.m = a.down ? f->down : i == WIDE_TOKENS ? f->gate : f->up;
        s.groups = groups_of(s.m);
        s.row_bytes = (uint32_t)row_bytes(s.m.format, s.m.cols);
        s.step = a.down ? 2 * TILE_ROWS : TILE_ROWS;
        s.row0 = blockIdx.x * WARPS * s.step + (a.down ? (i - WIDE_TOKENS) * TILE_ROWS : 0);
    }
    __syncthreads();
}

template <int NT>
static __device__ __forceinline__ void run_tile(const struct grouped &a,
                                                const struct token_tile &t, const struct work &w,
                                                uint8_t *ring)
{
    struct stream_of_tokens<NT> x(a.x, w.row, ring);
    float acc[2][NT][4] = {};

    multiply<NT>(acc, w.side, x);
    if (a.down)
        store_out<NT>(a, t, w.side[0], acc);
    else
        store_inner<NT>(a, t, w.side[0].m.rows, acc, ring);
}

/* One block a multiprocessor has the registers for 128 tokens; for few tokens two, since more
 * weights must then be on their way. */
template <bool WIDE>
__global__ static void __launch_bounds__(THREADS, WIDE ? 1 : 2)
    grouped_kernel(const struct grouped a)
{
    extern __shared__ __align__(256) uint8_t ring[];
    __shared__ struct work w;
    const struct token_tile t = a.tile[blockIdx.y];

    begin_work(w, a, t);
    if (WIDE && t.n > 96)
        run_tile<WIDE ? 16 : 2>(a, t, w, ring);
    else if (WIDE && t.n > 64)
        run_tile<WIDE ? 12 : 2>(a, t, w, ring);
    else if (WIDE)
        run_tile<WIDE ? 8 : 2>(a, t, w, ring);
    else if (t.n > 16)
        run_tile<4>(a, t, w, ring);
    else
        run_tile<2>(a, t, w, ring);
}

/* to = h in the order of columns that products take, with zeros up to a whole block: 16 bytes of
 * a row a thread, lanes of a block's quarters side by side. */
__global__ static void order_kernel(bf16 *to, const bf16 *h, int hidden, int stride)
{
    int i = blockIdx.y * blockDim.x + threadIdx.x, lane = i % 4, word = i / 4 % 4, block = i / 16;
    int column = block * BLOCK + lane * 32 + word * 8;
    uint32_t *out = (uint32_t *)(to + (size_t)blockIdx.x * stride + block * BLOCK);
    uint4 v = make_uint4(0, 0, 0, 0);

    if (block * BLOCK >= stride)
        return;
    if (column < hidden)
        v = *(const uint4 *)(h + (size_t)blockIdx.x * hidden + column);
    const uint32_t low[2] = { v.x, v.y }, high[2] = { v.z, v.w };

#pragma unroll
    for (int r = 0; r < 4; r++)
        out[4 * (4 * word + r) + lane] = __byte_perm(low[r / 2], high[r / 2],
                                                     r % 2 ? 0x7632 : 0x5410);
}

size_t grouped_stride(int cols)
{
    return align_up(cols, BLOCK);
}

void queue_order(struct gpu *g)
{
    int stride = (int)grouped_stride(g->shape.hidden);

    order_kernel<<<dim3(g->tokens, ceil_div(stride / 8, 128)), 128, 0, g->stream>>>(
        g->s.ordered, g->s.h, g->shape.hidden, stride);
    LAUNCHED(g);
}

static void queue_tiles(struct gpu *g, struct grouped a, int row_tiles)
{
    enum { WIDE_BYTES = STAGES * WIDE_TOKENS * STAGE_ROW,
           NARROW_BYTES = STAGES * NARROW_TOKENS * STAGE_ROW };

    if (a.l.wide) {
        TRY(g, cudaFuncSetAttribute(grouped_kernel<true>,
                                    cudaFuncAttributeMaxDynamicSharedMemorySize, WIDE_BYTES));
        grouped_kernel<true><<<dim3(row_tiles, a.l.wide), THREADS, WIDE_BYTES, g->stream>>>(a);
        LAUNCHED(g);
    }
    a.tile += a.l.wide;
    if (a.l.narrow) {
        grouped_kernel<false><<<dim3(row_tiles, a.l.narrow), THREADS, NARROW_BYTES,
                                g->stream>>>(a);
        LAUNCHED(g);
    }
}

void queue_grouped(struct gpu *g, const struct lists *l)
{
    size_t inner = grouped_stride(g->shape.expert_inner);
    struct grouped a = { *l, l->tile, g->s.ordered, grouped_stride(g->shape.hidden), false,
                         g->s.inner, inner, g->s.pair_out };

    queue_tiles(g, a, ceil_div(g->shape.expert_inner, GATE_ROWS));
    a.x = g->s.inner;
    a.x_stride = inner;
    a.down = true;
    queue_tiles(g, a, ceil_div(g->shape.hidden, DOWN_ROWS));
}

/* routed[t] += weight * out over the pairs of token t, in the order of the experts.  Four columns
 * a thread; most tokens have no pair in a small wave. */
__global__ static void sum_kernel(float4 *routed, const float4 *out, const int *of_token,
                                  const float *weight, int topk, int vectors)
{
    int i = blockIdx.y * blockDim.x + threadIdx.x;
    size_t at = (size_t)blockIdx.x * vectors + i;
    const int *pair = of_token + (size_t)blockIdx.x * topk;
    float4 sum;
    int some = 0;

    for (int k = 0; k < topk; k++)
        some |= pair[k] >= 0;
    if (i >= vectors || !some)
        return;
    sum = routed[at];
    for (int k = 0; k < topk; k++) {
        if (pair[k] < 0)
            continue;
        float4 v = out[(size_t)pair[k] * vectors + i];
        float w = weight[pair[k]];

        sum.x += w * v.x;
        sum.y += w * v.y;
        sum.z += w * v.z;
        sum.w += w * v.w;
    }
    routed[at] = sum;
}

void queue_sum(struct gpu *g, const struct lists *l)
{
    int vectors = g->shape.hidden / 4;

    sum_kernel<<<dim3(g->tokens, ceil_div(vectors, 256)), 256, 0, g->stream>>>(
        (float4 *)g->s.routed, (const float4 *)g->s.pair_out, l->of_token, l->weight,
        g->shape.topk, vectors);
    LAUNCHED(g);
}
