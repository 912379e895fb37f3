/* ctx.h - the context: all data that one rank owns */
#pragma once

#include "../comm/transport.h"
#include "buffers.h"
#include "arrays.h"
#include "config.h"

enum { ZP_NEW = 1, ZP_IDLE = 2, ZP_IN_PASS = 4, ZP_BETWEEN = 8, ZP_REDUCED = 16, ZP_OPEN = 32 };
enum { ZP_MOVED = 64, ZP_ANY = 63, ZP_BUILT = ZP_ANY - ZP_NEW };
/* NEW -build-> IDLE -pass_begin-> IN_PASS -pass_end-> BETWEEN (more micro-steps, or reduce due)
   -reduce-> REDUCED -step-> IDLE. Evaluation: IDLE, BETWEEN or REDUCED -> IN_PASS -> back.
   Checkpoints: IDLE -state_begin-> OPEN -state_end-> IDLE. MOVED: another context has the state. */

/* Runs the passes of an optimizer step over units. zp_step_in_place is the core's; a row may have
   others, for units that it keeps elsewhere. */
typedef struct zp_updater {
    zero_result (*update)(zero_ctx *z, int u, int pass, const zero_hyper *h);
    /* Rules of several passes: changes the inputs of u's elements from `first` on. NULL: nothing */
    void (*fill)(const zero_ctx *z, int u, size_t first, zp_update *a);
    /* If the updater has results of the first pass in memory that the device cannot read: stream s
       copies those of unit u to `to` on the device. Once `ready`, `from` is copied to where the
       last pass reads it. u -1: the sums of norms, and the ratios, of all units. */
    zero_result (*results_up)(zero_ctx *z, int u, zp_stream *s, void *to);
    zero_result (*inputs_down)(zero_ctx *z, int u, zp_event *ready, void *from);
} zp_updater;

/* What happens to one unit. */
typedef struct zp_live {
    /* The plan. A length [2] means an index by side. */
    int own[2];                /* its own buffer; -1: it is whole, or shares buffers */
    int reduced_last;          /* it is reduced after all other units */
    int may_leave;             /* its arrays may be in another tier than the device */
    int on_updates;            /* the stream `updates` updates it, not the compute stream */
    int gathers;               /* all-gathers of the unit in a step */
    int other_gathers;         /* of these, the ones that a row replaces and counts */
    const zp_wire *wire[2];    /* format of its messages; NULL: the stored type */
    const zp_wire *whole_wire; /* the same for the gather of its reduced gradient, at stage 0 */
    /* The build. */
    int spans;                 /* number of its entries in zero_ctx.spans */
    const zp_updater *updater; /* updates it */
    zp_event *written, *gathered, *reduction, *updated; /* recorded by reduce, gather, step */
    zp_event *reader; /* before the unit's gradient is written again; NULL: the compute stream read
                         it, or nothing reads it there */
    /* A pass. */
    int buffer[2];                                      /* its buffer now, or -1 */
    int parameter_opens, forward_opens, backward_opens; /* open begins */
    uint64_t with_parameters; /* one bit per nested backward, innermost lowest: it has params */
    int writes, reduced;      /* backwards ended in this pass; reductions in this step */
    int touched;      /* its gradient memory was cleared in this micro-step (LOCAL: in this step) */
    int in_bucket;    /* it is in the bucket, which is not issued yet */
    uint64_t version; /* number of changes of its weights: an older copy is out of date */
    zp_record *slice[2]; /* records of its forward and backward while they run, or NULL */
} zp_live;

/* A group that was split from another group of the context. */
typedef struct zp_part {
    void (*free)(zero_comm *part, int broken); /* frees `comm`; NULL: none was split */
    zero_comm comm;
    zp_memory meeting; /* owned by the transport */
    size_t bytes;      /* of this rank for the group, from the transport's `room` */
} zp_part;

