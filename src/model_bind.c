/* The names of a Laguna checkpoint (laguna.md section 3) and where each belongs in struct
 * model.  Every tensor of the architecture must be there with its dtype and shape, and every
 * tensor that is there must be known: what is left over would be silently wrong. */
#include "src/model_bind.h"

#include "src/linear.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

enum { ARENA_ALIGN = 64, NAME_CAP = 512 };

/* One run over the checkpoint.  The first fault stays in rc. */
struct binder {
    struct model *m;
    const struct checkpoint *c;
    const struct quant *q;
    const char *prefix;         /* "model." or "" */
    unsigned char *used;        /* [tensors] */
    size_t load_cap;
    int rc;
    struct err *e;
};

static void use(struct binder *b, const struct tensor *t)
{
    if (t)
        b->used[t - checkpoint_tensor(b->c, 0)] = 1;
}

static struct load *add_load(struct binder *b, const struct tensor *t, enum load_kind kind,
                             size_t bytes)
{
    struct model *m = b->m;
    struct load *l;

    if (m->loads == b->load_cap) {
        b->load_cap = b->load_cap ? b->load_cap * 2 : 256;
        l = realloc(m->load, b->load_cap * sizeof(*l));
        if (!l) {
            b->rc = fail(b->e, -ENOMEM, "no memory for %zu tensors", b->load_cap);
            return NULL;
        }
        m->load = l;
    }
    l = &m->load[m->loads++];
    *l = (struct load){ .tensor = t, .kind = kind };
    l->at = align_up(m->arena_bytes, ARENA_ALIGN);
    if (kind != LOAD_ONE)
        m->arena_bytes = l->at + bytes;
    m->dense_bytes += t->bytes;
    use(b, t);
    return l;
}

static void add_bytes(struct binder *b, const struct tensor *t, enum load_kind kind,
                      const void **to)
{
    struct load *l = t ? add_load(b, t, kind, t->bytes) : NULL;

    if (l)
        l->to.bytes = to;
}

__attribute__((format(printf, 2, 3)))
static const struct tensor *find(const struct binder *b, const char *fmt, ...)
{
    char name[NAME_CAP];
    va_list ap;

    va_start(ap, fmt);
    vsnprintf(name, sizeof(name), fmt, ap);
    va_end(ap);
    return checkpoint_find(b->c, name);
}

/* The two numbers that the writer noted must be the shape that the configuration gives. */
static void check_noted_shape(struct binder *b, const struct linear *l)
{
    int64_t noted[2];

    if (!l->shape || b->rc)
        return;
    use(b, l->shape);
    b->rc = checkpoint_read(b->c, l->shape, noted, b->e);
    if (!b->rc && (noted[0] != l->m.rows || noted[1] != l->m.cols))
        b->rc = fail(b->e, -EBADMSG, "%s:%s: says [%jd, %jd], expected [%d, %d]",
                     checkpoint_path(b->c, l->shape->shard), l->shape->name, (intmax_t)noted[0],
                     (intmax_t)noted[1], l->m.rows, l->m.cols);
}

/* A Linear outside the routed experts. */
__attribute__((format(printf, 6, 7)))
static void dense(struct binder *b, struct matrix *m, int rows, int cols, unsigned flags,
                  const char *fmt, ...)
{
    char module[NAME_CAP];
    struct linear l;
    va_list ap;

    if (b->rc)
        return;
    va_start(ap, fmt);
    vsnprintf(module, sizeof(module), fmt, ap);
    va_end(ap);
    b->rc = linear_find(&l, b->c, b->q, module, rows, cols, flags, b->e);
    check_noted_shape(b, &l);
    if (b->rc)
        return;
    *m = l.m;
    add_bytes(b, l.part[LINEAR_WEIGHT], l.plain ? LOAD_INT8 : LOAD_BYTES, &m->weight);
    add_bytes(b, l.part[LINEAR_SCALE], m->format == W_MXFP4 ? LOAD_E8M0 : LOAD_SCALE, &m->scale);
    add_bytes(b, l.part[LINEAR_ZERO], LOAD_BYTES, &m->zero);
}

