/* plan_rows.h - the plugin's plan of a rank's memory as rows of a table: the bytes of each kind,
   their tier, and the bytes that a step reads from and writes to a file.

   WHY A FILE. Every program that prints a plan prints the same rows. They need no model.
*/
#ifndef PLAN_ROWS_H
#define PLAN_ROWS_H

#include "../../zero_plugin.h"
#include "report.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Returns the bytes that a context takes of its device's memory. If the device is the CPU, the
   context's lists and queues are included. */
static inline uint64_t plan_bytes(const zero_plan *p, int host_is_device) {
    return (uint64_t)p->param_bytes + p->grad_bytes + p->optimizer_bytes + p->buffer_bytes
           + (host_is_device ? p->context_bytes : 0);
}

/* Prints the rows. c: from zero_query_config. host_is_device: 1 in a CPU build, in which tier HOST
   is tier DEVICE. */
void plan_rows(report *r, const zero_plan *p, const zero_config *c, int host_is_device);

#ifdef __cplusplus
}
#endif
#endif
