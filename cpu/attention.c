/* The attention stage: norm, q k v g, q/k norm, RoPE, the cache, softmax, gate, o.
 * Many tokens are cut into blocks of queries; few tokens into ranges of keys, whose partial
 * results are merged in the order of the keys. */
#include "cpu/cpu_internal.h"
#include "src/ref.h"

#include <math.h>

enum {
    BLOCK_QUERIES = 64,         /* rows of one attend call, at least one token's */
    FEW_TOKENS = 4,             /* up to so many, keys are split instead */
    SPLIT_KEYS = 1024,
    MAX_SPLITS = 32,
};

struct job {
    struct cpu *c;
    const struct layer_shape *ls;
    const struct layer_weights *w;
    struct kv *kv;
    struct kv_layer *kl;
    int pos, tokens;
    int splits;                 /* 0: many tokens */
};

/* A range of queries of one KV head, and everything attend() needs beside the keys. */
struct block {
    float *q, *acc, *max, *sum;         /* [queries][dim], [queries][dim], [queries] x 2 */
    int *from, *to;                     /* [queries] */
    int first, tokens;                  /* rows of the batch */
};

static int group(const struct cpu *c, const struct layer_shape *ls)
{
    return ls->heads / c->shape->kv_heads;
}

static int max_group(const struct cpu *c)
{
    return c->shape->max_heads / c->shape->kv_heads;
}

static int block_tokens(int heads)
{
    return heads < BLOCK_QUERIES ? BLOCK_QUERIES / heads : 1;
}

static size_t one_block_floats(const struct cpu *c)
{
    size_t queries = (size_t)(max_group(c) > BLOCK_QUERIES ? max_group(c) : BLOCK_QUERIES);

    return align_up(queries * (size_t)(2 * c->shape->head_dim + 4), 16);
}

size_t cpu_block_floats(const struct cpu *c)
{
    return one_block_floats(c) * (size_t)c->threads;
}

static size_t one_partial_floats(const struct cpu *c)
{
    return align_up((size_t)max_group(c) * (size_t)(c->shape->head_dim + 2), 16);
}

size_t cpu_partial_floats(const struct cpu *c)
{
    return one_partial_floats(c) * FEW_TOKENS * (size_t)c->shape->kv_heads * MAX_SPLITS;
}

void cpu_rope_share(struct cpu *c, int pos, int worker, int workers)
{
    size_t from, to;

    pool_share((size_t)c->tokens, 1, worker, workers, &from, &to);
    for (int full = 0; full < 2; full++) {
        const struct rope *r = full ? &c->shape->rope_full : &c->shape->rope_window;
        int half = r->dims / 2;

        for (size_t t = from; t < to; t++)
            for (int i = 0; i < half; i++) {
                float angle = (float)(pos + (int)t) * r->inv_freq[i];

                c->cosine[full][t * (size_t)half + (size_t)i] = cosf(angle) * r->factor;
                c->sine[full][t * (size_t)half + (size_t)i] = sinf(angle) * r->factor;
            }
    }
}

/* laguna.md 2.4; equal to ref_rope() but for the table. */
static void rotate(const struct cpu *c, bool full, int t, float *head)
{
    int half = (full ? c->shape->rope_full.dims : c->shape->rope_window.dims) / 2;
    const float *cosine = c->cosine[full] + t * half, *sine = c->sine[full] + t * half;

    for (int i = 0; i < half; i++) {
        float a = head[i], b = head[i + half];

        head[i] = a * cosine[i] - b * sine[i];
        head[i + half] = b * cosine[i] + a * sine[i];
    }
}

