/* Which tensors a checkpoint has and where they lie.  Shards are cut in the order of the
 * model; inside a shard the safetensors library puts wide types first, then goes by name. */
#include "tests/mkmodel.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>

static const double HEAD_GAIN = 3; /* deviation of the logits */

static const char PROJ[3][10] = {"gate_proj", "up_proj", "down_proj"};

enum format dense_format(const struct plan *p)
{
    return p->format == W4A16 ? W4A16 : BF16;
}

/* Mixed: MXFP4 in odd layers, int4 in even ones, BF16 in the last. */
enum format expert_format(const struct plan *p, int layer)
{
    if (p->format != MIXED)
        return p->format;
    return layer == p->layers - 1 ? BF16 : layer % 2 ? MXFP4 : W4A16;
}

static void *keep_table(struct layout *l, size_t bytes)
{
    void **grown = realloc(l->table, (l->tables + 1) * sizeof(*grown));

    if (grown) {
        l->table = grown;
        l->table[l->tables] = malloc(bytes);
    }
    if (!grown || !l->table[l->tables]) {
        l->failed = true;
        return NULL;
    }
    return l->table[l->tables++];
}

/* One more tensor, without its filling; NULL once memory is out. */
static struct tensor *add(struct layout *l, const struct plan *p, const char *module,
                          const char *suffix, const char *dtype, int64_t rows, int64_t cols)
{
    static const struct {
        char name[8];
        int order, size;
    } types[] = {{"I64", 0, 8}, {"F32", 1, 4}, {"I32", 2, 4}, {"BF16", 3, 2}, {"U8", 4, 1}};
    struct tensor *t;
    int k = 0;

    if (l->n == l->cap) {
        size_t cap = l->cap ? 2 * l->cap : 1024;
        struct tensor *grown = realloc(l->tensor, cap * sizeof(*grown));

        if (!grown) {
            l->failed = true;
            return NULL;
        }
        l->tensor = grown;
        l->cap = cap;
    }
    while (strcmp(types[k].name, dtype))
        k++;
    t = &l->tensor[l->n++];
    *t = (struct tensor){.dtype = types[k].name, .order = types[k].order, .dim = {rows, cols}};
    snprintf(t->name, sizeof(t->name), "%s%s", module, suffix);
    t->dims = cols ? 2 : 1;
    t->bytes = (uint64_t)(rows * (cols ? cols : 1)) * (uint64_t)types[k].size;
    t->key = random_key(p->seed, t->name);
    return t;
}

/* [rows][cols] BF16 of the deviation, which `table` holds. */
static void add_bf16(struct layout *l, const struct plan *p, const char *module, int rows, int cols,
                     const bf16 *table)
{
    struct tensor *t = add(l, p, module, ".weight", "BF16", rows, cols);

    if (t)
        t->table = table; /* FILL_TABLE16 */
}

static void add_ready(struct layout *l, const struct plan *p, const char *module,
                      const char *suffix, const char *dtype, int n, const void *from)
{
    struct tensor *t = add(l, p, module, suffix, dtype, n, 0);

    if (!t)
        return;
    t->fill = FILL_READY;
    t->ready = malloc(t->bytes);
    if (!t->ready)
        l->failed = true;
    else
        memcpy(t->ready, from, t->bytes);
}

/* The tables of one kind of matrix, made once and shared by all of that kind. */
struct kind {
    int rows, cols;
    bf16 *normal, *int4;
    uint8_t *fp4;
};

static struct kind make_kind(struct layout *l, int rows, int cols, double gain)
{
    double deviation = gain / sqrt(cols);
    struct kind k = {rows, cols, keep_table(l, 512), keep_table(l, 512), keep_table(l, 256)};

    if (!l->failed) {
        table_normal(k.normal, deviation);
        table_int4_scale(k.int4, deviation);
        table_fp4_scale(k.fp4, deviation);
    }
    return k;
}

