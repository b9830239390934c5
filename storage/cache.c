#include "config.h"

#include "storage/cache.h"

#include <assert.h>
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <xxhash.h>

/* Who may do what with a slot is in storage/README; the numbers in brackets are its rules.
 * What is worth keeping is policy.c's; how reads are made is stream.c's. */

enum state { FREE, READING, FULL, FAILED };

/* Stages of one expert of a ticket. */
enum { WANTED, COMING, HANDED, DONE };

/* More reads than the drive needs, few enough that a wave of misses does not tie up every
 * slot; the rest of the fetches is always open to urgent ones. */
enum { FETCHES = 48, GUESSES = 16 };

struct slot {
    enum state state;
    int key;                    /* layer * experts + id; -1: free */
    int pins, next_free;
    struct fetch *fetch;        /* READING or FAILED; NULL while it is adopted */
    uint64_t arrived;
};

/* One expert being read, or the reason why it could not be. */
struct fetch {
    struct read read[EXTENT_PARTS];
    struct slot *slot;          /* NULL: not in use */
    int left, status;
    bool guess, second;
    struct err why;
};

struct cache {
    struct cache_config config;
    struct slot *slot;          /* [slots] */
    int slots, first_free, free_slots;
    int *slot_of;               /* [layers][experts]: or -1 */
    uint64_t *sum;              /* [layers][experts]: XXH3 of the parts */
    bool *summed, *elsewhere;   /* [layers][experts] */
    int *held, *quota;          /* [layers]: slots */
    int *warm;                  /* [keys] in order of popularity; NULL: not asked for */
    int warm_at, keys;
    uint64_t clock;
    int fetching, guessing;
    bool said_replaced;
    struct fetch fetch[FETCHES];
    struct cache_stats stats;
};

static int key_of(const struct cache *c, int layer, int id)
{
    assert(layer >= 0 && layer < c->config.layers && id >= 0 && id < c->config.experts);
    return layer * c->config.experts + id;
}

static int layer_of(const struct cache *c, int key)
{
    return key / c->config.experts;
}

static uint8_t *bytes_of(const struct cache *c, const struct slot *s)
{
    return slab_slot(c->config.slab, (int)(s - c->slot));
}

static int shown_layer(const struct cache *c, int layer)
{
    return c->config.layer_number ? c->config.layer_number[layer] : layer;
}

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
    *out = c;
    return 0;
}

static void free_slot(struct cache *c, struct slot *s)
{
    assert(s->pins == 0 && s->state != FREE && (!s->fetch || !s->fetch->left));
    if (s->fetch)
        s->fetch->slot = NULL;
    c->stats.full -= s->state == FULL;
    c->held[layer_of(c, s->key)]--;
    c->slot_of[s->key] = -1;
    *s = (struct slot){ .state = FREE, .key = -1, .next_free = c->first_free };
    c->first_free = (int)(s - c->slot);
    c->free_slots++;
}

static void unpin(struct cache *c, struct slot *s)
{
    assert(s->pins > 0);
    if (--s->pins)
        return;
    if (s->state == FAILED ||
        (s->state == FULL && c->elsewhere[s->key] && !c->config.copies))
        free_slot(c, s);
}

/* The full slot without pins of a layer that is least worth keeping [R3], or NULL. */
static struct slot *victim_of(struct cache *c, int layer)
{
    const int *slot_of = c->slot_of + (size_t)layer * c->config.experts;
    uint16_t candidate[MAX_EXPERTS];
    int n = 0, v;

    for (int i = 0; i < c->config.experts; i++)
        if (slot_of[i] >= 0 && c->slot[slot_of[i]].state == FULL && !c->slot[slot_of[i]].pins)
            candidate[n++] = (uint16_t)i;
    v = policy_victim(&c->config.popularity->layer[layer], candidate, n);
    return v < 0 ? NULL : &c->slot[slot_of[candidate[v]]];
}

/* A layer that has its share gives up one of its own; otherwise the layer that is furthest
 * above its share does [R4]. */
static struct slot *find_victim(struct cache *c, int layer)
{
    struct slot *best = c->held[layer] >= c->quota[layer] ? victim_of(c, layer) : NULL;
    int most = 0;

