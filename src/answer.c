#include "src/answer.h"
#include "src/options.h"
#include "src/reply.h"

#include <errno.h>
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/random.h>
#include <time.h>

/* What an answer gathers while it is made. */
struct gather {
    const struct request *q;
    const struct tokenizer *tokenizer;
    const struct ids *prompt;
    struct toolparse *parser;           /* of a conversation, else NULL */
    struct message message;
    struct text text;                   /* of a completion */
    struct reply_token *token;          /* [tokens] */
    struct alternative *alternative;    /* [tokens][q->alternatives] */
    int tokens, cap;
    int reasoning;
    int rc;
};

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

static int prompt_text(const struct request *q, const struct engine *g, struct ids *out,
                       struct err *e)
{
    const struct tokenizer *t = engine_tokenizer(g);
    int32_t bos = tokenizer_bos(t) < 0 ? engine_model(g)->shape.bos : tokenizer_bos(t);
    const struct text *text = &q->prompt.text;
    int rc = bos < 0 ? 0 : ids_push(out, bos);

    if (!rc)
        rc = tokenizer_encode(t, text->s ? text->s : "", text->n, NULL, SPANS_ALL, out, e);
    if (!rc && bos >= 0 && out->n > 1 && out->id[1] == bos)
        memmove(out->id, out->id + 1, --out->n * sizeof(*out->id));
    return rc;
}

