#include "tests/bench.h"
#include "tests/routes.h"

#include <cjson/cJSON.h>
#include <stdio.h>
#include <stdlib.h>

/* Hit rates of LRU, LFU, the policy and Belady's optimum on made-up traces, and on those that
 * --trace-routes recorded, for several sizes of a layer's cache.
 *
 *     bench_cache [--json FILE] [-p PLACES,...] [TOKENS]
 *                                                     generated: 256 experts, top 10
 *     bench_cache [-p PLACES,...] FILE.safetensors... recorded: each tensor
 *                                                     [tokens][layers][topk] */

enum { SIZES_MAX = 16 };

/* Places a layer; 0 of them: 1/16, 1/8, 1/4 and 1/2 of the experts. */
struct sizes {
    int count, places[SIZES_MAX];
};

static struct sizes fractions(const struct sizes *asked, int experts)
{
    struct sizes s = { 4, { experts / 16, experts / 8, experts / 4, experts / 2 } };

    return asked->count ? *asked : s;
}

static struct sizes parse_sizes(const char *text)
{
    struct sizes s = { 0 };
    char *end;

    for (const char *p = text; *p && s.count < SIZES_MAX; p = *end ? end + 1 : end) {
        long n = strtol(p, &end, 10);

        if (end == p || n < 1 || n > 1024 || (*end && *end != ',')) {
            fprintf(stderr, "places are numbers from 1 to 1024, separated by commas: %s\n", text);
            exit(64);
        }
        s.places[s.count++] = (int)n;
    }
    return s;
}

static void heading(const char *what)
{
    printf("\n| %s | places | LRU | LFU | policy | Belady | policy - LRU |\n"
           "|---|---|---|---|---|---|---|\n", what);
}

static double row(const char *name, int places, const double hit[REPLAYS])
{
    printf("| %s | %d | %.1f | %.1f | %.1f | %.1f | %+.1f |\n", name, places, hit[REPLAY_LRU],
           hit[REPLAY_LFU], hit[REPLAY_POLICY], hit[REPLAY_BELADY],
           hit[REPLAY_POLICY] - hit[REPLAY_LRU]);
    return hit[REPLAY_POLICY] - hit[REPLAY_LRU];
}

/* What the policy makes of all generated traces together. */
struct sums {
    int traces, gains;
    double hit[SIZES_MAX][REPLAYS];     /* by size */
    double worst, gain;                 /* points over LRU; gain: of `gains` replays */
};

static void print_sums(struct bench *b, const struct sums *s, const struct sizes *sizes)
{
    static const double most_lost = 0.5, least_gained = 1;
    double gain = s->gain / s->gains;
    char name[64];

    for (int k = 0; k < sizes->count; k++) {
        double ours = s->hit[k][REPLAY_POLICY], best = s->hit[k][REPLAY_BELADY];

        snprintf(name, sizeof(name), "hits in %d places, against Belady's", sizes->places[k]);
        bench_row(b, name, ours / s->traces, "%", best / s->traces, ours / best, 0);
    }
    bench_row(b, "most that the policy loses to LRU", -s->worst, "points", most_lost,
              -s->worst / most_lost, -1);
    bench_row(b, "gain over LRU, mean of shares of 0.55 and more", gain, "points", least_gained,
              gain / least_gained, 1);
}

static void generated(struct bench *b, int tokens, const struct sizes *asked)
{
    static const double share[] = { 0.32, 0.55, 0.65, 0.8 }, repeat[] = { 0, 0.3, 0.6 };
    const struct sizes sizes = fractions(asked, 256);
    struct sums s = { .worst = 100 };

    heading("share of the hot quarter, repeats (as found)");
    for (; s.traces < 12; s.traces++) {
        double hot = share[s.traces / 3], again = repeat[s.traces % 3];
        struct routes r;
        char name[64];

        routes_make(&r, 256, 10, tokens, hot, again, 64, 7);
        snprintf(name, sizeof(name), "%.2f, %.1f (%.2f, %.2f)", hot, again, routes_share(&r),
                 routes_repeat(&r));
        for (int k = 0; k < sizes.count; k++) {
            double hit[REPLAYS], gain;

            for (int how = 0; how < REPLAYS; how++) {
                hit[how] = routes_replay(&r, (enum replay)how, sizes.places[k]);
                s.hit[k][how] += hit[how];
            }
            gain = row(name, sizes.places[k], hit);
            s.worst = gain < s.worst ? gain : s.worst;
            s.gain += hot >= 0.55 ? gain : 0;
            s.gains += hot >= 0.55;
        }
        routes_free(&r);
    }
    print_sums(b, &s, &sizes);
}

