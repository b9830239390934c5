/* A fixed set of threads that meet at gates.  A gate is a counter that somebody raises;
 * who waits for it spins first, then yields, then sleeps on a futex, so that a token's
 * many short stages cost no system call and a machine with too few CPUs still gets on.
 * Which work goes to which worker is the caller's; see pool_share(). */
#include "config.h"

#include "cpu/pool.h"
#include "cpu/cores.h"

#include <assert.h>
#include <errno.h>
#include <immintrin.h>
#include <limits.h>
#include <linux/futex.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>

enum {
    LINE = 64,
    STACK_BYTES = 1 << 20,      /* address space; a page is taken when it is touched */
    THREADS_MAX = CORES_MAX,
    FLUSH_DENORMALS = 0x9fc0,   /* MXCSR: FTZ and DAZ, all exceptions masked, to nearest */
    PAUSES = 32,                /* between two looks at the clock, about 1 us */
};

/* A stage of a token takes 20 to 500 us and its workers end within a few of each other:
 * who waits longer than the first limit shares the CPU with somebody; who waits longer
 * than the second waits for a disk. */
static const double SPIN_S = 50e-6, YIELD_S = 2e-3;

struct gate {
    _Alignas(LINE) atomic_uint raised;
    atomic_uint sleepers;
};

struct worker {
    struct pool *pool;
    pthread_t thread;
    int number;
};

struct pool {
    struct gate start;          /* raised by pool_run for every round */
    struct gate met;            /* raised by the last worker to arrive */
    _Alignas(LINE) atomic_int arrived;
    _Alignas(LINE) atomic_int awake;    /* begins without their end */
    atomic_bool closing;
    pool_fn fn;                 /* of the round; written before start is raised */
    void *arg;
    int threads;
    int started;                /* helpers to join */
    bool pin, crowded;          /* crowded: more workers than CPUs, spinning only hurts */
    bool caller_pinned;
    cpu_set_t caller_mask;      /* while caller_pinned: what to give back */
    struct cores cores;
    struct worker *worker;      /* [threads]; 0 is the caller and has no thread */
};

static void futex_wait(atomic_uint *word, unsigned seen)
{
    syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, seen, NULL, NULL, 0);
}

static void futex_wake_all(atomic_uint *word)
{
    syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, INT_MAX, NULL, NULL, 0);
}

static void gate_raise(struct gate *g)
{
    atomic_fetch_add(&g->raised, 1);
    /* Both sides are sequentially consistent: either this sees the sleeper, or the sleeper
     * sees the new count. */
    if (atomic_load(&g->sleepers))
        futex_wake_all(&g->raised);
}

static void gate_sleep(struct gate *g, unsigned seen)
{
    atomic_fetch_add(&g->sleepers, 1);
    if (atomic_load(&g->raised) == seen)
        futex_wait(&g->raised, seen);
    atomic_fetch_sub(&g->sleepers, 1);
}

static bool gate_is_raised(struct gate *g, unsigned seen)
{
    return atomic_load_explicit(&g->raised, memory_order_acquire) != seen;
}

/* Spin, without a system call, for about the given time. */
static bool gate_spin(struct gate *g, unsigned seen, double seconds)
{
    double until = clock_now() + seconds;

    do {
        for (int i = 0; i < PAUSES; i++) {
            if (gate_is_raised(g, seen))
                return true;
            _mm_pause();
        }
    } while (clock_now() < until);
    return gate_is_raised(g, seen);
}

static bool gate_yield(struct gate *g, unsigned seen, double seconds)
{
    double until = clock_now() + seconds;

    do {
        if (gate_is_raised(g, seen))
            return true;
        sched_yield();
    } while (clock_now() < until);
    return gate_is_raised(g, seen);
}

static void gate_wait(struct pool *p, struct gate *g, unsigned seen)
{
    if (gate_is_raised(g, seen))
        return;
    if (!p->crowded && gate_spin(g, seen, SPIN_S))
        return;
    if (gate_yield(g, seen, p->crowded ? SPIN_S : YIELD_S))
        return;
    while (!gate_is_raised(g, seen))
        gate_sleep(g, seen);
}

/* A helper between rounds: as gate_wait(), but asleep as soon as the last pool_end() has
 * been.  A wake-up by pool_begin() starts the wait anew. */
static void wait_for_round(struct pool *p, unsigned seen)
{
    while (!gate_is_raised(&p->start, seen)) {
        double until = clock_now() + YIELD_S;

        while (atomic_load(&p->awake) && clock_now() < until)
            if (p->crowded ? gate_yield(&p->start, seen, 0) : gate_spin(&p->start, seen, SPIN_S))
                return;
            else
                sched_yield();
        gate_sleep(&p->start, seen);
    }
}

/* True for the worker whose arrival raised the gate. */
static bool arrive(struct pool *p)
{
    if (atomic_fetch_add(&p->arrived, 1) != p->threads - 1)
        return false;
    atomic_store_explicit(&p->arrived, 0, memory_order_relaxed);
    gate_raise(&p->met);
    return true;
}

