/* What a model writes, through the whole server: every case streamed and whole, its tags as
 * tokens and in single bytes, must come out the same. */
#include "tests/files.h"
#include "tests/serve.h"
#include "tests/tap.h"

#include <stdlib.h>

static const char TOOLS[] =
    "[{\"type\":\"function\",\"function\":{\"name\":\"lookup\",\"parameters\":{\"type\":\"object\","
    "\"properties\":{\"repo\":{\"type\":\"string\"},\"n\":{\"type\":\"integer\"},"
    "\"list\":{\"type\":\"array\"},"
    "\"deep\":{\"type\":\"boolean\"},\"cfg\":{\"type\":\"object\"}}}}},"
    "{\"type\":\"function\",\"function\":{\"name\":\"now\"}}]";

#define CALL "<tool_call>lookup<arg_key>repo</arg_key><arg_value>god-ai</arg_value></tool_call>"

struct expected {
    const char *name, *writes;
    bool thinking;
    const char *more;           /* fields of the request */
    const char *reasoning, *content;
    const char *calls;          /* "name arguments;" of each */
    const char *finish;
};

static const struct expected CASES[] = {
    { "P-01 thoughts, text and a call", "plan</think>I'll look." CALL, true, "", "plan",
      "I'll look.", "lookup {\"repo\": \"god-ai\"};", "tool_calls" },
    { "P-01 newlines inside the call", "<tool_call>lookup\\n<arg_key>repo</arg_key>\\n"
      "<arg_value>god-ai</arg_value>\\n</tool_call>", false, "", "", "",
      "lookup {\"repo\": \"god-ai\"};", "tool_calls" },
    { "P-02 a call without arguments", "<tool_call>now</tool_call>", false, "", "", "", "now {};",
      "tool_calls" },
    { "P-03 no opening tag of a value", "<tool_call>lookup<arg_key>repo</arg_key>how many days"
      "</arg_value></tool_call>", false, "", "", "", "lookup {\"repo\": \"how many days\"};",
      "tool_calls" },
    { "P-04 types by schema", "<tool_call>lookup<arg_key>n</arg_key><arg_value>10</arg_value>"
      "<arg_key>list</arg_key><arg_value>[]</arg_value><arg_key>deep</arg_key><arg_value>true"
      "</arg_value><arg_key>cfg</arg_key><arg_value>{\\\"a\\\":1}</arg_value></tool_call>", false,
      "", "", "", "lookup {\"n\": 10, \"list\": [], \"deep\": true, \"cfg\": {\"a\": 1}};",
      "tool_calls" },
    { "P-05 white space of a string", "<tool_call>lookup<arg_key>repo</arg_key><arg_value>    def"
      ":\\n  x\\n</arg_value><arg_key>n</arg_key><arg_value> 420 </arg_value></tool_call>", false,
      "", "", "", "lookup {\"repo\": \"    def:\\n  x\\n\", \"n\": 420};", "tool_calls" },
    { "P-06 no name", "<tool_call>   </tool_call>", false, "", "", "<tool_call>   </tool_call>", "",
      "stop" },
    { "P-07 tags while thinking", "a <tool_call>x</tool_call> b</think>done", true, "",
      "a <tool_call>x</tool_call> b", "done", "", "stop" },
    { "P-08 the turn ends in thoughts", "thinking about it", true, "", "thinking about it", "", "",
      "stop" },
    { "P-08 a stop string in thoughts", "thinking about it", true, ",\"stop\":\"about\"",
      "thinking ", "", "", "stop" },
    { "P-10 two calls and text", CALL "<tool_call>now</tool_call> ok", false, "", "", " ok",
      "lookup {\"repo\": \"god-ai\"};now {};", "tool_calls" },
    { "one call only", "x" CALL "<tool_call>now</tool_call>", false,
      ",\"parallel_tool_calls\":false", "", "x", "lookup {\"repo\": \"god-ai\"};", "tool_calls" },
    { "P-19 across tokens", "The quick brown fox", false, ",\"stop\":[\"own fox\"]", "",
      "The quick br", "", "stop" },
    { "P-19 the earliest", "a,b,c,d", false, ",\"stop\":[\"b,c\",\"c\"]", "", "a,", "", "stop" },
    { "P-19 a beginning that repeats", "aaab", false, ",\"stop\":[\"aab\"]", "", "a", "", "stop" },
    { "P-19 never completed", "xx\\nUser", false, ",\"stop\":[\"\\nUser:\"]", "", "xx\nUser", "",
      "stop" },
    { "L10 no tools", "see " CALL, false, ",\"tools\":[]", "", "see " CALL, "", "stop" },
    { "L06 thinking is off", "plan</think>text", false, "", "", "plan</think>text", "", "stop" },
    { "characters of several bytes", "gr\xc3\xbc\xc3\x9f \xf0\x9f\x98\x80", false, "", "",
      "gr\xc3\xbc\xc3\x9f \xf0\x9f\x98\x80", "", "stop" },
};

