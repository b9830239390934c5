/* The S-2.1 layout of a conversation, written out as code: it equals the checkpoint's
 * chat_template.jinja byte for byte, and no template from a file or a request is ever run.
 * What a message says is text; what the layout says is control, and only that may become
 * control tokens.  Which tools and switches a request may carry is src/request.c. */
#include "src/chat.h"

#include <errno.h>
#include <stdlib.h>
#include <xxhash.h>

static const char INTRO[] =
    "You are a helpful, conversationally-fluent assistant made by Poolside. "
    "You are here to be helpful to users through natural language conversations.";

static const char TOOLS_INTRO[] =
    "### Tools\n\nYou may call functions to assist with the user query.\n"
    "All available function signatures are listed below:\n<available_tools>\n";

struct render {
    struct prompt *out;
    const struct chat_options *o;
    struct text content;        /* scratch: the content of the message at hand */
    struct err *e;
};

void prompt_free(struct prompt *p)
{
    text_free(&p->text);
    free(p->control);
    *p = (struct prompt){ 0 };
}

/* Text of the layout itself.  Neighbouring spans become one. */
static void add_control(struct render *r, const char *s)
{
    struct prompt *p = r->out;
    size_t from = p->text.n;

    text_puts(&p->text, s);
    if (p->controls && p->control[p->controls - 1].to == from) {
        p->control[p->controls - 1].to = p->text.n;
        return;
    }
    if (p->controls == p->control_cap) {
        int cap = p->control_cap ? 2 * p->control_cap : 16;
        struct span *wider = realloc(p->control, (size_t)cap * sizeof(*wider));

        if (!wider) {
            p->text.failed = true;
            return;
        }
        p->control = wider;
        p->control_cap = cap;
    }
    p->control[p->controls++] = (struct span){ from, p->text.n };
}

/* Text of the conversation. */
static void add_text(struct render *r, const char *s, size_t n)
{
    text_add(&r->out->text, s, n);
}

/* Length of the character that str.strip() of Python removes and that ends s[0..n), or 0. */
static size_t space_at_end(const char *s, size_t n)
{
    static const char *const wide[] = {
        "\xc2\x85", "\xc2\xa0", "\xe1\x9a\x80", "\xe2\x80\xa8", "\xe2\x80\xa9", "\xe2\x80\xaf",
        "\xe2\x81\x9f", "\xe3\x80\x80",
    };
    size_t i, len;

    if (!n)
        return 0;
    if (s[n - 1] == ' ' || (s[n - 1] >= '\t' && s[n - 1] <= '\r') ||
        (s[n - 1] >= 0x1c && s[n - 1] <= 0x1f))
        return 1;
    for (i = 0; i < sizeof(wide) / sizeof(*wide); i++) {
        len = strlen(wide[i]);
        if (n >= len && !memcmp(s + n - len, wide[i], len))
            return len;
    }
    /* U+2000 to U+200A. */
    if (n >= 3 && !memcmp(s + n - 3, "\xe2\x80", 2) && (unsigned char)s[n - 1] <= 0x8a)
        return 3;
    return 0;
}

static size_t length_without_space(const char *s, size_t n)
{
    size_t len;

    while ((len = space_at_end(s, n)) > 0)
        n -= len;
    return n;
}

static int join_part(struct render *r, int message, int part, const cJSON *node)
{
    const cJSON *type = json_get(node, "type"), *text = json_get(node, "text");

    if (!cJSON_IsString(type))
        return fail(r->e, -EBADMSG, "messages[%d].content[%d].type: a string is missing", message,
                    part);
    if (strcmp(type->valuestring, "text") != 0)
        return fail(r->e, -EBADMSG, "messages[%d].content[%d].type: %.32s input is not supported, "
                    "only text", message, part, type->valuestring);
    if (!cJSON_IsString(text))
        return fail(r->e, -EBADMSG, "messages[%d].content[%d].text: a string is missing", message,
                    part);
    text_puts(&r->content, text->valuestring);
    return 0;
}

/* The content of a message, parts joined, into r->content.  Only an assistant may be
 * without one. */
static int read_content(struct render *r, int i, const cJSON *message, bool optional)
{
    const cJSON *content = json_get(message, "content"), *part;
    int n = 0, rc;

    r->content.n = 0;
    text_puts(&r->content, "");
    if (cJSON_IsString(content)) {
        text_puts(&r->content, content->valuestring);
        return 0;
    }
    if (optional && (!content || cJSON_IsNull(content)))
        return 0;
    if (!cJSON_IsArray(content))
        return fail(r->e, -EBADMSG, "messages[%d].content: must be a string or an array of parts",
                    i);
    cJSON_ArrayForEach(part, content) {
        rc = join_part(r, i, n++, part);
        if (rc)
            return rc;
    }
    return 0;
}

