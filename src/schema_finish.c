/* What can be said only once all nodes are there: alternatives without alternatives among them,
 * how deep a value must nest at least, and whether those of a oneOf exclude each other. */
#include "src/schema_parts.h"

#include <errno.h>
#include <stdlib.h>

struct flat {
    uint32_t id[SCHEMA_ALTERNATIVES];
    uint32_t n;
    bool many;                  /* more than fit */
};

/* The nodes that node `from` stands for.  `seen` [nodes] and `todo` [nodes] are scratch. */
static void flatten(const struct schema *s, uint32_t from, uint32_t *seen, uint32_t mark,
                    uint32_t *todo, struct flat *out)
{
    uint32_t n = 0, i;

    *out = (struct flat){ .n = 0 };
    todo[n++] = from;
    seen[from] = mark;
    while (n) {
        const struct schema_node *at = &s->node[todo[--n]];

        if (at->kind != SCHEMA_ANY_OF) {
            out->many |= out->n == SCHEMA_ALTERNATIVES;
            if (!out->many)
                out->id[out->n++] = (uint32_t)(at - s->node);
            continue;
        }
        /* Backwards, so that the first comes out first. */
        for (i = at->links; i-- > 0;) {
            uint32_t next = s->link[at->link + i];

            if (seen[next] == mark)
                continue;
            seen[next] = mark;
            todo[n++] = next;
        }
    }
}

/* What the first byte says of a value. */
enum { FIRST_OBJECT = 1, FIRST_ARRAY = 2, FIRST_STRING = 4, FIRST_NUMBER = 8, FIRST_WORD = 16 };

static int first_of_byte(uint8_t b)
{
    switch (b) {
    case '{':
        return FIRST_OBJECT;
    case '[':
        return FIRST_ARRAY;
    case '"':
        return FIRST_STRING;
    case 't':
    case 'f':
    case 'n':
        return FIRST_WORD;
    default:
        return FIRST_NUMBER;
    }
}

static int first_of(const struct schema *s, const struct schema_node *n)
{
    uint32_t child;
    int first = 0;

    switch (n->kind) {
    case SCHEMA_OBJECT:
        return FIRST_OBJECT;
    case SCHEMA_ARRAY:
        return FIRST_ARRAY;
    case SCHEMA_STRING:
        return FIRST_STRING;
    case SCHEMA_LITERALS:
        for (child = s->word[n->words].child; child; child = s->word[child].sibling)
            first |= first_of_byte(s->word[child].byte);
        return first;
    default:
        return FIRST_NUMBER;
    }
}

/* The property of b with the key that ends at word `at` of a's tree is found by walking both. */
struct keys {
    struct compiler *c;
    const struct schema_node *a, *b;
};

static bool literals_apart(struct compiler *c, uint32_t a, uint32_t b)
{
    const struct schema_node *x = &c->s->node[a], *y = &c->s->node[b];

    if (x->kind != SCHEMA_LITERALS || y->kind != SCHEMA_LITERALS)
        return false;
    return !schema_words_meet(c->s, x->words, y->words, &c->steps);
}

/* A key that both require tells them apart. */
static bool keys_apart(const struct keys *k, uint32_t at, uint32_t other, int depth)
{
    struct compiler *c = k->c;
    const struct schema *s = c->s;
    int32_t i = s->word[at].value, j = s->word[other].value;
    uint32_t child, same;

    if (i >= 0 && j >= 0 && k->a->required >> i & 1 && k->b->required >> j & 1 &&
        literals_apart(c, s->link[k->a->link + (uint32_t)i], s->link[k->b->link + (uint32_t)j]))
        return true;
    child = depth < 256 ? s->word[at].child : 0;
    for (; child && c->steps; child = s->word[child].sibling) {
        c->steps--;
        same = schema_words_step(s, other, s->word[child].byte);
        if (same && keys_apart(k, child, same, depth + 1))
            return true;
    }
    return false;
}

/* No value is one of both. */
static bool apart(struct compiler *c, uint32_t a, uint32_t b)
{
    const struct schema *s = c->s;
    const struct schema_node *x = &s->node[a], *y = &s->node[b];
    const struct keys k = { c, x, y };

    if ((x->guessed || y->guessed) && x->kind != y->kind)
        return false;
    if (!(first_of(s, x) & first_of(s, y)))
        return true;
    if (x->kind == SCHEMA_OBJECT && y->kind == SCHEMA_OBJECT)
        return keys_apart(&k, x->words, y->words, 0);
    return literals_apart(c, a, b);
}

/* The node's alternatives, of which it is the only one where it has none. */
static uint32_t alternatives(const struct schema *s, const uint32_t *node, const uint32_t **out)
{
    const struct schema_node *n = &s->node[*node];
    bool several = n->kind == SCHEMA_ANY_OF;

    *out = several ? s->link + n->link : node;
    return several ? n->links : 1;
}

