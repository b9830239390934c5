/* The first tier.  A move brings one expert into one seat:
 *
 *     lending  until its bytes are in RAM; who sits there is computed in VRAM as before
 *     leaving  exclusive tiers: who sits there is copied back to RAM, and still seated
 *     filling  the seat is empty, and the bytes are on their way
 *
 * so that an expert is absent from the table of seats only while RAM or the drive has it.  The
 * table changes in vram_advance() alone, between steps.  Which expert is worth a seat is
 * policy.c's to say; where bytes lie outside VRAM, experts.c's. */
#include "src/vram.h"

#include <assert.h>
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <time.h>

/* At once: enough that one is copied while others are read.  Layers that one vram_advance()
 * looks at for an exchange: it costs a microsecond or two each. */
enum { MOVES = 8, LOOKS = 4 };

struct move {
    enum { IDLE, LENDING, LEAVING, FILLING } stage;
    int row, id, seat;                  /* who comes, and where to */
    const struct expert *lent;
};

/* Who sits there, or nobody: row -1.  Rows count the layers with routed experts. */
struct seat {
    int row, id;
};

struct vram {
    struct vram_config c;
    int rows, experts, seats, seated;
    int layer_number[MAX_LAYERS];       /* of a row */
    uint8_t *place;                     /* [rows][experts] of enum policy_place */
    struct seat *seat;                  /* [seats] */
    struct seat *first;                 /* [seats]: who takes it first */
    int firsts;                         /* of `first`, those that have been sent for */
    struct move move[MOVES];            /* each with the loan of its number */
    bool leaving;                       /* one of them is */
    int look;                           /* the row to look at next */
    int quiet;                          /* rows looked at in vain since the last token */
    float token;                        /* tells one token from the next */
    double move_bytes, credit_bytes;
    bool warned;
    int fault;                          /* of the GPU, and its words */
    struct err why;
    struct vram_stats stats;
};

static uint8_t *place_of(const struct vram *v, int row, int id)
{
    return &v->place[(size_t)row * (size_t)v->experts + (size_t)id];
}

/* Seats of a row. */
static int share_of(const struct vram *v, int row)
{
    return v->seats / v->rows + (row < v->seats % v->rows);
}

struct ranked {
    float worth;
    int row, id, rank;                  /* the rank in its row */
};

static int in_row(const void *a, const void *b)
{
    const struct ranked *x = a, *y = b;

    if (x->row != y->row)
        return x->row - y->row;
    if (x->worth != y->worth)
        return x->worth < y->worth ? 1 : -1;
    return x->id - y->id;
}

static int in_all(const void *a, const void *b)
{
    const struct ranked *x = a, *y = b;

    if (x->worth != y->worth)
        return x->worth < y->worth ? 1 : -1;
    return x->rank != y->rank ? x->rank - y->rank : x->row - y->row;
}

/* Who takes the seats first: each row's best, the hottest of all rows before the others. */
static void choose_firsts(struct vram *v, struct ranked *all)
{
    const struct popularity *p = v->c.fixed ? NULL : experts_popularity(v->c.experts);
    int n = v->rows * v->experts, kept = 0;

    for (int i = 0; i < n; i++) {
        int row = i / v->experts, id = i % v->experts;

        all[i] = (struct ranked){ p ? policy_lasting(&p->layer[row], id) : 0, row, id, 0 };
    }
    qsort(all, (size_t)n, sizeof(*all), in_row);
    for (int i = 0; i < n; i++) {
        all[i].rank = i % v->experts;
        if (all[i].rank < share_of(v, all[i].row))
            all[kept++] = all[i];
    }
    qsort(all, (size_t)kept, sizeof(*all), in_all);
    assert(kept == v->seats);
    for (int i = 0; i < kept; i++)
        v->first[i] = (struct seat){ all[i].row, all[i].id };
}

static int fill_in(struct vram *v, struct err *e)
{
    const struct shape *s = &v->c.model->shape;
    size_t all = (size_t)s->sparse_layers * (size_t)s->experts;
    struct ranked *ranked = calloc(all + 1, sizeof(*ranked));

    v->rows = s->sparse_layers;
    v->experts = s->experts;
    v->seats = (size_t)v->c.slots < all ? v->c.slots : (int)all;
    v->place = calloc(all + 1, sizeof(*v->place));
    v->seat = calloc((size_t)v->seats + 1, sizeof(*v->seat));
    v->first = calloc((size_t)v->seats + 1, sizeof(*v->first));
    for (int i = 0; v->seat && i < v->seats; i++)
        v->seat[i].row = -1;
    if (!ranked || !v->place || !v->seat || !v->first) {
        free(ranked);
        return fail(e, -ENOMEM, "%d seats in VRAM: out of memory", v->seats);
    }
    for (int i = 0; i < s->layers; i++)
        if (v->c.model->sparse_index[i] >= 0)
            v->layer_number[v->c.model->sparse_index[i]] = i;
    if (v->seats) {
        v->move_bytes = (double)gpu_ffn_bytes(&v->c.model->expert[0].ffn);
        choose_firsts(v, ranked);
    }
    free(ranked);
    return 0;
}

