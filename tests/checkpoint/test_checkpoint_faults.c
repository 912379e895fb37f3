/* test_checkpoint_faults.c [KIND] - with faulty_io.c preloaded: the k-th call of every kind
   that saving, loading or creating makes fails, for every k. What must hold each time: all ranks
   return the same, the context goes on, the older generation is intact, nothing leaks, nobody
   hangs. A call that takes longer than the plugin's time limit is no error; a rank that dies is
   one. */
#include "../shared/host.h"
#include "../../adapters/checkpoint/checkpoint.h"

#include <dirent.h>
#include <errno.h>
#include <sys/stat.h>

enum { FAULT_RANKS = 3, FAULT_MOST = 5000, FAULT_SLOW = 1600 /* ms */ };

typedef enum fault_at {
    FAULT_CREATE = 0,
    FAULT_SAVE,
    FAULT_AGAIN, /* a generation of this number is there */
    FAULT_ASIDE,
    FAULT_NEXT, /* aside, and at once the next save, which tells what became of it */
    FAULT_LOAD
} fault_at;
static const char *const fault_names[] = {"create",     "save",       "save again",
                                          "save aside", "save twice", "load"};

/* Of faulty_io.c; null where it is not preloaded. */
__attribute__((weak)) void faulty_arm(const char *kind, long k, int number);
__attribute__((weak)) long faulty_fired(void);
__attribute__((weak)) long faulty_live(void);

/* What becomes of a save when a call of this kind fails. */
typedef enum fault_expect { FAULT_ANY = 0, FAULT_ALWAYS /* an error */, FAULT_NEVER } fault_expect;
typedef struct fault_type {
    const char *kind; /* of faulty_io.c */
    int number;       /* errno, or milliseconds */
    fault_expect expect;
} fault_type;

typedef struct fault_job {
    host_spec spec;
    checkpoint_options o;
    fault_at at;
    const char *kind;
    long k;
    int number;
    uint64_t hash[2]; /* of the state at step 1, which is saved before, and at step 2 */
    checkpoint_result result[FAULT_RANKS];
    long fired;
    int64_t least; /* a new run must find this step or a later one */
    char error[CHECKPOINT_SENTENCE];
} fault_job;

static void fault_spec(host_spec *s) {
    const zero_tensor_desc list[] = {{"embedding", 500, .layers = 1}, {"w", 177, 2, .unit = 1}};
    host_small(s, 3, FAULT_RANKS, 3, list, 2);
    s->cfg.timeout_s = 10;
}

static void fault_step(host_run *h) {
    if (!h->rank->failed) (void)host_train_step(h);
}

/* All ranks stand still while rank 0 sets the trap or takes it away. */
static void fault_set(fault_job *j, host_run *h, long k) {
    if (zero_barrier(h->z)) test_rank_fail(h->rank, "%s", zero_last_error(h->z));
    if (h->rank->rank == 0) {
        if (k == 0) j->fired = faulty_fired();
        faulty_arm(j->kind, k, j->number);
    }
    if (zero_barrier(h->z)) test_rank_fail(h->rank, "%s", zero_last_error(h->z));
}

/* Another save at once: it tells what became of the one before, and is made all the same. */
static checkpoint_result fault_next(fault_job *j, host_run *h, checkpoint *c,
                                    checkpoint_result first) {
    const checkpoint_result next = checkpoint_save(c, 3, NULL, 0);
    const int begun = next == CHECKPOINT_OK || strstr(checkpoint_error(c), "now comes");
    if (next && !first && h->rank->rank == 0)
        snprintf(j->error, sizeof j->error, "%s", checkpoint_error(c));
    const checkpoint_result last = checkpoint_wait(c);
    if (h->rank->rank == 0) j->least = begun && !last ? 3 : next || first ? 1 : 2;
    return first ? first : next ? next : last;
}

static checkpoint_result fault_call(fault_job *j, host_run *h, checkpoint **c) {
    if (j->at == FAULT_CREATE) return checkpoint_create(c, h->z, &j->o);
    if (j->at == FAULT_LOAD) return checkpoint_load(*c, CHECKPOINT_NEWEST);
    const checkpoint_result r = checkpoint_save(*c, j->at == FAULT_AGAIN ? 1 : 2, NULL, 0);
    if (r && h->rank->rank == 0) snprintf(j->error, sizeof j->error, "%s", checkpoint_error(*c));
    if (j->at == FAULT_NEXT) return fault_next(j, h, *c, r);
    return r || j->at != FAULT_ASIDE ? r : checkpoint_wait(*c);
}

