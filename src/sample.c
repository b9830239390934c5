#include "src/sample.h"

#include <assert.h>
#include <errno.h>
#include <float.h>
#include <math.h>
#include <stdlib.h>

/* Order of the steps, which decides what a request means: penalties, bias and bans on the
 * logits; temperature; min-p; top-k; top-p over what those leave; one draw.  The vocabulary is
 * never sorted: the best k come out of a heap of k.  Which ids a grammar allows, and
 * stop strings, are left to the caller. */

enum { LANES = 16 };

struct sampler {
    int vocab;
    float *score;               /* [vocab]: logits after penalties, bias and bans */
    int32_t *best;              /* [vocab]: scratch of select_best() */
    uint32_t *count;            /* [vocab]: uses in the answer; all 0 between calls */
    uint8_t *prompted;          /* [vocab]: stands in the prompt; all 0 between calls */
};

/* Two finalisers of splitmix64 in a row: neighbouring positions and seeds share nothing. */
static uint64_t mix(uint64_t x)
{
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9;
    x = (x ^ x >> 27) * 0x94d049bb133111eb;
    return x ^ x >> 31;
}

double sampler_draw(uint64_t seed, uint64_t position)
{
    uint64_t h = mix(mix(seed + 0x9e3779b97f4a7c15) ^ mix(position + 0x632be59bd9b4e019));

    return (double)(h >> 11) * 0x1p-53;
}

static bool better(const float *score, int32_t a, int32_t b)
{
    return score[a] > score[b] || (score[a] == score[b] && a < b);
}

/* Restore the heap (worst at the root) below entry i. */
static void sift(int32_t *heap, int n, int i, const float *score)
{
    for (;;) {
        int worst = i;
        int32_t t = heap[i];

        for (int c = 2 * i + 1; c <= 2 * i + 2 && c < n; c++)
            if (better(score, heap[worst], heap[c]))
                worst = c;
        if (worst == i)
            return;
        heap[i] = heap[worst];
        heap[worst] = t;
        i = worst;
    }
}

/* The k best ids with a score of at least floor into s->best, best first; how many there
 * were.  One comparison for nearly every id, so about 50 us for 100,000. */
static int select_best(struct sampler *s, const float *score, float floor, int k)
{
    int32_t *heap = s->best;
    int n = 0;

    for (int32_t id = 0; id < s->vocab && k > 0; id++) {
        if (score[id] < floor)
            continue;
        if (n < k) {
            heap[n++] = id;
            for (int i = n / 2 - 1; n == k && i >= 0; i--)
                sift(heap, n, i, score);
        } else if (score[id] > score[heap[0]]) {
            heap[0] = id;
            sift(heap, n, 0, score);
        }
    }
    for (int i = n / 2 - 1; n < k && i >= 0; i--)
        sift(heap, n, i, score);
    for (int left = n - 1; left > 0; left--) {
        int32_t worst = heap[0];

        heap[0] = heap[left];
        heap[left] = worst;
        sift(heap, left, 0, score);
    }
    return n;
}

static void penalise(struct sampler *s, const struct sampling *p, const struct history *h)
{
    bool repeats = p->repetition_penalty != 1;

    if (!h || (!repeats && p->presence_penalty == 0 && p->frequency_penalty == 0))
        return;
    for (size_t i = 0; i < h->prompts; i++)
        s->prompted[h->prompt[i]] = 1;
    for (size_t i = 0; i < h->generateds; i++)
        s->count[h->generated[i]]++;
    for (int id = 0; id < s->vocab; id++) {
        float *x = &s->score[id];

        if (repeats && (s->count[id] || s->prompted[id]))
            *x = *x > 0 ? *x / p->repetition_penalty : *x * p->repetition_penalty;
        if (s->count[id])
            *x -= p->presence_penalty + p->frequency_penalty * (float)s->count[id];
    }
    memset(s->prompted, 0, (size_t)s->vocab * sizeof(*s->prompted));
    memset(s->count, 0, (size_t)s->vocab * sizeof(*s->count));
}

/* Penalties, bias and bans: the scores that the choice is made from. */
static void adjust(struct sampler *s, const struct sampling *p, const struct history *h,
                   const float *logits)
{
    memcpy(s->score, logits, (size_t)s->vocab * sizeof(*logits));
    penalise(s, p, h);
    for (int i = 0; i < p->biases; i++)
        s->score[p->bias[i].id] += p->bias[i].add;
    for (int i = 0; p->ban_eos && i < p->banned_count; i++)
        s->score[p->banned[i]] = -INFINITY;
    for (int id = 0; p->allowed && id < s->vocab; id++)
        if (!(p->allowed[id >> 6] >> (id & 63) & 1))
            s->score[id] = -INFINITY;
}

/* The lowest id with the highest value, or -1 where none is above minus infinity.  The maxima of
 * LANES columns are independent, so that the compiler makes vectors of them. */
static int32_t argmax(const float *x, int n)
{
    float lane[LANES], top = -INFINITY;
    int32_t i = 0, best = 0;

    for (int j = 0; j < LANES; j++)
        lane[j] = -INFINITY;
    for (; i + LANES <= n; i += LANES)
        for (int j = 0; j < LANES; j++)
            lane[j] = x[i + j] > lane[j] ? x[i + j] : lane[j];
    for (; i < n; i++)
        top = x[i] > top ? x[i] : top;
    for (int j = 0; j < LANES; j++)
        top = lane[j] > top ? lane[j] : top;
    if (top == -INFINITY)
        return -1;
    while (x[best] != top)
        best++;
    return best;
}

