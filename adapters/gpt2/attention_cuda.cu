/* attention_cuda.cu - attention_cuda.h: the own kernels, and the choice between them and cuDNN.

   Build: nvcc -O3 -fmad=false -c attention_cuda.cu; with -DGPT2_WITH_CUDNN and attention_cudnn.c
   for cuDNN.

   Flash attention (Dao et al. 2022 and 2023) in f32: scores exist tile by tile, in shared memory.
   A tile has ROWS tokens; a block has 4 * ROWS threads, each of which holds 4 rows of every product
   and each 16th column of them:

       thread (ty, tx):  rows 4 ty .. 4 ty + 3,
                         columns tx + 16 j of scores, 64 j + 4 tx .. + 3 of head-sized results

   So 16 neighbouring threads (half a warp) hold whole rows. They compute a row's maximum and sum by
   shuffles, and the same half warp writes and reads the tile of probabilities. Rows in shared
   memory are padded by 4 floats, so that 8 threads that each read 16 bytes of 8 neighbouring rows
   use 32 different banks.

   Backward has two kernels: in one, tiles of keys sum dK and dV over queries; in the other, tiles
   of queries sum dQ over keys. Both compute the scores. But each sum has one owner and one order,
   so there are no atomics, and the bits are always the same.

   A loop has `#pragma unroll` if an array can stay in registers only with constant indices. */
#include "attention_cuda.h"
#include "cuda_bytes.h"
#include "cuda_numbers.h"

#include <cuda_runtime.h>
#include <math.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#ifdef GPT2_WITH_CUDNN
#include "attention_cudnn.h"
#endif

#ifdef EMULATED_LAUNCH /* tests run the kernels on the CPU */
#define OPS_LAUNCH                     EMULATED_LAUNCH
#define OPS_DYNAMIC_SHARED(type, name) EMULATED_DYNAMIC_SHARED(type, name)
#else
#define OPS_LAUNCH(kernel, grid, block, shared, stream, ...)                                       \
    kernel<<<grid, block, shared, stream>>>(__VA_ARGS__)
#define OPS_DYNAMIC_SHARED(type, name) extern __shared__ __align__(16) type name[]
#endif

enum { HEAD_MAX = 256, TEXT_BYTES = 512, PATH_BYTES = 320 };

/* Reads or writes four adjacent numbers in one access. */
template <typename NUM>
static __device__ __forceinline__ void load4(float *x, const typename NUM::word *from) {
    if constexpr (sizeof *from == 4) {
        const float4 v = *(const float4 *)(const void *)from;
        x[0] = v.x, x[1] = v.y, x[2] = v.z, x[3] = v.w;
    } else {
        const uint2 v = *(const uint2 *)(const void *)from;
        x[0] = NUM::low(v.x), x[1] = NUM::high(v.x), x[2] = NUM::low(v.y), x[3] = NUM::high(v.y);
    }
}
template <typename NUM>
static __device__ __forceinline__ void store4(typename NUM::word *to, const float *x) {
    if constexpr (sizeof *to == 4)
        *(float4 *)(void *)to = make_float4(x[0], x[1], x[2], x[3]);
    else
        *(uint2 *)(void *)to = make_uint2(NUM::pack(x[0], x[1]), NUM::pack(x[2], x[3]));
}

/* ---- tiles in shared memory ---------------------------------------------------------------- */

enum { PAD = 4, LANES = 16, MINE = 4 }; /* MINE is the number of rows of a thread */
#define THREADS(rows) ((rows)*LANES / MINE)

static __device__ __forceinline__ int lane(void) { return (int)threadIdx.x % LANES; }
static __device__ __forceinline__ int first_row(void) { return (int)threadIdx.x / LANES * MINE; }

/* The rows of one head in a packed tensor. Row t is at `at` + t * stride. */
template <typename N> struct rows {
    N *at;
    size_t stride;
    int head_size;
};

/* Loads rows [first, first + ROWS) of n rows into a tile (ROWS, D + PAD). Elements beyond n and
 * beyond the head are zero. */
template <typename NUM, int ROWS, int D>
static __device__ void tile_load(float *tile, rows<const typename NUM::word> from, int first,
                                 int n) {
    constexpr int groups = D / 4, threads = THREADS(ROWS);
    static_assert(ROWS * groups % threads == 0, "all threads load the same number of groups");
#pragma unroll 4
    for (int k = 0; k < ROWS * groups / threads; k++) {
        const int i = k * threads + (int)threadIdx.x;
        const int row = i / groups, column = i % groups * 4, left = from.head_size - column;
        float *to = tile + row * (D + PAD) + column;
        const typename NUM::word *at = from.at + (size_t)(first + row) * from.stride + column;
        float x[4] = {0, 0, 0, 0};
        if (first + row < n && left > 0) {
            if (from.head_size % 4 == 0) {
                load4<NUM>(x, at);
            } else {
#pragma unroll
                for (int j = 0; j < 4; j++)
                    if (j < left) x[j] = ops_load_one(at + j, NUM());
            }
        }
        *(float4 *)to = make_float4(x[0], x[1], x[2], x[3]);
    }
}

/* Stores this thread's part of rows [first, first + ROWS) of n, each times the factor of its row.
 */
template <typename NUM, int D>
static __device__ void tile_store(rows<typename NUM::word> to, const float (*x)[D / LANES],
                                  const float *factor, int first, int n) {
#pragma unroll
    for (int i = 0; i < MINE; i++) {
        const int row = first + first_row() + i;
#pragma unroll
        for (int c = 0; c < D / 64; c++) {
            const int column = c * 64 + lane() * 4, left = to.head_size - column;
            float y[4];
#pragma unroll
            for (int j = 0; j < 4; j++) y[j] = x[i][c * 4 + j] * factor[i];
            if (row >= n || left <= 0) continue;
            typename NUM::word *at = to.at + (size_t)row * to.stride + column;
            if (to.head_size % 4 == 0) {
                store4<NUM>(at, y);
            } else {
#pragma unroll
                for (int j = 0; j < 4; j++)
                    if (j < left) ops_store_one(at + j, y[j], NUM());
            }
        }
    }
}

/* Loads this thread's part of rows [first, first + ROWS) of n, which tile_store stores. */
template <int D>
static __device__ void tile_fetch(float (*x)[D / LANES], rows<const float> from, int first, int n) {
#pragma unroll
    for (int i = 0; i < MINE; i++) {
        const int row = first + first_row() + i;
#pragma unroll
        for (int j = 0; j < D / LANES; j++) {
            const int column = j / 4 * 64 + lane() * 4 + j % 4;
            x[i][j] = row < n && column < from.head_size
                          ? from.at[(size_t)row * from.stride + column]
                          : 0.0f;
        }
    }
}

