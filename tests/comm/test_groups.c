/* test_groups.c - groups of ranks beside data parallelism: every collective against plain loops
   (groups.h), on threads and processes, with the same bits; groups that are split, named, run
   beside each other and hand their ranks to contexts; and what goes wrong: calls that differ, a
   rank that does not come, leaves or is killed. */
#include "../shared/groups.h"
#include "../shared/host.h"

#include <math.h>
#include <signal.h>

typedef struct groups_run { /* in shared memory */
    int sizes, what;
    uint64_t hash[64];
    zero_result result[64];
    char text[64][600];
    double took[64];
} groups_run;

static zero_group *groups_open(test_rank *r, double timeout_s) {
    const zero_comm comm = test_comm(r);
    zero_group *g = NULL;
    if (zero_group_open(&g, &comm, NULL, timeout_s))
        test_rank_fail(r, "opens: %s", zero_group_error(g));
    return g;
}

static int groups_go(int processes, int n, void (*body)(test_rank *), groups_run *run) {
    return processes ? test_processes(n, 0, body, run, 100) : test_ranks(n, 0, body, run);
}

/* ---- collectives ---- */

static void groups_rank(test_rank *r) {
    groups_run *run = (groups_run *)r->arg;
    groups_case c;
    zero_group *g = groups_open(r, 30);
    if (!r->failed && !groups_all(&c, g, run->sizes)) test_rank_fail(r, "%s", c.why);
    if (!r->failed) run->hash[r->rank] = c.hash;
    zero_group_close(g);
}

static void groups_collectives(groups_run *run) {
    uint64_t hash[64];
    for (int n = 1; n <= 6; n++)
        for (int processes = 0; processes < 2; processes++) {
            run->sizes = n < 4 ? GROUPS_SIZES : GROUPS_SIZES - 1;
            test_check(groups_go(processes, n, groups_rank, run), "%d ranks, %s: %s", n,
                       processes ? "processes" : "threads", test_first);
            if (processes)
                test_check(!memcmp(hash, run->hash, (size_t)n * sizeof *hash),
                           "%d ranks: threads and processes receive the same", n);
            memcpy(hash, run->hash, sizeof hash);
        }
    run->sizes = 4;
    test_check(test_ranks(17, 0, groups_rank, run), "17 threads: %s", test_first);
}

/* ---- groups that are split ---- */

/* Six ranks: colours 0 1 2 0 1 -1, keys backwards. */
static void groups_split_rank(test_rank *r) {
    static const int rank_of[6] = {1, 1, 0, 0, 0, 0}, size_of[6] = {2, 2, 1, 2, 2, 1};
    zero_group *all = groups_open(r, 30), *part = NULL, *again = NULL, *none = all;
    groups_case c;
    const int colour = r->rank == 5 ? -1 : r->rank % 3;
    if (r->failed || zero_group_split(all, colour, -r->rank, &part)) {
        test_rank_fail(r, "splits: %s", zero_group_error(all));
        return;
    }
    if ((part == NULL) != (r->rank == 5)) test_rank_fail(r, "colour %d", colour);
    if (zero_group_rank(part) != rank_of[r->rank] || zero_group_size(part) != size_of[r->rank])
        test_rank_fail(r, "is rank %d of %d", zero_group_rank(part), zero_group_size(part));
    if (zero_group_split(all, -3, 0, &none) || none) test_rank_fail(r, "a group of nobody");
    if (part && !r->failed && !groups_all(&c, part, 5)) test_rank_fail(r, "a part: %s", c.why);
    /* a part is split on, and ranks of different groups do not wait for each other */
    if (part && zero_group_split(part, 0, -zero_group_rank(part), &again))
        test_rank_fail(r, "splits on: %s", zero_group_error(part));
    if (part && zero_group_rank(again) != zero_group_size(part) - 1 - zero_group_rank(part))
        test_rank_fail(r, "the second split: rank %d", zero_group_rank(again));
    if (again && !r->failed && !groups_all(&c, again, 4)) test_rank_fail(r, "again: %s", c.why);
    if (!r->failed && !groups_all(&c, all, 3)) test_rank_fail(r, "all, after: %s", c.why);
    zero_group_close(again);
    zero_group_close(part);
    zero_group_close(all);
}