int vram_open(struct vram **out, const struct vram_config *c, struct err *e)
{
    struct vram *v = calloc(1, sizeof(*v));
    int rc;

    assert(c->slots >= 0);
    if (!v)
        return fail(e, -ENOMEM, "out of memory");
    v->c = *c;
    rc = fill_in(v, e);
    if (rc) {
        vram_close(v);
        return rc;
    }
    *out = v;
    return 0;
}

/* Whoever sits there leaves the table. */
static void vacate(struct vram *v, int seat)
{
    struct seat *s = &v->seat[seat];
    int layer = v->layer_number[s->row];

    gpu_seat(v->c.gpu, layer, s->id, -1);
    experts_elsewhere(v->c.experts, layer, s->id, false);
    *place_of(v, s->row, s->id) = POLICY_OUTSIDE;
    s->row = -1;
    v->seated--;
    v->stats.demotions++;
}

static void end_move(struct vram *v, struct move *m)
{
    experts_return(v->c.experts, (int)(m - v->move));
    m->stage = IDLE;
}

void vram_close(struct vram *v)
{
    struct err e;

    if (!v)
        return;
    if (vram_busy(v))
        gpu_wait(v->c.gpu, &e);         /* after a fault, too, nothing is copied any more */
    for (int i = 0; i < MOVES; i++) {
        if (v->move[i].stage == LEAVING)
            experts_adopted(v->c.experts, &e);
        if (v->move[i].stage != IDLE)
            end_move(v, &v->move[i]);
    }
    for (int i = 0; v->seat && i < v->seats; i++)
        if (v->seat[i].row >= 0)
            vacate(v, i);
    free(v->place);
    free(v->seat);
    free(v->first);
    free(v);
}

/* The expert that was to come stays where it is, for good: what cannot be read or does not
 * fit would be tried again and again. */
static void give_up(struct vram *v, struct move *m, const struct err *e)
{
    const struct seat *s = &v->seat[m->seat];

    if (!v->warned)
        warn(v->c.log, "%s; a seat in VRAM is not given to it", e->text);
    v->warned = true;
    if (s->row >= 0)
        *place_of(v, s->row, s->id) = POLICY_SEATED;
    end_move(v, m);
}

static void stop(struct vram *v, int rc, const struct err *e)
{
    v->fault = rc;
    v->why = *e;
}

static void fill_seat(struct vram *v, struct move *m)
{
    struct err e;
    int rc;

    if (v->seat[m->seat].row >= 0)
        vacate(v, m->seat);
    rc = gpu_fill_slot(v->c.gpu, m->seat, m->lent, &e);
    if (rc == -E2BIG) {
        give_up(v, m, &e);
        return;
    }
    m->stage = FILLING;
    v->stats.bytes += gpu_ffn_bytes(&m->lent->ffn);
    if (rc)
        stop(v, rc, &e);
}

/* Copy back who sits there, where RAM has room; otherwise the drive has it. */
static void begin_leaving(struct vram *v, struct move *m)
{
    const struct seat *s = &v->seat[m->seat];
    const struct expert *into;
    struct err e;
    int rc = experts_adopt(v->c.experts, v->layer_number[s->row], s->id, &into);

    if (rc) {
        fill_seat(v, m);
        return;
    }
    m->stage = LEAVING;
    v->leaving = true;
    rc = gpu_read_slot(v->c.gpu, m->seat, into, &e);
    if (rc)
        stop(v, rc, &e);
}

static void end_leaving(struct vram *v, struct move *m)
{
    struct err e;

    v->leaving = false;
    if (experts_adopted(v->c.experts, &e))
        warn(v->c.log, "%s; it is read from the drive when it is needed", e.text);
    fill_seat(v, m);
}

static void take_seat(struct vram *v, struct move *m)
{
    int layer = v->layer_number[m->row];

    gpu_seat(v->c.gpu, layer, m->id, m->seat);
    experts_elsewhere(v->c.experts, layer, m->id, true);
    *place_of(v, m->row, m->id) = POLICY_SEATED;
    v->seat[m->seat] = (struct seat){ m->row, m->id };
    v->seated++;
    v->stats.promotions++;
    end_move(v, m);
}