/* Adds this thread's part of rows [first, first + ROWS) of n, times the factor. */
template <int D>
static __device__ void tile_merge(rows<float> to, const float (*x)[D / LANES], float factor,
                                  int first, int n) {
#pragma unroll
    for (int i = 0; i < MINE; i++) {
        const int row = first + first_row() + i;
#pragma unroll
        for (int j = 0; j < D / LANES; j++) {
            const int column = j / 4 * 64 + lane() * 4 + j % 4;
            if (row < n && column < to.head_size)
                to.at[(size_t)row * to.stride + column] += x[i][j] * factor;
        }
    }
}

/* Computes s = a b^T, the products of rows of a and of b, both (ROWS, D + PAD). */
template <int ROWS, int D>
static __device__ __forceinline__ void tile_dot(float (*s)[ROWS / LANES], const float *a,
                                                const float *b) {
    const float *mine = a + first_row() * (D + PAD), *other = b + lane() * (D + PAD);
#pragma unroll
    for (int i = 0; i < MINE; i++)
#pragma unroll
        for (int j = 0; j < ROWS / LANES; j++) s[i][j] = 0;
    for (int d = 0; d < D; d += 4) {
        float4 x[MINE];
#pragma unroll
        for (int i = 0; i < MINE; i++) x[i] = *(const float4 *)(mine + i * (D + PAD) + d);
#pragma unroll
        for (int j = 0; j < ROWS / LANES; j++) {
            const float4 y = *(const float4 *)(other + j * LANES * (D + PAD) + d);
#pragma unroll
            for (int i = 0; i < MINE; i++) {
                s[i][j] = fmaf(x[i].x, y.x, s[i][j]);
                s[i][j] = fmaf(x[i].y, y.y, s[i][j]);
                s[i][j] = fmaf(x[i].z, y.z, s[i][j]);
                s[i][j] = fmaf(x[i].w, y.w, s[i][j]);
            }
        }
    }
}

/* Computes sum += p v, with p (ROWS, ROWS + PAD) and v (ROWS, D + PAD). */
template <int ROWS, int D>
static __device__ __forceinline__ void tile_add(float (*sum)[D / LANES], const float *p,
                                                const float *v) {
    const float *mine = p + first_row() * (ROWS + PAD), *column = v + lane() * 4;
    for (int k = 0; k < ROWS; k += 4) {
        float x[MINE][4];
#pragma unroll
        for (int i = 0; i < MINE; i++) {
            const float4 q = *(const float4 *)(mine + i * (ROWS + PAD) + k);
            x[i][0] = q.x, x[i][1] = q.y, x[i][2] = q.z, x[i][3] = q.w;
        }
#pragma unroll
        for (int r = 0; r < 4; r++)
#pragma unroll
            for (int c = 0; c < D / 64; c++) {
                const float4 y = *(const float4 *)(column + (k + r) * (D + PAD) + c * 64);
#pragma unroll
                for (int i = 0; i < MINE; i++) {
                    float *const to = &sum[i][c * 4];
                    to[0] = fmaf(x[i][r], y.x, to[0]);
                    to[1] = fmaf(x[i][r], y.y, to[1]);
                    to[2] = fmaf(x[i][r], y.z, to[2]);
                    to[3] = fmaf(x[i][r], y.w, to[3]);
                }
            }
    }
}

/* Writes this thread's scores for its half warp, which has read the previous ones. */
template <int ROWS>
static __device__ __forceinline__ void tile_put(float *p, const float (*s)[ROWS / LANES]) {
    __syncwarp();
#pragma unroll
    for (int i = 0; i < MINE; i++)
#pragma unroll
        for (int j = 0; j < ROWS / LANES; j++)
            p[(first_row() + i) * (ROWS + PAD) + j * LANES + lane()] = s[i][j];
    __syncwarp();
}

/* Reduce over the 16 threads that hold a row. */
static __device__ __forceinline__ float row_max(float x) {
#pragma unroll
    for (int m = LANES / 2; m > 0; m /= 2) x = fmaxf(x, __shfl_xor_sync(0xFFFFFFFFu, x, m));
    return x;
}
static __device__ __forceinline__ float row_sum(float x) {
#pragma unroll
    for (int m = LANES / 2; m > 0; m /= 2) x += __shfl_xor_sync(0xFFFFFFFFu, x, m);
    return x;
}

/* ---- kernels: block (head of a sequence, tile) --------------------------------------------- */

typedef struct args {
    void *out, *dqkv;       /* (B, T, NH, HS), (B, T, 3, NH, HS) */
    const void *qkv, *dout; /* shapes of dqkv and of out */
    float *lse, *delta;     /* (B, NH, T) */
    int tokens, heads, head_size;
    float scale; /* factor of scores: 1 / sqrt(HS) */
    size_t rows; /* B T NH */
    /* queries of one piece of the tokens, and keys of another */
    const void *kv;         /* (B, T, 2, NH, HS) */
    float *most, *sum;      /* (B, NH, T) */
    float *sums, *dq, *dkv; /* (B, T, NH, HS) twice, (B, T, 2, NH, HS) */
    int queries, keys;      /* the first token of a piece */
    int piece;              /* tokens of a piece */
    int causal;
} args;

/* Returns this block's head in a tensor (B, T, parts, NH, HS), from a token of its sequence on. */
template <typename N>
static __device__ rows<N> head_of(const args &a, N *x, int parts, int part, int token) {
    const size_t b = blockIdx.x / (unsigned)a.heads, h = blockIdx.x % (unsigned)a.heads;
    const size_t heads = (size_t)a.heads, size = (size_t)a.head_size;
    const size_t row = (b * (size_t)a.tokens + (size_t)token) * (size_t)parts + (size_t)part;
    const rows<N> r = {x + (row * heads + h) * size, (size_t)parts * heads * size, a.head_size};
    return r;
}
/* Returns part 0, 1 or 2 (q, k or v) of this block's head in a packed tensor. */
template <typename N> static __device__ rows<N> packed(const args &a, N *qkv, int part) {
    return head_of(a, qkv, 3, part, 0);
}
/* Returns this block's head in (B, T, NH, HS). */
template <typename N> static __device__ rows<N> plain(const args &a, N *out) {
    return head_of(a, out, 1, 0, 0);
}

/* The inputs of a block: n queries and as many keys of a head. Causal: query i sees keys 0..i.
   Otherwise it sees all. Forward uses the first three tensors. */
