#ifndef LAGUNA_ADDED_H
#define LAGUNA_ADDED_H

#include "src/pairs.h"

/* Added tokens: texts that become one id before anything is split.  The reference library
 * looks for those with `normalized: false` first, and for the others in what is left. */

enum { ADDED_RAW, ADDED_NORMALIZED, ADDED_SETS };

enum { ADDED_TOKENS_MAX = 16384, ADDED_CONTENT_MAX = 256 };

struct added_token {
    int32_t id;
    bool special, normalized;
    bool lstrip, rstrip;                /* takes the white space before, after it along */
};

struct added {
    struct added_token *token;          /* [tokens] */
    int32_t tokens;
    struct pairs tree;                  /* node, byte -> node; the roots are 0 .. ADDED_SETS - 1 */
    int32_t *ends;                      /* [nodes] index of the token that ends here, or -1 */
    int32_t nodes;
    bool begins[ADDED_SETS][256];       /* whether a token of the set begins with the byte */
};

struct added_match {
    size_t from, to;
    int32_t id;
};

/* Room for so many tokens of so many bytes together.  -ENOMEM. */
int  added_open(struct added *a, size_t tokens, size_t bytes);
void added_close(struct added *a);

/* content[0..n), n >= 1.  -EEXIST where the set has it. */
int added_add(struct added *a, const struct added_token *token, const char *content, size_t n);

/* The leftmost, of those the longest, token of the set that lies wholly in text[from..to). */
bool added_find(const struct added *a, int set, const char *text, size_t from, size_t to,
                struct added_match *m);

#endif
