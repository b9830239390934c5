/* What a byte does to a thread, by the kind of its innermost node.  Every function takes the
 * frame as it is and emits what it may become; none emits what could not be finished. */
#include "src/automaton_parts.h"

enum { DIGITS_MAX = 20, EXPONENT_DIGITS = 2 };

static const char KEY_TAG[] = "<arg_key>", VALUE_TAG[] = "</arg_key><arg_value>";
static const char END_TAG[] = SCHEMA_VALUE_END;

/* What the value of a frame goes on with: here it becomes its parent's. */
struct frame automaton_popped(const struct automaton *a, const struct frame *f)
{
    struct frame p = a->frame[f->parent];

    switch (a->s->node[p.node].kind) {
    case SCHEMA_DOCUMENT:
        p.state = DOCUMENT_END;
        break;
    case SCHEMA_ARRAY:
        automaton_count(&a->s->node[p.node], &p, 1);
        p.state = MEMBERS_AFTER;
        break;
    case SCHEMA_ARGUMENTS:
        p.state = a->s->node[f->node].kind == SCHEMA_RAW ? CALL_GAP : CALL_END_TAG;
        p.at = p.count = 0;
        break;
    default:
        p.state = MEMBERS_AFTER;
        p.at = 0;
        break;
    }
    return p;
}

static void emit_popped(struct automaton *a, const struct frame *f, struct threads *out)
{
    const struct frame p = automaton_popped(a, f);

    automaton_emit(a, &p, out);
}

static bool in_range(const struct schema_node *n, const struct frame *f)
{
    int64_t v = f->flag ? -(int64_t)f->seen : (int64_t)f->seen;

    return !n->bounded || (v >= n->low && v <= n->high);
}

bool automaton_can_pop(const struct automaton *a, const struct frame *f)
{
    const struct schema_node *n = &a->s->node[f->node];
    int32_t value;

    switch (n->kind) {
    case SCHEMA_INTEGER:
        return f->state == NUMBER_ZERO || (f->state == NUMBER_DIGITS && in_range(n, f));
    case SCHEMA_NUMBER:
        return f->state == NUMBER_ZERO || f->state == NUMBER_DIGITS ||
               f->state == NUMBER_FRACTION || f->state == NUMBER_EXPONENT;
    case SCHEMA_LITERALS:
        return a->s->word[f->at].value >= 0;
    case SCHEMA_ARGUMENTS:
        return f->state == CALL_GAP && !(n->required & ~f->seen);
    case SCHEMA_CALL:
        value = a->s->word[f->at].value;
        return value >= 0 && !a->s->node[a->s->link[n->link + (uint32_t)value]].required;
    default:
        return false;
    }
}

static bool fits(const struct automaton *a, const struct frame *f, uint32_t node)
{
    return f->depth + a->s->node[node].height <= SCHEMA_DEPTH;
}

static bool may_begin(enum schema_kind kind, uint8_t b)
{
    switch (kind) {
    case SCHEMA_OBJECT:
        return b == '{';
    case SCHEMA_ARRAY:
        return b == '[';
    case SCHEMA_STRING:
        return b == '"';
    case SCHEMA_INTEGER:
    case SCHEMA_NUMBER:
        return b == '-' || (b >= '0' && b <= '9');
    default:
        return true;
    }
}

/* The first byte of a value of the node, which belongs to f. */
static void enter(struct automaton *a, uint32_t node, const struct frame *f, uint8_t b,
                  struct threads *out)
{
    const struct schema *s = a->s;
    bool several = s->node[node].kind == SCHEMA_ANY_OF;
    uint32_t i, up = 0, n = several ? s->node[node].links : 1;

