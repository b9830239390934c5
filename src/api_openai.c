#include "config.h"
#include "src/api.h"
#include "src/server.h"
#include "src/sse.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

/* /chat/completions and /completions: whole answers by src/reply.h, and streams of the same
 * pieces.  Reading the body is src/request.c's, but for several prompts in one request. */

enum { PROMPTS_MOST = 128 };

struct openai {
    char id[64];
    struct text head;           /* how every chunk begins, up to the index of its choice */
    struct text held;           /* thoughts that are white space only so far */
    bool open;                  /* a chunk lacks its logprobs and its end */
    bool timings, progress, usage;
    int calls;                  /* announced in this choice */
    size_t offset;              /* characters of its tokens */
    struct usage sum;
    struct timings timing;
};

static int refuse(struct job *j, const struct request_error *e)
{
    j->failed = true;
    j->error = *e;
    return -EBADMSG;
}

static int read_choice(struct job *j, int i, cJSON *body)
{
    struct request_error e;

    recall_calls(j->server->recall, cJSON_GetObjectItemCaseSensitive(body, "messages"));
    if (request_read(&j->choice[i].q, body, j->server->model->shape.vocab, &e))
        return refuse(j, &e);
    return 0;
}

/* A prompt that is an array of several: each gets the whole of the rest of the body. */
static int read_prompts(struct job *j, cJSON *body, cJSON *prompt)
{
    int n = cJSON_GetArraySize(prompt), rc;

    if (n > PROMPTS_MOST) {
        cJSON_Delete(body);
        return job_refuse(j, 400, "invalid_value", "prompt: %d of at most %d", n, PROMPTS_MOST);
    }
    rc = job_choices(j, n);
    cJSON_DetachItemViaPointer(body, prompt);
    for (int i = 0; !rc && i < n; i++) {
        cJSON *copy = cJSON_Duplicate(body, true);

        if (!copy || !cJSON_AddItemToObject(copy, "prompt", cJSON_DetachItemFromArray(prompt, 0)))
            rc = job_refuse(j, 503, "out_of_memory", "out of memory");
        if (rc)
            cJSON_Delete(copy);
        else
            rc = read_choice(j, i, copy);
    }
    cJSON_Delete(prompt);
    cJSON_Delete(body);
    return rc;
}

static bool is_several(const cJSON *prompt)
{
    return cJSON_IsArray(prompt) && prompt->child && prompt->child->next &&
           (cJSON_IsString(prompt->child) || cJSON_IsArray(prompt->child));
}

static int open_state(struct job *j)
{
    const struct request *q = &j->choice[0].q;
    struct openai *o = calloc(1, sizeof(*o));

    if (!o)
        return job_refuse(j, 503, "out_of_memory", "out of memory");
    j->state = o;
    j->stream = q->stream;
    o->timings = q->timings_per_token;
    o->progress = q->return_progress;
    o->usage = q->include_usage;
    snprintf(o->id, sizeof(o->id), "%s-%s", q->chat ? "chatcmpl" : "cmpl", j->id);
    text_printf(&o->head, "{\"id\":\"%s\",\"object\":\"%s\",\"created\":%jd,\"model\":", o->id,
                q->chat ? "chat.completion.chunk" : "text_completion", (intmax_t)j->created);
    text_json_bytes(&o->head, j->server->model_name, strlen(j->server->model_name));
    text_puts(&o->head, ",\"system_fingerprint\":\"" PACKAGE_VERSION "\",\"choices\":[");
    return o->head.failed ? job_refuse(j, 503, "out_of_memory", "out of memory") : 0;
}

static int read_body(struct job *j, const char *needed)
{
    struct request_error e;
    cJSON *body = request_object(j->body.s, j->body.n, &e);
    cJSON *prompt;
    int rc;

    if (!body)
        return refuse(j, &e);
    text_free(&j->body);
    if (!json_get(body, needed)) {
        cJSON_Delete(body);
        job_refuse(j, 400, "missing_field", "%s is missing", needed);
        snprintf(j->error.param, sizeof(j->error.param), "%s", needed);
        return -EBADMSG;
    }
    if (!strcmp(needed, "prompt"))
        cJSON_DeleteItemFromObjectCaseSensitive(body, "messages");
    prompt = cJSON_GetObjectItemCaseSensitive(body, "prompt");
    if (!strcmp(needed, "prompt") && is_several(prompt)) {
        rc = read_prompts(j, body, prompt);
    } else {
        rc = job_choices(j, 1);
        if (rc)
            cJSON_Delete(body);
        else
            rc = read_choice(j, 0, body);
    }
    return rc ? rc : open_state(j);
}

