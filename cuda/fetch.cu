/* Lists and sums that the host has just written, for the kernels queued behind: read through PCIe
 * by multiprocessors.  A copy engine would do it, but takes one copy after the other, and the
 * experts on their way to staging slots would all come first: milliseconds for a few hundred
 * bytes, and copies and computing in turns instead of side by side. */
#include "cuda/gpu_internal.cuh"

enum { FETCH_THREADS = 256 };

__global__ static void fetch_kernel(uint32_t *to, const uint32_t *from, size_t words)
{
    size_t step = (size_t)gridDim.x * blockDim.x;

    for (size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x; i < words; i += step)
        to[i] = from[i];
}

void queue_fetch(struct gpu *g, void *to, const void *from, size_t bytes)
{
    size_t words = bytes / sizeof(uint32_t);
    size_t blocks = (words + FETCH_THREADS - 1) / FETCH_THREADS;

    if (!words)
        return;
    if (blocks > 4 * (size_t)g->sms)
        blocks = 4 * (size_t)g->sms;
    fetch_kernel<<<(unsigned)blocks, FETCH_THREADS, 0, g->stream>>>((uint32_t *)to,
                                                                   (const uint32_t *)from, words);
    LAUNCHED(g);
}
