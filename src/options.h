#ifndef LAGUNA_OPTIONS_H
#define LAGUNA_OPTIONS_H

#include "src/base.h"
#include "src/http_head.h"

/* Everything a person can set: command line, then LAGUNA_* in the environment, then
 * /etc/laguna-offload.conf, then the defaults.  The only file that reads the environment. */

enum command { CMD_NONE, CMD_RUN, CMD_BATCH, CMD_SCORE, CMD_TOKENIZE, CMD_RENDER, CMD_BENCH,
               CMD_SERVE, CMD_PLAN, CMD_STATS, CMD_DOCTOR, CMD_TOP };

enum { SIZE_AUTO = -1, CONTEXT_AUTO = 0, THREADS_AUTO = 0, OPTION_GPUS = 8, OPTION_STOPS = 16,
       OPTION_LIST = 16 };

/* Numbers of a list such as 128,512. */
struct option_list {
    int v[OPTION_LIST];         /* [n] */
    int n;
};

struct engine_faults;

struct options {
    enum command command;
    const char *model_dir;
    int context;                /* tokens, or CONTEXT_AUTO */
    int threads;                /* or THREADS_AUTO */
    const char *isa;            /* "auto", or a name that exists */
    const char *kv_type;        /* q8 fp8 bf16 f32 */
    const char *device;         /* cpu, cuda, cuda:N, ref, auto */
    float upload_share;         /* 0 to 1; NaN: auto */
    int gpu_watchdog;           /* seconds; 0: for ever */
    int64_t ram_bytes, ram_experts_bytes, vram_experts_bytes;   /* or SIZE_AUTO */
    int64_t vram_bytes[OPTION_GPUS];    /* or SIZE_AUTO, also where the list was shorter */
    int64_t vram_reserve_bytes; /* what --vram auto leaves free, or SIZE_AUTO */
    const char *io;             /* uring preadv auto */
    int io_depth;
    bool guess;                 /* read ahead for the next layer */
    const char *trace_routes;   /* a file to write, or NULL */
    const char *state_dir;      /* NULL: there is no place for state */
    const char *cache_dir;      /* NULL: likewise */
    bool deterministic;
    bool plain_terminal;        /* NO_COLOR or TERM=dumb: no escape sequences */
    struct log log;

    const char *file;           /* input: a path, "-", or NULL */
    const char *prompt;         /* run */
    const char *system;         /* run; NULL: the template's default */
    bool think;
    int max_tokens;             /* -n; -1: until the context ends */
    float temperature, top_p, min_p;    /* NAN: the checkpoint's default */
    int top_k;                  /* -1: the checkpoint's default */
    bool seed_set;
    uint64_t seed;
    const char *stop[OPTION_STOPS];     /* [stops] */
    int stops;

    bool ids, decode, logits, routes, jsonl, as_text, add_bos;  /* score, tokenize, render */
    int window, max_windows;    /* score; max_windows 0: all */

    bool json, csv, markdown;   /* plan, doctor, bench, stats: the form of the output */
    const char *machine;        /* plan: a file that describes one, or NULL */
    bool remeasure;             /* plan, doctor */
    const char *svg;            /* stats: a file to write, or NULL */
    struct option_list prompts, generations, depths;    /* bench: tokens */
    int repetitions;            /* bench */

    /* serve, top */
    const char *host;           /* an address, or a path that ends in .sock */
    int port;                   /* 0: any */
    const char *api_key, *api_key_file, *cors_origins, *alias;      /* each may be NULL */
    const char *log_format;     /* text json journal */
    int queue, sessions, drain_seconds;
    struct http_limits limits;
    bool prefix_debug;
    const char *url;            /* top: of the server */
    const char *notify_socket;  /* of systemd, or NULL */
    int listen_fds;             /* sockets that systemd holds open, from 3 on */
    bool watchdog;              /* systemd wants to hear that the server lives */

    const struct engine_faults *faults; /* what a test wants to go wrong; no option sets it */

    void *owned[OPTION_STOPS];  /* memory behind the pointers above */
    int owneds;
};

/* Fill *o, whose strings live as long as argv, the environment and *o.  0; 1 where --help,
 * --version or --isa help was answered on stdout; -EINVAL with the words for a bad command
 * line; -ENOTSUP for an ISA this machine lacks.  Free *o whatever the answer. */
int options_parse(struct options *o, int argc, char **argv, struct err *e);
void options_free(struct options *o);

#endif