    for (i = 0; i < n; i++) {
        uint32_t id = several ? s->link[s->node[node].link + i] : node;
        const struct schema_node *is = &s->node[id];
        bool level = is->kind == SCHEMA_OBJECT || is->kind == SCHEMA_ARRAY;
        struct frame child = { .node = id, .depth = (uint8_t)(f->depth + level) };

        if (!may_begin(is->kind, b) || !fits(a, f, id))
            continue;
        up = up ? up : automaton_put(a, f);
        if (!up)
            return;
        child.parent = up;
        child.at = is->kind == SCHEMA_LITERALS || is->kind == SCHEMA_CALL ? is->words : 0;
        automaton_step_frame(a, child, b, out);
    }
}

/* A byte of a string's inside.  False where it is not allowed. */
static bool take_text(const struct automaton *a, struct frame *f, uint8_t b)
{
    enum textstep next = textstep_json((enum textstep)f->text, b);

    if (next == TEXT_BAD || (f->flag && b == '/'))
        return false;
    f->flag = a->tagless && b == '<';
    f->text = (uint8_t)next;
    return true;
}

static void take_string(struct automaton *a, const struct schema_node *n, struct frame f,
                        uint8_t b, struct threads *out)
{
    bool begins = f.text == TEXT_GROUND;

    if (f.state == STRING_OPEN) {
        f.state = STRING_TEXT;
        if (b == '"')
            automaton_emit(a, &f, out);
    } else if (!take_text(a, &f, b)) {
        return;
    } else if (f.text == TEXT_END) {
        if (f.count >= n->min)
            emit_popped(a, &f, out);
    } else {
        automaton_count(n, &f, begins);
        if (f.count <= n->max)
            automaton_emit(a, &f, out);
    }
}

/* f.at: how much of the end tag is there; it counts as text once it turns out to be none. */
static void take_raw(struct automaton *a, const struct schema_node *n, struct frame f, uint8_t b,
                     struct threads *out)
{
    enum textstep next;

    if (f.at && b == (uint8_t)END_TAG[f.at]) {
        f.at++;
        if (END_TAG[f.at] && (f.count >= n->min || f.count + f.at <= n->max))
            automaton_emit(a, &f, out);
        else if (!END_TAG[f.at] && f.count >= n->min)
            emit_popped(a, &f, out);
        return;
    }
    automaton_count(n, &f, f.at);
    f.at = 0;
    if (f.count > n->max || !b)
        return;
    if (b == '<' && f.text == TEXT_GROUND) {
        f.at = 1;
        if (f.count >= n->min || f.count + 1 <= n->max)
            automaton_emit(a, &f, out);
        return;
    }
    automaton_count(n, &f, f.text == TEXT_GROUND);
    next = textstep_utf8((enum textstep)f.text, b);
    f.text = (uint8_t)next;
    if (next != TEXT_BAD && f.count <= n->max)
        automaton_emit(a, &f, out);
}

/* Whether digits can follow f.seen so that the number gets into the bounds. */
static bool can_reach(const struct schema_node *n, const struct frame *f)
{
    int64_t low = f->flag ? -n->high : n->low, high = f->flag ? -n->low : n->high;
    uint64_t least = f->seen, most = f->seen;

    if (high < 0)
        return false;
    while (least <= (uint64_t)high) {
        if (low <= 0 || most >= (uint64_t)low)
            return true;
        least *= 10;
        most = 10 * most + 9;
    }
    return false;
}

static void take_integer(struct automaton *a, const struct schema_node *n, struct frame f,
                         uint8_t b, struct threads *out)
{
    bool digit = b >= '0' && b <= '9';

    if (f.state == NUMBER_START && b == '-') {
        f.state = NUMBER_MINUS;
        f.flag = 1;
        if (!n->bounded || n->low < 0)
            automaton_emit(a, &f, out);
        return;
    }
    if (!digit || f.state == NUMBER_ZERO || (f.state == NUMBER_MINUS && b == '0'))
        return;
    if (f.state == NUMBER_START && b == '0') {
        f.state = NUMBER_ZERO;
        if (in_range(n, &f))
            automaton_emit(a, &f, out);
        return;
    }
    f.state = NUMBER_DIGITS;
    f.count++;
    if (n->bounded)
        f.seen = 10 * f.seen + (uint64_t)(b - '0');
    if (n->bounded ? can_reach(n, &f) : f.count <= DIGITS_MAX)
        automaton_emit(a, &f, out);
}

