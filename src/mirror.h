#ifndef LAGUNA_MIRROR_H
#define LAGUNA_MIRROR_H

#include "cpu/kv.h"
#include "cuda/gpu.h"

/* A session's cache on a GPU, and its mirror in RAM: a struct kv of the same sizes, into which
 * positions are read when they are to be kept, and from which they come back.  Pages of the
 * mirror are touched only then. */
struct mirror {
    struct gpu *gpu;
    const struct shape *shape;
    struct kv *kv;              /* opened with the GPU's context and batch */
};

/* Positions from..to - 1 of all layers, as far as the rings still hold them; windows_only: of
 * the window layers.  Blocks.  -EREMOTEIO. */
int mirror_save(const struct mirror *m, int from, int to, bool windows_only, struct err *e);
int mirror_restore(const struct mirror *m, int from, int to, bool windows_only, struct err *e);

/* Zeros in place of positions from..to - 1, at most a batch of them, on both sides: kernels load
 * values behind the last one and multiply them by zero, which does not help against a NaN.
 * Errors and blocking as above. */
int mirror_wipe(const struct mirror *m, int from, int to, struct err *e);

#endif
