/* Split patterns over PCRE2, compiled to machine code where the machine lets us.
 *
 * Two dialects meet here.  What differs between Oniguruma and PCRE2 and occurs in tokenizers
 * is settled at compile time (line anchors, newlines, white space); what cannot be settled
 * (nested classes) is refused.  Zero-length matches, adjacent matches and the five behaviors
 * follow the reference library; tests compare all of them with its results. */
#include "src/pretoken.h"

#include "src/utf8.h"

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

/* White space as Unicode defines it.  PCRE2's \s counts U+180E too, which left the property
 * in Unicode 6.3. */
#define WHITE_SPACE                                                                            \
    "\\x{9}-\\x{d}\\x{20}\\x{85}\\x{a0}\\x{1680}\\x{2000}-\\x{200a}\\x{2028}\\x{2029}\\x{202f}"  \
    "\\x{205f}\\x{3000}"

/* Every newline of a run is one turn of Laguna's first pattern, and each turn that can be
 * taken back keeps a frame: a million newlines need megabytes of stack.  Its look-ahead always
 * holds after the longest run, so nothing is ever taken back, and the possessive form says
 * so.  A test compares the two. */
static const struct {
    const char *pattern, *same;
} rewritten[] = {
    { "(?:\\r?\\n)+(?!\\r?\\n)", "(?:\\r?\\n)++" },
};

enum {
    STACK_START = 64 * 1024,
    STACK_MAX = 64 * 1024 * 1024,       /* reserved; touched only as far as it is needed */
    HEAP_MAX_KIB = 256 * 1024,          /* of the interpreter, where there is no JIT */
    STEPS_MIN = 1000000,                /* match steps granted to any text, */
    STEPS_PER_BYTE = 16,                /* and to each of its bytes */
    PATTERN_MAX = 65536
};

struct split {
    pcre2_code *code;
    bool jit;                           /* it is machine code */
    enum split_behavior behavior;
    bool invert;
};

struct pretoken {
    struct split split[SPLITS_MAX];
    int splits;
};

struct splitter {
    const struct pretoken *p;
    pcre2_match_data *match;
    pcre2_match_context *limits;
    pcre2_jit_stack *stack;             /* NULL until 32 KiB of the thread's own were too few */
    piece_fn piece;
    void *ctx;
    struct err *e;
};

/* The piece that the next segment may still join. */
struct pending {
    size_t from, to;
    bool have;
    bool match;                         /* whether the segment before was a match */
};

int split_behavior_named(const char *name)
{
    static const char *const names[] = {
        [SPLIT_ISOLATED] = "Isolated",
        [SPLIT_REMOVED] = "Removed",
        [SPLIT_MERGED_WITH_PREVIOUS] = "MergedWithPrevious",
        [SPLIT_MERGED_WITH_NEXT] = "MergedWithNext",
        [SPLIT_CONTIGUOUS] = "Contiguous",
    };
    size_t i;

    for (i = 0; i < sizeof(names) / sizeof(names[0]); i++)
        if (!strcmp(name, names[i]))
            return (int)i;
    return -1;
}

int pretoken_open(struct pretoken **out, struct err *e)
{
    *out = calloc(1, sizeof(**out));
    return *out ? 0 : fail(e, -ENOMEM, "no memory for the split patterns");
}

void pretoken_close(struct pretoken *p)
{
    int i;

    if (!p)
        return;
    for (i = 0; i < p->splits; i++)
        pcre2_code_free(p->split[i].code);
    free(p);
}

/* The same expression with \s and \S spelled out.  `to` has room for it. */
static int translate(const char *from, char *to, struct err *e)
{
    const char *start = from;
    bool class = false;

    while (*from) {
        if (*from == '\\' && from[1] == 's') {
            to += sprintf(to, class ? "%s" : "[%s]", WHITE_SPACE);
            from += 2;
        } else if (*from == '\\' && from[1] == 'S') {
            /* Inside a class, PCRE2's own \S and the one character it lacks. */
            to += sprintf(to, "%s", class ? "\\S\\x{180e}" : "[^" WHITE_SPACE "]");
            from += 2;
        } else if (*from == '\\' && from[1]) {
            *to++ = *from++;
            *to++ = *from++;
        } else if (!class && *from == '[') {
            class = true;
            *to++ = *from++;
            if (*from == '^')
                *to++ = *from++;
            if (*from == ']')
                *to++ = *from++;
        } else if (class && ((*from == '[' && from[1] != ':') || !strncmp(from, "&&", 2))) {
            return fail(e, -EBADMSG, "split pattern, offset %zu: a class inside a class",
                        (size_t)(from - start));
        } else if (class && *from == '[' && strstr(from, ":]")) {
            const char *end = strstr(from, ":]") + 2;

            while (from < end)
                *to++ = *from++;
        } else {
            if (*from == ']')
                class = false;
            *to++ = *from++;
        }
    }
    *to = '\0';
    return 0;
}

