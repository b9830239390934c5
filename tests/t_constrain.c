/* Answers by random logits under a constraint.  Whatever the model wants, some token is allowed
 * at every step, the mask is exactly the tokens whose bytes the automaton takes, and what comes
 * out is read back by the same parsers as an answer and keeps its schema, in the opinion of
 * tests/validate.h. */
#include "src/automaton.h"
#include "src/constrain.h"
#include "src/message.h"
#include "src/sample.h"
#include "tests/data.h"
#include "tests/tap.h"
#include "tests/validate.h"

#include <math.h>

enum { VOCAB = 4096, TOKENS_MAX = 300, DOCUMENTS = 150, EOS = 2, THINK_END = 19,
       CALL = 25, CALL_END = 26 };

static struct err e;
static struct tokenizer *tokenizer;
static struct tokentrie *trie;
static struct sampler *sampler;
static uint64_t noise = 88172645463325252;

static uint32_t draw(void)
{
    noise ^= noise << 13;
    noise ^= noise >> 7;
    noise ^= noise << 17;
    return (uint32_t)(noise >> 32);
}

/* The highest of random logits is a draw from all of them. */
static void random_logits(float *logits)
{
    static float table[2 * VOCAB];
    uint32_t from = draw() % VOCAB, step = draw() % VOCAB | 1, i;

    for (i = 0; i < 2 * VOCAB && !table[2 * VOCAB - 1]; i++)
        table[i] = (float)(draw() & 0xffff) / 6000 + (float)(draw() & 0xffff) / 9000 + 1e-3f;
    for (i = 0; i < VOCAB; i++)
        logits[i] = table[(from + i * step) % VOCAB] + table[from + i];
}

/* How much of the tag that ends an argument is at the end of the text. */
static size_t begun(const struct text *t, const char *tag)
{
    size_t n;

    for (n = strlen(tag) - 1; n; n--)
        if (t->n >= n && !memcmp(t->s + t->n - n, tag, n))
            return n;
    return 0;
}

/* What ends a value is wanted more and more, so that answers end. */
static void want_end(float *logits, const struct text *out, int done)
{
    static const char tag[] = "</arg_value>";
    const char *rest = tag + begun(out, tag);
    size_t most = strlen(rest);
    int32_t id;

    for (id = 0; id < VOCAB && done > 12; id++) {
        size_t n = 0;
        const char *s = tokenizer_bytes(tokenizer, id, &n);

        if (id == EOS || id == CALL + 1 || id == THINK_END)
            logits[id] += 90;
        else if (n && n <= most && *s == *rest && !memcmp(s, rest, n))
            logits[id] += done < 80 ? (float)(done - 12) / 2 : 60;
        else if (n == 1 && (*s == '"' || *s == '}' || *s == ']'))
            logits[id] += done < 80 ? (float)(done - 12) / 2 : 40;
    }
}

/* One answer; 1 where it ended by itself, 0 where it ran out of tokens, -1 where it failed. */
static int answer(const struct constraint_options *o, struct text *out)
{
    static float logits[VOCAB];
    struct sampling p = { .top_p = 1, .repetition_penalty = 1 };
    struct constraint *c;
    struct sampled next = { 0 };
    int i, rc = constraint_open(&c, o, &e);

    if (rc)
        return -1;
    for (i = 0; !rc && i < TOKENS_MAX; i++) {
        size_t n = 0;
        const char *s;

        random_logits(logits);
        want_end(logits, out, i);
        rc = constraint_mask(c, &p.allowed, &e);
        if (!rc)
            rc = sampler_next(sampler, &p, NULL, logits, (uint64_t)i, &next, NULL, 0, &e);
        if (!rc)
            rc = constraint_advance(c, next.id, &e);
        if (rc || next.id == EOS)
            break;
        s = tokenizer_bytes(tokenizer, next.id, &n);
        text_add(out, s, n);
    }
    constraint_close(c);
    return rc ? -1 : next.id == EOS;
}

