#ifndef LAGUNA_SCAN_H
#define LAGUNA_SCAN_H

#include "src/base.h"

/* A strict reader of JSON text that is asked for one thing after the other and builds no
 * tree: headers of shards hold 10^5 tensors.  Nothing recurses, and every position is
 * looked at once. */

enum { SCAN_DEPTH = 8 };        /* of a value that scan_skip() steps over */

struct scan {
    const char *text, *at, *end;
    const char *file;           /* for messages */
    const char *item;           /* the tensor being read, for messages, or NULL */
    struct err *e;
};

/* -EBADMSG with file, item, the words and the place. */
int scan_fail(const struct scan *s, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/* Step over white space; the next character, or 0 at the end. */
char scan_peek(struct scan *s);

/* Step over white space and the character c; -EBADMSG where another stands there. */
int scan_expect(struct scan *s, char c);

/* Between the members of an object or array that ends in `close`: 1 where another follows,
 * 0 where it ended.  *first is true before the first member and cleared here. */
int scan_more(struct scan *s, char close, bool *first);

/* A string, decoded: at most cap - 1 bytes and a NUL into out.  Valid UTF-8, without
 * control characters, NUL or lone surrogates.  out NULL: only checked, of any length. */
int scan_string(struct scan *s, char *out, size_t cap, size_t *len);

/* An unsigned integer: digits alone, no leading zero, below 2^64. */
int scan_u64(struct scan *s, uint64_t *out);

/* Any value, checked loosely and dropped. */
int scan_skip(struct scan *s);

/* Nothing but spaces may follow. */
int scan_end(struct scan *s);

#endif
