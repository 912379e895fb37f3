/* muon.h - Muon's Newton-Schulz iteration: makes a matrix nearly orthogonal

   After Jordan et al. 2024 and torch.optim.Muon, or with the coefficients of Polar Express (Amsel
   et al. 2025), in f32 where both round to bf16. Each element of a product is one sum over k from 0
   up, in the CPU and the GPU form. So its bits depend on the two factors alone, not on threads,
   tiles or the device. */
#pragma once

#include "../core/layout.h"
#include "../numbers/rules.h"

/* Whether the step is skipped. NULL: it is not. */
ZP_FN int zp_muon_is_skipped(const zp_control *control) { return control && control->skip; }

/* out = keep * add + scale * (a b). Shapes, row by row: a [m, k], b [k, n], add and out [m, n]. If
   keep is 0, add is not read. */
typedef struct zp_muon_product {
    const float *a, *b, *add;
    float *out;
    size_t m, n, k;
    float keep, scale;
    const zp_control *control;
} zp_muon_product;

ZP_FN float zp_muon_scale_sum(const zp_muon_product *x, size_t at, float sum) {
    return x->keep != 0 ? x->keep * x->add[at] + x->scale * sum : x->scale * sum;
}

/* A tile on the CPU: the sums of its rows and columns stay in registers, the factors in cache. */
#define ZP_TILE_ROWS  4
#define ZP_TILE_COLS  16
#define ZP_TILE_DEPTH 256
#define ZP_TILE_BAND  64 /* rows that a thread takes at a time */

/* Computes rows [row, row + rows) of 16 columns from `col` on. `strip` has rows of b from `from`
   on. */
ZP_INLINE void zp_muon_multiply_tile(const zp_muon_product *x, size_t row, size_t rows, size_t col,
                                     size_t cols, size_t from, size_t depth,
                                     const float (*strip)[ZP_TILE_COLS]) {
    float sum[ZP_TILE_ROWS][ZP_TILE_COLS] = {{0}};
    const float *a[ZP_TILE_ROWS];
    for (size_t r = 0; r < ZP_TILE_ROWS; r++)
        a[r] = x->a + (row + zp_min(r, rows - 1)) * x->k + from;
    for (size_t r = 0; r < rows && from; r++)
        for (size_t c = 0; c < cols; c++) sum[r][c] = x->out[(row + r) * x->n + col + c];
    for (size_t k = 0; k < depth; k++)
        for (size_t r = 0; r < ZP_TILE_ROWS; r++) {
            const float f = a[r][k];
            ZP_SIMD
            for (size_t c = 0; c < ZP_TILE_COLS; c++) sum[r][c] = ZP_FMA(f, strip[k][c], sum[r][c]);
        }
    const int ends = from + depth == x->k;
    for (size_t r = 0; r < rows; r++)
        for (size_t c = 0; c < cols; c++) {
            const size_t at = (row + r) * x->n + col + c;
            x->out[at] = ends ? zp_muon_scale_sum(x, at, sum[r][c]) : sum[r][c];
        }
}
static void zp_muon_multiply_band(const zp_muon_product *x, size_t first, size_t rows) {
    float strip[ZP_TILE_DEPTH][ZP_TILE_COLS];
    for (size_t from = 0; from < x->k; from += ZP_TILE_DEPTH)
        for (size_t col = 0; col < x->n; col += ZP_TILE_COLS) {
            const size_t depth = zp_min(ZP_TILE_DEPTH, x->k - from);
            const size_t cols = zp_min(ZP_TILE_COLS, x->n - col);
            for (size_t k = 0; k < depth; k++)
                for (size_t c = 0; c < ZP_TILE_COLS; c++)
                    strip[k][c] = c < cols ? x->b[(from + k) * x->n + col + c] : 0;
            for (size_t row = first; row < first + rows; row += ZP_TILE_ROWS)
                zp_muon_multiply_tile(x, row, zp_min(ZP_TILE_ROWS, first + rows - row), col, cols,
                                      from, depth, (const float(*)[ZP_TILE_COLS])strip);
        }
}
ZP_UNUSED static void zp_muon_multiply_loop(const void *product, size_t one, int threads) {
    const zp_muon_product *x = (const zp_muon_product *)product;
    if (zp_muon_is_skipped(x->control)) return;
    ZP_OMP_FOR(x->m * x->n * x->k > 65536)
    for (size_t row = 0; row < x->m; row += ZP_TILE_BAND)
        zp_muon_multiply_band(x, row, zp_min(ZP_TILE_BAND, x->m - row));
}

