#ifndef LAGUNA_PARAM_H
#define LAGUNA_PARAM_H

#include "src/request.h"

/* Typed fields of a JSON object from a client.  Every reader returns 0, also where the field
 * is absent or null (and then leaves *out alone), or -EBADMSG with the error filled. */

struct params {
    const cJSON *object;
    const char *path;           /* of the object, with its final point: "" or "reasoning." */
    struct request_error *e;
};

/* -EBADMSG; status 400, the code, the path of `name` as param and the words. */
int param_refuse(const struct params *f, const char *name, const char *code, const char *fmt, ...)
    __attribute__((format(printf, 4, 5)));

/* The member, or NULL where it is absent or null. */
const cJSON *param_get(const struct params *f, const char *name);

int param_bool(const struct params *f, const char *name, bool *out);
int param_int(const struct params *f, const char *name, int64_t min, int64_t max, int64_t *out);
int param_number(const struct params *f, const char *name, double min, double max, float *out);

/* *out: the member's text, of at most `most` bytes. */
int param_string(const struct params *f, const char *name, size_t most, const char **out);

/* The members of an object. */
int param_object(const struct params *f, const char *name, const char *path, struct params *out);

#endif
