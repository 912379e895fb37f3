/* zero_fork.h - ranks for the two trainers that have none, train_gpt2.c and train_gpt2_fp32.cu.

   They gain two flags, -z STAGE and -pn RANKS: llmc_start, the first thing in main, takes them out
   of the command line, forks, and returns on every rank. Rank 0 has the terminal. The CUDA trainer
   needs a GPU per rank and NCCL. */
#ifndef ZERO_FORK_H
#define ZERO_FORK_H

#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>
#ifdef _OPENMP
#include <omp.h>
#endif
#if defined(__CUDACC__) && defined(ZERO_WITH_NCCL)
#include <nccl.h>
#endif

#define LLMC_VECTOR ZERO_ONE_D /* decays, as all tensors of these two do */
#include "zero_llmc.h"

enum { LLMC_MAX_RANKS = 64 };

static int llmc_rank, llmc_ranks = 1;
static zero_local *llmc_group; /* group of the ranks on the CPU */

#ifndef __CUDACC__
/* train_gpt2.c has no flags of its own: any remaining argument is an error or asks for help. */
static inline void llmc_no_more_flags(const char *found) {
    const int asked = strcmp(found, "--help") == 0 || strcmp(found, "-h") == 0;
    FILE *out = asked ? stdout : stderr;
    if (!asked) fprintf(out, "no flag of train_gpt2_zero: '%s'\n", found);
    fprintf(out,
            "Usage: train_gpt2_zero [-z STAGE] [-pn RANKS]\n"
            "  -z <int>    zero stage, 0..3 (default = 0)\n"
            "  -pn <int>   ranks of this machine, 1..%d (default = 1)\n",
            LLMC_MAX_RANKS);
    exit(asked ? EXIT_SUCCESS : EXIT_FAILURE);
}
#endif

static inline void llmc_usage(const char *what, const char *found) {
    fprintf(stderr, "%s, found '%s'\n", what, found);
    exit(EXIT_FAILURE);
}

/* Returns whether arg is this flag, and stores its value if that is within the limits. */
static inline int llmc_flag(const char *arg, const char *value, const char *flag, int least,
                            int most, int *out) {
    if (strcmp(arg, flag) != 0) return 0;
    char *end = NULL;
    const long n = value ? strtol(value, &end, 10) : -1;
    if (!value || end == value || *end || n < least || n > most) {
        char what[64];
        snprintf(what, sizeof(what), "expected %s %d..%d", flag, least, most);
        llmc_usage(what, value ? value : "nothing");
    }
    *out = (int)n;
    return 1;
}

static inline void llmc_take_flags(int *argc, char **argv) {
    int kept = 1;
    for (int i = 1; i < *argc; i++) {
        const char *value = i + 1 < *argc ? argv[i + 1] : NULL;
        if (llmc_flag(argv[i], value, "-z", 0, 3, &llmc_config.stage)
            || llmc_flag(argv[i], value, "-pn", 1, LLMC_MAX_RANKS, &llmc_ranks))
            i++;
        else
            argv[kept++] = argv[i];
    }
#ifndef __CUDACC__
    if (kept > 1) llmc_no_more_flags(argv[1]);
#endif
    *argc = kept;
    argv[kept] = NULL;
}

#ifdef __CUDACC__
/* Rank 0 passes NCCL's id to the other ranks through shared memory that all inherit. */
typedef struct llmc_meeting {
    volatile int there;
#ifdef ZERO_WITH_NCCL
    ncclUniqueId id;
#endif
} llmc_meeting;
static llmc_meeting *llmc_met;
#ifdef ZERO_WITH_NCCL
static ncclComm_t llmc_nccl;
#endif