/* A row's functions for pointers of your code that are no fields of its structs. */
typedef struct zp_places {
    /* Adds a row of the table that names an earlier tensor. */
    zero_result (*add_same)(zero_ctx *z, const zero_tensor_desc *d);
    /* Writes the pointers to member m, whose unit is in `memory`; NULL: it is not in memory. `at`:
       the value of a field of your struct `host`, unless that is NULL. */
    void (*set)(zero_ctx *z, zp_side side, const zp_member *m, char *memory, void *host,
                uintptr_t at);
    /* Returns your array of a layer; NULL: none. */
    char *(*array)(const zero_ctx *z, zp_side side, int tensor, int layer);
    /* Your arrays were adopted. */
    void (*forget_arrays)(zero_ctx *z);
} zp_places;

/* An array of your code: one layer or all layers of a tensor. */
typedef struct zp_extent {
    const char *at;
    size_t bytes;
    int tensor, layer, side, unused;
} zp_extent;

/* Groups are opened in this order, and closed in reverse. Rows open the first and last two. */
enum { ZP_AGREEING = 0, ZP_ALL, ZP_DATA, ZP_MORE, ZP_GROUPS = ZP_MORE + 2 };

/* The stations of one walk, in order; see extra.h. */
enum { ZP_STATIONS = 32 };
typedef struct zp_walk {
    const struct zp_station *station[ZP_STATIONS];
    int n;
} zp_walk;

struct zero_ctx {
    /* ---- settings and capabilities: zero_create ---- */
    zero_config cfg;     /* the resolved settings */
    zp_policy policy;    /* the row of the stage */
    zp_master master;    /* the row of cfg.master */
    zp_adding adding;    /* how micro-steps add up, from settings and stage */
    const zp_rule *rule; /* the optimizer's functions and its number of states */
    /* Rounds weights to 16 bits on the CPU, for a row; NULL: the core does. */
    void (*round_weights)(const zp_update *u, size_t at, size_t n, const float *p);
    const zp_state_form *state_form; /* of STATE in another type; NULL: it is f32 */
    int grads_unstated;              /* the caller's cfg.grads was AUTO */
    int accumulation_unstated;       /* the same of cfg.accumulation */
    pid_t maker;             /* the process that created it; a child of fork must not use it */
    struct zp_extra *extras; /* the rows; a row without a name ends the list */
    struct zp_packed_state *packed; /* the structs of rows; see `state_at` in extra.h */
    struct zp_rows_state *rows;
    struct zp_subgroups_state *subgroups;
    struct zp_state_tail *tail;
    struct zp_whole_state *whole;
    struct zp_world_state *groups;
    struct zp_check_state *checks;
    struct zp_places_state *placed;
    struct zp_virtual_state *leaves;
    struct zp_resize_state *resize;
    struct zp_integrity_state *integrity;
    struct zp_offload *offload;
    void *own; /* the struct of a row of yours; see ZERO_OWN_EXTRAS in extras/table.h */
    const struct zp_observer *observer;   /* set if a row observes, else NULL */
    const zp_places *places;              /* set if a row has them, else NULL */
    const struct zp_announcer *announcer; /* set if your code announced an order, else NULL */
    zp_walk walk[4];                      /* by zp_walk_kind */

    /* ---- ranks: zero_create opens the groups, zero_destroy closes them ---- */
    zp_comm group[ZP_GROUPS];
    zp_comm *all;      /* group[ZP_ALL]: the ranks that zero_create was given */
    zp_comm *data;     /* the ranks that share one copy of the shards: group[ZP_DATA], or all */
    zp_comm *agreeing; /* the ranks that agree on a step: group[ZP_AGREEING], or all */
    zp_part part[ZP_GROUPS]; /* of the groups that were split from another */
    int ncopies, copy;       /* number of copies of all shards; this rank's */
    /* Compares settings and tensors, and names the first difference, for a row; NULL: the core
       does. COLLECTIVE. */
    zero_result (*compare)(zero_ctx *z);
    /* Returns an error that names the word in which verdicts differ. NULL: the core does. */
    zero_result (*name_difference)(zero_ctx *z);
    int settings_compared; /* by a row: the ranks have compared their settings */
    zero_ctx *partner;     /* the other one of two contexts that agree together; NULL: none */
    int follows;           /* `partner` sends the verdicts of both */

