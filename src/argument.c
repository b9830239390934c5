/* How values of arguments become JSON.  References in a schema are never followed and nothing
 * is validated: a value of the wrong type is for the client to judge. */
#include "src/argument.h"

#include <math.h>

/* One level less than a request may have: around the values comes the object of arguments,
 * and clients send that back. */
static const struct json_limits VALUE = { 63, 100000 };

const cJSON *argument_properties(const cJSON *tools, const char *name)
{
    const cJSON *tool;

    cJSON_ArrayForEach(tool, tools) {
        const cJSON *function = json_get(tool, "function"), *its = json_get(function, "name");

        if (cJSON_IsString(its) && !strcmp(its->valuestring, name))
            return json_get(json_get(function, "parameters"), "properties");
    }
    return NULL;
}

static bool names_string(const cJSON *type)
{
    return cJSON_IsString(type) && !strcmp(type->valuestring, "string");
}

/* An enum without a type says it by its values. */
static bool all_strings(const cJSON *values)
{
    const cJSON *value;

    cJSON_ArrayForEach(value, values)
        if (!cJSON_IsString(value))
            return false;
    return cJSON_IsArray(values) && values->child;
}

enum argument_kind argument_kind(const cJSON *properties, const char *key)
{
    const cJSON *property = json_get(properties, key), *type = json_get(property, "type");
    const cJSON *one;
    int strings = 0, others = 0;

    if (!type)
        return all_strings(json_get(property, "enum")) ? ARGUMENT_STRING : ARGUMENT_OTHER;
    if (!cJSON_IsArray(type))
        return names_string(type) ? ARGUMENT_STRING : ARGUMENT_OTHER;
    cJSON_ArrayForEach(one, type) {
        if (names_string(one))
            strings++;
        else
            others++;
    }
    return !strings ? ARGUMENT_OTHER : others ? ARGUMENT_MAYBE_STRING : ARGUMENT_STRING;
}

/* Numbers too large for a double would print as Infinity, which is no JSON. */
static bool all_finite(const cJSON *node)
{
    const cJSON *member;

    if (cJSON_IsNumber(node) && strpbrk(node->valuestring, ".eE") && !isfinite(node->valuedouble))
        return false;
    if (cJSON_IsArray(node) || cJSON_IsObject(node))
        cJSON_ArrayForEach(member, node)
            if (!all_finite(member))
                return false;
    return true;
}

static const char *type_name(const cJSON *node)
{
    if (cJSON_IsNull(node))
        return "null";
    if (cJSON_IsBool(node))
        return "boolean";
    if (cJSON_IsArray(node))
        return "array";
    if (cJSON_IsObject(node))
        return "object";
    if (cJSON_IsString(node))
        return "string";
    return strpbrk(node->valuestring, ".eE") ? "number" : "integer";
}

/* Whether the list of types has the node's own, which is not that of a string. */
static bool is_declared(const cJSON *types, const cJSON *node)
{
    const char *name = type_name(node);
    const cJSON *type;

    if (!strcmp(name, "string"))
        return false;
    cJSON_ArrayForEach(type, types)
        if (cJSON_IsString(type) &&
            (!strcmp(type->valuestring, name) ||
             (!strcmp(type->valuestring, "number") && !strcmp(name, "integer"))))
            return true;
    return false;
}

/* The constants of Python and a plain string in its quotes. */
static bool python_literal(struct text *out, const char *s, size_t n)
{
    static const char *const word[][2] = {
        { "True", "true" }, { "False", "false" }, { "None", "null" },
    };
    size_t i;

    for (i = 0; i < sizeof(word) / sizeof(*word); i++) {
        if (n == strlen(word[i][0]) && !memcmp(s, word[i][0], n)) {
            text_puts(out, word[i][1]);
            return true;
        }
    }
    if (n < 2 || s[0] != '\'' || s[n - 1] != '\'' || memchr(s + 1, '\'', n - 2) ||
        memchr(s, '\\', n) || memchr(s, '\n', n))
        return false;
    text_json_string(out, s + 1, n - 2);
    return true;
}

static bool is_space(char c)
{
    return c == ' ' || c == '\n' || c == '\r' || c == '\t';
}

void argument_json(struct text *out, const char *s, size_t n, enum argument_kind kind,
                   const cJSON *properties, const char *key)
{
    const char *inner = s;
    size_t len = n;
    cJSON *node = NULL;

    while (len && is_space(inner[len - 1]))
        len--;
    while (len && is_space(*inner)) {
        inner++;
        len--;
    }
    if (kind != ARGUMENT_STRING && len)
        node = json_parse(inner, len, &VALUE, NULL);
    if (kind == ARGUMENT_STRING ||
        (kind == ARGUMENT_MAYBE_STRING &&
         !(node && is_declared(json_get(json_get(properties, key), "type"), node))))
        text_json_string(out, s, n);
    else if (node && all_finite(node))
        text_json_python(out, node);
    else if (!python_literal(out, inner, len))
        text_json_string(out, inner, len);
    cJSON_Delete(node);
}
