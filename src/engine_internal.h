#ifndef LAGUNA_ENGINE_INTERNAL_H
#define LAGUNA_ENGINE_INTERNAL_H

#include "cpu/pool.h"
#include "src/engine.h"
#include "src/forward.h"
#include "src/placement.h"
#include "src/trace.h"

/* What engine.c and session.c share. */
struct engine {
    struct log *log;
    struct model *model;
    struct tokenizer *tokenizer;
    struct tokentrie *trie;             /* NULL until a constraint needs it */
    struct pool *pool;
    struct experts *experts;
    struct cpu *cpu;
    const struct cpu_kernels *kernels;
    enum kv_type kv_type;
    struct placement placement;
    struct runner runner;
    int shown_percent;                  /* of the loading */
    struct trace *trace;                /* --trace-routes, or NULL */
};

#endif
