/* cublas_v2.h - the toolkit's own, as any host compiler reads it. */
#undef __CUDACC__
#include_next <cublas_v2.h>
#define __CUDACC__ 1
