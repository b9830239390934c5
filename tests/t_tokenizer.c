/* tokenizer.c, tokenizer_open.c, added.c and detok.c: the reference library's ids, bad files,
 * round trips, and the figures the issue asks for. */
#include "src/command_io.h"
#include "src/tokenizer.h"
#include "tests/files.h"
#include "tests/tap.h"

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

/* Figures hold for the program as it is built, not for one with sanitizers. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__) || !defined(__OPTIMIZE__)
enum { TIMED = 0 };
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
enum { TIMED = 0 };
#else
enum { TIMED = 1 };
#endif
#else
enum { TIMED = 1 };
#endif

enum { NANO_VOCAB = 4096, RUN = 1000000 };

/* The caller frees it.  NULL where there is no such file. */
static char *find_file(const char *under, size_t *n)
{
    char path[4096], *bytes = NULL;
    long size = -1;
    FILE *f;

    snprintf(path, sizeof(path), "%s/%s", source_dir(), under);
    f = fopen(path, "rb");
    if (!f)
        return NULL;
    if (!fseek(f, 0, SEEK_END))
        size = ftell(f);
    if (size >= 0)
        bytes = malloc((size_t)size + 1);
    rewind(f);
    if (bytes) {
        *n = fread(bytes, 1, (size_t)size, f);
        bytes[*n] = '\0';
    }
    fclose(f);
    return bytes;
}

/* Our JSON takes no NUL in a string, some golden strings have one: U+F8FF stands for it. */
static size_t with_nuls(char *s)
{
    size_t from = 0, to = 0;

    while (s[from]) {
        if (!strncmp(s + from, "\uf8ff", 3)) {
            s[to++] = '\0';
            from += 3;
        } else {
            s[to++] = s[from++];
        }
    }
    return to;
}

static bool encodes_to(const struct tokenizer *t, const char *s, size_t n, int spans,
                       const cJSON *want)
{
    struct ids ids = { 0 };
    const cJSON *id;
    struct err e;
    size_t i = 0;
    bool same = !tokenizer_encode(t, s, n, NULL, spans, &ids, &e);

    cJSON_ArrayForEach(id, want) {
        same = same && i < ids.n && ids.id[i] == id->valueint;
        i++;
    }
    same = same && i == ids.n;
    if (!same)
        printf("# %s\n", s);
    free(ids.id);
    return same;
}

static void test_golden(const struct tokenizer *t)
{
    size_t n = 0;
    char *text = find_file("models/nano/golden/tokenizer.json", &n), *nul = text;
    struct err e = { "no file" };
    cJSON *root = NULL;
    const cJSON *node, *plain;
    int cases = 0, bad = 0, plain_cases = 0, plain_bad = 0;

    for (; nul && (nul = strstr(nul, "\\u0000")); nul++)
        if (nul[-1] != '\\')
            memcpy(nul, "\\uf8ff", 6);
    if (text)
        root = json_parse(text, n, &JSON_FILE, &e);
    ok(root, "golden ids: %s", root ? "read" : e.text);
    cJSON_ArrayForEach(node, json_get(root, "cases")) {
        char *s = json_get(node, "text")->valuestring;

        n = with_nuls(s);
        cases++;
        bad += !encodes_to(t, s, n, SPANS_ALL, json_get(node, "ids"));
        plain = json_get(node, "ids_as_text");
        plain_cases += plain != NULL;
        plain_bad += !encodes_to(t, s, n, 0, plain ? plain : json_get(node, "ids"));
    }
    ok(cases == 625 && !bad, "%d strings with added tokens", cases);
    ok(plain_cases == 70 && !plain_bad, "and without, %d of them other ids", plain_cases);
    cJSON_Delete(root);
    free(text);
}

/* Encode, then decode token by token. */
static bool comes_back(const struct tokenizer *t, const char *s, size_t n, int spans, bool utf8)
{
    struct ids ids = { 0 };
    struct detok d = { 0 };
    struct err e;
    char *raw = malloc(n + 64), *shown = malloc(3 * n + 1024);
    size_t i, at = 0, out = 0, length = 0;
    bool same = !tokenizer_encode(t, s, n, NULL, spans, &ids, &e);

    for (i = 0; same && i < ids.n; i++) {
        const char *bytes = tokenizer_bytes(t, ids.id[i], &length);

        same = bytes && at + length <= n;
        if (same) {
            memcpy(raw + at, bytes, length);
            at += length;
            out += detok_push(&d, bytes, length, i + 1 == ids.n, shown + out);
        }
    }
    same = same && at == n && !memcmp(raw, s, n);
    if (utf8)
        same = same && out == n && !memcmp(shown, s, n);
    free(ids.id);
    free(raw);
    free(shown);
    return same;
}

