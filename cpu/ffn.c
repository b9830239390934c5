/* The second half of a layer: the dense FFN, or router, shared expert and the routed
 * experts in waves. */
#include "cpu/cpu_internal.h"
#include "src/ref.h"

#include <errno.h>
#include <math.h>

struct ffn_job {
    struct cpu *c;
    const struct layer_weights *w;
    const struct ffn *f;
    float *out;                         /* [tokens][hidden] */
    const struct layer_weights *next;   /* to guess for, or NULL */
    atomic_int bad_token;               /* -1, or a token whose router failed */
};

/* gate = silu(gate) * up for rows from..to of inner floats, packed for the down product. */
static void activate(struct cpu *c, struct acts *a, unsigned kinds, int inner, size_t from,
                     size_t to)
{
    for (size_t i = from; i < to; i++) {
        float *g = c->gate + i * (size_t)inner;

        c->k->silu_mul(g, g, c->up + i * (size_t)inner, inner);
        cpu_pack(c, a, kinds, (int)i, g);
    }
}

static unsigned ffn_kinds(const struct cpu *c, const struct ffn *f)
{
    return cpu_kinds(c, &f->gate) | cpu_kinds(c, &f->up);
}

static void dense_worker(void *arg, int worker, int workers)
{
    struct ffn_job *j = arg;
    struct cpu *c = j->c;
    const struct ffn *f = j->f;
    size_t inner = (size_t)f->gate.rows, from, to;
    struct product in[] = {
        { &f->gate, c->gate, inner, &c->h_acts, 0, c->tokens, false },
        { &f->up, c->up, inner, &c->h_acts, 0, c->tokens, false },
    };
    struct product down = { &f->down, j->out, (size_t)f->down.rows, &c->dense_acts, 0, c->tokens,
                            false };

    cpu_norm_share(c, j->w->ffn_norm, ffn_kinds(c, f), worker, workers);
    pool_barrier(c->pool, worker);
    cpu_mul_share(c, in, 2, worker, workers);
    pool_barrier(c->pool, worker);
    pool_share((size_t)c->tokens, 1, worker, workers, &from, &to);
    activate(c, &c->dense_acts, cpu_kinds(c, &f->down), f->gate.rows, from, to);
    pool_barrier(c->pool, worker);
    cpu_mul_share(c, &down, 1, worker, workers);
    pool_barrier(c->pool, worker);
    cpu_residual_share(c, j->out, worker, workers);
}

void cpu_dense(struct cpu *c, const struct layer_weights *w)
{
    struct ffn_job j = { .c = c, .w = w, .f = &w->ffn, .out = c->delta };

    pool_run(c->pool, dense_worker, &j);
}

static void select_experts(struct ffn_job *j, size_t from, size_t to)
{
    struct cpu *c = j->c;
    size_t experts = (size_t)c->shape->experts, topk = (size_t)c->shape->topk;

    for (size_t t = from; t < to; t++)
        if (ref_route(c->shape, c->router + t * experts, j->w->router_bias,
                      c->route_id + t * topk, c->route_weight + t * topk))
            atomic_store(&j->bad_token, (int)t);
}

/* The next layer's router sees what this one does, until the experts have been added. */
static void prepare_guess(struct ffn_job *j, size_t from, size_t to)
{
    struct cpu *c = j->c;
    size_t hidden = (size_t)c->shape->hidden;

    for (size_t t = from; t < to; t++) {
        float *h = c->guess_norm + t * hidden;

        c->k->norm(h, c->x + t * hidden, j->next->ffn_norm, c->shape->hidden,
                   c->shape->norm_eps);
        cpu_pack(c, &c->guess_acts, 1u << ACT_F32, (int)t, h);
    }
}

static void select_guess(struct ffn_job *j, size_t from, size_t to)
{
    struct cpu *c = j->c;
    size_t experts = (size_t)c->shape->experts, topk = (size_t)c->shape->topk;

    for (size_t t = from; t < to; t++)
        if (ref_route(c->shape, c->guess + t * experts, j->next->router_bias,
                      c->guess_id + t * topk, c->guess_weight + t * topk))
            atomic_store(&j->bad_token, (int)t);
}

