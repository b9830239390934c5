## C tests print TAP; so do shell tests.  `make bench` builds what `make check` never runs.
LOG_DRIVER   = env AM_TAP_AWK='$(AWK)' $(SHELL) $(top_srcdir)/build-aux/tap-driver.sh
TEST_EXTENSIONS = .sh
SH_LOG_DRIVER = $(LOG_DRIVER)

check_PROGRAMS += tests/t_base
TESTS          += tests/t_base tests/t_man.sh tests/t_style.sh
dist_check_SCRIPTS += tests/t_man.sh tests/t_style.sh
EXTRA_DIST         += tests/tally tests/cut_nano.py tests/data

TESTS              += tests/t_cli.sh
dist_check_SCRIPTS += tests/t_cli.sh

tests_t_base_SOURCES = tests/t_base.c tests/tap.h
tests_t_base_LDADD   = src/libengine.a

check_PROGRAMS += tests/t_ref
TESTS          += tests/t_ref
tests_t_ref_SOURCES = tests/t_ref.c tests/tap.h
tests_t_ref_LDADD   = src/libengine.a -lm

check_PROGRAMS += tests/t_json
TESTS += tests/t_json
tests_t_json_SOURCES = tests/t_json.c tests/tap.h
tests_t_json_LDADD = $(ENGINE_LIBS)

check_PROGRAMS += tests/t_sample
TESTS          += tests/t_sample
tests_t_sample_SOURCES = tests/t_sample.c tests/tap.h
tests_t_sample_LDADD   = src/libengine.a -lm

check_PROGRAMS += tests/t_pool
TESTS          += tests/t_pool
tests_t_pool_SOURCES = tests/t_pool.c tests/tap.h
tests_t_pool_LDADD   = $(CPU_LIBS) src/libengine.a $(NUMA_LIBS)

check_PROGRAMS += tests/t_chat
TESTS += tests/t_chat
tests_t_chat_SOURCES = tests/t_chat.c tests/data.h tests/tap.h
tests_t_chat_LDADD = $(ENGINE_LIBS)

check_PROGRAMS += tests/t_toolparse
TESTS += tests/t_toolparse
tests_t_toolparse_SOURCES = tests/t_toolparse.c tests/tap.h
tests_t_toolparse_LDADD = $(ENGINE_LIBS)

## Every kernel against plain C; `make checkasm` runs the full set.
check_PROGRAMS += tests/checkasm
TESTS          += tests/checkasm
tests_checkasm_SOURCES  = tests/checkasm.h tests/tap.h tests/checkasm.c
tests_checkasm_SOURCES += tests/checkasm_ref.c
tests_checkasm_SOURCES += tests/checkasm_mul.c
tests_checkasm_SOURCES += tests/checkasm_attend.c
tests_checkasm_SOURCES += tests/checkasm_small.c
tests_checkasm_LDADD    = $(CPU_LIBS) src/libengine.a $(NUMA_LIBS) -lm

checkasm: tests/checkasm
	tests/checkasm --full
.PHONY: checkasm

check_PROGRAMS += tests/mkmodel
tests_mkmodel_SOURCES = tests/mkmodel.h tests/mkmodel.c tests/mkmodel_config.c \
                        tests/mkmodel_layout.c tests/mkmodel_tokenizer.c \
                        tests/mkmodel_weights.c tests/mkmodel_write.c
tests_mkmodel_LDADD   = $(CPU_LIBS) src/libengine.a $(NUMA_LIBS) -lm
TESTS              += tests/t_mkmodel.sh
dist_check_SCRIPTS += tests/t_mkmodel.sh
EXTRA_DIST         += tests/mkmodel_check.py

check_PROGRAMS += tests/t_safetensors
TESTS          += tests/t_safetensors
tests_t_safetensors_SOURCES = tests/t_safetensors.c tests/tap.h tests/files.h
tests_t_safetensors_LDADD   = storage/libstorage.a src/libengine.a $(XXHASH_LIBS)

