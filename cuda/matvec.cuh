/* Sixteen rows of a weight matrix times up to 16 tokens on tensor cores, weights straight from
 * memory in the checkpoint's layout.  A lane of the warp holds 16 bytes of two rows; since the
 * order of columns inside a product is free, no byte is moved between lanes.  Each weight is
 * dequantised and rounded to BF16 exactly as ref_row() does, then multiplied by BF16
 * activations with float32 sums.
 *
 * Fragments of mma.m16n8k16: lane = 4 * r + t holds rows r and r + 8, and token r. */
#ifndef LAGUNA_MATVEC_CUH
#define LAGUNA_MATVEC_CUH

#include "cuda/gpu_internal.cuh"

#include <cuda_bf16.h>

static __device__ __forceinline__ void mma_bf16(float c[4], const uint32_t a[4], uint32_t b0,
                                                uint32_t b1)
{
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
                 "{%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

static __device__ __forceinline__ uint32_t bits_of(__nv_bfloat162 v)
{
    return *reinterpret_cast<uint32_t *>(&v);
}

static __device__ __forceinline__ __nv_bfloat162 pair_of(uint32_t v)
{
    return *reinterpret_cast<__nv_bfloat162 *>(&v);
}

static __device__ __forceinline__ uint32_t twice(uint32_t half)
{
    return half | half << 16;
}

/* The two scales or offsets that a lane's 16 bytes of one row need. */
struct dequant {
    uint32_t scale, offset;     /* BF16 pairs; W_INT8: the bits of two floats */
};

/* What is loaded for that: apart, so that a load can be on its way while others are used. */
struct packed {
    uint32_t scale, zeros;      /* as they lie in memory; zeros only where there are any */
};

/* Columns of 16 bytes in each of a row's four lanes, and how they become BF16 pairs:
 * pair(i) of a lane's 16 bytes is multiplied by x_pair(i) of its activations.  apart(i) is the
 * pair of columns 8 * (i / 4) + i % 4 and four further, whatever the format. */
template <enum wformat F> struct codec;

/* Where the scale of a column lies: group k / m.group without a division, exactly. */
struct groups {
    int count;                  /* a row */
    uint32_t inverse;           /* 2^31 / (group / 32), rounded up */
};

static __device__ __forceinline__ struct groups groups_of(const struct matrix &m)
{
    if (m.format == W_BF16)
        return groups{};
    if (m.group == 32)
        return { m.cols / 32, 1u << 31 };
    return { m.cols / m.group, 0x7fffffffu / (m.group / 32) + 1 };
}

/* k is a multiple of 16, so that k >> 4 | 1 is 2 * (k / 32) + 1. */
static __device__ __forceinline__ int group_at(const struct groups &g, int k)
{
    return (int)__umulhi((uint32_t)k >> 4 | 1, g.inverse);
}

static __device__ __forceinline__ uint32_t scale_at(const struct matrix &m, const struct groups &g,
                                                    int row, int k)
{
    return __ldg((const uint16_t *)m.scale + (size_t)row * g.count + group_at(g, k));
}

/* The word with the zero points of 32 / bits rows, and a row's own in it. */
static __device__ __forceinline__ uint32_t zeros_at(const struct matrix &m, const struct groups &g,
                                                    int row, int k, int bits)
{
    size_t i = (size_t)(row / (32 / bits)) * g.count + group_at(g, k);

    return __ldg((const uint32_t *)m.zero + i);
}

static __device__ __forceinline__ uint32_t zero_of(uint32_t zeros, int row, int bits)
{
    return zeros >> row % (32 / bits) * bits & ((1u << bits) - 1);
}

/* v & mask | bits in one instruction, which two constants otherwise prevent. */
static __device__ __forceinline__ uint32_t masked(uint32_t v, uint32_t mask, uint32_t bits)
{
    uint32_t to;

    asm("lop3.b32 %0, %1, %2, %3, 0xea;" : "=r"(to) : "r"(v), "r"(mask), "r"(bits));
    return to;
}

/* Nibbles four apart make a pair, so that one mask takes two of them: 128 + n is the BF16
 * 0x4300 | n, and subtracting 128 + zero is exact. */
template <> struct codec<W_INT4> {
    enum { COLUMNS = 32, STEPS = 8, X_WORDS = 16, SCALE_BYTES = 2 };

    static __device__ __forceinline__ uint32_t scale(const uint8_t *at)
    {
        return __ldg((const uint16_t *)at);
    }

    static __device__ __forceinline__ struct dequant load(const struct matrix &m,
                                                         const struct groups &g, int row,
                                                         int k)
    {
        return unpack(fetch(m, g, row, k), m, row);
    }

    static __device__ __forceinline__ struct packed fetch(const struct matrix &m,
                                                          const struct groups &g, int row, int k)
    {
        return { scale_at(m, g, row, k), m.zero ? zeros_at(m, g, row, k, 4) : 0 };
    }

    static __device__ __forceinline__ struct dequant unpack(const struct packed &p,
                                                            const struct matrix &m, int row)
    {
        return { twice(p.scale), twice(0x4300 | (m.zero ? zero_of(p.zeros, row, 4) : 8)) };
    }

    static __device__ __forceinline__ uint32_t pair(const uint32_t w[4], int i,
                                                    const struct dequant &d)
    {
        uint32_t q = masked(w[i / 4] >> i % 4 * 4, 0x000f000f, 0x43004300);

        return bits_of(__hmul2(__hsub2(pair_of(q), pair_of(d.offset)), pair_of(d.scale)));
    }

    static __device__ __forceinline__ uint32_t x_pair(const uint32_t *x, int i)
    {
        int w = i / 4 * 4 + i % 4 / 2;

        return __byte_perm(x[w], x[w + 2], i % 2 ? 0x7632 : 0x5410);
    }

    static __device__ __forceinline__ uint32_t apart(const uint32_t w[4], int i,
                                                     const struct dequant &d)
    {
        return pair(w, i, d);
    }
};

/* The code's exponent and mantissa, moved to BF16's, are 2^126 too small; E8M0 byte b is
 * 2^(b - 127), whose BF16 is b << 7 but for b = 0. */
template <> struct codec<W_MXFP4> {
    enum { COLUMNS = 32, STEPS = 8, X_WORDS = 16, SCALE_BYTES = 1 };

    static __device__ __forceinline__ uint32_t scale(const uint8_t *at)
    {
        return __ldg(at);
    }

    static __device__ __forceinline__ struct dequant load(const struct matrix &m,
                                                         const struct groups &g, int row,
                                                         int k)
    {
        return unpack(fetch(m, g, row, k), m, row);
    }

    static __device__ __forceinline__ struct packed fetch(const struct matrix &m,
                                                          const struct groups &g, int row, int k)
    {
        return { __ldg((const uint8_t *)m.scale + (size_t)row * g.count + group_at(g, k)), 0 };
    }

    static __device__ __forceinline__ struct dequant unpack(const struct packed &p,
                                                            const struct matrix &, int)
    {
        return { twice(p.scale ? p.scale << 7 : 0x40), twice((126 + 127) << 7) };
    }

    static __device__ __forceinline__ uint32_t pair(const uint32_t w[4], int i,
                                                    const struct dequant &d)
    {
        uint32_t n = w[i / 4] >> i % 4 * 4;
        uint32_t q = masked(n << 6, 0x01c001c0, (n & 0x00080008) << 12);

        return bits_of(__hmul2(__hmul2(pair_of(q), pair_of(d.offset)), pair_of(d.scale)));
    }

    static __device__ __forceinline__ uint32_t x_pair(const uint32_t *x, int i)
    {
        return codec<W_INT4>::x_pair(x, i);
    }

    static __device__ __forceinline__ uint32_t apart(const uint32_t w[4], int i,
                                                     const struct dequant &d)
    {
        return pair(w, i, d);
    }
};

/* A byte under the exponent of 2^23 is the float 8388608 + byte. */
template <> struct codec<W_INT8> {
    enum { COLUMNS = 16, STEPS = 4, X_WORDS = 8, SCALE_BYTES = 2 };

    static __device__ __forceinline__ uint32_t scale(const uint8_t *at)
    {
        return __ldg((const uint16_t *)at);
    }

    static __device__ __forceinline__ struct dequant load(const struct matrix &m,
                                                         const struct groups &g, int row,
                                                         int k)
    {
        return unpack(fetch(m, g, row, k), m, row);
    }

    static __device__ __forceinline__ struct packed fetch(const struct matrix &m,
                                                          const struct groups &g, int row, int k)
    {
        return { scale_at(m, g, row, k), m.zero ? zeros_at(m, g, row, k, 8) : 0 };
    }

    static __device__ __forceinline__ struct dequant unpack(const struct packed &p,
                                                            const struct matrix &m, int row)
    {
        return { p.scale << 16, 0x4b000000 | (m.zero ? zero_of(p.zeros, row, 8) : 128) };
    }

    /* Bytes `low` of a and `high` of b. */
    static __device__ __forceinline__ uint32_t two(uint32_t a, int low, uint32_t b, int high,
                                                   const struct dequant &d)
    {
        float scale = __uint_as_float(d.scale), offset = __uint_as_float(d.offset);
        float x = __uint_as_float(__byte_perm(a, 0x4b000000, 0x7440 + low)) - offset;
        float y = __uint_as_float(__byte_perm(b, 0x4b000000, 0x7440 + high)) - offset;

        return bits_of(__floats2bfloat162_rn(x * scale, y * scale));
    }

    static __device__ __forceinline__ uint32_t pair(const uint32_t w[4], int i,
                                                    const struct dequant &d)
    {
        return two(w[i / 2], i % 2 * 2, w[i / 2], i % 2 * 2 + 1, d);
    }

    static __device__ __forceinline__ uint32_t x_pair(const uint32_t *x, int i)
    {
        return x[i];
    }

    static __device__ __forceinline__ uint32_t apart(const uint32_t w[4], int i,
                                                     const struct dequant &d)
    {
        return two(w[i / 4 * 2], i % 4, w[i / 4 * 2 + 1], i % 4, d);
    }
};

template <> struct codec<W_BF16> {
    enum { COLUMNS = 8, STEPS = 2, X_WORDS = 4, SCALE_BYTES = 0 };

    static __device__ __forceinline__ uint32_t scale(const uint8_t *)
    {
        return 0;
    }

    static __device__ __forceinline__ struct dequant load(const struct matrix &,
                                                         const struct groups &, int, int)
    {
        return dequant{};
    }

    static __device__ __forceinline__ struct packed fetch(const struct matrix &,
                                                          const struct groups &, int, int)
    {
        return packed{};
    }

    static __device__ __forceinline__ struct dequant unpack(const struct packed &,
                                                            const struct matrix &, int)
    {
        return dequant{};
    }

    static __device__ __forceinline__ uint32_t pair(const uint32_t w[4], int i,
                                                    const struct dequant &)
    {
        return w[i];
    }

    static __device__ __forceinline__ uint32_t x_pair(const uint32_t *x, int i)
    {
        return x[i];
    }

    static __device__ __forceinline__ uint32_t apart(const uint32_t w[4], int i,
                                                     const struct dequant &)
    {
        return __byte_perm(w[i / 2], w[i / 2 + 2], i % 2 ? 0x7632 : 0x5410);
    }
};

static __device__ __forceinline__ size_t row_bytes(enum wformat f, int cols)
{
    return f == W_BF16 ? (size_t)cols * 2 : f == W_INT8 ? (size_t)cols : (size_t)cols / 2;
}

/* What the 16 rows of a tile are multiplied by. */
struct tokens {
    const bf16 *x;              /* [n][stride] */
    size_t stride;
    int n;
};

template <int WORDS>
static __device__ __forceinline__ void load_x(uint32_t x[WORDS], const bf16 *from)
{
#pragma unroll
    for (int i = 0; i < WORDS; i += 4) {
        uint4 q = *(const uint4 *)(from + i * 2);

        x[i] = q.x;
        x[i + 1] = q.y;
        x[i + 2] = q.z;
        x[i + 3] = q.w;
    }
}

/* One warp's walk along 16 rows in chunks of 4 * COLUMNS, of which lane t has a quarter.
 * PLAIN: what a matrix mostly is, groups of 32 columns without zero points, or no scales.  A
 * chunk's scales then lie at fixed distances, and no instruction asks where. */
template <enum wformat F, int NT, bool PLAIN> struct walk_rows {
    typedef codec<F> C;
    enum { CHUNK = 4 * C::COLUMNS, SCALES = CHUNK / 32 * C::SCALE_BYTES };

    const struct matrix &m;
    struct groups groups;
    int top, bottom;            /* this lane's rows; those beyond the last are the last again */
    int k;                      /* the lane's next column */
    const uint8_t *w[2];        /* its bytes in both rows */
    const uint8_t *scale[2];    /* PLAIN: their scales */
    const bf16 *x[NT];          /* tokens beyond the last are the last again: nobody reads them */

    __device__ __forceinline__ walk_rows(const struct matrix &matrix, int row0,
                                         const struct tokens &v, int chunk) : m(matrix)
    {
        int r = threadIdx.x % WARP / 4, t = threadIdx.x % 4;
        uint32_t bytes = (uint32_t)row_bytes(F, m.cols), each = (uint32_t)m.cols / 32;

        k = chunk * CHUNK + t * C::COLUMNS;
        top = min(row0 + r, m.rows - 1);
        bottom = min(row0 + r + 8, m.rows - 1);
#pragma unroll
        for (int i = 0; i < 2; i++) {
            uint32_t row = i ? bottom : top;

            w[i] = (const uint8_t *)m.weight + (uint64_t)row * bytes + row_bytes(F, k);
            if (PLAIN)
                scale[i] = (const uint8_t *)m.scale +
                           ((uint64_t)row * each + (uint32_t)k / 32) * C::SCALE_BYTES;
        }
        if (!PLAIN)
            groups = groups_of(m);
#pragma unroll
        for (int j = 0; j < NT; j++)
            x[j] = v.x + (size_t)min(j * 8 + r, v.n - 1) * v.stride + k;
    }

    __device__ __forceinline__ struct dequant scales(int i, int u) const
    {
        int row = i ? bottom : top;

        return PLAIN ? C::unpack({ C::scale(scale[i] + u * SCALES), 0 }, m, row)
                     : C::load(m, groups, row, k + u * CHUNK);
    }

    __device__ __forceinline__ void multiply(float acc[NT][4], const uint4 &a, const uint4 &b,
                                             const struct dequant &da, const struct dequant &db,
                                             int at)
    {
        const uint32_t wa[4] = { a.x, a.y, a.z, a.w }, wb[4] = { b.x, b.y, b.z, b.w };
        uint32_t words[NT][C::X_WORDS];

#pragma unroll
        for (int j = 0; j < NT; j++)
            load_x<C::X_WORDS>(words[j], x[j] + at);
#pragma unroll
        for (int s = 0; s < C::STEPS; s++) {
            uint32_t f[4] = { C::pair(wa, 2 * s, da), C::pair(wb, 2 * s, db),
                              C::pair(wa, 2 * s + 1, da), C::pair(wb, 2 * s + 1, db) };

#pragma unroll
            for (int j = 0; j < NT; j++)
                mma_bf16(acc[j], f, C::x_pair(words[j], 2 * s), C::x_pair(words[j], 2 * s + 1));
        }
    }

    /* The next N chunks; GUARD: columns may end inside.  A lane beyond the columns multiplies
     * zeros by the row's last activations. */
    template <int N, bool GUARD> __device__ __forceinline__ void step(float acc[NT][4])
    {
        uint4 a[N], b[N];
        struct dequant da[N], db[N];

#pragma unroll
        for (int u = 0; u < N; u++) {
            a[u] = b[u] = make_uint4(0, 0, 0, 0);
            da[u] = db[u] = dequant{};
            if (!GUARD || k + u * CHUNK < m.cols) {
                a[u] = __ldcs((const uint4 *)(w[0] + u * row_bytes(F, CHUNK)));
                b[u] = __ldcs((const uint4 *)(w[1] + u * row_bytes(F, CHUNK)));
                da[u] = scales(0, u);
                db[u] = scales(1, u);
            }
        }
        begin_in_order();
#pragma unroll
        for (int u = 0; u < N; u++)
            multiply(acc, a[u], b[u], da[u], db[u],
                     GUARD && k + u * CHUNK >= m.cols ? m.cols - C::COLUMNS - k : u * CHUNK);
        k += N * CHUNK;
#pragma unroll
        for (int i = 0; i < 2; i++) {
            w[i] += N * row_bytes(F, CHUNK);
            if (PLAIN)
                scale[i] += N * SCALES;
        }
#pragma unroll
        for (int j = 0; j < NT; j++)
            x[j] += N * CHUNK;
    }
};

/* acc += rows row0..row0 + 15 times 8 * NT tokens, over a warp's share of the chunks, AHEAD of
 * them in flight, 1 KiB each. */
template <enum wformat F, int NT, bool PLAIN, int AHEAD>
static __device__ __forceinline__ void share_of(float acc[NT][4], const struct matrix &m, int row0,
                                                const struct tokens &v, int warp, int warps)
{
    typedef walk_rows<F, NT, PLAIN> W;
    int chunks = (m.cols + W::CHUNK - 1) / W::CHUNK;
    int c = chunks * warp / warps, to = chunks * (warp + 1) / warps;
    int whole = min(to, m.cols / W::CHUNK);
    W w(m, row0, v, c);

    for (; c + AHEAD <= whole; c += AHEAD)
        w.template step<AHEAD, false>(acc);
    if (AHEAD > 2 && c + 2 <= whole) {
        w.template step<2, false>(acc);
        c += 2;
    }
    for (; c < to; c++)
        w.template step<1, true>(acc);
}

/* The same, whatever the groups. */
template <enum wformat F, int NT, int AHEAD>
static __device__ __forceinline__ void any_share(float acc[NT][4], const struct matrix &m, int row0,
                                                 const struct tokens &v, int warp, int warps)
{
    if (!m.zero && m.group == 32)
        share_of<F, NT, true, AHEAD>(acc, m, row0, v, warp, warps);
    else
        share_of<F, NT, false, 2>(acc, m, row0, v, warp, warps);
}

/* One warp's share of the columns of a tile, whatever the format. */
template <int NT, int AHEAD>
static __device__ __forceinline__ void tile_share(float acc[NT][4], const struct matrix &m,
                                                  int row0, const struct tokens &v, int warp,
                                                  int warps)
{
    switch (m.format) {
    case W_BF16:
        share_of<W_BF16, NT, true, AHEAD>(acc, m, row0, v, warp, warps);
        break;
    case W_INT8:
        any_share<W_INT8, NT, AHEAD>(acc, m, row0, v, warp, warps);
        break;
    case W_INT4:
        any_share<W_INT4, NT, AHEAD>(acc, m, row0, v, warp, warps);
        break;
    default:
        any_share<W_MXFP4, NT, AHEAD>(acc, m, row0, v, warp, warps);
        break;
    }
}

/* A warp's tile into shared memory: [16 rows][8 * NT tokens]. */
template <int NT>
static __device__ __forceinline__ void tile_store(float *to, const float acc[NT][4])
{
    int lane = threadIdx.x % WARP, r = lane / 4, t = lane % 4;

#pragma unroll
    for (int j = 0; j < NT; j++)
#pragma unroll
        for (int i = 0; i < 4; i++)
            to[(r + i / 2 * 8) * 8 * NT + j * 8 + 2 * t + i % 2] = acc[j][i];
}

/* The sum over `warps` tiles of element i, always in the same order. */
template <int NT>
static __device__ __forceinline__ float tile_sum(const float *tile, int warps, int i)
{
    float sum = 0;

    for (int w = 0; w < warps; w++)
        sum += tile[w * TILE_ROWS * 8 * NT + i];
    return sum;
}

#endif
