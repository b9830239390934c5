#ifndef LAGUNA_ARGUMENT_H
#define LAGUNA_ARGUMENT_H

#include "src/json.h"

/* The value of a tool call's argument, as the model wrote it, -> JSON.  The tool's schema
 * says what the value is; where it does not, the value's looks do. */

enum argument_kind {
    ARGUMENT_STRING,            /* text, kept to the last blank */
    ARGUMENT_MAYBE_STRING,      /* one of several types, a string among them */
    ARGUMENT_OTHER,             /* another type, or none declared */
};

/* The properties in the schema of the tool called `name`, or NULL. */
const cJSON *argument_properties(const cJSON *tools, const char *name);

enum argument_kind argument_kind(const cJSON *properties, const char *key);

/* Append the value as JSON: for what is no string, its JSON in Python's spacing or that of a
 * Python literal; whatever is neither becomes a string.  Always valid JSON, given UTF-8. */
void argument_json(struct text *out, const char *s, size_t n, enum argument_kind kind,
                   const cJSON *properties, const char *key);

#endif