check_PROGRAMS += tests/t_checkpoint
TESTS          += tests/t_checkpoint
tests_t_checkpoint_SOURCES = tests/t_checkpoint.c tests/tap.h tests/files.h
tests_t_checkpoint_LDADD   = storage/libstorage.a src/libengine.a $(XXHASH_LIBS)

check_PROGRAMS += tests/t_shape
TESTS          += tests/t_shape
tests_t_shape_SOURCES = tests/t_shape.c tests/tap.h tests/files.h
tests_t_shape_LDADD   = $(ENGINE_LIBS)

check_PROGRAMS += tests/t_quant
TESTS          += tests/t_quant
tests_t_quant_SOURCES = tests/t_quant.c tests/tap.h
tests_t_quant_LDADD   = $(ENGINE_LIBS)

check_PROGRAMS += tests/t_bpe
TESTS          += tests/t_bpe
tests_t_bpe_SOURCES = tests/t_bpe.c tests/tap.h
tests_t_bpe_LDADD   = $(ENGINE_LIBS)

check_PROGRAMS += tests/t_pretoken
TESTS          += tests/t_pretoken
tests_t_pretoken_SOURCES = tests/t_pretoken.c tests/files.h tests/tap.h
tests_t_pretoken_LDADD   = $(ENGINE_LIBS)

check_PROGRAMS += tests/t_tokenizer
TESTS          += tests/t_tokenizer
tests_t_tokenizer_SOURCES = tests/t_tokenizer.c tests/tap.h
tests_t_tokenizer_LDADD   = $(ENGINE_LIBS)

check_PROGRAMS += tests/fuzz/tokenizer
TESTS          += tests/fuzz/tokenizer
EXTRA_DIST     += tests/fuzz/corpus/tokenizer
tests_fuzz_tokenizer_SOURCES  = tests/fuzz/tokenizer.c tests/fuzz/replay.c tests/tap.h
tests_fuzz_tokenizer_CPPFLAGS = $(AM_CPPFLAGS) -DFUZZ_CORPUS='"tokenizer"'
tests_fuzz_tokenizer_LDADD    = $(ENGINE_LIBS)

check_PROGRAMS += tests/t_request
TESTS += tests/t_request
tests_t_request_SOURCES = tests/t_request.c tests/data.h tests/tap.h
tests_t_request_LDADD = $(ENGINE_LIBS)

check_PROGRAMS += tests/t_reply
TESTS += tests/t_reply
tests_t_reply_SOURCES = tests/t_reply.c tests/data.h tests/tap.h
tests_t_reply_LDADD = $(ENGINE_LIBS)

check_PROGRAMS += tests/fuzz/json
TESTS          += tests/fuzz/json
EXTRA_DIST     += tests/fuzz/corpus/json
tests_fuzz_json_SOURCES  = tests/fuzz/json.c tests/fuzz/replay.c tests/tap.h
tests_fuzz_json_CPPFLAGS = $(AM_CPPFLAGS) -DFUZZ_CORPUS='"json"'
tests_fuzz_json_LDADD    = $(ENGINE_LIBS)

check_PROGRAMS += tests/fuzz/chat
TESTS          += tests/fuzz/chat
EXTRA_DIST     += tests/fuzz/corpus/chat
tests_fuzz_chat_SOURCES  = tests/fuzz/chat.c tests/fuzz/replay.c tests/tap.h
tests_fuzz_chat_CPPFLAGS = $(AM_CPPFLAGS) -DFUZZ_CORPUS='"chat"'
tests_fuzz_chat_LDADD    = $(ENGINE_LIBS)

check_PROGRAMS += tests/fuzz/toolparse
TESTS          += tests/fuzz/toolparse
EXTRA_DIST     += tests/fuzz/corpus/toolparse
tests_fuzz_toolparse_SOURCES  = tests/fuzz/toolparse.c tests/fuzz/replay.c tests/tap.h
tests_fuzz_toolparse_CPPFLAGS = $(AM_CPPFLAGS) -DFUZZ_CORPUS='"toolparse"'
tests_fuzz_toolparse_LDADD    = $(ENGINE_LIBS)

