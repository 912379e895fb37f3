/* table.h - the capabilities of this build, one row each

   The plugin calls the rows in this order. ZERO_OWN_EXTRAS names a file of yours with more rows,
   and ZERO_OWN_EXTRA_ROWS lists them, each followed by a comma. */
#pragma once

#include "../offload/offload_build.h"
#include "../offload/offload_gpu.h"
#include "check.h"
#include "compact.h"
#include "figures.h"
#include "flush.h"
#include "integrity.h"
#include "lines.h"
#include "packed.h"
#include "places.h"
#include "resize.h"
#include "rows_gpu.h"
#include "state.h"
#include "subgroups.h"
#include "trace.h"
#include "virtual.h"
#include "whole_tensor.h"
#include "world.h"

#ifdef ZERO_OWN_EXTRAS
#include ZERO_OWN_EXTRAS
#else
#define ZERO_OWN_EXTRA_ROWS
#endif

/* The settings, and fields of zero_tensor_desc, of parts that drop.sh has left out. It writes them
   here. */
static const zp_missing_setting zp_table_missing[] = {
    {NULL, ZP_LAST_SETTING},
};
static const zp_missing_setting zp_table_missing_fields[] = {
    {NULL, ZP_LAST_SETTING},
};

static const zp_extra_row zp_table_rows[] = {
    zp_lines_row,         /* agree */
    zp_places_row,        /* place */
    zp_compact_row,       /* compact */
    zp_state_row,         /* state */
    zp_world_row,         /* groups */
    zp_subgroups_row,     /* subgroups */
    zp_packed_row,        /* packed */
    zp_rows_row,          /* rows */
    zp_rows_gpu_row,      /* rows */
    zp_virtual_row,       /* virtual */
    zp_whole_tensor_row,  /* muon */
    zp_offload_gpu_row,   /* offload */
    zp_offload_build_row, /* offload */
    zp_integrity_row,     /* integrity */
    zp_check_row,         /* check */
    zp_trace_row,         /* trace */
    zp_resize_row,        /* resize */
    zp_figures_row,       /* figures */
    zp_flush_row,         /* check */
    ZERO_OWN_EXTRA_ROWS NULL,
};
