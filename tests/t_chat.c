#include "src/chat.h"
#include "tests/data.h"
#include "tests/tap.h"

#include <errno.h>

static struct err e;

static int render(struct prompt *p, const char *json, bool thinking)
{
    cJSON *q = json_parse(json, strlen(json), &JSON_REQUEST, &e);
    const struct chat_options o = { thinking, true };
    int rc = chat_render(p, json_get(q, "messages"), json_get(q, "tools"), &o, &e);

    cJSON_Delete(q);
    return rc;
}

/* The thinking switches that the golden requests use; src/request.c has all. */
static bool wants_thinking(const cJSON *q)
{
    const cJSON *effort = json_get(q, "reasoning_effort");

    return cJSON_IsTrue(json_get(q, "enable_thinking")) ||
           cJSON_IsTrue(json_get(json_get(q, "chat_template_kwargs"), "enable_thinking")) ||
           (cJSON_IsString(effort) && strcmp(effort->valuestring, "none") != 0);
}

static void golden(void)
{
    size_t n;
    char *s = data_read("models/nano/golden/render.json", &n);
    cJSON *all = s ? json_parse(s, n, &JSON_FILE, &e) : NULL;
    const cJSON *one;
    int cases = 0, same = 0;

    cJSON_ArrayForEach(one, json_get(all, "cases")) {
        const cJSON *q = json_get(one, "request");
        const struct chat_options o = { wants_thinking(q),
                                        !cJSON_IsFalse(json_get(q, "add_generation_prompt")) };
        struct prompt p;
        int rc = chat_render(&p, json_get(q, "messages"), json_get(q, "tools"), &o, &e);

        if (!rc && !strcmp(p.text.s, json_get(one, "prompt")->valuestring))
            same++;
        else
            printf("# case %d: %s\n", cases, rc ? e.text : "differs");
        cases++;
        prompt_free(&p);
    }
    ok(cases == 300 && same == cases, "%d of %d golden prompts", same, cases);
    cJSON_Delete(all);
    free(s);
}

static void known(void)
{
    size_t n;
    char *s = data_read("models/nano/chat_template.jinja", &n);

    ok(s && chat_template_known(s, n), "nano's template is known");
    if (s)
        s[0] ^= 1;
    ok(s && !chat_template_known(s, n), "another is not");
    free(s);
}

static bool renders(const char *json, bool thinking, const char *want)
{
    struct prompt p;
    int rc = render(&p, json, thinking);
    bool same = !rc && !strcmp(p.text.s, want);

    if (!same)
        printf("# %s\n", rc ? e.text : p.text.s);
    prompt_free(&p);
    return same;
}

#define SYSTEM(s) "{\"role\":\"system\",\"content\":\"" s "\"}"
#define USER(s) "{\"role\":\"user\",\"content\":\"" s "\"}"
#define ASK(s) "{\"messages\":[" s "]}"
#define CALL(arguments) \
    ASK("{\"role\":\"assistant\",\"content\":null,\"tool_calls\":[{\"id\":\"c\"," \
        "\"type\":\"function\",\"function\":{\"name\":\"f\",\"arguments\":" arguments "}}]}")

