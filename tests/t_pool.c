/* The pool: everybody runs once, nobody passes a barrier early, and neither too many
 * threads nor a pause between requests costs what it should not. */
#include "config.h"

#include "cpu/cores.h"
#include "cpu/pool.h"
#include "tests/tap.h"

#include <errno.h>
#include <immintrin.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

enum { MAX = 64, ROUNDS = 100000 };

struct trial {
    struct pool *pool;
    atomic_int runs[MAX];
    int cell[MAX][16];          /* [worker], a cache line each, plain on purpose */
    int rounds;
    atomic_int wrong;
};

static struct pool *open_pool(int threads, bool pin)
{
    struct pool_config c = {.threads = threads, .pin = pin};
    struct pool *p = NULL;
    struct err e = {""};

    if (pool_open(&p, &c, &e)) {
        printf("Bail out! %s\n", e.text);
        exit(1);
    }
    return p;
}

static void count_run(void *arg, int worker, int workers)
{
    struct trial *t = arg;

    if (worker < 0 || worker >= workers)
        t->wrong++;
    t->runs[worker]++;
    /* FTZ and DAZ. */
    if ((_mm_getcsr() & 0x8040) != 0x8040)
        t->wrong++;
}

/* In each round everybody writes its cell, and after the barrier reads the next one's. */
static void meet(void *arg, int worker, int workers)
{
    struct trial *t = arg;

    for (int i = 1; i <= t->rounds; i++) {
        t->cell[worker][0] = i;
        pool_barrier(t->pool, worker);
        if (t->cell[(worker + 1) % workers][0] != i)
            t->wrong++;
        pool_barrier(t->pool, worker);
    }
}

static void test_runs(int threads, bool pin)
{
    struct trial t = {.pool = open_pool(threads, pin)};
    unsigned before = _mm_getcsr();
    int n = pool_threads(t.pool), uneven = 0;

    for (int i = 0; i < 1000; i++) {
        if (i == 500)
            pool_begin(t.pool);
        pool_run(t.pool, count_run, &t);
        for (int w = 0; w < n; w++)
            uneven += t.runs[w] != i + 1;
    }
    pool_end(t.pool);
    ok(!uneven && !t.wrong, "every one of %d workers runs once, denormals flushed", n);
    ok(_mm_getcsr() == before, "the caller's MXCSR is back");
    pool_close(t.pool);
}

static void test_barrier(int threads, int rounds, double limit)
{
    struct trial t = {.pool = open_pool(threads, true), .rounds = rounds};
    double took = clock_now();

    pool_run(t.pool, meet, &t);
    took = clock_now() - took;
    ok(!t.wrong && t.cell[threads - 1][0] == rounds, "%d workers meet %d times", threads,
       2 * rounds);
    ok(took < limit, "in %.2f s, %.2f us a barrier", took, took / rounds / 2 * 1e6);
    pool_close(t.pool);
}

static void nothing(void *arg, int worker, int workers)
{
    (void)arg, (void)worker, (void)workers;
}

static double cpu_seconds(void)
{
    struct rusage u;

    getrusage(RUSAGE_SELF, &u);
    return (double)(u.ru_utime.tv_sec + u.ru_stime.tv_sec) +
           (double)(u.ru_utime.tv_usec + u.ru_stime.tv_usec) * 1e-6;
}

static void test_sleep(void)
{
    struct pool *p = open_pool(2, true);
    cpu_set_t before, inside, after;
    double busy;

    sched_getaffinity(0, sizeof(before), &before);
    pool_begin(p);
    pool_begin(p);
    pool_run(p, nothing, NULL);
    pool_end(p);
    sched_getaffinity(0, sizeof(inside), &inside);
    pool_end(p);
    sched_getaffinity(0, sizeof(after), &after);
    ok(CPU_COUNT(&inside) == 1 || pool_node(p, 0) < 0, "the caller is pinned inside");
    ok(CPU_EQUAL(&before, &after), "and free again outside");
    usleep(5000);
    busy = cpu_seconds();
    usleep(300000);
    busy = cpu_seconds() - busy;
    ok(busy < 0.01, "asleep between requests: %.4f s of CPU in 0.3 s", busy);
    /* A wait inside that outlasts every stage sleeps too. */
    pool_begin(p);
    usleep(20000);
    busy = cpu_seconds();
    usleep(300000);
    busy = cpu_seconds() - busy;
    pool_end(p);
    ok(busy < 0.01, "asleep in a long wait inside a token: %.4f s", busy);
    pool_close(p);
}

