/* test_pipeline.c SEED - adapters/pipeline: the schedule, and what runs it.

   The schedule is taken at its word by a machine of this test: stages that compute, and lanes that
   exchange messages as rendezvous, in any order that chance chooses. Every buffer holds the name of
   what was put there, so that a message too early, too late or in the wrong place is seen, and a
   circle of waiting ends the play before its works are done. */
#include "../shared/harness.h"

#include "../../adapters/pipeline/pipeline.h"
#include "../../adapters/pipeline/pipeline_run.h"

#include <math.h>

enum { MOST_STAGES = 8 };

/* ---- a machine that plays plans -------------------------------------------------------------- */

typedef struct stage_state {
    pipeline_plan plan;
    int works, exchanges;
    int *buffer; /* what lies in each: name_of */
    int *slot;
    int most_in_flight;
} stage_state;

typedef struct machine {
    pipeline_shape shape;
    stage_state at[MOST_STAGES];
    char why[256];
} machine;

#define WRONG(m, ...)                                                                              \
    do {                                                                                           \
        if (!(m)->why[0]) snprintf((m)->why, sizeof(m)->why, __VA_ARGS__);                         \
    } while (0)

/* Of what comes out of a work, by its place in the model. */
static int name_of(const pipeline_shape *s, int backward, int place, int micro) {
    return 1 + micro + s->micro * (place + s->stages * s->chunks * backward);
}

static void play_forward(machine *m, stage_state *a, int stage, const pipeline_work *w) {
    const pipeline_shape *s = &m->shape;
    const int place = w->chunk * s->stages + stage, last = s->stages * s->chunks - 1;
    if ((w->input < 0) != (place == 0) || (w->output < 0) != (place == last))
        WRONG(m, "stage %d: a buffer where the model ends", stage);
    if (w->input >= 0 && a->buffer[w->input] != name_of(s, 0, place - 1, w->micro))
        WRONG(m, "stage %d: forward %d.%d found %d", stage, place, w->micro, a->buffer[w->input]);
    if (a->slot[w->slot]) WRONG(m, "stage %d: slot %d is taken", stage, w->slot);
    if (!s->forward_only) a->slot[w->slot] = name_of(s, 0, place, w->micro);
    if (w->output >= 0) a->buffer[w->output] = name_of(s, 0, place, w->micro);
}

static void play_backward(machine *m, stage_state *a, int stage, const pipeline_work *w) {
    const pipeline_shape *s = &m->shape;
    const int place = w->chunk * s->stages + stage, last = s->stages * s->chunks - 1;
    if (a->slot[w->slot] != name_of(s, 0, place, w->micro))
        WRONG(m, "stage %d: backward %d.%d finds another's values", stage, place, w->micro);
    if (w->input >= 0 && a->buffer[w->input] != name_of(s, 0, place - 1, w->micro))
        WRONG(m, "stage %d: backward %d.%d lost its input", stage, place, w->micro);
    if (place != last && a->buffer[w->gradient] != name_of(s, 1, place + 1, w->micro))
        WRONG(m, "stage %d: backward %d.%d found gradient %d", stage, place, w->micro,
              a->buffer[w->gradient]);
    a->slot[w->slot] = 0;
    a->buffer[w->gradient] = name_of(s, 1, place, w->micro);
}

static int play_work(machine *m, int stage) {
    stage_state *a = &m->at[stage];
    int open = 0;
    if (a->works == a->plan.works || a->plan.work[a->works].needs > a->exchanges) return 0;
    const pipeline_work *w = &a->plan.work[a->works++];
    (w->backward ? play_backward : play_forward)(m, a, stage, w);
    for (int i = 0; i < a->plan.slots; i++) open += a->slot[i] != 0;
    if (open > a->most_in_flight) a->most_in_flight = open;
    return 1;
}

/* The exchange that a stage's lane waits in; NULL: it has not come to one. */
static const pipeline_exchange *posted(const stage_state *a) {
    if (a->exchanges == a->plan.exchanges) return NULL;
    const pipeline_exchange *x = &a->plan.exchange[a->exchanges];
    return x->after <= a->works ? x : NULL;
}

/* The other side of a message, in what its peer has posted. */
static const pipeline_message *counterpart(const machine *m, int stage, const pipeline_message *a) {
    const stage_state *peer = &m->at[a->peer];
    const pipeline_exchange *x = posted(peer);
    for (int i = 0; x && i < x->count; i++) {
        const pipeline_message *b = &peer->plan.message[x->first + i];
        if (b->peer == stage && b->sends != a->sends) return b;
    }
    return NULL;
}

