#include "src/line.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

/* Lines as the terminal itself edits them. */

struct line_reader {
    const char *prompt;
    char *line;
    size_t cap;
};

int line_open(struct line_reader **out, const char *prompt, struct err *e)
{
    struct line_reader *r = calloc(1, sizeof(*r));

    if (!r)
        return fail(e, -ENOMEM, "no memory for a line of input");
    r->prompt = prompt;
    *out = r;
    return 0;
}

void line_close(struct line_reader *r)
{
    if (r)
        free(r->line);
    free(r);
}

const char *line_read(struct line_reader *r, bool *interrupted)
{
    ssize_t n;

    *interrupted = false;
    fputs(r->prompt, stderr);
    errno = 0;
    n = getline(&r->line, &r->cap, stdin);
    if (n < 0 && errno == EINTR) {
        clearerr(stdin);
        *interrupted = true;
        return "";
    }
    if (n < 0)
        return NULL;
    if (n && r->line[n - 1] == '\n')
        r->line[n - 1] = 0;
    return r->line;
}
