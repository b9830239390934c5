#include "src/api.h"
#include "src/convert.h"
#include "src/server.h"
#include "src/sse.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

/* OpenAI's /responses.  An answer is a list of items: thoughts, text, calls.  A stream tells of
 * each as it grows and once more as a whole. */

enum item { ITEM_NONE, ITEM_REASONING, ITEM_MESSAGE, ITEM_CALL };

struct responses {
    int sequence;               /* number of the next event */
    enum item open;
    int index;                  /* of the item that is open, or of the next one */
    char id[40];                /* of the item that is open */
    char call_id[32];
    struct text name, text;     /* of the item that is open: text or arguments so far */
    struct text items;          /* the finished ones, between commas */
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
    const struct request *q;

    if (!body)
        return refuse(j, &e);
    text_free(&j->body);
    chat = convert_responses(body, &e);
    if (!chat) {
        cJSON_Delete(body);
        return refuse(j, &e);
    }
    if (job_choices(j, 1)) {
        cJSON_Delete(chat);
        return -EBADMSG;
    }
    q = &j->choice[0].q;
    recall_calls(j->server->recall, cJSON_GetObjectItemCaseSensitive(chat, "messages"));
    if (request_read(&j->choice[0].q, chat, j->server->model->shape.vocab, &e))
        return refuse(j, &e);
    j->stream = q->stream;
    j->state = calloc(1, sizeof(struct responses));
    return j->state ? 0 : job_refuse(j, 503, "out_of_memory", "out of memory");
}

static struct text *start_event(struct job *j, const char *name)
{
    struct responses *r = j->state;

    sse_begin(&j->pending, name);
    text_printf(&j->pending, "{\"type\":\"%s\",\"sequence_number\":%d", name, r->sequence++);
    return &j->pending;
}

static void end_event(struct job *j)
{
    text_puts(&j->pending, "}");
    sse_end(&j->pending);
}

/* An event about the part of the item that is open. */
static struct text *start_part(struct job *j, const char *name)
{
    const struct responses *r = j->state;
    struct text *out = start_event(j, name);

    text_printf(out, ",\"item_id\":\"%s\",\"output_index\":%d", r->id, r->index);
    if (r->open != ITEM_CALL)
        text_puts(out, ",\"content_index\":0");
    return out;
}

static void add_part(struct text *out, enum item kind, const char *s, size_t n)
{
    text_printf(out, "{\"type\":\"%s\",\"text\":",
                kind == ITEM_REASONING ? "reasoning_text" : "output_text");
    text_json_bytes(out, s, n);
    text_puts(out, kind == ITEM_REASONING ? "}" : ",\"annotations\":[],\"logprobs\":[]}");
}

/* The item that is open, as it is now. */
static void add_item(struct text *out, const struct responses *r, bool whole)
{
    const char *text = r->text.n ? r->text.s : "";
    const char *status = whole ? "completed" : "in_progress";

    text_printf(out, "{\"id\":\"%s\",\"status\":\"%s\",", r->id, status);
    if (r->open == ITEM_CALL) {
        text_printf(out, "\"type\":\"function_call\",\"call_id\":\"%s\",\"name\":", r->call_id);
        text_json_bytes(out, r->name.s, r->name.n);
        text_puts(out, ",\"arguments\":");
        text_json_bytes(out, text, r->text.n);
        text_puts(out, "}");
        return;
    }
    text_puts(out, r->open == ITEM_REASONING ? "\"type\":\"reasoning\",\"summary\":[],\"content\":["
              : "\"type\":\"message\",\"role\":\"assistant\",\"content\":[");
    if (whole)
        add_part(out, r->open, text, r->text.n);
    text_puts(out, "]}");
}

/* Keep the item that is open among the finished ones. */
static void keep_item(struct responses *r)
{
    text_puts(&r->items, r->items.n ? "," : "");
    add_item(&r->items, r, true);
    r->open = ITEM_NONE;
    r->index++;
}

