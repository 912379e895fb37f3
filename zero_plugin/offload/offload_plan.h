/* offload_plan.h - what is offloaded: units, their places in host memory and in the file, traffic
 */
#pragma once

#include "../core/order.h"
#include "../core/plan.h"
#include "offload.h"

/* ---- settings ---- */

static const zp_setting zp_offload_plan_settings[] = {
    {ZP_SETTING(optimizer_tier), ZP_SIGNED, 0, ZERO_TIERS - 1, 0, 0},
    {ZP_SETTING(gradient_tier), ZP_SIGNED, 0, ZERO_TIERS - 1, 0, 0},
    {ZP_SETTING(parameter_tier), ZP_SIGNED, 0, ZERO_TIERS - 1, 0, 0},
    {ZP_SETTING(offload_share), ZP_REAL, 0, 1, 1, 0},
    {ZP_SETTING(no_file_check), ZP_FLAG},
    {ZP_SETTING(delay_from), ZP_SIGNED, 0, ZP_UNLIMITED, 0, 0},
    {ZP_SETTING(update_on), ZP_SIGNED, 0, ZERO_UPDATE_DEVICE, 0, 1},
    {ZP_SETTING(link_gbs), ZP_REAL, 0, 1e6, 25, 1},
    {ZP_SETTING(memory_gbs), ZP_REAL, 0, 1e6, 60, 1},
    ZP_LAST_SETTING,
};

/* Checks the settings of tiers. */
static zero_result zp_offload_plan_check(zero_ctx *z) {
    const zero_config *c = &z->cfg;
    const int tiers = c->optimizer_tier || c->gradient_tier || c->parameter_tier;
    const int files = c->optimizer_tier == ZERO_FILE || c->gradient_tier == ZERO_FILE
                      || c->parameter_tier == ZERO_FILE;
    const zp_policy *stage = &zp_policies[c->stage];
    const int whole = stage->gradients == ZP_WHOLE
                      || (c->micro_steps > 1 && c->accumulation == ZERO_ACCUMULATE_LOCAL);
    ZP_REFUSE(z,
              c->delay_from && !zp_device_is_host()
                  && (!c->optimizer_tier || c->parameter_tier || c->offload_share < 1),
              "delay_from is %d: in CUDA builds it is for updates by the CPU, of all units "
              "(optimizer_tier HOST or FILE, offload_share 1), and parameters on the device",
              c->delay_from);
    ZP_REFUSE(z, tiers && !zp_device_is_host() && !c->optimizer_tier,
              "gradient_tier or parameter_tier is set, and optimizer_tier is DEVICE: in CUDA "
              "builds tiers are for the optimizer first, set that, too");
    ZP_REFUSE(z,
              c->update_on == ZERO_UPDATE_DEVICE && !zp_device_is_host()
                  && (files || c->parameter_tier || c->delay_from),
              "update_on is DEVICE: state goes through the GPU from the tier HOST, with parameters "
              "and gradients on the device and updates at once");
    ZP_REFUSE(z, files && !c->folder, "a tier is FILE, and folder is NULL");
    ZP_REFUSE(z, c->parameter_tier && stage->parameters == ZP_WHOLE,
              "parameter_tier is %s: at stage %d parameters are whole on every rank; it is for "
              "stage 3",
              c->parameter_tier == ZERO_HOST ? "HOST" : "FILE", c->stage);
    ZP_REFUSE(z, c->gradient_tier == ZERO_FILE && whole,
              "gradient_tier is FILE: whole gradients are in memory at stages 0 and 1, and where "
              "several micro-steps accumulate LOCAL; it is for stages 2 and 3, SHARDED "
              "accumulation");
    return ZERO_OK;
}

/* Estimates the seconds for one element of state in host memory, by the configured rates: if the
   CPU updates it, which then sends parameters up, and if the GPU does. */
