/* A client may leave at any time: an evaluation stops between two layers, and what is evaluated
 * then, from where the timeline is, has the same bits as if nothing had been stopped. */
#include "src/engine.h"
#include "src/options.h"
#include "tests/files.h"
#include "tests/tap.h"

#include <errno.h>
#include <pthread.h>
#include <time.h>

/* A long prompt is one chunk and a piece of the next; the window of nano is 64 tokens. */
enum { SHORT = 40, LONG = 600, CHUNK = 512, STEPS = 8, TRIES = 20 };

struct bed {
    struct options o;
    struct engine *g;
    struct session *s;
    int32_t token[LONG + STEPS];
    float *last;                /* [vocab]: the logits of the last position */
    size_t vocab;
    atomic_int cancel;
    double seconds;             /* before the flag is set */
};

static bool set_up(struct bed *b, const char *device)
{
    static char dir[4096];
    struct err e = { "" };
    int rc;

    snprintf(dir, sizeof(dir), "%s/models/nano", source_dir());
    *b = (struct bed){ .o = { .model_dir = dir, .isa = "auto", .kv_type = "bf16", .threads = 2,
                              .device = device, .context = 1024, .ram_bytes = SIZE_AUTO,
                              .ram_experts_bytes = SIZE_AUTO, .vram_experts_bytes = 2 << 20,
                              .vram_reserve_bytes = SIZE_AUTO, .io = "auto", .io_depth = 4,
                              .deterministic = true, .log = { .level = LOG_QUIET } } };
    for (int i = 0; i < OPTION_GPUS; i++)
        b->o.vram_bytes[i] = 100 << 20;
    for (int i = 0; i < LONG + STEPS; i++)
        b->token[i] = 32 + i * 7919 % 4000;
    rc = engine_open(&b->g, &b->o, &e);
    if (!rc)
        rc = session_open(&b->s, b->g, &e);
    ok(!rc, "%s opens: %s", device, e.text);
    if (rc)
        return false;
    b->vocab = (size_t)engine_model(b->g)->shape.vocab;
    b->last = calloc(b->vocab, sizeof(*b->last));
    return b->last;
}

static void tear_down(struct bed *b)
{
    session_close(b->s);
    engine_close(b->g);
    free(b->last);
}

static int keep_last(void *arg, const struct position *p)
{
    struct bed *b = arg;

    memcpy(b->last, p->logits, b->vocab * sizeof(*b->last));
    return 0;
}

/* The timeline from where it is to `to` tokens. */
static int evaluate(struct bed *b, int to)
{
    struct eval v = { .rows = EVAL_LAST, .each = keep_last, .arg = b, .cancel = &b->cancel };
    struct err e;
    int from = session_length(b->s);

    return session_eval(b->s, b->token + from, to - from, &v, &e);
}

static void *leave(void *arg)
{
    struct bed *b = arg;
    struct timespec t = { (time_t)b->seconds, (long)((b->seconds - (time_t)b->seconds) * 1e9) };

    nanosleep(&t, NULL);
    b->cancel = 1;
    return NULL;
}

/* The same, stopped after so many seconds unless it is done. */
static int evaluate_for(struct bed *b, int to, double seconds)
{
    pthread_t thread;
    int rc;

    b->seconds = seconds;
    if (pthread_create(&thread, NULL, leave, b))
        return -EAGAIN;
    rc = evaluate(b, to);
    pthread_join(thread, NULL);
    b->cancel = 0;
    return rc;
}

/* To the end in spite of stops at other places each time; how many came half-way. */
static int evaluate_stopped(struct bed *b, int to, double whole, int *bad)
{
    int stops = 0;

    for (int i = 0; i < TRIES && session_length(b->s) < to; i++) {
        int before = session_length(b->s), rc = evaluate_for(b, to, whole * (i % 7 + 1) / 8);

        stops += rc == -ECANCELED;
        *bad += (rc && rc != -ECANCELED) || (!rc) != (session_length(b->s) == to) ||
                (rc && session_length(b->s) != before && session_length(b->s) != CHUNK);
    }
    return stops;
}

static void test_stops(const char *device, int prompt)
{
    struct bed b;
    float *want;
    double start, whole;
    int stops = 0, bad = 0;

    if (!set_up(&b, device))
        return;
    want = calloc(b.vocab, sizeof(*want));
    start = clock_now();
    bad = evaluate(&b, prompt);
    whole = clock_now() - start;
    for (int i = 1; i <= STEPS; i++)
        bad |= evaluate(&b, prompt + i);
    memcpy(want, b.last, b.vocab * sizeof(*want));
    ok(!bad, "%s: %d tokens in %.3f s", device, prompt, whole);

    /* One chunk, so that only a stop inside of it is one. */
    for (int i = 0; i < TRIES && !stops; i++) {
        session_keep(b.s, 0);
        stops = evaluate_for(&b, prompt < CHUNK ? prompt : CHUNK, whole / 8) == -ECANCELED;
    }
    ok(stops && !session_length(b.s), "%s: a chunk is stopped half-way", device);
    stops = evaluate_stopped(&b, prompt, whole, &bad);
    ok(!bad && stops, "%s: a prompt is stopped %d times", device, stops);
    bad |= evaluate(&b, prompt);
    for (int i = 1; i <= STEPS; i++) {
        evaluate_stopped(&b, prompt + i, whole / prompt, &bad);
        bad |= session_length(b.s) < prompt + i ? evaluate(&b, prompt + i) : 0;
    }
    ok(!bad && !memcmp(want, b.last, b.vocab * sizeof(*want)), "%s: and ends in the same bits",
       device);
    free(want);
    tear_down(&b);
}

int main(void)
{
    test_stops("cpu", LONG);
    /* Its plain C takes 15 ms a token. */
    test_stops("ref", SHORT);
    return done();
}
