/* rechecks.c - see rechecks.h. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "rechecks.h"

#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

/* Ends the job after an error of a group, which may be NULL. */
static void rechecks_check(launch *l, const zero_group *g, zero_result result) {
    if (result != ZERO_OK) launch_fail_result(l, result, g ? zero_group_error(g) : "");
}

static void rechecks_report(report *out, const train_options *o, const gpt2_config *cfg,
                            const gpt2_run *run, int ranks) {
    const double mib = 1024.0 * 1024;
    report_print(out,
                 "checked products (-ck %d): %.2f MiB of memory; %.2f MiB more sent by a rank in a "
                 "step with "
                 "a check\n",
                 o->check_products, (double)gpt2_check_bytes(cfg, run, ranks) / mib,
                 (double)gpt2_check_sent(cfg, run, ranks) / mib);
}

void rechecks_open(rechecks *c, launch *l, const train_options *o, const gpt2_config *cfg,
                   const gpt2_run *run, gpt2_model *model, void *stream, report *out) {
    const gpt2_parallel *how = run->parallel;
    const int parts = zero_group_size(how->tp) * zero_group_size(how->cp);
    gpt2_error error;
    memset(c, 0, sizeof *c);
    if (!o->check_products) return;
    if (l->nranks == parts) { /* with -pe; otherwise train_divide has refused it */
        report_warn(out, "-ck %d: products are not checked, because one data-parallel rank is left",
                    o->check_products);
        return;
    }
    rechecks_check(l, c->all, zero_group_open(&c->all, &l->comm[1], stream, o->timeout));
    rechecks_check(l, c->all,
                   zero_group_split(c->all, l->rank % parts, l->rank / parts, &c->peers));
    zero_group_name(c->peers, "dp");
    const zero_result result = gpt2_check_open(model, c->peers, c->all, &error);
    launch_require(l, result == ZERO_OK, "-ck %d: %s", o->check_products, error.sentence);
    rechecks_report(out, o, cfg, run, l->nranks);
}

zero_result rechecks_observe(const rechecks *c, observer *see, zero_ctx *z) {
    enum { LANE = 7 }; /* after the groups of observe_layout */
    return observe_group(see, z, c->peers, LANE, 0, "checks");
}

void rechecks_close(rechecks *c) {
    zero_group_close(c->peers);
    zero_group_close(c->all);
    c->peers = c->all = NULL;
}

void rechecks_begin_step(const rechecks *c, const train_options *o, gpt2_model *model, int step) {
    if (!c->peers || step % o->check_products) return;
    gpt2_check_next(model, step, step / o->check_products - 1);
}

size_t rechecks_bytes(const train_options *o, const layout *ranks, const gpt2_config *cfg,
                      const gpt2_run *run) {
    const int checks = o->check_products > 0 && ranks->dp > 1;
    return checks ? gpt2_check_bytes(cfg, run, ranks->ranks) : 0;
}

void rechecks_fail(launch *l, const train_options *o, const gpt2_model *model, zero_result result) {
    const int wrong = result == ZERO_ERR_MISMATCH ? gpt2_wrong_rank(model) : -1;
    const char *sentence = gpt2_last_error(model);
    if (wrong < 0 || !o->elastic || l->kind != LAUNCH_FORK) launch_fail_result(l, result, sentence);
    if (wrong != l->rank) launch_fail_result(l, ZERO_ERR_PEER, sentence);
    /* The launcher goes on with the ranks that are left if one is killed, and not if it reports an
       error. */
    fprintf(stderr, "%s: %s; this rank ends, and the others resume\n", l->program, sentence);
    fflush(stderr);
    (void)kill(getpid(), SIGKILL);
    for (;;) (void)pause();
}
