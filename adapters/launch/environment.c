/* environment.c - see environment.h. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "environment.h"

#include <errno.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { ENVIRONMENT_TCP_PORT = 12345 }; /* the port of llm.c */

/* Keeps the first error as a sentence. */
typedef struct environment_error {
    char *sentence;
    size_t bytes;
    int found;
} environment_error;

__attribute__((format(printf, 2, 3))) static void environment_wrong(environment_error *error,
                                                                    const char *format, ...);
static void environment_wrong(environment_error *error, const char *format, ...) {
    va_list values;
    if (error->found) return;
    error->found = 1;
    va_start(values, format);
    vsnprintf(error->sentence, error->bytes, format, values);
    va_end(values);
}

static int environment_has(const char *name) {
    const char *text = getenv(name);
    return text != NULL && text[0] != 0;
}

/* Returns the whole number of a variable, within least..most, or `missing` if it is not set. */
static int environment_number(const char *name, int least, int most, int missing,
                              environment_error *error) {
    char *end = NULL;
    if (!environment_has(name)) return missing;
    const char *text = getenv(name);
    errno = 0;
    long value = strtol(text, &end, 10);
    if (errno == 0 && end != text && *end == 0 && value >= least && value <= most)
        return (int)value;
    environment_wrong(error, "%s is '%.64s', expected a number from %d to %d", name, text, least,
                      most);
    return missing;
}

static int environment_required(const char *name, int least, int most, const char *by,
                                environment_error *error) {
    if (!environment_has(name))
        environment_wrong(error, "%s is not set; ranks started %s have it in their environment",
                          name, by);
    return environment_number(name, least, most, least, error);
}

/* ---- where rank 0 listens ------------------------------------------------------------------ */

int environment_first_host(const char *list, char *host, size_t bytes) {
    size_t used = 0;
    while (*list && *list != ',') {
        /* takes the first number of a range or list in brackets, digit by digit */
        const int range = *list == '[';
        size_t length = range ? strcspn(++list, "-,]") : strcspn(list, "[,");
        if (used + length >= bytes) return 0;
        memcpy(host + used, list, length);
        used += length;
        list += length;
        if (!range) continue;
        list += strcspn(list, "]");
        if (*list == 0) return 0;
        list++;
    }
    if (used >= bytes) return 0;
    host[used] = 0;
    return used > 0;
}

void environment_host_name(char *host, size_t bytes) {
    const char *fake = getenv("LAUNCH_TEST_HOST");
    if (fake != NULL)
        snprintf(host, bytes, "%s", fake);
    else if (gethostname(host, bytes) != 0)
        snprintf(host, bytes, "localhost");
    host[bytes - 1] = 0;
}

static void environment_port(environment *e, int otherwise, environment_error *error) {
    int master = environment_number("MASTER_PORT", 1, 65535, 0, error);
    int port = environment_number("ZERO_PORT", 1, 65535, 0, error);
    e->port = port > 0 ? port : master > 0 ? master + 1 : otherwise;
    if (e->port > 65535)
        environment_wrong(error, "MASTER_PORT is 65535, and the port after it is needed: set "
                                 "ZERO_PORT to a free one");
}

static void environment_copy(char *to, size_t bytes, const char *from, const char *name,
                             environment_error *error) {
    if (strlen(from) >= bytes)
        environment_wrong(error, "%s is longer than %zu bytes; use a shorter one", name, bytes - 1);
    snprintf(to, bytes, "%s", from);
}

/* ---- launchers ----------------------------------------------------------------------------- */

/* Also needs other variables than RANK, because other programs use this name. */
static int environment_is_torch(void) {
    if (environment_has("WORLD_SIZE")) return strcmp(getenv("WORLD_SIZE"), "1") != 0;
    return environment_has("RANK") && environment_has("MASTER_ADDR");
}