/* The state behind the byte, or -1. */
static int number_next(int state, uint8_t b)
{
    bool digit = b >= '0' && b <= '9';

    switch (state) {
    case NUMBER_START:
    case NUMBER_MINUS:
        if (b == '-' && state == NUMBER_START)
            return NUMBER_MINUS;
        return !digit ? -1 : b == '0' ? NUMBER_ZERO : NUMBER_DIGITS;
    case NUMBER_ZERO:
    case NUMBER_DIGITS:
        if (digit)
            return state == NUMBER_DIGITS ? NUMBER_DIGITS : -1;
        return b == '.' ? NUMBER_POINT : b == 'e' || b == 'E' ? NUMBER_E : -1;
    case NUMBER_POINT:
        return digit ? NUMBER_FRACTION : -1;
    case NUMBER_FRACTION:
        return digit ? NUMBER_FRACTION : b == 'e' || b == 'E' ? NUMBER_E : -1;
    case NUMBER_E:
        if (b == '+' || b == '-')
            return NUMBER_SIGN;
        return digit ? NUMBER_EXPONENT : -1;
    default:
        return digit ? NUMBER_EXPONENT : -1;
    }
}

static void take_number(struct automaton *a, struct frame f, uint8_t b, struct threads *out)
{
    int next = number_next(f.state, b);

    if (next < 0)
        return;
    f.count = next == f.state ? f.count + 1 : 1;
    f.state = (uint8_t)next;
    if (f.count <= (next == NUMBER_EXPONENT ? EXPONENT_DIGITS : DIGITS_MAX))
        automaton_emit(a, &f, out);
}

/* Properties that are not there yet and could be. */
static uint64_t available(const struct automaton *a, const struct schema_node *n,
                          const struct frame *f)
{
    uint64_t all = n->links == 64 ? UINT64_MAX : ((uint64_t)1 << n->links) - 1;
    uint64_t open = all & ~f->seen;
    uint32_t i;

    for (i = 0; f->depth + n->tallest > SCHEMA_DEPTH && i < n->links; i++)
        if (!fits(a, f, a->s->link[n->link + i]))
            open &= ~((uint64_t)1 << i);
    return open;
}

static bool takes_any_key(const struct automaton *a, const struct schema_node *n,
                          const struct frame *f)
{
    return n->item >= 0 && fits(a, f, (uint32_t)n->item);
}

static bool has_key(const struct automaton *a, const struct frame *f)
{
    uint32_t i;

    for (i = f->keys; i; i = a->frame[i].parent)
        if (a->frame[i].hash == f->hash)
            return true;
    return false;
}

/* The quote that ends a key. */
static void end_key(struct automaton *a, const struct schema_node *n, struct frame f,
                    struct threads *out)
{
    int32_t i = f.at ? a->s->word[f.at].value : SCHEMA_NONE;
    const struct frame entry = { .parent = f.keys, .hash = f.hash };

    if (i >= 0) {
        if (!(available(a, n, &f) >> i & 1))
            return;
        f.seen |= (uint64_t)1 << i;
        f.at = a->s->link[n->link + (uint32_t)i];
    } else {
        if (!takes_any_key(a, n, &f) || has_key(a, &f))
            return;
        f.keys = automaton_put(a, &entry);
        f.at = (uint32_t)n->item;
    }
    f.state = MEMBERS_COLON;
    f.text = f.flag = 0;
    f.hash = 0;
    automaton_emit(a, &f, out);
}

/* A byte of a key: along the tree of declared ones (f.at) while it is one of them so far, freely
 * afterwards.  A free key has no escapes, so that it is spelled in one way only and is none of
 * the declared ones. */
static void take_key(struct automaton *a, const struct schema_node *n, struct frame f, uint8_t b,
                     struct threads *out)
{
    bool was_plain = f.text < TEXT_PLAIN, any = takes_any_key(a, n, &f), plain;
    uint32_t next;

