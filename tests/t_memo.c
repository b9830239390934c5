/* The memo of a walk: edges lead where they were said to, equal states are one, and what does not
 * fit is not remembered. */
#include "src/json.h"
#include "src/memo.h"
#include "tests/tap.h"

#include <stdlib.h>

/* The threads behind these bytes. */
static struct threads behind(struct automaton *a, const char *s)
{
    struct threads t, next;

    automaton_start(a, &t);
    for (; *s; s++) {
        automaton_step(a, &t, (uint8_t)*s, &next);
        t = next;
    }
    return t;
}

static void test_edges(struct memo *m, struct automaton *a)
{
    struct threads start = behind(a, ""), open = behind(a, "["), dead = { .n = 0 };
    int first = memo_start(m, &start), to;
    uint64_t edge = memo_edge(first, 0, 0, TEXT_GROUND, '['), other;
    bool fresh;

    ok(memo_find(m, edge) == MEMO_NONE, "nothing is known at first");
    to = memo_add(m, a, edge, &open, &fresh);
    ok(fresh && to > MEMO_DEAD && to != first && memo_find(m, edge) == to, "an edge is remembered");
    other = memo_edge(first, 1, 0, TEXT_GROUND, '[');
    ok(memo_find(m, other) == MEMO_NONE && memo_add(m, a, other, &open, &fresh) == to && !fresh,
       "another leads to the same threads, which are the same state");
    other = memo_edge(first, 0, 0, TEXT_GROUND, 'x');
    ok(memo_add(m, a, other, &dead, &fresh) == MEMO_DEAD && !fresh &&
       memo_find(m, other) == MEMO_DEAD, "a dead end is known as one");
    ok(memo_start(m, &start) == first && memo_find(m, edge) == MEMO_NONE &&
       memo_find(m, other) == MEMO_NONE, "all is forgotten");
}

/* An array has as many states as it may have items; dead ends are all alike. */
static void test_room(struct memo *m, struct automaton *a)
{
    struct threads t = behind(a, "["), next, dead = { .n = 0 };
    int state = memo_start(m, &t), n = 0, bad = 0, edges = 0;
    bool fresh = true;

    for (; n < MEMO_STATES && state >= 0; n++) {
        uint64_t edge = memo_edge(state, 0, 0, TEXT_GROUND, '[');

        automaton_step(a, &t, n % 2 ? ',' : '1', &next);
        t = next;
        state = memo_add(m, a, edge, &t, &fresh);
        bad += memo_find(m, edge) != state || fresh != (state >= 0);
    }
    ok(state == MEMO_NONE && n == MEMO_STATES - 1 && !bad, "%d states have room", n);
    memo_start(m, &t);
    for (uint32_t i = 0; memo_add(m, a, memo_edge(1, (int)(i >> 16), i >> 8 & 255, TEXT_ONE,
                                                  (uint8_t)i), &dead, &fresh) == MEMO_DEAD; i++)
        edges++;
    for (uint32_t i = 0; i < (uint32_t)edges; i++)
        bad += memo_find(m, memo_edge(1, (int)(i >> 16), i >> 8 & 255, TEXT_ONE,
                                      (uint8_t)i)) != MEMO_DEAD;
    ok(edges == MEMO_EDGES && !bad, "%d edges have room", edges);
}

int main(void)
{
    static const char text[] = "{\"type\":\"array\",\"maxItems\":1000,\"items\":{\"const\":1}}";
    struct memo *m = calloc(1, sizeof(*m));
    struct automaton *a = NULL;
    struct schema *s = NULL;
    struct err e;
    cJSON *node = json_parse(text, sizeof(text) - 1, &JSON_REQUEST, &e);

    if (m && !schema_open(&s, node, "schema", &e) && !automaton_open(&a, s, &e)) {
        test_edges(m, a);
        test_room(m, a);
    }
    ok(a, "a schema opens");
    automaton_close(a);
    schema_close(s);
    cJSON_Delete(node);
    free(m);
    return done();
}
