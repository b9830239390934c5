/* Counts the cores that this process may keep busy.  The kernel says so in five places:
 * the affinity mask, the siblings lists in sysfs, libnuma, and the control groups of both
 * versions.  A file that cannot be read limits nothing: the mask alone always holds. */
#include "config.h"

#include "cpu/cores.h"

#include <errno.h>
#include <limits.h>
#include <numa.h>
#include <stdio.h>
#include <stdlib.h>

enum { TEXT_SIZE = 256 << 10 };     /* /proc/self/mountinfo of a host full of containers */

static bool read_text(const char *root, const char *path, char *text, size_t size)
{
    char name[PATH_MAX];
    FILE *f;
    size_t n;

    if ((size_t)snprintf(name, sizeof(name), "%s%s", root, path) >= sizeof(name))
        return false;
    f = fopen(name, "re");
    if (!f)
        return false;
    n = fread(text, 1, size - 1, f);
    text[n] = '\0';
    fclose(f);
    return n > 0;
}

bool cores_parse_list(const char *text, cpu_set_t *out)
{
    CPU_ZERO(out);
    for (;;) {
        char *end;
        long from = strtol(text, &end, 10), to = from;

        if (end == text)
            return false;
        if (*end == '-') {
            text = end + 1;
            to = strtol(text, &end, 10);
            if (end == text)
                return false;
        }
        if (from < 0 || to < from || to >= CORES_MAX)
            return false;
        for (; from <= to; from++)
            CPU_SET((size_t)from, out);
        if (*end != ',')
            return *end == '\0' || *end == '\n';
        text = end + 1;
    }
}

int cores_parse_quota(const char *text)
{
    long long quota, period;
    double milli;

    if (sscanf(text, "%lld %lld", &quota, &period) != 2 || quota <= 0 || period <= 0)
        return 0;
    milli = (double)quota * 1000 / (double)period;
    return milli >= INT_MAX ? 0 : milli < 1 ? 1 : (int)milli;
}

/* Is `word` one of the comma-separated words of list[0..n)? */
static bool has_word(const char *list, size_t n, const char *word)
{
    size_t len = strlen(word);

    for (;;) {
        const char *comma = memchr(list, ',', n);
        size_t have = comma ? (size_t)(comma - list) : n;

        if (have == len && !memcmp(list, word, len))
            return true;
        if (!comma)
            return false;
        list += have + 1;
        n -= have + 1;
    }
}

/* The path field of the line "ID:CONTROLLERS:PATH" that has the controller. */
static bool find_group(const char *cgroup, const char *controller, char *path, size_t size)
{
    const char *line = cgroup;

    while (*line) {
        size_t n = strcspn(line, "\n");
        const char *list = memchr(line, ':', n), *end;

        end = list ? memchr(list + 1, ':', (size_t)(line + n - list - 1)) : NULL;
        if (end && has_word(list + 1, (size_t)(end - list - 1), controller)) {
            n = (size_t)(line + n - end - 1);
            if (n >= size)
                return false;
            memcpy(path, end + 1, n);
            path[n] = '\0';
            return n > 0;
        }
        line += n + (line[n] == '\n');
    }
    return false;
}

/* One line of mountinfo: "ID PARENT DEVICE ROOT POINT OPTIONS... - TYPE SOURCE OPTIONS". */
static bool parse_mount(const char *line, const char *controller, char root[PATH_MAX],
                        char point[PATH_MAX])
{
    char type[16], options[512];
    const char *dash = strstr(line, " - ");
    const char *eol = line + strcspn(line, "\n");

    if (!dash || dash > eol || sscanf(line, "%*s %*s %*s %4095s %4095s", root, point) != 2 ||
        sscanf(dash, " - %15s %*s %511s", type, options) != 2)
        return false;
    if (!*controller)
        return !strcmp(type, "cgroup2");
    return !strcmp(type, "cgroup") && has_word(options, strlen(options), controller);
}

