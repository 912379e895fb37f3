/* plan.c - see plan.h. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "plan.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../checkpoint/model_files.h"
#include "../gpt2/context.h"
#include "../gpt2/experts.h"
#include "../parallel/layout.h"
#include "../report/plan_rows.h"
#include "../report/sentence.h"
#include "../saves/expert_saves.h"
#include "plan_world.h"

#define PLAN_MOST_NUMEL 1e14 /* most parameters of a model */

/* ---- models -------------------------------------------------------------------------------- */

void plan_model_of(double numel, plan_model *m) {
    memset(m, 0, sizeof *m);
    (void)snprintf(m->name, sizeof m->name, "%.10g parameters", numel);
    m->numel = (size_t)numel;
    m->blocks = (int)cbrt(numel / (12.0 * 128 * 128)); /* 12 (128 L)^2 L */
    if (m->blocks < 1) m->blocks = 1;
}

static int plan_is_file(const char *text) {
    return model_ends(text, ".bin") || model_ends(text, ".safetensors")
           || model_ends(text, ".json");
}

int plan_model_read(const char *text, int seq_len, plan_model *m, char *sentence, size_t bytes) {
    gpt2_error error;
    model_info info;
    char *end = NULL;
    const double numel = strtod(text, &end);
    if (end != text && *end == 0) {
        if (!(numel >= 1 && numel <= PLAN_MOST_NUMEL) || numel != floor(numel))
            return sentence_fail(sentence, bytes,
                                 "-e %.100s: expected a whole number of parameters, 1 to %g", text,
                                 PLAN_MOST_NUMEL);
        plan_model_of(numel, m);
        return 0;
    }
    memset(&info, 0, sizeof info);
    const zero_result r = plan_is_file(text)
                              ? model_info_read(text, &info, &error)
                              : gpt2_config_parse(text, 0, seq_len, &info.cfg, &error);
    if (r)
        return sentence_fail(sentence, bytes, "-e: %s; or a number of parameters: 7.5e9",
                             error.sentence);
    if (info.cfg.heads <= 0)
        return sentence_fail(
            sentence, bytes,
            "-e: %.200s does not contain its number of heads; put its config.json next to it",
            text);
    memset(m, 0, sizeof *m);
    (void)snprintf(m->name, sizeof m->name, "%s", text);
    m->is_gpt2 = 1;
    m->gpt2 = info.cfg;
    m->numel = gpt2_numel(&m->gpt2);
    m->blocks = m->gpt2.layers;
    return 0;
}

/* The layout of one rank. The other ranks do not exist in this process. */
typedef struct plan_place {
    layout l;
    plan_world all, data, tp, cp, heads, ring, pp, ends, ep, same;
} plan_place;

static int plan_or_1(int n) { return n > 0 ? n : 1; }

static int plan_part(zero_group **g, plan_world *world, int nranks, int shares, int rank) {
    world->nranks = nranks;
    world->shares = shares;
    *g = plan_group(world, rank);
    return *g == NULL;
}

static void plan_place_close(plan_place *p) {
    plan_group_free(p->l.world);
    plan_group_free(p->l.data);
    plan_group_free(p->l.part.tp);
    plan_group_free(p->l.part.cp);
    plan_group_free(p->l.part.heads);
    plan_group_free(p->l.part.ring);
    plan_group_free(p->l.stage.pp);
    plan_group_free(p->l.stage.ends);
    plan_group_free(p->l.part.ep);
    plan_group_free(p->l.same);
    free(p->l.world_unit);
}

zero_result plan_ring(const plan_case *c, int *ranks, gpt2_error *err) {
    *ranks = 1;
    if (!c->model->is_gpt2) return ZERO_OK;
    const int tp = plan_or_1(c->tp);
    const context_shape s = {&c->model->gpt2, tp, tp > 1 && c->sequence, c->run.seq_len,
                             plan_or_1(c->cp)};
    return context_choose(&s, c->attends, ranks, err);
}

/* Makes the layout of the first rank of a stage. Without tensor, context and pipeline parallelism
 * all ranks are data parallel, and have no groups. */