/* Rows and columns of a 2 x 3 grid, used in turns, each rank's own way. */
static void groups_grid_rank(test_rank *r) {
    zero_group *all = groups_open(r, 30), *row = NULL, *column = NULL;
    if (r->failed || zero_group_split(all, r->rank / 3, 0, &row)
        || zero_group_split(all, r->rank % 3, 0, &column)) {
        test_rank_fail(r, "splits: %s", zero_group_error(all));
        return;
    }
    for (int i = 0; i < 200 && !r->failed; i++) {
        float x[3000];
        const size_t n = i % 3 ? 7 : 3000;
        for (size_t k = 0; k < n; k++) x[k] = (float)(r->rank + i);
        if (zero_group_all_reduce(row, x, n, ZERO_F32, ZERO_SUM)
            || zero_group_all_reduce(column, x, n, ZERO_F32, ZERO_SUM))
            test_rank_fail(r, "%s %s", zero_group_error(row), zero_group_error(column));
        for (size_t k = 0; k < n; k++)
            if (x[k] != (float)(15 + 6 * i)) test_rank_fail(r, "round %d: %g", i, (double)x[k]);
    }
    zero_group_close(row);
    zero_group_close(column);
    zero_group_close(all);
}

static void groups_splits(groups_run *run) {
    for (int processes = 0; processes < 2; processes++) {
        test_check(groups_go(processes, 6, groups_split_rank, run), "split, %s: %s",
                   processes ? "processes" : "threads", test_first);
        test_check(groups_go(processes, 6, groups_grid_rank, run), "a grid, %s: %s",
                   processes ? "processes" : "threads", test_first);
    }
}

/* ---- contexts ---- */

/* 2 x 2: each column shards by itself, beside messages along the rows, at every stage. */
static void groups_context_rank(test_rank *r) {
    static const zero_tensor_desc desc[] = {{.name = "a", .numel = 97, .layers = 3},
                                            {.name = "b", .numel = 10, .layers = 3},
                                            {.name = "c", .numel = 33, .layers = 1, .unit = 1}};
    zero_group *all = groups_open(r, 30), *row = NULL, *column = NULL;
    if (r->failed || zero_group_split(all, r->rank / 2, 0, &row)
        || zero_group_split(all, r->rank % 2, 0, &column)) {
        test_rank_fail(r, "splits: %s", zero_group_error(all));
        return;
    }
    zero_group_name(row, "tp");
    zero_group_name(column, "dp");
    for (int stage = 0; stage < 4 && !r->failed; stage++) {
        host_spec s;
        host_run h;
        host_reference reference;
        test_rank mine = *r;
        const zero_comm comm = zero_group_comm(column);
        host_small(&s, (uint64_t)(7 + r->rank % 2), 2, stage, desc, 3);
        s.integer = 1;
        s.adamw.max_norm = 0;
        mine.rank = comm.rank;
        mine.local = (zero_local *)comm.handle;
        host_reference_open(&reference, &s);
        int ok = host_open(&h, &s, &mine);
        h.reference = &reference;
        for (int step = 0; step < 3 && ok; step++) {
            float x = (float)step;
            ok = host_train_step(&h);
            host_reference_step(&reference, &s, 0, step, 1);
            if (zero_group_all_reduce(row, &x, 1, ZERO_F32, ZERO_SUM) || x != 2 * (float)step)
                test_rank_fail(&mine, "beside a step: %s", zero_group_error(row));
        }
        ok = ok && host_compare(&h, ZERO_PARAMETER, reference.p, "parameter")
             && host_compare(&h, ZERO_MOMENT_2, reference.v, "v");
        if (mine.failed) test_rank_fail(r, "stage %d: %s", stage, mine.why);
        zero_destroy(h.z);
        host_reference_close(&reference, &s);
    }
    zero_group_close(row);
    zero_group_close(column);
    zero_group_close(all);
}

/* ---- what goes wrong ---- */

