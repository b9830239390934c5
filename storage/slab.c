#include "config.h"

#include "storage/slab.h"

#include <assert.h>
#include <errno.h>
#include <numa.h>
#include <numaif.h>
#include <stdlib.h>
#include <sys/mman.h>

/* One mapping a chunk.  Chunks of 1 GiB, because that is the most that io_uring registers at
 * once, and because pinning goes on behind a server that already answers. */

/* MADV_COLLAPSE of Linux 6.1; the C library of Debian 12 does not name it. */
enum { COLLAPSE = 25 };

static const size_t page = 4096, huge = (size_t)2 << 20, chunk_limit = (size_t)1 << 30;

struct slab {
    size_t slot_bytes, huge_bytes;
    int slots, per_chunk, chunks;
    struct slab_chunk chunk[];
};

/* Place the pages of a chunk that has none yet.  Preferred, not bound: a full node must
 * not be a failure while another has room. */
static int place(const struct slab_chunk *k, int node)
{
    struct bitmask *nodes;
    int mode = node == SLAB_INTERLEAVE ? MPOL_INTERLEAVE : MPOL_PREFERRED;
    int rc = 0;

    if (node == SLAB_ANY || numa_available() < 0 || numa_max_node() == 0)
        return 0;
    nodes = numa_allocate_nodemask();
    if (node == SLAB_INTERLEAVE)
        copy_bitmask_to_bitmask(numa_all_nodes_ptr, nodes);
    else
        numa_bitmask_setbit(nodes, (unsigned)node);
    if (mbind(k->base, k->bytes, mode, nodes->maskp, nodes->size + 1, 0))
        rc = -errno;
    numa_free_nodemask(nodes);
    return rc;
}

/* Address space on a 2 MiB boundary, or NULL: pages that start elsewhere never become huge. */
static void *map_aligned(size_t bytes)
{
    char *p = mmap(NULL, bytes + huge, PROT_READ | PROT_WRITE,
                   MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    size_t before;

    if (p == MAP_FAILED)
        return NULL;
    before = align_up((uintptr_t)p, huge) - (uintptr_t)p;
    if (before)
        munmap(p, before);
    munmap(p + before + bytes, huge - before);
    return p + before;
}

static int map_chunk(struct slab *s, struct slab_chunk *k, bool *transparent)
{
    /* Reserved by the administrator: taken whole or not at all, so that no page is missing
     * when it is touched. */
    k->base = mmap(NULL, k->bytes, PROT_READ | PROT_WRITE,
                   MAP_PRIVATE | MAP_ANONYMOUS | MAP_HUGETLB, -1, 0);
    if (k->base != MAP_FAILED) {
        s->huge_bytes += k->bytes;
        return 0;
    }
    k->base = map_aligned(k->bytes);
    if (!k->base)
        return -ENOMEM;
    *transparent &= !madvise(k->base, k->bytes, MADV_HUGEPAGE);
    /* A core dump of 60 GB helps nobody. */
    madvise(k->base, k->bytes, MADV_DONTDUMP);
    return 0;
}

int slab_open(struct slab **out, const struct slab_config *c, struct err *e)
{
    size_t slot_bytes = align_up(c->slot_bytes, page);
    int per_chunk, chunks, placed = 0, rc = 0;
    bool transparent = true;
    struct slab *s;

    assert(c->slot_bytes && slot_bytes <= chunk_limit && c->slots >= 0);
    per_chunk = (int)(chunk_limit / slot_bytes);
    chunks = c->slots / per_chunk + (c->slots % per_chunk != 0);
    s = calloc(1, sizeof(*s) + (size_t)chunks * sizeof(*s->chunk));
    if (!s)
        return fail(e, -ENOMEM, "%d slots: out of memory", c->slots);
    *s = (struct slab){ slot_bytes, 0, c->slots, per_chunk, 0 };
    for (int i = 0; i < chunks && !rc; i++) {
        struct slab_chunk *k = &s->chunk[i];
        int slots = i < chunks - 1 ? per_chunk : c->slots - i * per_chunk;

        k->bytes = align_up((size_t)slots * slot_bytes, huge);
        rc = map_chunk(s, k, &transparent);
        s->chunks += !rc;
        if (!rc && !placed)
            placed = place(k, c->node);
    }
    if (rc) {
        slab_close(s);
        return fail(e, rc, "%d slots of %zu bytes: %s", c->slots, slot_bytes, strerror(-rc));
    }
    if (placed)
        warn(c->log, "memory not placed on NUMA node %d: %s", c->node, strerror(-placed));
    if (!transparent)
        warn(c->log, "no huge pages for %zu bytes of experts: reads and kernels are slower",
             (size_t)c->slots * slot_bytes - s->huge_bytes);
    *out = s;
    return 0;
}

void slab_close(struct slab *s)
{
    if (!s)
        return;
    for (int i = 0; i < s->chunks; i++)
        munmap(s->chunk[i].base, s->chunk[i].bytes);
    free(s);
}

int slab_slots(const struct slab *s)
{
    return s->slots;
}

size_t slab_slot_bytes(const struct slab *s)
{
    return s->slot_bytes;
}

void *slab_slot(const struct slab *s, int slot)
{
    assert(slot >= 0 && slot < s->slots);
    return (char *)s->chunk[slot / s->per_chunk].base +
           (size_t)(slot % s->per_chunk) * s->slot_bytes;
}

int slab_chunks(const struct slab *s)
{
    return s->chunks;
}

struct slab_chunk slab_chunk(const struct slab *s, int chunk)
{
    assert(chunk >= 0 && chunk < s->chunks);
    return s->chunk[chunk];
}

size_t slab_huge_bytes(const struct slab *s)
{
    return s->huge_bytes;
}

int slab_touch(struct slab *s, int chunk, struct err *e)
{
    const struct slab_chunk k = slab_chunk(s, chunk);

    /* EINVAL: a kernel before 5.14.  There the first read into a page brings it. */
    if (madvise(k.base, k.bytes, MADV_POPULATE_WRITE) && errno != EINVAL)
        return fail(e, -ENOMEM, "%zu bytes of memory for experts: %s", k.bytes,
                    strerror(errno));
    /* What the allocator gave as small pages in its hurry. */
    madvise(k.base, k.bytes, COLLAPSE);
    return 0;
}
