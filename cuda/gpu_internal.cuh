/* What the .cu files share: the state behind cuda/gpu.h, and how errors are kept.  A file of
 * kernels ends in functions that queue them; gpu.cu, stage.cu and step.cu call those. */
#ifndef LAGUNA_GPU_INTERNAL_CUH
#define LAGUNA_GPU_INTERNAL_CUH

#include "cuda/blas.h"
#include "cuda/gpu.h"

#include <cuda_runtime.h>
#include <stdio.h>

enum {
    WARP = 32,
    TILE_ROWS = 16,             /* rows of a weight matrix per mma tile */
    MAX_PARTS = 4,              /* matrices that share one launch */
    MAX_SPLITS = 64,            /* of the keys of one KV head in a decode step */
    HEAD_ROWS = 16,             /* query heads per attention tile */
    NORM_THREADS = 1024, NORM_VECTORS = 4,
    MAX_HIDDEN = 4 * NORM_VECTORS * NORM_THREADS,
    WIDE_TOKENS = 128, NARROW_TOKENS = 32,
    ATTEND_TICKETS = 2048, ROUTER_TICKETS = 1024, HEAD_TICKETS = 1024,
};

/* Mapped pinned memory through which a step and the CPU talk.  The device writes all of it but
 * `reply` and `offer`; between steps the host clears what went wrong. */
struct mailbox {
    uint32_t post, pad0[31];            /* sequence number of the last share asked for */
    uint32_t reply, pad1[31];           /* sequence number of the last share answered */
    uint32_t offer, pad3[31];           /* and of the last whose offers are known */
    uint32_t done, pad2[31];            /* number of the last step that ended */
    long long fetch_ns;                 /* that the last offers took */
    uint32_t watchdog;                  /* the CPU's share came too late */
    int bad_layer;                      /* layer + 1 of the first router that was not finite */
    uint32_t bad_logits;
    int layer, pairs;                   /* of the share asked for */
    int argmax[GPU_STEP_TOKENS];
    int choice;                         /* of gpu_sample() */
};

/* What changes from step to step: uploaded before the graph starts. */
struct step_args {
    int pos, tokens;
    uint32_t number;
    uint32_t dead;                      /* the watchdog fired: no wait from here on */
    int token[GPU_STEP_TOKENS];
};

struct kv_layer {
    uint8_t *k, *v;                     /* [kv_heads][rows][row_bytes] */
    uint16_t *k_scale, *v_scale;        /* q8: [kv_heads][rows] float16, else NULL */
    int rows;                           /* position p lies in row p % rows */
};

/* One (token, expert) of a step, resolved by the router: absent where slot < 0.  Of absent ones
 * those that an offer brings stand in a list of their own, which knows no weights. */
struct pair {
    struct ffn ffn;
    float weight;
    int slot;
};

/* Bytes that offer.cu brings from pinned memory. */
struct stretch {
    const uint8_t *from;
    uint8_t *to;
    size_t bytes;
};

enum { FFN_PARTS = 9, MOST_STRETCHES = GPU_OFFERS * FFN_PARTS };

struct offered {
    int id, slot;
    struct ffn ffn;                     /* as it will lie in its slot */
};

/* The offers of a share, written by the host and read in words of eight bytes. */
struct offers {
    int experts, stretches;
    struct stretch stretch[MOST_STRETCHES];
    struct offered expert[GPU_OFFERS];
};

/* A run of experts whose pairs fit the scratch, for grouped.cu: lists of the host, alike in
 * pinned memory and on the device. */
struct token_tile {
    int expert, first, n;               /* expert of the wave, and its pairs first.. */
};

struct lists {
    struct ffn *ffn;                    /* [experts] */
    int *token;                         /* [pairs] */
    float *weight;                      /* [pairs] */
    int *of_token;                      /* [tokens][topk]: pair or -1 */
    struct token_tile *tile;            /* [wide + narrow] */
    int wide, narrow;                   /* tiles of up to WIDE_TOKENS, of up to NARROW_TOKENS */
};

/* Device scratch of one batch.  Attention and FFN buffers share memory. */
struct scratch {
    float *x;                           /* [batch][hidden], the residual stream */
    float *h32;                         /* [batch][hidden], normed */
    bf16 *h;                            /* [batch][hidden], h32 rounded */
    float *delta;                       /* [batch][hidden] */
    float *q;                           /* [batch][max heads * dim] */
    float *k, *v;                       /* [batch][kv_heads * dim] */
    float *g;                           /* [batch][gate rows] */
    uint16_t *q16;                      /* [batch][heads * dim] float16, normed and rotated */
    bf16 *o;                            /* [batch][heads * dim], gated */
    float2 *rope[2];                    /* window, full: [batch][dims / 2] cosine, sine */
    float *partial;                     /* decode attention: splits */
    unsigned *ticket;                   /* zero between kernels: attention, router, head */
    float *router;                      /* [batch][experts] */
    uint16_t *route_id;                 /* [batch][topk] */
    float *route_weight;                /* [batch][topk] */
    float *shared, *routed;             /* [batch][hidden] */
    float *gate, *up;                   /* [batch][shared or dense inner] */
    bf16 *inner;                        /* [pairs or batch][inner], silu(gate) * up */
    bf16 *ordered;                      /* [batch][hidden], h as grouped.cu takes it */
    float *pair_out;                    /* [pairs][hidden] */
    uint8_t *lists;                     /* wave_bytes() */
    struct pair *pair, *late;           /* [GPU_STEP_TOKENS][topk] of a step */
    uint16_t *step_id;                  /* [layers][GPU_STEP_TOKENS][topk], for the host */
    float *step_weight;
    float *logits;                      /* [GPU_STEP_TOKENS][vocab] */
    bf16 *dense;                        /* one matrix dequantised, for cuBLAS */
    size_t dense_elements;
    void *workspace;                    /* of cuBLAS */
    int *tokens;                        /* [batch] ids */
};