template <typename N> struct inputs {
    rows<const N> q, k, v, dout;
    const float *lse, *delta; /* of the first query */
    int n;
    bool causal;
    float scale;
};
template <typename N> static __device__ __forceinline__ inputs<N> whole_inputs(const args &a) {
    const N *qkv = (const N *)a.qkv;
    const size_t row = (size_t)blockIdx.x * (size_t)a.tokens;
    const inputs<N> in = {packed(a, qkv, 0),
                          packed(a, qkv, 1),
                          packed(a, qkv, 2),
                          plain(a, (const N *)a.dout),
                          a.lse + row,
                          a.delta + row,
                          a.tokens,
                          true,
                          a.scale};
    return in;
}
template <typename N> static __device__ __forceinline__ inputs<N> pair_inputs(const args &a) {
    const N *kv = (const N *)a.kv;
    const size_t row = (size_t)blockIdx.x * (size_t)a.tokens + (size_t)a.queries;
    const inputs<N> in = {head_of(a, (const N *)a.qkv, 3, 0, a.queries),
                          head_of(a, kv, 2, 0, a.keys),
                          head_of(a, kv, 2, 1, a.keys),
                          head_of(a, (const N *)a.dout, 1, 0, a.queries),
                          a.lse + row,
                          a.delta + row,
                          a.piece,
                          a.causal != 0,
                          a.scale};
    return in;
}

/* Adds the scores s of one row in a tile to the row's softmax: its largest score so far, and the
 * sum of exponentials relative to it. s becomes these exponentials. Returns the factor that makes
 * earlier sums relative to the new largest score. */
template <int ROWS>
static __device__ __forceinline__ float softmax_row(float *s, float *most, float *sum) {
    float m = *most, total = 0;
#pragma unroll
    for (int j = 0; j < ROWS / LANES; j++) m = fmaxf(m, s[j]);
    m = row_max(m);
#pragma unroll
    for (int j = 0; j < ROWS / LANES; j++) {
        s[j] = expf(s[j] - m);
        total += s[j];
    }
    const float shrink = expf(*most - m);
    *most = m;
    *sum = *sum * shrink + row_sum(total);
    return shrink;
}

/* Scores times scale; -inf where the key comes after the query, as in tiles on the diagonal, or, if
 * queries see all keys, after the last key. */
template <int ROWS, typename N>
static __device__ __forceinline__ void mask_scores(float (*s)[ROWS / LANES], const inputs<N> &in,
                                                   int query, int key) {
#pragma unroll
    for (int i = 0; i < MINE; i++) {
        const int last = in.causal ? query + first_row() + i : in.n - 1;
#pragma unroll
        for (int j = 0; j < ROWS / LANES; j++)
            s[i][j] = key + j * LANES + lane() > last ? -INFINITY : s[i][j] * in.scale;
    }
}

/* Adds all keys to the softmaxes of the tile of queries from `first` on: `most` and `total` of its
 * rows, and `sum`, which has the values. Shared memory has q, then k or v, then probabilities. */
template <typename NUM, int D, int ROWS>
static __device__ __forceinline__ void attend(float *memory, const inputs<typename NUM::word> &in,
                                              int first, float (*sum)[D / LANES], float *total,
                                              float *most) {
    float *q = memory, *kv = q + ROWS * (D + PAD), *p = kv + ROWS * (D + PAD);
    float s[MINE][ROWS / LANES];
    const int end = in.causal ? first + 1 : in.n;
    tile_load<NUM, ROWS, D>(q, in.q, first, in.n);
    for (int key = 0; key < end; key += ROWS) {
        __syncthreads(); /* all threads have read v */
        tile_load<NUM, ROWS, D>(kv, in.k, key, in.n);
        __syncthreads();
        tile_dot<ROWS, D>(s, q, kv);
        __syncthreads(); /* all threads have read k */
        tile_load<NUM, ROWS, D>(kv, in.v, key, in.n);
        mask_scores<ROWS>(s, in, first, key);
#pragma unroll
        for (int i = 0; i < MINE; i++) {
            const float shrink = softmax_row<ROWS>(s[i], &most[i], &total[i]);
#pragma unroll
            for (int c = 0; c < D / LANES; c++) sum[i][c] *= shrink;
        }
        tile_put<ROWS>(p, s);
        __syncthreads();
        tile_add<ROWS, D>(sum, p, kv);
    }
}

/* Computes tile y of queries; the longest rows are first. */
template <typename NUM, int D, int ROWS>
static __global__ void __launch_bounds__(THREADS(ROWS)) forward_kernel(args a) {
    OPS_DYNAMIC_SHARED(float, memory);
    const int tile = (int)(gridDim.y - 1 - blockIdx.y), first = tile * ROWS;
    typedef typename NUM::word word;
    float sum[MINE][D / LANES] = {}, total[MINE] = {}, most[MINE];
#pragma unroll
    for (int i = 0; i < MINE; i++) most[i] = -INFINITY;
    attend<NUM, D, ROWS>(memory, whole_inputs<word>(a), first, sum, total, most);
    float *lse = a.lse + (size_t)blockIdx.x * (size_t)a.tokens;
#pragma unroll
    for (int i = 0; i < MINE; i++) {
        const int row = first + first_row() + i;
        if (lane() == 0 && row < a.tokens) lse[row] = most[i] + logf(total[i]);
        total[i] = 1.0f / total[i];
    }
    tile_store<NUM, D>(plain(a, (word *)a.out), sum, total, first, a.tokens);
}

/* The same for a pair of pieces: adds to the sums of earlier pairs. */
template <typename NUM, int D, int ROWS>
static __global__ void __launch_bounds__(THREADS(ROWS)) pair_forward_kernel(args a) {
    OPS_DYNAMIC_SHARED(float, memory);
    const int tile = (int)(gridDim.y - 1 - blockIdx.y), first = tile * ROWS;
    const size_t at = (size_t)blockIdx.x * (size_t)a.tokens + (size_t)a.queries;
    const rows<float> sums = head_of(a, a.sums, 1, 0, a.queries);
    const rows<const float> before = {sums.at, sums.stride, sums.head_size};
    float sum[MINE][D / LANES], total[MINE], most[MINE], factor[MINE];
    tile_fetch<D>(sum, before, first, a.piece);
#pragma unroll
    for (int i = 0; i < MINE; i++) {
        const int row = first + first_row() + i;
        most[i] = row < a.piece ? a.most[at + (size_t)row] : -INFINITY;
        total[i] = row < a.piece ? a.sum[at + (size_t)row] : 0.0f;
        factor[i] = 1;
    }
    attend<NUM, D, ROWS>(memory, pair_inputs<typename NUM::word>(a), first, sum, total, most);
#pragma unroll
    for (int i = 0; i < MINE; i++) {
        const int row = first + first_row() + i;
        if (lane() == 0 && row < a.piece) {
            a.most[at + (size_t)row] = most[i];
            a.sum[at + (size_t)row] = total[i];
        }
    }
    tile_store<ops_f32, D>(sums, sum, factor, first, a.piece);
}

/* Computes delta, the sum of dout * out over a head. It equals the sum of dp * p over keys (Dao et
 * al. 2022, equation 4). A half warp has a row. */
