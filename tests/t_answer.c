/* What a client is told of a request that ended with an errno: each of them by itself, and those
 * of damaged, missing and changed experts through a server, in all three APIs. */
#include "src/answer.h"
#include "src/engine_faults.h"
#include "tests/damage.h"
#include "tests/serve.h"
#include "tests/tap.h"

#include <errno.h>

#define CUT "tests/data/nano-w4a16-1"

static void each_errno(void)
{
    static const struct {
        int error, status;
        const char *code;
        int exit;
    } want[] = {
        { E2BIG,     400, "context_length_exceeded", 65 },
        { EINVAL,    400, "invalid_value",           64 },
        { EOVERFLOW, 400, "invalid_value",           65 },
        { ENOTSUP,   400, "unsupported",             78 },
        { EBADMSG,   500, "expert_data_error",       65 },
        { EIO,       500, "expert_io_error",         74 },
        { EDOM,      500, "nonfinite_logits",        70 },
        { ENODATA,   500, "no_candidate",            70 },
        { ETIMEDOUT, 500, "timeout",                 74 },
        { ENXIO,     503, "expert_io_error",         74 },
        { ETIME,     503, "storage_timeout",         74 },
        { ESTALE,    503, "checkpoint_changed",      65 },
        { ENOMEM,    503, "out_of_memory",           75 },
        { EREMOTEIO, 503, "gpu_fault",               71 },
        { ERANGE,    500, "internal",                70 },
    };
    struct err words = { "why" };

    for (size_t i = 0; i < sizeof(want) / sizeof(*want); i++) {
        const char *type = want[i].status < 500 ? "invalid_request_error" : "server_error";
        struct request_error e;

        answer_error(&e, -want[i].error, &words);
        ok(e.status == want[i].status && !strcmp(e.code, want[i].code) && !strcmp(e.type, type) &&
           !strcmp(e.message, "why") && exit_status(-want[i].error) == want[i].exit,
           "%s: %d %s %s, exit %d", strerror(want[i].error), e.status, e.type, e.code,
           exit_status(-want[i].error));
    }
}

static void no_tokens(void)
{
    struct request q = { .chat = false };
    struct shape shape = { .bos = -1 };
    char *dir = source_path(CUT);
    struct tokenizer *t = NULL;
    struct ids ids = { NULL, 0, 0 };
    struct err e;
    size_t n;
    char *json = read_file(dir, "tokenizer.json", &n);
    int32_t none = 0;

    if (tokenizer_open(&t, json, n, "tokenizer.json", 512, &e))
        exit((printf("Bail out! %s\n", e.text), 99));
    q.prompt_id = &none;
    ok(answer_prompt(&q, t, &shape, &ids, &e) == -EINVAL && strstr(e.text, "no tokens"), "%s",
       e.text);
    tokenizer_close(t);
    free(json);
    free(dir);
}

/* Each read of an expert ends so. */
static void fail_reads(void *arg, const struct read *r, uint64_t offset, uint32_t bytes,
                       struct stream_fault *f)
{
    (void)r;
    (void)offset;
    (void)bytes;
    f->result = -*(const int *)arg;
}

static bool start(struct serving *s, const char *model, const char *state,
                  const struct engine_faults *f)
{
    const char *const options[] = {
        "-m", model, "--state-dir", state, "--port", "0", "--device", "cpu", "-c", "256",
        "--ram-experts", "0", "--threads", "2", NULL,
    };
    bool started = serve_start_faulty(s, options, f);

    ok(started, "a server");
    return started;
}

/* The request in each API, streamed and not. */
static void ask(const struct serving *s, const char *name, int want, const char *code)
{
    static const struct {
        const char *path, *body, *broken;
    } api[] = {
        { "/v1/chat/completions", "{\"messages\":[{\"role\":\"user\",\"content\":\"Hello\"}]",
          "data: {\"error\":{" },
        { "/v1/completions", "{\"prompt\":\"Hello\"", "data: {\"error\":{" },
        { "/v1/responses", "{\"input\":\"Hello\"", "event: response.failed" },
        { "/v1/messages", "{\"max_tokens\":4,\"messages\":[{\"role\":\"user\","
          "\"content\":\"Hello\"}]", "event: error" },
    };

    for (size_t i = 0; i < sizeof(api) / sizeof(*api); i++) {
        bool messages = strstr(api[i].path, "/messages");
        const char *type = messages ? want == 503 ? "\"overloaded_error\"" : "\"api_error\""
                         : "\"server_error\"";
        const char *said = messages ? type : code;
        char body[512];
        struct text got;
        int status;

        snprintf(body, sizeof(body), "%s}", api[i].body);
        got = serve_post(s, api[i].path, body, &status);
        ok(status == want && strstr(got.s, said) && strstr(got.s, type), "%s: %s: %d %s", name,
           api[i].path, status, got.s);
        text_free(&got);
        snprintf(body, sizeof(body), "%s,\"stream\":true}", api[i].body);
        got = serve_post(s, api[i].path, body, &status);
        ok(status == 200 && strstr(got.s, api[i].broken) && strstr(got.s, said),
           "%s: %s, streamed: its event, and %s", name, api[i].path, said);
        text_free(&got);
    }
}

static void unread(const char *state, int error, int status, const char *code)
{
    struct engine_faults f = { .read = fail_reads, .read_arg = &error };
    char *model = source_path(CUT);
    struct serving s;

    if (start(&s, model, state, &f)) {
        ask(&s, strerror(error), status, code);
        ok(serve_stop(&s) == 0, "and it lives on");
        fclose(s.log);
    }
    free(model);
}

/* A scale that is no number in every expert. */
static void damaged(const char *state)
{
    static const bf16 nan = 0x7fc0;
    char *model = copy_model(CUT), name[128];
    struct serving s;

    for (int i = 0; i < 8; i++) {
        snprintf(name, sizeof(name), "model.layers.1.mlp.experts.%d.up_proj.weight_scale", i);
        patch(model, name, &nan, sizeof(nan));
    }
    if (start(&s, model, state, NULL)) {
        ask(&s, "a damaged scale", 500, "\"code\":\"expert_data_error\"");
        ok(serve_stop(&s) == 0, "and it lives on");
        fclose(s.log);
    }
    remove_dir(model);
}

/* More experts are needed than there are slots, so that some must be read. */
static void cut(const char *state)
{
    char *model = copy_model(CUT), path[4096];
    struct serving s;

    if (start(&s, model, state, NULL)) {
        join_path(path, model, "model.safetensors");
        ok(!truncate(path, 4096), "the shard is cut");
        ask(&s, "a cut shard", 503, "\"code\":\"checkpoint_changed\"");
        ok(serve_stop(&s) == 0, "and it lives on");
        fclose(s.log);
    }
    remove_dir(model);
}

int main(void)
{
    char *state = temp_dir();

    each_errno();
    no_tokens();
    unread(state, EIO, 500, "\"code\":\"expert_io_error\"");
    unread(state, EREMOTEIO, 500, "\"code\":\"expert_io_error\"");
    unread(state, ENODEV, 503, "\"code\":\"expert_io_error\"");
    damaged(state);
    cut(state);
    remove_dir(state);
    return done();
}
