/* memory.h - arrays: what a rank keeps, one number per element, and in which memory

   All arrays share the layout of units and shards. Of each unit an array keeps a part: the whole
   unit, this rank's shard, or nothing; a stage is a row of such shares. What
   computes finds MASTER and STATE by zp_array_open alone; GRAD, MEAN, SUM and PARAM also by their
   offsets, which collectives need.

   THE WALK OF ONE ELEMENT, whose shard is this rank's: who writes it, and when
     GRAD    what backward adds to: the host, on the compute stream, between begin and end; cleared
             before. Whole, for as long as the context lives or in a buffer of the pool until its
             reduction has ended
     SUM     f32, where 16-bit gradients of several micro-steps add up: the gradient stream alone
     MEAN    the reduced gradient: the reduce-scatter, on the gradient stream; read by norm and
             update. Part of GRAD where nothing else is written there in between. At stage 0 it is
             gathered over GRAD, which the update reads instead
     STATE   the rule's own arrays, f32: the update, on the compute stream, and nobody else
     MASTER  the f32 weight, where parameters are stored in 16 bit: the update
     PARAM   the weight as stored: the update, once all ranks have computed with the old one; then
             gathered from here. SEEN: one piece of memory shows all ranks' shards side by side, a
             rank writes its own alone, and a gather only waits
   By name, on the compute stream, all but SUM are written: between steps, the gradient from
   zero_reduce to zero_step. */
#pragma once

#include "rules.h"
#include "disk.h"
#include "layout.h"

/* What the host is shown of a unit. [2], here and below, is indexed by side: 0 gradients, 1
   parameters; the channel and the stream of the same number serve it. */
typedef enum zp_side { ZP_GRAD = 0, ZP_PARAM, ZP_SIDES } zp_side;
enum { ZP_MEAN = ZP_SIDES, ZP_SUM, ZP_MASTER, ZP_STATE, ZP_ARRAYS = ZP_STATE + ZP_STATES };
static_assert((int)ZP_GRAD == ZP_GRADIENTS && (int)ZP_PARAM == ZP_PARAMETERS, "a side's channel");

typedef enum zp_share { ZP_NOTHING = 0, ZP_WHOLE, ZP_SHARD, ZP_SEEN } zp_share;

typedef struct zp_kept { /* of one unit */
    zp_share share;
    size_t first, numel; /* elements of the unit that are kept */
    size_t at;           /* bytes from the array's memory, or its file's begin, on */
    size_t piece;        /* FILE: the number of its first piece */
} zp_kept;

typedef struct zp_array {
    zero_type type;
    zp_share share; /* the usual one; part[u].share is a unit's */
    zero_tier tier; /* HOST is DEVICE here */
    zp_kept *part;  /* [units] */
    size_t bytes;   /* of all parts; 0 if they lie in another array */
    char *memory;   /* what parts count from; NULL before the build */
    zp_disk *disk;  /* FILE */
} zp_array;

/* A stage: WHOLE or SHARD. State WHOLE (stage 0) needs all WHOLE, since a rank updates what it
   keeps of STATE; plan makes SEEN and NOTHING of SHARD. */
typedef struct zp_policy {
    zp_share state, gradients, parameters; /* state: MASTER too */
    zero_accumulation accumulation;        /* its default */
} zp_policy;

static const zp_policy zp_policies[4] = {
    {ZP_WHOLE, ZP_WHOLE, ZP_WHOLE, ZERO_ACCUMULATE_LOCAL},
    {ZP_SHARD, ZP_WHOLE, ZP_WHOLE, ZERO_ACCUMULATE_LOCAL},
    {ZP_SHARD, ZP_SHARD, ZP_WHOLE, ZERO_ACCUMULATE_SHARDED},
    {ZP_SHARD, ZP_SHARD, ZP_SHARD, ZERO_ACCUMULATE_SHARDED},
};

