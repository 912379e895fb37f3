/* offload_plan.h - the offloaded units, their places in host memory and in the file, traffic */
#pragma once

#include "../core/order.h"
#include "../core/plan.h"
#include "../core/weights.h"
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
    ZP_REFUSE(
        z,
        c->delay_from && !zp_device_is_host()
            && (!c->optimizer_tier || c->parameter_tier || c->offload_share < 1),
        "delay_from is %d: in CUDA builds the CPU must update all units, and parameters must be "
        "on the device; set optimizer_tier to HOST or FILE, and leave offload_share and "
        "parameter_tier out",
        c->delay_from);
    ZP_REFUSE(
        z, tiers && !zp_device_is_host() && !c->optimizer_tier,
        "optimizer_tier is DEVICE, but gradient_tier or parameter_tier is set: CUDA builds offload "
        "the optimizer state first; set optimizer_tier to HOST or FILE");
    ZP_REFUSE(z,
              c->update_on == ZERO_UPDATE_DEVICE && !zp_device_is_host()
                  && (files || c->parameter_tier || c->delay_from),
              "update_on is DEVICE: the GPU updates only optimizer state in CPU memory "
              "(optimizer_tier HOST), without delay_from, and with parameters on the device; leave "
              "it out");
    ZP_REFUSE(z, files && !c->folder,
              "folder is NULL, but state is offloaded to a file; set folder");
    ZP_REFUSE(z, c->parameter_tier && stage->parameters == ZP_WHOLE,
              "parameter_tier is %s: at stage %d parameters are not sharded; use stage 3",
              c->parameter_tier == ZERO_HOST ? "HOST" : "FILE", c->stage);
    ZP_REFUSE(
        z, c->gradient_tier == ZERO_FILE && whole,
        "gradient_tier is FILE: it needs sharded gradients; use stage 2 or 3, and with several "
        "micro-steps sharded accumulation");
    return ZERO_OK;
}

/* Estimates the seconds for one element of state in host memory, by the configured rates: if the
   CPU updates it, which then sends parameters up, and if the GPU does. */
