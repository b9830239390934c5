#include "src/request.h"
#include "tests/data.h"
#include "tests/tap.h"

#include <errno.h>
#include <math.h>

enum { VOCAB = 4096 };

static struct request_error e;

static int parse(struct request *q, const char *body)
{
    return request_parse(q, body, strlen(body), VOCAB, &e);
}

static bool refused(const char *body, const char *param, const char *code)
{
    struct request q;
    int rc = parse(&q, body);
    bool good = rc == -EBADMSG && e.status == 400 && e.message[0] && !strcmp(e.param, param) &&
                !strcmp(e.type, "invalid_request_error") && !strcmp(e.code, code);

    if (!good)
        printf("# %d, %s %s %s: %.60s\n", rc, e.param, rc ? e.code : "", e.message, body);
    request_free(&q);
    return good;
}

#define P(more) "{\"prompt\":\"x\"," more "}"
#define M "\"messages\":[{\"role\":\"user\",\"content\":\"x\"}]"
#define C(more) "{" M "," more "}"
#define TOOL(name) "{\"type\":\"function\",\"function\":{\"name\":\"" name "\"}}"

/* A body, the param of its error and the code. */
static const char *const bad[][3] = {
    { "", "", "invalid_json" }, { "null", "", "invalid_json" }, { "[]", "", "invalid_json" },
    { "\"x\"", "", "invalid_json" }, { "{", "", "invalid_json" },
    { "{} {}", "", "invalid_json" }, { "{} x", "", "invalid_json" },
    { "\xef\xbb\xbf{}", "", "invalid_json" }, { "{}", "messages", "missing_field" },
    { "{\"prompt\":\"a\",\"prompt\":\"b\"}", "", "invalid_json" },
    { "{\"prompt\":\"\xff\"}", "", "invalid_utf8" },
    { "{\"prompt\":\"\xed\xa0\x80\"}", "", "invalid_utf8" },
    { "{\"prompt\":\"\\ud800\"}", "", "invalid_json" },
    { "{\"prompt\":\"x\\u0000y\",\"max_tokens\":1}", "", "invalid_json" },
    { "{\"messages\":[]}", "messages", "invalid_value" },
    { "{\"messages\":null,\"prompt\":\"x\"}", "messages", "invalid_value" },
    { "{\"messages\":[{\"role\":\"user\",\"content\":\"\"},{\"role\":\"user\",\"content\":1}]}",
      "messages[1].content", "invalid_value" },
    { "{\"prompt\":[5000]}", "prompt", "invalid_value" },
    { "{\"prompt\":[-1]}", "prompt", "invalid_value" },
    { "{\"prompt\":[1.5]}", "prompt", "invalid_value" },
    { "{\"prompt\":[1,\"a\"]}", "prompt", "invalid_value" },
    { "{\"prompt\":[]}", "prompt", "invalid_value" },
    { "{\"prompt\":[[]]}", "prompt", "invalid_value" },
    { "{\"prompt\":{}}", "prompt", "invalid_value" },
    { "{\"prompt\":[\"a\",\"b\"]}", "prompt", "unsupported" },
    { P("\"max_tokens\":-2"), "max_tokens", "invalid_value" },
    { P("\"max_tokens\":1.5"), "max_tokens", "invalid_value" },
    { P("\"max_tokens\":\"5\""), "max_tokens", "invalid_value" },
    { P("\"max_tokens\":2147483648"), "max_tokens", "invalid_value" },
    { P("\"max_tokens\":1e999"), "max_tokens", "invalid_value" },
    { P("\"max_tokens\":-2,\"max_completion_tokens\":5"), "max_tokens", "invalid_value" },
    { P("\"n_predict\":-2"), "n_predict", "invalid_value" },
    { P("\"min_tokens\":-1"), "min_tokens", "invalid_value" },
    { P("\"temperature\":-1"), "temperature", "invalid_value" },
    { P("\"temperature\":2.1"), "temperature", "invalid_value" },
    { P("\"temperature\":\"hot\""), "temperature", "invalid_value" },
    { P("\"temperature\":1e999"), "temperature", "invalid_value" },
    { P("\"temperature\":true"), "temperature", "invalid_value" },
    { P("\"top_p\":0"), "top_p", "invalid_value" },
    { P("\"top_p\":1.1"), "top_p", "invalid_value" },
    { P("\"top_k\":-2"), "top_k", "invalid_value" },
    { P("\"top_k\":4097"), "top_k", "invalid_value" },
    { P("\"top_k\":1099511627776"), "top_k", "invalid_value" },
    { P("\"min_p\":2"), "min_p", "invalid_value" },
    { P("\"presence_penalty\":2.5"), "presence_penalty", "invalid_value" },
    { P("\"frequency_penalty\":-2.5"), "frequency_penalty", "invalid_value" },
    { P("\"repetition_penalty\":0"), "repetition_penalty", "invalid_value" },
    { P("\"repeat_penalty\":3"), "repeat_penalty", "invalid_value" },
    { P("\"n\":0"), "n", "unsupported" }, { P("\"n\":2"), "n", "unsupported" },
    { P("\"n\":-1"), "n", "unsupported" }, { P("\"n\":1000000"), "n", "unsupported" },
    { P("\"best_of\":2"), "best_of", "unsupported" },
    { P("\"prompt_logprobs\":1"), "prompt_logprobs", "unsupported" },
    { P("\"use_beam_search\":true"), "use_beam_search", "unsupported" },
    { P("\"suffix\":\"x\""), "suffix", "unsupported" },
    { P("\"stop\":\"\""), "stop", "invalid_value" },
    { P("\"stop\":5"), "stop", "invalid_value" },
    { P("\"stop\":[\"\"]"), "stop", "invalid_value" },
    { P("\"stop\":[1]"), "stop", "invalid_value" },
    { P("\"stop\":[0,1,2,3,4,5,6,7,8,9,0,1,2,3,4,5,6]"), "stop", "invalid_value" },
    { P("\"logit_bias\":{\"4096\":1}"), "logit_bias", "invalid_value" },
    { P("\"logit_bias\":{\"-1\":1}"), "logit_bias", "invalid_value" },
    { P("\"logit_bias\":{\"abc\":1}"), "logit_bias", "invalid_value" },
    { P("\"logit_bias\":{\"1.0\":1}"), "logit_bias", "invalid_value" },
    { P("\"logit_bias\":{\"\":1}"), "logit_bias", "invalid_value" },
    { P("\"logit_bias\":{\"07\":1}"), "logit_bias", "invalid_value" },
    { P("\"logit_bias\":{\"99999999999999999999\":1}"), "logit_bias", "invalid_value" },
    { P("\"logit_bias\":{\"7\":101}"), "logit_bias.7", "invalid_value" },
    { P("\"logit_bias\":{\"7\":1e999}"), "logit_bias.7", "invalid_value" },
    { P("\"logit_bias\":{\"7\":null}"), "logit_bias.7", "invalid_type" },
    { P("\"logit_bias\":[]"), "logit_bias", "invalid_type" },
    { P("\"stop_token_ids\":[151645],\"min_tokens\":1"), "stop_token_ids", "invalid_value" },
    { P("\"stop_token_ids\":7"), "stop_token_ids", "invalid_value" },
    { P("\"logprobs\":21"), "logprobs", "invalid_value" },
    { P("\"logprobs\":-1"), "logprobs", "invalid_value" },
    { P("\"logprobs\":true"), "logprobs", "invalid_value" },
    { C("\"logprobs\":true,\"top_logprobs\":21"), "top_logprobs", "invalid_value" },
    { C("\"logprobs\":true,\"top_logprobs\":-1"), "top_logprobs", "invalid_value" },
    { C("\"top_logprobs\":5"), "top_logprobs", "invalid_value" },
    { C("\"logprobs\":5"), "logprobs", "invalid_type" },
    { C("\"echo\":true"), "echo", "unsupported" },
    { P("\"seed\":9223372036854775808"), "seed", "invalid_value" },
    { P("\"seed\":18446744073709551616"), "seed", "invalid_value" },
    { P("\"seed\":1.5"), "seed", "invalid_value" },
    { P("\"stream\":\"yes\""), "stream", "invalid_type" },
    { P("\"stream_options\":{}"), "stream_options", "invalid_value" },
    { P("\"stream\":true,\"stream_options\":{\"include_usage\":1}"),
      "stream_options.include_usage", "invalid_type" },
    { P("\"ignore_eos\":1"), "ignore_eos", "invalid_type" },
    { P("\"model\":5"), "model", "invalid_value" },
    { P("\"response_format\":{\"type\":\"json_schema\"}"), "response_format.json_schema",
      "missing_field" },
    { P("\"response_format\":{\"type\":\"grammar\"}"), "response_format.type", "unsupported" },
    { P("\"response_format\":{\"type\":\"json_schema\",\"json_schema\":{\"name\":\"x\"}}"),
      "response_format.json_schema.schema", "missing_field" },
    { C("\"response_format\":{\"type\":\"json_schema\",\"json_schema\":{\"schema\":{\"properties\":"
        "{\"a\":{\"type\":\"string\",\"pattern\":\"(a+)+$\"}}}}}"),
      "response_format.json_schema.schema.properties.a.pattern", "unsupported" },
    { C("\"tools\":[" TOOL("a") ",{\"function\":{\"name\":\"b\",\"parameters\":{\"properties\":"
        "{\"x\":{\"type\":\"string\",\"format\":\"uri\"}}}}}],\"tool_choice\":\"required\""),
      "tools[1].function.parameters.properties.x.format", "unsupported" },
    { P("\"response_format\":\"json\""), "response_format", "invalid_type" },
    { P("\"grammar\":\"root ::= x\""), "grammar", "unsupported" },
    { C("\"chat_template\":\"{{ x }}\""), "chat_template", "unsupported" },
    { C("\"functions\":[]"), "functions", "unsupported" },
    { C("\"modalities\":[\"text\",\"audio\"]"), "modalities", "unsupported" },
    { C("\"add_generation_prompt\":1"), "add_generation_prompt", "invalid_type" },
    { C("\"enable_thinking\":\"maybe\""), "enable_thinking", "invalid_type" },
    { C("\"chat_template_kwargs\":{\"enable_thinking\":\"maybe\"}"),
      "chat_template_kwargs.enable_thinking", "invalid_type" },
    { C("\"chat_template_kwargs\":[]"), "chat_template_kwargs", "invalid_type" },
    { C("\"thinking\":{\"type\":\"perhaps\"}"), "thinking.type", "invalid_value" },
    { C("\"reasoning\":{\"enabled\":1}"), "reasoning.enabled", "invalid_type" },
    { C("\"reasoning_effort\":3"), "reasoning_effort", "invalid_value" },
    { C("\"tools\":{}"), "tools", "invalid_value" },
    { C("\"tools\":[1]"), "tools[0].function.name", "invalid_value" },
    { C("\"tools\":[{\"type\":\"retrieval\"}]"), "tools[0].type", "unsupported" },
    { C("\"tools\":[" TOOL("a\\\"b") "]"), "tools[0].function.name", "invalid_value" },
    { C("\"tools\":[" TOOL("a\\nb") "]"), "tools[0].function.name", "invalid_value" },
    { C("\"tools\":[" TOOL("") "]"), "tools[0].function.name", "invalid_value" },
    { C("\"tools\":[" TOOL("a") "," TOOL("b") "," TOOL("a") "]"), "tools[2].function.name",
      "invalid_value" },
    { C("\"tools\":[{\"function\":{\"name\":\"a\",\"parameters\":[]}}]"),
      "tools[0].function.parameters", "invalid_type" },
    { C("\"tools\":[" TOOL("a") "],\"tool_choice\":{\"type\":\"function\",\"function\":"
        "{\"name\":\"b\"}}"), "tool_choice.function.name", "invalid_value" },
    { C("\"tool_choice\":\"required\""), "tool_choice", "invalid_value" },
    { C("\"tools\":[],\"tool_choice\":\"required\""), "tool_choice", "invalid_value" },
    { C("\"tool_choice\":\"some\""), "tool_choice", "invalid_value" },
    { C("\"tool_choice\":{\"type\":\"function\"}"), "tool_choice", "invalid_value" },
};

