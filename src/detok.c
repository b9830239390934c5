/* Streaming decode: tokens end anywhere in a character, output never does. */
#include "src/tokenizer.h"

#include "src/utf8.h"

static size_t put(char *buf, const void *bytes, int n)
{
    memcpy(buf, bytes, (size_t)n);
    return (size_t)n;
}

size_t detok_push(struct detok *d, const char *bytes, size_t n, bool last, char *buf)
{
    static const char replacement[] = "\xef\xbf\xbd";
    size_t i, written = 0;

    for (i = 0; i < n; i++) {
        int length;

        d->held[d->n++] = (unsigned char)bytes[i];
        length = utf8_char(d->held, (size_t)d->n);
        if (length < 0 && d->n > 1) {
            /* What was held began a character that this byte does not go on with: one
             * replacement for it, as the Unicode standard advises, and the byte begins anew. */
            written += put(buf + written, replacement, 3);
            d->held[0] = (unsigned char)bytes[i];
            d->n = 1;
            length = utf8_char(d->held, 1);
        }
        if (length < 0)
            written += put(buf + written, replacement, 3);
        else
            written += put(buf + written, d->held, length);
        if (length)
            d->n = 0;
    }
    if (last && d->n) {
        written += put(buf + written, replacement, 3);
        d->n = 0;
    }
    return written;
}
