/* quantization_config: the groups, and which module belongs to which.  Patterns come from
 * the file: PCRE2 runs them under a limit on backtracking, anchored at the start as Python's
 * re.match is, and plain names are looked up by bisection, because ignore lists hold
 * thousands. */
#define PCRE2_CODE_UNIT_WIDTH 8
#include "src/quant.h"

#include "src/fields.h"

#include <errno.h>
#include <pcre2.h>
#include <stdlib.h>

enum {
    GROUPS_MAX = 64,
    PATTERNS_MAX = 256,         /* all together: each is tried on 36,096 modules */
    MATCH_LIMIT = 20000,
    GROUP_SIZE_MAX = 1 << 16,
};

/* One entry of a targets or ignore list. */
struct name {
    char *text;
    int owner;                  /* the group, or IGNORED */
};

enum { IGNORED = -1, NOBODY = -2 };

struct pattern {
    char *text;
    pcre2_code *code;
    int owner;
};

struct quant {
    struct scheme scheme[GROUPS_MAX];
    bool dense[GROUPS_MAX];     /* a group that leaves its modules as they are */
    int groups;
    struct name *name;          /* [names], sorted by text, then by owner */
    size_t names;
    struct pattern pattern[PATTERNS_MAX];
    int patterns;
    bool ignore_linear;         /* the class name Linear itself */
    int linear;                 /* the group that targets it, or NOBODY */
    pcre2_match_context *limits;
    pcre2_match_data *match;
};

static void refuse_format(struct config *c, const char *key, const char *format)
{
    static const struct {
        const char *format, *what;
    } known[] = {
        { "nvfp4-pack-quantized", "NVFP4" },
        { "float-quantized", "FP8" },
        { "naive-quantized", "FP8 or unpacked integers" },
        { "mxfp8-quantized", "MXFP8" },
        { "marlin-24", "2:4 sparse Marlin" },
        { "sparse-24-bitmask", "2:4 sparse" },
        { "sparse-bitmask", "sparse" },
    };
    const char *what = "unknown format";
    size_t i;

    for (i = 0; i < sizeof(known) / sizeof(known[0]); i++)
        if (!strcmp(format, known[i].format))
            what = known[i].what;
    config_fail(c, key, "\"%.40s\" (%s) is not supported: pack-quantized, int-quantized and "
                "mxfp4-pack-quantized are", format, what);
}

static bool is_one_of(const char *word, const char *const *list)
{
    for (; *list; list++)
        if (!strcmp(word, *list))
            return true;
    return false;
}

/* Columns that share a scale. */
static int read_group_size(struct config *c, const cJSON *weights)
{
    const char *strategy = config_string(c, weights, "strategy");
    const cJSON *node = config_member(weights, "group_size");
    int64_t n = 0;

    if (!strategy)
        strategy = node ? "group" : "channel";
    if (!strcmp(strategy, "channel"))
        return 0;
    if (strcmp(strategy, "group")) {
        config_fail(c, "strategy", "\"%.40s\" is not supported (group, channel)", strategy);
        return 0;
    }
    if (node && !json_int64(node, -1, -1, &n))
        return 0;
    n = config_int(c, weights, "group_size", 1, GROUP_SIZE_MAX, CONFIG_REQUIRED);
    if (!c->rc && n % 32)
        config_fail(c, "group_size", "%jd is not supported (a multiple of 32)", (intmax_t)n);
    return (int)n;
}

/* The storage that a format and a `weights` object mean together. */
static void read_scheme(struct config *c, struct scheme *s, const char *format,
                        const cJSON *weights)
{
    static const char *const reordering[] = { "group", "dynamic", NULL };
    const char *type = config_string(c, weights, "type");
    const cJSON *order = config_member(weights, "actorder");
    int bits = config_int(c, weights, "num_bits", 1, 32, CONFIG_REQUIRED);

    if (cJSON_IsTrue(order) ||
        (cJSON_IsString(order) && is_one_of(order->valuestring, reordering)))
        config_fail(c, "actorder", "\"group\" (weight_g_idx) is not supported");
    s->symmetric = config_bool(c, weights, "symmetric", true);
    s->group = read_group_size(c, weights);
    if (c->rc)
        return;
    type = type ? type : "int";
    if (!strcmp(format, "mxfp4-pack-quantized")) {
        s->format = W_MXFP4;
        if (bits != 4 || strcmp(type, "float") || s->group != 32 || !s->symmetric)
            config_fail(c, format, "num_bits %d, type %.20s, group_size %d, %ssymmetric "
                        "(4, float, 32, symmetric)", bits, type, s->group,
                        s->symmetric ? "" : "not ");
        return;
    }
    s->plain = !strcmp(format, "int-quantized");
    s->format = bits == 4 ? W_INT4 : W_INT8;
    if (strcmp(type, "int") || (bits != 4 && bits != 8) || (s->plain && bits != 8))
        config_fail(c, format, "num_bits %d, type %.20s is not supported (%s)", bits, type,
                    s->plain ? "8, int" : "4 or 8, int");
    else if (s->plain && !s->symmetric)
        config_fail(c, format, "zero points of int-quantized weights are not supported");
}

