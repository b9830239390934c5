/* The parts of a request that its answer is held to.  A schema that src/schema.h cannot compile
 * is refused with the path and the name of the keyword: there is no answer which silently does
 * without. */
#include "src/request_schema.h"

#include <errno.h>
#include <stdio.h>

enum { SCHEMA_BYTES = 1 << 20 };

/* The words of a compiler begin with the path of the fault. */
static int refuse(const struct params *f, int rc, const struct err *why)
{
    size_t path = strcspn(why->text, ":");

    if (rc == -ENOMEM) {
        *f->e = (struct request_error){ .status = 503, .type = "server_error",
                                         .code = "out_of_memory", .message = "out of memory" };
        return rc;
    }
    rc = param_refuse(f, "", "unsupported", "%s", why->text);
    snprintf(f->e->param, sizeof(f->e->param), "%.*s", (int)path, why->text);
    return rc;
}

static int compile(struct request *q, const struct params *f, const cJSON *schema,
                   const char *path)
{
    struct text printed = { 0 };
    struct err why = { "" };
    bool large;
    int rc;

    if (schema)
        text_json_python(&printed, schema);
    large = printed.failed || printed.n > SCHEMA_BYTES;
    text_free(&printed);
    if (large)
        return param_refuse(f, path, "invalid_value", "%s: more than %d bytes", path, SCHEMA_BYTES);
    rc = schema_open(&q->schema, schema, path, &why);
    return rc ? refuse(f, rc, &why) : 0;
}

static int read_schema(struct request *q, const struct params *f, const struct params *format)
{
    struct params in;
    const char *name = NULL;
    bool strict = false;
    int rc = param_object(format, "json_schema", "response_format.json_schema.", &in);

    if (!rc && !in.object)
        rc = param_refuse(format, "json_schema", "missing_field",
                          "response_format.json_schema is missing");
    if (!rc)
        rc = param_string(&in, "name", 256, &name);
    if (!rc)
        rc = param_bool(&in, "strict", &strict);
    if (!rc && !param_get(&in, "schema"))
        rc = param_refuse(&in, "schema", "missing_field",
                          "response_format.json_schema.schema is missing");
    return rc ? rc : compile(q, f, param_get(&in, "schema"), "response_format.json_schema.schema");
}

int request_format(struct request *q, const struct params *f)
{
    struct params format;
    const char *type = "text";
    int rc = param_object(f, "response_format", "response_format.", &format);

    if (!rc)
        rc = param_string(&format, "type", 32, &type);
    if (rc || !strcmp(type, "text"))
        return rc;
    if (!strcmp(type, "json_object"))
        return compile(q, f, NULL, "response_format");
    if (!strcmp(type, "json_schema"))
        return read_schema(q, f, &format);
    return param_refuse(&format, "type", "unsupported", "response_format %s is not supported",
                        type);
}

int request_calls(struct request *q, const struct params *f)
{
    struct err why = { "" };
    int rc;

    if (q->tool_choice != TOOLS_REQUIRED && q->tool_choice != TOOLS_NAMED)
        return 0;
    schema_close(q->schema);
    q->schema = NULL;
    rc = schema_open_calls(&q->schema, q->tools, q->tool_name, &why);
    return rc ? refuse(f, rc, &why) : 0;
}
