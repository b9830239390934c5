#ifndef LAGUNA_REF_H
#define LAGUNA_REF_H

#include "src/shape.h"
#include "src/weights.h"

/* The model's mathematics in plain C, float32: the oracle of every kernel.  Weights are
 * rounded to BF16 after dequantisation, as the reference implementation does; nothing
 * else is rounded. */

enum { REF_MAX_COLS = 65536 };  /* of a matrix; shape_read() and the model check it */

/* Row r of m, dequantised and rounded to BF16: [cols]. */
void ref_row(float *out, const struct matrix *m, int r);

/* y[t][r] = m x[t], t < n, row0 <= r < row1; y_stride and x_stride in floats. */
void ref_mul(float *y, size_t y_stride, const struct matrix *m, const float *x, size_t x_stride,
             int n, int row0, int row1);

/* y[i] = x[i] / sqrt(mean(x^2) + eps) * w[i] */
void ref_norm(float *y, const float *x, const float *w, int n, float eps);

/* Rotate the first r->dims elements of a head at position pos, in place. */
void ref_rope(float *head, const struct rope *r, int pos);

/* q [dim] against n keys and values, float: softmax(q k / sqrt(dim)) v -> out [dim].
 * keys and values are stride floats apart.  scratch: [n] */
void ref_attend(float *out, const float *q, const float *k, const float *v, size_t stride, int dim,
                int n, float *scratch);

float ref_softplus(float x);    /* x above 20, as torch does */
float ref_silu(float x);

/* Select topk experts by score + bias (lower id wins a tie) and weigh them by score:
 * laguna.md 2.6.  logits [experts]; expert and weight [topk], ascending id.
 * -EDOM where a logit or bias is not finite. */
int ref_route(const struct shape *s, const float *logits, const float *bias, uint16_t *expert,
              float *weight);

/* E4M3 (no infinity, 0x7f is NaN), saturating at 448, round to nearest even. */
uint8_t ref_fp8_from_f32(float x);
float ref_fp8_to_f32(uint8_t b);

uint16_t ref_f16_from_f32(float x);
float ref_f16_to_f32(uint16_t h);

#endif
