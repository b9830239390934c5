/* mkmodel: a checkpoint of any Laguna shape, with random weights, for tests and benches.
 * This file decides the shape and refuses what no loader could read. */
#include "config.h"

#include "tests/mkmodel.h"

#include <errno.h>
#include <getopt.h>
#include <stdlib.h>
#include <sys/stat.h>

static const char USAGE[] =
    "Usage: mkmodel --out DIR [OPTION]...\n"
    "Write a Laguna checkpoint with random weights.\n"
    "\n"
    "      --preset tiny|s21    start from these dimensions [tiny]\n"
    "      --format FORMAT      bf16, w4a16, mxfp4 (routed experts) or mixed [w4a16]\n"
    "      --layers N  --hidden N  --vocab N  --head-dim N  --kv-heads N\n"
    "      --heads N            on full-attention layers\n"
    "      --heads-window N     on sliding-window layers\n"
    "      --window N  --dense-inner N  --experts N  --topk N\n"
    "      --expert-inner N  --shared-inner N\n"
    "      --shards N           files [by size]\n"
    "      --skew S[:T]         share of the picks that a quarter of a layer's experts\n"
    "                           takes, in the first layer and the last [0.25, even]\n"
    "      --seed N             [1]\n"
    "      --sparse             holes in place of weights\n"
    "      --like DIR           copy template and tokenizer from there [models/nano]\n";

static const struct plan TINY = {
    .like = "models/nano",
    .format = W4A16,
    .layers = 5,
    .hidden = 128,
    .vocab = 4096,
    .head_dim = 32,
    .heads_full = 4,
    .heads_window = 6,
    .kv_heads = 2,
    .window = 64,
    .dense_inner = 256,
    .experts = 32,
    .topk = 4,
    .expert_inner = 64,
    .shared_inner = 64,
    .rope_factor = 16,
    .rope_original = 2048,
    .seed = 1,
    .skew_first = 0.25,
    .skew_last = 0.25,
};

static const struct plan S21 = {
    .like = "models/nano",
    .format = W4A16,
    .layers = 48,
    .hidden = 3072,
    .vocab = 100352,
    .head_dim = 128,
    .heads_full = 48,
    .heads_window = 72,
    .kv_heads = 8,
    .window = 512,
    .dense_inner = 12288,
    .experts = 256,
    .topk = 10,
    .expert_inner = 1024,
    .shared_inner = 1024,
    .rope_factor = 128,
    .rope_original = 8192,
    .seed = 1,
    .skew_first = 0.25,
    .skew_last = 0.25,
};

/* Each number's bounds; the matrix kernels and the 4-bit groups need the multiples. */
struct number {
    const char *name;
    size_t at; /* in struct plan */
    int min, max, multiple;
};

#define AT(field) offsetof(struct plan, field)
static const struct number NUMBERS[] = {
    {"layers", AT(layers), 2, 128, 1},
    {"hidden", AT(hidden), 32, 65536, 32},
    {"vocab", AT(vocab), 288, 400000, 1},
    {"head-dim", AT(head_dim), 32, 256, 32},
    {"heads", AT(heads_full), 1, 1024, 1},
    {"heads-window", AT(heads_window), 1, 1024, 1},
    {"kv-heads", AT(kv_heads), 1, 256, 1},
    {"window", AT(window), 1, 1 << 20, 1},
    {"dense-inner", AT(dense_inner), 32, 1 << 20, 32},
    {"experts", AT(experts), 4, EXPERTS_MAX, 4},
    {"topk", AT(topk), 1, 32, 1},
    {"expert-inner", AT(expert_inner), 32, 1 << 20, 32},
    {"shared-inner", AT(shared_inner), 0, 1 << 20, 32},
    {"shards", AT(shards), 1, 99999, 1},
};
enum { NUMBER_COUNT = sizeof(NUMBERS) / sizeof(NUMBERS[0]) };
#undef AT

enum choice { OUT = NUMBER_COUNT, PRESET, FORMAT, SKEW, SEED, SPARSE, LIKE, HELP, OPTIONS };

static int set_number(struct plan *p, const struct number *n, const char *text, struct err *e)
{
    char *end;
    long value;

    errno = 0;
    value = strtol(text, &end, 10);
    if (errno || end == text || *end || value < n->min || value > n->max || value % n->multiple)
        return fail(e, -EINVAL, "--%s %s: a multiple of %d from %d to %d", n->name, text,
                    n->multiple, n->min, n->max);
    memcpy((char *)p + n->at, &(int){(int)value}, sizeof(int));
    return 0;
}

static int set_format(struct plan *p, const char *text, struct err *e)
{
    static const char *const names[] = {
        [BF16] = "bf16", [W4A16] = "w4a16", [MXFP4] = "mxfp4", [MIXED] = "mixed"};

    for (int i = 0; i < 4; i++)
        if (!strcmp(names[i], text)) {
            p->format = (enum format)i;
            return 0;
        }
    return fail(e, -EINVAL, "--format %s: bf16, w4a16, mxfp4 or mixed", text);
}

