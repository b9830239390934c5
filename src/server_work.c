/* The two threads behind the one of HTTP: one reads requests, one owns the engine and answers
 * them.  How a body is read and an answer written is the APIs'. */
#include "config.h"

#include "src/request_log.h"
#include "src/server.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

enum {
    IDLE_SECONDS = 1,           /* before what was learned is saved */
    SAVE_SECONDS = 60,          /* the most between two times */
};

/* Experts move while nobody asks, so much at a time: who asks then waits no longer than that. */
static const double slice_seconds = 0.002;

/* The next job to read, or NULL where the threads are to end. */
static struct job *next_read(struct server *s)
{
    struct job *j;

    while (!(j = job_pop(&s->reading)) && !s->stop)
        pthread_cond_wait(&s->to_read, &s->lock);
    return j;
}

void *server_read_jobs(void *server)
{
    struct server *s = server;
    struct job *j;

    pthread_mutex_lock(&s->lock);
    while ((j = next_read(s))) {
        int rc;

        pthread_mutex_unlock(&s->lock);
        rc = j->cancel ? 1 : j->api->read(j);
        if (!rc)
            rc = job_tokenize(j);
        if (rc) {
            job_finish(j);
            pthread_mutex_lock(&s->lock);
            continue;
        }
        pthread_mutex_lock(&s->lock);
        j->stage = JOB_QUEUED;
        job_push(&s->waiting, j);
        pthread_cond_signal(&s->to_answer);
        j->ready = j->stream;
        if (j->ready || j->cancel)
            server_tell(s, j, true);
        if (j->cancel) {
            job_remove(&s->waiting, j);
            j->stage = JOB_DONE;
        }
    }
    pthread_mutex_unlock(&s->lock);
    return NULL;
}

/* What the engine alone knows, for those who ask on other threads. */
static void look(struct server *s)
{
    const struct popularity *p = engine_popularity(s->engine);
    int experts = s->model->shape.experts;

    s->looked = clock_now();
    pthread_mutex_lock(&s->lock);
    s->counters.tiers = engine_tiers(s->engine);
    s->counters.vram = engine_vram(s->engine);
    for (int i = 0; i < s->sessions; i++)
        s->session_length[i] = kept_length(s->kept, i);
    for (int i = 0; p && i < p->layers; i++)
        for (int k = 0; k < p->experts; k++)
            s->share[i * experts + k] = policy_score(&p->layer[i], k);
    pthread_mutex_unlock(&s->lock);
}

static void on_progress(void *job, int done, int total)
{
    struct job *j = job;

    pthread_mutex_lock(&j->server->lock);
    j->done = done;
    j->total = total;
    pthread_mutex_unlock(&j->server->lock);
    if (j->stream && j->api->progress) {
        j->api->progress(j, done, total);
        if (j->pending.n)
            job_flush(j, true);
    }
}

static void on_event(void *job, const struct event *v, const struct message *m)
{
    struct job *j = job;

    if (j->stream)
        j->api->event(j, v, m);
}

static void on_text(void *job, const char *text, size_t n)
{
    struct job *j = job;

    if (j->stream)
        j->api->text(j, text, n);
}

static void on_token(void *job, const struct reply_token *t)
{
    struct job *j = job;
    double now = clock_now();
    bool first = !j->first;

    if (first)
        j->first = now;
    if (now - j->server->looked > 1)
        look(j->server);
    if (!j->stream)
        return;
    if (j->api->token)
        j->api->token(j, t);
    if (j->pending.n)
        job_flush(j, first);
}

/* The GPU has failed, and nothing can be computed any more.  What was learned is saved, who waits
 * hears of it in answer_job(), and the HTTP thread ends the server. */
static void lose(struct server *s, int rc, const struct err *why)
{
    engine_save(s->engine);
    pthread_mutex_lock(&s->lock);
    s->rc = rc;
    s->why = *why;
    s->state = SERVER_LOST;
    s->unsaved = false;
    server_wake(s);
    pthread_mutex_unlock(&s->lock);
}

