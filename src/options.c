#include "config.h"
#include "cpu/kernels.h"
#include "src/completion.h"
#include "src/options_table.h"

#include <ctype.h>
#include <errno.h>
#include <getopt.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

/* Collects the settings: file, environment and command line, in that order, so that the
 * later one wins.  The command line is taken apart first, because it says which command's
 * options count, and because --help must work whatever the others contain. */

enum { MAX_SETTINGS = 256, FILE_LIMIT = 65536 };

#define SETTINGS_FILE SYSCONFDIR "/laguna-offload.conf"
#define HINT "; try 'laguna-offload --help'"

/* The command line, taken apart. */
struct line {
    const char *name[MAX_SETTINGS], *value[MAX_SETTINGS];   /* [settings] */
    char letter[MAX_SETTINGS];  /* or 0: the name was written out */
    int settings;
    char **operand;             /* [operands] */
    int operands;
};

/* Keep memory until options_free(). */
static int own(struct options *o, void *memory, struct err *e)
{
    if (!memory || o->owneds == (int)(sizeof(o->owned) / sizeof(*o->owned))) {
        free(memory);
        return fail(e, -ENOMEM, "no memory for the settings");
    }
    o->owned[o->owneds++] = memory;
    return 0;
}

void options_free(struct options *o)
{
    while (o->owneds)
        free(o->owned[--o->owneds]);
}

static void set_defaults(struct options *o)
{
    memset(o, 0, sizeof(*o));
    o->gpu_watchdog = 180;
    o->upload_share = NAN;
    o->isa = o->device = o->io = "auto";
    o->kv_type = "q8";
    o->ram_bytes = o->ram_experts_bytes = o->vram_experts_bytes = SIZE_AUTO;
    o->vram_reserve_bytes = SIZE_AUTO;
    for (int i = 0; i < OPTION_GPUS; i++)
        o->vram_bytes[i] = SIZE_AUTO;
    o->io_depth = 4;
    o->max_tokens = -1;
    o->temperature = o->top_p = o->min_p = NAN;
    o->top_k = -1;
    o->window = 2048;
    o->repetitions = 5;
    o->host = "127.0.0.1";
    o->port = 8080;
    o->log_format = "text";
    o->queue = 8;
    o->sessions = 2;
    o->drain_seconds = 4;
    o->limits = (struct http_limits){
        .line_bytes = 8192, .head_bytes = 16384, .fields = 64, .body_bytes = 32 << 20,
        .head_seconds = 10, .body_seconds = 60, .body_rate = 1024, .idle_seconds = 900,
        .connections = 512, .peer_connections = 64,
    };
    o->url = "http://127.0.0.1:8080";
}

/* base + tail, or nothing where base is unset or empty. */
static int set_path(struct options *o, const char **field, const char *base, const char *tail,
                    struct err *e)
{
    char *path = NULL;

    if (*field || !base || !*base)
        return 0;
    if (asprintf(&path, "%s%s", base, tail) < 0)
        path = NULL;
    *field = path;
    return own(o, path, e);
}

/* The model beside the program (a build tree), else the installed one. */
static int find_model(struct options *o, struct err *e)
{
    char exe[4096], *slash;
    ssize_t n = readlink("/proc/self/exe", exe, sizeof(exe) - 32);

    if (o->model_dir)
        return 0;
    o->model_dir = PKGDATADIR "/models/nano";
    exe[n > 0 ? n : 0] = 0;
    slash = strrchr(exe, '/');
    if (!slash)
        return 0;
    strcpy(slash, "/models/nano");
    if (access(exe, F_OK))
        return 0;
    o->model_dir = NULL;
    return set_path(o, &o->model_dir, exe, "", e);
}

/* The places that follow from the environment where no option names them. */
static int find_places(struct options *o, struct err *e)
{
    const char *home = getenv("HOME"), *term = getenv("TERM"), *no_color = getenv("NO_COLOR");
    const char *systemd = getenv("STATE_DIRECTORY");
    int rc;

    o->plain_terminal = (no_color && *no_color) || (term && !strcmp(term, "dumb"));
    rc = find_model(o, e);
    if (!rc)
        rc = set_path(o, &o->state_dir, systemd, "", e);
    if (!rc)
        rc = set_path(o, &o->state_dir, getenv("XDG_STATE_HOME"), "/laguna-offload", e);
    if (!rc)
        rc = set_path(o, &o->state_dir, home, "/.local/state/laguna-offload", e);
    if (!rc)
        rc = set_path(o, &o->cache_dir, getenv("XDG_CACHE_HOME"), "/laguna-offload", e);
    if (!rc)
        rc = set_path(o, &o->cache_dir, home, "/.cache/laguna-offload", e);
    return rc;
}

/* The row for this command, else any: settings of other commands are checked and unused. */
static const struct option_spec *any_row(const char *name, enum command c)
{
    const struct option_spec *s = option_named(name, c);

    return s ? s : option_named(name, CMD_NONE);
}

