/* file_ring.h - pieces of a unit on their way between disk and update (see disk.h)

   The arrays that an update touches, each with places for ZP_RING pieces where some of it is in the
   file. A round is a step's update: as often over all pieces as the rule has passes. All belongs to
   the stream `updates`, or to who has waited for that. */
#pragma once

#include "../core/arrays.h"

/* In this order: PARAM (or NEXT), the gradient, MASTER, STATE.. */
enum {
    ZP_RING_PARAM = 0,
    ZP_RING_MEAN,
    ZP_RING_MASTER,
    ZP_RINGED = ZP_RING_MASTER + 1 + ZP_STATES
};

typedef struct zp_file_ring_stop { /* a piece of a unit */
    int unit;
    size_t piece;
} zp_file_ring_stop;

typedef struct zp_file_ring_array { /* of an array through the ring */
    zp_array *array;
    zp_array *other; /* array and this one take turns: a round reads where the last one wrote, and
                        writes the other; NULL: a round writes where it has read */
    char *memory;    /* [ZP_RING][piece_bytes] NULL: nothing of it is in the file */
    size_t piece_bytes;
    int reads, writes; /* writes: bit by pass */
    size_t asked;      /* stops for which it was asked so far */
    zp_lane_event read[ZP_RING], written[ZP_RING];
} zp_file_ring_array;

typedef struct zp_file_ring {
    zp_file *disk;
    zp_file_ring_array turn[ZP_RINGED];
    zp_file_ring_stop *stop; /* [stops] in the order of updates, pass by pass */
    size_t stops;
    int passes;
    size_t used;  /* stops so far, over all steps: place i % ZP_RING, stop i % stops */
    size_t ready; /* the gradients of the stops before it are in the file */
} zp_file_ring;

static char *zp_file_ring_place(const zp_file_ring_array *t, size_t i) {
    return t->memory + i % ZP_RING * t->piece_bytes;
}
static int zp_file_ring_in_file(const zp_file_ring *r, const zp_file_ring_array *t, size_t i) {
    const zp_file_ring_stop *stop = &r->stop[i % r->stops];
    return t->memory && zp_array_in_file(t->array, stop->unit)
           && stop->piece < zp_array_pieces(t->array, stop->unit);
}
static int zp_file_ring_writes(const zp_file_ring *r, const zp_file_ring_array *t) {
    return t->writes >> r->used % r->stops / (r->stops / (size_t)r->passes) & 1;
}
/* Gives its part of the i-th stop to the lane of the piece. */
static void zp_file_ring_enqueue(const zp_file_ring *r, zp_file_ring_array *t, size_t i,
                                 int writes) {
    const zp_file_ring_stop *stop = &r->stop[i % r->stops];
    const int other = t->other && (i / r->stops + (size_t)writes) % 2 == 0;
    zp_transfer move = zp_array_piece(other ? t->other : t->array, stop->unit, stop->piece,
                                      zp_file_ring_place(t, i), writes);
    move.ahead = !writes;
    if (!writes) zp_lane_wait(zp_file_lane(move.disk, move.piece), &t->written[i % ZP_RING]);
    zp_file_give(&move, writes ? &t->written[i % ZP_RING] : &t->read[i % ZP_RING]);
}

/* Its part of the i-th stop, which was read ahead, is used, or was for nothing. */
static void zp_file_ring_count(const zp_file_ring *r, const zp_file_ring_array *t, size_t i) {
    const zp_file_ring_stop *stop = &r->stop[i % r->stops];
    if (!t->reads || !zp_file_ring_in_file(r, t, i)) return;
    zp_file_count_bytes(r->disk, 0,
                        zp_array_piece(t->array, stop->unit, stop->piece, NULL, 0).bytes);
}

/* Reads ahead: as many pieces as there are places, but at most all that a pass has, which writes
   what the next one reads. */
static void zp_file_ring_fill(zp_file_ring *r) {
    for (int k = 0; k < ZP_RINGED; k++) {
        zp_file_ring_array *t = &r->turn[k];
        const size_t ahead = r->used + zp_min(ZP_RING, r->stops / (size_t)r->passes);
        const size_t most = k == ZP_RING_MEAN ? zp_min(r->ready, ahead) : ahead;
        for (; t->memory && t->asked < most; t->asked++)
            if (t->reads && zp_file_ring_in_file(r, t, t->asked))
                zp_file_ring_enqueue(r, t, t->asked, 0);
    }
}

/* The next stop's pieces are there: at[k] of each array from element e of the unit on; NULL where
   the array keeps nothing. */
static zero_result zp_file_ring_open(zp_file_ring *r, int u, size_t e, size_t n, char **at) {
    zp_file_ring_fill(r);
    for (int k = 0; k < ZP_RINGED; k++) {
        zp_file_ring_array *t = &r->turn[k];
        at[k] = zp_array_at(t->array, u, e);
        if (!zp_file_ring_in_file(r, t, r->used)) continue;
        at[k] = zp_file_ring_place(t, r->used);
        if (t->reads)
            zp_file_wait(r->disk, &t->read[r->used % ZP_RING]);
        else { /* what an update leaves out is padding, and stays zeros */
            zp_file_wait(r->disk, &t->written[r->used % ZP_RING]);
            memset(at[k], 0, n * zp_type_bytes(t->array->type));
        }
        zp_file_ring_count(r, t, r->used);
        ZP_TRY(zp_failure_result(r->disk->group->failure));
    }
    return ZERO_OK;
}

static void zp_file_ring_close(zp_file_ring *r) {
    for (int k = 0; k < ZP_RINGED; k++)
        if (zp_file_ring_writes(r, &r->turn[k]) && zp_file_ring_in_file(r, &r->turn[k], r->used))
            zp_file_ring_enqueue(r, &r->turn[k], r->used, 1);
    r->used++;
    zp_file_ring_fill(r);
}

/* What was read ahead is forgotten: something else has written to the disk. */
static void zp_file_ring_forget(zp_file_ring *r) {
    if (!r->stops) return;
    zp_file_sync(r->disk);
    for (zp_file_ring_array *t = r->turn; t < r->turn + ZP_RINGED; t++)
        for (; t->asked > r->used; t->asked--) zp_file_ring_count(r, t, t->asked - 1);
}