/* Router and shared expert read the same h, so their products go together. */
static void route_worker(void *arg, int worker, int workers)
{
    struct ffn_job *j = arg;
    struct cpu *c = j->c;
    const struct ffn *f = j->f;
    static const struct matrix none;
    size_t inner = (size_t)f->gate.rows, from, to;
    struct product in[] = {
        { &j->w->router, c->router, (size_t)j->w->router.rows, &c->h_acts, 0, c->tokens, true },
        { &f->gate, c->gate, inner, &c->h_acts, 0, c->tokens, false },
        { &f->up, c->up, inner, &c->h_acts, 0, c->tokens, false },
        { &none, NULL, 0, NULL, 0, 0, false },
    };
    struct product down = { &f->down, j->out, (size_t)f->down.rows, &c->inner_acts, 0, c->tokens,
                            false };

    if (j->next)
        in[3] = (struct product){ &j->next->router, c->guess, (size_t)j->next->router.rows,
                                  &c->guess_acts, 0, c->tokens, true };

    /* The experts, whatever their formats, find h packed in every kind the table knows. */
    cpu_norm_share(c, j->w->ffn_norm, c->all_kinds, worker, workers);
    pool_share((size_t)c->tokens, 1, worker, workers, &from, &to);
    if (j->next)
        prepare_guess(j, from, to);
    pool_barrier(c->pool, worker);
    cpu_mul_share(c, in, 4, worker, workers);
    pool_barrier(c->pool, worker);
    if (inner)
        activate(c, &c->inner_acts, cpu_kinds(c, &f->down), f->gate.rows, from, to);
    pool_share((size_t)c->tokens, 1, workers - 1 - worker, workers, &from, &to);
    select_experts(j, from, to);
    if (j->next)
        select_guess(j, from, to);
    pool_barrier(c->pool, worker);
    if (inner)
        cpu_mul_share(c, &down, 1, worker, workers);
}

int cpu_route(struct cpu *c, const struct layer_weights *w, const struct layer_weights *next,
              struct route *out, struct route *guess)
{
    struct ffn_job j = { .c = c, .w = w, .f = &w->ffn, .out = c->shared, .bad_token = -1,
                         .next = c->tokens <= CPU_GUESS_TOKENS ? next : NULL };
    size_t n = (size_t)c->tokens * (size_t)c->shape->hidden;

    c->inner_acts.cols = w->ffn.down.cols;
    if (!w->ffn.gate.rows)
        memset(c->shared, 0, n * sizeof(float));
    pool_run(c->pool, route_worker, &j);
    if (atomic_load(&j.bad_token) >= 0)
        return -EDOM;
    memset(c->routed, 0, n * sizeof(float));
    *out = (struct route){ c->tokens, c->shape->topk, c->route_id, c->route_weight };
    *guess = (struct route){ j.next ? c->tokens : 0, c->shape->topk, c->guess_id,
                             c->guess_weight };
    return 0;
}

int cpu_wave_pairs(const struct cpu *c)
{
    return c->pairs;
}

/* A counting sort: pairs of one expert lie together, in the order of the tokens. */
void cpu_wave_begin(struct cpu *c, const struct route *r, const uint16_t *id, int n)
{
    struct wave *w = &c->wave;
    int all = r->tokens * r->topk, next[MAX_EXPERTS], count[MAX_EXPERTS] = { 0 };

    for (int i = 0; i < all; i++)
        if (r->expert[i] != NO_EXPERT)
            count[r->expert[i]]++;
    for (int x = 0; x < c->shape->experts; x++)
        next[x] = -1;
    w->topk = r->topk;
    w->experts = n;
    w->pairs = 0;
    for (int x = 0; x < n; x++) {
        w->expert[x] = (struct wave_expert){ id[x], w->pairs, count[id[x]] };
        next[id[x]] = w->pairs;
        w->pairs += count[id[x]];
    }
    for (int i = 0; i < all; i++) {
        int x = r->expert[i], pair = x == NO_EXPERT || next[x] < 0 ? -1 : next[x]++;

        w->of_token[i] = pair;
        if (pair < 0)
            continue;
        w->token[pair] = i / r->topk;
        w->weight[pair] = r->weight[i];
    }
}

/* One token needs no gathering: its row of h serves as it is. */
static bool gathered(const struct wave_expert *w)
{
    return w->tokens > 1;
}

static void plan_products(struct wave_job *j)
{
    struct cpu *c = j->c;

    for (int i = 0; i < j->n; i++) {
        const struct ffn *f = &j->x[i]->ffn;
        const struct wave_expert *w = j->w[i];
        size_t inner = (size_t)f->gate.rows, hidden = (size_t)f->down.rows;
        const struct acts *h = gathered(w) ? &c->pair_acts : &c->h_acts;
        int first = gathered(w) ? w->pair : c->wave.token[w->pair];
        size_t at = (size_t)w->pair;

        j->in[2 * i] = (struct product){ &f->gate, c->gate + at * inner, inner, h, first,
                                         w->tokens, false };
        j->in[2 * i + 1] = (struct product){ &f->up, c->up + at * inner, inner, h, first,
                                             w->tokens, false };
        j->down[i] = (struct product){ &f->down, c->pair_out + at * hidden, hidden,
                                       &c->inner_acts, w->pair, w->tokens, false };
        j->kinds |= ffn_kinds(c, f);
    }
}

