/* Brings together what is known: headers, settings, machine, statistics. */
#include "src/outlook.h"
#include "src/engine.h"
#include "src/fingerprint.h"
#include "src/memory.h"

#include <errno.h>
#include <stdlib.h>

enum { BATCH = 512 };

/* The GPU in use becomes gpu[0].  0, or -ENODEV. */
static int choose_gpu(struct machine *m, const char *device, size_t *vram, struct err *e)
{
    int i = !strncmp(device, "cuda:", 5) ? atoi(device + 5) : 0;

    *vram = 0;
    if (!strcmp(device, "cpu") || (!strcmp(device, "auto") && !m->gpus))
        return 0;
    if (i >= m->gpus)
        return fail(e, -ENODEV, "--device %s: the machine has %d GPUs", device, m->gpus);
    m->gpu[0] = m->gpu[i];
    *vram = m->gpu[0].vram_bytes;
    return 0;
}

static int read_statistics(struct outlook *k, const struct outlook_ask *a, struct err *e)
{
    const struct shape *s = &a->model->shape;
    struct popularity p = { 0 };
    uint64_t fingerprint;
    int rc;

    k->skew = (struct skew){ NULL, k->needs.experts };
    if (!k->needs.experts || !a->options->state_dir)
        return 0;
    rc = fingerprint_of(&fingerprint, a->model, e);
    if (!rc)
        rc = popularity_open(&p, s->sparse_layers, s->experts, fingerprint, e);
    if (!rc && popularity_load(&p, a->options->state_dir, &a->options->log))
        rc = skew_open(&k->skew, &p, e);
    k->statistics = k->skew.share != NULL;
    popularity_close(&p);
    return rc;
}

int outlook_open(struct outlook *k, const struct outlook_ask *a, struct err *e)
{
    struct budget b;
    size_t vram;
    int rc;

    *k = (struct outlook){ .machine = *a->machine };
    rc = choose_gpu(&k->machine, a->options->device, &vram, e);
    if (!rc)
        rc = needs_of(&k->needs, a->model, e);
    if (!rc)
        rc = read_statistics(k, a, e);
    if (rc)
        return rc;
    k->needs.scratch_bytes = a->scratch_bytes;
    budget_fill(&b, a->options, a->ram_free_bytes, k->machine.ram_bytes, vram);
    b.batch = a->batch;
    b.context = a->context ? a->context : b.context;
    k->kv_type = b.kv_type;
    placement_plan(&k->placement, &k->needs, &b);
    k->prediction = outlook_at(k, 0);
    return 0;
}

void outlook_close(struct outlook *k)
{
    skew_close(&k->skew);
}

struct prediction outlook_at(const struct outlook *k, int depth)
{
    struct prediction p;

    predict(&p, &k->needs, &k->placement, k->kv_type, &k->machine, &k->skew, depth);
    return p;
}

bool outlook_of_engine(struct outlook *out, const struct engine *g, struct options *o)
{
    const struct model *m = engine_model(g);
    struct machine machine;
    struct memory memory = memory_find("");
    struct outlook_ask a = { .model = m, .options = o, .machine = &machine, .batch = BATCH,
                             .context = engine_context(g) };
    struct err e;

    *out = (struct outlook){ .statistics = false };
    /* What is loaded counts as free: the plan was made before it was. */
    a.ram_free_bytes = add_sat(memory.free_bytes, m->arena_bytes);
    a.ram_free_bytes = add_sat(a.ram_free_bytes, engine_expert_bytes(g));
    return !machine_find(&machine, NULL, &o->log, &e) &&
           machine_load(&machine, o->cache_dir, m->checkpoint, &o->log) &&
           !outlook_open(out, &a, &e);
}
