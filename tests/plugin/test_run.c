/* test_run.c - zero_run_local and zero_start_local: ranks that end well, that fail, that are killed
   or hang; signals, processors, what was printed before, what is told. Against the header alone. */
#include "../shared/harness.h"

#include <omp.h>
#include <sched.h>
#include <signal.h>
#include <sys/resource.h>

enum { RANKS = 3 };

typedef struct run_note { /* in shared memory */
    int ends[RANKS];      /* what each rank's fn returns */
    int dies, hangs;      /* a rank that kills itself, that ignores SIGTERM; -1: none */
    int waits;            /* ranks wait for a signal */
    int caught[RANKS], processors[RANKS], threads[RANKS];
    cpu_set_t mine[RANKS];
    zero_result result[RANKS];
    char why[RANKS][256];
    pid_t process[RANKS];
    int runs; /* ranks that have come this far */
    int sentences;
    char said[512]; /* the last one that zero_start_local logged */
} run_note;
static run_note *run_noted;
static volatile sig_atomic_t run_caught;

static void run_catch(int number) { run_caught = number; }

/* Trains a little: `steps` barriers stand for the collectives of a training. */
static int run_rank(const zero_comm *comm, void *arg) {
    run_note *n = (run_note *)arg;
    const int rank = comm->rank;
    const zero_tensor_desc d = {"w", 100, .layers = 2};
    zero_config cfg = {0}, got;
    zero_ctx *z;
    cfg.stage = 2;
    signal(SIGUSR1, run_catch);
    if (zero_create(&z, &cfg, comm) || zero_tensor(z, &d) || zero_build(z)) return 99;
    zero_query_config(z, &got);
    n->threads[rank] = got.threads;
    sched_getaffinity(0, sizeof n->mine[rank], &n->mine[rank]);
    n->processors[rank] = CPU_COUNT(&n->mine[rank]);
    n->process[rank] = getpid();
    __atomic_add_fetch(&n->runs, 1, __ATOMIC_RELEASE);
    while (n->waits && !run_caught) usleep(1000);
    n->caught[rank] = run_caught;
    if (n->dies == rank) kill(getpid(), SIGKILL);
    if (n->hangs == rank) {
        signal(SIGTERM, SIG_IGN);
        for (;;) pause();
    }
    const int fails = n->dies >= 0 || n->hangs >= 0;
    for (int i = 0; i < (fails ? 1000000 : 10) && !n->result[rank]; i++)
        n->result[rank] = n->ends[rank] ? ZERO_ERR_ARGUMENT : zero_barrier(z);
    snprintf(n->why[rank], sizeof n->why[rank], "%s", zero_last_error(z));
    zero_destroy(z);
    return n->ends[rank] ? n->ends[rank] : (int)n->result[rank];
}

static run_note *run_fresh(void) {
    memset(run_noted, 0, sizeof *run_noted);
    run_noted->dies = run_noted->hangs = -1;
    return run_noted;
}

static void run_well(void) {
    run_note *n = run_fresh();
    cpu_set_t all, seen;
    sched_getaffinity(0, sizeof all, &all);
    const int code = zero_run_local(RANKS, run_rank, n);
    test_check(code == 0, "three ranks that end well: %d", code);
    for (int r = 0; r < RANKS; r++) test_check(!n->result[r], "rank %d: %s", r, n->why[r]);
    /* each on its part of the processors, where there are enough */
    const int each = CPU_COUNT(&all) >= RANKS ? CPU_COUNT(&all) / RANKS : CPU_COUNT(&all);
    CPU_ZERO(&seen);
    for (int r = 0; r < RANKS; r++) {
        test_check(n->processors[r] == each, "rank %d has %d processors of %d", r, n->processors[r],
                   CPU_COUNT(&all));
        test_check(n->threads[r] == (CPU_COUNT(&all) >= RANKS ? each : 1), "rank %d: %d threads", r,
                   n->threads[r]);
        CPU_AND(&seen, &n->mine[r], &n->mine[(r + 1) % RANKS]);
        test_check(CPU_COUNT(&all) < RANKS || CPU_COUNT(&seen) == 0, "rank %d shares processors",
                   r);
    }
}

/* Two ranks have a processor each where there are two. */
static void run_apart(void) {
    run_note *n = run_fresh();
    cpu_set_t all, both;
    sched_getaffinity(0, sizeof all, &all);
    test_check(zero_run_local(2, run_rank, n) == 0, "two ranks");
    CPU_AND(&both, &n->mine[0], &n->mine[1]);
    if (CPU_COUNT(&all) < 2) return;
    test_check(n->processors[0] == CPU_COUNT(&all) / 2 && CPU_COUNT(&both) == 0,
               "%d and %d processors, %d of them shared", n->processors[0], n->processors[1],
               CPU_COUNT(&both));
    CPU_XOR(&both, &n->mine[0], &all);
    sched_getaffinity(0, sizeof both, &both);
    test_check(CPU_EQUAL(&both, &all), "the parent keeps its processors");
}