static void close_item(struct job *j)
{
    struct responses *r = j->state;
    struct text *out;

    if (r->open == ITEM_NONE)
        return;
    out = start_part(j, r->open == ITEM_CALL ? "response.function_call_arguments.done"
                     : r->open == ITEM_MESSAGE ? "response.output_text.done"
                     : "response.reasoning_text.done");
    text_puts(out, r->open == ITEM_CALL ? ",\"arguments\":" : ",\"text\":");
    text_json_bytes(out, r->text.n ? r->text.s : "", r->text.n);
    end_event(j);
    if (r->open != ITEM_CALL) {
        text_puts(start_part(j, "response.content_part.done"), ",\"part\":");
        add_part(out, r->open, r->text.n ? r->text.s : "", r->text.n);
        end_event(j);
    }
    text_printf(start_event(j, "response.output_item.done"), ",\"output_index\":%d,\"item\":",
                r->index);
    add_item(out, r, true);
    end_event(j);
    keep_item(r);
}

/* The item that is to come, without a word to anybody. */
static void set_item(struct responses *r, enum item kind)
{
    static const char *const prefix[] = { "", "rs_", "msg_", "fc_" };
    char id[32];

    message_id(id, prefix[kind]);
    snprintf(r->id, sizeof(r->id), "%s", id);
    r->open = kind;
    r->text.n = r->name.n = 0;
}

/* r->name and r->call_id are set already where it is a call. */
static void open_item(struct job *j)
{
    struct responses *r = j->state;
    struct text *out = start_event(j, "response.output_item.added");

    text_printf(out, ",\"output_index\":%d,\"item\":", r->index);
    add_item(out, r, false);
    end_event(j);
    if (r->open == ITEM_CALL)
        return;
    text_puts(start_part(j, "response.content_part.added"), ",\"part\":");
    add_part(out, r->open, "", 0);
    end_event(j);
}

static void add_delta(struct job *j, const char *name, const char *s, size_t n)
{
    struct responses *r = j->state;
    struct text *out = start_part(j, name);

    text_add(&r->text, s, n);
    text_puts(out, ",\"delta\":");
    text_json_bytes(out, s, n);
    end_event(j);
}

static void write_text(struct job *j, enum item kind, const struct event *v)
{
    struct responses *r = j->state;

    if (r->open != kind) {
        close_item(j);
        set_item(r, kind);
        open_item(j);
    }
    add_delta(j, kind == ITEM_MESSAGE ? "response.output_text.delta"
              : "response.reasoning_text.delta", v->s, v->n);
}

static void event(struct job *j, const struct event *v, const struct message *m)
{
    struct responses *r = j->state;

    switch (v->kind) {
    case EVENT_REASONING:
        write_text(j, ITEM_REASONING, v);
        break;
    case EVENT_CONTENT:
        write_text(j, ITEM_MESSAGE, v);
        break;
    case EVENT_CALL:
        close_item(j);
        set_item(r, ITEM_CALL);
        text_add(&r->name, v->s, v->n);
        snprintf(r->call_id, sizeof(r->call_id), "%s", m->call[m->calls - 1].id);
        open_item(j);
        break;
    case EVENT_ARGUMENTS:
        add_delta(j, "response.function_call_arguments.delta", v->s, v->n);
        break;
    case EVENT_CALL_END:
        close_item(j);
        break;
    case EVENT_CALL_BROKEN:
        /* It is not among the finished ones, which are what counts. */
        r->open = ITEM_NONE;
        r->index++;
        break;
    }
}

static void keep_text(struct responses *r, enum item kind, const struct text *t)
{
    set_item(r, kind);
    text_add(&r->text, t->n ? t->s : "", t->n);
    keep_item(r);
}

