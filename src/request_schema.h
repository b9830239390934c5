#ifndef LAGUNA_REQUEST_SCHEMA_H
#define LAGUNA_REQUEST_SCHEMA_H

#include "src/param.h"

/* What the answer has to look like, compiled into q->schema: response_format, and behind it
 * tool_choice where that demands a call, which then decides.  As in src/param.h: 0, -EBADMSG
 * or -ENOMEM. */
int request_format(struct request *q, const struct params *f);
int request_calls(struct request *q, const struct params *f);

#endif
