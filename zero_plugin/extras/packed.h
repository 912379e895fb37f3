/* packed.h - quantized communication: the units that use it, its memory and its collectives

   Weights are quantized where a unit is sharded. Gradients are quantized for all units except those
   that have only vectors, which are few numbers and sensitive. One rank alone sends nothing.

   MEMORY of a rank, for the largest unit: N quantized shards to gather into, and twice that for
   reductions, to send from and to receive in. Error feedback adds one bf16 error for each element
   of every quantized unit (the first hop), and one for each element of the shards that this rank
   quantizes again (the second hop). fp16 keeps two copies of the errors: see codec.h. */
#pragma once

#include "codec_kernels.h"
#include "../comm/group.h"
#include "../core/part.h"
#include "../core/ranges.h"
#include "../core/step.h"

/* Kinds of quantized numbers: both sides, and the weights of frozen tensors. */
enum { ZP_PACKED_FROZEN = ZP_PARAM + 1, ZP_PACKED_KINDS };
static_assert(ZP_GRAD == 0 && ZP_PARAM == 1, "the other kinds are the sides");

typedef struct zp_packed_state {
    zp_wire wire[ZP_PACKED_KINDS];               /* how quantized messages are sent */
    const zp_codec *codec[ZP_PACKED_KINDS];      /* NULL: as stored */
    size_t gathered_bytes, packed_bytes, errors; /* number of errors of this rank */
    zp_memory gathered;                          /* [nranks] quantized shards of a unit */
    char *out, *in;       /* [packed_bytes] sent and received in a unit's reduction */
    uint16_t *error;      /* [errors] bf16, for each unit hop after hop; NULL: no error feedback */
    size_t *first_error;  /* [layout.segments] index of a unit's first error */
    size_t copy_distance; /* distance in elements to the second copy; 0: no second copy */
    zp_comm hop[2];       /* [0] inside nodes, or all ranks; [1] between nodes */
    zp_part part[2];
    uint64_t number[2]; /* collectives of each hop so far */
    zero_message *list; /* [2 * nranks] */
    char name[48];      /* name of the errors in checkpoints */
    int put;            /* errors were put since zero_state_begin */
} zp_packed_state;

/* Returns the codec of a quantized collective, and the bytes of a quantized shard. */
static const zp_codec *zp_packed_codec(const zp_op *op) {
    const zp_packed_state *w = op->wire->z->packed;
    return w->codec[op->wire - w->wire];
}
static size_t zp_packed_shard_bytes(const zp_op *op) {
    return zp_codec_quantized_bytes(zp_packed_codec(op), op->shard);
}

/* Returns the number of consecutive ranks in the first hop. A reduction has two hops if several
   nodes have several ranks each: inside nodes, then between the ranks of one place. */
static int zp_packed_hop_ranks(const zp_comm *g) {
    const int hops = g->node_size > 1 && g->node_size < g->nranks && !g->interleaved;
    return hops ? g->node_size : g->nranks;
}

/* Returns the errors of unit u: one for each number that this rank quantizes. */
static size_t zp_packed_errors_of(const zero_ctx *z, int u) {
    const size_t ranks = (size_t)z->data->nranks,
                 nodes = ranks / (size_t)zp_packed_hop_ranks(z->data);
    const size_t again = nodes > 1 ? nodes : 0;
    const int feeds = z->cfg.feedback > 0 && z->live[u].wire[ZP_GRAD];
    return feeds ? (ranks + again) * zp_ctx_shard(z, u) : 0;
}

/* Returns the ranks of a hop: 0, inside nodes or all ranks; 1, between nodes. */
static zp_cut zp_packed_hop_cut(const zp_comm *data, int hop) {
    const int local = zp_packed_hop_ranks(data), nodes = data->nranks / local;
    const int node = data->rank / local, place = data->rank % local;
    const zp_cut cut[2] = {{nodes, node, place, local, NULL}, {local, place, node, nodes, NULL}};
    return cut[hop];
}
/* The bytes that the transport needs for both hops. */
static size_t zp_packed_hop_bytes(const zp_comm *data) {
    const zp_cut inside = zp_packed_hop_cut(data, 0), between = zp_packed_hop_cut(data, 1);
    return zp_part_bytes(data, &inside, 1)
           + (inside.parts > 1 ? zp_part_bytes(data, &between, 1) : 0);
}

static size_t zp_packed_error_bytes(const zp_packed_state *w) {
    return (w->errors + w->copy_distance) * sizeof *w->error;
}

