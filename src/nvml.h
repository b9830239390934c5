#ifndef LAGUNA_NVML_H
#define LAGUNA_NVML_H

#include "src/base.h"

/* What NVIDIA's management library says of the cards of this machine, also of those that CUDA
 * was told to hide.  For `doctor`: nothing is planned from it. */

enum { NVML_CARDS = 16, NVML_NOT_TOLD = -1 };

struct nvml_card {
    char name[96];
    size_t total_bytes, used_bytes;     /* 0: not told */
    /* Each of these may be NVML_NOT_TOLD. */
    int generation, width;              /* of the PCIe link now; an idle one slows down */
    int generation_most, width_most;
    int power_watts, power_default_watts;       /* limits */
    int persistence;                    /* 0 or 1 */
    int others;                         /* processes besides this one that compute on it */
    size_t others_bytes;                /* that they hold; 0 where that is not told */
};

struct nvml {
    char driver[80];                    /* its version, or empty */
    int cards;
    struct nvml_card card[NVML_CARDS];
};

/* library: a file, or NULL for the system's.  -ENOENT where there is none; -ENOSYS where it
 * lacks what is indispensable; -EREMOTEIO with the library's words.  What an older library
 * does not know is not told. */
int nvml_read(struct nvml *out, const char *library, struct err *e);

#endif
