## One archive per ISA, so that a flag can never leak into portable code.
noinst_LIBRARIES += cpu/libcpu.a

cpu_libcpu_a_SOURCES = \
    cpu/kernels.h cpu/kernels.c

CPU_LIBS = cpu/libcpu.a
