/* libevent's buffers, timers and listeners, without its evhttp: that reads requests a second
 * time and less strictly, and behind a filtering bufferevent it shuts a connection down while the
 * answer still lies in the filter (measured: a client got 0 of 8 MB).  One strict reader is all
 * there is.  What an answer says is for others. */
#include "src/http_conn.h"

#include <errno.h>
#include <event2/buffer.h>
#include <event2/bufferevent.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum state {
    IN_HEAD,
    IN_BODY,
    IN_CHUNK_HEAD, IN_CHUNK, IN_CHUNK_END, IN_TRAILER,
    ANSWERING,                  /* what the client sends now waits */
    LEAVING,                    /* what it sends is thrown away, until the answer is out */
};

enum {
    BODY_STEP = 10,             /* seconds between looks at a body's progress */
    CHUNK_LINE = 16,            /* bytes of the line in front of a chunk */
    WAITING_BYTES = 65536,      /* of what waits while a request is answered */
    LEAVE_SECONDS = 10,
};

struct conn {
    struct connections *all;
    struct conn *next, *previous;
    struct bufferevent *bev;
    struct event *timer;
    enum state state;
    bool begun;                 /* the first byte of a request has come */
    bool streaming, refused;
    struct in6_addr peer;
    struct http_head head;
    char *lines;                /* the head, cut into strings */
    struct text body, fields;   /* fields: of the answer */
    int64_t left;               /* bytes of the body or the chunk to come */
    size_t seen;                /* bytes of the body at the last look */
    double since;               /* when the body began */
    double taken;               /* when the client last took something */
    void (*gone)(void *arg);
    void *gone_arg;
};

struct connections {
    struct connections_config c;
    struct conn *first;
    int count;
};

int connections_open(struct connections **out, const struct connections_config *c, struct err *e)
{
    struct connections *s = calloc(1, sizeof(*s));

    if (!s)
        return fail(e, -ENOMEM, "out of memory");
    s->c = *c;
    *out = s;
    return 0;
}

static void conn_free(struct conn *c)
{
    struct connections *s = c->all;

    if (c->previous)
        c->previous->next = c->next;
    else
        s->first = c->next;
    if (c->next)
        c->next->previous = c->previous;
    if (c->bev)
        bufferevent_free(c->bev);
    if (c->timer)
        event_free(c->timer);
    free(c->lines);
    text_free(&c->body);
    text_free(&c->fields);
    free(c);
    s->count--;
}

void connections_close(struct connections *s)
{
    while (s && s->first)
        conn_free(s->first);
    free(s);
}

int connections_count(const struct connections *s)
{
    return s->count;
}

size_t connections_backlog(const struct connections *s)
{
    size_t n = 0;

    for (const struct conn *c = s->first; c; c = c->next)
        n += evbuffer_get_length(bufferevent_get_output(c->bev));
    return n;
}

void conn_drop(struct conn *c)
{
    struct connections *s = c->all;

    conn_free(c);
    s->c.closed(s->c.arg);
}

static void wait_for(struct conn *c, int seconds)
{
    struct timeval t = { seconds, 0 };

    event_add(c->timer, &t);
}

/* The client is gone, or has to go. */
static void lose(struct conn *c)
{
    void (*gone)(void *) = c->gone;
    void *arg = c->gone_arg;

    conn_drop(c);
    if (gone)
        gone(arg);
}

static void refuse(struct conn *c, int status, const char *code, const char *words)
{
    const struct http_refusal r = { status, code, words };

    c->refused = true;
    c->state = ANSWERING;
    event_del(c->timer);
    c->all->c.refused(c->all->c.arg, c, &r);
}

static void pass(struct conn *c)
{
    event_del(c->timer);
    c->state = ANSWERING;
    if (c->body.failed)
        refuse(c, 503, "out_of_memory", "no memory for the body");
    else
        c->all->c.request(c->all->c.arg, c);
}

