#include "src/server.h"
#include "src/api.h"
#include "src/keys.h"
#include "src/notify.h"

#include <errno.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

/* The server's life: sockets, events, signals, the end.  What its other threads do is
 * src/server_work.c. */

enum {
    DRAINED_STEP = 20,          /* milliseconds between looks at what still has to go out */
    /* and between looks at the news of a stream, about a frame of a screen.  A wake-up, a write
     * and the switches around them take 40 us, too much for each token where one takes 500. */
    LOOK_STEP = 16,
    SLICE_NS = 100000,          /* the shortest there is */
    /* Seconds after the GPU was lost: who asks for the server's health hears of it for so long;
     * clients take what they are sent for so long; and then the process ends, whatever hangs. */
    LOST_LEAST = 1,
    LOST_MOST = 3,
    LOST_END = 4,
};

void server_wake(struct server *s)
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

void server_tell(struct server *s, struct job *j, bool at_once)
{
    if (!j->told) {
        j->told = true;
        j->next_news = NULL;
        *s->news_end = j;
        s->news_end = &j->next_news;
    }
    if (s->woken || (s->looking && !at_once))
        return;
    s->woken = true;
    server_wake(s);
}

void server_read(struct server *s, struct job *j)
{
    pthread_mutex_lock(&s->lock);
    s->counters.requests++;
    job_push(&s->reading, j);
    pthread_cond_signal(&s->to_read);
    pthread_mutex_unlock(&s->lock);
}

void server_cancel(struct server *s, struct job *j)
{
    pthread_mutex_lock(&s->lock);
    j->cancel = 1;
    s->counters.cancelled++;
    if (j->stage == JOB_QUEUED) {
        job_remove(&s->waiting, j);
        j->stage = JOB_DONE;
        server_tell(s, j, true);
    }
    pthread_mutex_unlock(&s->lock);
}

/* What is in force, for a machine to read: what was asked for may not have been had. */
static void say_state(struct server *s)
{
    const struct log *l = &s->o->log;
    struct text state = { NULL, 0, 0, false };

    info_effective(s, &state);
    if (!state.failed)
        fprintf(stderr, l->format == LOG_JSON ? "{\"event\":\"state\",\"state\":%s}\n"
                      : l->format == LOG_JOURNAL ? "<6>laguna-offload: state %s\n"
                      : "laguna-offload: state %s\n", state.s);
    text_free(&state);
}

/* The engine is open, or never will be: the state that was seen under the lock. */
static void announce(struct server *s, enum server_state state)
{
    static const char *const ready = "READY=1\nSTATUS=Serving";
    char words[256];

    if (state == SERVER_ENDED) {
        event_base_loopbreak(s->base);
        return;
    }
    if (s->o->log.level > LOG_QUIET) {
        say_state(s);
        snprintf(words, sizeof(words), "listening on %s", http_address(s->http));
        log_line(&s->o->log, LINE_INFO, words);
    }
    notify(s->o->notify_socket, ready);
}

static void on_drained(evutil_socket_t fd, short what, void *server);

/* Begin to wait for the end. */
static void drain(struct server *s)
{
    struct timeval step = { 0, DRAINED_STEP * 1000 };

    notify(s->o->notify_socket, "STOPPING=1");
    s->draining_since = clock_now();
    if (s->on_drained)
        return;
    s->on_drained = event_new(s->base, -1, EV_PERSIST, on_drained, s);
    event_add(s->on_drained, &step);
}

/* The driver of a lost GPU does not let go. */
static void on_alarm(int sig)
{
    static const char words[] = "laguna-offload: the GPU has failed, and its driver hangs\n";
    ssize_t ignored = write(2, words, sizeof(words) - 1);

    (void)sig;
    (void)ignored;
    _exit(exit_status(-EREMOTEIO));
}

static void end_lost(struct server *s)
{
    s->lost = true;
    signal(SIGALRM, on_alarm);
    alarm(LOST_END);
    drain(s);
}

/* Hand out the news.  While there are some, the next look comes by itself and nobody need wake
 * this thread for it. */
static void look_at_news(struct server *s)
{
    static const struct timeval step = { 0, LOOK_STEP * 1000 };
    struct job *j, *next;
    enum server_state state;

    pthread_mutex_lock(&s->lock);
    j = s->news;
    s->news = NULL;
    s->news_end = &s->news;
    s->woken = false;
    s->looking = j != NULL;
    state = s->state;
    pthread_mutex_unlock(&s->lock);
    if (j)
        event_add(s->on_look, &step);
    if (state != SERVER_LOADING && !s->announced) {
        s->announced = true;
        announce(s, state);
    }
    if (state == SERVER_LOST && !s->lost)
        end_lost(s);
    for (; j; j = next) {
        next = j->next_news;
        job_deliver(j);
    }
}

