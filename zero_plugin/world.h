/* world.h - ranks beside those that a context shards over

   THE WORLD agrees on a step: each rank's verdict carries the squares of each of its units, at the
   unit's number in the whole model, and all ranks add them up unit by unit, over the ranks in
   order. Ranks that do not have a unit give 0: so the norm has the same bits however the units are
   spread over the stages of a pipeline. A tensor that others count, too, is left out here.

   FIRST SUMS: a tensor's gradient is summed over a group of its own, on the gradient stream, before
   the ranks that shard it reduce it.

   A CONTEXT THAT JOINS another one gives its squares to that one's verdict, and takes what was
   agreed from there. */
#pragma once

#include "shards.h"

/* Enqueues the squares of elements [from, to) of unit u, of this rank's reduced shard, into its
   verdict. */
static zero_result zp_gradient_squares(zero_ctx *z, int u, size_t from, size_t to) {
    zp_stream *s = &z->stream[ZP_GRADIENTS];
    const zp_array *mean = &z->array[ZP_MEAN];
    const size_t first = (size_t)z->data->rank * z->layout.unit[u].shard;
    const char *g = zp_unit_mean(z, u) + (from - first) * zp_bytes(mean->type);
    const int number = zp_world_unit(z, u);
    const zp_norm_args norm = {g, mean->type, to - from, z->partial};
    const zp_fold_args fold = {norm, z->verdict, (double)number, (double)from,
                               z->world_units ? z->verdict + ZP_VERDICT + number : NULL};
    zp_record *r = zp_slice_begin(s, ZERO_EVENT_NORM, u, (to - from) * zp_bytes(mean->type));
    ZP_TRY(zp_norm(s, &norm, (to - from + ZP_NORM_BLOCK - 1) / ZP_NORM_BLOCK));
    const zero_result result = zp_fold(s, &fold, 1);
    zp_slice_end(s, r);
    return result;
}

/* What this rank has of unit u's tensors with a divisor of their own, once it is reduced. */
static zero_result zp_gradient_divide(zero_ctx *z, int u) {
    const zp_unit *x = &z->layout.unit[u];
    const zp_array *mean = &z->array[ZP_MEAN];
    const size_t first = (size_t)z->data->rank * x->shard, end = first + x->shard;
    const int usual = z->cfg.divisor ? z->cfg.divisor : z->all->nranks;
    for (int i = 0; i < x->members; i++) {
        const zp_member *m = &x->member[i];
        const int own = z->tensors[m->tensor].divisor;
        const size_t from = zp_max(first, m->at), to = zp_min(end, m->at + m->numel);
        if (!own || own == usual || from >= to) continue;
        const zp_rescale_args a = {zp_unit_mean(z, u) + (from - first) * zp_bytes(mean->type),
                                   mean->type, (float)((double)usual / (double)own)};
        ZP_TRY(zp_rescale(&z->stream[ZP_GRADIENTS], &a, to - from));
    }
    return ZERO_OK;
}

/* The squares of what this rank counts: its shard, of a shard with replicas its piece, and of
   either only the runs between copies. */
static zero_result zp_gradient_norm(zero_ctx *z, int u) {
    const zp_unit *x = &z->layout.unit[u];
    const size_t first = zp_piece_first(z, u), end = first + x->piece;
    if (!z->live[u].copies) return zp_gradient_squares(z, u, first, end);
    for (int i = 0; i < x->members; i++) {
        const zp_member *m = &x->member[i];
        const size_t next = i + 1 < x->members ? x->member[i + 1].at : x->padded;
        const size_t from = zp_max(first, m->at), to = zp_min(end, next);
        if (!(z->tensors[m->tensor].desc.flags & ZERO_COPY) && from < to)
            ZP_TRY(zp_gradient_squares(z, u, from, to));
    }
    return ZERO_OK;
}

/* The tensors of unit u that are summed over groups of their own: a task of the gradient stream, or
   calls that enqueue on it. */
typedef struct zp_first_sums_args {
    zero_ctx *z;
    int unit;
    char *memory; /* of its gradient */
} zp_first_sums_args;

