/* Rows A01 to A04 and A19 to A27 of the fault catalogue and case L-06: directories of shards,
 * whole and broken, and which exit status each fault has. */
#include "storage/checkpoint.h"
#include "tests/files.h"
#include "tests/tap.h"

#include <errno.h>
#include <fcntl.h>

#define HEAD "{\"a\":{\"dtype\":\"U8\",\"shape\":[64],\"data_offsets\":[0,64]}}"
#define HEAD_B "{\"b\":{\"dtype\":\"U8\",\"shape\":[64],\"data_offsets\":[0,64]}}"

static const char INDEX[] = "model.safetensors.index.json";
static const char SINGLE[] = "model.safetensors";
static const char S1[] = "model-00001-of-00002.safetensors";
static const char S2[] = "model-00002-of-00002.safetensors";

static struct log quiet;
static struct err e;

static int open_dir(const char *dir)
{
    struct checkpoint *c = NULL;
    double began = cpu_seconds();
    int rc;

    quiet = (struct log){ .level = LOG_QUIET };
    e.text[0] = 0;
    rc = checkpoint_open(&c, dir, &quiet, &e);
    checkpoint_close(c);
    if (cpu_seconds() - began > 5) {
        snprintf(e.text, sizeof(e.text), "took longer than 5 s");
        return -ETIMEDOUT;
    }
    return rc;
}

/* The status of opening dir, whose refusal holds the words and is one line. */
static void expect(const char *dir, int status, const char *words, const char *what)
{
    int rc = open_dir(dir);

    ok(exit_status(rc) == status && (!rc || strstr(e.text, words)) && !strchr(e.text, '\n'),
       "%s: %d %s", what, exit_status(rc), rc ? e.text : "");
}

static void put_index(const char *dir, const char *map)
{
    char text[1024];

    snprintf(text, sizeof(text), "{\"metadata\":{\"total_size\":128},\"weight_map\":{%s}}", map);
    write_file(dir, INDEX, text, strlen(text));
}

/* Two shards and an index. */
static char *good_dir(void)
{
    char *dir = temp_dir();
    char data[64];

    memset(data, 7, sizeof(data));
    write_shard(dir, S1, HEAD, data, 64);
    write_shard(dir, S2, HEAD_B, data, 64);
    put_index(dir, "\"a\":\"model-00001-of-00002.safetensors\","
                   "\"b\":\"model-00002-of-00002.safetensors\"");
    return dir;
}

static void test_good(void)
{
    char *dir = good_dir(), into[64], path[4096], blob[4096];
    struct checkpoint *c = NULL;
    const struct tensor *t;
    char *text;
    size_t n;

    quiet = (struct log){ .level = LOG_QUIET };
    ok(!checkpoint_open(&c, dir, &quiet, &e) && !quiet.notices, "two shards open without a word");
    if (c) {
        t = checkpoint_find(c, "b");
        ok(t && t->shard == 1 && checkpoint_count(c) == 2 && checkpoint_shards(c) == 2, "find");
        ok(!checkpoint_find(c, "c") && !checkpoint_find(c, ""), "names that are not there");
        memset(into, 0, sizeof(into));
        ok(!checkpoint_read(c, t, into, &e) && into[0] == 7 && into[63] == 7, "read");
        into[0] = 0;
        ok(!checkpoint_read_part(c, t, 10, 1, into, &e) && into[0] == 7, "read a part");
        ok(fcntl(checkpoint_fd(c, 0), F_GETFD) & FD_CLOEXEC, "closed on exec");
        ok(strstr(checkpoint_path(c, 1), S2) && !strcmp(checkpoint_dir(c), dir), "paths");
        join_path(path, dir, S2);
        ok(!truncate(path, 80) && checkpoint_read(c, t, into, &e) == -EBADMSG,
           "a shard that shrinks while open: %s", e.text);
    }
    checkpoint_close(c);
    remove_dir(dir);

    dir = good_dir();
    join_path(path, dir, S1);
    join_path(blob, dir, "blob");
    ok(!rename(path, blob) && !symlink("blob", path) && !open_dir(dir),
       "a symbolic link to a blob store (A20)");
    ok(!checkpoint_file(dir, INDEX, 4096, &text, &n, &e) && n == strlen(text), "a small file");
    free(text);
    ok(checkpoint_file(dir, INDEX, 10, &text, &n, &e) == -EBADMSG, "over its limit: %s", e.text);
    ok(checkpoint_file(dir, "none", 10, &text, &n, &e) == -ENOENT, "absent: %s", e.text);
    ok(checkpoint_file(dir, ".", 10, &text, &n, &e) == -ENOENT, "a directory: %s", e.text);
    remove_dir(dir);
}

