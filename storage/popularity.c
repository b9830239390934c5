#include "config.h"

#include "storage/popularity.h"

#include <assert.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

/* File: "LAGPOP" and two bytes of version; u32 layers, u32 experts, u64 fingerprint; for
 * [layers][experts] two float32, recent and lasting, in units of a use at the time of saving;
 * XXH3-64 of all before it.  Little-endian, as every machine this runs on. */

static const char magic[8] = "LAGPOP\0\1";

enum { HEADER = 24, SUM = 8, ENTRY = 8, NAME = 64, ASIDE = 3 };

static const double complain_seconds = 3600;

int popularity_open(struct popularity *p, int layers, int experts, uint64_t fingerprint,
                    struct err *e)
{
    *p = (struct popularity){ layers, experts, fingerprint, NULL, NULL, -INFINITY };
    p->layer = calloc((size_t)layers, sizeof(*p->layer));
    p->use = calloc((size_t)layers * (size_t)experts, sizeof(*p->use));
    if (!p->layer || !p->use) {
        popularity_close(p);
        return fail(e, -ENOMEM, "statistics of %d x %d experts: out of memory", layers, experts);
    }
    for (int i = 0; i < layers; i++)
        policy_init(&p->layer[i], p->use + (size_t)i * experts, experts);
    return 0;
}

void popularity_close(struct popularity *p)
{
    free(p->layer);
    free(p->use);
    p->layer = NULL;
    p->use = NULL;
}

size_t popularity_bytes(int layers, int experts)
{
    return HEADER + (size_t)layers * (size_t)experts * ENTRY + SUM;
}

void popularity_write(const struct popularity *p, uint8_t *out)
{
    uint32_t shape[2] = { (uint32_t)p->layers, (uint32_t)p->experts };
    uint8_t *at = out + HEADER;
    XXH64_hash_t sum;

    memcpy(out, magic, sizeof(magic));
    memcpy(out + 8, shape, sizeof(shape));
    memcpy(out + 16, &p->fingerprint, 8);
    for (int i = 0; i < p->layers; i++) {
        const struct policy_layer *l = &p->layer[i];

        for (int k = 0; k < p->experts; k++, at += ENTRY) {
            float v[2] = { l->use[k].recent / l->recent_unit,
                           l->use[k].lasting / l->lasting_unit };

            memcpy(at, v, sizeof(v));
        }
    }
    sum = XXH3_64bits(out, (size_t)(at - out));
    memcpy(at, &sum, SUM);
}

/* No sum of uses that decays can pass its limit; the factor allows for rounding. */
static bool plausible(const float v[2])
{
    return v[0] >= 0 && v[1] >= 0 && v[0] < 2.0f * POLICY_RECENT && v[1] < 2.0f * POLICY_LASTING;
}

int popularity_read(struct popularity *p, const uint8_t *in, size_t n, struct err *e)
{
    size_t entries = (size_t)p->layers * (size_t)p->experts;
    uint32_t shape[2];
    uint64_t fingerprint, sum;

    if (n != popularity_bytes(p->layers, p->experts))
        return fail(e, -EBADMSG, "%zu of %zu bytes", n, popularity_bytes(p->layers, p->experts));
    if (memcmp(in, magic, sizeof(magic)))
        return fail(e, -EBADMSG, "not statistics of this version");
    memcpy(shape, in + 8, sizeof(shape));
    memcpy(&fingerprint, in + 16, 8);
    if (shape[0] != (uint32_t)p->layers || shape[1] != (uint32_t)p->experts ||
        fingerprint != p->fingerprint)
        return fail(e, -EBADMSG, "statistics of another model");
    memcpy(&sum, in + n - SUM, SUM);
    if (sum != XXH3_64bits(in, n - SUM))
        return fail(e, -EBADMSG, "checksum does not match");
    for (size_t i = 0; i < entries; i++) {
        float v[2];

        memcpy(v, in + HEADER + i * ENTRY, sizeof(v));
        if (!plausible(v))
            return fail(e, -EBADMSG, "expert %zu was used %g and %g times", i, v[0], v[1]);
    }
    for (int i = 0; i < p->layers; i++)
        p->layer[i].recent_unit = p->layer[i].lasting_unit = 1;
    for (size_t i = 0; i < entries; i++) {
        memcpy(&p->use[i].recent, in + HEADER + i * ENTRY, 4);
        memcpy(&p->use[i].lasting, in + HEADER + i * ENTRY + 4, 4);
    }
    return 0;
}

static void file_name(const struct popularity *p, char out[NAME])
{
    snprintf(out, NAME, "popularity-%016jx", (uintmax_t)p->fingerprint);
}

