#include "config.h"

#include "storage/stream.h"

#include "storage/extents.h"
#include "storage/stream_ops.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdlib.h>
#include <time.h>

/* Order, retries and fallbacks of reads, over one of two backends.  A read is in exactly one
 * place: a queue, a flight (the system has it), or the list of the finished. */

struct list {
    struct read *head, **tail;
};

/* One operation that the system has.  Its id carries a generation, so that an answer to an
 * earlier occupant of the same place is recognised. */
struct flight {
    struct read *r;
    uint32_t generation, at, asked;
    bool direct, guess, answered, slow;
    int result;
    double begun, ripe;         /* ripe: when a test lets an answer through */
    struct stream_fault fault;
};

struct stream {
    const struct stream_ops *ops;
    void *backend;
    struct stream_config config;
    struct list urgent, guesses, delayed, finished;
    struct flight flight[STREAM_DEPTH_MAX];
    int flying, flying_guesses, pending;
    int broken;                 /* the backend's negative errno: nothing begins any more */
    int break_with;             /* a test's */
    bool said_buffered, said_slow, said_retry, said_region;
    struct stream_stats stats;
};

static const double backoff[] = { 0.001, 0.01, 0.1 };

enum { RETRIES = sizeof(backoff) / sizeof(*backoff), STALLS = 3, COARSE = 65536 };

static void list_init(struct list *l)
{
    l->head = NULL;
    l->tail = &l->head;
}

static void list_add(struct list *l, struct read *r)
{
    r->next = NULL;
    *l->tail = r;
    l->tail = &r->next;
}

static struct read *list_take(struct list *l)
{
    struct read *r = l->head;

    if (!r)
        return NULL;
    l->head = r->next;
    if (!l->head)
        l->tail = &l->head;
    return r;
}

static bool list_remove(struct list *l, struct read *r)
{
    struct read **at = &l->head;

    while (*at && *at != r)
        at = &(*at)->next;
    if (!*at)
        return false;
    *at = r->next;
    if (!*at)
        l->tail = at;
    return true;
}

static int open_backend(struct stream *s, struct err *e)
{
    const struct stream_config *c = &s->config;
    int rc = -ENOTSUP;

    s->ops = &stream_uring;
    if (c->backend != STREAM_PREADV)
        rc = s->ops->open(&s->backend, c->depth, c->refuse, c->log, e);
    if (rc && c->backend == STREAM_URING)
        return -ENOTSUP;
    if (rc && c->backend == STREAM_AUTO && e)
        warn(c->log, "%s; reading through %d threads", e->text, c->depth);
    if (!rc)
        return 0;
    s->ops = &stream_preadv;
    return s->ops->open(&s->backend, c->depth, 0, c->log, e);
}

int stream_open(struct stream **out, const struct stream_config *c, struct err *e)
{
    struct stream *s = calloc(1, sizeof(*s));
    struct err local;
    int rc;

    if (!s)
        return fail(e, -ENOMEM, "stream: out of memory");
    assert(c->depth >= 0 && c->depth <= STREAM_DEPTH_MAX && c->log);
    s->config = *c;
    if (!c->depth)
        s->config.depth = STREAM_DEPTH;
    if (!c->guesses)
        s->config.guesses = STREAM_GUESSES;
    if (!(c->slow_seconds > 0))
        s->config.slow_seconds = 1;
    list_init(&s->urgent);
    list_init(&s->guesses);
    list_init(&s->delayed);
    list_init(&s->finished);
    rc = open_backend(s, e ? e : &local);
    if (rc) {
        free(s);
        return rc;
    }
    *out = s;
    return 0;
}

const char *stream_name(const struct stream *s)
{
    return s->ops->name;
}

int stream_pending(const struct stream *s)
{
    return s->pending;
}

struct stream_stats stream_stats(const struct stream *s)
{
    return s->stats;
}

void stream_region(struct stream *s, void *base, size_t bytes)
{
    int rc = s->ops->region(s->backend, base, bytes);

    if (!rc || s->said_region)
        return;
    s->said_region = true;
    warn(s->config.log, "%zu bytes not registered for reading: %s%s", bytes, strerror(-rc),
         rc == -ENOMEM ? ", RLIMIT_MEMLOCK is too low (LimitMEMLOCK=infinity)" : "");
}