/* The first id whose logit is NaN or infinite upwards (downwards is a ban), or -1. */
static int32_t find_broken(const float *x, int n)
{
    int broken = 0, i = 0;

    for (int j = 0; j < n; j++)         /* without a way out, so that vectors can do it */
        broken |= !(x[j] < INFINITY);
    if (!broken)
        return -1;
    while (x[i] < INFINITY)
        i++;
    return i;
}

/* The logarithm of the sum of all exponentials. */
static double log_sum(const float *x, int n, float top)
{
    double sum = 0;

    for (int i = 0; i < n; i++)
        sum += exp((double)x[i] - top);
    return top + log(sum);
}

/* How many of the n best ids top-p keeps, or 0 where their share of `total` is below it. */
static int nucleus(const struct sampler *s, int n, float top, double t, double wanted,
                   double *mass)
{
    *mass = 0;
    for (int i = 0; i < n; i++) {
        *mass += exp(((double)s->score[s->best[i]] - top) / t);
        if (*mass >= wanted)
            return i + 1;
    }
    return 0;
}

/* From the n ids of s->best, whose weights sum to mass. */
static int32_t draw_best(const struct sampler *s, int n, float top, double t, double mass,
                         double u)
{
    double left = u * mass;

    for (int i = 0; i < n - 1; i++) {
        left -= exp(((double)s->score[s->best[i]] - top) / t);
        if (left < 0)
            return s->best[i];
    }
    return s->best[n - 1];
}

/* From every id at or above floor, without ordering them. */
static int32_t draw_all(const struct sampler *s, float floor, float top, double t, double mass,
                        double u)
{
    double left = u * mass;
    int32_t last = -1;

    for (int32_t id = 0; id < s->vocab; id++) {
        double w = s->score[id] < floor ? 0 : exp(((double)s->score[id] - top) / t);

        if (w == 0)
            continue;
        last = id;
        left -= w;
        if (left < 0)
            break;
    }
    return last;
}

static int32_t draw(struct sampler *s, const struct sampling *p, int32_t greedy, double u)
{
    double t = p->temperature, mass = 0;
    float top = s->score[greedy];
    float floor = p->min_p > 0 ? (float)(top + t * log(p->min_p)) : -FLT_MAX;
    int n, kept, k = p->top_k;

    if (floor > top)
        floor = top;
    if (k > 0 && k < s->vocab) {
        n = select_best(s, s->score, floor, k);
        kept = nucleus(s, n, top, t, INFINITY, &mass);
        if (p->top_p < 1)
            kept = nucleus(s, n, top, t, p->top_p * mass, &mass);
        return draw_best(s, kept ? kept : n, top, t, mass, u);
    }
    for (int id = 0; id < s->vocab; id++)
        if (s->score[id] >= floor)
            mass += exp(((double)s->score[id] - top) / t);
    if (p->top_p >= 1)
        return draw_all(s, floor, top, t, mass, u);

    /* Few tokens hold nearly all of the mass, so ask for few first. */
    for (k = 64;; k = k > s->vocab / 8 ? s->vocab : k * 8) {
        double part;

        n = select_best(s, s->score, floor, k);
        kept = nucleus(s, n, top, t, p->top_p * mass, &part);
        if (kept || n < k || k >= s->vocab)
            return draw_best(s, kept ? kept : n, top, t, part, u);
    }
}

int sampler_next(struct sampler *s, const struct sampling *p, const struct history *h,
                 const float *logits, uint64_t position, struct sampled *out,
                 struct alternative *alt, int alternatives, struct err *e)
{
    int32_t top = argmax(logits, s->vocab), id;
    int32_t broken = find_broken(logits, s->vocab);
    double norm;

    assert(alternatives <= s->vocab);
    if (broken >= 0)
        return fail(e, -EDOM, "the logit of token %d is not a finite number", broken);
    if (top < 0)
        return fail(e, -ENODATA, "no token is left to choose from");
    norm = alternatives == SAMPLE_NO_LOGPROB ? NAN : log_sum(logits, s->vocab, logits[top]);
    for (int i = 0, n = alternatives > 0 ? select_best(s, logits, -INFINITY, alternatives) : 0;
         i < n; i++)
        alt[i] = (struct alternative){ s->best[i], (float)(logits[s->best[i]] - norm) };

    adjust(s, p, h, logits);
    id = argmax(s->score, s->vocab);
    if (id < 0)
        return fail(e, -ENODATA, "no token is left to choose from");
    if (p->temperature > 0)
        id = draw(s, p, id, sampler_draw(p->seed, position));
    *out = (struct sampled){ id, (float)(logits[id] - norm) };
    return 0;
}

int sampler_open(struct sampler **out, int vocab, struct err *e)
{
    size_t n = (size_t)vocab;
    struct sampler *s = calloc(1, sizeof(*s));

    assert(vocab > 0);
    if (s) {
        s->vocab = vocab;
        s->score = calloc(n, sizeof(*s->score));
        s->best = calloc(n, sizeof(*s->best));
        s->count = calloc(n, sizeof(*s->count));
        s->prompted = calloc(n, sizeof(*s->prompted));
    }
    if (!s || !s->score || !s->best || !s->count || !s->prompted) {
        sampler_close(s);
        return fail(e, -ENOMEM, "no memory for sampling over %d tokens", vocab);
    }
    *out = s;
    return 0;
}

void sampler_close(struct sampler *s)
{
    if (!s)
        return;
    free(s->score);
    free(s->best);
    free(s->count);
    free(s->prompted);
    free(s);
}