static int set_skew(struct plan *p, const char *text, struct err *e)
{
    char *end;

    p->skew_first = p->skew_last = strtod(text, &end);
    if (*end == ':')
        p->skew_last = strtod(end + 1, &end);
    if (*end || !(p->skew_first >= 0.05 && p->skew_first <= 0.95) ||
        !(p->skew_last >= 0.05 && p->skew_last <= 0.95))
        return fail(e, -EINVAL, "--skew %s: a share from 0.05 to 0.95, or two as 0.3:0.7", text);
    return 0;
}

static int set_option(struct plan *p, int option, const char *value, struct err *e)
{
    char *end;

    if (option < NUMBER_COUNT)
        return set_number(p, &NUMBERS[option], value, e);
    switch ((enum choice)option) {
    case OUT:
        p->out = value;
        return 0;
    case PRESET:
        return 0; /* parse() took it before all others */
    case FORMAT:
        return set_format(p, value, e);
    case SKEW:
        return set_skew(p, value, e);
    case SEED:
        p->seed = strtoull(value, &end, 0);
        return *end ? fail(e, -EINVAL, "--seed %s: a number", value) : 0;
    case SPARSE:
        p->sparse = true;
        return 0;
    case LIKE:
        p->like = value;
        return 0;
    default:
        return fail(e, -EINVAL, "see mkmodel --help");
    }
}

static int check(struct plan *p, struct err *e)
{
    double bytes;

    if (!p->out)
        return fail(e, -EINVAL, "--out is missing");
    if (p->heads_full % p->kv_heads || p->heads_window % p->kv_heads)
        return fail(e, -EINVAL, "%d and %d heads: multiples of the %d KV heads", p->heads_full,
                    p->heads_window, p->kv_heads);
    if (p->topk > p->experts)
        return fail(e, -EINVAL, "--topk %d of %d experts", p->topk, p->experts);
    if (!p->shards) {
        /* Files of at most 20 GB, and more than one so that there is an index. */
        bytes = 3.0 * (p->layers - 1) * p->experts * p->expert_inner * p->hidden *
                (p->format == BF16 ? 2 : 0.57);
        p->shards = bytes > 80e9 ? (int)(bytes / 20e9) + 1 : bytes > 10e9 ? 4 : 2;
    }
    return 0;
}

static int parse(struct plan *p, int argc, char **argv, struct err *e)
{
    static const struct {
        const char *name;
        int has_value;
    } rest[] = {
        {"out", 1},  {"preset", 1}, {"format", 1}, {"skew", 1},
        {"seed", 1}, {"sparse", 0}, {"like", 1},   {"help", 0},
    };
    struct option options[OPTIONS + 1] = {{0}};
    int rc = 0, c;

    for (int i = 0; i < OPTIONS; i++) {
        bool number = i < NUMBER_COUNT;

        options[i].name = number ? NUMBERS[i].name : rest[i - NUMBER_COUNT].name;
        options[i].has_arg = number || rest[i - NUMBER_COUNT].has_value;
        options[i].val = i;
    }
    /* The preset first, wherever it stands. */
    opterr = 0;
    *p = TINY;
    while ((c = getopt_long(argc, argv, "", options, NULL)) != -1)
        if (c == PRESET && !strcmp(optarg, "s21"))
            *p = S21;
        else if (c == PRESET && strcmp(optarg, "tiny"))
            return fail(e, -EINVAL, "--preset %s: tiny or s21", optarg);
    optind = opterr = 1;
    while (!rc && (c = getopt_long(argc, argv, "", options, NULL)) != -1) {
        if (c == HELP) {
            fputs(USAGE, stdout);
            exit(0);
        }
        rc = set_option(p, c, optarg, e);
    }
    if (!rc && optind < argc)
        rc = fail(e, -EINVAL, "%s: what is it?", argv[optind]);
    return rc ? rc : check(p, e);
}

int main(int argc, char **argv)
{
    struct layout layout = {0};
    struct plan plan;
    struct err e = {""};
    double start = clock_now();
    int rc = parse(&plan, argc, argv, &e);

    if (!rc && mkdir(plan.out, 0777) && errno != EEXIST)
        rc = fail(&e, -errno, "%s: %s", plan.out, strerror(errno));
    if (!rc)
        rc = config_write(&plan, &e);
    if (!rc)
        rc = layout_make(&layout, &plan, &e);
    if (!rc)
        rc = shards_write(&plan, &layout, &e);
    if (rc)
        fprintf(stderr, "mkmodel: %s\n", e.text);
    else
        printf("%zu tensors, %.3f GB, %.2f s, %.0f MB/s\n", layout.n, (double)layout.total / 1e9,
               clock_now() - start, (double)layout.total / 1e6 / (clock_now() - start));
    layout_free(&layout);
    return exit_status(rc);
}