/* One layer of a recorded tensor; width: bytes a pick. */
static struct routes layer_of(const uint8_t *data, const int dim[3], int layer, int width)
{
    struct routes r = { dim[0], dim[2], 0, NULL };

    r.pick = malloc((size_t)dim[0] * dim[2] * sizeof(*r.pick));
    for (int t = 0; t < dim[0]; t++)
        for (int i = 0; i < dim[2]; i++) {
            const uint8_t *p = data + (((size_t)t * dim[1] + layer) * dim[2] + i) * width;
            int pick = width == 1 ? *p : p[0] | p[1] << 8;

            r.pick[(size_t)t * dim[2] + i] = (uint16_t)pick;
            r.experts = pick >= r.experts ? pick + 1 : r.experts;
        }
    return r;
}

static void recorded(const char *name, const uint8_t *data, const int dim[3], int width,
                     const struct sizes *asked)
{
    double hit[SIZES_MAX][REPLAYS] = { { 0 } };
    struct routes *r = calloc((size_t)dim[1], sizeof(*r));
    struct sizes sizes;
    int experts = 16;

    for (int l = 0; l < dim[1]; l++) {
        r[l] = layer_of(data, dim, l, width);
        while (experts < r[l].experts)
            experts *= 2;
    }
    sizes = fractions(asked, experts);
    for (int l = 0; l < dim[1]; l++) {
        for (int k = 0; k < sizes.count; k++)
            for (int how = 0; how < REPLAYS; how++)
                hit[k][how] += routes_replay(&r[l], (enum replay)how, sizes.places[k]) / dim[1];
        routes_free(&r[l]);
    }
    for (int k = 0; k < sizes.count; k++)
        row(name, sizes.places[k], hit[k]);
    free(r);
}

static int read_tensor(const cJSON *t, const uint8_t *data, size_t bytes,
                       const struct sizes *asked)
{
    const cJSON *shape = cJSON_GetObjectItem(t, "shape");
    const char *dtype = cJSON_GetStringValue(cJSON_GetObjectItem(t, "dtype"));
    double from = cJSON_GetNumberValue(cJSON_GetArrayItem(
        cJSON_GetObjectItem(t, "data_offsets"), 0));
    int width = dtype && !strcmp(dtype, "U16") ? 2 : 1, dim[3];
    size_t need = (size_t)width;

    if (cJSON_GetArraySize(shape) != 3 || !dtype || *dtype != 'U')
        return 0;       /* __metadata__ and the like */
    for (int i = 0; i < 3; i++) {
        dim[i] = (int)cJSON_GetNumberValue(cJSON_GetArrayItem(shape, i));
        if (dim[i] < 1)
            return -1;
        need = mul_sat(need, (size_t)dim[i]);
    }
    if (!(from >= 0 && from <= (double)bytes) || need > bytes - (size_t)from)
        return -1;
    recorded(t->string, data + (size_t)from, dim, width, asked);
    return 0;
}

static int read_file(const char *path, const struct sizes *asked)
{
    FILE *f = fopen(path, "rb");
    uint8_t *all = NULL;
    uint64_t head = 0;
    size_t n = 0;
    cJSON *json;
    int rc = 0;

    if (f && !fseek(f, 0, SEEK_END)) {
        n = (size_t)ftell(f);
        rewind(f);
        all = malloc(n + 1);
        n = fread(all, 1, n, f);
    }
    if (f)
        fclose(f);
    if (n > 8)
        memcpy(&head, all, 8);
    json = head && head <= n - 8 ? cJSON_ParseWithLength((char *)all + 8, head) : NULL;
    if (!json)
        rc = -1;
    heading(path);
    for (const cJSON *t = json ? json->child : NULL; t && !rc; t = t->next)
        rc = read_tensor(t, all + 8 + head, n - 8 - head, asked);
    if (rc)
        fprintf(stderr, "%s: not a file of routes\n", path);
    cJSON_Delete(json);
    free(all);
    return rc;
}

int main(int argc, char **argv)
{
    struct bench *b = bench_open(&argc, &argv);
    struct sizes asked = { 0 };
    int tokens, rc = 0;

    if (argc > 2 && !strcmp(argv[1], "-p")) {
        asked = parse_sizes(argv[2]);
        argc -= 2;
        argv += 2;
    }
    tokens = argc == 2 ? atoi(argv[1]) : 6000;
    if (argc == 1 || tokens > 0)
        generated(b, tokens, &asked);
    else
        for (int i = 1; i < argc && !rc; i++)
            rc = read_file(argv[i], &asked);
    bench_close(b);
    return rc ? 65 : 0;
}
