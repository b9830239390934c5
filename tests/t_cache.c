#include "config.h"

#include "storage/cache.h"
#include "tests/tap.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

/* Three layers of twelve made-up experts in two files, and every way to ask for them. */

enum { LAYERS = 3, EXPERTS = 12, KEYS = LAYERS * EXPERTS, PARTS = 3, PART = 9000,
       FILE_BYTES = KEYS * PART * 2 + 5000 };

static const char *const path[2] = { "t_cache.0.tmp", "t_cache.1.tmp" };

static uint8_t byte_at(int shard, uint64_t offset)
{
    return (uint8_t)((offset * 2654435761u >> 11) + (uint64_t)shard * 77);
}

static void write_file(int shard)
{
    uint8_t *b = malloc(FILE_BYTES);
    int fd = open(path[shard], O_RDWR | O_CREAT | O_TRUNC, 0600);

    for (int i = 0; i < FILE_BYTES; i++)
        b[i] = byte_at(shard, (uint64_t)i);
    if (fd < 0 || write(fd, b, FILE_BYTES) != FILE_BYTES)
        printf("Bail out! cannot write %s\n", path[shard]);
    close(fd);
    free(b);
}

/* Two parts side by side in the first file, one in the second. */
static struct extent_part part_of(int key, int i)
{
    struct extent_part two = { 0, (uint64_t)(100 + key * 2 * PART + i * PART), PART };
    struct extent_part one = { 1, (uint64_t)(3000 + key * PART), PART };

    return i < 2 ? two : one;
}

struct plan {
    struct stream_fault fault;
    int key, times, operations;     /* key -1: any */
};

struct bed {
    struct log log;
    struct source source[2];
    struct extents extents[KEYS];
    struct popularity popularity;
    struct slab *slab;
    struct stream *stream;
    struct cache *c;
    struct plan plan;
};

static void inject(void *arg, const struct read *r, uint64_t offset, uint32_t bytes,
                   struct stream_fault *f)
{
    struct bed *b = arg;
    int shard = (int)(r->from - b->source);
    struct extent_part p = part_of(b->plan.key < 0 ? 0 : b->plan.key, shard ? 2 : 0);

    b->plan.operations++;
    if (!b->plan.times ||
        (b->plan.key >= 0 && (p.offset + p.bytes / 2 < offset ||
                              p.offset + p.bytes / 2 >= offset + bytes ||
                              r->offset / 4096 != p.offset / 4096)))
        return;
    b->plan.times--;
    *f = b->plan.fault;
}

static bool set_up_files(struct bed *b, int slots, double limit, bool buffered)
{
    struct stream_config sc = { .log = &b->log, .fault = inject, .fault_arg = b };
    struct slab_config lc = { 10 * 4096, slots, SLAB_ANY, &b->log };
    struct cache_config cc = { .layers = LAYERS, .experts = EXPERTS, .extents = b->extents,
                               .source = b->source, .sources = 2, .log = &b->log,
                               .popularity = &b->popularity, .limit_seconds = limit };
    struct err e;

    memset(b, 0, sizeof(*b));
    b->log.level = LOG_QUIET;
    for (int k = 0; k < KEYS; k++) {
        struct extent_part part[PARTS];

        for (int i = 0; i < PARTS; i++)
            part[i] = part_of(k, i);
        extents_plan(&b->extents[k], part, PARTS, NULL);
    }
    if (popularity_open(&b->popularity, LAYERS, EXPERTS, 1, &e) ||
        source_open(&b->source[0], path[0], buffered, &e) ||
        source_open(&b->source[1], path[1], buffered, &e) || slab_open(&b->slab, &lc, &e) ||
        stream_open(&b->stream, &sc, &e)) {
        printf("Bail out! %s\n", e.text);
        return false;
    }
    cc.slab = b->slab;
    cc.stream = b->stream;
    return !cache_open(&b->c, &cc, &e);
}

static bool set_up(struct bed *b, int slots, double limit)
{
    return set_up_files(b, slots, limit, false);
}

static void tear_down(struct bed *b)
{
    int rc = cache_close(b->c, 10);

    ok(!rc && !stream_close(b->stream, 10), "closed");
    slab_close(b->slab);
    source_close(&b->source[0]);
    source_close(&b->source[1]);
    popularity_close(&b->popularity);
}

static bool right(const struct bed *b, const struct resident *x)
{
    int key = x->layer * EXPERTS + x->id;

    for (int i = 0; i < PARTS; i++) {
        struct extent_part p = part_of(key, i);

        for (uint64_t k = 0; k < p.bytes; k++)
            if (x->slot[b->extents[key].part_offset[i] + k] != byte_at(p.shard, p.offset + k))
                return false;
    }
    return true;
}

