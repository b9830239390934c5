/* A checkpoint bound to the architecture: every name that laguna.md section 3 lists, every
 * storage of section 4, and damaged checkpoints (rows A14 to A17, A28, B07, cases L-01 to
 * L-04, L-07 to L-09, M-02), made from the two-layer cuts in tests/data. */
#include "src/json.h"
#include "src/model.h"
#include "src/ref.h"
#include "tests/files.h"
#include "tests/tap.h"

#include <assert.h>
#include <errno.h>
#include <math.h>

/* One tensor of a checkpoint under construction. */
struct item {
    char name[160];
    char dtype[12];
    int rank;
    int64_t dim[4];
    size_t bytes;
    unsigned char *data;
};

struct build {
    struct item item[512];
    int items;
    cJSON *config;
};

static struct build b;
static struct err e;
static struct log quiet;

static void drop_all(void)
{
    int i;

    for (i = 0; i < b.items; i++)
        free(b.item[i].data);
    b.items = 0;
    cJSON_Delete(b.config);
    b.config = NULL;
}

/* Start from a cut: tests/data/nano-KIND-1. */
static void start(const char *kind)
{
    char name[64], *dir, *text;
    struct checkpoint *c;
    size_t i;
    int k;

    drop_all();
    snprintf(name, sizeof(name), "tests/data/nano-%s-1", kind);
    dir = source_path(name);
    quiet = (struct log){ .level = LOG_QUIET };
    if (checkpoint_open(&c, dir, &quiet, &e)) {
        printf("Bail out! %s\n", e.text);
        exit(99);
    }
    for (i = 0; i < checkpoint_count(c); i++) {
        const struct tensor *t = checkpoint_tensor(c, i);
        struct item *x = &b.item[b.items++];

        snprintf(x->name, sizeof(x->name), "%s", t->name);
        snprintf(x->dtype, sizeof(x->dtype), "%s", dtype_name(t->dtype));
        x->rank = t->rank;
        for (k = 0; k < t->rank; k++)
            x->dim[k] = t->dim[k];
        x->bytes = t->bytes;
        x->data = malloc(t->bytes);
        checkpoint_read(c, t, x->data, &e);
    }
    checkpoint_close(c);
    text = read_file(dir, "config.json", NULL);
    b.config = cJSON_Parse(text);
    free(text);
    free(dir);
}

/* The first tensor whose name holds the word. */
static struct item *named(const char *word)
{
    int i;

    for (i = 0; i < b.items; i++)
        if (strstr(b.item[i].name, word))
            return &b.item[i];
    printf("Bail out! no tensor %s\n", word);
    exit(99);
}

static void drop(const char *word)
{
    struct item *x = named(word);

    free(x->data);
    *x = b.item[--b.items];
}

static struct item *add(const char *name, const char *dtype, int64_t d0, int64_t d1, size_t bytes)
{
    struct item *x = &b.item[b.items++];

    memset(x, 0, sizeof(*x));
    snprintf(x->name, sizeof(x->name), "%s", name);
    snprintf(x->dtype, sizeof(x->dtype), "%s", dtype);
    x->rank = (d0 >= 0) + (d1 >= 0);
    x->dim[0] = d0;
    x->dim[1] = d1;
    x->bytes = bytes;
    x->data = calloc(bytes, 1);
    return x;
}

/* In every name, `from` becomes `to`. */
static void rename_all(const char *from, const char *to)
{
    char name[400], *at;
    int i;

    for (i = 0; i < b.items; i++) {
        at = strstr(b.item[i].name, from);
        if (!at)
            continue;
        snprintf(name, sizeof(name), "%.*s%s%s", (int)(at - b.item[i].name), b.item[i].name, to,
                 at + strlen(from));
        snprintf(b.item[i].name, sizeof(b.item[i].name), "%.159s", name);
    }
}

static void set_config(const char *key, const char *value)
{
    cJSON_DeleteItemFromObjectCaseSensitive(b.config, key);
    if (value)
        cJSON_AddItemToObject(b.config, key, cJSON_Parse(value));
}

