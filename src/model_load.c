/* The dense weights into memory: one arena, filled by several readers in pieces, because one
 * pread at a time leaves a fast drive idle.  What can be checked cheaply is checked on the
 * way: scales, norms and biases are finite. */
#include "src/model.h"

#include "src/model_bind.h"
#include "src/ref.h"

#include <assert.h>
#include <errno.h>
#include <math.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/mman.h>

enum {
    PIECE_BYTES = 16 << 20,
    HUGE_BYTES = 2 << 20,
    READERS_MAX = 64,
};

struct piece {
    const struct load *load;
    uint64_t from;              /* in the tensor */
    size_t bytes;
};

struct job {
    struct model *m;
    struct piece *piece;        /* [pieces] */
    size_t pieces;
    atomic_size_t next;
    atomic_size_t done_bytes;
    atomic_int rc;              /* the first failure */
    pthread_mutex_t lock;       /* of e */
    struct err *e;
};

static void job_fail(struct job *j, int rc, const struct err *why)
{
    int none = 0;

    pthread_mutex_lock(&j->lock);
    if (atomic_compare_exchange_strong(&j->rc, &none, rc) && j->e)
        *j->e = *why;
    pthread_mutex_unlock(&j->lock);
}

static int not_finite(const struct model *m, const struct tensor *t, size_t i, struct err *e)
{
    return fail(e, -EBADMSG, "%s:%s: element %zu is NaN or infinite",
                checkpoint_path(m->checkpoint, t->shard), t->name, i);
}

static int check_scales(const struct model *m, const struct piece *p, const void *data,
                        struct err *e)
{
    size_t i, n = p->bytes / sizeof(bf16);
    const bf16 *scale = data;

    for (i = 0; i < n; i++)
        if ((scale[i] & 0x7f80) == 0x7f80)
            return not_finite(m, p->load->tensor, p->from / sizeof(bf16) + i, e);
    return 0;
}

static int check_e8m0(const struct model *m, const struct piece *p, const void *data,
                      struct err *e)
{
    const void *bad = memchr(data, 0xff, p->bytes);

    if (!bad)
        return 0;
    return not_finite(m, p->load->tensor,
                      p->from + (size_t)((const char *)bad - (const char *)data), e);
}

static float to_float(const void *data, size_t i, enum dtype d)
{
    uint16_t half;
    float f;

    if (d == DT_F32) {
        memcpy(&f, (const char *)data + i * sizeof(f), sizeof(f));
        return f;
    }
    memcpy(&half, (const char *)data + i * sizeof(half), sizeof(half));
    return d == DT_BF16 ? bf16_to_f32(half) : ref_f16_to_f32(half);
}

/* A vector of norms or biases, or a single scale: always one piece. */
static int load_floats(const struct model *m, const struct load *l, struct err *e)
{
    const struct tensor *t = l->tensor;
    size_t n = t->bytes / (t->dtype == DT_F32 ? 4 : 2), i;
    float *to = l->kind == LOAD_ONE ? l->to.one : *l->to.floats;
    void *raw = malloc(t->bytes);
    int rc;

    if (!raw)
        return fail(e, -ENOMEM, "%s: no memory for %ju bytes", t->name, (uintmax_t)t->bytes);
    rc = checkpoint_read(m->checkpoint, t, raw, e);
    for (i = 0; i < n && !rc; i++) {
        to[i] = to_float(raw, i, t->dtype);
        if (!isfinite(to[i]))
            rc = not_finite(m, t, i, e);
    }
    if (!rc && l->kind == LOAD_ONE && *to <= 0)
        rc = fail(e, -EBADMSG, "%s:%s: %g is no scale",
                  checkpoint_path(m->checkpoint, t->shard), t->name, (double)*to);
    free(raw);
    return rc;
}

static int load_piece(const struct model *m, const struct piece *p, struct err *e)
{
    const struct load *l = p->load;
    uint8_t *to = (uint8_t *)m->arena + l->at + p->from;
    size_t i;
    int rc;

    if (l->kind == LOAD_FLOATS || l->kind == LOAD_ONE)
        return load_floats(m, l, e);
    rc = checkpoint_read_part(m->checkpoint, l->tensor, p->from, p->bytes, to, e);
    if (rc)
        return rc;
    if (l->kind == LOAD_SCALE)
        return check_scales(m, p, to, e);
    if (l->kind == LOAD_E8M0)
        return check_e8m0(m, p, to, e);
    if (l->kind == LOAD_INT8)
        for (i = 0; i < p->bytes; i++)
            to[i] ^= 0x80;
    return 0;
}