static struct ticket want(int layer, int first, int n)
{
    struct ticket t = { .layer = layer, .count = n };

    for (int i = 0; i < n; i++)
        t.expert[i] = (uint16_t)(first + i);
    return t;
}

/* Ask, take each, release each: how many were right, or the error. */
static int serve(struct bed *b, int layer, int first, int n, struct err *e)
{
    struct ticket t = want(layer, first, n);
    struct resident x;
    int good = 0, rc;

    popularity_note(&b->popularity, layer, t.expert, n);
    cache_request(b->c, &t);
    while ((rc = cache_next(b->c, &t, &x, e)) > 0) {
        good += right(b, &x);
        cache_release(b->c, &t, x.index);
    }
    cache_finish(b->c, &t);
    return rc ? rc : good;
}

static void any_slot_count(void)
{
    int bad = 0, insane = 0;

    for (int slots = 1; slots <= KEYS + 3; slots++) {
        struct bed b;

        if (!set_up(&b, slots, 0))
            return;
        for (int round = 0; round < 3; round++)
            for (int l = 0; l < LAYERS; l++) {
                bad += serve(&b, l, 0, EXPERTS, NULL) != EXPERTS;
                insane += !cache_sane(b.c);
            }
        if (slots >= KEYS)
            bad += cache_stats(b.c).hits != 2 * KEYS || cache_stats(b.c).misses != KEYS;
        bad += cache_close(b.c, 10) || stream_close(b.stream, 10);
        slab_close(b.slab);
        source_close(&b.source[0]);
        source_close(&b.source[1]);
        popularity_close(&b.popularity);
    }
    ok(!bad && !insane, "1 to %d slots: waves of all experts of a layer", KEYS + 3);
}

static void pins(void)
{
    struct ticket t = want(1, 0, 3), u = want(2, 4, 1);
    struct resident x, y, z;
    struct bed b;
    struct err e;

    if (!set_up(&b, 2, 0))
        return;
    cache_request(b.c, &t);
    ok(cache_next(b.c, &t, &x, &e) == 1 && cache_next(b.c, &t, &y, &e) == 1, "two of three");
    ok(cache_next(b.c, &t, &z, &e) == -EBUSY, "no slot for the third: %s", e.text);
    cache_request(b.c, &u);
    ok(cache_next(b.c, &u, &z, &e) == -EBUSY, "nor for another ticket");
    ok(right(&b, &x) && right(&b, &y) && cache_sane(b.c), "what is pinned stays");
    cache_release(b.c, &t, x.index);
    ok(cache_next(b.c, &t, &z, &e) == 1 && z.slot == x.slot && right(&b, &z) && right(&b, &y),
       "its slot serves the third");
    ok(cache_next(b.c, &t, &z, &e) == 0, "all handed over");
    cache_finish(b.c, &t);
    ok(cache_next(b.c, &u, &z, &e) == 1 && right(&b, &z), "and then the other ticket");
    cache_finish(b.c, &u);
    ok(cache_sane(b.c), "sane");
    tear_down(&b);
}

static void arrival(void)
{
    struct ticket t = want(0, 0, 4);
    struct resident x[4];
    struct bed b;

    if (!set_up(&b, 8, 0))
        return;
    serve(&b, 0, 2, 1, NULL);
    b.plan = (struct plan){ { .seconds = 0.5 }, 0, 1, 0 };
    cache_request(b.c, &t);
    for (int i = 0; i < 4; i++)
        if (cache_next(b.c, &t, &x[i], NULL) != 1 || !right(&b, &x[i]))
            x[i].id = -1;
    ok(x[0].id == 2 && x[3].id == 0 && x[1].id != 0 && x[1].id > 0 && x[2].id > 0,
       "what is there first, the late one last");
    ok(cache_stats(b.c).hits == 1 && cache_stats(b.c).wait_seconds > 0.05, "waited for it");
    cache_finish(b.c, &t);
    tear_down(&b);
}