/* The first group's member. */
static void set_weights(const char *key, const char *value)
{
    cJSON *o = cJSON_GetObjectItemCaseSensitive(b.config, "quantization_config");

    o = cJSON_GetObjectItemCaseSensitive(o, "config_groups")->child;
    o = cJSON_GetObjectItemCaseSensitive(o, "weights");
    cJSON_DeleteItemFromObjectCaseSensitive(o, key);
    cJSON_AddItemToObject(o, key, cJSON_Parse(value));
}

static void write_all(const char *dir)
{
    char *head = malloc(1 << 18), *json = cJSON_PrintUnformatted(b.config);
    size_t at = 0, used = 1;
    unsigned char *data;
    int i, k;

    head[0] = '{';
    for (i = 0; i < b.items; i++) {
        const struct item *x = &b.item[i];

        used += (size_t)sprintf(head + used, "%s\"%s\":{\"dtype\":\"%s\",\"shape\":[",
                                i ? "," : "", x->name, x->dtype);
        for (k = 0; k < x->rank; k++)
            used += (size_t)sprintf(head + used, "%s%jd", k ? "," : "", (intmax_t)x->dim[k]);
        used += (size_t)sprintf(head + used, "],\"data_offsets\":[%zu,%zu]}", at, at + x->bytes);
        at += x->bytes;
    }
    sprintf(head + used, "}");
    data = malloc(at);
    for (i = 0, at = 0; i < b.items; at += b.item[i++].bytes)
        memcpy(data + at, b.item[i].data, b.item[i].bytes);
    write_shard(dir, "model.safetensors", head, data, at);
    write_file(dir, "config.json", json, strlen(json));
    free(data);
    free(head);
    cJSON_free(json);
}

/* Write, open, load; NULL and the words where that fails. */
static struct model *build(void)
{
    char *dir = temp_dir();
    struct model *m = NULL;
    int rc;

    write_all(dir);
    quiet = (struct log){ .level = LOG_QUIET };
    e.text[0] = 0;
    rc = model_open(&m, dir, &quiet, &e);
    if (!rc)
        rc = model_load_dense(m, 2, NULL, NULL, &e);
    if (!rc)
        e.text[0] = 0;
    if (rc) {
        model_close(m);
        m = NULL;
        if (rc != -EBADMSG)
            snprintf(e.text, sizeof(e.text), "status %d instead of 65", exit_status(rc));
    }
    remove_dir(dir);
    return m;
}

static void builds(const char *what)
{
    struct model *m = build();

    ok(m, "%s %s", what, e.text);
    model_close(m);
}

static void refused(const char *word, const char *words, const char *what)
{
    struct model *m = build();

    ok(!m && strstr(e.text, word) && strstr(e.text, words) && !strchr(e.text, '\n'), "%s: %s",
       what, e.text);
    model_close(m);
}

/* The bytes of an expert, its matrices pointing into them. */
static struct ffn read_expert(const struct model *m, int layer, int id, unsigned char **out)
{
    const struct expert_source *x = model_expert(m, layer, id);
    struct ffn f = x->ffn;
    struct matrix *mat[3] = { &f.gate, &f.up, &f.down };
    size_t total = 0, at = 0;
    int i;

    for (i = 0; i < EXPERT_PARTS; i++)
        total += x->part[i].shard < 0 ? 0 : x->part[i].bytes;
    *out = malloc(total);
    for (i = 0; i < EXPERT_PARTS; i++) {
        const struct part *p = &x->part[i];
        const void **to[3] = { &mat[i / 3]->weight, &mat[i / 3]->scale, &mat[i / 3]->zero };

        if (p->shard < 0)
            continue;
        if (pread(checkpoint_fd(m->checkpoint, p->shard), *out + at, p->bytes,
                  (off_t)p->offset) != (ssize_t)p->bytes)
            exit(99);
        *to[i % 3] = *out + at;
        at += p->bytes;
    }
    return f;
}

/* Signal to noise of a against the truth, in dB, over all elements. */
static double snr(const struct matrix *a, const struct matrix *truth)
{
    float *x = malloc(sizeof(float) * (size_t)a->cols), *y = malloc(sizeof(float) *
                                                                   (size_t)a->cols);
    double signal = 0, noise = 1e-30;
    int r, c;

    if (a->rows != truth->rows || a->cols != truth->cols)
        return -1;
    for (r = 0; r < a->rows; r++) {
        ref_row(x, a, r);
        ref_row(y, truth, r);
        for (c = 0; c < a->cols; c++) {
            signal += (double)y[c] * y[c];
            noise += (double)(x[c] - y[c]) * (x[c] - y[c]);
        }
    }
    free(x);
    free(y);
    return 10 * log10(signal / noise);
}

