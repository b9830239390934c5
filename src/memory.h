#ifndef LAGUNA_MEMORY_H
#define LAGUNA_MEMORY_H

#include "src/base.h"

/* What this machine has to give, as the kernel and the control groups say. */
struct memory {
    size_t total_bytes;         /* of the machine, or of the tightest control group */
    size_t free_bytes;          /* that this process may still take */
    bool group;                 /* a control group gives less than the machine has */
};

/* `root` is put before /proc, and before what /proc/self/mountinfo names: "" but in tests.
 * All 0 where the kernel does not tell. */
struct memory memory_find(const char *root);

#endif