    if (!take_text(a, &f, b))
        return;
    if (f.text == TEXT_END) {
        end_key(a, n, f, out);
        return;
    }
    plain = was_plain && f.text < TEXT_PLAIN;
    next = f.at ? schema_words_step(a->s, f.at, b) : 0;
    if (!(any && plain) && !(next && a->s->word[next].below & available(a, n, &f)))
        return;
    f.at = next;
    f.hash = automaton_hash(f.hash, b);
    automaton_emit(a, &f, out);
}

static void begin_key(struct automaton *a, const struct schema_node *n, struct frame f,
                      struct threads *out)
{
    f.state = MEMBERS_KEY;
    f.at = n->words;
    f.hash = 0xcbf29ce484222325;
    automaton_emit(a, &f, out);
}

static void go(struct automaton *a, struct frame f, int state, struct threads *out)
{
    f.state = (uint8_t)state;
    automaton_emit(a, &f, out);
}

static void take_object(struct automaton *a, const struct schema_node *n, struct frame f,
                        uint8_t b, struct threads *out)
{
    bool more = false, first = f.state == MEMBERS_FIRST;

    if (first || f.state == MEMBERS_AFTER) {
        if (b == '}' && !(n->required & ~f.seen))
            emit_popped(a, &f, out);
        more = available(a, n, &f) || takes_any_key(a, n, &f);
    }
    switch (f.state) {
    case MEMBERS_OPEN:
        if (b == '{')
            go(a, f, MEMBERS_FIRST, out);
        break;
    case MEMBERS_FIRST:
        if (b == '"' && more)
            begin_key(a, n, f, out);
        break;
    case MEMBERS_KEY:
        take_key(a, n, f, b, out);
        break;
    case MEMBERS_COLON:
        if (b == ':')
            go(a, f, MEMBERS_VALUE, out);
        break;
    case MEMBERS_VALUE:
    case MEMBERS_VALUE_SPACED:
        if (b == ' ' && f.state == MEMBERS_VALUE)
            go(a, f, MEMBERS_VALUE_SPACED, out);
        else
            enter(a, f.at, &f, b, out);
        break;
    case MEMBERS_AFTER:
        if (b == ',' && more)
            go(a, f, MEMBERS_COMMA, out);
        break;
    default:
        if (b == ' ' && f.state == MEMBERS_COMMA)
            go(a, f, MEMBERS_COMMA_SPACED, out);
        else if (b == '"')
            begin_key(a, n, f, out);
    }
}

static void take_array(struct automaton *a, const struct schema_node *n, struct frame f, uint8_t b,
                       struct threads *out)
{
    uint32_t item = (uint32_t)n->item;
    bool more = f.count < n->max && fits(a, &f, item);

    if (f.state == MEMBERS_OPEN) {
        if (b == '[')
            go(a, f, MEMBERS_FIRST, out);
        return;
    }
    if (b == ']' && (f.state == MEMBERS_FIRST || f.state == MEMBERS_AFTER) && f.count >= n->min)
        emit_popped(a, &f, out);
    else if (f.state == MEMBERS_AFTER && b == ',' && more)
        go(a, f, MEMBERS_COMMA, out);
    else if (f.state == MEMBERS_COMMA && b == ' ')
        go(a, f, MEMBERS_COMMA_SPACED, out);
    else if (f.state != MEMBERS_AFTER && more)
        enter(a, item, &f, b, out);
}

/* The next byte of a tag; `then` once it is whole. */
static void take_tag(struct automaton *a, const char *tag, int then, struct frame f, uint8_t b,
                     struct threads *out)
{
    if (b != (uint8_t)tag[f.count])
        return;
    f.count++;
    if (!tag[f.count]) {
        f.count = 0;
        f.state = (uint8_t)then;
    }
    automaton_emit(a, &f, out);
}

