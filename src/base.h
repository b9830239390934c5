#ifndef LAGUNA_BASE_H
#define LAGUNA_BASE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

/* The bottom of the tree: what every folder may use.  This header includes no
 * other header of the project, and nothing here knows what a model is. */

/* Why an operation failed, in words for the person at the terminal.  The
 * function that first knows the reason fills it; callers pass it through. */
struct err {
    char text[512];
};

/* Fill *e (may be NULL) and return the negative errno given, so that a check reads
 *     return fail(e, -EBADMSG, "%s: header of %zu bytes", path, n);
 * Control characters in the result are escaped: names come from files.
 *
 * Which errno means what to the person is in exit_status(). */
int fail(struct err *e, int rc, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));

/* The exit status of `man laguna-offload` (sysexits) for a negative errno:
 *   EINVAL usage 64 · EBADMSG bad data, E2BIG, EOVERFLOW too much of it, ESTALE a file that
 *   has changed 65 · ENOENT, ENOTDIR, EISDIR input missing 66 ·
 *   ENODEV no GPU, EADDRINUSE 69 · ENOTRECOVERABLE bug 70 · EREMOTEIO GPU, EAGAIN threads,
 *   EMFILE, ENFILE open files 71 · ENOSPC, EROFS, EDQUOT 73 ·
 *   EIO, ENXIO, ETIME the drive, ETIMEDOUT 74 ·
 *   ENOMEM, EBUSY, EINPROGRESS 75 · EACCES, EPERM 77 ·
 *   ENOTSUP settings contradict the machine 78. */
int exit_status(int rc);

/* Where warnings and progress go.  One per program; passed down, never global.
 * Each fallback to something slower or weaker is one warn() and is kept for
 * `plan`, `doctor` and the metrics. */
enum { LOG_QUIET = -1, LOG_NORMAL = 0, LOG_VERBOSE = 1, LOG_NOTICES = 32 };

/* The form of every line: words for a person, an object of JSON, or words behind the priority
 * that the journal takes off. */
enum log_format { LOG_TEXT, LOG_JSON, LOG_JOURNAL };

struct log {
    int level;
    enum log_format format;
    int notices;                        /* of them, the first LOG_NOTICES are kept */
    char notice[LOG_NOTICES][256];
};

/* What a line is, by the priorities of syslog. */
enum { LINE_ERROR = 3, LINE_WARNING = 4, LINE_INFO = 6 };

/* One line of at most 511 bytes on stderr, whatever the level. */
void log_line(const struct log *l, int priority, const char *words);

void warn(struct log *l, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
/* Only with -v. */
void info(struct log *l, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/* a * b and a + b, or SIZE_MAX where the result does not fit: callers compare against
 * a budget, so saturation is the answer they want. */
size_t mul_sat(size_t a, size_t b);
size_t add_sat(size_t a, size_t b);

/* Make a directory and those above it, for our eyes only.  0 where it is there. */
int make_directory(const char *path);

/* Seconds on the monotonic clock. */
double clock_now(void);

static inline size_t align_up(size_t n, size_t align)
{
    return (n + align - 1) / align * align;
}

typedef uint16_t bf16;

static inline float bf16_to_f32(bf16 b)
{
    uint32_t u = (uint32_t)b << 16;
    float f;

    memcpy(&f, &u, sizeof(f));
    return f;
}

/* Round to nearest, ties to even; NaN stays NaN. */
static inline bf16 f32_to_bf16(float f)
{
    uint32_t u;

    memcpy(&u, &f, sizeof(u));
    if ((u & 0x7fffffff) > 0x7f800000)
        return (bf16)(u >> 16 | 0x40);
    return (bf16)((u + 0x7fff + (u >> 16 & 1)) >> 16);
}

#endif