static zero_result groups_call(zero_group *g, int what, int odd) {
    static float x[4][40000];
    float *mine = x[zero_group_rank(g) % 4];
    zero_group *none = NULL;
    switch (what) {
    case 0: /* another collective */
        return odd ? zero_group_all_gather(g, mine, mine + 100, 64)
                   : zero_group_all_reduce(g, mine, 512, ZERO_F32, ZERO_SUM);
    case 1: /* other sizes */
        return zero_group_all_reduce(g, mine, odd ? 30001 : 30000, ZERO_F32, ZERO_SUM);
    case 2: /* another type */
        return zero_group_all_reduce(g, mine, 8, odd ? ZERO_BF16 : ZERO_F32, ZERO_SUM);
    case 3: /* another root */ return zero_group_broadcast(g, mine, 100, odd);
    case 4: /* messages of other sizes */
        return odd ? zero_group_send(g, mine, 100, 0) : zero_group_receive(g, mine, 104, 1);
    case 5: /* a barrier */
        return odd ? zero_group_barrier(g)
                   : zero_group_all_reduce(g, mine, 512, ZERO_F32, ZERO_SUM);
    case 6: /* a split */
        return odd ? zero_group_split(g, -1, 0, &none)
                   : zero_group_all_gather(g, mine, mine + 100, 64);
    default: /* order: a message here, a sum there */
        return odd ? zero_group_send(g, mine, 4, 0)
                   : zero_group_all_reduce(g, mine, 1, ZERO_F32, ZERO_SUM);
    }
}

static void groups_mismatch_rank(test_rank *r) {
    groups_run *run = (groups_run *)r->arg;
    zero_group *g = groups_open(r, 20);
    const double start = test_now();
    zero_group_name(g, "tp");
    zero_result e = groups_call(g, run->what, r->rank == 1);
    float y = 0; /* who only sends, and has sent, learns of it here */
    for (int i = 0; i < 2 && !e; i++) e = zero_group_all_reduce(g, &y, 1, ZERO_F32, ZERO_SUM);
    run->took[r->rank] = test_now() - start;
    run->result[r->rank] = e;
    snprintf(run->text[r->rank], sizeof run->text[0], "%s", zero_group_error(g));
    float x = 0;
    if (!r->failed && zero_group_all_reduce(g, &x, 1, ZERO_F32, ZERO_SUM) != e)
        test_rank_fail(r, "the group goes on: %s", zero_group_error(g));
    zero_group_close(g);
}

static void groups_mismatches(groups_run *run) {
    static const char *const says[][2] = {{"all_reduce of 512 f32", "all_gather of 64 bytes"},
                                          {"all_reduce of 30000 f32", "all_reduce of 30001 f32"},
                                          {"all_reduce of 8 f32", "all_reduce of 8 bf16"},
                                          {"a broadcast of 100 bytes from rank ", ""},
                                          {"sends 100 bytes", "expects 104"},
                                          {"all_reduce of 512 f32", "a barrier"},
                                          {"all_gather of 64 bytes", "a split"},
                                          {"all_reduce of 1 f32", "messages"}};
    for (int what = 0; what < 8; what++)
        for (int processes = 0; processes < 2; processes++)
            for (int n = 2; n < (what < 3 ? 4 : 3); n++) {
                run->what = what;
                memset(run->result, 0, sizeof run->result);
                const int ok = groups_go(processes, n, groups_mismatch_rank, run);
                int found = 0;
                for (int i = 0; i < n; i++) {
                    const int told = strstr(run->text[i], says[what][0])
                                     && strstr(run->text[i], says[what][1])
                                     && strstr(run->text[i], "tp 1");
                    found += run->result[i] == ZERO_ERR_MISMATCH;
                    test_check(ok && told && run->took[i] < 5,
                               "mismatch %d, %s, rank %d of %d: %d after %g s: %s (%s)", what,
                               processes ? "processes" : "threads", i, n, (int)run->result[i],
                               run->took[i], run->text[i], test_first);
                }
                test_check(found == n, "mismatch %d: %d of %d ranks find it", what, found, n);
            }
}

