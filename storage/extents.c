#include "storage/extents.h"

#include <assert.h>
#include <errno.h>

/* Merging works on whole pages: two parts whose pages touch or overlap become one read.  A
 * gap of a page or more stays a gap, because W4A16 keeps weights and scales megabytes apart. */

enum { SLOT_LIMIT = 1 << 30 };

static uint64_t page_below(uint64_t n)
{
    return n / EXTENT_ALIGN * EXTENT_ALIGN;
}

static bool absent(const struct extent_part *p)
{
    return p->shard < 0 || !p->bytes;
}

/* The indices of the parts that exist, by place.  At most nine: insertion is enough. */
static int sort_parts(int order[EXTENT_PARTS], const struct extent_part *part, int n)
{
    int count = 0;

    for (int i = 0; i < n; i++) {
        int at = count;

        if (absent(&part[i]))
            continue;
        while (at > 0) {
            const struct extent_part *before = &part[order[at - 1]];

            if (before->shard < part[i].shard ||
                (before->shard == part[i].shard && before->offset <= part[i].offset))
                break;
            order[at] = order[at - 1];
            at--;
        }
        order[at] = i;
        count++;
    }
    return count;
}

/* Make *x cover p too, or answer false where they do not touch. */
static bool merge(struct extent *x, const struct extent_part *p)
{
    uint64_t end = p->offset + p->bytes;

    if (x->shard != p->shard || page_below(p->offset) > x->offset + x->bytes)
        return false;
    if (end > x->offset + x->need) {
        x->need = (uint32_t)(end - x->offset);
        x->bytes = (uint32_t)align_up(x->need, EXTENT_ALIGN);
    }
    return true;
}

int extents_plan(struct extents *out, const struct extent_part *part, int n, struct err *e)
{
    int order[EXTENT_PARTS], count;
    size_t total = 0;
    uint64_t at = 0;

    assert(n >= 0 && n <= EXTENT_PARTS);
    memset(out, 0, sizeof(*out));
    out->parts = n;
    for (int i = 0; i < n; i++) {
        if (!absent(&part[i]))
            total = add_sat(total, add_sat(part[i].bytes, (size_t)2 * EXTENT_ALIGN));
        if (!absent(&part[i]) && part[i].offset > UINT64_MAX - 2 * (uint64_t)SLOT_LIMIT)
            return fail(e, -EBADMSG, "an expert's part %d lies at offset %ju", i,
                        (uintmax_t)part[i].offset);
    }
    if (total > SLOT_LIMIT)
        return fail(e, -EBADMSG, "one expert takes %zu bytes, more than 1 GiB", total);
    count = sort_parts(order, part, n);
    for (int i = 0; i < count; i++) {
        const struct extent_part *p = &part[order[i]];
        struct extent *x = &out->extent[out->count];

        if (out->count && merge(x - 1, p))
            continue;
        x->shard = p->shard;
        x->offset = page_below(p->offset);
        x->need = (uint32_t)(p->offset - x->offset + p->bytes);
        x->bytes = (uint32_t)align_up(x->need, EXTENT_ALIGN);
        out->count++;
    }
    for (int i = 0; i < out->count; i++) {
        out->extent[i].slot_offset = (uint32_t)at;
        at += out->extent[i].bytes;
    }
    out->slot_bytes = (uint32_t)at;
    for (int i = 0; i < count; i++) {
        const struct extent_part *p = &part[order[i]];
        const struct extent *x = out->extent;

        while (x->shard != p->shard || p->offset >= x->offset + x->bytes)
            x++;
        out->part_offset[order[i]] = (uint32_t)(x->slot_offset + (p->offset - x->offset));
        out->part_bytes[order[i]] = (uint32_t)p->bytes;
    }
    return 0;
}