static inline void llmc_meet(void) {
#ifndef ZERO_WITH_NCCL
    llmc_usage("-pn above 1 needs NCCL, which this build was made without", "-pn");
#endif
    llmc_met = (llmc_meeting *)mmap(NULL, sizeof(*llmc_met), PROT_READ | PROT_WRITE,
                                    MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if ((void *)llmc_met == MAP_FAILED) llmc_usage("no memory is left", "mmap");
}

/* The GPU of this rank. */
static inline int llmc_device(void) {
    int devices = 0;
    if (cudaGetDeviceCount(&devices) != cudaSuccess || devices < llmc_ranks) {
        fprintf(stderr, "%d ranks need as many GPUs, found %d\n", llmc_ranks, devices);
        exit(EXIT_FAILURE);
    }
    return llmc_rank;
}

static inline zero_comm llmc_comm(void) {
    zero_comm comm = {ZERO_COMM_SELF, 0, NULL, 0};
#ifdef ZERO_WITH_NCCL
    if (llmc_ranks == 1) return comm;
    if (llmc_rank == 0) {
        if (ncclGetUniqueId(&llmc_met->id) != ncclSuccess) llmc_usage("NCCL does not start", "");
        __atomic_store_n(&llmc_met->there, 1, __ATOMIC_RELEASE);
    }
    while (!__atomic_load_n(&llmc_met->there, __ATOMIC_ACQUIRE)) usleep(1000);
    const ncclResult_t r = ncclCommInitRank(&llmc_nccl, llmc_ranks, llmc_met->id, llmc_rank);
    if (r != ncclSuccess) llmc_usage("NCCL brings no communicator", ncclGetErrorString(r));
    comm.kind = ZERO_COMM_NCCL;
    comm.handle = &llmc_nccl;
#endif
    return comm;
}
#else
static inline void llmc_meet(void) {
    if (zero_local_create(&llmc_group, llmc_ranks, 1) != ZERO_OK)
        llmc_usage("no memory is left for the ranks to meet in", "-pn");
}
static inline zero_comm llmc_comm(void) {
    const zero_comm alone = {ZERO_COMM_SELF, 0, NULL, 0};
    const zero_comm local = {ZERO_COMM_LOCAL, llmc_rank, llmc_group, 0};
    return llmc_ranks == 1 ? alone : local;
}
#endif

/* Runs in a child, which ends with its parent, also if that has died before the first line here.
   Ranks above 0 print to a file, shown on failure. */
static inline void llmc_become(int rank, pid_t parent, FILE *output) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent) _exit(EXIT_FAILURE);
    llmc_rank = rank;
    if (output) dup2(fileno(output), STDOUT_FILENO);
#ifdef _OPENMP
    if (!getenv("OMP_NUM_THREADS")) {
        const int share = omp_get_num_procs() / llmc_ranks;
        omp_set_num_threads(share > 1 ? share : 1);
    }
#endif
}

static inline void llmc_show(FILE *output) {
    char line[512];
    if (!output) return;
    rewind(output);
    while (fgets(line, sizeof(line), output)) fputs(line, stderr);
}

/* The parent only waits. When a rank fails, it ends all the others. */
static inline void llmc_watch(const pid_t *pids, FILE *const *output) {
    int code = 0, status;
    for (int left = llmc_ranks; left > 0; left--) {
        const pid_t pid = wait(&status);
        int rank = 0;
        while (rank < llmc_ranks && pids[rank] != pid) rank++;
        if (pid < 0 || (WIFEXITED(status) && WEXITSTATUS(status) == 0) || code) continue;
        code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
        if (rank == llmc_ranks) rank = 0;
        llmc_show(output[rank]);
        fprintf(stderr, "rank %d ended with code %d\n", rank, code);
        for (int r = 0; r < llmc_ranks; r++)
            if (r != rank) kill(pids[r], SIGTERM);
    }
    exit(code);
}

static inline void llmc_start(int *argc, char **argv) {
    pid_t pids[LLMC_MAX_RANKS] = {0};
    FILE *output[LLMC_MAX_RANKS] = {NULL};
    const pid_t parent = getpid();
    llmc_take_flags(argc, argv);
    if (llmc_ranks == 1) return;
    llmc_meet();
    fflush(NULL);
    for (int rank = 0; rank < llmc_ranks; rank++) {
        if (rank > 0 && !(output[rank] = tmpfile())) llmc_usage("no file for output", "tmpfile");
        pids[rank] = fork();
        if (pids[rank] < 0) llmc_usage("a rank cannot be started", "fork");
        if (pids[rank] == 0) {
            llmc_become(rank, parent, output[rank]);
            return;
        }
    }
    llmc_watch(pids, output);
}

/* Replaces the trainer's allocation of parameters and its reading of the file. */
static inline float *llmc_load(ParameterTensors *params, ParameterTensors *grads, GPT2Config config,
                               FILE *file) {
    float *memory = (float *)llmc_build(llmc_comm(), config, params, grads);
    llmc_write(ZERO_PARAMETER, ZERO_F32, file, NULL);
    return memory;
}

/* Replaces freeing the parameters. The context must be destroyed before its communicator. */
static inline void llmc_free(void) {
    llmc_destroy();
#if defined(__CUDACC__) && defined(ZERO_WITH_NCCL)
    if (llmc_ranks > 1) ncclCommDestroy(llmc_nccl);
#endif
}

/* Replaces gpt2_update. The loss becomes its mean over ranks. */
static inline void llmc_update(float *mean_loss, float lr, float beta1, float beta2, float eps,
                               float decay) {
    zeroCheck(zero_reduce(zero));
    llmc_step(lr, beta1, beta2, eps, decay, 0);
    *mean_loss = llmc_mean(*mean_loss);
}

#endif