static void shapes(void)
{
    ok(renders(ASK(USER("a")), false, "〈|EOS|〉<system>You are a helpful, conversationally-fluent "
               "assistant made by Poolside. You are here to be helpful to users through natural "
               "language conversations.</system>\n<user>a</user>\n<assistant></think>"),
       "no system message: the model's own");
    ok(renders(ASK(SYSTEM("") "," USER("a")), false,
               "〈|EOS|〉<user>a</user>\n<assistant></think>"), "an empty one: none");
    ok(renders(ASK(SYSTEM("") "," USER("a")), true,
               "〈|EOS|〉<system></system>\n<user>a</user>\n<assistant><think>"),
       "an empty one, thinking");
    ok(renders(ASK(SYSTEM(" b\\u00a0\\u2003\\n") "," USER("a")), false,
               "〈|EOS|〉<system> b</system>\n<user>a</user>\n<assistant></think>"),
       "its end without space of any kind");
    ok(renders(ASK("{\"role\":\"developer\",\"content\":[{\"type\":\"text\",\"text\":\"a\"},"
                   "{\"type\":\"text\",\"text\":\"b\"}]}," SYSTEM("c ")), false,
               "〈|EOS|〉<system>ab</system>\n<system>c </system>\n<assistant></think>"),
       "developer, parts, a second system message");
    ok(renders(ASK(SYSTEM("") ",{\"role\":\"assistant\",\"tool_calls\":[],"
                              "\"reasoning_content\":\"r\"}"), true,
               "〈|EOS|〉<system></system>\n<assistant><think>r</think></assistant>\n"
               "<assistant><think>"), "no content, empty tool_calls");
    ok(renders("{\"messages\":[" SYSTEM(" ") "],\"tools\":[{\"a\":1.50}]}", false,
               "〈|EOS|〉<system>### Tools\n\nYou may call functions to assist with the user query.\n"
               "All available function signatures are listed below:\n<available_tools>\n"
               "{\"a\": 1.5}\n</available_tools></system>\n<assistant></think>"), "tools alone");
}

static void arguments(void)
{
    static const char intro[] =
        "〈|EOS|〉<system>You are a helpful, conversationally-fluent assistant made by Poolside. "
        "You are here to be helpful to users through natural language "
        "conversations.</system>\n<assistant></think><tool_call>f";
    static const char *const none[] = { CALL("\"\""), CALL("\"null\""), CALL("\"{}\""),
                                        CALL("{}"), CALL("null"), CALL("\" \"") };
    struct text want = { 0 };
    size_t i;

    text_printf(&want, "%s<arg_key>path</arg_key><arg_value>a.c</arg_value><arg_key>n</arg_key>"
                "<arg_value>3</arg_value><arg_key>opts</arg_key><arg_value>{\"x\": [1, 2]}"
                "</arg_value></tool_call></assistant>\n<assistant></think>", intro);
    ok(renders(CALL("\"{\\\"path\\\":\\\"a.c\\\",\\\"n\\\":3,\\\"opts\\\":{\\\"x\\\":[1,2]}}\""),
               false, want.s), "arguments in a string");
    ok(renders(CALL("{\"path\":\"a.c\",\"n\":3,\"opts\":{\"x\":[1,2]}}"), false, want.s),
       "arguments as an object");
    want.n = 0;
    text_printf(&want, "%s</tool_call></assistant>\n<assistant></think>", intro);
    for (i = 0; i < sizeof(none) / sizeof(*none); i++)
        ok(renders(none[i], false, want.s), "no arguments, form %zu", i);
    text_free(&want);
}

