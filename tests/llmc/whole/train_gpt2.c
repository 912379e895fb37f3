// A toy with the places that adapters/llmc/train_gpt2.c.edit looks for, written for the tests: each
// parameter enters one sum, the loss is that sum's distance from a target. It trains, so that what
// apply makes of it can be compared with what it was.
#include <math.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define freadCheck(to, size, n, file) \
    do { if (fread(to, size, n, file) != (size_t)(n)) exit(3); } while (0)

typedef struct {
    int max_seq_len, vocab_size, padded_vocab_size, num_layers, num_heads, channels;
} GPT2Config;

typedef struct {
    float *wte, *wpe, *ln1w, *ln1b, *qkvw, *qkvb, *attprojw, *attprojb;
    float *ln2w, *ln2b, *fcw, *fcb, *fcprojw, *fcprojb, *lnfw, *lnfb;
} ParameterTensors;

typedef struct {
    float encoded, residual3[16], lnf, logits[1];
} ActivationTensors;

typedef struct {
    GPT2Config config;
    ParameterTensors params, grads;
    float *params_memory, *grads_memory, *grads_acts_memory, *m, *v;
    size_t param_sizes[16];
    ActivationTensors acts;
    int *inputs, *targets;
    float mean_loss;
} GPT2;

static size_t total(const size_t *sizes) {
    size_t n = 0;
    for (int i = 0; i < 16; i++) n += sizes[i];
    return n;
}

float *malloc_and_point_parameters(ParameterTensors *params, const size_t *sizes) {
    float *memory = malloc(total(sizes) * sizeof(float)), *at = memory;
    for (int i = 0; i < 16; i++) {
        ((float **)params)[i] = at;
        at += sizes[i];
    }
    return memory;
}

static void sizes_of(GPT2Config c, size_t *sizes) {
    const size_t C = c.channels, L = c.num_layers;
    const size_t all[16] = {c.padded_vocab_size * C, c.max_seq_len * C, L * C, L * C, L * 3 * C * C,
        L * 3 * C, L * C * C, L * C, L * C, L * C, L * 4 * C * C, L * 4 * C, L * 4 * C * C, L * C, C, C};
    memcpy(sizes, all, sizeof(all));
}

// weight of element i in the sum
static float place(size_t i) { return ((int)(i % 7) - 3) * 0.01f; }
static float use(const float *w, size_t n, float x) {
    float sum = 0;
    for (size_t i = 0; i < n; i++) sum += w[i] * place(i);
    return sum * x;
}
static void give(float *dw, size_t n, float x) {
    for (size_t i = 0; i < n; i++) dw[i] += place(i) * x;
}

static void encoder_forward(float *out, float x, const float *wte, const float *wpe, size_t C) {
    *out = use(wte, 32 * C, x) + use(wpe, 8 * C, x);
}
static void encoder_backward(float *dwte, float *dwpe, float d, size_t C) {
    give(dwte, 32 * C, d);
    give(dwpe, 8 * C, d);
}
static void matmul_forward(float *out, float x, const float *w, size_t n) { *out = x + use(w, n, 1); }
static void matmul_backward(float *dx, float d, float *dw, size_t n) {
    *dx = d;
    give(dw, n, d);
}

void gpt2_build_from_checkpoint(GPT2 *model, const char *checkpoint_path) {
    FILE *model_file = fopen(checkpoint_path, "rb");
    int h[256];
    if (!model_file) exit(3);
    freadCheck(h, sizeof(int), 256, model_file);
    model->config = (GPT2Config){h[2], h[3], h[7], h[4], h[5], h[6]};
    sizes_of(model->config, model->param_sizes);
    size_t num_parameters = total(model->param_sizes);
    model->params_memory = malloc_and_point_parameters(&model->params, model->param_sizes);
    freadCheck(model->params_memory, sizeof(float), num_parameters, model_file);
    fclose(model_file);
    printf("num_parameters: %zu\n", num_parameters);
    model->grads_memory = model->grads_acts_memory = model->m = model->v = NULL;
}

void gpt2_forward(GPT2 *model, int *inputs, int *targets, size_t B, size_t T) {
    const size_t C = model->config.channels, L = model->config.num_layers;
    ParameterTensors params = model->params;
    ActivationTensors acts;
    float wanted = 0;
    for (size_t i = 0; targets && i < B * T; i++) wanted += 0.01f * targets[i];
    encoder_forward(&acts.encoded, 1, params.wte, params.wpe, C); // goes into residual[0]
    for (int l = 0; l < L; l++) {
        float sum = l == 0 ? acts.encoded : acts.residual3[l - 1];
        sum += use(params.ln1w + l * C, C, 1) + use(params.ln1b + l * C, C, 1);
        sum += use(params.qkvw + l * 3 * C * C, 3 * C * C, 1) + use(params.qkvb + l * 3 * C, 3 * C, 1);
        sum += use(params.attprojw + l * C * C, C * C, 1) + use(params.attprojb + l * C, C, 1);
        sum += use(params.ln2w + l * C, C, 1) + use(params.ln2b + l * C, C, 1);
        sum += use(params.fcw + l * 4 * C * C, 4 * C * C, 1) + use(params.fcb + l * 4 * C, 4 * C, 1);
        sum += use(params.fcprojw + l * 4 * C * C, 4 * C * C, 1) + use(params.fcprojb + l * C, C, 1);
        acts.residual3[l] = sum;
    }
    acts.lnf = acts.residual3[L - 1] + use(params.lnfw, C, 1) + use(params.lnfb, C, 1);
    matmul_forward(acts.logits, acts.lnf, params.wte, 32 * C);
    model->acts = acts;
    model->mean_loss = targets ? (*acts.logits - wanted) * (*acts.logits - wanted) : -1;
    model->acts.lnf = 2 * (*acts.logits - wanted); // for backward
    (void)inputs;
}

