#ifndef LAGUNA_PINNING_H
#define LAGUNA_PINNING_H

#include "storage/slab.h"

/* A slab's memory touched, and made known to a device where there is one, chunk by chunk, by a
 * thread of its own: behind whoever uses the slots already. */
struct pinning;

typedef int (*pin_fn)(void *base, size_t bytes, struct err *e);
typedef void (*unpin_fn)(void *base);

/* pin and unpin NULL: without a device.  -EAGAIN, -ENOMEM. */
int  pinning_start(struct pinning **out, struct slab *slab, pin_fn pin, unpin_fn unpin,
                   struct err *e);

/* Chunks that are done so far, in their order; and whether those are all. */
int  pinning_ready(const struct pinning *p);
bool pinning_done(const struct pinning *p);

/* Whether the thread is still at work: false when all is done, and where it was refused. */
bool pinning_busy(const struct pinning *p);

/* True once, with the words, where memory was refused: the rest stays as it is. */
bool pinning_failed(struct pinning *p, struct err *e);

/* Waits for the chunk in progress, and unpins all. */
void pinning_stop(struct pinning *p);

#endif
