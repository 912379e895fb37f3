/* test_launch.c - the launcher. Alone: what it reads from launchers' variables, how much memory it
   finds, in folders with copies of Linux's files, and what it says. `test_launch rank ACTION [PN]`
   is one rank of a job that test_launchers.sh starts. */
#include "../../adapters/launch/environment.h"
#include "../../adapters/launch/memory.h"
#include "../shared/harness.h"

#include <signal.h>
#include <sys/stat.h>

enum { LAUNCH_TEST_PATH = 512 };

static char launch_test_folder[] = "/tmp/test_launch.XXXXXX";

/* ---- a root folder ------------------------------------------------------------------------- */

typedef struct launch_test_root {
    char path[LAUNCH_TEST_PATH / 2];
} launch_test_root;

static launch_test_root root_make(const char *name) {
    launch_test_root root;
    snprintf(root.path, sizeof root.path, "%s/%s", launch_test_folder, name);
    if (mkdir(root.path, 0777) != 0) abort();
    return root;
}

/* Writes `text` to root/name, and makes the folders above. */
static void root_write(const launch_test_root *root, const char *name, const char *text) {
    char path[LAUNCH_TEST_PATH];
    snprintf(path, sizeof path, "%s/%.200s", root->path, name);
    for (char *at = path + strlen(root->path) + 1; (at = strchr(at, '/')) != NULL; at++) {
        *at = 0;
        (void)mkdir(path, 0777); /* fopen tells if it is not there */
        *at = '/';
    }
    FILE *file = fopen(path, "w");
    if (file == NULL || fputs(text, file) < 0 || fclose(file) != 0) abort();
}

static void root_meminfo(const launch_test_root *root) {
    root_write(root, "proc/meminfo",
               "MemTotal:       9000 kB\nMemFree:         100 kB\nMemAvailable:    5000 kB\n");
}

/* A hierarchy of version 2 at /sys/fs/cgroup, with this process in `group`. */
static void root_v2(const launch_test_root *root, const char *group) {
    char text[LAUNCH_TEST_PATH];
    snprintf(text, sizeof text, "0::%.200s\n", group);
    root_write(root, "proc/self/cgroup", text);
    root_write(root, "proc/self/mountinfo",
               "20 1 0:19 / /proc rw - proc proc rw\n"
               "30 24 0:26 / /sys/fs/cgroup rw,nosuid shared:9 - cgroup2 cgroup2 rw,nsdelegate\n");
}

/* ---- what is available --------------------------------------------------------------------- */

static void expect(const char *name, const launch_test_root *root, uint64_t bytes,
                   const char *limit) {
    launch_memory memory;
    memset(&memory, 0x5A, sizeof memory);
    launch_memory_available(root->path, &memory);
    test_check(memory.bytes == bytes, "%s: expected %llu bytes, found %llu", name,
               (unsigned long long)bytes, (unsigned long long)memory.bytes);
    test_check(memchr(memory.limit, 0, sizeof memory.limit) != NULL
                   && (limit[0] ? strstr(memory.limit, limit) != NULL : memory.limit[0] == 0),
               "%s: expected the limit '%s', found '%.255s'", name, limit, memory.limit);
}

static void test_meminfo(void) {
    launch_test_root root = root_make("meminfo");
    root_meminfo(&root);
    expect("MemAvailable only", &root, 5000 * 1024, "MemAvailable of /proc/meminfo");
    root_v2(&root, "/job");
    expect("no files of the group", &root, 5000 * 1024, "MemAvailable of /proc/meminfo");
    root_write(&root, "proc/self/cgroup", "no colons\n\n7:\n");
    root_write(&root, "proc/self/mountinfo", "nor this\n1 2 3 - cgroup2\n - \n");
    expect("garbage", &root, 5000 * 1024, "MemAvailable of /proc/meminfo");
}

