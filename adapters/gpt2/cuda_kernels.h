/* cuda_kernels.h - the kernels of ops_cuda.cu, except matrix products and attention. The bandwidth
   of memory limits all of them. So a thread moves 16 bytes at a time, and a kernel reads nothing
   twice from device memory.

   Sums have a fixed order. Sums over rows have two stages: first a number of blocks, which does not
   depend on the GPU, writes f32 partial sums (part, column); then finish_kernel adds these in
   order, once, to the gradient.

   In kernels that work row by row, block blockIdx.x begins with that row, and thread threadIdx.x
   with its W columns. cuda_numbers.h explains NUM and W. */
#ifndef GPT2_CUDA_KERNELS_H
#define GPT2_CUDA_KERNELS_H

#include <float.h>
#include <math.h>

#include "cuda_bytes.h"
#include "cuda_numbers.h"
#include "hash_words.h"
#include "ops.h"

#define OPS_ROWS(r)   for (size_t r = blockIdx.x; r < R; r += gridDim.x)
#define OPS_CHUNKS(i) for (size_t i = (size_t)threadIdx.x * W; i < C; i += (size_t)blockDim.x * W)
#define OPS_EACH(j)   _Pragma("unroll") for (int j = 0; j < W; j++)

/* ---- embeddings ---------------------------------------------------------------------------- */

template <class NUM, int W>
__global__ void embed_kernel(typename NUM::word *out, const int *tokens,
                             const typename NUM::word *wte, const typename NUM::word *wpe, size_t R,
                             size_t T, size_t C) {
    OPS_ROWS(r) {
        const size_t word = (size_t)tokens[r] * C, place = r % T * C;
        OPS_CHUNKS(i) {
            float a[W], b[W];
            ops_load<NUM, W>(a, wte + word + i);
            ops_load<NUM, W>(b, wpe + place + i);
            OPS_EACH(j) a[j] += b[j];
            ops_store<NUM, W>(out + r * C + i, a);
        }
    }
}

/* The CPU makes these lists from the tokens of a batch: rows, sorted by token, cut into segments.
 */
struct embed_lists {
    const int *order; /* (R) rows */
    const int *start; /* (segments + 1) where each segment begins in `order` */
    const int *slot;  /* (segments) -1: the token's only segment; else the slot for its sum */
    const int *longs; /* (count, 3) a token with several segments, and its slots [first, end) */
    int segments, count;
};

/* Adds a segment's rows of dout, and stores the sum in the gradient or in its slot (slot, C) of
   `sums`, if the segment's token is in the tile. dwte begins with the tile. */
template <class NUM, int W>
__global__ void embed_segment_kernel(void *dwte, zero_type grad_type, float *sums,
                                     const typename NUM::word *dout, const int *tokens,
                                     embed_lists lists, ops_tile tile, size_t C) {
    for (int s = (int)blockIdx.x; s < lists.segments; s += (int)gridDim.x) {
        const int first = lists.start[s], end = lists.start[s + 1], slot = lists.slot[s];
        const size_t token = (size_t)tokens[lists.order[first]] - tile.first;
        if (token >= tile.rows) continue;
        OPS_CHUNKS(i) {
            float sum[W] = {};
#pragma unroll 4
            for (int k = first; k < end; k++) {
                float d[W];
                ops_load<NUM, W>(d, dout + (size_t)lists.order[k] * C + i);
                OPS_EACH(j) sum[j] += d[j];
            }
            if (slot < 0)
                ops_grad_add<W>(dwte, grad_type, token * C + i, sum);
            else
                OPS_EACH(j) sums[(size_t)slot * C + i + j] = sum[j];
        }
    }
}

/* Adds the sums of a token's segments, in order, to the gradient. */
static __global__ void embed_long_kernel(void *dwte, zero_type grad_type, const float *sums,
                                         embed_lists lists, ops_tile tile, size_t C) {
    for (int g = (int)blockIdx.x; g < lists.count; g += (int)gridDim.x) {
        const size_t token = (size_t)lists.longs[3 * g] - tile.first;
        if (token >= tile.rows) continue;
        for (size_t i = threadIdx.x; i < C; i += blockDim.x) {
            float sum = 0;
#pragma unroll 8
            for (int s = lists.longs[3 * g + 1]; s < lists.longs[3 * g + 2]; s++)
                sum += sums[(size_t)s * C + i];
            ops_grad_add_one(dwte, grad_type, token * C + i, sum);
        }
    }
}

/* Adds the rows at position t of all sequences to the gradient of wpe. */
template <class NUM, int W>
__global__ void embed_place_kernel(void *dwpe, zero_type grad_type, const typename NUM::word *dout,
                                   size_t R, size_t T, size_t C) {
    const size_t t = blockIdx.x;
    OPS_CHUNKS(i) {
        float sum[W] = {};
#pragma unroll 4
        for (size_t r = t; r < R; r += T) {
            float d[W];
            ops_load<NUM, W>(d, dout + r * C + i);
            OPS_EACH(j) sum[j] += d[j];
        }
        ops_grad_add<W>(dwpe, grad_type, t * C + i, sum);
    }
}

