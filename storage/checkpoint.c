/* A model directory: the shards that the index names, or the single model.safetensors,
 * opened, their headers read, and every tensor under its name in one hash table.  What the
 * names mean is src/model_bind.c; where an expert's bytes stream from is extents.c. */
#include "storage/checkpoint.h"

#include "storage/index.h"

#include <assert.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

enum {
    HEADER_BYTES_MAX = 100000000,
    INDEX_BYTES_MAX = 64 << 20,
    SHARDS_MAX = 64,
    TAIL_BYTES = 4096,          /* zeros at the end of a shard look like a broken download */
};

static const char INDEX_FILE[] = "model.safetensors.index.json";
static const char SINGLE_FILE[] = "model.safetensors";

struct shard {
    int fd;
    char *path;
    const char *file;           /* the last part of path */
    uint64_t bytes;
    char *names;                /* of its tensors */
};

struct checkpoint {
    char *dir;
    struct shard shard[SHARDS_MAX];
    int shards;
    struct tensor *tensor;      /* [count], shard after shard, in file order */
    size_t count;
    uint32_t *slot;             /* [slots] 1 + place in tensor[], by hash of the name; 0: free */
    size_t slots;
    uint64_t seed;              /* of the hash: depends on every header */
};

static int open_error(const char *path, int error, struct err *e)
{
    switch (error) {
    case EACCES:
    case EPERM:
        return fail(e, -EACCES, "%s: %s", path, strerror(error));
    case ENOMEM:
    case EIO:
        return fail(e, -error, "%s: %s", path, strerror(error));
    case EMFILE:
    case ENFILE:
        return fail(e, -EAGAIN, "%s: %s", path, strerror(error));
    default:
        return fail(e, -ENOENT, "%s: %s", path, strerror(error));
    }
}

/* A regular file, without waiting for the writer of a FIFO. */
static int open_file(int *fd, uint64_t *bytes, const char *path, struct err *e)
{
    struct stat st;

    *fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
    if (*fd < 0)
        return open_error(path, errno, e);
    if (fstat(*fd, &st) || !S_ISREG(st.st_mode)) {
        close(*fd);
        *fd = -1;
        return fail(e, -ENOENT, "%s: not a regular file", path);
    }
    *bytes = (uint64_t)st.st_size;
    return 0;
}

/* All of n bytes at `at`.  Blocks. */
static int read_all(int fd, void *into, size_t n, uint64_t at, const char *path, struct err *e)
{
    char *to = into;

    while (n) {
        size_t want = n < INT_MAX / 2 ? n : INT_MAX / 2;
        ssize_t got = pread(fd, to, want, (off_t)at);

        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0)
            return fail(e, -EIO, "%s: reading %zu bytes at %ju: %s", path, n, (uintmax_t)at,
                        strerror(errno));
        if (got == 0)
            return fail(e, -EBADMSG, "%s: ends at %ju, %zu bytes early", path, (uintmax_t)at, n);
        to += got;
        at += (uint64_t)got;
        n -= (size_t)got;
    }
    return 0;
}

static char *join(const char *dir, const char *file)
{
    size_t n = strlen(dir) + strlen(file) + 2;
    char *path = malloc(n);

    if (path)
        snprintf(path, n, "%s/%s", dir, file);
    return path;
}

int checkpoint_file(const char *dir, const char *file, size_t limit, char **out, size_t *n,
                    struct err *e)
{
    char *path = join(dir, file), *text = NULL;
    uint64_t bytes = 0;
    int fd = -1, rc;

    if (!path)
        return fail(e, -ENOMEM, "%s: no memory", file);
    rc = open_file(&fd, &bytes, path, e);
    if (!rc && bytes > limit)
        rc = fail(e, -EBADMSG, "%s: %ju bytes, at most %zu are read", path, (uintmax_t)bytes,
                  limit);
    if (!rc) {
        text = malloc(bytes + 1);
        rc = text ? read_all(fd, text, bytes, 0, path, e)
                  : fail(e, -ENOMEM, "%s: no memory for %ju bytes", path, (uintmax_t)bytes);
    }
    if (fd >= 0)
        close(fd);
    free(path);
    if (rc) {
        free(text);
        return rc;
    }
    text[bytes] = 0;
    *out = text;
    *n = bytes;
    return 0;
}

