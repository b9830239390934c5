/* How a kernel of a step waits for the host. */
#ifndef LAGUNA_MAILBOX_CUH
#define LAGUNA_MAILBOX_CUH

#include "cuda/gpu_internal.cuh"

static __device__ __forceinline__ long long clock_ns(void)
{
    long long t;

    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(t));
    return t;
}

/* One thread waits until a flag of the mailbox has come to `want`.  False where it never will: the
 * watchdog then marks the step dead, so that nothing later waits again. */
static __device__ __forceinline__ bool wait_for_host(const uint32_t *flag, uint32_t want,
                                                     const struct patience &p)
{
    uint32_t got;
    long long start = clock_ns();
    volatile uint32_t *dead = &p.args->dead;

    while (!*dead) {
        asm volatile("ld.acquire.sys.global.u32 %0, [%1];" : "=r"(got) : "l"(flag) : "memory");
        if ((int)(got - want) >= 0)
            return true;
        if (p.limit_ns && clock_ns() - start > p.limit_ns) {
            *dead = 1;
            *(volatile uint32_t *)&p.box->watchdog = 1;
        }
    }
    return false;
}

#endif
