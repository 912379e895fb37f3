/* arrays.h - arrays: what a rank keeps, one number per element, and in which memory

   All arrays share the layout of units and shards. Of each unit an array keeps a part: the whole
   unit, this rank's shard, or nothing; a stage is a row of such shares. A part lies in memory, or
   in the rank's file, where it is read and written by pieces. Access finds all of them by
   zp_array_open, the update by zp_array_at or a ring; collectives by their offsets.

   THE WALK OF ONE ELEMENT, whose shard is this rank's: who writes it, and when
     GRAD    what backward adds to: the host, on the compute stream, between begin and end; cleared
             before. Whole, for as long as the context lives or in a buffer of the pool until its
             reduction has ended
     SUM     f32, where 16-bit gradients of several micro-steps add up: the gradient stream alone
     MEAN    the reduced gradient: the reduce-scatter, on the gradient stream; read by norm and
             update. Part of GRAD where nothing else is written there in between. At stage 0 it is
             gathered over GRAD, which the update reads instead. HOST (beside a GPU), FILE:
             reduced inside the unit's gradient buffer, and sent or written from there
     STATE   the rule's own arrays, f32: the update, on the compute stream, and nobody else
     MASTER  the f32 weight, where parameters are stored in 16 bit: the update
     PARAM   the weight as stored: the update, once all ranks have computed with the old one; then
             gathered from here. SEEN: one piece of memory shows all ranks' shards side by side, a
             rank writes its own alone, and a gather only waits. FILE: read into its place in the
             unit's gather buffer
     NEXT    PARAM's second copy, of what this rank updates, where updates are delayed: the update
             writes it, and it becomes PARAM once all ranks have computed with the old one: by a
             copy, or, in the file, by an exchange of places
   By name, on the compute stream, all but SUM and NEXT are written: between steps, the gradient
   from zero_reduce to zero_step. A checkpoint that is loaded writes NEXT as well. */
#pragma once

#include "../numbers/rules.h"
#include "../offload/file.h"
#include "layout.h"

/* What the host is shown of a unit. [2], here and below, is indexed by side: 0 gradients, 1
   parameters; the channel and the stream of the same number serve it. */
typedef enum zp_side { ZP_GRAD = 0, ZP_PARAM, ZP_SIDES } zp_side;
enum { ZP_MEAN = ZP_SIDES, ZP_SUM, ZP_MASTER, ZP_STATE, ZP_NEXT = ZP_STATE + ZP_STATES, ZP_ARRAYS };
/* What the update of the tier HOST has in place of the gradient, PARAM and a place (see host). */
enum { ZP_DOWN = ZP_ARRAYS, ZP_UP, ZP_DEALT, ZP_ARRAYS_AND_TWINS };
static_assert((int)ZP_GRAD == ZP_GRADIENTS && (int)ZP_PARAM == ZP_PARAMETERS, "a side's channel");

typedef enum zp_share { ZP_NOTHING = 0, ZP_WHOLE, ZP_SHARD, ZP_SEEN } zp_share;

typedef struct zp_array_part { /* of one unit */
    zp_share share;
    zero_tier tier;
    size_t first, numel; /* elements of the unit that are kept */
    size_t at;           /* bytes from the array's memory, or its file's begin, on */
    size_t piece;        /* FILE: the number of its first piece */
} zp_array_part;

typedef struct zp_array {
    zero_type type;
    zp_share share;      /* the usual one; part[u].share is a unit's, and so is the tier */
    zero_tier tier;      /* HOST: MASTER and STATE beside a GPU; elsewhere that is DEVICE */
    zp_array_part *part; /* [units] */
    size_t bytes;        /* of all parts in memory; 0 if they lie in another array */
    char *memory;        /* what parts count from; NULL before the build */
    size_t host_bytes;   /* HOST: of all parts */
    char *host;          /* what they count from */
    zp_file *disk;       /* FILE */
    size_t piece_bytes;  /* FILE: of its largest piece, whole sectors */
    char *bounce;        /* FILE: one piece, for access */
    size_t bounced;      /* which: its number + 1; 0: none */
    uint64_t since;      /* disk->written_bytes then */
} zp_array;

