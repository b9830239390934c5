/* The poolside_v1 grammar as a machine of states.  Bytes become runs of plain text and tags;
 * every tag has its only "<" in front, so that a tag which fails can hide no other.  How the
 * values of arguments become JSON is src/argument.c.  Stop strings and the end of a turn are
 * the caller's. */
#include "src/toolparse.h"
#include "src/argument.h"

#include <errno.h>
#include <stdlib.h>
#include <xxhash.h>

enum tag { THINK, THINK_END, CALL, CALL_END, KEY, KEY_END, VALUE, VALUE_END, TAGS };

static const char *const tag_text[TAGS] = {
    "<think>", "</think>", "<tool_call>", "</tool_call>",
    "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>",
};

static const uint8_t tag_bytes[TAGS] = { 7, 8, 11, 12, 9, 10, 11, 12 };

enum state {
    IN_START,                   /* of the thoughts: an echo of <think> is dropped */
    IN_THOUGHTS,
    IN_TEXT,
    IN_NAME,
    IN_KEY,
    IN_GAP,                     /* between a key and its value */
    IN_STRING,                  /* a value that goes out as it comes */
    IN_VALUE,                   /* a value that is converted when it is whole */
    IN_BARE,                    /* the same, without its opening tag */
    IN_DUPLICATE,               /* a value whose key the call has already */
    IN_CALL,                    /* behind a value */
};

enum {
    NAME_MAX_BYTES = 64,
    TAG_BYTES = 12,             /* of the longest */
    HEAD_MAX_BYTES = 1024,      /* of a name or key with the space around it */
    ARGUMENTS_MAX = 1024
};

struct toolparse {
    struct toolparse_options o;
    enum state state;
    uint8_t with[TAG_BYTES][256];       /* a bit for each tag that has this byte there */
    size_t tags;                /* bytes of a tag that is beginning */
    unsigned left;              /* a bit for each that it may become; all begin alike so far */
    struct text space;          /* white space that is content unless a call follows */
    bool fresh;                 /* nothing but white space since the start or the last call */
    bool called;                /* some call has ended */
    struct text raw;            /* the call as written so far */
    struct text name, key, value;
    struct text json;           /* scratch */
    bool announced;
    struct text seen;           /* XXH3-128 of the keys of the call at hand */
    int arguments;
    const cJSON *properties;    /* of the called tool's schema */
};

static void put(struct toolparse *t, enum event_kind kind, const char *s, size_t n)
{
    const struct event v = { kind, s, n };

    if (n || kind == EVENT_CALL_END)
        t->o.each(t->o.arg, &v);
}

static void put_space(struct toolparse *t)
{
    put(t, EVENT_CONTENT, t->space.s, t->space.n);
    t->space.n = 0;
}

static void add_tag(struct toolparse *t, enum tag tag)
{
    text_add(&t->raw, tag_text[tag], tag_bytes[tag]);
}

static bool is_space(char c)
{
    return c == ' ' || c == '\n' || c == '\r' || c == '\t';
}

static bool all_space(const char *s, size_t n)
{
    while (n && is_space(s[n - 1]))
        n--;
    return !n;
}

/* Without white space around it, in place. */
static void trim(struct text *t)
{
    size_t from = 0;

    while (t->n && is_space(t->s[t->n - 1]))
        t->n--;
    while (from < t->n && is_space(t->s[from]))
        from++;
    if (from)
        memmove(t->s, t->s + from, t->n - from);
    t->n -= from;
    if (t->s)
        t->s[t->n] = 0;
}

static void begin_call(struct toolparse *t)
{
    t->state = IN_NAME;
    t->raw.n = t->name.n = 0;
    t->announced = false;
    t->arguments = 0;
    t->seen.n = 0;
    add_tag(t, CALL);
}

/* What was written so far is no call. */
static void break_call(struct toolparse *t)
{
    if (!t->announced)
        put_space(t);
    put(t, t->announced ? EVENT_CALL_BROKEN : EVENT_CONTENT, t->raw.s, t->raw.n);
    t->state = IN_TEXT;
    t->fresh = false;
}

