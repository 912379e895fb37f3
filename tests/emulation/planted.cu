/* planted.cu - a small program of every kind that GPU programs have: kernels with barriers,
   shuffles and shared memory, vectors, streams, events, pinned memory. Its results are compared
   with plain loops, for several orders of threads and streams. planted.py plants one error of
   planted.txt after the other. 0: all is right. */
#include "emulation.h"

#include <cuda_runtime.h>
#include <stdio.h>
#include <stdlib.h>

enum { N = 1003, BLOCKS = 5, THREADS = 96, ROWS = 8, COLUMNS = 50, SIDE = 40, TILE = 16, BINS = 7 };
static int wrong;
static void expect(int right) { wrong += !right; }
static int near(float a, float b) { return fabsf(a - b) <= 1e-4f * fabsf(b) + 1e-6f; }

/* ---- kernels ---- */

__global__ void __launch_bounds__(THREADS) block_sums(float *out, const float *in, int n) {
    __shared__ float part[THREADS / 32];
    const int stride = (int)(gridDim.x * blockDim.x);
    float x = 0;
    for (int i = (int)(blockIdx.x * blockDim.x + threadIdx.x); i < n; i += stride) x += in[i];
    for (int k = 16; k; k /= 2) x += __shfl_xor_sync(0xFFFFFFFFu, x, k);
    if (threadIdx.x % 32 == 0) part[threadIdx.x / 32] = x;
    __syncthreads();
    if (threadIdx.x) return;
    x = 0;
    for (int w = 0; w < THREADS / 32; w++) x += part[w];
    out[blockIdx.x] = x;
}

/* A warp per row; lanes beyond the row take part. */
__global__ void __launch_bounds__(32) softmax(float *out, const float *in, int columns) {
    const float *row = in + (int)blockIdx.x * columns;
    float most = -INFINITY, sum = 0;
    for (int i = (int)threadIdx.x; i < columns; i += 32) most = fmaxf(most, row[i]);
    for (int k = 16; k; k /= 2) most = fmaxf(most, __shfl_xor_sync(0xFFFFFFFFu, most, k));
    for (int i = (int)threadIdx.x; i < columns; i += 32) sum += expf(row[i] - most);
    for (int k = 16; k; k /= 2) sum += __shfl_xor_sync(0xFFFFFFFFu, sum, k);
    const unsigned all = __ballot_sync(0xFFFFFFFFu, sum > 0);
    for (int i = (int)threadIdx.x; i < columns; i += 32)
        out[(int)blockIdx.x * columns + i] = all == 0xFFFFFFFFu ? expf(row[i] - most) / sum : 0;
}

/* Tiles of a matrix through dynamic shared memory; a block takes a row of tiles. */
__global__ void __launch_bounds__(TILE *TILE) transpose(float *out, const float *in, int side) {
    EMULATED_DYNAMIC_SHARED(float, tile);
    const int x = (int)threadIdx.x % TILE, y = (int)threadIdx.x / TILE,
              top = (int)blockIdx.x * TILE;
    for (int left = 0; left < side; left += TILE) {
        if (top + y < side && left + x < side)
            tile[y * (TILE + 1) + x] = in[(top + y) * side + left + x];
        __syncthreads(); /* the tile is there */
        if (left + y < side && top + x < side)
            out[(left + y) * side + top + x] = tile[x * (TILE + 1) + y];
        __syncthreads(); /* the tile is no longer read */
    }
}

/* Four numbers at once, and the rest one by one. */
__global__ void __launch_bounds__(64) scale(float *x, float by, int n) {
    const int i = (int)(blockIdx.x * blockDim.x + threadIdx.x), from = 0;
    if (i < n / 4) {
        float4 v = *(float4 *)(void *)(x + from + 4 * i);
        v.x *= by, v.y *= by, v.z *= by, v.w *= by;
        *(float4 *)(void *)(x + 4 * i) = v;
    }
    if (i < n % 4) x[n / 4 * 4 + i] *= by;
}