/* Copy the packed rows of h that expert x's tokens need to rows of its own. */
static void gather(const struct wave_job *j, const struct wave_expert *w)
{
    struct cpu *c = j->c;

    for (int kind = 0; kind < ACT_KINDS; kind++) {
        size_t stride = c->pair_acts.stride[kind];

        if (j->kinds >> kind & 1)
            for (int p = w->pair; p < w->pair + w->tokens; p++)
                memcpy(c->pair_acts.packed[kind] + (size_t)p * stride,
                       c->h_acts.packed[kind] + (size_t)c->wave.token[p] * stride, stride);
    }
}

static void wave_worker(void *arg, int worker, int workers)
{
    struct wave_job *j = arg;
    struct cpu *c = j->c;
    bool any = false;

    for (int i = 0; i < j->n; i++)
        any |= gathered(j->w[i]);
    if (any) {
        for (int i = worker; i < j->n; i += workers)
            if (gathered(j->w[i]))
                gather(j, j->w[i]);
        pool_barrier(c->pool, worker);
    }
    cpu_mul_share(c, j->in, 2 * j->n, worker, workers);
    pool_barrier(c->pool, worker);
    for (int i = 0, p = 0; i < j->n; i++) {
        const struct ffn *f = &j->x[i]->ffn;

        /* Pairs of all experts are dealt out in turn: an expert may have one token. */
        for (int t = 0; t < j->w[i]->tokens; t++, p++)
            if (p % workers == worker)
                activate(c, &c->inner_acts, cpu_kinds(c, &f->down), f->gate.rows,
                         (size_t)(j->w[i]->pair + t), (size_t)(j->w[i]->pair + t + 1));
    }
    pool_barrier(c->pool, worker);
    cpu_mul_share(c, j->down, j->n, worker, workers);
}

static const struct wave_expert *wave_find(const struct wave *w, int id)
{
    int i = 0;

    while (w->expert[i].id != id)
        i++;
    return &w->expert[i];
}

void cpu_wave_add(struct cpu *c, const struct expert *const *x, int n)
{
    struct wave_job *j = &c->wave_job;

    if (!n)
        return;
    j->c = c;
    j->x = x;
    j->n = n;
    j->kinds = 0;
    for (int i = 0; i < n; i++)
        j->w[i] = wave_find(&c->wave, x[i]->id);
    c->inner_acts.cols = x[0]->ffn.down.cols;
    plan_products(j);
    pool_run(c->pool, wave_worker, j);
}

/* routed[t] += weight * out, in the order of ascending experts. */
static void sum_worker(void *arg, int worker, int workers)
{
    struct cpu *c = arg;
    size_t hidden = (size_t)c->shape->hidden, topk = (size_t)c->wave.topk, from, to;

    pool_share((size_t)c->tokens * hidden, 16, worker, workers, &from, &to);
    for (size_t t = from / hidden; t * hidden < to; t++) {
        size_t row = t * hidden, a = from > row ? from - row : 0;
        size_t b = to - row < hidden ? to - row : hidden;

        for (size_t k = 0; k < topk; k++) {
            int p = c->wave.of_token[t * topk + k];
            const float *out = c->pair_out + (size_t)(p < 0 ? 0 : p) * hidden;

            if (p >= 0)
                for (size_t i = a; i < b; i++)
                    c->routed[row + i] += c->wave.weight[p] * out[i];
        }
    }
}

void cpu_wave_end(struct cpu *c)
{
    pool_run(c->pool, sum_worker, c);
}

struct routed_job {
    struct cpu *c;
    const float *h;
};

static void routed_worker(void *arg, int worker, int workers)
{
    const struct routed_job *j = arg;
    struct cpu *c = j->c;
    size_t hidden = (size_t)c->shape->hidden, from, to;

    pool_share((size_t)c->tokens, 1, worker, workers, &from, &to);
    for (size_t t = from; t < to; t++) {
        cpu_pack(c, &c->h_acts, c->all_kinds, (int)t, j->h + t * hidden);
        memset(c->routed + t * hidden, 0, hidden * sizeof(float));
    }
}

void cpu_begin_routed(struct cpu *c, const float *h, int tokens)
{
    struct routed_job j = { c, h };

    c->tokens = tokens;
    if (tokens == 1)                    /* sooner done than the workers are told */
        routed_worker(&j, 0, 1);
    else
        pool_run(c->pool, routed_worker, &j);
}

const float *cpu_routed(const struct cpu *c)
{
    return c->routed;
}

static void combine_worker(void *arg, int worker, int workers)
{
    struct cpu *c = arg;
    size_t from, to;

    pool_share((size_t)c->tokens * (size_t)c->shape->hidden, 16, worker, workers, &from, &to);
    for (size_t i = from; i < to; i++)
        c->x[i] += c->routed[i] * c->shape->route_scale + c->shared[i];
}

void cpu_combine(struct cpu *c)
{
    pool_run(c->pool, combine_worker, c);
}
