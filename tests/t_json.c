#include "src/json.h"
#include "tests/tap.h"

#include <errno.h>
#include <stdlib.h>

static struct err e;

static bool scans(const char *s, size_t n)
{
    cJSON *node = json_parse(s, n, &JSON_REQUEST, &e);
    bool good = node != NULL;

    cJSON_Delete(node);
    return good && !json_scan(s, n, &JSON_REQUEST, &e);
}

static void accepts(void)
{
    static const char *const good[] = {
        "{}", "[]", " \t\r\n{ } ", "null", "true", "false", "\"\"", "0", "-0", "-0.0", "1e5",
        "1E+5",
        "0.5e-7", "[1,2 , 3]", "{\"a\":{\"a\":1},\"b\":[{\"a\":2},{\"a\":3}]}", "\"\x7f\"",
        "\"\\ud83d\\ude00\"", "\"\xf0\x9f\x98\x80\"", "\"\xed\x9f\xbf\xee\x80\x80\"",
        "\"\xf4\x8f\xbf\xbf\"", "\"\\\"\\\\\\/\\b\\f\\n\\r\\t\\u0041\"", "{\"\":1}",
        "{\"a\":1,\"A\":2}", "1e999",
    };
    size_t i;

    for (i = 0; i < sizeof(good) / sizeof(*good); i++)
        ok(scans(good[i], strlen(good[i])), "accepted: case %zu", i);
}

static void rejects(void)
{
    static const struct { const char *s, *words; } bad[] = {
        { "", "byte 0: a value is missing" }, { " ", "byte 1: a value is missing" },
        { "{\"a\":1} xyz", "byte 8: text after the end" }, { "{} {}", "text after the end" },
        { "{\"a\":1,\"a\":2}", "byte 7: the key \"a\" is there twice" },
        { "{\"a\":1,\"\\u0061\":2}", "there twice" }, { "[{\"x\":{},\"x\":1}]", "there twice" },
        { "{\"\\ud83d\\ude00\":1,\"\xf0\x9f\x98\x80\":2}", "there twice" },
        { "\"a\\u0000b\"", "byte 2: \\u0000" }, { "{\"a\\u0000\":1}", "\\u0000" },
        { "\"\xc0\x80\"", "byte 1: invalid UTF-8" }, { "\"\xe0\x9f\xbf\"", "invalid UTF-8" },
        { "\"\xf0\x8f\xbf\xbf\"", "invalid UTF-8" }, { "\"\xed\xa0\x80\"", "invalid UTF-8" },
        { "\"\xf4\x90\x80\x80\"", "invalid UTF-8" }, { "\"\xf5\x80\x80\x80\"", "invalid UTF-8" },
        { "\"\xff\"", "invalid UTF-8" }, { "\"\x80\"", "invalid UTF-8" },
        { "\"\xe2\x82\"", "UTF-8" },
        { "\"\\ud800\"", "half of a surrogate" }, { "\"\\udc00\"", "half of a surrogate" },
        { "\"\\ud800\\ud800\"", "half of a surrogate" }, { "\"\\ud800x\"", "half of a surrogate" },
        { "\"\\ud800\\u12\"", "half of a surrogate" },
        { "\"a\nb\"", "a control character" }, { "\"\\x\"", "unknown escape" },
        { "\"\\u12g4\"", "four hexadecimal" }, { "\"\\u12", "four hexadecimal" },
        { "\"abc", "does not end" }, { "\"abc\\", "does not end" },
        { "0123", "leading zero" }, { "-01", "leading zero" }, { "1.", "after the point" },
        { ".5", "a value is missing" }, { "+1", "a value is missing" }, { "-", "a digit" },
        { "1e", "in the exponent" }, { "1e+", "in the exponent" }, { "NaN", "a value is missing" },
        { "Infinity", "a value is missing" }, { "nul", "a value is missing" },
        { "truex", "text after the end" }, { "\xef\xbb\xbf{}", "byte order mark" },
        { "[1,]", "a value is missing" }, { "{\"a\":1,}", "a key is missing" },
        { "[1 2]", "a comma or ]" }, { "{\"a\" 1}", "a colon" }, { "{\"a\":}", "a value" },
        { "{1:2}", "a key" }, { "[1}", "a comma or ]" }, { "{\"a\":1]", "a comma or }" },
        { "[", "a value is missing" }, { "{", "a key is missing" }, { "]", "a value is missing" },
        { "// c\n1", "a value is missing" }, { "1\v", "text after" },
    };
    size_t i;

    for (i = 0; i < sizeof(bad) / sizeof(*bad); i++) {
        e.text[0] = 0;
        ok(!scans(bad[i].s, strlen(bad[i].s)) && strstr(e.text, bad[i].words),
           "refused: case %zu, %s", i, e.text);
    }
    ok(!scans("{}\0", 3), "refused: a NUL behind the end");
    ok(!scans("\"a\0b\"", 5), "refused: a NUL in a string");
}

