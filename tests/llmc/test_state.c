/* test_state FOLDER - adapters/llmc/zero_nccl.h without a GPU: a run that goes on from its
   checkpoint is the run that was never interrupted. The types and functions of llm.c that the
   header takes from its trainer are stood in for here. */
#include <math.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../shared/harness.h"

typedef struct {
    int max_seq_len, vocab_size, padded_vocab_size, num_layers, num_heads, channels;
} GPT2Config;
typedef struct {
    void *wte, *wpe, *ln1w, *ln1b, *qkvw, *qkvb, *attprojw, *attprojb;
    void *ln2w, *ln2b, *fcw, *fcb, *fcprojw, *fcprojb, *lnfw, *lnfb;
} ParameterTensors;
typedef void *cudaStream_t;
static struct { int process_rank; } multi_gpu_config;
enum { PRECISION_FP32, PRECISION_FP16, PRECISION_BF16 };
static int PRECISION_MODE;

static void need(int ok) {
    if (!ok) abort();
}
static FILE *fopenCheck(const char *path, const char *mode) {
    FILE *file = fopen(path, mode);
    need(file != NULL);
    return file;
}
static void fwriteCheck(void *from, size_t size, size_t n, FILE *file) {
    need(fwrite(from, size, n, file) == n);
}
static void freadCheck(void *to, size_t size, size_t n, FILE *file) {
    need(fread(to, size, n, file) == n);
}
static void fseekCheck(FILE *file, long at, int whence) { need(fseek(file, at, whence) == 0); }
static void fcloseCheck(FILE *file) { need(fclose(file) == 0); }
#define printf0(...) printf(__VA_ARGS__)

#include "../../adapters/llmc/zero_nccl.h"

enum { LAYERS = 3, CHANNELS = 16, VOCABULARY = 128, MAX_T = 8, HALF = 4, WHOLE = 9 };
static const GPT2Config config = {MAX_T, VOCABULARY, VOCABULARY, LAYERS, 2, CHANNELS};
static ParameterTensors params, grads;

static size_t model_numel(void) {
    llmc_tensor table[LLMC_TENSORS];
    size_t n = 0;
    llmc_describe(config, table);
    for (int i = 0; i < LLMC_TENSORS; i++) n += table[i].numel * (table[i].layered ? LAYERS : 1);
    return n;
}

/* Of element i at step t: of changing sign and size. */
static float gradient(size_t i, int t) {
    return ((float)((i * 7 + (size_t)t * 13) % 31) - 15.0F) * 0.01F;
}

static void add_gradient(void *memory, size_t n, int t) {
    for (size_t i = 0; i < n; i++) {
        const float g = gradient(i, t);
        if (llmc_config.type == ZERO_F32)
            ((float *)memory)[i] += g;
        else
            zero_convert((uint16_t *)memory + i, llmc_config.type, &g, ZERO_F32, 1);
    }
}

static void backward(int t) {
    const size_t C = CHANNELS;
    zeroCheck(zero_backward_begin(zero, 0, &params, &grads));
    add_gradient(grads.wte, VOCABULARY * C, t);
    zeroCheck(zero_backward_end(zero, 0));
    add_gradient(grads.lnfw, C, t);
    for (int l = LAYERS - 1; l >= 0; l--) {
        const size_t bytes = zero_type_bytes(llmc_config.type);
        zeroCheck(zero_backward_begin(zero, 1 + l, &params, &grads));
        add_gradient((char *)grads.qkvw + (size_t)l * 3 * C * C * bytes, 3 * C * C, t);
        add_gradient((char *)grads.ln1w + (size_t)l * C * bytes, C, t);
        zeroCheck(zero_backward_end(zero, 1 + l));
    }
    zeroCheck(zero_backward_begin(zero, 0, NULL, &grads));
    add_gradient(grads.wpe, MAX_T * C, t);
    zeroCheck(zero_backward_end(zero, 0));
}

static void train(int from, int to) {
    for (int t = from; t <= to; t++) {
        zeroCheck(zero_pass_begin(zero, ZERO_TRAIN, 0, 1));
        backward(t);
        zeroCheck(zero_pass_end(zero));
        const float norm = llmc_reduce();
        test_check(norm > 0, "norm of step %d is %g", t, (double)norm);
        llmc_step(1e-2F, 0.9F, 0.95F, 1e-8F, 0.1F, 1.0F);
    }
}

static void build(int stage, int masters) {
    llmc_configure(stage, 1, masters, NULL);
    test_check(llmc_build(llmc_comm(), config, &params, &grads) != NULL, "params_memory is NULL");
}

static void initial(void) {
    const size_t n = model_numel();
    float *values = malloc(n * sizeof(float));
    uint16_t *stored = malloc(n * sizeof(uint16_t));
    need(values && stored);
    for (size_t i = 0; i < n; i++) values[i] = (float)(i % 17) * 0.05F - 0.4F;
    zero_convert(stored, ZERO_BF16, values, ZERO_F32, n);
    if (llmc_config.type == ZERO_F32)
        llmc_write(ZERO_PARAMETER, ZERO_F32, NULL, values);
    else
        llmc_write(ZERO_PARAMETER, ZERO_BF16, NULL, stored);
    free(values);
    free(stored);
}

