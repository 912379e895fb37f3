/* bench_ranks.c local RANKS | mpi | many - what it takes that ranks plan, meet, build and step as
   there are more of them: a line of BENCH_COLUMNS behind `csv,`

     local  so many processes of this machine
     mpi    started by mpirun, as many on each host (bench_ranks.sh: network namespaces)
     many   one rank of 64 to 1,024 that are not there, 10,000 tensors, and of 625 to 10,000 tensors
            on 1,024 (growth.h)

   Units are tiny, so that a step is nothing but meeting: 32 of them, at stage 2, each reduced and
   gathered. More ranks than processors share these: the clock then counts all ranks' work, so the
   processor time of one rank stands beside it, and how often it gave its processor away. */
#include "../shared/growth.h"

#include <math.h>
#include <sys/resource.h>
#ifdef ZERO_WITH_MPI
#include <mpi.h>
#endif

enum { RANKS_MOST = 64, RANKS_UNITS = 32, RANKS_NUMEL = 1024, RANKS_STEPS = 20 };
enum { RANKS_PLAN, RANKS_MEET, RANKS_BUILD, RANKS_STEP, RANKS_PHASES };
#define BENCH_COLUMNS                                                                              \
    "where,hosts,ranks,tensors,plan_ms,meet_ms,build_ms,step_ms,plan_cpu_ms,meet_cpu_ms,"          \
    "build_cpu_ms,step_cpu_ms,step_switches"

typedef struct ranks_cost { /* of one rank, then of all: the longest, and the mean */
    double clock[RANKS_PHASES], cpu[RANKS_PHASES], switches;
    int failed;
} ranks_cost;

static double ranks_switches(void) {
    struct rusage u;
    getrusage(RUSAGE_SELF, &u);
    return (double)u.ru_nvcsw;
}

static zero_result ranks_step(zero_ctx *z) {
    const zero_hyper hyper = {1e-3f, 0.9f, 0.95f, 1e-8f, 0.1f, 1.0f};
    float *param, *grad;
    zero_step_report report;
    ZERO_TRY(zero_pass_begin(z, ZERO_TRAIN, 0, 1));
    for (int u = 0; u < RANKS_UNITS; u++) {
        ZERO_TRY(zero_forward_begin(z, u, &param));
        ZERO_TRY(zero_forward_end(z, u));
    }
    for (int u = RANKS_UNITS - 1; u >= 0; u--) {
        ZERO_TRY(zero_backward_begin(z, u, &param, &grad));
        ZERO_TRY(zero_backward_end(z, u));
    }
    ZERO_TRY(zero_pass_end(z));
    ZERO_TRY(zero_reduce(z));
    ZERO_TRY(zero_step(z, &hyper));
    return zero_step_result(z, &report);
}

static zero_result ranks_phase(zero_ctx **z, const zero_config *cfg, const zero_comm *comm,
                               int phase) {
    static const zero_tensor_desc w = {"w", RANKS_NUMEL, .layers = RANKS_UNITS};
    zero_plan plan;
    if (phase == RANKS_MEET) return zero_create(z, cfg, comm);
    if (phase == RANKS_PLAN) {
        ZERO_TRY(zero_tensor(*z, &w));
        return zero_query_plan(*z, &plan);
    }
    if (phase == RANKS_BUILD) return zero_build(*z);
    for (int i = 0; i < RANKS_STEPS; i++) ZERO_TRY(ranks_step(*z));
    return ZERO_OK;
}

/* A rank, from beginning to end. */
static void ranks_body(const zero_comm *comm, ranks_cost *cost) {
    static const int order[] = {RANKS_MEET, RANKS_PLAN, RANKS_BUILD, RANKS_STEP};
    zero_config cfg;
    zero_ctx *z = NULL;
    zero_result r = ZERO_OK;
    memset(&cfg, 0, sizeof cfg);
    cfg.stage = 2;
    cfg.threads = 1;
    cfg.timeout_s = 60;
    for (int i = 0; i < RANKS_PHASES && !r; i++) {
        const int p = order[i], times = p == RANKS_STEP ? RANKS_STEPS : 1;
        const double clock = test_now(), cpu = growth_now(), switches = ranks_switches();
        r = ranks_phase(&z, &cfg, comm, p);
        cost->clock[p] = 1e3 * (test_now() - clock) / times;
        cost->cpu[p] = 1e3 * (growth_now() - cpu) / times;
        cost->switches = (ranks_switches() - switches) / times;
    }
    cost->failed = r != ZERO_OK;
    if (r) fprintf(stderr, "%s\n", zero_last_error(z));
    zero_destroy(z);
}