static void refusals(void)
{
    size_t i;

    for (i = 0; i < sizeof(bad) / sizeof(*bad); i++)
        ok(refused(bad[i][0], bad[i][1], bad[i][2]), "refused: %.70s", bad[i][0]);
}

/* Fields whose limits are counts: `count` of them are taken, one more is not. */
static void counts(void)
{
    static const struct {
        const char *head, *item, *tail, *param;
        int most;
        bool numbered;
    } field[] = {
        { "{\"prompt\":\"x\",\"stop\":[", "\"a\"", "]}", "stop", 16, false },
        { "{\"prompt\":\"x\",\"stop\":[\"", "a", "\"]}", "stop", 256, false },
        { "{\"prompt\":\"x\",\"stop_token_ids\":[", "4095", "]}", "stop_token_ids", 64, false },
        { "{\"prompt\":\"x\",\"logit_bias\":{", "\"%d\":-100", "}}", "logit_bias", 1024, true },
        { "{\"prompt\":\"x\",\"model\":\"", "m", "\"}", "model", 256, false },
        { C("\"tools\":["), "{\"function\":{\"name\":\"f%d\"}}", "]}", "tools", 128, true },
    };
    struct text t = { 0 };
    struct request q;
    size_t i;
    int n, more;

    for (i = 0; i < sizeof(field) / sizeof(*field); i++)
        for (more = 0; more < 2; more++) {
            bool in_string = field[i].tail[0] == '"';

            t.n = 0;
            text_puts(&t, field[i].head);
            if (t.s[t.n - 1] == '}')
                t.n--;
            for (n = 0; n < field[i].most + more; n++) {
                text_puts(&t, n && !in_string ? "," : "");
                if (field[i].numbered)
                    text_printf(&t, i == 3 ? "\"%d\":-100"
                                           : "{\"function\":{\"name\":\"f%d\"}}", n);
                else
                    text_puts(&t, field[i].item);
            }
            text_puts(&t, field[i].tail);
            if (more)
                ok(refused(t.s, field[i].param, "invalid_value"), "one more %s", field[i].param);
            else
                ok(!parse(&q, t.s), "%d of %s: %s", field[i].most, field[i].param, e.message);
            if (!more)
                request_free(&q);
        }
    text_free(&t);
}

