#ifndef LAGUNA_API_H
#define LAGUNA_API_H

#include "src/job.h"

/* The three APIs that are answered by the engine, and what needs the tokenizer only. */

const struct api *api_chat(void);
const struct api *api_completions(void);
const struct api *api_responses(void);
const struct api *api_messages(void);

const struct api *api_count_tokens(void);       /* of /messages */
const struct api *api_tokenize(void);
const struct api *api_detokenize(void);
const struct api *api_template(void);

/* What is known at once, for GET; HTTP thread. */
void info_health(struct server *s, struct text *out, int *status);
void info_models(struct server *s, struct text *out);
void info_effective(struct server *s, struct text *out);        /* of the settings, by outcome */
void info_props(struct server *s, struct text *out);
void info_slots(struct server *s, struct text *out);
void info_metrics(struct server *s, struct text *out);
void info_stats(struct server *s, struct text *out);
void info_experts(struct server *s, struct text *out);
void info_version(struct server *s, struct text *out);

#endif