static void zp_offload_plan_estimate(const zero_ctx *z, double *host, double *device) {
    const zero_config *c = &z->cfg;
    const int masters = z->array[ZP_MASTER].share != ZP_NOTHING;
    const double link = 1e9 * (double)c->link_gbs, memory = 1e9 * (double)c->memory_gbs;
    const double state = 4.0 * (z->rule->states + masters), passes = z->rule->passes;
    const double p = (double)zp_type_bytes(c->type),
                 g = (double)zp_type_bytes(z->array[ZP_GRAD].type);
    *host = passes * (2 * state + g + (masters ? 1 : 2) * p) / memory + p / link;
    *device = passes * (state / link > 2 * state / memory ? state / link : 2 * state / memory);
}
static int zp_offload_plan_gpu_updates(const zero_ctx *z) {
    const zero_config *c = &z->cfg;
    double host, device;
    if (c->optimizer_tier != ZERO_HOST || zp_device_is_host()) return 0;
    zp_offload_plan_estimate(z, &host, &device);
    const int can = !c->delay_from && !c->parameter_tier && c->gradient_tier != ZERO_FILE;
    return c->update_on == ZERO_UPDATE_DEVICE
           || (c->update_on == ZERO_UPDATE_AUTO && can && device < host);
}

/* Chooses the arrays' tiers. Gradients stay on the device if they are whole there, or if the GPU
   updates. Delayed updates of a CPU build work on a second copy. */
static zero_result zp_offload_plan_choose(zero_ctx *z) {
    zp_array *mean = &z->array[ZP_MEAN];
    const int copies = z->cfg.delay_from > 0 && zp_device_is_host();
    z->updates_overlap = z->cfg.delay_from > 0;
    for (int k = 0; k < ZP_ARRAYS; k++) {
        const zero_tier wanted = k == ZP_PARAM || k == ZP_NEXT ? z->cfg.parameter_tier
                                 : k == ZP_MEAN                ? z->cfg.gradient_tier
                                 : k == ZP_GRAD || k == ZP_SUM ? ZERO_DEVICE
                                                               : z->cfg.optimizer_tier;
        const int here = wanted == ZERO_HOST && zp_device_is_host();
        z->array[k].tier = here ? ZERO_DEVICE : wanted;
        z->array[k].tiers = zp_offload_tiers;
    }
    zp_array *param = &z->array[ZP_PARAM];
    if (param->tier && param->share == ZP_SEEN) param->share = ZP_SHARD;
    if (copies) z->array[ZP_NEXT].share = z->policy.state;
    if (copies && z->policy.state == ZP_WHOLE) mean->share = ZP_WHOLE;
    z->offload->gpu_updates = zp_offload_plan_gpu_updates(z);
    const int whole = z->array[ZP_GRAD].share == ZP_WHOLE;
    if (z->cfg.gradient_tier == ZERO_HOST && (whole || z->offload->gpu_updates))
        mean->tier = ZERO_DEVICE;
    return ZERO_OK;
}

/* ---- units and arrays ---- */

/* Selects the units that are offloaded: the last ones in the order of updates, until they have
   offload_share of all elements. */
static void zp_offload_plan_units(zero_ctx *z) {
    const double wanted = (double)z->cfg.offload_share * (double)z->layout.padded;
    double so_far = 0;
    for (int i = z->layout.all - 1; i >= 0; i--) {
        const int u = zp_layout_nth_unit(&z->layout, i);
        z->live[u].may_leave = so_far < wanted;
        so_far += (double)z->layout.unit[u].padded;
    }
}

/* Allocates the lists of units, and selects units. */
static zero_result zp_offload_plan_layout(zero_ctx *z) {
    zp_offload *o = z->offload;
    const size_t all = (size_t)z->layout.all;
    free(o->unit);
    free(o->parts);
    o->unit = (zp_offload_unit *)calloc(all, sizeof *o->unit);
    o->parts = (zp_array_part *)calloc(ZP_TWINS * all, sizeof *o->parts);
    o->units = o->unit ? z->layout.all : 0;
    if (!o->unit || !o->parts) return ZERO_ERR_MEMORY;
    zp_offload_plan_units(z);
    return ZERO_OK;
}

/* Sets the offsets of an array's parts in host memory. Returns the bytes of all. */
static size_t zp_offload_plan_host_parts(const zero_ctx *z, zp_array *a) {
    size_t at = 0;
    for (int u = 0; u < z->layout.all; u++) {
        zp_array_part *part = &a->part[u];
        if (part->tier != ZERO_HOST) continue;
        part->at = at;
        at += zp_array_part_bytes(a, u);
    }
    return at;
}

