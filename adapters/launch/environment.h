/* environment.h - which launcher started this process, and as which rank, read from its variables.

   Looked at in this order; the first that is there counts:
     -pi tcp, -pi fs  the command line (llm.c's flags), whatever the environment says
     torchrun         TORCHELASTIC_RUN_ID with RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT
     mpirun           OMPI_COMM_WORLD_SIZE and _RANK, PMI_SIZE and PMI_RANK; srun --mpi=pmix or pmi2
                      where this build has MPI
     deepspeed ...    RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT: whoever sets them
     srun             SLURM_STEP_ID with SLURM_PROCID and SLURM_STEP_NUM_TASKS or SLURM_NTASKS.
                      (A batch script has a SLURM_PROCID too, but is no rank: it has no step.)
   A launcher that started one rank only is none: -pn may start more.

   WHERE RANK 0 LISTENS. Host: MASTER_ADDR, or the first host of the step's node list. Port: the
   variable ZERO_PORT, or MASTER_PORT + 1 (torchrun holds MASTER_PORT itself), or by srun a number
   made of the job's and the step's. With -pi tcp: -ps and ZERO_PORT, or llm.c's port 12345. */
#ifndef LAUNCH_ENVIRONMENT_H
#define LAUNCH_ENVIRONMENT_H

#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef enum environment_kind {
    ENVIRONMENT_NONE = 0, /* nobody's: start ranks here */
    ENVIRONMENT_MPI,      /* MPI knows the ranks */
    ENVIRONMENT_JOIN      /* ranks that meet at host:port, or in a folder */
} environment_kind;

typedef struct environment {
    environment_kind kind;
    const char *by; /* "by torchrun", "by srun", ...: ends a sentence */
    int rank, nranks;
    int local_rank; /* -1: not told */
    char host[256]; /* JOIN; "" with a folder */
    int port;       /* JOIN */
    char folder[512];
    char job[128]; /* what ranks of one job have in common, and no other job */
} environment;

/* What the command line says: llm.c's -pi, -pn, -pr, -pg, -ps and -pf, see launch.h. */
typedef struct environment_call {
    const char *method; /* NULL or "mpi": as the variables say */
    int ranks, rank, per_node;
    const char *server, *folder;
    int has_mpi; /* this build has MPI */
} environment_call;

/* Returns 0, or 1 with a sentence where the variables contradict each other; e->rank is then 0 on a
   rank that should say it, as far as can be told. */
int environment_read(const environment_call *call, environment *e, char *sentence, size_t bytes);

/* The first host of Slurm's node list: "rack[02-04,9]n1,other" gives "rack02n1". 0: there is none,
   or it does not fit. */
int environment_first_host(const char *list, char *host, size_t bytes);

/* The name of this machine; LAUNCH_TEST_HOST gives a test several of them. */
void environment_host_name(char *host, size_t bytes);

#ifdef __cplusplus
}
#endif
#endif
