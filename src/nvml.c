/* NVML, found when the program runs: the binary starts, and works, on machines without it.
 * The declarations below are those of its manual; the versions named are years old, and a
 * library that lacks one of the optional ones leaves its figure untold. */
#include "src/nvml.h"

#include <dlfcn.h>
#include <errno.h>
#include <stdio.h>
#include <unistd.h>

enum { PROCESSES = 64 };

struct memory_info {
    unsigned long long total, free, used;
};

/* Version 2 and 3 of the call give the same. */
struct process_info {
    unsigned pid;
    unsigned long long used_bytes;      /* all ones: not told */
    unsigned instance, compute_instance;
};

typedef int (*card_number_fn)(void *card, unsigned *out);

struct library {
    void *handle;
    int (*init)(void);
    int (*shutdown)(void);
    const char *(*error)(int);
    int (*count)(unsigned *);
    int (*by_index)(unsigned, void **);
    int (*name)(void *, char *, unsigned);
    /* Each of these may be NULL. */
    int (*driver)(char *, unsigned);
    int (*memory)(void *, struct memory_info *);
    int (*processes)(void *, unsigned *, struct process_info *);
    card_number_fn generation, width, generation_most, width_most, power, power_default,
                   persistence;
};

/* dlsym() returns an object pointer; this is POSIX's way to make a function of it. */
static bool find(const struct library *l, const char *name, void *function)
{
    void *p = dlsym(l->handle, name);

    memcpy(function, &p, sizeof(p));
    return p != NULL;
}

static bool find_all(struct library *l)
{
    find(l, "nvmlSystemGetDriverVersion", &l->driver);
    find(l, "nvmlDeviceGetMemoryInfo", &l->memory);
    if (!find(l, "nvmlDeviceGetComputeRunningProcesses_v3", &l->processes))
        find(l, "nvmlDeviceGetComputeRunningProcesses_v2", &l->processes);
    find(l, "nvmlDeviceGetCurrPcieLinkGeneration", &l->generation);
    find(l, "nvmlDeviceGetCurrPcieLinkWidth", &l->width);
    find(l, "nvmlDeviceGetMaxPcieLinkGeneration", &l->generation_most);
    find(l, "nvmlDeviceGetMaxPcieLinkWidth", &l->width_most);
    find(l, "nvmlDeviceGetEnforcedPowerLimit", &l->power);
    find(l, "nvmlDeviceGetPowerManagementDefaultLimit", &l->power_default);
    find(l, "nvmlDeviceGetPersistenceMode", &l->persistence);
    return find(l, "nvmlInit_v2", &l->init) && find(l, "nvmlShutdown", &l->shutdown) &&
           find(l, "nvmlErrorString", &l->error) &&
           find(l, "nvmlDeviceGetCount_v2", &l->count) &&
           find(l, "nvmlDeviceGetHandleByIndex_v2", &l->by_index) &&
           find(l, "nvmlDeviceGetName", &l->name);
}

/* A figure of a card in units of `unit`, or NVML_NOT_TOLD. */
static int number(card_number_fn get, void *card, unsigned unit)
{
    unsigned v = 0;

    return get && !get(card, &v) && v / unit <= INT32_MAX ? (int)(v / unit) : NVML_NOT_TOLD;
}

static void read_others(struct nvml_card *c, const struct library *l, void *card)
{
    struct process_info p[PROCESSES];
    unsigned n = PROCESSES, self = (unsigned)getpid();

    c->others = NVML_NOT_TOLD;
    if (!l->processes || l->processes(card, &n, p))
        return;
    c->others = 0;
    for (unsigned i = 0; i < n && i < PROCESSES; i++) {
        c->others += p[i].pid != self;
        if (p[i].pid != self && p[i].used_bytes != ~0ull)
            c->others_bytes += (size_t)p[i].used_bytes;
    }
}

static void read_card(struct nvml_card *c, const struct library *l, void *card)
{
    struct memory_info m;

    *c = (struct nvml_card){
        .generation = number(l->generation, card, 1), .width = number(l->width, card, 1),
        .generation_most = number(l->generation_most, card, 1),
        .width_most = number(l->width_most, card, 1), .power_watts = number(l->power, card, 1000),
        .power_default_watts = number(l->power_default, card, 1000),
        .persistence = number(l->persistence, card, 1),
    };
    if (l->name(card, c->name, sizeof(c->name)))
        strcpy(c->name, "a card without a name");
    c->name[sizeof(c->name) - 1] = 0;
    if (l->memory && !l->memory(card, &m)) {
        c->total_bytes = (size_t)m.total;
        c->used_bytes = (size_t)m.used;
    }
    read_others(c, l, card);
}

static int read_cards(struct nvml *out, const struct library *l, struct err *e)
{
    unsigned n = 0;
    int rc = l->count(&n);

    if (rc)
        return fail(e, -EREMOTEIO, "%s", l->error(rc));
    if (l->driver && l->driver(out->driver, sizeof(out->driver)))
        out->driver[0] = 0;
    for (unsigned i = 0; i < n && out->cards < NVML_CARDS; i++) {
        void *card = NULL;

        rc = l->by_index(i, &card);
        if (rc)
            return fail(e, -EREMOTEIO, "card %u: %s", i, l->error(rc));
        read_card(&out->card[out->cards++], l, card);
    }
    return 0;
}

int nvml_read(struct nvml *out, const char *library, struct err *e)
{
    const char *file = library ? library : "libnvidia-ml.so.1";
    struct library l = { .handle = dlopen(file, RTLD_NOW | RTLD_LOCAL) };
    int rc;

    *out = (struct nvml){ .cards = 0 };
    if (!l.handle)
        return fail(e, -ENOENT, "%s is not here", file);
    if (find_all(&l)) {
        rc = l.init();
        if (rc) {
            rc = fail(e, -EREMOTEIO, "%s", l.error(rc));
        } else {
            rc = read_cards(out, &l, e);
            l.shutdown();
        }
    } else {
        rc = fail(e, -ENOSYS, "%s lacks a function that is needed", file);
    }
    dlclose(l.handle);
    return rc;
}
