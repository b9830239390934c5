/* A batch on the CPU: its memory, and how products are shared among the workers.  The
 * stages themselves are attention.c and ffn.c. */
#include "cpu/cpu_internal.h"

#include <errno.h>
#include <stdlib.h>
#include <sys/mman.h>

enum { ROW_GRAIN = CPU_PANEL_ROWS, WAVE_PAIRS = 2048, ARENA_ALIGN = 64 };

/* The arena is laid out twice by the same code: once to count, once for real. */
struct layout {
    uint8_t *base;
    size_t used;
};

static void *take(struct layout *l, size_t n)
{
    void *p = l->base ? l->base + l->used : NULL;

    l->used = align_up(add_sat(l->used, n), ARENA_ALIGN);
    return p;
}

static float *take_floats(struct layout *l, size_t rows, size_t cols)
{
    return take(l, mul_sat(mul_sat(rows, cols), sizeof(float)));
}

static void take_acts(const struct cpu *c, struct layout *l, struct acts *a, size_t rows, int cols)
{
    a->cols = cols;
    for (int kind = 0; kind < ACT_KINDS; kind++) {
        if (!(c->all_kinds >> kind & 1))
            continue;
        a->stride[kind] = c->k->pack_bytes[kind](cols);
        a->packed[kind] = take(l, mul_sat(rows, a->stride[kind]));
    }
}

static size_t largest_inner(const struct shape *s)
{
    int n = s->expert_inner > s->shared_inner ? s->expert_inner : s->shared_inner;

    return (size_t)n;
}

/* What waves of routed experts need. */
static void lay_out_waves(struct cpu *c, struct layout *l)
{
    const struct shape *s = c->shape;
    size_t n = (size_t)c->batch, pairs = (size_t)c->pairs, hidden = (size_t)s->hidden;
    size_t inner = largest_inner(s), dense = c->experts_only ? 0 : (size_t)s->dense_inner;
    size_t gate = pairs * inner > n * dense ? pairs * inner : n * dense;

    take_acts(c, l, &c->h_acts, n, s->hidden);
    c->routed = take_floats(l, n, hidden);
    c->wave.token = take(l, pairs * sizeof(int));
    c->wave.weight = take_floats(l, pairs, 1);
    c->wave.of_token = take(l, n * (size_t)s->topk * sizeof(int));
    take_acts(c, l, &c->pair_acts, pairs, s->hidden);
    c->gate = take_floats(l, gate, 1);
    c->up = take_floats(l, gate, 1);
    take_acts(c, l, &c->inner_acts, pairs, (int)inner);
    c->pair_out = take_floats(l, pairs, hidden);
}

/* What the rest of a layer needs besides. */
static void lay_out_layer(struct cpu *c, struct layout *l)
{
    const struct shape *s = c->shape;
    size_t n = (size_t)c->batch, hidden = (size_t)s->hidden;
    size_t heads = (size_t)s->max_heads * (size_t)s->head_dim;
    size_t kv = (size_t)s->kv_heads * (size_t)s->head_dim;

    c->x = take_floats(l, n, hidden);
    c->h = take_floats(l, n, hidden);
    c->q = take_floats(l, n, heads);
    c->kx = take_floats(l, n, kv);
    c->vx = take_floats(l, n, kv);
    c->g = take_floats(l, n, heads);
    take_acts(c, l, &c->o_acts, n, s->max_heads * s->head_dim);
    c->delta = take_floats(l, n, hidden);
    for (int full = 0; full < 2; full++) {
        c->cosine[full] = take_floats(l, n, (size_t)s->head_dim / 2);
        c->sine[full] = take_floats(l, n, (size_t)s->head_dim / 2);
    }
    c->block = take_floats(l, cpu_block_floats(c), 1);
    /* The reference stays what it is. */
    if (c->k != cpu_kernels(CPU_REF))
        c->panel = take_floats(l, cpu_panel_floats(c), (size_t)c->threads);
    c->h_acts.plain = c->h;
    c->o_acts.plain = c->q;
    c->dense_acts.plain = c->gate;
    c->partial = take_floats(l, cpu_partial_floats(c), 1);
    c->router = take_floats(l, n, (size_t)s->experts);
    c->route_weight = take_floats(l, n, (size_t)s->topk);
    c->route_id = take(l, n * (size_t)s->topk * sizeof(*c->route_id));
    take_acts(c, l, &c->guess_acts, CPU_GUESS_TOKENS, s->hidden);
    c->guess_norm = take_floats(l, CPU_GUESS_TOKENS, hidden);
    c->guess = take_floats(l, CPU_GUESS_TOKENS, (size_t)s->experts);
    c->guess_weight = take_floats(l, CPU_GUESS_TOKENS, (size_t)s->topk);
    c->guess_id = take(l, CPU_GUESS_TOKENS * (size_t)s->topk * sizeof(*c->guess_id));
    c->shared = take_floats(l, n, hidden);
    take_acts(c, l, &c->dense_acts, n, s->dense_inner);
}

