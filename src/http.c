/* The sockets, and the door.  How requests travel is src/http_conn.c, what they mean route.c. */
#include "src/http.h"
#include "src/message.h"
#include "src/reply.h"

#include <arpa/inet.h>
#include <errno.h>
#include <event2/listener.h>
#include <netdb.h>
#include <stdio.h>
#include <stdlib.h>
#include <strings.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

enum { LISTENERS = 8, BACKLOG = 512, FIRST_SOCKET = 3 };

struct http {
    struct http_config c;
    struct event_base *base;
    struct connections *connections;
    struct evconnlistener *listener[LISTENERS];
    int listeners;
    struct event *resume;       /* listening again after descriptors ran out */
    bool full, refusing;
    bool others;                /* reached from other machines, by any name */
    char address[160], path[sizeof(((struct sockaddr_un *)0)->sun_path)];
};

void http_path(const struct conn *c, char *path, size_t n)
{
    const char *target = conn_target(c);
    size_t length = strcspn(target, "?#");

    if (length >= 3 && !strncmp(target, "/v1", 3) && (length == 3 || target[3] == '/')) {
        target += 3;
        length -= 3;
    }
    while (length > 1 && target[length - 1] == '/')
        length--;
    snprintf(path, n, "%.*s", (int)(length < n ? length : n - 1), length ? target : "/");
}

void http_reply(struct conn *c, int status, const char *type, const struct text *body)
{
    if (body->failed)
        conn_reply(c, 503, NULL, "", 0);
    else
        conn_reply(c, status, type, body->s ? body->s : "", body->n);
}

void http_error_json(struct text *out, const char *path, const struct request_error *e)
{
    const char *type = e->status == 503 ? "overloaded_error"
                     : e->status >= 500 ? "api_error" : e->type;

    if (strncmp(path, "/messages", 9)) {
        reply_error(out, e);
        return;
    }
    text_puts(out, "{\"type\":\"error\",\"error\":{\"type\":");
    text_json_string(out, type, strlen(type));
    text_puts(out, ",\"message\":");
    text_json_bytes(out, e->message, strlen(e->message));
    text_puts(out, "}}");
}

void http_reply_error(struct conn *c, const struct request_error *e, int retry)
{
    struct text body = { NULL, 0, 0, false };
    char path[64], seconds[16];

    http_path(c, path, sizeof(path));
    http_error_json(&body, path, e);
    snprintf(seconds, sizeof(seconds), "%d", retry);
    if (retry)
        conn_add_field(c, "Retry-After", seconds);
    if (e->status == 405)
        conn_add_field(c, "Allow", "GET, POST");
    if (e->status == 401)
        conn_add_field(c, "WWW-Authenticate", "Bearer");
    http_reply(c, e->status, "application/json", &body);
    text_free(&body);
}

static void refuse(struct conn *c, int status, const char *type, const char *code,
                   const char *words)
{
    struct request_error e = { .status = status, .type = type, .code = code };

    snprintf(e.message, sizeof(e.message), "%s", words);
    http_reply_error(c, &e, 0);
}

/* The name in HOST[:PORT] is this machine's own. */
static bool is_local_name(const char *s, size_t n)
{
    static const char *const name[] = { "localhost", "127.0.0.1", "[::1]" };
    size_t host = n && s[0] == '[' ? strcspn(s, "]") + 1 : strcspn(s, ":/");

    for (size_t i = 0; i < sizeof(name) / sizeof(*name); i++)
        if (host <= n && host == strlen(name[i]) && !strncasecmp(s, name[i], host))
            return true;
    return false;
}

static bool host_allowed(const struct http *h, const char *host)
{
    if (h->others || h->path[0] || !host)
        return true;
    return is_local_name(host, strlen(host)) ||
           (!strncasecmp(host, h->c.host, strlen(h->c.host)) &&
            strchr(":", host[strlen(h->c.host)]));
}