static const char *const documents[] = {
    "{\"type\":\"object\",\"properties\":{\"name\":{\"type\":\"string\"},\"n\":{\"type\":"
    "\"integer\"},\"ok\":{\"type\":\"boolean\"},\"c\":{\"enum\":[\"a\",\"b\"]}},\"required\":"
    "[\"name\",\"n\",\"ok\",\"c\"],\"additionalProperties\":false}",
    "{\"type\":\"object\"}",
    "{\"properties\":{\"a\":{\"type\":\"number\"},\"about\":{\"type\":\"string\",\"minLength\":3,"
    "\"maxLength\":9}},\"additionalProperties\":{\"type\":[\"string\",\"null\"]}}",
    "{\"$ref\":\"#/$defs/n\",\"$defs\":{\"n\":{\"properties\":{\"v\":{\"type\":\"integer\","
    "\"minimum\":-40,\"maximum\":200},\"kids\":{\"type\":\"array\",\"items\":{\"$ref\":"
    "\"#/$defs/n\"},\"maxItems\":2}},"
    "\"required\":[\"v\",\"kids\"]}}}",
    "{\"type\":\"array\",\"minItems\":2,\"maxItems\":5,\"items\":{\"oneOf\":[{\"type\":"
    "\"object\",\"properties\":"
    "{\"kind\":{\"const\":\"x\"},\"p\":{\"type\":\"number\"}},\"required\":[\"kind\",\"p\"]},{"
    "\"type\":\"object\",\"properties\":"
    "{\"kind\":{\"enum\":[\"y\",\"yy\"]},\"p\":{\"type\":\"string\"}},\"required\":[\"kind\"]},{"
    "\"type\":\"integer\"}]}}",
    /* Side by side, and of different lengths. */
    "{\"anyOf\":[{\"properties\":{\"p\":{\"type\":\"string\",\"maxLength\":3}},\"required\":["
    "\"p\"]},{\"properties\":{\"p\":{\"type\":\"string\",\"minLength\":2},\"q\":{\"type\":"
    "\"number\"}},\"required\":[\"p\",\"q\"]},{\"properties\":{\"p\":{\"type\":\"string\"},"
    "\"r\":{}},\"required\":[\"p\"],\"additionalProperties\":false}]}",
    "{\"type\":\"array\",\"minItems\":3,\"items\":{\"type\":\"string\",\"minLength\":2}}",
};

static void document(const char *text)
{
    struct constraint_options o = { .kind = CONSTRAIN_DOCUMENT, .tokenizer = tokenizer,
                                    .trie = trie, .vocab = VOCAB, .eos = &(int32_t){ EOS },
                                    .eos_count = 1 };
    cJSON *schema = json_parse(text, strlen(text), &JSON_REQUEST, &e), *v;
    struct schema *s = NULL;
    int i, whole = 0, bad = 0;

    ok(schema && !schema_open(&s, schema, "schema", &e), "compiles: %.60s", text);
    o.schema = s;
    for (i = 0; s && i < DOCUMENTS; i++) {
        struct text out = { 0 };
        int end = answer(&o, &out);

        v = end > 0 ? json_parse(out.s, out.n, &JSON_REQUEST, &e) : NULL;
        whole += end > 0;
        if (end < 0 || (end > 0 && !(v && validate(schema, schema, v, 0)))) {
            printf("# %d: %.*s\n", end, (int)out.n, out.s ? out.s : "");
            bad++;
        }
        cJSON_Delete(v);
        text_free(&out);
    }
    ok(!bad, "%d answers keep it", DOCUMENTS);
    ok(whole > DOCUMENTS * 8 / 10, "%d of them are whole", whole);
    schema_close(s);
    cJSON_Delete(schema);
}

