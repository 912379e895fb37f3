/* layout.c - see layout.h. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "layout.h"

#include "../gpt2/device.h"
#include "../gpt2/experts.h"
#include "../gpt2/frozen.h"
#include "../gpt2/tensor_parallel.h"
#include "../pipeline/pipeline.h"
#include "../report/sentence.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { LAYOUT_SUMS = 8 };

/* Returns the divisor of n that is nearest to k, the lower one of two. */
static int layout_nearest(int n, int k) {
    for (int off = 0; off < k; off++) {
        if (n % (k - off) == 0) return k - off;
        if (k + off <= n && n % (k + off) == 0) return k + off;
    }
    return 1;
}

int layout_divide(layout *l, int ranks, int rank, layout_sizes sizes, char *sentence,
                  size_t bytes) {
    const int tp = sizes.tp, pp = sizes.pp, left = tp > 0 ? ranks / tp : 0;
    memset(l, 0, sizeof *l);
    if (ranks % tp)
        return sentence_fail(sentence, bytes,
                             "-tp %d: %d rank%s cannot be divided into groups of this size; the "
                             "nearest size is -tp %d",
                             tp, ranks, ranks > 1 ? "s" : "", layout_nearest(ranks, tp));
    if (left % pp)
        return sentence_fail(sentence, bytes,
                             "-pp %d: %d rank%s%s cannot be divided into this number of stages; "
                             "the nearest number is -pp %d",
                             pp, left, left > 1 ? "s" : "", tp > 1 ? " (after -tp)" : "",
                             layout_nearest(left, pp));
    l->ranks = ranks;
    l->rank = rank;
    l->pp = pp;
    l->tp = tp;
    const int of_stage = left / pp;
    if (of_stage % sizes.cp)
        return sentence_fail(sentence, bytes,
                             "-cp %d: %d rank%s cannot be divided into groups of this size; the "
                             "nearest size is -cp %d",
                             sizes.cp, of_stage, of_stage > 1 ? "s" : "",
                             layout_nearest(of_stage, sizes.cp));
    l->cp = sizes.cp;
    l->dp = of_stage / l->cp;
    if (of_stage % sizes.ep)
        return sentence_fail(sentence, bytes,
                             "-eg %d: %d data-parallel%s rank%s cannot be divided into groups of "
                             "this size; the nearest size is -eg %d",
                             sizes.ep, of_stage, l->cp > 1 ? " and context-parallel" : "",
                             of_stage > 1 ? "s" : "", layout_nearest(of_stage, sizes.ep));
    l->ep = sizes.ep;
    l->apart = sizes.apart;
    l->tp_rank = rank % tp;
    l->cp_rank = rank / tp % l->cp;
    l->dp_rank = rank / tp / l->cp % l->dp;
    l->pp_rank = rank / tp / l->cp / l->dp;
    const int at = rank / tp % of_stage, groups = of_stage / l->ep;
    l->ep_rank = sizes.apart ? at / groups : at % l->ep;
    l->ep_group = sizes.apart ? at % groups : at / l->ep;
    return 0;
}

int layout_shards(const layout *l) { return l->dp * l->cp; }

int layout_same(const layout *l, int ranks) {
    const int all = layout_shards(l) / l->ep, each = l->apart ? 1 : l->ep;
    const int near = ranks / each, rest = ranks % each;
    if (rest) return each % ranks ? 0 : 1;
    return all % near == 0 ? near : near % all == 0 ? all : 0;
}

int layout_near(const layout *l, int shard_ranks, int second_ranks, char *sentence, size_t bytes) {
    const int odd = shard_ranks && !layout_same(l, shard_ranks);
    if (!odd && (!second_ranks || layout_same(l, second_ranks))) return 0;
    return sentence_fail(sentence, bytes,
                         "%s %d: groups of this number of consecutive ranks do not all have the "
                         "same number of ranks with equal experts, because %d ranks %s share the "
                         "experts of a layer; use a multiple or a divisor of %d",
                         odd ? "-zs" : "-zh", odd ? shard_ranks : second_ranks, l->ep,
                         l->apart ? "that are apart (-ego 1)" : "that are neighbours",
                         l->apart ? layout_shards(l) / l->ep : l->ep);
}

