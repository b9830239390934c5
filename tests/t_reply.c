#include "src/reply.h"
#include "tests/data.h"
#include "tests/tap.h"

#include <math.h>

static struct tokenizer *tokenizer;
static struct err e;

/* The output as a tree again: this is what makes it valid JSON and UTF-8. */
static cJSON *read_back(const struct text *t)
{
    cJSON *node = t->failed || memchr(t->s, '\n', t->n) ? NULL
                                                        : json_parse(t->s, t->n, &JSON_REQUEST, &e);

    if (!node)
        printf("# %s: %s\n", e.text, t->s);
    return node;
}

static bool says(const cJSON *node, const char *want)
{
    struct text t = { 0 };
    bool same;

    if (node)
        text_json_python(&t, node);
    same = t.s && !strcmp(t.s, want);
    if (!same)
        printf("# %s\n", t.s ? t.s : "(nothing)");
    text_free(&t);
    return same;
}

static void message_push(struct message *m, enum event_kind kind, const char *s)
{
    const struct event v = { kind, s, strlen(s) };

    message_event(m, &v);
}

static void fill(struct message *m)
{
    message_push(m, EVENT_REASONING, "pl");
    message_push(m, EVENT_REASONING, "an");
    message_push(m, EVENT_CONTENT, "bad \xff\xe2\x82 \"x\"\n");
    message_push(m, EVENT_CALL, "f");
    message_push(m, EVENT_ARGUMENTS, "{\"a\": ");
    message_push(m, EVENT_ARGUMENTS, "1}");
    message_push(m, EVENT_CALL_END, "");
    message_push(m, EVENT_CALL, "g");
    message_push(m, EVENT_ARGUMENTS, "{\"b\": ");
    message_push(m, EVENT_CALL_BROKEN, "<tool_call>g...");
}

static void chat(void)
{
    static const int32_t ids[] = { 5, 24 };
    struct message m = { 0 };
    const struct timings g = { .prompt_n = 10, .prompt_ms = 20, .predicted_n = 2,
                               .predicted_ms = 0, .cache_n = 3, .ram = UINT64_MAX };
    struct reply r = { .chat = true, .id = "chatcmpl-1", .model = "a\"b", .created = 5,
                       .finish = FINISH_STOP, .message = &m, .usage = { 13, 3, 2, 1 },
                       .token_id = ids, .token_ids = 2, .timings = &g };
    struct text t = { 0 };
    const cJSON *choice, *said, *call;
    cJSON *o;

    fill(&m);
    reply_json(&t, &r, tokenizer);
    o = read_back(&t);
    choice = json_get(o, "choices") ? json_get(o, "choices")->child : NULL;
    said = json_get(choice, "message");
    ok(says(json_get(o, "object"), "\"chat.completion\"") && says(json_get(o, "created"), "5") &&
       says(json_get(o, "model"), "\"a\\\"b\"") && says(json_get(o, "id"), "\"chatcmpl-1\""),
       "head");
    ok(says(json_get(said, "reasoning"), "\"plan\"") &&
       says(json_get(said, "reasoning_content"), "\"plan\""), "thoughts under both names");
    ok(says(json_get(said, "content"),
            "\"bad \xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd \\\"x\\\"\\n<tool_call>g...\""),
       "content is UTF-8, with the call that broke");
    call = json_get(said, "tool_calls") ? json_get(said, "tool_calls")->child : NULL;
    ok(call && !call->next && says(json_get(call, "type"), "\"function\"") &&
       says(json_get(call, "function"), "{\"name\": \"f\", \"arguments\": \"{\\\"a\\\": 1}\"}"),
       "one call");
    ok(json_get(call, "id") && strlen(json_get(call, "id")->valuestring) == 29 &&
       !strncmp(json_get(call, "id")->valuestring, "call_", 5), "its id");
    ok(says(json_get(choice, "finish_reason"), "\"tool_calls\"") &&
       says(json_get(choice, "token_ids"), "[5, 24]") && says(json_get(choice, "index"), "0") &&
       says(json_get(choice, "logprobs"), "null"), "the rest of the choice");
    ok(says(json_get(o, "usage"), "{\"prompt_tokens\": 13, \"completion_tokens\": 2, "
            "\"total_tokens\": 15, \"prompt_tokens_details\": {\"cached_tokens\": 3}, "
            "\"completion_tokens_details\": {\"reasoning_tokens\": 1}}"), "usage");
    ok(says(json_get(o, "timings"), "{\"prompt_n\": 10, \"prompt_ms\": 20.0, "
            "\"prompt_per_second\": 500.0, \"predicted_n\": 2, \"predicted_ms\": 0.0, "
            "\"predicted_per_second\": 0.0, \"cache_n\": 3, \"tiers\": {\"vram\": 0, "
            "\"ram\": 18446744073709551615, \"nvme\": 0}, \"io_wait_ms\": 0.0}"), "timings");
    ok(!strcmp(reply_finish(FINISH_LENGTH, 1), "length") &&
       !strcmp(reply_finish(FINISH_STOP, 0), "stop"), "why it ended");
    cJSON_Delete(o);
    text_free(&t);
    message_free(&m);
}

