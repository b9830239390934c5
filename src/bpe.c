/* Three ways to the same ids, by what a piece is like: a cache for short pieces seen before
 * (text repeats its words), passes over the whole piece for short ones and as long as each
 * pass shrinks it well (a million equal letters halve every time), and a heap of pairs for
 * what remains of long ones. */
#include "src/bpe.h"

#include <sys/types.h>

#define NO_RANK UINT32_MAX

enum {
    PASSES_ALWAYS = 64,         /* tokens up to which passes beat the heap whatever they merge */
    PASSES_WHILE = 8,           /* longer ones: while a pass removes a token of so many */
    CACHE_BITS = 12,
    CACHED_BYTES = 23,
    CACHED_IDS = 9
};

/* One line of the processor's cache.  The last byte of the key is the length of the piece,
 * never 0 in a used place. */
struct bpe_cached {
    uint64_t key[3];
    int32_t n;
    int32_t id[CACHED_IDS];
};

int bpe_open(struct bpe *b, size_t merges)
{
    b->merges = 0;
    b->result = malloc((merges + 1) * sizeof(*b->result));
    return b->result ? pairs_open(&b->rank, merges) : -ENOMEM;
}

void bpe_close(struct bpe *b)
{
    free(b->result);
    b->result = NULL;
    pairs_close(&b->rank);
}

int bpe_add(struct bpe *b, int32_t left, int32_t right, int32_t result)
{
    if (pairs_set(&b->rank, left, right, (int32_t)b->merges) >= 0)
        return -EEXIST;
    b->result[b->merges++] = result;
    return 0;
}

int bpe_finish(struct bpe *b, size_t vocab)
{
    int32_t *last = malloc(vocab * sizeof(*last));      /* the last merge that makes an id */
    size_t i;

    if (!last)
        return -ENOMEM;
    for (i = 0; i < vocab; i++)
        last[i] = -1;
    for (i = 0; i < b->merges; i++)
        last[b->result[i]] = (int32_t)i;
    b->ordered = true;
    for (i = 0; i <= b->rank.mask; i++) {
        const struct pair *p = &b->rank.place[i];

        if (p->value >= 0 && (last[p->key >> 32] >= p->value ||
                              last[p->key & UINT32_MAX] >= p->value))
            b->ordered = false;
    }
    free(last);
    return 0;
}

void bpe_scratch_free(struct bpe_scratch *s)
{
    free(s->id);
    free(s->rank);
    free(s->next);
    free(s->previous);
    free(s->heap);
    free(s->cache);
    *s = (struct bpe_scratch){ 0 };
}

void bpe_scratch_cache(struct bpe_scratch *s)
{
    if (!s->cache)
        s->cache = calloc((size_t)1 << CACHE_BITS, sizeof(*s->cache));
}

static int reserve(struct bpe_scratch *s, size_t n)
{
    struct bpe_cached *cache = s->cache;

    if (n <= s->cap)
        return 0;
    n = n < 1024 ? 1024 : n;
    s->cache = NULL;
    bpe_scratch_free(s);
    s->cache = cache;
    s->id = malloc(n * sizeof(*s->id));
    s->rank = malloc(n * sizeof(*s->rank));
    if (!s->id || !s->rank)
        return -ENOMEM;
    s->cap = n;
    return 0;
}

/* The heap's arrays are three times the rest: only a long piece that passes do not finish
 * pays for them. */
static int reserve_heap(struct bpe_scratch *s)
{
    if (s->heap)
        return 0;
    free(s->next);
    free(s->previous);
    s->next = malloc(s->cap * sizeof(*s->next));
    s->previous = malloc(s->cap * sizeof(*s->previous));
    s->heap = malloc(3 * s->cap * sizeof(*s->heap));
    return s->next && s->previous && s->heap ? 0 : -ENOMEM;
}

/* NO_RANK where the pair has no merge: -1 is its largest value. */
static inline uint32_t rank_of(const struct bpe *b, int32_t left, int32_t right)
{
    return (uint32_t)pairs_get(&b->rank, left, right);
}

/* Merge what has the lowest rank: every place from the left if the merges are ordered, for
 * then no new pair can come before the other places; else the first place alone.  Returns
 * how many tokens are left, n where nothing was merged. */
static size_t merge_pass(const struct bpe *b, int32_t *id, uint32_t *rank, size_t n)
{
    uint32_t lowest = NO_RANK;
    bool fresh = false, was_fresh;      /* whether the token just written is a new one */
    bool more = true;
    size_t i, j = 0;

    for (i = 0; i + 1 < n; i++)
        lowest = rank[i] < lowest ? rank[i] : lowest;
    if (lowest == NO_RANK)
        return n;
    for (i = 0; i < n; j++) {
        uint32_t before = i ? rank[i - 1] : NO_RANK;

        was_fresh = fresh;
        fresh = more && i + 1 < n && rank[i] == lowest;
        if (fresh) {
            id[j] = b->result[lowest];
            i += 2;
            more = b->ordered;
        } else {
            id[j] = id[i++];
        }
        if (j)
            rank[j - 1] = fresh || was_fresh ? rank_of(b, id[j - 1], id[j]) : before;
    }
    return j;
}

