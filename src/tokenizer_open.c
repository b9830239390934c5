/* tokenizer.json -> struct tokenizer.  What the file asks for is done or refused by name;
 * nothing that would change an id is passed over.  The library's settings for batches
 * (truncation, padding) and for offsets (trim_offsets) have no meaning here. */
#include "src/tokenizer_parts.h"

#include "src/json.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <xxhash.h>

enum { FILE_MAX = 64 * 1024 * 1024, ALPHABET_END = 0x180 };

/* The split that ByteLevel does itself where it is asked to (use_regex). */
static const char byte_level_pattern[] =
    "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+";

/* The vocabulary's strings -> ids, while the file is read. */
struct names {
    int32_t *slot;              /* [mask + 1] id, or -1 */
    size_t mask;
};

struct load {
    struct tokenizer *t;
    const cJSON *root;
    size_t limit;               /* every id is below it */
    const char **name;          /* [limit] by id: the vocabulary's key or the added content */
    struct names names;
    size_t longest;             /* key in bytes */
    int16_t byte_of[ALPHABET_END];      /* by character of the alphabet, or -1 */
    struct err *e;
};

static int no_memory(struct load *l)
{
    return fail(l->e, -ENOMEM, "no memory for the tokenizer");
}

static size_t children(const cJSON *node)
{
    size_t n = 0;

    for (node = node ? node->child : NULL; node; node = node->next)
        n++;
    return n;
}

/* The string member, "" where there is none. */
static const char *string_of(const cJSON *node, const char *key)
{
    const cJSON *v = json_get(node, key);

    return cJSON_IsString(v) ? v->valuestring : "";
}

static bool is_set(const cJSON *node, const char *key)
{
    return cJSON_IsTrue(json_get(node, key));
}

static int32_t *name_slot(const struct load *l, const char *name, size_t n)
{
    size_t i = (size_t)XXH3_64bits(name, n) & l->names.mask;

    while (l->names.slot[i] >= 0 && strcmp(l->name[l->names.slot[i]], name))
        i = (i + 1) & l->names.mask;
    return &l->names.slot[i];
}

/* The id of a string of the vocabulary, or -1. */
static int32_t find_name(const struct load *l, const char *name)
{
    return *name_slot(l, name, strlen(name));
}

static int add_name(struct load *l, const char *name, int32_t id)
{
    size_t n = strlen(name);

    if (l->name[id])
        return fail(l->e, -EBADMSG, "id %d is both \"%.64s\" and \"%.64s\"", id, l->name[id], name);
    l->name[id] = name;
    *name_slot(l, name, n) = id;
    if (n > l->longest)
        l->longest = n;
    return 0;
}

/* An id of the file; it must leave no gap, so there are as many as entries. */
static int read_id(struct load *l, const cJSON *node, const char *name, int32_t *id)
{
    int64_t v;

    if (json_int64(node, 0, (int64_t)l->limit - 1, &v))
        return fail(l->e, -EBADMSG, "\"%.64s\": id %s (0 to %zu)", name,
                    cJSON_IsNumber(node) ? node->valuestring : "is no number", l->limit - 1);
    *id = (int32_t)v;
    return 0;
}

/* The options of BPE that would change ids. */
static int check_model(struct load *l, const cJSON *model)
{
    static const char *const off[] = {
        "dropout", "continuing_subword_prefix", "end_of_word_suffix", "byte_fallback",
        "ignore_merges",
    };
    const char *type = string_of(model, "type");
    size_t i;

    if (!cJSON_IsObject(model) || (json_get(model, "type") && strcmp(type, "BPE")))
        return fail(l->e, -EBADMSG, "model: type \"%.64s\" (BPE is supported)", type);
    for (i = 0; i < sizeof(off) / sizeof(off[0]); i++) {
        const cJSON *v = json_get(model, off[i]);

        if (v && !cJSON_IsNull(v) && !cJSON_IsFalse(v) &&
            !(cJSON_IsNumber(v) && v->valuedouble == 0) &&
            !(cJSON_IsString(v) && !*v->valuestring))
            return fail(l->e, -EBADMSG, "model.%s is not supported", off[i]);
    }
    return 0;
}

