#include "cpu/kernels.h"
#include "src/options_table.h"

#include <errno.h>
#include <locale.h>
#include <math.h>
#include <stdlib.h>

/* Text of one setting -> its field.  Numbers are read whole or not at all, and a decimal
 * point is a point in every locale. */

static bool is_digits(const char *s)
{
    int n = 0;

    while (s[n] >= '0' && s[n] <= '9' && n <= 20)
        n++;
    return n > 0 && n <= 20 && !s[n];
}

/* A plain decimal number, no exponent, no sign but minus: 0 or -EINVAL. */
static int read_double(const char *s, size_t n, double *out)
{
    char text[64];
    size_t whole, part = 0, at = s[0] == '-';
    locale_t c, old;

    whole = strspn(s + at, "0123456789");
    if (s[at + whole] == '.')
        part = 1 + strspn(s + at + whole + 1, "0123456789");
    if (whole + (part > 1 ? part - 1 : 0) == 0 || at + whole + part != n || n >= sizeof(text))
        return -EINVAL;
    memcpy(text, s, n);
    text[n] = 0;
    c = newlocale(LC_ALL_MASK, "C", (locale_t)0);
    if (!c)
        return -EINVAL;
    old = uselocale(c);
    *out = strtod(text, NULL);
    uselocale(old);
    freelocale(c);
    return 0;
}

static int set_int(int *field, const struct option_spec *s, const char *from, const char *value,
                   struct err *e)
{
    bool may_auto = s->kind == OPTION_INT_AUTO;
    long long v;

    if (may_auto && !strcmp(value, "auto")) {
        *field = 0;
        return 0;
    }
    v = is_digits(value + (value[0] == '-')) ? strtoll(value, NULL, 10) : s->min - 1LL;
    if (v < s->min || v > s->max)
        return fail(e, -EINVAL, "%s: %s is not a whole number from %d to %d%s", from, value,
                    s->min, s->max, may_auto ? " or auto" : "");
    *field = (int)v;
    return 0;
}

/* "128,512". */
static int set_list(struct option_list *list, const struct option_spec *s, const char *from,
                    const char *value, struct err *e)
{
    list->n = 0;
    for (const char *at = value;; at++) {
        size_t digits = strspn(at, "0123456789");
        long long v = digits && digits < 12 ? strtoll(at, NULL, 10) : s->min - 1LL;

        at += digits;
        if (v < s->min || v > s->max || (*at && *at != ','))
            return fail(e, -EINVAL, "%s: %s is not a list of whole numbers from %d to %d", from,
                        value, s->min, s->max);
        if (list->n == OPTION_LIST)
            return fail(e, -EINVAL, "%s: more than %d numbers", from, OPTION_LIST);
        list->v[list->n++] = (int)v;
        if (!*at)
            return 0;
    }
}

static int set_float(float *field, const struct option_spec *s, const char *from,
                     const char *value, struct err *e)
{
    bool share = s->kind == OPTION_SHARE, may_auto = s->kind == OPTION_FLOAT_AUTO;
    double v;

    if (may_auto && !strcmp(value, "auto")) {
        *field = NAN;
        return 0;
    }
    if (read_double(value, strlen(value), &v) || v < s->min || v > s->max ||
        (share && (float)v <= 0))
        return fail(e, -EINVAL, "%s: %s is not a number %s%s", from, value,
                    share ? "above 0 and at most 1" : s->max == 2 ? "from 0 to 2" : "from 0 to 1",
                    may_auto ? " or auto" : "");
    *field = (float)v;
    return 0;
}

/* n bytes of text, "1.5G": bytes, or -EINVAL. */
static int64_t read_size(const char *s, size_t n)
{
    static const char units[] = "KMG";
    const char *unit = n ? memchr(units, s[n - 1] & ~0x20, 3) : NULL;
    double v;

    if (read_double(s, unit ? n - 1 : n, &v) || v < 0)
        return -EINVAL;
    if (unit)
        v *= (double)(1ull << 10 * (unit - units + 1));
    return v > 0x1p60 || v != floor(v) ? -EINVAL : (int64_t)v;
}

static int set_size(int64_t *field, bool may_auto, const char *from, const char *value, size_t n,
                    struct err *e)
{
    int64_t v = read_size(value, n);

    if (may_auto && n == 4 && !memcmp(value, "auto", 4))
        v = SIZE_AUTO;
    else if (v < 0)
        return fail(e, -EINVAL, "%s: %.*s is not a size such as 24G, 512M or 4096%s", from, (int)n,
                    value, may_auto ? ", or auto" : "");
    *field = v;
    return 0;
}

static int set_sizes(int64_t *field, const char *from, const char *value, struct err *e)
{
    int n = 0;

    for (int i = 0; i < OPTION_GPUS; i++)
        field[i] = SIZE_AUTO;
    for (;;) {
        size_t len = strcspn(value, ",");
        int rc;

        if (n == OPTION_GPUS)
            return fail(e, -EINVAL, "%s: more than %d sizes", from, OPTION_GPUS);
        rc = set_size(&field[n++], true, from, value, len, e);
        if (rc || !value[len])
            return rc;
        value += len + 1;
    }
}

