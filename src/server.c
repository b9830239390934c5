#include "src/server.h"
#include "src/keys.h"
#include "src/notify.h"
#include "src/request_log.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>

/* Threads, queues and the life of the server.  How a request is read and answered is
 * src/job.c and the APIs. */

enum { DRAINED_STEP = 20 };     /* milliseconds between looks at what still has to go out */

static void push(struct job_queue *q, struct job *j)
{
    j->next_queued = NULL;
    if (q->last)
        q->last->next_queued = j;
    else
        q->first = j;
    q->last = j;
    q->n++;
}

static struct job *pop(struct job_queue *q)
{
    struct job *j = q->first;

    if (!j)
        return NULL;
    q->first = j->next_queued;
    if (!q->first)
        q->last = NULL;
    q->n--;
    return j;
}

static void take_out(struct job_queue *q, struct job *j)
{
    struct job_queue left = { NULL, NULL, 0 };
    struct job *one;

    while ((one = pop(q)))
        if (one != j)
            push(&left, one);
    *q = left;
}

static void wake(struct server *s)
{
    uint64_t one = 1;

    /* It can fail only where the counter is full, and then the thread is awake. */
    if (write(s->wake, &one, sizeof(one)) < 0)
        return;
}

enum server_state server_state(struct server *s)
{
    enum server_state state;

    pthread_mutex_lock(&s->lock);
    state = s->state;
    pthread_mutex_unlock(&s->lock);
    return state;
}

void server_tell(struct server *s, struct job *j)
{
    if (j->told)
        return;
    j->told = true;
    j->next_news = NULL;
    *s->news_end = j;
    s->news_end = &j->next_news;
    wake(s);
}

void server_read(struct server *s, struct job *j)
{
    pthread_mutex_lock(&s->lock);
    s->counters.requests++;
    push(&s->reading, j);
    pthread_cond_signal(&s->to_read);
    pthread_mutex_unlock(&s->lock);
}

void server_cancel(struct server *s, struct job *j)
{
    pthread_mutex_lock(&s->lock);
    j->cancel = 1;
    s->counters.cancelled++;
    if (j->stage == JOB_QUEUED) {
        take_out(&s->waiting, j);
        j->stage = JOB_DONE;
        server_tell(s, j);
    }
    pthread_mutex_unlock(&s->lock);
}

/* The next job of a queue, or NULL where the threads are to end. */
static struct job *wait_job(struct server *s, struct job_queue *q, pthread_cond_t *c)
{
    struct job *j;

    while (!(j = pop(q)) && !s->stop)
        pthread_cond_wait(c, &s->lock);
    return j;
}