static void test_nothing(void) {
    launch_test_root root = root_make("nothing");
    expect("empty folder", &root, UINT64_MAX, "");
    root_write(&root, "proc/meminfo", "MemTotal:       9000 kB\n");
    expect("no MemAvailable", &root, UINT64_MAX, "");
}

static void test_v1(void) {
    launch_test_root root = root_make("v1");
    root_meminfo(&root);
    root_write(&root, "proc/self/cgroup", "5:cpu,cpuacct:/other\n4:hugetlb,memory:/job\n0::/\n");
    root_write(&root, "proc/self/mountinfo",
               "31 30 0:27 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu,cpuacct\n"
               "32 30 0:28 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n");
    const char *folder = "sys/fs/cgroup/memory/";
    char name[LAUNCH_TEST_PATH];
    root_write(&root, "sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");
    root_write(&root, "sys/fs/cgroup/memory/memory.usage_in_bytes", "4000000\n");
    expect("v1, no limit", &root, 5000 * 1024, "MemAvailable");
    snprintf(name, sizeof name, "%sjob/memory.limit_in_bytes", folder);
    root_write(&root, name, "3000000\n");
    expect("v1, limit alone", &root, 3000000, "memory.limit_in_bytes of the control group");
    snprintf(name, sizeof name, "%sjob/memory.usage_in_bytes", folder);
    root_write(&root, name, "1000000\n");
    expect("v1, used", &root, 2000000, "/sys/fs/cgroup/memory/job");
    snprintf(name, sizeof name, "%sjob/memory.stat", folder);
    root_write(&root, name, "cache 500000\ninactive_file 1\ntotal_inactive_file 400000\n");
    expect("v1, file cache", &root, 2400000, "memory.limit_in_bytes");
    root_write(&root, "sys/fs/cgroup/memory/job/memory.usage_in_bytes", "3500000\n");
    expect("v1, more used than allowed", &root, 0, "memory.limit_in_bytes");
}

static void test_v2(void) {
    launch_test_root root = root_make("v2");
    root_meminfo(&root);
    root_v2(&root, "/pod/job/step");
    root_write(&root, "sys/fs/cgroup/pod/job/step/memory.max", "max\n");
    root_write(&root, "sys/fs/cgroup/pod/job/step/memory.current", "700000\n");
    root_write(&root, "sys/fs/cgroup/pod/job/memory.max", "4000000\n");
    root_write(&root, "sys/fs/cgroup/pod/job/memory.current", "500000\n");
    expect("v2, parent", &root, 3500000, "memory.max of the control group");
    root_write(&root, "sys/fs/cgroup/pod/memory.max", "2000000\n");
    root_write(&root, "sys/fs/cgroup/pod/memory.current", "800000\n");
    root_write(&root, "sys/fs/cgroup/pod/memory.stat", "anon 5\nfile 6\ninactive_file 300000\n");
    expect("v2, an ancestor's is the least", &root, 1500000, "/sys/fs/cgroup/pod");
    root_write(&root, "sys/fs/cgroup/pod/job/step/memory.max", "900000\n");
    expect("v2, its own is the least", &root, 200000, "/sys/fs/cgroup/pod/job/step");
}

/* In a container the mounted folder is the group itself, whatever the path says. */
static void test_namespaces(void) {
    launch_test_root root = root_make("namespaces");
    root_meminfo(&root);
    root_write(&root, "proc/self/cgroup", "0::/box/inner\n");
    root_write(&root, "proc/self/mountinfo",
               "30 24 0:26 /box /sys/fs/cgroup ro - cgroup2 cgroup2 rw\n");
    root_write(&root, "sys/fs/cgroup/memory.max", "3000000\n");
    root_write(&root, "sys/fs/cgroup/inner/memory.max", "1000000\n");
    expect("below the mounted group", &root, 1000000, "/sys/fs/cgroup/inner");
    root_write(&root, "proc/self/cgroup", "0::/elsewhere\n");
    expect("not below the mounted group", &root, 3000000, "/sys/fs/cgroup");
}

