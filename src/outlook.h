#ifndef LAGUNA_OUTLOOK_H
#define LAGUNA_OUTLOOK_H

#include "src/options.h"
#include "src/predict.h"

struct engine;

/* What to expect of a model on a machine under some settings: the placement, and the speed. */
struct outlook {
    struct machine machine;     /* gpu[0] is the one in use */
    struct needs needs;         /* its shape is the model's, which outlives this */
    struct placement placement;
    size_t vram_budget_bytes, vram_free_bytes;  /* of the GPU in use, when planning */
    enum kv_type kv_type;
    struct skew skew;           /* even where there are no statistics */
    struct prediction prediction;       /* at the beginning of a context */
};

struct outlook_ask {
    const struct model *model;          /* headers are enough */
    struct options *options;
    const struct machine *machine;
    size_t ram_free_bytes;
    size_t scratch_bytes;               /* of the CPU, for a batch */
};

/* -ENODEV where the settings ask for a GPU that the machine lacks.  Close whatever the
 * answer. */
int  outlook_open(struct outlook *k, const struct outlook_ask *a, struct err *e);
void outlook_close(struct outlook *k);

/* What was to be expected of an engine that is open, from figures of the machine that were
 * kept: nothing is measured.  False where there are none. */
bool outlook_of(struct outlook *k, const struct engine *g, struct options *o);

/* The speeds `depth` positions into a context. */
struct prediction outlook_at(const struct outlook *k, int depth);

/* The router's statistics that earlier runs have kept; -ENOENT where there are none.  Close
 * *p whatever the answer. */
int  statistics_open(struct popularity *p, const struct model *m, struct options *o,
                     struct err *e);

#endif