/* Cuts DOWN, UP and DIRECTIONS, and marks the units that the stream `updates` updates. */
static void zp_offload_plan_twins(zero_ctx *z) {
    zp_offload *o = z->offload;
    const zero_type types[ZP_TWINS] = {z->array[ZP_GRAD].type, z->array[ZP_PARAM].type, ZERO_F32};
    o->cpu_updates = 0;
    for (int i = 0; i < ZP_TWINS; i++) {
        zp_array *a = &o->twin[i];
        a->type = types[i];
        a->tiers = zp_offload_tiers;
        a->part = o->parts + (size_t)i * (size_t)z->layout.all;
        for (int u = 0; u < z->layout.all; u++) {
            const zp_array_part *own = zp_ctx_own_part(z, u);
            const int here = own->tier == ZERO_DEVICE || zp_device_is_host() || o->gpu_updates;
            const int wanted[ZP_TWINS] = {!zp_file_has(&z->array[ZP_MEAN], u),
                                          !zp_file_has(&z->array[ZP_PARAM], u),
                                          zp_layout_has_one_state(&z->layout, u)};
            const zp_share share = !here && wanted[i] ? z->policy.state : ZP_NOTHING;
            (void)zp_array_cut(a, u, &z->layout.unit[u], share, ZERO_HOST, z->data->rank, 0,
                               SIZE_MAX);
            o->cpu_updates |= !here && own->numel;
            z->live[u].on_updates |= own->tier == ZERO_HOST || (!here && own->numel);
        }
        (void)zp_offload_plan_host_parts(z, a);
    }
    z->more_sums = o->cpu_updates;
}

/* Lets array a and its twin have the same parts off the device, in host memory and in the file. */
static void zp_offload_plan_share_parts(const zero_ctx *z, zp_array *a, zp_array *twin) {
    for (int u = 0; u < z->layout.all && z->offload->cpu_updates; u++) {
        if (a->part[u].tier == ZERO_FILE) twin->part[u] = a->part[u];
        if (a->part[u].tier == ZERO_HOST) a->part[u].at = twin->part[u].at;
    }
}

/* ---- the file ---- */

/* Returns the bytes of unit u's part in the file: whole sectors. */
static size_t zp_offload_plan_file_part(const zp_array *a, int u) {
    return zp_file_has(a, u) ? zp_round_up(zp_array_part_bytes(a, u), ZP_SECTOR) : 0;
}

/* Return the pieces that are in memory at once for an array with parts in the file: those of the
   ring, and those of gradients that several micro-steps add up in the file. */
static size_t zp_offload_plan_places(const zero_ctx *z, int k) {
    return k == ZP_PARAM && zp_ctx_keeps_next(z) ? 0 : ZP_RING; /* NEXT's places serve both */
}
static size_t zp_offload_plan_addends(const zero_ctx *z, int k) {
    return k == ZP_MEAN && zp_offload_adds_means(z) && zp_device_is_host() ? ZP_DISK_LANES : 0;
}

/* Assigns offsets in the file, in whole sectors, and piece numbers. Counts the memory of each
   array's bounce buffer, ring and addends. */
static void zp_offload_plan_file(zero_ctx *z) {
    zp_offload *o = z->offload;
    o->pieces_bytes = o->file_pieces = o->ring.stops = 0;
    for (int k = 0; k < ZP_ARRAYS; k++) {
        zp_array *a = &z->array[k];
        size_t most = 0;
        a->filed = &o->filed[k];
        for (int u = 0; u < z->layout.all; u++) {
            if (!zp_file_has(a, u)) continue;
            most = zp_max(most, zp_min(a->part[u].numel, ZP_PIECE_NUMEL));
            a->part[u].at = z->plan.file_bytes;
            a->part[u].piece = o->file_pieces;
            z->plan.file_bytes += zp_offload_plan_file_part(a, u);
            o->file_pieces += zp_file_pieces(a, u);
            z->live[u].on_updates = 1;
        }
        a->filed->piece_bytes = zp_round_up(most * zp_type_bytes(a->type), ZP_SECTOR);
        o->pieces_bytes += (1 + zp_offload_plan_places(z, k) + zp_offload_plan_addends(z, k))
                           * a->filed->piece_bytes;
    }
    o->twin[ZP_DOWN].filed = &o->filed[ZP_MEAN];
    o->twin[ZP_UP].filed = &o->filed[ZP_PARAM];
    for (int u = 0; u < z->layout.all; u++) {
        z->live[u].on_updates |= zp_ctx_updates_overlap(z) && z->layout.unit[u].numel;
        o->ring.stops += z->live[u].on_updates ? zp_file_pieces(&z->array[ZP_STATE], u) : 0;
    }
    o->ring.passes = z->rule->passes;
    o->ring.stops *= (size_t)z->rule->passes;
}

