## A line a module.
noinst_LIBRARIES += src/libengine.a
src_libengine_a_SOURCES  = src/base.h src/base.c
src_libengine_a_SOURCES += src/shape.h
src_libengine_a_SOURCES += src/weights.h src/expert.h
src_libengine_a_SOURCES += src/ref.h src/ref.c
src_libengine_a_SOURCES += src/json.h src/json.c src/text.c
src_libengine_a_SOURCES += src/sample.h src/sample.c
src_libengine_a_SOURCES += src/experts.h src/experts_internal.h src/experts.c
src_libengine_a_SOURCES += src/expert_set.c src/expert_tiers.c
src_libengine_a_SOURCES += src/forward.h src/forward.c
src_libengine_a_SOURCES += src/memory.h src/memory.c
src_libengine_a_SOURCES += src/engine.h src/engine_faults.h src/engine_internal.h src/engine.c
src_libengine_a_SOURCES += src/session.c
src_libengine_a_SOURCES += src/snapshots.h src/snapshots.c
src_libengine_a_SOURCES += src/generate.h src/generate.c
src_libengine_a_SOURCES += src/options.h src/options.c
src_libengine_a_SOURCES += src/options_table.h src/options_table.c src/options_value.c
src_libengine_a_SOURCES += src/fields.h src/fields.c
src_libengine_a_SOURCES += src/rope.h src/rope.c
src_libengine_a_SOURCES += src/shape.c
src_libengine_a_SOURCES += src/quant.h src/quant.c
src_libengine_a_SOURCES += src/linear.h src/linear.c
src_libengine_a_SOURCES += src/model.h src/model.c
src_libengine_a_SOURCES += src/model_bind.h src/model_bind.c
src_libengine_a_SOURCES += src/model_load.c
src_libengine_a_SOURCES += src/tokenizer.h src/tokenizer.c
src_libengine_a_SOURCES += src/tokenizer_parts.h src/tokenizer_open.c
src_libengine_a_SOURCES += src/added.h src/added.c src/pairs.h
src_libengine_a_SOURCES += src/bpe.h src/bpe.c
src_libengine_a_SOURCES += src/pretoken.h src/pretoken.c src/utf8.h
src_libengine_a_SOURCES += src/detok.c
src_libengine_a_SOURCES += src/chat.h src/chat.c
src_libengine_a_SOURCES += src/argument.h src/argument.c src/toolparse.h src/toolparse.c src/message.h src/message.c
src_libengine_a_SOURCES += src/request.h src/request.c src/request_chat.h src/request_chat.c src/param.h src/param.c
src_libengine_a_SOURCES += src/reply.h src/reply.c
src_libengine_a_SOURCES += src/directory.h src/directory.c src/answer.h src/answer.c src/literal.h src/literal.c
src_libengine_a_SOURCES += src/placement.h src/placement.c
src_libengine_a_SOURCES += src/trace.h src/trace.c
src_libengine_a_SOURCES += src/kernel_file.h src/kernel_file.c
src_libengine_a_SOURCES += src/measure.h src/measure.c
src_libengine_a_SOURCES += src/machine.h src/machine.c
src_libengine_a_SOURCES += src/predict.h src/predict.c
src_libengine_a_SOURCES += src/outlook.h src/outlook.c
src_libengine_a_SOURCES += src/heatmap.h src/heatmap.c
src_libengine_a_SOURCES += src/schema.h src/schema_parts.h src/schema.c
src_libengine_a_SOURCES += src/schema_words.c src/schema_types.c
src_libengine_a_SOURCES += src/schema_calls.c src/schema_finish.c src/textstep.h
src_libengine_a_SOURCES += src/tokentrie.h src/tokentrie.c
src_libengine_a_SOURCES += src/automaton.h src/automaton_parts.h
src_libengine_a_SOURCES += src/automaton.c src/automaton_step.c
src_libengine_a_SOURCES += src/memo.h src/memo.c
src_libengine_a_SOURCES += src/constrain.h src/constrain.c
src_libengine_a_SOURCES += src/request_schema.h src/request_schema.c
src_libengine_a_SOURCES += src/http_head.h src/http_head.c
src_libengine_a_SOURCES += src/http_conn.h src/http_conn.c
src_libengine_a_SOURCES += src/http.h src/http.c
src_libengine_a_SOURCES += src/completion.h src/completion.c
src_libengine_a_SOURCES += src/request_log.h src/request_log.c
src_libengine_a_SOURCES += src/keys.h src/keys.c
src_libengine_a_SOURCES += src/notify.h src/notify.c
src_libengine_a_SOURCES += src/kept.h src/kept.c
src_libengine_a_SOURCES += src/recall.h src/recall.c
src_libengine_a_SOURCES += src/job.h src/job.c src/job_queue.c
src_libengine_a_SOURCES += src/server.h src/server.c src/server_work.c
src_libengine_a_SOURCES += src/route.c
src_libengine_a_SOURCES += src/sse.h src/sse.c
src_libengine_a_SOURCES += src/api.h src/api_openai.c
src_libengine_a_SOURCES += src/api_responses.c
src_libengine_a_SOURCES += src/api_anthropic.c
src_libengine_a_SOURCES += src/api_text.c
src_libengine_a_SOURCES += src/api_info.c
src_libengine_a_SOURCES += src/convert.h src/convert.c
src_libengine_a_SOURCES += src/convert_messages.c
src_libengine_a_SOURCES += src/convert_responses.c
src_libengine_a_SOURCES += src/page.h src/page.c
src_libengine_a_SOURCES += src/command_io.h src/command_io.c
src_libengine_a_SOURCES += src/waves.h src/waves.c
src_libengine_a_SOURCES += src/forward_gpu.h src/forward_gpu.c
src_libengine_a_SOURCES += src/feed.h src/feed.c
src_libengine_a_SOURCES += src/split.h src/split.c
src_libengine_a_SOURCES += src/upload.h src/upload.c
src_libengine_a_SOURCES += src/mirror.h src/mirror.c
src_libengine_a_SOURCES += src/pinning.h src/pinning.c
src_libengine_a_SOURCES += src/engine_gpu.c
src_libengine_a_SOURCES += src/nvml.h src/nvml.c
src_libengine_a_SOURCES += src/vram.h src/vram.c
nodist_src_libengine_a_SOURCES = src/page_bytes.h
BUILT_SOURCES += src/page_bytes.h
CLEANFILES += src/page_bytes.h
EXTRA_DIST += src/page.html

