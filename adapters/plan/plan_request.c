/* plan_request.c - see plan_request.h. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "plan_request.h"

#include <string.h>

int plan_batch_typed(const plan_request *r) {
    return r->options.batch > 0 || r->options.step_tokens > 0;
}

int plan_case_of(const plan_request *r, int stage, plan_case *c, char *sentence, size_t bytes) {
    const train_options *o = &r->options;
    const ds_config all =
        train_settings(o, &r->file, r->model.is_gpt2 ? r->model.gpt2.channels : 1);
    const layout_sizes sizes = {o->pipeline, o->tensor_parallel, o->expert_group, 0,
                                o->context_parallel};
    batch_shape batch = {1, o->seq_len, 1, 1, 1, 0, 0};
    layout l;
    memset(c, 0, sizeof *c);
    if (layout_divide(&l, r->ranks, 0, sizes, sentence, bytes)) return 1;
    if (train_check_order(o, r->model.is_gpt2 ? &r->model.gpt2 : NULL, l.pp, sentence, bytes))
        return 1;
    if (plan_batch_typed(r) && train_batch(o, l.dp, &batch, sentence, bytes)) return 1;
    c->model = &r->model;
    c->zero = all.zero;
    c->zero.stage = stage;
    train_micro_steps(&batch, &c->zero);
    c->run.together = batch.together;
    c->run.group = batch.group;
    train_tiers(o, l.pp, &c->zero);
    c->run.batch = batch.rows;
    c->run.seq_len = batch.seq_len;
    c->run.recompute = o->recompute;
    c->run.type = c->zero.type;
    c->run.tf32 = o->tf32;
    c->run.any_order = o->any_order;
    c->run.tile_rows = o->tile_rows;
    c->run.mlp_rows = o->mlp_rows;
    c->nranks = r->ranks;
    c->sharers = o->expert_group;
    c->tp = l.tp;
    c->cp = l.cp;
    c->attends = (context_way)o->context_way;
    c->pp = l.pp;
    c->chunks = o->pipeline_chunks;
    c->sequence = o->sequence_parallel;
    c->node_size = o->node_size;
    c->on_gpus = r->on_gpus;
    c->one_machine = o->per_node == 0 || o->per_node >= r->ranks;
    c->checks = o->check_products > 0;
    c->saves = train_saves(o, c->way);
    return 0;
}

int plan_tiers_typed(const train_options *o) {
    return train_options_given(o, "-zos") || train_options_given(o, "-zog")
           || train_options_given(o, "-zop");
}
