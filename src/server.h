#ifndef LAGUNA_SERVER_H
#define LAGUNA_SERVER_H

#include "src/http.h"
#include "src/job.h"
#include "src/kept.h"
#include "src/keys.h"
#include "src/options.h"
#include "src/recall.h"

#include <pthread.h>

/* The server's threads and what they share.  HTTP and its timers live on the thread that calls
 * server_run(); one thread reads requests, one owns the engine. */

/* LOST: the GPU has failed, and the server ends. */
enum server_state { SERVER_LOADING, SERVER_READY, SERVER_DRAINING, SERVER_ENDED, SERVER_LOST };

/* What the metrics count; under the lock. */
struct counters {
    uint64_t requests, cancelled, failed, refused;
    uint64_t finished[FINISH_CANCELLED + 1];
    uint64_t prompt_tokens, cached_tokens, predicted_tokens;
    double prompt_seconds, predicted_seconds, queue_seconds, first_seconds;
    uint64_t firsts;            /* answers whose first token was timed */
    struct tier_counts tiers;
    struct vram_stats vram;
};

struct server {
    struct options *o;
    struct event_base *base;
    struct http *http;
    char model_name[128];
    int64_t started;            /* seconds since 1970 */
    double opened;              /* on the monotonic clock */

    /* Opened by the engine's thread; others look at it only when the state is READY, and then
     * only at what never changes. */
    struct engine *engine;
    struct kept *kept;
    struct recall *recall;      /* any thread */
    const struct tokenizer *tokenizer;
    const struct model *model;
    int context;
    double looked;              /* engine's thread: when it last told what follows */
    double saved;               /* the same: when it last saved, and whether something is new */
    bool unsaved;

    pthread_mutex_t lock;
    pthread_cond_t to_read, to_answer, to_end;
    struct job_queue reading, waiting;
    struct job *running;
    int sessions, session;      /* how many are kept, and which is in use */
    int session_length[KEPT_MOST];
    float *share;               /* [sparse layers][experts]: of the tokens of late */
    struct job *news, **news_end;
    bool woken;                 /* the HTTP thread has been, and has not looked yet */
    bool looking;               /* it looks again within milliseconds, unasked */
    struct counters counters;
    bool stop;                  /* the threads end when their queues are empty */
    enum server_state state;
    int rc;                     /* why the engine could not be opened, or was lost */
    struct err why;

    /* HTTP thread. */
    int wake;                   /* an eventfd that says there is news */
    struct job *jobs;
    int generating, others;     /* jobs that need the engine, and those that do not */
    struct event *on_wake, *on_look, *on_tick, *on_drained, *signal[3];
    int signals;                /* that asked for an end */
    bool lost;                  /* the state was seen to be LOST */
    double draining_since;
    bool announced;             /* said that the engine is open */
    struct keys keys;
    bool answered, closing;             /* no job runs any more; none is left */
    pthread_t thread[2];
    int threads;
};

/* Serve until a signal ends it.  0, or what stopped it. */
int  server_run(struct options *o, struct err *e);

/* HTTP thread: answer a request that may ask. */
void route(void *server, struct conn *c);

enum server_state server_state(struct server *s);

/* Any thread, under the lock: there is something for the HTTP thread in j.  Where it need not go
 * out at once, what comes within a few milliseconds goes out together. */
void server_tell(struct server *s, struct job *j, bool at_once);
void server_wake(struct server *s);     /* any thread: the HTTP thread looks at the news */

/* What the threads run. */
void *server_read_jobs(void *server);
void *server_answer_jobs(void *server);

/* HTTP thread: give j to the reader. */
void server_read(struct server *s, struct job *j);
/* HTTP thread: j's client has left. */
void server_cancel(struct server *s, struct job *j);

#endif
