/* What a schema lets be written, byte by byte, and what is refused. */
#include "src/automaton.h"
#include "tests/tap.h"

#include <errno.h>
#include <stdlib.h>

static struct err e;

static bool takes(const struct schema *s, const char *text)
{
    struct automaton *a;
    struct threads t, next;
    bool good;

    if (automaton_open(&a, s, &e))
        return false;
    automaton_start(a, &t);
    for (; *text; text++) {
        automaton_step(a, &t, (uint8_t)*text, &next);
        t = next;
        automaton_compact(a, &t);
    }
    good = automaton_final(a, &t);
    automaton_close(a);
    return good;
}

/* Lists of texts end in NULL. */
static void check(const char *schema, const char *const *good, const char *const *bad)
{
    cJSON *node = json_parse(schema, strlen(schema), &JSON_REQUEST, &e);
    struct schema *s;
    int rc = node ? schema_open(&s, node, "schema", &e) : -1;

    ok(!rc, "compiles: %.90s", schema);
    if (rc)
        printf("# %s\n", e.text);
    for (; !rc && *good; good++)
        ok(takes(s, *good), "takes %.60s", *good);
    for (; !rc && *bad; bad++)
        ok(!takes(s, *bad), "not %.60s", *bad);
    if (!rc)
        schema_close(s);
    cJSON_Delete(node);
}

#define LIST(...) (const char *const[]){ __VA_ARGS__, NULL }

static void scalars(void)
{
    check("{\"type\":\"integer\"}", LIST("0", "-1", "120", "99999999999999999999"),
          LIST("", "-", "-0", "01", "1.0", "1e3", "+1", " 1", "1 ", "999999999999999999999"));
    check("{\"type\":\"number\"}", LIST("0", "-0", "0.5", "-12.25e-3", "1E+9"),
          LIST(".5", "1.", "1e", "1e999", "01", "NaN", "--1"));
    check("{\"type\":[\"boolean\",\"null\"]}", LIST("true", "false", "null"),
          LIST("True", "tru", "nulll", "0"));
    check("{\"type\":\"integer\",\"minimum\":3,\"exclusiveMaximum\":120}",
          LIST("3", "9", "10", "119"), LIST("0", "2", "-3", "120", "1", "1000"));
    check("{\"type\":\"integer\",\"minimum\":-17,\"maximum\":-5}",
          LIST("-5", "-17", "-10"), LIST("-1", "-4", "-18", "5", "0", "-50"));
    check("{\"type\":\"integer\",\"exclusiveMinimum\":0.5,\"maximum\":2.5}", LIST("1", "2"),
          LIST("0", "3", "-1"));
    check("{\"type\":\"integer\",\"minimum\":0}", LIST("0", "999999999999999999"),
          LIST("-1", "1000000000000000000"));
}

static void strings(void)
{
    check("{\"type\":\"string\"}",
          LIST("\"\"", "\"a\\n\\\"\\u00e9 \xc3\xa9\"", "\"\\ud83d\\ude00\"",
               "\"\xf0\x9f\x98\x80\""),
          LIST("\"", "a", "\"\\x\"", "\"\n\"", "\"\xff\"", "\"\xc3\"", "\"\xed\xa0\x80\"",
               "\"\\u0000\"", "\"\\ud83d\"", "\"\\ude00\"", "\"\\ud83d\\u0041\"", "\"\"\""));
    check("{\"type\":\"string\",\"minLength\":2,\"maxLength\":3}",
          LIST("\"ab\"", "\"\xc3\xa9\xf0\x9f\x98\x80z\"", "\"\\n\\ud83d\\ude00\""),
          LIST("\"\"", "\"a\"", "\"abcd\"", "\"\\n\""));
    check("{\"enum\":[\"a\",\"ab\",1,12,null,{\"x\":[1, 2.50]}]}",
          LIST("\"a\"", "\"ab\"", "1", "12", "null", "{\"x\": [1, 2.5]}"),
          LIST("\"b\"", "2", "a", "{\"x\":[1,2.5]}", "\"abc\""));
    check("{\"type\":\"integer\",\"enum\":[\"a\",7,2.5]}", LIST("7"), LIST("\"a\"", "2.5"));
    check("{\"const\":\"x\\ny\"}", LIST("\"x\\ny\""), LIST("\"x\ny\"", "x"));
}

