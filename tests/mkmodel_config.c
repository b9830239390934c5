/* The text files of a checkpoint: configuration, template and a tokenizer of the right
 * size, whose merges are valid although nobody trained them. */
#include "tests/mkmodel.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>

FILE *file_create(const struct plan *p, const char *name, struct err *e)
{
    char path[4096];
    FILE *f;

    snprintf(path, sizeof(path), "%s/%s", p->out, name);
    f = fopen(path, "we");
    if (!f)
        fail(e, -errno, "%s: %s", path, strerror(errno));
    return f;
}

int file_close(FILE *f, const char *name, struct err *e)
{
    bool bad = ferror(f);

    if (fclose(f) || bad)
        return fail(e, -EIO, "%s could not be written", name);
    return 0;
}

static int copy(const struct plan *p, const char *name, struct err *e)
{
    char path[4096], buffer[65536];
    FILE *from, *to;
    size_t n;

    snprintf(path, sizeof(path), "%s/%s", p->like, name);
    from = fopen(path, "re");
    if (!from)
        return fail(e, -errno, "%s: %s (--like names a checkpoint)", path, strerror(errno));
    to = file_create(p, name, e);
    if (!to) {
        fclose(from);
        return -EIO;
    }
    while ((n = fread(buffer, 1, sizeof(buffer), from)) > 0)
        fwrite(buffer, 1, n, to);
    fclose(from);
    return file_close(to, name, e);
}

static const char *attention_type(int layer)
{
    return layer_is_full(layer) ? "full_attention" : "sliding_attention";
}

static const char *mlp_type(int layer)
{
    return layer ? "sparse" : "dense";
}

static const char *gating_type(int layer)
{
    (void)layer;
    return "per_head";
}

/* "key": one word a layer. */
static void put_words(FILE *f, const struct plan *p, const char *key, const char *(*word)(int))
{
    fprintf(f, "  \"%s\": [", key);
    for (int i = 0; i < p->layers; i++)
        fprintf(f, "%s\n    \"%s\"", i ? "," : "", word(i));
    fputs("\n  ],\n", f);
}

static void put_heads(FILE *f, const struct plan *p)
{
    fputs("  \"num_attention_heads_per_layer\": [", f);
    for (int i = 0; i < p->layers; i++)
        fprintf(f, "%s\n    %d", i ? "," : "", layer_heads(p, i));
    fputs("\n  ],\n", f);
}

/* One config group: what its targets are and how they are packed. */
static void put_group(FILE *f, int number, enum format format, bool named, const char *targets)
{
    const char *name = format == W4A16 ? "pack-quantized" : "mxfp4-pack-quantized";

    fprintf(f, "%s\n      \"group_%d\": {\n        \"targets\": [%s],\n", number ? "," : "", number,
            targets);
    if (named)
        fprintf(f, "        \"format\": \"%s\",\n", name);
    fprintf(f,
            "        \"weights\": {\n"
            "          \"num_bits\": 4,\n"
            "          \"type\": \"%s\",\n"
            "          \"symmetric\": true,\n"
            "          \"strategy\": \"group\",\n"
            "          \"group_size\": %d,\n"
            "          \"actorder\": null,\n"
            "          \"block_structure\": null,\n"
            "          \"dynamic\": false,\n"
            "%s"
            "          \"observer\": \"minmax\",\n"
            "          \"observer_kwargs\": {}\n"
            "        },\n"
            "        \"input_activations\": null,\n"
            "        \"output_activations\": null\n"
            "      }",
            format == W4A16 ? "int" : "float", GROUP,
            format == W4A16 ? ""
                            : "          \"scale_dtype\": \"torch.uint8\",\n"
                              "          \"zp_dtype\": \"torch.uint8\",\n");
}

/* The experts of all layers that have the format, as a list of patterns. */
static void put_mixed_group(FILE *f, const struct plan *p, int *number, enum format format)
{
    char targets[8192] = "";
    size_t n = 0;

    for (int i = 1; i < p->layers; i++)
        if (expert_format(p, i) == format)
            n += (size_t)snprintf(targets + n, sizeof(targets) - n,
                                  "%s\"re:.*layers\\\\.%d\\\\.mlp\\\\.experts\\\\.\\\\d+\\\\..*\"",
                                  n ? ", " : "", i);
    if (n)
        put_group(f, (*number)++, format, true, targets);
}