/* A stage: WHOLE or SHARD. State WHOLE (stage 0) needs all WHOLE, since a rank updates what it
   keeps of STATE; plan makes SEEN and NOTHING of SHARD. */
typedef struct zp_policy {
    zp_share state, gradients, parameters; /* state: MASTER too */
    zero_accumulation accumulation;        /* its default */
} zp_policy;

static const zp_policy zp_policies[] = {
    {ZP_WHOLE, ZP_WHOLE, ZP_WHOLE, ZERO_ACCUMULATE_LOCAL},
    {ZP_SHARD, ZP_WHOLE, ZP_WHOLE, ZERO_ACCUMULATE_LOCAL},
    {ZP_SHARD, ZP_SHARD, ZP_WHOLE, ZERO_ACCUMULATE_SHARDED},
    {ZP_SHARD, ZP_SHARD, ZP_SHARD, ZERO_ACCUMULATE_SHARDED},
};
enum { ZP_STAGES = sizeof zp_policies / sizeof *zp_policies };

/* How the micro-steps of a step become one gradient. */
typedef enum zp_adding {
    ZP_IN_PLACE = 0, /* backward adds to what is there; reduced once */
    ZP_COLLECTED,    /* 16 bit: each is added to SUM, whole; reduced once */
    ZP_EACH_REDUCED  /* each is reduced, and added shard by shard */
} zp_adding;

/* Cuts unit u's part: of a memory, from `at` on; returns its end. Of a file the plan says where.
   Elements from `most` on are not kept. */
static size_t zp_array_cut(zp_array *a, int u, const zp_unit *x, zp_share share, zero_tier tier,
                           int rank, size_t at, size_t most) {
    const size_t first = share == ZP_SHARD ? (size_t)rank * x->shard : 0;
    const size_t all = share == ZP_NOTHING ? 0 : share == ZP_SHARD ? x->shard : x->padded;
    const size_t numel = first < most ? zp_min(all, most - first) : 0;
    const zp_array_part made = {share, tier, first, numel, at, 0};
    const size_t bytes = tier == ZERO_DEVICE ? numel * zp_type_bytes(a->type) : 0;
    a->part[u] = made;
    a->bytes += bytes;
    if (tier != ZERO_HOST) return at + bytes;
    a->part[u].at = a->host_bytes;
    a->host_bytes += numel * zp_type_bytes(a->type);
    return at;
}

/* Unit u's part is not in the device's memory. */
static int zp_array_off_device(const zp_array *a, int u) {
    return a->part[u].tier != ZERO_DEVICE && a->part[u].numel;
}
/* Unit u's part is in the file. */
static int zp_array_in_file(const zp_array *a, int u) {
    return a->part[u].tier == ZERO_FILE && a->part[u].numel;
}
static size_t zp_array_pieces(const zp_array *a, int u) {
    return (a->part[u].numel + ZP_PIECE_NUMEL - 1) / ZP_PIECE_NUMEL;
}

/* Piece i of unit u's part. */
static zp_transfer zp_array_piece(const zp_array *a, int u, size_t i, char *memory, int writes) {
    const zp_array_part *x = &a->part[u];
    const size_t n = zp_min(x->numel - i * ZP_PIECE_NUMEL, ZP_PIECE_NUMEL),
                 of = zp_type_bytes(a->type);
    const size_t at = x->at + i * ZP_PIECE_NUMEL * of, bytes = zp_round_up(n * of, ZP_SECTOR);
    const zp_transfer t = {a->disk, memory, at, bytes, x->piece + i, writes, 0};
    return t;
}

/* All of unit u's part at once, between the file and memory on a sector's border, in which whole
   sectors are moved: waits until that is over. */
static zero_result zp_array_move(const zp_array *a, int u, char *memory, int writes) {
    zp_lane_event end[ZP_DISK_LANES] = {{NULL, 0, 0}};
    for (size_t i = 0; i < zp_array_pieces(a, u); i++) {
        const size_t at = i * ZP_PIECE_NUMEL * zp_type_bytes(a->type);
        const zp_transfer t = zp_array_piece(a, u, i, memory + at, writes);
        zp_file_give(&t, &end[t.piece % ZP_DISK_LANES]);
    }
    for (int i = 0; i < ZP_DISK_LANES; i++) zp_file_wait(a->disk, &end[i]);
    return zp_failure_result(a->disk->group->failure);
}

