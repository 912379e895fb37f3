/* nccl_2_19.h - the installed nccl.h as that of NCCL 2.19, the oldest that the plugin takes: what
   came later cannot be named. For `make check`. */
#include "nccl.h"
#undef NCCL_VERSION_CODE
#undef NCCL_WIN_COLL_SYMMETRIC
#undef NCCL_CTA_POLICY_EFFICIENCY
#undef NCCL_CTA_POLICY_ZERO
#define NCCL_VERSION_CODE 21900
#pragma GCC poison ncclWindow_t ncclCommWindowRegister ncclCommWindowDeregister commName CTAPolicy