/* Take and load the next piece; false when there is none, or after a failure. */
static bool step(struct job *j)
{
    size_t i = atomic_fetch_add(&j->next, 1);
    struct err why;
    int rc;

    if (i >= j->pieces || atomic_load(&j->rc))
        return false;
    rc = load_piece(j->m, &j->piece[i], &why);
    if (rc)
        job_fail(j, rc, &why);
    atomic_fetch_add(&j->done_bytes, j->piece[i].bytes);
    return true;
}

static void *reader(void *arg)
{
    struct job *j = arg;

    while (step(j))
        ;
    return NULL;
}

static int by_place(const void *a, const void *b)
{
    const struct tensor *x = ((const struct piece *)a)->load->tensor;
    const struct tensor *y = ((const struct piece *)b)->load->tensor;
    uint64_t x_at = x->offset + ((const struct piece *)a)->from;
    uint64_t y_at = y->offset + ((const struct piece *)b)->from;

    if (x->shard != y->shard)
        return x->shard < y->shard ? -1 : 1;
    return (x_at > y_at) - (x_at < y_at);
}

/* Cut the loads into pieces, in the order of the files. */
static int cut(struct job *j)
{
    const struct model *m = j->m;
    size_t n = 0, i;
    uint64_t from;

    for (i = 0; i < m->loads; i++)
        n += (size_t)(m->load[i].tensor->bytes / PIECE_BYTES) + 1;
    j->piece = malloc(n * sizeof(*j->piece));
    if (!j->piece)
        return fail(j->e, -ENOMEM, "no memory for %zu reads", n);
    for (i = 0; i < m->loads; i++) {
        const struct load *l = &m->load[i];
        uint64_t bytes = l->tensor->bytes;
        bool whole = l->kind == LOAD_FLOATS || l->kind == LOAD_ONE;

        for (from = 0; from < bytes;) {
            struct piece *p = &j->piece[j->pieces++];

            *p = (struct piece){ .load = l, .from = from, .bytes = (size_t)(bytes - from) };
            if (!whole && p->bytes > PIECE_BYTES)
                p->bytes = PIECE_BYTES;
            from += p->bytes;
        }
    }
    qsort(j->piece, j->pieces, sizeof(*j->piece), by_place);
    return 0;
}

static int map_arena(struct model *m, struct err *e)
{
    size_t i;

    m->arena = mmap(NULL, m->arena_bytes, PROT_READ | PROT_WRITE,
                    MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (m->arena == MAP_FAILED) {
        m->arena = NULL;
        return fail(e, -ENOMEM, "no memory for %zu bytes of dense weights", m->arena_bytes);
    }
    if (m->arena_bytes >= 4 * HUGE_BYTES)
        madvise(m->arena, m->arena_bytes, MADV_HUGEPAGE);
    for (i = 0; i < m->loads; i++) {
        const struct load *l = &m->load[i];
        char *at = (char *)m->arena + l->at;

        if (l->kind == LOAD_FLOATS)
            *l->to.floats = (float *)at;
        else if (l->kind != LOAD_ONE)
            *l->to.bytes = at;
    }
    return 0;
}

static void run(struct job *j, int threads, void (*progress)(void *, size_t, size_t), void *arg)
{
    pthread_t thread[READERS_MAX];
    int started = 0;

    /* The caller reads too; a thread that does not start only makes it slower. */
    while (started < threads - 1 && started < READERS_MAX &&
           !pthread_create(&thread[started], NULL, reader, j))
        started++;
    while (step(j))
        if (progress)
            progress(arg, atomic_load(&j->done_bytes), j->m->dense_bytes);
    while (started)
        pthread_join(thread[--started], NULL);
    if (progress && !j->rc)
        progress(arg, j->m->dense_bytes, j->m->dense_bytes);
}

void model_drop_dense(struct model *m)
{
    munmap(m->arena, m->arena_bytes);
    m->arena = NULL;
}

int model_load_dense(struct model *m, int threads, void (*progress)(void *, size_t, size_t),
                     void *arg, struct err *e)
{
    struct job j = { .m = m, .e = e, .lock = PTHREAD_MUTEX_INITIALIZER };
    int rc;

    assert(!m->arena);
    rc = map_arena(m, e);
    if (!rc)
        rc = cut(&j);
    if (!rc) {
        run(&j, threads, progress, arg);
        rc = j.rc;
    }
    free(j.piece);
    return rc;
}