static void add_linear(struct layout *l, const struct plan *p, enum format format,
                       const char *module, const struct kind *k)
{
    int64_t shape[2] = {k->rows, k->cols};
    struct tensor *t;

    if (format == BF16) {
        add_bf16(l, p, module, k->rows, k->cols, k->normal);
    } else if (format == W4A16) {
        t = add(l, p, module, ".weight_packed", "I32", k->rows, k->cols / 8);
        if (t)
            t->fill = FILL_INT4;
        t = add(l, p, module, ".weight_scale", "BF16", k->rows, k->cols / GROUP);
        if (t)
            t->table = k->int4;
        add_ready(l, p, module, ".weight_shape", "I64", 2, shape);
    } else {
        t = add(l, p, module, ".weight_packed", "U8", k->rows, k->cols / 2);
        if (t)
            t->fill = FILL_FP4;
        t = add(l, p, module, ".weight_scale", "U8", k->rows, k->cols / GROUP);
        if (t) {
            t->fill = FILL_TABLE8;
            t->table = k->fp4;
        }
    }
}

/* Everything that all layers share.  Residual additions are small enough for 2 * layers of
 * them to have the length of the embedding. */
struct kinds {
    struct kind qkv[2][3];                      /* [full][q, k, v] */
    struct kind out[2], gate[2];                /* [full] */
    struct kind dense[3], shared[3], expert[3]; /* as PROJ */
    bf16 *norm, *router;
};

static void make_ffn(struct layout *l, struct kind k[3], int hidden, int inner, double gain)
{
    k[0] = make_kind(l, inner, hidden, 1);
    k[1] = make_kind(l, inner, hidden, 1);
    k[2] = make_kind(l, hidden, inner, gain);
}

static void make_kinds(struct layout *l, struct kinds *k, const struct plan *p)
{
    double small = 1 / sqrt(2.0 * p->layers);
    /* Attention averages over many keys, which leaves little: hence the 3.  With 6, 48
     * layers make the tokens of a context alike, and some experts are never used. */
    int h = p->hidden, kv = p->kv_heads * p->head_dim;

    for (int full = 0; full < 2; full++) {
        int heads = full ? p->heads_full : p->heads_window;

        k->qkv[full][0] = make_kind(l, heads * p->head_dim, h, 1);
        k->qkv[full][1] = make_kind(l, kv, h, 1);
        k->qkv[full][2] = make_kind(l, kv, h, 1);
        k->gate[full] = make_kind(l, heads, h, 1);
        k->out[full] = make_kind(l, h, heads * p->head_dim, 3 * small);
    }
    /* silu(g) * u of normal g and u has a deviation of about 0.6. */
    make_ffn(l, k->dense, h, p->dense_inner, small / 0.6);
    make_ffn(l, k->shared, h, p->shared_inner ? p->shared_inner : 1, small / 0.6);
    make_ffn(l, k->expert, h, p->expert_inner, small / 0.6);
    k->norm = keep_table(l, 512);
    k->router = keep_table(l, 512);
    if (!l->failed) {
        table_norm(k->norm);
        table_normal(k->router, ROUTER_DEVIATION / sqrt(h));
    }
}

static void add_ffn(struct layout *l, const struct plan *p, enum format format, const char *prefix,
                    const struct kind k[3])
{
    char module[128];

    for (int i = 0; i < 3; i++) {
        snprintf(module, sizeof(module), "%s.%s", prefix, PROJ[i]);
        add_linear(l, p, format, module, &k[i]);
    }
}

static void add_attention(struct layout *l, const struct plan *p, const struct kinds *k, int layer)
{
    bool full = layer_is_full(layer);
    char m[64];

#define NAME(part) (snprintf(m, sizeof(m), "model.layers.%d." part, layer), m)
    add_bf16(l, p, NAME("input_layernorm"), p->hidden, 0, k->norm);
    add_linear(l, p, dense_format(p), NAME("self_attn.q_proj"), &k->qkv[full][0]);
    add_linear(l, p, dense_format(p), NAME("self_attn.k_proj"), &k->qkv[full][1]);
    add_linear(l, p, dense_format(p), NAME("self_attn.v_proj"), &k->qkv[full][2]);
    add_linear(l, p, BF16, NAME("self_attn.g_proj"), &k->gate[full]);
    add_linear(l, p, dense_format(p), NAME("self_attn.o_proj"), &k->out[full]);
    add_bf16(l, p, NAME("self_attn.q_norm"), p->head_dim, 0, k->norm);
    add_bf16(l, p, NAME("self_attn.k_norm"), p->head_dim, 0, k->norm);
    add_bf16(l, p, NAME("post_attention_layernorm"), p->hidden, 0, k->norm);
#undef NAME
}