static void *read_jobs(void *server)
{
    struct server *s = server;
    struct job *j;

    pthread_mutex_lock(&s->lock);
    while ((j = wait_job(s, &s->reading, &s->to_read))) {
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
        push(&s->waiting, j);
        pthread_cond_signal(&s->to_answer);
        j->ready = j->stream;
        if (j->ready || j->cancel)
            server_tell(s, j);
        if (j->cancel) {
            take_out(&s->waiting, j);
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
            job_flush(j);
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

    if (!j->first)
        j->first = now;
    if (now - j->server->looked > 1)
        look(j->server);
    if (!j->stream)
        return;
    if (j->api->token)
        j->api->token(j, t);
    if (j->pending.n)
        job_flush(j);
}

/* What the engine's errno means for the client. */
static void describe_failure(struct job *j, int rc, const struct err *e)
{
    if (rc == -EBADMSG)
        job_refuse(j, 400, "context_length_exceeded", "%s", e->text);
    else
        job_refuse(j, rc == -ENOMEM ? 503 : 500, rc == -EDOM ? "nonfinite_logits"
                   : rc == -EIO ? "expert_io_error" : rc == -ENOMEM ? "out_of_memory" : "internal",
                   "%s", e->text);
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
        describe_failure(j, rc, &e);
    else if (a.made.finish == FINISH_CANCELLED)
        rc = 1;
    else
        j->api->choice(j, &a);
    log_choice(j, &a);
    answer_free(&a);
    return rc;
}

static void answer_job(struct job *j)
{
    const struct answer_hooks hooks = { on_progress, on_event, on_text, on_token, j, &j->cancel };
    int rc = 0;

    j->started = clock_now();
    if (j->stream && j->api->begin) {
        j->api->begin(j);
        job_flush(j);
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
    wake(s);
    pthread_mutex_unlock(&s->lock);
    return rc;
}

static void *answer_jobs(void *server)
{
    struct server *s = server;
    struct job *j;

    if (open_engine(s))
        return NULL;
    pthread_mutex_lock(&s->lock);
    while ((j = wait_job(s, &s->waiting, &s->to_answer))) {
        j->stage = JOB_RUNNING;
        s->running = j;
        pthread_mutex_unlock(&s->lock);
        answer_job(j);
        pthread_mutex_lock(&s->lock);
        s->running = NULL;
        pthread_mutex_unlock(&s->lock);
        job_finish(j);
        pthread_mutex_lock(&s->lock);
    }
    pthread_mutex_unlock(&s->lock);
    return NULL;
}

/* The engine is open, or never will be. */
static void announce(struct server *s)
{
    static const char *const ready = "READY=1\nSTATUS=Serving";

    if (s->state == SERVER_ENDED) {
        event_base_loopbreak(s->base);
        return;
    }
    if (s->o->log.level > LOG_QUIET)
        fprintf(stderr, "listening on %s\n", http_address(s->http));
    notify(s->o->notify_socket, ready);
}

static void on_wake(evutil_socket_t fd, short what, void *server)
{
    struct server *s = server;
    struct job *j, *next;
    uint64_t times;
    enum server_state state;

    (void)what;
    if (read(fd, &times, sizeof(times)) < 0)
        return;
    pthread_mutex_lock(&s->lock);
    j = s->news;
    s->news = NULL;
    s->news_end = &s->news;
    state = s->state;
    pthread_mutex_unlock(&s->lock);
    if (state != SERVER_LOADING && !s->announced) {
        s->announced = true;
        announce(s);
    }
    for (; j; j = next) {
        next = j->next_news;
        job_deliver(j);
    }
}

static void on_tick(evutil_socket_t fd, short what, void *server)
{
    struct server *s = server;
    struct job *j, *next;
    double now = clock_now();

    (void)fd;
    (void)what;
    for (j = s->jobs; j; j = next) {
        next = j->next;
        job_watch(j, now);
    }
    if (s->o->watchdog)
        notify(s->o->notify_socket, "WATCHDOG=1");
}

static void cancel_all(struct server *s)
{
    pthread_mutex_lock(&s->lock);
    for (struct job *j = s->jobs; j; j = j->next)
        j->cancel = 1;
    pthread_mutex_unlock(&s->lock);
}

/* After the first signal: wait for the jobs, then cancel them, then for their last words. */
static void on_drained(evutil_socket_t fd, short what, void *server)
{
    struct server *s = server;
    double waited = clock_now() - s->draining_since;

    (void)fd;
    (void)what;
    if (waited > s->o->drain_seconds)
        cancel_all(s);
    if (!s->jobs && (!http_backlog(s->http) || waited > s->o->drain_seconds + 1))
        event_base_loopbreak(s->base);
}

static void on_signal(evutil_socket_t sig, short what, void *server)
{
    struct server *s = server;
    struct timeval step = { 0, DRAINED_STEP * 1000 };

    (void)what;
    if (s->signals++) {
        signal((int)sig, SIG_DFL);
        raise((int)sig);
    }
    notify(s->o->notify_socket, "STOPPING=1");
    http_refuse_new(s->http);
    pthread_mutex_lock(&s->lock);
    s->state = SERVER_DRAINING;
    pthread_mutex_unlock(&s->lock);
    s->draining_since = clock_now();
    s->on_drained = event_new(s->base, -1, EV_PERSIST, on_drained, s);
    event_add(s->on_drained, &step);
}

/* SIGHUP: the keys are read again; a file that has become unreadable leaves the old ones. */
static void on_reload(evutil_socket_t sig, short what, void *server)
{
    struct server *s = server;
    struct err e;

    (void)sig;
    (void)what;
    notify(s->o->notify_socket, "RELOADING=1");
    if (keys_load(&s->keys, s->o, &e))
        warn(&s->o->log, "the keys stay as they are: %s", e.text);
    notify(s->o->notify_socket, "READY=1");
}

static int open_http(struct server *s, struct err *e)
{
    const struct options *o = s->o;
    struct http_config c = {
        .host = o->host, .port = o->port, .keys = &s->keys, .cors = o->cors_origins,
        .limits = o->limits, .each = route, .arg = s, .log = &s->o->log,
    };
    int rc = keys_load(&s->keys, o, e);

    return rc ? rc : http_open(&s->http, s->base, &c, o->listen_fds, e);
}

static int open_events(struct server *s, struct err *e)
{
    static const int ends[] = { SIGTERM, SIGINT };
    struct timeval second = { 1, 0 };
    struct event *v;

    s->base = event_base_new();
    s->wake = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    if (!s->base || s->wake < 0)
        return fail(e, -ENOMEM, "cannot wait for events: %s", strerror(errno));
    for (int i = 0; i < 2; i++) {
        v = s->signal[i] = evsignal_new(s->base, ends[i], on_signal, s);
        event_add(v, NULL);
    }
    s->signal[2] = evsignal_new(s->base, SIGHUP, on_reload, s);
    event_add(s->signal[2], NULL);
    s->on_wake = event_new(s->base, s->wake, EV_READ | EV_PERSIST, on_wake, s);
    event_add(s->on_wake, NULL);
    s->on_tick = event_new(s->base, -1, EV_PERSIST, on_tick, s);
    event_add(s->on_tick, &second);
    return 0;
}

/* Signals are for the thread that waits for events. */
static int start_threads(struct server *s, struct err *e)
{
    void *(*const run[])(void *) = { answer_jobs, read_jobs };
    sigset_t all, before;
    int rc = 0;

    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    for (int i = 0; i < 2 && !rc; i++) {
        rc = pthread_create(&s->thread[i], NULL, run[i], s);
        s->threads += !rc;
    }
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return rc ? fail(e, -EAGAIN, "cannot start a thread: %s", strerror(rc)) : 0;
}

static void stop_threads(struct server *s)
{
    cancel_all(s);
    pthread_mutex_lock(&s->lock);
    s->stop = true;
    pthread_cond_broadcast(&s->to_read);
    pthread_cond_broadcast(&s->to_answer);
    pthread_mutex_unlock(&s->lock);
    for (int i = 0; i < s->threads; i++)
        pthread_join(s->thread[i], NULL);
}

static void close_all(struct server *s)
{
    struct event *events[] = { s->on_wake, s->on_tick, s->on_drained, s->signal[0], s->signal[1],
                               s->signal[2] };

    stop_threads(s);
    while (s->jobs) {
        s->jobs->conn = NULL;
        s->jobs->stage = JOB_DONE;
        job_deliver(s->jobs);
    }
    http_close(s->http);
    for (size_t i = 0; i < sizeof(events) / sizeof(*events); i++)
        if (events[i])
            event_free(events[i]);
    if (s->base)
        event_base_free(s->base);
    if (s->wake >= 0)
        close(s->wake);
    kept_close(s->kept);
    engine_close(s->engine);
    free(s->share);
    recall_close(s->recall);
    keys_free(&s->keys);
}

int server_run(struct options *o, struct err *e)
{
    struct server s = { .o = o, .wake = -1, .started = time(NULL), .opened = clock_now() };
    int rc;

    pthread_mutex_init(&s.lock, NULL);
    pthread_cond_init(&s.to_read, NULL);
    pthread_cond_init(&s.to_answer, NULL);
    s.news_end = &s.news;
    if (o->alias)
        snprintf(s.model_name, sizeof(s.model_name), "%s", o->alias);
    else
        answer_model(s.model_name, o->model_dir);
    rc = recall_open(&s.recall, e);
    if (!rc)
        rc = open_events(&s, e);
    if (!rc)
        rc = open_http(&s, e);
    if (!rc)
        rc = start_threads(&s, e);
    if (!rc)
        event_base_dispatch(s.base);
    close_all(&s);
    if (!rc && s.rc) {
        *e = s.why;
        rc = s.rc;
    }
    return rc;
}
