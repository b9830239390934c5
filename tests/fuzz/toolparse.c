/* Any text as what the model writes.  The first byte says how it is read (1: thinking,
 * 2: ended by itself, 4: without tools).  Whole, byte by byte and in two pieces it must be
 * the same message, whose calls have arguments that are JSON. */
#include "src/message.h"
#include "src/utf8.h"

#include <assert.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static const char TOOLS[] =
    "[{\"function\":{\"name\":\"f\",\"parameters\":{\"properties\":{\"s\":{\"type\":\"string\"},"
    "\"u\":{\"type\":[\"string\",\"null\"]},\"n\":{\"type\":\"number\"}}}}}]";

static void read_message(struct message *m, const char *s, size_t n, size_t step, int how,
                         const cJSON *tools)
{
    const struct toolparse_options o = { how & 1, how & 4 ? NULL : tools, message_event, m };
    struct toolparse *t;
    size_t i;

    assert(!toolparse_open(&t, &o, NULL));
    for (i = 0; i < n; i += step)
        assert(!toolparse_push(t, s + i, n - i < step ? n - i : step));
    assert(!toolparse_end(t, how & 2));
    toolparse_close(t);
    assert(!m->failed);
}

static bool same(const struct text *a, const struct text *b)
{
    return a->n == b->n && (!a->n || !memcmp(a->s, b->s, a->n));
}

static void compare(const struct message *a, const struct message *b)
{
    int i;

    assert(same(&a->reasoning, &b->reasoning) && same(&a->content, &b->content));
    assert(a->calls == b->calls);
    for (i = 0; i < a->calls; i++)
        assert(same(&a->call[i].name, &b->call[i].name) &&
               same(&a->call[i].arguments, &b->call[i].arguments));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct message whole = { 0 }, bytes = { 0 }, halves = { 0 };
    const char *s = (const char *)data + 1;
    size_t n = size - 1;
    struct err e;
    cJSON *tools;
    bool text;
    int i;

    if (!size)
        return 0;
    tools = json_parse(TOOLS, strlen(TOOLS), &JSON_REQUEST, &e);
    read_message(&whole, s, n, n + 1, data[0], tools);
    read_message(&bytes, s, n, 1, data[0], tools);
    read_message(&halves, s, n, n / 2 + 1, data[0], tools);
    compare(&whole, &bytes);
    compare(&whole, &halves);
    assert(data[0] & 1 || !whole.reasoning.n);
    assert(!(data[0] & 4) || !whole.calls);
    /* A NUL is kept as \u0000, which the scan does not take. */
    text = utf8_valid(s, n) == n && !memchr(s, 0, n);
    for (i = 0; i < whole.calls; i++) {
        const struct text *a = &whole.call[i].arguments;

        assert(whole.call[i].name.n);
        assert(!text || !json_scan(a->s, a->n, &JSON_REQUEST, &e));
    }
    message_free(&whole);
    message_free(&bytes);
    message_free(&halves);
    cJSON_Delete(tools);
    return 0;
}
