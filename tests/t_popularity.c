#include "config.h"

#include "storage/popularity.h"
#include "tests/tap.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>
#include <xxhash.h>

/* The file of statistics: what is saved comes back, and nothing else is ever believed. */

enum { LAYERS = 2, EXPERTS = 4, BYTES = 24 + LAYERS * EXPERTS * 8 + 8 };

static const uint64_t fingerprint = 0x1234567890abcdef;
static const char dir[] = "t_popularity.tmp", name[] = "popularity-1234567890abcdef";

static void at(char out[256], const char *file)
{
    snprintf(out, 256, "%s/%s", dir, file);
}

/* Files in the directory; all are removed where `clean`. */
static int files(bool clean)
{
    DIR *d = opendir(dir);
    struct dirent *entry;
    int n = 0;

    while (d && (entry = readdir(d))) {
        char path[512];

        if (!strcmp(entry->d_name, ".") || !strcmp(entry->d_name, ".."))
            continue;
        n++;
        snprintf(path, sizeof(path), "%s/%s", dir, entry->d_name);
        if (clean)
            unlink(path);
    }
    if (d)
        closedir(d);
    return n;
}

static void put(const char *file, const uint8_t *bytes, size_t n)
{
    char path[256];
    FILE *f;

    at(path, file);
    f = fopen(path, "wb");
    if (!f || (n && fwrite(bytes, n, 1, f) != 1))
        printf("Bail out! cannot write %s\n", path);
    if (f)
        fclose(f);
}

static void fill(struct popularity *p, int tokens)
{
    static const uint16_t pick[] = { 2, 0 };

    popularity_open(p, LAYERS, EXPERTS, fingerprint, NULL);
    for (int i = 0; i < tokens; i++)
        popularity_note(p, i % LAYERS, pick, 1 + i % 2);
}

static bool empty(const struct popularity *p)
{
    for (int i = 0; i < LAYERS * EXPERTS; i++)
        if (p->use[i].recent != 0 || p->use[i].lasting != 0)
            return false;
    return true;
}

static bool same(const struct popularity *a, const struct popularity *b)
{
    for (int i = 0; i < LAYERS * EXPERTS; i++) {
        int l = i / EXPERTS, k = i % EXPERTS;

        if (fabsf(policy_score(&a->layer[l], k) - policy_score(&b->layer[l], k)) > 1e-6f)
            return false;
    }
    return true;
}

static void round_trip(struct log *l)
{
    struct popularity p, q;

    fill(&p, 1001);
    fill(&q, 0);
    ok(!popularity_load(&q, dir, l) && !l->notices, "no file, no warning");
    ok(!popularity_save(&p, dir, l) && files(false) == 1, "saved, nothing left beside it");
    ok(popularity_load(&q, dir, l) && same(&p, &q), "loaded, the same scores");
    ok(!popularity_save(&p, dir, l) && popularity_load(&q, dir, l), "saved over the old one");
    put(".popularity-1234567890abcdef.999999999", NULL, 0);
    ok(popularity_load(&q, dir, l) && files(false) == 1, "what a dead process left is removed");
    popularity_close(&p);
    popularity_close(&q);
}

static void damage(void)
{
    struct popularity p, q;
    uint8_t good[BYTES], bad[BYTES + 1];
    int believed = 0;

    fill(&p, 1001);
    fill(&q, 0);
    ok(popularity_bytes(LAYERS, EXPERTS) == BYTES, "%d bytes", BYTES);
    popularity_write(&p, good);
    memcpy(bad, good, BYTES);
    bad[BYTES] = 0;
    for (size_t n = 0; n <= BYTES + 1; n++)
        if (n != BYTES)
            believed += popularity_read(&q, bad, n, NULL) != -EBADMSG;
    ok(!believed && empty(&q), "every length but the right one is refused");
    for (int bit = 0; bit < BYTES * 8; bit++) {
        memcpy(bad, good, BYTES);
        bad[bit / 8] ^= (uint8_t)(1 << bit % 8);
        believed += popularity_read(&q, bad, BYTES, NULL) != -EBADMSG;
    }
    ok(!believed && empty(&q), "every flipped bit is noticed");
    for (int fillby = 0; fillby < 256; fillby += 255) {
        memset(bad, fillby, BYTES);
        believed += popularity_read(&q, bad, BYTES, NULL) != -EBADMSG;
    }
    ok(!believed, "all zero, all ones");
    popularity_close(&p);
    popularity_close(&q);
}