/* Step 1 is saved; then the call with the fault, at step 2 or at step 1; then the context is asked
   for another step. */
static void fault_body(test_rank *r) {
    fault_job *j = (fault_job *)r->arg;
    host_run h;
    checkpoint *c = NULL;
    if (!host_open(&h, &j->spec, r)) return;
    fault_step(&h);
    if (j->at != FAULT_CREATE && checkpoint_create(&c, h.z, &j->o))
        test_rank_fail(r, "create: %s", checkpoint_error(c));
    if (c && j->at != FAULT_LOAD && checkpoint_save(c, 1, NULL, 0))
        test_rank_fail(r, "save: %s", checkpoint_error(c));
    if (c && checkpoint_wait(c)) test_rank_fail(r, "wait: %s", checkpoint_error(c));
    if (j->at != FAULT_AGAIN) fault_step(&h);
    if (r->rank == 0) j->error[0] = 0, j->least = 1;
    fault_set(j, &h, j->k);
    const checkpoint_result result = fault_call(j, &h, &c);
    j->result[r->rank] = result;
    if (r->rank == 0 && result == CHECKPOINT_OK && (j->at == FAULT_SAVE || j->at == FAULT_ASIDE))
        j->least = 2; /* reported done */
    if (r->rank == 0 && !j->error[0])
        snprintf(j->error, sizeof j->error, "%s", checkpoint_error(c));
    fault_set(j, &h, 0);
    fault_step(&h);
    checkpoint_destroy(c);
    zero_destroy(h.z);
}

/* What a new run finds. */
static void fault_look(test_rank *r) {
    fault_job *j = (fault_job *)r->arg;
    host_run h;
    checkpoint *c = NULL;
    if (!host_open(&h, &j->spec, r)) return;
    if (checkpoint_create(&c, h.z, &j->o) || checkpoint_load(c, CHECKPOINT_NEWEST)
        || checkpoint_load(c, CHECKPOINT_NEWEST)) /* the second frees what the first left */
        test_rank_fail(r, "a new run: %s", checkpoint_error(c));
    else if (checkpoint_step(c) < j->least || host_hash(&h) != j->hash[checkpoint_step(c) > 1])
        test_rank_fail(r, "a new run finds step %d, wrong", (int)checkpoint_step(c));
    checkpoint_destroy(c);
    zero_destroy(h.z);
}

static void fault_record(test_rank *r) {
    fault_job *j = (fault_job *)r->arg;
    host_run h;
    if (!host_open(&h, &j->spec, r)) return;
    for (int i = 0; i < 2; i++) {
        fault_step(&h);
        const uint64_t hash = host_hash(&h);
        if (r->rank == 0) j->hash[i] = hash;
    }
    zero_destroy(h.z);
}

static int fault_descriptors(void) {
    DIR *dir = opendir("/proc/self/fd");
    int n = 0;
    while (dir && readdir(dir) != NULL) n++;
    if (dir) (void)closedir(dir);
    return n;
}

static void fault_empty(const char *folder) {
    char command[600];
    snprintf(command, sizeof command, "rm -rf '%s'", folder);
    if (system(command)) abort();
}

/* How many folders are half written. */
static int fault_left(const char *folder) {
    DIR *dir = opendir(folder);
    const struct dirent *entry;
    int n = 0;
    while (dir && (entry = readdir(dir)) != NULL) n += strstr(entry->d_name, ".tmp-") != NULL;
    if (dir) (void)closedir(dir);
    return n;
}

/* What is needed and what is there. */
static void fault_sentence(const fault_job *j) {
    const int full = strcmp(j->kind, "full") == 0 || strcmp(j->kind, "write") == 0;
    if (!full || !j->fired || j->at == FAULT_LOAD || j->at == FAULT_CREATE) return;
    test_check(strstr(j->error, " bytes are needed in ") && strstr(j->error, " are there"),
               "a full disk is told with numbers: %s", j->error);
}

