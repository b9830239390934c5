/* Thinking switches and tools of a request.  A tool's schema is passed on to the model and
 * to src/argument.c; it is compiled only where a call is demanded, in src/request_schema.c. */
#include "src/request_chat.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

enum {
    TOOL_NAME_BYTES = 64,
    TOOL_DEPTH = 32,
    TOOLS_BYTES = 1 << 20
};

/* A switch as a bool; *out: -1 where it is absent. */
static int read_switch(const struct params *f, const char *name, int *out)
{
    bool on;
    int rc;

    *out = -1;
    if (!param_get(f, name))
        return 0;
    rc = param_bool(f, name, &on);
    if (!rc)
        *out = on;
    return rc;
}

static int read_kwargs(const struct params *f, int *out)
{
    struct params kwargs;
    int enable = -1, thinking = -1, rc;

    rc = param_object(f, "chat_template_kwargs", "chat_template_kwargs.", &kwargs);
    if (!rc)
        rc = read_switch(&kwargs, "enable_thinking", &enable);
    if (!rc)
        rc = read_switch(&kwargs, "thinking", &thinking);
    /* The reference asks for either. */
    *out = enable > thinking ? enable : thinking;
    return rc;
}

/* {"type":"enabled"|"disabled"|"adaptive"}, or a bool. */
static int read_thinking(const struct params *f, int *out)
{
    struct params thinking;
    const char *type = NULL;
    int rc;

    if (cJSON_IsBool(param_get(f, "thinking")))
        return read_switch(f, "thinking", out);
    *out = -1;
    rc = param_object(f, "thinking", "thinking.", &thinking);
    if (!rc)
        rc = param_string(&thinking, "type", 32, &type);
    if (rc || !type)
        return rc;
    *out = strcmp(type, "disabled") != 0;
    if (*out && strcmp(type, "enabled") != 0 && strcmp(type, "adaptive") != 0)
        return param_refuse(&thinking, "type", "invalid_value",
                            "thinking.type must be enabled, disabled or adaptive");
    return 0;
}

static int read_effort(const struct params *f, const char *name, int *out)
{
    const char *effort = NULL;
    int rc = param_string(f, name, 32, &effort);

    *out = !effort ? -1 : strcmp(effort, "none") != 0;
    return rc;
}

static int read_reasoning(const struct params *f, int *out)
{
    struct params reasoning;
    int enabled = -1, effort = -1, rc;

    rc = param_object(f, "reasoning", "reasoning.", &reasoning);
    if (!rc)
        rc = read_switch(&reasoning, "enabled", &enabled);
    if (!rc)
        rc = read_effort(&reasoning, "effort", &effort);
    *out = enabled >= 0 ? enabled : effort;
    return rc;
}

int request_thinking(struct request *q, const struct params *f)
{
    enum { KWARGS, ENABLE, THINK, THINKING, REASONING, EFFORT, SWITCHES };
    int on[SWITCHES], i, rc;

    rc = read_kwargs(f, &on[KWARGS]);
    if (!rc)
        rc = read_switch(f, "enable_thinking", &on[ENABLE]);
    if (!rc)
        rc = read_switch(f, "think", &on[THINK]);
    if (!rc)
        rc = read_thinking(f, &on[THINKING]);
    if (!rc)
        rc = read_reasoning(f, &on[REASONING]);
    if (!rc)
        rc = read_effort(f, "reasoning_effort", &on[EFFORT]);
    for (i = 0; !rc && i < SWITCHES; i++)
        if (on[i] >= 0)
            break;
    q->thinking = !rc && i < SWITCHES && on[i];
    return rc;
}

static int depth_of(const cJSON *node)
{
    const cJSON *member;
    int deepest = 0, d;

    if (!cJSON_IsArray(node) && !cJSON_IsObject(node))
        return 0;
    cJSON_ArrayForEach(member, node) {
        d = depth_of(member);
        deepest = d > deepest ? d : deepest;
    }
    return deepest + 1;
}

static bool is_tool_name(const cJSON *name)
{
    size_t n = cJSON_IsString(name) ? strlen(name->valuestring) : 0;

    return n >= 1 && n <= TOOL_NAME_BYTES &&
           strspn(name->valuestring, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
                  "0123456789_-") == n;
}

static const cJSON *tool_name(const cJSON *tool)
{
    return json_get(json_get(tool, "function"), "name");
}

