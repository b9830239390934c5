#ifndef LAGUNA_FIELDS_H
#define LAGUNA_FIELDS_H

#include "src/json.h"

/* Members of a JSON configuration file, read with their bounds.  The first fault is kept in
 * rc and in the words; afterwards every reader answers harmlessly, so that a caller may
 * read a whole group and look at rc once.  A member that is null counts as absent. */
struct config {
    cJSON *root;                /* an object */
    const char *name;           /* of the file, for messages */
    int rc;
    struct err *e;
};

enum { CONFIG_REQUIRED = INT32_MIN };   /* as the default: the file must say it */
#define CONFIG_REQUIRED_REAL (-HUGE_VAL)

void config_open(struct config *c, const char *json, size_t len, const char *name,
                 struct err *e);
/* Frees the tree; returns c->rc. */
int  config_close(struct config *c);

/* -EBADMSG in rc, unless an earlier fault is there. */
void config_fail(struct config *c, const char *key, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
/* The same, quoting a value that is no integer in min..max. */
void config_fail_value(struct config *c, const char *key, const cJSON *node, int64_t min,
                       int64_t max);

const cJSON *config_member(const cJSON *object, const char *key);

int    config_int(struct config *c, const cJSON *o, const char *key, int min, int max,
                  int absent);
double config_real(struct config *c, const cJSON *o, const char *key, double min, double max,
                   double absent);
bool   config_bool(struct config *c, const cJSON *o, const char *key, bool absent);
/* NULL where absent; lives as long as the tree. */
const char *config_string(struct config *c, const cJSON *o, const char *key);

#endif