static int load_vocab(struct load *l, const cJSON *vocab, int max)
{
    const cJSON *added = json_get(l->root, "added_tokens"), *node;
    size_t entries = children(vocab) + children(added), size = 16;
    int32_t id = -1;
    int rc = 0;

    if (!cJSON_IsObject(vocab))
        return fail(l->e, -EBADMSG, "model.vocab is no object");
    l->limit = entries < (size_t)max ? entries : (size_t)max;
    while (size < 2 * entries)
        size *= 2;
    l->names.mask = size - 1;
    l->names.slot = malloc(size * sizeof(*l->names.slot));
    l->name = calloc(l->limit + 1, sizeof(*l->name));
    if (!l->names.slot || !l->name)
        return no_memory(l);
    memset(l->names.slot, -1, size * sizeof(*l->names.slot));
    for (node = vocab->child; node && !rc; node = node->next) {
        if (!*node->string)
            return fail(l->e, -EBADMSG, "model.vocab: an empty token");
        rc = read_id(l, node, node->string, &id);
        if (!rc)
            rc = add_name(l, node->string, id);
    }
    return rc;
}

/* The two halves of a merge, "a b" or ["a", "b"].  `copy` holds the first kind. */
static int merge_halves(struct load *l, const cJSON *node, size_t rank, char *copy,
                        const char **left, const char **right)
{
    char *blank;

    if (cJSON_IsString(node) && strlen(node->valuestring) <= 2 * l->longest + 1) {
        strcpy(copy, node->valuestring);
        blank = strchr(copy, ' ');
        if (blank && !strchr(blank + 1, ' ')) {
            *blank = '\0';
            *left = copy;
            *right = blank + 1;
            return 0;
        }
    } else if (cJSON_IsArray(node) && children(node) == 2 && cJSON_IsString(node->child) &&
               cJSON_IsString(node->child->next)) {
        *left = node->child->valuestring;
        *right = node->child->next->valuestring;
        return 0;
    }
    return fail(l->e, -EBADMSG, "merge %zu is not two tokens", rank);
}

/* `copy` and `whole` have room for 2 * longest + 2 bytes. */
static int load_merge(struct load *l, const cJSON *node, size_t rank, char *copy, char *whole)
{
    const char *left = "", *right = "";
    int32_t a, b, both;
    int rc = merge_halves(l, node, rank, copy, &left, &right);

    if (rc)
        return rc;
    a = find_name(l, left);
    b = find_name(l, right);
    if (a < 0 || b < 0)
        return fail(l->e, -EBADMSG, "merge %zu: \"%.64s\" is not in the vocabulary", rank,
                    a < 0 ? left : right);
    strcpy(whole, left);
    strcat(whole, right);
    both = find_name(l, whole);
    if (both < 0)
        return fail(l->e, -EBADMSG, "merge %zu: its result \"%.64s\" is not in the vocabulary",
                    rank, whole);
    if (bpe_add(&l->t->bpe, a, b, both))
        return fail(l->e, -EBADMSG, "merge %zu: \"%.64s\" and \"%.64s\" have one already", rank,
                    left, right);
    return 0;
}

static int load_merges(struct load *l, const cJSON *merges)
{
    char *copy = malloc(2 * l->longest + 2), *whole = malloc(2 * l->longest + 2);
    const cJSON *node;
    size_t rank = 0;
    int rc = 0;

    if (!copy || !whole || bpe_open(&l->t->bpe, children(merges)))
        rc = no_memory(l);
    else if (!cJSON_IsArray(merges))
        rc = fail(l->e, -EBADMSG, "model.merges is no array");
    for (node = rc ? NULL : merges->child; node && !rc; node = node->next)
        rc = load_merge(l, node, rank++, copy, whole);
    if (!rc && bpe_finish(&l->t->bpe, l->limit))
        rc = no_memory(l);
    free(copy);
    free(whole);
    return rc;
}

