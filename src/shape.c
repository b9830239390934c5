/* config.json and generation_config.json into struct shape.  Every number is checked here,
 * once, against bounds that keep all later products of dimensions below 2^63; keys that
 * mean nothing to inference are ignored.  The rotary frequencies are in rope.c, the
 * quantization_config in quant.c. */
#include "src/shape.h"

#include "src/fields.h"
#include "src/rope.h"

#include <errno.h>
#include <stdlib.h>

enum {
    HIDDEN_MAX = 1 << 16,
    INNER_MAX = 1 << 20,        /* of any FFN, and of heads * head_dim */
    HEADS_MAX = 4096,
    VOCAB_MAX = 1 << 24,
    POSITIONS_MAX = 1 << 24,    /* a float holds every position exactly */
};

static int multiple_of(struct config *c, const char *key, int of, int max)
{
    int n = config_int(c, c->root, key, of, max, CONFIG_REQUIRED);

    if (!c->rc && n % of)
        config_fail(c, key, "%d is not a multiple of %d", n, of);
    return n;
}

static void check_architecture(struct config *c)
{
    const cJSON *list = config_member(c->root, "architectures"), *name;
    const char *type = config_string(c, c->root, "model_type");

    if (type && strcmp(type, "laguna")) {
        config_fail(c, "model_type", "\"%s\" (expects laguna, for LagunaForCausalLM)", type);
        return;
    }
    cJSON_ArrayForEach(name, list) {
        if (!cJSON_IsString(name) || strcmp(name->valuestring, "LagunaForCausalLM"))
            config_fail(c, "architectures", "\"%s\" (expects LagunaForCausalLM)",
                        cJSON_IsString(name) ? name->valuestring : "not a string");
    }
    if (!type && !cJSON_GetArraySize(list))
        config_fail(c, "architectures", "missing (expects LagunaForCausalLM)");
}

/* What would change the arithmetic and is not implemented: refused rather than ignored. */
static void check_unsupported(struct config *c)
{
    static const char *const off[] = {
        "moe_apply_router_weight_on_input", "swa_attention_sink_enabled", "attention_bias",
        "qkv_bias", "mlp_bias", "tie_word_embeddings",
    };
    const char *act = config_string(c, c->root, "hidden_act");
    size_t i;

    for (i = 0; i < sizeof(off) / sizeof(off[0]); i++)
        if (config_bool(c, c->root, off[i], false))
            config_fail(c, off[i], "true is not supported");
    if (act && strcmp(act, "silu"))
        config_fail(c, "hidden_act", "\"%s\" is not supported (silu)", act);
}

/* An array with an entry for each layer, or NULL where the file has none. */
static const cJSON *per_layer(struct config *c, const char *key, int layers)
{
    const cJSON *list = config_member(c->root, key);

    if (!list)
        return NULL;
    if (!cJSON_IsArray(list) || cJSON_GetArraySize(list) != layers) {
        config_fail(c, key, "%d entries for %d layers", cJSON_GetArraySize(list), layers);
        return NULL;
    }
    return list->child;
}

static const char *text_of(const cJSON *node)
{
    return cJSON_IsString(node) ? node->valuestring : "not a string";
}

static void read_attention_kinds(struct config *c, struct shape *s)
{
    const cJSON *kind = per_layer(c, "layer_types", s->layers);
    int i;

    for (i = 0; i < s->layers && !c->rc; i++) {
        const char *name = kind ? text_of(kind) : "full_attention";

        s->layer[i].full = strcmp(name, "sliding_attention") != 0;
        if (s->layer[i].full && strcmp(name, "full_attention") &&
            strcmp(name, "global_attention"))
            config_fail(c, "layer_types", "layer %d: \"%s\" (full_attention, global_attention, "
                        "sliding_attention)", i, name);
        if (!s->layer[i].full && !s->window)
            s->window = config_int(c, c->root, "sliding_window", 1, POSITIONS_MAX,
                                   CONFIG_REQUIRED);
        kind = kind ? kind->next : NULL;
    }
}

static bool listed(const cJSON *list, int layer)
{
    const cJSON *node;
    int64_t n;

    if (!list)
        return layer == 0;
    cJSON_ArrayForEach(node, list)
        if (!json_int64(node, 0, MAX_LAYERS, &n) && n == layer)
            return true;
    return false;
}

