/* Schemas that say themselves what a value is: by its type, or by naming the values. */
#include "src/schema_parts.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>

enum { COUNT_MAX = 1000000 };

static const int64_t INTEGER_MAX = 999999999999999999;  /* with bounds; a step more fits too */

static int type_of_name(const cJSON *name)
{
    static const char *const names[] = {
        "object", "array", "string", "integer", "number", "boolean", "null",
    };
    int i;

    for (i = 0; cJSON_IsString(name) && i < 7; i++)
        if (!strcmp(name->valuestring, names[i]))
            return 1 << i;
    return 0;
}

int schema_types(struct compiler *c, const cJSON *schema, const struct schema_path *p)
{
    const cJSON *type = json_get(schema, "type"), *one;
    int types = type_of_name(type), bit;

    if (cJSON_IsArray(type))
        for (one = type->child; one; one = one->next) {
            bit = type_of_name(one);
            types = bit ? types | bit : 0;
            if (!bit)
                break;
        }
    if (type && !types)
        return schema_refuse(c, p, "type", "must be one or some of object, array, string, "
                             "integer, number, boolean and null");
    return types;
}

static int type_of_value(const cJSON *v)
{
    if (cJSON_IsObject(v))
        return TYPE_OBJECT;
    if (cJSON_IsArray(v))
        return TYPE_ARRAY;
    if (cJSON_IsString(v))
        return TYPE_STRING;
    if (cJSON_IsBool(v))
        return TYPE_BOOLEAN;
    if (cJSON_IsNull(v))
        return TYPE_NULL;
    return strpbrk(v->valuestring, ".eE") ? TYPE_NUMBER : TYPE_NUMBER | TYPE_INTEGER;
}

/* The value as it is to be written.  -EBADMSG where that would be read as something else: a
 * number beyond all floats, a tag of a call, a string among other types that looks like one. */
static int print_value(struct text *t, const cJSON *v, int types, bool raw)
{
    bool bare = raw && cJSON_IsString(v), json;

    t->n = 0;
    if (bare)
        text_add(t, v->valuestring, strlen(v->valuestring));
    else
        text_json_python(t, v);
    if (t->failed)
        return -ENOMEM;
    json = t->n && !json_scan(t->s, t->n, &JSON_REQUEST, NULL);
    if (t->n && strstr(t->s, SCHEMA_VALUE_END))
        return -EBADMSG;
    return bare ? json && types & ~TYPE_STRING ? -EBADMSG : 0 : json ? 0 : -EBADMSG;
}

int schema_literals(struct compiler *c, const cJSON *schema, const struct schema_path *p,
                    int types, bool raw)
{
    const cJSON *list = json_get(schema, "enum"), *only = json_get(schema, "const"), *v;
    const char *name = list ? "enum" : "const";
    struct schema_node n = { .kind = SCHEMA_LITERALS, .item = SCHEMA_NONE };
    struct text printed = { 0 };
    int words = 0, rc;

    if (list && (only || !cJSON_IsArray(list)))
        return schema_refuse(c, p, name, only ? "enum beside const is not supported"
                                              : "must be an array");
    rc = schema_words_open(c->s, &n.words);
    for (v = list ? list->child : only; v && !rc; v = list ? v->next : NULL) {
        if (types && !(types & type_of_value(v)))
            continue;
        rc = print_value(&printed, v, types, raw);
        if (!rc)
            rc = schema_words_add(c->s, n.words, printed.s ? printed.s : "", printed.n, words++);
    }
    text_free(&printed);
    if (rc == -EBADMSG)
        return schema_refuse(c, p, name, "a value that cannot be written");
    if (!rc && !words)
        return schema_refuse(c, p, name, "no value is of the type");
    rc = schema_words_fail(c, p, rc);
    return rc ? rc : schema_add(c, &n);
}

int schema_counts(struct compiler *c, const cJSON *schema, const struct schema_path *p,
                  const char *min, const char *max, struct schema_node *n)
{
    const char *const name[] = { min, max };
    int64_t v[] = { 0, UINT32_MAX };
    int i;

    for (i = 0; i < 2; i++) {
        const cJSON *count = json_get(schema, name[i]);

        if (count && json_int64(count, 0, COUNT_MAX, &v[i]))
            return schema_refuse(c, p, name[i], "must be an integer from 0 to %d", COUNT_MAX);
    }
    if (v[0] > v[1])
        return schema_refuse(c, p, min, "is above %s", max);
    n->min = (uint32_t)v[0];
    n->max = (uint32_t)v[1];
    return 0;
}

static int index_of(const cJSON *properties, const char *name)
{
    const cJSON *one;
    int i = 0;

    cJSON_ArrayForEach(one, properties) {
        if (!strcmp(one->string, name))
            return i;
        i++;
    }
    return -1;
}

static int add_required(struct compiler *c, const cJSON *schema, const struct schema_path *p,
                        struct schema_node *n)
{
    const cJSON *required = json_get(schema, "required"), *one;
    int i;

