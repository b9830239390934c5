/* Random weights on which a deep model stays sane: every matrix maps a vector of length
 * sqrt(columns) to entries near its gain, nothing has a mean (a mean of the weights is one
 * direction that grows in every layer until all tokens are alike), and routers are as
 * undecided as real ones.  All from counters, so that threads may write any part. */
#include "tests/mkmodel.h"

#include <math.h>
#include <stdlib.h>

uint64_t random_key(uint64_t seed, const char *name)
{
    uint64_t key = random_at(seed, 0);

    for (; *name; name++)
        key = random_at(key ^ (uint8_t)*name, 0);
    return key;
}

/* x with normal(x) = p, by halving. */
static double quantile(double p)
{
    double low = -8, high = 8;

    for (int i = 0; i < 60; i++) {
        double mid = (low + high) / 2;

        if (erfc(-mid / sqrt(2)) / 2 < p)
            low = mid;
        else
            high = mid;
    }
    return low;
}

void table_normal(bf16 table[256], double deviation)
{
    double x[256], squares = 0;

    for (int i = 0; i < 256; i++) {
        x[i] = quantile((i + 0.5) / 256);
        squares += x[i] * x[i];
    }
    for (int i = 0; i < 256; i++)
        table[i] = f32_to_bf16((float)(x[i] * deviation / sqrt(squares / 256)));
}

void table_norm(bf16 table[256])
{
    for (int i = 0; i < 256; i++)
        table[i] = f32_to_bf16(0.8f + 0.4f * (float)i / 255);
}

/* Mean square of the nibbles -7..7 with 0 twice: 2 (1 + 4 + ... + 49) / 16 = 17.5. */
void table_int4_scale(bf16 table[256], double deviation)
{
    for (int i = 0; i < 256; i++)
        table[i] = f32_to_bf16((float)(deviation / sqrt(17.5) * (0.8 + 0.4 * i / 255)));
}

/* Mean square of the E2M1 values: 68.5 / 8.  Powers of two only, so the two around the
 * wanted scale share the groups. */
void table_fp4_scale(uint8_t table[256], double deviation)
{
    double wanted = deviation / sqrt(68.5 / 8);
    int low = (int)floor(log2(wanted));
    double square = wanted * wanted * exp2(-2 * low); /* 1 to 4 */

    for (int i = 0; i < 256; i++)
        table[i] = (uint8_t)(127 + low + (i < (square - 1) / 3 * 256));
}

/* Nibble 0 would be -8, which nothing balances; it becomes 8, the zero. */
static uint64_t int4_word(uint64_t r)
{
    uint64_t any = r | r >> 1 | r >> 2 | r >> 3;

    return r | (~any & 0x1111111111111111) << 3;
}

/* Both parts from the table of one normal distribution.  Rows are whole words, so a word
 * has one row and one neighbourhood; those are the same in every such tensor. */
static void near_word(const struct tensor *t, uint64_t word, bf16 to[8])
{
    const bf16 *table = t->table;
    uint64_t words = (uint64_t)t->dim[1] / 8, row = word / words, col = word % words;
    uint64_t own = random_at(t->key, word);
    uint64_t shared = random_at(t->near_key, row / NEIGHBOURS * words + col);
    float rest = sqrtf(1 - t->near * t->near);

    for (int i = 0; i < 8; i++)
        to[i] = f32_to_bf16(bf16_to_f32(table[own >> 8 * i & 255]) * rest +
                            bf16_to_f32(table[shared >> 8 * i & 255]) * t->near);
}

/* One word of random numbers makes eight elements of a table, or 16 nibbles: in bytes. */
static size_t word_bytes(enum fill fill)
{
    return fill == FILL_TABLE16 || fill == FILL_NEAR ? 16 : 8;
}

