/* gpu_kernels.cu [MILLIONS] - memory-bound kernels as a share of what a copy of the same device
   moves: the optimizer step and the norm of the gradient (zero_plugin.h), layer norm forward and
   backward (ops.h). Bytes are those that the operation must read and write, the copy's both of its
   sides. Times are the host's, of work that takes milliseconds; the best of ROUNDS counts. For
   gpu.sh: lines "NAME VALUE UNIT". */
#include "../adapters/gpt2/ops.h"
#include "../zero_plugin.h"

#include <cuda_runtime.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { ROUNDS = 9, ROWS = 32768 };

static double seconds_now(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

static void must(int ok, const char *what) {
    if (ok) return;
    fprintf(stderr, "gpu_kernels: %s\n", what);
    exit(1);
}

static void drain(cudaStream_t stream) {
    must(cudaStreamSynchronize(stream) == cudaSuccess, "the device reports an error");
}

static void report(const char *name, double bytes, double seconds, double copy_rate) {
    printf("%s %.0f GB/s\n", name, bytes / seconds * 1e-9);
    printf("%s-share %.3f of-copy\n", name, bytes / seconds / copy_rate);
}

/* Bytes per second, read and written. */
static double measure_copy(cudaStream_t stream, size_t bytes) {
    void *from = NULL, *to = NULL;
    double best = 1e30;
    must(cudaMalloc(&from, bytes) == cudaSuccess && cudaMalloc(&to, bytes) == cudaSuccess,
         "no memory for a copy");
    must(cudaMemsetAsync(from, 1, bytes, stream) == cudaSuccess, "memset");
    for (int i = 0; i < ROUNDS; i++) {
        drain(stream);
        const double started = seconds_now();
        must(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, stream) == cudaSuccess,
             "copy");
        drain(stream);
        if (seconds_now() - started < best) best = seconds_now() - started;
    }
    cudaFree(from);
    cudaFree(to);
    printf("copy %.0f GB/s\n", 2 * (double)bytes / best * 1e-9);
    return 2 * (double)bytes / best;
}

static void must_zero(zero_ctx *z, zero_result result) {
    must(result == ZERO_OK, zero_last_error(z));
}

static zero_ctx *open_context(cudaStream_t stream, zero_type type, size_t n) {
    const zero_comm self = {ZERO_COMM_SELF, 0, NULL, 0};
    zero_config cfg;
    zero_ctx *z = NULL;
    memset(&cfg, 0, sizeof cfg);
    cfg.type = type;
    cfg.grads = ZERO_GRAD_AS_TYPE;
    cfg.stream = stream;
    const zero_tensor_desc d = {"x", n, 1, 0, 1, ZERO_OVERWRITTEN, 0};
    must_zero(z, zero_create(&z, &cfg, &self));
    must_zero(z, zero_tensor(z, &d));
    must_zero(z, zero_build(z));
    return z;
}

/* The norm is taken once the gradient is there; the step is what is left. */
static void measure_step(cudaStream_t stream, zero_type type, const char *name, size_t n,
                         double copy_rate) {
    const zero_hyper hyper = {1e-3f, 0.9f, 0.99f, 1e-8f, 0.1f, 1.0f};
    const double width = (double)zero_type_bytes(type);
    zero_ctx *z = open_context(stream, type, n);
    void *params = NULL, *grads = NULL;
    double norm, norm_s = 1e30, step_s = 1e30;
    char line[64];
    for (int i = 0; i < ROUNDS; i++) {
        zero_step_report done;
        must_zero(z, zero_pass_begin(z, ZERO_TRAIN, 0, 1));
        must_zero(z, zero_backward_begin(z, 0, &params, &grads));
        must(cudaMemsetAsync(grads, 0, n * zero_type_bytes(type), stream) == cudaSuccess, "memset");
        drain(stream);
        const double started = seconds_now();
        must_zero(z, zero_backward_end(z, 0));
        must_zero(z, zero_pass_end(z));
        must_zero(z, zero_reduce(z));
        must_zero(z, zero_norm(z, &norm));
        const double reduced = seconds_now();
        must_zero(z, zero_step(z, &hyper));
        must_zero(z, zero_step_result(z, &done));
        drain(stream);
        must(cudaDeviceSynchronize() == cudaSuccess, "the device reports an error");
        if (reduced - started < norm_s) norm_s = reduced - started;
        if (seconds_now() - reduced < step_s) step_s = seconds_now() - reduced;
    }
    /* Gradient, two moments and, in 16 bit, a master weight; then what is written of them. */
    const double bytes = width + (type == ZERO_F32 ? 8 : 10) + 16;
    snprintf(line, sizeof line, "adamw-%s", name);
    report(line, bytes * (double)n, step_s, copy_rate);
    snprintf(line, sizeof line, "norm-%s", name);
    report(line, width * (double)n, norm_s, copy_rate);
    zero_destroy(z);
}