static void run_fails(void) {
    run_note *n = run_fresh();
    n->ends[1] = 7;
    n->hangs = RANKS; /* nobody; the others go on until they are told */
    const double start = test_now();
    const int code = zero_run_local(RANKS, run_rank, n);
    test_check(code == 7 && test_now() - start < 8, "rank 1 returns 7: %d after %.1f s", code,
               test_now() - start);
    for (int r = 0; r < RANKS; r += 2)
        test_check(n->result[r] == ZERO_ERR_PEER, "rank %d: %s", r, n->why[r]);
}

static void run_dies(void) {
    run_note *n = run_fresh();
    n->dies = 2;
    const double start = test_now();
    const int code = zero_run_local(RANKS, run_rank, n);
    test_check(code == 128 + SIGKILL && test_now() - start < 8, "rank 2 is killed: %d after %.1f s",
               code, test_now() - start);
    for (int r = 0; r < 2; r++)
        test_check(n->result[r] == ZERO_ERR_PEER
                       && strstr(n->why[r], "rank 2 was ended by signal 9 (Killed)"),
                   "rank %d: %s", r, n->why[r]);
}

/* A rank that no error reaches, and SIGTERM neither. */
static void run_hangs(void) {
    run_note *n = run_fresh();
    n->hangs = 0;
    n->dies = 1;
    const double start = test_now();
    const int code = zero_run_local(RANKS, run_rank, n);
    const double took = test_now() - start;
    test_check(code == 128 + SIGKILL && took > 5 && took < 20, "rank 0 hangs: %d after %.1f s",
               code, took);
    test_check(kill(n->process[0], 0) != 0, "rank 0 is still there");
}

/* A signal to the parent alone reaches every rank, and the parent's own handlers are back then. */
static void run_signals(void) {
    run_note *n = run_fresh();
    sigset_t now;
    n->waits = 1;
    signal(SIGUSR1, SIG_IGN);
    const pid_t sender = fork();
    if (sender == 0) {
        while (__atomic_load_n(&n->runs, __ATOMIC_ACQUIRE) < RANKS) usleep(1000);
        kill(getppid(), SIGUSR1);
        _exit(0);
    }
    signal(SIGCHLD, SIG_IGN);
    const int code = zero_run_local(RANKS, run_rank, n);
    test_check(code == 0, "ranks that wait for a signal: %d", code);
    for (int r = 0; r < RANKS; r++) test_check(n->caught[r] == SIGUSR1, "rank %d: no signal", r);
    sigprocmask(SIG_SETMASK, NULL, &now);
    test_check(!sigismember(&now, SIGCHLD) && !sigismember(&now, SIGUSR1), "the mask is back");
    test_check(signal(SIGCHLD, SIG_DFL) == SIG_IGN, "SIGCHLD is ignored again");
    signal(SIGUSR1, SIG_DFL);
    waitpid(sender, NULL, 0);
}

static void run_log(void *note, zero_log_level level, const char *sentence) {
    run_note *n = (run_note *)note;
    if (level != ZERO_LOG_ERROR) return;
    __atomic_add_fetch(&n->sentences, 1, __ATOMIC_RELAXED);
    snprintf(n->said, sizeof n->said, "%s", sentence);
}

/* Two units; a rank that dies has called the hooks of the second alone. */
static void run_builds(zero_ctx *z, int dies) {
    static void *slot[2];
    for (int t = 0; t < 2; t++) {
        const zero_tensor_desc d = {NULL, 8, 1, .unit = t, .param = &slot[t]};
        if (zero_tensor(z, &d)) exit(97);
    }
    if (zero_build(z)) exit(97);
    if (!dies) return;
    if (zero_pass_begin(z, ZERO_EVAL, 0, 1) || zero_forward_begin(z, 1, NULL)
        || zero_forward_end(z, 1))
        exit(97);
    raise(SIGSEGV);
}

