#include "src/talk.h"

#include "src/answer.h"
#include "src/chat.h"
#include "src/command_io.h"
#include "src/outlook.h"
#include "src/toolparse.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <unistd.h>

/* Renders, generates and shows.  Thoughts are dim at a terminal; what the model writes can
 * send no control sequence there. */

enum { ENOUGH_TOKENS = 16 };    /* for a speed that means something */

#define DIM "\033[2m"
#define PLAIN "\033[22m"

/* An answer on its way to stdout. */
struct show {
    struct toolparse *parser;
    struct text content, reasoning;
    bool terminal, colour;
    bool thinking;              /* the last piece shown was a thought */
    char last;                  /* the last byte shown */
    int rc;
    struct err *e;
};

static void put(struct show *s, const char *text, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        unsigned char c = (unsigned char)text[i];

        if (s->terminal && (c == 0x7f || (c < 0x20 && c != '\n' && c != '\t')))
            continue;
        putchar(c);
        s->last = (char)c;
    }
}

/* Between thoughts and answer: the colour, and an empty line. */
static void change(struct show *s, bool thinking)
{
    if (s->thinking && !thinking)
        fputs(s->last == '\n' ? "\n" : "\n\n", stdout);
    if (s->colour)
        fputs(thinking ? DIM : PLAIN, stdout);
    s->thinking = thinking;
}

static void on_event(void *arg, const struct event *v)
{
    struct show *s = arg;
    bool thought = v->kind == EVENT_REASONING;
    size_t skip = 0;

    if (!thought && v->kind != EVENT_CONTENT)
        return;
    if (thought != s->thinking) {
        while (skip < v->n && (v->s[skip] == '\n' || v->s[skip] == ' '))
            skip++;
        if (skip == v->n && thought)
            return;
        change(s, thought);
    }
    put(s, v->s + skip, v->n - skip);
    text_add(thought ? &s->reasoning : &s->content, v->s, v->n);
}

static int on_token(void *arg, const struct generated *g)
{
    struct show *s = arg;

    s->rc = toolparse_push(s->parser, g->text, g->text_n);
    if (s->rc)
        fail(s->e, s->rc, "no memory for the answer");
    else if (g->text_n)
        s->rc = output_flush(s->e);
    return s->rc;
}

static int add_message(struct talk *t, const char *role, const char *text, struct err *e)
{
    cJSON *m = cJSON_CreateObject();

    if (m && cJSON_AddStringToObject(m, "role", role) &&
        cJSON_AddStringToObject(m, "content", text) && cJSON_AddItemToArray(t->messages, m))
        return 0;
    cJSON_Delete(m);
    return fail(e, -ENOMEM, "no memory for the conversation");
}

int talk_begin(struct talk *t, struct err *e)
{
    cJSON_Delete(t->messages);
    t->messages = cJSON_CreateArray();
    if (!t->messages)
        return fail(e, -ENOMEM, "no memory for the conversation");
    return t->system ? add_message(t, "system", t->system, e) : 0;
}

/* What was to be expected, where the figures of this machine are known. */
static void show_prediction(const struct talk *t, double achieved_tps)
{
    struct outlook k;
    char line[128];

    if (outlook_of(&k, t->engine, t->o)) {
        prediction_line(line, sizeof(line), &k.prediction, achieved_tps);
        fprintf(stderr, "%s\n", line);
    } else {
        info(&t->o->log, "no figures of this machine: `laguna-offload plan` measures them");
    }
    outlook_close(&k);
}