static void containers(void)
{
    check("{\"type\":\"object\",\"properties\":{\"a\":{\"type\":\"integer\"},\"ab\":{\"type\":"
          "\"null\"}},\"required\":[\"ab\"]}",
          LIST("{\"ab\":null}", "{\"a\": 1, \"ab\": null}", "{\"ab\":null,\"a\":5}"),
          LIST("{}", "{\"a\":1}", "{\"ab\":null,\"ab\":null}", "{\"ab\":null,\"c\":1}",
               "{\"ab\":null,}", "{\"ab\":  null}", "{\"ab\":null,\"a\":null}", "{\"ab\":null} "));
    check("{\"properties\":{\"ab\":{\"type\":\"integer\"}},\"additionalProperties\":{\"type\":"
          "\"boolean\"}}",
          LIST("{}", "{\"a\":true,\"ab\":1,\"abc\":false,\"\":true}", "{\"\xc3\xa9\":true}"),
          LIST("{\"ab\":true}", "{\"a\":1}", "{\"a\":true,\"a\":true}", "{\"\\u0061b\":true}",
               "{\"a\\u0062\":true}", "{\"ab\":1,\"ab\":2}"));
    check("{\"type\":\"object\"}", LIST("{}", "{\"a\":[1,{\"b\":null}, \"x\"]}"),
          LIST("[]", "{\"a\"}", "{\"a\":1,\"b\":2,\"a\":3}", "{\"a\\n\":1}"));
    check("{\"type\":\"array\",\"items\":{\"type\":\"integer\"},\"minItems\":1,\"maxItems\":3}",
          LIST("[1]", "[1,2]", "[1, 2, 3]"), LIST("[]", "[1,2,3,4]", "[,1]", "[1,]", "[\"a\"]"));
    check("{\"type\":\"array\",\"maxItems\":0}", LIST("[]"), LIST("[1]", "["));
}

static void choices(void)
{
    check("{\"anyOf\":[{\"type\":\"integer\"},{\"type\":\"number\"},{\"type\":\"array\",\"items\":"
          "{\"const\":1}},{\"type\":\"array\",\"items\":{\"const\":12}}]}",
          LIST("1", "1.5", "[1,1]", "[12,12]", "[]"), LIST("[1,12]", "[12,1]", "\"a\""));
    check("{\"oneOf\":[{\"type\":\"object\",\"properties\":{\"kind\":{\"const\":\"a\"},\"x\":{"
          "\"type\":\"integer\"}},"
          "\"required\":[\"kind\"]},{\"type\":\"object\",\"properties\":{\"kind\":{\"enum\":[\"b\","
          "\"c\"]},\"x\":{\"type\":"
          "\"null\"}},\"required\":[\"kind\",\"x\"]},{\"type\":\"null\"}]}",
          LIST("null", "{\"kind\":\"a\"}", "{\"x\":1,\"kind\":\"a\"}",
               "{\"x\":null,\"kind\":\"c\"}"),
          LIST("{\"x\":null,\"kind\":\"a\"}", "{\"kind\":\"b\"}", "{\"kind\":\"b\",\"x\":1}"));
    check("{\"$ref\":\"#/$defs/n~1\",\"$defs\":{\"n/\":{\"type\":\"object\",\"properties\":{"
          "\"next\":"
          "{\"anyOf\":[{\"$ref\":\"#/$defs/n~1\"},{\"type\":\"null\"}]}},\"required\":["
          "\"next\"]}}}",
          LIST("{\"next\":null}", "{\"next\":{\"next\":{\"next\":null}}}"), LIST("{}", "null"));
    /* Two spellings of one reference. */
    check("{\"properties\":{\"a\":{\"$ref\":\"#/$defs/~0\"},\"b\":{\"$ref\":\"#/$defs/~\"},\"c\":{"
          "\"$ref\":\"#/$defs/~0\"}},\"$defs\":{\"~\":{\"type\":\"null\"}}}",
          LIST("{\"a\":null,\"b\":null,\"c\":null}"), LIST("{\"a\":1}", "{\"b\":1}", "{\"c\":1}"));
    check("{\"allOf\":[{\"type\":\"null\"}]}", LIST("null"), LIST("1"));
    check("true", LIST("1", "{\"a\":[]}", "\"x\""), LIST("", "x"));
}

