/* arrays.h - the numbers that a rank keeps for each element, and their memory

   All arrays share the layout of units and shards. An array keeps a part of each unit: the whole
   unit, this rank's shard, or nothing. A stage is a row of such shares. A tier keeps each part: the
   device's memory, or one that a row adds (ZERO_HOST, ZERO_FILE). Access by name uses
   zp_array_open, the update of units on the device uses zp_array_at, and collectives use offsets.

   THE ARRAYS OF ONE ELEMENT in this rank's shard, with their writers
     GRAD    Your code's backward adds to it, on the compute stream, between begin and end. The
             plugin clears it before. It is whole. It lives as long as the context, or is in a
             buffer of the pool until its reduction has ended
     SUM     f32. The gradient stream adds 16-bit gradients of several micro-steps to it
     MEAN    the reduced gradient. The reduce-scatter writes it on the gradient stream; norm and
             update read it. It is part of GRAD if nothing else is written there in between. At
             stage 0 it is gathered over GRAD, which the update reads instead. HOST (with a GPU)
             and FILE: it is reduced inside the unit's gradient buffer, then copied away
     STATE   the rule's own arrays, in f32, or in a form of a row. Only the update writes it, on the
             compute stream. Access by name converts
     MASTER  the f32 weight, if parameters are stored in 16 bits. The update writes it. If weights
             are split, its lower half (ZP_LOW): PARAM, or NEXT, has the upper one
     PARAM   the weight as stored. The update writes it after all ranks have computed with the old
             one; gathers read it. SEEN: one mapping shows the shards of all ranks, a rank writes
             only its own, and a gather only waits. FILE: it is read into the unit's gather buffer
     NEXT    the second copy of this rank's part of PARAM, if updates overlap with the next step.
             The update writes it. It becomes PARAM after all ranks have computed with the old one:
             by a copy, or by an exchange of places
   Writes by name use the compute stream, between steps, and reach all arrays except SUM and NEXT;
   the gradient from zero_reduce to zero_step. Loading a checkpoint also writes NEXT. */
#pragma once

#include "../numbers/rules.h"
#include "layout.h"

/* The two arrays of a unit that your code uses. A length [2], here and below, means an index by
   side: 0 gradients, 1 parameters. The channel and the stream have the same number. */
typedef enum zp_side { ZP_GRAD = 0, ZP_PARAM, ZP_SIDES } zp_side;
enum { ZP_MEAN = ZP_SIDES, ZP_SUM, ZP_MASTER, ZP_STATE, ZP_NEXT = ZP_STATE + ZP_STATES, ZP_ARRAYS };
static_assert((int)ZP_GRAD == ZP_GRADIENTS && (int)ZP_PARAM == ZP_PARAMETERS, "a side's channel");

typedef enum zp_share { ZP_NOTHING = 0, ZP_WHOLE, ZP_SHARD, ZP_SEEN } zp_share;

typedef struct zp_array_part { /* the part of one segment of a unit */
    zero_type type;
    zp_share share;
    zero_tier tier;
    size_t first, numel; /* the elements of the unit that this rank keeps */
    size_t at;           /* byte offset in the tier's memory or file */
    size_t piece;        /* FILE: the number of its first piece */
} zp_array_part;

typedef struct zp_array zp_array;

/* How a tier keeps parts of arrays. The core has the row of DEVICE. */
typedef struct zp_tier {
    size_t align;       /* of the address and length of transfers, in bytes; 0: any */
    size_t piece_numel; /* adjacent elements that an access reaches; 0: the whole part */
    /* Access to a range: see zp_array_open. NULL: the part is in memory. */
    zero_result (*open_range)(zp_array *a, int u, size_t e, size_t *n, zp_stream *s, char **p);
    zero_result (*close_range)(zp_array *a, int u, size_t e, zp_stream *s);
    /* Converts n values of an open range. NULL: a kernel does. */
    zero_result (*convert)(zero_ctx *z, const zp_kernel_convert_args *args, size_t n);
} zp_tier;
static const zp_tier zp_array_tiers[ZERO_TIERS] = {{0, 0, NULL, NULL, NULL}};

struct zp_array {
    zero_type type; /* the default, as is share; part[u] has the unit's, and its tier */
    int squares;    /* it has averages of squares */
    zp_share share;
    zero_tier tier;       /* HOST: MASTER and STATE of a run on a GPU; on the CPU, DEVICE */
    const zp_tier *tiers; /* [ZERO_TIERS] */
    zp_array_part *part;  /* [layout.segments] */
    size_t bytes;         /* of all parts on the device; 0 if they are inside another array */
    char *memory;         /* DEVICE: origin of the parts' offsets; NULL before the build */
    char *host;           /* HOST: the same */
    struct zp_file_array *filed; /* FILE: the data that this tier has about the array */
};

/* A stage: WHOLE or SHARD. If state is WHOLE (stage 0), all are, because a rank updates the part of
   STATE that it keeps. The plan replaces some SHARD by SEEN or NOTHING. */
typedef struct zp_policy {
    zp_share state, gradients, parameters; /* state: and MASTER */
    zero_accumulation accumulation;        /* the stage's default */
} zp_policy;

