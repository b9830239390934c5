#ifndef LAGUNA_UTF8_H
#define LAGUNA_UTF8_H

#include "src/base.h"

/* What one UTF-8 character is, by the Unicode standard's table of well-formed sequences:
 * no surrogates, nothing overlong, nothing above U+10FFFF. */

/* The length (1 to 4) of the character that s[0..n) begins with, n >= 1; 0 where the bytes
 * are the beginning of one but end too early; -1 where nothing that follows could make a
 * character of them. */
static inline int utf8_char(const unsigned char *s, size_t n)
{
    unsigned char lead = s[0], low = 0x80, high = 0xbf;
    int length, i;

    if (lead < 0x80)
        return 1;
    if (lead < 0xc2 || lead > 0xf4)
        return -1;
    length = lead < 0xe0 ? 2 : lead < 0xf0 ? 3 : 4;
    if (lead == 0xe0)
        low = 0xa0;
    else if (lead == 0xf0)
        low = 0x90;
    else if (lead == 0xed)
        high = 0x9f;
    else if (lead == 0xf4)
        high = 0x8f;
    for (i = 1; i < length; i++) {
        if ((size_t)i == n)
            return 0;
        if (s[i] < low || s[i] > high)
            return -1;
        low = 0x80;
        high = 0xbf;
    }
    return length;
}

/* How many bytes at the start of s[0..n) are whole, valid characters. */
static inline size_t utf8_valid(const char *s, size_t n)
{
    size_t i = 0;
    uint64_t eight;

    while (i < n) {
        int length;

        if (n - i >= 8) {
            memcpy(&eight, s + i, 8);
            if (!(eight & 0x8080808080808080)) {
                i += 8;
                continue;
            }
        }
        length = utf8_char((const unsigned char *)s + i, n - i);
        if (length < 1)
            break;
        i += (size_t)length;
    }
    return i;
}

#endif