static void add_name(struct config *c, struct quant *q, const char *text, int owner)
{
    struct name *grown;

    if (!strcmp(text, "Linear")) {
        if (owner == IGNORED)
            q->ignore_linear = true;
        else if (q->linear == NOBODY)
            q->linear = owner;
        return;
    }
    if ((q->names & (q->names + 1)) == 0) {
        grown = realloc(q->name, (q->names * 2 + 1) * sizeof(*grown));
        if (!grown) {
            c->rc = fail(c->e, -ENOMEM, "%s: no memory for %zu names", c->name, q->names);
            return;
        }
        q->name = grown;
    }
    q->name[q->names].text = strdup(text);
    q->name[q->names].owner = owner;
    if (!q->name[q->names].text)
        c->rc = fail(c->e, -ENOMEM, "%s: no memory for %zu names", c->name, q->names);
    else
        q->names++;
}

static void add_pattern(struct config *c, struct quant *q, const char *text, int owner)
{
    struct pattern *p = &q->pattern[q->patterns];
    PCRE2_UCHAR why[120];
    PCRE2_SIZE at;
    int code;

    if (q->patterns == PATTERNS_MAX) {
        config_fail(c, "quantization_config", "more than %d patterns", PATTERNS_MAX);
        return;
    }
    p->code = pcre2_compile((PCRE2_SPTR)text, PCRE2_ZERO_TERMINATED,
                            PCRE2_ANCHORED | PCRE2_NEVER_BACKSLASH_C, &code, &at, NULL);
    if (!p->code && code == PCRE2_ERROR_HEAP_FAILED) {
        c->rc = fail(c->e, -ENOMEM, "%s: no memory for a pattern", c->name);
        return;
    }
    if (!p->code) {
        pcre2_get_error_message(code, why, sizeof(why));
        config_fail(c, "quantization_config", "pattern \"%.80s\": %s at %zu", text,
                    (const char *)why, (size_t)at);
        return;
    }
    p->text = strdup(text);
    p->owner = owner;
    q->patterns++;
    if (!p->text)
        c->rc = fail(c->e, -ENOMEM, "%s: no memory for a pattern", c->name);
    /* Where there is no JIT the interpreter does the same, slower. */
    pcre2_jit_compile(p->code, PCRE2_JIT_COMPLETE);
}

static void add_list(struct config *c, struct quant *q, const char *key, const cJSON *list,
                     int owner)
{
    const cJSON *node;

    if (list && !cJSON_IsArray(list))
        config_fail(c, key, "not a list");
    cJSON_ArrayForEach(node, list) {
        if (c->rc)
            return;
        if (!cJSON_IsString(node))
            config_fail(c, key, "an entry is not a string");
        else if (!strncmp(node->valuestring, "re:", 3))
            add_pattern(c, q, node->valuestring + 3, owner);
        else
            add_name(c, q, node->valuestring, owner);
    }
}

/* `overall` is the format beside the groups: it counts where a group has none. */
static void add_group(struct config *c, struct quant *q, const cJSON *group, const char *overall)
{
    static const char *const readable[] = { "pack-quantized", "int-quantized",
                                            "mxfp4-pack-quantized", "dense", NULL };
    const char *format = config_string(c, group, "format");
    const cJSON *weights = config_member(group, "weights");
    int n = q->groups;

    if (!cJSON_IsObject(group)) {
        config_fail(c, "config_groups", "a group is not an object");
        return;
    }
    if (q->groups == GROUPS_MAX) {
        config_fail(c, "config_groups", "more than %d groups", GROUPS_MAX);
        return;
    }
    format = format ? format : overall;
    if (!format)
        config_fail(c, "config_groups", "a group without a format");
    else if (!is_one_of(format, readable))
        refuse_format(c, "quantization_config.format", format);
    if (c->rc)
        return;
    q->dense[n] = !weights || !strcmp(format, "dense");
    if (!q->dense[n])
        read_scheme(c, &q->scheme[n], format, weights);
    q->groups++;
    add_list(c, q, "targets", config_member(group, "targets"), n);
}

static bool has_members(const cJSON *object)
{
    return object && object->child;
}

/* Everything that would change what the stored numbers mean. */
static void check_method(struct config *c, const cJSON *o)
{
    const char *method = config_string(c, o, "quant_method");
    const char *sparse = config_string(c, config_member(o, "sparsity_config"), "format");

    if (method && strcmp(method, "compressed-tensors"))
        config_fail(c, "quant_method", "\"%.40s\" is not supported (compressed-tensors)", method);
    if (sparse && strcmp(sparse, "dense"))
        refuse_format(c, "sparsity_config", sparse);
    if (has_members(config_member(o, "transform_config")))
        config_fail(c, "transform_config", "rotated weights are not supported");
}

