/* Text -> ids -> bytes.  Added tokens are cut out first, the rest is split by the patterns,
 * each piece goes through BPE.  Everything an encode changes lives on its own stack and heap;
 * the tokenizer itself is only read. */
#include "src/tokenizer_parts.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>

/* From so many bytes on a call keeps a cache of pieces: 256 KiB to clear and to warm. */
enum { CACHE_FROM = 4096 };

struct encoder {
    const struct tokenizer *t;
    const char *text;
    const struct span *span;
    int spans;
    int nearest[ADDED_SETS];    /* by set: the first span that the search has not passed */
    struct splitter *splitter;
    struct bpe_scratch scratch;
    struct ids *out;
    struct err *e;
};

int ids_push(struct ids *v, int32_t id)
{
    if (v->n == v->cap) {
        size_t cap = v->cap ? 2 * v->cap : 64;
        int32_t *more = realloc(v->id, cap * sizeof(*more));

        if (!more)
            return -ENOMEM;
        v->id = more;
        v->cap = cap;
    }
    v->id[v->n++] = id;
    return 0;
}

void tokenizer_close(struct tokenizer *t)
{
    if (!t)
        return;
    free(t->bytes);
    free(t->at);
    free(t->kind);
    added_close(&t->added);
    pretoken_close(t->pretoken);
    bpe_close(&t->bpe);
    free(t);
}

static int encode_piece(void *ctx, const char *piece, size_t n)
{
    struct encoder *c = ctx;
    int rc = bpe_encode(&c->t->bpe, &c->scratch, piece, n, c->out);

    return rc ? fail(c->e, rc, "no memory to encode a piece of %zu bytes", n) : 0;
}

/* The first added token of the set inside text[from..to) and one of the spans.  `from` never
 * goes back between calls for the same set. */
static bool next_added(struct encoder *c, int set, size_t from, size_t to, struct added_match *m)
{
    int i;

    if (c->spans == SPANS_ALL)
        return added_find(&c->t->added, set, c->text, from, to, m);
    while (c->nearest[set] < c->spans && c->span[c->nearest[set]].to <= from)
        c->nearest[set]++;
    for (i = c->nearest[set]; i < c->spans && c->span[i].from < to; i++) {
        size_t first = c->span[i].from > from ? c->span[i].from : from;
        size_t end = c->span[i].to < to ? c->span[i].to : to;

        if (added_find(&c->t->added, set, c->text, first, end, m))
            return true;
    }
    return false;
}

/* Encode text[from..to) with the added tokens of this set and those after it. */
static int encode_set(struct encoder *c, int set, size_t from, size_t to)
{
    struct added_match m;
    int rc = 0;

    if (from == to)
        return 0;
    if (set == ADDED_SETS)
        return splitter_run(c->splitter, c->text + from, to - from, encode_piece, c, c->e);
    while (!rc && from < to && next_added(c, set, from, to, &m)) {
        rc = encode_set(c, set + 1, from, m.from);
        if (!rc && ids_push(c->out, m.id))
            rc = fail(c->e, -ENOMEM, "no memory for %zu ids", c->out->n);
        from = m.to;
    }
    return rc ? rc : encode_set(c, set + 1, from, to);
}

int tokenizer_encode(const struct tokenizer *t, const char *text, size_t n, const struct span *span,
                     int spans, struct ids *out, struct err *e)
{
    struct encoder c = { .t = t, .text = text, .span = span, .spans = spans, .out = out, .e = e };
    size_t before = out->n;
    int i, rc;

    for (i = 0; i < spans; i++)
        assert(span[i].from <= span[i].to && span[i].to <= n &&
               (!i || span[i - 1].to <= span[i].from));
    if (n >= CACHE_FROM)
        bpe_scratch_cache(&c.scratch);
    rc = splitter_open(&c.splitter, t->pretoken, e);
    if (!rc)
        rc = encode_set(&c, 0, 0, n);
    if (rc)
        out->n = before;
    splitter_close(c.splitter);
    bpe_scratch_free(&c.scratch);
    return rc;
}

const char *tokenizer_bytes(const struct tokenizer *t, int32_t id, size_t *n)
{
    if (id < 0 || id >= t->ids)
        return NULL;
    *n = t->at[id + 1] - t->at[id];
    return t->bytes + t->at[id];
}

int tokenizer_vocab(const struct tokenizer *t)
{
    return t->ids;
}

bool tokenizer_special(const struct tokenizer *t, int32_t id)
{
    return id >= 0 && id < t->ids && t->kind[id] & TOKEN_SPECIAL;
}

bool tokenizer_added(const struct tokenizer *t, int32_t id)
{
    return id >= 0 && id < t->ids && t->kind[id] & TOKEN_ADDED;
}

int32_t tokenizer_find_added(const struct tokenizer *t, const char *content)
{
    size_t n = 0, length = strlen(content);
    int32_t i;

    for (i = 0; i < t->added.tokens; i++) {
        const char *bytes = tokenizer_bytes(t, t->added.token[i].id, &n);

        if (n == length && !memcmp(bytes, content, n))
            return t->added.token[i].id;
    }
    return -1;
}

int32_t tokenizer_bos(const struct tokenizer *t)
{
    return t->bos;
}