/* tp 1 of pp 0 does not come; those of pp 1 come with other sizes. */
static void groups_late_rank(test_rank *r) {
    groups_run *run = (groups_run *)r->arg;
    zero_group *all = groups_open(r, 1), *tp = NULL, *pp = NULL, *old = NULL;
    float x[2000] = {0};
    if (r->failed || zero_group_split(all, r->rank / 2, 0, &tp)
        || zero_group_split(all, r->rank % 2, 0, &pp)
        || zero_group_split(all, r->rank % 2, 0, &old)) {
        test_rank_fail(r, "splits: %s", zero_group_error(all));
        return;
    }
    zero_group_name(old, "old"); /* neither closed groups nor earlier names are reported */
    zero_group_name(tp, "first");
    zero_group_name(tp, "tp");
    zero_group_name(tp, "tp");
    zero_group_close(old);
    zero_group_name(pp, "pp");
    if (zero_group_barrier(all)) test_rank_fail(r, "meets: %s", zero_group_error(all));
    run->result[r->rank] = ZERO_OK;
    if (r->rank == 0) {
        run->result[0] = zero_group_all_reduce(tp, x, 2000, ZERO_F32, ZERO_SUM);
        snprintf(run->text[0], sizeof run->text[0], "%s", zero_group_error(tp));
    } else if (r->rank == 1 && run->what == 0) {
        usleep(1500000);
        run->result[1] = zero_group_all_reduce(tp, x, 2000, ZERO_F32, ZERO_SUM);
        snprintf(run->text[1], sizeof run->text[1], "%s", zero_group_error(tp));
    } else if (r->rank >= 2) {
        run->result[r->rank] =
            zero_group_all_reduce(tp, x, 6 + (size_t)r->rank, ZERO_F32, ZERO_SUM);
        snprintf(run->text[r->rank], sizeof run->text[0], "%s", zero_group_error(tp));
    } /* what 1: closes */
    zero_group_close(tp);
    zero_group_close(pp);
    zero_group_close(all);
}

static void groups_late(groups_run *run) {
    for (int processes = 0; processes < 2; processes++) {
        run->what = 0;
        test_check(groups_go(processes, 4, groups_late_rank, run), "late: %s", test_first);
        test_check(run->result[0] == ZERO_ERR_TIMEOUT && run->result[1] == ZERO_ERR_PEER
                       && strstr(run->text[0], "tp 1 (rank 1: tp 1, pp 0) did not come to "
                                               "all_reduce within 1 s")
                       && strstr(run->text[1], "tp 0 (rank 0: tp 0, pp 0) failed"),
                   "late: %d %s, %d %s", (int)run->result[0], run->text[0], (int)run->result[1],
                   run->text[1]);
        for (int i = 2; i < 4; i++)
            test_check(run->result[i] == ZERO_ERR_MISMATCH
                           && strstr(run->text[i], "tp 0 (rank 2: tp 0, pp 1)")
                           && strstr(run->text[i], "tp 1 (rank 3: tp 1, pp 1)"),
                       "other sizes: %d %s", (int)run->result[i], run->text[i]);
        run->what = 1;
        test_check(groups_go(processes, 4, groups_late_rank, run), "leaves: %s", test_first);
        test_check(run->result[0] == ZERO_ERR_PEER
                       && strstr(run->text[0], "tp 1 (rank 1: tp 1, pp 0) closed its group"),
                   "leaves: %d %s", (int)run->result[0], run->text[0]);
    }
}

