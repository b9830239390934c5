/* The machine's figures as JSON and in the cache: what is written is read, what is damaged is
 * told and measured again. */
#include "src/machine.h"
#include "cpu/kernels.h"
#include "cpu/kv.h"
#include "cpu/pool.h"
#include "src/measure.h"
#include "tests/files.h"
#include "tests/tap.h"

#include <errno.h>

static const struct machine example = {
    .ram_bytes = 64000000000, .ram_read_gbps = 78.25, .drive_read_gbps = 6.9, .matvec_gbps = 70.5,
    .cpu_gmacs = 900, .cores = 16, .isa = "avx512vnni", .gpus = 1,
    .gpu = { { "RTX \"3090\"", 25438126080, 936.5, 24.25, 25000000000, 35000, 61.5, 21.75 } },
};

static int read_text(struct machine *m, const char *json, struct err *e)
{
    return machine_read(m, json, strlen(json), "m.json", e);
}

static void test_json(void)
{
    struct text t = { NULL, 0, 0, false };
    struct machine m;
    struct err e = { "" };

    machine_write(&t, &example);
    ok(!read_text(&m, t.s, &e), "%s %s", t.s, e.text);
    ok(m.ram_bytes == example.ram_bytes && m.ram_read_gbps == 78.25 && m.cores == 16 &&
       m.drive_read_gbps == 6.9 && m.matvec_gbps == 70.5 && m.cpu_gmacs == 900 &&
       !strcmp(m.isa, example.isa) &&
       m.gpus == 1 && !strcmp(m.gpu[0].name, example.gpu[0].name) &&
       m.gpu[0].vram_bytes == 25438126080 && m.gpu[0].h2d_gbps == 24.25 &&
       m.gpu[0].free_bytes == 25000000000 && m.gpu[0].gmacs == 35000 &&
       m.gpu[0].ram_read_beside_gbps == 61.5 && m.gpu[0].h2d_beside_gbps == 21.75,
       "what was written");
    text_free(&t);
    m.gpu[0].h2d_beside_gbps = 0;
    machine_write(&t, &m);
    ok(!strstr(t.s, "beside") && !read_text(&m, t.s, &e) && !m.gpu[0].ram_read_beside_gbps,
       "what was not measured is not written, and may be absent");
    text_free(&t);
}

/* Each spoils one thing of a good description. */
static void test_refusals(void)
{
    static const struct {
        const char *json, *words;
    } bad[] = {
        { "", "" },
        { "[]", "not a JSON object" },
        { "{\"cores\": 1}", "ram_bytes: missing" },
        { "{\"ram_bytes\":-1,\"ram_read_gbps\":1,\"drive_read_gbps\":1,\"cores\":1,\"isa\":\"\","
          "\"gpus\":[]}", "ram_bytes: -1" },
        { "{\"ram_bytes\":1.5,\"ram_read_gbps\":1,\"drive_read_gbps\":1,\"cores\":1,\"isa\":\"\","
          "\"gpus\":[]}", "ram_bytes: 1.5" },
        { "{\"ram_bytes\":1,\"ram_read_gbps\":0,\"drive_read_gbps\":1,\"cores\":1,\"isa\":\"\","
          "\"gpus\":[]}", "ram_read_gbps: must be above 0" },
        { "{\"ram_bytes\":1,\"ram_read_gbps\":1,\"drive_read_gbps\":\"7\",\"cores\":1,\"isa\":\"\","
          "\"gpus\":[]}", "drive_read_gbps" },
        { "{\"ram_bytes\":1,\"ram_read_gbps\":1,\"drive_read_gbps\":1,\"cores\":0,\"isa\":\"\","
          "\"gpus\":[]}", "cores: 0" },
        { "{\"ram_bytes\":1,\"ram_read_gbps\":1,\"drive_read_gbps\":1,\"cores\":1,"
          "\"isa\":\"a name that is too long\",\"gpus\":[]}", "isa: longer than 15" },
        { "{\"ram_bytes\":1,\"ram_read_gbps\":1,\"drive_read_gbps\":1,\"cores\":1,\"isa\":\"\","
          "\"gpus\":[1]}", "gpus: holds" },
        { "{\"ram_bytes\":1,\"ram_read_gbps\":1,\"drive_read_gbps\":1,\"cores\":1,\"isa\":\"\","
          "\"gpus\":[{\"name\":\"x\"}]}", "vram_bytes: missing" },
        { "{\"ram_bytes\":1,\"ram_read_gbps\":1,\"drive_read_gbps\":1,\"cores\":1,\"isa\":\"\"}",
          "gpus: missing" },
        { "{\"ram_bytes\":1,\"ram_read_gbps\":1,\"drive_read_gbps\":1,\"cores\":1,\"isa\":\"\","
          "\"gpus\":[{\"name\":\"x\",\"vram_bytes\":1,\"vram_gbps\":1,\"h2d_gbps\":1,"
          "\"h2d_beside_gbps\":-1}]}", "h2d_beside_gbps: -1" },
        { "{\"ram_bytes\":1,\"ram_read_gbps\":1,\"drive_read_gbps\":1,\"cores\":1,\"isa\":\"\","
          "\"gpus\":[],\"ram\":1}", "ram: no such key" },
    };
    static const char good[] = "{\"ram_bytes\":1,\"ram_read_gbps\":1,\"drive_read_gbps\":1,"
                               "\"cores\":1,\"isa\":\"\",\"gpus\":[]}";
    struct machine m = { .cores = 99 };
    struct err e;

    for (size_t i = 0; i < sizeof(bad) / sizeof(*bad); i++)
        ok(read_text(&m, bad[i].json, &e) == -EBADMSG && strstr(e.text, bad[i].words) &&
           strstr(e.text, "m.json") && m.cores == 99, "%s", e.text);
    ok(!read_text(&m, good, &e) && m.cpu_gmacs == 0 && m.matvec_gbps == 0,
       "a description without cpu_gmacs and matvec_gbps");
}

