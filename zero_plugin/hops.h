/* hops.h - collectives whose numbers travel packed: a codec is a field of a collective

   AN ALL-GATHER packs this rank's shard into its place of a packed unit, which the transport
   gathers as it gathers anything, and unpacks all shards from there, the own one too: every rank
   has the same numbers.

   A REDUCTION packs this rank's unit, shard by shard, and trades the shards by messages: in the
   first hop with the ranks of its node, each of which gets those of all ranks of its place, and
   adds them up in rank order. These sums are packed again, and traded with the ranks of the same
   place on the other nodes; what comes is added in node order, scaled, and rounded once. So numbers
   are packed twice, however many ranks there are. With one node, or nodes of one rank, all ranks
   are in one hop.

     4 ranks, nodes of 2; shard s of rank r is rs      rank 0        rank 1        rank 2   rank 3
       packed, a message to each place of the node     00 02|01 03   10 12|11 13   ...      ...
       first hop brings, and adds                      00+10 02+12   01+11 03+13   20+30 .. ..
       second hop, with the same place                 sum of 0      sum of 1      of 2     of 3

   Packing, messages and sums of a unit run on the gradient stream, which does nothing else
   meanwhile: so there is memory for one packed unit. What is sent is counted here. */
#pragma once

#include "packing.h"
#include "world.h"

/* To each rank of a hop `bytes` from `out`, and as many from each to `in`, in their order. */
static zero_result zp_hop(zp_stream *s, zp_wire *w, int hop, const zp_op *op, size_t bytes) {
    zp_group *g = &w->hop[hop];
    const zp_swap x = {g, zp_op_call(op), ++w->number[hop], w->list, 2 * (g->nranks - 1)};
    zero_message *m = w->list;
    for (int sends = 1; sends >= 0; sends--)
        for (int i = 1; i < g->nranks; i++) {
            const int peer = (g->rank + i) % g->nranks;
            const zero_message one = {peer, sends, (sends ? w->out : w->in) + (size_t)peer * bytes,
                                      bytes};
            *m++ = one;
        }
    const size_t own = (size_t)g->rank * bytes;
    ZP_TRY(zp_copy(s, w->in + own, w->out + own, bytes));
    ZP_TRY(zp_failure_result(g->failure));
    return g->transport->swap(s, &x);
}

typedef struct zp_hops_args {
    zero_ctx *z;
    zp_op op;
    int again; /* the unit has been reduced in this step */
} zp_hops_args;

static zero_result zp_hops_run(zp_stream *s, const zp_hops_args *a) {
    zp_wire *w = &a->z->wire;
    const zp_op *op = &a->op;
    const int ranks = op->group->nranks, local = zp_hop_ranks(op->group), nodes = ranks / local;
    const size_t packed = zp_packed_bytes(op->codec, op->shard), sent = (size_t)nodes * packed;
    const char *base = op->memory->base;
    uint16_t *error = w->error ? w->error + a->z->live[op->unit].errors : NULL;
    uint16_t *next = error ? error + (size_t)ranks * op->shard : NULL;
    const zp_control *control = a->z->control;
    const float beta = a->z->cfg.feedback;
    const zp_coded all = {NULL, 0, op->shard, *op->codec, 0, ranks},
                   node = {w->in, sent, op->shard, *op->codec, local, nodes},
                   last = {w->in, packed, op->shard, *op->codec, nodes > 1 ? nodes : local, 1};
    const zp_encode_args first = {all,   base + op->source, w->out, op->type, local,
                                  error, control,           beta,   a->again, w->apart};
    const zp_encode_args again = {node, NULL,    w->out, ZERO_F32, 1,
                                  next, control, beta,   a->again, w->apart};
    const zp_decode_args mean = {
        last, op->memory->base + op->target, op->sum, op->type, op->scale, op->accumulate};
    ZP_TRY(zp_encode_parts(s, &first));
    ZP_TRY(zp_hop(s, w, 0, op, sent));
    if (nodes > 1) ZP_TRY(zp_encode_parts(s, &again));
    if (nodes > 1) ZP_TRY(zp_hop(s, w, 1, op, packed));
    return zp_decode_parts(s, &mean);
}
static void zp_hops_task(const void *args, size_t n, int threads) {
    const zp_hops_args *a = (const zp_hops_args *)args;
    zp_stream here; /* this thread */
    (void)zp_stream_take(&here, a->op.group->device, NULL, threads);
    if (!zp_failure_result(a->op.group->failure)) (void)zp_hops_run(&here, a);
}

