#ifndef LAGUNA_HEATMAP_H
#define LAGUNA_HEATMAP_H

#include "src/json.h"
#include "src/predict.h"

/* What the router has chosen, drawn: which expert of which layer how often, and which share of
 * its choices the most popular experts get.  Pure functions of the statistics. */
struct heatmap {
    const struct popularity *popularity;
    const int *layer_number;    /* [layers with routed experts]: as the model counts layers */
    const struct skew *skew;
};

/* A row a layer, at most 64 columns, a character for how often. */
void heatmap_text(struct text *t, const struct heatmap *h);

/* Two tables with an empty line between: layer,expert,share and kept,hits. */
void heatmap_csv(struct text *t, const struct heatmap *h);

/* {"layers", "experts", "share" [layers][experts], "curve" [{"kept", "hits"}]} */
void heatmap_json(struct text *t, const struct heatmap *h);

/* A picture that needs nothing from elsewhere. */
void heatmap_svg(struct text *t, const struct heatmap *h);

#endif
