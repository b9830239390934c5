/* The machine's figures: found, measured, kept, and as JSON.  Figures are kept a machine and a
 * drive: a home directory may be shared by several machines, and a machine has several drives.
 * Nothing that decides a result depends on them, so a lost file costs a second. */
#include "src/machine.h"
#include "cpu/cores.h"
#include "cpu/kernels.h"
#include "cpu/pool.h"
#include "src/fields.h"
#include "src/kernel_file.h"
#include "src/measure.h"
#include "src/memory.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/utsname.h>
#include <unistd.h>
#include <xxhash.h>

enum { FILE_LIMIT = 65536, NAME_SIZE = 64, TEXT_SIZE = 8192 };

/* --- found and measured ------------------------------------------------------------------ */

static void find_gpus(struct machine *m, struct log *l)
{
    struct gpu_facts facts[MAX_GPUS];
    struct err e;
    int n = gpu_list(facts, &e);

    if (n < 0)
        warn(l, "GPUs: %s", e.text);
    for (m->gpus = 0; m->gpus < n && m->gpus < MAX_GPUS; m->gpus++) {
        struct machine_gpu *g = &m->gpu[m->gpus];

        *g = (struct machine_gpu){ .vram_bytes = facts[m->gpus].vram_bytes,
                                   .free_bytes = facts[m->gpus].free_bytes };
        snprintf(g->name, sizeof(g->name), "%s", facts[m->gpus].name);
    }
}

int machine_find(struct machine *m, const struct cpu_kernels *k, struct log *l, struct err *e)
{
    struct cores *cores = calloc(1, sizeof(*cores));
    int rc = cores ? cores_find(cores, "", e) : fail(e, -ENOMEM, "out of memory");

    *m = (struct machine){ .ram_bytes = memory_find("").total_bytes };
    if (!rc)
        m->cores = cores_threads(cores);
    if (k)
        snprintf(m->isa, sizeof(m->isa), "%s", k->name);
    find_gpus(m, l);
    free(cores);
    return rc;
}

static int measure(struct machine *m, struct pool *pool, const struct machine_ask *a,
                   struct err *e)
{
    struct drive_speed drive;
    int rc = measure_drive(&drive, a->checkpoint, a->log, e);

    if (rc)
        return rc;
    if (!drive.direct)
        warn(a->log, "%s: the file system refuses direct reads: the drive's figure is that of "
             "the page cache", checkpoint_dir(a->checkpoint));
    m->drive_read_gbps = drive.gbps;
    m->ram_read_gbps = measure_ram(pool);
    m->matvec_gbps = measure_matvec(pool, a->kernels);
    m->cpu_gmacs = measure_products(pool, a->kernels);
    if (!(m->ram_read_gbps > 0 && m->matvec_gbps > 0 && m->cpu_gmacs > 0))
        return fail(e, -ENOMEM, "no memory to measure with");
    return 0;
}

static bool measured(const struct machine_gpu *g)
{
    return g->vram_gbps > 0 && g->h2d_gbps > 0 && g->ram_read_beside_gbps > 0 &&
           g->h2d_beside_gbps > 0;
}

static int measure_gpu(struct machine_gpu *g, int device, struct pool *pool, struct err *e)
{
    struct gpu_speeds s;
    struct beside_speed both;
    int rc = gpu_measure(device, &s, e);

    if (rc)
        return rc;
    g->vram_gbps = s.vram_gbps;
    g->h2d_gbps = s.h2d_gbps;
    g->gmacs = s.gmacs;
    rc = measure_beside(pool, device, &both, e);
    if (rc)
        return rc;
    g->ram_read_beside_gbps = both.ram_gbps;
    g->h2d_beside_gbps = both.h2d_gbps;
    return 0;
}

/* Those that have not all figures yet. */
static void measure_gpus(struct machine *m, struct pool *pool, struct log *l)
{
    for (int i = 0; i < m->gpus; i++) {
        struct err e;

        if (!measured(&m->gpu[i]) && measure_gpu(&m->gpu[i], i, pool, &e))
            warn(l, "%s is not measured: %s", m->gpu[i].name, e.text);
    }
}

