#include "src/command_io.h"
#include "src/commands.h"
#include "src/engine.h"
#include "src/forward.h"
#include "src/manual.h"
#include "src/outlook.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

/* bench: how fast prompts are read and tokens are made, at given depths of the context, on a
 * text: random tokens would choose experts as no text does.  Generation reads the text too, a
 * token at a time, so that every run does the same work. */

/* One line of the table. */
struct row {
    bool generates;
    int tokens, depth;
    double mean, deviation;             /* tokens a second */
    struct tier_bytes bytes;            /* of experts, a token */
    double hit_vram, hit_ram, uploaded; /* shares: of experts used */
    double io_wait;                     /* and of the time */
    double cpu_share, gpu_wait;         /* of the time, with a GPU */
    double predicted;                   /* tokens a second; 0: nobody knows */
};

struct bench {
    struct options *o;
    struct engine *engine;
    struct session *session;
    struct ids text;
    bool foresees;
    struct outlook outlook;
    struct row row[2 * OPTION_LIST * OPTION_LIST];
    int rows;
};

/* --- the text ------------------------------------------------------------------------------ */

static int read_text(const char *file, struct text *out, struct err *e)
{
    struct input in;
    int rc;

    if (!file) {
        text_puts(out, manual_text());
        return out->failed ? fail(e, -ENOMEM, "no memory for the text") : 0;
    }
    rc = input_open(&in, file, e);
    if (!rc)
        rc = input_all(&in, out, e);
    input_close(&in);
    return rc;
}

/* As many ids as the longest test needs: the text again and again where it is shorter. */
static int read_ids(struct bench *b, int need, struct err *e)
{
    struct text text = { NULL, 0, 0, false };
    int rc = read_text(b->o->file, &text, e);
    size_t once;

    if (!rc)
        rc = tokenizer_encode(engine_tokenizer(b->engine), text.n ? text.s : "", text.n, NULL, 0,
                              &b->text, e);
    text_free(&text);
    once = b->text.n;
    if (!rc && !once)
        rc = fail(e, -EBADMSG, "%s: an empty text", b->o->file);
    if (!rc && once < (size_t)need)
        warn(&b->o->log, "a text of %zu tokens is read %d times to make %d: --file", once,
             (need + (int)once - 1) / (int)once, need);
    while (!rc && b->text.n < (size_t)need)
        if (ids_push(&b->text, b->text.id[b->text.n - once]))
            rc = fail(e, -ENOMEM, "no memory for %d ids", need);
    return rc;
}

/* --- one test ------------------------------------------------------------------------------ */

static int ignore(void *arg, const struct position *p)
{
    (void)arg;
    (void)p;
    return 0;
}

/* Where a stretch of time went.  All of it only grows: two readings make a stretch. */
struct spent {
    double seconds;
    struct tier_counts tiers;
    struct run_times times;
};

static struct spent spent_now(const struct bench *b)
{
    return (struct spent){ clock_now(), engine_tiers(b->engine), engine_times(b->engine) };
}

static void add_spent(struct spent *sum, const struct spent *from, const struct spent *to)
{
    sum->seconds += to->seconds - from->seconds;
    sum->tiers.vram += to->tiers.vram - from->tiers.vram;
    sum->tiers.ram += to->tiers.ram - from->tiers.ram;
    sum->tiers.nvme += to->tiers.nvme - from->tiers.nvme;
    sum->tiers.uploaded += to->tiers.uploaded - from->tiers.uploaded;
    sum->tiers.nvme_bytes += to->tiers.nvme_bytes - from->tiers.nvme_bytes;
    sum->tiers.io_wait_seconds += to->tiers.io_wait_seconds - from->tiers.io_wait_seconds;
    sum->times.cpu_share += to->times.cpu_share - from->times.cpu_share;
    sum->times.gpu_wait += to->times.gpu_wait - from->times.gpu_wait;
}

/* Read to the depth, untimed, then the test, which is added to *sum; *rate of it. */
static int run_once(struct bench *b, const struct row *r, struct spent *sum, double *rate,
                    struct err *e)
{
    struct eval fill = { .rows = EVAL_NONE };
    struct eval last = { .rows = EVAL_LAST, .lazy = true, .each = ignore };
    const int32_t *id = b->text.id;
    struct spent before, after;
    int step = r->generates ? 1 : r->tokens, rc = session_rewind(b->session, 0);

    if (!rc && r->depth)
        rc = session_eval(b->session, id, r->depth, &fill, e);
    before = spent_now(b);
    for (int i = 0; i < r->tokens && !rc; i += step)
        rc = session_eval(b->session, id + r->depth + i, step, &last, e);
    after = spent_now(b);
    add_spent(sum, &before, &after);
    *rate = r->tokens / (after.seconds - before.seconds);
    return rc;
}

