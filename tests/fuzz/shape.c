/* config.json as a shape and as a quantisation, and the same bytes as generation_config. */
#include "src/quant.h"
#include "src/shape.h"

#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const char *json = (const char *)data;
    struct generation_defaults g;
    const struct scheme *scheme;
    struct quant *q;
    struct shape s;
    struct err e;
    int i;

    if (!shape_read(&s, json, size, "f", &e)) {
        for (i = 0; i < s.layers; i++)
            if (s.layer[i].heads % s.kv_heads || s.layer[i].heads > s.max_heads)
                abort();
        if (s.hidden % 32 || s.topk > s.experts || s.rope_full.dims > s.head_dim)
            abort();
        shape_read_generation(&s, &g, json, size, "f", &e);
    }
    if (!quant_read(&q, json, size, "f", &e) && q) {
        quant_find(q, "model.layers.1.mlp.experts.3.up_proj", &scheme, &e);
        quant_find(q, "lm_head", &scheme, &e);
        quant_free(q);
    }
    return 0;
}
