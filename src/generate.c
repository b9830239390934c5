/* The loop around a session: sample, turn ids into text, and know when to end.  Text that
 * could be the beginning of a stop string waits until that is decided. */
#include "src/generate.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>

struct state {
    struct session *session;
    const struct generate *g;
    struct generation *out;
    const struct tokenizer *tokenizer;
    const struct shape *shape;
    struct sampler *sampler;
    struct alternative *alt;
    struct detok detok;
    char *text;                 /* [text_n] whole characters, not yet released */
    size_t text_n, text_cap;
    int echo_at;                /* the prompt's next position to report */
    struct sampled next;        /* sampled from the last row of logits */
    struct err *e;
};

const char *finish_name(enum finish f)
{
    return f == FINISH_LENGTH ? "length" : "stop";
}

static bool ends_turn(const struct state *s, int32_t id)
{
    for (int i = 0; i < s->g->stop_ids; i++)
        if (s->g->stop_id[i] == id)
            return true;
    for (int i = 0; i < s->shape->eos_count && (s->g->constraint || !s->g->ignore_eos); i++)
        if (s->shape->eos[i] == id)
            return true;
    return false;
}

static int common_prefix(const struct state *s)
{
    const int32_t *have = session_tokens(s->session);
    int n = 0, most = session_length(s->session);

    if (most > s->g->prompts - 1)               /* the last token's logits are needed */
        most = s->g->prompts - 1;
    while (n < most && have[n] == s->g->prompt[n])
        n++;
    return n;
}

/* What a GPU can choose by itself. */
static bool is_plain(const struct generate *g, const struct sampling *p)
{
    return g->alternatives == SAMPLE_NO_LOGPROB && !g->constraint && !p->ban_eos && !p->biases &&
           p->repetition_penalty == 1 && p->presence_penalty == 0 && p->frequency_penalty == 0 &&
           (p->temperature <= 0 || (p->top_k > 0 && p->top_k <= GPU_TOP));
}

/* As position_choose(). */
static int choose_there(struct state *s, const struct position *at, const struct sampling *p)
{
    double u = sampler_draw(p->seed, (uint64_t)session_length(s->session));
    struct gpu_choice c = { 0, p->temperature, p->top_k, p->top_p, p->min_p,
                            fminf((float)u, 0x1.fffffep-1f) };

    s->next.logprob = NAN;
    return position_choose(at, &c, &s->next.id, s->e);
}

/* Sample from a row; the alternatives stay in s->alt. */
static int sample(struct state *s, const struct position *at)
{
    const struct generate *g = s->g;
    struct sampling p = g->sampling;
    struct history h = { g->prompt, (size_t)g->prompts, s->out->ids.id, s->out->ids.n };
    const float *logits;
    int rc = 0;

    p.banned = s->shape->eos;
    p.banned_count = s->shape->eos_count;
    p.ban_eos = !g->constraint && (g->ignore_eos || (int)s->out->ids.n < g->min_tokens);
    if (is_plain(g, &p))
        rc = choose_there(s, at, &p);
    if (rc)
        return rc < 0 ? rc : 0;
    rc = position_logits(at, &logits, s->e);
    if (!rc && g->constraint)
        rc = constraint_mask(g->constraint, &p.allowed, s->e);
    if (!rc)
        rc = sampler_next(s->sampler, &p, &h, logits, (uint64_t)session_length(s->session),
                          &s->next, s->alt, g->alternatives, s->e);
    if (!rc && g->constraint)
        rc = constraint_advance(g->constraint, s->next.id, s->e);
    return rc;
}

/* The log-probability of token id in a row: what echo reports. */
static float row_logprob(const float *logits, int vocab, int32_t id)
{
    double max = -INFINITY, sum = 0;

    for (int i = 0; i < vocab; i++)
        max = fmax(max, logits[i]);
    for (int i = 0; i < vocab; i++)
        sum += exp(logits[i] - max);
    return (float)(logits[id] - max - log(sum));
}

