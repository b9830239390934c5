#include "src/answer.h"
#include "src/options.h"

#include <errno.h>
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/random.h>
#include <time.h>

void sampling_fill(struct sampling *s, const struct generation_defaults *d, bool seed_set,
                   bool deterministic)
{
    if (isnan(s->temperature))
        s->temperature = d->do_sample ? d->temperature : 0;
    if (isnan(s->top_p))
        s->top_p = d->top_p;
    if (isnan(s->min_p))
        s->min_p = d->min_p;
    if (s->top_k < 0)
        s->top_k = d->top_k;
    if (isnan(s->repetition_penalty))
        s->repetition_penalty = 1;
    if (isnan(s->presence_penalty))
        s->presence_penalty = 0;
    if (isnan(s->frequency_penalty))
        s->frequency_penalty = 0;
    if (seed_set)
        return;
    s->seed = 0;
    if (!deterministic && getrandom(&s->seed, sizeof(s->seed), 0) != sizeof(s->seed))
        s->seed = (uint64_t)time(NULL);
}

static int prompt_ids(const struct request *q, struct ids *out)
{
    for (size_t i = 0; i < q->prompt_ids; i++)
        if (ids_push(out, q->prompt_id[i]))
            return -ENOMEM;
    return 0;
}

static int prompt_text(const struct request *q, const struct tokenizer *t,
                       const struct shape *shape, struct ids *out, struct err *e)
{
    int32_t bos = tokenizer_bos(t) < 0 ? shape->bos : tokenizer_bos(t);
    const struct text *text = &q->prompt.text;
    int rc = bos < 0 ? 0 : ids_push(out, bos);

    if (!rc)
        rc = tokenizer_encode(t, text->s ? text->s : "", text->n, NULL, SPANS_ALL, out, e);
    if (!rc && bos >= 0 && out->n > 1 && out->id[1] == bos)
        memmove(out->id, out->id + 1, --out->n * sizeof(*out->id));
    return rc;
}

int answer_prompt(const struct request *q, const struct tokenizer *t, const struct shape *shape,
                  struct ids *out, struct err *e)
{
    int rc;

    if (q->prompt_id)
        rc = prompt_ids(q, out);
    else if (q->chat)
        rc = prompt_encode(&q->prompt, t, out, e);
    else
        rc = prompt_text(q, t, shape, out, e);
    if (rc == -ENOMEM)
        return fail(e, rc, "no memory for the prompt's ids");
    return rc || out->n ? rc : fail(e, -EINVAL, "prompt: no tokens");
}

static enum constraint_kind kind_of(const struct request *q)
{
    bool calls = q->chat && q->tools && q->tool_choice == TOOLS_AUTO;

    if (q->tool_choice == TOOLS_NAMED || (q->tool_choice == TOOLS_REQUIRED &&
                                          !q->parallel_tool_calls))
        return CONSTRAIN_CALL;
    if (q->tool_choice == TOOLS_REQUIRED)
        return CONSTRAIN_CALLS;
    return !q->schema ? CONSTRAIN_NO_CALLS
                      : calls ? CONSTRAIN_DOCUMENT_OR_CALL : CONSTRAIN_DOCUMENT;
}

int answer_constraint(const struct request *q, struct engine *g, struct constraint **out,
                      struct err *e)
{
    const struct shape *shape = &engine_model(g)->shape;
    struct constraint_options o = {
        .kind = kind_of(q), .schema = q->schema, .thinking = q->chat && q->thinking,
        .tokenizer = engine_tokenizer(g), .vocab = shape->vocab, .eos = shape->eos,
        .eos_count = shape->eos_count,
    };
    int rc;

    *out = NULL;
    /* A prompt that shows tools but wants none leads the model to call them all the same. */
    if (!q->schema && !(q->tools && q->tool_choice == TOOLS_NONE))
        return 0;
    rc = engine_tokentrie(g, &o.trie, e);
    return rc ? rc : constraint_open(out, &o, e);
}

/* Remember a token for logprobs, and tell of it. */
static int keep_token(struct answer *a, int32_t id, float logprob, bool hidden,
                      const struct alternative *alt, int alts)
{
    size_t width = (size_t)a->q->alternatives;
    struct reply_token *k;

    if (a->tokens == a->cap) {
        int cap = a->cap ? 2 * a->cap : 64;
        void *token = realloc(a->token, (size_t)cap * sizeof(*a->token));
        void *wider;

        if (!token)
            return -ENOMEM;
        a->token = token;
        wider = realloc(a->alternative, ((size_t)cap * width + 1) * sizeof(*a->alternative));
        if (!wider)
            return -ENOMEM;
        a->alternative = wider;
        a->cap = cap;
    }
    if (alts)
        memcpy(a->alternative + (size_t)a->tokens * width, alt, (size_t)alts * sizeof(*alt));
    k = &a->token[a->tokens++];
    *k = (struct reply_token){ .id = id, .logprob = logprob, .hidden = hidden,
                               .alternative = alt, .alternatives = alts };
    if (a->hooks->token)
        a->hooks->token(a->hooks->arg, k);
    return 0;
}