static const char TOOLS[] =
    "[{\"function\":{\"name\":\"get_weather\",\"parameters\":{\"type\":\"object\","
    "\"properties\":{\"city\":"
    "{\"type\":\"string\"},\"unit\":{\"type\":\"string\",\"enum\":[\"celsius\",\"fahrenheit\"]}},"
    "\"required\":[\"city\"]}}},{\"function\":{\"name\":\"get\",\"parameters\":{\"properties\":{"
    "\"n\":{\"type\":"
    "\"integer\"},\"b\":{\"type\":\"boolean\"},\"o\":{\"type\":\"object\",\"properties\":{\"x\":"
    "{\"type\":\"string\"}}},"
    "\"l\":{\"type\":\"array\",\"items\":{\"type\":\"number\"}},\"c\":{\"const\":\"k\"},\"u\":{"
    "\"type\":[\"string\","
    "\"null\"]},\"m\":{\"type\":\"string\",\"minLength\":1,\"maxLength\":6}},\"required\":["
    "\"n\",\"o\",\"l\"]}}},"
    "{\"function\":{\"name\":\"ping\"}}]";

/* A message whose calls are all as declared, with nothing beside them. */
static bool good_calls(const struct message *m, const cJSON *tools, const char *name)
{
    int i;

    for (i = 0; i < m->calls; i++) {
        const struct call *call = &m->call[i];
        cJSON *v = json_parse(call->arguments.s, call->arguments.n, &JSON_REQUEST, &e);
        const cJSON *tool, *its = NULL, *one;
        bool good;

        cJSON_ArrayForEach(tool, tools)
            if (!strcmp(json_get(json_get(tool, "function"), "name")->valuestring, call->name.s))
                its = json_get(tool, "function");
        good = v && its && (!name || !strcmp(name, call->name.s));
        its = json_get(its, "parameters");
        for (one = v ? v->child : NULL; one; one = one->next)
            good = good && json_get(json_get(its, "properties"), one->string);
        good = good && (!its || validate(its, its, v, 0));
        cJSON_Delete(v);
        if (!good)
            return false;
    }
    return !m->content.n && m->calls > 0;
}

static void calls(enum constraint_kind kind, const char *name, bool thinking)
{
    struct constraint_options o = { .kind = kind, .thinking = thinking, .tokenizer = tokenizer,
                                    .trie = trie, .vocab = VOCAB, .eos = &(int32_t){ EOS },
                                    .eos_count = 1 };
    cJSON *tools = json_parse(TOOLS, sizeof(TOOLS) - 1, &JSON_REQUEST, &e);
    struct schema *s = NULL;
    int i, whole = 0, bad = 0, most = 0;

    ok(!schema_open_calls(&s, tools, name, &e), "tools compile");
    o.schema = s;
    for (i = 0; i < DOCUMENTS; i++) {
        struct text out = { 0 };
        struct message m = { 0 };
        const struct toolparse_options po = { thinking, tools, message_event, &m };
        struct toolparse *t;
        int end = answer(&o, &out);

        if (!toolparse_open(&t, &po, &e) && !toolparse_push(t, out.s, out.n))
            toolparse_end(t, end > 0);
        toolparse_close(t);
        whole += end > 0;
        most = m.calls > most ? m.calls : most;
        if (end < 0 || (end > 0 && (!good_calls(&m, tools, name) || m.failed))) {
            printf("# %d: %.*s\n", end, (int)out.n, out.s ? out.s : "");
            bad++;
        }
        message_free(&m);
        text_free(&out);
    }
    ok(!bad, "%d answers are calls of %s%s", DOCUMENTS, name ? name : "some tool",
       thinking ? ", behind thoughts" : "");
    ok(whole > DOCUMENTS * 8 / 10, "%d of them are whole", whole);
    ok(kind == CONSTRAIN_CALL ? most == 1 : most >= 1, "at most %d calls", most);
    schema_close(s);
    cJSON_Delete(tools);
}

