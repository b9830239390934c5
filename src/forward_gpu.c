/* The forward pass on a GPU.  A decode step is one captured graph: the GPU asks for the experts
 * that it has not, layer by layer, and the CPU computes them where they lie.  A batch runs stage
 * by stage: experts that the GPU has not pass through its staging slots, or are computed on the
 * CPU where that is sooner.  Between batches VRAM may take other experts. */
#include "src/forward_gpu.h"
#include "src/feed.h"
#include "src/split.h"
#include "src/upload.h"
#include "src/vram.h"
#include "src/waves.h"

#include <errno.h>

/* Promotions may take this share of a step's time on PCIe, which a step hardly uses. */
static const double promotion_share = 0.25;

/* --- a decode step ------------------------------------------------------------------------ */

/* The pairs as a route with holes. */
static void route_of(const struct gpu_share *s, int topk, struct route *r)
{
    r->tokens = s->tokens;
    r->topk = topk;
    for (int i = 0; i < s->tokens * topk; i++)
        r->expert[i] = NO_EXPERT;
    for (int i = 0, at = 0; i < s->pairs; i++) {
        if (!i || s->token[i] != s->token[i - 1])
            at = s->token[i] * topk;
        r->expert[at] = s->expert[i];
        r->weight[at++] = s->weight[i];
    }
}

/* Experts on the CPU, and what that teaches where the drive had no part in it; *seconds, or below
 * 0 where it had. */
static int run_here(struct runner *f, int layer, const struct route *r, const struct chosen *c,
                    double *seconds, struct err *e)
{
    uint64_t read = experts_counts(f->experts).nvme;
    double start = clock_now();
    int pairs = 0, rc = waves_run(f, layer, r, c, NULL, e);

    *seconds = -1;
    for (int i = 0; i < c->n; i++)
        pairs += c->tokens[i];
    if (rc || experts_counts(f->experts).nvme != read)
        return rc;
    *seconds = clock_now() - start;
    split_learn(f->split, c->n, pairs, *seconds);
    return 0;
}

static int compute_share(struct runner *f, const struct gpu_share *s, struct err *e)
{
    const struct shape *shape = &f->model->shape;
    uint16_t id[GPU_STEP_TOKENS * MAX_TOPK];
    float weight[GPU_STEP_TOKENS * MAX_TOPK];
    struct route r = { .expert = id, .weight = weight };
    struct chosen c;
    double start = clock_now(), seconds;
    int rc = 0;

    route_of(s, shape->topk, &r);
    chosen_collect(&c, &r, shape->experts);
    if (f->upload)
        rc = upload_offer(f->upload, s->layer, &c, &r, e);
    cpu_begin_routed(f->cpu, s->h, s->tokens);
    if (!rc)
        rc = run_here(f, s->layer, &r, &c, &seconds, e);
    if (!rc && f->upload)
        upload_learn(f->upload, seconds);
    if (!rc)
        memcpy(s->partial, cpu_routed(f->cpu),
               (size_t)s->tokens * (size_t)shape->hidden * sizeof(float));
    f->times.cpu_share += clock_now() - start;
    return rc;
}

static int next_share(struct runner *f, struct gpu_share *s, struct err *e)
{
    double start = clock_now();
    int more = gpu_next_share(f->gpu, s, e);

    if (f->upload)
        upload_settle(f->upload);
    f->times.gpu_wait += clock_now() - start;
    return more;
}

/* The step's routes, which the host has only now. */
static void keep_routes(struct runner *f)
{
    const struct shape *s = &f->model->shape;

    for (int layer = 0; layer < s->layers; layer++) {
        struct route r;
        int seated = 0;

        if (s->layer[layer].dense)
            continue;
        gpu_step_route(f->gpu, layer, &r);
        for (int i = 0; i < r.tokens * r.topk; i++)
            seated += gpu_seat_of(f->gpu, layer, r.expert[i]) >= 0;
        experts_count_vram(f->experts, seated);
        runner_keep_route(f, layer, &r);
    }
}

