/* Two bounded memories: calls by their id, and turns by their text.  Linear looks: both are
 * small beside a prompt. */
#include "config.h"
#include "src/recall.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>

enum { CALLS = 1024, TURNS = 256, TURN_BYTES = 1 << 20 };

static const char OPEN[] = "<assistant>", CLOSE[] = "</assistant>\n";

struct kept_call {
    char id[32];
    struct text name, arguments;
};

/* A turn whose ids are not what its text would give. */
struct turn {
    struct text text;           /* as it is rendered in a history, from OPEN to CLOSE */
    struct ids ids;
};

struct recall {
    pthread_mutex_t lock;
    struct kept_call call[CALLS];       /* both are rings: the oldest makes room */
    struct turn turn[TURNS];
    unsigned calls, turns;
};

int recall_open(struct recall **out, struct err *e)
{
    struct recall *r = calloc(1, sizeof(*r));

    if (!r)
        return fail(e, -ENOMEM, "out of memory");
    pthread_mutex_init(&r->lock, NULL);
    *out = r;
    return 0;
}

void recall_close(struct recall *r)
{
    if (!r)
        return;
    for (int i = 0; i < CALLS; i++) {
        text_free(&r->call[i].name);
        text_free(&r->call[i].arguments);
    }
    for (int i = 0; i < TURNS; i++) {
        text_free(&r->turn[i].text);
        free(r->turn[i].ids.id);
    }
    free(r);
}

static void keep_call(struct recall *r, const struct call *c)
{
    struct kept_call *k = &r->call[r->calls++ % CALLS];

    memcpy(k->id, c->id, sizeof(k->id));
    k->name.n = k->arguments.n = 0;
    text_add(&k->name, c->name.s, c->name.n);
    text_add(&k->arguments, c->arguments.n ? c->arguments.s : "{}",
             c->arguments.n ? c->arguments.n : 2);
    if (k->name.failed || k->arguments.failed)
        k->id[0] = 0;
}

/* The message as a client would send it back; NULL where memory is short. */
static cJSON *history_of(const struct message *m)
{
    cJSON *list = cJSON_CreateArray(), *one = cJSON_CreateObject(), *calls, *call, *function;
    bool good = list && one && cJSON_AddItemToArray(list, one) &&
                cJSON_AddStringToObject(one, "role", "assistant") &&
                cJSON_AddStringToObject(one, "content", m->content.n ? m->content.s : "") &&
                cJSON_AddStringToObject(one, "reasoning", m->reasoning.n ? m->reasoning.s : "");

    calls = good ? cJSON_AddArrayToObject(one, "tool_calls") : NULL;
    for (int i = 0; calls && i < m->calls; i++) {
        call = cJSON_CreateObject();
        function = call && cJSON_AddItemToArray(calls, call)
                   ? cJSON_AddObjectToObject(call, "function") : NULL;
        good = function && cJSON_AddStringToObject(call, "id", m->call[i].id) &&
               cJSON_AddStringToObject(function, "name", m->call[i].name.s) &&
               cJSON_AddStringToObject(function, "arguments",
                                       m->call[i].arguments.n ? m->call[i].arguments.s : "{}");
        calls = good ? calls : NULL;
    }
    if (calls)
        return list;
    cJSON_Delete(list);
    return NULL;
}

/* The next turn of an assistant from *at on: its text in *from, *to.  Only the layout's own
 * tags count, not what a message says. */
static bool next_turn(const struct prompt *p, size_t at, size_t *from, size_t *to)
{
    bool inside = false;

    for (int i = 0; i < p->controls; i++) {
        const struct span *c = &p->control[i];
        size_t begin = c->from < at ? at : c->from;
        const char *s, *tag = inside ? CLOSE : OPEN;

        while (begin < c->to &&
               (s = memmem(p->text.s + begin, c->to - begin, tag, strlen(tag)))) {
            if (inside) {
                *to = (size_t)(s - p->text.s);
                return true;
            }
            *from = begin = (size_t)(s - p->text.s) + strlen(OPEN);
            inside = true;
            tag = CLOSE;
        }
    }
    return false;
}

/* Append the ids of p's text from..to. */
static int encode_part(const struct prompt *p, size_t from, size_t to, const struct tokenizer *t,
                       struct ids *out, struct err *e)
{
    struct span *span = malloc(((size_t)p->controls + 1) * sizeof(*span));
    int n = 0, rc;

    if (!span)
        return fail(e, -ENOMEM, "out of memory");
    for (int i = 0; i < p->controls; i++) {
        struct span c = p->control[i];

        c.from = c.from < from ? from : c.from;
        c.to = c.to > to ? to : c.to;
        if (c.from < c.to)
            span[n++] = (struct span){ c.from - from, c.to - from };
    }
    rc = tokenizer_encode(t, p->text.s + from, to - from, span, n, out, e);
    free(span);
    return rc;
}

/* The ids that were sampled behind the tag that the prompt ended in, without the turn's end. */
static int sampled_ids(const struct answer *a, struct ids *out)
{
    const struct ids *made = &a->made.ids;
    size_t n = made->n;
    int rc = ids_push(out, a->prompt->id[a->prompt->n - 1]);

    if (n && a->made.finish == FINISH_STOP && !a->enough && !a->made.stop)
        n--;
    for (size_t i = 0; !rc && i < n; i++)
        rc = ids_push(out, made->id[i]);
    return rc;
}

