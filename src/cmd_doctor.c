#include "src/command_io.h"
#include "src/commands.h"
#include "src/kernel_file.h"
#include "src/machine.h"
#include "src/memory.h"
#include "src/nvml.h"
#include "cpu/cores.h"
#include "cpu/kernels.h"
#include "cpu/pool.h"
#include "storage/extents.h"
#include "storage/stream.h"

#include <errno.h>
#include <numa.h>
#include <stdarg.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/sysmacros.h>
#include <unistd.h>

/* doctor: one line for each thing that makes the program slow on a machine, or stops it, and
 * what to do about it.  Looks and measures, and changes nothing. */

enum health { FINE, SLOW, BROKEN };

static const char *const HEALTH[] = { "fine", "slow", "broken" };

/* Below these a line says slow. */
static const double ram_gbps_least = 15, drive_gbps_least = 1, h2d_gbps_least = 5;

struct doctor {
    struct options *o;
    const struct cpu_kernels *kernels;
    struct model *model;
    struct text out;
    int lines, broken;
};

/* One line.  `todo` is NULL where there is nothing to do. */
static void say(struct doctor *d, enum health h, const char *what, const char *todo,
                const char *fmt, ...) __attribute__((format(printf, 5, 6)));

static void say(struct doctor *d, enum health h, const char *what, const char *todo,
                const char *fmt, ...)
{
    struct err words;
    va_list ap;

    va_start(ap, fmt);
    vsnprintf(words.text, sizeof(words.text), fmt, ap);
    va_end(ap);
    d->broken += h == BROKEN;
    if (d->o->json) {
        text_printf(&d->out, "%s{\"check\": \"%s\", \"health\": \"%s\", \"found\": ",
                    d->lines++ ? ", " : "[", what, HEALTH[h]);
        text_json_bytes(&d->out, words.text, strlen(words.text));
        text_puts(&d->out, ", \"todo\": ");
        text_json_bytes(&d->out, todo ? todo : "", todo ? strlen(todo) : 0);
        text_puts(&d->out, "}");
        return;
    }
    d->lines++;
    text_printf(&d->out, "%-6s  %-10s  %s%s%s\n", HEALTH[h], what, words.text, todo ? ": " : "",
                todo ? todo : "");
}

static void check_isa(struct doctor *d)
{
    d->kernels = cpu_kernels_best();
    if (d->kernels)
        say(d, FINE, "isa", NULL, "%s kernels", d->kernels->name);
    else
        say(d, BROKEN, "isa", "only --isa ref runs, and slowly",
            "this processor has no AVX2, or the system hides it");
}

static void check_cores(struct doctor *d)
{
    struct cores *c = calloc(1, sizeof(*c));
    struct pool_config pc = { .threads = d->o->threads, .pin = true };
    struct pool *pool = NULL;
    struct err e = { "out of memory" };

    if (!c || cores_find(c, "", &e))
        say(d, BROKEN, "cores", NULL, "%s", e.text);
    else if (pool_open(&pool, &pc, &e))
        say(d, BROKEN, "cores", "raise the limit of processes (ulimit -u, pids.max)", "%s", e.text);
    else if (c->quota && cores_threads(c) < c->n)
        say(d, SLOW, "cores", "raise cpu.max of the control group",
            "%d cores, and a control group that gives the time of %.1f", c->n, c->quota * 1e-3);
    else
        say(d, FINE, "cores", NULL, "%d cores, %d CPUs", c->n, c->allowed);
    pool_close(pool);
    free(c);
}

static void check_memory(struct doctor *d)
{
    struct memory m = memory_find("");

    if (!m.total_bytes)
        say(d, BROKEN, "memory", "give --ram", "/proc/meminfo does not tell");
    else if (m.group)
        say(d, SLOW, "memory", "raise memory.max of the control group",
            "a control group bounds it to %.1f GB", (double)m.total_bytes * 1e-9);
    else
        say(d, FINE, "memory", NULL, "%.1f GB, %.1f GB free", (double)m.total_bytes * 1e-9,
            (double)m.free_bytes * 1e-9);
}