static void test_shared_folder(void) {
    launch_memory memory;
    launch_memory_shared(launch_test_folder, &memory);
    test_check(memory.bytes < UINT64_MAX && strstr(memory.limit, launch_test_folder) != NULL,
               "free space of a folder: %llu bytes, '%s'", (unsigned long long)memory.bytes,
               memory.limit);
    launch_memory_shared("/no/such/folder", &memory);
    test_check(memory.bytes == UINT64_MAX && memory.limit[0] == 0, "free space of no folder: %llu",
               (unsigned long long)memory.bytes);
}

/* ---- what is said -------------------------------------------------------------------------- */

static int ask(launch *l, void *user) {
    launch_check_memory(l, *(const uint64_t *)user, 0);
    return 0;
}

/* The exit code of a launch that needs so much on each rank; what it says goes to `said`. */
static int run_launch(int ranks, int threads, uint64_t need, char *said, size_t bytes) {
    int ends[2], status = 0;
    size_t used = 0;
    if (pipe(ends) != 0) abort();
    pid_t pid = fork();
    if (pid < 0) abort();
    if (pid == 0) {
        launch_request request;
        memset(&request, 0, sizeof request);
        request.program = "test";
        request.ranks = ranks;
        request.groups = 1;
        request.as_threads = threads;
        request.rank_main = ask;
        request.user = &need;
        (void)alarm(30);
        (void)dup2(ends[1], STDERR_FILENO);
        (void)close(ends[0]);
        (void)close(ends[1]);
        _exit(launch_run(&request));
    }
    (void)close(ends[1]);
    for (ssize_t n; used < bytes - 1 && (n = read(ends[0], said + used, bytes - 1 - used)) > 0;)
        used += (size_t)n;
    said[used] = 0;
    (void)close(ends[0]);
    if (waitpid(pid, &status, 0) != pid) abort();
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

static void test_sentence(int ranks, int threads) {
    char said[2 * LAUNCH_SENTENCE], start[128];
    double mib = -1;
    launch_memory memory;
    launch_memory_available("", &memory);
    int code = run_launch(ranks, threads, 4096, said, sizeof said);
    test_check(code == 0 && said[0] == 0, "%d ranks of a page: code %d, '%s'", ranks, code, said);
    if (memory.bytes == UINT64_MAX) return; /* nothing is known here, so nothing is refused */
    code = run_launch(ranks, threads, (uint64_t)1 << 60, said, sizeof said);
    snprintf(start, sizeof start, "test: %d rank%s of 1099511627776.0 MiB each need %.1f MiB, but ",
             ranks, ranks > 1 ? "s" : "", 1099511627776.0 * ranks);
    test_check(code == LAUNCH_EXIT_FAILURE, "%d ranks of 2^60 bytes: code %d", ranks, code);
    test_check(strncmp(said, start, strlen(start)) == 0, "expected '%s...', found '%s'", start,
               said);
    const char *rest = strstr(said, "but ");
    const int found = rest != NULL ? sscanf(rest, "but %lf MiB are available: ", &mib) : 0;
    test_check(found == 1 && mib >= 0 && mib < 1099511627776.0,
               "%d ranks: no number of what is available in '%s'", ranks, said);
    test_check(strchr(said, '\n') == said + strlen(said) - 1, "%d ranks: not one line: '%s'", ranks,
               said);
}

static void remove_folder(void) {
    char command[LAUNCH_TEST_PATH];
    snprintf(command, sizeof command, "rm -rf '%s'", launch_test_folder);
    if (system(command) != 0) fprintf(stderr, "%s was left behind\n", launch_test_folder);
}

/* ---- launchers' variables ------------------------------------------------------------------ */

static const char *const variables[] = {"RANK",
                                        "WORLD_SIZE",
                                        "LOCAL_RANK",
                                        "LOCAL_WORLD_SIZE",
                                        "MASTER_ADDR",
                                        "MASTER_PORT",
                                        "ZERO_PORT",
                                        "TORCHELASTIC_RUN_ID",
                                        "TORCHELASTIC_RESTART_COUNT",
                                        "OMPI_COMM_WORLD_SIZE",
                                        "OMPI_COMM_WORLD_RANK",
                                        "PMI_SIZE",
                                        "PMI_RANK",
                                        "PMIX_RANK",
                                        "SLURM_PROCID",
                                        "SLURM_NTASKS",
                                        "SLURM_STEP_NUM_TASKS",
                                        "SLURM_LOCALID",
                                        "SLURM_STEP_ID",
                                        "SLURM_JOB_ID",
                                        "SLURM_JOB_NODELIST",
                                        "SLURM_NODELIST",
                                        "SLURM_STEP_NODELIST"};

/* Reads `text` ("NAME=VALUE NAME=VALUE ...") as the environment. The result, as one line:
   kind, how, rank/ranks/local rank, host:port or folder; or "wrong: " and the sentence. */
static const char *read_variables(const char *text, const launch_request *given) {
    static char line[1024];
    char copy[512], sentence[LAUNCH_SENTENCE] = "";
    launch_request request;
    environment e;
    memset(&request, 0, sizeof request);
    if (given != NULL) request = *given;
    for (size_t i = 0; i < sizeof variables / sizeof variables[0]; i++) unsetenv(variables[i]);
    snprintf(copy, sizeof copy, "%s", text);
    for (char *save = NULL, *one = strtok_r(copy, " ", &save); one != NULL;
         one = strtok_r(NULL, " ", &save)) {
        char *value = strchr(one, '=');
        if (value == NULL) abort();
        *value++ = 0;
        if (setenv(one, value, 1) != 0) abort();
    }
    const environment_call call = {request.method,   request.ranks,  request.rank,
                                   request.per_node, request.server, request.folder,
                                   launch_has_mpi()};
    if (environment_read(&call, &e, sentence, sizeof sentence))
        snprintf(line, sizeof line, "wrong: %d: %.900s", e.rank, sentence);
    else if (e.kind == ENVIRONMENT_NONE)
        snprintf(line, sizeof line, "none");
    else if (e.kind == ENVIRONMENT_MPI)
        snprintf(line, sizeof line, "mpi %s %d/%d", e.by, e.rank, e.nranks);
    else
        snprintf(line, sizeof line, "join %s %d/%d/%d %s%s:%d", e.by, e.rank, e.nranks,
                 e.local_rank, e.host, e.folder, e.port);
    return line;
}

static void expect_variables(const char *text, const launch_request *request, const char *pattern) {
    const char *found = read_variables(text, request);
    test_check(strncmp(found, pattern, strlen(pattern)) == 0, "'%s': expected '%s', found '%s'",
               text, pattern, found);
}

static void test_torch_variables(void) {
    const char *all = "TORCHELASTIC_RUN_ID=x RANK=3 WORLD_SIZE=4 LOCAL_RANK=1 MASTER_ADDR=h "
                      "MASTER_PORT=29500";
    expect_variables("", NULL, "none");
    expect_variables("WORLD_SIZE=1", NULL, "none");
    expect_variables("RANK=7", NULL, "none"); /* somebody's variable, of another meaning */
    expect_variables(all, NULL, "join by torchrun 3/4/1 h:29501");
    expect_variables("RANK=0 WORLD_SIZE=2 MASTER_ADDR=::1 MASTER_PORT=1 ZERO_PORT=77", NULL,
                     "join by RANK and WORLD_SIZE 0/2/-1 ::1:77");
    expect_variables("TORCHELASTIC_RUN_ID=x RANK=0 WORLD_SIZE=1 LOCAL_RANK=0", NULL, "none");
    expect_variables("WORLD_SIZE=2 LOCAL_RANK=1 MASTER_ADDR=h MASTER_PORT=2", NULL,
                     "wrong: 1: RANK is not set");
    expect_variables("RANK=1 LOCAL_RANK=1 MASTER_ADDR=h MASTER_PORT=2", NULL,
                     "wrong: 1: WORLD_SIZE is not set");
    expect_variables("RANK=2 WORLD_SIZE=2 MASTER_ADDR=h MASTER_PORT=2", NULL,
                     "wrong: 0: RANK is '2', expected a number from 0 to 1");
    expect_variables("RANK=1 WORLD_SIZE=2x MASTER_ADDR=h MASTER_PORT=2", NULL,
                     "wrong: 0: WORLD_SIZE is '2x', expected a number");
    expect_variables("RANK=0 WORLD_SIZE=2 MASTER_PORT=2", NULL, "wrong: 0: MASTER_ADDR is not set");
    expect_variables("RANK=0 WORLD_SIZE=2 MASTER_ADDR=h", NULL, "wrong: 0: MASTER_PORT is not set");
    expect_variables("RANK=0 WORLD_SIZE=2 MASTER_ADDR=h MASTER_PORT=65535", NULL,
                     "wrong: 0: MASTER_PORT is 65535");
    /* mpirun, in a container that sets PyTorch's variables: MPI knows better */
    expect_variables("RANK=0 WORLD_SIZE=1 OMPI_COMM_WORLD_SIZE=3 OMPI_COMM_WORLD_RANK=2", NULL,
                     "mpi by mpirun 2/3");
}

static void test_slurm_variables(void) {
    const char *step = "SLURM_STEP_ID=2 SLURM_JOB_ID=10 SLURM_PROCID=5 SLURM_NTASKS=8 "
                       "SLURM_LOCALID=1 SLURM_STEP_NODELIST=n[03-04]";
    expect_variables(step, NULL, "join by srun 5/8/1 n03:20162");
    expect_variables("SLURM_STEP_ID=0 SLURM_PROCID=0 SLURM_NTASKS=8 SLURM_STEP_NUM_TASKS=1", NULL,
                     "none");
    expect_variables("SLURM_PROCID=0 SLURM_NTASKS=8", NULL, "none"); /* a batch script */
    expect_variables("SLURM_STEP_ID=0 SLURM_PROCID=1 SLURM_NTASKS=2 MASTER_ADDR=m MASTER_PORT=9",
                     NULL, "join by srun 1/2/-1 m:10");
    expect_variables("SLURM_STEP_ID=0 SLURM_PROCID=1 SLURM_NTASKS=2", NULL,
                     "wrong: 1: neither MASTER_ADDR nor SLURM_STEP_NODELIST");
    expect_variables("SLURM_STEP_ID=0 SLURM_PROCID=1 SLURM_NTASKS=2 SLURM_NODELIST=[", NULL,
                     "wrong: 1: SLURM_NODELIST is '['");
    expect_variables("SLURM_STEP_ID=0 SLURM_PROCID=1 SLURM_NTASKS=2 PMIX_RANK=1 MASTER_ADDR=m",
                     NULL,
                     launch_has_mpi() ? "mpi by srun, through MPI 1/2" : "join by srun 1/2/-1 m:");
    expect_variables("SLURM_STEP_ID=0 SLURM_PROCID=1 SLURM_NTASKS=2 PMI_RANK=1 PMI_SIZE=2 "
                     "MASTER_ADDR=m",
                     NULL,
                     launch_has_mpi() ? "mpi by srun, through MPI 1/2" : "join by srun 1/2/-1 m:");
    /* an mpirun in a job: its daemons, one a node, are the step's tasks */
    expect_variables("SLURM_STEP_ID=0 SLURM_PROCID=1 SLURM_NTASKS=2 OMPI_COMM_WORLD_SIZE=8 "
                     "OMPI_COMM_WORLD_RANK=5 SLURM_NODELIST=n[1-2]",
                     NULL, "mpi by mpirun 5/8");
}

static void test_methods(void) {
    launch_request r;
    memset(&r, 0, sizeof r);
    r.method = "tcp";
    r.ranks = 16;
    r.rank = 9;
    r.per_node = 8;
    r.server = "10.0.0.1";
    expect_variables("RANK=1 WORLD_SIZE=2", &r, "join by -pi tcp 9/16/1 10.0.0.1:12345");
    expect_variables("ZERO_PORT=5", &r, "join by -pi tcp 9/16/1 10.0.0.1:5");
    r.server = "-1";
    expect_variables("", &r, "wrong: 9: -pi tcp: the address of rank 0 is missing");
    r.rank = 16;
    expect_variables("", &r, "wrong: 0: -pr 16: the rank is not below the 16 ranks");
    r.rank = 15;
    r.method = "fs";
    r.folder = "/x y";
    expect_variables("", &r, "join by -pi fs 15/16/7 /x y:0");
    r.folder = NULL;
    expect_variables("", &r, "join by -pi fs 15/16/7 /tmp:0");
    r.method = "mpi";
    expect_variables("", &r, "none");
}

static void test_first_host(void) {
    static const char *const cases[][2] = {{"one", "one"},
                                           {"a1,b2", "a1"},
                                           {"n[01-04,07],other", "n01"},
                                           {"n[7,9]", "n7"},
                                           {"r[2-3]n[04-5]x", "r2n04x"},
                                           {"[10-11]", "10"},
                                           {"", NULL},
                                           {",b", NULL},
                                           {"n[1-2", NULL},
                                           {"n-1.a.b,c", "n-1.a.b"}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char host[16] = "";
        int ok = environment_first_host(cases[i][0], host, sizeof host);
        test_check(ok == (cases[i][1] != NULL) && (!ok || strcmp(host, cases[i][1]) == 0),
                   "first host of '%s': %d, '%s'", cases[i][0], ok, host);
    }
    char small[4];
    test_check(!environment_first_host("abcd", small, sizeof small)
                   && !environment_first_host("[abcd]", small, sizeof small),
               "a host that does not fit");
}

/* ---- a rank of test_launchers.sh ----------------------------------------------------------- */

typedef struct rank_plan {
    const char *action;
    int who; /* the rank that it is for */
} rank_plan;

/* The plugin works on what the launcher gives, several communicators apart. */
static void rank_sum(launch *l) {
    for (int i = 0; i < l->groups; i++) {
        zero_ctx *z = NULL;
        zero_config cfg;
        memset(&cfg, 0, sizeof cfg);
        zero_tensor_desc one;
        memset(&one, 0, sizeof one);
        cfg.threads = launch_threads(l);
        one.name = "one";
        one.numel = 100;
        one.flags = ZERO_BY_SLOT;
        zero_result result = zero_create(&z, &cfg, &l->comm[i]);
        if (result == ZERO_OK) result = zero_tensor(z, &one);
        if (result == ZERO_OK) result = zero_build(z);
        double sums[2] = {l->rank + 1, 1};
        if (result == ZERO_OK) result = zero_all_sum(z, sums, 2);
        if (result != ZERO_OK) launch_fail_result(l, result, z ? zero_last_error(z) : "");
        if (sums[0] != l->nranks * (l->nranks + 1) / 2.0 || sums[1] != l->nranks)
            launch_fail(l, "rank %d: the ranks' sum is %g of %g", l->rank, sums[0], sums[1]);
        zero_destroy(z);
    }
}

/* One rank is killed at the very time that the others fail. */
static void rank_race(launch *l, int mine) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    t.tv_nsec = 100000 * (long)(getpid() % 20 + 1); /* of the second after next */
    t.tv_sec += 2;
    while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &t, NULL)) {}
    if (mine) raise(SIGKILL);
    launch_fail(l, "rank %d fails", l->rank);
}