/* See ops_tile_rows. */
template <class NUM, int W>
__global__ void tile_rows_kernel(typename NUM::word *out, const int *tokens,
                                 const typename NUM::word *w, ops_tile tile, size_t R, size_t C) {
    OPS_ROWS(r) {
        const size_t row = (size_t)tokens[r] - tile.first;
        if (row >= tile.rows) continue;
        OPS_CHUNKS(i) {
            float a[W];
            ops_load<NUM, W>(a, w + row * C + i);
            ops_store<NUM, W>(out + r * C + i, a);
        }
    }
}

template <class NUM, int W>
__global__ void add_places_kernel(typename NUM::word *out, const typename NUM::word *wpe, size_t R,
                                  size_t T, size_t C) {
    OPS_ROWS(r) {
        OPS_CHUNKS(i) {
            float a[W], b[W];
            ops_load<NUM, W>(a, out + r * C + i);
            ops_load<NUM, W>(b, wpe + r % T * C + i);
            OPS_EACH(j) a[j] += b[j];
            ops_store<NUM, W>(out + r * C + i, a);
        }
    }
}

/* ---- biases and GELU ----------------------------------------------------------------------- */

/* out = x + (y + bias); x may be NULL. out may be x or y. */
template <class NUM, int W>
__global__ void add_bias_kernel(typename NUM::word *out, const typename NUM::word *x,
                                const typename NUM::word *y, const typename NUM::word *bias,
                                size_t R, size_t C) {
    OPS_ROWS(r) {
        OPS_CHUNKS(i) {
            float a[W] = {}, b[W], c[W];
            if (x) ops_load<NUM, W>(a, x + r * C + i);
            ops_load<NUM, W>(b, y + r * C + i);
            ops_load<NUM, W>(c, bias + i);
            OPS_EACH(j) a[j] = x ? a[j] + (b[j] + c[j]) : b[j] + c[j];
            ops_store<NUM, W>(out + r * C + i, a);
        }
    }
}

/* Returns GELU, x s(x), with s the logistic function of 2 sqrt(2 / pi) (x + 0.044715 x^3). *slope
   becomes its derivative, by 1 - s = e s. */
OPS_DEVICE float gelu_of(float x, float *slope) {
    const float A = 1.5957691f, B = 0.071354816f; /* 2 sqrt(2 / pi), times 0.044715 */
    const float e = expf(-x * fmaf(B, x * x, A));
    const float s = 1.0f / (1.0f + e), y = x * s;
    /* if e is infinite, s is 0, and so is e s */
    const float rest = e > 1e30f ? 0.0f : y * (e * s);
    *slope = fmaf(rest, fmaf(3.0f * B, x * x, A), s);
    return y;
}

/* out = GELU(x + bias); bias may be NULL. */
template <class NUM, int W>
__global__ void gelu_kernel(typename NUM::word *out, const typename NUM::word *x,
                            const typename NUM::word *bias, size_t R, size_t C) {
    OPS_ROWS(r) {
        OPS_CHUNKS(i) {
            float v[W], b[W] = {}, slope;
            ops_load<NUM, W>(v, x + r * C + i);
            if (bias) ops_load<NUM, W>(b, bias + i);
            OPS_EACH(j) v[j] = gelu_of(v[j] + b[j], &slope);
            ops_store<NUM, W>(out + r * C + i, v);
        }
    }
}

/* to [columns][rows][n] = from [rows][columns][n] */
template <class WORD>
__global__ void transpose_kernel(WORD *to, const WORD *from, size_t rows, size_t columns,
                                 size_t n) {
    const size_t all = rows * columns * n, stride = (size_t)gridDim.x * blockDim.x;
    for (size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x; i < all; i += stride) {
        const size_t row = i / n % rows, column = i / n / rows;
        to[i] = from[(row * columns + column) * n + i % n];
    }
}

/* x *= factor */
template <class NUM, int W>
__global__ void scale_kernel(typename NUM::word *x, float factor, size_t R, size_t C) {
    OPS_ROWS(r) {
        OPS_CHUNKS(i) {
            float v[W];
            ops_load<NUM, W>(v, x + r * C + i);
            OPS_EACH(j) v[j] *= factor;
            ops_store<NUM, W>(x + r * C + i, v);
        }
    }
}

/* What a pass over the columns of d (R, C) does in addition to its sum. */
enum column_pass {
    COLUMN_SUM,          /* nothing */
    COLUMN_GELU_AGAIN,   /* out = GELU(x + bias) */
    COLUMN_GELU_BACKWARD /* the same, and d is multiplied by GELU's slope before it is added */
};