/* What a file that should be a shard seems to be, by its first bytes. */
static const char *looks_like(const char *head, size_t n)
{
    static const struct {
        const char *bytes;
        size_t n;
        const char *what;
    } kinds[] = {
        { "GGUF", 4, "a GGUF file" },
        { "PK\x03\x04", 4, "a ZIP archive, as PyTorch writes" },
        { "\x80\x02", 2, "a Python pickle" },
        { "\x80\x04", 2, "a Python pickle" },
        { "version https://git-lfs", 23, "a Git LFS pointer: the file itself was not fetched" },
        { "<!DOCTYPE", 9, "a web page" },
        { "<html", 5, "a web page" },
    };
    size_t i;

    for (i = 0; i < sizeof(kinds) / sizeof(kinds[0]); i++)
        if (n >= kinds[i].n && !memcmp(head, kinds[i].bytes, kinds[i].n))
            return kinds[i].what;
    return NULL;
}

/* The length of the header of an open shard, checked against the file. */
static int header_bytes(const struct shard *s, size_t *out, struct err *e)
{
    unsigned char head[32] = { 0 };
    size_t n = s->bytes < sizeof(head) ? (size_t)s->bytes : sizeof(head);
    uint64_t length = 0;
    const char *kind;
    int i, rc = read_all(s->fd, head, n, 0, s->path, e);

    if (rc)
        return rc;
    for (i = 7; i >= 0; i--)
        length = length << 8 | head[i];
    kind = n > 8 && head[8] == '{' ? NULL : looks_like((const char *)head, n);
    if (kind)
        return fail(e, -EBADMSG, "%s: not a safetensors file (looks like %s)", s->path, kind);
    if (s->bytes < 8)
        return fail(e, -EBADMSG, "%s: header too small: the file has %ju bytes", s->path,
                    (uintmax_t)s->bytes);
    if (length > s->bytes - 8)
        return fail(e, -EBADMSG, "%s: the header claims %ju of %ju bytes", s->path,
                    (uintmax_t)length, (uintmax_t)s->bytes);
    if (length > HEADER_BYTES_MAX)
        return fail(e, -EBADMSG, "%s: header too large: %ju bytes, at most %d are read", s->path,
                    (uintmax_t)length, HEADER_BYTES_MAX);
    *out = (size_t)length;
    return 0;
}

/* A download that stopped half way often leaves a file of full size that ends in zeros. */
static int warn_of_zero_tail(const struct shard *s, struct log *l, struct err *e)
{
    char tail[TAIL_BYTES];
    int i, rc;

    if (s->bytes < sizeof(tail))
        return 0;
    rc = read_all(s->fd, tail, sizeof(tail), s->bytes - sizeof(tail), s->path, e);
    if (rc)
        return rc;
    for (i = 0; i < TAIL_BYTES && !tail[i]; i++)
        ;
    if (i == TAIL_BYTES)
        warn(l, "%s: its last %d bytes are all zero: is the download complete?", s->path,
             TAIL_BYTES);
    return 0;
}

/* Move a parsed table to the end of c->tensor. */
static int take_table(struct checkpoint *c, int shard, struct tensor_table *t, struct err *e)
{
    struct tensor *grown = realloc(c->tensor, (c->count + t->count) * sizeof(*grown));
    size_t i;

    if (!grown) {
        tensor_table_free(t);
        return fail(e, -ENOMEM, "%s: no memory for %zu tensors", c->dir, c->count + t->count);
    }
    c->tensor = grown;
    for (i = 0; i < t->count; i++) {
        t->tensor[i].shard = shard;
        c->tensor[c->count++] = t->tensor[i];
    }
    c->shard[shard].names = t->names;
    t->names = NULL;
    tensor_table_free(t);
    return 0;
}