static void limits(void)
{
    static const struct json_limits four = { 64, 4 };
    struct text t = { 0 };
    int i;

    for (i = 0; i < 64; i++)
        text_puts(&t, "[");
    for (i = 0; i < 64; i++)
        text_puts(&t, "]");
    ok(scans(t.s, t.n), "64 levels");
    t.n = 0;
    for (i = 0; i < 65; i++)
        text_puts(&t, i % 2 ? "{\"a\":" : "[");
    ok(!scans(t.s, t.n) && strstr(e.text, "deeper than 64"), "65 levels: %s", e.text);
    ok(!json_scan("[1,2,3]", 7, &four, &e), "as many values as allowed");
    ok(json_scan("[1,2,3,4]", 9, &four, &e) == -EBADMSG, "one more: %s", e.text);

    t.n = 0;
    text_puts(&t, "{");
    for (i = 0; i < 200000; i++)
        text_printf(&t, "\"k%d\":%d,", i, i);
    text_puts(&t, "\"k7\":0}");
    ok(json_scan(t.s, t.n, &JSON_REQUEST, &e) && strstr(e.text, "\"k7\" is there twice"),
       "one key of 200001 twice: %s", e.text);
    text_free(&t);
}

static bool prints(const char *in, const char *want)
{
    cJSON *node = json_parse(in, strlen(in), &JSON_REQUEST, &e);
    struct text t = { 0 };
    bool same;

    text_json_python(&t, node);
    same = t.s && !strcmp(t.s, want);
    if (!same)
        printf("# %s -> %s\n", in, t.s ? t.s : "(nothing)");
    text_free(&t);
    cJSON_Delete(node);
    return same;
}

static void python(void)
{
    static const char *const pair[][2] = {
        { "{\"b\":1,\"a\":[true,false,null]}", "{\"b\": 1, \"a\": [true, false, null]}" },
        { "[]", "[]" }, { "{}", "{}" }, { "[[],{}]", "[[], {}]" },
        { "-0", "0" }, { "-0.0", "-0.0" }, { "0e0", "0.0" }, { "1.0", "1.0" }, { "1e2", "100.0" },
        { "1e16", "1e+16" }, { "1e15", "1000000000000000.0" }, { "123456789012345680.0",
        "1.2345678901234568e+17" }, { "0.0001", "0.0001" }, { "0.00001", "1e-05" },
        { "1.5e-7", "1.5e-07" }, { "1e100", "1e+100" }, { "0.1", "0.1" }, { "1e999", "Infinity" },
        { "-1e999", "-Infinity" }, { "5e-324", "5e-324" }, { "1e-999", "0.0" },
        { "1.7976931348623157e308", "1.7976931348623157e+308" }, { "123.456", "123.456" },
        { "0.30000000000000004", "0.30000000000000004" },
        { "9007199254740993", "9007199254740993" },
        { "9007199254740993.0", "9007199254740992.0" },
        { "5.684341886080802e-14", "5.684341886080802e-14" },
        { "-12345678901234567890123456789012345678901234567890123456789012345678901234567890",
          "-12345678901234567890123456789012345678901234567890123456789012345678901234567890" },
        { "0.3333333333333333333333333333333333333333333333333333333333333333333333333333",
          "0.3333333333333333" },
        { "\"\\u001f\\u007f\\u00e9\\b\\f\\n\\r\\t\\\"\\\\\\/\\ud83d\\ude00\"",
          "\"\\u001f\x7f\xc3\xa9\\b\\f\\n\\r\\t\\\"\\\\/\xf0\x9f\x98\x80\"" },
        { "{\"a\\\"-1\":\"2\",\"x\":[3,\"\\\\\",{\"y\":4.50}]}",
          "{\"a\\\"-1\": \"2\", \"x\": [3, \"\\\\\", {\"y\": 4.5}]}" },
    };
    size_t i;

    for (i = 0; i < sizeof(pair) / sizeof(*pair); i++)
        ok(prints(pair[i][0], pair[i][1]), "as Python prints it: %.40s", pair[i][1]);
}

static void lookups(void)
{
    const char *s = "{\"Max\":1,\"max\":-9223372036854775808,\"big\":9223372036854775808,"
                    "\"half\":1.5,\"exp\":1e3,\"text\":\"5\"}";
    cJSON *node = json_parse(s, strlen(s), &JSON_REQUEST, &e);
    int64_t v = 7;

    ok(!json_get(node, "MAX") && json_get(node, "Max") == node->child, "names are exact");
    ok(!json_get(NULL, "a") && !json_get(node->child, "a"), "no member of what is no object");
    ok(!json_int64(json_get(node, "max"), INT64_MIN, INT64_MAX, &v) && v == INT64_MIN, "INT64_MIN");
    v = 7;
    ok(json_int64(json_get(node, "big"), INT64_MIN, INT64_MAX, &v) == -ERANGE, "2^63");
    ok(json_int64(json_get(node, "Max"), 2, 3, &v) == -ERANGE, "below the least");
    ok(json_int64(json_get(node, "half"), 0, 9, &v) == -EINVAL, "1.5");
    ok(json_int64(json_get(node, "exp"), 0, 9, &v) == -EINVAL, "1e3");
    ok(json_int64(json_get(node, "text"), 0, 9, &v) == -EINVAL, "a string");
    ok(json_int64(NULL, 0, 9, &v) == -EINVAL && v == 7, "nothing; the result is untouched");
    cJSON_Delete(node);
}

int main(void)
{
    accepts();
    rejects();
    limits();
    python();
    lookups();
    return done();
}
