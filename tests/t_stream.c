#include "config.h"

#include "storage/extents.h"
#include "storage/stream.h"
#include "tests/tap.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdlib.h>
#include <unistd.h>

/* Both backends over a real file, with faults through the config's hook. */

enum { PAGE = EXTENT_ALIGN, PAGES = 700, FILE_BYTES = PAGES * PAGE + 123, N = 40 };

static const char path[] = "t_stream.tmp";

static uint8_t byte_at(uint64_t offset)
{
    return (uint8_t)(offset * 2654435761u >> 13);
}

static void write_file(void)
{
    uint8_t *b = malloc(FILE_BYTES);
    int fd = open(path, O_RDWR | O_CREAT | O_TRUNC, 0600);

    for (int i = 0; i < FILE_BYTES; i++)
        b[i] = byte_at((uint64_t)i);
    if (fd < 0 || write(fd, b, FILE_BYTES) != FILE_BYTES)
        printf("Bail out! cannot write %s\n", path);
    fsync(fd);
    close(fd);
    free(b);
}

/* The plan of faults of one test; `hits` counts the operations it met. */
struct plan {
    struct stream_fault fault;
    int times;                  /* so often, then never again; -1: for ever */
    uint64_t bad_page;          /* only operations that cover it; UINT64_MAX: all */
    int hits, operations, guesses_seen;
    bool only_direct;
};

static void inject(void *arg, const struct read *r, uint64_t offset, uint32_t bytes,
                   struct stream_fault *f)
{
    struct plan *p = arg;

    p->operations++;
    p->guesses_seen += r->speculative;
    if (p->bad_page != UINT64_MAX && (p->bad_page < offset || p->bad_page >= offset + bytes))
        return;
    if (p->times == p->hits || (p->only_direct && !r->from->direct))
        return;
    p->hits++;
    *f = p->fault;
}

struct bed {
    struct log log;
    struct source source;
    struct plan plan;
    struct stream *s;
    struct read read[N];
    uint8_t *memory;            /* [N][64 pages] */
};

enum { ROOM = 64 * PAGE };

static bool set_up(struct bed *b, enum stream_backend backend, int depth, double slow)
{
    struct stream_config c = { .backend = backend, .depth = depth, .slow_seconds = slow,
                               .log = &b->log, .fault = inject, .fault_arg = &b->plan };
    struct err e;

    memset(b, 0, sizeof(*b));
    b->log.level = LOG_QUIET;
    b->plan.bad_page = UINT64_MAX;
    b->memory = aligned_alloc(PAGE, (size_t)N * ROOM);
    memset(b->memory, 0xee, (size_t)N * ROOM);
    if (!source_open(&b->source, path, false, &e) && !stream_open(&b->s, &c, &e))
        return true;
    printf("Bail out! %s\n", e.text);
    return false;
}

static void tear_down(struct bed *b)
{
    ok(!stream_close(b->s, 10), "closed");
    source_close(&b->source);
    free(b->memory);
}

static struct read *submit(struct bed *b, int i, uint64_t page, uint32_t pages, bool guess)
{
    struct read *r = &b->read[i];
    uint64_t left = FILE_BYTES - page * PAGE;

    *r = (struct read){ .from = &b->source, .offset = page * PAGE, .bytes = pages * PAGE,
                        .into = b->memory + (size_t)i * ROOM, .speculative = guess };
    r->need = left < r->bytes ? (uint32_t)left : r->bytes;
    stream_submit(b->s, r);
    return r;
}

static bool right(const struct read *r)
{
    const uint8_t *p = r->into;

    if (r->status)
        return false;
    for (uint32_t i = 0; i < r->need; i++)
        if (p[i] != byte_at(r->offset + i))
            return false;
    return true;
}

/* N reads; how many came back and were right. */
static int read_all(struct bed *b)
{
    int good = 0;

    for (int i = 0; i < N; i++)
        submit(b, i, (uint64_t)(i * 97 % (PAGES - 63)), (uint32_t)(i % 64 + 1), i % 5 == 0);
    for (int i = 0; i < N; i++) {
        struct read *r = stream_reap(b->s, 10);

        good += r && right(r);
    }
    return good + (stream_reap(b->s, INFINITY) != NULL);
}