static void announce(struct toolparse *t)
{
    if (t->announced)
        return;
    t->announced = true;
    t->space.n = 0;
    put(t, EVENT_CALL, t->name.s, t->name.n);
}

static void end_call(struct toolparse *t)
{
    announce(t);
    if (t->arguments)
        put(t, EVENT_ARGUMENTS, "}", 1);
    else
        put(t, EVENT_ARGUMENTS, "{}", 2);
    put(t, EVENT_CALL_END, NULL, 0);
    t->state = IN_TEXT;
    t->fresh = t->called = true;
}

/* The name is complete: false where it cannot be one. */
static bool take_name(struct toolparse *t)
{
    size_t i;

    trim(&t->name);
    if (!t->name.n || t->name.n > NAME_MAX_BYTES)
        return false;
    for (i = 0; i < t->name.n; i++) {
        char c = t->name.s[i];

        if (!(c >= 'a' && c <= 'z') && !(c >= 'A' && c <= 'Z') && !(c >= '0' && c <= '9') &&
            c != '_' && c != '-' && c != '.')
            return false;
    }
    t->properties = argument_properties(t->o.tools, t->name.s);
    return true;
}

static bool take_key(struct toolparse *t)
{
    trim(&t->key);
    t->state = IN_GAP;
    return t->key.n > 0;
}

/* The argument's key goes out and counts as seen. */
static void put_key(struct toolparse *t, XXH128_hash_t h)
{
    announce(t);
    t->json.n = 0;
    text_puts(&t->json, t->arguments ? ", " : "{");
    text_json_string(&t->json, t->key.s, t->key.n);
    text_puts(&t->json, ": ");
    put(t, EVENT_ARGUMENTS, t->json.s, t->json.n);
    text_add(&t->seen, (const char *)&h, sizeof(h));
    t->arguments++;
}

static bool is_seen(const struct toolparse *t, XXH128_hash_t h)
{
    size_t i;

    for (i = 0; i < t->seen.n; i += sizeof(h))
        if (!memcmp(t->seen.s + i, &h, sizeof(h)))
            return true;
    return false;
}

/* <arg_value> */
static void begin_value(struct toolparse *t)
{
    XXH128_hash_t h = XXH3_128bits(t->key.s, t->key.n);

    if (is_seen(t, h)) {
        t->state = IN_DUPLICATE;
        return;
    }
    if (t->arguments == ARGUMENTS_MAX) {
        break_call(t);
        return;
    }
    t->value.n = 0;
    t->state = IN_VALUE;
    if (argument_kind(t->properties, t->key.s) == ARGUMENT_STRING) {
        t->state = IN_STRING;
        put_key(t, h);
        put(t, EVENT_ARGUMENTS, "\"", 1);
    }
}

/* </arg_value> of a value that was collected. */
static void end_value(struct toolparse *t)
{
    XXH128_hash_t h = XXH3_128bits(t->key.s, t->key.n);

    t->state = IN_CALL;
    if (is_seen(t, h))
        return;
    if (t->arguments == ARGUMENTS_MAX) {
        break_call(t);
        return;
    }
    put_key(t, h);
    t->json.n = 0;
    argument_json(&t->json, t->value.s, t->value.n, argument_kind(t->properties, t->key.s),
                  t->properties, t->key.s);
    put(t, EVENT_ARGUMENTS, t->json.s, t->json.n);
}

static void plain_text(struct toolparse *t, const char *s, size_t n)
{
    if (t->o.tools && t->fresh && all_space(s, n)) {
        text_add(&t->space, s, n);
        return;
    }
    put_space(t);
    t->fresh = false;
    put(t, EVENT_CONTENT, s, n);
}

/* Inside of a string's quotes. */
static void put_string(struct toolparse *t, const char *s, size_t n)
{
    size_t i = 0;

    while (i < n && (unsigned char)s[i] >= 0x20 && s[i] != '"' && s[i] != '\\')
        i++;
    if (i == n) {
        put(t, EVENT_ARGUMENTS, s, n);
        return;
    }
    t->json.n = 0;
    text_json_string(&t->json, s, n);
    if (!t->json.failed)
        put(t, EVENT_ARGUMENTS, t->json.s + 1, t->json.n - 2);
}

