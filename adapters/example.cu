/* example.cu - a complete trainer on GPUs: the perceptron of example.c with one NCCL rank per GPU.
   ID is a new file in a folder that all ranks share. Build, after `make drop DIR=zp`:
     nvcc -std=c++17 -O3 -fmad=false -DZERO_WITH_NCCL -Izp -o example adapters/example.cu \
       zp/zero_plugin.cu -lnccl -ldl
     mpirun -np 8 ./example STAGE id.$$
     torchrun --no-python --nproc-per-node 8 ./example STAGE id.$$ */
#include "zero_plugin.h"
#include <cuda_runtime.h>
#include <nccl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
enum { LAYERS = 4, WIDTH = 32, SQUARE = WIDTH * WIDTH, ROWS = 16, CELLS = ROWS * WIDTH };
enum { ALL = LAYERS * CELLS, STEPS = 60 };
typedef struct tensors {
    float *w, *b; /* w[LAYERS][WIDTH][WIDTH], b[LAYERS][WIDTH] */
} tensors;
static const zero_tensor_desc table[] = {ZERO_FIELD(tensors, w, SQUARE, .layers = LAYERS),
                                         ZERO_FIELD(tensors, b, WIDTH, .layers = LAYERS)};
#define THREAD ((int)(blockIdx.x * blockDim.x + threadIdx.x))
/* The kernels know nothing of the plugin. Each thread computes one element of its first array. */
__global__ void forward(float *y, const float *x, const float *w, const float *b) {
    float sum = b[THREAD % WIDTH];
    w += THREAD % WIDTH * WIDTH, x += THREAD / WIDTH * WIDTH; /* a row of each */
    for (int k = 0; k < WIDTH; k++) sum += w[k] * x[k];
    y[THREAD] = tanhf(sum);
}
__global__ void loss_gradient(float *dy, float *squares, const float *x, const float *y) {
    const float d = y[THREAD] - sinf(x[THREAD] + x[THREAD ^ 1]);
    dy[THREAD] = 2 * d / CELLS;
    squares[THREAD] = d * d / CELLS;
}
__global__ void backward_tanh(float *d, const float *y) { d[THREAD] *= 1 - y[THREAD] * y[THREAD]; }
__global__ void backward_weights(float *dw, float *db, const float *x, const float *dy) {
    for (int r = 0; r < ROWS; r++) {
        const float d = dy[r * WIDTH + THREAD / WIDTH];
        dw[THREAD] += d * x[r * WIDTH + THREAD % WIDTH];
        if (THREAD % WIDTH == 0) db[THREAD / WIDTH] += d;
    }
}
__global__ void backward_input(float *dx, const float *w, const float *dy) {
    float sum = 0;
    dy += THREAD / WIDTH * WIDTH, w += THREAD % WIDTH; /* a row and a column */
    for (int o = 0; o < WIDTH; o++) sum += dy[o] * w[o * WIDTH];
    dx[THREAD] = sum;
}

