/* A client may leave at any time: an evaluation stops between two layers, and what is evaluated
 * then, from where the timeline is, has the same bits as if nothing had been stopped. */
#include "tests/engine_bed.h"

#include <errno.h>
#include <pthread.h>
#include <time.h>

/* A long prompt is one chunk and a piece of the next; the window of nano is 64 tokens. */
enum { SHORT = 40, LONG = 600, CHUNK = 512, STEPS = 8, TRIES = 20 };

struct chat {
    struct bed bed;
    int32_t token[LONG + STEPS];
    atomic_int cancel;
    double seconds;             /* before the flag is set */
};

static bool set_up(struct chat *c, const char *device)
{
    c->cancel = 0;
    for (int i = 0; i < LONG + STEPS; i++)
        c->token[i] = 32 + i * 7919 % 4000;
    bed_settings(&c->bed, device);
    c->bed.o.isa = "auto";
    c->bed.o.vram_experts_bytes = 2 << 20;
    return bed_open(&c->bed);
}

/* The timeline from where it is to `to` tokens. */
static int evaluate(struct chat *c, int to)
{
    struct eval v = { .rows = EVAL_LAST, .each = bed_keep, .arg = &c->bed, .cancel = &c->cancel };
    struct err e;
    int from = session_length(c->bed.s);

    return session_eval(c->bed.s, c->token + from, to - from, &v, &e);
}

static void *leave(void *arg)
{
    struct chat *c = arg;
    struct timespec t = { (time_t)c->seconds, (long)((c->seconds - (time_t)c->seconds) * 1e9) };

    nanosleep(&t, NULL);
    c->cancel = 1;
    return NULL;
}

/* The same, stopped after so many seconds unless it is done. */
static int evaluate_for(struct chat *c, int to, double seconds)
{
    pthread_t thread;
    int rc;

    c->seconds = seconds;
    if (pthread_create(&thread, NULL, leave, c))
        return -EAGAIN;
    rc = evaluate(c, to);
    pthread_join(thread, NULL);
    c->cancel = 0;
    return rc;
}

/* To the end in spite of stops at other places each time; how many came half-way. */
static int evaluate_stopped(struct chat *c, int to, double whole, int *bad)
{
    int stops = 0;

    for (int i = 0; i < TRIES && session_length(c->bed.s) < to; i++) {
        int before = session_length(c->bed.s), rc = evaluate_for(c, to, whole * (i % 7 + 1) / 8);

        stops += rc == -ECANCELED;
        *bad += (rc && rc != -ECANCELED) || (!rc) != (session_length(c->bed.s) == to) ||
                (rc && session_length(c->bed.s) != before && session_length(c->bed.s) != CHUNK);
    }
    return stops;
}

static void test_stops(const char *device, int prompt)
{
    struct chat c;
    float *want;
    double start, whole;
    int stops = 0, bad = 0;

    if (!set_up(&c, device))
        return;
    want = calloc((size_t)c.bed.vocab, sizeof(*want));
    start = clock_now();
    bad = evaluate(&c, prompt);
    whole = clock_now() - start;
    for (int i = 1; i <= STEPS; i++)
        bad |= evaluate(&c, prompt + i);
    memcpy(want, c.bed.last, (size_t)c.bed.vocab * sizeof(*want));
    ok(!bad, "%s: %d tokens in %.3f s", device, prompt, whole);

    /* One chunk, so that only a stop inside of it is one. */
    for (int i = 0; i < TRIES && !stops; i++) {
        session_keep(c.bed.s, 0);
        stops = evaluate_for(&c, prompt < CHUNK ? prompt : CHUNK, whole / 8) == -ECANCELED;
    }
    ok(stops && !session_length(c.bed.s), "%s: a chunk is stopped half-way", device);
    stops = evaluate_stopped(&c, prompt, whole, &bad);
    ok(!bad && stops, "%s: a prompt is stopped %d times", device, stops);
    bad |= evaluate(&c, prompt);
    for (int i = 1; i <= STEPS; i++) {
        evaluate_stopped(&c, prompt + i, whole / prompt, &bad);
        bad |= session_length(c.bed.s) < prompt + i ? evaluate(&c, prompt + i) : 0;
    }
    ok(!bad && !memcmp(want, c.bed.last, (size_t)c.bed.vocab * sizeof(*want)),
       "%s: and ends in the same bits", device);
    free(want);
    bed_close(&c.bed);
}

int main(void)
{
    test_stops("cpu", LONG);
    /* Its plain C takes 15 ms a token. */
    if (gpu_is_reference())
        test_stops("ref", SHORT);
    else
        ok(1, "the engine over plain C # SKIP this program was built with CUDA");
    return done();
}
