#ifndef LAGUNA_EXPERTS_H
#define LAGUNA_EXPERTS_H

#include "src/model.h"

struct pool;

/* Every routed expert in RAM, read at start: what a machine with enough memory uses. */
struct experts;

/* Blocks for as long as the bytes take.  progress (may be NULL) is called with bytes done
 * and total, now and then, from this thread.  -EBADMSG names layer, expert and tensor where
 * a scale is not finite. */
int  experts_open(struct experts **out, const struct model *m, struct pool *pool,
                  void (*progress)(void *, size_t, size_t), void *arg, struct err *e);
void experts_close(struct experts *x);

const struct expert *experts_get(const struct experts *x, int layer, int id);

#endif