static struct model *open_named(const char *name)
{
    char *dir = source_path(name);
    struct model *m = NULL;

    quiet = (struct log){ .level = LOG_QUIET };
    if (access(dir, F_OK) || model_open(&m, dir, &quiet, &e) ||
        model_load_dense(m, 3, NULL, NULL, &e)) {
        model_close(m);
        m = NULL;
    } else {
        e.text[0] = 0;
    }
    free(dir);
    return m;
}

/* Every matrix of q, dequantised, is close to the same one in BF16. */
static void compare(const char *what, const struct model *q, const struct model *truth)
{
    unsigned char *x, *y;
    struct ffn f, g;
    double worst = 1000, d;
    int i, k, last = q->shape.experts - 1;

    for (i = 0; i < q->shape.layers; i++) {
        const struct layer_weights *v = &q->layer[i], *w = &truth->layer[i];
        const struct matrix *a[] = { &v->q, &v->k, &v->v, &v->o, &v->g, &v->ffn.gate, &v->ffn.up,
                                     &v->ffn.down };
        const struct matrix *z[] = { &w->q, &w->k, &w->v, &w->o, &w->g, &w->ffn.gate, &w->ffn.up,
                                     &w->ffn.down };

        for (k = 0; k < 8; k++) {
            d = snr(a[k], z[k]);
            worst = d < worst ? d : worst;
        }
        if (q->sparse_index[i] < 0)
            continue;
        f = read_expert(q, i, last, &x);
        g = read_expert(truth, i, last, &y);
        d = fmin(snr(&f.gate, &g.gate), fmin(snr(&f.up, &g.up), snr(&f.down, &g.down)));
        worst = d < worst ? d : worst;
        free(x);
        free(y);
    }
    ok(worst > 15, "%s: the worst matrix is %.1f dB from BF16", what, worst);
    ok(!memcmp(q->layer[1].attn_norm, truth->layer[1].attn_norm,
               sizeof(float) * (size_t)q->shape.hidden), "%s: the same norms", what);
}

static void test_nano(void)
{
    struct model *m = open_named("models/nano");

    ok(m && !quiet.notices, "nano opens and loads without a word %s", m ? "" : e.text);
    if (!m)
        return;
    ok(m->embed.rows == 4096 && m->embed.format == W_BF16 && m->head.weight, "embedding, head");
    ok(m->layer[0].q.format == W_INT4 && m->layer[0].q.group == 32 && m->layer[0].q.scale &&
       !m->layer[0].q.zero, "int4 attention");
    ok(m->layer[0].g.format == W_BF16 && m->layer[0].g.rows == 12, "BF16 gate");
    ok(m->sparse_index[0] == -1 && m->sparse_index[7] == 6, "rows of sparse layers");
    ok(model_expert(m, 7, 127)->part[0].shard == 3 && model_expert(m, 1, 0)->part[2].shard == -1,
       "experts' places");
    ok(m->expert_bytes == 7 * 128 * 3 * (32 * 256 / 2 + 32 * 256 / 32 * 2), "expert bytes");
    ok((uintptr_t)m->layer[3].o.weight % 64 == 0 && (uintptr_t)m->layer[3].q_norm % 64 == 0,
       "aligned to 64 bytes");
    ok(m->layer[1].k_scale == 1 && !m->kv_scales, "no cache scales");
    ok(m->shape.eos_count == 2 && m->defaults.top_k == 20 && m->defaults.temperature == 0.7f,
       "generation_config");
    model_close(m);
}