/* Blocks of memory that the same fault leaves when it happens once more. */
static long fault_leak(fault_job *j) {
    if (j->at != FAULT_LOAD && j->at != FAULT_CREATE) fault_empty(j->o.folder);
    const long memory = faulty_live();
    (void)test_ranks(FAULT_RANKS, 0, fault_body, j);
    (void)test_ranks(FAULT_RANKS, 0, fault_look, j);
    return faulty_live() - memory;
}

/* One fault. 0: there is no k-th call any more. */
static int fault_once(fault_job *j) {
    const int files = fault_descriptors();
    if (j->at != FAULT_LOAD && j->at != FAULT_CREATE) fault_empty(j->o.folder);
    const long memory = faulty_live();
    int ok = test_ranks(FAULT_RANKS, 0, fault_body, j);
    for (int r = 1; r < FAULT_RANKS; r++) ok &= j->result[r] == j->result[0];
    const int spoke = j->result[0] == CHECKPOINT_OK || strlen(j->error) > 10;
    test_check(ok && spoke, "%s, %s %ld: %d, %d, %d: %s; %s", fault_names[j->at], j->kind, j->k,
               (int)j->result[0], (int)j->result[1], (int)j->result[2], j->error, test_first);
    fault_sentence(j);
    const int undone = strcmp(j->kind, "unlink") == 0 || strstr(j->kind, "dir") != NULL;
    test_check(undone || j->result[0] == CHECKPOINT_OK || fault_left(j->o.folder) == 0
                   || (j->at == FAULT_AGAIN && strcmp(j->kind, "memory") != 0),
               "%s, %s %ld (%s): a half written folder is left", fault_names[j->at], j->kind, j->k,
               j->error);
    const int found = test_ranks(FAULT_RANKS, 0, fault_look, j);
    test_check(found, "%s, %s %ld (%s): %s", fault_names[j->at], j->kind, j->k, j->error,
               test_first);
    long leaked = faulty_live() - memory;
    /* threads keep blocks for the next ones, more or fewer as they met: a leak is there every time
     */
    for (int again = 0; again < 3 && leaked != 0; again++) leaked = fault_leak(j);
    test_check(leaked == 0 && fault_descriptors() == files,
               "%s, %s %ld: %ld blocks of memory and %d descriptors leaked", fault_names[j->at],
               j->kind, j->k, leaked, fault_descriptors() - files);
    return j->fired > 0;
}

static test_random fault_random; /* 0: nothing is left out */

/* How far the next call lies that fails. Each, but: slow ones take their time, and a load asks for
   memory a thousand times, of which a seed chooses some. */
static long fault_stride(const fault_job *j) {
    if (strcmp(j->kind, "slow") == 0) return 13;
    if (strcmp(j->kind, "memory") == 0 && j->at == FAULT_LOAD && fault_random.state)
        return 1 + test_below(&fault_random, 15);
    return 1;
}

static void fault_kind(fault_job *j, const fault_type *k) {
    const char *kind = k->kind;
    long refused = 0;
    j->kind = kind;
    long calls = 0;
    j->number = k->number;
    j->spec.cfg.timeout_s = strcmp(kind, "slow") == 0 ? 1 : 10;
    for (j->k = 1; j->k < FAULT_MOST && fault_once(j); j->k += fault_stride(j)) {
        refused += j->result[0] != CHECKPOINT_OK;
        calls++;
    }
    const int saves =
        j->at == FAULT_SAVE || j->at == FAULT_AGAIN || j->at == FAULT_ASIDE || j->at == FAULT_NEXT;
    printf("%-11s %-8s %4ld calls, %4ld of them end in an error\n", fault_names[j->at], kind, calls,
           refused);
    if (saves && k->expect == FAULT_ALWAYS)
        test_check(calls > 0 && refused == calls, "%s, %s: %ld of %ld are told", fault_names[j->at],
                   kind, refused, calls);
    if (saves && k->expect == FAULT_NEVER)
        test_check(refused == 0, "%s, %s: %ld of %ld end in an error", fault_names[j->at], kind,
                   refused, calls);
    /* 3 files, the manifest, the folder with all of them, and the parent */
    if (j->at == FAULT_SAVE && strcmp(kind, "fsync") == 0)
        test_check(calls == 6, "%ld calls of fsync, expected 6", calls);
}

