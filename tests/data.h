#ifndef LAGUNA_TEST_DATA_H
#define LAGUNA_TEST_DATA_H

#include "tests/files.h"

/* The whole file `name` of the source tree, NUL-terminated, or NULL.  The caller frees. */
static inline char *data_read(const char *name, size_t *n)
{
    char path[1024], *s = NULL;
    long size;
    FILE *f;

    snprintf(path, sizeof(path), "%s/%s", source_dir(), name);
    f = fopen(path, "rb");
    if (!f)
        return NULL;
    fseek(f, 0, SEEK_END);
    size = ftell(f);
    rewind(f);
    if (size >= 0)
        s = malloc((size_t)size + 1);
    *n = s ? fread(s, 1, (size_t)size, f) : 0;
    if (s)
        s[*n] = 0;
    fclose(f);
    return s;
}

#endif
