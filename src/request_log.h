#ifndef LAGUNA_REQUEST_LOG_H
#define LAGUNA_REQUEST_LOG_H

#include "src/base.h"

struct options;

/* A line on stderr about each request that the engine answered, with -v.  No text of a prompt
 * or an answer is ever in it. */
struct request_entry {
    const char *id, *path;
    const char *end;            /* stop, length, cancelled, or the code of an error */
    int prompt, cached, predicted;
    double queue_seconds, prompt_seconds, predicted_seconds;
};

void request_log(const struct options *o, const struct request_entry *r);

#endif
