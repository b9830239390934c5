/* Short loops over memory, kernels and drive.  For what a machine can do the best of a few rounds
 * counts, since a neighbour can only make a round slower; for what it will do, the middle one. */
#include "src/measure.h"
#include "cpu/kernels.h"
#include "cpu/pool.h"
#include "cuda/gpu.h"
#include "storage/slab.h"
#include "storage/stream.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <sys/mman.h>

enum {
    RAM_PARTS = 16,                     /* read in turn, so that no cache holds the next one */
    RAM_BYTES = 512 << 20,
    WORDS = 8,                          /* a cache line */

    ROWS = 1024, COLS = 3072, GROUP = 32, TOKENS = 64,      /* an expert's matrix */
    PRODUCT_ROUNDS = 32,
    WEIGHT_BYTES = ROWS * COLS / 2,
    MATRIX_BYTES = WEIGHT_BYTES + ROWS * (COLS / GROUP) * (int)sizeof(bf16),
    PART_MATRICES = RAM_BYTES / RAM_PARTS / MATRIX_BYTES, MATVEC_ROUNDS = 512,

    READ_BYTES = 2 << 20,               /* between the two extents of an expert */
    DRIVE_SLOTS = 8,
    DRIVE_MOST = 1024,                  /* reads */
};

/* Long enough for a busy machine to leave a few of the short rounds alone. */
static const double ram_seconds = 0.3, drive_seconds = 0.5;

struct ram_job {
    uint64_t *word;
    size_t words;                       /* of a part */
    int part;
};

static void touch(void *arg, int worker, int workers)
{
    const struct ram_job *j = arg;
    size_t from, to;

    pool_share(j->words * RAM_PARTS, WORDS, worker, workers, &from, &to);
    for (; from < to; from++)
        j->word[from] = from;
}

static void read_words(void *arg, int worker, int workers)
{
    const struct ram_job *j = arg;
    const uint64_t *part = j->word + (size_t)j->part * j->words;
    uint64_t sum[WORDS] = { 0 };
    size_t from, to;

    pool_share(j->words, WORDS, worker, workers, &from, &to);
    for (; from < to; from += WORDS)
        for (int i = 0; i < WORDS; i++)
            sum[i] ^= part[from + (size_t)i];
    /* The compiler must believe that somebody wants the sums. */
    __asm__ volatile("" : : "r"(sum) : "memory");
}

static double timed_run(struct pool *p, pool_fn fn, void *arg)
{
    double start = clock_now();

    pool_run(p, fn, arg);
    return clock_now() - start;
}