/* to = factor * from, or its transpose. from: [rows, cols]. */
typedef struct zp_muon_transpose_args {
    const float *from;
    float *to;
    size_t rows, cols;
    int transposes;
    const double *norm; /* the factor is 1 / max(safety sqrt(*norm), 1e-7); NULL: 1 */
    double safety;
    const zp_control *control;
} zp_muon_transpose_args;

ZP_FN void zp_muon_transpose_run_at(const zp_muon_transpose_args *x, size_t i) {
    const size_t row = i / x->cols, col = i % x->cols;
    float value = x->from[i];
    if (zp_muon_is_skipped(x->control)) return;
    if (x->norm) {
        const double norm = x->safety * sqrt(*x->norm);
        value = (float)((double)value / (norm > 1e-7 ? norm : 1e-7));
    }
    /* no negative zeros: sums over ranks with zeros have none either */
    x->to[x->transposes ? col * x->rows + row : i] = value + 0.0f;
}
ZP_KERNEL(zp_muon_transpose_run, zp_muon_transpose_args, 32768)
static zero_result zp_muon_transpose(zp_stream *s, const zp_muon_transpose_args *x) {
    return zp_muon_transpose_run(s, x, x->rows * x->cols);
}

/* Computes the sum of squares of a matrix, in 256 lanes of f64. */
typedef struct zp_muon_squares_args {
    const float *x;
    size_t numel;
    double *sum;
    const zp_control *control;
} zp_muon_squares_args;

ZP_FN double zp_muon_squares_lane(const zp_muon_squares_args *a, size_t lane) {
    double sum = 0;
    for (size_t i = lane; i < a->numel; i += ZP_FOLD_LANES)
        sum += (double)a->x[i] * (double)a->x[i];
    return sum;
}
ZP_UNUSED static void zp_muon_squares_loop(const void *args, size_t one, int threads) {
    const zp_muon_squares_args *a = (const zp_muon_squares_args *)args;
    double lane[ZP_FOLD_LANES] = {0};
    if (zp_muon_is_skipped(a->control)) return;
    for (size_t i = 0; i < a->numel; i++)
        lane[i % ZP_FOLD_LANES] += (double)a->x[i] * (double)a->x[i];
    *a->sum = zp_kernel_add_by_halves(lane, ZP_FOLD_LANES);
}

#ifdef __CUDACC__
/* 256 threads compute 64 by 64 elements of a product, 4 by 4 each. */
#define ZP_SQUARE 64
#define ZP_DEPTH  16
__global__ void __launch_bounds__(ZP_THREADS)
    zp_muon_multiply_tiles(zp_muon_product x, size_t tiles) {
    __shared__ float a[ZP_DEPTH][ZP_SQUARE], b[ZP_DEPTH][ZP_SQUARE];
    const size_t me = threadIdx.x, across = (x.n + ZP_SQUARE - 1) / ZP_SQUARE;
    const size_t ty = me / 16 * 4, tx = me % 16 * 4;
    if (zp_muon_is_skipped(x.control)) return;
    for (size_t tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
        const size_t row = tile / across * ZP_SQUARE, col = tile % across * ZP_SQUARE;
        float sum[4][4] = {{0}};
        for (size_t from = 0; from < x.k; from += ZP_DEPTH) {
            const size_t depth = x.k - from < ZP_DEPTH ? x.k - from : ZP_DEPTH;
            for (size_t i = me; i < ZP_DEPTH * ZP_SQUARE; i += ZP_THREADS) {
                const size_t k = i / ZP_SQUARE, c = i % ZP_SQUARE;
                const size_t ka = i % ZP_DEPTH, r = i / ZP_DEPTH;
                a[ka][r] = row + r < x.m && ka < depth ? x.a[(row + r) * x.k + from + ka] : 0.0f;
                b[k][c] = col + c < x.n && k < depth ? x.b[(from + k) * x.n + col + c] : 0.0f;
            }
            __syncthreads();
            for (size_t k = 0; k < depth; k++)
                for (int r = 0; r < 4; r++)
                    for (int c = 0; c < 4; c++)
                        sum[r][c] = ZP_FMA(a[k][ty + r], b[k][tx + c], sum[r][c]);
            __syncthreads();
        }
        for (size_t r = 0; r < 4; r++)
            for (size_t c = 0; c < 4; c++) {
                const size_t at = (row + ty + r) * x.n + col + tx + c;
                if (row + ty + r < x.m && col + tx + c < x.n)
                    x.out[at] = zp_muon_scale_sum(&x, at, sum[r][c]);
            }
    }
}
ZP_KERNEL_CALL(zp_muon_multiply_tiled, zp_muon_multiply_tiles, zp_muon_product,
               (unsigned)zp_min(n, 8192))
