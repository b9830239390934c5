#include "src/command_io.h"
#include "src/commands.h"
#include "src/engine.h"
#include "src/memory.h"
#include "src/outlook.h"
#include "cpu/cpu.h"

#include <errno.h>
#include <stdlib.h>

/* plan: from the headers of a checkpoint and the figures of a machine, what goes where, whether
 * it fits, and how fast it will be.  Loads nothing. */

/* Below this a person waits for the machine; other machines are shown. */
static const double slow_tps = 8;

static const double large_card = 80e9, card_share = 0.9;    /* bytes; what weights may take */

struct plan {
    struct options *o;
    struct model *model;
    struct machine machine;
    struct outlook outlook;
    struct text elsewhere;      /* a command line, or empty */
    int cards;                  /* that it is for */
    double card_bytes;
};

static int read_machine(struct plan *p, struct err *e)
{
    struct text text = { NULL, 0, 0, false };
    struct input in;
    int rc = input_open(&in, p->o->machine, e);

    if (!rc)
        rc = input_all(&in, &text, e);
    if (!rc)
        rc = machine_read(&p->machine, text.n ? text.s : "", text.n, in.name, e);
    input_close(&in);
    text_free(&text);
    return rc;
}

static const struct cpu_kernels *find_kernels(const char *isa)
{
    const struct cpu_kernels *k = strcmp(isa, "auto") ? cpu_kernels(cpu_isa_named(isa))
                                                      : cpu_kernels_best();

    return k ? k : cpu_kernels(CPU_REF);
}

static int open_plan(struct plan *p, struct err *e)
{
    struct options *o = p->o;
    const struct cpu_kernels *kernels = find_kernels(o->isa);
    struct machine_ask ask = { .kernels = kernels, .cache_dir = o->cache_dir,
                               .remeasure = o->remeasure, .log = &o->log };
    struct outlook_ask a = { .options = o, .machine = &p->machine };
    int rc = model_open(&p->model, o->model_dir, &o->log, e);

    if (rc)
        return rc;
    if (o->context > p->model->shape.max_positions)
        return fail(e, -ENOTSUP, "-c %d: the model has positions for %d tokens", o->context,
                    p->model->shape.max_positions);
    ask.checkpoint = p->model->checkpoint;
    a.model = p->model;
    rc = o->machine ? read_machine(p, e) : machine_get(&p->machine, &ask, e);
    a.ram_free_bytes = o->machine ? p->machine.ram_bytes : memory_find("").free_bytes;
    if (!rc) {
        a.scratch_bytes = cpu_scratch_bytes(&(struct cpu_config){
            .shape = &p->model->shape, .kernels = kernels, .threads = p->machine.cores,
            .batch = ENGINE_BATCH });
        rc = outlook_open(&p->outlook, &a, e);
    }
    return rc;
}

static void add_warnings(struct plan *p)
{
    const struct outlook *k = &p->outlook;
    struct memory m = memory_find("");

    if (!p->o->machine && m.group)
        warn(&p->o->log, "a control group bounds memory to %zu MB", m.total_bytes >> 20);
    if (!p->o->machine && p->o->ram_bytes == SIZE_AUTO && m.free_bytes < m.total_bytes / 2)
        warn(&p->o->log, "%zu of %zu MB of memory are taken by others: --ram plans regardless",
             (m.total_bytes - m.free_bytes) >> 20, m.total_bytes >> 20);
    if (k->placement.gpu && k->vram_budget_bytes > k->vram_free_bytes)
        warn(&p->o->log, "--vram asks for %zu MB, and %zu MB of %s are free",
             k->vram_budget_bytes >> 20, k->vram_free_bytes >> 20, k->machine.gpu[0].name);
    if (k->placement.gpu && k->placement.vram_bytes && !k->placement.vram_scratch_bytes)
        warn(&p->o->log, "built without CUDA: the GPU's scratch is not counted");
    if (k->placement.fits && k->placement.nvme && !k->skew.share)
        warn(&p->o->log, "no statistics of the router yet: the speed is that of even routing, "
             "and real routing is not even");
    if (k->prediction.guessed_gpu)
        warn(&p->o->log, "%s: its speed was not measured: the speed is a guess",
             k->machine.gpu[0].name);
}

/* --- the same files elsewhere ------------------------------------------------------------- */

