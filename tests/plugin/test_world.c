/* test_world.c - contexts beside tensor, pipeline and expert groups: a model that is cut into
   stages has the weights and the norm, bit for bit, of the same micro-steps without stages, at
   every stage of ZeRO; a tied tensor is summed first and counted once; an overflow on one rank
   skips the step on all; copies are left out of the norm; experts shard over ranks of their own and
   step with what is dense. */
#include "../shared/harness.h"

#include <math.h>

enum { UNITS = 4, WIDTH = 1500, TIED = 333, STEPS = 3, MICRO = 3, DATA = 2 };

typedef struct world_run { /* in shared memory; [0]: the whole model, [1]: in stages */
    int zero_stage, stages, tied, overflow, processes;
    uint64_t hash[2][UNITS + 1][STEPS]; /* of the weights, as rank 0 of each data group sees them */
    double norm[2][8][STEPS];
    int stepped[2][8][STEPS];
    char bad[2][8][40];
} world_run;

typedef struct world_host {
    float *w, *e;
} world_host;

/* One rank: stage s of p has units s * UNITS / p on, and the tied tensor as its last unit if it is
   the first or the last stage. */
typedef struct world_rank {
    test_rank *r;
    world_run *run;
    int stage, stages, data, first, units, has_tied;
    zero_group *all, *dp, *ends;
    zero_ctx *z;
    world_host p, g;
    int step;
} world_rank;

#define WORLD_TRY(w, call)                                                                         \
    do {                                                                                           \
        if (call) {                                                                                \
            test_rank_fail((w)->r, "%s: %s %s", #call, zero_last_error((w)->z),                    \
                           zero_group_error((w)->all));                                            \
            return 0;                                                                              \
        }                                                                                          \
    } while (0)

static float world_value(int unit, size_t i, int data, int step, int micro, int use) {
    const uint64_t place = (uint64_t)(((unit * 8 + data) * 16 + step) * 16 + micro) * 4;
    const uint64_t h = test_mix(test_mix(place + (uint64_t)use) + i);
    return (float)((double)(h >> 40) / (double)(1 << 24) - 0.5);
}

static int world_open(world_rank *w) {
    const zero_comm comm = test_comm(w->r);
    const int p = w->stages, ends = w->stage == 0 || w->stage == p - 1;
    static const int number[UNITS + 2] = {0, 1, 2, 3, 4, 5};
    int numbers[UNITS + 1];
    zero_config cfg = {0};
    w->units = UNITS / p;
    w->first = w->stage * w->units;
    w->has_tied = w->run->tied && ends;
    WORLD_TRY(w, zero_group_open(&w->all, &comm, NULL, 30));
    WORLD_TRY(w, zero_group_split(w->all, w->stage, 0, &w->dp));
    WORLD_TRY(w, zero_group_split(w->all, ends ? w->data : -1, 0, &w->ends));
    memcpy(numbers, number + w->first, (size_t)w->units * sizeof *numbers);
    numbers[w->units] = w->stage == 0 ? UNITS : UNITS + 1; /* the copy has a number of its own */
    const zero_comm data = zero_group_comm(w->dp);
    cfg.stage = w->run->zero_stage;
    cfg.micro_steps = MICRO;
    cfg.accumulation = ZERO_ACCUMULATE_LOCAL;
    cfg.threads = 1;
    cfg.timeout_s = 30;
    cfg.world = w->all;
    cfg.world_units = UNITS + 2;
    cfg.world_unit = numbers;
    WORLD_TRY(w, zero_create(&w->z, &cfg, &data));
    const zero_tensor_desc layers = {
        .name = "w", .numel = WIDTH, .layers = w->units, .field = offsetof(world_host, w)};
    const zero_tensor_desc tied = {.name = "e",
                                   .numel = TIED,
                                   .unit = w->units,
                                   .uses = p == 1 ? 2 : 1,
                                   .flags = ZERO_LATE | (w->stage ? ZERO_COPY : 0),
                                   .sum_over = w->has_tied && p > 1 ? w->ends : NULL,
                                   .field = offsetof(world_host, e)};
    WORLD_TRY(w, zero_tensor(w->z, &layers));
    if (w->has_tied) WORLD_TRY(w, zero_tensor(w->z, &tied));
    WORLD_TRY(w, zero_build(w->z));
    for (int u = 0; u < w->units + w->has_tied; u++) {
        float values[WIDTH];
        const int whole = u == w->units ? UNITS : w->first + u;
        const size_t n = u == w->units ? TIED : WIDTH;
        for (size_t i = 0; i < n; i++) values[i] = world_value(whole, i, 7, 0, 0, 3);
        WORLD_TRY(w, zero_write_tensor(w->z, u == w->units ? "e" : "w", ZERO_PARAMETER,
                                       u == w->units ? 0 : (size_t)u * WIDTH, n, values));
    }
    WORLD_TRY(w, zero_bind(w->z, &w->p, &w->g));
    return 1;
}

