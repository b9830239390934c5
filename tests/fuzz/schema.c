/* Any text as a schema; behind a NUL, bytes that choose what is written by it.  While the value
 * is not complete some byte must be allowed, and what is complete must be JSON that keeps the
 * schema.  A first byte of 1 takes the text as the parameters of a tool, whose calls must come
 * back from the parser as calls.  Where the last of the bytes behind the NUL says so, masks over
 * a small vocabulary must be what each token by itself says along what was written. */
#include "src/automaton.h"
#include "src/constrain.h"
#include "src/message.h"
#include "src/schema.h"

#include "tests/validate.h"

#include <assert.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum {
    CHOSEN_MAX = 96,            /* bytes by choice; what follows is the way to the end */
    STEPS_MAX = 400,
    MASKS = 4,
    BYTES = 256,
    VOCAB = BYTES + 64,
};

/* Behind the 256 bytes, so that whatever was written is tokens. */
static const char *const tokens[] = {
    "{\"", "{\"a", "{}", "{\"a\":1}", "[{", "[]", "[[", "[\"", "\":", "\": ", "\":\"", "\": \"",
    "\":{\"", "\":[", "\",", "\", ", "\",\"", "\", \"", "\"}", "\"}]", "\"]", "}}", "},{", "}]",
    "]}", "],[", ", ", ", \"", ",\"", "true", "false", "null", "aa", "aaaa", "ab", "key", "a\"",
    "a\": \"b\"", "\\\"", "\\u00", "\\ud83d\\u", "\\n", "\xc3\xa9", "\xa9\xc3", "\xe2\x82", "a\xc3",
    "\xf0\x9f\x98\x80", "00", "10", "123", "-1", "1.5", "e+", ", 1", "</", "</arg", "arg_value>",
    "</arg_value>", "a</arg_value>", "<arg_key>",
};

struct vocabulary {
    struct tokenizer *tokenizer;
    struct tokentrie *trie;
    int32_t call, call_end, eos;
};

/* As a tokenizer.json spells a byte. */
static void add_byte(struct text *t, uint8_t b)
{
    int other = 0x100, i;

    for (i = 0; i <= b; i++) {
        bool prints = (i > 0x20 && i < 0x7f) || (i > 0xa0 && i != 0xad);

        if (i == b)
            text_printf(t, "\\u%04x", (unsigned)(prints ? i : other));
        other += !prints;
    }
}

static struct vocabulary vocabulary_open(void)
{
    const int count = sizeof(tokens) / sizeof(*tokens);
    struct vocabulary v = { .call = BYTES + count, .call_end = BYTES + count + 1,
                            .eos = BYTES + count + 2 };
    struct text t = { 0 };
    const char *s;
    int i;

    text_puts(&t, "{\"decoder\":{\"type\":\"ByteLevel\"},\"pre_tokenizer\":{\"type\":"
                  "\"ByteLevel\",\"add_prefix_space\":false},");
    text_printf(&t, "\"added_tokens\":[{\"id\":%d,\"content\":\"<tool_call>\"},"
                    "{\"id\":%d,\"content\":\"</tool_call>\"},"
                    "{\"id\":%d,\"content\":\"<end>\"}],\"model\":{\"merges\":[],\"vocab\":{",
                v.call, v.call_end, v.eos);
    for (i = 0; i < BYTES + count; i++) {
        text_puts(&t, i ? ",\"" : "\"");
        if (i < BYTES)
            add_byte(&t, (uint8_t)i);
        for (s = i < BYTES ? "" : tokens[i - BYTES]; *s; s++)
            add_byte(&t, (uint8_t)*s);
        text_printf(&t, "\":%d", i);
    }
    text_puts(&t, "}}}");
    assert(!tokenizer_open(&v.tokenizer, t.s, t.n, "fuzz", VOCAB, NULL));
    assert(!tokentrie_open(&v.trie, v.tokenizer, NULL));
    text_free(&t);
    return v;
}

struct writer {
    struct automaton *a;
    struct threads t;
    struct text *out;
};

/* Write the byte, where it is allowed. */
static bool put(struct writer *w, uint8_t b)
{
    uint32_t mark = automaton_mark(w->a);
    struct threads next;

    automaton_step(w->a, &w->t, b, &next);
    if (!next.n) {
        automaton_release(w->a, mark);
        return false;
    }
    w->t = next;
    text_add(w->out, &(char){ (char)b }, 1);
    return true;
}

/* Write some byte: those that structure JSON and small letters first, which is soon over.  False
 * where none of all is allowed. */
static bool put_any(struct writer *w, uint8_t how)
{
    static const char usual[] = "\"}]{[,:1 0-.e<>/_abcdefghijklmnopqrstuvwxyz23456789E+\\";
    const int n = sizeof(usual) - 1;
    int i;

    for (i = 0; i < n; i++)
        if (put(w, (uint8_t)usual[(how + i) % n]))
            return true;
    for (i = 0; i < 256; i++)
        if (put(w, (uint8_t)(how + i)))
            return true;
    return false;
}