    if (best)
        return best;
    for (int l = 0; l < c->config.layers; l++) {
        int excess = c->held[l] - c->quota[l];
        struct slot *s;

        if (!c->held[l] || (best && excess <= most))
            continue;
        s = victim_of(c, l);
        if (s) {
            best = s;
            most = excess;
        }
    }
    return best;
}

/* A slot for `key`, READING and in no list.  worth: what an evicted expert must be less worth
 * than; INFINITY: any may go; 0: none, only a free slot will do. */
static struct slot *take_slot(struct cache *c, int key, float worth)
{
    int layer = layer_of(c, key);
    struct slot *s;

    if (c->first_free < 0) {
        s = worth > 0 ? find_victim(c, layer) : NULL;
        if (!s)
            return NULL;
        if (policy_score(&c->config.popularity->layer[layer_of(c, s->key)],
                         s->key % c->config.experts) >= worth)
            return NULL;
        c->stats.evictions++;
        free_slot(c, s);
    }
    s = &c->slot[c->first_free];
    c->first_free = s->next_free;
    c->free_slots--;
    *s = (struct slot){ .state = READING, .key = key };
    c->slot_of[key] = (int)(s - c->slot);
    c->held[layer]++;
    return s;
}

static void submit(struct cache *c, struct fetch *f)
{
    const struct extents *x = &c->config.extents[f->slot->key];
    uint8_t *into = bytes_of(c, f->slot);

    f->left = x->count;
    f->status = 0;
    for (int i = 0; i < x->count; i++) {
        const struct extent *a = &x->extent[i];

        f->read[i] = (struct read){
            .from = &c->config.source[a->shard], .offset = a->offset, .bytes = a->bytes,
            .need = a->need, .into = into + a->slot_offset, .owner = f,
            .speculative = f->guess,
        };
        stream_submit(c->config.stream, &f->read[i]);
    }
}

/* Begin to read an expert that is nowhere in RAM.  NULL: no fetch or no slot now. */
static struct slot *start(struct cache *c, int key, bool guess, float worth)
{
    struct fetch *f = c->fetch;
    struct slot *s;

    if (guess && c->guessing >= GUESSES)
        return NULL;
    while (f < c->fetch + FETCHES && f->slot)
        f++;
    if (f == c->fetch + FETCHES)
        return NULL;
    s = take_slot(c, key, worth);
    if (!s)
        return NULL;
    f->slot = s;
    f->guess = guess;
    f->second = false;
    s->fetch = f;
    c->fetching++;
    c->guessing += guess;
    submit(c, f);
    return s;
}

static uint64_t checksum(const struct cache *c, const struct slot *s)
{
    const struct extents *x = &c->config.extents[s->key];
    const uint8_t *bytes = bytes_of(c, s);
    uint64_t sum = 0;

    for (int i = 0; i < x->parts; i++)
        if (x->part_bytes[i])
            sum = XXH3_64bits_withSeed(bytes + x->part_offset[i], x->part_bytes[i], sum);
    return sum;
}

/* Learn the sum at the first read, compare it at every later one [R7]. */
static bool sum_matches(struct cache *c, const struct slot *s)
{
    uint64_t sum = checksum(c, s);

    if (c->summed[s->key])
        return c->sum[s->key] == sum;
    c->summed[s->key] = true;
    c->sum[s->key] = sum;
    return true;
}

static int check_sources(struct cache *c, const struct extents *x, struct err *e)
{
    for (int i = 0; i < x->count; i++) {
        struct source *from = &c->config.source[x->extent[i].shard];
        bool before = from->replaced;
        int rc;

        if (i && x->extent[i].shard == x->extent[i - 1].shard)
            continue;
        rc = source_check(from, e);
        if (rc)
            return rc;
        c->stats.replaced += from->replaced && !before;
        if (from->replaced && !c->said_replaced) {
            c->said_replaced = true;
            warn(c->config.log, "%s: replaced on disk; the old file is read on", from->path);
        }
    }
    return 0;
}

