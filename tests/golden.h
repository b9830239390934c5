#ifndef LAGUNA_GOLDEN_H
#define LAGUNA_GOLDEN_H

#include "storage/safetensors.h"
#include "tests/files.h"

#include <stdio.h>
#include <stdlib.h>

/* The golden results of models/nano/golden: a whole safetensors file in memory. */

struct golden {
    char *bytes;
    struct tensor_table table;
};

/* Exits where the file is missing or broken: nothing could be tested without it. */
static inline void golden_open(struct golden *g, const char *file)
{
    char path[4096];
    struct err e;
    uint64_t header;
    long size;
    FILE *f;

    snprintf(path, sizeof(path), "%s/%s", source_dir(), file);
    f = fopen(path, "rb");
    if (!f || fseek(f, 0, SEEK_END) || (size = ftell(f)) < 8)
        exit((perror(path), 99));
    rewind(f);
    g->bytes = malloc((size_t)size);
    if (!g->bytes || fread(g->bytes, 1, (size_t)size, f) != (size_t)size)
        exit((perror(path), 99));
    fclose(f);
    memcpy(&header, g->bytes, sizeof(header));
    if (safetensors_parse(&g->table, g->bytes + 8, header, (uint64_t)size, path, &e))
        exit((fprintf(stderr, "%s\n", e.text), 99));
}

/* The tensor's data and, where n is not NULL, how many elements it has.  Exits if absent. */
static inline const void *golden_find(const struct golden *g, const char *name, int *n)
{
    for (size_t i = 0; i < g->table.count; i++) {
        const struct tensor *t = &g->table.tensor[i];

        if (strcmp(t->name, name))
            continue;
        if (n)
            for (int d = *n = 1; d <= t->rank; d++)
                *n *= (int)t->dim[d - 1];
        return g->bytes + t->offset;
    }
    exit((fprintf(stderr, "no golden tensor %s\n", name), 99));
}

static inline void golden_close(struct golden *g)
{
    tensor_table_free(&g->table);
    free(g->bytes);
}

#endif
