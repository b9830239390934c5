/* Keys and values of a decode step, 16 at a time: how they come into shared memory, and how they
 * become the 16-row operand of the products. */
#ifndef LAGUNA_ATTEND_TILE_CUH
#define LAGUNA_ATTEND_TILE_CUH

#include "cuda/attend.cuh"

enum {
    STEP_KEYS = 16,
    RING_BYTES = 12288, RING_TILES = 6, /* of one warp, at most */
};

/* --- the stream of tiles --------------------------------------------------------------------- */

template <int DIM, int TYPE> struct tiles {
    enum {
        BYTES = DIM * cached<TYPE>::BYTES, CHUNKS = BYTES / 16, TILE = STEP_KEYS * BYTES,
        COUNT = RING_BYTES / TILE < RING_TILES ? RING_BYTES / TILE : RING_TILES,
        PASS_ROWS = WARP / CHUNKS, PASSES = STEP_KEYS / PASS_ROWS,
    };

    const uint8_t *rows[2];             /* row 0's keys and values, as far on as this lane's */
    struct ring ring;
    int end, lane_row;                  /* of this warp's positions; of this lane's first copy */
    uint32_t slot, last_slot;           /* shared addresses: the tile in use, the ring's last */
    uint32_t put, get;                  /* of this lane in a tile: of its copies, of ldmatrix */

    __device__ __forceinline__ void open(const struct attend &a, int kv_head, uint32_t memory,
                                         const struct range &all, int to)
    {
        int lane = threadIdx.x % WARP, key = lane % 16;
        size_t at = (size_t)kv_head * a.kv.rows * BYTES + lane * 16;

        rows[0] = a.kv.k + at;
        rows[1] = a.kv.v + at;
        ring = ring_of(a, all);
        end = to;
        lane_row = lane / CHUNKS;
        slot = memory;
        last_slot = memory + (COUNT - 1) * TILE;
        put = lane_row * BYTES + (lane % CHUNKS ^ turn<CHUNKS>(lane_row)) * 16;
        get = key * BYTES + (lane / 16 ^ turn<CHUNKS>(key)) * 16;
    }

    /* Where this lane's copy number i into the slot in use goes. */
    __device__ __forceinline__ uint32_t place(int i) const
    {
        return slot + (put ^ turn<CHUNKS>(i * PASS_ROWS) * 16) + i * WARP * 16;
    }

    /* Queue the copies of a tile into the slot in use, and go on to the next slot.  Behind the
     * end nothing is copied, but the group counts. */
    template <int VALUE> __device__ __forceinline__ void fetch(int pos)
    {
        int first = row_at(ring, pos);

        if (pos < end && pos + STEP_KEYS - 1 <= ring.last && first + STEP_KEYS <= ring.rows) {
            const uint8_t *from = rows[VALUE] + (size_t)first * BYTES;

#pragma unroll
            for (int i = 0; i < PASSES; i++)
                copy_16(place(i), from + i * WARP * 16);
        } else if (pos < end) {
#pragma unroll 1
            for (int i = 0; i < PASSES; i++) {
                int row = row_at(ring, pos + lane_row + i * PASS_ROWS) - lane_row;

                copy_16(place(i), rows[VALUE] + (ptrdiff_t)row * BYTES);
            }
        }
        end_copies();
        slot = slot == last_slot ? last_slot - (COUNT - 1) * TILE : slot + TILE;
    }

    /* Fill the ring. */
    __device__ __forceinline__ void start(int pos, int stride)
    {
#pragma unroll
        for (int i = 0; i < COUNT; i++)
            if (i % 2)
                fetch<1>(pos + i / 2 * stride);
            else
                fetch<0>(pos + i / 2 * stride);
    }

    /* Until the tile in use is there. */
    __device__ __forceinline__ void await(void) const
    {
        await_copies<COUNT - 1>();
        __syncwarp();
    }

    /* The tile in use, keys (VALUE 0) or values of position pos, has been read: fetch the one
     * that is COUNT tiles ahead into its place. */
    template <int VALUE> __device__ __forceinline__ void next(int pos, int stride)
    {
        __syncwarp();
        fetch<(VALUE + COUNT) % 2>(pos + (VALUE + COUNT) / 2 * stride);
    }

    /* Pieces 2 i and 2 i + 1 of the tile's rows: lower keys, upper keys, of each. */
    __device__ __forceinline__ uint32_t pieces(int i) const
    {
        return slot + (get ^ i * 32);
    }
};

