/* transport.h - the table of transports

   ADDING A TRANSPORT. In a file of your own that -DZERO_OWN_TRANSPORTS='"own.h"' names, write a
   zp_transport that keeps the contract of comm.h, and
       #define ZERO_OWN_ROWS , &own_row
   Its comm.kind is ZERO_COMM_OWN; a second row has ZERO_COMM_OWN + 1. The calling thread runs
   `issue`; on the CPU a lane runs the tasks that it issues. The watching thread runs `look`. The
   path of own.h is relative to this file's folder. tests/slow_transport.h is an example. */
#pragma once

#include "local.h"
#include "mpi.h"
#include "nccl.h"

#ifdef ZERO_OWN_TRANSPORTS
#include ZERO_OWN_TRANSPORTS
#else
#define ZERO_OWN_ROWS
#endif
static const zp_transport *const zp_transport_own[] = {NULL ZERO_OWN_ROWS};

/* A line for each kind. `lacks`: why the row of this build may have no functions. */
static const struct {
    const zp_transport *row;
    zero_comm_kind kind;
    const char *lacks;
} zp_transport_table[] = {
    {&zp_local_row, ZERO_COMM_SELF, ""},
    {&zp_local_row, ZERO_COMM_LOCAL, ""},
    {&zp_mpi_row, ZERO_COMM_MPI, ZP_NO_MPI},
    {&zp_nccl_row, ZERO_COMM_NCCL, ZP_NO_NCCL},
};
enum { ZP_TRANSPORTS = sizeof zp_transport_table / sizeof *zp_transport_table };
enum { ZP_OWN_TRANSPORTS = sizeof zp_transport_own / sizeof *zp_transport_own - 1 };

/* Returns NULL if this build does not have the kind. */
static const zp_transport *zp_transport_find(zero_comm_kind kind) {
    const int own = (int)kind - (int)ZERO_COMM_OWN;
    for (int i = 0; i < ZP_TRANSPORTS; i++)
        if (zp_transport_table[i].kind == kind && zp_transport_table[i].row->join)
            return zp_transport_table[i].row;
    return own >= 0 && own < ZP_OWN_TRANSPORTS ? zp_transport_own[1 + own] : NULL;
}

/* Returns how to get a kind that this build lacks; NULL: the kind does not exist. */
static const char *zp_transport_explain_missing(zero_comm_kind kind) {
    for (int i = 0; i < ZP_TRANSPORTS; i++)
        if (zp_transport_table[i].kind == kind) return zp_transport_table[i].lacks;
    return kind == ZERO_COMM_MPI    ? ZP_LEFT_OUT("mpi")
           : kind == ZERO_COMM_NCCL ? ZP_LEFT_OUT("nccl")
                                    : NULL;
}

/* Returns the row that connects processes of this machine; NULL: none can. */
static const zp_transport *zp_transport_find_for_processes(void) {
    for (int i = 0; i < ZP_TRANSPORTS; i++)
        if (zp_transport_table[i].row->connect) return zp_transport_table[i].row;
    return zp_device_is_host() ? &zp_local_row : NULL;
}
/* Returns how to get such a row on GPUs. */
static const char *zp_transport_explain_processes(void) {
    return zp_transport_explain_missing(ZERO_COMM_NCCL);
}
