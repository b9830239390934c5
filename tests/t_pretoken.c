/* pretoken.c against the pieces of the reference library, and the rewritten pattern against
 * the one it stands for. */
#include "src/json.h"
#include "src/pretoken.h"
#include "tests/files.h"
#include "tests/tap.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

#define R1 "(?:\\r?\\n)+(?!\\r?\\n)"
#define R2                                                                                    \
    "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}| ?[^\\s\\p{L}\\p{N}]+"     \
    "[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"

/* Pieces joined with U+0001. */
static int join(void *ctx, const char *piece, size_t n)
{
    struct text *t = ctx;

    if (t->n)
        text_add(t, "\1", 1);
    text_add(t, piece, n);
    return 0;
}

/* The caller frees t->s. */
static int split(const struct pretoken *p, const char *s, size_t n, struct text *t, struct err *e)
{
    struct splitter *splitter;
    int rc = splitter_open(&splitter, p, e);

    *t = (struct text){ 0 };
    if (!rc)
        rc = splitter_run(splitter, s, n, join, t, e);
    splitter_close(splitter);
    return rc;
}

static bool splits_to(const struct pretoken *p, const char *s, const char *want)
{
    struct text t;
    struct err e;
    bool same = !split(p, s, strlen(s), &t, &e) && !strcmp(t.s ? t.s : "", want);

    if (!same)
        printf("# %s: %s\n", s, t.s ? t.s : "nothing");
    text_free(&t);
    return same;
}

static bool golden_case(const cJSON *node)
{
    const char *regex = json_get(node, "regex")->valuestring;
    int behavior = split_behavior_named(json_get(node, "behavior")->valuestring);
    struct pretoken *p = NULL;
    struct text want = { 0 };
    const cJSON *piece;
    struct err e;
    bool same;

    cJSON_ArrayForEach(piece, json_get(node, "pieces"))
        join(&want, piece->valuestring, strlen(piece->valuestring));
    same = behavior >= 0 && !pretoken_open(&p, &e) &&
           !pretoken_add(p, regex, false, (enum split_behavior)behavior,
                         cJSON_IsTrue(json_get(node, "invert")), &e) &&
           splits_to(p, json_get(node, "text")->valuestring, want.s ? want.s : "");
    if (!same)
        printf("# %s %s\n", regex, json_get(node, "behavior")->valuestring);
    pretoken_close(p);
    text_free(&want);
    return same;
}

static void test_golden(void)
{
    char path[4096];
    char *text = malloc(1 << 20);
    cJSON *root = NULL;
    const cJSON *node;
    struct err e = { "no file" };
    int cases = 0, bad = 0;
    FILE *f;

    snprintf(path, sizeof(path), "%s/models/nano/golden/split.json", source_dir());
    f = fopen(path, "rb");
    if (f) {
        root = json_parse(text, fread(text, 1, 1 << 20, f), &JSON_FILE, &e);
        fclose(f);
    }
    ok(root, "%s", path);
    cJSON_ArrayForEach(node, json_get(root, "cases")) {
        cases++;
        bad += !golden_case(node);
    }
    ok(cases == 100 && !bad, "%d cases of the reference library", cases);
    cJSON_Delete(root);
    free(text);
}

static struct pretoken *laguna(void)
{
    struct pretoken *p = NULL;
    struct err e;

    if (pretoken_open(&p, &e) || pretoken_add(p, R1, false, SPLIT_MERGED_WITH_NEXT, false, &e) ||
        pretoken_add(p, R2, false, SPLIT_ISOLATED, false, &e))
        printf("# %s\n", e.text);
    return p;
}

static void test_laguna(void)
{
    struct pretoken *p = laguna();

    ok(splits_to(p, "1234567", "1\0012\0013\0014\0015\0016\0017"), "digits are alone");
    ok(splits_to(p, "x = 10_000;", "x\1 =\1 \0011\0010\1_\0010\0010\0010\1;"), "a number in code");
    ok(splits_to(p, "½²", "½\1²"), "other numbers");
    ok(splits_to(p, "e\u0301te\u0301", "e\1\u0301te\1\u0301"), "combining marks");
    ok(splits_to(p, "a\xc2\x85" "b", "a\1\xc2\x85" "b"), "NEL");
    ok(splits_to(p, "\u00a0x\u3000y", "\u00a0x\1\u3000y"), "wide blanks");
    ok(splits_to(p, "a \u180e b", "a\1 \u180e\1 b"), "U+180E is no white space");
    ok(splits_to(p, "👩‍👩‍👧", "👩‍👩‍👧"), "joined emoji");
    ok(splits_to(p, "日本語123テスト", "日本語\0011\0012\0013\1テスト"), "no blanks");
    ok(splits_to(p, "don't DON'T", "don\1't\1 DON\1'T"), "contractions");
    ok(splits_to(p, "a;\n\n  b\r\n", "a\1;\1\n\n\1 \1 b\1\r\n"), "lines");
    ok(splits_to(p, "a\xff\xfe\xe3\x80" "b", "a\1\xff\xfe\xe3\x80\1b"), "what is not UTF-8");
    ok(splits_to(p, "", ""), "nothing");
    pretoken_close(p);
}