static int ranks_say(const char *where, int hosts, int n, const ranks_cost *each) {
    ranks_cost all;
    memset(&all, 0, sizeof all);
    for (int r = 0; r < n; r++) {
        for (int p = 0; p < RANKS_PHASES; p++) {
            all.clock[p] = fmax(all.clock[p], each[r].clock[p]);
            all.cpu[p] += each[r].cpu[p] / n;
        }
        all.switches += each[r].switches / n;
        all.failed |= each[r].failed;
    }
    if (all.failed) return 1;
    printf("csv,%s,%d,%d,%d", where, hosts, n, RANKS_UNITS);
    for (int p = 0; p < RANKS_PHASES; p++) printf(",%.3f", all.clock[p]);
    for (int p = 0; p < RANKS_PHASES; p++) printf(",%.3f", all.cpu[p]);
    printf(",%.0f\n", all.switches);
    return 0;
}

static int ranks_local(int n) {
    ranks_cost *each = (ranks_cost *)test_shared((size_t)n * sizeof *each);
    zero_local *local;
    if (zero_local_create(&local, n, 1)) return 1;
    for (int r = 0; r < n; r++) {
        const zero_comm comm = {ZERO_COMM_LOCAL, r, local, 0};
        const pid_t child = fork();
        if (child < 0) return 1;
        each[r].failed = 1;
        if (child) continue;
        ranks_body(&comm, &each[r]);
        _exit(0);
    }
    while (wait(NULL) > 0) {}
    zero_local_destroy(local);
    return ranks_say("local", 1, n, each);
}

#ifdef ZERO_WITH_MPI
static int ranks_mpi(int argc, char **argv) {
    MPI_Comm world = MPI_COMM_WORLD, host;
    ranks_cost mine, *each;
    int level, rank, n, on_host;
    memset(&mine, 0, sizeof mine);
    if (MPI_Init_thread(&argc, &argv, MPI_THREAD_MULTIPLE, &level)) return 1;
    MPI_Comm_rank(world, &rank);
    MPI_Comm_size(world, &n);
    MPI_Comm_split_type(world, MPI_COMM_TYPE_SHARED, rank, MPI_INFO_NULL, &host);
    MPI_Comm_size(host, &on_host);
    MPI_Comm_free(&host);
    const zero_comm comm = {ZERO_COMM_MPI, 0, &world, 0};
    each = (ranks_cost *)calloc((size_t)n, sizeof *each);
    ranks_body(&comm, &mine);
    MPI_Gather(&mine, (int)sizeof mine, MPI_BYTE, each, (int)sizeof mine, MPI_BYTE, 0, world);
    const int code = rank == 0 ? ranks_say("hosts", n / on_host, n, each) : 0;
    free(each);
    MPI_Finalize();
    return code;
}
#endif

/* The least of some measurements. */
static int ranks_least(const growth_case *c, growth_cost *least, int times) {
    for (int i = 0; i < times; i++) {
        growth_cost now;
        if (!growth_measure(c, &now)) return 0;
        for (int p = 0; p < GROWTH_PHASES && i; p++)
            now.seconds[p] = fmin(now.seconds[p], least->seconds[p]);
        *least = now;
    }
    return 1;
}

static int ranks_many(void) {
    int failed = 0;
    for (int i = 0; i < 10 && !failed; i++) {
        const int ranks = i < 5 ? 64 << i : 1024, tensors = i < 5 ? 10000 : 625 << (i - 5);
        const growth_case c = {GROWTH_FIELDS, 3, ranks, tensors, 10, 1000};
        growth_cost cost;
        failed = !ranks_least(&c, &cost, 2);
        const double *s = cost.seconds;
        const double row[] = {s[GROWTH_PLAN], 0, s[GROWTH_ANNOUNCE] + s[GROWTH_BUILD],
                              s[GROWTH_STEP]};
        printf("csv,%s,0,%d,%d", i < 5 ? "many ranks" : "many tensors", ranks, tensors);
        for (int k = 0; k < 8; k++) printf(",%.3f", 1e3 * row[k % 4]);
        printf(",0\n");
    }
    return failed;
}

int main(int argc, char **argv) {
    const int n = argc > 2 ? atoi(argv[2]) : 0;
    if (argc > 1 && strcmp(argv[1], "columns") == 0) return printf("%s\n", BENCH_COLUMNS) < 0;
    if (argc > 1 && strcmp(argv[1], "many") == 0) return ranks_many();
    if (argc > 2 && strcmp(argv[1], "local") == 0 && n > 0 && n <= RANKS_MOST)
        return ranks_local(n);
#ifdef ZERO_WITH_MPI
    if (argc > 1 && strcmp(argv[1], "mpi") == 0) return ranks_mpi(argc, argv);
#endif
    fprintf(stderr, "usage: bench_ranks local RANKS | mpi | many\n");
    return 2;
}