static void check_refused(const struct text *t, const char *words)
{
    cJSON *node = json_parse(t->s, t->n, &JSON_REQUEST, &e);
    struct schema *s = NULL;

    ok(node && schema_open(&s, node, "schema", &e) == -EBADMSG && strstr(e.text, words),
       "%zu bytes of schema: %s", t->n, e.text);
    schema_close(s);
    cJSON_Delete(node);
}

/* Alternatives are counted before they are compared with each other, which would take long where
 * they are many: so the first fault is the one that is told. */
static void too_many(void)
{
    struct text t = { 0 };
    int i;

    text_puts(&t, "{\"oneOf\":[{\"type\":\"null\"},{\"type\":\"null\"},{\"anyOf\":[");
    for (i = 0; i < SCHEMA_ALTERNATIVES; i++)
        text_printf(&t, "%s{\"const\":%d}", i ? "," : "", i);
    text_puts(&t, "]}]}");
    check_refused(&t, "schema: anyOf with more than 32 alternatives");
    text_free(&t);
}

/* Alternatives that are told apart by the last of three letters only, and all of that again. */
static void too_long(void)
{
    struct text t = { 0 };
    int one, i, j;

    text_puts(&t, "{\"$defs\":{\"\":0");
    for (i = 0; i < SCHEMA_ALTERNATIVES; i++) {
        text_printf(&t, ",\"%d\":{\"enum\":[", i);
        for (j = 0; j < 32 * 32; j++)
            text_printf(&t, "%s\"%c%c%c\"", j ? "," : "", '#' + j / 32, '#' + j % 32, '#' + i);
        text_puts(&t, "]}");
    }
    text_puts(&t, "},\"anyOf\":[");
    for (one = 0; one < 2; one++) {
        text_printf(&t, "%s{\"oneOf\":[", one ? "," : "");
        for (i = 0; i < SCHEMA_ALTERNATIVES; i++)
            text_printf(&t, "%s{\"$ref\":\"#/$defs/%d\"}", i ? "," : "", i);
        text_puts(&t, "]}");
    }
    text_puts(&t, "]}");
    check_refused(&t, "schema.anyOf[1].oneOf: too many keys and texts to compare");
    text_free(&t);
}

/* Values nest as deep as that and no deeper, whatever the schema. */
static void depth(void)
{
    char deep[2 * SCHEMA_DEPTH + 3] = "", *text;
    struct schema *s;
    int i;

    ok(!schema_open(&s, NULL, "x", &e), "any object");
    for (i = 0; i <= 1; i++) {
        size_t n = SCHEMA_DEPTH - 1 + (size_t)i;

        memset(deep, '[', n);
        memset(deep + n, ']', n);
        deep[2 * n] = 0;
        text = malloc(sizeof(deep) + 8);
        snprintf(text, sizeof(deep) + 8, "{\"a\":%s}", deep);
        ok(takes(s, text) == !i, "%zu levels", n + 1);
        free(text);
    }
    schema_close(s);
}