static void lend(struct vram *v, struct move *m)
{
    struct err e;
    int rc = experts_lent(v->c.experts, (int)(m - v->move), &m->lent, &e);

    if (rc < 0)
        give_up(v, m, &e);
    else if (rc && (!v->c.exclusive || v->seat[m->seat].row < 0))
        fill_seat(v, m);
    else if (rc && !v->leaving)
        begin_leaving(v, m);
}

static void step(struct vram *v, struct move *m)
{
    if (m->stage == LENDING)
        lend(v, m);
    else if (m->stage == LEAVING && gpu_slot_ready(v->c.gpu, m->seat))
        end_leaving(v, m);
    else if (m->stage == FILLING && gpu_slot_ready(v->c.gpu, m->seat))
        take_seat(v, m);
}

/* The unit of a use grows with every token. */
static float last_token(const struct vram *v)
{
    return experts_popularity(v->c.experts)->layer[0].recent_unit;
}

/* Who changes places next; false: nobody of the rows that are still to be looked at. */
static bool find_exchange(struct vram *v, int *looks, struct move *m)
{
    const struct popularity *p = experts_popularity(v->c.experts);

    if (v->token != last_token(v))
        v->quiet = 0;
    v->token = last_token(v);
    for (; *looks > 0; --*looks) {
        int row = v->look, out;

        v->look = (row + 1) % v->rows;
        v->quiet++;
        if (!policy_exchange(&p->layer[row], place_of(v, row, 0), share_of(v, row) / 4, &m->id,
                             &out))
            continue;
        v->quiet = 0;
        m->row = row;
        m->seat = gpu_seat_of(v->c.gpu, v->layer_number[row], out);
        *place_of(v, row, out) = POLICY_APART;
        return true;
    }
    return false;
}

static bool begin_move(struct vram *v, int *looks, struct move *m)
{
    if (v->credit_bytes < v->move_bytes)
        return false;
    if (v->firsts < v->seats) {
        m->seat = v->firsts;
        m->row = v->first[m->seat].row;
        m->id = v->first[m->seat].id;
        v->firsts++;
    } else if (!find_exchange(v, looks, m)) {
        return false;
    }
    v->credit_bytes -= v->move_bytes;
    *place_of(v, m->row, m->id) = POLICY_APART;
    m->stage = LENDING;
    experts_lend(v->c.experts, (int)(m - v->move),
                 &(struct wanted){ v->layer_number[m->row], m->id, false });
    return true;
}

static void advance(struct vram *v, int looks)
{
    for (int i = 0; i < MOVES && !v->fault; i++) {
        struct move *m = &v->move[i];

        step(v, m);
        if (!v->fault && m->stage == IDLE && begin_move(v, &looks, m))
            step(v, m);
    }
}

void vram_advance(struct vram *v, double seconds)
{
    double now = seconds * v->c.h2d_bytes_per_second;

    if (!(v->c.h2d_bytes_per_second > 0))
        now = seconds > 0 ? v->move_bytes : 0;
    v->credit_bytes = fmin(v->credit_bytes + now, fmax(now, v->move_bytes));
    advance(v, v->c.fixed || !v->seats ? 0 : LOOKS);
}

int vram_fill(struct vram *v, struct err *e)
{
    const struct timespec nap = { 0, 50000 };

    v->credit_bytes = INFINITY;
    while (!v->fault && (v->firsts < v->seats || vram_busy(v))) {
        uint64_t before = v->stats.promotions;

        advance(v, 0);
        if (v->stats.promotions == before)
            nanosleep(&nap, NULL);
    }
    v->credit_bytes = 0;
    return vram_fault(v, e);
}

bool vram_busy(const struct vram *v)
{
    for (int i = 0; i < MOVES; i++)
        if (v->move[i].stage != IDLE)
            return true;
    return false;
}

bool vram_pending(const struct vram *v)
{
    if (v->fault || !v->seats)
        return false;
    return v->firsts < v->seats || vram_busy(v) ||
           (!v->c.fixed && (v->quiet < v->rows || v->token != last_token(v)));
}

int vram_fault(const struct vram *v, struct err *e)
{
    return v->fault ? fail(e, v->fault, "%s", v->why.text) : 0;
}

int vram_seated(const struct vram *v)
{
    return v->seated;
}

struct vram_stats vram_stats(const struct vram *v)
{
    struct vram_stats s = v->stats;

    s.seats = v->seats;
    s.seated = v->seated;
    return s;
}
