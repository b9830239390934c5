/* Answers as JSON.  Status lines, chunks and the order of a stream are the server's; when an
 * answer ends is the generator's. */
#include "src/reply.h"
#include "src/utf8.h"

#include <math.h>

const char *reply_finish(enum finish finish, int calls)
{
    return finish != FINISH_STOP ? "length" : calls ? "tool_calls" : "stop";
}

static void add_string(struct text *out, const char *s)
{
    text_json_bytes(out, s, strlen(s));
}

/* "name":"s"; a NULL is null. */
static void add_member(struct text *out, const char *name, const char *s)
{
    text_printf(out, "\"%s\":", name);
    if (s)
        add_string(out, s);
    else
        text_puts(out, "null");
}

static void add_calls(struct text *out, const struct message *m)
{
    int i;

    text_puts(out, ",\"tool_calls\":[");
    for (i = 0; i < m->calls; i++) {
        const struct call *c = &m->call[i];

        text_puts(out, i ? ",{" : "{");
        add_member(out, "id", c->id);
        text_puts(out, ",\"type\":\"function\",\"function\":{\"name\":");
        text_json_bytes(out, c->name.s, c->name.n);
        text_puts(out, ",\"arguments\":");
        text_json_bytes(out, c->arguments.s, c->arguments.n);
        text_puts(out, "}}");
    }
    text_puts(out, "]");
}

void reply_message(struct text *out, const struct message *m)
{
    text_puts(out, "{\"role\":\"assistant\",\"content\":");
    if (m->content.n || (!m->calls && !m->reasoning.n))
        text_json_bytes(out, m->content.n ? m->content.s : "", m->content.n);
    else
        text_puts(out, "null");
    /* Clients read either name, some of them only one. */
    if (m->reasoning.n) {
        text_puts(out, ",\"reasoning\":");
        text_json_bytes(out, m->reasoning.s, m->reasoning.n);
        text_puts(out, ",\"reasoning_content\":");
        text_json_bytes(out, m->reasoning.s, m->reasoning.n);
    }
    if (m->calls)
        add_calls(out, m);
    text_puts(out, "}");
}

void reply_usage(struct text *out, const struct usage *u)
{
    text_printf(out, "{\"prompt_tokens\":%d,\"completion_tokens\":%d,\"total_tokens\":%d,"
                "\"prompt_tokens_details\":{\"cached_tokens\":%d},"
                "\"completion_tokens_details\":{\"reasoning_tokens\":%d}}", u->prompt,
                u->completion, u->prompt + u->completion, u->cached, u->reasoning);
}

static double per_second(int n, double ms)
{
    return ms > 0 ? n / ms * 1e3 : 0;
}

void reply_timings(struct text *out, const struct timings *g)
{
    text_printf(out, "{\"prompt_n\":%d,\"prompt_ms\":%.3f,\"prompt_per_second\":%.3f,"
                "\"predicted_n\":%d,\"predicted_ms\":%.3f,\"predicted_per_second\":%.3f,"
                "\"cache_n\":%d,", g->prompt_n, g->prompt_ms, per_second(g->prompt_n, g->prompt_ms),
                g->predicted_n, g->predicted_ms, per_second(g->predicted_n, g->predicted_ms),
                g->cache_n);
    text_printf(out, "\"tiers\":{\"vram\":%ju,\"ram\":%ju,\"nvme\":%ju},\"io_wait_ms\":%.3f}",
                (uintmax_t)g->vram, (uintmax_t)g->ram, (uintmax_t)g->nvme, g->io_wait_ms);
}

/* What is no number at all is null; what a mask made impossible gets the usual stand-in for
 * minus infinity, which JSON lacks. */
static void add_logprob(struct text *out, float v)
{
    if (isnan(v))
        text_puts(out, "null");
    else
        text_printf(out, "%.9g", v < -9999.0f ? -9999.0 : (double)v);
}

/* The text of a token as a JSON string.  One that holds a part of a character only is
 * written byte by byte, so that two such tokens differ. */
static void add_token(struct text *out, const char *s, size_t n)
{
    struct text shown = { 0 };
    size_t i;

    if (!n || utf8_valid(s, n) == n) {
        text_json_string(out, s ? s : "", n);
        return;
    }
    text_puts(&shown, "bytes:");
    for (i = 0; i < n; i++)
        text_printf(&shown, "\\x%02x", (unsigned char)s[i]);
    out->failed |= shown.failed;
    if (!shown.failed)
        text_json_string(out, shown.s, shown.n);
    text_free(&shown);
}

static void add_bytes(struct text *out, const char *s, size_t n)
{
    size_t i;

    text_puts(out, "[");
    for (i = 0; i < n; i++)
        text_printf(out, i ? ",%d" : "%d", (unsigned char)s[i]);
    text_puts(out, "]");
}

/* {"token":..,"logprob":..,"bytes":[..] and no closing brace. */
static void add_choice(struct text *out, int32_t id, float logprob, const struct tokenizer *t)
{
    size_t n = 0;
    const char *s = tokenizer_bytes(t, id, &n);

    text_puts(out, "{\"token\":");
    add_token(out, s, s ? n : 0);
    text_puts(out, ",\"logprob\":");
    add_logprob(out, logprob);
    text_puts(out, ",\"bytes\":");
    add_bytes(out, s, s ? n : 0);
}

void reply_logprobs_chat(struct text *out, const struct reply_token *token, int tokens,
                         const struct tokenizer *t)
{
    int i, j;

    text_puts(out, "{\"content\":[");
    for (i = 0; i < tokens; i++) {
        text_puts(out, i ? "," : "");
        add_choice(out, token[i].id, token[i].logprob, t);
        text_puts(out, ",\"top_logprobs\":[");
        for (j = 0; j < token[i].alternatives; j++) {
            text_puts(out, j ? "," : "");
            add_choice(out, token[i].alternative[j].id, token[i].alternative[j].logprob, t);
            text_puts(out, "}");
        }
        text_puts(out, "]}");
    }
    text_puts(out, "],\"refusal\":null}");
}

