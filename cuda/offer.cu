/* Experts that the host offers to a step: read from pinned memory through PCIe, by multiprocessors
 * that have nothing else to do, into slots; and which pairs wanted them. */
#include "cuda/mailbox.cuh"
#include "cuda/ticket.cuh"

/* 512 KiB on their way, where 55 GB/s times two microseconds ask for 110. */
enum { OFFER_BLOCKS = 32, OFFER_THREADS = 512, UNROLL = 2 };

struct taking {
    const struct offers *offers;        /* mapped */
    const uint32_t *awaited;            /* sequence of the share, or 0 */
    struct patience patience;
    struct pair *late;                  /* [pairs] */
    const uint16_t *id;                 /* [pairs] */
    unsigned *ticket;
    int pairs;
};

/* Another expert may have lain at this address when it was last read, and the L2 cache keeps what
 * comes from the host: .cv reads it again. */
static __device__ __forceinline__ uint4 read_host(const uint4 *p)
{
    uint4 v;

    asm volatile("ld.global.cv.v4.u32 {%0,%1,%2,%3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(p));
    return v;
}

static __device__ __forceinline__ uint2 read_host(const uint2 *p)
{
    uint2 v;

    asm volatile("ld.global.cv.v2.u32 {%0,%1}, [%2];" : "=r"(v.x), "=r"(v.y) : "l"(p));
    return v;
}

static __device__ __forceinline__ uint8_t read_host(const uint8_t *p)
{
    uint32_t v;

    asm volatile("ld.global.cv.u8 %0, [%1];" : "=r"(v) : "l"(p));
    return (uint8_t)v;
}

template <typename T> static __device__ void copy_as(const struct stretch &p)
{
    const T *from = (const T *)p.from;
    T *to = (T *)p.to;
    size_t n = p.bytes / sizeof(T), step = (size_t)gridDim.x * blockDim.x;
    size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x;

    for (; i + (UNROLL - 1) * step < n; i += UNROLL * step) {
        T v[UNROLL];

#pragma unroll
        for (int u = 0; u < UNROLL; u++)
            v[u] = read_host(from + i + u * step);
#pragma unroll
        for (int u = 0; u < UNROLL; u++)
            to[i + u * step] = v[u];
    }
    for (; i < n; i += step)
        to[i] = read_host(from + i);
}

/* By the largest words that both ends and the length allow: tensors begin at multiples of 8 bytes
 * in a file, and slots at more. */
static __device__ void copy_stretch(const struct stretch &p)
{
    size_t all = (size_t)p.from | (size_t)p.to | p.bytes;

    if (all % sizeof(uint4) == 0)
        copy_as<uint4>(p);
    else if (all % sizeof(uint2) == 0)
        copy_as<uint2>(p);
    else
        copy_as<uint8_t>(p);
}

/* What the host has written, all words at once: each costs a way across PCIe and back. */
static __device__ void read_words(void *to, const void *from, size_t bytes)
{
    for (size_t i = threadIdx.x; i < bytes / sizeof(uint2); i += blockDim.x)
        ((uint2 *)to)[i] = read_host((const uint2 *)from + i);
}

/* Which pairs wanted what is offered: the kernels behind find the experts in their slots. */
static __device__ void list_late(const struct taking &t, int experts)
{
    __shared__ struct offered o[GPU_OFFERS];

    read_words(o, t.offers->expert, experts * sizeof(*o));
    __syncthreads();
    for (int i = threadIdx.x; i < t.pairs; i += blockDim.x) {
        struct pair *p = &t.late[i];

        p->slot = -1;
        for (int x = 0; x < experts; x++) {
            if (o[x].id != t.id[i])
                continue;
            p->ffn = o[x].ffn;
            p->slot = o[x].slot;
        }
    }
}

__global__ static void __launch_bounds__(OFFER_THREADS) offer_kernel(const struct taking t)
{
    __shared__ struct stretch stretch[MOST_STRETCHES];
    __shared__ uint2 count;             /* experts and stretches */
    uint32_t want;
    long long start = 0;

    want = *t.awaited;
    if (threadIdx.x == 0) {
        count = make_uint2(0, 0);
        if (want && wait_for_host(&t.patience.box->offer, want, t.patience))
            count = read_host((const uint2 *)&t.offers->experts);
        start = clock_ns();
    }
    __syncthreads();
    if (blockIdx.x == 0)
        list_late(t, count.x);
    if (!count.x)
        return;
    read_words(stretch, t.offers->stretch, count.y * sizeof(*stretch));
    __syncthreads();
    for (int i = 0; i < (int)count.y; i++)
        copy_stretch(stretch[i]);
    if (last_block(t.ticket, gridDim.x) && threadIdx.x == 0)
        *(volatile long long *)&t.patience.box->fetch_ns = clock_ns() - start;
}

void queue_offers(struct gpu *g, cudaStream_t stream, int layer, int n)
{
    struct taking t = {
        .offers = g->offers_dev, .awaited = g->epoch + 1, .patience = patience_of(g),
        .late = g->s.late, .id = g->s.step_id + (size_t)layer * GPU_STEP_TOKENS * g->shape.topk,
        .ticket = g->s.ticket + ATTEND_TICKETS, .pairs = n * g->shape.topk,
    };

    offer_kernel<<<OFFER_BLOCKS, OFFER_THREADS, 0, stream>>>(t);
    LAUNCHED(g);
}