static int plan_place_open(plan_place *p, const plan_case *c, int pp_rank, char *sentence,
                           size_t bytes) {
    const layout_sizes sizes = {plan_or_1(c->pp), plan_or_1(c->tp), plan_or_1(c->sharers), 0,
                                plan_or_1(c->cp)};
    const int ranks = plan_or_1(c->nranks), micro = plan_or_1(c->zero.micro_steps);
    const int shares = !c->on_gpus && c->one_machine;
    const gpt2_config *model = &c->model->gpt2;
    const int first = ranks / sizes.pp * pp_rank;
    layout *l = &p->l;
    gpt2_error error;
    memset(p, 0, sizeof *p);
    if (layout_divide(l, ranks, first, sizes, sentence, bytes)) return 1;
    if (c->model->is_gpt2 && model->moe.experts
        && layout_near(l, c->zero.shard_ranks, c->zero.second_ranks, sentence, bytes))
        return 1;
    p->all.nranks = ranks;
    p->all.shares = shares;
    l->together = c->run.together;
    l->tile_rows = c->run.tile_rows; /* of the announced order, without groups as well */
    if (sizes.tp * sizes.pp * sizes.cp == 1) return 0;
    if (c->model->is_gpt2) {
        l->mixed = model->moe.experts > 0;
        if (gpt2_parallel_check(model, c->run.seq_len, c->run.tile_rows, sizes.tp, c->sequence,
                                &error))
            return sentence_fail(sentence, bytes, "-tp %d: %s", sizes.tp, error.sentence);
        if (plan_ring(c, &l->ring, &error))
            return sentence_fail(sentence, bytes, "-cp %d: %s", sizes.cp, error.sentence);
        if (layout_stages(l, model, plan_or_1(c->chunks), micro, c->run.seq_len, sentence, bytes))
            return 1;
    }
    if (plan_part(&l->world, &p->all, ranks, shares, first)
        || plan_part(&l->data, &p->data, layout_shards(l), shares, 0)
        || plan_part(&l->part.tp, &p->tp, l->tp, shares, 0)
        || plan_part(&l->part.cp, &p->cp, l->cp, shares, 0)
        || plan_part(&l->part.heads, &p->heads, l->cp / plan_or_1(l->ring), shares, 0)
        || plan_part(&l->part.ring, &p->ring, plan_or_1(l->ring), shares, 0)
        || plan_part(&l->stage.pp, &p->pp, l->pp, shares, pp_rank)
        || plan_part(&l->stage.ends, &p->ends, 2, shares, pp_rank > 0)
        || plan_part(&l->part.ep, &p->ep, l->ep, shares, 0)
        || plan_part(&l->same, &p->same, layout_shards(l) / l->ep, shares, 0))
        return sentence_fail(sentence, bytes, "-pn %d: out of memory; plan fewer ranks", ranks);
    l->part.sequence = l->tp > 1 && c->sequence;
    if (l->pp > 1) l->part.stage = &l->stage;
    return 0;
}

/* Declares the blocks of a model that is only a number of parameters: those of this pipeline stage,
   each cut over the tensor-parallel ranks. */
static zero_result plan_describe_number(const plan_case *c, const layout *l, zero_ctx *z) {
    const plan_model *m = c->model;
    const size_t each = m->numel / (size_t)m->blocks, rest = m->numel % (size_t)m->blocks;
    const size_t tp = (size_t)l->tp;
    const int more = l->pp_rank < m->blocks % l->pp, mine = m->blocks / l->pp + more;
    const int blocks = mine > 0 ? mine : 1;
    const int ends = rest && l->pp_rank == l->pp - 1;
    zero_tensor_desc table[2];
    memset(table, 0, sizeof table);
    table[0].name = "blocks";
    table[0].numel = (each + tp - 1) / tp;
    table[0].layers = blocks;
    table[0].flags = ZERO_BY_SLOT;
    table[1] = table[0];
    table[1].name = "rest";
    table[1].numel = (rest + tp - 1) / tp;
    table[1].layers = 1;
    table[1].unit = blocks - 1;
    return zero_tensors(z, table, ends ? 2 : 1);
}