static void enqueue(struct stream *s, struct read *r)
{
    list_add(r->speculative ? &s->guesses : &s->urgent, r);
}

void stream_submit(struct stream *s, struct read *r)
{
    assert(r->offset % EXTENT_ALIGN == 0 && r->bytes % EXTENT_ALIGN == 0);
    assert((uintptr_t)r->into % EXTENT_ALIGN == 0 && r->need && r->need <= r->bytes);
    r->status = -EINPROGRESS;
    r->done = r->step = 0;
    r->tries = r->stalls = 0;
    r->cancelled = false;
    s->pending++;
    enqueue(s, r);
}

static void finish(struct stream *s, struct read *r, int status)
{
    r->status = status;
    if (!status) {
        s->stats.reads++;
        s->stats.bytes += r->done;
    } else if (status != -ECANCELED) {
        s->stats.failed++;
    }
    /* The pages are ours now; a second copy in the page cache would only displace others. */
    if (!r->from->direct)
        posix_fadvise(r->from->fd, (off_t)r->offset, r->bytes, POSIX_FADV_DONTNEED);
    list_add(&s->finished, r);
}

void stream_hurry(struct stream *s, struct read *r)
{
    if (!r->speculative)
        return;
    r->speculative = false;
    if (list_remove(&s->guesses, r))
        list_add(&s->urgent, r);
}

void stream_cancel(struct stream *s, struct read *r)
{
    r->cancelled = true;
    if (list_remove(&s->urgent, r) || list_remove(&s->guesses, r) ||
        list_remove(&s->delayed, r))
        finish(s, r, -ECANCELED);
}

static void begin(struct stream *s, struct read *r, double now)
{
    struct flight *f = s->flight;
    struct stream_op op = { .fd = source_fd(r->from) };

    while (f->r)
        f++;
    f->r = r;
    f->generation++;
    /* Direct reads go on at a page, even where the last one ended within it. */
    f->at = r->done / EXTENT_ALIGN * EXTENT_ALIGN;
    f->asked = r->bytes - f->at;
    if (r->step && f->asked > r->step)
        f->asked = r->step;
    f->direct = r->from->direct;
    f->guess = r->speculative;
    f->answered = f->slow = false;
    f->begun = f->ripe = now;
    memset(&f->fault, 0, sizeof(f->fault));
    if (s->config.fault) {
        s->config.fault(s->config.fault_arg, r, r->offset + f->at, f->asked, &f->fault);
        f->ripe += f->fault.seconds;
        if (f->fault.broken)
            s->break_with = f->fault.broken;
        if (f->fault.at_most && f->fault.at_most < f->asked)
            f->asked = (uint32_t)align_up(f->fault.at_most, EXTENT_ALIGN);
    }
    op.bytes = f->asked;
    op.offset = r->offset + f->at;
    op.into = (char *)r->into + f->at;
    op.id = (uint64_t)f->generation << 32 | (uint64_t)(f - s->flight);
    s->flying++;
    s->flying_guesses += f->guess;
    s->ops->start(s->backend, &op);
}

/* Urgent reads first; a guess only while no urgent read waits, and few of them, because each
 * delays an urgent read that comes next by its own duration. */
static void begin_some(struct stream *s)
{
    double now = clock_now();

    while (s->flying < s->config.depth && !s->broken) {
        struct read *r = list_take(&s->urgent);

        if (!r && s->flying_guesses < s->config.guesses)
            r = list_take(&s->guesses);
        if (!r)
            return;
        begin(s, r, now);
    }
}

static void again(struct stream *s, struct read *r, double seconds)
{
    s->stats.retries++;
    if (r->cancelled) {
        finish(s, r, -ECANCELED);
    } else if (seconds > 0) {
        r->due = clock_now() + seconds;
        list_add(&s->delayed, r);
    } else {
        enqueue(s, r);
    }
}

/* The drive says it cannot.  Three more tries; then in smaller pieces, which find the page
 * that is bad and sometimes read around a fault of the large request. */