static void test_formats(void)
{
    static const char *const others[] = { "../shared/nano/variants/asym32",
                                          "../shared/nano/variants/groups",
                                          "../shared/nano/variants/mixed",
                                          "../shared/nano/variants/int8attn" };
    struct model *truth = open_named("tests/data/nano-bf16-1");
    struct model *int4 = open_named("tests/data/nano-w4a16-1");
    struct model *mxfp4 = open_named("tests/data/nano-mxfp4-1"), *m;
    size_t i;

    ok(truth && int4 && mxfp4, "the cuts open %s", e.text);
    if (truth && int4 && mxfp4) {
        compare("int4", int4, truth);
        compare("MXFP4", mxfp4, truth);
        ok(model_expert(mxfp4, 1, 0)->ffn.gate.format == W_MXFP4 &&
           model_expert(truth, 1, 0)->ffn.gate.format == W_BF16, "formats of the experts");
    }
    model_close(truth);
    model_close(int4);
    model_close(mxfp4);
    truth = open_named("../shared/nano/bf16");
    for (i = 0; i < sizeof(others) / sizeof(others[0]); i++) {
        m = truth ? open_named(others[i]) : NULL;
        if (!truth)
            ok(1, "%s # SKIP not here", others[i]);
        else if (!m)
            ok(0, "%s: %s", others[i], e.text);
        else
            compare(others[i], m, truth);
        model_close(m);
    }
    model_close(truth);
}

/* All experts of layer 1 into two tensors. */
static void fuse(void)
{
    static const char where[] = "model.layers.1.mlp.experts";
    size_t part = 32 * 256 * 2;
    char name[160];
    struct item *up, *down;
    int i, k;

    snprintf(name, sizeof(name), "%s.gate_up_proj", where);
    up = add(name, "BF16", 8, 64, 8 * 2 * part);
    snprintf(name, sizeof(name), "%s.down_proj", where);
    down = add(name, "BF16", 8, 256, 8 * part);
    up->rank = down->rank = 3;
    up->dim[2] = 256;
    down->dim[2] = 32;
    for (i = 0; i < 8; i++)
        for (k = 0; k < 3; k++) {
            static const char *const proj[] = { "gate_proj", "up_proj", "down_proj" };
            unsigned char *to;

            snprintf(name, sizeof(name), "%s.%d.%s", where, i, proj[k]);
            up = named("experts.gate_up_proj");
            down = named("experts.down_proj");
            to = k < 2 ? up->data + (size_t)(2 * i + k) * part : down->data + (size_t)i * part;
            memcpy(to, named(name)->data, part);
            drop(name);
        }
}

static void test_names(void)
{
    struct model *truth = open_named("tests/data/nano-bf16-1"), *m;
    struct item *x;

    start("bf16");
    fuse();
    m = build();
    ok(m, "fused experts %s", e.text);
    if (m && truth)
        compare("fused experts", m, truth);
    model_close(m);
    model_close(truth);
    named("experts.gate_up_proj")->dim[1] = 32;
    named("experts.gate_up_proj")->dim[2] = 512;
    refused("gate_up_proj", "expected [8, 64, 256]", "fused experts of another shape");
    drop("experts.down_proj");
    refused("experts.down_proj", "missing", "fused experts without down_proj");

    start("bf16");
    rename_all("shared_expert.", "shared_experts.");
    builds("shared_experts");
    rename_all("mlp.experts.e_score_correction_bias", "mlp.gate.e_score_correction_bias");
    builds("the bias beside the router");
    rename_all("mlp.gate.e_score_correction_bias", "mlp.experts.e_score_correction");
    builds("the bias without _bias");
    rename_all("model.", "");
    builds("names without model.");
    x = named("0.self_attn.g_proj.weight");
    x->rank = 3;
    x->dim[2] = x->dim[1];
    x->dim[1] = 1;
    builds("g_proj with a dimension of 1");
    x = named("0.self_attn.g_proj.weight");
    x->dim[1] = x->dim[2];
    x->dim[2] = 1;
    builds("g_proj with a last dimension of 1");
    add("layers.0.self_attn.rotary_emb.inv_freq", "F32", 4, -1, 16);
    add("layers.1.mlp.experts.0.up_proj.input_global_scale", "F32", 1, -1, 4);
    m = build();
    ok(m && quiet.notices == 1 && strstr(quiet.notice[0], "2 tensors"),
       "useless tensors, reported once (L-07): %s", m ? quiet.notice[0] : e.text);
    model_close(m);
    add("layers.0.self_attn.secret", "F32", 1, -1, 4);
    refused("self_attn.secret", "not part", "an unknown tensor");
}

