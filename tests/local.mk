## A test in C is tests/NAME.c and a line in C_TESTS; whatever it needs of libtests.a, and of the
## program, comes by itself.  C tests print TAP; so do shell tests.  `make bench` builds what
## `make check` never runs.
LOG_DRIVER   = env AM_TAP_AWK='$(AWK)' $(SHELL) $(top_srcdir)/build-aux/tap-driver.sh
TEST_EXTENSIONS = .sh
SH_LOG_DRIVER = $(LOG_DRIVER)

LDADD = tests/libtests.a $(ENGINE_LIBS)

C_TESTS = \
    tests/t_base \
    tests/t_ref \
    tests/t_json \
    tests/t_sample \
    tests/t_pool \
    tests/t_chat \
    tests/t_toolparse \
    tests/t_safetensors \
    tests/t_checkpoint \
    tests/t_shape \
    tests/t_quant \
    tests/t_bpe \
    tests/t_pretoken \
    tests/t_tokenizer \
    tests/t_request \
    tests/t_reply \
    tests/t_literal \
    tests/t_forward \
    tests/t_extents \
    tests/t_stream \
    tests/t_slab \
    tests/t_policy \
    tests/t_popularity \
    tests/t_cache \
    tests/t_model \
    tests/t_model_size \
    tests/t_placement \
    tests/t_memory \
    tests/t_experts \
    tests/t_soak \
    tests/t_predict \
    tests/t_machine \
    tests/t_heatmap \
    tests/t_schema \
    tests/t_constrain \
    tests/t_serve_parse \
    tests/t_serve \
    tests/t_http_head \
    tests/t_kept \
    tests/t_torture \
    tests/t_numbers \
    tests/t_isa \
    tests/t_load \
    tests/t_nvml \
    tests/t_forward_gpu \
    tests/t_vram \
    tests/t_gpu_faults \
    tests/t_serve_faults \
    tests/t_answer \
    tests/t_upload \
    tests/t_memo \
    tests/t_cancel

## Every kernel against plain C; `make checkasm` runs the full set.
C_TESTS += tests/checkasm

## Over the folder of the same name in tests/fuzz/corpus.
FUZZ_TESTS = \
    tests/fuzz/tokenizer \
    tests/fuzz/json \
    tests/fuzz/chat \
    tests/fuzz/toolparse \
    tests/fuzz/safetensors \
    tests/fuzz/shape \
    tests/fuzz/popularity \
    tests/fuzz/machine \
    tests/fuzz/schema \
    tests/fuzz/http_head

SHELL_TESTS = \
    tests/t_man.sh \
    tests/t_style.sh \
    tests/t_cli.sh \
    tests/t_mkmodel.sh \
    tests/t_plan.sh \
    tests/t_batch_schema.sh \
    tests/t_faults.sh

## The GPU stages: with CUDA run by hand (`make check-gpu`), else here over cuda/gpu_ref.c.
GPU_TESTS = \
    tests/check_gpu \
    tests/check_gpu_copy \
    tests/check_gpu_offer \
    tests/check_gpu_group

check_PROGRAMS     += $(C_TESTS) $(FUZZ_TESTS) $(GPU_TESTS)
dist_check_SCRIPTS += $(SHELL_TESTS)
TESTS              += $(C_TESTS) $(FUZZ_TESTS) $(SHELL_TESTS)

## The script of `make bench-gpu` over gpu_ref.c, and over figures whose limits are known.
dist_check_SCRIPTS += tests/t_bench_gpu.sh
if !HAVE_CUDA
TESTS              += $(GPU_TESTS) tests/t_bench_gpu.sh
endif

## What tests share, and the main() of those that have none: the fuzz targets.
check_LIBRARIES = tests/libtests.a
tests_libtests_a_SOURCES  = tests/tap.h
tests_libtests_a_SOURCES += tests/files.h
tests_libtests_a_SOURCES += tests/data.h
tests_libtests_a_SOURCES += tests/damage.h
tests_libtests_a_SOURCES += tests/golden.h
tests_libtests_a_SOURCES += tests/validate.h
tests_libtests_a_SOURCES += tests/engine_bed.h
tests_libtests_a_SOURCES += tests/gpu_model.h
tests_libtests_a_SOURCES += tests/gpu_plain.h
tests_libtests_a_SOURCES += tests/gpu_steps.h
tests_libtests_a_SOURCES += tests/gpu_host.h
tests_libtests_a_SOURCES += tests/serve.h tests/serve.c
tests_libtests_a_SOURCES += tests/routes.h tests/routes.c
tests_libtests_a_SOURCES += tests/bench.h tests/bench.c
tests_libtests_a_SOURCES += tests/fuzz/replay.c

