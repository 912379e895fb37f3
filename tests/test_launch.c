/* test_launch.c - how much memory the launcher finds, read from folders with copies of Linux's
   files, and what it says where that is too little. */
#include "../adapters/launch/memory.h"
#include "harness.h"

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
static int run_launch(int ranks, uint64_t need, char *said, size_t bytes) {
    int ends[2], status = 0;
    size_t used = 0;
    if (pipe(ends) != 0) abort();
    pid_t pid = fork();
    if (pid < 0) abort();
    if (pid == 0) {
        launch_request request = {"test", ranks, 0, 1, NULL, ask, &need};
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

static void test_sentence(int ranks) {
    char said[2 * LAUNCH_SENTENCE], start[128];
    double gib = 0, bytes = -1;
    launch_memory memory;
    launch_memory_available("", &memory);
    int code = run_launch(ranks, 4096, said, sizeof said);
    test_check(code == 0 && said[0] == 0, "%d ranks of a page: code %d, '%s'", ranks, code, said);
    if (memory.bytes == UINT64_MAX) return; /* nothing is known here, so nothing is refused */
    code = run_launch(ranks, (uint64_t)1 << 60, said, sizeof said);
    snprintf(start, sizeof start,
             "test: %d rank%s of 1152921504606846976 bytes each need %.2f GiB, but ", ranks,
             ranks > 1 ? "s" : "", 1073741824.0 * ranks);
    test_check(code == LAUNCH_EXIT_FAILURE, "%d ranks of 2^60 bytes: code %d", ranks, code);
    test_check(strncmp(said, start, strlen(start)) == 0, "expected '%s...', found '%s'", start,
               said);
    const char *rest = strstr(said, "but ");
    int found =
        rest != NULL ? sscanf(rest, "but %lf GiB (%lf bytes) are available: ", &gib, &bytes) : 0;
    test_check(found == 2 && bytes >= 0 && bytes < 1152921504606846976.0
                   && gib * 1073741824.0 - bytes < 1e7 && bytes - gib * 1073741824.0 < 1e7,
               "%d ranks: no two numbers of what is available in '%s'", ranks, said);
    test_check(strchr(said, '\n') == said + strlen(said) - 1, "%d ranks: not one line: '%s'", ranks,
               said);
}

static void remove_folder(void) {
    char command[LAUNCH_TEST_PATH];
    snprintf(command, sizeof command, "rm -rf '%s'", launch_test_folder);
    if (system(command) != 0) fprintf(stderr, "%s was left behind\n", launch_test_folder);
}

int main(void) {
    if (mkdtemp(launch_test_folder) == NULL) return 1;
    test_meminfo();
    test_nothing();
    test_v1();
    test_v2();
    test_namespaces();
    test_shared_folder();
    test_sentence(1);
    test_sentence(3);
    remove_folder();
    return test_summary();
}
