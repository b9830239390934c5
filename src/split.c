/* Who computes an expert that VRAM has not: a comparison of two times. */
#include "src/split.h"
#include "src/feed.h"
#include "cpu/pool.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>

enum { TIMES = 3, MANY_TOKENS = 33 };

void split_fix(struct split *s)
{
    /* An expert of eight tokens and more crosses PCIe. */
    *s = (struct split){ .upload_seconds = 1, .expert_seconds = 0.125, .token_seconds = 0.125 };
}

/* Seconds that `n` tokens of one expert take on the CPU. */
static double time_cpu(struct runner *f, const struct expert *x, const float *h, int n)
{
    const struct shape *s = &f->model->shape;
    uint16_t id[MANY_TOKENS];
    float weight[MANY_TOKENS];
    struct route r = { n, 1, id, weight };
    double start;

    for (int i = 0; i < n; i++) {
        id[i] = (uint16_t)x->id;
        weight[i] = 1.0f / (float)s->topk;
    }
    start = clock_now();
    cpu_begin_routed(f->cpu, h, n);
    cpu_wave_begin(f->cpu, &r, id, 1);
    cpu_wave_add(f->cpu, &x, 1);
    cpu_wave_end(f->cpu);
    return clock_now() - start;
}

static double time_upload(struct runner *f, const struct expert *x, int slot, struct err *e)
{
    double start = clock_now();

    if (gpu_fill_slot(f->gpu, slot, x, e) || gpu_wait(f->gpu, e))
        return INFINITY;
    return clock_now() - start;
}

/* The expert's bytes are here: the best of some times, since the first finds all cold. */
static void measure(struct split *s, struct runner *f, const struct expert *x, const float *h)
{
    int many = f->batch < MANY_TOKENS ? f->batch : MANY_TOKENS;
    double one = INFINITY, all = INFINITY;
    struct err e;

    s->upload_seconds = INFINITY;
    for (int i = 0; i < TIMES; i++) {
        one = fmin(one, time_cpu(f, x, h, 1));
        all = fmin(all, time_cpu(f, x, h, many));
        if (f->feed)
            s->upload_seconds = fmin(s->upload_seconds,
                                     time_upload(f, x, feed_first_slot(f->feed), &e));
    }
    s->token_seconds = many > 1 ? fmax((all - one) / (many - 1), 0) : one;
    s->expert_seconds = fmax(one - s->token_seconds, 0);
}

static int first_sparse(const struct shape *s)
{
    int i = 0;

    while (s->layer[i].dense)
        i++;
    return i;
}

int split_measure(struct split *s, struct runner *f, struct err *e)
{
    const struct shape *shape = &f->model->shape;
    float *h = calloc((size_t)MANY_TOKENS * (size_t)shape->hidden, sizeof(*h));
    const struct expert *const *x;
    uint16_t id = 0;
    int rc;

    if (!h)
        return fail(e, -ENOMEM, "out of memory");
    for (int i = 0; i < MANY_TOKENS * shape->hidden; i++)
        h[i] = (float)(i % 7 - 3);
    pool_begin(f->pool);
    experts_request(f->experts, first_sparse(shape), &id, 1);
    rc = experts_next(f->experts, &x, e);
    if (rc > 0) {
        measure(s, f, x[0], h);
        experts_release(f->experts);
    }
    experts_finish(f->experts);
    pool_end(f->pool);
    free(h);
    return rc < 0 ? rc : 0;
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