int layout_stages(layout *l, const gpt2_config *model, int chunks, int micro_steps, int seq_len,
                  char *sentence, size_t bytes) {
    const pipeline_shape shape = {l->pp, micro_steps, chunks, 0};
    gpt2_error error;
    char why[256];
    if (l->pp == 1 && chunks > 1)
        return sentence_fail(sentence, bytes,
                             "-ppv %d: chunks are parts of pipeline stages (found -pp 1); add -pp, "
                             "the number of stages",
                             chunks);
    if (l->pp == 1) return 0;
    if (gpt2_stage_make(&l->stage, model, l->pp, chunks, l->pp_rank, seq_len, &error))
        return sentence_fail(sentence, bytes, "-pp %d: %s", l->pp, error.sentence);
    if (pipeline_check(&shape, model->layers, why, sizeof why))
        return sentence_fail(sentence, bytes, "-pp %d: %s", l->pp, why);
    gpt2_pipeline_slots(&l->stage, micro_steps);
    return 0;
}

/* Parses one word of `length` characters. */
static int layout_read(const char *word, int length, int ranks, layout_sizes *sizes, char *sentence,
                       size_t bytes) {
    enum { KINDS = 5, EP = 3, CP = 4 }; /* ep divides the dp ranks */
    static const char kinds[KINDS][3] = {"pp", "tp", "dp", "ep", "cp"};
    int size[KINDS] = {0, 0, 0, 0, 0}, at = 0;
    while (at < length) {
        int n = 0, end = 0, kind = 0;
        while (kind < KINDS && strncmp(word + at, kinds[kind], 2) != 0) kind++;
        if (kind == KINDS || size[kind] || sscanf(word + at + 2, "%5d%n", &n, &end) != 1 || n < 1)
            return sentence_fail(sentence, bytes,
                                 "-layouts: '%.*s' is not a layout; expected words like dp4, "
                                 "tp2dp2, cp2dp2, pp2tp2 or ep2dp4",
                                 length, word);
        size[kind] = n;
        at += 2 + end;
    }
    if (size[EP] && !size[2]) size[2] = size[CP] > 1 ? size[EP] / size[CP] : size[EP];
    for (int k = 0; k < KINDS; k++) size[k] += !size[k];
    const long long all = (long long)size[0] * size[1] * size[2] * size[CP];
    if (all != ranks)
        return sentence_fail(
            sentence, bytes,
            "-layouts: %.*s is for %lld ranks (found %d); change the layout or -pn", length, word,
            all, ranks);
    sizes->pp = size[0];
    sizes->tp = size[1];
    sizes->ep = size[EP];
    sizes->cp = size[CP];
    return 0;
}

int layout_word(const char *list, int i, int ranks, layout_sizes *sizes, char *sentence,
                size_t bytes) {
    static const char *const blanks = " ,";
    list += strspn(list, blanks);
    for (; *list && i > 0; i--) {
        list += strcspn(list, blanks);
        list += strspn(list, blanks);
    }
    if (!*list) return -1;
    return layout_read(list, (int)strcspn(list, blanks), ranks, sizes, sentence, bytes);
}

int layout_words(const char *list) {
    int n = 0;
    for (list += strspn(list, " ,"); *list; n++) {
        list += strcspn(list, " ,");
        list += strspn(list, " ,");
    }
    return n;
}

int layout_most_data(const char *list, int ranks) {
    int most = 1;
    layout_sizes s;
    char sentence[8];
    for (int i = 0; layout_word(list, i, ranks, &s, sentence, sizeof sentence) == 0; i++)
        if (ranks / s.tp / s.pp / s.cp > most) most = ranks / s.tp / s.pp / s.cp;
    return most;
}

void layout_name(const layout *l, char name[LAYOUT_NAME]) {
    int used = 0;
    name[0] = 0;
    if (l->pp > 1) used += snprintf(name, LAYOUT_NAME, "pp%d", l->pp);
    if (l->tp > 1) used += snprintf(name + used, LAYOUT_NAME - (size_t)used, "tp%d", l->tp);
    if (l->ep > 1) used += snprintf(name + used, LAYOUT_NAME - (size_t)used, "ep%d", l->ep);
    if (l->cp > 1) used += snprintf(name + used, LAYOUT_NAME - (size_t)used, "cp%d", l->cp);
    if (l->dp > 1 || l->tp * l->pp * l->cp == 1)
        (void)snprintf(name + used, LAYOUT_NAME - (size_t)used, "dp%d", l->dp);
}

