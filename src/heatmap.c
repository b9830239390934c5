/* Four forms of the same figures.  A share is that of tokens which will choose the expert, as
 * far as the past can tell; heat is its ratio to what even routing would give. */
#include "src/heatmap.h"

#include <math.h>

enum {
    COLUMNS = 64,
    LEVELS = 9,                         /* of heat: below 1/8 of even ... 16 times and more */
    CURVE_STEPS = 20,
    CELL = 4, MARGIN = 40, CURVE_SIZE = 200,    /* of the picture */
};

static const char SHADES[LEVELS + 1] = " .:-=+*#@";

static const char *const COLOURS[LEVELS] = { "#0d0887", "#41049d", "#6a00a8", "#8f0da4", "#b12a90",
                                             "#cc4778", "#e16462", "#f89540", "#f0f921" };

static double share_of(const struct heatmap *h, int row, int expert)
{
    return (double)policy_lasting(&h->popularity->layer[row], expert);
}

static double row_sum(const struct heatmap *h, int row)
{
    double sum = 0;

    for (int i = 0; i < h->popularity->experts; i++)
        sum += share_of(h, row, i);
    return sum;
}

/* The heat of the experts from..to of a layer whose shares sum to `sum`, as 0..LEVELS - 1. */
static int level_of(const struct heatmap *h, int row, int from, int to, double sum)
{
    double share = 0, even = sum * (to - from) / h->popularity->experts;

    for (int i = from; i < to; i++)
        share += share_of(h, row, i);
    if (!(share > 0))
        return 0;
    return (int)fmax(0, fmin(LEVELS - 1, floor(log2(share / even) + 4)));
}

static double kept(int step)
{
    return (double)step / CURVE_STEPS;
}

static double hits(const struct heatmap *h, int step)
{
    return skew_hits(h->skew, h->skew->experts * step / CURVE_STEPS);
}

void heatmap_text(struct text *t, const struct heatmap *h)
{
    const struct popularity *p = h->popularity;
    int each = (p->experts + COLUMNS - 1) / COLUMNS;

    text_printf(t, "Use of %d experts in %d layers, %d to a column; \"%s\": less than an eighth "
                "of even use ... 16 times and more\n", p->experts, p->layers, each, SHADES);
    for (int row = 0; row < p->layers; row++) {
        double sum = row_sum(h, row);

        text_printf(t, "layer %3d |", h->layer_number[row]);
        for (int i = 0; i < p->experts; i += each) {
            int to = i + each < p->experts ? i + each : p->experts;

            text_add(t, &SHADES[level_of(h, row, i, to, sum)], 1);
        }
        text_puts(t, "|\n");
    }
    text_puts(t, "\nkept in memory   hits if the most used ones are kept\n");
    for (int i = 1; i <= CURVE_STEPS; i++)
        text_printf(t, "%12.0f %%   %5.1f %% %.*s\n", 100 * kept(i), 100 * hits(h, i),
                    (int)(50 * hits(h, i)), "##################################################");
}

void heatmap_csv(struct text *t, const struct heatmap *h)
{
    const struct popularity *p = h->popularity;

    text_puts(t, "layer,expert,share\n");
    for (int row = 0; row < p->layers; row++)
        for (int i = 0; i < p->experts; i++)
            text_printf(t, "%d,%d,%.6g\n", h->layer_number[row], i, share_of(h, row, i));
    text_puts(t, "\nkept,hits\n");
    for (int i = 0; i <= CURVE_STEPS; i++)
        text_printf(t, "%.2f,%.6g\n", kept(i), hits(h, i));
}

void heatmap_json(struct text *t, const struct heatmap *h)
{
    const struct popularity *p = h->popularity;

    text_puts(t, "{\"layers\": [");
    for (int row = 0; row < p->layers; row++)
        text_printf(t, "%s%d", row ? ", " : "", h->layer_number[row]);
    text_printf(t, "], \"experts\": %d, \"share\": [", p->experts);
    for (int row = 0; row < p->layers; row++) {
        text_puts(t, row ? ", [" : "[");
        for (int i = 0; i < p->experts; i++)
            text_printf(t, "%s%.6g", i ? ", " : "", share_of(h, row, i));
        text_puts(t, "]");
    }
    text_puts(t, "], \"curve\": [");
    for (int i = 0; i <= CURVE_STEPS; i++)
        text_printf(t, "%s{\"kept\": %.2f, \"hits\": %.6g}", i ? ", " : "", kept(i), hits(h, i));
    text_puts(t, "]}");
}

/* All cells of one colour are one path: a rectangle each would be ten times the file. */
static void add_cells(struct text *t, const struct heatmap *h, int level)
{
    const struct popularity *p = h->popularity;

    text_printf(t, "<path fill=\"%s\" d=\"", COLOURS[level]);
    for (int row = 0; row < p->layers; row++) {
        double sum = row_sum(h, row);

        for (int i = 0; i < p->experts; i++)
            if (level_of(h, row, i, i + 1, sum) == level)
                text_printf(t, "M%d %dh%dv%dh-%dz", MARGIN + i * CELL, MARGIN + row * CELL, CELL,
                            CELL, CELL);
    }
    text_puts(t, "\"/>\n");
}

static void add_curve(struct text *t, const struct heatmap *h, int top)
{
    text_printf(t, "<path fill=\"none\" stroke=\"#888\" d=\"M%d %dh%dv-%dh-%dzl%d -%d\"/>\n"
                "<path fill=\"none\" stroke=\"#cc4778\" stroke-width=\"2\" d=\"M", MARGIN,
                top + CURVE_SIZE, CURVE_SIZE, CURVE_SIZE, CURVE_SIZE, CURVE_SIZE, CURVE_SIZE);
    for (int i = 0; i <= CURVE_STEPS; i++)
        text_printf(t, "%s%.1f %.1f", i ? "L" : "", MARGIN + kept(i) * CURVE_SIZE,
                    top + CURVE_SIZE * (1 - hits(h, i)));
    text_printf(t, "\"/>\n<text x=\"%d\" y=\"%d\">hits against the share of experts kept: 0 to "
                "100 %%, and even routing</text>\n", MARGIN, top - 8);
}

void heatmap_svg(struct text *t, const struct heatmap *h)
{
    const struct popularity *p = h->popularity;
    int width = p->experts * CELL > CURVE_SIZE * 2 ? p->experts * CELL : CURVE_SIZE * 2;
    int top = 3 * MARGIN + p->layers * CELL;

    text_printf(t, "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%d\" height=\"%d\" "
                "font-family=\"sans-serif\" font-size=\"12\">\n"
                "<rect width=\"100%%\" height=\"100%%\" fill=\"white\"/>\n"
                "<text x=\"%d\" y=\"%d\">use of %d experts (across) in layers %d to %d (down), "
                "brighter: more</text>\n", width + 2 * MARGIN, top + CURVE_SIZE + MARGIN, MARGIN,
                MARGIN - 8, p->experts, h->layer_number[0], h->layer_number[p->layers - 1]);
    for (int i = 0; i < LEVELS; i++)
        add_cells(t, h, i);
    add_curve(t, h, top);
    text_puts(t, "</svg>\n");
}