static int read_shard(struct checkpoint *c, int shard, struct log *l, struct err *e)
{
    struct shard *s = &c->shard[shard];
    struct tensor_table table;
    char *header;
    size_t n = 0;
    int rc = open_file(&s->fd, &s->bytes, s->path, e);

    if (!rc)
        rc = header_bytes(s, &n, e);
    if (rc)
        return rc;
    header = malloc(n ? n : 1);
    if (!header)
        return fail(e, -ENOMEM, "%s: no memory for a header of %zu bytes", s->path, n);
    rc = read_all(s->fd, header, n, 8, s->path, e);
    if (!rc)
        rc = safetensors_parse(&table, header, n, s->bytes, s->path, e);
    c->seed = XXH3_64bits_withSeed(header, n, c->seed);
    free(header);
    if (!rc)
        rc = take_table(c, shard, &table, e);
    return rc ? rc : warn_of_zero_tail(s, l, e);
}

static int add_shard(struct checkpoint *c, const char *file, struct err *e)
{
    struct shard *s = &c->shard[c->shards];

    if (c->shards == SHARDS_MAX)
        return fail(e, -EBADMSG, "%s/%s: more than %d shards", c->dir, INDEX_FILE, SHARDS_MAX);
    s->fd = -1;
    s->path = join(c->dir, file);
    if (!s->path)
        return fail(e, -ENOMEM, "%s: no memory", file);
    s->file = s->path + strlen(c->dir) + 1;
    c->shards++;
    return 0;
}

/* First pass over the index: which shards there are. */
static int note_shard(void *arg, const char *tensor, const char *shard, struct err *e)
{
    struct checkpoint *c = arg;
    int i;

    (void)tensor;
    for (i = c->shards - 1; i >= 0; i--)
        if (!strcmp(c->shard[i].file, shard))
            return 0;
    return add_shard(c, shard, e);
}

static int by_file(const void *a, const void *b)
{
    return strcmp(((const struct shard *)a)->file, ((const struct shard *)b)->file);
}

static size_t find_slot(const struct checkpoint *c, const char *name)
{
    size_t k = XXH3_64bits_withSeed(name, strlen(name), c->seed) & (c->slots - 1);

    while (c->slot[k] && strcmp(c->tensor[c->slot[k] - 1].name, name))
        k = (k + 1) & (c->slots - 1);
    return k;
}

static int hash_names(struct checkpoint *c, struct err *e)
{
    size_t i, k;

    for (c->slots = 16; c->slots < c->count * 2; c->slots *= 2)
        ;
    c->slot = calloc(c->slots, sizeof(*c->slot));
    if (!c->slot)
        return fail(e, -ENOMEM, "%s: no memory for %zu names", c->dir, c->count);
    for (i = 0; i < c->count; i++) {
        k = find_slot(c, c->tensor[i].name);
        if (c->slot[k])
            return fail(e, -EBADMSG, "%s:%.128s: also in %s", c->shard[c->tensor[i].shard].path,
                        c->tensor[i].name,
                        c->shard[c->tensor[c->slot[k] - 1].shard].file);
        c->slot[k] = (uint32_t)(i + 1);
    }
    return 0;
}

/* Second pass over the index: every entry against the headers. */
struct comparison {
    const struct checkpoint *c;
    unsigned char *seen;        /* [tensors] */
};

static int compare_entry(void *arg, const char *tensor, const char *shard, struct err *e)
{
    struct comparison *v = arg;
    const struct checkpoint *c = v->c;
    const struct tensor *t = checkpoint_find(c, tensor);

    if (!t || strcmp(c->shard[t->shard].file, shard))
        return fail(e, -EBADMSG, "%s/%s:%.128s: %s has no such tensor", c->dir, INDEX_FILE,
                    tensor, shard);
    if (v->seen[t - c->tensor])
        return fail(e, -EBADMSG, "%s/%s:%.128s: twice in weight_map", c->dir, INDEX_FILE, tensor);
    v->seen[t - c->tensor] = 1;
    return 0;
}

