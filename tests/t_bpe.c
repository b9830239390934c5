/* bpe.c against the definition, word for word: find the lowest rank, leftmost, merge it,
 * begin again. */
#include "src/bpe.h"
#include "tests/tap.h"

enum { LETTERS = 4, MERGES = 40 };

struct random {
    uint64_t state;
};

static uint32_t draw(struct random *r, uint32_t below)
{
    r->state = r->state * 6364136223846793005 + 1442695040888963407;
    return (uint32_t)((r->state >> 33) % below);
}

/* Merges of tokens that are strings over the first letters.  The result of a pair is a new
 * token.  In `ordered` ones every rank comes after those of its halves. */
static void make(struct bpe *b, struct random *r, bool ordered)
{
    int32_t left[MERGES], right[MERGES], ids = 256;
    int i, j, n = 0;

    for (i = 0; i < 256; i++)
        b->byte[i] = i;
    bpe_open(b, MERGES);
    while (n < MERGES) {
        int32_t any = ids - 256 + LETTERS;

        left[n] = (int32_t)draw(r, (uint32_t)any);
        right[n] = (int32_t)draw(r, (uint32_t)any);
        left[n] += left[n] < LETTERS ? 'a' : 256 - LETTERS;
        right[n] += right[n] < LETTERS ? 'a' : 256 - LETTERS;
        for (j = 0; j < n; j++)
            if (left[j] == left[n] && right[j] == right[n])
                break;
        if (j == n) {
            n++;
            ids++;
        }
    }
    for (i = 0; i < n; i++) {
        int at = ordered ? i : (i * 17 + 5) % MERGES;

        bpe_add(b, left[at], right[at], 256 + at);
    }
    bpe_finish(b, (size_t)ids);
}

static size_t plain(const struct bpe *b, const char *piece, size_t n, int32_t *id)
{
    size_t i, best;

    for (i = 0; i < n; i++)
        id[i] = b->byte[(unsigned char)piece[i]];
    for (;;) {
        int32_t lowest = -1;

        for (i = best = 0; i + 1 < n; i++) {
            int32_t rank = pairs_get(&b->rank, id[i], id[i + 1]);

            if (rank >= 0 && (lowest < 0 || rank < lowest)) {
                lowest = rank;
                best = i;
            }
        }
        if (lowest < 0)
            return n;
        id[best] = b->result[lowest];
        memmove(id + best + 1, id + best + 2, (n - best - 2) * sizeof(*id));
        n--;
    }
}

static int differences(bool ordered, bool cache, int rounds, size_t longest)
{
    struct random r = { 7 };
    struct bpe_scratch s = { 0 };
    struct ids out = { 0 };
    int32_t *want = malloc(longest * sizeof(*want));
    char *piece = malloc(longest);
    int round, i, bad = 0;

    for (round = 0; round < rounds; round++) {
        struct bpe b;

        make(&b, &r, ordered);
        bad += b.ordered != ordered;
        bpe_scratch_free(&s);
        if (cache)
            bpe_scratch_cache(&s);
        for (i = 0; i < 50; i++) {
            size_t n = 1 + draw(&r, (uint32_t)longest), k, ids;
            uint32_t letters = 1 + draw(&r, LETTERS);

            for (k = 0; k < n; k++)
                piece[k] = (char)('a' + draw(&r, letters));
            ids = plain(&b, piece, n, want);
            out.n = 0;
            bad += bpe_encode(&b, &s, piece, n, &out) != 0;
            bad += out.n != ids || memcmp(out.id, want, ids * sizeof(*want));
        }
        bpe_close(&b);
    }
    bpe_scratch_free(&s);
    free(out.id);
    free(want);
    free(piece);
    return bad;
}

static void test_refusals(void)
{
    struct bpe b;

    ok(!bpe_open(&b, 2) && !bpe_add(&b, 1, 2, 3), "a merge");
    ok(bpe_add(&b, 1, 2, 4) == -EEXIST, "a second merge of the same pair is refused");
    bpe_close(&b);
}

int main(void)
{
    ok(!differences(true, false, 100, 12), "short pieces, trained merges");
    ok(!differences(true, true, 100, 6), "short pieces, seen before");
    ok(!differences(true, false, 20, 700), "long pieces, trained merges");
    ok(!differences(false, false, 100, 12), "short pieces, merges in any order");
    ok(!differences(false, true, 20, 700), "long pieces, merges in any order");
    test_refusals();
    return done();
}
