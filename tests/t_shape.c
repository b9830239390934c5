/* config.json and generation_config.json: rows B01 to B12 of the fault catalogue, the forms
 * that laguna.md 1.4 lists, and the YaRN test vector of 2.4. */
#include "src/json.h"
#include "src/shape.h"
#include "tests/files.h"
#include "tests/tap.h"

#include <errno.h>
#include <math.h>

static struct shape s;
static struct err e;

/* Laguna-S-2.1, but for the lists of 48 entries. */
static const char S21[] =
    "{\"architectures\":[\"LagunaForCausalLM\"],\"model_type\":\"laguna\",\"vocab_size\":100352,"
    "\"hidden_size\":3072,\"num_hidden_layers\":4,\"head_dim\":128,\"num_attention_heads\":48,"
    "\"num_attention_heads_per_layer\":[48,72,72,72],\"num_key_value_heads\":8,"
    "\"layer_types\":[\"full_attention\",\"sliding_attention\",\"sliding_attention\","
    "\"sliding_attention\"],\"sliding_window\":512,\"intermediate_size\":12288,"
    "\"mlp_layer_types\":[\"dense\",\"sparse\",\"sparse\",\"sparse\"],\"mlp_only_layers\":[0],"
    "\"decoder_sparse_step\":1,\"num_experts\":256,\"num_experts_per_tok\":10,"
    "\"moe_intermediate_size\":1024,\"shared_expert_intermediate_size\":1024,"
    "\"norm_topk_prob\":true,\"moe_routed_scaling_factor\":2.5,"
    "\"moe_router_logit_softcapping\":0.0,\"moe_apply_router_weight_on_input\":false,"
    "\"hidden_act\":\"silu\",\"rms_norm_eps\":1e-06,\"attention_bias\":false,"
    "\"gating\":\"per-head\",\"gating_types\":[\"per_head\",\"per_head\",\"per_head\","
    "\"per_head\"],\"tie_word_embeddings\":false,\"max_position_embeddings\":1048576,"
    "\"bos_token_id\":2,\"eos_token_id\":[2,24],\"pad_token_id\":9,\"rope_parameters\":{"
    "\"full_attention\":{\"rope_type\":\"yarn\",\"rope_theta\":500000.0,\"factor\":128.0,"
    "\"original_max_position_embeddings\":8192,\"beta_slow\":1.0,\"beta_fast\":32.0,"
    "\"attention_factor\":1.4852030263919618,\"partial_rotary_factor\":0.5},"
    "\"sliding_attention\":{\"rope_type\":\"default\",\"rope_theta\":10000.0,"
    "\"partial_rotary_factor\":1.0}}}";

static int read_text(const char *json)
{
    e.text[0] = 0;
    return shape_read(&s, json, strlen(json), "config.json", &e);
}

/* S21 with members replaced: key, value, key, value, ..., NULL.  A value of NULL removes the
 * member; a key may be a path with dots. */
static int edited(const char *const *edit)
{
    cJSON *root = cJSON_Parse(S21);
    char *json;
    int rc;

    for (; edit[0]; edit += 2) {
        char path[128], *key = path, *dot;
        cJSON *at = root;

        snprintf(path, sizeof(path), "%s", edit[0]);
        while ((dot = strchr(key, '.'))) {
            *dot = 0;
            at = cJSON_GetObjectItemCaseSensitive(at, key);
            key = dot + 1;
        }
        cJSON_DeleteItemFromObjectCaseSensitive(at, key);
        if (edit[1])
            cJSON_AddItemToObject(at, key, cJSON_CreateRaw(edit[1]));
    }
    json = cJSON_PrintUnformatted(root);
    rc = read_text(json);
    cJSON_free(json);
    cJSON_Delete(root);
    return rc;
}

#define EDIT(...) edited((const char *const[]){ __VA_ARGS__, NULL, NULL })