/* QUANTIZED COLLECTIVES. A collective has a codec as a field.

   AN ALL-GATHER quantizes this rank's shard into its place of a quantized unit, gathers that unit,
   and dequantizes all shards, its own included. So every rank has the same numbers.

   A REDUCTION quantizes this rank's unit, shard by shard, and exchanges messages. In the first hop,
   each rank of a node receives the shards of all ranks of its place and adds them up in rank order.
   It quantizes these sums and exchanges them with the ranks of its place on the other nodes. It
   adds what it receives in node order, scales the sum, and rounds once. So numbers are quantized
   twice, for any number of ranks. With one node, or nodes of one rank, one hop has all ranks.

     4 ranks, nodes of 2; shard s of rank r is rs      rank 0        rank 1        rank 2   rank 3
       quantized, a message to each place of the node  00 02|01 03   10 12|11 13   ...      ...
       the first hop receives and adds                 00+10 02+12   01+11 03+13   20+30 .. ..
       the second hop, with the same place             sum of 0      sum of 1      of 2     of 3

   All of a unit's work runs on the gradient stream, so one quantized unit needs memory at a
   time. */

/* Sends `bytes` from `out` to each rank of a hop, and receives as many from each in `in`, in rank
   order. */
static zero_result zp_packed_exchange(zp_stream *s, zp_packed_state *w, int hop, const zp_op *op,
                                      size_t bytes) {
    zp_comm *g = &w->hop[hop];
    const zp_parts out = {w->out, bytes, bytes, SIZE_MAX}, in = {w->in, bytes, bytes, SIZE_MAX};
    const int n = zp_group_list_messages(g, w->list, &out, &in);
    const zp_swap x = {g, zp_comm_op_call(op), ++w->number[hop], w->list, n};
    const size_t own = (size_t)g->rank * bytes;
    ZP_TRY(zp_device_copy(s, w->in + own, w->out + own, bytes));
    ZP_TRY(zp_failure_result(g->failure));
    return g->transport->messenger->swap(s, &x);
}

typedef struct zp_packed_args {
    zero_ctx *z;
    zp_op op;
    int again; /* the unit was reduced before in this step */
} zp_packed_args;

static zero_result zp_packed_run(zp_stream *s, const zp_packed_args *a) {
    zp_packed_state *w = a->z->packed;
    const zp_op *op = &a->op;
    const int ranks = op->group->nranks, local = zp_packed_hop_ranks(op->group),
              nodes = ranks / local;
    const size_t packed = zp_packed_shard_bytes(op), sent = (size_t)nodes * packed;
    const char *base = op->memory->base;
    uint16_t *error = w->error ? w->error + w->first_error[op->unit] : NULL;
    uint16_t *next = error ? error + (size_t)ranks * op->shard : NULL;
    const zp_codec codec = *zp_packed_codec(op);
    const zp_control *control = a->z->control;
    const float beta = a->z->cfg.feedback;
    const zp_quantized all = {NULL, 0, op->shard, codec, 0, ranks},
                       node = {w->in, sent, op->shard, codec, local, nodes},
                       last = {w->in, packed, op->shard, codec, nodes > 1 ? nodes : local, 1};
    const zp_codec_kernels_encode_args first = {
        all,   base + op->source, w->out, op->type, local,
        error, control,           beta,   a->again, w->copy_distance};
    const zp_codec_kernels_encode_args again = {node, NULL,    w->out, ZERO_F32, 1,
                                                next, control, beta,   a->again, w->copy_distance};
    const zp_codec_kernels_decode_args mean = {
        last, op->memory->base + op->target, op->sum, op->type, op->scale, op->accumulate};
    ZP_TRY(zp_codec_kernels_encode_parts(s, &first));
    ZP_TRY(zp_packed_exchange(s, w, 0, op, sent));
    if (nodes > 1) ZP_TRY(zp_codec_kernels_encode_parts(s, &again));
    if (nodes > 1) ZP_TRY(zp_packed_exchange(s, w, 1, op, packed));
    return zp_codec_kernels_decode_parts(s, &mean);
}
static void zp_packed_task(const void *args, size_t n, int threads) {
    const zp_packed_args *a = (const zp_packed_args *)args;
    zp_stream here; /* the calling thread */
    (void)zp_device_take_stream(&here, a->op.group->device, NULL, threads);
    if (!zp_failure_result(a->op.group->failure)) (void)zp_packed_run(&here, a);
}

