/* What moves between a GPU and host memory: rows of the cache, and experts.  Run as check_gpu
 * is: on a machine with a GPU by `make check-gpu`, else over gpu_ref.c by `make check`. */
#include "tests/gpu_steps.h"
#include "tests/tap.h"

#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

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

enum { PIN_BYTES = 4 << 20 };

static uint8_t *take_pages(void)
{
    void *p = mmap(NULL, PIN_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

    if (p == MAP_FAILED)
        must(-ENOMEM, &(struct err){ "mmap" });
    return p;
}

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

/* The parts of a matrix: where, and how many bytes. */
struct pieces {
    const void *p[3];
    size_t n[3];
};

static struct pieces pieces_of(const struct matrix *m)
{
    static const size_t bits[W_FORMATS] = { 16, 8, 4, 4 };
    size_t rows = (size_t)m->rows, cols = (size_t)m->cols;
    struct pieces all = { { m->weight, m->scale, m->zero }, { rows * cols * bits[m->format] / 8 } };

    if (m->format == W_BF16)
        return all;
    all.n[1] = rows * (cols / (size_t)m->group) * (m->format == W_MXFP4 ? 1 : 2);
    if (m->zero)
        all.n[2] = (rows * bits[m->format] + 31) / 32 * 4 * (cols / (size_t)m->group);
    return all;
}

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

static struct matrix copy_matrix(const struct matrix *m, uint8_t **at)
{
    struct pieces from = pieces_of(m);
    const void *to[3] = { NULL, NULL, NULL };
    struct matrix copy = *m;

    for (int k = 0; k < 3; k++)
        if (from.n[k]) {
            to[k] = memcpy(*at, from.p[k], from.n[k]);
            *at += align_up(from.n[k], 16);
        }
    copy.weight = to[0];
    copy.scale = to[1];
    copy.zero = to[2];
    return copy;
}

/* The expert once more, in memory from `at` on, where gpu_ffn_bytes() are free. */
static struct expert copy_expert(const struct expert *x, void *at)
{
    uint8_t *next = at;
    struct expert copy = *x;

    copy.ffn.gate = copy_matrix(&x->ffn.gate, &next);
    copy.ffn.up = copy_matrix(&x->ffn.up, &next);
    copy.ffn.down = copy_matrix(&x->ffn.down, &next);
    return copy;
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

/* --- offers ----------------------------------------------------------------------------------- */

/* Every other expert of the last two layers lies in host memory, the copies `apart` bytes off a
 * multiple of 16.  Offered, they take the last slots, which nobody sits in. */
struct away {
    struct expert x[2][MAX_EXPERTS];
    int most;                           /* offers of the last layer's share; the other's: all */
};

enum { AWAY = 3 };                      /* and 4, of five layers */

static void send_away(const struct toy *t, struct gpu *g, struct away *a, uint8_t *memory,
                      int apart)
{
    for (int layer = AWAY; layer < t->s.layers; layer++)
        for (int id = 0; id < t->s.experts; id += 2) {
            const struct expert *x = &t->expert[layer * t->s.experts + id];

            a->x[layer - AWAY][id] = copy_expert(x, memory + apart);
            memory += align_up(gpu_ffn_bytes(&x->ffn), 16) + 16;
            gpu_seat(g, layer, id, -1);
        }
}

static int free_slot(const struct toy *t, int id)
{
    return (t->s.layers - 1) * t->s.experts + id;
}

/* Offer what the share wants of them; `left` are the pairs that stay the CPU's. */
static int offer(const struct toy *t, struct gpu *g, const struct away *a,
                 const struct gpu_share *s, bool left[])
{
    struct gpu_offer o[GPU_OFFERS];
    struct err e = { "" };
    int n = 0, most = s->layer == t->s.layers - 1 ? a->most : GPU_OFFERS;

    for (int i = 0; i < s->pairs; i++) {
        int id = s->expert[i], k = 0;

        while (k < n && o[k].expert->id != id)
            k++;
        if (k == n && n < most)
            o[n++] = (struct gpu_offer){ &a->x[s->layer - AWAY][id], free_slot(t, id) };
        left[i] = k == n;
    }
    must(gpu_offer(g, o, n, &e), &e);
    return n;
}

/* A step with offers: how many were made, or the error. */
static int offering_step(const struct toy *t, struct gpu *g, const struct batch *b,
                         const struct away *a, float *logits)
{
    size_t hidden = (size_t)t->s.hidden;
    bool left[GPU_STEP_TOKENS * MAX_TOPK];
    struct gpu_share s;
    struct err e = { "" };
    int rc, made = 0;

    must(gpu_step(g, b, true, &e), &e);
    while ((rc = gpu_next_share(g, &s, &e)) > 0) {
        memset(s.partial, 0, (size_t)s.tokens * hidden * sizeof(float));
        memset(left, 1, sizeof(left));
        if (s.layer == AWAY || a->most >= 0)
            made += offer(t, g, a, &s, left);
        for (int i = 0; i < s.pairs; i++)
            if (left[i])
                plain_ffn(&t->expert[s.layer * t->s.experts + s.expert[i]].ffn,
                          s.h + s.token[i] * hidden, s.weight[i], s.partial + s.token[i] * hidden);
        gpu_answer(g);
    }
    if (!rc)
        rc = gpu_read_logits(g, 0, b->tokens, logits, &e);
    return rc ? rc : made;
}

static float distance(const float *a, const float *b, size_t n)
{
    float most = 0, largest = 0;

    for (size_t i = 0; i < n; i++) {
        most = fmaxf(most, fabsf(a[i] - b[i]));
        largest = fmaxf(largest, fabsf(a[i]));
    }
    return most / largest;
}

/* Steps of n tokens: all are offered, or of the last layer one, none, and none spoken of. */
static void check_offering(const struct toy *t, struct gpu *g, struct away *a, int n,
                           const float *seated)
{
    static const int most[] = { GPU_OFFERS, 1, 0, -1 };
    size_t all = (size_t)n * (size_t)t->s.vocab;
    float *z = toy_memory(all * sizeof(float));
    int32_t token[GPU_STEP_TOKENS];
    struct batch b = { token, n, 0 };

    for (int i = 0; i < n; i++)
        token[i] = 5 + i * 29;
    for (int i = 0; i < 4; i++) {
        int made;

        a->most = most[i];
        made = offering_step(t, g, &b, a, z);
        ok(made > 0 && distance(seated, z, all) < 0.01f,
           "%s, %d tokens, at most %d: %d offered, %.1e from seated", formats[t->format], n,
           most[i], made, (double)distance(seated, z, all));
        if (!i)
            ok(!memcmp(seated, z, all * sizeof(float)) && gpu_fetch_seconds(g) > 0,
               "the same bits, in %.1f us", gpu_fetch_seconds(g) * 1e6);
    }
}

/* What lies in host memory is read anew by each step, wherever it begins. */
static void check_reread(const struct toy *t, struct gpu *g, struct away *a, uint8_t *memory,
                         const float *seated)
{
    size_t n = (size_t)t->s.vocab * sizeof(float);
    float *z = toy_memory(n);
    uint8_t *kept = toy_memory(PIN_BYTES);
    int32_t token[1] = { 5 };
    struct batch b = { token, 1, 0 };
    bool other;

    a->most = GPU_OFFERS;
    memcpy(kept, memory, PIN_BYTES);
    memset(memory, 0x11, PIN_BYTES);
    other = offering_step(t, g, &b, a, z) > 0 && memcmp(z, seated, n);
    memcpy(memory, kept, PIN_BYTES);
    ok(other && offering_step(t, g, &b, a, z) > 0 && !memcmp(z, seated, n),
       "other bytes, other logits; the old ones, the same bits");
}

static void check_too_large(const struct toy *t, struct gpu *g, struct away *a)
{
    int32_t token[1] = { 5 };
    struct batch b = { token, 1, 0 };
    bool left[GPU_STEP_TOKENS * MAX_TOPK];
    struct expert big = a->x[0][0];
    struct gpu_share s;
    struct err e = { "" };

    big.ffn = t->layer[0].ffn;
    must(gpu_step(g, &b, true, &e), &e);
    must(gpu_next_share(g, &s, &e) - 1, &e);
    ok(gpu_offer(g, &(struct gpu_offer){ &big, free_slot(t, 0) }, 1, &e) == -E2BIG,
       "too large: %s", e.text);
    do {
        memset(s.partial, 0, (size_t)t->s.hidden * sizeof(float));
        offer(t, g, a, &s, left);
        gpu_answer(g);
    } while (gpu_next_share(g, &s, &e) > 0);
    must(gpu_wait(g, &e), &e);
}

static void check_offers(enum wformat f, int apart)
{
    struct toy t;
    struct gpu_config c;
    struct gpu *g;
    struct err e = { "" };
    struct away a;
    int32_t token[GPU_STEP_TOKENS];
    struct batch one = { token, 1, 0 }, all = { token, GPU_STEP_TOKENS, 0 };
    uint8_t *memory = take_pages();
    float *first, *many;

    small_toy(&t, f);
    t.zero = f == W_INT4 || f == W_INT8;
    toy_make(&t, 24);
    c = toy_config(&t, 64, 17, GPU_KV_BF16);
    g = toy_gpu(&t, &c, 24);
    first = toy_memory((size_t)t.s.vocab * sizeof(float));
    many = toy_memory((size_t)t.s.vocab * GPU_STEP_TOKENS * sizeof(float));
    for (int i = 0; i < GPU_STEP_TOKENS; i++)
        token[i] = 5 + i * 29;
    must(gpu_pin(memory, PIN_BYTES, &e), &e);
    must(gpu_capture(g, 1, &e), &e);
    must(gpu_capture(g, GPU_STEP_TOKENS, &e), &e);
    must(run_step(&t, g, &one, first, &e), &e);
    must(run_step(&t, g, &all, many, &e), &e);
    send_away(&t, g, &a, memory, apart);
    check_offering(&t, g, &a, 1, first);
    check_offering(&t, g, &a, GPU_STEP_TOKENS, many);
    check_reread(&t, g, &a, memory, first);
    check_too_large(&t, g, &a);
    gpu_close(g);
    gpu_unpin(memory);
    munmap(memory, PIN_BYTES);
}

/* --- a device that fails ---------------------------------------------------------------------- */

enum { NO_GPU = 77, UNREPORTED = 1, OTHERWISE = 2 };

/* What a caller sees of a step that reads memory which is gone: 0, or what is wrong with it. */
static int fail_a_step(const struct toy *t, struct gpu *g, const struct away *a)
{
    int32_t token[1] = { 5 };
    struct batch b = { token, 1, 0 };
    bool left[GPU_STEP_TOKENS * MAX_TOPK];
    struct gpu_share share;
    struct err e = { "" }, later = { "" };
    int rc, wrong = 0;

    must(gpu_step(g, &b, true, &e), &e);
    while ((rc = gpu_next_share(g, &share, &e)) > 0) {
        offer(t, g, a, &share, left);
        gpu_answer(g);
    }
    printf("# %d %s\n", rc, e.text);
    if (rc != -EREMOTEIO || strncmp(e.text, "GPU 0: ", 7))
        wrong |= UNREPORTED;
    rc = gpu_wait(g, &later);
    printf("# %d %s\n", rc, later.text);
    if (rc != -EREMOTEIO || strcmp(later.text, e.text) ||
        gpu_step(g, &b, true, &later) != -EREMOTEIO ||
        gpu_fill_slot(g, 0, &t->expert[0], &later) != -EREMOTEIO)
        wrong |= OTHERWISE;
    return wrong;
}

/* Offered experts whose memory is unpinned and taken away.  A fault ends all that a process does
 * on its GPUs, so this one is a child's. */
static int fail_apart(void)
{
    struct gpu_facts facts[MAX_GPUS];
    struct toy t;
    struct gpu_config c;
    struct gpu *g;
    struct err e = { "" };
    struct away a = { .most = GPU_OFFERS };
    uint8_t *memory;
    int wrong;

    if (gpu_list(facts, &e) <= 0)
        return NO_GPU;
    memory = take_pages();
    small_toy(&t, W_INT4);
    c = toy_config(&t, 64, 16, GPU_KV_BF16);
    g = toy_gpu(&t, &c, 24);
    must(gpu_pin(memory, PIN_BYTES, &e), &e);
    must(gpu_capture(g, 1, &e), &e);
    send_away(&t, g, &a, memory, 0);
    gpu_unpin(memory);
    mprotect(memory, PIN_BYTES, PROT_NONE);     /* a kernel may otherwise lend it to the device */
    wrong = fail_a_step(&t, g, &a);
    gpu_close(g);
    return wrong;
}

/* Before anything else: a child cannot use what its parent has opened. */
static void check_fault(void)
{
    pid_t child = fork();
    int status = 0;

    if (!child) {
        status = fail_apart();
        fflush(stdout);
        _exit(status);
    }
    if (child < 0 || waitpid(child, &status, 0) != child)
        must(-ECHILD, &(struct err){ "fork" });
    if (WIFEXITED(status) && WEXITSTATUS(status) == NO_GPU) {
        printf("# no GPU that could fail\n");
        return;
    }
    ok(WIFEXITED(status), "gpu_close() survives a fault of the device");
    ok(!(WEXITSTATUS(status) & UNREPORTED), "the fault is reported, with words");
    ok(!WEXITSTATUS(status), "and in the same words by later calls");
}

int main(int argc, char **argv)
{
    struct toy t;
    struct gpu_config c;
    struct gpu_facts facts[MAX_GPUS];
    struct err e = { "" };
    struct gpu *g;

    /* compute-sanitizer would report what is provoked, too. */
    if (argc < 2 || strcmp(argv[1], "--sound"))
        check_fault();
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
    for (int f = 0; f < W_FORMATS; f++) {
        check_read_slot((enum wformat)f);
        check_offers((enum wformat)f, f == W_INT4 ? 8 : f == W_INT8 ? 2 : 0);
    }
    return done();
}
