#ifndef LAGUNA_AUTOMATON_H
#define LAGUNA_AUTOMATON_H

#include "src/schema.h"
#include "src/tokentrie.h"

/* A compiled schema, read byte by byte.  Where alternatives begin alike they are followed side
 * by side: a state is a set of threads, each a stack of frames.  Frames never change, so that a
 * state costs what its threads cost, a thread is the number of its top frame, and what was
 * stepped on trial is forgotten by giving up the frames behind a mark.
 *
 * From every state that is not empty the end can be reached, by bytes: no thread enters what it
 * could not finish. */
struct automaton;

enum { AUTOMATON_THREADS = 32 };        /* more are dropped: each is good by itself */

struct threads {
    int n;
    uint32_t top[AUTOMATON_THREADS];
};

/* The schema must outlive it. */
int  automaton_open(struct automaton **out, const struct schema *s, struct err *e);
void automaton_close(struct automaton *a);

/* Forget all and begin: the state before the first byte. */
void automaton_start(struct automaton *a, struct threads *out);

/* The threads of `from` behind the byte; none where it is not allowed. */
void automaton_step(struct automaton *a, const struct threads *from, uint8_t b,
                    struct threads *out);

/* The value is complete. */
bool automaton_final(const struct automaton *a, const struct threads *t);

/* Their frames are equal, so that the same is allowed behind them. */
bool automaton_same(const struct automaton *a, const struct threads *x, const struct threads *y);

/* What was stepped since a mark is forgotten. */
uint32_t automaton_mark(const struct automaton *a);
void automaton_release(struct automaton *a, uint32_t mark);

/* Keep these threads alone, and of the frames those that they need. */
void automaton_compact(struct automaton *a, struct threads *t);

/* Whether the thread is inside of text where *left more characters may begin that are plain in
 * the sense of src/tokentrie.h, in state *s of a text of kind *text. */
bool automaton_text(const struct automaton *a, uint32_t top, enum trie_text *text,
                    enum textstep *s, uint32_t *left);

/* One more thread in *out: that one, inside of text, behind n plain bytes in which so many
 * characters begin and which lead to state s; none where those are too many. */
void automaton_skip(struct automaton *a, uint32_t top, const uint8_t *byte, int n,
                    uint32_t characters, enum textstep s, struct threads *out);

/* Whether the thread is inside of a key.  There every byte matters, and not only how many
 * characters they are: one key must not come twice. */
bool automaton_in_key(const struct automaton *a, uint32_t top);

/* Out of memory: what was answered since is not to be relied on. */
bool automaton_failed(const struct automaton *a);

#endif