static void put_quantization(FILE *f, const struct plan *p)
{
    static const char *const names[] = {
        [W4A16] = "pack-quantized",
        [MXFP4] = "mxfp4-pack-quantized",
        [MIXED] = "mixed-precision",
    };
    int number = 0;

    if (p->format == BF16)
        return;
    fprintf(f,
            ",\n  \"quantization_config\": {\n"
            "    \"quant_method\": \"compressed-tensors\",\n"
            "    \"format\": \"%s\",\n"
            "    \"quantization_status\": \"compressed\",\n"
            "    \"global_compression_ratio\": null,\n"
            "    \"kv_cache_scheme\": null,\n"
            "    \"config_groups\": {",
            names[p->format]);
    if (p->format == W4A16) {
        put_group(f, 0, W4A16, false, "\"Linear\"");
    } else if (p->format == MXFP4) {
        put_group(f, 0, MXFP4, false, "\"re:.*mlp\\\\.experts\\\\..*_proj$\"");
    } else {
        put_mixed_group(f, p, &number, MXFP4);
        put_mixed_group(f, p, &number, W4A16);
    }
    fputs("\n    },\n    \"ignore\": [\n"
          "      \"lm_head\",\n"
          "      \"re:.*mlp.gate$\",\n"
          "      \"re:.*g_proj$\"",
          f);
    if (p->format != W4A16)
        fputs(",\n      \"re:.*self_attn.*\",\n"
              "      \"re:.*shared_expert.*\",\n"
              "      \"re:.*layers\\\\.0\\\\.mlp.*\"",
              f);
    if (p->format == MIXED)
        fprintf(f, ",\n      \"re:.*layers\\\\.%d\\\\.mlp.*\"", p->layers - 1);
    fputs("\n    ]\n  }", f);
}

static void put_rope(FILE *f, const struct plan *p)
{
    fprintf(f,
            "  \"rope_parameters\": {\n"
            "    \"full_attention\": {\n"
            "      \"rope_type\": \"yarn\",\n"
            "      \"rope_theta\": 500000.0,\n"
            "      \"factor\": %d.0,\n"
            "      \"original_max_position_embeddings\": %d,\n"
            "      \"beta_slow\": 1.0,\n"
            "      \"beta_fast\": 32.0,\n"
            "      \"attention_factor\": %.17g,\n"
            "      \"partial_rotary_factor\": 0.5\n"
            "    },\n"
            "    \"sliding_attention\": {\n"
            "      \"rope_type\": \"default\",\n"
            "      \"rope_theta\": 10000.0,\n"
            "      \"partial_rotary_factor\": 1.0\n"
            "    }\n"
            "  },\n",
            p->rope_factor, p->rope_original, 0.1 * log(p->rope_factor) + 1);
}

static int config_json(const struct plan *p, struct err *e)
{
    FILE *f = file_create(p, "config.json", e);

    if (!f)
        return -EIO;
    fprintf(f,
            "{\n"
            "  \"architectures\": [\n    \"LagunaForCausalLM\"\n  ],\n"
            "  \"model_type\": \"laguna\",\n"
            "  \"vocab_size\": %d,\n"
            "  \"hidden_size\": %d,\n"
            "  \"intermediate_size\": %d,\n"
            "  \"num_hidden_layers\": %d,\n"
            "  \"head_dim\": %d,\n"
            "  \"num_attention_heads\": %d,\n"
            "  \"num_key_value_heads\": %d,\n"
            "  \"sliding_window\": %d,\n",
            p->vocab, p->hidden, p->dense_inner, p->layers, p->head_dim, p->heads_full, p->kv_heads,
            p->window);
    put_heads(f, p);
    put_words(f, p, "layer_types", attention_type);
    put_words(f, p, "mlp_layer_types", mlp_type);
    put_words(f, p, "gating_types", gating_type);
    put_rope(f, p);
    fprintf(f,
            "  \"gating\": \"per-head\",\n"
            "  \"mlp_only_layers\": [\n    0\n  ],\n"
            "  \"decoder_sparse_step\": 1,\n"
            "  \"num_experts\": %d,\n"
            "  \"num_experts_per_tok\": %d,\n"
            "  \"moe_intermediate_size\": %d,\n"
            "  \"shared_expert_intermediate_size\": %d,\n"
            "  \"norm_topk_prob\": true,\n"
            "  \"moe_routed_scaling_factor\": 2.5,\n"
            "  \"moe_router_logit_softcapping\": 0.0,\n"
            "  \"moe_apply_router_weight_on_input\": false,\n"
            "  \"router_aux_loss_coef\": 0.0,\n"
            "  \"output_router_logits\": false,\n"
            "  \"hidden_act\": \"silu\",\n"
            "  \"rms_norm_eps\": 1e-06,\n"
            "  \"attention_bias\": false,\n"
            "  \"attention_dropout\": 0.0,\n"
            "  \"tie_word_embeddings\": false,\n"
            "  \"max_position_embeddings\": %d,\n"
            "  \"bos_token_id\": 2,\n"
            "  \"eos_token_id\": [\n    2,\n    24\n  ],\n"
            "  \"pad_token_id\": 9,\n"
            "  \"torch_dtype\": \"bfloat16\",\n"
            "  \"use_cache\": true",
            p->experts, p->topk, p->expert_inner, p->shared_inner,
            p->rope_factor * p->rope_original);
    put_quantization(f, p);
    fputs("\n}\n", f);
    return file_close(f, "config.json", e);
}

int config_write(const struct plan *p, struct err *e)
{
    int rc = config_json(p, e);

    if (!rc)
        rc = copy(p, "generation_config.json", e);
    if (!rc)
        rc = copy(p, "tokenizer_config.json", e);
    if (!rc)
        rc = copy(p, "chat_template.jinja", e);
    if (!rc)
        rc = p->vocab == 4096 ? copy(p, "tokenizer.json", e) : tokenizer_write(p, e);
    return rc;
}
