#include "config.h"

#include "storage/stream_ops.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/uio.h>
#include <time.h>

/* The same through blocking threads, one a read in flight: for kernels and containers that
 * refuse io_uring.  Measured at 0.75 to 0.85 of its bandwidth. */

enum { THREADS_MAX = 64 };

struct pool {
    pthread_mutex_t lock;
    pthread_cond_t work, answer;
    bool stop;
    int depth, threads;
    int queued, answered;
    struct stream_op op[THREADS_MAX];       /* [queued], oldest first */
    struct stream_done done[THREADS_MAX];   /* [answered], oldest first */
    pthread_t thread[THREADS_MAX];
};

static int read_one(const struct stream_op *op)
{
    struct iovec v = { op->into, op->bytes };
    ssize_t n = preadv(op->fd, &v, 1, (off_t)op->offset);

    return n < 0 ? -errno : (int)n;
}

static void *work(void *arg)
{
    struct pool *p = arg;

    pthread_mutex_lock(&p->lock);
    for (;;) {
        struct stream_op op;
        int result;

        while (!p->queued && !p->stop)
            pthread_cond_wait(&p->work, &p->lock);
        if (!p->queued)
            break;
        op = p->op[0];
        p->queued--;
        memmove(p->op, p->op + 1, (size_t)p->queued * sizeof(op));
        pthread_mutex_unlock(&p->lock);
        result = read_one(&op);
        pthread_mutex_lock(&p->lock);
        p->done[p->answered++] = (struct stream_done){ op.id, result };
        pthread_cond_signal(&p->answer);
    }
    pthread_mutex_unlock(&p->lock);
    return NULL;
}

static void pool_close(void *b)
{
    struct pool *p = b;

    pthread_mutex_lock(&p->lock);
    p->stop = true;
    pthread_cond_broadcast(&p->work);
    pthread_mutex_unlock(&p->lock);
    for (int i = 0; i < p->threads; i++)
        pthread_join(p->thread[i], NULL);
    pthread_cond_destroy(&p->answer);
    pthread_cond_destroy(&p->work);
    pthread_mutex_destroy(&p->lock);
    free(p);
}

static int pool_open(void **out, int depth, int refuse, struct log *l, struct err *e)
{
    struct pool *p = calloc(1, sizeof(*p));
    pthread_condattr_t monotonic;
    sigset_t all, before;
    int rc = 0;

    (void)refuse;
    if (!p)
        return fail(e, -ENOMEM, "reading threads: out of memory");
    p->depth = depth;
    pthread_mutex_init(&p->lock, NULL);
    pthread_cond_init(&p->work, NULL);
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_cond_init(&p->answer, &monotonic);
    pthread_condattr_destroy(&monotonic);
    /* Signals are for the program's own threads. */
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    while (p->threads < depth && !rc) {
        rc = pthread_create(&p->thread[p->threads], NULL, work, p);
        p->threads += !rc;
    }
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (!p->threads) {
        pool_close(p);
        return fail(e, -EAGAIN, "no thread for reading: %s", strerror(rc));
    }
    if (rc)
        warn(l, "only %d of %d reading threads: %s", p->threads, depth, strerror(rc));
    *out = p;
    return 0;
}

static int pool_region(void *b, void *base, size_t bytes)
{
    (void)b;
    (void)base;
    (void)bytes;
    return 0;
}

static void pool_start(void *b, const struct stream_op *op)
{
    struct pool *p = b;

    pthread_mutex_lock(&p->lock);
    p->op[p->queued++] = *op;
    pthread_cond_signal(&p->work);
    pthread_mutex_unlock(&p->lock);
}

static int pool_wait(void *b, struct stream_done *done, int n, double seconds)
{
    struct pool *p = b;
    struct timespec until;
    int got;

    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_sec += (time_t)seconds;
    until.tv_nsec += (long)((seconds - (double)(time_t)seconds) * 1e9);
    if (until.tv_nsec >= 1000000000) {
        until.tv_sec++;
        until.tv_nsec -= 1000000000;
    }
    pthread_mutex_lock(&p->lock);
    if (seconds > 0)
        while (!p->answered &&
               pthread_cond_timedwait(&p->answer, &p->lock, &until) != ETIMEDOUT)
            ;
    got = p->answered < n ? p->answered : n;
    memcpy(done, p->done, (size_t)got * sizeof(*done));
    p->answered -= got;
    memmove(p->done, p->done + got, (size_t)p->answered * sizeof(*done));
    pthread_mutex_unlock(&p->lock);
    return got;
}

const struct stream_ops stream_preadv = {
    "preadv", pool_open, pool_close, pool_region, pool_start, pool_wait,
};
