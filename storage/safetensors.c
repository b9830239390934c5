/* The header of a safetensors file: names, types, shapes and extents, every one of them
 * checked against the length of the file before anybody uses it.  The tensors must fill the
 * data section without holes or overlap, as the reference reader demands.  Reads no file. */
#include "storage/safetensors.h"

#include "storage/scan.h"

#include <errno.h>
#include <stdlib.h>
#include <xxhash.h>

enum { NAME_MAX_BYTES = 512, TENSORS_MAX = 300000 };

static const struct {
    const char *name;
    unsigned bits;
} dtypes[DT_COUNT] = {
    [DT_BOOL] = { "BOOL", 8 },
    [DT_U8] = { "U8", 8 },
    [DT_I8] = { "I8", 8 },
    [DT_F8_E4M3] = { "F8_E4M3", 8 },
    [DT_F8_E5M2] = { "F8_E5M2", 8 },
    [DT_F8_E8M0] = { "F8_E8M0", 8 },
    [DT_F4] = { "F4", 4 },
    [DT_I16] = { "I16", 16 },
    [DT_U16] = { "U16", 16 },
    [DT_F16] = { "F16", 16 },
    [DT_BF16] = { "BF16", 16 },
    [DT_I32] = { "I32", 32 },
    [DT_U32] = { "U32", 32 },
    [DT_F32] = { "F32", 32 },
    [DT_I64] = { "I64", 64 },
    [DT_U64] = { "U64", 64 },
    [DT_F64] = { "F64", 64 },
};

const char *dtype_name(enum dtype d)
{
    return dtypes[d].name;
}

static int dtype(struct scan *s, enum dtype *out)
{
    char name[32];
    int d, rc = scan_string(s, name, sizeof(name), NULL);

    if (rc)
        return rc;
    for (d = 0; d < DT_COUNT; d++)
        if (!strcmp(name, dtypes[d].name)) {
            *out = (enum dtype)d;
            return 0;
        }
    return scan_fail(s, "unknown dtype %s", name);
}

static int shape(struct scan *s, struct tensor *t)
{
    bool first = true;
    uint64_t dim;
    int rc = scan_expect(s, '[');

    if (rc)
        return rc;
    while ((rc = scan_more(s, ']', &first)) == 1) {
        if (t->rank == TENSOR_RANK)
            return scan_fail(s, "more than %d dimensions", TENSOR_RANK);
        rc = scan_u64(s, &dim);
        if (rc)
            return rc;
        if (dim > INT64_MAX)
            return scan_fail(s, "dimension %ju", (uintmax_t)dim);
        t->dim[t->rank++] = (int64_t)dim;
    }
    return rc;
}

/* [begin, end), from the start of the data. */
static int data_offsets(struct scan *s, struct tensor *t)
{
    uint64_t end;
    int rc = scan_expect(s, '[');

    if (!rc)
        rc = scan_u64(s, &t->offset);
    if (!rc)
        rc = scan_expect(s, ',');
    if (!rc)
        rc = scan_u64(s, &end);
    if (!rc)
        rc = scan_expect(s, ']');
    if (rc)
        return rc;
    if (end < t->offset)
        return scan_fail(s, "data_offsets [%ju, %ju] are reversed", (uintmax_t)t->offset,
                         (uintmax_t)end);
    t->bytes = end - t->offset;
    return 0;
}

/* The bytes must be what dtype and shape say. */
static int check_bytes(struct scan *s, const struct tensor *t)
{
    uint64_t bits = dtypes[t->dtype].bits;
    int i;

    for (i = 0; i < t->rank; i++)
        if (__builtin_mul_overflow(bits, (uint64_t)t->dim[i], &bits))
            return scan_fail(s, "the product of its dimensions overflows");
    if (bits % 8)
        return scan_fail(s, "%ju bits are not whole bytes", (uintmax_t)bits);
    if (bits / 8 != t->bytes)
        return scan_fail(s, "%ju bytes of data where %s and the shape make %ju",
                         (uintmax_t)t->bytes, dtypes[t->dtype].name, (uintmax_t)(bits / 8));
    return 0;
}

