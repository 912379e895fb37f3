/* observe_layout.h - adds the groups of a layout to the timeline of observe.h. */
#ifndef OBSERVE_LAYOUT_H
#define OBSERVE_LAYOUT_H

#include "../parallel/layout.h"
#include "observe.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Observes each group of the layout, after layout_build. Errors: those of observe_group. */
zero_result observe_layout(observer *s, zero_ctx *z, const layout *l);

#ifdef __cplusplus
}
#endif
#endif