static float noise(unsigned *seed) { /* -1..1 */
    *seed = *seed * 1664525u + 1013904223u;
    return (float)(*seed >> 8) / 8388608.0f - 1;
}
static float *zeros(size_t n) { /* memory that the GPU and the CPU read and write */
    float *memory = NULL;
    if (cudaMallocManaged((void **)&memory, n * sizeof(float), cudaMemAttachGlobal)) exit(1);
    return (float *)memset(memory, 0, n * sizeof(float));
}
static void release(void *memory) { cudaFree(memory); }
/* Rank 0 writes NCCL's id to a file that all ranks can read; the others wait for it. */
static int share_id(int rank, const char *path, ncclUniqueId *id) {
    char part[512];
    FILE *file = NULL;
    snprintf(part, sizeof part, "%s.part", path);
    if (rank == 0) {
        if (ncclGetUniqueId(id) != ncclSuccess || !(file = fopen(part, "wb"))) return 1;
        const size_t wrote = fwrite(id, sizeof *id, 1, file);
        return fclose(file) || wrote != 1 || rename(part, path);
    }
    for (int tries = 0; !(file = fopen(path, "rb")) && tries < 600; tries++) usleep(100000);
    return !file || fread(id, sizeof *id, 1, file) != 1 || fclose(file);
}
/* Trains as rank `rank` on GPU `local`. Returns 0, or an error. */
static int train(int stage, const char *path, int rank, int nranks, int local) {
    ncclUniqueId id;
    ncclComm_t nccl;
    cudaStream_t stream;
    if (cudaSetDevice(local) || cudaStreamCreate(&stream) || share_id(rank, path, &id)
        || ncclCommInitRank(&nccl, nranks, id, rank))
        return fputs("NCCL does not start\n", stderr), 1;
    zero_ctx *z;
    const zero_config cfg = {.stage = stage, .stream = stream, .log = zero_log_file};
    const zero_comm comm = {ZERO_COMM_NCCL, 0, &nccl, 0};
    const zero_hyper hyper = {0.003f, 0.9f, 0.95f, 1e-8f, 0.1f, 1.0f};
    ZERO_TRY(zero_create(&z, &cfg, &comm));
    float *x = zeros(CELLS + ALL), *dx = zeros(CELLS + ALL), *squares = zeros(CELLS);
    tensors p = {zeros(LAYERS * SQUARE), zeros(LAYERS * WIDTH)}, g = {};
    unsigned seed = 1, data = 1000u + (unsigned)rank; /* the same weights, other samples */
    for (int i = 0; i < LAYERS * SQUARE; i++) p.w[i] = noise(&seed) / 3;
    ZERO_TRY(zero_tensors(z, table, 2)); /* layer l of both is unit l */
    ZERO_TRY(zero_adopt(z, &p, &g, ZERO_F32, release)); /* from here on, hooks write p and g */
    for (int step = 0; step < STEPS; step++) {
        double loss = 0;
        for (int i = 0; i < CELLS; i++) x[i] = noise(&data);
        ZERO_TRY(zero_train_begin(z));
        for (int l = 0; l < LAYERS; l++) {
            float *in = x + l * CELLS;
            ZERO_TRY(zero_forward_begin(z, l, &p));
            forward<<<ROWS, WIDTH, 0, stream>>>(in + CELLS, in, p.w + l * SQUARE, p.b + l * WIDTH);
            ZERO_TRY(zero_forward_end(z, l));
        }
        loss_gradient<<<ROWS, WIDTH, 0, stream>>>(dx + ALL, squares, x, x + ALL);
        for (int l = LAYERS - 1; l >= 0; l--) {
            float *in = x + l * CELLS, *din = dx + l * CELLS, *dout = din + CELLS;
            backward_tanh<<<ROWS, WIDTH, 0, stream>>>(dout, in + CELLS);
            ZERO_TRY(zero_backward_begin(z, l, &p, &g));
            float *dw = g.w + l * SQUARE, *db = g.b + l * WIDTH;
            backward_weights<<<WIDTH, WIDTH, 0, stream>>>(dw, db, in, dout);
            backward_input<<<ROWS, WIDTH, 0, stream>>>(din, p.w + l * SQUARE, dout);
            ZERO_TRY(zero_backward_end(z, l));
        }
        cudaStreamSynchronize(stream);
        for (int i = 0; i < CELLS; i++) loss += squares[i];
        ZERO_TRY(zero_train_end(z, &hyper, loss, &loss)); /* the mean over the ranks */
        if (rank == 0) printf("step %d, loss %.6f\n", step, loss);
    }
    zero_destroy(z);
    if (rank == 0) remove(path);
    return cudaFree(x) || cudaFree(dx) || cudaFree(squares) || ncclCommDestroy(nccl);
}
static int number(const char *torchrun, const char *mpirun, int otherwise) { /* of the launcher */
    const char *text = getenv(torchrun) ? getenv(torchrun) : getenv(mpirun);
    return text ? atoi(text) : otherwise;
}
int main(int argc, char **argv) {
    setenv("NCCL_LAUNCH_ORDER_IMPLICIT", "1", 1); /* the plugin's two communicators overlap */
    if (argc != 3) return puts("expected STAGE ID"), 2;
    return train(atoi(argv[1]), argv[2], number("RANK", "OMPI_COMM_WORLD_RANK", 0),
                 number("WORLD_SIZE", "OMPI_COMM_WORLD_SIZE", 1),
                 number("LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", 0));
}
