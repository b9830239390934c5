#include "src/message.h"
#include "tests/tap.h"

#include <stdlib.h>
#include <time.h>

static const char TOOLS[] =
    "[{\"type\":\"function\",\"function\":{\"name\":\"write_file\",\"parameters\":{\"properties\":{"
    "\"content\":{\"type\":\"string\"},\"mode\":{\"type\":\"integer\"}}}}},"
    "{\"type\":\"function\",\"function\":{\"name\":\"get_weather\",\"parameters\":{\"properties\":{"
    "\"city\":{\"type\":\"string\"}}}}},"
    "{\"type\":\"function\",\"function\":{\"name\":\"search\",\"parameters\":{\"properties\":{"
    "\"query\":{\"type\":\"string\"},\"max_results\":{\"type\":\"number\"},"
    "\"exclude\":{\"type\":\"array\"},"
    "\"deep\":{\"type\":\"boolean\"},\"cfg\":{\"type\":\"object\"},"
    "\"lang\":{\"enum\":[\"de\",\"en\"]},\"since\":{\"type\":[\"string\",\"null\"]}}}}},"
    "{\"type\":\"function\",\"function\":{\"name\":\"ping\"}}]";

static cJSON *tools;
static const bool THINK = true, PLAIN = false;

/* The message as one text: R[reasoning] C[content] name(arguments). */
static void show(struct text *out, const struct message *m)
{
    int i;

    out->n = 0;
    text_puts(out, "");
    if (m->reasoning.n) {
        text_puts(out, "R[");
        text_add(out, m->reasoning.s, m->reasoning.n);
        text_puts(out, "]");
    }
    if (m->content.n) {
        text_puts(out, "C[");
        text_add(out, m->content.s, m->content.n);
        text_puts(out, "]");
    }
    for (i = 0; i < m->calls; i++) {
        text_add(out, m->call[i].name.s, m->call[i].name.n);
        text_puts(out, "(");
        text_add(out, m->call[i].arguments.s, m->call[i].arguments.n);
        text_puts(out, ")");
    }
}

/* What the machine makes of s[0..n) pushed in three pieces that end at a and b; a of -1:
 * byte by byte. */
static void parse(struct text *out, const char *s, size_t n, size_t a, size_t b, bool thinking,
                  bool whole, const cJSON *declared)
{
    struct message m = { 0 };
    const struct toolparse_options o = { thinking, declared, message_event, &m };
    struct toolparse *t;
    int rc = toolparse_open(&t, &o, NULL);
    size_t i;

    if (a == SIZE_MAX) {
        for (i = 0; i < n; i++)
            rc |= toolparse_push(t, s + i, 1);
    } else {
        rc |= toolparse_push(t, s, a);
        rc |= toolparse_push(t, s + a, b - a);
        rc |= toolparse_push(t, s + b, n - b);
    }
    rc |= toolparse_end(t, whole);
    toolparse_close(t);
    show(out, &m);
    if (rc || m.failed)
        text_puts(out, " FAILED");
    message_free(&m);
}

struct example {
    const char *s, *want;
    bool thinking;
};

#define PAIR(k, v) "<arg_key>" k "</arg_key><arg_value>" v "</arg_value>"

