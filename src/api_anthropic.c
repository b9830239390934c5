#include "src/api.h"
#include "src/convert.h"
#include "src/server.h"
#include "src/sse.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

/* Anthropic's /messages.  Streams are blocks of content, one open at a time, and every event
 * has its name on the wire too. */

enum block { BLOCK_NONE, BLOCK_THINKING, BLOCK_TEXT, BLOCK_TOOL };

struct anthropic {
    enum block open;
    int index;                  /* of the block that is open, or of the next one */
    bool started;               /* message_start is written */
    int cached;
};

static int refuse(struct job *j, const struct request_error *e)
{
    j->failed = true;
    j->error = *e;
    return -EBADMSG;
}

static int read_request(struct job *j)
{
    struct request_error e;
    cJSON *body = request_object(j->body.s, j->body.n, &e), *chat;

    if (!body)
        return refuse(j, &e);
    text_free(&j->body);
    chat = convert_messages(body, &e);
    if (!chat) {
        cJSON_Delete(body);
        return refuse(j, &e);
    }
    if (job_choices(j, 1)) {
        cJSON_Delete(chat);
        return -EBADMSG;
    }
    recall_calls(j->server->recall, cJSON_GetObjectItemCaseSensitive(chat, "messages"));
    if (request_read(&j->choice[0].q, chat, j->server->model->shape.vocab, &e))
        return refuse(j, &e);
    return 0;
}

static int read_messages(struct job *j)
{
    int rc = read_request(j);

    if (rc)
        return rc;
    j->stream = j->choice[0].q.stream;
    j->state = calloc(1, sizeof(struct anthropic));
    return j->state ? 0 : job_refuse(j, 503, "out_of_memory", "out of memory");
}

static int read_count(struct job *j)
{
    int rc = read_request(j);

    if (!rc)
        rc = job_tokenize(j);
    if (rc)
        return rc;
    text_printf(&j->pending, "{\"input_tokens\":%zu}", j->choice[0].prompt.n);
    return 1;
}

static void add_string(struct text *out, const char *s)
{
    text_json_bytes(out, s, strlen(s));
}

/* What was found in a session is not counted as input here. */
static void add_usage(struct text *out, int prompt, int cached, int completion)
{
    text_printf(out, "{\"input_tokens\":%d,\"cache_creation_input_tokens\":0,"
                "\"cache_read_input_tokens\":%d,\"output_tokens\":%d}", prompt - cached, cached,
                completion);
}

/* The message's fields in front of its content. */
static void add_head(struct job *j)
{
    text_printf(&j->pending, "{\"id\":\"msg_%s\",\"type\":\"message\",\"role\":\"assistant\","
                "\"model\":", j->id);
    add_string(&j->pending, j->server->model_name);
}

static struct text *start_event(struct job *j, const char *name)
{
    sse_begin(&j->pending, name);
    text_printf(&j->pending, "{\"type\":\"%s\"", name);
    return &j->pending;
}

static void end_event(struct job *j)
{
    text_puts(&j->pending, "}");
    sse_end(&j->pending);
}

/* The message begins once it is known how much of its prompt need not be read again. */
static void progress(struct job *j, int done, int total)
{
    struct anthropic *a = j->state;
    struct text *out;

    if (a->started)
        return;
    a->started = true;
    a->cached = done;
    out = start_event(j, "message_start");
    text_puts(out, ",\"message\":");
    add_head(j);
    text_puts(out, ",\"content\":[],\"stop_reason\":null,\"stop_sequence\":null,\"usage\":");
    add_usage(out, total, a->cached, 0);
    text_puts(out, "}");
    end_event(j);
}

static void close_block(struct job *j)
{
    struct anthropic *a = j->state;

    if (a->open == BLOCK_NONE)
        return;
    text_printf(start_event(j, "content_block_stop"), ",\"index\":%d", a->index++);
    end_event(j);
    a->open = BLOCK_NONE;
}

/* Open a block of this kind; the caller writes what it begins with and ends the event. */
static struct text *open_block(struct job *j, enum block kind)
{
    struct anthropic *a = j->state;
    struct text *out;

    close_block(j);
    a->open = kind;
    out = start_event(j, "content_block_start");
    text_printf(out, ",\"index\":%d,\"content_block\":", a->index);
    return out;
}

static void add_delta(struct job *j, const char *type, const char *key, const char *s, size_t n)
{
    const struct anthropic *a = j->state;
    struct text *out = start_event(j, "content_block_delta");

    text_printf(out, ",\"index\":%d,\"delta\":{\"type\":\"%s\",\"%s\":", a->index, type, key);
    text_json_bytes(out, s, n);
    text_puts(out, "}");
    end_event(j);
}

