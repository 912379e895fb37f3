/* parallel.c - a host of llm.c's kind whose matrices are cut over tensor-parallel ranks, of which
   the guide's section 11 quotes: residual blocks x + projw relu(fcw (ln x)), 4 samples a rank.

   ./host_parallel RANKS TP STAGE    rank 0 prints the loss and the norm of each step */
#include "zero_plugin.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

enum { L = 3, C = 16, B = 4, STEPS = 8, MOST = 4 * C };

typedef struct {  /* of this rank's H = 4 C / tp hidden channels */
    float *ln;    /* (L, C) whole */
    float *fcw;   /* (L, H, C) rows of the matrix */
    float *projw; /* (L, C, H) columns */
} Tensors;

typedef struct {
    int ranks, tps, stage;
} Layout;

static zero_ctx *z;
static zero_group *world, *tp, *dp;
static Tensors params, grads;
static float x[L + 1][B][C], h[L][B][MOST], dx[B][C]; /* activations */

static void must(zero_result result) {
    if (!result) return;
    fprintf(stderr, "%s; %s %s %s\n", zero_last_error(z), zero_group_error(world),
            zero_group_error(tp), zero_group_error(dp));
    exit(1);
}

static float value(int kind, int l, int row, int col) {
    const unsigned at = (unsigned)(((kind * L + l) * 64 + row) * 64 + col) * 2654435761u;
    return (float)((at >> 8) % 2001) / 1000 - 1;
}

/* Each rank fills in its part of the whole model. */
static void fill(int H) {
    const int first = zero_group_rank(tp) * H;
    params.ln = malloc(L * C * sizeof(float));
    params.fcw = malloc((size_t)(L * H * C) * sizeof(float));
    params.projw = malloc((size_t)(L * H * C) * sizeof(float));
    for (int l = 0; l < L; l++)
        for (int i = 0; i < C; i++) {
            params.ln[l * C + i] = 1;
            for (int j = 0; j < H; j++) {
                params.fcw[(l * H + j) * C + i] = value(0, l, first + j, i) / 8;
                params.projw[(l * C + i) * H + j] = value(1, l, first + j, i) / 8;
            }
        }
}

static void block_forward(int l, int H) {
    float(*y)[C] = x[l + 1];
    for (int b = 0; b < B; b++)
        for (int j = 0; j < H; j++) {
            float sum = 0;
            for (int i = 0; i < C; i++)
                sum += params.fcw[(l * H + j) * C + i] * params.ln[l * C + i] * x[l][b][i];
            h[l][b][j] = sum > 0 ? sum : 0;
        }
    for (int b = 0; b < B; b++)
        for (int i = 0; i < C; i++) {
            y[b][i] = 0;
            for (int j = 0; j < H; j++) y[b][i] += params.projw[(l * C + i) * H + j] * h[l][b][j];
        }
    must(zero_group_all_reduce(tp, y, B * C, ZERO_F32, ZERO_SUM)); // forward, behind projw
    for (int b = 0; b < B; b++)
        for (int i = 0; i < C; i++) y[b][i] += x[l][b][i];
}

/* dx: of x[l + 1], then of x[l]. */
static void block_backward(int l, int H) {
    float dn[B][C] = {{0}};
    for (int b = 0; b < B; b++)
        for (int j = 0; j < H; j++) {
            float dh = 0;
            for (int i = 0; i < C; i++) {
                grads.projw[(l * C + i) * H + j] += dx[b][i] * h[l][b][j];
                dh += params.projw[(l * C + i) * H + j] * dx[b][i];
            }
            for (int i = 0; i < C && h[l][b][j] > 0; i++) {
                grads.fcw[(l * H + j) * C + i] += dh * params.ln[l * C + i] * x[l][b][i];
                dn[b][i] += dh * params.fcw[(l * H + j) * C + i];
            }
        }
    must(zero_group_all_reduce(tp, dn, B * C, ZERO_F32, ZERO_SUM)); // backward, behind fcw
    for (int b = 0; b < B; b++)
        for (int i = 0; i < C; i++) {
            grads.ln[l * C + i] += dn[b][i] * x[l][b][i];
            dx[b][i] += dn[b][i] * params.ln[l * C + i];
        }
}

