/* What moves between a GPU and host memory: rows of the cache, and experts.  Run as check_gpu
 * is: on a machine with a GPU by `make check-gpu`, else over gpu_ref.c by `make check`. */
#include "tests/gpu_host.h"
#include "tests/tap.h"

static bool on_gpu;                     /* set once, by main() */

static const char *const formats[W_FORMATS] = { "bf16", "int8", "int4", "mxfp4" };
static const char *const caches[GPU_KV_TYPES] = { "q8", "fp8", "bf16" };

/* --- rows of the cache ------------------------------------------------------------------------ */

enum { CONTEXT = 120, BATCH = 16, RING = 64 + BATCH };

static struct gpu_rows take_rows(const struct gpu_config *c, int rows)
{
    size_t n = (size_t)rows * (size_t)c->shape->kv_heads;
    size_t bytes = n * (size_t)c->shape->head_dim * (c->kv == GPU_KV_BF16 ? 2 : 1);
    struct gpu_rows r = { toy_memory(bytes), toy_memory(bytes), NULL, NULL, rows };

    if (c->kv == GPU_KV_Q8) {
        r.k_scale = toy_memory(n * sizeof(uint16_t));
        r.v_scale = toy_memory(n * sizeof(uint16_t));
    }
    memset(r.k, 0x55, bytes);
    memset(r.v, 0x55, bytes);
    if (r.k_scale) {
        memset(r.k_scale, 0x55, n * sizeof(uint16_t));
        memset(r.v_scale, 0x55, n * sizeof(uint16_t));
    }
    return r;
}

/* Host memory for every layer. */
static void take_cache(struct gpu_rows r[MAX_LAYERS], const struct gpu_config *c)
{
    for (int i = 0; i < c->shape->layers; i++)
        r[i] = take_rows(c, c->shape->layer[i].full ? CONTEXT : RING);
}

/* In two parts, so that a range that starts inside is among them. */
static void read_cache(struct gpu *g, const struct shape *s, const struct gpu_rows r[MAX_LAYERS])
{
    struct err e = { "" };

    for (int i = 0; i < s->layers; i++) {
        must(gpu_read_rows(g, i, 0, 37, &r[i], &e), &e);
        must(gpu_read_rows(g, i, 37, r[i].rows - 37, &r[i], &e), &e);
    }
    must(gpu_wait(g, &e), &e);
}

static void write_cache(struct gpu *g, const struct shape *s, const struct gpu_rows r[MAX_LAYERS])
{
    struct err e = { "" };

    for (int i = 0; i < s->layers; i++) {
        must(gpu_write_rows(g, i, 41, r[i].rows - 41, &r[i], &e), &e);
        must(gpu_write_rows(g, i, 0, 41, &r[i], &e), &e);
    }
}

/* Logits [vocab] of a step at pos, then what a batch of 5 there has in its residual stream after
 * all attentions [5][hidden].  Neither moves a row that a later call at pos would look at. */
static int look_back(const struct toy *t, struct gpu *g, int pos, float *out)
{
    int32_t token[5] = { 7, 11, 13, 17, 19 };
    struct batch one = { token, 1, pos }, five = { token, 5, pos };
    struct err e = { "" };
    int rc = run_step(t, g, &one, out, &e);

    gpu_embed(g, &five);
    for (int i = 0; i < t->s.layers; i++)
        gpu_attention(g, i);
    must(gpu_read_hidden(g, out + t->s.vocab, &e), &e);
    return rc;
}

/* A read of rows 3..9 of a head's 80 changes those rows of host memory alone. */
static bool reads_only_the_range(struct gpu *g, const struct gpu_config *c,
                                 const struct gpu_rows *whole)
{
    struct gpu_rows part = take_rows(c, whole->rows);
    size_t each = (size_t)c->shape->head_dim * (c->kv == GPU_KV_BF16 ? 2 : 1);
    struct err e = { "" };
    bool good = true;

    must(gpu_read_rows(g, 1, 3, 7, &part, &e), &e);
    must(gpu_wait(g, &e), &e);
    for (int i = 0; i < c->shape->kv_heads * whole->rows; i++) {
        bool inside = i % whole->rows >= 3 && i % whole->rows < 10;
        size_t at = (size_t)i * each;

        if (inside)
            good &= !memcmp(part.k + at, whole->k + at, each) &&
                    !memcmp(part.v + at, whole->v + at, each);
        for (size_t b = at; b < at + each && !inside; b++)
            good &= part.k[b] == 0x55 && part.v[b] == 0x55;
        if (part.k_scale)
            good &= part.k_scale[i] == (inside ? whole->k_scale[i] : 0x5555) &&
                    part.v_scale[i] == (inside ? whole->v_scale[i] : 0x5555);
    }
    return good;
}

