/* figures.h - figures of a plan that no step needs: formulas without padding, memory of lists */
#pragma once

#include "../core/build.h"

/* Returns the bytes of array k for trained elements, without padding. */
static size_t zp_figure_formula_bytes(const zero_ctx *z, int k) {
    size_t numel[2] = {0, 0}; /* in the array's type; of units with state in f32 */
    for (const zp_member *m = z->layout.members; m < z->layout.members + z->layout.nmembers; m++) {
        const int none = k == ZP_STATE + 1 && z->tensors[m->tensor].one_state;
        const int f32 = k >= ZP_STATE && z->layout.unit[m->unit].f32_state;
        if (!none && m->unit < z->layout.all) numel[f32] += m->numel;
    }
    for (int i = 0; i < 2; i++) numel[i] = zp_plan_share_numel(z, z->array[k].share, numel[i]);
    return zp_type_array_bytes(z->array[k].type, numel[0]) + numel[1] * sizeof(float);
}

/* Returns the host memory of a context, without arrays, and without that of rows, which is in
   plan.context_bytes already: itself, lists of tensors, units and ranges, queues of lanes, memory
   in which ranks exchange data. */
static size_t zp_figure_context_bytes(zero_ctx *z) {
    const zp_layout *l = &z->layout;
    const zp_comm *g = z->all;
    const size_t units = (size_t)l->segments + 1, members = (size_t)l->nmembers + 1;
    const size_t unit = sizeof(zp_unit) + sizeof(zp_live) + sizeof(zp_op) + 2 * sizeof(int)
                        + 2 * (sizeof(zp_buffer) + sizeof(int)) + ZP_ARRAYS * sizeof(zp_array_part);
    const size_t member = sizeof(zp_member) + sizeof(zp_member *) + sizeof(zp_span);
    size_t bytes = sizeof *z + units * unit + members * member, largest = 0;
    for (int u = 0; u < l->all; u++) largest = zp_max(largest, zp_ctx_shard(z, u));
    for (int i = 0; i < 2; i++) /* an estimate of a rank's ranges of state */
        bytes += (size_t)z->order[i].cap * sizeof(int)
                 + (members / (size_t)z->data->nranks + units) * (size_t)(1 + z->rule->states)
                       * sizeof(zero_range);
    bytes += (size_t)z->tensors_cap * sizeof *z->tensors + 2 * z->index_room * sizeof(int)
             + (size_t)zp_build_count_events(z) * sizeof(zp_event);
    const int streams = zp_device_is_host() && !z->cfg.no_overlap ? 2 : 0;
    bytes += sizeof *z->extras + (size_t)streams * ZP_LANE_TASKS * sizeof(zp_task);
    ZP_EACH_EXTRA(z, x) bytes += sizeof *x + x->state_bytes;
    bytes += (largest / ZP_NORM_BLOCK + 2) * sizeof *z->partial + 2 * sizeof(zp_control);
    if (!zp_device_is_host()) bytes += sizeof *z->fold;
    bytes += (size_t)g->nranks * ZP_MAIL_BYTES;
    if (g->transport->room) bytes += g->transport->room(g, 0, g->nranks, 0);
    return bytes;
}

/* Computes the figures: formula_bytes follows the stage table, for all arrays. */
static zero_result zp_figure_plan(zero_ctx *z) {
    const zp_layout *l = &z->layout;
    const size_t of_p = zp_type_bytes(z->array[ZP_PARAM].type),
                 of_g = zp_type_bytes(z->array[ZP_GRAD].type);
    double sent = 0;
    z->plan.formula_bytes =
        zp_plan_share_numel(z, z->policy.parameters, l->numel) * of_p
        + zp_plan_share_numel(z, z->policy.gradients, l->numel - l->frozen_numel) * of_g;
    for (int k = ZP_MASTER; k < ZP_NEXT; k++)
        z->plan.formula_bytes += zp_figure_formula_bytes(z, k);
    for (int u = 0; u < l->segments; u++) {
        const zp_unit *x = &l->unit[u];
        if (x->numel)
            sent += (double)zp_plan_unit_sent(z, u) * (double)x->content / (double)x->padded;
    }
    z->plan.formula_sent_bytes = (size_t)(sent + 0.5);
    z->plan.context_bytes += zp_figure_context_bytes(z);
    return ZERO_OK;
}

static zp_extra zp_figures_row(void) {
    zp_extra x;
    memset(&x, 0, sizeof x);
    x.name = "figures";
    x.call[ZP_ON_PLANNED] = zp_figure_plan;
    return x;
}
