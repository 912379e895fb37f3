/* test_wire.c - bytes of every method by formula (wire.h) against the plugin's own plan, and the
   simulator of a step (overlap.h) against steps that can be told by hand. Methods whose flags this
   build refuses are told, and not counted. Last line: N passed, N failed[, N skipped]. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "tests/shared/harness.h"

#include <math.h>

#include "adapters/options/train_options.h"
#include "adapters/plan/overlap.h"
#include "adapters/plan/plan.h"
#include "adapters/plan/plan_world.h"

static int wire_skipped;

static int near_to(double a, double b, double share) { return fabs(a - b) <= share * fabs(b); }

/* ---- formulas ------------------------------------------------------------------------------ */

static void wire_by_hand(void) {
    const wire_world w = {8, 4, 2, 2, 32};
    const size_t n = 8 * 1024; /* a rank's part: 1024; a node's: 2048 */
    test_check(wire_packed(8, 128) == 64 + 128 && wire_packed(4, 128) == 64 + 64
                   && wire_packed(4, 1024) == 64 + 512 && wire_packed(8, 17 * 128) == 128 + 2176,
               "packed bytes");
    wire_unit u = wire_of(wire_find("exact"), 3, &w, n);
    test_check(u.gather.far == 1 * 2048 && u.gather.near == 6 * 2048 && u.again.far == 2048
                   && u.reduction.far == 2048 && u.reduction.near == 3 * 2 * 2048
                   && u.ending.far == 0 && u.gather.messages == 1,
               "exact");
    u = wire_of(wire_find("zh"), 3, &w, n);
    test_check(u.gather.far == 2048 && u.again.far == 0 && u.again.near == 3 * 4096, "-zh");
    u = wire_of(wire_find("zs"), 3, &w, n);
    test_check(u.gather.far == 0 && u.reduction.far == 0 && u.gather.near == 3 * 4096
                   && u.ending.far == 1024 * (4 + 2) && u.ending.near == 0,
               "-zs: %g %g", u.ending.far, u.ending.near);
    u = wire_of(wire_find("all"), 3, &w, n);
    test_check(u.gather.far == 64 + 1024 && u.again.far == 0 && u.reduction.far == 64 + 512
                   && u.reduction.near == 3 * 2 * (64 + 512),
               "all three");
    u = wire_of(wire_find("exact"), 0, &w, n);
    test_check(u.gather.far == 0 && u.ending.far == 2048 && u.reduction.far == 2048, "stage 0");
    test_check(wire_find("none") == NULL && wire_count >= 7, "methods");
}

/* Across nodes 3P becomes 0.75P, of 2 bytes, but for scales and padding. */
static void wire_quarter(void) {
    const wire_world w = {64, 8, 2, 2, 64};
    const wire_unit e = wire_of(wire_find("exact"), 3, &w, 20000000);
    const wire_unit a = wire_of(wire_find("all"), 3, &w, 20000000);
    const double exact = e.gather.far + e.again.far + e.reduction.far;
    const double all = a.gather.far + a.again.far + a.reduction.far;
    test_check(near_to(exact, 3.0 * 20000000 * 2 * 7 / 8 / 8, 1e-3), "exact: %g bytes", exact);
    test_check(all >= 0.25 * exact && all < 0.262 * exact, "all three: %g of %g", all, exact);
}

/* ---- the plugin's plan --------------------------------------------------------------------- */

/* A chain of units, on links of a megabyte a second. */
static overlap_case wire_chain(int stage, int units, int prefetch, const wire_unit *wire,
                               const double *forward, const double *backward,
                               overlap_visit *visit) {
    overlap_case c;
    memset(&c, 0, sizeof c);
    c.stage = stage;
    c.units = units;
    c.own = -1;
    c.wire = wire;
    c.visits = overlap_chain(units, -1, forward, backward, visit);
    c.visit = visit;
    c.prefetch = prefetch;
    c.near = c.far = 1e6;
    return c;
}

/* Gathers and bytes of a step as simulated, of units that are alike. */
static overlap_step wire_step(const wire_method *m, int stage, const wire_world *w, int units,
                              size_t numel, int prefetch) {
    static double forward[OVERLAP_UNITS], backward[OVERLAP_UNITS];
    static wire_unit wire[OVERLAP_UNITS];
    static overlap_visit visit[OVERLAP_VISITS];
    overlap_step step;
    for (int u = 0; u < units; u++) {
        forward[u] = 1e-3;
        backward[u] = 2e-3;
        wire[u] = wire_of(m, stage, w, numel);
    }
    overlap_case c = wire_chain(stage, units, prefetch, wire, forward, backward, visit);
    c.near = 1e9;
    c.far = 1e8;
    c.latency = 1e-6;
    test_check(!overlap_simulate(&c, &step), "a simulation of %d units ends", units);
    return step;
}

/* Returns what is planned to be sent; below 0: the method's flags are refused. */
static double wire_planned(const wire_method *m, int stage, int ranks, int node, int type,
                           int prefetch, plan_model *model) {
    static char words[WIRE_WORDS][WIRE_LETTERS];
    static train_options o;
    static ds_config all;
    char ahead[16], *word[WIRE_WORDS + 4] = {(char *)(uintptr_t) "test_wire"};
    char why[PLAN_SENTENCE] = "";
    plan_answer a;
    plan_case c;
    int n = 1;
    word[n++] = (char *)(uintptr_t) "-zp";
    (void)snprintf(ahead, sizeof ahead, "%d", prefetch);
    word[n++] = ahead;
    const int flags = wire_flags(m, node, words);
    for (int i = 0; i < flags; i++) word[n++] = words[i];
    train_options_parse(&o, n, word);
    if (o.error[0]) return -1;
    train_options_store(&o, &all);
    memset(&c, 0, sizeof c);
    c.model = model;
    c.zero = all.zero;
    c.zero.stage = stage;
    c.zero.type = (zero_type)type;
    c.nranks = ranks;
    c.node_size = node;
    test_check(!plan_ask(&c, &a, why, sizeof why), "%s at stage %d: %s", m->name, stage, why);
    return (double)a.zero.sent_bytes;
}