static void lay_out(struct cpu *c, struct layout *l)
{
    lay_out_waves(c, l);
    if (!c->experts_only)
        lay_out_layer(c, l);
}

/* The pairs of a wave: what a decode step needs, or enough for a prefill's largest products. */
static int wave_pairs(const struct cpu_config *c)
{
    int most = c->batch * c->shape->topk, some = WAVE_PAIRS > c->batch ? WAVE_PAIRS : c->batch;

    return most < some ? most : some;
}

static void configure(struct cpu *c, const struct cpu_config *config)
{
    c->shape = config->shape;
    c->k = config->kernels;
    c->pool = config->pool;
    c->threads = config->threads;
    c->batch = config->batch;
    c->pairs = wave_pairs(config);
    c->experts_only = config->experts_only;
    c->all_kinds = c->experts_only ? 0 : 1u << ACT_F32;         /* the router's */
    for (int f = 0; f < W_FORMATS; f++)
        c->all_kinds |= 1u << c->k->act[f];
}

size_t cpu_scratch_bytes(const struct cpu_config *config)
{
    struct cpu c = { 0 };
    struct layout l = { 0 };

    configure(&c, config);
    lay_out(&c, &l);
    return l.used;
}

int cpu_open(struct cpu **out, const struct cpu_config *config, struct err *e)
{
    struct cpu *c = calloc(1, sizeof(*c));
    struct layout l = { 0 };

    if (!c)
        return fail(e, -ENOMEM, "out of memory");
    configure(c, config);
    c->arena_bytes = cpu_scratch_bytes(config);
    c->arena = mmap(NULL, c->arena_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1,
                    0);
    if (c->arena == MAP_FAILED) {
        c->arena = NULL;
        cpu_close(c);
        return fail(e, -ENOMEM, "no memory for %zu MB of scratch",
                    cpu_scratch_bytes(config) >> 20);
    }
    l.base = c->arena;
    lay_out(c, &l);
    cpu_blas_open();
    *out = c;
    return 0;
}

void cpu_close(struct cpu *c)
{
    if (!c)
        return;
    if (c->arena)
        munmap(c->arena, c->arena_bytes);
    free(c);
}

unsigned cpu_kinds(const struct cpu *c, const struct matrix *m)
{
    return m->rows ? 1u << c->k->act[m->format] : 0;
}

void cpu_pack(const struct cpu *c, struct acts *a, unsigned kinds, int i, const float *row)
{
    for (int kind = 0; kind < ACT_KINDS; kind++)
        if (kinds >> kind & 1)
            c->k->pack[kind](a->packed[kind] + (size_t)i * a->stride[kind], row, a->cols);
}

/* What a row costs: its bytes, and its operations where there are many tokens.  Only the
 * ratio between products of one call matters. */
static size_t row_cost(const struct matrix *m, int tokens)
{
    static const int bits[W_FORMATS] = { [W_BF16] = 16, [W_INT8] = 8, [W_INT4] = 4, [W_MXFP4] = 4 };
    size_t cols = (size_t)m->cols;

    return cols * (size_t)bits[m->format] / 8 + cols * (size_t)tokens / 4 + 1;
}

/* The row of a product at which the cost `at`, counted from its first row, is reached. */
static int row_at(const struct matrix *m, size_t cost, size_t at)
{
    size_t row = (at / cost + ROW_GRAIN / 2) / ROW_GRAIN * ROW_GRAIN;

    return row < (size_t)m->rows ? (int)row : m->rows;
}

