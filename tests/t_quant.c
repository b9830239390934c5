/* quantization_config: which module is stored how (case L-07), and what is refused by name
 * (row B09 and the formats that are not read). */
#include "src/quant.h"
#include "tests/tap.h"

#include <errno.h>
#include <stdlib.h>

#define INT4 "\"weights\":{\"num_bits\":4,\"type\":\"int\",\"symmetric\":true," \
             "\"strategy\":\"group\",\"group_size\":32}"
#define INT8 "\"weights\":{\"num_bits\":8,\"type\":\"int\",\"symmetric\":true," \
             "\"strategy\":\"channel\"}"
#define MX4 "\"weights\":{\"num_bits\":4,\"type\":\"float\",\"symmetric\":true," \
            "\"strategy\":\"group\",\"group_size\":32,\"scale_dtype\":\"torch.uint8\"}"

static struct quant *q;
static struct err e;

static int read_text(const char *text)
{
    quant_free(q);
    e.text[0] = 0;
    return quant_read(&q, text, strlen(text), "config.json", &e);
}

/* Read a configuration with these members of quantization_config. */
static int read_members(const char *members)
{
    char text[4096];

    snprintf(text, sizeof(text), "{\"quantization_config\":{%s}}", members);
    return read_text(text);
}

/* One group of Linears with these weights. */
static int read_weights(const char *format, const char *weights)
{
    char text[2048];

    snprintf(text, sizeof(text), "\"quant_method\":\"compressed-tensors\",\"format\":\"%s\","
             "\"config_groups\":{\"g\":{\"targets\":[\"Linear\"],\"weights\":{%s}}}", format,
             weights);
    return read_members(text);
}

static const struct scheme *look(const char *module)
{
    const struct scheme *s = NULL;
    int rc = quant_find(q, module, &s, &e);

    return rc ? NULL : s;
}

static void test_targets(void)
{
    const struct scheme *s;

    ok(!read_members("\"format\":\"mixed-precision\",\"config_groups\":{"
                     "\"a\":{\"targets\":[\"Linear\"],\"format\":\"pack-quantized\"," INT4 "},"
                     "\"b\":{\"targets\":[\"re:.*experts.*\"],\"format\":\"mxfp4-pack-quantized\","
                     MX4 "},"
                     "\"c\":{\"targets\":[\"m.experts.0.up\",\"re:self\"],\"format\":"
                     "\"pack-quantized\"," INT8 "}},"
                     "\"ignore\":[\"lm_head\",\"re:.*mlp\\\\.gate$\","
                     "\"re:model\\\\.layers\\\\.0\"]"),
       "three groups %s", e.text);
    s = look("model.layers.1.mlp.up_proj");
    ok(s && s->format == W_INT4 && s->group == 32 && s->symmetric && !s->plain, "by class");
    s = look("model.layers.1.mlp.experts.3.up_proj");
    ok(s && s->format == W_MXFP4 && s->group == 32, "a pattern wins over the class");
    s = look("m.experts.0.up");
    ok(s && s->format == W_INT8 && s->group == 0, "an exact name wins over a pattern");
    ok(!look("lm_head") && look("lm_head2"), "ignored by exact name");
    ok(!look("model.layers.1.mlp.gate") && look("model.layers.1.mlp.gate_proj"),
       "ignored by pattern, anchored by its own $");
    s = look("model.layers.1.self_attn.q_proj");
    ok(s && s->format == W_INT4, "a pattern must match at the start");
    s = look("self_attn.q_proj");
    ok(s && s->format == W_INT8, "and need not reach the end");
    ok(!look("model.layers.0.mlp.up_proj") && look("xmodel.layers.0.mlp.up_proj"),
       "so for ignore");
}

