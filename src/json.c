/* JSON from outside: the strict scan in front of cJSON, and the tree with each number's
 * own text.  The scan is a loop with a stack of the open objects and arrays, so that neither
 * depth nor length can hurt it; afterwards cJSON can only fail for want of memory.
 * Printing is in src/text.c.  Nothing here writes JSON files. */
#include "src/json.h"
#include "src/utf8.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <xxhash.h>

enum {
    DEPTH_MAX = 256,            /* most that json_limits.depth may be; cJSON's own is 1000 */
    CJSON_NUMBER_MAX = 63       /* longer numbers are cut by cJSON's buffer */
};

/* Keys seen so far, of all objects: XXH3-128 of the decoded key, seeded by its object.
 * Equal hashes are taken for equal keys. */
struct keys {
    XXH128_hash_t *slot;        /* [size], all zero: free */
    size_t size, used;
};

struct scan {
    const unsigned char *s;
    size_t n, at;
    const struct json_limits *lim;
    size_t nodes;
    size_t objects;             /* so far; names an object in the hash of its keys */
    size_t open[DEPTH_MAX];     /* its number for an object, 0 for an array */
    int depth;
    struct keys keys;
    struct text decoded;        /* scratch: a key with escapes */
    bool long_number;
    struct err *e;
};

static int bad(struct scan *c, size_t at, const char *what)
{
    return fail(c->e, -EBADMSG, "JSON byte %zu: %s", at, what);
}

static int peek(const struct scan *c)
{
    return c->at < c->n ? c->s[c->at] : -1;
}

static void skip_space(struct scan *c)
{
    while (c->at < c->n && (c->s[c->at] == ' ' || c->s[c->at] == '\n' || c->s[c->at] == '\r' ||
                            c->s[c->at] == '\t'))
        c->at++;
}

static size_t skip_digits(struct scan *c)
{
    size_t from = c->at;

    while (c->at < c->n && c->s[c->at] >= '0' && c->s[c->at] <= '9')
        c->at++;
    return c->at - from;
}

static int scan_number(struct scan *c)
{
    size_t from = c->at;
    bool zero;

    if (peek(c) == '-')
        c->at++;
    zero = peek(c) == '0';
    if (!skip_digits(c))
        return bad(c, c->at, "a digit is missing");
    if (zero && c->at - from > (c->s[from] == '-' ? 2u : 1u))
        return bad(c, from, "a number with a leading zero");
    if (peek(c) == '.') {
        c->at++;
        if (!skip_digits(c))
            return bad(c, c->at, "a digit is missing after the point");
    }
    if (peek(c) == 'e' || peek(c) == 'E') {
        c->at++;
        if (peek(c) == '+' || peek(c) == '-')
            c->at++;
        if (!skip_digits(c))
            return bad(c, c->at, "a digit is missing in the exponent");
    }
    if (c->at - from > CJSON_NUMBER_MAX)
        c->long_number = true;
    return 0;
}

/* Four hexadecimal digits at s, or -1. */
static int32_t hex4(const unsigned char *s, size_t n)
{
    int32_t v = 0;
    int i;

    if (n < 4)
        return -1;
    for (i = 0; i < 4; i++) {
        int digit = s[i] >= '0' && s[i] <= '9' ? s[i] - '0'
                  : s[i] >= 'a' && s[i] <= 'f' ? s[i] - 'a' + 10
                  : s[i] >= 'A' && s[i] <= 'F' ? s[i] - 'A' + 10 : -1;

        if (digit < 0)
            return -1;
        v = v << 4 | digit;
    }
    return v;
}

/* c->at is behind a backslash. */
static int scan_escape(struct scan *c)
{
    size_t from = c->at - 1;
    int32_t u;

    if (c->at == c->n)
        return bad(c, from, "the string does not end");
    if (c->s[c->at] != 'u') {
        if (!c->s[c->at] || !strchr("\"\\/bfnrt", c->s[c->at]))
            return bad(c, from, "an unknown escape");
        c->at++;
        return 0;
    }
    u = hex4(c->s + c->at + 1, c->n - c->at - 1);
    if (u < 0)
        return bad(c, from, "\\u without four hexadecimal digits");
    if (u == 0)
        return bad(c, from, "\\u0000 is not supported");
    c->at += 5;
    if (u < 0xd800 || u > 0xdfff)
        return 0;
    if (u > 0xdbff || c->n - c->at < 6 || c->s[c->at] != '\\' || c->s[c->at + 1] != 'u')
        return bad(c, from, "half of a surrogate pair");
    u = hex4(c->s + c->at + 2, c->n - c->at - 2);
    if (u < 0xdc00 || u > 0xdfff)
        return bad(c, from, "half of a surrogate pair");
    c->at += 6;
    return 0;
}

