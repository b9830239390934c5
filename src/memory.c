/* Memory of the machine and of the control group.  Swap is not counted: an expert that is
 * swapped out is slower than one read from its shard. */
#include "src/memory.h"

#include <stdio.h>
#include <stdlib.h>

/* The value of a /proc/meminfo line, in bytes; 0 where there is none. */
static size_t meminfo(const char *key)
{
    char line[256];
    size_t n = strlen(key), kb = 0;
    FILE *f = fopen("/proc/meminfo", "re");

    if (!f)
        return 0;
    while (!kb && fgets(line, sizeof(line), f))
        if (!strncmp(line, key, n) && line[n] == ':')
            kb = strtoull(line + n + 1, NULL, 10);
    fclose(f);
    return kb * 1024;
}

/* A number in a file; SIZE_MAX where there is none, or it says "max". */
static size_t file_number(const char *path)
{
    unsigned long long v;
    FILE *f = fopen(path, "re");
    int got;

    if (!f)
        return SIZE_MAX;
    got = fscanf(f, "%llu", &v);
    fclose(f);
    return got == 1 ? (size_t)v : SIZE_MAX;
}

/* The smaller of limit and what one control group leaves, or of its limit alone. */
static size_t group_left(size_t left, const char *dir, const char *max, const char *used,
                         bool total)
{
    char path[4352];
    size_t limit, current;

    snprintf(path, sizeof(path), "%s/%s", dir, max);
    limit = file_number(path);
    if (limit >= (size_t)1 << 60)               /* "max", or version 1's huge number */
        return left;
    snprintf(path, sizeof(path), "%s/%s", dir, used);
    current = total ? 0 : file_number(path);
    if (current > limit)
        current = limit;
    return limit - current < left ? limit - current : left;
}

/* Walk /proc/self/cgroup: every level of our group counts. */
static size_t cgroup_left(size_t left, bool total)
{
    char line[4096], dir[4224];
    FILE *f = fopen("/proc/self/cgroup", "re");

    while (f && fgets(line, sizeof(line), f)) {
        bool v2 = !strncmp(line, "0::", 3), v1 = strstr(line, ":memory:") != NULL;
        char *path = strrchr(line, ':') + 1;

        path[strcspn(path, "\n")] = 0;
        for (; v2 || v1; *strrchr(path, '/') = 0) {
            snprintf(dir, sizeof(dir), "/sys/fs/cgroup%s%s", v1 ? "/memory" : "", path);
            left = v1 ? group_left(left, dir, "memory.limit_in_bytes", "memory.usage_in_bytes",
                                   total)
                      : group_left(left, dir, "memory.max", "memory.current", total);
            if (!strrchr(path, '/'))
                break;
        }
    }
    if (f)
        fclose(f);
    return left;
}

size_t memory_available(void)
{
    return cgroup_left(meminfo("MemAvailable"), false);
}

size_t memory_total(void)
{
    return cgroup_left(meminfo("MemTotal"), true);
}