static int world_forward(world_rank *w) {
    for (int u = 0; u < w->units + w->has_tied; u++) {
        WORLD_TRY(w, zero_forward_begin(w->z, u, &w->p));
        WORLD_TRY(w, zero_forward_end(w->z, u));
    }
    return 1;
}

/* The lookup's and the classifier's part of the tied tensor: where there is one stage, added apart
   and then together at the last micro-step, as two stages do. */
static int world_tied(world_rank *w, int micro, int micros, float sums[2][TIED]) {
    const int first = w->stages > 1 && w->stage ? 1 : 0, last = w->stages == 1 || w->stage ? 1 : 0;
    WORLD_TRY(w, zero_backward_begin(w->z, w->units, NULL, &w->g));
    for (int use = first; use <= last; use++)
        for (size_t i = 0; i < TIED; i++) {
            const float x = world_value(UNITS, i, w->data, w->step, micro, use);
            sums[use][i] = micro ? sums[use][i] + x : x;
            if (micro + 1 == micros)
                w->g.e[i] = w->stages == 1 ? sums[0][i] + sums[1][i] : sums[use][i];
        }
    WORLD_TRY(w, zero_backward_end(w->z, w->units));
    if (w->stages > 1) return 1;
    WORLD_TRY(w, zero_backward_begin(w->z, w->units, NULL, &w->g));
    WORLD_TRY(w, zero_backward_end(w->z, w->units));
    return 1;
}

static int world_backward(world_rank *w, int micro, float sums[2][TIED]) {
    for (int u = w->units - 1; u >= 0; u--) {
        WORLD_TRY(w, zero_backward_begin(w->z, u, &w->p, &w->g));
        float *g = w->g.w + (size_t)u * WIDTH;
        for (size_t i = 0; i < WIDTH; i++)
            g[i] += world_value(w->first + u, i, w->data, w->step, micro, 0);
        const int last_unit = w->first + u == UNITS - 1;
        if (w->run->overflow && last_unit && w->data == 1 && w->step == 1) g[77] = INFINITY;
        WORLD_TRY(w, zero_backward_end(w->z, u));
    }
    return !w->has_tied || world_tied(w, micro, MICRO, sums);
}

/* All micro-steps of a step: one after the other, or in the order of 1F1B: the earlier the stage,
   the more forwards before the first backward. */
static int world_passes(world_rank *w) {
    float sums[2][TIED];
    const int ahead = w->stages - w->stage;
    for (int micro = 0; micro < MICRO && w->stages == 1; micro++) {
        WORLD_TRY(w, zero_pass_begin(w->z, ZERO_TRAIN, micro, MICRO));
        if (!world_forward(w) || !world_backward(w, micro, sums)) return 0;
        WORLD_TRY(w, zero_pass_end(w->z));
    }
    if (w->stages == 1) return 1;
    WORLD_TRY(w, zero_pass_begin(w->z, ZERO_TRAIN, ZERO_TOGETHER, MICRO));
    for (int i = 0; i < MICRO + ahead - 1; i++) {
        if (i < MICRO && !world_forward(w)) return 0;
        if (i >= ahead - 1 && !world_backward(w, i - ahead + 1, sums)) return 0;
    }
    WORLD_TRY(w, zero_pass_end(w->z));
    return 1;
}

