/* Any bytes as a tokenizer.json, and any text through one.  The input up to its first NUL is
 * a file (where that is empty, a small valid one is made), the rest the text. */
#include "src/json.h"
#include "src/tokenizer.h"

#include <assert.h>
#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { VOCAB = 300 };

/* The 256 bytes, a few merges and an added token. */
static void small_file(struct text *t)
{
    int b, other = 0x100;

    text_puts(t, "{\"decoder\":{\"type\":\"ByteLevel\"},\"pre_tokenizer\":{\"type\":\"ByteLevel\","
                 "\"add_prefix_space\":false},\"added_tokens\":[{\"id\":259,\"content\":\"<a>\"}],"
                 "\"model\":{\"merges\":[\"a a\",\"aa a\",[\"b\",\"aa\"]],\"vocab\":{\"aa\":256,"
                 "\"aaa\":257,\"baa\":258");
    for (b = 0; b < 256; b++) {
        bool prints = (b > 0x20 && b < 0x7f) || (b > 0xa0 && b != 0xad);

        text_printf(t, ",\"\\u%04x\":%d", (unsigned)(prints ? b : other++), b);
    }
    text_puts(t, "}}}");
}

static void check(const struct tokenizer *t, const char *text, size_t n, bool whole)
{
    struct span span = { n / 4, n / 2 };
    struct ids ids = { 0 };
    struct detok d = { 0 };
    struct err e;
    size_t i, length, at = 0;
    char *out = malloc(3 * n + 1024);

    if (!tokenizer_encode(t, text, n, NULL, 0, &ids, &e))
        for (i = 0; i < ids.n; i++) {
            const char *bytes = tokenizer_bytes(t, ids.id[i], &length);

            assert(bytes);
            if (whole) {
                assert(at + length <= n && !memcmp(bytes, text + at, length));
                detok_push(&d, bytes, length, i + 1 == ids.n, out);
            }
            at += length;
        }
    assert(!whole || at == n);
    tokenizer_encode(t, text, n, &span, 1, &ids, &e);
    tokenizer_encode(t, text, n, NULL, SPANS_ALL, &ids, &e);
    free(ids.id);
    free(out);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const uint8_t *nul = memchr(data, 0, size);
    size_t file = nul ? (size_t)(nul - data) : size, rest = nul ? size - file - 1 : 0;
    const char *text = nul ? (const char *)nul + 1 : "aaab <a> b";
    struct tokenizer *t;
    struct text small = { 0 };
    struct err e;
    int rc;

    if (!file)
        small_file(&small);
    rc = tokenizer_open(&t, file ? (const char *)data : small.s, file ? file : small.n, "fuzz",
                        VOCAB, &e);
    assert(!rc || file);
    if (!rc)
        check(t, text, nul ? rest : strlen(text), !file);
    tokenizer_close(t);
    text_free(&small);
    return 0;
}
