/* See the header.  Nothing here allocates, and every byte is looked at once a call. */
#include "src/http_head.h"

#include <strings.h>

/* What the fields say, beside their form. */
struct fields {
    int hosts, lengths, codings;
};

static int refuse(struct http_refusal *r, int status, const char *code, const char *words)
{
    *r = (struct http_refusal){ status, code, words };
    return -1;
}

static int bad(struct http_refusal *r, const char *words)
{
    return refuse(r, 400, "bad_request", words);
}

/* A character of a method or of a field's name. */
static bool is_token(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
           (c && strchr("!#$%&'*+-.^_`|~", c));
}

static bool equals(const char *s, size_t n, const char *word)
{
    return n == strlen(word) && !strncasecmp(s, word, n);
}

static bool read_method(const char *s, size_t n, enum http_method *m)
{
    static const char *const name[] = { "GET", "POST", "OPTIONS" };

    for (int i = 0; i <= HTTP_OPTIONS; i++)
        if (n == strlen(name[i]) && !memcmp(s, name[i], n)) {
            *m = (enum http_method)i;
            return true;
        }
    return false;
}

/* METHOD SP target SP HTTP/1.x, without its end. */
static int check_line(struct http_head *h, const char *s, size_t n, struct http_refusal *r)
{
    size_t method = 0, target, i;

    while (method < n && is_token(s[method]))
        method++;
    if (!method || method == n || s[method] != ' ')
        return bad(r, "this is no HTTP request");
    for (target = method + 1; target < n && s[target] > ' ' && s[target] < 0x7f; target++)
        ;
    if (target == n || s[target] != ' ' || n - target - 1 < 8 || memcmp(s + target, " HTTP/", 6))
        return bad(r, "the request line is malformed");
    if (n - target - 1 != 8 || memcmp(s + target, " HTTP/1.", 8) ||
        (s[n - 1] != '0' && s[n - 1] != '1'))
        return refuse(r, 505, "version_not_supported",
                      "only HTTP/1.0 and HTTP/1.1 are spoken here");
    h->old = h->close = s[n - 1] == '0';
    if (!read_method(s, method, &h->method))
        return refuse(r, 405, "method_not_allowed", "only GET and POST are answered here");
    if (s[method + 1] != '/')
        return bad(r, "the target must begin with a slash");
    for (i = method + 1; i + 2 < target; i++)
        if (!memcmp(s + i, "%00", 3))
            return bad(r, "the target holds a NUL");
    return 0;
}

/* At most one blank in front, digits, and few enough of them. */
static int read_length(struct fields *f, struct http_head *h, const char *s, size_t n,
                       struct http_refusal *r)
{
    size_t i = n && s[0] == ' ';

    if (f->lengths++)
        return bad(r, "Content-Length is there twice");
    if (i == n || n - i > 18)
        return bad(r, "Content-Length is no number");
    for (; i < n; i++) {
        if (s[i] < '0' || s[i] > '9')
            return bad(r, "Content-Length is no number");
        h->length = h->length * 10 + (s[i] - '0');
    }
    return 0;
}

static int read_coding(struct fields *f, struct http_head *h, const char *s, size_t n,
                       struct http_refusal *r)
{
    if (f->codings++)
        return bad(r, "Transfer-Encoding is there twice");
    h->chunked = equals(s, n, "chunked");
    if (h->chunked)
        return 0;
    if (n >= 7 && !strncasecmp(s, "chunked", 7))
        return bad(r, "Transfer-Encoding must end in chunked");
    return refuse(r, 501, "unsupported_coding", "the only transfer coding is chunked");
}

/* One field without its end. */
static int check_field(struct fields *f, struct http_head *h, const char *s, size_t n,
                       struct http_refusal *r)
{
    size_t name = 0, from, to = n;

    while (name < n && is_token(s[name]))
        name++;
    if (!name || name == n || s[name] != ':')
        return bad(r, "a header field is malformed");
    for (from = name + 1; from < n; from++)
        if ((unsigned char)s[from] < ' ' ? s[from] != '\t' : s[from] == 0x7f)
            return bad(r, "a header field holds a control character");
    if (equals(s, name, "Content-Length"))
        return read_length(f, h, s + name + 1, n - name - 1, r);
    for (from = name + 1; from < n && (s[from] == ' ' || s[from] == '\t'); from++)
        ;
    while (to > from && (s[to - 1] == ' ' || s[to - 1] == '\t'))
        to--;
    if (equals(s, name, "Transfer-Encoding"))
        return read_coding(f, h, s + from, to - from, r);
    if (equals(s, name, "Host"))
        f->hosts++;
    if (equals(s, name, "Connection"))
        h->close |= equals(s + from, to - from, "close");
    if (equals(s, name, "Content-Encoding") && !equals(s + from, to - from, "identity"))
        return refuse(r, 415, "unsupported_encoding", "bodies must not be encoded");
    if (equals(s, name, "Expect")) {
        if (!equals(s + from, to - from, "100-continue"))
            return refuse(r, 417, "expectation_failed", "the only expectation is 100-continue");
        h->expect = true;
    }
    return 0;
}

