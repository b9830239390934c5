/* The server over the nano model, from outside: transport, who may ask, the three APIs, clients
 * that leave, the queue, and the end. */
#include "tests/files.h"
#include "tests/serve.h"
#include "tests/tap.h"

#include <dirent.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#define HOST "Host: localhost\r\n"
#define HELLO "{\"messages\":[{\"role\":\"user\",\"content\":\"Hello\"}],\"temperature\":0," \
              "\"max_tokens\":16"

struct raw {
    const char *name, *bytes, *statuses;
};

static const struct raw RAW[] = {
    { "three requests in one piece", "GET /health HTTP/1.1\r\n" HOST "\r\nGET /nope HTTP/1.1\r\n"
      HOST "\r\nGET /version HTTP/1.1\r\n" HOST "Connection: close\r\n\r\n", "200 404 200 " },
    { "the second of three is malformed", "GET /health HTTP/1.1\r\n" HOST "\r\nGET /a b\r\n\r\n"
      "GET /health HTTP/1.1\r\n" HOST "\r\n", "200 400 " },
    { "a chunked body", "POST /tokenize HTTP/1.1\r\n" HOST "Transfer-Encoding: chunked\r\n"
      "Connection: close\r\n\r\n5\r\n{\"con\r\nc\r\ntent\":\"abc\"}\r\n0\r\n\r\n", "200 " },
    { "a chunk that is longer than it says", "POST /tokenize HTTP/1.1\r\n" HOST
      "Transfer-Encoding: chunked\r\n\r\n1\r\n{}\r\n0\r\n\r\n", "400 " },
    { "a trailer", "POST /tokenize HTTP/1.1\r\n" HOST "Transfer-Encoding: chunked\r\n\r\n"
      "2\r\n{}\r\n0\r\nX: y\r\n\r\n", "400 " },
    { "too large a body", "POST /tokenize HTTP/1.1\r\n" HOST "Content-Length: 99999999\r\n\r\n",
      "413 " },
    { "waiting for 100", "POST /tokenize HTTP/1.1\r\n" HOST "Expect: 100-continue\r\n"
      "Content-Length: 15\r\nConnection: close\r\n\r\n{\"content\":\"a\"}", "100 200 " },
    { "a foreign name of this machine", "GET /models HTTP/1.1\r\nHost: evil.example\r\n"
      "Connection: close\r\n\r\n", "403 " },
    { "a foreign page", "POST /tokenize HTTP/1.1\r\n" HOST "Origin: http://evil.example\r\n"
      "Content-Length: 2\r\nConnection: close\r\n\r\n{}", "403 " },
    { "a form of a page", "POST /tokenize HTTP/1.1\r\n" HOST "Content-Type: text/plain\r\n"
      "Content-Length: 2\r\nConnection: close\r\n\r\n{}", "415 " },
    { "OPTIONS without a listed origin", "OPTIONS / HTTP/1.1\r\n" HOST "Connection: close\r\n\r\n",
      "405 " },
    { "half a head", "GET / HT", "408 " },
};

