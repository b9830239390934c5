/* From bytes to tokens: a walk over the tree of tokens steps the automaton once for every
 * beginning that is still allowed.  Inside of text nearly all tokens are; there a whole subtree
 * is taken at once, and what was stepped before is looked up (src/memo.h).  Where the answer is is
 * one of a few phases; src/automaton.h knows the rest. */
#include "src/constrain.h"
#include "src/memo.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>

static const char THINK_END[] = "</think>";

enum phase {
    PHASE_THOUGHTS,
    PHASE_FREE,
    PHASE_DOCUMENT,
    PHASE_BEFORE,               /* a call must come */
    PHASE_CALL,                 /* inside of one */
    PHASE_BETWEEN,              /* behind one */
    PHASE_END,
};

struct constraint {
    struct constraint_options o;
    enum phase phase;
    bool first;                 /* nothing of the document is there */
    size_t tag;                 /* of THINK_END, spelled by ordinary tokens */
    int32_t think_end, call, call_end;
    struct automaton *automaton;
    struct threads threads;
    struct memo memo;
    uint64_t *allowed;          /* [(vocab + 63) / 64] */
};

static void allow(struct constraint *c, int32_t id)
{
    c->allowed[id >> 6] |= (uint64_t)1 << (id & 63);
}

static void forbid(struct constraint *c, int32_t id)
{
    if (id >= 0)
        c->allowed[id >> 6] &= ~((uint64_t)1 << (id & 63));
}

static void allow_end(struct constraint *c)
{
    int i;

    for (i = 0; i < c->o.eos_count; i++)
        allow(c, c->o.eos[i]);
}

/* The tokens that are plain to their end and begin at most `left` characters, from between
 * two of them. */
static void allow_inside(struct constraint *c, enum trie_text text, uint32_t left)
{
    const struct tokentrie *trie = c->o.trie;
    uint32_t i, n = left < TRIE_SHORT ? left : TRIE_SHORT - 1;

    for (i = 0; i < trie->words; i++)
        c->allowed[i] |= trie->inside[text][n * trie->words + i];
    for (i = 0; left >= TRIE_SHORT && i < trie->long_count[text]; i++)
        if ((uint32_t)trie->longs[text][i].characters <= left)
            allow(c, trie->longs[text][i].id);
}

static void allow_tokens(struct constraint *c, uint32_t from, uint32_t to)
{
    uint32_t i;

    for (i = from; i < to; i++)
        allow(c, c->o.trie->id[i]);
}

/* Threads, and what the memo calls them. */
struct place {
    const struct threads *t;
    int state;
};

/* Threads at the same place of a text, though with more or fewer characters left, and the bytes
 * that were read of it on trial. */
struct reader {
    struct constraint *c;
    struct threads at;
    int state;                  /* MEMO_NONE where the bytes matter, too */
    int first;                  /* of the threads of that state: tells readers apart */
    uint32_t left;              /* characters, of the thread that has most */
    enum trie_text text;
    bool known;                 /* what is plain to its end is allowed already */
    uint8_t path[TRIE_DEPTH];
};

static void walk(struct constraint *c, uint32_t node, const struct place *p);

static bool any_in_key(const struct constraint *c, const struct threads *t)
{
    int i;

    for (i = 0; i < t->n; i++)
        if (automaton_in_key(c->automaton, t->top[i]))
            return true;
    return false;
}

/* Allow what ends at the node and go on behind the threads that the edge has led to. */
static void arrive(struct constraint *c, uint32_t node, uint32_t mark, uint64_t edge,
                   const struct threads *t)
{
    struct place to = { t, MEMO_NONE };
    bool fresh = false;

    /* No two keys lead to the same state, which would only take room. */
    if (edge && !any_in_key(c, t))
        to.state = memo_add(&c->memo, c->automaton, edge, t, &fresh);
    if (to.state >= 0 && !fresh) {
        automaton_release(c->automaton, mark);
        to.t = &c->memo.state[to.state];
    }
    if (t->n) {
        allow_tokens(c, c->o.trie->first[node], c->o.trie->first[node + 1]);
        walk(c, node, &to);
    }
    if (to.state < 0)
        automaton_release(c->automaton, mark);
}

