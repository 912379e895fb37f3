/* test_checkpoint_kill.c KILLS [SEED] - ranks that train and save at every step are killed with
   SIGKILL at random instants, again and again, all at once or one shortly before the others. Every
   start must resume from a step not older than the last save that was reported done, with the very
   bits of a training that was never stopped. */
#include "../shared/host.h"
#include "../../adapters/checkpoint/checkpoint.h"

#include <signal.h>
#include <sys/prctl.h>

enum { KILL_STEPS = 60, KILL_RANKS = 3 };

/* What processes that are killed leave behind. */
typedef struct kill_shared {
    uint64_t hash[KILL_STEPS + 1]; /* of the state after a step, without a stop */
    int64_t done;                  /* the last save that was reported as durable; -1: none */
    int64_t resumed, starts, finished;
    int saving; /* rank 0 is inside checkpoint_save */
    int record; /* training without a stop, which fills in the hashes */
    int failed;
    char why[512];
    pid_t pid[KILL_RANKS];
} kill_shared;

typedef struct kill_job {
    host_spec spec;
    checkpoint_options o;
    kill_shared *s;
} kill_job;

static void kill_spec(host_spec *s, int nranks, int stage, int type) {
    const zero_tensor_desc list[] = {{"embedding", 3000, .layers = 1}, {"w", 1777, 2, .unit = 1}};
    host_small(s, 9, nranks, stage, list, 2);
    s->cfg.type = (zero_type)type;
    s->cfg.timeout_s = 20;
}

/* After each step, or after a load. */
static void kill_look(host_run *h, kill_shared *s) {
    const uint64_t hash = host_hash(h);
    if (s->record && h->rank->rank == 0) s->hash[h->step] = hash;
    if (!s->record && hash != s->hash[h->step])
        test_rank_fail(h->rank, "step %d is not the step of the training without a stop", h->step);
}

static void kill_resume(host_run *h, checkpoint *c, kill_shared *s) {
    const int64_t done = __atomic_load_n(&s->done, __ATOMIC_SEQ_CST);
    const checkpoint_result r = checkpoint_load(c, CHECKPOINT_NEWEST);
    if (r != CHECKPOINT_OK && r != CHECKPOINT_NONE)
        test_rank_fail(h->rank, "load: %s", checkpoint_error(c));
    if (checkpoint_step(c) < done)
        test_rank_fail(h->rank, "resumes from step %d, but %d was saved", (int)checkpoint_step(c),
                       (int)done);
    h->step = r == CHECKPOINT_OK ? (int)checkpoint_step(c) : 0;
    kill_look(h, s);
    /* what `done` is compared with must not change before all have looked at it */
    if (zero_barrier(h->z)) test_rank_fail(h->rank, "%s", zero_last_error(h->z));
    if (h->rank->rank == 0) s->resumed = h->step, s->starts++;
}

/* Asynchronous: what is durable then is the save before, and after checkpoint_wait the last. */
static void kill_done(host_run *h, const checkpoint *c, kill_shared *s) {
    checkpoint_report report;
    checkpoint_query(c, &report);
    if (h->rank->rank == 0) __atomic_store_n(&s->done, report.saved_step, __ATOMIC_SEQ_CST);
}

static void kill_save(host_run *h, checkpoint *c, kill_shared *s) {
    if (h->rank->rank == 0) __atomic_store_n(&s->saving, 1, __ATOMIC_SEQ_CST);
    if (checkpoint_save(c, h->step, NULL, 0))
        test_rank_fail(h->rank, "save: %s", checkpoint_error(c));
    if (h->rank->rank == 0) __atomic_store_n(&s->saving, 0, __ATOMIC_SEQ_CST);
    kill_done(h, c, s);
}

/* A training is over when its last save has been resumed from. */
static void kill_end(host_run *h, checkpoint *c, kill_shared *s) {
    if (checkpoint_wait(c)) test_rank_fail(h->rank, "wait: %s", checkpoint_error(c));
    kill_done(h, c, s);
    if (h->rank->rank == 0 && !h->rank->failed) s->finished = s->resumed == KILL_STEPS;
}

