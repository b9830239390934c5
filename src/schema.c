/* JSON Schema -> nodes.  A keyword that is not compiled is refused, never skipped.  References
 * are followed by a list of what waits, so that none of them nests; what they allow a value to
 * nest is bounded when it is written.  Types and literals are src/schema_types.c. */
#include "src/schema_parts.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

void schema_path_text(char out[128], const struct schema_path *p, const char *name)
{
    const struct schema_path *part[2 * SCHEMA_DEPTH + 8];
    size_t n = 0, at = 0;

    for (; p && n < sizeof(part) / sizeof(*part); p = p->up)
        part[n++] = p;
    out[0] = 0;
    while (n-- > 0 && at < 127) {
        const char *dot = at ? "." : "";

        at += (size_t)(part[n]->name
                           ? snprintf(out + at, 128 - at, "%s%.64s", dot, part[n]->name)
                           : snprintf(out + at, 128 - at, "[%d]", part[n]->index));
    }
    if (name && at < 127)
        snprintf(out + at, 128 - at, "%s%.64s", at ? "." : "", name);
}

int schema_refuse(struct compiler *c, const struct schema_path *p, const char *name,
                  const char *fmt, ...)
{
    char path[128], words[256];
    va_list ap;

    va_start(ap, fmt);
    vsnprintf(words, sizeof(words), fmt, ap);
    va_end(ap);
    schema_path_text(path, p, name);
    return fail(c->e, -EBADMSG, "%s: %s", path, words);
}

int schema_no_memory(struct compiler *c)
{
    return fail(c->e, -ENOMEM, "out of memory");
}

int schema_words_fail(struct compiler *c, const struct schema_path *p, int rc)
{
    if (rc == -ENOBUFS)
        return schema_refuse(c, p, NULL, "more than %d bytes of keys and texts",
                             SCHEMA_WORD_BYTES);
    return rc ? schema_no_memory(c) : 0;
}

int schema_add(struct compiler *c, const struct schema_node *n)
{
    struct schema *s = c->s;

    if (s->nodes == s->node_cap) {
        uint32_t cap = s->node_cap ? 2 * s->node_cap : 64;
        struct schema_node *more = realloc(s->node, cap * sizeof(*more));

        if (!more)
            return schema_no_memory(c);
        s->node = more;
        s->node_cap = cap;
    }
    if (s->nodes == SCHEMA_NODES)
        return fail(c->e, -EBADMSG, "schema: more than %d parts", SCHEMA_NODES);
    s->node[s->nodes] = *n;
    return (int)s->nodes++;
}

int schema_link(struct compiler *c, const uint32_t *id, uint32_t n, uint32_t *at)
{
    struct schema *s = c->s;
    uint32_t cap = s->link_cap ? s->link_cap : 64, *more;

    *at = s->links;
    while (cap < s->links + n)
        cap *= 2;
    if (cap != s->link_cap) {
        more = realloc(s->link, cap * sizeof(*more));
        if (!more)
            return schema_no_memory(c);
        s->link = more;
        s->link_cap = cap;
    }
    if (n)
        memcpy(s->link + s->links, id, n * sizeof(*id));
    s->links += n;
    return 0;
}

static int any_of(struct compiler *c, const uint32_t *id, uint32_t n)
{
    struct schema_node node = { .kind = SCHEMA_ANY_OF, .links = n, .item = SCHEMA_NONE };
    int rc = schema_link(c, id, n, &node.link);

    return rc ? rc : schema_add(c, &node);
}

static bool is_named(const char *name, const char *const *list)
{
    while (*list && strcmp(*list, name) != 0)
        list++;
    return *list != NULL;
}

static const char *const annotation[] = {
    "$schema", "$id", "$comment", "$defs", "definitions", "title", "description", "default",
    "examples", "example", "deprecated", "readOnly", "writeOnly", NULL,
};
static const char *const chooser[] = { "$ref", "anyOf", "oneOf", "allOf", NULL };
static const char *const assertion[] = {
    "type", "properties", "required", "additionalProperties", "enum", "const", "items",
    "minItems", "maxItems", "minLength", "maxLength", "minimum", "maximum", "exclusiveMinimum",
    "exclusiveMaximum", NULL,
};

int schema_check_keywords(struct compiler *c, const cJSON *schema, const struct schema_path *p)
{
    const cJSON *member;

    cJSON_ArrayForEach(member, schema)
        if (!is_named(member->string, annotation) && !is_named(member->string, chooser) &&
            !is_named(member->string, assertion))
            return schema_refuse(c, p, member->string, "%.64s is not supported", member->string);
    return 0;
}

