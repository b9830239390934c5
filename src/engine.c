/* Opening a model on this machine: check the directory, decide sizes, load. */
#include "src/engine.h"
#include "src/engine_internal.h"
#include "src/directory.h"
#include "src/engine_faults.h"
#include "src/memory.h"
#include "src/options.h"
#include "src/snapshots.h"
#include "src/tokentrie.h"
#include "src/vram.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

/* A line on the terminal that grows, in steps one can see; nothing where stderr is a file. */
static void show_progress(void *arg, size_t done, size_t total)
{
    struct engine *g = arg;
    int percent = total ? (int)(done * 100.0 / (double)total) : 100;

    if (g->log->level == LOG_QUIET || !isatty(2) || percent == g->shown_percent)
        return;
    g->shown_percent = percent;
    fprintf(stderr, "\rloading %3d %% of %.1f GB%s", percent, (double)total * 1e-9,
            percent == 100 ? "\r\033[K" : "");
}

void engine_came_to(const struct engine *g, const char *what)
{
    info(g->log, "%.2f s: %s", clock_now() - g->opened, what);
}

static int choose_kernels(struct engine *g, const char *isa, struct err *e)
{
    bool best = !strcmp(isa, "auto");

    g->kernels = best ? cpu_kernels_best() : cpu_kernels(cpu_isa_named(isa));
    if (!g->kernels)
        return best ? fail(e, -ENOTSUP, "this processor has no AVX2 (or the system hides it): "
                           "only --isa ref runs here")
                    : fail(e, -ENOTSUP, "--isa %s: this machine lacks it", isa);
    return 0;
}

/* With a GPU the CPU computes routed experts, for as many tokens as it ever gets. */
static struct cpu_config cpu_needs(const struct engine *g, int batch)
{
    bool helps = g->device >= 0;

    return (struct cpu_config){ .shape = &g->model->shape, .kernels = g->kernels, .pool = g->pool,
                                .threads = pool_threads(g->pool), .experts_only = helps,
                                .batch = helps && batch > SPLIT_TOKENS ? SPLIT_TOKENS : batch };
}

/* The planner's word on what goes where, from what this machine has. */
static int place(struct engine *g, struct options *o, struct err *e)
{
    struct cpu_config cc = cpu_needs(g, ENGINE_BATCH);
    struct placement *p = &g->placement;
    struct memory memory = memory_find("");
    struct room room = { memory.free_bytes, memory.total_bytes, g->gpu_facts.free_bytes,
                         g->gpu_facts.vram_bytes, g->device < 0 ? 0 : g->device };
    struct needs needs;
    struct budget b;
    int rc = needs_of(&needs, g->model, e);

    if (rc)
        return rc;
    if (o->context > g->model->shape.max_positions)
        return fail(e, -ENOTSUP, "-c %d: the model has positions for %d tokens", o->context,
                    g->model->shape.max_positions);
    if (room.vram_total && o->vram_bytes[room.card] > (int64_t)room.vram_free)
        return fail(e, -ENOMEM, "--vram: %jd MB are asked for, %zu of %zu MB are free on %s",
                    (intmax_t)(o->vram_bytes[room.card] >> 20), room.vram_free >> 20,
                    room.vram_total >> 20, g->gpu_facts.name);
    budget_fill(&b, o, &room);
    b.batch = ENGINE_BATCH;
    b.snapshots = SNAPSHOTS;
    g->kv_type = b.kv_type;
    needs.scratch_bytes = cpu_scratch_bytes(&cc);
    placement_plan(p, &needs, &b);
    return p->fits ? 0 : fail(e, -ENOMEM, "%s", p->why);
}

static int load_experts(struct engine *g, const struct options *o, struct err *e)
{
    static const char *const backends[] = { [STREAM_AUTO] = "auto", [STREAM_URING] = "uring",
                                            [STREAM_PREADV] = "preadv" };
    const struct placement *p = &g->placement;
    /* Who bounds the slots wants slots, and no reading ahead of the first request. */
    bool all = o->ram_experts_bytes == SIZE_AUTO && !p->nvme && g->device < 0;
    struct experts_config c = {
        .model = g->model, .pool = g->pool, .slot_bytes = p->slot_bytes,
        .stream = { .depth = o->io_depth },
        .slots = all ? EXPERTS_ALL : placement_slots(p),
        .state_dir = o->state_dir, .guess = o->guess, .log = g->log, .copies = p->copies,
        .progress = show_progress, .arg = g,
    };

    for (int i = STREAM_AUTO; i <= STREAM_PREADV; i++)
        if (!strcmp(o->io, backends[i]))
            c.stream.backend = (enum stream_backend)i;
    if (o->faults) {
        c.stream.fault = o->faults->read;
        c.stream.fault_arg = o->faults->read_arg;
    }
    if (g->device >= 0) {
        c.pin = gpu_pin;
        c.unpin = gpu_unpin;
    }
    return experts_open(&g->experts, &c, e);
}

