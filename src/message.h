#ifndef LAGUNA_MESSAGE_H
#define LAGUNA_MESSAGE_H

#include "src/toolparse.h"

struct call {
    char id[32];
    struct text name, arguments;
};

/* What the events of src/toolparse.h add up to.  All zero is an empty one. */
struct message {
    struct text reasoning, content;
    struct call *call;
    int calls, call_cap;
    bool failed;                /* out of memory */
};

/* An event_fn.  A call that broke is taken back and becomes content. */
void message_event(void *message, const struct event *v);
void message_free(struct message *m);

/* A random name: the prefix (7 bytes at most) and 24 letters and digits. */
void message_id(char out[32], const char *prefix);

#endif
