#ifndef LAGUNA_SNAPSHOTS_H
#define LAGUNA_SNAPSHOTS_H

#include "cpu/kv.h"

/* Places of a timeline that it can go back to after its rings have gone on. */
enum { SNAPSHOTS = 8 };         /* a session keeps at most so many */

struct snapshots {
    const struct shape *shape;
    size_t bytes;               /* of one */
    struct {
        int pos;
        uint8_t *copy;
    } at[SNAPSHOTS];            /* ascending positions */
    int n;
};

void snapshots_open(struct snapshots *s, const struct shape *shape, enum kv_type type);
void snapshots_close(struct snapshots *s);

/* Keep what the rings hold before position pos.  Where there is no room, the one goes that
 * is nearest to the one before it; where there is no memory, nothing is kept. */
void snapshots_take(struct snapshots *s, const struct kv *kv, int pos);

/* Put back the last one at or before pos, and forget those after pos.  Its position; 0 where
 * there is none. */
int  snapshots_restore(struct snapshots *s, struct kv *kv, int pos);

/* Forget those after pos: the timeline went another way there. */
void snapshots_drop(struct snapshots *s, int pos);

#endif
