/* gpu_kernels.cu [MILLIONS] - how fast a training step's pieces are on this device, on numbers that
   look random (zeros are faster than they should be). As a share of what a copy moves: the
   optimizer step and the norm of the gradient over LAYERS units, numbers that are packed, unpacked
   and added up from packed ones (the plugin, which this includes), layer norm forward and backward
   (ops.h); bytes are those that the operation must read and write, the copy's both of
   its sides. And each operation of a block and of the classifier at the sizes of GPT-2 124M and
   1558M: milliseconds, and what that is in TFLOP/s or GB/s. Times are the host's; the best of
   ROUNDS counts. For gpu.sh: lines "NAME VALUE UNIT...". */
#include "../../zero_plugin.cu"

#include "../../adapters/gpt2/attention_cuda.h"
#include "../../adapters/gpt2/ops.h"

#include <cuda_runtime.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { ROUNDS = 9, LAYERS = 32, ROWS = 131072, NOISE = 1 << 20, CALLS = 4, SENDERS = 4 };

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

/* n numbers in [-1/2, 1/2), times `size`, the same ones again after NOISE. */
static void make_noise(cudaStream_t stream, void *to, zero_type type, size_t n, float size) {
    const size_t width = zero_type_bytes(type);
    float *x = (float *)malloc(NOISE * sizeof(float));
    char *stored = (char *)malloc(NOISE * width);
    uint64_t state = 1;
    must(x != NULL && stored != NULL, "no memory on the host");
    for (size_t i = 0; i < NOISE; i++) {
        state = state * 6364136223846793005u + 1442695040888963407u;
        x[i] = size * ((float)(state >> 40) / 16777216.0f - 0.5f);
    }
    zero_convert(stored, type, x, ZERO_F32, NOISE);
    for (size_t at = 0; at < n; at += NOISE) {
        const size_t left = n - at, part = left < (size_t)NOISE ? left : (size_t)NOISE;
        must(cudaMemcpyAsync((char *)to + at * width, stored, part * width, cudaMemcpyHostToDevice,
                             stream)
                 == cudaSuccess,
             "copy of noise");
    }
    drain(stream);
    free(x);
    free(stored);
}

static void *allocate(size_t bytes) {
    void *memory = ops_alloc(bytes);
    must(memory != NULL, "no memory on the device");
    return memory;
}

static zero_ctx *open_context(cudaStream_t stream, zero_type type, size_t each) {
    const zero_comm self = {ZERO_COMM_SELF, 0, NULL, 0};
    zero_config cfg;
    zero_ctx *z = NULL;
    memset(&cfg, 0, sizeof cfg);
    cfg.type = type;
    cfg.grads = ZERO_GRAD_AS_TYPE;
    cfg.stream = stream;
    zero_tensor_desc d = {};
    d.name = "x";
    d.numel = each;
    d.layers = LAYERS;
    d.uses = 1;
    d.flags = ZERO_OVERWRITTEN;
    must_zero(z, zero_create(&z, &cfg, &self));
    must_zero(z, zero_tensor(z, &d));
    must_zero(z, zero_build(z));
    return z;
}

/* All units' gradients, without what a model would compute. */
static void give_gradients(zero_ctx *z, cudaStream_t stream, const void *noise, size_t each,
                           size_t width) {
    void *params = NULL, *grads = NULL;
    must_zero(z, zero_pass_begin(z, ZERO_TRAIN, 0, 1));
    for (int u = LAYERS; u-- > 0;) {
        must_zero(z, zero_backward_begin(z, u, &params, &grads));
        must(cudaMemcpyAsync((char *)grads + (size_t)u * each * width, noise, each * width,
                             cudaMemcpyDeviceToDevice, stream)
                 == cudaSuccess,
             "copy of a gradient");
    }
    drain(stream);
}

