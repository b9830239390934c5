#ifndef LAGUNA_SOURCE_H
#define LAGUNA_SOURCE_H

#include "src/base.h"

/* A file that experts are read from while the program runs: open twice, for direct and for
 * buffered reads, and watched, because somebody may replace or overwrite it meanwhile. */
struct source {
    char *path;
    int direct_fd;              /* O_DIRECT; -1 where the file system refuses it */
    int fd;                     /* buffered */
    bool direct;                /* which of the two is used; the stream may clear it */
    bool replaced;              /* the path now names another file; reads see the old one */
    uint64_t device, inode, bytes;
    int64_t changed_ns;         /* mtime at open */
};

/* -ENOENT, -EACCES, -EMFILE ...; -EBADMSG where it is not a regular file.  A refused O_DIRECT
 * is no error: see `direct`.  s must not move while reads from it are in flight. */
int  source_open(struct source *s, const char *path, bool buffered, struct err *e);
void source_close(struct source *s);

/* 0 while the open file is as it was.  -ESTALE once its size or time of change differ: it
 * was written or cut in place.  A path that names another file now sets `replaced`.
 * -EIO where it cannot be asked. */
int  source_check(struct source *s, struct err *e);

static inline int source_fd(const struct source *s)
{
    return s->direct ? s->direct_fd : s->fd;
}

#endif
