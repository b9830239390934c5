/* The engine over a GPU, here gpu_ref.c: whatever is seated, passes through or stays on the CPU,
 * the answers are those of the CPU; sessions share the cache without mixing; a timeline goes back
 * to where it was.  Under --deterministic, what lies in RAM changes no bit. */
#include "cuda/gpu.h"
#include "src/generate.h"
#include "tests/engine_bed.h"
#include "tests/golden.h"

#include <math.h>
#include <time.h>

enum { VOCAB_MOST = 1 << 17, PROMPT = 100, STEPS = 4, LONG = 900, BACK = 200 };

static bool set_up_as(struct bed *b, const char *device, int64_t vram, int64_t ram,
                      bool deterministic)
{
    bed_settings(b, device);
    b->o.vram_experts_bytes = vram;
    b->o.ram_experts_bytes = ram;
    b->o.deterministic = deterministic;
    return bed_open(b);
}

static bool set_up(struct bed *b, const char *device, int64_t vram, int64_t ram)
{
    return set_up_as(b, device, vram, ram, true);
}

static bool eval(struct bed *b, struct session *s, const int32_t *id, int n, bool stepwise,
                 int mark)
{
    struct eval v = { .rows = EVAL_LAST, .stepwise = stepwise, .mark = mark, .each = bed_keep,
                      .arg = b };
    struct err e;
    int rc = session_eval(s, id, n, &v, &e);

    if (rc)
        printf("# %s\n", e.text);
    return !rc;
}

static double distance(const struct bed *a, const struct bed *b)
{
    double worst = 0;

    for (int i = 0; i < a->vocab; i++)
        worst = fmax(worst, fabs((double)a->last[i] - (double)b->last[i]));
    return worst;
}

/* A prompt in one batch, then steps: the same tokens as the CPU's, and nearly its logits. */
static void compare(const int32_t *id, int64_t vram, const char *what)
{
    struct bed cpu, gpu;
    double d;
    int same = 0;

    if (!set_up(&cpu, "cpu", SIZE_AUTO, SIZE_AUTO) || !set_up(&gpu, "ref", vram, SIZE_AUTO))
        return;
    ok(eval(&cpu, cpu.s, id, PROMPT, false, 0) && eval(&gpu, gpu.s, id, PROMPT, false, 0),
       "%s: a prompt", what);
    d = distance(&cpu, &gpu);
    ok(d < 0.5, "its logits differ by %.3f", d);
    for (int i = PROMPT; i < PROMPT + STEPS; i++) {
        if (!eval(&cpu, cpu.s, id + i, 1, true, 0) || !eval(&gpu, gpu.s, id + i, 1, true, 0))
            break;
        d = distance(&cpu, &gpu);
        same += bed_best(&cpu) == bed_best(&gpu) && d < 0.5;
    }
    ok(same == STEPS, "%d of %d steps choose alike, the last logits differ by %.3f", same, STEPS,
       d);
    bed_close(&cpu);
    bed_close(&gpu);
}

/* Two conversations in turns, against each alone. */
static void take_turns(const int32_t *id)
{
    struct bed b, alone;
    struct session *other = NULL;
    struct err e;

    if (!set_up(&b, "ref", 4 << 20, SIZE_AUTO) || !set_up(&alone, "ref", 4 << 20, SIZE_AUTO))
        return;
    ok(!session_open(&other, b.g, &e), "two sessions");
    ok(eval(&b, b.s, id, PROMPT, false, 0) && eval(&b, other, id + 7, 90, false, 0) &&
       eval(&b, b.s, id + PROMPT, 2, true, 0) && eval(&alone, alone.s, id, PROMPT, false, 0) &&
       eval(&alone, alone.s, id + PROMPT, 2, true, 0), "in turns, and alone");
    ok(distance(&b, &alone) == 0, "the first one's logits are the same bits");
    ok(session_keep(alone.s, 0) == 0 && eval(&alone, alone.s, id + 7, 90, false, 0) &&
       eval(&alone, alone.s, id + 97, 2, true, 0) && eval(&b, other, id + 97, 2, true, 0) &&
       distance(&b, &alone) == 0, "and the second one's");
    session_close(other);
    bed_close(&b);
    bed_close(&alone);
}

/* Back to a snapshot when the rings have gone on. */
static void go_back(const int32_t *id)
{
    struct bed b, again;

    if (!set_up(&b, "ref", SIZE_AUTO, SIZE_AUTO) || !set_up(&again, "ref", SIZE_AUTO, SIZE_AUTO))
        return;
    ok(eval(&b, b.s, id, LONG, false, BACK), "%d tokens, a mark at %d", LONG, BACK);
    ok(session_keep(b.s, BACK + 9) == BACK, "back to the mark");
    ok(eval(&b, b.s, id + 3, 40, false, 0) && eval(&again, again.s, id, BACK, false, 0) &&
       eval(&again, again.s, id + 3, 40, false, 0) && distance(&b, &again) == 0,
       "and on from there: the same bits as without the detour");
    bed_close(&b);
    bed_close(&again);
}