static bool is_real(const struct tensor *t)
{
    return t->dtype == DT_BF16 || t->dtype == DT_F16 || t->dtype == DT_F32;
}

/* A vector [n] that becomes floats. */
static void vector(struct binder *b, float **to, int n, const struct tensor *t, const char *what)
{
    struct load *l;

    if (b->rc)
        return;
    if (!t) {
        b->rc = fail(b->e, -EBADMSG, "%s:%s: missing", checkpoint_dir(b->c), what);
        return;
    }
    if (!is_real(t))
        b->rc = fail(b->e, -EBADMSG, "%s:%s: dtype %s, expected BF16, F16 or F32",
                     checkpoint_path(b->c, t->shard), t->name, dtype_name(t->dtype));
    else if (t->rank != 1 || t->dim[0] != n)
        b->rc = fail(b->e, -EBADMSG, "%s:%s: rank %d, %jd wide, expected [%d]",
                     checkpoint_path(b->c, t->shard), t->name, t->rank,
                     (intmax_t)(t->rank ? t->dim[t->rank - 1] : 0), n);
    if (b->rc)
        return;
    l = add_load(b, t, LOAD_FLOATS, (size_t)n * sizeof(float));
    if (l)
        l->to.floats = to;
}

static void norm(struct binder *b, float **to, int n, int layer, const char *name)
{
    char full[NAME_CAP];

    snprintf(full, sizeof(full), "%slayers.%d.%s.weight", b->prefix, layer, name);
    vector(b, to, n, checkpoint_find(b->c, full), full);
}

/* The scale of an FP8 cache, by any of its spellings; `to` keeps 1 where there is none. */
static void kv_scale(struct binder *b, float *to, int layer, const char *const spelling[4])
{
    const struct tensor *t = NULL;
    struct load *l;
    int i;

    *to = 1;
    for (i = 0; i < 4 && !t; i++)
        t = find(b, "%slayers.%d.self_attn.%s", b->prefix, layer, spelling[i]);
    if (!t || b->rc)
        return;
    if (!is_real(t) || t->rank > 1 || (t->rank == 1 && t->dim[0] != 1)) {
        b->rc = fail(b->e, -EBADMSG, "%s:%s: not one BF16, F16 or F32 number",
                     checkpoint_path(b->c, t->shard), t->name);
        return;
    }
    b->m->kv_scales = true;
    l = add_load(b, t, LOAD_ONE, 0);
    if (l)
        l->to.one = to;
}

static void attention(struct binder *b, int layer)
{
    const struct shape *s = &b->m->shape;
    struct layer_weights *w = &b->m->layer[layer];
    int width = s->layer[layer].heads * s->head_dim, kv = s->kv_heads * s->head_dim;
    int gate = s->layer[layer].gate_rows;
    static const char *const k_scales[] = { "k_scale", "attn.k_scale", "k_proj.k_scale",
                                            "k_proj.output_scale" };
    static const char *const v_scales[] = { "v_scale", "attn.v_scale", "v_proj.v_scale",
                                            "v_proj.output_scale" };
    const char *p = b->prefix;

    norm(b, &w->attn_norm, s->hidden, layer, "input_layernorm");
    norm(b, &w->ffn_norm, s->hidden, layer, "post_attention_layernorm");
    norm(b, &w->q_norm, s->head_dim, layer, "self_attn.q_norm");
    norm(b, &w->k_norm, s->head_dim, layer, "self_attn.k_norm");
    dense(b, &w->q, width, s->hidden, 0, "%slayers.%d.self_attn.q_proj", p, layer);
    dense(b, &w->k, kv, s->hidden, 0, "%slayers.%d.self_attn.k_proj", p, layer);
    dense(b, &w->v, kv, s->hidden, 0, "%slayers.%d.self_attn.v_proj", p, layer);
    dense(b, &w->o, s->hidden, width, 0, "%slayers.%d.self_attn.o_proj", p, layer);
    if (gate)
        dense(b, &w->g, gate, s->hidden, LINEAR_SQUEEZE, "%slayers.%d.self_attn.g_proj", p,
              layer);
    kv_scale(b, &w->k_scale, layer, k_scales);
    kv_scale(b, &w->v_scale, layer, v_scales);
}