/* An entry of the list of origins. */
static bool origin_listed(const struct http *h, const char *origin)
{
    const char *at = h->c.cors ? h->c.cors : "", *scheme = strstr(origin, "://");

    while (*at) {
        size_t n = strcspn(at, ",");

        if (n == 1 && *at == '*')
            return true;
        if (n == 9 && !strncmp(at, "localhost", 9) && scheme &&
            is_local_name(scheme + 3, strlen(scheme + 3)))
            return true;
        if (n == strlen(origin) && !strncasecmp(at, origin, n))
            return true;
        at += n + (at[n] == ',');
    }
    return false;
}

/* The page that this server itself gave out. */
static bool origin_own(const char *origin, const char *host)
{
    return host && !strncasecmp(origin, "http://", 7) && !strcasecmp(origin + 7, host);
}

/* As long for a wrong key as for the right one. */
static bool same_key(const char *given, const char *key)
{
    size_t n = strlen(given), m = strlen(key), differ = n ^ m;

    for (size_t i = 0; i < n; i++)
        differ |= (unsigned char)given[i] ^ (unsigned char)key[m ? i % m : 0];
    return !differ;
}

static bool has_key(const struct http *h, const struct conn *c)
{
    const char *bearer = conn_field(c, "Authorization"), *key = conn_field(c, "x-api-key");
    bool found = false;

    if (bearer && !strncasecmp(bearer, "Bearer ", 7))
        key = bearer + 7 + strspn(bearer + 7, " ");
    for (int i = 0; key && i < h->c.keys->n; i++)
        found |= same_key(key, h->c.keys->key[i]);
    return found;
}

static bool is_public(const char *path)
{
    return !strcmp(path, "/health") || !strcmp(path, "/");
}

static void allow_origin(struct conn *c, const char *origin)
{
    conn_add_field(c, "Access-Control-Allow-Origin", origin);
    conn_add_field(c, "Vary", "Origin");
    if (conn_method(c) != HTTP_OPTIONS)
        return;
    conn_add_field(c, "Access-Control-Allow-Methods", "GET, POST");
    conn_add_field(c, "Access-Control-Allow-Headers", "Authorization, Content-Type, X-Api-Key, "
                   "Anthropic-Version, Anthropic-Beta");
    conn_add_field(c, "Access-Control-Max-Age", "600");
}

/* Form fields of a foreign page come as one of the simple types; JSON never does. */
static bool is_json(const char *type)
{
    return !type || (!strncasecmp(type, "application/json", 16) && strchr("; \t", type[16]));
}

static void add_request_id(struct conn *c)
{
    char id[32];

    message_id(id, "req_");
    conn_add_field(c, "X-Request-Id", id);
}

static void on_refused(void *arg, struct conn *c, const struct http_refusal *r)
{
    (void)arg;
    add_request_id(c);
    refuse(c, r->status, "invalid_request_error", r->code, r->words);
}

static void on_request(void *arg, struct conn *c)
{
    struct http *h = arg;
    const char *host = conn_field(c, "Host"), *origin = conn_field(c, "Origin");
    enum http_method method = conn_method(c);
    bool listed = origin && origin_listed(h, origin);
    char path[64];

    add_request_id(c);
    http_path(c, path, sizeof(path));
    if (listed)
        allow_origin(c, origin);
    if (!host_allowed(h, host))
        refuse(c, 403, "permission_error", "host_not_allowed", "this Host is not served");
    else if (origin && !listed && !origin_own(origin, host))
        refuse(c, 403, "permission_error", "origin_not_allowed",
               "this Origin may not ask (see --cors-origins)");
    else if (method == HTTP_OPTIONS && listed)
        conn_reply(c, 204, NULL, "", 0);
    else if (method == HTTP_OPTIONS)
        refuse(c, 405, "invalid_request_error", "method_not_allowed",
               "OPTIONS is for origins that --cors-origins lists");
    else if (h->c.keys->n && !is_public(path) && !has_key(h, c))
        refuse(c, 401, "authentication_error", "invalid_api_key",
               "the API key is missing or wrong");
    else if (method == HTTP_POST && !is_json(conn_field(c, "Content-Type")))
        refuse(c, 415, "invalid_request_error", "unsupported_media_type",
               "the body must be application/json");
    else
        h->c.each(h->c.arg, c);
}

static void listen_again(struct http *h, bool on)
{
    for (int i = 0; i < h->listeners; i++) {
        if (on)
            evconnlistener_enable(h->listener[i]);
        else
            evconnlistener_disable(h->listener[i]);
    }
}