src/page_bytes.h: src/page.html
	$(AM_V_GEN)$(MKDIR_P) src && \
	od -An -v -tu1 $(srcdir)/src/page.html | sed 's/[0-9][0-9]*/&,/g' >$@
src/page.$(OBJEXT): src/page_bytes.h

bin_PROGRAMS = laguna-offload
laguna_offload_SOURCES  = src/main.c src/commands.h
laguna_offload_SOURCES += src/cmd_batch.c
laguna_offload_SOURCES += src/cmd_render.c
laguna_offload_SOURCES += src/cmd_run.c
laguna_offload_SOURCES += src/cmd_score.c
laguna_offload_SOURCES += src/cmd_serve.c
laguna_offload_SOURCES += src/cmd_top.c src/client.h src/client.c
laguna_offload_SOURCES += src/cmd_tokenize.c
laguna_offload_SOURCES += src/cmd_plan.c
laguna_offload_SOURCES += src/cmd_doctor.c
laguna_offload_SOURCES += src/cmd_stats.c
laguna_offload_SOURCES += src/cmd_bench.c src/manual.h
nodist_laguna_offload_SOURCES = man/manual.c
laguna_offload_SOURCES += src/talk.h src/talk.c
laguna_offload_SOURCES += src/line.h
if HAVE_EDIT
laguna_offload_SOURCES += src/line_edit.c
else
laguna_offload_SOURCES += src/line_plain.c
endif
EXTRA_DIST += src/line_edit.c src/line_plain.c
laguna_offload_LDADD    = $(ENGINE_LIBS)

ENGINE_LIBS = src/libengine.a storage/libstorage.a $(CPU_LIBS) $(GPU_LIBS) src/libengine.a \
              $(URING_LIBS) $(CJSON_LIBS) $(BLAS_LIBS) $(NUMA_LIBS) \
              $(PCRE2_LIBS) $(XXHASH_LIBS) $(EVENT_LIBS) $(EDIT_LIBS) -ldl -lm

## The page of the manual as a string, for bench.
man/manual.c: man/laguna-offload.1 src/local.mk
	$(AM_V_GEN)$(MKDIR_P) man && { \
	    echo '#include "src/manual.h"'; \
	    echo 'const char *manual_text(void) { return'; \
	    sed 's/[\\"]/\\&/g; s/.*/"&\\n"/' $(srcdir)/man/laguna-offload.1; \
	    echo '; }'; } >$@.new && mv $@.new $@
CLEANFILES += man/manual.c
