/* Memory of the machine and of the control groups, both versions.  Swap is not counted: an
 * expert that is swapped out is slower than one read from its shard. */
#include "src/memory.h"
#include "cpu/cores.h"
#include "src/kernel_file.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>

enum { TEXT_SIZE = 256 << 10 };     /* /proc/self/mountinfo of a host full of containers */

/* Where version 1 and 2 say what a group may use, uses, and uses for files' pages. */
static const struct names {
    const char *controller, *limit, *used, *inactive_files, *active_files;
} VERSIONS[] = {
    { "", "memory.max", "memory.current", "inactive_file", "active_file" },
    { "memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file",
      "total_active_file" },
};

/* The number in a group's file, or SIZE_MAX: there is none, or it says "max". */
static size_t group_number(const char *root, const char *dir, const char *file)
{
    char path[PATH_MAX + 32], text[64];

    snprintf(path, sizeof(path), "%s/%s", dir, file);
    if (!kernel_file(root, path, text, sizeof(text)) || text[0] < '0' || text[0] > '9')
        return SIZE_MAX;
    return strtoull(text, NULL, 10);
}

/* Pages of files, which a group gives up before it runs out. */
static size_t group_files(const char *root, const char *dir, const struct names *v)
{
    char path[PATH_MAX + 32], text[8192];

    snprintf(path, sizeof(path), "%s/memory.stat", dir);
    if (!kernel_file(root, path, text, sizeof(text)))
        return 0;
    return add_sat(kernel_number(text, v->inactive_files, 0),
                   kernel_number(text, v->active_files, 0));
}

static void apply_group(struct memory *m, const char *root, const char *dir,
                        const struct names *v)
{
    size_t limit = group_number(root, dir, v->limit), used, files, left;

    if (limit >= (size_t)1 << 60)               /* "max", or version 1's huge number */
        return;
    used = group_number(root, dir, v->used);
    files = group_files(root, dir, v);
    if (used == SIZE_MAX)
        used = 0;
    used = used > files ? used - files : 0;
    left = limit > used ? limit - used : 0;
    m->group |= limit < m->total_bytes;
    m->total_bytes = limit < m->total_bytes ? limit : m->total_bytes;
    m->free_bytes = left < m->free_bytes ? left : m->free_bytes;
}

/* Every group from ours up to where the hierarchy is mounted counts. */
static void apply_groups(struct memory *m, const char *root, const char *cgroup,
                         const char *mounts)
{
    for (size_t i = 0; i < sizeof(VERSIONS) / sizeof(*VERSIONS); i++) {
        const struct names *v = &VERSIONS[i];
        char dir[PATH_MAX];
        size_t top = cores_parse_cgroup(cgroup, mounts, v->controller, dir, sizeof(dir));

        while (top && strlen(dir) >= top) {
            char *slash = strrchr(dir, '/');

            apply_group(m, root, dir, v);
            if (!slash)
                break;
            *slash = 0;
        }
    }
}

struct memory memory_find(const char *root)
{
    char *text = malloc(TEXT_SIZE), *mounts = malloc(TEXT_SIZE);
    struct memory m = { 0, 0, false };

    if (text && mounts && kernel_file(root, "/proc/meminfo", text, TEXT_SIZE)) {
        m.total_bytes = mul_sat(kernel_number(text, "MemTotal:", 0), 1024);
        m.free_bytes = mul_sat(kernel_number(text, "MemAvailable:", 0), 1024);
        if (kernel_file(root, "/proc/self/cgroup", text, TEXT_SIZE) &&
            kernel_file(root, "/proc/self/mountinfo", mounts, TEXT_SIZE))
            apply_groups(&m, root, text, mounts);
    }
    free(text);
    free(mounts);
    return m;
}