    /* ---- the model: zero_tensor, zero_bind, zero_adopt, zero_lend ---- */
    zp_tensor *tensors; /* [ntensors] in the order in which your code added them */
    int ntensors, tensors_cap;
    int *names; /* two hash tables [2][index_room], a power of 2: 1 + the tensor of a name; 1 + the
                   first tensor of a field of your struct; 0: empty */
    size_t index_room;     /* entries of each table */
    int bound;             /* zero_bind was called */
    void *structs[2];      /* by side: its last arguments */
    void *adopted[2];      /* by side: the structs that zero_adopt was given */
    int pointers_stay;     /* your code keeps its arrays: the plugin writes none of its pointers */
    zero_type arrays_type; /* then: the type of these arrays */
    const char *no_pass;   /* why your code may not begin a pass; NULL: it may */
    zp_extent *extents; /* [2][2 * layout.layers + 1] arrays to compare; those of the last call */

    /* ---- the plan ---- */
    int planned;           /* `plan` matches the present list of tensors */
    zero_plan plan;        /* the result of zero_query_plan */
    zp_layout layout;      /* units, members, shards */
    zp_live *live;         /* [layout.segments] by segment; of frozen ones few fields are used */
    zp_order order[2];     /* order of units in ZERO_TRAIN, in ZERO_EVAL */
    zero_range *ranges[2]; /* [nranges] of the state: to save, and to load */
    int nranges[2], ranges_cap[2];

    /* ---- arrays and memory: the plan cuts them, zero_build allocates them ---- */
    zp_array array[ZP_ARRAYS];
    zp_memory memory[2]; /* by side: GRAD, MEAN, buffers; PARAM, buffers. The device's */
    zp_buffers pool[2];  /* by side: the shared and own buffers of units */
    size_t shared_numel[2], bucket_numel; /* elements of a shared buffer, by side; of a bucket */
    size_t pair_numel;  /* gradients of the smallest two sharing units; SIZE_MAX: one shares */
    size_t param_end;   /* bytes of memory[ZP_PARAM] */
    size_t piece_bytes; /* device memory for pieces of arrays of other tiers */
    size_t peer_bytes, peer_at; /* of rows, in memory[ZP_GRAD]: peers read it; its offset */
    char *arena; /* [private_bytes] no peer reads it: SUM, MASTER, STATE, partial, control, spans */
    size_t arena_at, private_bytes; /* bytes cut so far, and in all */
    zp_span *spans;   /* [layout.nmembers] this rank's part of each member, for updates */
    double *partial;  /* [largest shard / ZP_NORM_BLOCK] sums of squares by block */
    zp_fold *fold;    /* lanes of their sum, on the GPU; on the CPU NULL */
    zp_event *events; /* [nevents] all events that `live`, `pool` and this struct point to */
    int nevents;
    /* Returns the array with the weights of u that a pass uses, or with the newest weights, once
       the stream `updates` is idle. NULL: both are PARAM. */
    zp_array *(*find_weights)(zero_ctx *z, int u, int newest);
    /* Opens memory[ZP_GRAD] with `bytes` bytes. COLLECTIVE. */
    zero_result (*open_gradients)(zero_ctx *z, size_t bytes);

    /* ---- streams ---- */
    zp_device device;
    zp_stream compute, stream[2]; /* stream[ZP_GRADIENTS], stream[ZP_PARAMETERS] */
    zp_stream updates; /* updates of units with `on_updates`; not open: no unit has that */

    /* ---- a pass ---- */
    int phase, resume;      /* ZP_NEW and so on; resume: the phase after an evaluation */
    zero_pass pass;         /* kind of the current or last pass */
    int micro, micro_steps; /* index of the current micro-step; their number in this step */
    int pass_micro_steps;   /* number of micro-steps in this pass */
    int hooked;             /* your code called a unit's hook in this pass */
    int *bucket;            /* [layout.all] the first nbucket: units written, not issued yet */
    zp_op *ops;             /* [layout.all] their collectives, from ZP_AT_DESCRIBE on */
    int nbucket;            /* the hooks add units, the flush empties it */
    int bucket_last;        /* its units are in the step's last micro-step */
    size_t bucket_filled;   /* elements in the bucket */
    zp_op gather;           /* the all-gather that the parameter's walk issues */
    /* Adds a loss of zero_train_end; if `last`, sets *sum over all ranks. NULL: the core does. */
    zero_result (*add_loss)(zero_ctx *z, double loss, int last, double *sum);
    double loss;    /* sum of the losses that zero_train_end was given in this step */
    double hooks_s; /* seconds of the calling thread inside hooks */

