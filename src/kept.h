#ifndef LAGUNA_KEPT_H
#define LAGUNA_KEPT_H

#include "src/engine.h"

/* The sessions that stay behind requests, so that a conversation finds its past evaluated
 * again, and a short question in between does not cost it that. */

struct kept;

enum { KEPT_MOST = 16 };

/* `sessions` of them; fewer, with a warning, where memory is short, but one at least. */
int  kept_open(struct kept **out, struct engine *g, int sessions, struct log *l, struct err *e);
void kept_close(struct kept *k);
int  kept_sessions(const struct kept *k);
int  kept_length(const struct kept *k, int i);      /* tokens in session i */

/* The session that a prompt should go to, and how many tokens it already has of it. */
int  kept_choose(struct kept *k, const int32_t *prompt, int n, int *common);
struct session *kept_session(const struct kept *k, int i);

/* What a session is worth for a prompt: `common` tokens are saved, `length - common` are lost,
 * which counts the less the more requests (`age`) went by without it. */
double kept_score(int common, int length, int age);

#endif
