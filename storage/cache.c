#include "config.h"

#include "storage/cache_inner.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>

/* Tickets: from what a caller asks for to what it is handed.  Who may do what with a slot is in
 * storage/README; the numbers in brackets are its rules.  What is worth keeping is policy.c's;
 * how reads are made is stream.c's. */

/* Stages of one expert of a ticket. */
enum { WANTED, COMING, HANDED, DONE };

static void check_config(const struct cache_config *c)
{
    assert(c->layers > 0 && c->experts > 0 && c->experts <= MAX_EXPERTS);
    assert(c->slab && slab_slots(c->slab) > 0);
    for (size_t i = 0; i < (size_t)c->layers * (size_t)c->experts; i++) {
        const struct extents *x = &c->extents[i];

        assert(x->count > 0 && x->slot_bytes <= slab_slot_bytes(c->slab));
        for (int k = 0; k < x->count; k++)
            assert(x->extent[k].shard >= 0 && x->extent[k].shard < c->sources);
    }
}

static void warn_if_buffered(const struct cache_config *c)
{
    for (int i = 0; i < c->sources; i++)
        if (!c->source[i].direct) {
            warn(c->log, "%s: no direct reads here; buffered reads are slower",
                 c->source[i].path);
            return;
        }
}

static void free_memory(struct cache *c)
{
    free(c->slot);
    free(c->slot_of);
    free(c->sum);
    free(c->summed);
    free(c->elsewhere);
    free(c->held);
    free(c->quota);
    free(c->warm);
    free(c);
}

int cache_open(struct cache **out, const struct cache_config *config, struct err *e)
{
    struct cache *c = calloc(1, sizeof(*c));
    size_t keys = (size_t)config->layers * (size_t)config->experts;

    if (!c)
        return fail(e, -ENOMEM, "cache: out of memory");
    check_config(config);
    c->config = *config;
    if (!(config->limit_seconds > 0))
        c->config.limit_seconds = 120;
    c->slots = slab_slots(config->slab);
    c->keys = (int)keys;
    c->slot = calloc((size_t)c->slots, sizeof(*c->slot));
    c->slot_of = malloc(keys * sizeof(*c->slot_of));
    c->sum = calloc(keys, sizeof(*c->sum));
    c->summed = calloc(keys, sizeof(*c->summed));
    c->elsewhere = calloc(keys, sizeof(*c->elsewhere));
    c->held = calloc((size_t)config->layers, sizeof(*c->held));
    c->quota = calloc((size_t)config->layers, sizeof(*c->quota));
    if (!c->slot || !c->slot_of || !c->sum || !c->summed || !c->elsewhere || !c->held ||
        !c->quota) {
        free_memory(c);
        return fail(e, -ENOMEM, "cache of %zu experts: out of memory", keys);
    }
    for (size_t i = 0; i < keys; i++)
        c->slot_of[i] = -1;
    for (int i = 0; i < c->slots; i++) {
        c->slot[i].key = -1;
        c->slot[i].next_free = i + 1 < c->slots ? i + 1 : -1;
    }
    c->free_slots = c->slots;
    for (int i = 0; i < config->layers; i++)
        c->quota[i] = c->slots / config->layers + (i < c->slots % config->layers);
    warn_if_buffered(config);
    *out = c;
    return 0;
}

/* Warming takes free slots only, two reads at a time, and a layer's share at most. */
static void warm_on(struct cache *c)
{
    while (c->warm && c->warm_at < c->keys && c->guessing < STREAM_GUESSES) {
        int key = c->warm[c->warm_at];
        int layer = layer_of(c, key);

        if (c->first_free < 0)
            return;
        if (c->slot_of[key] >= 0 || c->held[layer] >= c->quota[layer] ||
                 (c->elsewhere[key] && !c->config.copies))
            c->warm_at++;
        else if (fetch_start(c, key, true, 0))
            c->stats.warmed++;
        else
            return;
    }
}

static void take_in(struct cache *c, double seconds)
{
    struct read *r = stream_reap(c->config.stream, seconds);

    while (r) {
        fetch_land(c, r);
        r = stream_reap(c->config.stream, 0);
    }
    warm_on(c);
}