    /* ---- the agreement on a step ---- */
    double *verdict, *verdicts; /* this rank's [zp_ctx_verdict_words], within all ranks' */
    size_t verdict_at;          /* byte offset of `verdicts` in memory[ZP_GRAD] */
    zp_memory verdict_memory;   /* the verdicts, if `agreeing` is not `data` */
    int verdict_units;          /* verdicts have a word for each of so many units; 0: none */
    int verdict_words;          /* further words of a row after these */
    int *verdict_unit;          /* [layout.all] each unit's number among them */
    int *verdict_order; /* [agreeing->nranks] on the device: the order in which verdicts are added;
                           NULL: by rank */
    int row_takes_norm; /* a row takes the squares for the norm instead of the core */
    /* Sums the squares, and sets the norm in `control`. NULL: the core does. */
    zero_result (*sum_squares)(zero_ctx *z);
    /* Enqueues the agreement. */
    zero_result (*agree)(zero_ctx *z);
    int agreement_begun;  /* an agreement was enqueued: `control` has its result */
    zp_control *control;  /* device: agreement and decision */
    zp_control *decision; /* the copy that the stream `updates` reads: `control`, or another */
    zp_control *pinned;   /* host memory that the device copies `control` to */
    zp_control report;    /* the calling thread's copy of `pinned` */
    zp_event *passed;     /* compute stream: the last micro-step's kernels have ended */
    zp_event *agreed, *reported; /* `control` has the agreement; `pinned` has the report */

    /* ---- a step ---- */
    int step_call;             /* the last step's call, for a verdict's CALL: 1 step, 2 skip */
    zero_hyper hyper;          /* the hyper-parameters of the last step */
    int rule_pass;             /* the pass of the rule that a step enqueues: 0 or 1 */
    const zp_updater *updater; /* of the units with `on_updates`; NULL: there are none */
    int more_sums;   /* 1: `updater` has sums of norms of its own, in addition to the device's */
    int scale_asked; /* zero_loss_scale was called for the next step */
    int stepped;     /* a step was taken: a report exists */
    int64_t taken;   /* number of steps, including skipped ones */
    int updates_overlap; /* an update may overlap with the next step: a row publishes it */
    int update_pending;  /* passes use weights without the last update */
    int parameters_put;  /* your code put ZERO_PARAMETER since zero_state_begin */
    int peers_read;      /* since zero_reduce, peers may read this rank's SEEN parameters */
    zero_stats stats;    /* zero_query_stats fills it */

    /* ---- errors ---- */
    zp_failure failure; /* the first failure of any collective */
    zero_result dead;   /* the error after which every call fails; 0: none */
    int broken;         /* zero_destroy: it failed, or is inside a step; peers do not wait for it */
    const char *call;   /* the public function that runs, as your code called it */
    const char *caller; /* the public function that runs by calling others; NULL: none does */
    char text[ZP_TEXT_BYTES + 128]; /* the last error */
    char row[ZP_TEXT_BYTES + 128];  /* error of the first refused row of a table */
};

/* Stores and logs an error of this call as `call, rank r of n: sentence`. */
__attribute__((format(printf, 3, 4))) static zero_result zp_ctx_fail(zero_ctx *z,
                                                                     zero_result result,
                                                                     const char *format, ...) {
    va_list list;
    const int n = snprintf(z->text, sizeof z->text, "%s, rank %d of %d: ", z->call, z->all->rank,
                           z->all->nranks);
    va_start(list, format);
    (void)vsnprintf(z->text + n, sizeof z->text - (size_t)n, format, list);
    va_end(list);
    if (z->cfg.log) z->cfg.log(z->cfg.log_user, ZERO_LOG_ERROR, z->text);
    return result;
}