static int read_chat(struct job *j)
{
    return read_body(j, "messages");
}

static int read_completions(struct job *j)
{
    return read_body(j, "prompt");
}

static void add_timings(struct job *j, const struct timings *t)
{
    text_puts(&j->pending, ",\"timings\":");
    reply_timings(&j->pending, t);
}

static void live_timings(struct job *j)
{
    struct openai *o = j->state;
    double now = clock_now();

    o->timing.predicted_n = ++j->predicted_n;
    o->timing.predicted_ms = (now - j->first) * 1e3;
    o->timing.prompt_n = j->prompt_n;
    o->timing.cache_n = j->cached_n;
    o->timing.prompt_ms = (j->first - j->started) * 1e3;
    add_timings(j, &o->timing);
}

/* The end of the chunk that is open. */
static void close_chunk(struct job *j, const struct reply_token *t, const char *finish)
{
    struct openai *o = j->state;
    struct text *out = &j->pending;

    text_puts(out, ",\"logprobs\":");
    if (!t || t->id < 0)
        text_puts(out, "null");
    else if (job_request(j)->chat)
        reply_logprobs_chat(out, t, 1, j->server->tokenizer);
    else
        reply_logprobs_text(out, t, 1, j->server->tokenizer, &o->offset);
    if (finish)
        text_printf(out, ",\"finish_reason\":\"%s\"}]", finish);
    else
        text_puts(out, ",\"finish_reason\":null}]");
    o->open = false;
}

static void end_chunk(struct job *j)
{
    text_puts(&j->pending, "}");
    sse_end(&j->pending);
}

/* A chunk up to its delta, which the caller writes. */
static struct text *open_chunk(struct job *j)
{
    struct openai *o = j->state;
    struct text *out = &j->pending;

    if (o->open) {
        close_chunk(j, NULL, NULL);
        end_chunk(j);
    }
    sse_begin(out, NULL);
    text_add(out, o->head.s, o->head.n);
    text_printf(out, "{\"index\":%d,\"%s\":", j->at, job_request(j)->chat ? "delta" : "text");
    o->open = true;
    return out;
}

static void begin(struct job *j)
{
    if (!job_request(j)->chat)
        return;
    text_puts(open_chunk(j), "{\"role\":\"assistant\",\"content\":\"\"}");
    close_chunk(j, NULL, NULL);
    end_chunk(j);
}

static void progress(struct job *j, int done, int total)
{
    const struct openai *o = j->state;

    if (!done || !j->total)
        j->cached_n = done;
    j->prompt_n = total - j->cached_n;
    if (!o->progress)
        return;
    text_puts(open_chunk(j), job_request(j)->chat ? "{}" : "\"\"");
    close_chunk(j, NULL, NULL);
    text_printf(&j->pending, ",\"prompt_progress\":{\"total\":%d,\"cache\":%d,\"processed\":%d,"
                "\"time_ms\":%.0f}", total, j->cached_n, done, (clock_now() - j->started) * 1e3);
    end_chunk(j);
}

static void add_thoughts(struct job *j, const char *s, size_t n)
{
    struct text *out = open_chunk(j);

    text_puts(out, "{\"reasoning_content\":");
    text_json_bytes(out, s, n);
    text_puts(out, ",\"reasoning\":");
    text_json_bytes(out, s, n);
    text_puts(out, "}");
}

/* Some clients drop a piece that is white space only, and then send other thoughts back than
 * they got: it waits for the next one. */
static void think(struct job *j, const char *s, size_t n)
{
    struct openai *o = j->state;
    size_t i = 0;

    text_add(&o->held, s, n);
    while (i < n && strchr(" \t\r\n", s[i]))
        i++;
    if (i == n)
        return;
    add_thoughts(j, o->held.s, o->held.n);
    o->held.n = 0;
}

static void flush_thoughts(struct job *j)
{
    struct openai *o = j->state;

    if (o->held.n)
        add_thoughts(j, o->held.s, o->held.n);
    o->held.n = 0;
}

