#include "src/command_io.h"
#include "src/commands.h"
#include "src/directory.h"
#include "src/literal.h"

#include <errno.h>
#include <stdlib.h>

/* tokenize: texts to ids, or ids to texts.  The model's weights are not read. */

struct job {
    const struct options *o;
    const struct tokenizer *tokenizer;
    int vocab;
    struct text out;
};

static int encode(struct job *j, const char *text, size_t n, struct err *e)
{
    struct ids ids = { NULL, 0, 0 };
    int32_t bos = tokenizer_bos(j->tokenizer);
    int rc = 0;

    if (j->o->add_bos && bos >= 0 && ids_push(&ids, bos))
        rc = fail(e, -ENOMEM, "no memory for the ids");
    if (!rc)
        rc = tokenizer_encode(j->tokenizer, text, n, NULL, j->o->as_text ? 0 : SPANS_ALL, &ids, e);
    if (!rc) {
        text_ids(&j->out, ids.id, ids.n);
        rc = output_line(&j->out, e);
    }
    free(ids.id);
    return rc;
}

static int encode_line(struct job *j, const char *line, size_t n, struct err *e)
{
    struct text text = { NULL, 0, 0, false };
    int rc = literal_parse(&text, line, n, e);

    if (!rc)
        rc = encode(j, text.s, text.n, e);
    text_free(&text);
    return rc;
}

/* The bytes of all ids, as far as they are UTF-8. */
static int decode_ids(struct job *j, const struct ids *ids, struct err *e)
{
    struct text bytes = { NULL, 0, 0, false };
    struct detok detok = { { 0 }, 0 };
    char *buf = NULL;
    int rc = 0;

    for (size_t i = 0; i < ids->n && !rc; i++) {
        size_t n;
        const char *s = tokenizer_bytes(j->tokenizer, ids->id[i], &n);

        if (s)
            text_add(&bytes, s, n);
        else
            rc = fail(e, -EBADMSG, "[%zu]: %d is the id of no token", i, ids->id[i]);
    }
    if (!rc && !bytes.failed)
        buf = malloc(3 * bytes.n + 12);
    if (!rc && !buf)
        rc = fail(e, -ENOMEM, "no memory for the text of %zu tokens", ids->n);
    if (!rc) {
        size_t n = detok_push(&detok, bytes.s ? bytes.s : "", bytes.n, true, buf);

        text_json_string(&j->out, buf, n);
        rc = output_line(&j->out, e);
    }
    free(buf);
    text_free(&bytes);
    return rc;
}

static int decode_line(struct job *j, const char *line, size_t n, struct err *e)
{
    struct ids ids = { NULL, 0, 0 };
    int rc = ids_parse(&ids, line, n, j->vocab, e);

    if (!rc)
        rc = decode_ids(j, &ids, e);
    free(ids.id);
    return rc;
}

static int run(struct job *j, struct input *in, struct err *e)
{
    struct text all = { NULL, 0, 0, false };
    const char *line;
    size_t n;
    int rc;

    if (!j->o->jsonl && !j->o->decode) {
        rc = input_all(in, &all, e);
        if (!rc)
            rc = encode(j, all.s ? all.s : "", all.n, e);
        text_free(&all);
        return rc;
    }
    while ((rc = input_line(in, &line, &n, e)) > 0) {
        rc = j->o->decode ? decode_line(j, line, n, e) : encode_line(j, line, n, e);
        if (rc == -EBADMSG || rc == -EOVERFLOW)
            rc = input_fail(in, rc, e);
        if (rc)
            return rc;
    }
    return rc;
}

int cmd_tokenize(struct options *o, struct err *e)
{
    struct job j = { .o = o };
    struct tokenizer *tokenizer = NULL;
    struct model *model = NULL;
    struct input in;
    int rc = input_open(&in, o->file, e);

    if (!rc)
        rc = directory_open(&model, &tokenizer, o->model_dir, &o->log, e);
    if (!rc) {
        j.tokenizer = tokenizer;
        j.vocab = model->shape.vocab;
        rc = run(&j, &in, e);
    }
    text_free(&j.out);
    tokenizer_close(tokenizer);
    model_close(model);
    input_close(&in);
    return rc;
}
