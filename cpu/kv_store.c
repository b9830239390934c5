/* Keys and values into the cache, for every instruction set: one short row a token and
 * head, so plain C is fast enough.  Reading them back is attend(). */
#include "cpu/tables.h"

#include "src/ref.h"

#include <math.h>

/* q = round(x / scale), where scale has already been rounded to float16.  A scale that
 * float16 cannot hold saturates; one that it rounds to 0 leaves zeros. */
void cpu_store_q8(uint8_t *row, uint16_t *scale, const float *x, int dim, float mul)
{
    float largest = 0, s;

    (void)mul;
    for (int i = 0; i < dim; i++)
        largest = fmaxf(largest, fabsf(x[i]));
    *scale = ref_f16_from_f32(fminf(largest / 127, 65504));
    s = ref_f16_to_f32(*scale);
    for (int i = 0; i < dim; i++) {
        float q = s > 0 ? x[i] / s : 0;

        row[i] = (uint8_t)(int8_t)lrintf(fmaxf(-127, fminf(127, q)));
    }
}

void cpu_store_fp8(uint8_t *row, uint16_t *scale, const float *x, int dim, float mul)
{
    (void)scale;
    for (int i = 0; i < dim; i++)
        row[i] = ref_fp8_from_f32(x[i] / mul);
}

void cpu_store_bf16(uint8_t *row, uint16_t *scale, const float *x, int dim, float mul)
{
    (void)scale;
    (void)mul;
    for (int i = 0; i < dim; i++) {
        bf16 b = f32_to_bf16(x[i]);

        memcpy(row + (size_t)i * sizeof(b), &b, sizeof(b));
    }
}

void cpu_store_f32(uint8_t *row, uint16_t *scale, const float *x, int dim, float mul)
{
    (void)scale;
    (void)mul;
    memcpy(row, x, (size_t)dim * sizeof(*x));
}
