#ifndef LAGUNA_TESTS_DAMAGE_H
#define LAGUNA_TESTS_DAMAGE_H

#include "storage/checkpoint.h"
#include "tests/files.h"

#include <fcntl.h>

/* Models with something wrong in them: copies of the two-layer cuts in tests/data. */

/* A copy that may be damaged; remove_dir() frees it. */
static inline char *copy_model(const char *name)
{
    static const char *const files[] = { "config.json", "generation_config.json",
                                         "chat_template.jinja", "tokenizer.json",
                                         "model.safetensors" };
    char *from = source_path(name), *dir = temp_dir();

    for (size_t i = 0; i < sizeof(files) / sizeof(files[0]); i++) {
        size_t n;
        char *data = read_file(from, files[i], &n);

        write_file(dir, files[i], data, n);
        free(data);
    }
    free(from);
    return dir;
}

/* Other bytes from byte `at` of a tensor on. */
static inline void patch_at(const char *dir, const char *tensor, size_t at, const void *bytes,
                            size_t n)
{
    struct checkpoint *c = NULL;
    struct log l = { .level = LOG_QUIET };
    const struct tensor *t;
    struct err e;
    int fd;

    if (checkpoint_open(&c, dir, &l, &e) || !(t = checkpoint_find(c, tensor)))
        exit((printf("Bail out! %s\n", tensor), 99));
    fd = open(checkpoint_path(c, t->shard), O_WRONLY);
    if (fd < 0 || pwrite(fd, bytes, n, (off_t)(t->offset + at)) != (ssize_t)n)
        exit((perror(dir), 99));
    close(fd);
    checkpoint_close(c);
}

static inline void patch(const char *dir, const char *tensor, const void *bytes, size_t n)
{
    patch_at(dir, tensor, 0, bytes, n);
}

#endif