/* A schema of the given depth, and one of the given size. */
static void schemas(void)
{
    struct text t = { 0 };
    struct request q;
    int more, i;

    for (more = 0; more < 2; more++) {
        t.n = 0;
        text_puts(&t, "{" M ",\"tools\":[{\"function\":{\"name\":\"f\",\"parameters\":");
        for (i = 0; i < 31 + more; i++)
            text_puts(&t, "{\"a\":");
        text_puts(&t, "{}");
        for (i = 0; i < 31 + more; i++)
            text_puts(&t, "}");
        text_puts(&t, "}}]}");
        if (more)
            ok(refused(t.s, "tools[0].function.parameters", "invalid_value"), "depth 33");
        else
            ok(!parse(&q, t.s), "depth 32");
        if (!more)
            request_free(&q);
    }
    t.n = 0;
    text_puts(&t, "{" M ",\"tools\":[{\"function\":{\"name\":\"f\",\"description\":\"");
    for (i = 0; i < 1 << 20; i++)
        text_puts(&t, "d");
    text_puts(&t, "\"}}]}");
    ok(refused(t.s, "tools", "invalid_value"), "a description of 1 MiB");
    text_free(&t);
}

static void absent(void)
{
    struct request q;
    const struct sampling *s = &q.sampling;

    ok(!parse(&q, P("\"unknown\":1,\"stop\":null,\"n\":1,\"temperature\":null,\"user\":\"u\"")),
       "unknown fields and nulls are nothing");
    ok(!q.chat && !strcmp(q.prompt.text.s, "x") && !q.prompt.controls && !q.prompt_id, "prompt");
    ok(isnan(s->temperature) && isnan(s->top_p) && isnan(s->min_p) && s->top_k == -1 &&
       isnan(s->repetition_penalty) && isnan(s->presence_penalty) && isnan(s->frequency_penalty),
       "what is absent is marked");
    ok(q.max_tokens == -1 && !q.has_seed && !q.stops && !q.stop_ids && !s->biases && !q.logprobs &&
       !q.stream && !q.echo && !q.thinking && !q.tools && q.parallel_tool_calls &&
       q.cache_prompt, "and the rest is off");
    request_free(&q);
}