static uint32_t draw(uint64_t *state, uint32_t below)
{
    *state = *state * 6364136223846793005 + 1442695040888963407;
    return (uint32_t)((*state >> 33) % below);
}

static size_t random_char(uint64_t *state, char *s)
{
    static const uint32_t ends[] = { 0x80, 0x80, 0x800, 0xd800, 0x110000 };
    uint32_t c = draw(state, ends[draw(state, 5)]);

    if (c < 0x80) {
        s[0] = (char)c;
        return 1;
    }
    if (c < 0x800) {
        s[0] = (char)(0xc0 | c >> 6);
        s[1] = (char)(0x80 | (c & 0x3f));
        return 2;
    }
    if (c < 0x10000) {
        if (c >= 0xd800 && c < 0xe000)
            c -= 0x800;
        s[0] = (char)(0xe0 | c >> 12);
        s[1] = (char)(0x80 | (c >> 6 & 0x3f));
        s[2] = (char)(0x80 | (c & 0x3f));
        return 3;
    }
    s[0] = (char)(0xf0 | c >> 18);
    s[1] = (char)(0x80 | (c >> 12 & 0x3f));
    s[2] = (char)(0x80 | (c >> 6 & 0x3f));
    s[3] = (char)(0x80 | (c & 0x3f));
    return 4;
}

static void test_round_trips(const struct tokenizer *t)
{
    static const char cut[] = "ok 😀 日本 👩‍👩‍👧 é";
    uint64_t state = 3;
    char s[256];
    size_t i, n;
    int round, bad = 0;

    for (round = 0; round < 20000; round++) {
        size_t end = draw(&state, 60);

        for (n = 0; n < end;)
            n += random_char(&state, s + n);
        bad += !comes_back(t, s, n, round & 1 ? SPANS_ALL : 0, true);
    }
    ok(!bad, "random UTF-8 comes back");
    for (bad = round = 0; round < 20000; round++) {
        n = draw(&state, sizeof(s));
        for (i = 0; i < n; i++)
            s[i] = (char)draw(&state, 256);
        bad += !comes_back(t, s, n, 0, false);
    }
    ok(!bad, "random bytes come back");
    for (i = 0; i < 256; i++)
        s[i] = (char)i;
    ok(comes_back(t, s, 256, SPANS_ALL, false), "all bytes come back");
    ok(comes_back(t, cut, strlen(cut), SPANS_ALL, true), "cut characters");
}

/* The answer to pushing the bytes one by one. */
static bool decodes_to(const char *bytes, size_t n, const char *want)
{
    struct detok d = { 0 };
    char out[256];
    size_t i, written = 0;

    for (i = 0; i < n; i++) {
        written += detok_push(&d, bytes + i, 1, false, out + written);
        if (d.n > 3)
            return false;
    }
    written += detok_push(&d, "", 0, true, out + written);
    return written == strlen(want) && !memcmp(out, want, written);
}

static void test_detok(void)
{
    struct detok d = { 0 };
    char out[64];

    ok(decodes_to("a\xf0\x9f\x98\x80", 5, "a😀"), "a character byte by byte");
    ok(decodes_to("\xf0\x9f\x98", 3, "\ufffd"), "a cut one ends as one replacement");
    ok(decodes_to("\xf0\x9f" "a\xff\xc3", 5, "\ufffda\ufffd\ufffd"), "bytes that never fit");
    ok(decodes_to("\xed\xa0\x80", 3, "\ufffd\ufffd\ufffd"), "a surrogate");
    ok(decodes_to("\xc0\xaf\xe0\x80\xf4\x90", 6, "\ufffd\ufffd\ufffd\ufffd\ufffd\ufffd"),
       "overlong and too large");
    ok(decodes_to("\xe3\x81\xe3\x81\x82", 5, "\ufffdあ"), "a new character inside another");
    ok(detok_push(&d, "\xe3\x81", 2, false, out) == 0 && d.n == 2, "held back");
    ok(detok_push(&d, "\x82!", 2, false, out) == 4 && !memcmp(out, "あ!", 4) && !d.n, "let go");
}

