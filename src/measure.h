#ifndef LAGUNA_MEASURE_H
#define LAGUNA_MEASURE_H

#include "storage/checkpoint.h"

struct pool;
struct cpu_kernels;

/* How fast this machine is at the things that a token is made of.  Each takes some
 * tenths of a second, and blocks.  0 where there is no memory to measure with. */

/* GB/s of all workers reading memory that no cache holds. */
double measure_ram(struct pool *p);

/* GB/s of 4-bit weights in such memory that all workers multiply by one token, which is what
 * decoding reads them at. */
double measure_matvec(struct pool *p, const struct cpu_kernels *k);

/* measure_ram() while copies from RAM to a GPU are under way all the time, and what those reach. */
struct beside_speed {
    double ram_gbps, h2d_gbps;  /* in the mean: what either does to the other is what counts */
};

/* In 0.5 s, with 128 MB pinned.  Errors of gpu_measure_beside(). */
int measure_beside(struct pool *p, int device, struct beside_speed *out, struct err *e);

/* 10^9 multiply-adds a second of all workers: 4-bit weights times a batch of tokens. */
double measure_products(struct pool *p, const struct cpu_kernels *k);

/* What a drive was seen to do. */
struct drive_speed {
    double gbps;
    bool direct;                /* the page cache was bypassed */
};

/* Large reads at random places of the shards, the way experts are read. */
int measure_drive(struct drive_speed *out, const struct checkpoint *c, struct log *l,
                  struct err *e);

#endif