static int world_look(world_rank *w) {
    float values[WIDTH];
    for (int u = 0; u < w->units + w->has_tied; u++) {
        const int tied = u == w->units;
        uint64_t hash = 0;
        WORLD_TRY(w, zero_read_tensor(w->z, tied ? "e" : "w", ZERO_PARAMETER,
                                      tied ? 0 : (size_t)u * WIDTH, tied ? TIED : WIDTH, values));
        for (size_t i = 0; i < (tied ? TIED : WIDTH); i++) {
            uint32_t bits;
            memcpy(&bits, &values[i], sizeof bits);
            hash = test_mix(hash ^ bits);
        }
        uint64_t *seen = &w->run->hash[w->stages > 1][tied ? UNITS : w->first + u][w->step];
        if (w->data == 0 && !(w->stage && tied)) __atomic_store_n(seen, hash, __ATOMIC_RELEASE);
        for (int k = 0; k < 5000 && w->stage && tied && !__atomic_load_n(seen, __ATOMIC_ACQUIRE);
             k++)
            usleep(1000);
        if (w->stage && tied && __atomic_load_n(seen, __ATOMIC_ACQUIRE) != hash)
            test_rank_fail(w->r, "step %d: the copies of e differ", w->step);
    }
    return !w->r->failed;
}

static void world_body(test_rank *r) {
    world_rank w;
    const zero_hyper h = {0.01f, 0.9f, 0.95f, 1e-8f, 0.1f, 0.5f};
    memset(&w, 0, sizeof w);
    w.r = r;
    w.run = (world_run *)r->arg;
    w.stages = r->nranks / DATA;
    w.stage = r->rank / DATA;
    w.data = r->rank % DATA;
    int ok = world_open(&w);
    for (w.step = 0; w.step < STEPS && ok; w.step++) {
        const int in = w.stages > 1;
        zero_step_report report;
        ok = world_passes(&w) && !zero_reduce(w.z) && !zero_step(w.z, &h)
             && !zero_step_result(w.z, &report);
        if (!ok) test_rank_fail(r, "step %d: %s", w.step, zero_last_error(w.z));
        if (!ok) break;
        w.run->norm[in][r->rank][w.step] = report.norm;
        w.run->stepped[in][r->rank][w.step] = report.stepped;
        if (!report.stepped)
            snprintf(w.run->bad[in][r->rank], sizeof w.run->bad[0][0], "%s", report.bad_tensor);
        ok = world_look(&w);
    }
    zero_destroy(w.z);
    zero_group_close(w.ends);
    zero_group_close(w.dp);
    zero_group_close(w.all);
}

static int world_go(int processes, int n, void (*body)(test_rank *), void *arg) {
    return processes ? test_processes(n, 0, body, arg, 60) : test_ranks(n, 0, body, arg);
}

static void world_pipeline(world_run *run) {
    memset(run->hash, 0, sizeof run->hash);
    memset(run->bad, 0, sizeof run->bad);
    char what[100];
    snprintf(what, sizeof what, "stage %d, tied %d, overflow %d, %s", run->zero_stage, run->tied,
             run->overflow, run->processes ? "processes" : "threads");
    test_check(world_go(run->processes, DATA, world_body, run), "%s, whole: %s", what, test_first);
    for (int stages = 2; stages <= 4; stages += 2) {
        memset(run->hash[1], 0, sizeof run->hash[1]);
        test_check(world_go(run->processes, DATA * stages, world_body, run), "%s, %d stages: %s",
                   what, stages, test_first);
        test_check(!memcmp(run->hash[0], run->hash[1], sizeof run->hash[0]),
                   "%s, %d stages: the weights' bits", what, stages);
        for (int i = 0; i < DATA * stages; i++)
            for (int step = 0; step < STEPS; step++) {
                const double norm = run->norm[1][i][step], right = run->norm[0][0][step];
                const int skips = run->overflow && step == 1;
                test_check(run->stepped[1][i][step] == !skips && (skips || norm == right),
                           "%s, %d stages, rank %d, step %d: norm %.17g, whole %.17g, stepped %d",
                           what, stages, i, step, norm, right, run->stepped[1][i][step]);
            }
        if (run->overflow)
            test_check(!strcmp(run->bad[1][DATA * stages - 1], "w")
                           && strstr(run->bad[1][0], "another rank"),
                       "%s, %d stages: %s, %s is not finite", what, stages, run->bad[1][0],
                       run->bad[1][DATA * stages - 1]);
    }
}

/* ---- copies ---- */

typedef struct world_pair {
    float *a, *b;
} world_pair;

