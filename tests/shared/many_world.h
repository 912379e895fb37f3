/* many_world.h - the ranks of many_transport.h, as a test sets them up and reads them. */
#pragma once

#include "../../zero_plugin.h"

/* Of the tests' own transports, slow_transport.h is the first kind. */
#define MANY_KIND ((zero_comm_kind)(ZERO_COMM_OWN + 1))

typedef struct many_world {
    int nranks;
    long exchanges, collectives; /* so far */
} many_world;