/* The whole of what save_state and load_state do with tensors, a header before and data behind. */
static void save(const char *model, const char *state, int masters) {
    int header[256] = {20240527};
    int behind = 4711;
    llmc_save_counters(&header[40]);
    FILE *file = fopenCheck(model, "wb");
    llmc_read(ZERO_PARAMETER, llmc_config.type, file);
    fcloseCheck(file);
    file = fopenCheck(state, "wb");
    fwriteCheck(header, sizeof(int), 256, file);
    llmc_save_state(file, masters);
    fwriteCheck(&behind, sizeof(int), 1, file);
    fcloseCheck(file);
}

/* rank 1 has no tensors in its own file and reads those of rank 0's. */
static void load(const char *model, const char *state, int there, int masters) {
    int header[256], behind = 0;
    FILE *file = fopenCheck(model, "rb");
    if (!masters) llmc_write(ZERO_PARAMETER, llmc_config.type, file, NULL);
    fcloseCheck(file);
    file = fopenCheck(state, "rb");
    freadCheck(header, sizeof(int), 256, file);
    llmc_load_counters(&header[40], HALF);
    llmc_load_state(file, state, there, masters);
    freadCheck(&behind, sizeof(int), 1, file);
    test_check(behind == 4711, "what is behind the tensors is read as %d", behind);
    fcloseCheck(file);
}

static void write_small_state(const char *path) {
    int header[256] = {20240527}, behind = 4711; /* no counters: HALF steps, as llm.c would say */
    FILE *file = fopenCheck(path, "wb");
    fwriteCheck(header, sizeof(int), 256, file);
    fwriteCheck(&behind, sizeof(int), 1, file);
    fcloseCheck(file);
}

static float *weights(void) {
    const size_t n = model_numel();
    float *values = malloc(n * sizeof(float));
    llmc_tensor table[LLMC_TENSORS];
    size_t at = 0;
    need(values != NULL);
    llmc_describe(config, table);
    for (int i = 0; i < LLMC_TENSORS; i++) {
        const size_t count = table[i].numel * (table[i].layered ? LAYERS : 1);
        zeroCheck(zero_read_tensor(zero, table[i].name, ZERO_MASTER, 0, count, values + at));
        at += count;
    }
    llmc_free();
    return values;
}

static double apart(const float *a, const float *b) {
    double worst = 0;
    for (size_t i = 0; i < model_numel(); i++) {
        const double d = a[i] > b[i] ? (double)a[i] - b[i] : (double)b[i] - a[i];
        if (d > worst) worst = d;
    }
    return worst;
}

/* Interrupted after HALF steps, and gone on with by rank `reader` (1: from rank 0's file). */
static float *interrupted(const char *folder, int stage, int masters, int reader) {
    char model[4096], state[4096], other[4096];
    snprintf(model, sizeof(model), "%s/model.bin", folder);
    snprintf(state, sizeof(state), "%s/state_%08d_%05d.bin", folder, HALF, 0);
    snprintf(other, sizeof(other), "%s/state_%08d_%05d.bin", folder, HALF, 1);
    build(stage, masters);
    initial();
    train(1, HALF);
    save(model, state, masters);
    llmc_free();
    write_small_state(other);
    build(stage, masters);
    multi_gpu_config.process_rank = reader;
    load(model, reader ? other : state, masters, masters);
    multi_gpu_config.process_rank = 0;
    train(HALF + 1, WHOLE);
    return weights();
}

static void test_resume(const char *folder, int precision, int masters) {
    PRECISION_MODE = precision;
    build(0, masters);
    initial();
    train(1, WHOLE);
    float *whole = weights();
    for (int stage = 0; stage <= 3; stage += 3)
        for (int reader = 0; reader <= 1; reader++) {
            float *resumed = interrupted(folder, stage, masters, reader);
            const double worst = apart(whole, resumed);
            test_check(worst == 0, "precision %d masters %d stage %d reader %d: %g apart",
                       precision, masters, stage, reader, worst);
            free(resumed);
        }
    free(whole);
}

/* Masters in the file that this run does not keep are passed over. */
static void test_masters_not_wanted(const char *folder) {
    char model[4096], state[4096];
    snprintf(model, sizeof(model), "%s/model.bin", folder);
    snprintf(state, sizeof(state), "%s/state_%08d_%05d.bin", folder, HALF, 0);
    PRECISION_MODE = PRECISION_BF16;
    build(0, 1);
    initial();
    save(model, state, 1);
    llmc_free();
    build(0, 0);
    load(model, state, 1, 0);
    llmc_free();
}

/* What the step line prints by %6.4f. */
static void test_norm_of_nan(void) {
    const float bad = -NAN;
    char text[32];
    PRECISION_MODE = PRECISION_FP32;
    build(0, 1);
    zeroCheck(zero_pass_begin(zero, ZERO_TRAIN, 0, 1));
    backward(1);
    memcpy(grads.lnfw, &bad, sizeof bad);
    zeroCheck(zero_pass_end(zero));
    snprintf(text, sizeof text, "%6.4f", (double)llmc_reduce());
    test_check(strcmp(text, "   nan") == 0, "the norm of a NaN is printed as '%s'", text);
    llmc_step(1e-2F, 0.9F, 0.95F, 1e-8F, 0.1F, 1.0F);
    llmc_free();
}

int main(int argc, char **argv) {
    need(argc == 2);
    test_resume(argv[1], PRECISION_FP32, 1);
    test_resume(argv[1], PRECISION_BF16, 1);
    test_resume(argv[1], PRECISION_BF16, 0);
    test_masters_not_wanted(argv[1]);
    test_norm_of_nan();
    return test_summary();
}
