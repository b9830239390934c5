/* What a device's memory and its link give, for a plan that is made before anything is opened:
 * by themselves, and the link while the host reads its memory too.  How long kernels take is
 * time.cu's. */
#include "cuda/blas.h"
#include "cuda/gpu.h"

#include <cuda_runtime.h>
#include <errno.h>
#include <string.h>

enum {
    MOST_BYTES = 128 << 20,     /* of each of the two copies in VRAM: more than any L2 */
    LEAST_BYTES = 1 << 20,
    HOST_BYTES = 32 << 20,
    ROUND_COPIES = 4,
    MEASURE_MS = 100,           /* of each speed; an idle clock and an idle link wake up in it */
    MOST_ROUNDS = 1000,
    PIECE_BYTES = 16 << 20, PIECES = 8, /* copied while the host reads: more than its caches */
    AHEAD = 4,                  /* pieces queued: longer than what the host does meanwhile */
    BESIDE_MS = 150,
    SIDE = 4096,                /* of the product's matrices */
    WORKSPACE = 32 << 20,
};

struct copies {
    uint8_t *to, *from, *host;  /* [bytes] and [bytes] of VRAM; pinned: [host_bytes] */
    size_t bytes, host_bytes;
    cudaStream_t stream;
    cudaEvent_t begin, end;
    cudaError_t rc;             /* the first failure */
};

static void keep(struct copies *c, cudaError_t rc)
{
    if (c->rc == cudaSuccess)
        c->rc = rc;
}

static void take_queue(struct copies *c)
{
    keep(c, cudaMalloc((void **)&c->to, c->bytes));
    keep(c, cudaHostAlloc((void **)&c->host, c->host_bytes, 0));
    if (c->rc == cudaSuccess)
        memset(c->host, 0, c->host_bytes);
    keep(c, cudaStreamCreateWithFlags(&c->stream, cudaStreamNonBlocking));
    keep(c, cudaEventCreate(&c->begin));
}

static void take_memory(struct copies *c)
{
    size_t free_bytes = 0, total = 0;

    keep(c, cudaMemGetInfo(&free_bytes, &total));
    c->bytes = free_bytes / 4 / LEAST_BYTES * LEAST_BYTES;
    if (c->bytes > MOST_BYTES)
        c->bytes = MOST_BYTES;
    if (!c->bytes)
        keep(c, cudaErrorMemoryAllocation);
    if (c->rc != cudaSuccess)
        return;
    c->host_bytes = c->bytes < HOST_BYTES ? c->bytes : HOST_BYTES;
    take_queue(c);
    keep(c, cudaMalloc((void **)&c->from, c->bytes));
    keep(c, cudaEventCreate(&c->end));
}

static void give_back(struct copies *c)
{
    if (c->begin)
        cudaEventDestroy(c->begin);
    if (c->end)
        cudaEventDestroy(c->end);
    if (c->stream)
        cudaStreamDestroy(c->stream);
    cudaFree(c->to);
    cudaFree(c->from);
    cudaFreeHost(c->host);
    cudaGetLastError();
}

/* The best round of copies of n bytes, in 1e9 bytes a second. */
static double best_gbps(struct copies *c, const uint8_t *from, size_t n)
{
    double best = 0, spent = 0;

    for (int round = 0; round < MOST_ROUNDS && spent < MEASURE_MS; round++) {
        float ms = 0;

        keep(c, cudaEventRecord(c->begin, c->stream));
        for (int i = 0; i < ROUND_COPIES; i++)
            keep(c, cudaMemcpyAsync(c->to, from, n, cudaMemcpyDefault, c->stream));
        keep(c, cudaEventRecord(c->end, c->stream));
        keep(c, cudaEventSynchronize(c->end));
        keep(c, cudaEventElapsedTime(&ms, c->begin, c->end));
        if (c->rc != cudaSuccess || ms <= 0)
            return best;
        if (ROUND_COPIES * n / (ms * 1e6) > best)
            best = ROUND_COPIES * n / (ms * 1e6);
        spent += ms;
    }
    return best;
}

/* The best of some products, in 1e9 multiplications a second.  Small values, none of them zero:
 * zeros are multiplied faster. */
