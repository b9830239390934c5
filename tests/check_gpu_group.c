/* The routed experts of a batch when each has another number of tokens: the products of
 * cuda/grouped.cu, whose tiles depend on it.  Run as check_gpu is: on a machine with a GPU by
 * `make check-gpu`, else over gpu_ref.c by `make check`. */
#include "tests/gpu_steps.h"
#include "tests/tap.h"

static bool on_gpu;                     /* set once, by main() */

static const char *const formats[W_FORMATS] = { "bf16", "int8", "int4", "mxfp4" };

/* Tokens of experts 0 to 9.  Every token goes to one of 10 and 11 as well, and none to 12. */
static const int counts[] = { 1, 2, 15, 16, 17, 63, 64, 65, 129, 300 };
enum { FIRST = sizeof(counts) / sizeof(*counts), EXPERTS = FIRST + 3, ABSENT = 7, LAYER = 1 };

struct group_case {
    enum wformat format;
    int hidden, inner, group;
    bool zero;
    bool mixed;                         /* each expert's matrices in formats of their own */
    int times;                          /* that every count is taken */
};

static int primary_of(int token, int times)
{
    int x = 0;

    for (int end = counts[0] * times; token >= end; end += counts[x] * times)
        x++;
    return x;
}

static int second_of(int token)
{
    return FIRST + (token % 7 == 0);
}

/* Experts that differ in all formats, gate and up of one too. */
static void mix_formats(struct toy *t)
{
    for (int x = 0; x < t->s.layers * EXPERTS; x++) {
        struct ffn *f = &t->expert[x].ffn;
        int inner = t->s.expert_inner, hidden = t->s.hidden;

        f->gate = toy_matrix(t, (enum wformat)(x % W_FORMATS), inner, hidden);
        f->up = toy_matrix(t, (enum wformat)(x / 3 % W_FORMATS), inner, hidden);
        f->down = toy_matrix(t, (enum wformat)(x / 2 % W_FORMATS), hidden, inner);
    }
}

/* Its router has an expert for each of the first columns, and no preferences. */
static void group_toy(struct toy *t, const struct group_case *c)
{
    struct shape *s = &t->s;
    static float zero[EXPERTS];

    *t = (struct toy){ .format = c->format, .group = c->group, .zero = c->zero, .seed = 4711 };
    base_shape(s);
    s->hidden = c->hidden;
    s->head_dim = 64;
    s->kv_heads = 1;
    s->window = 32;
    s->vocab = 8;
    s->experts = EXPERTS;
    s->topk = 2;
    s->expert_inner = c->inner;
    s->dense_inner = 32;
    s->rope_full = toy_rope(32, 500000, 1);
    s->rope_window = toy_rope(64, 10000, 1);
    set_layers(s, 2, 1, 1);
    toy_make(t, EXPERTS);
    if (c->mixed)
        mix_formats(t);
    for (int x = 0; x < EXPERTS; x++)
        for (int i = 0; i < c->hidden; i++)
            ((bf16 *)(uintptr_t)t->layer[LAYER].router.weight)[x * c->hidden + i] =
                f32_to_bf16(i == x);
    t->layer[LAYER].router_bias = zero;
}

static struct gpu *open_group(const struct toy *t, int n)
{
    struct gpu_config c = toy_config(t, n, n, GPU_KV_BF16);

    for (int x = 0; x < t->s.layers * EXPERTS; x++)
        if (c.slot_bytes < gpu_ffn_bytes(&t->expert[x].ffn))
            c.slot_bytes = gpu_ffn_bytes(&t->expert[x].ffn);
    return toy_gpu(t, &c, EXPERTS);
}

/* What the layer makes of x, all but the absent expert, in two calls: [n][hidden]. */
static struct route run_group(struct gpu *g, int n, const float *x, float *got)
{
    static uint16_t id[EXPERTS];
    int32_t *token = toy_memory((size_t)n * sizeof(*token));
    struct batch b = { token, n, 0 };
    struct route r = { 0, 0, NULL, NULL };
    struct err e = { "" };
    int all = 0;

