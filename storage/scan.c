/* The JSON that shards and their index are written in, read in one pass without a tree.
 * It is stricter than JSON where another parser could read the same bytes differently
 * (spec/faults.md 1), and it knows no tensor: that is safetensors.c and index.c. */
#include "storage/scan.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>

int scan_fail(const struct scan *s, const char *fmt, ...)
{
    char words[256];
    va_list ap;

    va_start(ap, fmt);
    vsnprintf(words, sizeof(words), fmt, ap);
    va_end(ap);
    return fail(s->e, -EBADMSG, "%s%s%.128s: %s (byte %zu of the JSON)", s->file,
                s->item ? ":" : "", s->item ? s->item : "", words, (size_t)(s->at - s->text));
}

char scan_peek(struct scan *s)
{
    while (s->at < s->end &&
           (*s->at == ' ' || *s->at == '\n' || *s->at == '\t' || *s->at == '\r'))
        s->at++;
    return s->at < s->end ? *s->at : 0;
}

int scan_expect(struct scan *s, char c)
{
    char got = scan_peek(s);

    if (got != c || s->at == s->end) {
        if (s->at == s->end)
            return scan_fail(s, "ends where '%c' was expected", c);
        return scan_fail(s, "0x%02x where '%c' was expected", (unsigned char)got, c);
    }
    s->at++;
    return 0;
}

int scan_more(struct scan *s, char close, bool *first)
{
    int rc;

    if (scan_peek(s) == close) {
        s->at++;
        return 0;
    }
    if (*first) {
        *first = false;
        return 1;
    }
    rc = scan_expect(s, ',');
    return rc ? rc : 1;
}

static int hex4(struct scan *s, unsigned *out)
{
    unsigned value = 0;
    int i;

    if (s->end - s->at < 4)
        return scan_fail(s, "ends inside an escape");
    for (i = 0; i < 4; i++) {
        char c = *s->at++;

        value <<= 4;
        if (c >= '0' && c <= '9')
            value |= (unsigned)(c - '0');
        else if ((c | 0x20) >= 'a' && (c | 0x20) <= 'f')
            value |= (unsigned)((c | 0x20) - 'a' + 10);
        else
            return scan_fail(s, "bad \\u escape");
    }
    *out = value;
    return 0;
}

static size_t put_utf8(char *out, unsigned c)
{
    if (c < 0x80) {
        out[0] = (char)c;
        return 1;
    }
    if (c < 0x800) {
        out[0] = (char)(0xc0 | c >> 6);
        out[1] = (char)(0x80 | (c & 0x3f));
        return 2;
    }
    if (c < 0x10000) {
        out[0] = (char)(0xe0 | c >> 12);
        out[1] = (char)(0x80 | (c >> 6 & 0x3f));
        out[2] = (char)(0x80 | (c & 0x3f));
        return 3;
    }
    out[0] = (char)(0xf0 | c >> 18);
    out[1] = (char)(0x80 | (c >> 12 & 0x3f));
    out[2] = (char)(0x80 | (c >> 6 & 0x3f));
    out[3] = (char)(0x80 | (c & 0x3f));
    return 4;
}

/* What follows a backslash, as *n bytes of UTF-8. */
static int escape(struct scan *s, char out[4], size_t *n)
{
    static const char from[] = "\"\\/bfnrt", to[] = "\"\\/\b\f\n\r\t";
    const char *known;
    unsigned c = 0, low = 0;
    int rc;

    if (s->at == s->end)
        return scan_fail(s, "ends inside an escape");
    if (*s->at != 'u') {
        known = *s->at ? strchr(from, *s->at) : NULL;
        if (!known)
            return scan_fail(s, "unknown escape");
        s->at++;
        out[0] = to[known - from];
        *n = 1;
        return 0;
    }
    s->at++;
    rc = hex4(s, &c);
    if (rc)
        return rc;
    if (c == 0)
        return scan_fail(s, "NUL in a string");
    if (c >= 0xdc00 && c < 0xe000)
        return scan_fail(s, "lone surrogate");
    if (c >= 0xd800 && c < 0xdc00) {
        if (s->end - s->at < 2 || s->at[0] != '\\' || s->at[1] != 'u')
            return scan_fail(s, "lone surrogate");
        s->at += 2;
        rc = hex4(s, &low);
        if (rc)
            return rc;
        if (low < 0xdc00 || low >= 0xe000)
            return scan_fail(s, "lone surrogate");
        c = 0x10000 + ((c - 0xd800) << 10) + (low - 0xdc00);
    }
    *n = put_utf8(out, c);
    return 0;
}