/* A change of the table of seats. */
struct seating {
    struct ffn ffn;
    int at, slot;
};

enum { CHANGES = 8192, MAX_SMS = 192 };

struct gpu {
    struct gpu_config c;
    struct shape shape;
    cudaStream_t stream, copy, beside;  /* beside: a branch of a recorded step */
    cudaEvent_t table_used;             /* all that read the table before its last change */
    cudaEvent_t begin, end;             /* of gpu_time() */
    cudaEvent_t fork, join;             /* of a branch */
    cudaEvent_t *slot_done;             /* [slots]: the last copy into it or out of it */
    bool *slot_waited;                  /* [slots]: the compute stream already waits for it */
    int sms, pairs;
    bool early;                         /* kernels may begin early */
    uint8_t *arena;
    size_t arena_bytes, dense_at, dense_end;
    struct scratch s;
    struct kv_layer kv[MAX_LAYERS];
    struct layer_weights layer[MAX_LAYERS];     /* device pointers */
    struct matrix embed, head;
    float *final_norm;                  /* [hidden] */
    uint8_t *slots;
    struct ffn *slot_ffn;               /* [slots], host */
    int *seat_host, *seat;              /* [layers][experts], host and device */
    struct ffn *ffn_seat;               /* [layers][experts], device */
    struct seating *change, *change_dev;        /* mapped: a ring of [CHANGES] */
    int changes, changed;               /* of them written, and of them applied */
    struct rope *rope[2];               /* device: window, full */
    struct step_args *args, *args_host;
    struct mailbox *box, *box_dev;
    uint16_t *share_id, *share_token;   /* mapped, host addresses */
    float *share_weight, *share_h, *share_partial;
    uint16_t *share_id_dev, *share_token_dev;
    float *share_weight_dev, *share_h_dev, *share_partial_dev;
    uint16_t *step_id, *step_id_dev;    /* mapped: [layers][GPU_STEP_TOKENS][topk] */
    float *step_weight, *step_weight_dev;
    struct offers *offers, *offers_dev; /* mapped */
    uint8_t *mapped;
    uint8_t *staging;                   /* pinned: what a stage uploads */
    cudaEvent_t staged;                 /* the last upload from it is done */
    uint32_t *epoch;                    /* device: sequence of shares; [1]: awaited now, or 0 */
    cudaGraphExec_t graph[2][GPU_STEP_TOKENS + 1];      /* without and with offers */
    uint32_t steps, seen;               /* last step started, last share taken */
    int tokens, pos, routed_layer;      /* of the batch */
    uint16_t *route_id;                 /* host, pinned: [batch][topk] */
    float *route_weight;
    struct blas *blas;
    cudaError_t fault;
    const char *fault_call;
    int fault_line;
    uint32_t fault_step;
};