/* What the tiers gave in all repetitions, and the shares of their time. */
static void fill_shares(struct bench *b, struct row *r, const struct spent *sum)
{
    const struct tier_counts *t = &sum->tiers;
    const struct model *m = engine_model(b->engine);
    double experts = (double)m->shape.sparse_layers * m->shape.experts;
    double each = experts > 0 ? (double)m->expert_bytes / experts : 0;
    double tokens = (double)r->tokens * b->o->repetitions;
    double used = (double)(t->vram + t->ram + t->nvme);

    r->bytes = (struct tier_bytes){ (double)t->vram * each / tokens, (double)t->ram * each / tokens,
                                    (double)t->nvme_bytes / tokens };
    r->hit_vram = used > 0 ? (double)t->vram / used : 0;
    r->hit_ram = used > 0 ? (double)t->ram / used : 0;
    r->uploaded = used > 0 ? (double)t->uploaded / used : 0;
    r->io_wait = t->io_wait_seconds / sum->seconds;
    r->cpu_share = sum->times.cpu_share / sum->seconds;
    r->gpu_wait = sum->times.gpu_wait / sum->seconds;
}

static int run_row(struct bench *b, struct row *r, struct err *e)
{
    struct spent sum = { 0 };
    double rate, rates = 0, squares = 0;
    int n = b->o->repetitions, rc = 0;

    /* One run first that does not count: pages are touched, the cache fills. */
    for (int i = -1; i < n && !rc; i++) {
        if (b->o->log.level > LOG_QUIET && isatty(2))
            fprintf(stderr, "\r%s%d at %d: run %d of %d\033[K", r->generates ? "tg" : "pp",
                    r->tokens, r->depth, i + 1, n);
        rc = run_once(b, r, &sum, &rate, e);
        if (i < 0) {
            sum = (struct spent){ 0 };
            continue;
        }
        rates += rate;
        squares += rate * rate;
    }
    if (b->o->log.level > LOG_QUIET && isatty(2))
        fputs("\r\033[K", stderr);
    if (rc)
        return rc;
    r->mean = rates / n;
    r->deviation = n > 1 ? sqrt(fmax(0, squares - rates * rates / n) / (n - 1)) : 0;
    fill_shares(b, r, &sum);
    return 0;
}

/* --- all of them --------------------------------------------------------------------------- */

static void add_rows(struct bench *b, const struct option_list *tokens, bool generates, int depth)
{
    for (int i = 0; i < tokens->n; i++) {
        struct row *r = &b->row[b->rows++];

        *r = (struct row){ .generates = generates, .tokens = tokens->v[i], .depth = depth };
        if (b->foresees) {
            struct prediction p = outlook_at(&b->outlook, depth);

            r->predicted = generates ? p.decode_tps : p.prefill_tps;
        }
    }
}

/* The rows that the options ask for, and how many tokens the longest needs. */
static int make_rows(struct bench *b)
{
    static const struct option_list prompt = { { 512 }, 1 }, generation = { { 128 }, 1 },
                                    start = { { 0 }, 1 };
    const struct options *o = b->o;
    bool none = !o->prompts.n && !o->generations.n;
    const struct option_list *depths = o->depths.n ? &o->depths : &start;
    int most = 0;

    for (int i = 0; i < depths->n; i++) {
        add_rows(b, none ? &prompt : &o->prompts, false, depths->v[i]);
        add_rows(b, none ? &generation : &o->generations, true, depths->v[i]);
    }
    for (int i = 0; i < b->rows; i++)
        if (b->row[i].depth + b->row[i].tokens > most)
            most = b->row[i].depth + b->row[i].tokens;
    return most;
}

static int run_rows(struct bench *b, struct err *e)
{
    int need, rc;

    b->foresees = outlook_of(&b->outlook, b->engine, b->o);
    need = make_rows(b);
    if (need > engine_context(b->engine))
        return fail(e, -EINVAL, "a test of %d tokens; the context holds %d (see -c)", need,
                    engine_context(b->engine));
    rc = read_ids(b, need, e);
    if (!rc)
        rc = session_open(&b->session, b->engine, e);
    engine_begin(b->engine);
    if (!rc)
        rc = engine_warm(b->engine, e);
    for (int i = 0; i < b->rows && !rc; i++)
        rc = run_row(b, &b->row[i], e);
    engine_end(b->engine);
    return rc;
}

/* --- the table ----------------------------------------------------------------------------- */