static int check_fields(const struct fields *f, const struct http_head *h,
                        const struct http_limits *l, struct http_refusal *r)
{
    if (f->hosts > 1 || (!f->hosts && !h->old))
        return bad(r, "there must be one Host");
    if (f->codings && (f->lengths || h->old))
        return bad(r, "Transfer-Encoding beside Content-Length or in HTTP/1.0");
    if (h->method == HTTP_POST && !f->lengths && !f->codings)
        return refuse(r, 411, "length_required", "a POST needs a Content-Length");
    if (h->length > l->body_bytes)
        return refuse(r, 413, "body_too_large", "the body is too large");
    return 0;
}

/* The next line of s[at..n): where its CRLF is, or n where it has not come, or -1. */
static int64_t line_end(const char *s, size_t at, size_t n, struct http_refusal *r)
{
    for (size_t i = at; i < n; i++) {
        if (s[i] == '\n')
            return bad(r, "a line ends without a carriage return");
        if (s[i] == '\r' && i + 1 < n)
            return s[i + 1] == '\n' ? (int64_t)i : bad(r, "a carriage return inside a line");
    }
    return (int64_t)n;
}

static int head_too_large(struct http_refusal *r)
{
    return refuse(r, 431, "head_too_large", "the header fields are too large or too many");
}

int http_head_read(struct http_head *h, const char *s, size_t n, const struct http_limits *l,
                   struct http_refusal *r)
{
    struct fields f = { .hosts = 0 };
    size_t at = 0, most = n < (size_t)l->head_bytes ? n : (size_t)l->head_bytes;

    *h = (struct http_head){ .bytes = 0 };
    for (int line = 0;; line++) {
        int64_t end = line_end(s, at, most, r);
        size_t length = (size_t)end - at;

        if (end < 0)
            return -1;
        if (!line && length > (size_t)l->line_bytes)
            return refuse(r, 414, "uri_too_long", "the request line is too long");
        if (end == (int64_t)most)
            return n > most ? head_too_large(r) : !line && n && !is_token(s[0])
                       ? bad(r, "this is no HTTP request") : 0;
        if (line && !length)
            break;
        if (line > l->fields)
            return head_too_large(r);
        if (line ? check_field(&f, h, s + at, length, r) : check_line(h, s + at, length, r))
            return -1;
        at = (size_t)end + 2;
    }
    if (check_fields(&f, h, l, r))
        return -1;
    h->bytes = at + 2;
    return 1;
}

int64_t http_chunk_size(const char *s, size_t n)
{
    int64_t size = 0;

    if (!n || n > 8)
        return -1;
    for (size_t i = 0; i < n; i++) {
        static const char digits[] = "0123456789abcdef";
        int c = s[i] >= 'A' && s[i] <= 'F' ? s[i] | 0x20 : s[i];
        const char *d = memchr(digits, c, sizeof(digits) - 1);

        if (!d)
            return -1;
        size = size * 16 + (d - digits);
    }
    return size;
}

void http_head_cut(char *s, const struct http_head *h)
{
    for (size_t i = 0; i + 1 < h->bytes; i++) {
        if (s[i] != '\r')
            continue;
        s[i] = s[i + 1] = 0;
        for (size_t k = i; k && (s[k - 1] == ' ' || s[k - 1] == '\t'); k--)
            s[k - 1] = 0;
    }
    s[strcspn(s, " ")] = 0;
    *strrchr(s + strlen(s) + 1, ' ') = 0;
}

const char *http_target(const char *s)
{
    return s + strlen(s) + 1;
}

const char *http_field(const char *s, const struct http_head *h, const char *name)
{
    const char *end = s + h->bytes;
    size_t n = strlen(name);

    /* The request line is three strings now. */
    for (int i = 0; i < 3; i++)
        s += strlen(s) + 1;
    for (; s < end; s += strlen(s) + 1)
        if (!strncasecmp(s, name, n) && s[n] == ':')
            return s + n + 1 + strspn(s + n + 1, " \t");
    return NULL;
}
