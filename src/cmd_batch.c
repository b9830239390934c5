#include "src/answer.h"
#include "src/command_io.h"
#include "src/commands.h"
#include "src/reply.h"

#include <errno.h>
#include <stdio.h>

/* batch: requests in, answers out, a line each.  A line that cannot be answered gets an error
 * object; the others are answered all the same, unless the GPU is lost. */

/* One line.  -EBADMSG where it is at fault, another negative errno where we are, or 0. */
static int answer_line(struct session *s, const struct options *o, const char *line, size_t n,
                       struct text *out, struct err *e)
{
    struct request_error error = { .status = 0 };
    struct request q;
    int vocab = engine_model(session_engine(s))->shape.vocab;
    int rc = request_parse(&q, line, n, vocab, &error);

    if (rc) {
        fail(e, rc, "%s", error.message);
    } else {
        rc = answer_request(s, &q, o, out, e);
        if (rc)
            answer_error(&error, rc, e);
    }
    request_free(&q);
    if (rc) {
        out->n = 0;
        reply_error(out, &error);
    }
    return rc && error.status < 500 ? -EBADMSG : rc;
}

static int run(struct session *s, struct input *in, struct options *o, struct err *e)
{
    struct text out = { NULL, 0, 0, false };
    const char *line;
    size_t n;
    int rc, bad = 0, worst = 0;

    while ((rc = input_line(in, &line, &n, e)) > 0) {
        struct err words;
        int fault = answer_line(s, o, line, n, &out, &words);

        if (fault) {
            input_fail(in, fault, &words);
            info(&o->log, "%s", words.text);
            /* A fault of ours tells more than a bad line does. */
            worst = worst && worst != -EBADMSG ? worst : fault;
            bad++;
        }
        rc = output_line(&out, e);
        if (!rc && fault == -EREMOTEIO)
            rc = fail(e, fault, "%s", words.text);
        if (rc)
            break;
    }
    text_free(&out);
    if (!rc && bad)
        return fail(e, worst, "%s: %d of %ld lines could not be answered", in->name, bad,
                    in->number);
    return rc;
}

int cmd_batch(struct options *o, struct err *e)
{
    struct engine *engine = NULL;
    struct session *session = NULL;
    struct input in;
    int rc = input_open(&in, o->file, e);

    if (!rc)
        rc = engine_open(&engine, o, e);
    if (!rc)
        rc = session_open(&session, engine, e);
    if (!rc)
        rc = run(session, &in, o, e);
    session_close(session);
    engine_close(engine);
    input_close(&in);
    return rc;
}
