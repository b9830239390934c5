/* Opening a model on this machine: check the directory, decide sizes, load. */
#include "src/engine.h"
#include "src/engine_internal.h"
#include "src/chat.h"
#include "src/memory.h"
#include "src/options.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

enum {
    BATCH = 512,                /* enough tokens to read each weight once for many of them */
    CONTEXT_STEP = 4096,
    CONTEXT_LEAST = 8192,
    TOKENIZER_LIMIT = 64 << 20,
    TEMPLATE_LIMIT = 1 << 20,
};

/* A line on the terminal that grows; nothing where stderr is a file. */
static void show_progress(void *arg, size_t done, size_t total)
{
    struct log *l = arg;

    if (l->level > LOG_QUIET && isatty(2))
        fprintf(stderr, "\rloading %5.1f of %.1f GB%s", (double)done * 1e-9, (double)total * 1e-9,
                done >= total ? "\r\033[K" : "");
}

static int open_tokenizer(struct engine *g, const char *dir, struct err *e)
{
    char *text = NULL, name[4096];
    size_t n;
    int rc = checkpoint_file(dir, "tokenizer.json", TOKENIZER_LIMIT, &text, &n, e);

    if (rc)
        return rc;
    snprintf(name, sizeof(name), "%s/tokenizer.json", dir);
    rc = tokenizer_open(&g->tokenizer, text, n, name, g->model->shape.vocab, e);
    free(text);
    return rc;
}

static int check_template(struct engine *g, const char *dir, struct err *e)
{
    char *text = NULL;
    size_t n;
    int rc = checkpoint_file(dir, "chat_template.jinja", TEMPLATE_LIMIT, &text, &n, e);

    if (rc == -ENOENT) {
        warn(g->log, "%s has no chat_template.jinja: the S-2.1 layout is used", dir);
        return 0;
    }
    if (!rc && !chat_template_known(text, n))
        warn(g->log, "%s/chat_template.jinja is not one this program knows: the S-2.1 layout "
             "is used", dir);
    free(text);
    return rc;
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

/* -c auto: the largest step whose KV takes a quarter of memory. */
static int auto_context(const struct engine *g, size_t memory)
{
    const struct shape *s = &g->model->shape;
    int n = CONTEXT_LEAST;

    while (n <= s->max_positions - CONTEXT_STEP &&
           kv_bytes(s, g->kv_type, n + CONTEXT_STEP, BATCH) <= memory / 4)
        n += CONTEXT_STEP;
    return n < s->max_positions ? n : s->max_positions;
}

static int choose_context(struct engine *g, const struct options *o, struct err *e)
{
    int most = g->model->shape.max_positions;

    g->kv_type = kv_type_named(o->kv_type);
    if (g->kv_type == KV_TYPES)
        return fail(e, -EINVAL, "--kv-type %s: q8, fp8, bf16 or f32", o->kv_type);
    if (o->context > most)
        return fail(e, -ENOTSUP, "-c %d: the model has positions for %d tokens", o->context, most);
    g->context = o->context == CONTEXT_AUTO ? auto_context(g, memory_total()) : o->context;
    g->batch = g->context < BATCH ? g->context : BATCH;
    return 0;
}

/* Refuse what would end in swapping or at the hand of the OOM killer. */
static int check_memory(const struct engine *g, const struct options *o, struct err *e)
{
    const struct model *m = g->model;
    size_t kv = kv_bytes(&m->shape, g->kv_type, g->context, g->batch);
    size_t need = add_sat(add_sat(m->dense_bytes, m->expert_bytes), kv);
    size_t have = o->ram_bytes == SIZE_AUTO ? memory_available() : (size_t)o->ram_bytes;

    if (need <= have)
        return 0;
    return fail(e, -ENOMEM, "%zu MB of weights and %zu MB of KV cache (-c %d) do not fit in the "
                "%zu MB of memory %s", (m->dense_bytes + m->expert_bytes) >> 20, kv >> 20,
                g->context, have >> 20,
                o->ram_bytes == SIZE_AUTO ? "that are free" : "of --ram");
}

static int load(struct engine *g, const struct options *o, struct err *e)
{
    struct pool_config pc = { .threads = o->threads, .pin = true };
    struct cpu_config cc = { .shape = &g->model->shape, .kernels = g->kernels, .batch = g->batch };
    int rc = pool_open(&g->pool, &pc, e);

    if (!rc)
        rc = model_load_dense(g->model, pool_threads(g->pool), show_progress, g->log, e);
    if (!rc)
        rc = experts_open(&g->experts, g->model, g->pool, show_progress, g->log, e);
    cc.pool = g->pool;
    if (!rc)
        rc = cpu_open(&g->cpu, &cc, e);
    if (rc)
        return rc;
    g->runner = (struct runner){ .model = g->model, .cpu = g->cpu, .experts = g->experts,
                                 .batch = g->batch };
    info(g->log, "%s kernels, %d threads, %d tokens of context, %s KV", g->kernels->name,
         pool_threads(g->pool), g->context, o->kv_type);
    return 0;
}

int engine_open(struct engine **out, struct options *o, struct err *e)
{
    struct engine *g = calloc(1, sizeof(*g));
    int rc;

    if (!g)
        return fail(e, -ENOMEM, "out of memory");
    g->log = &o->log;
    rc = model_open(&g->model, o->model_dir, g->log, e);
    if (!rc)
        rc = open_tokenizer(g, o->model_dir, e);
    if (!rc)
        rc = check_template(g, o->model_dir, e);
    if (!rc)
        rc = choose_kernels(g, o->isa, e);
    if (!rc)
        rc = choose_context(g, o, e);
    if (!rc)
        rc = check_memory(g, o, e);
    if (!rc)
        rc = load(g, o, e);
    if (rc) {
        engine_close(g);
        return rc;
    }
    *out = g;
    return 0;
}

void engine_close(struct engine *g)
{
    if (!g)
        return;
    cpu_close(g->cpu);
    experts_close(g->experts);
    pool_close(g->pool);
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

int engine_context(const struct engine *g)
{
    return g->context;
}

void engine_begin(struct engine *g)
{
    pool_begin(g->pool);
}

void engine_end(struct engine *g)
{
    pool_end(g->pool);
}
