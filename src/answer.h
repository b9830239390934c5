#ifndef LAGUNA_ANSWER_H
#define LAGUNA_ANSWER_H

#include "src/generate.h"
#include "src/reply.h"
#include "src/request.h"

struct options;

/* One request, answered: the prompt's ids, the generation, and what it adds up to.  A stream
 * is told of each piece while it is made; how it travels is left to the server. */

/* Called on the thread that evaluates.  Each may be NULL. */
struct answer_hooks {
    void (*progress)(void *arg, int done, int total);   /* of the prompt's tokens */
    /* A conversation: a piece, which is in the message already.  The call it speaks of is the
     * message's last. */
    void (*event)(void *arg, const struct event *v, const struct message *m);
    void (*text)(void *arg, const char *s, size_t n);   /* a completion: a piece */
    /* After the pieces that a token brought, with its log-probability where asked for. */
    void (*token)(void *arg, const struct reply_token *t);
    void *arg;
    const atomic_int *cancel;
};

struct answer {
    const struct request *q;
    const struct answer_hooks *hooks;
    const struct tokenizer *tokenizer;
    const struct ids *prompt;
    struct toolparse *parser;           /* of a conversation, else NULL */
    struct message message;
    struct text text;                   /* of a completion */
    struct text raw;                    /* of a conversation: as the model wrote it */
    struct reply_token *token;          /* [tokens] */
    struct alternative *alternative;    /* [tokens][q->alternatives] */
    int tokens, cap;
    int reasoning;
    bool enough;                        /* it ends here, although the model would go on */
    struct generation made;
    struct timings timings;
    int rc;
};

/* What the request left open, from the checkpoint's defaults; a seed from the system, or 0
 * under --deterministic. */
void sampling_fill(struct sampling *s, const struct generation_defaults *d, bool seed_set,
                   bool deterministic);

/* Append the ids of the prompt: ids as they are, text behind one BOS, a conversation as it was
 * rendered.  -EINVAL where there are none; as tokenizer_encode(). */
int answer_prompt(const struct request *q, const struct tokenizer *t, const struct shape *shape,
                  struct ids *out, struct err *e);

/* What the request demands of its answer, or NULL; constraint_close() it.  -ENOTSUP where the
 * model's tokenizer has no calls.  The request must outlive it. */
int answer_constraint(const struct request *q, struct engine *g, struct constraint **out,
                      struct err *e);

/* Fill *a, which answer_free() frees in any case; q, prompt and hooks must outlive it.
 * Otherwise why there is no answer, as answer_error() tells it; a cancelled one is 0, with
 * a->made.finish saying so. */
int  answer_run(struct answer *a, struct session *s, const struct request *q,
                const struct ids *prompt, const struct options *o,
                const struct answer_hooks *hooks, struct err *e);
void answer_free(struct answer *a);

/* What a client is told of a negative errno that answer_prompt() or answer_run() returned, and
 * of its words: a status below 500 where the fault is the request's. */
void answer_error(struct request_error *out, int rc, const struct err *e);

/* The answer's part of a reply; id, model and created are the caller's.  Points into *a. */
void answer_describe(struct answer *a, struct reply *r);

/* The last part of the model's directory, which is how replies call it. */
void answer_model(char out[128], const char *dir);

/* All of it at once: append the response object to out, on one line. */
int answer_request(struct session *s, const struct request *q, const struct options *o,
                   struct text *out, struct err *e);

#endif
