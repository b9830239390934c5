#ifndef LAGUNA_TOKENIZER_H
#define LAGUNA_TOKENIZER_H

#include "src/base.h"

/* tokenizer.json -> ids and back (spec: laguna.md section 5).  Byte-level BPE with the
 * file's own Split patterns; total on any bytes.  Read-only after open: any number of
 * threads may encode at once. */
struct tokenizer;

struct ids {
    int32_t *id;
    size_t n, cap;
};

/* Grows as needed; -ENOMEM. */
int ids_push(struct ids *v, int32_t id);

/* Bytes from..to of a text in which added tokens may be matched. */
struct span {
    size_t from, to;
};

enum { SPANS_ALL = -1 };        /* as `spans`: everywhere */

/* Parse the bytes of a tokenizer.json; rows C01 to C07 of spec/faults.md.  `vocab` is the
 * model's: every id must be below it. */
int  tokenizer_open(struct tokenizer **out, const char *json, size_t n, const char *name, int vocab,
                    struct err *e);
void tokenizer_close(struct tokenizer *t);

/* Append the ids of text[0..n).  Added tokens are matched only inside the given spans
 * (ascending, disjoint); with spans 0 nowhere.  Linear in n but for the log of a piece.
 * -ENOMEM; -EOVERFLOW where a split pattern never ends on the text; *e has the words. */
int tokenizer_encode(const struct tokenizer *t, const char *text, size_t n, const struct span *span,
                     int spans, struct ids *out, struct err *e);

/* The bytes a token stands for (an added token's content), not NUL-terminated.
 * NULL for an id that no entry has. */
const char *tokenizer_bytes(const struct tokenizer *t, int32_t id, size_t *n);

int     tokenizer_vocab(const struct tokenizer *t);             /* highest id + 1 */
bool    tokenizer_special(const struct tokenizer *t, int32_t id);   /* special: true in the file */
bool    tokenizer_added(const struct tokenizer *t, int32_t id);
int32_t tokenizer_find_added(const struct tokenizer *t, const char *content);   /* or -1 */
int32_t tokenizer_bos(const struct tokenizer *t);   /* what the post-processor prepends, or -1 */

/* Streaming decode: bytes that do not yet end a character are held back.  What can never
 * become valid UTF-8 comes out as U+FFFD. */
struct detok {
    unsigned char held[4];
    int n;
};

/* Append to buf what is complete after these bytes; returns how many bytes were written
 * (at most 3 * n + 12).  With last set, what is held comes out too. */
size_t detok_push(struct detok *d, const char *bytes, size_t n, bool last, char *buf);

#endif
