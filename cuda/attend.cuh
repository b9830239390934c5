/* How keys and values become float16 fragments of mma.m16n8k16, straight from the cache in
 * global memory.  The order of dimensions inside a product is free, so a lane loads 16 bytes
 * or more of its key (or value) and no byte moves between lanes.  float16 rather than BF16:
 * int8 and E4M3 are exact in it, and probabilities keep 11 bits. */
#ifndef LAGUNA_ATTEND_CUH
#define LAGUNA_ATTEND_CUH

#include "cuda/gpu_internal.cuh"

#include <cuda_fp16.h>

static __device__ __forceinline__ void mma_half(float c[4], const uint32_t a[4], uint32_t b0,
                                                uint32_t b1)
{
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
                 "{%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

static __device__ __forceinline__ uint32_t half_bits(__half2 h)
{
    return *reinterpret_cast<uint32_t *>(&h);
}

static __device__ __forceinline__ __half2 half_pair(uint32_t u)
{
    return *reinterpret_cast<__half2 *>(&u);
}

template <int TYPE> struct cached;

/* A byte under the exponent of 1024 is the half 1024 + byte. */
template <> struct cached<GPU_KV_Q8> {
    enum { BYTES = 1, PER_WORD = 4 };

    /* Two bytes of w, chosen by prmt's selector, as halves. */
    static __device__ __forceinline__ uint32_t two(uint32_t w, int selector)
    {
        uint32_t u = __byte_perm(w ^ 0x80808080, 0x64646464, selector);

        return half_bits(__hsub2(half_pair(u), half_pair(0x64806480)));
    }

    /* Elements 2 i and 2 i + 1 of a row's words. */
    static __device__ __forceinline__ uint32_t neighbours(const uint32_t *w, int i)
    {
        return two(w[i / 2], i % 2 ? 0x4342 : 0x4140);
    }

    /* Element i of two rows. */
    static __device__ __forceinline__ uint32_t across(const uint32_t *a, const uint32_t *b, int i)
    {
        uint32_t both = __byte_perm(a[i / 4], b[i / 4], i % 4 / 2 ? 0x7362 : 0x5140);

        return two(both, i % 2 ? 0x4342 : 0x4140);
    }
};

/* E4M3's bits, moved to float16's, are 2^8 too small: the caller's factors make up for it. */
template <> struct cached<GPU_KV_FP8> {
    enum { BYTES = 1, PER_WORD = 4 };

    static __device__ __forceinline__ uint32_t two(uint32_t w, int selector)
    {
        uint32_t u = __byte_perm(w, 0, selector);

        return (u & 0x7f007f00) >> 1 | (u & 0x80008000);
    }

    static __device__ __forceinline__ uint32_t neighbours(const uint32_t *w, int i)
    {
        return two(w[i / 2], i % 2 ? 0x3424 : 0x1404);
    }

    static __device__ __forceinline__ uint32_t across(const uint32_t *a, const uint32_t *b, int i)
    {
        uint32_t both = __byte_perm(a[i / 4], b[i / 4], i % 4 / 2 ? 0x7362 : 0x5140);

        return two(both, i % 2 ? 0x3424 : 0x1404);
    }
};

template <> struct cached<GPU_KV_BF16> {
    enum { BYTES = 2, PER_WORD = 2 };

    /* Beyond float16's range values saturate; no trained model's do. */
    static __device__ __forceinline__ uint32_t two(uint32_t w)
    {
        float lo = __uint_as_float(w << 16), hi = __uint_as_float(w & 0xffff0000);

        return half_bits(__floats2half2_rn(fminf(fmaxf(lo, -65504), 65504),
                                           fminf(fmaxf(hi, -65504), 65504)));
    }

    static __device__ __forceinline__ uint32_t neighbours(const uint32_t *w, int i)
    {
        return two(w[i]);
    }

    static __device__ __forceinline__ uint32_t across(const uint32_t *a, const uint32_t *b, int i)
    {
        return two(__byte_perm(a[i / 2], b[i / 2], i % 2 ? 0x7632 : 0x5410));
    }
};

/* WORDS consecutive words, as wide as they allow. */
template <int WORDS>
static __device__ __forceinline__ void load_words(uint32_t *to, const uint8_t *from)
{
    if constexpr (WORDS == 2) {
        uint2 v = __ldg((const uint2 *)from);

        to[0] = v.x;
        to[1] = v.y;
    } else {
#pragma unroll
        for (int i = 0; i < WORDS / 4; i++) {
            uint4 v = __ldg((const uint4 *)from + i);

            to[i * 4] = v.x;
            to[i * 4 + 1] = v.y;
            to[i * 4 + 2] = v.z;
            to[i * 4 + 3] = v.w;
        }
    }
}

#endif