enum { DELTA_THREADS = 256 };
template <typename NUM>
static __global__ void __launch_bounds__(DELTA_THREADS) delta_kernel(args a) {
    const size_t row = ((size_t)blockIdx.x * DELTA_THREADS + threadIdx.x) / LANES;
    const size_t at = row < a.rows ? row : 0, size = (size_t)a.head_size;
    typedef typename NUM::word word;
    const word *out = (const word *)a.out + at * size, *dout = (const word *)a.dout + at * size;
    float sum = 0;
    for (int i = lane(); i < a.head_size; i += LANES)
        sum = fmaf(ops_load_one(dout + i, NUM()), ops_load_one(out + i, NUM()), sum);
    sum = row_sum(sum);
    const size_t heads = (size_t)a.heads, tokens = (size_t)a.tokens;
    const size_t t = row / heads % tokens, b = row / heads / tokens;
    if (lane() == 0 && row < a.rows) a.delta[(b * heads + row % heads) * tokens + t] = sum;
}

/* Adds to dk / scale and dv of the tile of keys from `first` on. In the registers of a thread, rows
 * are keys and columns are queries. Shared memory has k, v, q, dout, then probabilities or their
 * gradients, then lse and delta of the queries. */
template <typename NUM, int D, int ROWS>
static __device__ __forceinline__ void key_slopes(float *memory,
                                                  const inputs<typename NUM::word> &in, int first,
                                                  float (*dk)[D / LANES], float (*dv)[D / LANES]) {
    constexpr int size = ROWS * (D + PAD);
    float *k = memory, *v = k + size, *q = v + size, *dout = q + size, *p = dout + size;
    float *lse = p + ROWS * (ROWS + PAD), *delta = lse + ROWS;
    float s[MINE][ROWS / LANES], ds[MINE][ROWS / LANES];
    tile_load<NUM, ROWS, D>(k, in.k, first, in.n);
    tile_load<NUM, ROWS, D>(v, in.v, first, in.n);
    for (int query = in.causal ? first : 0; query < in.n; query += ROWS) {
        __syncthreads(); /* all threads have read q and dout */
        tile_load<NUM, ROWS, D>(q, in.q, query, in.n);
        tile_load<NUM, ROWS, D>(dout, in.dout, query, in.n);
        if ((int)threadIdx.x < ROWS) { /* queries beyond the end have no probabilities */
            const int t = query + (int)threadIdx.x;
            lse[threadIdx.x] = t < in.n ? in.lse[t] : INFINITY;
            delta[threadIdx.x] = t < in.n ? in.delta[t] : 0.0f;
        }
        __syncthreads();
        tile_dot<ROWS, D>(s, k, q);
        tile_dot<ROWS, D>(ds, v, dout);
#pragma unroll
        for (int i = 0; i < MINE; i++)
#pragma unroll
            for (int j = 0; j < ROWS / LANES; j++) {
                const int column = j * LANES + lane();
                const bool seen = !in.causal || first + first_row() + i <= query + column;
                s[i][j] = seen ? expf(s[i][j] * in.scale - lse[column]) : 0.0f;
                ds[i][j] = s[i][j] * (ds[i][j] - delta[column]);
            }
        tile_put<ROWS>(p, s);
        tile_add<ROWS, D>(dv, p, dout);
        tile_put<ROWS>(p, ds);
        tile_add<ROWS, D>(dk, p, q);
    }
}

/* Computes tile y of keys. */
template <typename NUM, int D, int ROWS>
static __global__ void __launch_bounds__(THREADS(ROWS)) keys_kernel(args a) {
    OPS_DYNAMIC_SHARED(float, memory);
    const int first = (int)blockIdx.y * ROWS;
    typedef typename NUM::word word;
    float dk[MINE][D / LANES] = {}, dv[MINE][D / LANES] = {}, factor[MINE];
    key_slopes<NUM, D, ROWS>(memory, whole_inputs<word>(a), first, dk, dv);
#pragma unroll
    for (int i = 0; i < MINE; i++) factor[i] = a.scale;
    tile_store<NUM, D>(packed(a, (word *)a.dqkv, 1), dk, factor, first, a.tokens);
#pragma unroll
    for (int i = 0; i < MINE; i++) factor[i] = 1;
    tile_store<NUM, D>(packed(a, (word *)a.dqkv, 2), dv, factor, first, a.tokens);
}
/* The same for a pair of pieces: adds to dkv. */
template <typename NUM, int D, int ROWS>
static __global__ void __launch_bounds__(THREADS(ROWS)) pair_keys_kernel(args a) {
    OPS_DYNAMIC_SHARED(float, memory);
    const int first = (int)blockIdx.y * ROWS;
    float dk[MINE][D / LANES] = {}, dv[MINE][D / LANES] = {};
    key_slopes<NUM, D, ROWS>(memory, pair_inputs<typename NUM::word>(a), first, dk, dv);
    tile_merge<D>(head_of(a, a.dkv, 2, 0, a.keys), dk, a.scale, first, a.piece);
    tile_merge<D>(head_of(a, a.dkv, 2, 1, a.keys), dv, 1.0f, first, a.piece);
}

/* Computes dq / scale of the tile of queries from `first` on. Shared memory has q, dout, k, v, then
 * gradients of scores. */
template <typename NUM, int D, int ROWS>
static __device__ __forceinline__ void query_slopes(float *memory,
                                                    const inputs<typename NUM::word> &in, int first,
                                                    float (*dq)[D / LANES]) {
    constexpr int size = ROWS * (D + PAD);
    float *q = memory, *dout = q + size, *k = dout + size, *v = k + size, *p = v + size;
    float s[MINE][ROWS / LANES], ds[MINE][ROWS / LANES], lse[MINE], delta[MINE];
    const int end = in.causal ? first + 1 : in.n;
#pragma unroll
    for (int i = 0; i < MINE; i++) {
        const int t = first + first_row() + i;
        lse[i] = t < in.n ? in.lse[t] : INFINITY;
        delta[i] = t < in.n ? in.delta[t] : 0.0f;
    }
    tile_load<NUM, ROWS, D>(q, in.q, first, in.n);
    tile_load<NUM, ROWS, D>(dout, in.dout, first, in.n);
    for (int key = 0; key < end; key += ROWS) {
        __syncthreads(); /* all threads have read k and v */
        tile_load<NUM, ROWS, D>(k, in.k, key, in.n);
        tile_load<NUM, ROWS, D>(v, in.v, key, in.n);
        __syncthreads();
        tile_dot<ROWS, D>(s, q, k);
        tile_dot<ROWS, D>(ds, dout, v);
        mask_scores<ROWS>(s, in, first, key);
#pragma unroll
        for (int i = 0; i < MINE; i++)
#pragma unroll
            for (int j = 0; j < ROWS / LANES; j++)
                ds[i][j] = expf(s[i][j] - lse[i]) * (ds[i][j] - delta[i]);
        tile_put<ROWS>(p, ds);
        tile_add<ROWS, D>(dq, p, k);
    }
}

