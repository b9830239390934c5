#ifndef LAGUNA_TEST_VALIDATE_H
#define LAGUNA_TEST_VALIDATE_H

#include "src/json.h"

#include <stdio.h>
#include <stdlib.h>

/* A value against a schema, by the words of JSON Schema and without a thought for speed: the
 * tests' own opinion of what src/schema.h lets be written.  Knows the same keywords. */

static bool validate(const cJSON *root, const cJSON *schema, const cJSON *v, int depth);

static inline bool validate_type(const char *type, const cJSON *v)
{
    if (!strcmp(type, "object"))
        return cJSON_IsObject(v);
    if (!strcmp(type, "array"))
        return cJSON_IsArray(v);
    if (!strcmp(type, "string"))
        return cJSON_IsString(v);
    if (!strcmp(type, "boolean"))
        return cJSON_IsBool(v);
    if (!strcmp(type, "null"))
        return cJSON_IsNull(v);
    return cJSON_IsNumber(v) && (!strcmp(type, "number") || !strpbrk(v->valuestring, ".eE"));
}

static inline bool validate_equal(const cJSON *a, const cJSON *b)
{
    struct text x = { 0 }, y = { 0 };
    bool same;

    text_json_python(&x, a);
    text_json_python(&y, b);
    same = x.n == y.n && !memcmp(x.s, y.s, x.n);
    text_free(&x);
    text_free(&y);
    return same;
}

static inline int validate_characters(const char *s)
{
    int n = 0;

    for (; *s; s++)
        n += (*s & 0xc0) != 0x80;
    return n;
}

static inline bool validate_number(const cJSON *schema, const cJSON *v)
{
    static const char *const name[] = {
        "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum",
    };
    int i;

    for (i = 0; i < 4; i++) {
        const cJSON *bound = json_get(schema, name[i]);
        double b, x = v->valuedouble;

        if (!bound)
            continue;
        b = bound->valuedouble;
        if (!(i == 0 ? x >= b : i == 1 ? x <= b : i == 2 ? x > b : x < b))
            return false;
    }
    return true;
}

static inline bool validate_count(const cJSON *schema, const char *min, const char *max, int n)
{
    const cJSON *least = json_get(schema, min), *most = json_get(schema, max);

    return !(least && n < least->valuedouble) && !(most && n > most->valuedouble);
}

static inline bool validate_object(const cJSON *root, const cJSON *schema, const cJSON *v,
                                   int depth)
{
    const cJSON *properties = json_get(schema, "properties"), *one, *its;
    const cJSON *more = json_get(schema, "additionalProperties"), *required;

    required = json_get(schema, "required");
    for (one = required ? required->child : NULL; one; one = one->next)
        if (!json_get(v, one->valuestring))
            return false;
    for (one = v->child; one; one = one->next) {
        its = json_get(properties, one->string);
        if (its ? !validate(root, its, one, depth) : more && !validate(root, more, one, depth))
            return false;
    }
    return true;
}

/* What "#/a/b" leads to; names have no escapes here. */
static inline const cJSON *validate_target(const cJSON *root, const char *ref)
{
    char name[256];

    for (ref++; *ref && root; ) {
        size_t n = strcspn(ref + 1, "/");

        snprintf(name, sizeof(name), "%.*s", (int)n, ref + 1);
        root = cJSON_IsArray(root) ? cJSON_GetArrayItem(root, atoi(name)) : json_get(root, name);
        ref += n + 1;
    }
    return root;
}

static inline bool validate_choice(const cJSON *root, const cJSON *schema, const cJSON *v,
                                   int depth)
{
    static const char *const name[] = { "anyOf", "oneOf", "allOf" };
    const cJSON *one;
    int i, good, n;

    for (i = 0; i < 3; i++) {
        const cJSON *list = json_get(schema, name[i]);

        if (!list)
            continue;
        good = n = 0;
        for (one = list->child; one; one = one->next) {
            good += validate(root, one, v, depth);
            n++;
        }
        if (i == 0 ? !good : i == 1 ? good != 1 : good != n)
            return false;
    }
    return true;
}

static inline bool validate_value(const cJSON *schema, const cJSON *v)
{
    const cJSON *type = json_get(schema, "type"), *list = json_get(schema, "enum"), *one;
    const cJSON *only = json_get(schema, "const");
    bool good = !type || cJSON_IsArray(type) || validate_type(type->valuestring, v);

    if (cJSON_IsArray(type)) {
        good = false;
        for (one = type->child; one; one = one->next)
            good |= validate_type(one->valuestring, v);
    }
    if (list && good) {
        good = false;
        for (one = list->child; one; one = one->next)
            good |= validate_equal(one, v);
    }
    return good && (!only || validate_equal(only, v));
}

static bool validate(const cJSON *root, const cJSON *schema, const cJSON *v, int depth)
{
    const cJSON *ref = json_get(schema, "$ref"), *items = json_get(schema, "items"), *one;

    if (cJSON_IsBool(schema) || depth > 400)
        return cJSON_IsTrue(schema);
    if (ref)
        return validate(root, validate_target(root, ref->valuestring), v, depth + 1);
    if (!validate_value(schema, v) || !validate_choice(root, schema, v, depth + 1))
        return false;
    if (cJSON_IsNumber(v))
        return validate_number(schema, v);
    if (cJSON_IsString(v))
        return validate_count(schema, "minLength", "maxLength",
                              validate_characters(v->valuestring));
    if (cJSON_IsObject(v))
        return validate_object(root, schema, v, depth + 1);
    if (!cJSON_IsArray(v))
        return true;
    for (one = v->child; one && items; one = one->next)
        if (!validate(root, items, one, depth + 1))
            return false;
    return validate_count(schema, "minItems", "maxItems", cJSON_GetArraySize(v));
}

#endif
