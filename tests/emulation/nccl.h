/* nccl.h - the toolkit's own, as any host compiler reads it; emulation_nccl.cc defines what it
   declares. */
#undef __CUDACC__
#include_next <nccl.h>
#define __CUDACC__ 1
