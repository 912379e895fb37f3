/* build.h - compares settings and tensors on all ranks, then allocates the memory of the plan */
#pragma once

#include "plan.h"
#include "observe.h"

/* Fills `spans` with the tensors in this rank's part of unit u; returns their number. */
static int zp_build_make_spans(const zero_ctx *z, int u, zp_span *spans) {
    const zp_unit *x = &z->layout.unit[u];
    const size_t begin = zp_ctx_own_part(z, u)->first, end = begin + zp_ctx_own_part(z, u)->numel;
    int n = 0;
    for (int i = 0; i < x->members; i++) {
        const zp_member *m = &x->member[i];
        const zp_tensor *t = &z->tensors[m->tensor];
        const size_t from = zp_max(begin, m->at), to = zp_min(end, m->at + m->numel);
        const uint64_t element = (uint64_t)begin - m->at + m->first;
        const float decay = t->desc.flags & ZERO_NO_DECAY ? 0 : t->decay_factor;
        zp_span span = {from - begin,  to - begin,     element,
                        t->lr_factor,  decay,          zp_optimizer_mix((uint32_t)m->tensor),
                        t->desc.numel, t->first_layer, t->desc.layers,
                        t->shape};
        if (from < to) spans[n++] = span;
    }
    return n;
}

static int zp_build_count_events(const zero_ctx *z) {
    return 4 * z->layout.segments + z->pool[ZP_PARAM].n + 3;
}

static zero_result zp_build_alloc_units(zero_ctx *z) {
    const size_t all = (size_t)z->layout.all + 1;
    zp_buffers *pool = &z->pool[ZP_PARAM];
    z->bucket = (int *)calloc(all, sizeof *z->bucket);
    z->ops = (zp_op *)calloc(all, sizeof *z->ops);
    z->events = (zp_event *)calloc((size_t)zp_build_count_events(z), sizeof *z->events);
    if (!z->bucket || !z->ops || !z->events) return ZERO_ERR_MEMORY;
    zp_event *e = z->events;
    for (int u = 0; u < z->layout.segments; u++) {
        zp_live *live = &z->live[u];
        live->written = e++;
        live->gathered = e++;
        live->reduction = e++;
        live->updated = e++;
    }
    for (int b = 0; b < pool->n; b++) pool->buffer[b].released = e++;
    z->passed = e++;
    z->agreed = e++;
    z->reported = e++;
    z->nevents = (int)(e - z->events);
    for (int i = 0; i < z->nevents; i++) ZP_TRY(zp_device_open_event(&z->device, &z->events[i]));
    return ZERO_OK;
}

/* Cuts the private arena. Before the arena is allocated this only counts its bytes. */
static zero_result zp_build_cut_arena(zero_ctx *z) {
    size_t largest = 0;
    z->arena_at = 0;
    for (int u = 0; u < z->layout.all; u++) largest = zp_max(largest, zp_ctx_shard(z, u));
    for (int k = ZP_SUM; k < ZP_ARRAYS; k++)
        if (z->array[k].bytes)
            z->array[k].memory = (char *)zp_ctx_cut_arena(z, z->array[k].bytes, 1);
    z->partial = (double *)zp_ctx_cut_arena(z, largest / ZP_NORM_BLOCK + 2, sizeof *z->partial);
    z->fold = zp_device_is_host() ? NULL : (zp_fold *)zp_ctx_cut_arena(z, 1, sizeof *z->fold);
    z->control = z->decision = (zp_control *)zp_ctx_cut_arena(z, 1, sizeof *z->control);
    z->spans = (zp_span *)zp_ctx_cut_arena(z, (size_t)z->layout.nmembers, sizeof *z->spans);
    return zp_extra_call(z, ZP_ON_CUT);
}

