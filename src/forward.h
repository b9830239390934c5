#ifndef LAGUNA_FORWARD_H
#define LAGUNA_FORWARD_H

#include "cpu/cpu.h"
#include "cuda/gpu.h"
#include "src/experts.h"

#include <stdatomic.h>

/* Seconds of a runner with a GPU; they only grow. */
struct run_times {
    double cpu_share;                   /* the CPU computed experts, its waits for a drive too */
    double gpu_wait;                    /* the CPU waited for what the GPU asks or answers */
};

/* What a batch needs on its way through the layers. */
struct runner {
    const struct model *model;
    struct cpu *cpu;
    struct experts *experts;
    struct gpu *gpu;                    /* NULL: the CPU does everything */
    struct vram *vram;                  /* with a GPU: who is seated there */
    struct feed *feed;                  /* how others pass through it; NULL: none do */
    struct split *split;                /* between passing and computing here */
    struct upload *upload;              /* the same in a step; NULL: the CPU computes all */
    int step_tokens;                    /* a step of so many and fewer is captured */
    float *normed;                      /* [batch][hidden], what the CPU gets of a batch */
    bool stepped;                       /* the last batch was a step */
    double step_seconds;                /* the last step took */
    struct run_times times;
    /* Where asked for, the router's choices: [sparse layers][batch][topk].  Else NULL. */
    uint16_t *route_id;
    float *route_weight;
    const atomic_int *cancel;           /* non-zero stops a batch between layers; or NULL */
    int batch;
};

/* Run the batch; its keys and values are then in kv (with a GPU: there), its residual stream
 * where runner_logits() wants it.  -EDOM, naming the layer, where a router's score is not
 * finite; an expert that cannot be had, by name; -EREMOTEIO where the GPU fails; -ECANCELED. */
int  forward(struct runner *f, struct kv *kv, const struct batch *b, struct err *e);

/* logits [n][vocab] of the batch's tokens from, from + 1, ...  Fails only with a GPU. */
int  runner_logits(struct runner *f, int from, int n, float *logits, struct err *e);

/* 0, or -ECANCELED where the batch is not to go on. */
int  runner_stopped(const struct runner *f, struct err *e);

/* Whether the last batch's logits are on a GPU that can choose from them, row by row; and its
 * choice: temperature 0 takes the likeliest.  1, or -EREMOTEIO. */
bool runner_chooses(const struct runner *f);
int  runner_choose(struct runner *f, const struct gpu_choice *c, int32_t *id, struct err *e);

/* What a layer's router chose: into the statistics, and to who asked for routes. */
void runner_keep_route(struct runner *f, int layer, const struct route *r);

#endif