/* Put layer and expert in front of the words. */
static int blame(const struct cache *c, struct fetch *f, int rc, const char *words)
{
    return fail(&f->why, rc, "layer %d expert %d: %.400s",
                shown_layer(c, layer_of(c, f->slot->key)), f->slot->key % c->config.experts,
                words);
}

static int judge_read(const struct cache *c, struct fetch *f, const struct read *r)
{
    struct err words;

    if (r->status == -ENODATA)
        fail(&words, 0, "%s: ends before %ju", r->from->path,
             (uintmax_t)(r->offset + r->need));
    else
        fail(&words, 0, "%s: at %ju: %s", r->from->path,
             (uintmax_t)(r->status == -ECANCELED ? r->offset : r->bad_offset),
             strerror(-r->status));
    return blame(c, f, r->status == -ENODATA ? -EBADMSG : r->status, words.text);
}

/* Every read of the fetch is back.  What it brought is used only when all of them succeeded,
 * the files are as they were, and the sum is right. */
static void complete(struct cache *c, struct fetch *f)
{
    struct slot *s = f->slot;
    const struct extents *x = &c->config.extents[s->key];
    struct err words;
    int rc = check_sources(c, x, &words);

    if (!rc && f->status == -ECANCELED && s->pins) {
        submit(c, f);       /* given up by one request, wanted by a later one */
        return;
    }
    if (rc) {
        f->status = blame(c, f, rc, words.text);
    } else if (!f->status && !sum_matches(c, s)) {
        c->stats.mismatches++;
        if (!f->second) {
            f->second = true;
            submit(c, f);
            return;
        }
        f->status = blame(c, f, -EBADMSG, "read twice, and both times with other bytes than "
                                          "the first time");
    }
    c->fetching--;
    c->guessing -= f->guess;
    if (f->status) {
        c->stats.failures++;
        s->state = FAILED;
        if (!s->pins)
            free_slot(c, s);
        return;
    }
    c->stats.reads++;
    c->stats.full++;
    for (int i = 0; i < x->count; i++)
        c->stats.read_bytes += x->extent[i].need;
    s->state = FULL;
    s->arrived = ++c->clock;
    s->fetch = NULL;
    f->slot = NULL;
    if (!s->pins && c->elsewhere[s->key] && !c->config.copies)
        free_slot(c, s);
}

static void cancel(struct cache *c, struct fetch *f)
{
    for (int i = 0; i < c->config.extents[f->slot->key].count; i++)
        if (f->read[i].status == -EINPROGRESS)
            stream_cancel(c->config.stream, &f->read[i]);
}

static void land(struct cache *c, struct read *r)
{
    struct fetch *f = r->owner;

    /* One part that fails makes the others useless; their status says nothing. */
    if (r->status && !f->status) {
        f->status = judge_read(c, f, r);
        cancel(c, f);
    }
    if (!--f->left)
        complete(c, f);
}

/* Warming takes free slots only, two reads at a time, and a layer's share at most. */
static void warm_on(struct cache *c)
{
    while (c->warm && c->warm_at < c->keys && c->guessing < STREAM_GUESSES) {
        int key = c->warm[c->warm_at];
        int layer = layer_of(c, key);

        if (c->first_free < 0)
            c->warm_at = c->keys;
        else if (c->slot_of[key] >= 0 || c->held[layer] >= c->quota[layer] ||
                 (c->elsewhere[key] && !c->config.copies))
            c->warm_at++;
        else if (start(c, key, true, 0))
            c->stats.warmed++;
        else
            return;
    }
}

static void take_in(struct cache *c, double seconds)
{
    struct read *r = stream_reap(c->config.stream, seconds);

    while (r) {
        land(c, r);
        r = stream_reap(c->config.stream, 0);
    }
    warm_on(c);
}