/* Rank 3 is killed; every other rank is inside a group or a context that it may not be of. */
static int groups_killed_rank(const zero_comm *comm, void *arg) {
    groups_run *run = (groups_run *)arg;
    const zero_tensor_desc d = {.name = "w", .numel = 100};
    zero_group *all = NULL, *tp = NULL, *dp = NULL;
    zero_ctx *z = NULL;
    zero_config cfg = {0};
    float x = 0;
    zero_result e = zero_group_open(&all, comm, NULL, 60);
    if (!e) e = zero_group_split(all, comm->rank / 2, 0, &tp);
    if (!e) e = zero_group_split(all, comm->rank % 2, 0, &dp);
    zero_group_name(tp, "tp");
    zero_group_name(dp, "dp");
    const zero_comm data = zero_group_comm(dp);
    cfg.timeout_s = 60;
    if (!e) e = zero_create(&z, &cfg, &data);
    if (!e) e = zero_tensor(z, &d);
    if (!e) e = zero_build(z);
    if (!e) e = zero_group_barrier(all);
    if (e) return 1;
    if (comm->rank == 3) {
        (void)zero_group_receive(tp, &x, 0, 0);
        (void)raise(SIGKILL);
    }
    run->took[comm->rank] = test_now();
    if (comm->rank == 0) e = zero_group_receive(tp, &x, 4, 1); /* of ranks 0 and 1 */
    if (comm->rank == 1) e = zero_barrier(z);                  /* of ranks 1 and 3 */
    if (comm->rank == 2) e = zero_group_receive(tp, &x, 4, 1); /* of ranks 2 and 3 */
    run->took[comm->rank] = test_now() - run->took[comm->rank];
    run->result[comm->rank] = e;
    snprintf(run->text[comm->rank], sizeof run->text[0], "%s",
             comm->rank == 1 ? zero_last_error(z) : zero_group_error(tp));
    zero_destroy(z);
    zero_group_close(tp);
    zero_group_close(dp);
    zero_group_close(all);
    return 2;
}

static void groups_killed(groups_run *run) {
    const double start = test_now();
    const pid_t child = fork();
    int status = 0;
    if (child == 0) _exit(zero_run_local(4, groups_killed_rank, run));
    (void)waitpid(child, &status, 0);
    test_check(WIFEXITED(status) && WEXITSTATUS(status) == 128 + SIGKILL && test_now() - start < 10,
               "a killed rank: %d after %g s", WEXITSTATUS(status), test_now() - start);
    for (int i = 0; i < 3; i++)
        test_check(run->result[i] == ZERO_ERR_PEER && run->took[i] < 3
                       && strstr(run->text[i], "rank 3 (tp 1, dp 1) was ended by signal 9"),
                   "a killed rank, rank %d: %d after %g s: %s", i, (int)run->result[i],
                   run->took[i], run->text[i]);
}

/* What is refused leaves the group as it was. */
static void groups_refused_rank(test_rank *r) {
    zero_group *g = groups_open(r, 20);
    float x = (float)r->rank;
    const zero_message self = {r->rank, 1, &x, 4};
    const zero_result e[] = {
        zero_group_all_reduce(g, NULL, 1, ZERO_F32, ZERO_SUM),
        zero_group_all_reduce(g, &x, 1, (zero_type)9, ZERO_SUM),
        zero_group_all_reduce(g, &x, 1, ZERO_F32, (zero_reduction)2),
        zero_group_broadcast(g, &x, 4, 2),
        zero_group_send_receive(g, &self, 1),
        zero_group_send(g, NULL, 4, 1 - r->rank),
        zero_group_send_receive(g, NULL, 1),
    };
    for (size_t i = 0; i < sizeof e / sizeof *e; i++)
        if (e[i] != ZERO_ERR_ARGUMENT) test_rank_fail(r, "refusal %zu: %d", i, (int)e[i]);
    if (!zero_group_error(g)[0]) test_rank_fail(r, "no sentence");
    zero_group_close(g);
}

/* Rank 1 opens with a time limit that is none: its peer learns of it. */
static void groups_limits_rank(test_rank *r) {
    static const double limits[] = {NAN, -1, INFINITY, -INFINITY};
    const zero_comm comm = test_comm(r);
    zero_group *g = NULL;
    const double limit = r->rank ? limits[*(const int *)r->arg] : 20;
    const zero_result e = zero_group_open(&g, &comm, NULL, limit);
    if (e != (r->rank ? ZERO_ERR_ARGUMENT : ZERO_ERR_PEER)
        || !strstr(zero_group_error(g), "timeout_s"))
        test_rank_fail(r, "timeout_s %g: %d: %s", limit, (int)e, zero_group_error(g));
    zero_group_close(g);
}

