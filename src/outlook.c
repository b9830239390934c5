/* Brings together what is known: headers, settings, machine, statistics. */
#include "src/snapshots.h"
#include "src/outlook.h"
#include "cpu/kv.h"
#include "src/engine.h"

#include <errno.h>
#include <stdlib.h>

/* The GPU in use becomes gpu[0]; *card is its number, or -1: none is. */
static int choose_gpu(struct machine *m, const char *device, int *card, struct err *e)
{
    int i = !strncmp(device, "cuda:", 5) ? atoi(device + 5) : 0;

    *card = -1;
    if (!strcmp(device, "cpu") || (!strcmp(device, "auto") && !m->gpus))
        return 0;
    *card = i;
    if (i >= m->gpus)
        return fail(e, -ENODEV, "--device %s: the machine has %d GPUs", device, m->gpus);
    m->gpu[0] = m->gpu[i];
    return 0;
}

static struct room room_of(const struct machine *m, int card, size_t ram_free)
{
    const struct machine_gpu *g = &m->gpu[0];
    struct room r = { .ram_free = ram_free, .ram_total = m->ram_bytes };

    if (card >= 0) {
        r.card = card;
        r.vram_total = g->vram_bytes;
        r.vram_free = g->free_bytes ? g->free_bytes : g->vram_bytes;
    }
    return r;
}

int statistics_open(struct popularity *p, const struct model *m, struct options *o,
                    struct err *e)
{
    const struct shape *s = &m->shape;
    const char *dir = o->state_dir;
    int rc;

    *p = (struct popularity){ 0 };
    if (!s->sparse_layers)
        return fail(e, -ENOENT, "%s has no routed experts", o->model_dir);
    if (!dir)
        return fail(e, -ENOENT, "there is no place for statistics: see --state-dir");
    rc = popularity_open(p, s->sparse_layers, s->experts, m->fingerprint, e);
    if (!rc && !popularity_load(p, dir, &o->log))
        rc = fail(e, -ENOENT, "%s has no statistics of this model: they are kept after each "
                  "request", dir);
    return rc;
}

static int read_statistics(struct outlook *k, const struct outlook_ask *a, struct err *e)
{
    struct popularity p;
    int rc = statistics_open(&p, a->model, a->options, e);

    if (!rc)
        rc = skew_open(&k->skew, &p, e);
    popularity_close(&p);
    return rc == -ENOENT ? 0 : rc;
}

int outlook_open(struct outlook *k, const struct outlook_ask *a, struct err *e)
{
    struct budget b;
    struct room room;
    int card, rc;

    *k = (struct outlook){ .machine = *a->machine };
    rc = choose_gpu(&k->machine, a->options->device, &card, e);
    if (!rc)
        rc = needs_of(&k->needs, a->model, e);
    k->skew.experts = k->needs.experts;
    if (!rc)
        rc = read_statistics(k, a, e);
    if (rc)
        return rc;
    k->needs.scratch_bytes = a->scratch_bytes;
    room = room_of(&k->machine, card, a->ram_free_bytes);
    budget_fill(&b, a->options, &room);
    b.batch = ENGINE_BATCH;
    b.snapshots = SNAPSHOTS;
    k->kv_type = b.kv_type;
    k->vram_budget_bytes = b.vram_bytes;
    k->vram_free_bytes = room.vram_free;
    placement_plan(&k->placement, &k->needs, &b);
    k->prediction = outlook_at(k, 0);
    return 0;
}

void outlook_close(struct outlook *k)
{
    skew_close(&k->skew);
}

bool outlook_of(struct outlook *k, const struct engine *g, struct options *o)
{
    const struct model *m = engine_model(g);
    const struct popularity *p = engine_popularity(g);
    struct err e;
    int card;

    *k = (struct outlook){ .placement = *engine_placement(g),
                           .kv_type = kv_type_named(o->kv_type) };
    if (needs_of(&k->needs, m, &e) || machine_find(&k->machine, NULL, &o->log, &e) ||
        !machine_load(&k->machine, o->cache_dir, m->checkpoint, &o->log) ||
        choose_gpu(&k->machine, o->device, &card, &e))
        return false;
    k->skew.experts = k->needs.experts;
    if (p && skew_open(&k->skew, p, &e))
        return false;
    k->prediction = outlook_at(k, 0);
    return true;
}

struct prediction outlook_at(const struct outlook *k, int depth)
{
    struct prediction p;

    predict(&p, &k->needs, &k->placement, k->kv_type, &k->machine, &k->skew, depth);
    return p;
}