static void errors(void)
{
    struct bed b;
    struct err e;

    if (!set_up(&b, 12, 0))
        return;
    b.plan = (struct plan){ { .result = -EIO }, 5, 2, 0 };
    ok(serve(&b, 0, 0, 8, &e) == 8 && b.plan.times == 0, "EIO twice: nobody notices");
    b.plan = (struct plan){ { .result = -EIO }, EXPERTS + 5, -1, 0 };
    ok(serve(&b, 1, 0, 8, &e) == -EIO && strstr(e.text, "layer 1 expert 5") &&
       strstr(e.text, "t_cache."), "EIO for ever: %s", e.text);
    ok(cache_sane(b.c) && serve(&b, 1, 0, 5, &e) == 5, "others are served");
    ok(serve(&b, 1, 5, 1, &e) == -EIO && !cache_has(b.c, 1, 5), "that one never");
    b.plan.times = 0;
    ok(serve(&b, 1, 0, 8, &e) == 8, "until the drive is well again");
    for (int i = 0; i < 4; i++) {
        static const int said[] = { EREMOTEIO, EINVAL, EBADF, ENODEV };
        static const int us[] = { EIO, EIO, EIO, ENXIO };

        b.plan = (struct plan){ { .result = -said[i] }, -1, -1, 0 };
        ok(serve(&b, 2, 0, 1, &e) == -us[i], "%s reads as ours: %s", strerror(said[i]), e.text);
    }
    tear_down(&b);
}

static void mismatch(void)
{
    struct bed b;
    struct err e;

    if (!set_up(&b, 1, 0))
        return;
    serve(&b, 0, 0, 2, NULL);
    b.plan = (struct plan){ { .flip = true }, 0, 1, 0 };
    ok(serve(&b, 0, 0, 1, &e) == 1 && cache_stats(b.c).mismatches == 1, "one bit: read again");
    serve(&b, 0, 1, 1, NULL);
    b.plan = (struct plan){ { .flip = true }, 0, -1, 0 };
    ok(serve(&b, 0, 0, 1, &e) == -EBADMSG, "twice wrong: %s", e.text);
    b.plan.times = 0;
    ok(serve(&b, 0, 0, 2, &e) == 2 && cache_sane(b.c), "the next request is served");
    tear_down(&b);
}

static struct bed stuck;        /* what the kernel holds is never freed */

static void timeouts(void)
{
    struct bed b;
    struct err e;
    double t;

    if (!set_up(&b, 2, 0.3))
        return;
    b.plan = (struct plan){ { .seconds = 0.8 }, 3, 1, 0 };
    ok(serve(&b, 0, 2, 2, &e) == -ETIME, "%s", e.text);
    ok(cache_sane(b.c) && serve(&b, 1, 0, 4, &e) == 4, "the other slot serves on");
    t = clock_now();
    while (cache_poll(b.c, 0.1) && clock_now() - t < 2)
        ;
    ok(serve(&b, 0, 2, 2, &e) == 2 && cache_sane(b.c), "once it has come, its slot too");
    tear_down(&b);
    if (!set_up(&stuck, 2, 0.3))
        return;
    stuck.plan = (struct plan){ { .seconds = 1e6 }, 3, 1, 0 };
    ok(serve(&stuck, 0, 2, 2, &e) == -ETIME, "never");
    t = clock_now();
    ok(cache_close(stuck.c, 0.1) == -ETIMEDOUT && clock_now() - t < 2, "close does not hang");
}

static void changed_files(void)
{
    struct bed b;
    struct err e;
    int fd;

    if (!set_up(&b, 1, 0))
        return;
    serve(&b, 0, 0, 2, NULL);
    unlink(path[1]);
    write_file(1);
    ok(serve(&b, 0, 0, 2, &e) == 2 && cache_stats(b.c).replaced == 1 && b.log.notices == 1,
       "%s", b.log.notice[0]);
    usleep(20000);      /* the clock of the file system is coarse */
    fd = open(path[0], O_WRONLY);
    ok(pwrite(fd, "x", 1, 0) == 1 && serve(&b, 1, 0, 1, &e) == -ESTALE, "%s", e.text);
    close(fd);
    ok(!truncate(path[0], FILE_BYTES / 2) && serve(&b, 2, 11, 1, &e) == -ESTALE, "%s", e.text);
    ok(cache_sane(b.c), "sane");
    tear_down(&b);
    write_file(0);
}

static void buffered(void)
{
    struct bed b;
    struct err e;

    if (!set_up_files(&b, 9, 0, true))
        return;
    ok(b.log.notices == 1 && serve(&b, 1, 0, 12, &e) == 12, "%s", b.log.notice[0]);
    ok(b.log.notices == 1, "once");
    tear_down(&b);
}