check_PROGRAMS += tests/t_literal
TESTS          += tests/t_literal
tests_t_literal_SOURCES = tests/t_literal.c tests/tap.h
tests_t_literal_LDADD   = $(ENGINE_LIBS)

check_PROGRAMS += tests/t_forward
TESTS          += tests/t_forward
tests_t_forward_SOURCES = tests/t_forward.c tests/golden.h tests/files.h tests/tap.h
tests_t_forward_LDADD   = $(ENGINE_LIBS)

STORAGE_TESTS = \
    tests/t_extents \
    tests/t_stream \
    tests/t_slab \
    tests/t_policy \
    tests/t_popularity \
    tests/t_cache
check_PROGRAMS += $(STORAGE_TESTS)
TESTS          += $(STORAGE_TESTS)

STORAGE_LIBS = storage/libstorage.a src/libengine.a $(URING_LIBS) $(NUMA_LIBS) $(XXHASH_LIBS) -lm
tests_t_extents_SOURCES    = tests/t_extents.c tests/tap.h
tests_t_extents_LDADD      = $(STORAGE_LIBS)
tests_t_stream_SOURCES     = tests/t_stream.c tests/tap.h
tests_t_stream_LDADD       = $(STORAGE_LIBS)
tests_t_slab_SOURCES       = tests/t_slab.c tests/tap.h
tests_t_slab_LDADD         = $(STORAGE_LIBS)
tests_t_policy_SOURCES     = tests/t_policy.c tests/routes.h tests/routes.c tests/tap.h
tests_t_policy_LDADD       = $(STORAGE_LIBS)
tests_t_popularity_SOURCES = tests/t_popularity.c tests/tap.h
tests_t_popularity_LDADD   = $(STORAGE_LIBS)
tests_t_cache_SOURCES      = tests/t_cache.c tests/tap.h
tests_t_cache_LDADD        = $(STORAGE_LIBS)

check_PROGRAMS += tests/t_model
TESTS          += tests/t_model
tests_t_model_SOURCES = tests/t_model.c tests/tap.h tests/files.h
tests_t_model_LDADD   = $(ENGINE_LIBS)

check_PROGRAMS += tests/t_model_size
TESTS          += tests/t_model_size
tests_t_model_size_SOURCES = tests/t_model_size.c tests/tap.h tests/files.h
tests_t_model_size_LDADD   = $(ENGINE_LIBS)

check_PROGRAMS += tests/fuzz/safetensors
TESTS          += tests/fuzz/safetensors
EXTRA_DIST     += tests/fuzz/corpus/safetensors
tests_fuzz_safetensors_SOURCES  = tests/fuzz/safetensors.c tests/fuzz/replay.c tests/tap.h
tests_fuzz_safetensors_CPPFLAGS = $(AM_CPPFLAGS) -DFUZZ_CORPUS='"safetensors"'
tests_fuzz_safetensors_LDADD    = storage/libstorage.a src/libengine.a $(XXHASH_LIBS)

check_PROGRAMS += tests/fuzz/shape
TESTS          += tests/fuzz/shape
EXTRA_DIST     += tests/fuzz/corpus/shape
tests_fuzz_shape_SOURCES  = tests/fuzz/shape.c tests/fuzz/replay.c tests/tap.h
tests_fuzz_shape_CPPFLAGS = $(AM_CPPFLAGS) -DFUZZ_CORPUS='"shape"'
tests_fuzz_shape_LDADD    = $(ENGINE_LIBS)

EXTRA_DIST += tests/cut_nano.py tests/data