static int run_step(struct runner *f, const struct batch *b, struct err *e)
{
    struct gpu_share share;
    double start = clock_now();
    bool offers = f->upload && upload_begin(f->upload);
    int rc = gpu_step(f->gpu, b, offers, e), more, failed = 0;
    struct err ignored;
    bool busy;

    if (rc)
        return rc;
    /* To look for a promotion there is time now: the first share is not asked for yet.  But who
     * takes a seat leaves RAM, so that waits for the step's end. */
    busy = vram_busy(f->vram);
    if (!busy)
        vram_advance(f->vram, promotion_share * f->step_seconds);
    /* After a failure the step is still led to its end: the GPU waits for every share. */
    while ((more = next_share(f, &share, failed ? &ignored : e)) > 0) {
        if (!failed)
            failed = compute_share(f, &share, e);
        gpu_answer(f->gpu);
    }
    if (failed || more)
        return failed ? failed : more;
    keep_routes(f);
    f->step_seconds = clock_now() - start;
    if (busy)
        vram_advance(f->vram, promotion_share * f->step_seconds);
    return 0;
}

/* --- a batch ------------------------------------------------------------------------------ */

/* The layer's experts, and for each whether the GPU lacks it, and whether the CPU computes it. */
struct routed {
    struct chosen chosen;
    bool absent[MAX_EXPERTS], on_cpu[MAX_EXPERTS];
};

static void decide(struct runner *f, int layer, const struct route *r, struct routed *x)
{
    int seated = 0;

    chosen_collect(&x->chosen, r, f->model->shape.experts);
    for (int i = 0; i < x->chosen.n; i++) {
        x->absent[i] = gpu_seat_of(f->gpu, layer, x->chosen.id[i]) < 0;
        x->on_cpu[i] = !f->feed && x->absent[i];
        seated += !x->absent[i];
    }
    experts_count_vram(f->experts, seated);
    if (f->feed && r->tokens <= SPLIT_TOKENS)
        split_choose(f->split, &x->chosen, x->absent, x->on_cpu);
}

/* The ids of x that are absent, and computed here or there. */
static int list(const struct routed *x, bool on_cpu, struct chosen *out)
{
    out->n = 0;
    for (int i = 0; i < x->chosen.n; i++) {
        if (!x->absent[i] || x->on_cpu[i] != on_cpu)
            continue;
        out->id[out->n] = x->chosen.id[i];
        out->tokens[out->n++] = x->chosen.tokens[i];
    }
    return out->n;
}

/* Where nearly every expert is chosen, the next layer's copies begin before its router runs. */
static void expect_next(struct runner *f, int layer, int tokens)
{
    const struct shape *s = &f->model->shape;
    uint16_t id[MAX_EXPERTS];
    int n = 0;

    if (++layer == s->layers || s->layer[layer].dense || tokens * s->topk < 8 * s->experts)
        return;
    for (int i = 0; i < s->experts; i++)
        if (gpu_seat_of(f->gpu, layer, i) < 0)
            id[n++] = (uint16_t)i;
    feed_expect(f->feed, layer, id, n);
}

/* Seated experts and those that pass, in ascending id, in groups of as many as may pass. */
static int run_seated(struct runner *f, const struct routed *x, struct err *e)
{
    uint16_t id[MAX_EXPERTS];
    int n = 0, passing = 0, rc;

    for (int i = 0; i < x->chosen.n; i++) {
        if (x->on_cpu[i])
            continue;
        while (x->absent[i] && (rc = feed_seat(f->feed, e)) <= 0) {
            if (rc < 0)
                return rc;
            gpu_experts(f->gpu, id, n);
            feed_release(f->feed);
            n = passing = 0;
        }
        id[n++] = x->chosen.id[i];
        passing += x->absent[i];
        if (!passing || passing < feed_group(f->feed))
            continue;
        gpu_experts(f->gpu, id, n);
        feed_release(f->feed);
        n = passing = 0;
    }
    gpu_experts(f->gpu, id, n);
    if (!passing)
        return 0;
    /* The next layer's copies begin now, while its attention runs. */
    feed_release(f->feed);
    return feed_pump(f->feed, e);
}