static void add_arguments(struct render *r, const cJSON *arguments)
{
    const cJSON *value;

    cJSON_ArrayForEach(value, arguments) {
        add_control(r, "<arg_key>");
        add_text(r, value->string, strlen(value->string));
        add_control(r, "</arg_key><arg_value>");
        if (cJSON_IsString(value))
            add_text(r, value->valuestring, strlen(value->valuestring));
        else
            text_json_python(&r->out->text, value);
        add_control(r, "</arg_value>");
    }
}

/* OpenAI's form has the arguments as JSON in a string; an object is taken as it is. */
static int add_arguments_of(struct render *r, int message, int call, const cJSON *arguments)
{
    struct err why;
    cJSON *parsed;
    int rc = 0;

    if (!arguments || cJSON_IsNull(arguments))
        return 0;
    if (cJSON_IsObject(arguments)) {
        add_arguments(r, arguments);
        return 0;
    }
    if (!cJSON_IsString(arguments))
        return fail(r->e, -EBADMSG, "messages[%d].tool_calls[%d].function.arguments: must be a "
                    "string or an object", message, call);
    if (!length_without_space(arguments->valuestring, strlen(arguments->valuestring)))
        return 0;
    parsed = json_parse(arguments->valuestring, strlen(arguments->valuestring), &JSON_REQUEST,
                        &why);
    if (!parsed)
        rc = fail(r->e, -EBADMSG, "messages[%d].tool_calls[%d].function.arguments: %.200s", message,
                  call, why.text);
    else if (cJSON_IsObject(parsed))
        add_arguments(r, parsed);
    else if (!cJSON_IsNull(parsed))
        rc = fail(r->e, -EBADMSG, "messages[%d].tool_calls[%d].function.arguments: the JSON in the "
                  "string must be an object", message, call);
    cJSON_Delete(parsed);
    return rc;
}

static bool has_text(const cJSON *node)
{
    return cJSON_IsString(node) && node->valuestring[0];
}

static int add_call(struct render *r, int message, int i, const cJSON *call)
{
    const cJSON *function = json_get(call, "function"), *name = json_get(function, "name");
    const cJSON *type = json_get(call, "type");
    int rc;

    if (type && (!cJSON_IsString(type) || strcmp(type->valuestring, "function") != 0))
        return fail(r->e, -EBADMSG, "messages[%d].tool_calls[%d].type: must be \"function\"",
                    message, i);
    if (!has_text(json_get(call, "id")))
        return fail(r->e, -EBADMSG, "messages[%d].tool_calls[%d].id: a string is missing", message,
                    i);
    if (!has_text(name))
        return fail(r->e, -EBADMSG, "messages[%d].tool_calls[%d].function.name: a string is "
                    "missing", message, i);
    add_control(r, "<tool_call>");
    add_text(r, name->valuestring, strlen(name->valuestring));
    rc = add_arguments_of(r, message, i, json_get(function, "arguments"));
    add_control(r, "</tool_call>");
    return rc;
}

static int add_assistant(struct render *r, int i, const cJSON *message)
{
    const cJSON *reasoning = json_get(message, "reasoning");
    const cJSON *calls = json_get(message, "tool_calls"), *call;
    int n = 0, rc = 0;

    if (calls && !cJSON_IsNull(calls) && !cJSON_IsArray(calls))
        return fail(r->e, -EBADMSG, "messages[%d].tool_calls: must be an array", i);
    add_control(r, "<assistant>");
    if (r->o->thinking) {
        add_control(r, "<think>");
        if (!cJSON_IsString(reasoning))
            reasoning = json_get(message, "reasoning_content");
        if (cJSON_IsString(reasoning))
            add_text(r, reasoning->valuestring, strlen(reasoning->valuestring));
    }
    add_control(r, "</think>");
    add_text(r, r->content.s, r->content.n);
    cJSON_ArrayForEach(call, calls) {
        rc = add_call(r, i, n++, call);
        if (rc)
            return rc;
    }
    add_control(r, "</assistant>\n");
    return 0;
}

enum role { ROLE_SYSTEM, ROLE_USER, ROLE_ASSISTANT, ROLE_TOOL, ROLE_UNKNOWN };

