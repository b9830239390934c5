#ifndef LAGUNA_REPLY_H
#define LAGUNA_REPLY_H

#include "src/generate.h"
#include "src/message.h"
#include "src/request.h"

/* The answers of /v1/chat/completions and /v1/completions as JSON on one line, in pieces: a
 * streamed answer is made of the same ones.  Every piece appends to a struct text, whose
 * `failed` the caller looks at once; the output is valid UTF-8 whatever the model wrote. */

/* A token as logprobs report it. */
struct reply_token {
    int32_t id;
    float logprob;              /* NaN: none (the first of a prompt) */
    bool hidden;                /* has no part in the text: its text is empty */
    const struct alternative *alternative;  /* best first */
    int alternatives;
};

struct usage {
    int prompt, cached, completion, reasoning;
};

struct timings {
    int prompt_n, predicted_n, cache_n;
    double prompt_ms, predicted_ms, io_wait_ms;
    uint64_t vram, ram, nvme;   /* experts used, by where they lay */
};

struct reply {
    bool chat;
    const char *id, *model;
    int64_t created;            /* seconds since 1970 */
    enum finish finish;
    const struct message *message;          /* chat */
    const char *text;                       /* completions, with its length */
    size_t text_n;
    bool logprobs;
    const struct reply_token *token;        /* where logprobs is set */
    int tokens;
    struct usage usage;
    const int32_t *token_id;    /* NULL: no token_ids */
    int token_ids;
    const struct timings *timings;          /* NULL: none */
};

/* The whole object of an answer that is not streamed. */
void reply_json(struct text *out, const struct reply *r, const struct tokenizer *t);

/* The same in three parts, for an answer of several choices, which go between commas.  r of the
 * first and the last part has what the choices share; their usage is the caller's sum. */
void reply_begin(struct text *out, const struct reply *r);
void reply_choice(struct text *out, const struct reply *r, int index, const struct tokenizer *t);
void reply_end(struct text *out, const struct reply *r);

/* {"error":{...}} */
void reply_error(struct text *out, const struct request_error *e);

/* "stop", "length" or, where the turn ended by itself with calls in it, "tool_calls". */
const char *reply_finish(enum finish finish, int calls);

/* Values of the fields of the same names. */
void reply_message(struct text *out, const struct message *m);
void reply_usage(struct text *out, const struct usage *u);
void reply_timings(struct text *out, const struct timings *g);
void reply_logprobs_chat(struct text *out, const struct reply_token *token, int tokens,
                         const struct tokenizer *t);
/* *offset: characters of the text before the tokens, then behind them. */
void reply_logprobs_text(struct text *out, const struct reply_token *token, int tokens,
                         const struct tokenizer *t, size_t *offset);

#endif
