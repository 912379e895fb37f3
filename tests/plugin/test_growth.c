/* test_growth.c - nothing grows with the square of tensors, units or ranks: a rank's work at 4
   times as many tensors, and at 16 times as many ranks, by processor time and by what is exchanged;
   and 10,000 tensors on 1,024 ranks that are not there are built in seconds. */
#include "../shared/growth.h"

enum { GROWTH_TIMES = 3, GROWTH_TRIES = 4, GROWTH_TENSORS = 2500, GROWTH_FACTOR = 4 };
enum { GROWTH_RANKS = 64, GROWTH_MORE_RANKS = 1024 };

/* N log N would be 4.7 times, N squared 16; below a millisecond a clock says little. */
static const double growth_allowed = 9, growth_little = 1e-3;

static int growth_exceeds(const growth_cost *few, const growth_cost *many) {
    int n = 0;
    for (int p = 0; p < GROWTH_PHASES; p++)
        n += many->seconds[p] >= growth_allowed * fmax(few->seconds[p], growth_little);
    return n;
}

static void growth_of_tensors(growth_kind kind, int of_unit) {
    const growth_case c = {kind, 3, 2, GROWTH_TENSORS, of_unit, 32};
    growth_case more = c;
    growth_cost few = {{0}, {0}, {0}}, many = few;
    more.tensors *= GROWTH_FACTOR;
    int ok = 0, tries = 0;
    do { /* other work takes the caches that this work has: what grows with the square always does
          */
        ok = growth_least(&c, &few, GROWTH_TIMES) && growth_least(&more, &many, GROWTH_TIMES);
    } while (ok && growth_exceeds(&few, &many) && ++tries < GROWTH_TRIES);
    if (!test_check(ok, "%s", growth_kinds[kind])) return;
    for (int p = 0; p < GROWTH_PHASES; p++) {
        const double base = fmax(few.seconds[p], growth_little);
        test_check(
            many.seconds[p] < growth_allowed * base,
            "%s, %d in a unit: %s takes %.2f ms for %d tensors, %.2f ms for %d times as many",
            growth_kinds[kind], of_unit, growth_names[p], 1e3 * few.seconds[p], GROWTH_TENSORS,
            1e3 * many.seconds[p], GROWTH_FACTOR);
    }
    test_check(few.exchanges[GROWTH_BUILD] == many.exchanges[GROWTH_BUILD],
               "%s: a build exchanges %ld times for %d tensors, %ld times for %d",
               growth_kinds[kind], few.exchanges[GROWTH_BUILD], GROWTH_TENSORS,
               many.exchanges[GROWTH_BUILD], more.tensors);
    test_check(many.collectives[GROWTH_STEP] <= GROWTH_FACTOR * (few.collectives[GROWTH_STEP] + 2),
               "%s: a step has %ld collectives, then %ld", growth_kinds[kind],
               few.collectives[GROWTH_STEP], many.collectives[GROWTH_STEP]);
}

/* Shards are whole lines: at 1,024 ranks a unit is that much larger, so a step, which clears and
   copies it, is left out. */
static void growth_of_ranks(void) {
    growth_case c = {GROWTH_FIELDS, 3, GROWTH_RANKS, 2000, 20, 1000};
    growth_cost few = {{0}, {0}, {0}}, many = few;
    const double factor = (double)GROWTH_MORE_RANKS / GROWTH_RANKS;
    const int ok = growth_least(&c, &few, GROWTH_TIMES);
    c.ranks = GROWTH_MORE_RANKS;
    if (!test_check(ok && growth_least(&c, &many, GROWTH_TIMES), "ranks")) return;
    for (int p = 0; p < GROWTH_PHASES; p++) {
        const double base = fmax(few.seconds[p], growth_little);
        if (p == GROWTH_STEP) continue;
        test_check(many.seconds[p] < 2 * factor * base,
                   "%s takes %.2f ms for %d ranks, %.2f ms for %d", growth_names[p],
                   1e3 * few.seconds[p], GROWTH_RANKS, 1e3 * many.seconds[p], GROWTH_MORE_RANKS);
        test_check(few.exchanges[p] == many.exchanges[p], "%s exchanges %ld times, then %ld",
                   growth_names[p], few.exchanges[p], many.exchanges[p]);
    }
}

static void growth_in_seconds(void) {
    const growth_case c = {GROWTH_FIELDS, 3, GROWTH_MORE_RANKS, 10000, 10, 1000};
    growth_cost cost;
    double built = 0;
    if (!test_check(growth_measure(&c, &cost), "10,000 tensors")) return;
    for (int p = GROWTH_ANNOUNCE; p <= GROWTH_BUILD; p++) built += cost.seconds[p];
    test_check(built < 5, "%d tensors on %d ranks take %.2f s to build", c.tensors, c.ranks, built);
}

int main(void) {
    growth_of_tensors(GROWTH_FIELDS, 10);
    growth_of_tensors(GROWTH_FIELDS, 1);
    growth_of_tensors(GROWTH_SLOTS, 10);
    growth_of_tensors(GROWTH_SLOTS, GROWTH_FACTOR * GROWTH_TENSORS);
    growth_of_tensors(GROWTH_KEEP, 1);
    growth_of_ranks();
    growth_in_seconds();
    return test_summary();
}
