/* The engine on models/nano against the reference implementation's results, and against
 * itself: threads, chunks, steps and rewinding. */
#include "cpu/kernels.h"
#include "src/engine.h"
#include "src/generate.h"
#include "src/options.h"
#include "tests/golden.h"
#include "tests/tap.h"

#include <errno.h>
#include <math.h>

enum { VOCAB = 4096, LAYERS = 7, TOPK = 8 };

/* What one evaluation gave, for every position. */
struct trace {
    int n;
    int32_t argmax[4096];
    float logprob_next[4096];
    float last[VOCAB];
    uint16_t expert[LAYERS][TOPK];
    const int32_t *token;
    int tokens;
};

static int keep(void *arg, const struct position *p)
{
    struct trace *t = arg;
    double max = -INFINITY, sum = 0;
    int best = 0;

    for (int i = 0; i < VOCAB; i++)
        if (p->logits[i] > max) {
            max = p->logits[i];
            best = i;
        }
    for (int i = 0; i < VOCAB; i++)
        sum += exp(p->logits[i] - max);
    t->argmax[p->index] = best;
    if (p->index + 1 < t->tokens)
        t->logprob_next[p->index] =
            (float)(p->logits[t->token[p->index + 1]] - max - log(sum));
    memcpy(t->last, p->logits, sizeof(t->last));
    for (int i = 0; p->route && i < LAYERS; i++)
        memcpy(t->expert[i], p->route[i].expert, sizeof(t->expert[i]));
    t->n++;
    return 0;
}

static struct engine *open_nano(const char *isa, const char *kv, int threads)
{
    static char dir[4096];
    struct options o = { .model_dir = dir, .isa = isa, .kv_type = kv, .threads = threads,
                         .ram_bytes = SIZE_AUTO,
                         .ram_experts_bytes = SIZE_AUTO, .io = "auto", .device = "cpu" };
    struct engine *g = NULL;
    struct err e;

    snprintf(dir, sizeof(dir), "%s/models/nano", source_dir());
    if (engine_open(&g, &o, &e)) {
        printf("Bail out! %s\n", e.text);
        exit(99);
    }
    return g;
}

static void evaluate(struct session *s, struct trace *t, const int32_t *token, int n, bool steps)
{
    struct eval v = { .rows = EVAL_ALL, .routes = true, .stepwise = steps, .each = keep, .arg = t };
    struct err e;

    memset(t, 0, sizeof(*t));
    t->token = token;
    t->tokens = n;
    session_rewind(s, 0);
    if (session_eval(s, token, n, &v, &e)) {
        printf("Bail out! %s\n", e.text);
        exit(99);
    }
}

static int compare_ids(const void *a, const void *b)
{
    return *(const int32_t *)a - *(const int32_t *)b;
}

static bool same_routes(const struct trace *t, const int32_t *want)
{
    int32_t sorted[TOPK];

    for (int i = 0; i < LAYERS; i++) {
        memcpy(sorted, want + i * TOPK, sizeof(sorted));
        qsort(sorted, TOPK, sizeof(*sorted), compare_ids);
        for (int k = 0; k < TOPK; k++)
            if (t->expert[i][k] != sorted[k])
                return false;
    }
    return true;
}

/* The oracle, float32 everywhere, against the reference implementation. */
static void check_oracle(const struct golden *g, struct session *s, const char *name)
{
    static struct trace t;
    char key[64];
    const int32_t *ids, *argmax, *experts;
    const float *last;
    double worst = 0;
    int n = 0, wrong = 0;

    snprintf(key, sizeof(key), "ids.%s", name);
    ids = golden_find(g, key, &n);
    snprintf(key, sizeof(key), "w4a16.%s.logits_last", name);
    last = golden_find(g, key, NULL);
    snprintf(key, sizeof(key), "w4a16.%s.argmax", name);
    argmax = golden_find(g, key, NULL);
    snprintf(key, sizeof(key), "w4a16.%s.experts", name);
    experts = golden_find(g, key, NULL);
    evaluate(s, &t, ids, n, false);
    for (int i = 0; i < VOCAB; i++)
        worst = fmax(worst, fabs((double)last[i] - t.last[i]));
    for (int i = 0; i < n; i++)
        wrong += argmax[i] != t.argmax[i];
    ok(worst <= 1e-3, "oracle, %s: largest logit difference %.2g", name, worst);
    ok(!wrong, "oracle, %s: argmax of %d positions", name, n);
    ok(same_routes(&t, experts), "oracle, %s: the experts of the last position", name);
}

static double mean_distance(const struct trace *a, const struct trace *b)
{
    double sum = 0;

    for (int i = 0; i + 1 < a->n; i++)
        sum += fabs((double)a->logprob_next[i] - b->logprob_next[i]);
    return sum / (a->n - 1);
}

/* A fast path against itself: threads change nothing; steps and chunks add in another order,
 * which rounding to 8 bits magnifies: up to what that rounding costs, about 0.08 and, of FP8
 * keys and values, 0.14. */
