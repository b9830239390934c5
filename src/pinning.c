/* The thread that pins a slab.  It stops at the first chunk that is refused: what is not pinned
 * is copied more slowly, and nothing else changes. */
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
    atomic_bool stop, failed, done;
    bool told;
    int pinned;                         /* chunks; read when the thread has ended */
    struct err e;                       /* valid where failed */
};

static void *run(void *arg)
{
    struct pinning *p = arg;
    int rc = 0;

    while (p->pinned < slab_chunks(p->slab) && !rc && !atomic_load(&p->stop)) {
        struct slab_chunk c = slab_chunk(p->slab, p->pinned);

        rc = slab_touch(p->slab, p->pinned, &p->e);
        if (!rc)
            rc = p->pin(c.base, c.bytes, &p->e);
        p->pinned += !rc;
    }
    if (rc)
        atomic_store(&p->failed, true);
    else
        atomic_store(&p->done, p->pinned == slab_chunks(p->slab));
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

bool pinning_done(const struct pinning *p)
{
    return p && atomic_load(&p->done);
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
    while (p->pinned > 0)
        p->unpin(slab_chunk(p->slab, --p->pinned).base);
    free(p);
}