void pool_barrier(struct pool *p, int worker)
{
    /* Nobody can raise the gate before this worker arrives, so the count is stable. */
    unsigned seen = atomic_load_explicit(&p->met.raised, memory_order_relaxed);

    assert(worker >= 0 && worker < p->threads);
    if (!arrive(p))
        gate_wait(p, &p->met, seen);
}

/* Pinning that fails is not a fault: the cpuset may have shrunk since pool_open(), and
 * the thread then runs where the kernel lets it. */
static void pin_self(const struct pool *p, int worker)
{
    cpu_set_t one;

    CPU_ZERO(&one);
    CPU_SET((size_t)p->cores.core[worker * p->cores.n / p->threads].cpu, &one);
    pthread_setaffinity_np(pthread_self(), sizeof(one), &one);
}

static void *helper(void *arg)
{
    struct worker *w = arg;
    struct pool *p = w->pool;
    unsigned seen = 0;

    if (p->pin)
        pin_self(p, w->number);
    _mm_setcsr(FLUSH_DENORMALS);
    for (;; seen++) {
        wait_for_round(p, seen);
        if (atomic_load(&p->closing))
            return NULL;
        p->fn(p->arg, w->number, p->threads);
        arrive(p);
    }
}

void pool_run(struct pool *p, pool_fn fn, void *arg)
{
    unsigned mxcsr = _mm_getcsr();

    pool_begin(p);
    p->fn = fn;
    p->arg = arg;
    gate_raise(&p->start);
    _mm_setcsr(FLUSH_DENORMALS);
    fn(arg, 0, p->threads);
    pool_barrier(p, 0);
    _mm_setcsr(mxcsr);
    pool_end(p);
}

void pool_begin(struct pool *p)
{
    if (atomic_fetch_add(&p->awake, 1))
        return;
    if (p->pin) {
        p->caller_pinned = !pthread_getaffinity_np(pthread_self(), sizeof(p->caller_mask),
                                                   &p->caller_mask);
        if (p->caller_pinned)
            pin_self(p, 0);
    }
    /* A helper that goes to sleep just now misses this; pool_run will see it. */
    if (atomic_load(&p->start.sleepers))
        futex_wake_all(&p->start.raised);
}

void pool_end(struct pool *p)
{
    int before = atomic_fetch_sub(&p->awake, 1);

    assert(before > 0);
    if (before > 1 || !p->caller_pinned)
        return;
    pthread_setaffinity_np(pthread_self(), sizeof(p->caller_mask), &p->caller_mask);
    p->caller_pinned = false;
}

/* Helpers leave signals to the thread that expects them. */
static int start_helpers(struct pool *p, struct err *e)
{
    pthread_attr_t attr;
    sigset_t all, old;
    int rc = pthread_attr_init(&attr);

    if (rc)
        return fail(e, -rc, "thread attributes: %s", strerror(rc));
    pthread_attr_setstacksize(&attr, STACK_BYTES);
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &old);
    for (int i = 1; i < p->threads && !rc; i++) {
        char name[24];

        p->worker[i] = (struct worker){.pool = p, .number = i};
        rc = pthread_create(&p->worker[i].thread, &attr, helper, &p->worker[i]);
        if (rc)
            break;
        p->started = i;
        snprintf(name, sizeof(name), "worker %d", i);    /* the kernel takes 15 letters */
        pthread_setname_np(p->worker[i].thread, name);
    }
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    pthread_attr_destroy(&attr);
    if (rc)
        return fail(e, -rc, "worker thread %d of %d: %s (see ulimit -u, -v and pids.max)",
                    p->started + 2, p->threads, strerror(rc));
    return 0;
}

int pool_open(struct pool **out, const struct pool_config *c, struct err *e)
{
    struct pool *p = aligned_alloc(LINE, sizeof(*p));
    int rc;

    if (!p)
        return fail(e, -ENOMEM, "no memory for the worker pool");
    memset(p, 0, sizeof(*p));
    rc = cores_find(&p->cores, "", e);
    if (!rc && (c->threads < 0 || c->threads > THREADS_MAX))
        rc = fail(e, -EINVAL, "%d threads: at most %d", c->threads, THREADS_MAX);
    if (!rc) {
        int fit = cores_threads(&p->cores);

        p->threads = c->threads ? c->threads : fit;
        p->pin = c->pin && p->threads <= p->cores.n;
        p->crowded = p->threads > p->cores.allowed ||
                     (p->cores.quota && p->threads > fit);
        p->worker = calloc((size_t)p->threads, sizeof(p->worker[0]));
        if (!p->worker)
            rc = fail(e, -ENOMEM, "no memory for %d workers", p->threads);
    }
    if (!rc)
        rc = start_helpers(p, e);
    if (rc) {
        pool_close(p);
        return rc;
    }
    *out = p;
    return 0;
}

void pool_close(struct pool *p)
{
    if (!p)
        return;
    atomic_store(&p->closing, true);
    gate_raise(&p->start);
    for (int i = 1; i <= p->started; i++)
        pthread_join(p->worker[i].thread, NULL);
    free(p->worker);
    free(p);
}

int pool_threads(const struct pool *p)
{
    return p->threads;
}

int pool_node(const struct pool *p, int worker)
{
    return p->pin ? p->cores.core[worker * p->cores.n / p->threads].node : -1;
}
