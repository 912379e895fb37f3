/* idle.h - prints which flags have no effect in a run. */
#ifndef IDLE_H
#define IDLE_H

#include "../options/train_resolve.h"
#include "report.h"

#ifdef __cplusplus
extern "C" {
#endif

/* observed: the run has an observer. chosen: -z auto has chosen flags. The run makes the steps from
   `step` + 1 to `steps`. on_cpu: the device is the CPU. */
void idle_flags(report *out, const train_options *o, int observed, int chosen, int step, int steps,
                int micro_steps, int on_cpu);

#ifdef __cplusplus
}
#endif
#endif
