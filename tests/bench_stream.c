#include "config.h"

#include "storage/extents.h"
#include "storage/slab.h"
#include "storage/stream.h"

#include <errno.h>
#include <fcntl.h>
#include <liburing.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <unistd.h>

/* How near storage/stream comes to a bare io_uring loop of the same reads: whole experts at
 * random places, in pairs of runs that take turns to go first, so that a drive that changes
 * its speed changes it for both.  Writes the file it reads where there is none.
 *
 *     bench_stream FILE [PAIRS [READS [DEPTH]]] */

enum { EXPERT = 5308416, EXPERTS = 800, SLOTS = 24 };

struct run {
    double gb_per_s, cpu_s_per_gb;
};

struct bench {
    const char *path;
    int pairs, reads, depth;
    struct slab *slab;
    uint64_t *order;            /* [reads] offsets */
    struct log log;
};

static double cpu_seconds(void)
{
    struct rusage r;

    getrusage(RUSAGE_SELF, &r);
    return (double)(r.ru_utime.tv_sec + r.ru_stime.tv_sec) +
           (double)(r.ru_utime.tv_usec + r.ru_stime.tv_usec) * 1e-6;
}

static struct run measured(const struct bench *b, double begun, double cpu)
{
    double gb = (double)b->reads * EXPERT / 1e9;

    return (struct run){ gb / (clock_now() - begun), (cpu_seconds() - cpu) / gb };
}

/* Nothing but the ring: no retries, no priorities, fixed file and fixed buffers. */
static struct run bare_loop(const struct bench *b)
{
    struct iovec region[256];
    struct io_uring ring;
    struct run result;
    int fd = open(b->path, O_RDONLY | O_DIRECT), begun = 0, done = 0;
    int slots[SLOTS], idle = SLOTS;
    double t, cpu;

    if (fd < 0 || io_uring_queue_init((unsigned)b->depth, &ring,
                                      IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_DEFER_TASKRUN))
        exit(1);
    for (int i = 0; i < slab_chunks(b->slab); i++)
        region[i] = (struct iovec){ slab_chunk(b->slab, i).base, slab_chunk(b->slab, i).bytes };
    if (io_uring_register_files(&ring, &fd, 1) ||
        io_uring_register_buffers(&ring, region, (unsigned)slab_chunks(b->slab)))
        exit(1);
    for (int i = 0; i < SLOTS; i++)
        slots[i] = i;
    t = clock_now();
    cpu = cpu_seconds();
    while (done < b->reads) {
        struct io_uring_cqe *cqe;
        unsigned head, n = 0;

        for (; begun < b->reads && begun - done < b->depth; begun++) {
            struct io_uring_sqe *q = io_uring_get_sqe(&ring);
            int slot = slots[--idle];

            io_uring_prep_read_fixed(q, 0, slab_slot(b->slab, slot), EXPERT, b->order[begun], 0);
            q->flags |= IOSQE_FIXED_FILE;
            q->user_data = (uint64_t)slot;
        }
        io_uring_submit_and_wait(&ring, 1);
        io_uring_for_each_cqe(&ring, head, cqe) {
            if (cqe->res != EXPERT)
                exit(1);
            slots[idle++] = (int)cqe->user_data;
            n++;
        }
        io_uring_cq_advance(&ring, n);
        done += (int)n;
    }
    result = measured(b, t, cpu);
    close(fd);
    io_uring_queue_exit(&ring);
    return result;
}

static struct run through_stream(struct bench *b, enum stream_backend backend)
{
    struct stream_config c = { .backend = backend, .depth = b->depth, .log = &b->log };
    struct read read[SLOTS];
    struct source from;
    struct stream *s = NULL;
    struct run result;
    struct err e;
    int begun = 0, done = 0;
    double t, cpu;