/* What the bytes of a token lead to, byte by byte. */
static void step_token(struct automaton *a, struct threads *t, int32_t id)
{
    size_t n = 0, i;
    const char *s = tokenizer_bytes(tokenizer, id, &n);

    for (i = 0; i < n; i++) {
        struct threads next;

        automaton_step(a, t, (uint8_t)s[i], &next);
        *t = next;
    }
}

/* How many bits of the mask are not what the token by itself says; `end`: allowed where the value
 * is complete.  The tokens that are allowed go to choice[VOCAB]. */
static int compare(struct automaton *a, const struct threads *t, const uint64_t *allowed,
                   int32_t end, int32_t *choice, int *choices)
{
    int32_t id;
    int wrong = 0;

    *choices = 0;
    for (id = 0; id < VOCAB; id++) {
        uint32_t mark = automaton_mark(a);
        bool is = allowed[id >> 6] >> (id & 63) & 1, must = automaton_final(a, t);
        struct threads at = *t;
        size_t n = 0;

        if (id != end) {
            tokenizer_bytes(tokenizer, id, &n);
            step_token(a, &at, id);
            must = n && at.n && !tokenizer_added(tokenizer, id);
            if (is)
                choice[(*choices)++] = id;
        }
        automaton_release(a, mark);
        wrong += is != must;
    }
    return wrong;
}

/* The mask against every token by itself, along a random value: how many masks; or -1. */
static int exact_walk(struct automaton *a, const struct constraint_options *o)
{
    bool call = o->kind == CONSTRAIN_CALL;
    struct constraint *c = NULL;
    struct threads t;
    int i, choices, wrong = constraint_open(&c, o, &e);

    if (!wrong && call)
        wrong = constraint_advance(c, CALL, &e);
    automaton_start(a, &t);
    for (i = 0; i < 60 && !wrong; i++) {
        int32_t choice[VOCAB], id;
        const uint64_t *allowed;

        wrong = constraint_mask(c, &allowed, &e);
        if (!wrong)
            wrong = compare(a, &t, allowed, call ? CALL_END : EOS, choice, &choices);
        if (wrong || !choices)
            break;
        id = choice[draw() % (uint32_t)choices];
        wrong = constraint_advance(c, id, &e);
        step_token(a, &t, id);
        automaton_compact(a, &t);
    }
    constraint_close(c);
    return wrong ? -1 : i;
}

static void exact(struct schema *s, bool call, const char *what)
{
    struct constraint_options o = { .kind = call ? CONSTRAIN_CALL : CONSTRAIN_DOCUMENT,
                                    .schema = s, .tokenizer = tokenizer, .trie = trie,
                                    .vocab = VOCAB, .eos = &(int32_t){ EOS }, .eos_count = 1 };
    struct automaton *a = NULL;
    int walks, masks = automaton_open(&a, s, &e), n = masks;

    for (walks = 0; walks < 2 && n >= 0; walks++) {
        n = exact_walk(a, &o);
        masks += n;
    }
    ok(n >= 0 && masks > walks, "%d masks are exact: %.60s", masks, what);
    automaton_close(a);
}

static void exact_document(const char *text)
{
    cJSON *node = json_parse(text, strlen(text), &JSON_REQUEST, &e);
    struct schema *s = NULL;

    ok(!schema_open(&s, node, "schema", &e), "compiles: %.60s", text);
    if (s)
        exact(s, false, text);
    schema_close(s);
    cJSON_Delete(node);
}

/* Of every tool alone, and of all. */
static void exact_calls(void)
{
    static const char *const name[] = { "get_weather", "get", "ping", NULL };
    cJSON *tools = json_parse(TOOLS, strlen(TOOLS), &JSON_REQUEST, &e);
    size_t i;

    for (i = 0; i < sizeof(name) / sizeof(*name); i++) {
        struct schema *s = NULL;

        ok(!schema_open_calls(&s, tools, name[i], &e), "tools compile");
        if (s)
            exact(s, true, name[i] ? name[i] : "any tool");
        schema_close(s);
    }
    cJSON_Delete(tools);
}

