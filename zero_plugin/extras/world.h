/* world.h - groups of ranks in addition to those that a context shards over

   THE WORLD decides on a step together. Each rank's verdict has the sum of squares of each of its
   units, at the unit's number in the whole model. All ranks add these unit by unit, in rank order.
   A rank without the unit contributes 0, so the norm has the same bits for every distribution of
   units over pipeline stages. If other ranks also count a tensor, this rank leaves it out.

   FIRST SUMS. A tensor's gradient can be summed over a group of its own, on the gradient stream,
   before the ranks that shard the tensor reduce it.

   A CONTEXT THAT JOINS another adds its squares to that context's verdict, and takes the decision
   from there. */
#pragma once

#include "../core/agree.h"
#include "../core/extra.h"
#include "../comm/collectives.h"

/* Sums the tensors of unit u that have groups of their own: as a task of the gradient stream, or by
   calls that enqueue on it. */
typedef struct zp_world_first_sums_args {
    zero_ctx *z;
    int unit;
    char *memory; /* the gradient of the unit */
} zp_world_first_sums_args;

static void zp_world_first_sums_task(const void *args, size_t n, int threads) {
    const zp_world_first_sums_args *a = (const zp_world_first_sums_args *)args;
    zero_ctx *z = a->z;
    const zp_unit *x = &z->layout.unit[a->unit];
    const zp_array *grad = &z->array[ZP_GRAD];
    for (int i = 0; i < x->members && !zp_failure_result(&z->failure); i++) {
        const zp_member *m = &x->member[i];
        zero_group *g = zp_ctx_own_group(z, z->tensors[m->tensor].desc.sum_over);
        if (!g || g->group.nranks == 1) continue;
        g->number++;
        const zero_result r =
            zp_group_end(g, "a gradient's first sum",
                         zp_collectives_all_reduce(g, a->memory + m->at * zp_type_bytes(grad->type),
                                                   m->numel, grad->type, ZERO_SUM));
        if (r) (void)zp_comm_fail(z->data, r, "%s", g->text);
    }
}
/* Fills the record of these sums: the bytes, and the ranks of the last group. */
static void zp_world_record_first_sums(const zero_ctx *z, int u, zp_record *r) {
    const zp_unit *x = &z->layout.unit[u];
    for (int i = 0; r && i < x->members; i++) {
        const zp_member *m = &x->member[i];
        const zero_group *g = zp_ctx_own_group(z, z->tensors[m->tensor].desc.sum_over);
        if (!g || g->group.nranks == 1) continue;
        r->event.bytes += m->numel * zp_type_bytes(z->array[ZP_GRAD].type);
        r->event.ranks = g->group.nranks;
        r->event.sent +=
            zp_collectives_sum_sent(g, m->numel) * zp_type_bytes(z->array[ZP_GRAD].type);
    }
}
static zero_result zp_world_first_sums(zero_ctx *z, int u) {
    const zp_world_first_sums_args a = {z, u, zp_ctx_unit_memory(z, ZP_GRAD, u)};
    zp_stream *s = &z->stream[ZP_GRADIENTS];
    zero_result result = ZERO_OK;
    zp_record *r = zp_device_begin_slice(s, ZERO_EVENT_ALL_REDUCE, u, 0);
    zp_world_record_first_sums(z, u, r);
    if (zp_device_is_host())
        result = zp_device_push_task(s, zp_world_first_sums_task, &a, sizeof a, 1);
    else
        zp_world_first_sums_task(&a, 1, 1);
    zp_device_end_slice(s, r);
    return result ? result : zp_failure_result(&z->failure);
}

/* ---- life ---- */

/* Opens the group of the world. COLLECTIVE over its ranks. */
static zero_result zp_world_join(zero_ctx *z) {
    zero_group *world = z->cfg.world;
    zero_ctx *joins = z->cfg.joins;
    ZP_REFUSE(z,
              joins && (joins->joined || joins->cfg.joins || joins->cfg.world != world || !world),
              "joins: that context has joined another one, is joined, or is of another world");
    ZP_REFUSE(z, joins && z->cfg.world_units != joins->cfg.world_units,
              "world_units is %d, of the context that this one joins %d", z->cfg.world_units,
              joins->cfg.world_units);
    if (joins) {
        joins->joined = z;
        zp_device_order_with(&z->device, &joins->device);
        return ZERO_OK;
    }
    if (!world) return ZERO_OK;
    const zero_comm comm = world->comm;
    ZP_DO(z, zp_comm_open(&z->group[ZP_WORLD], zp_transport_find(comm.kind), &comm));
    z->world = &z->group[ZP_WORLD];
    return ZERO_OK;
}

