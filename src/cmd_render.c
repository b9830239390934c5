#include "src/command_io.h"
#include "src/commands.h"
#include "src/directory.h"
#include "src/request.h"

#include <errno.h>
#include <stdlib.h>

/* render: the prompt of a request, as the model would see it.  The weights are not read. */

static int render_line(const struct options *o, const struct tokenizer *t, int vocab,
                       const char *line, size_t n, struct err *e)
{
    struct request_error error = { .status = 0 };
    struct request q;
    struct text out = { NULL, 0, 0, false };
    struct ids ids = { NULL, 0, 0 };
    int rc = request_parse(&q, line, n, vocab, &error);

    if (rc)
        fail(e, rc, "%s", error.message);
    else if (!q.chat)
        rc = fail(e, -EBADMSG, "messages: missing; render shows the prompt of a conversation");
    if (!rc && o->ids) {
        rc = prompt_encode(&q.prompt, t, &ids, e);
        text_ids(&out, ids.id, ids.n);
    } else if (!rc) {
        text_json_string(&out, q.prompt.text.s, q.prompt.text.n);
    }
    if (!rc)
        rc = output_line(&out, e);
    free(ids.id);
    text_free(&out);
    request_free(&q);
    return rc;
}

int cmd_render(struct options *o, struct err *e)
{
    struct tokenizer *tokenizer = NULL;
    struct model *model = NULL;
    struct input in;
    const char *line;
    size_t n;
    int rc = input_open(&in, o->file, e);

    if (!rc)
        rc = directory_open(&model, &tokenizer, o->model_dir, &o->log, e);
    while (!rc && (rc = input_line(&in, &line, &n, e)) > 0) {
        rc = render_line(o, tokenizer, model->shape.vocab, line, n, e);
        if (rc == -EBADMSG)
            rc = input_fail(&in, rc, e);
    }
    tokenizer_close(tokenizer);
    model_close(model);
    input_close(&in);
    return rc;
}
