#ifndef LAGUNA_TOOLPARSE_H
#define LAGUNA_TOOLPARSE_H

#include "src/json.h"

/* What the model writes -> thoughts, text and tool calls (spec: laguna.md 6.3, 6.4), while it
 * is being written.  One machine a request.  It reads each byte once and waits only for what
 * it must: a tag that may be beginning, the name and first key of a call, a value that is no
 * string.  However the text is cut, the events add up to the same message.
 *
 * A call is announced once a first value or its end makes it certain; what looks like a call
 * and is none comes out as content, letter for letter. */
struct toolparse;

enum event_kind {
    EVENT_REASONING,            /* a piece of the thoughts */
    EVENT_CONTENT,              /* a piece of the answer */
    EVENT_CALL,                 /* a call begins: its name */
    EVENT_ARGUMENTS,            /* a piece of its arguments, the text of one JSON object */
    EVENT_CALL_END,
    EVENT_CALL_BROKEN,          /* the call begun last is not one: what the model wrote, to be
                                 * shown as content where the call can still be taken back */
};

struct event {
    enum event_kind kind;
    const char *s;              /* not NUL-terminated; may end inside a character where the
                                 * bytes pushed did, and then the next one goes on */
    size_t n;
};

typedef void (*event_fn)(void *arg, const struct event *v);

struct toolparse_options {
    bool thinking;              /* the prompt ended in <think> */
    const cJSON *tools;         /* the request's, must outlive this; NULL: calls are content */
    event_fn each;
    void *arg;
};

int  toolparse_open(struct toolparse **out, const struct toolparse_options *o, struct err *e);
void toolparse_close(struct toolparse *t);

/* 0 or -ENOMEM. */
int  toolparse_push(struct toolparse *t, const char *s, size_t n);

/* No more text.  whole: the model ended its turn by itself, so that a call which lacks nothing
 * but its closing tag is taken for whole. */
int  toolparse_end(struct toolparse *t, bool whole);

/* Still inside the thoughts. */
bool toolparse_thinking(const struct toolparse *t);

#endif
