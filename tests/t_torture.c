/* Rows J04 and I06 of the fault catalogue: memory that is refused at the k-th request, once or
 * from then on, from opening a model to its answer, on the CPU and over gpu_ref.c.  Each time the
 * caller hears "out of memory", nothing is leaked, and the next run gives the same answer.  This
 * program is its own malloc and mmap; under a sanitizer, which is that already, it has nothing to
 * say. */
#include "config.h"

#include "src/engine.h"
#include "src/generate.h"
#include "src/options.h"
#include "tests/files.h"
#include "tests/tap.h"

#include <dlfcn.h>
#include <errno.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/syscall.h>

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define OWN_MALLOC 0
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define OWN_MALLOC 0
#endif
#endif
#ifndef OWN_MALLOC
#define OWN_MALLOC 1
#endif

enum { ANSWER = 6, EVERY = 60, SPREAD = 120, LAST = 300, SHOWN = 10 };

static atomic_long asked, live, fail_from = -1, fail_to = -1;

#if OWN_MALLOC

void *__libc_malloc(size_t n);
void *__libc_calloc(size_t n, size_t each);
void *__libc_realloc(void *p, size_t n);
void *__libc_memalign(size_t align, size_t n);
void __libc_free(void *p);

/* libnuma ends the process where it gets nothing, and no caller can help that. */
static bool is_numa(void *caller)
{
    Dl_info info;

    return dladdr(caller, &info) && strstr(info.dli_fname, "libnuma");
}

static bool refuse(void *caller)
{
    long k = atomic_fetch_add(&asked, 1);

    return k >= fail_from && k < fail_to && !is_numa(caller);
}

static void *count(void *p)
{
    if (p)
        atomic_fetch_add(&live, 1);
    else
        errno = ENOMEM;
    return p;
}

void *malloc(size_t n)
{
    return count(refuse(__builtin_return_address(0)) ? NULL : __libc_malloc(n));
}

void *calloc(size_t n, size_t each)
{
    return count(refuse(__builtin_return_address(0)) ? NULL : __libc_calloc(n, each));
}

void *realloc(void *p, size_t n)
{
    void *q = refuse(__builtin_return_address(0)) ? NULL : __libc_realloc(p, n);

    if (!q)
        errno = ENOMEM;
    else if (!p)
        atomic_fetch_add(&live, 1);
    return q;
}

void *aligned_alloc(size_t align, size_t n)
{
    return count(refuse(__builtin_return_address(0)) ? NULL : __libc_memalign(align, n));
}

int posix_memalign(void **out, size_t align, size_t n)
{
    void *p = count(refuse(__builtin_return_address(0)) ? NULL : __libc_memalign(align, n));

    if (!p)
        return ENOMEM;
    *out = p;
    return 0;
}

void free(void *p)
{
    if (p)
        atomic_fetch_sub(&live, 1);
    __libc_free(p);
}

void *mmap(void *at, size_t n, int protection, int flags, int fd, off_t offset)
{
    if (refuse(__builtin_return_address(0))) {
        errno = ENOMEM;
        return MAP_FAILED;
    }
    return (void *)syscall(SYS_mmap, at, n, protection, flags, fd, offset);
}

#endif

struct setting {
    const char *what, *device, *io;
    int64_t ram, vram;                  /* of experts, or SIZE_AUTO */
    int last;                           /* so many at the end are refused one by one */
};

