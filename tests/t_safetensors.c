/* Rows A02 and A05 to A18 of the fault catalogue, and case L-05: every header that could be
 * read in two ways, or that claims what the file does not hold, is refused by name. */
#include "storage/safetensors.h"
#include "tests/files.h"
#include "tests/tap.h"

#include <errno.h>

#define T(dtype, shape, offsets) \
    "{\"dtype\":\"" dtype "\",\"shape\":" shape ",\"data_offsets\":" offsets "}"
#define ONE(dtype, shape, offsets) "{\"a\":" T(dtype, shape, offsets) "}"

/* A header of a file with this many bytes of data; words: what the refusal must say, or
 * NULL where the header is good. */
struct example {
    const char *what, *header;
    uint64_t data_bytes;
    const char *words;
};

static const struct example examples[] = {
    { "one tensor", ONE("BF16", "[2,3]", "[0,12]"), 12, NULL },
    { "a scalar", ONE("F32", "[]", "[0,4]"), 4, NULL },
    { "white space", "{ \"a\" :\n\t" T("U8", "[ 4 ]", "[ 0 , 4 ]") " }", 4, NULL },
    { "trailing spaces (A07)", ONE("U8", "[4]", "[0,4]") "   ", 4, NULL },
    { "odd metadata", "{\"__metadata__\":{\"\\ud83d\\ude00\":\"\\n\",\"b\":\"\"},\"a\":"
      T("U8", "[4]", "[0,4]") "}", 4, NULL },
    { "zero elements (L-05)", "{\"z\":" T("F32", "[0,32]", "[0,0]") ",\"a\":"
      T("U8", "[4]", "[0,4]") "}", 4, NULL },
    { "zero elements inside another (A14)", "{\"z\":" T("F32", "[0,32]", "[2,2]") ",\"a\":"
      T("U8", "[4]", "[0,4]") "}", 4, NULL },
    { "header order is not file order", "{\"b\":" T("U8", "[2]", "[4,6]") ",\"a\":"
      T("U8", "[4]", "[0,4]") "}", 6, NULL },
    { "F4 pairs", ONE("F4", "[2,3]", "[0,3]"), 3, NULL },
    { "rank 8", ONE("U8", "[1,1,1,1,1,1,1,2]", "[0,2]"), 2, NULL },

    { "empty header (A02)", "", 4, "does not begin" },
    { "one byte", "{", 4, "does not begin" },
    { "no tensors", "{}", 0, "no tensors" },
    { "metadata alone", "{\"__metadata__\":{}}", 0, "no tensors" },
    { "BOM (A05)", "\xef\xbb\xbf" ONE("U8", "[4]", "[0,4]"), 4, "does not begin" },
    { "leading space", " " ONE("U8", "[4]", "[0,4]"), 4, "does not begin" },
    { "an array", "[]", 0, "does not begin" },
    { "not JSON (L-05)", "xxxxxxxx", 0, "does not begin" },
    { "invalid UTF-8 (A06)", "{\"a\xff\":" T("U8", "[4]", "[0,4]") "}", 4, "not UTF-8" },
    { "overlong UTF-8", "{\"\xc0\xaf\":" T("U8", "[4]", "[0,4]") "}", 4, "not UTF-8" },
    { "UTF-8 surrogate", "{\"\xed\xa0\x80\":" T("U8", "[4]", "[0,4]") "}", 4, "not UTF-8" },
    { "cut UTF-8", "{\"\xe2\x82", 4, "not UTF-8" },
    { "NUL in a name", "{\"a\\u0000b\":" T("U8", "[4]", "[0,4]") "}", 4, "NUL" },
    { "lone high surrogate", "{\"\\ud800\":" T("U8", "[4]", "[0,4]") "}", 4, "surrogate" },
    { "lone low surrogate", "{\"\\udc00\":" T("U8", "[4]", "[0,4]") "}", 4, "surrogate" },
    { "high surrogate twice", "{\"\\ud800\\ud800\":1}", 4, "surrogate" },
    { "control character", "{\"a\tb\":" T("U8", "[4]", "[0,4]") "}", 4, "control character" },
    { "unknown escape", "{\"\\x\":1}", 4, "escape" },
    { "bad hex", "{\"\\u00g0\":1}", 4, "escape" },
    { "cut escape", "{\"\\u00", 4, "escape" },
    { "trailing newline (A07)", ONE("U8", "[4]", "[0,4]") "\n", 4, "behind the JSON" },
    { "trailing text", ONE("U8", "[4]", "[0,4]") "{}", 4, "behind the JSON" },
    { "name twice (A08)", "{\"a\":" T("U8", "[4]", "[0,4]") ",\"a\":" T("U8", "[4]", "[4,8]") "}",
      8, ":a: twice" },
    { "name twice, escaped", "{\"a\":" T("U8", "[4]", "[0,4]") ",\"\\u0061\":"
      T("U8", "[4]", "[4,8]") "}", 8, ":a: twice" },
    { "dtype twice", "{\"a\":{\"dtype\":\"U8\",\"dtype\":\"I8\",\"shape\":[4],"
      "\"data_offsets\":[0,4]}}", 4, ":a: dtype twice" },
    { "metadata twice", "{\"__metadata__\":{},\"__metadata__\":{},\"a\":"
      T("U8", "[4]", "[0,4]") "}", 4, "__metadata__: twice" },
    { "no dtype", "{\"a\":{\"shape\":[4],\"data_offsets\":[0,4]}}", 4, "no dtype" },
    { "no shape", "{\"a\":{\"dtype\":\"U8\",\"data_offsets\":[0,4]}}", 4, "no shape" },
    { "no offsets", "{\"a\":{\"dtype\":\"U8\",\"shape\":[4]}}", 4, "no data_offsets" },
    { "unknown key", "{\"a\":{\"dtype\":\"U8\",\"shape\":[4],\"data\":[0,4]}}", 4,
      "unknown key data" },
    { "trailing comma", "{\"a\":" T("U8", "[4]", "[0,4]") ",}", 4, "expected" },
    { "overlap (A11)", "{\"a\":" T("U8", "[4]", "[0,4]") ",\"b\":" T("U8", "[4]", "[2,6]") "}",
      6, ":b: begins at 2" },
    { "one span, two names (L-05)", "{\"k\":" T("U8", "[4]", "[0,4]") ",\"v\":"
      T("U8", "[4]", "[0,4]") "}", 4, "begins at 0" },
    { "reversed", ONE("U8", "[4]", "[4,0]"), 4, "reversed" },
    { "a hole", "{\"a\":" T("U8", "[4]", "[0,4]") ",\"b\":" T("U8", "[4]", "[8,12]") "}", 12,
      ":b: begins at 8" },
    { "a hole at the start", ONE("U8", "[4]", "[4,8]"), 8, "begins at 4" },
    { "data behind the last tensor", ONE("U8", "[4]", "[0,4]"), 5, "4 of 5" },
    { "end past the file", ONE("U8", "[4]", "[0,4]"), 3, "ends at 4 of 3" },
    { "3 offsets", ONE("U8", "[4]", "[0,4,4]"), 4, "expected" },
    { "1 offset", ONE("U8", "[4]", "[4]"), 4, "expected" },
    { "negative offset", ONE("U8", "[4]", "[-4,0]"), 4, "unsigned integer" },
    { "fraction", ONE("U8", "[4]", "[0,4.5]"), 4, "unsigned integer" },
    { "exponent", ONE("U8", "[4]", "[0,1e300]"), 4, "unsigned integer" },
    { "leading zero", ONE("U8", "[04]", "[0,4]"), 4, "unsigned integer" },
    { "2^64", ONE("U8", "[4]", "[0,18446744073709551616]"), 4, "2^64" },
    { "string offset", ONE("U8", "[4]", "[0,\"4\"]"), 4, "unsigned integer" },
    { "product overflows (A12)", ONE("U8", "[4194305,4194305,211106198978564]", "[0,4]"), 4,
      "overflows" },
    { "bytes overflow (L-05)", ONE("F32", "[4611686018427387904,4]", "[0,4]"), 4, "overflows" },
    { "negative dimension", ONE("U8", "[-4]", "[0,4]"), 4, "unsigned integer" },
    { "dimension 2^63", ONE("U8", "[9223372036854775808]", "[0,4]"), 4, "dimension" },
    { "float dimension", ONE("U8", "[4.0]", "[0,4]"), 4, "unsigned integer" },
    { "rank 9", ONE("U8", "[1,1,1,1,1,1,1,1,4]", "[0,4]"), 4, "more than 8" },
    { "size is not the shape's (A13)", ONE("BF16", "[4]", "[0,4]"), 4, "make 8" },
    { "half a byte", ONE("F4", "[3]", "[0,2]"), 2, "whole bytes" },
    { "unknown dtype (A15)", ONE("Q4_K", "[4]", "[0,4]"), 4, "unknown dtype Q4_K" },
    { "metadata is a list (A18)", "{\"__metadata__\":[],\"a\":" T("U8", "[4]", "[0,4]") "}", 4,
      "expected" },
    { "metadata holds a number", "{\"__metadata__\":{\"a\":1},\"a\":" T("U8", "[4]", "[0,4]") "}",
      4, "expected" },
};

