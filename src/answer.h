#ifndef LAGUNA_ANSWER_H
#define LAGUNA_ANSWER_H

#include "src/generate.h"
#include "src/request.h"

struct options;

/* One request, answered whole: the prompt's ids, the generation, the object that goes back.
 * What a stream needs on top of this is left to the server. */

/* What the request left open, from the checkpoint's defaults; a seed from the system, or 0
 * under --deterministic. */
void sampling_fill(struct sampling *s, const struct generation_defaults *d, bool seed_set,
                   bool deterministic);

/* Append the ids of the prompt: ids as they are, text behind one BOS, a conversation as it was
 * rendered. */
int answer_prompt(const struct request *q, const struct engine *g, struct ids *out, struct err *e);

/* What the request demands of its answer, or NULL; constraint_close() it.  -ENOTSUP where the
 * model's tokenizer has no calls.  The request must outlive it. */
int answer_constraint(const struct request *q, struct engine *g, struct constraint **out,
                      struct err *e);

/* Append the response object to out, on one line.  -EBADMSG where the fault is the request's
 * (it does not fit the context); -EDOM, -EIO ... where it is ours. */
int answer_request(struct session *s, const struct request *q, const struct options *o,
                   struct text *out, struct err *e);

#endif