/* --- operands -------------------------------------------------------------------------------- */

/* The products with one 16 x 16 tile of keys or values.  TERMS: of the other operand, whose
 * sum is more exact than one; PIECES: of 16 bytes that make a tile. */
template <int TYPE> struct operand : cached<TYPE> {
    typedef cached<TYPE> C;
    enum { TERMS = 1, PIECES = 1 };

    /* Dimensions of a tile that a row's bytes 4 t, 4 t + 2 and 4 t + 1, 4 t + 3 hold. */
    static __device__ __forceinline__ void keys(uint32_t a[4], const uint32_t m[4], int i)
    {
        a[0] = C::template two<0, 2>(m[2 * i]);
        a[1] = C::template two<0, 2>(m[2 * i + 1]);
        a[2] = C::template two<1, 3>(m[2 * i]);
        a[3] = C::template two<1, 3>(m[2 * i + 1]);
    }

    /* Row r is dimension 2 r, row 8 + r dimension 2 r + 1. */
    static __device__ __forceinline__ void values(uint32_t a[4], const uint32_t m[4], int i)
    {
        a[0] = C::template two<0, 2>(m[2 * i]);
        a[1] = C::template two<1, 3>(m[2 * i]);
        a[2] = C::template two<0, 2>(m[2 * i + 1]);
        a[3] = C::template two<1, 3>(m[2 * i + 1]);
    }

    static __device__ __forceinline__ int dimension(int r, int upper)
    {
        return 2 * r + upper;
    }

    /* Dimensions of this lane's part of a tile of queries, q at the tile's first. */
    static __device__ __forceinline__ void queries(uint32_t b[TERMS][2], const uint16_t *q, int t)
    {
        uint2 w = *(const uint2 *)(q + 4 * t);

        b[0][0] = __byte_perm(w.x, w.y, 0x5410);
        b[0][1] = __byte_perm(w.x, w.y, 0x7632);
    }

    static __device__ __forceinline__ void split(uint32_t b[TERMS], float lo, float hi)
    {
        b[0] = half_bits(__floats2half2_rn(lo, hi));
    }

    static __device__ __forceinline__ void multiply(float c[4], const uint32_t a[4],
                                                    const uint32_t b[TERMS][2])
    {
        mma_half(c, a, b[0]);
    }
};

/* BF16 as it is; queries and probabilities are sums of two BF16 numbers: 16 bits. */
template <> struct operand<GPU_KV_BF16> : cached<GPU_KV_BF16> {
    enum { TERMS = 2, PIECES = 2 };

    static __device__ __forceinline__ void keys(uint32_t a[4], const uint32_t m[4], int)
    {
        a[0] = m[0];
        a[1] = m[1];
        a[2] = m[2];
        a[3] = m[3];
    }

    static __device__ __forceinline__ void values(uint32_t a[4], const uint32_t m[4], int)
    {
        a[0] = m[0];
        a[1] = m[2];
        a[2] = m[1];
        a[3] = m[3];
    }

    static __device__ __forceinline__ int dimension(int r, int upper)
    {
        return r + 8 * upper;
    }

    static __device__ __forceinline__ void queries(uint32_t b[TERMS][2], const uint16_t *q, int t)
    {
#pragma unroll
        for (int i = 0; i < 2; i++) {
            float2 v = __half22float2(*(const __half2 *)(q + 8 * i + 2 * t));
            uint32_t both[TERMS];

            split(both, v.x, v.y);
            b[0][i] = both[0];
            b[1][i] = both[1];
        }
    }

    static __device__ __forceinline__ void split(uint32_t b[TERMS], float lo, float hi)
    {
        b[0] = bf16_bits(lo, hi);
        b[1] = bf16_bits(lo - low_float(b[0]), hi - high_float(b[0]));
    }

    static __device__ __forceinline__ void multiply(float c[4], const uint32_t a[4],
                                                    const uint32_t b[TERMS][2])
    {
        mma_bf16(c, a, b[1]);
        mma_bf16(c, a, b[0]);
    }
};

#endif