static void test_formats(void)
{
    const struct scheme *s;

    ok(!read_text("{}") && !q && !look("x"), "no quantisation");
    ok(!read_weights("pack-quantized", "\"num_bits\":4,\"group_size\":128,\"strategy\":\"group\","
                     "\"symmetric\":false,\"actorder\":\"weight\"") && (s = look("x")) &&
       s->format == W_INT4 && !s->symmetric && s->group == 128, "asymmetric, actorder weight");
    ok(!read_weights("int-quantized", "\"num_bits\":8,\"strategy\":\"channel\"") &&
       (s = look("x")) && s->format == W_INT8 && s->plain && !s->group, "int-quantized");
    ok(!read_weights("pack-quantized", "\"num_bits\":8,\"strategy\":\"group\",\"group_size\":-1")
       && (s = look("x")) && !s->group, "group_size -1 is the whole row");
    ok(!read_weights("mxfp4-pack-quantized", "\"num_bits\":4,\"type\":\"float\",\"group_size\":32")
       && (s = look("x")) && s->format == W_MXFP4, "MXFP4 without a strategy");
    ok(!read_weights("dense", "\"num_bits\":4") && !look("x"), "dense");
    ok(!read_members("\"format\":\"pack-quantized\",\"config_groups\":{\"g\":{\"targets\":"
                     "[\"Linear\"],\"weights\":null}}") && !look("x"), "a group of no weights");
    ok(!read_members("\"format\":\"pack-quantized\",\"config_groups\":{\"g\":{\"targets\":"
                     "[\"Linear\"]," INT4 "}},\"ignore\":[\"Linear\"]") && !look("x"),
       "every Linear ignored");
}

static void refused(int rc, const char *words, const char *what)
{
    ok(rc == -EBADMSG && strstr(e.text, "config.json") && strstr(e.text, words), "%s: %s", what,
       e.text);
}

static void test_refusals(void)
{
    static const char *const formats[][2] = {
        { "nvfp4-pack-quantized", "NVFP4" }, { "float-quantized", "FP8" },
        { "naive-quantized", "FP8" }, { "mxfp8-quantized", "MXFP8" }, { "marlin-24", "Marlin" },
        { "sparse-24-bitmask", "sparse" }, { "frobnicated", "unknown" },
    };
    static const char *const methods[] = { "gptq", "awq", "fp8", "bitsandbytes", "mxfp4" };
    static const char *const weights[][2] = {
        { "\"num_bits\":3,\"group_size\":32", "num_bits 3" },
        { "\"num_bits\":2,\"group_size\":32", "num_bits 2" },
        { "\"num_bits\":16,\"group_size\":32", "num_bits 16" },
        { "\"num_bits\":0,\"group_size\":32", "num_bits" },
        { "\"group_size\":32", "num_bits" },
        { "\"num_bits\":4,\"type\":\"float\",\"group_size\":32", "float" },
        { "\"num_bits\":4,\"group_size\":0,\"strategy\":\"group\"", "group_size" },
        { "\"num_bits\":4,\"group_size\":7", "group_size" },
        { "\"num_bits\":4,\"group_size\":48", "multiple of 32" },
        { "\"num_bits\":4,\"group_size\":1099511627776", "1099511627776" },
        { "\"num_bits\":4,\"strategy\":\"group\"", "group_size" },
        { "\"num_bits\":4,\"group_size\":16,\"strategy\":\"tensor_group\"", "tensor_group" },
        { "\"num_bits\":4,\"strategy\":\"tensor\"", "tensor" },
        { "\"num_bits\":4,\"strategy\":\"block\"", "block" },
        { "\"num_bits\":4,\"group_size\":32,\"actorder\":\"group\"", "g_idx" },
        { "\"num_bits\":4,\"group_size\":32,\"actorder\":\"dynamic\"", "g_idx" },
        { "\"num_bits\":4,\"group_size\":32,\"actorder\":true", "g_idx" },
        { "\"num_bits\":4,\"group_size\":32,\"symmetric\":1", "symmetric" },
    };
    char text[512];
    size_t i;

    for (i = 0; i < sizeof(formats) / sizeof(formats[0]); i++)
        refused(read_weights(formats[i][0], "\"num_bits\":4,\"group_size\":32"), formats[i][1],
                formats[i][0]);
    refused(read_members("\"format\":\"mixed-precision\",\"config_groups\":{\"g\":{\"targets\":"
                         "[\"Linear\"],\"format\":\"float-quantized\"," INT4 "}}"), "FP8",
            "a group's own format");
    refused(read_members("\"config_groups\":{\"g\":{\"targets\":[\"Linear\"]," INT4 "}}"),
            "without a format", "no format at all");
    for (i = 0; i < sizeof(methods) / sizeof(methods[0]); i++) {
        snprintf(text, sizeof(text), "\"quant_method\":\"%s\",\"bits\":4", methods[i]);
        refused(read_members(text), methods[i], methods[i]);
    }
    for (i = 0; i < sizeof(weights) / sizeof(weights[0]); i++)
        refused(read_weights("pack-quantized", weights[i][0]), weights[i][1], weights[i][0]);
    refused(read_weights("int-quantized", "\"num_bits\":4,\"group_size\":32"), "num_bits 4",
            "int-quantized of 4 bits");
    refused(read_weights("int-quantized", "\"num_bits\":8,\"group_size\":32,\"symmetric\":false"),
            "zero points", "int-quantized with zero points");
    refused(read_weights("mxfp4-pack-quantized", "\"num_bits\":4,\"type\":\"float\","
                         "\"group_size\":64"), "64", "MXFP4 in groups of 64");
    refused(read_weights("mxfp4-pack-quantized", "\"num_bits\":4,\"type\":\"int\","
                         "\"group_size\":32"), "int", "MXFP4 of integers");
    refused(read_members("\"format\":\"dense\",\"config_groups\":{},\"sparsity_config\":"
                         "{\"format\":\"sparse-bitmask\"}"), "sparse", "sparsity_config");
    refused(read_members("\"format\":\"dense\",\"config_groups\":{},\"transform_config\":"
                         "{\"config_groups\":{}}"), "rotated", "transform_config");
    refused(read_members("\"format\":\"dense\""), "config_groups", "no groups");
    refused(read_members("\"format\":\"dense\",\"config_groups\":{\"g\":5}"), "object",
            "a group is a number");
    refused(read_members("\"format\":\"dense\",\"config_groups\":{},\"ignore\":\"lm_head\""),
            "ignore", "ignore is a string");
    refused(read_members("\"format\":\"dense\",\"config_groups\":{},\"ignore\":[5]"), "ignore",
            "ignore holds a number");
    refused(read_text("{\"quantization_config\":[]}"),
            "not an object", "a list");
}

