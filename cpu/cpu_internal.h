#ifndef LAGUNA_CPU_INTERNAL_H
#define LAGUNA_CPU_INTERNAL_H

#include "cpu/cpu.h"
#include "cpu/pool.h"

#include <stdatomic.h>

/* What the stage files share: cpu.c (batch, products), attention.c, ffn.c. */

/* Rows of floats as a product takes them: packed once, in each kind that is needed. */
struct acts {
    uint8_t *packed[ACT_KINDS];         /* [rows][stride] */
    size_t stride[ACT_KINDS];
    int cols;
    const float *plain;                 /* [rows][cols], or NULL where nobody keeps them */
};

/* y = m x for n rows of x. */
struct product {
    const struct matrix *m;
    float *y;                           /* [n][y_stride] */
    size_t y_stride;
    const struct acts *x;
    int first, n;                       /* rows of x */
    bool exact;                         /* float32 activations: the router */
};

/* One expert of a wave: its products read and write rows pair..pair + tokens. */
struct wave_expert {
    int id, pair, tokens;
};

struct wave {
    struct wave_expert expert[MAX_EXPERTS];
    int experts, pairs, topk;
    int *token;                 /* [pairs]: which row of the batch */
    float *weight;              /* [pairs] */
    int *of_token;              /* [batch][topk]: the pair, or -1; ascending expert */
};

/* The products of some experts of a wave. */
struct wave_job {
    struct cpu *c;
    const struct expert *const *x;
    const struct wave_expert *w[MAX_EXPERTS];
    struct product in[2 * MAX_EXPERTS], down[MAX_EXPERTS];
    int n;
    unsigned kinds;                     /* of gathered h */
};

struct cpu {
    const struct shape *shape;
    const struct cpu_kernels *k;
    struct pool *pool;
    int threads, batch, tokens, pairs;  /* tokens: of the batch in progress */
    bool experts_only;
    unsigned all_kinds;                 /* of activations that any product here may take */
    uint8_t *arena;
    size_t arena_bytes;

    float *x;                           /* [batch][hidden], the residual stream */
    float *h;                           /* [batch][hidden], normed */
    struct acts h_acts;                 /* of h */
    float *q, *kx, *vx, *g;             /* [batch][...]: projections; q then holds the result */
    struct acts o_acts;                 /* of the gated attention output */
    float *delta;                       /* [batch][hidden]: what a stage adds to x */
    float *cosine[2], *sine[2];         /* window and full layers: [batch][rope dims / 2] */
    float *block;                       /* [workers][attention block] */
    float *panel;                       /* [workers][CPU_PANEL_ROWS][cols], or NULL: no BLAS */
    float *partial;                     /* attention of few tokens, split by keys */
    atomic_int next_task;

    float *router, *route_weight;       /* [batch][experts], [batch][topk] */
    uint16_t *route_id;
    struct acts guess_acts;             /* [CPU_GUESS_TOKENS], as the next router would see h */
    float *guess_norm;                  /* [CPU_GUESS_TOKENS][hidden] */
    float *guess, *guess_weight;        /* [CPU_GUESS_TOKENS][experts], [..][topk] */
    uint16_t *guess_id;
    float *shared;                      /* [batch][hidden] */
    float *routed;                      /* [batch][hidden] */
    struct wave wave;
    struct wave_job wave_job;
    struct acts pair_acts;              /* [pairs] gathered h */
    float *gate, *up;                   /* [pairs][inner]; gate then holds silu(gate) * up */
    struct acts inner_acts, dense_acts; /* [pairs], [batch] of it */
    float *pair_out;                    /* [pairs][hidden] */
};

/* Where many tokens meet BF16 weights: dense_blas.c.  A panel is a worker's scratch. */
enum { CPU_PANEL_ROWS = 32, CPU_BLAS_TOKENS = 64 };

size_t cpu_panel_floats(const struct cpu *c);
void   cpu_blas_open(void);
void   cpu_mul_blas(const struct product *p, int row0, int row1, float *panel);

/* Floats of scratch that attention.c wants in block and partial. */
size_t cpu_block_floats(const struct cpu *c);
size_t cpu_partial_floats(const struct cpu *c);

/* cosine and sine of the batch's positions, this worker's share. */
void cpu_rope_share(struct cpu *c, int pos, int worker, int workers);

/* The kinds of packed activations that m needs, as a mask of 1 << kind. */
unsigned cpu_kinds(const struct cpu *c, const struct matrix *m);

/* Pack row i of a. */
void cpu_pack(const struct cpu *c, struct acts *a, unsigned kinds, int i, const float *row);

/* This worker's share of the rows of all products, by bytes and operations. */
void cpu_mul_share(const struct cpu *c, const struct product *p, int n, int worker, int workers);

/* h[t] = norm(x[t], w), packed, for this worker's share of the tokens. */
void cpu_norm_share(struct cpu *c, const float *w, unsigned kinds, int worker, int workers);

/* x += delta, this worker's share of the tokens' columns. */
void cpu_residual_share(struct cpu *c, const float *delta, int worker, int workers);

#endif
