#ifndef LAGUNA_REQUEST_CHAT_H
#define LAGUNA_REQUEST_CHAT_H

#include "src/param.h"

/* The parts of a request that only a conversation has.  As in src/param.h: 0 or -EBADMSG. */

/* Every switch for thinking that clients send.  Where several are given the first of these
 * decides: chat_template_kwargs (enable_thinking or thinking), enable_thinking, think,
 * thinking, reasoning (enabled before effort), reasoning_effort. */
int request_thinking(struct request *q, const struct params *f);

/* tools, tool_choice, parallel_tool_calls. */
int request_tools(struct request *q, const struct params *f);

#endif