static zero_result zp_packed_reduce_scatter(zero_ctx *z, zp_stream *s, const zp_op *op) {
    const zp_packed_args a = {z, *op,
                              z->adding == ZP_EACH_REDUCED && z->live[op->unit].reduced > 0};
    const uint64_t sent = zp_comm_op_bytes(op);
    const size_t unit = (size_t)op->group->nranks * zp_packed_shard_bytes(op);
    ZP_TRY(zp_failure_result(op->group->failure));
    op->group->meter.sent_bytes += sent;
    op->group->meter.reductions++;
    ZP_SLICE(s, ZERO_EVENT_REDUCTION, op->unit, unit,
             (zp_events_set_traffic(zp_slice, 1, op->group->nranks, sent),
              zp_device_is_host() ? zp_device_push_task(s, zp_packed_task, &a, sizeof a, 1)
                                  : zp_packed_run(s, &a)));
    return ZERO_OK;
}

static zero_result zp_packed_all_gather(zero_ctx *z, zp_stream *s, const zp_op *op) {
    zp_memory *m = &z->packed->gathered;
    const size_t packed = zp_packed_shard_bytes(op);
    const zp_codec codec = *zp_packed_codec(op);
    const zp_quantized own = {NULL, 0, op->shard, codec, 0, 1},
                       all = {m->base, 0, op->shard, codec, 1, op->group->nranks};
    zp_op gather = *op; /* the gather moves words */
    gather.memory = m;
    gather.wire = NULL;
    gather.type = ZERO_F32;
    gather.shard = packed / sizeof(float);
    gather.target = 0;
    gather.source = (size_t)op->group->rank * packed;
    const zp_codec_kernels_encode_args pack = {
        own, op->memory->base + op->source, m->base + gather.source, op->type, 1, NULL, NULL, 0, 0,
        0};
    const zp_codec_kernels_decode_args unpack = {
        all, op->memory->base + op->target, NULL, op->type, 1, 0};
    ZP_TRY(zp_codec_kernels_encode_parts(s, &pack));
    ZP_TRY(zp_comm_issue(s, &gather, 1));
    return zp_codec_kernels_decode_parts(s, &unpack);
}

static zero_result zp_packed_send(zero_ctx *z, zp_stream *s, const zp_op *op) {
    return op->kind == ZP_ALL_GATHER ? zp_packed_all_gather(z, s, op)
                                     : zp_packed_reduce_scatter(z, s, op);
}

/* Clears the errors at the start of every feedback_reset-th step. */
static zero_result zp_packed_begin_step(zero_ctx *z) {
    const int every = z->cfg.feedback_reset;
    if (!every || !z->packed->error || z->taken % every) return ZERO_OK;
    return zp_ctx_check(z, zp_device_clear(&z->stream[ZP_GRADIENTS], z->packed->error,
                                           zp_packed_error_bytes(z->packed)));
}

/* Bytes that this rank sends for a quantized collective. */
static size_t zp_packed_sent(const zp_op *op) {
    const zp_comm *g = op->group;
    const int local = op->kind == ZP_REDUCE_SCATTER ? zp_packed_hop_ranks(g) : g->nranks;
    const int nodes = g->nranks / local;
    return (size_t)((local - 1) * nodes + nodes - 1) * zp_packed_shard_bytes(op);
}

static zero_result zp_packed_layout(zero_ctx *z) {
    zp_packed_state *w = z->packed;
    free(w->first_error);
    w->first_error = (size_t *)calloc((size_t)z->layout.segments, sizeof *w->first_error);
    return w->first_error ? ZERO_OK : ZERO_ERR_MEMORY;
}
/* Adds this rank's errors to the state, as a tensor that no other rank loads: its name has the
   rank, the number of ranks, of sharing ranks, and of ranks in the first hop. */
