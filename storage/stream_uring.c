#include "config.h"

#include "storage/stream_ops.h"

#include <assert.h>
#include <errno.h>
#include <liburing.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

/* Whole-extent reads through one io_uring.  No links, no timeouts in the ring, no
 * cancellation: an operation ends when its CQE comes.  Fixed files are left out (they measure
 * no gain at these sizes); fixed buffers save a third of the CPU time. */

enum { REGIONS = 256 };

struct uring {
    struct io_uring ring;
    bool disabled;              /* until the thread that will own it first waits */
    bool table;                 /* a table of regions is registered */
    int regions;
    struct iovec region[REGIONS];
};

/* From the cheapest kind of ring to the plainest.  R_DISABLED: the thread that opens the
 * stream need not be the one that reads, which SINGLE_ISSUER would otherwise demand. */
static const unsigned ladder[] = {
    IORING_SETUP_R_DISABLED | IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_DEFER_TASKRUN,
    IORING_SETUP_R_DISABLED | IORING_SETUP_SINGLE_ISSUER,
    0,
};

static int setup(struct uring *u, int depth)
{
    int rc = -EINVAL;

    for (size_t i = 0; i < sizeof(ladder) / sizeof(*ladder) && rc == -EINVAL; i++) {
        rc = io_uring_queue_init((unsigned)depth, &u->ring, ladder[i]);
        u->disabled = ladder[i] & IORING_SETUP_R_DISABLED;
    }
    return rc;
}

static const char *reason(int rc)
{
    switch (-rc) {
    case ENOSYS:
        return "the kernel or a seccomp filter does not have it";
    case EPERM:
        return "not permitted: kernel.io_uring_disabled, or a container's seccomp profile";
    case ENOMEM:
        return "no memory for its rings: RLIMIT_MEMLOCK (LimitMEMLOCK=infinity)";
    default:
        return strerror(-rc);
    }
}

static int uring_open(void **out, int depth, int refuse, struct log *l, struct err *e)
{
    struct uring *u = calloc(1, sizeof(*u));
    int rc;

    (void)l;
    if (!u)
        return fail(e, -ENOMEM, "io_uring: out of memory");
    rc = refuse ? -refuse : setup(u, depth);
    if (rc < 0) {
        free(u);
        return fail(e, rc, "io_uring: %s", reason(rc));
    }
    *out = u;
    return 0;
}

static void uring_close(void *b)
{
    struct uring *u = b;

    io_uring_queue_exit(&u->ring);
    free(u);
}

static int uring_region(void *b, void *base, size_t bytes)
{
    struct uring *u = b;
    __u64 tag = 0;
    int rc;

    if (u->regions == REGIONS)
        return -ENOSPC;
    if (!u->table) {
        rc = io_uring_register_buffers_sparse(&u->ring, REGIONS);
        if (rc < 0)
            return rc;
        u->table = true;
    }
    u->region[u->regions] = (struct iovec){ base, bytes };
    rc = io_uring_register_buffers_update_tag(&u->ring, (unsigned)u->regions,
                                              &u->region[u->regions], &tag, 1);
    if (rc < 0)
        return rc;
    u->regions++;
    return 0;
}

/* The registered region that holds the whole operation, or -1. */
static int find_region(const struct uring *u, const struct stream_op *op)
{
    const char *at = op->into;

    for (int i = 0; i < u->regions; i++) {
        const char *base = u->region[i].iov_base;

        if (at >= base && at + op->bytes <= base + u->region[i].iov_len)
            return i;
    }
    return -1;
}

static void uring_start(void *b, const struct stream_op *op)
{
    struct uring *u = b;
    struct io_uring_sqe *q = io_uring_get_sqe(&u->ring);
    int region = find_region(u, op);

    assert(q);      /* never more than depth outstanding, and the ring has that many entries */
    if (region >= 0)
        io_uring_prep_read_fixed(q, op->fd, op->into, op->bytes, op->offset, region);
    else
        io_uring_prep_read(q, op->fd, op->into, op->bytes, op->offset);
    io_uring_sqe_set_data64(q, op->id);
}

static int take(struct uring *u, struct stream_done *done, int n)
{
    struct io_uring_cqe *cqe[16];
    unsigned got = io_uring_peek_batch_cqe(&u->ring, cqe, n < 16 ? (unsigned)n : 16);

    for (unsigned i = 0; i < got; i++)
        done[i] = (struct stream_done){ cqe[i]->user_data, cqe[i]->res };
    io_uring_cq_advance(&u->ring, got);
    return (int)got;
}

/* io_uring_enable_rings(), which the shared liburing 2.3 declares but does not export. */
static int enable(struct uring *u)
{
    return (int)syscall(__NR_io_uring_register, u->ring.ring_fd, IORING_REGISTER_ENABLE_RINGS,
                        NULL, 0);
}

static int uring_wait(void *b, struct stream_done *done, int n, double seconds)
{
    struct uring *u = b;
    struct __kernel_timespec t = { .tv_sec = (long long)seconds };
    struct io_uring_cqe *first;
    int rc;

    if (u->disabled) {
        if (enable(u))
            return errno == ENOMEM || errno == EAGAIN || errno == EINTR ? 0 : -errno;
        u->disabled = false;
    }
    t.tv_nsec = (long long)((seconds - (double)t.tv_sec) * 1e9);
    if (seconds > 0)
        rc = io_uring_submit_and_wait_timeout(&u->ring, &first, 1, &t, NULL);
    else
        rc = io_uring_submit_and_get_events(&u->ring);
    /* Out of resources, interrupted, or nothing came: whatever was not accepted stays in the
     * submission queue and goes with the next call.  EBUSY asks to reap, which follows. */
    if (rc < 0 && rc != -EAGAIN && rc != -EBUSY && rc != -EINTR && rc != -ETIME)
        return rc;
    return take(u, done, n);
}

const struct stream_ops stream_uring = {
    "io_uring", uring_open, uring_close, uring_region, uring_start, uring_wait,
};