/* Parts outlive the group that they were split off, and are whole. */
static void groups_order_rank(test_rank *r) {
    zero_group *all = groups_open(r, 20), *part = NULL, *again = NULL;
    groups_case c;
    if (r->failed || zero_group_split(all, r->rank / 2, 0, &part)
        || zero_group_split(part, 0, 0, &again)) {
        test_rank_fail(r, "splits: %s", zero_group_error(all));
        return;
    }
    zero_group_close(all);
    zero_group_close(part);
    if (!groups_all(&c, again, 3)) test_rank_fail(r, "a part of closed groups: %s", c.why);
    zero_group_close(again);
}

/* More than memory can have, so that products of sizes would overflow. */
static void groups_huge_rank(test_rank *r) {
    zero_group *g = groups_open(r, 20);
    static double x[2];
    const size_t n = (size_t)1 << 61, bytes = (size_t)1 << 63;
    const zero_message m = {1 - r->rank, 1, x, bytes};
    const zero_result e[] = {zero_group_all_reduce(g, x, n, ZERO_F64, ZERO_SUM),
                             zero_group_reduce_scatter(g, x, x, n / 2, ZERO_F64, ZERO_SUM),
                             zero_group_all_gather(g, x, x, bytes),
                             zero_group_all_to_all(g, x, x, bytes),
                             zero_group_broadcast(g, x, bytes, 0),
                             zero_group_send_receive(g, &m, 1)};
    for (size_t i = 0; i < sizeof e / sizeof *e; i++)
        if (e[i] != ZERO_ERR_ARGUMENT) test_rank_fail(r, "huge %zu: %d", i, (int)e[i]);
    if (zero_group_barrier(g)) test_rank_fail(r, "goes on: %s", zero_group_error(g));
    zero_group_close(g);
}

static void groups_nothing(void) {
    const zero_comm self = {ZERO_COMM_SELF, 0, NULL, 0}, none = {(zero_comm_kind)77, 0, NULL, 0};
    zero_group *g = NULL, *part = NULL;
    groups_case c;
    test_check(zero_group_open(NULL, &self, NULL, 0) == ZERO_ERR_ARGUMENT, "no place for a group");
    test_check(zero_group_open(&g, &none, NULL, 0) == ZERO_ERR_UNSUPPORTED, "no such kind");
    zero_group_close(g);
    test_check(!zero_group_open(&g, &self, NULL, 0) && groups_all(&c, g, 4), "one rank: %s", c.why);
    test_check(!zero_group_split(g, 3, 0, &part) && groups_all(&c, part, 4), "its part: %s", c.why);
    zero_group_close(part);
    zero_group_close(g);
    zero_group_close(NULL);
    test_check(zero_group_barrier(NULL) == ZERO_ERR_ARGUMENT && zero_group_rank(NULL) == 0
                   && zero_group_size(NULL) == 1 && zero_group_error(NULL)[0],
               "no group");
}

int main(void) {
    groups_run *run = (groups_run *)test_shared(sizeof *run);
    (void)alarm(240);
    groups_killed(run); /* first: it forks ranks */
    groups_nothing();
    groups_collectives(run);
    groups_splits(run);
    for (int processes = 0; processes < 2; processes++)
        test_check(groups_go(processes, 4, groups_context_rank, run), "contexts, %s: %s",
                   processes ? "processes" : "threads", test_first);
    groups_mismatches(run);
    groups_late(run);
    test_check(test_ranks(2, 0, groups_refused_rank, run), "refusals: %s", test_first);
    test_check(test_ranks(2, 0, groups_huge_rank, NULL), "huge: %s", test_first);
    for (int i = 0; i < 4; i++)
        test_check(test_ranks(2, 0, groups_limits_rank, &i), "limits: %s", test_first);
    for (int processes = 0; processes < 2; processes++)
        test_check(groups_go(processes, 4, groups_order_rank, run), "closed first, %s: %s",
                   processes ? "processes" : "threads", test_first);
    return test_summary();
}