static void add_json(struct text *t, const struct row *r)
{
    text_printf(t, "{\"test\": \"%s%d\", \"depth\": %d, \"tps_mean\": %.6g, \"tps_sd\": %.4g, "
                "\"bytes_per_token\": {\"vram\": %.0f, \"ram\": %.0f, \"nvme\": %.0f}, "
                "\"hit_vram\": %.4f, \"hit_ram\": %.4f, \"uploaded\": %.4f, \"io_wait\": %.4f, "
                "\"cpu_share\": %.4f, \"gpu_wait\": %.4f, \"predicted_tps\": ",
                r->generates ? "tg" : "pp", r->tokens, r->depth, r->mean, r->deviation,
                r->bytes.vram, r->bytes.ram, r->bytes.nvme, r->hit_vram, r->hit_ram, r->uploaded,
                r->io_wait, r->cpu_share, r->gpu_wait);
    if (r->predicted > 0)
        text_printf(t, "%.4g}", r->predicted);
    else
        text_puts(t, "null}");
}

static void add_csv(struct text *t, const struct row *r)
{
    text_printf(t, "%s%d,%d,%.6g,%.4g,%.0f,%.0f,%.0f,%.4f,%.4f,%.4f,%.4f,%.4f,%.4f,",
                r->generates ? "tg" : "pp", r->tokens, r->depth, r->mean, r->deviation,
                r->bytes.vram, r->bytes.ram, r->bytes.nvme, r->hit_vram, r->hit_ram, r->uploaded,
                r->io_wait, r->cpu_share, r->gpu_wait);
    if (r->predicted > 0)
        text_printf(t, "%.4g", r->predicted);
    text_puts(t, "\n");
}

/* Markdown that a person can read as it is. */
static void add_line(struct text *t, const struct row *r, const char *model)
{
    char test[64], rate[64], tiers[64], bytes[64], predicted[32] = "-";

    snprintf(test, sizeof(test), r->depth ? "%s%d @ d%d" : "%s%d", r->generates ? "tg" : "pp",
             r->tokens, r->depth);
    snprintf(rate, sizeof(rate), "%.2f ± %.2f", r->mean, r->deviation);
    snprintf(tiers, sizeof(tiers), "%.1f / %.1f / %.1f", 100 * r->hit_vram, 100 * r->hit_ram,
             100 * fmax(0, 1 - r->hit_vram - r->hit_ram));
    snprintf(bytes, sizeof(bytes), "%.3g / %.3g / %.3g", r->bytes.vram * 1e-9,
             r->bytes.ram * 1e-9, r->bytes.nvme * 1e-9);
    if (r->predicted > 0)
        snprintf(predicted, sizeof(predicted), "%.2f", r->predicted);
    text_printf(t, "| %-5s | %16s | %18s | %20s | %25s | %5.1f | %9s |\n", model, test, rate, tiers,
                bytes, 100 * r->io_wait, predicted);
}

static int show(struct bench *b, struct err *e)
{
    const struct options *o = b->o;
    const char *name = strrchr(o->model_dir, '/');
    struct text t = { NULL, 0, 0, false };
    int rc;

    name = name && name[1] ? name + 1 : o->model_dir;
    if (o->csv)
        text_puts(&t, "test,depth,tps_mean,tps_sd,vram_bytes_per_token,ram_bytes_per_token,"
                      "nvme_bytes_per_token,hit_vram,hit_ram,uploaded,io_wait,cpu_share,"
                      "gpu_wait,predicted_tps\n");
    else if (!o->json)
        text_printf(&t, "| %-*s |             test |               t/s |  vram / ram / nvme %% |"
                    "          GB/token of each |  io %% | predicted |\n"
                    "| :--- | ---------------: | ----------------: | -------------------: |"
                    " ------------------------: | ----: | --------: |\n", (int)strlen(name),
                    "model");
    for (int i = 0; i < b->rows; i++) {
        if (o->json) {
            text_puts(&t, i ? ", " : "[");
            add_json(&t, &b->row[i]);
        } else if (o->csv) {
            add_csv(&t, &b->row[i]);
        } else {
            add_line(&t, &b->row[i], name);
        }
    }
    if (o->json)
        text_puts(&t, "]");
    rc = t.failed   ? fail(e, -ENOMEM, "no memory for the table")
         : o->json  ? output_line(&t, e)
                    : output_bytes(t.s, t.n, e);
    text_free(&t);
    return rc;
}

int cmd_bench(struct options *o, struct err *e)
{
    struct bench *b = calloc(1, sizeof(*b));
    int rc = b ? 0 : fail(e, -ENOMEM, "out of memory");

    if (rc)
        return rc;
    b->o = o;
    rc = engine_open(&b->engine, o, e);
    if (!rc)
        rc = run_rows(b, e);
    if (!rc)
        rc = show(b, e);
    session_close(b->session);
    outlook_close(&b->outlook);
    engine_close(b->engine);
    free(b->text.id);
    free(b);
    return rc;
}