static void test_s21(void)
{
    ok(!read_text(S21), "Laguna-S-2.1 %s", e.text);
    ok(s.layers == 4 && s.sparse_layers == 3 && s.hidden == 3072 && s.head_dim == 128 &&
       s.kv_heads == 8 && s.window == 512 && s.vocab == 100352, "dimensions");
    ok(s.experts == 256 && s.topk == 10 && s.expert_inner == 1024 && s.shared_inner == 1024 &&
       s.dense_inner == 12288, "experts");
    ok(s.layer[0].full && s.layer[0].dense && s.layer[0].heads == 48 &&
       s.layer[0].gate_rows == 48, "layer 0");
    ok(!s.layer[3].full && !s.layer[3].dense && s.layer[3].heads == 72 &&
       s.layer[3].gate_rows == 72 && s.max_heads == 72, "layer 3");
    ok(s.norm_eps == 1e-6f && s.route_scale == 2.5f && s.router_softcap == 0 && s.norm_topk &&
       !s.sqrtsoftplus && s.max_positions == 1048576, "scalars");
    ok(s.bos == 2 && s.pad == 9 && s.eos_count == 2 && s.eos[0] == 2 && s.eos[1] == 24, "ids");
}

static bool near(float got, double want)
{
    return fabs(got - want) <= 2e-7 * fabs(want);
}

static void test_rope(void)
{
    static const struct {
        int i;
        double want;
    } vector[] = {
        { 0, 1 }, { 1, 6.636012377e-01 }, { 8, 3.760603093e-02 }, { 9, 2.495540867e-02 },
        { 10, 1.473476657e-02 }, { 12, 4.880767806e-03 }, { 16, 3.228629921e-04 },
        { 17, 1.107920541e-04 }, { 18, 4.865409546e-06 }, { 20, 2.142563872e-06 },
        { 31, 2.354576681e-08 },
    };
    struct rope nested;
    size_t i;

    read_text(S21);
    nested = s.rope_full;
    for (i = 0; i < sizeof(vector) / sizeof(vector[0]); i++)
        ok(near(s.rope_full.inv_freq[vector[i].i], vector[i].want), "inv_freq[%d] %.9e",
           vector[i].i, (double)s.rope_full.inv_freq[vector[i].i]);
    ok(s.rope_full.dims == 64 && near(s.rope_full.factor, 1.4852030263919618), "full: 64 of 128");
    ok(s.rope_window.dims == 128 && s.rope_window.factor == 1 &&
       near(s.rope_window.inv_freq[63], pow(10000, -126.0 / 128)), "sliding: plain, all of 128");

    ok(!EDIT("rope_parameters.full_attention.attention_factor", NULL) &&
       near(s.rope_full.factor, 1.4852030263919618), "attention_factor by the formula");
    ok(!EDIT("rope_parameters.full_attention.attention_factor", "1.0") &&
       s.rope_full.factor == 1, "attention_factor 1.0 is final");
    ok(!EDIT("rope_parameters.full_attention.factor", "0.5",
             "rope_parameters.full_attention.attention_factor", "null") &&
       s.rope_full.factor == 1, "a factor below 1 scales nothing");
    ok(!EDIT("rope_parameters.original_max_position_embeddings", "8192",
             "rope_parameters.full_attention.original_max_position_embeddings", NULL) &&
       !memcmp(&s.rope_full, &nested, sizeof(nested)), "a key beside the entries");
    ok(!EDIT("original_max_position_embeddings", "8192",
             "rope_parameters.full_attention.original_max_position_embeddings", NULL) &&
       !memcmp(&s.rope_full, &nested, sizeof(nested)), "a key at the top level");
    ok(!EDIT("rope_parameters", NULL, "rope_theta", "500000", "partial_rotary_factor", "0.5",
             "rope_scaling", "{\"type\":\"yarn\",\"factor\":128,\"beta_fast\":32,\"beta_slow\":1,"
             "\"original_max_position_embeddings\":8192,\"attention_factor\":1.4852030263919618}",
             "swa_rope_parameters", "{\"rope_type\":\"default\",\"rope_theta\":10000,"
             "\"partial_rotary_factor\":1.0}") &&
       !memcmp(&s.rope_full, &nested, sizeof(nested)) && s.rope_window.dims == 128 &&
       near(s.rope_window.inv_freq[1], pow(10000, -2.0 / 128)), "the older keys %s", e.text);
    ok(!EDIT("rope_parameters", "{\"rope_type\":\"linear\",\"factor\":1.0,\"rope_theta\":1e4}") &&
       s.rope_full.dims == 128 && s.rope_window.inv_freq[5] == s.rope_full.inv_freq[5],
       "flat parameters serve both kinds");
    ok(!EDIT("rope_parameters", NULL, "rope_theta", "500000") && s.rope_full.factor == 1 &&
       s.rope_window.dims == 128, "rope_theta alone");
    ok(!EDIT("layer_types", NULL, "sliding_window", NULL,
             "rope_parameters.sliding_attention", NULL) && s.rope_window.dims == 0,
       "no sliding layers, no sliding entry %s", e.text);
}

