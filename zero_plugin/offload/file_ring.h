/* file_ring.h - pieces of units on their way between file and update (see file.h)

   The ring has the arrays that an update reads and writes. An array with parts in the file has
   places for ZP_RING pieces. A round is one step's update: all pieces, once for each pass of the
   rule. The stream `updates` owns all of it. Other threads wait for that stream first. */
#pragma once

#include "file.h"

typedef struct zp_file_ring_stop { /* one piece of one unit */
    int unit;
    size_t piece;
} zp_file_ring_stop;

typedef struct zp_file_ring_array { /* an array in the ring */
    zp_array *array;
    zp_array *other; /* a round reads the array that the last round wrote, and writes the other one;
                        NULL: a round writes where it reads */
    int reads, writes; /* one bit for each pass */
    size_t asked;      /* stops whose reads were enqueued so far */
    zp_lane_event read[ZP_RING], written[ZP_RING];
} zp_file_ring_array;

typedef struct zp_file_ring {
    zp_file_ring_array list[ZP_UPDATED_ARRAYS];
    zp_file_ring_stop *stop; /* [stops] in the order of updates, pass by pass */
    size_t stops;
    int passes;
    size_t used;  /* stops so far, over all steps: place i % ZP_RING, stop i % stops */
    size_t ready; /* the file has the gradients of all stops before it */
} zp_file_ring;

/* Sets *move to the transfer of t's part of stop i. Returns 0 if the file has no such part. */
static int zp_file_ring_find(const zp_file_ring *r, const zp_file_ring_array *t, size_t i,
                             int writes, zp_transfer *move) {
    const zp_file_ring_stop *stop = &r->stop[i % r->stops];
    const int other = t->other && (i / r->stops + (size_t)writes) % 2 == 0;
    const zp_array *a = other ? t->other : t->array;
    if (!zp_file_has(a, stop->unit) || stop->piece >= zp_file_pieces(a, stop->unit)) return 0;
    char *place = t->array->filed->places + (1 + i % ZP_RING) * t->array->filed->piece_bytes;
    *move = zp_file_piece(a, stop->unit, stop->piece, place, writes);
    move->ahead = !writes;
    return 1;
}
/* Enqueues that transfer on the lane of the piece. */
static void zp_file_ring_enqueue(const zp_file_ring *r, zp_file_ring_array *t, size_t i,
                                 int writes) {
    zp_transfer move;
    if (!zp_file_ring_find(r, t, i, writes, &move)) return;
    if (!writes) zp_lane_wait(zp_file_lane(move.file, move.piece), &t->written[i % ZP_RING]);
    zp_file_give(&move, writes ? &t->written[i % ZP_RING] : &t->read[i % ZP_RING]);
}

/* Reads ahead as many pieces as the ring has places, but at most one pass: a pass writes the pieces
   that the next one reads. */
static void zp_file_ring_fill(zp_file_ring *r) {
    const size_t ahead = r->used + zp_min(ZP_RING, r->stops / (size_t)r->passes);
    for (int k = 0; k < ZP_UPDATED_ARRAYS; k++) {
        zp_file_ring_array *t = &r->list[k];
        const size_t most = k == ZP_UPDATED_MEAN ? zp_min(r->ready, ahead) : ahead;
        for (; t->asked < most; t->asked++)
            if (t->reads) zp_file_ring_enqueue(r, t, t->asked, 0);
    }
}

/* Waits for the pieces of the next stop. Sets at[k] to each array's memory, from element e of the
   unit on, or to NULL if the array keeps nothing. */
static zero_result zp_file_ring_open(zp_file_ring *r, int u, size_t e, size_t n, char **at) {
    zp_file_ring_fill(r);
    for (int k = 0; k < ZP_UPDATED_ARRAYS; k++) {
        zp_file_ring_array *t = &r->list[k];
        zp_transfer move;
        at[k] = zp_array_at(t->array, u, e);
        if (!zp_file_ring_find(r, t, r->used, 0, &move)) continue;
        at[k] = move.memory;
        zp_file_wait(move.file,
                     t->reads ? &t->read[r->used % ZP_RING] : &t->written[r->used % ZP_RING]);
        if (t->reads)
            zp_file_count_bytes(move.file, 0, move.bytes);
        else /* an update leaves padding unwritten: it stays zeros */
            memset(at[k], 0, zp_type_array_bytes(t->array->part[u].type, n));
        ZP_TRY(zp_failure_result(move.file->group->failure));
    }
    return ZERO_OK;
}

static void zp_file_ring_close(zp_file_ring *r) {
    const size_t pass = r->used % r->stops / (r->stops / (size_t)r->passes);
    for (zp_file_ring_array *t = r->list; t < r->list + ZP_UPDATED_ARRAYS; t++)
        if (t->writes >> pass & 1) zp_file_ring_enqueue(r, t, r->used, 1);
    r->used++;
    zp_file_ring_fill(r);
}

/* Drops pieces that were read ahead, because other code wrote to the file. The file's lanes are
   idle. The pieces were read, so they count. */
static void zp_file_ring_forget(zp_file_ring *r) {
    zp_transfer move;
    for (zp_file_ring_array *t = r->list; t < r->list + ZP_UPDATED_ARRAYS; t++)
        for (; t->asked > r->used; t->asked--)
            if (t->reads && zp_file_ring_find(r, t, t->asked - 1, 0, &move))
                zp_file_count_bytes(move.file, 0, move.bytes);
}
