#include "src/directory.h"

#include "src/chat.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

/* The files of a model's directory beside its weights. */

enum { TOKENIZER_LIMIT = 64 << 20, TEMPLATE_LIMIT = 1 << 20 };

static int open_tokenizer(struct tokenizer **out, const char *dir, int vocab, struct err *e)
{
    char *text = NULL, name[4096];
    size_t n;
    int rc = checkpoint_file(dir, "tokenizer.json", TOKENIZER_LIMIT, &text, &n, e);

    if (rc)
        return rc;
    snprintf(name, sizeof(name), "%s/tokenizer.json", dir);
    rc = tokenizer_open(out, text, n, name, vocab, e);
    free(text);
    return rc;
}

static int check_template(const char *dir, struct log *l, struct err *e)
{
    char *text = NULL;
    size_t n;
    int rc = checkpoint_file(dir, "chat_template.jinja", TEMPLATE_LIMIT, &text, &n, e);

    if (rc == -ENOENT) {
        warn(l, "%s has no chat_template.jinja: the S-2.1 layout is used", dir);
        return 0;
    }
    if (!rc && !chat_template_known(text, n))
        warn(l, "%s/chat_template.jinja is not one this program knows: the S-2.1 layout is used",
             dir);
    free(text);
    return rc;
}

int directory_open(struct model **model, struct tokenizer **tokenizer, const char *dir,
                   struct log *l, struct err *e)
{
    struct model *m = NULL;
    struct tokenizer *t = NULL;
    int rc = model_open(&m, dir, l, e);

    if (!rc)
        rc = open_tokenizer(&t, dir, m->shape.vocab, e);
    if (!rc)
        rc = check_template(dir, l, e);
    if (rc) {
        tokenizer_close(t);
        model_close(m);
        return rc;
    }
    *model = m;
    *tokenizer = t;
    return 0;
}