/* Pin what is there before anything is evicted for the rest [R5]. */
static void advance(struct cache *c, struct ticket *t)
{
    for (int pass = 0; pass < 2; pass++) {
        for (int i = 0; i < t->count; i++) {
            int key = key_of(c, t->layer, t->expert[i]);
            struct slot *s;

            if (t->stage[i] != WANTED)
                continue;
            s = c->slot_of[key] >= 0 ? &c->slot[c->slot_of[key]] : NULL;
            if (s && s->state == READING && !t->idle)
                fetch_hurry(c, s->fetch);
            if (!s && pass == 1)
                s = fetch_start(c, key, t->idle, INFINITY);
            if (!s)
                continue;
            s->pins++;
            t->slot[i] = (int)(s - c->slot);
            t->stage[i] = COMING;
        }
    }
}

void cache_request(struct cache *c, struct ticket *t)
{
    assert(t->count >= 0 && t->count <= c->config.experts);
    t->left = t->count;
    for (int i = 0; i < t->count; i++) {
        int s = c->slot_of[key_of(c, t->layer, t->expert[i])];

        t->stage[i] = WANTED;
        t->slot[i] = -1;
        if (s < 0)
            c->stats.misses++;
        else if (c->slot[s].state == FULL)
            c->stats.hits++;
        else
            c->stats.waits++;
    }
    advance(c, t);
    take_in(c, 0);
}

/* The earliest arrival of those not handed over, or -1.  *failed: one that cannot come. */
static int pick(const struct cache *c, const struct ticket *t, int *failed, bool *coming)
{
    int best = -1;

    *failed = -1;
    *coming = false;
    for (int i = 0; i < t->count; i++) {
        const struct slot *s = t->stage[i] == COMING ? &c->slot[t->slot[i]] : NULL;

        if (!s)
            continue;
        *coming = true;
        if (s->state == FAILED)
            *failed = i;
        else if (s->state == FULL &&
                 (best < 0 || s->arrived < c->slot[t->slot[best]].arrived))
            best = i;
    }
    return best;
}

static int late(struct cache *c, const struct ticket *t, struct err *e)
{
    for (int i = 0; i < t->count; i++) {
        const struct slot *s = t->stage[i] == COMING ? &c->slot[t->slot[i]] : NULL;

        if (!s || !s->fetch)
            continue;
        fetch_cancel(c, s->fetch);
        return fail(e, -ETIME, "layer %d expert %d: %s: no answer to a read at %ju in %g s",
                    shown_layer(c, t->layer), t->expert[i], s->fetch->read[0].from->path,
                    (uintmax_t)s->fetch->read[0].offset, c->config.limit_seconds);
    }
    return fail(e, -ETIME, "layer %d: no slot became free in %g s",
                shown_layer(c, t->layer), c->config.limit_seconds);
}

int cache_next(struct cache *c, struct ticket *t, struct resident *out, struct err *e)
{
    double begun = 0;

    for (;;) {
        bool coming;
        int failed, i;

        /* In this order, so that reads for slots just released begin before the caller
         * computes what is handed over now. */
        advance(c, t);
        take_in(c, 0);
        i = pick(c, t, &failed, &coming);
        if (failed >= 0) {
            const struct fetch *f = c->slot[t->slot[failed]].fetch;

            return fail(e, f->status, "%s", f->why.text);
        }
        if (begun > 0 && (i >= 0 || !coming))
            c->stats.wait_seconds += clock_now() - begun;
        if (i >= 0) {
            const struct slot *s = &c->slot[t->slot[i]];

            t->stage[i] = HANDED;
            t->left--;
            *out = (struct resident){ t->layer, t->expert[i], i, slot_bytes(c, s) };
            return 1;
        }
        if (!t->left)
            return 0;
        if (t->patient)
            return -EAGAIN;
        if (!coming && !c->fetching)
            return fail(e, -EBUSY, "layer %d: all %d slots are pinned",
                        shown_layer(c, t->layer), c->slots);
        if (!(begun > 0))
            begun = clock_now();
        if (clock_now() - begun >= c->config.limit_seconds)
            return late(c, t, e);
        take_in(c, begun + c->config.limit_seconds - clock_now());
    }
}

void cache_release(struct cache *c, struct ticket *t, int index)
{
    assert(index >= 0 && index < t->count && t->stage[index] == HANDED);
    t->stage[index] = DONE;
    slot_unpin(c, &c->slot[t->slot[index]]);
}

void cache_finish(struct cache *c, struct ticket *t)
{
    for (int i = 0; i < t->count; i++) {
        if (t->stage[i] == COMING || t->stage[i] == HANDED)
            slot_unpin(c, &c->slot[t->slot[i]]);
        t->stage[i] = DONE;
    }
    t->left = t->count = 0;
}

