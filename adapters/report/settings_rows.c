/* settings_rows.c - see settings_rows.h. */
#include "settings_rows.h"

#include "../gpt2/context.h"
#include "../gpt2/experts.h"
#include "plan_rows.h"

#include <stdio.h>
#include <string.h>

/* Prints what can make a run slow, if it applies. */
static void settings_notes(report *r, const settings *s) {
    char type[OPTION_WORD_BYTES];
    train_options_word(s->opt, "-dt", type);
    if (s->l->note[0] && s->opt->threads == 0) report_row(r, "note", "%s", s->l->note);
    if (strstr(s->products, "after conversion"))
        report_row(r, "note", "no %s instructions here: -dt f32 is faster", type);
}

/* Writes the learning-rate schedule. */
static void settings_schedule(const settings *s, char *text, size_t bytes) {
    const train_options *o = s->opt;
    const char *name = schedule_name(s->lr_kind);
    if (s->ds->has_schedule)
        (void)snprintf(text, bytes, "%s, by %s", name, o->ds_path);
    else
        (void)snprintf(text, bytes, "%s, %g to %g, warm-up %d", name, o->lr,
                       s->lr_kind == SCHEDULE_CONSTANT ? o->lr : o->lr * o->final_fraction,
                       o->warmup);
}

static void settings_batch(report *r, const settings *s) {
    report_row(r, "tokens per step", "%lld = -b %d x -t %d x %d ranks x %d micro-steps",
               (long long)s->batch->tokens, s->batch->rows, s->batch->seq_len, s->ranks->dp,
               s->batch->micro_steps);
    if (s->batch->together > 1)
        report_row(r, "  in each layer", "all micro-steps, before the next layer (-mo layers)");
    if (s->batch->group > 1) report_row(r, "  layers of a group", "%d (-mog)", s->batch->group);
}

static const char *const settings_masters[ZERO_MASTERS] = {
    "f32 master weights", "f32 master weights", "split master weights", "no master weights"};
/* By -oe and -os. */
static const char *const settings_states[2][ZERO_STATE_TYPES] = {
    {"", ", bf16 state", ", 8-bit state"},
    {"", ", bf16 state (embeddings f32)", ", 8-bit state (embeddings f32)"}};

/* Prints seven rows for one screen. plan_table adds five. */
static void settings_short(report *r, const settings *s) {
    const train_options *o = s->opt;
    const gpt2_config *m = s->model;
    char type[OPTION_WORD_BYTES], rule[OPTION_WORD_BYTES], lr[256], as[128] = "", more[64] = "";
    char way[CONTEXT_NAME], of_pp[24] = "", of_tp[24] = "";
    train_options_word(o, "-dt", type);
    train_options_word(o, "-op", rule);
    settings_schedule(s, lr, sizeof lr);
    if (s->ranks->pp > 1) (void)snprintf(of_pp, sizeof of_pp, "pp %d x ", s->ranks->pp);
    if (s->ranks->tp > 1) (void)snprintf(of_tp, sizeof of_tp, "tp %d x ", s->ranks->tp);
    if (s->ranks->cp > 1)
        (void)snprintf(as, sizeof as, ": %s%scp %d (%s) x dp %d", of_pp, of_tp, s->ranks->cp,
                       context_name(s->ranks->cp, s->ranks->ring, way), s->ranks->dp);
    else if (s->ranks->tp * s->ranks->pp > 1)
        (void)snprintf(as, sizeof as, ": pp %d x tp %d x dp %d", s->ranks->pp, s->ranks->tp,
                       s->ranks->dp);
    if (m->moe.experts)
        (void)snprintf(more, sizeof more, ", %d experts, top %d", m->moe.experts, m->moe.chosen);
    if (m->frozen) (void)snprintf(more, sizeof more, ", %zu trained", gpt2_trained_numel(m));
    report_rule(r);
    report_row(r, "model", "%s, %zu parameters%s", o->model, gpt2_numel(m) + experts_numel(m),
               more);
    report_row(r, "data", "%zu tokens, %zu for validation", s->train_tokens, s->val_tokens);
    settings_batch(r, s);
    report_row(r, "steps", "%d, lr %s", s->steps, lr);
    report_row(r, "optimizer", "%s, %s%s%s%s", rule, type, o->type == ZERO_F32 ? "" : " with ",
               o->type == ZERO_F32 ? "" : settings_masters[o->master],
               settings_states[o->embedding_state][o->state_type]);
    report_row(r, "ranks", "%d%s, launched %s, %d thread%s each", s->l->nranks, as,
               launch_how(s->l), s->threads, s->threads > 1 ? "s" : "");
    report_row(r, "device", "%s, matrix products %.1f GFLOP/s", s->device, s->matmul_rate * 1e-9);
    settings_notes(r, s);
    report_rule(r);
}