static void present(void)
{
    struct request q;
    const struct sampling *s = &q.sampling;

    ok(!parse(&q, "{\"prompt\":[5,4095,0],\"temperature\":1e-320,\"top_p\":1e-320,\"top_k\":-1,"
              "\"min_p\":0.5,\"repeat_penalty\":1.5,\"presence_penalty\":-2,"
              "\"frequency_penalty\":2,\"seed\":9007199254740993,"
              "\"logit_bias\":{\"0\":-100,\"4095\":1.5},"
              "\"stop\":[\"ab\",\"c\"],\"stop_token_ids\":[7],\"min_tokens\":3,\"max_tokens\":9,"
              "\"max_completion_tokens\":0,\"logprobs\":0,\"echo\":true,\"ignore_eos\":true,"
              "\"stream\":true,\"stream_options\":{\"include_usage\":true},\"best_of\":1,"
              "\"response_format\":{\"type\":\"text\"},\"cache_prompt\":false}"),
       "a body with everything: %s", e.message);
    ok(q.prompt_ids == 3 && q.prompt_id[1] == 4095, "ids");
    ok(s->temperature == 0 && s->top_p > 0 && s->top_k == 0 && s->min_p == 0.5f &&
       s->repetition_penalty == 1.5f && s->presence_penalty == -2 && s->frequency_penalty == 2,
       "sampling; a tiny temperature is greedy, a tiny top_p is not nothing");
    ok(q.has_seed && s->seed == 9007199254740993u, "a seed of more than 53 bits");
    ok(s->biases == 2 && s->bias[0].id == 0 && s->bias[0].add == -100 && s->bias[1].add == 1.5f,
       "biases");
    ok(q.stops == 2 && !strcmp(q.stop[1], "c") && q.stop_ids == 1 && q.stop_id[0] == 7, "stops");
    ok(q.max_tokens == 0 && q.min_tokens == 3, "max_completion_tokens wins");
    ok(q.logprobs && q.alternatives == 0 && q.echo && q.ignore_eos && q.stream &&
       q.include_usage && !q.cache_prompt, "flags");
    request_free(&q);

    ok(!parse(&q, P("\"stop\":\"a\",\"max_tokens\":-1,\"seed\":-1,\"logprobs\":20")) &&
       q.stops == 1 && q.max_tokens == -1 && !q.has_seed && q.alternatives == 20, "other forms");
    request_free(&q);
    ok(!parse(&q, "{\"prompt\":[\"a\"]}") && !strcmp(q.prompt.text.s, "a"),
       "one string in an array");
    request_free(&q);
    ok(!parse(&q, "{\"prompt\":[[3]]}") && q.prompt_ids == 1, "one array in an array");
    request_free(&q);
    ok(!parse(&q, "{\"prompt\":\"\"}") && q.prompt.text.n == 0 && q.prompt.text.s, "an empty one");
    request_free(&q);
    ok(!parse(&q, P("\"seed\":-9223372036854775808")) && q.has_seed &&
       q.sampling.seed == 1ull << 63, "the least seed");
    request_free(&q);
    ok(!parse(&q, C("\"logprobs\":true,\"top_logprobs\":3")) && q.chat && q.logprobs &&
       q.alternatives == 3, "logprobs of a conversation");
    request_free(&q);
}

