#ifndef LAGUNA_OUTLOOK_H
#define LAGUNA_OUTLOOK_H

#include "src/options.h"
#include "src/predict.h"

/* What to expect of a model on a machine under some settings: the placement, and the speed. */
struct outlook {
    struct machine machine;
    struct needs needs;         /* its shape is the model's, which outlives this */
    struct placement placement;
    enum kv_type kv_type;
    bool statistics;            /* the router's choices are known from earlier runs */
    struct skew skew;
    struct prediction prediction;       /* at the beginning of a context */
};

struct outlook_ask {
    const struct model *model;          /* headers are enough */
    struct options *options;
    const struct machine *machine;
    size_t ram_free_bytes;
    size_t scratch_bytes;               /* of a batch and a session */
    int context, batch;                 /* context 0: as the options say */
};

/* -ENODEV where the settings ask for a GPU that the machine lacks.  Close whatever the
 * answer. */
int  outlook_open(struct outlook *out, const struct outlook_ask *a, struct err *e);
void outlook_close(struct outlook *k);

/* The same speeds, `depth` positions into a context. */
struct prediction outlook_at(const struct outlook *k, int depth);

struct engine;

/* What was to be expected of an engine that is open, from figures that were kept; nothing is
 * measured.  False where there are none. */
bool outlook_of_engine(struct outlook *out, const struct engine *g, struct options *o);

#endif
