/* How fast the model's text is taken apart: MB/s over kinds of text, each read whole and in
 * pieces of a token's length, and how the time grows with the size (1.0: linear).
 *     tests/bench_parse */
#include "src/toolparse.h"

#include <stdio.h>
#include <stdlib.h>
#include <time.h>

enum { BYTES = 1 << 20, ROUNDS = 9 };

static const struct {
    const char *name, *piece;
    bool thinking;
} kind[] = {
    { "prose", "The command grep prints lines that match a pattern. ", false },
    { "thoughts", "First the pattern, then the file. ", true },
    { "calls", "<tool_call>run_shell<arg_key>command</arg_key><arg_value>grep -rn alpha /tmp"
      "</arg_value></tool_call>\n", false },
    { "<", "<", false },
    { "blanks", " ", false },
    { "newlines", "\n", false },
    { "opening tags", "<tool_call>", false },
    { "closing tags", "</arg_value>", false },
    { "halves of tags", "<tool_ca", false },
    { "thinking tags", "</think><think>", true },
};

static double now(void)
{
    struct timespec t;

    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static void count(void *arg, const struct event *v)
{
    *(size_t *)arg += v->n;
}

static int by_size(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

/* The median of the seconds that n bytes take. */
static double seconds(const cJSON *tools, const char *s, size_t n, size_t step, bool thinking)
{
    double took[ROUNDS];
    size_t out = 0;

    for (int round = 0; round < ROUNDS; round++) {
        struct toolparse_options o = { thinking, tools, count, &out };
        struct toolparse *t = NULL;
        struct err e;
        double start = now();

        if (toolparse_open(&t, &o, &e))
            exit(1);
        for (size_t at = 0; at < n; at += step)
            if (toolparse_push(t, s + at, at + step < n ? step : n - at))
                exit(1);
        if (toolparse_end(t, true))
            exit(1);
        toolparse_close(t);
        took[round] = now() - start;
    }
    qsort(took, ROUNDS, sizeof(*took), by_size);
    return took[ROUNDS / 2];
}

int main(void)
{
    static const char tools[] =
        "[{\"type\":\"function\",\"function\":{\"name\":\"run_shell\",\"parameters\":{\"type\":"
        "\"object\",\"properties\":{\"command\":{\"type\":\"string\"}}}}}]";
    cJSON *node = cJSON_Parse(tools);
    char *s = malloc(BYTES);
    int missed = 0;

    printf("%-16s %10s %10s %10s %8s\n", "text", "whole", "in fours", "growth", "bar 100");
    for (size_t i = 0; s && i < sizeof(kind) / sizeof(*kind); i++) {
        size_t n = strlen(kind[i].piece);
        double whole, fours, half;
        bool met;

        for (size_t at = 0; at < BYTES; at++)
            s[at] = kind[i].piece[at % n];
        whole = seconds(node, s, BYTES, BYTES, kind[i].thinking);
        fours = seconds(node, s, BYTES, 4, kind[i].thinking);
        half = seconds(node, s, BYTES / 2, BYTES / 2, kind[i].thinking);
        met = BYTES / whole >= 100e6 && BYTES / fours >= 100e6;
        missed += !met;
        printf("%-16s %5.0f MB/s %5.0f MB/s %10.2f %8s\n", kind[i].name, BYTES / whole / 1e6,
               BYTES / fours / 1e6, whole / (2 * half), met ? "met" : "missed");
    }
    cJSON_Delete(node);
    free(s);
    return missed > 0;
}
