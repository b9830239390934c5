/* Row J04 of the fault catalogue: memory that is refused at the k-th request, once or from
 * then on, from opening a model to its answer.  Each time the caller hears "out of memory",
 * nothing is leaked, and the next run gives the same answer.  This program is its own malloc
 * and mmap; under a sanitizer, which is that already, it has nothing to say. */
#include "src/engine.h"
#include "src/generate.h"
#include "src/options.h"
#include "tests/files.h"
#include "tests/tap.h"

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

enum { ANSWER = 6, EVERY = 60, SPREAD = 120, SHOWN = 10 };

static atomic_long asked, live, fail_from = -1, fail_to = -1;

#if OWN_MALLOC

void *__libc_malloc(size_t n);
void *__libc_calloc(size_t n, size_t each);
void *__libc_realloc(void *p, size_t n);
void *__libc_memalign(size_t align, size_t n);
void __libc_free(void *p);

static bool refuse(void)
{
    long k = atomic_fetch_add(&asked, 1);

    return k >= fail_from && k < fail_to;
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
    return count(refuse() ? NULL : __libc_malloc(n));
}

void *calloc(size_t n, size_t each)
{
    return count(refuse() ? NULL : __libc_calloc(n, each));
}

void *realloc(void *p, size_t n)
{
    void *q = refuse() ? NULL : __libc_realloc(p, n);

    if (!q)
        errno = ENOMEM;
    else if (!p)
        atomic_fetch_add(&live, 1);
    return q;
}

void *aligned_alloc(size_t align, size_t n)
{
    return count(refuse() ? NULL : __libc_memalign(align, n));
}

int posix_memalign(void **out, size_t align, size_t n)
{
    void *p = count(refuse() ? NULL : __libc_memalign(align, n));

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
    if (refuse()) {
        errno = ENOMEM;
        return MAP_FAILED;
    }
    return (void *)syscall(SYS_mmap, at, n, protection, flags, fd, offset);
}

#endif

/* A model's answer, from the directory on; the ids go to id. */
static int answer(const char *dir, int64_t slots_bytes, int32_t id[ANSWER], struct err *e)
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
                          .ram_bytes = SIZE_AUTO, .ram_experts_bytes = slots_bytes,
                          .io = "auto", .device = "cpu", .guess = true,
                          .log = { .level = LOG_QUIET } };
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
static bool survives(const char *dir, int64_t slots_bytes, long k, bool for_good,
                     const int32_t *want, long most)
{
    int32_t id[ANSWER];
    struct err e = { "" };
    int rc;

    asked = 0;
    fail_from = k;
    fail_to = for_good ? 1L << 60 : k + 1;
    rc = answer(dir, slots_bytes, id, &e);
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

static void torture(const char *what, int64_t slots_bytes)
{
    char *dir = source_path("tests/data/nano-w4a16-1");
    int32_t want[ANSWER], id[ANSWER];
    struct err e = { "" };
    long n, most, tried = 0, bad = 0;

    ok(!answer(dir, slots_bytes, want, &e), "%s: an answer %s", what, e.text);
    asked = 0;
    answer(dir, slots_bytes, id, &e);
    n = asked;
    most = live;
    for (long k = 0; k < n; k += k < EVERY ? 1 : 1 + (n - EVERY) / SPREAD) {
        bad += bad < SHOWN && !survives(dir, slots_bytes, k, tried % 2, want, most);
        tried++;
    }
    ok(!bad, "%s: %ld of %ld requests for memory refused, one after another", what, tried, n);
    ok(!answer(dir, slots_bytes, id, &e) && !memcmp(id, want, sizeof(id)),
       "%s: the same answer afterwards", what);
    free(dir);
}

int main(void)
{
    if (!OWN_MALLOC) {
        ok(1, "memory refused at each request # SKIP the sanitizer is the allocator");
        return done();
    }
    torture("experts in RAM", SIZE_AUTO);
    torture("experts in slots", 0);
    return done();
}