static void test_spans(const struct tokenizer *t)
{
    static const char s[] = "<think>a</think><think>";
    static const struct span first = { 0, 7 }, cut = { 1, 16 }, none = { 3, 3 };
    static const struct span two[] = { { 0, 7 }, { 7, 16 } };
    struct ids ids = { 0 };
    struct err e;
    size_t n = strlen(s), i, marks = 0;

    ok(!tokenizer_encode(t, s, n, &first, 1, &ids, &e) && ids.id[0] == 18, "inside a span");
    for (i = 1; i < ids.n; i++)
        marks += tokenizer_added(t, ids.id[i]);
    ok(!marks, "and only there");
    ids.n = 0;
    tokenizer_encode(t, s, n, &cut, 1, &ids, &e);
    for (i = marks = 0; i < ids.n; i++)
        marks += tokenizer_added(t, ids.id[i]);
    ok(marks == 1 && ids.id[0] != 18, "not across the end of a span");
    ids.n = 0;
    tokenizer_encode(t, s, n, two, 2, &ids, &e);
    ok(ids.n > 3 && ids.id[0] == 18 && ids.id[2] == 19 && ids.id[3] != 18, "two spans");
    ids.n = 0;
    tokenizer_encode(t, s, n, &none, 1, &ids, &e);
    ok(ids.n && !tokenizer_added(t, ids.id[0]), "an empty span");
    i = ids.n;
    ok(!tokenizer_encode(t, "a", 1, NULL, 0, &ids, &e) && ids.n == i + 1, "ids are appended");
    free(ids.id);
}

static void test_lookup(const struct tokenizer *t)
{
    size_t n = 0;
    const char *bytes = tokenizer_bytes(t, 18, &n);

    ok(tokenizer_vocab(t) == NANO_VOCAB && tokenizer_bos(t) == 2, "size and first token");
    ok(n == 7 && !memcmp(bytes, "<think>", 7), "the text of an added token");
    ok(tokenizer_added(t, 18) && !tokenizer_special(t, 18), "<think> is added, not special");
    ok(tokenizer_special(t, 24) && !tokenizer_added(t, 96), "</assistant> is special");
    ok(tokenizer_find_added(t, "</think>") == 19 && tokenizer_find_added(t, "the") == -1,
       "by text");
    ok(!tokenizer_bytes(t, -1, &n) && !tokenizer_bytes(t, NANO_VOCAB, &n), "no such id");
    ok(!tokenizer_added(t, NANO_VOCAB) && !tokenizer_special(t, -1), "nor is it anything");
}

/* The nano file with `find` (its first place) replaced. */
struct edit {
    const char *find, *put, *words;     /* words: part of the message; NULL where it opens */
};

