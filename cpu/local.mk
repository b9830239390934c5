## One archive per ISA, so that a flag can never leak into portable code.
noinst_LIBRARIES += cpu/libcpu.a
cpu_libcpu_a_SOURCES  = cpu/kernels.h cpu/kernels.c
cpu_libcpu_a_SOURCES += cpu/kv.h cpu/kv.c
cpu_libcpu_a_SOURCES += cpu/cpu.h cpu/cpu_internal.h cpu/cpu.c cpu/attention.c cpu/ffn.c
cpu_libcpu_a_SOURCES += cpu/cores.h cpu/cores.c cpu/pool.h cpu/pool.c
cpu_libcpu_a_SOURCES += cpu/tables.h cpu/kernels_ref.c cpu/kv_store.c

noinst_LIBRARIES += cpu/libcpu_avx2.a
cpu_libcpu_avx2_a_CFLAGS   = $(AM_CFLAGS) -mavx2 -mfma -mf16c
cpu_libcpu_avx2_a_SOURCES  = cpu/avx2.h cpu/avx2_scales.h cpu/avx2_small.c
cpu_libcpu_avx2_a_SOURCES += cpu/avx2_pack.c
cpu_libcpu_avx2_a_SOURCES += cpu/avx2_quant.c
cpu_libcpu_avx2_a_SOURCES += cpu/avx2_bf16.c
cpu_libcpu_avx2_a_SOURCES += cpu/avx2_attend.c

CPU_LIBS = cpu/libcpu.a cpu/libcpu_avx2.a cpu/libcpu.a