/* Computes tile y of queries; the longest rows are first. */
template <typename NUM, int D, int ROWS>
static __global__ void __launch_bounds__(THREADS(ROWS)) queries_kernel(args a) {
    OPS_DYNAMIC_SHARED(float, memory);
    const int tile = (int)(gridDim.y - 1 - blockIdx.y), first = tile * ROWS;
    typedef typename NUM::word word;
    float dq[MINE][D / LANES] = {}, factor[MINE];
    query_slopes<NUM, D, ROWS>(memory, whole_inputs<word>(a), first, dq);
#pragma unroll
    for (int i = 0; i < MINE; i++) factor[i] = a.scale;
    tile_store<NUM, D>(packed(a, (word *)a.dqkv, 0), dq, factor, first, a.tokens);
}
/* The same for a pair of pieces: adds to dq, without the factor. */
template <typename NUM, int D, int ROWS>
static __global__ void __launch_bounds__(THREADS(ROWS)) pair_queries_kernel(args a) {
    OPS_DYNAMIC_SHARED(float, memory);
    const int tile = (int)(gridDim.y - 1 - blockIdx.y), first = tile * ROWS;
    float dq[MINE][D / LANES] = {};
    query_slopes<NUM, D, ROWS>(memory, pair_inputs<typename NUM::word>(a), first, dq);
    tile_merge<D>(head_of(a, a.dq, 1, 0, a.queries), dq, 1.0f, first, a.piece);
}

/* ---- the kernels of a head size ------------------------------------------------------------ */

typedef struct own_kernel {
    void (*run)(args);
    int rows; /* rows of its tiles */
    size_t shared_bytes;
} own_kernel;
typedef struct own_kernels {
    own_kernel forward, keys, queries;
    own_kernel pair_forward, pair_keys, pair_queries; /* as large as those of whole sequences */
    void (*delta)(args);
} own_kernels;

/* FORWARD and BACKWARD are rows of tiles. Tiles fit into 100 KB of shared memory, which GPUs have
 * since 2020, so that two or more blocks share a multiprocessor of an A100 or a later GPU. */
template <typename NUM, int D, int FORWARD, int BACKWARD> static own_kernels kernels_of(void) {
    constexpr size_t f = FORWARD, b = BACKWARD, wide = D + PAD, number = sizeof(float);
    own_kernels k;
    k.forward.run = forward_kernel<NUM, D, FORWARD>;
    k.forward.rows = FORWARD;
    k.forward.shared_bytes = (2 * f * wide + f * (f + PAD)) * number;
    k.keys.run = keys_kernel<NUM, D, BACKWARD>;
    k.keys.rows = BACKWARD;
    k.keys.shared_bytes = (4 * b * wide + b * (b + PAD) + 2 * b) * number;
    k.queries.run = queries_kernel<NUM, D, BACKWARD>;
    k.queries.rows = BACKWARD;
    k.queries.shared_bytes = (4 * b * wide + b * (b + PAD)) * number;
    k.pair_forward = k.forward;
    k.pair_forward.run = pair_forward_kernel<NUM, D, FORWARD>;
    k.pair_keys = k.keys;
    k.pair_keys.run = pair_keys_kernel<NUM, D, BACKWARD>;
    k.pair_queries = k.queries;
    k.pair_queries.run = pair_queries_kernel<NUM, D, BACKWARD>;
    k.delta = delta_kernel<NUM>;
    return k;
}
template <typename NUM> static own_kernels kernels_for(size_t head_size) {
    if (head_size <= 64) return kernels_of<NUM, 64, 64, 64>();
    if (head_size <= 128) return kernels_of<NUM, 128, 64, 32>();
    return kernels_of<NUM, HEAD_MAX, 32, 16>();
}

/* ---- the context --------------------------------------------------------------------------- */

struct attention {
    attention_shape largest;
    zero_type type;
    cudaStream_t stream;
    own_kernels own;
    float *delta;  /* (B, NH, T) */
    float *dq_sum; /* cuDNN: (B, T, NH, HS) */
    void *workspace;
    size_t bytes, workspace_bytes;
#ifdef GPT2_WITH_CUDNN
    attention_cudnn *cudnn; /* NULL: not used */
    int deterministic;
    size_t piece_bytes; /* backward in a fixed order: the most bytes of a piece's workspace */
#endif
    char path[PATH_BYTES], text[TEXT_BYTES];
};

__attribute__((format(printf, 3, 4))) static zero_result fail(attention *a, zero_result r,
                                                              const char *format, ...) {
    va_list list;
    va_start(list, format);
    if (!a->text[0]) (void)vsnprintf(a->text, sizeof a->text, format, list);
    va_end(list);
    return r;
}
static zero_result check_cuda(attention *a, cudaError_t e, const char *call) {
    if (e == cudaSuccess) return ZERO_OK;
    (void)cudaGetLastError(); /* clears it for the next launch */
    return fail(a, e == cudaErrorMemoryAllocation ? ZERO_ERR_MEMORY : ZERO_ERR_DEVICE, "%s: %s",
                call, cudaGetErrorString(e));
}
#define TRY(call)                                                                                  \
    do {                                                                                           \
        const zero_result result_ = (call);                                                        \
        if (result_) return result_;                                                               \
    } while (0)
#define CUDA(a, call) TRY(check_cuda(a, call, #call))

static zero_result allocate(attention *a, void **memory, size_t bytes) {
    const cudaError_t e = cudaMalloc(memory, bytes);
    if (e != cudaSuccess) {
        *memory = NULL;
        (void)cudaGetLastError(); /* clears it for the next launch */
        return fail(a, ZERO_ERR_MEMORY, "no %zu bytes of device memory: %s", bytes,
                    cudaGetErrorString(e));
    }
    a->bytes += bytes;
    return ZERO_OK;
}

/* Returns 1 if only attention_pair functions are called. */
static int in_pieces(const attention *a) { return a->largest.seq_len == 0; }

static size_t delta_bytes(const attention_shape *s) {
    return cuda_delta_bytes(s->batch, s->heads, s->seq_len);
}
/* Requests shared memory beyond 48 KB, which each kernel needs separately. */
static zero_result allow_shared(attention *a, const own_kernel *k) {
    CUDA(a, cudaFuncSetAttribute((const void *)k->run, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                 (int)k->shared_bytes));
    return ZERO_OK;
}
static zero_result open_own(attention *a) {
    const size_t head_size = a->largest.head_size;
    a->own = a->type == ZERO_F32    ? kernels_for<ops_f32>(head_size)
             : a->type == ZERO_BF16 ? kernels_for<ops_bf16>(head_size)
                                    : kernels_for<ops_f16>(head_size);
    TRY(allow_shared(a, &a->own.forward));
    TRY(allow_shared(a, &a->own.keys));
    TRY(allow_shared(a, &a->own.queries));
    TRY(allow_shared(a, &a->own.pair_forward));
    TRY(allow_shared(a, &a->own.pair_keys));
    TRY(allow_shared(a, &a->own.pair_queries));
    return in_pieces(a) ? ZERO_OK : allocate(a, (void **)&a->delta, delta_bytes(&a->largest));
}

