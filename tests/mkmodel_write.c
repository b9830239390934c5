/* Shards and their index.  All headers are known before any weight is; then workers make
 * pieces of the shards, in file order, each into its own buffer and with one write.  The
 * writes go past the page cache where the file system allows it: copying into fresh pages
 * took twice the time of the disk. */
#include "config.h"

#include "tests/mkmodel.h"
#include "cpu/pool.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <unistd.h>

enum { PIECE = 8 << 20, BLOCK = 4096, WRITERS_MAX = 16 };

struct job {
    const struct layout *layout;
    size_t first, n;     /* the shard's tensors */
    char *header;        /* [start]: the length and the JSON */
    uint64_t start, end; /* in the file: where the data begins; how far to write */
    int fd;
    uint8_t *buffer;           /* [workers][PIECE], aligned to BLOCK */
    atomic_uint_fast64_t next; /* piece */
    atomic_int failed;         /* errno of the first failure */
};

static void shard_name(char name[64], const struct plan *p, int shard)
{
    if (p->shards == 1)
        strcpy(name, "model.safetensors");
    else
        snprintf(name, 64, "model-%05d-of-%05d.safetensors", shard + 1, p->shards);
}

static bool write_all(int fd, const uint8_t *from, size_t n, uint64_t at)
{
    while (n) {
        ssize_t done = pwrite(fd, from, n, (off_t)at);

        if (done < 0 && errno == EINTR)
            continue;
        if (done <= 0)
            return false;
        from += done;
        at += (uint64_t)done;
        n -= (size_t)done;
    }
    return true;
}

/* The last tensor of the job that begins at or before `at`. */
static size_t tensor_at(const struct job *j, uint64_t at)
{
    size_t low = j->first, high = j->first + j->n;

    while (high - low > 1) {
        size_t mid = (low + high) / 2;

        if (j->layout->tensor[mid].offset <= at)
            low = mid;
        else
            high = mid;
    }
    return low;
}

/* The bytes from..from+n of the file. */
static void make_piece(const struct job *j, uint64_t from, size_t n, uint8_t *to)
{
    if (from < j->start) {
        size_t take = j->start - from < n ? (size_t)(j->start - from) : n;

        memcpy(to, j->header + from, take);
        from += take;
        to += take;
        n -= take;
    }
    from -= j->start;
    for (size_t i = n ? tensor_at(j, from) : 0; n; i++) {
        const struct tensor *t = &j->layout->tensor[i];
        uint64_t skip = from - t->offset;
        size_t take = t->bytes - skip < n ? (size_t)(t->bytes - skip) : n;

        weights_fill(t, skip, take, to);
        from += take;
        to += take;
        n -= take;
    }
}

static void write_piece(struct job *j, uint64_t from, size_t n, uint8_t *buffer)
{
    /* Whole blocks; what is too much is cut off at the end. */
    size_t blocks = align_up(n, BLOCK);

    make_piece(j, from, n, buffer);
    memset(buffer + n, 0, blocks - n);
    if (!write_all(j->fd, buffer, blocks, from))
        j->failed = errno ? errno : EIO;
}

static void write_pieces(void *arg, int worker, int workers)
{
    struct job *j = arg;

    (void)workers;
    for (;;) {
        uint64_t from = atomic_fetch_add(&j->next, 1) * PIECE, left = j->end - from;

        if (from >= j->end || j->failed)
            return;
        write_piece(j, from, left < PIECE ? (size_t)left : PIECE,
                    j->buffer + (size_t)worker * PIECE);
    }
}

/* The length and the JSON, padded with spaces so that the data begins at a multiple of 8. */
static int make_header(struct job *j, const struct tensor *t)
{
    uint64_t length = 0;
    size_t size;
    FILE *f = open_memstream(&j->header, &size);

    if (!f)
        return -ENOMEM;
    fwrite(&length, sizeof(length), 1, f);
    fputs("{\"__metadata__\":{\"format\":\"pt\"}", f);
    for (const struct tensor *end = t + j->n; t < end; t++) {
        fprintf(f, ",\"%s\":{\"dtype\":\"%s\",\"shape\":[%" PRId64, t->name, t->dtype, t->dim[0]);
        if (t->dims > 1)
            fprintf(f, ",%" PRId64, t->dim[1]);
        fprintf(f, "],\"data_offsets\":[%" PRIu64 ",%" PRIu64 "]}", t->offset,
                t->offset + t->bytes);
    }
    putc('}', f);
    while (ftell(f) % 8)
        putc(' ', f);
    if (fclose(f))
        return -ENOMEM;
    length = size - sizeof(length); /* little-endian, as the format and this machine */
    memcpy(j->header, &length, sizeof(length));
    j->start = size;
    return 0;
}