/* One of the words of a list. */
static int fault_word(const char *list, const char *word) {
    const size_t n = strlen(word);
    for (const char *at = strstr(list, word); at; at = strstr(at + 1, word))
        if ((at == list || at[-1] == ' ') && (at[n] == 0 || at[n] == ' ')) return 1;
    return 0;
}

/* `fast`: all that have no limit of a second. */
static int fault_chosen(const char *list, const char *kind) {
    return list == NULL || fault_word(list, kind) || fault_word(list, "all")
           || (fault_word(list, "fast") && strcmp(kind, "slow") != 0);
}

static const fault_type fault_types[] = {
    {"open", EACCES, FAULT_ALWAYS},    {"write", ENOSPC, FAULT_ALWAYS},
    {"short", 0, FAULT_NEVER},         {"fsync", EIO, FAULT_ALWAYS},
    {"rename", EIO, FAULT_ALWAYS},     {"mkdir", EROFS, FAULT_ALWAYS},
    {"full", 0, FAULT_ALWAYS},         {"close", EIO, FAULT_ANY},
    {"read", EIO, FAULT_ALWAYS},       {"unlink", EIO, FAULT_NEVER},
    {"stat", EIO, FAULT_ANY},          {"opendir", EMFILE, FAULT_NEVER},
    {"readdir", EIO, FAULT_NEVER},     {"direct", EINVAL, FAULT_NEVER},
    {"exchange", EINVAL, FAULT_NEVER}, {"memory", ENOMEM, FAULT_ANY},
    {"late", 30, FAULT_NEVER}, /* long enough for the other ranks to go ahead */
    {"slow", FAULT_SLOW, FAULT_NEVER}};

/* A rank dies while the others wait for a disk: all are told, and only that of the slow disk has
   to wait for it. */
typedef struct fault_death {
    fault_job job;
    checkpoint_result result[FAULT_RANKS];
    double seconds[FAULT_RANKS];
} fault_death;

static void fault_die(test_rank *r) {
    fault_death *d = (fault_death *)r->arg;
    fault_job *j = &d->job;
    host_run h;
    checkpoint *c = NULL;
    if (!host_open(&h, &j->spec, r)) return;
    if (checkpoint_create(&c, h.z, &j->o) || checkpoint_save(c, 1, NULL, 0) || checkpoint_wait(c))
        test_rank_fail(r, "%s", checkpoint_error(c));
    const double start = test_now();
    if (r->rank == 1) faulty_arm("slow", 1, 2 * FAULT_SLOW);
    if (r->rank == 2) (void)ualarm(300000, 0); /* ends the process */
    d->result[r->rank] = fault_call(j, &h, &c);
    d->seconds[r->rank] = test_now() - start;
    checkpoint_destroy(c);
    zero_destroy(h.z);
}

static void fault_deaths(fault_job *j) {
    static const fault_at at[] = {FAULT_SAVE, FAULT_ASIDE, FAULT_LOAD};
    fault_death *d = (fault_death *)test_shared(sizeof *d);
    for (int i = 0; i < 3; i++) {
        d->job = *j;
        d->job.at = at[i];
        d->job.o.asynchronous = at[i] == FAULT_ASIDE;
        d->job.spec.cfg.timeout_s = 1;
        (void)test_processes(FAULT_RANKS, 0, fault_die, d, 60);
        test_check(strstr(test_first, "rank 2: killed by signal") != NULL
                       && d->result[0] == CHECKPOINT_PLUGIN && d->result[1] == CHECKPOINT_PLUGIN
                       && d->seconds[0] < 2e-3 * FAULT_SLOW && d->seconds[1] < 4e-3 * FAULT_SLOW,
                   "%s, a rank dies: %d after %.1f s, %d after %.1f s; %s", fault_names[at[i]],
                   (int)d->result[0], d->seconds[0], (int)d->result[1], d->seconds[1], test_first);
        fault_empty(j->o.folder);
    }
    (void)munmap(d, sizeof *d);
}

/* What killed runs left half written, thousands of folders on a disk that takes 2 ms for each: a
   run begins all the same, and removes some of them now and at every save. */
enum { FAULT_LEFT = 5000 };
typedef struct fault_leftovers {
    fault_job job;
    double seconds;
    int left[2]; /* after create, and after the save */
    char told[CHECKPOINT_SENTENCE];
} fault_leftovers;

