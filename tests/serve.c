#include "tests/serve.h"
#include "src/options.h"
#include "src/server.h"

#include <arpa/inet.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

static void run_server(int err, const char *const *options,
                       const struct engine_faults *faults)
{
    const char *argv[32] = { "laguna-offload", "serve" };
    struct options o;
    struct err e;
    int argc = 2, rc;

    while (*options && argc < 31)
        argv[argc++] = *options++;
    dup2(err, 2);
    signal(SIGPIPE, SIG_IGN);
    rc = options_parse(&o, argc, (char **)(uintptr_t)argv, &e);
    o.faults = faults;
    if (!rc)
        rc = server_run(&o, &e);
    if (rc)
        fprintf(stderr, "%s\n", e.text);
    options_free(&o);
    /* What the test program itself has not printed yet is its own. */
    _exit(exit_status(rc));
}

bool serve_start(struct serving *s, const char *const *options)
{
    return serve_start_faulty(s, options, NULL);
}

bool serve_start_faulty(struct serving *s, const char *const *options,
                        const struct engine_faults *faults)
{
    int pipes[2];
    char line[4096];
    const char *port = NULL;
    FILE *f;

    *s = (struct serving){ .pid = 0 };
    if (pipe(pipes))
        return false;
    fflush(stdout);
    s->pid = fork();
    if (!s->pid) {
        close(pipes[0]);
        run_server(pipes[1], options, faults);
    }
    close(pipes[1]);
    s->log = f = fdopen(pipes[0], "r");
    while (!port && fgets(line, sizeof(line), f)) {
        text_puts(&s->said, line);
        if (strstr(line, "listening on http://"))
            port = strrchr(line, ':') + 1;
        else
            printf("# %s", line);
    }
    s->port = port ? atoi(port) : 0;
    /* The pipe stays open: closing it would kill the server's next word. */
    return s->port > 0;
}

int serve_stop(struct serving *s)
{
    int status;

    text_free(&s->said);
    kill(s->pid, SIGTERM);
    if (waitpid(s->pid, &status, 0) != s->pid || !WIFEXITED(status))
        return -1;
    return WEXITSTATUS(status);
}

int serve_connect(const struct serving *s)
{
    struct sockaddr_in a = { .sin_family = AF_INET, .sin_port = htons((uint16_t)s->port) };
    int fd = socket(AF_INET, SOCK_STREAM, 0);

    a.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    if (connect(fd, (struct sockaddr *)&a, sizeof(a))) {
        close(fd);
        return -1;
    }
    return fd;
}

int serve_patience(int seconds)
{
    const char *times = getenv("TEST_PATIENCE");
    int n = times ? atoi(times) : 1;

    return n > 1 && n <= 1000 ? seconds * n : seconds;
}

struct text serve_exchange(const struct serving *s, const char *bytes, size_t n, int seconds)
{
    struct text got = { NULL, 0, 0, false };
    int fd = serve_connect(s);
    struct pollfd p = { .fd = fd, .events = POLLIN };
    char buf[16384];
    ssize_t m;

    text_puts(&got, "");
    for (size_t at = 0; at < n; at += (size_t)m) {
        m = send(fd, bytes + at, n - at, MSG_NOSIGNAL);
        if (m <= 0)
            break;
    }
    seconds = serve_patience(seconds);
    while (poll(&p, 1, seconds * 1000) > 0 && (m = recv(fd, buf, sizeof(buf), 0)) > 0)
        text_add(&got, buf, (size_t)m);
    close(fd);
    return got;
}

/* The body of an answer, without its chunks. */
static struct text body_of(const struct text *answer, int *status)
{
    struct text out = { NULL, 0, 0, false };
    const char *at = strstr(answer->s, "\r\n\r\n");
    bool chunked = strstr(answer->s, "\r\nTransfer-Encoding: chunked\r\n") != NULL;

    *status = answer->n > 12 ? atoi(answer->s + 9) : 0;
    text_puts(&out, "");
    if (!at)
        return out;
    at += 4;
    if (!chunked)
        text_add(&out, at, answer->n - (size_t)(at - answer->s));
    while (chunked) {
        char *end;
        size_t n = strtoul(at, &end, 16);

        if (!n || end + 2 + n > answer->s + answer->n)
            break;
        text_add(&out, end + 2, n);
        at = end + 2 + n + 2;
    }
    return out;
}

static struct text ask(const struct serving *s, const struct text *request, int *status)
{
    struct text answer = serve_exchange(s, request->s, request->n, 30);
    struct text body = body_of(&answer, status);

    text_free(&answer);
    return body;
}

struct text serve_post(const struct serving *s, const char *path, const char *body, int *status)
{
    struct text request = { NULL, 0, 0, false }, answer;

    text_printf(&request, "POST %s HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
                "Content-Type: application/json\r\nContent-Length: %zu\r\n\r\n%s", path,
                strlen(body), body);
    answer = ask(s, &request, status);
    text_free(&request);
    return answer;
}

struct text serve_get(const struct serving *s, const char *path, int *status)
{
    struct text request = { NULL, 0, 0, false }, answer;

    text_printf(&request, "GET %s HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n", path);
    answer = ask(s, &request, status);
    text_free(&request);
    return answer;
}
