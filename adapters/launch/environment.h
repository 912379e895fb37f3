/* environment.h - finds the launcher that started this process, and its rank, by environment
   variables.

   The first of these that is present counts:
     -pi tcp, -pi fs  the command line (llm.c's flags), which overrides the environment
     torchrun         TORCHELASTIC_RUN_ID with RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT
     mpirun           OMPI_COMM_WORLD_SIZE and _RANK, PMI_SIZE and PMI_RANK; srun --mpi=pmix or pmi2
                      if this build has MPI
     deepspeed ...    RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT, set by any program
     srun             SLURM_STEP_ID with SLURM_PROCID and SLURM_STEP_NUM_TASKS or SLURM_NTASKS.
                      (A batch script has SLURM_PROCID too, but it has no step and is not a rank.)
   A launcher that started only one rank is ignored, so that -pn can start more.

   WHERE RANK 0 LISTENS. Host: MASTER_ADDR, or the first host of the step's node list. Port: the
   variable ZERO_PORT, or MASTER_PORT + 1 (torchrun holds MASTER_PORT itself), or with srun a number
   computed from the numbers of the job and the step. With -pi tcp: -ps and ZERO_PORT, or llm.c's
   port 12345. */
#ifndef LAUNCH_ENVIRONMENT_H
#define LAUNCH_ENVIRONMENT_H

#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef enum environment_kind {
    ENVIRONMENT_NONE = 0, /* no launcher: start the ranks here */
    ENVIRONMENT_MPI,      /* MPI knows the ranks */
    ENVIRONMENT_JOIN      /* ranks that meet at host:port, or in a folder */
} environment_kind;

typedef struct environment {
    environment_kind kind;
    const char *by; /* "by torchrun", "by srun", ...: ends a sentence */
    int rank, nranks;
    int local_rank; /* -1: unknown */
    char host[256]; /* JOIN; "" if a folder is used */
    int port;       /* JOIN */
    char folder[512];
    char job[128]; /* identifies the job: equal on all of its ranks */
} environment;

/* llm.c's flags -pi, -pn, -pr, -pg, -ps and -pf, see launch.h. */
typedef struct environment_call {
    const char *method; /* NULL or "mpi": use the variables */
    int ranks, rank, per_node;
    const char *server, *folder;
    int has_mpi; /* this build has MPI */
} environment_call;

/* Returns 0, or 1 and a sentence if the variables contradict each other. Then e->rank is 0 on the
   rank that should print the sentence, if this is known. */
int environment_read(const environment_call *call, environment *e, char *sentence, size_t bytes);

/* The first host of Slurm's node list: "rack[02-04,9]n1,other" gives "rack02n1". Returns
   0 if the list is empty, or if the name does not fit. */
int environment_first_host(const char *list, char *host, size_t bytes);

/* Returns the name of this machine. A test sets LAUNCH_TEST_HOST to simulate several machines. */
void environment_host_name(char *host, size_t bytes);

#ifdef __cplusplus
}
#endif
#endif
