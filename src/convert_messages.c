#include "src/convert.h"

#include <errno.h>
#include <stdio.h>

/* Anthropic's /messages. */

static const char BILLING[] = "x-anthropic-billing-header:";

struct convert {
    cJSON *body, *chat, *messages;
    struct text text;           /* scratch */
    struct request_error *e;
};

static int refuse(struct convert *c, const char *param, const char *what)
{
    convert_refuse(c->e, param, "invalid_value", "%s%s%s", param, *param ? " " : "", what);
    return -EBADMSG;
}

/* The text without the lines of the billing header, which differs in every request and would
 * cost the conversation its prefix. */
static void add_system(struct text *out, const char *s)
{
    while (*s) {
        size_t n = strcspn(s, "\n");

        n += s[n] == '\n';
        if (strncmp(s, BILLING, sizeof(BILLING) - 1))
            text_add(out, s, n);
        s += n;
    }
}

static int convert_system(struct convert *c)
{
    const cJSON *system = json_get(c->body, "system"), *block;

    if (!system || cJSON_IsNull(system))
        return 0;
    c->text.n = 0;
    text_puts(&c->text, "");
    if (cJSON_IsString(system))
        add_system(&c->text, system->valuestring);
    else if (!cJSON_IsArray(system))
        return refuse(c, "system", "must be a string or an array of text blocks");
    cJSON_ArrayForEach(block, system) {
        if (!convert_string(block, "text"))
            return refuse(c, "system", "must hold text blocks only");
        add_system(&c->text, convert_string(block, "text"));
    }
    if (c->text.failed || !convert_message(c->messages, "system", c->text.s))
        return -ENOMEM;
    return 0;
}

/* A string or text blocks, joined, into c->text. */
static int join_text(struct convert *c, const char *path, const cJSON *content)
{
    const cJSON *block;

    c->text.n = 0;
    text_puts(&c->text, "");
    if (cJSON_IsString(content))
        text_puts(&c->text, content->valuestring);
    cJSON_ArrayForEach(block, content) {
        if (!convert_string(block, "text"))
            return refuse(c, path, "only text is supported");
        text_puts(&c->text, convert_string(block, "text"));
    }
    return c->text.failed ? -ENOMEM : 0;
}

/* Results of tools come inside the user's message; here each is a message of its own. */
static int convert_result(struct convert *c, const char *path, const cJSON *block)
{
    const char *id = convert_string(block, "tool_use_id");
    const cJSON *content = json_get(block, "content");
    cJSON *m;
    int rc = cJSON_IsObject(content) || cJSON_IsNumber(content)
             ? refuse(c, path, "content must be a string or text blocks")
             : join_text(c, path, content);

    if (rc)
        return rc;
    m = convert_message(c->messages, "tool", c->text.s);
    return m && (!id || cJSON_AddStringToObject(m, "tool_call_id", id)) ? 0 : -ENOMEM;
}

static int convert_user(struct convert *c, int i, const cJSON *content)
{
    struct text said = { NULL, 0, 0, false };
    const cJSON *block;
    bool any = false;
    char path[64];
    int n = 0, rc = 0;

    cJSON_ArrayForEach(block, content) {
        const char *type = convert_string(block, "type");

        snprintf(path, sizeof(path), "messages[%d].content[%d]", i, n++);
        if (rc)
            break;
        if (type && !strcmp(type, "tool_result")) {
            rc = convert_result(c, path, block);
        } else if (type && !strcmp(type, "text") && convert_string(block, "text")) {
            text_puts(&said, convert_string(block, "text"));
            any = true;
        } else {
            rc = refuse(c, path, "is neither text nor a tool's result");
        }
    }
    if (!rc && (any || !n) && !convert_message(c->messages, "user", said.s ? said.s : ""))
        rc = -ENOMEM;
    rc = !rc && said.failed ? -ENOMEM : rc;
    text_free(&said);
    return rc;
}

static int convert_block(struct convert *c, cJSON *m, const char *path, cJSON *block,
                         struct text *said, struct text *thought)
{
    const char *type = convert_string(block, "type");

    if (!type)
        return refuse(c, path, "has no type");
    if (!strcmp(type, "text"))
        text_puts(said, convert_string(block, "text") ? convert_string(block, "text") : "");
    else if (!strcmp(type, "thinking"))
        text_puts(thought, convert_string(block, "thinking") ? convert_string(block, "thinking")
                                                              : "");
    else if (!strcmp(type, "tool_use"))
        return convert_call(m, convert_string(block, "id"), convert_string(block, "name"),
                            cJSON_DetachItemFromObjectCaseSensitive(block, "input")) ? 0 : -ENOMEM;
    else if (strcmp(type, "redacted_thinking"))
        return refuse(c, path, "is of no type that an assistant's message may hold");
    return 0;
}