/* The keyword of a schema that consists in one: $ref or anyOf. */
static const cJSON *find_chooser(const cJSON *schema)
{
    const cJSON *member;

    cJSON_ArrayForEach(member, schema)
        if (is_named(member->string, chooser))
            return member;
    return NULL;
}

/* What the pointer behind "#" leads to, or NULL. */
static const cJSON *follow(const cJSON *root, const char *at)
{
    char name[256];

    while (root && *at) {
        size_t n = 0;

        if (*at++ != '/')
            return NULL;
        for (; *at && *at != '/'; at++) {
            if (n == sizeof(name) - 1 || *at == '%')
                return NULL;
            name[n++] = *at;
            if (*at == '~' && (at[1] == '0' || at[1] == '1'))
                name[n - 1] = *++at == '0' ? '~' : '/';
        }
        name[n] = 0;
        if (cJSON_IsArray(root) && n && n < 6 && strspn(name, "0123456789") == n)
            root = cJSON_GetArrayItem(root, atoi(name));
        else
            root = cJSON_IsObject(root) ? json_get(root, name) : NULL;
    }
    return root;
}

/* The target gets a node at once, which is filled in later.  A spelling is followed once: a
 * thousand references past 200,000 other definitions took 1.5 s. */
static int compile_ref(struct compiler *c, const cJSON *ref, const struct schema_path *p)
{
    struct schema_pending *new = &c->ref[c->refs];
    const cJSON *target;
    int i, id;

    if (!cJSON_IsString(ref) || ref->valuestring[0] != '#')
        return schema_refuse(c, p, "$ref", "$ref must begin with #");
    for (i = 0; i < c->refs; i++)
        if (!strcmp(c->ref[i].ref, ref->valuestring))
            return (int)c->ref[i].node;
    if (c->refs == SCHEMA_REFS)
        return schema_refuse(c, p, "$ref", "more than %d references", SCHEMA_REFS);
    target = follow(c->root, ref->valuestring + 1);
    if (!target)
        return schema_refuse(c, p, "$ref", "$ref %.100s leads nowhere", ref->valuestring);
    for (i = 0; i < c->refs && c->ref[i].schema != target; i++)
        ;
    id = i < c->refs ? (int)c->ref[i].node : any_of(c, NULL, 0);
    if (id < 0)
        return id;
    *new = (struct schema_pending){ ref->valuestring, i < c->refs ? NULL : target, (uint32_t)id };
    c->refs++;
    return id;
}

int schema_compile_refs(struct compiler *c)
{
    for (; c->done < c->refs; c->done++) {
        static const struct schema_path at = { NULL, "$ref", 0 };
        struct schema_node *n;
        uint32_t link, id;
        int rc;

        if (!c->ref[c->done].schema)
            continue;
        rc = schema_compile(c, c->ref[c->done].schema, &at, 0);
        if (rc < 0)
            return rc;
        id = (uint32_t)rc;
        rc = schema_link(c, &id, 1, &link);
        if (rc)
            return rc;
        n = &c->s->node[c->ref[c->done].node];
        n->link = link;
        n->links = 1;
    }
    c->refs = c->done = 0;
    return 0;
}

static int compile_choice(struct compiler *c, const cJSON *list, const struct schema_path *p,
                          int depth)
{
    struct schema_path key = { p, list->string, 0 }, item = { &key, NULL, 0 };
    uint32_t id[SCHEMA_ALTERNATIVES];
    int n = cJSON_GetArraySize(list);
    int most = strcmp(list->string, "allOf") ? SCHEMA_ALTERNATIVES : 1;
    const cJSON *one;
    int rc = 0;

    if (!cJSON_IsArray(list) || n < 1 || n > most)
        return schema_refuse(c, &key, NULL, "must be an array of 1 to %d schemas", most);
    cJSON_ArrayForEach(one, list) {
        rc = schema_compile(c, one, &item, depth + 1);
        if (rc < 0)
            return rc;
        id[item.index++] = (uint32_t)rc;
    }
    rc = any_of(c, id, (uint32_t)n);
    if (rc >= 0 && n > 1 && !strcmp(list->string, "oneOf")) {
        struct schema_one *check = &c->one[c->ones];

        if (c->ones == SCHEMA_ONES)
            return schema_refuse(c, &key, NULL, "more than %d of these", SCHEMA_ONES);
        check->link = c->s->node[rc].link;
        check->links = (uint32_t)n;
        schema_path_text(check->path, &key, NULL);
        c->ones++;
    }
    return rc;
}