static int load_added_token(struct load *l, const cJSON *node)
{
    const char *content = string_of(node, "content");
    struct added_token token = {
        .special = is_set(node, "special"),
        .normalized = is_set(node, "normalized"),
        .lstrip = is_set(node, "lstrip"),
        .rstrip = is_set(node, "rstrip"),
    };
    size_t n = strlen(content);
    int32_t known;
    int rc;

    if (!n || n > ADDED_CONTENT_MAX)
        return fail(l->e, -EBADMSG, "added token \"%.64s\" of %zu bytes (1 to %d)", content, n,
                    ADDED_CONTENT_MAX);
    if (is_set(node, "single_word"))
        return fail(l->e, -EBADMSG, "added token \"%.64s\": single_word is not supported", content);
    rc = read_id(l, json_get(node, "id"), content, &token.id);
    if (rc)
        return rc;
    known = find_name(l, content);
    if (known < 0)
        rc = add_name(l, content, token.id);
    else if (known != token.id || l->t->kind[known])
        rc = fail(l->e, -EBADMSG, "added token \"%.64s\" has the ids %d and %d", content, known,
                  token.id);
    if (rc)
        return rc;
    l->t->kind[token.id] = TOKEN_ADDED | (token.special ? TOKEN_SPECIAL : 0);
    rc = added_add(&l->t->added, &token, content, n);
    assert(!rc);                /* a second one of this content has failed above */
    return 0;
}

static int load_added(struct load *l, const cJSON *added)
{
    const cJSON *node;
    size_t n = children(added), bytes = 0;
    int rc = 0;

    if (n > ADDED_TOKENS_MAX)
        return fail(l->e, -EBADMSG, "%zu added tokens (at most %d)", n, ADDED_TOKENS_MAX);
    for (node = added ? added->child : NULL; node; node = node->next)
        bytes += strnlen(string_of(node, "content"), ADDED_CONTENT_MAX);
    l->t->kind = calloc(l->limit + 1, sizeof(*l->t->kind));
    if (!l->t->kind || added_open(&l->t->added, n, bytes))
        return no_memory(l);
    for (node = added ? added->child : NULL; node && !rc; node = node->next)
        rc = load_added_token(l, node);
    return rc;
}

/* The alphabet of byte-level vocabularies: a byte that prints stands for itself, the others
 * in their order for U+0100 and on. */
static int alphabet_char(int byte)
{
    if (byte <= 0x20)
        return 0x100 + byte;
    if (byte >= 0x7f && byte <= 0xa0)
        return 0x121 + byte - 0x7f;
    return byte == 0xad ? 0x143 : byte;
}

static int load_alphabet(struct load *l)
{
    int b;

    memset(l->byte_of, -1, sizeof(l->byte_of));
    for (b = 0; b < 256; b++) {
        int c = alphabet_char(b);
        char name[3] = { (char)c };

        if (c >= 0x80) {
            name[0] = (char)(0xc0 | c >> 6);
            name[1] = (char)(0x80 | (c & 0x3f));
        }
        l->byte_of[c] = (int16_t)b;
        l->t->bpe.byte[b] = find_name(l, name);
        if (l->t->bpe.byte[b] < 0)
            return fail(l->e, -EBADMSG, "model.vocab has no token for byte 0x%02x", b);
    }
    return 0;
}

/* The bytes of a vocabulary key; how many.  A key with other characters than the alphabet's
 * stands for itself, as in the reference library. */