static void check_ranges(struct gpu *g, const struct gpu_rows *ring)
{
    struct gpu_rows other = *ring;
    struct err e = { "" };

    other.rows--;
    ok(gpu_read_rows(g, 1, 0, 1, &other, &e) == -EINVAL &&
       gpu_write_rows(g, 1, 0, 1, &other, &e) == -EINVAL, "another number of rows: %s", e.text);
    ok(gpu_read_rows(g, 1, RING - 1, 2, ring, &e) == -EINVAL &&
       gpu_write_rows(g, 1, -1, 2, ring, &e) == -EINVAL &&
       gpu_write_rows(g, 1, RING + 1, 0, ring, &e) == -EINVAL, "rows outside: %s", e.text);
    ok(!gpu_read_rows(g, 1, RING, 0, ring, &e) && !gpu_write_rows(g, 1, 0, 0, ring, &e),
       "no rows are nothing");
}

/* A session parked in RAM: read, overwritten by another, and brought back. */
static void check_rows(enum gpu_kv kv)
{
    struct toy t;
    struct gpu_config c;
    struct gpu *g;
    struct gpu_rows saved[MAX_LAYERS], garbage[MAX_LAYERS];
    struct err e = { "" };
    int32_t token[BATCH];
    size_t n;
    float *before, *after;
    int pos = 0, rc;

    small_toy(&t, W_INT4);
    c = toy_config(&t, CONTEXT, BATCH, kv);
    c.own_products = true;
    g = toy_gpu(&t, &c, 24);
    n = (size_t)(t.s.vocab + 5 * t.s.hidden) * sizeof(float);
    before = toy_memory(n);
    after = toy_memory(n);
    must(gpu_capture(g, 1, &e), &e);
    must(gpu_capture(g, BATCH, &e), &e);
    for (; pos < 96; pos += BATCH) {            /* the rings of 80 rows have gone round */
        struct batch b = { token, BATCH, pos };

        for (int i = 0; i < BATCH; i++)
            token[i] = (pos + i) * 37 % t.s.vocab;
        must(run_step(&t, g, &b, toy_memory(BATCH * (size_t)t.s.vocab * 4), &e), &e);
    }
    take_cache(saved, &c);
    take_cache(garbage, &c);
    must(look_back(&t, g, pos, before), &e);
    read_cache(g, &t.s, saved);
    write_cache(g, &t.s, garbage);
    rc = look_back(&t, g, pos, after);
    ok(rc < 0 || memcmp(before, after, n), "%s rows overwritten: other results", caches[kv]);
    write_cache(g, &t.s, saved);
    ok(!look_back(&t, g, pos, after) && !memcmp(before, after, n),
       "%s rows brought back: the same bits", caches[kv]);
    ok(reads_only_the_range(g, &c, &saved[1]), "%s: a range of rows, and no others", caches[kv]);
    check_ranges(g, &saved[1]);
    gpu_close(g);
}

/* --- pinned memory ---------------------------------------------------------------------------- */

/* A GPU is open. */
static void check_pinning(void)
{
    uint8_t *p = take_pages();
    struct err e = { "" };
    int rc = gpu_pin(p, PIN_BYTES, &e);

    ok(!rc, "4 MB pinned: %s", e.text);
    if (on_gpu) {
        rc = gpu_pin(p, PIN_BYTES, &e);
        ok(rc == -ENOMEM && *e.text, "but not twice: %d %s", rc, e.text);
    }
    gpu_unpin(p);
    gpu_unpin(p);
    ok(!gpu_pin(p, PIN_BYTES, &e), "unpinned, and pinned again");
    gpu_unpin(p);
    munmap(p, PIN_BYTES);
}

static void count_round(void *arg)
{
    ++*(int *)arg;
}

