/* device.h - all device work goes through streams, events, tasks and copies: CUDA's, or the CPU's
 */
#pragma once

#ifdef __CUDACC__
#include "device_cuda.h"
#else
#include "device_cpu.h"
#endif