/* How the micro-steps of a step become one gradient. */
typedef enum zp_adding {
    ZP_IN_PLACE = 0, /* backward adds to what is there; reduced once */
    ZP_COLLECTED,    /* 16 bit: each is added to SUM, whole; reduced once */
    ZP_EACH_REDUCED  /* each is reduced, and added shard by shard */
} zp_adding;

/* Cuts unit u's part from a memory, from `at` on; returns its end. */
static size_t zp_array_cut(zp_array *a, int u, const zp_unit *x, zp_share share, int rank,
                           size_t at) {
    const size_t numel = share == ZP_NOTHING ? 0 : share == ZP_SHARD ? x->shard : x->padded;
    const zp_kept made = {share, share == ZP_SHARD ? (size_t)rank * x->shard : 0, numel, at, 0};
    a->part[u] = made;
    a->bytes += numel * zp_bytes(a->type);
    return at + numel * zp_bytes(a->type);
}

/* Piece i of unit u's part: FILE. */
static zp_transfer zp_array_piece(const zp_array *a, int u, size_t i, char *memory, int writes) {
    const zp_kept *x = &a->part[u];
    const size_t bytes = zp_min(x->numel * zp_bytes(a->type) - i * ZP_PIECE_BYTES, ZP_PIECE_BYTES);
    const zp_transfer t = {
        a->disk,      memory, x->at + i * ZP_PIECE_BYTES, zp_round_up(bytes, ZP_SECTOR),
        x->piece + i, writes};
    return t;
}

/* Elements from e on that lie behind one another, where the array is kept: at most so many. All
   ranks cut a unit at the same elements, whether they keep them or not. */
static size_t zp_array_ahead(const zp_array *a, int u, size_t e) {
    const size_t of = ZP_PIECE_BYTES / zp_bytes(a->type), shard = a->part[u].numel;
    if (a->tier != ZERO_FILE || !shard) return SIZE_MAX;
    return of - (a->part[u].share == ZP_SHARD ? e % shard : e) % of;
}

/* OPEN AND CLOSE. Between them element e of unit u and *n elements from there on lie at *p, for
   what stream s runs: as many as were asked for, or fewer where a piece of a file ends; *p is NULL
   if the array keeps nothing of the unit. `wrote`: what lies there is the array's new value, and
   goes to where the array is kept; otherwise it is dropped. Of a disk, one piece is open at a time:
   the optimizer's step has a way of its own, a ring of them. On DEVICE both are no work at all. */
static zero_result zp_array_open(const zp_array *a, int u, size_t e, size_t *n, zp_stream *s,
                                 char **p) {
    const zp_kept *x = &a->part[u];
    const size_t at = (e - x->first) * zp_bytes(a->type), piece = at / ZP_PIECE_BYTES;
    *p = x->numel ? a->memory + x->at + at : NULL;
    if (!x->numel || !a->disk) return ZERO_OK;
    zp_disk *d = a->disk;
    *n = zp_min(*n, (ZP_PIECE_BYTES - at % ZP_PIECE_BYTES) / zp_bytes(a->type));
    *p = d->bounce + at % ZP_PIECE_BYTES;
    if (d->bounced == x->piece + piece + 1) return ZERO_OK;
    const zp_transfer read = zp_array_piece(a, u, piece, d->bounce, 0);
    d->bounced = 0;
    zp_disk_sync(d); /* a step may still write */
    ZP_TRY(zp_disk_move(&read));
    d->bounced = x->piece + piece + 1;
    return ZERO_OK;
}
static zero_result zp_array_close(const zp_array *a, int u, size_t e, zp_stream *s, int wrote) {
    if (!a->disk || !wrote || !a->part[u].numel) return ZERO_OK;
    const size_t piece = (e - a->part[u].first) * zp_bytes(a->type) / ZP_PIECE_BYTES;
    const zp_transfer write = zp_array_piece(a, u, piece, a->disk->bounce, 1);
    ZP_TRY(zp_stream_sync(s));
    return zp_disk_move(&write);
}