static void fill_words(const struct tensor *t, uint64_t word, size_t n, uint8_t *to)
{
    const uint8_t *narrow = t->table;
    const bf16 *wide = t->table;
    bf16 eight[8];

    for (size_t end = word + n; word < end; word++, to += word_bytes(t->fill)) {
        uint64_t r = random_at(t->key, word);

        switch (t->fill) {
        case FILL_TABLE16:
            for (int i = 0; i < 8; i++)
                eight[i] = wide[r >> 8 * i & 255];
            memcpy(to, eight, sizeof(eight));
            break;
        case FILL_NEAR:
            near_word(t, word, eight);
            memcpy(to, eight, sizeof(eight));
            break;
        case FILL_TABLE8:
            for (int i = 0; i < 8; i++)
                to[i] = narrow[r >> 8 * i & 255];
            break;
        case FILL_INT4:
            r = int4_word(r);
            memcpy(to, &r, sizeof(r));
            break;
        default:
            memcpy(to, &r, sizeof(r));
        }
    }
}

void weights_fill(const struct tensor *t, uint64_t from, size_t n, uint8_t *to)
{
    size_t step = word_bytes(t->fill);
    uint8_t part[16];

    if (t->fill == FILL_READY) {
        memcpy(to, (const uint8_t *)t->ready + from, n);
        return;
    }
    while (n) {
        size_t skip = from % step, take = n - n % step;

        /* A buffer or the tensor may end within a word. */
        if (skip || !take) {
            take = step - skip < n ? step - skip : n;
            fill_words(t, from / step, 1, part);
            memcpy(to, part + skip, take);
        } else {
            fill_words(t, from / step, take / step, to);
        }
        from += take;
        to += take;
        n -= take;
    }
}

/* --- routing ------------------------------------------------------------------- */

enum { TRIALS = 1000 };

static int descending(const void *a, const void *b)
{
    float x = *(const float *)a, y = *(const float *)b;

    return (x < y) - (x > y);
}

static double uniform(uint64_t r)
{
    return ((double)(r >> 11) + 0.5) / 9007199254740992.0;
}

float *router_simulate(const struct plan *p)
{
    int experts = p->experts, popular = experts / 4;
    float *all = malloc(sizeof(*all) * TRIALS * (size_t)experts), *scores = all;
    uint64_t key = random_key(p->seed, "simulated");

    for (int t = 0; scores && t < TRIALS; t++, scores += experts) {
        for (int i = 0; i < experts; i++) {
            uint64_t at = (uint64_t)(t * experts + i) * 2;
            double radius = sqrt(-2 * log(uniform(random_at(key, at))));
            double x = radius * cos(2 * M_PI * uniform(random_at(key, at + 1)));

            scores[i] = (float)(1 / (1 + exp(-ROUTER_DEVIATION * x)));
        }
        qsort(scores, (size_t)popular, sizeof(*scores), descending);
        qsort(scores + popular, (size_t)(experts - popular), sizeof(*scores), descending);
    }
    return all;
}

/* Share of the picks that the popular quarter takes when its scores are raised. */
static double popular_share(const float *scores, const struct plan *p, float raised)
{
    int popular = p->experts / 4, picks = 0;

    for (int t = 0; t < TRIALS; t++, scores += p->experts) {
        int a = 0, b = popular;

        for (int k = 0; k < p->topk; k++)
            if (a < popular && (b == p->experts || scores[a] + raised > scores[b]))
                a++;
            else
                b++;
        picks += a;
    }
    return (double)picks / TRIALS / p->topk;
}

void router_bias(float *bias, const float *scores, const struct plan *p, int layer)
{
    double along = p->layers > 2 ? (double)(layer - 1) / (p->layers - 2) : 0;
    double share = p->skew_first + (p->skew_last - p->skew_first) * along;
    float low = -1, high = 1; /* beyond them the bias decides alone */
    uint64_t key = random_key(p->seed, "popular") + (uint64_t)layer;

    for (int i = 0; i < 24; i++) {
        float mid = (low + high) / 2;

        if (popular_share(scores, p, mid) < share)
            low = mid;
        else
            high = mid;
    }
    /* Which quarter: each expert in turn with the chance that fills the quota exactly. */
    for (int i = 0, left = p->experts / 4; i < p->experts; i++) {
        bool chosen = uniform(random_at(key, (uint64_t)i)) * (p->experts - i) < left;

        bias[i] = low * (chosen ? 0.75f : -0.25f);
        left -= chosen;
    }
}
