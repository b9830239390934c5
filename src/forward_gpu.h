#ifndef LAGUNA_FORWARD_GPU_H
#define LAGUNA_FORWARD_GPU_H

#include "src/forward.h"

/* forward() and runner_logits() where the runner has a GPU. */
int  forward_gpu(struct runner *f, const struct batch *b, struct err *e);
int  forward_gpu_logits(struct runner *f, int from, int n, float *logits, struct err *e);

#endif