/* A model's answer, from the directory on; the ids go to id. */
static int answer(const char *dir, const struct setting *how, int32_t id[ANSWER], struct err *e)
{
    static struct options o;
    struct engine *g = NULL;
    struct session *s = NULL;
    struct generation got = { 0 };
    struct ids prompt = { 0 };
    struct generate ask = { .max_tokens = ANSWER, .ignore_eos = true, .alternatives = 2,
                            .sampling = { .top_p = 1, .repetition_penalty = 1 } };
    int rc;

    o = (struct options){ .model_dir = dir, .isa = "ref", .kv_type = "q8", .threads = 2,
                          .ram_bytes = SIZE_AUTO, .ram_experts_bytes = how->ram,
                          .vram_experts_bytes = how->vram, .vram_reserve_bytes = SIZE_AUTO,
                          .context = 512, .io = how->io, .device = how->device, .guess = true,
                          .deterministic = true, .log = { .level = LOG_QUIET } };
    for (int i = 0; i < OPTION_GPUS; i++)
        o.vram_bytes[i] = SIZE_AUTO;
    rc = engine_open(&g, &o, e);
    if (!rc)
        rc = session_open(&s, g, e);
    if (!rc)
        rc = tokenizer_encode(engine_tokenizer(g), "Hello there", 11, NULL, SPANS_ALL, &prompt,
                              e);
    ask.prompt = prompt.id;
    ask.prompts = (int)prompt.n;
    if (!rc) {
        rc = generate(s, &ask, &got, e);
        if (!rc && got.ids.n == ANSWER)
            memcpy(id, got.ids.id, ANSWER * sizeof(*id));
        else if (!rc)
            rc = -ERANGE;
        generation_free(&got);
    }
    free(prompt.id);
    session_close(s);
    engine_close(g);
    return rc;
}

/* Requests k (or k and all later ones) are refused. */
static bool survives(const char *dir, const struct setting *how, long k, bool for_good,
                     const int32_t *want, long most)
{
    int32_t id[ANSWER];
    struct err e = { "" };
    int rc;

    asked = 0;
    fail_from = k;
    fail_to = for_good ? 1L << 60 : k + 1;
    rc = answer(dir, how, id, &e);
    fail_from = fail_to = -1;
    if (rc ? rc != -ENOMEM && rc != -EAGAIN : !!memcmp(id, want, sizeof(id))) {
        printf("# request %ld%s: %d %s\n", k, for_good ? " and all later" : "", rc, e.text);
        return false;
    }
    if (live > most) {
        printf("# request %ld%s: %ld pieces leaked\n", k, for_good ? " and all later" : "",
               (long)live - most);
        return false;
    }
    return true;
}

/* The first and the last requests one by one, and some of those between. */
static long step(long k, long n, const struct setting *how)
{
    return k < EVERY || k >= n - how->last ? 1 : 1 + (n - EVERY) / SPREAD;
}

static void torture(const struct setting *how)
{
    char *dir = source_path("tests/data/nano-w4a16-1");
    int32_t want[ANSWER], id[ANSWER];
    struct setting fallback = *how;
    struct err e = { "" };
    long n, most, tried = 0, bad = 0;

    ok(!answer(dir, how, want, &e), "%s: an answer %s", how->what, e.text);
    /* What the C library keeps of threads is there before it is counted. */
    fallback.io = "preadv";
    answer(dir, &fallback, id, &e);
    asked = 0;
    answer(dir, how, id, &e);
    n = asked;
    most = live;
    for (long k = 0; k < n; k += step(k, n, how)) {
        bad += bad < SHOWN && !survives(dir, how, k, tried % 2, want, most);
        tried++;
    }
    ok(!bad, "%s: %ld of %ld requests for memory refused, one after another", how->what, tried, n);
    ok(!answer(dir, how, id, &e) && !memcmp(id, want, sizeof(id)),
       "%s: the same answer afterwards", how->what);
    free(dir);
}

int main(void)
{
    if (!OWN_MALLOC) {
        ok(1, "memory refused at each request # SKIP the sanitizer is the allocator");
        return done();
    }
    torture(&(struct setting){ "experts in RAM", "cpu", "auto", SIZE_AUTO, 0, 0 });
    torture(&(struct setting){ "experts in slots", "cpu", "auto", 0, 0, 0 });
    if (gpu_is_reference())
        torture(&(struct setting){ "experts in VRAM", "ref", "auto", 0, 64 << 10, LAST });
    return done();
}
