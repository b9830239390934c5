/* Products for many tokens: the weights are dequantised to BF16 once and handed to cuBLAS.
 * Without cuBLAS the kernels for few tokens do it, 16 tokens at a time. */
#include "cuda/matvec.cuh"

enum { FEW_TOKENS = 16 };

template <enum wformat F>
__global__ static void dequant_kernel(bf16 *to, const struct matrix m)
{
    typedef codec<F> C;
    int each = m.cols / C::COLUMNS;
    size_t at = (size_t)blockIdx.x * blockDim.x + threadIdx.x;

    if (at >= (size_t)m.rows * each)
        return;
    int row = (int)(at / each), k = (int)(at % each) * C::COLUMNS;
    const uint8_t *w = (const uint8_t *)m.weight + (size_t)row * row_bytes(F, m.cols);
    uint4 q = __ldcs((const uint4 *)(w + row_bytes(F, k)));
    const uint32_t words[4] = { q.x, q.y, q.z, q.w };
    struct dequant d = C::load(m, groups_of(m), row, k);
    uint4 *out = (uint4 *)(to + (size_t)row * m.cols + k);

    /* Pairs that codec took four columns apart go back to neighbours. */
#pragma unroll
    for (int i = 0; i < C::COLUMNS / 8; i++) {
        uint32_t p[4];

#pragma unroll
        for (int j = 0; j < 4; j++)
            p[j] = C::pair(words, i * 4 + j, d);
        if (F == W_INT4 || F == W_MXFP4)
            out[i] = make_uint4(__byte_perm(p[0], p[1], 0x5410), __byte_perm(p[2], p[3], 0x5410),
                                __byte_perm(p[0], p[1], 0x7632), __byte_perm(p[2], p[3], 0x7632));
        else
            out[i] = make_uint4(p[0], p[1], p[2], p[3]);
    }
}

template <enum wformat F> static void dequantise(struct gpu *g, const struct matrix *m)
{
    size_t pieces = (size_t)m->rows * (m->cols / codec<F>::COLUMNS);

    dequant_kernel<F><<<(unsigned)((pieces + 255) / 256), 256, 0, g->stream>>>(g->s.dense, *m);
    LAUNCHED(g);
}

/* The matrix as BF16: its own bytes, or the scratch.  The stream orders uses of the scratch. */
static const bf16 *as_bf16(struct gpu *g, const struct matrix *m)
{
    switch (m->format) {
    case W_BF16:
        return (const bf16 *)m->weight;
    case W_INT8:
        dequantise<W_INT8>(g, m);
        break;
    case W_INT4:
        dequantise<W_INT4>(g, m);
        break;
    default:
        dequantise<W_MXFP4>(g, m);
        break;
    }
    return g->s.dense;
}

void queue_products(struct gpu *g, const struct product *p)
{
    bool many = g->blas && p->n > FEW_TOKENS;

    for (int i = 0; i < p->parts; i++)
        if (p->part[i].m.format != W_BF16 &&
            (size_t)p->part[i].m.rows * p->part[i].m.cols > g->s.dense_elements)
            many = false;
    if (!many) {
        queue_matvec(g, p);
        return;
    }
    for (int i = 0; i < p->parts && g->fault == cudaSuccess; i++) {
        const struct part *part = &p->part[i];
        struct blas_product b = { part->m.rows, part->m.cols, p->n, as_bf16(g, &part->m), p->x,
                                  p->x_stride, part->y_stride, part->y };

        if (blas_mul(g->blas, &b))
            gpu_fault(g, cudaErrorUnknown, "cublasGemmEx", __LINE__);
    }
}
