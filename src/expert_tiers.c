/* Experts in slots in front of the drive: the cache of storage/, seen as experts.  What is in
 * RAM is handed out at once and together; what is read, as it arrives. */
#include "cpu/pool.h"
#include "src/experts_internal.h"
#include "src/pinning.h"
#include "storage/cache.h"

#include <assert.h>
#include <errno.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <time.h>

static const double CLOSE_SECONDS = 10;

struct loan {
    enum { LOAN_FREE, LOAN_WAITS, LOAN_ASKED, LOAN_LENT } stage;
    struct ticket ticket;
    struct expert expert;
};

struct expert_tiers {
    const struct model *model;
    struct extents *extents;            /* [sparse layer][experts] */
    struct source *source;              /* [shards] */
    int sources;
    int layer_number[MAX_LAYERS];       /* of a sparse layer */
    struct slab *slab;
    struct pinning *pinning;            /* of the slots */
    bool pins;                          /* a GPU copies from them */
    int regions;                        /* chunks that the stream knows */
    struct log *log;
    struct stream *stream;
    struct cache *cache;
    uint8_t *checked;                   /* [sparse layer][experts]: scales seen to be finite */
    /* The request in progress. */
    struct ticket ticket;
    bool handed[MAX_EXPERTS];           /* by index in the ticket */
    int handed_n;
    /* What the next layer is expected to want. */
    int guess_layer, guesses;
    uint16_t guess[MAX_EXPERTS];
    struct expert expert[MAX_EXPERTS];
    const struct expert *out[MAX_EXPERTS];
    int index[MAX_EXPERTS], outs;       /* what was handed over last */
    /* Beside requests. */
    struct loan loan[EXPERT_LOANS];
    int slots, lent;                    /* of the slots, those that loans ask for or have */
    bool adopts;
    struct resident adopted;
    struct expert homecomer;
};

struct each {
    void (*f)(void *data, int i);
    void *data;
    int n;
    atomic_int next;
};

static void each_worker(void *arg, int worker, int workers)
{
    struct each *e = arg;
    int i;

    (void)worker;
    (void)workers;
    while ((i = atomic_fetch_add(&e->next, 1)) < e->n)
        e->f(e->data, i);
}

/* The cache's loops on our workers, which wait for it anyway. */
static void for_each(void *arg, int n, void (*f)(void *data, int i), void *data)
{
    struct each e = { .f = f, .data = data, .n = n };

    pool_run(arg, each_worker, &e);
}

static int plan_extents(struct expert_tiers *t, struct err *e)
{
    const struct model *m = t->model;
    size_t n = (size_t)m->shape.sparse_layers * (size_t)m->shape.experts;

    t->extents = calloc(n, sizeof(*t->extents));
    t->checked = calloc(n, 1);
    if (!t->extents || !t->checked)
        return fail(e, -ENOMEM, "out of memory");
    for (size_t i = 0; i < n; i++) {
        struct extent_part part[EXPERT_PARTS];
        int rc;

        expert_parts(&m->expert[i], part);
        rc = extents_plan(&t->extents[i], part, EXPERT_PARTS, e);
        if (rc)
            return rc;
    }
    for (int i = 0; i < m->shape.layers; i++)
        if (m->sparse_index[i] >= 0)
            t->layer_number[m->sparse_index[i]] = i;
    return 0;
}

static int open_sources(struct expert_tiers *t, struct err *e)
{
    int n = checkpoint_shards(t->model->checkpoint), rc = 0;

    t->source = calloc((size_t)n, sizeof(*t->source));
    if (!t->source)
        return fail(e, -ENOMEM, "out of memory");
    for (; t->sources < n && !rc; t->sources += !rc)
        rc = source_open(&t->source[t->sources], checkpoint_path(t->model->checkpoint, t->sources),
                         false, e);
    return rc;
}

static int open_slots(struct expert_tiers *t, const struct experts_config *c, struct err *e)
{
    struct slab_config slab = { .slot_bytes = c->slot_bytes, .slots = c->slots,
                                .node = SLAB_ANY, .log = c->log };
    struct stream_config stream = c->stream;
    int rc;

    if (slab.slots < 2)                 /* one to lend, and one for requests */
        slab.slots = 2;
    t->slots = slab.slots;
    rc = slab_open(&t->slab, &slab, e);
    stream.log = c->log;
    t->pins = c->pin;
    if (!rc)
        rc = stream_open(&t->stream, &stream, e);
    if (!rc)
        rc = pinning_start(&t->pinning, t->slab, c->pin, c->unpin, e);
    return rc;
}