/* Text without tags inside a call. */
static void plain_call(struct toolparse *t, const char *s, size_t n)
{
    text_add(&t->raw, s, n);
    switch (t->state) {
    case IN_NAME:
        text_add(&t->name, s, n);
        if (t->name.n > HEAD_MAX_BYTES)
            break_call(t);
        break;
    case IN_KEY:
        text_add(&t->key, s, n);
        if (t->key.n > HEAD_MAX_BYTES)
            break_call(t);
        break;
    case IN_GAP:
        while (n && is_space(*s)) {
            s++;
            n--;
        }
        if (!n)
            break;
        t->state = IN_BARE;
        t->value.n = 0;
        text_add(&t->value, s, n);
        break;
    case IN_STRING:
        put_string(t, s, n);
        break;
    case IN_VALUE:
    case IN_BARE:
        text_add(&t->value, s, n);
        break;
    case IN_CALL:
        if (!all_space(s, n))
            break_call(t);
        break;
    default:
        break;
    }
}

static void plain(struct toolparse *t, const char *s, size_t n)
{
    if (!n)
        return;
    if (t->state == IN_START) {
        text_add(&t->space, s, n);
        if (all_space(s, n))
            return;
        put(t, EVENT_REASONING, t->space.s, t->space.n);
        t->space.n = 0;
        t->state = IN_THOUGHTS;
    } else if (t->state == IN_THOUGHTS) {
        put(t, EVENT_REASONING, s, n);
    } else if (t->state == IN_TEXT) {
        plain_text(t, s, n);
    } else {
        plain_call(t, s, n);
    }
}

static void end_thoughts(struct toolparse *t)
{
    put(t, EVENT_REASONING, t->space.s, t->space.n);
    t->space.n = 0;
    t->state = IN_TEXT;
}

/* The one tag that each state of a call goes on with; any other breaks the call. */
static void tag_in_call(struct toolparse *t, enum tag tag)
{
    bool good = false;

    add_tag(t, tag);
    if (t->state == IN_NAME && (tag == KEY || tag == CALL_END)) {
        good = take_name(t);
    } else if (t->state == IN_CALL && (tag == KEY || tag == CALL_END)) {
        good = true;
    } else if (t->state == IN_KEY && tag == KEY_END) {
        good = take_key(t);
    } else if (t->state == IN_GAP && tag == VALUE) {
        begin_value(t);
        return;
    } else if (t->state == IN_BARE && tag == VALUE_END) {
        end_value(t);
        return;
    }
    if (!good) {
        break_call(t);
    } else if (tag == CALL_END) {
        end_call(t);
    } else if (tag == KEY) {
        t->state = IN_KEY;
        t->key.n = 0;
    }
}

static void end_of_value(struct toolparse *t)
{
    add_tag(t, VALUE_END);
    if (t->state == IN_STRING)
        put(t, EVENT_ARGUMENTS, "\"", 1);
    if (t->state == IN_VALUE)
        end_value(t);
    else
        t->state = IN_CALL;
}

static void take_tag(struct toolparse *t, enum tag tag)
{
    if (tag == THINK) {
        t->space.n = 0;
        t->state = IN_THOUGHTS;
    } else if (tag == THINK_END) {
        end_thoughts(t);
    } else if (tag == CALL) {
        if (t->state == IN_CALL)
            end_call(t);
        else if (t->state != IN_TEXT)
            break_call(t);
        begin_call(t);
    } else if (t->state == IN_STRING || t->state == IN_VALUE || t->state == IN_DUPLICATE) {
        end_of_value(t);
    } else {
        tag_in_call(t, tag);
    }
}

/* The tags that mean anything here, a bit each; any other is text. */
static unsigned allowed(const struct toolparse *t)
{
    switch (t->state) {
    case IN_START:
        return 1u << THINK | 1u << THINK_END;
    case IN_THOUGHTS:
        return 1u << THINK_END;
    case IN_TEXT:
        return t->o.tools ? 1u << CALL : 0;
    case IN_STRING:
    case IN_VALUE:
    case IN_DUPLICATE:
        return 1u << VALUE_END;
    default:
        return (1u << TAGS) - (1u << CALL);
    }
}

