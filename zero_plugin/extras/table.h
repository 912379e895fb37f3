/* table.h - the capabilities of this build, a row each

   The order is that in which they open, and add to plan and walks. */
#pragma once

#include "../offload/transfers.h"
#include "packed.h"
#include "subgroups.h"
#include "whole_tensor.h"
#include "world.h"

static const zp_extra *const zp_extras[] = {&zp_world_extra,   &zp_subgroups_extra,
                                            &zp_packed_extra,  &zp_whole_tensor_extra,
                                            &zp_offload_extra, NULL};