static double best_gmacs(struct copies *c)
{
    const size_t matrix = (size_t)SIDE * SIDE * sizeof(bf16);
    const double macs = (double)SIDE * SIDE * SIDE;
    struct blas_product p = { SIDE, SIDE, SIDE, (const bf16 *)c->from,
                              (const bf16 *)(c->from + matrix), SIDE, SIDE, (float *)c->to };
    struct blas *b = c->bytes < 2 * matrix + WORKSPACE
                         ? NULL : blas_open(c->stream, c->from + 2 * matrix, WORKSPACE);
    double best = 0, spent = 0;

    keep(c, cudaMemset(c->from, 0x3c, c->bytes));
    for (int round = 0; b && round < MOST_ROUNDS && spent < MEASURE_MS; round++) {
        float ms = 0;

        keep(c, cudaEventRecord(c->begin, c->stream));
        if (blas_mul(b, &p))
            break;
        keep(c, cudaEventRecord(c->end, c->stream));
        keep(c, cudaEventSynchronize(c->end));
        keep(c, cudaEventElapsedTime(&ms, c->begin, c->end));
        if (c->rc != cudaSuccess || ms <= 0)
            break;
        if (macs / (ms * 1e6) > best)
            best = macs / (ms * 1e6);
        spent += ms;
    }
    blas_close(b);
    return best;
}

/* The device that was current before, or -ENODEV. */
static int enter(int device, struct err *e)
{
    int n = 0, before = 0;

    if (cudaGetDeviceCount(&n) != cudaSuccess || device < 0 || device >= n) {
        cudaGetLastError();
        return fail(e, -ENODEV, "no CUDA device %d (this machine shows %d)", device, n);
    }
    if (cudaGetDevice(&before) != cudaSuccess || cudaSetDevice(device) != cudaSuccess) {
        cudaGetLastError();
        return fail(e, -EREMOTEIO, "GPU %d: it cannot be chosen", device);
    }
    return before;
}

static int leave(struct copies *c, int device, int before, struct err *e)
{
    give_back(c);
    cudaSetDevice(before);
    if (c->rc == cudaErrorMemoryAllocation)
        return fail(e, -ENOMEM, "GPU %d: no memory to measure it with", device);
    if (c->rc != cudaSuccess)
        return fail(e, -EREMOTEIO, "GPU %d: %s (%d) while measuring", device,
                    cudaGetErrorString(c->rc), (int)c->rc);
    return 0;
}

int gpu_measure(int device, struct gpu_speeds *out, struct err *e)
{
    struct copies c = {};
    int before = enter(device, e);

    if (before < 0)
        return before;
    take_memory(&c);
    if (c.rc == cudaSuccess) {
        keep(&c, cudaMemset(c.from, 0, c.bytes));
        out->vram_gbps = 2 * best_gbps(&c, c.from, c.bytes);
        out->h2d_gbps = best_gbps(&c, c.host, c.host_bytes);
        out->gmacs = best_gmacs(&c);
    }
    return leave(&c, device, before, e);
}

/* --- beside the host ------------------------------------------------------------------------ */

static void queue_piece(struct copies *c, int i, cudaEvent_t done)
{
    const uint8_t *from = c->host + (size_t)(i % PIECES) * PIECE_BYTES;

    keep(c, cudaMemcpyAsync(c->to, from, PIECE_BYTES, cudaMemcpyHostToDevice, c->stream));
    keep(c, cudaEventRecord(done, c->stream));
}

/* Copies without a pause, of which those count that ended during the rounds: only they had the
 * host beside them all the time. */
static double gbps_beside(struct copies *c, struct gpu_beside *b, cudaEvent_t done[AHEAD])
{
    int ended = 0;
    float ms = 0;

    queue_piece(c, 0, c->begin);        /* an idle link wakes up in it */
    for (int i = 0; i < AHEAD; i++)
        queue_piece(c, i, done[i]);
    while (ms < BESIDE_MS && c->rc == cudaSuccess) {
        cudaError_t rc = cudaSuccess;

        b->round(b->arg);
        while (c->rc == cudaSuccess && (rc = cudaEventQuery(done[ended % AHEAD])) == cudaSuccess) {
            keep(c, cudaEventElapsedTime(&ms, c->begin, done[ended % AHEAD]));
            queue_piece(c, ended + AHEAD, done[ended % AHEAD]);
            ended++;
        }
        if (rc != cudaErrorNotReady)
            keep(c, rc);
    }
    keep(c, cudaStreamSynchronize(c->stream));
    return ms > 0 ? (double)ended * PIECE_BYTES / (ms * 1e6) : 0;
}

int gpu_measure_beside(int device, struct gpu_beside *b, struct err *e)
{
    struct copies c = {};
    cudaEvent_t done[AHEAD] = {};
    int before = enter(device, e);

    if (before < 0)
        return before;
    c.bytes = PIECE_BYTES;
    c.host_bytes = (size_t)PIECES * PIECE_BYTES;
    take_queue(&c);
    for (int i = 0; i < AHEAD; i++)
        keep(&c, cudaEventCreate(&done[i]));
    if (c.rc == cudaSuccess)
        b->h2d_gbps = gbps_beside(&c, b, done);
    for (int i = 0; i < AHEAD; i++)
        if (done[i])
            cudaEventDestroy(done[i]);
    return leave(&c, device, before, e);
}