static void plain(enum stream_backend backend)
{
    struct bed b;

    if (!set_up(&b, backend, 0, 100))
        return;
    ok(read_all(&b) == N, "%s: %d reads, %s", stream_name(b.s), N,
       b.source.direct ? "direct" : "buffered");
    ok(stream_stats(b.s).reads == N && !stream_pending(b.s) && !b.log.notices, "nothing odd");
    submit(&b, 0, PAGES - 1, 2, false);
    ok(right(stream_reap(b.s, 10)), "the last page of the file, partly behind its end");
    stream_region(b.s, b.memory, (size_t)N * ROOM);
    ok(read_all(&b) == N, "the same into registered memory");
    tear_down(&b);
    if (!set_up(&b, backend, 1, 100))
        return;
    for (int k = 0, good = 0; k < 8; k++) {
        good += read_all(&b);
        if (k == 7)
            ok(good == 8 * N, "%d reads through a ring of one", 8 * N);
    }
    tear_down(&b);
}

static void passing_faults(enum stream_backend backend)
{
    static const struct {
        const char *what;
        struct stream_fault fault;
        int times;
    } row[] = {
        { "short by 100 bytes, twice", { .at_most = 100 }, 2 },
        { "short in the middle of a page", { .at_most = 5000 }, -1 },
        { "a page at a time", { .at_most = PAGE }, 300 },
        { "EAGAIN", { .result = -EAGAIN }, 20 },
        { "EINTR", { .result = -EINTR }, 20 },
        { "ECANCELED", { .result = -ECANCELED }, 3 },
        { "EIO once", { .result = -EIO }, 1 },
        { "EIO twice", { .result = -EIO }, 2 },
        { "ENOMEM twice", { .result = -ENOMEM }, 2 },
        { "each answer twice", { .twice = true }, -1 },
        { "30 ms late", { .seconds = 0.03 }, 6 },
    };

    for (size_t i = 0; i < sizeof(row) / sizeof(*row); i++) {
        struct bed b;

        if (!set_up(&b, backend, 0, row[i].fault.seconds > 0 ? 0.01 : 100))
            return;
        b.plan.fault = row[i].fault;
        b.plan.times = row[i].times;
        ok(read_all(&b) == N, "%s: %s (%d times)", stream_name(b.s), row[i].what, b.plan.hits);
        ok(stream_stats(b.s).strays == (row[i].fault.twice ? (uint64_t)b.plan.hits : 0) &&
           b.log.notices == (row[i].fault.result == -EIO || row[i].fault.result == -ENOMEM ||
                             row[i].fault.seconds > 0), "strays ignored, at most one warning");
        tear_down(&b);
    }
}