/* The one file in a directory of figures. */
static void only_file(const char *dir, char out[256])
{
    DIR *d = opendir(dir);
    struct dirent *f;

    out[0] = 0;
    while (d && (f = readdir(d)))
        if (*f->d_name != '.')
            snprintf(out, 256, "%s", f->d_name);
    if (d)
        closedir(d);
}

static void test_kept(const struct checkpoint *c)
{
    char *dir = temp_dir(), name[256], below[4096];
    struct log l = { .level = LOG_QUIET };
    struct machine m = example, other = example;

    m.ram_read_gbps = 0;
    ok(!machine_load(&m, dir, c, &l) && !l.notices, "nothing is kept yet, and that is no fault");
    machine_save(&example, dir, c, &l);
    m.matvec_gbps = 0;
    ok(machine_load(&m, dir, c, &l) && m.ram_read_gbps == 78.25 && m.matvec_gbps == 70.5 &&
       m.gpu[0].vram_gbps == 936.5 && m.gpu[0].ram_read_beside_gbps == 61.5 &&
       m.gpu[0].h2d_beside_gbps == 21.75,
       "kept and found");
    strcpy(m.gpu[0].name, "another");
    m.gpu[0].vram_gbps = 0;
    ok(machine_load(&m, dir, c, &l) && m.gpu[0].vram_gbps == 0, "not for another card");
    strcpy(m.gpu[0].name, example.gpu[0].name);
    other.cores = 8;
    ok(!machine_load(&other, dir, c, &l), "other cores: another machine");
    strcpy(m.isa, "ref");
    ok(!machine_load(&m, dir, c, &l), "other kernels: figures that do not hold");
    only_file(dir, name);
    write_file(dir, name, "{\"ram_bytes\": 1", 15);
    strcpy(m.isa, example.isa);
    ok(!machine_load(&m, dir, c, &l) && l.notices == 1 && strstr(l.notice[0], name),
       "damaged: %s", l.notice[0]);
    machine_save(&example, dir, c, &l);
    ok(machine_load(&m, dir, c, &l) && l.notices == 1, "and replaced");
    only_file(dir, name);
    ok(!strncmp(name, "machine-", 8), "one file is left: %s", name);
    join_path(below, dir, name);
    strcat(below, "/below");
    machine_save(&example, below, c, &l);
    ok(l.notices == 2 && strstr(l.notice[1], "not kept"), "no directory can be made: %s",
       l.notice[1]);
    ok(!machine_load(&m, NULL, c, &l) && l.notices == 2, "no place at all");
    remove_dir(dir);
}

static void test_measured(const struct checkpoint *c)
{
    char *dir = temp_dir();
    struct log l = { .level = LOG_QUIET };
    struct machine_ask a = { .checkpoint = c, .kernels = cpu_kernels_best(), .cache_dir = dir,
                             .log = &l };
    struct machine m, again;
    struct err e = { "" };
    double start;

    if (!a.kernels)
        a.kernels = cpu_kernels(CPU_REF);
    ok(!machine_get(&m, &a, &e) && m.ram_read_gbps > 0.5 && m.drive_read_gbps > 0.001 &&
       m.matvec_gbps > 0.01 && m.cpu_gmacs > 0.01 && m.cores > 0 && m.ram_bytes > 0,
       "RAM %.1f GB/s, weights %.1f, drive %.2f, %.1f GMAC/s, %d cores %s", m.ram_read_gbps,
       m.matvec_gbps, m.drive_read_gbps, m.cpu_gmacs, m.cores, e.text);
    start = clock_now();
    ok(!machine_get(&again, &a, &e) && again.cpu_gmacs > 0 && clock_now() - start < 0.3,
       "the second time from the cache, in %.3f s", clock_now() - start);
    remove_dir(dir);
}

/* A card that no machine has. */
static void test_beside(void)
{
    struct pool_config pc = { .threads = 1 };
    struct beside_speed both = { 1, 2 };
    struct pool *pool = NULL;
    struct err e = { "" };

    ok(!pool_open(&pool, &pc, &e) && measure_beside(pool, MAX_GPUS + 1, &both, &e) == -ENODEV &&
       both.ram_gbps == 1 && both.h2d_gbps == 2, "nothing to read beside: %s", e.text);
    pool_close(pool);
}

int main(void)
{
    char *nano = source_path("models/nano");
    struct log l = { .level = LOG_QUIET };
    struct checkpoint *c = NULL;
    struct err e = { "" };

    test_json();
    test_refusals();
    test_beside();
    ok(!checkpoint_open(&c, nano, &l, &e), "nano %s", e.text);
    if (c) {
        test_kept(c);
        test_measured(c);
    }
    checkpoint_close(c);
    free(nano);
    return done();
}