static double now(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

/* The statuses of all answers in what came. */
static void statuses(const struct text *got, char *out, size_t n)
{
    const char *at = got->s;

    *out = 0;
    while ((at = strstr(at, "HTTP/1.1 "))) {
        size_t used = strlen(out);

        snprintf(out + used, n - used, "%.3s ", at + 9);
        at += 9;
    }
}

static void test_transport(const struct serving *s)
{
    for (size_t i = 0; i < sizeof(RAW) / sizeof(*RAW); i++) {
        struct text got = serve_exchange(s, RAW[i].bytes, strlen(RAW[i].bytes), 5);
        char seen[64];

        statuses(&got, seen, sizeof(seen));
        ok(!strcmp(seen, RAW[i].statuses), "%s: %s", RAW[i].name, seen);
        text_free(&got);
    }
}

static bool answers(const struct serving *s, const char *path, const char *body, int want,
                    const char *word)
{
    int status;
    struct text got = body ? serve_post(s, path, body, &status) : serve_get(s, path, &status);
    bool good = status == want && strstr(got.s, word);

    if (!good)
        printf("# %s: %d %s\n", path, status, got.s);
    text_free(&got);
    return good;
}

static void test_apis(const struct serving *s)
{
    ok(answers(s, "/v1/chat/completions", HELLO "}", 200, "Hello! How can I help you?"), "chat");
    ok(answers(s, "/chat/completions", HELLO ",\"stream\":true}", 200, "data: [DONE]"),
       "chat, streamed, without /v1");
    ok(answers(s, "/v1/completions", "{\"prompt\":[\"The \",\"A \"],\"max_tokens\":2}", 200,
               "\"index\":1"), "two prompts give two choices");
    ok(answers(s, "/v1/completions", "{\"prompt\":[[2,100],[2,200]],\"max_tokens\":0}", 200,
               "\"completion_tokens\":0"), "prompts of ids, only read");
    ok(answers(s, "/v1/responses", "{\"input\":\"Hello\",\"temperature\":0}", 200,
               "\"type\":\"output_text\",\"text\":\"Hello! How can I help you?\""), "responses");
    ok(answers(s, "/v1/responses", "{\"input\":\"Hello\",\"stream\":true}", 200,
               "event: response.completed"), "responses, streamed");
    ok(answers(s, "/v1/responses", "{\"input\":\"Hello\",\"previous_response_id\":\"x\"}", 400,
               "previous_response_id"), "responses keep nothing, and say so");
    ok(answers(s, "/v1/messages?beta=true", "{\"max_tokens\":16,\"temperature\":0,\"messages\":"
               "[{\"role\":\"user\",\"content\":\"Hello\"}]}", 200, "\"stop_reason\":\"end_turn\""),
       "messages");
    ok(answers(s, "/v1/messages", "{\"max_tokens\":16,\"stream\":true,\"messages\":"
               "[{\"role\":\"user\",\"content\":\"Hello\"}]}", 200, "event: message_stop"),
       "messages, streamed");
    for (int i = 0; i < 2; i++)
        ok(answers(s, "/v1/messages", i ? "{\"max_tokens\":-1,\"messages\":[{\"role\":\"user\","
                   "\"content\":\"Hello\"}]}" : "{\"max_tokens\":0,\"messages\":[{\"role\":"
                   "\"user\",\"content\":\"Hello\"}]}", 400, "invalid_request_error"),
           "messages of %s tokens are refused", i ? "-1" : "no");
    ok(answers(s, "/v1/messages", "{\"messages\":1}", 400, "{\"type\":\"error\",\"error\":"),
       "errors of messages have their own form");
    ok(answers(s, "/v1/chat/completions", HELLO ",\"tools\":[{\"type\":\"function\",\"function\":"
               "{\"name\":\"f\"}}],\"tool_choice\":\"required\"}", 200, "\"name\":\"f\""),
       "a call that is required comes");
    ok(answers(s, "/v1/embeddings", "{}", 404, "not_found"), "no embeddings");
    ok(answers(s, "/v1/chat/completions", NULL, 405, "method_not_allowed"),
       "GET where POST is due");
    ok(answers(s, "/health", NULL, 200, "\"status\":\"ok\""), "health");
    ok(answers(s, "/metrics", NULL, 200, "laguna_generated_tokens_total"), "metrics");
}

/* A streamed token's place is that in the whole text, as where the answer comes at once. */
static void test_offsets(const struct serving *s)
{
    static const char body[] = "{\"prompt\":\"The river\",\"max_tokens\":6,\"temperature\":0,"
                               "\"logprobs\":0,\"ignore_eos\":true,\"stream\":%s}";
    char asked[256], offsets[2][256] = { "", "" };
    int status;

    for (int i = 0; i < 2; i++) {
        struct text got;

        snprintf(asked, sizeof(asked), body, i ? "true" : "false");
        got = serve_post(s, "/v1/completions", asked, &status);
        for (const char *at = got.s; (at = strstr(at, "\"text_offset\":[")); at++) {
            size_t used = strlen(offsets[i]), from = strlen("\"text_offset\":[");

            snprintf(offsets[i] + used, sizeof(offsets[i]) - used, "%s%.*s", used ? "," : "",
                     (int)strcspn(at + from, "]"), at + from);
        }
        text_free(&got);
    }
    ok(strchr(offsets[0], ',') && !strcmp(offsets[0], offsets[1]),
       "text_offset is the same streamed: %s, %s", offsets[0], offsets[1]);
}

/* Each line has the form that was asked for, and one says what is in force. */
static void test_log(const char *model, const char *format, const char *begin, const char *state)
{
    const char *const options[] = { "-m", model, "--port", "0", "-v", "--log-format", format,
                                    "--prefix-debug", NULL };
    char line[4096] = "";
    struct serving s;
    int status, lines = 0, good = 0;
    struct text got;

    if (!serve_start(&s, options)) {
        ok(false, "a server with a log in %s starts", format);
        return;
    }
    ok(strstr(s.said.s, state) && strstr(s.said.s, "\"kv_type\":\"q8\"") &&
       strstr(s.said.s, "\"notices\":["), "%s: a line says what is in force", format);
    for (char *at = s.said.s; *at; at = strchr(at, '\n') + 1) {
        lines++;
        good += !strncmp(at, begin, strlen(begin));
    }
    got = serve_post(&s, "/v1/chat/completions", HELLO "}", &status);
    text_free(&got);
    while (!strstr(line, "/chat/completions") && fgets(line, sizeof(line), s.log)) {
        lines++;
        good += !strncmp(line, begin, strlen(begin));
    }
    ok(lines >= 4 && good == lines, "%s: %d of %d lines have its form", format, good, lines);
    ok(serve_stop(&s) == 0, "and it ends");
}

/* The billing header differs from request to request, and must not reach the prompt. */
static void test_billing(const struct serving *s)
{
    int status;
    struct text with = serve_post(s, "/v1/messages/count_tokens", "{\"system\":[{\"type\":\"text\","
                                  "\"text\":\"x-anthropic-billing-header: cch=1;\"},{\"type\":"
                                  "\"text\",\"text\":\"Be short.\"}],\"messages\":[{\"role\":"
                                  "\"user\",\"content\":\"a\"}]}", &status);
    struct text without = serve_post(s, "/v1/messages/count_tokens", "{\"system\":\"Be short.\","
                                     "\"messages\":[{\"role\":\"user\",\"content\":\"a\"}]}",
                                     &status);

    ok(with.n && !strcmp(with.s, without.s), "the billing header is dropped: %s", with.s);
    text_free(&with);
    text_free(&without);
}

/* Begin an endless answer, and leave. */
static int begin_endless(const struct serving *s, bool stream)
{
    struct text r = { NULL, 0, 0, false };
    static const char body[] =
        "{\"messages\":[{\"role\":\"user\",\"content\":\"Tell me about ls.\"}],"
                               "\"ignore_eos\":true,\"max_tokens\":30000,\"stream\":%s}";
    int fd = serve_connect(s);
    size_t n = sizeof(body) - 3 + (stream ? 4 : 5);

    text_printf(&r, "POST /v1/chat/completions HTTP/1.1\r\n" HOST
                "Content-Type: application/json\r\nContent-Length: %zu\r\n\r\n", n);
    text_printf(&r, body, stream ? "true" : "false");
    send(fd, r.s, r.n, MSG_NOSIGNAL);
    text_free(&r);
    return fd;
}

/* Wait until /stats says this; false after five seconds. */
static bool wait_stats(const struct serving *s, const char *word)
{
    double end = now() + 5;

    while (now() < end) {
        int status;
        struct text got = serve_get(s, "/stats", &status);
        bool there = strstr(got.s, word);

        text_free(&got);
        if (there)
            return true;
        usleep(2000);
    }
    return false;
}

static void test_leaving(const struct serving *s)
{
    static const char *const how[] = { "whole, FIN", "whole, RST", "streamed, FIN",
                                       "streamed, RST" };

    for (int i = 0; i < 4; i++) {
        struct linger reset = { 1, 0 };
        int fd = begin_endless(s, i & 2);
        bool began = wait_stats(s, "\"running\":1"), ended;
        double left = now();

        if (i & 1)
            setsockopt(fd, SOL_SOCKET, SO_LINGER, &reset, sizeof(reset));
        close(fd);
        ended = wait_stats(s, "\"running\":0");
        ok(began && ended, "a client that leaves frees the engine (%s): %.0f ms", how[i],
           (now() - left) * 1e3);
    }
}

/* Files in the folder, and whether to remove them. */
static int files(const char *dir, bool clean)
{
    DIR *d = opendir(dir);
    const struct dirent *f;
    int n = 0;

    while (d && (f = readdir(d)))
        if (f->d_name[0] != '.') {
            n++;
            if (clean)
                unlinkat(dirfd(d), f->d_name, 0);
        }
    if (d)
        closedir(d);
    return n;
}

/* What the router taught is saved once nobody asks, and at the end. */
static void test_saving(const struct serving *s, const char *state)
{
    bool good = answers(s, "/v1/chat/completions", HELLO "}", 200, "Hello!");

    files(state, true);
    for (int i = 0; i < 500 && !files(state, false); i++)
        usleep(20000);
    ok(good && files(state, true) == 1, "statistics are saved while nobody asks");
    ok(answers(s, "/v1/chat/completions", HELLO ",\"cache_prompt\":false}", 200, "Hello!"),
       "one more answer");
}

static void test_queue(const struct serving *s)
{
    int fd[3], status;
    struct text got;

    for (int i = 0; i < 3; i++)
        fd[i] = begin_endless(s, true);
    ok(wait_stats(s, "\"waiting\":2"), "two wait behind one");
    got = serve_post(s, "/v1/chat/completions", HELLO "}", &status);
    ok(status == 429 && strstr(got.s, "queue_full"), "the fourth is sent away: %d", status);
    text_free(&got);
    close(fd[1]);
    ok(wait_stats(s, "\"waiting\":1"), "one that waits may leave");
    close(fd[0]);
    close(fd[2]);
    ok(wait_stats(s, "\"running\":0"), "and so may the others");
}

static void test_keys(const char *model)
{
    const char *const options[] = { "-m", model, "--port", "0", "--api-key", "abc,def",
                                    "--cors-origins", "http://page.example", NULL };
    static const char *const requests[][2] = {
        { "GET /models HTTP/1.1\r\n" HOST "Connection: close\r\n\r\n", "401 " },
        { "GET /models HTTP/1.1\r\n" HOST "Authorization: Bearer ab\r\nConnection: close\r\n\r\n",
          "401 " },
        { "GET /models HTTP/1.1\r\n" HOST "Authorization: Bearer def\r\nConnection: close\r\n\r\n",
          "200 " },
        { "GET /models HTTP/1.1\r\n" HOST "x-api-key: abc\r\nConnection: close\r\n\r\n", "200 " },
        { "GET /health HTTP/1.1\r\n" HOST "Connection: close\r\n\r\n", "200 " },
        { "OPTIONS /models HTTP/1.1\r\n" HOST "Origin: http://page.example\r\n"
          "Connection: close\r\n\r\n", "204 " },
    };
    struct serving s;

    if (!serve_start(&s, options)) {
        ok(false, "a server with keys starts");
        return;
    }
    for (size_t i = 0; i < sizeof(requests) / sizeof(*requests); i++) {
        struct text got = serve_exchange(&s, requests[i][0], strlen(requests[i][0]), 5);
        char seen[64];

        statuses(&got, seen, sizeof(seen));
        ok(!strcmp(seen, requests[i][1]), "keys, request %zu: %s", i, seen);
        text_free(&got);
    }
    ok(serve_stop(&s) == 0, "the server with keys ends");
}

int main(void)
{
    char model[1024], state[] = "/tmp/t_serve.XXXXXX";
    const char *const options[] = { "-m", model, "--state-dir", state, "--port", "0", "--queue",
                                    "2", "--head-seconds", "1", "--drain-seconds", "1", NULL };
    struct serving s;
    double start;
    int fd;

    snprintf(model, sizeof(model), "%s/models/nano", source_dir());
    if (!mkdtemp(state) || !serve_start(&s, options)) {
        ok(false, "the server starts");
        return done();
    }
    test_transport(&s);
    test_apis(&s);
    test_offsets(&s);
    test_billing(&s);
    test_leaving(&s);
    test_queue(&s);
    test_saving(&s, state);
    fd = begin_endless(&s, true);
    wait_stats(&s, "\"running\":1");
    start = now();
    ok(serve_stop(&s) == 0 && now() - start < 5, "SIGTERM ends it in the middle of an answer");
    close(fd);
    ok(files(state, true) == 1 && !rmdir(state), "and what it learned is saved");
    test_keys(model);
    test_log(model, "text", "laguna-offload: ", "\nlaguna-offload: state {");
    test_log(model, "json", "{\"event\":\"", "{\"event\":\"state\",\"state\":{");
    test_log(model, "journal", "<", "<6>laguna-offload: state {");
    return done();
}
