#ifndef LAGUNA_COMMANDS_H
#define LAGUNA_COMMANDS_H

#include "src/options.h"

/* One function a command: 0, or a negative errno with the words, or one of the exit statuses
 * below, which are answers and need no words.  Results go to stdout.  -EPIPE says that its
 * reader has left, which needs no words either. */

enum { ANSWER_BROKEN = 1, ANSWER_NO_FIT = 3 };

int cmd_run(struct options *o, struct err *e);
int cmd_batch(struct options *o, struct err *e);
int cmd_score(struct options *o, struct err *e);
int cmd_tokenize(struct options *o, struct err *e);
int cmd_render(struct options *o, struct err *e);
int cmd_bench(struct options *o, struct err *e);
int cmd_plan(struct options *o, struct err *e);
int cmd_stats(struct options *o, struct err *e);
int cmd_doctor(struct options *o, struct err *e);
int cmd_serve(struct options *o, struct err *e);
int cmd_top(struct options *o, struct err *e);

#endif
