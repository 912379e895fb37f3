// Not a program: the places that adapters/llmc/train_gpt2.cu.edit looks for, for the tests.
#include "llmc/cuda_common.h"

// buffer size to use for device
constexpr int IO_BUF_SIZE = 1;

static_assert(sizeof(ParameterTensors) == 1, "");

void gpt2_allocate_weights(GPT2 *model) {
    model->params_memory = malloc_and_point_parameters(here);
}

void gpt2_allocate_state(GPT2 *model) {
    printf0("MiB for parameter gradients");
    assert(model);
    model->grads_memory = malloc_and_point_parameters(there);
    activations();
    // this can fall back to cudaMallocManaged if there is no room
    int status = moments();
    if (reduced_memory_status) {
        printf0("managed");
    }
    report();
}

void gpt2_write_to_checkpoint(GPT2 *model) {
    FILE *f = fopenCheck(checkpoint_path, "wb");
    device_to_file(model_file, model->params_memory,
                   IO_BUF_SIZE, main_stream);
}

void gpt2_build_from_checkpoint(GPT2 *model) {
    file_to_device(model->params_memory, model_file);
}

void gpt_build_from_descriptor(GPT2 *model) {
    cudaCheck(cudaMemcpy(model->params_memory, params_memory_cpu));
}

void gpt2_forward(GPT2 *model) {
    encoder_forward(a, b);
    for (int l = 0; l < L; l++) {
        layer();
    }
    matmul_forward_cublaslt(acts.output, c);
}

float gpt2_validate(GPT2 *model) {
    gpt2_forward(model, inputs);
}

void gpt2_backward_and_reduce(GPT2 *model) {
    if(model->grads_memory == nullptr) {
        exit(1);
    }
    // the gradients accumulate += into grads_memory, reset here
    cudaCheck(cudaMemsetAsync(model->grads_memory, 0));
    const float dloss = 1.0f / n;
    matmul_backward(a, grads.wte, b);
    for (int l = L-1; l >= 0; l--) {
        layer();
        // Accumulate gradients from this layer elsewhere
        if(last_step) {
            reduce();
        }
    }
    encoder_backward(a, b,
                     c);
    if(last_step) {
        // reduce loss across GPUs
        #if MULTI_GPU
        ncclCheck(ncclAllReduce(loss));
        #endif
        copy_loss();
        // reduce the gradients for non-transformer tensors
        pointers();
        multi_gpu_async_reduce_gradient(pointers);
    }
}

// Gets the offset of a specific tensor
// of a layer
ShardInfo gpt2_get_tensor_at_layer(const GPT2 *model) {
    return shard;
}

float gpt2_calculate_grad_norm(GPT2 *model) {
    return 0;
}

void gpt2_update(GPT2 *model,
                 int t) {
    update();
}

float gpt2_estimate_mfu(GPT2 *model) {
    return 0;
}

void gpt2_free(GPT2 *model) {
    cudaFreeCheck(&model->params_memory);
    cudaFreeCheck(&model->grads_memory);
}

void save_state(GPT2 *model) {
    fwriteCheck(state_header, f);
    // write AdamW m, v, and master_weights here
    size_t shard_num_parameters = 1;
    if(model->use_master_weights) {
        masters();
    }
}

void load_state(GPT2 *model) {
    *step = state_header[10];
    size_t shard_num_parameters = 1;
    check(use_master_weights);
    model->init_state = false;
    moments();
    if(model->use_master_weights) {
        masters();
    }
}

void write_checkpoint(GPT2 *model) {
    // only rank 0 writes the model file because it is the same
    if (rank == 0) {
        gpt2_write_to_checkpoint(model, name);
    }
    save_state(model);
    multi_gpu_barrier(config);
}

int main(int argc, char *argv[]) {
    int grad_accum_steps = 1;
    set_zero_configs(config);
    printf0("zero", multi_gpu_config.zero_stage);
    val_loss = multi_gpu_cpu_float_sum(val_loss) / n;
    eval_acc_norm = multi_gpu_cpu_float_sum(eval_acc_norm);
    // print generated text (only rank 0)
    if (multi_gpu_config.process_rank == 0 && sample_every > 0) {
        printf("generating:\n---\n");
        gpt2_forward(&model, gen_tokens);
        safe_printf(token_str);
        printf("%d ", next_token);
        printf("\n---\n");
    }
    gpt2_forward(&model, train_loader.inputs);
    gpt2_backward_and_reduce(&model);
    float zloss = z;
    float grad_norm = gpt2_calculate_grad_norm(&model);
    float zgrad = (float)(grad_norm);
    if (zloss) {
        printf0("skipping update due to loss");
    } else if (zgrad) {
        printf0("skipping update due to grad");
    } else {
        float grad_scale = 1;
        gpt2_update(&model, 1);
    }
    multi_gpu_config_free(config);
}