/* ---- memory ---- */

/* Returns the bytes of device memory for pieces of the file, if the device is the CPU. */
static size_t zp_offload_plan_buffers(const zero_ctx *z) {
    return zp_device_is_host() ? z->offload->pieces_bytes : 0;
}
/* Returns the bytes on a GPU for pieces of gradients that micro-steps add up in the file. */
static size_t zp_offload_plan_sums(const zero_ctx *z) {
    const int adds = zp_offload_adds_means(z) && !zp_device_is_host();
    return adds && z->array[ZP_MEAN].tier == ZERO_FILE ? ZP_STAGED * ZP_PIECE_NUMEL * sizeof(float)
                                                       : 0;
}

/* Sizes the places for pieces of state, or of sums of gradients, on the GPU. */
static void zp_offload_plan_gpu_places(zero_ctx *z) {
    zp_offload *o = z->offload;
    size_t arrays = (size_t)zp_offload_adds_in_host(z), units = 0, most = 0;
    for (int k = ZP_MASTER; k < ZP_NEXT && o->gpu_updates; k++)
        arrays += z->array[k].share != ZP_NOTHING;
    for (int u = 0; u < z->layout.all; u++) {
        const size_t numel = z->live[u].on_updates ? zp_ctx_own_part(z, u)->numel : 0;
        most = zp_max(most, numel);
        units += numel > 0;
    }
    o->nplaces = zp_min(ZP_GPU_PLACES, units);
    o->place_numel = zp_min(most, ZP_GPU_UPDATE_NUMEL);
    o->places_bytes = arrays * o->nplaces * o->place_numel * sizeof(float);
}

/* Cuts `bytes` from host memory, plain or pinned, at at[pinned]. Returns NULL before it is open. */
static void *zp_offload_plan_cut(const zp_offload *o, size_t *at, int pinned, size_t bytes) {
    const size_t from = at[pinned];
    at[pinned] += zp_round_up(bytes, 256);
    return o->host[pinned] ? o->host[pinned] + from : NULL;
}
/* Cuts all that a run on a GPU keeps in host memory. bytes: of plain and of pinned memory. */
static void zp_offload_plan_cut_host(zero_ctx *z, size_t bytes[2]) {
    zp_offload *o = z->offload;
    const size_t layers = z->offload->cpu_updates ? zp_ctx_normed_layers(z) : 0;
    bytes[0] = bytes[1] = 0;
    if (!z->offload->cpu_updates && !o->gpu_updates) return;
    if (o->pieces_bytes)
        o->pieces = (char *)zp_offload_plan_cut(o, bytes, 0, zp_round_up(o->pieces_bytes, 4096));
    for (int side = 0; side < ZP_SIDES; side++)
        if (zp_ctx_side_array(z, side)->tier == ZERO_FILE)
            o->staging[side] = (char *)zp_offload_plan_cut(
                o, bytes, 1, ZP_RING * ZP_PIECE_NUMEL * zp_type_bytes(z->array[side].type));
    o->control = (zp_control *)zp_offload_plan_cut(o, bytes, 1, sizeof *o->control);
    o->spans =
        (zp_span *)zp_offload_plan_cut(o, bytes, 0, (size_t)z->layout.nmembers * sizeof *o->spans);
    o->sums_bytes = zp_round_up(layers * 2 * ZP_LIMBS * sizeof(zp_limb), 256);
    if (layers) o->sums = (zp_limb *)zp_offload_plan_cut(o, bytes, 1, o->sums_bytes);
    if (layers) o->trust = (double *)zp_offload_plan_cut(o, bytes, 1, layers * sizeof *o->trust);
    for (int k = ZP_MASTER; k < ZP_ARRAYS; k++)
        z->array[k].host = (char *)zp_offload_plan_cut(o, bytes, o->gpu_updates,
                                                       zp_offload_plan_host_parts(z, &z->array[k]));
    for (zp_array *a = o->twin; a < o->twin + ZP_TWINS; a++)
        a->host = (char *)zp_offload_plan_cut(o, bytes, 1, zp_offload_plan_host_parts(z, a));
    z->array[ZP_PARAM].host = o->twin[ZP_UP].host;
    z->array[ZP_MEAN].host = o->twin[ZP_DOWN].host;
}

