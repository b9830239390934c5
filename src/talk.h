#ifndef LAGUNA_TALK_H
#define LAGUNA_TALK_H

#include "src/generate.h"
#include "src/json.h"
#include "src/options.h"

/* A conversation on stdout: messages, the session that has read them, and one answer at a
 * time, shown while it is made. */
struct talk {
    struct options *o;
    struct engine *engine;
    struct session *session;
    cJSON *messages;            /* array */
    const char *system;         /* begins each conversation; may be NULL */
    bool think;
    const atomic_int *cancel;
};

/* The messages forgotten, the system message alone left.  -ENOMEM. */
int talk_begin(struct talk *t, struct err *e);

/* Add what the person said, write the answer to stdout and its figures to stderr, and keep
 * it as the assistant's message, also where it was cancelled.  Where it fails, the person's
 * message is taken back; -E2BIG where the conversation does not fit the context. */
int talk_say(struct talk *t, const char *text, struct err *e);

#endif
