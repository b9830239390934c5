#ifndef LAGUNA_STREAM_OPS_H
#define LAGUNA_STREAM_OPS_H

#include "src/base.h"

/* What stream.c needs of the system: one operation in, one answer out, in any order.
 * Retries, priorities and bookkeeping are not here. */

struct stream_op {
    int fd;
    uint32_t bytes;
    uint64_t offset, id;
    void *into;
};

struct stream_done {
    uint64_t id;
    int result;                 /* bytes, or negative errno */
};

struct stream_ops {
    const char *name;
    /* At most depth operations are outstanding.  refuse: tests, see struct stream_config. */
    int  (*open)(void **out, int depth, int refuse, struct log *l, struct err *e);
    void (*close)(void *b);     /* nothing is outstanding */
    int  (*region)(void *b, void *base, size_t bytes);
    void (*start)(void *b, const struct stream_op *op);
    /* Begin what was started; up to n answers, waiting `seconds` for the first.  The number
     * of answers, or a negative errno after which the backend is of no use. */
    int  (*wait)(void *b, struct stream_done *done, int n, double seconds);
};

extern const struct stream_ops stream_uring, stream_preadv;

#endif
