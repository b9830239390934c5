#ifndef LAGUNA_CLIENT_H
#define LAGUNA_CLIENT_H

#include "src/json.h"

/* GET http://HOST[:PORT]PATH or from unix:SOCKET, with a key where it is not NULL.  Blocks, for
 * a few seconds at most.  Appends the body; -EINVAL for another URL, -ECONNREFUSED ...,
 * -EACCES where the key is refused. */
int client_get(struct text *out, const char *url, const char *path, const char *key,
               struct err *e);

#endif
