/* Snapshots of the window layers' rings.  Memory is taken when a place is first kept and is
 * then used again. */
#include "src/snapshots.h"

#include <stdlib.h>

void snapshots_open(struct snapshots *s, const struct shape *shape, enum kv_type type)
{
    *s = (struct snapshots){ .shape = shape, .bytes = kv_snapshot_bytes(shape, type) };
}

void snapshots_close(struct snapshots *s)
{
    for (int i = 0; i < SNAPSHOTS; i++)
        free(s->at[i].copy);
    *s = (struct snapshots){ 0 };
}

/* Take entry i out; its memory goes behind the last, to be used again. */
static void remove_at(struct snapshots *s, int i)
{
    uint8_t *copy = s->at[i].copy;

    s->n--;
    memmove(&s->at[i], &s->at[i + 1], (size_t)(s->n - i) * sizeof(s->at[0]));
    s->at[s->n].copy = copy;
}

/* The entry whose loss costs least to compute again; the last one stays. */
static int least(const struct snapshots *s)
{
    int best = 0, gap = s->at[0].pos;

    for (int i = 1; i + 1 < s->n; i++)
        if (s->at[i].pos - s->at[i - 1].pos < gap) {
            gap = s->at[i].pos - s->at[i - 1].pos;
            best = i;
        }
    return best;
}

void snapshots_take(struct snapshots *s, const struct kv *kv, int pos)
{
    snapshots_drop(s, pos);
    if (!s->bytes || (s->n && s->at[s->n - 1].pos == pos))
        return;
    if (s->n == SNAPSHOTS)
        remove_at(s, least(s));
    if (!s->at[s->n].copy)
        s->at[s->n].copy = malloc(s->bytes);
    if (!s->at[s->n].copy)
        return;
    kv_snapshot_save(kv, s->shape, pos, s->at[s->n].copy);
    s->at[s->n++].pos = pos;
}

int snapshots_restore(struct snapshots *s, struct kv *kv, int pos)
{
    snapshots_drop(s, pos);
    if (!s->n)
        return 0;
    kv_snapshot_restore(kv, s->shape, s->at[s->n - 1].pos, s->at[s->n - 1].copy);
    return s->at[s->n - 1].pos;
}

void snapshots_drop(struct snapshots *s, int pos)
{
    while (s->n && s->at[s->n - 1].pos > pos)
        remove_at(s, s->n - 1);
}