static void test_forms(void)
{
    int i;

    ok(!EDIT("layer_types", NULL, "sliding_window", "0") && s.layer[3].full && !s.window,
       "no layer_types: all layers are full");
    ok(!EDIT("layer_types", "[\"global_attention\",\"global_attention\",\"sliding_attention\","
             "\"full_attention\"]") && s.layer[1].full && !s.layer[2].full, "global_attention");
    ok(!EDIT("mlp_layer_types", NULL) && s.layer[0].dense && s.sparse_layers == 3,
       "mlp_only_layers");
    ok(!EDIT("mlp_layer_types", NULL, "mlp_only_layers", NULL) && s.layer[0].dense &&
       s.sparse_layers == 3, "mlp_only_layers is [0] by default");
    ok(!EDIT("mlp_layer_types", NULL, "mlp_only_layers", "[]", "decoder_sparse_step", "2") &&
       s.layer[0].dense && !s.layer[1].dense && s.sparse_layers == 2, "decoder_sparse_step");
    ok(!EDIT("mlp_layer_types", NULL, "num_experts", "0") && !s.sparse_layers && !s.experts,
       "no experts");
    ok(!EDIT("num_attention_heads_per_layer", NULL) && s.layer[1].heads == 48, "one head count");
    ok(!EDIT("gating", "true", "gating_types", NULL) && s.layer[1].gate_rows == 72,
       "gating true is per head");
    ok(!EDIT("gating", "false", "gating_types", NULL) && s.layer[1].gate_rows == 0, "no gate");
    ok(!EDIT("gating", "\"per-element\"", "gating_types", NULL) &&
       s.layer[1].gate_rows == 72 * 128, "per element");
    ok(!EDIT("gating_types", "[\"per_element\",\"per_head\",\"per_head\",\"per_head\"]") &&
       s.layer[0].gate_rows == 48 * 128 && s.layer[1].gate_rows == 72, "gating_types wins");
    ok(!EDIT("norm_topk_prob", NULL, "moe_routed_scaling_factor", NULL) && s.norm_topk &&
       s.route_scale == 1, "router defaults");
    ok(!EDIT("shared_expert_intermediate_size", "0") && !s.shared_inner, "no shared expert");
    ok(!EDIT("moe_router_score_func", "\"sqrtsoftplus\"") && s.sqrtsoftplus, "sqrtsoftplus");
    ok(!EDIT("eos_token_id", "24") && s.eos_count == 1 && s.eos[0] == 24, "one eos id");
    ok(!EDIT("eos_token_id", NULL, "bos_token_id", "null", "pad_token_id", "-1") &&
       !s.eos_count && s.bos == -1 && s.pad == -1, "no ids");
    ok(!EDIT("model_type", NULL) && !EDIT("architectures", NULL), "one name is enough");
    ok(!EDIT("auto_map", "{\"AutoConfig\":\"x.Y\"}", "nonsense", "[null]", "attention_bias",
             "null"), "unknown keys and nulls are ignored (B10) %s", e.text);
    ok(!EDIT("vocab_size", "100352", "Vocab_Size", "7") && s.vocab == 100352,
       "keys differ by case");
    for (i = 0; i < 4; i++)
        ok(s.layer[i].heads % s.kv_heads == 0, "heads of layer %d", i);
}