static void check_memlock(struct doctor *d)
{
    struct rlimit r = { 0, 0 };
    size_t total = memory_find("").total_bytes;

    getrlimit(RLIMIT_MEMLOCK, &r);
    if (r.rlim_cur == RLIM_INFINITY || r.rlim_cur >= total || !geteuid())
        say(d, FINE, "memlock", NULL, "memory can be pinned");
    else
        say(d, SLOW, "memlock", "ulimit -l unlimited, or LimitMEMLOCK=infinity",
            "%ju kB can be pinned: reads take more processor time",
            (uintmax_t)r.rlim_cur / 1024);
}

static void check_huge_pages(struct doctor *d)
{
    static const char file[] = "/sys/kernel/mm/transparent_hugepage/enabled";
    char text[128], meminfo[8192];
    size_t reserved = 0;

    if (kernel_file("", "/proc/meminfo", meminfo, sizeof(meminfo)))
        reserved = kernel_number(meminfo, "HugePages_Total:", 0);
    if (!kernel_file("", file, text, sizeof(text)))
        say(d, SLOW, "huge pages", "use a kernel with transparent huge pages", "%s is missing",
            file);
    else if (strstr(text, "[never]"))
        say(d, SLOW, "huge pages", "echo madvise > /sys/kernel/mm/transparent_hugepage/enabled",
            "transparent huge pages are off: a fifth of the memory's speed is lost");
    else
        say(d, FINE, "huge pages", NULL, "transparent%s%zu reserved",
            strstr(text, "[always]") ? " always, " : " where asked for, ", reserved);
}

static void check_numa(struct doctor *d)
{
    int nodes = numa_available() < 0 ? 1 : numa_num_configured_nodes();
    struct cores *c = calloc(1, sizeof(*c));
    struct err e;
    bool all[CORES_MAX] = { false };
    int used = 0;

    if (c && !cores_find(c, "", &e))
        for (int i = 0; i < c->n; i++)
            if (c->core[i].node < CORES_MAX && !all[c->core[i].node]) {
                all[c->core[i].node] = true;
                used++;
            }
    if (used && used < nodes)
        say(d, SLOW, "numa", "let the program use all of them, or keep its memory there "
            "(numactl --membind)", "%d of %d nodes may be used", used, nodes);
    else
        say(d, FINE, "numa", NULL, "%d node%s", nodes, nodes == 1 ? "" : "s");
    free(c);
}

static void check_io_uring(struct doctor *d)
{
    struct log quiet = { .level = LOG_QUIET };
    struct stream_config c = { .backend = STREAM_URING, .log = &quiet };
    struct stream *s = NULL;
    struct err e;

    if (stream_open(&s, &c, &e))
        say(d, SLOW, "io_uring", "allow it (sysctl kernel.io_uring_disabled=0, the container's "
            "seccomp profile); threads read meanwhile", "%s", e.text);
    else
        say(d, FINE, "io_uring", NULL, "allowed");
    stream_close(s, 1);
}

static void check_link(struct doctor *d, int i, const struct nvml_card *c)
{
    if (c->width == NVML_NOT_TOLD || c->generation == NVML_NOT_TOLD)
        return;
    if (c->width < c->width_most)
        say(d, SLOW, "pcie", "move the card to a full slot; look for a bad contact or a riser",
            "card %d: x%d, and it has x%d", i, c->width, c->width_most);
    else
        say(d, FINE, "pcie", NULL, "card %d: generation %d x%d now, at most %d x%d", i,
            c->generation, c->width, c->generation_most, c->width_most);
}

static void check_power(struct doctor *d, int i, const struct nvml_card *c)
{
    if (c->power_watts != NVML_NOT_TOLD && c->power_watts < c->power_default_watts)
        say(d, SLOW, "power", "nvidia-smi --power-limit raises it",
            "card %d: limited to %d W of %d", i, c->power_watts, c->power_default_watts);
    else if (c->power_watts != NVML_NOT_TOLD)
        say(d, FINE, "power", NULL, "card %d: at most %d W", i, c->power_watts);
    if (c->persistence == 0)
        say(d, SLOW, "persistence", "nvidia-smi --persistence-mode=1, or nvidia-persistenced",
            "card %d: off: each start waits for the driver", i);
    else if (c->persistence == 1)
        say(d, FINE, "persistence", NULL, "card %d: on", i);
}

