/* cudnn.h - the toolkit's own, as any host compiler reads it. */
#undef __CUDACC__
#include_next <cudnn.h>
#define __CUDACC__ 1
