/* offload_plan.h - the units that are offloaded, their offsets in the file, and their traffic */
#pragma once

#include "../core/bind.h"
#include "../core/order.h"

/* Bytes of unit u's part in the file: whole sectors. */
static size_t zp_offload_plan_file_part(const zp_array *a, int u) {
    return zp_array_in_file(a, u)
               ? zp_round_up(a->part[u].numel * zp_type_bytes(a->type), ZP_SECTOR)
               : 0;
}

/* Pieces in memory at once for an array with parts in the file: those of the ring, and those of
   gradients that several micro-steps add up in the file. */
static size_t zp_offload_plan_places(const zero_ctx *z, int k) {
    return k == ZP_PARAM && zp_ctx_keeps_next(z) ? 0 : ZP_RING; /* NEXT's places serve both */
}
static size_t zp_offload_plan_addends(const zero_ctx *z, int k) {
    return k == ZP_MEAN && zp_ctx_adds_means(z) && zp_device_is_host() ? ZP_DISK_LANES : 0;
}

/* Bytes of device memory for pieces of the file, if the device is the CPU. */
static size_t zp_offload_plan_buffers(const zero_ctx *z) {
    return zp_device_is_host() ? z->disk_bytes : 0;
}
/* Bytes on a GPU for pieces of gradients that micro-steps add up in the file. */
static size_t zp_offload_plan_sums(const zero_ctx *z) {
    const int adds = zp_ctx_adds_means(z) && !zp_device_is_host();
    return adds && z->array[ZP_MEAN].tier == ZERO_FILE ? ZP_LIFTED * ZP_PIECE_NUMEL * sizeof(float)
                                                       : 0;
}

/* Assigns offsets in the file, in whole sectors, and piece numbers. Counts the memory of each
   array's bounce buffer, ring and addends. */
static void zp_offload_plan_file(zero_ctx *z) {
    z->disk_bytes = z->disk_pieces = z->ring.stops = 0;
    for (int k = 0; k < ZP_ARRAYS; k++) {
        zp_array *a = &z->array[k];
        size_t most = 0;
        for (int u = 0; u < z->layout.all; u++) {
            if (!zp_array_in_file(a, u)) continue;
            most = zp_max(most, zp_min(a->part[u].numel, ZP_PIECE_NUMEL));
            a->part[u].at = z->plan.file_bytes;
            a->part[u].piece = z->disk_pieces;
            z->plan.file_bytes += zp_offload_plan_file_part(a, u);
            z->disk_pieces += zp_array_pieces(a, u);
            z->live[u].apart = 1;
        }
        a->piece_bytes = zp_round_up(most * zp_type_bytes(a->type), ZP_SECTOR);
        z->disk_bytes +=
            (1 + zp_offload_plan_places(z, k) + zp_offload_plan_addends(z, k)) * a->piece_bytes;
    }
    for (int u = 0; u < z->layout.all; u++) {
        z->live[u].apart |= zp_ctx_is_delayed(z) && z->layout.unit[u].numel;
        z->ring.stops += z->live[u].apart ? zp_array_pieces(&z->array[ZP_STATE], u) : 0;
    }
    z->ring.passes = z->rule->passes;
    z->ring.stops *= (size_t)z->rule->passes;
}

/* Selects the units that are offloaded: the last ones in the order of updates, until they have
   offload_share of all elements. */
static void zp_offload_plan_units(zero_ctx *z) {
    const double wanted = (double)z->cfg.offload_share * (double)z->layout.padded;
    double so_far = 0;
    for (int i = z->layout.all - 1; i >= 0; i--) {
        const int u = zp_layout_nth_unit(&z->layout, i);
        z->live[u].offloads = so_far < wanted;
        so_far += (double)z->layout.unit[u].padded;
    }
}

/* Counts the bytes to and from the file in a step. Each pass of the rule moves state both ways; the
   first of two passes writes state alone. Gathers read weights, and so do rules without a master.
   Each reduction writes gradients, and reads the sum to which it adds. */
static void zp_offload_plan_file_traffic(zero_ctx *z) {
    const zp_array *a = z->array;
    zero_plan *plan = &z->plan;
    for (int u = 0; u < z->layout.all; u++) {
        const size_t param = zp_offload_plan_file_part(&a[ZP_PARAM], u),
                     mean = zp_offload_plan_file_part(&a[ZP_MEAN], u);
        const size_t times = a[ZP_SUM].share ? 1 : (size_t)zp_order_reductions(z, u);
        const size_t passes = (size_t)z->rule->passes, more = passes - 1;
        const size_t uses =
            (size_t)(z->live[u].gathers - z->live[u].near) + (a[ZP_MASTER].share ? 0 : passes);
        for (int k = ZP_MASTER; k < ZP_NEXT; k++) {
            plan->file_read_bytes += zp_offload_plan_file_part(&a[k], u) * passes;
            plan->file_written_bytes +=
                zp_offload_plan_file_part(&a[k], u) * (k == ZP_MASTER ? 1 : passes);
        }
        plan->file_read_bytes += param * uses + mean * (times + more);
        plan->file_written_bytes += param + mean * times;
    }
}

