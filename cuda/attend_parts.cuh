/* Parts of a decode step's result: what a warp or a block makes of its share of the keys, and
 * how parts become one, in the order of the keys, whichever block ended last. */
#ifndef LAGUNA_ATTEND_PARTS_CUH
#define LAGUNA_ATTEND_PARTS_CUH

#include "cuda/attend.cuh"

enum {
    EIGHT = 8,                          /* heads of a column tile */
    GROUP_PARTS = 16,                   /* that one thread sums */
};

/* A part of the keys' result: o [heads][dim + 4], normalised, then the heads' references and
 * sums.  The pad lets the lanes of a store hit different banks. */
static __host__ __device__ constexpr int part_row(int dim)
{
    return dim + 4;
}

static __host__ __device__ constexpr int part_floats(int dim, int eights)
{
    return eights * EIGHT * (part_row(dim) + 2);
}

/* What the parts of one result weigh in it; in shared memory. */
template <int EIGHTS> struct weights {
    enum { HEADS = EIGHTS * EIGHT };
    float reference[MAX_SPLITS][HEADS], part[MAX_SPLITS][HEADS];
    float all_reference[HEADS], all_sum[HEADS];
};

/* The weights of n parts, `stride` floats apart.  Some lanes a head: a fixed order of sums. */
template <int DIM, int EIGHTS>
static __device__ void weigh(struct weights<EIGHTS> &w, const float *p, size_t stride, int n)
{
    enum { HEADS = EIGHTS * EIGHT, LANES = ATTEND_THREADS / HEADS };
    int i = threadIdx.x / LANES, lane = threadIdx.x % LANES;
    float top = NO_SCORE, sum = 0;

    for (int e = threadIdx.x; e < n * HEADS; e += ATTEND_THREADS) {
        const float *of = p + e / HEADS * stride + HEADS * part_row(DIM) + e % HEADS;

        w.reference[e / HEADS][e % HEADS] = of[0];
        w.part[e / HEADS][e % HEADS] = of[HEADS];
    }
    __syncthreads();
    for (int s = lane; s < n; s += LANES)
        top = fmaxf(top, w.reference[s][i]);
    for (int o = LANES / 2; o; o /= 2)
        top = fmaxf(top, __shfl_xor_sync(~0u, top, o));
    for (int s = lane; s < n; s += LANES) {
        w.part[s][i] *= power_of_2(w.reference[s][i] - top);
        sum += w.part[s][i];
    }
    for (int o = LANES / 2; o; o /= 2)
        sum += __shfl_xor_sync(~0u, sum, o);
    for (int s = lane; s < n; s += LANES)
        w.part[s][i] /= sum;
    if (lane == 0) {
        w.all_reference[i] = top;
        w.all_sum[i] = sum;
    }
    __syncthreads();
}

/* Dimensions d to d + 3 of a head's weighted sum of parts from..to - 1, in their order. */
template <int DIM, int EIGHTS>
static __device__ __forceinline__ float4 merge(const struct weights<EIGHTS> &w, const float *p,
                                               size_t stride, int from, int to, int head, int d)
{
    float4 r = make_float4(0, 0, 0, 0);

#pragma unroll 8
    for (int s = from; s < to; s++) {
        float4 v = *(const float4 *)(p + s * stride + head * part_row(DIM) + d);
        float f = w.part[s][head];

        r.x += f * v.x;
        r.y += f * v.y;
        r.z += f * v.z;
        r.w += f * v.w;
    }
    return r;
}

/* Four dimensions of a result, gated. */
static __device__ void emit(const struct attend &a, const struct rows &rs, int i, int dim, int d,
                            const float4 &v)
{
    int token = token_of(rs, i), head = head_of(rs, i);
    float g[4];

#pragma unroll
    for (int j = 0; j < 4; j++)
        g[j] = j && a.gate_rows <= a.heads ? g[0] : a.value * gate_of(a, token, head, dim, d + j);
    *(uint2 *)(a.o + ((size_t)token * a.heads + head) * dim + d) =
        make_uint2(bf16_bits(v.x * g[0], v.y * g[1]), bf16_bits(v.z * g[2], v.w * g[3]));
}

/* One result of the block's warps: to the output where it is all there is, else for later. */
template <int DIM, int EIGHTS>
static __device__ void merge_warps(const struct attend &a, const struct rows &rs,
                                   struct weights<EIGHTS> &w, const float *p, float *to, bool only)
{
    enum { HEADS = EIGHTS * EIGHT, PART = part_floats(DIM, EIGHTS) };

    weigh<DIM, EIGHTS>(w, p, PART, ATTEND_WARPS);
    for (int e = threadIdx.x; e < rs.count * (DIM / 4); e += ATTEND_THREADS) {
        int head = e / (DIM / 4), d = e % (DIM / 4) * 4;
        float4 v = merge<DIM, EIGHTS>(w, p, PART, 0, ATTEND_WARPS, head, d);

        if (only)
            emit(a, rs, head, DIM, d, v);
        else
            *(float4 *)(to + head * part_row(DIM) + d) = v;
    }
    if (!only && threadIdx.x < HEADS) {
        to[HEADS * part_row(DIM) + threadIdx.x] = w.all_reference[threadIdx.x];
        to[HEADS * (part_row(DIM) + 1) + threadIdx.x] = w.all_sum[threadIdx.x];
    }
}

/* The blocks' parts to the output.  A thread sums few of them, so that many loads are on their
 * way; sums: [groups of parts][heads][dim / 4] in shared memory. */
template <int DIM, int EIGHTS>
static __device__ void merge_blocks(const struct attend &a, const struct rows &rs,
                                    struct weights<EIGHTS> &w, const float *p, int n, float4 *sums)
{
    enum { PART = part_floats(DIM, EIGHTS) };
    int each = rs.count * (DIM / 4), groups = (n + GROUP_PARTS - 1) / GROUP_PARTS;

    weigh<DIM, EIGHTS>(w, p, PART, n);
    for (int e = threadIdx.x; e < groups * each; e += ATTEND_THREADS) {
        int from = e / each * GROUP_PARTS, to = min(from + GROUP_PARTS, n), at = e % each;

        sums[e] = merge<DIM, EIGHTS>(w, p, PART, from, to, at / (DIM / 4), at % (DIM / 4) * 4);
    }
    __syncthreads();
    for (int e = threadIdx.x; e < each; e += ATTEND_THREADS) {
        float4 v = sums[e];

        for (int i = 1; i < groups; i++) {
            const float4 &more = sums[i * each + e];

            v = make_float4(v.x + more.x, v.y + more.y, v.z + more.z, v.w + more.w);
        }
        emit(a, rs, e / (DIM / 4), DIM, e % (DIM / 4) * 4, v);
    }
}

#endif