static void read_ffn_kinds(struct config *c, struct shape *s)
{
    const cJSON *kind = per_layer(c, "mlp_layer_types", s->layers);
    const cJSON *only = config_member(c->root, "mlp_only_layers");
    int step = config_int(c, c->root, "decoder_sparse_step", 1, MAX_LAYERS, 1);
    int i;

    for (i = 0; i < s->layers && !c->rc; i++) {
        if (kind) {
            s->layer[i].dense = strcmp(text_of(kind), "sparse") != 0;
            if (s->layer[i].dense && strcmp(text_of(kind), "dense"))
                config_fail(c, "mlp_layer_types", "layer %d: \"%s\" (dense, sparse)", i,
                            text_of(kind));
            kind = kind->next;
        } else {
            s->layer[i].dense = listed(only, i) || !s->experts || (i + 1) % step;
        }
        if (!s->layer[i].dense)
            s->sparse_layers++;
    }
}

static void read_ffn(struct config *c, struct shape *s)
{
    s->experts = config_int(c, c->root, "num_experts", 0, MAX_EXPERTS, 0);
    read_ffn_kinds(c, s);
    if (s->sparse_layers < s->layers)
        s->dense_inner = multiple_of(c, "intermediate_size", 32, INNER_MAX);
    s->route_scale = 1;
    if (!s->sparse_layers) {
        s->experts = 0;
        return;
    }
    s->experts = config_int(c, c->root, "num_experts", 1, MAX_EXPERTS, CONFIG_REQUIRED);
    s->topk = config_int(c, c->root, "num_experts_per_tok", 1, MAX_TOPK, CONFIG_REQUIRED);
    if (!c->rc && s->topk > s->experts)
        config_fail(c, "num_experts_per_tok", "%d of %d experts", s->topk, s->experts);
    s->expert_inner = multiple_of(c, "moe_intermediate_size", 32, INNER_MAX);
    if (config_int(c, c->root, "shared_expert_intermediate_size", 0, INNER_MAX, 0))
        s->shared_inner = multiple_of(c, "shared_expert_intermediate_size", 32, INNER_MAX);
    s->norm_topk = config_bool(c, c->root, "norm_topk_prob", true);
    s->route_scale = (float)config_real(c, c->root, "moe_routed_scaling_factor", 1e-6, 1e6, 1);
    s->router_softcap = (float)config_real(c, c->root, "moe_router_logit_softcapping", 0, 1e6,
                                           0);
}

static void read_score_function(struct config *c, struct shape *s)
{
    const char *name = config_string(c, c->root, "moe_router_score_func");

    s->sqrtsoftplus = name && !strcmp(name, "sqrtsoftplus");
    if (name && !s->sqrtsoftplus && strcmp(name, "sigmoid"))
        config_fail(c, "moe_router_score_func", "\"%s\" (sigmoid, sqrtsoftplus)", name);
}

/* Rows of g_proj that a `gating` of the file means.  True, and no word at all, mean one row a
 * head: models that gate every element say so. */
static int gate_rows(struct config *c, const char *key, const cJSON *gating, int heads,
                     int head_dim)
{
    const char *name = cJSON_IsString(gating) ? gating->valuestring : "";

    if (!gating || cJSON_IsTrue(gating) || !strcmp(name, "per-head") ||
        !strcmp(name, "per_head"))
        return heads;
    if (cJSON_IsFalse(gating))
        return 0;
    if (!strcmp(name, "per-element") || !strcmp(name, "per_element"))
        return heads * head_dim;
    config_fail(c, key, "\"%s\" (true, false, per-head, per-element)", text_of(gating));
    return 0;
}

static void read_heads(struct config *c, struct shape *s)
{
    static const char each[] = "num_attention_heads_per_layer";
    const cJSON *list = per_layer(c, each, s->layers);
    const cJSON *types = per_layer(c, "gating_types", s->layers);
    const cJSON *gating = config_member(c->root, "gating");
    int heads = config_int(c, c->root, "num_attention_heads", 1, HEADS_MAX,
                           list ? 1 : CONFIG_REQUIRED);
    int i;

    for (i = 0; i < s->layers && !c->rc; i++) {
        struct layer_shape *l = &s->layer[i];
        int64_t n = heads;

        if (list && json_int64(list, 1, HEADS_MAX, &n)) {
            config_fail(c, each, "layer %d is not an integer from 1 to %d", i, HEADS_MAX);
            return;
        }
        l->heads = (int)n;
        if (l->heads % s->kv_heads)
            config_fail(c, list ? each : "num_attention_heads", "layer %d: %d is not a multiple "
                        "of %d kv heads", i, l->heads, s->kv_heads);
        else if (l->heads * s->head_dim % 32 || l->heads * s->head_dim > INNER_MAX)
            config_fail(c, list ? each : "num_attention_heads", "layer %d: %d heads of %d "
                        "(a multiple of 32 up to %d)", i, l->heads, s->head_dim, INNER_MAX);
        l->gate_rows = types ? gate_rows(c, "gating_types", types, l->heads, s->head_dim)
                             : gate_rows(c, "gating", gating, l->heads, s->head_dim);
        if (l->heads > s->max_heads)
            s->max_heads = l->heads;
        list = list ? list->next : NULL;
        types = types ? types->next : NULL;
    }
}