static int parse(struct tensor_table *t, const char *header, size_t n, uint64_t file_bytes,
                 struct err *e)
{
    char *exact = malloc(n + 1);
    int rc;

    /* A copy without a byte to spare, so that a sanitizer sees reads behind the end. */
    memcpy(exact, header, n);
    exact = realloc(exact, n ? n : 1);
    rc = safetensors_parse(t, exact, n, file_bytes, "f", e);
    free(exact);
    return rc;
}

static void test_examples(void)
{
    size_t i, cut;

    for (i = 0; i < sizeof(examples) / sizeof(examples[0]); i++) {
        const struct example *x = &examples[i];
        size_t n = strlen(x->header);
        struct err e = { "" };
        struct tensor_table t;
        int rc = parse(&t, x->header, n, 8 + n + x->data_bytes, &e);

        if (x->words)
            ok(rc == -EBADMSG && strstr(e.text, x->words), "%s: %s", x->what, e.text);
        else
            ok(rc == 0, "%s %s", x->what, e.text);
        if (!rc)
            tensor_table_free(&t);
        if (x->words)
            continue;
        while (x->header[n - 1] == ' ')
            n--;
        for (cut = 0; cut < n; cut++)
            if (!parse(&t, x->header, cut, 8 + cut + x->data_bytes, &e)) {
                tensor_table_free(&t);
                break;
            }
        ok(cut == n, "%s: every cut of it is refused", x->what);
    }
}

