#ifndef LAGUNA_TESTS_FILES_H
#define LAGUNA_TESTS_FILES_H

#include <dirent.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

/* Files of tests: where the data lies, and temporary directories (flat: no folders in them). */

/* Seconds this process has computed: limits on speed must not depend on its neighbours. */
static inline double cpu_seconds(void)
{
    struct timespec t;

    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static inline const char *source_dir(void)
{
    const char *dir = getenv("srcdir");

    return dir ? dir : ".";
}

/* "$srcdir/NAME"; the caller frees. */
static inline char *source_path(const char *name)
{
    size_t n = strlen(source_dir()) + strlen(name) + 2;
    char *path = malloc(n);

    snprintf(path, n, "%s/%s", source_dir(), name);
    return path;
}

/* A new empty directory; remove_dir() frees the name. */
static inline char *temp_dir(void)
{
    const char *base = getenv("TMPDIR");
    char *path = malloc(4096);

    snprintf(path, 4096, "%s/laguna.XXXXXX", base ? base : "/tmp");
    if (!mkdtemp(path)) {
        perror(path);
        exit(99);
    }
    return path;
}

static inline void join_path(char out[4096], const char *dir, const char *file)
{
    snprintf(out, 4096, "%s/%s", dir, file);
}

static inline void remove_dir(char *dir)
{
    DIR *d = opendir(dir);
    struct dirent *f;
    char path[4096];

    while (d && (f = readdir(d))) {
        join_path(path, dir, f->d_name);
        if (unlink(path))
            rmdir(path);
    }
    if (d)
        closedir(d);
    rmdir(dir);
    free(dir);
}

static inline void write_file(const char *dir, const char *name, const void *data, size_t n)
{
    char path[4096];
    FILE *f;

    join_path(path, dir, name);
    f = fopen(path, "wb");
    if (!f || fwrite(data, 1, n, f) != n || fclose(f)) {
        perror(path);
        exit(99);
    }
}

/* Whole, with a NUL behind; the caller frees. */
static inline char *read_file(const char *dir, const char *name, size_t *n)
{
    char path[4096], *data;
    struct stat st;
    FILE *f;

    join_path(path, dir, name);
    f = fopen(path, "rb");
    if (!f || fstat(fileno(f), &st)) {
        perror(path);
        exit(99);
    }
    data = malloc((size_t)st.st_size + 1);
    if (fread(data, 1, (size_t)st.st_size, f) != (size_t)st.st_size)
        exit(99);
    data[st.st_size] = 0;
    fclose(f);
    if (n)
        *n = (size_t)st.st_size;
    return data;
}

/* A safetensors file of `data_bytes` zero bytes (or data, where not NULL) behind `header`. */
static inline void write_shard(const char *dir, const char *name, const char *header,
                               const void *data, size_t data_bytes)
{
    size_t n = strlen(header), i;
    char *all = calloc(8 + n + data_bytes, 1);

    for (i = 0; i < 8; i++)
        all[i] = (char)((uint64_t)n >> 8 * i);
    memcpy(all + 8, header, n);
    if (data)
        memcpy(all + 8 + n, data, data_bytes);
    write_file(dir, name, all, 8 + n + data_bytes);
    free(all);
}

#endif