static void show_figures(const struct talk *t, const struct generation *a)
{
    int made = (int)a->ids.n, used = a->cached_n + a->prompt_n + made;

    if (t->o->log.level <= LOG_QUIET)
        return;
    fprintf(stderr, "prompt %d tokens", a->prompt_n + a->cached_n);
    if (a->cached_n)
        fprintf(stderr, " (%d kept)", a->cached_n);
    if (a->prompt_seconds > 0)
        fprintf(stderr, ", %.1f tok/s", a->prompt_n / a->prompt_seconds);
    fprintf(stderr, "; answer %d tokens", made);
    if (a->predicted_seconds > 0)
        fprintf(stderr, ", %.1f tok/s", made / a->predicted_seconds);
    fprintf(stderr, "; context %d of %d%s\n", used, engine_context(t->engine),
            a->finish == FINISH_CANCELLED ? "; stopped"
            : a->finish == FINISH_LENGTH  ? "; cut at the limit"
                                          : "");
    if (made >= ENOUGH_TOKENS && a->predicted_seconds > 0)
        show_prediction(t, made / a->predicted_seconds);
}

/* The conversation so far as ids. */
static int read_messages(const struct talk *t, struct ids *out, struct err *e)
{
    struct chat_options co = { .thinking = t->think, .generation_prompt = true };
    struct prompt prompt = { .controls = 0 };
    int rc = chat_render(&prompt, t->messages, NULL, &co, e);

    if (!rc)
        rc = prompt_encode(&prompt, engine_tokenizer(t->engine), out, e);
    prompt_free(&prompt);
    return rc;
}

static int make_answer(struct talk *t, struct show *s, const struct ids *prompt, struct err *e)
{
    const struct options *o = t->o;
    struct generation a = { .finish = FINISH_STOP };
    struct generate g = {
        .prompt = prompt->id, .prompts = (int)prompt->n, .max_tokens = o->max_tokens,
        .sampling = { .temperature = o->temperature, .top_p = o->top_p, .min_p = o->min_p,
                      .top_k = o->top_k, .repetition_penalty = 1, .seed = o->seed },
        .stop = o->stop, .stops = o->stops, .reuse = true, .on_token = on_token, .arg = s,
        .cancel = t->cancel,
    };
    int rc;

    sampling_fill(&g.sampling, &engine_model(t->engine)->defaults, o->seed_set, o->deterministic);
    rc = generate(t->session, &g, &a, e);
    if (!rc)
        rc = s->rc;
    if (!rc && toolparse_end(s->parser, a.finish == FINISH_STOP))
        rc = fail(e, -ENOMEM, "no memory for the answer");
    if (!rc && s->thinking)
        change(s, false);
    if (!rc && s->last && s->last != '\n')
        putchar('\n');
    if (!rc)
        rc = output_flush(e);
    if (!rc)
        show_figures(t, &a);
    engine_save(t->engine);
    generation_free(&a);
    return rc;
}

static int answer(struct talk *t, struct show *s, struct err *e)
{
    struct toolparse_options po = { .thinking = t->think, .each = on_event, .arg = s };
    struct ids prompt = { NULL, 0, 0 };
    int rc = read_messages(t, &prompt, e);

    if (!rc)
        rc = toolparse_open(&s->parser, &po, e);
    if (!rc)
        rc = make_answer(t, s, &prompt, e);
    free(prompt.id);
    return rc;
}

int talk_say(struct talk *t, const char *text, struct err *e)
{
    struct show s = { .terminal = isatty(1), .e = e };
    int said = cJSON_GetArraySize(t->messages);
    int rc = add_message(t, "user", text, e);

    s.colour = s.terminal && !t->o->plain_terminal;
    if (!rc)
        rc = answer(t, &s, e);
    if (!rc && (s.content.failed || s.reasoning.failed))
        rc = fail(e, -ENOMEM, "no memory for the answer");
    if (!rc)
        rc = add_message(t, "assistant", s.content.n ? s.content.s : "", e);
    if (!rc && s.reasoning.n) {
        cJSON *m = cJSON_GetArrayItem(t->messages, said + 1);

        if (!cJSON_AddStringToObject(m, "reasoning_content", s.reasoning.s))
            rc = fail(e, -ENOMEM, "no memory for the conversation");
    }
    while (rc && cJSON_GetArraySize(t->messages) > said)
        cJSON_DeleteItemFromArray(t->messages, said);
    toolparse_close(s.parser);
    text_free(&s.content);
    text_free(&s.reasoning);
    return rc;
}