static void test_round_trip(void)
{
    struct pool *p = open_pool(2, true);
    double best = 1;

    pool_begin(p);
    for (int k = 0; k < 20; k++) {
        double t = clock_now();

        for (int i = 0; i < 1000; i++)
            pool_run(p, nothing, NULL);
        t = (clock_now() - t) / 1000;
        best = t < best ? t : best;
    }
    pool_end(p);
    ok(best < 1e-3, "pool_run with two workers: %.2f us", best * 1e6);
    pool_close(p);
}

/* In a child of its own, since a mask is inherited. */
static void test_one_cpu(void)
{
    pid_t pid;
    int status;

    fflush(stdout);
    pid = fork();
    if (!pid) {
        struct trial t = {.rounds = 2000};
        cpu_set_t one;
        int bad;

        sched_getaffinity(0, sizeof(one), &one);
        for (size_t i = 0, seen = 0; i < CORES_MAX; i++)
            if (CPU_ISSET(i, &one) && seen++)
                CPU_CLR(i, &one);
        sched_setaffinity(0, sizeof(one), &one);
        t.pool = open_pool(0, true);
        bad = pool_threads(t.pool) != 1;
        pool_close(t.pool);
        t.pool = open_pool(4, true);
        pool_run(t.pool, meet, &t);
        bad += t.wrong || pool_node(t.pool, 0) != -1;
        pool_close(t.pool);
        _exit(bad);
    }
    waitpid(pid, &status, 0);
    ok(WIFEXITED(status) && WEXITSTATUS(status) == 0, "one CPU: one worker, and four get on");
}

/* A user that may have no more threads; root may have any number, so become another. */
static void test_refused(void)
{
    pid_t pid;
    int status;

    fflush(stdout);
    pid = fork();
    if (!pid) {
        struct rlimit none = {1, 1};
        struct pool_config c = {.threads = 8};
        struct pool *p = NULL;
        struct err e = {""};

        if ((!geteuid() && setuid(65534)) || setrlimit(RLIMIT_NPROC, &none))
            _exit(77);
        _exit(pool_open(&p, &c, &e) != -EAGAIN || !strstr(e.text, "thread 2 of 8"));
    }
    waitpid(pid, &status, 0);
    if (WIFEXITED(status) && WEXITSTATUS(status) == 77)
        ok(true, "refused threads # SKIP cannot become another user");
    else
        ok(WIFEXITED(status) && WEXITSTATUS(status) == 0, "refused threads are -EAGAIN");
}

static void test_share(void)
{
    int bad = 0;

    for (size_t n = 0; n < 200; n++)
        for (int workers = 1; workers < 20; workers++) {
            size_t next = 0;

            for (int w = 0; w < workers; w++) {
                size_t from, to;

                pool_share(n, 8, w, workers, &from, &to);
                bad += from != next || to < from || (from % 8 && from != n) ||
                       to - from > (n / 8 / (size_t)workers + 1) * 8;
                next = to;
            }
            bad += next != n;
        }
    ok(!bad, "shares cover everything once, evenly, in whole grains");
}

