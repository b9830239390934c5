/* The thread that touches and pins a slab.  It stops at the first chunk that is refused: what is
 * not pinned is copied more slowly, and nothing else changes. */
#include "src/pinning.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>

struct pinning {
    struct slab *slab;
    pin_fn pin;
    unpin_fn unpin;
    pthread_t thread;
    atomic_bool stop, failed, ended;
    bool told;
    atomic_int ready;                   /* chunks */
    struct err e;                       /* valid where failed */
};

static void *run(void *arg)
{
    struct pinning *p = arg;
    int rc = 0;

    for (int i = 0; i < slab_chunks(p->slab) && !rc && !atomic_load(&p->stop); i++) {
        struct slab_chunk c = slab_chunk(p->slab, i);

        rc = slab_touch(p->slab, i, &p->e);
        if (!rc && p->pin)
            rc = p->pin(c.base, c.bytes, &p->e);
        if (!rc)
            atomic_store(&p->ready, i + 1);
    }
    if (rc)
        atomic_store(&p->failed, true);
    atomic_store(&p->ended, true);
    return NULL;
}

int pinning_start(struct pinning **out, struct slab *slab, pin_fn pin, unpin_fn unpin,
                  struct err *e)
{
    struct pinning *p = calloc(1, sizeof(*p));
    int rc;

    if (!p)
        return fail(e, -ENOMEM, "out of memory");
    p->slab = slab;
    p->pin = pin;
    p->unpin = unpin;
    rc = pthread_create(&p->thread, NULL, run, p);
    if (rc) {
        free(p);
        return fail(e, -EAGAIN, "no thread to pin memory: %s", strerror(rc));
    }
    *out = p;
    return 0;
}

int pinning_ready(const struct pinning *p)
{
    return atomic_load(&p->ready);
}

bool pinning_done(const struct pinning *p)
{
    return pinning_ready(p) == slab_chunks(p->slab);
}

bool pinning_busy(const struct pinning *p)
{
    return !atomic_load(&p->ended);
}

bool pinning_failed(struct pinning *p, struct err *e)
{
    if (!p || p->told || !atomic_load(&p->failed))
        return false;
    p->told = true;
    *e = p->e;
    return true;
}

void pinning_stop(struct pinning *p)
{
    if (!p)
        return;
    atomic_store(&p->stop, true);
    pthread_join(p->thread, NULL);
    for (int i = pinning_ready(p); i > 0 && p->unpin; i--)
        p->unpin(slab_chunk(p->slab, i - 1).base);
    free(p);
}