static void count(struct job *j, const struct answer *a)
{
    struct counters *c = &j->server->counters;
    const struct generation *m = &a->made;

    pthread_mutex_lock(&j->server->lock);
    c->finished[m->finish]++;
    c->prompt_tokens += (uint64_t)m->prompt_n;
    c->cached_tokens += (uint64_t)m->cached_n;
    c->predicted_tokens += m->ids.n;
    c->prompt_seconds += m->prompt_seconds;
    c->predicted_seconds += m->predicted_seconds;
    c->queue_seconds += j->started - j->arrived;
    if (j->first) {
        c->first_seconds += j->first - j->arrived;
        c->firsts++;
    }
    pthread_mutex_unlock(&j->server->lock);
}

/* --prefix-debug: the first byte at which the prompt is not what the session holds. */
static void show_prefix(struct server *s, int chosen, const struct ids *prompt, int common)
{
    const struct session *session = kept_session(s->kept, chosen);
    const int32_t *have = session_tokens(session);
    const char *ours = "", *theirs = "";
    size_t byte = 0, n = 0, m = 0, i = 0;

    for (int k = 0; k < common; k++) {
        tokenizer_bytes(s->tokenizer, have[k], &n);
        byte += n;
    }
    n = 0;
    if (common < session_length(session))
        ours = tokenizer_bytes(s->tokenizer, have[common], &n);
    if (common < (int)prompt->n)
        theirs = tokenizer_bytes(s->tokenizer, prompt->id[common], &m);
    while (ours && theirs && i < n && i < m && ours[i] == theirs[i])
        i++;
    warn(&s->o->log, "prefix: session %d has %d of the prompt's %zu tokens, up to byte %zu; then "
         "it has '%.*s' and the prompt '%.*s'", chosen, common, prompt->n, byte + i, (int)n,
         ours ? ours : "", (int)m, theirs ? theirs : "");
}

static void log_choice(const struct job *j, const struct answer *a)
{
    static const char *const end[] = { "stop", "length", "cancelled" };
    const struct generation *m = &a->made;
    const struct request_entry entry = {
        .id = j->id, .path = j->path, .end = j->failed ? j->error.code : end[m->finish],
        .prompt = m->prompt_n, .cached = m->cached_n, .predicted = (int)m->ids.n,
        .queue_seconds = j->started - j->arrived, .prompt_seconds = m->prompt_seconds,
        .predicted_seconds = m->predicted_seconds,
    };

    request_log(j->server->o, &entry);
}

/* One choice of a job: 0; 1 where the client has left. */
static int answer_choice(struct job *j, const struct answer_hooks *hooks)
{
    struct server *s = j->server;
    struct choice *c = &j->choice[j->at];
    struct answer a = { .q = &c->q };
    struct err e;
    int common, rc, chosen = kept_choose(s->kept, c->prompt.id, (int)c->prompt.n, &common);

    pthread_mutex_lock(&s->lock);
    s->session = chosen;
    pthread_mutex_unlock(&s->lock);
    if (s->o->prefix_debug)
        show_prefix(s, chosen, &c->prompt, common);
    rc = answer_run(&a, kept_session(s->kept, chosen), &c->q, &c->prompt, s->o, hooks, &e);
    look(s);
    count(j, &a);
    if (!rc)
        recall_keep(s->recall, &a);
    if (rc)
        job_fail(j, rc, &e);
    else if (a.made.finish == FINISH_CANCELLED)
        rc = 1;
    else
        j->api->choice(j, &a);
    if (rc == -EREMOTEIO)
        lose(s, rc, &e);
    log_choice(j, &a);
    answer_free(&a);
    return rc;
}

static void answer_job(struct job *j)
{
    const struct answer_hooks hooks = { on_progress, on_event, on_text, on_token, j, &j->cancel };
    int rc = j->server->rc;

    j->started = clock_now();
    if (rc)
        job_fail(j, rc, &j->server->why);
    if (j->stream && j->api->begin) {
        j->api->begin(j);
        job_flush(j, true);
    }
    for (j->at = 0; j->at < j->choices && !rc; j->at++) {
        rc = answer_choice(j, &hooks);
        if (rc)
            break;
    }
    if (rc == 1 && !j->failed)
        job_refuse(j, 503, "draining", "the server is shutting down");
    if (!rc)
        j->api->end(j);
    else if (j->stream)
        j->api->broken(j);
}

