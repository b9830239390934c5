#ifndef LAGUNA_TEXTSTEP_H
#define LAGUNA_TEXTSTEP_H

#include "src/base.h"

/* The inside of a string, byte by byte: where in a character or an escape the next byte falls.
 * Characters are those of src/utf8.h, escapes those of JSON, without \u0000 and without halves
 * of surrogate pairs, as src/json.h takes them. */

enum textstep {
    TEXT_GROUND,                /* between characters */
    TEXT_ONE, TEXT_TWO, TEXT_THREE,     /* so many continuation bytes are missing */
    TEXT_E0, TEXT_ED, TEXT_F0, TEXT_F4, /* behind these leads the next byte has a range */
    TEXT_PLAIN,                 /* the states above are those without escapes */
    TEXT_ESCAPE = TEXT_PLAIN,   /* behind the backslash */
    TEXT_HEX1,                  /* behind \u */
    TEXT_HEX2, TEXT_HEX3, TEXT_HEX4,    /* so many digits in, less one; of no special value */
    TEXT_ZERO2, TEXT_ZERO3, TEXT_ZERO4, /* zeros so far */
    TEXT_D,                     /* behind \ud */
    TEXT_HIGH3, TEXT_HIGH4,     /* of a high surrogate */
    TEXT_LOW_SLASH, TEXT_LOW_U, TEXT_LOW1, TEXT_LOW2,   /* the low one must follow */
    TEXT_END,                   /* the closing quote was taken */
    TEXT_BAD,
};

/* A byte of plain text. */
static inline enum textstep textstep_utf8(enum textstep s, uint8_t b)
{
    bool more = (b & 0xc0) == 0x80;

    switch (s) {
    case TEXT_GROUND:
        if (b < 0x80)
            return TEXT_GROUND;
        if (b < 0xc2 || b > 0xf4)
            return TEXT_BAD;
        if (b < 0xe0)
            return TEXT_ONE;
        if (b < 0xf0)
            return b == 0xe0 ? TEXT_E0 : b == 0xed ? TEXT_ED : TEXT_TWO;
        return b == 0xf0 ? TEXT_F0 : b == 0xf4 ? TEXT_F4 : TEXT_THREE;
    case TEXT_ONE:
        return more ? TEXT_GROUND : TEXT_BAD;
    case TEXT_TWO:
        return more ? TEXT_ONE : TEXT_BAD;
    case TEXT_THREE:
        return more ? TEXT_TWO : TEXT_BAD;
    case TEXT_E0:
        return more && b >= 0xa0 ? TEXT_ONE : TEXT_BAD;
    case TEXT_ED:
        return more && b < 0xa0 ? TEXT_ONE : TEXT_BAD;
    case TEXT_F0:
        return more && b >= 0x90 ? TEXT_TWO : TEXT_BAD;
    case TEXT_F4:
        return more && b < 0x90 ? TEXT_TWO : TEXT_BAD;
    default:
        return TEXT_BAD;
    }
}

static inline int textstep_digit(uint8_t b)
{
    if (b >= '0' && b <= '9')
        return b - '0';
    b |= 0x20;
    return b >= 'a' && b <= 'f' ? b - 'a' + 10 : -1;
}

/* A byte of an escape; s is TEXT_ESCAPE or above. */
static inline enum textstep textstep_escape(enum textstep s, uint8_t b)
{
    int digit = textstep_digit(b);

    if (s == TEXT_ESCAPE)
        return b == 'u' ? TEXT_HEX1 : b && strchr("\"\\/bfnrt", b) ? TEXT_GROUND : TEXT_BAD;
    if (s == TEXT_LOW_SLASH)
        return b == '\\' ? TEXT_LOW_U : TEXT_BAD;
    if (s == TEXT_LOW_U)
        return b == 'u' ? TEXT_LOW1 : TEXT_BAD;
    if (digit < 0)
        return TEXT_BAD;
    switch (s) {
    case TEXT_HEX1:
        return digit == 0 ? TEXT_ZERO2 : digit == 0xd ? TEXT_D : TEXT_HEX2;
    case TEXT_HEX2:
        return TEXT_HEX3;
    case TEXT_HEX3:
        return TEXT_HEX4;
    case TEXT_HEX4:
        return TEXT_GROUND;
    case TEXT_ZERO2:
        return digit ? TEXT_HEX3 : TEXT_ZERO3;
    case TEXT_ZERO3:
        return digit ? TEXT_HEX4 : TEXT_ZERO4;
    case TEXT_ZERO4:
        return digit ? TEXT_GROUND : TEXT_BAD;
    case TEXT_D:
        return digit < 8 ? TEXT_HEX3 : digit < 12 ? TEXT_HIGH3 : TEXT_BAD;
    case TEXT_HIGH3:
        return TEXT_HIGH4;
    case TEXT_HIGH4:
        return TEXT_LOW_SLASH;
    case TEXT_LOW1:
        return digit == 0xd ? TEXT_LOW2 : TEXT_BAD;
    case TEXT_LOW2:
        return digit >= 12 ? TEXT_HEX3 : TEXT_BAD;
    default:
        return TEXT_BAD;
    }
}

/* A byte of a JSON string behind its opening quote. */
static inline enum textstep textstep_json(enum textstep s, uint8_t b)
{
    if (s == TEXT_GROUND && b < 0x80)
        return b == '"' ? TEXT_END : b == '\\' ? TEXT_ESCAPE : b < 0x20 ? TEXT_BAD : TEXT_GROUND;
    return s < TEXT_PLAIN ? textstep_utf8(s, b) : textstep_escape(s, b);
}

#endif