static int tensor(struct scan *s, struct tensor *t)
{
    static const char *const keys[] = { "dtype", "shape", "data_offsets" };
    unsigned seen = 0, k;
    bool first = true;
    char key[32];
    int rc = scan_expect(s, '{');

    if (rc)
        return rc;
    while ((rc = scan_more(s, '}', &first)) == 1) {
        rc = scan_string(s, key, sizeof(key), NULL);
        if (!rc)
            rc = scan_expect(s, ':');
        if (rc)
            return rc;
        for (k = 0; k < 3 && strcmp(key, keys[k]); k++)
            ;
        if (k == 3)
            return scan_fail(s, "unknown key %s", key);
        if (seen & 1u << k)
            return scan_fail(s, "%s twice", key);
        seen |= 1u << k;
        rc = k == 0 ? dtype(s, &t->dtype) : k == 1 ? shape(s, t) : data_offsets(s, t);
        if (rc)
            return rc;
    }
    if (rc)
        return rc;
    for (k = 0; k < 3; k++)
        if (!(seen & 1u << k))
            return scan_fail(s, "no %s", keys[k]);
    return check_bytes(s, t);
}

static int metadata(struct scan *s)
{
    bool first = true;
    int rc = scan_expect(s, '{');

    if (rc)
        return rc;
    while ((rc = scan_more(s, '}', &first)) == 1) {
        rc = scan_string(s, NULL, 0, NULL);
        if (!rc)
            rc = scan_expect(s, ':');
        if (!rc)
            rc = scan_string(s, NULL, 0, NULL);
        if (rc)
            return rc;
    }
    return rc;
}

static int add_tensor(struct scan *s, struct tensor_table *out, size_t *cap)
{
    struct tensor *grown;

    if (out->count == TENSORS_MAX)
        return scan_fail(s, "more than %d tensors", TENSORS_MAX);
    if (out->count == *cap) {
        *cap = *cap ? *cap * 2 : 256;
        grown = realloc(out->tensor, *cap * sizeof(*grown));
        if (!grown)
            return fail(s->e, -ENOMEM, "%s: no memory for %zu tensors", s->file, *cap);
        out->tensor = grown;
    }
    memset(&out->tensor[out->count], 0, sizeof(*out->tensor));
    return 0;
}

/* Every member of the header.  A decoded name is never longer than its JSON, so that
 * out->names, of the header's size, holds them all with their NULs. */
static int members(struct scan *s, struct tensor_table *out)
{
    size_t cap = 0, used = 0, len;
    bool first = true, had_metadata = false;
    int rc = scan_expect(s, '{');

    if (rc)
        return rc;
    while ((rc = scan_more(s, '}', &first)) == 1) {
        char *name = out->names + used;

        s->item = NULL;
        rc = scan_string(s, name, NAME_MAX_BYTES + 1, &len);
        if (rc)
            return rc;
        s->item = name;
        rc = scan_expect(s, ':');
        if (rc)
            return rc;
        if (!strcmp(name, "__metadata__")) {
            if (had_metadata)
                return scan_fail(s, "twice");
            had_metadata = true;
            rc = metadata(s);
            if (rc)
                return rc;
            continue;
        }
        rc = add_tensor(s, out, &cap);
        if (!rc)
            rc = tensor(s, &out->tensor[out->count]);
        if (rc)
            return rc;
        out->tensor[out->count++].name = name;
        used += len + 1;
    }
    s->item = NULL;
    return rc ? rc : scan_end(s);
}

static int by_offset(const void *a, const void *b)
{
    const struct tensor *x = a, *y = b;
    uint64_t x_end = x->offset + x->bytes, y_end = y->offset + y->bytes;

    if (x->offset != y->offset)
        return x->offset < y->offset ? -1 : 1;
    return (x_end > y_end) - (x_end < y_end);
}