static void read_ropes(struct config *c, struct shape *s)
{
    bool full = false, window = false;
    int i;

    for (i = 0; i < s->layers; i++) {
        full |= s->layer[i].full;
        window |= !s->layer[i].full;
    }
    if (full)
        rope_read(c, &s->rope_full, true, s->head_dim, s->max_positions);
    if (window)
        rope_read(c, &s->rope_window, false, s->head_dim, s->max_positions);
}

/* Add the ids of a key that holds one id, a list, or nothing. */
static void add_eos(struct config *c, struct shape *s)
{
    static const char key[] = "eos_token_id";
    const cJSON *node = config_member(c->root, key);
    bool list = cJSON_IsArray(node);
    int64_t id = 0;
    int i;

    if (list)
        node = node->child;
    for (; node && !c->rc; node = list ? node->next : NULL) {
        if (json_int64(node, 0, s->vocab - 1, &id)) {
            config_fail_value(c, key, node, 0, s->vocab - 1);
            return;
        }
        for (i = 0; i < s->eos_count && s->eos[i] != id; i++)
            ;
        if (i == MAX_EOS)
            config_fail(c, key, "more than %d ids", MAX_EOS);
        else if (i == s->eos_count)
            s->eos[s->eos_count++] = (int32_t)id;
    }
}

/* An id, or -1 where the file has none (or says -1, as some do). */
static int32_t token_id(struct config *c, const struct shape *s, const char *key)
{
    return config_int(c, c->root, key, -1, s->vocab - 1, -1);
}

static void read_shape(struct config *c, struct shape *s)
{
    check_architecture(c);
    check_unsupported(c);
    s->layers = config_int(c, c->root, "num_hidden_layers", 1, MAX_LAYERS, CONFIG_REQUIRED);
    s->hidden = multiple_of(c, "hidden_size", 32, HIDDEN_MAX);
    s->head_dim = multiple_of(c, "head_dim", 16, MAX_HEAD_DIM);
    s->kv_heads = config_int(c, c->root, "num_key_value_heads", 1, HEADS_MAX, CONFIG_REQUIRED);
    s->vocab = config_int(c, c->root, "vocab_size", 1, VOCAB_MAX, CONFIG_REQUIRED);
    s->max_positions = config_int(c, c->root, "max_position_embeddings", 1, POSITIONS_MAX,
                                  CONFIG_REQUIRED);
    s->norm_eps = (float)config_real(c, c->root, "rms_norm_eps", 1e-12, 1, 1e-6);
    if (c->rc)
        return;
    read_attention_kinds(c, s);
    read_heads(c, s);
    read_ffn(c, s);
    read_score_function(c, s);
    if (!c->rc)
        read_ropes(c, s);
    s->bos = token_id(c, s, "bos_token_id");
    s->pad = token_id(c, s, "pad_token_id");
    add_eos(c, s);
}

int shape_read(struct shape *out, const char *json, size_t len, const char *name, struct err *e)
{
    struct config c;

    memset(out, 0, sizeof(*out));
    config_open(&c, json, len, name, e);
    if (!c.rc)
        read_shape(&c, out);
    return config_close(&c);
}

static void read_generation(struct config *c, struct shape *s, struct generation_defaults *out)
{
    add_eos(c, s);
    out->temperature = (float)config_real(c, c->root, "temperature", 0, 2, 1);
    out->top_p = (float)config_real(c, c->root, "top_p", 1e-6, 1, 1);
    out->min_p = (float)config_real(c, c->root, "min_p", 0, 1, 0);
    out->top_k = config_int(c, c->root, "top_k", -1, VOCAB_MAX, 0);
    out->do_sample = config_bool(c, c->root, "do_sample", false);
    if (out->top_k < 0)
        out->top_k = 0;
}

int shape_read_generation(struct shape *s, struct generation_defaults *out, const char *json,
                          size_t len, const char *name, struct err *e)
{
    struct config c;

    memset(out, 0, sizeof(*out));
    config_open(&c, json, len, name, e);
    if (!c.rc)
        read_generation(&c, s, out);
    return config_close(&c);
}
