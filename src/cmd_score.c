#include "src/command_io.h"
#include "src/commands.h"
#include "src/engine.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <unistd.h>

/* score: how likely the model finds a text, or what it says at each position of sequences of
 * ids.  Nothing is sampled. */

struct job {
    const struct options *o;
    struct engine *engine;
    struct session *session;
    const int32_t *token;       /* [tokens]: the sequence under evaluation */
    int tokens;
    int vocab, sparse_layers;
    double nll;                 /* summed */
    struct text argmax, logprob, last;  /* of a sequence of ids */
    struct err *e;
};

/* The most likely id, the lowest where several are; and log(sum(exp(logits))).  -EDOM, and NAN,
 * where these are no numbers. */
static int32_t row_argmax(const float *logits, int vocab, double *lse, struct err *e)
{
    int32_t best = 0;
    double sum = 0;

    *lse = NAN;
    for (int i = 0; i < vocab; i++)
        if (!isfinite(logits[i]))
            return fail(e, -EDOM, "the logit of token %d is not a finite number", i);

    for (int i = 1; i < vocab; i++)
        if (logits[i] > logits[best])
            best = i;
    for (int i = 0; i < vocab; i++)
        sum += exp((double)logits[i] - logits[best]);
    *lse = logits[best] + log(sum);
    return best;
}

static void add_floats(struct text *t, const float *x, int n)
{
    for (int i = 0; i < n; i++)
        text_printf(t, "%s%.9g", i ? ", " : "[", (double)x[i]);
    text_puts(t, "]");
}

static void add_routes(struct text *t, const struct route *route, int layers)
{
    text_puts(t, ", \"experts\": [");
    for (int l = 0; l < layers; l++) {
        text_puts(t, l ? ", [" : "[");
        for (int k = 0; k < route[l].topk; k++)
            text_printf(t, "%s%d", k ? ", " : "", route[l].expert[k]);
        text_puts(t, "]");
    }
    text_puts(t, "], \"expert_weights\": [");
    for (int l = 0; l < layers; l++) {
        text_puts(t, l ? ", " : "");
        add_floats(t, route[l].weight, route[l].topk);
    }
    text_puts(t, "]");
}

static int ids_row(void *arg, const struct position *p)
{
    struct job *j = arg;
    const char *comma = p->index ? ", " : "";
    bool last = p->index == j->tokens - 1;
    double lse;
    int32_t best = row_argmax(p->logits, j->vocab, &lse, j->e);

    if (best < 0)
        return best;
    text_printf(&j->argmax, "%s%d", comma, best);
    if (!last)
        text_printf(&j->logprob, "%s%.9g", comma,
                    (double)p->logits[j->token[p->index + 1]] - lse);
    if (last && j->o->logits) {
        text_puts(&j->last, ", \"logits_last\": ");
        add_floats(&j->last, p->logits, j->vocab);
    }
    if (last && j->o->routes)
        add_routes(&j->last, p->route, j->sparse_layers);
    return 0;
}

/* One sequence, from position 0. */
static int evaluate(struct job *j, const int32_t *token, int n, position_fn each, struct err *e)
{
    struct eval v = { .rows = EVAL_ALL, .routes = j->o->routes, .stepwise = j->o->decode,
                      .each = each, .arg = j };
    int rc;

    if (n > engine_context(j->engine))
        return fail(e, -EBADMSG, "%d tokens; the context holds %d (see -c)", n,
                    engine_context(j->engine));
    j->token = token;
    j->tokens = n;
    rc = session_rewind(j->session, 0);
    return rc ? rc : session_eval(j->session, token, n, &v, e);
}

static int score_ids(struct job *j, const struct ids *ids, struct err *e)
{
    struct text line = { NULL, 0, 0, false };
    int rc;

    if (!ids->n)
        return fail(e, -EBADMSG, "an empty array: there is nothing to evaluate");
    j->argmax.n = j->logprob.n = j->last.n = 0;
    text_puts(&j->logprob, "");
    text_puts(&j->last, "");
    rc = evaluate(j, ids->id, (int)ids->n, ids_row, e);
    if (!rc && (j->argmax.failed || j->logprob.failed || j->last.failed))
        rc = fail(e, -ENOMEM, "no memory for a line of output");
    if (!rc) {
        text_printf(&line, "{\"n\": %zu, \"argmax\": [", ids->n);
        text_add(&line, j->argmax.s, j->argmax.n);
        text_puts(&line, "], \"logprob_next\": [");
        text_add(&line, j->logprob.s, j->logprob.n);
        text_puts(&line, "]");
        text_add(&line, j->last.s, j->last.n);
        text_puts(&line, "}");
        rc = output_line(&line, e);
    }
    text_free(&line);
    return rc;
}

