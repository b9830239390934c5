/* The block that ends last does what needs all the others' results: no second launch, and the
 * order of sums does not depend on which block it is. */
#ifndef LAGUNA_TICKET_CUH
#define LAGUNA_TICKET_CUH

#include <cuda_runtime.h>

/* True in all threads of the block that took the last of `count` tickets. */
static __device__ __forceinline__ bool last_block(unsigned *ticket, unsigned count)
{
    __shared__ bool last;

    __threadfence();
    __syncthreads();
    if (threadIdx.x == 0) {
        last = atomicAdd(ticket, 1) == count - 1;
        if (last)
            *ticket = 0;
        __threadfence();
    }
    __syncthreads();
    return last;
}

#endif
