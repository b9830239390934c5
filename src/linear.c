/* How one Linear is stored (laguna.md section 4): BF16, packed or plain int8, packed int4
 * with or without zero points, MXFP4.  What a format needs is checked here, tensor by
 * tensor; reading the bytes is model_load.c and, for experts, storage/. */
#include "src/linear.h"

#include <errno.h>
#include <stdio.h>

/* A module's path with room for a suffix. */
struct path {
    char text[600];
    size_t n;
};

static const struct tensor *find(const struct checkpoint *c, struct path *p, const char *suffix)
{
    memcpy(p->text + p->n, suffix, strlen(suffix) + 1);
    return checkpoint_find(c, p->text);
}

static void print_dims(char *out, size_t cap, const struct tensor *t)
{
    size_t used = 0;
    int i;

    out[0] = 0;
    for (i = 0; i < t->rank && used + 24 < cap; i++)
        used += (size_t)snprintf(out + used, cap - used, "%s%jd", i ? ", " : "",
                                 (intmax_t)t->dim[i]);
}

static bool dims_are(const struct tensor *t, int rows, int cols, bool squeeze)
{
    int64_t want[2] = { rows, cols };
    int i, k = 0;

    if (!squeeze)
        return t->rank == 2 && t->dim[0] == rows && t->dim[1] == cols;
    for (i = 0; i < t->rank; i++) {
        if (t->dim[i] == 1)
            continue;
        while (k < 2 && want[k] == 1)
            k++;
        if (k == 2 || t->dim[i] != want[k++])
            return false;
    }
    while (k < 2 && want[k] == 1)
        k++;
    return k == 2;
}

int tensor_check(const struct checkpoint *c, const struct tensor *t, enum dtype want, int rows,
                 int cols, bool squeeze, struct err *e)
{
    const char *path = checkpoint_path(c, t->shard);
    char dims[128];

    if (t->dtype != want)
        return fail(e, -EBADMSG, "%s:%s: dtype %s, expected %s", path, t->name,
                    dtype_name(t->dtype), dtype_name(want));
    if (dims_are(t, rows, cols, squeeze))
        return 0;
    print_dims(dims, sizeof(dims), t);
    return fail(e, -EBADMSG, "%s:%s: shape [%s], expected [%d, %d]", path, t->name, dims, rows,
                cols);
}

/* Columns of a packed row, in elements of its tensor. */
static int packed_cols(enum wformat f, int cols)
{
    return f == W_MXFP4 ? cols / 2 : f == W_INT4 ? cols / 8 : cols / 4;
}

static int missing(const struct checkpoint *c, struct path *p, const char *suffix, struct err *e)
{
    memcpy(p->text + p->n, suffix, strlen(suffix) + 1);
    return fail(e, -EBADMSG, "%s:%s: missing", checkpoint_dir(c), p->text);
}

static int find_scale(struct linear *out, const struct checkpoint *c, struct path *p,
                      struct err *e)
{
    const struct tensor *t = find(c, p, ".weight_scale");
    enum dtype want = out->m.format == W_MXFP4 ? DT_U8 : DT_BF16;

    if (!t)
        return missing(c, p, ".weight_scale", e);
    if (want == DT_U8 && t->dtype == DT_F8_E8M0)
        want = DT_F8_E8M0;
    out->part[LINEAR_SCALE] = t;
    return tensor_check(c, t, want, out->m.rows, out->m.cols / out->m.group, false, e);
}

static int find_zero(struct linear *out, const struct checkpoint *c, struct path *p,
                     struct err *e)
{
    const struct tensor *t = find(c, p, ".weight_zero_point");
    int bits = out->m.format == W_INT4 ? 4 : 8;

    if (!t)
        return missing(c, p, ".weight_zero_point", e);
    out->part[LINEAR_ZERO] = t;
    return tensor_check(c, t, DT_I32, (int)(((int64_t)out->m.rows * bits + 31) / 32),
                        out->m.cols / out->m.group, false, e);
}

/* The shape that the writer noted; its two numbers are for the caller to read. */
static int find_shape(struct linear *out, const struct checkpoint *c, struct path *p,
                      struct err *e)
{
    const struct tensor *t = find(c, p, ".weight_shape");