/* A single file whose first n bytes are given. */
static void single(const void *data, size_t n, int status, const char *words, const char *what)
{
    char *dir = temp_dir();

    write_file(dir, SINGLE, data, n);
    expect(dir, status, words, what);
    remove_dir(dir);
}

static void test_header_length(void)
{
    static const uint64_t lengths[] = { 65, 1u << 31, UINT32_MAX, (uint64_t)1 << 63, UINT64_MAX };
    unsigned char file[8 + 64] = { 0 };
    char what[64], path[4096], *dir;
    size_t i, k;

    for (i = 0; i < 8; i++) {
        snprintf(what, sizeof(what), "a file of %zu bytes (A01)", i);
        single("\2\0\0\0\0\0\0\0", i, 65, "header too small", what);
    }
    for (i = 0; i < 3; i++) {
        memcpy(file, (const unsigned char[8]){ (unsigned char)i }, 8);
        memcpy(file + 8, "{}", 2);
        single(file, 10, 65, i == 2 ? "no tensors" : "does not begin", "tiny header (A02)");
    }
    for (i = 0; i < sizeof(lengths) / sizeof(lengths[0]); i++) {
        for (k = 0; k < 8; k++)
            file[k] = (unsigned char)(lengths[i] >> 8 * k);
        snprintf(what, sizeof(what), "header length %ju (A03)", (uintmax_t)lengths[i]);
        single(file, sizeof(file), 65, "claims", what);
    }
    dir = temp_dir();
    memcpy(file, "\x01\xe1\xf5\x05\0\0\0\0{", 9);
    write_file(dir, SINGLE, file, 9);
    join_path(path, dir, SINGLE);
    ok(!truncate(path, 200000000), "a sparse file");
    expect(dir, 65, "too large", "header of 100,000,001 bytes (A04)");
    remove_dir(dir);
}

static void test_length(void)
{
    char *dir, path[4096], what[64];
    size_t n = 8 + strlen(HEAD_B), i;
    size_t cuts[] = { n + 63, n + 32, n, n - 1, 8, 7, 5, 0, n + 65 };

    for (i = 0; i < sizeof(cuts) / sizeof(cuts[0]); i++) {
        dir = good_dir();
        join_path(path, dir, S2);
        snprintf(what, sizeof(what), "a shard of %zu bytes instead of %zu (A19)", cuts[i], n + 64);
        if (!truncate(path, (off_t)cuts[i]))
            expect(dir, 65, S2, what);
        remove_dir(dir);
    }
}

static void test_kinds(void)
{
    char *dir = good_dir(), path[4096];

    join_path(path, dir, S2);
    unlink(path);
    expect(dir, 66, S2, "shard missing (A20)");
    ok(!symlink("nowhere", path), "a link to nothing");
    expect(dir, 66, S2, "dangling link");
    unlink(path);
    ok(!mkdir(path, 0700), "a directory");
    expect(dir, 66, "not a regular file", "directory in a shard's place");
    rmdir(path);
    ok(!mkfifo(path, 0600), "a FIFO");
    expect(dir, 66, "not a regular file", "FIFO in a shard's place");
    unlink(path);
    ok(!symlink("/dev/zero", path), "a device");
    expect(dir, 66, "not a regular file", "/dev/zero in a shard's place");
    unlink(path);
    write_shard(dir, S2, HEAD_B, NULL, 64);
    if (geteuid() == 0) {
        ok(1, "unreadable shard # SKIP root reads everything");
    } else {
        chmod(path, 0);
        expect(dir, 77, S2, "unreadable shard");
    }
    remove_dir(dir);
    expect("/nonexistent/laguna", 66, "/nonexistent/laguna", "no such directory");
}

static void with_index(const char *map, int status, const char *words, const char *what)
{
    char *dir = good_dir();

    put_index(dir, map);
    expect(dir, status, words, what);
    remove_dir(dir);
}

static void with_index_text(const char *text, const char *words, const char *what)
{
    char *dir = good_dir();

    write_file(dir, INDEX, text, strlen(text));
    expect(dir, 65, words, what);
    remove_dir(dir);
}

#define MAP_A "\"a\":\"model-00001-of-00002.safetensors\""
#define MAP_B "\"b\":\"model-00002-of-00002.safetensors\""