/* Runs a kernel for all heads and for tiles of n queries or keys. */
static void run_tiles(const attention *a, const own_kernel *k, const args *args_, int n) {
    const unsigned heads = (unsigned)(args_->rows / (size_t)args_->tokens);
    const unsigned tiles = (unsigned)((n + k->rows - 1) / k->rows);
    OPS_LAUNCH(k->run, dim3(heads, tiles), dim3((unsigned)THREADS(k->rows)), k->shared_bytes,
               a->stream, *args_);
}
static void run(const attention *a, const own_kernel *k, const args *args_) {
    run_tiles(a, k, args_, args_->tokens);
}
static void run_delta(const attention *a, const args *g) {
    const size_t blocks = (g->rows * LANES + DELTA_THREADS - 1) / DELTA_THREADS;
    OPS_LAUNCH(a->own.delta, dim3((unsigned)blocks), dim3(DELTA_THREADS), 0, a->stream, *g);
}
static args args_for(const attention *a, const attention_shape *s) {
    args g = {};
    g.delta = a->delta;
    g.tokens = (int)s->seq_len;
    g.heads = (int)s->heads;
    g.head_size = (int)s->head_size;
    g.scale = 1.0f / sqrtf((float)s->head_size);
    g.rows = s->batch * s->seq_len * s->heads;
    return g;
}

/* ---- cuDNN --------------------------------------------------------------------------------- */

#ifdef GPT2_WITH_CUDNN
void attention_forget(void) { attention_cudnn_forget(); }
static void close_cudnn(attention *a) {
    attention_cudnn_destroy(a->cudnn);
    a->cudnn = NULL;
}

/* Returns how many of n sequences or heads piece i of `pieces` has. *first becomes its first one.
 */
static size_t piece(size_t n, size_t pieces, size_t i, size_t *first) {
    *first = n * i / pieces;
    return n * (i + 1) / pieces - *first;
}
static cuda_pieces cut(const attention *a, const attention_shape *s) {
    const cuda_pieces one = {1, 1};
    return a->deterministic ? cuda_cut(s->batch, s->heads, s->seq_len, a->piece_bytes) : one;
}

/* cuDNN wants a piece's numbers per row to begin at a multiple of 16 bytes. */
static int begins_unaligned(const attention *a, const attention_shape *s) {
    const cuda_pieces c = cut(a, s);
    return c.batch * c.heads > 1 && s->seq_len % 4;
}

/* Finds the plan of a direction for these heads; NULL: cuDNN has none. *bytes becomes its
   workspace, if that is larger. */
static zero_result plan_for(attention *a, const attention_shape *s, int backward,
                            attention_plan **p, size_t *bytes) {
    const zero_result r = attention_cudnn_plan(a->cudnn, s, a->largest.heads, backward, p);
    if (r && r != ZERO_ERR_UNSUPPORTED) return fail(a, r, "%s", attention_cudnn_error(a->cudnn));
    if (*p && attention_cudnn_workspace_bytes(*p) > *bytes)
        *bytes = attention_cudnn_workspace_bytes(*p);
    return ZERO_OK;
}
static zero_result reserve(attention *a, size_t bytes) {
    if (bytes <= a->workspace_bytes) return ZERO_OK;
    CUDA(a, cudaStreamSynchronize(a->stream));
    if (a->workspace) CUDA(a, cudaFree(a->workspace));
    a->bytes -= a->workspace_bytes;
    a->workspace_bytes = 0;
    TRY(allocate(a, &a->workspace, bytes));
    a->workspace_bytes = bytes;
    return ZERO_OK;
}

/* *yes becomes 1 if cuDNN runs a call: if it has plans for the largest seq_len and this batch, for
   forward and for each piece of backward. So the choice depends on the shape alone, never on
   earlier calls. Pieces have one of two sizes; the first and the last piece have both. *bytes
   becomes the largest workspace. */
static zero_result find_plans(attention *a, const attention_shape *s, int *yes, size_t *bytes) {
    size_t first;
    attention_plan *p;
    *yes = 0;
    *bytes = 0;
    if (!a->cudnn || s->seq_len != a->largest.seq_len) return ZERO_OK;
    TRY(plan_for(a, s, 0, &p, bytes));
    const cuda_pieces c = cut(a, s);
    if (begins_unaligned(a, s)) return ZERO_OK;
    for (int last = 0; p && last < 2; last++) {
        attention_shape part = *s;
        part.batch = piece(s->batch, c.batch, last ? c.batch - 1 : 0, &first);
        part.heads = piece(s->heads, c.heads, last ? c.heads - 1 : 0, &first);
        TRY(plan_for(a, &part, 1, &p, bytes));
    }
    *yes = p != NULL;
    return ZERO_OK;
}
static zero_result plans_for(attention *a, const attention_shape *s, int *yes) {
    size_t bytes;
    TRY(find_plans(a, s, yes, &bytes));
    return *yes ? reserve(a, bytes) : ZERO_OK;
}

/* If there is no memory for the workspace, backward runs in more and smaller pieces. */
static zero_result open_plans(attention *a, int *yes) {
    const size_t head = cuda_head_bytes(a->largest.seq_len, HOPPER);
    for (;;) {
        const zero_result r = plans_for(a, &a->largest, yes);
        if (r != ZERO_ERR_MEMORY || !a->deterministic || a->piece_bytes <= head) return r;
        a->piece_bytes /= 2;
        a->text[0] = 0;
    }
}

/* *why becomes why cuDNN does not support the case, or "". */
static zero_result connect_cudnn(attention *a, const char **why) {
    const attention_shape *s = &a->largest;
    const size_t all = s->batch * s->heads * cuda_head_bytes(s->seq_len, HOPPER);
    int gpu = 0;
    *why = "";
    a->piece_bytes = all < ATTENTION_WORKSPACE ? all : (size_t)ATTENTION_WORKSPACE;
    if (a->type == ZERO_F32)
        *why = "cuDNN has none for f32";
    else if (s->head_size % 8)
        *why = "cuDNN wants heads of a multiple of 8";
    if (**why) return ZERO_OK;
    CUDA(a, cudaGetDevice(&gpu));
    const zero_result r =
        attention_cudnn_create(&a->cudnn, gpu, a->type, a->stream, a->deterministic);
    return r ? fail(a, r, "%s", attention_cudnn_error(a->cudnn)) : ZERO_OK;
}
static size_t dq_sum_bytes(const attention *a) {
    return a->deterministic ? 0 : delta_bytes(&a->largest) * a->largest.head_size;
}
static zero_result open_cudnn(attention *a, const char **why) {
    int yes = 0;
    TRY(connect_cudnn(a, why));
    if (**why) return ZERO_OK;
    TRY(open_plans(a, &yes));
    const size_t dq = dq_sum_bytes(a);
    if (yes) return dq ? allocate(a, (void **)&a->dq_sum, dq) : ZERO_OK;
    (void)snprintf(a->text, sizeof a->text, "%s", attention_cudnn_error(a->cudnn));
    *why = begins_unaligned(a, &a->largest)
               ? "backward needs pieces, and the sequence length is no multiple of 4"
               : a->text;
    return ZERO_OK;
}