enum { WORLD_EVENTS = 1000 };
typedef struct world_seen { /* of all contexts of a rank */
    zero_event event[WORLD_EVENTS];
    int n;
} world_seen;
static void world_see(void *user, const zero_event *events, int n) {
    world_seen *s = (world_seen *)user;
    for (int i = 0; i < n && s->n < WORLD_EVENTS; i++) s->event[s->n++] = events[i];
}

/* Two tensor-parallel ranks: `a` is cut, `b` is on both, its gradients are summed over both. */

static void world_copies_rank(test_rank *r) {
    const zero_comm comm = test_comm(r), self = {ZERO_COMM_SELF, 0, NULL, 0};
    const zero_hyper h = {0.1f, 0, 0, 0, 0, 0};
    zero_config cfg = {0};
    zero_group *tp = NULL;
    zero_ctx *z = NULL;
    world_pair p = {NULL, NULL}, g = {NULL, NULL};
    double norm = 0, right = 0;
    uint64_t sums = 0;
    world_seen *told = (world_seen *)calloc(1, sizeof *told);
    const zero_tensor_desc a = {.name = "a", .numel = 700, .field = offsetof(world_pair, a)};
    zero_tensor_desc b = {.name = "b",
                          .numel = 500,
                          .flags = r->rank ? ZERO_COPY : 0,
                          .field = offsetof(world_pair, b)};
    int e = zero_group_open(&tp, &comm, NULL, 20);
    cfg.world = tp;
    cfg.optimizer = ZERO_SGD;
    cfg.stage = *(const int *)r->arg;
    cfg.trace = (cfg.trace_user = told) ? world_see : NULL;
    if (!e) e = zero_create(&z, &cfg, &self);
    const int last = cfg.stage % 2; /* b in the unit, or first */
    b.sum_over = tp;
    if (!e) e = zero_tensor(z, last ? &a : &b) || zero_tensor(z, last ? &b : &a);
    if (!e) e = zero_build(z) || zero_bind(z, &p, &g);
    if (!e) e = zero_pass_begin(z, ZERO_TRAIN, 0, 1) || zero_forward_begin(z, 0, &p);
    if (!e) e = zero_forward_end(z, 0) || zero_backward_begin(z, 0, &p, &g);
    for (size_t i = 0; i < 700 && !e; i++) g.a[i] = world_value(0, i, r->rank, 0, 0, 0);
    for (size_t i = 0; i < 500 && !e; i++) g.b[i] = world_value(1, i, r->rank, 0, 0, 0);
    if (!e) e = zero_backward_end(z, 0) || zero_pass_end(z) || zero_reduce(z);
    if (!e) e = zero_norm(z, &norm) || zero_step(z, &h);
    for (int rank = 0; rank < 2; rank++)
        for (size_t i = 0; i < 700; i++) right += pow((double)world_value(0, i, rank, 0, 0, 0), 2);
    float seen[500];
    if (!e) e = zero_read_tensor(z, "b", ZERO_PARAMETER, 0, 500, seen);
    if (e) test_rank_fail(r, "%s %s", zero_last_error(z), zero_group_error(tp));
    for (size_t i = 0; i < 500 && !e; i++) {
        const float sum = world_value(1, i, 0, 0, 0, 0) + world_value(1, i, 1, 0, 0, 0);
        right += (double)sum * (double)sum;
        if (seen[i] != 0.0f - 0.1f * sum)
            test_rank_fail(r, "b[%zu] is %g, expected %g", i, (double)seen[i],
                           (double)(-0.1f * sum));
    }
    if (!e && fabs(norm - sqrt(right)) > 3 * 0x1p-24 * norm) /* see UNIT_NORM_ERROR */
        test_rank_fail(r, "norm %.17g, expected %.17g", norm, sqrt(right));
    zero_destroy(z);
    for (int i = 0; i < told->n; i++) /* half of b, and the other half's sum */
        if (told->event[i].kind == ZERO_EVENT_ALL_REDUCE && told->event[i].bytes == sizeof seen
            && told->event[i].ranks == 2)
            sums += told->event[i].sent;
    if (!r->failed && sums != sizeof seen)
        test_rank_fail(r, "%llu bytes recorded of b's sum", (unsigned long long)sums);
    free(told);
    zero_group_close(tp);
}

/* ---- experts ---- */