/* Opens the groups of one (dp_rank, cp_rank, tp_rank): all stages, and the first and last one. */
static zero_result layout_open_stages(layout *l) {
    const int of_stages = (l->dp_rank * l->cp + l->cp_rank) * l->tp + l->tp_rank;
    const int ends = l->pp_rank == 0 || l->pp_rank == l->pp - 1;
    if (l->pp == 1) return ZERO_OK;
    ZERO_TRY(zero_group_split(l->world, of_stages, l->pp_rank, &l->stage.pp));
    zero_group_name(l->stage.pp, "pp");
    l->part.stage = &l->stage;
    return zero_group_split(l->world, ends ? of_stages : -1, l->pp_rank, &l->stage.ends);
}

/* Opens the group that shares a layer's experts, and the group with the same ones. */
static zero_result layout_open_experts(layout *l) {
    if (!l->mixed) return ZERO_OK;
    ZERO_TRY(zero_group_split(l->data, l->ep_group, l->ep_rank, &l->part.ep));
    zero_group_name(l->part.ep, "ep");
    return zero_group_split(l->data, l->ep_rank, l->ep_group, &l->same);
}

/* Opens the ring again on a stream of its own, so that its messages run next to attention. */
static zero_result layout_open_wires(layout *l, void *wires, double timeout_s) {
    const zero_comm circle = zero_group_comm(l->circle);
    l->part.ring_stream = wires;
    return zero_group_open(&l->part.ring, &circle, wires, timeout_s);
}

/* Opens the two parts of the group that shares sequences: a ring, and neighbours that exchange
   heads. If one of them has all ranks, there are no parts. */
static zero_result layout_open_ring(layout *l, void *wires, double timeout_s) {
    const int neighbours = l->ring > 1 ? l->cp / l->ring : l->cp;
    if (neighbours == l->cp) return ZERO_OK;
    l->part.ring = l->part.cp;
    if (neighbours == 1 && !wires) return ZERO_OK;
    const int among = l->cp_rank % neighbours, turn = l->cp_rank / neighbours;
    l->part.ring = NULL;
    if (neighbours > 1) ZERO_TRY(zero_group_split(l->part.cp, turn, among, &l->part.heads));
    zero_group_name(l->part.heads, "heads");
    ZERO_TRY(zero_group_split(l->part.cp, among, turn, wires ? &l->circle : &l->part.ring));
    if (wires) ZERO_TRY(layout_open_wires(l, wires, timeout_s));
    if (neighbours > 1) zero_group_name(l->part.ring, "ring");
    return ZERO_OK;
}

/* Opens the group that shares sequences, and the group with the same pieces. */
static zero_result layout_open_pieces(layout *l, const device *d, double timeout_s) {
    if (l->cp == 1) return ZERO_OK;
    ZERO_TRY(zero_group_split(l->data, l->dp_rank, l->cp_rank, &l->part.cp));
    zero_group_name(l->part.cp, "cp");
    ZERO_TRY(layout_open_ring(l, d ? d->wires : NULL, timeout_s));
    ZERO_TRY(zero_group_split(l->data, l->cp_rank, l->dp_rank, &l->pieces));
    zero_group_name(l->pieces, "dp");
    return ZERO_OK;
}

zero_result layout_open(layout *l, const zero_comm *comm, const device *d, double timeout_s) {
    if (l->tp * l->pp * l->cp == 1 && !l->mixed) return ZERO_OK;
    const int of_data = l->pp_rank * l->tp + l->tp_rank;
    const int of_parts = (l->pp_rank * l->dp + l->dp_rank) * l->cp + l->cp_rank;
    l->sums = (double *)zero_host_alloc(LAYOUT_SUMS * sizeof *l->sums);
    ZERO_TRY(zero_group_open(&l->world, comm, d ? d->stream : NULL, timeout_s));
    ZERO_TRY(zero_group_split(l->world, of_data, l->dp_rank * l->cp + l->cp_rank, &l->data));
    ZERO_TRY(zero_group_split(l->world, of_parts, l->tp_rank, &l->part.tp));
    zero_group_name(l->part.tp, "tp");
    ZERO_TRY(layout_open_experts(l));
    ZERO_TRY(layout_open_pieces(l, d, timeout_s));
    ZERO_TRY(layout_open_stages(l));
    if (l->cp == 1) zero_group_name(l->data, "dp");
    return l->sums ? ZERO_OK : ZERO_ERR_MEMORY;
}

