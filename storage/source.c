#include "config.h"

#include "storage/source.h"

#include "storage/extents.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

static int64_t nanoseconds(const struct timespec *t)
{
    return (int64_t)t->tv_sec * 1000000000 + t->tv_nsec;
}

/* Does the file system promise direct reads at our alignment?  One that says nothing
 * (tmpfs, old kernels) is tried: the stream falls back at the first -EINVAL. */
static bool alignment_fits(int fd)
{
    struct statx x;

    if (statx(fd, "", AT_EMPTY_PATH, STATX_DIOALIGN, &x) || !(x.stx_mask & STATX_DIOALIGN))
        return true;
    return x.stx_dio_offset_align && x.stx_dio_offset_align <= EXTENT_ALIGN &&
           x.stx_dio_mem_align <= EXTENT_ALIGN;
}

int source_open(struct source *s, const char *path, bool buffered, struct err *e)
{
    struct stat st;

    *s = (struct source){ .fd = -1, .direct_fd = -1, .path = strdup(path) };
    if (!s->path)
        return fail(e, -ENOMEM, "%s: out of memory", path);
    s->fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (s->fd < 0 || fstat(s->fd, &st)) {
        int rc = -errno;

        source_close(s);
        return fail(e, rc, "%s: %s", path, strerror(-rc));
    }
    if (!S_ISREG(st.st_mode)) {
        source_close(s);
        return fail(e, -EBADMSG, "%s: not a regular file", path);
    }
    /* O_NONBLOCK was against a FIFO; io_uring would answer -EAGAIN to each read for it. */
    fcntl(s->fd, F_SETFL, fcntl(s->fd, F_GETFL) & ~O_NONBLOCK);
    s->device = st.st_dev;
    s->inode = st.st_ino;
    s->bytes = (uint64_t)st.st_size;
    s->changed_ns = nanoseconds(&st.st_mtim);
    if (!buffered)
        s->direct_fd = open(path, O_RDONLY | O_CLOEXEC | O_DIRECT);
    /* Between the two open() calls the path may have come to name another file. */
    if (s->direct_fd >= 0 && (fstat(s->direct_fd, &st) || st.st_ino != s->inode ||
                              st.st_dev != s->device || !alignment_fits(s->direct_fd))) {
        close(s->direct_fd);
        s->direct_fd = -1;
    }
    s->direct = s->direct_fd >= 0;
    return 0;
}

void source_close(struct source *s)
{
    if (!s)
        return;
    if (s->fd >= 0)
        close(s->fd);
    if (s->direct_fd >= 0)
        close(s->direct_fd);
    free(s->path);
    *s = (struct source){ .fd = -1, .direct_fd = -1 };
}

int source_check(struct source *s, struct err *e)
{
    struct stat st;

    if (fstat(s->fd, &st))
        return fail(e, -EIO, "%s: %s", s->path, strerror(errno));
    if ((uint64_t)st.st_size != s->bytes)
        return fail(e, -ESTALE, "%s: changed while in use: %ju bytes, was %ju", s->path,
                    (uintmax_t)st.st_size, (uintmax_t)s->bytes);
    if (nanoseconds(&st.st_mtim) != s->changed_ns)
        return fail(e, -ESTALE, "%s: written to while in use", s->path);
    if (!stat(s->path, &st) && (st.st_ino != s->inode || st.st_dev != s->device))
        s->replaced = true;
    return 0;
}