/* c->at is at the opening quote.  *escaped: some escape is inside. */
static int scan_string(struct scan *c, bool *escaped)
{
    size_t from = c->at++;
    int len, rc;

    *escaped = false;
    while (c->at < c->n) {
        unsigned char b = c->s[c->at];

        if (b == '"') {
            c->at++;
            return 0;
        }
        if (b < 0x20)
            return bad(c, c->at, "a control character in a string");
        if (b == '\\') {
            c->at++;
            *escaped = true;
            rc = scan_escape(c);
            if (rc)
                return rc;
            continue;
        }
        len = utf8_char(c->s + c->at, c->n - c->at);
        if (len < 1)
            return bad(c, c->at, "invalid UTF-8");
        c->at += (size_t)len;
    }
    return bad(c, from, "the string does not end");
}

static void add_utf8(struct text *t, uint32_t u)
{
    char s[4];
    size_t n = 0;

    if (u < 0x80) {
        s[n++] = (char)u;
    } else if (u < 0x800) {
        s[n++] = (char)(0xc0 | u >> 6);
        s[n++] = (char)(0x80 | (u & 0x3f));
    } else if (u < 0x10000) {
        s[n++] = (char)(0xe0 | u >> 12);
        s[n++] = (char)(0x80 | (u >> 6 & 0x3f));
        s[n++] = (char)(0x80 | (u & 0x3f));
    } else {
        s[n++] = (char)(0xf0 | u >> 18);
        s[n++] = (char)(0x80 | (u >> 12 & 0x3f));
        s[n++] = (char)(0x80 | (u >> 6 & 0x3f));
        s[n++] = (char)(0x80 | (u & 0x3f));
    }
    text_add(t, s, n);
}

/* The bytes that a checked string's inside stands for. */
static void unescape(struct text *t, const unsigned char *s, size_t n)
{
    static const char from[] = "\"\\/bfnrt", to[] = "\"\\/\b\f\n\r\t";
    size_t i = 0;

    t->n = 0;
    while (i < n) {
        uint32_t u;

        if (s[i] != '\\') {
            text_add(t, (const char *)s + i++, 1);
            continue;
        }
        if (s[i + 1] != 'u') {
            text_add(t, &to[strchr(from, s[i + 1]) - from], 1);
            i += 2;
            continue;
        }
        u = (uint32_t)hex4(s + i + 2, n - i - 2);
        i += 6;
        if (u >= 0xd800 && u <= 0xdbff) {
            u = 0x10000 + ((u - 0xd800) << 10) + (uint32_t)hex4(s + i + 2, n - i - 2) - 0xdc00;
            i += 6;
        }
        add_utf8(t, u);
    }
}

/* The slot of h, or the free one where it belongs. */
static XXH128_hash_t *keys_find(const struct keys *k, XXH128_hash_t h)
{
    size_t i = h.low64 & (k->size - 1);

    while ((k->slot[i].low64 | k->slot[i].high64) && !XXH128_isEqual(k->slot[i], h))
        i = (i + 1) & (k->size - 1);
    return &k->slot[i];
}

static int keys_grow(struct keys *k)
{
    struct keys wider = { .size = k->size ? 2 * k->size : 64, .used = k->used };
    size_t i;

    wider.slot = calloc(wider.size, sizeof(*wider.slot));
    if (!wider.slot)
        return -ENOMEM;
    for (i = 0; i < k->size; i++)
        if (k->slot[i].low64 | k->slot[i].high64)
            *keys_find(&wider, k->slot[i]) = k->slot[i];
    free(k->slot);
    *k = wider;
    return 0;
}