/* As a rendezvous: all lists that hang together are there, or nothing moves. */
static int can_exchange(const machine *m, int stage, int *seen) {
    const stage_state *a = &m->at[stage];
    const pipeline_exchange *x = posted(a);
    if (seen[stage]) return 1;
    seen[stage] = 1;
    if (!x) return 0;
    for (int i = x->first; i < x->first + x->count; i++) {
        const pipeline_message *message = &a->plan.message[i];
        if (!counterpart(m, stage, message) || !can_exchange(m, message->peer, seen)) return 0;
    }
    return 1;
}

static int play_exchange(machine *m, int stage) {
    int seen[MOST_STAGES] = {0};
    if (!posted(&m->at[stage]) || !can_exchange(m, stage, seen)) return 0;
    for (int r = 0; r < m->shape.stages; r++) {
        const pipeline_exchange *x = seen[r] ? posted(&m->at[r]) : NULL;
        for (int i = 0; x && i < x->count; i++) {
            const pipeline_message *to = &m->at[r].plan.message[x->first + i];
            if (to->sends) continue;
            const pipeline_message *from = counterpart(m, r, to);
            m->at[r].buffer[to->buffer] = m->at[to->peer].buffer[from->buffer];
        }
    }
    for (int r = 0; r < m->shape.stages; r++) m->at[r].exchanges += seen[r];
    return 1;
}

static int is_done(const machine *m) {
    for (int r = 0; r < m->shape.stages; r++)
        if (m->at[r].works < m->at[r].plan.works || m->at[r].exchanges < m->at[r].plan.exchanges)
            return 0;
    return 1;
}

/* Actors in random order; who cannot move is asked again. */
static void play(machine *m, test_random *random) {
    const int actors = 2 * m->shape.stages;
    while (!m->why[0] && !is_done(m)) {
        const int first = test_below(random, actors);
        int moved = 0;
        for (int i = 0; i < actors && !moved; i++) {
            const int actor = (first + i) % actors;
            moved = actor % 2 ? play_exchange(m, actor / 2) : play_work(m, actor / 2);
        }
        if (!moved) WRONG(m, "all wait for one another");
    }
}

/* ---- what a plan must have
 * ----------------------------------------------------------------------- */

/* Each work once, backwards behind their forwards, micro-batches of a chunk in order. */
static void check_order(machine *m, const pipeline_plan *plan) {
    int next[2][MOST_STAGES] = {{0}};
    for (int i = 0; i < plan->works; i++) {
        const pipeline_work *w = &plan->work[i];
        if (w->micro != next[w->backward][w->chunk]++) WRONG(m, "work %d is out of order", i);
        if (w->backward && w->micro >= next[0][w->chunk]) WRONG(m, "work %d is too early", i);
    }
    for (int c = 0; c < plan->shape.chunks; c++)
        if (next[0][c] != plan->shape.micro
            || next[1][c] != (plan->shape.forward_only ? 0 : plan->shape.micro))
            WRONG(m, "chunk %d has %d forwards and %d backwards", c, next[0][c], next[1][c]);
}

static void check_counts(machine *m, int stage) {
    const stage_state *a = &m->at[stage];
    int sends = 0, most = 0;
    for (int i = 0; i < a->plan.messages; i++) sends += a->plan.message[i].sends;
    for (int i = 0; i < a->plan.exchanges; i++)
        if (a->plan.exchange[i].count > most) most = a->plan.exchange[i].count;
    if (most > 3) WRONG(m, "stage %d exchanges %d messages at once", stage, most);
    if (sends != pipeline_sends(&m->shape, stage))
        WRONG(m, "stage %d sends %d messages, not %d", stage, sends,
              pipeline_sends(&m->shape, stage));
    if (a->plan.slots != pipeline_in_flight(&m->shape, stage))
        WRONG(m, "stage %d has %d slots, not %d", stage, a->plan.slots,
              pipeline_in_flight(&m->shape, stage));
    if (a->most_in_flight > a->plan.slots) WRONG(m, "stage %d: too much in flight", stage);
}

static void check_shape(const pipeline_shape *shape, test_random *random) {
    machine m;
    memset(&m, 0, sizeof m);
    m.shape = *shape;
    for (int r = 0; r < shape->stages; r++) {
        stage_state *a = &m.at[r];
        if (pipeline_make(&a->plan, shape, r)) abort();
        a->buffer = (int *)calloc((size_t)a->plan.buffers + 1, sizeof(int));
        a->slot = (int *)calloc((size_t)a->plan.slots + 1, sizeof(int));
        check_order(&m, &a->plan);
    }
    play(&m, random);
    for (int r = 0; r < shape->stages; r++) check_counts(&m, r);
    for (int r = 0; r < shape->stages; r++) {
        pipeline_free(&m.at[r].plan);
        free(m.at[r].buffer);
        free(m.at[r].slot);
    }
    test_check(!m.why[0], "p %d, m %d, v %d%s: %s", shape->stages, shape->micro, shape->chunks,
               shape->forward_only ? ", forward alone" : "", m.why);
}

