/* One timeline of tokens: its KV cache, and evaluation in chunks or step by step.  A GPU holds
 * the cache of one session; the others wait in RAM until they are evaluated again. */
#include "src/engine_internal.h"
#include "src/mirror.h"
#include "src/snapshots.h"

#include <errno.h>
#include <stdlib.h>

enum {
    LOGIT_ROWS = 64,            /* rows of logits computed together */
    PAGE_BYTES = 4096,
    SNAPSHOT_STEP = 2048,       /* tokens between two snapshots that nobody asked for */
};

struct session {
    struct engine *engine;
    struct kv kv;               /* with a GPU: the mirror */
    int32_t *token;             /* [context], of them `length` are evaluated */
    int length;
    int written;                /* rows of the rings up to here hold what was last written */
    int oldest;                 /* and none before this position */
    struct snapshots snapshots;
    float *logits;              /* [LOGIT_ROWS][vocab] */
    bool pinned;                /* for the GPU's copies of them */
    uint16_t *route_id;         /* [sparse layers][batch][topk] */
    float *route_weight;
    struct route *route;        /* [sparse layers], of one position */
};

static void *rows(size_t n, size_t each, size_t bytes)
{
    return calloc(mul_sat(n, each) + 1, bytes);
}

/* Whole pages, so that a GPU can copy into them. */
static size_t logits_bytes(const struct engine *g)
{
    size_t batch = (size_t)g->placement.batch, n = batch < LOGIT_ROWS ? batch : LOGIT_ROWS;

    return align_up(n * (size_t)g->model->shape.vocab * sizeof(float), PAGE_BYTES);
}

int session_open(struct session **out, struct engine *g, struct err *e)
{
    const struct shape *s = &g->model->shape;
    size_t routes = (size_t)s->sparse_layers * (size_t)g->placement.batch;
    struct session *t = calloc(1, sizeof(*t));
    int rc;

    if (!t)
        return fail(e, -ENOMEM, "out of memory");
    t->engine = g;
    t->token = rows((size_t)g->placement.context, 1, sizeof(*t->token));
    t->logits = aligned_alloc(PAGE_BYTES, logits_bytes(g));
    t->route_id = rows(routes, (size_t)s->topk, sizeof(*t->route_id));
    t->route_weight = rows(routes, (size_t)s->topk, sizeof(*t->route_weight));
    t->route = rows((size_t)s->sparse_layers, 1, sizeof(*t->route));
    if (!t->token || !t->logits || !t->route_id || !t->route_weight || !t->route)
        rc = fail(e, -ENOMEM, "no memory for a session of %d tokens", g->placement.context);
    else
        rc = kv_open(&t->kv, s, g->kv_type, g->placement.context, g->placement.batch, e);
    if (rc) {
        session_close(t);
        return rc;
    }
    if (g->gpu)                         /* slower where it is refused, no worse */
        t->pinned = !gpu_pin(t->logits, logits_bytes(g), e);
    snapshots_open(&t->snapshots, s, g->kv_type);
    *out = t;
    return 0;
}

void session_close(struct session *s)
{
    if (!s)
        return;
    if (s->engine->seated == s)
        s->engine->seated = NULL;
    kv_close(&s->kv);
    snapshots_close(&s->snapshots);
    free(s->token);
    if (s->pinned)
        gpu_unpin(s->logits);
    free(s->logits);
    free(s->route_id);
    free(s->route_weight);
    free(s->route);
    free(s);
}

int session_length(const struct session *s)
{
    return s->length;
}

const int32_t *session_tokens(const struct session *s)
{
    return s->token;
}

struct engine *session_engine(const struct session *s)
{
    return s->engine;
}

static struct mirror mirror_of(struct session *s)
{
    return (struct mirror){ s->engine->gpu, &s->engine->model->shape, &s->kv };
}

/* The windows before position n, from or to the GPU, where this session is there. */
static int move_windows(struct session *s, int n, bool save, struct err *e)
{
    struct mirror m = mirror_of(s);
    int from = n > m.shape->window ? n - m.shape->window : 0;

    if (s->engine->seated != s)
        return 0;
    return save ? mirror_save(&m, from, n, true, e) : mirror_restore(&m, from, n, true, e);
}

/* Give this session the GPU; the one that has it waits in RAM. */
static int take_gpu(struct session *s, struct err *e)
{
    struct session *other = s->engine->seated;
    struct mirror from = { NULL, NULL, NULL }, to = mirror_of(s);
    int rc = 0;

    if (!s->engine->gpu || other == s)
        return 0;
    if (other) {
        from = mirror_of(other);
        rc = mirror_save(&from, 0, other->written, false, e);
    }
    if (!rc)
        rc = mirror_restore(&to, 0, s->written, false, e);
    if (!rc)
        s->engine->seated = s;
    return rc;
}

/* Whether the rings hold what a token at position n sees. */
static bool rings_hold(const struct session *s, int n)
{
    const struct shape *shape = &s->engine->model->shape;
    int first = n - shape->window + 1;

    for (int i = 0; i < shape->layers; i++)
        if (!shape->layer[i].full && first > 0 &&
            (first < s->oldest || s->written - first > s->kv.layer[i].rows))
            return false;
    return first <= 0 ? !s->oldest : true;
}

int session_keep(struct session *s, int n)
{
    const struct shape *shape = &s->engine->model->shape;

    if (n > s->length)
        n = s->length;
    if (n && !rings_hold(s, n)) {
        n = snapshots_restore(&s->snapshots, &s->kv, n);
        if (n && move_windows(s, n, false, NULL))
            n = 0;
        s->written = n;
        s->oldest = n > shape->window ? n - shape->window : 0;
    }
    snapshots_drop(&s->snapshots, n);
    s->length = n;
    if (!n)
        s->written = s->oldest = 0;
    return n;
}

