#include "config.h"
#include "src/api.h"
#include "src/placement.h"
#include "src/server.h"

/* What the server says of itself.  All of it is read under the lock or never changes. */

static void add_name(struct text *out, const char *key, const char *s)
{
    text_printf(out, "\"%s\":", key);
    text_json_bytes(out, s, strlen(s));
}

static size_t model_bytes(const struct server *s)
{
    return s->model->dense_bytes + s->model->expert_bytes;
}

/* Of the experts used, the share that lay in memory. */
static double warm_share(struct server *s)
{
    struct tier_counts t;
    uint64_t all;

    pthread_mutex_lock(&s->lock);
    t = s->counters.tiers;
    pthread_mutex_unlock(&s->lock);
    all = t.vram + t.ram + t.nvme;
    return all ? (double)(t.vram + t.ram) / (double)all : 1;
}

void info_health(struct server *s, struct text *out, int *status)
{
    static const char *const name[] = { "loading", "ok", "draining", "ended", "failed" };
    enum server_state state = server_state(s);

    *status = state == SERVER_READY ? 200 : 503;
    if (state == SERVER_LOADING)
        text_puts(out, "{\"status\":\"loading\",\"error\":{\"message\":\"Loading model\","
                  "\"type\":\"server_error\",\"param\":null,\"code\":\"loading\"}}");
    else
        text_printf(out, "{\"status\":\"%s\",\"warm\":%.4f}", name[state], warm_share(s));
}

/* One model.  Each client has its own name for the context. */
void info_models(struct server *s, struct text *out)
{
    const struct shape *shape = &s->model->shape;

    text_puts(out, "{\"object\":\"list\",\"data\":[{");
    add_name(out, "id", s->model_name);
    text_printf(out, ",\"object\":\"model\",\"created\":%jd,\"owned_by\":\"laguna-offload\","
                "\"max_model_len\":%d,\"context_length\":%d,\"aliases\":[", (intmax_t)s->started,
                s->context, s->context);
    text_json_bytes(out, s->model_name, strlen(s->model_name));
    text_printf(out, "],\"status\":{\"value\":\"loaded\"},\"meta\":{\"n_ctx\":%d,"
                "\"n_ctx_train\":%d,\"n_vocab\":%d,\"n_embd\":%d,\"size\":%zu},", s->context,
                shape->max_positions, shape->vocab, shape->hidden, model_bytes(s));
    text_puts(out, "\"architecture\":{\"input_modalities\":[\"text\"],"
              "\"output_modalities\":[\"text\"]}}]}");
}

void info_effective(struct server *s, struct text *out)
{
    const struct placement *p = engine_placement(s->engine);

    text_puts(out, "{");
    add_name(out, "version", PACKAGE_VERSION);
    text_puts(out, ",");
    add_name(out, "model", s->model_name);
    text_puts(out, ",");
    add_name(out, "device", p->gpu ? "cuda" : "cpu");
    text_puts(out, ",");
    if (engine_gpu_name(s->engine)) {
        add_name(out, "gpu", engine_gpu_name(s->engine));
        text_puts(out, ",");
    }
    add_name(out, "isa", engine_isa(s->engine));
    text_puts(out, ",");
    add_name(out, "kv_type", s->o->kv_type);
    text_printf(out, ",\"threads\":%d,\"context\":%d,\"batch\":%d,\"sessions\":%d,"
                "\"experts\":{\"vram\":%d,\"ram\":%d,\"nvme\":%d},\"deterministic\":%s,"
                "\"notices\":[", engine_threads(s->engine), s->context, p->batch,
                kept_sessions(s->kept), p->vram, p->ram, p->nvme,
                s->o->deterministic ? "true" : "false");
    for (int i = 0; i < s->o->log.notices && i < LOG_NOTICES; i++) {
        text_puts(out, i ? "," : "");
        text_json_bytes(out, s->o->log.notice[i], strlen(s->o->log.notice[i]));
    }
    text_puts(out, "]}");
}

void info_props(struct server *s, struct text *out)
{
    const struct generation_defaults *d = &s->model->defaults;

    text_printf(out, "{\"default_generation_settings\":{\"n_ctx\":%d,\"params\":{"
                "\"temperature\":%.9g,\"top_p\":%.9g,\"top_k\":%d,\"min_p\":%.9g}},"
                "\"total_slots\":1,\"sessions\":%d,", s->context,
                d->do_sample ? (double)d->temperature : 0, (double)d->top_p, d->top_k,
                (double)d->min_p, kept_sessions(s->kept));
    add_name(out, "model_path", s->o->model_dir);
    text_puts(out, ",");
    add_name(out, "model_alias", s->model_name);
    text_puts(out, ",\"chat_template\":\"laguna-s-2.1\",\"chat_template_caps\":{"
              "\"supports_tools\":true,\"supports_tool_calls\":true,"
              "\"supports_parallel_tool_calls\":true,\"supports_system_role\":true},"
              "\"modalities\":{\"vision\":false,\"audio\":false},"
              "\"build_info\":\"" PACKAGE_STRING "\",\"effective\":");
    info_effective(s, out);
    text_puts(out, "}");
}

