#ifndef LAGUNA_CHAT_H
#define LAGUNA_CHAT_H

#include "src/json.h"
#include "src/tokenizer.h"

/* Messages and tools -> the prompt exactly as the model sees it (spec: laguna.md 6.1, the
 * S-2.1 layout), as text and the spans of it that are ours: only there may the tokenizer
 * match added tokens, so that no message can open a role or a call. */

struct prompt {
    struct text text;
    struct span *control;
    int controls, control_cap;
};

/* What a request says beside its messages. */
struct chat_options {
    bool thinking;
    bool generation_prompt;     /* end with the assistant's opening */
};

enum { MESSAGES_MAX = 4096 };

/* messages: array; tools: array or NULL (none), printed as they are.  Content parts are
 * joined, arguments may be a string or an object.  -EBADMSG with words that begin with the
 * path of the fault and ": ", such as "messages[3].content: ...".  prompt_free() in any case. */
int  chat_render(struct prompt *out, const cJSON *messages, const cJSON *tools,
                 const struct chat_options *o, struct err *e);
void prompt_free(struct prompt *p);

/* Append the ids of the prompt, with added tokens matched in its own spans alone. */
static inline int prompt_encode(const struct prompt *p, const struct tokenizer *t, struct ids *out,
                                struct err *e)
{
    return tokenizer_encode(t, p->text.s, p->text.n, p->control, p->controls, out, e);
}

/* 1 if the bytes of chat_template.jinja are a layout this renderer is known to equal
 * (XXH3 of the file), 0 if not: the caller warns and goes on. */
int  chat_template_known(const char *bytes, size_t n);

#endif