static void on_wake(evutil_socket_t fd, short what, void *server)
{
    uint64_t times;

    (void)what;
    if (read(fd, &times, sizeof(times)) > 0)
        look_at_news(server);
}

static void on_look(evutil_socket_t fd, short what, void *server)
{
    (void)fd;
    (void)what;
    look_at_news(server);
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

/* After the first signal, or a fault: wait for the jobs, then cancel them, then for their last
 * words. */
static void on_drained(evutil_socket_t fd, short what, void *server)
{
    struct server *s = server;
    double waited = clock_now() - s->draining_since;
    int least = s->lost ? LOST_LEAST : 0, most = s->lost ? LOST_MOST : s->o->drain_seconds + 1;

    (void)fd;
    (void)what;
    if (waited > most - 1)
        cancel_all(s);
    if (!s->jobs && waited >= least && (!http_backlog(s->http) || waited > most))
        event_base_loopbreak(s->base);
}

static void on_signal(evutil_socket_t sig, short what, void *server)
{
    struct server *s = server;

    (void)what;
    if (s->signals++) {
        signal((int)sig, SIG_DFL);
        raise((int)sig);
    }
    http_refuse_new(s->http);
    if (s->lost)
        return;
    pthread_mutex_lock(&s->lock);
    if (s->state != SERVER_LOST)
        s->state = SERVER_DRAINING;
    pthread_mutex_unlock(&s->lock);
    drain(s);
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
    s->on_look = event_new(s->base, -1, 0, on_look, s);
    s->on_tick = event_new(s->base, -1, EV_PERSIST, on_tick, s);
    event_add(s->on_tick, &second);
    return 0;
}

/* Signals are for the thread that waits for events. */
static int start_threads(struct server *s, struct err *e)
{
    void *(*const run[])(void *) = { server_answer_jobs, server_read_jobs };
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

/* The workers spin on every core.  This thread's work is short: with a time slice as short it is
 * let in as soon as it has some, and not once a worker's slice of 3 ms is over.  Kernels before
 * 6.12 take no notice. */
static void ask_for_short_slices(void)
{
    /* As linux/sched/types.h has it, which older C libraries do not bear beside their own. */
    struct {
        uint32_t size, policy;
        uint64_t flags;
        int32_t nice;
        uint32_t priority;
        uint64_t runtime, deadline, period;
    } a = { .size = sizeof(a), .policy = SCHED_OTHER, .nice = getpriority(PRIO_PROCESS, 0),
            .runtime = SLICE_NS };

    (void)syscall(SYS_sched_setattr, 0, &a, 0);
}

static void stop_threads(struct server *s)
{
    cancel_all(s);
    pthread_mutex_lock(&s->lock);
    s->stop = true;
    pthread_cond_broadcast(&s->to_read);
    pthread_cond_broadcast(&s->to_answer);
    while (s->threads && !s->answered)
        pthread_cond_wait(&s->to_end, &s->lock);
    pthread_mutex_unlock(&s->lock);
    if (s->threads > 1)
        pthread_join(s->thread[1], NULL);
}

/* The engine's thread closes the engine: who began to read from the drive must end it. */
static void close_engine(struct server *s)
{
    pthread_mutex_lock(&s->lock);
    s->closing = true;
    pthread_cond_broadcast(&s->to_end);
    pthread_mutex_unlock(&s->lock);
    if (s->threads)
        pthread_join(s->thread[0], NULL);
}

static void close_all(struct server *s)
{
    struct event *events[] = { s->on_wake, s->on_look, s->on_tick, s->on_drained, s->signal[0],
                               s->signal[1], s->signal[2] };

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
    close_engine(s);
    free(s->share);
    recall_close(s->recall);
    keys_free(&s->keys);
}

int server_run(struct options *o, struct err *e)
{
    struct server s = { .o = o, .wake = -1, .started = time(NULL), .opened = clock_now(),
                        .saved = clock_now() };
    int rc;

    pthread_mutex_init(&s.lock, NULL);
    pthread_cond_init(&s.to_read, NULL);
    pthread_cond_init(&s.to_answer, NULL);
    pthread_cond_init(&s.to_end, NULL);
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
    if (!rc) {
        ask_for_short_slices();
        event_base_dispatch(s.base);
    }
    close_all(&s);
    if (!rc && s.rc) {
        *e = s.why;
        rc = s.rc;
    }
    return rc;
}