/* The head, if it is whole; true where there is more to do. */
static bool take_head(struct conn *c, struct evbuffer *in)
{
    const struct http_limits *l = &c->all->c.limits;
    size_t n = evbuffer_get_length(in);
    struct http_refusal r;
    int rc;

    if (!n)
        return false;
    if (!c->begun)
        wait_for(c, l->head_seconds);
    c->begun = true;
    if (n > (size_t)l->head_bytes + 1)
        n = (size_t)l->head_bytes + 1;
    rc = http_head_read(&c->head, (const char *)evbuffer_pullup(in, (ev_ssize_t)n), n, l, &r);
    if (rc < 0)
        refuse(c, r.status, r.code, r.words);
    if (rc <= 0)
        return false;
    c->lines = malloc(c->head.bytes);
    if (!c->lines) {
        refuse(c, 503, "out_of_memory", "no memory for the head");
        return false;
    }
    evbuffer_remove(in, c->lines, c->head.bytes);
    http_head_cut(c->lines, &c->head);
    if (c->head.expect && (c->head.length || c->head.chunked))
        bufferevent_write(c->bev, "HTTP/1.1 100 Continue\r\n\r\n", 25);
    c->left = c->head.length;
    c->seen = 0;
    c->since = clock_now();
    c->state = c->head.chunked ? IN_CHUNK_HEAD : IN_BODY;
    wait_for(c, BODY_STEP);
    return true;
}

/* As much of the body or chunk as is there; true once it is whole. */
static bool take_bytes(struct conn *c, struct evbuffer *in)
{
    while (c->left && evbuffer_get_length(in)) {
        struct evbuffer_iovec v;
        size_t n;

        evbuffer_peek(in, -1, NULL, &v, 1);
        n = v.iov_len < (size_t)c->left ? v.iov_len : (size_t)c->left;
        text_add(&c->body, v.iov_base, n);
        evbuffer_drain(in, n);
        c->left -= (int64_t)n;
    }
    return !c->left;
}

/* A line of at most CHUNK_LINE bytes: its length, -1 where it has not come yet, -2 where it is
 * none. */
static int take_line(struct evbuffer *in, char line[CHUNK_LINE])
{
    char s[CHUNK_LINE + 2];
    ev_ssize_t n = evbuffer_copyout(in, s, sizeof(s));
    const char *end = n > 0 ? memchr(s, '\n', (size_t)n) : NULL;

    if (!end)
        return n == (ev_ssize_t)sizeof(s) ? -2 : -1;
    if (end == s || end[-1] != '\r')
        return -2;
    n = end - 1 - s;
    memcpy(line, s, (size_t)n);
    evbuffer_drain(in, (size_t)n + 2);
    return (int)n;
}

/* One step of a chunked body; true where there is more to do. */
static bool take_chunk(struct conn *c, struct evbuffer *in)
{
    char line[CHUNK_LINE];
    int n;

    if (c->state == IN_CHUNK) {
        if (!take_bytes(c, in))
            return false;
        c->state = IN_CHUNK_END;
    }
    n = take_line(in, line);
    if (n == -1)
        return false;
    if (n == -2 || (c->state != IN_CHUNK_HEAD && n)) {
        refuse(c, 400, "bad_request", "the chunked body is malformed");
        return false;
    }
    if (c->state == IN_TRAILER) {
        pass(c);
        return false;
    }
    if (c->state == IN_CHUNK_END) {
        c->state = IN_CHUNK_HEAD;
        return true;
    }
    c->left = http_chunk_size(line, (size_t)n);
    c->state = c->left ? IN_CHUNK : IN_TRAILER;
    if (c->left < 0)
        refuse(c, 400, "bad_request", "the size of a chunk is malformed");
    else if (c->left + (int64_t)c->body.n > c->all->c.limits.body_bytes)
        refuse(c, 413, "body_too_large", "the body is too large");
    return c->state != ANSWERING;
}

/* Go on with what has come.  The connection may be gone afterwards. */
static void advance(struct conn *c)
{
    struct evbuffer *in = bufferevent_get_input(c->bev);
    bool more = true;

    while (more) {
        switch (c->state) {
        case IN_HEAD:
            more = take_head(c, in);
            break;
        case IN_BODY:
            more = false;
            if (take_bytes(c, in))
                pass(c);
            break;
        case ANSWERING:
            more = false;
            break;
        case LEAVING:
            evbuffer_drain(in, evbuffer_get_length(in));
            more = false;
            break;
        default:
            more = take_chunk(c, in);
        }
    }
}

static void on_read(struct bufferevent *bev, void *arg)
{
    (void)bev;
    advance(arg);
}

/* Everything is out. */
static void on_write(struct bufferevent *bev, void *arg)
{
    struct conn *c = arg;

    (void)bev;
    if (c->state == LEAVING) {
        /* The client reads to the end and closes; closing first could reset what it reads. */
        shutdown(bufferevent_getfd(c->bev), SHUT_WR);
        wait_for(c, 1);
    }
}

static void on_taken(struct evbuffer *out, const struct evbuffer_cb_info *i, void *arg)
{
    struct conn *c = arg;

    (void)out;
    if (i->n_deleted || !i->orig_size)
        c->taken = clock_now();
}