static int read_environment(struct options *o, struct err *e)
{
    o->stops = getenv("LAGUNA_STOP") ? 0 : o->stops;
    for (const struct option_spec *s = option_table(); s->name; s++) {
        char name[64] = "LAGUNA_";
        const char *value;
        int rc;

        for (size_t i = 0; s->name[i]; i++)
            name[7 + i] = s->name[i] == '-' ? '_' : (char)toupper(s->name[i]);
        value = getenv(name);
        if (!value || s->kind == OPTION_HELP || s->kind == OPTION_VERSION)
            continue;
        rc = option_set(o, any_row(s->name, o->command), name, value, e);
        if (rc)
            return rc;
        if (s->kind == OPTION_STOP)
            o->stops = 1;
    }
    return 0;
}

/* s without the blanks at both ends, in place. */
static char *trim(char *s)
{
    size_t n;

    s += strspn(s, " \t\r");
    for (n = strlen(s); n && strchr(" \t\r", s[n - 1]); n--)
        s[n - 1] = 0;
    return s;
}

static int read_settings(struct options *o, const char *path, char *text, struct err *e)
{
    for (int number = 1; text; number++) {
        char from[512], *next = strchr(text, '\n'), *key, *value;
        const struct option_spec *s;
        int rc;

        if (next)
            *next++ = 0;
        key = trim(text);
        text = next;
        if (!*key || *key == '#')
            continue;
        value = strchr(key, '=');
        if (!value)
            return fail(e, -EINVAL, "%s:%d: %s: expected key = value", path, number, key);
        *value++ = 0;
        key = trim(key);
        snprintf(from, sizeof(from), "%s:%d: %s", path, number, key);
        s = any_row(key, o->command);
        if (!s)
            return fail(e, -EINVAL, "%s: no such setting", from);
        rc = option_set(o, s, from, trim(value), e);
        if (rc)
            return rc;
    }
    return 0;
}

/* The file is optional unless the environment names one. */
static int read_file(struct options *o, struct err *e)
{
    const char *named = getenv("LAGUNA_CONFIG"), *path = named ? named : SETTINGS_FILE;
    FILE *f = fopen(path, "r");
    char *text;
    size_t n;
    int rc;

    if (!f && errno == ENOENT && !named)
        return 0;
    if (!f) {
        rc = -errno;
        return fail(e, rc, "%s: %s", path, strerror(-rc));
    }
    text = calloc(1, FILE_LIMIT + 1);
    rc = own(o, text, e);
    n = rc ? 0 : fread(text, 1, FILE_LIMIT + 1, f);
    if (!rc && ferror(f))
        rc = fail(e, -errno, "%s: %s", path, strerror(errno));
    else if (!rc && (n > FILE_LIMIT || memchr(text, 0, n)))
        rc = fail(e, -EINVAL, "%s: not a text of at most %d bytes", path, FILE_LIMIT);
    fclose(f);
    return rc ? rc : read_settings(o, path, text, e);
}

/* getopt's two forms of the table, without what two commands share. */
static void getopt_tables(struct option *longs, char *shorts)
{
    const struct option_spec *all = option_table();

    *shorts++ = ':';
    for (const struct option_spec *s = all; s->name; s++) {
        if (option_named(s->name, CMD_NONE) != s)
            continue;
        *longs++ = (struct option){ s->name, s->arg ? required_argument : no_argument, NULL,
                                    256 + (int)(s - all) };
        if (s->letter) {
            *shorts++ = s->letter;
            if (s->arg)
                *shorts++ = ':';
        }
    }
    *longs = (struct option){ NULL, 0, NULL, 0 };
    *shorts = 0;
}

static const struct option_spec *row_of(int code)
{
    const struct option_spec *s = option_table();

    if (code >= 256)
        return s + code - 256;
    while (s->name && s->letter != code)
        s++;
    return s;
}

static int take_apart(struct line *l, int argc, char **argv, struct err *e)
{
    struct option longs[128];
    char shorts[128];
    int code;

    getopt_tables(longs, shorts);
    opterr = 0;
    optind = 0;
    while ((code = getopt_long(argc, argv, shorts, longs, NULL)) != -1) {
        if (code == ':')
            return fail(e, -EINVAL, "%s needs a value" HINT, argv[optind - 1]);
        if (code == '?' && optopt >= 256)
            return fail(e, -EINVAL, "--%s takes no value" HINT, row_of(optopt)->name);
        if (code == '?' && optopt)
            return fail(e, -EINVAL, "there is no option -%c" HINT, optopt);
        if (code == '?')
            return fail(e, -EINVAL, "there is no option %s" HINT, argv[optind - 1]);
        if (l->settings == MAX_SETTINGS)
            return fail(e, -EINVAL, "more than %d options", MAX_SETTINGS);
        l->name[l->settings] = row_of(code)->name;
        l->letter[l->settings] = code < 256 ? (char)code : 0;
        l->value[l->settings++] = optarg ? optarg : "on";
    }
    l->operand = argv + optind;
    l->operands = argc - optind;
    return 0;
}

static const char *line_value(const struct line *l, const char *name)
{
    for (int i = 0; i < l->settings; i++)
        if (!strcmp(l->name[i], name))
            return l->value[i];
    return NULL;
}

