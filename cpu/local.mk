## One archive per ISA, so that a flag can never leak into portable code.
noinst_LIBRARIES += cpu/libcpu.a
EXTRA_DIST += cpu/NOTES.md
cpu_libcpu_a_SOURCES  = cpu/kernels.h cpu/kernels.c
cpu_libcpu_a_SOURCES += cpu/kv.h cpu/kv.c
cpu_libcpu_a_SOURCES += cpu/cpu.h cpu/cpu_internal.h cpu/cpu.c cpu/attention.c cpu/ffn.c
cpu_libcpu_a_SOURCES += cpu/dense_blas.c
cpu_libcpu_a_SOURCES += cpu/cores.h cpu/cores.c cpu/pool.h cpu/pool.c
cpu_libcpu_a_SOURCES += cpu/tables.h cpu/kernels_ref.c cpu/kv_store.c

noinst_LIBRARIES += cpu/libcpu_avx2.a
cpu_libcpu_avx2_a_CFLAGS   = $(AM_CFLAGS) -mavx2 -mfma -mf16c
cpu_libcpu_avx2_a_SOURCES  = cpu/avx2.h cpu/avx2_scales.h cpu/avx2_small.c
cpu_libcpu_avx2_a_SOURCES += cpu/avx2_pack.h cpu/avx2_pack.c
cpu_libcpu_avx2_a_SOURCES += cpu/avx2_panel.h cpu/avx2_quant.c cpu/avx2_few.c
cpu_libcpu_avx2_a_SOURCES += cpu/avx2_bf16.c
cpu_libcpu_avx2_a_SOURCES += cpu/avx_attend.h cpu/avx_attend.inc cpu/avx2_attend.c

AVX512_CFLAGS = -mavx2 -mfma -mf16c -mavx512f -mavx512bw -mavx512vl -mavx512dq

noinst_LIBRARIES += cpu/libcpu_avx512.a
cpu_libcpu_avx512_a_CFLAGS   = $(AM_CFLAGS) $(AVX512_CFLAGS)
cpu_libcpu_avx512_a_SOURCES  = cpu/avx512.h cpu/avx512_panel.inc cpu/avx512_f32.c
cpu_libcpu_avx512_a_SOURCES += cpu/avx512_attend.c

noinst_LIBRARIES += cpu/libcpu_avx512vnni.a
cpu_libcpu_avx512vnni_a_CFLAGS  = $(AM_CFLAGS) $(AVX512_CFLAGS) -mavx512vnni
cpu_libcpu_avx512vnni_a_SOURCES = cpu/avx512vnni_quant.c

noinst_LIBRARIES += cpu/libcpu_avx512bf16.a
cpu_libcpu_avx512bf16_a_CFLAGS  = $(AM_CFLAGS) $(AVX512_CFLAGS) -mavx512bf16
cpu_libcpu_avx512bf16_a_SOURCES = cpu/avx512bf16_mul.c

CPU_LIBS = cpu/libcpu.a cpu/libcpu_avx512bf16.a cpu/libcpu_avx512vnni.a cpu/libcpu_avx512.a \
           cpu/libcpu_avx2.a cpu/libcpu.a
