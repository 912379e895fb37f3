/* table.h - the capabilities of this build, one row each

   The plugin calls the rows in this order. ZERO_OWN_EXTRAS names a file of yours with more rows,
   and ZERO_OWN_EXTRA_ROWS lists them, each followed by a comma. */
#pragma once

#include "../offload/offload_build.h"
#include "../offload/offload_gpu.h"
#include "check.h"
#include "packed.h"
#include "subgroups.h"
#include "whole_tensor.h"
#include "world.h"

#ifdef ZERO_OWN_EXTRAS
#include ZERO_OWN_EXTRAS
#else
#define ZERO_OWN_EXTRA_ROWS
#endif

static const zp_extra_row zp_table_rows[] = {
    zp_world_row,       zp_subgroups_row,     zp_packed_row, zp_whole_tensor_row,
    zp_offload_gpu_row, zp_offload_build_row, zp_check_row,  ZERO_OWN_EXTRA_ROWS NULL};
