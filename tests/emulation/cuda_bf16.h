/* cuda_bf16.h - the toolkit's own, as any host compiler reads it. */
#undef __CUDACC__
#include_next <cuda_bf16.h>
#define __CUDACC__ 1