/* Experts of a batch for which the CPU is sooner; the GPU adds them at the end. */
static int run_absent(struct runner *f, int layer, const struct route *r, const struct chosen *here,
                    struct err *e)
{
    double start = clock_now(), got, seconds;
    int rc = gpu_read_normed(f->gpu, f->normed, e);

    got = clock_now();
    f->times.gpu_wait += got - start;
    if (rc)
        return rc;
    cpu_begin_routed(f->cpu, f->normed, r->tokens);
    rc = run_here(f, layer, r, here, &seconds, e);
    f->times.cpu_share += clock_now() - got;
    return rc;
}

static int run_routed(struct runner *f, int layer, const struct route *r, struct err *e)
{
    struct routed x;
    struct chosen here, passing;
    int rc = 0;

    decide(f, layer, r, &x);
    if (f->feed && list(&x, false, &passing)) {
        feed_want(f->feed, layer, passing.id, passing.n);
        expect_next(f, layer, r->tokens);
        rc = feed_pump(f->feed, e);
    }
    if (!rc && list(&x, true, &here))
        rc = run_absent(f, layer, r, &here, e);
    if (!rc)
        rc = run_seated(f, &x, e);
    if (!rc && here.n)
        gpu_add(f->gpu, cpu_routed(f->cpu));
    return rc;
}

static int run_layer(struct runner *f, int layer, struct err *e)
{
    struct route r;
    double start;
    int rc;

    gpu_attention(f->gpu, layer);
    if (f->model->shape.layer[layer].dense) {
        gpu_dense(f->gpu, layer);
        return 0;
    }
    start = clock_now();
    rc = gpu_route(f->gpu, layer, &r, e);
    f->times.gpu_wait += clock_now() - start;
    if (rc)
        return rc;
    runner_keep_route(f, layer, &r);
    rc = run_routed(f, layer, &r, e);
    if (!rc)
        gpu_combine(f->gpu);
    return rc;
}

static int run_batch(struct runner *f, const struct batch *b, struct err *e)
{
    int rc = 0;

    gpu_embed(f->gpu, b);
    for (int layer = 0; layer < f->model->shape.layers && !rc; layer++) {
        rc = runner_stopped(f, e);
        if (!rc)
            rc = run_layer(f, layer, e);
    }
    /* What passed through must not hold slots in RAM until the next prompt: others want them. */
    if (f->feed)
        feed_cancel(f->feed);
    vram_advance(f->vram, 0);
    return rc;
}

int forward_gpu(struct runner *f, const struct batch *b, struct err *e)
{
    f->stepped = b->tokens <= f->step_tokens;
    return f->stepped ? run_step(f, b, e) : run_batch(f, b, e);
}

int forward_gpu_logits(struct runner *f, int from, int n, float *logits, struct err *e)
{
    size_t vocab = (size_t)f->model->shape.vocab;
    int rc = 0;

    if (f->stepped)
        return gpu_read_logits(f->gpu, from, n, logits, e);
    for (int i = 0; i < n && !rc; i += GPU_STEP_TOKENS) {
        int some = n - i < GPU_STEP_TOKENS ? n - i : GPU_STEP_TOKENS;

        gpu_logits(f->gpu, from + i, some);
        rc = gpu_read_logits(f->gpu, 0, some, logits + (size_t)i * vocab, e);
    }
    return rc;
}

bool runner_chooses(const struct runner *f)
{
    return f->gpu && f->stepped;
}

int runner_choose(struct runner *f, const struct gpu_choice *c, int32_t *id, struct err *e)
{
    int rc = 0;

    if (c->temperature > 0)
        rc = gpu_sample(f->gpu, c, id, e);
    else
        *id = gpu_argmax(f->gpu, c->row);
    return rc ? rc : 1;
}