/* True where the edge is known: the walk has gone on from where it leads.  Eight objects side by
 * side, which are eight threads, took 3.1 ms a mask without, and take 0.9. */
static bool follow(struct constraint *c, uint32_t node, uint64_t edge)
{
    struct place to = { NULL, edge ? memo_find(&c->memo, edge) : MEMO_NONE };

    if (to.state > MEMO_DEAD) {
        to.t = &c->memo.state[to.state];
        allow_tokens(c, c->o.trie->first[node], c->o.trie->first[node + 1]);
        walk(c, node, &to);
    }
    return to.state >= 0;
}

/* A byte that is no plain text: now the automaton is told of the text in front of it, which ends
 * in state s with so many characters left. */
static void leave_text(const struct reader *r, uint32_t node, int depth, enum textstep s,
                       uint32_t left)
{
    struct constraint *c = r->c;
    uint32_t mark = automaton_mark(c->automaton), characters = r->left - left;
    uint8_t b = c->o.trie->byte[node];
    uint64_t edge = r->state < 0 ? 0 : memo_edge(r->state, r->first + 1, characters, s, b);
    struct threads text = { .n = 0 }, t;
    int i;

    if (follow(c, node, edge))
        return;
    for (i = 0; i < r->at.n; i++)
        automaton_skip(c->automaton, r->at.top[i], r->path, depth, characters, s, &text);
    automaton_step(c->automaton, &text, b, &t);
    arrive(c, node, mark, edge, &t);
}

/* Plain text needs no automaton, and where all below is plain, not even a look: a walk over a
 * vocabulary of 100,000 takes 0.4 ms where stepping took 2. */
static void walk_text(struct reader *r, uint32_t node, int depth, enum textstep s, uint32_t left)
{
    const struct tokentrie *trie = r->c->o.trie;
    uint32_t child;

    for (child = node + 1; child < trie->end[node]; child = trie->end[child]) {
        enum textstep next = tokentrie_text(r->text, s, trie->byte[child]);
        bool begins = s == TEXT_GROUND && next < TEXT_PLAIN;

        r->path[depth] = trie->byte[child];
        if (next == TEXT_BAD || (begins && !left))
            continue;
        if (next >= TEXT_PLAIN) {
            leave_text(r, child, depth, s, left);
        } else if (trie->plain[r->text][child] >> next & 1 &&
                   (r->known || left - begins >= trie->deep[child])) {
            if (!r->known)
                allow_tokens(r->c, trie->first[child], trie->first[trie->end[child]]);
        } else {
            if (!r->known)
                allow_tokens(r->c, trie->first[child], trie->first[child + 1]);
            walk_text(r, child, depth + 1, next, left - begins);
        }
    }
}

static void walk_steps(struct constraint *c, uint32_t node, const struct place *p)
{
    const struct tokentrie *trie = c->o.trie;
    uint32_t child;

    for (child = node + 1; child < trie->end[node]; child = trie->end[child]) {
        uint32_t mark = automaton_mark(c->automaton);
        uint8_t b = trie->byte[child];
        uint64_t edge = p->state < 0 ? 0 : memo_edge(p->state, 0, 0, TEXT_GROUND, b);
        struct threads next;

        if (follow(c, child, edge))
            continue;
        automaton_step(c->automaton, p->t, b, &next);
        arrive(c, child, mark, edge, &next);
    }
}

/* Take the threads that are where the i-th is, in *r.  False where that is in no text. */
static bool gather(struct reader *r, const struct place *p, int i, uint64_t *taken,
                   enum textstep *s)
{
    const struct automaton *a = r->c->automaton;
    const struct threads *t = p->t;
    enum trie_text text;
    enum textstep step;
    uint32_t more;
    int k;

    r->at.n = 0;
    r->state = p->state;
    r->first = i;
    if (!automaton_text(a, t->top[i], &r->text, s, &r->left))
        return false;
    for (k = i; k < t->n; k++) {
        if (*taken >> k & 1 || !automaton_text(a, t->top[k], &text, &step, &more) ||
            text != r->text || step != *s)
            continue;
        *taken |= (uint64_t)1 << k;
        r->state = automaton_in_key(a, t->top[k]) ? MEMO_NONE : r->state;
        r->left = more > r->left ? more : r->left;
        r->at.top[r->at.n++] = t->top[k];
    }
    return true;
}