static void choices(void)
{
    struct request q;

    ok(!parse(&q, C("\"tools\":[" TOOL("a") "," TOOL("b") "],\"tool_choice\":" TOOL("b")
              ",\"parallel_tool_calls\":false")) && q.tool_choice == TOOLS_NAMED &&
       !strcmp(q.tool_name, "b") && !q.parallel_tool_calls, "a tool by name");
    ok(strstr(q.prompt.text.s, "<available_tools>\n" "{\"type\": \"function\""), "tools are shown");
    request_free(&q);
    ok(!parse(&q, C("\"tools\":[" TOOL("a") "],\"tool_choice\":\"none\"")) &&
       q.tool_choice == TOOLS_NONE && strstr(q.prompt.text.s, "<available_tools>"),
       "none keeps them in the prompt");
    request_free(&q);
    ok(!parse(&q, C("\"tools\":[" TOOL("a") "],\"tool_choice\":\"required\"")) &&
       q.tool_choice == TOOLS_REQUIRED, "required");
    request_free(&q);
    ok(!parse(&q, C("\"tools\":[],\"tool_choice\":\"auto\"")) && !q.tools, "no tools is none");
    request_free(&q);
    ok(!parse(&q, C("\"add_generation_prompt\":false")) &&
       !strcmp(q.prompt.text.s + q.prompt.text.n - 8, "</user>\n"), "no generation prompt");
    request_free(&q);
}

