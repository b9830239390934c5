/* The server under many clients at once, and a long conversation: nothing is refused, nothing is
 * read twice.  How fast that is, tests/bench_serve.py says. */
#include "tests/serve.h"
#include "tests/files.h"
#include "tests/tap.h"

#include <poll.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

enum { STREAMS = 32, IDLE = 256 };

/* "name":N in s, the first; -1 where it is not there. */
static long number(const char *s, const char *name)
{
    char key[64];
    const char *at;

    snprintf(key, sizeof(key), "\"%s\":", name);
    at = strstr(s, key);
    return at ? strtol(at + strlen(key), NULL, 10) : -1;
}

/* An answer to these messages, the text of a JSON array. */
static struct text chat(const struct serving *s, const struct text *messages)
{
    struct text body = { NULL, 0, 0, false }, got;
    int status;

    text_printf(&body, "{\"temperature\":0,\"max_tokens\":24,\"messages\":[%s]}", messages->s);
    got = serve_post(s, "/v1/chat/completions", body.s, &status);
    if (status != 200)
        printf("# %d %s\n", status, got.s);
    text_free(&body);
    return got;
}

/* What the model said goes back with the history, and then only the new message is read: the
 * windows of the sliding layers, 64 tokens long, have passed by many times. */
static void test_second_turn(const struct serving *s, int sentences)
{
    struct text messages = { NULL, 0, 0, false }, first, second, said = { NULL, 0, 0, false };
    struct err e;
    cJSON *node;
    const cJSON *content;
    long prompt, made, again, cached;

    text_puts(&messages, "{\"role\":\"user\",\"content\":\"");
    for (int i = 0; i < sentences; i++)
        text_printf(&messages, "The river of the cloud number %d is silver. ", i);
    text_puts(&messages, "What is grep?\"}");
    first = chat(s, &messages);
    prompt = number(first.s, "prompt_tokens");
    made = number(first.s, "completion_tokens");
    node = json_parse(first.s, first.n, &JSON_REQUEST, &e);
    content = json_get(cJSON_GetArrayItem(json_get(node, "choices"), 0), "message");
    content = json_get(content, "content");
    if (cJSON_IsString(content))
        text_json_string(&said, content->valuestring, strlen(content->valuestring));
    else
        text_puts(&said, "null");
    text_printf(&messages, ",{\"role\":\"assistant\",\"content\":%s},"
                "{\"role\":\"user\",\"content\":\"What is tar?\"}", said.s);
    second = chat(s, &messages);
    again = number(second.s, "prompt_tokens");
    cached = number(second.s, "cached_tokens");
    /* The last token made was never fed, so that it may be read with the new message. */
    ok(prompt > 64 && cached >= prompt + made - 1 && cached < again,
       "a second turn reads what is new: %ld and %ld tokens, then %ld of %ld are kept", prompt,
       made, cached, again);
    cJSON_Delete(node);
    text_free(&messages);
    text_free(&said);
    text_free(&first);
    text_free(&second);
}

static int begin_stream(const struct serving *s, int i)
{
    struct text body = { NULL, 0, 0, false }, r = { NULL, 0, 0, false };
    int fd = serve_connect(s);

    text_printf(&body, "{\"stream\":true,\"max_tokens\":8,\"ignore_eos\":true,\"messages\":[{"
                "\"role\":\"user\",\"content\":\"Hello %d\"}]}", i);
    text_printf(&r, "POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nConnection: close"
                "\r\nContent-Type: application/json\r\nContent-Length: %zu\r\n\r\n%s", body.n,
                body.s);
    if (fd >= 0)
        send(fd, r.s, r.n, MSG_NOSIGNAL);
    text_free(&body);
    text_free(&r);
    return fd;
}

/* Everything until the server closes, or is silent for long. */
static struct text read_all(int fd)
{
    struct pollfd p = { .fd = fd, .events = POLLIN };
    struct text got = { NULL, 0, 0, false };
    char buf[4096];
    ssize_t n;

    text_puts(&got, "");
    while (poll(&p, 1, serve_patience(60) * 1000) > 0 && (n = recv(fd, buf, sizeof(buf), 0)) > 0)
        text_add(&got, buf, (size_t)n);
    return got;
}

static void test_many(const struct serving *s)
{
    int idle[IDLE], fd[STREAMS], opened = 0, whole = 0, status;
    struct text stats;

    for (int i = 0; i < IDLE; i++) {
        idle[i] = serve_connect(s);
        opened += idle[i] >= 0;
    }
    for (int i = 0; i < STREAMS; i++)
        fd[i] = begin_stream(s, i);
    for (int i = 0; i < STREAMS; i++) {
        struct text got = read_all(fd[i]);
        bool good = strstr(got.s, " 200 ") && strstr(got.s, "\"finish_reason\":\"length\"") &&
                    strstr(got.s, "data: [DONE]") && !strstr(got.s, "\"error\"");

        whole += good;
        if (!good)
            printf("# stream %d: %.300s\n", i, got.s);
        text_free(&got);
        close(fd[i]);
    }
    ok(opened == IDLE && whole == STREAMS, "%d connections idle, %d of %d streams whole", opened,
       whole, STREAMS);
    for (int i = 0; i < IDLE; i++)
        close(idle[i]);
    stats = serve_get(s, "/stats", &status);
    ok(number(stats.s, "running") == 0 && number(stats.s, "waiting") == 0 &&
       number(stats.s, "failed") <= 0 && number(stats.s, "refused") <= 0,
       "and nothing is left of them: %.300s", stats.s);
    text_free(&stats);
}

/* t_load SENTENCES: a longer conversation, eleven tokens a sentence. */
int main(int argc, char **argv)
{
    char model[1024];
    const char *const options[] = { "-m", model, "--port", "0", "--queue", "64", NULL };
    struct serving s;

    snprintf(model, sizeof(model), "%s/models/nano", source_dir());
    if (!serve_start(&s, options)) {
        ok(false, "the server starts");
        return done();
    }
    test_second_turn(&s, argc > 1 ? atoi(argv[1]) : 60);
    test_many(&s);
    ok(serve_stop(&s) == 0, "the server ends");
    return done();
}