/* Temporary files of processes that died in a save. */
static void sweep(int dir, const char *name)
{
    int fd = openat(dir, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *d = fd < 0 ? NULL : fdopendir(fd);
    struct dirent *entry;
    size_t n = strlen(name);

    if (!d) {
        if (fd >= 0)
            close(fd);
        return;
    }
    while ((entry = readdir(d))) {
        const char *s = entry->d_name;
        long pid;

        if (*s != '.' || strncmp(s + 1, name, n) || s[n + 1] != '.')
            continue;
        pid = strtol(s + n + 2, NULL, 10);
        if (pid > 0 && kill((pid_t)pid, 0) && errno == ESRCH)
            unlinkat(dir, s, 0);
    }
    closedir(d);
}

static void set_aside(int dir, const char *name, const char *where, const char *why,
                      struct log *l)
{
    char to[NAME + 16];

    for (int i = 1; i <= ASIDE; i++) {
        snprintf(to, sizeof(to), "%s.corrupt-%d", name, i);
        if (i == ASIDE || faccessat(dir, to, F_OK, AT_SYMLINK_NOFOLLOW))
            break;
    }
    if (renameat(dir, name, dir, to))
        warn(l, "%s/%s: %s; ignored", where, name, why);
    else
        warn(l, "%s/%s: %s; set aside as %s", where, name, why, to);
}

/* At most `limit` bytes of a regular file; the number, or a negative errno. */
static ssize_t read_small(int dir, const char *name, uint8_t *out, size_t limit)
{
    int fd = openat(dir, name, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOFOLLOW);
    struct stat st;
    size_t n = 0;
    ssize_t got = 1;

    if (fd < 0)
        return -errno;
    if (fstat(fd, &st) || !S_ISREG(st.st_mode)) {
        close(fd);
        return -EBADMSG;
    }
    while (n < limit && got > 0) {
        got = read(fd, out + n, limit - n);
        if (got > 0)
            n += (size_t)got;
        else if (got < 0 && errno == EINTR)
            got = 1;
    }
    if (got < 0)
        got = -errno;
    close(fd);
    return got < 0 ? got : (ssize_t)n;
}

bool popularity_load(struct popularity *p, const char *dir, struct log *l)
{
    size_t limit = popularity_bytes(p->layers, p->experts) + 1;
    int at = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    uint8_t *bytes = malloc(limit);
    bool good = false;
    char name[NAME];
    struct err e;
    ssize_t n;

    if (at >= 0 && bytes) {
        file_name(p, name);
        sweep(at, name);
        n = read_small(at, name, bytes, limit);
        good = n >= 0 && !popularity_read(p, bytes, (size_t)n, &e);
        if (n >= 0 && !good)
            set_aside(at, name, dir, e.text, l);
        else if (n == -EBADMSG || n == -ELOOP)
            set_aside(at, name, dir, "not a regular file", l);
        else if (n < 0 && n != -ENOENT)
            warn(l, "%s/%s: %s; ignored", dir, name, strerror((int)-n));
    }
    free(bytes);
    if (at >= 0)
        close(at);
    return good;
}

static int write_all(int fd, const uint8_t *bytes, size_t n)
{
    while (n) {
        ssize_t put = write(fd, bytes, n);

        if (put < 0 && errno == EINTR)
            continue;
        if (put <= 0)
            return put ? -errno : -EIO;
        bytes += put;
        n -= (size_t)put;
    }
    return fdatasync(fd) ? -errno : 0;
}

/* Write beside, then rename over; the directory is synced so that the rename survives a
 * power cut.  Each process has its own temporary file: of two servers the last one wins. */
static int replace(int dir, const char *name, const uint8_t *bytes, size_t n)
{
    char temporary[NAME + 32];
    int fd, rc;

    snprintf(temporary, sizeof(temporary), ".%s.%ld", name, (long)getpid());
    unlinkat(dir, temporary, 0);
    fd = openat(dir, temporary, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    if (fd < 0)
        return -errno;
    /* Whatever the umask: one of 0777 would leave a file that the next run cannot read. */
    rc = fchmod(fd, 0600) ? -errno : write_all(fd, bytes, n);
    if (close(fd) && !rc)
        rc = -errno;
    if (!rc && renameat(dir, temporary, dir, name))
        rc = -errno;
    if (rc)
        unlinkat(dir, temporary, 0);
    else if (fsync(dir))
        rc = -errno;
    return rc;
}

int popularity_save(struct popularity *p, const char *dir, struct log *l)
{
    size_t n = popularity_bytes(p->layers, p->experts);
    uint8_t *bytes = malloc(n);
    int at = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    int rc = at < 0 ? -errno : 0;
    char name[NAME];

    if (!bytes)
        rc = -ENOMEM;
    file_name(p, name);
    if (!rc) {
        popularity_write(p, bytes);
        rc = replace(at, name, bytes, n);
    }
    if (at >= 0)
        close(at);
    free(bytes);
    if (rc && clock_now() - p->complained > complain_seconds) {
        warn(l, "%s/%s: %s; the router's statistics are not saved", dir, name, strerror(-rc));
        p->complained = clock_now();
    }
    return rc;
}