check_PROGRAMS += tests/fuzz/popularity
TESTS          += tests/fuzz/popularity
EXTRA_DIST     += tests/fuzz/corpus/popularity
tests_fuzz_popularity_SOURCES  = tests/fuzz/popularity.c tests/fuzz/replay.c tests/tap.h
tests_fuzz_popularity_CPPFLAGS = $(AM_CPPFLAGS) -DFUZZ_CORPUS='"popularity"'
tests_fuzz_popularity_LDADD    = $(STORAGE_LIBS)

check_PROGRAMS += tests/t_placement
TESTS          += tests/t_placement
tests_t_placement_SOURCES = tests/t_placement.c tests/tap.h tests/files.h
tests_t_placement_LDADD   = $(ENGINE_LIBS)

check_PROGRAMS += tests/t_memory
TESTS          += tests/t_memory
tests_t_memory_SOURCES = tests/t_memory.c tests/tap.h
tests_t_memory_LDADD   = $(ENGINE_LIBS)

check_PROGRAMS += tests/t_experts
TESTS          += tests/t_experts
tests_t_experts_SOURCES = tests/t_experts.c tests/damage.h tests/files.h tests/tap.h
tests_t_experts_LDADD   = $(ENGINE_LIBS)

check_PROGRAMS += tests/t_soak
TESTS          += tests/t_soak
tests_t_soak_SOURCES = tests/t_soak.c tests/files.h tests/tap.h
tests_t_soak_LDADD   = $(ENGINE_LIBS)

check_PROGRAMS += tests/t_predict
TESTS          += tests/t_predict
tests_t_predict_SOURCES = tests/t_predict.c tests/tap.h
tests_t_predict_LDADD   = $(ENGINE_LIBS)

check_PROGRAMS += tests/t_machine
TESTS          += tests/t_machine
tests_t_machine_SOURCES = tests/t_machine.c tests/tap.h tests/files.h
tests_t_machine_LDADD   = $(ENGINE_LIBS)

check_PROGRAMS += tests/t_heatmap
TESTS          += tests/t_heatmap
tests_t_heatmap_SOURCES = tests/t_heatmap.c tests/tap.h
tests_t_heatmap_LDADD   = $(ENGINE_LIBS)

TESTS              += tests/t_plan.sh
dist_check_SCRIPTS += tests/t_plan.sh

check_PROGRAMS += tests/fuzz/machine
TESTS          += tests/fuzz/machine
EXTRA_DIST     += tests/fuzz/corpus/machine
tests_fuzz_machine_SOURCES  = tests/fuzz/machine.c tests/fuzz/replay.c tests/tap.h
tests_fuzz_machine_CPPFLAGS = $(AM_CPPFLAGS) -DFUZZ_CORPUS='"machine"'
tests_fuzz_machine_LDADD    = $(ENGINE_LIBS)

check_PROGRAMS += tests/fuzz/schema
TESTS          += tests/fuzz/schema
EXTRA_DIST     += tests/fuzz/corpus/schema
tests_fuzz_schema_SOURCES  = tests/fuzz/schema.c tests/fuzz/replay.c tests/tap.h tests/validate.h
tests_fuzz_schema_CPPFLAGS = $(AM_CPPFLAGS) -DFUZZ_CORPUS='"schema"'
tests_fuzz_schema_LDADD    = $(ENGINE_LIBS)

check_PROGRAMS += tests/t_schema
TESTS          += tests/t_schema
tests_t_schema_SOURCES = tests/t_schema.c tests/tap.h
tests_t_schema_LDADD   = $(ENGINE_LIBS)

check_PROGRAMS += tests/t_constrain
TESTS          += tests/t_constrain
tests_t_constrain_SOURCES = tests/t_constrain.c tests/data.h tests/tap.h tests/validate.h
tests_t_constrain_LDADD   = $(ENGINE_LIBS)

## The cost of masks: tests/bench_constrain TOKENIZER.json.
EXTRA_PROGRAMS += tests/bench_constrain
tests_bench_constrain_SOURCES = tests/bench_constrain.c
tests_bench_constrain_LDADD   = $(ENGINE_LIBS)

