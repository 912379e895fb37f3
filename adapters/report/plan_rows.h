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

/* c: as resolved (zero_query_config). host_is_device: the CPU version, in which tier HOST is
   DEVICE. */
void plan_rows(report *r, const zero_plan *p, const zero_config *c, int host_is_device);

#ifdef __cplusplus
}
#endif
#endif