static void test_values(void)
{
    static const char header[] = "{\"b\":" T("I32", "[2,2]", "[6,22]") ",\"a\\u00e9\":"
                                 T("BF16", "[3]", "[0,6]") "}  ";
    struct tensor_table t;
    struct err e;
    size_t n = strlen(header);
    int rc = parse(&t, header, n, 8 + n + 22, &e);

    ok(!rc && t.count == 2, "two tensors");
    if (rc)
        return;
    ok(!strcmp(t.tensor[0].name, "a\xc3\xa9") && t.tensor[0].dtype == DT_BF16, "in file order");
    ok(t.tensor[0].offset == 8 + n && t.tensor[0].bytes == 6, "offsets count from the file");
    ok(t.tensor[1].rank == 2 && t.tensor[1].dim[1] == 2 && t.tensor[1].offset == 8 + n + 6,
       "shape and place of the second");
    tensor_table_free(&t);
    ok(!t.tensor && !t.names, "a freed table is empty");
    ok(safetensors_parse(&t, header, n, n + 7, "f", &e) == -EBADMSG, "header beyond the file");
    ok(!strcmp(dtype_name(DT_F8_E8M0), "F8_E8M0"), "dtype_name");
}

static void test_name_length(void)
{
    char header[800], name[600];
    struct tensor_table t;
    struct err e = { "" };
    int rc;

    memset(name, 'n', sizeof(name));
    name[512] = 0;
    snprintf(header, sizeof(header), "{\"%s\":" T("U8", "[4]", "[0,4]") "}", name);
    rc = parse(&t, header, strlen(header), 8 + strlen(header) + 4, &e);
    ok(!rc, "a name of 512 bytes");
    if (!rc)
        tensor_table_free(&t);
    memset(name, 'n', 513);
    name[513] = 0;
    snprintf(header, sizeof(header), "{\"%s\":" T("U8", "[4]", "[0,4]") "}", name);
    ok(parse(&t, header, strlen(header), 8 + strlen(header) + 4, &e) == -EBADMSG,
       "a name of 513 bytes: %s", e.text);
}