TESTS              += tests/t_batch_schema.sh
dist_check_SCRIPTS += tests/t_batch_schema.sh
EXTRA_DIST         += tests/batch_schema.py

## Servers in child processes, over the model or over an engine that says what it is told.
check_PROGRAMS += tests/t_serve_parse
TESTS          += tests/t_serve_parse
tests_t_serve_parse_SOURCES  = tests/t_serve_parse.c tests/serve.h tests/serve.c tests/tap.h
tests_t_serve_parse_SOURCES += tests/replay_engine.c
tests_t_serve_parse_LDADD    = $(ENGINE_LIBS)

check_PROGRAMS += tests/t_serve
TESTS          += tests/t_serve
tests_t_serve_SOURCES = tests/t_serve.c tests/serve.h tests/serve.c tests/tap.h
tests_t_serve_LDADD   = $(ENGINE_LIBS)

check_PROGRAMS += tests/t_http_head
TESTS          += tests/t_http_head
tests_t_http_head_SOURCES = tests/t_http_head.c tests/tap.h
tests_t_http_head_LDADD   = $(ENGINE_LIBS)

check_PROGRAMS += tests/t_kept
TESTS          += tests/t_kept
tests_t_kept_SOURCES = tests/t_kept.c tests/tap.h
tests_t_kept_LDADD   = $(ENGINE_LIBS)

check_PROGRAMS += tests/fuzz/http_head
TESTS          += tests/fuzz/http_head
EXTRA_DIST     += tests/fuzz/corpus/http_head
tests_fuzz_http_head_SOURCES  = tests/fuzz/http_head.c tests/fuzz/replay.c tests/tap.h
tests_fuzz_http_head_CPPFLAGS = $(AM_CPPFLAGS) -DFUZZ_CORPUS='"http_head"'
tests_fuzz_http_head_LDADD    = $(ENGINE_LIBS)

## The catalogue of faults: what tests/FAULTS.md lists and no test of a part shows.
TESTS              += tests/t_faults.sh
dist_check_SCRIPTS += tests/t_faults.sh
EXTRA_DIST         += tests/FAULTS.md

check_PROGRAMS += tests/t_torture
TESTS          += tests/t_torture
tests_t_torture_SOURCES = tests/t_torture.c tests/files.h tests/tap.h
tests_t_torture_LDADD   = $(ENGINE_LIBS)

check_PROGRAMS += tests/t_numbers
TESTS          += tests/t_numbers
tests_t_numbers_SOURCES = tests/t_numbers.c tests/damage.h tests/files.h tests/tap.h
tests_t_numbers_LDADD   = $(ENGINE_LIBS)

## What the program does beside the limits of the machine; `make bench` leaves bench.json.
BENCHES = \
    tests/bench_kernels \
    tests/bench_step \
    tests/bench_tiers \
    tests/bench_stream \
    tests/bench_cache
EXTRA_PROGRAMS += $(BENCHES)
EXTRA_DIST     += tests/bench.sh
CLEANFILES     += $(BENCHES) bench.json

BENCH_SOURCES = tests/bench.h tests/bench.c
tests_bench_kernels_SOURCES = tests/bench_kernels.c $(BENCH_SOURCES)
tests_bench_kernels_LDADD   = $(CPU_LIBS) src/libengine.a $(NUMA_LIBS) -lm
tests_bench_step_SOURCES    = tests/bench_step.c $(BENCH_SOURCES)
tests_bench_step_LDADD      = $(ENGINE_LIBS)
tests_bench_tiers_SOURCES   = tests/bench_tiers.c $(BENCH_SOURCES)
tests_bench_tiers_LDADD     = $(ENGINE_LIBS)
tests_bench_stream_SOURCES  = tests/bench_stream.c $(BENCH_SOURCES)
tests_bench_stream_LDADD    = $(CPU_LIBS) $(STORAGE_LIBS)
tests_bench_cache_SOURCES   = tests/bench_cache.c tests/routes.h tests/routes.c $(BENCH_SOURCES)
tests_bench_cache_LDADD     = $(CPU_LIBS) $(STORAGE_LIBS) $(CJSON_LIBS)