static void take_argument_key(struct automaton *a, const struct schema_node *n, struct frame f,
                              uint8_t b, struct threads *out)
{
    const struct schema_word *at;
    uint64_t open = available(a, n, &f);
    uint32_t next;

    f.at = f.at ? f.at : n->words;
    at = &a->s->word[f.at];
    if (b == '<' && at->value >= 0 && open >> at->value & 1) {
        f.seen |= (uint64_t)1 << at->value;
        f.at = a->s->link[n->link + (uint32_t)at->value];
        f.state = CALL_VALUE_TAG;
        take_tag(a, VALUE_TAG, CALL_VALUE, f, b, out);
        return;
    }
    next = schema_words_step(a->s, f.at, b);
    f.at = next;
    if (next && a->s->word[next].below & open)
        automaton_emit(a, &f, out);
}

static void take_arguments(struct automaton *a, const struct schema_node *n, struct frame f,
                           uint8_t b, struct threads *out)
{
    switch (f.state) {
    case CALL_GAP:
        f.state = CALL_KEY_TAG;
        if (available(a, n, &f))
            take_tag(a, KEY_TAG, CALL_KEY, f, b, out);
        break;
    case CALL_KEY_TAG:
        take_tag(a, KEY_TAG, CALL_KEY, f, b, out);
        break;
    case CALL_KEY:
        take_argument_key(a, n, f, b, out);
        break;
    case CALL_VALUE_TAG:
        take_tag(a, VALUE_TAG, CALL_VALUE, f, b, out);
        break;
    case CALL_VALUE:
        enter(a, f.at, &f, b, out);
        break;
    default:
        take_tag(a, END_TAG, CALL_GAP, f, b, out);
    }
}

static void take_call(struct automaton *a, const struct schema_node *n, struct frame f, uint8_t b,
                      struct threads *out)
{
    int32_t i = a->s->word[f.at].value;
    uint32_t next = schema_words_step(a->s, f.at, b);

    if (i >= 0) {
        uint32_t id = a->s->link[n->link + (uint32_t)i];
        const struct frame arguments = { .parent = f.parent, .node = id,
                                         .depth = (uint8_t)(f.depth + 1) };

        take_arguments(a, &a->s->node[id], arguments, b, out);
    }
    f.at = next;
    if (next)
        automaton_emit(a, &f, out);
}

static void take_literal(struct automaton *a, struct frame f, uint8_t b, struct threads *out)
{
    f.at = schema_words_step(a->s, f.at, b);
    if (f.at)
        automaton_emit(a, &f, out);
}

static void take(struct automaton *a, const struct frame *f, uint8_t b, struct threads *out)
{
    const struct schema_node *n = &a->s->node[f->node];

    switch (n->kind) {
    case SCHEMA_DOCUMENT:
        if (f->state == DOCUMENT_VALUE)
            enter(a, (uint32_t)n->item, f, b, out);
        break;
    case SCHEMA_OBJECT:
        take_object(a, n, *f, b, out);
        break;
    case SCHEMA_ARRAY:
        take_array(a, n, *f, b, out);
        break;
    case SCHEMA_STRING:
        take_string(a, n, *f, b, out);
        break;
    case SCHEMA_INTEGER:
        take_integer(a, n, *f, b, out);
        break;
    case SCHEMA_NUMBER:
        take_number(a, *f, b, out);
        break;
    case SCHEMA_LITERALS:
        take_literal(a, *f, b, out);
        break;
    case SCHEMA_RAW:
        take_raw(a, n, *f, b, out);
        break;
    case SCHEMA_ARGUMENTS:
        take_arguments(a, n, *f, b, out);
        break;
    case SCHEMA_CALL:
        take_call(a, n, *f, b, out);
        break;
    case SCHEMA_ANY_OF:
        break;
    }
}

/* The byte goes on with the value, or, where that may be over, with what follows it. */
void automaton_step_frame(struct automaton *a, struct frame f, uint8_t b, struct threads *out)
{
    take(a, &f, b, out);
    while (automaton_can_pop(a, &f)) {
        f = automaton_popped(a, &f);
        take(a, &f, b, out);
    }
}