/* Two tokens may be written alike (an added one and an ordinary one); an object takes one. */
static bool same_text(int32_t a, int32_t b, const struct tokenizer *t)
{
    size_t an = 0, bn = 0;
    const char *as = tokenizer_bytes(t, a, &an), *bs = tokenizer_bytes(t, b, &bn);

    return a == b || (as && bs && an == bn && !memcmp(as, bs, an));
}

/* {"text":logprob,..} of the alternatives and, where it is none of them, the token. */
static void add_pairs(struct text *out, const struct reply_token *k, const struct tokenizer *t)
{
    int i, j;

    if (isnan(k->logprob)) {
        text_puts(out, "null");
        return;
    }
    text_puts(out, "{");
    for (i = 0; i <= k->alternatives; i++) {
        bool last = i == k->alternatives;
        int32_t id = last ? k->id : k->alternative[i].id;
        size_t n = 0;
        const char *s = tokenizer_bytes(t, id, &n);

        for (j = 0; j < i && !same_text(k->alternative[j].id, id, t); j++)
            ;
        if (j < i)
            continue;
        text_puts(out, i ? "," : "");
        add_token(out, s, s ? n : 0);
        text_puts(out, ":");
        add_logprob(out, last ? k->logprob : k->alternative[i].logprob);
    }
    text_puts(out, "}");
}

/* Characters that begin in s[0..n). */
static size_t count_characters(const char *s, size_t n)
{
    size_t i, count = 0;

    for (i = 0; i < n; i++)
        count += ((unsigned char)s[i] & 0xc0) != 0x80;
    return count;
}

void reply_logprobs_text(struct text *out, const struct reply_token *token, int tokens,
                         const struct tokenizer *t, size_t *offset)
{
    size_t n;
    const char *s;
    int i;

    text_puts(out, "{\"tokens\":[");
    for (i = 0; i < tokens; i++) {
        s = tokenizer_bytes(t, token[i].id, &n);
        text_puts(out, i ? "," : "");
        add_token(out, s, s && !token[i].hidden ? n : 0);
    }
    text_puts(out, "],\"token_logprobs\":[");
    for (i = 0; i < tokens; i++) {
        text_puts(out, i ? "," : "");
        add_logprob(out, token[i].logprob);
    }
    text_puts(out, "],\"top_logprobs\":[");
    for (i = 0; i < tokens; i++) {
        text_puts(out, i ? "," : "");
        add_pairs(out, &token[i], t);
    }
    text_puts(out, "],\"text_offset\":[");
    for (i = 0; i < tokens; i++) {
        text_printf(out, i ? ",%zu" : "%zu", *offset);
        s = tokenizer_bytes(t, token[i].id, &n);
        if (s && !token[i].hidden)
            *offset += count_characters(s, n);
    }
    text_puts(out, "]}");
}

void reply_choice(struct text *out, const struct reply *r, int index, const struct tokenizer *t)
{
    size_t offset = 0;
    int i;

    text_printf(out, "{\"index\":%d,", index);
    if (r->chat) {
        text_puts(out, "\"message\":");
        reply_message(out, r->message);
    } else {
        text_puts(out, "\"text\":");
        text_json_bytes(out, r->text, r->text_n);
    }
    text_puts(out, ",\"logprobs\":");
    if (!r->logprobs)
        text_puts(out, "null");
    else if (r->chat)
        reply_logprobs_chat(out, r->token, r->tokens, t);
    else
        reply_logprobs_text(out, r->token, r->tokens, t, &offset);
    text_puts(out, ",");
    add_member(out, "finish_reason", reply_finish(r->finish, r->chat ? r->message->calls : 0));
    if (r->token_id) {
        text_puts(out, ",\"token_ids\":[");
        for (i = 0; i < r->token_ids; i++)
            text_printf(out, i ? ",%d" : "%d", r->token_id[i]);
        text_puts(out, "]");
    }
    text_puts(out, "}");
}

void reply_begin(struct text *out, const struct reply *r)
{
    text_puts(out, "{");
    add_member(out, "id", r->id);
    text_puts(out, ",");
    add_member(out, "object", r->chat ? "chat.completion" : "text_completion");
    text_printf(out, ",\"created\":%jd,", (intmax_t)r->created);
    add_member(out, "model", r->model);
    text_puts(out, ",\"choices\":[");
}

void reply_end(struct text *out, const struct reply *r)
{
    text_puts(out, "],\"usage\":");
    reply_usage(out, &r->usage);
    if (r->timings) {
        text_puts(out, ",\"timings\":");
        reply_timings(out, r->timings);
    }
    text_puts(out, "}");
}

void reply_json(struct text *out, const struct reply *r, const struct tokenizer *t)
{
    reply_begin(out, r);
    reply_choice(out, r, 0, t);
    reply_end(out, r);
}

void reply_error(struct text *out, const struct request_error *e)
{
    text_puts(out, "{\"error\":{");
    add_member(out, "message", e->message);
    text_puts(out, ",");
    add_member(out, "type", e->type);
    text_puts(out, ",");
    add_member(out, "param", e->param[0] ? e->param : NULL);
    text_puts(out, ",");
    add_member(out, "code", e->code);
    if (e->n_ctx)
        text_printf(out, ",\"n_prompt_tokens\":%zu,\"n_ctx\":%d", e->n_prompt_tokens, e->n_ctx);
    text_puts(out, "}}");
}