/* Ranks of a tensor-parallel group have the same samples: those of their place in dp. */
static double step(int H, int number) {
    double loss = 0;
    for (int b = 0; b < B; b++)
        for (int i = 0; i < C; i++)
            x[0][b][i] = value(2 + number % 2, zero_group_rank(dp) * B + b, i, 0);
    for (int l = 0; l < L; l++) {
        must(zero_forward_begin(z, l, &params));
        block_forward(l, H);
        must(zero_forward_end(z, l));
    }
    for (int b = 0; b < B; b++)
        for (int i = 0; i < C; i++) {
            const float off = x[L][b][i] - x[0][b][(i + 1) % C];
            loss += 0.5 * off * off / (B * C);
            dx[b][i] = off / (B * C);
        }
    for (int l = L - 1; l >= 0; l--) {
        must(zero_backward_begin(z, l, &params, &grads));
        block_backward(l, H);
        must(zero_backward_end(z, l));
    }
    return loss;
}

static int run(const zero_comm *given, void *arg) {
    const Layout *how = arg;
    const zero_comm comm = *given;
    const zero_hyper hyper = {1e-2f, 0.9f, 0.95f, 1e-8f, 0.1f, 1.0f};
    const int rank = comm.rank, tps = how->tps, H = 4 * C / tps;
    zero_config cfg = {.stage = how->stage, .log = zero_log_file};
    must(zero_group_open(&world, &comm, cfg.stream, 0));
    must(zero_group_split(world, rank / tps, 0, &tp)); // ranks 0 1 | 2 3 | ...: colour, then key
    must(zero_group_split(world, rank % tps, 0, &dp)); // ranks 0 2 .. | 1 3 ..
    zero_group_name(tp, "tp");                         // errors say: rank 3 (tp 1, dp 1)
    zero_group_name(dp, "dp");
    const zero_comm data = zero_group_comm(dp);
    cfg.world = world;                  // norm, overflow and skip are agreed over all
    must(zero_create(&z, &cfg, &data)); // shards over dp alone
    const zero_tensor_desc cut[] = {
        ZERO_FIELD(Tensors, fcw, (size_t)(H * C), .layers = L),    // rows of a matrix
        ZERO_FIELD(Tensors, projw, (size_t)(C * H), .layers = L)}; // columns
    const zero_tensor_desc whole[] = {
        ZERO_FIELD(Tensors, ln, C, .layers = L,
                   .flags = ZERO_ONE_D | (zero_group_rank(tp) ? ZERO_COPY : 0))}; // counted once
    must(zero_tensors(z, cut, 2));
    must(zero_tensors(z, whole, 1));
    fill(H);
    must(zero_adopt(z, &params, &grads, ZERO_F32, free));
    for (int i = 0; i < STEPS; i++) {
        zero_step_report report;
        double mean;
        must(zero_train_begin(z));
        must(zero_train_end(z, &hyper, step(H, i), &mean)); // dp's mean, the same in all of tp
        must(zero_step_result(z, &report));
        if (rank == 0) printf("step %d, loss %.9g, norm %.9g\n", i + 1, mean, report.norm);
    }
    zero_destroy(z); // contexts first, then parts, then the whole
    zero_group_close(dp);
    zero_group_close(tp);
    zero_group_close(world);
    return 0;
}

int main(int argc, char **argv) {
    Layout how = {argc > 1 ? atoi(argv[1]) : 2, argc > 2 ? atoi(argv[2]) : 2,
                  argc > 3 ? atoi(argv[3]) : 0};
    if (how.tps < 1 || how.ranks < 1 || how.ranks % how.tps || MOST % how.tps) return 2;
    return zero_run_local(how.ranks, run, &how);
}
