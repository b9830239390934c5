#ifndef LAGUNA_AUTOMATON_PARTS_H
#define LAGUNA_AUTOMATON_PARTS_H

#include "src/automaton.h"
#include "src/schema_parts.h"

/* What src/automaton.c (frames and threads) and src/automaton_step.c (a byte) share. */

/* Where one open node of the schema is.  Which fields count depends on its kind; the others
 * are 0, so that equal frames are equal bytes. */
struct frame {
    uint32_t parent;            /* its value belongs there; 0: none */
    uint32_t node;
    uint32_t at;                /* a word, the node of the value that is next, or of a tag */
    uint32_t keys;              /* undeclared keys so far: a list of frames with their hashes */
    uint32_t count;             /* items, characters, digits, bytes of a tag */
    uint8_t state;
    uint8_t text;               /* enum textstep */
    uint8_t depth;              /* open levels, its own included */
    uint8_t flag;               /* a minus sign; the last byte of a text was "<" */
    uint64_t seen;              /* properties, or an integer's digits */
    uint64_t hash;              /* of the key at hand */
};

struct automaton {
    const struct schema *s;
    bool tagless;               /* JSON strings must not hold a tag */
    struct frame *frame;        /* [frames]; 0 is none */
    uint32_t frames, cap;
    uint32_t *renumbered;       /* [cap]: scratch */
    bool failed;
};

/* Its number, or 0 without memory. */
uint32_t automaton_put(struct automaton *a, const struct frame *f);

/* Of a key without an escape, byte by byte. */
static inline uint64_t automaton_hash(uint64_t hash, uint8_t b)
{
    return (hash ^ b) * 0x100000001b3;
}

/* So many more items or characters.  Where there may be any number of them, those above the least
 * are not counted: states that go on alike are equal. */
static inline void automaton_count(const struct schema_node *n, struct frame *f, uint32_t more)
{
    f->count += more;
    if (n->max == UINT32_MAX && f->count > n->min)
        f->count = n->min;
}

/* One more thread with this top, unless there is such a one. */
void automaton_emit(struct automaton *a, const struct frame *f, struct threads *out);

/* One thread and one byte. */
void automaton_step_frame(struct automaton *a, struct frame f, uint8_t b, struct threads *out);

/* The value of f may be over; what its parent then is. */
bool automaton_can_pop(const struct automaton *a, const struct frame *f);
struct frame automaton_popped(const struct automaton *a, const struct frame *f);

enum { DOCUMENT_VALUE, DOCUMENT_END };
enum { STRING_OPEN, STRING_TEXT };
enum {
    MEMBERS_OPEN, MEMBERS_FIRST, MEMBERS_KEY, MEMBERS_COLON, MEMBERS_VALUE, MEMBERS_VALUE_SPACED,
    MEMBERS_AFTER, MEMBERS_COMMA, MEMBERS_COMMA_SPACED,
};
enum {
    NUMBER_START, NUMBER_MINUS, NUMBER_ZERO, NUMBER_DIGITS, NUMBER_POINT, NUMBER_FRACTION,
    NUMBER_E, NUMBER_SIGN, NUMBER_EXPONENT,
};
enum {
    CALL_GAP, CALL_KEY_TAG, CALL_KEY, CALL_VALUE_TAG, CALL_VALUE, CALL_END_TAG,
};

#endif
