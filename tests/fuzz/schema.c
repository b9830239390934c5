/* Any text as a schema; behind a NUL, bytes that choose what is written by it.  While the value
 * is not complete some byte must be allowed, and what is complete must be JSON that keeps the
 * schema.  A first byte of 1 takes the text as the parameters of a tool, whose calls must come
 * back from the parser as calls. */
#include "src/automaton.h"
#include "src/message.h"
#include "src/schema.h"

#include "tests/validate.h"

#include <assert.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { STEPS_MAX = 1500 };

/* The way to an end: quotes and brackets that close, then whatever is first.  Text that may
 * have control characters is that of an argument, and ends in its tag. */
static int preferred(const bool *allowed, const struct text *out)
{
    static const char tag[] = "</arg_value>", close[] = "\"}]<kyte0";
    size_t n = sizeof(tag) - 2;
    int i;

    while (n && (out->n < n || memcmp(out->s + out->n - n, tag, n) != 0))
        n--;
    if (allowed[1])
        return (uint8_t)tag[n];
    for (i = 0; close[i]; i++)
        if (allowed[(uint8_t)close[i]])
            return (uint8_t)close[i];
    for (i = 0; i < 256; i++)
        if (allowed[i])
            break;
    return i;
}

static int chosen(const bool *allowed, uint8_t how)
{
    int n = 0, i;

    for (i = 0; i < 256; i++)
        n += allowed[i];
    if (!n)
        return 256;
    n = how % n;
    for (i = 0; !allowed[i] || n--; i++)
        ;
    return i;
}

/* True where the value in *out is complete. */
static bool write_value(struct text *out, const struct schema *s, const uint8_t *data, size_t size)
{
    struct automaton *a;
    struct threads t, next;
    bool allowed[256], final = false;
    int step, b;

    assert(!automaton_open(&a, s, NULL));
    automaton_start(a, &t);
    for (step = 0; step < STEPS_MAX; step++) {
        uint32_t mark = automaton_mark(a);

        for (b = 0; b < 256; b++) {
            automaton_step(a, &t, (uint8_t)b, &next);
            allowed[b] = next.n > 0;
            automaton_release(a, mark);
        }
        final = automaton_final(a, &t);
        if (final && (size_t)step >= size)
            break;
        b = (size_t)step < size ? chosen(allowed, data[step]) : preferred(allowed, out);
        assert(b < 256 || final);
        if (b == 256)
            break;
        automaton_step(a, &t, (uint8_t)b, &next);
        t = next;
        automaton_compact(a, &t);
        text_add(out, &(char){ (char)b }, 1);
    }
    automaton_close(a);
    return final;
}

static void try_document(const cJSON *schema, const uint8_t *data, size_t size)
{
    static const struct json_limits limits = { 128, 500000 };
    struct text out = { 0 };
    struct schema *s;
    struct err e;
    cJSON *v;

    if (schema_open(&s, schema, "schema", &e)) {
        assert(!strncmp(e.text, "schema", 6) || !strncmp(e.text, "$ref", 4));
        return;
    }
    if (write_value(&out, s, data, size)) {
        v = json_parse(out.s, out.n, &limits, &e);
        assert(v && validate(schema, schema, v, 0));
        cJSON_Delete(v);
    }
    text_free(&out);
    schema_close(s);
}

static void try_call(const cJSON *tools, const uint8_t *data, size_t size)
{
    const cJSON *parameters = json_get(json_get(tools->child, "function"), "parameters");
    struct text out = { 0 };
    struct message m = { 0 };
    const struct toolparse_options o = { false, tools, message_event, &m };
    struct toolparse *t;
    struct schema *s;
    struct err e;
    cJSON *v;

    /* Others are refused with the request (src/request_chat.c). */
    if (!cJSON_IsObject(parameters) || schema_open_calls(&s, tools, NULL, &e))
        return;
    text_puts(&out, "<tool_call>");
    if (write_value(&out, s, data, size)) {
        text_puts(&out, "</tool_call>");
        assert(!toolparse_open(&t, &o, NULL));
        assert(!toolparse_push(t, out.s, out.n) && !toolparse_end(t, true));
        toolparse_close(t);
        assert(m.calls == 1 && !m.content.n);
        v = json_parse(m.call[0].arguments.s, m.call[0].arguments.n, &JSON_REQUEST, &e);
        assert(v && validate(parameters, parameters, v, 0));
        cJSON_Delete(v);
    }
    message_free(&m);
    text_free(&out);
    schema_close(s);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const uint8_t *end = size ? memchr(data, 0, size) : NULL;
    bool call = size && data[0] == 1;
    struct text text = { 0 };
    size_t n = end ? (size_t)(end - data) : size;
    cJSON *node;
    struct err e;

    if (n <= call)
        return 0;
    text_puts(&text, call ? "[{\"function\":{\"name\":\"f\",\"parameters\":" : "");
    text_add(&text, (const char *)data + call, n - call);
    text_puts(&text, call ? "}}]" : "");
    node = json_parse(text.s, text.n, &JSON_REQUEST, &e);
    data += end ? n + 1 : n;
    size -= end ? n + 1 : n;
    if (node && call && cJSON_GetArraySize(node) == 1 &&
        cJSON_GetArraySize(node->child->child) == 2)
        try_call(node, data, size);
    else if (node && !call)
        try_document(node, data, size);
    cJSON_Delete(node);
    text_free(&text);
    return 0;
}
