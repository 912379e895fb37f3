/* device.h - all device work goes through streams, events, tasks and copies: CUDA's, or the CPU's
 */
#ifndef ZP_DEVICE_H
#define ZP_DEVICE_H

#ifdef __CUDACC__
#include "device_cuda.h"
#else
#include "device_cpu.h"
#endif

#endif