static int set_bool(bool *field, const char *from, const char *value, struct err *e)
{
    static const char *const words[] = { "off", "on", "no", "yes", "false", "true", "0", "1" };

    for (size_t i = 0; i < sizeof(words) / sizeof(*words); i++)
        if (!strcmp(value, words[i])) {
            *field = i & 1;
            return 0;
        }
    return fail(e, -EINVAL, "%s: %s is neither on nor off", from, value);
}

/* One of the words of s->arg, which are separated by bars. */
static int set_word(const char **field, const struct option_spec *s, const char *from,
                    const char *value, struct err *e)
{
    size_t n = strlen(value);

    for (const char *w = s->arg; *w;) {
        size_t len = strcspn(w, "|");

        if (len == n && !memcmp(w, value, n)) {
            *field = value;
            return 0;
        }
        w += len + (w[len] == '|');
    }
    return fail(e, -EINVAL, "%s: %s is not one of %s", from, value, s->arg);
}

static int set_device(const char **field, const char *from, const char *value, struct err *e)
{
    static const char *const names[] = { "cpu", "cuda", "ref", "auto" };
    bool known = !strncmp(value, "cuda:", 5) && is_digits(value + 5) && strlen(value) <= 7;

    for (size_t i = 0; i < sizeof(names) / sizeof(*names); i++)
        known |= !strcmp(value, names[i]);
    if (!known)
        return fail(e, -EINVAL, "%s: %s is not one of cpu, cuda, cuda:N, ref and auto", from,
                    value);
    *field = value;
    return 0;
}

static int set_isa(const char **field, const char *from, const char *value, struct err *e)
{
    enum cpu_isa isa = cpu_isa_named(value);

    if (strcmp(value, "auto") && isa == CPU_ISA_COUNT)
        return fail(e, -EINVAL, "%s: no instruction set is called %s (see --isa help)", from,
                    value);
    if (isa != CPU_ISA_COUNT && !cpu_kernels(isa))
        return fail(e, -ENOTSUP, "%s: this machine cannot run %s (see --isa help)", from, value);
    *field = value;
    return 0;
}

static int set_seed(struct options *o, const char *from, const char *value, struct err *e)
{
    unsigned long long v = 0;

    errno = is_digits(value) ? 0 : EINVAL;
    if (!errno)
        v = strtoull(value, NULL, 10);
    if (errno)
        return fail(e, -EINVAL, "%s: %s is not a whole number from 0 to 2^64 - 1", from, value);
    o->seed = v;
    o->seed_set = true;
    return 0;
}

static int set_stop(struct options *o, const char *from, const char *value, struct err *e)
{
    size_t n = strlen(value);

    if (n < 1 || n > 256)
        return fail(e, -EINVAL, "%s: a stop text of %zu bytes; 1 to 256 are allowed", from, n);
    if (o->stops == OPTION_STOPS)
        return fail(e, -EINVAL, "%s: more than %d stop texts", from, OPTION_STOPS);
    o->stop[o->stops++] = value;
    return 0;
}

/* -v adds to what is there; -q wins over it. */
static int set_level(struct log *log, bool quiet, const char *from, const char *value,
                     struct err *e)
{
    bool on = false;
    int rc = set_bool(&on, from, value, e);

    if (rc || !on)
        return rc;
    if (quiet)
        log->level = LOG_QUIET;
    else if (log->level != LOG_QUIET)
        log->level = LOG_VERBOSE;
    return 0;
}

int option_set(struct options *o, const struct option_spec *s, const char *from,
               const char *value, struct err *e)
{
    void *field = (char *)o + s->field;

    switch (s->kind) {
    case OPTION_FLAG:
    case OPTION_SWITCH:
        return set_bool(field, from, value, e);
    case OPTION_TEXT:
        *(const char **)field = value;
        return 0;
    case OPTION_WORD:
        return set_word(field, s, from, value, e);
    case OPTION_ISA:
        return set_isa(field, from, value, e);
    case OPTION_DEVICE:
        return set_device(field, from, value, e);
    case OPTION_INT:
    case OPTION_INT_AUTO:
        return set_int(field, s, from, value, e);
    case OPTION_INTS:
        return set_list(field, s, from, value, e);
    case OPTION_FLOAT:
    case OPTION_FLOAT_AUTO:
    case OPTION_SHARE:
        return set_float(field, s, from, value, e);
    case OPTION_SEED:
        return set_seed(o, from, value, e);
    case OPTION_SIZE:
    case OPTION_SIZE_AUTO:
        return set_size(field, s->kind == OPTION_SIZE_AUTO, from, value, strlen(value), e);
    case OPTION_SIZES:
        return set_sizes(field, from, value, e);
    case OPTION_STOP:
        return set_stop(o, from, value, e);
    case OPTION_VERBOSE:
    case OPTION_QUIET:
        return set_level(&o->log, s->kind == OPTION_QUIET, from, value, e);
    case OPTION_HELP:
    case OPTION_VERSION:
        break;
    }
    return fail(e, -EINVAL, "%s: only the command line takes this", from);
}