static int compare_index(const struct checkpoint *c, const char *text, size_t n,
                         const char *path, struct log *l, struct err *e)
{
    struct comparison v = { .c = c, .seen = calloc(c->count, 1) };
    struct index_summary sum;
    uint64_t total = 0;
    size_t i;
    int rc;

    if (!v.seen)
        return fail(e, -ENOMEM, "%s: no memory for %zu tensors", path, c->count);
    rc = index_read(&sum, text, n, path, compare_entry, &v, e);
    free(v.seen);
    if (rc)
        return rc;
    if (sum.entries < c->count)
        warn(l, "%s: names %zu of the shards' %zu tensors", path, sum.entries, c->count);
    for (i = 0; i < c->count; i++)
        total += c->tensor[i].bytes;
    if (sum.has_total && sum.total_bytes != total)
        warn(l, "%s: metadata.total_size is %ju, the tensors have %ju bytes", path,
             (uintmax_t)sum.total_bytes, (uintmax_t)total);
    return 0;
}

static bool ends_in(const char *s, const char *end)
{
    size_t n = strlen(s), m = strlen(end);

    return n >= m && !strcmp(s + n - m, end);
}

/* Shards that lie in the directory and are in no index. */
static void warn_of_strays(const struct checkpoint *c, struct log *l)
{
    DIR *d = opendir(c->dir);
    struct dirent *f;
    int i;

    if (!d)
        return;
    while ((f = readdir(d))) {
        if (!ends_in(f->d_name, ".safetensors"))
            continue;
        for (i = 0; i < c->shards && strcmp(c->shard[i].file, f->d_name); i++)
            ;
        if (i == c->shards)
            warn(l, "%s/%s: not in the index, not read", c->dir, f->d_name);
    }
    closedir(d);
}

/* Why there is nothing to open: another format, an index that is missing, or nothing. */
static int explain_absence(const struct checkpoint *c, struct err *e)
{
    static const char *const others[] = { ".gguf", ".bin", ".pt", ".pth" };
    DIR *d = opendir(c->dir);
    struct dirent *f;
    int rc = 0;
    size_t i;

    if (!d)
        return open_error(c->dir, errno, e);
    while (!rc && (f = readdir(d))) {
        if (ends_in(f->d_name, ".safetensors"))
            rc = fail(e, -ENOENT, "%s/%s: missing, but there is %s", c->dir, INDEX_FILE,
                      f->d_name);
        for (i = 0; !rc && i < sizeof(others) / sizeof(others[0]); i++)
            if (ends_in(f->d_name, others[i]))
                rc = fail(e, -EBADMSG, "%s/%s: not a safetensors file (looks like %s)", c->dir,
                          f->d_name, i ? "a PyTorch file" : "a GGUF file");
    }
    closedir(d);
    return rc ? rc : fail(e, -ENOENT, "%s: neither %s nor %s", c->dir, INDEX_FILE, SINGLE_FILE);
}

/* DIR is no directory: say what it is. */
static int explain_file(const char *path, struct err *e)
{
    char head[32];
    const char *kind;
    uint64_t bytes;
    ssize_t got;
    int fd, rc = open_file(&fd, &bytes, path, e);

    if (rc)
        return rc;
    got = pread(fd, head, sizeof(head), 0);
    close(fd);
    kind = got > 0 ? looks_like(head, (size_t)got) : NULL;
    if (kind)
        return fail(e, -EBADMSG, "%s: not a safetensors file (looks like %s)", path, kind);
    return fail(e, -ENOENT, "%s: a file, where a checkpoint's directory was expected", path);
}

static int read_shards(struct checkpoint *c, struct log *l, struct err *e)
{
    int i, rc = 0;

    for (i = 0; !rc && i < c->shards; i++)
        rc = read_shard(c, i, l, e);
    return rc ? rc : hash_names(c, e);
}

static int open_indexed(struct checkpoint *c, const char *text, size_t n, struct log *l,
                        struct err *e)
{
    char *path = join(c->dir, INDEX_FILE);
    struct index_summary sum;
    int rc;