/* Whether each micro-step's reduced gradient moves to its tier, and micro-steps add up there. */
static int zp_offload_plan_mean_leaves(const zero_ctx *z, int u) {
    return zp_array_off_device(&z->array[ZP_MEAN], u) && !z->array[ZP_SUM].share;
}

/* Counts the bytes on the link of a GPU in a step. CPU updates: gradients go down, once or in each
   micro-step that adds up, and up once less often. Parameters go up, once or for each gather, and
   directions of matrices both ways. GPU updates: each pass of the rule moves state both ways. */
static void zp_offload_plan_link_traffic(zero_ctx *z) {
    const zp_array *a = z->array, *mean = &a[ZP_MEAN], *param = &a[ZP_PARAM];
    zero_plan *plan = &z->plan;
    for (int u = 0; u < z->layout.all; u++) {
        const zp_array_part *own = &a[ZP_STATE].part[u];
        if (!z->live[u].apart || !own->numel || zp_device_is_host()) continue;
        for (int k = ZP_MASTER; k < ZP_NEXT && z->host.through; k++)
            plan->up_bytes += a[k].part[u].numel * sizeof(float) * (size_t)z->rule->passes;
        if (z->host.through) continue;
        const size_t times =
                         zp_offload_plan_mean_leaves(z, u) ? (size_t)zp_order_reductions(z, u) : 1,
                     g = own->numel * zp_type_bytes(mean->type),
                     p = own->numel * zp_type_bytes(param->type),
                     dealt = zp_layout_has_matrices(&z->layout, u) ? own->numel * sizeof(float) : 0;
        const int gathers =
            zp_array_off_device(param, u) ? z->live[u].gathers - z->live[u].near : 1;
        plan->down_bytes += g * times + dealt;
        plan->up_bytes += g * (times - 1) + p * (size_t)gathers + dealt;
    }
    if (z->host.through) plan->down_bytes = plan->up_bytes;
}

/* Checks the settings of tiers. */
static void zp_offload_plan_refuse(const zero_config *c, char *text, size_t bytes) {
    const int tiers = c->optimizer_tier || c->gradient_tier || c->parameter_tier;
    const int files = c->optimizer_tier == ZERO_FILE || c->gradient_tier == ZERO_FILE
                      || c->parameter_tier == ZERO_FILE;
    const zp_policy *stage = &zp_policies[c->stage];
    const int whole = stage->gradients == ZP_WHOLE
                      || (c->micro_steps > 1 && c->accumulation == ZERO_ACCUMULATE_LOCAL);
    if (c->delay_from && !zp_device_is_host()
        && (!c->optimizer_tier || c->parameter_tier || c->offload_share < 1))
        (void)snprintf(
            text, bytes,
            "delay_from is %d: in CUDA builds it is for updates by the CPU, of all units "
            "(optimizer_tier HOST or FILE, offload_share 1), and parameters on the device",
            c->delay_from);
    else if (tiers && !zp_device_is_host() && !c->optimizer_tier)
        (void)snprintf(text, bytes,
                       "gradient_tier or parameter_tier is set, and optimizer_tier is DEVICE: in "
                       "CUDA builds tiers are for the optimizer first, set that, too");
    else if (c->update_on == ZERO_UPDATE_DEVICE && !zp_device_is_host()
             && (files || c->parameter_tier || c->delay_from))
        (void)snprintf(text, bytes,
                       "update_on is DEVICE: state goes through the GPU from the tier HOST, with "
                       "parameters and gradients on the device and updates at once");
    else if (files && !c->folder)
        (void)snprintf(text, bytes, "a tier is FILE, and folder is NULL");
    else if (c->parameter_tier && stage->parameters == ZP_WHOLE)
        (void)snprintf(
            text, bytes,
            "parameter_tier is %s: at stage %d parameters are whole on every rank; it is "
            "for stage 3",
            c->parameter_tier == ZERO_HOST ? "HOST" : "FILE", c->stage);
    else if (c->gradient_tier == ZERO_FILE && whole)
        (void)snprintf(
            text, bytes,
            "gradient_tier is FILE: whole gradients are in memory at stages 0 and 1, and "
            "where several micro-steps accumulate LOCAL; it is for stages 2 and 3, SHARDED "
            "accumulation");
}
