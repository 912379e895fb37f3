/* zero_cuda13.h - lets llm.c's cuda_utils.cuh compile with CUDA 13, where cudaMemAdvise takes a
   cudaMemLocation in place of a device number. Both forms are accepted. */
#ifndef ZERO_CUDA13_H
#define ZERO_CUDA13_H

#include <cuda_runtime.h>

#if CUDART_VERSION >= 13000
static inline cudaError_t llmc_mem_advise(const void *memory, size_t bytes,
                                          enum cudaMemoryAdvise advice,
                                          struct cudaMemLocation location) {
    return cudaMemAdvise(memory, bytes, advice, location);
}
static inline cudaError_t llmc_mem_advise(const void *memory, size_t bytes,
                                          enum cudaMemoryAdvise advice, int device) {
    struct cudaMemLocation location;
    location.type = device == cudaCpuDeviceId ? cudaMemLocationTypeHost : cudaMemLocationTypeDevice;
    location.id = device == cudaCpuDeviceId ? 0 : device;
    return cudaMemAdvise(memory, bytes, advice, location);
}
#define cudaMemAdvise llmc_mem_advise
#endif

#endif