static size_t key_bytes(const struct load *l, const char *key, char *bytes)
{
    const unsigned char *s = (const unsigned char *)key;
    size_t n = 0;

    while (*s) {
        int c = *s++;

        if (c >= 0xc0 && c < 0xe0)
            c = (c & 0x1f) << 6 | (*s++ & 0x3f);
        else if (c >= 0xe0)
            c = ALPHABET_END;
        if (c >= ALPHABET_END || l->byte_of[c] < 0) {
            n = strlen(key);
            memcpy(bytes, key, n);
            return n;
        }
        bytes[n++] = (char)l->byte_of[c];
    }
    return n;
}

/* After all names are known: the bytes of each id, and no id without a name. */
static int load_bytes(struct load *l)
{
    struct tokenizer *t = l->t;
    size_t i, bytes = 0, highest = 0;

    for (i = 0; i < l->limit; i++) {
        if (l->name[i])
            highest = i + 1;
        bytes += l->name[i] ? strlen(l->name[i]) : 0;
    }
    for (i = 0; i < highest; i++)
        if (!l->name[i])
            return fail(l->e, -EBADMSG, "no token has id %zu (the highest is %zu)", i, highest - 1);
    l->limit = highest;
    t->ids = (int32_t)highest;
    t->at = malloc((highest + 1) * sizeof(*t->at));
    t->bytes = malloc(bytes + 1);
    if (!t->at || !t->bytes)
        return no_memory(l);
    t->at[0] = 0;
    for (i = 0; i < highest; i++) {
        char *to = t->bytes + t->at[i];
        size_t n = strlen(l->name[i]);

        if (t->kind[i] & TOKEN_ADDED)
            memcpy(to, l->name[i], n);
        else
            n = key_bytes(l, l->name[i], to);
        t->at[i + 1] = t->at[i] + n;
    }
    return 0;
}

static int load_split(struct load *l, const cJSON *node)
{
    const cJSON *pattern = json_get(node, "pattern"), *regex = json_get(pattern, "Regex");
    const char *name = string_of(node, "behavior");
    int behavior = split_behavior_named(name);

    if (behavior < 0)
        return fail(l->e, -EBADMSG, "pre_tokenizer: Split behavior \"%.64s\"", name);
    return pretoken_add(l->t->pretoken, string_of(pattern, regex ? "Regex" : "String"), !regex,
                        (enum split_behavior)behavior, is_set(node, "invert"), l->e);
}

/* One member of the sequence; ByteLevel has to be the last one. */
static int load_pre_tokenizer(struct load *l, const cJSON *node, bool last)
{
    const char *type = string_of(node, "type");

    if (!strcmp(type, "Split"))
        return last ? fail(l->e, -EBADMSG, "pre_tokenizer: the last one is no ByteLevel")
                    : load_split(l, node);
    if (strcmp(type, "ByteLevel") || !last)
        return fail(l->e, -EBADMSG, "pre_tokenizer: \"%.64s\" is not supported%s", type,
                    last ? "" : " before the last place");
    /* The library's default for both is true. */
    if (!cJSON_IsFalse(json_get(node, "add_prefix_space")))
        return fail(l->e, -EBADMSG, "pre_tokenizer: ByteLevel add_prefix_space is not supported");
    if (cJSON_IsFalse(json_get(node, "use_regex")))
        return 0;
    return pretoken_add(l->t->pretoken, byte_level_pattern, false, SPLIT_ISOLATED, false, l->e);
}

static int load_pretoken(struct load *l, const cJSON *node)
{
    int rc = pretoken_open(&l->t->pretoken, l->e);

    if (rc)
        return rc;
    if (strcmp(string_of(node, "type"), "Sequence"))
        return load_pre_tokenizer(l, node, true);
    node = json_get(node, "pretokenizers");
    if (!children(node))
        return fail(l->e, -EBADMSG, "pre_tokenizer: an empty Sequence");
    for (node = node->child; node && !rc; node = node->next)
        rc = load_pre_tokenizer(l, node, !node->next);
    return rc;
}