static zero_result plan_describe(const plan_case *c, const layout *l, zero_ctx *z) {
    const plan_model *m = c->model;
    if (m->is_gpt2) return gpt2_announce(z, &m->gpt2, &l->part, c->run.tile_rows);
    return plan_describe_number(c, l, z);
}

/* ---- one case ------------------------------------------------------------------------------ */

static int plan_activations(const plan_case *c, const layout *l, plan_answer *a, char *sentence,
                            size_t bytes) {
    const int micro = plan_or_1(c->zero.micro_steps) * plan_or_1(c->run.together);
    gpt2_run run = c->run;
    if (!c->model->is_gpt2 || run.batch == 0) return 0;
    run.type = c->zero.type;
    run.parallel = l->world ? &l->part : NULL;
    if (run.seq_len > c->model->gpt2.max_seq_len)
        return sentence_fail(sentence, bytes,
                             "-t %d: %s has positions for %d tokens; use at most that", run.seq_len,
                             c->model->name, c->model->gpt2.max_seq_len);
    a->activations = gpt2_activation_bytes(&c->model->gpt2, &run);
    if (a->activations && l->world) {
        a->activations += gpt2_pipeline_bytes(&c->model->gpt2, &run, micro);
        a->among = gpt2_parallel_bytes(&c->model->gpt2, &run) * (uint64_t)micro
                   + gpt2_pipeline_sent(&c->model->gpt2, &run, micro);
    }
    /* With groups, `activations` already contains the part for ranks that share experts. */
    if (a->activations && c->sharers > 1 && !l->world) {
        a->activations += experts_bytes_of(&c->model->gpt2, &run, c->sharers)
                          - experts_bytes_of(&c->model->gpt2, &run, 1);
        a->among = experts_sent_of(&c->model->gpt2, &run, c->sharers) * (uint64_t)micro;
    }
    if (a->activations && c->checks && l->dp > 1)
        a->activations += gpt2_check_bytes(&c->model->gpt2, &run, l->ranks);
    a->away = gpt2_away_bytes(&c->model->gpt2, &run);
    if (a->activations) return 0;
    return sentence_fail(sentence, bytes, "-b %d: too many sequences of -t %d tokens; use fewer",
                         run.batch, run.seq_len);
}

/* Returns the bytes of memory that saves of a context take. */
static size_t plan_saves(const plan_case *c, const layout *l, const zero_ctx *z, int of_experts) {
    const checkpoint_parts none = {NULL, NULL, NULL};
    const checkpoint_parts parts = c->model->is_gpt2 ? layout_parts(l, 0) : none;
    size_t bytes = 0;
    for (int i = 0; i < c->saves; i++)
        bytes += of_experts ? expert_saves_bytes(z, &parts, c->way[i])
                            : checkpoint_bytes(z, &parts, c->way[i]);
    return bytes;
}

/* Declares the tensors of one context: all but experts, or the experts that this rank has. */
static zero_result plan_tensors(const plan_case *c, const layout *l, int of_experts, zero_ctx *z) {
    zero_tensor_desc table[EXPERTS_TENSORS];
    if (!of_experts) return plan_describe(c, l, z);
    const experts_part part = {0, c->sharers, 0, 1, NULL};
    experts_table(&c->model->gpt2, &part, table);
    ZERO_TRY(zero_tensors(z, table, EXPERTS_TENSORS));
    return c->run.together > 1 ? experts_order(z, &c->model->gpt2, &part) : ZERO_OK;
}

/* Sets the settings that follow from the layout. A model that is only a number of parameters has no
 * numbered units. */
static zero_result plan_settings(const plan_case *c, layout *l, zero_config *cfg) {
    if (!l->world) return ZERO_OK;
    free(l->world_unit);
    l->world_unit = NULL;
    return c->model->is_gpt2 ? layout_settings(l, &c->model->gpt2, cfg) : ZERO_OK;
}