static bool is_allowed(struct constraint *c, int32_t id)
{
    const uint64_t *allowed;

    return !constraint_mask(c, &allowed, &e) && allowed[id >> 6] >> (id & 63) & 1;
}

static int advance_text(struct constraint *c, const char *s)
{
    struct ids ids = { NULL, 0, 0 };
    int rc = tokenizer_encode(tokenizer, s, strlen(s), NULL, 0, &ids, &e);
    size_t i;

    for (i = 0; !rc && i < ids.n; i++)
        rc = is_allowed(c, ids.id[i]) ? constraint_advance(c, ids.id[i], &e) : -1;
    free(ids.id);
    return rc;
}

static void phases(void)
{
    static const char schema[] = "{\"enum\":[\"yes\"]}";
    cJSON *node = json_parse(schema, sizeof(schema) - 1, &JSON_REQUEST, &e);
    struct constraint_options o = { .kind = CONSTRAIN_DOCUMENT, .thinking = true,
                                    .tokenizer = tokenizer, .trie = trie, .vocab = VOCAB,
                                    .eos = &(int32_t){ EOS }, .eos_count = 1 };
    struct constraint *c;
    struct schema *s = NULL;

    ok(!schema_open(&s, node, "schema", &e), "compiles: %s", schema);
    o.schema = s;
    ok(!constraint_open(&c, &o, &e) && is_allowed(c, CALL) && !is_allowed(c, EOS) &&
       is_allowed(c, THINK_END), "thoughts are free, but do not end the turn");
    ok(!advance_text(c, "I <think {\"no\"} </thin</think>") && !is_allowed(c, EOS) &&
       !is_allowed(c, CALL) && !advance_text(c, "\"yes\""), "behind a spelled </think> it begins");
    ok(is_allowed(c, EOS) && !constraint_advance(c, EOS, &e) && is_allowed(c, EOS),
       "and where it is complete the turn ends");
    constraint_close(c);
    ok(!constraint_open(&c, &o, &e) && !constraint_advance(c, THINK_END, &e) &&
       advance_text(c, "x") && !advance_text(c, "\"y"), "behind the token too");
    constraint_close(c);
    o.kind = CONSTRAIN_DOCUMENT_OR_CALL;
    o.thinking = false;
    ok(!constraint_open(&c, &o, &e) && is_allowed(c, CALL) && !advance_text(c, "\"yes") &&
       !is_allowed(c, CALL), "the value, or a call at its beginning alone");
    constraint_close(c);
    ok(!constraint_open(&c, &o, &e) && !constraint_advance(c, CALL, &e) &&
       !advance_text(c, "anything") && is_allowed(c, EOS), "behind which all is free");
    constraint_close(c);
    o.kind = CONSTRAIN_NO_CALLS;
    o.schema = NULL;
    ok(!constraint_open(&c, &o, &e) && !is_allowed(c, CALL) && is_allowed(c, EOS) &&
       !advance_text(c, "anything") && !is_allowed(c, CALL), "no calls, else anything");
    constraint_close(c);
    schema_close(s);
    cJSON_Delete(node);
}

int main(void)
{
    size_t n = 0, i;
    char *json = data_read("models/nano/tokenizer.json", &n);

    ok(json && !tokenizer_open(&tokenizer, json, n, "nano", VOCAB, &e) &&
       !tokentrie_open(&trie, tokenizer, &e) && !sampler_open(&sampler, VOCAB, &e),
       "nano's tokenizer");
    if (!sampler)
        return done();
    phases();
    for (i = 0; i < sizeof(documents) / sizeof(*documents); i++) {
        exact_document(documents[i]);
        document(documents[i]);
    }
    exact_calls();
    calls(CONSTRAIN_CALLS, NULL, false);
    calls(CONSTRAIN_CALL, "get", true);
    sampler_close(sampler);
    tokentrie_close(trie);
    tokenizer_close(tokenizer);
    free(json);
    return done();
}