/* Of a sparse shard only what a reader checks: shapes and biases, which come first, and
 * that its end is not a hole. */
static uint64_t data_to_write(const struct plan *p, const struct tensor *t, size_t n)
{
    uint64_t end = 0;

    for (size_t i = 0; i < n && (!p->sparse || t[i].fill == FILL_READY); i++)
        end = t[i].offset + t[i].bytes;
    return end;
}

static int create(const char *path)
{
    int flags = O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC;
    int fd = open(path, flags | O_DIRECT, 0666);

    return fd < 0 && errno == EINVAL ? open(path, flags, 0666) : fd;
}

static int shard_write(const struct plan *p, struct job *j, struct pool *pool, int shard,
                       struct err *e)
{
    const struct tensor *t = &j->layout->tensor[j->first];
    char name[64], path[4096];
    uint64_t size, tail;
    int rc = make_header(j, t);

    shard_name(name, p, shard);
    if (rc)
        return fail(e, rc, "no memory for the header of %s", name);
    snprintf(path, sizeof(path), "%s/%s", p->out, name);
    j->fd = create(path);
    if (j->fd < 0) {
        free(j->header);
        return fail(e, -errno, "%s: %s", path, strerror(errno));
    }
    size = j->start + t[j->n - 1].offset + t[j->n - 1].bytes;
    tail = size > BLOCK ? (size - BLOCK) / BLOCK * BLOCK : 0;
    j->end = j->start + data_to_write(p, t, j->n);
    j->next = 0;
    pool_run(pool, write_pieces, j);
    if (!j->failed && j->end < size)
        write_piece(j, tail, (size_t)(size - tail), j->buffer);
    if (!j->failed && ftruncate(j->fd, (off_t)size))
        j->failed = errno;
    if (close(j->fd) && !j->failed)
        j->failed = errno;
    free(j->header);
    if (j->failed)
        return fail(e, -j->failed, "%s: %s", path, strerror(j->failed));
    return 0;
}

static int by_name(const void *a, const void *b)
{
    const struct tensor *const *x = a, *const *y = b;

    return strcmp((*x)->name, (*y)->name);
}

static int index_write(const struct plan *p, const struct layout *l, struct err *e)
{
    static const char name[] = "model.safetensors.index.json";
    const struct tensor **sorted = malloc(l->n * sizeof(const struct tensor *));
    FILE *f;

    if (!sorted)
        return fail(e, -ENOMEM, "no memory for the index of %zu tensors", l->n);
    for (size_t i = 0; i < l->n; i++)
        sorted[i] = &l->tensor[i];
    qsort(sorted, l->n, sizeof(*sorted), by_name);
    f = file_create(p, name, e);
    if (!f) {
        free(sorted);
        return -EIO;
    }
    fprintf(f, "{\n \"metadata\": {\n  \"total_size\": %" PRIu64 "\n },\n \"weight_map\": {",
            l->total);
    for (size_t i = 0; i < l->n; i++) {
        char shard[64];

        shard_name(shard, p, sorted[i]->shard);
        fprintf(f, "%s\n  \"%s\": \"%s\"", i ? "," : "", sorted[i]->name, shard);
    }
    fputs("\n }\n}\n", f);
    free(sorted);
    return file_close(f, name, e);
}

int shards_write(const struct plan *p, const struct layout *l, struct err *e)
{
    struct job j = {.layout = l};
    struct pool *pool = NULL;
    struct pool_config config = {0};
    int rc = pool_open(&pool, &config, e);

    if (!rc && pool_threads(pool) > WRITERS_MAX) {
        pool_close(pool);
        pool = NULL;
        config.threads = WRITERS_MAX;
        rc = pool_open(&pool, &config, e);
    }
    if (!rc) {
        j.buffer = aligned_alloc(BLOCK, (size_t)pool_threads(pool) * PIECE);
        if (!j.buffer)
            rc =
                fail(e, -ENOMEM, "no memory for %d buffers of %d bytes", pool_threads(pool), PIECE);
    }
    for (int shard = 0; shard < p->shards && !rc; shard++) {
        j.first += j.n;
        for (j.n = 0; j.first + j.n < l->n && l->tensor[j.first + j.n].shard == shard;)
            j.n++;
        if (j.n)
            rc = shard_write(p, &j, pool, shard, e);
        else
            rc = fail(e, -EINVAL, "%d shards are more than the tensors fill", p->shards);
    }
    if (!rc && p->shards > 1)
        rc = index_write(p, l, e);
    free(j.buffer);
    pool_close(pool);
    return rc;
}