/* The same pattern with and without the rewrite, on random lines. */
static void test_rewrite(void)
{
    static const enum split_behavior behaviors[] = {
        SPLIT_ISOLATED, SPLIT_REMOVED, SPLIT_MERGED_WITH_PREVIOUS, SPLIT_MERGED_WITH_NEXT,
        SPLIT_CONTIGUOUS,
    };
    uint64_t state = 1;
    size_t i;
    int round, bad = 0;
    struct err e;

    for (i = 0; i < 5; i++) {
        struct pretoken *known = NULL, *spelt = NULL;

        bad += pretoken_open(&known, &e) || pretoken_open(&spelt, &e);
        bad += pretoken_add(known, R1, false, behaviors[i], false, &e) != 0;
        bad += pretoken_add(spelt, "(?:" R1 ")", false, behaviors[i], false, &e) != 0;
        for (round = 0; round < 4000; round++) {
            char s[24];
            size_t k, n = (size_t)round % sizeof(s);
            struct text a, b;

            for (k = 0; k < n; k++) {
                state = state * 6364136223846793005 + 1442695040888963407;
                s[k] = "\r\n\n\na "[(state >> 33) % 6];
            }
            bad += split(known, s, n, &a, &e) || split(spelt, s, n, &b, &e);
            bad += a.n != b.n || (a.n && memcmp(a.s, b.s, a.n));
            text_free(&a);
            text_free(&b);
        }
        pretoken_close(known);
        pretoken_close(spelt);
    }
    ok(!bad, "the possessive form of Laguna's first pattern cuts the same pieces");
}

static void test_refusals(void)
{
    static const char *const bad[] = { "", "(a", "a**", "[z-a]", "[a[b]]", "[a&&b]", "\\p{Foo}" };
    struct pretoken *p = NULL;
    struct text t;
    struct err e = { "" };
    char *x = malloc(4096);
    size_t i;

    pretoken_open(&p, &e);
    for (i = 0; i < sizeof(bad) / sizeof(bad[0]); i++)
        ok(pretoken_add(p, bad[i], false, SPLIT_ISOLATED, false, &e) == -EBADMSG, "'%s': %s",
           bad[i], e.text);
    ok(!pretoken_add(p, "(x+x+)+[yz]", false, SPLIT_ISOLATED, false, &e), "a bad idea compiles");
    memset(x, 'x', 4096);
    ok(split(p, x, 4096, &t, &e) == -EOVERFLOW, "but ends: %s", e.text);
    text_free(&t);
    for (i = 1; i < SPLITS_MAX; i++)
        pretoken_add(p, "a", false, SPLIT_ISOLATED, false, &e);
    ok(pretoken_add(p, "a", false, SPLIT_ISOLATED, false, &e) == -EBADMSG, "%s", e.text);
    ok(split_behavior_named("isolated") == -1, "no such behavior");
    pretoken_close(p);
    free(x);
}

static void test_literal(void)
{
    struct pretoken *p = NULL;
    struct err e;

    pretoken_open(&p, &e);
    pretoken_add(p, ".*", true, SPLIT_REMOVED, false, &e);
    ok(splits_to(p, "a.b.*c.*", "a.b\1c"), "a String pattern is taken literally");
    pretoken_add(p, "^.$", false, SPLIT_ISOLATED, false, &e);
    ok(splits_to(p, "xy\nz\nw.*", "xy\n\1z\1\n\1w"), "^ and $ are ends of lines");
    pretoken_close(p);
}

int main(void)
{
    test_golden();
    test_laguna();
    test_rewrite();
    test_refusals();
    test_literal();
    return done();
}
