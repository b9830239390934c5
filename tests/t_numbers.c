/* Rows D02 to D07 of the fault catalogue: numbers that are not finite, or nearly not, from the
 * checkpoint to the answer. */
#include "cpu/kernels.h"
#include "src/generate.h"
#include "src/options.h"
#include "src/ref.h"
#include "tests/damage.h"
#include "tests/tap.h"

#include <errno.h>
#include <math.h>
#include <xmmintrin.h>

enum { VOCAB = 512, HIDDEN = 256, ROW = 300 };

static struct err e;

static int open_engine(struct engine **g, const char *dir)
{
    static struct options o;

    o = (struct options){ .model_dir = dir, .isa = "auto", .kv_type = "q8", .threads = 2,
                          .ram_bytes = SIZE_AUTO, .ram_experts_bytes = SIZE_AUTO, .io = "auto",
                          .device = "cpu", .log = { .level = LOG_QUIET } };
    e.text[0] = 0;
    return engine_open(g, &o, &e);
}

static int keep(void *arg, const struct position *p)
{
    memcpy(arg, p->logits, VOCAB * sizeof(float));
    return 0;
}

static int evaluate(struct session *s, int32_t id, float out[VOCAB])
{
    struct eval v = { .rows = EVAL_LAST, .each = keep, .arg = out };
    int32_t ids[2] = { 2, id };

    session_rewind(s, 0);
    return session_eval(s, ids, 2, &v, &e);
}

/* One token behind [2, id]. */
static int generate_one(struct session *s, int32_t id)
{
    const int32_t prompt[2] = { 2, id };
    struct generate ask = { .prompt = prompt, .prompts = 2, .max_tokens = 1,
                            .sampling = { .top_p = 1, .repetition_penalty = 1 } };
    struct generation got;
    int rc = generate(s, &ask, &got, &e);

    generation_free(&got);
    return rc;
}

/* D04: one logit overflows after some tokens and not after others. */
static void test_overflow(void)
{
    static const bf16 largest[2] = { 0x7f7f, 0x7f7f };
    char *dir = copy_model("tests/data/nano-w4a16-1");
    float before[VOCAB], after[VOCAB];
    struct engine *g = NULL;
    struct session *s = NULL;
    int good = 0, bad = 0, rc;

    patch_at(dir, "lm_head.weight", ROW * HIDDEN * sizeof(bf16), largest, sizeof(largest));
    if (open_engine(&g, dir) || session_open(&s, g, &e))
        exit((printf("Bail out! %s\n", e.text), 99));
    for (int id = 32; id < VOCAB && !(good && bad); id++) {
        evaluate(s, id, before);
        if (isfinite(before[ROW]))
            good = id;
        else if (before[ROW] > 0)
            bad = id;
    }
    ok(good && bad, "D04 a token whose logits are finite, and one whose are not");
    evaluate(s, good, before);
    rc = generate_one(s, bad);
    ok(rc == -EDOM && strstr(e.text, "token 300"), "D04 the request fails: %s", e.text);
    ok(!generate_one(s, good), "D04 the next one does not %s", e.text);
    ok(!evaluate(s, good, after) && !memcmp(before, after, sizeof(before)),
       "D04 and has the same bits");
    session_close(s);
    engine_close(g);
    remove_dir(dir);
}

/* D03: a router that answers NaN.  A bias is looked at when it is read, a matrix when it has
 * been multiplied by. */
static void test_router(void)
{
    static const char gate[] = "model.layers.1.mlp.gate.weight";
    static const char bias[] = "model.layers.1.mlp.experts.e_score_correction_bias";
    static const bf16 nan16 = 0x7fc0;
    static const float nan32 = NAN;
    float out[VOCAB];

    for (int i = 0; i < 2; i++) {
        char *dir = copy_model("tests/data/nano-w4a16-1");
        struct engine *g = NULL;
        struct session *s = NULL;
        int rc;

        if (i)
            patch(dir, bias, &nan32, sizeof(nan32));
        else
            patch(dir, gate, &nan16, sizeof(nan16));
        rc = open_engine(&g, dir);
        if (i)
            ok(rc == -EBADMSG && strstr(e.text, bias) && strstr(e.text, "element 0"),
               "D03 a bias of NaN: %s", e.text);
        else
            ok(!rc && !session_open(&s, g, &e) && evaluate(s, 100, out) == -EDOM &&
               strstr(e.text, "layer 1: the router"), "D03 a router of NaN: %s", e.text);
        session_close(s);
        engine_close(g);
        remove_dir(dir);
    }
}

/* D02: the ends of E8M0, and every value of E2M1 at them, by the word and by each table. */
static void test_scales(void)
{
    static const float value[16] = { 0, 0.5, 1, 1.5, 2, 3, 4, 6,
                                     -0.0f, -0.5, -1, -1.5, -2, -3, -4, -6 };
    static const uint8_t scales[] = { 0, 1, 127, 253, 254 };
    uint8_t weight[16];
    float row[32];

    for (int i = 0; i < 16; i++)
        weight[i] = (uint8_t)(i | i << 4);
    for (size_t k = 0; k < sizeof(scales); k++) {
        struct matrix m = { .format = W_MXFP4, .rows = 1, .cols = 32, .group = 32,
                            .weight = weight, .scale = &scales[k] };
        int wrong = 0;

        ref_row(row, &m, 0);
        for (int i = 0; i < 32; i++)
            wrong += row[i] != (float)ldexp(value[i / 2], scales[k] - 127);
        ok(!wrong, "D02 an MXFP4 scale of 0x%02x is 2^%d", scales[k], scales[k] - 127);
    }
}

/* D06: FP8 saturates on the way into the cache, and NaN stays NaN. */
static void test_fp8(void)
{
    static const float in[] = { 448, 449, 464, 500, 1e6f, 3.4e38f, -1e6f, 0x1p-9f, 0x1p-10f };
    static const float want[] = { 448, 448, 448, 448, 448, 448, -448, 0x1p-9f, 0 };

    for (size_t i = 0; i < sizeof(in) / sizeof(in[0]); i++) {
        float out = ref_fp8_to_f32(ref_fp8_from_f32(in[i]));

        ok(out == want[i], "D06 %g in FP8 is %g", in[i], out);
    }
    ok(ref_fp8_to_f32(ref_fp8_from_f32(INFINITY)) == 448 &&
       isnan(ref_fp8_to_f32(ref_fp8_from_f32(NAN))), "D06 infinity saturates, NaN stays");
}

/* D07: whatever the caller's thread does with small numbers. */
static void test_denormals(void)
{
    char *dir = source_path("tests/data/nano-w4a16-1");
    unsigned mine = _mm_getcsr(), after;
    float one[VOCAB], two[VOCAB];
    struct engine *g = NULL;
    struct session *s = NULL;
    int rc;

    if (open_engine(&g, dir) || session_open(&s, g, &e))
        exit((printf("Bail out! %s\n", e.text), 99));
    rc = evaluate(s, 100, one);
    _mm_setcsr(mine ^ 0x8040);
    rc = rc ? rc : evaluate(s, 100, two);
    after = _mm_getcsr();
    _mm_setcsr(mine);
    ok(!rc && !memcmp(one, two, sizeof(one)) && (after & 0x8040) == ((mine ^ 0x8040) & 0x8040),
       "D07 denormals flushed by the caller or not: the same bits");
    session_close(s);
    engine_close(g);
    free(dir);
}

int main(void)
{
    test_scales();
    test_router();
    test_overflow();
    test_fp8();
    test_denormals();
    return done();
}