static void test_cache_scales(void)
{
    static const char *const names[] = { "k_scale", "attn.k_scale", "k_proj.k_scale",
                                         "k_proj.output_scale" };
    char name[160];
    struct model *m;
    float two = 2;
    size_t i;

    for (i = 0; i < 4; i++) {
        start("bf16");
        snprintf(name, sizeof(name), "model.layers.1.self_attn.%s", names[i]);
        memcpy(add(name, "F32", i % 2 ? 1 : -1, -1, 4)->data, &two, 4);
        m = build();
        ok(m && m->kv_scales && m->layer[1].k_scale == 2 && m->layer[1].v_scale == 1 &&
           m->layer[0].k_scale == 1, "%s %s", name, e.text);
        model_close(m);
    }
    memset(named("output_scale")->data, 0, 4);
    refused("output_scale", "no scale", "a cache scale of zero");
    named("output_scale")->dim[0] = 1;
    memset(named("output_scale")->data, 0xff, 4);
    refused("output_scale", "NaN", "a cache scale of NaN");
}

/* Values crowded within a few steps of BF16 keep their order as floats (M-02). */
static void test_bias(void)
{
    struct item *x;
    struct model *m;
    float value[8];
    uint16_t half[8];
    int i;

    start("bf16");
    x = named("e_score_correction_bias");
    for (i = 0; i < 8; i++)
        value[i] = 6.817f + (float)i * 0.001f;
    memcpy(x->data, value, sizeof(value));
    m = build();
    ok(m && !memcmp(m->layer[1].router_bias, value, sizeof(value)), "an F32 bias stays F32");
    model_close(m);
    for (i = 0; i < 8; i++)
        half[i] = ref_f16_from_f32((float)i - 3);
    x = named("e_score_correction_bias");
    memcpy(x->data, half, sizeof(half));
    snprintf(x->dtype, sizeof(x->dtype), "F16");
    x->bytes = sizeof(half);
    m = build();
    ok(m && m->layer[1].router_bias[0] == -3 && m->layer[1].router_bias[7] == 4, "an F16 bias");
    model_close(m);
    half[5] = 0x7c00;
    memcpy(named("e_score_correction_bias")->data, half, sizeof(half));
    refused("e_score_correction_bias", "element 5", "an infinite bias");
}

static void test_int8(void)
{
    struct item *x;
    struct model *m;
    float row[256];
    int i;

    start("bf16");
    set_config("quantization_config", "{\"format\":\"int-quantized\",\"config_groups\":{\"g\":{"
               "\"targets\":[\"re:.*self_attn.[qk]_proj\"],\"weights\":{\"num_bits\":8,"
               "\"type\":\"int\",\"strategy\":\"channel\"}}}}");
    x = named("0.self_attn.k_proj.weight");
    snprintf(x->dtype, sizeof(x->dtype), "I8");
    x->bytes /= 2;
    for (i = 0; i < 256; i++)
        x->data[i] = (unsigned char)(i - 128);
    x = add("model.layers.0.self_attn.k_proj.weight_scale", "BF16", 128, 1, 256);
    for (i = 0; i < 128; i++)
        memcpy(x->data + 2 * i, &(bf16){ f32_to_bf16(0.5f) }, 2);
    m = build();
    ok(m && m->layer[0].k.format == W_INT8 && m->layer[0].k.group == 256, "int-quantized %s",
       e.text);
    if (m) {
        ref_row(row, &m->layer[0].k, 0);
        ok(row[0] == -64 && row[128] == 0 && row[255] == 63.5f, "plain bytes become q + 128");
    }
    model_close(m);
    set_config("quantization_config", "{\"format\":\"int-quantized\",\"config_groups\":{\"g\":{"
               "\"targets\":[\"re:.*(self_attn.k_proj|experts.3.up_proj)\"],\"weights\":"
               "{\"num_bits\":8,\"type\":\"int\",\"strategy\":\"channel\"}}}}");
    x = named("experts.3.up_proj.weight");
    snprintf(x->dtype, sizeof(x->dtype), "I8");
    x->bytes /= 2;
    add("model.layers.1.mlp.experts.3.up_proj.weight_scale", "BF16", 32, 1, 64);
    refused("experts.3.up_proj.weight", "int-quantized experts", "an int-quantized expert");
}