/* The tag at hand with as many of the bytes as go on with it, in *taken: 1 where it is whole,
 * 0 where the bytes end before, -1 where the next one makes it none. */
static int grow_tag(struct toolparse *t, const char *s, size_t n, size_t *taken)
{
    unsigned left = t->tags ? t->left : allowed(t);
    uint8_t (*with)[256] = t->with + t->tags;
    size_t i;

    for (i = 0; i < n; i++) {
        unsigned fits = left & (*with++)[(uint8_t)s[i]];

        if (!fits)
            break;
        left = fits;
        /* All end in the only '>' they have. */
        if (s[i] == '>') {
            *taken = i + 1;
            t->tags = 0;
            take_tag(t, (enum tag)__builtin_ctz(left));
            return 1;
        }
    }
    t->tags += i;
    t->left = left;
    *taken = i;
    return i < n ? -1 : 0;
}

/* What had begun like a tag is text. */
static void give_up_tag(struct toolparse *t)
{
    size_t held = t->tags;

    t->tags = 0;
    if (held)
        plain(t, tag_text[__builtin_ctz(t->left)], held);
}

static int failed(const struct toolparse *t)
{
    /* Without a branch for each, since every piece comes here. */
    bool any = t->space.failed | t->raw.failed | t->name.failed | t->key.failed |
               t->value.failed | t->json.failed | t->seen.failed;

    return any ? -ENOMEM : 0;
}

/* The first '<', or NULL.  Pieces are mostly as long as a token, for which a look at each byte
 * takes less time than a call. */
static const char *find_open(const char *s, size_t n)
{
    size_t i, close = n < 16 ? n : 16;

    for (i = 0; i < close; i++)
        if (s[i] == '<')
            return s + i;
    return n > close ? memchr(s + close, '<', n - close) : NULL;
}

int toolparse_push(struct toolparse *t, const char *s, size_t n)
{
    size_t i = 0, taken, held;
    bool broken;

    while (i < n) {
        const char *next;

        /* Of a run of '<' only the last can begin a tag, since no tag has a second one; which of
         * them waits for what follows makes no difference. */
        if (!t->tags || (t->tags == 1 && s[i] == '<')) {
            held = t->tags;
            t->tags = 0;
            next = find_open(s + i, n - i);
            while (next && next + 1 < s + n && next[1] == '<')
                next++;
            plain(t, s + i, (next ? (size_t)(next - s) - i : n - i) + held);
            if (!next)
                break;
            i = (size_t)(next - s);
        }
        broken = grow_tag(t, s + i, n - i, &taken) < 0;
        i += taken;
        if (!broken)
            continue;
        /* s[i] may begin the next tag and is looked at again. */
        if (t->tags)
            give_up_tag(t);
        else
            plain(t, s + i++, 1);
    }
    return failed(t);
}

int toolparse_end(struct toolparse *t, bool whole)
{
    give_up_tag(t);
    if (t->state == IN_START)
        end_thoughts(t);
    else if (t->state == IN_CALL && whole)
        end_call(t);
    else if (t->state > IN_TEXT)
        break_call(t);
    if (!t->called)
        put_space(t);
    return failed(t);
}

bool toolparse_thinking(const struct toolparse *t)
{
    return t->state <= IN_THOUGHTS;
}

int toolparse_open(struct toolparse **out, const struct toolparse_options *o, struct err *e)
{
    struct toolparse *t = calloc(1, sizeof(*t));

    if (!t)
        return fail(e, -ENOMEM, "out of memory");
    t->o = *o;
    t->state = o->thinking ? IN_START : IN_TEXT;
    t->fresh = true;
    for (int tag = 0; tag < TAGS; tag++)
        for (int at = 0; at < tag_bytes[tag]; at++)
            t->with[at][(uint8_t)tag_text[tag][at]] |= (uint8_t)(1 << tag);
    *out = t;
    return 0;
}

void toolparse_close(struct toolparse *t)
{
    if (!t)
        return;
    text_free(&t->space);
    text_free(&t->seen);
    text_free(&t->raw);
    text_free(&t->name);
    text_free(&t->key);
    text_free(&t->value);
    text_free(&t->json);
    free(t);
}