int expert_tiers_open(struct expert_tiers **out, const struct experts_config *c,
                      const struct popularity *p, struct err *e)
{
    struct expert_tiers *t = calloc(1, sizeof(*t));
    int rc;

    if (!t)
        return fail(e, -ENOMEM, "out of memory");
    t->model = c->model;
    t->log = c->log;
    rc = plan_extents(t, e);
    if (!rc)
        rc = open_sources(t, e);
    if (!rc)
        rc = open_slots(t, c, e);
    if (!rc) {
        struct cache_config cc = {
            .layers = c->model->shape.sparse_layers, .experts = c->model->shape.experts,
            .extents = t->extents, .source = t->source, .sources = t->sources, .slab = t->slab,
            .stream = t->stream, .popularity = p, .log = c->log, .layer_number = t->layer_number,
            .for_each = for_each, .for_each_arg = c->pool, .copies = c->copies,
        };

        rc = cache_open(&t->cache, &cc, e);
    }
    if (rc) {
        expert_tiers_close(t);
        return rc;
    }
    *out = t;
    return 0;
}

int expert_tiers_close(struct expert_tiers *t)
{
    int rc = 0;

    if (!t)
        return 0;
    if (t->cache)
        rc = cache_close(t->cache, CLOSE_SECONDS);
    if (!rc && t->stream)
        rc = stream_close(t->stream, CLOSE_SECONDS);
    if (rc)                             /* the kernel still writes: leak, never free */
        return rc;
    pinning_stop(t->pinning);
    slab_close(t->slab);
    for (int i = 0; i < t->sources; i++)
        source_close(&t->source[i]);
    free(t->source);
    free(t->extents);
    free(t->checked);
    free(t);
    return 0;
}

/* The kernel pins what it is told of, which takes seconds where pages must be touched first: so
 * chunk by chunk, behind the thread that touches them, and while nobody waits: it still takes
 * milliseconds, and all that it saves is a third of the processor's time for a read. */
static void tell_stream(struct expert_tiers *t)
{
    struct slab_chunk c;

    if (t->regions == pinning_ready(t->pinning))
        return;
    c = slab_chunk(t->slab, t->regions++);
    stream_region(t->stream, c.base, c.bytes);
}

static bool was_guessed(const struct expert_tiers *t, uint16_t id)
{
    for (int i = 0; i < t->guesses; i++)
        if (t->guess[i] == id)
            return true;
    return false;
}

void expert_tiers_guess(struct expert_tiers *t, int layer, const struct route *r)
{
    /* A wrong guess costs the drive as much as a right one saves: only the surer half. */
    t->guess_layer = layer;
    for (int i = 0; i < r->tokens * r->topk && t->guesses < MAX_EXPERTS; i++)
        if (r->weight[i] * (float)r->topk > 1 && !was_guessed(t, r->expert[i]))
            t->guess[t->guesses++] = r->expert[i];
    cache_prefetch(t->cache, t->model->sparse_index[layer], t->guess, t->guesses);
}

void expert_tiers_request(struct expert_tiers *t, int layer, const uint16_t *id, int n,
                          struct tier_counts *counts)
{
    int row = t->model->sparse_index[layer];

    t->ticket = (struct ticket){ .layer = row, .count = n };
    memcpy(t->ticket.expert, id, (size_t)n * sizeof(*id));
    memset(t->handed, 0, (size_t)n * sizeof(*t->handed));
    t->handed_n = t->outs = 0;
    for (int i = 0; i < n; i++) {
        if (cache_has(t->cache, row, id[i]))
            counts->ram++;
        else
            counts->nvme++;
    }
    if (t->guesses && t->guess_layer == layer) {
        counts->guess_asked += (uint64_t)n;
        for (int i = 0; i < n; i++)
            counts->guess_right += was_guessed(t, id[i]);
    }
    t->guesses = 0;
    cache_request(t->cache, &t->ticket);
}

/* Experts of the ticket that are full and not handed over yet. */
static int count_ready(const struct expert_tiers *t)
{
    int n = 0;

    for (int i = 0; i < t->ticket.count; i++)
        n += !t->handed[i] && cache_has(t->cache, t->ticket.layer, t->ticket.expert[i]);
    return n;
}

static size_t bind(const struct expert_tiers *t, struct expert *x, const struct resident *r)
{
    size_t i = (size_t)r->layer * (size_t)t->model->shape.experts + (size_t)r->id;

    *x = (struct expert){ .layer = t->layer_number[r->layer], .id = r->id };
    expert_bind(x, &t->model->expert[i], r->slot, t->extents[i].part_offset);
    return i;
}

/* See a resident as an expert; its scales are looked at the first time. */
static int see(struct expert_tiers *t, struct expert *x, const struct resident *r, struct err *e)
{
    size_t i = bind(t, x, r);
    int rc = t->checked[i] ? 0 : expert_check_scales(x, e);

    t->checked[i] = !rc;
    return rc;
}

/* One expert more; as cache_next(). */
static int take(struct expert_tiers *t, struct err *e)
{
    struct resident r;
    struct expert *x = &t->expert[t->outs];
    int rc = cache_next(t->cache, &t->ticket, &r, e);

    if (rc <= 0)
        return rc;
    t->index[t->outs] = r.index;
    t->out[t->outs++] = x;
    t->handed[r.index] = true;
    t->handed_n++;
    rc = see(t, x, &r, e);
    return rc < 0 ? rc : 1;
}

