/* model.safetensors.index.json.  It only says where to look: what a shard holds is told by
 * its own header, and checkpoint.c compares the two. */
#include "storage/index.h"

#include "storage/scan.h"

#include <errno.h>

enum { NAME_CAP = 513, SHARD_CAP = 256 };

static int weight_map(struct index_summary *out, struct scan *s, index_entry_fn each, void *arg)
{
    char tensor[NAME_CAP], shard[SHARD_CAP];
    bool first = true;
    int rc = scan_expect(s, '{');

    if (rc)
        return rc;
    while ((rc = scan_more(s, '}', &first)) == 1) {
        s->item = NULL;
        rc = scan_string(s, tensor, sizeof(tensor), NULL);
        if (rc)
            return rc;
        s->item = tensor;
        rc = scan_expect(s, ':');
        if (!rc)
            rc = scan_string(s, shard, sizeof(shard), NULL);
        if (rc)
            return rc;
        if (!shard[0] || shard[0] == '.' || strchr(shard, '/'))
            return scan_fail(s, "its shard \"%s\" is not a plain file name", shard);
        rc = each(arg, tensor, shard, s->e);
        if (rc)
            return rc;
        out->entries++;
    }
    s->item = NULL;
    return rc;
}

/* Other tools write total_size as they like: only an integer is looked at. */
static int metadata(struct index_summary *out, struct scan *s)
{
    char key[NAME_CAP];
    bool first = true;
    int rc;

    if (scan_peek(s) != '{')
        return scan_skip(s);
    s->at++;
    while ((rc = scan_more(s, '}', &first)) == 1) {
        struct scan value;

        rc = scan_string(s, key, sizeof(key), NULL);
        if (!rc)
            rc = scan_expect(s, ':');
        if (rc)
            return rc;
        if (!strcmp(key, "total_size")) {
            value = *s;
            value.e = NULL;
            out->has_total = !scan_u64(&value, &out->total_bytes);
        }
        rc = scan_skip(s);
        if (rc)
            return rc;
    }
    return rc;
}

int index_read(struct index_summary *out, const char *text, size_t n, const char *name,
               index_entry_fn each, void *arg, struct err *e)
{
    struct scan s = { .text = text, .at = text, .end = text + n, .file = name, .e = e };
    bool first = true, had_map = false;
    char key[NAME_CAP];
    int rc = scan_expect(&s, '{');

    memset(out, 0, sizeof(*out));
    if (rc)
        return rc;
    while ((rc = scan_more(&s, '}', &first)) == 1) {
        rc = scan_string(&s, key, sizeof(key), NULL);
        if (!rc)
            rc = scan_expect(&s, ':');
        if (rc)
            return rc;
        if (!strcmp(key, "weight_map") && had_map)
            return scan_fail(&s, "weight_map twice");
        if (!strcmp(key, "weight_map")) {
            had_map = true;
            rc = weight_map(out, &s, each, arg);
        } else if (!strcmp(key, "metadata")) {
            rc = metadata(out, &s);
        } else {
            rc = scan_skip(&s);
        }
        if (rc)
            return rc;
    }
    if (rc)
        return rc;
    if (!had_map || !out->entries)
        return scan_fail(&s, "no weight_map");
    scan_peek(&s);
    return scan_end(&s);
}