static void hurry(struct cache *c, struct fetch *f)
{
    if (!f || !f->guess)
        return;
    f->guess = false;
    c->guessing--;
    for (int i = 0; i < c->config.extents[f->slot->key].count; i++)
        stream_hurry(c->config.stream, &f->read[i]);
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
            if (s && s->state == READING)
                hurry(c, s->fetch);
            if (!s && pass == 1)
                s = start(c, key, false, INFINITY);
            if (!s)
                continue;
            assert(s->state != READING || s->fetch);    /* not while it is adopted */
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
        cancel(c, s->fetch);
        return fail(e, -ETIMEDOUT, "layer %d expert %d: %s: no answer to a read at %ju in %g s",
                    shown_layer(c, t->layer), t->expert[i], s->fetch->read[0].from->path,
                    (uintmax_t)s->fetch->read[0].offset, c->config.limit_seconds);
    }
    return fail(e, -ETIMEDOUT, "layer %d: no slot became free in %g s",
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
            *out = (struct resident){ t->layer, t->expert[i], i, bytes_of(c, s) };
            return 1;
        }
        if (!t->left)
            return 0;
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
    unpin(c, &c->slot[t->slot[index]]);
}

void cache_finish(struct cache *c, struct ticket *t)
{
    for (int i = 0; i < t->count; i++) {
        if (t->stage[i] == COMING || t->stage[i] == HANDED)
            unpin(c, &c->slot[t->slot[i]]);
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
        if (start(c, key, true, worth))
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
        free_slot(c, s);
}

int cache_adopt(struct cache *c, int layer, int id, struct resident *out)
{
    int key = key_of(c, layer, id);
    struct slot *s = c->slot_of[key] >= 0 ? NULL : take_slot(c, key, INFINITY);

    if (!s)
        return -EBUSY;
    s->pins = 1;
    *out = (struct resident){ layer, id, -1, bytes_of(c, s) };
    return 0;
}

int cache_adopted(struct cache *c, const struct resident *r, struct err *e)
{
    struct slot *s = &c->slot[c->slot_of[key_of(c, r->layer, r->id)]];
    bool good;

    assert(s->state == READING && !s->fetch && s->pins == 1);
    good = sum_matches(c, s);
    c->stats.mismatches += !good;
    if (good) {
        c->elsewhere[s->key] = false;
        c->stats.full++;
        s->state = FULL;
        s->arrived = ++c->clock;
        unpin(c, s);
        return 0;
    }
    s->pins = 0;
    free_slot(c, s);
    return fail(e, -EBADMSG, "layer %d expert %d: came back from the GPU with other bytes",
                shown_layer(c, r->layer), r->id);
}

struct cache_stats cache_stats(const struct cache *c)
{
    struct cache_stats st = c->stats;

    st.reading = c->fetching;
    return st;
}

static bool slot_sane(const struct cache *c, const struct slot *s)
{
    if (s->state == FREE)
        return s->key == -1 && !s->pins && !s->fetch;
    if (c->slot_of[s->key] != (int)(s - c->slot) || s->pins < 0)
        return false;
    if (s->state == FULL)
        return !s->fetch;
    if (s->state == FAILED)
        return s->fetch && s->fetch->slot == s && s->pins && !s->fetch->left;
    return s->fetch ? s->fetch->slot == s && s->fetch->left : s->pins == 1;
}

bool cache_sane(const struct cache *c)
{
    int held = 0, taken = 0, fetching = 0, unused = 0;

    for (int i = 0; i < c->slots; i++) {
        if (!slot_sane(c, &c->slot[i]))
            return false;
        taken += c->slot[i].state != FREE;
        fetching += c->slot[i].state == READING && c->slot[i].fetch;
    }
    for (int i = 0; i < c->config.layers; i++)
        held += c->held[i];
    for (int i = c->first_free; i >= 0; i = c->slot[i].next_free)
        unused++;
    return held == taken && unused == c->free_slots && taken + unused == c->slots &&
           fetching == c->fetching;
}

int cache_close(struct cache *c, double seconds)
{
    double until = clock_now() + seconds;

    if (!c)
        return 0;
    c->warm_at = c->keys;
    for (int i = 0; i < FETCHES; i++)
        if (c->fetch[i].slot && c->fetch[i].left)
            cancel(c, &c->fetch[i]);
    while (c->fetching && clock_now() < until)
        take_in(c, until - clock_now());
    if (c->fetching)
        return -ETIMEDOUT;
    free_memory(c);
    return 0;
}