/* Reads the variables of PyTorch, which torchrun and deepspeed set, among others. */
static void environment_torch(environment *e, environment_error *error) {
    const char *run = getenv("TORCHELASTIC_RUN_ID"), *again = getenv("TORCHELASTIC_RESTART_COUNT");
    e->kind = ENVIRONMENT_JOIN;
    e->by = run != NULL ? "by torchrun" : "by RANK and WORLD_SIZE";
    /* decides which process prints if ranks do not know their number */
    e->rank = environment_number("LOCAL_RANK", 0, 1 << 20, 0, error);
    e->nranks = environment_required("WORLD_SIZE", 1, 1 << 20, e->by, error);
    int rank = environment_required("RANK", 0, e->nranks - 1, e->by, error);
    if (!error->found) e->rank = rank;
    if (e->nranks == 1) {
        e->kind = ENVIRONMENT_NONE;
        return;
    }
    e->local_rank = environment_number("LOCAL_RANK", 0, 1 << 20, -1, error);
    if (!environment_has("MASTER_ADDR"))
        environment_wrong(error,
                          "MASTER_ADDR is not set; ranks started %s have it in their "
                          "environment",
                          e->by);
    else
        environment_copy(e->host, sizeof e->host, getenv("MASTER_ADDR"), "MASTER_ADDR", error);
    if (!environment_has("MASTER_PORT") && !environment_has("ZERO_PORT"))
        environment_wrong(error,
                          "MASTER_PORT is not set; ranks started %s have it in their "
                          "environment",
                          e->by);
    environment_port(e, 0, error);
    snprintf(e->job, sizeof e->job, "torch %.90s %.20s", run != NULL ? run : "",
             again != NULL ? again : "0");
}

static void environment_slurm(environment *e, environment_error *error) {
    static const char *const lists[] = {"SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST",
                                        "SLURM_NODELIST"};
    e->local_rank = environment_number("SLURM_LOCALID", 0, 1 << 20, -1, error);
    int job = environment_number("SLURM_JOB_ID", 0, INT32_MAX, 0, error);
    int step = environment_number("SLURM_STEP_ID", 0, INT32_MAX, 0, error);
    if (environment_has("MASTER_ADDR"))
        environment_copy(e->host, sizeof e->host, getenv("MASTER_ADDR"), "MASTER_ADDR", error);
    for (size_t i = 0; i < sizeof lists / sizeof lists[0] && e->host[0] == 0; i++)
        if (environment_has(lists[i])
            && !environment_first_host(getenv(lists[i]), e->host, sizeof e->host))
            environment_wrong(error,
                              "%s is '%.128s', which names no host: set MASTER_ADDR to that "
                              "of rank 0",
                              lists[i], getenv(lists[i]));
    if (e->host[0] == 0)
        environment_wrong(error,
                          "neither MASTER_ADDR nor SLURM_STEP_NODELIST is set; set MASTER_ADDR "
                          "to the host of rank 0");
    /* below the ports that the system assigns, and different for concurrent steps */
    environment_port(e, 20000 + (int)(((unsigned)job * 16u + (unsigned)step) % 12000u), error);
    snprintf(e->job, sizeof e->job, "slurm %d.%d", job, step);
}

/* Returns the number of ranks of this step of a Slurm job, or 0. */
static int environment_slurm_ranks(environment_error *error) {
    if (!environment_has("SLURM_STEP_ID") || !environment_has("SLURM_PROCID")) return 0;
    int tasks = environment_number("SLURM_NTASKS", 1, 1 << 20, 1, error);
    return environment_number("SLURM_STEP_NUM_TASKS", 1, 1 << 20, tasks, error);
}

/* Returns the number of ranks that an MPI launcher started, or 0. */
static int environment_mpi_ranks(int *rank) {
    static const char *const names[][2] = {{"OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK"},
                                           {"PMI_SIZE", "PMI_RANK"}};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        const char *size = getenv(names[i][0]), *mine = getenv(names[i][1]);
        if (size == NULL || atoi(size) < 1) continue;
        *rank = mine != NULL ? atoi(mine) : 0;
        return atoi(size);
    }
    return 0;
}

