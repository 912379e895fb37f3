/* offload.h - what offload keeps of a context, and the rows of the tiers HOST and FILE

   PIECES ON THEIR WAY. State of another tier passes through a few places in memory. A place is
   filled with a piece, used, emptied, and then filled with a later piece:
     file                filled by           used by                        emptied by
     file_ring.h         a lane of the file  an update on a CPU             the same lane
     transfers.h         a lane of the file  an addition on a CPU           nothing
     gpu_update.h        the stream `up`     an update, or an addition, on  the stream `down`, or
                                             a GPU                          nothing
     offload_gpu.h       a lane of the file  a copy up to the GPU           nothing
                         a copy down         nothing                        a lane of the file
   Each has its own few lines, because the one that waits differs. In the first two, a CPU thread
   waits for the event of a lane. In the third, a stream waits for the event of a stream. In the
   last, a stream and a lane wait for each other, which needs gates. */
#pragma once

#include "../core/step.h"
#include "file_ring.h"

/* One unit. */
typedef struct zp_offload_unit {
    int rounds;         /* number of the ring's updates of the unit, modulo 2 */
    int exchanged;      /* delayed, FILE: NEXT and PARAM have exchanged places */
    int old_next;       /* delayed, in memory: PARAM was written by name, NEXT is older; 0 while an
                           update is pending */
    zp_event spent;     /* delayed: its update has ended and reads the gradient no more */
    zp_lane_event task; /* state off the GPU: its update has ended, for lanes */
} zp_offload_unit;

/* Arrays in host memory for the CPU's update of a run on a GPU; see cpu_update.h. */
enum { ZP_DOWN = 0, ZP_UP, ZP_DIRECTIONS, ZP_TWINS };

enum { ZP_STAGED = ZP_RING / 2 }; /* pieces of a half of the staging memory; see offload_gpu.h */
enum { ZP_GPU_PLACES = 4 }; /* pieces of state that are on the GPU at once; see gpu_update.h */
#define ZP_GPU_UPDATE_NUMEL (8 * ZP_PIECE_NUMEL) /* the most elements of such a piece */

/* Transfers between the file and a buffer. ADD: to what is in the buffer. */
typedef enum zp_transfer_kind { ZP_FETCH_PARAM, ZP_WRITE_MEAN, ZP_ADD_MEAN } zp_transfer_kind;

typedef struct zp_offload {
    zp_offload_unit *unit; /* [units], layout.segments */
    int units;

    zp_file file; /* this rank's file, for arrays of the tier FILE */
    zp_file_array filed[ZP_ARRAYS];
    size_t file_pieces; /* number of pieces in the file */
    zp_file_ring ring;

    int cpu_updates;         /* a run on a GPU: the CPU updates the units with `on_updates` */
    int gpu_updates;         /* a run on a GPU, HOST: the GPU updates; see gpu_update.h */
    zp_array twin[ZP_TWINS]; /* DOWN, UP and DIRECTIONS */
    zp_array_part *parts;    /* [ZP_TWINS * layout.segments] */
    char *memory[2];         /* host memory: plain, pinned; NULL before the build */
    size_t bytes[2];         /* its bytes, which zp_offload_plan_cut counts */
    char *staging[ZP_SIDES]; /* pinned [2][ZP_STAGED] pieces, if the side's shards are in FILE */
    char *places;            /* on the device: for pieces of all arrays, or of gradient sums */
    size_t nplaces, place_numel, places_bytes; /* their number; elements of one; bytes of all */
    zp_control *control;                       /* pinned: the decision that the updates read */
    zp_span *spans;    /* host copy of zero_ctx.spans; NULL: the CPU can read those */
    zp_limb *sums;     /* NORMS, pinned: sums of the part that the CPU updates */
    double *trust;     /* NORMS, pinned: the ratios */
    size_t sums_bytes; /* of `sums` */
    int stale;         /* bits ZP_GRAD and ZP_PARAM: DOWN or UP must be copied down again */
    uint64_t down_bytes, up_bytes; /* copied over the link so far */
    struct zp_offload_gpu *gpu;    /* streams, events and lanes of a run on a GPU; else NULL */

    /* Functions of this build; offload_gpu.h replaces them. The updater of units with `on_updates`.
       Moves a shard between the file and a buffer. Makes the new weights of a unit those that
       passes use. */
    const zp_updater *updater;
    zero_result (*move)(zero_ctx *z, int u, zp_transfer_kind kind, char *memory);
    zero_result (*replace)(zero_ctx *z, int u);
} zp_offload;

/* Returns 1 if every reduced gradient moves to its tier, where several micro-steps add up. */
static int zp_offload_mean_leaves(const zero_ctx *z, int u) {
    return zp_array_off_device(&z->array[ZP_MEAN], u) && !z->array[ZP_SUM].share;
}
/* Returns the bytes of a place on the GPU for pieces of array k, of any unit. */
static size_t zp_offload_place_bytes(const zero_ctx *z, int k) {
    size_t most = 0;
    for (int u = 0; u < z->layout.all; u++)
        most = zp_max(most, zp_type_array_bytes(z->array[k].part[u].type, z->offload->place_numel));
    return most;
}
/* Returns 1 if reduced gradients of several micro-steps are added in MEAN, and not in SUM. */
static int zp_offload_adds_means(const zero_ctx *z) {
    return z->cfg.micro_steps > 1 && !z->array[ZP_SUM].share;
}

/* Converts values in plain host memory or in a piece of the file, which no kernel reaches. SYNC. */
static zero_result zp_offload_convert(zero_ctx *z, const zp_kernel_convert_args *args, size_t n) {
    zp_kernel_convert_args here = *args;
    if (args->control && z->offload->cpu_updates) { /* the CPU cannot read the device's */
        here.control = z->offload->control;
        ZP_TRY(
            zp_device_copy(&z->compute, z->offload->control, args->control, sizeof *here.control));
    }
    ZP_TRY(zp_device_sync_stream(&z->compute));
    const int plain = args->from_type != ZP_CODES && args->to_type != ZP_CODES;
    (plain ? zp_kernel_convert_loop : z->state_form->convert_loop)(&here, n, z->cfg.threads);
    return ZERO_OK;
}

static const zp_tier zp_offload_tiers[ZERO_TIERS] = {
    {0, 0, NULL, NULL, NULL}, /* DEVICE */
    {0, 0, NULL, NULL, zp_offload_convert},
    {ZP_SECTOR, ZP_PIECE_NUMEL, zp_file_open_range, zp_file_close_range, zp_offload_convert}};