/* Allow the tokens that begin with the bytes of the node and go on from the threads.  As deep as
 * a token is long. */
static void walk(struct constraint *c, uint32_t node, const struct place *p)
{
    struct reader r;
    struct threads rest;
    const struct place others = { &rest, p->state };
    uint64_t taken = 0;
    enum textstep s;
    int i;

    if (c->o.trie->end[node] == node + 1)
        return;
    r.c = c;
    rest.n = 0;
    for (i = 0; i < p->t->n; i++) {
        if (taken >> i & 1)
            continue;
        if (!gather(&r, p, i, &taken, &s)) {
            rest.top[rest.n++] = p->t->top[i];
            continue;
        }
        r.known = !node && s == TEXT_GROUND;
        if (r.known)
            allow_inside(c, r.text, r.left);
        walk_text(&r, node, 0, s, r.left);
    }
    if (rest.n)
        walk_steps(c, node, &others);
}

/* Allow the tokens that go on from where the answer is. */
static void walk_all(struct constraint *c)
{
    const struct place all = { &c->threads, memo_start(&c->memo, &c->threads) };
    uint32_t mark = automaton_mark(c->automaton);

    walk(c, 0, &all);
    automaton_release(c->automaton, mark);
}

/* Tokens that would go on behind a spelled-out </think>: what they say there would be neither
 * thought nor constrained. */
static void forbid_overrun(struct constraint *c)
{
    const struct tokentrie *trie = c->o.trie;
    uint32_t node = 0, child, i;
    const char *rest;

    for (rest = THINK_END + c->tag; c->tag && *rest; rest++) {
        for (child = node + 1; child < trie->end[node]; child = trie->end[child])
            if (trie->byte[child] == (uint8_t)*rest)
                break;
        if (child >= trie->end[node])
            return;
        node = child;
    }
    for (i = trie->first[node + 1]; node && i < trie->first[trie->end[node]]; i++)
        forbid(c, trie->id[i]);
}

static void allow_all(struct constraint *c)
{
    int32_t id, rest = c->o.vocab & ~63;

    memset(c->allowed, 0xff, (size_t)rest / 8);
    for (id = rest; id < c->o.vocab; id++)
        allow(c, id);
}

static void mask_thoughts(struct constraint *c)
{
    int i;

    allow_all(c);
    if (c->o.kind == CONSTRAIN_NO_CALLS)
        forbid(c, c->call);
    else
        for (i = 0; i < c->o.eos_count; i++)
            forbid(c, c->o.eos[i]);
    forbid_overrun(c);
}

int constraint_mask(struct constraint *c, const uint64_t **allowed, struct err *e)
{
    bool final = c->automaton && automaton_final(c->automaton, &c->threads);

    memset(c->allowed, 0, ((size_t)c->o.vocab + 63) / 64 * sizeof(*c->allowed));
    switch (c->phase) {
    case PHASE_THOUGHTS:
        mask_thoughts(c);
        break;
    case PHASE_FREE:
        allow_all(c);
        if (c->o.kind == CONSTRAIN_NO_CALLS)
            forbid(c, c->call);
        break;
    case PHASE_DOCUMENT:
        walk_all(c);
        if (c->first && c->o.kind == CONSTRAIN_DOCUMENT_OR_CALL && c->call >= 0)
            allow(c, c->call);
        if (final)
            allow_end(c);
        break;
    case PHASE_BEFORE:
        allow(c, c->call);
        break;
    case PHASE_CALL:
        walk_all(c);
        if (final)
            allow(c, c->call_end);
        break;
    case PHASE_BETWEEN:
        if (c->o.kind == CONSTRAIN_CALLS)
            allow(c, c->call);
        allow_end(c);
        break;
    case PHASE_END:
        allow_end(c);
        break;
    }
    if (c->automaton && automaton_failed(c->automaton))
        return fail(e, -ENOMEM, "no memory for the constraint");
    *allowed = c->allowed;
    return 0;
}