static void zp_first_sums_task(const void *args, size_t n, int threads) {
    const zp_first_sums_args *a = (const zp_first_sums_args *)args;
    zero_ctx *z = a->z;
    const zp_unit *x = &z->layout.unit[a->unit];
    const zp_array *grad = &z->array[ZP_GRAD];
    for (int i = 0; i < x->members && !zp_failure_result(&z->failure); i++) {
        const zp_member *m = &x->member[i];
        zero_group *g = zp_own_group(z, z->tensors[m->tensor].sum_group);
        if (!g || g->group.nranks == 1) continue;
        g->number++;
        const zero_result r =
            zp_group_done(g, "a gradient's first sum",
                          zp_group_all_reduce(g, a->memory + m->at * zp_bytes(grad->type), m->numel,
                                              grad->type, ZERO_SUM));
        if (r) (void)zp_error(z->data, r, "%s", g->text);
    }
}
/* What is recorded of them: the bytes, and the ranks of the last one. */
static void zp_first_sums_record(const zero_ctx *z, int u, zp_record *r) {
    const zp_unit *x = &z->layout.unit[u];
    for (int i = 0; r && i < x->members; i++) {
        const zp_member *m = &x->member[i];
        const zero_group *g = zp_own_group(z, z->tensors[m->tensor].sum_group);
        if (!g || g->group.nranks == 1) continue;
        r->event.bytes += m->numel * zp_bytes(z->array[ZP_GRAD].type);
        r->event.ranks = g->group.nranks;
        r->event.sent += zp_group_sums_sent(g, m->numel) * zp_bytes(z->array[ZP_GRAD].type);
    }
}
static zero_result zp_first_sums(zero_ctx *z, int u) {
    const zp_first_sums_args a = {z, u, zp_unit_memory(z, ZP_GRAD, u)};
    zp_stream *s = &z->stream[ZP_GRADIENTS];
    zero_result result = ZERO_OK;
    zp_record *r = zp_slice_begin(s, ZERO_EVENT_ALL_REDUCE, u, 0);
    zp_first_sums_record(z, u, r);
    if (zp_host_computes())
        result = zp_stream_push(s, zp_first_sums_task, &a, sizeof a, 1);
    else
        zp_first_sums_task(&a, 1, 1);
    zp_slice_end(s, r);
    return result ? result : zp_failure_result(&z->failure);
}

/* ---- life ---- */

/* Joins the world's ranks. COLLECTIVE over them. */
static zero_result zp_world_open(zero_ctx *z) {
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
        zp_device_follow(&z->device, &joins->device);
        return ZERO_OK;
    }
    if (!world) return ZERO_OK;
    const zero_comm comm = world->comm;
    ZP_DO(z, zp_group_open(&z->group[ZP_WORLD], zp_transport_of(comm.kind), &comm));
    z->world = &z->group[ZP_WORLD];
    return ZERO_OK;
}

/* The context's own copy of a group that a tensor names. COLLECTIVE over it. */
static zero_result zp_world_copy(zero_ctx *z, const zp_tensor *t, zero_group *given,
                                 const char *call) {
    if (!given || zp_own_group(z, given)) return ZERO_OK;
    zp_first_sum *f = (zp_first_sum *)calloc(1, sizeof *f);
    if (!f) return z->dead = zp_fail(z, ZERO_ERR_MEMORY, "a group of tensor %s", t->desc.name);
    f->given = given;
    f->next = z->first_sums;
    z->first_sums = f;
    void *stream = zp_stream_handle(&z->stream[ZP_GRADIENTS]);
    const zero_result r =
        zp_group_split(given, "zero_build", 0, given->group.rank, stream, &f->own);
    if (r)
        return z->dead = zp_fail(z, r, "tensor %s, %s: %s", t->desc.name, call,
                                 f->own ? f->own->text : given->text);
    zp_device_follow(&f->own->device, &z->device);
    return ZERO_OK;
}

/* Copies of all tensors' groups; and the world's ranks have a model of one size. COLLECTIVE over
   the world and each group. */