/* Allocates the private arena, and writes the data that the device reads before the first step. */
static zero_result zp_build_private(zero_ctx *z) {
    const size_t bytes = (size_t)z->layout.nmembers * sizeof(zp_span);
    ZP_TRY(zp_build_cut_arena(z));
    z->private_bytes = z->arena_at;
    z->arena = (char *)zp_device_alloc(&z->device, z->private_bytes);
    z->pinned = (zp_control *)zp_device_alloc_host(sizeof *z->pinned);
    zp_span *spans = z->arena && z->pinned ? (zp_span *)calloc(1, bytes) : NULL;
    if (!spans) return ZERO_ERR_MEMORY;
    ZP_TRY(zp_build_cut_arena(z));
    *z->pinned = z->report;
    for (int u = 0; u < z->layout.all; u++)
        z->live[u].spans =
            zp_build_make_spans(z, u, spans + (z->layout.unit[u].member - z->layout.members));
    zero_result r = zp_device_copy(&z->compute, z->spans, spans, bytes);
    if (!r) r = zp_device_copy(&z->compute, z->control, z->pinned, sizeof *z->pinned);
    if (!r) r = zp_device_sync_stream(&z->compute);
    free(spans);
    return r;
}

/* Registers with the transport the memory that a single channel uses. */
static zero_result zp_build_register_memory(zero_ctx *z) {
    const zp_transport *t = z->data->transport;
    const char *how[2] = {"", ""};
    char text[ZP_TEXT_BYTES];
    for (int i = 0; i < 2 && t->announce; i++)
        ZP_DO(z, t->announce(z->data, &z->memory[i], (zp_channel)i, &how[i]));
    (void)snprintf(text, sizeof text, "%s; gradients %s, parameters %s", z->data->note,
                   how[ZP_GRADIENTS], how[ZP_PARAMETERS]);
    if (t->announce && z->cfg.log) z->cfg.log(z->cfg.log_user, ZERO_LOG_INFO, text);
    return ZERO_OK;
}

static zero_result zp_build_open_gradients(zero_ctx *z, size_t bytes) {
    return zp_comm_open_memory(z->data, &z->memory[ZP_GRAD], bytes, 0);
}

/* Opens the memory that needs all ranks. COLLECTIVE. Peers read the verdicts, so these follow the
   gradients, whose memory stays valid after the context. */
static zero_result zp_build_open_shared(zero_ctx *z) {
    zp_comm *g = z->data;
    zp_memory *grad = &z->memory[ZP_GRAD], *param = &z->memory[ZP_PARAM];
    z->verdict_at = zp_round_up(z->pool[ZP_GRAD].bytes, 64);
    const zp_op verdict = zp_verdict_op(z);
    const size_t verdicts = (size_t)z->agreeing->nranks * zp_comm_op_shard_bytes(&verdict);
    const size_t end = z->verdict_at + (z->agreeing == g ? verdicts : 0);
    z->peer_at = z->peer_bytes ? zp_round_up(end, 256) : end;
    const int seen = z->array[ZP_PARAM].share == ZP_SEEN ? ZP_ONE : 0;
    ZP_TRY(zp_comm_open_memory(z->all, &z->all->stage, ZP_STAGE_NUMEL * sizeof(float), ZP_ON_HOST));
    ZP_TRY(zp_comm_open_memory(g, param, z->param_end, seen));
    ZP_TRY(z->open_gradients(z, z->peer_at + z->peer_bytes));
    if (z->agreeing != g) ZP_TRY(zp_comm_open_memory(z->agreeing, &z->verdict_memory, verdicts, 0));
    z->verdict = (double *)(void *)(verdict.memory->base + verdict.source);
    z->verdicts = (double *)(void *)(verdict.memory->base + verdict.target);
    z->array[ZP_PARAM].memory = param->base;
    z->array[ZP_GRAD].memory = z->array[ZP_MEAN].memory = grad->base;
    return ZERO_OK;
}

