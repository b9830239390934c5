#ifndef LAGUNA_ENGINE_INTERNAL_H
#define LAGUNA_ENGINE_INTERNAL_H

#include "cpu/pool.h"
#include "src/engine.h"
#include "src/forward.h"
#include "src/placement.h"
#include "src/split.h"
#include "src/trace.h"
#include "src/upload.h"

/* What engine.c and session.c share. */
struct engine {
    struct log *log;
    struct model *model;
    struct tokenizer *tokenizer;
    struct tokentrie *trie;             /* NULL until a constraint needs it */
    struct pool *pool;
    struct experts *experts;
    struct cpu *cpu;
    int device;                         /* the GPU's number, or -1 */
    struct gpu_facts gpu_facts;
    struct gpu *gpu;                    /* NULL: the CPU does everything */
    struct vram *vram;
    struct feed *feed;
    struct split split;
    struct upload upload;
    float *normed;                      /* [SPLIT_TOKENS][hidden] */
    struct session *seated;             /* whose cache the GPU holds */
    const struct cpu_kernels *kernels;
    enum kv_type kv_type;
    struct placement placement;
    struct runner runner;
    int shown_percent;                  /* of the loading */
    double opened;                      /* when engine_open() began */
    struct trace *trace;                /* --trace-routes, or NULL */
};

/* Under --verbose: what a start has come to, and after how long. */
void engine_came_to(const struct engine *g, const char *what);

/* engine_gpu.c: the parts of opening and closing that a GPU has.  choose: which one, if any, by
 * --device.  open: its memory, and the dense weights in it, which RAM then forgets; the model is
 * loaded.  ready: what the runner needs besides, when CPU and experts are there.  release: what
 * must go before the experts; the GPU itself is closed after them. */
int  engine_gpu_choose(struct engine *g, const struct options *o, struct err *e);
int  engine_gpu_open(struct engine *g, const struct options *o, struct err *e);
int  engine_gpu_ready(struct engine *g, const struct options *o, struct err *e);
void engine_gpu_release(struct engine *g);

#endif
