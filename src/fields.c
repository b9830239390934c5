/* Bounded reading of configuration files, for shape.c, rope.c and quant.c.  It knows JSON
 * and ranges, and no key. */
#include "src/fields.h"

#include <errno.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>

void config_open(struct config *c, const char *json, size_t len, const char *name,
                 struct err *e)
{
    struct err why = { "" };

    memset(c, 0, sizeof(*c));
    c->name = name;
    c->e = e;
    c->root = json_parse(json, len, &JSON_FILE, &why);
    if (!c->root)
        c->rc = fail(e, -errno, "%s: %s", name, why.text);
    else if (!cJSON_IsObject(c->root))
        c->rc = fail(e, -EBADMSG, "%s: not a JSON object", name);
}

int config_close(struct config *c)
{
    cJSON_Delete(c->root);
    c->root = NULL;
    return c->rc;
}

void config_fail(struct config *c, const char *key, const char *fmt, ...)
{
    char words[256];
    va_list ap;

    if (c->rc)
        return;
    va_start(ap, fmt);
    vsnprintf(words, sizeof(words), fmt, ap);
    va_end(ap);
    c->rc = fail(c->e, -EBADMSG, "%s: %.64s: %s", c->name, key, words);
}

/* A value as it stands in the file, for a message. */
static void quote(char *out, size_t cap, const cJSON *node)
{
    if (cJSON_IsNumber(node))
        snprintf(out, cap, "%.40s", node->valuestring);
    else if (cJSON_IsString(node))
        snprintf(out, cap, "\"%.40s\"", node->valuestring);
    else if (cJSON_IsBool(node))
        snprintf(out, cap, "%s", cJSON_IsTrue(node) ? "true" : "false");
    else
        snprintf(out, cap, "%s", cJSON_IsArray(node) ? "a list" : "an object");
}

void config_fail_value(struct config *c, const char *key, const cJSON *node, int64_t min,
                       int64_t max)
{
    char value[64];

    quote(value, sizeof(value), node);
    config_fail(c, key, "%s is not an integer from %jd to %jd", value, (intmax_t)min,
                (intmax_t)max);
}

const cJSON *config_member(const cJSON *object, const char *key)
{
    const cJSON *node = json_get(object, key);

    return node && !cJSON_IsNull(node) ? node : NULL;
}

int config_int(struct config *c, const cJSON *o, const char *key, int min, int max, int absent)
{
    const cJSON *node = config_member(o, key);
    int64_t n = min;

    if (!node) {
        if (absent == CONFIG_REQUIRED)
            config_fail(c, key, "missing (an integer from %d to %d)", min, max);
        return absent == CONFIG_REQUIRED ? min : absent;
    }
    if (json_int64(node, min, max, &n))
        config_fail_value(c, key, node, min, max);
    return (int)n;
}

double config_real(struct config *c, const cJSON *o, const char *key, double min, double max,
                   double absent)
{
    const cJSON *node = config_member(o, key);
    char value[64];

    if (!node) {
        if (absent == CONFIG_REQUIRED_REAL)
            config_fail(c, key, "missing (a number from %g to %g)", min, max);
        return absent == CONFIG_REQUIRED_REAL ? min : absent;
    }
    if (cJSON_IsNumber(node) && node->valuedouble >= min && node->valuedouble <= max)
        return node->valuedouble;
    quote(value, sizeof(value), node);
    config_fail(c, key, "%s is not a number from %g to %g", value, min, max);
    return min;
}

bool config_bool(struct config *c, const cJSON *o, const char *key, bool absent)
{
    const cJSON *node = config_member(o, key);

    if (node && !cJSON_IsBool(node))
        config_fail(c, key, "neither true nor false");
    return node ? cJSON_IsTrue(node) : absent;
}

const char *config_string(struct config *c, const cJSON *o, const char *key)
{
    const cJSON *node = config_member(o, key);

    if (node && !cJSON_IsString(node))
        config_fail(c, key, "not a string");
    return cJSON_IsString(node) ? node->valuestring : NULL;
}