static void on_progress(void *arg, int done)
{
    struct answer *a = arg;

    if (a->hooks->progress)
        a->hooks->progress(a->hooks->arg, done, (int)a->prompt->n);
}

static int on_prompt(void *arg, const struct echoed *p)
{
    struct answer *a = arg;
    int32_t id = a->prompt->id[p->index];

    a->rc = keep_token(a, id, p->logprob, p->index == 0 && tokenizer_added(a->tokenizer, id),
                       p->alt, isnan(p->logprob) ? 0 : p->alts);
    return a->rc;
}

/* One call only, where the client cannot take more: the answer ends with the first. */
static void on_event(void *arg, const struct event *v)
{
    struct answer *a = arg;

    if (a->enough)
        return;
    message_event(&a->message, v);
    if (a->hooks->event && !a->message.failed)
        a->hooks->event(a->hooks->arg, v, &a->message);
    a->enough = v->kind == EVENT_CALL_END && !a->q->parallel_tool_calls;
}

static void add_text(struct answer *a, const char *s, size_t n)
{
    text_add(&a->text, s, n);
    if (n && a->hooks->text)
        a->hooks->text(a->hooks->arg, s, n);
}

static int on_token(void *arg, const struct generated *g)
{
    struct answer *a = arg;
    static const struct reply_token nothing = { .id = -1 };

    if (a->parser && toolparse_thinking(a->parser))
        a->reasoning++;
    if (a->parser) {
        text_add(&a->raw, g->text, g->text_n);
        a->rc = toolparse_push(a->parser, g->text, g->text_n);
    } else {
        add_text(a, g->text, g->text_n);
    }
    if (!a->rc && a->q->logprobs && g->id >= 0)
        a->rc = keep_token(a, g->id, g->logprob, false, g->alt, g->alts);
    else if (a->hooks->token)
        a->hooks->token(a->hooks->arg, &nothing);
    return a->rc || a->enough;
}

/* The prompt's own text in front of a completion that asked for its echo. */
static void echo_text(struct answer *a)
{
    const struct request *q = a->q;
    const struct ids *ids = a->prompt;

    if (!q->prompt_id)
        add_text(a, q->prompt.text.s, q->prompt.text.n);
    for (size_t i = 0; q->prompt_id && i < ids->n; i++) {
        size_t n = 0;
        const char *s = tokenizer_bytes(a->tokenizer, ids->id[i], &n);

        if (s && !tokenizer_special(a->tokenizer, ids->id[i]))
            add_text(a, s, n);
    }
}

void answer_model(char out[128], const char *dir)
{
    size_t n = strlen(dir), from;

    while (n > 1 && dir[n - 1] == '/')
        n--;
    for (from = n; from > 0 && dir[from - 1] != '/'; from--)
        ;
    n = n - from < 127 ? n - from : 127;
    memcpy(out, dir + from, n);
    out[n] = 0;
}

void answer_describe(struct answer *a, struct reply *r)
{
    const struct generation *m = &a->made;

    r->chat = a->q->chat;
    r->finish = m->finish;
    r->message = &a->message;
    r->text = a->text.s ? a->text.s : "";
    r->text_n = a->text.n;
    r->logprobs = a->q->logprobs;
    r->token = a->token;
    r->tokens = a->tokens;
    /* The token that ends a turn has no place among the text's tokens. */
    if (m->finish == FINISH_STOP && !m->stop && !a->enough && r->tokens)
        r->tokens--;
    for (int i = 0; i < a->tokens; i++)
        a->token[i].alternative = a->alternative + (size_t)i * (size_t)a->q->alternatives;
    r->usage = (struct usage){ (int)a->prompt->n, m->cached_n, (int)m->ids.n, a->reasoning };
    r->token_id = m->ids.id;
    r->token_ids = (int)m->ids.n;
    a->timings = (struct timings){
        .prompt_n = m->prompt_n, .predicted_n = (int)m->ids.n, .cache_n = m->cached_n,
        .prompt_ms = m->prompt_seconds * 1e3, .predicted_ms = m->predicted_seconds * 1e3,
        .io_wait_ms = m->tiers.io_wait_seconds * 1e3,
        .vram = m->tiers.vram, .ram = m->tiers.ram, .nvme = m->tiers.nvme,
    };
    r->timings = &a->timings;
}

static void describe(struct generate *g, struct answer *a)
{
    const struct request *q = a->q;

    *g = (struct generate){
        .prompt = a->prompt->id, .prompts = (int)a->prompt->n,
        .max_tokens = q->max_tokens > INT_MAX ? INT_MAX : (int)q->max_tokens,
        .min_tokens = q->min_tokens > INT_MAX ? INT_MAX : (int)q->min_tokens,
        .sampling = q->sampling, .stop = q->stop, .stops = q->stops, .stop_id = q->stop_id,
        .stop_ids = q->stop_ids, .alternatives = q->logprobs ? q->alternatives : SAMPLE_NO_LOGPROB,
        .ignore_eos = q->ignore_eos, .reuse = q->cache_prompt, .on_token = on_token,
        .on_prompt = q->echo && q->logprobs ? on_prompt : NULL, .on_progress = on_progress,
        .arg = a, .cancel = a->hooks->cancel,
    };
}

