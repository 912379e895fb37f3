/* suggest.h - function of the header: chooses stage, tiers and prefetch for limits of memory

   A trial is one combination of the chosen settings. Each rank plans every trial in its context,
   as zero_create and zero_query_plan would, and computes the time of a step from that plan. The
   ranks exchange the results, and all take the same trial. Nothing is allocated on a device. */
#pragma once

#include "tensors.h"

/* Trials are numbered: the stage counts slowest, then the tiers of optimizer, gradients and
   parameters, then prefetch. Of equally fast trials the first is chosen, so simple ones come first.
 */
static const int zp_suggest_prefetch[] = {1, 2, 4, ZERO_NONE};
enum {
    ZP_SUGGEST_PREFETCHES = sizeof zp_suggest_prefetch / sizeof *zp_suggest_prefetch,
    ZP_SUGGEST_TRIALS =
        (int)ZP_STAGES * ZERO_TIERS * ZERO_TIERS * ZERO_TIERS * (int)ZP_SUGGEST_PREFETCHES
};

typedef struct zp_suggest_result {
    double seconds; /* of a step; ZP_UNLIMITED: the trial is refused or does not fit */
    double needed;  /* bytes of the device; ZP_UNLIMITED: refused, or another tier is too small */
} zp_suggest_result;

/* Sets the chosen settings of trial i. Returns 0 if another trial has the same meaning. */
static int zp_suggest_set_trial(zero_config *c, int i) {
    const int ahead = i % (int)ZP_SUGGEST_PREFETCHES;
    int rest = i / (int)ZP_SUGGEST_PREFETCHES, hosts = 0;
    zero_tier *const tier[] = {&c->parameter_tier, &c->gradient_tier, &c->optimizer_tier};
    for (int k = 0; k < 3; k++, rest /= ZERO_TIERS) {
        *tier[k] = (zero_tier)(rest % ZERO_TIERS);
        hosts += *tier[k] == ZERO_HOST;
    }
    c->stage = rest;
    c->prefetch = zp_suggest_prefetch[ahead];
    return !(ahead && zp_policies[c->stage].parameters == ZP_WHOLE)
           && !(hosts && zp_device_is_host());
}

/* Gives the context these settings, as zero_create does, and plans it. */
static zero_result zp_suggest_apply(zero_ctx *z, const zero_config *c) {
    z->cfg = *c;
    z->planned = 0;
    ZP_TRY(zp_extra_resolve_settings(z, zp_table_missing));
    ZP_TRY(zp_plan_check_settings(z));
    ZP_TRY(zp_plan_apply_settings(z));
    for (int t = 0; t < z->ntensors; t++)
        ZP_TRY(zp_tensor_check_overwritten(z, &z->tensors[t].desc));
    return zp_life_plan(z);
}

static double zp_suggest_rate(double gbs, double usual) { return 1e9 * (gbs > 0 ? gbs : usual); }

/* Returns the bytes that an update reads and writes: state twice, gradient, parameter twice. */
static double zp_suggest_update_bytes(const zero_ctx *z) {
    const size_t moved =
        zp_type_bytes(z->array[ZP_GRAD].type) + 2 * zp_type_bytes(z->array[ZP_PARAM].type);
    double bytes = 0;
    for (int u = 0; u < z->layout.all; u++) {
        bytes += (double)(moved * zp_ctx_own_part(z, u)->numel);
        for (int k = ZP_MASTER; k < ZP_NEXT; k++)
            bytes += 2 * (double)zp_array_part_bytes(&z->array[k], u);
    }
    return bytes;
}

/* Returns the seconds of a step of the planned context: the formula of the header. */
static double zp_suggest_seconds(const zero_ctx *z, const zero_limits *m) {
    const zero_plan *p = &z->plan;
    const zero_config *c = &z->cfg;
    const int late = !c->prefetch && zp_policies[c->stage].parameters == ZP_SHARD;
    const double hides = c->no_overlap ? 0 : m->compute_s, send = zp_suggest_rate(m->send_gbs, 1);
    const double gathers = (double)p->gather_bytes / send,
                 sums = (double)(p->sent_bytes - p->gather_bytes) / send;
    const double exposed = fmax(sums - hides * 2 / 3, 0);
    const double sending = late ? gathers + exposed : fmax(exposed, gathers + sums - hides);
    const double rate =
        !zp_device_is_host() && p->file_bytes ? (double)c->memory_gbs : m->update_gbs;
    double update = zp_suggest_update_bytes(z) / zp_suggest_rate(rate, 10);
    if (p->update_on)
        update = fmax(p->update_on == ZERO_UPDATE_HOST ? p->update_host_s : p->update_device_s,
                      fmax((double)p->down_bytes, (double)p->up_bytes)
                          / zp_suggest_rate((double)c->link_gbs, 25));
    const double moved = (double)p->file_read_bytes + (double)p->file_written_bytes;
    return m->compute_s + sending
           + fmax(update, moved / zp_suggest_rate(m->file_gbs, 1) - hides / 3);
}

static int zp_suggest_within(double bytes, size_t limit) {
    return !limit || bytes <= (double)limit;
}

/* Plans a trial on this rank. Returns its error. */
static zero_result zp_suggest_try(zero_ctx *z, const zero_limits *m, const zero_config *c,
                                  zp_suggest_result *out) {
    const zero_plan *p = &z->plan;
    ZP_TRY(zp_suggest_apply(z, c));
    const double device = (double)p->param_bytes + (double)p->grad_bytes
                          + (double)p->optimizer_bytes + (double)p->buffer_bytes;
    const double lists = (double)p->context_bytes; /* in CPU memory */
    const int on_host = zp_device_is_host();
    if (!zp_suggest_within((double)p->file_bytes, m->file_bytes)
        || (!on_host && !zp_suggest_within((double)p->host_bytes + lists, m->host_bytes)))
        return ZERO_OK;
    out->needed = device + (on_host ? lists : 0);
    if (zp_suggest_within(out->needed, m->device_bytes)) out->seconds = zp_suggest_seconds(z, m);
    return ZERO_OK;
}

