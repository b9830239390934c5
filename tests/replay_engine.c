/* The engine's header over no engine: the model "writes" what the last message of the prompt
 * tells it to.  A message that begins with REPLAY and a letter is answered with the rest of it:
 * n: tokenised as a model would, tags as their own tokens; b: a token a byte.  Then the turn
 * ends, if max_tokens lets it.  Links in place of src/engine.c and src/session.c. */
#include "config.h"
#include "src/chat.h"
#include "src/directory.h"
#include "src/engine.h"
#include "src/options.h"
#include "src/placement.h"
#include "src/tokentrie.h"
#include "storage/popularity.h"

#include <errno.h>
#include <stdlib.h>
#include <unistd.h>

enum { CONTEXT = 8192, CHUNK = 256 };

struct engine {
    struct model *model;
    struct tokenizer *tokenizer;
    struct popularity popularity;
    struct tokentrie *trie;
    struct placement placement;
};

struct session {
    struct engine *engine;
    int32_t token[CONTEXT];
    int length;
    struct ids answer;
    size_t at;
    float *logits;              /* [vocab] */
};

int engine_open(struct engine **out, struct options *o, struct err *e)
{
    struct engine *g = calloc(1, sizeof(*g));
    int rc = directory_open(&g->model, &g->tokenizer, o->model_dir, &o->log, e);

    if (!rc)
        rc = popularity_open(&g->popularity, g->model->shape.sparse_layers,
                             g->model->shape.experts, 0, e);
    if (rc) {
        engine_close(g);
        return rc;
    }
    g->placement = (struct placement){ .fits = true, .context = CONTEXT, .batch = CHUNK };
    *out = g;
    return 0;
}

void engine_close(struct engine *g)
{
    if (!g)
        return;
    popularity_close(&g->popularity);
    tokentrie_close(g->trie);
    tokenizer_close(g->tokenizer);
    model_close(g->model);
    free(g);
}

int engine_tokentrie(struct engine *g, const struct tokentrie **out, struct err *e)
{
    int rc = g->trie ? 0 : tokentrie_open(&g->trie, g->tokenizer, e);

    *out = g->trie;
    return rc;
}

const struct model *engine_model(const struct engine *g)
{
    return g->model;
}

const struct tokenizer *engine_tokenizer(const struct engine *g)
{
    return g->tokenizer;
}

const struct placement *engine_placement(const struct engine *g)
{
    return &g->placement;
}

int engine_context(const struct engine *g)
{
    (void)g;
    return CONTEXT;
}

const char *engine_isa(const struct engine *g)
{
    (void)g;
    return "replay";
}

int engine_threads(const struct engine *g)
{
    (void)g;
    return 1;
}

void engine_save(struct engine *g)
{
    (void)g;
}

int engine_idle(struct engine *g, double seconds, struct err *e)
{
    (void)g;
    (void)seconds;
    (void)e;
    return 0;
}

const char *engine_gpu_name(const struct engine *g)
{
    (void)g;
    return NULL;
}

struct vram_stats engine_vram(const struct engine *g)
{
    (void)g;
    return (struct vram_stats){ 0 };
}

void engine_request_done(struct engine *g)
{
    (void)g;
}

struct tier_counts engine_tiers(const struct engine *g)
{
    (void)g;
    return (struct tier_counts){ .ram = 0 };
}

const struct popularity *engine_popularity(const struct engine *g)
{
    return &g->popularity;
}

void engine_begin(struct engine *g)
{
    (void)g;
}

void engine_end(struct engine *g)
{
    (void)g;
}

int session_open(struct session **out, struct engine *g, struct err *e)
{
    struct session *s = calloc(1, sizeof(*s));

    (void)e;
    s->engine = g;
    s->logits = calloc((size_t)g->model->shape.vocab, sizeof(*s->logits));
    *out = s;
    return 0;
}

void session_close(struct session *s)
{
    if (!s)
        return;
    free(s->answer.id);
    free(s->logits);
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

int session_rewind(struct session *s, int n)
{
    s->length = n;
    s->answer.n = s->at = 0;
    return 0;
}

int session_keep(struct session *s, int n)
{
    if (n < s->length)
        session_rewind(s, n);
    return s->length;
}

/* The last place where the text says REPLAY, or NULL. */
static const char *find_order(const struct text *t)
{
    const char *found = NULL, *at = t->s;

    while ((at = memmem(at, t->n - (size_t)(at - t->s), "REPLAY", 6))) {
        found = at;
        at += 6;
    }
    return found;
}

/* What the prompt orders, as ids. */
static void take_order(struct session *s)
{
    const struct tokenizer *t = s->engine->tokenizer;
    struct text prompt = { NULL, 0, 0, false };
    const char *order, *end;
    struct err e;

    for (int i = 0; i < s->length; i++) {
        size_t n = 0;
        const char *bytes = tokenizer_bytes(t, s->token[i], &n);

        text_add(&prompt, bytes ? bytes : "", n);
    }
    s->answer.n = s->at = 0;
    order = find_order(&prompt);
    if (order) {
        const char *from = order + 7;

        end = memmem(from, prompt.n - (size_t)(from - prompt.s), "</user>", 7);
        if (order[6] == 'n')
            tokenizer_encode(t, from, (size_t)(end - from), NULL, SPANS_ALL, &s->answer, &e);
        for (; order[6] == 'b' && from < end; from++)
            tokenizer_encode(t, from, 1, NULL, 0, &s->answer, &e);
    }
    ids_push(&s->answer, tokenizer_find_added(t, "</assistant>"));
    text_free(&prompt);
}

int session_eval(struct session *s, const int32_t *token, int n, const struct eval *v,
                 struct err *e)
{
    for (int i = 0; i < n; i++) {
        if (v->cancel && *v->cancel)
            return fail(e, -ECANCELED, "cancelled");
        s->token[s->length++] = token[i];
        if (v->progress && (i + 1) % CHUNK == 0)
            v->progress(v->arg, i + 1);
    }
    if (s->at >= s->answer.n)
        take_order(s);
    memset(s->logits, 0, (size_t)s->engine->model->shape.vocab * sizeof(*s->logits));
    s->logits[s->answer.id[s->at++]] = 50;
    return v->each(v->arg, &(struct position){ s->length - 1, s->logits, NULL, s });
}

int position_logits(const struct position *p, const float **out, struct err *e)
{
    (void)e;
    *out = p->logits;
    return 0;
}

int position_choose(const struct position *p, const struct gpu_choice *c, int32_t *id,
                    struct err *e)
{
    (void)p;
    (void)c;
    (void)id;
    (void)e;
    return 0;
}
