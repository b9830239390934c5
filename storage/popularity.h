#ifndef LAGUNA_POPULARITY_H
#define LAGUNA_POPULARITY_H

#include "storage/policy.h"

/* What the router of one model has chosen so far, kept from start to start.  It decides what
 * is kept in memory and never what is computed: a lost or foreign file costs speed only. */

struct popularity {
    int layers, experts;        /* layers: those with routed experts */
    uint64_t fingerprint;       /* of the model; part of the file's name */
    struct policy_layer *layer; /* [layers] */
    struct policy_use *use;     /* [layers][experts] */
    double complained;          /* when a failed save was last told */
};

/* Nothing chosen yet.  -ENOMEM. */
int  popularity_open(struct popularity *p, int layers, int experts, uint64_t fingerprint,
                     struct err *e);
void popularity_close(struct popularity *p);

/* One token chose n experts of a layer. */
static inline void popularity_note(struct popularity *p, int layer, const uint16_t *expert,
                                   int n)
{
    policy_note(&p->layer[layer], expert, n);
}

/* Read the statistics of this model in directory `dir`, where there are any.  A file that is
 * damaged or of another model is renamed to NAME.corrupt-1 to -3 with a warning, and p stays
 * as it was.  True: p was filled. */
bool popularity_load(struct popularity *p, const char *dir, struct log *l);

/* Replace the file in one step: a reader, or a crash, sees the old or the new one.  A failure
 * keeps the old file and is told once an hour.  0 or the negative errno. */
int  popularity_save(struct popularity *p, const char *dir, struct log *l);

/* The format, as pure functions of bytes.  popularity_bytes() is exact. */
size_t popularity_bytes(int layers, int experts);
void   popularity_write(const struct popularity *p, uint8_t *out);
/* -EBADMSG, with p unchanged. */
int    popularity_read(struct popularity *p, const uint8_t *in, size_t n, struct err *e);

#endif