static void lasting_faults(enum stream_backend backend)
{
    struct bed b;
    struct read *r;

    if (!set_up(&b, backend, 0, 100))
        return;
    b.plan = (struct plan){ { .result = -EIO }, -1, 77 * PAGE, 0, 0, 0, false };
    submit(&b, 0, 40, 60, false);
    submit(&b, 1, 200, 60, false);
    r = stream_reap(b.s, 10);
    ok(r == &b.read[1] && right(r), "another read is served meanwhile");
    r = stream_reap(b.s, 10);
    ok(r && r->status == -EIO && r->bad_offset == 77 * PAGE, "EIO for ever names the page");
    ok(stream_stats(b.s).failed == 1 && b.plan.hits < 10, "after %d tries", b.plan.hits);
    for (int i = 0; i < 5; i++) {
        static const int words[] = { ENODATA, EREMOTEIO, EILSEQ, ENOLINK, ETIMEDOUT };

        b.plan = (struct plan){ { .result = -words[i] }, -1, 44 * PAGE, 0, 0, 0, false };
        submit(&b, 0, 40, 8, false);
        r = stream_reap(b.s, 10);
        ok(r && r->status == -EIO && r->bad_offset == 44 * PAGE && b.plan.hits > 3,
           "%s is the drive's EIO, and is retried", strerror(words[i]));
    }
    b.plan = (struct plan){ { .result = -ENXIO }, 1, UINT64_MAX, 0, 0, 0, false };
    submit(&b, 0, 40, 4, false);
    r = stream_reap(b.s, 10);
    ok(r && r->status == -ENXIO && b.plan.hits == 1, "a device that is gone is not asked again");
    b.plan = (struct plan){ { .result = -EINVAL }, -1, UINT64_MAX, 0, 0, 0, true };
    ok(read_all(&b) == N && !b.source.direct, "O_DIRECT refused: buffered reads");
    ok(b.log.notices == 2 && strstr(b.log.notice[1], "buffered"), "one warning for it");
    b.plan = (struct plan){ { .result = -EAGAIN }, -1, UINT64_MAX, 0, 0, 0, false };
    r = submit(&b, 0, 0, 4, false);
    stream_reap(b.s, 0.02);
    stream_cancel(b.s, r);
    ok(stream_reap(b.s, 10) == r && (r->status == -ECANCELED), "cancelled between two tries");
    tear_down(&b);
}

static void truncated(enum stream_backend backend)
{
    struct bed b;
    struct read *r;
    struct err e;

    if (!set_up(&b, backend, 0, 100))
        return;
    ok(!source_check(&b.source, &e), "unchanged");
    if (truncate(path, 100 * PAGE + 9))
        printf("Bail out! truncate\n");
    submit(&b, 0, 90, 8, false);
    r = stream_reap(b.s, 10);
    ok(r && right(r), "before the cut");
    submit(&b, 0, 90, 20, false);
    r = stream_reap(b.s, 10);
    ok(r && r->status == -ENODATA, "across the cut");
    submit(&b, 0, 300, 20, false);
    r = stream_reap(b.s, 10);
    ok(r && r->status == -ENODATA, "behind the cut");
    ok(source_check(&b.source, &e) == -ESTALE, "noticed: %s", e.text);
    tear_down(&b);
    write_file();
    if (!set_up(&b, backend, 0, 100))
        return;
    unlink(path);
    write_file();
    submit(&b, 0, 90, 20, false);
    r = stream_reap(b.s, 10);
    ok(r && right(r) && !source_check(&b.source, &e) && b.source.replaced,
       "a path that names another file: the old one is read on");
    tear_down(&b);
}

static void priorities(enum stream_backend backend)
{
    struct bed b;
    struct read *r;
    int order[12], n = 0;

    if (!set_up(&b, backend, 1, 100))
        return;
    for (int i = 0; i < 12; i++)
        submit(&b, i, (uint64_t)i, 2, i < 6);
    stream_hurry(b.s, &b.read[3]);
    stream_cancel(b.s, &b.read[0]);
    ok(stream_reap(b.s, 10) == &b.read[0] && b.read[0].status == -ECANCELED, "cancelled at once");
    while ((r = stream_reap(b.s, 10)))
        order[n++] = (int)(r - b.read);
    ok(n == 11 && order[0] == 6 && order[6] == 3 && order[7] == 1 && order[10] == 5,
       "%s: urgent first, then the hurried one, then guesses", stream_name(b.s));
    tear_down(&b);
    if (!set_up(&b, backend, 4, 100))
        return;
    b.plan.fault.seconds = 0.3;
    b.plan.times = 4;
    for (int i = 0; i < 6; i++)
        submit(&b, i, (uint64_t)i, 2, true);
    ok(!stream_reap(b.s, 0.01) && b.plan.guesses_seen == STREAM_GUESSES,
       "at most two guesses in flight");
    submit(&b, 6, 6, 2, false);
    submit(&b, 7, 7, 2, false);
    ok(!stream_reap(b.s, 0) && b.plan.operations == 4, "urgent reads beside them");
    while (stream_reap(b.s, 10))
        ;
    b.plan = (struct plan){ { .seconds = 0.5 }, 1, UINT64_MAX, 0, 0, 0, false };
    submit(&b, 0, 0, 8, false);
    submit(&b, 1, 8, 8, false);
    ok(stream_reap(b.s, 10) == &b.read[1], "handed over in order of arrival");
    ok(!stream_reap(b.s, 0), "not waiting is not waiting");
    ok(stream_reap(b.s, 10) == &b.read[0] && right(&b.read[0]), "the late one too");
    tear_down(&b);
}

