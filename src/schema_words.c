/* Trees of words: the keys of an object, the texts of an enum, the names of tools.  A word that
 * is added twice keeps its first value. */
#include "src/schema_parts.h"

#include <errno.h>
#include <stdlib.h>

static int grow(struct schema *s)
{
    uint32_t cap = s->word_cap ? 2 * s->word_cap : 256;
    struct schema_word *more;

    if (s->words < s->word_cap)
        return 0;
    if (s->words >= SCHEMA_WORD_BYTES)
        return -ENOBUFS;
    more = realloc(s->word, cap * sizeof(*more));
    if (!more)
        return -ENOMEM;
    s->word = more;
    s->word_cap = cap;
    return 0;
}

static int add(struct schema *s, uint8_t byte, uint32_t sibling, uint32_t *at)
{
    int rc = grow(s);

    if (rc)
        return rc;
    *at = s->words++;
    s->word[*at] = (struct schema_word){ .byte = byte, .sibling = sibling, .value = SCHEMA_NONE };
    return 0;
}

int schema_words_open(struct schema *s, uint32_t *root)
{
    int rc = s->words ? 0 : add(s, 0, 0, root);         /* word 0 means none */

    return rc ? rc : add(s, 0, 0, root);
}

uint32_t schema_words_step(const struct schema *s, uint32_t at, uint8_t byte)
{
    uint32_t child = s->word[at].child;

    while (child && s->word[child].byte != byte)
        child = s->word[child].sibling;
    return child;
}

int schema_words_add(struct schema *s, uint32_t root, const char *text, size_t n, int32_t value)
{
    uint64_t bit = value >= 0 && value < 64 ? (uint64_t)1 << value : 0;
    uint32_t at = root, next;
    size_t i;
    int rc;

    s->word[at].below |= bit;
    for (i = 0; i < n; i++) {
        next = schema_words_step(s, at, (uint8_t)text[i]);
        if (!next) {
            rc = add(s, (uint8_t)text[i], s->word[at].child, &next);
            if (rc)
                return rc;
            s->word[at].child = next;
        }
        at = next;
        s->word[at].below |= bit;
    }
    if (s->word[at].value == SCHEMA_NONE)
        s->word[at].value = value;
    return 0;
}

bool schema_words_meet(const struct schema *s, uint32_t a, uint32_t b, uint32_t *steps)
{
    uint32_t pair[2] = { a, b };
    struct text queue = { 0 };          /* of pairs that are reached by the same bytes */
    bool meet = false;
    size_t at;

    text_add(&queue, (const char *)pair, sizeof(pair));
    for (at = 0; at < queue.n && !meet && !queue.failed; at += sizeof(pair)) {
        uint32_t child;

        memcpy(pair, queue.s + at, sizeof(pair));
        b = pair[1];
        meet = s->word[pair[0]].value != SCHEMA_NONE && s->word[b].value != SCHEMA_NONE;
        for (child = s->word[pair[0]].child; child && *steps; child = s->word[child].sibling) {
            --*steps;
            pair[0] = child;
            pair[1] = schema_words_step(s, b, s->word[child].byte);
            if (pair[1])
                text_add(&queue, (const char *)pair, sizeof(pair));
        }
    }
    meet = meet || queue.failed || !*steps;
    text_free(&queue);
    return meet;
}