/* Opens the memory of the groups, with zeros. COLLECTIVE. */
static zero_result zp_build_open_memory(zero_ctx *z) {
    const zero_result r = zp_build_open_shared(z);
    if (!r) ZP_TRY(zp_build_register_memory(z));
    if (!r) return zp_extra_call(z, ZP_ON_MEMORY);
    ZP_DO(z, ZERO_OK);
    return z->dead = zp_ctx_fail(
               z, r, "could not allocate parameters (%zu bytes) and gradients (%zu bytes)",
               z->pool[ZP_PARAM].bytes, z->pool[ZP_GRAD].bytes);
}

static zero_result zp_build_allocate(zero_ctx *z) {
    const zero_config *c = &z->cfg;
    zp_device *d = &z->device;
    int failed_rank = -1;
    zero_result r = zp_build_alloc_units(z);
    if (!r) r = zp_device_take_stream(&z->compute, d, c->stream, c->threads);
    for (int i = 0; i < 2 && !r; i++)
        r = zp_device_open_stream(&z->stream[i], d, c->stream, !c->no_overlap, i, c->threads);
    for (int i = 0; i < 2; i++) zp_device_set_track(&z->stream[i], ZERO_TRACK_GRADIENTS + i);
    if (!r) r = zp_build_private(z);
    if (!r) r = zp_extra_call(z, ZP_ON_ALLOCATE);
    /* all ranks learn which rank could not allocate, and return the same error */
    ZP_DO(z, zp_comm_agree(z->all, r == ZERO_OK, &failed_rank));
    if (failed_rank >= 0 && z->failure.claimed) return zp_ctx_check(z, r);
    if (failed_rank >= 0)
        return z->dead =
                   zp_ctx_fail(z, ZERO_ERR_MEMORY,
                               "rank %d could not allocate its optimizer state (%zu bytes) or its "
                               "lists",
                               failed_rank, z->plan.optimizer_bytes);
    ZP_TRY(zp_extra_call(z, ZP_ON_SHARE));
    return zp_build_open_memory(z);
}

/* Checks that no earlier tensor of the unit has the same field in your struct as member m. `last`,
   by the first tensor of a field: 1 + the last member with this field. */
static zero_result zp_build_check_field(zero_ctx *z, const zp_member *m, int *last) {
    const zero_tensor_desc *d = &z->tensors[m->tensor].desc;
    if (d->flags & ZERO_BY_SLOT) return ZERO_OK;
    int *at = &last[*zp_bind_place_of_field(z, d->field) - 1];
    const zp_member *before = *at ? &z->layout.members[*at - 1] : m;
    *at = 1 + (int)(m - z->layout.members);
    const int unit = zp_layout_unit_of(&z->layout, m->unit);
    ZP_REFUSE(z, zp_layout_unit_of(&z->layout, before->unit) == unit && before->tensor != m->tensor,
              "tensors %s and %s of unit %d have the same field (offset %zu); use two fields",
              z->tensors[before->tensor].desc.name, d->name, unit, d->field);
    return ZERO_OK;
}

/* Checks that the units of all tensors are 0..n-1 without a gap, and checks their fields. */
static zero_result zp_build_check_units(zero_ctx *z) {
    zero_result r = ZERO_OK;
    for (int u = 0; u < z->layout.units; u++)
        ZP_REFUSE(z, !z->layout.unit[u].announced,
                  "unit %d has no tensor, expected one in each of 0..%d", u, z->layout.units - 1);
    int *last = (int *)calloc((size_t)z->ntensors, sizeof *last);
    if (!last) return zp_ctx_fail(z, ZERO_ERR_MEMORY, "fields of %d tensors", z->ntensors);
    for (int u = 0; u < z->layout.all; u++) ZP_EACH_SEGMENT(&z->layout, u, s)
    for (int i = 0; i < z->layout.unit[s].members && !r; i++)
        r = zp_build_check_field(z, &z->layout.unit[s].member[i], last);
    free(last);
    return r;
}