static void on_closed(void *arg)
{
    struct http *h = arg;

    if (h->full && !h->refusing) {
        h->full = false;
        listen_again(h, true);
    }
}

static void on_accept(struct evconnlistener *l, evutil_socket_t fd, struct sockaddr *a, int n,
                      void *arg)
{
    struct http *h = arg;

    (void)l;
    (void)a;
    (void)n;
    connections_add(h->connections, fd);
    /* The others wait in the kernel's queue. */
    if (connections_count(h->connections) >= h->c.limits.connections) {
        h->full = true;
        listen_again(h, false);
    }
}

static void on_resume(evutil_socket_t fd, short what, void *arg)
{
    struct http *h = arg;

    (void)fd;
    (void)what;
    if (!h->full && !h->refusing)
        listen_again(h, true);
}

/* No descriptor is left: trying again at once would only spin. */
static void on_accept_error(struct evconnlistener *l, void *arg)
{
    struct http *h = arg;
    struct timeval soon = { 0, 200000 };

    (void)l;
    listen_again(h, false);
    event_add(h->resume, &soon);
}

static int add_listener(struct http *h, int fd, struct err *e)
{
    unsigned flags = LEV_OPT_CLOSE_ON_FREE | LEV_OPT_CLOSE_ON_EXEC;
    struct evconnlistener *l;

    evutil_make_socket_nonblocking(fd);
    l = h->listeners == LISTENERS ? NULL
        : evconnlistener_new(h->base, on_accept, h, flags, BACKLOG, fd);
    if (!l) {
        close(fd);
        return fail(e, -ENOMEM, "cannot listen on another socket");
    }
    h->listener[h->listeners++] = l;
    evconnlistener_set_error_cb(l, on_accept_error);
    return 0;
}

/* Is the address reached from this machine alone? */
static bool is_loopback(const struct sockaddr *a)
{
    if (a->sa_family == AF_UNIX)
        return true;
    if (a->sa_family == AF_INET)
        return ntohl(((const struct sockaddr_in *)(const void *)a)->sin_addr.s_addr) >> 24 == 127;
    return IN6_IS_ADDR_LOOPBACK(&((const struct sockaddr_in6 *)(const void *)a)->sin6_addr);
}

/* Refuse an address that others reach while no key is asked for. */
static int check_reach(struct http *h, const struct sockaddr *a, struct err *e)
{
    if (is_loopback(a))
        return 0;
    h->others = true;
    return h->c.keys->n ? 0 : fail(e, -ENOTSUP, "--host %s: other machines reach this address: "
                                "--api-key-file is needed", h->c.host);
}

static int listen_unix(struct http *h, struct err *e)
{
    struct sockaddr_un a = { .sun_family = AF_UNIX };
    const char *path = h->c.host;
    struct stat st;
    int fd, rc = 0;

    if (strlen(path) >= sizeof(a.sun_path))
        return fail(e, -EINVAL, "--host %s: at most %zu bytes", path, sizeof(a.sun_path) - 1);
    strcpy(a.sun_path, path);
    fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0)
        return fail(e, -errno, "%s: %s", path, strerror(errno));
    /* A socket that nobody answers on was left by a server that died. */
    if (!stat(path, &st) && S_ISSOCK(st.st_mode)) {
        if (!connect(fd, (struct sockaddr *)&a, sizeof(a)))
            rc = fail(e, -EADDRINUSE, "%s: another server listens there", path);
        else
            unlink(path);
    }
    if (!rc && (bind(fd, (struct sockaddr *)&a, sizeof(a)) || listen(fd, BACKLOG))) {
        rc = -errno;
        fail(e, rc, "%s: %s", path, strerror(-rc));
    }
    if (rc) {
        close(fd);
        return rc;
    }
    strcpy(h->path, path);
    snprintf(h->address, sizeof(h->address), "unix:%s", path);
    return add_listener(h, fd, e);
}

