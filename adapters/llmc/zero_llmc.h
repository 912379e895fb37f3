/* zero_llmc.h - llm.c's model for zero_plugin.h: its 16 tensors, its files, its update.

   Included by zero_fork.h and zero_nccl.h, after the trainer has defined GPT2Config and
   ParameterTensors, and they LLMC_VECTOR: the flags of biases and norms, which decay in some of
   the trainers. One model per process, as the trainer's own globals are.

   UNITS  0: wte (tied: looked up, and again as the classifier) and wpe
          1..L: the blocks
   Kept unsharded (ZERO_KEEP): ln1 of every block, which train_gpt2.cu reads in the block before it,
   and the last norm, which it reads in the last block. They are 0.02 % of the 124M model. */
#ifndef ZERO_LLMC_H
#define ZERO_LLMC_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "zero_plugin.h"

enum { LLMC_TENSORS = 16, LLMC_CHUNK = 1 << 18 };

static zero_ctx *zero;
static zero_config llmc_config; /* set before the model is built */

/* A failed call ends this rank and prints the plugin's sentence, as cudaCheck does with CUDA's. */
#define zeroCheck(call) llmc_check((call), __FILE__, __LINE__)
static inline void llmc_check(zero_result result, const char *file, int line) {
    if (result == ZERO_OK) return;
    const char *sentence = zero_last_error(zero);
    fprintf(stderr, "[ZERO ERROR] at file %s:%d:\n%s\n", file, line,
            *sentence ? sentence : zero_result_string(result));
    exit(EXIT_FAILURE);
}

/* ---- the model ----------------------------------------------------------------------------- */

typedef struct llmc_tensor {
    const char *name;
    size_t numel; /* per layer */
    int layered, flags;
    size_t field;
} llmc_tensor;