int answer_prompt(const struct request *q, const struct engine *g, struct ids *out, struct err *e)
{
    int rc;

    if (q->prompt_id)
        rc = prompt_ids(q, out);
    else if (q->chat)
        rc = prompt_encode(&q->prompt, engine_tokenizer(g), out, e);
    else
        rc = prompt_text(q, g, out, e);
    if (rc == -ENOMEM)
        return fail(e, rc, "no memory for the prompt's ids");
    return rc || out->n ? rc : fail(e, -EBADMSG, "prompt: no tokens");
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

/* Remember a token for logprobs. */
static int keep_token(struct gather *t, int32_t id, float logprob, bool hidden,
                      const struct alternative *alt, int alts)
{
    size_t width = (size_t)t->q->alternatives;

    if (t->tokens == t->cap) {
        int cap = t->cap ? 2 * t->cap : 64;
        void *token = realloc(t->token, (size_t)cap * sizeof(*t->token));
        void *wider;

        if (!token)
            return -ENOMEM;
        t->token = token;
        wider = realloc(t->alternative, ((size_t)cap * width + 1) * sizeof(*t->alternative));
        if (!wider)
            return -ENOMEM;
        t->alternative = wider;
        t->cap = cap;
    }
    if (alts)
        memcpy(t->alternative + (size_t)t->tokens * width, alt, (size_t)alts * sizeof(*alt));
    t->token[t->tokens++] = (struct reply_token){ .id = id, .logprob = logprob, .hidden = hidden,
                                                  .alternatives = alts };
    return 0;
}

static int on_prompt(void *arg, const struct echoed *p)
{
    struct gather *t = arg;
    int32_t id = t->prompt->id[p->index];

    t->rc = keep_token(t, id, p->logprob, p->index == 0 && tokenizer_added(t->tokenizer, id),
                       p->alt, isnan(p->logprob) ? 0 : p->alts);
    return t->rc;
}

static int on_token(void *arg, const struct generated *g)
{
    struct gather *t = arg;

    if (t->parser && toolparse_thinking(t->parser))
        t->reasoning++;
    if (t->parser)
        t->rc = toolparse_push(t->parser, g->text, g->text_n);
    else
        text_add(&t->text, g->text, g->text_n);
    if (!t->rc && t->q->logprobs && g->id >= 0)
        t->rc = keep_token(t, g->id, g->logprob, false, g->alt, g->alts);
    return t->rc;
}

/* The prompt's own text in front of a completion that asked for its echo. */
static void echo_text(struct gather *t)
{
    const struct request *q = t->q;
    const struct ids *ids = t->prompt;

    if (!q->prompt_id)
        text_add(&t->text, q->prompt.text.s, q->prompt.text.n);
    for (size_t i = 0; q->prompt_id && i < ids->n; i++) {
        size_t n = 0;
        const char *s = tokenizer_bytes(t->tokenizer, ids->id[i], &n);

        if (s && !tokenizer_special(t->tokenizer, ids->id[i]))
            text_add(&t->text, s, n);
    }
}

/* The last part of the directory's name. */
static void model_name(char out[128], const char *dir)
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

static void write_reply(struct text *out, struct gather *t, const struct generation *a,
                        const struct options *o)
{
    struct timings timings = {
        .prompt_n = a->prompt_n, .predicted_n = (int)a->ids.n, .cache_n = a->cached_n,
        .prompt_ms = a->prompt_seconds * 1e3, .predicted_ms = a->predicted_seconds * 1e3,
        .io_wait_ms = a->tiers.io_wait_seconds * 1e3,
        .vram = a->tiers.vram, .ram = a->tiers.ram, .nvme = a->tiers.nvme,
    };
    char random[32], id[48], model[128];
    struct reply r = {
        .chat = t->q->chat, .id = id, .model = model, .created = time(NULL),
        .finish = a->finish, .message = &t->message, .text = t->text.s ? t->text.s : "",
        .text_n = t->text.n, .logprobs = t->q->logprobs, .token = t->token, .tokens = t->tokens,
        .usage = { (int)t->prompt->n, a->cached_n, (int)a->ids.n, t->reasoning },
        .token_id = a->ids.id, .token_ids = (int)a->ids.n, .timings = &timings,
    };

    /* The token that ends a turn has no place among the text's tokens. */
    if (a->finish == FINISH_STOP && !a->stop && r.tokens)
        r.tokens--;
    for (int i = 0; i < t->tokens; i++)
        t->token[i].alternative = t->alternative + (size_t)i * (size_t)t->q->alternatives;
    model_name(model, o->model_dir);
    message_id(random, "");
    snprintf(id, sizeof(id), "%s-%s", r.chat ? "chatcmpl" : "cmpl", random);
    reply_json(out, &r, t->tokenizer);
}

static void describe(struct generate *g, const struct request *q, const struct ids *prompt)
{
    *g = (struct generate){
        .prompt = prompt->id, .prompts = (int)prompt->n,
        .max_tokens = q->max_tokens > INT_MAX ? INT_MAX : (int)q->max_tokens,
        .min_tokens = q->min_tokens > INT_MAX ? INT_MAX : (int)q->min_tokens,
        .sampling = q->sampling, .stop = q->stop, .stops = q->stops, .stop_id = q->stop_id,
        .stop_ids = q->stop_ids, .alternatives = q->logprobs ? q->alternatives : 0,
        .ignore_eos = q->ignore_eos, .reuse = q->cache_prompt, .on_token = on_token,
        .on_prompt = q->echo && q->logprobs ? on_prompt : NULL,
    };
}

static int run(struct gather *t, struct session *s, const struct options *o, struct text *out,
               struct err *e)
{
    struct generate g;
    struct generation a = { .finish = FINISH_STOP };
    int rc;

    describe(&g, t->q, t->prompt);
    sampling_fill(&g.sampling, &engine_model(session_engine(s))->defaults, t->q->has_seed,
                  o->deterministic);
    g.arg = t;
    rc = answer_constraint(t->q, session_engine(s), &g.constraint, e);
    if (rc)
        return rc;
    if (t->q->echo && !t->q->chat)
        echo_text(t);
    rc = generate(s, &g, &a, e);
    constraint_close(g.constraint);
    if (rc == -E2BIG)
        rc = -EBADMSG;
    if (!rc && t->parser)
        rc = toolparse_end(t->parser, a.finish == FINISH_STOP);
    if (rc == -ENOMEM || t->rc || t->text.failed || t->message.failed)
        rc = fail(e, -ENOMEM, "no memory for the answer");
    if (!rc)
        write_reply(out, t, &a, o);
    generation_free(&a);
    return rc;
}

int answer_request(struct session *s, const struct request *q, const struct options *o,
                   struct text *out, struct err *e)
{
    struct engine *engine = session_engine(s);
    struct ids prompt = { NULL, 0, 0 };
    struct gather t = { .q = q, .tokenizer = engine_tokenizer(engine),
                        .prompt = &prompt };
    struct toolparse_options po = {
        .thinking = q->thinking, .tools = q->tool_choice == TOOLS_NONE ? NULL : q->tools,
        .each = message_event, .arg = &t.message,
    };
    int rc = answer_prompt(q, engine, &prompt, e);

    if (!rc && q->chat)
        rc = toolparse_open(&t.parser, &po, e);
    if (!rc)
        rc = run(&t, s, o, out, e);
    toolparse_close(t.parser);
    message_free(&t.message);
    text_free(&t.text);
    free(t.token);
    free(t.alternative);
    free(prompt.id);
    return rc;
}
