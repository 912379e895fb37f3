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
#include "layout.h"

/* What the host is shown of a unit. [2], here and below, is indexed by side: 0 gradients, 1
   parameters; the channel and the stream of the same number serve it. */
typedef enum zp_side { ZP_GRAD = 0, ZP_PARAM, ZP_SIDES } zp_side;
enum { ZP_MEAN = ZP_SIDES, ZP_SUM, ZP_MASTER, ZP_STATE, ZP_ARRAYS = ZP_STATE + ZP_STATES };
static_assert((int)ZP_GRAD == ZP_GRADIENTS && (int)ZP_PARAM == ZP_PARAMETERS, "a side's channel");

typedef enum zp_share { ZP_NOTHING = 0, ZP_WHOLE, ZP_SHARD, ZP_SEEN } zp_share;
typedef enum zp_tier { ZP_DEVICE = 0 } zp_tier;

typedef struct zp_kept { /* of one unit */
    zp_share share;
    size_t first, numel; /* elements of the unit that are kept */
    size_t at;           /* bytes from the array's memory on */
} zp_kept;

typedef struct zp_array {
    zero_type type;
    zp_share share; /* the usual one; part[u].share is a unit's */
    zp_tier tier;
    zp_kept *part; /* [units] */
    size_t bytes;  /* of all parts; 0 if they lie in another array */
    char *memory;  /* what parts count from; NULL before the build */
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
    const zp_kept made = {share, share == ZP_SHARD ? (size_t)rank * x->shard : 0, numel, at};
    a->part[u] = made;
    a->bytes += numel * zp_bytes(a->type);
    return at + numel * zp_bytes(a->type);
}

/* OPEN AND CLOSE. Between them element e of unit u and what follows it in this rank's part lie at
   *p, for what stream s runs; *p is NULL if the array keeps nothing of the unit. `wrote`: what lies
   there is the array's new value, and goes to where the array is kept; otherwise it is dropped.
   Nothing waits here: a tier that copies enqueues it on s. Of an array, one part is open at a time.
   On DEVICE both are no work at all. */
static zero_result zp_array_open(const zp_array *a, int u, size_t e, zp_stream *s, char **p) {
    const zp_kept *x = &a->part[u];
    *p = x->numel ? a->memory + x->at + (e - x->first) * zp_bytes(a->type) : NULL;
    return ZERO_OK;
}
static zero_result zp_array_close(const zp_array *a, int u, zp_stream *s, int wrote) {
    return ZERO_OK;
}
