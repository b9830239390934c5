#ifndef LAGUNA_GPU_H
#define LAGUNA_GPU_H

#include "src/base.h"

#ifdef __cplusplus
extern "C" {
#endif

/* What the program asks about GPUs; the stages of a layer will join it here.
 * Two implementations: device.cu, and gpu_ref.c for builds without CUDA. */

enum { MAX_GPUS = 8 };

struct gpu_facts {
    char name[64];
    size_t vram_bytes, free_bytes;
    int major, minor;           /* compute capability */
};

/* The CUDA devices of this machine: how many (0 where there is none), the first MAX_GPUS
 * described in out; or a negative errno with the words (driver too old ...). */
int gpu_list(struct gpu_facts out[MAX_GPUS], struct err *e);

#ifdef __cplusplus
}
#endif
#endif
