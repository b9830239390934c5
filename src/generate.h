#ifndef LAGUNA_GENERATE_H
#define LAGUNA_GENERATE_H

#include "src/constrain.h"
#include "src/engine.h"
#include "src/sample.h"

/* One answer: the prompt through the model, then token by token until it ends. */

/* A token as it is made. */
struct generated {
    int32_t id;
    float logprob;
    const struct alternative *alt;      /* [alts], best first */
    int alts;
    const char *text;                   /* [text_n] whole characters that this token released: */
    size_t text_n;                      /* what might begin a stop string is held back */
};

/* One token of the prompt, where echo was asked for. */
struct echoed {
    int index;
    float logprob;                      /* NAN for the first */
    const struct alternative *alt;
    int alts;
};

struct generate {
    const int32_t *prompt;              /* [prompts], at least one */
    int prompts;
    int max_tokens;                     /* -1: until the context ends; 0: the prompt alone */
    int min_tokens;                     /* no end token before so many */
    struct sampling sampling;
    const char *const *stop;            /* [stops]: the text ends before the first of them */
    int stops;
    const int32_t *stop_id;             /* [stop_ids]: more end tokens */
    int stop_ids;
    int alternatives;                   /* of each token, to report; or SAMPLE_NO_LOGPROB */
    bool ignore_eos;
    /* NULL: none.  Begins before the first token and is used up by the answer.  It decides where
     * the turn may end: ignore_eos and min_tokens are then without effect. */
    struct constraint *constraint;
    bool reuse;                         /* keep the session's common prefix with the prompt */
    /* Each may be NULL; a non-zero return ends the answer as cancelled. */
    int (*on_token)(void *arg, const struct generated *t);
    int (*on_prompt)(void *arg, const struct echoed *t);    /* logprobs of the prompt's tokens */
    void (*on_progress)(void *arg, int done);   /* prompt tokens in the session, after each chunk */
    void *arg;
    const atomic_int *cancel;
};

enum finish { FINISH_STOP, FINISH_LENGTH, FINISH_CANCELLED };

struct generation {
    enum finish finish;
    struct ids ids;                     /* what was generated, the end token included */
    int prompt_n, cached_n;             /* evaluated, and found in the session */
    double prompt_seconds, predicted_seconds;
    struct tier_counts tiers;           /* of this answer */
    const char *stop;                   /* the stop string that ended the text, or NULL */
};

/* Fill *out, which generation_free() frees in any case.  -E2BIG where the prompt does not
 * fit the context, -EDOM and -ENODATA as sampler_next(), what session_eval() returns, -ENOMEM. */
int  generate(struct session *s, const struct generate *g, struct generation *out, struct err *e);
void generation_free(struct generation *out);

const char *finish_name(enum finish f);         /* "stop" or "length" */

#endif
