#ifndef LAGUNA_LITERAL_H
#define LAGUNA_LITERAL_H

#include "src/json.h"

/* A line that is one JSON string -> its bytes.  Beside json_parse() because here, and only
 * here, a text may hold U+0000.  Appends to out; -EBADMSG with the byte where it goes wrong. */
int literal_parse(struct text *out, const char *line, size_t n, struct err *e);

#endif
