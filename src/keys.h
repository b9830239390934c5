#ifndef LAGUNA_KEYS_H
#define LAGUNA_KEYS_H

#include "src/base.h"

struct options;

/* The API keys: those of --api-key, between commas, and those of --api-key-file, one a line,
 * without blank lines and comments (#). */
struct keys {
    const char **key;           /* [n] */
    int n;
    char *text;                 /* behind them */
};

/* Read them, in place of what is there.  The old ones stay where it fails: -ENOENT, -EACCES;
 * -EINVAL for a file without a key. */
int  keys_load(struct keys *k, const struct options *o, struct err *e);
void keys_free(struct keys *k);

#endif
