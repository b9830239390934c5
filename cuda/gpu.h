#ifndef LAGUNA_GPU_H
#define LAGUNA_GPU_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

/* The vocabulary is C: what C++ sees of it must be marked so. */
#ifdef __cplusplus
extern "C" {
#endif

#include "src/expert.h"
#include "src/shape.h"

/* The stages of a layer on one GPU.  Two implementations: the .cu files, and gpu_ref.c, which
 * does the same arithmetic in plain C for builds without CUDA.
 *
 * One thread at a time owns a struct gpu.  Calls that return nothing only queue work; a device
 * fault is sticky and surfaces at the next call that can fail.  Calls that say so block.
 * After gpu_open() nothing is allocated on the device.  What may overlap: cuda/README. */

enum {
    MAX_GPUS = 8,
    GPU_STEP_TOKENS = 16,       /* most tokens of a decode step */
    GPU_TOP = 1024,             /* most candidates of gpu_sample() */
    GPU_PART_ALIGN = 256,       /* of each part of a matrix in VRAM */
    GPU_OFFERS = 16,            /* most experts that the GPU takes of one share */
};

struct gpu_facts {
    char name[64];
    size_t vram_bytes, free_bytes;
    int major, minor;           /* compute capability */
    bool time_limit;            /* a display hangs on it: the driver ends what runs for seconds */
};

/* Whether this is gpu_ref.c, which computes on the caller's thread. */
bool gpu_is_reference(void);

/* The CUDA devices of this machine: how many (0 where there is none, or no driver), the first
 * MAX_GPUS described in out.  -ENODEV with both versions and advice where they cannot be used:
 * a driver that is too old, or of another version than its libraries, a device that is taken. */
int gpu_list(struct gpu_facts out[MAX_GPUS], struct err *e);

/* In 1e9 a second. */
struct gpu_speeds {
    double vram_gbps;           /* bytes, read and written, by a large copy */
    double h2d_gbps;            /* bytes from pinned host memory */
    double gmacs;               /* multiplications of a large BF16 product; 0: no cuBLAS */
};

/* Measure a device, for a plan: with at most 256 MB of its memory, given back, in about 0.4 s.
 * -ENODEV, -ENOMEM where nothing is free, -EREMOTEIO.  Blocks. */
int gpu_measure(int device, struct gpu_speeds *out, struct err *e);

/* What the link gives while the host wants its memory too: round() is called again and again for
 * 0.15 s, while copies from 128 MB of pinned memory are under way.  It reads for a millisecond or
 * less: copies for two are queued ahead. */
struct gpu_beside {
    void (*round)(void *arg);
    void *arg;
    double h2d_gbps;            /* out */
};

/* Errors as above.  Blocks. */
int gpu_measure_beside(int device, struct gpu_beside *b, struct err *e);

/* The KV cache, row by row as in RAM: [kv_heads][rows][head_dim]. */
enum gpu_kv { GPU_KV_Q8, GPU_KV_FP8, GPU_KV_BF16, GPU_KV_TYPES };

/* For tests, what gpu_ref*.c does wrong; the .cu files take no notice.  Steps, batches and copies
 * into slots count from 1 on; 0: never. */
struct gpu_faults {
    int dead_step, dead_batch, dead_fill;       /* the device fails in this one, for good */
    int late_step;              /* the watchdog fires, once the CPU has done its first share */
    int nan_step, nan_batch;    /* a number that is none gets into the residual stream */
};

struct gpu;

struct gpu_config {
    int device;
    const struct shape *shape;  /* outlives the struct gpu */
    int context;                /* positions of a full layer */
    int batch;                  /* most tokens of one call; at least 1 */
    enum gpu_kv kv;
    int slots;                  /* experts that VRAM holds */
    size_t slot_bytes;          /* of one slot: the largest gpu_ffn_bytes() of an expert */
    size_t dense_bytes;         /* gpu_layer_bytes() of all layers and gpu_matrix_bytes() of
                                 * embedding and head, plus 4 KiB a layer */
    int watchdog_ms;            /* a decode step gives the CPU so long for its share; 0: for ever */
    bool own_products;          /* never cuBLAS; for tests */
    struct gpu_faults faults;
};

/* Sizes of copies in VRAM, where each part is aligned. */
size_t gpu_matrix_bytes(const struct matrix *m);
size_t gpu_ffn_bytes(const struct ffn *f);
size_t gpu_layer_bytes(const struct layer_weights *w);

/* Everything that gpu_open() takes from VRAM for this config: weights, slots, cache, scratch. */
size_t gpu_bytes(const struct gpu_config *c);

/* And what it pins of the host's memory: staging of a batch, and what the host and a step share.
 * Where this is gpu_ref.c, the staging that a GPU would want. */
size_t gpu_host_bytes(const struct gpu_config *c);

/* -ENODEV, -ENOTSUP (compute capability below 8.0, a head_dim other than 64 and 128, a hidden
 * size above 16384), -ENOMEM with both numbers.  Blocks. */
int  gpu_open(struct gpu **out, const struct gpu_config *c, struct err *e);
void gpu_close(struct gpu *g);

/* Where many tokens are multiplied by kernels of our own, because no cuBLAS was found: its
 * name in words, else NULL. */
const char *gpu_slow_products(const struct gpu *g);

/* Pin host memory for all GPUs, so that copies from and to it overlap with computing; whole
 * pages, after a gpu_open(), in any thread.  -ENOMEM.  Nothing that is queued may still use what
 * is unpinned.  Both block. */
int  gpu_pin(void *p, size_t bytes, struct err *e);
void gpu_unpin(void *p);

/* --- weights: host bytes in, copied before the call returns ------------------------------ */

struct gpu_ends {
    const struct matrix *embed;         /* [vocab][hidden], W_BF16 */
    const float *norm;                  /* [hidden] */
    const struct matrix *head;          /* [vocab][hidden] */
};

int gpu_set_layer(struct gpu *g, int layer, const struct layer_weights *w, struct err *e);
int gpu_set_ends(struct gpu *g, const struct gpu_ends *w, struct err *e);

/* --- experts: slots, and the table that says who sits where ------------------------------ */

/* Queue the copy of an expert into a slot whose expert, if any, has been unseated.  The bytes
 * stay as they are until gpu_slot_ready(); they should be pinned.  -E2BIG. */
int  gpu_fill_slot(struct gpu *g, int slot, const struct expert *x, struct err *e);

/* Queue the copy of a slot's expert into the host memory that into's matrices point at, which
 * is the caller's to write and should be pinned.  The slot may be filled anew right after: that
 * copy waits for this one.  -EINVAL where the slot does not hold an expert of into's shapes. */
int  gpu_read_slot(struct gpu *g, int slot, const struct expert *into, struct err *e);

/* Whether all that gpu_fill_slot() and gpu_read_slot() queued for the slot is done. */
bool gpu_slot_ready(struct gpu *g, int slot);

/* The table.  A change holds for stages and steps queued after it; where the slot's copy is
 * still on its way, they wait for it.  slot -1: absent. */
void gpu_seat(struct gpu *g, int layer, int id, int slot);
int  gpu_seat_of(const struct gpu *g, int layer, int id);

/* --- stages of a batch ------------------------------------------------------------------- */

/* Start a batch: the residual stream becomes the tokens' rows of the embedding. */
void gpu_embed(struct gpu *g, const struct batch *b);

/* x += o(gate * attention(norm(x))); the batch's keys and values go into the cache. */
void gpu_attention(struct gpu *g, int layer);

/* x += ffn(norm(x)): a layer without experts. */
void gpu_dense(struct gpu *g, int layer);

/* Norm, router and the shared expert, which may still run when this returns.  The route stays
 * valid until the next gpu_route().  Blocks.  -EDOM where a router logit is not finite. */
int  gpu_route(struct gpu *g, int layer, struct route *out, struct err *e);

/* Sum the results of these seated experts of the routed layer; ids ascend, from one call
 * to the next too. */
void gpu_experts(struct gpu *g, const uint16_t *id, int n);

/* The normed input of the routed layer, for the CPU: [tokens][hidden].  Blocks. */
int  gpu_read_normed(struct gpu *g, float *h, struct err *e);

/* Add the CPU's sum of weight * expert, [tokens][hidden].  Copied before it returns. */
void gpu_add(struct gpu *g, const float *partial);

/* x += routed * route_scale + shared. */
void gpu_combine(struct gpu *g);

/* Logits of the batch's tokens from..from + n - 1, n at most GPU_STEP_TOKENS.  They stay on
 * the device, for gpu_read_logits() and gpu_sample(). */
void gpu_logits(struct gpu *g, int from, int n);

/* The residual stream of the batch, [tokens][hidden]: read, or replaced.  Blocks. */
int  gpu_read_hidden(struct gpu *g, float *x, struct err *e);
int  gpu_write_hidden(struct gpu *g, const float *x, struct err *e);

/* Until all that was queued is done.  -EREMOTEIO where the device has failed, with the words of
 * the first fault, here and wherever it surfaces. */
int  gpu_wait(struct gpu *g, struct err *e);

/* --- the cache, to host memory and back ---------------------------------------------------- */

/* Host memory laid out as a layer's cache, with the same number of rows: context for a full
 * layer, else the smaller of context and window + batch.  Position p lies in row p % rows. */
struct gpu_rows {
    uint8_t *k, *v;             /* [kv_heads][rows][row bytes] */
    uint16_t *k_scale, *v_scale;        /* GPU_KV_Q8: [kv_heads][rows], else NULL */
    int rows;
};

/* Rows from..from + n - 1 of every head, between the cache and the same place of host memory,
 * which should be pinned.  They queue behind all earlier work; the bytes are there, or may be
 * changed, after gpu_wait().  -EINVAL where the number of rows is not the cache's own, or the
 * range is outside. */
int  gpu_read_rows(struct gpu *g, int layer, int from, int n, const struct gpu_rows *to,
                   struct err *e);
int  gpu_write_rows(struct gpu *g, int layer, int from, int n, const struct gpu_rows *rows,
                    struct err *e);

/* --- decode: one graph a step ------------------------------------------------------------- */

/* Record the step of 1 to GPU_STEP_TOKENS tokens, with and without offers, once, when all
 * weights are set.  Blocks. */
int  gpu_capture(struct gpu *g, int tokens, struct err *e);

/* Queue one captured step of b->tokens tokens.  offers: it takes experts by gpu_offer(), which
 * costs a few microseconds a layer. */
int  gpu_step(struct gpu *g, const struct batch *b, bool offers, struct err *e);

/* What a layer of the step wants from the CPU: for each pair, one token's row of h through one
 * absent expert.  The CPU writes every row of partial = sum of weight * expert(h). */
struct gpu_share {
    int layer, tokens, pairs;
    const uint16_t *expert;     /* [pairs], grouped by token, ascending within one */
    const uint16_t *token;      /* [pairs] */
    const float *weight;        /* [pairs], normalised, before the scaling factor */
    const float *h;             /* [tokens][hidden] */
    float *partial;             /* [tokens][hidden] */
};

/* Spin until the step wants a share (1) or is done (0): then its results are readable.
 * -EDOM where a router logit or a logit is not finite, naming the layer; -ETIMEDOUT where the
 * watchdog fired; -EREMOTEIO as gpu_wait().  After an error the step is over, and what it wrote
 * for its positions is to be written again. */
int  gpu_next_share(struct gpu *g, struct gpu_share *out, struct err *e);
void gpu_answer(struct gpu *g);

/* An expert of the share that the GPU fetches over PCIe and computes, while the CPU computes the
 * others: its bytes lie in host memory that was gpu_pin()ned, and go to a slot whose expert, if
 * any, has been unseated, and where gpu_slot_ready(). */
struct gpu_offer {
    const struct expert *expert;
    int slot;
};

/* At most once a share, before gpu_answer(), in a step with offers; what is offered is no longer
 * part of the share.  At most GPU_OFFERS, each slot once.  Bytes and slots are the GPU's until
 * gpu_next_share() returns.  -E2BIG where an expert does not fit its slot: nothing is taken. */
int  gpu_offer(struct gpu *g, const struct gpu_offer *o, int n, struct err *e);

/* Seconds that the fetching of the last offers took, once gpu_next_share() has returned. */
double gpu_fetch_seconds(const struct gpu *g);

/* Of the last step, by row of its batch. */
int32_t gpu_argmax(const struct gpu *g, int row);
void gpu_step_route(const struct gpu *g, int layer, struct route *out);

/* Rows of the logits of the last step or gpu_logits(): n rows of [vocab].  Blocks. */
int  gpu_read_logits(struct gpu *g, int row, int n, float *logits, struct err *e);

/* Choose from a row as src/sample.c does without penalties: min_p, then the top_k best
 * (1 to GPU_TOP), then top_p, then one draw by 0 <= u < 1.  Blocks. */
struct gpu_choice {
    int row;
    float temperature;          /* above 0 */
    int top_k;
    float top_p, min_p;
    float u;
};

int  gpu_sample(struct gpu *g, const struct gpu_choice *c, int32_t *id, struct err *e);

/* --- for tests and benches ---------------------------------------------------------------- */

/* y [n][rows] = m x, x [n][cols] rounded to BF16, n at most the batch.  m may be any matrix
 * that fits the scratch.  Blocks. */
int  gpu_product(struct gpu *g, const struct matrix *m, const float *x, int n, float *y);

/* Run a stage `times` times and give the mean microseconds by the device's clock; for
 * GPU_TIME_STEP, the captured step of `tokens` tokens at position pos, all experts seated.
 * GPU_TIME_BATCH_...: a part of the layer of the last gpu_route() for its batch, `tokens` long:
 * attention, of it all but the products with weights, norm and router, the shared expert, the
 * seated experts.  GPU_TIME_BLAS: a square BF16 product of cuBLAS, `tokens` rows. */
enum gpu_timed { GPU_TIME_COPY, GPU_TIME_ATTENTION, GPU_TIME_CACHE, GPU_TIME_ROUTER,
                 GPU_TIME_EXPERTS, GPU_TIME_NORM, GPU_TIME_HEAD, GPU_TIME_STEP,
                 GPU_TIME_BATCH_ATTENTION, GPU_TIME_BATCH_ATTEND, GPU_TIME_BATCH_ROUTER,
                 GPU_TIME_BATCH_SHARED, GPU_TIME_BATCH_EXPERTS, GPU_TIME_BLAS };

struct gpu_timing {
    enum gpu_timed what;
    int layer, tokens, pos, times;
    double microseconds, bytes; /* out: a call, and what it must move at least; _BATCH_: 0 */
};

/* -ENOTSUP without a GPU or, where it is timed, cuBLAS.  Results of the batch are lost.  Blocks. */
int  gpu_time(struct gpu *g, struct gpu_timing *t, struct err *e);

#ifdef __cplusplus
}
#endif
#endif