/* Requests the plugin's plan, and adds this context's saves to it. `resolved` may be NULL. */
static int plan_context(const plan_case *c, plan_place *at, int of_experts, const zero_config *cfg,
                        zero_plan *plan, zero_config *resolved, size_t *saves, char *sentence,
                        size_t bytes) {
    const int ranks = at->all.nranks / (of_experts ? c->sharers : 1);
    plan_world world = {ranks, at->all.shares};
    const int node = of_experts && c->node_size ? layout_same(&at->l, c->node_size) : c->node_size;
    const zero_comm all = {ZERO_COMM_OWN, 0, &world, node};
    const zero_comm comm = layout_comm(&at->l, &all);
    zero_config own = *cfg;
    zero_ctx *z = NULL;
    plan_for_gpus(c->on_gpus);
    if (of_experts && c->run.together > 1) {
        const experts_part part = {0, c->sharers, 0, 1, NULL};
        own.open_units = experts_open_units(&c->model->gpt2, &part);
    }
    if (of_experts && own.shard_ranks) own.shard_ranks = layout_same(&at->l, own.shard_ranks);
    if (of_experts && own.second_ranks) own.second_ranks = layout_same(&at->l, own.second_ranks);
    zero_result r = plan_settings(c, &at->l, &own);
    if (!r) r = zero_create(&z, &own, &comm);
    if (!r) r = plan_tensors(c, &at->l, of_experts, z);
    if (!r) r = layout_experts(&at->l, z, &c->model->gpt2, &own, comm.node_size, NULL);
    if (!r && c->model->is_gpt2 && !of_experts) r = layout_order(&at->l, z, &c->model->gpt2, &own);
    if (!r) r = layout_plan(&at->l, z, plan);
    if (!r) *saves += plan_saves(c, &at->l, z, of_experts);
    if (!r && at->l.experts) *saves += plan_saves(c, &at->l, at->l.experts, 1);
    if (r) (void)sentence_fail(sentence, bytes, "%s", z ? zero_last_error(z) : "out of memory");
    zero_query_config(z, resolved);
    layout_destroy(&at->l, z);
    free(at->l.expert_unit);
    at->l.expert_unit = NULL;
    return r != ZERO_OK;
}

/* Adds up all contexts. */
static int plan_query(const plan_case *c, plan_place *at, const zero_config *cfg, zero_plan *plan,
                      zero_config *resolved, size_t *saves, char *sentence, size_t bytes) {
    zero_plan more;
    *saves = 0;
    if (plan_context(c, at, 0, cfg, plan, resolved, saves, sentence, bytes)) return 1;
    if (!c->model->is_gpt2 || !c->model->gpt2.moe.experts || at->l.mixed) return 0;
    if (plan_context(c, at, 1, cfg, &more, NULL, saves, sentence, bytes)) return 1;
    experts_add_plan(plan, &more);
    return 0;
}

/* Checks the number of ranks that share the experts of a layer. Returns 0, or 1 and a sentence. */
static int plan_sharers(plan_case *c, char *sentence, size_t bytes) {
    const int ranks = c->nranks > 0 ? c->nranks : 1;
    gpt2_error error;
    if (c->sharers < 1) c->sharers = 1;
    if (!c->model->is_gpt2) return 0;
    if (experts_check(&c->model->gpt2, c->sharers, &error))
        return sentence_fail(sentence, bytes, "-eg %d: %s", c->sharers, error.sentence);
    if (ranks % c->sharers == 0) return 0;
    return sentence_fail(
        sentence, bytes,
        "-eg %d: %d ranks cannot be divided into groups of this size; use a divisor", c->sharers,
        ranks);
}

/* Adds up the bytes of the rank by tier. */
static void plan_total(const plan_case *c, plan_answer *a) {
    const zero_plan *p = &a->zero;
    a->device_bytes = plan_bytes(p, !c->on_gpus) + a->activations + (c->on_gpus ? 0 : a->saves);
    a->host_bytes = (uint64_t)p->host_bytes + (c->on_gpus ? a->away + a->saves : 0);
    a->file_bytes = (uint64_t)p->file_bytes + (c->on_gpus ? 0 : a->away);
}

