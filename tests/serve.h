#ifndef LAGUNA_TESTS_SERVE_H
#define LAGUNA_TESTS_SERVE_H

#include "src/json.h"
#include "src/message.h"

#include <stdio.h>
#include <sys/types.h>

struct engine_faults;

/* A server in a child process, and a client that speaks just enough HTTP to it. */

struct serving {
    pid_t pid;
    int port;
    struct text said;           /* before and when it began to listen; serve_stop() frees it */
    FILE *log;                  /* what it says afterwards */
};

/* options: of `serve`, up to a NULL.  False where it does not begin to listen. */
bool serve_start(struct serving *s, const char *const *options);
/* The same with a GPU, or a drive, that fails as `faults` says. */
bool serve_start_faulty(struct serving *s, const char *const *options,
                        const struct engine_faults *faults);
/* SIGTERM; the exit status, or -1. */
int  serve_stop(struct serving *s);

/* Connect; -1 where that fails. */
int  serve_connect(const struct serving *s);
/* So many seconds, or TEST_PATIENCE times as many where that is set: with the thread sanitizer a
 * server is ten times slower. */
int  serve_patience(int seconds);
/* Send bytes and read until the server closes, or is silent for serve_patience(seconds). */
struct text serve_exchange(const struct serving *s, const char *bytes, size_t n, int seconds);
/* POST a JSON body, read the answer's body; the status in *status. */
struct text serve_post(const struct serving *s, const char *path, const char *body, int *status);
struct text serve_get(const struct serving *s, const char *path, int *status);

#endif
