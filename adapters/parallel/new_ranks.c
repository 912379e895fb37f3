/* new_ranks.c - see new_ranks.h. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "new_ranks.h"

#include <stdio.h>
#include <string.h>

void new_ranks_reduce(launch *l, const train_options *o, const gpt2_config *model) {
    char why[LAUNCH_SENTENCE / 2] = "", sentence[LAUNCH_SENTENCE];
    if (l->starts == 0) return;
    const int n = train_fit(o, model, l->nranks, why, sizeof why);
    if (n == l->nranks) return;
    (void)snprintf(sentence, sizeof sentence, "%d of %d ranks can continue: %s", n, l->nranks, why);
    launch_require(l, n > 0, "%s", sentence);
    launch_fewer(l, n, sentence);
}

void new_ranks_check(launch *l, const train_options *o) {
    launch_require(l, !o->copies || l->kind == LAUNCH_FORK,
                   "-pm %d: copies need ranks that -pn starts (found %d rank%s %s); add -pn N, or "
                   "leave out -pm",
                   o->copies, l->nranks, l->nranks > 1 ? "s" : "", launch_how(l));
    const char *by = o->ranks_file[0] ? "-pnf" : o->address[0] ? "-pa" : "-pj";
    launch_require(l, !train_changes_ranks(o) || launch_changes(l),
                   "%s: only ranks that -pn starts, on CPUs, can change (found ranks %s); leave "
                   "out %s",
                   by, launch_how(l), by);
}

int new_ranks_ready(launch *l, const train_options *o, const gpt2_config *model, report *out) {
    char why[LAUNCH_SENTENCE] = "";
    const int wanted = launch_wanted(l);
    if (wanted) {
        const int n = train_fit(o, model, wanted, why, sizeof why);
        if (n != wanted)
            report_print(out, "ranks: %d asked for, %d can train: %s\n", wanted, n > 0 ? n : 0,
                         why);
        launch_answer(l, n > 0 ? n : l->nranks);
    }
    return launch_ready(l);
}

void new_ranks_take(launch *l, const train_options *o, const gpt2_config *model, layout *ranks,
                    batch_shape *batch, report *out) {
    train_options its = *o;
    char why[LAUNCH_SENTENCE];
    memset(ranks, 0, sizeof *ranks);
    ranks->ranks = l->nranks;
    ranks->rank = l->rank;
    const int uneven = train_divide(&its, model, ranks, batch, why, sizeof why);
    launch_require(l, !uneven, "%s", why);
    launch_layout(l, ranks->tp, ranks->cp, ranks->dp);
    out->speaks = l->rank == 0;
    out->terminal = l->rank == 0 && report_is_terminal();
    if (out->terminal) out->shared_live = launch_live(l);
}