static const struct edit edits[] = {
    { "\"HECK\": 4094", "\"HECK\": -1", "\"HECK\": id -1" },
    { "\"HECK\": 4094", "\"HECK\": 4095", "both" },
    { "\"HECK\": 4094", "\"HECK\": 4096", "\"HECK\": id 4096" },
    { "\"HECK\": 4094", "\"HECK\": 2147483648", "\"HECK\": id 2147483648" },
    { "\"HECK\": 4094", "\"HECK\": 40.5", "\"HECK\": id 40.5" },
    { "\"HECK\": 4094", "\"HECK\": \"4094\"", "is no number" },
    { "\"HECK\": 4094", "\"\": 4094", "empty token" },
    { "\"HECK\": 4094", "\"HEC\\ud800\": 4094", "surrogate" },
    { "\"HECK\": 4094", "\"HEC\xff\": 4094", "UTF-8" },
    { "\"HECK\": 4094", "\"<0xGG>\": 4094", "\"HECK\" is not in the vocabulary" },
    { "\"a\": 96", "\"aaaaaaaaa\": 96", "not in the vocabulary" },
    { "[\"Ġ\", \"t\"]", "[\"Ġ\", \"Ġ\"]", "have one already" },
    { "[\"Ġ\", \"t\"]", "[\"Ġt\", \"\"]", "\"\" is not in the vocabulary" },
    { "[\"Ġ\", \"t\"]", "[\"zzzz\", \"t\"]", "\"zzzz\" is not in the vocabulary" },
    { "[\"Ġ\", \"t\"]", "[\"z\", \"Ċ\"]", "result" },
    { "[\"Ġ\", \"t\"]", "\"Ġ t\"", NULL },
    { "[\"Ġ\", \"t\"]", "\"Ġt\"", "merge 2 is not two tokens" },
    { "[\"Ġ\", \"t\"]", "\"Ġ t t\"", "merge 2 is not two tokens" },
    { "[\"Ġ\", \"t\"]", "[\"Ġ\", \"t\", \"t\"]", "merge 2 is not two tokens" },
    { "[\"Ġ\", \"t\"]", "7", "merge 2 is not two tokens" },
    { "\"content\": \"<think>\"", "\"content\": \"\"", "of 0 bytes" },
    { "\"content\": \"<think>\"", "\"content\": \"</think>\"", "ids 19 and 18" },
    { "{\"id\": 18,", "{\"id\": 17,", "ids 18 and 17" },
    { "{\"id\": 18,", "{\"id\": 4096,", "id 4096" },
    { "\"single_word\": false", "\"single_word\": true", "single_word" },
    { "\"lstrip\": false", "\"lstrip\": true", NULL },
    { "\"normalizer\": null", "\"normalizer\": {\"type\": \"NFC\"}", "\"NFC\"" },
    { "\"Regex\": \"(?:", "\"Regex\": \"(?:(", "offset" },
    { "\"MergedWithNext\"", "\"Glued\"", "\"Glued\"" },
    { "\"type\": \"Split\"", "\"type\": \"Digits\"", "\"Digits\"" },
    { "\"add_prefix_space\": false", "\"add_prefix_space\": true", "add_prefix_space" },
    { "\"use_regex\": false", "\"use_regex\": true", NULL },
    { ", {\"type\": \"ByteLevel\", \"add_prefix_space\": false, \"trim_offsets\": true, "
      "\"use_regex\": false}", "", "no ByteLevel" },
    { "\"decoder\": {\"type\": \"ByteLevel\"", "\"decoder\": {\"type\": \"WordPiece\"",
      "\"WordPiece\"" },
    { "\"type\": \"TemplateProcessing\"", "\"type\": \"BertProcessing\"", "\"BertProcessing\"" },
    { "\"ids\": [2]", "\"ids\": [2, 2]", "no single id" },
    { "\"ids\": [2]", "\"ids\": [4096]", "id 4096" },
    { "\"type\": \"BPE\"", "\"type\": \"Unigram\"", "\"Unigram\"" },
    { "\"ignore_merges\": false", "\"ignore_merges\": true", "model.ignore_merges" },
    { "\"byte_fallback\": false", "\"byte_fallback\": true", "model.byte_fallback" },
    { "\"dropout\": null", "\"dropout\": 0.1", "model.dropout" },
    { "\"end_of_word_suffix\": null", "\"end_of_word_suffix\": \"</w>\"", "end_of_word_suffix" },
    { "{\"version\"", "{\"version\": 1, \"version\"", "" },
    { "{\"version\"", "[{\"version\"", "" },
};

static void test_edit(const char *json, size_t n, const struct edit *d, int vocab)
{
    const char *at = strstr(json, d->find);
    size_t before = at ? (size_t)(at - json) : 0, removed = strlen(d->find);
    size_t put = strlen(d->put);
    char *copy = malloc(n + put);
    struct tokenizer *t = NULL;
    struct err e = { "" };
    int rc = 0;

    ok(at, "the file has %s", d->find);
    if (at) {
        memcpy(copy, json, before);
        memcpy(copy + before, d->put, put);
        memcpy(copy + before + put, at + removed, n - before - removed);
        rc = tokenizer_open(&t, copy, n - removed + put, "tokenizer.json", vocab, &e);
    }
    if (d->words)
        ok(rc == -EBADMSG && !t && strstr(e.text, d->words) &&
           !strncmp(e.text, "tokenizer.json: ", 16), "%s", e.text);
    else
        ok(!rc, "%s opens%s", d->put, e.text);
    tokenizer_close(t);
    free(copy);
}

