#include "src/convert.h"

#include <errno.h>
#include <stdio.h>

/* OpenAI's /responses.  Nothing is stored: the whole conversation comes with every request. */

struct convert {
    cJSON *body, *chat, *messages;
    cJSON *turn;                /* the assistant's message that items are gathered in, or NULL */
    struct text text;           /* scratch */
    struct request_error *e;
};

static int refuse(struct convert *c, const char *param, const char *what)
{
    convert_refuse(c->e, param, "invalid_value", "%s%s%s", param, *param ? " " : "", what);
    return -EBADMSG;
}

/* A string or parts with a text, joined, into c->text. */
static int join_text(struct convert *c, const char *path, const cJSON *content)
{
    const cJSON *part;

    c->text.n = 0;
    text_puts(&c->text, "");
    if (cJSON_IsString(content))
        text_puts(&c->text, content->valuestring);
    else if (!cJSON_IsArray(content))
        return refuse(c, path, "must have a string or parts as its content");
    cJSON_ArrayForEach(part, content) {
        const char *type = convert_string(part, "type");

        if (!convert_string(part, "text"))
            return refuse(c, path, type && !strcmp(type, "input_image")
                          ? "image input is not supported" : "holds a part without text");
        text_puts(&c->text, convert_string(part, "text"));
    }
    return c->text.failed ? -ENOMEM : 0;
}

/* The assistant's message at the end: thoughts, text and calls of one turn are items of their
 * own here, and one message there. */
static cJSON *turn(struct convert *c)
{
    if (!c->turn)
        c->turn = convert_message(c->messages, "assistant", NULL);
    return c->turn;
}

static int convert_said(struct convert *c, const char *path, const cJSON *item)
{
    const char *role = convert_string(item, "role");
    int rc = join_text(c, path, json_get(item, "content"));

    if (rc)
        return rc;
    if (!role)
        return refuse(c, path, "has no role");
    if (strcmp(role, "assistant")) {
        c->turn = NULL;
        return convert_message(c->messages, role, c->text.s) ? 0 : -ENOMEM;
    }
    if (c->turn && json_get(c->turn, "content"))
        c->turn = NULL;
    return turn(c) && cJSON_AddStringToObject(c->turn, "content", c->text.s) ? 0 : -ENOMEM;
}

static int convert_output(struct convert *c, const char *path, const cJSON *item)
{
    const char *id = convert_string(item, "call_id");
    int rc = join_text(c, path, json_get(item, "output"));
    cJSON *m;

    if (rc)
        return rc;
    c->turn = NULL;
    m = convert_message(c->messages, "tool", c->text.s);
    return m && (!id || cJSON_AddStringToObject(m, "tool_call_id", id)) ? 0 : -ENOMEM;
}

static int convert_reasoning(struct convert *c, const cJSON *item)
{
    const cJSON *list = json_get(item, "content"), *part;

    if (!cJSON_IsArray(list) || !list->child)
        list = json_get(item, "summary");
    c->text.n = 0;
    cJSON_ArrayForEach(part, list)
        text_puts(&c->text, convert_string(part, "text") ? convert_string(part, "text") : "");
    if (!c->text.n)
        return 0;
    if (c->turn && json_get(c->turn, "reasoning"))
        c->turn = NULL;
    return !c->text.failed && turn(c) && cJSON_AddStringToObject(c->turn, "reasoning", c->text.s)
           ? 0 : -ENOMEM;
}

/* Items of other types are of tools that are not here: they pass in silence. */
static int convert_item(struct convert *c, int i, cJSON *item)
{
    const char *type = convert_string(item, "type");
    char path[64];

    snprintf(path, sizeof(path), "input[%d]", i);
    if (!cJSON_IsObject(item))
        return refuse(c, path, "must be an object");
    if (!type || !strcmp(type, "message"))
        return convert_said(c, path, item);
    if (!strcmp(type, "function_call_output"))
        return convert_output(c, path, item);
    if (!strcmp(type, "reasoning"))
        return convert_reasoning(c, item);
    if (strcmp(type, "function_call"))
        return 0;
    return turn(c) && convert_call(c->turn, convert_string(item, "call_id"),
                                   convert_string(item, "name"),
                                   cJSON_DetachItemFromObjectCaseSensitive(item, "arguments"))
           ? 0 : -ENOMEM;
}

