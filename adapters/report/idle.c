/* idle.c - see idle.h. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "idle.h"

void idle_flags(report *out, const train_options *o, int observed, int chosen, int step, int steps,
                int micro_steps, int on_cpu) {
    const int profiled = observed ? o->profile_step : 0;
    char sentence[512];
    int row = 0, flag = 0;
    if (profiled && (profiled <= step || profiled > steps))
        report_print(out, "-tk %d changes nothing here: this run makes %d steps, after step %d\n",
                     profiled, steps > step ? steps - step : 0, step);
    const int each = o->check_products;
    if (each && (step / each + 1) * (int64_t)each > steps)
        report_print(out, "-ck %d changes nothing here: this run makes %d steps, after step %d\n",
                     each, steps > step ? steps - step : 0, step);
    for (int i = 0; i < 2 && !chosen; i++)
        if (train_options_given(o, i ? "-al" : "-ma"))
            report_print(out, "%s changes nothing here: it is for -z auto\n", i ? "-al" : "-ma");
    while (train_options_idle(o, &row, sentence, sizeof sentence))
        report_print(out, "%s\n", sentence);
    while (train_tiers_idle(o, on_cpu, &flag, sentence, sizeof sentence))
        report_print(out, "%s\n", sentence);
    if (train_tiers_note(o, micro_steps, on_cpu, sentence, sizeof sentence))
        report_print(out, "%s\n", sentence);
}