static void test_plans(uint64_t seed) {
    test_random random = {seed};
    for (int i = 0; i < 300; i++) {
        pipeline_shape s = {1 + test_below(&random, MOST_STAGES), 0, 1 + test_below(&random, 4),
                            test_below(&random, 5) == 0};
        if (test_below(&random, 3) == 0) s.chunks = 1;
        s.micro = s.chunks > 1 && !s.forward_only ? s.stages * (1 + test_below(&random, 4))
                                                  : 1 + test_below(&random, 20);
        check_shape(&s, &random);
    }
}

/* (p - 1) / (v m) of the ideal time, whatever a backward takes where nothing is interleaved. */
static void test_idle(void) {
    for (int p = 1; p <= MOST_STAGES; p++)
        for (int v = 1; v <= 3; v++)
            for (int m = p; m <= 4 * p; m += p) {
                const pipeline_shape s = {p, m, v, 0};
                const double formula = (double)(p - 1) / (v * m + p - 1);
                for (int backward = v == 1 ? 1 : 2; backward <= (v == 1 ? 3 : 2); backward++) {
                    const double idle = pipeline_idle(&s, 1, backward);
                    test_check(fabs(idle - formula) < 1e-12,
                               "p %d, m %d, v %d, backward %d: idle %g, not %g", p, m, v, backward,
                               idle, formula);
                    test_check(fabs(idle / (1 - idle) - (p - 1.0) / (v * m)) < 1e-12,
                               "p %d, m %d, v %d: bubble over ideal time", p, m, v);
                }
            }
    const pipeline_shape recomputing = {4, 16, 2, 0};
    const double idle = pipeline_idle(&recomputing, 1, 3);
    test_check(idle < 1.1 * 3 / 35, "with blocks computed again: idle %g", idle);
}

/* ---- the cut, and what cannot be
 * ------------------------------------------------------------------ */

/* The least that the costliest of n chunks can cost: no cut of all is better. */
static double best_cut(int layers, int n, double first, double last) {
    if (n == 1) return layers + first + last;
    double best = 1e30;
    for (int here = 1; here <= layers - (n - 1); here++) {
        const double rest = best_cut(layers - here, n - 1, 0, last);
        const double most = here + first > rest ? here + first : rest;
        if (most < best) best = most;
    }
    return best;
}

static void test_partition(uint64_t seed) {
    test_random random = {seed};
    for (int i = 0; i < 200; i++) {
        const int n = 1 + test_below(&random, 5), layers = n + test_below(&random, 12);
        const double first = test_below(&random, 3) * 0.25, last = test_below(&random, 9) * 0.5;
        int blocks[8], sum = 0, ok = 1;
        double most = 0;
        pipeline_partition(layers, n, first, last, blocks);
        for (int k = 0; k < n; k++) {
            const double cost = blocks[k] + (k == 0 ? first : 0) + (k == n - 1 ? last : 0);
            sum += blocks[k];
            ok = ok && blocks[k] >= 1;
            if (cost > most) most = cost;
        }
        test_check(ok && sum == layers, "%d blocks in %d chunks", layers, n);
        test_check(fabs(most - best_cut(layers, n, first, last)) < 1e-9,
                   "%d blocks in %d chunks cost %g", layers, n, most);
    }
}

static void refuse(int p, int m, int v, int layers, const char *part) {
    const pipeline_shape s = {p, m, v, 0};
    char why[256];
    const int refused = pipeline_check(&s, layers, why, sizeof why);
    test_check(part ? refused && strstr(why, part) != NULL : !refused,
               "p %d, m %d, v %d, %d layers: '%s' lacks '%s'", p, m, v, layers, why,
               part ? part : "");
}

static void test_refusals(void) {
    refuse(4, 1, 1, 4, NULL);
    refuse(4, 8, 2, 8, NULL);
    refuse(4, 8, 1, 3, "use at most 3 stages");
    refuse(4, 8, 3, 8, "use at most 2 chunks");
    refuse(4, 6, 2, 8, "use 8 micro-steps");
    refuse(1, 6, 2, 8, "nothing to interleave");
    refuse(2, 0, 1, 8, "at least 1 of each");
}

