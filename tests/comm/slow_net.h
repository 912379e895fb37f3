/* slow_net.h - the network of slow_transport.h, as a test sets it up and reads it. */
#pragma once

#include "../../zero_plugin.h"

typedef enum { SLOW_ISSUE, SLOW_EXCHANGE, SLOW_BROADCAST, SLOW_MEMORY, SLOW_SWAP } slow_call;
typedef enum slow_fault { SLOW_WORKS, SLOW_REFUSED, SLOW_BREAKS, SLOW_LOST, SLOW_DIES } slow_fault;
enum { SLOW_CALLS = 5, SLOW_RANKS = 8 };

typedef struct slow_way { /* a rank's, to all ranks or to a part of them */
    struct slow_net *net;
    zero_local *local;
    int rank; /* among all */
} slow_way;

typedef struct slow_net {
    slow_way way[SLOW_RANKS];
    uint64_t seed;
    double most_s;    /* of a delay; 0: as fast as LOCAL */
    slow_fault fault; /* of the call below */
    int rank;
    slow_call call;
    long number;                        /* 1: the first */
    long calls[SLOW_RANKS][SLOW_CALLS]; /* so far */
    long held, overtaken; /* collectives that waited for the other channel, and had not to go on */
    int happened;         /* the fault has been reached */
} slow_net;

static const char *const slow_names[] = {"issue", "exchange", "broadcast", "memory", "messages"};
