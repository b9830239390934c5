/* A ring of staging slots.  Experts are numbered as they are asked for; number i has slot and
 * loan i % slots, and each counter below says how far one stage of the way has come:
 *   released <= seated <= filled <= lent <= asked, and copied <= filled. */
#include "src/feed.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>

/* Of a ring of items: two layers and more.  A quarter of the slots is computed, while the others
 * are copied into: with halves either side waited for the other. */
enum { ASKED_MOST = 4 * MAX_EXPERTS, GROUPS = 4 };

struct item {
    int layer;
    uint16_t id;
    bool wanted;
    bool passed_over;           /* expected, and then not wanted */
};

struct feed {
    struct feed_config c;
    struct item item[ASKED_MOST];
    uint64_t asked;             /* wanted or expected */
    uint64_t lent;              /* their bytes were asked for */
    uint64_t filled;            /* their copies are queued */
    uint64_t copied;            /* and done: the loan is back */
    uint64_t seated, released;
};

int feed_open(struct feed **out, const struct feed_config *c, struct err *e)
{
    struct feed *f = calloc(1, sizeof(*f));

    if (!f)
        return fail(e, -ENOMEM, "out of memory");
    assert(c->slots > 0 && c->slots <= FEED_LOANS);
    f->c = *c;
    *out = f;
    return 0;
}

void feed_close(struct feed *f)
{
    if (!f)
        return;
    feed_cancel(f);
    free(f);
}

int feed_group(const struct feed *f)
{
    return f->c.slots < GROUPS ? 1 : f->c.slots / GROUPS;
}

static struct item *item_at(struct feed *f, uint64_t i)
{
    return &f->item[i % ASKED_MOST];
}

static int slot_of(const struct feed *f, uint64_t i)
{
    return f->c.first_slot + (int)(i % (uint64_t)f->c.slots);
}

static int loan_of(const struct feed *f, uint64_t i)
{
    return FEED_LOAN + (int)(i % (uint64_t)f->c.slots);
}

static void ask(struct feed *f, int layer, uint16_t id, bool wanted)
{
    assert(f->asked - f->released < ASKED_MOST);
    *item_at(f, f->asked++) = (struct item){ layer, id, wanted, false };
}

/* Mark those of the layer that are under way and wanted.  How many of the ids they are; -1
 * where others would come out of order. */
static int mark_wanted(struct feed *f, int layer, const uint16_t *id, int n)
{
    int at = 0;

    for (uint64_t i = f->seated; i < f->lent; i++) {
        struct item *x = item_at(f, i);

        x->wanted = x->layer == layer && at < n && x->id == id[at];
        x->passed_over = !x->wanted;
        at += x->wanted;
        if (x->layer == layer && at < n && id[at] < x->id)
            return -1;
    }
    return at;
}

void feed_want(struct feed *f, int layer, const uint16_t *id, int n)
{
    int have;

    f->asked = f->lent;                 /* what was expected and has not begun is forgotten */
    have = mark_wanted(f, layer, id, n);
    for (uint64_t i = f->seated; have < 0 && i < f->lent; i++) {
        item_at(f, i)->wanted = false;
        item_at(f, i)->passed_over = true;
    }
    for (int i = have < 0 ? 0 : have; i < n; i++)
        ask(f, layer, id[i], true);
}

void feed_expect(struct feed *f, int layer, const uint16_t *id, int n)
{
    for (int i = 0; i < n; i++)
        ask(f, layer, id[i], false);
}

static int fill(struct feed *f, uint64_t i, struct err *e)
{
    const struct expert *x;
    int rc = experts_lent(f->c.experts, loan_of(f, i), &x, e);

    if (rc <= 0 || item_at(f, i)->passed_over)
        return rc;
    rc = gpu_fill_slot(f->c.gpu, slot_of(f, i), x, e);
    return rc ? rc : 1;
}

/* Ask for as many as there are slots and loans. */
static void lend(struct feed *f)
{
    uint64_t slots = (uint64_t)f->c.slots;

    while (f->lent < f->asked && f->lent - f->released < slots && f->lent - f->copied < slots) {
        const struct item *x = item_at(f, f->lent);
        const struct wanted w = { x->layer, x->id, true };

        experts_lend(f->c.experts, loan_of(f, f->lent++), &w);
    }
}

int feed_pump(struct feed *f, struct err *e)
{
    int rc = 1;

    while (f->copied < f->filled && gpu_slot_ready(f->c.gpu, slot_of(f, f->copied)))
        experts_return(f->c.experts, loan_of(f, f->copied++));
    lend(f);
    while (f->filled < f->lent && (rc = fill(f, f->filled, e)) > 0)
        f->filled++;
    return rc < 0 ? rc : 0;
}

int feed_seat(struct feed *f, struct err *e)
{
    for (;;) {
        int rc = feed_pump(f, e);

        if (rc)
            return rc;
        while (f->seated < f->filled) {
            const struct item *x = item_at(f, f->seated++);

            if (!x->wanted)
                continue;
            gpu_seat(f->c.gpu, x->layer, x->id, slot_of(f, f->seated - 1));
            return 1;
        }
        if (f->seated - f->released == (uint64_t)f->c.slots)
            return 0;
        assert(f->seated < f->asked);
    }
}

void feed_release(struct feed *f)
{
    for (; f->released < f->seated; f->released++) {
        const struct item *x = item_at(f, f->released);

        if (x->wanted)
            gpu_seat(f->c.gpu, x->layer, x->id, -1);
    }
}

void feed_cancel(struct feed *f)
{
    struct err e;

    feed_release(f);
    if (f->copied < f->lent)
        gpu_wait(f->c.gpu, &e);
    for (; f->copied < f->lent; f->copied++)
        experts_return(f->c.experts, loan_of(f, f->copied));
    f->asked = f->filled = f->seated = f->released = f->lent;
}
