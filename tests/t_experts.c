/* Experts in RAM and in slots: the same numbers from both, and what a damaged expert does to
 * the request that needs it, to the next one, and to the start. */
#include "src/engine.h"
#include "src/options.h"
#include "tests/damage.h"
#include "tests/tap.h"

#include <errno.h>
#include <math.h>

enum { VOCAB = 512, TOKENS = 40, EXPERTS = 8, TOPK = 2 };

/* Every position's logits and the experts of its one sparse layer. */
struct run {
    float logits[TOKENS][VOCAB];
    bool uses[TOKENS][EXPERTS];
    int n;
};

static int keep(void *arg, const struct position *p)
{
    struct run *r = arg;

    memcpy(r->logits[r->n], p->logits, sizeof(r->logits[0]));
    for (int k = 0; k < TOPK; k++)
        r->uses[r->n][p->route[0].expert[k]] = true;
    r->n++;
    return 0;
}

static int open_engine(struct engine **g, const char *dir, int64_t slots_bytes, const char *io,
                       struct err *e)
{
    static struct options o;

    o = (struct options){ .model_dir = dir, .isa = "auto", .kv_type = "bf16", .threads = 2,
                          .ram_bytes = SIZE_AUTO, .ram_experts_bytes = slots_bytes,
                          .io = io, .device = "cpu",
                          .guess = true,
                          .log = { .level = LOG_QUIET } };
    return engine_open(g, &o, e);
}

static int evaluate(struct session *s, struct run *r, const int32_t *ids, int n, bool steps,
                    struct err *e)
{
    struct eval v = { .rows = EVAL_ALL, .routes = true, .stepwise = steps, .each = keep, .arg = r };

    memset(r, 0, sizeof(*r));
    session_rewind(s, 0);
    return session_eval(s, ids, n, &v, e);
}

static void check_same(const char *name)
{
    static struct run all, few;
    char *dir = source_path(name);
    struct engine *g = NULL;
    struct session *s = NULL;
    struct err e;
    int32_t ids[TOKENS];

    for (int i = 0; i < TOKENS; i++)
        ids[i] = i ? 30 + i * 11 : 2;
    if (open_engine(&g, dir, SIZE_AUTO, "auto", &e) || session_open(&s, g, &e) ||
        evaluate(s, &all, ids, TOKENS, false, &e))
        exit((printf("Bail out! %s\n", e.text), 99));
    session_close(s);
    engine_close(g);
    for (int i = 0; i < 4; i++) {
        const char *io = i % 2 ? "preadv" : "auto";
        struct tier_counts t;

        if (open_engine(&g, dir, i < 2 ? 0 : 100000, io, &e) || session_open(&s, g, &e) ||
            evaluate(s, &few, ids, TOKENS, false, &e))
            exit((printf("Bail out! %s\n", e.text), 99));
        ok(!memcmp(all.logits, few.logits, sizeof(all.logits)),
           "%s: slots of %d bytes, %s: the same bits", name, i < 2 ? 0 : 100000, io);
        t = engine_tiers(g);
        ok(t.nvme && t.nvme_bytes, "experts came from the drive: %ju", (uintmax_t)t.nvme);
        session_close(s);
        engine_close(g);
    }
    free(dir);
}

/* What one step of the cut says about a damaged expert: it is used, or not. */
static void check_damage(const char *what, const void *bytes, size_t n)
{
    static const char tensor[] = "model.layers.1.mlp.experts.5.up_proj.weight_scale";
    static struct run whole, hurt;
    static const char cut[] = "tests/data/nano-w4a16-1";
    char *good = source_path(cut), *bad = copy_model(cut);
    struct engine *g = NULL;
    struct session *s = NULL;
    struct err e;
    int32_t with[2] = { 2, 0 }, without[2] = { 2, 0 };

    patch(bad, tensor, bytes, n);
    ok(open_engine(&g, bad, SIZE_AUTO, "auto", &e) == -EBADMSG &&
       strstr(e.text, "layer 1, expert 5: up_proj.weight_scale"),
       "%s, all in RAM: refused at the start: %s", what, e.text);

    if (open_engine(&g, good, SIZE_AUTO, "auto", &e) || session_open(&s, g, &e))
        exit((printf("Bail out! %s\n", e.text), 99));
    for (int32_t id = 32; id < VOCAB && !(with[1] && without[1]); id++) {
        int32_t ids[2] = { 2, id };
        bool uses;

        if (evaluate(s, &whole, ids, 2, true, &e))
            exit((printf("Bail out! %s\n", e.text), 99));
        uses = whole.uses[0][5] || whole.uses[1][5];
        if (!uses && !without[1])
            without[1] = id;
        else if (uses && !with[1])
            with[1] = id;
    }
    ok(with[1] && without[1], "a token that uses the expert, and one that does not");
    evaluate(s, &whole, without, 2, true, &e);
    session_close(s);
    engine_close(g);

    if (open_engine(&g, bad, 0, "auto", &e) || session_open(&s, g, &e))
        exit((printf("Bail out! %s\n", e.text), 99));
    ok(evaluate(s, &hurt, with, 2, true, &e) == -EBADMSG && strstr(e.text, "layer 1, expert 5"),
       "%s, in slots: the request fails: %s", what, e.text);
    ok(evaluate(s, &hurt, with, 2, true, &e) == -EBADMSG, "and fails again");
    ok(!evaluate(s, &hurt, without, 2, true, &e) &&
       !memcmp(whole.logits, hurt.logits, sizeof(whole.logits)), "the next request is answered");
    session_close(s);
    engine_close(g);
    remove_dir(bad);
    free(good);
}

/* The file is cut while the program runs. */
static void check_cut(void)
{
    static struct run r;
    char *dir = copy_model("tests/data/nano-w4a16-1"), path[4096];
    struct engine *g = NULL;
    struct session *s = NULL;
    struct err e;
    int32_t ids[2] = { 2, 100 };
    int rc;

    if (open_engine(&g, dir, 0, "auto", &e) || session_open(&s, g, &e))
        exit((printf("Bail out! %s\n", e.text), 99));
    join_path(path, dir, "model.safetensors");
    if (truncate(path, 4096))
        exit((perror(path), 99));
    rc = evaluate(s, &r, ids, 2, true, &e);
    ok(rc == -ESTALE && strstr(e.text, "model.safetensors"), "cut underneath us: %s", e.text);
    session_close(s);
    engine_close(g);
    remove_dir(dir);
}

int main(void)
{
    static const bf16 nan = 0x7fc0, infinite = 0x7f80, zero = 0;

    check_same("tests/data/nano-w4a16-1");
    check_same("tests/data/nano-mxfp4-1");
    check_same("tests/data/nano-bf16-1");
    check_damage("a NaN scale", &nan, sizeof(nan));
    check_damage("an infinite scale", &infinite, sizeof(infinite));
    check_damage("a scale of zero", &zero, sizeof(zero));
    check_cut();
    return done();
}