/* Asks cuDNN for the bytes of its workspace and of dq_sum; 0: it does not support the case. The
   plans that it makes for this are kept, so the context of this shape, which is created next, finds
   them. */
static zero_result ask_cudnn(attention *a, size_t *bytes) {
    const char *why;
    size_t workspace = 0;
    int yes = 0;
    *bytes = 0;
    zero_result r = connect_cudnn(a, &why);
    if (!r && !*why) r = find_plans(a, &a->largest, &yes, &workspace);
    if (yes) *bytes = workspace + dq_sum_bytes(a);
    close_cudnn(a);
    return r;
}

static zero_result choose(attention *a, int deterministic) {
    const char *why;
    a->deterministic = deterministic;
    TRY(open_cudnn(a, &why));
    if (*why) {
        (void)snprintf(a->path, sizeof a->path, "own kernel (f32 tiles): %.250s", why);
        close_cudnn(a);
        a->text[0] = 0;
        return ZERO_OK;
    }
    const size_t version = attention_cudnn_version();
    const cuda_pieces c = cut(a, &a->largest);
    char pieces[64] = "";
    if (c.batch * c.heads > 1)
        (void)snprintf(pieces, sizeof pieces, ", %zu pieces", c.batch * c.heads);
    (void)snprintf(a->path, sizeof a->path, "cuDNN %zu.%zu flash attention%s%s", version / 10000,
                   version / 100 % 100, deterministic ? ", deterministic" : "", pieces);
    return ZERO_OK;
}

static zero_result run_plan(attention *a, const attention_shape *s, int backward,
                            const attention_tensors *t) {
    attention_plan *p;
    size_t bytes = 0;
    TRY(plan_for(a, s, backward, &p, &bytes));
    const zero_result r = attention_cudnn_run(a->cudnn, p, t);
    return r ? fail(a, r, "%s", attention_cudnn_error(a->cudnn)) : ZERO_OK;
}

/* Returns the tensors from sequence b and head h on. */
static attention_tensors tensors_from(const attention_tensors *t, const attention_shape *s,
                                      size_t b, size_t h) {
    const size_t width = s->heads * s->head_size, row = (b * s->heads + h) * s->seq_len;
    const size_t plain = 2 * (b * s->seq_len * width + h * s->head_size);
    const size_t packed = 2 * (3 * b * s->seq_len * width + h * s->head_size);
    attention_tensors from = *t;
    from.qkv = (char *)t->qkv + packed;
    from.dqkv = (char *)t->dqkv + packed;
    from.out = (char *)t->out + plain;
    from.dout = (char *)t->dout + plain;
    from.lse += row;
    from.row_sum += row;
    return from;
}
static zero_result run_backward(attention *a, const attention_tensors *t,
                                const attention_shape *s) {
    const cuda_pieces c = cut(a, s);
    if (a->dq_sum && attention_cudnn_version() < 90600) /* later errors are cleared */
        CUDA(a, cudaMemsetAsync(a->dq_sum, 0, delta_bytes(s) * s->head_size, a->stream));
    for (size_t i = 0; i < c.batch; i++)
        for (size_t j = 0; j < c.heads; j++) {
            attention_shape part = *s;
            size_t b, h;
            part.batch = piece(s->batch, c.batch, i, &b);
            part.heads = piece(s->heads, c.heads, j, &h);
            const attention_tensors from = tensors_from(t, s, b, h);
            TRY(run_plan(a, &part, 1, &from));
        }
    return ZERO_OK;
}

/* Enqueues forward or backward, and returns whether it did. */
static zero_result run_cudnn(attention *a, const attention_tensors *t, const attention_shape *s,
                             int backward, int *done) {
    attention_tensors all = *t;
    TRY(plans_for(a, s, done));
    if (!*done) return ZERO_OK;
    all.row_sum = a->delta;
    all.dq_sum = a->dq_sum;
    all.workspace = a->workspace;
    return backward ? run_backward(a, &all, s) : run_plan(a, s, 0, &all);
}
#else
static void close_cudnn(attention *a) { (void)a; }
void attention_forget(void) {}
static zero_result choose(attention *a, int deterministic) {
    (void)deterministic;
    (void)snprintf(a->path, sizeof a->path, "own kernel (f32 tiles): built without cuDNN");
    return ZERO_OK;
}
#endif

/* ---- functions of the header --------------------------------------------------------------- */

size_t attention_bytes(const attention *a) { return a->bytes; }
const char *attention_path(const attention *a) { return a->path; }
void attention_use_own(attention *a) {
    (void)cudaStreamSynchronize(a->stream); /* plans of cuDNN may still run */
    close_cudnn(a);
    (void)snprintf(a->path, sizeof a->path, "own kernel (f32 tiles): asked for");
}
const char *attention_error(const attention *a) {
    return a ? a->text : "no memory for the context";
}

static zero_result check_largest(attention *a) {
    const attention_shape *s = &a->largest;
    if (s->batch && s->heads && s->head_size && s->head_size <= HEAD_MAX
        && s->seq_len <= 16u * 65535 && s->batch * s->heads <= INT32_MAX / s->head_size)
        return ZERO_OK;
    return fail(a, ZERO_ERR_ARGUMENT,
                "%zu sequences of %zu tokens, %zu heads of %zu channels: only tokens may be 0, "
                "heads have at most %d channels, sequences fewer than 2^20 tokens",
                s->batch, s->seq_len, s->heads, s->head_size, (int)HEAD_MAX);
}

#ifdef GPT2_WITH_CUDNN
/* If cuDNN cannot be asked, attention_create will report why. The plan then has the sizes of
   cuda_bytes.h, for this device or, if there is none, for Hopper. */
static size_t cudnn_bytes(const attention_shape *s, zero_type type, int deterministic) {
    const ops_limits l = {s->batch, s->heads, s->seq_len, s->head_size, 0, 0, 0};
    const ops_settings settings = {type, type, NULL, 0, !deterministic};
    attention a;
    size_t bytes;
    int gpu = 0, major = HOPPER;
    memset(&a, 0, sizeof a);
    a.largest = *s;
    a.type = type;
    a.deterministic = deterministic;
    if (!check_largest(&a) && !ask_cudnn(&a, &bytes)) return bytes;
    if (cudaGetDevice(&gpu) != cudaSuccess
        || cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, gpu) != cudaSuccess)
        (void)cudaGetLastError();
    return cuda_attention_bytes(&l, &settings, major);
}
#else
static size_t cudnn_bytes(const attention_shape *s, zero_type type, int deterministic) {
    (void)s, (void)type, (void)deterministic;
    return 0;
}
#endif