static int run(struct answer *a, struct session *s, const struct options *o, struct err *e)
{
    struct generate g;
    int rc;

    describe(&g, a);
    sampling_fill(&g.sampling, &engine_model(session_engine(s))->defaults, a->q->has_seed,
                  o->deterministic);
    rc = answer_constraint(a->q, session_engine(s), &g.constraint, e);
    if (rc)
        return rc;
    if (a->q->echo && !a->q->chat)
        echo_text(a);
    rc = generate(s, &g, &a->made, e);
    constraint_close(g.constraint);
    if (a->enough && a->made.finish == FINISH_CANCELLED)
        a->made.finish = FINISH_STOP;
    if (!rc && a->parser)
        rc = toolparse_end(a->parser, a->made.finish == FINISH_STOP);
    if (rc == -ENOMEM || a->rc || a->text.failed || a->raw.failed || a->message.failed)
        rc = fail(e, -ENOMEM, "no memory for the answer");
    return rc;
}

int answer_run(struct answer *a, struct session *s, const struct request *q,
               const struct ids *prompt, const struct options *o,
               const struct answer_hooks *hooks, struct err *e)
{
    struct toolparse_options po = {
        .thinking = q->thinking, .tools = q->tool_choice == TOOLS_NONE ? NULL : q->tools,
        .each = on_event, .arg = a,
    };
    int rc = 0;

    *a = (struct answer){ .q = q, .hooks = hooks, .prompt = prompt,
                          .tokenizer = engine_tokenizer(session_engine(s)) };
    if (q->chat)
        rc = toolparse_open(&a->parser, &po, e);
    if (!rc)
        rc = run(a, s, o, e);
    return rc;
}

/* All that a request can end with once its body is accepted.  400: it asks for what nobody can
 * answer; 503: the same request may be answered later. */
static const struct outcome {
    int error, status;
    const char *code;
} outcomes[] = {
    { E2BIG,     400, "context_length_exceeded" },
    { EINVAL,    400, "invalid_value" },        /* no tokens */
    { EOVERFLOW, 400, "invalid_value" },        /* a split pattern never ends on this text */
    { ENOTSUP,   400, "unsupported" },          /* calls, of a model that has none */
    { EDOM,      500, "nonfinite_logits" },
    { ENODATA,   500, "no_candidate" },
    { EBADMSG,   500, "expert_data_error" },
    { EIO,       500, "expert_io_error" },
    { ETIMEDOUT, 500, "timeout" },              /* the GPU waited for the processor */
    { ENXIO,     503, "expert_io_error" },      /* the drive is gone */
    { ETIME,     503, "storage_timeout" },
    { ESTALE,    503, "checkpoint_changed" },
    { ENOMEM,    503, "out_of_memory" },
    { EREMOTEIO, 503, "gpu_fault" },
};

void answer_error(struct request_error *out, int rc, const struct err *e)
{
    static const struct outcome other = { 0, 500, "internal" };
    const struct outcome *o = &other;

    for (size_t i = 0; i < sizeof(outcomes) / sizeof(*outcomes); i++)
        if (outcomes[i].error == -rc)
            o = &outcomes[i];
    *out = (struct request_error){
        .status = o->status, .code = o->code,
        .type = o->status < 500 ? "invalid_request_error" : "server_error",
    };
    snprintf(out->message, sizeof(out->message), "%s", e->text);
}

void answer_free(struct answer *a)
{
    toolparse_close(a->parser);
    message_free(&a->message);
    text_free(&a->text);
    text_free(&a->raw);
    free(a->token);
    free(a->alternative);
    generation_free(&a->made);
}

int answer_request(struct session *s, const struct request *q, const struct options *o,
                   struct text *out, struct err *e)
{
    static const struct answer_hooks none = { .cancel = NULL };
    const struct engine *g = session_engine(s);
    const struct tokenizer *t = engine_tokenizer(g);
    char random[32], id[48], model[128];
    struct reply r = { .id = id, .model = model, .created = time(NULL) };
    struct ids prompt = { NULL, 0, 0 };
    struct answer a = { .q = q };
    int rc = answer_prompt(q, t, &engine_model(g)->shape, &prompt, e);

    if (!rc)
        rc = answer_run(&a, s, q, &prompt, o, &none, e);
    if (!rc) {
        answer_describe(&a, &r);
        answer_model(model, o->model_dir);
        message_id(random, "");
        snprintf(id, sizeof(id), "%s-%s", r.chat ? "chatcmpl" : "cmpl", random);
        reply_json(out, &r, t);
    }
    answer_free(&a);
    free(prompt.id);
    return rc;
}