static zero_result zp_muon_multiply(zp_stream *s, const zp_muon_product *x) {
    const size_t down = (x->m + ZP_SQUARE - 1) / ZP_SQUARE;
    return zp_muon_multiply_tiled(s, x, down * ((x->n + ZP_SQUARE - 1) / ZP_SQUARE));
}
__global__ void __launch_bounds__(ZP_THREADS)
    zp_muon_squares_block(zp_muon_squares_args a, size_t one) {
    __shared__ double lane[ZP_FOLD_LANES];
    const size_t me = threadIdx.x;
    if (zp_muon_is_skipped(a.control)) return;
    lane[me] = zp_muon_squares_lane(&a, me);
    for (size_t w = ZP_FOLD_LANES / 2; w; w /= 2) {
        __syncthreads();
        if (me < w) lane[me] += lane[me + w];
    }
    if (me == 0) *a.sum = lane[0];
}
ZP_KERNEL_CALL(zp_muon_squares, zp_muon_squares_block, zp_muon_squares_args, 1)
#else
ZP_KERNEL_CALL(zp_muon_multiply_task, zp_muon_multiply_loop, zp_muon_product)
static zero_result zp_muon_multiply(zp_stream *s, const zp_muon_product *x) {
    return zp_muon_multiply_task(s, x, 1);
}
ZP_KERNEL_CALL(zp_muon_squares, zp_muon_squares_loop, zp_muon_squares_args)
#endif

/* Scratch floats that the iteration needs for a matrix of this shape. */
static size_t zp_muon_scratch_numel(size_t rows, size_t cols) {
    const size_t low = zp_min(rows, cols), high = zp_max(rows, cols);
    return 3 * zp_round_up(low * high, zp_align) + 2 * zp_round_up(low * low, zp_align);
}

/* An iteration makes a X + (b A + c A A) X of X, where A = X X'. */
typedef struct zp_muon_polynomial {
    float a, b, c;
} zp_muon_polynomial;

/* Algorithm 1 of Polar Express lowers all polynomials but the last, by this factor of X. */
#define ZP_POLAR_SAFETY 1.01

/* Returns the coefficients of iteration i. Those of Polar Express are optimal, one after the other,
   for singular values from 0.001 to 1. */
static zp_muon_polynomial zp_muon_coefficients(const zero_muon *how, int i) {
    static const double polar[][3] = {{8.28721201814563, -23.595886519098837, 17.300387312530933},
                                      {4.107059111542203, -2.9478499167379106, 0.5448431082926601},
                                      {3.9486908534822946, -2.908902115962949, 0.5518191394370137},
                                      {3.3184196573706015, -2.488488024314874, 0.51004894012372},
                                      {2.300652019954817, -1.6689039845747493, 0.4188073119525673},
                                      {1.891301407787398, -1.2679958271945868, 0.37680408948524835},
                                      {1.8750014808534479, -1.2500016453999487, 0.3750001645474248},
                                      {1.875, -1.25, 0.375}};
    const int last = (int)(sizeof polar / sizeof *polar) - 1;
    const double *row = polar[i < last ? i : last], s = i < last ? ZP_POLAR_SAFETY : 1;
    zp_muon_polynomial p = {3.4445f, -4.775f, 2.0315f};
    if (!how->polar_express) return p;
    p.a = (float)(row[0] / s);
    p.b = (float)(row[1] / (s * s * s));
    p.c = (float)(row[2] / (s * s * s * s * s));
    return p;
}

