#include "src/base.h"
#include "src/utf8.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <sys/stat.h>
#include <time.h>

/* Names in messages come from files; an escape sequence must not reach a terminal. */
static void escape_controls(char *s)
{
    for (; *s; s++)
        if ((unsigned char)*s < 0x20 || *s == 0x7f)
            *s = '?';
}

int fail(struct err *e, int rc, const char *fmt, ...)
{
    va_list ap;

    if (!e)
        return rc;
    va_start(ap, fmt);
    vsnprintf(e->text, sizeof(e->text), fmt, ap);
    va_end(ap);
    escape_controls(e->text);
    return rc;
}

int exit_status(int rc)
{
    switch (-rc) {
    case 0:
        return 0;
    case EINVAL:
        return 64;
    case EBADMSG:
    case E2BIG:
    case EOVERFLOW:
    case ESTALE:
        return 65;
    case ENOENT:
    case ENOTDIR:
    case EISDIR:
        return 66;
    case ENODEV:
    case EADDRINUSE:
        return 69;
    case EREMOTEIO:
    case EAGAIN:
    case EMFILE:
    case ENFILE:
        return 71;
    case ENOSPC:
    case EROFS:
    case EDQUOT:
        return 73;
    case EIO:
    case ENXIO:
    case ETIME:
    case ETIMEDOUT:
        return 74;
    case ENOMEM:
    case EBUSY:
    case EINPROGRESS:
        return 75;
    case EACCES:
    case EPERM:
        return 77;
    case ENOTSUP:
        return 78;
    default:
        return 70;
    }
}

/* As the inside of a JSON string; what is no character becomes a question mark. */
static void escape_json(char *out, const char *s)
{
    for (size_t left = strlen(s); left;) {
        int n = utf8_char((const unsigned char *)s, left);

        if (*s == '"' || *s == '\\')
            *out++ = '\\';
        if (n < 1 || (unsigned char)*s < 0x20)
            *out = '?';
        else
            memcpy(out, s, (size_t)n);
        n = n < 1 ? 1 : n;
        out += n;
        s += n;
        left -= (size_t)n;
    }
    *out = 0;
}

void log_line(const struct log *l, int priority, const char *words)
{
    const char *kind = priority == LINE_ERROR ? "error"
                     : priority == LINE_WARNING ? "warning" : "info";
    const char *mark = priority == LINE_WARNING ? "warning: " : "";
    char text[512], json[2 * sizeof(text)];

    snprintf(text, sizeof(text), "%s", words);
    if (l->format == LOG_JSON) {
        escape_json(json, text);
        fprintf(stderr, "{\"event\":\"%s\",\"message\":\"%s\"}\n", kind, json);
    } else if (l->format == LOG_JOURNAL) {
        fprintf(stderr, "<%d>laguna-offload: %s%s\n", priority, mark, text);
    } else {
        fprintf(stderr, "laguna-offload: %s%s\n", mark, text);
    }
}

void warn(struct log *l, const char *fmt, ...)
{
    char text[256];
    va_list ap;

    va_start(ap, fmt);
    vsnprintf(text, sizeof(text), fmt, ap);
    va_end(ap);
    escape_controls(text);
    if (l->notices < LOG_NOTICES)
        memcpy(l->notice[l->notices], text, sizeof(text));
    l->notices++;
    if (l->level > LOG_QUIET)
        log_line(l, LINE_WARNING, text);
}

void info(struct log *l, const char *fmt, ...)
{
    char text[512];
    va_list ap;

    if (l->level < LOG_VERBOSE)
        return;
    va_start(ap, fmt);
    vsnprintf(text, sizeof(text), fmt, ap);
    va_end(ap);
    log_line(l, LINE_INFO, text);
}

size_t mul_sat(size_t a, size_t b)
{
    size_t r;

    return __builtin_mul_overflow(a, b, &r) ? SIZE_MAX : r;
}

size_t add_sat(size_t a, size_t b)
{
    size_t r;

    return __builtin_add_overflow(a, b, &r) ? SIZE_MAX : r;
}

int make_directory(const char *path)
{
    char dir[4096];
    size_t n = strlen(path);

    if (!n || n >= sizeof(dir))
        return -ENAMETOOLONG;
    memcpy(dir, path, n + 1);
    for (size_t i = 1; i <= n; i++) {
        char c = dir[i];

        if (c && c != '/')
            continue;
        dir[i] = 0;
        /* chmod: a umask of 0777 would leave a directory that nobody may enter. */
        if (mkdir(dir, 0700) ? errno != EEXIST : chmod(dir, 0700))
            return -errno;
        dir[i] = c;
    }
    return 0;
}

double clock_now(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}
