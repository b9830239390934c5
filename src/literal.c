#include "src/literal.h"
#include "src/utf8.h"

#include <errno.h>

/* RFC 8259 strings, strictly: valid UTF-8, no raw control characters, surrogates in pairs. */

struct reader {
    const char *s;
    size_t n, at;
};

/* Four hexadecimal digits: their value, or -1. */
static int read_hex(struct reader *r)
{
    int v = 0;

    if (r->n - r->at < 4)
        return -1;
    for (int i = 0; i < 4; i++) {
        char c = r->s[r->at++];

        if (c >= '0' && c <= '9')
            v = v * 16 + c - '0';
        else if ((c | 0x20) >= 'a' && (c | 0x20) <= 'f')
            v = v * 16 + (c | 0x20) - 'a' + 10;
        else
            return -1;
    }
    return v;
}

static void add_character(struct text *out, int c)
{
    char b[4];
    size_t n = c < 0x80 ? 1 : c < 0x800 ? 2 : c < 0x10000 ? 3 : 4;

    for (size_t i = n - 1; i > 0; i--, c >>= 6)
        b[i] = (char)(0x80 | (c & 0x3f));
    b[0] = (char)(n == 1 ? c : (0xf00 >> n & 0xff) | c);
    text_add(out, b, n);
}

/* Behind a \u: 0, or -EBADMSG. */
static int read_unicode(struct reader *r, struct text *out)
{
    int c = read_hex(r), low;

    if (c < 0 || (c >= 0xdc00 && c <= 0xdfff))
        return -EBADMSG;
    if (c >= 0xd800 && c <= 0xdbff) {
        if (r->n - r->at < 2 || r->s[r->at] != '\\' || r->s[r->at + 1] != 'u')
            return -EBADMSG;
        r->at += 2;
        low = read_hex(r);
        if (low < 0xdc00 || low > 0xdfff)
            return -EBADMSG;
        c = 0x10000 + ((c - 0xd800) << 10) + low - 0xdc00;
    }
    add_character(out, c);
    return 0;
}

/* Behind a backslash. */
static int read_escape(struct reader *r, struct text *out)
{
    static const char names[] = "\"\\/bfnrt", values[] = "\"\\/\b\f\n\r\t";
    const char *name;

    if (r->at == r->n)
        return -EBADMSG;
    if (r->s[r->at] == 'u') {
        r->at++;
        return read_unicode(r, out);
    }
    name = memchr(names, r->s[r->at++], sizeof(names) - 1);
    if (!name)
        return -EBADMSG;
    text_add(out, &values[name - names], 1);
    return 0;
}

static void skip_blanks(struct reader *r)
{
    while (r->at < r->n && memchr(" \t\r\n", r->s[r->at], 4))
        r->at++;
}

static int read_string(struct reader *r, struct text *out)
{
    skip_blanks(r);
    if (r->at == r->n || r->s[r->at] != '"')
        return -EBADMSG;
    r->at++;
    while (r->at < r->n && r->s[r->at] != '"') {
        int n = utf8_char((const unsigned char *)r->s + r->at, r->n - r->at);

        if (n <= 0 || (unsigned char)r->s[r->at] < 0x20)
            return -EBADMSG;
        if (r->s[r->at] == '\\') {
            r->at++;
            if (read_escape(r, out))
                return -EBADMSG;
        } else {
            text_add(out, r->s + r->at, (size_t)n);
            r->at += (size_t)n;
        }
    }
    if (r->at == r->n)
        return -EBADMSG;
    r->at++;
    skip_blanks(r);
    return r->at == r->n ? 0 : -EBADMSG;
}

int literal_parse(struct text *out, const char *line, size_t n, struct err *e)
{
    struct reader r = { line, n, 0 };

    text_add(out, "", 0);
    if (read_string(&r, out))
        return fail(e, -EBADMSG, "byte %zu: expected a JSON string, and nothing else", r.at);
    return out->failed ? fail(e, -ENOMEM, "no memory for a text") : 0;
}