/* Bytes of the UTF-8 sequence at p, or 0 where it is none (overlong, surrogate, cut). */
static size_t utf8_length(const char *p, size_t left)
{
    const unsigned char *u = (const unsigned char *)p;
    unsigned low = 0x80, high = 0xbf;
    size_t n, i;

    if (u[0] < 0x80)
        return 1;
    if (u[0] < 0xc2 || u[0] > 0xf4)
        return 0;
    n = u[0] < 0xe0 ? 2 : u[0] < 0xf0 ? 3 : 4;
    if (n > left)
        return 0;
    if (u[0] == 0xe0)
        low = 0xa0;
    else if (u[0] == 0xf0)
        low = 0x90;
    else if (u[0] == 0xed)
        high = 0x9f;
    else if (u[0] == 0xf4)
        high = 0x8f;
    if (u[1] < low || u[1] > high)
        return 0;
    for (i = 2; i < n; i++)
        if ((u[i] & 0xc0) != 0x80)
            return 0;
    return n;
}

/* Bytes from s->at on that stand for themselves. */
static size_t plain_bytes(const struct scan *s)
{
    const char *p = s->at;

    while (p < s->end && (signed char)*p >= 0x20 && *p != '"' && *p != '\\')
        p++;
    return (size_t)(p - s->at);
}

int scan_string(struct scan *s, char *out, size_t cap, size_t *len)
{
    char one[4];
    const char *from;
    size_t used = 0, n = 0;
    int rc = scan_expect(s, '"');

    if (rc)
        return rc;
    for (;;) {
        if (s->at == s->end)
            return scan_fail(s, "ends inside a string");
        if (*s->at == '"')
            break;
        n = plain_bytes(s);
        if (n) {
            from = s->at;
            s->at += n;
        } else if (*s->at == '\\') {
            s->at++;
            rc = escape(s, one, &n);
            if (rc)
                return rc;
            from = one;
        } else {
            if ((unsigned char)*s->at < 0x20)
                return scan_fail(s, "control character 0x%02x in a string",
                                 (unsigned char)*s->at);
            n = utf8_length(s->at, (size_t)(s->end - s->at));
            if (!n)
                return scan_fail(s, "bytes that are not UTF-8");
            from = s->at;
            s->at += n;
        }
        if (out && used + n >= cap)
            return scan_fail(s, "string longer than %zu bytes", cap - 1);
        if (out)
            memcpy(out + used, from, n);
        used += n;
    }
    s->at++;
    if (out)
        out[used] = 0;
    if (len)
        *len = used;
    return 0;
}

int scan_u64(struct scan *s, uint64_t *out)
{
    char c = scan_peek(s);
    uint64_t value = 0;
    int digits = 0;

    for (; s->at < s->end && *s->at >= '0' && *s->at <= '9'; s->at++, digits++)
        if (__builtin_mul_overflow(value, 10, &value) ||
            __builtin_add_overflow(value, (uint64_t)(*s->at - '0'), &value))
            return scan_fail(s, "number above 2^64 - 1");
    c = digits ? c : 'x';
    if (c == 'x' || (c == '0' && digits > 1) ||
        (s->at < s->end && (*s->at == '.' || *s->at == 'e' || *s->at == 'E')))
        return scan_fail(s, "not an unsigned integer");
    *out = value;
    return 0;
}

int scan_skip(struct scan *s)
{
    int depth = 0, rc;

    do {
        char c = scan_peek(s);

        if (c == '"') {
            rc = scan_string(s, NULL, 0, NULL);
            if (rc)
                return rc;
        } else if (c == '{' || c == '[') {
            if (++depth > SCAN_DEPTH)
                return scan_fail(s, "nested deeper than %d", SCAN_DEPTH);
            s->at++;
        } else if (c == '}' || c == ']') {
            if (--depth < 0)
                return scan_fail(s, "a value is missing");
            s->at++;
        } else if (c == ',' || c == ':') {
            if (!depth)
                return scan_fail(s, "a value is missing");
            s->at++;
        } else {
            const char *from = s->at;

            while (s->at < s->end && *s->at && strchr("+-.0123456789abcdefghijklmnopqrstuvwxyzE",
                                                      *s->at))
                s->at++;
            if (s->at == from)
                return scan_fail(s, "a value is missing");
        }
    } while (depth > 0);
    return 0;
}

int scan_end(struct scan *s)
{
    while (s->at < s->end && *s->at == ' ')
        s->at++;
    if (s->at != s->end)
        return scan_fail(s, "%zu bytes behind the JSON", (size_t)(s->end - s->at));
    return 0;
}