static int convert_input(struct convert *c)
{
    const cJSON *instructions = json_get(c->body, "instructions");
    cJSON *input = cJSON_GetObjectItemCaseSensitive(c->body, "input"), *item;
    int i = 0, rc = 0;

    if (cJSON_IsString(instructions) &&
        !convert_message(c->messages, "system", instructions->valuestring))
        return -ENOMEM;
    if (cJSON_IsString(input))
        return convert_message(c->messages, "user", input->valuestring) ? 0 : -ENOMEM;
    if (!cJSON_IsArray(input))
        return refuse(c, "input", "must be a string or an array of items");
    cJSON_ArrayForEach(item, input)
        if (!rc)
            rc = convert_item(c, i++, item);
    return rc;
}

/* Only functions: what a client offers beside them is run elsewhere. */
static int convert_tools(struct convert *c)
{
    cJSON *tools = cJSON_GetObjectItemCaseSensitive(c->body, "tools"), *tool, *to;
    const cJSON *choice = json_get(c->body, "tool_choice");

    if (cJSON_IsArray(tools)) {
        to = cJSON_AddArrayToObject(c->chat, "tools");
        cJSON_ArrayForEach(tool, tools) {
            const char *type = convert_string(tool, "type");

            if (type && strcmp(type, "function"))
                continue;
            if (!to || !convert_tool(to, tool, "parameters"))
                return -ENOMEM;
        }
    }
    if (cJSON_IsObject(choice))
        return convert_choice(c->chat, convert_string(choice, "name")) ? 0 : -ENOMEM;
    return convert_move(c->body, "tool_choice", c->chat, "tool_choice") ? 0 : -ENOMEM;
}

/* text.format is what the other API calls response_format. */
static int convert_format(struct convert *c)
{
    cJSON *text = cJSON_GetObjectItemCaseSensitive(c->body, "text");
    cJSON *format = cJSON_GetObjectItemCaseSensitive(text, "format"), *nested;
    const char *type = convert_string(format, "type");

    if (!type || !strcmp(type, "text"))
        return 0;
    nested = cJSON_AddObjectToObject(c->chat, "response_format");
    if (!nested || !cJSON_AddStringToObject(nested, "type", type))
        return -ENOMEM;
    return convert_move(text, "format", nested, "json_schema") ? 0 : -ENOMEM;
}

cJSON *convert_responses(cJSON *body, struct request_error *e)
{
    static const char *const moved[] = {
        "model", "max_output_tokens", "temperature", "top_p", "top_k", "min_p", "stream", "seed",
        "reasoning", "parallel_tool_calls", "chat_template_kwargs", "stop",
    };
    struct convert c = { .body = body, .chat = cJSON_CreateObject(), .e = e };
    const cJSON *before = json_get(body, "previous_response_id");
    int rc;

    c.messages = c.chat ? cJSON_AddArrayToObject(c.chat, "messages") : NULL;
    rc = c.messages ? 0 : -ENOMEM;
    if (!rc && before && !cJSON_IsNull(before))
        rc = refuse(&c, "previous_response_id", "is not supported: nothing is stored, send the "
                    "whole input");
    if (!rc)
        rc = convert_input(&c);
    if (!rc)
        rc = convert_tools(&c);
    if (!rc)
        rc = convert_format(&c);
    for (size_t i = 0; !rc && i < sizeof(moved) / sizeof(*moved); i++)
        rc = convert_move(body, moved[i], c.chat, moved[i]) ? 0 : -ENOMEM;
    text_free(&c.text);
    if (!rc) {
        cJSON_Delete(body);
        return c.chat;
    }
    cJSON_Delete(c.chat);
    return rc == -ENOMEM ? convert_no_memory(e) : NULL;
}