static void thinking(void)
{
    static const struct { const char *more; bool on; } way[] = {
        { "\"enable_thinking\":true", true }, { "\"enable_thinking\":false", false },
        { "\"chat_template_kwargs\":{\"enable_thinking\":true,\"tokenize\":1}", true },
        { "\"chat_template_kwargs\":{\"thinking\":true,\"enable_thinking\":false}", true },
        { "\"chat_template_kwargs\":{\"preserve_thinking\":true}", false },
        { "\"reasoning_effort\":\"high\"", true }, { "\"reasoning_effort\":\"none\"", false },
        { "\"reasoning\":{\"enabled\":true}", true },
        { "\"reasoning\":{\"effort\":\"low\"}", true },
        { "\"reasoning\":{\"effort\":\"low\",\"enabled\":false}", false },
        { "\"reasoning\":{\"max_tokens\":5}", false },
        { "\"thinking\":{\"type\":\"enabled\",\"budget_tokens\":9}", true },
        { "\"thinking\":{\"type\":\"disabled\"}", false }, { "\"thinking\":true", true },
        { "\"think\":true", true }, { "\"think\":false", false },
        { "\"enable_thinking\":false,\"reasoning_effort\":\"high\"", false },
        { "\"chat_template_kwargs\":{\"enable_thinking\":true},\"enable_thinking\":false", true },
        { "\"enable_thinking\":null,\"think\":true", true },
    };
    struct request q;
    size_t i;

    for (i = 0; i < sizeof(way) / sizeof(*way); i++) {
        char body[256];
        const char *tail;
        int rc;

        snprintf(body, sizeof(body), C("%s"), way[i].more);
        rc = parse(&q, body);
        tail = way[i].on ? "<assistant><think>" : "<assistant></think>";
        ok(!rc && q.thinking == way[i].on &&
           !strcmp(q.prompt.text.s + q.prompt.text.n - strlen(tail), tail), "%s", way[i].more);
        request_free(&q);
    }
}

/* The golden prompts once more, from the bodies themselves. */
static void golden(void)
{
    size_t n;
    char *s = data_read("models/nano/golden/render.json", &n);
    cJSON *all = s ? json_parse(s, n, &JSON_FILE, NULL) : NULL;
    const cJSON *one;
    int cases = 0, same = 0;

    cJSON_ArrayForEach(one, json_get(all, "cases")) {
        struct text body = { 0 };
        struct request q;
        int rc;

        text_json_python(&body, json_get(one, "request"));
        rc = request_parse(&q, body.s, body.n, VOCAB, &e);
        if (!rc && !strcmp(q.prompt.text.s, json_get(one, "prompt")->valuestring))
            same++;
        else
            printf("# case %d: %s\n", cases, rc ? e.message : "differs");
        cases++;
        request_free(&q);
        text_free(&body);
    }
    ok(cases == 300 && same == cases, "%d of %d golden prompts", same, cases);
    cJSON_Delete(all);
    free(s);
}

int main(void)
{
    refusals();
    counts();
    schemas();
    absent();
    present();
    choices();
    thinking();
    golden();
    return done();
}
