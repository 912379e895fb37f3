/* device.h - streams, events, tasks and copies, either of CUDA or of the CPU */
#pragma once

#ifdef __CUDACC__
#include "device_cuda.h"
#else
#include "device_cpu.h"
#endif