static bool ram_open(struct ram_job *j, struct pool *p)
{
    *j = (struct ram_job){ .words = RAM_BYTES / RAM_PARTS / sizeof(uint64_t) };
    j->word = mmap(NULL, RAM_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (j->word == MAP_FAILED)
        return false;
    madvise(j->word, RAM_BYTES, MADV_HUGEPAGE);
    pool_run(p, touch, j);
    return true;
}

static double part_bytes(const struct ram_job *j)
{
    return (double)(j->words * sizeof(uint64_t));
}

double measure_ram(struct pool *p)
{
    struct ram_job j;
    double best = INFINITY, end;

    if (!ram_open(&j, p))
        return 0;
    pool_begin(p);
    end = clock_now() + ram_seconds;
    for (int i = 0; i < RAM_PARTS || clock_now() < end; i++) {
        j.part = i % RAM_PARTS;
        best = fmin(best, timed_run(p, read_words, &j));
    }
    pool_end(p);
    munmap(j.word, RAM_BYTES);
    return part_bytes(&j) / best * 1e-9;
}

/* The same memory as experts' matrices, weights and scales of each side by side. */
struct matvec_job {
    struct ram_job ram;
    const struct cpu_kernels *k;
    uint8_t *packed;
    float *y;                           /* [ROWS] */
};

static void multiply_part(void *arg, int worker, int workers)
{
    const struct matvec_job *j = arg;
    const uint8_t *part = (const uint8_t *)(j->ram.word + (size_t)j->ram.part * j->ram.words);
    size_t stride = j->k->pack_bytes[j->k->act[W_INT4]](COLS), from, to;

    pool_share(ROWS, 16, worker, workers, &from, &to);
    for (int i = 0; i < PART_MATRICES; i++) {
        const uint8_t *at = part + (size_t)i * MATRIX_BYTES;
        struct matrix m = { W_INT4, ROWS, COLS, GROUP, at, at + WEIGHT_BYTES, NULL };

        j->k->mul[W_INT4](j->y, ROWS, &m, j->packed, stride, 1, (int)from, (int)to);
    }
}

static int upwards(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

/* Rounds for ram_seconds, at most as many as there is room for; the middle one in seconds. */
static double middle_round(struct matvec_job *j, struct pool *p)
{
    double seconds[MATVEC_ROUNDS], end = clock_now() + ram_seconds;
    int n = 0;

    pool_begin(p);
    do {
        j->ram.part = n % RAM_PARTS;
        seconds[n++] = timed_run(p, multiply_part, j);
    } while (n < MATVEC_ROUNDS && (n < RAM_PARTS || clock_now() < end));
    pool_end(p);
    qsort(seconds, (size_t)n, sizeof(*seconds), upwards);
    return seconds[n / 2];
}

double measure_matvec(struct pool *p, const struct cpu_kernels *k)
{
    enum act act = k->act[W_INT4];
    struct matvec_job j = { .k = k };
    float *x = calloc(COLS, sizeof(*x));
    double seconds = INFINITY;

    j.packed = aligned_alloc(ACT_ALIGN, k->pack_bytes[act](COLS));
    j.y = malloc(ROWS * sizeof(*j.y));
    if (x && j.packed && j.y && ram_open(&j.ram, p)) {
        k->pack[act](j.packed, x, COLS);
        seconds = middle_round(&j, p);
        munmap(j.ram.word, RAM_BYTES);
    }
    free(x);
    free(j.packed);
    free(j.y);
    return (double)PART_MATRICES * MATRIX_BYTES / seconds * 1e-9;
}

struct beside_job {
    struct pool *pool;
    struct ram_job ram;
    int rounds;
    double seconds;
};

static void beside_round(void *arg)
{
    struct beside_job *j = arg;

    j->ram.part = j->rounds++ % RAM_PARTS;
    j->seconds += timed_run(j->pool, read_words, &j->ram);
}

int measure_beside(struct pool *p, int device, struct beside_speed *out, struct err *e)
{
    struct beside_job j = { .pool = p };
    struct gpu_beside b = { .round = beside_round, .arg = &j };
    int rc;

    if (!ram_open(&j.ram, p))
        return fail(e, -ENOMEM, "no memory to measure with");
    pool_begin(p);
    rc = gpu_measure_beside(device, &b, e);
    pool_end(p);
    munmap(j.ram.word, RAM_BYTES);
    if (rc)
        return rc;
    out->ram_gbps = j.rounds * part_bytes(&j.ram) / j.seconds * 1e-9;
    out->h2d_gbps = b.h2d_gbps;
    return 0;
}

struct product_job {
    const struct cpu_kernels *k;
    struct matrix m;
    uint8_t *packed;                    /* [TOKENS] */
    size_t stride;
    float *y;                           /* [TOKENS][ROWS] */
};

static void multiply(void *arg, int worker, int workers)
{
    const struct product_job *j = arg;
    size_t from, to;

    pool_share(ROWS, 16, worker, workers, &from, &to);
    j->k->mul[W_INT4](j->y, ROWS, &j->m, j->packed, j->stride, TOKENS, (int)from, (int)to);
}

double measure_products(struct pool *p, const struct cpu_kernels *k)
{
    enum act act = k->act[W_INT4];
    struct product_job j = { .k = k, .stride = k->pack_bytes[act](COLS) };
    size_t weights = (size_t)ROWS * COLS / 2, scales = (size_t)ROWS * COLS / GROUP;
    uint8_t *weight = malloc(weights);
    bf16 *scale = malloc(scales * sizeof(*scale));
    float *x = calloc(COLS, sizeof(*x));
    double best = INFINITY;

    j.packed = aligned_alloc(ACT_ALIGN, TOKENS * j.stride);
    j.y = malloc((size_t)TOKENS * ROWS * sizeof(*j.y));
    if (weight && scale && x && j.packed && j.y) {
        for (size_t i = 0; i < weights; i++)
            weight[i] = (uint8_t)(i * 89 >> 3);
        for (size_t i = 0; i < scales; i++)
            scale[i] = f32_to_bf16(0.01f);
        for (int i = 0; i < COLS; i++)
            x[i] = (float)(i % 17) - 8;
        for (size_t i = 0; i < TOKENS; i++)
            k->pack[act](j.packed + i * j.stride, x, COLS);
        j.m = (struct matrix){ W_INT4, ROWS, COLS, GROUP, weight, scale, NULL };
        pool_begin(p);
        for (int i = 0; i < PRODUCT_ROUNDS; i++)
            best = fmin(best, timed_run(p, multiply, &j));
        pool_end(p);
    }
    free(weight);
    free(scale);
    free(x);
    free(j.packed);
    free(j.y);
    return (double)ROWS * COLS * TOKENS / best * 1e-9;
}

struct drive {
    struct source *source;              /* [shards] */
    int shards;
    struct stream *stream;
    struct slab *slab;
    uint64_t random;
};

/* A place for the next read: any aligned one of any shard, large shards more often. */
static void next_read(struct drive *d, struct read *r)
{
    uint64_t all = 0, at;
    int shard = 0;

    for (int i = 0; i < d->shards; i++)
        all += d->source[i].bytes;
    d->random = d->random * 6364136223846793005u + 1442695040888963407u;
    at = (d->random >> 16) % all;
    while (at >= d->source[shard].bytes)
        at -= d->source[shard++].bytes;
    at = at / READ_BYTES * READ_BYTES;
    r->from = &d->source[shard];
    r->offset = at;
    r->bytes = READ_BYTES;
    r->need = r->from->bytes - at < READ_BYTES ? (uint32_t)(r->from->bytes - at) : READ_BYTES;
}

static int run_reads(struct drive *d, double *gbps, struct err *e)
{
    struct read read[DRIVE_SLOTS] = { 0 };
    double start = clock_now(), bytes = 0;
    int begun = 0, rc = 0;

    for (; begun < DRIVE_SLOTS; begun++) {
        read[begun].into = slab_slot(d->slab, begun);
        next_read(d, &read[begun]);
        stream_submit(d->stream, &read[begun]);
    }
    for (struct read *r; (r = stream_reap(d->stream, INFINITY));) {
        bytes += r->need;
        if (r->status && !rc)
            rc = fail(e, r->status, "%s: reading at %ju: %s", r->from->path,
                      (uintmax_t)r->offset, strerror(-r->status));
        if (rc || begun >= DRIVE_MOST || clock_now() - start >= drive_seconds)
            continue;
        begun++;
        next_read(d, r);
        stream_submit(d->stream, r);
    }
    *gbps = bytes / (clock_now() - start) * 1e-9;
    return rc;
}

int measure_drive(struct drive_speed *out, const struct checkpoint *c, struct log *l,
                  struct err *e)
{
    struct stream_config sc = { .log = l };
    struct slab_config mc = { READ_BYTES, DRIVE_SLOTS, SLAB_ANY, l };
    struct drive d = { .random = 1 };
    int rc = 0;

    *out = (struct drive_speed){ 0, true };
    d.source = calloc((size_t)checkpoint_shards(c), sizeof(*d.source));
    if (!d.source)
        return fail(e, -ENOMEM, "out of memory");
    while (!rc && d.shards < checkpoint_shards(c)) {
        rc = source_open(&d.source[d.shards], checkpoint_path(c, d.shards), false, e);
        out->direct &= rc || d.source[d.shards].direct;
        d.shards += !rc;
    }
    if (!rc)
        rc = slab_open(&d.slab, &mc, e);
    if (!rc)
        rc = slab_touch(d.slab, 0, e);
    if (!rc)
        rc = stream_open(&d.stream, &sc, e);
    if (!rc)
        rc = run_reads(&d, &out->gbps, e);
    stream_close(d.stream, INFINITY);
    slab_close(d.slab);
    while (d.shards)
        source_close(&d.source[--d.shards]);
    free(d.source);
    return rc;
}