static int open_engine(struct server *s)
{
    int rc = engine_open(&s->engine, s->o, &s->why);

    if (!rc)
        rc = kept_open(&s->kept, s->engine, s->o->sessions, &s->o->log, &s->why);
    if (!rc) {
        const struct shape *shape = &engine_model(s->engine)->shape;

        s->share = calloc((size_t)shape->sparse_layers * (size_t)shape->experts + 1,
                          sizeof(*s->share));
        rc = s->share ? 0 : fail(&s->why, -ENOMEM, "out of memory");
    }
    pthread_mutex_lock(&s->lock);
    if (!rc) {
        s->sessions = kept_sessions(s->kept);
        s->tokenizer = engine_tokenizer(s->engine);
        s->model = engine_model(s->engine);
        s->context = engine_context(s->engine);
    }
    s->rc = rc;
    if (s->state == SERVER_LOADING)
        s->state = rc ? SERVER_ENDED : SERVER_READY;
    server_wake(s);
    pthread_mutex_unlock(&s->lock);
    return rc;
}

/* Under the lock, which it gives up meanwhile. */
static void save(struct server *s)
{
    pthread_mutex_unlock(&s->lock);
    engine_save(s->engine);
    pthread_mutex_lock(&s->lock);
    s->saved = clock_now();
    s->unsaved = false;
}

/* Under the lock, which it gives up meanwhile: fill VRAM and RAM a little; `again`, since there
 * was more to do.  Whether there is more. */
static bool warm(struct server *s, bool again)
{
    struct err why;
    int rc = 0;

    pthread_mutex_unlock(&s->lock);
    if (!s->rc)
        rc = engine_idle(s->engine, slice_seconds, &why);
    if (rc < 0)
        lose(s, rc, &why);
    if ((again && rc <= 0) || clock_now() - s->looked > 1)
        look(s);
    pthread_mutex_lock(&s->lock);
    return rc > 0;
}

/* Under the lock: until there is news for the engine, or for `seconds`; 0: for ever. */
static void wait_for_news(struct server *s, double seconds)
{
    struct timespec until;
    long ns;

    if (s->waiting.first || s->stop)
        return;
    if (!(seconds > 0)) {
        pthread_cond_wait(&s->to_answer, &s->lock);
        return;
    }
    clock_gettime(CLOCK_MONOTONIC, &until);
    ns = until.tv_nsec + (long)(seconds * 1e9);
    until.tv_sec += ns / 1000000000;
    until.tv_nsec = ns % 1000000000;
    pthread_cond_clockwait(&s->to_answer, &s->lock, CLOCK_MONOTONIC, &until);
}

/* The next job for the engine, or NULL at the end.  What was learned is saved while nobody asks,
 * since a write to the drive takes longer than a token; and now and then where somebody always
 * does. */
static struct job *next_answer(struct server *s)
{
    double since = clock_now();
    bool more = true, again = false;
    struct job *j;

    if (s->unsaved && since - s->saved > SAVE_SECONDS)
        save(s);
    while (!(j = job_pop(&s->waiting)) && !s->stop) {
        if (s->unsaved && clock_now() - since > IDLE_SECONDS)
            save(s);
        again = more = more && warm(s, again);
        wait_for_news(s, more ? slice_seconds : s->unsaved ? IDLE_SECONDS : 0);
    }
    return j;
}

/* Under the lock: until no job is left, which may still hold parts of the engine. */
static void wait_for_closing(struct server *s)
{
    s->answered = true;
    pthread_cond_broadcast(&s->to_end);
    while (!s->closing)
        pthread_cond_wait(&s->to_end, &s->lock);
}

void *server_answer_jobs(void *server)
{
    struct server *s = server;
    bool open = !open_engine(s);
    struct job *j;

    pthread_mutex_lock(&s->lock);
    while (open && (j = next_answer(s))) {
        j->stage = JOB_RUNNING;
        s->running = j;
        pthread_mutex_unlock(&s->lock);
        answer_job(j);
        pthread_mutex_lock(&s->lock);
        s->running = NULL;
        s->unsaved = !s->rc;
        pthread_mutex_unlock(&s->lock);
        job_finish(j);
        pthread_mutex_lock(&s->lock);
    }
    wait_for_closing(s);
    pthread_mutex_unlock(&s->lock);
    kept_close(s->kept);
    engine_close(s->engine);
    return NULL;
}