struct seen {
    struct text reasoning, content, calls, finish;
    int finishes, roles, bad;
};

static void seen_free(struct seen *s)
{
    text_free(&s->reasoning);
    text_free(&s->content);
    text_free(&s->calls);
    text_free(&s->finish);
}

static void add_string(struct text *out, const cJSON *node)
{
    if (cJSON_IsString(node))
        text_puts(out, node->valuestring);
}

static void see_message(struct seen *s, const cJSON *m)
{
    const cJSON *call;

    add_string(&s->reasoning, json_get(m, "reasoning_content"));
    add_string(&s->content, json_get(m, "content"));
    s->roles += json_get(m, "role") != NULL;
    cJSON_ArrayForEach(call, json_get(m, "tool_calls")) {
        const cJSON *function = json_get(call, "function");
        bool named = json_get(function, "name") != NULL;

        /* Streamed: the name once, then pieces of the arguments. */
        if (named && s->calls.n && json_get(call, "index"))
            text_puts(&s->calls, ";");
        add_string(&s->calls, json_get(function, "name"));
        s->bad += named != (json_get(call, "id") != NULL);
        text_puts(&s->calls, named ? " " : "");
        add_string(&s->calls, json_get(function, "arguments"));
        if (!json_get(call, "index"))
            text_puts(&s->calls, ";");
    }
}

static void see_choice(struct seen *s, const cJSON *object, const char *key)
{
    const cJSON *choice = json_get(object, "choices") ? json_get(object, "choices")->child : NULL;
    const cJSON *finish = json_get(choice, "finish_reason");

    s->bad += !choice;
    see_message(s, json_get(choice, key));
    s->finishes += cJSON_IsString(finish);
    add_string(&s->finish, finish);
}

static void see_stream(struct seen *s, const char *at)
{
    struct err e;
    bool done = false;

    while ((at = strstr(at, "data: "))) {
        const char *end = strstr(at, "\n\n");
        cJSON *chunk;

        at += 6;
        s->bad += done || !end;
        if (!end)
            return;
        done = !strncmp(at, "[DONE]", 6);
        chunk = done ? NULL : json_parse(at, (size_t)(end - at), &JSON_REQUEST, &e);
        if (!done)
            see_choice(s, chunk, "delta");
        cJSON_Delete(chunk);
        at = end;
    }
    s->bad += !done;
    if (s->calls.n)
        text_puts(&s->calls, ";");
}

static void ask(const struct serving *server, const struct expected *x, char mode, bool stream,
                struct seen *s)
{
    struct text body = { NULL, 0, 0, false }, answer;
    struct err e;
    int status;
    cJSON *object;

    *s = (struct seen){ .bad = 0 };
    text_printf(&body, "{\"messages\":[{\"role\":\"user\",\"content\":\"REPLAY%c%s\"}],"
                "\"temperature\":0,\"enable_thinking\":%s,\"stream\":%s%s", mode, x->writes,
                x->thinking ? "true" : "false", stream ? "true" : "false", x->more);
    if (!strstr(x->more, "\"tools\""))
        text_printf(&body, ",\"tools\":%s", TOOLS);
    text_puts(&body, "}");
    answer = serve_post(server, "/v1/chat/completions", body.s, &status);
    s->bad += status != 200;
    if (stream) {
        see_stream(s, answer.s);
    } else {
        object = json_parse(answer.s, answer.n, &JSON_REQUEST, &e);
        see_choice(s, object, "message");
        cJSON_Delete(object);
    }
    if (s->bad)
        printf("# %d: %s\n", status, answer.s);
    text_free(&body);
    text_free(&answer);
}

static bool is(const struct text *t, const char *expected)
{
    bool same = !strcmp(t->s ? t->s : "", expected);

    if (!same)
        printf("# '%s' and not '%s'\n", t->s ? t->s : "", expected);
    return same;
}

