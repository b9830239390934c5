/* Who computes an expert that VRAM has not: a comparison of two times, both measured while the
 * program works. */
#include "src/split.h"

#include <math.h>

static const double WEIGHT = 0.05;      /* of the latest measurement */

void split_guess(struct split *s, double expert_bytes, double h2d, double ram)
{
    *s = (struct split){ .upload_seconds = expert_bytes / h2d,
                         .expert_seconds = expert_bytes / ram };
}

void split_fix(struct split *s)
{
    /* An expert of eight tokens and more crosses PCIe. */
    *s = (struct split){ .upload_seconds = 1, .token_seconds = 0.125, .fixed = true };
}

/* With a token or two the bytes decide, with many the products: each call teaches the one that
 * it says more about. */
void split_learn(struct split *s, int experts, int pairs, double seconds)
{
    double token = s->token_seconds, expert = s->expert_seconds;

    if (s->fixed || experts < 1)
        return;
    if (pairs < 4 * experts) {
        expert = fmax((seconds - pairs * token) / experts, 0);
        s->expert_seconds += WEIGHT * (expert - s->expert_seconds);
    } else {
        token = fmax((seconds - experts * expert) / pairs, 0);
        s->token_seconds += WEIGHT * (token - s->token_seconds);
    }
}

/* Positions of the absent experts, fewest tokens first. */
static int order_absent(const struct chosen *c, const bool *absent, uint16_t *order)
{
    int n = 0;

    for (int i = 0; i < c->n; i++) {
        int j = n;

        if (!absent[i])
            continue;
        for (; j > 0 && c->tokens[order[j - 1]] > c->tokens[i]; j--)
            order[j] = order[j - 1];
        order[j] = (uint16_t)i;
        n++;
    }
    return n;
}

void split_choose(const struct split *s, const struct chosen *c, const bool *absent,
                  bool *on_cpu)
{
    uint16_t order[MAX_EXPERTS];
    int n = order_absent(c, absent, order);
    double cpu = 0;

    for (int i = 0; i < c->n; i++)
        on_cpu[i] = false;
    for (int i = 0; i < n; i++) {
        double left = (n - i) * s->upload_seconds;

        cpu += s->expert_seconds + c->tokens[order[i]] * s->token_seconds;
        if (cpu > left)                 /* one more here would end later than the rest there */
            break;
        on_cpu[order[i]] = true;
    }
}
