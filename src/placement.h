#ifndef LAGUNA_PLACEMENT_H
#define LAGUNA_PLACEMENT_H

#include "cpu/kernels.h"
#include "src/model.h"

struct options;

/* The planner: what goes where.  A pure function of what the model needs and what the
 * machine gives; engine_open() reserves what it says, and `plan` prints it. */

enum {
    STAGING_BYTES = 64 << 20,   /* at most, for slots that no budget pays for */
    CONTEXT_STEP = 4096,        /* of -c auto */
    CONTEXT_LEAST = 8192,
};

/* What the model needs, whatever the machine. */
struct needs {
    const struct shape *shape;
    size_t dense_bytes;         /* in memory, the embedding included */
    size_t embed_bytes;         /* of them the embedding: a token reads one row of it */
    size_t scratch_bytes;       /* of a batch and a session; the caller fills it in */
    size_t expert_bytes;        /* of all routed experts, payload */
    size_t slot_bytes;          /* holds any expert, rounded out to O_DIRECT's pages */
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
    int batch;                  /* most tokens of a forward pass */
    int snapshots;              /* copies of the window layers' rings that a session keeps */
    enum kv_type kv_type;
};

struct placement {
    bool fits;
    char why[256];              /* where it does not fit: the numbers, and what to do */
    bool gpu;
    int context, batch;
    size_t dense_bytes, kv_bytes, snapshot_bytes, scratch_bytes;
    size_t slot_bytes;          /* of a slot in RAM */
    int vram_slots, ram_slots;  /* paid for by the budgets */
    int staging_slots;          /* besides, so that a layer can be computed in waves */
    bool copies;                /* RAM holds everything: experts in VRAM stay there too */
    int vram, ram, nvme;        /* experts, in steady state; each is counted once */
    size_t ram_bytes, vram_bytes;       /* that all of this takes */
};

/* From the headers of an open model; scratch_bytes is 0 afterwards.  -EBADMSG. */
int  needs_of(struct needs *out, const struct model *m, struct err *e);

/* What the settings leave of a machine: RAM that is free and that there is, and VRAM of the
 * GPU in use (0: none).  --ram auto leaves a sixteenth, at most 4 GiB, to the system, and
 * --vram auto a sixteenth of the card. */
void budget_fill(struct budget *b, const struct options *o, size_t ram_free, size_t ram_total,
                 size_t vram);

/* Never fails: see `fits`. */
void placement_plan(struct placement *out, const struct needs *n, const struct budget *b);

/* Slots that the slab in RAM must have. */
static inline int placement_slots(const struct placement *p)
{
    return p->ram_slots + p->staging_slots;
}

#endif