/* Queries, key and value of one token and KV head: normed, rotated, and stored. */
static void prepare_head(const struct job *j, int t, int head)
{
    struct cpu *c = j->c;
    int dim = c->shape->head_dim, kvh = c->shape->kv_heads, n = group(c, j->ls);
    float *q = c->q + ((size_t)t * (size_t)j->ls->heads + (size_t)(head * n)) * (size_t)dim;
    size_t at = ((size_t)t * (size_t)kvh + (size_t)head) * (size_t)dim;
    float *k = c->kx + at, *v = c->vx + at, scale = 1 / sqrtf((float)dim);
    size_t row = (size_t)head * (size_t)j->kl->rows + (size_t)((j->pos + t) % j->kl->rows);
    uint16_t *ks = j->kl->k_scale ? j->kl->k_scale + row : NULL;
    uint16_t *vs = j->kl->v_scale ? j->kl->v_scale + row : NULL;

    for (int i = 0; i < n; i++, q += dim) {
        c->k->norm(q, q, j->w->q_norm, dim, c->shape->norm_eps);
        rotate(c, j->ls->full, t, q);
        for (int d = 0; d < dim; d++)
            q[d] *= scale;
    }
    c->k->norm(k, k, j->w->k_norm, dim, c->shape->norm_eps);
    rotate(c, j->ls->full, t, k);
    c->k->kv_store[j->kv->type](j->kl->k + row * j->kv->row_bytes, ks, k, dim, j->w->k_scale);
    c->k->kv_store[j->kv->type](j->kl->v + row * j->kv->row_bytes, vs, v, dim, j->w->v_scale);
}

/* The positions that the token at pos sees: from..pos. */
static int first_key(const struct job *j, int pos)
{
    int window = j->c->shape->window;

    return j->ls->full || pos < window ? 0 : pos - window + 1;
}

/* attend() over the cached positions from..to, in at most two pieces of the ring. */
static void attend_range(const struct job *j, int head, const struct block *b, int from, int to)
{
    const struct kv_layer *l = j->kl;
    int n = group(j->c, j->ls), queries = b->tokens * n;

    while (from < to) {
        int row = from % l->rows;
        int keys = to - from < l->rows - row ? to - from : l->rows - row;
        size_t at = (size_t)head * (size_t)l->rows + (size_t)row;
        struct attend a = {
            .queries = queries, .dim = j->c->shape->head_dim,
            .q = b->q, .max = b->max, .sum = b->sum, .acc = b->acc,
            .k = l->k + at * j->kv->row_bytes, .v = l->v + at * j->kv->row_bytes,
            .stride = j->kv->row_bytes,
            .k_scale = l->k_scale ? l->k_scale + at : NULL,
            .v_scale = l->v_scale ? l->v_scale + at : NULL,
            .scale_stride = sizeof(uint16_t),
            .k_mul = j->w->k_scale, .v_mul = j->w->v_scale,
            .keys = keys,
        };

        if (b->tokens > 1) {
            for (int i = 0; i < queries; i++) {
                int pos = j->pos + b->first + i / n, first = first_key(j, pos) - from;

                b->from[i] = first < 0 ? 0 : first > keys ? keys : first;
                b->to[i] = pos + 1 - from < 0 ? 0 : pos + 1 - from > keys ? keys : pos + 1 - from;
            }
            a.from = b->from;
            a.to = b->to;
        }
        j->c->k->attend[j->kv->type](&a);
        from += keys;
    }
}

/* Point a block at memory of one_block_floats(), and load its queries. */
static void block_load(const struct job *j, struct block *b, float *memory, int head)
{
    struct cpu *c = j->c;
    int n = group(c, j->ls), queries = b->tokens * n;
    size_t dim = (size_t)c->shape->head_dim, row = (size_t)j->ls->heads * dim;

    b->q = memory;
    b->acc = b->q + (size_t)queries * dim;
    b->max = b->acc + (size_t)queries * dim;
    b->sum = b->max + queries;
    b->from = (int *)(b->sum + queries);
    b->to = b->from + queries;
    for (int t = 0; t < b->tokens; t++)
        memcpy(b->q + (size_t)(t * n) * dim,
               c->q + (size_t)(b->first + t) * row + (size_t)(head * n) * dim,
               (size_t)n * dim * sizeof(float));
    memset(b->acc, 0, (size_t)queries * dim * sizeof(float));
    for (int i = 0; i < queries; i++) {
        b->max[i] = -INFINITY;
        b->sum[i] = 0;
    }
}

