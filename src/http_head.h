#ifndef LAGUNA_HTTP_HEAD_H
#define LAGUNA_HTTP_HEAD_H

#include "src/base.h"

/* The head of a request and the framing of its body, read strictly: whatever two readers could
 * understand in two ways is refused.  Pure functions of bytes.  What a path means, who may ask
 * and what the body says is for others. */

struct http_limits {
    int line_bytes;             /* of the request line */
    int head_bytes;             /* of all of the head */
    int fields;
    int64_t body_bytes;
    int head_seconds;           /* from the first byte of a request to the end of its head */
    int body_seconds;
    int body_rate;              /* least bytes a second of a body, 0: any */
    int idle_seconds;           /* between requests */
    int connections, peer_connections;
};

enum http_method { HTTP_GET, HTTP_POST, HTTP_OPTIONS };

struct http_head {
    enum http_method method;
    bool old;                   /* HTTP/1.0 */
    bool close;                 /* the connection ends with the answer */
    size_t bytes;               /* of the head with its empty line */
    int64_t length;             /* of the body; 0 where it is chunked */
    bool chunked, expect;       /* expect: the client waits for 100 Continue */
};

/* Refusals: the status, and words that no byte of the client gets into. */
struct http_refusal {
    int status;
    const char *code, *words;
};

/* s[0..n) is what came so far.  1 and *h where the head is whole and good, 0 where more must
 * come, -1 and *r where it will never be good. */
int http_head_read(struct http_head *h, const char *s, size_t n, const struct http_limits *l,
                   struct http_refusal *r);

/* The line s[0..n), without its end, in front of a chunk: its bytes, or -1. */
int64_t http_chunk_size(const char *s, size_t n);

/* Cut a head that was read, s[0..h->bytes), into strings, in place: afterwards http_target() is
 * its target, and http_field() the value of a field, or NULL. */
void        http_head_cut(char *s, const struct http_head *h);
const char *http_target(const char *s);
const char *http_field(const char *s, const struct http_head *h, const char *name);

#endif