template <class NUM, int W, int PASS>
OPS_DEVICE void column_row(float (&sum)[W], typename NUM::word *d, typename NUM::word *out,
                           const typename NUM::word *x, const float (&b)[W], size_t at) {
    float v[W];
    ops_load<NUM, W>(v, d + at);
    if constexpr (PASS != COLUMN_SUM) {
        float y[W];
        ops_load<NUM, W>(y, x + at);
        OPS_EACH(j) {
            float slope;
            y[j] = gelu_of(y[j] + b[j], &slope);
            if constexpr (PASS == COLUMN_GELU_BACKWARD) v[j] *= slope;
        }
        ops_store<NUM, W>(out + at, y);
        if constexpr (PASS == COLUMN_GELU_BACKWARD) ops_store<NUM, W>(d + at, v);
    }
    OPS_EACH(j) sum[j] += v[j];
}

/* Writes partial (gridDim.y, C): sums of d over gridDim.y runs of rows. A block has COLUMN_LANES x
   COLUMN_ROWS threads, and blockIdx.x is a strip of COLUMN_LANES * W columns. */
template <class NUM, int W, int PASS>
__global__ void __launch_bounds__(256)
    column_kernel(float *partial, typename NUM::word *d, typename NUM::word *out,
                  const typename NUM::word *x, const typename NUM::word *bias, size_t R, size_t C) {
    __shared__ float rows[COLUMN_ROWS][COLUMN_LANES * W];
    const size_t i = ((size_t)blockIdx.x * COLUMN_LANES + threadIdx.x) * W;
    const size_t end = R * (blockIdx.y + 1) / gridDim.y;
    float sum[W] = {}, b[W] = {};
    if (i < C) {
        if (bias) ops_load<NUM, W>(b, bias + i);
#pragma unroll 4
        for (size_t r = R * blockIdx.y / gridDim.y + threadIdx.y; r < end; r += COLUMN_ROWS)
            column_row<NUM, W, PASS>(sum, d, out, x, b, r * C + i);
    }
    OPS_EACH(j) rows[threadIdx.y][threadIdx.x * W + j] = sum[j];
    __syncthreads();
    const size_t first = (size_t)blockIdx.x * COLUMN_LANES * W;
    for (size_t c = threadIdx.y * COLUMN_LANES + threadIdx.x; c < COLUMN_LANES * W;
         c += COLUMN_ROWS * COLUMN_LANES) {
        float all = 0;
#pragma unroll
        for (int y = 0; y < COLUMN_ROWS; y++) all += rows[y][c];
        if (first + c < C) partial[blockIdx.y * C + first + c] = all;
    }
}

/* Partial sums (parts, n), to add to gradients: columns below `split` to a, the others to b. */
struct finish_job {
    void *a, *b;
    const float *partial;
    size_t split, parts, n;
    unsigned end; /* number of blocks of this job and of those before it */
};
enum { FINISH_JOBS = 8 };
struct finish_jobs {
    finish_job job[FINISH_JOBS];
    int count;
};

/* A block has COLUMN_LANES x COLUMN_ROWS threads, and takes COLUMN_LANES columns of one job. */
static __global__ void __launch_bounds__(256) finish_kernel(finish_jobs jobs, zero_type grad_type) {
    __shared__ float rows[COLUMN_ROWS][COLUMN_LANES];
    int g = 0;
    while (blockIdx.x >= jobs.job[g].end) g++;
    const finish_job &job = jobs.job[g];
    const size_t first = g ? jobs.job[g - 1].end : 0, n = job.n;
    const size_t c = (blockIdx.x - first) * COLUMN_LANES + threadIdx.x;
    float sum = 0;
    if (c < n)
#pragma unroll 4
        for (size_t p = threadIdx.y; p < job.parts; p += COLUMN_ROWS) sum += job.partial[p * n + c];
    rows[threadIdx.y][threadIdx.x] = sum;
    __syncthreads();
    if (threadIdx.y || c >= n) return;
    for (int y = 1; y < COLUMN_ROWS; y++) sum += rows[y][threadIdx.x];
    if (c < job.split)
        ops_grad_add_one(job.a, grad_type, c, sum);
    else
        ops_grad_add_one(job.b, grad_type, c - job.split, sum);
}

/* ---- layer norm ---------------------------------------------------------------------------- */

enum { NORM_WARPS = 8 };

template <class NUM, int W>
OPS_DEVICE void normalize_row(typename NUM::word *out, const typename NUM::word *x, float mean,
                              float rstd, const typename NUM::word *w, const typename NUM::word *b,
                              size_t C) {
    for (size_t i = (size_t)threadIdx.x * W; i < C; i += 32 * W) {
        float v[W], scale[W], shift[W];
        ops_load<NUM, W>(v, x + i);
        ops_load<NUM, W>(scale, w + i);
        ops_load<NUM, W>(shift, b + i);
        OPS_EACH(j) v[j] = fmaf((v[j] - mean) * rstd, scale[j], shift[j]);
        ops_store<NUM, W>(out + i, v);
    }
}