/* One block of queries against all they see; the result replaces the queries in c->q. */
static void run_block(const struct job *j, int head, int first, float *memory)
{
    struct cpu *c = j->c;
    int n = group(c, j->ls), most = block_tokens(n);
    struct block b = { .first = first, .tokens = j->tokens - first };
    int dim = c->shape->head_dim, last;

    if (b.tokens > most)
        b.tokens = most;
    last = j->pos + first + b.tokens;
    block_load(j, &b, memory, head);
    attend_range(j, head, &b, first_key(j, j->pos + first), last);
    for (int t = 0; t < b.tokens; t++)
        for (int g = 0; g < n; g++) {
            int i = t * n + g;
            float *out = c->q + ((size_t)(first + t) * (size_t)j->ls->heads +
                                 (size_t)(head * n + g)) * (size_t)dim;

            for (int d = 0; d < dim; d++)
                out[d] = b.acc[(size_t)i * (size_t)dim + (size_t)d] / b.sum[i];
        }
}

static float *partial_of(const struct job *j, int t, int head, int split)
{
    struct cpu *c = j->c;
    size_t i = ((size_t)t * (size_t)c->shape->kv_heads + (size_t)head) * MAX_SPLITS + (size_t)split;

    return c->partial + i * one_partial_floats(c);
}

/* One range of the keys of one token; the partial result waits for merge_splits(). */
static void run_split(const struct job *j, int t, int head, int split, float *memory)
{
    struct cpu *c = j->c;
    size_t n = (size_t)group(c, j->ls), dim = (size_t)c->shape->head_dim;
    int pos = j->pos + t, first = first_key(j, pos), keys = pos + 1 - first;
    int each = (keys + j->splits - 1) / j->splits;
    int from = first + split * each, to = from + each < pos + 1 ? from + each : pos + 1;
    struct block b = { .first = t, .tokens = 1 };
    float *out = partial_of(j, t, head, split);

    block_load(j, &b, memory, head);
    attend_range(j, head, &b, from, to);
    memcpy(out, b.acc, n * dim * sizeof(float));
    memcpy(out + n * dim, b.max, n * sizeof(float));
    memcpy(out + n * (dim + 1), b.sum, n * sizeof(float));
}

static void merge_splits(const struct job *j, int t, int head)
{
    struct cpu *c = j->c;
    int n = group(c, j->ls), dim = c->shape->head_dim;

    for (int g = 0; g < n; g++) {
        float *out = c->q + ((size_t)t * (size_t)j->ls->heads + (size_t)(head * n + g)) *
                     (size_t)dim;
        float max = -INFINITY, sum = 0;

        for (int s = 0; s < j->splits; s++)
            max = fmaxf(max, partial_of(j, t, head, s)[n * dim + g]);
        memset(out, 0, (size_t)dim * sizeof(float));
        for (int s = 0; s < j->splits; s++) {
            const float *p = partial_of(j, t, head, s);
            float weight = expf(p[n * dim + g] - max);

            sum += weight * p[n * (dim + 1) + g];
            for (int d = 0; d < dim; d++)
                out[d] += weight * p[g * dim + d];
        }
        for (int d = 0; d < dim; d++)
            out[d] /= sum;
    }
}

static void run_tasks(struct job *j, int worker)
{
    struct cpu *c = j->c;
    int kvh = c->shape->kv_heads, most = block_tokens(group(c, j->ls));
    int blocks = (j->tokens + most - 1) / most;
    int tasks = kvh * (j->splits ? j->tokens * j->splits : blocks), i;
    float *memory = c->block + (size_t)worker * one_block_floats(c);

    while ((i = atomic_fetch_add(&c->next_task, 1)) < tasks) {
        int head = i % kvh, rest = i / kvh;

        if (j->splits)
            run_split(j, rest / j->splits, head, rest % j->splits, memory);
        else                                    /* the longest blocks first */
            run_block(j, head, (blocks - 1 - rest) * most, memory);
    }
}