static int compile(struct split *s, const char *pattern, uint32_t options, struct err *e)
{
    pcre2_compile_context *c = pcre2_compile_context_create(NULL);
    PCRE2_UCHAR text[128];
    PCRE2_SIZE at;
    int code;

    if (!c)
        return fail(e, -ENOMEM, "no memory for a split pattern");
    /* Oniguruma: ^ and $ are ends of lines, and only U+000A ends one. */
    pcre2_set_newline(c, PCRE2_NEWLINE_LF);
    s->code = pcre2_compile((PCRE2_SPTR)pattern, PCRE2_ZERO_TERMINATED, options | PCRE2_UTF,
                            &code, &at, c);
    pcre2_compile_context_free(c);
    if (!s->code) {
        pcre2_get_error_message(code, text, sizeof(text));
        return fail(e, code == PCRE2_ERROR_HEAP_FAILED ? -ENOMEM : -EBADMSG,
                    "split pattern, offset %zu: %s", (size_t)at, (char *)text);
    }
    /* Without leave for executable memory the interpreter does the same, slower. */
    s->jit = !pcre2_jit_compile(s->code, PCRE2_JIT_COMPLETE);
    return 0;
}

int pretoken_add(struct pretoken *p, const char *pattern, bool literal,
                 enum split_behavior behavior, bool invert, struct err *e)
{
    struct split *s = &p->split[p->splits];
    size_t i, n = strlen(pattern);
    char *translated = NULL;
    int rc = 0;

    if (p->splits == SPLITS_MAX)
        return fail(e, -EBADMSG, "more than %d split patterns", SPLITS_MAX);
    if (!n || n > PATTERN_MAX)
        return fail(e, -EBADMSG, "split pattern of %zu bytes (1 to %d)", n, PATTERN_MAX);
    if (utf8_valid(pattern, n) != n)
        return fail(e, -EBADMSG, "split pattern is not UTF-8");
    if (!literal) {
        translated = malloc(n * sizeof("[^" WHITE_SPACE "]") + 1);
        if (!translated)
            return fail(e, -ENOMEM, "no memory for a split pattern");
        for (i = 0; i < sizeof(rewritten) / sizeof(rewritten[0]); i++)
            if (!strcmp(pattern, rewritten[i].pattern))
                pattern = rewritten[i].same;
        rc = translate(pattern, translated, e);
        pattern = translated;
    }
    if (!rc)
        rc = compile(s, pattern, literal ? PCRE2_LITERAL : PCRE2_UCP | PCRE2_MULTILINE, e);
    free(translated);
    if (rc)
        return rc;
    s->behavior = behavior;
    s->invert = invert;
    p->splits++;
    return 0;
}

int splitter_open(struct splitter **out, const struct pretoken *p, struct err *e)
{
    struct splitter *s = calloc(1, sizeof(*s));

    *out = NULL;
    if (!s)
        return fail(e, -ENOMEM, "no memory to split a text");
    s->p = p;
    s->match = pcre2_match_data_create(1, NULL);
    s->limits = pcre2_match_context_create(NULL);
    if (!s->match || !s->limits) {
        splitter_close(s);
        return fail(e, -ENOMEM, "no memory to split a text");
    }
    pcre2_set_heap_limit(s->limits, HEAP_MAX_KIB);
    *out = s;
    return 0;
}

void splitter_close(struct splitter *s)
{
    if (!s)
        return;
    pcre2_jit_stack_free(s->stack);
    pcre2_match_context_free(s->limits);
    pcre2_match_data_free(s->match);
    free(s);
}

/* What pcre2_match() does, without what it looks at again before each match: a tenth of the
 * time where every character is a piece. */
static int run_pattern(const struct splitter *s, const struct split *split, const char *text,
                       size_t n, size_t at)
{
    PCRE2_SPTR subject = (PCRE2_SPTR)text;

    return split->jit ? pcre2_jit_match(split->code, subject, n, at, PCRE2_NO_UTF_CHECK, s->match,
                                        s->limits)
                      : pcre2_match(split->code, subject, n, at, PCRE2_NO_UTF_CHECK, s->match,
                                    s->limits);
}