/* Each warp has a row; threadIdx.y is the warp. The row stays in the L1 cache for three passes.
   With AGAIN the kernel reads mean and rstd instead of computing them. */
template <class NUM, int W, bool AGAIN>
__global__ void __launch_bounds__(32 * NORM_WARPS)
    norm_kernel(typename NUM::word *out, float *mean, float *rstd, const typename NUM::word *x,
                const typename NUM::word *w, const typename NUM::word *b, size_t R, size_t C) {
    for (size_t r = (size_t)blockIdx.x * NORM_WARPS + threadIdx.y; r < R;
         r += (size_t)gridDim.x * NORM_WARPS) {
        const typename NUM::word *row = x + r * C;
        float m, s;
        if constexpr (AGAIN) {
            m = mean[r];
            s = rstd[r];
        } else {
            float sum = 0, squares = 0, v[W];
            for (size_t i = (size_t)threadIdx.x * W; i < C; i += 32 * W) {
                ops_load<NUM, W>(v, row + i);
                OPS_EACH(j) sum += v[j];
            }
            m = ops_warp_sum(sum) / (float)C;
            for (size_t i = (size_t)threadIdx.x * W; i < C; i += 32 * W) {
                ops_load<NUM, W>(v, row + i);
                OPS_EACH(j) squares += (v[j] - m) * (v[j] - m);
            }
            s = 1.0f / sqrtf(ops_warp_sum(squares) / (float)C + 1e-5f);
        }
        normalize_row<NUM, W>(out + r * C, row, m, s, w, b, C);
        if (!AGAIN && threadIdx.x == 0) {
            mean[r] = m;
            rstd[r] = s;
        }
    }
}

/* Backward: a block works on blockDim.y rows at once, with blockDim.x threads for each. A thread
   has K x W columns, and keeps their sums of dw and db. It loads its next row before the barrier of
   the current one. To save registers it keeps rows in their stored type, and converts them twice.
 */

/* The part of a row that a thread has. */
template <class NUM, int W, int K> struct norm_row {
    ops_raw<NUM, W> d[K], x[K]; /* dout, x */
    float mean, rstd;
};
template <int W, int K> struct norm_sums { float dw[K][W], db[K][W]; };

#define NORM_COLUMN(k) (((size_t)threadIdx.x + (size_t)(k)*blockDim.x) * W)
template <class NUM, int W, int K>
OPS_DEVICE void norm_fetch_row(norm_row<NUM, W, K> &row, const typename NUM::word *dout,
                               const typename NUM::word *x, const float *mean, const float *rstd,
                               size_t r, size_t R, size_t C) {
    if (r >= R) return;
#pragma unroll
    for (int k = 0; k < K; k++) {
        if (NORM_COLUMN(k) >= C) continue;
        ops_fetch<NUM, W>(row.d[k], dout + r * C + NORM_COLUMN(k));
        ops_fetch<NUM, W>(row.x[k], x + r * C + NORM_COLUMN(k));
    }
    row.mean = mean[r];
    row.rstd = rstd[r];
}
/* Computes g = dout w, and n, the normalised x, of columns k. */
template <class NUM, int W, int K>
OPS_DEVICE void norm_values(float (&d)[W], float (&g)[W], float (&n)[W],
                            const norm_row<NUM, W, K> &row, const typename NUM::word *w, int k) {
    float scale[W];
    ops_values<NUM, W>(d, row.d[k]);
    ops_values<NUM, W>(n, row.x[k]);
    ops_load<NUM, W>(scale, w + NORM_COLUMN(k));
    OPS_EACH(j) {
        n[j] = (n[j] - row.mean) * row.rstd;
        g[j] = d[j] * scale[j];
    }
}

/* Adds a row to dw and db, and to the row's sums of g and of g n. */
template <class NUM, int W, int K>
OPS_DEVICE void norm_take_row(norm_sums<W, K> &p, float &sum, float &dot,
                              const norm_row<NUM, W, K> &row, const typename NUM::word *w,
                              size_t C) {
#pragma unroll
    for (int k = 0; k < K; k++) {
        if (NORM_COLUMN(k) >= C) continue;
        float d[W], g[W], n[W];
        norm_values<NUM, W, K>(d, g, n, row, w, k);
        OPS_EACH(j) {
            sum += g[j];
            dot = fmaf(g[j], n[j], dot);
            p.dw[k][j] = fmaf(d[j], n[j], p.dw[k][j]);
            p.db[k][j] += d[j];
        }
    }
}

