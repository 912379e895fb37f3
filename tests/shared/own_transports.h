/* own_transports.h - the transports of the tests, compiled into $B/own.o and $B/counted.o as
   ZERO_OWN_TRANSPORTS: ZERO_COMM_OWN is slow_transport.h, MANY_KIND is many_transport.h. */
#pragma once

#include "../comm/slow_transport.h"
#include "many_transport.h"
#undef ZERO_OWN_ROWS
#define ZERO_OWN_ROWS , &slow_row, &many_row
