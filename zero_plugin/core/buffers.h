/* buffers.h - assigns units to buffers, and predicts the next gathers

   Units that are not kept unsharded share buffers. A pass uses most units once per direction. A
   unit that is used more often (tied embeddings), or is much larger than the others, has a buffer
   of its own and keeps its value until parameters change. The next gathers follow the order of
   begin hooks in the last pass, or the order that your code has announced. These functions only
   change their arguments: the plan runs the same functions to count gathers. */
#pragma once

#include "../machine/device.h"

typedef struct zp_buffer {
    size_t at;          /* byte offset in its region */
    int unit;           /* the unit whose values it holds, or -1 */
    int open;           /* uses that have begun and not ended */
    uint64_t used;      /* clock of the last begin, end or gather */
    zp_event *released; /* parameters: compute has finished with its last unit */
} zp_buffer;

typedef struct zp_buffers {
    zp_buffer *buffer;
    int n;
    int alone;    /* the first `alone` buffers belong to one unit each */
    int *held_by; /* by unit: 1 + the buffer that zp_buffer_take gave it; 0: none */
    uint64_t clock;
    size_t bytes; /* of its region: whole units and shards, then the buffers */
} zp_buffers;

typedef struct zp_order {      /* units in order of their outermost begin with parameters */
    int *unit;                 /* [cap] */
    int n, at, cap;            /* cap: a new plan never makes it smaller */
    zero_pass_call *announced; /* [nannounced] by your code; NULL: the order is learned */
    int nannounced, matched, all_micro_steps;
} zp_order;

static int zp_buffer_find(const zp_buffers *p, int unit) { return p->held_by[unit] - 1; }

/* Returns the least recently used shared buffer that is not open and whose unit is not in `soon`;
   -1: none. */
static int zp_buffer_oldest(const zp_buffers *p, const int *soon, int nsoon) {
    int best = -1;
    for (int b = p->alone; b < p->n; b++) {
        const zp_buffer *x = &p->buffer[b];
        int wanted = 0;
        if (x->open) continue;
        for (int i = 0; i < nsoon; i++) wanted |= x->unit >= 0 && soon[i] == x->unit;
        if (!wanted && (best < 0 || x->used < p->buffer[best].used)) best = b;
    }
    return best;
}

static void zp_buffer_release(zp_buffers *p, int b) {
    if (p->buffer[b].unit >= 0) p->held_by[p->buffer[b].unit] = 0;
    p->buffer[b].unit = -1;
}
static void zp_buffer_forget_all(zp_buffers *p) {
    for (int b = 0; b < p->n; b++) zp_buffer_release(p, b);
}

/* Assigns a buffer. 1: the buffer must be filled; 0: it holds the unit; -1: no buffer is free. */
static int zp_buffer_take(zp_buffers *p, int unit, int own, const int *soon, int nsoon) {
    int b = zp_buffer_find(p, unit);
    const int held = b >= 0;
    if (!held) b = own >= 0 ? own : zp_buffer_oldest(p, soon, nsoon);
    if (b < 0) return -1;
    zp_buffer_release(p, b);
    p->buffer[b].unit = unit;
    p->held_by[unit] = b + 1;
    p->buffer[b].used = ++p->clock;
    return !held;
}

/* Adds or drops a reference to the unit's buffer. */
static void zp_buffer_hold(zp_buffers *p, int unit, int more) {
    const int b = zp_buffer_find(p, unit);
    if (b < 0) return;
    p->buffer[b].open += more;
    if (more < 0) p->buffer[b].used = ++p->clock;
}

/* Prints the units that hold the shared buffers. */
static const char *zp_buffer_print_open(const zp_buffers *p, char *text, size_t bytes) {
    size_t n = 0;
    text[0] = 0;
    for (int b = p->alone; b < p->n && n + 16 < bytes; b++)
        if (p->buffer[b].open)
            n += (size_t)snprintf(text + n, bytes - n, "%s%d", n ? ", " : "", p->buffer[b].unit);
    return text;
}
