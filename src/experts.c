/* The routed experts, wherever they lie: one request at a time, statistics, counters. */
#include "src/experts_internal.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>

struct experts {
    const struct model *model;
    struct log *log;
    const char *state_dir;
    struct expert_set *set;             /* one of the two */
    struct expert_tiers *tiers;
    struct popularity popularity;
    bool noted;                         /* since the last save */
    bool guess;
    struct tier_counts counts;
    /* The request in progress, where all experts are in RAM. */
    const struct expert *wanted[MAX_EXPERTS];
    int wants;
    const struct expert *lent[EXPERT_LOANS];
};

void expert_parts(const struct expert_source *s, struct extent_part part[EXPERT_PARTS])
{
    for (int i = 0; i < EXPERT_PARTS; i++)
        part[i] = (struct extent_part){ s->part[i].shard, s->part[i].offset, s->part[i].bytes };
}

void expert_bind(struct expert *x, const struct expert_source *s, const uint8_t *memory,
                 const uint32_t at[EXPERT_PARTS])
{
    struct matrix *m[] = { &x->ffn.gate, &x->ffn.up, &x->ffn.down };

    x->ffn = s->ffn;
    for (int i = 0; i < EXPERT_PARTS; i++) {
        const void *p = memory + at[i];

        if (s->part[i].shard < 0)
            continue;
        if (i % 3 == 0)
            m[i / 3]->weight = p;
        else if (i % 3 == 1)
            m[i / 3]->scale = p;
        else
            m[i / 3]->zero = p;
    }
}

/* No quantizer writes a scale of zero: it is where a download has not arrived. */
static bool scale_is_sound(const struct matrix *m, size_t i)
{
    bf16 s;

    if (m->format == W_MXFP4)
        return ((const uint8_t *)m->scale)[i] != 0xff;
    memcpy(&s, (const uint8_t *)m->scale + i * sizeof(s), sizeof(s));
    return (s & 0x7f80) != 0x7f80 && (s & 0x7fff);
}

int expert_check_scales(const struct expert *x, struct err *e)
{
    static const char *const names[] = { "gate_proj", "up_proj", "down_proj" };
    const struct matrix *m[] = { &x->ffn.gate, &x->ffn.up, &x->ffn.down };

    for (int i = 0; i < 3; i++) {
        size_t n = m[i]->scale ? (size_t)m[i]->rows * (size_t)(m[i]->cols / m[i]->group) : 0;

        for (size_t g = 0; g < n; g++)
            if (!scale_is_sound(m[i], g))
                return fail(e, -EBADMSG, "layer %d, expert %d: %s.weight_scale: group %zu of %zu "
                            "is zero or not a finite number", x->layer, x->id, names[i], g, n);
    }
    return 0;
}

static int open_popularity(struct experts *x, struct err *e)
{
    const struct shape *s = &x->model->shape;
    int rc = popularity_open(&x->popularity, s->sparse_layers, s->experts,
                             x->model->fingerprint, e), made;

    if (rc || !x->state_dir)
        return rc;
    made = make_directory(x->state_dir);
    if (made) {
        warn(x->log, "%s: %s; the router's statistics are not kept", x->state_dir,
             strerror(-made));
        x->state_dir = NULL;
        return 0;
    }
    popularity_load(&x->popularity, x->state_dir, x->log);
    return 0;
}

int experts_open(struct experts **out, const struct experts_config *c, struct err *e)
{
    struct experts *x = calloc(1, sizeof(*x));
    int rc;

    if (!x)
        return fail(e, -ENOMEM, "out of memory");
    x->model = c->model;
    x->log = c->log;
    x->state_dir = c->state_dir;
    x->guess = c->guess;
    rc = c->model->shape.sparse_layers ? open_popularity(x, e) : 0;
    if (!rc)
        rc = c->slots == EXPERTS_ALL ? expert_set_open(&x->set, c, e)
                                     : expert_tiers_open(&x->tiers, c, &x->popularity, e);
    if (rc) {
        experts_close(x);
        return rc;
    }
    if (x->tiers)
        expert_tiers_warm(x->tiers);
    *out = x;
    return 0;
}