static void test_patterns(void)
{
    char long_name[301], *text = malloc(1 << 16);
    const struct scheme *s;
    size_t used;
    int i;

    refused(read_members("\"format\":\"dense\",\"config_groups\":{},\"ignore\":[\"re:(\"]"),
            "pattern", "a pattern that does not compile");
    memset(long_name, 'a', 300);
    long_name[299] = '!';
    long_name[300] = 0;
    ok(!read_members("\"format\":\"dense\",\"config_groups\":{},\"ignore\":[\"re:(a|aa)+$\"]"),
       "a pattern that explodes");
    ok(quant_find(q, long_name, &s, &e) == -EBADMSG && strstr(e.text, "(a|aa)+$"),
       "is stopped by its limit: %s", e.text);
    used = (size_t)sprintf(text, "{\"quantization_config\":{\"format\":\"dense\","
                           "\"config_groups\":{},\"ignore\":[\"x\"");
    for (i = 0; i < 257; i++)
        used += (size_t)sprintf(text + used, ",\"re:p%d\"", i);
    sprintf(text + used, "]}}");
    refused(read_text(text), "more than 256",
            "257 patterns");

    used = (size_t)sprintf(text, "{\"quantization_config\":{\"format\":\"pack-quantized\","
                           "\"config_groups\":{\"g\":{\"targets\":[\"Linear\"]," INT4
                           "}},\"ignore\":[\"x\"");
    for (i = 1787; i >= 0; i--)
        used += (size_t)sprintf(text + used, ",\"model.layers.%d.m\"", i);
    sprintf(text + used, "]}}");
    ok(!read_text(text), "an ignore list of 1,789 names");
    ok(!look("model.layers.0.m") && !look("model.layers.1787.m") && !look("x") &&
       look("model.layers.1788.m"), "each is found");
    free(text);
}

int main(void)
{
    test_targets();
    test_formats();
    test_refusals();
    test_patterns();
    quant_free(q);
    return done();
}
