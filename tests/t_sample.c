#include "src/sample.h"
#include "tests/tap.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>

/* The sampler against what can be computed by hand, and against frequencies. */

enum { VOCAB = 1000, DRAWS = 20000 };

static const struct sampling GREEDY = { .top_p = 1, .repetition_penalty = 1 };
static const struct sampling PLAIN = { .temperature = 1, .top_p = 1, .repetition_penalty = 1 };

static int32_t pick(struct sampler *s, const struct sampling *p, const float *logits, uint64_t pos)
{
    struct sampled out = { -1, 0 };
    struct err e;

    return sampler_next(s, p, NULL, logits, pos, &out, NULL, 0, &e) ? -1 : out.id;
}

/* How often each of VOCAB ids comes in DRAWS positions. */
static void draw_many(int *count, struct sampler *s, const struct sampling *p, const float *logits)
{
    memset(count, 0, VOCAB * sizeof(*count));
    for (int i = 0; i < DRAWS; i++) {
        int32_t id = pick(s, p, logits, (uint64_t)i);

        if (id >= 0)
            count[id]++;
    }
}

static int distinct(const int *count)
{
    int n = 0;

    for (int i = 0; i < VOCAB; i++)
        n += count[i] > 0;
    return n;
}

static void test_greedy(struct sampler *s, float *logits)
{
    struct sampling p = GREEDY;
    struct alternative alt[5];
    struct sampled out;
    struct err e;
    double sum = 0;

    for (int i = 0; i < VOCAB; i++)
        logits[i] = (float)(i * 7919 % 997) / 100;
    logits[400] = logits[600] = 12;
    for (int i = 0; i < VOCAB; i++)
        sum += exp(logits[i]);
    ok(!sampler_next(s, &p, NULL, logits, 0, &out, alt, 5, &e) && out.id == 400,
       "greedy: the lowest id wins a tie");
    ok(fabs(out.logprob - (12 - log(sum))) < 1e-5, "log-probability of the raw distribution");
    ok(alt[0].id == 400 && alt[1].id == 600 && alt[0].logprob == out.logprob,
       "alternatives: best first, ties by id");
    ok(alt[2].logprob >= alt[3].logprob && alt[3].logprob >= alt[4].logprob &&
       logits[alt[2].id] == 9.96f, "alternatives: in order");
    p = PLAIN;
    p.temperature = 1e-38f;
    ok(pick(s, &p, logits, 1) == 400 || pick(s, &p, logits, 1) == 600,
       "a tiny temperature is the greedy limit");
    p = PLAIN;
    p.top_k = 1;
    p.seed = 5;
    ok(pick(s, &p, logits, 3) == 400, "top_k 1 is greedy");
}

static void test_shares(struct sampler *s, float *logits)
{
    struct sampling p = PLAIN;
    int count[VOCAB];
    double share;

    for (int i = 0; i < VOCAB; i++)
        logits[i] = -30;
    logits[10] = logf(0.5f);
    logits[20] = logf(0.3f);
    logits[30] = logf(0.2f);
    draw_many(count, s, &p, logits);
    share = (double)count[10] / DRAWS;
    ok(fabs(share - 0.5) < 0.015, "temperature 1: a share of 0.5 is %.4f", share);
    share = (double)count[30] / DRAWS;
    ok(fabs(share - 0.2) < 0.015, "temperature 1: a share of 0.2 is %.4f", share);
    p.temperature = 0.5f;
    draw_many(count, s, &p, logits);
    share = (double)count[10] / DRAWS;
    ok(fabs(share - 0.25 / 0.38) < 0.015, "temperature 0.5 squares: %.4f", share);
    p = PLAIN;
    p.top_p = 0.7f;
    draw_many(count, s, &p, logits);
    ok(distinct(count) == 2 && count[10] && count[20], "top_p 0.7 keeps 0.5 and 0.3");
    share = (double)count[10] / DRAWS;
    ok(fabs(share - 0.625) < 0.015, "and shares the mass anew: %.4f", share);
    p = PLAIN;
    p.min_p = 0.5f;
    draw_many(count, s, &p, logits);
    ok(distinct(count) == 2 && !count[30], "min_p 0.5 drops what is under half of the best");
    p = PLAIN;
    p.top_k = 2;
    draw_many(count, s, &p, logits);
    ok(distinct(count) == 2 && !count[30], "top_k 2 keeps two");
    p.top_p = 0.55f;
    draw_many(count, s, &p, logits);
    ok(count[10] == DRAWS, "top_p counts the mass that top_k leaves: 0.5 of 0.8");
    p = PLAIN;
    p.top_p = 1e-9f;
    draw_many(count, s, &p, logits);
    ok(count[10] == DRAWS, "the smallest top_p keeps the best one");
}

