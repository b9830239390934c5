/* Any bytes as a file of statistics of two layers of four experts.  A checksum that is right
 * by design, so that the values behind it are reached too: a refused input changes nothing, and
 * what is taken is written again in the same bytes. */
#include "storage/popularity.h"

#include <assert.h>
#include <stdlib.h>
#include <xxhash.h>

enum { LAYERS = 2, EXPERTS = 4 };

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check(const uint8_t *bytes, size_t n)
{
    uint8_t again[24 + LAYERS * EXPERTS * 8 + 8];
    struct popularity p;
    struct err e;

    if (popularity_open(&p, LAYERS, EXPERTS, 0x3736353433323130, &e))
        return;
    if (!popularity_read(&p, bytes, n, &e)) {
        popularity_write(&p, again);
        assert(n == sizeof(again) && !memcmp(again, bytes, n));
        for (int i = 0; i < LAYERS; i++)
            for (int k = 0; k < EXPERTS; k++)
                assert(policy_score(&p.layer[i], k) >= 0 && policy_score(&p.layer[i], k) < 2.1f);
    } else {
        for (int i = 0; i < LAYERS * EXPERTS; i++)
            assert(p.use[i].recent == 0 && p.use[i].lasting == 0);
    }
    popularity_close(&p);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    uint8_t *summed = malloc(size + 1);
    uint64_t sum;

    check(data, size);
    if (summed && size > 8) {
        memcpy(summed, data, size);
        sum = XXH3_64bits(summed, size - 8);
        memcpy(summed + size - 8, &sum, 8);
        check(summed, size);
    }
    free(summed);
    return 0;
}
