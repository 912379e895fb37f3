/* nvtx3/nvToolsExt.h - NVTX as far as the plugin calls it: ranges are counted, see
   emulation_ranges. */
#ifndef NVTOOLSEXT_H
#define NVTOOLSEXT_H

#ifdef __cplusplus
extern "C" {
#endif
int nvtxRangePushA(const char *message);
int nvtxRangePop(void);
#ifdef __cplusplus
}
#endif
#endif
