#ifndef LAGUNA_CONVERT_H
#define LAGUNA_CONVERT_H

#include "src/request.h"

/* Bodies of the other APIs -> the body of /chat/completions that asks for the same.  Nodes are
 * moved, not copied, so that numbers keep their text.  What is malformed in ways that do not
 * matter here is passed on, to be refused by src/request.c. */

/* New object that the caller owns, or NULL with *e filled.  `body` is used up where it
 * succeeds. */
cJSON *convert_messages(cJSON *body, struct request_error *e);          /* Anthropic */
cJSON *convert_responses(cJSON *body, struct request_error *e);

/* What both are made of.  They answer false where memory is short. */

/* Move a member under another name, where it is there and not null. */
bool convert_move(cJSON *from, const char *name, cJSON *to, const char *as);
/* A message with this role and content (NULL: none) behind the others; NULL: no memory. */
cJSON *convert_message(cJSON *messages, const char *role, const char *content);
/* {"type":"function","function":{name, description, parameters}} of a flat tool, whose schema
 * is called `schema`. */
bool convert_tool(cJSON *tools, cJSON *flat, const char *schema);
/* A call behind the others of an assistant's message. */
bool convert_call(cJSON *message, const char *id, const char *name, cJSON *arguments);
/* {"type":"function","function":{"name":..}} */
bool convert_choice(cJSON *to, const char *name);

/* The words of a refusal; NULL, so that it can be returned. */
cJSON *convert_refuse(struct request_error *e, const char *param, const char *code,
                      const char *fmt, ...) __attribute__((format(printf, 4, 5)));
cJSON *convert_no_memory(struct request_error *e);

/* A member that is a string, or NULL. */
const char *convert_string(const cJSON *object, const char *name);

#endif