static void guesses(void)
{
    const uint16_t guess[] = { 3, 4, 5 };
    struct bed b;
    struct err e;

    if (!set_up(&b, 4, 0))
        return;
    cache_prefetch(b.c, 0, guess, 3);
    while (cache_poll(b.c, 1))
        ;
    ok(cache_stats(b.c).guesses == 3 && cache_has(b.c, 0, 4), "guessed into free slots");
    ok(serve(&b, 0, 3, 4, &e) == 4 && cache_stats(b.c).hits == 3, "and right");
    cache_prefetch(b.c, 1, guess, 3);
    ok(!cache_poll(b.c, 1) && !cache_stats(b.c).evictions, "nothing used goes for a guess");
    for (int i = 0; i < 200; i++)
        popularity_note(&b.popularity, 1, guess, 1);
    cache_prefetch(b.c, 1, guess, 3);
    while (cache_poll(b.c, 1))
        ;
    ok(cache_has(b.c, 1, 3) && cache_stats(b.c).evictions == 1, "but for a better one");
    ok(serve(&b, 1, 8, 2, &e) == 2, "room");
    b.plan = (struct plan){ { .seconds = 0.1 }, -1, 6, 0 };
    for (int i = 0; i < 200; i++)
        popularity_note(&b.popularity, 2, guess, 3);
    cache_prefetch(b.c, 2, guess, 3);
    ok(serve(&b, 2, 3, 3, &e) == 3 && cache_stats(b.c).waits == 3, "wanted while on its way");
    ok(cache_sane(b.c), "sane");
    tear_down(&b);
}

static void warming(void)
{
    const uint16_t hot[] = { 11, 7 };
    struct bed b;
    struct err e;

    if (!set_up(&b, 6, 0))
        return;
    for (int l = 0; l < LAYERS; l++)
        popularity_note(&b.popularity, l, hot, 2);
    cache_elsewhere(b.c, 2, 11, true);
    cache_warm(b.c);
    ok(serve(&b, 1, 0, 1, &e) == 1, "a request goes before");
    while (cache_poll(b.c, 1))
        ;
    ok(cache_has(b.c, 0, 11) && cache_has(b.c, 0, 7) && cache_has(b.c, 2, 7) &&
       !cache_has(b.c, 2, 11), "then the popular ones, but for those in VRAM");
    ok(cache_stats(b.c).full == 6 && cache_stats(b.c).evictions == 0 && cache_sane(b.c),
       "to the last free slot");
    tear_down(&b);
}

static void tiers(void)
{
    struct ticket t = want(0, 0, 1);
    struct resident x;
    struct bed b;
    struct err e;

    if (!set_up(&b, 4, 0))
        return;
    serve(&b, 0, 0, 2, NULL);
    cache_request(b.c, &t);
    ok(cache_next(b.c, &t, &x, &e) == 1, "in use");
    cache_elsewhere(b.c, 0, 0, true);
    cache_elsewhere(b.c, 0, 1, true);
    ok(cache_has(b.c, 0, 0) && !cache_has(b.c, 0, 1), "promoted: free, unless in use");
    cache_finish(b.c, &t);
    ok(!cache_has(b.c, 0, 0) && cache_stats(b.c).full == 0, "then free too");
    for (int bad = 1; bad >= 0; bad--) {
        ok(!cache_adopt(b.c, 0, 1, &x) && cache_sane(b.c), "a slot for the demoted one");
        for (int i = 0; i < PARTS; i++) {
            struct extent_part p = part_of(1, i);

            for (uint64_t k = 0; k < p.bytes; k++)
                x.slot[b.extents[1].part_offset[i] + k] =
                    (uint8_t)(byte_at(p.shard, p.offset + k) + (bad && k == 5));
        }
        ok(cache_adopted(b.c, &x, &e) == (bad ? -EBADMSG : 0), bad ? "%s" : "right", e.text);
    }
    ok(cache_adopt(b.c, 0, 1, &x) == -EEXIST, "not twice");
    ok(serve(&b, 0, 1, 1, &e) == 1 && cache_stats(b.c).reads == 2, "served without a read");
    ok(cache_sane(b.c), "sane");
    tear_down(&b);
}

/* What moves to VRAM is read behind everything else, and what comes back from there may be
 * wanted before it is whole. */
