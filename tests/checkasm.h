#ifndef LAGUNA_CHECKASM_H
#define LAGUNA_CHECKASM_H

#include "cpu/kernels.h"

/* What the parts of checkasm share. */

struct checkasm {
    const struct cpu_kernels *k;
    int cases;                  /* random cases for each kernel */
    uint64_t seed;
    bool flush;                 /* denormals are zero, as in the pool's workers */
};

/* Random numbers, the same on every machine. */
uint32_t rng_next(uint64_t *state);
int rng_below(uint64_t *state, int n);
float rng_normal(uint64_t *state);

/* size bytes that begin `slack` bytes early in front of a page which must not be touched:
 * with slack 0 one byte read too far is a fault.  Filled with `fill`. */
struct guarded {
    uint8_t *at;
    size_t size;
    void *map;
    size_t map_size;
};

void guarded_open(struct guarded *g, size_t size, size_t slack, int fill);
void guarded_close(struct guarded *g);

/* The same arithmetic as the kernels, plainly (checkasm_ref.c).  Activations as the kind
 * rounds them, and the most that rounding can have changed each: [cols] each. */
void plain_round(double *rounded, double *error, const float *x, int cols, enum act act);
/* Row r dequantised, rounded to BF16 or not: [cols]. */
void plain_row(double *out, const struct matrix *m, int r, enum act act, bool rounded);

/* One cached element, its scale included. */
double plain_cached(const uint8_t *row, const uint16_t *scale, float mul, enum kv_type type,
                    int i);

const char *format_name(enum wformat f);
const char *kv_name(enum kv_type t);

/* One TAP line; the counter lives in checkasm.c. */
void verdict(bool good, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

void check_mul(const struct checkasm *c);
void check_attend(const struct checkasm *c);
void check_small(const struct checkasm *c);

/* Times every kernel and prints a table; nothing is judged. */
int check_bench(void);

#endif
