#ifndef LAGUNA_REQUEST_H
#define LAGUNA_REQUEST_H

#include "src/chat.h"
#include "src/sample.h"
#include "src/schema.h"

/* The body of /v1/chat/completions (it has messages) or /v1/completions (it has prompt), with
 * every field checked against spec/faults.md 3.3.  What a client did not say stays marked as
 * absent, so that the caller can fill in the model's defaults.  Unknown fields are ignored;
 * what asks for something we cannot do is refused by name. */

struct request_error {
    int status;                 /* of HTTP */
    const char *type, *code;
    char param[128];            /* path of the field, or empty */
    char message[512];
    size_t n_prompt_tokens;     /* context_length_exceeded: clients read the numbers, */
    int n_ctx;                  /* which are otherwise 0 */
};

enum tool_choice { TOOLS_AUTO, TOOLS_NONE, TOOLS_REQUIRED, TOOLS_NAMED };

enum {
    REQUEST_STOPS = 16,
    REQUEST_STOP_BYTES = 256,
    REQUEST_STOP_IDS = 64,
    REQUEST_BIASES = 1024,
    REQUEST_TOOLS = 128,
    REQUEST_ALTERNATIVES = 20,
};

struct request {
    cJSON *body;                /* owns what is kept of it below */
    bool chat;
    struct prompt prompt;       /* chat: rendered; else the text, without spans */
    int32_t *prompt_id;         /* completions from ids, [prompt_ids]; else NULL */
    size_t prompt_ids;

    bool thinking;
    const cJSON *tools;         /* array, or NULL where there are none */
    enum tool_choice tool_choice;
    const char *tool_name;      /* TOOLS_NAMED */
    bool parallel_tool_calls;
    struct schema *schema;      /* of the calls where they are TOOLS_REQUIRED or TOOLS_NAMED, else
                                 * of the answer; NULL: it is free */

    /* Absent: NaN, top_k -1.  bias points to `bias`; banned is left to the caller. */
    struct sampling sampling;
    bool has_seed;
    struct logit_bias *bias;

    int64_t max_tokens;         /* -1: until the context ends; 0: prefill only */
    int64_t min_tokens;
    bool ignore_eos;
    const char *stop[REQUEST_STOPS];
    int stops;
    int32_t stop_id[REQUEST_STOP_IDS];
    int stop_ids;

    bool logprobs, echo;
    int alternatives;           /* of each token, where logprobs is set */
    bool stream, include_usage;
    bool cache_prompt, return_progress, timings_per_token;
};

/* 0, -EBADMSG or -ENOMEM with *e filled.  ids are checked against `vocab`.  request_free() in
 * any case. */
int  request_parse(struct request *out, const char *body, size_t n, int vocab,
                   struct request_error *e);
void request_free(struct request *q);

/* The same of a body that is parsed already and now belongs to *out. */
int  request_read(struct request *out, cJSON *body, int vocab, struct request_error *e);

/* The first half of request_parse(): the body as an object that the caller owns, or NULL. */
cJSON *request_object(const char *body, size_t n, struct request_error *e);

#endif