static void test_flat(struct sampler *s, float *logits)
{
    struct sampling p = PLAIN;
    int count[VOCAB], n;

    for (int i = 0; i < VOCAB; i++)
        logits[i] = 1;
    p.top_p = 0.5f;
    draw_many(count, s, &p, logits);
    n = distinct(count);
    ok(n >= 495 && n <= 501 && !count[501], "top_p 0.5 of a flat row keeps its first half: %d", n);
    p = PLAIN;
    draw_many(count, s, &p, logits);
    ok(distinct(count) == VOCAB, "a flat row: every id comes");
}

static void test_seed(struct sampler *s, float *logits)
{
    struct sampling a = PLAIN, b = PLAIN;
    int same = 0, equal = 0;

    a.seed = (1ull << 53) + 1;
    b.seed = (1ull << 53) + 2;
    for (uint64_t i = 0; i < 100; i++) {
        same += pick(s, &a, logits, i) == pick(s, &a, logits, i);
        equal += pick(s, &a, logits, i) == pick(s, &b, logits, i);
    }
    ok(same == 100, "the same seed and position: the same token");
    ok(equal < 10, "seeds that differ in one low bit of 64 differ: %d of 100 equal", equal);
}

static void test_adjust(struct sampler *s, float *logits)
{
    static const struct logit_bias bias[] = { { 7, 100 }, { 3, -100 } };
    static const int32_t prompt[] = { 5 }, generated[] = { 6, 6, 6 }, eos[] = { 9 };
    struct history h = { prompt, 1, generated, 3 };
    struct sampling p = GREEDY;
    struct sampled out;
    struct err e;

    for (int i = 0; i < VOCAB; i++)
        logits[i] = -5;
    logits[3] = 4;
    p.bias = bias;
    p.biases = 2;
    ok(pick(s, &p, logits, 0) == 7, "a bias of +100 forces, one of -100 bans");
    logits[9] = 10;
    p = GREEDY;
    p.banned = eos;
    p.banned_count = 1;
    ok(pick(s, &p, logits, 0) == 9, "banned ids are used only with ban_eos");
    p.ban_eos = true;
    ok(pick(s, &p, logits, 0) == 3, "ban_eos bans them");
    logits[5] = 10;
    logits[9] = 6;
    p = GREEDY;
    p.repetition_penalty = 2;
    ok(!sampler_next(s, &p, &h, logits, 0, &out, NULL, 0, &e) && out.id == 9,
       "repetition_penalty counts the prompt: 10 / 2 under 6");
    logits[6] = 10.5f;
    p = GREEDY;
    p.frequency_penalty = 0.5f;
    ok(!sampler_next(s, &p, &h, logits, 0, &out, NULL, 0, &e) && out.id == 5,
       "frequency_penalty: 10.5 - 3 * 0.5 under 10, the prompt not counted");
    p = GREEDY;
    p.presence_penalty = 0.4f;
    ok(!sampler_next(s, &p, &h, logits, 0, &out, NULL, 0, &e) && out.id == 6,
       "presence_penalty counts once: 10.5 - 0.4 above 10");
}

static void test_faults(struct sampler *s, float *logits)
{
    struct sampling p = PLAIN;
    struct sampled out = { -1, 0 };
    struct err e;

    logits[500] = NAN;
    ok(sampler_next(s, &p, NULL, logits, 0, &out, NULL, 0, &e) == -EDOM && out.id == -1 &&
       strstr(e.text, "500"), "NaN: -EDOM, no token, the id in the words");
    logits[500] = INFINITY;
    ok(sampler_next(s, &p, NULL, logits, 0, &out, NULL, 0, &e) == -EDOM, "infinity: -EDOM");
    for (int i = 0; i < VOCAB; i++)
        logits[i] = -INFINITY;
    ok(sampler_next(s, &p, NULL, logits, 0, &out, NULL, 0, &e) == -ENODATA,
       "nothing left: -ENODATA");
    logits[VOCAB - 1] = -3;
    ok(pick(s, &p, logits, 0) == VOCAB - 1, "one left: that one");
    p.top_k = 5;
    p.min_p = 1;
    ok(pick(s, &p, logits, 0) == VOCAB - 1, "one left, with top_k 5 and min_p 1: that one");
}

int main(void)
{
    float *logits = malloc(VOCAB * sizeof(*logits));
    struct sampler *s;
    struct err e;

    if (!logits || sampler_open(&s, VOCAB, &e))
        return 1;
    test_greedy(s, logits);
    test_shares(s, logits);
    test_flat(s, logits);
    test_seed(s, logits);
    test_adjust(s, logits);
    test_faults(s, logits);
    sampler_close(s);
    free(logits);
    return done();
}