static const struct example examples[] = {
    { "plan</think>I'll look.<tool_call>lookup" PAIR("repo", "god-ai") "</tool_call>",
      "R[plan]C[I'll look.]lookup({\"repo\": \"god-ai\"})", THINK },
    { "plan</think>I'll look.<tool_call>lookup\n<arg_key>repo</arg_key>\n<arg_value>god-ai"
      "</arg_value>\n</tool_call>\n", "R[plan]C[I'll look.]lookup({\"repo\": \"god-ai\"})", THINK },
    { "</think><tool_call>get_current_time</tool_call>", "get_current_time({})", THINK },
    { "<tool_call>ping\n</tool_call>", "ping({})", PLAIN },
    { "\n<tool_call> ping </tool_call>\n<tool_call>ping</tool_call>\n", "ping({})ping({})", PLAIN },
    { "a <tool_call>ping</tool_call> b <tool_call>ping</tool_call> c", "C[a  b  c]ping({})ping({})",
      PLAIN },
    { "<tool_call>write_file" PAIR("content", "    def f():\n        return 1\n")
      PAIR("mode", " 420 ") "</tool_call>",
      "write_file({\"content\": \"    def f():\\n        return 1\\n\", \"mode\": 420})", PLAIN },
    { "<tool_call>write_file" PAIR("content", "") PAIR("mode", "") "</tool_call>",
      "write_file({\"content\": \"\", \"mode\": \"\"})", PLAIN },
    { "<tool_call>write_file" 
      PAIR("content", "a \"b\" \\ \t</arg_val </tool_call> <tool_call> <\r\n") "</tool_call>",
      "write_file({\"content\": \"a \\\"b\\\" \\\\ \\t</arg_val </tool_call> "
      "<tool_call> <\\r\\n\"})", PLAIN },
    { "<tool_call>search" PAIR("query", "10") PAIR("max_results", "10") PAIR("exclude", "[]")
      PAIR("deep", "true") PAIR("cfg", "{\"a\":1}") PAIR("lang", "1") "</tool_call>",
      "search({\"query\": \"10\", \"max_results\": 10, \"exclude\": [], \"deep\": true, "
      "\"cfg\": {\"a\": 1}, \"lang\": \"1\"})", PLAIN },
    { "<tool_call>search" PAIR("since", "null") PAIR("query", "null") "</tool_call>"
      "<tool_call>search" PAIR("since", " 5 ") "</tool_call>",
      "search({\"since\": null, \"query\": \"null\"})search({\"since\": \" 5 \"})", PLAIN },
    { "<tool_call>f" PAIR("a", "1e3") PAIR("b", "-0") PAIR("c", "12345678901234567890")
      PAIR("d", "NaN") PAIR("e", "0x10") PAIR("f", "01") PAIR("g", "1e999") PAIR("h", "True")
      PAIR("i", "None") PAIR("j", "'x y'") PAIR("k", "hello") PAIR("l", "[1e999]")
      PAIR("m", "3.14") PAIR("n", "[\"a\", 'b']") "</tool_call>",
      "f({\"a\": 1000.0, \"b\": 0, \"c\": 12345678901234567890, \"d\": \"NaN\", \"e\": \"0x10\", "
      "\"f\": \"01\", \"g\": \"1e999\", \"h\": true, \"i\": null, \"j\": \"x y\", "
      "\"k\": \"hello\", \"l\": \"[1e999]\", \"m\": 3.14, \"n\": \"[\\\"a\\\", 'b']\"})", PLAIN },
    { "<tool_call>search<arg_key>query</arg_key>how many days</arg_value></tool_call>",
      "search({\"query\": \"how many days\"})", PLAIN },
    { "<tool_call>search\n<arg_key>query</arg_key>\n  how</arg_value>" PAIR("max_results", "2")
      "</tool_call>", "search({\"query\": \"how\", \"max_results\": 2})", PLAIN },
    { "<tool_call>f" PAIR("a", "1") PAIR("a", "2") PAIR("\n b ", "3") "</tool_call>",
      "f({\"a\": 1, \"b\": 3})", PLAIN },
    { "<tool_call>write_file" PAIR("content", "x") PAIR("content", "y") "</tool_call>",
      "write_file({\"content\": \"x\"})", PLAIN },
    { "quoting <tool_call>x</tool_call>, <think>, <thought>, `<tool_call>` </thin</think>done",
      "R[quoting <tool_call>x</tool_call>, <think>, <thought>, `<tool_call>` </thin]C[done]",
      THINK },
    { "thinking about it", "R[thinking about it]", THINK },
    { "thinking about it </thi", "R[thinking about it </thi]", THINK },
    { "\n<think>\nso</think></think>x", "R[\nso]C[</think>x]", THINK },
    { " so <think> on", "R[ so <think> on]", THINK },
    { "  ", "R[  ]", THINK },
    { "a</think>b", "C[a</think>b]", PLAIN },
    { " \n", "C[ \n]", PLAIN },
    { "<tool_call></tool_call>", "C[<tool_call></tool_call>]", PLAIN },
    { " <tool_call>   </tool_call>x", "C[ <tool_call>   </tool_call>x]", PLAIN },
    { "<tool_call>\n" PAIR("a", "1") "</tool_call>",
      "C[<tool_call>\n" PAIR("a", "1") "</tool_call>]", PLAIN },
    { "<tool_call>a b</tool_call>", "C[<tool_call>a b</tool_call>]", PLAIN },
    { "<tool_call>{\"name\": \"f\"}\n</tool_call>", "C[<tool_call>{\"name\": \"f\"}\n</tool_call>]",
      PLAIN },
    { "</tool_call>some text", "C[</tool_call>some text]", PLAIN },
    { "<tool_call>f<arg_value>1</arg_value></tool_call>",
      "C[<tool_call>f<arg_value>1</arg_value></tool_call>]", PLAIN },
    { "<tool_call>f<arg_key>a</arg_key></tool_call>",
      "C[<tool_call>f<arg_key>a</arg_key></tool_call>]",
      PLAIN },
    { "<tool_call>f<arg_key></arg_key><arg_value>1</arg_value></tool_call>",
      "C[<tool_call>f<arg_key></arg_key><arg_value>1</arg_value></tool_call>]", PLAIN },
    { "<tool_call>f" PAIR("a", "1") "<arg_key>b</arg_key></tool_call> x",
      "C[<tool_call>f" PAIR("a", "1") "<arg_key>b</arg_key></tool_call> x]", PLAIN },
    { "<tool_call>f" PAIR("a", "1") "junk</tool_call>",
      "C[<tool_call>f" PAIR("a", "1") "junk</tool_call>]", PLAIN },
    { "<tool_call>f\n<tool_call>f" PAIR("a", "1") "</tool_call>", "C[<tool_call>f\n]f({\"a\": 1})",
      PLAIN },
    { "<tool_call>f" PAIR("a", "1") "<tool_call>g" PAIR("b", "2") "\n",
      "f({\"a\": 1})g({\"b\": 2})", PLAIN },
    { "<tool_call>f" PAIR("a", "1") "</tool_ca",
      "C[<tool_call>f" PAIR("a", "1") "</tool_ca]", PLAIN },
    { "<tool_call>ping", "C[<tool_call>ping]", PLAIN },
    { "<tool_call>f<arg_key>a</arg_key><arg_value>tex",
      "C[<tool_call>f<arg_key>a</arg_key><arg_value>tex]", PLAIN },
    { "<tool_call>write_file<arg_key>content</arg_key><arg_value>tex</arg_",
      "C[<tool_call>write_file<arg_key>content</arg_key><arg_value>tex</arg_]", PLAIN },
    { "<<tool_call<tool_call>ping</tool_call><", "C[<<tool_call<]ping({})", PLAIN },
    { "\xd0\xbf\xd1\x80<tool_call>f" PAIR("\xd0\xba", "\xd0\xbf\xf0\x9f\x98\x80") "</tool_call>",
      "C[\xd0\xbf\xd1\x80]f({\"\xd0\xba\": \"\xd0\xbf\xf0\x9f\x98\x80\"})", PLAIN },
};