static int by_text(const void *a, const void *b)
{
    const struct name *x = a, *y = b;
    int order = strcmp(x->text, y->text);

    return order ? order : (x->owner > y->owner) - (x->owner < y->owner);
}

static void read_quant(struct config *c, struct quant *q, const cJSON *o)
{
    static const char *const overall[] = { "pack-quantized", "int-quantized", "dense",
                                           "mxfp4-pack-quantized", "mixed-precision", NULL };
    const cJSON *groups = config_member(o, "config_groups"), *group;
    const char *format = config_string(c, o, "format");

    check_method(c, o);
    if (format && !is_one_of(format, overall))
        refuse_format(c, "quantization_config.format", format);
    if (format && !strcmp(format, "mixed-precision"))
        format = NULL;
    if (!cJSON_IsObject(groups))
        config_fail(c, "config_groups", "missing or not an object");
    cJSON_ArrayForEach(group, groups) {
        if (c->rc)
            return;
        add_group(c, q, group, format);
    }
    add_list(c, q, "ignore", config_member(o, "ignore"), IGNORED);
    if (q->names)
        qsort(q->name, q->names, sizeof(*q->name), by_text);
}

static struct quant *quant_new(void)
{
    struct quant *q = calloc(1, sizeof(*q));

    if (!q)
        return NULL;
    q->linear = NOBODY;
    q->limits = pcre2_match_context_create(NULL);
    q->match = pcre2_match_data_create(1, NULL);
    if (!q->limits || !q->match) {
        quant_free(q);
        return NULL;
    }
    pcre2_set_match_limit(q->limits, MATCH_LIMIT);
    pcre2_set_depth_limit(q->limits, MATCH_LIMIT);
    return q;
}

int quant_read(struct quant **out, const char *json, size_t len, const char *name,
               struct err *e)
{
    struct quant *q = NULL;
    const cJSON *o = NULL;
    struct config c;
    int rc;

    *out = NULL;
    config_open(&c, json, len, name, e);
    if (!c.rc)
        o = config_member(c.root, "quantization_config");
    if (o && !cJSON_IsObject(o))
        config_fail(&c, "quantization_config", "not an object");
    if (o && !c.rc) {
        q = quant_new();
        if (q)
            read_quant(&c, q, o);
        else
            c.rc = fail(e, -ENOMEM, "%s: no memory", name);
    }
    rc = config_close(&c);
    if (rc) {
        quant_free(q);
        return rc;
    }
    *out = q;
    return 0;
}

void quant_free(struct quant *q)
{
    size_t i;
    int k;

    if (!q)
        return;
    for (i = 0; i < q->names; i++)
        free(q->name[i].text);
    for (k = 0; k < q->patterns; k++) {
        free(q->pattern[k].text);
        pcre2_code_free(q->pattern[k].code);
    }
    free(q->name);
    pcre2_match_context_free(q->limits);
    pcre2_match_data_free(q->match);
    free(q);
}

/* The first owner of an exact name: IGNORED sorts before every group. */
static int find_name(const struct quant *q, const char *module)
{
    size_t low = 0, high = q->names;

    while (low < high) {
        size_t middle = low + (high - low) / 2;

        if (strcmp(q->name[middle].text, module) < 0)
            low = middle + 1;
        else
            high = middle;
    }
    return low < q->names && !strcmp(q->name[low].text, module) ? q->name[low].owner : NOBODY;
}

/* 1 where p matches, 0 where not. */
static int matches(const struct quant *q, const struct pattern *p, const char *module,
                   struct err *e)
{
    int got = pcre2_match(p->code, (PCRE2_SPTR)module, strlen(module), 0, 0, q->match,
                          q->limits);

    if (got >= 0)
        return 1;
    if (got == PCRE2_ERROR_NOMATCH)
        return 0;
    return fail(e, -EBADMSG, "quantization_config: pattern \"%.80s\" takes too long on %.100s",
                p->text, module);
}

int quant_find(const struct quant *q, const char *module, const struct scheme **out,
               struct err *e)
{
    int owner, i, rc;

    *out = NULL;
    if (!q)
        return 0;
    owner = find_name(q, module);
    if (owner == IGNORED || q->ignore_linear)
        return 0;
    /* An ignore list wins over every target; among targets an exact name wins over a pattern,
     * and a pattern over the class. */
    for (i = 0; i < q->patterns; i++) {
        if (q->pattern[i].owner != IGNORED && owner != NOBODY)
            continue;
        rc = matches(q, &q->pattern[i], module, e);
        if (rc < 0)
            return rc;
        if (rc && q->pattern[i].owner == IGNORED)
            return 0;
        if (rc)
            owner = q->pattern[i].owner;
    }
    if (owner == NOBODY)
        owner = q->linear;
    if (owner >= 0 && !q->dense[owner])
        *out = &q->scheme[owner];
    return 0;
}