static void refusals(void)
{
    static const char *const bad[][2] = {
        { "{\"patternProperties\":{\"^x\":{}}}", "schema.patternProperties: patternProperties is" },
        { "{\"properties\":{\"a\":{\"items\":{\"pattern\":\"(a+)+$\"}}}}",
          "schema.properties.a.items.pattern: pattern is not supported" },
        { "{\"anyOf\":[{},{\"not\":{}}]}", "schema.anyOf[1].not: not is not supported" },
        { "{\"type\":\"number\",\"minimum\":0}", "schema.minimum: minimum is supported for int" },
        { "{\"type\":\"text\"}", "schema.type: " },
        { "{\"type\":\"string\",\"format\":\"uri\"}", "schema.format: format is not" },
        { "{\"$ref\":\"http://example.org/x\"}", "schema.$ref: $ref must begin with #" },
        { "{\"$ref\":\"#/$defs/none\"}", "schema.$ref: $ref #/$defs/none leads nowhere" },
        { "{\"$ref\":\"#\"}", "schema: no value" },
        { "{\"properties\":{\"a\":{\"$ref\":\"#\"}},\"required\":[\"a\"]}", "schema: no value" },
        { "{\"required\":[\"a\"]}", "schema.required: a is not among the properties" },
        { "{\"oneOf\":[{\"type\":\"integer\"},{\"type\":\"number\"}]}", "schema.oneOf: " },
        { "{\"oneOf\":[{\"properties\":{}},{\"type\":\"null\"}]}", "schema.oneOf: " },
        { "{\"oneOf\":[{\"const\":\"a\"},{\"enum\":[\"b\",\"a\"]}]}", "schema.oneOf: " },
        { "{\"allOf\":[{},{}]}", "schema.allOf: must be an array of 1 to 1 schemas" },
        { "{\"anyOf\":[{}],\"type\":\"object\"}", "schema.type: type beside anyOf is not" },
        { "{\"enum\":[1],\"minimum\":2}", "schema.minimum: minimum beside enum or const is not" },
        { "{\"enum\":[]}", "schema.enum: no value is of the type" },
        { "{\"enum\":[1e999]}", "schema.enum: a value that cannot be written" },
        { "{\"type\":\"integer\",\"minimum\":5,\"maximum\":4}", "schema: no integer is" },
        { "{\"minItems\":3,\"maxItems\":2}", "schema.minItems: is above maxItems" },
        { "{\"items\":false}", "schema.items: a schema must be an object" },
        { "{\"maxLength\":-1}", "schema.maxLength: must be an integer" },
        { "[]", "schema: a schema must be an object" },
    };
    size_t i;

    for (i = 0; i < sizeof(bad) / sizeof(*bad); i++) {
        cJSON *node = json_parse(bad[i][0], strlen(bad[i][0]), &JSON_REQUEST, &e);
        struct schema *s = NULL;
        int rc = schema_open(&s, node, "schema", &e);

        ok(rc && !strncmp(e.text, bad[i][1], strlen(bad[i][1])), "refused: %.70s", bad[i][0]);
        if (!rc)
            schema_close(s);
        else if (strncmp(e.text, bad[i][1], strlen(bad[i][1])) != 0)
            printf("# %s\n", e.text);
        cJSON_Delete(node);
    }
}

/* Caps: n repetitions of an item are too many, a tenth of them is not. */
static void sizes(void)
{
    static const struct {
        const char *head, *item, *tail;
        int most;
    } field[] = {
        { "{\"enum\":[", "%d", "]}", 1000000 },
        { "{\"properties\":{", "\"p%d\":{}", "}}", SCHEMA_PROPERTIES + 1 },
        { "{\"anyOf\":[", "{\"const\":%d}", "]}", SCHEMA_ALTERNATIVES + 1 },
    };
    static const struct json_limits limits = { 64, 4000000 };
    size_t i;
    int n, j;

    for (i = 0; i < sizeof(field) / sizeof(*field); i++)
        for (n = field[i].most / 10; n <= field[i].most; n += field[i].most - field[i].most / 10) {
            struct text t = { 0 };
            struct schema *s = NULL;
            cJSON *node;
            bool taken;

            text_puts(&t, field[i].head);
            for (j = 0; j < n; j++) {
                char item[64];

                snprintf(item, sizeof(item), field[i].item, 1000000 + j);
                text_printf(&t, "%s%s", j ? "," : "", item);
            }
            text_puts(&t, field[i].tail);
            node = json_parse(t.s, t.n, &limits, &e);
            taken = node && !schema_open(&s, node, "schema", &e);
            ok(taken == (n < field[i].most), "%d times %s", n, field[i].item);
            schema_close(s);
            cJSON_Delete(node);
            text_free(&t);
        }
}

#define ARG(k, v) "<arg_key>" k "</arg_key><arg_value>" v "</arg_value>"