/* key, value, and words that the refusal must hold beside the key. */
static void test_refusals(void)
{
    static const char *const bad[][3] = {
        { "hidden_size", "-1", "-1" },
        { "hidden_size", "0", "32 to 65536" },
        { "hidden_size", "1.5", "1.5" },
        { "hidden_size", "\"3072\"", "\"3072\"" },
        { "hidden_size", "1e18", "1e18" },
        { "hidden_size", "2147483648", "2147483648" },
        { "hidden_size", "18446744073709551617", "18446744073709551617" },
        { "hidden_size", "3080", "multiple of 32" },
        { "hidden_size", NULL, "missing" },
        { "hidden_size", "null", "missing" },
        { "vocab_size", "0", "0" },
        { "num_hidden_layers", "0", "1 to 128" },
        { "num_hidden_layers", "129", "1 to 128" },
        { "num_experts", "0", "1 to 1024" },
        { "num_experts", "65537", "65537" },
        { "num_experts_per_tok", "11000", "1 to 32" },
        { "num_experts_per_tok", "0", "1 to 32" },
        { "num_experts_per_tok", NULL, "missing" },
        { "moe_intermediate_size", "1000", "multiple of 32" },
        { "intermediate_size", "-12288", "-12288" },
        { "shared_expert_intermediate_size", "33", "multiple of 32" },
        { "num_key_value_heads", "7", "multiple of 7" },
        { "num_key_value_heads", "0", "0" },
        { "head_dim", "0", "16 to 256" },
        { "head_dim", "4096", "4096" },
        { "head_dim", "100", "multiple of 16" },
        { "num_attention_heads_per_layer", "[48,72,72]", "3 entries for 4 layers" },
        { "num_attention_heads_per_layer", "[48,72,72,0]", "layer 3" },
        { "num_attention_heads_per_layer", "48", "entries" },
        { "num_attention_heads_per_layer", "[48,72,71,72]", "layer 2: 71" },
        { "layer_types", "[\"full_attention\"]", "1 entries for 4 layers" },
        { "layer_types", "[\"full_attention\",\"mamba\",\"full_attention\",\"full_attention\"]",
          "\"mamba\"" },
        { "mlp_layer_types", "[\"dense\",\"moe\",\"sparse\",\"sparse\"]", "\"moe\"" },
        { "sliding_window", "0", "0" },
        { "sliding_window", "-5", "-5" },
        { "sliding_window", "2147483648", "2147483648" },
        { "sliding_window", NULL, "missing" },
        { "rope_parameters.full_attention.rope_theta", "0", "0 is not" },
        { "rope_parameters.full_attention.rope_theta", "-1", "-1" },
        { "rope_parameters.full_attention.rope_theta", "1e999", "1e999" },
        { "rope_parameters.full_attention.rope_theta", NULL, "missing" },
        { "rope_parameters.full_attention.factor", "0", "0 is not" },
        { "rope_parameters.full_attention.factor", NULL, "missing" },
        { "rope_parameters.full_attention.attention_factor", "0", "0 is not" },
        { "rope_parameters.full_attention.beta_fast", "0.5", "below beta_slow" },
        { "rope_parameters.full_attention.partial_rotary_factor", "0", "not even" },
        { "rope_parameters.full_attention.partial_rotary_factor", "1.5", "1.5" },
        { "rope_parameters.full_attention.rope_type", "\"llama3\"", "\"llama3\"" },
        { "rope_parameters.full_attention.rope_type", "\"linear\"", "linear" },
        { "rope_parameters.full_attention", NULL, "full_attention" },
        { "rope_parameters", "[]", "not an object" },
        { "rms_norm_eps", "0", "0 is not" },
        { "rms_norm_eps", "-1e-6", "-1e-6" },
        { "rms_norm_eps", "1e999", "1e999" },
        { "max_position_embeddings", "0", "0" },
        { "moe_routed_scaling_factor", "0", "0 is not" },
        { "moe_router_logit_softcapping", "-1", "-1" },
        { "moe_router_score_func", "\"softmax\"", "\"softmax\"" },
        { "moe_apply_router_weight_on_input", "true", "not supported" },
        { "swa_attention_sink_enabled", "true", "not supported" },
        { "attention_bias", "true", "not supported" },
        { "attention_bias", "1", "true nor false" },
        { "tie_word_embeddings", "true", "not supported" },
        { "hidden_act", "\"gelu\"", "\"gelu\"" },
        { "gating_types", "[\"per_head\",\"per_head\",\"per_head\",\"both\"]", "\"both\"" },
        { "architectures", "[\"Qwen3MoeForCausalLM\"]", "expects LagunaForCausalLM" },
        { "architectures", "[\"DFlashLagunaForCausalLM\"]", "expects LagunaForCausalLM" },
        { "model_type", "\"mystery\"", "mystery" },
        { "model_type", "5", "not a string" },
        { "eos_token_id", "[2,100352]", "100352" },
        { "eos_token_id", "-2", "-2" },
        { "eos_token_id", "[2,\"24\"]", "\"24\"" },
        { "eos_token_id", "[1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17]", "more than 16" },
        { "pad_token_id", "100352", "100352" },
        { "bos_token_id", "1.5", "1.5" },
    };
    static const char *const texts[] = { "", "[]", "null", "{", "{}", "\"x\"", "{\"a\":1}x",
                                         "{\"model_type\":\"laguna\",\"model_type\":\"laguna\"}" };
    const char *key;
    size_t i;
    int rc;

    for (i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        rc = EDIT(bad[i][0], bad[i][1]);
        key = strrchr(bad[i][0], '.');
        key = key ? key + 1 : bad[i][0];
        ok(rc == -EBADMSG && strstr(e.text, "config.json: ") && strstr(e.text, bad[i][2]) &&
           (strstr(e.text, key) || strstr(e.text, "num_attention_heads") ||
            strstr(e.text, "rope_")), "%s %s: %s", bad[i][0], bad[i][1] ? bad[i][1] : "gone",
           e.text);
    }
    ok(EDIT("num_experts", "8") == -EBADMSG && strstr(e.text, "10 of 8"), "top 10 of 8: %s",
       e.text);
    ok(EDIT("model_type", NULL, "architectures", NULL) == -EBADMSG, "no name: %s", e.text);
    for (i = 0; i < sizeof(texts) / sizeof(texts[0]); i++)
        ok(read_text(texts[i]) == -EBADMSG && strstr(e.text, "config.json"), "%s: %s", texts[i],
           e.text);
}

