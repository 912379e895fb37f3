/* zero_plugin.h - ZeRO sharded data-parallel training for C and CUDA training loops, in two files.

   BUILD
     `make drop DIR=folder` writes zero_plugin.h and zero_plugin.cu, the two files that a project
     copies, for 64-bit Linux. Compile the latter with either
       cc -x c -std=c11 -O3 -march=native -ffp-contract=off -fopenmp -pthread -c zero_plugin.cu
       nvcc -std=c++17 -O3 -fmad=false -DZERO_WITH_NCCL -c zero_plugin.cu
     The first is the CPU version: no C++ runtime, no library but libm; -x c stands before the file.
     Link with -fopenmp -pthread -lm. OpenMP is optional; mpicc -DZERO_WITH_MPI adds MPI. The second
     is the CUDA version (sm_80 and newer): link with -lcudart -lnccl -ldl. Without NCCL (2.19 and
     newer), ranks are threads of one process. The tier HOST needs -Xcompiler
     -fopenmp,-march=native,-ffp-contract=off.
     `make drop WITH="core nccl"` writes the core and the named parts alone. A mark such as [nccl]
     begins text about a part. A copy without the part has one line in its place.

   EXAMPLE: every line that a trainer with L blocks and tied embeddings gains. `params` and `grads`
   are its own structs of base pointers, used as before between a unit's begin and end.
       int main(void) {
           zero_ctx *z;
           ZERO_START_LOCAL(z, nranks, .stage = 3);                // each rank continues from here
           const zero_tensor_desc table[] = {
               ZERO_FIELD(Params, wte, V * C, .uses = 2),                    // unit 0; V, C: size_t
               ZERO_FIELD(Params, fcw, 4 * C * C, .layers = L, .unit = 1)};  // units 1..L
           ZERO_TRY(zero_tensors(z, table, 2));
           ZERO_TRY(zero_adopt(z, &params, &grads, ZERO_F32, free)); // its arrays of initial values
           const zero_hyper hyper = {lr, 0.9f, 0.95f, 1e-8f, 0.1f, 1.0f};
           for (int step = 0; step < steps; step++) { // each call of the plugin is in a ZERO_TRY
               zero_train_begin(z);
               zero_forward_begin(z, 0, &params); embed(); zero_forward_end(z, 0);
               for (int l = 0; l < L; l++) {
                   zero_forward_begin(z, 1 + l, &params); block(l); zero_forward_end(z, 1 + l); }
               zero_forward_begin(z, 0, &params); loss = classify(); zero_forward_end(z, 0);
               dloss = zero_loss_scale(z);
               zero_backward_begin(z, 0, &params, &grads); classify_backward(dloss);
               zero_backward_end(z, 0);
               for (int l = L - 1; l >= 0; l--) {
                   zero_backward_begin(z, 1 + l, &params, &grads); block_backward(l);
                   zero_backward_end(z, 1 + l); }
               zero_backward_begin(z, 0, NULL, &grads); embed_backward(); zero_backward_end(z, 0);
               ZERO_TRY(zero_train_end(z, &hyper, loss, &mean_loss)); }
           zero_destroy(z);
           return 0; }
     With all tensors ZERO_KEEP it needs no hooks: at most fifteen lines, as with zero_lend, which
     leaves your arrays where they are. adapters/docs/integrate.md continues from there.

   STAGES, and the bytes that a rank keeps (P parameters, N ranks, AdamW)
                                                  16 bit,       bf16, split   bf16, no
                                    f32           f32 master    master        master
       0  all on every rank (DDP)   16P           16P           14P           12P
       1  optimizer state sharded    8P +  8P/N    4P + 12P/N    4P + 10P/N    4P +  8P/N
       2  and gradients              4P + 12P/N    2P + 14P/N    2P + 12P/N    2P + 10P/N
       3  and parameters                  16P/N         16P/N         14P/N         12P/N
     Gradients kept in f32 (cfg.grads) take 4 bytes instead of 2. f32 accumulators of 16-bit
     gradients, and working buffers, come in addition; zero_query_plan returns all sizes.

   WORDS
     rank, nranks    one of the processes or threads that train together, and their number N
     node            consecutive ranks with fast links to each other, usually those of a machine
     unit            tensors that are gathered and released together: a block, the embeddings
     shard           the N-th part of a unit that one rank owns; all equal, the last one padded
     gather, reduce  collect a unit's parameters from all shards; sum its gradients into them
     bucket          units whose reductions are issued together
     hook            a begin or end call around your code that uses a unit
     pass            one forward, or one forward and its backward, over one micro-batch
     micro-step      a training pass; gradient accumulation adds up several in a step
     master weights  f32 copies of weights that are stored in 16 bits
     kept unsharded  whole on every rank for as long as the context lives
     prefetch        gather a unit before your code needs it
     offload         [offload] keep a shard in CPU memory (tier HOST) or in a file (tier FILE)
     checkpoint      the state of all ranks, saved to files
     replica         [subgroups] another copy of the same shards, on other ranks (cfg.shard_ranks)
     slot            a pointer of yours outside your structs (`param`, `grad` of a row of the table)

   OWNERSHIP
     The context owns all memory that it hands out; every tensor begins at a multiple of 64 bytes.
     Descriptions and names are copied. A pointer from a begin hook is borrowed until its end hook.

   THREADS, STREAMS AND THE ORDER OF CALLS
     One context belongs to one calling thread. Lines of a function's comment begin with
     COLLECTIVE  if all ranks of the context, or those named, call it in the same order;
     SYNC        if it waits for the device and for peers. All other functions only enqueue.
     Apart from those, a step never waits for the device, allocates, or synchronizes a whole device.
     On the CPU, the calling thread is the compute stream, and the plugin's threads communicate.
     CUDA: your code computes on cfg.stream, and its device is current at every call. Your code may
     use a unit's memory on that stream from the begin hook to the end hook; events order the
     plugin's two communication streams around that. With LOCAL, the ranks' threads wait for each
     other on the CPU at every collective.
     NCCL  [nccl] a thread of the plugin watches for errors and time-outs. It aborts the plugin's
       two communicators, never yours, so that pending operations end and the next call returns the
       error. Ranks of one machine share the reason; ranks of other machines get NCCL's error or
       TIMEOUT. Set NCCL_LAUNCH_ORDER_IMPLICIT=1 before NCCL starts (2.26 and newer), so that the
       communicators of contexts and groups run at the same time. Otherwise zero_create warns, they
       run in sequence, and your own NCCL calls inside a pass can deadlock: use zero_all_sum.
     A child of fork (for example a data loader) is not a rank and has none of the plugin's threads.
     In it, zero_destroy and zero_group_close do nothing, and no other function may be called.

   ERRORS AND LOGGING
     A function that can fail returns a zero_result; zero_last_error returns a sentence with the
     call, the rank and the values. Each such function can return ARGUMENT, STATE (the call does not
     fit the order of calls), and THE STICKY ONES: after a failed collective (MISMATCH, PEER,
     TIMEOUT, COMM, DEVICE) the context is dead, every later call returns the same error, and only
     zero_destroy is of use. A line "Errors:" lists further errors, and reasons. If the context is
     NULL, functions return ARGUMENT; those without a result answer as rank 0 of 1 that trains
     nothing (scale 1, no ranges, zeros). The plugin never exits or aborts, prints only through
     cfg.log, and never changes a setting silently.
     A log callback gets every error as it happens and, as ZERO_LOG_INFO, NCCL's capabilities. On
     rank 0 it also gets the numbers of tensors, elements and units.
     FLUSH  [check] rank 0 logs a warning if -Ofast or -use_fast_math flushes tiny numbers to 0.

   CHECKED BUILDS
     [check] Compiled with -DZERO_CHECK=1, the plugin reports misuse at the call that is wrong:
     hooks that do not match or differ between ranks, a unit used more often than announced, a
     written parameter, pointers that were never bound. Begin hooks hand out a copy between
     protected pages, which moves at each begin. Using a pointer after its end hook, writing a
     weight, or reading another layer's tensor without KEEP is a SIGSEGV at that instruction (CUDA:
     NaN). Such builds are slow and need up to three times the memory; bits stay the same.

   WHAT IT DOES NOT DO
     Launching ranks on several machines, checkpoint files, JSON, data loading and the model belong
     to your trainer (adapters/).

   INDEX of the functions that everybody needs, in the order of use. MORE follows, by capability.
     zero_create          create a context on a communicator of yours
     zero_start_local     start the ranks of this machine, each with a context
     zero_rank            return the number of this rank
     zero_nranks          return the number of ranks
     zero_tensor          announce a tensor
     zero_tensors         announce a table of tensors
     zero_place           announce a tensor whose pointers are scattered
     zero_build           partition the tensors, allocate
     zero_bind            write the pointers of KEEP tensors into your structs
     zero_adopt           build, copy your initial weights, release your arrays
     zero_train_begin     begin a micro-step
     zero_train_end       end it; the last one of a step updates the weights
     zero_loss_scale      return the factor for the loss
     zero_forward_begin   get a unit's parameters, for its forward
     zero_forward_end     release them
     zero_backward_begin  get a unit's parameters and gradients, for its backward
     zero_backward_end    release them, and reduce the gradients
     zero_step_result     report norm, overflow and loss scale of the last step
     zero_pass_begin      begin a micro-step or an evaluation
     zero_pass_end        end it
     zero_reduce          end the reductions of a step
     zero_step            update the weights
     zero_result_string   return the sentence of a result
     zero_last_error      return the sentence of the last error
     zero_destroy         free everything
*/
#ifndef ZERO_PLUGIN_H
#define ZERO_PLUGIN_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
#pragma GCC system_header /* otherwise g++ -Wextra warns of fields that a macro omits */
#define ZERO_ROW zero_tensor_desc
extern "C" {
#else
#define ZERO_ROW
#endif

/* ---- version and results --------------------------------------------------------------------- */
/* ZERO_ABI changes with a struct, number or function here; it names libzero_plugin.so.ZERO_ABI. */
#define ZERO_VERSION "1.0.0"
#define ZERO_ABI     13

/* X(name, sentence) */
#define ZERO_RESULTS(X)                                                                            \
    X(ZERO_OK, "success")                                                                          \
    X(ZERO_ERR_ARGUMENT, "an argument is out of range")                                            \
    X(ZERO_ERR_STATE, "the call does not fit the order of calls")                                  \
    X(ZERO_ERR_MEMORY, "memory could not be allocated")                                            \
    X(ZERO_ERR_MISMATCH, "the ranks do not agree")                                                 \
    X(ZERO_ERR_PEER, "another rank failed or is gone")                                             \
    X(ZERO_ERR_TIMEOUT, "another rank did not arrive in time")                                     \
    X(ZERO_ERR_COMM, "the communication library reported an error")                                \
    X(ZERO_ERR_DEVICE, "the device reported an error")                                             \
    X(ZERO_ERR_SCALE, "gradients overflow at the smallest loss scale")                             \
    X(ZERO_ERR_UNSUPPORTED, "not supported by this build")
#define ZERO_RESULT_ENUM(name, sentence) name,
typedef enum zero_result { ZERO_RESULTS(ZERO_RESULT_ENUM) ZERO_RESULT_COUNT } zero_result;
#undef ZERO_RESULT_ENUM

/* Returns from your function, which returns a zero_result or an int, if `call` is not ZERO_OK. */
#define ZERO_TRY(call)                                                                             \
    do {                                                                                           \
        const zero_result zero_tried = (call);                                                     \
        if (zero_tried) return zero_tried;                                                         \
    } while (0)

/* ---- communicators --------------------------------------------------------------------------- */
typedef enum zero_comm_kind {
    ZERO_COMM_SELF = 0, /* one rank; handle NULL */
    ZERO_COMM_LOCAL,    /* ranks of one machine; handle: zero_local *. CUDA: threads of one process,
                           on one GPU or on several that reach each other's memory */
    ZERO_COMM_MPI,      /* CPU. handle: MPI_Comm *, duplicated; needs MPI_THREAD_MULTIPLE */
    ZERO_COMM_NCCL,     /* CUDA. handle: ncclComm_t *. The plugin uses only parts split off it */
    ZERO_COMM_OWN       /* your first own kind: see ADDING A TRANSPORT in zero_plugin.cu */
} zero_comm_kind;
typedef struct zero_comm {
    zero_comm_kind kind;
    int rank;      /* LOCAL: this rank, 0..nranks-1; otherwise ignored */
    void *handle;  /* borrowed until zero_destroy returns */
    int node_size; /* ranks per node, in rank order; divides nranks. Sums are taken inside nodes
                      first, then over nodes in node order. 0: one node; MPI: as MPI reports.
                      Otherwise LOCAL has the bits of that many ranks per machine, and MPI cuts
                      machines into such nodes. NCCL uses it for quantized reductions only */
} zero_comm;

/* Ranks that communicate apart from a context (GROUPS OF RANKS); where local ranks meet. */
typedef struct zero_group zero_group;
typedef struct zero_local zero_local;
typedef struct zero_ctx zero_ctx; /* the context of one rank */

/* ---- configuration --------------------------------------------------------------------------- */
#define ZERO_NONE          (-1) /* "none", where 0 is the default */
#define ZERO_ALL           (-1) /* "all", where 0 is the default */
#define ZERO_PREFETCH_MOST 64   /* largest cfg.prefetch */
typedef enum zero_accumulation {
    ZERO_ACCUMULATE_AUTO = 0, /* LOCAL at stages 0 and 1, SHARDED at 2 and 3 */
    ZERO_ACCUMULATE_LOCAL,    /* every rank keeps the whole gradient, reduced once a step */
    ZERO_ACCUMULATE_SHARDED   /* reduced every micro-step into this rank's shard */
} zero_accumulation;
/* How a number is stored: IEEE f32 and f16 (binary16), and bf16, the upper half of an f32. In C, 16
   bits are a uint16_t. MIXED PRECISION: by default, moments and master weights are f32. The mean
   gradient is summed in f32 in rank order, multiplied by 1/N, and rounded once to the gradients'
   type. NCCL chooses its own order and rounding, and divides by N when the update unscales: in F16
   a sum over many ranks overflows earlier than its mean would, which loss scaling handles. */
typedef enum zero_type {
    ZERO_F32 = 0,
    ZERO_BF16,
    ZERO_F16,
    ZERO_TYPES,           /* types of parameters and gradients */
    ZERO_F64 = ZERO_TYPES /* double: only for zero_lend, zero_convert and zero_group collectives */
} zero_type;
/* The f32 form of 16-bit parameters, which the update reads and writes. SPLIT and NONE are for
   BF16. With SPLIT, a parameter and its 16 lower bits are the f32, bit by bit: the parameter is
   rounded half up in the bit pattern, and each NaN becomes the quiet one of its sign. State, access
   by name and checkpoints have the f32 weight. Training is that of F32 with this rounding. */
typedef enum zero_master {
    ZERO_MASTER_AUTO = 0, /* SPLIT for BF16, otherwise F32 */
    ZERO_MASTER_F32,      /* an f32 master weight next to each 16-bit parameter: 4 bytes more */
    ZERO_MASTER_SPLIT,    /* its lower half alone: 2 bytes more */
    ZERO_MASTER_NONE,     /* nothing more: updates are rounded stochastically; part "compact" */
    ZERO_MASTERS
} zero_master;
/* [compact] How the optimizer's state (moments, Adagrad's sum) is kept, but for ZERO_F32_STATE. The
   update computes in f32 and rounds the results stochastically to BF16 or codes, so that slow
   averages do not stick. The next step reads the stored values. Access by name reads f32 values and
   rounds those it writes to nearest; if they cut a block of codes, all of it is rounded again.
   ADAGRAD: not 8BIT (ARGUMENT), because its sum only grows and would lose small additions. */
typedef enum zero_state_type {
    ZERO_STATE_F32 = 0,
    ZERO_STATE_BF16, /* 2 bytes less for each state array of a parameter */
    ZERO_STATE_8BIT, /* 3 bytes less: codes of 8 bits, and a scale for each 128 of them */
    ZERO_STATE_TYPES
} zero_state_type;
/* The type that backward adds gradients to, and that is sent. */
typedef enum zero_grad_type {
    ZERO_GRAD_AUTO = 0, /* AS_TYPE. State the type that backward adds if type is 16 bit and
                           micro_steps above 1, or if zero_adopt gets arrays of another type:
                           otherwise they return ARGUMENT. (zero_lend uses F32) */
    ZERO_GRAD_F32,
    ZERO_GRAD_AS_TYPE /* zero_config.type; several micro-steps accumulate in f32 */
} zero_grad_type;
/* The update rules; zero_hyper has their formulas. */
typedef enum zero_optimizer {
    ZERO_ADAMW = 0, /* decoupled weight decay */
    ZERO_ADAM,      /* weight decay added to the gradient (L2) */
    ZERO_SGD,       /* with momentum */
    ZERO_NESTEROV,  /* SGD with Nesterov's momentum */
    ZERO_LION,
    ZERO_ADAGRAD,
    ZERO_LAMB, /* every layer of every tensor has a trust ratio */
    ZERO_MUON, /* orthogonal updates of matrices (zero_tensor_desc.rows); ADAMW for all else */
    ZERO_OPTIMIZER_OWN /* your first own rule: see ADDING AN OPTIMIZER in zero_plugin.cu */
} zero_optimizer;
/* [muon] Settings of MUON. */
typedef struct zero_muon {
    float momentum;    /* 0: 0.95 */
    float plain_lr;    /* learning rate of other tensors, relative to that of matrices; 0: 1 */
    int iterations;    /* Newton-Schulz iterations; 0: 5 */
    int match_rms;     /* scale updates to AdamW's size: s of zero_hyper's formula */
    int no_nesterov;   /* orthogonalise the momentum itself */
    int polar_express; /* other coefficients for each iteration: see zero_hyper's formula */
    float normalize;   /* NorMuon: how slowly r of zero_hyper's formula moves: 0.95; 0: none */
} zero_muon;
/* [offload] Where an array is kept. Bits are the same at every tier.
     HOST  CPU memory (the CPU version has one memory: there it is DEVICE). For optimizer_tier, and
           together with it for the other two. CPU threads of the plugin (cfg.threads; compile with
           OpenMP) or the GPU update: see zero_update_on. If the CPU updates, gradients go down as
           they are reduced, and parameters come up unit by unit, both in their stored type, through
           pinned memory that zero_plan counts. gradient_tier HOST: no shard of the gradients is on
           the device, except f32 accumulators of 16-bit ones, whole gradients (stages 0 and 1, or
           f32 with accumulation LOCAL), and gradients that the GPU applies.
     FILE  one file per rank, streamed through memory in 1 MiB pieces, read ahead and written back
           during updates and passes. CUDA: as HOST, and the CPU updates */
typedef enum zero_tier { ZERO_DEVICE = 0, ZERO_HOST, ZERO_FILE, ZERO_TIERS } zero_tier;
/* [offload] The processor that updates state in tier HOST (CUDA). No bit depends on it. */
typedef enum zero_update_on {
    ZERO_UPDATE_AUTO = 0, /* the faster one by link_gbs and memory_gbs; zero_plan has both times */
    ZERO_UPDATE_HOST,     /* the CPU: gradients go down, parameters up */
    ZERO_UPDATE_DEVICE    /* the GPU: state comes up and goes down. Parameters: on the device */
} zero_update_on;
/* Dynamic loss scaling by DeepSpeed's rules. Each overflow uses up one of `hysteresis`; the last
   one, and every later overflow, halve the scale. After `window` steps without overflow (window + 1
   after the start or an overflow) the scale doubles and the hysteresis is restored. */
typedef struct zero_scaler {
    float fixed;   /* a scale that never changes; 0: dynamic for F16, 1 for other types */
    float initial; /* first dynamic scale; 0: 65536 */
    float minimum; /* an overflow at this scale, with no hysteresis left, is ZERO_ERR_SCALE; 0: 1 */
    int window;    /* 0: 1000 */
    int hysteresis;             /* 0: 2 */
    int consecutive_hysteresis; /* every good step restores the hysteresis */
} zero_scaler;

typedef enum zero_log_level { ZERO_LOG_INFO = 0, ZERO_LOG_WARNING, ZERO_LOG_ERROR } zero_log_level;
typedef void (*zero_log_fn)(void *user, zero_log_level level, const char *sentence);
/* Receives n events, borrowed for the call, in order of their begin on each track; events of the
   file may come later. The calling thread calls it at the end of a pass or step, and in
   zero_step_result, zero_query_stats and zero_destroy. It must not call the plugin. */
typedef struct zero_event zero_event;
typedef void (*zero_trace_fn)(void *user, const zero_event *events, int n);

/* Settings of a context. Every zero is the default: zero_config cfg = {0} (C++: {}). Equal on all
   ranks, except threads, update_on, link_gbs, memory_gbs and pointers. */
typedef struct zero_config {
    int stage;                      /* 0..3 */
    int micro_steps;                /* micro-steps per step, at most; 0: 1 */
    zero_accumulation accumulation; /* where micro-steps accumulate */
    zero_type type;                 /* type of stored parameters */
    zero_grad_type grads;           /* type that backward adds to */
    zero_master master;             /* how the f32 values of 16-bit parameters are kept */
    zero_state_type state_type;     /* how the optimizer's state is kept, with any type */
    uint64_t seed; /* of stochastic rounding (master NONE, state_type not F32), by (seed, step,
                      tensor, element) only */
    zero_optimizer optimizer;
    zero_scaler scaler;
    int prefetch; /* stage 3: units gathered ahead, in prefetch + 2 buffers; 0: 1; ZERO_NONE: 0 */
    size_t bucket_numel;       /* elements reduced together, at least the largest unit that shares a
                                  buffer; 0: that unit's */
    int64_t persistence_numel; /* stage 3: a unit whose tensors all have at most this many elements
                                  stays unsharded; 0: units of 1-D tensors only; ZERO_NONE: none */
    int no_overlap;            /* communicate on the calling thread, at once */
    int no_overflow_check; /* update even if a gradient is not finite; max_norm > 0 checks anyway */
    int no_mapping;        /* stage 3, LOCAL: copy peers' shards, also those readable in place */
    int threads; /* OpenMP threads of this rank (CUDA: for tier HOST). 0: OMP_NUM_THREADS, otherwise
                    one per processor, shared among LOCAL ranks (not among NCCL's) */
    void *stream; /* CUDA: the cudaStream_t that your code computes on, of the current device; NULL:
                     CUDA's default stream */
    double timeout_s; /* longest wait for a peer in a collective, in seconds; 0: 600. NCCL:
                         longer than the work enqueued between two results */
    zero_log_fn log;  /* receives every error's sentence; NULL: no log */
    void *log_user;   /* passed to log; borrowed until zero_destroy */
    int open_units; /* most units that your code has open at once, each with a buffer. 0: one after
                       the other, with some nesting (see zero_plan); ZERO_ALL: all, for loops that
                       use every unit per iteration (per token) */
    zero_tier optimizer_tier; /* where optimizer state and master weights are kept */
    const char *folder;       /* FILE: folder for this rank's file; borrowed until zero_destroy. The
                                 file has no name and vanishes with the process */
    zero_tier gradient_tier;  /* where this rank's shard of the reduced gradients is kept until the
                                 update. FILE: stages 2 and 3, with sharded accumulation */
    zero_tier parameter_tier; /* stage 3: this rank's shard of parameters, but no unsharded unit */
    float offload_share; /* part of all elements to offload, in whole units, updated last; 0: 1 */
    int no_file_check;   /* FILE: do not compare pieces read with their checksums */
    int delay_from; /* DELAYED UPDATE from this step on, counting skipped steps (1: the first; 0:
                       never); see below. CUDA: all units offloaded, parameters not */
    zero_trace_fn trace; /* receives the trace; NULL: no trace, at no cost. It changes no bit. CUDA:
                            if nvtx3/nvToolsExt.h was found, calls are NVTX ranges too */
    void *trace_user;    /* passed to trace; borrowed until zero_destroy */
    float trust_least, trust_most; /* LAMB: bounds of the trust ratio; 0: none, as in the paper */
    zero_muon muon;
    zero_update_on update_on;
    float link_gbs;   /* AUTO: GB/s between CPU and GPU memory, in one direction; 0: 25 */
    float memory_gbs; /* AUTO: GB/s of CPU memory, this rank's part; 0: 60 */
    /* [groups] IN ADDITION TO DATA PARALLELISM, read until zero_build returns: GROUPS OF RANKS */
    zero_group *world; /* ranks that agree on norm, overflow, loss scale, skip and values that a
                          step needs equal, among them the sharding ranks; NULL: those */
    int world_units;   /* with world: units of the whole model over all ranks, without KEEP tensors;
                          0: this rank's units */
    const int *world_unit; /* [this rank's units] number of each in the whole model, ascending,
                              below world_units; NULL: its own number */
    int divisor;     /* divides the sum of gradients over ranks; 0: nranks. Experts: the number of
                        data-parallel ranks, whose tokens the all-to-all sent. Sums over B samples:
                        nranks * B. Norm, clipping and access by name use the divided gradients */
    zero_ctx *joins; /* a context of the same rank, world and world_units, for example of dense
                        layers, that this one (experts) steps with: JOINED CONTEXTS. NULL: none */
    /* [subgroups] Ranks with fast links to each other; see HIERARCHY below */
    int shard_ranks;  /* stages 1 to 3: consecutive ranks that share one copy of all shards; other
                         such groups are replicas. Divides nranks. 0: all ranks */
    int second_ranks; /* stage 3: consecutive ranks with a secondary partition of the parameters;
                         divides shard_ranks, or nranks. 0: none */
    /* [packed] QUANTIZED COMMUNICATION: numbers are sent as integers of 8 or 4 bits, in blocks
       of 128 with a scale each; 0: as stored. CPU and CUDA builds have other blocks: bits differ */
    int weight_bits;   /* stage 3: gathers of weights. Every rank, the owner included, computes with
                          the dequantized values. Shards, masters, checkpoints and unsharded units
                          stay exact; no_mapping has no effect (ZeRO++, Wang et al. 2023: qwZ) */
    int gradient_bits; /* stages 1 to 3: reductions (ZeRO++: qgZ), except units with ZERO_ONE_D
                          tensors only: an all-to-all inside nodes of comm.node_size ranks, sums in
                          f32, quantized again for one between nodes */
    float feedback; /* error feedback of these reductions: this rank's rounding errors are kept and
                       sent later, as a moving average with this beta (LoCo, Xie et al. 2024: 0.8).
                       Takes 2 bytes per element on every rank, or 4 in fp16, where a skipped step
                       leaves the errors unchanged. 0: errors are dropped */
    int feedback_reset; /* steps, including skipped ones, after which errors become 0; 0: never */
    int frozen_weight_bits; /* weight_bits of frozen tensors; 0: as weight_bits */
    int virtual_ranks;      /* see VIRTUAL RANKS below; 0: off, at no cost */
    int integrity; /* 1: find memory that changed, see INTEGRITY below; 0: off, at no cost */
} zero_config;

/* [subgroups] HIERARCHY, for ranks with fast links to some of the others, such as those of a node.
   cfg.shard_ranks S (MiCS, HSDP): each SHARD GROUP of S consecutive ranks keeps one copy of the
   sharded state in S parts instead of N, and gathers and reduces among its ranks only. In the last
   micro-step, the N/S ranks at the same place in all groups sum each unit's shards in f32 in order,
   divide, and round once. With one micro-step and node_size S, bits equal those without
   shard_ranks. The norm's bits and the ranges that a rank saves are those of N shards for every S.
   cfg.second_ranks S (hpZ): the first gather of a unit after an update also stores an S-th part of
   the unit on each rank. Until the next update, gathers need only the S consecutive ranks that have
   all parts. No bit depends on it. Units that are kept unsharded or have their own buffer, and
   shards read in place (LOCAL without cfg.no_mapping) have none. */

/* [virtual] VIRTUAL RANKS (cfg.virtual_ranks V): bits do not depend on the number of ranks N. Each
   rank has V/N micro-steps per step; those of rank r are leaves r V/N to (r + 1) V/N - 1 of a tree.
   It adds gradients by V's prime factors, the largest at the top, and children in order. N is a
   product of the first factors (of 12: 1, 3, 6 or 12). The loss of a micro-step is the mean over
   its own tokens: the plugin divides by V, once. cfg.micro_steps 0 is V/N, cfg.divisor 0 is V. For
   16 bits, state cfg.grads. A rank keeps an f32 sum of all gradients for each level of its subtree
   (zero_plan.accumulator_bytes), and if N < V sends 16-bit gradients in f32. zero_train_end adds
   losses in the order of leaves. ARGUMENT with CUDA, MPI, quantized communication, accumulation
   SHARDED, shard_ranks, world, zero_touch_rows, sum_over, slice_of and a tensor's divisor. */

/* [offload] DELAYED UPDATE (cfg.delay_from): zero_step decides norm, skip, clip and scale as usual,
   and the update overlaps the next step, whose passes use the weights before it. Each unit's new
   weights arrive after its last reduction in that step, for the following step: W(t+1) =
   update(W(t), gradient at W(t-1)). It needs a second copy of this rank's shard of the weights, and
   separate gradients. Evaluations and ZERO_PARAMETER use the weights of the next passes; moments,
   ZERO_MASTER and zero_hash the newest; a checkpoint has both. A write by name ends the delay. */

/* [integrity] INTEGRITY (cfg.integrity). A rank keeps hashes of its parameters, master weights,
   optimizer state and sums of gradients, and compares them at the next use. When a step's ranks
   agree, they compare the hashes of parameters that they gathered or keep a copy of. A difference
   is DEVICE and names rank, array, unit and step, before an update uses it (of an offloaded unit:
   by the next call). No bit depends on it. adapters/docs/reliability.md lists the limits.
   ARGUMENT with CUDA, checked builds, delay_from, weight_bits, world, joins, unchecked files. */

/* [groups] JOINED CONTEXTS. Tensors that are sharded over other ranks than the rest (experts) need
   their own context, which joins the other (cfg.joins). Each context has its own passes and hooks,
   which write into the same structs of pointers. Call zero_reduce for the joining context first,
   then for the other, which agrees on one norm, overflow and loss scale for both; then zero_step
   for both. Destroy the joining context first. */

/* ---- tensors --------------------------------------------------------------------------------- */
enum {
    ZERO_KEEP = 1,        /* read outside its unit's begin and end: kept unsharded, type-major
                             [layers, numel]; zero_bind writes its pointer, which never moves */
    ZERO_NO_DECAY = 2,    /* no weight decay */
    ZERO_OVERWRITTEN = 4, /* backward stores (=) a pass's first gradient, so that its memory need
                             not be cleared. Not for local accumulation over several micro-steps */
    ZERO_ONE_D = 8,       /* a vector per layer (bias, norm): see persistence_numel */
    ZERO_BY_SLOT = 16,    /* no field in your structs: `param` and `grad` are set, or not needed */
    ZERO_AGAIN = 32,      /* forward uses it once more per pass than backward */
    ZERO_INLINE = 64,  /* for zero_lend: `field`, or `param` and `grad` (then of one layer), are the
                          arrays themselves, such as `float w[10][784]` */
    ZERO_COPY = 128,   /* with cfg.world: this rank does not count its gradient in the norm, because
                          ranks outside the sharding group do. Examples: a tied tensor on all stages
                          but the first; replicated norms on tensor-parallel ranks but the first */
    ZERO_LATE = 256,   /* its unit is reduced at the end of the pass. For sum_over, if ranks reach
                          it at different places of backward (a tied tensor in a pipeline) */
    ZERO_FROZEN = 512, /* not trained. No gradient (its pointer is NULL), optimizer state, master or
                          reduction, no part in the norm. Kept and gathered as any other parameter,
                          in the unit's second segment. lr_factor and the like have no effect */
    ZERO_F32_STATE = 1024 /* state is F32 for any state_type; all trained tensors of a unit alike */
};
typedef struct zero_tensor_desc {
    const char *name; /* unique; copied. NULL: its number, 0 for the first tensor */
    size_t numel;     /* elements per layer, 1 or more */
    int layers;       /* 0: 1; at most 2^20. Layer l belongs to unit `unit + l` */
    int unit;         /* unit of layer 0, 0..2^20; the units of all tensors must be 0..n-1 */
    int uses;         /* times that backward writes its gradient per pass; 0: 1 (tied: 2). Forward
                         uses it as often, with ZERO_AGAIN once more */
    int flags;        /* ZERO_KEEP | ... */
    int together; /* layers that share a unit: layer l belongs to unit `unit + l / together`, and
                     these layers are contiguous in memory; 0: 1 */
    int every;    /* distance between its units: layer l belongs to unit `unit + l * every` (with
                     `together`, count groups of layers). 2: every second block; 0: 1 */
    float lr_factor, decay_factor; /* multiply the step's learning rate and weight decay. 0: 1;
                                      ZERO_NONE: 0 */
    const char *frozen; /* [layers] not 0: this layer is ZERO_FROZEN, its moments 0; copied. Layers
                           of KEEP tensors, and layers together in a unit, are alike. NULL: none */
    int divisor;        /* divides the sum of its gradient over ranks (in f32, rounded, before norm,
                           clipping and access by name); 0: cfg.divisor */
    size_t rows, cols;  /* MUON: each layer is one or several row-major matrices [rows, cols] of the
                           whole tensor. A fused query, key and value is one of 3C x C or three of C
                           x C. Not for embeddings and classifiers. 0: no matrix; ADAMW */
    zero_group *slice_of; /* LAMB, MUON: ranks that this tensor is sliced over (tensor parallelism);
                             NULL: whole. LAMB's ratio covers all slices; one rank orthogonalises a
                             matrix. One group for all tensors; borrowed until zero_destroy */
    size_t outer; /* with slice_of: rank r of the group has the r-th equal part of each of `outer`
                     rows of a layer. 0: 1. A matrix cut by rows: 1; by columns: its rows; a fused
                     query, key and value cut by heads: 3 */
    zero_group *sum_over; /* ranks of other sharding groups over which its gradient is summed first:
                             tied embeddings of first and last pipeline stage, norms under sequence
                             parallelism. They announce such tensors in the same order and reduce
                             them equally often. NULL: none; borrowed until zero_destroy */
    size_t row_numel; /* elements of a row for zero_touch_rows, which divide numel; 0: no rows */
    /* Your pointers to the tensor, which the plugin writes: fields, or variables at any place */
    const char *same_as; /* this row is no tensor, but another pointer to that of an earlier row,
                            such as a classifier's that is tied to the embedding: name, numel,
                            layers and the next four columns alone. NULL: a tensor */
    size_t field;        /* offset of the pointer in your structs of parameters and gradients */
    void *param, *grad;  /* instead of `field`: address of the pointer to layer 0 of the parameter,
                            and of the gradient; either may be NULL. Borrowed until zero_destroy */
    size_t stride;       /* bytes from there to the pointer to the next layer; 0: sizeof(void *) */
} zero_tensor_desc; /* zeros are the defaults; equal on all ranks, except COPY, groups, pointers */

/* Makes a row of a table of tensors, named after the struct's field. Further fields follow by name,
   in order of declaration (C11; C++20, or C++17 as GNU, clang and nvcc accept it). */
#define ZERO_FIELD(type, member, ...)                                                              \
    ZERO_ROW { .name = #member, .numel = __VA_ARGS__, .field = offsetof(type, member) }

/* ---- create a context ------------------------------------------------------------------------ */
/* Create a context for this rank. If an error leaves *z non-NULL, zero_last_error(*z) returns the
   reason, and your code must still destroy *z.
   COLLECTIVE over the ranks of comm. SYNC.
   Errors: MEMORY; UNSUPPORTED if this build lacks the kind of comm or a setting. All are sticky. */
zero_result zero_create(zero_ctx **z, const zero_config *cfg, const zero_comm *comm);

/* Start nranks ranks of this machine, each of which continues main with a context of its own.
   Returns -1 in each rank, with its context in *z. Otherwise *z is NULL and this process must exit
   with the returned value: in a rank without a context the zero_result, and in the process that
   called, after its ranks have ended, zero_run_local's value. zero_run_local's rules for processes
   hold here, too. cfg.log also gets errors that no rank can report: why none was started, or the
   first rank that a signal ended and its last call. CUDA: call this before the first call of CUDA.
   Each rank has the GPU of its number, and NCCL connects them; without NCCL only one can start.
   SYNC. */
int zero_start_local(zero_ctx **z, const zero_config *cfg, int nranks);

/* Calls zero_start_local in main and returns from main if it must. Settings follow by name, such as
   .stage = 1 (C11; C++20, in order). Without .log, warnings and errors go to stderr. */
#define ZERO_START_LOCAL(z, nranks, ...)                                                           \
    do {                                                                                           \
        zero_config zero_settings = {__VA_ARGS__};                                                 \
        if (!zero_settings.log) zero_settings.log = zero_log_file;                                 \
        const int zero_ended = zero_start_local(&(z), &zero_settings, nranks);                     \
        if (zero_ended >= 0) return zero_ended;                                                    \
    } while (0)

/* Return this rank, 0..nranks-1, and the number of ranks. */
int zero_rank(const zero_ctx *z);
int zero_nranks(const zero_ctx *z);
/* Announce a tensor, before zero_build and in the same order on all ranks.
   Errors: MEMORY; UNSUPPORTED if this build lacks what a field asks for. */
zero_result zero_tensor(zero_ctx *z, const zero_tensor_desc *desc);
/* Announce n tensors in order, up to the first error, which is one of zero_tensor. */
zero_result zero_tensors(zero_ctx *z, const zero_tensor_desc *desc, int n);
/* Announce a row of scattered pointers or arrays. Such rows need no test: zero_build, zero_adopt
   and zero_lend return ARGUMENT with the sentence of the first refused row. If the name is taken, a
   number follows: `attention[l]->wq 1` is the second. A row without unit and flags is KEEP; with
   ZERO_INLINE alone, small tensors share a unit. The macros name the row after the expression:
       ZERO_PLACE(z, attention[l]->wq, attention[l]->wq_grad, C * C); // two pointers: zero_adopt
       ZERO_ARRAY(z, attention[l]->wq, flat_gradient + at, C * C);    // two arrays: zero_lend
   After the size, ZERO_PLACE takes further fields by name, as ZERO_FIELD does.
   Errors: those of zero_tensor. */
zero_result zero_place(zero_ctx *z, const zero_tensor_desc *row);
#define ZERO_ADD_ROW(z, ...)                                                                       \
    do {                                                                                           \
        const zero_tensor_desc zero_row = {__VA_ARGS__};                                           \
        (void)zero_place(z, &zero_row);                                                            \
    } while (0)
#define ZERO_PLACE(z, p, g, ...)                                                                   \
    ZERO_ADD_ROW(z, .name = #p, .numel = __VA_ARGS__, .param = &(p), .grad = &(g))
#define ZERO_ARRAY(z, p, g, n)                                                                     \
    ZERO_ADD_ROW(z, .name = #p, .numel = (n), .flags = ZERO_INLINE, .param = (p), .grad = (g))

/* Partition the tensors, allocate, and compare configuration and tensors over the ranks. On a
   difference, all return MISMATCH; part "agree" names the first. Parameters and state are zeros.
   COLLECTIVE. SYNC.
   Errors: MEMORY; ARGUMENT if the units are not 0..n-1. */
zero_result zero_build(zero_ctx *z);
/* Write the pointers of KEEP tensors into your structs of base pointers (either may be NULL). Call
   it once after zero_build, and for every further copy of the structs. */
zero_result zero_bind(zero_ctx *z, void *params, void *grads);
/* Copy the weights from your arrays, then release the arrays. It replaces zero_bind, and calls
   zero_build first unless you have. Fields of `params` and slots (`param` of a row) point to your
   arrays: numbers of `type`, [layers, numel] (a slot: [numel]), in memory that the context's device
   reads, with the same values on all ranks. `params` and `grads` may be NULL if all tensors have
   slots. Both structs are borrowed until zero_destroy, which sets their pointers and slots to NULL.
   Pointers of tensors without KEEP are NULL until their hooks.
   `release` (free, cudaFree ...) is called for each array of weights after its copy, and for the
   array of gradients of the same tensor, if that is not NULL. Each array must be one allocation;
   gradients have the type of cfg.grads. If `release` is NULL, all arrays stay yours.
   Checked builds fill the old parameters with NaN, to expose code that still reads them, and, if
   `release` is free or CUDA allocated the arrays, compare the arrays' sizes with the table.
   COLLECTIVE. SYNC.
   Errors: those of zero_build; ARGUMENT if a pointer is NULL, two arrays overlap, or cfg.grads is
   AUTO and gradients have another type; MISMATCH, not sticky, if the ranks' values differ. */
zero_result zero_adopt(zero_ctx *z, void *params, void *grads, zero_type type,
                       void (*release)(void *array));

/* ---- a step ---------------------------------------------------------------------------------- */
/* The update rules. g is the mean gradient, unscaled, times min(1, max_norm / (norm + 1e-6)), t the
   number of steps taken with this one; the tensor's factors multiply lr and weight_decay:
     ADAMW  Loshchilov and Hutter 2019, algorithm 2:
              m = beta1 m + (1 - beta1) g,  v = beta2 v + (1 - beta2) g^2,
              p = p - lr (m / (1 - beta1^t) / (sqrt(v / (1 - beta2^t)) + eps) + weight_decay p)
     ADAM   Kingma and Ba 2015: the same with g + weight_decay p for g, and no decay at the end
     SGD    Sutskever et al. 2013, as PyTorch writes it: g = g + weight_decay p,
              m = g at the first step, then beta1 m + g,  p = p - lr m
     NESTEROV  the same with p = p - lr (g + beta1 m)
     LION   Chen et al. 2023, algorithm 2: c = beta1 m + (1 - beta1) g,
              p = p - lr (sign(c) + weight_decay p),  m = beta2 m + (1 - beta2) g
     ADAGRAD  Duchi, Hazan and Singer 2011, as PyTorch writes it: g = g + weight_decay p,
              s = s + g^2 (s is 0 at first),  p = p - lr g / (sqrt(s) + eps)
     LAMB   [muon] You et al. 2020, algorithm 2: m and v as ADAMW's,
              u = m / (1 - beta1^t) / (sqrt(v / (1 - beta2^t)) + eps) + weight_decay p,
              p = p - lr r u,  r = |p| / |u| of the layer, within cfg.trust_least and trust_most,
              or 1 where either is 0. A layer is one of zero_tensor_desc.layers, biases too.
              The norms' squares are summed without rounding: the same bits on any ranks
     MUON   [muon] Jordan et al. 2024, as torch.optim.Muon writes it, of each matrix [rows, cols],
            with mu = cfg.muon.momentum: m = mu m + (1 - mu) g,  d = mu m + (1 - mu) g,
              X = d / max(|d|, 1e-7) (X' where rows > cols), cfg.muon.iterations times:
                A = X X',  X = a X + (b A + c A A) X  (a 3.4445, b -4.775, c 2.0315; with
                cfg.muon.polar_express d / max(1.01 |d|, 1e-7) and those of Amsel et al. 2025),
              with n = cfg.muon.normalize (Li et al. 2025), for each row x: r = n r + (1 - n)
                mean(x^2) (0 at first),  x = x / (sqrt(r) + 1e-10); then X gets its |X| back,
              p = p - lr (weight_decay p + s X),  s = sqrt(max(1, rows / cols)),
                or, with cfg.muon.match_rms, 0.2 sqrt(max(rows, cols)). In f32. An owner of each
              matrix, by cost, receives d and returns X, by whole units; it also keeps r. Other
              tensors use ADAMW with lr times cfg.muon.plain_lr; only they have MOMENT_2 by name */
typedef struct zero_hyper {
    float lr;
    float beta1, beta2, eps; /* SGD, NESTEROV: beta1 is the momentum. MUON: for other tensors. A
                                rule ignores what its formula lacks. If used, eps is not 0 */
    float weight_decay;
    float max_norm; /* global 2-norm to clip to; 0: no clipping */
} zero_hyper;
/* Begin and end a micro-step: one forward and backward of your code. After the last of
   cfg.micro_steps micro-steps, end updates the weights. Backward starts from the loss divided by
   the number of micro-steps, times zero_loss_scale. KEEP tensors are final from the next begin on.
   If all tensors are KEEP, your forward and backward need no hooks. Then every rank keeps whole
   parameters and gradients at every stage, and weights are final after end, until the next end.
   `loss` is this rank's, of this micro-step. `mean` gets its mean over micro-steps and all ranks
   after the last micro-step, and this rank's mean so far before. It is NULL on all ranks or none.
   COLLECTIVE. SYNC after the last micro-step if mean is not NULL.
   Errors: those of the four calls below; STATE also if a tensor is not KEEP and has no hooks. */
zero_result zero_train_begin(zero_ctx *z);
zero_result zero_train_end(zero_ctx *z, const zero_hyper *hyper, double loss, double *mean);
/* Return the factor for the loss before every backward of the coming step: 1 unless the type is F16
   or cfg.scaler sets it. The update divides by it. If it can differ from 1, zero_reduce needs it.
   SYNC if the scale is dynamic: it waits for the last step's agreement. */
float zero_loss_scale(zero_ctx *z);
/* Begin and end a unit's forward. `params` is your struct of base pointers (NULL if all tensors
   have slots). begin writes `memory - layer * numel` into the fields of the unit's tensors, so that
   `params->X + layer * numel` is the layer's tensor. Your stream waits for the unit's gather (stage
   3; at 1 and 2 for the one after the step), and the next units are prefetched. Hooks nest by
   count. A forward may run inside a backward of the same unit (activation checkpointing).
   COLLECTIVE.
   Errors: STATE at stage 3 also if more units are open than buffers (cfg.open_units). */
zero_result zero_forward_begin(zero_ctx *z, int unit, void *params);
zero_result zero_forward_end(zero_ctx *z, int unit);
#define ZERO_WANTED ((void *)1) /* no struct: slots get the pointers */
/* Begin and end a unit's backward. If `params` is NULL, backward only touches gradients (an
   embedding lookup): nothing is gathered, and the unit's parameter slots become NULL. With slots
   alone, pass ZERO_WANTED if backward reads weights. Gradients are cleared at the first use of a
   pass (of a step, with local accumulation), and backward adds to them. The unit's reduction starts
   after its last use in the last micro-step (in each micro-step, with sharded accumulation).
   COLLECTIVE.
   Errors: STATE also if the unit is used more often than announced, or 64 backwards are nested. */
zero_result zero_backward_begin(zero_ctx *z, int unit, void *params, void *grads);
zero_result zero_backward_end(zero_ctx *z, int unit);

typedef struct zero_step_report {
    int stepped; /* 0: skipped, by a gradient that is not finite or by zero_skip_step */
    double norm; /* 2-norm of the mean gradient, unscaled, before clipping */
    float loss_scale, next_loss_scale; /* this gradient was divided by it; the next step's */
    int64_t steps, skipped;            /* totals of the run */
    const char *bad_tensor; /* first tensor whose gradient is not finite, in unit order; owned by
                               ctx. NULL: none. With cfg.world: "one of another rank" */
    size_t bad_index;       /* its element, over all layers */
    int bad_rank;           /* the rank that owns that element */
} zero_step_report;
/* Report the last step, from zero_step until the next zero_reduce.
   SYNC.
   Errors: SCALE, not sticky, if it was skipped at the smallest scale; the report is valid. */
zero_result zero_step_result(zero_ctx *z, zero_step_report *report);

/* ---- a step in four calls -------------------------------------------------------------------- */
/* zero_train_begin is zero_pass_begin of the next micro-step; zero_train_end is zero_pass_end and,
   after the last micro-step, zero_reduce and zero_step. You need the four for evaluations, for
   pipelines, for fewer micro-steps, and for zero_norm and zero_skip_step. */
typedef enum zero_pass { ZERO_TRAIN = 0, ZERO_EVAL } zero_pass;
#define ZERO_TOGETHER (-2)
/* Begin a pass. `micro` counts 0..micro_steps-1 within a step. ZERO_EVAL: forward hooks only, micro
   0 of 1. ZERO_TOGETHER: all micro-steps of the step in one pass, for pipelines, with the hooks of
   several micro-batches in any order, such as forward 2 before backward 1. Each unit's f32 gradient
   is then cleared once and complete after uses * micro_steps backwards. With accumulation SHARDED
   it is cleared and reduced per micro-batch, whose `uses` backwards are consecutive (KEEP and LATE
   tensors: once, at the end). Bits are those of separate micro-steps if backwards keep their order.
   COLLECTIVE.
   Errors: ARGUMENT also for ZERO_TOGETHER of several micro-steps with 16-bit gradients. */
zero_result zero_pass_begin(zero_ctx *z, zero_pass kind, int micro, int micro_steps);
/* End the pass. Units with no backward, or fewer uses than announced, are reduced here in
   descending order, with missing gradients as zeros; then KEEP tensors.
   COLLECTIVE. */
zero_result zero_pass_end(zero_ctx *z);
/* End the reductions after the last micro-step. Until zero_step, gradients can be read by name.
   COLLECTIVE. */
zero_result zero_reduce(zero_ctx *z);
/* Update all parameters and start their gathers. If the norm is not finite (unless
   no_overflow_check), all ranks skip the update: weights, moments and the count of steps stay. If
   ranks pass different values, or only some call zero_skip_step, all get MISMATCH with those values
   when the next step's norm is agreed on: from its result or, if you never ask, a later zero_step.
   COLLECTIVE. SYNC at stage 3 of LOCAL after an evaluation or a read since zero_reduce. */
zero_result zero_step(zero_ctx *z, const zero_hyper *hyper);

/* ---- errors, and the end --------------------------------------------------------------------- */
/* Return the sentence of a result, never NULL. */
const char *zero_result_string(zero_result result);
/* Return the sentence of the last error, or "". Owned by ctx, until the next call with it. */
const char *zero_last_error(const zero_ctx *z);
/* Wait for pending work and free everything. NULL is allowed. A failed context notifies its peers,
   so that they do not wait for it. MPI: all ranks, or none, free windows and communicators.
   COLLECTIVE with MPI and NCCL, for at most timeout_s (before zero_build 3 s). SYNC. */
void zero_destroy(zero_ctx *z);

/* ==== MORE: not needed for stages 0 to 3, by capability ====================================== */
/* ---- plan, statistics, settings -------------------------------------------------------------- */
/* Memory and traffic of one rank, in bytes. */
typedef struct zero_plan {
    size_t numel;                   /* P: elements of all tensors, without padding */
    size_t padded_numel;            /* with alignment and padding to equal shards */
    size_t param_bytes, grad_bytes; /* the stage table's shares, padding included */
    size_t optimizer_bytes;         /* of optimizer state and master weights on the device */
    size_t buffer_bytes;            /* gathered units, gradients in transit, staging, accumulators,
                                       second copy of a delayed update */
    size_t formula_bytes;           /* the stage table, from numel alone */
    size_t buffer_ceiling_bytes;    /* design limit of buffer_bytes minus accumulators */
    size_t accumulator_bytes;       /* the part of buffer_bytes for gradient accumulation */
    size_t sent_bytes; /* per step, with padding: (N-1)/N of each unit per reduction and gather */
    size_t formula_sent_bytes; /* the same from numel alone, without padding */
    size_t kept_bytes; /* stage 3: parameters kept unsharded by KEEP or persistence, in buffer */
    int units, nranks;
    size_t verdict_bytes; /* per step: agreements, LAMB's sums of squares; not in sent_bytes */
    int open_forward, open_backward; /* units that may be open at once; `units`: all */
    size_t file_bytes;               /* in files: not in optimizer_bytes, but in formula_bytes */
    size_t file_read_bytes, file_written_bytes; /* in a step */
    size_t host_bytes;        /* CUDA: optimizer state, master weights and staging in CPU memory */
    zero_update_on update_on; /* CUDA: processor that updates tier HOST; AUTO: HOST is unused */
    double update_host_s, update_device_s; /* seconds per step, by link_gbs and memory_gbs */
    size_t second_bytes;              /* the part of buffer_bytes for the secondary partition */
    size_t near_bytes, replica_bytes; /* of sent_bytes: among second_ranks ranks; to replicas */
    size_t packed_bytes;  /* the part of buffer_bytes for quantized messages and error feedback */
    size_t pinned_bytes;  /* CUDA: the part of host_bytes that is pinned */
    const char *file_way; /* from zero_build on: how the file is accessed, in words; NULL: none */
    size_t gather_bytes;  /* the part of sent_bytes for gathers of parameters */
    size_t down_bytes, up_bytes; /* CUDA, offload: per step, device to CPU memory and back */
    size_t context_bytes; /* CPU memory of lists, queues of threads, meeting place of ranks */
    size_t hash_bytes;    /* the part of context_bytes for hashes (cfg.integrity) */
} zero_plan;
/* One unit's part of the plan, in elements, per step of micro_steps micro-steps. */
typedef struct zero_plan_unit {
    size_t numel, padded; /* without padding; as nranks equal shards */
    int reductions;
    int gathers;   /* of parameters, trained and frozen apart; at stage 0 of gradients */
    int unsharded; /* 1: every rank has the whole parameters */
    size_t sent_bytes;
} zero_plan_unit;
/* Return memory and traffic of the tensors announced so far, at any time, without allocating on a
   device or asking a peer. `unit`: 0..units-1; the last one: all KEEP tensors.
   Errors: MEMORY; before zero_build, those of settings that do not fit the tensors. */
zero_result zero_query_plan(zero_ctx *z, zero_plan *plan);
zero_result zero_query_plan_unit(zero_ctx *z, int unit, zero_plan_unit *plan);
/* [suggest] The most that this rank may take, and its rates. 0: no limit, or an unknown rate. */
typedef struct zero_limits {
    size_t device_bytes; /* the context in the device's memory (CPU version: in CPU memory) */
    size_t host_bytes;   /* CUDA: the context in CPU memory */
    size_t file_bytes;   /* this rank's file */
    double compute_s;    /* forward and backward of all micro-steps; 0: they hide nothing */
    double send_gbs;     /* GB/s that the rank sends while the others do, too; 0: 1 */
    double file_gbs;     /* GB/s that it reads and writes in cfg.folder; 0: 1 */
    double update_gbs;   /* GB/s that the update reads and writes; 0: 10. By the CPU next to a GPU:
                            cfg.link_gbs and memory_gbs */
} zero_limits;
/* Set stage, prefetch and the tiers of optimizer, gradients and parameters to those with the
   shortest step among all that fit into `limits`. Their values in zero_create's cfg have no effect;
   the other settings stay. Without cfg.folder there are no files. Call it after all tensors are
   announced, before zero_build, zero_adopt or zero_lend. `cfg` (or NULL) gets the new settings, for
   other contexts, with the planned bucket_numel. With the plan of zero_query_plan, a step takes
   compute_s, plus exposed messages, plus the longer of the update and the file's traffic less a
   third of compute_s (forward). Two thirds of compute_s (backward) hide reductions; the whole hides
   reductions and gathers together. Without prefetch, stage 3 hides no gather. With cfg.no_overlap
   nothing is hidden. If steps are equally long, the lowest stage is chosen, then DEVICE before HOST
   and FILE, then prefetch 1. Ranks may give different limits: the slowest counts, and all fit.
   COLLECTIVE. SYNC.
   Errors: MEMORY if nothing fits, with the least device_bytes that would; settings then stay. */
zero_result zero_suggest(zero_ctx *z, const zero_limits *limits, zero_config *cfg);
/* Return the number n of tensors so far, and tensor i, 0..n-1, with defaults. ctx owns the name. */
int zero_tensor_count(const zero_ctx *z);
zero_result zero_query_tensor(zero_ctx *z, int i, zero_tensor_desc *desc);
/* Return the configuration with every default resolved (bucket_numel: from the first plan on). */
void zero_query_config(const zero_ctx *z, zero_config *cfg);
/* Counters of this rank since zero_build, in bytes and seconds. */
typedef struct zero_stats {
    size_t param_bytes, grad_bytes, optimizer_bytes, buffer_bytes; /* allocated, as in zero_plan */
    size_t allocated_bytes; /* from the system, in pages, with a share of what all ranks map */
    uint64_t sent_bytes;    /* counted where collectives are issued, as in zero_plan */
    uint64_t mapped_bytes;  /* the part of sent_bytes read in place, without a copy */
    uint64_t reductions, gathers, steps, skipped; /* units reduced, and gathered; steps */
    double exposed_s; /* calling thread's waits for communication (CPU; CUDA: 0, streams wait) */
    double hooks_s;   /* calling thread inside the calls of a pass, with waits and clearing */
    uint64_t verdict_bytes; /* sent for agreement at the end of steps, as in zero_plan */
    uint64_t control_bytes; /* sent by small collectives, access by name, checkpoints, building */
    uint64_t file_read_bytes, file_written_bytes;     /* reads ahead of a step count in it */
    double file_s;                                    /* waits of the calling thread for the file */
    uint64_t near_bytes, replica_bytes, gather_bytes; /* parts of sent_bytes, as in zero_plan */
    uint64_t down_bytes, up_bytes; /* as in zero_plan; writes by name add to down_bytes */
} zero_stats;
/* Return the counters, after all pending work, so that they are exact.
   SYNC. */
zero_result zero_query_stats(zero_ctx *z, zero_stats *stats);
/* Write warnings and errors to the FILE * `file`; NULL: stderr. You may use it as cfg.log. */
void zero_log_file(void *file, zero_log_level level, const char *sentence);
/* Return the compiled version and ABI. A program that loads the library compares with ZERO_ABI. */
const char *zero_version(void);
int zero_abi(void);

/* ---- more about steps ------------------------------------------------------------------------ */
/* Return the 2-norm of the mean gradient, equal at every stage: squares are summed in f64 by fixed
   blocks, units as they are reduced, and ranks, all in order. From zero_reduce to zero_step.
   SYNC. */
zero_result zero_norm(zero_ctx *z, double *norm);
/* Drop the gradient and count the step as skipped, instead of zero_step, by a rule of your own such
   as an unusual norm. Weights, moments and the count of steps stay. A dynamic loss scale counts the
   gradient as usual. All ranks decide the same (see zero_step).
   COLLECTIVE. */
zero_result zero_skip_step(zero_ctx *z);
/* End a pending delayed update, if any: evaluations and the next step then use the newest weights.
   Call it at the end of a run, after its last checkpoint; earlier it changes results.
   COLLECTIVE. SYNC. */
zero_result zero_apply_pending(zero_ctx *z);

/* Announce the rows (over all layers, in any order) of a tensor with row_numel that backward writes
   in this micro-step, before it ends; more calls add rows. All other rows of its gradient are zeros
   and are not sent, if that pays. Bits do not change, except with NCCL: rows are added in rank
   order in f32, dense gradients in NCCL's order. Without a call, all rows are sent. A checked build
   finds forgotten rows; others lose them. zero_plan counts all rows, zero_stats those sent. */
zero_result zero_touch_rows(zero_ctx *z, const char *tensor, const int *rows, int n);

/* ---- the order of a pass --------------------------------------------------------------------- */
typedef enum zero_pass_call_kind {
    ZERO_CALL_FORWARD = 0, /* zero_forward_begin of a unit that is not open */
    ZERO_CALL_BACKWARD,    /* zero_backward_begin of one, with parameters */
    ZERO_CALL_KINDS
} zero_pass_call_kind;
typedef struct zero_pass_call {
    zero_pass_call_kind kind;
    int unit;
} zero_pass_call;
/* Announce THE ORDER OF A PASS, for example of a pipeline schedule. No bit depends on it. At stage
   3, the units that came next in the pass before are prefetched (cfg.prefetch), in the first pass
   those of a model of layers. An announced order replaces both. Before zero_build, the plan counts
   its gathers, and, for ZERO_TOGETHER with SHARDED, the one reduction of KEEP and LATE tensors.
   `calls` (copied) are those of a pass that need parameters, in order, without hooks of a unit
   that is already open and without backwards with `params` NULL. A call that is not the next one is
   refused, and the pass can continue from there; so is an end before the last one. The order holds
   for every pass of that kind (`micro` ZERO_TOGETHER: all micro-steps together, otherwise 0) until
   another one replaces it; n 0: the plugin learns it again. Call it after the tensors or between
   steps. All ranks' orders are compared here, or in zero_build.
   COLLECTIVE. SYNC.
   Errors: MEMORY; MISMATCH with the first call that differs. */
zero_result zero_pass_order(zero_ctx *z, zero_pass kind, int micro, const zero_pass_call *calls,
                            int n);

/* ---- arrays that stay yours ------------------------------------------------------------------ */
/* Build the context and copy the weights from your arrays, instead of zero_build and zero_adopt;
   then write them back as the plugin stores them. This is for weights that are not movable pointers
   (arrays in a struct: ZERO_INLINE) or are doubles. They and the gradients stay in your arrays,
   whole on every rank; stage 3 needs least memory besides. Hooks and KEEP are not needed. The
   arrays are as for zero_adopt, or doubles, which are rounded: the plugin's numbers are f32.
   COLLECTIVE. SYNC.
   Errors: those of zero_adopt. */
zero_result zero_lend(zero_ctx *z, void *params, zero_type type);
/* Copy the gradients of this micro-step, clear them, and after the last one update and write the
   new weights back: it replaces your optimizer. `grads` is a struct of the same kind, which may be
   local. The copy applies the loss scale; for sums over a batch see cfg.divisor and zero_train_end.
   COLLECTIVE. SYNC.
   Errors: those of zero_train_end; ARGUMENT if a pointer is NULL or two arrays overlap. */
zero_result zero_lend_train(zero_ctx *z, void *params, void *grads, const zero_hyper *hyper,
                            double loss, double *mean);
/* Write weights back that zero_write_tensor or a checkpoint changed.
   COLLECTIVE. SYNC. */
zero_result zero_lend_read(zero_ctx *z, void *params);

/* ---- tensors by name, between passes --------------------------------------------------------- */
/* The arrays of a tensor, for access by name. */
typedef enum zero_kind {
    ZERO_PARAMETER = 0, /* as stored and used by the next passes; a write changes the master too */
    ZERO_GRADIENT, /* between zero_reduce and zero_step: unscaled; the mean over ranks of the sum
                      over micro-steps */
    ZERO_MOMENT_1, /* first state: Adam's m, momentum of SGD, Lion and Muon, Adagrad's s */
    ZERO_MOMENT_2, /* second state: Adam's v */
    ZERO_MASTER,   /* the f32 master weight, or, without one, the parameter after the last step.
                      Writing it writes the parameter, rounded to nearest (SPLIT: half up) */
    ZERO_KIND_COUNT
} zero_kind;
/* Read and write elements [first, first + count) of all layers of a tensor, type-major [layers,
   numel], at any stage, as f32 for every type. read: all ranks ask for the same range; `out`
   (count floats, yours) may be NULL on ranks that need no values. write: all ranks pass the same
   values, and each stores the elements that it owns. Both stream through a fixed buffer, and no
   tensor is gathered whole. Writing a gradient changes the update, not the norm.
   COLLECTIVE. SYNC.
   Errors: MISMATCH, not sticky, if ranks differ, except reads at stage 0; nothing is written. */
zero_result zero_read_tensor(zero_ctx *z, const char *name, zero_kind kind, size_t first,
                             size_t count, float *out);
zero_result zero_write_tensor(zero_ctx *z, const char *name, zero_kind kind, size_t first,
                              size_t count, const float *values);
/* Return a hash of all stored weights and their tensors' names. It depends on these alone, and not
   on stage, ranks or the tensors' order. Training on other ranks gives other weights.
   COLLECTIVE. SYNC.
   Errors: MEMORY. */
zero_result zero_hash(zero_ctx *z, uint64_t *hash);

/* ---- state, for checkpoints ------------------------------------------------------------------ */
/* Elements [first, first + count) of a tensor, over all layers, type-major as above. */
typedef struct zero_range {
    const char *name; /* name of the tensor; owned by ctx */
    zero_kind kind;   /* ZERO_MASTER (without master weights: the parameter), ZERO_MOMENT_1, _2;
                         with cfg.delay_from also ZERO_PARAMETER: see zero_state_put */
    zero_type type;   /* as stored: F32, except weights without an f32 copy and BF16 state */
    size_t first, count;
} zero_range;
/* [packed] Begins the name of the last range of a rank with cfg.feedback: its errors in BF16, as
   ZERO_MASTER of a tensor of that name and, for example, `2 of 4, 4 by 2`: its place among the
   ranks that agree on a step, how many share the shards, and how many of these are in the first
   hop. Only the same rank of equally many can use them. If none are put, errors begin at zero. */
#define ZERO_FEEDBACK_NAME "feedback of rank "

typedef struct zero_counters {
    int64_t steps, skipped;           /* taken, and skipped */
    int64_t iteration, last_overflow; /* loss scale: steps so far, last overflow; -1: none */
    float scale;                      /* loss scale of the next backward */
    int hysteresis;                   /* remaining hysteresis */
} zero_counters;
/* Open the state, after pending work, between steps: partly accumulated gradients are not in it.
   Until zero_state_end, call only these functions, zero_all_sum and zero_broadcast.
   COLLECTIVE. SYNC. */
zero_result zero_state_begin(zero_ctx *z);
/* Return the number of this rank's ranges, and range i, after zero_query_plan; a tensor's kinds
   follow each other. `whole` 0: the ranges that this rank saves; over all ranks, they contain every
   element exactly once, at any stage. 1: those that this rank needs to continue, at stage 0 all. */
int zero_state_ranges(const zero_ctx *z, int whole);
zero_result zero_state_range(zero_ctx *z, int whole, int i, zero_range *range);
/* Copy part of a range of this rank (of `whole` 1), count elements from range->first on: get to
   `out`, in range->type as stored; put `values` of range->type into the state, rounded to nearest
   if the stored type differs. cfg.delay_from: if all ranges of ZERO_PARAMETER are put, an update is
   pending after zero_state_end as at zero_state_get; if none are put, none is.
   SYNC with the device, not with peers. */
zero_result zero_state_get(zero_ctx *z, const zero_range *range, void *out);
zero_result zero_state_put(zero_ctx *z, const zero_range *range, const void *values);
/* Return and set the counters, inside an open state; outside, they may be of an earlier step. All
   ranks set equal ones. A fixed loss scale stays cfg's, as does a dynamic one at iteration 0.
   SYNC with the device if they are set. */
void zero_state_counters(const zero_ctx *z, zero_counters *counters);
zero_result zero_state_set_counters(zero_ctx *z, const zero_counters *counters);
/* Close the state. `changed` (the same on all ranks): the parameters are computed from the weights
   that were put, and gathered; the last step's report is gone.
   COLLECTIVE. */
zero_result zero_state_end(zero_ctx *z, int changed);

/* Move the state of a run to contexts on other ranks, in memory, between two steps. A rank
   that stays passes z, its context of the old ranks, and `next`: a context on the communicator of
   the new ranks, with the same tensors, that is not built (zero_resize builds it). A rank that
   leaves passes next NULL, a rank that joins passes z NULL; at least one rank stays. Then destroy
   z, and continue with `next`. If z was bound or adopted, `next` has the same structs and slots; a
   rank that joins calls zero_bind. All of the state moves, with counters, loss scale and a pending
   update. type, master, state_type, optimizer, delay_from, seed and virtual_ranks stay; other
   settings, such as stage, micro_steps and tiers, may change. With virtual_ranks the bits are those
   of a run that keeps its ranks; otherwise those of a run that loaded a checkpoint.
   Memory is at most the larger plan and one unit. The log gets the moved bytes. After an error,
   which all ranks get, destroy `next`. z continues, unless units were moving: then it is dead too.
   COLLECTIVE over the ranks of both. SYNC.
   Errors: UNSUPPORTED with CUDA, MPI, feedback, muon.normalize, lent arrays, shard_ranks, world;
   MEMORY; ARGUMENT if the tensors or one of these settings differ. */
zero_result zero_resize(zero_ctx *z, zero_ctx *next);

/* ---- numbers, small collectives -------------------------------------------------------------- */
/* Convert n numbers in CPU memory, of any alignment, rounding to nearest, ties to even. Values that
   are too large become infinities; NaN stay NaN. One of the two types is F32, or both are the same.
   Bits do not depend on the processor's instructions. */
void zero_convert(void *to, zero_type to_type, const void *from, zero_type from_type, size_t n);
/* Return the bytes of one number. */
size_t zero_type_bytes(zero_type type);
/* Sum n (at most 64) doubles on every rank, in rank order; copy bytes in CPU memory from rank root
   to all (after zero_build); wait until all ranks have called it.
   COLLECTIVE. SYNC. */
zero_result zero_all_sum(zero_ctx *z, double *values, int n);
zero_result zero_broadcast(zero_ctx *z, void *data, size_t bytes, int root);
zero_result zero_barrier(zero_ctx *z);
/* Return zeroed CPU memory that a device copies to and from at full speed, or NULL; free it. */
void *zero_host_alloc(size_t bytes);
void zero_host_free(void *memory);

/* ---- ranks of one machine -------------------------------------------------------------------- */
/* Create the meeting place of at most 64 local ranks, before pthread_create (`shared` may be 0) or
   fork (`shared` 1; part "start"). Destroy it after the last rank has ended.
   Errors: MEMORY. */
zero_result zero_local_create(zero_local **local, int nranks, int shared);
void zero_local_destroy(zero_local *local);
/* Create a meeting place in memory that ranks share without fork: zero_local_bytes() bytes, aligned
   to 64, owned by the caller while ranks use it. One process calls this first. The others then use
   the memory's address in their process as their zero_local. Do not destroy it. */
size_t zero_local_bytes(void);
zero_result zero_local_place(zero_local **local, void *memory, int nranks);
/* Make every collective of every rank of the meeting place return ZERO_ERR_PEER with this sentence,
   in well under a second. It is safe in any thread, process or signal handler with access to it. A
   launcher calls it when rank `rank` dies; below 0: the sentence names no rank. */
void zero_local_abort(zero_local *local, int rank, const char *why);

typedef int (*zero_rank_fn)(const zero_comm *comm, void *arg);
/* Run fn on nranks ranks of this machine, each with a LOCAL communicator, and wait for them: for
   CUDA, and for trainers in which a rank is a function. A single rank is this process itself.
   CPU: ranks are forked processes, each on its part of the processors. Call this first in main: a
   process that ran an OpenMP region, or has other threads or MPI, cannot be forked (126). Files
   opened before share one position over all ranks. Signals to this process go to all ranks, and if
   it is killed, they end. CUDA: ranks are threads of this process, each on its number's device.
   If a rank returns nonzero or is killed, its peers get ZERO_ERR_PEER with the reason and its last
   call. CPU: ranks that still run get SIGTERM after 3 s and SIGKILL 3 s later. Returns 0 if all
   ranks did; else the first failed rank's value, 128 + its signal, or 126: some never started. */
int zero_run_local(int nranks, zero_rank_fn fn, void *arg);

/* ---- groups of ranks ------------------------------------------------------------------------- */
/* GROUPS OF RANKS: collectives on your own buffers, for tensor parallelism, pipeline stages and
   experts. One thread uses a group at a time; a thread may use many. All its ranks call its
   collectives in the same order, and the two ranks of a message call send and receive. Groups and
   contexts have separate channels: their order relative to each other is free.
   CPU: a call returns when it is done, and its buffers (ordinary memory) are yours again; a send
   may be received later. CUDA: buffers are on the device, and calls are enqueued on the stream.
   SUMS are added in rank order in f32 (F64: in f64) and rounded once, to the type: deterministic
   and equal on every rank, with LOCAL and MPI. NCCL uses its own order. MAX of NaN is undefined.
   ERRORS are sticky, as in a context. A rank that fails, or closes a group while peers wait, ends
   their calls with PEER. A killed rank ends the groups and contexts of all ranks if its launcher
   notices (zero_run_local, zero_start_local, mpirun) or calls zero_local_abort for the zero_local
   that all of them began with. Different calls or sizes return MISMATCH with both calls, by
   the next call at the latest. MPI: a failed call's buffers stay allocated until MPI_Finalize. */
/* Open the ranks of comm as a group. `stream`, CUDA: the cudaStream_t that orders the calls, of the
   device that is current here and at every call; CPU: NULL. timeout_s: seconds, finite and above 0,
   or 0 for 600. As in zero_create, but comm.node_size is ignored: after an error, zero_group_error
   returns the reason if *g is not NULL, and your code must still close *g.
   COLLECTIVE over the ranks of comm. SYNC.
   Errors: MEMORY; UNSUPPORTED if this build lacks the kind of comm. */
zero_result zero_group_open(zero_group **g, const zero_comm *comm, void *stream, double timeout_s);
/* Split a group: ranks of `of` with the same colour become a group, ordered by key, then by rank. A
   colour below 0: this rank is in none, and *g is NULL. Stream and time limit are those of `of`.
   COLLECTIVE over the ranks of `of`. SYNC.
   Errors: those of zero_group_open. */
zero_result zero_group_split(zero_group *of, int colour, int key, zero_group **g);
/* Close the group; destroy contexts made from it first. If groups split off it are open, the plugin
   keeps it until the last of them is closed. NULL is allowed.
   COLLECTIVE with MPI and NCCL, for at most timeout_s. SYNC. */
void zero_group_close(zero_group *g);
/* Set the group's name, at most 7 letters (copied), the same on all ranks. Sentences then print
   rank 1 as `tp 1`, and a lost or late rank with all its names: `rank 3 (tp 1, pp 0, dp 1)`. */
void zero_group_name(zero_group *g, const char *name);
/* Return this rank and the number of ranks. If the group is NULL: rank 0 of 1. */
int zero_group_rank(const zero_group *g);
int zero_group_size(const zero_group *g);
/* Return the sentence of the last error, or "". Owned by the group, until the next call. */
const char *zero_group_error(const zero_group *g);
/* Return the group as a communicator for zero_create. Destroy the context before the group. */
zero_comm zero_group_comm(zero_group *g);

typedef enum zero_reduction { ZERO_SUM = 0, ZERO_MAX } zero_reduction;
/* Run a collective over the N ranks of the group. A line ends with the bytes that the call counts
   as sent by this rank, where b is those of mine, of out[r], or of data:
     all_reduce      reduces data [n] in place, for every rank: 2 b (N-1)/N. To the rounding: the
                     rank of the last element counts the remainder. (Under 4 KiB, LOCAL and MPI
                     send b (N-1), but the formula is counted)
     reduce_scatter  reduces `all` [N][n], and writes this rank's part to mine [n], which may be
                     that part of `all`; the rest of `all` is not changed: b (N-1)
     all_gather      writes every rank's mine [bytes] to all [N][bytes], in rank order; mine may be
                     its part of all: b (N-1)
     all_to_all      sends out[r] to rank r and receives in[r] from it, both [N][bytes], without
                     overlap: b (N-1)
     broadcast       copies data [bytes] from rank root to all: b (N-1), at the root
   COLLECTIVE over the group. SYNC on the CPU. */
zero_result zero_group_all_reduce(zero_group *g, void *data, size_t n, zero_type type,
                                  zero_reduction how);
zero_result zero_group_reduce_scatter(zero_group *g, const void *all, void *mine, size_t n,
                                      zero_type type, zero_reduction how);
zero_result zero_group_all_gather(zero_group *g, const void *mine, void *all, size_t bytes);
zero_result zero_group_all_to_all(zero_group *g, const void *out, void *in, size_t bytes);
zero_result zero_group_broadcast(zero_group *g, void *data, size_t bytes, int root);
/* Wait until all ranks have called it.
   COLLECTIVE over the group. SYNC. */
zero_result zero_group_barrier(zero_group *g);
/* One message between two ranks. */
typedef struct zero_message {
    int peer, sends; /* sends: 1 to the peer, 0 from it */
    void *data;      /* not written if sends is 1 */
    size_t bytes;    /* equal on both sides; 0: no message */
} zero_message;
/* Send and receive messages, at most 256 in a list. The messages of one list run at once, so that
   the forward and backward neighbours of a pipeline stage never wait for each other. Between two
   ranks, messages arrive in the order in which they were sent.
   SYNC on the CPU. */
zero_result zero_group_send_receive(zero_group *g, const zero_message *list, int n);
zero_result zero_group_send(zero_group *g, const void *data, size_t bytes, int peer);
zero_result zero_group_receive(zero_group *g, void *data, size_t bytes, int peer);

typedef struct zero_group_stats {
    uint64_t sent_bytes; /* by this rank, as counted above; messages: bytes sent */
    uint64_t all_reduces, reduce_scatters, all_gathers, all_to_alls, broadcasts, messages;
    double waited_s; /* time of the calling thread in these calls (CPU; 0 in the CUDA build) */
} zero_group_stats;
/* Return the group's counters, at any time. */
void zero_group_query_stats(const zero_group *g, zero_group_stats *stats);

/* ---- trace ----------------------------------------------------------------------------------- */
/* [trace] X(name, word) */
#define ZERO_EVENTS(X)                                                                             \
    X(ZERO_EVENT_FORWARD, "forward") /* between a unit's hooks; backward too */                    \
    X(ZERO_EVENT_BACKWARD, "backward")                                                             \
    X(ZERO_EVENT_GATHER, "gather")       /* of a unit's parameters; stage 0: of its gradients */   \
    X(ZERO_EVENT_REDUCTION, "reduction") /* of a bucket's gradients */                             \
    X(ZERO_EVENT_AGREE, "agree")         /* the ranks' verdicts, which end a step's reductions */  \
    X(ZERO_EVENT_UPDATE, "update")                                                                 \
    X(ZERO_EVENT_CLEAR, "clear") /* gradient memory, before backward adds to it */                 \
    X(ZERO_EVENT_NORM, "norm")   /* squares of the reduced shard; sums of micro-steps */           \
    X(ZERO_EVENT_WAIT, "wait")                                                                     \
    X(ZERO_EVENT_READ, "read") /* a piece of this rank's file */                                   \
    X(ZERO_EVENT_WRITE, "write")                                                                   \
    X(ZERO_EVENT_COPY, "copy")             /* CUDA: between device and CPU */                      \
    X(ZERO_EVENT_LOST, "lost")             /* `bytes` events that were dropped */                  \
    X(ZERO_EVENT_ALL_REDUCE, "all_reduce") /* of a zero_group, as the next ones; sum_over */       \
    X(ZERO_EVENT_REDUCE_SCATTER, "reduce_scatter")                                                 \
    X(ZERO_EVENT_ALL_GATHER, "all_gather")                                                         \
    X(ZERO_EVENT_ALL_TO_ALL, "all_to_all")                                                         \
    X(ZERO_EVENT_BROADCAST, "broadcast")                                                           \
    X(ZERO_EVENT_MESSAGES, "messages")                                                             \
    X(ZERO_EVENT_BARRIER, "barrier")                                                               \
    X(ZERO_EVENT_SPLIT, "split") /* this group was split */                                        \
    X(ZERO_EVENT_OPEN, "open")   /* this group was made; first event of its trace */
#define ZERO_EVENT_ENUM(name, word) name,
typedef enum zero_event_kind { ZERO_EVENTS(ZERO_EVENT_ENUM) ZERO_EVENT_KINDS } zero_event_kind;
#undef ZERO_EVENT_ENUM

/* Threads and streams of a rank. Events of one track run in sequence. */
typedef enum zero_track {
    ZERO_TRACK_COMPUTE = 0, /* your stream. CPU: the calling thread; communicates with no_overlap */
    ZERO_TRACK_GRADIENTS,   /* the stream of reductions */
    ZERO_TRACK_PARAMETERS,  /* the stream of gathers */
    ZERO_TRACK_UPDATES,     /* updates of offloaded units, and delayed updates */
    ZERO_TRACK_COPIES,      /* CUDA, tier HOST: gradients go down, or state up and down */
    ZERO_TRACK_HOST,        /* CUDA: waits of the calling thread */
    ZERO_TRACK_FILE,        /* and the next ones: threads that read and write the file */
    ZERO_TRACK_FILES = ZERO_TRACK_FILE + 8,
    ZERO_TRACK_GROUP = ZERO_TRACK_FILES, /* and the next ones: groups, see zero_group_trace */
    ZERO_TRACK_GROUPS = ZERO_TRACK_GROUP + 8
} zero_track;

struct zero_event {
    zero_event_kind kind;
    zero_event_kind cause; /* WAIT: kind of the event waited for, WAIT if unknown. Else as kind */
    int track;
    int unit;          /* the event's unit; WAIT: the unit waited for; -1: the whole step */
    int units;         /* number of units reduced together, `unit` first; otherwise 1 */
    int micro;         /* 0..micro_steps-1 */
    int64_t step;      /* number of earlier steps, including skipped ones */
    uint64_t bytes;    /* GATHER, REDUCTION: of the whole unit. Others: bytes written. Groups: of
                          all ranks' parts together (REDUCE_SCATTER, ALL_GATHER, ALL_TO_ALL: N
                          times this rank's part). MESSAGES: sent or received bytes, the larger */
    uint64_t sent;     /* by this rank, as in zero_stats and zero_group_stats */
    uint64_t number;   /* (rank + 1) << 40, plus this rank's count of events from 1, plus 1 << 39 in
                          a context that joins another (cfg.joins) */
    uint64_t flow;     /* WAIT: number of the event waited for; 0: not recorded */
    double begin, end; /* seconds of CLOCK_MONOTONIC */
    int ranks;         /* number of ranks that communicate; 0: none */
};
/* Return the name of a kind of event, such as "forward". Never NULL. */
const char *zero_event_name(zero_event_kind kind);

/* Trace the group's events with those of z (zero_config.trace), on track ZERO_TRACK_GROUP + lane,
   0..7, until it is closed, z is destroyed, or a call has z NULL. Its first event, once, is OPEN,
   with the times at which the group was made. z is built; without a trace nothing is recorded. This
   function and the group's calls must not run in two threads at once. */
zero_result zero_group_trace(zero_group *g, zero_ctx *z, int lane);

#ifdef __cplusplus
}
#endif
#endif