/* Elements from e on that lie behind one another, where the array is kept: at most so many. All
   ranks cut a unit at the same elements, whether they keep them or not. */
static size_t zp_array_contiguous(const zp_array *a, int u, size_t e) {
    const size_t shard = a->part[u].numel;
    if (!zp_array_in_file(a, u)) return SIZE_MAX;
    return ZP_PIECE_NUMEL - (a->part[u].share == ZP_SHARD ? e % shard : e) % ZP_PIECE_NUMEL;
}

/* Element e of unit u, in memory; NULL: the array does not keep it. */
static char *zp_array_at(const zp_array *a, int u, size_t e) {
    const zp_array_part *x = &a->part[u];
    char *memory = x->tier == ZERO_HOST ? a->host : a->memory;
    return e - x->first < x->numel ? memory + x->at + (e - x->first) * zp_type_bytes(a->type)
                                   : NULL;
}

/* OPEN AND CLOSE. Between them element e of unit u and *n elements from there on lie at *p, for
   what stream s runs: as many as were asked for, or fewer where a piece of a file ends; *p is NULL
   if the array keeps nothing of the unit. `wrote`: what lies there is the array's new value, and
   goes to where the array is kept; otherwise it is dropped. Of an array in a file one piece is open
   at a time, which is for access: the update has a way of its own, a ring of them. In memory both
   are no work at all. */
static zero_result zp_array_open(zp_array *a, int u, size_t e, size_t *n, zp_stream *s, char **p) {
    const zp_array_part *x = &a->part[u];
    const size_t at = e - x->first, piece = at / ZP_PIECE_NUMEL;
    zp_file *d = a->disk;
    *p = zp_array_at(a, u, e);
    if (!zp_array_in_file(a, u)) return ZERO_OK;
    *n = zp_min(*n, ZP_PIECE_NUMEL - at % ZP_PIECE_NUMEL);
    *p = a->bounce + at % ZP_PIECE_NUMEL * zp_type_bytes(a->type);
    ZP_TRY(zp_device_sync_stream(s)); /* it may still copy what was open before */
    zp_file_sync(d);                  /* a step may still write */
    if (a->bounced == x->piece + piece + 1 && a->since == d->written_bytes) return ZERO_OK;
    const zp_transfer read = zp_array_piece(a, u, piece, a->bounce, 0);
    a->bounced = 0;
    ZP_TRY(zp_file_move(&read));
    a->bounced = x->piece + piece + 1;
    a->since = d->written_bytes;
    return ZERO_OK;
}
static zero_result zp_array_close(zp_array *a, int u, size_t e, zp_stream *s, int wrote) {
    if (!zp_array_in_file(a, u) || !wrote) return ZERO_OK;
    const size_t piece = (e - a->part[u].first) / ZP_PIECE_NUMEL;
    const zp_transfer write = zp_array_piece(a, u, piece, a->bounce, 1);
    ZP_TRY(zp_device_sync_stream(s));
    ZP_TRY(zp_file_move(&write));
    a->since = a->disk->written_bytes;
    return ZERO_OK;
}

/* Bytes of an array that this rank keeps of unit u. */
static uint64_t zp_array_part_bytes(const zp_array *a, int u) {
    return (uint64_t)a->part[u].numel * zp_type_bytes(a->type);
}

/* The arrays that an update touches, in this order: weights, gradient, MASTER, STATE.. */
enum {
    ZP_UPDATED_PARAM = 0,
    ZP_UPDATED_MEAN,
    ZP_UPDATED_MASTER,
    ZP_UPDATED_ARRAYS = ZP_UPDATED_MASTER + 1 + ZP_STATES
};

/* Bytes of the parts of `units` units that are not on the device, sectors not rounded up. */
static size_t zp_array_bytes_off_device(const zp_array *a, int units) {
    size_t numel = 0;
    for (int u = 0; u < units; u++) numel += a->part[u].tier ? a->part[u].numel : 0;
    return numel * zp_type_bytes(a->type);
}
