#ifndef LAGUNA_HTTP_H
#define LAGUNA_HTTP_H

#include "src/http_conn.h"
#include "src/keys.h"
#include "src/request.h"

/* Listening, and who may ask: Host, Origin and key are checked here, before any path is looked
 * at.  All of it on the thread of its event base. */

struct http;

struct http_config {
    const char *host;           /* an address, or a path that ends in .sock */
    int port;                   /* 0: any */
    const struct keys *keys;    /* any of them opens; none: no key is asked for */
    const char *cors;           /* origins between commas, "localhost", "*", or NULL */
    struct http_limits limits;
    /* A request that may ask. */
    void (*each)(void *arg, struct conn *c);
    void *arg;
    struct log *log;
};

/* Listen on what is configured, or on `sockets` descriptors from 3 on that systemd holds open.
 * -EADDRINUSE, -EACCES; -ENOTSUP for an address that others reach without a key; -EINVAL where
 * the address is none. */
int  http_open(struct http **out, struct event_base *base, const struct http_config *c,
               int sockets, struct err *e);
void http_close(struct http *h);

/* Let no more connections in. */
void http_refuse_new(struct http *h);

/* "http://127.0.0.1:8080" or "unix:/run/x.sock". */
const char *http_address(const struct http *h);
int http_connections(const struct http *h);
size_t http_backlog(const struct http *h);      /* bytes that clients have not taken */

/* The target without its query, a leading /v1 and a final slash; cut at n - 1 bytes. */
void http_path(const struct conn *c, char *path, size_t n);

/* Answer in one piece.  retry: seconds for Retry-After, or 0. */
void http_reply(struct conn *c, int status, const char *type, const struct text *body);
void http_reply_error(struct conn *c, const struct request_error *e, int retry);

/* {"error":..} in the words of OpenAI, or of Anthropic for the paths under /messages. */
void http_error_json(struct text *out, const char *path, const struct request_error *e);

#endif
