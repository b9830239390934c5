#ifndef LAGUNA_ENGINE_BED_H
#define LAGUNA_ENGINE_BED_H

#include "src/engine.h"
#include "src/options.h"
#include "tests/files.h"
#include "tests/tap.h"

/* An engine with nano and one session, for tests that compare what it computes. */

struct bed {
    struct options o;           /* the caller may change them before bed_open() */
    struct engine *g;
    struct session *s;
    float *last;                /* [vocab]: the logits of the last position */
    int vocab;
    struct err e;               /* of the last call that failed */
};

/* Plain C kernels, the same bits every time, and so little VRAM that a batch is one of 512 tokens,
 * which the rings outlast. */
static inline void bed_settings(struct bed *b, const char *device)
{
    static char dir[4096];

    snprintf(dir, sizeof(dir), "%s/models/nano", source_dir());
    *b = (struct bed){ .o = { .model_dir = dir, .isa = "ref", .kv_type = "bf16", .threads = 2,
                              .device = device, .context = 1024, .ram_bytes = SIZE_AUTO,
                              .ram_experts_bytes = SIZE_AUTO, .vram_experts_bytes = SIZE_AUTO,
                              .vram_reserve_bytes = SIZE_AUTO, .io = "auto", .io_depth = 4,
                              .deterministic = true, .log = { .level = LOG_QUIET } } };
    for (int i = 0; i < OPTION_GPUS; i++)
        b->o.vram_bytes[i] = 100 << 20;
}

static inline bool bed_open(struct bed *b)
{
    int rc = engine_open(&b->g, &b->o, &b->e);

    if (!rc)
        rc = session_open(&b->s, b->g, &b->e);
    ok(!rc, "%s opens: %s", b->o.device, b->e.text);
    if (rc)
        return false;
    b->vocab = engine_model(b->g)->shape.vocab;
    b->last = calloc((size_t)b->vocab, sizeof(*b->last));
    return b->last;
}

static inline void bed_close(struct bed *b)
{
    session_close(b->s);
    engine_close(b->g);
    free(b->last);
}

/* For struct eval: arg is the bed. */
static inline int bed_keep(void *arg, const struct position *p)
{
    struct bed *b = arg;

    memcpy(b->last, p->logits, (size_t)b->vocab * sizeof(*b->last));
    return 0;
}

static inline int bed_best(const struct bed *b)
{
    int at = 0;

    for (int i = 1; i < b->vocab; i++)
        if (b->last[i] > b->last[at])
            at = i;
    return at;
}

#endif