static const zp_policy zp_policies[] = {
    {ZP_WHOLE, ZP_WHOLE, ZP_WHOLE, ZERO_ACCUMULATE_LOCAL},
    {ZP_SHARD, ZP_WHOLE, ZP_WHOLE, ZERO_ACCUMULATE_LOCAL},
    {ZP_SHARD, ZP_SHARD, ZP_WHOLE, ZERO_ACCUMULATE_SHARDED},
    {ZP_SHARD, ZP_SHARD, ZP_SHARD, ZERO_ACCUMULATE_SHARDED},
};
enum { ZP_STAGES = sizeof zp_policies / sizeof *zp_policies };

/* How a rank keeps the f32 form of 16-bit weights, by cfg.master. */
typedef struct zp_master {
    int keeps;              /* 1: the array MASTER has it, or its lower halves */
    zero_type type;         /* of MASTER */
    zp_rounding rounding;   /* of weights to 16 bits */
    const char *bf16_alone; /* the error for other types; NULL: every type has it */
    const char *part;       /* the row that rounds weights so; NULL: the core does */
} zp_master;

static const zp_master zp_masters[ZERO_MASTERS] = {
    {1, ZERO_F32, ZP_NEAREST, NULL, NULL}, /* AUTO: SPLIT or F32 */
    {1, ZERO_F32, ZP_NEAREST, NULL, NULL},
    {1, ZP_LOW, ZP_HALF_UP,
     "master is SPLIT: a BF16 weight is the upper half of an f32. F16 has an exponent of its own, "
     "and F32 weights are their own masters",
     NULL},
    {0, ZERO_F32, ZP_STOCHASTIC, "master is NONE: weights can do without an f32 copy in BF16 alone",
     "compact"}};

/* How the micro-steps of a step become one gradient. */
typedef enum zp_adding {
    ZP_IN_PLACE = 0, /* backward adds to the same gradient, which is reduced once */
    ZP_COLLECTED,    /* 16 bits: each whole gradient is added to SUM, which is reduced once */
    ZP_EACH_REDUCED  /* each is reduced, and added shard by shard */
} zp_adding;

/* Cuts unit u's part, of x's type, share and tier, from device memory at offset `at`, and returns
   its end. The row of another tier sets the offset there. Elements from `most` on are not kept. */
static size_t zp_array_cut(zp_array *a, int u, const zp_unit *unit, zp_array_part x, int rank,
                           size_t at, size_t most) {
    const size_t all = x.share == ZP_NOTHING ? 0 : x.share == ZP_SHARD ? unit->shard : unit->padded;
    x.first = x.share == ZP_SHARD ? (size_t)rank * unit->shard : 0;
    x.numel = x.first < most ? zp_min(all, most - x.first) : 0;
    x.at = at;
    a->part[u] = x;
    const size_t end = at + (x.tier == ZERO_DEVICE ? zp_type_array_bytes(x.type, x.numel) : 0);
    a->bytes += end - at;
    return end;
}

/* Returns 1 if unit u's part is not in device memory. */
static int zp_array_off_device(const zp_array *a, int u) {
    return a->part[u].tier != ZERO_DEVICE && a->part[u].numel;
}
/* Returns the tier that keeps unit u's part. */
static const zp_tier *zp_array_tier(const zp_array *a, int u) { return &a->tiers[a->part[u].tier]; }

/* Returns the address of element e of unit u, or of its block of codes; NULL: this rank does not
   keep it. */
static char *zp_array_at(const zp_array *a, int u, size_t e) {
    const zp_array_part *x = &a->part[u];
    char *memory = x->tier == ZERO_HOST ? a->host : a->memory;
    return e - x->first < x->numel ? memory + x->at + zp_type_array_bytes(x->type, e - x->first)
                                   : NULL;
}

/* OPEN AND CLOSE. Between them, *n elements of unit u from e on are at *p, for work on stream s. *n
   gets smaller where a piece of a file ends. *p is NULL if the array keeps nothing of the unit.
   With `wrote`, close stores the new values in the array; otherwise it drops them. An array in a
   file has one open piece at a time. For an array in memory, both functions do nothing. */
static zero_result zp_array_open(zp_array *a, int u, size_t e, size_t *n, zp_stream *s, char **p) {
    const zp_tier *t = zp_array_tier(a, u);
    *p = zp_array_at(a, u, e);
    return t->open_range && a->part[u].numel ? t->open_range(a, u, e, n, s, p) : ZERO_OK;
}
static zero_result zp_array_close(zp_array *a, int u, size_t e, zp_stream *s, int wrote) {
    const zp_tier *t = zp_array_tier(a, u);
    return t->close_range && a->part[u].numel && wrote ? t->close_range(a, u, e, s) : ZERO_OK;
}

/* Returns the bytes that this rank keeps of unit u in an array. */
static uint64_t zp_array_part_bytes(const zp_array *a, int u) {
    return zp_type_array_bytes(a->part[u].type, a->part[u].numel);
}

/* The arrays that an update touches, in this order: weights, gradient, MASTER, STATE.. */
enum {
    ZP_UPDATED_PARAM = 0,
    ZP_UPDATED_MEAN,
    ZP_UPDATED_MASTER,
    ZP_UPDATED_ARRAYS = ZP_UPDATED_MASTER + 1 + ZP_STATES
};

/* Returns the unpadded bytes of all parts of units 0..units - 1 that are off the device. */
static size_t zp_array_bytes_off_device(const zp_array *a, int units) {
    size_t numel = 0;
    for (int u = 0; u < units; u++) numel += a->part[u].tier ? a->part[u].numel : 0;
    return zp_type_array_bytes(a->type, numel);
}
