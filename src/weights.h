#ifndef LAGUNA_WEIGHTS_H
#define LAGUNA_WEIGHTS_H

#include "src/base.h"

/* Weights in memory, as their bytes lie in the checkpoint.  Plain data: who reads the
 * bytes owns them, who computes only looks.  Nothing is aligned beyond one byte unless
 * a comment says so; kernels use unaligned loads. */

/* How one Linear is stored (compressed-tensors; spec: laguna.md section 4).
 *   W_BF16   bf16 [rows][cols]
 *   W_INT8   uint8_t [rows][cols], q + 128; scale bf16
 *   W_INT4   uint8_t [rows][cols / 2], q + 8, even column in the low nibble; scale bf16
 *   W_MXFP4  uint8_t [rows][cols / 2], E2M1, even column in the low nibble; scale E8M0 */
enum wformat { W_BF16, W_INT8, W_INT4, W_MXFP4, W_FORMATS };

/* y = W x.  Element (r, c) is (q - z) * scale[r][c / group], with z from `zero`. */
struct matrix {
    enum wformat format;
    int rows, cols;             /* cols is a multiple of 32 */
    int group;                  /* columns that share a scale: a multiple of 32 that divides
                                 * cols; 0 for W_BF16 */
    const void *weight;
    const void *scale;          /* [rows][cols / group] bf16, or uint8_t E8M0; NULL for W_BF16 */
    const void *zero;           /* asymmetric W_INT4 or W_INT8, else NULL: uint32_t
                                 * [ceil(rows * bits / 32)][cols / group], packed along the
                                 * rows, lowest bits first, offset as the weights are */
};

/* down(silu(gate(x)) * up(x)): a routed expert, the shared expert, or a dense layer. */
struct ffn {
    struct matrix gate, up;     /* [inner][hidden] */
    struct matrix down;         /* [hidden][inner] */
};

/* One layer without its routed experts.  float arrays are converted at load. */
struct layer_weights {
    float *attn_norm, *ffn_norm;        /* [hidden] */
    float *q_norm, *k_norm;             /* [head_dim] */
    struct matrix q;                    /* [heads * head_dim][hidden] */
    struct matrix k, v;                 /* [kv_heads * head_dim][hidden] */
    struct matrix g;                    /* [heads] or [heads * head_dim][hidden]; rows 0: no gate */
    struct matrix o;                    /* [hidden][heads * head_dim] */
    float k_scale, v_scale;             /* for an FP8 cache; 1 where the checkpoint has none */
    struct ffn ffn;                     /* the dense layer, or the shared expert (rows 0: none) */
    struct matrix router;               /* [experts][hidden]; rows 0 on a dense layer */
    float *router_bias;                 /* [experts], for selection only */
};

#endif
