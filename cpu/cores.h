#ifndef LAGUNA_CORES_H
#define LAGUNA_CORES_H

#include <sched.h>

#include "src/base.h"

/* Which CPUs the workers may have: the affinity mask (and so the cpuset), one CPU of each
 * physical core, and the CPU time that the control groups leave.  Says nothing about how
 * many workers there shall be. */

enum { CORES_MAX = 1024 };          /* what a cpu_set_t can name */

struct cores {
    int n;                          /* physical cores in the affinity mask, at least 1 */
    int quota;                      /* CPUs' worth of time in thousandths; 0: no limit */
    int allowed;                    /* CPUs in the affinity mask, SMT siblings included */
    struct core {
        int cpu, node;              /* node: of NUMA, 0 where there is only one */
    } core[CORES_MAX];              /* by node, then by cpu */
};

/* `root` is put before /proc and /sys, "" but in tests.  -ENOTSUP where the kernel does
 * not tell the mask. */
int cores_find(struct cores *c, const char *root, struct err *e);

/* How many workers to have when nobody says: a core each, within the quota, at least 1. */
int cores_threads(const struct cores *c);

/* The parsers, pure functions of the text of a file.
 *
 * A list such as "0-3,8"; false when it is none. */
bool cores_parse_list(const char *text, cpu_set_t *out);

/* "QUOTA PERIOD", as in cpu.max, into thousandths of a CPU.  0 where there is no limit
 * ("max" or -1) or no sense. */
int cores_parse_quota(const char *text);

/* Where the files of this process's control group are, from /proc/self/cgroup and
 * /proc/self/mountinfo.  `controller`: "cpu" of version 1, or "" for version 2.  Returns
 * the length of the mount point, with which `dir` begins and above which nobody may climb;
 * 0 where there is no such group. */
size_t cores_parse_cgroup(const char *cgroup, const char *mountinfo, const char *controller,
                          char *dir, size_t size);

#endif