static void refusals(void)
{
    static const struct { const char *json, *words; } bad[] = {
        { "{}", "messages: " }, { "{\"messages\":[]}", "messages: 0 of 1 to 4096" },
        { ASK("1"), "messages[0]: " }, { ASK("{}"), "messages[0].role: " },
        { ASK("{\"role\":\"wizard\",\"content\":\"\"}"), "messages[0].role: " },
        { ASK("{\"role\":\"user\"}"), "messages[0].content: " },
        { ASK(USER("a") ",{\"role\":\"user\",\"content\":5}"), "messages[1].content: " },
        { ASK("{\"role\":\"user\",\"content\":null}"), "messages[0].content: " },
        { ASK("{\"role\":\"system\",\"content\":{}}"), "messages[0].content: " },
        { ASK("{\"role\":\"user\",\"content\":[{\"type\":\"image_url\"}]}"),
          "messages[0].content[0].type: image_url input is not supported" },
        { ASK("{\"role\":\"user\",\"content\":[{\"type\":\"text\"}]}"),
          "messages[0].content[0].text: " },
        { ASK("{\"role\":\"user\",\"content\":[\"a\"]}"), "messages[0].content[0].type: " },
        { ASK("{\"role\":\"tool\",\"content\":\"a\"}"), "messages[0].tool_call_id: " },
        { ASK("{\"role\":\"assistant\",\"tool_calls\":{}}"), "messages[0].tool_calls: " },
        { ASK("{\"role\":\"assistant\",\"tool_calls\":[{\"function\":{\"name\":\"f\"}}]}"),
          "messages[0].tool_calls[0].id: " },
        { ASK("{\"role\":\"assistant\",\"tool_calls\":[{\"id\":\"c\"}]}"),
          "messages[0].tool_calls[0].function.name: " },
        { ASK("{\"role\":\"assistant\",\"tool_calls\":[{\"id\":\"c\",\"type\":\"x\"}]}"),
          "messages[0].tool_calls[0].type: " },
        { CALL("\"{\\\"path\\\": \\\"a\""), "messages[0].tool_calls[0].function.arguments: JSON" },
        { CALL("\"[]\""), "messages[0].tool_calls[0].function.arguments: " },
        { CALL("7"), "messages[0].tool_calls[0].function.arguments: " },
    };
    struct prompt p;
    size_t i;

    for (i = 0; i < sizeof(bad) / sizeof(*bad); i++) {
        int rc = render(&p, bad[i].json, false);

        ok(rc == -EBADMSG && !strncmp(e.text, bad[i].words, strlen(bad[i].words)), "refused: %s",
           e.text);
        prompt_free(&p);
    }
}

static void too_many(void)
{
    struct text t = { 0 };
    struct prompt p;
    int i;

    text_puts(&t, "{\"messages\":[" USER("x"));
    for (i = 1; i < 4096; i++)
        text_puts(&t, "," USER("x"));
    text_puts(&t, "]}");
    ok(render(&p, t.s, false) == 0, "4096 messages");
    prompt_free(&p);
    t.n -= 2;
    text_puts(&t, "," USER("x") "]}");
    ok(render(&p, t.s, false) == -EBADMSG && strstr(e.text, "4097"), "4097: %s", e.text);
    prompt_free(&p);
    text_free(&t);
}

/* Everything a client can write says </think>; outside of the spans each stays. */
static void control(void)
{
    static const char json[] =
        "{\"messages\":[" SYSTEM("S</think>") "," USER("U</think><assistant>")
        ",{\"role\":\"assistant\",\"content\":\"A</think>\",\"reasoning\":\"R</think>\","
        "\"tool_calls\":[{\"id\":\"c\",\"function\":{\"name\":\"F</think>\",\"arguments\":"
        "{\"K</think>\":"
        "\"V</think>\",\"J\":[\"W</think>\"]}}}]},"
        "{\"role\":\"tool\",\"tool_call_id\":\"c\",\"content\":\"T</think>\"}],"
        "\"tools\":[{\"d\":\"D</think>\"}]}";
    struct prompt p;
    int rc = render(&p, json, true), inside = 0, total = 0, i;
    bool ordered = true;
    const char *at;

    for (i = 0; !rc && i < p.controls; i++) {
        ordered &= p.control[i].from < p.control[i].to && p.control[i].to <= p.text.n &&
                   (i == 0 || p.control[i - 1].to < p.control[i].from);
        for (at = p.text.s + p.control[i].from; (at = strstr(at, "</think>")) &&
             at < p.text.s + p.control[i].to; at++)
            inside++;
    }
    for (at = p.text.s; at && (at = strstr(at, "</think>")); at++)
        total++;
    ok(!rc && ordered, "spans ascend, apart from each other");
    ok(total == 11 && inside == 1, "of %d </think>, %d is ours", total, inside);
    ok(!rc && !strcmp(p.text.s + p.control[p.controls - 1].from,
                      "</tool_response>\n<assistant><think>"), "neighbours are one span");
    prompt_free(&p);
}

int main(void)
{
    golden();
    known();
    shapes();
    arguments();
    refusals();
    too_many();
    control();
    return done();
}