/* What a main does whose ranks are the rest of it. dies: a rank, or RANKS: all. */
static int run_main(run_note *n, int nranks, int stage) {
    const zero_config cfg = {.stage = stage, .threads = 1, .log = run_log, .log_user = n};
    const int before = 41;
    zero_ctx *z = (zero_ctx *)n;
    const int ended = zero_start_local(&z, &cfg, nranks);
    if (ended >= 0) return z ? 98 : ended;
    const int rank = zero_rank(z);
    n->process[rank] = getpid();
    n->caught[rank] = signal(SIGCHLD, SIG_DFL) == SIG_IGN;
    __atomic_add_fetch(&n->runs, before - 40, __ATOMIC_RELEASE);
    if (n->dies == RANKS + 1) run_builds(z, rank == 1);
    if (n->dies == rank || n->dies == RANKS) raise(SIGSEGV);
    n->result[rank] = n->ends[rank] ? ZERO_ERR_ARGUMENT : zero_barrier(z);
    snprintf(n->why[rank], sizeof n->why[rank], "%s", zero_last_error(z));
    zero_destroy(z);
    return n->ends[rank];
}
static int run_started(run_note *n, int nranks, int stage) {
    int status = 0;
    n->sentences = 0;
    const pid_t process = fork();
    if (process == 0) {
        signal(SIGSEGV, SIG_DFL); /* a sanitizer's word is not wanted */
        signal(SIGCHLD, SIG_IGN);
        _exit(run_main(n, nranks, stage));
    }
    waitpid(process, &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

static void *run_idle(void *stop) {
    while (!__atomic_load_n((int *)stop, __ATOMIC_ACQUIRE)) usleep(1000);
    return NULL;
}
/* A process with other threads cannot be forked, but be a single rank. */
static void run_threads(void) {
    run_note *n = run_fresh();
    pthread_t thread;
    int stop = 0;
    pthread_create(&thread, NULL, run_idle, &stop);
    test_check(zero_run_local(2, run_rank, n) == 126 && !n->runs, "forked with a second thread");
    test_check(run_main(n, 2, 1) == 126 && strstr(n->said, "other threads"), "%s", n->said);
    test_check(run_main(n, 1, 1) == 0 && n->process[0] == getpid(), "one rank of a main");
    test_check(zero_run_local(1, run_rank, n) == 0 && n->process[0] == getpid(), "one rank");
    __atomic_store_n(&stop, 1, __ATOMIC_RELEASE);
    pthread_join(thread, NULL);
}

/* A library that makes a thread when it is loaded, and ends it before a fork, as OpenBLAS does. */
static pthread_t run_helper;
static int run_helper_stop;
static void run_helper_end(void) {
    if (!run_helper) return;
    __atomic_store_n(&run_helper_stop, 1, __ATOMIC_RELEASE);
    pthread_join(run_helper, NULL);
    run_helper = 0;
}
static void run_libraries(void) {
    run_note *n = run_fresh();
    pthread_atfork(run_helper_end, NULL, NULL);
    pthread_create(&run_helper, NULL, run_idle, &run_helper_stop);
    const pid_t parent = getpid();
    const int code = run_main(n, 2, 1);
    if (getpid() != parent) _exit(code); /* a rank, whose main this is */
    test_check(code == 0 && n->runs == 2, "beside such a library: %s", n->said);
}

/* The parent is killed: no rank stays. */
static void run_orphans(void) {
    run_note *n = run_fresh();
    const pid_t parent = fork();
    n->waits = 1;
    if (parent == 0) _exit(zero_run_local(RANKS, run_rank, n));
    while (__atomic_load_n(&n->runs, __ATOMIC_ACQUIRE) < RANKS) usleep(1000);
    kill(parent, SIGKILL);
    waitpid(parent, NULL, 0);
    int left = RANKS;
    for (const double end = test_now() + 10; left && test_now() < end; usleep(1000)) {
        left = 0;
        for (int r = 0; r < RANKS; r++) {
            char path[64], state = 'X';
            snprintf(path, sizeof path, "/proc/%d/stat", (int)n->process[r]);
            FILE *f = fopen(path, "r");
            if (f && fscanf(f, "%*d %*s %c", &state) != 1) state = 'X';
            if (f) fclose(f);
            left += state != 'X' && state != 'Z';
        }
    }
    test_check(left == 0, "%d ranks without a parent", left);
}

static int run_prints(const zero_comm *comm, void *arg) {
    fprintf((FILE *)arg, "rank %d\n", comm->rank);
    return 0;
}
/* What the parent has printed and not written yet is there once. */
static void run_flushes(void) {
    char text[256];
    FILE *f = tmpfile();
    fprintf(f, "parent\n");
    test_check(zero_run_local(2, run_prints, f) == 0, "ranks that print");
    rewind(f);
    const size_t n = fread(text, 1, sizeof text - 1, f);
    text[n] = 0;
    fclose(f);
    const char *once = strstr(text, "parent\n");
    test_check(once == text && !strstr(once + 1, "parent") && strstr(text, "rank 0\n")
                   && strstr(text, "rank 1\n"),
               "what was printed: %s", text);
}

static int run_never(const zero_comm *comm, void *arg) { return arg || comm ? 5 : 6; }
/* There is no memory to meet in. */
static void run_without_memory(void) {
    struct rlimit was;
    (void)getrlimit(RLIMIT_AS, &was);
    const struct rlimit none = {0, was.rlim_max};
    for (int ranks = 1; ranks < 3; ranks++) {
        (void)setrlimit(RLIMIT_AS, &none);
        const int code = zero_run_local(ranks, run_never, NULL);
        (void)setrlimit(RLIMIT_AS, &was);
        test_check(code == 126, "%d ranks without memory: %d", ranks, code);
    }
}

static void run_starts(void) {
    run_note *n = run_fresh();
    test_check(run_started(n, RANKS, 1) == 0 && n->runs == RANKS, "%d ranks of a main", n->runs);
    for (int r = 0; r < RANKS; r++)
        test_check(!n->result[r] && n->caught[r] && n->process[r] != n->process[(r + 1) % RANKS],
                   "rank %d: %s", r, n->why[r]);
    n = run_fresh();
    test_check(run_started(n, 1, 1) == 0 && n->runs == 1 && !n->sentences, "one rank: %s", n->said);
    n = run_fresh();
    n->ends[1] = 7;
    test_check(run_started(n, RANKS, 1) == 7 && strstr(n->why[0], "rank 1"), "rank 1 returns 7: %s",
               n->why[0]);
    n = run_fresh();
    n->dies = 1;
    test_check(run_started(n, RANKS, 1) == 128 + SIGSEGV, "rank 1 dies");
    for (int r = 0; r < RANKS; r += 2)
        test_check(strstr(n->why[r], "rank 1 was ended by signal 11 (Segmentation fault), its last "
                                     "call was zero_create")
                       != NULL,
                   "rank %d: %s", r, n->why[r]);
    n = run_fresh();
    n->dies = RANKS + 1;
    test_check(run_started(n, RANKS, 1) == 128 + SIGSEGV
                   && strstr(n->why[0], "its last call was zero_forward_end of unit 1"),
               "rank 1 dies after a hook: %s", n->why[0]);
    n = run_fresh();
    n->dies = RANKS;
    test_check(run_started(n, RANKS, 1) == 128 + SIGSEGV && n->sentences == 1
                   && strstr(n->said, "was ended by signal 11 (Segmentation fault)"),
               "all die: %d sentences, %s", n->sentences, n->said);
    n = run_fresh();
    test_check(run_started(n, 2, 4) == ZERO_ERR_ARGUMENT && !n->runs
                   && strstr(n->said, "stage is 4"),
               "no such stage: %s", n->said);
    test_check(run_started(n, 1, 4) == ZERO_ERR_ARGUMENT, "one rank at no such stage");
    test_check(run_started(n, 65, 1) == 126 && strstr(n->said, "65 ranks, expected 1..64"),
               "too many ranks: %s", n->said);
    const zero_config cfg = {0};
    zero_ctx *z;
    test_check(zero_start_local(NULL, &cfg, 1) == 126 && zero_start_local(&z, NULL, 1) == 126,
               "no context, no configuration");
}

/* A child that is forked after zero_create, as a data loader's, destroys what it inherited: that
   returns, and its parent goes on. */
static void run_forks_later(void) {
    const zero_tensor_desc d = {.name = "w", .numel = 100};
    const zero_comm self = {ZERO_COMM_SELF, 0, NULL, 0};
    const zero_config cfg = {0};
    zero_ctx *z = NULL;
    zero_group *g = NULL;
    float w[100] = {1};
    int status = -1;
    const zero_result e = zero_create(&z, &cfg, &self);
    test_check(!e && !zero_tensor(z, &d) && !zero_build(z) && !zero_group_open(&g, &self, NULL, 0),
               "a context: %s", zero_last_error(z));
    const pid_t child = fork();
    if (child == 0) {
        (void)alarm(5);
        zero_destroy(z);
        zero_group_close(g);
        _exit(7);
    }
    (void)waitpid(child, &status, 0);
    test_check(WIFEXITED(status) && WEXITSTATUS(status) == 7, "a child ends with %d", status);
    test_check(!zero_write_tensor(z, "w", ZERO_PARAMETER, 0, 100, w) && !zero_group_barrier(g),
               "its parent goes on: %s", zero_last_error(z));
    zero_group_close(g);
    zero_destroy(z);
}

int main(void) {
    run_noted = (run_note *)mmap(NULL, sizeof *run_noted, PROT_READ | PROT_WRITE,
                                 MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    test_check(zero_run_local(0, run_rank, NULL) == 126, "no ranks");
    test_check(zero_run_local(65, run_rank, NULL) == 126, "too many ranks");
    test_check(zero_run_local(2, NULL, NULL) == 126, "nothing to run");
    unsetenv("OMP_NUM_THREADS");
    run_well();
    run_apart();
    run_fails();
    run_dies();
    run_hangs();
    run_signals();
    run_orphans();
    run_flushes();
    run_without_memory();
    run_starts();
    run_threads();
    run_libraries();
    run_forks_later();
    test_check(waitpid(-1, NULL, WNOHANG) == -1, "no child is left");
    return test_summary();
}
