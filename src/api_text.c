#include "src/api.h"
#include "src/command_io.h"
#include "src/server.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

/* /tokenize, /detokenize and /apply-template: what the tokenizer and the chat layout say,
 * without the engine. */

static cJSON *read_object(struct job *j)
{
    struct request_error e;
    cJSON *body = request_object(j->body.s, j->body.n, &e);

    if (body)
        return body;
    j->failed = true;
    j->error = e;
    return NULL;
}

static int refuse_field(struct job *j, const char *name, const char *words)
{
    job_refuse(j, 400, "invalid_value", "%s %s", name, words);
    snprintf(j->error.param, sizeof(j->error.param), "%s", name);
    return -EBADMSG;
}

static void add_pieces(struct text *out, const struct tokenizer *t, const struct ids *ids)
{
    text_puts(out, ",\"pieces\":[");
    for (size_t i = 0; i < ids->n; i++) {
        size_t n = 0;
        const char *s = tokenizer_bytes(t, ids->id[i], &n);

        text_printf(out, "%s{\"id\":%d,\"piece\":", i ? "," : "", ids->id[i]);
        text_json_bytes(out, s ? s : "", s ? n : 0);
        text_puts(out, "}");
    }
    text_puts(out, "]");
}

/* add_special puts the beginning of a sequence in front; parse_special (on) matches added
 * tokens in the text. */
static int tokenize_text(struct job *j, const cJSON *body, const cJSON *content)
{
    const struct tokenizer *t = j->server->tokenizer;
    int32_t bos = tokenizer_bos(t) < 0 ? j->server->model->shape.bos : tokenizer_bos(t);
    bool special = !cJSON_IsFalse(json_get(body, "parse_special"));
    struct ids ids = { NULL, 0, 0 };
    struct err e;
    int rc = 0;

    if (cJSON_IsTrue(json_get(body, "add_special")) && bos >= 0 && ids_push(&ids, bos))
        rc = fail(&e, -ENOMEM, "no memory for the ids");
    if (!rc)
        rc = tokenizer_encode(t, content->valuestring, strlen(content->valuestring), NULL,
                              special ? SPANS_ALL : 0, &ids, &e);
    if (rc) {
        free(ids.id);
        return job_fail(j, rc, &e);
    }
    text_puts(&j->pending, "{\"tokens\":");
    text_ids(&j->pending, ids.id, ids.n);
    text_printf(&j->pending, ",\"count\":%zu,\"max_model_len\":%d", ids.n, j->server->context);
    if (cJSON_IsTrue(json_get(body, "with_pieces")))
        add_pieces(&j->pending, t, &ids);
    text_puts(&j->pending, "}");
    free(ids.id);
    return 1;
}

static int read_tokenize(struct job *j)
{
    cJSON *body = read_object(j);
    const cJSON *content;
    int rc;

    if (!body)
        return -EBADMSG;
    content = json_get(body, "content");
    if (!content)
        content = json_get(body, "prompt");
    rc = cJSON_IsString(content) ? tokenize_text(j, body, content)
                                 : refuse_field(j, "content", "must be a string");
    cJSON_Delete(body);
    return rc;
}

static int detokenize(struct job *j, const cJSON *tokens)
{
    struct text all = { NULL, 0, 0, false };
    const cJSON *one;
    int64_t id;
    size_t n;

    if (!cJSON_IsArray(tokens))
        return refuse_field(j, "tokens", "must be an array of ids");
    cJSON_ArrayForEach(one, tokens) {
        const char *s = json_int64(one, 0, INT32_MAX, &id) ? NULL
                        : tokenizer_bytes(j->server->tokenizer, (int32_t)id, &n);

        if (!s) {
            text_free(&all);
            return refuse_field(j, "tokens", "holds what is no id");
        }
        text_add(&all, s, n);
    }
    text_puts(&j->pending, "{\"content\":");
    text_json_bytes(&j->pending, all.s ? all.s : "", all.n);
    text_puts(&j->pending, "}");
    j->pending.failed |= all.failed;
    text_free(&all);
    return 1;
}

static int read_detokenize(struct job *j)
{
    cJSON *body = read_object(j);
    int rc;

    if (!body)
        return -EBADMSG;
    rc = detokenize(j, json_get(body, "tokens"));
    cJSON_Delete(body);
    return rc;
}

static int read_template(struct job *j)
{
    struct request_error e;
    struct request q;
    int rc = request_parse(&q, j->body.s, j->body.n, j->server->model->shape.vocab, &e);

    if (rc) {
        j->failed = true;
        j->error = e;
    } else {
        text_puts(&j->pending, "{\"prompt\":");
        text_json_bytes(&j->pending, q.prompt.text.s ? q.prompt.text.s : "", q.prompt.text.n);
        text_puts(&j->pending, "}");
    }
    request_free(&q);
    return rc ? rc : 1;
}

const struct api *api_tokenize(void)
{
    static const struct api api = { .read = read_tokenize };

    return &api;
}

const struct api *api_detokenize(void)
{
    static const struct api api = { .read = read_detokenize };

    return &api;
}

const struct api *api_template(void)
{
    static const struct api api = { .read = read_template };

    return &api;
}