static void check_card(struct doctor *d, int i, const struct nvml_card *c)
{
    if (c->total_bytes)
        say(d, FINE, "card", NULL, "card %d: %s, %zu of %zu MB used", i, c->name,
            c->used_bytes >> 20, c->total_bytes >> 20);
    else
        say(d, FINE, "card", NULL, "card %d: %s", i, c->name);
    check_link(d, i, c);
    check_power(d, i, c);
    if (c->others > 0)
        say(d, SLOW, "sharing", "end them, or bound this program by --vram",
            "card %d: used by %d other process%s, %zu MB", i, c->others,
            c->others == 1 ? "" : "es", c->others_bytes >> 20);
    else if (!c->others)
        say(d, FINE, "sharing", NULL, "card %d: nobody else computes on it", i);
}

/* Before CUDA is asked, which makes this process a user of the card. */
static void check_driver(struct doctor *d)
{
    struct nvml n;
    struct err e;
    int rc = nvml_read(&n, NULL, &e);

    if (rc == -ENOENT)
        say(d, FINE, "driver", NULL, "%s: no NVIDIA driver", e.text);
    else if (rc)
        say(d, SLOW, "driver", "run nvidia-smi; kernel module and libraries may be of different "
            "versions", "%s", e.text);
    else
        say(d, FINE, "driver", NULL, "NVIDIA %s, %d card%s", n.driver, n.cards,
            n.cards == 1 ? "" : "s");
    for (int i = 0; !rc && i < n.cards; i++)
        check_card(d, i, &n.card[i]);
}

static void check_gpu(struct doctor *d)
{
    struct gpu_facts g[MAX_GPUS];
    struct err e;
    int n = gpu_list(g, &e);

    if (n < 0)
        say(d, BROKEN, "gpu", "--device cpu runs without", "%s", e.text);
    else if (!n)
        say(d, FINE, "gpu", NULL, "none: the processor computes everything");
    for (int i = 0; i < n && i < MAX_GPUS; i++) {
        const char *help = g[i].major < 8 ? "8.0 is needed: --device cpu, or another card"
                         : g[i].time_limit ? "it drives a display: --gpu-watchdog 1" : NULL;

        say(d, help ? SLOW : FINE, "gpu", help, "%s, %.1f of %.1f GB free, compute capability "
            "%d.%d", g[i].name, (double)g[i].free_bytes * 1e-9, (double)g[i].vram_bytes * 1e-9,
            g[i].major, g[i].minor);
    }
}

static void check_place(struct doctor *d, const char *what, const char *dir, const char *lost)
{
    char path[4096] = "";
    int rc = dir && strlen(dir) < sizeof(path) ? 0 : -ENOENT;

    /* What does not exist yet is made when it is needed, where its parent allows that. */
    if (!rc)
        strcpy(path, dir);
    while (access(path, F_OK) && strchr(path, '/'))
        *strrchr(path, '/') = 0;
    if (!rc && access(*path ? path : *dir == '/' ? "/" : ".", W_OK | X_OK))
        rc = -errno;
    if (rc)
        say(d, SLOW, what, "make it writable", "%s: %s; %s", dir ? dir : "no directory",
            strerror(-rc), lost);
    else
        say(d, FINE, what, NULL, "%s", dir);
}

/* The blocks of the drive that holds the file, or 0: a partition's drive is one level up. */
static size_t block_bytes(const struct source *s)
{
    static const char *const up[] = { "", "../" };
    char path[128], text[32];

    for (int i = 0; i < 2; i++) {
        snprintf(path, sizeof(path), "/sys/dev/block/%u:%u/%squeue/logical_block_size",
                 major((dev_t)s->device), minor((dev_t)s->device), up[i]);
        if (kernel_file("", path, text, sizeof(text)))
            return strtoull(text, NULL, 10);
    }
    return 0;
}