static void test_edits(const char *json, size_t n)
{
    static const struct edit gap = {
        "\"_bytes\": 4095", "\"_bytes\": 4100", "no token has id 4095"
    };
    size_t i;

    for (i = 0; i < sizeof(edits) / sizeof(edits[0]); i++)
        test_edit(json, n, &edits[i], NANO_VOCAB);
    test_edit(json, n, &gap, 2 * NANO_VOCAB);
}

static void test_sizes(const char *json, size_t n)
{
    struct tokenizer *t;
    struct err e;
    size_t i;
    int opened = 0;
    char *large = calloc(1, 64 * 1024 * 1024 + 1);

    for (i = 0; i < n; i += 997)
        opened += tokenizer_open(&t, json, i, "t", NANO_VOCAB, &e) != -EBADMSG;
    ok(!opened, "no beginning of the file is a file");
    ok(tokenizer_open(&t, json, n, "t", NANO_VOCAB - 1, &e) == -EBADMSG, "%s", e.text);
    ok(tokenizer_open(&t, large, 64 * 1024 * 1024 + 1, "t", NANO_VOCAB, &e) == -EBADMSG, "%s",
       e.text);
    free(large);
    tokenizer_close(NULL);
}

static double encode_seconds(const struct tokenizer *t, const char *s, size_t n)
{
    struct ids ids = { 0 };
    struct err e;
    double start = cpu_seconds();
    int rc = tokenizer_encode(t, s, n, NULL, SPANS_ALL, &ids, &e);
    double seconds = cpu_seconds() - start;

    free(ids.id);
    return rc ? 1e9 : seconds;
}

static void test_runs(const struct tokenizer *t)
{
    static const char *const units[] = {
        "Z", " ", "\n", "\r\n", "\t", ".", "^", "7", "\u0301", "あ", "😀", "👩‍👩‍👧", "=-", "\n a",
    };
    char *s = malloc(RUN + 32);
    size_t i, n;

    for (i = 0; i < sizeof(units) / sizeof(units[0]); i++) {
        size_t length = strlen(units[i]);
        double seconds;

        for (n = 0; n < RUN; n += length)
            memcpy(s + n, units[i], length);
        seconds = encode_seconds(t, s, n);
        ok(seconds < (TIMED ? 1 : 30), "1 MB of one thing in %.3f s", seconds);
        ok(comes_back(t, s, n, SPANS_ALL, true), "and it comes back");
    }
    free(s);
}

/* Ids as the commands and /tokenize print them, across the edges of what is printed at a time. */
static void test_printed(void)
{
    static const int32_t edges[] = { 0, 9, 10, 99, 100, 100351, 999999999, 1000000000, INT32_MAX };
    enum { N = 5000, EDGES = sizeof(edges) / sizeof(edges[0]) };
    struct text got = { 0 }, want = { 0 };
    int32_t id[N];

    for (size_t i = 0; i < N; i++)
        id[i] = i < EDGES ? edges[i] : (int32_t)((uint32_t)i * 2654435761u >> (1 + i % 31));
    for (size_t n = 0; n <= N; n += n < 2 ? 1 : 833) {
        got.n = want.n = 0;
        text_ids(&got, id, n);
        text_puts(&want, "[");
        for (size_t i = 0; i < n; i++)
            text_printf(&want, i ? ", %d" : "%d", id[i]);
        text_puts(&want, "]");
        ok(got.n == want.n && !memcmp(got.s, want.s, want.n), "%zu ids, printed", n);
    }
    text_free(&got);
    text_free(&want);
}

