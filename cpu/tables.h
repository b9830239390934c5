#ifndef LAGUNA_TABLES_H
#define LAGUNA_TABLES_H

#include "cpu/kernels.h"

/* What the files of one instruction set show to kernels.c, and what they share. */

extern const struct cpu_kernels cpu_table_ref, cpu_table_avx2, cpu_table_avx512,
    cpu_table_avx512vnni, cpu_table_avx512bf16;

/* Two groups of 32 columns of a token under ACT_INT8: x is about q * scale.  Even and odd
 * columns lie apart, as the low and high nibbles of weights do.  minus8 holds -8 times two
 * sums of q, over the columns whose number mod 8 is below 4 and over the others: what a zero
 * point of 8 adds to the two halves of a 32-bit lane.  It and the scale are there once for
 * each of four lanes, so that both groups are one load.  A second group past the last column
 * is all 0. */
struct act8 {
    int8_t even[2][16], odd[2][16];
    float scale[2][4];
    int16_t minus8[2][8];
};

/* A group whose largest |x| is below this has zeros: its scale would be denormal. */
#define ACT8_TINY 0x1p-119f

/* kv_store does not depend on the instruction set: it is called once a token. */
void cpu_store_q8(uint8_t *row, uint16_t *scale, const float *x, int dim, float mul);
void cpu_store_fp8(uint8_t *row, uint16_t *scale, const float *x, int dim, float mul);
void cpu_store_bf16(uint8_t *row, uint16_t *scale, const float *x, int dim, float mul);
void cpu_store_f32(uint8_t *row, uint16_t *scale, const float *x, int dim, float mul);

#define KV_STORE                                                            \
    { [KV_Q8] = cpu_store_q8, [KV_FP8] = cpu_store_fp8,                     \
      [KV_BF16] = cpu_store_bf16, [KV_F32] = cpu_store_f32 }

size_t cpu_act_f32_bytes(int cols);
size_t cpu_act8_bytes(int cols);

/* What CPUID and XGETBV answer, of what matters here. */
struct cpu_words {
    uint32_t c1;                /* leaf 1, ECX */
    uint32_t b7, c7, a71;       /* leaf 7: EBX and ECX of 0, EAX of 1 */
    uint32_t saves;             /* XCR0: the state that the system saves for us */
};

/* Bit (1 << isa) for each instruction set that these allow. */
unsigned cpu_isas(const struct cpu_words *w);

#endif
