#ifndef LAGUNA_PREDICT_H
#define LAGUNA_PREDICT_H

#include "src/machine.h"
#include "src/placement.h"
#include "storage/popularity.h"

/* What speed a placement will have on a machine: pure arithmetic. */

/* How unevenly the router chooses: the share of all choices that the n most popular experts
 * get.  Without statistics all are alike. */
struct skew {
    float *share;               /* [experts + 1], ascending from 0 to 1; NULL: even */
    int experts;
};

/* From statistics that are not empty; else even.  -ENOMEM. */
int  skew_open(struct skew *s, const struct popularity *p, struct err *e);
void skew_close(struct skew *s);
double skew_hits(const struct skew *s, int n);

struct tier_bytes {
    double vram, ram, nvme;
};

struct prediction {
    double decode_tps, prefill_tps;
    const char *bottleneck;     /* of decode: "RAM", "drive", "VRAM" or "processor" */
    const char *prefill_bottleneck;
    struct tier_bytes bytes_per_token;  /* of decode, dense weights and KV included */
    double hit_vram, hit_ram;   /* shares of the experts chosen */
    bool guessed_gpu;           /* the GPU's bandwidths were not measured */
};

/* depth: positions before the token, or before the batch of a prompt. */
void predict(struct prediction *out, const struct needs *n, const struct placement *p,
             enum kv_type type, const struct machine *m, const struct skew *s, int depth);

/* "predicted 41.2 tok/s (RAM), achieved 38.9, 94 %": into out. */
void prediction_line(char *out, size_t size, const struct prediction *p, double achieved_tps);

#endif