/* Remember the key s[0..n) of the innermost object.  1 where that object has it already. */
static int key_add(struct scan *c, const unsigned char *s, size_t n, bool escaped)
{
    XXH128_hash_t h, *slot;

    if (escaped) {
        unescape(&c->decoded, s, n);
        if (c->decoded.failed)
            return -ENOMEM;
        s = (const unsigned char *)c->decoded.s;
        n = c->decoded.n;
    }
    if (2 * c->keys.used >= c->keys.size && keys_grow(&c->keys))
        return -ENOMEM;
    h = XXH3_128bits_withSeed(s, n, c->open[c->depth - 1]);
    slot = keys_find(&c->keys, h);
    if (slot->low64 | slot->high64)
        return 1;
    *slot = h;
    c->keys.used++;
    return 0;
}

/* A key and its colon. */
static int scan_key(struct scan *c)
{
    size_t from = c->at;
    bool escaped;
    int rc;

    if (peek(c) != '"')
        return bad(c, c->at, "a key is missing");
    rc = scan_string(c, &escaped);
    if (rc)
        return rc;
    rc = key_add(c, c->s + from + 1, c->at - from - 2, escaped);
    if (rc < 0)
        return fail(c->e, rc, "out of memory");
    if (rc) {
        int shown = (int)(c->at - from < 66 ? c->at - from : 66);

        return fail(c->e, -EBADMSG, "JSON byte %zu: the key %.*s is there twice", from, shown,
                    (const char *)c->s + from);
    }
    skip_space(c);
    if (peek(c) != ':')
        return bad(c, c->at, "a colon is missing");
    c->at++;
    skip_space(c);
    return 0;
}

static int scan_word(struct scan *c, const char *word)
{
    size_t n = strlen(word);

    if (c->n - c->at < n || memcmp(c->s + c->at, word, n) != 0)
        return bad(c, c->at, "a value is missing");
    c->at += n;
    return 0;
}

/* An opening bracket.  *value: a value must follow. */
static int scan_open(struct scan *c, bool *value)
{
    bool object = c->s[c->at] == '{';

    if (c->depth == c->lim->depth)
        return fail(c->e, -EBADMSG, "JSON byte %zu: deeper than %d levels", c->at, c->lim->depth);
    c->open[c->depth++] = object ? ++c->objects : 0;
    c->at++;
    skip_space(c);
    *value = peek(c) != (object ? '}' : ']');
    return *value && object ? scan_key(c) : 0;
}

/* One value; of an object or array only its opening. */
static int scan_value(struct scan *c, bool *value)
{
    bool escaped;

    *value = false;
    if (++c->nodes > c->lim->nodes)
        return fail(c->e, -EBADMSG, "JSON byte %zu: more than %zu values", c->at, c->lim->nodes);
    switch (peek(c)) {
    case '{':
    case '[':
        return scan_open(c, value);
    case '"':
        return scan_string(c, &escaped);
    case 't':
        return scan_word(c, "true");
    case 'f':
        return scan_word(c, "false");
    case 'n':
        return scan_word(c, "null");
    case '-': case '0': case '1': case '2': case '3': case '4':
    case '5': case '6': case '7': case '8': case '9':
        return scan_number(c);
    default:
        return bad(c, c->at, "a value is missing");
    }
}

/* What may follow a value: brackets that close, then a comma and the next member. */
static int scan_after(struct scan *c, bool *value)
{
    *value = false;
    for (;;) {
        bool object;

        skip_space(c);
        if (!c->depth)
            return 0;
        object = c->open[c->depth - 1] != 0;
        if (peek(c) == (object ? '}' : ']')) {
            c->depth--;
            c->at++;
            continue;
        }
        if (peek(c) != ',')
            return bad(c, c->at, object ? "a comma or } is missing" : "a comma or ] is missing");
        c->at++;
        skip_space(c);
        *value = true;
        return object ? scan_key(c) : 0;
    }
}

static int scan_all(struct scan *c)
{
    bool value = true;
    int rc = 0;

    if (c->n >= 3 && !memcmp(c->s, "\xef\xbb\xbf", 3))
        return bad(c, 0, "a byte order mark");
    skip_space(c);
    while (!rc && value) {
        rc = scan_value(c, &value);
        if (!rc && !value)
            rc = scan_after(c, &value);
    }
    if (!rc && c->at < c->n)
        return bad(c, c->at, "text after the end");
    return rc;
}