/* Computes dx = rstd (g - mean(g) - n mean(g n)), and adds or stores it. */
template <class NUM, int W, int K>
OPS_DEVICE void norm_give_row(typename NUM::word *dx, norm_row<NUM, W, K> &row,
                              const typename NUM::word *w, float sum, float dot, int store,
                              size_t C) {
#pragma unroll
    for (int k = 0; k < K; k++) {
        if (NORM_COLUMN(k) >= C) continue;
        float d[W], g[W], n[W], v[W] = {};
        ops_forget<NUM, W>(row.d[k]);
        ops_forget<NUM, W>(row.x[k]);
        if (!store) ops_load<NUM, W>(v, dx + NORM_COLUMN(k));
        norm_values<NUM, W, K>(d, g, n, row, w, k);
        OPS_EACH(j) {
            const float each = row.rstd * (g[j] - sum - n[j] * dot);
            v[j] = store ? each : v[j] + each;
        }
        ops_store<NUM, W>(dx + NORM_COLUMN(k), v);
    }
}

/* Sums a and b over the threads of a row. `warps` is one half of the shared memory, and the next
   round uses the other, so that each round needs only one barrier. */
OPS_DEVICE void norm_sum_row(float (*warps)[2], float &a, float &b) {
    const unsigned each = blockDim.x / 32, first = threadIdx.y * each;
    a = ops_warp_sum(a);
    b = ops_warp_sum(b);
    if (threadIdx.x % 32 == 0) {
        warps[first + threadIdx.x / 32][0] = a;
        warps[first + threadIdx.x / 32][1] = b;
    }
    __syncthreads();
    a = b = 0;
    for (unsigned i = first; i < first + each; i++) {
        a += warps[i][0];
        b += warps[i][1];
    }
}

/* Adds a column's sums of all rows of the block, and writes the total to `partial`. */
OPS_DEVICE void norm_give_sum(float *lanes, float *to, float sum, bool owned) {
    __syncthreads();
    lanes[threadIdx.y * blockDim.x + threadIdx.x] = sum;
    __syncthreads();
    if (threadIdx.y || !owned) return;
    for (unsigned y = 1; y < blockDim.y; y++) sum += lanes[y * blockDim.x + threadIdx.x];
    *to = sum;
}

/* Writes partial (gridDim.x, 2C): dw, then db. */
template <class NUM, int W, int K>
__global__ void __launch_bounds__(NORM_THREADS)
    norm_backward_kernel(typename NUM::word *dx, float *partial, const typename NUM::word *dout,
                         const typename NUM::word *x, const float *mean, const float *rstd,
                         const typename NUM::word *w, int store, size_t R, size_t C) {
    __shared__ float warps[2][NORM_THREADS / 32][2];
    __shared__ float lanes[NORM_THREADS];
    const size_t rows = (size_t)gridDim.x * blockDim.y;
    norm_sums<W, K> p = {};
    norm_row<NUM, W, K> next = {};
    int half = 0;
    size_t r = (size_t)blockIdx.x * blockDim.y + threadIdx.y;
    if (K == 1) norm_fetch_row<NUM, W, K>(next, dout, x, mean, rstd, r, R, C);
    for (; r - threadIdx.y < R; r += rows, half ^= 1) {
        norm_row<NUM, W, K> row = next;
        float sum = 0, dot = 0;
        if (K == 1) /* for wider rows there are not enough registers */
            norm_fetch_row<NUM, W, K>(next, dout, x, mean, rstd, r + rows, R, C);
        else
            norm_fetch_row<NUM, W, K>(row, dout, x, mean, rstd, r, R, C);
        if (r < R) norm_take_row<NUM, W, K>(p, sum, dot, row, w, C);
        norm_sum_row(warps[half], sum, dot);
        if (r < R)
            norm_give_row<NUM, W, K>(dx + r * C, row, w, sum / (float)C, dot / (float)C, store, C);
    }
    float *to = partial + (size_t)blockIdx.x * 2 * C;
#pragma unroll
    for (int k = 0; k < K; k++) OPS_EACH(j) {
            const size_t c = NORM_COLUMN(k) + (size_t)j;
            norm_give_sum(lanes, to + c, p.dw[k][j], c < C);
            norm_give_sum(lanes, to + C + c, p.db[k][j], c < C);
        }
}

/* ---- cross entropy ------------------------------------------------------------------------- */

enum { CLASSIFIER_THREADS = 1024 };
/* The blocks on a multiprocessor. Some multiprocessors have room for 1536 threads. */
#if defined(__CUDA_ARCH__)                                                                         \
    && (__CUDA_ARCH__ == 860 || __CUDA_ARCH__ == 870 || __CUDA_ARCH__ == 890                       \
        || __CUDA_ARCH__ >= 1200)
#define CLASSIFIER_BLOCKS 1
#else
#define CLASSIFIER_BLOCKS 2
#endif

/* The largest of several numbers, and the sum of e^(x - largest) over them. */
struct softmax_part {
    float most, sum;
};