const char *layout_error(const layout *l) {
    const zero_group *const all[12] = {l->part.tp,    l->stage.ends, l->stage.pp, l->part.ep,
                                       l->part.heads, l->part.ring,  l->circle,   l->part.cp,
                                       l->pieces,     l->same,       l->data,     l->world};
    if (l->experts && zero_last_error(l->experts)[0]) return zero_last_error(l->experts);
    for (int i = 0; i < 12; i++)
        if (all[i] && zero_group_error(all[i])[0]) return zero_group_error(all[i]);
    return "";
}

void layout_close(layout *l) {
    zero_group_close(l->stage.ends);
    zero_group_close(l->stage.pp);
    zero_group_close(l->same);
    zero_group_close(l->pieces);
    zero_group_close(l->part.heads);
    if (l->part.ring != l->part.cp) zero_group_close(l->part.ring);
    zero_group_close(l->circle);
    zero_group_close(l->part.cp);
    zero_group_close(l->part.ep);
    zero_group_close(l->part.tp);
    zero_group_close(l->data);
    zero_group_close(l->world);
    zero_host_free(l->sums);
    free(l->world_unit);
    free(l->expert_unit);
    l->world = l->data = l->part.tp = l->stage.pp = l->stage.ends = l->part.ep = l->same = NULL;
    l->part.cp = l->part.heads = l->part.ring = l->circle = l->pieces = NULL;
    l->sums = NULL;
    l->world_unit = l->expert_unit = NULL;
}

zero_result layout_settings(layout *l, const gpt2_config *model, zero_config *c) {
    const int tiles = gpt2_tiles(model, l->tp, l->tile_rows);
    const int units = gpt2_world_units(model, tiles);
    const int alone = l->tp * l->pp == 1 && !l->mixed; /* one context has all ranks */
    c->world = alone ? NULL : l->world;
    l->model = model;
    if (l->mixed) c->world_units = units + experts_world_units(model);
    if (l->pp == 1) return ZERO_OK;
    l->world_unit = (int *)malloc((size_t)units * sizeof *l->world_unit);
    if (!l->world_unit) return ZERO_ERR_MEMORY;
    gpt2_stage_world(model, &l->stage, tiles, l->world_unit);
    c->world_units = units + (l->mixed ? experts_world_units(model) : 0);
    c->world_unit = l->world_unit;
    return ZERO_OK;
}

zero_comm layout_comm(const layout *l, const zero_comm *comm) {
    if (!l->world) return *comm;
    zero_comm own = zero_group_comm(l->data);
    own.node_size = comm->node_size % l->tp == 0 ? comm->node_size / l->tp : 0;
    if (own.node_size && layout_shards(l) % own.node_size) own.node_size = 0;
    return own;
}

/* ---- experts ------------------------------------------------------------------------------- */

zero_result layout_experts(layout *l, zero_ctx *z, const gpt2_config *model, const zero_config *c,
                           int node_size, void *trace_user) {
    const experts_part part = experts_part_of(&l->part);
    zero_config own = *c;
    if (!l->mixed) return ZERO_OK;
    zero_comm comm = zero_group_comm(l->same);
    comm.node_size = node_size ? layout_same(l, node_size) : 0;
    l->expert_unit = (int *)malloc((size_t)experts_units(model, &part) * sizeof *l->expert_unit);
    if (!l->expert_unit) return ZERO_ERR_MEMORY;
    experts_world(model, &part, c->world_units - experts_world_units(model), l->expert_unit);
    own.world_unit = l->expert_unit;
    own.joins = z;
    own.trace_user = trace_user;
    own.divisor = layout_shards(l);
    if (own.shard_ranks) own.shard_ranks = layout_same(l, own.shard_ranks);
    if (own.second_ranks) own.second_ranks = layout_same(l, own.second_ranks);
    if (l->together > 1) own.open_units = experts_open_units(model, &part);
    ZERO_TRY(zero_create(&l->experts, &own, &comm));
    l->part.experts = l->experts;
    ZERO_TRY(experts_announce(l->experts, model, &l->part));
    return l->together > 1 ? experts_order(l->experts, model, &part) : ZERO_OK;
}

zero_result layout_order(const layout *l, zero_ctx *z, const gpt2_config *model,
                         const zero_config *c) {
    const int tiles = gpt2_tiles(model, l->tp, l->tile_rows);
    if (l->together > 1) return gpt2_layers_order(z, model, tiles);
    if (l->pp == 1) return gpt2_frozen_order(z, model, tiles);
    return gpt2_pipeline_order(z, model, &l->stage, tiles, c->micro_steps ? c->micro_steps : 1);
}

