/* Frames, threads, and giving both up again.  What a byte does to a thread is
 * src/automaton_step.c. */
#include "src/automaton_parts.h"

#include <errno.h>
#include <stdlib.h>

uint32_t automaton_put(struct automaton *a, const struct frame *f)
{
    if (a->frames == a->cap) {
        uint32_t cap = a->cap ? 2 * a->cap : 1024;
        struct frame *more = realloc(a->frame, cap * sizeof(*more));
        uint32_t *numbers = NULL;

        if (more) {
            a->frame = more;
            numbers = realloc(a->renumbered, cap * sizeof(*numbers));
        }
        if (!numbers) {
            a->failed = true;
            return 0;
        }
        a->renumbered = numbers;
        a->cap = cap;
    }
    a->frame[a->frames] = *f;
    return a->frames++;
}

void automaton_emit(struct automaton *a, const struct frame *f, struct threads *out)
{
    uint32_t top;
    int i;

    for (i = 0; i < out->n; i++)
        if (!memcmp(&a->frame[out->top[i]], f, sizeof(*f)))
            return;
    if (out->n == AUTOMATON_THREADS)
        return;
    top = automaton_put(a, f);
    if (top)
        out->top[out->n++] = top;
}

int automaton_open(struct automaton **out, const struct schema *s, struct err *e)
{
    const struct frame none = { 0 };
    struct automaton *a = calloc(1, sizeof(*a));

    if (a) {
        a->s = s;
        a->tagless = s->node[s->node[0].item].kind == SCHEMA_CALL;
        automaton_put(a, &none);
    }
    if (!a || a->failed) {
        automaton_close(a);
        return fail(e, -ENOMEM, "out of memory");
    }
    *out = a;
    return 0;
}

void automaton_close(struct automaton *a)
{
    if (!a)
        return;
    free(a->frame);
    free(a->renumbered);
    free(a);
}

void automaton_start(struct automaton *a, struct threads *out)
{
    const struct frame document = { .state = DOCUMENT_VALUE };

    a->frames = 1;
    out->n = 0;
    automaton_emit(a, &document, out);
}

void automaton_step(struct automaton *a, const struct threads *from, uint8_t b,
                    struct threads *out)
{
    int i;

    out->n = 0;
    for (i = 0; i < from->n; i++)
        automaton_step_frame(a, a->frame[from->top[i]], b, out);
}

bool automaton_final(const struct automaton *a, const struct threads *t)
{
    int i;

    for (i = 0; i < t->n; i++) {
        struct frame f = a->frame[t->top[i]];

        while (a->s->node[f.node].kind != SCHEMA_DOCUMENT && automaton_can_pop(a, &f))
            f = automaton_popped(a, &f);
        if (a->s->node[f.node].kind == SCHEMA_DOCUMENT && f.state == DOCUMENT_END)
            return true;
    }
    return false;
}

bool automaton_same(const struct automaton *a, const struct threads *x, const struct threads *y)
{
    int i;

    if (x->n != y->n)
        return false;
    for (i = 0; i < x->n; i++)
        if (memcmp(&a->frame[x->top[i]], &a->frame[y->top[i]], sizeof(*a->frame)) != 0)
            return false;
    return true;
}

uint32_t automaton_mark(const struct automaton *a)
{
    return a->frames;
}

void automaton_release(struct automaton *a, uint32_t mark)
{
    a->frames = mark;
}

/* A frame refers to older ones only: once down to mark, once up to move. */
void automaton_compact(struct automaton *a, struct threads *t)
{
    uint32_t i, kept = 1;
    int j;

    memset(a->renumbered, 0, a->frames * sizeof(*a->renumbered));
    for (j = 0; j < t->n; j++)
        a->renumbered[t->top[j]] = 1;
    for (i = a->frames - 1; i > 0; i--)
        if (a->renumbered[i]) {
            a->renumbered[a->frame[i].parent] = 1;
            a->renumbered[a->frame[i].keys] = 1;
        }
    a->renumbered[0] = 0;
    for (i = 1; i < a->frames; i++) {
        struct frame f = a->frame[i];

        if (!a->renumbered[i])
            continue;
        f.parent = a->renumbered[f.parent];
        f.keys = a->renumbered[f.keys];
        a->renumbered[i] = kept;
        a->frame[kept++] = f;
    }
    for (j = 0; j < t->n; j++)
        t->top[j] = a->renumbered[t->top[j]];
    a->frames = kept;
}

bool automaton_text(const struct automaton *a, uint32_t top, enum trie_text *text,
                    enum textstep *s, uint32_t *left)
{
    const struct frame *f = &a->frame[top];
    const struct schema_node *n = &a->s->node[f->node];

    *text = a->tagless ? TRIE_TAGLESS : TRIE_JSON;
    *s = (enum textstep)f->text;
    *left = n->max == UINT32_MAX ? UINT32_MAX : n->max - f->count;
    if (f->text >= TEXT_PLAIN || f->flag)
        return false;
    switch (n->kind) {
    case SCHEMA_STRING:
        return f->state == STRING_TEXT;
    case SCHEMA_RAW:
        *text = TRIE_RAW;
        return !f->at;
    case SCHEMA_OBJECT:
        *left = UINT32_MAX;
        return f->state == MEMBERS_KEY && !f->at;
    default:
        return false;
    }
}

void automaton_skip(struct automaton *a, uint32_t top, const uint8_t *byte, int n,
                    uint32_t characters, enum textstep s, struct threads *out)
{
    struct frame f = a->frame[top];
    const struct schema_node *is = &a->s->node[f.node];
    int i;

    f.text = (uint8_t)s;
    if (is->kind != SCHEMA_OBJECT)
        automaton_count(is, &f, characters);
    for (i = 0; is->kind == SCHEMA_OBJECT && i < n; i++)
        f.hash = automaton_hash(f.hash, byte[i]);
    if (is->kind == SCHEMA_OBJECT || f.count <= is->max)
        automaton_emit(a, &f, out);
}

bool automaton_in_key(const struct automaton *a, uint32_t top)
{
    const struct frame *f = &a->frame[top];

    return a->s->node[f->node].kind == SCHEMA_OBJECT && f->state == MEMBERS_KEY;
}

bool automaton_failed(const struct automaton *a)
{
    return a->failed;
}
