/* The tools of a request -> nodes, by the tags of a call (src/toolparse.h reads them back, and
 * src/argument.c turns each value into JSON: a value is written so that it comes out as its
 * schema has it).  A string stands as it is, any other value as JSON. */
#include "src/schema_parts.h"
#include "src/argument.h"

#include <stdio.h>

enum { KEY_BYTES_MAX = 1000 };          /* as much as the parser takes, less its margin */

struct calls {
    const cJSON *tools;
    const char *name;
};

/* Free text: what is no value of another type is a string, so that anything follows from the
 * type alone.  Types with members would have to be recognised inside the text. */
static int compile_raw(struct compiler *c, const cJSON *schema, const struct schema_path *p,
                       int types)
{
    static const char *const bound[] = {
        "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum",
    };
    struct schema_node n = { .kind = SCHEMA_RAW, .item = SCHEMA_NONE };
    int i, rc;

    if (types & (TYPE_OBJECT | TYPE_ARRAY))
        return schema_refuse(c, p, "type", "a string or an object or array is not supported as "
                             "an argument");
    for (i = 0; types != TYPE_STRING && i < 4; i++)
        if (json_get(schema, bound[i]))
            return schema_refuse(c, p, bound[i], "%s of a number that may be a string is not "
                                 "supported", bound[i]);
    rc = schema_counts(c, schema, p, "minLength", "maxLength", &n);
    if (!rc && types != TYPE_STRING && (n.min || n.max != UINT32_MAX))
        return schema_refuse(c, p, n.min ? "minLength" : "maxLength", "a length of what may be no "
                             "string is not supported");
    return rc ? rc : schema_add(c, &n);
}

static int compile_value(struct compiler *c, const cJSON *properties, const cJSON *schema,
                         const struct schema_path *p)
{
    int types, rc;

    if (argument_kind(properties, schema->string) == ARGUMENT_OTHER || !cJSON_IsObject(schema))
        return schema_compile(c, schema, p, 1);
    rc = schema_check_keywords(c, schema, p);
    types = rc ? rc : schema_types(c, schema, p);
    if (types < 0)
        return types;
    /* What is checked here for a string's sake is compiled below for its own. */
    rc = schema_compile(c, schema, p, 1);
    if (rc < 0)
        return rc;
    if (json_get(schema, "enum") || json_get(schema, "const"))
        return schema_literals(c, schema, p, types, true);
    return compile_raw(c, schema, p, types);
}

/* A key that comes back from its tags as it went in. */
static bool is_writable(const char *key)
{
    size_t n = strlen(key);

    return n && n <= KEY_BYTES_MAX && !strchr(key, '<') && !strchr(" \t\r\n", key[0]) &&
           !strchr(" \t\r\n", key[n - 1]);
}

static int compile_arguments(struct compiler *c, const cJSON *schema, const struct schema_path *p)
{
    const cJSON *properties = json_get(schema, "properties"), *one, *type;
    struct schema_path at = { p, "properties", 0 }, key = { &at, NULL, 0 };
    struct schema_node n = { .kind = SCHEMA_ARGUMENTS, .item = SCHEMA_NONE };
    static const char *const chooser[] = { "$ref", "anyOf", "oneOf", "allOf", "enum", "const" };
    uint32_t id[SCHEMA_PROPERTIES], count = 0;
    size_t i;
    int rc = schema_check_keywords(c, schema, p);

    for (i = 0; !rc && i < sizeof(chooser) / sizeof(*chooser); i++)
        if (json_get(schema, chooser[i]))
            rc = schema_refuse(c, p, chooser[i], "%s is not supported for all parameters",
                               chooser[i]);
    type = json_get(schema, "type");
    if (!rc && type && !(cJSON_IsString(type) && !strcmp(type->valuestring, "object")))
        rc = schema_refuse(c, p, "type", "must be object");
    if (!rc && properties && (!cJSON_IsObject(properties) ||
                              cJSON_GetArraySize(properties) > SCHEMA_PROPERTIES))
        rc = schema_refuse(c, &at, NULL, "must be an object of at most %d members",
                           SCHEMA_PROPERTIES);
    if (rc)
        return rc;
    cJSON_ArrayForEach(one, properties) {
        key.name = one->string;
        if (!is_writable(one->string))
            return schema_refuse(c, &key, NULL, "the name cannot be written in a call");
        rc = compile_value(c, properties, one, &key);
        if (rc < 0)
            return rc;
        id[count++] = (uint32_t)rc;
    }
    rc = schema_properties(c, schema, p, id, false, &n);
    return rc ? rc : schema_add(c, &n);
}

static int compile_calls(struct compiler *c, const void *arg)
{
    const struct calls *calls = arg;
    struct schema_path tools = { NULL, "tools", 0 }, tool = { &tools, NULL, 0 };
    struct schema_path function = { &tool, "function.parameters", 0 };
    struct schema_node n = { .kind = SCHEMA_CALL, .item = SCHEMA_NONE };
    uint32_t id[128];
    const cJSON *one;
    int rc = schema_words_fail(c, &tools, schema_words_open(c->s, &n.words));

    cJSON_ArrayForEach(one, calls->tools) {
        const cJSON *f = json_get(one, "function");
        const char *name = json_get(f, "name")->valuestring;

        if (!calls->name || !strcmp(name, calls->name)) {
            c->root = json_get(f, "parameters");
            if (rc < 0)
                return rc;
            rc = compile_arguments(c, c->root, &function);
            if (rc < 0)
                return rc;
            id[n.links] = (uint32_t)rc;
            rc = schema_words_add(c->s, n.words, name, strlen(name), (int32_t)n.links++);
            rc = schema_words_fail(c, &function, rc);
            if (!rc)
                rc = schema_compile_refs(c);
        }
        tool.index++;
    }
    if (!rc)
        rc = schema_link(c, id, n.links, &n.link);
    return rc ? rc : schema_add(c, &n);
}

int schema_open_calls(struct schema **out, const cJSON *tools, const char *name, struct err *e)
{
    struct calls calls = { tools, name };

    return schema_build(out, compile_calls, &calls, e);
}
