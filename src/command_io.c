#include "src/command_io.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>

int input_open(struct input *in, const char *file, struct err *e)
{
    bool from_stdin = !file || !strcmp(file, "-");
    int rc = 0;

    memset(in, 0, sizeof(*in));
    in->name = from_stdin ? "standard input" : file;
    in->f = from_stdin ? stdin : fopen(file, "r");
    if (!in->f) {
        rc = -errno;
        fail(e, rc, "%s: %s", in->name, strerror(-rc));
    }
    return rc;
}

void input_close(struct input *in)
{
    if (in->f && in->f != stdin)
        fclose(in->f);
    free(in->line);
}

static int read_failed(const struct input *in, int error, struct err *e)
{
    return fail(e, -error, "%s: %s", in->name, strerror(error));
}

int input_line(struct input *in, const char **text, size_t *n, struct err *e)
{
    ssize_t got;

    do {
        errno = 0;
        got = getline(&in->line, &in->cap, in->f);
        if (got < 0)
            return errno ? read_failed(in, errno, e) : 0;
        in->number++;
        if (got && in->line[got - 1] == '\n')
            got--;
    } while (strspn(in->line, " \t\r\n") >= (size_t)got);
    if (got > INPUT_LINE_LIMIT)
        return input_fail(in, fail(e, -EBADMSG, "a line of %zd bytes; %d are allowed", got,
                                   INPUT_LINE_LIMIT), e);
    *text = in->line;
    *n = (size_t)got;
    return 1;
}

int input_all(struct input *in, struct text *out, struct err *e)
{
    char buf[65536];
    size_t n;

    errno = 0;
    while ((n = fread(buf, 1, sizeof(buf), in->f)) > 0)
        text_add(out, buf, n);
    if (ferror(in->f))
        return read_failed(in, errno ? errno : EIO, e);
    return out->failed ? fail(e, -ENOMEM, "%s: no memory for its text", in->name) : 0;
}

int input_fail(const struct input *in, int rc, struct err *e)
{
    struct err words = *e;

    return fail(e, rc, "%s:%ld: %s", in->name, in->number, words.text);
}

static int write_failed(int error, struct err *e)
{
    /* A reader that left says nothing; whatever else it is, the output cannot be made. */
    return fail(e, error == EPIPE ? -EPIPE : -ENOSPC, "standard output: %s", strerror(error));
}

int output_flush(struct err *e)
{
    errno = 0;
    if (fflush(stdout) || ferror(stdout))
        return write_failed(errno ? errno : EIO, e);
    return 0;
}

int output_bytes(const char *s, size_t n, struct err *e)
{
    errno = 0;
    if (fwrite(s, 1, n, stdout) < n)
        return write_failed(errno ? errno : EIO, e);
    return output_flush(e);
}

/* The escape of the character at s[0..n), where some readers take it for the end of a line;
 * its length in *length. */
static const char *line_break(const char *s, size_t n, size_t *length)
{
    *length = 2;
    if (n >= 2 && !memcmp(s, "\xc2\x85", 2))
        return "\\u0085";
    *length = 3;
    if (n >= 3 && !memcmp(s, "\xe2\x80\xa8", 3))
        return "\\u2028";
    if (n >= 3 && !memcmp(s, "\xe2\x80\xa9", 3))
        return "\\u2029";
    return NULL;
}

int output_line(struct text *t, struct err *e)
{
    struct text line = { NULL, 0, 0, false };
    size_t done = 0, length;
    int rc;

    text_add(t, "\n", 1);
    for (size_t i = 0; !t->failed && i < t->n; i++) {
        const char *escape = t->s[i] & 0x80 ? line_break(t->s + i, t->n - i, &length) : NULL;

        if (!escape)
            continue;
        text_add(&line, t->s + done, i - done);
        text_puts(&line, escape);
        i += length - 1;
        done = i + 1;
    }
    if (done)
        text_add(&line, t->s + done, t->n - done);
    rc = t->failed || line.failed ? fail(e, -ENOMEM, "no memory for a line of output")
       : done ? output_bytes(line.s, line.n, e) : output_bytes(t->s, t->n, e);
    text_free(&line);
    t->n = 0;
    return rc;
}

int ids_parse(struct ids *out, const char *line, size_t n, int vocab, struct err *e)
{
    cJSON *array = json_parse(line, n, &JSON_REQUEST, e);
    const cJSON *item;
    int rc = 0;

    if (!array)
        return -EBADMSG;
    if (!cJSON_IsArray(array))
        rc = fail(e, -EBADMSG, "expected an array of ids");
    cJSON_ArrayForEach(item, array) {
        int64_t id;

        if (rc)
            break;
        if (json_int64(item, 0, vocab - 1, &id))
            rc = fail(e, -EBADMSG, "[%zu]: %.40s is not an id from 0 to %d", out->n,
                      cJSON_IsNumber(item) ? item->valuestring : "what is no number", vocab - 1);
        else if (ids_push(out, (int32_t)id))
            rc = fail(e, -ENOMEM, "no memory for the ids");
    }
    cJSON_Delete(array);
    return rc;
}

/* As %d of an id; how many bytes.  printf takes ten times as long as finding the id did. */
static size_t print_id(char *to, int32_t id)
{
    char digit[10];
    size_t digits = 0, n = 0;
    uint32_t left = (uint32_t)id;

    do {
        digit[digits++] = (char)('0' + left % 10);
        left /= 10;
    } while (left);
    while (digits)
        to[n++] = digit[--digits];
    return n;
}

void text_ids(struct text *t, const int32_t *id, size_t n)
{
    char buf[4096];
    size_t used = 0;

    text_puts(t, "[");
    for (size_t i = 0; i < n; i++) {
        assert(id[i] >= 0);
        if (used > sizeof(buf) - 16) {
            text_add(t, buf, used);
            used = 0;
        }
        if (i) {
            buf[used++] = ',';
            buf[used++] = ' ';
        }
        used += print_id(buf + used, id[i]);
    }
    text_add(t, buf, used);
    text_puts(t, "]");
}