static zero_result zp_world_build(zero_ctx *z) {
    const int32_t replicas = 1 << 24, units = z->world_units | (z->replicas.group ? replicas : 0);
    if (z->world != z->all) {
        ZP_DO(z, zp_exchange(z->world, &units, sizeof units));
        const int r = zp_mail_differs(z->world, sizeof units);
        int32_t zeroth, his;
        memcpy(&zeroth, z->world->mail, sizeof zeroth);
        memcpy(&his, z->world->mail + (size_t)r * sizeof his, sizeof his);
        if ((zeroth ^ his) & replicas)
            return z->dead = zp_fail(z, ZERO_ERR_MISMATCH,
                                     "shard_ranks cuts the ranks on rank %d of the world, and not "
                                     "on rank %d",
                                     his & replicas ? r : 0, his & replicas ? 0 : r);
        if (r)
            return z->dead = zp_fail(z, ZERO_ERR_MISMATCH,
                                     "world_units is %d on rank 0 of the world, %d on rank %d",
                                     (int)(zeroth & ~replicas) - 1, (int)(his & ~replicas) - 1, r);
    }
    for (int t = 0; t < z->ntensors; t++) {
        const zp_tensor *x = &z->tensors[t];
        ZP_TRY(zp_world_copy(z, x, x->sum_group, "zero_tensor_sum"));
        ZP_TRY(zp_world_copy(z, x, x->slice_group, "zero_tensor_slice"));
    }
    return ZERO_OK;
}

/* Those that wait for this context in a group that its tensors name learn why it is gone. */
static void zp_world_abort(zero_ctx *z) {
    for (zp_first_sum *f = z->first_sums; f; f = f->next)
        if (f->own) {
            (void)zp_error(&f->own->group, ZERO_ERR_PEER, "%s",
                           z->text[0] ? z->text : "it gave up its context");
            (void)zp_group_done(f->own, "zero_destroy", ZERO_OK);
        }
}
/* While the stream that they are enqueued on is there, and its lane worked off. */
static void zp_first_sums_close(zero_ctx *z) {
    while (z->first_sums) {
        zp_first_sum *f = z->first_sums;
        z->first_sums = f->next;
        if (f->own) zp_group_leave(f->own);
        free(f);
    }
}
static void zp_world_close(zero_ctx *z) {
    if (z->cfg.joins && z->cfg.joins->joined == z) z->cfg.joins->joined = NULL;
    if (z->joined) z->joined->cfg.joins = NULL;
    if (z->joined) zp_device_follow(&z->joined->device, NULL);
    free(z->world_unit);
}

/* ---- a step ---- */

/* Both contexts of a rank have come to where they can agree; where one is alone, it has. */
static zero_result zp_world_ready(zero_ctx *z, int reduces) {
    const zero_ctx *j = z->joined;
    ZP_UNTIMELY(z, reduces && j && !j->agrees_later,
                "zero_reduce of the context that joins this one comes first");
    ZP_UNTIMELY(z, !reduces && z->agrees_later,
                "zero_reduce of the context that this one joins comes first");
    return ZERO_OK;
}

/* Enqueues the agreement: every rank's verdict to every rank, and what comes of it. */
static zero_result zp_world_agree(zero_ctx *z) {
    zp_stream *s = &z->stream[ZP_GRADIENTS];
    zero_ctx *j = z->joined;
    const zp_op verdict = zp_verdict_op(z);
    const zp_declare_args declare = {z->verdict, z->control, z->hyper, z->said};
    const zp_judge_args judge = {z->control, z->verdicts, z->world->nranks, z->world_units,
                                 z->replicas.order};
    z->agrees_later = z->cfg.joins != NULL;
    if (z->agrees_later) return zp_check(z, zp_event_record(s, z->agreed));
    if (j) {
        const zp_join_args join = {z->verdict, j->verdict, z->world_units, NULL, NULL};
        ZP_DO(z, zp_event_wait(s, j->agreed));
        ZP_DO(z, zp_join(s, &join, 1));
    }
    ZP_DO(z, zp_declare(s, &declare, 1));
    ZP_DO(z, zp_issue(s, &verdict, 1));
    ZP_DO(z, zp_judge(s, &judge, 1));
    ZP_DO(z, zp_event_record(s, z->agreed));
    z->judged = 1;
    if (!j) return ZERO_OK;
    const zp_join_args back = {NULL, NULL, 0, j->control, z->control};
    ZP_DO(z, zp_join(s, &back, 1));
    ZP_DO(z, zp_event_record(s, j->agreed));
    ZP_DO(z, zp_event_wait(&j->stream[ZP_GRADIENTS], j->agreed));
    j->judged = 1;
    j->agrees_later = 0;
    return ZERO_OK;
}
