#ifndef LAGUNA_JSON_H
#define LAGUNA_JSON_H

#include "src/base.h"

#include <cjson/cJSON.h>

/* JSON from outside: a strict pre-scan in front of cJSON closes what cJSON lets through
 * (spec/faults.md 1.1): UTF-8, depth, nodes, number grammar, \u0000, duplicate keys,
 * trailing text.  Afterwards every number node keeps its text in valuestring, so that
 * integers of any size and Python's printing of floats survive. */

struct json_limits {
    int depth;
    size_t nodes;
};

static const struct json_limits JSON_REQUEST = { 64, 500000 };
static const struct json_limits JSON_FILE = { 64, 4000000 };

/* Parse text[0..n) whole.  NULL and the words (with byte offset) in *e otherwise; errno tells
 * bad text (EBADMSG) from no memory (ENOMEM).
 * The caller frees with cJSON_Delete(). */
cJSON *json_parse(const char *text, size_t n, const struct json_limits *lim, struct err *e);

/* The pre-scan alone: 0 or -EBADMSG.  Linear, no recursion. */
int json_scan(const char *text, size_t n, const struct json_limits *lim, struct err *e);

/* A member by exact name, or NULL. */
const cJSON *json_get(const cJSON *object, const char *key);

/* 0 where the node is an integer (no fraction, no exponent) in min..max; else -ERANGE or
 * -EINVAL, *out untouched, no words. */
int json_int64(const cJSON *node, int64_t min, int64_t max, int64_t *out);

/* Growing text. */
struct text {
    char *s;                    /* NUL-terminated once anything was added */
    size_t n, cap;
    bool failed;                /* out of memory: sticky, checked at the end */
};

/* Room for n more bytes and the NUL; false without memory. */
bool text_reserve(struct text *t, size_t n);

/* Inline, since most of what is added is a few bytes, often a constant: then the call would cost
 * more than the copy. */
static inline void text_add(struct text *t, const char *s, size_t n)
{
    bool has_room = t->n < t->cap && n < t->cap - t->n && !t->failed;

    if (!has_room && !text_reserve(t, n))
        return;
    if (n)
        memcpy(t->s + t->n, s, n);
    t->n += n;
    t->s[t->n] = 0;
}

static inline void text_puts(struct text *t, const char *s)
{
    text_add(t, s, strlen(s));
}

void text_printf(struct text *t, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
void text_free(struct text *t);

/* A JSON string literal of bytes that are valid UTF-8 (non-ASCII kept). */
void text_json_string(struct text *t, const char *s, size_t n);

/* The same of any bytes: what is no UTF-8 becomes U+FFFD. */
void text_json_bytes(struct text *t, const char *s, size_t n);

/* The node as Python's json.dumps(ensure_ascii=False) prints it: ", " and ": ", key order
 * kept, floats by their shortest repr. */
void text_json_python(struct text *t, const cJSON *node);

#endif
