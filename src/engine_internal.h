#ifndef LAGUNA_ENGINE_INTERNAL_H
#define LAGUNA_ENGINE_INTERNAL_H

#include "cpu/pool.h"
#include "src/engine.h"
#include "src/forward.h"

/* What engine.c and session.c share. */
struct engine {
    struct log *log;
    struct model *model;
    struct tokenizer *tokenizer;
    struct pool *pool;
    struct experts *experts;
    struct cpu *cpu;
    const struct cpu_kernels *kernels;
    enum kv_type kv_type;
    int context;                        /* positions of a session */
    int batch;                          /* most tokens of one forward pass */
    struct runner runner;
};

#endif
