#ifndef LAGUNA_MEMORY_H
#define LAGUNA_MEMORY_H

#include "src/base.h"

/* What this machine has to give, as the kernel and the control group say. */

/* Bytes that this process may still take: MemAvailable, or less where a cgroup says so. */
size_t memory_available(void);

/* Bytes of the machine, or of the cgroup where that is less. */
size_t memory_total(void);

#endif