void gpt2_zero_grad(GPT2 *model) {
    if (model->grads_memory != NULL) memset(model->grads_memory, 0, total(model->param_sizes) * sizeof(float));
}

void gpt2_backward(GPT2 *model) {
    if (model->grads_memory == NULL) {
        model->grads_memory = malloc_and_point_parameters(&model->grads, model->param_sizes);
        model->grads_acts_memory = calloc(1, sizeof(float));
        gpt2_zero_grad(model);
    }
    const size_t C = model->config.channels, L = model->config.num_layers;
    ParameterTensors params = model->params;
    ParameterTensors grads = model->grads;
    struct { float lnf[1]; } grads_acts;
    const float d = model->acts.lnf;
    (void)params;
    matmul_backward(grads_acts.lnf, d, grads.wte, 32 * C);
    give(grads.lnfw, C, *grads_acts.lnf);
    give(grads.lnfb, C, d);
    for (int l = L-1; l >= 0; l--) {
        give(grads.ln1w + l * C, C, d), give(grads.ln1b + l * C, C, d);
        give(grads.qkvw + l * 3 * C * C, 3 * C * C, d), give(grads.qkvb + l * 3 * C, 3 * C, d);
        give(grads.attprojw + l * C * C, C * C, d), give(grads.attprojb + l * C, C, d);
        give(grads.ln2w + l * C, C, d), give(grads.ln2b + l * C, C, d);
        give(grads.fcw + l * 4 * C * C, 4 * C * C, d), give(grads.fcb + l * 4 * C, 4 * C, d);
        give(grads.fcprojw + l * 4 * C * C, 4 * C * C, d), give(grads.fcprojb + l * C, C, d);
    }
    encoder_backward(grads.wte, grads.wpe, d, C);
}

void gpt2_update(GPT2 *model, float lr, float beta1, float beta2, float eps, float decay, int t) {
    const size_t n = total(model->param_sizes);
    if (!model->m) {
        model->m = calloc(n, sizeof(float));
        model->v = calloc(n, sizeof(float));
    }
    for (size_t i = 0; i < n; i++) {
        const float g = model->grads_memory[i];
        model->m[i] = beta1 * model->m[i] + (1 - beta1) * g;
        model->v[i] = beta2 * model->v[i] + (1 - beta2) * g * g;
        const float m = model->m[i] / (1 - powf(beta1, t)), v = model->v[i] / (1 - powf(beta2, t));
        model->params_memory[i] -= lr * (m / (sqrtf(v) + eps) + decay * model->params_memory[i]);
    }
}

void gpt2_free(GPT2 *model) {
    free(model->params_memory);
    free(model->grads_memory);
    free(model->grads_acts_memory);
    free(model->m);
    free(model->v);
}

typedef struct {
    int inputs[32], targets[32], rank, ranks, at;
} DataLoader;
static void dataloader_init(DataLoader *loader, int rank, int ranks, int shuffle) {
    *loader = (DataLoader){{0}, {0}, rank, ranks, shuffle};
}
static void dataloader_next_batch(DataLoader *loader) {
    for (int i = 0; i < 32; i++) {
        loader->inputs[i] = (i + loader->at) % 5;
        loader->targets[i] = (i * 7 + loader->rank * 3 + loader->at * 11) % 13;
    }
    loader->at++;
}

int main() {
    GPT2 model;
    gpt2_build_from_checkpoint(&model, "gpt2_124M.bin");
    DataLoader train_loader, val_loader;
    dataloader_init(&train_loader, 0, 1, 1);
    dataloader_init(&val_loader, 0, 1, 0);
    int gen_tokens[32] = {0};
    const int B = 4, T = 8;
    for (int step = 0; step <= 20; step++) {
        if (step % 10 == 0) {
            dataloader_next_batch(&val_loader);
            gpt2_forward(&model, val_loader.inputs, val_loader.targets, B, T);
            printf("val loss %f\n", model.mean_loss);
            gpt2_forward(&model, gen_tokens, NULL, B, T);
            printf("sum %f\n", *model.acts.logits);
        }
        dataloader_next_batch(&train_loader);
        gpt2_forward(&model, train_loader.inputs, train_loader.targets, B, T);
        gpt2_zero_grad(&model);
        gpt2_backward(&model);
        gpt2_update(&model, 1e-2f, 0.9f, 0.999f, 1e-8f, 0.0f, step + 1);
        printf("step %d: train loss %f (took %f ms)\n", step, model.mean_loss, 0.0);
    }
    gpt2_free(&model);
    return 0;
}