/* A row of the prompt: report the token that follows it, and sample behind the last one. */
static int prompt_row(void *arg, const struct position *p)
{
    static const struct sampling greedy = { .top_p = 1, .repetition_penalty = 1 };
    struct state *s = arg;
    const struct generate *g = s->g;
    struct sampled ignored;
    int rc;

    if (p->index == g->prompts - 1)
        return sample(s, p);
    rc = sampler_next(s->sampler, &greedy, NULL, p->logits, 0, &ignored, s->alt, g->alternatives,
                      s->e);
    if (!rc) {
        int32_t id = g->prompt[p->index + 1];
        struct echoed t = { p->index + 1, row_logprob(p->logits, s->shape->vocab, id), s->alt,
                            g->alternatives };

        rc = g->on_prompt(g->arg, &t) ? -ECANCELED : 0;
    }
    return rc;
}

static void prompt_progress(void *arg, int done)
{
    const struct state *s = arg;

    if (s->g->on_progress)
        s->g->on_progress(s->g->arg, s->out->cached_n + done);
}

/* Where the assistant's turn opens: a later prompt may differ from there on. */
static int last_turn(const struct state *s)
{
    int32_t open = tokenizer_find_added(s->tokenizer, "<assistant>");
    int i = s->g->prompts - 1;

    while (i > 0 && s->g->prompt[i] != open)
        i--;
    return i;
}

static int run_prompt(struct state *s)
{
    const struct generate *g = s->g;
    struct eval v = { .rows = g->on_prompt ? EVAL_ALL : EVAL_LAST, .each = prompt_row, .arg = s,
                      .progress = prompt_progress, .cancel = g->cancel, .mark = last_turn(s) };
    int kept = g->reuse && !g->on_prompt ? common_prefix(s) : 0, rc = 0;
    double start = clock_now();

    kept = session_keep(s->session, kept);
    s->out->cached_n = kept;
    s->out->prompt_n = g->prompts - kept;
    prompt_progress(s, 0);
    if (g->on_prompt) {
        struct echoed first = { .logprob = NAN };

        rc = g->on_prompt(g->arg, &first) ? -ECANCELED : 0;
    }
    if (!rc)
        rc = session_eval(s->session, g->prompt + kept, g->prompts - kept, &v, s->e);
    s->out->prompt_seconds = clock_now() - start;
    return rc;
}

static int keep_text(struct state *s, int32_t id, bool last)
{
    size_t n = 0, need;
    const char *bytes = id < 0 || tokenizer_special(s->tokenizer, id)
                            ? "" : tokenizer_bytes(s->tokenizer, id, &n);

    need = s->text_n + 3 * n + 12;
    if (need > s->text_cap) {
        char *wider = realloc(s->text, 2 * need);

        if (!wider)
            return fail(s->e, -ENOMEM, "out of memory");
        s->text = wider;
        s->text_cap = 2 * need;
    }
    s->text_n += detok_push(&s->detok, bytes ? bytes : "", bytes ? n : 0, last,
                            s->text + s->text_n);
    return 0;
}

/* Where the first stop string begins in the held text, or text_n. */
static size_t find_stop(struct state *s)
{
    for (size_t at = 0; at < s->text_n; at++)
        for (int i = 0; i < s->g->stops; i++) {
            size_t n = strlen(s->g->stop[i]);

            if (n && s->text_n - at >= n && !memcmp(s->text + at, s->g->stop[i], n)) {
                s->out->stop = s->g->stop[i];
                return at;
            }
        }
    return s->text_n;
}

/* How much of the held text cannot be part of a stop string any more. */
static size_t releasable(const struct state *s)
{
    for (size_t at = 0; at < s->text_n; at++)
        for (int i = 0; i < s->g->stops; i++) {
            size_t n = strlen(s->g->stop[i]), left = s->text_n - at;

            if (left < n && !memcmp(s->text + at, s->g->stop[i], left))
                return at;
        }
    return s->text_n;
}