/* After the arrays are cut: those in host memory and in the file follow. */
static zero_result zp_offload_plan_arrays(zero_ctx *z) {
    size_t bytes[2], numel = 0;
    double host = 0, device = 0;
    zp_offload_plan_twins(z);
    zp_offload_plan_file(z);
    zp_offload_plan_share_parts(z, &z->array[ZP_MEAN], &z->offload->twin[ZP_DOWN]);
    zp_offload_plan_share_parts(z, &z->array[ZP_PARAM], &z->offload->twin[ZP_UP]);
    zp_offload_plan_cut_host(z, bytes);
    z->plan.pinned_bytes = zp_round_up(bytes[1], 4096);
    z->plan.host_bytes = z->plan.pinned_bytes + zp_round_up(bytes[0], 4096);
    zp_offload_plan_gpu_places(z);
    z->piece_bytes =
        zp_offload_plan_buffers(z) + zp_offload_plan_sums(z) + z->offload->places_bytes;
    for (int u = 0; u < z->layout.all; u++)
        numel += zp_ctx_own_part(z, u)->tier == ZERO_HOST ? zp_ctx_own_part(z, u)->numel : 0;
    if (!numel) return ZERO_OK;
    zp_offload_plan_estimate(z, &host, &device);
    z->plan.update_on = z->offload->gpu_updates ? ZERO_UPDATE_DEVICE : ZERO_UPDATE_HOST;
    z->plan.update_host_s = host * (double)numel;
    z->plan.update_device_s = device * (double)numel;
    return ZERO_OK;
}

/* ---- traffic ---- */

/* Counts the bytes of unit u to and from the file in a step. Each pass of the rule moves state both
   ways; the first of two passes writes state alone. Gathers read weights, and so do rules without a
   master. Each of `times` reductions writes gradients, and reads the sum to which it adds. */
static void zp_offload_plan_file_traffic(zero_ctx *z, int u, size_t times, size_t gathers) {
    const zp_array *a = z->array;
    zero_plan *plan = &z->plan;
    const size_t param = zp_offload_plan_file_part(&a[ZP_PARAM], u),
                 mean = zp_offload_plan_file_part(&a[ZP_MEAN], u), passes = (size_t)z->rule->passes;
    for (int k = ZP_MASTER; k < ZP_NEXT; k++) {
        const size_t state = zp_offload_plan_file_part(&a[k], u);
        plan->file_read_bytes += state * passes;
        plan->file_written_bytes += state * (k == ZP_MASTER ? 1 : passes);
    }
    plan->file_read_bytes +=
        param * (gathers + (a[ZP_MASTER].share ? 0 : passes)) + mean * (times + passes - 1);
    plan->file_written_bytes += param + mean * times;
}

/* Counts the bytes of unit u on the link of a GPU in a step. CPU updates: gradients go down, and up
   once less often. Parameters go up, once or for each gather, and directions of matrices both ways.
   GPU updates: each pass of the rule moves state both ways. */
static void zp_offload_plan_link_traffic(zero_ctx *z, int u, size_t times, size_t gathers) {
    const zp_array *a = z->array;
    const size_t numel = zp_ctx_own_part(z, u)->numel, g = numel * zp_type_bytes(a[ZP_MEAN].type),
                 p = numel * zp_type_bytes(a[ZP_PARAM].type),
                 directions = zp_layout_has_one_state(&z->layout, u) ? numel * sizeof(float) : 0;
    size_t down = g * times + directions,
           up = g * (times - 1) + directions
                + p * (zp_array_off_device(&a[ZP_PARAM], u) ? gathers : 1);
    if (z->offload->gpu_updates) {
        up = 0;
        for (int k = ZP_MASTER; k < ZP_NEXT; k++)
            up += zp_array_part_bytes(&a[k], u) * (size_t)z->rule->passes;
        down = up;
    }
    z->plan.down_bytes += down;
    z->plan.up_bytes += up;
}

static void zp_offload_plan_traffic(zero_ctx *z) {
    for (int u = 0; u < z->layout.all; u++) {
        const size_t times = zp_offload_mean_leaves(z, u) ? (size_t)zp_order_reductions(z, u) : 1,
                     gathers = (size_t)(z->live[u].gathers - z->live[u].other_gathers);
        zp_offload_plan_file_traffic(z, u, times, gathers);
        if (z->live[u].on_updates && zp_ctx_own_part(z, u)->numel && !zp_device_is_host())
            zp_offload_plan_link_traffic(z, u, times, gathers);
    }
}