/* C05: MANY added tokens that begin alike, behind the file's own; then one that is too long. */
static void test_added(const char *json, size_t n)
{
    enum { MANY = 16000, LENGTH = 1 << 20 };
    static const char start[] = "\"added_tokens\": [";
    const char *at = strstr(json, start) + strlen(start);
    char *copy = malloc(n + MANY * 170), *run = malloc(RUN), *to;
    struct tokenizer *t = NULL;
    struct err e = { "" };

    if (!copy || !run)
        exit((printf("Bail out! out of memory\n"), 99));
    to = copy + (at - json);
    memcpy(copy, json, (size_t)(at - json));
    for (int i = 0; i < MANY; i++)
        to += sprintf(to, "{\"id\": %d, \"content\": \"ZZZZZZZZZZZZZZZZ%06d\", \"single_word\": "
                      "false, \"lstrip\": false, \"rstrip\": false, \"normalized\": false, "
                      "\"special\": false}, ", NANO_VOCAB + i, i);
    memcpy(to, at, n - (size_t)(at - json));
    to += n - (size_t)(at - json);
    ok(!tokenizer_open(&t, copy, (size_t)(to - copy), "t", NANO_VOCAB + MANY, &e),
       "%d added tokens that begin alike %s", MANY, e.text);
    memset(run, 'Z', RUN);
    if (t) {
        double seconds = encode_seconds(t, run, RUN);

        ok(seconds < (TIMED ? 1 : 30), "and 1 MB of their beginning in %.3f s", seconds);
    }
    tokenizer_close(t);
    to = copy + (at - json);
    to += sprintf(to, "{\"id\": %d, \"content\": \"", NANO_VOCAB);
    memset(to, 'Z', LENGTH);
    to += LENGTH;
    to += sprintf(to, "\", \"special\": false}, ");
    memcpy(to, at, n - (size_t)(at - json));
    to += n - (size_t)(at - json);
    ok(tokenizer_open(&t, copy, (size_t)(to - copy), "t", NANO_VOCAB + 1, &e) == -EBADMSG &&
       strstr(e.text, "1048576 bytes"), "an added token of 1 MiB: %s", e.text);
    free(copy);
    free(run);
}

static void test_speed(const struct tokenizer *t)
{
    size_t n = 0;
    char *text = find_file("../shared/nano/golden/held.txt", &n);
    double best = 1e9;
    int i;

    if (!text || !TIMED) {
        printf("ok %d - speed # SKIP %s\n", ++tap_count, text ? "not timed" : "no held.txt");
        free(text);
        return;
    }
    for (i = 0; i < 5; i++) {
        double seconds = encode_seconds(t, text, n);

        best = seconds < best ? seconds : best;
    }
    ok((double)n / best >= 10e6, "%.1f MB/s of ordinary text", (double)n / best * 1e-6);
    free(text);
}

struct worker {
    const struct tokenizer *t;
    const char *text;
    size_t n;
    struct ids ids;
    pthread_t thread;
};

static void *work(void *arg)
{
    struct worker *w = arg;
    struct err e;

    tokenizer_encode(w->t, w->text, w->n, NULL, SPANS_ALL, &w->ids, &e);
    return NULL;
}

static void test_threads(const struct tokenizer *t, const char *text, size_t n)
{
    struct worker w[4];
    int i, bad = 0;

    for (i = 0; i < 4; i++) {
        w[i] = (struct worker){ .t = t, .text = text, .n = n };
        pthread_create(&w[i].thread, NULL, work, &w[i]);
    }
    for (i = 0; i < 4; i++)
        pthread_join(w[i].thread, NULL);
    for (i = 0; i < 4; i++) {
        bad += w[i].ids.n != w[0].ids.n || !w[i].ids.n ||
               memcmp(w[i].ids.id, w[0].ids.id, w[0].ids.n * sizeof(int32_t));
    }
    for (i = 0; i < 4; i++)
        free(w[i].ids.id);
    ok(!bad, "four threads, the same ids");
}

int main(void)
{
    size_t n = 0;
    char *json = find_file("models/nano/tokenizer.json", &n);
    struct tokenizer *t = NULL;
    struct err e = { "no file" };

    ok(json && !tokenizer_open(&t, json, n, "tokenizer.json", NANO_VOCAB, &e), "nano's file opens");
    if (!t) {
        printf("# %s\n", e.text);
        return done();
    }
    test_golden(t);
    test_lookup(t);
    test_spans(t);
    test_detok();
    test_round_trips(t);
    test_edits(json, n);
    test_sizes(json, n);
    test_added(json, n);
    test_printed();
    test_runs(t);
    test_speed(t);
    test_threads(t, json, n);
    tokenizer_close(t);
    free(json);
    return done();
}