/* The norm is taken once the gradient is there; the step is what is left. */
static void measure_step(cudaStream_t stream, zero_type type, const char *name, size_t n,
                         double copy_rate) {
    const zero_hyper hyper = {1e-3f, 0.9f, 0.99f, 1e-8f, 0.1f, 1.0f};
    const size_t width = zero_type_bytes(type), each = n / LAYERS;
    zero_ctx *z = open_context(stream, type, each);
    void *noise = allocate(each * width);
    double norm, norm_s = 1e30, step_s = 1e30;
    char line[64];
    make_noise(stream, noise, type, each, 1e-3f);
    for (int i = 0; i < ROUNDS; i++) {
        zero_step_report done;
        give_gradients(z, stream, noise, each, width);
        const double started = seconds_now();
        for (int u = LAYERS; u-- > 0;) must_zero(z, zero_backward_end(z, u));
        must_zero(z, zero_pass_end(z));
        must_zero(z, zero_reduce(z));
        must_zero(z, zero_norm(z, &norm));
        const double reduced = seconds_now();
        must_zero(z, zero_step(z, &hyper));
        must_zero(z, zero_step_result(z, &done));
        drain(stream);
        must(cudaDeviceSynchronize() == cudaSuccess, "the device reports an error");
        must(done.stepped && norm > 0, "the step was skipped");
        if (reduced - started < norm_s) norm_s = reduced - started;
        if (seconds_now() - reduced < step_s) step_s = seconds_now() - reduced;
    }
    /* Gradient, two moments and, in 16 bit, a master weight; then what is written of them. */
    const double bytes = (double)width + (type == ZERO_F32 ? 8 : 10) + 16;
    snprintf(line, sizeof line, "adamw-%s", name);
    report(line, bytes * (double)(each * LAYERS), step_s, copy_rate);
    snprintf(line, sizeof line, "norm-%s", name);
    report(line, (double)(width * each * LAYERS), norm_s, copy_rate);
    zero_destroy(z);
    ops_free(noise);
}

/* Numbers to codes, codes to numbers, and the codes of SENDERS ranks to their mean. */
static void measure_codec(cudaStream_t stream, zp_codec codec, zero_type type, const char *of,
                          size_t n, double copy_rate) {
    static const char *const names[] = {"encode", "decode", "sum"};
    const size_t stored = n * zero_type_bytes(type), packed = zp_codec_quantized_bytes(&codec, n);
    char *x = (char *)allocate(stored), *codes = (char *)allocate(SENDERS * packed);
    zp_device device;
    zp_stream s;
    must(zp_device_open(&device) == ZERO_OK, "no CUDA device can be used");
    must(zp_device_take_stream(&s, &device, stream, 1) == ZERO_OK, "no stream");
    make_noise(stream, x, type, n, 1e-3f);
    const zp_quantized plain = {NULL, 0, n, codec, 0, 1};
    for (int k = 0; k < 3; k++) {
        const int senders = k == 2 ? SENDERS : 1;
        const zp_quantized from = {codes, packed, n, codec, senders, 1};
        const zp_codec_kernels_encode_args encode = {plain, x, codes, type, 1, NULL, NULL, 0, 0, 0};
        const zp_codec_kernels_decode_args decode = {from, x, NULL, type, 1.0f / (float)senders, 0};
        double best = 1e30;
        char line[64];
        for (int i = 0; i < ROUNDS; i++) {
            drain(stream);
            const double started = seconds_now();
            must((k ? zp_codec_kernels_decode_parts(&s, &decode)
                    : zp_codec_kernels_encode_parts(&s, &encode))
                     == ZERO_OK,
                 device.text);
            drain(stream);
            if (seconds_now() - started < best) best = seconds_now() - started;
        }
        for (int p = 1; p < SENDERS && k == 0; p++)
            must(cudaMemcpyAsync(codes + (size_t)p * packed, codes, packed,
                                 cudaMemcpyDeviceToDevice, stream)
                     == cudaSuccess,
                 "copy of codes");
        snprintf(line, sizeof line, "%s-%s-%d", names[k], of, codec.bits);
        report(line, (double)(stored + (size_t)senders * packed), best, copy_rate);
    }
    zp_device_close(&device);
    ops_free(x);
    ops_free(codes);
}