/* A dense layer's FFN, or a shared expert. */
static void ffn(struct binder *b, struct ffn *f, int inner, int layer, const char *where)
{
    int hidden = b->m->shape.hidden;
    const char *p = b->prefix;

    dense(b, &f->gate, inner, hidden, 0, "%slayers.%d.%s.gate_proj", p, layer, where);
    dense(b, &f->up, inner, hidden, 0, "%slayers.%d.%s.up_proj", p, layer, where);
    dense(b, &f->down, hidden, inner, 0, "%slayers.%d.%s.down_proj", p, layer, where);
}

static void shared_expert(struct binder *b, int layer)
{
    static const char plural[] = "mlp.shared_experts";
    const char *where = "mlp.shared_expert";

    if (find(b, "%slayers.%d.%s.gate_proj.weight", b->prefix, layer, plural) ||
        find(b, "%slayers.%d.%s.gate_proj.weight_packed", b->prefix, layer, plural))
        where = plural;
    ffn(b, &b->m->layer[layer].ffn, b->m->shape.shared_inner, layer, where);
}

static void router(struct binder *b, int layer)
{
    static const char *const spelling[] = {
        "mlp.experts.e_score_correction_bias", "mlp.gate.e_score_correction_bias",
        "mlp.experts.e_score_correction",
    };
    const struct shape *s = &b->m->shape;
    struct layer_weights *w = &b->m->layer[layer];
    const struct tensor *bias = NULL;
    char name[NAME_CAP];
    int i;

    dense(b, &w->router, s->experts, s->hidden, LINEAR_BF16_ONLY, "%slayers.%d.mlp.gate",
          b->prefix, layer);
    for (i = 0; i < 3 && !bias; i++)
        bias = find(b, "%slayers.%d.%s", b->prefix, layer, spelling[i]);
    snprintf(name, sizeof(name), "%slayers.%d.%s", b->prefix, layer, spelling[0]);
    vector(b, &w->router_bias, s->experts, bias, name);
}

static void set_part(struct binder *b, struct part *p, const struct tensor *t)
{
    if (!t)
        return;
    use(b, t);
    *p = (struct part){ .shard = t->shard, .offset = t->offset, .bytes = t->bytes };
    b->m->expert_bytes += t->bytes;
}

/* One of an expert's three Linears: the matrix, and three parts from `part` on. */
static void expert_linear(struct binder *b, struct matrix *m, struct part *part, int rows,
                          int cols, const char *module)
{
    struct linear l;
    int i;

    if (b->rc)
        return;
    b->rc = linear_find(&l, b->c, b->q, module, rows, cols, 0, b->e);
    if (!b->rc && l.plain)
        b->rc = fail(b->e, -EBADMSG, "%s:%s: int-quantized experts are not supported, only "
                     "pack-quantized", checkpoint_path(b->c, l.part[0]->shard),
                     l.part[0]->name);
    if (b->rc)
        return;
    *m = l.m;
    use(b, l.shape);
    for (i = 0; i < LINEAR_PARTS; i++)
        set_part(b, &part[i], l.part[i]);
}