static void test_index(void)
{
    char *dir = good_dir(), path[4096];

    with_index(MAP_A "," MAP_B ",\"c\":\"model-00002-of-00002.safetensors\"", 65, ":c:",
               "index names a tensor that the shard lacks (A21)");
    with_index("\"b\":\"model-00001-of-00002.safetensors\"," MAP_A "," MAP_B, 65, ":b:",
               "index names the wrong shard");
    with_index(MAP_A "," MAP_B "," MAP_A, 65, "twice", "an entry twice");
    with_index(MAP_A ",\"b\":\"../x.safetensors\"", 65, "plain file name", "index with a path");
    with_index(MAP_A ",\"b\":\"/etc/passwd\"", 65, "plain file name", "an absolute path");
    with_index(MAP_A ",\"b\":\"sub/x\"", 65, "plain file name", "a path below");
    with_index(MAP_A ",\"b\":\"\"", 65, "plain file name", "no file name");
    with_index(MAP_A ",\"b\":7", 65, "expected", "a number for a shard");
    with_index(MAP_A ",\"b\":\"model-00009-of-00002.safetensors\"", 66, "model-00009",
               "index names a missing shard");
    with_index_text("", "ends", "an empty index");
    with_index_text("{}", "no weight_map", "an index without a map");
    with_index_text("{\"weight_map\":{}}", "no weight_map", "an empty map");
    with_index_text("{\"weight_map\":{" MAP_A "}", "ends", "an index cut off");
    with_index_text("{\"metadata\":[[[[[[[[[[[[]]]]]]]]]]]],\"weight_map\":{" MAP_A "}}",
                    "nested", "deep nesting in the index");
    with_index_text("{\"weight_map\":{" MAP_A "},\"weight_map\":{" MAP_B "}}", "twice",
                    "weight_map twice");

    write_shard(dir, S2, HEAD, NULL, 64);
    expect(dir, 65, "also in", "a tensor in two shards");
    write_shard(dir, S2, HEAD_B, NULL, 64);
    write_shard(dir, "stray.safetensors", HEAD, NULL, 64);
    ok(!open_dir(dir) && quiet.notices == 1 && strstr(quiet.notice[0], "stray"),
       "a shard that is not in the index: %s", quiet.notice[0]);
    join_path(path, dir, "stray.safetensors");
    unlink(path);
    write_file(dir, INDEX, "{\"metadata\":{\"total_size\":1},\"weight_map\":{" MAP_A "," MAP_B
               "}}\n", strlen("{\"metadata\":{\"total_size\":1},\"weight_map\":{" MAP_A "," MAP_B
               "}}\n"));
    ok(!open_dir(dir) && quiet.notices == 1 && strstr(quiet.notice[0], "total_size"),
       "total_size is wrong (A22): %s", quiet.notice[0]);
    put_index(dir, MAP_A "," MAP_B);
    join_path(path, dir, INDEX);
    unlink(path);
    expect(dir, 66, INDEX, "two shards without an index");
    remove_dir(dir);
}

static void test_zero_tail(void)
{
    static const char head[] = "{\"a\":{\"dtype\":\"U8\",\"shape\":[8192],"
                               "\"data_offsets\":[0,8192]}}";
    char *dir = temp_dir();

    write_shard(dir, SINGLE, head, NULL, 8192);
    ok(!open_dir(dir) && quiet.notices == 1 && strstr(quiet.notice[0], "zero"),
       "a shard that ends in zeros (A23): %s", quiet.notice[0]);
    remove_dir(dir);
}

static void test_large(void)
{
    static const char head[] = "{\"a\":{\"dtype\":\"U8\",\"shape\":[2199023255552],"
                               "\"data_offsets\":[0,2199023255552]},"
                               "\"b\":{\"dtype\":\"U8\",\"shape\":[4],"
                               "\"data_offsets\":[2199023255552,2199023255556]}}";
    char *dir = temp_dir(), path[4096], into[4];
    struct checkpoint *c = NULL;
    const struct tensor *t;

    write_shard(dir, SINGLE, head, NULL, 0);
    expect(dir, 65, "ends at 2199023255552 of 0", "an extent of 2 TiB in a small file (A26)");
    join_path(path, dir, SINGLE);
    if (truncate(path, (off_t)(8 + strlen(head) + 2199023255556))) {
        ok(1, "offsets above 2^40 # SKIP no such large files here");
    } else {
        quiet = (struct log){ .level = LOG_QUIET };
        checkpoint_open(&c, dir, &quiet, &e);
        t = c ? checkpoint_find(c, "b") : NULL;
        ok(t && t->offset == 8 + strlen(head) + 2199023255552 &&
           !checkpoint_read(c, t, into, &e), "offsets above 2^40");
        checkpoint_close(c);
    }
    remove_dir(dir);
}