static void retry_device(struct stream *s, struct read *r, uint32_t at, int rc)
{
    if (!s->said_retry) {
        s->said_retry = true;
        warn(s->config.log, "%s: read of %u bytes at %ju: %s; trying again", r->from->path,
             r->bytes - at, (uintmax_t)(r->offset + at), strerror(-rc));
    }
    if (r->tries < RETRIES) {
        again(s, r, backoff[r->tries++]);
    } else if (r->step != EXTENT_ALIGN) {
        r->step = r->step ? EXTENT_ALIGN : COARSE;
        again(s, r, 0);
    } else {
        r->bad_offset = r->offset + at;
        finish(s, r, rc);
    }
}

static void use_buffered(struct stream *s, struct read *r, int rc)
{
    r->from->direct = false;
    if (!s->said_buffered)
        warn(s->config.log, "%s: direct reads refused (%s); buffered reads are slower",
             r->from->path, strerror(-rc));
    s->said_buffered = true;
    again(s, r, 0);
}

static void failed(struct stream *s, const struct flight *f, int rc)
{
    struct read *r = f->r;

    switch (-rc) {
    case EAGAIN:
    case EINTR:
    case EBUSY:
    case ECANCELED:
        again(s, r, backoff[0]);
        break;
    case ENODATA:               /* a sector that is lost; a file's end is no error */
    case EREMOTEIO:
    case EILSEQ:
    case ENOLINK:
    case ETIMEDOUT:
        rc = -EIO;              /* the block layer's finer words for it */
        /* fall through */
    case EIO:
    case ENOMEM:
        retry_device(s, r, f->at, rc);
        break;
    case EINVAL:
    case EOPNOTSUPP:
        if (f->direct) {
            use_buffered(s, r, rc);
            break;
        }
        /* fall through */
    default:
        r->bad_offset = r->offset + f->at;
        finish(s, r, rc);
    }
}

static void arrived(struct stream *s, const struct flight *f, uint32_t bytes)
{
    struct read *r = f->r;
    uint32_t end = f->at + bytes;

    if (f->fault.flip && bytes)
        ((uint8_t *)r->into)[f->at + bytes / 2] ^= 4;
    /* Less than a page brings a direct read no further.  Three times in a row is the end of
     * a file that has been cut within the page. */
    r->stalls = bytes < EXTENT_ALIGN ? r->stalls + 1 : 0;
    if (end > r->done)
        r->done = end;
    if (r->done >= r->need)
        finish(s, r, 0);
    else if (!bytes || r->stalls > STALLS)
        finish(s, r, -ENODATA);
    else if (r->step)
        enqueue(s, r);
    else
        again(s, r, 0);
}

/* The system has let go of the buffer. */
static void land(struct stream *s, struct flight *f)
{
    struct flight copy = *f;
    int result = f->fault.result ? f->fault.result : f->result;

    f->r = NULL;
    s->flying--;
    s->flying_guesses -= f->guess;
    if (copy.fault.at_most && result > (int)copy.fault.at_most)
        result = (int)copy.fault.at_most;
    if (result < 0)
        failed(s, &copy, result);
    else
        arrived(s, &copy, (uint32_t)result);
}

static void answer(struct stream *s, const struct stream_done *d)
{
    uint32_t place = (uint32_t)d->id;
    struct flight *f = &s->flight[place % STREAM_DEPTH_MAX];

    if (place >= STREAM_DEPTH_MAX || !f->r || f->answered || f->generation != d->id >> 32) {
        s->stats.strays++;
        return;
    }
    f->answered = true;
    f->result = d->result;
    if (!(f->fault.seconds > 0))
        land(s, f);
}

static void collect(struct stream *s, double seconds)
{
    struct stream_done done[STREAM_DEPTH_MAX];
    int n = s->broken ? 0 : s->break_with ? s->break_with
          : s->ops->wait(s->backend, done, STREAM_DEPTH_MAX, seconds);

    if (n < 0) {
        s->broken = n;
        warn(s->config.log, "%s: %s; no reads any more", s->ops->name, strerror(-n));
    }
    for (int i = 0; i < n; i++) {
        bool twice = s->flight[(uint32_t)done[i].id % STREAM_DEPTH_MAX].fault.twice;

        answer(s, &done[i]);
        if (twice)
            answer(s, &done[i]);
    }
}