/* With the same experts in VRAM, where the others lie does not matter. */
static void place_anywhere(const int32_t *id)
{
    struct bed all, few;

    if (!set_up(&all, "ref", 4 << 20, SIZE_AUTO) || !set_up(&few, "ref", 4 << 20, 0))
        return;
    ok(eval(&all, all.s, id, PROMPT, false, 0) && eval(&few, few.s, id, PROMPT, false, 0) &&
       distance(&all, &few) == 0, "a prompt: all in RAM, or none");
    ok(eval(&all, all.s, id + PROMPT, 3, true, 0) && eval(&few, few.s, id + PROMPT, 3, true, 0) &&
       distance(&all, &few) == 0, "and steps");
    ok(engine_tiers(few.g).nvme > engine_tiers(all.g).nvme && engine_tiers(all.g).vram ==
       engine_tiers(few.g).vram && engine_tiers(all.g).vram, "%d times an expert was in VRAM",
       (int)engine_tiers(all.g).vram);
    bed_close(&all);
    bed_close(&few);
}

/* What passed through for a prompt holds nothing of RAM afterwards: seats are filled by way of
 * the few slots there are. */
static void give_back(const int32_t *id)
{
    struct bed b;
    struct err e = { "" };
    int rc = 1;

    if (!set_up_as(&b, "ref", 4 << 20, 0, false))
        return;
    ok(eval(&b, b.s, id, PROMPT, false, 0), "a prompt before any seat is taken");
    for (int i = 0; i < 20000 && rc > 0; i++) {
        rc = engine_idle(b.g, 0.01, &e);
        if (rc > 0)
            nanosleep(&(struct timespec){ 0, 1000000 }, NULL);
    }
    ok(!rc && engine_vram(b.g).seated == engine_vram(b.g).seats && engine_vram(b.g).seated,
       "then %d of %d seats are taken: %s", engine_vram(b.g).seated, engine_vram(b.g).seats,
       e.text);
    bed_close(&b);
}

/* An answer whose logits the host never sees, against one where it does, and chooses itself. */
static void choose(const int32_t *id, const struct sampling *p)
{
    struct bed b;
    struct generate g = { .prompt = id, .prompts = PROMPT, .max_tokens = 24, .sampling = *p,
                          .alternatives = SAMPLE_NO_LOGPROB };
    struct generation there, here;
    struct err e = { "" };
    int rc;

    if (!set_up(&b, "ref", 4 << 20, SIZE_AUTO))
        return;
    rc = generate(b.s, &g, &there, &e);
    g.alternatives = 0;
    if (!rc)
        rc = generate(b.s, &g, &here, &e);
    ok(!rc && there.ids.n == here.ids.n && there.ids.n > 2 &&
       !memcmp(there.ids.id, here.ids.id, there.ids.n * sizeof(*here.ids.id)),
       "temperature %g, top_k %d, top_p %g, min_p %g: the GPU chooses the same %d tokens: %s",
       (double)p->temperature, p->top_k, (double)p->top_p, (double)p->min_p, (int)there.ids.n,
       e.text);
    generation_free(&there);
    generation_free(&here);
    bed_close(&b);
}

static void choose_alike(const int32_t *id)
{
    static const struct sampling kinds[] = {
        { .temperature = 0, .top_p = 1, .repetition_penalty = 1 },
        { .temperature = 0.7f, .top_p = 0.95f, .top_k = 20, .repetition_penalty = 1, .seed = 11 },
        { .temperature = 1.3f, .top_p = 1, .top_k = GPU_TOP, .min_p = 0.01f,
          .repetition_penalty = 1, .seed = 12 },
        /* What a GPU does not choose by itself. */
        { .temperature = 1, .top_p = 0.9f, .repetition_penalty = 1, .seed = 13 },
        { .temperature = 0, .top_p = 1, .repetition_penalty = 1.2f },
    };

    for (size_t i = 0; i < sizeof(kinds) / sizeof(*kinds); i++)
        choose(id, &kinds[i]);
}

int main(void)
{
    struct golden deep;
    const int32_t *id;
    int n;

    if (!gpu_is_reference()) {
        ok(1, "the engine over plain C # SKIP this program was built with CUDA");
        return done();
    }
    golden_open(&deep, "models/nano/golden/deep.safetensors");
    id = golden_find(&deep, "ids.deep", &n);
    if (n < LONG + 64)
        exit((fprintf(stderr, "only %d ids\n", n), 99));
    compare(id, SIZE_AUTO, "all seated");
    compare(id, 4 << 20, "a third seated");
    compare(id, 0, "none seated");
    take_turns(id);
    go_back(id);
    place_anywhere(id);
    give_back(id);
    choose_alike(id);
    golden_close(&deep);
    return done();
}