static void expert(struct binder *b, struct expert_source *x, int layer, int id)
{
    static const char *const name[3] = { "gate_proj", "up_proj", "down_proj" };
    struct matrix *m[3] = { &x->ffn.gate, &x->ffn.up, &x->ffn.down };
    int hidden = b->m->shape.hidden, inner = b->m->shape.expert_inner, k;
    char module[NAME_CAP];

    for (k = 0; k < 3; k++) {
        snprintf(module, sizeof(module), "%slayers.%d.mlp.experts.%d.%s", b->prefix, layer, id,
                 name[k]);
        expert_linear(b, m[k], &x->part[k * LINEAR_PARTS], k < 2 ? inner : hidden,
                      k < 2 ? hidden : inner, module);
    }
}

static int check_fused(const struct binder *b, const struct tensor *t, int64_t rows, int64_t cols)
{
    const char *path = checkpoint_path(b->c, t->shard);
    int64_t experts = b->m->shape.experts;

    if (t->dtype != DT_BF16)
        return fail(b->e, -EBADMSG, "%s:%s: dtype %s, fused experts must be BF16", path, t->name,
                    dtype_name(t->dtype));
    if (t->rank != 3 || t->dim[0] != experts || t->dim[1] != rows || t->dim[2] != cols)
        return fail(b->e, -EBADMSG, "%s:%s: rank %d, expected [%jd, %jd, %jd]", path, t->name,
                    t->rank, (intmax_t)experts, (intmax_t)rows, (intmax_t)cols);
    return 0;
}

/* All experts of a layer in two tensors: gate and up [experts][2 * inner][hidden], the
 * gate's rows first, and down [experts][hidden][inner]. */
static void fused_experts(struct binder *b, struct expert_source *x, int layer,
                          const struct tensor *gate_up)
{
    const struct shape *s = &b->m->shape;
    const struct tensor *down = find(b, "%slayers.%d.mlp.experts.down_proj", b->prefix, layer);
    uint64_t bytes = (uint64_t)s->hidden * (uint64_t)s->expert_inner * sizeof(bf16);
    int i;

    if (!down)
        b->rc = fail(b->e, -EBADMSG, "%s:%slayers.%d.mlp.experts.down_proj: missing",
                     checkpoint_dir(b->c), b->prefix, layer);
    if (!b->rc)
        b->rc = check_fused(b, gate_up, 2 * (int64_t)s->expert_inner, s->hidden);
    if (!b->rc)
        b->rc = check_fused(b, down, s->hidden, s->expert_inner);
    if (b->rc)
        return;
    use(b, gate_up);
    use(b, down);
    b->m->expert_bytes += gate_up->bytes + down->bytes;
    for (i = 0; i < s->experts; i++, x++) {
        uint64_t at = gate_up->offset + 2 * bytes * (uint64_t)i;

        x->ffn.gate = x->ffn.up = (struct matrix){ .format = W_BF16, .rows = s->expert_inner,
                                                   .cols = s->hidden };
        x->ffn.down = (struct matrix){ .format = W_BF16, .rows = s->hidden,
                                       .cols = s->expert_inner };
        x->part[0] = (struct part){ gate_up->shard, at, bytes };
        x->part[LINEAR_PARTS] = (struct part){ gate_up->shard, at + bytes, bytes };
        x->part[2 * LINEAR_PARTS] = (struct part){ down->shard,
                                                   down->offset + bytes * (uint64_t)i, bytes };
    }
}

static void sparse_layer(struct binder *b, int layer)
{
    const struct shape *s = &b->m->shape;
    struct expert_source *x = &b->m->expert[(size_t)b->m->sparse_index[layer] *
                                            (size_t)s->experts];
    const struct tensor *fused;
    int i;

    router(b, layer);
    if (s->shared_inner)
        shared_expert(b, layer);
    if (b->rc)
        return;
    fused = find(b, "%slayers.%d.mlp.experts.gate_up_proj", b->prefix, layer);
    if (fused) {
        fused_experts(b, x, layer, fused);
        return;
    }
    for (i = 0; i < s->experts && !b->rc; i++)
        expert(b, &x[i], layer, i);
}