static int rank_act(launch *l, void *user) {
    const rank_plan *plan = (const rank_plan *)user;
    const int mine = plan->who == l->rank;
    char text[64] = "nothing", copied[LAUNCH_BROADCAST];
    snprintf(text, sizeof text, "setting %d\n", strcmp(plan->action, "differ") == 0 && mine);
    launch_same(l, text);
    memset(copied, l->rank == 0 ? 'x' : 'y', sizeof copied);
    launch_broadcast(l, copied, sizeof copied);
    if (copied[0] != 'x' || copied[sizeof copied - 1] != 'x') launch_fail(l, "not rank 0's bytes");
    for (int round = 0; round < 2; round++) {
        rank_sum(l);
        if (launch_all(l, l->rank + 1 < l->nranks) || !launch_all(l, 1))
            launch_fail(l, "not what the ranks say together");
    }
    launch_agree(l, strcmp(plan->action, "agree") != 0 || !mine, "one rank does not agree");
    if (strcmp(plan->action, "fail") == 0 && mine) launch_fail(l, "rank %d fails", l->rank);
    if (strcmp(plan->action, "failall") == 0) launch_fail(l, "rank %d fails", l->rank);
    if (strcmp(plan->action, "die") == 0 && mine) raise(SIGKILL);
    if (strcmp(plan->action, "race") == 0) rank_race(l, mine);
    if (strcmp(plan->action, "code") == 0 && mine) return 5;
    if (strcmp(plan->action, "early") == 0 && mine) return 0;
    if (strcmp(plan->action, "early") == 0)
        sleep(1);
    else if (strcmp(plan->action, "ok") != 0) {
        /* the others are in the middle of something: a collective, or work of their own */
        if (l->rank % 2) launch_agree(l, 1, "");
        sleep(30);
    }
    printf("rank %d of %d, %d of %d here, %s, %d threads%s%s\n", l->rank, l->nranks, l->local_rank,
           l->local_ranks, launch_how(l), launch_threads(l), l->note[0] ? ", " : "", l->note);
    return 0;
}