/* The first phase behind the thoughts. */
static void begin(struct constraint *c)
{
    switch (c->o.kind) {
    case CONSTRAIN_NO_CALLS:
        c->phase = PHASE_FREE;
        break;
    case CONSTRAIN_DOCUMENT:
    case CONSTRAIN_DOCUMENT_OR_CALL:
        c->phase = PHASE_DOCUMENT;
        automaton_start(c->automaton, &c->threads);
        break;
    case CONSTRAIN_CALL:
    case CONSTRAIN_CALLS:
        c->phase = PHASE_BEFORE;
        break;
    }
}

static void advance_thoughts(struct constraint *c, int32_t id)
{
    size_t n = 0, i;
    const char *s = tokenizer_bytes(c->o.tokenizer, id, &n);

    if (id == c->think_end) {
        begin(c);
        return;
    }
    for (i = 0; s && i < n && c->phase == PHASE_THOUGHTS; i++) {
        if (s[i] == THINK_END[c->tag])
            c->tag++;
        else
            c->tag = s[i] == THINK_END[0];
        if (!THINK_END[c->tag])
            begin(c);
    }
}

static int advance_bytes(struct constraint *c, int32_t id, struct err *e)
{
    size_t n = 0, i;
    const char *s = tokenizer_bytes(c->o.tokenizer, id, &n);
    struct threads next;

    c->first = false;
    for (i = 0; s && i < n; i++) {
        automaton_step(c->automaton, &c->threads, (uint8_t)s[i], &next);
        c->threads = next;
    }
    if (automaton_failed(c->automaton))
        return fail(e, -ENOMEM, "no memory for the constraint");
    assert(c->threads.n);
    automaton_compact(c->automaton, &c->threads);
    return 0;
}

static bool is_end(const struct constraint *c, int32_t id)
{
    int i;

    for (i = 0; i < c->o.eos_count; i++)
        if (c->o.eos[i] == id)
            return true;
    return false;
}

int constraint_advance(struct constraint *c, int32_t id, struct err *e)
{
    if (c->phase == PHASE_THOUGHTS) {
        advance_thoughts(c, id);
    } else if (c->phase == PHASE_FREE) {
        return 0;
    } else if (is_end(c, id)) {
        c->phase = PHASE_END;
    } else if (id == c->call) {
        c->phase = c->phase == PHASE_DOCUMENT ? PHASE_FREE : PHASE_CALL;
        automaton_start(c->automaton, &c->threads);
    } else if (id == c->call_end) {
        c->phase = PHASE_BETWEEN;
    } else {
        return advance_bytes(c, id, e);
    }
    return 0;
}

int constraint_open(struct constraint **out, const struct constraint_options *o, struct err *e)
{
    struct constraint *c = calloc(1, sizeof(*c));
    int rc = 0;

    if (c)
        c->allowed = calloc(((size_t)o->vocab + 63) / 64, sizeof(*c->allowed));
    if (!c || !c->allowed) {
        constraint_close(c);
        return fail(e, -ENOMEM, "out of memory");
    }
    c->o = *o;
    c->first = true;
    c->think_end = tokenizer_find_added(o->tokenizer, THINK_END);
    c->call = tokenizer_find_added(o->tokenizer, "<tool_call>");
    c->call_end = tokenizer_find_added(o->tokenizer, "</tool_call>");
    if (o->kind >= CONSTRAIN_CALL && (c->call < 0 || c->call_end < 0))
        rc = fail(e, -ENOTSUP, "the tokenizer has no tokens for the tags of calls");
    if (!rc && o->schema)
        rc = automaton_open(&c->automaton, o->schema, e);
    if (rc) {
        constraint_close(c);
        return rc;
    }
    if (o->thinking)
        c->phase = PHASE_THOUGHTS;
    else
        begin(c);
    *out = c;
    return 0;
}

void constraint_close(struct constraint *c)
{
    if (!c)
        return;
    automaton_close(c->automaton);
    free(c->allowed);
    free(c);
}
