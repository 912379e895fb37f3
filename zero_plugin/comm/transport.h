/* transport.h - the table of transports

   ADDING A TRANSPORT. In a file of your own that -DZERO_OWN_TRANSPORTS='"own.h"' names, write a
   zp_transport that keeps the contract of comm.h, and
       #define ZERO_OWN_ROWS , &own_row
   Its comm.kind is ZERO_COMM_OWN; a second row has ZERO_COMM_OWN + 1. The calling thread runs
   `issue`; on the CPU a lane runs the tasks that it issues. The path of own.h is relative to this
   file's folder. tests/comm/slow_transport.h is an example. */
#pragma once

#include "local.h"
#include "local_groups.h"
#include "mpi.h"
#include "nccl.h"
#include "process.h"

#ifdef ZERO_OWN_TRANSPORTS
#include ZERO_OWN_TRANSPORTS
#else
#define ZERO_OWN_ROWS
#endif
static const zp_transport *const zp_transport_own[] = {NULL ZERO_OWN_ROWS};

/* The first line of a kind counts. */
static const zp_transport_row *const zp_transport_table[] = {
    &zp_local_groups_row, /* processes, and groups */
    &zp_process_row,      /* processes */
    &zp_local_row,        /* threads */
    &zp_mpi_row,          /* MPI */
    &zp_nccl_row,         /* NCCL */
};
enum { ZP_TRANSPORTS = sizeof zp_transport_table / sizeof *zp_transport_table };
enum { ZP_OWN_TRANSPORTS = sizeof zp_transport_own / sizeof *zp_transport_own - 1 };

/* Returns the row of a kind; NULL: this copy of the plugin has none. SELF is LOCAL of one rank. */
static const zp_transport_row *zp_transport_find_row(zero_comm_kind kind) {
    const zero_comm_kind of = kind == ZERO_COMM_SELF ? ZERO_COMM_LOCAL : kind;
    for (int i = 0; i < ZP_TRANSPORTS; i++)
        if (zp_transport_table[i]->kind == of) return zp_transport_table[i];
    return NULL;
}

/* Returns NULL if this build does not have the kind. */
static const zp_transport *zp_transport_find(zero_comm_kind kind) {
    const zp_transport_row *row = zp_transport_find_row(kind);
    const int own = (int)kind - (int)ZERO_COMM_OWN;
    if (row) return row->transport;
    return own >= 0 && own < ZP_OWN_TRANSPORTS ? zp_transport_own[1 + own] : NULL;
}

/* Returns how to get a kind that this build lacks; NULL: the kind does not exist. */
static const char *zp_transport_explain_missing(zero_comm_kind kind) {
    const zp_transport_row *row = zp_transport_find_row(kind);
    if (row) return row->lacks;
    return kind == ZERO_COMM_MPI    ? ZP_LEFT_OUT("mpi")
           : kind == ZERO_COMM_NCCL ? ZP_LEFT_OUT("nccl")
                                    : NULL;
}