static void test_strangers(void)
{
    static const char zip[] = "PK\x03\x04\x14\0\0\0\x08\0aaaaaaaaaaaaaaaaaaaaaaaaaaaa";
    static const char gguf[] = "GGUF\x03\0\0\0\x10\0\0\0\0\0\0\0aaaaaaaaaaaaaaaaaaaaaaaa";
    static const char lfs[] = "version https://git-lfs.github.com/spec/v1\noid sha256:00\n";
    static const char pickle[] = "\x80\x02\x8a\x0al\xfc\x9c\x46\xf9 j\xa8P\x19.\x80\x02M";
    char *dir = temp_dir(), path[4096];

    single(gguf, sizeof(gguf), 65, "GGUF", "GGUF (A27)");
    single(zip, sizeof(zip), 65, "ZIP", "ZIP");
    single(lfs, sizeof(lfs), 65, "LFS", "LFS pointer");
    single(pickle, sizeof(pickle), 65, "pickle", "pickle");
    single("<!DOCTYPE html><html>", 21, 65, "web page", "web page");
    expect(dir, 66, SINGLE, "an empty directory");
    write_file(dir, "x.gguf", gguf, sizeof(gguf));
    expect(dir, 65, "GGUF", "a directory with a GGUF file");
    join_path(path, dir, "x.gguf");
    expect(path, 65, "GGUF", "a GGUF file for a directory");
    unlink(path);
    write_file(dir, "pytorch_model.bin", zip, sizeof(zip));
    expect(dir, 65, "PyTorch", "a directory with a PyTorch file");
    join_path(path, dir, "pytorch_model.bin");
    unlink(path);
    write_file(dir, "text", "hello\n", 6);
    join_path(path, dir, "text");
    expect(path, 66, "directory", "some file for a directory");
    remove_dir(dir);
}

/* 150,000 names, two of which differ in case alone (L-06). */
static void test_many_names(void)
{
    enum { SHARDS = 2, EACH = 75000 };
    char *dir = temp_dir(), *head = malloc(EACH * 120), *map = malloc(SHARDS * EACH * 120);
    size_t map_used, used;
    struct checkpoint *c = NULL;
    double began;
    int s, i;

    map_used = (size_t)sprintf(map, "{\"weight_map\":{");
    for (s = 0; s < SHARDS; s++) {
        used = (size_t)sprintf(head, "{");
        for (i = 0; i < EACH; i++) {
            char name[80];

            snprintf(name, sizeof(name), "model.layers.%d.mlp.experts.%d.up_proj.%ceight", s,
                     i / 2, i % 2 ? 'w' : 'W');
            used += (size_t)sprintf(head + used, "%s\"%s\":{\"dtype\":\"U8\",\"shape\":[1],"
                                    "\"data_offsets\":[%d,%d]}", i ? "," : "", name, i, i + 1);
            map_used += (size_t)sprintf(map + map_used, "%s\"%s\":\"%s\"", s || i ? "," : "",
                                        name, s ? S2 : S1);
        }
        sprintf(head + used, "}");
        write_shard(dir, s ? S2 : S1, head, NULL, EACH);
    }
    map_used += (size_t)sprintf(map + map_used, "}}");
    write_file(dir, INDEX, map, map_used);
    quiet = (struct log){ .level = LOG_QUIET };
    began = cpu_seconds();
    ok(!checkpoint_open(&c, dir, &quiet, &e), "150,000 names %s", c ? "" : e.text);
    ok(cpu_seconds() - began < 2, "opened in %.3f s", cpu_seconds() - began);
    if (c)
        ok(checkpoint_find(c, "model.layers.1.mlp.experts.9.up_proj.weight") !=
           checkpoint_find(c, "model.layers.1.mlp.experts.9.up_proj.Weight"),
           "names that differ in case alone stay apart");
    checkpoint_close(c);
    remove_dir(dir);
    free(head);
    free(map);
}

int main(void)
{
    test_good();
    test_header_length();
    test_length();
    test_kinds();
    test_index();
    test_zero_tail();
    test_large();
    test_strangers();
    test_many_names();
    return done();
}