static void check_paths(const struct golden *g, const char *isa, const char *kv)
{
    static struct trace one, two, steps, again;
    double most = strcmp(kv, "fp8") ? 0.1 : 0.16;
    struct engine *a = open_nano(isa, kv, 1), *b = open_nano(isa, kv, 2);
    struct session *s = NULL, *t = NULL;
    struct eval more = { .rows = EVAL_ALL, .each = keep, .arg = &again };
    struct err e;
    const int32_t *ids;
    int n = 0;

    if (session_open(&s, a, &e) || session_open(&t, b, &e))
        exit((printf("Bail out! %s\n", e.text), 99));
    ids = golden_find(g, "ids.text", &n);
    evaluate(s, &one, ids, n, false);
    evaluate(t, &two, ids, n, false);
    ok(!memcmp(one.last, two.last, sizeof(one.last)) &&
       !memcmp(one.logprob_next, two.logprob_next, sizeof(one.logprob_next)),
       "%s %s: two threads give the bits of one", isa, kv);
    evaluate(t, &steps, ids, 300, true);
    steps.n = one.n = 300;
    ok(mean_distance(&one, &steps) < most, "%s %s: steps against chunks: %.2g", isa, kv,
       mean_distance(&one, &steps));

    /* Back to position 290 and on: the ring still holds its window. */
    again = steps;
    ok(!session_rewind(t, 290) && !session_eval(t, ids + 290, 10, &more, &e) &&
       session_length(t) == 300, "%s %s: rewind and go on", isa, kv);
    ok(mean_distance(&steps, &again) < most, "%s %s: the same numbers", isa, kv);
    ok(session_rewind(t, 301) == -ERANGE, "no rewinding forward");
    session_close(s);
    session_close(t);
    engine_close(a);
    engine_close(b);
}

/* Greedy answers of the conversations. */
static void check_answers(const struct golden *g, const char *isa)
{
    static const char *const chats[] = { "chat2", "chat3", "chat7", "chat11" };
    struct engine *engine = open_nano(isa, "q8", 2);
    struct session *s = NULL;
    struct err e;

    if (session_open(&s, engine, &e))
        exit((printf("Bail out! %s\n", e.text), 99));
    for (size_t i = 0; i < sizeof(chats) / sizeof(chats[0]); i++) {
        struct generate ask = { .max_tokens = 96, .reuse = true,
                                .sampling = { .top_p = 1, .repetition_penalty = 1 } };
        struct generation got;
        char key[64];
        const int32_t *want;
        int n = 0;

        snprintf(key, sizeof(key), "ids.%s", chats[i]);
        ask.prompt = golden_find(g, key, &ask.prompts);
        snprintf(key, sizeof(key), "w4a16.%s.greedy", chats[i]);
        want = golden_find(g, key, &n);
        ok(!generate(s, &ask, &got, &e) && (int)got.ids.n == n &&
           !memcmp(got.ids.id, want, (size_t)n * sizeof(*want)), "%s: greedy answer to %s", isa,
           chats[i]);
        generation_free(&got);
    }
    session_close(s);
    engine_close(engine);
}

/* Going back behind the window: to a snapshot, and on from there to the same answer. */
static void check_snapshots(const struct golden *g)
{
    static struct trace fresh, again;
    struct engine *engine = open_nano("auto", "bf16", 2);
    struct session *s = NULL;
    struct eval v = { .rows = EVAL_NONE, .mark = 700 }, rest = { .rows = EVAL_ALL, .each = keep,
                                                                .arg = &again };
    struct err e;
    const int32_t *ids;
    int n = 0;

    if (session_open(&s, engine, &e))
        exit((printf("Bail out! %s\n", e.text), 99));
    ids = golden_find(g, "ids.long", &n);
    evaluate(s, &fresh, ids, 900, false);
    session_rewind(s, 0);
    ok(!session_eval(s, ids, n, &v, &e) && session_length(s) == n, "2048 tokens, a mark at 700");
    ok(session_rewind(s, 900) == -ERANGE, "the rings have gone on");
    ok(session_keep(s, 900) == 700, "back to the mark");
    again = fresh;
    again.n = 700;
    ok(!session_eval(s, ids + 700, 200, &rest, &e) && mean_distance(&fresh, &again) < 0.06,
       "and on, to the same numbers: %.2g", mean_distance(&fresh, &again));
    ok(!session_eval(s, ids + 900, n - 900, &v, &e) && session_keep(s, 650) == 0,
       "before the first snapshot there is only the beginning");
    session_close(s);
    engine_close(engine);
}

static void check_limits(void)
{
    struct engine *g = open_nano("ref", "q8", 1);
    struct session *s = NULL;
    struct eval v = { .rows = EVAL_NONE };
    int32_t many[1] = { 2 };
    struct err e;

    if (session_open(&s, g, &e))
        exit((printf("Bail out! %s\n", e.text), 99));
    ok(engine_context(g) == 32768, "context auto: all of nano's 32768");
    ok(session_eval(s, many, 32769, &v, &e) == -E2BIG && strstr(e.text, "32768"),
       "a timeline longer than the context is refused");
    session_close(s);
    engine_close(g);
}

int main(void)
{
    static const char *const isas[] = { "avx2", "avx512", "avx512vnni", "avx512bf16" };
    struct engine *g = open_nano("ref", "f32", 2);
    struct session *s = NULL;
    struct golden golden;
    struct err e;

    golden_open(&golden, "models/nano/golden/forward.safetensors");
    if (session_open(&s, g, &e))
        exit((printf("Bail out! %s\n", e.text), 99));
    check_oracle(&golden, s, "one");
    check_oracle(&golden, s, "short");
    check_oracle(&golden, s, "w64");
    check_oracle(&golden, s, "w65");
    check_oracle(&golden, s, "chat11");
    session_close(s);
    engine_close(g);
    for (size_t i = 0; i < sizeof(isas) / sizeof(isas[0]); i++) {
        if (!cpu_kernels(cpu_isa_named(isas[i])))
            continue;
        check_paths(&golden, isas[i], "q8");
        check_paths(&golden, isas[i], "fp8");
        check_paths(&golden, isas[i], "bf16");
        check_answers(&golden, isas[i]);
    }
    check_snapshots(&golden);
    check_limits();
    golden_close(&golden);
    return done();
}
