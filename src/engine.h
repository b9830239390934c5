#ifndef LAGUNA_ENGINE_H
#define LAGUNA_ENGINE_H

#include "src/experts.h"
#include "src/model.h"
#include "src/tokenizer.h"
#include "src/vram.h"

#include <stdatomic.h>

struct options;
struct placement;
struct run_times;

enum { ENGINE_BATCH = 512 };    /* enough tokens to read each weight once for many of them */
struct tokentrie;

/* A loaded model on this machine: weights, tokenizer, worker threads.  Read-only after
 * engine_open() but for its counters.  One thread at a time. */
struct engine;

/* Checks the whole directory first, then loads.  Blocks for as long as the weights take. */
int  engine_open(struct engine **out, struct options *o, struct err *e);
void engine_close(struct engine *g);

const struct model *engine_model(const struct engine *g);
const struct tokenizer *engine_tokenizer(const struct engine *g);
int  engine_context(const struct engine *g);    /* tokens a session may hold */
const struct placement *engine_placement(const struct engine *g);

const char *engine_isa(const struct engine *g);         /* of the kernels in use */
int  engine_threads(const struct engine *g);            /* that compute */

/* The GPU's name, or NULL where the CPU does everything; and who moved into its memory. */
const char *engine_gpu_name(const struct engine *g);
struct vram_stats engine_vram(const struct engine *g);

/* What the router has chosen, from earlier runs on; NULL where nothing is routed. */
const struct popularity *engine_popularity(const struct engine *g);

/* Until VRAM and RAM hold all the experts they have room for, which otherwise happens behind
 * requests: for benchmarks.  Blocks.  -EREMOTEIO. */
int  engine_warm(struct engine *g, struct err *e);

/* The same bit by bit, for when nobody waits: what `seconds` of PCIe time pay for.  1: there is
 * more to do; 0: not before another token is evaluated; -EREMOTEIO.  Never blocks for a copy or
 * a read. */
int  engine_idle(struct engine *g, double seconds, struct err *e);

/* A request has ended; what comes is another's. */
void engine_request_done(struct engine *g);

/* Save what was learned about the router since the last time; engine_close() does it too.  Blocks
 * until the drive has it, which took 3 to 30 ms: for when nobody waits. */
void engine_save(struct engine *g);

/* Where the experts of all requests lay when they were needed.  Only grows. */
struct tier_counts engine_tiers(const struct engine *g);

/* What the CPU did while a GPU worked; all 0 without one.  Only grows. */
struct run_times engine_times(const struct engine *g);

/* The tokens' tree for constraints, built when it is first asked for.  -ENOMEM. */
int  engine_tokentrie(struct engine *g, const struct tokentrie **out, struct err *e);

/* Between them the workers stay awake; calls nest.  For callers that evaluate again soon. */
void engine_begin(struct engine *g);
void engine_end(struct engine *g);

/* One timeline of tokens and the KV cache behind it. */
struct session;

int  session_open(struct session **out, struct engine *g, struct err *e);
void session_close(struct session *s);
int  session_length(const struct session *s);
const int32_t *session_tokens(const struct session *s);         /* [length] */
struct engine *session_engine(const struct session *s);

/* Forget everything from position n on.  -ERANGE where the sliding rings no longer hold
 * what is needed before n (0 always works). */
int  session_rewind(struct session *s, int n);

/* Keep as much of the first n positions as can be had, from the rings or the nearest snapshot
 * of them; how much that is. */
int  session_keep(struct session *s, int n);

/* What an evaluation hands out, for one position at a time, in order.  A non-zero return
 * stops the evaluation and is returned by it. */
struct position {
    int index;                  /* in the timeline */
    const float *logits;        /* [vocab]; NULL: see position_logits() */
    const struct route *route;  /* [sparse layers], tokens 1: where routes were asked for */
    struct session *session;
};

typedef int (*position_fn)(void *arg, const struct position *p);

enum eval_rows { EVAL_NONE, EVAL_LAST, EVAL_ALL };

struct eval {
    enum eval_rows rows;        /* positions whose logits are computed and handed to `each` */
    bool routes;
    bool stepwise;              /* one decode step a token, as generation does */
    bool lazy;                  /* a GPU may keep the logits until position_logits() asks */
    int mark;                   /* keep a snapshot at this length of the timeline; 0: none */
    position_fn each;
    void (*progress)(void *arg, int done);      /* tokens of this call, after each chunk; or NULL */
    void *arg;
    /* Non-zero stops with -ECANCELED, between chunks or between the layers of one; only a GPU's
     * decode step is led to its end.  The chunks before stay.  May be NULL. */
    const atomic_int *cancel;
};

/* Inside of `each`: the logits [vocab] that were left on the GPU.  Blocks.  -EREMOTEIO. */
int  position_logits(const struct position *p, const float **out, struct err *e);

/* The same without the logits: the GPU chooses, as sampler_next() does where nothing but
 * temperature (0: the likeliest), top_k (1 to GPU_TOP), top_p, min_p and u say what.  1: *id is
 * chosen; 0: not here, since the logits are in p already; negative as above. */
int  position_choose(const struct position *p, const struct gpu_choice *c, int32_t *id,
                     struct err *e);

/* Append tokens to the timeline.  -E2BIG where the context is full; -EDOM on values that
 * are not finite; an expert that cannot be read or is damaged, by name.  After any failure
 * but -ECANCELED the timeline is as before the call, or as much of it as session_keep() has. */
int  session_eval(struct session *s, const int32_t *token, int n, const struct eval *v,
                  struct err *e);

#endif