static void measure_layer_norm(cudaStream_t stream, size_t rows, size_t width, double copy_rate) {
    const ops_limits limits = {0, 0, 0, 0, 2 * width, 0, rows};
    const ops_settings settings = {ZERO_BF16, ZERO_F32, stream, 0};
    const size_t bytes = rows * width * sizeof(uint16_t);
    char why[OPS_SENTENCE] = "", line[64];
    ops_ctx *o = NULL;
    double forward_s = 1e30, backward_s = 1e30;
    must(ops_create(&o, &limits, &settings, why) == ZERO_OK, why);
    char *x = (char *)ops_alloc(3 * bytes), *small = (char *)ops_alloc(12 * width + 8 * rows);
    must(x != NULL && small != NULL, "no memory for layer norm");
    ops_clear(o, x, 3 * bytes);
    ops_clear(o, small, 12 * width + 8 * rows);
    float *mean = (float *)(void *)(small + 12 * width), *rstd = mean + rows;
    for (int i = 0; i < ROUNDS; i++) {
        drain(stream);
        const double started = seconds_now();
        ops_norm(o, x + bytes, mean, rstd, x, small, small + 2 * width, rows, width);
        drain(stream);
        const double normed = seconds_now();
        ops_norm_backward(o, x + 2 * bytes, small + 4 * width, small + 8 * width, x + bytes, x,
                          mean, rstd, small, 1, rows, width);
        drain(stream);
        if (normed - started < forward_s) forward_s = normed - started;
        if (seconds_now() - normed < backward_s) backward_s = seconds_now() - normed;
    }
    const char *sentence = "";
    must(ops_status(o, &sentence) == ZERO_OK, sentence);
    snprintf(line, sizeof line, "layer-norm-%zu", width);
    report(line, 2 * (double)bytes, forward_s, copy_rate);
    snprintf(line, sizeof line, "layer-norm-backward-%zu", width);
    report(line, 3 * (double)bytes, backward_s, copy_rate);
    ops_free(x);
    ops_free(small);
    ops_destroy(o);
}

int main(int argc, char **argv) {
    const double millions = argc > 1 ? atof(argv[1]) : 1000;
    const size_t n = (size_t)(millions * 1e6);
    const size_t rows = n >= (size_t)100000000 ? (size_t)ROWS * 4 : (size_t)64;
    cudaStream_t stream = NULL;
    must(n > 0, "expected millions of parameters");
    must(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking) == cudaSuccess,
         "no CUDA device can be used");
    const double copy_rate = measure_copy(stream, n * 4);
    measure_step(stream, ZERO_F32, "f32", n, copy_rate);
    measure_step(stream, ZERO_BF16, "bf16", n, copy_rate);
    measure_layer_norm(stream, rows, 768, copy_rate);
    measure_layer_norm(stream, rows, 1600, copy_rate);
    cudaStreamDestroy(stream);
    return 0;
}