/* out *= softplus(g), per head or per element: laguna.md 2.3. */
static void gate_token(const struct job *j, int t)
{
    struct cpu *c = j->c;
    int dim = c->shape->head_dim, width = j->ls->heads * dim, rows = j->w->g.rows;
    float *out = c->q + (size_t)t * (size_t)width;
    const float *g = c->g + (size_t)t * (size_t)rows;

    if (rows == j->ls->heads)
        for (int h = 0; h < rows; h++) {
            float f = ref_softplus(g[h]);

            for (int d = 0; d < dim; d++)
                out[h * dim + d] *= f;
        }
    else
        for (int i = 0; i < rows; i++)
            out[i] *= ref_softplus(g[i]);
}

static void attention_worker(void *arg, int worker, int workers)
{
    struct job *j = arg;
    struct cpu *c = j->c;
    const struct layer_weights *w = j->w;
    struct product in[] = {
        { &w->q, c->q, (size_t)w->q.rows, &c->h_acts, 0, j->tokens, false },
        { &w->k, c->kx, (size_t)w->k.rows, &c->h_acts, 0, j->tokens, false },
        { &w->v, c->vx, (size_t)w->v.rows, &c->h_acts, 0, j->tokens, false },
        { &w->g, c->g, (size_t)w->g.rows, &c->h_acts, 0, j->tokens, false },
    };
    struct product out = { &w->o, c->delta, (size_t)w->o.rows, &c->o_acts, 0, j->tokens, false };
    int kvh = c->shape->kv_heads;
    size_t from, to, width = (size_t)w->o.cols;

    cpu_norm_share(c, w->attn_norm, cpu_kinds(c, &w->q) | cpu_kinds(c, &w->k) |
                   cpu_kinds(c, &w->v) | cpu_kinds(c, &w->g), worker, workers);
    pool_barrier(c->pool, worker);
    cpu_mul_share(c, in, 4, worker, workers);
    pool_barrier(c->pool, worker);
    pool_share((size_t)(j->tokens * kvh), 1, worker, workers, &from, &to);
    for (size_t i = from; i < to; i++)
        prepare_head(j, (int)i / kvh, (int)i % kvh);
    pool_barrier(c->pool, worker);
    run_tasks(j, worker);
    pool_barrier(c->pool, worker);
    if (j->splits) {
        for (size_t i = from; i < to; i++)
            merge_splits(j, (int)i / kvh, (int)i % kvh);
        pool_barrier(c->pool, worker);
    }
    pool_share((size_t)j->tokens, 1, worker, workers, &from, &to);
    for (size_t t = from; t < to; t++) {
        gate_token(j, (int)t);
        cpu_pack(c, &c->o_acts, cpu_kinds(c, &w->o), (int)t, c->q + t * width);
    }
    pool_barrier(c->pool, worker);
    cpu_mul_share(c, &out, 1, worker, workers);
    pool_barrier(c->pool, worker);
    cpu_residual_share(c, c->delta, worker, workers);
}

/* How many ranges the keys of few tokens are cut into: by their number alone. */
static int key_splits(const struct job *j)
{
    int last = j->pos + j->tokens - 1, keys = last + 1 - first_key(j, last);
    int splits = (keys + SPLIT_KEYS - 1) / SPLIT_KEYS;

    return splits < MAX_SPLITS ? splits : MAX_SPLITS;
}

void cpu_attention(struct cpu *c, int layer, const struct layer_weights *w, struct kv *kv,
                   const struct batch *b)
{
    struct job j = {
        .c = c, .ls = &c->shape->layer[layer], .w = w, .kv = kv, .kl = &kv->layer[layer],
        .pos = b->pos, .tokens = b->tokens,
    };

    c->o_acts.cols = w->o.cols;
    if (b->tokens <= FEW_TOKENS)
        j.splits = key_splits(&j);
    atomic_store(&c->next_task, 0);
    pool_run(c->pool, attention_worker, &j);
}