/* Also while a GPU is open. */
static void check_beside(void)
{
    int rounds = 0;
    struct gpu_beside b = { .round = count_round, .arg = &rounds };
    struct err e = { "" };
    double start = clock_now();
    int rc = gpu_measure_beside(MAX_GPUS + 1, &b, &e);

    ok(rc == -ENODEV && *e.text && !rounds, "nothing to measure beside: %s", e.text);
    rc = gpu_measure_beside(0, &b, &e);
    if (on_gpu)
        ok(!rc && rounds > 0 && b.h2d_gbps > 0.1 && clock_now() - start < 1,
           "%.1f GB/s beside %d rounds of the host", b.h2d_gbps, rounds);
    else
        ok(rc == -ENODEV && !rounds, "no GPU to measure beside: %s", e.text);
}

/* Also while a GPU is open. */
static void check_measure(void)
{
    struct gpu_speeds s = { 0, 0, 0 };
    struct err e = { "" };
    int rc = gpu_measure(MAX_GPUS + 1, &s, &e);

    ok(rc == -ENODEV && *e.text, "nothing to measure: %s", e.text);
    rc = gpu_measure(0, &s, &e);
    if (on_gpu)
        ok(!rc && s.vram_gbps > s.h2d_gbps && s.h2d_gbps > 0.1, "%.0f GB/s inside, %.1f GB/s to it",
           s.vram_gbps, s.h2d_gbps);
    else
        ok(rc == -ENODEV, "no GPU to measure: %s", e.text);
}

/* --- experts ---------------------------------------------------------------------------------- */

static bool same_bytes(const struct ffn *a, const struct ffn *b)
{
    const struct matrix *am[] = { &a->gate, &a->up, &a->down };
    const struct matrix *bm[] = { &b->gate, &b->up, &b->down };
    bool same = true;

    for (int i = 0; i < 3; i++) {
        struct pieces pa = pieces_of(am[i]), pb = pieces_of(bm[i]);

        for (int k = 0; k < 3; k++)
            same &= pa.n[k] == pb.n[k] && (!pa.n[k] || !memcmp(pa.p[k], pb.p[k], pa.n[k]));
    }
    return same;
}
static void check_read_slot(enum wformat f)
{
    struct toy t;
    struct gpu_config c;
    struct gpu *g;
    const struct expert *a, *b;
    struct expert first, second, wrong;
    size_t bytes;
    uint8_t *memory;
    struct err e = { "" };

    small_toy(&t, f);
    t.zero = f == W_INT4 || f == W_INT8;
    toy_make(&t, 24);
    c = toy_config(&t, 64, 16, GPU_KV_BF16);
    g = toy_gpu(&t, &c, 0);
    a = &t.expert[t.s.experts];
    b = a + 1;
    bytes = gpu_ffn_bytes(&a->ffn);
    memory = toy_memory(2 * bytes);
    first = copy_expert(b, memory);
    second = copy_expert(a, memory + bytes);
    ok(gpu_read_slot(g, 3, &first, &e) == -EINVAL, "an empty slot has nothing to read: %s", e.text);
    must(gpu_fill_slot(g, 3, a, &e), &e);
    must(gpu_read_slot(g, 3, &first, &e), &e);
    must(gpu_fill_slot(g, 3, b, &e), &e);
    must(gpu_read_slot(g, 3, &second, &e), &e);
    while (!gpu_slot_ready(g, 3))
        ;
    ok(same_bytes(&first.ffn, &a->ffn) && !same_bytes(&a->ffn, &b->ffn),
       "%s: a slot read before the next fill", formats[f]);
    ok(same_bytes(&second.ffn, &b->ffn), "%s: and after it", formats[f]);
    wrong = first;
    wrong.ffn.up.rows /= 2;
    ok(gpu_read_slot(g, 3, &wrong, &e) == -EINVAL, "another shape: %s", e.text);
    gpu_close(g);
}

int main(void)
{
    struct toy t;
    struct gpu_config c;
    struct gpu_facts facts[MAX_GPUS];
    struct err e = { "" };
    struct gpu *g;

    on_gpu = gpu_list(facts, &e) > 0;
    small_toy(&t, W_INT4);
    c = toy_config(&t, CONTEXT, BATCH, GPU_KV_Q8);
    g = toy_gpu(&t, &c, 0);
    if (!g) {
        printf("1..0 # SKIP no GPU\n");
        return 0;
    }
    check_pinning();
    check_measure();
    check_beside();
    gpu_close(g);
    for (int kv = 0; kv < GPU_KV_TYPES; kv++)
        check_rows((enum gpu_kv)kv);
    for (int f = 0; f < W_FORMATS; f++)
        check_read_slot((enum wformat)f);
    return done();
}
