#ifndef LAGUNA_TOKENTRIE_H
#define LAGUNA_TOKENTRIE_H

#include "src/textstep.h"
#include "src/tokenizer.h"

/* Kinds of text: a JSON string; one that must not hold a tag; text between tags. */
enum trie_text { TRIE_JSON, TRIE_TAGLESS, TRIE_RAW, TRIE_TEXTS };

enum {
    TRIE_DEPTH = 255,                   /* tokens with more bytes are left out */
    TRIE_SHORT = 24,                    /* characters; few tokens have as many */
};

/* A token of many characters. */
struct trie_long {
    int32_t id;
    int characters;
};

/* The bytes of every ordinary token as a tree, so that a machine which reads bytes can be asked
 * about a whole vocabulary at once.  Added tokens are not in it.  Nodes stand in preorder: the
 * first child of node i is i + 1, what follows its subtree is end[i]; the subtree's tokens are
 * id[first[i]] .. id[first[end[i]] - 1], and those that end at the node come first.  Read-only
 * after open. */
struct tokentrie {
    uint32_t nodes, tokens;
    uint8_t *byte;              /* [nodes]; the root is node 0 and has none */
    uint32_t *end;              /* [nodes] */
    uint32_t *first;            /* [nodes + 1] */
    uint8_t *deep;              /* [nodes] most bytes below the node */
    /* Bit s: with the text in state s (below TEXT_PLAIN) at the node, every token below it
     * stays plain text: no quote, backslash or control character in JSON, no "<" where there may
     * be no tag, no NUL in raw text. */
    uint8_t *plain[TRIE_TEXTS]; /* [nodes] */
    int32_t *id;                /* [tokens] */
    /* Bit i of inside[n]: token i, read between characters, is plain to its end and begins at
     * most n of them; [TRIE_SHORT][words].  Those that begin more are longs[long_count]. */
    uint64_t *inside[TRIE_TEXTS];
    struct trie_long *longs[TRIE_TEXTS];
    uint32_t long_count[TRIE_TEXTS];
    uint32_t words;
};

/* A byte of text: the state behind it below TEXT_PLAIN where that stays plain, TEXT_BAD where
 * there is no way on, another where only the machine itself knows. */
static inline enum textstep tokentrie_text(enum trie_text text, enum textstep s, uint8_t b)
{
    if (text != TRIE_JSON && b == '<')
        return TEXT_END;
    if (text != TRIE_RAW)
        return textstep_json(s, b);
    return b ? textstep_utf8(s, b) : TEXT_BAD;
}

int  tokentrie_open(struct tokentrie **out, const struct tokenizer *t, struct err *e);
void tokentrie_close(struct tokentrie *t);

#endif
