#ifndef LAGUNA_ENGINE_FAULTS_H
#define LAGUNA_ENGINE_FAULTS_H

#include "cuda/gpu.h"
#include "storage/stream.h"

/* What a test wants to go wrong in an engine that it opens: options.faults, which no option
 * sets. */
struct engine_faults {
    struct gpu_faults gpu;
    /* In place of gpu_list(), where not NULL. */
    int (*list)(struct gpu_facts out[MAX_GPUS], struct err *e);
    /* As stream_config.fault; may be NULL. */
    void (*read)(void *arg, const struct read *r, uint64_t offset, uint32_t bytes,
                 struct stream_fault *f);
    void *read_arg;
};

#endif
