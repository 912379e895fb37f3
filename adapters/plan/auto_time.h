/* auto_time.h - whether auto.c simulates the messages of a case. */
#ifndef PLAN_AUTO_TIME_H
#define PLAN_AUTO_TIME_H

#include "auto.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { AUTO_SIMULATED = 3 }; /* most micro-steps that are simulated; more are extrapolated */

/* Returns 1 if the simulator has the case: data-parallel ranks on several nodes, or on GPUs. */
int auto_simulates(const plan_case *c);

#ifdef __cplusplus
}
#endif
#endif
