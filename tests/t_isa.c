/* Row J17 of the fault catalogue: processors that lack something, or whose system hides it,
 * get kernels without it. */
#include "cpu/kernels.h"
#include "cpu/tables.h"
#include "tests/tap.h"

#include <cpuid.h>

enum {
    ALL_C1 = bit_OSXSAVE | bit_AVX | bit_FMA | bit_F16C,
    ALL_B7 = (int)(bit_AVX2 | bit_AVX512F | bit_AVX512BW | bit_AVX512VL | bit_AVX512DQ),
    REF = 1 << CPU_REF, AVX2 = REF | 1 << CPU_AVX2, AVX512 = AVX2 | 1 << CPU_AVX512
};

int main(void)
{
    static const struct {
        const char *what;
        uint32_t c1, b7, c7, a71, saves;
        unsigned want;
    } row[] = {
        { "nothing", 0, 0, 0, 0, 0, REF },
        { "AVX alone", ALL_C1, 0, 0, 0, 7, REF },
        { "AVX2", ALL_C1, bit_AVX2, 0, 0, 7, AVX2 },
        { "AVX2 without FMA", ALL_C1 & ~bit_FMA, bit_AVX2, 0, 0, 7, REF },
        { "AVX2 without F16C", ALL_C1 & ~bit_F16C, bit_AVX2, 0, 0, 7, REF },
        { "AVX2 whose registers nobody saves", ALL_C1, bit_AVX2, 0, 0, 3, REF },
        { "AVX2, and XGETBV is not there", ALL_C1 & ~bit_OSXSAVE, bit_AVX2, 0, 0, 7, REF },
        { "AVX-512", ALL_C1, ALL_B7, 0, 0, 0xe7, AVX512 },
        { "AVX-512 whose registers nobody saves", ALL_C1, ALL_B7, ~0u, ~0u, 7, AVX2 },
        { "AVX-512 without VL", ALL_C1, ALL_B7 & ~(uint32_t)bit_AVX512VL, ~0u, ~0u, 0xe7, AVX2 },
        { "AVX-512 VNNI", ALL_C1, ALL_B7, bit_AVX512VNNI, 0, 0xe7,
          AVX512 | 1 << CPU_AVX512VNNI },
        { "AVX-512 BF16", ALL_C1, ALL_B7, 0, bit_AVX512BF16, 0xe7,
          AVX512 | 1 << CPU_AVX512BF16 },
    };

    for (size_t i = 0; i < sizeof(row) / sizeof(row[0]); i++) {
        struct cpu_words w = { row[i].c1, row[i].b7, row[i].c7, row[i].a71, row[i].saves };

        ok(cpu_isas(&w) == row[i].want, "%s: 0x%x", row[i].what, cpu_isas(&w));
    }
    ok(cpu_kernels(CPU_REF) && !cpu_kernels(CPU_ISA_COUNT), "plain C is everywhere");
    return done();
}
