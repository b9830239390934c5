#include "config.h"

#include "storage/cache_inner.h"

#include <errno.h>
#include <xxhash.h>

/* Reading one expert: its extents through the stream, what can be wrong with them, and in
 * which words it is told. */

enum { SUM_BYTES = 256 << 10, SUM_BLOCKS = 512 };   /* of a block; most blocks of an expert */

static void submit(struct cache *c, struct fetch *f)
{
    const struct extents *x = &c->config.extents[f->slot->key];
    uint8_t *into = slot_bytes(c, f->slot);

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

struct slot *fetch_start(struct cache *c, int key, bool guess, float worth)
{
    struct fetch *f = c->fetch;
    struct slot *s;

    if (guess && c->guessing >= GUESSES)
        return NULL;
    while (f < c->fetch + FETCHES && f->slot)
        f++;
    if (f == c->fetch + FETCHES)
        return NULL;
    s = slot_take(c, key, worth);
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

/* The parts of an expert, cut into blocks that are summed side by side. */
struct blocks {
    const uint8_t *at[SUM_BLOCKS];
    uint32_t bytes[SUM_BLOCKS];
    uint64_t sum[SUM_BLOCKS];
    int n;
};

static void sum_block(void *data, int i)
{
    struct blocks *b = data;

    b->sum[i] = XXH3_64bits(b->at[i], b->bytes[i]);
}

/* XXH3 of the blocks' XXH3.  How an expert is cut depends on its extents alone. */
static uint64_t checksum(const struct cache *c, const struct slot *s)
{
    const struct extents *x = &c->config.extents[s->key];
    const uint8_t *bytes = slot_bytes(c, s);
    uint32_t most = x->slot_bytes / (SUM_BLOCKS - EXTENT_PARTS) + 1;
    struct blocks b = { .n = 0 };

    if (most < SUM_BYTES)
        most = SUM_BYTES;
    for (int i = 0; i < x->parts; i++)
        for (uint32_t at = 0; at < x->part_bytes[i]; at += most) {
            uint32_t left = x->part_bytes[i] - at;

            b.at[b.n] = bytes + x->part_offset[i] + at;
            b.bytes[b.n++] = left < most ? left : most;
        }
    if (c->config.for_each)
        c->config.for_each(c->config.for_each_arg, b.n, sum_block, &b);
    else
        for (int i = 0; i < b.n; i++)
            sum_block(&b, i);
    return XXH3_64bits(b.sum, (size_t)b.n * sizeof(b.sum[0]));
}

bool fetch_sum_matches(struct cache *c, const struct slot *s)
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

/* What a read's status means to a request.  The system's other errno would be taken for
 * somebody else's further up: a drive's EREMOTEIO for the GPU's. */
static int read_errno(int status)
{
    switch (-status) {
    case ENODATA:
        return -ESTALE;         /* the file was long enough when it was opened */
    case ENODEV:
    case ENXIO:
    case ESHUTDOWN:
        return -ENXIO;
    case ECANCELED:
    case ENOMEM:
        return status;
    default:
        return -EIO;
    }
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
    return blame(c, f, read_errno(r->status), words.text);
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
    } else if (!f->status && !fetch_sum_matches(c, s)) {
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
            slot_free(c, s);
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
        slot_free(c, s);
}

void fetch_cancel(struct cache *c, struct fetch *f)
{
    for (int i = 0; i < c->config.extents[f->slot->key].count; i++)
        if (f->read[i].status == -EINPROGRESS)
            stream_cancel(c->config.stream, &f->read[i]);
}

void fetch_land(struct cache *c, struct read *r)
{
    struct fetch *f = r->owner;

    /* One part that fails makes the others useless; their status says nothing. */
    if (r->status && !f->status) {
        f->status = judge_read(c, f, r);
        fetch_cancel(c, f);
    }
    if (!--f->left)
        complete(c, f);
}

void fetch_hurry(struct cache *c, struct fetch *f)
{
    if (!f || !f->guess)
        return;
    f->guess = false;
    c->guessing--;
    for (int i = 0; i < c->config.extents[f->slot->key].count; i++)
        stream_hurry(c->config.stream, &f->read[i]);
}
