#ifndef LAGUNA_POOL_H
#define LAGUNA_POOL_H

#include "src/base.h"

/* The worker threads.  Every worker runs the same function on its own share; there is no
 * queue and no stealing, so that a worker always meets the same memory.
 *
 * One thread at a time may call pool_begin, pool_run, pool_end and pool_close; it is
 * worker 0 while it does. */

struct pool;

struct pool_config {
    int threads;                /* 0: one per physical core this process may use */
    bool pin;                   /* each worker to its core, where there are enough cores */
};

/* -EAGAIN where the system gives fewer threads, -EINVAL for a number out of range,
 * -ENOMEM, -ENOTSUP. */
int pool_open(struct pool **out, const struct pool_config *c, struct err *e);
void pool_close(struct pool *p);

/* Workers, the caller of pool_run included: it is worker 0. */
int pool_threads(const struct pool *p);

/* NUMA node that a worker is pinned to, or -1 where workers are not pinned.  Workers are
 * numbered node by node, so that pool_share() gives each node one stretch. */
int pool_node(const struct pool *p, int worker);

typedef void (*pool_fn)(void *arg, int worker, int workers);

/* Every worker runs fn once; returns when all are done.  Denormals are zero inside. */
void pool_run(struct pool *p, pool_fn fn, void *arg);

/* Inside fn: all workers meet. */
void pool_barrier(struct pool *p, int worker);

/* Between them the workers wait awake, and pool_run takes about a microsecond; outside
 * they sleep, and it takes a wake-up.  Calls nest.  The caller is pinned as worker 0 from
 * the first begin to the last end, and threads that it starts there inherit that. */
void pool_begin(struct pool *p);
void pool_end(struct pool *p);

/* Worker's even share *from <= i < *to of n things, in multiples of grain. */
static inline void pool_share(size_t n, size_t grain, int worker, int workers, size_t *from,
                              size_t *to)
{
    size_t grains = (n + grain - 1) / grain;
    size_t first = grains * (size_t)worker / (size_t)workers * grain;
    size_t last = grains * (size_t)(worker + 1) / (size_t)workers * grain;

    *from = first < n ? first : n;
    *to = last < n ? last : n;
}

#endif
