/* The devices of this machine, and memory pinned for all of them, through the CUDA runtime
 * (linked statically: the program starts where no driver is installed). */
#include "cuda/gpu.h"

#include <cuda_runtime.h>
#include <errno.h>
#include <stdio.h>

extern "C" bool gpu_is_reference(void)
{
    return false;
}

extern "C" int gpu_list(struct gpu_facts out[MAX_GPUS], struct err *e)
{
    int n = 0;
    cudaError_t rc = cudaGetDeviceCount(&n);

    if (rc == cudaErrorNoDevice || rc == cudaErrorInsufficientDriver)
        return 0;
    for (int i = 0; rc == cudaSuccess && i < n && i < MAX_GPUS; i++) {
        cudaDeviceProp p;

        rc = cudaGetDeviceProperties(&p, i);
        if (rc != cudaSuccess)
            break;
        snprintf(out[i].name, sizeof(out[i].name), "%.63s", p.name);
        out[i].major = p.major;
        out[i].minor = p.minor;
        rc = cudaSetDevice(i);
        if (rc == cudaSuccess)
            rc = cudaMemGetInfo(&out[i].free_bytes, &out[i].vram_bytes);
    }
    if (rc != cudaSuccess)
        return fail(e, -ENODEV, "CUDA: %s", cudaGetErrorString(rc));
    return n;
}

int gpu_pin(void *p, size_t bytes, struct err *e)
{
    cudaError_t rc = cudaHostRegister(p, bytes, cudaHostRegisterPortable | cudaHostRegisterMapped);

    if (rc == cudaSuccess)
        return 0;
    cudaGetLastError();
    return fail(e, -ENOMEM, "cannot pin %zu MB: %s (%d)", bytes >> 20, cudaGetErrorString(rc),
                (int)rc);
}

/* What was not pinned is no harm. */
void gpu_unpin(void *p)
{
    if (cudaHostUnregister(p) != cudaSuccess)
        cudaGetLastError();
}
