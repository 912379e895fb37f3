/* unit_plan.h - a function of the header: one unit's part of the plan */
#pragma once

#include "life.h"

zero_result zero_query_plan_unit(zero_ctx *z, int unit, zero_plan_unit *plan) {
    ZP_ENTER(z, "zero_query_plan_unit", ZP_ANY, "");
    ZP_TRY(zp_life_plan(z));
    ZP_REFUSE(z, !plan, "plan is NULL");
    ZP_TRY(zp_ctx_check_index(z, "unit", unit, z->plan.units));
    memset(plan, 0, sizeof *plan);
    plan->reductions = zp_order_reductions(z, unit);
    plan->unsharded = zp_ctx_unit_is_whole(z, ZP_PARAM, unit);
    ZP_EACH_SEGMENT(&z->layout, unit, s) {
        plan->numel += z->layout.unit[s].content;
        plan->padded += z->layout.unit[s].padded;
        plan->gathers += z->live[s].gathers;
        plan->sent_bytes += zp_plan_unit_sent(z, s);
    }
    return ZERO_OK;
}