static void on_event(struct bufferevent *bev, short what, void *arg)
{
    (void)bev;
    (void)what;
    lose(arg);
}

static void on_timer(evutil_socket_t fd, short what, void *arg)
{
    struct conn *c = arg;
    const struct http_limits *l = &c->all->c.limits;

    (void)fd;
    (void)what;
    if (c->state == LEAVING || (c->state == IN_HEAD && !c->begun)) {
        lose(c);
    } else if (c->state == IN_HEAD) {
        refuse(c, 408, "request_timeout", "the head of the request took too long");
    } else if (clock_now() - c->since > l->body_seconds ||
               c->body.n - c->seen < (size_t)l->body_rate * BODY_STEP) {
        refuse(c, 408, "request_timeout", "the body of the request came too slowly");
    } else {
        c->seen = c->body.n;
        wait_for(c, BODY_STEP);
    }
}

/* Look at where a connection comes from: its address in *peer; false for this machine. */
static bool is_remote(int fd, struct in6_addr *peer)
{
    struct sockaddr_storage a = { .ss_family = AF_UNSPEC };
    socklen_t n = sizeof(a);
    int one = 1;

    memset(peer, 0, sizeof(*peer));
    if (getpeername(fd, (struct sockaddr *)&a, &n) || a.ss_family == AF_UNIX)
        return false;
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
    if (a.ss_family == AF_INET6)
        *peer = ((struct sockaddr_in6 *)(void *)&a)->sin6_addr;
    else
        memcpy(peer->s6_addr + 12, &((struct sockaddr_in *)(void *)&a)->sin_addr, 4);
    return !IN6_IS_ADDR_LOOPBACK(peer) && peer->s6_addr[12] != 127;
}

void connections_add(struct connections *s, int fd)
{
    struct conn *c = calloc(1, sizeof(*c));
    int same = 0;

    if (c)
        c->bev = bufferevent_socket_new(s->c.base, fd, BEV_OPT_CLOSE_ON_FREE);
    if (!c || !c->bev) {
        free(c);
        close(fd);
        return;
    }
    c->all = s;
    c->next = s->first;
    if (c->next)
        c->next->previous = c;
    s->first = c;
    s->count++;
    c->timer = evtimer_new(s->c.base, on_timer, c);
    if (is_remote(fd, &c->peer))
        for (const struct conn *o = s->first; o; o = o->next)
            same += IN6_ARE_ADDR_EQUAL(&o->peer, &c->peer);
    if (!c->timer || same > s->c.limits.peer_connections) {
        conn_drop(c);
        return;
    }
    bufferevent_setcb(c->bev, on_read, on_write, on_event, c);
    evbuffer_add_cb(bufferevent_get_output(c->bev), on_taken, c);
    bufferevent_setwatermark(c->bev, EV_READ, 0, WAITING_BYTES);
    bufferevent_enable(c->bev, EV_READ | EV_WRITE);
    wait_for(c, s->c.limits.idle_seconds);
}

enum http_method conn_method(const struct conn *c)
{
    return c->head.method;
}

const char *conn_target(const struct conn *c)
{
    return c->refused ? "/" : http_target(c->lines);
}

const char *conn_field(const struct conn *c, const char *name)
{
    return c->refused ? NULL : http_field(c->lines, &c->head, name);
}

struct text *conn_body(struct conn *c)
{
    return &c->body;
}

void conn_on_gone(struct conn *c, void (*gone)(void *arg), void *arg)
{
    c->gone = gone;
    c->gone_arg = arg;
}

void conn_add_field(struct conn *c, const char *name, const char *value)
{
    text_printf(&c->fields, "%s: %s\r\n", name, value);
}

void conn_will_close(struct conn *c)
{
    c->head.close = true;
}

static const char *reason(int status)
{
    static const struct {
        int status;
        const char *words;
    } known[] = {
        { 200, "OK" }, { 204, "No Content" }, { 400, "Bad Request" }, { 401, "Unauthorized" },
        { 403, "Forbidden" }, { 404, "Not Found" }, { 405, "Method Not Allowed" },
        { 408, "Request Timeout" }, { 411, "Length Required" }, { 413, "Content Too Large" },
        { 414, "URI Too Long" }, { 415, "Unsupported Media Type" },
        { 417, "Expectation Failed" }, { 429, "Too Many Requests" },
        { 431, "Request Header Fields Too Large" }, { 500, "Internal Server Error" },
        { 501, "Not Implemented" }, { 503, "Service Unavailable" },
        { 505, "HTTP Version Not Supported" },
    };

    for (size_t i = 0; i < sizeof(known) / sizeof(*known); i++)
        if (known[i].status == status)
            return known[i].words;
    return "Error";
}