static void kill_body(test_rank *r) {
    kill_job *j = (kill_job *)r->arg;
    host_run h;
    checkpoint *c = NULL;
    j->s->pid[r->rank] = getpid();
    if (!host_open(&h, &j->spec, r)) return;
    if (!j->s->record && checkpoint_create(&c, h.z, &j->o))
        test_rank_fail(r, "create: %s", checkpoint_error(c));
    if (c && !r->failed) kill_resume(&h, c, j->s);
    if (!c && !r->failed) kill_look(&h, j->s);
    while (!r->failed && h.step < KILL_STEPS) {
        (void)host_train_step(&h);
        kill_look(&h, j->s);
        if (c && !r->failed) kill_save(&h, c, j->s);
    }
    if (c && !r->failed) kill_end(&h, c, j->s);
    checkpoint_destroy(c);
    zero_destroy(h.z);
    if (r->failed) {
        snprintf(j->s->why, sizeof j->s->why, "rank %d: %.490s", r->rank, r->why);
        j->s->failed = 1;
    }
}

static void kill_empty(const char *folder) {
    char command[600];
    snprintf(command, sizeof command, "rm -rf '%s'", folder);
    if (system(command)) abort();
}

static void kill_pause(long microseconds) {
    const struct timespec t = {microseconds / 1000000, microseconds % 1000000 * 1000};
    (void)nanosleep(&t, NULL);
}

/* A rank that ends by another signal than the one it is sent has failed as well. */
static void kill_lead(kill_job *j) {
    (void)setpgid(0, 0);
    if (!test_processes(j->spec.nranks, 0, kill_body, j, 60) && !j->s->failed
        && strstr(test_first, "signal 9") == NULL) {
        snprintf(j->s->why, sizeof j->s->why, "%.490s", test_first);
        j->s->failed = 1;
    }
    _exit(0);
}

/* Starts a job in a group of processes, and ends it after a while. 1: inside a save. */
static int kill_once(kill_job *j, test_random *r, long longest) {
    kill_shared *s = j->s;
    memset(s->pid, 0, sizeof s->pid);
    s->saving = 0;
    const pid_t leader = fork();
    if (leader == 0) kill_lead(j);
    if (leader < 0) abort();
    (void)setpgid(leader, leader);
    kill_pause(test_below(r, (int)longest));
    const pid_t one = s->pid[test_below(r, j->spec.nranks)];
    if (test_below(r, 2) && one > 0) { /* the others go on for a moment */
        (void)kill(one, SIGKILL);
        kill_pause(test_below(r, 10000));
    }
    const int saving = __atomic_load_n(&s->saving, __ATOMIC_SEQ_CST);
    (void)kill(-leader, SIGKILL);
    /* The ranks are this process's now: none is left that still writes. */
    while (waitpid(-leader, NULL, 0) > 0) continue;
    return saving;
}

static void kill_report(kill_job *j, int i) {
    test_check(!j->s->failed, "kill %d, %d ranks, stage %d: %s", i, j->spec.nranks,
               j->spec.cfg.stage, j->s->why);
    j->s->failed = 0;
}

int main(int argc, char **argv) {
    static kill_job j;
    char folder[300];
    const char *where = getenv("TMPDIR");
    const int kills = argc > 1 ? atoi(argv[1]) : 100;
    test_random r = {argc > 2 ? strtoull(argv[2], NULL, 10) : 1};
    int64_t starts = 0, resumes = 0, saving = 0;
    if (prctl(PR_SET_CHILD_SUBREAPER, 1)) abort(); /* ranks whose leader is gone */
    snprintf(folder, sizeof folder, "%.200s/test_kill.%d", where ? where : "/tmp", (int)getpid());
    j.s = (kill_shared *)test_shared(sizeof *j.s);
    j.o.folder = folder;
    j.o.keep_last = 2;
    for (int i = 0; i < kills; i++) {
        if (i % 25 == 0 || j.s->finished) { /* another training */
            kill_spec(&j.spec, 1 + test_below(&r, KILL_RANKS), test_below(&r, 4),
                      test_below(&r, 3));
            memset(j.s, 0, sizeof *j.s);
            j.s->record = 1;
            if (!test_ranks(j.spec.nranks, 0, kill_body, &j)) j.s->failed = 1;
            j.s->record = 0;
            j.s->done = -1;
            kill_empty(folder);
        }
        j.o.asynchronous = test_below(&r, 2);
        j.o.not_direct = test_below(&r, 2);
        j.s->starts = 0;
        saving += kill_once(&j, &r, 150000);
        starts += j.s->starts;
        resumes += j.s->starts && j.s->resumed > 0;
        kill_report(&j, i);
    }
    kill_empty(folder);
    printf("%d kills, %d of them inside a save; %d of %d starts that came so far resumed from a "
           "checkpoint\n",
           kills, (int)saving, (int)resumes, (int)starts);
    /* of those that came so far: on a loaded machine that are few of the kills */
    test_check(kills < 50 || resumes > starts / 4, "too few resumed: %d", (int)resumes);
    return test_summary();
}
