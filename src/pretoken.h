#ifndef LAGUNA_PRETOKEN_H
#define LAGUNA_PRETOKEN_H

#include "src/base.h"

/* A text -> the pieces inside which BPE may merge: the Split patterns of a tokenizer.json,
 * one after the other, each run inside the pieces of the one before it (so that a look-around
 * never sees beyond its piece).  Expressions mean what they mean to the reference library,
 * whose engine is Oniguruma; PCRE2 runs them. */

enum split_behavior {
    SPLIT_ISOLATED,
    SPLIT_REMOVED,
    SPLIT_MERGED_WITH_PREVIOUS,
    SPLIT_MERGED_WITH_NEXT,
    SPLIT_CONTIGUOUS
};

enum { SPLITS_MAX = 16 };

/* Read-only once built: any number of threads may split at once. */
struct pretoken;

/* With no pattern a text is one piece.  -ENOMEM. */
int  pretoken_open(struct pretoken **out, struct err *e);
void pretoken_close(struct pretoken *p);

/* One more Split, run after those there are.  With `literal` set the pattern is plain text.
 * -EBADMSG with the offset where it does not compile. */
int pretoken_add(struct pretoken *p, const char *pattern, bool literal,
                 enum split_behavior behavior, bool invert, struct err *e);

/* The behavior a tokenizer.json calls so, or -1. */
int split_behavior_named(const char *name);

/* Called with each piece in order; another answer than 0 ends the split with that answer. */
typedef int (*piece_fn)(void *ctx, const char *piece, size_t n);

/* What one thread needs to split: it may be used for any number of texts, one at a time. */
struct splitter;

int  splitter_open(struct splitter **out, const struct pretoken *p, struct err *e);
void splitter_close(struct splitter *s);

/* Cut text[0..n), any bytes.  What is not valid UTF-8 makes pieces of its own.
 * -EOVERFLOW where a pattern backtracks beyond all measure on this text. */
int splitter_run(struct splitter *s, const char *text, size_t n, piece_fn piece, void *ctx,
                 struct err *e);

#endif
