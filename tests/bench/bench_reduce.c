/* bench_reduce.c [MEGABYTES...] - one unit's reduce-scatter, two ranks of one thread each: the
   local communicator with processes, the MPI communicator on one host, and
   MPI_Reduce_scatter_block, which take turns in one run (mpirun -np 2). GB/s: the unit's bytes over
   the time until both ranks are done, best of the repetitions. Without MPI, or without mpirun, only
   the first is measured. */
#include "../../zero_plugin.h"

#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
#ifdef ZERO_WITH_MPI
#include <mpi.h>
#endif

#define BENCH_REPEATS 25

typedef struct bench_grads {
    float *unit;
} bench_grads;

static double bench_now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* Other work on the machine only ever adds time, and to MPI's spinning ranks more than to others.
 */
static double bench_best(const double *seconds, int n) {
    double best = seconds[0];
    for (int i = 1; i < n; i++) best = seconds[i] < best ? seconds[i] : best;
    return best;
}

static int bench_repeats(size_t numel) { return numel > 5000000 ? 7 : BENCH_REPEATS; }

static void bench_fill(float *x, size_t n) {
    for (size_t i = 0; i < n; i++) x[i] = (float)(i & 1023) * 0.001f;
}

#define BENCH_TRY(call)                                                                            \
    do {                                                                                           \
        if (call) {                                                                                \
            fprintf(stderr, "%s: %s\n", #call, zero_last_error(z));                                \
            exit(1);                                                                               \
        }                                                                                          \
    } while (0)

/* Without overlap the end of a backward is the reduction, and in the first of two micro-steps
   nothing else. */
static double bench_plugin(const zero_comm *comm, size_t numel) {
    const zero_hyper adamw = {0, 0.9f, 0.95f, 1e-8f, 0, 0};
    double seconds[BENCH_REPEATS];
    zero_tensor_desc unit = {"unit", 0, 1, .uses = 1};
    zero_config cfg = {0};
    zero_ctx *z;
    unit.numel = numel;
    cfg.stage = 2;
    cfg.micro_steps = 2;
    cfg.no_overlap = cfg.threads = 1;
    BENCH_TRY(zero_create(&z, &cfg, comm));
    BENCH_TRY(zero_tensor(z, &unit));
    BENCH_TRY(zero_build(z));
    for (int i = 0; i < bench_repeats(numel); i++) {
        for (int micro = 0; micro < 2; micro++) {
            bench_grads grads = {NULL};
            BENCH_TRY(zero_pass_begin(z, ZERO_TRAIN, micro, 2));
            BENCH_TRY(zero_backward_begin(z, 0, NULL, &grads));
            bench_fill(grads.unit, numel);
            BENCH_TRY(zero_barrier(z));
            const double start = bench_now();
            BENCH_TRY(zero_backward_end(z, 0));
            if (micro == 0) seconds[i] = bench_now() - start;
            BENCH_TRY(zero_pass_end(z));
        }
        BENCH_TRY(zero_reduce(z));
        BENCH_TRY(zero_step(z, &adamw));
    }
    BENCH_TRY(zero_barrier(z));
    zero_destroy(z);
    return bench_best(seconds, bench_repeats(numel));
}

/* mpirun binds its ranks to cores, and the local ranks would share that of rank 0. */
static double bench_local(zero_local *local, int rank, size_t numel) {
    const zero_comm comm = {ZERO_COMM_LOCAL, rank, local, 0};
    cpu_set_t bound, all;
    CPU_ZERO(&all);
    for (int i = 0; i < CPU_SETSIZE; i++) CPU_SET(i, &all);
    (void)sched_getaffinity(0, sizeof bound, &bound);
    (void)sched_setaffinity(0, sizeof all, &all);
    const double seconds = bench_plugin(&comm, numel);
    (void)sched_setaffinity(0, sizeof bound, &bound);
    return seconds;
}

#ifdef ZERO_WITH_MPI
static double bench_mpi(size_t numel) {
    double seconds[BENCH_REPEATS], slowest;
    float *in = (float *)malloc(numel * sizeof *in),
          *out = (float *)malloc(numel / 2 * sizeof *out);
    if (!in || !out) exit(1);
    for (int i = 0; i < bench_repeats(numel); i++) {
        bench_fill(in, numel);
        MPI_Barrier(MPI_COMM_WORLD);
        const double start = bench_now();
        MPI_Reduce_scatter_block(in, out, (int)(numel / 2), MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
        const double mine = bench_now() - start;
        MPI_Allreduce(&mine, &slowest, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
        seconds[i] = slowest;
    }
    free(in);
    free(out);
    return bench_best(seconds, bench_repeats(numel));
}

/* Waits for the other rank without taking a core. */
static void bench_wait(void) {
    MPI_Request request;
    int done = 0;
    MPI_Ibarrier(MPI_COMM_WORLD, &request);
    while (!MPI_Test(&request, &done, MPI_STATUS_IGNORE) && !done) usleep(500);
}
#endif

/* The rank that mpirun gave this process; -1: it was not started by mpirun. */
static int bench_mpirun_rank(void) {
    static const char *const names[] = {"OMPI_COMM_WORLD_RANK", "PMI_RANK", "PMIX_RANK"};
    for (int i = 0; i < 3; i++)
        if (getenv(names[i])) return atoi(getenv(names[i]));
    return -1;
}

int main(int argc, char **argv) {
    static const double usual[] = {1, 3, 10, 28, 75, 150};
    const int nsizes = argc > 1 ? argc - 1 : (int)(sizeof usual / sizeof *usual);
    const int rank = bench_mpirun_rank();
    zero_local *local = NULL;
    pid_t child = -1;
    int status = 0;
    if (rank <= 0) { /* before MPI starts: the child is the second local rank and knows no MPI */
        if (zero_local_create(&local, 2, 1)) return 1;
        child = fork();
    }
#ifdef ZERO_WITH_MPI
    int level = 0, nranks = 1;
    if (child && rank >= 0) {
        MPI_Init_thread(&argc, &argv, MPI_THREAD_MULTIPLE, &level);
        MPI_Comm_size(MPI_COMM_WORLD, &nranks);
    }
#endif
    for (int i = 0; i < nsizes; i++) {
        const double megabytes = argc > 1 ? atof(argv[i + 1]) : usual[i];
        const size_t numel = (size_t)(megabytes * 1e6) / 8 * 2;
        const double bytes = (double)numel * sizeof(float) * 1e-9;
        double seconds = 0;
        if (local) seconds = bench_local(local, child == 0, numel);
        if (child == 0) continue;
        if (rank <= 0) printf("  %6.1f MB  local %6.2f GB/s", megabytes, bytes / seconds);
#ifdef ZERO_WITH_MPI
        if (rank >= 0 && nranks == 2) {
            MPI_Comm world = MPI_COMM_WORLD;
            const zero_comm comm = {ZERO_COMM_MPI, 0, &world, 0};
            bench_wait();
            const double same = bench_plugin(&comm, numel), theirs = bench_mpi(numel);
            if (rank == 0)
                printf("  under MPI %6.2f GB/s  MPI_Reduce_scatter_block %6.2f GB/s  ratio %5.2f",
                       bytes / same, bytes / theirs, theirs / seconds);
        }
#endif
        if (rank <= 0) printf("\n");
        fflush(stdout);
    }
    if (child == 0) _exit(0);
    if (child > 0) (void)waitpid(child, &status, 0);
#ifdef ZERO_WITH_MPI
    if (rank >= 0) MPI_Finalize();
#endif
    zero_local_destroy(local);
    return status != 0;
}