static bool row_begins(const struct matrix *m, const float *want, int n)
{
    float row[256];

    assert(m->cols == 256);
    ref_row(row, m, 0);
    return !memcmp(row, want, (size_t)n * sizeof(float));
}

/* Nibble order and offset of int4, from the file to the number (L-01). */
static void test_int4_values(void)
{
    static const float want[8] = { -4, -0.5, 0, 0.5, 3.5, 1, -1.5, 2 };
    static const uint32_t word = 0xC5AF9870;
    bf16 half = f32_to_bf16(0.5f);
    struct model *m;

    start("w4a16");
    memcpy(named("0.self_attn.q_proj.weight_packed")->data, &word, sizeof(word));
    memcpy(named("0.self_attn.q_proj.weight_scale")->data, &half, sizeof(half));
    m = build();
    ok(m && row_begins(&m->layer[0].q, want, 8), "int4 word 0x%08X", word);
    model_close(m);
}

/* The same for MXFP4 (L-03); a scale of 0xff is NaN (D02). */
static void test_mxfp4_values(void)
{
    static const unsigned char bytes[8] = { 0x21, 0x43, 0x65, 0x87, 0xA9, 0xCB, 0xED, 0x0F };
    static const float want[16] = { 1, 2, 3, 4, 6, 8, 12, -0.0f, -1, -2, -3, -4, -6, -8, -12, 0 };
    struct item *x;
    struct model *m;

    start("mxfp4");
    set_config("quantization_config", "{\"format\":\"mxfp4-pack-quantized\",\"config_groups\":"
               "{\"g\":{\"targets\":[\"re:.*mlp.(shared_expert.up|experts.*)_proj\"],"
               "\"weights\":{\"num_bits\":4,\"type\":\"float\",\"group_size\":32}}}}");
    drop("shared_expert.up_proj.weight");
    x = add("model.layers.1.mlp.shared_expert.up_proj.weight_packed", "U8", 32, 128, 4096);
    memcpy(x->data, bytes, sizeof(bytes));
    x = add("model.layers.1.mlp.shared_expert.up_proj.weight_scale", "U8", 32, 8, 256);
    memset(x->data, 0x80, x->bytes);
    m = build();
    ok(m && m->layer[1].ffn.up.format == W_MXFP4 && row_begins(&m->layer[1].ffn.up, want, 16),
       "MXFP4 bytes, scale 0x80 %s", e.text);
    model_close(m);
    named("shared_expert.up_proj.weight_scale")->data[9] = 0xff;
    refused("shared_expert.up_proj.weight_scale", "element 9", "an MXFP4 scale of NaN");
}

static void set_dtype(const char *word, const char *dtype)
{
    snprintf(named(word)->dtype, sizeof(named(word)->dtype), "%s", dtype);
}