/* In the order of llm.c's files. Shapes: ParameterTensors. */
static inline void llmc_describe(GPT2Config config, llmc_tensor table[LLMC_TENSORS]) {
    enum { VECTOR = LLMC_VECTOR, KEPT = VECTOR | ZERO_KEEP };
    const size_t C = (size_t)config.channels;
#define LLMC_TENSOR(name, numel, layered, flags)                                                   \
    { #name, (numel), (layered), (flags), offsetof(ParameterTensors, name) }
    const llmc_tensor all[LLMC_TENSORS] = {
        LLMC_TENSOR(wte, (size_t)config.padded_vocab_size * C, 0, 0),
        LLMC_TENSOR(wpe, (size_t)config.max_seq_len * C, 0, 0),
        LLMC_TENSOR(ln1w, C, 1, KEPT),
        LLMC_TENSOR(ln1b, C, 1, KEPT),
        LLMC_TENSOR(qkvw, 3 * C * C, 1, 0),
        LLMC_TENSOR(qkvb, 3 * C, 1, VECTOR),
        LLMC_TENSOR(attprojw, C * C, 1, 0),
        LLMC_TENSOR(attprojb, C, 1, VECTOR),
        LLMC_TENSOR(ln2w, C, 1, VECTOR),
        LLMC_TENSOR(ln2b, C, 1, VECTOR),
        LLMC_TENSOR(fcw, 4 * C * C, 1, 0),
        LLMC_TENSOR(fcb, 4 * C, 1, VECTOR),
        LLMC_TENSOR(fcprojw, 4 * C * C, 1, 0),
        LLMC_TENSOR(fcprojb, C, 1, VECTOR),
        LLMC_TENSOR(lnfw, C, 0, KEPT),
        LLMC_TENSOR(lnfb, C, 0, KEPT),
    };
#undef LLMC_TENSOR
    memcpy(table, all, sizeof(all));
}

static GPT2Config llmc_model; /* of the context */

/* The context with all tensors, built; parameters are zeros. Returns what the trainer keeps as its
   params_memory: memory that is there, and that it must neither read nor free. */
static inline void *llmc_build(zero_comm comm, GPT2Config config, ParameterTensors *params,
                               ParameterTensors *grads) {
    llmc_tensor table[LLMC_TENSORS];
    llmc_describe(config, table);
    llmc_model = config;
    memset((void *)params, 0, sizeof(*params));
    memset((void *)grads, 0, sizeof(*grads));
    zeroCheck(zero_create(&zero, &llmc_config, &comm));
    for (int i = 0; i < LLMC_TENSORS; i++) {
        const llmc_tensor *t = &table[i];
        zero_tensor_desc desc;
        memset(&desc, 0, sizeof(desc));
        desc.name = t->name;
        desc.numel = t->numel;
        desc.layers = t->layered ? config.num_layers : 1;
        desc.unit = t->layered ? 1 : 0;
        desc.uses = i == 0 ? 2 : 1;
        desc.flags = t->flags;
        desc.field = t->field;
        zeroCheck(zero_tensor(zero, &desc));
    }
    zeroCheck(zero_build(zero));
    zeroCheck(zero_bind(zero, params, grads));
    return params->lnfw;
}

static inline void llmc_destroy(void) {
    zero_destroy(zero);
    zero = NULL;
}

/* ---- whole tensors, to and from llm.c's files ---------------------------------------------- */

static float llmc_values[LLMC_CHUNK];
static uint16_t llmc_short[LLMC_CHUNK];

/* Calls piece(user, name, first, count) for all elements, in the order of llm.c's files. */
typedef void (*llmc_piece)(void *user, const char *name, size_t first, size_t count);
static inline void llmc_for_pieces(llmc_piece piece, void *user) {
    llmc_tensor table[LLMC_TENSORS];
    llmc_describe(llmc_model, table);
    for (int i = 0; i < LLMC_TENSORS; i++) {
        const size_t n = table[i].numel * (size_t)(table[i].layered ? llmc_model.num_layers : 1);
        for (size_t first = 0; first < n; first += LLMC_CHUNK) {
            const size_t left = n - first;
            piece(user, table[i].name, first, left < LLMC_CHUNK ? left : LLMC_CHUNK);
        }
    }
}

typedef struct llmc_source {
    FILE *file;         /* or NULL: */
    const char *memory; /* advances */
    zero_kind kind;
    zero_type type; /* of the source's numbers */
} llmc_source;

static inline void llmc_write_piece(void *user, const char *name, size_t first, size_t count) {
    llmc_source *s = (llmc_source *)user;
    const size_t bytes = count * zero_type_bytes(s->type);
    void *raw = s->type == ZERO_F32 ? (void *)llmc_values : (void *)llmc_short;
    if (s->file) {
        freadCheck(raw, 1, bytes, s->file);
    } else {
        memcpy(raw, s->memory, bytes);
        s->memory += bytes;
    }
    if (raw != (void *)llmc_values) zero_convert(llmc_values, ZERO_F32, raw, s->type, count);
    zeroCheck(zero_write_tensor(zero, name, s->kind, first, count, llmc_values));
}

/* All elements of a kind from `file`, or from memory laid out like it. On every rank. */
static inline void llmc_write(zero_kind kind, zero_type type, FILE *file, const void *memory) {
    llmc_source s = {file, (const char *)memory, kind, type};
    llmc_for_pieces(llmc_write_piece, &s);
}

/* ---- a step -------------------------------------------------------------------------------- */

/* If ZERO_STATS=1 is in the environment, rank 0 prints the statistics so far after each step. */
static inline void llmc_print_stats(void) {
    const char *wanted = getenv("ZERO_STATS");
    zero_plan plan;
    zero_stats stats;
    if (!wanted || *wanted != '1' || zero_rank(zero) != 0) return;
    zeroCheck(zero_query_plan(zero, &plan));
    zeroCheck(zero_query_stats(zero, &stats));
    const size_t planned =
        plan.param_bytes + plan.grad_bytes + plan.optimizer_bytes + plan.buffer_bytes;
    fprintf(stderr, "zero: step %llu hooks_s %.6f formula %zu plan %zu allocated %zu\n",
            (unsigned long long)(stats.steps + stats.skipped), stats.hooks_s, plan.formula_bytes,
            planned, stats.allocated_bytes);
}

/* Runs the update after zero_reduce. Arguments: gpt2_update's without the step number, which the
   plugin counts. An F16 gradient that overflows at the smallest loss scale ends the run here. */
static inline void llmc_step(float lr, float beta1, float beta2, float eps, float decay,
                             float max_norm) {
    const zero_hyper hyper = {lr, beta1, beta2, eps, decay, max_norm};
    zero_step_report report;
    zeroCheck(zero_step(zero, &hyper));
    zeroCheck(zero_step_result(zero, &report));
    llmc_print_stats();
}

/* Sum and mean over ranks, in rank order. */
static inline float llmc_sum(float value) {
    double sum = value;
    zeroCheck(zero_all_sum(zero, &sum, 1));
    return (float)sum;
}
static inline float llmc_mean(float value) {
    double sum = value;
    zeroCheck(zero_all_sum(zero, &sum, 1));
    return (float)(sum / zero_nranks(zero));
}

#endif