static void meanings(void)
{
    struct text got = { 0 };
    size_t i;

    for (i = 0; i < sizeof(examples) / sizeof(*examples); i++) {
        const struct example *x = &examples[i];
        size_t n = strlen(x->s);

        parse(&got, x->s, n, n, n, x->thinking, true, tools);
        ok(!strcmp(got.s, x->want), "example %zu", i);
        if (strcmp(got.s, x->want) != 0)
            printf("# got  %s\n# want %s\n", got.s, x->want);
    }
    text_free(&got);
}

/* Every example in three pieces, cut at any two places, and byte by byte. */
static void cuts(void)
{
    struct text got = { 0 };
    size_t i, a, b;

    for (i = 0; i < sizeof(examples) / sizeof(*examples); i++) {
        const struct example *x = &examples[i];
        size_t n = strlen(x->s), bad = 0;

        /* Two cuts in longer texts would take seconds and add nothing. */
        for (a = 0; a <= n; a++)
            for (b = n > 160 ? n : a; b <= n; b++) {
                parse(&got, x->s, n, a, b, x->thinking, true, tools);
                bad += strcmp(got.s, x->want) != 0;
            }
        parse(&got, x->s, n, SIZE_MAX, 0, x->thinking, true, tools);
        bad += strcmp(got.s, x->want) != 0;
        ok(!bad, "example %zu: %zu cuts change the message", i, bad);
    }
    text_free(&got);
}

