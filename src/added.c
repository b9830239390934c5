/* A tree of bytes over the contents of all added tokens.  Looking one up costs at most
 * ADDED_CONTENT_MAX steps a place, and places that begin no token cost one table look-up. */
#include "src/added.h"

#include "src/utf8.h"

int added_open(struct added *a, size_t tokens, size_t bytes)
{
    int i;

    *a = (struct added){ .nodes = ADDED_SETS };
    a->token = malloc((tokens + 1) * sizeof(*a->token));
    a->ends = malloc((bytes + ADDED_SETS) * sizeof(*a->ends));
    if (!a->token || !a->ends || pairs_open(&a->tree, bytes))
        return -ENOMEM;
    for (i = 0; i < ADDED_SETS; i++)
        a->ends[i] = -1;
    return 0;
}

void added_close(struct added *a)
{
    free(a->token);
    free(a->ends);
    pairs_close(&a->tree);
}

int added_add(struct added *a, const struct added_token *token, const char *content, size_t n)
{
    int32_t set = token->normalized ? ADDED_NORMALIZED : ADDED_RAW, node = set;
    size_t i;

    for (i = 0; i < n; i++) {
        int32_t byte = (unsigned char)content[i], child = pairs_get(&a->tree, node, byte);

        if (child < 0) {
            child = a->nodes++;
            a->ends[child] = -1;
            pairs_set(&a->tree, node, byte, child);
        }
        node = child;
    }
    if (a->ends[node] >= 0)
        return -EEXIST;
    a->begins[set][(unsigned char)content[0]] = true;
    a->token[a->tokens] = *token;
    a->ends[node] = a->tokens++;
    return 0;
}

/* The length of the white space character (White_Space of Unicode) at s, or 0. */
static size_t white_space(const char *s, size_t n)
{
    const unsigned char *u = (const unsigned char *)s;

    if (n && (u[0] == ' ' || (u[0] >= '\t' && u[0] <= '\r')))
        return 1;
    if (n > 1 && u[0] == 0xc2 && (u[1] == 0x85 || u[1] == 0xa0))
        return 2;
    if (n < 3)
        return 0;
    if (!memcmp(s, "\u1680", 3) || !memcmp(s, "\u205f", 3) || !memcmp(s, "\u3000", 3))
        return 3;
    if (u[0] == 0xe2 && u[1] == 0x80 &&
        (u[2] <= 0x8a || u[2] == 0xa8 || u[2] == 0xa9 || u[2] == 0xaf))
        return 3;
    return 0;
}

static size_t strip_left(const char *text, size_t from, size_t at)
{
    size_t n;

    do {
        for (n = 1; n <= 3 && n <= at - from; n++)
            if (white_space(text + at - n, n) == n)
                break;
        if (n > 3 || n > at - from)
            return at;
        at -= n;
    } while (at > from);
    return at;
}

static size_t strip_right(const char *text, size_t at, size_t to)
{
    size_t n;

    while ((n = white_space(text + at, to - at)))
        at += n;
    return at;
}

bool added_find(const struct added *a, int set, const char *text, size_t from, size_t to,
                struct added_match *m)
{
    size_t at, i;

    for (at = from; at < to; at++) {
        int32_t node = set, found = -1;

        if (!a->begins[set][(unsigned char)text[at]])
            continue;
        for (i = at; i < to; i++) {
            node = pairs_get(&a->tree, node, (unsigned char)text[i]);
            if (node < 0)
                break;
            if (a->ends[node] >= 0) {
                found = a->ends[node];
                m->to = i + 1;
            }
        }
        if (found < 0)
            continue;
        m->id = a->token[found].id;
        m->from = a->token[found].lstrip ? strip_left(text, from, at) : at;
        if (a->token[found].rstrip)
            m->to = strip_right(text, m->to, to);
        return true;
    }
    return false;
}
