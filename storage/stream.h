#ifndef LAGUNA_STREAM_H
#define LAGUNA_STREAM_H

#include "storage/source.h"

/* Large reads from files into memory that the caller owns, a few at a time.  One thread owns
 * a stream and makes every call.  Knows nothing of experts; retries what may pass, and says
 * why where it does not. */

struct stream;

/* One read.  The caller owns it and its buffer, and may touch neither from stream_submit()
 * until stream_reap() hands it back: until then the kernel may write into the buffer,
 * whatever was cancelled.  offset, bytes and into are multiples of 4096. */
struct read {
    struct source *from;
    uint64_t offset;
    uint32_t bytes, need;   /* ask for `bytes`; fewer are no fault once `need` have come */
    void *into;
    void *owner;            /* the caller's; not looked at here */
    bool speculative;       /* may wait until no other read does */

    /* Set when handed back: 0, -ENODATA (the file ends before `need`), -ECANCELED, -EIO
     * (after all retries, where bad_offset is the page that cannot be read, or because the
     * backend has failed), or another errno of the system. */
    int status;
    uint64_t bad_offset;

    /* Private. */
    struct read *next;
    uint32_t done, step;
    int tries, stalls;
    bool cancelled;
    double due;
};

/* What a test makes of one operation; all zero lets it pass. */
struct stream_fault {
    int result;             /* negative errno in place of what the system answers */
    uint32_t at_most;       /* ask for no more than this: a short read */
    double seconds;         /* hold the answer back */
    bool twice;             /* answer a second time, as a broken kernel would */
    bool flip;              /* one bit of what has arrived is wrong */
    int broken;             /* the backend's next answer is this negative errno, its last */
};

enum stream_backend { STREAM_AUTO, STREAM_URING, STREAM_PREADV };

enum { STREAM_DEPTH = 4, STREAM_GUESSES = 2, STREAM_DEPTH_MAX = 64 };

struct stream_config {
    enum stream_backend backend;    /* AUTO: io_uring, or threads where it is refused */
    int depth;              /* operations in flight; 0: STREAM_DEPTH */
    int guesses;            /* of them speculative; 0: STREAM_GUESSES */
    double slow_seconds;    /* one warning for a read that takes longer; 0: 1 s */
    struct log *log;

    /* Tests only. */
    int refuse;             /* io_uring's setup answers this errno */
    void (*fault)(void *arg, const struct read *r, uint64_t offset, uint32_t bytes,
                  struct stream_fault *f);
    void *fault_arg;
};

struct stream_stats {
    uint64_t reads, bytes;          /* handed back with status 0 */
    uint64_t retries, slow, failed;
    uint64_t strays;                /* answers to no question: ignored */
};

/* -ENOTSUP where STREAM_URING was asked for and is refused; -EAGAIN: no thread. */
int  stream_open(struct stream **out, const struct stream_config *c, struct err *e);

/* Waits at most `seconds` for what is in flight.  -ETIMEDOUT: the kernel still holds
 * buffers; the stream is leaked, and neither they nor their reads may ever be freed. */
int  stream_close(struct stream *s, double seconds);

/* "io_uring" or "preadv". */
const char *stream_name(const struct stream *s);

/* These bytes, at most 1 GiB and mapped for the life of the stream, will be read into often:
 * pin them for the device now.  A refusal (RLIMIT_MEMLOCK) is one warning and costs a third
 * more CPU time a read; nothing else depends on it. */
void stream_region(struct stream *s, void *base, size_t bytes);

/* Never blocks and never fails.  Reads begin at the next stream_reap(). */
void stream_submit(struct stream *s, struct read *r);

/* A speculative read turned out to be needed. */
void stream_hurry(struct stream *s, struct read *r);

/* Nobody needs r any more: it is not begun or tried again, and comes back -ECANCELED or with
 * what it had read, whenever the kernel lets go of it. */
void stream_cancel(struct stream *s, struct read *r);

/* A finished read, in order of completion; NULL where none came within `seconds` (0: does
 * not block; INFINITY) or none is left. */
struct read *stream_reap(struct stream *s, double seconds);

/* Reads submitted and not handed back. */
int  stream_pending(const struct stream *s);
struct stream_stats stream_stats(const struct stream *s);

#endif