int session_rewind(struct session *s, int n)
{
    if (n < 0 || n > s->length || (n && !rings_hold(s, n)))
        return -ERANGE;
    session_keep(s, n);
    return 0;
}

/* Point s->route at row `row` of the batch. */
static const struct route *route_at(struct session *s, int row)
{
    const struct shape *shape = &s->engine->model->shape;
    size_t topk = (size_t)shape->topk;

    for (int i = 0; i < shape->sparse_layers; i++) {
        size_t at = ((size_t)i * (size_t)s->engine->placement.batch + (size_t)row) * topk;

        s->route[i] = (struct route){ 1, shape->topk, s->route_id + at, s->route_weight + at };
    }
    return s->route;
}

/* Logits of the batch's rows from..to, handed out in order. */
static int hand_out(struct session *s, const struct batch *b, const struct eval *v, int from,
                    int to, struct err *e)
{
    size_t vocab = (size_t)s->engine->model->shape.vocab;

    for (int first = from; first < to; first += LOGIT_ROWS) {
        int n = to - first < LOGIT_ROWS ? to - first : LOGIT_ROWS;
        bool later = v->lazy && b->tokens == 1 && runner_chooses(&s->engine->runner);
        int rc = later ? 0 : runner_logits(&s->engine->runner, first, n, s->logits, e);

        for (int i = 0; i < n && !rc; i++) {
            struct position p = { b->pos + first + i, later ? NULL : s->logits + (size_t)i * vocab,
                                  v->routes ? route_at(s, first + i) : NULL, s };

            rc = v->each(v->arg, &p);
        }
        if (rc)
            return rc;
    }
    return 0;
}

/* A position without logits is the only one of its step: row 0. */
int position_logits(const struct position *p, const float **out, struct err *e)
{
    struct session *s = p->session;

    *out = p->logits ? p->logits : s->logits;
    return p->logits ? 0 : runner_logits(&s->engine->runner, 0, 1, s->logits, e);
}

int position_choose(const struct position *p, const struct gpu_choice *c, int32_t *id,
                    struct err *e)
{
    if (p->logits)
        return 0;
    return runner_choose(&p->session->engine->runner, c, id, e);
}

/* A snapshot that cannot be had costs speed only; a GPU's fault shows in the next chunk. */
static void take_snapshot(struct session *s)
{
    if (!move_windows(s, s->length, true, NULL))
        snapshots_take(&s->snapshots, &s->kv, s->length);
}

/* What a failed batch has written is of no use to anybody.  A fault of the GPU itself shows in
 * the next call. */
static void wipe(struct session *s, const struct batch *b)
{
    struct mirror m = mirror_of(s);

    if (s->engine->seated == s)
        mirror_wipe(&m, b->pos, b->pos + b->tokens, NULL);
}

static int run_chunk(struct session *s, const struct batch *b, const struct eval *v, bool last,
                     struct err *e)
{
    struct runner *f = &s->engine->runner;
    int rc;

    f->route_id = v->routes || s->engine->trace ? s->route_id : NULL;
    f->route_weight = s->route_weight;
    f->cancel = v->cancel;
    if (s->written < b->pos + b->tokens)
        s->written = b->pos + b->tokens;
    rc = forward(f, &s->kv, b, e);
    if (rc)
        return rc;
    if (s->engine->trace)
        trace_add(s->engine->trace, s->route_id, s->engine->placement.batch, b->tokens);
    memcpy(s->token + b->pos, b->token, (size_t)b->tokens * sizeof(*b->token));
    s->length = b->pos + b->tokens;
    if (s->length % SNAPSHOT_STEP == 0 || s->length == v->mark)
        take_snapshot(s);
    if (v->rows == EVAL_ALL)
        return hand_out(s, b, v, 0, b->tokens, e);
    if (v->rows == EVAL_LAST && last)
        return hand_out(s, b, v, b->tokens - 1, b->tokens, e);
    return 0;
}

int session_eval(struct session *s, const int32_t *token, int n, const struct eval *v,
                 struct err *e)
{
    struct engine *g = s->engine;
    int start = s->length, most = v->stepwise ? 1 : g->placement.batch, rc;
    struct batch b;

    if (n > g->placement.context - start)
        return fail(e, -E2BIG, "%d tokens after %d exceed the context of %d", n, start,
                    g->placement.context);
    rc = take_gpu(s, e);
    if (rc)
        return rc;
    pool_begin(g->pool);
    for (int from = 0; from < n && !rc; from += b.tokens) {
        int to_mark = v->mark - start - from;

        b = (struct batch){ token + from, n - from < most ? n - from : most, start + from };
        if (to_mark > 0 && to_mark < b.tokens)
            b.tokens = to_mark;

        if (v->cancel && *v->cancel)
            rc = fail(e, -ECANCELED, "cancelled");
        else
            rc = run_chunk(s, &b, v, from + b.tokens == n, e);
        if (!rc && v->progress)
            v->progress(v->arg, from + b.tokens);
    }
    pool_end(g->pool);
    if (rc == -ECANCELED) {
        /* A batch that was stopped half-way has left nothing but rows that it may have taken. */
        session_keep(s, s->length);
    } else if (rc) {
        wipe(s, &b);
        session_keep(s, start);
    }
    return rc;
}