/* The ones this machine runs, a mark before the one that auto takes. */
static void list_isas(void)
{
    const struct cpu_kernels *best = cpu_kernels_best();

    for (int i = 0; i < CPU_ISA_COUNT; i++) {
        const struct cpu_kernels *k = cpu_kernels((enum cpu_isa)i);

        if (k)
            printf("%c %s\n", k == best ? '*' : ' ', k->name);
    }
}

/* What is answered on stdout without a command: 1 if it was. */
static int answer(const struct line *l, enum command c)
{
    const char *isa = line_value(l, "isa");

    if (line_value(l, "help"))
        options_help(c);
    else if (line_value(l, "completion"))
        completion_write(line_value(l, "completion"));
    else if (line_value(l, "version"))
        puts(PACKAGE_STRING);
    else if (isa && !strcmp(isa, "help"))
        list_isas();
    else
        return 0;
    return 1;
}

static int take_operands(struct options *o, const struct line *l, struct err *e)
{
    const char *first = l->operands > 1 ? l->operand[1] : NULL;

    if (l->operands > 2)
        return fail(e, -EINVAL, "one %s at most, and here is '%s' too",
                    o->command == CMD_RUN ? "PROMPT (in quotes)" : "FILE", l->operand[2]);
    if (!first)
        return 0;
    if (!*command_row(o->command)->operand)
        return fail(e, -EINVAL, "%s takes options only, and here is '%s'", l->operand[0], first);
    if (o->command == CMD_RUN)
        o->prompt = first;
    else
        o->file = first;
    return 0;
}

static int apply_line(struct options *o, const struct line *l, struct err *e)
{
    const char *command = command_row(o->command)->name;

    o->stops = line_value(l, "stop") ? 0 : o->stops;
    for (int i = 0; i < l->settings; i++) {
        char letter = l->letter[i], from[64];
        const struct option_spec *s = letter ? option_lettered(letter, o->command)
                                             : option_named(l->name[i], o->command);
        int rc;

        if (!s && letter)
            return fail(e, -EINVAL, "%s takes no -%c; try 'laguna-offload %s --help'", command,
                        letter, command);
        if (!s)
            return fail(e, -EINVAL, "%s takes no --%s; try 'laguna-offload %s --help'", command,
                        l->name[i], command);
        snprintf(from, sizeof(from), "--%s", s->name);
        rc = option_set(o, s, from, l->value[i], e);
        if (rc)
            return rc;
    }
    return take_operands(o, l, e);
}

/* Settings that make no sense side by side. */
static int check_together(const struct options *o, const struct line *l, struct err *e)
{
    if (o->command == CMD_RUN && o->prompt && line_value(l, "file"))
        return fail(e, -EINVAL, "a PROMPT and --file: give one of them");
    if (o->command == CMD_SCORE && !o->ids && (o->decode || o->logits || o->routes))
        return fail(e, -EINVAL, "--decode, --logits and --routes need --ids");
    if (o->command == CMD_TOKENIZE && o->decode && (o->as_text || o->add_bos))
        return fail(e, -EINVAL, "--decode reads ids: --as-text and --bos say nothing about them");
    if (o->json + o->csv + o->markdown + (o->svg != NULL) > 1)
        return fail(e, -EINVAL, "of --json, --csv, --md and --svg, give one");
    return 0;
}

/* How systemd started the service, if it did. */
static void find_service(struct options *o)
{
    const char *fds = getenv("LISTEN_FDS"), *pid = getenv("LISTEN_PID");

    if (o->command != CMD_SERVE)
        return;
    o->notify_socket = getenv("NOTIFY_SOCKET");
    o->watchdog = getenv("WATCHDOG_USEC") != NULL;
    if (fds && pid && strtol(pid, NULL, 10) == getpid())
        o->listen_fds = (int)strtol(fds, NULL, 10);
}

int options_parse(struct options *o, int argc, char **argv, struct err *e)
{
    struct line l = { .settings = 0 };
    const struct command_spec *command = NULL;
    int rc;

    set_defaults(o);
    rc = take_apart(&l, argc, argv, e);
    if (rc)
        return rc;
    if (l.operands) {
        command = command_named(l.operand[0]);
        if (!command)
            return fail(e, -EINVAL, "there is no command '%s'" HINT, l.operand[0]);
        o->command = command->command;
    }
    if (line_value(&l, "completion") && strcmp(line_value(&l, "completion"), "bash") &&
        strcmp(line_value(&l, "completion"), "zsh"))
        return fail(e, -EINVAL, "--completion: bash or zsh");
    if (answer(&l, o->command))
        return 1;
    if (!command)
        return fail(e, -EINVAL, "no command" HINT);
    rc = read_file(o, e);
    if (!rc)
        rc = read_environment(o, e);
    if (!rc)
        rc = apply_line(o, &l, e);
    o->log.format = !strcmp(o->log_format, "json") ? LOG_JSON
                  : !strcmp(o->log_format, "journal") ? LOG_JOURNAL : LOG_TEXT;
    if (!rc)
        rc = check_together(o, &l, e);
    if (!rc)
        rc = find_places(o, e);
    find_service(o);
    return rc;
}