/* Run a CUDA call unless the device has already failed, and keep the first failure. */
#define TRY(g, call)                                                                      \
    do {                                                                                  \
        if ((g)->fault == cudaSuccess) {                                                  \
            cudaError_t try_rc = (call);                                                  \
            if (try_rc != cudaSuccess)                                                    \
                gpu_fault((g), try_rc, #call, __LINE__);                                  \
        }                                                                                 \
    } while (0)

#define LAUNCHED(g) TRY(g, cudaGetLastError())

/* Kernels that begin early: on compute capability 9.0 their blocks may start while the kernel
 * before is still running.  Until begin_in_order() they may read only weights and what the
 * kernel before that one wrote; every block calls it before it ends. */
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
static __device__ __forceinline__ void begin_in_order(void)
{
    asm volatile("griddepcontrol.wait;" ::: "memory");
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
}
#else
static __device__ __forceinline__ void begin_in_order(void)
{
}
#endif

void gpu_fault(struct gpu *g, cudaError_t rc, const char *call, int line);
/* -EREMOTEIO with the words where the device has failed, else 0. */
int  gpu_check(struct gpu *g, struct err *e);
/* A copy of m at `at`, where gpu_matrix_bytes() are free; done when this returns. */
struct matrix gpu_place_matrix(struct gpu *g, uint8_t *at, const struct matrix *m);
/* Queue the changes of the table, before work that reads it. */
void gpu_sync_table(struct gpu *g);
/* Pinned memory for a batch's rows or a wave's lists, once the last upload from it is done. */
uint8_t *gpu_staging(struct gpu *g);

template <typename... P, typename... A>
static void launch_early(struct gpu *g, void (*kernel)(P...), dim3 blocks, int threads,
                         size_t shared, const A &...args)
{
    cudaLaunchAttribute attribute = {};
    cudaLaunchConfig_t c = {};

    attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attribute.val.programmaticStreamSerializationAllowed = 1;
    c.gridDim = blocks;
    c.blockDim = dim3(threads);
    c.dynamicSmemBytes = shared;
    c.stream = g->stream;
    c.attrs = &attribute;
    c.numAttrs = g->early;
    TRY(g, cudaLaunchKernelEx(&c, kernel, args...));
}

/* Bytes of one cached row of a KV head. */
static inline size_t kv_row_bytes(const struct gpu *g)
{
    return (size_t)g->shape.head_dim * (g->c.kv == GPU_KV_BF16 ? 2 : 1);
}

static inline int ceil_div(int a, int b)
{
    return (a + b - 1) / b;
}

/* y = m x for one of the matrices of a launch. */
struct part {
    struct matrix m;
    float *y;                           /* [n][y_stride] */
    size_t y_stride;
};

struct product {
    const bf16 *x;                      /* [n][x_stride], 16-byte aligned rows */
    size_t x_stride;
    int n, parts;
    struct part part[MAX_PARTS];
};

/* products.cu: any number of tokens; matvec.cu: at most 16 at once. */
void queue_products(struct gpu *g, const struct product *p);
void queue_matvec(struct gpu *g, const struct product *p);

/* What a kernel knows that waits for the host. */
struct patience {
    struct step_args *args;
    struct mailbox *box;
    long long limit_ns;                 /* 0: for ever */
};

/* What the norm kernel adds to the residual stream before it norms; unused members are zero. */
struct addition {
    const float *delta;                 /* [n][hidden] */
    const float *shared;                /* [n][hidden] */
    const float *routed;                /* [n][hidden], times scale */
    const struct pair *pair;            /* [n][topk] of a step, with pair_out [n][topk][hidden] */
    const struct pair *late;            /* [n][topk], or NULL: without offers */
    const float *pair_out;
    const uint32_t *awaited;            /* sequence of the CPU's share, or 0 */
    const struct mailbox *box;
    const float *partial;               /* mapped: [n][hidden] */
    struct patience patience;
    float scale;
    int topk;
};

/* step.cu */
struct patience patience_of(const struct gpu *g);

/* fetch.cu: bytes of pinned memory to VRAM, a multiple of four. */
void queue_fetch(struct gpu *g, void *to, const void *from, size_t bytes);

/* norm.cu.  Whether this machine's kernels know begin_in_order(). */
bool kernels_begin_early(void);

/* Rows from..from + n - 1 of the residual stream; the normed rows start at h[0].
 * norm NULL: add only. */
void queue_embed(struct gpu *g, int n, const int *tokens, const int *pos, int pos0);
void queue_norm(struct gpu *g, int from, int n, const struct addition *add, const float *norm);
void queue_round(struct gpu *g, bf16 *to, const float *from, size_t n);
void queue_accumulate(struct gpu *g, float *to, const float *from, size_t n);
void queue_silu(struct gpu *g, size_t n);               /* inner = silu(gate) * up */

/* attention.cu and kv.cu; pos NULL: the position is pos0, known to the host. */
void queue_prepare(struct gpu *g, int layer, int n, const int *pos, int pos0);
void queue_attend(struct gpu *g, int layer, int n, const int *pos, int pos0);
size_t attend_partial_floats(const struct gpu *g);

/* router.cu */
void queue_router(struct gpu *g, int layer, int n, bool step);

/* experts.cu: seated experts and the shared one; those that an offer has brought. */
void queue_step_experts(struct gpu *g, int layer, int n);
void queue_late_experts(struct gpu *g, int n);

/* offer.cu: wait for the host's offers, and bring those experts, on a stream beside. */
void queue_offers(struct gpu *g, cudaStream_t stream, int layer, int n);

/* grouped.cu: ordered = h; pair_out = down(silu(gate(h)) * up(h)) of each pair; and routed +=
 * its weighted sum.  Columns, rounded up to what a row takes. */
size_t grouped_stride(int cols);
void queue_order(struct gpu *g);
void queue_grouped(struct gpu *g, const struct lists *l);
void queue_sum(struct gpu *g, const struct lists *l);

/* wave.cu: room for the lists of a wave. */
size_t wave_bytes(const struct gpu *g);

/* head.cu: of the rows h[0..n - 1]; step: raise `done` at the end. */
void queue_head(struct gpu *g, int n, bool step);
void queue_choice(struct gpu *g, const struct gpu_choice *c);

/* stage.cu: the parts of a layer that a step shares with the stages. */
void queue_attention(struct gpu *g, int layer, int n, const int *pos);
void queue_ffn(struct gpu *g, const struct ffn *f, int n, float *out);

#endif
