#ifndef LAGUNA_CPU_H
#define LAGUNA_CPU_H

#include "cpu/kernels.h"
#include "cpu/kv.h"
#include "src/expert.h"
#include "src/shape.h"

struct pool;

/* The stages of a layer on the CPU.  A struct cpu holds the residual stream and all scratch
 * of one batch; every call returns when its work is done.  Each sum is made in an order that
 * the shapes alone decide, so threads never change a bit. */
struct cpu;

struct cpu_config {
    const struct shape *shape;          /* outlives the struct cpu, as pool and kernels do */
    const struct cpu_kernels *kernels;
    struct pool *pool;
    int threads;                        /* of the pool */
    int batch;                          /* most tokens of one call */
    bool experts_only;                  /* waves of routed experts and nothing else */
};

/* Bytes of scratch that cpu_open() reserves; needs no pool. */
size_t cpu_scratch_bytes(const struct cpu_config *c);

int  cpu_open(struct cpu **out, const struct cpu_config *c, struct err *e);
void cpu_close(struct cpu *c);

/* Start a batch: the residual stream becomes the tokens' rows of embed. */
void cpu_embed(struct cpu *c, const struct matrix *embed, const struct batch *b);

/* x += o(gate * attention(norm(x))); the batch's keys and values go into kv. */
void cpu_attention(struct cpu *c, int layer, const struct layer_weights *w, struct kv *kv,
                   const struct batch *b);

/* x += ffn(norm(x)): a layer without experts. */
void cpu_dense(struct cpu *c, const struct layer_weights *w);

/* Norm, router and the shared expert.  The route stays valid until the next cpu_route().
 * next: a later layer whose router is applied to the same residual stream, before it is
 * what that layer will see: its choice, for at most CPU_GUESS_TOKENS tokens, is a guess.
 * NULL: none.  -EDOM where a router logit is not finite. */
enum { CPU_GUESS_TOKENS = 4 };

int  cpu_route(struct cpu *c, const struct layer_weights *w, const struct layer_weights *next,
               struct route *out, struct route *guess);

/* A wave: some of the layer's chosen experts, in ascending id.  Waves of a layer ascend too.
 * wave_begin lays out which tokens chose which expert; wave_add computes experts of the wave
 * whose bytes are here, in any order, each once; wave_end sums all of them, ascending.
 * The tokens of a wave's experts, counted once for each expert, may be at most
 * cpu_wave_pairs(). */
int  cpu_wave_pairs(const struct cpu *c);
void cpu_wave_begin(struct cpu *c, const struct route *r, const uint16_t *id, int n);
void cpu_wave_add(struct cpu *c, const struct expert *const *x, int n);
void cpu_wave_end(struct cpu *c);

/* Where another device does the rest of the layer: the waves' input is h [tokens][hidden], the
 * normed residual stream, copied before this returns; cpu_routed() is their sum of
 * weight * expert, [tokens][hidden]. */
void cpu_begin_routed(struct cpu *c, const float *h, int tokens);
const float *cpu_routed(const struct cpu *c);

/* x += routed * route_scale + shared. */
void cpu_combine(struct cpu *c);

/* logits [n][vocab] of the batch's tokens from, from + 1, ... */
void cpu_logits(struct cpu *c, const float *norm, const struct matrix *head, int from, int n,
                float *logits);

#endif
