/* zero_plugin.cu - the plugin's one translation unit; zero_plugin.h is its manual.

   nvcc compiles the CUDA version of this file, and `cc -x c` the CPU version. Each element-wise
   kernel has one body; a macro makes a CPU loop of it and, for CUDA, a kernel.

   FOLDERS of zero_plugin/. A file's name is the prefix of its functions, and a file includes only
   files that come before it in the list below. X.h includes X_avx.h, X_cpu.h and X_cuda.h.
     machine/   streams, events, copies and threads, on CUDA or on the CPU
     numbers/   types, element-wise kernels, update rules
     comm/      ranks, transports, collectives
     core/      stages 0 to 3. It names no capability: not in code, not in comments
     offload/   state in CPU memory or in a file
     extras/    capabilities that plug into the core, a row each; table.h lists them
     api/       the functions of the header

   THE WAY OF ONE GRADIENT AND ONE PARAMETER (unit u, stage 2 or 3, last micro-step). To follow
   them, read hooks.h, reduce.h, verdict.h, step.h and gather.h in this order. The work is a list of
   stations: the tables zp_reduce_stations, zp_step_stations and zp_gather_stations. Each column is
   a stream. An arrow is an event that the stream at its head waits for.

     compute                        gradients                      parameters
     ------------------------------------------------------------------------------------------
     zero_backward_begin(u):
       takes a gradient buffer,
       clears it
     your code adds into it
     zero_backward_end(u)  written ->
                                    reduce-scatter: this rank's
                                    shard, summed in rank order
                                    squares of the shard
     next use of the buffer  <- reduction
     zero_reduce           passed ->
                                    after the last unit: all ranks
                                    exchange verdicts, which give
                                    norm and skip everywhere
     zero_step             <- agreed
       updates the shard            updated ->
                                                                   stages 1, 2: gathers u now
                                                                   stage 3: when a pass wants u
     zero_forward_begin(u) <- gathered
       your code reads u
     zero_forward_end(u)            released ->                    next gather into u's buffer

   Why no rank writes what another one still reads: if u's reduction has ended on one rank, all
   ranks have computed with u's old parameters. If u's gather has ended, no rank reads u's shard any
   more.

   WHERE SOMETHING NEW GOES
     a capability  a row with its settings, moments and stations, in a file of its own: core/extra.h
     a station     work of a pass or a step: a row of a table, at a place that core/extra.h lists
     a stage       a row of zp_policies in core/arrays.h, and its number in the header
     a codec       a row of zp_codecs in extras/codec.h, and its blocks in extras/codec_blocks.h
     an array      an enumerator in core/arrays.h, and a zp_plan_set_array in core/plan.h
     a tier        a value of zero_tier, and a zp_tier of core/arrays.h; offload/offload.h has two
     a transport   a row; comm/comm.h has the contract, comm/transport.h says how to add your own
     an update rule  a body and a row in numbers/rules.h, and a name in zero_optimizer
     a setting     a field of zero_config, or of zero_tensor_desc, and a row of the table in
                   core/config.h or of the capability that has it
     a function    the header, and the file of its subject in api/
     an event      a word of ZERO_EVENTS, and ZP_SLICE around the work */

