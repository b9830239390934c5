/* Reading single fields of a request; which fields there are is src/request.c. */
#include "src/param.h"

#include <errno.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>

int param_refuse(const struct params *f, const char *name, const char *code, const char *fmt, ...)
{
    struct request_error *e = f->e;
    va_list ap;

    e->status = 400;
    e->type = "invalid_request_error";
    e->code = code;
    snprintf(e->param, sizeof(e->param), "%s%s", f->path, name);
    va_start(ap, fmt);
    vsnprintf(e->message, sizeof(e->message), fmt, ap);
    va_end(ap);
    return -EBADMSG;
}

const cJSON *param_get(const struct params *f, const char *name)
{
    const cJSON *node = json_get(f->object, name);

    return node && !cJSON_IsNull(node) ? node : NULL;
}

int param_bool(const struct params *f, const char *name, bool *out)
{
    const cJSON *node = param_get(f, name);

    if (node && !cJSON_IsBool(node))
        return param_refuse(f, name, "invalid_type", "%s%s must be true or false", f->path, name);
    if (node)
        *out = cJSON_IsTrue(node);
    return 0;
}

int param_int(const struct params *f, const char *name, int64_t min, int64_t max, int64_t *out)
{
    const cJSON *node = param_get(f, name);

    if (node && json_int64(node, min, max, out))
        return param_refuse(f, name, "invalid_value", "%s%s must be an integer from %jd to %jd",
                            f->path, name, (intmax_t)min, (intmax_t)max);
    return 0;
}

int param_number(const struct params *f, const char *name, double min, double max, float *out)
{
    const cJSON *node = param_get(f, name);
    double v;

    if (!node)
        return 0;
    v = cJSON_IsNumber(node) ? node->valuedouble : NAN;
    if (!(v >= min && v <= max))
        return param_refuse(f, name, "invalid_value", "%s%s must be a number from %g to %g",
                            f->path, name, min, max);
    *out = (float)v;
    return 0;
}

int param_string(const struct params *f, const char *name, size_t most, const char **out)
{
    const cJSON *node = param_get(f, name);

    if (node && (!cJSON_IsString(node) || strlen(node->valuestring) > most))
        return param_refuse(f, name, "invalid_value", "%s%s must be a string of at most %zu bytes",
                            f->path, name, most);
    if (node)
        *out = node->valuestring;
    return 0;
}

int param_object(const struct params *f, const char *name, const char *path, struct params *out)
{
    const cJSON *node = param_get(f, name);

    *out = (struct params){ node, path, f->e };
    if (node && !cJSON_IsObject(node))
        return param_refuse(f, name, "invalid_type", "%s%s must be an object", f->path, name);
    return 0;
}
