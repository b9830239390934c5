#include "src/literal.h"
#include "tests/tap.h"

#include <errno.h>

static void good(const char *line, const char *want, size_t n)
{
    struct text t = { NULL, 0, 0, false };
    struct err e = { "" };
    int rc = literal_parse(&t, line, strlen(line), &e);

    ok(!rc && t.n == n && !memcmp(t.s, want, n), "%s is %zu bytes", line, n);
    text_free(&t);
}

static void bad(const char *line, size_t n)
{
    struct text t = { NULL, 0, 0, false };
    struct err e = { "" };

    ok(literal_parse(&t, line, n, &e) == -EBADMSG && !strncmp(e.text, "byte ", 5),
       "refused: %s", line);
    text_free(&t);
}

int main(void)
{
    static const char *const wrong[] = {
        "", "x", "\"", "\"a", "\"a\" b", "[\"a\"]", "\"\\x\"", "\"\\\"", "\"\\u12\"", "\"\\u12g4\"",
        "\"\\ud800\"", "\"\\ud800\\u0041\"", "\"\\udc00\"", "\"\\ud83d\\ud83d\"", "\"\t\"",
        "\"\xff\"", "\"\xc0\x80\"", "\"\xed\xa0\x80\"", "\"\xe2\x82\"",
    };

    good("\"\"", "", 0);
    good(" \"plain\" \r", "plain", 5);
    good("\"\\\"\\\\\\/\\b\\f\\n\\r\\t\"", "\"\\/\b\f\n\r\t", 8);
    good("\"a\\u0000b\"", "a\0b", 3);
    good("\"\\u00e9\\u20AC\\ud83d\\ude00\"", "\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80", 9);
    good("\"\xf0\x9f\x98\x80\"", "\xf0\x9f\x98\x80", 4);
    for (size_t i = 0; i < sizeof(wrong) / sizeof(*wrong); i++)
        bad(wrong[i], strlen(wrong[i]));
    bad("\"a\0b\"", 5);
    return done();
}