static void test_parse(void)
{
    static const char mounts[] =
        "30 23 0:26 / /sys/fs/cgroup ro - tmpfs tmpfs ro\n"
        "36 30 0:28 / /sys/fs/cgroup/cpu,cpuacct rw shared:9 - cgroup cgroup rw,cpu,cpuacct\n"
        "37 30 0:29 /pod/a /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw,nsdelegate\n";
    char dir[256];
    cpu_set_t set;

    ok(cores_parse_list("0-3,8,10-11\n", &set) && CPU_COUNT(&set) == 7 && CPU_ISSET(11, &set),
       "a list of CPUs");
    ok(!cores_parse_list("", &set) && !cores_parse_list("3-1", &set) &&
           !cores_parse_list("1,", &set) && !cores_parse_list("99999", &set) &&
           !cores_parse_list("-1", &set) && !cores_parse_list("1 2", &set),
       "no lists");
    ok(cores_parse_quota("250000 100000\n") == 2500 && cores_parse_quota("50000 100000") == 500,
       "quotas");
    ok(!cores_parse_quota("max 100000\n") && !cores_parse_quota("-1\n 100000\n") &&
           !cores_parse_quota("") && !cores_parse_quota("1 0"),
       "no quotas");
    ok(cores_parse_cgroup("4:cpuset:/x\n3:cpu,cpuacct:/user.slice/u1\n", mounts, "cpu", dir,
                          sizeof(dir)) == 26 &&
           !strcmp(dir, "/sys/fs/cgroup/cpu,cpuacct/user.slice/u1"),
       "a group of version 1");
    ok(cores_parse_cgroup("0::/pod/a/b\n", mounts, "", dir, sizeof(dir)) == 22 &&
           !strcmp(dir, "/sys/fs/cgroup/unified/b"),
       "a group of version 2 below the root of its mount");
    ok(cores_parse_cgroup("0::/pod/ab\n", mounts, "", dir, sizeof(dir)) == 22 &&
           !strcmp(dir, "/sys/fs/cgroup/unified"),
       "a group outside of its mount");
    ok(!cores_parse_cgroup("4:cpuset:/x\n", mounts, "cpu", dir, sizeof(dir)) &&
           !cores_parse_cgroup("", "", "", dir, sizeof(dir)) &&
           !cores_parse_cgroup("0::/\n", "x", "", dir, sizeof(dir)),
       "no groups");
}

/* A file of the made-up /proc and /sys under root. */
static void put(const char *root, const char *path, const char *text)
{
    char name[512];
    FILE *f;

    snprintf(name, sizeof(name), "%s%s", root, path);
    for (char *s = name + strlen(root) + 1; (s = strchr(s, '/')); *s++ = '/') {
        *s = '\0';
        mkdir(name, 0700);
    }
    f = fopen(name, "w");
    if (!f || fputs(text, f) < 0 || fclose(f)) {
        printf("Bail out! %s\n", name);
        exit(1);
    }
}

static void test_find(void)
{
    static struct cores c, real;
    char root[] = "t_pool.XXXXXX", command[64], path[96], siblings[32];
    struct err e;

    if (!mkdtemp(root) || cores_find(&real, "", &e)) {
        ok(false, "a directory for the fixture");
        return;
    }
    put(root, "/proc/self/cgroup", "0::/a/b\n");
    put(root, "/proc/self/mountinfo", "31 23 0:28 / /cg rw - cgroup2 cgroup2 rw\n");
    put(root, "/cg/a/cpu.max", "150000 100000\n");
    put(root, "/cg/a/b/cpu.max", "max 100000\n");
    for (int i = 0; i < CORES_MAX; i++) {
        snprintf(path, sizeof(path),
                 "/sys/devices/system/cpu/cpu%d/topology/thread_siblings_list", i);
        snprintf(siblings, sizeof(siblings), "%d-%d\n", i & ~1, i | 1);
        put(root, path, siblings);
    }
    ok(!cores_find(&c, root, &e) && c.quota == 1500 && cores_threads(&c) == 1,
       "the quota of a parent group holds: %d", c.quota);
    ok(c.allowed == real.allowed && c.n <= c.allowed && c.n >= (c.allowed + 1) / 2,
       "%d cores of %d CPUs, siblings rest", c.n, c.allowed);
    snprintf(command, sizeof(command), "rm -r %s", root);
    ok(system(command) == 0, "the fixture is gone");
}

int main(void)
{
    struct pool_config many = {.threads = 100000};
    struct pool *p;
    struct err e;

    test_refused();
    test_one_cpu();
    test_share();
    test_parse();
    test_find();
    test_runs(0, true);
    test_runs(1, true);
    test_runs(3, false);
    test_barrier(2, ROUNDS / 2, 120);
    test_barrier(8, ROUNDS / 20, 120);
    test_sleep();
    test_round_trip();
    ok(pool_open(&p, &many, &e) == -EINVAL, "%s", e.text);
    pool_close(NULL);
    return done();
}