static void mul(const struct cpu *c, const struct product *p, int row0, int row1, int worker)
{
    enum act kind = p->exact ? ACT_F32 : c->k->act[p->m->format];
    mul_fn f = p->exact ? c->k->mul_exact : c->k->mul[p->m->format];
    size_t stride;

    if (row0 >= row1 || !p->n)
        return;
    if (c->panel && p->m->format == W_BF16 && p->n >= CPU_BLAS_TOKENS && p->x->plain) {
        cpu_mul_blas(p, row0, row1, c->panel + (size_t)worker * cpu_panel_floats(c));
        return;
    }
    stride = p->x->stride[kind];
    f(p->y, p->y_stride, p->m, p->x->packed[kind] + (size_t)p->first * stride, stride, p->n, row0,
      row1);
}

void cpu_mul_share(const struct cpu *c, const struct product *p, int n, int worker, int workers)
{
    size_t total = 0, start = 0, from, to;

    for (int i = 0; i < n; i++)
        total += (size_t)p[i].m->rows * row_cost(p[i].m, p[i].n);
    from = total * (size_t)worker / (size_t)workers;
    to = total * (size_t)(worker + 1) / (size_t)workers;
    for (int i = 0; i < n; i++) {
        size_t cost = row_cost(p[i].m, p[i].n), end = start + (size_t)p[i].m->rows * cost;
        int row0 = from <= start ? 0 : row_at(p[i].m, cost, from - start);
        int row1 = to >= end ? p[i].m->rows : to <= start ? 0 : row_at(p[i].m, cost, to - start);

        mul(c, &p[i], row0, row1, worker);
        start = end;
    }
}

void cpu_norm_share(struct cpu *c, const float *w, unsigned kinds, int worker, int workers)
{
    size_t hidden = (size_t)c->shape->hidden, from, to;

    pool_share((size_t)c->tokens, 1, worker, workers, &from, &to);
    for (size_t t = from; t < to; t++) {
        c->k->norm(c->h + t * hidden, c->x + t * hidden, w, c->shape->hidden, c->shape->norm_eps);
        cpu_pack(c, &c->h_acts, kinds, (int)t, c->h + t * hidden);
    }
}

void cpu_residual_share(struct cpu *c, const float *delta, int worker, int workers)
{
    size_t from, to;

    pool_share((size_t)c->tokens * (size_t)c->shape->hidden, 16, worker, workers, &from, &to);
    for (size_t i = from; i < to; i++)
        c->x[i] += delta[i];
}

struct embed_job {
    struct cpu *c;
    const struct matrix *embed;
    const struct batch *b;
};

static void embed_worker(void *arg, int worker, int workers)
{
    struct embed_job *j = arg;
    struct cpu *c = j->c;
    size_t hidden = (size_t)c->shape->hidden, from, to;

    pool_share((size_t)c->tokens, 1, worker, workers, &from, &to);
    for (size_t t = from; t < to; t++) {
        const uint8_t *row = (const uint8_t *)j->embed->weight +
                             (size_t)j->b->token[t] * hidden * sizeof(bf16);

        for (size_t i = 0; i < hidden; i++) {
            bf16 v;

            memcpy(&v, row + i * sizeof(v), sizeof(v));
            c->x[t * hidden + i] = bf16_to_f32(v);
        }
    }
    cpu_rope_share(c, j->b->pos, worker, workers);
}

void cpu_embed(struct cpu *c, const struct matrix *embed, const struct batch *b)
{
    struct embed_job j = { c, embed, b };

    c->tokens = b->tokens;
    pool_run(c->pool, embed_worker, &j);
}

struct logits_job {
    struct cpu *c;
    const float *norm;
    struct product head;
    int from;
};

static void logits_worker(void *arg, int worker, int workers)
{
    struct logits_job *j = arg;
    struct cpu *c = j->c;
    size_t hidden = (size_t)c->shape->hidden, from, to;

    pool_share((size_t)j->head.n, 1, worker, workers, &from, &to);
    for (size_t t = from; t < to; t++) {
        float *h = c->h + t * hidden;

        c->k->norm(h, c->x + ((size_t)j->from + t) * hidden, j->norm, c->shape->hidden,
                   c->shape->norm_eps);
        cpu_pack(c, &c->h_acts, cpu_kinds(c, j->head.m), (int)t, h);
    }
    pool_barrier(c->pool, worker);
    cpu_mul_share(c, &j->head, 1, worker, workers);
}

void cpu_logits(struct cpu *c, const float *norm, const struct matrix *head, int from, int n,
                float *logits)
{
    struct logits_job j = {
        .c = c, .norm = norm, .from = from,
        .head = { head, logits, (size_t)head->rows, &c->h_acts, 0, n, false },
    };

    pool_run(c->pool, logits_worker, &j);
}