/* 1 and the ends of the first match at or after `at`, or 0. */
static int match(struct splitter *s, const struct split *split, const char *text, size_t n,
                 size_t at, size_t *from, size_t *to)
{
    PCRE2_SIZE *ends = pcre2_get_ovector_pointer(s->match);
    PCRE2_UCHAR words[128];
    int rc;

    rc = run_pattern(s, split, text, n, at);
    if (rc == PCRE2_ERROR_JIT_STACKLIMIT && !s->stack) {
        s->stack = pcre2_jit_stack_create(STACK_START, STACK_MAX, NULL);
        if (!s->stack)
            return fail(s->e, -ENOMEM, "no memory to split a text");
        pcre2_jit_stack_assign(s->limits, NULL, s->stack);
        rc = run_pattern(s, split, text, n, at);
    }
    if (rc == PCRE2_ERROR_NOMATCH)
        return 0;
    if (rc == PCRE2_ERROR_NOMEMORY)
        return fail(s->e, -ENOMEM, "no memory to split a text");
    if (rc < 0) {
        pcre2_get_error_message(rc, words, sizeof(words));
        return fail(s->e, -EOVERFLOW, "split pattern on a text of %zu bytes, offset %zu: %s", n, at,
                    (char *)words);
    }
    /* \K can put the start of a match anywhere before its end. */
    if (ends[0] < at || ends[1] < ends[0])
        return fail(s->e, -EOVERFLOW, "split pattern: a match from %zu to %zu", (size_t)ends[0],
                    (size_t)ends[1]);
    *from = ends[0];
    *to = ends[1];
    return 1;
}

static int run_splits(struct splitter *s, int first, const char *text, size_t n);

static int flush(struct splitter *s, int index, const char *text, const struct pending *p)
{
    if (!p->have || p->from == p->to)
        return 0;
    return run_splits(s, index + 1, text + p->from, p->to - p->from);
}

/* The next segment of the text, a match or what lies between two. */
static int segment(struct splitter *s, int index, const char *text, struct pending *p,
                   size_t from, size_t to, bool is_match)
{
    const struct split *split = &s->p->split[index];
    bool join = false;
    int rc;

    is_match ^= split->invert;
    switch (split->behavior) {
    case SPLIT_ISOLATED:
    case SPLIT_REMOVED:
        break;
    case SPLIT_MERGED_WITH_PREVIOUS:
        join = is_match && !p->match;
        break;
    case SPLIT_MERGED_WITH_NEXT:
        join = !is_match && p->match;
        break;
    case SPLIT_CONTIGUOUS:
        join = is_match == p->match;
        break;
    }
    p->match = is_match;
    if (join && p->have) {
        p->to = to;
        return 0;
    }
    rc = flush(s, index, text, p);
    p->from = from;
    p->to = to;
    p->have = !(is_match && split->behavior == SPLIT_REMOVED);
    return rc;
}

/* Cut by split `index` and those after it. */
static int run_splits(struct splitter *s, int index, const char *text, size_t n)
{
    struct pending p = { 0 };
    size_t at = 0, done = 0, from = 0, to = 0, last = SIZE_MAX;
    int rc;

    if (index == s->p->splits)
        return s->piece(s->ctx, text, n);
    while (at <= n) {
        rc = match(s, &s->p->split[index], text, n, at, &from, &to);
        if (rc < 0)
            return rc;
        if (!rc)
            break;
        if (from == to && to == last) {
            /* An empty match right behind the last one does not count: one character on. */
            at += at < n ? (size_t)utf8_char((const unsigned char *)text + at, n - at) : 1;
            continue;
        }
        if (done != from && (rc = segment(s, index, text, &p, done, from, false)))
            return rc;
        if ((rc = segment(s, index, text, &p, from, to, true)))
            return rc;
        at = done = last = to;
    }
    if (done != n && (rc = segment(s, index, text, &p, done, n, false)))
        return rc;
    return flush(s, index, text, &p);
}

int splitter_run(struct splitter *s, const char *text, size_t n, piece_fn piece, void *ctx,
                 struct err *e)
{
    size_t steps = add_sat(STEPS_MIN, mul_sat(n, STEPS_PER_BYTE));
    int rc = 0;

    s->piece = piece;
    s->ctx = ctx;
    s->e = e;
    pcre2_set_match_limit(s->limits, steps < UINT32_MAX ? (uint32_t)steps : UINT32_MAX);
    while (n && !rc) {
        size_t valid = utf8_valid(text, n), bad = valid;

        if (valid)
            rc = run_splits(s, 0, text, valid);
        while (bad < n && utf8_char((const unsigned char *)text + bad, n - bad) < 1)
            bad++;
        if (!rc && bad > valid)
            rc = piece(ctx, text + valid, bad - valid);
        text += bad;
        n -= bad;
    }
    return rc;
}
