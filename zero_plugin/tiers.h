/* tiers.h - which units are kept elsewhere than in memory, where in the file, and what that moves
 */
#pragma once

#include "names.h"

/* Bytes of unit u's part in the file: whole sectors. */
static size_t zp_plan_filed(const zp_array *a, int u) {
    return zp_array_filed(a, u) ? zp_round_up(a->part[u].numel * zp_bytes(a->type), ZP_SECTOR) : 0;
}

/* Reduced gradients of several micro-steps add up where they are kept, and not in SUM. */
static int zp_means_add(const zero_ctx *z) {
    return z->cfg.micro_steps > 1 && !z->array[ZP_SUM].share;
}

/* Of an array of which something is in the file, pieces that are in memory at once: of the ring,
   and of gradients that several micro-steps add up in the file. */
static size_t zp_tier_places(const zero_ctx *z, int k) {
    return k == ZP_PARAM && zp_doubles(z) ? 0 : ZP_RING; /* NEXT's are for both */
}
static size_t zp_tier_addends(const zero_ctx *z, int k) {
    return k == ZP_MEAN && zp_means_add(z) && zp_host_computes() ? ZP_DISK_LANES : 0;
}

/* Bytes of the device's memory that pieces of the file pass through; the host's is another. */
static size_t zp_tier_buffers(const zero_ctx *z) { return zp_host_computes() ? z->disk_bytes : 0; }
/* Of a GPU's: pieces of gradients that several micro-steps add up in the file. */
static size_t zp_tier_sums(const zero_ctx *z) {
    const int adds = zp_means_add(z) && !zp_host_computes();
    return adds && z->array[ZP_MEAN].tier == ZERO_FILE ? ZP_LIFTED * ZP_PIECE_NUMEL * sizeof(float)
                                                       : 0;
}

/* Where the parts of arrays lie in the file: whole sectors, and pieces that have numbers. Of each
   array a bounce, places of the ring and addends are in memory. */
static void zp_plan_disk(zero_ctx *z) {
    z->disk_bytes = z->disk_pieces = z->ring.stops = 0;
    for (int k = 0; k < ZP_ARRAYS; k++) {
        zp_array *a = &z->array[k];
        size_t most = 0;
        for (int u = 0; u < z->layout.all; u++) {
            if (!zp_array_filed(a, u)) continue;
            most = zp_max(most, zp_min(a->part[u].numel, ZP_PIECE_NUMEL));
            a->part[u].at = z->plan.file_bytes;
            a->part[u].piece = z->disk_pieces;
            z->plan.file_bytes += zp_plan_filed(a, u);
            z->disk_pieces += zp_array_pieces(a, u);
            z->live[u].apart = 1;
        }
        a->piece_bytes = zp_round_up(most * zp_bytes(a->type), ZP_SECTOR);
        z->disk_bytes += (1 + zp_tier_places(z, k) + zp_tier_addends(z, k)) * a->piece_bytes;
    }
    for (int u = 0; u < z->layout.all; u++) {
        z->live[u].apart |= zp_delays(z) && z->layout.unit[u].numel;
        z->ring.stops += z->live[u].apart ? zp_array_pieces(&z->array[ZP_STATE], u) : 0;
    }
    z->ring.passes = z->rule->passes;
    z->ring.stops *= (size_t)z->rule->passes;
}

/* The units that tiers are for: of the order of updates the last ones, until they are offload_share
   of all elements. */
static void zp_plan_offload(zero_ctx *z) {
    const double wanted = (double)z->cfg.offload_share * (double)z->layout.padded;
    double so_far = 0;
    for (int i = z->layout.all - 1; i >= 0; i--) {
        const int u = zp_unit_nth(&z->layout, i);
        z->live[u].offloads = so_far < wanted;
        so_far += (double)z->layout.unit[u].padded;
    }
}

/* Bytes of an array that are not on the device, less what sectors round up. */
static size_t zp_plan_away(const zero_ctx *z, const zp_array *a) {
    size_t numel = 0;
    for (int u = 0; u < z->layout.all; u++) numel += a->part[u].tier ? a->part[u].numel : 0;
    return numel * zp_bytes(a->type);
}

/* In a step. Of micro-steps in one pass what is reduced at its end is reduced once. */
static int zp_plan_reductions(const zero_ctx *z, int u) {
    const int ends = z->live[u].late || u == z->layout.units;
    if (!z->layout.unit[u].numel) return 0;
    if (z->adding != ZP_EACH_REDUCED || (ends && z->trace[ZERO_TRAIN].together)) return 1;
    return z->cfg.micro_steps;
}

/* What goes to and from the file in a step: state both ways, by each pass of the rule; weights are
   read by a rule that has no master, and by gathers; gradients are written by each reduction, which
   reads what it adds to. The first of two passes writes state alone. */
static void zp_plan_file_traffic(zero_ctx *z) {
    const zp_array *a = z->array;
    zero_plan *plan = &z->plan;
    for (int u = 0; u < z->layout.all; u++) {
        const size_t param = zp_plan_filed(&a[ZP_PARAM], u), mean = zp_plan_filed(&a[ZP_MEAN], u);
        const size_t times = a[ZP_SUM].share ? 1 : (size_t)zp_plan_reductions(z, u);
        const size_t passes = (size_t)z->rule->passes, more = passes - 1;
        const size_t uses =
            (size_t)(z->live[u].gathers - z->live[u].near) + (a[ZP_MASTER].share ? 0 : passes);
        for (int k = ZP_MASTER; k < ZP_NEXT; k++) {
            plan->file_read_bytes += zp_plan_filed(&a[k], u) * passes;
            plan->file_written_bytes += zp_plan_filed(&a[k], u) * (k == ZP_MASTER ? 1 : passes);
        }
        plan->file_read_bytes += param * uses + mean * (times + more);
        plan->file_written_bytes += param + mean * times;
    }
}

/* Each micro-step's reduced gradient leaves for its tier, and they add up there. */
static int zp_mean_leaves(const zero_ctx *z, int u) {
    return zp_array_away(&z->array[ZP_MEAN], u) && !z->array[ZP_SUM].share;
}

/* What crosses the link of a GPU in a step. By the host: gradients down, by each micro-step where
   they add up there, and then up as often but once; parameters up, or by each gather; directions of
   matrices down and up. Through the GPU: state, by each pass of the rule, both ways. */
static void zp_plan_link_traffic(zero_ctx *z) {
    const zp_array *a = z->array, *mean = &a[ZP_MEAN], *param = &a[ZP_PARAM];
    zero_plan *plan = &z->plan;
    for (int u = 0; u < z->layout.all; u++) {
        const zp_kept *own = &a[ZP_STATE].part[u];
        if (!z->live[u].apart || !own->numel || zp_host_computes()) continue;
        for (int k = ZP_MASTER; k < ZP_NEXT && z->host.through; k++)
            plan->up_bytes += a[k].part[u].numel * sizeof(float) * (size_t)z->rule->passes;
        if (z->host.through) continue;
        const size_t times = zp_mean_leaves(z, u) ? (size_t)zp_plan_reductions(z, u) : 1,
                     g = own->numel * zp_bytes(mean->type), p = own->numel * zp_bytes(param->type),
                     dealt = z->layout.unit[u].matrices ? own->numel * sizeof(float) : 0;
        const int gathers = zp_array_away(param, u) ? z->live[u].gathers - z->live[u].near : 1;
        plan->down_bytes += g * times + dealt;
        plan->up_bytes += g * (times - 1) + p * (size_t)gathers + dealt;
    }
    if (z->host.through) plan->down_bytes = plan->up_bytes;
}