/* The tensors, sorted by place, must tile [0, data_bytes).  Offsets become the file's. */
static int check_tiling(const struct scan *s, struct tensor_table *out, uint64_t data,
                        uint64_t data_bytes)
{
    uint64_t at = 0;
    size_t i;

    for (i = 1; i < out->count; i++)
        if (by_offset(&out->tensor[i - 1], &out->tensor[i]) > 0)
            break;
    if (i < out->count)
        qsort(out->tensor, out->count, sizeof(*out->tensor), by_offset);
    for (i = 0; i < out->count; i++) {
        struct tensor *t = &out->tensor[i];
        uint64_t end = t->offset + t->bytes;

        if (end > data_bytes)
            return fail(s->e, -EBADMSG, "%s:%.128s: ends at %ju of %ju bytes of data", s->file,
                        t->name, (uintmax_t)end, (uintmax_t)data_bytes);
        if (t->bytes && t->offset != at)
            return fail(s->e, -EBADMSG, "%s:%.128s: begins at %ju where the tensor before it "
                        "ends at %ju", s->file, t->name, (uintmax_t)t->offset, (uintmax_t)at);
        if (t->bytes)
            at = end;
        t->offset += data;
    }
    if (at != data_bytes)
        return fail(s->e, -EBADMSG, "%s: tensors fill %ju of %ju bytes of data", s->file,
                    (uintmax_t)at, (uintmax_t)data_bytes);
    return 0;
}

/* Seeded by the whole header, so that no header can be written whose names collide. */
static int check_names(const struct scan *s, const struct tensor_table *t)
{
    size_t cap = 16, i, k;
    uint64_t seed = XXH3_64bits(s->text, (size_t)(s->end - s->text));
    uint32_t *slot;

    while (cap < t->count * 2)
        cap *= 2;
    slot = calloc(cap, sizeof(*slot));
    if (!slot)
        return fail(s->e, -ENOMEM, "%s: no memory for %zu names", s->file, t->count);
    for (i = 0; i < t->count; i++) {
        const char *name = t->tensor[i].name;

        k = XXH3_64bits_withSeed(name, strlen(name), seed) & (cap - 1);
        for (; slot[k]; k = (k + 1) & (cap - 1))
            if (!strcmp(t->tensor[slot[k] - 1].name, name)) {
                free(slot);
                return fail(s->e, -EBADMSG, "%s:%.128s: twice in the header", s->file, name);
            }
        slot[k] = (uint32_t)(i + 1);
    }
    free(slot);
    return 0;
}

int safetensors_parse(struct tensor_table *out, const char *header, size_t n, uint64_t file_bytes,
                      const char *name, struct err *e)
{
    struct scan s = { .text = header, .at = header, .end = header + n, .file = name, .e = e };
    int rc;

    memset(out, 0, sizeof(*out));
    if (file_bytes < 8 || n > file_bytes - 8)
        return fail(e, -EBADMSG, "%s: the header claims %zu of %ju bytes", name, n,
                    (uintmax_t)file_bytes);
    if (n < 2 || header[0] != '{')
        return fail(e, -EBADMSG, "%s: the header (%zu bytes) does not begin with '{'", name, n);
    out->names = malloc(n);
    if (!out->names)
        return fail(e, -ENOMEM, "%s: no memory for a header of %zu bytes", name, n);
    rc = members(&s, out);
    if (!rc && !out->count)
        rc = fail(e, -EBADMSG, "%s: holds no tensors", name);
    if (!rc)
        rc = check_names(&s, out);
    if (!rc)
        rc = check_tiling(&s, out, 8 + n, file_bytes - 8 - n);
    if (rc)
        tensor_table_free(out);
    return rc;
}

void tensor_table_free(struct tensor_table *t)
{
    free(t->tensor);
    free(t->names);
    memset(t, 0, sizeof(*t));
}