/* Hand a token out with the text that it releases; 1 where a stop string ends the answer. */
static int emit(struct state *s, bool end)
{
    const struct generate *g = s->g;
    size_t stop_at, n;
    struct generated t = { .id = s->next.id, .logprob = s->next.logprob, .alt = s->alt,
                           .alts = g->alternatives };
    int rc = keep_text(s, end ? -1 : s->next.id, end);

    if (rc)
        return rc;
    stop_at = find_stop(s);
    n = s->out->stop ? stop_at : end ? s->text_n : releasable(s);
    t.text = s->text;
    t.text_n = n;
    if (g->on_token && g->on_token(g->arg, &t))
        return -ECANCELED;
    memmove(s->text, s->text + n, s->text_n - n);
    s->text_n -= n;
    return s->out->stop != NULL;
}

/* The text held back when the answer ends without an end token. */
static int flush(struct state *s)
{
    struct generated t = { .id = -1 };
    int rc = keep_text(s, -1, true);

    t.text = s->text;
    t.text_n = rc ? 0 : s->text_n;
    if (!rc && t.text_n && s->g->on_token && s->g->on_token(s->g->arg, &t))
        rc = -ECANCELED;
    return rc;
}

static int step_row(void *arg, const struct position *p)
{
    return sample(arg, p);
}

/* From the first sampled token to the last. */
static int run_answer(struct state *s)
{
    const struct generate *g = s->g;
    struct eval v = { .rows = EVAL_LAST, .lazy = true, .each = step_row, .arg = s,
                      .cancel = g->cancel };
    int rc, room = engine_context(session_engine(s->session)) - g->prompts;
    int most = g->max_tokens < 0 || g->max_tokens > room ? room : g->max_tokens;

    s->out->finish = FINISH_LENGTH;
    while ((int)s->out->ids.n < most) {
        bool end = ends_turn(s, s->next.id) &&
                   (g->constraint || (int)s->out->ids.n >= g->min_tokens);

        rc = ids_push(&s->out->ids, s->next.id);
        if (rc)
            return fail(s->e, rc, "out of memory");
        rc = emit(s, end);
        if (rc < 0)
            return rc;
        if (rc || end) {
            s->out->finish = FINISH_STOP;
            return 0;
        }
        if ((int)s->out->ids.n == most)
            break;
        rc = session_eval(s->session, &s->next.id, 1, &v, s->e);
        if (rc)
            return rc;
    }
    return flush(s);
}

static int run(struct state *s)
{
    double start;
    int rc = run_prompt(s);

    if (rc)
        return rc;
    start = clock_now();
    rc = run_answer(s);
    s->out->predicted_seconds = clock_now() - start;
    return rc;
}

static struct tier_counts tiers_since(struct tier_counts now, struct tier_counts then)
{
    return (struct tier_counts){
        .vram = now.vram - then.vram, .ram = now.ram - then.ram, .nvme = now.nvme - then.nvme,
        .uploaded = now.uploaded - then.uploaded,
        .nvme_bytes = now.nvme_bytes - then.nvme_bytes,
        .io_wait_seconds = now.io_wait_seconds - then.io_wait_seconds,
    };
}

int generate(struct session *session, const struct generate *g, struct generation *out,
             struct err *e)
{
    struct engine *engine = session_engine(session);
    struct state s = {
        .session = session, .g = g, .out = out, .tokenizer = engine_tokenizer(engine),
        .shape = &engine_model(engine)->shape, .e = e,
    };
    int rc;

    *out = (struct generation){ 0 };
    if (g->prompts > engine_context(engine))
        return fail(e, -E2BIG, "the prompt of %d tokens exceeds the context of %d (-c)",
                    g->prompts, engine_context(engine));
    rc = sampler_open(&s.sampler, s.shape->vocab, e);
    s.alt = calloc((size_t)g->alternatives + 1, sizeof(*s.alt));
    if (!rc && !s.alt)
        rc = fail(e, -ENOMEM, "out of memory");
    if (!rc) {
        struct tier_counts before = engine_tiers(engine);

        engine_begin(engine);
        rc = run(&s);
        engine_end(engine);
        out->tiers = tiers_since(engine_tiers(engine), before);
        engine_request_done(engine);
    }
    if (rc == -ECANCELED) {
        out->finish = FINISH_CANCELLED;
        rc = 0;
    }
    sampler_close(s.sampler);
    free(s.alt);
    free(s.text);
    return rc;
}

void generation_free(struct generation *out)
{
    free(out->ids.id);
    *out = (struct generation){ 0 };
}