    if (!path)
        return fail(e, -ENOMEM, "%s: no memory", INDEX_FILE);
    rc = index_read(&sum, text, n, path, note_shard, c, e);
    /* Numbers of shards appear in messages: they follow the names, not the index. */
    qsort(c->shard, (size_t)c->shards, sizeof(c->shard[0]), by_file);
    if (!rc)
        rc = read_shards(c, l, e);
    if (!rc)
        rc = compare_index(c, text, n, path, l, e);
    if (!rc)
        warn_of_strays(c, l);
    free(path);
    return rc;
}

static int open_single(struct checkpoint *c, struct log *l, struct err *e)
{
    char *path = join(c->dir, SINGLE_FILE);
    bool exists = path && !access(path, F_OK);
    int rc;

    free(path);
    if (!exists)
        return explain_absence(c, e);
    rc = add_shard(c, SINGLE_FILE, e);
    return rc ? rc : read_shards(c, l, e);
}

static int open_dir(struct checkpoint *c, struct log *l, struct err *e)
{
    char *text = NULL;
    struct stat st;
    size_t n;
    int rc;

    if (stat(c->dir, &st))
        return open_error(c->dir, errno, e);
    if (!S_ISDIR(st.st_mode))
        return explain_file(c->dir, e);
    rc = checkpoint_file(c->dir, INDEX_FILE, INDEX_BYTES_MAX, &text, &n, e);
    if (rc == -ENOENT)
        return open_single(c, l, e);
    if (!rc)
        rc = open_indexed(c, text, n, l, e);
    free(text);
    return rc;
}

int checkpoint_open(struct checkpoint **out, const char *dir, struct log *l, struct err *e)
{
    struct checkpoint *c = calloc(1, sizeof(*c));
    int rc = 0;

    if (c)
        c->dir = strdup(dir);
    if (!c || !c->dir)
        rc = fail(e, -ENOMEM, "%s: no memory", dir);
    if (!rc)
        rc = open_dir(c, l, e);
    if (rc) {
        checkpoint_close(c);
        return rc;
    }
    *out = c;
    return 0;
}

void checkpoint_close(struct checkpoint *c)
{
    int i;

    if (!c)
        return;
    for (i = 0; i < c->shards; i++) {
        if (c->shard[i].fd >= 0)
            close(c->shard[i].fd);
        free(c->shard[i].path);
        free(c->shard[i].names);
    }
    free(c->slot);
    free(c->tensor);
    free(c->dir);
    free(c);
}

const char *checkpoint_dir(const struct checkpoint *c)
{
    return c->dir;
}

int checkpoint_shards(const struct checkpoint *c)
{
    return c->shards;
}

int checkpoint_fd(const struct checkpoint *c, int shard)
{
    assert(shard >= 0 && shard < c->shards);
    return c->shard[shard].fd;
}

const char *checkpoint_path(const struct checkpoint *c, int shard)
{
    assert(shard >= 0 && shard < c->shards);
    return c->shard[shard].path;
}

size_t checkpoint_count(const struct checkpoint *c)
{
    return c->count;
}

const struct tensor *checkpoint_tensor(const struct checkpoint *c, size_t i)
{
    assert(i < c->count);
    return &c->tensor[i];
}

const struct tensor *checkpoint_find(const struct checkpoint *c, const char *name)
{
    size_t k = find_slot(c, name);

    return c->slot[k] ? &c->tensor[c->slot[k] - 1] : NULL;
}

int checkpoint_read_part(const struct checkpoint *c, const struct tensor *t, uint64_t from,
                         size_t n, void *into, struct err *e)
{
    const struct shard *s = &c->shard[t->shard];

    assert(from <= t->bytes && n <= t->bytes - from);
    return read_all(s->fd, into, n, t->offset + from, s->path, e);
}

int checkpoint_read(const struct checkpoint *c, const struct tensor *t, void *into,
                    struct err *e)
{
    return checkpoint_read_part(c, t, 0, t->bytes, into, e);
}