/* Return an error if an argument is wrong, or if the call is not allowed in this phase. */
#define ZP_REFUSE(z, when, ...)                                                                    \
    ZP_TRY((when) ? zp_ctx_fail(z, ZERO_ERR_ARGUMENT, __VA_ARGS__) : ZERO_OK)
#define ZP_UNTIMELY(z, when, ...)                                                                  \
    ZP_TRY((when) ? zp_ctx_fail(z, ZERO_ERR_STATE, __VA_ARGS__) : ZERO_OK)

/* Returns the words of a rank's verdict. Sums of squares of single units may follow the others. */
static int zp_ctx_verdict_words(const zero_ctx *z) {
    return ZP_VERDICT + z->verdict_units + z->verdict_words;
}
/* Returns unit u's number in verdicts. */
static int zp_ctx_verdict_unit(const zero_ctx *z, int u) {
    return z->verdict_units ? z->verdict_unit[u] : u;
}

/* Checks that i is in 0..n-1. */
static zero_result zp_ctx_check_index(zero_ctx *z, const char *what, int i, int n) {
    ZP_REFUSE(z, n < 1, "%s %d: none exists; call zero_tensors and zero_build first", what, i);
    ZP_REFUSE(z, i < 0 || i >= n, "%s %d, expected 0..%d", what, i, n - 1);
    return ZERO_OK;
}

/* Makes the context dead, because the verdicts differ. */
static zero_result zp_ctx_report_difference(zero_ctx *z) {
    if (z->name_difference) return z->dead = z->name_difference(z);
    return z->dead = zp_ctx_fail(
               z, ZERO_ERR_MISMATCH,
               "rank %d differs from rank 0 in the call, hyper-parameters or counters of an "
               "earlier step; the part \"agree\" of make drop names the difference",
               z->report.differs_rank);
}

/* A lost peer may have left because the last verdicts differed. Returns 1 if they did, and 0 if the
   transport has its own way to look for failures. */
static int zp_ctx_has_difference(zero_ctx *z) {
    if (!z->agreement_begun || z->agreeing->transport->watches
        || zp_device_sync_stream(&z->stream[ZP_GRADIENTS]) /* it may still write `control` */
        || zp_device_copy(&z->compute, z->pinned, z->control, sizeof *z->pinned)
        || zp_device_sync_stream(&z->compute))
        return 0;
    z->report = *z->pinned;
    return z->report.differs;
}

/* A collective that failed makes the context dead. */
static zero_result zp_ctx_check(zero_ctx *z, zero_result result) {
    const zero_result failed = zp_failure_result(&z->failure);
    if (z->dead || (!failed && !result)) return result ? result : z->dead;
    z->dead = failed ? failed : result;
    if (failed == ZERO_ERR_PEER && zp_ctx_has_difference(z)) return zp_ctx_report_difference(z);
    return zp_ctx_fail(z, z->dead, "%s",
                       failed              ? z->failure.text
                       : z->device.text[0] ? z->device.text
                                           : zero_result_string(result));
}

#define ZP_DO(z, call) ZP_TRY(zp_ctx_check(z, call))
/* Calls a function of z->observer or z->announcer, unless it or the table is NULL. */
#define ZP_TRY_IF(table, function, ...)                                                            \
    ZP_TRY((table) && (table)->function ? (table)->function(__VA_ARGS__) : ZERO_OK)

/* Records the public function that runs, for errors and for the watch of other ranks. A function
   that another one calls has the other one's name. */
static void zp_ctx_set_call(zero_ctx *z, const char *call) {
    z->call = z->caller ? z->caller : call;
    if (z->all->call) *z->all->call = z->call;
    if (z->all->unit) *z->all->unit = -1;
}