/* What waits for a time rather than for the system: retries, and answers held by a test.
 * Also names the first slow read. */
static void ripen(struct stream *s)
{
    double now = clock_now();
    struct read *r = s->delayed.head;

    while (r) {
        struct read *next = r->next;

        if (r->due <= now && list_remove(&s->delayed, r))
            enqueue(s, r);
        r = next;
    }
    for (int i = 0; i < STREAM_DEPTH_MAX; i++) {
        struct flight *f = &s->flight[i];

        if (!f->r)
            continue;
        if (!f->slow && now - f->begun > s->config.slow_seconds) {
            f->slow = true;
            s->stats.slow++;
            if (!s->said_slow)
                warn(s->config.log, "%s: a read at %ju takes more than %g s", f->r->from->path,
                     (uintmax_t)f->r->offset, s->config.slow_seconds);
            s->said_slow = true;
        }
        if (f->answered && f->ripe <= now)
            land(s, f);
    }
}

/* What has not begun.  What has begun stays with the system, which may still write: whoever
 * waits for it is told so after a time. */
static void give_up_queued(struct stream *s)
{
    struct list *queue[] = { &s->urgent, &s->guesses, &s->delayed };

    for (int i = 0; i < 3; i++)
        for (struct read *r = list_take(queue[i]); r; r = list_take(queue[i])) {
            r->bad_offset = r->offset + r->done;
            finish(s, r, -EIO);
        }
}

/* How long the system may be waited for before something else is due. */
static double patience(const struct stream *s, double until)
{
    double now = clock_now(), next = now + s->config.slow_seconds;

    if (until < next)
        next = until;
    for (const struct read *r = s->delayed.head; r; r = r->next)
        if (r->due < next)
            next = r->due;
    for (int i = 0; i < STREAM_DEPTH_MAX; i++)
        if (s->flight[i].r && s->flight[i].answered && s->flight[i].ripe < next)
            next = s->flight[i].ripe;
    return next > now ? next - now : 0;
}

static bool system_has_some(const struct stream *s)
{
    for (int i = 0; i < STREAM_DEPTH_MAX; i++)
        if (s->flight[i].r && !s->flight[i].answered)
            return !s->broken;
    return false;
}

static void pass_time(double seconds)
{
    struct timespec t = { .tv_sec = (time_t)seconds };

    t.tv_nsec = (long)((seconds - (double)t.tv_sec) * 1e9);
    nanosleep(&t, NULL);
}

struct read *stream_reap(struct stream *s, double seconds)
{
    double until = seconds > 0 ? clock_now() + seconds : 0;

    for (;;) {
        struct read *r;
        double wait;

        ripen(s);
        if (s->broken)
            give_up_queued(s);
        begin_some(s);
        collect(s, 0);
        r = list_take(&s->finished);
        if (r) {
            /* What has just landed made room: the drive need not wait for the caller. */
            begin_some(s);
            collect(s, 0);
            s->pending--;
            return r;
        }
        if (!s->pending || !(seconds > 0) || clock_now() >= until)
            return NULL;
        begin_some(s);      /* a short read may just have come back for its rest */
        wait = patience(s, until);
        if (system_has_some(s))
            collect(s, wait);
        else
            pass_time(wait);
    }
}

int stream_close(struct stream *s, double seconds)
{
    double until = clock_now() + seconds;

    if (!s)
        return 0;
    for (int i = 0; i < STREAM_DEPTH_MAX; i++)
        if (s->flight[i].r)
            s->flight[i].r->cancelled = true;
    give_up_queued(s);
    while (s->flying && !s->broken && clock_now() < until) {
        ripen(s);
        collect(s, patience(s, until));
        if (!system_has_some(s) && s->flying && !s->broken)
            pass_time(patience(s, until));
    }
    if (s->flying)
        return -ETIMEDOUT;
    s->ops->close(s->backend);
    free(s);
    return 0;
}