/* Combines two parts. If all numbers are -infinity, the sum is 0. */
OPS_DEVICE softmax_part softmax_join(softmax_part a, softmax_part b) {
    softmax_part all;
    all.most = fmaxf(a.most, b.most);
    const float base = all.most == -INFINITY ? 0.0f : all.most;
    all.sum = a.sum * expf(a.most - base) + b.sum * expf(b.most - base);
    return all;
}

OPS_DEVICE softmax_part softmax_warp(softmax_part p) {
#pragma unroll
    for (int with = 16; with > 0; with /= 2) {
        softmax_part other;
        other.most = __shfl_xor_sync(0xFFFFFFFFu, p.most, with);
        other.sum = __shfl_xor_sync(0xFFFFFFFFu, p.sum, with);
        p = softmax_join(p, other);
    }
    return p;
}

/* Computes it for the V entries of a row, with all threads of the block. Every thread gets it. */
template <class NUM, int W>
OPS_DEVICE softmax_part softmax_row(const typename NUM::word *x, size_t V) {
    __shared__ softmax_part warps[CLASSIFIER_THREADS / 32];
    softmax_part p = {-INFINITY, 0.0f};
    for (size_t i = (size_t)threadIdx.x * W; i < V; i += (size_t)blockDim.x * W) {
        float v[W], sum = 0, most = p.most;
        ops_load<NUM, W>(v, x + i);
        if (i + W > V) OPS_EACH(j) if (i + j >= V) v[j] = -INFINITY; /* adds nothing */
        OPS_EACH(j) most = fmaxf(most, v[j]);
        const float base = most == -INFINITY ? 0.0f : most;
        if (p.most != most) p.sum *= expf(p.most - base);
        OPS_EACH(j) sum += expf(v[j] - base);
        p.most = most;
        p.sum += sum;
    }
    p = softmax_warp(p);
    if (threadIdx.x % 32 == 0) warps[threadIdx.x / 32] = p;
    __syncthreads();
    const softmax_part none = {-INFINITY, 0.0f};
    return softmax_warp(threadIdx.x % 32 < blockDim.x / 32 ? warps[threadIdx.x % 32] : none);
}

/* Each block has a row; see ops_cross_entropy. The pass that writes the gradient reads the row from
   the L2 cache. It begins at the row's end, which was read last. Two blocks share a multiprocessor,
   so that one can work while the other is at its barrier. */
template <class NUM, int W>
__global__ void __launch_bounds__(CLASSIFIER_THREADS, CLASSIFIER_BLOCKS)
    cross_entropy_kernel(float *losses, typename NUM::word *logits, const int *targets, int train,
                         float scale, size_t V, size_t Vp) {
    const size_t r = blockIdx.x, target = (size_t)targets[r];
    typename NUM::word *x = logits + r * Vp;
    const float at_target = ops_load_one(x + target, NUM()); /* before it is overwritten */
    const softmax_part p = softmax_row<NUM, W>(x, V);
    if (threadIdx.x == 0) losses[r] = logf(p.sum) + p.most - at_target;
    if (!train) return;
    const float share = scale / p.sum;
    for (size_t c = threadIdx.x; c < Vp / W; c += blockDim.x) {
        const size_t i = (Vp / W - 1 - c) * W;
        float v[W];
        ops_load<NUM, W>(v, x + i);
        OPS_EACH(j) v[j] = expf(v[j] - p.most) * share;
        if (i + W > V) OPS_EACH(j) if (i + j >= V) v[j] = 0.0f;
        if (target - i < W) OPS_EACH(j) if (i + j == target) v[j] -= scale;
        ops_store<NUM, W>(x + i, v);
    }
}

/* ---- cross entropy, tile by tile ----------------------------------------------------------- */

/* Each block has a row; see ops_softmax_tile. It reads the row's state and target before the
   barrier of softmax_row, and writes after it. */
template <class NUM, int W>
__global__ void __launch_bounds__(CLASSIFIER_THREADS, CLASSIFIER_BLOCKS)
    softmax_tile_kernel(ops_softmax s, typename NUM::word *logits, const int *targets,
                        ops_tile tile, int train) {
    const size_t r = blockIdx.x, target = (size_t)targets[r] - tile.first;
    typename NUM::word *x = logits + r * tile.rows;
    const float before = tile.first ? s.most[r] : -INFINITY, sum = tile.first ? s.sum[r] : 0.0f;
    const float at_target = target < tile.rows ? ops_load_one(x + target, NUM()) : 0.0f;
    const softmax_part p = softmax_row<NUM, W>(x, tile.valid);
    const float all = fmaxf(before, p.most);
    if (threadIdx.x == 0) {
        const float factor = tile.first ? expf(before - all) : 0.0f;
        s.most[r] = all;
        s.sum[r] = sum * factor + (tile.valid ? p.sum * expf(p.most - all) : 0.0f);
        s.factor[r] = factor;
        if (target < tile.rows) s.losses[r] = at_target;
    }
    if (!train) return;
    for (size_t i = (size_t)threadIdx.x * W; i < tile.rows; i += (size_t)blockDim.x * W) {
        float v[W];
        ops_load<NUM, W>(v, x + i);
        OPS_EACH(j) v[j] = i + j < tile.valid ? expf(v[j] - all) : 0.0f;
        ops_store<NUM, W>(x + i, v);
    }
}