static int listen_address(struct http *h, const struct addrinfo *a, struct err *e)
{
    struct sockaddr_storage bound;
    socklen_t n = sizeof(bound);
    char host[64] = "", port[8] = "";
    int one = 1, fd, rc = check_reach(h, a->ai_addr, e);

    if (rc)
        return rc;
    fd = socket(a->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0)
        return fail(e, -errno, "--host %s: %s", h->c.host, strerror(errno));
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one));
    if (bind(fd, a->ai_addr, a->ai_addrlen) || listen(fd, BACKLOG) ||
        getsockname(fd, (struct sockaddr *)&bound, &n)) {
        rc = -errno;
        close(fd);
        return fail(e, rc == -EADDRNOTAVAIL ? -EINVAL : rc, "%s port %d: %s", h->c.host, h->c.port,
                    strerror(-rc));
    }
    getnameinfo((struct sockaddr *)&bound, n, host, sizeof(host), port, sizeof(port),
                NI_NUMERICHOST | NI_NUMERICSERV);
    snprintf(h->address, sizeof(h->address), strchr(host, ':') ? "http://[%s]:%s" : "http://%s:%s",
             host, port);
    return add_listener(h, fd, e);
}

static int listen_host(struct http *h, struct err *e)
{
    struct addrinfo hints = { .ai_socktype = SOCK_STREAM, .ai_flags = AI_PASSIVE | AI_NUMERICHOST |
                                                                       AI_NUMERICSERV };
    size_t n = strlen(h->c.host);
    struct addrinfo *a = NULL;
    char port[8];
    int rc;

    if (n > 5 && !strcmp(h->c.host + n - 5, ".sock"))
        return listen_unix(h, e);
    snprintf(port, sizeof(port), "%d", h->c.port);
    if (getaddrinfo(strcmp(h->c.host, "localhost") ? h->c.host : "127.0.0.1", port, &hints, &a))
        return fail(e, -EINVAL, "--host %s: not an address of this machine", h->c.host);
    rc = listen_address(h, a, e);
    freeaddrinfo(a);
    return rc;
}

static int listen_given(struct http *h, int sockets, struct err *e)
{
    for (int fd = FIRST_SOCKET; fd < FIRST_SOCKET + sockets; fd++) {
        struct sockaddr_storage a = { .ss_family = AF_UNSPEC };
        socklen_t n = sizeof(a);
        int rc = getsockname(fd, (struct sockaddr *)&a, &n) ? -errno : 0;

        if (rc)
            return fail(e, rc, "descriptor %d is no socket: %s", fd, strerror(-rc));
        rc = check_reach(h, (struct sockaddr *)&a, e);
        if (!rc)
            rc = add_listener(h, fd, e);
        if (rc)
            return rc;
        h->others |= a.ss_family == AF_UNIX;
    }
    snprintf(h->address, sizeof(h->address), "%d sockets of systemd", sockets);
    return 0;
}

int http_open(struct http **out, struct event_base *base, const struct http_config *c,
              int sockets, struct err *e)
{
    struct http *h = calloc(1, sizeof(*h));
    struct connections_config cc = {
        .base = base, .limits = c->limits, .request = on_request, .refused = on_refused,
        .closed = on_closed, .arg = h,
    };
    int rc;

    if (!h)
        return fail(e, -ENOMEM, "out of memory");
    h->c = *c;
    h->base = base;
    h->resume = evtimer_new(base, on_resume, h);
    rc = h->resume ? connections_open(&h->connections, &cc, e)
                   : fail(e, -ENOMEM, "out of memory");
    if (!rc)
        rc = sockets ? listen_given(h, sockets, e) : listen_host(h, e);
    if (rc) {
        http_close(h);
        return rc;
    }
    *out = h;
    return 0;
}

void http_close(struct http *h)
{
    if (!h)
        return;
    for (int i = 0; i < h->listeners; i++)
        evconnlistener_free(h->listener[i]);
    connections_close(h->connections);
    if (h->resume)
        event_free(h->resume);
    if (h->path[0])
        unlink(h->path);
    free(h);
}

void http_refuse_new(struct http *h)
{
    h->refusing = true;
    listen_again(h, false);
}

const char *http_address(const struct http *h)
{
    return h->address;
}

int http_connections(const struct http *h)
{
    return connections_count(h->connections);
}

size_t http_backlog(const struct http *h)
{
    return connections_backlog(h->connections);
}