/* What was not kept: all of it, or GPUs. */
static int measure_rest(struct machine *m, const struct machine_ask *a, bool kept, struct err *e)
{
    struct pool_config pc = { .threads = 0, .pin = true };
    struct pool *pool = NULL;
    int rc = pool_open(&pool, &pc, e);

    if (!rc && !kept)
        rc = measure(m, pool, a, e);
    if (!rc)
        measure_gpus(m, pool, a->log);
    pool_close(pool);
    return rc;
}

int machine_get(struct machine *m, const struct machine_ask *a, struct err *e)
{
    bool kept, all;
    int rc = machine_find(m, a->kernels, a->log, e);

    if (rc)
        return rc;
    all = kept = !a->remeasure && machine_load(m, a->cache_dir, a->checkpoint, a->log) &&
                 m->matvec_gbps > 0;
    for (int i = 0; i < m->gpus; i++)
        all &= measured(&m->gpu[i]);
    if (all)
        return 0;
    rc = measure_rest(m, a, kept, e);
    if (!rc)
        machine_save(m, a->cache_dir, a->checkpoint, a->log);
    return rc;
}

/* --- as JSON ------------------------------------------------------------------------------ */

void machine_write(struct text *t, const struct machine *m)
{
    text_printf(t, "{\"ram_bytes\": %zu, \"ram_read_gbps\": %.4g, \"drive_read_gbps\": %.4g, "
                "\"matvec_gbps\": %.4g, \"cpu_gmacs\": %.4g, \"cores\": %d, \"isa\": ",
                m->ram_bytes, m->ram_read_gbps, m->drive_read_gbps, m->matvec_gbps, m->cpu_gmacs,
                m->cores);
    text_json_bytes(t, m->isa, strlen(m->isa));
    text_puts(t, ", \"gpus\": [");
    for (int i = 0; i < m->gpus; i++) {
        const struct machine_gpu *g = &m->gpu[i];

        text_puts(t, i ? ", {\"name\": " : "{\"name\": ");
        text_json_bytes(t, g->name, strlen(g->name));
        text_printf(t, ", \"vram_bytes\": %zu, \"vram_gbps\": %.4g, \"h2d_gbps\": %.4g",
                    g->vram_bytes, g->vram_gbps, g->h2d_gbps);
        if (g->gmacs > 0)
            text_printf(t, ", \"gmacs\": %.4g", g->gmacs);
        if (g->ram_read_beside_gbps > 0 && g->h2d_beside_gbps > 0)
            text_printf(t, ", \"ram_read_beside_gbps\": %.4g, \"h2d_beside_gbps\": %.4g",
                        g->ram_read_beside_gbps, g->h2d_beside_gbps);
        if (g->free_bytes)
            text_printf(t, ", \"free_bytes\": %zu", g->free_bytes);
        text_puts(t, "}");
    }
    text_puts(t, "]}");
}

/* Every key of the object is one of `known`, which ends in NULL. */
static void check_keys(struct config *c, const cJSON *o, const char *const *known)
{
    const cJSON *child;

    cJSON_ArrayForEach(child, o) {
        const char *const *k = known;

        while (*k && strcmp(*k, child->string))
            k++;
        if (!*k)
            config_fail(c, child->string, "no such key");
    }
}

static size_t read_bytes(struct config *c, const cJSON *o, const char *key)
{
    const cJSON *node = config_member(o, key);
    int64_t v = 0;

    if (!node)
        config_fail(c, key, "missing (a number of bytes)");
    else if (json_int64(node, 0, INT64_C(1) << 60, &v))
        config_fail_value(c, key, node, 0, INT64_C(1) << 60);
    return (size_t)v;
}

static double read_rate(struct config *c, const cJSON *o, const char *key, double absent)
{
    return config_real(c, o, key, 0, 1e6, absent);
}