/* ---- what runs it
 * ---------------------------------------------------------------------------------- */

enum { ROWS = 37, TRIES = 9 };

/* A model of one number a row: chunk k adds k + 1 to it, and its gradient k + 10; chunks may sleep.
 */
typedef struct sleeper {
    pipeline_shape shape;
    double forward_s, backward_s;
    double busy, ended; /* what rank 0 finds: of all stages, and when the last had ended */
    int fails_at;       /* work of stage 1; -1: none */
} sleeper;

typedef struct sleeping_stage {
    const sleeper *all;
    int stage, works, wrong;
} sleeping_stage;

static void sleep_for(double seconds) {
    const struct timespec t = {0, (long)(seconds * 1e9)};
    if (seconds > 0) nanosleep(&t, NULL);
}

static zero_result sleep_forward(void *user, const pipeline_work *w, void *in, void *out) {
    sleeping_stage *s = (sleeping_stage *)user;
    const pipeline_shape *shape = &s->all->shape;
    const int place = w->chunk * shape->stages + s->stage;
    const int expected = 1000 * w->micro + place * (place + 1) / 2;
    if (s->stage == 1 && s->works++ == s->all->fails_at) return ZERO_ERR_ARGUMENT;
    sleep_for(s->all->forward_s);
    for (int i = 0; i < ROWS; i++) {
        const int x = in ? ((int *)in)[i] : 1000 * w->micro + i;
        s->wrong += x != expected + i;
        if (out) ((int *)out)[i] = x + place + 1;
    }
    return ZERO_OK;
}

static zero_result sleep_backward(void *user, const pipeline_work *w, void *in, void *gradient) {
    sleeping_stage *s = (sleeping_stage *)user;
    const pipeline_shape *shape = &s->all->shape;
    const int place = w->chunk * shape->stages + s->stage, last = shape->stages * shape->chunks - 1;
    int *g = (int *)gradient, expected = -w->micro;
    for (int k = last; k > place; k--) expected += k + 10;
    sleep_for(s->all->backward_s);
    for (int i = 0; i < ROWS; i++) {
        const int x = place == last ? -w->micro : g[i];
        s->wrong += x != expected;
        if (in) s->wrong += ((int *)in)[i] != 1000 * w->micro + place * (place + 1) / 2 + i;
        g[i] = x + place + 10;
    }
    return ZERO_OK;
}

static zero_result sleep_steps(test_rank *r, zero_group *g, pipeline_run *run,
                               const pipeline_plan *plan, sleeping_stage *own, int *memory) {
    sleeper *all = (sleeper *)r->arg;
    const pipeline_functions host = {sleep_forward, sleep_backward, own};
    ZERO_TRY(zero_group_barrier(g));
    const double begin = test_now();
    const size_t bytes = ROWS * sizeof(int);
    ZERO_TRY(pipeline_step(run, plan, &host, memory, bytes));
    zero_group_stats stats;
    zero_group_query_stats(g, &stats);
    const uint64_t sent = (uint64_t)pipeline_sends(&plan->shape, plan->stage) * bytes;
    if (stats.sent_bytes != sent)
        test_rank_fail(r, "%llu bytes were sent, not %llu", (unsigned long long)stats.sent_bytes,
                       (unsigned long long)sent);
    double end[2] = {test_now() - begin, 0}, busy = 0;
    pipeline_times times;
    pipeline_query_times(run, &times);
    busy = times.busy_s;
    ZERO_TRY(zero_group_all_reduce(g, end, 1, ZERO_F64, ZERO_MAX));
    ZERO_TRY(zero_group_all_reduce(g, &busy, 1, ZERO_F64, ZERO_SUM));
    if (r->rank == 0) {
        all->busy = busy;
        all->ended = end[0];
    }
    if (own->wrong) test_rank_fail(r, "%d numbers are wrong", own->wrong);
    return ZERO_OK;
}

static void sleep_body(test_rank *r) {
    sleeper *all = (sleeper *)r->arg;
    sleeping_stage own = {all, r->rank, 0, 0};
    const zero_comm comm = test_comm(r);
    zero_group *g = NULL;
    pipeline_run *run = NULL;
    pipeline_plan plan;
    char why[PIPELINE_SENTENCE] = "";
    if (pipeline_make(&plan, &all->shape, r->rank)) abort();
    int *memory = (int *)calloc((size_t)plan.buffers * ROWS + 1, sizeof(int));
    zero_result result = zero_group_open(&g, &comm, NULL, 20);
    if (!result) result = pipeline_open(&run, g, NULL, NULL, why);
    if (!result) result = sleep_steps(r, g, run, &plan, &own, memory);
    if (result) test_rank_fail(r, "result %d: %s %s", (int)result, why, zero_group_error(g));
    pipeline_close(run);
    zero_group_close(g);
    pipeline_free(&plan);
    free(memory);
}

