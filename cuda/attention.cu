/* Attention of one layer: what its kernels are told, and which of them does it. */
#include "cuda/attend.cuh"

void queue_attend(struct gpu *g, int layer, int n, const int *pos, int pos0)
{
    const struct shape *s = &g->shape;
    const struct layer_shape *l = &s->layer[layer];
    const struct layer_weights *w = &g->layer[layer];
    bool fp8 = g->c.kv == GPU_KV_FP8;
    struct attend a = {
        .q = g->s.q16, .gate = g->s.g, .o = g->s.o, .partial = g->s.partial,
        .ticket = g->s.ticket, .pos = pos, .kv = g->kv[layer], .n = n, .heads = l->heads,
        .kv_heads = s->kv_heads, .gate_rows = w->g.rows, .window = l->full ? 0 : s->window,
        .splits = 1, .pos0 = pos0,
        .score = 1.44269504f / sqrtf((float)s->head_dim) * (fp8 ? 256 * w->k_scale : 1),
        .value = fp8 ? 256 * w->v_scale : 1,
    };

    if (n > GPU_STEP_TOKENS)
        queue_attend_batch(g, &a);
    else
        queue_attend_step(g, &a);
}
