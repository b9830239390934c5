#include "storage/extents.h"
#include "tests/tap.h"

#include <errno.h>
#include <stdlib.h>

/* Extents of the layouts that exist, and of random ones against a plain page map. */

enum { P = EXTENT_ALIGN };

static void layouts(void)
{
    /* W4A16 as the safetensors library writes it: three weights, far away three scales. */
    struct extent_part w4[9] = {
        { 2, 5000000, 1572864 }, { 2, 1000, 196608 }, { -1, 0, 0 },
        { 2, 6572864, 1572864 }, { 2, 197608, 196608 }, { -1, 0, 0 },
        { 2, 8145728, 1572864 }, { 2, 394216, 196608 }, { -1, 0, 0 },
    };
    struct extent_part plain[9] = {
        { 0, 8, 100 }, { -1, 0, 0 }, { -1, 0, 0 }, { 1, 8, 100 }, { -1, 0, 0 }, { -1, 0, 0 },
        { 0, 108, 100 }, { 3, 4, 0 }, { -1, 0, 0 },
    };
    struct extent_part none[1] = { { -1, 0, 0 } };
    struct extent_part huge[1] = { { 0, 0, (uint64_t)1 << 30 } };
    struct extent_part wrap[1] = { { 0, UINT64_MAX - 10, 10 } };
    struct extents x;
    struct err e;

    ok(!extents_plan(&x, w4, 9, &e) && x.count == 2, "W4A16 is two extents");
    ok(x.extent[0].offset == 0 && x.extent[0].need == 590824 && x.extent[0].bytes == 593920,
       "scales first: they lie first");
    ok(x.part_offset[1] == 1000 && x.part_offset[4] == 197608, "parts lie where they lay");
    ok(x.part_offset[0] == x.extent[1].slot_offset + 5000000 % P && x.part_bytes[2] == 0,
       "the second extent follows in the slot");
    ok(!extents_plan(&x, plain, 9, &e) && x.count == 2 && x.extent[1].shard == 1,
       "an expert across two shards");
    ok(x.extent[0].need == 208 && x.part_offset[6] == 108, "neighbours merge");
    ok(!extents_plan(&x, none, 1, &e) && x.count == 0 && x.slot_bytes == 0, "nothing to read");
    ok(extents_plan(&x, huge, 1, &e) == -EBADMSG, "an expert above 1 GiB: %s", e.text);
    ok(extents_plan(&x, wrap, 1, &e) == -EBADMSG, "an offset that would wrap: %s", e.text);
}

/* Every byte of every part is read exactly once, to the place that part_offset says. */
static bool agrees(const struct extents *x, const struct extent_part *part, int n)
{
    uint32_t at = 0;

    for (int i = 0; i < x->count; i++) {
        const struct extent *a = &x->extent[i];

        if (a->slot_offset != at || a->offset % P || a->bytes % P || !a->need ||
            a->need > a->bytes || a->bytes - a->need >= P)
            return false;
        at += a->bytes;
        for (int k = 0; k < i; k++)
            if (x->extent[k].shard == a->shard &&
                x->extent[k].offset + x->extent[k].bytes >= a->offset)
                return false;
    }
    for (int i = 0; i < n; i++) {
        bool found = part[i].shard < 0 || !part[i].bytes;

        for (int k = 0; k < x->count && !found; k++) {
            const struct extent *a = &x->extent[k];
            uint64_t in = part[i].offset - a->offset;

            found = a->shard == part[i].shard && part[i].offset >= a->offset &&
                    in + part[i].bytes <= a->need && x->part_offset[i] == a->slot_offset + in;
        }
        if (!found)
            return false;
    }
    return at == x->slot_bytes;
}

int main(void)
{
    int bad = 0;

    layouts();
    srandom(7);
    for (int k = 0; k < 20000; k++) {
        struct extent_part part[9];
        struct extents x;
        int n = (int)(random() % 10);

        for (int i = 0; i < n; i++)
            part[i] = (struct extent_part){ (int)(random() % 4) - 1,
                                            (uint64_t)(random() % 60000),
                                            (uint64_t)(random() % (k % 2 ? 9000 : 40000)) };
        bad += extents_plan(&x, part, n, NULL) || !agrees(&x, part, n);
    }
    ok(!bad, "20000 random layouts: every byte once, every part found (%d bad)", bad);
    return done();
}