/* An answer that its budget ended: whole calls stay, the last is shown as it was written. */
static void unfinished(void)
{
    static const char s[] = "<tool_call>f" PAIR("a", "1") "</tool_call><tool_call>write_file"
                            PAIR("content", "x") PAIR("mode", "1") "</tool_call>";
    size_t first = (size_t)(strstr(s, "</tool_call>") - s) + 12, n, bad = 0;
    struct text got = { 0 }, want = { 0 };

    for (n = first + 11; n < sizeof(s) - 1; n++) {
        want.n = 0;
        text_puts(&want, "C[");
        text_add(&want, s + first, n - first);
        text_puts(&want, "]f({\"a\": 1})");
        parse(&got, s, n, n, n, false, false, tools);
        bad += strcmp(got.s, want.s) != 0;
    }
    ok(!bad, "a call cut by the budget is no call, at %zu places", bad);
    text_free(&got);
    text_free(&want);
}

static void without_tools(void)
{
    static const char s[] = " \n<tool_call>f" PAIR("a", "1") "</tool_call>";
    struct text got = { 0 };

    parse(&got, s, strlen(s), 3, 7, false, true, NULL);
    ok(!strncmp(got.s, "C[ \n<tool_call>f<arg_key>", 25) && got.n == strlen(s) + 3,
       "no tools: all is content");
    text_free(&got);
}

/* Any bytes as an argument. */
static void any_bytes(void)
{
    static const char s[] = "<tool_call>write_file" PAIR("content", "a\0b\xff") "</tool_call>";
    struct text got = { 0 };

    parse(&got, s, sizeof(s) - 1, 50, 60, false, true, tools);
    ok(!strcmp(got.s, "write_file({\"content\": \"a\\u0000b\xff\"})"), 
       "NUL and no UTF-8: as it is");
    text_free(&got);
}

static double seconds(const char *begin, const char *unit, int count, const char *end)
{
    struct text s = { 0 }, got = { 0 };
    clock_t from;
    double took;
    int i;

    text_puts(&s, begin);
    for (i = 0; i < count; i++)
        text_puts(&s, unit);
    text_puts(&s, end);
    from = clock();
    parse(&got, s.s, s.n, s.n, s.n, false, true, tools);
    took = (double)(clock() - from) / CLOCKS_PER_SEC;
    if (!strstr(end, "</tool_call>") || strchr(end, 'x'))
        ok(got.n == s.n + 3, "nothing of it is lost");
    text_free(&s);
    text_free(&got);
    return took;
}

static void linear(void)
{
    double worst = 0, t;

    t = seconds("<tool_call>", " ", 1000000, "");
    worst = t > worst ? t : worst;
    t = seconds("<tool_call>", " ", 1000000, "<x</tool_call>");
    worst = t > worst ? t : worst;
    t = seconds("", "<tool_call>", 100000, "");
    worst = t > worst ? t : worst;
    t = seconds("<tool_call>write_file<arg_key>content</arg_key><arg_value>", "int x < 1;\n",
                100000, "</arg_value></tool_call>");
    worst = t > worst ? t : worst;
    t = seconds("<tool_call>f<arg_key>a</arg_key><arg_value>", "[", 1000000,
                "</arg_value></tool_call>");
    worst = t > worst ? t : worst;
    ok(worst < 1, "a megabyte of anything: %.3f s at most", worst);
}

int main(void)
{
    tools = json_parse(TOOLS, strlen(TOOLS), &JSON_REQUEST, NULL);
    meanings();
    cuts();
    unfinished();
    without_tools();
    any_bytes();
    linear();
    cJSON_Delete(tools);
    return done();
}
