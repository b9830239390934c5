#include "src/command_io.h"
#include "src/commands.h"
#include "src/line.h"
#include "src/talk.h"

#include <errno.h>
#include <signal.h>
#include <stdatomic.h>
#include <unistd.h>

/* run: one prompt and its answer, or a conversation at a terminal. */

/* The only state outside a struct: a signal handler is given nothing else to write to.
 * A second Ctrl-C before the first was heard ends the program. */
static atomic_int interrupted;         /* lock-free, so a signal handler may set it */

static void on_interrupt(int sig)
{
    if (interrupted) {
        signal(sig, SIG_DFL);
        raise(sig);
    }
    interrupted = 1;
}

static void catch_interrupts(void)
{
    struct sigaction a = { .sa_handler = on_interrupt };

    sigaction(SIGINT, &a, NULL);
}

static void show_commands(void)
{
    fputs("/new             forget the conversation\n"
          "/system [TEXT]   a new conversation under this system message\n"
          "/think on|off    let the model think before it answers\n"
          "/quit            leave, as the end of the input does; Ctrl-C stops an answer\n",
          stderr);
}

/* A line that begins with a slash: 0, or 1 to leave. */
static int obey(struct talk *t, struct text *system, const char *line, struct err *e)
{
    const char *arg = line + strcspn(line, " ");

    arg += strspn(arg, " ");
    if (!strcmp(line, "/quit"))
        return 1;
    if (!strcmp(line, "/new"))
        return talk_begin(t, e);
    if (!strncmp(line, "/system", 7) && (!line[7] || line[7] == ' ')) {
        system->n = 0;
        text_puts(system, arg);
        t->system = system->n ? system->s : NULL;
        return talk_begin(t, e);
    }
    if (!strcmp(line, "/think on") || !strcmp(line, "/think off")) {
        t->think = line[8] == 'n';
        return 0;
    }
    if (strcmp(line, "/help"))
        fprintf(stderr, "there is no %s; these are:\n", line);
    show_commands();
    return 0;
}

static int converse(struct talk *t, struct err *e)
{
    struct text system = { NULL, 0, 0, false };
    struct line_reader *reader = NULL;
    const char *line;
    bool cut;
    int rc = line_open(&reader, "> ", e);

    if (!rc && t->o->log.level > LOG_QUIET)
        fputs("/help shows what else can be typed here.\n", stderr);
    while (!rc && (atomic_store(&interrupted, 0), line = line_read(reader, &cut))) {
        interrupted = 0;
        if (cut)
            fputs("\n/quit or Ctrl-D leaves\n", stderr);
        else if (*line == '/')
            rc = obey(t, &system, line, e);
        else if (*line)
            rc = talk_say(t, line, e);
        /* A conversation outlives what does not fit it. */
        if (rc == -E2BIG || rc == -EOVERFLOW) {
            fprintf(stderr, "%s; /new begins another\n", e->text);
            rc = 0;
        }
    }
    line_close(reader);
    text_free(&system);
    return rc > 0 ? 0 : rc;
}

/* A prompt from a file or stdin, without the line end behind it. */
static int read_prompt(const char *file, struct text *out, struct err *e)
{
    struct input in;
    int rc = input_open(&in, file, e);

    if (!rc)
        rc = input_all(&in, out, e);
    if (!rc && out->n && out->s[out->n - 1] == '\n')
        out->s[--out->n] = 0;
    if (!rc && !out->n)
        rc = fail(e, -EBADMSG, "%s: an empty prompt", in.name);
    if (!rc && strlen(out->s) < out->n)
        rc = fail(e, -EBADMSG, "%s: a NUL at byte %zu of the prompt", in.name, strlen(out->s));
    input_close(&in);
    return rc;
}

int cmd_run(struct options *o, struct err *e)
{
    struct talk t = { .o = o, .system = o->system, .think = o->think, .cancel = &interrupted };
    struct text read = { NULL, 0, 0, false };
    const char *prompt = o->prompt;
    bool alone = !prompt && !o->file && isatty(0);
    int rc = 0;

    if (!prompt && !alone) {
        rc = read_prompt(o->file, &read, e);
        prompt = read.s;
    }
    if (!rc)
        rc = engine_open(&t.engine, o, e);
    if (!rc)
        rc = session_open(&t.session, t.engine, e);
    if (!rc)
        rc = talk_begin(&t, e);
    if (!rc) {
        catch_interrupts();
        rc = alone ? converse(&t, e) : talk_say(&t, prompt, e);
    }
    cJSON_Delete(t.messages);
    session_close(t.session);
    engine_close(t.engine);
    text_free(&read);
    return rc;
}
