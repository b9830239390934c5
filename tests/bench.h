#ifndef LAGUNA_BENCH_H
#define LAGUNA_BENCH_H

#include "src/base.h"

/* What the benchmarks share: the machine's limits, measured beside each figure in the same
 * run, and rows as a table on stdout and as JSON. */
struct bench;

/* json: a file that gets one JSON object a row, or NULL. */
struct bench *bench_open(const char *json);
int  bench_close(struct bench *b);      /* 0, or 1 where a row missed its bar */

/* GB/s that `threads` pinned threads read from a buffer much larger than the caches. */
double bench_read_gbps(struct bench *b, int threads);

/* GFLOP/s (two a multiply-add) of `threads` pinned threads in a loop over registers only:
 * BF16 dot products where the processor has them, else int8 ones (maddubs). */
double bench_dot_gflops(struct bench *b, int threads);
bool   bench_has_bf16(void);

int    bench_threads_max(const struct bench *b);
double bench_median(double *v, int n);  /* sorts v */

/* One row: a value beside its limit.  bar is the ratio asked for: at least bar where it is
 * positive, at most -bar where it is negative, none where 0. */
void bench_row(struct bench *b, const char *name, double value, const char *unit, double limit,
               double ratio, double bar);

#endif