    if (required && !cJSON_IsArray(required))
        return schema_refuse(c, p, "required", "must be an array");
    cJSON_ArrayForEach(one, required) {
        if (!cJSON_IsString(one))
            return schema_refuse(c, p, "required", "must be an array of strings");
        i = index_of(json_get(schema, "properties"), one->valuestring);
        if (i < 0)
            return schema_refuse(c, p, "required", "%.64s is not among the properties",
                                 one->valuestring);
        n->required |= (uint64_t)1 << i;
    }
    return 0;
}

int schema_properties(struct compiler *c, const cJSON *schema, const struct schema_path *p,
                      const uint32_t *id, bool json, struct schema_node *n)
{
    const cJSON *properties = json_get(schema, "properties"), *one;
    struct text key = { 0 };
    int i = 0, rc = schema_words_open(c->s, &n->words);

    cJSON_ArrayForEach(one, properties) {
        key.n = 0;
        text_puts(&key, json ? "" : one->string);
        if (json)
            text_json_string(&key, one->string, strlen(one->string));
        if (!rc && key.failed)
            rc = -ENOMEM;
        if (!rc && strstr(key.s, "</"))          /* as a tag begins */
            rc = schema_refuse(c, p, "properties", "the name %.64s cannot be written",
                               one->string);
        if (!rc)
            rc = schema_words_add(c->s, n->words, json ? key.s + 1 : key.s,
                                  json ? key.n - 2 : key.n, i++);
    }
    text_free(&key);
    if (rc != -EBADMSG)
        rc = schema_words_fail(c, p, rc);
    if (!rc)
        rc = schema_link(c, id, (uint32_t)i, &n->link);
    n->links = (uint32_t)i;
    return rc ? rc : add_required(c, schema, p, n);
}

static int compile_object(struct compiler *c, const cJSON *schema, const struct schema_path *p,
                          int depth)
{
    const cJSON *properties = json_get(schema, "properties"), *one;
    const cJSON *more = json_get(schema, "additionalProperties");
    struct schema_path at = { p, "properties", 0 }, key = { &at, NULL, 0 };
    struct schema_path extra = { p, "additionalProperties", 0 };
    struct schema_node n = { .kind = SCHEMA_OBJECT, .item = SCHEMA_NONE };
    uint32_t id[SCHEMA_PROPERTIES], count = 0;
    int rc = 0;

    if (properties && (!cJSON_IsObject(properties) ||
                       cJSON_GetArraySize(properties) > SCHEMA_PROPERTIES))
        return schema_refuse(c, &at, NULL, "must be an object of at most %d members",
                             SCHEMA_PROPERTIES);
    cJSON_ArrayForEach(one, properties) {
        key.name = one->string;
        rc = schema_compile(c, one, &key, depth + 1);
        if (rc < 0)
            return rc;
        id[count++] = (uint32_t)rc;
    }
    if (more ? !cJSON_IsFalse(more) : !properties) {
        rc = more ? schema_compile(c, more, &extra, depth + 1) : schema_any(c);
        if (rc < 0)
            return rc;
        n.item = rc;
    }
    rc = schema_properties(c, schema, p, id, true, &n);
    return rc ? rc : schema_add(c, &n);
}

static int compile_array(struct compiler *c, const cJSON *schema, const struct schema_path *p,
                         int depth)
{
    struct schema_path at = { p, "items", 0 };
    struct schema_node n = { .kind = SCHEMA_ARRAY };
    const cJSON *items = json_get(schema, "items");
    int rc = schema_counts(c, schema, p, "minItems", "maxItems", &n);

    if (rc)
        return rc;
    n.item = items ? schema_compile(c, items, &at, depth + 1) : schema_any(c);
    return n.item < 0 ? n.item : schema_add(c, &n);
}

/* A bound as the integer that it comes to; up: the least one at or above it. */
static int read_bound(struct compiler *c, const cJSON *node, const struct schema_path *p, bool up,
                      int64_t *out)
{
    double v;

    if (!cJSON_IsNumber(node))
        return schema_refuse(c, p, node->string, "must be a number");
    if (!json_int64(node, -INTEGER_MAX, INTEGER_MAX, out))
        return 0;
    v = up ? ceil(node->valuedouble) : floor(node->valuedouble);
    *out = v >= 1e18 ? INTEGER_MAX + 1 : v <= -1e18 ? -INTEGER_MAX - 1 : (int64_t)v;
    return 0;
}