/* Four children a node: half the levels, and they share a line of the processor's cache. */
static void sift_down(uint64_t *heap, size_t n, size_t i, uint64_t entry)
{
    size_t child, best, c;

    while ((child = 4 * i + 1) < n) {
        best = child;
        for (c = child + 1; c < child + 4 && c < n; c++)
            best = heap[c] < heap[best] ? c : best;
        if (entry <= heap[best])
            break;
        heap[i] = heap[best];
        i = best;
    }
    heap[i] = entry;
}

static void heap_push(uint64_t *heap, size_t *n, uint64_t entry)
{
    size_t i = (*n)++;

    while (i && entry < heap[(i - 1) / 4]) {
        heap[i] = heap[(i - 1) / 4];
        i = (i - 1) / 4;
    }
    heap[i] = entry;
}

/* The pair that begins at `at` has changed.  At most two such changes follow each merge, and
 * n - 1 pairs are there at first: the heap never holds 3 n. */
static void changed(const struct bpe *b, struct bpe_scratch *s, size_t *heaped, uint32_t at,
                    uint32_t end)
{
    uint32_t right = s->next[at];

    s->rank[at] = right == end ? NO_RANK : rank_of(b, s->id[at], s->id[right]);
    if (s->rank[at] != NO_RANK)
        heap_push(s->heap, heaped, (uint64_t)s->rank[at] << 32 | at);
}

/* Merge all there is in the n tokens of the scratch; returns how many are left.  An entry of
 * the heap is (rank, place); it is stale where the place has another rank by now. */
static size_t merge_heap(const struct bpe *b, struct bpe_scratch *s, size_t n)
{
    uint32_t i, end = (uint32_t)n;
    size_t heaped = 0, left = 0;

    for (i = 0; i < end; i++) {
        s->next[i] = i + 1;
        s->previous[i] = i - 1;
        if (i + 1 == end)
            s->rank[i] = NO_RANK;
        if (s->rank[i] != NO_RANK)
            heap_push(s->heap, &heaped, (uint64_t)s->rank[i] << 32 | i);
    }
    while (heaped) {
        uint64_t top = s->heap[0];
        uint32_t at = (uint32_t)top, right;

        if (--heaped)
            sift_down(s->heap, heaped, 0, s->heap[heaped]);
        if (s->rank[at] != top >> 32)
            continue;
        right = s->next[at];
        s->id[at] = b->result[s->rank[at]];
        s->next[at] = s->next[right];
        if (s->next[at] != end)
            s->previous[s->next[at]] = at;
        s->rank[right] = NO_RANK;
        changed(b, s, &heaped, at, end);
        if (at)
            changed(b, s, &heaped, s->previous[at], end);
    }
    for (i = 0; i < end; i = s->next[i])
        s->id[left++] = s->id[i];
    return left;
}

/* The ids of a piece into s->id; how many, or a negative errno. */
static ssize_t merge(const struct bpe *b, struct bpe_scratch *s, const char *piece, size_t n)
{
    size_t i, left;

    if (n >= UINT32_MAX)
        return -E2BIG;
    if (reserve(s, n))
        return -ENOMEM;
    for (i = 0; i < n; i++) {
        s->id[i] = b->byte[(unsigned char)piece[i]];
        if (i)
            s->rank[i - 1] = rank_of(b, s->id[i - 1], s->id[i]);
    }
    for (;; n = left) {
        left = merge_pass(b, s->id, s->rank, n);
        if (left == n)
            return (ssize_t)n;
        if (left > PASSES_ALWAYS && n - left < n / PASSES_WHILE)
            break;
    }
    if (reserve_heap(s))
        return -ENOMEM;
    return (ssize_t)merge_heap(b, s, left);
}

static int append(struct ids *out, const int32_t *id, size_t n)
{
    size_t i;
    int rc = 0;

    for (i = 0; i < n && !rc; i++)
        rc = ids_push(out, id[i]);
    return rc;
}

int bpe_encode(const struct bpe *b, struct bpe_scratch *s, const char *piece, size_t n,
               struct ids *out)
{
    struct bpe_cached *cached = NULL;
    uint64_t key[3] = { 0 };
    ssize_t ids;

    if (n == 1)
        return ids_push(out, b->byte[(unsigned char)piece[0]]);
    if (s->cache && n <= CACHED_BYTES) {
        uint64_t hash;

        memcpy(key, piece, n);
        key[2] |= (uint64_t)n << 56;
        hash = (key[0] ^ key[1] * 0xc2b2ae3d27d4eb4f ^ key[2] * 0x165667b19e3779f9) *
               0x9e3779b97f4a7c15;
        cached = &s->cache[hash >> (64 - CACHE_BITS)];
        if (cached->key[0] == key[0] && cached->key[1] == key[1] && cached->key[2] == key[2])
            return append(out, cached->id, (size_t)cached->n);
    }
    ids = merge(b, s, piece, n);
    if (ids < 0)
        return (int)ids;
    if (cached && ids <= CACHED_IDS) {
        memcpy(cached->key, key, sizeof(key));
        cached->n = (int32_t)ids;
        memcpy(cached->id, s->id, (size_t)ids * sizeof(*s->id));
    }
    return append(out, s->id, (size_t)ids);
}