template <class NUM, int W>
__global__ void softmax_add_kernel(float *mean, const float *factor, const typename NUM::word *more,
                                   int first, size_t R, size_t C) {
    OPS_ROWS(r) {
        OPS_CHUNKS(i) {
            float v[W];
            float *to = mean + r * C + i;
            ops_load<NUM, W>(v, more + r * C + i);
            OPS_EACH(j) to[j] = first ? v[j] : fmaf(to[j], factor[r], v[j]);
        }
    }
}

#define EVERY_ROW(r)                                                                               \
    for (size_t r = (size_t)blockIdx.x * blockDim.x + threadIdx.x; r < R;                          \
         r += (size_t)gridDim.x * blockDim.x)

static __global__ void softmax_begin_kernel(ops_softmax s, size_t R) {
    EVERY_ROW(r) {
        s.most[r] = -FLT_MAX;
        s.sum[r] = s.losses[r] = 0.0f;
    }
}

static __global__ void softmax_meet_kernel(ops_softmax s, const float *most, size_t R) {
    EVERY_ROW(r) {
        s.factor[r] = expf(s.most[r] - most[r]);
        s.sum[r] *= s.factor[r];
        s.most[r] = most[r];
    }
}

static __global__ void softmax_share_kernel(ops_softmax s, size_t R) {
    EVERY_ROW(r) s.factor[r] = s.sum[r] / s.factor[r];
}

static __global__ void softmax_end_kernel(ops_softmax s, size_t R) {
    EVERY_ROW(r) s.losses[r] = logf(s.sum[r]) + s.most[r] - s.losses[r];
}

template <class NUM, int W>
__global__ void softmax_dx_kernel(typename NUM::word *dx, const float *mean, const float *sum,
                                  float scale, size_t R, size_t C) {
    OPS_ROWS(r) {
        const float share = 1.0f / sum[r];
        OPS_CHUNKS(i) {
            float v[W];
            ops_load<NUM, W>(v, dx + r * C + i);
            OPS_EACH(j) v[j] = scale * (mean[r * C + i + j] * share - v[j]);
            ops_store<NUM, W>(dx + r * C + i, v);
        }
    }
}

/* Each block has a row. */
template <class NUM, int W>
__global__ void softmax_backward_kernel(typename NUM::word *logits, ops_softmax s,
                                        const int *targets, ops_tile tile, float scale) {
    const size_t r = blockIdx.x, target = (size_t)targets[r] - tile.first;
    typename NUM::word *x = logits + r * tile.rows;
    const float most = s.most[r], share = scale / s.sum[r];
    for (size_t i = (size_t)threadIdx.x * W; i < tile.rows; i += (size_t)blockDim.x * W) {
        float v[W];
        ops_load<NUM, W>(v, x + i);
        OPS_EACH(j) v[j] = i + j < tile.valid ? expf(v[j] - most) * share : 0.0f;
        OPS_EACH(j) if (i + j == target) v[j] -= scale;
        ops_store<NUM, W>(x + i, v);
    }
}

/* ---- attention piece by piece -------------------------------------------------------------- */

/* kv (R, 2, C / 2) = the keys and values of qkv (R, 3, C / 2) */
template <class NUM, int W>
__global__ void take_keys_kernel(typename NUM::word *kv, const typename NUM::word *qkv, size_t R,
                                 size_t C) {
    OPS_ROWS(r) {
        OPS_CHUNKS(i) {
            float v[W];
            ops_load<NUM, W>(v, qkv + r * (C / 2 * 3) + C / 2 + i);
            ops_store<NUM, W>(kv + r * C + i, v);
        }
    }
}

static __global__ void partial_begin_kernel(ops_partial state, size_t R) {
    EVERY_ROW(r) {
        state.most[r] = -INFINITY;
        state.sum[r] = 0.0f;
    }
}

/* A head's channels are a multiple of W. */
template <class NUM, int W>
__global__ void partial_end_kernel(typename NUM::word *out, float *lse, ops_partial state,
                                   ops_heads s) {
    const size_t R = s.batch * s.seq_len, C = s.heads * s.head_size;
    OPS_ROWS(r) {
        const size_t first = r / s.seq_len * s.heads * s.seq_len + r % s.seq_len;
        OPS_CHUNKS(i) {
            const size_t row = first + i / s.head_size * s.seq_len; /* in (B, NH, T) */
            const float share = 1.0f / state.sum[row];
            float v[W];
            OPS_EACH(j) v[j] = state.out[r * C + i + j] * share;
            ops_store<NUM, W>(out + r * C + i, v);
            if (i % s.head_size == 0) lse[row] = state.most[row] + logf(state.sum[row]);
        }
    }
}

