#include "config.h"

#include "storage/extents.h"
#include "storage/slab.h"
#include "storage/stream.h"
#include "tests/bench.h"

#include <errno.h>
#include <fcntl.h>
#include <liburing.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

/* How near storage/stream comes to a bare io_uring loop of the same reads: whole experts at
 * random places, in pairs of runs that take turns to go first, so that a drive that changes
 * its speed changes it for both.  Writes the file it reads where there is none.
 *
 *     bench_stream [--json FILE] FILE [PAIRS [READS [DEPTH]]] */

enum { EXPERT = 5308416, EXPERTS = 800, SLOTS = 24, PAIRS_MAX = 100 };

struct run {
    double gb_per_s, cpu_s_per_gb;
};

struct reads {
    const char *path;
    int pairs, reads, depth;
    int experts;                /* that fit into the file, at most EXPERTS */
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

static struct run measured(const struct reads *b, double begun, double cpu)
{
    double gb = (double)b->reads * EXPERT / 1e9;

    return (struct run){ gb / (clock_now() - begun), (cpu_seconds() - cpu) / gb };
}

/* Nothing but the ring: no retries, no priorities, fixed file and fixed buffers. */
static struct run bare_loop(const struct reads *b)
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

static struct run through_stream(struct reads *b, enum stream_backend backend)
{
    struct stream_config c = { .backend = backend, .depth = b->depth, .log = &b->log };
    struct read read[SLOTS];
    struct source from;
    struct stream *s = NULL;
    struct run result;
    struct err e;
    int begun = 0, done = 0;
    double t, cpu;

    if (source_open(&from, b->path, false, &e) || stream_open(&s, &c, &e))
        bench_die(&e);
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

static int whole_experts(const char *path)
{
    struct stat st;

    if (stat(path, &st))
        exit((perror(path), 1));
    if (st.st_size < (off_t)SLOTS * EXPERT)
        exit((fprintf(stderr, "%s: smaller than %d experts\n", path, SLOTS), 1));
    return st.st_size / EXPERT < EXPERTS ? (int)(st.st_size / EXPERT) : EXPERTS;
}

/* Room for the samples of every pair; a row has their medians. */
struct samples {
    double ratio[PAIRS_MAX], ours[PAIRS_MAX], bare[PAIRS_MAX], threads[PAIRS_MAX];
    double cpu[PAIRS_MAX], bare_cpu[PAIRS_MAX], threads_ratio[PAIRS_MAX];
};

static void take_pair(struct reads *b, struct samples *s, int i)
{
    struct run ours, bare;

    for (int k = 0; k < b->reads; k++)
        b->order[k] = (uint64_t)(random() % b->experts) * EXPERT;
    if (i % 2)
        bare = bare_loop(b);
    ours = through_stream(b, STREAM_URING);
    if (i % 2 == 0)
        bare = bare_loop(b);
    s->threads[i] = through_stream(b, STREAM_PREADV).gb_per_s;
    s->threads_ratio[i] = s->threads[i] / bare.gb_per_s;
    s->ratio[i] = ours.gb_per_s / bare.gb_per_s;
    s->ours[i] = ours.gb_per_s;
    s->bare[i] = bare.gb_per_s;
    s->cpu[i] = ours.cpu_s_per_gb;
    s->bare_cpu[i] = bare.cpu_s_per_gb;
}

static void print_rows(struct bench *b, struct samples *s, int n)
{
    static const double most = 0.02;
    double bare = bench_median(s->bare, n), cpu = bench_median(s->cpu, n);
    double bare_cpu = bench_median(s->bare_cpu, n);

    bench_row(b, "stream of experts, against a bare io_uring loop", bench_median(s->ours, n),
              "GB/s", bare, bench_median(s->ratio, n), 0.95);
    bench_row(b, "stream of experts, by threads", bench_median(s->threads, n), "GB/s", bare,
              bench_median(s->threads_ratio, n), 0);
    bench_row(b, "CPU time of the stream", cpu, "s/GB", most, cpu / most, -1);
    bench_row(b, "CPU time of the bare loop", bare_cpu, "s/GB", most, bare_cpu / most, 0);
}

int main(int argc, char **argv)
{
    struct reads r = { .pairs = 8, .reads = 192, .depth = STREAM_DEPTH, .log = { 0 } };
    struct slab_config sc = { EXPERT, SLOTS, SLAB_ANY, &r.log };
    struct bench *b = bench_open(&argc, &argv);
    struct samples s;
    struct err e;

    if (argc > 2)
        r.pairs = atoi(argv[2]);
    if (argc > 3)
        r.reads = atoi(argv[3]);
    if (argc > 4)
        r.depth = atoi(argv[4]);
    if (argc < 2 || r.pairs < 1 || r.pairs > PAIRS_MAX || r.reads < SLOTS || r.depth < 1 ||
        r.depth > SLOTS)
        return fputs("usage: bench_stream [--json FILE] FILE [PAIRS [READS [DEPTH]]]\n",
                     stderr), 64;
    r.path = argv[1];
    make_file(r.path);
    r.experts = whole_experts(r.path);
    r.order = malloc((size_t)r.reads * sizeof(*r.order));
    if (slab_open(&r.slab, &sc, &e) || slab_touch(r.slab, 0, &e))
        bench_die(&e);
    for (int i = 0; i < r.pairs; i++)
        take_pair(&r, &s, i);
    print_rows(b, &s, r.pairs);
    free(r.order);
    slab_close(r.slab);
    bench_close(b);
    return 0;
}
