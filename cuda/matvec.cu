/* Products for 1 to 16 tokens: bound by the weights' bytes.  A block owns 16 rows of one matrix
 * and all their columns, split over its warps, so nothing is added between blocks. */
#include "cuda/matvec.cuh"

enum { MATVEC_WARPS = 8 };

template <int NT>
__global__ static void __launch_bounds__(MATVEC_WARPS *WARP)
    matvec_kernel(const struct product p)
{
    __shared__ float tile[MATVEC_WARPS * TILE_ROWS * 8 * NT];
    float acc[NT][4] = {};
    int warp = threadIdx.x / WARP, warps = blockDim.x / WARP, row0 = blockIdx.x * TILE_ROWS;
    int first = blockIdx.y * 8 * NT, i = 0;
    struct tokens v = { p.x + (size_t)first * p.x_stride, p.x_stride, min(p.n - first, 8 * NT) };

    while (row0 >= (p.part[i].m.rows + TILE_ROWS - 1) / TILE_ROWS * TILE_ROWS) {
        row0 -= (p.part[i].m.rows + TILE_ROWS - 1) / TILE_ROWS * TILE_ROWS;
        i++;
    }
    const struct part &part = p.part[i];

    tile_share<NT>(acc, part.m, row0, v, warp, warps);
    tile_store<NT>(tile + warp * TILE_ROWS * 8 * NT, acc);
    __syncthreads();
    for (int j = threadIdx.x; j < TILE_ROWS * v.n; j += blockDim.x) {
        int row = j % TILE_ROWS, token = j / TILE_ROWS;

        if (row0 + row < part.m.rows)
            part.y[(size_t)(first + token) * part.y_stride + row0 + row] =
                tile_sum<NT>(tile, warps, row * 8 * NT + token);
    }
}

void queue_matvec(struct gpu *g, const struct product *p)
{
    int tiles = 0, cols = 0;

    for (int i = 0; i < p->parts; i++) {
        tiles += ceil_div(p->part[i].m.rows, TILE_ROWS);
        cols = p->part[i].m.cols;
    }
    /* Few rows leave multiprocessors idle, and long rows take long: more warps a row then. */
    int warps = tiles < 4 * g->sms && cols >= 2048 ? MATVEC_WARPS : 4;

    if (p->n <= 8)
        launch_early(g, matvec_kernel<1>, dim3(tiles, 1), warps * WARP, 0, *p);
    else
        launch_early(g, matvec_kernel<2>, dim3(tiles, ceil_div(p->n, 16)), warps * WARP, 0, *p);
}