static void moving(void)
{
    struct ticket t = want(1, 3, 1);
    struct resident x;
    struct bed b;
    struct err e;
    int rc, asked = 0;

    if (!set_up(&b, 2, 0))
        return;
    b.plan = (struct plan){ { .seconds = 0.05 }, -1, 2, 0 };
    t.patient = t.idle = true;
    cache_request(b.c, &t);
    while (!(rc = cache_next(b.c, &t, &x, &e) + EAGAIN)) {
        asked++;
        cache_poll(b.c, 0.01);
    }
    ok(rc == 1 + EAGAIN && asked, "a patient ticket does not block: asked %d times", asked);
    ok(serve(&b, 0, 0, 2, &e) == 2 && cache_has(b.c, 1, 3), "and pins what has come");
    cache_elsewhere(b.c, 1, 3, true);
    cache_finish(b.c, &t);
    ok(!cache_has(b.c, 1, 3) && !cache_adopt(b.c, 1, 3, &x), "on its way back");
    ok(serve(&b, 1, 3, 1, &e) == 1 && cache_sane(b.c), "wanted meanwhile: read from the drive");
    ok(!cache_adopted(b.c, &x, &e) && cache_sane(b.c) && cache_stats(b.c).mismatches == 0,
       "whatever the slot holds, it is given up");
    cache_finish(b.c, &t);
    cache_warm(b.c);
    while (cache_poll(b.c, 1))
        ;
    ok(cache_stats(b.c).full == 2, "two slots, both full");
    for (int l = 0; l < LAYERS; l++)
        for (int id = 0; id < EXPERTS; id++)
            cache_elsewhere(b.c, l, id, cache_has(b.c, l, id));
    while (cache_poll(b.c, 1))
        ;
    ok(cache_stats(b.c).full == 2 && cache_sane(b.c), "and full again when they have moved");
    tear_down(&b);
}

/* Several tickets at once, in any order of calls, against what the rules promise: right bytes
 * while pinned, every expert exactly once, residents found resident. */
struct player {
    struct ticket t;
    struct resident held[EXPERTS];
    int holds, seen;
    uint32_t mask;
};

static int play(struct bed *b, struct player *p)
{
    int bad = 0, rc;
    struct resident x;

    if (!p->t.count && !p->t.left && !p->holds) {
        int n = 1 + (int)(random() % 8);

        p->t = want((int)(random() % LAYERS), (int)(random() % (EXPERTS - n + 1)), n);
        p->seen = 0;
        p->mask = 0;
        popularity_note(&b->popularity, p->t.layer, p->t.expert, n);
        cache_request(b->c, &p->t);
        return 0;
    }
    if (p->holds && random() % 2) {
        bad += !right(b, &p->held[--p->holds]);
        cache_release(b->c, &p->t, p->held[p->holds].index);
        return bad;
    }
    rc = cache_next(b->c, &p->t, &x, NULL);
    if (rc == 1) {
        bad += !right(b, &x) || p->mask >> x.id & 1;
        bad += !cache_has(b->c, x.layer, x.id);
        p->mask |= 1u << x.id;
        p->seen++;
        p->held[p->holds++] = x;
    } else if (rc == 0 || random() % 4 == 0) {
        bad += rc == 0 && p->seen != p->t.count;
        for (int i = 0; i < p->holds; i++)
            bad += !right(b, &p->held[i]);
        cache_finish(b->c, &p->t);
        p->holds = 0;
    } else {
        bad += rc != -EBUSY;
    }
    return bad;
}

static void at_random(unsigned seed, int slots)
{
    struct player player[3];
    struct bed b;
    int bad = 0, insane = 0;

    if (!set_up(&b, slots, 0))
        return;
    memset(player, 0, sizeof(player));
    srandom(seed);
    for (int i = 0; i < 1500; i++) {
        b.plan = (struct plan){ { 0 }, -1, 1, 0 };
        if (random() % 4 == 0)
            b.plan.fault.at_most = (uint32_t)(1 + random() % 9000);
        else if (random() % 8 == 0)
            b.plan.fault.seconds = 0.0005;
        if (random() % 16 == 0) {
            uint16_t guess[] = { (uint16_t)(random() % 6), (uint16_t)(6 + random() % 6) };

            cache_prefetch(b.c, (int)(random() % LAYERS), guess, 2);
        }
        bad += play(&b, &player[random() % 3]);
        insane += !cache_sane(b.c);
    }
    ok(!bad && !insane, "seed %u, %d slots: %d wrong, %d insane; %ju hits, %ju misses", seed,
       slots, bad, insane, (uintmax_t)cache_stats(b.c).hits, (uintmax_t)cache_stats(b.c).misses);
    for (int i = 0; i < 3; i++)
        cache_finish(b.c, &player[i].t);
    tear_down(&b);
}

int main(void)
{
    write_file(0);
    write_file(1);
    any_slot_count();
    pins();
    arrival();
    errors();
    mismatch();
    timeouts();
    changed_files();
    buffered();
    guesses();
    warming();
    tiers();
    moving();
    at_random(1, 2);
    at_random(2, 5);
    at_random(3, 9);
    at_random(4, 17);
    at_random(5, 40);
    unlink(path[0]);
    unlink(path[1]);
    return done();
}
