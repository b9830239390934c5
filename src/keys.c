/* Where keys come from.  How they are compared is src/http.c. */
#include "src/keys.h"
#include "src/json.h"
#include "src/options.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

enum { KEYS_BYTES = 65536 };

static int add_file(struct text *all, const char *path, struct err *e)
{
    char s[4096];
    FILE *f = fopen(path, "re");
    size_t n;
    int rc = 0;

    if (!f) {
        rc = -errno;
        return fail(e, rc, "%s: %s", path, strerror(-rc));
    }
    while (!rc && (n = fread(s, 1, sizeof(s), f)) > 0) {
        text_add(all, s, n);
        if (all->n > KEYS_BYTES || memchr(s, 0, n))
            rc = fail(e, -EINVAL, "%s: not a text of at most %d bytes", path, KEYS_BYTES);
    }
    if (!rc && ferror(f))
        rc = fail(e, -EIO, "%s: %s", path, strerror(errno));
    fclose(f);
    return rc;
}

/* Cut the text into keys, one a line. */
static int cut(struct keys *k, char *s)
{
    for (char *next; s; s = next) {
        size_t n;

        next = strchr(s, '\n');
        if (next)
            *next++ = 0;
        s += strspn(s, " \t\r");
        for (n = strlen(s); n && strchr(" \t\r", s[n - 1]); n--)
            s[n - 1] = 0;
        if (!n || *s == '#')
            continue;
        if (k->n % 16 == 0) {
            void *wider = realloc(k->key, ((size_t)k->n + 16) * sizeof(*k->key));

            if (!wider)
                return -ENOMEM;
            k->key = wider;
        }
        k->key[k->n++] = s;
    }
    return 0;
}

int keys_load(struct keys *k, const struct options *o, struct err *e)
{
    struct text all = { NULL, 0, 0, false };
    struct keys new = { NULL, 0, NULL };
    int rc = 0;

    text_puts(&all, o->api_key ? o->api_key : "");
    for (size_t i = 0; i < all.n; i++)
        if (all.s[i] == ',')
            all.s[i] = '\n';
    text_puts(&all, "\n");
    if (o->api_key_file)
        rc = add_file(&all, o->api_key_file, e);
    new.text = all.s;
    if (!rc && (all.failed || cut(&new, all.s)))
        rc = fail(e, -ENOMEM, "no memory for the keys");
    if (!rc && !new.n && (o->api_key || o->api_key_file))
        rc = fail(e, -EINVAL, "%s: there is no key in it",
                  o->api_key_file ? o->api_key_file : "--api-key");
    if (rc) {
        keys_free(&new);
        return rc;
    }
    keys_free(k);
    *k = new;
    return 0;
}

void keys_free(struct keys *k)
{
    free(k->key);
    free(k->text);
    *k = (struct keys){ NULL, 0, NULL };
}
