/* Memory as the kernel and the control groups tell, from made-up /proc and /sys. */
#include "src/memory.h"
#include "src/kernel_file.h"
#include "tests/tap.h"

#include <stdlib.h>
#include <sys/stat.h>

static const size_t MB = 1 << 20;

/* A file under root, with its folders. */
static void put(const char *root, const char *path, const char *text)
{
    char name[512];
    FILE *f;

    snprintf(name, sizeof(name), "%s%s", root, path);
    for (char *s = name + strlen(root) + 1; (s = strchr(s, '/')); *s++ = '/') {
        *s = 0;
        mkdir(name, 0700);
    }
    f = fopen(name, "w");
    if (!f || fputs(text, f) < 0 || fclose(f)) {
        printf("Bail out! %s\n", name);
        exit(1);
    }
}

static void test_machine(const char *root)
{
    struct memory m = memory_find(root);

    ok(!m.total_bytes && !m.free_bytes, "no /proc: nothing is known");
    put(root, "/proc/meminfo", "MemTotal:        8388608 kB\nMemFree:          100 kB\n"
        "MemAvailable:    4194304 kB\n");
    m = memory_find(root);
    ok(m.total_bytes == 8192 * MB && m.free_bytes == 4096 * MB && !m.group, "8 GiB, 4 free");
}

static void test_version_2(const char *root)
{
    struct memory m;

    put(root, "/proc/self/cgroup", "0::/pod/a/b\n");
    put(root, "/proc/self/mountinfo", "31 23 0:28 / /cg rw - cgroup2 cgroup2 rw\n");
    put(root, "/cg/pod/a/b/memory.max", "max\n");
    put(root, "/cg/pod/a/memory.max", "2147483648\n");
    put(root, "/cg/pod/a/memory.current", "1073741824\n");
    m = memory_find(root);
    ok(m.group && m.total_bytes == 2048 * MB && m.free_bytes == 1024 * MB,
       "a parent group's limit holds");
    put(root, "/cg/pod/a/memory.stat", "anon 1\ninactive_file 536870912\nactive_file 4194304\n");
    m = memory_find(root);
    ok(m.free_bytes == 1540 * MB, "pages of files count as free");
    put(root, "/cg/pod/a/memory.stat", "inactive_file 99999999999\n");
    put(root, "/cg/pod/a/memory.current", "3000000000\n");
    ok(memory_find(root).free_bytes == 2048 * MB, "never more than the limit");
    put(root, "/cg/pod/a/memory.stat", "");
    ok(memory_find(root).free_bytes == 0, "a group beyond its limit has nothing left");
    put(root, "/cg/memory.max", "536870912\n");
    m = memory_find(root);
    ok(m.total_bytes == 512 * MB, "so does the limit at the mount point");
    put(root, "/cg/memory.max", "999999999999\n");
    put(root, "/cg/pod/a/memory.max", "max\n");
    m = memory_find(root);
    ok(!m.group && m.total_bytes == 8192 * MB, "a limit above the machine is none");
}

static void test_version_1(const char *root)
{
    struct memory m;

    put(root, "/proc/self/cgroup", "5:cpu:/x\n4:memory:/job\n0::/\n");
    put(root, "/proc/self/mountinfo",
        "30 23 0:26 / /tmpfs ro - tmpfs tmpfs ro\n"
        "36 30 0:28 / /v1 rw shared:9 - cgroup cgroup rw,memory\n");
    put(root, "/v1/memory.limit_in_bytes", "9223372036854771712\n");
    put(root, "/v1/job/memory.limit_in_bytes", "1073741824\n");
    put(root, "/v1/job/memory.usage_in_bytes", "805306368\n");
    put(root, "/v1/job/memory.stat", "cache 7\ntotal_inactive_file 268435456\n");
    m = memory_find(root);
    ok(m.group && m.total_bytes == 1024 * MB && m.free_bytes == 512 * MB, "version 1");
}

static void test_numbers(void)
{
    const char *text = "filed 1\nfile 12\nempty\nlast x\ntail 9";

    ok(kernel_number(text, "file", 7) == 12, "a key is a whole word");
    ok(kernel_number(text, "empty", 7) == 7 && kernel_number(text, "last", 7) == 7 &&
       kernel_number(text, "none", 7) == 7 && kernel_number("", "file", 7) == 7,
       "what has no number is absent");
    ok(kernel_number(text, "tail", 7) == 9, "the last line needs no end");
}

int main(void)
{
    char root[] = "t_memory.XXXXXX", command[64];

    if (!mkdtemp(root))
        return 99;
    test_machine(root);
    test_version_2(root);
    test_version_1(root);
    test_numbers();
    ok(memory_find("").total_bytes > 0, "this machine has memory");
    snprintf(command, sizeof(command), "rm -r %s", root);
    ok(!system(command), "the fixture is gone");
    return done();
}
