#include "src/line.h"

#include <errno.h>
#include <histedit.h>
#include <locale.h>
#include <stdio.h>
#include <stdlib.h>

/* Lines edited with libedit.  It draws on stderr, so that stdout has the answers alone. */

enum { HISTORY = 500 };

struct line_reader {
    const char *prompt;
    EditLine *edit;
    History *history;
    char *line;
};

static char *show_prompt(EditLine *edit)
{
    struct line_reader *r = NULL;

    el_get(edit, EL_CLIENTDATA, &r);
    return (char *)(uintptr_t)r->prompt;
}

int line_open(struct line_reader **out, const char *prompt, struct err *e)
{
    struct line_reader *r = calloc(1, sizeof(*r));
    HistEvent event;

    /* What the person types is in the terminal's encoding; numbers stay as they are. */
    setlocale(LC_CTYPE, "");
    if (r) {
        r->prompt = prompt;
        r->edit = el_init("laguna-offload", stdin, stderr, stderr);
        r->history = history_init();
    }
    if (!r || !r->edit || !r->history) {
        line_close(r);
        return fail(e, -ENOMEM, "the terminal cannot be used for editing");
    }
    history(r->history, &event, H_SETSIZE, HISTORY);
    el_set(r->edit, EL_CLIENTDATA, r);
    el_set(r->edit, EL_PROMPT, show_prompt);
    el_set(r->edit, EL_EDITOR, "emacs");
    el_set(r->edit, EL_HIST, history, r->history);
    *out = r;
    return 0;
}

void line_close(struct line_reader *r)
{
    if (!r)
        return;
    if (r->edit)
        el_end(r->edit);
    if (r->history)
        history_end(r->history);
    free(r->line);
    free(r);
}

const char *line_read(struct line_reader *r, bool *interrupted)
{
    HistEvent event;
    const char *got;
    int n = 0;

    *interrupted = false;
    errno = 0;
    got = el_gets(r->edit, &n);
    if (!got && errno == EINTR) {
        el_reset(r->edit);
        *interrupted = true;
        return "";
    }
    if (!got || n <= 0)
        return NULL;
    if (n > 1)
        history(r->history, &event, H_ENTER, got);
    free(r->line);
    r->line = strndup(got, got[n - 1] == '\n' ? (size_t)n - 1 : (size_t)n);
    return r->line;
}