static void test_cases(const struct serving *server)
{
    for (size_t i = 0; i < sizeof(CASES) / sizeof(*CASES); i++)
        for (int how = 0; how < 4; how++) {
            const struct expected *x = &CASES[i];
            struct seen s;

            ask(server, x, how & 1 ? 'b' : 'n', how & 2, &s);
            ok(is(&s.reasoning, x->reasoning) && is(&s.content, x->content) &&
               is(&s.calls, x->calls) && is(&s.finish, x->finish) && s.finishes == 1 &&
               s.roles == 1 && !s.bad, "%s, %s, %s", x->name, how & 1 ? "bytes" : "tokens",
               how & 2 ? "streamed" : "whole");
            seen_free(&s);
        }
}

/* P-09: the call cut after every byte.  The cause of the end stays true, and what is there of
 * a call that is not whole does not come out as one. */
static void test_cut(const struct serving *server)
{
    int bytes = (int)strlen(CALL), wrong = 0;

    for (int n = 1; n < bytes; n += 3)
        for (int stream = 0; stream < 2; stream++) {
            char more[64];
            struct expected x = { "cut", CALL, false, more, "", "", "", "length" };
            struct seen s;

            snprintf(more, sizeof(more), ",\"max_tokens\":%d", n);
            ask(server, &x, 'b', stream, &s);
            wrong += s.finishes != 1 || !is(&s.finish, "length") || s.bad ||
                     (!stream && s.calls.n);
            seen_free(&s);
        }
    ok(!wrong, "P-09: cut after any byte it ends as length, without half a call");
}

static int number(const cJSON *o, const char *a, const char *b)
{
    const cJSON *n = json_get(o, a);

    n = b ? json_get(n, b) : n;
    return n ? n->valueint : -1;
}

/* A call comes back in other words for the same: the prompt goes on where the session ends. */
static void test_recall(const struct serving *server, char mode)
{
    static const char question[] = "{\"messages\":[{\"role\":\"user\","
        "\"content\":\"REPLAY%c<tool_call"
        ">lookup<arg_key>n</arg_key>\\n<arg_value> 420 </arg_value><arg_key>deep</arg_key>"
        "<arg_value>true</arg_value></tool_call>\"}";
    struct text body = { NULL, 0, 0, false }, answer;
    const cJSON *call;
    cJSON *first, *second;
    struct err e;
    int status;

    text_printf(&body, question, mode);
    text_printf(&body, "],\"tools\":%s}", TOOLS);
    answer = serve_post(server, "/v1/chat/completions", body.s, &status);
    first = json_parse(answer.s, answer.n, &JSON_REQUEST, &e);
    text_free(&answer);
    call = json_get(json_get(json_get(first, "choices")->child, "message"), "tool_calls")->child;
    body.n = 0;
    text_printf(&body, question, mode);
    text_printf(&body, ",{\"role\":\"assistant\",\"content\":null,\"tool_calls\":[{\"id\":\"%s\","
                "\"type\":\"function\",\"function\":{\"name\":\"lookup\",\"arguments\":"
                "\"{\\\"deep\\\":true,\\\"n\\\":420}\"}}]},"
                "{\"role\":\"tool\",\"tool_call_id\":\"x\","
                "\"content\":\"y\"},{\"role\":\"user\",\"content\":\"REPLAYnok\"}],\"tools\":%s}",
                json_get(call, "id")->valuestring, TOOLS);
    answer = serve_post(server, "/v1/chat/completions", body.s, &status);
    second = json_parse(answer.s, answer.n, &JSON_REQUEST, &e);
    ok(status == 200 && number(json_get(second, "usage"), "prompt_tokens_details", "cached_tokens")
       == number(json_get(first, "usage"), "total_tokens", NULL) - 1,
       "what was sampled comes back as it was sampled, %c: %d of %d", mode,
       number(json_get(second, "usage"), "prompt_tokens_details", "cached_tokens"),
       number(json_get(first, "usage"), "total_tokens", NULL) - 1);
    cJSON_Delete(first);
    cJSON_Delete(second);
    text_free(&answer);
    text_free(&body);
}

int main(void)
{
    char model[1024];
    const char *const options[] = { "-m", model, "--port", "0", NULL };
    struct serving server;

    snprintf(model, sizeof(model), "%s/models/nano", source_dir());
    if (!serve_start(&server, options)) {
        ok(false, "the server starts");
        return done();
    }
    test_cases(&server);
    test_cut(&server);
    test_recall(&server, 'n');
    test_recall(&server, 'b');
    ok(serve_stop(&server) == 0, "it ends cleanly");
    return done();
}
