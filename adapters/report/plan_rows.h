/* plan_rows.h - the plugin's plan of a rank's memory as rows of a table: what is kept where, and
   what of it a step moves from and to a file.

   WHY A ROOM. Tiers are said next to the bytes that they hold, by every program that prints a plan;
   none of it needs a model.
*/
#ifndef PLAN_ROWS_H
#define PLAN_ROWS_H

#include "../../zero_plugin.h"
#include "report.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Bytes that a context takes of the memory it computes in; where that is the host's, its lists and
   queues are in it. */
static inline uint64_t plan_bytes(const zero_plan *p, int host_is_device) {
    return (uint64_t)p->param_bytes + p->grad_bytes + p->optimizer_bytes + p->buffer_bytes
           + (host_is_device ? p->context_bytes : 0);
}

/* c: as resolved (zero_query_config). host_is_device: the CPU version, in which tier HOST is
   DEVICE. */
void plan_rows(report *r, const zero_plan *p, const zero_config *c, int host_is_device);

#ifdef __cplusplus
}
#endif
#endif
