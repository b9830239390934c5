#ifndef LAGUNA_HTTP_CONN_H
#define LAGUNA_HTTP_CONN_H

#include "src/http_head.h"
#include "src/json.h"

#include <event2/event.h>

/* Connections: requests come in whole and one at a time, answers go out whole or as streams.
 * A client that leaves is noticed at once, also while nothing is written.  Single-threaded. */

struct connections;

/* A connection, and the request on it that is being answered. */
struct conn;

struct connections_config {
    struct event_base *base;
    struct http_limits limits;
    void (*request)(void *arg, struct conn *c);
    /* A request that will be answered with this and then cut off. */
    void (*refused)(void *arg, struct conn *c, const struct http_refusal *r);
    void (*closed)(void *arg);                  /* one connection less */
    void *arg;
};

int  connections_open(struct connections **out, const struct connections_config *c, struct err *e);
void connections_close(struct connections *s);  /* and every connection */
int  connections_count(const struct connections *s);
size_t connections_backlog(const struct connections *s);    /* bytes that clients have not taken */
/* Take over a socket; closes it where memory is short. */
void connections_add(struct connections *s, int fd);

enum http_method conn_method(const struct conn *c);
const char *conn_target(const struct conn *c);
const char *conn_field(const struct conn *c, const char *name);    /* or NULL */
/* The body, which the caller may empty. */
struct text *conn_body(struct conn *c);

/* Called once where the client leaves before its answer is out; then c is no more. */
void conn_on_gone(struct conn *c, void (*gone)(void *arg), void *arg);

/* Add a field to the answer's head.  The value must not come from a client. */
void conn_add_field(struct conn *c, const char *name, const char *value);
/* The connection ends with this answer. */
void conn_will_close(struct conn *c);

/* The answer, whole; afterwards c is the connection's again. */
void conn_reply(struct conn *c, int status, const char *type, const char *s, size_t n);

/* The answer in pieces: its head, the pieces, its end. */
void conn_stream_begin(struct conn *c, const char *type);
void conn_stream_write(struct conn *c, const char *s, size_t n);
void conn_stream_end(struct conn *c);
/* Its end where it is none: what was written goes out, and the connection closes. */
void conn_stream_break(struct conn *c);
/* Close at once; nobody is told. */
void conn_drop(struct conn *c);

/* Bytes of the answer that the client has not taken, and for how many seconds none was. */
size_t conn_backlog(const struct conn *c, double *stuck);

#endif