## Those of more than one file.
tests_checkasm_SOURCES  = tests/checkasm.h
tests_checkasm_SOURCES += tests/checkasm.c
tests_checkasm_SOURCES += tests/checkasm_ref.c
tests_checkasm_SOURCES += tests/checkasm_mul.c
tests_checkasm_SOURCES += tests/checkasm_attend.c
tests_checkasm_SOURCES += tests/checkasm_small.c

tests_t_serve_parse_SOURCES = tests/t_serve_parse.c tests/replay_engine.c
tests_t_gpu_faults_SOURCES  = tests/t_gpu_faults.c src/cmd_batch.c

check_PROGRAMS += tests/mkmodel
tests_mkmodel_SOURCES = tests/mkmodel.h tests/mkmodel.c tests/mkmodel_config.c \
                        tests/mkmodel_layout.c tests/mkmodel_tokenizer.c \
                        tests/mkmodel_weights.c tests/mkmodel_write.c

## NVML by dlopen: with a library of the suite in place of NVIDIA's, and one that lacks much.
check_DATA  = tests/fake_nvml.so tests/old_nvml.so
CLEANFILES += $(check_DATA)

tests/fake_nvml.so: tests/fake_nvml.c
	$(AM_V_CCLD)$(CC) $(CFLAGS) -shared -fPIC -o $@ $(srcdir)/tests/fake_nvml.c
tests/old_nvml.so: tests/fake_nvml.c
	$(AM_V_CCLD)$(CC) $(CFLAGS) -DOLD -shared -fPIC -o $@ $(srcdir)/tests/fake_nvml.c

## What the program does beside the limits of the machine; `make bench` leaves bench.json.
BENCHES = \
    tests/bench_kernels \
    tests/bench_step \
    tests/bench_tiers \
    tests/bench_stream \
    tests/bench_cache

## By hand: the cost of masks (with a tokenizer.json), of long requests, of the GPU's kernels.
BENCHES_BY_HAND = \
    tests/bench_constrain \
    tests/bench_parse \
    tests/bench_gpu

EXTRA_PROGRAMS += $(BENCHES) $(BENCHES_BY_HAND)
CLEANFILES     += $(BENCHES) $(BENCHES_BY_HAND) bench.json bench-gpu.json

checkasm: tests/checkasm
	tests/checkasm --full

check-gpu: $(GPU_TESTS)
	tests/check_gpu --full
	tests/check_gpu_copy
	tests/check_gpu_offer
	tests/check_gpu_group

bench: $(BENCHES) tests/mkmodel
	$(SHELL) $(srcdir)/tests/bench.sh . $(srcdir)

## What kernels and engine do with a GPU; BENCH_GPU has the script's options and steps.
bench-gpu: laguna-offload tests/bench_gpu tests/mkmodel
	python3 $(srcdir)/tests/bench_engine_gpu.py $(BENCH_GPU)

.PHONY: checkasm check-gpu bench bench-gpu

EXTRA_DIST += tests/FAULTS.md
EXTRA_DIST += tests/tap.sh
EXTRA_DIST += tests/tally
EXTRA_DIST += tests/cut_nano.py
EXTRA_DIST += tests/data
EXTRA_DIST += tests/fuzz/corpus
EXTRA_DIST += tests/fake_nvml.c
EXTRA_DIST += tests/mkmodel_check.py
EXTRA_DIST += tests/batch_schema.py
EXTRA_DIST += tests/bench.sh
EXTRA_DIST += tests/bench_engine_gpu.py
## What needs the network or a browser; .ci/run calls them.
EXTRA_DIST += tests/bench_serve.py
EXTRA_DIST += tests/clients
EXTRA_DIST += tests/clients.sh
EXTRA_DIST += tests/page.py
EXTRA_DIST += tests/page.sh
EXTRA_DIST += man/page.png