static void fault_told(void *user, const char *sentence) {
    (void)snprintf((char *)user, CHECKPOINT_SENTENCE, "%s", sentence);
}

static void fault_leave(const char *folder) {
    char path[600];
    (void)mkdir(folder, 0777);
    for (int i = 0; i < FAULT_LEFT; i++) {
        snprintf(path, sizeof path, "%s/step_%08d.tmp-%016x", folder, i + 1, 7919 * i);
        if (mkdir(path, 0777)) abort();
        snprintf(path + strlen(path), sizeof path - strlen(path), "/shard_00000.part");
        FILE *file = fopen(path, "w");
        if (file == NULL || fclose(file)) abort();
    }
}

static void fault_begin(test_rank *r) {
    fault_leftovers *l = (fault_leftovers *)r->arg;
    host_run h;
    checkpoint *c = NULL;
    if (!host_open(&h, &l->job.spec, r)) return;
    fault_step(&h);
    fault_set(&l->job, &h, 1);
    const double start = test_now();
    if (checkpoint_create(&c, h.z, &l->job.o)) test_rank_fail(r, "%s", checkpoint_error(c));
    if (r->rank == 0) l->seconds = test_now() - start, l->left[0] = fault_left(l->job.o.folder);
    if (checkpoint_save(c, 1, NULL, 0)) test_rank_fail(r, "%s", checkpoint_error(c));
    if (r->rank == 0) l->left[1] = fault_left(l->job.o.folder);
    fault_set(&l->job, &h, 0);
    checkpoint_destroy(c);
    zero_destroy(h.z);
}

static void fault_many_left(const fault_job *j) {
    static fault_leftovers l;
    l.job = *j;
    l.job.kind = "creep";
    l.job.number = 2;
    l.job.o.asynchronous = 0;
    l.job.o.log = fault_told;
    l.job.o.log_user = l.told;
    fault_empty(j->o.folder);
    fault_leave(j->o.folder);
    const int ok = test_ranks(FAULT_RANKS, 0, fault_begin, &l);
    test_check(ok && l.seconds < 2e-3 * FAULT_LEFT / 4 && l.left[0] < FAULT_LEFT
                   && l.left[1] < l.left[0] && strstr(l.told, "folders of killed runs"),
               "%d folders are left: created after %.2f s, %d then, %d after a save; told: %s; %s",
               (int)FAULT_LEFT, l.seconds, l.left[0], l.left[1], l.told, test_first);
    fault_empty(j->o.folder);
}

int main(int argc, char **argv) {
    static fault_job j;
    char folder[300];
    const char *where = getenv("TMPDIR");
    if (!faulty_arm || !faulty_fired || !faulty_live) {
        fprintf(stderr, "faulty_io.so is not preloaded: see test_checkpoint_faults.sh\n");
        return 2;
    }
    (void)alarm(argc > 2 ? (unsigned)atoi(argv[2]) : 600); /* a hang fails */
    if (argc > 3) fault_random.state = strtoull(argv[3], NULL, 10);
    snprintf(folder, sizeof folder, "%.200s/test_faults.%d", where ? where : "/tmp", (int)getpid());
    fault_spec(&j.spec);
    j.o.folder = folder;
    test_check(test_ranks(FAULT_RANKS, 0, fault_record, &j), "%s", test_first);
    for (int at = FAULT_CREATE; at <= FAULT_LOAD; at++) {
        j.at = (fault_at)at;
        j.o.asynchronous = at == FAULT_ASIDE || at == FAULT_NEXT;
        if (at == FAULT_CREATE || at == FAULT_LOAD) { /* a good generation lies there */
            fault_empty(folder);
            j.at = FAULT_SAVE;
            j.k = FAULT_MOST;
            j.kind = "none";
            (void)fault_once(&j);
            j.at = (fault_at)at;
        }
        for (size_t i = 0; i < sizeof fault_types / sizeof *fault_types; i++)
            if (fault_chosen(argv[1], fault_types[i].kind)) fault_kind(&j, &fault_types[i]);
    }
    fault_empty(folder);
    if (fault_chosen(argv[1], "slow")) fault_deaths(&j);
    if (fault_chosen(argv[1], "creep")) fault_many_left(&j);
    return test_summary();
}
