/* All routed experts in one block of memory.  The parts of an expert that lie side by side
 * in a shard are read together and lie side by side here too. */
#include "cpu/pool.h"
#include "src/experts_internal.h"

#include <errno.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

enum { RUN_ALIGN = 64, HUGE_BYTES = 2 << 20 };

struct expert_set {
    const struct model *model;
    struct expert *expert;              /* [sparse layer][experts], as model->expert */
    size_t count;
    uint8_t *memory;
    size_t bytes;
};

/* Parts of one expert that are adjacent in a shard. */
struct run {
    int shard;
    uint64_t offset, bytes;
    size_t at;                          /* in the expert's memory */
};

struct runs {
    struct run run[EXPERT_PARTS];
    int n;
    size_t bytes;                       /* of memory the expert takes */
    uint32_t part_at[EXPERT_PARTS];
};

static void sort_parts(const struct expert_source *s, int *order, int *n)
{
    *n = 0;
    for (int i = 0; i < EXPERT_PARTS; i++) {
        const struct part *p = &s->part[i];
        int j = *n;

        if (p->shard < 0)
            continue;
        for (; j > 0; j--) {
            const struct part *q = &s->part[order[j - 1]];

            if (q->shard < p->shard || (q->shard == p->shard && q->offset < p->offset))
                break;
            order[j] = order[j - 1];
        }
        order[j] = i;
        ++*n;
    }
}

static void find_runs(const struct expert_source *s, struct runs *out)
{
    int order[EXPERT_PARTS], n;

    out->n = 0;
    out->bytes = 0;
    sort_parts(s, order, &n);
    for (int i = 0; i < n; i++) {
        const struct part *p = &s->part[order[i]];
        struct run *last = out->n ? &out->run[out->n - 1] : NULL;

        if (!last || last->shard != p->shard || last->offset + last->bytes != p->offset) {
            out->bytes = align_up(out->bytes, RUN_ALIGN);
            last = &out->run[out->n++];
            *last = (struct run){ p->shard, p->offset, 0, out->bytes };
        }
        out->part_at[order[i]] = (uint32_t)out->bytes;
        last->bytes += p->bytes;
        out->bytes += p->bytes;
    }
    out->bytes = align_up(out->bytes, RUN_ALIGN);
}

static int read_run(const struct model *m, const struct run *r, uint8_t *into, struct err *e)
{
    int fd = checkpoint_fd(m->checkpoint, r->shard);
    const char *path = checkpoint_path(m->checkpoint, r->shard);
    uint64_t done = 0;

    while (done < r->bytes) {
        ssize_t n = pread(fd, into + done, r->bytes - done, (off_t)(r->offset + done));

        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return fail(e, -EIO, "%s: reading at %ju: %s", path, (uintmax_t)(r->offset + done),
                        strerror(errno));
        if (!n)
            return fail(e, -EBADMSG, "%s: ends at %ju: it has shrunk since it was opened", path,
                        (uintmax_t)(r->offset + done));
        done += (uint64_t)n;
    }
    return 0;
}

struct loading {
    struct expert_set *x;
    const size_t *at;                   /* [count]: where each expert's memory begins */
    atomic_size_t next, done_bytes;
    atomic_int rc;                      /* the first failure; its words are in e */
    struct err *e;
    void (*progress)(void *, size_t, size_t);
    void *arg;
};

static int load_one(struct loading *l, size_t i, struct err *e)
{
    struct expert_set *x = l->x;
    const struct expert_source *s = &x->model->expert[i];
    uint8_t *memory = x->memory + l->at[i];
    struct runs r;
    int rc = 0;

    find_runs(s, &r);
    for (int k = 0; k < r.n && !rc; k++)
        rc = read_run(x->model, &r.run[k], memory + r.run[k].at, e);
    expert_bind(&x->expert[i], s, memory, r.part_at);
    atomic_fetch_add(&l->done_bytes, r.bytes);
    return rc ? rc : expert_check_scales(&x->expert[i], e);
}

static void load_worker(void *arg, int worker, int workers)
{
    struct loading *l = arg;
    size_t i;

    (void)workers;
    while (!atomic_load(&l->rc) && (i = atomic_fetch_add(&l->next, 1)) < l->x->count) {
        struct err e;
        int none = 0, rc = load_one(l, i, &e);

        if (rc && atomic_compare_exchange_strong(&l->rc, &none, rc))
            *l->e = e;
        if (!worker && l->progress)
            l->progress(l->arg, atomic_load(&l->done_bytes), l->x->bytes);
    }
}

static int load_all(struct expert_set *x, const struct experts_config *c, size_t *at,
                    struct err *e)
{
    struct loading l = { .x = x, .at = at, .e = e, .progress = c->progress, .arg = c->arg };

    for (size_t i = 0; i < x->count; i++) {
        struct runs r;

        find_runs(&x->model->expert[i], &r);
        at[i] = x->bytes;
        x->bytes = add_sat(x->bytes, r.bytes);
        x->expert[i].id = (int)(i % (size_t)x->model->shape.experts);
    }
    for (int layer = 0; layer < x->model->shape.layers; layer++)
        for (int id = 0; x->model->sparse_index[layer] >= 0 && id < x->model->shape.experts; id++)
            x->expert[model_expert(x->model, layer, id) - x->model->expert].layer = layer;
    x->memory = mmap(NULL, align_up(x->bytes, HUGE_BYTES), PROT_READ | PROT_WRITE,
                     MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (x->memory == MAP_FAILED) {
        x->memory = NULL;
        return fail(e, -ENOMEM, "no memory for %zu MB of experts", x->bytes >> 20);
    }
    madvise(x->memory, align_up(x->bytes, HUGE_BYTES), MADV_HUGEPAGE);
    pool_run(c->pool, load_worker, &l);
    return atomic_load(&l.rc);
}

int expert_set_open(struct expert_set **out, const struct experts_config *c, struct err *e)
{
    const struct shape *s = &c->model->shape;
    struct expert_set *x = calloc(1, sizeof(*x));
    size_t *at;
    int rc;

    if (!x)
        return fail(e, -ENOMEM, "out of memory");
    x->model = c->model;
    x->count = (size_t)s->sparse_layers * (size_t)s->experts;
    x->expert = calloc(x->count + 1, sizeof(*x->expert));
    at = calloc(x->count + 1, sizeof(*at));
    if (!x->expert || !at)
        rc = fail(e, -ENOMEM, "out of memory");
    else
        rc = x->count ? load_all(x, c, at, e) : 0;
    free(at);
    if (rc) {
        expert_set_close(x);
        return rc;
    }
    *out = x;
    return 0;
}

void expert_set_close(struct expert_set *x)
{
    if (!x)
        return;
    if (x->memory)
        munmap(x->memory, align_up(x->bytes, HUGE_BYTES));
    free(x->expert);
    free(x);
}

const struct expert *expert_set_get(const struct expert_set *x, int layer, int id)
{
    return &x->expert[model_expert(x->model, layer, id) - x->model->expert];
}