/* No two of them have one number, and what a wait is for is among them. */
static void world_check_seen(test_rank *r, const world_seen *s) {
    if (r->failed || !s) return;
    if (s->n < 30 || s->n == WORLD_EVENTS) test_rank_fail(r, "%d events", s->n);
    for (int i = 0; i < s->n; i++) {
        const zero_event *e = &s->event[i], *cause = NULL;
        for (int k = 0; k < s->n; k++) {
            if (k != i && s->event[k].number == e->number)
                test_rank_fail(r, "%s and %s have one number", zero_event_name(e->kind),
                               zero_event_name(s->event[k].kind));
            if (s->event[k].number == e->flow) cause = &s->event[k];
        }
        if (e->kind == ZERO_EVENT_WAIT && e->cause != ZERO_EVENT_WAIT
            && (!cause || cause->kind != e->cause || e->end + 1e-3 < cause->begin))
            test_rank_fail(r, "a wait for %s is for something else", zero_event_name(e->cause));
    }
}

/* All step but where a gradient is not finite: b's of expert 1 at step 1, which the other expert's
   ranks know nothing of, and a's at step 2. */
static void world_check_reports(test_rank *r, const zero_step_report report[2],
                                const zero_tensor_desc d[2], int step) {
    const zero_step_report *bad = &report[step == 1];
    if (report[0].stepped != !step || report[1].stepped != !step)
        test_rank_fail(r, "step %d: %d %d", step, report[0].stepped, report[1].stepped);
    if (step && (step == 2 || r->rank % 2)
        && (!bad->bad_tensor || strcmp(bad->bad_tensor, d[step == 1].name) || bad->bad_index != 11))
        test_rank_fail(r, "step %d: %s[%zu] is not finite, expected %s[11]", step,
                       bad->bad_tensor ? bad->bad_tensor : "nothing", bad->bad_index,
                       d[step == 1].name);
}

/* Four data-parallel ranks; ranks 0 and 2 have expert 0, ranks 1 and 3 expert 1. */
static void world_experts_rank(test_rank *r) {
    const zero_comm comm = test_comm(r);
    const zero_hyper h = {0.1f, 0, 0, 0, 0, 1.0f};
    zero_group *all = NULL, *edp = NULL;
    zero_ctx *z[2] = {NULL, NULL};
    world_pair p = {NULL, NULL}, g = {NULL, NULL};
    zero_config cfg = {0};
    zero_step_report report[2];
    static const int number[2] = {0, 1};
    const int expert = r->rank % 2;
    world_seen *told = (world_seen *)calloc(1, sizeof *told);
    const zero_tensor_desc d[2] = {{.name = "a", .numel = 700, .field = offsetof(world_pair, a)},
                                   {.name = "b", .numel = 500, .field = offsetof(world_pair, b)}};
    int e = zero_group_open(&all, &comm, NULL, 20);
    if (!e) e = zero_group_split(all, expert, 0, &edp);
    const zero_comm of_experts = zero_group_comm(edp);
    cfg.world = all;
    cfg.world_units = 2;
    cfg.optimizer = ZERO_SGD;
    cfg.stage = *(const int *)r->arg;
    cfg.trace = (cfg.trace_user = told) ? world_see : NULL;
    for (int k = 0; k < 2 && !e; k++) {
        cfg.world_unit = &number[k];
        cfg.joins = k ? z[0] : NULL;
        cfg.divisor = k ? 4 : 0;
        e = zero_create(&z[k], &cfg, k ? &of_experts : &comm) || zero_tensor(z[k], &d[k])
            || zero_build(z[k]) || zero_bind(z[k], &p, &g);
    }
    for (int step = 0; step < 3 && !e; step++) {
        for (int k = 0; k < 2 && !e; k++) {
            e = zero_pass_begin(z[k], ZERO_TRAIN, 0, 1) || zero_forward_begin(z[k], 0, &p)
                || zero_forward_end(z[k], 0) || zero_backward_begin(z[k], 0, &p, &g);
            float *to = k ? g.b : g.a;
            for (size_t i = 0; i < d[k].numel && !e; i++)
                to[i] = world_value(k, i, r->rank, step, 0, 0);
            if (!e && k == 2 - step && r->rank == 3) to[11] = NAN; /* b's, then a's */
            if (!e) e = zero_backward_end(z[k], 0) || zero_pass_end(z[k]);
        }
        if (!e && zero_reduce(z[0]) != ZERO_ERR_STATE) test_rank_fail(r, "the order of reduces");
        if (!e) e = zero_reduce(z[1]);
        if (!e && zero_step(z[1], &h) != ZERO_ERR_STATE) test_rank_fail(r, "the order of steps");
        if (!e) e = zero_reduce(z[0]) || zero_step(z[1], &h) || zero_step(z[0], &h);
        for (int k = 0; k < 2 && !e; k++) e = zero_step_result(z[k], &report[k]);
        double right = 0;
        for (size_t i = 0; i < 700; i++) {
            float x = 0;
            for (int q = 0; q < 4; q++) x += world_value(0, i, q, step, 0, 0);
            right += pow((double)x / 4, 2);
        }
        for (int k = 0; k < 2; k++)
            for (size_t i = 0; i < 500; i++) {
                const float x =
                    world_value(1, i, k, step, 0, 0) + world_value(1, i, k + 2, step, 0, 0);
                right += pow((double)x / 4, 2);
            }
        if (!e) world_check_reports(r, report, d, step);
        if (!e && !step
            && (fabs(report[0].norm - sqrt(right)) > 1e-6 || report[0].norm != report[1].norm))
            test_rank_fail(r, "step %d: norms %.9g and %.9g, expected %.9g", step, report[0].norm,
                           report[1].norm, sqrt(right));
        float seen[500];
        if (!e && step == 0) e = zero_read_tensor(z[1], "b", ZERO_PARAMETER, 0, 500, seen);
        for (size_t i = 0; i < 500 && !e && step == 0; i++) {
            const float x =
                world_value(1, i, expert, 0, 0, 0) + world_value(1, i, expert + 2, 0, 0, 0);
            const double to = -0.1 * (double)x / 4 / (sqrt(right) > 1 ? sqrt(right) + 1e-6 : 1);
            if (fabs((double)seen[i] - to) > 1e-6)
                test_rank_fail(r, "b[%zu] is %g, expected %g", i, (double)seen[i], to);
        }
    }
    if (e)
        test_rank_fail(r, "%s; %s; %s", zero_last_error(z[0]), zero_last_error(z[1]),
                       zero_group_error(all));
    zero_destroy(z[1]);
    zero_destroy(z[0]);
    world_check_seen(r, told);
    free(told);
    zero_group_close(edp);
    zero_group_close(all);
}