static void refusals(void)
{
    static const int refuse[] = { ENOSYS, EPERM, ENOMEM };

    for (int i = 0; i < 3; i++) {
        struct log log = { .level = LOG_QUIET };
        struct stream_config c = { .refuse = refuse[i], .log = &log };
        struct stream *s = NULL;
        struct err e;

        ok(!stream_open(&s, &c, &e) && !strcmp(stream_name(s), "preadv") && log.notices == 1,
           "%s", log.notice[0]);
        stream_close(s, 1);
        c.backend = STREAM_URING;
        ok(stream_open(&s, &c, &e) == -ENOTSUP, "asked for by name: an error");
    }
}

static struct bed stuck;        /* what the kernel holds is never freed */

static void never_answered(enum stream_backend backend)
{
    double t;

    if (!set_up(&stuck, backend, 0, 0.02))
        return;
    stuck.plan.fault.seconds = 1e6;
    stuck.plan.times = 1;
    submit(&stuck, 0, 0, 1, false);
    submit(&stuck, 1, 1, 1, false);
    ok(stream_reap(stuck.s, 10) == &stuck.read[1], "one never answers, another does");
    ok(!stream_reap(stuck.s, 0.05) && stream_pending(stuck.s) == 1, "it stays pending");
    ok(stuck.log.notices == 1 && strstr(stuck.log.notice[0], "takes more than"), "and is named");
    t = clock_now();
    ok(stream_close(stuck.s, 0.1) == -ETIMEDOUT && clock_now() - t < 2, "close does not hang");
}

static struct bed broken;       /* the same */

static void broken_backend(enum stream_backend backend)
{
    struct read *r;
    double t;

    if (!set_up(&broken, backend, 1, 100))
        return;
    submit(&broken, 0, 0, 1, false);
    ok(stream_reap(broken.s, 10) == &broken.read[0] && right(&broken.read[0]), "a sound one");
    broken.plan = (struct plan){ { .broken = -EBADR }, 1, UINT64_MAX, 0, 0, 0, false };
    for (int i = 0; i < 3; i++)
        submit(&broken, i, (uint64_t)i + 7, 1, i == 2);
    for (int i = 1; i < 3; i++) {
        r = stream_reap(broken.s, 10);
        ok(r == &broken.read[i] && r->status == -EIO && r->bad_offset == r->offset,
           "%s is broken: read %d fails as the drive's", stream_name(broken.s), i);
    }
    ok(!stream_reap(broken.s, 0.05) && stream_pending(broken.s) == 1, "what it has stays there");
    submit(&broken, 1, 3, 1, false);
    r = stream_reap(broken.s, 10);
    ok(r == &broken.read[1] && r->status == -EIO && broken.plan.operations == 1,
       "nothing begins any more");
    ok(broken.log.notices == 1 && strstr(broken.log.notice[0], "no reads any more"), "%s",
       broken.log.notice[0]);
    t = clock_now();
    ok(stream_close(broken.s, 10) == -ETIMEDOUT && clock_now() - t < 2, "close does not hang");
}

int main(void)
{
    static const enum stream_backend backend[] = { STREAM_AUTO, STREAM_PREADV };

    write_file();
    for (int i = 0; i < 2; i++) {
        plain(backend[i]);
        passing_faults(backend[i]);
        lasting_faults(backend[i]);
        truncated(backend[i]);
        priorities(backend[i]);
    }
    refusals();
    never_answered(STREAM_AUTO);
    broken_backend(STREAM_AUTO);
    unlink(path);
    return done();
}
