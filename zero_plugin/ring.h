/* ring.h - pieces of the optimizer's state on their way between disk and update (see disk.h) */
#pragma once

#include "memory.h"

enum { ZP_RINGED = 1 + ZP_STATES }; /* arrays that may be in it: MASTER, STATE.. */

typedef struct zp_stop { /* a piece of a unit's part, of all arrays that the rule has */
    int unit;
    size_t piece;
} zp_stop;

typedef struct zp_ring {
    const zp_array *array; /* [ZP_RINGED] MASTER and what follows it */
    char *memory;          /* [ZP_RING][ZP_RINGED][ZP_PIECE_BYTES] NULL: nothing is on a disk */
    zp_stop *stop;         /* [stops] in the order of updates */
    size_t stops;
    size_t asked, used; /* pieces so far, over all steps: place i % ZP_RING, stop i % stops */
    zp_lane_event read[ZP_RING][ZP_RINGED], written[ZP_RING][ZP_RINGED];
    double wait_s; /* the host waited for the disk */
} zp_ring;

static char *zp_ring_memory(const zp_ring *r, size_t i, int k) {
    return r->memory + (i % ZP_RING * ZP_RINGED + (size_t)k) * ZP_PIECE_BYTES;
}

/* Gives one array's part of the i-th piece to its lane; `e` is when that is over. */
static void zp_ring_give(zp_ring *r, size_t i, int k, int writes, zp_lane_event *e) {
    const zp_stop *stop = &r->stop[i % r->stops];
    const zp_transfer t =
        zp_array_piece(&r->array[k], stop->unit, stop->piece, zp_ring_memory(r, i, k), writes);
    zp_lane *lane = zp_disk_lane(t.disk, t.piece);
    if (!writes) zp_lane_wait(lane, &r->written[i % ZP_RING][k]);
    zp_lane_push(lane, zp_disk_task, &t, sizeof t, 0);
    zp_lane_record(lane, e);
}

/* Reads ahead: as many pieces as there are places, but of a round at most all that there are. */
static void zp_ring_fill(zp_ring *r) {
    for (; r->memory && r->asked < r->used + zp_min(ZP_RING, r->stops); r->asked++)
        for (int k = 0; k < ZP_RINGED; k++)
            if (r->array[k].share) zp_ring_give(r, r->asked, k, 0, &r->read[r->asked % ZP_RING][k]);
}

/* The next piece is there: at[k] of each array, NULL where there is none. */
static zero_result zp_ring_open(zp_ring *r, char **at) {
    const double start = zp_seconds();
    zp_ring_fill(r);
    for (int k = 0; k < ZP_RINGED; k++) {
        at[k] = r->array[k].share ? zp_ring_memory(r, r->used, k) : NULL;
        if (at[k]) zp_lane_await(&r->read[r->used % ZP_RING][k]);
    }
    r->wait_s += zp_seconds() - start;
    return zp_failure_result(r->array[ZP_STATE - ZP_MASTER].disk->group->failure);
}

static void zp_ring_close(zp_ring *r) {
    for (int k = 0; k < ZP_RINGED; k++)
        if (r->array[k].share) zp_ring_give(r, r->used, k, 1, &r->written[r->used % ZP_RING][k]);
    r->used++;
    r->array[ZP_STATE - ZP_MASTER].disk->bounced = 0; /* what access by name has read is old */
    zp_ring_fill(r);
}

/* What was read ahead is forgotten: something else has written to the disk. */
static void zp_ring_forget(zp_ring *r) {
    if (!r->memory) return;
    zp_disk_sync(r->array[ZP_STATE - ZP_MASTER].disk);
    r->asked = r->used;
}
