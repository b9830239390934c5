/* The few characters around each event. */
#include "src/sse.h"

void sse_comment(struct text *out, const char *words)
{
    text_printf(out, ": %s\n\n", words);
}

void sse_begin(struct text *out, const char *name)
{
    if (name)
        text_printf(out, "event: %s\n", name);
    text_puts(out, "data: ");
}

void sse_end(struct text *out)
{
    text_puts(out, "\n\n");
}
