## One archive per ISA, so that a flag can never leak into portable code.
noinst_LIBRARIES += cpu/libcpu.a
cpu_libcpu_a_SOURCES  = cpu/kernels.h cpu/kernels.c
cpu_libcpu_a_SOURCES += cpu/kv.h cpu/kv.c
cpu_libcpu_a_SOURCES += cpu/cpu.h cpu/cpu_internal.h cpu/cpu.c cpu/attention.c cpu/ffn.c
cpu_libcpu_a_SOURCES += cpu/cores.h cpu/cores.c cpu/pool.h cpu/pool.c

CPU_LIBS = cpu/libcpu.a