static int run_sleeper(sleeper *s) { return test_ranks(s->shape.stages, 0, sleep_body, s); }

/* Values go the right way, at every shape; nobody sleeps. */
static void test_runs(uint64_t seed) {
    test_random random = {seed};
    for (int i = 0; i < 40; i++) {
        sleeper s = {
            {1 + test_below(&random, 5), 0, 1 + test_below(&random, 3), 0}, 0, 0, 0, 0, -1};
        if (s.shape.stages == 1) s.shape.chunks = 1;
        s.shape.micro = s.shape.stages * (1 + test_below(&random, 3));
        test_check(run_sleeper(&s), "p %d, m %d, v %d: %s", s.shape.stages, s.shape.micro,
                   s.shape.chunks, test_first);
    }
}

/* (p-1)/(v m+p-1), and the share of time that stages idle whose layers sleep: a processor can run
   all of them at once. Below 0: it failed. */
static double idle_formula(const pipeline_shape *p) {
    return (double)(p->stages - 1) / (p->chunks * p->micro + p->stages - 1);
}
static double idle_share(const pipeline_shape *p, double forward_s) {
    sleeper s = {*p, forward_s, 2 * forward_s, 0, 0, -1};
    return run_sleeper(&s) ? 1 - s.busy / (p->stages * s.ended) : -1;
}

/* Other programs, and waking up, only add idle time, the less the longer layers sleep: the best of
   several tries counts. */
static void test_bubble(void) {
    static const pipeline_shape shapes[] = {{2, 4, 1, 0}, {4, 8, 1, 0}, {4, 8, 2, 0}, {3, 6, 2, 0}};
    for (int i = 0; i < (int)(sizeof shapes / sizeof *shapes); i++) {
        const pipeline_shape *p = &shapes[i];
        const double formula = idle_formula(p);
        double best = 1e9;
        int ok = 1;
        for (int t = 0; t < TRIES && best > 0.05; t++) {
            const double idle = idle_share(p, 0.006 * (1 << t / 2));
            ok = ok && idle >= 0;
            if (fabs(idle / formula - 1) < best) best = fabs(idle / formula - 1);
        }
        test_check(ok, "p %d, m %d, v %d: %s", p->stages, p->micro, p->chunks, test_first);
        test_check(best <= 0.05, "p %d, m %d, v %d: idle share is %.1f%% beside (p-1)/(v m+p-1)",
                   p->stages, p->micro, p->chunks, 100 * best);
    }
}

/* `test_pipeline bubble`: the same as a table, for figures.md; the median and the least of 5. */
static int compare_doubles(const void *a, const void *b) {
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}
static int print_bubbles(void) {
    static const pipeline_shape shapes[] = {{2, 4, 1, 0},  {2, 8, 1, 0}, {4, 4, 1, 0},
                                            {4, 8, 1, 0},  {4, 8, 2, 0}, {4, 16, 1, 0},
                                            {4, 16, 2, 0}, {3, 6, 2, 0}, {8, 16, 1, 0}};
    printf("| stages p | micro-batches m | chunks v | (p-1)/(v m+p-1) | idle, median | least | "
           "median over formula |\n|--:|--:|--:|--:|--:|--:|--:|\n");
    for (int i = 0; i < (int)(sizeof shapes / sizeof *shapes); i++) {
        const pipeline_shape *p = &shapes[i];
        const double formula = idle_formula(p);
        double idle[5];
        for (int t = 0; t < 5; t++) idle[t] = idle_share(p, 0.024);
        qsort(idle, 5, sizeof *idle, compare_doubles);
        if (!test_check(idle[0] >= 0, "p %d, m %d, v %d: %s", p->stages, p->micro, p->chunks,
                        test_first))
            return 1;
        printf("| %d | %d | %d | %.4f | %.4f | %.4f | %.3f |\n", p->stages, p->micro, p->chunks,
               formula, idle[2], idle[0], idle[2] / formula);
        (void)fflush(stdout);
    }
    return 0;
}

int main(int argc, char **argv) {
    if (argc > 1 && strcmp(argv[1], "bubble") == 0) return print_bubbles();
    const uint64_t seed = argc > 1 ? strtoull(argv[1], NULL, 10) : 1;
    test_plans(seed);
    test_idle();
    test_partition(seed);
    test_refusals();
    test_runs(seed);
    test_bubble();
    return test_summary();
}