/* test_launch rank ACTION WHO [PN [threads | METHOD RANK PER_NODE PLACE]] */
static int rank_main(int argc, char **argv) {
    rank_plan plan = {argv[2], argc > 3 ? atoi(argv[3]) : -1};
    const char *limit = getenv("LAUNCH_TEST_LIMIT");
    launch_request request;
    memset(&request, 0, sizeof request);
    request.program = "test";
    request.groups = 2;
    request.rank_main = rank_act;
    request.user = &plan;
    request.limit_s = limit != NULL ? atof(limit) : 20;
    if (strcmp(plan.action, "usage") == 0) request.usage_error = "a wrong flag";
    if (argc > 4) request.ranks = atoi(argv[4]);
    if (argc > 5) request.as_threads = strcmp(argv[5], "threads") == 0;
    if (argc > 8) {
        request.method = argv[5];
        request.rank = atoi(argv[6]);
        request.per_node = atoi(argv[7]);
        request.server = request.folder = argv[8];
    }
    (void)alarm(60);
    return launch_run(&request);
}

int main(int argc, char **argv) {
    if (argc > 2 && strcmp(argv[1], "rank") == 0) return rank_main(argc, argv);
    if (mkdtemp(launch_test_folder) == NULL) return 1;
    test_meminfo();
    test_nothing();
    test_v1();
    test_v2();
    test_namespaces();
    test_shared_folder();
    test_torch_variables();
    test_slurm_variables();
    test_methods();
    test_first_host();
    (void)read_variables("", NULL); /* whatever started this test is no launcher of the next ones */
    test_sentence(1, 0);
    test_sentence(3, 0);
    test_sentence(3, 1);
    remove_folder();
    return test_summary();
}