    if (t && (t->dtype != DT_I64 || t->rank != 1 || t->dim[0] != 2))
        return fail(e, -EBADMSG, "%s:%s: not I64 [2]", checkpoint_path(c, t->shard), t->name);
    out->shape = t;
    return 0;
}

static int find_quantised(struct linear *out, const struct checkpoint *c,
                          const struct scheme *s, const struct tensor *weight, struct path *p,
                          struct err *e)
{
    struct matrix *m = &out->m;
    int rc;

    m->format = s->format;
    m->group = s->group ? s->group : m->cols;
    out->part[LINEAR_WEIGHT] = weight;
    out->plain = s->plain;
    if (m->cols % m->group) {
        p->text[p->n] = 0;
        return fail(e, -EBADMSG, "%s:%s: group_size %d does not divide %d columns",
                    checkpoint_dir(c), p->text, m->group, m->cols);
    }
    rc = s->plain ? tensor_check(c, weight, DT_I8, m->rows, m->cols, false, e)
                  : tensor_check(c, weight, s->format == W_MXFP4 ? DT_U8 : DT_I32, m->rows,
                                 packed_cols(s->format, m->cols), false, e);
    if (!rc)
        rc = find_scale(out, c, p, e);
    if (!rc && !s->symmetric)
        rc = find_zero(out, c, p, e);
    return rc ? rc : find_shape(out, c, p, e);
}

/* Neither BF16 nor what the configuration promised: say what it looks like. */
static int refuse(const struct checkpoint *c, struct path *p, const struct tensor *weight,
                  unsigned flags, struct err *e)
{
    const struct tensor *t = find(c, p, ".weight_packed");

    if (t && flags & LINEAR_BF16_ONLY)
        return fail(e, -EBADMSG, "%s:%s: quantised, but this module must be BF16",
                    checkpoint_path(c, t->shard), t->name);
    if (t)
        return fail(e, -EBADMSG, "%s:%s: packed, but quantization_config ignores this module or "
                    "names it in no target", checkpoint_path(c, t->shard), t->name);
    t = find(c, p, ".qweight");
    if (t)
        return fail(e, -EBADMSG, "%s:%s: GPTQ or AWQ weights are not supported",
                    checkpoint_path(c, t->shard), t->name);
    if (!weight)
        return missing(c, p, ".weight", e);
    if (weight->dtype == DT_F8_E4M3 || weight->dtype == DT_F8_E5M2)
        return fail(e, -EBADMSG, "%s:%s: FP8 weights (%s) are not supported",
                    checkpoint_path(c, weight->shard), weight->name, dtype_name(weight->dtype));
    return fail(e, -EBADMSG, "%s:%s: dtype %s, expected BF16", checkpoint_path(c, weight->shard),
                weight->name, dtype_name(weight->dtype));
}

int linear_find(struct linear *out, const struct checkpoint *c, const struct quant *q,
                const char *module, int rows, int cols, unsigned flags, struct err *e)
{
    struct path p = { .n = strlen(module) };
    const struct scheme *s = NULL;
    const struct tensor *t;
    int rc = 0;

    memset(out, 0, sizeof(*out));
    out->m.rows = rows;
    out->m.cols = cols;
    if (p.n + 32 > sizeof(p.text))
        return fail(e, -EBADMSG, "%s: module path of %zu bytes", checkpoint_dir(c), p.n);
    memcpy(p.text, module, p.n + 1);
    if (!(flags & LINEAR_BF16_ONLY))
        rc = quant_find(q, module, &s, e);
    if (rc)
        return rc;
    if (s && !s->plain) {
        t = find(c, &p, ".weight_packed");
        if (t)
            return find_quantised(out, c, s, t, &p, e);
    }
    t = find(c, &p, ".weight");
    if (t && t->dtype == DT_I8 && s && s->plain)
        return find_quantised(out, c, s, t, &p, e);
    if (!t || t->dtype != DT_BF16)
        return refuse(c, &p, t, flags, e);
    out->part[LINEAR_WEIGHT] = t;
    return tensor_check(c, t, DT_BF16, rows, cols, flags & LINEAR_SQUEEZE, e);
}
