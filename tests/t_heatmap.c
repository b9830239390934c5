/* The heat map and the curve of statistics whose figures are known. */
#include "src/heatmap.h"
#include "tests/tap.h"

#include <stdlib.h>

static struct popularity popularity;
static struct skew skew;
static const int layer_number[] = { 1, 4 };
static const struct heatmap map = { &popularity, layer_number, &skew };

/* Layer 1: expert 0 twice as often as all others together; layer 4: all alike. */
static void fill(void)
{
    struct err e;

    if (popularity_open(&popularity, 2, 130, 7, &e))
        exit(99);
    for (int i = 0; i < 1300; i++) {
        uint16_t id[2] = { 0, (uint16_t)(i % 129 + 1) }, all = (uint16_t)(i % 130);

        popularity_note(&popularity, 0, id, i % 2 ? 2 : 1);
        popularity_note(&popularity, 1, &all, 1);
    }
    if (skew_open(&skew, &popularity, &e))
        exit(99);
}

static int lines(const char *s)
{
    int n = 0;

    for (; *s; s++)
        n += *s == '\n';
    return n;
}

static void test_text(void)
{
    struct text t = { NULL, 0, 0, false };
    const char *row;

    heatmap_text(&t, &map);
    row = strstr(t.s, "layer   1 |");
    ok(row && row[11] == '@' && row[12] == ':', "a row for layer 1, its first column hot");
    ok(row && strcspn(row + 11, "|") <= 64, "at most 64 columns");
    ok(strstr(t.s, "layer   4 |") && strstr(t.s, "100 %   100.0 %"), "layer 4, and a curve");
    text_free(&t);
}

static void test_csv(void)
{
    struct text t = { NULL, 0, 0, false };

    heatmap_csv(&t, &map);
    ok(!strncmp(t.s, "layer,expert,share\n1,0,", 23) && strstr(t.s, "\n4,129,"), "all experts");
    ok(strstr(t.s, "\n\nkept,hits\n0.00,0\n") && strstr(t.s, "\n1.00,1\n"), "and the curve");
    ok(lines(t.s) == 1 + 260 + 2 + 21, "%d lines", lines(t.s));
    text_free(&t);
}

static void test_json(void)
{
    struct text t = { NULL, 0, 0, false };
    struct err e = { "" };
    cJSON *root;

    heatmap_json(&t, &map);
    root = json_parse(t.s, t.n, &JSON_FILE, &e);
    ok(root, "JSON %s", e.text);
    ok(cJSON_GetArraySize(json_get(root, "share")) == 2 &&
       cJSON_GetArraySize(cJSON_GetArrayItem(json_get(root, "share"), 1)) == 130 &&
       cJSON_GetArraySize(json_get(root, "curve")) == 21, "two layers, 130 experts, 21 points");
    cJSON_Delete(root);
    text_free(&t);
}

static void test_svg(void)
{
    struct text t = { NULL, 0, 0, false };
    int cells = 0;

    heatmap_svg(&t, &map);
    for (const char *s = t.s; (s = strstr(s, "h4v4h-4z")); s++)
        cells++;
    ok(cells == 260, "a cell an expert");
    ok(!strncmp(t.s, "<svg xmlns", 10) && strstr(t.s, "</svg>\n") && !strstr(t.s, "href"),
       "a picture of its own");
    text_free(&t);
}

int main(void)
{
    fill();
    test_text();
    test_csv();
    test_json();
    test_svg();
    skew_close(&skew);
    popularity_close(&popularity);
    return done();
}