static void event(struct job *j, const struct event *v, const struct message *m)
{
    struct anthropic *a = j->state;
    struct text *out;

    switch (v->kind) {
    case EVENT_REASONING:
        if (a->open != BLOCK_THINKING) {
            text_puts(open_block(j, BLOCK_THINKING),
                      "{\"type\":\"thinking\",\"thinking\":\"\",\"signature\":\"\"}");
            end_event(j);
        }
        add_delta(j, "thinking_delta", "thinking", v->s, v->n);
        break;
    case EVENT_CONTENT:
        if (a->open != BLOCK_TEXT) {
            text_puts(open_block(j, BLOCK_TEXT), "{\"type\":\"text\",\"text\":\"\"}");
            end_event(j);
        }
        add_delta(j, "text_delta", "text", v->s, v->n);
        break;
    case EVENT_CALL:
        out = open_block(j, BLOCK_TOOL);
        text_printf(out, "{\"type\":\"tool_use\",\"id\":\"%s\",\"name\":",
                    m->call[m->calls - 1].id);
        text_json_bytes(out, v->s, v->n);
        text_puts(out, ",\"input\":{}}");
        end_event(j);
        break;
    case EVENT_ARGUMENTS:
        add_delta(j, "input_json_delta", "partial_json", v->s, v->n);
        break;
    case EVENT_CALL_END:
    case EVENT_CALL_BROKEN:
        close_block(j);
        break;
    }
}

static void add_block(struct job *j, bool *any)
{
    text_puts(&j->pending, *any ? "," : "");
    *any = true;
}

static void add_content(struct job *j, const struct message *m)
{
    struct text *out = &j->pending;
    bool any = false;

    text_puts(out, ",\"content\":[");
    if (m->reasoning.n) {
        add_block(j, &any);
        text_puts(out, "{\"type\":\"thinking\",\"thinking\":");
        text_json_bytes(out, m->reasoning.s, m->reasoning.n);
        text_puts(out, ",\"signature\":\"\"}");
    }
    if (m->content.n || (!m->calls && !m->reasoning.n)) {
        add_block(j, &any);
        text_puts(out, "{\"type\":\"text\",\"text\":");
        text_json_bytes(out, m->content.n ? m->content.s : "", m->content.n);
        text_puts(out, "}");
    }
    for (int i = 0; i < m->calls; i++) {
        const struct call *c = &m->call[i];

        add_block(j, &any);
        text_printf(out, "{\"type\":\"tool_use\",\"id\":\"%s\",\"name\":", c->id);
        text_json_bytes(out, c->name.s, c->name.n);
        text_puts(out, ",\"input\":");
        text_add(out, c->arguments.n ? c->arguments.s : "{}", c->arguments.n ? c->arguments.n : 2);
        text_puts(out, "}");
    }
    text_puts(out, "]");
}

/* "stop_reason":..,"stop_sequence":.. */
static void add_reason(struct text *out, const struct generation *made, int calls)
{
    const char *reason = made->finish != FINISH_STOP ? "max_tokens" : calls ? "tool_use"
                         : made->stop ? "stop_sequence" : "end_turn";

    text_printf(out, "\"stop_reason\":\"%s\",\"stop_sequence\":", reason);
    if (made->finish == FINISH_STOP && made->stop)
        add_string(out, made->stop);
    else
        text_puts(out, "null");
}

static void choice(struct job *j, struct answer *a)
{
    const struct generation *made = &a->made;
    int prompt = (int)a->prompt->n, completion = (int)made->ids.n;
    struct text *out = &j->pending;

    if (!j->stream) {
        add_head(j);
        add_content(j, &a->message);
        text_puts(out, ",");
        add_reason(out, made, a->message.calls);
        text_puts(out, ",\"usage\":");
        add_usage(out, prompt, made->cached_n, completion);
        text_puts(out, "}");
        return;
    }
    close_block(j);
    text_puts(start_event(j, "message_delta"), ",\"delta\":{");
    add_reason(out, made, a->message.calls);
    text_puts(out, "},\"usage\":");
    add_usage(out, prompt, made->cached_n, completion);
    end_event(j);
}

static void end(struct job *j)
{
    if (!j->stream)
        return;
    start_event(j, "message_stop");
    end_event(j);
}

static void broken(struct job *j)
{
    sse_begin(&j->pending, "error");
    http_error_json(&j->pending, j->path, &j->error);
    sse_end(&j->pending);
}

static void ping(struct text *out, const char *words)
{
    sse_comment(out, words);
    sse_begin(out, "ping");
    text_puts(out, "{\"type\":\"ping\"}");
    sse_end(out);
}

static void close_state(struct job *j)
{
    free(j->state);
}

const struct api *api_messages(void)
{
    static const struct api api = {
        .read = read_messages, .progress = progress, .event = event, .choice = choice, .end = end,
        .broken = broken, .ping = ping, .close = close_state,
    };

    return &api;
}

const struct api *api_count_tokens(void)
{
    static const struct api api = { .read = read_count };

    return &api;
}
