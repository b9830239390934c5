/* The routed experts of a batch, wave by wave: the host lists which token goes to which expert
 * and cuts the lists into tiles, one upload brings them, and grouped.cu does the rest. */
#include "cuda/gpu_internal.cuh"

#include <assert.h>

/* A run of experts whose pairs fit the scratch. */
struct wave {
    int experts, pairs;
    int first[MAX_EXPERTS + 1];         /* [experts + 1]: pairs of expert i start here */
    struct lists here, there;           /* in pinned memory, on the device */
};

size_t wave_bytes(const struct gpu *g)
{
    size_t experts = g->shape.experts, all = (size_t)g->c.batch * g->shape.topk;
    size_t tiles = experts + g->pairs / WIDE_TOKENS;

    return experts * sizeof(struct ffn) + g->pairs * (sizeof(int) + sizeof(float)) +
           all * sizeof(int) + tiles * sizeof(struct token_tile);
}

static struct lists lists_at(const struct gpu *g, const struct wave *w, uint8_t *at)
{
    struct lists l = {};

    l.ffn = (struct ffn *)at;
    l.token = (int *)(l.ffn + w->experts);
    l.weight = (float *)(l.token + w->pairs);
    l.of_token = (int *)(l.weight + w->pairs);
    l.tile = (struct token_tile *)(l.of_token + (size_t)g->tokens * g->shape.topk);
    return l;
}

/* The longest run of ids that fits; at least one does, since pairs >= batch. */
static void choose_wave(const struct gpu *g, struct wave *w, const uint16_t *id, int n,
                        const int *count)
{
    w->experts = w->pairs = 0;
    while (w->experts < n && w->pairs + count[id[w->experts]] <= g->pairs) {
        w->first[w->experts] = w->pairs;
        w->pairs += count[id[w->experts++]];
    }
    w->first[w->experts] = w->pairs;
}

static void list_pairs(const struct gpu *g, const struct wave *w, const uint16_t *id)
{
    const struct lists *l = &w->here;
    int topk = g->shape.topk, at[MAX_EXPERTS];

    for (int x = 0; x < g->shape.experts; x++)
        at[x] = -1;
    for (int i = 0; i < w->experts; i++) {
        int slot = gpu_seat_of(g, g->routed_layer, id[i]);

        assert(slot >= 0);
        at[id[i]] = w->first[i];
        l->ffn[i] = g->slot_ffn[slot];
    }
    for (int t = 0, i = 0; t < g->tokens; t++)
        for (int k = 0; k < topk; k++, i++) {
            int pair = at[g->route_id[i]];

            l->of_token[i] = pair;
            if (pair < 0)
                continue;
            l->token[pair] = t;
            l->weight[pair] = g->route_weight[i];
            at[g->route_id[i]]++;
        }
}

/* Whole tiles first, then what is left of experts with many tokens, then those with few: small
 * work is last, so that no multiprocessor ends long after the others. */
static void list_tiles(struct wave *w)
{
    struct lists *l = &w->here;
    struct token_tile *tile = l->tile;

    for (int i = 0; i < w->experts; i++)
        for (int at = w->first[i]; at + WIDE_TOKENS <= w->first[i + 1]; at += WIDE_TOKENS)
            *tile++ = { i, at, WIDE_TOKENS };
    for (int few = 0; few < 2; few++) {
        for (int i = 0; i < w->experts; i++) {
            int n = w->first[i + 1] - w->first[i], left = n % WIDE_TOKENS;

            if (left && (n <= NARROW_TOKENS) == few)
                *tile++ = { i, w->first[i + 1] - left, left };
        }
        (few ? l->narrow : l->wide) = (int)(tile - l->tile) - l->wide;
    }
}

static void upload_wave(struct gpu *g, struct wave *w)
{
    const struct token_tile *end = w->here.tile + w->here.wide + w->here.narrow;
    size_t bytes = (uint8_t *)end - (uint8_t *)w->here.ffn;

    w->there = lists_at(g, w, g->s.lists);
    w->there.wide = w->here.wide;
    w->there.narrow = w->here.narrow;
    queue_fetch(g, g->s.lists, w->here.ffn, bytes);
    TRY(g, cudaEventRecord(g->staged, g->stream));
}

void gpu_experts(struct gpu *g, const uint16_t *id, int n)
{
    int count[MAX_EXPERTS] = { 0 };
    struct wave w;

    if (!n)
        return;
    for (int i = 0; i < g->tokens * g->shape.topk; i++)
        count[g->route_id[i]]++;
    for (int first = 0; first < n; first += w.experts) {
        choose_wave(g, &w, id + first, n - first, count);
        if (!w.pairs)
            continue;
        w.here = lists_at(g, &w, gpu_staging(g));
        list_pairs(g, &w, id + first);
        list_tiles(&w);
        upload_wave(g, &w);
        queue_grouped(g, &w.there);
        queue_sum(g, &w.there);
    }
}
