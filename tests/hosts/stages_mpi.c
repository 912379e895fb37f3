/* stages_mpi.c - a program that has MPI, and communicators of its own, hands them over: two stages
   of a pipeline, of which the guide's section 11 quotes. Stage 0 has w of h = w x, stage 1 that of
   y = w h; with one rank both are one after the other.

   mpirun -n 1|2|4 ./host_stages_mpi STAGE    rank 0 prints the loss and the norm of each step */
#include "zero_plugin.h"

#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>

enum {
    C = 24,
    B = 3,
    M = 4,
    STEPS = 8
}; /* width; samples of a micro-batch, of which a step has M */

typedef struct {
    float *w; /* (layers, C, C) */
} Tensors;

static zero_ctx *z;
static zero_group *pair, *all;
static Tensors params, grads;

static void must(zero_result result) {
    if (!result) return;
    fprintf(stderr, "%s %s %s\n", zero_last_error(z), zero_group_error(pair),
            zero_group_error(all));
    MPI_Abort(MPI_COMM_WORLD, 1);
}

static float value(int kind, int row, int col) {
    const unsigned at = (unsigned)((kind * 64 + row) * 64 + col) * 2654435761u;
    return (float)((at >> 8) % 2001) / 1000 - 1;
}

static void forward(int unit, float in[B][C], float out[B][C]) {
    must(zero_forward_begin(z, unit, &params));
    const float *w = params.w + unit * C * C;
    for (int b = 0; b < B; b++)
        for (int i = 0; i < C; i++) {
            out[b][i] = 0;
            for (int j = 0; j < C; j++) out[b][i] += w[i * C + j] * in[b][j];
        }
    must(zero_forward_end(z, unit));
}

/* d: of what came out; becomes that of what went in. */
static void backward(int unit, float in[B][C], float d[B][C]) {
    float din[B][C] = {{0}};
    must(zero_backward_begin(z, unit, &params, &grads));
    const float *w = params.w + unit * C * C;
    float *dw = grads.w + unit * C * C;
    for (int b = 0; b < B; b++)
        for (int i = 0; i < C; i++)
            for (int j = 0; j < C; j++) {
                dw[i * C + j] += d[b][i] * in[b][j];
                din[b][j] += d[b][i] * w[i * C + j];
            }
    must(zero_backward_end(z, unit));
    for (int b = 0; b < B; b++)
        for (int j = 0; j < C; j++) d[b][j] = din[b][j];
}

/* A micro-batch: y should be x, turned by one place. Returns its loss, where y is known. */
static double micro_batch(int stages, int stage, int sample) {
    float x[B][C], hidden[B][C], d[B][C] = {{0}};
    double loss = 0;
    for (int b = 0; b < B; b++)
        for (int i = 0; i < C; i++) x[b][i] = value(2, sample + b, i);
    if (stage == 0) forward(0, x, hidden);
    if (stages > 1 && stage == 0) must(zero_group_send(pair, hidden, sizeof hidden, 1));
    if (stages > 1 && stage == 1) must(zero_group_receive(pair, hidden, sizeof hidden, 0));
    if (stage == stages - 1) {
        float y[B][C];
        const int unit = stages > 1 ? 0 : 1;
        forward(unit, hidden, y);
        for (int b = 0; b < B; b++)
            for (int i = 0; i < C; i++) {
                d[b][i] = (y[b][i] - x[b][(i + 1) % C]) / (B * C * M);
                loss += 0.5 * d[b][i] * d[b][i] * (B * C * M);
            }
        backward(unit, hidden, d);
    }
    if (stages > 1 && stage == 1) must(zero_group_send(pair, d, sizeof d, 0));
    if (stages > 1 && stage == 0) must(zero_group_receive(pair, d, sizeof d, 1));
    if (stage == 0) backward(0, x, d);
    return loss;
}

int main(int argc, char **argv) {
    const zero_hyper hyper = {1e-2f, 0.9f, 0.95f, 1e-8f, 0.1f, 1.0f};
    int level, rank, n;
    MPI_Comm my_world, my_pair, my_data; /* the program's own */
    MPI_Init_thread(&argc, &argv, MPI_THREAD_MULTIPLE, &level);
    MPI_Comm_dup(MPI_COMM_WORLD, &my_world);
    MPI_Comm_rank(my_world, &rank);
    MPI_Comm_size(my_world, &n);
    const int stages = n % 2 ? 1 : 2, pipes = n / stages, stage = rank / pipes, pipe = rank % pipes;
    MPI_Comm_split(my_world, pipe, stage, &my_pair);
    MPI_Comm_split(my_world, stage, pipe, &my_data);
    const int unit[] = {stage, 1}; /* in the whole model */
    const zero_comm whole = {ZERO_COMM_MPI, 0, &my_world, 0};
    const zero_comm line = {ZERO_COMM_MPI, 0, &my_pair, 0}; // of your MPI_Comm_split
    const zero_comm data = {ZERO_COMM_MPI, 0, &my_data, 0};
    must(zero_group_open(&all, &whole, NULL, 60)); // 60 s: the longest wait for a peer
    must(zero_group_open(&pair, &line, NULL, 60));
    zero_config cfg = {.stage = argc > 1 ? atoi(argv[1]) : 0, .micro_steps = M};
    cfg.accumulation = ZERO_ACCUMULATE_LOCAL; // micro-batches add up where they lie
    cfg.world = all;
    cfg.world_units = 2;
    cfg.world_unit = unit;
    must(zero_create(&z, &cfg, &data));
    const zero_tensor_desc w = {"w", C * C, 3 - stages, .uses = 1, .field = offsetof(Tensors, w)};
    must(zero_tensor(z, &w));
    must(zero_build(z));
    for (int i = 0; i < (3 - stages) * C; i++) {
        float row[C];
        for (int j = 0; j < C; j++) row[j] = value((stage * C + i) / C, i % C, j) / 8;
        must(zero_write_tensor(z, "w", ZERO_PARAMETER, (size_t)(i * C), C, row));
    }
    for (int step = 0; step < STEPS; step++) {
        zero_step_report report;
        double loss = 0;
        must(zero_pass_begin(z, ZERO_TRAIN, ZERO_TOGETHER, M)); // one pass for all of them
        for (int m = 0; m < M; m++) loss += micro_batch(stages, stage, (m * pipes + pipe) * B);
        must(zero_pass_end(z));
        must(zero_reduce(z));
        must(zero_step(z, &hyper));
        must(zero_step_result(z, &report));
        must(zero_group_all_reduce(all, &loss, 1, ZERO_F64, ZERO_SUM)); // the last stage has it
        if (rank == 0)
            printf("step %d, loss %.9g, norm %.9g\n", step + 1, loss / pipes, report.norm);
    }
    zero_destroy(z);
    zero_group_close(pair);
    zero_group_close(all);
    MPI_Comm_free(&my_data);
    MPI_Comm_free(&my_pair);
    MPI_Comm_free(&my_world);
    MPI_Finalize();
    return 0;
}