size_t attention_scratch_bytes(const attention_shape *s, zero_type type, int deterministic) {
    if (!s->seq_len) return 0;
    return delta_bytes(s) + cudnn_bytes(s, type, deterministic);
}
size_t attention_spare_bytes(const attention_shape *s, zero_type type, int deterministic) {
    const size_t workspace = s->seq_len ? cudnn_bytes(s, type, deterministic) : 0;
    const size_t least = cuda_head_bytes(s->seq_len, HOPPER) + cuda_other_bytes(HOPPER);
    const int cuts = deterministic && s->seq_len % 4 == 0; /* see begins_unaligned */
    return cuts && workspace > least ? workspace - least : 0;
}

zero_result attention_create(attention **out, const attention_shape *largest, zero_type type,
                             void *stream, int deterministic) {
    attention *a = (attention *)calloc(1, sizeof *a);
    *out = a;
    if (!a) return ZERO_ERR_MEMORY;
    a->largest = *largest;
    a->type = type;
    a->stream = (cudaStream_t)stream;
    TRY(check_largest(a));
    TRY(open_own(a));
    if (!in_pieces(a)) return choose(a, deterministic);
    (void)snprintf(a->path, sizeof a->path, "own kernel (f32 tiles): keys arrive in pieces");
    return ZERO_OK;
}

void attention_destroy(attention *a) {
    if (!a) return;
    (void)cudaStreamSynchronize(a->stream);
    close_cudnn(a);
    (void)cudaFree(a->delta);
    (void)cudaFree(a->dq_sum);
    (void)cudaFree(a->workspace);
    free(a);
}

static zero_result check_shape(attention *a, const attention_shape *s) {
    const attention_shape *m = &a->largest;
    if (s->batch <= m->batch && s->seq_len <= m->seq_len && s->seq_len && s->heads == m->heads
        && s->head_size == m->head_size)
        return ZERO_OK;
    return fail(a, ZERO_ERR_ARGUMENT,
                "a call with %zu sequences of %zu tokens, %zu heads of %zu channels, but "
                "the context was made for %zu, %zu, %zu, %zu",
                s->batch, s->seq_len, s->heads, s->head_size, m->batch, m->seq_len, m->heads,
                m->head_size);
}

zero_result attention_forward(attention *a, void *out, float *lse, const void *qkv,
                              const attention_shape *shape) {
    TRY(check_shape(a, shape));
    if (!shape->batch) return ZERO_OK;
#ifdef GPT2_WITH_CUDNN
    attention_tensors t = {};
    int done;
    t.qkv = (void *)qkv;
    t.out = out;
    t.lse = lse;
    TRY(run_cudnn(a, &t, shape, 0, &done));
    if (done) return ZERO_OK;
#endif
    args g = args_for(a, shape);
    g.out = out;
    g.lse = lse;
    g.qkv = qkv;
    run(a, &a->own.forward, &g);
    return check_cuda(a, cudaGetLastError(), "forward kernel");
}

zero_result attention_backward(attention *a, void *dqkv, const void *dout, const void *out,
                               const float *lse, const void *qkv, const attention_shape *shape) {
    TRY(check_shape(a, shape));
    if (!shape->batch) return ZERO_OK;
#ifdef GPT2_WITH_CUDNN
    attention_tensors t = {};
    int done;
    t.qkv = (void *)qkv;
    t.out = (void *)out;
    t.lse = (float *)lse;
    t.dout = (void *)dout;
    t.dqkv = dqkv;
    TRY(run_cudnn(a, &t, shape, 1, &done));
    if (done) return ZERO_OK;
#endif
    args g = args_for(a, shape);
    g.out = (void *)out;
    g.lse = (float *)lse;
    g.qkv = qkv;
    g.dout = dout;
    g.dqkv = dqkv;
    run_delta(a, &g);
    run(a, &a->own.keys, &g);
    run(a, &a->own.queries, &g);
    return check_cuda(a, cudaGetLastError(), "backward kernels");
}

/* ---- attention piece by piece -------------------------------------------------------------- */

/* Checks the shape, and starts the arguments. */
static zero_result pair_args(attention *a, const attention_shape *s, const ops_pair *pair,
                             args *g) {
    const attention_shape *m = &a->largest;
    if (s->batch > m->batch || !s->seq_len || s->seq_len > 16u * 65535 || s->heads != m->heads
        || s->head_size != m->head_size || pair->queries + pair->tokens > s->seq_len
        || pair->keys + pair->tokens > s->seq_len)
        return fail(
            a, ZERO_ERR_ARGUMENT,
            "pieces of %zu tokens at %zu and %zu, of %zu sequences of %zu tokens, %zu heads "
            "of %zu channels, but the context was made for %zu sequences, %zu heads, %zu "
            "channels",
            pair->tokens, pair->queries, pair->keys, s->batch, s->seq_len, s->heads, s->head_size,
            m->batch, m->heads, m->head_size);
    *g = args_for(a, s);
    g->queries = (int)pair->queries;
    g->keys = (int)pair->keys;
    g->piece = (int)pair->tokens;
    g->causal = pair->causal;
    return ZERO_OK;
}

zero_result attention_pair(attention *a, const ops_partial *state, const void *qkv, const void *kv,
                           const ops_pair *pair, const attention_shape *shape) {
    args g;
    TRY(pair_args(a, shape, pair, &g));
    if (!shape->batch || !pair->tokens) return ZERO_OK;
    g.sums = state->out;
    g.most = state->most;
    g.sum = state->sum;
    g.qkv = qkv;
    g.kv = kv;
    run_tiles(a, &a->own.pair_forward, &g, g.piece);
    return check_cuda(a, cudaGetLastError(), "forward kernel of a pair");
}

zero_result attention_delta(attention *a, const ops_slopes *slopes, const void *out,
                            const attention_shape *shape) {
    const ops_pair none = {0, 0, 0, 0};
    args g;
    TRY(pair_args(a, shape, &none, &g));
    if (!shape->batch) return ZERO_OK;
    g.out = (void *)out;
    g.dout = slopes->dout;
    g.delta = slopes->delta;
    run_delta(a, &g);
    return check_cuda(a, cudaGetLastError(), "delta kernel");
}

zero_result attention_pair_backward(attention *a, const ops_slopes *slopes, const ops_pair *pair,
                                    const attention_shape *shape) {
    args g;
    TRY(pair_args(a, shape, pair, &g));
    if (!shape->batch || !pair->tokens) return ZERO_OK;
    g.dq = slopes->dq;
    g.dkv = slopes->dkv;
    g.lse = (float *)slopes->lse;
    g.delta = slopes->delta;
    g.dout = slopes->dout;
    g.qkv = slopes->qkv;
    g.kv = slopes->kv;
    run_tiles(a, &a->own.pair_keys, &g, g.piece);
    run_tiles(a, &a->own.pair_queries, &g, g.piece);
    return check_cuda(a, cudaGetLastError(), "backward kernels of a pair");
}