    if (source_open(&from, b->path, false, &e) || stream_open(&s, &c, &e)) {
        fprintf(stderr, "%s\n", e.text);
        exit(1);
    }
    for (int i = 0; i < slab_chunks(b->slab); i++)
        stream_region(s, slab_chunk(b->slab, i).base, slab_chunk(b->slab, i).bytes);
    t = clock_now();
    cpu = cpu_seconds();
    while (done < b->reads) {
        struct read *r = begun < SLOTS ? &read[begun] : stream_reap(s, INFINITY);

        if (begun >= SLOTS) {
            done++;
            if (r->status)
                exit(1);
        }
        if (begun >= b->reads)
            continue;
        *r = (struct read){ .from = &from, .offset = b->order[begun], .bytes = EXPERT,
                            .need = EXPERT, .into = slab_slot(b->slab, (int)(r - read)) };
        stream_submit(s, r);
        begun++;
    }
    result = measured(b, t, cpu);
    stream_close(s, 10);
    source_close(&from);
    return result;
}

static void make_file(const char *path)
{
    uint64_t *block = malloc(EXPERT), x = 1;
    int fd = open(path, O_WRONLY | O_CREAT | O_EXCL, 0600);

    for (int i = 0; fd >= 0 && i < EXPERTS; i++) {
        for (int k = 0; k < EXPERT / 8; k++)
            block[k] = x = x * 6364136223846793005u + 1442695040888963407u;
        if (write(fd, block, EXPERT) != EXPERT)
            exit(1);
    }
    if (fd >= 0) {
        fsync(fd);
        close(fd);
    }
    free(block);
}

static int upwards(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

static double median(double *v, int n)
{
    qsort(v, (size_t)n, sizeof(*v), upwards);
    return (v[(n - 1) / 2] + v[n / 2]) / 2;
}

int main(int argc, char **argv)
{
    struct bench b = { .pairs = 8, .reads = 192, .depth = STREAM_DEPTH, .log = { 0 } };
    struct slab_config sc = { EXPERT, SLOTS, SLAB_ANY, &b.log };
    double ratio[100], ours[100], bare[100], cpu[100], bare_cpu[100], threads[100];
    struct err e;

    if (argc < 2)
        return fprintf(stderr, "usage: bench_stream FILE [PAIRS [READS [DEPTH]]]\n"), 64;
    b.path = argv[1];
    if (argc > 2)
        b.pairs = atoi(argv[2]);
    if (argc > 3)
        b.reads = atoi(argv[3]);
    if (argc > 4)
        b.depth = atoi(argv[4]);
    if (b.pairs < 1 || b.pairs > 100 || b.reads < SLOTS || b.depth < 1 || b.depth > SLOTS)
        return 64;
    make_file(b.path);
    if (slab_open(&b.slab, &sc, &e) || slab_touch(b.slab, 0, &e))
        return fprintf(stderr, "%s\n", e.text), 1;
    b.order = malloc((size_t)b.reads * sizeof(*b.order));
    for (int i = 0; i < b.pairs; i++) {
        struct run x, y;

        for (int k = 0; k < b.reads; k++)
            b.order[k] = (uint64_t)(random() % EXPERTS) * EXPERT;
        if (i % 2) {
            x = bare_loop(&b);
            y = through_stream(&b, STREAM_URING);
        } else {
            y = through_stream(&b, STREAM_URING);
            x = bare_loop(&b);
        }
        threads[i] = through_stream(&b, STREAM_PREADV).gb_per_s;
        ratio[i] = y.gb_per_s / x.gb_per_s;
        ours[i] = y.gb_per_s;
        bare[i] = x.gb_per_s;
        cpu[i] = y.cpu_s_per_gb;
        bare_cpu[i] = x.cpu_s_per_gb;
        printf("pair %d: stream %.2f GB/s, bare loop %.2f GB/s\n", i, ours[i], bare[i]);
    }
    printf("stream %.2f GB/s, %.4f CPU s/GB; bare loop %.2f GB/s, %.4f CPU s/GB; threads %.2f "
           "GB/s\nmedian of paired ratios %.3f (aim 0.95); CPU aim 0.02\n",
           median(ours, b.pairs), median(cpu, b.pairs), median(bare, b.pairs),
           median(bare_cpu, b.pairs), median(threads, b.pairs), median(ratio, b.pairs));
    free(b.order);
    slab_close(b.slab);
    return 0;
}
