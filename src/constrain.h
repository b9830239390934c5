#ifndef LAGUNA_CONSTRAIN_H
#define LAGUNA_CONSTRAIN_H

#include "src/schema.h"
#include "src/tokentrie.h"

/* Which tokens may come next in one answer, by a compiled schema.  It begins behind the
 * thoughts; while there are some, the turn cannot end.  Tags of calls are their own tokens
 * alone, texts are made of ordinary tokens, and the turn ends only where the schema does: there
 * the end tokens are allowed, and where nothing else is, they alone. */
struct constraint;

enum constraint_kind {
    CONSTRAIN_NO_CALLS,         /* anything but <tool_call> */
    CONSTRAIN_DOCUMENT,         /* the schema's value */
    CONSTRAIN_DOCUMENT_OR_CALL, /* the same, or first a call and then anything */
    CONSTRAIN_CALL,             /* one call */
    CONSTRAIN_CALLS,            /* one or more */
};

struct constraint_options {
    enum constraint_kind kind;
    const struct schema *schema;        /* of the document or of what is inside of calls */
    bool thinking;                      /* the prompt ended in <think> */
    const struct tokenizer *tokenizer;
    const struct tokentrie *trie;
    int vocab;                          /* of the logits */
    const int32_t *eos;                 /* [eos_count]: the end tokens */
    int eos_count;
};

/* Everything in *o must outlive it.  -ENOTSUP where the tokenizer lacks the tags. */
int  constraint_open(struct constraint **out, const struct constraint_options *o, struct err *e);
void constraint_close(struct constraint *c);

/* Bit i of *allowed [(vocab + 63) / 64]: token i may come next.  Valid until the next call.
 * -ENOMEM. */
int constraint_mask(struct constraint *c, const uint64_t **allowed, struct err *e);

/* The token that was chosen, one of those allowed.  -ENOMEM. */
int constraint_advance(struct constraint *c, int32_t id, struct err *e);

#endif
