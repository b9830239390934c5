#ifndef LAGUNA_MACHINE_H
#define LAGUNA_MACHINE_H

#include "cuda/gpu.h"
#include "src/json.h"
#include "src/model.h"

struct cpu_kernels;

/* The figures of a machine that a plan is made from: `machine` of plan --json, and what
 * --machine reads. */

struct machine_gpu {
    char name[64];
    size_t vram_bytes;
    double vram_gbps, h2d_gbps; /* 0: not measured */
    size_t free_bytes;          /* now; 0: not known */
    double gmacs;               /* 10^9 multiplications of BF16 a second; 0: not measured */
    double ram_read_beside_gbps, h2d_beside_gbps;       /* at the same time; 0: not measured */
};

struct machine {
    size_t ram_bytes;           /* of the machine, or of the tightest control group */
    double ram_read_gbps;       /* all cores together */
    double drive_read_gbps;     /* large direct reads of the model's shards */
    double matvec_gbps;         /* 4-bit weights in RAM times one token; 0: not measured */
    double cpu_gmacs;           /* 10^9 multiplications of 4-bit weights a second, many tokens */
    int cores;                  /* physical ones that may be used */
    char isa[16];
    struct machine_gpu gpu[MAX_GPUS];
    int gpus;
};

/* What is known without measuring: memory, cores, GPUs.  Kernels may be NULL. */
int  machine_find(struct machine *m, const struct cpu_kernels *k, struct log *l, struct err *e);

struct machine_ask {
    const struct checkpoint *checkpoint;        /* on the drive in question */
    const struct cpu_kernels *kernels;
    const char *cache_dir;      /* where figures are kept, or NULL */
    bool remeasure;             /* whatever was kept */
    struct log *log;
};

/* All figures: those that were kept, else measured now and kept.  Measuring blocks for about
 * a second, and as long for each GPU; a GPU that cannot be measured is one warning.  -EIO where the
 * drive cannot be read, -EAGAIN without threads, -ENOMEM. */
int  machine_get(struct machine *m, const struct machine_ask *a, struct err *e);

/* The figures of this machine and of the drive that holds the checkpoint, measured at an
 * earlier time; directory NULL: there is no such place.  A damaged file is one warning.
 * False: there are none. */
bool machine_load(struct machine *m, const char *dir, const struct checkpoint *c, struct log *l);

/* Keep them, replacing the file in one step.  A failure is one warning. */
void machine_save(const struct machine *m, const char *dir, const struct checkpoint *c,
                  struct log *l);

/* The JSON object, which machine_read() takes.  Reading is strict: every key of it must be
 * there, but for matvec_gbps, cpu_gmacs, a GPU's gmacs, its free_bytes and the figures "beside",
 * and no other.  -EBADMSG. */
void machine_write(struct text *t, const struct machine *m);
int  machine_read(struct machine *m, const char *json, size_t n, const char *name,
                  struct err *e);

#endif