/* Iterates on x [rows, cols] in place. `norm` has room for one f64. */
static zero_result zp_muon_orthogonalize(zp_stream *s, float *x, size_t rows, size_t cols,
                                         const zero_muon *how, float *scratch, double *norm,
                                         const zp_control *control) {
    const size_t low = zp_min(rows, cols), high = zp_max(rows, cols), n = low * high;
    const size_t wide = zp_round_up(n, zp_align), square = zp_round_up(low * low, zp_align);
    float *now = scratch, *next = now + wide, *turned = next + wide, *gram = turned + wide,
          *update = gram + square;
    const zp_muon_squares_args squares = {x, n, norm, control};
    const double safety = how->polar_express ? ZP_POLAR_SAFETY : 1;
    const zp_muon_transpose_args begin = {x, now, rows, cols, rows > cols, norm, safety, control};
    ZP_TRY(zp_muon_squares(s, &squares, 1));
    ZP_TRY(zp_muon_transpose(s, &begin));
    for (int i = 0; i < how->iterations; i++) {
        const zp_muon_polynomial p = zp_muon_coefficients(how, i);
        const zp_muon_transpose_args back = {now, turned, low, high, 1, NULL, 1, control};
        const zp_muon_product first = {now, turned, NULL, gram, low, low, high, 0, 1, control};
        const zp_muon_product second = {gram, gram, gram, update, low, low, low, p.b, p.c, control};
        const zp_muon_product third = {update, now, now, next, low, high, low, p.a, 1, control};
        ZP_TRY(zp_muon_transpose(s, &back));
        ZP_TRY(zp_muon_multiply(s, &first));
        ZP_TRY(zp_muon_multiply(s, &second));
        ZP_TRY(zp_muon_multiply(s, &third));
        float *was = now;
        now = next;
        next = was;
    }
    const zp_muon_transpose_args end = {now, x, low, high, rows > cols, NULL, 1, control};
    return zp_muon_transpose(s, &end);
}

/* ---- NorMuon: rows of a matrix have the same size, on average over steps ---- */

/* After Li et al. 2025, algorithm 1, and their code: each row of an orthogonal matrix is divided by
   the root of its moment, a running mean of its mean square. Then the matrix gets its norm back. */
typedef struct zp_muon_rows_args {
    float *x, *moments, *means, *scales; /* x [rows, cols]; all others [rows] */
    size_t rows, cols;
    float beta;
    double *ratio; /* the norm before, divided by the one after */
    const zp_control *control;
} zp_muon_rows_args;

ZP_FN void zp_muon_measure_rows_at(const zp_muon_rows_args *a, size_t i) {
    double sum = 0;
    if (zp_muon_is_skipped(a->control)) return;
    for (size_t k = i * a->cols; k < (i + 1) * a->cols; k++)
        sum += (double)a->x[k] * (double)a->x[k];
    a->means[i] = (float)(sum / (double)a->cols);
    a->moments[i] = ZP_FMA(a->beta, a->moments[i], (1 - a->beta) * a->means[i]);
    a->scales[i] = 1 / (sqrtf(a->moments[i]) + 1e-10f);
}
ZP_KERNEL(zp_muon_measure_rows, zp_muon_rows_args, 64)
/* One thread adds the rows, in their order. A product of two floats is exact in f64. */
ZP_FN void zp_muon_compare_norms_at(const zp_muon_rows_args *a, size_t one) {
    double before = 0, after = 0;
    if (zp_muon_is_skipped(a->control)) return;
    for (size_t i = 0; i < a->rows; i++) {
        const float square = a->scales[i] * a->scales[i];
        before += (double)a->means[i];
        after += (double)a->means[i] * (double)square;
    }
    *a->ratio = after > 0 ? sqrt(before / after) : 0;
}
ZP_KERNEL(zp_muon_compare_norms, zp_muon_rows_args, 1)
ZP_FN void zp_muon_scale_rows_at(const zp_muon_rows_args *a, size_t i) {
    if (zp_muon_is_skipped(a->control)) return;
    const double scaled = (double)a->x[i] * (double)a->scales[i / a->cols];
    a->x[i] = (float)(scaled * *a->ratio) + 0.0f; /* no negative zeros */
}
ZP_KERNEL(zp_muon_scale_rows, zp_muon_rows_args, 32768)

/* Normalises x [rows, cols] in place, with the moments of its rows. */
static zero_result zp_muon_normalize(zp_stream *s, float *x, size_t rows, size_t cols,
                                     const zero_muon *how, float *moments, float *scratch,
                                     double *ratio, const zp_control *control) {
    const zp_muon_rows_args a = {x,    moments,        scratch, scratch + rows, rows,
                                 cols, how->normalize, ratio,   control};
    ZP_TRY(zp_muon_measure_rows(s, &a, rows));
    ZP_TRY(zp_muon_compare_norms(s, &a, 1));
    return zp_muon_scale_rows(s, &a, rows * cols);
}

/* ---- which rank makes which matrix orthogonal ---- */