/* ---- refusals ---- */

/* What all data groups of a world must have alike, and the second has otherwise: all are told. */
static void world_apart_rank(test_rank *r) {
    static const char *const says[] = {
        "shard_ranks cuts the ranks on rank 0 of the world, and not on rank 2",
        "shard_ranks cuts the ranks on rank 2 of the world, and not on rank 0",
        "world_units is 2 on rank 0 of the world, 3 on rank 2"};
    const zero_comm comm = test_comm(r);
    const zero_tensor_desc two = {.name = "w", .numel = 4, .layers = 2};
    const int which = *(const int *)r->arg, second = r->rank >= 2;
    zero_group *all = NULL, *dp = NULL;
    zero_ctx *z = NULL;
    zero_config cfg = {.stage = 1, .threads = 1};
    int e = zero_group_open(&all, &comm, NULL, 20) || zero_group_split(all, second, 0, &dp);
    const zero_comm data = zero_group_comm(dp);
    cfg.world = all;
    cfg.world_units = which == 2 && second ? 3 : 2;
    cfg.shard_ranks = which == second;
    if (!e) e = zero_create(&z, &cfg, &data) || zero_tensor(z, &two);
    if (e || zero_build(z) != ZERO_ERR_MISMATCH || !strstr(zero_last_error(z), says[which]))
        test_rank_fail(r, "%s, not \"%s\"", zero_last_error(z), says[which]);
    zero_destroy(z);
    zero_group_close(dp);
    zero_group_close(all);
}

/* Ranks that sum a tensor of 500 with one of 400 are told before a step; *arg: both have 500, and
   destroy their contexts while the sum may be on its way. */
