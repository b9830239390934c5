#ifndef LAGUNA_DIRECTORY_H
#define LAGUNA_DIRECTORY_H

#include "src/model.h"
#include "src/tokenizer.h"

/* A model's directory as a whole: config, every shard's header and length, the tokenizer, and
 * whether the chat template is the layout that this program writes.  Reads no weights.
 * Both results belong to the caller. */
int directory_open(struct model **model, struct tokenizer **tokenizer, const char *dir,
                   struct log *l, struct err *e);

#endif