static void read_name(struct config *c, const cJSON *o, const char *key, char *out, size_t size)
{
    const char *s = config_string(c, o, key);

    if (!s)
        config_fail(c, key, "missing (a string)");
    else if (strlen(s) >= size)
        config_fail(c, key, "longer than %zu bytes", size - 1);
    else
        strcpy(out, s);
}

static void read_gpu(struct config *c, const cJSON *o, struct machine_gpu *g)
{
    static const char *const known[] = { "name", "vram_bytes", "vram_gbps", "h2d_gbps",
                                         "gmacs", "free_bytes", "ram_read_beside_gbps",
                                         "h2d_beside_gbps", NULL };

    if (!cJSON_IsObject(o)) {
        config_fail(c, "gpus", "holds something that is no object");
        return;
    }
    check_keys(c, o, known);
    read_name(c, o, "name", g->name, sizeof(g->name));
    g->vram_bytes = read_bytes(c, o, "vram_bytes");
    g->vram_gbps = read_rate(c, o, "vram_gbps", CONFIG_REQUIRED_REAL);
    g->h2d_gbps = read_rate(c, o, "h2d_gbps", CONFIG_REQUIRED_REAL);
    g->gmacs = read_rate(c, o, "gmacs", 0);
    g->ram_read_beside_gbps = read_rate(c, o, "ram_read_beside_gbps", 0);
    g->h2d_beside_gbps = read_rate(c, o, "h2d_beside_gbps", 0);
    if (config_member(o, "free_bytes"))
        g->free_bytes = read_bytes(c, o, "free_bytes");
}

static void read_gpus(struct config *c, struct machine *m)
{
    const cJSON *list = config_member(c->root, "gpus"), *o;

    if (!cJSON_IsArray(list)) {
        config_fail(c, "gpus", "missing (a list)");
        return;
    }
    cJSON_ArrayForEach(o, list) {
        if (m->gpus == MAX_GPUS) {
            config_fail(c, "gpus", "more than %d", MAX_GPUS);
            return;
        }
        read_gpu(c, o, &m->gpu[m->gpus++]);
    }
}

int machine_read(struct machine *m, const char *json, size_t n, const char *name, struct err *e)
{
    static const char *const known[] = { "ram_bytes", "ram_read_gbps", "drive_read_gbps",
                                         "matvec_gbps", "cpu_gmacs", "cores", "isa", "gpus",
                                         NULL };
    struct machine r = { 0 };
    struct config c;
    int rc;

    config_open(&c, json, n, name, e);
    if (!c.rc) {
        check_keys(&c, c.root, known);
        r.ram_bytes = read_bytes(&c, c.root, "ram_bytes");
        r.ram_read_gbps = read_rate(&c, c.root, "ram_read_gbps", CONFIG_REQUIRED_REAL);
        r.drive_read_gbps = read_rate(&c, c.root, "drive_read_gbps", CONFIG_REQUIRED_REAL);
        r.matvec_gbps = read_rate(&c, c.root, "matvec_gbps", 0);
        r.cpu_gmacs = read_rate(&c, c.root, "cpu_gmacs", 0);
        r.cores = config_int(&c, c.root, "cores", 1, CORES_MAX, CONFIG_REQUIRED);
        read_name(&c, c.root, "isa", r.isa, sizeof(r.isa));
        read_gpus(&c, &r);
        if (!c.rc && !(r.ram_read_gbps > 0))
            config_fail(&c, "ram_read_gbps", "must be above 0");
    }
    rc = config_close(&c);
    if (!rc)
        *m = r;
    return rc;
}

/* --- kept --------------------------------------------------------------------------------- */