static int convert_assistant(struct convert *c, int i, cJSON *content)
{
    struct text said = { NULL, 0, 0, false }, thought = { NULL, 0, 0, false };
    cJSON *m = convert_message(c->messages, "assistant", NULL), *block;
    char path[64];
    int n = 0, rc = m ? 0 : -ENOMEM;

    cJSON_ArrayForEach(block, content) {
        snprintf(path, sizeof(path), "messages[%d].content[%d]", i, n++);
        if (!rc)
            rc = convert_block(c, m, path, block, &said, &thought);
    }
    if (!rc && (said.failed || thought.failed ||
                !cJSON_AddStringToObject(m, "content", said.s ? said.s : "") ||
                (thought.n && !cJSON_AddStringToObject(m, "reasoning", thought.s))))
        rc = -ENOMEM;
    text_free(&said);
    text_free(&thought);
    return rc;
}

static int convert_list(struct convert *c)
{
    const cJSON *list = json_get(c->body, "messages"), *one;
    char path[64];
    int i = 0, rc = 0;

    if (!cJSON_IsArray(list) || !list->child)
        return refuse(c, "messages", "must be an array of messages");
    cJSON_ArrayForEach(one, list) {
        const char *role = convert_string(one, "role");
        cJSON *content = cJSON_GetObjectItemCaseSensitive(one, "content");

        snprintf(path, sizeof(path), "messages[%d]", i);
        if (!role || (strcmp(role, "user") && strcmp(role, "assistant") && strcmp(role, "system")))
            rc = refuse(c, path, "must be the user's or the assistant's");
        else if (cJSON_IsString(content))
            rc = convert_message(c->messages, role, content->valuestring) ? 0 : -ENOMEM;
        else if (!cJSON_IsArray(content))
            rc = refuse(c, path, "must have a string or blocks as its content");
        else if (!strcmp(role, "assistant"))
            rc = convert_assistant(c, i, content);
        else
            rc = convert_user(c, i, content);
        if (rc)
            return rc;
        i++;
    }
    return 0;
}

/* Tools without a schema are run by Anthropic's servers, and not here. */
static int convert_tools(struct convert *c)
{
    cJSON *tools = cJSON_GetObjectItemCaseSensitive(c->body, "tools"), *tool, *to;

    if (!tools || cJSON_IsNull(tools))
        return 0;
    if (!cJSON_IsArray(tools))
        return refuse(c, "tools", "must be an array");
    to = cJSON_AddArrayToObject(c->chat, "tools");
    cJSON_ArrayForEach(tool, tools) {
        const char *type = convert_string(tool, "type");

        if (type && strcmp(type, "custom") && !json_get(tool, "input_schema"))
            continue;
        if (!to || !convert_tool(to, tool, "input_schema"))
            return -ENOMEM;
    }
    return to ? 0 : -ENOMEM;
}

static int convert_tool_choice(struct convert *c)
{
    const cJSON *choice = json_get(c->body, "tool_choice");
    const char *type = convert_string(choice, "type");
    bool ok;

    if (!choice || cJSON_IsNull(choice))
        return 0;
    if (!type)
        return refuse(c, "tool_choice", "must be an object with a type");
    if (!strcmp(type, "tool"))
        ok = convert_choice(c->chat, convert_string(choice, "name"));
    else
        ok = cJSON_AddStringToObject(c->chat, "tool_choice",
                                     strcmp(type, "any") ? type : "required") != NULL;
    if (ok && cJSON_IsTrue(json_get(choice, "disable_parallel_tool_use")))
        ok = cJSON_AddFalseToObject(c->chat, "parallel_tool_calls") != NULL;
    return ok ? 0 : -ENOMEM;
}

/* A message of nothing, or without end, is for the other APIs. */
static int check_budget(struct convert *c)
{
    const cJSON *n = json_get(c->body, "max_tokens");

    return cJSON_IsNumber(n) && n->valuedouble < 1
               ? refuse(c, "max_tokens", "must be at least 1") : 0;
}

cJSON *convert_messages(cJSON *body, struct request_error *e)
{
    static const char *const moved[][2] = {
        { "model", "model" }, { "max_tokens", "max_tokens" }, { "stop_sequences", "stop" },
        { "temperature", "temperature" }, { "top_p", "top_p" }, { "top_k", "top_k" },
        { "stream", "stream" }, { "thinking", "thinking" }, { "seed", "seed" },
        { "chat_template_kwargs", "chat_template_kwargs" },
    };
    struct convert c = { .body = body, .chat = cJSON_CreateObject(), .e = e };
    int rc;

    c.messages = c.chat ? cJSON_AddArrayToObject(c.chat, "messages") : NULL;
    rc = c.messages ? check_budget(&c) : -ENOMEM;
    if (!rc)
        rc = convert_system(&c);
    if (!rc)
        rc = convert_list(&c);
    if (!rc)
        rc = convert_tools(&c);
    if (!rc)
        rc = convert_tool_choice(&c);
    for (size_t i = 0; !rc && i < sizeof(moved) / sizeof(*moved); i++)
        rc = convert_move(body, moved[i][0], c.chat, moved[i][1]) ? 0 : -ENOMEM;
    text_free(&c.text);
    if (!rc) {
        cJSON_Delete(body);
        return c.chat;
    }
    cJSON_Delete(c.chat);
    return rc == -ENOMEM ? convert_no_memory(e) : NULL;
}
