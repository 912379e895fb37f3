/* bench_links.c STAGE MBITS - what of the communication between hosts a step does not hide.
   Started by mpirun with a rank on each of two hosts (see test_hosts.sh). The host's layers sleep
   instead of computing, so that no core is short, and a step's time beyond that of its sleep is
   communication alone. It is held against the least that is possible over a link of MBITS each way
   where nothing may be updated before the norm is known: reductions follow one another behind
   backward, gathers behind the step, and a layer waits for its own.
   Last line: N passed, N failed. */
#include "../zero_plugin.h"

#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

enum { LINKS_LAYERS = 6, LINKS_NUMEL = 1770000, LINKS_STEPS = 7 }; /* 6 layers of 384 channels */
static const double links_forward_s = 0.038; /* of a layer; backward takes twice as long */
static const double links_frames = 1.06;     /* bytes on the cable for a byte of ours */
static const double links_allowed = 1.25;    /* of the least possible */

typedef struct links_tensors {
    float *w;
} links_tensors;

static double links_seconds(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}
static void links_compute(double seconds) {
    struct timespec t;
    t.tv_sec = (time_t)seconds;
    t.tv_nsec = (long)((seconds - (double)t.tv_sec) * 1e9);
    nanosleep(&t, NULL);
}
static int links_compare(const void *a, const void *b) {
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}
static double links_later(double a, double b) { return a > b ? a : b; }

/* Seconds of a step over a link that sends half a unit each way in `unit` seconds. Stage 0 gathers
   gradients, behind their reduction; stages 1 and 2 parameters, ahead of forward; stage 3 those of
   all layers but the last for backward again. */
static double links_least(int stage, double unit) {
    double gathered = 0, now = 0, reduced = 0;
    for (int l = 0; l < LINKS_LAYERS; l++) {
        gathered += stage > 0 ? unit : 0;
        now = links_later(now, gathered) + links_forward_s;
    }
    const double turned = now;
    for (int l = 0; l < LINKS_LAYERS; l++) {
        now += 2 * links_forward_s;
        reduced = links_later(now, reduced) + (stage > 0 ? unit : 2 * unit);
    }
    return stage < 3 ? reduced : links_later(reduced, turned + (2 * LINKS_LAYERS - 1) * unit);
}

static void links_do(zero_ctx *z, zero_result r) {
    if (!r) return;
    fprintf(stderr, "%s\n", zero_last_error(z));
    exit(1);
}
static double links_step(zero_ctx *z) {
    const zero_hyper hyper = {1e-3f, 0.9f, 0.95f, 1e-8f, 0.1f, 1.0f};
    const double start = links_seconds();
    links_tensors params, grads;
    links_do(z, zero_pass_begin(z, ZERO_TRAIN, 0, 1));
    for (int l = 0; l < LINKS_LAYERS; l++) {
        links_do(z, zero_forward_begin(z, l, &params));
        links_compute(links_forward_s);
        links_do(z, zero_forward_end(z, l));
    }
    for (int l = LINKS_LAYERS - 1; l >= 0; l--) {
        links_do(z, zero_backward_begin(z, l, &params, &grads));
        links_compute(2 * links_forward_s);
        links_do(z, zero_backward_end(z, l));
    }
    links_do(z, zero_pass_end(z));
    links_do(z, zero_reduce(z));
    links_do(z, zero_step(z, &hyper));
    return links_seconds() - start;
}

int main(int argc, char **argv) {
    MPI_Comm world = MPI_COMM_WORLD;
    zero_comm comm = {ZERO_COMM_MPI, 0, &world, 0};
    zero_config cfg = {0};
    zero_tensor_desc w = {"w", LINKS_NUMEL, LINKS_LAYERS, 0, 0, 0, 0};
    zero_ctx *z;
    int level, rank, ranks;
    double seconds[LINKS_STEPS];
    if (argc < 3 || MPI_Init_thread(&argc, &argv, MPI_THREAD_MULTIPLE, &level)) return 2;
    MPI_Comm_rank(world, &rank);
    MPI_Comm_size(world, &ranks);
    cfg.stage = atoi(argv[1]);
    cfg.threads = 1;
    if (zero_create(&z, &cfg, &comm)) return 2;
    links_do(z, zero_tensor(z, &w));
    links_do(z, zero_build(z));
    (void)links_step(z); /* the first waits for no gather */
    for (int s = 0; s < LINKS_STEPS; s++) seconds[s] = links_step(z);
    qsort(seconds, LINKS_STEPS, sizeof *seconds, links_compare);
    const double unit = LINKS_NUMEL * 4.0 / ranks * links_frames / (atof(argv[2]) * 1e6 / 8);
    const double step = seconds[LINKS_STEPS / 2], least = links_least(cfg.stage, unit);
    const int slow = step > links_allowed * least;
    if (rank == 0)
        printf("stage %d, %s Mbit/s: computing %.0f ms, step %.0f ms, at least %.0f: %.2f of it\n"
               "%d passed, %d failed\n",
               cfg.stage, argv[2], 3e3 * LINKS_LAYERS * links_forward_s, 1e3 * step, 1e3 * least,
               step / least, !slow, slow);
    zero_destroy(z);
    MPI_Finalize();
    return slow;
}
