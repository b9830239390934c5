#ifndef LAGUNA_PLACEMENT_H
#define LAGUNA_PLACEMENT_H

#include "cpu/kernels.h"
#include "cuda/gpu.h"
#include "src/model.h"

struct options;

/* The planner: what goes where.  A pure function of what the model needs and what the
 * machine gives; engine_open() reserves what it says, and `plan` prints it. */

enum {
    STAGING_BYTES = 64 << 20,   /* in RAM at most, for slots that no budget pays for */
    VRAM_STAGING = 96,          /* slots: what PCIe brings while a layer's attention runs */
    VRAM_STAGING_LEAST = 2,
    GPU_BATCH_LEAST = 512,
    GPU_BATCH_MOST = 8192,
    CONTEXT_STEP = 4096,        /* of -c auto */
    CONTEXT_LEAST = 8192,
};

/* What the model needs, whatever the machine. */
struct needs {
    const struct shape *shape;
    size_t dense_bytes;         /* in memory, the embedding included */
    size_t embed_bytes;         /* of them the embedding: a token reads one row of it */
    size_t scratch_bytes;       /* of the CPU, for a batch; the caller fills it in */
    size_t expert_bytes;        /* of all routed experts, payload */
    size_t slot_bytes;          /* holds any expert, rounded out to O_DIRECT's pages */
    size_t vram_dense_bytes, vram_slot_bytes;   /* the same in VRAM, as gpu_config wants them */
    int experts;                /* of all layers */
};

/* What the program may use. */
struct budget {
    size_t ram_bytes;           /* for everything that lies in RAM */
    size_t ram_experts_bytes;   /* of it for slots; SIZE_MAX: what is left */
    bool gpu;                   /* dense weights and KV go to VRAM */
    size_t vram_bytes, vram_experts_bytes;      /* the same of the GPU */
    size_t context_bytes;       /* -c auto: KV may take a quarter of this */
    int context;                /* tokens; 0: auto */
    int batch;                  /* most tokens of a forward pass on the CPU; a GPU's is chosen */
    int snapshots;              /* copies of the window layers' rings that a session keeps */
    bool parks;                 /* with a GPU: a second conversation may wait in RAM */
    bool uploads;               /* a decode step's experts in RAM: some cross PCIe meanwhile */
    enum kv_type kv_type;
};

struct placement {
    bool fits;
    char why[256];              /* where it does not fit: the numbers, and what to do */
    bool gpu;
    int context, batch;
    size_t dense_bytes, kv_bytes, snapshot_bytes;
    size_t scratch_bytes;       /* of the CPU */
    size_t mirror_bytes;        /* with a GPU: the window layers' rings, in RAM too */
    size_t parked_bytes;        /* the cache of a conversation that waits for the GPU */
    size_t pinned_bytes;        /* what the GPU's own calls stage in RAM */
    size_t slot_bytes;          /* of a slot in RAM */
    size_t vram_dense_bytes, vram_scratch_bytes, vram_slot_bytes;
    int vram_slots, ram_slots;  /* paid for by the budgets */
    int vram_staging;           /* besides, for experts that a prompt streams through VRAM */
    int staging_slots;          /* besides, so that a layer can be computed in waves */
    bool uploads;               /* as the budget says, where there is a GPU */
    bool copies;                /* RAM holds everything: experts in VRAM stay there too */
    int vram, ram, nvme;        /* experts, in steady state; each is counted once */
    size_t ram_bytes, vram_bytes;       /* that all of this takes */
};

/* From the headers of an open model; scratch_bytes is 0 afterwards.  -EBADMSG. */
int  needs_of(struct needs *out, const struct model *m, struct err *e);

/* What a machine has, and of it what is free now; of the GPU in use, 0: none. */
struct room {
    size_t ram_free, ram_total, vram_free, vram_total;
    int card;                   /* the number of that GPU: --vram has a size for each */
};

/* What the settings leave of a machine.  --ram auto leaves a sixteenth, at most 4 GiB, to the
 * system; --vram auto what --vram-reserve says, else a sixteenth, at least 512 MiB. */
void budget_fill(struct budget *b, const struct options *o, const struct room *r);

/* Never fails: see `fits`. */
void placement_plan(struct placement *out, const struct needs *n, const struct budget *b);

/* How to open the GPU of a placement that fits and has one.  The device and the watchdog are
 * the caller's affair. */
struct gpu_config placement_gpu(const struct placement *p, const struct shape *s,
                                enum kv_type type);

/* Slots that the slab in RAM must have. */
static inline int placement_slots(const struct placement *p)
{
    return p->ram_slots + p->staging_slots;
}

#endif