static void zp_offload_plan_estimate(const zero_ctx *z, double *host, double *device) {
    const zero_config *c = &z->cfg;
    const zp_array *master = &z->array[ZP_MASTER];
    const size_t kept = master->share ? zp_type_bytes(master->type) : 0;
    const double link = 1e9 * (double)c->link_gbs, memory = 1e9 * (double)c->memory_gbs;
    const size_t of_block = zp_type_array_bytes(z->array[ZP_STATE].type, ZP_CODE_BLOCK);
    const double state = (double)kept + z->rule->states * (double)of_block / (double)ZP_CODE_BLOCK,
                 passes = z->rule->passes;
    const double moves = 1 + zp_weights_are_read(z);
    const double p = (double)zp_type_bytes(c->type),
                 g = (double)zp_type_bytes(z->array[ZP_GRAD].type);
    *host = passes * (2 * state + g + moves * p) / memory + p / link;
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

/* Allocates the lists of units. Selects the units that are offloaded: the last ones in the order of
   updates, until they have offload_share of all elements. */
static zero_result zp_offload_plan_layout(zero_ctx *z) {
    zp_offload *o = z->offload;
    const size_t all = (size_t)z->layout.segments;
    const double wanted = (double)z->cfg.offload_share * (double)z->layout.padded;
    double so_far = 0;
    free(o->unit);
    free(o->parts);
    o->unit = (zp_offload_unit *)calloc(all, sizeof *o->unit);
    o->parts = (zp_array_part *)calloc(ZP_TWINS * all, sizeof *o->parts);
    o->units = o->unit ? z->layout.segments : 0;
    if (!o->unit || !o->parts) return ZERO_ERR_MEMORY;
    for (int i = z->layout.all - 1; i >= 0; i--) {
        const int u = zp_layout_nth_unit(&z->layout, i);
        z->live[u].may_leave = so_far < wanted;
        so_far += (double)zp_layout_padded(&z->layout, u);
    }
    return ZERO_OK;
}

/* Cuts DOWN, UP and DIRECTIONS, and marks the units that the stream `updates` updates. Where MEAN
   or PARAM is off the device, DOWN or UP has the same part. */
static void zp_offload_plan_twins(zero_ctx *z) {
    zp_offload *o = z->offload;
    const zero_type types[ZP_TWINS] = {z->array[ZP_GRAD].type, z->array[ZP_PARAM].type, ZERO_F32};
    const int of[ZP_TWINS] = {ZP_MEAN, ZP_PARAM, -1};
    o->cpu_updates = 0;
    for (int i = 0; i < ZP_TWINS; i++) {
        zp_array *a = &o->twin[i];
        a->type = types[i];
        a->tiers = zp_offload_tiers;
        a->part = o->parts + (size_t)i * (size_t)z->layout.segments;
        a->filed = of[i] < 0 ? NULL : &o->filed[of[i]];
        for (int u = 0; u < z->layout.segments; u++) {
            const zp_array_part *own = zp_ctx_own_part(z, u);
            const int frozen = u >= z->layout.all,
                      off = zp_array_off_device(&z->array[ZP_PARAM], u);
            const int here =
                (frozen ? !off : own->tier == ZERO_DEVICE) || zp_device_is_host() || o->gpu_updates;
            const int wanted = !frozen && (of[i] >= 0 || zp_layout_has_one_state(&z->layout, u));
            const zp_share share = !here && wanted ? z->policy.state : ZP_NOTHING;
            const zp_array_part x = {a->type, share, ZERO_HOST, 0, 0, 0, 0};
            (void)zp_array_cut(a, u, &z->layout.unit[u], x, z->data->rank, 0, SIZE_MAX);
            if (!here && of[i] >= 0 && zp_array_off_device(&z->array[of[i]], u))
                a->part[u] = z->array[of[i]].part[u];
            o->cpu_updates |= !here && (own->numel || frozen);
            z->live[u].on_updates |= !frozen && (own->tier == ZERO_HOST || (!here && own->numel));
        }
    }
    z->more_sums = o->cpu_updates;
}

/* ---- the file ---- */

/* Describes the arrays that an update touches, and what each pass of the rule does with them. */
static void zp_offload_plan_ring(zero_ctx *z) {
    zp_offload *o = z->offload;
    zp_file_ring_array *t = o->ring.list;
    const int next = zp_ctx_keeps_next(z);
    const int last = 1 << (z->rule->passes - 1), all = 2 * last - 1;
    t[ZP_UPDATED_PARAM].array =
        o->cpu_updates ? &o->twin[ZP_UP] : &z->array[next ? (int)ZP_NEXT : (int)ZP_PARAM];
    t[ZP_UPDATED_PARAM].other = next ? &z->array[ZP_PARAM] : NULL;
    t[ZP_UPDATED_MEAN].array = o->cpu_updates ? &o->twin[ZP_DOWN] : zp_ctx_update_gradient(z);
    for (int i = 0; i <= ZP_STATES; i++) t[ZP_UPDATED_MASTER + i].array = &z->array[ZP_MASTER + i];
    for (int k = 0; k < ZP_UPDATED_ARRAYS; k++) {
        t[k].reads = k != ZP_UPDATED_PARAM || zp_weights_are_read(z) ? all : 0;
        t[k].writes = k == ZP_UPDATED_MEAN ? 0 : k > ZP_UPDATED_MASTER ? all : last;
    }
    o->ring.passes = z->rule->passes;
    o->ring.stops = 0;
    for (int u = 0; u < z->layout.all; u++) {
        z->live[u].on_updates |= z->updates_overlap && z->layout.unit[u].numel;
        if (z->live[u].on_updates)
            o->ring.stops += zp_file_pieces(&z->array[ZP_STATE], u) * (size_t)z->rule->passes;
    }
}

/* Assigns offsets in the file, in whole sectors, and piece numbers. */
static void zp_offload_plan_file(zero_ctx *z) {
    zp_offload *o = z->offload;
    o->file_pieces = 0;
    for (int k = 0; k < ZP_ARRAYS; k++) {
        zp_array *a = &z->array[k];
        a->filed = &o->filed[k];
        a->filed->piece_bytes = 0;
        for (int u = 0; u < z->layout.segments; u++) {
            if (!zp_file_has(a, u)) continue;
            const zp_array_part *x = &a->part[u];
            a->filed->piece_bytes =
                zp_max(a->filed->piece_bytes,
                       zp_file_piece_bytes(x->type, zp_min(x->numel, ZP_PIECE_NUMEL)));
            a->part[u].at = z->plan.file_bytes;
            a->part[u].piece = o->file_pieces;
            z->plan.file_bytes += zp_file_part_bytes(a, u);
            o->file_pieces += zp_file_pieces(a, u);
            z->live[u].on_updates = u < z->layout.all; /* frozen segments have no update */
        }
    }
}

/* ---- memory ---- */

/* Sizes the places on the GPU for pieces of state, or of sums of gradients in another tier. */
static void zp_offload_plan_gpu_places(zero_ctx *z) {
    zp_offload *o = z->offload;
    const zero_tier tier = zp_device_is_host() ? ZERO_DEVICE : z->array[ZP_MEAN].tier;
    const int adds = zp_offload_adds_means(z) && tier != ZERO_DEVICE;
    size_t units = 0, most = 0;
    for (int u = 0; u < z->layout.all; u++) {
        const size_t numel = z->live[u].on_updates ? zp_ctx_own_part(z, u)->numel : 0;
        most = zp_max(most, numel);
        units += numel > 0;
    }
    o->nplaces = tier == ZERO_FILE ? 1 : zp_min(ZP_GPU_PLACES, units);
    o->place_numel =
        tier == ZERO_FILE ? ZP_STAGED * ZP_PIECE_NUMEL : zp_min(most, ZP_GPU_UPDATE_NUMEL);
    size_t bytes = adds ? o->place_numel * sizeof(float) : 0; /* of a place */
    for (int k = ZP_MASTER; k < ZP_NEXT && o->gpu_updates; k++)
        bytes += z->array[k].share ? zp_offload_place_bytes(z, k) : 0;
    o->places_bytes = bytes * o->nplaces;
}

static void *zp_offload_plan_take(zp_offload *o, int pinned, size_t bytes) {
    return zp_cut_memory(o->memory[pinned], &o->bytes[pinned], bytes, 256);
}
/* Cuts an array's parts in host memory. `twin`, if not NULL, has the same ones. */
static void zp_offload_plan_take_parts(zero_ctx *z, int pinned, zp_array *a, zp_array *twin) {
    size_t bytes = 0;
    for (int u = 0; u < z->layout.segments; u++) {
        if (a->part[u].tier != ZERO_HOST) continue;
        a->part[u].at = bytes;
        if (twin && twin->part[u].tier == ZERO_HOST) twin->part[u].at = bytes;
        bytes += zp_array_part_bytes(a, u);
    }
    a->host = (char *)zp_offload_plan_take(z->offload, pinned, bytes);
    if (twin) twin->host = a->host;
}
/* Cuts the memory for pieces of the file, and all that a run on a GPU keeps in host memory. Before
   the memory is allocated this only counts its bytes. */
static void zp_offload_plan_cut(zero_ctx *z) {
    zp_offload *o = z->offload;
    const size_t layers = o->cpu_updates ? zp_ctx_normed_layers(z) : 0;
    const int adds = zp_offload_adds_means(z) && zp_device_is_host();
    o->bytes[0] = o->bytes[1] = 0;
    for (int k = 0; k < ZP_ARRAYS; k++) { /* first: they are aligned to sectors */
        const int ring = k != ZP_PARAM || !zp_ctx_keeps_next(z); /* NEXT's places serve both */
        const int places = 1 + (ring ? ZP_RING : 0) + (adds && k == ZP_MEAN ? ZP_DISK_LANES : 0);
        zp_file_array *filed = &o->filed[k];
        filed->places = (char *)zp_offload_plan_take(o, 0, (size_t)places * filed->piece_bytes);
    }
    if (!o->cpu_updates && !o->gpu_updates) return;
    for (int side = 0; side < ZP_SIDES; side++)
        if (zp_ctx_side_array(z, side)->tier == ZERO_FILE)
            o->staging[side] = (char *)zp_offload_plan_take(
                o, 1, ZP_RING * ZP_PIECE_NUMEL * zp_type_bytes(z->array[side].type));
    o->control = (zp_control *)zp_offload_plan_take(o, 1, sizeof *o->control);
    o->spans = (zp_span *)zp_offload_plan_take(o, 0, (size_t)z->layout.nmembers * sizeof *o->spans);
    o->sums_bytes = zp_round_up(layers * 2 * ZP_LIMBS * sizeof(zp_limb), 256);
    if (layers) o->sums = (zp_limb *)zp_offload_plan_take(o, 1, o->sums_bytes);
    if (layers) o->trust = (double *)zp_offload_plan_take(o, 1, layers * sizeof *o->trust);
    for (int k = ZP_MASTER; k < ZP_ARRAYS; k++)
        zp_offload_plan_take_parts(z, o->gpu_updates, &z->array[k], NULL);
    zp_offload_plan_take_parts(z, 1, &o->twin[ZP_DOWN], &z->array[ZP_MEAN]);
    zp_offload_plan_take_parts(z, 1, &o->twin[ZP_UP], &z->array[ZP_PARAM]);
    zp_offload_plan_take_parts(z, 1, &o->twin[ZP_DIRECTIONS], NULL);
}

/* After the arrays are cut: those in host memory and in the file follow. */
static zero_result zp_offload_plan_arrays(zero_ctx *z) {
    zp_offload *o = z->offload;
    zero_plan *plan = &z->plan;
    size_t numel = 0;
    zp_offload_plan_file(z);
    zp_offload_plan_twins(z);
    zp_offload_plan_ring(z);
    zp_offload_plan_cut(z);
    zp_offload_plan_gpu_places(z);
    z->piece_bytes = o->places_bytes + (zp_device_is_host() ? o->bytes[0] : 0);
    if (!zp_device_is_host()) {
        plan->pinned_bytes = zp_round_up(o->bytes[1], 4096);
        plan->host_bytes = plan->pinned_bytes + zp_round_up(o->bytes[0], 4096);
    }
    for (int u = 0; u < z->layout.all; u++)
        numel += zp_ctx_own_part(z, u)->tier == ZERO_HOST ? zp_ctx_own_part(z, u)->numel : 0;
    if (!numel) return ZERO_OK;
    zp_offload_plan_estimate(z, &plan->update_host_s, &plan->update_device_s);
    plan->update_on = o->gpu_updates ? ZERO_UPDATE_DEVICE : ZERO_UPDATE_HOST;
    plan->update_host_s *= (double)numel;
    plan->update_device_s *= (double)numel;
    return ZERO_OK;
}

/* ---- traffic ---- */

/* Counts the bytes of a step to and from the file, and on the link of a GPU. Each pass of the rule
   reads and writes arrays as the ring lists them. Each of `times` reductions writes the gradient,
   and all but the first read the sum to which they add. Each gather reads the weights. */
static void zp_offload_plan_unit_traffic(zero_ctx *z, int u, size_t times, size_t gathers) {
    zp_offload *o = z->offload;
    zero_plan *plan = &z->plan;
    const zp_array *a = z->array;
    const int off = zp_array_off_device(&a[ZP_PARAM], u), frozen = u >= z->layout.all;
    const int linked = (z->live[u].on_updates || (frozen && off)) && !zp_device_is_host();
    const size_t param = zp_file_part_bytes(&a[ZP_PARAM], u),
                 mean = zp_file_part_bytes(&a[ZP_MEAN], u),
                 directions = zp_array_part_bytes(&o->twin[ZP_DIRECTIONS], u);
    size_t state = 0; /* what the GPU's update of state in host memory moves, each way */
    const int ends = u < z->layout.all ? ZP_UPDATED_ARRAYS : 0; /* frozen: no update */
    for (zp_file_ring_array *t = o->ring.list; t < o->ring.list + ends; t++) {
        const size_t bytes = zp_file_part_bytes(t->array, u);
        plan->file_read_bytes += bytes * (size_t)__builtin_popcount((unsigned)t->reads);
        plan->file_written_bytes += bytes * (size_t)__builtin_popcount((unsigned)t->writes);
        if (t >= o->ring.list + ZP_UPDATED_MASTER)
            state += zp_array_part_bytes(t->array, u) * (size_t)z->rule->passes;
    }
    plan->file_read_bytes += param * gathers + mean * (times - 1);
    plan->file_written_bytes += mean * times;
    if (linked && o->gpu_updates) {
        plan->down_bytes += state;
        plan->up_bytes += state;
    } else if (linked) { /* directions of matrices cross both ways */
        const size_t g = zp_array_part_bytes(&o->twin[ZP_DOWN], u),
                     p = zp_array_part_bytes(&o->twin[ZP_UP], u);
        plan->down_bytes += g * times + directions;
        plan->up_bytes += g * (times - 1) + directions + p * (off ? gathers : 1);
    }
}
static void zp_offload_plan_traffic(zero_ctx *z) {
    for (int u = 0; u < z->layout.segments; u++)
        zp_offload_plan_unit_traffic(
            z, u, zp_offload_mean_leaves(z, u) ? (size_t)zp_order_reductions(z, u) : 1,
            (size_t)(z->live[u].gathers - z->live[u].other_gathers));
}
