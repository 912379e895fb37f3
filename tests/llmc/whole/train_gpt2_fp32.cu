// Not a program: the places that adapters/llmc/train_gpt2_fp32.cu.edit looks for, for the tests.
typedef struct {
    int something;
} GPT2;

void gpt2_build_from_checkpoint(GPT2 *model) {
    model->params_memory = malloc_and_point_parameters(here);
    float* params_memory_cpu = (float*)room;
    read(params_memory_cpu);
    free(params_memory_cpu);
    other();
}

void gpt2_forward(GPT2 *model) {
    encoder_forward(a, b);
    for (int l = 0; l < L; l++) {
        if (l == 0) {
            first();
        }
        layer();
    }
    matmul_forward(acts.output, c);
    after_it();
}

void gpt2_backward(GPT2 *model) {
    if (model->grads_memory == NULL) {
        model->grads_memory = malloc_and_point_parameters(there);
        printf("MiB for parameter gradients");
    }
    matmul_backward(grads_acts.bt4c, grads.wte, d);
    for (int l = L-1; l >= 0; l--) {
        layer();
    }
    encoder_backward(e);
}

__global__ void adamw_kernel2(float* params,
                              float decay) {
    params -= decay;
}

void gpt2_update(GPT2 *model) {
    adamw_kernel2(model);
}

void gpt2_free(GPT2 *model) {
    cudaCheck(cudaFree(model->params_memory));
    cudaCheck(cudaFree(model->acts_memory));
}

void error_usage() {
    fprintf(stderr, "  -g <int>    genT\n");
    exit(1);
}

int main(int argc, char *argv[]) {
    int deviceIdx = 0;
    gpt2_build_from_checkpoint(&model);
    dataloader_init(&train_loader, p, B, T, 0, 1, 1);
    dataloader_init(&val_loader, p, B, T, 0, 1, 0);
    int train_num_batches = n / (B*T);
    logger_init(&logger, output_log_file);
    gpt2_forward(&model, val_loader.inputs);
    gpt2_forward(&model, gen_tokens);
    gpt2_forward(&model, train_loader.inputs);
    gpt2_update(&model, 1, step+1);
    int tokens_per_second = (B * T) / s;
}