static int load(struct engine *g, const struct options *o, struct err *e)
{
    struct cpu_config cc = cpu_needs(g, g->placement.batch);
    int rc = model_load_dense(g->model, pool_threads(g->pool), show_progress, g, e);

    engine_came_to(g, "dense weights are read");
    if (!rc && g->device >= 0)
        rc = engine_gpu_open(g, o, e);
    if (!rc)
        rc = load_experts(g, o, e);
    engine_came_to(g, "experts are open");
    if (g->shown_percent % 100)
        fputs("\r\033[K", stderr);
    if (!rc)
        rc = cpu_open(&g->cpu, &cc, e);
    if (rc)
        return rc;
    g->runner = (struct runner){ .model = g->model, .cpu = g->cpu, .experts = g->experts,
                                 .batch = g->placement.batch };
    info(g->log, "%s kernels, %d threads, %d tokens of context, %s KV", g->kernels->name,
         pool_threads(g->pool), g->placement.context, o->kv_type);
    return g->device < 0 ? 0 : engine_gpu_ready(g, o, e);
}

int engine_open(struct engine **out, struct options *o, struct err *e)
{
    struct engine *g = calloc(1, sizeof(*g));
    int rc;

    if (!g)
        return fail(e, -ENOMEM, "out of memory");
    g->log = &o->log;
    g->opened = clock_now();
    rc = directory_open(&g->model, &g->tokenizer, o->model_dir, g->log, e);
    engine_came_to(g, "headers and tokenizer are read");
    if (!rc)
        rc = engine_gpu_choose(g, o, e);
    if (!rc)
        rc = choose_kernels(g, o->isa, e);
    if (!rc)
        rc = pool_open(&g->pool, &(struct pool_config){ .threads = o->threads, .pin = true }, e);
    if (!rc)
        rc = place(g, o, e);
    engine_came_to(g, "it is planned what goes where");
    if (!rc)
        rc = load(g, o, e);
    if (!rc && o->trace_routes)
        rc = trace_open(&g->trace, o->trace_routes, g->model->shape.sparse_layers,
                        g->model->shape.topk, g->model->shape.experts, e);
    if (rc) {
        engine_close(g);
        return rc;
    }
    *out = g;
    return 0;
}

void engine_close(struct engine *g)
{
    struct err e;

    if (!g)
        return;
    if (g->experts)
        engine_save(g);
    if (trace_close(g->trace, &e))
        warn(g->log, "%s", e.text);
    engine_gpu_release(g);
    cpu_close(g->cpu);
    if (experts_close(g->experts))
        return;                         /* the drive still writes into what would be freed */
    gpu_close(g->gpu);
    pool_close(g->pool);
    tokentrie_close(g->trie);
    tokenizer_close(g->tokenizer);
    model_close(g->model);
    free(g);
}

const struct model *engine_model(const struct engine *g)
{
    return g->model;
}

const struct tokenizer *engine_tokenizer(const struct engine *g)
{
    return g->tokenizer;
}

int engine_tokentrie(struct engine *g, const struct tokentrie **out, struct err *e)
{
    int rc = g->trie ? 0 : tokentrie_open(&g->trie, g->tokenizer, e);

    *out = g->trie;
    return rc;
}

int engine_context(const struct engine *g)
{
    return g->placement.context;
}

const struct placement *engine_placement(const struct engine *g)
{
    return &g->placement;
}

const struct popularity *engine_popularity(const struct engine *g)
{
    return g->model->shape.sparse_layers ? experts_popularity(g->experts) : NULL;
}

const char *engine_isa(const struct engine *g)
{
    return g->kernels->name;
}

int engine_threads(const struct engine *g)
{
    return pool_threads(g->pool);
}

const char *engine_gpu_name(const struct engine *g)
{
    return g->gpu ? g->gpu_facts.name : NULL;
}

struct vram_stats engine_vram(const struct engine *g)
{
    return g->vram ? vram_stats(g->vram) : (struct vram_stats){ 0 };
}

void engine_begin(struct engine *g)
{
    pool_begin(g->pool);
}

void engine_end(struct engine *g)
{
    pool_end(g->pool);
}

int engine_warm(struct engine *g, struct err *e)
{
    int rc = g->vram ? vram_fill(g->vram, e) : 0;

    if (!rc)
        experts_fill(g->experts);
    return rc;
}

int engine_idle(struct engine *g, double seconds, struct err *e)
{
    bool more = experts_poll(g->experts);
    int rc = 0;

    if (g->vram) {
        vram_advance(g->vram, seconds);
        more |= vram_pending(g->vram);
        rc = vram_fault(g->vram, e);
    }
    return rc ? rc : more;
}

void engine_request_done(struct engine *g)
{
    if (g->trace)
        trace_request(g->trace);
}

void engine_save(struct engine *g)
{
    experts_save(g->experts);
}

struct tier_counts engine_tiers(const struct engine *g)
{
    return experts_counts(g->experts);
}

struct run_times engine_times(const struct engine *g)
{
    return g->runner.times;
}
