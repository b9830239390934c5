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

static const char *advice_on(cudaError_t rc)
{
    switch (rc) {
    case cudaErrorInsufficientDriver:
        return "install a newer driver";
    case cudaErrorSystemDriverMismatch:
        return "restart the machine, so that the driver and its libraries are of one version";
    case cudaErrorSystemNotReady:
        return "start the services that the driver needs";
    case cudaErrorNotPermitted:
        return "this user, or this container, may not use the GPU";
    case cudaErrorDevicesUnavailable:
        return "another process has the GPU for itself";
    default:
        return "see the driver's log";
    }
}

/* Versions are 1000 * major + 10 * minor. */
static int refuse(cudaError_t rc, int driver, struct err *e)
{
    int runtime = 0;

    cudaRuntimeGetVersion(&runtime);
    return fail(e, -ENODEV, "CUDA: %s (%d); the driver is for CUDA %d.%d, this program for %d.%d: "
                "%s", cudaGetErrorString(rc), (int)rc, driver / 1000, driver % 1000 / 10,
                runtime / 1000, runtime % 1000 / 10, advice_on(rc));
}

static cudaError_t describe(struct gpu_facts *f, int device)
{
    cudaDeviceProp p;
    int limit = 0;
    cudaError_t rc = cudaGetDeviceProperties(&p, device);

    if (rc == cudaSuccess)
        rc = cudaDeviceGetAttribute(&limit, cudaDevAttrKernelExecTimeout, device);
    if (rc != cudaSuccess)
        return rc;
    snprintf(f->name, sizeof(f->name), "%.63s", p.name);
    f->major = p.major;
    f->minor = p.minor;
    f->time_limit = limit;
    rc = cudaSetDevice(device);
    return rc == cudaSuccess ? cudaMemGetInfo(&f->free_bytes, &f->vram_bytes) : rc;
}

extern "C" int gpu_list(struct gpu_facts out[MAX_GPUS], struct err *e)
{
    int n = 0, driver = 0, before = 0;
    cudaError_t rc = cudaDriverGetVersion(&driver);

    if (rc == cudaSuccess && !driver)   /* none is installed */
        return 0;
    if (rc == cudaSuccess)
        rc = cudaGetDeviceCount(&n);
    if (rc == cudaErrorNoDevice)
        return 0;
    if (rc == cudaSuccess)
        rc = cudaGetDevice(&before);
    for (int i = 0; rc == cudaSuccess && i < n && i < MAX_GPUS; i++)
        rc = describe(&out[i], i);
    if (rc != cudaSuccess)
        return refuse(rc, driver, e);
    cudaSetDevice(before);
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
