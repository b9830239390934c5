#include "src/server.h"
#include "src/sse.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

/* A request's way between the threads.  What an answer looks like is the API's. */

enum {
    PING_SECONDS = 5,
    BACKLOG_BYTES = 1 << 20,    /* of a stream that the client has not taken */
    STUCK_SECONDS = 30,
    RETRY_SECONDS = 5,          /* what a 503 asks for */
    OTHERS_MOST = 64,           /* requests that need no engine, at a time */
};

static void job_free(struct job *j)
{
    struct server *s = j->server;

    if (j->previous)
        j->previous->next = j->next;
    else
        s->jobs = j->next;
    if (j->next)
        j->next->previous = j->previous;
    *(j->generates ? &s->generating : &s->others) -= 1;
    if (j->api->close)
        j->api->close(j);
    for (int i = 0; i < j->choices; i++) {
        request_free(&j->choice[i].q);
        free(j->choice[i].prompt.id);
    }
    free(j->choice);
    text_free(&j->body);
    text_free(&j->pending);
    text_free(&j->out);
    free(j);
}

static void on_gone(void *arg)
{
    struct job *j = arg;

    j->conn = NULL;
    server_cancel(j->server, j);
}

/* NULL where the request was refused. */
static struct job *admit(struct server *s, struct conn *c, bool generates)
{
    struct request_error e = { .status = 503, .type = "server_error", .code = "loading" };
    struct job *j = NULL;
    enum server_state state = server_state(s);
    int most = generates ? s->o->queue + 1 : OTHERS_MOST;
    int retry = RETRY_SECONDS;

    if (state != SERVER_READY) {
        e.code = state == SERVER_LOADING ? "loading" : state == SERVER_LOST ? "gpu_fault"
               : "draining";
        snprintf(e.message, sizeof(e.message), "%s", state == SERVER_LOADING ? "Loading model"
                 : state == SERVER_LOST ? "the GPU has failed; the server ends"
                 : "the server is shutting down");
    } else if ((generates ? s->generating : s->others) >= most) {
        e.status = 429;
        e.type = "rate_limit_error";
        e.code = "queue_full";
        retry = 1;
        snprintf(e.message, sizeof(e.message), "the queue is full: %d requests wait (--queue)",
                 most - 1);
    } else {
        j = calloc(1, sizeof(*j));
        e.code = "out_of_memory";
        snprintf(e.message, sizeof(e.message), "out of memory");
    }
    if (!j) {
        pthread_mutex_lock(&s->lock);
        s->counters.refused++;
        pthread_mutex_unlock(&s->lock);
        http_reply_error(c, &e, retry);
    }
    return j;
}

void job_start(struct server *s, struct conn *c, const struct api *api, bool generates)
{
    struct job *j = admit(s, c, generates);
    struct text *body = conn_body(c);

    if (!j)
        return;
    j->server = s;
    j->api = api;
    j->conn = c;
    j->generates = generates;
    j->body = *body;
    *body = (struct text){ .s = NULL };
    j->created = time(NULL);
    j->arrived = j->written = clock_now();
    http_path(c, j->path, sizeof(j->path));
    message_id(j->id, "");
    j->next = s->jobs;
    if (j->next)
        j->next->previous = j;
    s->jobs = j;
    *(generates ? &s->generating : &s->others) += 1;
    conn_on_gone(c, on_gone, j);
    server_read(s, j);
}

/* What there is to say of a job that is silent; its place in the queue counts from 1. */
static void describe(struct job *j, char *out, size_t n)
{
    struct server *s = j->server;
    int place = 1;

    pthread_mutex_lock(&s->lock);
    for (struct job *w = s->waiting.first; w && w != j; w = w->next_queued)
        place++;
    if (j->stage == JOB_QUEUED)
        snprintf(out, n, "queued, place %d", place);
    else if (j->stage == JOB_RUNNING && j->done < j->total)
        snprintf(out, n, "prefill %d/%d", j->done, j->total);
    else
        snprintf(out, n, "working");
    pthread_mutex_unlock(&s->lock);
}

/* The first words of a stream, which every reader of events skips. */
static void say_place(struct job *j)
{
    struct text first = { NULL, 0, 0, false };
    char words[64];

    describe(j, words, sizeof(words));
    sse_comment(&first, words);
    if (!first.failed)
        conn_stream_write(j->conn, first.s, first.n);
    text_free(&first);
    j->written = clock_now();
}

