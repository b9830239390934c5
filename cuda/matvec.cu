/* Products for 1 to 16 tokens: bound by the weights' bytes.  A block owns 16 rows of one matrix
 * and all their columns, split over its warps, so nothing is added between blocks. */
#include "cuda/matvec.cuh"

/* Warps of a block, at most; how many such blocks registers must allow on one multiprocessor, for
 * up to eight tokens; chunks of a warp in flight. */
enum { MATVEC_WARPS = 12, MATVEC_BLOCKS = 2, MATVEC_AHEAD = 3 };
enum { LEAST_WARPS = 4, LEAST_COLUMNS = 256 };  /* of a block; of a warp, where there are more */

template <int NT>
__global__ static void __launch_bounds__(MATVEC_WARPS *WARP, NT == 1 ? MATVEC_BLOCKS : 1)
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

    tile_share<NT, MATVEC_AHEAD>(acc, part.m, row0, v, warp, warps);
    tile_store<NT>(tile + warp * TILE_ROWS * 8 * NT, acc);
    __syncthreads();
    for (int j = threadIdx.x; j < TILE_ROWS * v.n; j += blockDim.x) {
        int row = j % TILE_ROWS, token = j / TILE_ROWS;

        if (row0 + row < part.m.rows)
            part.y[(size_t)(first + token) * part.y_stride + row0 + row] =
                tile_sum<NT>(tile, warps, row * 8 * NT + token);
    }
}

/* As many warps a block as let all blocks run at once, and have columns to share. */
static int warps_of(const struct gpu *g, int tiles, int cols)
{
    int warps = MATVEC_WARPS, most = MATVEC_BLOCKS * MATVEC_WARPS * g->sms;

    while (warps > LEAST_WARPS && (tiles * warps > most || cols < warps * LEAST_COLUMNS))
        warps -= LEAST_WARPS;
    return warps;
}

void queue_matvec(struct gpu *g, const struct product *p)
{
    int tiles = 0, cols = 0;

    for (int i = 0; i < p->parts; i++) {
        tiles += ceil_div(p->part[i].m.rows, TILE_ROWS);
        cols = p->part[i].m.cols;
    }
    int warps = warps_of(g, tiles, cols);

    if (p->n <= 8)
        launch_early(g, matvec_kernel<1>, dim3(tiles, 1), warps * WARP, 0, *p);
    else
        launch_early(g, matvec_kernel<2>, dim3(tiles, ceil_div(p->n, 16)), warps * WARP, 0, *p);
}