static int score_lines(struct job *j, struct input *in, struct err *e)
{
    const char *line;
    size_t n;
    int rc;

    while ((rc = input_line(in, &line, &n, e)) > 0) {
        struct ids ids = { NULL, 0, 0 };

        rc = ids_parse(&ids, line, n, j->vocab, e);
        if (!rc)
            rc = score_ids(j, &ids, e);
        free(ids.id);
        if (rc == -EBADMSG)
            rc = input_fail(in, rc, e);
        if (rc)
            return rc;
    }
    return rc;
}

static int text_row(void *arg, const struct position *p)
{
    struct job *j = arg;
    double lse;
    int32_t best;

    if (p->index == j->tokens - 1)
        return 0;
    best = row_argmax(p->logits, j->vocab, &lse, j->e);
    if (best < 0)
        return best;
    j->nll += lse - (double)p->logits[j->token[p->index + 1]];
    return 0;
}

/* Documents end at a NUL or at the end; each stands between two BOS. */
static int join_documents(const struct job *j, const struct text *all, struct ids *out,
                          struct err *e)
{
    const struct tokenizer *t = engine_tokenizer(j->engine);
    int32_t bos = tokenizer_bos(t);

    if (bos < 0)
        bos = engine_model(j->engine)->shape.bos;
    if (bos < 0)
        return fail(e, -EBADMSG, "the model names no id that begins a sequence");
    for (size_t at = 0; at < all->n;) {
        const char *end = memchr(all->s + at, 0, all->n - at);
        size_t n = end ? (size_t)(end - all->s) - at : all->n - at;
        int rc = ids_push(out, bos);

        if (!rc)
            rc = tokenizer_encode(t, all->s + at, n, NULL, SPANS_ALL, out, e);
        if (!rc)
            rc = ids_push(out, bos);
        if (rc)
            return rc == -ENOMEM ? fail(e, rc, "no memory for the ids") : rc;
        at += n + 1;
    }
    return 0;
}

static int score_windows(struct job *j, const struct ids *ids, struct err *e)
{
    bool shown = j->o->log.level > LOG_QUIET && isatty(2);
    size_t width = (size_t)j->o->window, all = (ids->n + width - 1) / width;
    size_t windows = 0, predictions = 0;
    double start = clock_now(), mean;
    struct text line = { NULL, 0, 0, false };
    int rc;

    if (j->o->max_windows && all > (size_t)j->o->max_windows)
        all = (size_t)j->o->max_windows;
    for (size_t w = 0; w < all; w++) {
        size_t left = ids->n - w * width, n = left < width ? left : width;

        if (n < 2)
            break;
        if (shown)
            fprintf(stderr, "\rwindow %zu of %zu\033[K", w + 1, all);
        rc = evaluate(j, ids->id + w * width, (int)n, text_row, e);
        if (rc)
            return rc;
        windows++;
        predictions += n - 1;
    }
    if (shown)
        fputs("\r\033[K", stderr);
    if (!predictions)
        return fail(e, -EBADMSG, "a text of %zu tokens has nothing to predict", ids->n);
    mean = j->nll / (double)predictions;
    text_printf(&line, "{\"windows\": %zu, \"predictions\": %zu, \"nll\": %.9g, "
                "\"perplexity\": %.9g, \"seconds\": %.3f}", windows, predictions, mean, exp(mean),
                clock_now() - start);
    rc = output_line(&line, e);
    text_free(&line);
    return rc;
}

static int score_text(struct job *j, struct input *in, struct err *e)
{
    struct text all = { NULL, 0, 0, false };
    struct ids ids = { NULL, 0, 0 };
    int rc = input_all(in, &all, e);

    if (!rc)
        rc = join_documents(j, &all, &ids, e);
    if (!rc)
        rc = score_windows(j, &ids, e);
    free(ids.id);
    text_free(&all);
    return rc;
}

int cmd_score(struct options *o, struct err *e)
{
    struct job j = { .o = o, .e = e };
    struct input in;
    int rc = input_open(&in, o->file, e);

    if (!rc)
        rc = engine_open(&j.engine, o, e);
    if (!rc)
        rc = session_open(&j.session, j.engine, e);
    if (!rc) {
        j.vocab = engine_model(j.engine)->shape.vocab;
        j.sparse_layers = engine_model(j.engine)->shape.sparse_layers;
        engine_begin(j.engine);
        rc = o->ids ? score_lines(&j, &in, e) : score_text(&j, &in, e);
        engine_end(j.engine);
        engine_request_done(j.engine);
    }
    text_free(&j.argmax);
    text_free(&j.logprob);
    text_free(&j.last);
    session_close(j.session);
    engine_close(j.engine);
    input_close(&in);
    return rc;
}