/* Reads llm.c's -pi tcp and -pi fs. */
static void environment_method(const environment_call *call, environment *e,
                               environment_error *error) {
    const char *server = call->server, *job = getenv("SLURM_JOB_ID"),
               *step = getenv("SLURM_STEP_ID");
    int tcp = strcmp(call->method, "tcp") == 0;
    if (!tcp && strcmp(call->method, "fs") != 0)
        environment_wrong(error, "-pi '%.64s': expected mpi, tcp or fs", call->method);
    e->kind = ENVIRONMENT_JOIN;
    e->by = tcp ? "by -pi tcp" : "by -pi fs";
    e->rank = call->rank;
    e->nranks = call->ranks > 0 ? call->ranks : 1;
    if (e->rank < 0 || e->rank >= e->nranks) {
        environment_wrong(error,
                          "-pr %d: the rank is not below the %d rank%s of -pn; use a smaller one",
                          e->rank, e->nranks, e->nranks > 1 ? "s" : "");
        e->rank = 0; /* the rank that prints the error */
    }
    if (call->per_node > 0) e->local_rank = e->rank % call->per_node;
    if (e->nranks == 1) {
        e->kind = ENVIRONMENT_NONE;
        return;
    }
    if (tcp && (server == NULL || server[0] == 0 || strcmp(server, "-1") == 0))
        environment_wrong(error, "-pi tcp: the address of rank 0 is missing; add -ps HOST");
    if (tcp && server != NULL) environment_copy(e->host, sizeof e->host, server, "-ps", error);
    if (!tcp)
        environment_copy(e->folder, sizeof e->folder,
                         call->folder != NULL && call->folder[0] ? call->folder : "/tmp", "-pf",
                         error);
    int own = environment_number("ZERO_PORT", 1, 65535, 0, error);
    if (tcp)
        e->port = own > 0 ? own : ENVIRONMENT_TCP_PORT;
    else
        e->port = own; /* 0: any free port, which rank 0 writes to the file */
    snprintf(e->job, sizeof e->job, "%s %.40s %.40s", call->method, job != NULL ? job : "0",
             step != NULL ? step : "0");
}

int environment_read(const environment_call *call, environment *e, char *sentence, size_t bytes) {
    environment_error error = {sentence, bytes, 0};
    int rank = 0;
    memset(e, 0, sizeof *e);
    e->by = "";
    e->local_rank = -1;
    e->nranks = 1;
    if (call->method != NULL && strcmp(call->method, "mpi") != 0) {
        environment_method(call, e, &error);
        return error.found;
    }
    int mpi_ranks = environment_mpi_ranks(&rank);
    int step_ranks = environment_slurm_ranks(&error), step_rank = 0;
    if (step_ranks > 1) step_rank = environment_number("SLURM_PROCID", 0, 1 << 20, 0, &error);
    /* An mpirun inside a job starts its daemons by srun, whose numbers are not those of the ranks.
     */
    if (mpi_ranks > 1 && (mpi_ranks != step_ranks || rank != step_rank)) step_ranks = 0;
    if (step_ranks > 1) {
        const int by_mpi = mpi_ranks > 1 || environment_has("PMIX_RANK");
        mpi_ranks = by_mpi && call->has_mpi ? step_ranks : 0; /* otherwise srun is enough */
        rank = step_rank;
    }
    const int torchrun = environment_has("TORCHELASTIC_RUN_ID");
    if (torchrun || (mpi_ranks < 2 && environment_is_torch()))
        environment_torch(e, &error);
    else if (mpi_ranks > 1) {
        e->kind = ENVIRONMENT_MPI;
        e->by = step_ranks > 1 ? "by srun, through MPI" : "by mpirun";
        e->rank = rank;
        e->nranks = mpi_ranks;
    } else if (step_ranks > 1) {
        e->kind = ENVIRONMENT_JOIN;
        e->by = "by srun";
        e->nranks = step_ranks;
        e->rank = rank;
        if (rank >= step_ranks)
            environment_wrong(
                &error, "SLURM_PROCID is %d, but the step has %d tasks; start the ranks with srun",
                rank, step_ranks);
        environment_slurm(e, &error);
    }
    return error.found;
}