/* The way to an end: quotes and brackets that close.  Text that may have control characters is
 * that of an argument, and ends in its tag. */
static bool put_end(struct writer *w)
{
    static const char tag[] = "</arg_value>", close[] = "\"}]<kyte0";
    const struct text *out = w->out;
    uint32_t mark = automaton_mark(w->a);
    size_t n = sizeof(tag) - 2;
    struct threads next;
    int i;

    automaton_step(w->a, &w->t, 1, &next);
    automaton_release(w->a, mark);
    while (n && (out->n < n || memcmp(out->s + out->n - n, tag, n) != 0))
        n--;
    if (next.n && put(w, (uint8_t)tag[n]))
        return true;
    for (i = 0; close[i]; i++)
        if (put(w, (uint8_t)close[i]))
            return true;
    return put_any(w, 0);
}

/* Append a value to *out.  True where it is complete. */
static bool write_value(struct text *out, const struct schema *s, const uint8_t *data, size_t size)
{
    struct writer w = { .out = out };
    bool final = false;
    size_t step;

    assert(!automaton_open(&w.a, s, NULL));
    automaton_start(w.a, &w.t);
    size = size < CHOSEN_MAX ? size : CHOSEN_MAX;
    for (step = 0; step < STEPS_MAX; step++) {
        final = automaton_final(w.a, &w.t);
        if (final && step >= size)
            break;
        if (!(step < size ? put(&w, data[step]) || put_any(&w, data[step]) : put_end(&w))) {
            assert(final);
            break;
        }
        final = false;
    }
    assert(!automaton_failed(w.a));
    automaton_close(w.a);
    return final;
}

/* Whether the mask is what every token by itself says. */
static bool exact(const struct vocabulary *v, struct automaton *a, const struct threads *t,
                  const uint64_t *allowed, int32_t end)
{
    int32_t id;

    for (id = 0; id < tokenizer_vocab(v->tokenizer); id++) {
        struct threads at = *t, next;
        uint32_t mark = automaton_mark(a);
        size_t n = 0, i;
        const char *s = tokenizer_bytes(v->tokenizer, id, &n);
        bool must = id == end && automaton_final(a, t);

        if (!tokenizer_added(v->tokenizer, id)) {
            for (i = 0; i < n && at.n; i++) {
                automaton_step(a, &at, (uint8_t)s[i], &next);
                at = next;
            }
            must = at.n;
        }
        automaton_release(a, mark);
        if ((allowed[id >> 6] >> (id & 63) & 1) != must)
            return false;
    }
    return true;
}

/* Some masks along the value that was written. */
static void check_masks(const struct schema *s, bool call, const char *out, size_t n)
{
    static struct vocabulary v;         /* built once for all inputs */
    struct constraint_options o = { .kind = call ? CONSTRAIN_CALL : CONSTRAIN_DOCUMENT,
                                    .schema = s, .vocab = VOCAB, .eos_count = 1 };
    struct constraint *c;
    struct automaton *a;
    struct threads t, next;
    const uint64_t *allowed;
    size_t i;

    if (!v.trie)
        v = vocabulary_open();
    o.tokenizer = v.tokenizer;
    o.trie = v.trie;
    o.eos = &v.eos;
    assert(!automaton_open(&a, s, NULL) && !constraint_open(&c, &o, NULL));
    automaton_start(a, &t);
    assert(!call || !constraint_advance(c, v.call, NULL));
    for (i = 0; i <= n; i++) {
        if (i % (n / MASKS + 1) == n % (n / MASKS + 1)) {
            assert(!constraint_mask(c, &allowed, NULL));
            assert(exact(&v, a, &t, allowed, call ? v.call_end : v.eos));
        }
        if (i == n)
            break;
        assert(!constraint_advance(c, (uint8_t)out[i], NULL));
        automaton_step(a, &t, (uint8_t)out[i], &next);
        t = next;
    }
    constraint_close(c);
    automaton_close(a);
}

/* An eighth of the inputs: masks cost as much as the value. */
static bool wants_masks(const uint8_t *data, size_t size)
{
    return size && data[size - 1] % 8 == 0;
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
    if (wants_masks(data, size))
        check_masks(s, false, out.s, out.n);
    text_free(&out);
    schema_close(s);
}

static void try_call(const cJSON *tools, const uint8_t *data, size_t size)
{
    const cJSON *parameters = json_get(json_get(tools->child, "function"), "parameters");
    static const char tag[] = "<tool_call>";
    struct text out = { 0 };
    struct message m = { 0 };
    const struct toolparse_options o = { false, tools, message_event, &m };
    struct toolparse *t;
    struct schema *s;
    struct err e;
    bool whole;
    cJSON *v;

    /* Others are refused with the request (src/request_chat.c). */
    if (!cJSON_IsObject(parameters) || schema_open_calls(&s, tools, NULL, &e))
        return;
    text_puts(&out, tag);
    whole = write_value(&out, s, data, size);
    if (wants_masks(data, size))
        check_masks(s, true, out.s + strlen(tag), out.n - strlen(tag));
    if (whole) {
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