zero_result layout_plan(const layout *l, zero_ctx *z, zero_plan *plan) {
    zero_plan x;
    ZERO_TRY(zero_query_plan(z, plan));
    if (!l->experts) return ZERO_OK;
    ZERO_TRY(zero_query_plan(l->experts, &x));
    experts_add_plan(plan, &x);
    return ZERO_OK;
}

zero_result layout_build(const layout *l, zero_ctx *z, zero_plan *plan) {
    ZERO_TRY(zero_build(z));
    if (l->experts) ZERO_TRY(zero_build(l->experts));
    return layout_plan(l, z, plan);
}
zero_result layout_reduce(const layout *l, zero_ctx *z) {
    if (l->experts) ZERO_TRY(zero_reduce(l->experts));
    return zero_reduce(z);
}
zero_result layout_step(const layout *l, zero_ctx *z, const zero_hyper *hyper) {
    if (l->experts) ZERO_TRY(hyper ? zero_step(l->experts, hyper) : zero_skip_step(l->experts));
    return hyper ? zero_step(z, hyper) : zero_skip_step(z);
}
zero_result layout_apply_pending(const layout *l, zero_ctx *z) {
    if (l->experts) ZERO_TRY(zero_apply_pending(l->experts));
    return zero_apply_pending(z);
}
void layout_destroy(layout *l, zero_ctx *z) {
    zero_destroy(l->experts);
    zero_destroy(z);
    l->experts = l->part.experts = NULL;
}

zero_result layout_hash(const layout *l, const gpt2_config *model, uint64_t *hash) {
    uint64_t mixed = 0;
    if (!l->experts) return ZERO_OK;
    ZERO_TRY(experts_hash(l->experts, model, &l->part, &mixed));
    *hash ^= mixed;
    return ZERO_OK;
}

zero_result layout_stats(const layout *l, zero_stats *stats) {
    const zero_group *ring = l->part.ring != l->part.cp ? l->part.ring : NULL;
    const zero_group *const all[7] = {l->part.tp, l->part.ep,  l->part.cp,   l->part.heads,
                                      ring,       l->stage.pp, l->stage.ends};
    memset(stats, 0, sizeof *stats);
    if (l->experts) ZERO_TRY(zero_query_stats(l->experts, stats));
    for (int i = 0; i < 7; i++) {
        zero_group_stats of;
        zero_group_query_stats(all[i], &of);
        stats->sent_bytes += of.sent_bytes;
        if (!all[i] || all[i] != l->part.ring) stats->exposed_s += of.waited_s;
    }
    return ZERO_OK;
}

static void layout_place(const void *user, const char *name, size_t at, checkpoint_place *place) {
    const layout *l = (const layout *)user;
    gpt2_place p;
    if (l->leaves_frozen && gpt2_is_all_frozen(l->model, name)) place->saves = CHECKPOINT_LEFT_OUT;
    if (place->saves == CHECKPOINT_LEFT_OUT) return;
    if (gpt2_place_of(l->model, &l->part, name, at, &p) < 0
        && experts_place_of(l->model, &l->part, name, at, &p) < 0)
        return;
    const checkpoint_place found = {p.total, p.row, p.parts, p.part, p.owner, p.first, p.n};
    *place = found;
}

checkpoint_parts layout_parts(const layout *l, int of_experts) {
    const checkpoint_parts parts = {l->world, layout_place, l}, none = {NULL, NULL, NULL};
    return l->tp * l->pp > 1 || of_experts || l->leaves_frozen ? parts : none;
}

zero_result layout_sum(layout *l, zero_ctx *z, double *values, int n) {
    if (!n) return l->world ? zero_group_barrier(l->world) : zero_barrier(z);
    if (!l->world) return zero_all_sum(z, values, n);
    memcpy(l->sums, values, (size_t)n * sizeof *values);
    ZERO_TRY(zero_group_all_reduce(l->world, l->sums, (size_t)n, ZERO_F64, ZERO_SUM));
    ZERO_TRY(zero_group_barrier(l->world)); /* waits for the device, too */
    memcpy(values, l->sums, (size_t)n * sizeof *values);
    return ZERO_OK;
}

zero_result layout_sum_data(layout *l, zero_ctx *z, double *values, int n) {
    if (l->pp == 1) return zero_all_sum(z, values, n);
    ZERO_TRY(layout_sum(l, z, values, n));
    for (int i = 0; i < n; i++) values[i] /= l->tp;
    return ZERO_OK;
}