/* Opens the context's own copy of a group that a tensor names. COLLECTIVE over that group. */
static zero_result zp_world_copy_group(zero_ctx *z, const zp_tensor *t, zero_group *given,
                                       const char *call) {
    if (!given || zp_ctx_own_group(z, given)) return ZERO_OK;
    zp_first_sum *f = (zp_first_sum *)calloc(1, sizeof *f);
    if (!f) return z->dead = zp_ctx_fail(z, ZERO_ERR_MEMORY, "a group of tensor %s", t->desc.name);
    f->given = given;
    f->next = z->first_sums;
    z->first_sums = f;
    void *stream = zp_device_stream_handle(&z->stream[ZP_GRADIENTS]);
    const zero_result r =
        zp_collectives_split(given, "zero_build", 0, given->group.rank, stream, &f->own);
    if (r)
        return z->dead = zp_ctx_fail(z, r, "tensor %s, %s: %s", t->desc.name, call,
                                     f->own ? f->own->text : given->text);
    zp_device_order_with(&f->own->device, &z->device);
    return ZERO_OK;
}

/* Copies the groups of all tensors, and checks that the world's ranks have models of one size.
   COLLECTIVE over the world and each group. */
static zero_result zp_world_open_copies(zero_ctx *z) {
    const int32_t replicas = 1 << 24, units = z->world_units | (z->nreplicas > 1 ? replicas : 0);
    if (z->world != z->all) {
        ZP_DO(z, zp_comm_exchange(z->world, &units, sizeof units));
        const int r = zp_agree_first_difference(z->world, sizeof units);
        int32_t zeroth, his;
        memcpy(&zeroth, z->world->mail, sizeof zeroth);
        memcpy(&his, z->world->mail + (size_t)r * sizeof his, sizeof his);
        if ((zeroth ^ his) & replicas)
            return z->dead =
                       zp_ctx_fail(z, ZERO_ERR_MISMATCH,
                                   "shard_ranks cuts the ranks on rank %d of the world, and not "
                                   "on rank %d",
                                   his & replicas ? r : 0, his & replicas ? 0 : r);
        if (r)
            return z->dead =
                       zp_ctx_fail(z, ZERO_ERR_MISMATCH,
                                   "world_units is %d on rank 0 of the world, %d on rank %d",
                                   (int)(zeroth & ~replicas) - 1, (int)(his & ~replicas) - 1, r);
    }
    for (int t = 0; t < z->ntensors; t++) {
        const zp_tensor *x = &z->tensors[t];
        ZP_TRY(zp_world_copy_group(z, x, x->desc.sum_over, "sum_over"));
        ZP_TRY(zp_world_copy_group(z, x, x->slice_group, "slice_of"));
    }
    return ZERO_OK;
}

/* Sends the reason of the failure to ranks that wait for this context in a tensor's group. */
static void zp_world_abort(zero_ctx *z) {
    for (zp_first_sum *f = z->first_sums; f; f = f->next)
        if (f->own) {
            (void)zp_comm_fail(&f->own->group, ZERO_ERR_PEER, "%s",
                               z->text[0] ? z->text : "it gave up its context");
            (void)zp_group_end(f->own, "zero_destroy", ZERO_OK);
        }
}
/* Closes the copies while their stream is open and its lane idle. */
static void zp_world_close_first_sums(zero_ctx *z) {
    while (z->first_sums) {
        zp_first_sum *f = z->first_sums;
        z->first_sums = f->next;
        if (f->own) zp_collectives_leave(f->own);
        free(f);
    }
}
static void zp_world_close(zero_ctx *z, int broken) {
    while (z->traced) zp_collectives_stop_trace(z->traced);
    if (z->cfg.joins && z->cfg.joins->joined == z) z->cfg.joins->joined = NULL;
    if (z->joined) z->joined->cfg.joins = NULL;
    if (z->joined) zp_device_order_with(&z->joined->device, NULL);
    free(z->world_unit);
}

/* ---- a step ---- */

/* Station: sums gradients over the groups that the unit's tensors name. */
static zero_result zp_world_presum(zero_ctx *z, int u) {
    return z->live[u].sums ? zp_world_first_sums(z, u) : ZERO_OK;
}
static int zp_world_has_sums(const zero_ctx *z) {
    int sums = 0;
    for (int u = 0; u < z->layout.all; u++) sums |= z->live[u].sums;
    return sums;
}
static const zp_station zp_world_stations[] = {
    {ZP_GRADIENT_WALK, ZP_AT_PRESUM, ZP_EACH_REDUCTION, zp_world_has_sums, zp_world_presum, NULL},
    {ZP_GRADIENT_WALK, ZP_AT_END, ZP_EACH_MICRO_STEP, NULL, NULL, NULL}};
static zp_extra zp_world_row(void) {
    zp_extra x;
    memset(&x, 0, sizeof x);
    x.name = "groups";
    x.join = zp_world_join;
    x.build = zp_world_open_copies;
    x.abort = zp_world_abort;
    x.stop = zp_world_close_first_sums;
    x.destroy = zp_world_close;
    x.stations = zp_world_stations;
    return x;
}
