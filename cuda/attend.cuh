/* What decode's and prefill's attention share: their arguments, where keys lie, and how cached
 * bytes become operands of mma.m16n8k16.  q8 and E4M3 become float16, in which both are exact
 * and probabilities keep 11 bits; the order of dimensions inside a product is free, so bytes
 * are taken as they lie and the queries are permuted instead. */
#ifndef LAGUNA_ATTEND_CUH
#define LAGUNA_ATTEND_CUH

#include "cuda/gpu_internal.cuh"

#include <cuda_bf16.h>
#include <cuda_fp16.h>

enum { ATTEND_WARPS = 4, ATTEND_THREADS = ATTEND_WARPS * WARP };

/* A maximum before the first key: low enough for any score, and finite, so that differences
 * of two of them are numbers. */
#define NO_SCORE (-1e30f)

struct attend {
    const uint16_t *q;                  /* [n][heads][dim] float16 */
    const float *gate;                  /* [n][gate_rows] */
    bf16 *o;                            /* [n][heads][dim] */
    float *partial;                     /* decode: [n][kv tiles][splits] parts */
    unsigned *ticket;                   /* decode: [n][kv tiles] */
    const int *pos;
    struct kv_layer kv;
    int n, heads, kv_heads, gate_rows, window, splits, pos0;
    float score, value;                 /* factors of q k, in powers of 2, and of the result */
};

/* attend_step.cu, up to GPU_STEP_TOKENS tokens; attend_batch.cu, any number. */
void queue_attend_step(struct gpu *g, struct attend *a);
void queue_attend_batch(struct gpu *g, const struct attend *a);

/* --- where things lie ------------------------------------------------------------------------ */

/* Row i of a tile is (token, head) number first + i of the KV head. */
struct rows {
    int first, group, count, kv_head;
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

/* Where the positions of a range lie: at most one end of the cache's ring is between them. */
struct ring {
    int base, rows, last;               /* last: the range's last position */
};

static __device__ __forceinline__ struct ring ring_of(const struct attend &a, const struct range &r)
{
    return { r.from / a.kv.rows * a.kv.rows, a.kv.rows, r.to - 1 };
}

/* Positions behind the last one read as it. */
static __device__ __forceinline__ int row_at(const struct ring &r, int pos)
{
    int row = min(pos, r.last) - r.base;

    return row >= r.rows ? row - r.rows : row;
}

/* --- instructions ---------------------------------------------------------------------------- */

static __device__ __forceinline__ void mma_half(float c[4], const uint32_t a[4],
                                                const uint32_t b[2])
{
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
                 "{%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

static __device__ __forceinline__ void mma_bf16(float c[4], const uint32_t a[4],
                                                const uint32_t b[2])
{
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
                 "{%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

/* Four 8 x 8 matrices of 16-bit elements; lane i gives the address of row i % 8 of matrix i / 8.
 * Each lane gets elements 2 t and 2 t + 1 of row r of each (r lane / 4, t lane % 4), or, turned,
 * rows 2 t and 2 t + 1 of column r. */
static __device__ __forceinline__ void load_matrices(uint32_t m[4], uint32_t at)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(m[0]), "=r"(m[1]), "=r"(m[2]), "=r"(m[3])
                 : "r"(at)
                 : "memory");
}

static __device__ __forceinline__ void load_turned(uint32_t m[4], uint32_t at)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(m[0]), "=r"(m[1]), "=r"(m[2]), "=r"(m[3])
                 : "r"(at)
                 : "memory");
}

static __device__ __forceinline__ void copy_16(uint32_t to, const void *from)
{
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(from) : "memory");
}

static __device__ __forceinline__ void end_copies(void)
{
    asm volatile("cp.async.commit_group;" ::: "memory");
}

/* Until all groups of this thread's copies but the last N are there. */
template <int N> static __device__ __forceinline__ void await_copies(void)
{
    asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory");
}

static __device__ __forceinline__ uint32_t shared_address(const void *p)
{
    return (uint32_t)__cvta_generic_to_shared(p);
}

/* 2^x; results below float32's normal range are 0. */
static __device__ __forceinline__ float power_of_2(float x)
{
    float y;

    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

static __device__ __forceinline__ uint32_t half_bits(__half2 h)
{
    return *reinterpret_cast<uint32_t *>(&h);
}

static __device__ __forceinline__ __half2 half_pair(uint32_t u)
{
    return *reinterpret_cast<__half2 *>(&u);
}

static __device__ __forceinline__ uint32_t bf16_bits(float lo, float hi)
{
    __nv_bfloat162 h = __floats2bfloat162_rn(lo, hi);

    return *reinterpret_cast<uint32_t *>(&h);
}

static __device__ __forceinline__ float low_float(uint32_t bf16s)
{
    return __uint_as_float(bf16s << 16);
}

static __device__ __forceinline__ float high_float(uint32_t bf16s)
{
    return __uint_as_float(bf16s & 0xffff0000);
}

/* In rows of CHUNKS pieces of 16 bytes, piece c of row r lies where piece c ^ turn(r) would:
 * the same piece of eight rows in a row then lies in eight different groups of banks. */
template <int CHUNKS> static __host__ __device__ constexpr int turn(int row)
{
    return CHUNKS == 4 ? row / 2 % 4 : row % 8;
}

/* --- formats --------------------------------------------------------------------------------- */

template <int TYPE> struct cached;

/* A byte under the exponent of 1024 is the half 1024 + byte; its sign turned, 1152 too much. */
template <> struct cached<GPU_KV_Q8> {
    enum { BYTES = 1 };

    /* Bytes A and B of a word as halves. */
    template <int A, int B> static __device__ __forceinline__ uint32_t two(uint32_t w)
    {
        uint32_t u = A == 0 && B == 2   ? w
                     : A == 1 && B == 3 ? w >> 8
                                        : __byte_perm(w, 0, A | B << 8);

        /* (u & 0x00ff00ff) ^ 0x64806480, which the compiler takes for two instructions. */
        asm("lop3.b32 %0, %0, 0x00ff00ff, %1, 0x6a;" : "+r"(u) : "r"(0x64806480));
        return half_bits(__hsub2(half_pair(u), half_pair(0x64806480)));
    }
};

/* E4M3's bits, moved to float16's, are 2^8 too small: the caller's factors make up for it. */
template <> struct cached<GPU_KV_FP8> {
    enum { BYTES = 1 };

    template <int A, int B> static __device__ __forceinline__ uint32_t two(uint32_t w)
    {
        uint32_t u = A == 1 && B == 3 ? w : __byte_perm(w, 0, 0x0404 | A << 4 | B << 12);

        return (u & 0x7f007f00) >> 1 | (u & 0x80008000);
    }
};

template <> struct cached<GPU_KV_BF16> {
    enum { BYTES = 2 };
};

/* --- results --------------------------------------------------------------------------------- */

/* softplus of the output gate of one element: laguna.md 2.3. */
static __device__ __forceinline__ float gate_of(const struct attend &a, int token, int head,
                                                int dim, int d)
{
    float g;

    if (!a.gate_rows)
        return 1;
    g = a.gate[(size_t)token * a.gate_rows + (a.gate_rows == a.heads ? head : head * dim + d)];
    return g > 20 ? g : log1pf(expf(g));
}

#endif