static void measure_layer_norm(cudaStream_t stream, size_t rows, size_t width, double copy_rate) {
    const ops_limits limits = {0, 0, 0, 0, 2 * width, 0, rows};
    const ops_settings settings = {ZERO_BF16, ZERO_F32, stream, 0, 0};
    const size_t bytes = rows * width * sizeof(uint16_t), numbers = rows * width;
    char why[OPS_SENTENCE] = "", line[64];
    ops_ctx *o = NULL;
    double forward_s = 1e30, backward_s = 1e30;
    must(ops_create(&o, &limits, &settings, why) == ZERO_OK, why);
    char *x = (char *)allocate(3 * bytes), *small = (char *)allocate(12 * width + 8 * rows);
    make_noise(stream, x, ZERO_BF16, 3 * numbers, 1.0f);
    make_noise(stream, small, ZERO_BF16, 2 * width, 1.0f);
    ops_clear(o, small + 4 * width, 8 * width);
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

/* ---- operations of GPT-2 ------------------------------------------------------------------- */

typedef struct shapes {
    cudaStream_t stream;
    ops_ctx *o;
    ops_heads heads;
    size_t rows, width, words, chunk; /* R, C, Vp, rows of logits at once */
    uint16_t *in, *out, *wide, *gelu, *weights, *grads, *logits;
    float *floats; /* norms, lse, losses */
    int *tokens, *targets;
} shapes;

/* CALLS calls at a time; name, milliseconds of one, and `work` of it a second. */
#define MEASURE(s, name, work, unit, call)                                                         \
    do {                                                                                           \
        double best = 1e30;                                                                        \
        for (int round = 0; round < ROUNDS; round++) {                                             \
            drain((s)->stream);                                                                    \
            const double started = seconds_now();                                                  \
            for (int i = 0; i < CALLS; i++) call;                                                  \
            drain((s)->stream);                                                                    \
            const double took = (seconds_now() - started) / CALLS;                                 \
            if (took < best) best = took;                                                          \
        }                                                                                          \
        printf("op-%zu-%s %.3f ms, %.0f %s\n", (s)->width, name, 1e3 * best, (work) / best, unit); \
    } while (0)
#define PRODUCT(s, name, products, call)                                                           \
    MEASURE(s, name, 2e-12 * (double)(s)->rows * (double)C * (double)C * (products), "TFLOP/s",    \
            call)
#define MOVED(s, name, bytes, call) MEASURE(s, name, 1e-9 * (double)(bytes), "GB/s", call)

static void measure_products(shapes *s) {
    const size_t R = s->rows, C = s->width;
    ops_ctx *o = s->o;
    const uint16_t *w = s->weights, *fch = s->logits; /* large enough */
    PRODUCT(s, "qkv", 3, ops_linear(o, s->wide, s->in, w, w, R, C, 3 * C));
    PRODUCT(s, "attproj", 1, ops_linear_residual(o, s->out, s->in, s->gelu, w, w, R, C, C));
    PRODUCT(s, "fc", 4, ops_linear(o, s->wide, s->in, w, w, R, C, 4 * C));
    PRODUCT(s, "fc-gelu", 4, ops_linear_gelu(o, s->wide, s->gelu, 0, s->in, w, w, R, C, 4 * C));
    PRODUCT(s, "fcproj", 4, ops_linear_residual(o, s->out, s->in, s->gelu, w, w, R, 4 * C, C));
    PRODUCT(s, "fcproj-dx", 4, ops_linear_dx(o, s->gelu, s->in, w, R, 4 * C, C));
    PRODUCT(s, "fcproj-dx-gelu", 4,
            ops_linear_dx_gelu(o, s->wide, s->grads, s->gelu, 1, s->in, w, fch, w, R, 4 * C, C));
    PRODUCT(s, "fcproj-dx-gelu-again", 4,
            ops_linear_dx_gelu(o, s->wide, s->grads, s->gelu, 0, s->in, w, fch, w, R, 4 * C, C));
    PRODUCT(s, "fcproj-dw", 4, ops_linear_dw(o, s->grads, NULL, s->in, s->gelu, R, 4 * C, C));
    PRODUCT(s, "fc-dw", 4, ops_linear_dw(o, s->grads, NULL, s->wide, s->in, R, C, 4 * C));
    PRODUCT(s, "fc-dx", 4, ops_linear_dx(o, s->out, s->wide, w, R, C, 4 * C));
    PRODUCT(s, "qkv-dw", 3, ops_linear_dw(o, s->grads, NULL, s->wide, s->in, R, C, 3 * C));
    PRODUCT(s, "qkv-dx", 3, ops_linear_dx(o, s->out, s->wide, w, R, C, 3 * C));
    MOVED(s, "bias-of-fc", 8 * R * C, ops_bias_backward(o, s->grads, s->wide, R, 4 * C));
    MOVED(s, "gelu", 16 * R * C, ops_gelu(o, s->gelu, s->wide, NULL, R, 4 * C));
    MOVED(s, "norm", 4 * R * C,
          ops_norm(o, s->out, s->floats, s->floats + R, s->in, w, w + C, R, C));
    MOVED(s, "norm-backward", 8 * R * C,
          ops_norm_backward(o, s->out, s->grads, s->grads + C, s->in, s->gelu, s->floats,
                            s->floats + R, w, 0, R, C));
}

static void measure_classifier(shapes *s) {
    const size_t R = s->chunk, C = s->width, V = s->words;
    const double flop = 2e-12 * (double)R * (double)C * (double)V;
    ops_ctx *o = s->o;
    MEASURE(s, "logits", flop, "TFLOP/s",
            ops_linear(o, s->logits, s->in, s->weights, NULL, R, C, V));
    MOVED(s, "cross-entropy", 4 * R * V,
          ops_cross_entropy(o, s->floats, s->logits, s->targets, 1, 1e-3f, R, V - V / 1000, V));
    MEASURE(s, "logits-dx", flop, "TFLOP/s",
            ops_linear_dx(o, s->out, s->logits, s->weights, R, C, V));
    MEASURE(s, "logits-dw", flop, "TFLOP/s",
            ops_linear_dw(o, s->grads, NULL, s->logits, s->in, R, C, V));
    MOVED(s, "embed", 4 * s->rows * C,
          ops_embed(o, s->out, s->tokens, s->weights, s->weights, s->rows, s->heads.seq_len, C));
    MOVED(
        s, "embed-backward", 4 * s->rows * C,
        ops_embed_backward(o, s->grads, s->grads, s->in, s->tokens, s->rows, s->heads.seq_len, C));
}

/* Causal: half of the scores. Backward with the same bits each time, and without that promise. */
static void measure_attention(shapes *s) {
    const attention_shape shape = {s->heads.batch, s->heads.seq_len, s->heads.heads,
                                   s->heads.head_size};
    const double flop =
        2e-12 * (double)s->rows * (double)s->heads.seq_len * (double)s->width; /* two products */
    for (int same = 1; same >= 0; same--) {
        attention *a = NULL;
        const char *const names[] = {"attention-backward-any-order", "attention-backward"};
        must(attention_create(&a, &shape, ZERO_BF16, s->stream, same) == ZERO_OK,
             attention_error(a));
        if (same)
            MEASURE(s, "attention", flop, "TFLOP/s",
                    attention_forward(a, s->out, s->floats, s->wide, &shape));
        MEASURE(s, names[same], 2.5 * flop, "TFLOP/s",
                attention_backward(a, s->gelu, s->in, s->out, s->floats, s->wide, &shape));
        must(!attention_error(a)[0], attention_error(a));
        printf("op-%zu-attention-memory-%s %.0f MiB, %s\n", s->width, same ? "same" : "any-order",
               (double)attention_bytes(a) / 1048576, attention_path(a));
        attention_destroy(a);
    }
}

static void take_tokens(shapes *s) {
    int *host = (int *)malloc(s->rows * sizeof(int));
    must(host != NULL, "no memory on the host");
    for (size_t i = 0; i < s->rows; i++)
        host[i] = (int)((uint32_t)i * 2654435761u % (uint32_t)(s->words - s->words / 1000));
    ops_take_batch(s->o, s->tokens, s->targets, host, host, s->rows);
    free(host);
}

/* A block and the classifier of a model, for B sequences. */
static void measure_model(cudaStream_t stream, size_t B, size_t T, size_t NH, size_t HS,
                          size_t words) {
    shapes s;
    char why[OPS_SENTENCE] = "";
    memset(&s, 0, sizeof s);
    const ops_heads heads = {B, T, NH, HS};
    const size_t R = B * T, C = NH * HS, chunk = R < 16384 ? R : 16384;
    const size_t most = 4 * C * C > words * C ? 4 * C * C : words * C;
    const ops_limits limits = {0, 0, 0, 0, 4 * C, words, R};
    const ops_settings settings = {ZERO_BF16, ZERO_BF16, stream, 0, 0};
    must(ops_create(&s.o, &limits, &settings, why) == ZERO_OK, why);
    s.stream = stream;
    s.heads = heads;
    s.rows = R;
    s.width = C;
    s.words = words;
    s.chunk = chunk;
    uint16_t **const parts[] = {&s.in, &s.out, &s.wide, &s.gelu, &s.weights, &s.grads, &s.logits};
    const size_t sizes[] = {R * C, R * C, 4 * R * C, 4 * R * C, most, most, chunk * words};
    for (int i = 0; i < 7; i++) {
        *parts[i] = (uint16_t *)allocate(sizes[i] * sizeof(uint16_t));
        make_noise(stream, *parts[i], ZERO_BF16, sizes[i], i < 4 ? 2.0f : 0.1f);
    }
    s.floats = (float *)allocate((R * NH + 2 * R) * sizeof(float));
    s.tokens = (int *)allocate(R * sizeof(int));
    s.targets = (int *)allocate(R * sizeof(int));
    take_tokens(&s);
    measure_products(&s);
    measure_classifier(&s);
    measure_attention(&s);
    const char *sentence = "";
    must(ops_status(s.o, &sentence) == ZERO_OK, sentence);
    printf("op-%zu-products - %s\n", C, ops_product_path(s.o));
    for (int i = 0; i < 7; i++) ops_free(*parts[i]);
    ops_free(s.floats);
    ops_free(s.tokens);
    ops_free(s.targets);
    ops_destroy(s.o);
}

int main(int argc, char **argv) {
    const double millions = argc > 1 ? atof(argv[1]) : 1000;
    const size_t n = (size_t)(millions * 1e6);
    const int small = n < (size_t)100000000;
    cudaStream_t stream = NULL;
    (void)setvbuf(stdout, NULL, _IOLBF, 0); /* what was measured stays if the next fails */
    must(n >= (size_t)LAYERS, "expected millions of parameters");
    must(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking) == cudaSuccess,
         "no CUDA device can be used");
    const double copy_rate = measure_copy(stream, n * 4);
    measure_step(stream, ZERO_F32, "f32", n, copy_rate);
    measure_step(stream, ZERO_BF16, "bf16", n, copy_rate);
    for (int i = 0; i < 4; i++)
        measure_codec(stream, zp_codecs[i % 2], i < 2 ? ZERO_F32 : ZERO_BF16,
                      i < 2 ? "f32" : "bf16", n / ZP_QUANT_BLOCK * ZP_QUANT_BLOCK, copy_rate);
    measure_layer_norm(stream, small ? 64 : (size_t)ROWS, 768, copy_rate);
    measure_layer_norm(stream, small ? 64 : (size_t)ROWS, 1600, copy_rate);
    measure_model(stream, small ? 1 : 32, small ? 16 : 1024, small ? 2 : 12, small ? 16 : 64,
                  small ? 128 : 50304);
    if (!small) measure_model(stream, 16, 1024, 25, 64, 50304);
    cudaStreamDestroy(stream);
    return 0;
}