static int compile_integer(struct compiler *c, const cJSON *schema, const struct schema_path *p)
{
    static const char *const name[] = {
        "minimum", "exclusiveMinimum", "maximum", "exclusiveMaximum",
    };
    struct schema_node n = { .kind = SCHEMA_INTEGER, .item = SCHEMA_NONE, .low = -INTEGER_MAX,
                             .high = INTEGER_MAX };
    int64_t v = 0;
    int i, rc;

    for (i = 0; i < 4; i++) {
        const cJSON *bound = json_get(schema, name[i]);
        bool low = i < 2, beyond = i & 1;

        if (!bound)
            continue;
        /* Beyond 2.5 begins one above 2, reaching it at 3. */
        rc = read_bound(c, bound, p, low != beyond, &v);
        if (rc)
            return rc;
        n.bounded = true;
        if (beyond)
            v += low ? 1 : -1;
        if (low)
            n.low = v > n.low ? v : n.low;
        else
            n.high = v < n.high ? v : n.high;
    }
    if (n.low > n.high)
        return schema_refuse(c, p, NULL, "no integer is within its bounds");
    return schema_add(c, &n);
}

static int compile_words(struct compiler *c, const struct schema_path *p, const char *a,
                         const char *b)
{
    struct schema_node n = { .kind = SCHEMA_LITERALS, .item = SCHEMA_NONE };
    int rc = schema_words_open(c->s, &n.words);

    if (!rc)
        rc = schema_words_add(c->s, n.words, a, strlen(a), 0);
    if (!rc && b)
        rc = schema_words_add(c->s, n.words, b, strlen(b), 1);
    rc = schema_words_fail(c, p, rc);
    return rc ? rc : schema_add(c, &n);
}

static int compile_type(struct compiler *c, const cJSON *schema, const struct schema_path *p,
                        int depth, int type)
{
    struct schema_node n = { .kind = SCHEMA_NUMBER, .item = SCHEMA_NONE };
    int rc;

    switch (type) {
    case TYPE_OBJECT:
        return compile_object(c, schema, p, depth);
    case TYPE_ARRAY:
        return compile_array(c, schema, p, depth);
    case TYPE_STRING:
        n.kind = SCHEMA_STRING;
        rc = schema_counts(c, schema, p, "minLength", "maxLength", &n);
        return rc ? rc : schema_add(c, &n);
    case TYPE_INTEGER:
        return compile_integer(c, schema, p);
    case TYPE_NUMBER:
        return schema_add(c, &n);
    case TYPE_BOOLEAN:
        return compile_words(c, p, "true", "false");
    default:
        return compile_words(c, p, "null", NULL);
    }
}

/* The type that alone has the keyword, or 0. */
static int type_of_keyword(const char *name)
{
    static const struct {
        const char *name;
        int type;
    } sign[] = {
        { "properties", TYPE_OBJECT }, { "required", TYPE_OBJECT },
        { "additionalProperties", TYPE_OBJECT }, { "items", TYPE_ARRAY },
        { "minItems", TYPE_ARRAY }, { "maxItems", TYPE_ARRAY },
        { "minLength", TYPE_STRING }, { "maxLength", TYPE_STRING },
        { "minimum", TYPE_INTEGER }, { "maximum", TYPE_INTEGER },
        { "exclusiveMinimum", TYPE_INTEGER }, { "exclusiveMaximum", TYPE_INTEGER },
    };
    size_t i;

    for (i = 0; i < sizeof(sign) / sizeof(*sign); i++)
        if (!strcmp(name, sign[i].name))
            return sign[i].type;
    return 0;
}

/* Keywords that would be lost here; *guess: the types that the others stand for. */
static int check_beside(struct compiler *c, const cJSON *schema, const struct schema_path *p,
                        int types, int *guess)
{
    bool listed = json_get(schema, "enum") || json_get(schema, "const");
    const cJSON *member;

    *guess = 0;
    cJSON_ArrayForEach(member, schema) {
        int type = type_of_keyword(member->string);

        if (type && listed)
            return schema_refuse(c, p, member->string, "%.64s beside enum or const is not "
                                 "supported", member->string);
        if (type == TYPE_INTEGER && types & TYPE_NUMBER)
            return schema_refuse(c, p, member->string, "%.64s is supported for integers only",
                                 member->string);
        *guess |= type;
    }
    return 0;
}

int schema_compile_types(struct compiler *c, const cJSON *schema, const struct schema_path *p,
                         int depth)
{
    struct schema_node any = { .kind = SCHEMA_ANY_OF, .item = SCHEMA_NONE };
    int types = schema_types(c, schema, p), guess, type, rc;
    uint32_t id[8];
    bool guessed = !types;

    if (types < 0)
        return types;
    rc = check_beside(c, schema, p, types, &guess);
    if (rc)
        return rc;
    if (json_get(schema, "enum") || json_get(schema, "const"))
        return schema_literals(c, schema, p, types, false);
    if (!types)
        types = guess;
    if (!types)
        return schema_any(c);
    for (type = 1; type <= TYPE_NULL; type <<= 1) {
        if (!(types & type))
            continue;
        rc = compile_type(c, schema, p, depth, type);
        if (rc < 0)
            return rc;
        c->s->node[rc].guessed = guessed;
        id[any.links++] = (uint32_t)rc;
    }
    if (any.links == 1)
        return rc;
    rc = schema_link(c, id, any.links, &any.link);
    return rc ? rc : schema_add(c, &any);
}