static void add_job(struct text *out, const struct job *j)
{
    static const char *const stage[] = { "reading", "queued", "running", "done" };

    text_printf(out, "{\"id\":\"%s\",\"path\":\"%s\",\"state\":\"%s\",\"prompt_tokens\":%d,"
                "\"prompt_done\":%d}", j->id, j->path, stage[j->stage], j->total, j->done);
}

/* The sessions, as llama-server's slots, and the request that is being answered in one. */
void info_slots(struct server *s, struct text *out)
{
    pthread_mutex_lock(&s->lock);
    text_puts(out, "[");
    for (int i = 0; i < s->sessions; i++)
        text_printf(out, "%s{\"id\":%d,\"n_ctx\":%d,\"n_past\":%d,\"is_processing\":%s}",
                    i ? "," : "", i, s->context, s->session_length[i],
                    s->running && s->session == i ? "true" : "false");
    text_puts(out, "]");
    pthread_mutex_unlock(&s->lock);
}

static void add_metric(struct text *out, const char *name, const char *type, const char *help,
                       double value)
{
    text_printf(out, "# HELP laguna_%s %s\n# TYPE laguna_%s %s\nlaguna_%s %.17g\n", name, help,
                name, type, name, value);
}

static void add_experts(struct text *out, const struct tier_counts *t)
{
    text_puts(out, "# HELP laguna_expert_requests_total Experts used, by where they lay.\n"
              "# TYPE laguna_expert_requests_total counter\n");
    text_printf(out, "laguna_expert_requests_total{tier=\"vram\"} %ju\n"
                "laguna_expert_requests_total{tier=\"ram\"} %ju\n"
                "laguna_expert_requests_total{tier=\"nvme\"} %ju\n", (uintmax_t)t->vram,
                (uintmax_t)t->ram, (uintmax_t)t->nvme);
    add_metric(out, "experts_fetched_total", "counter",
               "Experts in RAM that the GPU computed for a token.", (double)t->uploaded);
    add_metric(out, "expert_nvme_bytes_total", "counter", "Bytes of experts read from the drive.",
               (double)t->nvme_bytes);
    add_metric(out, "io_wait_seconds_total", "counter", "The engine waited for the drive.",
               t->io_wait_seconds);
}

static void add_gpu(struct text *out, const struct server *s, const struct vram_stats *v)
{
    const char *name = engine_gpu_name(s->engine);

    if (!name)
        return;
    text_puts(out, "# HELP laguna_gpu_info The GPU in use.\n# TYPE laguna_gpu_info gauge\n"
              "laguna_gpu_info{name=");
    text_json_bytes(out, name, strlen(name));
    text_puts(out, "} 1\n");
    add_metric(out, "vram_seats", "gauge", "Experts that VRAM holds.", v->seats);
    add_metric(out, "vram_seated", "gauge", "Experts in VRAM now.", v->seated);
    add_metric(out, "vram_promotions_total", "counter", "Experts that moved to VRAM.",
               (double)v->promotions);
    add_metric(out, "vram_demotions_total", "counter", "Experts that left VRAM.",
               (double)v->demotions);
    add_metric(out, "vram_upload_bytes_total", "counter", "Bytes of experts moved to VRAM.",
               (double)v->bytes);
}

void info_metrics(struct server *s, struct text *out)
{
    struct counters c;
    int running, waiting;

    pthread_mutex_lock(&s->lock);
    c = s->counters;
    running = s->running != NULL;
    waiting = s->waiting.n + s->reading.n;
    pthread_mutex_unlock(&s->lock);
    add_metric(out, "requests_total", "counter", "Requests taken over.", (double)c.requests);
    add_metric(out, "requests_refused_total", "counter", "Requests sent away: queue full, "
               "loading, shutting down.", (double)c.refused);
    add_metric(out, "requests_cancelled_total", "counter", "Requests whose client left.",
               (double)c.cancelled);
    add_metric(out, "requests_failed_total", "counter", "Requests answered with an error.",
               (double)c.failed);
    text_puts(out, "# HELP laguna_answers_total Answers by why they ended.\n"
              "# TYPE laguna_answers_total counter\n");
    text_printf(out, "laguna_answers_total{reason=\"stop\"} %ju\n"
                "laguna_answers_total{reason=\"length\"} %ju\n"
                "laguna_answers_total{reason=\"cancelled\"} %ju\n",
                (uintmax_t)c.finished[FINISH_STOP], (uintmax_t)c.finished[FINISH_LENGTH],
                (uintmax_t)c.finished[FINISH_CANCELLED]);
    add_metric(out, "requests_running", "gauge", "Requests being answered.", running);
    add_metric(out, "requests_waiting", "gauge", "Requests in the queue.", waiting);
    add_metric(out, "prompt_tokens_total", "counter", "Prompt tokens evaluated.",
               (double)c.prompt_tokens);
    add_metric(out, "prefix_reused_tokens_total", "counter", "Prompt tokens found in a session.",
               (double)c.cached_tokens);
    add_metric(out, "generated_tokens_total", "counter", "Tokens generated.",
               (double)c.predicted_tokens);
    add_metric(out, "prompt_seconds_total", "counter", "Time in prompts.", c.prompt_seconds);
    add_metric(out, "generated_seconds_total", "counter", "Time in generation.",
               c.predicted_seconds);
    add_metric(out, "queue_seconds_total", "counter", "Time from arrival to the engine.",
               c.queue_seconds);
    add_metric(out, "first_token_seconds_total", "counter", "Time from arrival to the first token.",
               c.first_seconds);
    add_metric(out, "first_tokens_total", "counter", "Answers in first_token_seconds_total.",
               (double)c.firsts);
    add_experts(out, &c.tiers);
    add_gpu(out, s, &c.vram);
    add_metric(out, "connections", "gauge", "Open connections.", http_connections(s->http));
    add_metric(out, "uptime_seconds", "gauge", "Since the start.", clock_now() - s->opened);
}