/* Replaces each value by the largest of all ranks. COLLECTIVE. */
static zero_result zp_suggest_agree(zero_ctx *z, double *values, size_t n) {
    const size_t most = ZP_MAIL_BYTES / sizeof *values;
    for (size_t at = 0, some; at < n; at += some) {
        some = zp_min(n - at, most);
        ZP_DO(z, zp_comm_exchange(z->all, values + at, some * sizeof *values));
        for (size_t i = 0; i < some * (size_t)z->all->nranks; i++) {
            double value;
            memcpy(&value, z->all->mail + i * sizeof value, sizeof value);
            values[at + i % some] = fmax(values[at + i % some], value);
        }
    }
    return ZERO_OK;
}

/* Plans all trials on this rank. `why` gets the first refusal. */
static void zp_suggest_plan(zero_ctx *z, const zero_limits *m, zero_config c,
                            zp_suggest_result of[ZP_SUGGEST_TRIALS], char why[sizeof z->text]) {
    const zero_log_fn log = c.log;
    c.log = NULL; /* a refused trial is no error of the caller */
    for (int i = 0; i < ZP_SUGGEST_TRIALS; i++) {
        of[i].seconds = of[i].needed = ZP_UNLIMITED;
        if (zp_suggest_set_trial(&c, i) && zp_suggest_try(z, m, &c, &of[i]) && !why[0])
            memcpy(why, z->text, sizeof z->text);
    }
    z->cfg.log = log;
}

/* Returns the error that no trial fits. `c` has the settings of the one that needs least. */
static zero_result zp_suggest_refuse(zero_ctx *z, const zero_limits *m, const zero_config *c,
                                     double least, const char *why) {
    static const char *const tier[ZERO_TIERS] = {"DEVICE", "HOST", "FILE"};
    ZP_REFUSE(z, least >= ZP_UNLIMITED, "the other settings allow no plan: %s", why);
    return zp_ctx_fail(
        z, ZERO_ERR_MEMORY,
        "nothing fits: device_bytes is %zu%s, and the least that fits is %.0f, at stage %d with "
        "optimizer_tier %s, gradient_tier %s, parameter_tier %s; raise it to that, or use more "
        "ranks%s",
        m->device_bytes, zp_suggest_within(least, m->device_bytes) ? ", on another rank less" : "",
        least, c->stage, tier[c->optimizer_tier], tier[c->gradient_tier], tier[c->parameter_tier],
        !c->folder && zp_extra_find(z, "offload") ? ", or set folder, for state in files" : "");
}

static zero_result zp_suggest_check(zero_ctx *z, const zero_limits *m) {
    ZP_REFUSE(z, !m, "limits is NULL; pass limits, of which each may be 0");
    const double rate[] = {m->compute_s, m->send_gbs, m->file_gbs, m->update_gbs};
    static const char *const name[] = {"compute_s", "send_gbs", "file_gbs", "update_gbs"};
    for (int i = 0; i < 4; i++)
        ZP_REFUSE(z, !(rate[i] >= 0 && rate[i] < ZP_UNLIMITED),
                  "%s is %g, expected a finite number, 0 or more", name[i], rate[i]);
    ZP_REFUSE(z, z->cfg.shard_ranks || z->cfg.second_ranks,
              "%s is set, and zero_create has cut the ranks by it; leave it out, or choose the "
              "stage yourself",
              z->cfg.shard_ranks ? "shard_ranks" : "second_ranks");
    ZP_UNTIMELY(z, !z->ntensors, "no tensor was announced; call zero_tensors first");
    return ZERO_OK;
}

zero_result zero_suggest(zero_ctx *z, const zero_limits *limits, zero_config *cfg) {
    ZP_ENTER(z, "zero_suggest", ZP_NEW, "settings are chosen before zero_build");
    ZP_TRY(zp_suggest_check(z, limits));
    zp_suggest_result of[ZP_SUGGEST_TRIALS];
    char why[sizeof z->text] = "";
    int best = 0, least = 0;
    zero_config given = z->cfg, chosen; /* as zero_create got it */
    if (z->grads_unstated) given.grads = ZERO_GRAD_AUTO;
    if (z->accumulation_unstated) given.accumulation = ZERO_ACCUMULATE_AUTO;
    if (!given.prefetch) given.prefetch = ZERO_NONE;
    zp_suggest_plan(z, limits, given, of, why);
    ZP_TRY(zp_suggest_agree(z, (double *)of, 2 * (size_t)ZP_SUGGEST_TRIALS));
    for (int i = 0; i < ZP_SUGGEST_TRIALS; i++) {
        if (of[i].seconds < of[best].seconds) best = i;
        if (of[i].needed < of[least].needed) least = i;
    }
    const int fits = of[best].seconds < ZP_UNLIMITED;
    chosen = given;
    (void)zp_suggest_set_trial(&chosen, fits ? best : least);
    if (!fits) { /* the context gets its own settings back */
        zero_config quiet = given;
        quiet.log = NULL;
        (void)zp_suggest_apply(z, &quiet);
        z->cfg.log = given.log;
        return zp_suggest_refuse(z, limits, &chosen, of[least].needed, why);
    }
    ZP_TRY(zp_suggest_apply(z, &chosen));
    chosen.bucket_numel = z->bucket_numel;
    if (cfg) *cfg = chosen;
    z->text[0] = 0;
    return ZERO_OK;
}