/* Every public function begins here, with its name, its phases, and the error in other phases. */
static zero_result zp_ctx_enter(zero_ctx *z, const char *call, int phases, const char *otherwise) {
    if (!z) return ZERO_ERR_ARGUMENT;
    zp_ctx_set_call(z, call);
    ZP_TRY(zp_ctx_check(z, ZERO_OK));
    if (zp_device_check(&z->device)) {
        (void)zp_ctx_fail(z, ZERO_ERR_STATE, "%s", z->device.text);
        z->device.text[0] = 0; /* your code may select the right device */
        return ZERO_ERR_STATE;
    }
    if (z->phase == ZP_MOVED) otherwise = "another context has the state now; destroy this one";
    if (phases == ZP_NEW) z->planned = 0; /* only calls before the build change the plan */
    return z->phase & phases ? ZERO_OK : zp_ctx_fail(z, ZERO_ERR_STATE, "%s", otherwise);
}
#define ZP_ENTER(z, call, phases, otherwise) ZP_TRY(zp_ctx_enter(z, call, phases, otherwise))

/* The body of the public function `name`, which calls others: their errors have its name. */
#define ZP_RUN_AS(z, name, body)                                                                   \
    do {                                                                                           \
        if (!(z)) return ZERO_ERR_ARGUMENT;                                                        \
        const char *const outer = (z)->caller;                                                     \
        if (!outer) (z)->caller = name;                                                            \
        const zero_result result = body;                                                           \
        (z)->caller = outer;                                                                       \
        return result;                                                                             \
    } while (0)

/* Returns 1 if unit u is whole in the side's array. Otherwise a buffer holds it while in use. */
static int zp_ctx_unit_is_whole(const zero_ctx *z, zp_side side, int u) {
    const zp_share share = z->array[side].part[u].share;
    return share == ZP_WHOLE || share == ZP_SEEN;
}

/* Returns the array whose shards are copied between their tier and the side's buffers. */
static const zp_array *zp_ctx_side_array(const zero_ctx *z, int side) {
    return &z->array[side == ZP_GRAD ? (int)ZP_MEAN : (int)ZP_PARAM];
}

/* Returns the byte offset of segment u in its side's buffer b. A shard that is copied to or from a
   tier has the tier's alignment. A frozen segment follows the trained one, with room between them
   for the end of the last transfer. */
static size_t zp_ctx_unit_in_buffer(const zero_ctx *z, zp_side side, int u, int b) {
    const zp_array *a = zp_ctx_side_array(z, side);
    const size_t before = a->part[u].first * zp_type_bytes(a->type);
    const size_t align = a->part[u].numel ? zp_array_tier(a, u)->align : 0;
    const size_t skew = align ? zp_round_up(before, align) - before : 0;
    const size_t trained = u < z->layout.all ? 0 : z->layout.unit[u - z->layout.all].padded;
    const size_t at = trained * zp_type_bytes(a->type) + (u < z->layout.all ? 0 : 2 * align);
    return z->pool[side].buffer[b].at + (align ? zp_round_up(at, align) : at) + skew;
}

/* Returns the address of all of segment u's parameters or gradients; NULL: not in memory now. */
static char *zp_ctx_unit_memory(const zero_ctx *z, zp_side side, int u) {
    const zp_live *live = &z->live[zp_layout_unit_of(&z->layout, u)];
    const int b = live->own[side] >= 0 ? live->own[side] : live->buffer[side];
    char *base = z->memory[side].base;
    if (zp_ctx_unit_is_whole(z, side, u)) return base + z->array[side].part[u].at;
    return b < 0 ? NULL : base + zp_ctx_unit_in_buffer(z, side, u, b);
}

/* Return the elements of a shard of segment u, those of a piece, and the first element of this
   rank's shard. */
static size_t zp_ctx_shard(const zero_ctx *z, int u) { return z->layout.unit[u].shard; }
static size_t zp_ctx_piece(const zero_ctx *z, int u) { return z->layout.unit[u].piece; }
static size_t zp_ctx_shard_first(const zero_ctx *z, int u) {
    return (size_t)z->data->rank * zp_ctx_shard(z, u);
}

/* Returns this rank's shard of u's reduced gradient. It is valid until its memory is used again. */
static char *zp_ctx_unit_mean(const zero_ctx *z, int u) {
    const zp_array *a = &z->array[ZP_MEAN];
    const size_t first = zp_ctx_shard_first(z, u);
    if (!zp_array_off_device(a, u)) return zp_array_at(a, u, first);
    return zp_ctx_unit_memory(z, ZP_GRAD, u) + first * zp_type_bytes(a->type);
}

