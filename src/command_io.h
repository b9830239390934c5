#ifndef LAGUNA_COMMAND_IO_H
#define LAGUNA_COMMAND_IO_H

#include "src/json.h"
#include "src/tokenizer.h"

#include <stdio.h>

/* What the commands share: input that is a file or stdin, a line at a time or whole, and
 * output whose failures are noticed where they happen. */

enum { INPUT_LINE_LIMIT = 32 << 20 };

struct input {
    FILE *f;
    const char *name;           /* for messages */
    long number;                /* of the current line, from 1 */
    char *line;
    size_t cap;
};

/* file: a path, or "-" or NULL for stdin.  input_close() in any case. */
int  input_open(struct input *in, const char *file, struct err *e);
void input_close(struct input *in);

/* The next line that is not blank, without its end: 1 and *text[0..*n) until the next call;
 * 0 at the end; -EBADMSG over INPUT_LINE_LIMIT; another negative errno where reading fails.
 * Blocks. */
int  input_line(struct input *in, const char **text, size_t *n, struct err *e);

/* All of it.  Blocks. */
int  input_all(struct input *in, struct text *out, struct err *e);

/* Put "NAME:LINE: " in front of the words of e, and return rc. */
int  input_fail(const struct input *in, int rc, struct err *e);

/* Write a text, which is JSON, and a newline to stdout at once; empty the text; say what went
 * wrong.  U+0085, U+2028 and U+2029 are escaped: many readers would end the line there. */
int  output_line(struct text *t, struct err *e);
/* Write n bytes to stdout at once. */
int  output_bytes(const char *s, size_t n, struct err *e);
/* What went wrong with stdout so far, buffered output included: for the end of the program. */
int  output_flush(struct err *e);

/* A line of ids, [1, 2, 3] -> ids.  -EBADMSG names what is no id below vocab. */
int  ids_parse(struct ids *out, const char *line, size_t n, int vocab, struct err *e);
/* Append [1, 2, 3]. */
void text_ids(struct text *t, const int32_t *id, size_t n);

#endif
