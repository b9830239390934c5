#ifndef LAGUNA_TOKENIZER_PARTS_H
#define LAGUNA_TOKENIZER_PARTS_H

#include "src/added.h"
#include "src/bpe.h"
#include "src/pretoken.h"
#include "src/tokenizer.h"

/* What a tokenizer is made of: tokenizer_open.c fills it, tokenizer.c uses it. */

enum { TOKEN_ADDED = 1, TOKEN_SPECIAL = 2 };

struct tokenizer {
    int32_t ids;                /* highest id + 1 */
    char *bytes;                /* of all tokens, one behind the other */
    size_t *at;                 /* [ids + 1] where they begin */
    uint8_t *kind;              /* [ids] TOKEN_ADDED, TOKEN_SPECIAL */
    struct added added;
    struct pretoken *pretoken;
    struct bpe bpe;
    int32_t bos;                /* or -1 */
};

#endif
