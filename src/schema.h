#ifndef LAGUNA_SCHEMA_H
#define LAGUNA_SCHEMA_H

#include "src/json.h"

/* A JSON Schema, or the tools of a request, compiled to the nodes that src/automaton.h walks.
 * What is compiled is a subset of the schema's values in one spelling: compact JSON, or with
 * one space behind each comma and colon.
 *
 * type, properties, required, additionalProperties, enum, const, items, minItems, maxItems,
 * anyOf, oneOf of alternatives that exclude each other, allOf of one, $ref inside of the
 * schema, minLength, maxLength, and for integers minimum, maximum and their exclusive forms.
 * Annotations are ignored.  Any other keyword is refused by its name: patterns never run.
 *
 * Where properties are declared, others may be there only if additionalProperties says so.
 * Keys come in any order and once.  Integers have no fraction and no exponent; numbers have
 * at most 20 digits in front of the point and behind it, and 2 in the exponent. */
struct schema;

enum {
    SCHEMA_DEPTH = 32,          /* levels of a schema, and of a value */
    SCHEMA_NODES = 8192,
    SCHEMA_WORD_BYTES = 1 << 17,        /* of keys, enums and names, common beginnings shared */
    SCHEMA_PROPERTIES = 64,
    SCHEMA_ALTERNATIVES = 32,
};

/* schema: or NULL for any object.  path: what leads to it in the request.  -EBADMSG with words
 * that begin with the path of the fault and ": ", or -ENOMEM.  Keeps nothing of the tree. */
int  schema_open(struct schema **out, const cJSON *schema, const char *path, struct err *e);

/* What stands between <tool_call> and </tool_call>: the name of a declared tool and its
 * arguments, each at most once, the required ones all.  tools: checked by request_tools();
 * name: the only tool that may be called, or NULL. */
int  schema_open_calls(struct schema **out, const cJSON *tools, const char *name, struct err *e);

void schema_close(struct schema *s);

#endif
