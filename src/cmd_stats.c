#include "src/command_io.h"
#include "src/commands.h"
#include "src/heatmap.h"
#include "src/outlook.h"

#include <errno.h>
#include <stdio.h>

/* stats: what the router has chosen so far, by layer and expert, and how much of it a cache of
 * a given size would hold. */

/* The whole text into a file. */
static int write_file(const char *path, const struct text *t, struct err *e)
{
    FILE *f = fopen(path, "we");
    bool bad;

    if (!f)
        return fail(e, -errno, "%s: %s", path, strerror(errno));
    errno = 0;
    bad = fwrite(t->s, 1, t->n, f) != t->n;
    bad = fclose(f) || bad;
    return bad ? fail(e, errno ? -errno : -EIO, "%s: %s", path, strerror(errno ? errno : EIO)) : 0;
}

static int show(const struct options *o, const struct heatmap *h, struct err *e)
{
    struct text t = { NULL, 0, 0, false };
    int rc;

    if (o->svg)
        heatmap_svg(&t, h);
    else if (o->csv)
        heatmap_csv(&t, h);
    else if (o->json)
        heatmap_json(&t, h);
    else
        heatmap_text(&t, h);
    rc = t.failed   ? fail(e, -ENOMEM, "no memory for the statistics")
         : o->svg   ? write_file(o->svg, &t, e)
         : o->json  ? output_line(&t, e)
                    : output_bytes(t.s, t.n, e);
    text_free(&t);
    return rc;
}

int cmd_stats(struct options *o, struct err *e)
{
    struct popularity p = { 0 };
    struct skew skew = { NULL, 0 };
    int layer_number[MAX_LAYERS];
    struct heatmap h = { &p, layer_number, &skew };
    struct model *m = NULL;
    int rc = model_open(&m, o->model_dir, &o->log, e);

    if (!rc)
        rc = statistics_open(&p, m, o, e);
    if (!rc)
        rc = skew_open(&skew, &p, e);
    if (!rc) {
        for (int i = 0; i < m->shape.layers; i++)
            if (m->sparse_index[i] >= 0)
                layer_number[m->sparse_index[i]] = i;
        rc = show(o, &h, e);
    }
    skew_close(&skew);
    popularity_close(&p);
    model_close(m);
    return rc;
}