static int scan_whole(const char *text, size_t n, const struct json_limits *lim,
                      bool *long_number, struct err *e)
{
    struct scan c = { .s = (const unsigned char *)text, .n = n, .lim = lim, .e = e };
    int rc;

    assert(lim->depth > 0 && lim->depth <= DEPTH_MAX);
    rc = scan_all(&c);
    free(c.keys.slot);
    text_free(&c.decoded);
    *long_number = c.long_number;
    return rc;
}

int json_scan(const char *text, size_t n, const struct json_limits *lim, struct err *e)
{
    bool long_number;

    return scan_whole(text, n, lim, &long_number, e);
}

/* The next number of checked JSON at or behind *at: its length, 0 at the end. */
static size_t next_number(const char *s, size_t n, size_t *at)
{
    size_t i = *at, from;

    while (i < n && s[i] != '-' && !(s[i] >= '0' && s[i] <= '9')) {
        if (s[i++] != '"')
            continue;
        for (; s[i] != '"'; i++)
            if (s[i] == '\\')
                i++;
        i++;
    }
    *at = from = i;
    while (i < n && (strchr("+-.eE", s[i]) || (s[i] >= '0' && s[i] <= '9')) && s[i])
        i++;
    return i - from;
}

/* A copy in which each number too long for cJSON is a 0 and blanks. */
static char *without_long_numbers(const char *s, size_t n)
{
    char *copy = malloc(n);
    size_t at = 0, len;

    if (!copy)
        return NULL;
    memcpy(copy, s, n);
    while ((len = next_number(s, n, &at)) > 0) {
        if (len > CJSON_NUMBER_MAX) {
            memset(copy + at, ' ', len);
            copy[at] = '0';
        }
        at += len;
    }
    return copy;
}

static int keep_text(cJSON *node, const char *s, size_t n, size_t *at)
{
    size_t len = next_number(s, n, at);
    char *text = cJSON_malloc(len + 1);

    assert(len > 0);
    if (!text)
        return -ENOMEM;
    memcpy(text, s + *at, len);
    text[len] = 0;
    node->valuestring = text;
    if (len > CJSON_NUMBER_MAX)
        node->valuedouble = strtod(text, NULL);
    *at += len;
    return 0;
}

/* Walk the tree and the text in step: numbers come in the same order in both. */
static int keep_numbers(cJSON *root, const char *s, size_t n)
{
    cJSON *open[DEPTH_MAX + 1];
    cJSON *node = root;
    size_t at = 0;
    int depth = 0, rc = 0;

    while (node && !rc) {
        if (cJSON_IsNumber(node))
            rc = keep_text(node, s, n, &at);
        if (node->child) {
            open[depth++] = node;
            node = node->child;
            continue;
        }
        while (node != root && !node->next)
            node = open[--depth];
        node = node == root ? NULL : node->next;
    }
    return rc;
}

cJSON *json_parse(const char *text, size_t n, const struct json_limits *lim, struct err *e)
{
    bool long_number;
    char *copy = NULL;
    cJSON *root;
    int rc = scan_whole(text, n, lim, &long_number, e);

    errno = -rc;
    if (rc)
        return NULL;
    if (long_number) {
        copy = without_long_numbers(text, n);
        if (!copy) {
            errno = -fail(e, -ENOMEM, "out of memory");
            return NULL;
        }
    }
    root = cJSON_ParseWithLength(copy ? copy : text, n);
    free(copy);
    if (root && keep_numbers(root, text, n)) {
        cJSON_Delete(root);
        root = NULL;
    }
    if (!root)
        errno = -fail(e, -ENOMEM, "out of memory");
    return root;
}

const cJSON *json_get(const cJSON *object, const char *key)
{
    const cJSON *at = cJSON_IsObject(object) ? object->child : NULL;

    /* Most keys differ in their first byte, for which a call takes too long. */
    while (at && (at->string[0] != key[0] || strcmp(at->string, key) != 0))
        at = at->next;
    return at;
}

int json_int64(const cJSON *node, int64_t min, int64_t max, int64_t *out)
{
    long long v;

    if (!cJSON_IsNumber(node) || !node->valuestring || strpbrk(node->valuestring, ".eE"))
        return -EINVAL;
    errno = 0;
    v = strtoll(node->valuestring, NULL, 10);
    if (errno == ERANGE || v < min || v > max)
        return -ERANGE;
    *out = v;
    return 0;
}