/* The items of an answer that is not streamed. */
static void keep_items(struct responses *r, const struct message *m)
{
    if (m->reasoning.n)
        keep_text(r, ITEM_REASONING, &m->reasoning);
    if (m->content.n || (!m->calls && !m->reasoning.n))
        keep_text(r, ITEM_MESSAGE, &m->content);
    for (int i = 0; i < m->calls; i++) {
        const struct call *c = &m->call[i];

        set_item(r, ITEM_CALL);
        text_add(&r->name, c->name.s, c->name.n);
        snprintf(r->call_id, sizeof(r->call_id), "%s", c->id);
        text_add(&r->text, c->arguments.n ? c->arguments.s : "", c->arguments.n);
        keep_item(r);
    }
}

/* a: NULL while nothing is known yet; status of a response that failed: "failed". */
static void add_response(struct job *j, const char *status, const struct answer *a)
{
    const struct responses *r = j->state;
    const struct request *q = &j->choice[0].q;
    struct text *out = &j->pending;

    text_printf(out, "{\"id\":\"resp_%s\",\"object\":\"response\",\"created_at\":%jd,"
                "\"status\":\"%s\",\"model\":", j->id, (intmax_t)j->created, status);
    text_json_bytes(out, j->server->model_name, strlen(j->server->model_name));
    text_puts(out, ",\"error\":");
    if (j->failed) {
        text_printf(out, "{\"code\":\"%s\",\"message\":", j->error.code);
        text_json_bytes(out, j->error.message, strlen(j->error.message));
        text_puts(out, "}");
    } else {
        text_puts(out, "null");
    }
    text_printf(out, ",\"incomplete_details\":%s,\"instructions\":null,\"metadata\":{},"
                "\"parallel_tool_calls\":%s,\"previous_response_id\":null,\"store\":false,"
                "\"tool_choice\":\"%s\",\"tools\":[],\"output\":[",
                !strcmp(status, "incomplete") ? "{\"reason\":\"max_output_tokens\"}" : "null",
                q->parallel_tool_calls ? "true" : "false",
                q->tool_choice == TOOLS_NONE ? "none" : "auto");
    text_add(out, r->items.n ? r->items.s : "", r->items.n);
    text_puts(out, "],\"usage\":");
    if (a) {
        int prompt = (int)a->prompt->n, made = (int)a->made.ids.n;

        text_printf(out, "{\"input_tokens\":%d,\"input_tokens_details\":{\"cached_tokens\":%d},"
                    "\"output_tokens\":%d,\"output_tokens_details\":{\"reasoning_tokens\":%d},"
                    "\"total_tokens\":%d}", prompt, a->made.cached_n, made, a->reasoning,
                    prompt + made);
    } else {
        text_puts(out, "null");
    }
    text_puts(out, "}");
}

static void add_response_event(struct job *j, const char *name, const char *status,
                               const struct answer *a)
{
    text_puts(start_event(j, name), ",\"response\":");
    add_response(j, status, a);
    end_event(j);
}

static void begin(struct job *j)
{
    add_response_event(j, "response.created", "in_progress", NULL);
    add_response_event(j, "response.in_progress", "in_progress", NULL);
}

static void choice(struct job *j, struct answer *a)
{
    struct responses *r = j->state;
    bool whole = a->made.finish == FINISH_STOP;

    if (!j->stream) {
        keep_items(r, &a->message);
        add_response(j, whole ? "completed" : "incomplete", a);
    } else {
        close_item(j);
        add_response_event(j, whole ? "response.completed" : "response.incomplete",
                           whole ? "completed" : "incomplete", a);
    }
    j->pending.failed |= r->items.failed || r->text.failed || r->name.failed;
}

static void end(struct job *j)
{
    (void)j;
}

static void broken(struct job *j)
{
    add_response_event(j, "response.failed", "failed", NULL);
}

static void close_state(struct job *j)
{
    struct responses *r = j->state;

    if (!r)
        return;
    text_free(&r->name);
    text_free(&r->text);
    text_free(&r->items);
    free(r);
}

const struct api *api_responses(void)
{
    static const struct api api = {
        .read = read_request, .begin = begin, .event = event, .choice = choice, .end = end,
        .broken = broken, .ping = sse_comment, .close = close_state,
    };

    return &api;
}
