/* Recorded routes are kept in memory (470 bytes a token of Laguna-S-2.1) and written when the
 * program ends, because a safetensors header comes first. */
#include "src/trace.h"
#include "src/json.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

struct trace {
    char *path;
    FILE *file;
    int layers, topk;
    size_t each;                /* bytes of one choice: 1 or 2 */
    struct text data;           /* all requests */
    struct text header;         /* their entries, without the braces */
    size_t begun;               /* where the request in progress begins in data */
    int requests;
};

int trace_open(struct trace **out, const char *path, int layers, int topk, int experts,
               struct err *e)
{
    struct trace *t = calloc(1, sizeof(*t));

    if (!t || !(t->path = strdup(path))) {
        free(t);
        return fail(e, -ENOMEM, "out of memory");
    }
    t->layers = layers;
    t->topk = topk;
    t->each = experts > 256 ? 2 : 1;
    t->file = fopen(path, "wbe");
    if (!t->file) {
        int rc = -errno;

        free(t->path);
        free(t);
        return fail(e, rc == -ENOENT ? -EROFS : rc, "--trace-routes %s: %s", path, strerror(-rc));
    }
    *out = t;
    return 0;
}

void trace_add(struct trace *t, const uint16_t *expert, int stride, int tokens)
{
    for (int i = 0; i < tokens; i++)
        for (int l = 0; l < t->layers; l++) {
            const uint16_t *row = expert + ((size_t)l * (size_t)stride + (size_t)i) *
                                  (size_t)t->topk;

            for (int k = 0; k < t->topk; k++)
                text_add(&t->data, (const char *)&row[k], t->each);     /* little-endian */
        }
}

void trace_request(struct trace *t)
{
    size_t row = (size_t)t->layers * (size_t)t->topk * t->each;

    if (t->data.n == t->begun)
        return;
    text_printf(&t->header, "%s\"request.%d\":{\"dtype\":\"%s\",\"shape\":[%zu,%d,%d],"
                "\"data_offsets\":[%zu,%zu]}", t->requests ? "," : "", t->requests,
                t->each == 2 ? "U16" : "U8", (t->data.n - t->begun) / row, t->layers, t->topk,
                t->begun, t->data.n);
    t->requests++;
    t->begun = t->data.n;
}

static int write_all(struct trace *t, struct err *e)
{
    static const char blanks[] = "       ";
    size_t n = t->header.n + 2, padded = align_up(n, 8);
    uint64_t length = padded;

    if (t->data.failed || t->header.failed)
        return fail(e, -ENOMEM, "--trace-routes %s: out of memory", t->path);
    fwrite(&length, sizeof(length), 1, t->file);
    fprintf(t->file, "{%s}%s", t->header.s ? t->header.s : "", blanks + 7 - (padded - n));
    if (t->data.n)
        fwrite(t->data.s, t->data.n, 1, t->file);
    if (fflush(t->file) || ferror(t->file))
        return fail(e, errno ? -errno : -EIO, "--trace-routes %s: %s", t->path, strerror(errno));
    return 0;
}

int trace_close(struct trace *t, struct err *e)
{
    int rc;

    if (!t)
        return 0;
    trace_request(t);
    rc = write_all(t, e);
    fclose(t->file);
    text_free(&t->data);
    text_free(&t->header);
    free(t->path);
    free(t);
    return rc;
}