#if __has_include("zero_plugin/machine/base.h")
#include "zero_plugin/machine/base.h"      /* limits, clock, hash, lists, the first failure */
#include "zero_plugin/machine/events.h"    /* records of what each stream ran, and when */
#include "zero_plugin/machine/lane.h"      /* a CPU thread with a queue of tasks; its events */
#include "zero_plugin/machine/gate.h"      /* [offload] a lane waits for work outside lanes */
#include "zero_plugin/machine/device.h"    /* streams, events, copies, memory: CUDA or CPU */
#include "zero_plugin/machine/streaming.h" /* [state] copies to memory that is not read soon */
#include "zero_plugin/numbers/type.h"      /* f32 values stored in 16 bits */
#include "zero_plugin/numbers/codes.h"     /* [compact cuda nccl] f32 values in 8 bits, in blocks */
#include "zero_plugin/numbers/random.h"    /* [compact cuda nccl] stochastic rounding */
#include "zero_plugin/numbers/blocks.h"    /* [compact] blocks of codes: plain C and AVX2 */
#include "zero_plugin/numbers/kernels.h"   /* the element-wise kernels */
#include "zero_plugin/numbers/optimizer.h" /* the loop around each update rule; rounding */
#include "zero_plugin/numbers/rules.h"     /* the update rules, and how to add one */
#include "zero_plugin/comm/comm.h"         /* ranks and collectives; a transport's contract */
#include "zero_plugin/comm/board.h"        /* how the ranks of one machine meet */
#include "zero_plugin/comm/shared_memory.h" /* how they map each other's memory */
#include "zero_plugin/comm/messages.h" /* [groups mpi muon nccl packed rows subgroups] messages */
#include "zero_plugin/comm/local.h"    /* SELF and LOCAL: the ranks of one machine */
#include "zero_plugin/comm/process.h" /* [groups mpi muon nccl packed rows start subgroups] forks */
#include "zero_plugin/comm/pipe.h"    /* [groups muon packed rows subgroups] local messages */
#include "zero_plugin/comm/local_groups.h" /* [groups muon packed rows subgroups] local groups */
#include "zero_plugin/comm/mpi_nodes.h"    /* [mpi] MPI between nodes, and waiting for MPI */
#include "zero_plugin/comm/mpi.h"          /* [mpi] MPI: LOCAL in a node, messages between nodes */
#include "zero_plugin/comm/nccl_watch.h"   /* [nccl] watches NCCL: errors, time-outs */
#include "zero_plugin/comm/nccl.h"         /* [nccl] NCCL */
#include "zero_plugin/comm/transport.h"    /* the table of transports, and how to add one */
#include "zero_plugin/comm/group.h" /* [groups muon packed rows] a group that sends messages */
#include "zero_plugin/comm/collectives.h"  /* [groups] collectives on the caller's own buffers */
#include "zero_plugin/core/layout.h"       /* where a tensor, a unit and a shard begin */
#include "zero_plugin/core/buffers.h"      /* which unit is in which shared buffer */
#include "zero_plugin/core/arrays.h"       /* stages as data; what a rank keeps, and where */
#include "zero_plugin/core/config.h"       /* the settings, their ranges and defaults */
#include "zero_plugin/core/ctx.h"          /* everything that one rank owns */
#include "zero_plugin/core/part.h"         /* [packed rows subgroups] splits groups of a context */
#include "zero_plugin/core/ranges.h"       /* [muon packed state] lists of ranges of the state */
#include "zero_plugin/core/extra.h"        /* how a capability plugs into the core */
#include "zero_plugin/core/agree.h"        /* ranks compare what must be equal on all */
#include "zero_plugin/core/observe.h"      /* what a checked build sees of the calls */
#include "zero_plugin/core/order.h"        /* the order of a pass's hooks: learnt or announced */
#include "zero_plugin/core/bind.h"         /* tensors by name and by field */
#include "zero_plugin/core/verdict.h"      /* the agreement that ends a step */
#include "zero_plugin/core/plan.h"         /* memory and traffic, before any allocation */
#include "zero_plugin/core/build.h"        /* agreement and allocation */
#include "zero_plugin/core/pointers.h"     /* the pointers by which the caller finds tensors */
#include "zero_plugin/core/gather.h"       /* the way of one parameter */
#include "zero_plugin/core/reduce.h"       /* the way of one gradient */
#include "zero_plugin/core/hooks.h"        /* what a hook does: begin and end of a unit */
#include "zero_plugin/core/step.h"         /* zero_reduce and zero_step: agree, decide, update */
#include "zero_plugin/core/runs.h"         /* elements of tensors, by the ranks that own them */
#include "zero_plugin/core/weights.h"      /* [offload state] copies weights between arrays */
#include "zero_plugin/offload/uring.h"     /* [offload] io_uring, if the build has it */
#include "zero_plugin/offload/file.h"      /* [offload] the file tier: pieces, checksums, threads */
#include "zero_plugin/offload/file_ring.h" /* [offload] pieces of state between file and update */
#include "zero_plugin/offload/offload.h" /* [offload] what offload keeps of a context; its tiers */
#include "zero_plugin/offload/offload_plan.h" /* [offload] what is offloaded, and what that moves */
#include "zero_plugin/offload/delayed.h"      /* [offload] an update that overlaps the next step */
#include "zero_plugin/offload/async_update.h" /* [offload] an update as a task of its own stream */
#include "zero_plugin/offload/transfers.h" /* [offload] shards between file and buffers; stations */
#include "zero_plugin/offload/cpu_update.h" /* [offload] the update on the CPU, next to a GPU */
#include "zero_plugin/offload/gpu_update.h" /* [offload] state in CPU memory that the GPU updates */
#include "zero_plugin/offload/offload_gpu.h"   /* [offload] offload next to a GPU: its row */
#include "zero_plugin/offload/offload_build.h" /* [offload] what offload allocates; its row */
#include "zero_plugin/extras/lines.h"  /* [agree mpi nccl order resize start subgroups] agreement */
#include "zero_plugin/extras/places.h" /* [place check lend resize] pointers that are no fields */
#include "zero_plugin/extras/compact.h" /* [compact] the optimizer's state in fewer bytes */
#include "zero_plugin/extras/state.h"   /* [state] tensors by name, and as state */
#include "zero_plugin/extras/codec.h"   /* [packed] quantized numbers: codes, a scale per block */
#include "zero_plugin/extras/codec_blocks.h"  /* [packed] one block: plain C and AVX-512 */
#include "zero_plugin/extras/codec_kernels.h" /* [packed] kernels: encode, decode, add blocks */
#include "zero_plugin/extras/packed.h"        /* [packed] quantized gathers and reductions */
#include "zero_plugin/extras/rows.h"          /* [rows] gradients of which few rows are touched */
#include "zero_plugin/extras/rows_kernels.h"  /* [rows] kernels: pack, unpack and add blocks */
#include "zero_plugin/extras/rows_gpu.h"      /* [rows] the same on a GPU */
#include "zero_plugin/extras/subgroups.h"     /* [subgroups] replicas, secondary partitions */
#include "zero_plugin/extras/exact.h"         /* [muon virtual] sums of squares in any order */
#include "zero_plugin/extras/whole_rules.h"   /* [muon] the update rules that need whole tensors */
#include "zero_plugin/extras/muon.h"          /* [muon] Newton-Schulz iterations on a matrix */
#include "zero_plugin/extras/whole_slices.h"  /* [muon] whole tensors that are cut into slices */
#include "zero_plugin/extras/whole_tensor.h"  /* [muon] whole tensors between two passes */
#include "zero_plugin/extras/world.h"   /* [groups] ranks outside the sharded group; first sums */
#include "zero_plugin/extras/virtual.h" /* [virtual] sums that do not depend on the ranks */
#include "zero_plugin/extras/resize.h"  /* [resize] state moves to contexts on other ranks */
#include "zero_plugin/extras/figures.h" /* [figures suggest] figures of a plan that no step needs */
#include "zero_plugin/extras/trace.h"   /* [trace] keeps records, and passes them to cfg.trace */
#include "zero_plugin/extras/flush.h"   /* [check] warns if numbers are flushed to 0 */
#include "zero_plugin/extras/check.h"   /* [check] misuse, found by checked builds */
#include "zero_plugin/extras/integrity.h" /* [integrity] finds memory that changed */
#include "zero_plugin/extras/table.h"     /* the capabilities of this build, a row each */
#include "zero_plugin/api/life.h"         /* create, build, hooks, step, destroy */
#include "zero_plugin/api/tensors.h"      /* tensors are announced */
#include "zero_plugin/api/place.h"        /* [place check lend resize] scattered pointers */
#include "zero_plugin/api/unit_plan.h"    /* [figures suggest] one unit's part of the plan */
#include "zero_plugin/api/pass_order.h"   /* [order] passes in an announced order */
#include "zero_plugin/api/suggest.h"      /* [suggest] chooses stage, tiers, prefetch */
#include "zero_plugin/api/touch_rows.h"   /* [rows] announces touched rows */
#include "zero_plugin/api/values.h"       /* numbers, small collectives, statistics */
#include "zero_plugin/api/access.h"       /* [state] read and write by name, state */
#include "zero_plugin/api/new_ranks.h"    /* [resize] a run continues on other ranks */
#include "zero_plugin/api/adopt.h"        /* the plugin takes over weights; hook-free steps */
#include "zero_plugin/api/lend.h"         /* [lend] the caller keeps its arrays */
#include "zero_plugin/api/start_ranks.h"  /* [start] starts and watches the ranks of one machine */
#include "zero_plugin/api/groups.h"       /* [groups] public groups of ranks */
#else
#error "zero_plugin/ is not beside zero_plugin.cu: `make drop DIR=...` writes the two files to copy"
#endif
