/* Rotary embeddings: where a configuration keeps their parameters, and the frequencies that
 * follow (YaRN: laguna.md 2.4).  The rotation itself is ref_rope() and the kernels. */
#include "src/rope.h"

#include <math.h>

/* Where a key is looked for: the entry of the layer type, scalars beside the entries, the
 * top level of the file.  Unused places are NULL. */
struct places {
    const cJSON *at[3];
};

static bool is_nested(const cJSON *parameters)
{
    const cJSON *node;

    cJSON_ArrayForEach(node, parameters)
        if (cJSON_IsObject(node))
            return true;
    return false;
}

static struct places find_places(struct config *c, bool full)
{
    const cJSON *parameters = config_member(c->root, "rope_parameters");
    const cJSON *older = config_member(c->root, "rope_scaling");
    const cJSON *window = full ? NULL : config_member(c->root, "swa_rope_parameters");
    const cJSON *entry;

    if (parameters && !cJSON_IsObject(parameters))
        config_fail(c, "rope_parameters", "not an object");
    if (!is_nested(parameters)) {
        if (window)
            return (struct places){ { window, NULL, c->root } };
        return (struct places){ { parameters ? parameters : older, NULL, c->root } };
    }
    entry = config_member(parameters, full ? "full_attention" : "sliding_attention");
    if (!entry && full)
        entry = config_member(parameters, "global_attention");
    if (!entry)
        entry = window;
    if (!cJSON_IsObject(entry))
        config_fail(c, "rope_parameters", "no entry for %s_attention",
                    full ? "full" : "sliding");
    return (struct places){ { entry, parameters, c->root } };
}

static double real(struct config *c, const struct places *p, const char *key, double min,
                   double max, double absent)
{
    int i;

    for (i = 0; i < 3; i++)
        if (p->at[i] && config_member(p->at[i], key))
            return config_real(c, p->at[i], key, min, max, absent);
    return config_real(c, c->root, key, min, max, absent);
}

/* The kind is said by the entry alone: a kind beside it belongs to another layer type. */
static const char *kind_of(struct config *c, const struct places *p)
{
    const char *kind = config_string(c, p->at[0], "rope_type");

    if (!kind)
        kind = config_string(c, p->at[0], "type");
    return kind ? kind : "default";
}

/* The dimension at which a frequency turns `turns` times within the original context. */
static double correction(double turns, int dims, double theta, double original)
{
    return dims * log(original / (turns * 2 * M_PI)) / (2 * log(theta));
}

static void yarn(struct config *c, struct rope *out, const struct places *p, double theta,
                 int max_positions)
{
    double factor = real(c, p, "factor", 1e-3, 1e6, CONFIG_REQUIRED_REAL);
    double original = real(c, p, "original_max_position_embeddings", 1, 1 << 24, max_positions);
    double fast = real(c, p, "beta_fast", 1e-6, 1e6, 32);
    double slow = real(c, p, "beta_slow", 1e-6, 1e6, 1);
    bool truncate = config_bool(c, p->at[0], "truncate", true);
    double by_length = factor <= 1 ? 1 : 0.1 * log(factor) + 1;
    double low, high;
    int i;

    if (!c->rc && fast < slow)
        config_fail(c, "beta_fast", "%g is below beta_slow %g", fast, slow);
    out->factor = (float)real(c, p, "attention_factor", 1e-6, 1e6, by_length);
    if (c->rc)
        return;
    low = correction(fast, out->dims, theta, original);
    high = correction(slow, out->dims, theta, original);
    low = fmax(truncate ? floor(low) : low, 0);
    high = fmin(truncate ? ceil(high) : high, out->dims - 1);
    if (low == high)
        high += 0.001;
    for (i = 0; i < out->dims / 2; i++) {
        double plain = pow(theta, -2.0 * i / out->dims);
        double ramp = fmin(fmax((i - low) / (high - low), 0), 1);

        out->inv_freq[i] = (float)(plain / factor * ramp + plain * (1 - ramp));
    }
}

void rope_read(struct config *c, struct rope *out, bool full, int head_dim, int max_positions)
{
    struct places p = find_places(c, full);
    double partial, theta;
    const char *kind;
    int i;

    if (c->rc)
        return;
    kind = kind_of(c, &p);
    partial = real(c, &p, "partial_rotary_factor", 0, 1, 1);
    theta = real(c, &p, "rope_theta", 1.0001, 1e15, CONFIG_REQUIRED_REAL);
    out->dims = (int)(head_dim * partial);
    out->factor = 1;
    if (!c->rc && (out->dims < 2 || out->dims % 2))
        config_fail(c, "partial_rotary_factor", "%g of %d dimensions is not even", partial,
                    head_dim);
    if (c->rc)
        return;
    if (!strcmp(kind, "yarn")) {
        yarn(c, out, &p, theta, max_positions);
        return;
    }
    if (!strcmp(kind, "linear") && real(c, &p, "factor", 0, 1e6, 1) != 1)
        config_fail(c, "rope_type", "linear with a factor other than 1 is not supported");
    else if (strcmp(kind, "default") && strcmp(kind, "linear"))
        config_fail(c, "rope_type", "\"%s\" is not supported (default, linear, yarn)", kind);
    for (i = 0; i < out->dims / 2; i++)
        out->inv_freq[i] = (float)pow(theta, -2.0 * i / out->dims);
}
