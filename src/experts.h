#ifndef LAGUNA_EXPERTS_H
#define LAGUNA_EXPERTS_H

#include "src/model.h"
#include "storage/extents.h"
#include "storage/popularity.h"
#include "storage/stream.h"

struct pool;

/* The routed experts: all in RAM, read at start, where they fit; else in slots, read from the
 * drive when they are needed.  Nothing above this header knows which. */
struct experts;

struct experts_config {
    const struct model *model;
    struct pool *pool;
    int slots;                          /* in RAM, or EXPERTS_ALL */
    size_t slot_bytes;                  /* each holds any expert of the model */
    struct stream_config stream;        /* how the drive is read; its log is filled in */
    const char *state_dir;              /* of the router's statistics, or NULL */
    bool guess;                         /* read ahead what the next layer may want */
    bool copies;                        /* RAM holds everything: what moves to VRAM stays */
    struct log *log;
    /* With a GPU: makes memory known to it, and forgets it again; else NULL. */
    int (*pin)(void *base, size_t bytes, struct err *e);
    void (*unpin)(void *base);
    /* For loading; may be NULL: called with bytes done and total, from this thread. */
    void (*progress)(void *, size_t, size_t);
    void *arg;
};

/* Loans: the first ones are those of vram.c, the others of feed.c. */
enum { EXPERTS_ALL = -1, VRAM_LOANS = 16, FEED_LOAN = VRAM_LOANS, FEED_LOANS = 96,
       EXPERT_LOANS = VRAM_LOANS + FEED_LOANS };

/* Where the experts of all requests lay when they were needed, counted once a layer and
 * batch.  Only grows. */
struct tier_counts {
    uint64_t vram, ram, nvme;
    uint64_t uploaded;                  /* of those in RAM: the GPU fetched them in a decode step */
    uint64_t nvme_bytes;
    double io_wait_seconds;             /* the engine waited for the drive */
    uint64_t guess_asked, guess_right;  /* experts wanted after a guess, and of them guessed */
};

/* Blocks for as long as the bytes take, where all experts are read.  -EBADMSG names layer,
 * expert and tensor where a scale is zero or not finite. */
int  experts_open(struct experts **out, const struct experts_config *c, struct err *e);

/* -ETIMEDOUT: the drive still holds slots, and everything behind them is leaked. */
int  experts_close(struct experts *x);

/* The parts of an expert as extents_plan() takes them. */
void expert_parts(const struct expert_source *s, struct extent_part part[EXPERT_PARTS]);

/* One request at a time: say which experts of a layer are wanted (ascending, each once), ask
 * for the next ones until none is left, release what was handed over, and finish. */
void experts_request(struct experts *x, int layer, const uint16_t *id, int n);

/* How many experts are in memory now and were not handed over before; waits for the first.
 * (*out)[0..] stay valid until they are released.  0: all were handed over.  Negative: why an
 * expert cannot be had, in words; the request must be finished. */
int  experts_next(struct experts *x, const struct expert *const **out, struct err *e);
void experts_release(struct experts *x);        /* what experts_next() gave last */
void experts_finish(struct experts *x);

/* Whether a guess is of use: some experts lie on the drive. */
bool experts_want_guess(const struct experts *x);

/* What the layer's router would choose as far as is known now.  Call it after
 * experts_request() for the layer before; what is guessed is read when nothing urgent is. */
void experts_guess(struct experts *x, int layer, const struct route *r);

/* An expert that a copy is made of.  needed: now, by tokens; else for later ones. */
struct wanted {
    int layer, id;
    bool needed;
};

/* Loans, beside requests: experts in RAM from where they are copied to VRAM.  `loan` numbers
 * them, 0 to EXPERT_LOANS - 1, and must be free.  Reads begin at once; those that are
 * not needed now give way to all others.  At most a quarter of the slots is lent: the other
 * loans wait their turn. */
void experts_lend(struct experts *x, int loan, const struct wanted *w);

/* 1 and *out: the expert is there, and stays until the loan is returned; 0: not yet; negative:
 * why it cannot be had, in words, and the loan is to be returned.  Never blocks. */
int  experts_lent(struct experts *x, int loan, const struct expert **out, struct err *e);
void experts_return(struct experts *x, int loan);       /* in any state; frees the number */

/* Whether the expert could be lent at once, from pinned memory. */
bool experts_at_hand(const struct experts *x, int layer, int id);

/* The expert moved to VRAM, or is there no more.  Without `copies` it leaves its slot. */
void experts_elsewhere(struct experts *x, int layer, int id, bool elsewhere);

/* A place in RAM for an expert that leaves VRAM, one at a time: its matrices point at memory
 * to be filled; then experts_adopted().  -EBUSY: there is no place: drop it, the drive has it.
 * -EEXIST: RAM has it already. */
int  experts_adopt(struct experts *x, int layer, int id, const struct expert **out);

/* -EBADMSG: not the bytes that were lent; they are forgotten. */
int  experts_adopted(struct experts *x, struct err *e);

/* So many of the experts that were needed lay in VRAM. */
void experts_count_vram(struct experts *x, int n);

/* So many that were lent were computed by the GPU in a decode step. */
void experts_count_uploads(struct experts *x, int n);

/* Take in what was read and go on filling RAM.  Whether reads are under way.  Never blocks. */
bool experts_poll(struct experts *x);

/* Until RAM is as full as it gets, and pinned.  Blocks. */
void experts_fill(struct experts *x);

/* The router's choices go into the statistics. */
void experts_note(struct experts *x, int layer, const struct route *r);

/* The statistics, atomically, where they have changed and have a place. */
void experts_save(struct experts *x);

struct tier_counts experts_counts(const struct experts *x);
const struct popularity *experts_popularity(const struct experts *x);

#endif