static int plan_ask_at(const plan_case *c, plan_place *at, plan_answer *a, char *sentence,
                       size_t bytes) {
    zero_config cfg = c->zero;
    zero_plan here;
    size_t saves;
    if (cfg.folder == NULL) cfg.folder = ".";
    if (plan_query(c, at, &cfg, &a->zero, &a->resolved, &a->saves, sentence, bytes)) return 1;
    const int whole = !cfg.optimizer_tier && !cfg.gradient_tier && !cfg.parameter_tier;
    here = a->zero;
    cfg.optimizer_tier = cfg.gradient_tier = cfg.parameter_tier = ZERO_DEVICE;
    cfg.delay_from = 0;
    if (!c->state_bytes && !(whole && !c->zero.delay_from)
        && plan_query(c, at, &cfg, &here, NULL, &saves, sentence, bytes))
        return 1;
    if (plan_activations(c, &at->l, a, sentence, bytes)) return 1;
    a->rank = at->l.rank;
    a->pp_rank = at->l.pp_rank;
    a->resolved.world = NULL; /* the group is freed with the place */
    a->resolved.world_unit = NULL;
    a->state_bytes = c->state_bytes ? c->state_bytes : here.optimizer_bytes;
    plan_total(c, a);
    return 0;
}

int plan_add_run(const plan_case *asked, plan_answer *a, char *sentence, size_t bytes) {
    plan_case c = *asked;
    plan_place at;
    if (plan_sharers(&c, sentence, bytes)) return 1;
    const int failed = plan_place_open(&at, &c, 0, sentence, bytes)
                       || plan_activations(&c, &at.l, a, sentence, bytes);
    plan_place_close(&at);
    plan_total(&c, a);
    return failed;
}

int plan_ask_stage(const plan_case *asked, int pp_rank, plan_answer *a, char *sentence,
                   size_t bytes) {
    plan_case own = *asked;
    plan_place at;
    memset(a, 0, sizeof *a);
    if (plan_sharers(&own, sentence, bytes)) return 1;
    const int failed = plan_place_open(&at, &own, pp_rank, sentence, bytes)
                       || plan_ask_at(&own, &at, a, sentence, bytes);
    plan_place_close(&at);
    return failed;
}

int plan_ask(const plan_case *c, plan_answer *a, char *sentence, size_t bytes) {
    for (int stage = 0; stage < plan_or_1(c->pp); stage++) {
        plan_answer at;
        if (plan_ask_stage(c, stage, &at, sentence, bytes)) return 1;
        if (stage == 0 || at.device_bytes > a->device_bytes) *a = at;
    }
    return 0;
}

/* ---- limits -------------------------------------------------------------------------------- */

static int plan_within(uint64_t bytes, double most) { return most <= 0 || (double)bytes <= most; }

int plan_fits(const plan_answer *a, const plan_limits *most) {
    return plan_within(a->device_bytes, most->device) && plan_within(a->host_bytes, most->host)
           && plan_within(a->file_bytes, most->file);
}

static int plan_holds(const plan_case *c, const plan_limits *most) {
    plan_answer a;
    char why[PLAN_SENTENCE];
    return !plan_ask(c, &a, why, sizeof why) && plan_fits(&a, most);
}

/* Bisects, because memory grows with the batch. */
int plan_largest_batch(const plan_case *c, const plan_limits *most) {
    plan_case at = *c;
    int fits = 0, fails = 65537;
    while (fits + 1 < fails) {
        at.run.batch = fits ? (fits < fails / 2 ? 2 * fits : fits + (fails - fits) / 2) : 1;
        if (at.run.batch >= fails) at.run.batch = fits + (fails - fits) / 2;
        if (plan_holds(&at, most))
            fits = at.run.batch;
        else
            fails = at.run.batch;
    }
    return fits;
}

double plan_largest_model(const plan_case *c, const plan_limits *most) {
    plan_case at = *c;
    plan_model m;
    double fits = 0;
    at.model = &m;
    at.run.batch = 0;
    /* Bisects over the numbers of three digits: 1.00, 1.01, ... 9.99 times a power of ten. */
    int low = 0, high = 900 * 11; /* 1e3 .. 1e14 */
    while (low < high) {
        const int middle = (low + high) / 2, power = middle / 900 + 1;
        const double numel = (100 + middle % 900) * pow(10, power);
        plan_model_of(numel, &m);
        if (plan_holds(&at, most)) {
            fits = numel;
            low = middle + 1;
        } else
            high = middle;
    }
    return fits;
}