static zero_result zp_packed_reduction(zero_ctx *z, zp_stream *s, const zp_op *op) {
    const zp_hops_args a = {z, *op, z->adding == ZP_EACH_REDUCED && z->live[op->unit].reduced > 0};
    const uint64_t sent = zp_op_cost(op);
    const size_t unit = (size_t)op->group->nranks * zp_packed_bytes(op->codec, op->shard);
    ZP_TRY(zp_failure_result(op->group->failure));
    op->group->meter.sent_bytes += sent;
    op->group->meter.reductions++;
    zp_record *r = zp_slice_begin(s, ZERO_EVENT_REDUCTION, op->unit, unit);
    if (r) r->event.sent = sent;
    if (r) r->event.ranks = op->group->nranks;
    const zero_result result =
        zp_host_computes() ? zp_stream_push(s, zp_hops_task, &a, sizeof a, 1) : zp_hops_run(s, &a);
    zp_slice_end(s, r);
    return result;
}

static zero_result zp_packed_gather(zero_ctx *z, zp_stream *s, const zp_op *op) {
    zp_memory *m = &z->wire.gathered;
    const size_t packed = zp_packed_bytes(op->codec, op->shard);
    const zp_coded own = {NULL, 0, op->shard, *op->codec, 0, 1},
                   all = {m->base, 0, op->shard, *op->codec, 1, op->group->nranks};
    zp_op gather = *op; /* of words */
    gather.memory = m;
    gather.codec = NULL;
    gather.type = ZERO_F32;
    gather.shard = packed / sizeof(float);
    gather.target = 0;
    gather.source = (size_t)op->group->rank * packed;
    const zp_encode_args pack = {
        own, op->memory->base + op->source, m->base + gather.source, op->type, 1, NULL, NULL, 0, 0,
        0};
    const zp_decode_args unpack = {all, op->memory->base + op->target, NULL, op->type, 1, 0};
    ZP_TRY(zp_encode_parts(s, &pack));
    ZP_TRY(zp_issue(s, &gather, 1));
    return zp_decode_parts(s, &unpack);
}

/* Collectives of units to a stream: those that travel as they are stored together, where they
   follow one another. */
static zero_result zp_send(zero_ctx *z, zp_stream *s, const zp_op *op, int n) {
    for (int i = 0, next; i < n; i = next) {
        for (next = i; next < n && !op[next].codec;) next++;
        if (next > i) ZP_TRY(zp_issue(s, &op[i], next - i));
        if (next == n) break;
        const zp_op *packed = &op[next++];
        ZP_TRY(packed->kind == ZP_ALL_GATHER ? zp_packed_gather(z, s, packed)
                                             : zp_packed_reduction(z, s, packed));
    }
    return ZERO_OK;
}

/* A step begins: every feedback_reset steps with errors of zero. */
static zero_result zp_errors_turn(zero_ctx *z) {
    const int every = z->cfg.feedback_reset;
    if (!every || !z->wire.error || z->taken % every) return ZERO_OK;
    return zp_clear(&z->stream[ZP_GRADIENTS], z->wire.error, zp_errors_bytes(&z->wire));
}

/* ---- life ---- */

/* Cuts the ranks of a hop from those that shard. COLLECTIVE. */
static zero_result zp_hop_open(zero_ctx *z, int hop) {
    zp_wire *w = &z->wire;
    zp_group *g = &w->hop[hop], *data = z->data;
    const zp_cut cut = zp_hop_cut(data, hop);
    const char *label = hop ? "node" : cut.parts > 1 ? "local" : data->label;
    g->device = &z->device;
    g->failure = &z->failure;
    g->timeout_s = data->timeout_s;
    g->swaps = 1;
    return zp_part_open(z, &w->part[hop], g, data, cut, 0, label);
}

static zero_result zp_hops_open(zero_ctx *z) {
    zp_wire *w = &z->wire;
    const int two = zp_hop_ranks(z->data) < z->data->nranks;
    int who = -1;
    if (!w->packed_bytes) return ZERO_OK;
    if (!z->data->transport->cut)
        return z->dead = zp_fail(z, ZERO_ERR_UNSUPPORTED,
                                 "gradient_bits is %d, but %s has no messages between ranks",
                                 z->cfg.gradient_bits, z->data->transport->name);
    w->list = (zero_message *)calloc(2 * (size_t)z->data->nranks, sizeof *w->list);
    ZP_DO(z, zp_agree(z->all, w->list != NULL, &who));
    if (who >= 0)
        return z->dead =
                   zp_fail(z, ZERO_ERR_MEMORY, "rank %d has no memory for a list of messages", who);
    ZP_TRY(zp_hop_open(z, 0));
    if (two) ZP_TRY(zp_hop_open(z, 1));
    return zp_check(z, zp_watch_open(&w->watch, w->hop, 1 + two));
}

static void zp_hops_abort(zero_ctx *z) {
    for (zp_group *g = z->wire.hop; g < z->wire.hop + 2; g++)
        if (g->transport && g->own)
            g->transport->abort(g, z->text[0] ? z->text : "it gave up its context");
}
/* Before the ranks that they were cut from are left. */
static void zp_hops_close(zero_ctx *z, int broken) {
    zp_wire *w = &z->wire;
    zp_watch_close(&w->watch);
    for (int i = 0; i < 2; i++) zp_part_close(&w->part[i], &w->hop[i], broken);
    free(w->list);
}
