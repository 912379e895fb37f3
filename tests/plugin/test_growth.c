/* test_growth.c - a rank's work does not grow with the square of tensors, units or ranks. The
   program counts operations (see growth.h) and exchanges, at 4 times as many tensors and 16 times
   as many ranks. The clock and other programs have no influence. */
#include "../shared/growth.h"

enum { GROWTH_TENSORS = 2500, GROWTH_FACTOR = 4, GROWTH_RANKS = 64, GROWTH_MORE_RANKS = 1024 };

/* At 4 times as many tensors, N log N is 4.7 times as much work, and N squared 16 times. */
static const double growth_allowed = 5.5;
static const double growth_little = 1e5; /* operations that a phase may take whatever its size */

static void growth_of_tensors(growth_kind kind, int of_unit) {
    const growth_case c = {kind, 3, 2, GROWTH_TENSORS, of_unit, 32};
    growth_case more = c;
    growth_cost few, many;
    more.tensors *= GROWTH_FACTOR;
    const int ok = growth_measure(&c, &few) && growth_measure(&more, &many);
    if (!test_check(ok, "%s", growth_kinds[kind])) return;
    for (int p = 0; p < GROWTH_PHASES; p++) {
        const double base = (double)few.operations[p], all = (double)many.operations[p];
        test_check(base > 0 && all < growth_allowed * base + growth_little,
                   "%s, %d in a unit: %s takes %.4g operations for %d tensors, %.4g for %d",
                   growth_kinds[kind], of_unit, growth_names[p], base, c.tensors, all,
                   more.tensors);
    }
    test_check(few.exchanges[GROWTH_BUILD] == many.exchanges[GROWTH_BUILD],
               "%s: a build exchanges %ld times for %d tensors, %ld times for %d",
               growth_kinds[kind], few.exchanges[GROWTH_BUILD], c.tensors,
               many.exchanges[GROWTH_BUILD], more.tensors);
    test_check(many.collectives[GROWTH_STEP] <= GROWTH_FACTOR * (few.collectives[GROWTH_STEP] + 2),
               "%s: a step has %ld collectives, then %ld", growth_kinds[kind],
               few.collectives[GROWTH_STEP], many.collectives[GROWTH_STEP]);
}

/* Neither work nor exchanges grow with the ranks. Shards are whole lines: at 1,024
   ranks a unit is that much larger, so a step, which clears and copies it, is left out. */
static void growth_of_ranks(int tensors, int of_unit) {
    growth_case c = {GROWTH_FIELDS, 3, GROWTH_RANKS, tensors, of_unit, 1000};
    growth_cost few, many;
    const int ok = growth_measure(&c, &few);
    c.ranks = GROWTH_MORE_RANKS;
    if (!test_check(ok && growth_measure(&c, &many), "ranks")) return;
    for (int p = 0; p < GROWTH_PHASES; p++) {
        if (p == GROWTH_STEP) continue;
        test_check((double)many.operations[p] < 1.5 * (double)few.operations[p] + growth_little,
                   "%d tensors: %s takes %ld operations for %d ranks, %ld for %d", tensors,
                   growth_names[p], few.operations[p], GROWTH_RANKS, many.operations[p],
                   GROWTH_MORE_RANKS);
        test_check(few.exchanges[p] == many.exchanges[p], "%s exchanges %ld times, then %ld",
                   growth_names[p], few.exchanges[p], many.exchanges[p]);
    }
}

int main(void) {
    growth_of_tensors(GROWTH_FIELDS, 10);
    growth_of_tensors(GROWTH_FIELDS, 1);
    growth_of_tensors(GROWTH_SLOTS, 10);
    growth_of_tensors(GROWTH_SLOTS, GROWTH_FACTOR * GROWTH_TENSORS);
    growth_of_tensors(GROWTH_KEEP, 1);
    growth_of_ranks(2000, 20);
    growth_of_ranks(10000, 10);
    return test_summary();
}