static void add_quoted(struct text *t, const char *s)
{
    static const char plain[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"
                                "_-+./:,@%";

    if (*s && !s[strspn(s, plain)]) {
        text_puts(t, s);
        return;
    }
    text_puts(t, "'");
    for (; *s; s++)
        text_puts(t, *s == '\'' ? "'\\''" : (char[]){ *s, 0 });
    text_puts(t, "'");
}

/* GPUs that hold everything: of the machine's own kind where eight of them do. */
static int count_cards(const struct outlook *k, double *each)
{
    double need = (double)k->needs.dense_bytes + (double)k->needs.expert_bytes +
                  (double)k->placement.kv_bytes;
    int n = 1;

    *each = k->machine.gpus ? (double)k->machine.gpu[0].vram_bytes : large_card;
    if (8 * card_share * *each < need)
        *each = large_card;
    while (n < 64 && n * card_share * *each < need)
        n *= 2;
    return n;
}

static void find_elsewhere(struct plan *p)
{
    const struct outlook *k = &p->outlook;
    const char *dir = p->o->model_dir, *name = strrchr(dir, '/');
    struct text *t = &p->elsewhere;

    if (k->placement.fits && k->prediction.decode_tps >= slow_tps)
        return;
    p->cards = count_cards(k, &p->card_bytes);
    text_puts(t, "vllm serve ");
    add_quoted(t, dir);
    text_puts(t, " --served-model-name ");
    add_quoted(t, name && name[1] ? name + 1 : dir);
    text_printf(t, " --tensor-parallel-size %d --max-model-len %d --enable-auto-tool-choice "
                "--tool-call-parser poolside_v1 --reasoning-parser poolside_v1 "
                "--host 127.0.0.1 --port 8080", p->cards, k->placement.context);
}

/* --- for scripts --------------------------------------------------------------------------- */

static void add_json(struct text *t, const struct plan *p)
{
    const struct outlook *k = &p->outlook;
    const struct placement *l = &k->placement;
    const struct prediction *s = &k->prediction;

    text_puts(t, "{\"model\": ");
    text_json_bytes(t, p->o->model_dir, strlen(p->o->model_dir));
    text_printf(t, ", \"fits\": %s, \"why\": ", l->fits ? "true" : "false");
    text_json_bytes(t, l->why, strlen(l->why));
    text_printf(t, ", \"context\": %d, \"batch\": %d, \"machine\": ", l->context, l->batch);
    machine_write(t, &p->machine);
    text_printf(t, ", \"bytes\": {\"dense\": %zu, \"kv\": %zu, \"snapshots\": %zu, "
                "\"scratch\": %zu, \"experts\": %zu, \"slot\": %zu, \"ram\": %zu, \"vram\": %zu",
                l->dense_bytes, l->kv_bytes, l->snapshot_bytes, l->scratch_bytes,
                k->needs.expert_bytes, l->slot_bytes, l->ram_bytes, l->vram_bytes);
    text_printf(t, ", \"mirror\": %zu, \"vram_dense\": %zu, \"vram_scratch\": %zu, "
                "\"vram_slot\": %zu, \"parked\": %zu, \"pinned\": %zu}", l->mirror_bytes,
                l->vram_dense_bytes, l->vram_scratch_bytes, l->vram_slot_bytes, l->parked_bytes,
                l->pinned_bytes);
    text_printf(t, ", \"experts\": {\"vram\": %d, \"ram\": %d, \"nvme\": %d}, \"slots\": "
                "{\"vram\": %d, \"vram_staging\": %d, \"ram\": %d, \"ram_staging\": %d}",
                l->vram, l->ram, l->nvme, l->vram_slots, l->vram_staging, l->ram_slots,
                l->staging_slots);
    text_printf(t, ", \"predicted\": {\"decode_tps\": %.4g, \"prefill_tps\": %.4g, "
                "\"bottleneck\": \"%s\", \"prefill_bottleneck\": \"%s\", \"bytes_per_token\": "
                "{\"vram\": %.0f, \"ram\": %.0f, \"nvme\": %.0f}}", s->decode_tps, s->prefill_tps,
                s->bottleneck, s->prefill_bottleneck, s->bytes_per_token.vram,
                s->bytes_per_token.ram, s->bytes_per_token.nvme);
    text_puts(t, ", \"warnings\": [");
    for (int i = 0; i < p->o->log.notices && i < LOG_NOTICES; i++) {
        text_puts(t, i ? ", " : "");
        text_json_bytes(t, p->o->log.notice[i], strlen(p->o->log.notice[i]));
    }
    text_puts(t, "], \"elsewhere\": ");
    if (p->elsewhere.n)
        text_json_bytes(t, p->elsewhere.s, p->elsewhere.n);
    else
        text_puts(t, "null");
    text_puts(t, "}");
}

/* --- for people ---------------------------------------------------------------------------- */

static void add_machine(struct text *t, const struct machine *m)
{
    text_printf(t, "machine  %.1f GB of memory, read at %.1f GB/s", (double)m->ram_bytes * 1e-9,
                m->ram_read_gbps);
    if (m->matvec_gbps > 0)
        text_printf(t, " (weights %.1f)", m->matvec_gbps);
    text_printf(t, "; drive %.2f GB/s; %d cores, %s", m->drive_read_gbps, m->cores, m->isa);
    for (int i = 0; i < m->gpus; i++) {
        const struct machine_gpu *g = &m->gpu[i];

        text_printf(t, "; %s, %.1f GB", g->name, (double)g->vram_bytes * 1e-9);
        if (g->ram_read_beside_gbps > 0 && g->h2d_beside_gbps > 0)
            text_printf(t, ", PCIe %.1f beside memory %.1f GB/s", g->h2d_beside_gbps,
                        g->ram_read_beside_gbps);
    }
    text_puts(t, m->gpus ? "\n" : "; no GPU\n");
}

static void add_size(struct text *t, const char *what, size_t bytes)
{
    if (bytes >= 1000000000)
        text_printf(t, "%s %.1f GB", what, (double)bytes * 1e-9);
    else
        text_printf(t, "%s %.1f MB", what, (double)bytes * 1e-6);
}

static void add_kv(struct text *t, const struct placement *l, const char *kv_type)
{
    add_size(t, ", KV", l->kv_bytes);
    text_printf(t, " (%s, %d tokens)", kv_type, l->context);
}

static void add_vram(struct text *t, const struct placement *l, const char *kv_type)
{
    add_size(t, "VRAM     dense weights", l->vram_dense_bytes);
    add_kv(t, l, kv_type);
    add_size(t, ", scratch", l->vram_scratch_bytes);
    text_printf(t, " (%d tokens a batch)", l->batch);
    add_size(t, ", slots for experts", (size_t)l->vram_slots * l->vram_slot_bytes);
    if (l->vram_staging)
        add_size(t, " and for streaming", (size_t)l->vram_staging * l->vram_slot_bytes);
    add_size(t, "; in all", l->vram_bytes);
    text_puts(t, "\n");
}

static void add_memory(struct text *t, const struct placement *l, const char *kv_type)
{
    if (l->gpu) {
        add_vram(t, l, kv_type);
        add_size(t, "memory   windows' KV", l->mirror_bytes);
        if (l->parked_bytes)
            add_size(t, ", KV of a conversation that waits", l->parked_bytes);
        add_size(t, ", the GPU's staging", l->pinned_bytes);
    } else {
        add_size(t, "memory   dense weights", l->dense_bytes);
        add_kv(t, l, kv_type);
    }
    if (l->snapshot_bytes)
        add_size(t, ", snapshots", l->snapshot_bytes);
    add_size(t, ", scratch", l->scratch_bytes);
    add_size(t, ", slots for experts", (size_t)placement_slots(l) * l->slot_bytes);
    add_size(t, "; in all", l->ram_bytes);
    text_puts(t, l->copies && l->vram ? "; those in VRAM are copies\n" : "\n");
}

static void add_expectation(struct text *t, const struct outlook *k)
{
    const struct prediction *s = &k->prediction;
    struct prediction deep = outlook_at(k, k->placement.context - 1);

    text_printf(t, "expect   %.2f tok/s, bound by %s (%.2f at the end of the context, by %s); "
                "prompts %.1f tok/s, bound by %s\n", s->decode_tps, s->bottleneck,
                deep.decode_tps, deep.bottleneck, s->prefill_tps, s->prefill_bottleneck);
    text_puts(t, "token   ");
    if (k->placement.gpu)
        add_size(t, " VRAM", (size_t)s->bytes_per_token.vram);
    add_size(t, k->placement.gpu ? ", RAM" : " RAM", (size_t)s->bytes_per_token.ram);
    add_size(t, ", drive", (size_t)s->bytes_per_token.nvme);
    text_printf(t, " read; of the experts %.1f %% lie in VRAM, %.1f %% in RAM (%s)\n",
                100 * s->hit_vram, 100 * s->hit_ram,
                k->skew.share ? "by the statistics kept" : "if all are chosen alike");
}

static void add_table(struct text *t, const struct plan *p)
{
    const struct outlook *k = &p->outlook;
    const struct placement *l = &k->placement;

    text_printf(t, "model    %s: %d layers, ", p->o->model_dir, p->model->shape.layers);
    text_printf(t, "%d experts", k->needs.experts);
    add_size(t, " of", k->needs.expert_bytes);
    text_puts(t, "\n");
    add_machine(t, &p->machine);
    add_memory(t, l, p->o->kv_type);
    if (l->fits) {
        text_printf(t, "experts  %d in VRAM, %d in RAM, %d on the drive alone\n", l->vram, l->ram,
                    l->nvme);
        add_expectation(t, k);
        text_puts(t, "fits     yes\n");
    } else {
        text_printf(t, "fits     no: %s\n", l->why);
    }
    if (p->elsewhere.n)
        text_printf(t, "\nThe same files and the same API on %d GPU%s of %.0f GB:\n%s\n", p->cards,
                    p->cards > 1 ? "s" : "", p->card_bytes * 1e-9, p->elsewhere.s);
}

int cmd_plan(struct options *o, struct err *e)
{
    struct plan p = { .o = o };
    struct text t = { NULL, 0, 0, false };
    int rc = open_plan(&p, e);

    if (!rc) {
        add_warnings(&p);
        find_elsewhere(&p);
        if (o->json)
            add_json(&t, &p);
        else
            add_table(&t, &p);
        if (p.elsewhere.failed || t.failed)
            rc = fail(e, -ENOMEM, "no memory for the plan");
    }
    if (!rc)
        rc = o->json ? output_line(&t, e) : output_bytes(t.s, t.n, e);
    if (!rc && !p.outlook.placement.fits)
        rc = ANSWER_NO_FIT;
    text_free(&t);
    text_free(&p.elsewhere);
    outlook_close(&p.outlook);
    model_close(p.model);
    return rc;
}
