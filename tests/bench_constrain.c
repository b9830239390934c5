/* How long a mask takes, by where in a value the answer is:
 *     tests/bench_constrain TOKENIZER.json
 * A decode step of the full model on a fast workstation is about 25 ms. */
#include "src/constrain.h"

#include <stdio.h>
#include <stdlib.h>
#include <time.h>

enum { ROUNDS = 50, VOCAB_MAX = 1 << 20 };

static const struct {
    const char *what, *schema, *so_far;
    bool call;
} place[] = {
    { "opening of an object", "{\"type\":\"object\"}", "", false },
    { "value of any kind", "{\"type\":\"object\"}", "{\"a\":", false },
    { "string", "{\"type\":\"string\"}", "\"some", false },
    { "string of at most 8", "{\"type\":\"string\",\"maxLength\":8}", "\"so", false },
    { "one of 40 keys", "40 keys", "{\"p1\":1,\"", false },
    { "any key but two", "{\"properties\":{\"about\":{},\"name\":{}},\"additionalProperties\":{}}",
      "{\"", false },
    { "integer", "{\"type\":\"integer\"}", "12", false },
    { "8 objects side by side", "8 objects", "{\"p1\":\"x", false },
    { "name of a tool", "{\"properties\":{\"city\":{\"type\":\"string\"}}}", "", true },
    { "text of an argument", "{\"properties\":{\"city\":{\"type\":\"string\"}}}",
      "get<arg_key>city</arg_key><arg_value>Par", true },
    { "JSON in an argument", "{\"properties\":{\"o\":{\"type\":\"object\"}}}",
      "get<arg_key>o</arg_key><arg_value>{\"a\": \"x", true },
};

/* Of the processor, so that others on the machine do not count. */
static double processor_ms(void)
{
    return (double)clock() * 1e3 / CLOCKS_PER_SEC;
}

static void print_schema(struct text *t, const char *s)
{
    int i, n = atoi(s);

    if (*s == '{') {
        text_puts(t, s);
        return;
    }
    text_puts(t, n == 40 ? "{\"properties\":{" : "{\"anyOf\":[");
    for (i = 0; i < n; i++)
        text_printf(t, n == 40 ? "%s\"p%d\":{}"
                               : "%s{\"properties\":{\"p1\":{\"type\":\"string\",\"maxLength\":"
                                   "%d}}}",
                    i ? "," : "", n == 40 ? i : 100 + i);
    text_puts(t, n == 40 ? "}}" : "]}");
}

static int measure(int i, const struct tokenizer *tokenizer, const struct tokentrie *trie)
{
    int32_t eos = 2;
    struct constraint_options o = { .kind = place[i].call ? CONSTRAIN_CALL : CONSTRAIN_DOCUMENT,
                                    .tokenizer = tokenizer, .trie = trie, .eos = &eos,
                                    .eos_count = 1, .vocab = tokenizer_vocab(tokenizer) };
    struct constraint *c = NULL;
    struct schema *s = NULL;
    struct text t = { 0 };
    struct ids ids = { NULL, 0, 0 };
    const uint64_t *allowed = NULL;
    struct err e = { "" };
    double start = 0, steps;
    cJSON *node;
    size_t n = 0, j;
    int rc, round;

    text_puts(&t, place[i].call ? "[{\"function\":{\"name\":\"get\",\"parameters\":" : "");
    print_schema(&t, place[i].schema);
    text_puts(&t, place[i].call ? "}}]" : "");
    node = json_parse(t.s, t.n, &JSON_REQUEST, &e);
    rc = place[i].call ? schema_open_calls(&s, node, NULL, &e)
                       : schema_open(&s, node, "schema", &e);
    o.schema = s;
    if (!rc)
        rc = constraint_open(&c, &o, &e);
    if (!rc && place[i].call)
        rc = constraint_advance(c, tokenizer_find_added(tokenizer, "<tool_call>"), &e);
    if (!rc)
        rc = tokenizer_encode(tokenizer, place[i].so_far, strlen(place[i].so_far), NULL, 0, &ids,
                              &e);
    for (j = 0; !rc && j < ids.n; j++)
        rc = constraint_advance(c, ids.id[j], &e);
    for (round = -1; !rc && round < ROUNDS; round++) {
        start = round ? start : processor_ms();
        rc = constraint_mask(c, &allowed, &e);
    }
    steps = processor_ms() - start;
    for (j = 0; !rc && j < ((size_t)o.vocab + 63) / 64; j++)
        n += (size_t)__builtin_popcountll(allowed[j]);
    printf("%-24s %7zu tokens  %8.3f ms %s\n", place[i].what, n, steps / ROUNDS, e.text);
    constraint_close(c);
    schema_close(s);
    cJSON_Delete(node);
    text_free(&t);
    free(ids.id);
    return rc;
}

int main(int argc, char **argv)
{
    struct text t = { 0 };
    struct tokenizer *tokenizer = NULL;
    struct tokentrie *trie = NULL;
    struct err e = { "" };
    char block[1 << 16];
    double start;
    size_t n, i;
    FILE *f = argc == 2 ? fopen(argv[1], "rb") : NULL;
    int rc = f ? 0 : -1;

    while (f && (n = fread(block, 1, sizeof(block), f)) > 0)
        text_add(&t, block, n);
    if (!rc)
        rc = tokenizer_open(&tokenizer, t.s, t.n, argv[1], VOCAB_MAX, &e);
    start = processor_ms();
    if (!rc)
        rc = tokentrie_open(&trie, tokenizer, &e);
    if (rc)
        printf("usage: bench_constrain TOKENIZER.json  %s\n", e.text);
    else
        printf("%u tokens, %u nodes in %.0f ms\n", trie->tokens, trie->nodes,
               processor_ms() - start);
    for (i = 0; !rc && i < sizeof(place) / sizeof(*place); i++)
        rc = measure((int)i, tokenizer, trie);
    tokentrie_close(trie);
    tokenizer_close(tokenizer);
    text_free(&t);
    if (f)
        fclose(f);
    return rc != 0;
}