    for (int i = 0; i < EXPERTS; i++)
        if (i != ABSENT)
            id[all++] = (uint16_t)i;
    gpu_embed(g, &b);
    must(gpu_write_hidden(g, x, &e), &e);
    must(gpu_route(g, LAYER, &r, &e), &e);
    gpu_experts(g, id, 4);
    gpu_experts(g, id + 4, all - 4);
    gpu_combine(g);
    must(gpu_read_hidden(g, got, &e), &e);
    return r;
}

/* How far the token's step is from plain C's, as a share of its size. */
static double token_error(const struct toy *t, const struct route *r, int token, const float *x,
                          const float *got)
{
    size_t hidden = (size_t)t->s.hidden, at = (size_t)token * (size_t)t->s.topk;
    float *h = toy_memory(hidden * 4), *want = toy_memory(hidden * 4);
    double d = 0, size = 0;

    ref_norm(h, x, t->layer[LAYER].ffn_norm, t->s.hidden, t->s.norm_eps);
    for (size_t k = at; k < at + 2; k++)
        if (r->expert[k] != ABSENT)
            plain_ffn(&t->expert[LAYER * EXPERTS + r->expert[k]].ffn, h,
                      r->weight[k] * t->s.route_scale, want);
    for (size_t i = 0; i < hidden; i++) {
        double step = (double)got[i] - (double)x[i];

        d += (step - want[i]) * (step - want[i]);
        size += (double)want[i] * want[i];
    }
    return isfinite(d) ? sqrt(d / size) : 1e9;
}

static void check_group(const struct group_case *c)
{
    struct toy t, noise = { .seed = 17 };
    size_t hidden = (size_t)c->hidden, all;
    int n = 0, misled = 0;
    float *x, *got, *again;
    struct route r;
    struct gpu *g;
    double worst = 0;

    for (int i = 0; i < FIRST; i++)
        n += counts[i] * c->times;
    all = (size_t)n * hidden;
    group_toy(&t, c);
    g = open_group(&t, n);
    x = toy_floats(&noise, (int)all, 0, 1);
    got = toy_memory(all * 4);
    again = toy_memory(all * 4);
    for (int i = 0; i < n; i++) {
        x[(size_t)i * hidden + (size_t)primary_of(i, c->times)] = 6;
        x[(size_t)i * hidden + (size_t)second_of(i)] = 5;
    }
    run_group(g, n, x, again);
    r = run_group(g, n, x, got);
    for (int i = 0; i < n; i++) {
        misled += r.expert[2 * i] != primary_of(i, c->times) || r.expert[2 * i + 1] != second_of(i);
        if (i % (on_gpu ? c->times : 5) == 0)
            worst = fmax(worst, token_error(&t, &r, i, x + (size_t)i * hidden,
                                            got + (size_t)i * hidden));
    }
    ok(!misled, "%d tokens go where they should: %d do not", n, misled);
    ok(worst < 8e-3, "experts of %d tokens, %s%s, %d x %d, group %d: at worst %.2g", n,
       c->mixed ? "formats mixed" : formats[c->format], c->zero ? " with zero points" : "",
       c->hidden, c->inner, c->group, worst);
    ok(!memcmp(got, again, all * 4), "and the same bits again");
    gpu_close(g);
}

int main(void)
{
    static const int shapes[][3] = { { 96, 160, 32 }, { 288, 32, 96 }, { 256, 128, 128 } };
    static const struct group_case mixed = { W_BF16, 160, 96, 32, true, true, 1 };
    static const struct group_case waves = { W_INT4, 96, 32, 32, false, false, 13 };
    struct gpu_facts facts[MAX_GPUS];
    struct err e = { "" };

    on_gpu = gpu_list(facts, &e) > 0;
    if (!on_gpu && !gpu_is_reference()) {
        printf("1..0 # SKIP no GPU %s\n", e.text);
        return 0;
    }
    for (int f = 0; f < W_FORMATS; f++)
        for (int i = 0; i < 3; i++)
            for (int zero = 0; zero < (f == W_INT8 || f == W_INT4 ? 2 : 1); zero++) {
                struct group_case c = { (enum wformat)f, shapes[i][0], shapes[i][1], shapes[i][2],
                                        zero, false, 1 };

                if (on_gpu || (f + i + zero) % 3 == 0)
                    check_group(&c);
            }
    check_group(&mixed);
    if (on_gpu)
        check_group(&waves);
    return done();
}