static bool all_apart(struct compiler *c, const uint32_t *a, const uint32_t *b)
{
    const uint32_t *x, *y;
    uint32_t i, j, n = alternatives(c->s, a, &x), m = alternatives(c->s, b, &y);

    for (i = 0; i < n; i++)
        for (j = 0; j < m; j++)
            if (!apart(c, x[i], y[j]))
                return false;
    return true;
}

static int check_one(struct compiler *c, const struct schema_one *one)
{
    const uint32_t *link = c->s->link + one->link;
    uint32_t i, j;

    for (i = 0; i < one->links; i++)
        for (j = 0; j < i; j++) {
            if (all_apart(c, &link[i], &link[j]))
                continue;
            if (!c->steps)
                return fail(c->e, -EBADMSG, "%s: too many keys and texts to compare", one->path);
            return fail(c->e, -EBADMSG, "%s: oneOf is supported where the first byte, or the "
                        "literals of a required property, tell the alternatives apart: "
                        "%u and %u may be the same", one->path, j, i);
        }
    return 0;
}

static int flatten_all(struct compiler *c)
{
    struct schema *s = c->s;
    uint32_t n = s->nodes, *scratch = calloc(4 * (size_t)n, sizeof(*scratch)), i;
    uint32_t *seen, *todo, *link, *links;       /* [n] each */
    struct flat flat;
    int rc = 0;

    if (!scratch)
        return schema_no_memory(c);
    seen = scratch;
    todo = seen + n;
    link = todo + n;
    links = link + n;
    for (i = 0; !rc && i < n; i++) {
        if (s->node[i].kind != SCHEMA_ANY_OF)
            continue;
        flatten(s, i, seen, i + 1, todo, &flat);
        if (flat.many)
            rc = fail(c->e, -EBADMSG, "schema: anyOf with more than %d alternatives",
                      SCHEMA_ALTERNATIVES);
        else
            rc = schema_link(c, flat.id, flat.n, &link[i]);
        links[i] = flat.n;
    }
    for (i = 0; !rc && i < n; i++)
        if (s->node[i].kind == SCHEMA_ANY_OF) {
            s->node[i].link = link[i];
            s->node[i].links = links[i];
        }
    free(scratch);
    return rc;
}

/* The height of a node by those of the nodes it is made of. */
static int height_of(const struct schema *s, const struct schema_node *n)
{
    int least = SCHEMA_ENDLESS, most = 0, h;
    uint32_t i;

    for (i = 0; i < n->links; i++) {
        h = s->node[s->link[n->link + i]].height;
        least = h < least ? h : least;
        /* A tool is not begun without knowing that its call can end. */
        if (n->kind == SCHEMA_CALL || n->required >> (i & 63) & 1)
            most = h > most ? h : most;
    }
    switch (n->kind) {
    case SCHEMA_ANY_OF:
        return least;
    case SCHEMA_CALL:
        return most;
    case SCHEMA_DOCUMENT:
        return s->node[n->item].height;
    case SCHEMA_ARRAY:
        h = n->min ? s->node[n->item].height + 1 : 1;
        break;
    case SCHEMA_OBJECT:
    case SCHEMA_ARGUMENTS:
        h = most + 1;
        break;
    default:
        h = 0;
    }
    return h > SCHEMA_DEPTH ? SCHEMA_ENDLESS : h;
}

/* Heights only fall, each by a step of the loop at least, and only from endless to what they
 * are: as many rounds as there are levels. */
static int find_heights(struct compiler *c)
{
    struct schema *s = c->s;
    bool changed = true;
    uint32_t i, j;

    for (i = 0; i < s->nodes; i++)
        s->node[i].height = SCHEMA_ENDLESS;
    while (changed) {
        changed = false;
        for (i = 0; i < s->nodes; i++) {
            int h = height_of(s, &s->node[i]);

            changed |= h < s->node[i].height;
            s->node[i].height = h;
        }
    }
    for (i = 0; i < s->nodes; i++) {
        struct schema_node *n = &s->node[i];

        n->tallest = n->item >= 0 ? s->node[n->item].height : 0;
        for (j = 0; j < n->links; j++) {
            int h = s->node[s->link[n->link + j]].height;

            n->tallest = h > n->tallest ? h : n->tallest;
        }
    }
    if (s->node[0].height == SCHEMA_ENDLESS)
        return fail(c->e, -EBADMSG, "schema: no value of at most %d levels follows it",
                    SCHEMA_DEPTH);
    return 0;
}

int schema_finish(struct compiler *c)
{
    int i, rc = flatten_all(c);

    /* Only now, when no choice has more alternatives than may be compared with each other:
     * else 227 KB of schema take 20 s. */
    for (i = 0; !rc && i < c->ones; i++)
        rc = check_one(c, &c->one[i]);
    return rc ? rc : find_heights(c);
}