static zero_result zp_packed_add_state(zero_ctx *z) {
    const zp_comm *all = z->follows ? z->partner->agreeing : z->agreeing;
    const zero_range errors = {z->packed->name, ZERO_MASTER, ZERO_BF16, 0, z->packed->errors};
    (void)snprintf(z->packed->name, sizeof z->packed->name, ZERO_FEEDBACK_NAME "%d of %d, %d by %d",
                   all->rank, all->nranks, z->data->nranks, zp_packed_hop_ranks(z->data));
    for (int whole = 0; whole < 2 && z->packed->errors; whole++)
        ZP_TRY(zp_range_add(z, whole, &errors));
    return ZERO_OK;
}
/* Sets the wire format of each unit's weights and gradients, and counts the bytes. */
static zero_result zp_packed_plan(zero_ctx *z) {
    zp_packed_state *w = z->packed;
    size_t most[2] = {0, 0}; /* by side: bytes of the largest shard */
    const size_t ranks = (size_t)z->data->nranks;
    const int frozen_bits = z->cfg.frozen_weight_bits, all = z->layout.all;
    const int bits[ZP_PACKED_KINDS] = {z->cfg.gradient_bits, z->cfg.weight_bits,
                                       frozen_bits ? frozen_bits : z->cfg.weight_bits};
    ZP_REFUSE(z, frozen_bits && all == z->layout.segments,
              "frozen_weight_bits is %d, but no tensor is frozen; use 0", frozen_bits);
    for (int kind = 0; kind < ZP_PACKED_KINDS; kind++) {
        const zp_wire wire = {zp_packed_sent, zp_packed_send, z};
        w->wire[kind] = wire;
        w->codec[kind] = ranks > 1 ? zp_codec_find(bits[kind]) : NULL;
    }
    w->errors = 0;
    for (int u = 0; u < z->layout.segments; u++) {
        const zp_unit *x = &z->layout.unit[u];
        const int sharded = z->array[ZP_PARAM].part[u].share == ZP_SHARD;
        const int wanted[2] = {u < all && x->numel && !x->only_one_d, x->numel && sharded};
        for (int side = 0; side < 2; side++) {
            const int kind = side == ZP_PARAM && u >= all ? ZP_PACKED_FROZEN : side;
            const zp_codec *codec = wanted[side] ? w->codec[kind] : NULL;
            z->live[u].wire[side] = codec ? &w->wire[kind] : NULL;
            if (codec)
                most[side] =
                    zp_max(most[side], zp_codec_quantized_bytes(codec, zp_ctx_shard(z, u)));
        }
        w->first_error[u] = w->errors;
        w->errors += zp_packed_errors_of(z, u);
    }
    w->gathered_bytes = most[ZP_PARAM] * ranks;
    w->packed_bytes = most[ZP_GRAD] * ranks;
    w->copy_distance = z->cfg.type == ZERO_F16 && !z->cfg.no_overflow_check ? w->errors : 0;
    const size_t hops = w->packed_bytes ? zp_packed_hop_bytes(z->data) : 0;
    z->plan.packed_bytes = w->gathered_bytes + 2 * w->packed_bytes + zp_packed_error_bytes(w);
    z->plan.buffer_bytes += z->plan.packed_bytes + hops;
    z->plan.buffer_ceiling_bytes += z->plan.packed_bytes + hops;
    z->plan.context_bytes += (size_t)z->layout.segments * sizeof *w->first_error;
    return zp_packed_add_state(z);
}
static zero_result zp_packed_cut(zero_ctx *z) {
    zp_packed_state *w = z->packed;
    if (w->packed_bytes) w->out = (char *)zp_ctx_cut_arena(z, w->packed_bytes, 1);
    if (w->packed_bytes) w->in = (char *)zp_ctx_cut_arena(z, w->packed_bytes, 1);
    if (w->errors) w->error = (uint16_t *)zp_ctx_cut_arena(z, zp_packed_error_bytes(w), 1);
    return ZERO_OK;
}

/* ---- life ---- */

/* Opens the group of a hop. COLLECTIVE over the ranks that shard. */
static zero_result zp_packed_open_hop(zero_ctx *z, int hop) {
    zp_packed_state *w = z->packed;
    zp_comm *g = &w->hop[hop], *data = z->data;
    const zp_cut cut = zp_packed_hop_cut(data, hop);
    const char *label = hop ? "node" : cut.parts > 1 ? "local" : data->label;
    zp_comm_prepare(g, &z->device, &z->failure, data->timeout_s);
    g->swaps = 1;
    return zp_part_open(z, &w->part[hop], g, data, cut, 0, label);
}

/* Opens the memory of quantized gathers, and announces it to a transport that wants to know. */
static zero_result zp_packed_open_gathered(zero_ctx *z) {
    zp_packed_state *w = z->packed;
    const char *how = "";
    if (!w->gathered_bytes) return ZERO_OK;
    ZP_DO(z, zp_comm_open_memory(z->data, &w->gathered, w->gathered_bytes, 0));
    if (!z->data->transport->announce) return ZERO_OK;
    return zp_ctx_check(z,
                        z->data->transport->announce(z->data, &w->gathered, ZP_PARAMETERS, &how));
}

