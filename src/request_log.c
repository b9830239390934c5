/* Lines about requests, in the form that --log-format names. */
#include "src/request_log.h"
#include "src/options.h"

#include <stdio.h>

void request_log(const struct options *o, const struct request_entry *r)
{
    char words[512];

    if (o->log.level < LOG_VERBOSE)
        return;
    if (o->log.format == LOG_JSON) {
        fprintf(stderr, "{\"event\":\"request\",\"id\":\"%s\",\"path\":\"%s\",\"end\":\"%s\","
                "\"prompt_tokens\":%d,\"cached_tokens\":%d,\"predicted_tokens\":%d,"
                "\"queue_seconds\":%.6f,\"prompt_seconds\":%.6f,\"predicted_seconds\":%.6f}\n",
                r->id, r->path, r->end, r->prompt, r->cached, r->predicted, r->queue_seconds,
                r->prompt_seconds, r->predicted_seconds);
        return;
    }
    snprintf(words, sizeof(words), "%s %s: %s; prompt %d and %d found, %.3f s; made %d, %.3f s; "
             "waited %.3f s", r->path, r->id, r->end, r->prompt, r->cached, r->prompt_seconds,
             r->predicted, r->predicted_seconds, r->queue_seconds);
    log_line(&o->log, LINE_INFO, words);
}