static int generation(struct generation_defaults *g, const char *json)
{
    e.text[0] = 0;
    read_text(S21);
    return shape_read_generation(&s, g, json, strlen(json), "generation_config.json", &e);
}

static void test_generation(void)
{
    static const char *const bad[][2] = {
        { "{\"temperature\":NaN}", "generation_config.json" },
        { "{\"temperature\":-1}", "temperature" },
        { "{\"temperature\":1e999}", "temperature" },
        { "{\"top_p\":0}", "top_p" },
        { "{\"top_p\":1.1}", "top_p" },
        { "{\"min_p\":2}", "min_p" },
        { "{\"top_k\":1.5}", "top_k" },
        { "{\"do_sample\":\"yes\"}", "do_sample" },
        { "{\"eos_token_id\":[100352]}", "eos_token_id" },
        { "{\"eos_token_id\":[-1]}", "eos_token_id" },
        { "[]", "object" },
    };
    struct generation_defaults g;
    size_t i;

    ok(!generation(&g, "{}") && g.temperature == 1 && g.top_p == 1 && g.min_p == 0 &&
       g.top_k == 0 && !g.do_sample && s.eos_count == 2, "an empty generation_config");
    ok(!generation(&g, "{\"eos_token_id\":[24,30],\"temperature\":0.7,\"top_k\":20,"
                   "\"top_p\":0.9,\"min_p\":0.05,\"do_sample\":true}") && g.top_k == 20 &&
       g.temperature == 0.7f && g.top_p == 0.9f && g.min_p == 0.05f && g.do_sample, "values");
    ok(s.eos_count == 3 && s.eos[2] == 30, "the union of both files' eos ids");
    ok(!generation(&g, "{\"eos_token_id\":3,\"top_k\":-1}") && s.eos_count == 3 && !g.top_k,
       "one id, top_k off");
    for (i = 0; i < sizeof(bad) / sizeof(bad[0]); i++)
        ok(generation(&g, bad[i][0]) == -EBADMSG && strstr(e.text, bad[i][1]), "%s: %s",
           bad[i][0], e.text);
}

static void test_nano(void)
{
    char *dir = source_path("models/nano"), *json;
    size_t n;

    json = read_file(dir, "config.json", &n);
    ok(!shape_read(&s, json, n, "config.json", &e), "nano's config.json");
    ok(s.layers == 8 && s.sparse_layers == 7 && s.experts == 128 && s.window == 64 &&
       s.rope_full.dims == 32 && s.rope_window.dims == 64, "its dimensions");
    free(json);
    free(dir);
}

int main(void)
{
    test_s21();
    test_rope();
    test_forms();
    test_refusals();
    test_generation();
    test_nano();
    return done();
}