/* machine-KEY.json, the key being that of host, processor, cores and drive. */
static bool file_name(char out[NAME_SIZE], const struct machine *m, const struct checkpoint *c)
{
    char text[TEXT_SIZE] = "", key[1024];
    const char *model;
    struct utsname host;
    struct stat drive;
    int n;

    if (!checkpoint_shards(c) || fstat(checkpoint_fd(c, 0), &drive) || uname(&host))
        return false;
    kernel_file("", "/proc/cpuinfo", text, sizeof(text));
    model = strstr(text, "model name");
    n = snprintf(key, sizeof(key), "%s %d %ju %.*s", host.nodename, m->cores,
                 (uintmax_t)drive.st_dev, model ? (int)strcspn(model, "\n") : 0,
                 model ? model : "");
    if (n < 0 || (size_t)n >= sizeof(key))
        return false;
    snprintf(out, NAME_SIZE, "machine-%016jx.json", (uintmax_t)XXH3_64bits(key, (size_t)n));
    return true;
}

bool machine_load(struct machine *m, const char *dir, const struct checkpoint *c, struct log *l)
{
    char name[NAME_SIZE], shown[512], *text = NULL;
    struct machine kept;
    struct err e;
    size_t n;
    int rc;

    if (!dir || !file_name(name, m, c))
        return false;
    snprintf(shown, sizeof(shown), "%s/%s", dir, name);
    rc = checkpoint_file(dir, name, FILE_LIMIT, &text, &n, &e);
    if (rc == -ENOENT || rc == -ENOTDIR)
        return false;
    if (!rc)
        rc = machine_read(&kept, text, n, shown, &e);
    free(text);
    if (rc) {
        warn(l, "%s; measured again", e.text);
        return false;
    }
    if (*m->isa && strcmp(m->isa, kept.isa))
        return false;
    strcpy(m->isa, kept.isa);
    m->ram_read_gbps = kept.ram_read_gbps;
    m->drive_read_gbps = kept.drive_read_gbps;
    m->matvec_gbps = kept.matvec_gbps;
    m->cpu_gmacs = kept.cpu_gmacs;
    for (int i = 0; i < m->gpus && i < kept.gpus; i++) {
        if (strcmp(m->gpu[i].name, kept.gpu[i].name))
            continue;
        m->gpu[i].vram_gbps = kept.gpu[i].vram_gbps;
        m->gpu[i].h2d_gbps = kept.gpu[i].h2d_gbps;
        m->gpu[i].gmacs = kept.gpu[i].gmacs;
        m->gpu[i].ram_read_beside_gbps = kept.gpu[i].ram_read_beside_gbps;
        m->gpu[i].h2d_beside_gbps = kept.gpu[i].h2d_beside_gbps;
    }
    return true;
}

static int replace_file(const char *dir, const char *name, const char *text, size_t n)
{
    char path[4352], temporary[4400];
    FILE *f;
    int rc;

    snprintf(path, sizeof(path), "%s/%s", dir, name);
    snprintf(temporary, sizeof(temporary), "%s/.%s.%ld", dir, name, (long)getpid());
    f = fopen(temporary, "we");
    if (!f)
        return -errno;
    errno = 0;
    rc = !fchmod(fileno(f), 0600) && fwrite(text, 1, n, f) == n && !fflush(f) &&
         !fdatasync(fileno(f)) ? 0 : -errno;
    if (fclose(f) && !rc)
        rc = -errno;
    if (!rc && rename(temporary, path))
        rc = -errno;
    if (rc)
        unlink(temporary);
    return rc;
}

void machine_save(const struct machine *m, const char *dir, const struct checkpoint *c,
                  struct log *l)
{
    struct text t = { NULL, 0, 0, false };
    char name[NAME_SIZE];
    int rc;

    if (!dir || !file_name(name, m, c))
        return;
    machine_write(&t, m);
    text_puts(&t, "\n");
    rc = t.failed ? -ENOMEM : make_directory(dir);
    if (!rc)
        rc = replace_file(dir, name, t.s, t.n);
    if (rc)
        warn(l, "%s/%s: %s; the figures of this machine are not kept", dir, name, strerror(-rc));
    text_free(&t);
}