/* Tensors that no matrix wanted.  A few kinds are known to mean nothing to us. */
static void check_leftovers(struct binder *b, struct log *l)
{
    static const struct {
        const char *end, *why;          /* why NULL: dropped */
    } known[] = {
        { ".rotary_emb.inv_freq", NULL },
        { ".input_scale", NULL },
        { ".input_global_scale", NULL },
        { ".weight_g_idx", "act-ordered weights are not supported" },
        { ".weight_global_scale", "NVFP4 is not supported" },
        { ".weight_zero_point", "zero points where the configuration says symmetric" },
        { ".sink", "attention sinks are not supported" },
    };
    const struct tensor *first = NULL;
    size_t i, k, dropped = 0;

    for (i = 0; i < checkpoint_count(b->c) && !b->rc; i++) {
        const struct tensor *t = checkpoint_tensor(b->c, i);
        const char *why = "not part of this model, as its configuration has it";
        size_t n = strlen(t->name);

        if (b->used[i] || !t->bytes)
            continue;
        for (k = 0; k < sizeof(known) / sizeof(known[0]); k++)
            if (n > strlen(known[k].end) &&
                !strcmp(t->name + n - strlen(known[k].end), known[k].end))
                why = known[k].why;
        if (why)
            b->rc = fail(b->e, -EBADMSG, "%s:%s: %s", checkpoint_path(b->c, t->shard), t->name,
                         why);
        first = first ? first : t;
        dropped++;
    }
    if (!b->rc && dropped)
        warn(l, "%s: %zu tensors have no use and are ignored, the first is %s",
             checkpoint_dir(b->c), dropped, first->name);
}

static void bind_all(struct binder *b)
{
    struct model *m = b->m;
    const struct shape *s = &m->shape;
    char name[NAME_CAP];
    int i;

    dense(b, &m->embed, s->vocab, s->hidden, LINEAR_BF16_ONLY, "%sembed_tokens", b->prefix);
    dense(b, &m->head, s->vocab, s->hidden, LINEAR_BF16_ONLY, "lm_head");
    snprintf(name, sizeof(name), "%snorm.weight", b->prefix);
    vector(b, &m->final_norm, s->hidden, checkpoint_find(b->c, name), name);
    for (i = 0; i < s->layers && !b->rc; i++) {
        attention(b, i);
        if (s->layer[i].dense)
            ffn(b, &m->layer[i].ffn, s->dense_inner, i, "mlp");
        else
            sparse_layer(b, i);
    }
}

/* Rows of m->expert for the sparse layers, their parts all absent. */
static int make_experts(struct model *m, struct err *e)
{
    size_t n = (size_t)m->shape.sparse_layers * (size_t)m->shape.experts, i;
    int layer, k, row = 0;

    m->expert = calloc(n ? n : 1, sizeof(*m->expert));
    if (!m->expert)
        return fail(e, -ENOMEM, "no memory for %zu experts", n);
    for (i = 0; i < n; i++)
        for (k = 0; k < EXPERT_PARTS; k++)
            m->expert[i].part[k].shard = -1;
    for (layer = 0; layer < m->shape.layers; layer++)
        m->sparse_index[layer] = m->shape.layer[layer].dense ? -1 : row++;
    return 0;
}

int model_bind(struct model *m, const struct quant *q, struct log *l, struct err *e)
{
    struct binder b = { .m = m, .c = m->checkpoint, .q = q, .e = e };

    b.prefix = checkpoint_find(b.c, "model.embed_tokens.weight") ||
               !checkpoint_find(b.c, "embed_tokens.weight") ? "model." : "";
    b.rc = make_experts(m, e);
    if (!b.rc) {
        b.used = calloc(checkpoint_count(b.c), 1);
        if (!b.used)
            b.rc = fail(e, -ENOMEM, "no memory for %zu tensors", checkpoint_count(b.c));
    }
    if (!b.rc)
        bind_all(&b);
    if (!b.rc)
        check_leftovers(&b, l);
    free(b.used);
    return b.rc;
}