__global__ void __launch_bounds__(64) histogram(int *bins, const float *in, int n) {
    __shared__ int count[BINS];
    if (threadIdx.x < BINS) count[threadIdx.x] = 0;
    __syncthreads(); /* counts are zeros */
    for (int i = (int)threadIdx.x; i < n; i += (int)blockDim.x)
        atomicAdd(&count[(int)in[i] % BINS], 1);
    __syncthreads(); /* counts are complete */
    if (threadIdx.x < BINS) atomicAdd(&bins[threadIdx.x], count[threadIdx.x]);
}

/* Neighbours of a warp give each other numbers through shared memory. */
__global__ void __launch_bounds__(32) neighbours(float *out, const float *in) {
    __shared__ float x[32];
    x[threadIdx.x] = in[threadIdx.x];
    __syncwarp();
    out[threadIdx.x] = x[(threadIdx.x + 1) % 32];
}

/* ---- the program ---- */

typedef struct memory {
    float *in, *out, *matrix, *turned, *host, *back;
    int *bins;
    cudaStream_t a, b;
    cudaEvent_t copied, done;
} memory;

static void open_all(memory *m) {
    (void)cudaMalloc(&m->in, N * sizeof(float));
    (void)cudaMalloc(&m->out, N * sizeof(float));
    (void)cudaMalloc(&m->matrix, SIDE * SIDE * sizeof(float));
    (void)cudaMalloc(&m->turned, SIDE * SIDE * sizeof(float));
    (void)cudaMalloc(&m->bins, BINS * sizeof(int));
    (void)cudaMallocHost(&m->host, N * sizeof(float));
    (void)cudaMallocHost(&m->back, SIDE * SIDE * sizeof(float));
    (void)cudaStreamCreateWithFlags(&m->a, cudaStreamNonBlocking);
    (void)cudaStreamCreateWithFlags(&m->b, cudaStreamNonBlocking);
    (void)cudaEventCreateWithFlags(&m->copied, cudaEventDisableTiming);
    (void)cudaEventCreateWithFlags(&m->done, cudaEventDisableTiming);
    for (int i = 0; i < N; i++) m->host[i] = (float)(i % 37);
}
static void close_all(memory *m) {
    (void)cudaDeviceSynchronize();
    (void)cudaFree(m->in);
    (void)cudaFree(m->out);
    (void)cudaFree(m->matrix);
    (void)cudaFree(m->turned);
    (void)cudaFree(m->bins);
    (void)cudaFreeHost(m->host);
    (void)cudaFreeHost(m->back);
    (void)cudaEventDestroy(m->copied);
    (void)cudaEventDestroy(m->done);
    (void)cudaStreamDestroy(m->a);
    (void)cudaStreamDestroy(m->b);
}

/* Stream a copies, b computes, a brings the result back. */
static void run_sums(memory *m) {
    float sum = 0, expected = 0;
    (void)cudaMemcpyAsync(m->in, m->host, N * sizeof(float), cudaMemcpyHostToDevice, m->a);
    (void)cudaEventRecord(m->copied, m->a);
    (void)cudaStreamWaitEvent(m->b, m->copied, 0);
    EMULATED_LAUNCH(block_sums, BLOCKS, THREADS, 0, m->b, m->out, m->in, N);
    (void)cudaEventRecord(m->done, m->b);
    (void)cudaStreamWaitEvent(m->a, m->done, 0);
    (void)cudaMemcpyAsync(m->back, m->out, BLOCKS * sizeof(float), cudaMemcpyDeviceToHost, m->a);
    (void)cudaStreamSynchronize(m->a);
    for (int i = 0; i < BLOCKS; i++) sum += m->back[i];
    for (int i = 0; i < N; i++) expected += m->host[i];
    expect(near(sum, expected));
}

