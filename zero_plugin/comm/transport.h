/* transport.h - the table of transports

   ADDING A TRANSPORT. In a file of your own that -DZERO_OWN_TRANSPORTS='"own.h"' names, write a
   zp_transport that keeps the contract of comm.h, and
       #define ZERO_OWN_ROWS , &own_row
   Its comm.kind is ZERO_COMM_OWN; a second row has ZERO_COMM_OWN + 1. The calling thread runs
   `issue`; on the CPU a lane runs the tasks that it issues. The watching thread runs `look`. The
   path of own.h is relative to this file's folder. tests/comm/slow_transport.h is an example. */
#pragma once

#include "local.h"
#include "mpi.h"
#include "nccl.h"

/* A transport that this build lacks: joining fails, and the message says how to build it. */
static const char *zp_transport_explain_missing(zero_comm_kind kind) {
    return kind == ZERO_COMM_MPI ? ZP_NO_MPI : kind == ZERO_COMM_NCCL ? ZP_NO_NCCL : "no such kind";
}
ZP_UNUSED static zero_result zp_transport_join_missing(zp_comm *g, const zero_comm *given) {
    return zp_comm_fail(g, ZERO_ERR_UNSUPPORTED, "%s", zp_transport_explain_missing(given->kind));
}
ZP_UNUSED static const zp_transport zp_lacking = {"",   zp_transport_join_missing,
                                                  NULL, NULL,
                                                  NULL, NULL,
                                                  NULL, NULL,
                                                  NULL, NULL,
                                                  NULL, zp_local_leave,
                                                  NULL, NULL,
                                                  NULL, NULL,
                                                  NULL, NULL};
#ifndef ZERO_WITH_NCCL
#define zp_nccl_row zp_lacking
#else
static const zp_transport zp_nccl_row = {"NCCL",
                                         zp_nccl_join,
                                         zp_nccl_refuse,
                                         zp_nccl_alloc_memory,
                                         zp_nccl_register_memory,
                                         zp_nccl_issue,
                                         zp_nccl_exchange,
                                         zp_nccl_broadcast,
                                         zp_local_bytes,
                                         zp_nccl_watch_look,
                                         zp_nccl_watch_abort,
                                         zp_nccl_leave,
                                         zp_nccl_exchange_messages,
                                         zp_nccl_cut,
                                         zp_nccl_uncut,
                                         zp_nccl_issue_whole,
                                         NULL,
                                         zp_nccl_bytes_of_parts};
#endif

#ifdef ZERO_OWN_TRANSPORTS
#include ZERO_OWN_TRANSPORTS
#else
#define ZERO_OWN_ROWS
#endif

/* One entry for each zero_comm_kind, in its order. */
static const zp_transport *const zp_transports[] = {&zp_self, &zp_local, &zp_mpi_row,
                                                    &zp_nccl_row ZERO_OWN_ROWS};
enum { ZP_TRANSPORTS = sizeof zp_transports / sizeof *zp_transports };

/* Returns NULL if the kind does not exist. */
static const zp_transport *zp_transport_find(zero_comm_kind kind) {
    return (int)kind >= 0 && (int)kind < ZP_TRANSPORTS ? zp_transports[kind] : NULL;
}
