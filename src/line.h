#ifndef LAGUNA_LINE_H
#define LAGUNA_LINE_H

#include "src/base.h"

/* Lines typed by a person.  Two implementations, of which the build links one: line_edit.c
 * with editing and a history of the session, line_plain.c without. */
struct line_reader;

int  line_open(struct line_reader **out, const char *prompt, struct err *e);
void line_close(struct line_reader *r);

/* The next line without its end, until the next call; NULL at the end of the input.  Where a
 * signal interrupts the typing, an empty line with *interrupted set.  Blocks. */
const char *line_read(struct line_reader *r, bool *interrupted);

#endif