static void calls(void)
{
    static const char tools[] =
        "[{\"function\":{\"name\":\"get\",\"parameters\":{\"type\":\"object\",\"properties\":{"
        "\"city\":"
        "{\"type\":\"string\"},\"unit\":{\"type\":\"string\",\"enum\":[\"c\",\"f\"]},\"n\":{"
        "\"type\":"
        "\"integer\"},\"o\":{\"type\":\"object\"},\"s\":{\"type\":\"string\",\"minLength\":2,"
        "\"maxLength\":4}},\"required\":[\"city\"]}}},{\"function\":{\"name\":\"get_all\"}}]";
    static const char *const good[] = {
        "get_all", "get" ARG("city", "Paris"), "get" ARG("city", ""),
        "get" ARG("city", "a<b</arg>\n\"x\"</arg_valu"), "get" ARG("n", "-3") ARG("city", "x"),
        "get" ARG("unit", "c") ARG("city", "x"), "get" ARG("city", "x") ARG("s", "</a"),
        "get" ARG("city", "x") ARG("o", "{\"k\": \"a<b\"}"),
        "get" ARG("city", "x") ARG("s", "<</<"),
    };
    static const char *const bad[] = {
        "", "ge", "get", "get_al", "get_all" ARG("city", "x"), "put", "get" ARG("n", "1"),
        "get" ARG("city", "x") ARG("city", "y"), "get" ARG("city", "x") ARG("n", "1.5"),
        "get" ARG("city", "x") ARG("unit", "k"), "get" ARG("city", "x") ARG("town", "k"),
        "get" ARG("city", "x") ARG("n", "\"1\""), "get" ARG("city", "x") "\n",
        "get" ARG("city", "x") ARG("s", "<"), "get" ARG("city", "x") ARG("s", "</arg"),
        "get" ARG("city", "x") ARG("o", "{\"k\":\"</arg_value>\"}"),
    };
    static const char *const refused[][2] = {
        { "{\"properties\":{\"a b\":{\"type\":\"string\"},\"c<\":{}}}", "properties.c<: the name" },
        { "{\"properties\":{\"a\":{\"type\":\"string\",\"enum\":[\"x</arg_value>\"]}}}",
          "properties.a.enum: a value that cannot be written" },
        { "{\"properties\":{\"a\":{\"type\":[\"string\",\"array\"]}}}", "properties.a.type: " },
        { "{\"properties\":{\"a\":{\"type\":[\"string\",\"integer\"],\"enum\":[\"1\",2]}}}",
          "properties.a.enum: a value that cannot be written" },
        { "{\"anyOf\":[{}]}", "anyOf: anyOf is not supported for all parameters" },
        { "{\"minProperties\":1}", "minProperties: minProperties is not supported" },
        { "{\"type\":\"array\"}", "type: must be object" },
    };
    cJSON *node = json_parse(tools, sizeof(tools) - 1, &JSON_REQUEST, &e);
    struct schema *s;
    size_t i;

    ok(!schema_open_calls(&s, node, NULL, &e), "tools compile");
    for (i = 0; i < sizeof(good) / sizeof(*good); i++)
        ok(takes(s, good[i]), "a call: %.90s", good[i]);
    for (i = 0; i < sizeof(bad) / sizeof(*bad); i++)
        ok(!takes(s, bad[i]), "no call: %.90s", bad[i]);
    schema_close(s);
    ok(!schema_open_calls(&s, node, "get_all", &e) && takes(s, "get_all") &&
       !takes(s, "get" ARG("city", "x")), "only the named one");
    schema_close(s);
    cJSON_Delete(node);
    for (i = 0; i < sizeof(refused) / sizeof(*refused); i++) {
        struct text t = { 0 };
        char path[256];

        snprintf(path, sizeof(path), "tools[0].function.parameters.%s", refused[i][1]);
        text_printf(&t, "[{\"function\":{\"name\":\"f\",\"parameters\":%s}}]", refused[i][0]);
        node = json_parse(t.s, t.n, &JSON_REQUEST, &e);
        ok(schema_open_calls(&s, node, NULL, &e) && !strncmp(e.text, path, strlen(path)),
           "refused: %s", e.text);
        cJSON_Delete(node);
        text_free(&t);
    }
}

int main(void)
{
    scalars();
    strings();
    containers();
    choices();
    too_many();
    too_long();
    depth();
    refusals();
    sizes();
    calls();
    return done();
}