static void wire_plans(void) {
    static const int worlds[][2] = {{2, 1}, {4, 2}, {8, 2}, {8, 4}, {12, 4}, {16, 16}, {24, 8}};
    for (int m = 0; m < wire_count; m++) {
        const wire_method *method = &wire_methods[m];
        int refused = 0;
        for (size_t i = 0; i < 4 * sizeof worlds / sizeof *worlds && !refused; i++) {
            const int *world = worlds[i / 4], stage = (int)(i % 4), type = (int)(i % 3);
            const int prefetch = (int)(i % 5), units = 1 + (int)(i * 7 % 12);
            const size_t element = zero_type_bytes((zero_type)type), numel = 1003 + 977 * i;
            const wire_world w = {world[0], world[1], element, element, 32};
            plan_model model;
            if (stage < method->least_stage) continue;
            plan_model_of((double)(numel * (size_t)units), &model);
            model.blocks = units;
            const double sent =
                wire_planned(method, stage, world[0], world[1], type, prefetch, &model);
            refused = sent < 0;
            if (refused) continue;
            const overlap_step step = wire_step(method, stage, &w, units, numel, prefetch);
            test_check(sent == step.near_bytes + step.far_bytes,
                       "%s, stage %d, %d ranks of %d, %d units of %zu, %d ahead: planned %.0f "
                       "bytes, by the formula %.0f and %.0f",
                       method->name, stage, world[0], world[1], units, numel, prefetch, sent,
                       step.near_bytes, step.far_bytes);
        }
        if (refused) printf("skipped: this build refuses the flags of %s\n", method->name);
        wire_skipped += refused;
    }
}

/* ---- steps by hand ------------------------------------------------------------------------- */

/* Units of 1 s forward and 2 s backward, whose collectives take `gather` and `reduce` s alone. */
static double hand_step(int stage, int units, int prefetch, double gather, double again,
                        double reduce, double ending) {
    double forward[16], backward[16];
    wire_unit wire[16];
    overlap_visit visit[36];
    overlap_step step;
    memset(wire, 0, sizeof wire);
    for (int u = 0; u < units; u++) {
        forward[u] = 1;
        backward[u] = 2;
        wire[u].gather.far = 1e6 * gather;
        wire[u].again.far = 1e6 * again;
        wire[u].reduction.far = 1e6 * reduce;
        wire[u].ending.far = 1e6 * ending;
    }
    const overlap_case c = wire_chain(stage, units, prefetch, wire, forward, backward, visit);
    return overlap_simulate(&c, &step) ? -1 : step.step;
}

static void hand_steps(void) {
    static const struct {
        int stage, units, prefetch;
        double gather, again, reduce, ending, step;
        const char *what;
    } all[] = {
        {0, 2, 1, 0, 0, 0, 0, 6, "nothing is sent"},
        {0, 2, 1, 0, 0, 1, 1, 8, "two legs behind the last backward"},
        {0, 2, 1, 0, 0, 2, 2, 12, "reductions behind one another"},
        {2, 2, 1, 1, 0, 1, 0, 8, "gathers ahead of forward, a reduction behind backward"},
        {3, 2, 1, 1, 9, 1, 0, 8, "two buffers hold two units: none is gathered again"},
        {3, 1, 0, 3, 9, 2, 0, 8, "one unit: gather, both passes, reduction"},
        /* 3 units, 2 buffers: unit 0 is gathered again behind the backward of unit 2 */
        {3, 3, 0, 1, 1, 0, 0, 12 + 1, "none ahead: each gather is waited for"},
        /* gathers and reductions share the link: at 4 + 6 = 10, 13, and both send in between */
        {2, 4, 1, 0, 0, 10, 0, 6 + 4 * 10, "two buffers, of which each waits for its reduction"},
    };
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        const double step = hand_step(all[i].stage, all[i].units, all[i].prefetch, all[i].gather,
                                      all[i].again, all[i].reduce, all[i].ending);
        test_check(near_to(step, all[i].step, 1e-9), "%s: %g s, expected %g", all[i].what, step,
                   all[i].step);
    }
}

/* A faster link is never slower, and no step is shorter than its compute or its link's bytes. */
static void wire_orders(void) {
    const wire_world w = {32, 8, 2, 2, 64};
    for (int m = 0; m < wire_count; m++)
        for (int stage = wire_methods[m].least_stage; stage < 4; stage++) {
            const overlap_step s = wire_step(&wire_methods[m], stage, &w, 12, 2000000, 1);
            const double bytes = s.far_bytes / 1e8;
            test_check(s.step >= s.compute && s.step >= bytes * (1 - 1e-9)
                           && s.step <= s.compute + bytes + s.near_bytes / 1e9 + 1e-2,
                       "%s, stage %d: %g s, computing %g, sending %g", wire_methods[m].name, stage,
                       s.step, s.compute, bytes);
        }
}

int main(void) {
    plan_for_gpus(0);
    wire_by_hand();
    wire_quarter();
    wire_plans();
    hand_steps();
    wire_orders();
    printf("%d passed, %d failed", test_passed, test_failed);
    if (wire_skipped) printf(", %d skipped", wire_skipped);
    printf("\n");
    return test_failed != 0;
}