/* The client's part of the job ends here. */
static void deliver_end(struct job *j, const struct text *out)
{
    struct conn *c = j->conn;

    j->conn = NULL;
    if (j->begun && j->failed)
        conn_stream_break(c);
    else if (j->begun)
        conn_stream_end(c);
    else if (j->failed)
        http_reply_error(c, &j->error, j->error.status == 503 ? RETRY_SECONDS : 0);
    else
        http_reply(c, 200, "application/json", out);
}

void job_deliver(struct job *j)
{
    struct server *s = j->server;
    struct text out;
    bool done, ready;

    pthread_mutex_lock(&s->lock);
    out = j->out;
    j->out = (struct text){ .s = NULL };
    j->told = false;
    done = j->stage == JOB_DONE;
    ready = j->ready;
    pthread_mutex_unlock(&s->lock);
    if (j->conn && ready && !j->begun) {
        conn_stream_begin(j->conn, "text/event-stream");
        j->begun = true;
        say_place(j);
    }
    if (j->conn && j->begun && out.n) {
        conn_stream_write(j->conn, out.s, out.n);
        j->written = clock_now();
    }
    if (j->conn && done)
        deliver_end(j, &out);
    text_free(&out);
    if (done)
        job_free(j);
}

void job_watch(struct job *j, double now)
{
    struct text ping = { NULL, 0, 0, false };
    char words[64];
    double stuck;
    size_t backlog;

    if (!j->conn || !j->begun)
        return;
    backlog = conn_backlog(j->conn, &stuck);
    if (backlog > BACKLOG_BYTES || (backlog && stuck > STUCK_SECONDS)) {
        conn_drop(j->conn);
        on_gone(j);
        return;
    }
    if (now - j->written < PING_SECONDS || !j->api->ping)
        return;
    describe(j, words, sizeof(words));
    j->api->ping(&ping, words);
    if (!ping.failed)
        conn_stream_write(j->conn, ping.s, ping.n);
    text_free(&ping);
    j->written = now;
}

void job_flush(struct job *j, bool at_once)
{
    struct server *s = j->server;

    pthread_mutex_lock(&s->lock);
    if (j->pending.n && !j->out.n) {
        struct text empty = j->out;

        j->out = j->pending;
        j->pending = empty;
    } else if (j->pending.n) {
        text_add(&j->out, j->pending.s, j->pending.n);
    }
    j->out.failed |= j->pending.failed;
    server_tell(s, j, at_once);
    pthread_mutex_unlock(&s->lock);
    j->pending.n = 0;
}

void job_finish(struct job *j)
{
    struct server *s = j->server;

    pthread_mutex_lock(&s->lock);
    text_add(&j->out, j->pending.s ? j->pending.s : "", j->pending.n);
    j->out.failed |= j->pending.failed;
    j->stage = JOB_DONE;
    s->counters.failed += j->failed && !j->cancel;
    server_tell(s, j, true);
    pthread_mutex_unlock(&s->lock);
}

int job_refuse(struct job *j, int status, const char *code, const char *fmt, ...)
{
    va_list ap;

    j->failed = true;
    j->error = (struct request_error){
        .status = status, .code = code,
        .type = status < 500 ? "invalid_request_error" : "server_error",
    };
    va_start(ap, fmt);
    vsnprintf(j->error.message, sizeof(j->error.message), fmt, ap);
    va_end(ap);
    return -EBADMSG;
}

int job_fail(struct job *j, int rc, const struct err *e)
{
    j->failed = true;
    answer_error(&j->error, rc, e);
    return -EBADMSG;
}

int job_choices(struct job *j, int n)
{
    j->choice = calloc((size_t)n, sizeof(*j->choice));
    if (!j->choice)
        return job_refuse(j, 503, "out_of_memory", "out of memory");
    j->choices = n;
    return 0;
}

int job_tokenize(struct job *j)
{
    struct server *s = j->server;
    struct err e;

    for (int i = 0; i < j->choices; i++) {
        struct choice *c = &j->choice[i];
        int rc = c->q.chat ? recall_encode(s->recall, &c->q.prompt, s->tokenizer, &c->prompt, &e)
                 : answer_prompt(&c->q, s->tokenizer, &s->model->shape, &c->prompt, &e);

        if (rc)
            return job_fail(j, rc, &e);
        if (c->prompt.n <= (size_t)s->context)
            continue;
        job_fail(j, fail(&e, -E2BIG, "the request (%zu tokens) exceeds the available context size "
                         "(%d tokens)", c->prompt.n, s->context), &e);
        snprintf(j->error.param, sizeof(j->error.param), c->q.chat ? "messages" : "prompt");
        j->error.n_prompt_tokens = c->prompt.n;
        j->error.n_ctx = s->context;
        return -EBADMSG;
    }
    return 0;
}
