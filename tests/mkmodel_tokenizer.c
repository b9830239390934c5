/* A tokenizer.json of any size that the format allows: Laguna's added tokens, the 256
 * bytes, then pairs of letters, then pairs of those pairs.  Every merge names two pieces
 * that exist and makes one that is new. */
#include "tests/mkmodel.h"

#include <errno.h>

enum { ADDED = 32, LETTERS = 26, PAIRS = LETTERS * LETTERS, FIRST_PAIR = ADDED + 256 };

static void added_name(char name[32], int id)
{
    static const struct {
        int id;
        const char *name;
    } known[] = {
        {0, "〈|UNK|〉"},    {2, "〈|EOS|〉"},     {9, "〈|PAD|〉"},    {12, "〈|MASK|〉"},
        {18, "<think>"},     {19, "</think>"},     {23, "<assistant>"}, {24, "</assistant>"},
        {25, "<tool_call>"}, {26, "</tool_call>"},
    };

    for (size_t i = 0; i < sizeof(known) / sizeof(known[0]); i++)
        if (known[i].id == id) {
            strcpy(name, known[i].name);
            return;
        }
    snprintf(name, 32, "〈|RESERVED_%d|〉", id);
}

/* Those of the brackets are markup for the tokenizer, the others for the reader. */
static bool added_is_special(int id)
{
    return id == 24 || !(id == 18 || id == 19 || id == 23 || id == 25 || id == 26);
}

static bool byte_is_printable(int byte)
{
    return (byte >= 33 && byte <= 126) || (byte >= 161 && byte != 173);
}

/* The letter that stands for a byte, in UTF-8 and escaped for JSON: printable ones are
 * themselves, the others follow from U+0100. */
static void byte_letter(char letter[4], int byte)
{
    int code = byte, n = 0;

    if (!byte_is_printable(byte)) {
        code = 256;
        for (int i = 0; i < byte; i++)
            code += !byte_is_printable(i);
    }
    if (code == '"' || code == '\\')
        letter[n++] = '\\';
    if (code < 128) {
        letter[n++] = (char)code;
    } else {
        letter[n++] = (char)(0xc0 | code >> 6);
        letter[n++] = (char)(0x80 | (code & 63));
    }
    letter[n] = '\0';
}

/* Left and right of merge `i`. */
static void merge_parts(int i, char left[3], char right[3])
{
    int a = i, b = i;

    if (i < PAIRS) {
        snprintf(left, 3, "%c", 'a' + a / LETTERS);
        snprintf(right, 3, "%c", 'a' + b % LETTERS);
        return;
    }
    a = (i - PAIRS) / PAIRS;
    b = (i - PAIRS) % PAIRS;
    snprintf(left, 3, "%c%c", 'a' + a / LETTERS, 'a' + a % LETTERS);
    snprintf(right, 3, "%c%c", 'a' + b / LETTERS, 'a' + b % LETTERS);
}

static void put_added(FILE *f)
{
    char name[32];

    fputs("{\"version\": \"1.0\", \"truncation\": null, \"padding\": null, \"added_tokens\": [", f);
    for (int id = 0; id < ADDED; id++) {
        added_name(name, id);
        fprintf(f,
                "%s{\"id\": %d, \"content\": \"%s\", \"single_word\": false, \"lstrip\": false, "
                "\"rstrip\": false, \"normalized\": false, \"special\": %s}",
                id ? ", " : "", id, name, added_is_special(id) ? "true" : "false");
    }
    fputs("], ", f);
}

static void put_pipeline(FILE *f)
{
    fputs(
        "\"normalizer\": null, \"pre_tokenizer\": {\"type\": \"Sequence\", \"pretokenizers\": ["
        "{\"type\": \"Split\", \"pattern\": {\"Regex\": \"(?:\\\\r?\\\\n)+(?!\\\\r?\\\\n)\"}, "
        "\"behavior\": \"MergedWithNext\", \"invert\": false}, "
        "{\"type\": \"Split\", \"pattern\": {\"Regex\": \"(?i:'s|'t|'re|'ve|'m|'ll|'d)|"
        "[^\\\\r\\\\n\\\\p{L}\\\\p{N}]?\\\\p{L}+|\\\\p{N}| ?[^\\\\s\\\\p{L}\\\\p{N}]+[\\\\r\\\\n]*|"
        "\\\\s*[\\\\r\\\\n]+|\\\\s+(?!\\\\S)|\\\\s+\"}, "
        "\"behavior\": \"Isolated\", \"invert\": false}, "
        "{\"type\": \"ByteLevel\", \"add_prefix_space\": false, \"trim_offsets\": true, "
        "\"use_regex\": false}]}, "
        "\"post_processor\": {\"type\": \"TemplateProcessing\", \"single\": ["
        "{\"SpecialToken\": {\"id\": \"〈|EOS|〉\", \"type_id\": 0}}, "
        "{\"Sequence\": {\"id\": \"A\", \"type_id\": 0}}], \"pair\": ["
        "{\"Sequence\": {\"id\": \"A\", \"type_id\": 0}}, "
        "{\"Sequence\": {\"id\": \"B\", \"type_id\": 1}}], \"special_tokens\": {"
        "\"〈|EOS|〉\": {\"id\": \"〈|EOS|〉\", \"ids\": [2], \"tokens\": [\"〈|EOS|〉\"]}}}, "
        "\"decoder\": {\"type\": \"ByteLevel\", \"add_prefix_space\": true, "
        "\"trim_offsets\": true, \"use_regex\": true}, "
        "\"model\": {\"type\": \"BPE\", \"dropout\": null, \"unk_token\": null, "
        "\"continuing_subword_prefix\": null, \"end_of_word_suffix\": null, "
        "\"fuse_unk\": false, \"byte_fallback\": false, \"ignore_merges\": false, ",
        f);
}

int tokenizer_write(const struct plan *p, struct err *e)
{
    int merges = p->vocab - FIRST_PAIR, id = ADDED;
    char name[32], letter[4], left[3], right[3];
    FILE *f;

    if (merges < 0 || merges > PAIRS + PAIRS * PAIRS)
        return fail(e, -EINVAL, "a vocabulary of %d: %d to %d", p->vocab, FIRST_PAIR,
                    FIRST_PAIR + PAIRS + PAIRS * PAIRS);
    f = file_create(p, "tokenizer.json", e);
    if (!f)
        return -EIO;
    put_added(f);
    put_pipeline(f);
    fputs("\"vocab\": {", f);
    for (int i = 0; i < ADDED; i++) {
        added_name(name, i);
        fprintf(f, "%s\"%s\": %d", i ? ", " : "", name, i);
    }
    /* Printable bytes first, as trained vocabularies have them. */
    for (int printable = 1; printable >= 0; printable--)
        for (int byte = 0; byte < 256; byte++)
            if (byte_is_printable(byte) == printable) {
                byte_letter(letter, byte);
                fprintf(f, ", \"%s\": %d", letter, id++);
            }
    for (int i = 0; i < merges; i++) {
        merge_parts(i, left, right);
        fprintf(f, ", \"%s%s\": %d", left, right, id++);
    }
    fputs("}, \"merges\": [", f);
    for (int i = 0; i < merges; i++) {
        merge_parts(i, left, right);
        fprintf(f, "%s[\"%s\", \"%s\"]", i ? ", " : "", left, right);
    }
    fputs("]}}\n", f);
    return file_close(f, "tokenizer.json", e);
}