int experts_close(struct experts *x)
{
    int rc;

    if (!x)
        return 0;
    rc = expert_tiers_close(x->tiers);
    expert_set_close(x->set);
    popularity_close(&x->popularity);
    free(x);
    return rc;
}

void experts_request(struct experts *x, int layer, const uint16_t *id, int n)
{
    if (x->tiers) {
        expert_tiers_request(x->tiers, layer, id, n, &x->counts);
        return;
    }
    for (int i = 0; i < n; i++)
        x->wanted[i] = expert_set_get(x->set, layer, id[i]);
    x->wants = n;
    x->counts.ram += (uint64_t)n;
}

int experts_next(struct experts *x, const struct expert *const **out, struct err *e)
{
    int n = x->wants;

    if (x->tiers)
        return expert_tiers_next(x->tiers, out, e);
    *out = x->wanted;
    x->wants = 0;
    return n;
}

void experts_release(struct experts *x)
{
    if (x->tiers)
        expert_tiers_release(x->tiers);
}

void experts_finish(struct experts *x)
{
    if (x->tiers)
        expert_tiers_finish(x->tiers);
}

bool experts_want_guess(const struct experts *x)
{
    return x->tiers && x->guess;
}

void experts_guess(struct experts *x, int layer, const struct route *r)
{
    expert_tiers_guess(x->tiers, layer, r);
}

void experts_lend(struct experts *x, int loan, const struct wanted *w)
{
    assert(loan >= 0 && loan < EXPERT_LOANS);
    if (x->tiers) {
        expert_tiers_lend(x->tiers, loan, w, &x->counts);
        return;
    }
    x->lent[loan] = expert_set_get(x->set, w->layer, w->id);
    x->counts.ram += w->needed;
}

int experts_lent(struct experts *x, int loan, const struct expert **out, struct err *e)
{
    if (x->tiers)
        return expert_tiers_lent(x->tiers, loan, out, e);
    *out = x->lent[loan];
    return 1;
}

void experts_return(struct experts *x, int loan)
{
    if (x->tiers)
        expert_tiers_return(x->tiers, loan);
}

bool experts_at_hand(const struct experts *x, int layer, int id)
{
    return x->tiers && expert_tiers_at_hand(x->tiers, layer, id);
}

void experts_elsewhere(struct experts *x, int layer, int id, bool elsewhere)
{
    if (x->tiers)
        expert_tiers_elsewhere(x->tiers, layer, id, elsewhere);
}

int experts_adopt(struct experts *x, int layer, int id, const struct expert **out)
{
    return x->tiers ? expert_tiers_adopt(x->tiers, layer, id, out) : -EEXIST;
}

int experts_adopted(struct experts *x, struct err *e)
{
    return x->tiers ? expert_tiers_adopted(x->tiers, e) : 0;
}

void experts_count_vram(struct experts *x, int n)
{
    x->counts.vram += (uint64_t)n;
}

void experts_count_uploads(struct experts *x, int n)
{
    x->counts.uploaded += (uint64_t)n;
}

bool experts_poll(struct experts *x)
{
    return x->tiers && expert_tiers_poll(x->tiers);
}

void experts_fill(struct experts *x)
{
    if (x->tiers)
        expert_tiers_fill(x->tiers);
}

void experts_note(struct experts *x, int layer, const struct route *r)
{
    for (int t = 0; t < r->tokens; t++)
        popularity_note(&x->popularity, x->model->sparse_index[layer],
                        r->expert + (size_t)t * (size_t)r->topk, r->topk);
    x->noted = true;
}

void experts_save(struct experts *x)
{
    if (x->tiers)
        expert_tiers_check_pins(x->tiers);
    if (x->noted && x->state_dir)
        popularity_save(&x->popularity, x->state_dir, x->log);
    x->noted = false;
}

struct tier_counts experts_counts(const struct experts *x)
{
    struct tier_counts c = x->counts;

    if (x->tiers)
        expert_tiers_counts(x->tiers, &c);
    return c;
}

const struct popularity *experts_popularity(const struct experts *x)
{
    return &x->popularity;
}