bench: $(BENCHES) tests/mkmodel
	$(SHELL) $(srcdir)/tests/bench.sh . $(srcdir)
.PHONY: bench

check_PROGRAMS += tests/t_isa
TESTS          += tests/t_isa
tests_t_isa_SOURCES = tests/t_isa.c tests/tap.h
tests_t_isa_LDADD   = $(CPU_LIBS) src/libengine.a $(NUMA_LIBS) -lm

## Many clients and a long conversation; what that costs: tests/bench_serve.py, tests/bench_parse.
check_PROGRAMS += tests/t_load
TESTS          += tests/t_load
tests_t_load_SOURCES = tests/t_load.c tests/serve.h tests/serve.c tests/files.h tests/tap.h
tests_t_load_LDADD   = $(ENGINE_LIBS)

EXTRA_PROGRAMS += tests/bench_parse
tests_bench_parse_SOURCES = tests/bench_parse.c
tests_bench_parse_LDADD   = $(ENGINE_LIBS)

## What needs the network or a browser; .ci/run calls them.
EXTRA_DIST += tests/bench_serve.py
EXTRA_DIST += tests/clients
EXTRA_DIST += tests/clients.sh
EXTRA_DIST += tests/page.py
EXTRA_DIST += tests/page.sh
EXTRA_DIST += man/page.png

## The GPU stages: with CUDA run by hand (`make check-gpu`), else here over cuda/gpu_ref.c.
check_PROGRAMS += tests/check_gpu
tests_check_gpu_SOURCES  = tests/check_gpu.c
tests_check_gpu_SOURCES += tests/gpu_model.h
tests_check_gpu_SOURCES += tests/gpu_plain.h
tests_check_gpu_SOURCES += tests/gpu_steps.h
tests_check_gpu_SOURCES += tests/tap.h
tests_check_gpu_LDADD    = $(GPU_LIBS) src/libengine.a -lm
check_PROGRAMS += tests/check_gpu_copy
tests_check_gpu_copy_SOURCES  = tests/check_gpu_copy.c
tests_check_gpu_copy_SOURCES += tests/gpu_model.h
tests_check_gpu_copy_SOURCES += tests/gpu_plain.h
tests_check_gpu_copy_SOURCES += tests/gpu_steps.h
tests_check_gpu_copy_SOURCES += tests/tap.h
tests_check_gpu_copy_LDADD    = $(GPU_LIBS) src/libengine.a -lm
check_PROGRAMS += tests/check_gpu_group
tests_check_gpu_group_SOURCES  = tests/check_gpu_group.c
tests_check_gpu_group_SOURCES += tests/gpu_model.h
tests_check_gpu_group_SOURCES += tests/gpu_plain.h
tests_check_gpu_group_SOURCES += tests/gpu_steps.h
tests_check_gpu_group_SOURCES += tests/tap.h
tests_check_gpu_group_LDADD    = $(GPU_LIBS) src/libengine.a -lm
if !HAVE_CUDA
TESTS          += tests/check_gpu
TESTS          += tests/check_gpu_copy
TESTS          += tests/check_gpu_group
endif

check-gpu: tests/check_gpu tests/check_gpu_copy tests/check_gpu_group
	tests/check_gpu --full
	tests/check_gpu_copy
	tests/check_gpu_group
.PHONY: check-gpu

## What kernels and engine do with a GPU; BENCH_GPU has the script's options and steps.
bench-gpu: laguna-offload tests/bench_gpu tests/mkmodel
	python3 $(srcdir)/tests/bench_engine_gpu.py $(BENCH_GPU)
.PHONY: bench-gpu
EXTRA_DIST += tests/bench_engine_gpu.py
CLEANFILES += bench-gpu.json