size_t cores_parse_cgroup(const char *cgroup, const char *mountinfo, const char *controller,
                          char *dir, size_t size)
{
    char path[PATH_MAX], root[PATH_MAX], point[PATH_MAX];
    const char *line = mountinfo, *below;
    size_t n;

    if (!find_group(cgroup, controller, path, sizeof(path)))
        return 0;
    while (!parse_mount(line, controller, root, point)) {
        line += strcspn(line, "\n");
        if (!*line++)
            return 0;
    }
    /* The mount shows the hierarchy from `root` down.  A group outside of it is that of a
     * container that mounts its own group as the root. */
    n = strcmp(root, "/") ? strlen(root) : 0;
    below = path + n;
    if (strncmp(path, root, n) || (*below && *below != '/') || strstr(path, "/.."))
        below = "";
    if (!strcmp(below, "/"))
        below = "";
    if ((size_t)snprintf(dir, size, "%s%s", point, below) >= size)
        return 0;
    return strlen(point);
}

/* Quota of one group, whose files lie in dir. */
static int group_quota(const char *root, const char *dir, bool v1)
{
    char name[PATH_MAX + 32], text[128], quota[64], period[64];

    if (!v1) {
        snprintf(name, sizeof(name), "%s/cpu.max", dir);
        return read_text(root, name, text, sizeof(text)) ? cores_parse_quota(text) : 0;
    }
    snprintf(name, sizeof(name), "%s/cpu.cfs_quota_us", dir);
    if (!read_text(root, name, quota, sizeof(quota)))
        return 0;
    snprintf(name, sizeof(name), "%s/cpu.cfs_period_us", dir);
    if (!read_text(root, name, period, sizeof(period)))
        return 0;
    snprintf(text, sizeof(text), "%s %s", quota, period);
    return cores_parse_quota(text);
}

/* The tightest quota from this process's group up to the mount point, in both versions. */
static int find_quota(const char *root)
{
    char dir[PATH_MAX], *cgroup = malloc(TEXT_SIZE), *mounts = malloc(TEXT_SIZE);
    int least = 0;

    if (cgroup && mounts && read_text(root, "/proc/self/cgroup", cgroup, TEXT_SIZE) &&
        read_text(root, "/proc/self/mountinfo", mounts, TEXT_SIZE))
        for (int v1 = 0; v1 < 2; v1++) {
            size_t top = cores_parse_cgroup(cgroup, mounts, v1 ? "cpu" : "", dir, sizeof(dir));

            while (top && strlen(dir) >= top) {
                int quota = group_quota(root, dir, v1);
                char *slash = strrchr(dir, '/');

                if (quota && (!least || quota < least))
                    least = quota;
                if (!slash)
                    break;
                *slash = '\0';
            }
        }
    free(cgroup);
    free(mounts);
    return least;
}

/* Of the siblings of one core that we may use, the first works and the others rest: two
 * on one core share its loads, and the weights come no faster. */
static bool is_first_sibling(const char *root, int cpu, const cpu_set_t *allowed)
{
    char name[96], text[4096];
    cpu_set_t siblings;

    snprintf(name, sizeof(name), "/sys/devices/system/cpu/cpu%d/topology/thread_siblings_list",
             cpu);
    if (!read_text(root, name, text, sizeof(text)) || !cores_parse_list(text, &siblings))
        return true;
    for (int i = 0; i < cpu; i++)
        if (CPU_ISSET((size_t)i, &siblings) && CPU_ISSET((size_t)i, allowed))
            return false;
    return true;
}

static int by_node(const void *a, const void *b)
{
    const struct core *x = a, *y = b;

    return x->node != y->node ? x->node - y->node : x->cpu - y->cpu;
}

int cores_find(struct cores *c, const char *root, struct err *e)
{
    cpu_set_t allowed;
    bool numa = numa_available() >= 0;

    c->n = 0;
    if (sched_getaffinity(0, sizeof(allowed), &allowed))
        return fail(e, -ENOTSUP, "the CPUs of this process: %s", strerror(errno));
    c->allowed = CPU_COUNT(&allowed);
    for (int cpu = 0; cpu < CORES_MAX; cpu++)
        if (CPU_ISSET((size_t)cpu, &allowed) && is_first_sibling(root, cpu, &allowed)) {
            int node = numa ? numa_node_of_cpu(cpu) : 0;

            c->core[c->n].cpu = cpu;
            c->core[c->n++].node = node < 0 ? 0 : node;
        }
    qsort(c->core, (size_t)c->n, sizeof(c->core[0]), by_node);
    c->quota = find_quota(root);
    return 0;
}

int cores_threads(const struct cores *c)
{
    int quota = c->quota / 1000;

    if (!c->quota || quota >= c->n)
        return c->n;
    return quota ? quota : 1;
}
