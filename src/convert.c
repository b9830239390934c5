/* Parts of both conversions; the conversions are in files of their own. */
#include "src/convert.h"

#include <stdarg.h>
#include <stdio.h>

bool convert_move(cJSON *from, const char *name, cJSON *to, const char *as)
{
    cJSON *node = cJSON_DetachItemFromObjectCaseSensitive(from, name);

    if (!node || cJSON_IsNull(node)) {
        cJSON_Delete(node);
        return true;
    }
    if (cJSON_AddItemToObject(to, as, node))
        return true;
    cJSON_Delete(node);
    return false;
}

cJSON *convert_message(cJSON *messages, const char *role, const char *content)
{
    cJSON *m = cJSON_CreateObject();

    if (!m || !cJSON_AddItemToArray(messages, m)) {
        cJSON_Delete(m);
        return NULL;
    }
    if (!cJSON_AddStringToObject(m, "role", role) ||
        (content && !cJSON_AddStringToObject(m, "content", content)))
        return NULL;
    return m;
}

bool convert_tool(cJSON *tools, cJSON *flat, const char *schema)
{
    cJSON *tool = cJSON_CreateObject(), *function;

    if (!tool || !cJSON_AddItemToArray(tools, tool)) {
        cJSON_Delete(tool);
        return false;
    }
    if (!cJSON_AddStringToObject(tool, "type", "function"))
        return false;
    function = cJSON_AddObjectToObject(tool, "function");
    return function && convert_move(flat, "name", function, "name") &&
           convert_move(flat, "description", function, "description") &&
           convert_move(flat, schema, function, "parameters");
}

bool convert_call(cJSON *message, const char *id, const char *name, cJSON *arguments)
{
    cJSON *calls = cJSON_GetObjectItemCaseSensitive(message, "tool_calls");
    cJSON *call = cJSON_CreateObject(), *function;

    if (!calls)
        calls = cJSON_AddArrayToObject(message, "tool_calls");
    if (!calls || !call || !cJSON_AddItemToArray(calls, call)) {
        cJSON_Delete(call);
        cJSON_Delete(arguments);
        return false;
    }
    function = cJSON_AddObjectToObject(call, "function");
    if (!function || (arguments && !cJSON_AddItemToObject(function, "arguments", arguments))) {
        cJSON_Delete(arguments);
        return false;
    }
    return (!id || cJSON_AddStringToObject(call, "id", id)) &&
           (!name || cJSON_AddStringToObject(function, "name", name)) &&
           cJSON_AddStringToObject(call, "type", "function");
}

bool convert_choice(cJSON *to, const char *name)
{
    cJSON *choice = cJSON_AddObjectToObject(to, "tool_choice");
    cJSON *function = choice ? cJSON_AddObjectToObject(choice, "function") : NULL;

    return function && cJSON_AddStringToObject(choice, "type", "function") &&
           cJSON_AddStringToObject(function, "name", name ? name : "");
}

cJSON *convert_refuse(struct request_error *e, const char *param, const char *code,
                      const char *fmt, ...)
{
    va_list ap;

    *e = (struct request_error){ .status = 400, .type = "invalid_request_error", .code = code };
    snprintf(e->param, sizeof(e->param), "%s", param);
    va_start(ap, fmt);
    vsnprintf(e->message, sizeof(e->message), fmt, ap);
    va_end(ap);
    return NULL;
}

cJSON *convert_no_memory(struct request_error *e)
{
    convert_refuse(e, "", "out_of_memory", "out of memory");
    e->status = 503;
    e->type = "server_error";
    return NULL;
}

const char *convert_string(const cJSON *object, const char *name)
{
    const cJSON *node = json_get(object, name);

    return cJSON_IsString(node) ? node->valuestring : NULL;
}
