#ifndef LAGUNA_SSE_H
#define LAGUNA_SSE_H

#include "src/json.h"

/* Server-sent events, as text.  JSON on one line is what they carry. */

/* A comment, which every reader skips. */
void sse_comment(struct text *out, const char *words);

/* Begin an event; its data follow, then sse_end().  name: NULL for none. */
void sse_begin(struct text *out, const char *name);
void sse_end(struct text *out);

#endif