static void event(struct job *j, const struct event *v, const struct message *m)
{
    struct openai *o = j->state;
    struct text *out;

    if (v->kind == EVENT_REASONING) {
        think(j, v->s, v->n);
        return;
    }
    flush_thoughts(j);
    if (v->kind == EVENT_CONTENT) {
        out = open_chunk(j);
        text_puts(out, "{\"content\":");
        text_json_bytes(out, v->s, v->n);
        text_puts(out, "}");
    } else if (v->kind == EVENT_CALL) {
        out = open_chunk(j);
        text_printf(out, "{\"tool_calls\":[{\"index\":%d,\"id\":\"%s\",\"type\":\"function\","
                    "\"function\":{\"name\":", o->calls++, m->call[m->calls - 1].id);
        text_json_bytes(out, v->s, v->n);
        text_puts(out, ",\"arguments\":\"\"}}]}");
    } else if (v->kind == EVENT_ARGUMENTS) {
        out = open_chunk(j);
        text_printf(out, "{\"tool_calls\":[{\"index\":%d,\"function\":{\"arguments\":",
                    o->calls - 1);
        text_json_bytes(out, v->s, v->n);
        text_puts(out, "}}]}");
    }
}

static void text(struct job *j, const char *s, size_t n)
{
    text_json_bytes(open_chunk(j), s, n);
}

static void token(struct job *j, const struct reply_token *t)
{
    struct openai *o = j->state;

    if (!o->open && t->id < 0)
        return;
    if (!o->open)
        text_puts(open_chunk(j), job_request(j)->chat ? "{\"content\":\"\"}" : "\"\"");
    close_chunk(j, t, NULL);
    if (o->timings)
        live_timings(j);
    end_chunk(j);
}

static void add_usage(struct openai *o, const struct reply *r)
{
    const struct usage *u = &r->usage;

    o->sum.prompt += u->prompt;
    o->sum.cached += u->cached;
    o->sum.completion += u->completion;
    o->sum.reasoning += u->reasoning;
    o->timing = *r->timings;
}

static void choice(struct job *j, struct answer *a)
{
    struct openai *o = j->state;
    struct reply r = { .id = o->id, .model = j->server->model_name, .created = j->created };
    bool last = j->at == j->choices - 1;

    answer_describe(a, &r);
    r.token_id = NULL;
    add_usage(o, &r);
    o->calls = 0;
    o->offset = 0;
    if (!j->stream) {
        if (!j->at)
            reply_begin(&j->pending, &r);
        text_puts(&j->pending, j->at ? "," : "");
        reply_choice(&j->pending, &r, j->at, j->server->tokenizer);
        return;
    }
    flush_thoughts(j);
    text_puts(open_chunk(j), r.chat ? "{}" : "\"\"");
    close_chunk(j, NULL, reply_finish(r.finish, r.chat ? r.message->calls : 0));
    if (last && !o->usage)
        add_timings(j, &o->timing);
    end_chunk(j);
}

static void end(struct job *j)
{
    struct openai *o = j->state;
    struct reply r = { .usage = o->sum, .timings = &o->timing };

    if (!j->stream) {
        reply_end(&j->pending, &r);
        return;
    }
    if (o->usage) {
        sse_begin(&j->pending, NULL);
        text_add(&j->pending, o->head.s, o->head.n);
        reply_end(&j->pending, &r);
        sse_end(&j->pending);
    }
    sse_begin(&j->pending, NULL);
    text_puts(&j->pending, "[DONE]");
    sse_end(&j->pending);
}

static void broken(struct job *j)
{
    struct openai *o = j->state;

    if (o->open) {
        close_chunk(j, NULL, NULL);
        end_chunk(j);
    }
    sse_begin(&j->pending, NULL);
    reply_error(&j->pending, &j->error);
    sse_end(&j->pending);
}

static void close_state(struct job *j)
{
    struct openai *o = j->state;

    if (!o)
        return;
    text_free(&o->head);
    text_free(&o->held);
    free(o);
}

const struct api *api_chat(void)
{
    static const struct api api = {
        .read = read_chat, .begin = begin, .progress = progress, .event = event, .token = token,
        .choice = choice, .end = end, .broken = broken, .ping = sse_comment, .close = close_state,
    };

    return &api;
}

const struct api *api_completions(void)
{
    static const struct api api = {
        .read = read_completions, .begin = begin, .progress = progress, .text = text,
        .token = token, .choice = choice, .end = end, .broken = broken, .ping = sse_comment,
        .close = close_state,
    };

    return &api;
}