/* A hostile header of n copies of `unit` is refused, and soon. */
static void test_bomb(const char *what, const char *start, const char *unit, size_t n,
                      const char *words)
{
    size_t head = strlen(start), len = strlen(unit), i;
    char *text = malloc(head + n * len);
    struct tensor_table t;
    struct err e = { "" };
    double began;
    int rc;

    memcpy(text, start, head);
    for (i = 0; i < n; i++)
        memcpy(text + head + i * len, unit, len);
    began = cpu_seconds();
    rc = safetensors_parse(&t, text, head + n * len, UINT64_MAX / 2, "f", &e);
    ok(rc == -EBADMSG && strstr(e.text, words), "%s: %s", what, e.text);
    ok(cpu_seconds() - began < 2, "%s: %.3f s", what, cpu_seconds() - began);
    free(text);
}

/* Laguna-S-2.1 in W4A16: 36,096 expert Linears of three tensors each. */
static void test_real_size(void)
{
    static const char *const proj[] = { "down_proj", "gate_proj", "up_proj" };
    static const char *const part[] = { "weight_packed", "weight_scale", "weight_shape" };
    char *text = malloc(24 << 20);
    size_t used = 1, at = 0, count = 0;
    int layer, expert, k;
    struct tensor_table t;
    struct err e = { "" };
    double began;
    int rc;

    text[0] = '{';
    for (layer = 1; layer < 48; layer++)
        for (expert = 0; expert < 256; expert++)
            for (k = 0; k < 9; k++, at += 64, count++)
                used += (size_t)sprintf(text + used, "%s\"model.layers.%d.mlp.experts.%d.%s.%s\":"
                                        "{\"dtype\":\"I32\",\"shape\":[4,4],"
                                        "\"data_offsets\":[%zu,%zu]}", count ? "," : "", layer,
                                        expert, proj[k / 3], part[k % 3], at, at + 64);
    text[used++] = '}';
    began = cpu_seconds();
    rc = safetensors_parse(&t, text, used, 8 + used + at, "f", &e);
    ok(!rc && t.count == 108288, "a header of %zu tensors, %zu bytes %s", count, used, e.text);
    ok(cpu_seconds() - began < 2, "parsed in %.3f s", cpu_seconds() - began);
    if (!rc)
        tensor_table_free(&t);
    free(text);
}

int main(void)
{
    test_examples();
    test_values();
    test_name_length();
    test_bomb("deep nesting (A09)", "{\"a\":{\"dtype\":\"U8\",\"shape\":", "[", 1000000,
              "unsigned integer");
    test_bomb("too many tensors (A10)", "{\"x\":" T("U8", "[16]", "[0,16]"),
              ",\"a\":" T("U8", "[16]", "[0,16]"), 1500000, "more than 300000");
    test_real_size();
    return done();
}