/* dqkv (R, 3, C / 3) */
template <class NUM, int W>
__global__ void slopes_end_kernel(typename NUM::word *dqkv, ops_slopes g, float scale, size_t R,
                                  size_t C) {
    const size_t of_q = C / 3;
    OPS_ROWS(r) {
        OPS_CHUNKS(i) {
            const float *dq = g.dq + r * of_q + i, *dkv = g.dkv + r * 2 * of_q + i - of_q;
            float v[W];
            OPS_EACH(j) v[j] = i < of_q ? dq[j] * scale : dkv[j];
            ops_store<NUM, W>(dqkv + r * C + i, v);
        }
    }
}

static __global__ void add_f32_kernel(float *to, const float *x, size_t R) {
    EVERY_ROW(r) to[r] += x[r];
}

/* ---- products that cuBLASLt does not have -------------------------------------------------- */

/* See cuda_products.h. */
struct plain_product {
    size_t m, n, k;
    int ta, tb;
};

/* Each thread computes one element. This kernel is for rows and GPUs that cuBLASLt does not
   support; it is slow. With `add` d is a gradient of parameters. */
template <class NUM>
__global__ void product_kernel(void *d, int add, zero_type grad_type, const typename NUM::word *a,
                               const typename NUM::word *b, plain_product p) {
    for (size_t at = (size_t)blockIdx.x * blockDim.x + threadIdx.x; at < p.m * p.n;
         at += (size_t)gridDim.x * blockDim.x) {
        const size_t i = at % p.m, j = at / p.m;
        const typename NUM::word *row = p.ta ? a + i * p.k : a + i;
        const typename NUM::word *column = p.tb ? b + j : b + j * p.k;
        const size_t next_a = p.ta ? 1 : p.m, next_b = p.tb ? p.n : 1;
        float sum = 0;
        for (size_t x = 0; x < p.k; x++)
            sum = fmaf(ops_load_one(row + x * next_a, NUM()),
                       ops_load_one(column + x * next_b, NUM()), sum);
        if (add)
            ops_grad_add_one(d, grad_type, at, sum);
        else
            ops_store_one((typename NUM::word *)d + at, sum, NUM());
    }
}

/* ---- sums, and numbers to measure with ----------------------------------------------------- */

enum { SUM_THREADS = 512 };

/* One block. Each thread adds its numbers in order; then the threads' sums are added by halves. */
static __global__ void __launch_bounds__(SUM_THREADS)
    sum_kernel(double *total, const float *x, size_t n) {
    __shared__ double sums[SUM_THREADS];
    double sum = 0;
#pragma unroll 8
    for (size_t i = threadIdx.x; i < n; i += SUM_THREADS) sum += (double)x[i];
    sums[threadIdx.x] = sum;
    for (unsigned width = SUM_THREADS / 2; width > 0; width /= 2) {
        __syncthreads();
        if (threadIdx.x < width) sums[threadIdx.x] += sums[threadIdx.x + width];
    }
    if (threadIdx.x == 0) *total += sums[0];
}

/* Adds the hash of n halves of words to *sum. Memory need not begin at a word. Integers have the
   same sum in any order. */
static __global__ void __launch_bounds__(SUM_THREADS)
    hash_kernel(unsigned long long *sum, const unsigned short *x, size_t n, uint64_t seed) {
    __shared__ unsigned long long sums[SUM_THREADS];
    const size_t words = (n + 3) / 4, step = (size_t)gridDim.x * SUM_THREADS;
    unsigned long long total = 0;
    for (size_t i = (size_t)blockIdx.x * SUM_THREADS + threadIdx.x; i < words; i += step) {
        uint64_t word = 0;
        for (size_t k = 0; k < 4 && 4 * i + k < n; k++) word |= (uint64_t)x[4 * i + k] << (16 * k);
        total += hash_words_term(word, seed + i);
    }
    sums[threadIdx.x] = total;
    for (unsigned width = SUM_THREADS / 2; width > 0; width /= 2) {
        __syncthreads();
        if (threadIdx.x < width) sums[threadIdx.x] += sums[threadIdx.x + width];
    }
    if (threadIdx.x == 0) atomicAdd(sum, sums[0]);
}

/* Fills x with pseudo-random numbers in [-1/2, 1/2), because products of zeros are faster. */
template <class NUM> __global__ void fill_kernel(typename NUM::word *x, size_t n) {
    for (size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x; i < n;
         i += (size_t)gridDim.x * blockDim.x) {
        const uint32_t bits = ((uint32_t)i * 2654435761u) >> 16;
        ops_store_one(x + i, (float)bits / 65536.0f - 0.5f, NUM());
    }
}
#endif