static void test_damaged_int4(void)
{
    static const char up[] = "experts.5.up_proj.weight_packed";
    struct item *x;
    int64_t wrong[2] = { -1, 1ll << 40 };

    start("w4a16");
    set_dtype("experts.3.down_proj.weight_scale", "F16");
    refused("experts.3.down_proj.weight_scale", "F16, expected BF16", "a scale in F16 (A15)");
    start("w4a16");
    set_dtype("0.self_attn.q_proj.weight_packed", "F32");
    refused("q_proj.weight_packed", "F32, expected I32", "packed weights in F32");
    start("w4a16");
    x = named("experts.3.down_proj.weight_packed");
    x->dim[0] = 4;
    x->dim[1] = 256;
    refused("down_proj.weight_packed", "[4, 256], expected [256, 4]", "transposed (A16)");
    start("w4a16");
    drop(up);
    refused("experts.5.up_proj.weight", "missing", "a tensor is missing");
    start("w4a16");
    drop("experts.5.up_proj.weight_scale");
    refused("experts.5.up_proj.weight_scale", "missing", "a scale is missing");
    start("w4a16");
    set_config("num_experts", "256");
    refused("mlp.gate.weight", "expected [256, 256]", "256 experts in the config");
    start("w4a16");
    set_weights("group_size", "64");
    refused("_scale", "expected", "another group size (L-02)");
    start("w4a16");
    set_weights("num_bits", "8");
    refused("weight_packed", "expected", "another width in the config");
    start("w4a16");
    set_weights("symmetric", "false");
    refused("weight_zero_point", "missing", "zero points that are not there (L-04)");
    start("w4a16");
    add("model.layers.0.mlp.up_proj.weight_zero_point", "I32", 16, 8, 512);
    refused("up_proj.weight_zero_point", "symmetric", "zero points that should not be there");
    start("w4a16");
    add("model.layers.1.mlp.experts.0.up_proj.weight_g_idx", "I32", 256, -1, 1024);
    refused("weight_g_idx", "act-ordered", "weight_g_idx (L-04)");
    start("w4a16");
    memcpy(named("0.mlp.up_proj.weight_shape")->data, wrong, sizeof(wrong));
    refused("0.mlp.up_proj.weight_shape", "[-1, 1099511627776], expected [128, 256]",
            "weight_shape disagrees (A17)");
    start("w4a16");
    set_dtype("experts.2.up_proj.weight_shape", "U64");
    refused("experts.2.up_proj.weight_shape", "I64", "weight_shape of another type");
    start("w4a16");
    memset(named("0.mlp.up_proj.weight_scale")->data + 6, 0xff, 2);
    refused("0.mlp.up_proj.weight_scale", "element 3", "a scale of NaN");
    start("w4a16");
    x = named(up);
    x->dim[0] = 0;
    x->bytes = 0;
    refused(up, "[0, 32]", "an empty tensor under a name we use (A14)");
    start("w4a16");
    add("unknown.but.empty", "F32", 0, 32, 0);
    builds("an empty tensor under a name we do not use");
    start("w4a16");
    add("model.layers.2.input_layernorm.weight", "BF16", 256, -1, 512);
    refused("layers.2.input_layernorm", "not part", "a layer more than the config says");
    start("w4a16");
    set_config("quantization_config", NULL);
    refused("weight_packed", "packed, but", "packed tensors without quantization_config");
}

static void test_damaged_mxfp4(void)
{
    struct item *x;

    start("mxfp4");
    add("model.layers.1.mlp.gate.weight_packed", "U8", 8, 128, 1024);
    add("model.layers.1.mlp.gate.weight_scale", "U8", 8, 8, 64);
    drop("1.mlp.gate.weight");
    refused("mlp.gate.weight_packed", "must be BF16", "a quantised router (A28)");
    start("mxfp4");
    rename_all("lm_head.weight", "lm_head.weight_packed");
    refused("lm_head.weight_packed", "must be BF16", "a quantised head");
    start("mxfp4");
    rename_all("0.self_attn.v_proj.weight", "0.self_attn.v_proj.weight_packed");
    refused("v_proj.weight_packed", "ignores", "packed, though the config ignores it");
    start("mxfp4");
    set_dtype("experts.1.up_proj.weight_packed", "I8");
    refused("experts.1.up_proj.weight_packed", "I8, expected U8", "packed in I8");
    start("mxfp4");
    set_dtype("experts.1.up_proj.weight_scale", "F8_E8M0");
    builds("scales as F8_E8M0");
    set_dtype("experts.1.up_proj.weight_scale", "F8_E4M3");
    refused("experts.1.up_proj.weight_scale", "F8_E4M3, expected U8", "NVFP4's scales");
    start("mxfp4");
    add("model.layers.1.mlp.experts.0.up_proj.weight_global_scale", "F32", 1, -1, 4);
    refused("weight_global_scale", "NVFP4", "NVFP4's global scale");
    start("mxfp4");
    x = named("experts.1.up_proj.weight_packed");
    snprintf(x->dtype, sizeof(x->dtype), "BF16");
    snprintf(x->name, sizeof(x->name), "model.layers.1.mlp.experts.1.up_proj.weight");
    x->dim[1] = 256;
    x->bytes *= 4;
    free(x->data);
    x->data = calloc(x->bytes, 1);
    drop("experts.1.up_proj.weight_scale");
    builds("one expert's up_proj in BF16 among MXFP4");
}