/* What we send as a message must be one that we take back. */
static void taken_back(void)
{
    struct text t = { 0 };
    struct message m = { 0 };
    struct request q;
    struct request_error why;
    int i, rc;

    for (i = 0; i < 3; i++) {
        t.n = 0;
        if (i == 1)
            message_push(&m, EVENT_CALL, "f");
        if (i == 1)
            message_push(&m, EVENT_ARGUMENTS, "{}");
        if (i == 2)
            fill(&m);
        text_puts(&t, "{\"messages\":[");
        reply_message(&t, &m);
        text_puts(&t, "]}");
        rc = request_parse(&q, t.s, t.n, 4096, &why);
        ok(!rc, "message %d sent back: %s", i, rc ? why.message : t.s);
        request_free(&q);
    }
    text_free(&t);
    message_free(&m);
}

static int32_t id_of(const char *s, size_t n)
{
    int32_t id, vocab = tokenizer_vocab(tokenizer);
    size_t len;

    for (id = 0; id < vocab; id++) {
        const char *bytes = tokenizer_bytes(tokenizer, id, &len);

        if (bytes && len == n && !memcmp(bytes, s, n) && !tokenizer_added(tokenizer, id))
            return id;
    }
    return -1;
}

static void logprobs(void)
{
    const struct alternative alt[] = { { id_of("a", 1), -0.5f }, { id_of("\"", 1), -INFINITY },
                                       { id_of("\xe2", 1), -2 } };
    const struct reply_token token[] = {
        { 2, NAN, true, NULL, 0 },
        { alt[2].id, -2, false, alt, 3 },
        { id_of("b", 1), -3.25f, false, alt, 2 },
        { 24, -1, true, alt, 1 },
    };
    struct reply r = { .id = "cmpl-1", .model = "m", .text = "\xe2" "b", .text_n = 2,
                       .finish = FINISH_LENGTH, .logprobs = true, .token = token, .tokens = 4 };
    struct text t = { 0 };
    const cJSON *choice, *lp;
    cJSON *o;

    ok(alt[0].id >= 0 && alt[1].id >= 0 && alt[2].id >= 0 && token[2].id >= 0, "tokens are found");
    reply_json(&t, &r, tokenizer);
    o = read_back(&t);
    choice = json_get(o, "choices") ? json_get(o, "choices")->child : NULL;
    lp = json_get(choice, "logprobs");
    ok(says(json_get(o, "object"), "\"text_completion\"") &&
       says(json_get(choice, "text"), "\"\xef\xbf\xbd" "b\"") &&
       says(json_get(choice, "finish_reason"), "\"length\"") && !json_get(o, "timings") &&
       !json_get(choice, "token_ids"), "a completion");
    ok(says(json_get(lp, "tokens"), "[\"\", \"bytes:\\\\xe2\", \"b\", \"\"]"), "tokens");
    ok(says(json_get(lp, "token_logprobs"), "[null, -2, -3.25, -1]"), "their logprobs");
    ok(says(json_get(lp, "top_logprobs"), "[null, {\"a\": -0.5, \"\\\"\": -9999, "
            "\"bytes:\\\\xe2\": -2}, {\"a\": -0.5, \"\\\"\": -9999, \"b\": -3.25}, "
            "{\"a\": -0.5, \"</assistant>\": -1}]"), "alternatives and the token itself");
    ok(says(json_get(lp, "text_offset"), "[0, 0, 1, 2]"), "offsets");
    cJSON_Delete(o);

    t.n = 0;
    reply_logprobs_chat(&t, token + 1, 1, tokenizer);
    o = read_back(&t);
    ok(says(o, "{\"content\": [{\"token\": \"bytes:\\\\xe2\", \"logprob\": -2, \"bytes\": [226], "
            "\"top_logprobs\": [{\"token\": \"a\", \"logprob\": -0.5, \"bytes\": [97]}, "
            "{\"token\": \"\\\"\", \"logprob\": -9999, \"bytes\": [34]}, "
            "{\"token\": \"bytes:\\\\xe2\", \"logprob\": -2, \"bytes\": [226]}]}], "
            "\"refusal\": null}"), "logprobs of a conversation");
    cJSON_Delete(o);
    text_free(&t);
}

static void errors(void)
{
    struct request_error bad = { .status = 400, .type = "invalid_request_error",
                                 .code = "invalid_value", .param = "a[\"\xff",
                                 .message = "line\nbreak" };
    struct text t = { 0 };
    cJSON *o;

    reply_error(&t, &bad);
    o = read_back(&t);
    ok(says(o, "{\"error\": {\"message\": \"line\\nbreak\", \"type\": \"invalid_request_error\", "
            "\"param\": \"a[\\\"\xef\xbf\xbd\", \"code\": \"invalid_value\"}}"), "an error");
    cJSON_Delete(o);
    t.n = 0;
    bad.param[0] = 0;
    reply_error(&t, &bad);
    o = read_back(&t);
    ok(cJSON_IsNull(json_get(json_get(o, "error"), "param")), "without a param");
    cJSON_Delete(o);
    text_free(&t);
}

int main(void)
{
    size_t n;
    char *s = data_read("models/nano/tokenizer.json", &n);

    ok(s && !tokenizer_open(&tokenizer, s, n, "tokenizer.json", 4096, &e), "the tokenizer opens");
    free(s);
    chat();
    taken_back();
    logprobs();
    errors();
    tokenizer_close(tokenizer);
    return done();
}
