/* Opening a checkpoint as a model: the files beside the shards, then every tensor's place.
 * Reads headers only (and the few numbers of weight_shape); the weights are model_load.c. */
#include "src/model.h"

#include "src/model_bind.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <xxhash.h>

enum { CONFIG_BYTES_MAX = 1 << 20, NAME_CAP = 4096 };

/* What tells this model from another: its shape, and where each tensor lies.  The weights
 * themselves are not read. */
static uint64_t mix_tensors(const struct checkpoint *c, uint64_t h)
{
    for (size_t i = 0; i < checkpoint_count(c); i++) {
        const struct tensor *t = checkpoint_tensor(c, i);

        h = XXH3_64bits_withSeed(t->name, strlen(t->name), h);
        h = XXH3_64bits_withSeed(&t->offset, sizeof(t->offset), h);
        h = XXH3_64bits_withSeed(&t->bytes, sizeof(t->bytes), h);
    }
    return h;
}

static int read_config(struct model *m, struct quant **q, const char *dir, struct err *e)
{
    char name[NAME_CAP], *text = NULL;
    size_t n;
    int rc = checkpoint_file(dir, "config.json", CONFIG_BYTES_MAX, &text, &n, e);

    if (rc)
        return rc;
    snprintf(name, sizeof(name), "%s/config.json", dir);
    rc = shape_read(&m->shape, text, n, name, e);
    if (!rc)
        rc = quant_read(q, text, n, name, e);
    if (!rc)
        m->fingerprint = mix_tensors(m->checkpoint, XXH3_64bits(text, n));
    free(text);
    return rc;
}

static int read_generation(struct model *m, const char *dir, struct err *e)
{
    char name[NAME_CAP], *text = NULL;
    size_t n = 0;
    int rc = checkpoint_file(dir, "generation_config.json", CONFIG_BYTES_MAX, &text, &n, e);

    if (rc && rc != -ENOENT)
        return rc;
    snprintf(name, sizeof(name), "%s/generation_config.json", dir);
    rc = shape_read_generation(&m->shape, &m->defaults, text ? text : "{}", text ? n : 2, name,
                               e);
    free(text);
    return rc;
}

int model_open(struct model **out, const char *dir, struct log *l, struct err *e)
{
    struct model *m = calloc(1, sizeof(*m));
    struct quant *q = NULL;
    int rc;

    if (!m)
        return fail(e, -ENOMEM, "%s: no memory", dir);
    rc = checkpoint_open(&m->checkpoint, dir, l, e);
    if (!rc)
        rc = read_config(m, &q, dir, e);
    if (!rc)
        rc = read_generation(m, dir, e);
    if (!rc)
        rc = model_bind(m, q, l, e);
    quant_free(q);
    if (rc) {
        model_close(m);
        return rc;
    }
    *out = m;
    return 0;
}

void model_close(struct model *m)
{
    if (!m)
        return;
    if (m->arena)
        munmap(m->arena, m->arena_bytes);
    checkpoint_close(m->checkpoint);
    free(m->expert);
    free(m->load);
    free(m);
}
