#ifndef LAGUNA_SAMPLE_H
#define LAGUNA_SAMPLE_H

#include "src/base.h"

/* The next token from a row of logits.  A pure function: randomness is a hash of
 * (seed, position), so that a run can be repeated from anywhere. */

struct logit_bias {
    int32_t id;
    float add;
};

struct sampling {
    float temperature;          /* 0: greedy, lowest id wins a tie */
    float top_p, min_p;         /* 1 and 0: off */
    int top_k;                  /* 0: off */
    float repetition_penalty;   /* 1: off; presence and frequency 0: off */
    float presence_penalty, frequency_penalty;
    uint64_t seed;
    const struct logit_bias *bias;
    int biases;
    bool ban_eos;               /* ignore_eos: the caller puts the ids here */
    const int32_t *banned;
    int banned_count;
    const uint64_t *allowed;    /* bit i of [(vocab + 63) / 64]: id i may be chosen; NULL: all */
};

/* What penalties look back on. */
struct history {
    const int32_t *prompt;      /* repetition_penalty counts these too */
    size_t prompts;
    const int32_t *generated;
    size_t generateds;
};

struct alternative {
    int32_t id;
    float logprob;
};

struct sampled {
    int32_t id;
    float logprob;              /* of the model's own distribution, before any of the above */
};

struct sampler;                 /* scratch for one vocabulary */

int  sampler_open(struct sampler **out, int vocab, struct err *e);
void sampler_close(struct sampler *s);

/* Choose at `position` (the index of the token being chosen).  logits [vocab] are not
 * changed.  -EDOM where a logit is NaN, -ENODATA where none is left to choose: an error,
 * never a token.
 * Where alternatives > 0, the most likely ones go to alt, best first; where it is
 * SAMPLE_NO_LOGPROB, the token's own is not computed either and is NAN: that costs as much as
 * all the rest. */
enum { SAMPLE_NO_LOGPROB = -1 };

/* The draw at a position: uniform in [0, 1), the same for the same pair for ever. */
double sampler_draw(uint64_t seed, uint64_t position);

int  sampler_next(struct sampler *s, const struct sampling *p, const struct history *h,
                  const float *logits, uint64_t position, struct sampled *out,
                  struct alternative *alt, int alternatives, struct err *e);

#endif