typedef struct zp_matrix {
    int unit, owner;       /* owner: the rank that makes it orthogonal */
    size_t at, rows, cols; /* at: in the unit; rows, cols: of the whole matrix */
    size_t kept;           /* elements that the owner keeps before it */
    size_t numel;          /* elements that this rank has: all, or a slice */
    int slices, sharer;    /* number of slices; the rank that makes the matrix orthogonal */
    size_t outer;          /* the tensor's value */
    int tensor;
    size_t first, moments; /* its first element in the tensor; of its rows among the owner's */
} zp_matrix;

/* The approximate cost of a Newton-Schulz iteration on a matrix. */
static double zp_muon_matrix_cost(const zp_matrix *m) {
    const double low = (double)zp_min(m->rows, m->cols), high = (double)zp_max(m->rows, m->cols);
    return 4 * low * low * high + 2 * low * low * low;
}
static int zp_muon_compare_matrices(const void *a, const void *b) {
    const zp_matrix *x = *(zp_matrix *const *)a, *y = *(zp_matrix *const *)b;
    const double more = zp_muon_matrix_cost(y) - zp_muon_matrix_cost(x);
    return more > 0 ? 1 : more < 0 ? -1 : x < y ? -1 : x > y;
}

/* Assigns each of n matrices to an owner rank and, if it has slices, to a sharer: the costliest
   first, each to the rank with the least load so far. An owner keeps the matrices of each sharer
   together, and last the matrices without slices, which every sharer makes orthogonal by itself. */
static zero_result zp_muon_assign_matrices(zp_matrix *list, int n, int sharers, int nranks) {
    double *load = (double *)calloc((size_t)nranks * (size_t)sharers, sizeof *load);
    size_t *kept = (size_t *)calloc((size_t)nranks, sizeof *kept);
    zp_matrix **order = (zp_matrix **)calloc((size_t)n + 1, sizeof(zp_matrix *));
    const int made = load && kept && order;
    for (int i = 0; i < n && made; i++) order[i] = &list[i];
    if (made) qsort(order, (size_t)n, sizeof *order, zp_muon_compare_matrices);
    for (int i = 0; i < n && made; i++) {
        zp_matrix *m = order[i];
        int to = 0;
        for (int r = 1; r < nranks * sharers; r++)
            if (load[r] < load[to]) to = r;
        m->owner = to / sharers;
        m->sharer = m->slices > 1 ? to % sharers : sharers;
        for (int s = 0; s < sharers; s++)
            if (m->sharer == s || m->sharer == sharers)
                load[m->owner * sharers + s] += zp_muon_matrix_cost(m);
    }
    for (int s = 0; s <= sharers && made; s++)
        for (int i = 0; i < n; i++) {
            zp_matrix *m = order[i];
            if (m->sharer != s) continue;
            m->kept = kept[m->owner];
            kept[m->owner] += zp_round_up(m->numel, zp_align);
        }
    free(load);
    free(kept);
    free(order);
    return made ? ZERO_OK : ZERO_ERR_MEMORY;
}

/* ---- what the row "muon" keeps of a context: whole_tensor.h and whole_slices.h ---- */

#define ZP_PLACES 2
enum {                            /* events */
       ZP_FULL = 0,               /* + place: it was written */
       ZP_READ = ZP_PLACES,       /* + place: it was read */
       ZP_SUMMED = 2 * ZP_PLACES, /* trust is ready */
       ZP_ENDED,                  /* matrices are ready */
       ZP_WHOLE_EVENTS
};
typedef struct zp_whole_state {
    zp_matrix *matrices; /* [nmatrices] by unit */
    int nmatrices;
    size_t parts;                 /* NORMS: layers of all tensors; 0: the rule needs no norms */
    size_t sums_at, sums_bytes;   /* byte offset in memory[ZP_GRAD]; bytes of one rank */
    size_t place_at, place_bytes; /* MATRIX: of the first of [places] places, f32 */
    int places;
    size_t kept_numel, scratch_numel; /* MATRIX: elements of the matrices of this owner */
    double *trust, *norm;             /* trust ratios [parts]; one norm */
    float *kept, *scratch;
    zp_event event[ZP_WHOLE_EVENTS];
    const zp_tensor *sliced; /* one whose group has slices; see whole_slices.h; NULL: none */
    int slices, slice;       /* their number; this rank's. 1, 0: tensors are whole */
    zp_limb *slice_sums;     /* NORMS: [slices][parts][2][ZP_LIMBS] */
    float *shared, *whole;   /* MATRIX: slices that this rank collects; one matrix */
    size_t shared_numel, whole_numel;
    float *moments; /* MATRIX with muon.normalize: of the rows of this owner's matrices */
    size_t moments_numel;
} zp_whole_state;