int schema_compile(struct compiler *c, const cJSON *schema, const struct schema_path *p, int depth)
{
    const cJSON *choice, *member;
    int rc;

    if (cJSON_IsTrue(schema))
        return schema_any(c);
    if (!cJSON_IsObject(schema))
        return schema_refuse(c, p, NULL, "a schema must be an object");
    if (depth >= SCHEMA_DEPTH)
        return schema_refuse(c, p, NULL, "deeper than %d levels", SCHEMA_DEPTH);
    rc = schema_check_keywords(c, schema, p);
    choice = find_chooser(schema);
    if (rc || !choice)
        return rc ? rc : schema_compile_types(c, schema, p, depth);
    cJSON_ArrayForEach(member, schema)
        if (member != choice && !is_named(member->string, annotation))
            return schema_refuse(c, p, member->string, "%.64s beside %s is not supported",
                                 member->string, choice->string);
    if (!strcmp(choice->string, "$ref"))
        return compile_ref(c, choice, p);
    return compile_choice(c, choice, p, depth);
}

/* Any value: each kind of it, with any values inside. */
int schema_any(struct compiler *c)
{
    static const char *const word[] = { "true", "false", "null" };
    struct schema_node kind[] = {
        { .kind = SCHEMA_OBJECT }, { .kind = SCHEMA_ARRAY }, { .kind = SCHEMA_STRING },
        { .kind = SCHEMA_NUMBER }, { .kind = SCHEMA_LITERALS },
    };
    uint32_t id[5], link;
    int any, i, rc;

    if (c->any != SCHEMA_NONE)
        return c->any;
    any = any_of(c, NULL, 0);
    if (any < 0)
        return any;
    rc = schema_words_open(c->s, &kind[0].words);
    if (!rc)
        rc = schema_words_open(c->s, &kind[4].words);
    for (i = 0; !rc && i < 3; i++)
        rc = schema_words_add(c->s, kind[4].words, word[i], strlen(word[i]), i);
    if (rc)
        return schema_words_fail(c, NULL, rc);
    for (i = 0; i < 5; i++) {
        kind[i].max = UINT32_MAX;
        kind[i].item = any;
        rc = schema_add(c, &kind[i]);
        if (rc < 0)
            return rc;
        id[i] = (uint32_t)rc;
    }
    rc = schema_link(c, id, 5, &link);
    if (rc)
        return rc;
    c->s->node[any].link = link;
    c->s->node[any].links = 5;
    c->any = any;
    return any;
}

int schema_build(struct schema **out, schema_fn compile, const void *arg, struct err *e)
{
    struct schema_node document = { .kind = SCHEMA_DOCUMENT, .item = SCHEMA_NONE };
    struct compiler *c = calloc(1, sizeof(*c));
    int rc;

    if (c)
        c->s = calloc(1, sizeof(*c->s));
    if (!c || !c->s) {
        free(c);
        return fail(e, -ENOMEM, "out of memory");
    }
    c->any = SCHEMA_NONE;
    c->steps = SCHEMA_STEPS;
    c->e = e;
    rc = schema_add(c, &document);
    if (rc >= 0)
        rc = compile(c, arg);
    if (rc >= 0) {
        c->s->node[0].item = rc;
        rc = schema_compile_refs(c);
    }
    if (!rc)
        rc = schema_finish(c);
    if (rc)
        schema_close(c->s);
    else
        *out = c->s;
    free(c);
    return rc;
}

void schema_close(struct schema *s)
{
    if (!s)
        return;
    free(s->node);
    free(s->link);
    free(s->word);
    free(s);
}

struct source {
    const cJSON *schema;
    const char *path;
};

static int compile_document(struct compiler *c, const void *arg)
{
    const struct source *from = arg;
    struct schema_path at = { NULL, from->path, 0 };
    struct schema_node object = { .kind = SCHEMA_OBJECT, .max = UINT32_MAX };
    int rc;

    c->root = from->schema;
    if (from->schema)
        return schema_compile(c, from->schema, &at, 0);
    object.item = schema_any(c);
    if (object.item < 0)
        return object.item;
    rc = schema_words_fail(c, &at, schema_words_open(c->s, &object.words));
    return rc ? rc : schema_add(c, &object);
}

int schema_open(struct schema **out, const cJSON *schema, const char *path, struct err *e)
{
    struct source from = { schema, path };

    return schema_build(out, compile_document, &from, e);
}