static struct turn *find_turn(struct recall *r, const char *s, size_t n)
{
    for (int i = 0; i < TURNS; i++)
        if (r->turn[i].text.n == n && n && !memcmp(r->turn[i].text.s, s, n))
            return &r->turn[i];
    return NULL;
}

/* Of turns that read the same the last one counts. */
static void keep_turn(struct recall *r, const struct prompt *p, const struct answer *a)
{
    struct ids sampled = { NULL, 0, 0 }, plain = { NULL, 0, 0 };
    struct turn *k = NULL;
    struct err e;
    size_t from = 0, to = 0;
    bool plainly;

    if (next_turn(p, 0, &from, &to))
        k = find_turn(r, p->text.s + from, to - from);
    plainly = !to || to - from > TURN_BYTES || sampled_ids(a, &sampled) ||
              encode_part(p, from, to, a->tokenizer, &plain, &e) ||
              (plain.n == sampled.n && !memcmp(plain.id, sampled.id, plain.n * sizeof(int32_t)));
    free(plain.id);
    if (plainly && k)
        k->text.n = 0;
    if (plainly) {
        free(sampled.id);
        return;
    }
    if (!k)
        k = &r->turn[r->turns++ % TURNS];
    k->text.n = 0;
    text_add(&k->text, p->text.s + from, to - from);
    free(k->ids.id);
    k->ids = sampled;
    if (k->text.failed)
        k->text.n = 0;
}

/* The prompt ends where an answer begins. */
static bool begins_turn(const struct answer *a)
{
    int32_t last = a->prompt->id[a->prompt->n - 1];

    return last == tokenizer_find_added(a->tokenizer, "<think>") ||
           last == tokenizer_find_added(a->tokenizer, "</think>");
}

void recall_keep(struct recall *r, const struct answer *a)
{
    const struct chat_options o = { a->q->thinking, false };
    struct prompt p = { .controls = 0 };
    struct err e;
    cJSON *history;

    /* What a stop string cut off, or half a call, was sampled too, and is not sent. */
    if (!a->q->chat || a->made.finish != FINISH_STOP || a->made.stop || !begins_turn(a))
        return;
    history = history_of(&a->message);
    pthread_mutex_lock(&r->lock);
    for (int i = 0; i < a->message.calls; i++)
        keep_call(r, &a->message.call[i]);
    if (history && !chat_render(&p, history, NULL, &o, &e))
        keep_turn(r, &p, a);
    pthread_mutex_unlock(&r->lock);
    prompt_free(&p);
    cJSON_Delete(history);
}

static const struct kept_call *find_call(const struct recall *r, const cJSON *id)
{
    for (int i = 0; cJSON_IsString(id) && i < CALLS; i++)
        if (r->call[i].id[0] && !strcmp(r->call[i].id, id->valuestring))
            return &r->call[i];
    return NULL;
}

/* The same arguments, whatever their order and spacing. */
static bool same_arguments(const struct kept_call *k, const cJSON *arguments)
{
    struct err e;
    cJSON *ours = json_parse(k->arguments.s, k->arguments.n, &JSON_REQUEST, &e);
    cJSON *parsed = cJSON_IsString(arguments)
                    ? json_parse(arguments->valuestring, strlen(arguments->valuestring),
                                 &JSON_REQUEST, &e) : NULL;
    bool same = ours && cJSON_Compare(ours, parsed ? parsed : arguments, true);

    cJSON_Delete(ours);
    cJSON_Delete(parsed);
    return same;
}

static void recall_call(const struct recall *r, cJSON *call)
{
    cJSON *function = cJSON_GetObjectItemCaseSensitive(call, "function"), *sent;
    const cJSON *name = json_get(function, "name"), *arguments = json_get(function, "arguments");
    const struct kept_call *k = find_call(r, json_get(call, "id"));

    if (!k || !cJSON_IsString(name) || strcmp(name->valuestring, k->name.s) ||
        !same_arguments(k, arguments))
        return;
    sent = cJSON_CreateString(k->arguments.s);
    if (sent && !cJSON_ReplaceItemInObjectCaseSensitive(function, "arguments", sent))
        cJSON_Delete(sent);
}

void recall_calls(struct recall *r, cJSON *messages)
{
    cJSON *message, *call;

    pthread_mutex_lock(&r->lock);
    cJSON_ArrayForEach(message, messages)
        cJSON_ArrayForEach(call, cJSON_GetObjectItemCaseSensitive(message, "tool_calls"))
            recall_call(r, call);
    pthread_mutex_unlock(&r->lock);
}

int recall_encode(struct recall *r, const struct prompt *p, const struct tokenizer *t,
                  struct ids *out, struct err *e)
{
    size_t done = 0, at = 0, from = 0, to = 0;
    int rc = 0;

    pthread_mutex_lock(&r->lock);
    for (; !rc && next_turn(p, at, &from, &to); at = to) {
        const struct turn *k = find_turn(r, p->text.s + from, to - from);

        if (!k)
            continue;
        rc = encode_part(p, done, from, t, out, e);
        for (size_t i = 0; !rc && i < k->ids.n; i++)
            if (ids_push(out, k->ids.id[i]))
                rc = fail(e, -ENOMEM, "out of memory");
        done = to;
    }
    pthread_mutex_unlock(&r->lock);
    return rc ? rc : encode_part(p, done, p->text.n, t, out, e);
}
