/* Experts that are offered to a step, and a device that fails while it reads them.  Run as
 * check_gpu is: on a machine with a GPU by `make check-gpu`, else over gpu_ref.c by `make check`.
 * --sound leaves out the failure, which compute-sanitizer would report. */
#include "tests/gpu_host.h"
#include "tests/tap.h"

#include <sys/wait.h>
#include <unistd.h>

static const char *const formats[W_FORMATS] = { "bf16", "int8", "int4", "mxfp4" };

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
    struct gpu_facts facts[MAX_GPUS];
    struct err e = { "" };

    if (argc < 2 || strcmp(argv[1], "--sound"))
        check_fault();
    if (gpu_list(facts, &e) <= 0 && !gpu_is_reference()) {
        printf("1..0 # SKIP no GPU\n");
        return 0;
    }
    for (int f = 0; f < W_FORMATS; f++)
        check_offers((enum wformat)f, f == W_INT4 ? 8 : f == W_INT8 ? 2 : 0);
    return done();
}
