/* A GPU in the engine: choosing it, moving the dense weights there, and what the runner needs
 * for experts that are seated, pass through, or stay on the CPU. */
#include "src/engine_faults.h"
#include "src/engine_internal.h"
#include "src/feed.h"
#include "src/machine.h"
#include "src/options.h"
#include "src/vram.h"

#include <errno.h>
#include <stdlib.h>

enum { LEAST_MAJOR = 8 };       /* compute capability of the kernels */

static const size_t REFERENCE_BYTES = (size_t)1 << 30;

/* Bytes a second, until something is measured. */
static const double GUESSED_H2D = 12e9, GUESSED_RAM = 40e9;

/* The plain C that stands for a GPU in builds without CUDA, for tests: what it "has" is RAM. */
static int choose_reference(struct engine *g, struct err *e)
{
    struct gpu_facts *f = &g->gpu_facts;

    if (!gpu_is_reference())
        return fail(e, -ENODEV, "--device ref: this program was built with CUDA");
    *f = (struct gpu_facts){ .name = "plain C", .vram_bytes = REFERENCE_BYTES,
                             .free_bytes = REFERENCE_BYTES };
    g->device = 0;
    return 0;
}

static int list(const struct options *o, struct gpu_facts facts[MAX_GPUS], struct err *e)
{
    return o->faults && o->faults->list ? o->faults->list(facts, e) : gpu_list(facts, e);
}

/* Card `want` of the n there are: 0, or -ENODEV with why it cannot be used. */
static int choose_card(struct engine *g, const struct gpu_facts *facts, int n, int want,
                       struct err *e)
{
    const struct gpu_facts *f = &facts[want];

    if (want >= n)
        return fail(e, -ENODEV, "no CUDA device %d (the machine shows %d)", want, n);
    if (f->major < LEAST_MAJOR)
        return fail(e, -ENODEV, "%s has compute capability %d.%d, %d.0 is needed", f->name,
                    f->major, f->minor, (int)LEAST_MAJOR);
    g->gpu_facts = *f;
    g->device = want;
    return 0;
}

int engine_gpu_choose(struct engine *g, const struct options *o, struct err *e)
{
    bool any = !strcmp(o->device, "auto");
    int want = !strncmp(o->device, "cuda:", 5) ? atoi(o->device + 5) : 0, n, rc;
    struct gpu_facts facts[MAX_GPUS];
    struct err why;

    g->device = -1;
    if (!strcmp(o->device, "cpu") || (any && !strcmp(o->kv_type, "f32")))
        return 0;
    if (!strcmp(o->device, "ref"))
        return choose_reference(g, e);
    n = list(o, facts, &why);
    if (any && !n)
        return 0;
    rc = n < 0 ? n : choose_card(g, facts, n, want, &why);
    if (rc && !any)
        return fail(e, -ENODEV, "--device %s: %s", o->device, why.text);
    if (rc)
        warn(g->log, "no GPU is used: %s", why.text);
    else if (facts[want].time_limit && (!o->gpu_watchdog || o->gpu_watchdog > 1))
        warn(g->log, "%s drives a display, so that the driver ends what waits there for seconds: "
             "set --gpu-watchdog to 1, or let another card drive it", facts[want].name);
    return 0;
}

static int upload(struct engine *g, struct err *e)
{
    const struct model *m = g->model;
    struct gpu_ends ends = { &m->embed, m->final_norm, &m->head };
    int rc = gpu_set_ends(g->gpu, &ends, e);

    for (int i = 0; i < m->shape.layers && !rc; i++)
        rc = gpu_set_layer(g->gpu, i, &m->layer[i], e);
    return rc;
}

int engine_gpu_open(struct engine *g, const struct options *o, struct err *e)
{
    struct gpu_config c = placement_gpu(&g->placement, &g->model->shape, g->kv_type);
    int rc;

    c.device = g->device;
    c.watchdog_ms = o->gpu_watchdog * 1000;
    if (o->faults)
        c.faults = o->faults->gpu;
    rc = gpu_open(&g->gpu, &c, e);
    engine_came_to(g, "the GPU is open");
    if (!rc)
        rc = upload(g, e);
    engine_came_to(g, "dense weights are in VRAM");
    if (!rc)
        rc = gpu_capture(g->gpu, 1, e);
    engine_came_to(g, "the step is recorded");
    if (rc)
        return rc;
    model_drop_dense(g->model);
    if (gpu_slow_products(g->gpu) && !gpu_is_reference())
        warn(g->log, "%s was not found: prompts are evaluated by slower kernels",
             gpu_slow_products(g->gpu));
    return 0;
}

static int open_feed(struct engine *g, struct err *e)
{
    const struct placement *p = &g->placement;
    struct feed_config c = { g->gpu, g->experts, p->vram_slots, p->vram_staging };

    return p->vram_staging ? feed_open(&g->feed, &c, e) : 0;
}

/* Bytes a second across PCIe: as kept, as measured now, or a guess. */
static double find_h2d(struct engine *g, const struct options *o)
{
    struct gpu_speeds speeds;
    struct machine m;
    struct err e;

    if (!machine_find(&m, NULL, g->log, &e) &&
        machine_load(&m, o->cache_dir, g->model->checkpoint, g->log) &&
        m.gpu[g->device].h2d_gbps > 0)
        return m.gpu[g->device].h2d_gbps * 1e9;
    return gpu_measure(g->device, &speeds, &e) ? GUESSED_H2D : speeds.h2d_gbps * 1e9;
}

static int open_vram(struct engine *g, const struct options *o, double h2d, struct err *e)
{
    const struct placement *p = &g->placement;
    struct vram_config c = { .model = g->model, .gpu = g->gpu, .experts = g->experts,
                             .slots = p->vram_slots, .fixed = o->deterministic,
                             .exclusive = !p->copies,
                             .h2d_bytes_per_second = h2d, .log = g->log };

    return vram_open(&g->vram, &c, e);
}

int engine_gpu_ready(struct engine *g, const struct options *o, struct err *e)
{
    const struct shape *s = &g->model->shape;
    const struct placement *p = &g->placement;
    struct runner *f = &g->runner;
    double h2d = find_h2d(g, o);
    int rc;

    g->normed = calloc((size_t)SPLIT_TOKENS * (size_t)s->hidden, sizeof(*g->normed));
    if (!g->normed)
        return fail(e, -ENOMEM, "out of memory");
    rc = s->sparse_layers ? open_feed(g, e) : 0;
    f->gpu = g->gpu;
    f->feed = g->feed;
    f->split = &g->split;
    f->normed = g->normed;
    f->step_tokens = 1;
    if (o->deterministic)
        split_fix(&g->split);
    else
        split_guess(&g->split, (double)p->vram_slot_bytes, h2d, GUESSED_RAM);
    if (g->feed && !o->deterministic) {
        upload_open(&g->upload, &(struct upload_config){ g->gpu, g->experts, p->vram_slots,
                                                         p->vram_staging, o->upload_share });
        f->upload = &g->upload;
    }
    if (!rc)
        rc = open_vram(g, o, h2d, e);
    f->vram = g->vram;
    if (!rc && o->deterministic)
        rc = vram_fill(g->vram, e);
    if (!rc)
        info(g->log, "GPU %d, %s: seats for %d experts, %d pass through, PCIe %.1f GB/s", g->device,
             g->gpu_facts.name, p->vram_slots, p->vram_staging, h2d * 1e-9);
    engine_came_to(g, "ready");
    return rc;
}

void engine_gpu_release(struct engine *g)
{
    feed_close(g->feed);
    vram_close(g->vram);
    free(g->normed);
}