static void test_damaged_bf16(void)
{
    static const uint16_t nan = 0x7fc0;
    struct item *x;

    start("bf16");
    set_dtype("lm_head.weight", "F16");
    refused("lm_head.weight", "F16, expected BF16", "a head in F16");
    start("bf16");
    rename_all("0.self_attn.q_proj.weight", "0.self_attn.q_proj.qweight");
    refused("q_proj.qweight", "GPTQ", "GPTQ's names");
    start("bf16");
    x = named("0.self_attn.q_proj.weight");
    snprintf(x->dtype, sizeof(x->dtype), "F8_E4M3");
    x->bytes /= 2;
    refused("q_proj.weight", "FP8", "FP8 weights");
    start("bf16");
    set_config("vocab_size", "500");
    refused("embed_tokens.weight", "[512, 256], expected [500, 256]", "vocab_size (B07)");
    start("bf16");
    x = named("1.self_attn.g_proj.weight");
    x->dim[0] = 3;
    x->dim[1] = 512;
    refused("g_proj.weight", "[3, 512], expected [6, 256]", "g_proj of another width");
    start("bf16");
    drop("1.self_attn.g_proj.weight");
    refused("g_proj.weight", "missing", "no g_proj");
    start("bf16");
    add("model.layers.1.self_attn.sink", "BF16", 6, -1, 12);
    refused("self_attn.sink", "sinks", "attention sinks");
    start("bf16");
    memcpy(named("1.self_attn.q_norm.weight")->data + 20, &nan, 2);
    refused("q_norm.weight", "element 10", "a norm of NaN");
    start("bf16");
    set_dtype("model.norm.weight", "I16");
    refused("model.norm.weight", "I16", "a norm of integers");
    start("bf16");
    named("model.norm.weight")->dim[0] = 128;
    named("model.norm.weight")->bytes = 256;
    refused("model.norm.weight", "expected [256]", "half a norm");
    start("bf16");
    drop("e_score_correction_bias");
    refused("e_score_correction_bias", "missing", "no selection bias");
    start("bf16");
    drop("model.embed_tokens.weight");
    refused("embed_tokens.weight", "missing", "no embedding");
}

static void test_files(void)
{
    char *dir = temp_dir(), path[4096];
    struct model *m;

    start("bf16");
    write_all(dir);
    join_path(path, dir, "config.json");
    unlink(path);
    ok(exit_status(model_open(&m, dir, &quiet, &e)) == 66 && strstr(e.text, "config.json"),
       "no config.json: %s", e.text);
    write_file(dir, "config.json", "[]", 2);
    ok(exit_status(model_open(&m, dir, &quiet, &e)) == 65, "a list: %s", e.text);
    ok(!truncate(path, (1 << 20) + 1), "a large file");
    ok(exit_status(model_open(&m, dir, &quiet, &e)) == 65, "over 1 MiB: %s", e.text);
    write_all(dir);
    write_file(dir, "generation_config.json", "{", 1);
    ok(exit_status(model_open(&m, dir, &quiet, &e)) == 65 &&
       strstr(e.text, "generation_config.json"), "bad generation_config.json: %s", e.text);
    join_path(path, dir, "generation_config.json");
    unlink(path);
    ok(!model_open(&m, dir, &quiet, &e) && m->defaults.temperature == 1,
       "no generation_config.json");
    join_path(path, dir, "model.safetensors");
    ok(!truncate(path, 200000) && model_load_dense(m, 2, NULL, NULL, &e) == -EBADMSG,
       "a shard that shrinks before it is read: %s", e.text);
    model_close(m);
    remove_dir(dir);
}

static void test_progress_step(void *arg, size_t done, size_t total)
{
    size_t *last = arg;

    last[0] = done;
    last[1] = total;
}

static void test_progress(void)
{
    char *dir = source_path("models/nano");
    size_t last[2] = { 0, 1 };
    struct model *m = NULL;

    quiet = (struct log){ .level = LOG_QUIET };
    ok(!model_open(&m, dir, &quiet, &e) &&
       !model_load_dense(m, 1, test_progress_step, last, &e) && last[0] == last[1] &&
       last[1] == m->dense_bytes, "progress ends at all of %zu bytes", last[1]);
    model_close(m);
    free(dir);
}

int main(void)
{
    test_nano();
    test_formats();
    test_names();
    test_cache_scales();
    test_bias();
    test_int8();
    test_int4_values();
    test_mxfp4_values();
    test_damaged_int4();
    test_damaged_mxfp4();
    test_damaged_bf16();
    test_files();
    test_progress();
    drop_all();
    return done();
}
