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
    char *memory;    /* [ZP_RING][piece_bytes] NULL: no part is in the file */
    size_t piece_bytes;
    int reads, writes; /* writes: one bit for each pass */
    size_t asked;      /* stops whose reads were enqueued so far */
    zp_lane_event read[ZP_RING], written[ZP_RING];
} zp_file_ring_array;

typedef struct zp_file_ring {
    zp_file *file;
    zp_file_ring_array list[ZP_UPDATED_ARRAYS];
    zp_file_ring_stop *stop; /* [stops] in the order of updates, pass by pass */
    size_t stops;
    int passes;
    size_t used;  /* stops so far, over all steps: place i % ZP_RING, stop i % stops */
    size_t ready; /* the file has the gradients of all stops before it */
} zp_file_ring;

static char *zp_file_ring_place(const zp_file_ring_array *t, size_t i) {
    return t->memory + i % ZP_RING * t->piece_bytes;
}
static int zp_file_ring_in_file(const zp_file_ring *r, const zp_file_ring_array *t, size_t i) {
    const zp_file_ring_stop *stop = &r->stop[i % r->stops];
    return t->memory && zp_file_has(t->array, stop->unit)
           && stop->piece < zp_file_pieces(t->array, stop->unit);
}
static int zp_file_ring_writes(const zp_file_ring *r, const zp_file_ring_array *t) {
    return t->writes >> r->used % r->stops / (r->stops / (size_t)r->passes) & 1;
}
/* Enqueues the transfer of its part of stop i on the lane of the piece. */
static void zp_file_ring_enqueue(const zp_file_ring *r, zp_file_ring_array *t, size_t i,
                                 int writes) {
    const zp_file_ring_stop *stop = &r->stop[i % r->stops];
    const int other = t->other && (i / r->stops + (size_t)writes) % 2 == 0;
    zp_transfer move = zp_file_piece(other ? t->other : t->array, stop->unit, stop->piece,
                                     zp_file_ring_place(t, i), writes);
    move.ahead = !writes;
    if (!writes) zp_lane_wait(zp_file_lane(move.file, move.piece), &t->written[i % ZP_RING]);
    zp_file_give(&move, writes ? &t->written[i % ZP_RING] : &t->read[i % ZP_RING]);
}

/* Counts its part of stop i, which was read ahead and is now used or dropped. */
static void zp_file_ring_count(const zp_file_ring *r, const zp_file_ring_array *t, size_t i) {
    const zp_file_ring_stop *stop = &r->stop[i % r->stops];
    if (!t->reads || !zp_file_ring_in_file(r, t, i)) return;
    zp_file_count_bytes(r->file, 0,
                        zp_file_piece(t->array, stop->unit, stop->piece, NULL, 0).bytes);
}

/* Reads ahead as many pieces as the ring has places, but at most one pass: a pass writes the pieces
   that the next one reads. */
static void zp_file_ring_fill(zp_file_ring *r) {
    for (int k = 0; k < ZP_UPDATED_ARRAYS; k++) {
        zp_file_ring_array *t = &r->list[k];
        const size_t ahead = r->used + zp_min(ZP_RING, r->stops / (size_t)r->passes);
        const size_t most = k == ZP_UPDATED_MEAN ? zp_min(r->ready, ahead) : ahead;
        for (; t->memory && t->asked < most; t->asked++)
            if (t->reads && zp_file_ring_in_file(r, t, t->asked))
                zp_file_ring_enqueue(r, t, t->asked, 0);
    }
}

/* Waits for the pieces of the next stop. Sets at[k] to each array's memory, from element e of the
   unit on, or to NULL if the array keeps nothing. */
static zero_result zp_file_ring_open(zp_file_ring *r, int u, size_t e, size_t n, char **at) {
    zp_file_ring_fill(r);
    for (int k = 0; k < ZP_UPDATED_ARRAYS; k++) {
        zp_file_ring_array *t = &r->list[k];
        at[k] = zp_array_at(t->array, u, e);
        if (!zp_file_ring_in_file(r, t, r->used)) continue;
        at[k] = zp_file_ring_place(t, r->used);
        if (t->reads)
            zp_file_wait(r->file, &t->read[r->used % ZP_RING]);
        else { /* an update leaves padding unwritten: it stays zeros */
            zp_file_wait(r->file, &t->written[r->used % ZP_RING]);
            memset(at[k], 0, n * zp_type_bytes(t->array->type));
        }
        zp_file_ring_count(r, t, r->used);
        ZP_TRY(zp_failure_result(r->file->group->failure));
    }
    return ZERO_OK;
}

static void zp_file_ring_close(zp_file_ring *r) {
    for (int k = 0; k < ZP_UPDATED_ARRAYS; k++)
        if (zp_file_ring_writes(r, &r->list[k]) && zp_file_ring_in_file(r, &r->list[k], r->used))
            zp_file_ring_enqueue(r, &r->list[k], r->used, 1);
    r->used++;
    zp_file_ring_fill(r);
}

/* Drops pieces that were read ahead, because other code wrote to the file. */
static void zp_file_ring_forget(zp_file_ring *r) {
    if (!r->stops) return;
    zp_file_sync(r->file);
    for (zp_file_ring_array *t = r->list; t < r->list + ZP_UPDATED_ARRAYS; t++)
        for (; t->asked > r->used; t->asked--) zp_file_ring_count(r, t, t->asked - 1);
}
