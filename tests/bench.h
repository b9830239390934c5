#ifndef LAGUNA_BENCH_H
#define LAGUNA_BENCH_H

#include "cpu/pool.h"
#include "src/base.h"

/* What the benchmarks share: the machine's limits, measured beside each figure in the same
 * run, and rows as a table on stdout and as JSON.  Whatever keeps a benchmark from running
 * ends the process, with words on stderr. */
struct bench;

/* Takes a leading "--json FILE" out of the arguments: FILE gets one JSON object a row. */
struct bench *bench_open(int *argc, char ***argv);
void bench_close(struct bench *b);
_Noreturn void bench_die(const struct err *e);

/* One row: a value beside its limit.  bar is the ratio asked for: at least bar where it is
 * positive, at most -bar where it is negative, none where 0. */
void bench_row(struct bench *b, const char *name, double value, const char *unit, double limit,
               double ratio, double bar);

/* The same as JSON alone. */
void bench_keep(struct bench *b, const char *name, double value, const char *unit, double limit,
                double ratio, double bar);

double bench_median(double *v, int n);  /* sorts v */

/* Numbers of threads to measure with: 1, 2 and one a core, as many as this machine has.
 * From 0 to the first, from the last to 0. */
int bench_threads_after(struct bench *b, int threads);
int bench_threads_max(struct bench *b);

/* The same thing by two clocks.  `used` is time on the processor, of the thread that took
 * longest: others on a busy machine hardly show in it. */
struct clocks {
    double wall, used;
};

/* Seconds of fn on `threads` workers that begin together, each on the core that the engine
 * gives it. */
struct clocks bench_run(struct bench *b, int threads, pool_fn fn, void *arg);

/* Memory of BENCH_MEMORY bytes, much larger than the caches, in huge pages.  As BF16, as
 * scales and as 4-bit weights its bytes are ordinary numbers. */
static const size_t BENCH_MEMORY = (size_t)2 << 30;
const uint8_t *bench_memory(struct bench *b);

/* Read all of it and do nothing with it; bytes: a multiple of 256. */
void bench_read(const uint8_t *from, size_t bytes);

/* GB/s that the threads read from bench_memory(), another stretch each time. */
struct clocks bench_read_gbps(struct bench *b, int threads);

/* GFLOP/s (two a multiply-add) of threads in a loop over registers only: the processor's own
 * BF16 dot products, or the multiplications of int8 ones (vpmaddubsw). */
enum dot { DOT_INT8, DOT_BF16 };
bool bench_has_bf16(void);
struct clocks bench_dot_gflops(struct bench *b, int threads, enum dot dot);

#endif