EXTRA_PROGRAMS += tests/bench_gpu
tests_bench_gpu_SOURCES  = tests/bench_gpu.c
tests_bench_gpu_SOURCES += tests/gpu_model.h
tests_bench_gpu_LDADD    = $(GPU_LIBS) src/libengine.a -lm

## NVML by dlopen: with a library of the suite in place of NVIDIA's, and one that lacks much.
check_PROGRAMS += tests/t_nvml
TESTS          += tests/t_nvml
tests_t_nvml_SOURCES = tests/t_nvml.c tests/tap.h
tests_t_nvml_LDADD   = src/libengine.a -ldl
EXTRA_DIST          += tests/fake_nvml.c
check_DATA           = tests/fake_nvml.so tests/old_nvml.so
CLEANFILES          += tests/fake_nvml.so tests/old_nvml.so

tests/fake_nvml.so: tests/fake_nvml.c
	$(AM_V_CCLD)$(CC) $(CFLAGS) -shared -fPIC -o $@ $(srcdir)/tests/fake_nvml.c
tests/old_nvml.so: tests/fake_nvml.c
	$(AM_V_CCLD)$(CC) $(CFLAGS) -DOLD -shared -fPIC -o $@ $(srcdir)/tests/fake_nvml.c

## The whole engine over gpu_ref.c.
check_PROGRAMS += tests/t_upload
TESTS          += tests/t_upload
tests_t_upload_SOURCES = tests/t_upload.c tests/golden.h tests/files.h tests/tap.h
tests_t_upload_LDADD   = $(ENGINE_LIBS)
check_PROGRAMS += tests/t_forward_gpu
TESTS          += tests/t_forward_gpu
tests_t_forward_gpu_SOURCES = tests/t_forward_gpu.c tests/golden.h tests/files.h tests/tap.h
tests_t_forward_gpu_LDADD   = $(ENGINE_LIBS)
check_PROGRAMS += tests/t_vram
TESTS          += tests/t_vram
tests_t_vram_SOURCES = tests/t_vram.c tests/damage.h tests/files.h tests/tap.h
tests_t_vram_LDADD   = $(ENGINE_LIBS)

## The script of `make bench-gpu` over gpu_ref.c, and over figures whose limits are known.
dist_check_SCRIPTS += tests/t_bench_gpu.sh
if !HAVE_CUDA
TESTS              += tests/t_bench_gpu.sh
endif

## Faults of a GPU, over gpu_ref.c.
check_PROGRAMS += tests/t_gpu_faults
TESTS          += tests/t_gpu_faults
tests_t_gpu_faults_SOURCES  = tests/t_gpu_faults.c tests/golden.h tests/files.h tests/tap.h
tests_t_gpu_faults_SOURCES += src/cmd_batch.c src/command_io.h src/command_io.c
tests_t_gpu_faults_LDADD   = $(ENGINE_LIBS)
check_PROGRAMS += tests/t_serve_faults
TESTS          += tests/t_serve_faults
tests_t_serve_faults_SOURCES  = tests/t_serve_faults.c tests/serve.h tests/serve.c
tests_t_serve_faults_SOURCES += tests/files.h tests/tap.h
tests_t_serve_faults_LDADD    = $(ENGINE_LIBS)

check_PROGRAMS += tests/t_memo
TESTS          += tests/t_memo
tests_t_memo_SOURCES = tests/t_memo.c tests/tap.h
tests_t_memo_LDADD   = $(ENGINE_LIBS)

check_PROGRAMS += tests/t_cancel
TESTS          += tests/t_cancel
tests_t_cancel_SOURCES = tests/t_cancel.c tests/files.h tests/tap.h
tests_t_cancel_LDADD   = $(ENGINE_LIBS)
## What clients are told of requests that fail.
check_PROGRAMS += tests/t_answer
TESTS          += tests/t_answer
tests_t_answer_SOURCES = tests/t_answer.c tests/serve.h tests/serve.c tests/damage.h tests/tap.h
tests_t_answer_LDADD   = $(ENGINE_LIBS)