static void run_softmax(memory *m) {
    EMULATED_LAUNCH(softmax, ROWS, 32, 0, m->a, m->out, m->in, COLUMNS);
    (void)cudaMemcpyAsync(m->back, m->out, ROWS * COLUMNS * sizeof(float), cudaMemcpyDeviceToHost,
                          m->a);
    (void)cudaStreamSynchronize(m->a);
    for (int r = 0; r < ROWS; r++) {
        float sum = 0;
        for (int c = 0; c < COLUMNS; c++) sum += expf(m->host[r * COLUMNS + c] - 36);
        for (int c = 0; c < COLUMNS; c++)
            expect(near(m->back[r * COLUMNS + c], expf(m->host[r * COLUMNS + c] - 36) / sum));
    }
}

static void run_transpose(memory *m) {
    for (int i = 0; i < SIDE * SIDE; i++) m->back[i] = (float)i;
    (void)cudaMemcpyAsync(m->matrix, m->back, SIDE * SIDE * sizeof(float), cudaMemcpyHostToDevice,
                          m->b);
    const int tiles = (SIDE + TILE - 1) / TILE, bytes = TILE * (TILE + 1) * (int)sizeof(float);
    EMULATED_LAUNCH(transpose, tiles, TILE * TILE, bytes, m->b, m->turned, m->matrix, SIDE);
    (void)cudaMemcpyAsync(m->back, m->turned, SIDE * SIDE * sizeof(float), cudaMemcpyDeviceToHost,
                          m->b);
    (void)cudaStreamSynchronize(m->b);
    for (int i = 0; i < SIDE * SIDE; i++) expect(m->back[i] == (float)(i % SIDE * SIDE + i / SIDE));
}

static void add_one(void *number) { ++*(int *)number; }
static void run_scale(memory *m) {
    int called = 0;
    EMULATED_LAUNCH(scale, (N + 255) / 256, 64, 0, m->a, m->in, 2.0f, N);
    (void)cudaMemcpyAsync(m->back, m->in, N * sizeof(float), cudaMemcpyDeviceToHost, m->a);
    (void)cudaLaunchHostFunc(m->a, add_one, &called);
    (void)cudaStreamSynchronize(m->a);
    for (int i = 0; i < N; i++) expect(m->back[i] == 2 * m->host[i]);
    expect(called == 1);
}

static void run_counts(memory *m) {
    int bins[BINS], expected[BINS] = {0};
    for (int i = 0; i < N; i++) expected[2 * (int)m->host[i] % BINS]++;
    (void)cudaMemsetAsync(m->bins, 0, BINS * sizeof(int), m->a);
    EMULATED_LAUNCH(histogram, 1, 64, 0, m->a, m->bins, m->in, N);
    (void)cudaStreamSynchronize(m->a);
    (void)cudaMemcpy(bins, m->bins, sizeof bins, cudaMemcpyDeviceToHost);
    for (int i = 0; i < BINS; i++) expect(bins[i] == expected[i]);
    EMULATED_LAUNCH(neighbours, 1, 32, 0, m->a, m->out, m->in);
    (void)cudaMemcpyAsync(m->back, m->out, 32 * sizeof(float), cudaMemcpyDeviceToHost, m->a);
    (void)cudaStreamSynchronize(m->a);
    for (int i = 0; i < 32; i++) expect(m->back[i] == 2 * m->host[(i + 1) % 32]);
}

int main(void) {
    for (int k = 0; k < 24; k++) {
        memory m;
        emulation_reset();
        emulation_patience(1);
        emulation_hide(1);
        emulation_seed((uint64_t)k);
        emulation_thread_order((uint64_t)k);
        open_all(&m);
        run_sums(&m);
        run_softmax(&m);
        run_transpose(&m);
        run_scale(&m);
        run_counts(&m);
        expect(cudaGetLastError() == cudaSuccess);
        close_all(&m);
        expect(emulation_live() == 0);
        if (emulation_found() || wrong) {
            printf("order %d: %s, %d wrong\n", k, emulation_found() ? emulation_found() : "-",
                   wrong);
            return 1;
        }
    }
    return 0;
}