int expert_tiers_next(struct expert_tiers *t, const struct expert *const **out, struct err *e)
{
    int ready, rc = 1;

    cache_poll(t->cache, 0);
    ready = count_ready(t);
    *out = t->out;
    for (int i = 0; rc == 1 && i < (ready ? ready : 1); i++)
        rc = take(t, e);
    if (rc == -EBUSY && t->outs)        /* every slot is pinned: compute these first */
        rc = 1;
    return rc < 0 ? rc : t->outs;
}

void expert_tiers_release(struct expert_tiers *t)
{
    for (int i = 0; i < t->outs; i++)
        cache_release(t->cache, &t->ticket, t->index[i]);
    t->outs = 0;
}

void expert_tiers_finish(struct expert_tiers *t)
{
    cache_finish(t->cache, &t->ticket);
    t->outs = 0;
}

/* Lent slots are kept while requests want theirs. */
static bool may_lend(const struct expert_tiers *t)
{
    return !t->lent || t->lent < t->slots / 4;
}

static void ask(struct expert_tiers *t, struct loan *l)
{
    if (l->stage != LOAN_WAITS || !may_lend(t))
        return;
    cache_request(t->cache, &l->ticket);
    l->stage = LOAN_ASKED;
    t->lent++;
}

void expert_tiers_lend(struct expert_tiers *t, int loan, const struct wanted *w,
                       struct tier_counts *counts)
{
    struct loan *l = &t->loan[loan];
    int row = t->model->sparse_index[w->layer];
    bool here = cache_has(t->cache, row, w->id);

    assert(l->stage == LOAN_FREE);
    counts->ram += w->needed && here;
    counts->nvme += w->needed && !here;
    l->stage = LOAN_WAITS;
    l->ticket.layer = row;
    l->ticket.count = 1;
    l->ticket.expert[0] = (uint16_t)w->id;
    l->ticket.patient = true;
    l->ticket.idle = !w->needed;
    ask(t, l);
}

int expert_tiers_lent(struct expert_tiers *t, int loan, const struct expert **out,
                      struct err *e)
{
    struct loan *l = &t->loan[loan];
    struct resident r;
    int rc;

    assert(l->stage != LOAN_FREE);
    *out = &l->expert;
    if (l->stage == LOAN_LENT)
        return 1;
    ask(t, l);
    if (l->stage == LOAN_WAITS)
        return 0;
    rc = cache_next(t->cache, &l->ticket, &r, e);
    if (rc == -EAGAIN)
        return 0;
    if (rc == 1)
        rc = see(t, &l->expert, &r, e);
    if (rc)
        return rc;
    l->stage = LOAN_LENT;
    return 1;
}

void expert_tiers_return(struct expert_tiers *t, int loan)
{
    struct loan *l = &t->loan[loan];

    if (l->stage == LOAN_ASKED || l->stage == LOAN_LENT) {
        cache_finish(t->cache, &l->ticket);
        t->lent--;
    }
    l->stage = LOAN_FREE;
}

bool expert_tiers_at_hand(const struct expert_tiers *t, int layer, int id)
{
    return t->pins && pinning_done(t->pinning) && may_lend(t) &&
           cache_has(t->cache, t->model->sparse_index[layer], id);
}

void expert_tiers_elsewhere(struct expert_tiers *t, int layer, int id, bool elsewhere)
{
    cache_elsewhere(t->cache, t->model->sparse_index[layer], id, elsewhere);
}

int expert_tiers_adopt(struct expert_tiers *t, int layer, int id, const struct expert **out)
{
    int rc;

    assert(!t->adopts);
    if (t->slots - t->lent < 2)         /* one must be left for requests */
        return -EBUSY;
    rc = cache_adopt(t->cache, t->model->sparse_index[layer], id, &t->adopted);
    if (rc)
        return rc;
    t->adopts = true;
    bind(t, &t->homecomer, &t->adopted);
    *out = &t->homecomer;
    return 0;
}

int expert_tiers_adopted(struct expert_tiers *t, struct err *e)
{
    assert(t->adopts);
    t->adopts = false;
    return cache_adopted(t->cache, &t->adopted, e);
}

void expert_tiers_warm(struct expert_tiers *t)
{
    cache_warm(t->cache);
}

bool expert_tiers_poll(struct expert_tiers *t)
{
    tell_stream(t);
    return cache_poll(t->cache, 0) > 0;
}

void expert_tiers_fill(struct expert_tiers *t)
{
    const struct timespec nap = { 0, 1000000 };
    bool reads = true;

    while (reads || pinning_busy(t->pinning)) {
        reads = cache_poll(t->cache, 0.1) > 0;
        tell_stream(t);
        if (!reads)
            nanosleep(&nap, NULL);
    }
}

void expert_tiers_check_pins(struct expert_tiers *t)
{
    struct err e;

    if (pinning_failed(t->pinning, &e))
        warn(t->log, t->pins ? "memory is not pinned, so that copies to the GPU are slower: %s"
                             : "%s", e.text);
}

void expert_tiers_counts(const struct expert_tiers *t, struct tier_counts *counts)
{
    struct cache_stats s = cache_stats(t->cache);

    counts->nvme_bytes = s.read_bytes;
    counts->io_wait_seconds = s.wait_seconds;
}