static void check_direct(struct doctor *d)
{
    const struct checkpoint *c = d->model->checkpoint;
    struct source s = { .fd = -1, .direct_fd = -1 };
    struct err e;
    size_t block;

    if (source_open(&s, checkpoint_path(c, 0), false, &e)) {
        say(d, BROKEN, "o_direct", NULL, "%s", e.text);
        return;
    }
    block = block_bytes(&s);
    if (!s.direct)
        say(d, SLOW, "o_direct", "keep the model on ext4, xfs or btrfs",
            "%s refuses it: reads go through the page cache", checkpoint_dir(c));
    else if (block > EXTENT_ALIGN)
        say(d, BROKEN, "o_direct", "move the model to another drive",
            "blocks of %zu bytes, and this program reads %d", block, EXTENT_ALIGN);
    else if (block)
        say(d, FINE, "o_direct", NULL, "allowed, blocks of %zu bytes", block);
    else
        say(d, FINE, "o_direct", NULL, "allowed; the drive does not tell its blocks");
    source_close(&s);
}

static void check_speeds(struct doctor *d)
{
    struct machine_ask a = { .checkpoint = d->model->checkpoint, .cache_dir = d->o->cache_dir,
                             .kernels = d->kernels ? d->kernels : cpu_kernels(CPU_REF),
                             .remeasure = d->o->remeasure, .log = &d->o->log };
    struct machine m;
    struct err e;

    if (machine_get(&m, &a, &e)) {
        say(d, BROKEN, "speed", NULL, "%s", e.text);
        return;
    }
    say(d, m.ram_read_gbps < ram_gbps_least ? SLOW : FINE, "ram speed",
        m.ram_read_gbps < ram_gbps_least ? "fill all memory channels; look for other programs"
                                         : NULL, "%.1f GB/s", m.ram_read_gbps);
    say(d, m.drive_read_gbps < drive_gbps_least ? SLOW : FINE, "drive",
        m.drive_read_gbps < drive_gbps_least ? "keep the model on an NVMe drive" : NULL,
        "%.2f GB/s", m.drive_read_gbps);
    for (int i = 0; i < m.gpus; i++) {
        const struct machine_gpu *g = &m.gpu[i];
        bool slow = !(g->h2d_gbps >= h2d_gbps_least);

        say(d, slow ? SLOW : FINE, "gpu speed", slow ? "see the line about pcie" : NULL,
            "%s: memory %.0f GB/s, from the host %.1f GB/s", g->name, g->vram_gbps, g->h2d_gbps);
    }
}

static void check_model(struct doctor *d)
{
    struct err e;
    int rc = model_open(&d->model, d->o->model_dir, &d->o->log, &e);

    if (rc) {
        say(d, BROKEN, "model", "download it again, or give -m", "%s", e.text);
        return;
    }
    say(d, FINE, "model", NULL, "%s, %zu MB", d->o->model_dir,
        (d->model->dense_bytes + d->model->expert_bytes) >> 20);
    check_direct(d);
    check_speeds(d);
}

int cmd_doctor(struct options *o, struct err *e)
{
    struct doctor d = { .o = o };
    int rc;

    check_isa(&d);
    check_cores(&d);
    check_numa(&d);
    check_memory(&d);
    check_memlock(&d);
    check_huge_pages(&d);
    check_io_uring(&d);
    check_driver(&d);
    check_gpu(&d);
    check_place(&d, "state", o->state_dir, "what the router chooses is forgotten");
    check_place(&d, "cache", o->cache_dir, "figures are measured each time");
    check_model(&d);
    if (o->json)
        text_puts(&d.out, "]");
    rc = d.out.failed ? fail(e, -ENOMEM, "no memory for the answer")
         : o->json    ? output_line(&d.out, e)
                      : output_bytes(d.out.s, d.out.n, e);
    if (!rc && d.broken)
        rc = ANSWER_BROKEN;
    model_close(d.model);
    text_free(&d.out);
    return rc;
}
