#include "src/client.h"
#include "src/command_io.h"
#include "src/commands.h"
#include "src/keys.h"

#include <errno.h>
#include <math.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <termios.h>
#include <unistd.h>

/* top: what /stats of a running server says, once a second; once where stdout is a file. */

enum { POINTS = 60, BAR = 40 };

struct top {
    struct options *o;
    struct keys keys;
    cJSON *now, *before;        /* answers */
    double at, at_before;
    double rate[POINTS];        /* tokens a second, newest last */
    int points;
    bool paused;
};

static double number(const cJSON *o, const char *name)
{
    const cJSON *n = json_get(o, name);

    return cJSON_IsNumber(n) ? n->valuedouble : 0;
}

/* How fast a counter grew between the two last looks. */
static double growth(const struct top *t, const char *name)
{
    double seconds = t->at - t->at_before;

    if (!t->before || seconds <= 0)
        return 0;
    return (number(t->now, name) - number(t->before, name)) / seconds;
}

static int look(struct top *t, struct err *e)
{
    struct text s = { NULL, 0, 0, false };
    const char *key = t->keys.n ? t->keys.key[0] : NULL;
    int rc = client_get(&s, t->o->url, "/stats", key, e);
    cJSON *got = rc ? NULL : json_parse(s.s ? s.s : "", s.n, &JSON_FILE, e);

    text_free(&s);
    if (rc || !got)
        return rc ? rc : -EBADMSG;
    cJSON_Delete(t->before);
    t->before = t->now;
    t->at_before = t->at;
    t->now = got;
    t->at = clock_now();
    memmove(t->rate, t->rate + 1, sizeof(t->rate) - sizeof(t->rate[0]));
    t->rate[POINTS - 1] = growth(t, "predicted_tokens");
    return 0;
}

static void add_bar(struct text *out, const char *name, double share, const char *words)
{
    int n = share > 0 ? (int)lrint(share * BAR) : 0;

    text_printf(out, "%-10s [", name);
    for (int i = 0; i < BAR; i++)
        text_puts(out, i < n ? "|" : " ");
    text_printf(out, "] %s\n", words);
}

static void add_curve(struct text *out, const struct top *t)
{
    static const char *const level[] = { " ", "▁", "▂", "▃", "▄", "▅", "▆", "▇", "█" };
    double most = 1;

    for (int i = 0; i < POINTS; i++)
        most = fmax(most, t->rate[i]);
    for (int i = 0; i < POINTS; i++)
        text_puts(out, level[(int)lrint(fmax(0, t->rate[i]) / most * 8)]);
    text_printf(out, "  %.1f tok/s now, %.1f at most\n", t->rate[POINTS - 1], most);
}

static void add_tiers(struct text *out, const struct top *t)
{
    static const char *const name[] = { "vram", "ram", "nvme" };
    const cJSON *tiers = json_get(t->now, "tiers");
    double all = 0;
    char words[64];

    for (int i = 0; i < 3; i++)
        all += number(tiers, name[i]);
    for (int i = 0; i < 3; i++) {
        double share = all > 0 ? number(tiers, name[i]) / all : 0;

        snprintf(words, sizeof(words), "%5.1f %% of experts used", share * 100);
        add_bar(out, name[i], share, words);
    }
}

static void add_sessions(struct text *out, const struct top *t)
{
    double context = number(t->now, "context");
    const cJSON *one;
    char words[64], name[24];
    int i = 0;

    cJSON_ArrayForEach(one, json_get(t->now, "sessions")) {
        snprintf(words, sizeof(words), "%.0f of %.0f tokens", one->valuedouble, context);
        snprintf(name, sizeof(name), "session %d", i++);
        add_bar(out, name, context > 0 ? one->valuedouble / context : 0, words);
    }
}

static void add_jobs(struct text *out, const struct top *t)
{
    const cJSON *job;

    cJSON_ArrayForEach(job, json_get(t->now, "jobs")) {
        const cJSON *path = json_get(job, "path"), *state = json_get(job, "state");

        if (cJSON_IsString(path) && cJSON_IsString(state))
            text_printf(out, "  %-20s %-8s prompt %.0f/%.0f\n", path->valuestring,
                        state->valuestring, number(job, "prompt_done"),
                        number(job, "prompt_tokens"));
    }
}

static void compose(struct text *out, const struct top *t)
{
    const cJSON *model = json_get(t->now, "model");
    double prompts = number(t->now, "prompt_tokens"), cached = number(t->now, "cached_tokens");

    text_printf(out, "%s at %s   up %.0f s   %.0f connections   %.0f running, %.0f waiting\n\n",
                cJSON_IsString(model) ? model->valuestring : "?", t->o->url,
                number(t->now, "uptime"), number(t->now, "connections"),
                number(t->now, "running"), number(t->now, "waiting"));
    add_curve(out, t);
    text_printf(out, "prompts %.0f tok/s   %.0f of %.0f prompt tokens found in a session   "
                "%.0f answers' tokens\n", growth(t, "prompt_tokens"), cached, prompts + cached,
                number(t->now, "predicted_tokens"));
    text_printf(out, "requests %.0f   cancelled %.0f   failed %.0f   refused %.0f   "
                "waited for the drive %.1f s\n\n", number(t->now, "requests"),
                number(t->now, "cancelled"), number(t->now, "failed"), number(t->now, "refused"),
                number(t->now, "io_wait_seconds"));
    add_tiers(out, t);
    add_sessions(out, t);
    text_puts(out, "\n");
    add_jobs(out, t);
}

static int show(struct top *t, bool screen, struct err *e)
{
    struct text out = { NULL, 0, 0, false };
    int rc;

    if (screen)
        text_puts(&out, "\033[H\033[J");
    compose(&out, t);
    if (screen)
        text_puts(&out, t->paused ? "q quits, p goes on" : "q quits, p pauses");
    rc = out.failed ? fail(e, -ENOMEM, "out of memory") : output_bytes(out.s, out.n, e);
    text_free(&out);
    return rc;
}

/* Keys come one by one and are not shown. */
static int watch(struct top *t, struct err *e)
{
    struct pollfd p = { .fd = 0, .events = POLLIN };
    struct termios before, raw;
    char key = 0;
    int rc = 0;

    if (tcgetattr(0, &before))
        return fail(e, -errno, "the terminal: %s", strerror(errno));
    raw = before;
    raw.c_lflag &= ~(tcflag_t)(ICANON | ECHO);
    tcsetattr(0, TCSANOW, &raw);
    while (!rc && key != 'q') {
        key = 0;
        if (poll(&p, 1, 1000) > 0 && read(0, &key, 1) < 1)
            break;
        t->paused ^= key == 'p';
        if (!t->paused)
            rc = look(t, e);
        if (!rc)
            rc = show(t, true, e);
    }
    tcsetattr(0, TCSANOW, &before);
    puts("");
    return rc;
}

int cmd_top(struct options *o, struct err *e)
{
    struct top t = { .o = o };
    bool screen = isatty(0) && isatty(1) && !o->plain_terminal;
    int rc = keys_load(&t.keys, o, e);

    if (!rc)
        rc = look(&t, e);
    if (!rc)
        rc = show(&t, screen, e);
    if (!rc && screen)
        rc = watch(&t, e);
    cJSON_Delete(t.now);
    cJSON_Delete(t.before);
    keys_free(&t.keys);
    return rc;
}
