/* zero_nccl.h - what train_gpt2.cu needs in addition to zero_llmc.h: flags, ranks, checkpoints.

   multi_gpu_config_init still creates its ranks and their ncclComm_t (mpi, tcp or fs). */
#ifndef ZERO_NCCL_H
#define ZERO_NCCL_H

#include <math.h>

#define LLMC_VECTOR (ZERO_NO_DECAY | ZERO_ONE_D)
#include "zero_llmc.h"

static inline void llmc_configure(int stage, int micro_steps, int use_master_weights,
                                  cudaStream_t stream) {
    llmc_config.stage = stage;
    llmc_config.micro_steps = micro_steps;
    llmc_config.type = PRECISION_MODE == PRECISION_FP32   ? ZERO_F32
                       : PRECISION_MODE == PRECISION_FP16 ? ZERO_F16
                                                          : ZERO_BF16;
    llmc_config.grads = ZERO_GRAD_AS_TYPE; /* backward adds to floatX */
    llmc_config.master =
        use_master_weights || llmc_config.type == ZERO_F32 ? ZERO_MASTER_AUTO : ZERO_MASTER_NONE;
    llmc_config.seed = 13371337;
    llmc_config.stream = stream;
}

static inline zero_comm llmc_comm(void) {
    zero_comm comm = {ZERO_COMM_SELF, 0, NULL, 0};
#ifdef MULTI_GPU
    comm.kind = ZERO_COMM_NCCL;
    comm.handle = &multi_gpu_config.nccl_comm;
#endif
    return comm;
}

static inline void llmc_print_plan(void) {
    zero_plan plan;
    zeroCheck(zero_query_plan(zero, &plan));
    printf0(
        "zero stage %d: %zu MiB of parameters, %zu of gradients, %zu of optimizer state, %zu of "
        "buffers\n",
        llmc_config.stage, plan.param_bytes >> 20, plan.grad_bytes >> 20,
        plan.optimizer_bytes >> 20, plan.buffer_bytes >> 20);
}

/* Sums gradients over micro-steps and ranks; returns their norm, the same on every rank. */
static inline float llmc_reduce(void) {
    double norm = 0;
    zeroCheck(zero_reduce(zero));
    zeroCheck(zero_norm(zero, &norm));
    return (float)fabs(norm); /* the sign of a NaN has no meaning */
}

/* Call before multi_gpu_config_free, which destroys the communicator. */
static inline void llmc_free(void) { llmc_destroy(); }

/* ---- checkpoints --------------------------------------------------------------------------- */

static inline void llmc_read_piece(void *user, const char *name, size_t first, size_t count) {
    llmc_source *s = (llmc_source *)user;
    const void *raw = llmc_values;
    zeroCheck(zero_read_tensor(zero, name, s->kind, first, count, llmc_values));
    if (!s->file) return;
    if (s->type != ZERO_F32) {
        zero_convert(llmc_short, s->type, llmc_values, ZERO_F32, count);
        raw = llmc_short;
    }
    fwriteCheck((void *)raw, zero_type_bytes(s->type), count, s->file);
}

/* Reads all elements of a kind. Every rank takes part; ranks that pass a file write to it. */
static inline void llmc_read(zero_kind kind, zero_type type, FILE *file) {
    llmc_source s = {file, NULL, kind, type};
    llmc_for_pieces(llmc_read_piece, &s);
}

/* Moments and master weights are whole in rank 0's state file, at every stage, laid out as llm.c
   has them for one process; the other ranks' files go on with the state of their data. */
static inline void llmc_save_state(FILE *file, int masters) {
    FILE *mine = multi_gpu_config.process_rank == 0 ? file : NULL;
    llmc_read(ZERO_MOMENT_1, ZERO_F32, mine);
    llmc_read(ZERO_MOMENT_2, ZERO_F32, mine);
    if (masters) llmc_read(ZERO_MASTER, ZERO_F32, mine);
}

/* file: this rank's, after its header; its name ends in the rank as "%05d.bin". masters_there: in
   the file; masters: wanted. */
static inline void llmc_load_state(FILE *file, const char *filename, int masters_there,
                                   int masters) {
    enum { HEADER_BYTES = 256 * sizeof(int), RANK_AT_END = 9 };
    FILE *whole = file;
    zero_plan plan;
    zeroCheck(zero_query_plan(zero, &plan));
    if (multi_gpu_config.process_rank > 0) {
        char name[512];
        snprintf(name, sizeof(name), "%.*s00000.bin", (int)strlen(filename) - RANK_AT_END,
                 filename);
        whole = fopenCheck(name, "rb");
        fseekCheck(whole, HEADER_BYTES, SEEK_SET);
    }
    llmc_write(ZERO_MOMENT_1, ZERO_F32, whole, NULL);
    llmc_write(ZERO_MOMENT_2, ZERO_F32, whole, NULL);
    if (masters)
        llmc_write(ZERO_MASTER, ZERO_F32, whole, NULL);
    else if (masters_there && whole == file)
        fseekCheck(file, (long)(plan.numel * sizeof(float)), SEEK_CUR);
    if (whole != file) fcloseCheck(whole);
}

/* What the plugin counts, in a part of the state file's header that llm.c leaves empty; a file of
   llm.c's own has zeros there, and says the number of steps alone. */
static inline void llmc_save_counters(int *header) {
    zero_counters counters;
    zeroCheck(zero_state_begin(zero)); /* after a skipped step they may not have arrived yet */
    zero_state_counters(zero, &counters);
    zeroCheck(zero_state_end(zero, 0));
    memcpy(header, &counters, sizeof(counters));
}
static inline void llmc_load_counters(const int *header, int step) {
    zero_counters counters;
    memcpy(&counters, header, sizeof(counters));
    zeroCheck(zero_state_begin(zero));
    if (counters.steps == 0 && counters.skipped == 0) {
        zero_state_counters(zero, &counters);
        counters.steps = step;
    }
    zeroCheck(zero_state_set_counters(zero, &counters));
    zeroCheck(zero_state_end(zero, 0));
}

#endif