static enum role role_of(const cJSON *message)
{
    static const char *const name[] = { "system", "user", "assistant", "tool" };
    const cJSON *role = json_get(message, "role");
    int i;

    if (!cJSON_IsString(role))
        return ROLE_UNKNOWN;
    if (!strcmp(role->valuestring, "developer"))
        return ROLE_SYSTEM;
    for (i = 0; i < ROLE_UNKNOWN; i++)
        if (!strcmp(role->valuestring, name[i]))
            break;
    return (enum role)i;
}

static int add_message(struct render *r, int i, const cJSON *message)
{
    static const char *const open[] = { "<system>", "<user>", "", "<tool_response>" };
    static const char *const close[] = { "</system>\n", "</user>\n", "", "</tool_response>\n" };
    enum role role = role_of(message);
    int rc;

    if (!cJSON_IsObject(message))
        return fail(r->e, -EBADMSG, "messages[%d]: must be an object", i);
    if (role == ROLE_UNKNOWN)
        return fail(r->e, -EBADMSG, "messages[%d].role: must be system, developer, user, assistant "
                    "or tool", i);
    if (role == ROLE_TOOL && !has_text(json_get(message, "tool_call_id")))
        return fail(r->e, -EBADMSG, "messages[%d].tool_call_id: a string is missing", i);
    rc = read_content(r, i, message, role == ROLE_ASSISTANT);
    if (rc)
        return rc;
    if (role == ROLE_ASSISTANT)
        return add_assistant(r, i, message);
    add_control(r, open[role]);
    add_text(r, r->content.s, r->content.n);
    add_control(r, close[role]);
    return 0;
}

/* The block in front of the turns, from s[0..n) and the tools. */
static void add_intro(struct render *r, const char *s, size_t n, const cJSON *tools)
{
    bool any_tools = cJSON_GetArraySize(tools) > 0;
    const cJSON *tool;

    n = length_without_space(s, n);
    if (!n && !any_tools && !r->o->thinking)
        return;
    add_control(r, "<system>");
    add_text(r, s, n);
    if (any_tools) {
        add_control(r, n ? "\n\n" : "");
        add_control(r, TOOLS_INTRO);
        cJSON_ArrayForEach(tool, tools) {
            text_json_python(&r->out->text, tool);
            add_control(r, "\n");
        }
        add_control(r, "</available_tools>");
    }
    add_control(r, "</system>\n");
}

static int add_conversation(struct render *r, const cJSON *messages, const cJSON *tools)
{
    const cJSON *message = messages->child;
    int i = 0, rc = 0;

    add_control(r, "〈|EOS|〉");
    if (role_of(message) == ROLE_SYSTEM) {
        rc = read_content(r, 0, message, false);
        if (rc)
            return rc;
        add_intro(r, r->content.s, r->content.n, tools);
        message = message->next;
        i = 1;
    } else {
        add_intro(r, INTRO, sizeof(INTRO) - 1, tools);
    }
    for (; message && !rc; message = message->next)
        rc = add_message(r, i++, message);
    if (!rc && r->o->generation_prompt)
        add_control(r, r->o->thinking ? "<assistant><think>" : "<assistant></think>");
    return rc;
}

int chat_render(struct prompt *out, const cJSON *messages, const cJSON *tools,
                const struct chat_options *o, struct err *e)
{
    struct render r = { .out = out, .o = o, .e = e };
    int n, rc;

    *out = (struct prompt){ 0 };
    if (!cJSON_IsArray(messages))
        return fail(e, -EBADMSG, "messages: must be an array");
    n = cJSON_GetArraySize(messages);
    if (n < 1 || n > MESSAGES_MAX)
        return fail(e, -EBADMSG, "messages: %d of 1 to %d", n, MESSAGES_MAX);
    rc = add_conversation(&r, messages, tools);
    if (!rc && (out->text.failed || r.content.failed))
        rc = fail(e, -ENOMEM, "out of memory");
    text_free(&r.content);
    return rc;
}

int chat_template_known(const char *bytes, size_t n)
{
    static const XXH64_hash_t known[] = {
        0x5d01ff9659f2e15bULL,  /* the one of models/nano */
    };
    XXH64_hash_t h = XXH3_64bits(bytes, n);
    size_t i;

    for (i = 0; i < sizeof(known) / sizeof(*known); i++)
        if (h == known[i])
            return 1;
    return 0;
}