/* Files with a right checksum that no run of this program wrote. */
static void implausible(void)
{
    static const float value[] = { NAN, INFINITY, -1, 1e9f, -0.0f };
    struct popularity p, q;
    uint8_t bytes[BYTES];
    struct err e;
    int believed = 0;

    fill(&p, 50);
    fill(&q, 0);
    for (int i = 0; i < 5; i++)
        for (int k = 0; k < LAYERS * EXPERTS * 2; k++) {
            uint64_t sum;

            popularity_write(&p, bytes);
            memcpy(bytes + 24 + 4 * k, &value[i], 4);
            sum = XXH3_64bits(bytes, BYTES - 8);
            memcpy(bytes + BYTES - 8, &sum, 8);
            if (popularity_read(&q, bytes, BYTES, &e) != -EBADMSG)
                believed += i < 4;
        }
    ok(!believed, "NaN, infinite, negative and huge counts are refused: %s", e.text);
    popularity_write(&p, bytes);
    q.fingerprint++;
    ok(popularity_read(&q, bytes, BYTES, &e) == -EBADMSG, "of another model: %s", e.text);
    popularity_close(&p);
    popularity_close(&q);
}

static void setting_aside(struct log *l)
{
    struct popularity q;
    uint8_t junk[300] = { 1 };
    char path[256];

    fill(&q, 0);
    files(true);
    for (int i = 1; i <= 5; i++) {
        int before = l->notices;

        put(name, junk, sizeof(junk));
        ok(!popularity_load(&q, dir, l) && empty(&q) && l->notices == before + 1 &&
           files(false) == (i < 3 ? i : 3), "%s", l->notice[before]);
    }
    files(true);
    at(path, name);
    ok(!mkdir(path, 0700) && !popularity_load(&q, dir, l), "a directory in its place");
    at(path, "popularity-1234567890abcdef.corrupt-1");
    rmdir(path);
    at(path, name);
    ok(!symlink("/dev/zero", path) && !popularity_load(&q, dir, l), "an endless device");
    files(true);
    popularity_close(&q);
}

static void no_room(struct log *l)
{
    struct rlimit before, none = { 20, 20 };
    struct popularity p, q;
    int notices;

    fill(&p, 100);
    fill(&q, 0);
    ok(!popularity_save(&p, dir, l), "an old file");
    notices = l->notices;
    getrlimit(RLIMIT_FSIZE, &before);
    none.rlim_max = before.rlim_max;
    signal(SIGXFSZ, SIG_IGN);
    setrlimit(RLIMIT_FSIZE, &none);
    ok(popularity_save(&p, dir, l) == -EFBIG && popularity_save(&p, dir, l) == -EFBIG,
       "no room: an error");
    setrlimit(RLIMIT_FSIZE, &before);
    ok(l->notices == notices + 1 && files(false) == 1, "one warning, no half file");
    ok(popularity_load(&q, dir, l) && same(&p, &q), "the old file is whole");
    ok(popularity_save(&p, "t_popularity.none", l) == -ENOENT, "no directory");
    popularity_close(&p);
    popularity_close(&q);
}

/* A child saves again and again; whenever it is killed, the file is one that it saved. */
static void killed(struct log *l)
{
    int whole = 0;

    for (int i = 0; i < 60; i++) {
        struct popularity q;
        pid_t child = fork();

        if (!child) {
            struct popularity p;

            fill(&p, 10 + i);
            for (;;)
                popularity_save(&p, dir, l);
        }
        usleep((useconds_t)(500 + i * 211 % 9000));
        kill(child, SIGKILL);
        waitpid(child, NULL, 0);
        fill(&q, 0);
        whole += popularity_load(&q, dir, l) && !empty(&q);
        popularity_close(&q);
    }
    ok(whole == 60, "60 kills in the middle of saving: a whole file each time (%d)", whole);
    ok(files(false) == 1, "and no litter");
}

int main(void)
{
    struct log l = { .level = LOG_QUIET };

    mkdir(dir, 0700);
    files(true);
    round_trip(&l);
    damage();
    implausible();
    setting_aside(&l);
    no_room(&l);
    killed(&l);
    files(true);
    ok(!rmdir(dir), "nothing else was written");
    return done();
}