/* framing: the field that says how long the body is, with its end. */
static void write_head(struct conn *c, int status, const char *type, const char *framing)
{
    struct evbuffer *out = bufferevent_get_output(c->bev);
    time_t now = time(NULL);
    char date[64];
    struct tm t;

    gmtime_r(&now, &t);
    strftime(date, sizeof(date), "%a, %d %b %Y %H:%M:%S GMT", &t);
    evbuffer_add_printf(out, "HTTP/1.1 %d %s\r\nDate: %s\r\n%s", status, reason(status), date,
                        framing);
    if (type)
        evbuffer_add_printf(out, "Content-Type: %s\r\n", type);
    if (c->fields.n && !c->fields.failed)
        evbuffer_add(out, c->fields.s, c->fields.n);
    evbuffer_add_printf(out, "%s\r\n", c->head.close ? "Connection: close\r\n" : "");
    c->fields.n = 0;
}

/* The answer is written: the next request, or the end. */
static void answered(struct conn *c)
{
    c->gone = NULL;
    c->streaming = c->begun = false;
    free(c->lines);
    c->lines = NULL;
    text_free(&c->body);
    if (c->refused || c->head.close) {
        c->state = LEAVING;
        wait_for(c, LEAVE_SECONDS);
        if (!evbuffer_get_length(bufferevent_get_output(c->bev)))
            on_write(c->bev, c);
        return;
    }
    c->state = IN_HEAD;
    wait_for(c, c->all->c.limits.idle_seconds);
    /* What waited is looked at from the loop, so that no stack grows with the requests that a
     * client sends at once. */
    if (evbuffer_get_length(bufferevent_get_input(c->bev)))
        bufferevent_trigger(c->bev, EV_READ, BEV_TRIG_IGNORE_WATERMARKS | BEV_TRIG_DEFER_CALLBACKS);
}

void conn_reply(struct conn *c, int status, const char *type, const char *s, size_t n)
{
    char length[48];

    if (c->refused)
        c->head.close = true;
    snprintf(length, sizeof(length), "Content-Length: %zu\r\n", n);
    write_head(c, status, type, length);
    bufferevent_write(c->bev, s, n);
    answered(c);
}

void conn_stream_begin(struct conn *c, const char *type)
{
    c->streaming = true;
    if (c->head.old)
        c->head.close = true;
    conn_add_field(c, "Cache-Control", "no-cache");
    conn_add_field(c, "X-Accel-Buffering", "no");
    write_head(c, 200, type, c->head.old ? "" : "Transfer-Encoding: chunked\r\n");
}

/* Send at once what the socket takes, unless older bytes wait; how much that was.  The way
 * through the loop would cost three system calls more.  Errors are left for the loop to find. */
static size_t send_now(struct conn *c, struct iovec *piece, size_t pieces)
{
    const struct msghdr m = { .msg_iov = piece, .msg_iovlen = pieces };
    ssize_t n;

    if (evbuffer_get_length(bufferevent_get_output(c->bev)))
        return 0;
    c->taken = clock_now();
    n = sendmsg(bufferevent_getfd(c->bev), &m, MSG_DONTWAIT | MSG_NOSIGNAL);
    return n > 0 ? (size_t)n : 0;
}

void conn_stream_write(struct conn *c, const char *s, size_t n)
{
    char size[24];
    struct iovec piece[3] = { { size, 0 }, { (char *)s, n }, { "\r\n", 2 } };
    size_t sent, first = c->head.old, end = c->head.old ? 2 : 3;

    if (!n)
        return;
    piece[0].iov_len = (size_t)snprintf(size, sizeof(size), "%zx\r\n", n);
    sent = send_now(c, piece + first, end - first);
    for (size_t i = first; i < end; i++) {
        size_t skip = sent < piece[i].iov_len ? sent : piece[i].iov_len;

        sent -= skip;
        bufferevent_write(c->bev, (char *)piece[i].iov_base + skip, piece[i].iov_len - skip);
    }
}

void conn_stream_end(struct conn *c)
{
    if (!c->head.old)
        bufferevent_write(c->bev, "0\r\n\r\n", 5);
    answered(c);
}

void conn_stream_break(struct conn *c)
{
    c->head.close = true;
    answered(c);
}

size_t conn_backlog(const struct conn *c, double *stuck)
{
    *stuck = clock_now() - c->taken;
    return evbuffer_get_length(bufferevent_get_output(c->bev));
}
