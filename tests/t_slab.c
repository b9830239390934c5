#include "config.h"

#include "storage/slab.h"
#include "tests/tap.h"

#include <errno.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

/* Of the process: address space, and pages that have memory behind them. */
static size_t statm(bool resident_only)
{
    FILE *f = fopen("/proc/self/statm", "r");
    unsigned long all = 0, resident = 0;

    if (!f || fscanf(f, "%lu %lu", &all, &resident) != 2)
        resident = 0;
    if (f)
        fclose(f);
    return (resident_only ? resident : all) * 4096;
}

static size_t resident_bytes(void)
{
    return statm(true);
}

static void shape(size_t slot_bytes, int slots, int chunks)
{
    struct log log = { .level = LOG_QUIET };
    struct slab_config c = { slot_bytes, slots, SLAB_ANY, &log };
    struct slab *s = NULL;
    size_t before = resident_bytes();
    struct err e;
    int bad = 0;

    ok(!slab_open(&s, &c, &e) && slab_slots(s) == slots && slab_chunks(s) == chunks,
       "%d slots of %zu bytes in %d chunks", slots, slot_bytes, chunks);
    for (int i = 0; i < slots; i++) {
        char *p = slab_slot(s, i);
        int inside = 0;

        for (int k = 0; k < slab_chunks(s); k++) {
            struct slab_chunk m = slab_chunk(s, k);

            inside += p >= (char *)m.base &&
                      p + slab_slot_bytes(s) <= (char *)m.base + m.bytes;
        }
        bad += inside != 1 || (uintptr_t)p % 4096;
        bad += i && (char *)slab_slot(s, i - 1) < p && (char *)slab_slot(s, i - 1) +
               slab_slot_bytes(s) > p;
    }
    for (int k = 0; k < slab_chunks(s); k++)
        bad += slab_chunk(s, k).bytes > (size_t)1 << 30 || (uintptr_t)slab_chunk(s, k).base >> 21
               << 21 != (uintptr_t)slab_chunk(s, k).base;
    ok(!bad, "each slot whole in one chunk, aligned, apart from its neighbour");
    ok(resident_bytes() < before + ((size_t)8 << 20), "nothing touched yet");
    slab_close(s);
}

static void touching(int node)
{
    struct log log = { .level = LOG_QUIET };
    struct slab_config c = { 100000, 160, node, &log };
    struct slab *s = NULL;
    size_t before;
    struct err e;

    ok(!slab_open(&s, &c, &e), "node %d", node);
    strcpy(slab_slot(s, 100), "a read was here");
    before = resident_bytes();
    ok(!slab_touch(s, 0, &e) && resident_bytes() > before + (10 << 20), "pages behind it");
    ok(!strcmp(slab_slot(s, 100), "a read was here"), "and no byte changed");
    slab_close(s);
}

static void refused(void)
{
    struct log log = { .level = LOG_QUIET };
    struct slab_config c = { (size_t)1 << 30, 100, SLAB_ANY, &log };
    struct rlimit before, limit;
    struct slab *s = NULL;
    struct err e;

    getrlimit(RLIMIT_AS, &before);
    limit = (struct rlimit){ statm(false) + ((rlim_t)3 << 30), before.rlim_max };
    setrlimit(RLIMIT_AS, &limit);
    ok(slab_open(&s, &c, &e) == -ENOMEM, "more than the address space: %s", e.text);
    ok(statm(false) < limit.rlim_cur - ((rlim_t)2 << 30), "what was had is given back");
    setrlimit(RLIMIT_AS, &before);
}

int main(void)
{
    shape(5308416, 0, 0);
    shape(5308416, 1, 1);
    shape(5308416, 202, 1);
    shape(5308416, 203, 2);
    shape(5013504, 500, 3);
    shape(1, 7, 1);
    shape((size_t)1 << 30, 2, 2);
    touching(SLAB_ANY);
    touching(0);
    touching(SLAB_INTERLEAVE);
    refused();
    return done();
}