static void settings_all(report *r, const settings *s) {
    const train_options *o = s->opt;
    const gpt2_config *m = s->model;
    char type[OPTION_WORD_BYTES], rule[OPTION_WORD_BYTES], lr[256], way[CONTEXT_NAME];
    char of_pp[40] = "", of_tp[40] = "";
    settings_schedule(s, lr, sizeof lr);
    train_options_word(o, "-dt", type);
    train_options_word(o, "-op", rule);
    report_rule(r);
    report_row(r, "model", "%s", o->model);
    report_row(r, "parameters", "%zu", gpt2_numel(m) + experts_numel(m));
    if (m->frozen) report_row(r, "  trained", "%zu", gpt2_trained_numel(m));
    if (m->moe.experts)
        report_row(r, "experts",
                   "%d in each of %d blocks, %d on a rank; top %d, capacity %zu tokens",
                   m->moe.experts, experts_layers(m), m->moe.experts / s->ranks->ep, m->moe.chosen,
                   experts_capacity(m, (size_t)s->batch->rows
                                           * (size_t)(s->batch->seq_len / s->ranks->cp)));
    report_row(r, "layers, width, heads", "%d, %d, %d", m->layers, m->channels, m->heads);
    report_row(r, "vocabulary", "%d, padded %d%s", m->vocab_size, m->padded_vocab_size,
               m->untied ? ", the classifier untied" : "");
    if (m->sparse_rows)
        report_row(r, "embeddings", "only the rows that a batch touches are reduced");
    if (o->tile_rows > 0)
        report_row(r, "tiles of wte", "%d rows each", gpt2_tile_rows(m, o->tile_rows));
    if (o->mlp_rows > 0) report_row(r, "tiles of MLPs", "at most %d tokens each", o->mlp_rows);
    report_row(r, "training tokens", "%zu, sequences %s", s->train_tokens, s->order);
    report_row(r, "validation tokens", "%zu", s->val_tokens);
    settings_batch(r, s);
    report_row(r, "steps", "%d", s->steps);
    report_row(r, "type", "%s, %s%s", type,
               o->type == ZERO_F32 ? "no separate master weights" : settings_masters[o->master],
               o->master == ZERO_MASTER_NONE ? ", stochastic rounding" : "");
    if (o->type == ZERO_F16 && o->scale == 0)
        report_row(r, "loss scale", "dynamic, from %g, window %d", o->first_scale, o->scale_window);
    report_row(r, "overflow", "%s",
               !s->ds->zero.no_overflow_check ? "checked in every step" : "not checked");
    report_row(r, "learning rate", "%s", lr);
    report_row(r, "optimizer", "%s%s, betas %g %g, eps %g, decay %g, clip %g", rule,
               settings_states[o->embedding_state][o->state_type], o->beta1, o->beta2, o->eps,
               o->weight_decay, o->clip);
    report_row(r, "ranks", "%d, launched %s", s->l->nranks, launch_how(s->l));
    if (s->ranks->pp > 1)
        (void)snprintf(of_pp, sizeof of_pp, "%d pipeline stages x ", s->ranks->pp);
    if (s->ranks->tp > 1)
        (void)snprintf(of_tp, sizeof of_tp, "%d tensor-parallel x ", s->ranks->tp);
    if (s->ranks->cp > 1)
        report_row(r, "  as",
                   "%s%s%d context-parallel (%s) x %d data-parallel, %d tokens of a sequence each",
                   of_pp, of_tp, s->ranks->cp, context_name(s->ranks->cp, s->ranks->ring, way),
                   s->ranks->dp, s->batch->seq_len / s->ranks->cp);
    else if (s->ranks->tp * s->ranks->pp > 1)
        report_row(r, "  as", "%d pipeline stage%s x %d tensor-parallel%s x %d data-parallel",
                   s->ranks->pp, s->ranks->pp > 1 ? "s" : "", s->ranks->tp,
                   s->ranks->part.sequence ? ", with sequence parallelism" : "", s->ranks->dp);
    if (s->ranks->pp > 1)
        report_row(r, "pipeline", "%d chunk%s per stage, %d micro-batches kept, bubble %.1f%%",
                   o->pipeline_chunks, o->pipeline_chunks > 1 ? "s" : "", s->ranks->stage.slots,
                   100.0 * (s->ranks->pp - 1)
                       / (o->pipeline_chunks * s->batch->micro_steps + s->ranks->pp - 1));
    report_row(r, "device", "%s", s->device);
    report_row(r, "threads per rank", "%d", s->threads);
    report_row(r, "matrix products", "%.1f GFLOP/s, all ranks", s->matmul_rate * 1e-9);
    if (s->peak_rate > 0) report_row(r, "  by their maker", "%.1f GFLOP/s", s->peak_rate * 1e-9);
    report_row(r, s->peak_rate > 0 ? "  MFU counts" : "  shares count", "%s",
               "6 N + 12 L C T per token, N without wpe (PaLM)");
    report_row(r, "GEMM algorithms", "%s", s->products);
    report_row(r, "attention", "%s", s->attention);
    settings_notes(r, s);
    report_rule(r);
}