static void add_jobs(struct text *out, struct server *s)
{
    bool first = true;

    text_puts(out, "\"jobs\":[");
    for (const struct job *j = s->jobs; j; j = j->next) {
        text_puts(out, first ? "" : ",");
        add_job(out, j);
        first = false;
    }
    text_puts(out, "]");
}

static void add_seats(struct text *out, const struct server *s)
{
    const struct vram_stats *v = &s->counters.vram;

    if (!engine_gpu_name(s->engine))
        return;
    text_puts(out, "\"vram\":{");
    add_name(out, "gpu", engine_gpu_name(s->engine));
    text_printf(out, ",\"seats\":%d,\"seated\":%d,\"promotions\":%ju,\"demotions\":%ju,"
                "\"upload_bytes\":%ju},", v->seats, v->seated, (uintmax_t)v->promotions,
                (uintmax_t)v->demotions, (uintmax_t)v->bytes);
}

/* What `top` and the page show. */
void info_stats(struct server *s, struct text *out)
{
    const struct counters *c = &s->counters;

    pthread_mutex_lock(&s->lock);
    text_puts(out, "{");
    add_name(out, "model", s->model_name);
    text_printf(out, ",\"uptime\":%.1f,\"context\":%d,\"connections\":%d,\"running\":%d,"
                "\"waiting\":%d,", clock_now() - s->opened, s->context, http_connections(s->http),
                s->running != NULL, s->waiting.n + s->reading.n);
    text_printf(out, "\"requests\":%ju,\"cancelled\":%ju,\"failed\":%ju,\"refused\":%ju,"
                "\"prompt_tokens\":%ju,\"cached_tokens\":%ju,\"predicted_tokens\":%ju,"
                "\"prompt_seconds\":%.6f,\"predicted_seconds\":%.6f,", (uintmax_t)c->requests,
                (uintmax_t)c->cancelled, (uintmax_t)c->failed, (uintmax_t)c->refused,
                (uintmax_t)c->prompt_tokens, (uintmax_t)c->cached_tokens,
                (uintmax_t)c->predicted_tokens, c->prompt_seconds, c->predicted_seconds);
    text_printf(out, "\"first_seconds\":%.6f,\"firsts\":%ju,\"tiers\":{\"vram\":%ju,\"ram\":%ju,"
                "\"nvme\":%ju,\"nvme_bytes\":%ju},\"io_wait_seconds\":%.6f,\"sessions\":[",
                c->first_seconds, (uintmax_t)c->firsts, (uintmax_t)c->tiers.vram,
                (uintmax_t)c->tiers.ram, (uintmax_t)c->tiers.nvme, (uintmax_t)c->tiers.nvme_bytes,
                c->tiers.io_wait_seconds);
    for (int i = 0; i < s->sessions; i++)
        text_printf(out, i ? ",%d" : "%d", s->session_length[i]);
    text_puts(out, "],");
    add_seats(out, s);
    add_jobs(out, s);
    text_puts(out, "}");
    pthread_mutex_unlock(&s->lock);
}

/* How many of the tokens of late each expert was chosen for: "share" [layers][experts]. */
void info_experts(struct server *s, struct text *out)
{
    const struct shape *shape = &s->model->shape;

    text_printf(out, "{\"layers\":%d,\"experts\":%d,\"topk\":%d,\"share\":[", shape->sparse_layers,
                shape->experts, shape->topk);
    pthread_mutex_lock(&s->lock);
    for (int i = 0; i < shape->sparse_layers; i++) {
        text_puts(out, i ? ",[" : "[");
        for (int k = 0; k < shape->experts; k++)
            text_printf(out, k ? ",%.4g" : "%.4g",
                        (double)s->share[(size_t)i * (size_t)shape->experts + (size_t)k]);
        text_puts(out, "]");
    }
    pthread_mutex_unlock(&s->lock);
    text_puts(out, "]}");
}

void info_version(struct server *s, struct text *out)
{
    (void)s;
    text_puts(out, "{\"version\":\"" PACKAGE_VERSION "\"}");
}