static zero_result zp_packed_open(zero_ctx *z) {
    zp_packed_state *w = z->packed;
    const int two = zp_packed_hop_ranks(z->data) < z->data->nranks;
    int failed_rank = -1;
    ZP_TRY(zp_packed_open_gathered(z));
    if (!w->packed_bytes) return ZERO_OK;
    if (!zp_message_functions(z->data->transport)->make_part)
        return z->dead =
                   zp_ctx_fail(z, ZERO_ERR_UNSUPPORTED,
                               "gradient_bits is %d, but %s has no messages between ranks; use 0",
                               z->cfg.gradient_bits, z->data->transport->name);
    if (!w->list) w->list = (zero_message *)calloc(2 * (size_t)z->data->nranks, sizeof *w->list);
    ZP_DO(z, zp_comm_agree(z->all, w->list != NULL, &failed_rank));
    if (failed_rank >= 0)
        return z->dead = zp_ctx_fail(z, ZERO_ERR_MEMORY,
                                     "rank %d has no memory for a list of messages", failed_rank);
    ZP_TRY(zp_packed_open_hop(z, 0));
    return two ? zp_packed_open_hop(z, 1) : ZERO_OK;
}

static zero_result zp_packed_abort(zero_ctx *z) {
    for (zp_comm *g = z->packed->hop; g < z->packed->hop + 2; g++)
        zp_comm_abort(g, z->text[0] ? z->text : "it gave up its context");
    return ZERO_OK;
}
/* Closes the hops, before the group that they were cut from. */
static zero_result zp_packed_leave(zero_ctx *z) {
    zp_packed_state *w = z->packed;
    for (int i = 0; i < 2; i++) zp_ctx_close_part(&w->part[i], &w->hop[i], z->broken);
    return ZERO_OK;
}
static zero_result zp_packed_close(zero_ctx *z) {
    free(z->packed->list);
    free(z->packed->first_error);
    return ZERO_OK;
}
static zero_result zp_packed_stats(zero_ctx *z) {
    zero_stats *s = &z->stats;
    for (int i = 0; i < 2; i++) s->allocated_bytes += z->packed->hop[i].meter.allocated_bytes;
    return ZERO_OK;
}

/* Checks the settings of quantized communication. */
static zero_result zp_packed_check(zero_ctx *z) {
    const zero_config *c = &z->cfg;
    const zp_policy *stage = &zp_policies[c->stage];
    const struct {
        const char *name;
        int bits, gathered;
    } all[ZP_PACKED_KINDS] = {{"gradient_bits", c->gradient_bits, 0},
                              {"weight_bits", c->weight_bits, 1},
                              {"frozen_weight_bits", c->frozen_weight_bits, 1}};
    for (int i = 0; i < ZP_PACKED_KINDS; i++) {
        ZP_REFUSE(z, all[i].bits && !zp_codec_find(all[i].bits),
                  "%s is %d, expected 8 or 4 bits, or 0 (not quantized)", all[i].name, all[i].bits);
        ZP_REFUSE(z, all[i].gathered && all[i].bits && stage->parameters == ZP_WHOLE,
                  "%s is %d: at stage %d parameters are not gathered before use; use stage 3",
                  all[i].name, all[i].bits, c->stage);
    }
    ZP_REFUSE(
        z, c->gradient_bits && stage->state == ZP_WHOLE,
        "gradient_bits is %d: at stage 0 each rank needs all reduced gradients; use stage 1, 2 "
        "or 3",
        c->gradient_bits);
    ZP_REFUSE(z, c->feedback > 0 && !c->gradient_bits,
              "feedback is %g, but gradients are not quantized; set gradient_bits",
              (double)c->feedback);
    ZP_REFUSE(z, c->feedback_reset && !(c->feedback > 0),
              "feedback_reset is %d, but feedback is 0; set feedback", c->feedback_reset);
    return ZERO_OK;
}
static const zp_setting zp_packed_settings[] = {
    {ZP_SETTING(weight_bits), ZP_SIGNED, 0, ZP_UNLIMITED, 0, 0},
    {ZP_SETTING(frozen_weight_bits), ZP_SIGNED, 0, ZP_UNLIMITED, 0, 0},
    {ZP_SETTING(gradient_bits), ZP_SIGNED, 0, ZP_UNLIMITED, 0, 0},
    {ZP_SETTING(feedback), ZP_REAL, 0, ZP_BELOW_1, 0, 0},
    {ZP_SETTING(feedback_reset), ZP_SIGNED, 0, ZP_UNLIMITED, 0, 0},
    ZP_LAST_SETTING,
};

