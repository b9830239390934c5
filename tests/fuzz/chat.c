/* Any bytes as the body of a request, through to the prompt and to what an error says. */
#include "src/reply.h"

#include <assert.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { VOCAB = 4096 };

static void check_prompt(const struct prompt *p)
{
    int i;

    assert(p->text.s && !p->text.failed);
    for (i = 0; i < p->controls; i++)
        assert(p->control[i].from < p->control[i].to && p->control[i].to <= p->text.n &&
               (!i || p->control[i - 1].to < p->control[i].from));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct request_error e;
    struct request q;
    struct text t = { 0 };
    struct err why;
    int rc = request_parse(&q, (const char *)data, size, VOCAB, &e);

    assert(rc <= 0);
    if (!rc && !q.prompt_id)
        check_prompt(&q.prompt);
    if (rc) {
        assert(e.status == 400 && e.message[0]);
        reply_error(&t, &e);
        assert(!json_scan(t.s, t.n, &JSON_REQUEST, &why));
    }
    text_free(&t);
    request_free(&q);
    return 0;
}