static int check_tool(const struct params *f, int i, const cJSON *tool)
{
    const cJSON *type = json_get(tool, "type"), *name = tool_name(tool), *other;
    const cJSON *parameters = json_get(json_get(tool, "function"), "parameters");
    char path[64];

    if (type && !(cJSON_IsString(type) && !strcmp(type->valuestring, "function"))) {
        snprintf(path, sizeof(path), "tools[%d].type", i);
        return param_refuse(f, path, "unsupported", "%s: only functions are supported", path);
    }
    snprintf(path, sizeof(path), "tools[%d].function.name", i);
    if (!is_tool_name(name))
        return param_refuse(f, path, "invalid_value", "%s must be 1 to %d letters, digits, _ or -",
                            path, TOOL_NAME_BYTES);
    for (other = tool->prev; other->next; other = other->prev)
        if (cJSON_IsString(tool_name(other)) &&
            !strcmp(tool_name(other)->valuestring, name->valuestring))
            return param_refuse(f, path, "invalid_value", "%s: %s is there twice", path,
                                name->valuestring);
    snprintf(path, sizeof(path), "tools[%d].function.parameters", i);
    if (parameters && !cJSON_IsNull(parameters) && !cJSON_IsObject(parameters))
        return param_refuse(f, path, "invalid_type", "%s must be an object", path);
    if (depth_of(parameters) > TOOL_DEPTH)
        return param_refuse(f, path, "invalid_value", "%s: deeper than %d levels", path,
                            TOOL_DEPTH);
    return 0;
}

static int check_tools(struct request *q, const struct params *f)
{
    const cJSON *tools = param_get(f, "tools"), *tool;
    struct text printed = { 0 };
    int n = cJSON_GetArraySize(tools), i = 0, rc = 0;
    bool large;

    if (!tools)
        return 0;
    if (!cJSON_IsArray(tools) || n > REQUEST_TOOLS)
        return param_refuse(f, "tools", "invalid_value", "tools must be an array of at most %d",
                            REQUEST_TOOLS);
    cJSON_ArrayForEach(tool, tools) {
        rc = check_tool(f, i++, tool);
        if (rc)
            return rc;
    }
    text_json_python(&printed, tools);
    large = printed.failed || printed.n > TOOLS_BYTES;
    text_free(&printed);
    if (large)
        return param_refuse(f, "tools", "invalid_value", "tools: more than %d bytes", TOOLS_BYTES);
    q->tools = n ? tools : NULL;
    return 0;
}

static int read_named(struct request *q, const struct params *f, const cJSON *choice)
{
    const cJSON *type = json_get(choice, "type"), *name = tool_name(choice), *tool;

    if (!cJSON_IsString(type) || strcmp(type->valuestring, "function") != 0 ||
        !cJSON_IsString(name))
        return param_refuse(f, "tool_choice", "invalid_value", "tool_choice must be none, auto, "
                            "required or {\"type\":\"function\",\"function\":{\"name\":...}}");
    cJSON_ArrayForEach(tool, q->tools)
        if (!strcmp(tool_name(tool)->valuestring, name->valuestring))
            break;
    if (!tool)
        return param_refuse(f, "tool_choice.function.name", "invalid_value",
                            "tool_choice: no tool is called %.64s", name->valuestring);
    q->tool_choice = TOOLS_NAMED;
    q->tool_name = name->valuestring;
    return 0;
}

static int read_choice(struct request *q, const struct params *f)
{
    static const char *const word[] = { "auto", "none", "required" };
    const cJSON *choice = param_get(f, "tool_choice");
    int i;

    if (!choice)
        return 0;
    for (i = 0; cJSON_IsString(choice) && i <= TOOLS_REQUIRED; i++)
        if (!strcmp(choice->valuestring, word[i]))
            break;
    if (!cJSON_IsString(choice) || i > TOOLS_REQUIRED)
        return read_named(q, f, choice);
    if (i == TOOLS_REQUIRED && !q->tools)
        return param_refuse(f, "tool_choice", "invalid_value",
                            "tool_choice is required, but there are no tools");
    q->tool_choice = (enum tool_choice)i;
    return 0;
}

int request_tools(struct request *q, const struct params *f)
{
    int rc = check_tools(q, f);

    if (!rc)
        rc = read_choice(q, f);
    if (!rc)
        rc = param_bool(f, "parallel_tool_calls", &q->parallel_tool_calls);
    return rc;
}
