/* Just enough HTTP for `top`: one request, one answer that is not chunked. */
#include "src/client.h"

#include <errno.h>
#include <netdb.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>

enum { SECONDS = 5, ANSWER_BYTES = 16 << 20 };

static int connect_unix(const char *path, struct err *e)
{
    struct sockaddr_un a = { .sun_family = AF_UNIX };
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0), rc;

    if (fd < 0 || strlen(path) >= sizeof(a.sun_path)) {
        if (fd >= 0)
            close(fd);
        return fail(e, -EINVAL, "%s: no path of a socket", path);
    }
    strcpy(a.sun_path, path);
    if (!connect(fd, (struct sockaddr *)&a, sizeof(a)))
        return fd;
    rc = -errno;
    close(fd);
    return fail(e, rc, "%s: %s", path, strerror(-rc));
}

static int connect_host(const char *host, const char *port, struct err *e)
{
    struct addrinfo hints = { .ai_socktype = SOCK_STREAM }, *all = NULL;
    int fd = -1, rc = getaddrinfo(host, port, &hints, &all);

    if (rc)
        return fail(e, -EINVAL, "%s port %s: %s", host, port, gai_strerror(rc));
    for (struct addrinfo *a = all; a && fd < 0; a = a->ai_next) {
        fd = socket(a->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
        rc = -errno;
        if (fd < 0 || !connect(fd, a->ai_addr, a->ai_addrlen))
            continue;
        rc = -errno;
        close(fd);
        fd = -1;
    }
    freeaddrinfo(all);
    return fd >= 0 ? fd : fail(e, rc, "%s port %s: %s", host, port, strerror(-rc));
}

static int connect_url(const char *url, struct err *e)
{
    char host[256], port[8] = "80";
    size_t n, at = 7;

    if (!strncmp(url, "unix:", 5))
        return connect_unix(url + 5, e);
    if (strncmp(url, "http://", 7))
        return fail(e, -EINVAL, "--url %s: begins neither with http:// nor with unix:", url);
    if (url[at] == '[')
        at++;
    n = strcspn(url + at, at == 8 ? "]" : ":/");
    snprintf(host, sizeof(host), "%.*s", (int)n, url + at);
    at += n + (url[at + n] == ']');
    if (url[at] == ':')
        snprintf(port, sizeof(port), "%.*s", (int)strcspn(url + at + 1, "/"), url + at + 1);
    return connect_host(host, port, e);
}

static int read_all(int fd, struct text *out, struct err *e)
{
    char s[16384];
    ssize_t n;

    while ((n = recv(fd, s, sizeof(s), 0)) > 0 && out->n < ANSWER_BYTES)
        text_add(out, s, (size_t)n);
    return n < 0 ? fail(e, -errno, "the server: %s", strerror(errno)) : 0;
}

int client_get(struct text *out, const char *url, const char *path, const char *key, struct err *e)
{
    struct text request = { NULL, 0, 0, false }, answer = { NULL, 0, 0, false };
    struct timeval patience = { SECONDS, 0 };
    const char *body;
    int fd = connect_url(url, e), rc = 0, status;

    if (fd < 0)
        return fd;
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience));
    text_printf(&request, "GET %s HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n", path);
    if (key)
        text_printf(&request, "Authorization: Bearer %s\r\n", key);
    text_puts(&request, "\r\n");
    if (request.failed || send(fd, request.s, request.n, MSG_NOSIGNAL) != (ssize_t)request.n)
        rc = fail(e, -EIO, "the server: %s", strerror(errno));
    if (!rc)
        rc = read_all(fd, &answer, e);
    body = !rc && answer.n ? strstr(answer.s, "\r\n\r\n") : NULL;
    status = answer.n > 12 ? (int)strtol(answer.s + 9, NULL, 10) : 0;
    if (!rc && status == 401)
        rc = fail(e, -EACCES, "%s wants a key (--api-key-file)", url);
    else if (!rc && (!body || status != 200))
        rc = fail(e, -EIO, "%s%s: answered with status %d", url, path, status);
    if (!rc)
        text_puts(out, body + 4);
    close(fd);
    text_free(&request);
    text_free(&answer);
    return rc;
}