/* Returns the address at which your code reads segment u's parameters; NULL: not in memory now. */
static char *zp_ctx_unit_pointer(const zero_ctx *z, int u) {
    const zp_memory *m = &z->memory[ZP_PARAM];
    char *memory = zp_ctx_unit_memory(z, ZP_PARAM, u);
    return memory ? m->view + (memory - m->base) : NULL;
}

/* Returns the part of unit u that this rank updates: that of the rule's first state array. */
static const zp_array_part *zp_ctx_own_part(const zero_ctx *z, int u) {
    return &z->array[ZP_STATE].part[u];
}

/* Returns 1 if updates that overlap with the next step work on NEXT, and a MEAN outside GRAD. */
static int zp_ctx_keeps_next(const zero_ctx *z) { return z->array[ZP_NEXT].share != ZP_NOTHING; }

/* Returns the gradient that the update reads. */
static zp_array *zp_ctx_update_gradient(zero_ctx *z) {
    const int over = z->policy.state == ZP_WHOLE && !zp_ctx_keeps_next(z); /* gathered over GRAD */
    return &z->array[over ? (int)ZP_GRAD : (int)ZP_MEAN];
}

/* Returns the i-th unit in the order of updates: that of forward. Updates that overlap with the
   next step use the order of its backward, because its reductions overwrite what updates read. */
static int zp_ctx_nth_update(const zero_ctx *z, int i) {
    return zp_layout_nth_unit(&z->layout, z->updates_overlap ? z->layout.all - 1 - i : i);
}

/* Return the array with the weights of segment u that a pass uses, and that with the newest
   weights. Frozen weights are never new. */
static zp_array *zp_ctx_weights(zero_ctx *z, int u) {
    return z->find_weights && u < z->layout.all ? z->find_weights(z, u, 0) : &z->array[ZP_PARAM];
}
static zp_array *zp_ctx_newest(zero_ctx *z, int u) {
    return z->find_weights && u < z->layout.all ? z->find_weights(z, u, 1) : &z->array[ZP_PARAM];
}

/* Returns a collective of segment u. The caller sets its source and target. */
static zp_op zp_ctx_make_op(zero_ctx *z, zp_channel channel, int kind, int u) {
    zp_op op;
    memset(&op, 0, sizeof op);
    op.group = z->data;
    op.memory = &z->memory[channel];
    op.channel = channel;
    op.kind = kind;
    op.unit = zp_layout_unit_of(&z->layout, u);
    op.shard = zp_ctx_shard(z, u);
    op.type = z->array[channel].type;
    return op;
}

/* Returns the first element of segment u that this rank counts in the norm and saves. */
static size_t zp_ctx_piece_first(const zero_ctx *z, int u) {
    return zp_ctx_shard_first(z, u) + (size_t)z->copy * zp_ctx_piece(z, u);
}

/* Returns the factor that makes the mean from the sum over all ranks. */
static float zp_ctx_sum_scale(const zero_ctx *z) {
    return z->data->divisor / (float)(z->cfg.divisor ? z->cfg.divisor : z->all->nranks);
}

/* Returns the number of layers if the update rule needs norms of layers, else 0. */
ZP_UNUSED static size_t zp_ctx_normed_layers(const zero_ctx *z) {
    return z->rule->needs & ZP_NORMS_OF_LAYERS ? (size_t)z->layout.layers : 0;
}

/* Cuts `numel` elements of `bytes` bytes from the private arena, at z->arena_at. Before the arena
   is allocated this only measures, and returns NULL. */
static void *zp_ctx_cut_arena(zero_ctx *z, size_t numel, size_t bytes) {
    return zp_cut_memory(z->arena, &z->arena_at, zp_max(numel, 1) * bytes,
                         bytes * numel >= 65536 ? 4096 : 256);
}

/* Closes a part. The caller closes all parts before the group that was split. */
static void zp_ctx_close_part(zp_part *part, zp_comm *g, int broken) {
    zp_comm_close(g, broken);
    if (part->free) part->free(&part->comm, broken);
    part->free = NULL;
}
