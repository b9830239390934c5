#ifndef LAGUNA_JOB_H
#define LAGUNA_JOB_H

#include "src/answer.h"
#include "src/http_conn.h"

#include <stdatomic.h>

struct server;
struct job;

/* How one API reads a request and writes its answer.  What is written goes to job->pending and
 * from there to the client.  A function that an API does not need is NULL. */
struct api {
    /* Reader's thread: body -> choices, stream, state.  0: to be answered by the engine;
     * 1: answered already, in pending; negative: job->error says why not. */
    int  (*read)(struct job *j);
    /* Engine's thread, streams: the beginning, and each piece as src/answer.h tells of it. */
    void (*begin)(struct job *j);
    void (*progress)(struct job *j, int done, int total);
    void (*event)(struct job *j, const struct event *v, const struct message *m);
    void (*text)(struct job *j, const char *s, size_t n);
    void (*token)(struct job *j, const struct reply_token *t);
    /* Engine's thread, streamed or not: a choice is complete; all of them are; it failed in the
     * middle of a stream (job->error). */
    void (*choice)(struct job *j, struct answer *a);
    void (*end)(struct job *j);
    void (*broken)(struct job *j);
    /* A sign of life, words for a person in it. */
    void (*ping)(struct text *out, const char *words);
    void (*close)(struct job *j);       /* free the state */
};

/* One answer of those a request asks for. */
struct choice {
    struct request q;
    struct ids prompt;
};

enum job_stage { JOB_READING, JOB_QUEUED, JOB_RUNNING, JOB_DONE };

/* A request on its way: the HTTP thread makes it, the reader's thread parses and tokenises it,
 * the engine's thread answers it, and the HTTP thread frees it.  The threads hand it on under
 * the server's lock. */
struct job {
    struct server *server;
    const struct api *api;
    char path[64];
    struct text body;
    char id[48];                /* of the answer, without a prefix */
    int64_t created;

    /* Of the thread that has the job. */
    struct choice *choice;      /* [choices] */
    int choices, at;
    bool stream;
    void *state;                /* the API's */
    struct text pending;
    struct request_error error;
    bool failed;
    bool taken;                 /* a piece of the answer exists */
    int prompt_n, cached_n, predicted_n;

    /* Any thread may set it; the engine stops within a layer, or within a step of a GPU. */
    atomic_int cancel;

    /* Under the server's lock. */
    enum job_stage stage;
    struct text out;            /* on its way to the client */
    bool ready;                 /* a stream may begin */
    bool told;                  /* in the list of news */
    int done, total;            /* of the prompt's tokens */
    struct job *next_news, *next_queued;

    /* HTTP thread. */
    struct conn *conn;          /* NULL once the client has left */
    bool begun, generates;
    double written;             /* when something last went out */
    double arrived, started, first;     /* engine's thread: started, first */
    struct job *next, *previous;
};

/* A list in order of arrival; under the server's lock. */
struct job_queue {
    struct job *first, *last;
    int n;
};

void job_push(struct job_queue *q, struct job *j);
struct job *job_pop(struct job_queue *q);       /* or NULL */
void job_remove(struct job_queue *q, struct job *j);

/* HTTP thread: take the request on c over, whose body this empties. */
void job_start(struct server *s, struct conn *c, const struct api *api, bool generates);
/* HTTP thread: write what there is; frees the job where it is done. */
void job_deliver(struct job *j);
/* HTTP thread, now and then: a sign of life; give up a client that takes nothing. */
void job_watch(struct job *j, double now);

/* Any other thread: hand what is pending over to the HTTP thread, for which it is urgent or
 * can wait a few milliseconds. */
void job_flush(struct job *j, bool at_once);
/* The same at the end of the job, which is the HTTP thread's from then on. */
void job_finish(struct job *j);
/* It fails with this; the words are formatted. */
int  job_refuse(struct job *j, int status, const char *code, const char *fmt, ...)
    __attribute__((format(printf, 4, 5)));

/* It fails with what an errno and its words come to; see answer_error(). */
int  job_fail(struct job *j, int rc, const struct err *e);

/* Room for the choices and their number: -ENOMEM with job->error filled. */
int  job_choices(struct job *j, int n);
/* Tokenise every choice's prompt and check it against the context. */
int  job_tokenize(struct job *j);

/* The request that the answer being made belongs to. */
static inline const struct request *job_request(const struct job *j)
{
    return &j->choice[j->at].q;
}

#endif