/* Quantized weights are gathered, even if peers could read the shards. */
static zero_result zp_packed_choose(zero_ctx *z) {
    zp_array *param = &z->array[ZP_PARAM];
    const int some = z->cfg.weight_bits || z->cfg.frozen_weight_bits;
    if (some && z->data->nranks > 1 && param->share == ZP_SEEN) param->share = ZP_SHARD;
    return ZERO_OK;
}

static zero_result zp_packed_move_state(zero_ctx *z, const zero_range *r, const char *values,
                                        char *out, int *mine) {
    zp_packed_state *w = z->packed;
    uint16_t *stage = (uint16_t *)(void *)z->data->stage.base;
    *mine = w->errors && r->name && !strcmp(r->name, w->name);
    if (!*mine) return ZERO_OK;
    ZP_REFUSE(z,
              r->kind != ZERO_MASTER || r->first > w->errors || r->count > w->errors - r->first
                  || (int)r->type < 0 || r->type >= ZERO_TYPES || (out && r->type != ZERO_BF16),
              "%s: expected [0, %zu) in bf16 of kind %d, found [%zu, %zu) in type %d of kind %d",
              r->name, w->errors, (int)ZERO_MASTER, r->first, r->first + r->count, (int)r->type,
              (int)r->kind);
    ZP_REFUSE(z, !values && !out && r->count, "%s: values is NULL for [%zu, %zu); pass memory",
              r->name, r->first, r->first + r->count);
    w->put |= !out;
    for (size_t at = 0, n; at < r->count; at += n) { /* through memory that the device reaches */
        float wide[ZP_CONVERT_BLOCK];
        uint16_t *here = w->error + (z->report.fed ? w->copy_distance : 0) + r->first + at;
        n = zp_min(ZP_STAGE_NUMEL, r->count - at);
        for (size_t i = 0, some; i < n && !out; i += some) {
            some = zp_min(ZP_CONVERT_BLOCK, n - i);
            zp_type_widen(wide, values + (at + i) * zp_type_bytes(r->type), r->type, some);
            zp_type_narrow(stage + i, ZERO_BF16, wide, some);
        }
        ZP_DO(z, zp_device_copy(&z->compute, out ? stage : here, out ? here : stage,
                                n * sizeof *here));
        ZP_DO(z, zp_device_sync_stream(&z->compute));
        if (out) memcpy(out + at * sizeof *here, stage, n * sizeof *here);
    }
    return ZERO_OK;
}

static zero_result zp_packed_begin_state(zero_ctx *z) {
    z->packed->put = 0;
    return ZERO_OK;
}
static zero_result zp_packed_end_state(zero_ctx *z) {
    if (!z->packed->errors || z->packed->put) return ZERO_OK;
    return zp_ctx_check(
        z, zp_device_clear(&z->compute, z->packed->error, zp_packed_error_bytes(z->packed)));
}

static zp_extra zp_packed_row(void) {
    zp_extra x;
    memset(&x, 0, sizeof x);
    x.name = "packed";
    x.state_bytes = sizeof(zp_packed_state);
    x.state_at = offsetof(zero_ctx, packed);
    x.settings = zp_packed_settings;
    x.call[ZP_ON_CHECK] = zp_packed_check;
    x.call[ZP_ON_CHOOSE] = zp_packed_choose;
    x.call[ZP_ON_LAYOUT] = zp_packed_layout;
    x.call[ZP_ON_PLAN] = zp_packed_plan;
    x.call[ZP_ON_CUT] = zp_packed_cut;
    x.call[ZP_ON_MEMORY] = zp_packed_open;
    x.call[ZP_ON_ABORT] = zp_packed_abort;
    x.call[ZP_ON_DESTROY] = zp_packed_close;
    x.call[ZP_ON_LEAVE] = zp_packed_leave;
    x.call[ZP_ON_STEP] = zp_packed_begin_step;
    x.move_state = zp_packed_move_state;
    x.call[ZP_ON_STATE_BEGIN] = zp_packed_begin_state;
    x.call[ZP_ON_STATE_END] = zp_packed_end_state;
    x.call[ZP_ON_STATS] = zp_packed_stats;
    return x;
}