/* TemplateProcessing of one text: nothing or one special token in front. */
static int load_template(struct load *l, const cJSON *node)
{
    const cJSON *part = json_get(node, "single"), *first;
    const char *token;

    first = part ? part->child : NULL;
    token = string_of(json_get(first, "SpecialToken"), "id");
    if (*token) {
        const cJSON *entry = json_get(json_get(node, "special_tokens"), token);
        const cJSON *ids = json_get(entry, "ids");
        int rc;

        if (children(ids) != 1)
            return fail(l->e, -EBADMSG, "post_processor: \"%.64s\" has no single id", token);
        rc = read_id(l, ids->child, token, &l->t->bos);
        if (rc)
            return rc;
        first = first->next;
    }
    if (!json_get(first, "Sequence") || first->next)
        return fail(l->e, -EBADMSG, "post_processor: \"single\" is more than a token and the text");
    return 0;
}

static int load_post_processor(struct load *l, const cJSON *node)
{
    const char *type = string_of(node, "type");
    int rc = 0;

    if (!node || cJSON_IsNull(node) || !strcmp(type, "ByteLevel"))
        return 0;
    if (!strcmp(type, "TemplateProcessing"))
        return load_template(l, node);
    node = json_get(node, "processors");
    if (strcmp(type, "Sequence") || !node)
        return fail(l->e, -EBADMSG, "post_processor: \"%.64s\" is not supported", type);
    for (node = node->child; node && !rc; node = node->next) {
        type = string_of(node, "type");
        if (!strcmp(type, "TemplateProcessing"))
            rc = load_template(l, node);
        else if (strcmp(type, "ByteLevel"))
            rc = fail(l->e, -EBADMSG, "post_processor: \"%.64s\" is not supported", type);
    }
    return rc;
}

static int load(struct load *l, int vocab)
{
    const cJSON *model = json_get(l->root, "model");
    const cJSON *normalizer = json_get(l->root, "normalizer");
    const char *decoder = string_of(json_get(l->root, "decoder"), "type");
    int rc;

    if (normalizer && !cJSON_IsNull(normalizer))
        return fail(l->e, -EBADMSG, "normalizer \"%.64s\" is not supported",
                    string_of(normalizer, "type"));
    if (strcmp(decoder, "ByteLevel"))
        return fail(l->e, -EBADMSG, "decoder \"%.64s\" (ByteLevel is supported)", decoder);
    rc = check_model(l, model);
    if (!rc)
        rc = load_vocab(l, json_get(model, "vocab"), vocab);
    /* Before the added tokens: merges and bytes are of the model's own vocabulary. */
    if (!rc)
        rc = load_merges(l, json_get(model, "merges"));
    if (!rc)
        rc = load_alphabet(l);
    if (!rc)
        rc = load_added(l, json_get(l->root, "added_tokens"));
    if (!rc)
        rc = load_bytes(l);
    if (!rc)
        rc = load_pretoken(l, json_get(l->root, "pre_tokenizer"));
    if (!rc)
        rc = load_post_processor(l, json_get(l->root, "post_processor"));
    return rc;
}

int tokenizer_open(struct tokenizer **out, const char *json, size_t n, const char *name, int vocab,
                   struct err *e)
{
    struct err why = { "" };
    struct load l = { .e = &why };
    cJSON *root;
    int rc;

    assert(vocab > 0);
    *out = NULL;
    if (n > FILE_MAX)
        return fail(e, -EBADMSG, "%s: %zu bytes (at most %d)", name, n, FILE_MAX);
    root = json_parse(json, n, &JSON_FILE, &why);
    if (!root)
        return fail(e, -errno, "%s: %s", name, why.text);
    l.root = root;
    l.t = calloc(1, sizeof(*l.t));
    if (l.t) {
        l.t->bos = -1;
        rc = load(&l, vocab);
    } else {
        rc = no_memory(&l);
    }
    free(l.names.slot);
    free(l.name);
    cJSON_Delete(root);
    if (rc) {
        tokenizer_close(l.t);
        return fail(e, rc, "%s: %s", name, why.text);
    }
    *out = l.t;
    return 0;
}