static void add_moe(struct layout *l, const struct plan *p, const struct kinds *k, int layer,
                    const float *scores)
{
    float bias[EXPERTS_MAX];
    char m[64];

    router_bias(bias, scores, p, layer);
    snprintf(m, sizeof(m), "model.layers.%d.mlp.gate", layer);
    add_bf16(l, p, m, p->experts, p->hidden, k->router);
    snprintf(m, sizeof(m), "model.layers.%d.mlp.experts", layer);
    add_ready(l, p, m, ".e_score_correction_bias", "F32", p->experts, bias);
    for (int x = 0; x < p->experts; x++) {
        snprintf(m, sizeof(m), "model.layers.%d.mlp.experts.%d", layer, x);
        add_ffn(l, p, expert_format(p, layer), m, k->expert);
    }
    snprintf(m, sizeof(m), "model.layers.%d.mlp.shared_expert", layer);
    if (p->shared_inner)
        add_ffn(l, p, dense_format(p), m, k->shared);
}

static int by_place(const void *a, const void *b)
{
    const struct tensor *x = a, *y = b;

    if (x->shard != y->shard)
        return x->shard - y->shard;
    return x->order != y->order ? x->order - y->order : strcmp(x->name, y->name);
}

/* Shards of equal bytes, cut between tensors. */
static void place(struct layout *l, int shards)
{
    uint64_t at = 0;

    for (size_t i = 0; i < l->n; i++)
        l->total += l->tensor[i].bytes;
    for (size_t i = 0; i < l->n; i++) {
        double middle = (double)at + (double)l->tensor[i].bytes / 2;
        int shard = (int)(middle / (double)l->total * shards);

        l->tensor[i].shard = shard < shards ? shard : shards - 1;
        at += l->tensor[i].bytes;
    }
    qsort(l->tensor, l->n, sizeof(l->tensor[0]), by_place);
    for (size_t i = 0; i < l->n; i++) {
        struct tensor *t = &l->tensor[i], *last = t - 1;

        t->offset = i && last->shard == t->shard ? last->offset + last->bytes : 0;
    }
}

/* [vocab][hidden] whose rows resemble their neighbours'. */
static void add_near(struct layout *l, const struct plan *p, const char *module, double near,
                     const bf16 *table)
{
    struct tensor *t = add(l, p, module, ".weight", "BF16", p->vocab, p->hidden);

    if (!t)
        return;
    t->fill = FILL_NEAR;
    t->near_key = random_key(p->seed, "neighbourhoods");
    t->near = (float)near;
    t->table = table;
}

/* How much of a neighbourhood the head has, so that about a third of the greedy tokens stay
 * in that of the token before: then a generated text, too, keeps to its experts for a
 * while.  The best of n logits of deviation HEAD_GAIN is near HEAD_GAIN sqrt(2 ln n); half of
 * the last hidden state is the neighbourhood's row. */
static double head_near(const struct plan *p)
{
    double bonus = sqrt(2 * log(p->vocab)) - sqrt(2 * log(NEIGHBOURS));

    return bonus / (0.5 * sqrt(p->hidden));
}

int layout_make(struct layout *l, const struct plan *p, struct err *e)
{
    struct kinds k;
    bf16 *unit = keep_table(l, 512), *head = keep_table(l, 512);
    float *scores = router_simulate(p);

    make_kinds(l, &k, p);
    if (l->failed || !scores) {
        free(scores);
        return fail(e, -ENOMEM, "no memory for tables and a router of %d experts", p->experts);
    }
    table_normal(unit, 1);
    table_normal(head, HEAD_GAIN / sqrt(p->hidden));
    add_near(l, p, "model.embed_tokens", sqrt(0.5), unit);
    for (int layer = 0; layer < p->layers; layer++) {
        char m[64];

        add_attention(l, p, &k, layer);
        snprintf(m, sizeof(m), "model.layers.%d.mlp", layer);
        if (layer)
            add_moe(l, p, &k, layer, scores);
        else
            add_ffn(l, p, dense_format(p), m, k.dense);
    }
    add_bf16(l, p, "model.norm", p->hidden, 0, k.norm);
    add_near(l, p, "lm_head", head_near(p), head);
    free(scores);
    if (l->failed)
        return fail(e, -ENOMEM, "no memory for the names of %zu tensors", l->n);
    place(l, p->shards);
    return 0;
}

void layout_free(struct layout *l)
{
    for (size_t i = 0; i < l->n; i++)
        free(l->tensor[i].ready);
    for (size_t i = 0; i < l->tables; i++)
        free(l->table[i]);
    free(l->tensor);
    free(l->table);
}