void cache_prefetch(struct cache *c, int layer, const uint16_t *expert, int n)
{
    for (int i = 0; i < n; i++) {
        int key = key_of(c, layer, expert[i]);
        float worth = policy_score(&c->config.popularity->layer[layer], expert[i]);

        if (c->slot_of[key] >= 0 || (c->elsewhere[key] && !c->config.copies))
            continue;
        if (fetch_start(c, key, true, worth))
            c->stats.guesses++;
    }
    take_in(c, 0);
}

struct ranked {
    float worth;
    int key;
};

static int by_worth(const void *a, const void *b)
{
    const struct ranked *x = a, *y = b;

    if (x->worth != y->worth)
        return x->worth < y->worth ? 1 : -1;
    return x->key < y->key ? -1 : x->key > y->key;
}

void cache_warm(struct cache *c)
{
    struct ranked *order = malloc((size_t)c->keys * sizeof(*order));

    free(c->warm);
    c->warm = malloc((size_t)c->keys * sizeof(*c->warm));
    c->warm_at = order && c->warm ? 0 : c->keys;    /* without memory: no warming */
    for (int i = 0; order && i < c->keys; i++)
        order[i] = (struct ranked){ policy_lasting(&c->config.popularity->layer[layer_of(c, i)],
                                                   i % c->config.experts), i };
    if (order && c->warm) {
        qsort(order, (size_t)c->keys, sizeof(*order), by_worth);
        for (int i = 0; i < c->keys; i++)
            c->warm[i] = order[i].key;
    }
    free(order);
    take_in(c, 0);
}

int cache_poll(struct cache *c, double seconds)
{
    take_in(c, 0);
    if (c->fetching)
        take_in(c, seconds);
    take_in(c, 0);
    return c->fetching;
}

bool cache_has(const struct cache *c, int layer, int id)
{
    int s = c->slot_of[key_of(c, layer, id)];

    return s >= 0 && c->slot[s].state == FULL;
}

void cache_elsewhere(struct cache *c, int layer, int id, bool elsewhere)
{
    int key = key_of(c, layer, id);
    struct slot *s = c->slot_of[key] >= 0 ? &c->slot[c->slot_of[key]] : NULL;

    c->elsewhere[key] = elsewhere;
    if (elsewhere && !c->config.copies && s && s->state == FULL && !s->pins)
        slot_free(c, s);
}

int cache_adopt(struct cache *c, int layer, int id, struct resident *out)
{
    int key = key_of(c, layer, id);
    struct slot *s;

    if (c->slot_of[key] >= 0)
        return -EEXIST;
    s = slot_take(c, key, INFINITY);
    if (!s)
        return -EBUSY;
    c->slot_of[key] = -1;               /* nobody's until the bytes are whole */
    s->pins = 1;
    *out = (struct resident){ layer, id, (int)(s - c->slot), slot_bytes(c, s) };
    return 0;
}

int cache_adopted(struct cache *c, const struct resident *r, struct err *e)
{
    struct slot *s = &c->slot[r->index];
    bool here = c->slot_of[s->key] >= 0, good;

    assert(s->state == READING && !s->fetch && s->pins == 1);
    good = here || fetch_sum_matches(c, s);
    c->stats.mismatches += !good;
    if (good)
        c->elsewhere[s->key] = false;
    if (good && !here) {
        c->slot_of[s->key] = r->index;
        c->stats.full++;
        s->state = FULL;
        s->arrived = ++c->clock;
        slot_unpin(c, s);
        return 0;
    }
    s->pins = 0;
    slot_free(c, s);
    return here ? 0 : fail(e, -EBADMSG, "layer %d expert %d: came back from the GPU with other "
                           "bytes", shown_layer(c, r->layer), r->id);
}

struct cache_stats cache_stats(const struct cache *c)
{
    struct cache_stats st = c->stats;

    st.reading = c->fetching;
    return st;
}

int cache_close(struct cache *c, double seconds)
{
    double until = clock_now() + seconds;

    if (!c)
        return 0;
    c->warm_at = c->keys;
    for (int i = 0; i < FETCHES; i++)
        if (c->fetch[i].slot && c->fetch[i].left)
            fetch_cancel(c, &c->fetch[i]);
    while (c->fetching && clock_now() < until)
        take_in(c, until - clock_now());
    if (c->fetching)
        return -ETIMEDOUT;
    free_memory(c);
    return 0;
}