static void world_sum_rank(test_rank *r) {
    const int leaves = *(const int *)r->arg;
    const zero_comm comm = test_comm(r), self = {ZERO_COMM_SELF, 0, NULL, 0};
    zero_tensor_desc b = {.name = "b", .numel = r->rank && !leaves ? 400 : 500};
    zero_config cfg = {.threads = 1};
    zero_group *tp = NULL;
    zero_ctx *z = NULL;
    world_pair p = {NULL, NULL}, g = {NULL, NULL};
    double norm;
    int e = zero_group_open(&tp, &comm, NULL, 20);
    cfg.world = tp;
    b.sum_over = tp;
    if (!e) e = zero_create(&z, &cfg, &self) || zero_tensor(z, &b);
    if (!e) e = zero_build(z) || zero_bind(z, &p, &g) || zero_pass_begin(z, ZERO_TRAIN, 0, 1);
    if (!e) e = zero_forward_begin(z, 0, &p) || zero_forward_end(z, 0);
    if (!e) e = zero_backward_begin(z, 0, &p, &g);
    if (!e && leaves && r->rank) usleep(10000); /* rank 0 is there before */
    if (e) test_rank_fail(r, "%s %s", zero_last_error(z), zero_group_error(tp));
    if (!e) e = zero_backward_end(z, 0) || zero_pass_end(z) || zero_reduce(z);
    if (!e && !leaves) e = zero_norm(z, &norm) != ZERO_OK;
    if (leaves ? e : !e || !strstr(zero_last_error(z), "a gradient's first sum"))
        test_rank_fail(r, "\"%s\"", zero_last_error(z));
    zero_destroy(z);
    zero_group_close(tp);
}

static void world_refusals(void) {
    const zero_comm self = {ZERO_COMM_SELF, 0, NULL, 0};
    const zero_tensor_desc copy = {.name = "c", .numel = 4, .flags = ZERO_COPY};
    const zero_tensor_desc two = {.name = "w", .numel = 4, .layers = 2};
    static const int wrong[2][2] = {{1, 0}, {0, 2}};
    zero_group *g = NULL;
    zero_ctx *z = NULL;
    zero_config cfg = {0};
    test_check(!zero_create(&z, &cfg, &self) && zero_tensor(z, &copy) == ZERO_ERR_ARGUMENT,
               "a copy without a world: %s", zero_last_error(z));
    zero_destroy(z);
    test_check(!zero_group_open(&g, &self, NULL, 0), "a group");
    cfg.world = g;
    cfg.world_units = 2;
    for (int i = 0; i < 2; i++) {
        cfg.world_unit = wrong[i];
        test_check(!zero_create(&z, &cfg, &self) && !zero_tensor(z, &two)
                       && zero_build(z) == ZERO_ERR_ARGUMENT
                       && strstr(zero_last_error(z), "world_unit["),
                   "numbers of units: %s", zero_last_error(z));
        zero_destroy(z);
    }
    /* several micro-steps at once add up in f32 */
    const zero_tensor_desc w = {.name = "w", .numel = 4};
    memset(&cfg, 0, sizeof cfg);
    cfg.stage = 2;
    cfg.type = ZERO_BF16;
    cfg.grads = ZERO_GRAD_AS_TYPE;
    cfg.micro_steps = 2;
    test_check(!zero_create(&z, &cfg, &self) && !zero_tensor(z, &w) && !zero_build(z)
                   && zero_pass_begin(z, ZERO_TRAIN, ZERO_TOGETHER, 2) == ZERO_ERR_ARGUMENT,
               "together with gradients of 16 bit: %s", zero_last_error(z));
    zero_destroy(z);
    zero_group_close(g);
}

int main(void) {
    world_run *run = (world_run *)test_shared(sizeof *run);
    (void)alarm(240);
    world_refusals();
    for (int which = 0; which < 3; which++)
        test_check(world_go(0, 4, world_apart_rank, &which), "data groups differ: %s", test_first);
    for (int leaves = 0; leaves < 4; leaves++)
        test_check(world_go(0, 2, world_sum_rank, &leaves), "sums of %s: %s",
                   leaves ? "contexts that are destroyed" : "two sizes", test_first);
    for (run->processes = 0; run->processes < 2; run->processes++)
        for (run->zero_stage = 0; run->zero_stage < 4; run->zero_stage++) {
            for (int k = 0; k < 3; k++) {
                run->tied = k == 1;
                run->overflow = k == 2;
                world_pipeline(run);
            }
            int *stage = &run->zero_stage;
            test_check(world_go(run->processes, 2, world_copies_rank, stage),
                       "stage %d, copies: %s", *stage, test_first);
            test_check(world_go(run->processes, 4, world_experts_rank, stage),
                       "stage %d, experts: %s", *stage, test_first);
        }
    return test_summary();
}