void settings_rows(report *r, const settings *s) {
    if (s->opt->settings)
        settings_all(r, s);
    else
        settings_short(r, s);
}

/* Prints five rows of the short table. */
static void plan_short(report *r, const plan_view *v) {
    const zero_config *c = v->config;
    const int offloads = c->optimizer_tier || c->gradient_tier || c->parameter_tier;
    report_row(r, "ZeRO stage", "%d%s%s", v->stage, offloads ? ", with offload" : "",
               c->weight_bits || c->frozen_weight_bits || c->gradient_bits ? ", quantized" : "");
    report_mib(r, "memory of a rank", plan_bytes(v->plan, v->host_is_device), "");
    report_mib(r, "activations", v->activations, "");
    if (v->process) report_mib(r, "total of a rank", v->all, ", with program and libraries");
    report_mib(r, "sent per step", v->plan->sent_bytes, "");
    report_rule(r);
}

static void plan_all(report *r, const plan_view *v) {
    const zero_config *c = v->config;
    char bucket[64] = "the largest unit";
    if (c->bucket_numel > 0) (void)snprintf(bucket, sizeof bucket, "%zu", c->bucket_numel);
    report_row(r, "ZeRO stage", "%d", v->stage);
    report_row(r, "accumulation", "of gradients %s",
               v->together > 1                            ? "unit by unit, each reduced once"
               : c->accumulation == ZERO_ACCUMULATE_LOCAL ? "in a whole copy"
                                                          : "in shards");
    report_row(r, "communication", "%s, bucket: %s, prefetch %d",
               c->no_overlap ? "not overlapped" : "overlapped", bucket,
               c->prefetch > 0 ? c->prefetch : 0);
    if (c->shard_ranks > 0 && c->shard_ranks < v->plan->nranks)
        report_row(r, "shard groups", "of %d ranks, %d replicas", c->shard_ranks,
                   v->plan->nranks / c->shard_ranks);
    if (c->second_ranks > 0 && v->plan->second_bytes)
        report_row(r, "secondary partition", "over %d ranks, %.4g MiB of the buffers",
                   c->second_ranks, (double)v->plan->second_bytes / 1048576.0);
    else if (c->second_ranks > 0)
        report_row(r, "secondary partition",
                   "none: all units are kept unsharded, or ranks access each other's memory (-zm "
                   "0)");
    plan_rows(r, v->plan, c, v->host_is_device);
    report_mib(r, "activations", v->activations, "");
    if (v->keeps_away) report_mib(r, "  offloaded", v->away, v->away_where);
    if (v->saves > 0) report_mib(r, "checkpoints", v->saves, " of the host");
    if (v->copies > 0)
        report_mib(r, "  copies in memory", v->copies,
                   ", two, of which one is complete at any time");
    if (v->process) {
        report_mib(r, "the process itself", v->process, ", program and libraries");
        report_mib(r, "total of a rank", v->all, "");
    }
    report_mib(r, "sent per step", v->plan->sent_bytes, "");
    report_mib(r, "  by the formula", v->plan->formula_sent_bytes, "");
    if (v->plan->gather_bytes)
        report_mib(r, "  to gather weights", v->plan->gather_bytes,
                   v->stage == 3 && c->micro_steps > 1 ? ", in every micro-step"
                   : v->stage == 3                     ? ", forward and backward"
                                                       : ", once a step");
    if (v->plan->near_bytes) report_mib(r, "  to near ranks", v->plan->near_bytes, "");
    if (v->plan->replica_bytes) report_mib(r, "  to replicas", v->plan->replica_bytes, "");
    if (v->parts > 0) report_mib(r, "  among parts", v->parts, "");
    report_rule(r);
}

void plan_table(report *r, const plan_view *v) {
    if (v->settings)
        plan_all(r, v);
    else
        plan_short(r, v);
}
