#ifndef LAGUNA_RECALL_H
#define LAGUNA_RECALL_H

#include "src/answer.h"

/* What the model wrote, for when it comes back as history.  A client sends text and arguments
 * as it understood them; tokenised anew they may differ from what was sampled, in the spacing of
 * a call or in where a word was cut, and a session's prefix would end there.  Bounded; any
 * thread may call. */

struct recall;

int  recall_open(struct recall **out, struct err *e);
void recall_close(struct recall *r);

/* An answer is complete. */
void recall_keep(struct recall *r, const struct answer *a);

/* Arguments of calls that were made here (known by their id) and came back in another order or
 * spacing get the form they were sent in. */
void recall_calls(struct recall *r, cJSON *messages);

/* As prompt_encode(), but turns that were sampled here get the ids that were sampled. */
int  recall_encode(struct recall *r, const struct prompt *p, const struct tokenizer *t,
                   struct ids *out, struct err *e);

#endif
