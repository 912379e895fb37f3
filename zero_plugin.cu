/* zero_plugin.cu - the plugin's one translation unit; zero_plugin.h is its manual.

   One source for two compilers: nvcc makes the CUDA version, cc -x c the CPU version. Each
   element-wise kernel has one body, of which a macro makes a host loop and, for CUDA, a kernel.

   CONTENTS: the rooms of the folder zero_plugin/, below; a room includes those above it alone.

   WHERE SOMETHING NEW GOES
     a stage      a row of zp_policies in memory; its number, in the header
     a codec      a row of zp_codecs in codec; how a block's codes lie: blocks; who may ask: config
     an array     a value of the enum in memory, a line of its walk, a zp_plan_row in plan
     a tier       zero_tier; where a part lies and how it is opened: memory; its cost: tiers, plan;
                  its memory: build, or a room of its own, as host and disk are
     a transport  a row by the contract in group; transport says how one of your own is added
     a rule       a body, a line and a row in rules, a name in zero_optimizer; or a file of your own
     a setting    a row of the table in config, a field of zero_config
     a function   the header, then the api room of its subject
     an event     a word of ZERO_EVENTS, zp_slice_begin and _end around what is sent to the stream
     a room       an #include below, behind all that it uses, and what it is for

   THE WALK OF ONE GRADIENT (unit u, stage 2 or 3, last micro-step), by streams
     compute     zero_backward_begin: takes a gradient buffer, waits for its last reduction, clears
                 it; the host adds into it; zero_backward_end: event `written`
     gradients   waits for `written`; reduce-scatter: every rank sums its slice of u from all ranks,
                 in rank order, into its gradient shard; squares of the shard: event `reduction`;
                 after the last unit one all-gather of the ranks' verdicts makes norm and skip the
                 same everywhere, and finds ranks that differ: event `agreed`
     compute     zero_step waits for `agreed` and u's last gather, updates the shard: `updated`
     parameters  waits for `updated`; gathers u from all ranks (stages 1 and 2, resident units) or
                 leaves that to the next pass (stage 3): event `gathered`
     compute     the next zero_forward_begin(u) waits for `gathered`
   When a reduction has ended on any rank, all ranks have computed with that unit's old parameters;
   when u's gather has ended, no rank reads this shard: so its owner may update it. */

#if __has_include("zero_plugin/base.h")
#include "zero_plugin/base.h"        /* limits, clock, hash, lists, the first failure */
#include "zero_plugin/trace.h"       /* what ran when, if anybody asks */
#include "zero_plugin/lane.h"        /* a host thread that works off tasks; events of the host */
#include "zero_plugin/device.h"      /* streams, events, copies, memory; of CUDA or the CPU */
#include "zero_plugin/numbers.h"     /* 16-bit storage of f32 values */
#include "zero_plugin/kernels.h"     /* the element-wise bodies */
#include "zero_plugin/exact.h"       /* sums of squares that no order of adding changes */
#include "zero_plugin/update.h"      /* what is around every rule: spans, passes, rounding */
#include "zero_plugin/rules.h"       /* the update rules, and how to add one */
#include "zero_plugin/matrix.h"      /* a matrix is made orthogonal, nearly */
#include "zero_plugin/codec.h"       /* how numbers travel packed: codes, a scale for each block */
#include "zero_plugin/blocks.h"      /* the numbers of one block, plainly and by AVX-512 */
#include "zero_plugin/packing.h"     /* they are packed, unpacked and added up */
#include "zero_plugin/group.h"       /* ranks that do collectives; the contract of a transport */
#include "zero_plugin/board.h"       /* how ranks of one machine meet */
#include "zero_plugin/shared.h"      /* how they see each other's memory */
#include "zero_plugin/pipe.h"        /* messages between ranks of one machine */
#include "zero_plugin/local.h"       /* SELF and LOCAL: one rank, the ranks of one machine */
#include "zero_plugin/mpi_cross.h"   /* how MPI is waited for; collectives between nodes */
#include "zero_plugin/mpi.h"         /* MPI: local inside a node, messages between nodes */
#include "zero_plugin/nccl_watch.h"  /* NCCL is looked after: time limit, errors, the end */
#include "zero_plugin/nccl.h"        /* NCCL */
#include "zero_plugin/transport.h"   /* the transports, a row each, and how to add one */
#include "zero_plugin/groups.h"      /* ranks that communicate on the host's own buffers */
#include "zero_plugin/layout.h"      /* where a tensor, a unit and a shard begin */
#include "zero_plugin/schedule.h"    /* which unit sits in which buffer */
#include "zero_plugin/uring.h"       /* io_uring, where the build asked for it */
#include "zero_plugin/disk.h"        /* the tier that is a disk: pieces, checksums, threads */
#include "zero_plugin/memory.h"      /* stages as data; arrays: what a rank keeps, and where */
#include "zero_plugin/ring.h"        /* pieces of state on their way between disk and update */
#include "zero_plugin/config.h"      /* what settings may be, and what zeros mean */
#include "zero_plugin/context.h"     /* everything one rank owns */
#include "zero_plugin/order.h"       /* the order of a pass's calls, as the host announces it */
#include "zero_plugin/names.h"       /* tensors by names and fields, slots by layers */
#include "zero_plugin/tiers.h"       /* which units are kept elsewhere than in memory */
#include "zero_plugin/host.h"        /* the tier that is the host's memory, beside a GPU */
#include "zero_plugin/slices.h"      /* whole tensors of which another group's ranks have slices */
#include "zero_plugin/deal.h"        /* what ranks make of whole tensors between a rule's passes */
#include "zero_plugin/through.h"     /* state of the host's tier on its way through the GPU */
#include "zero_plugin/hierarchy.h"   /* the ranks in groups: shard groups, replicas, near ones */
#include "zero_plugin/coded.h"       /* which units travel packed, and what that takes */
#include "zero_plugin/plan.h"        /* memory and traffic before anything is allocated */
#include "zero_plugin/check.h"       /* misuse, in builds that ask for it */
#include "zero_plugin/build.h"       /* agreement and allocation */
#include "zero_plugin/shards.h"      /* shards between file and where they are reduced, gathered */
#include "zero_plugin/world.h"       /* ranks beside those sharded over: agreement, first sums */
#include "zero_plugin/replicas.h"    /* reduced shards are summed over copies of what is sharded */
#include "zero_plugin/pointers.h"    /* what the host reads and writes a unit's tensors by */
#include "zero_plugin/hops.h"        /* collectives whose numbers travel packed */
#include "zero_plugin/pass.h"        /* hooks, gathers, buckets: a unit while a pass runs */
#include "zero_plugin/step.h"        /* skip, clip, update */
#include "zero_plugin/access.h"      /* tensors by name, and as state */
#include "zero_plugin/api.h"         /* the functions of the header: contexts, passes, steps */
#include "zero_plugin/api_tensors.h" /* tensors are announced, and what is told of them */
#include "zero_plugin/api_order.h"   /* passes by a schedule: their order, gathers, reductions */
#include "zero_plugin/api_access.h"  /* by name, state, numbers, small collectives, statistics */
#include "zero_plugin/api_host.h"    /* a host in few lines: adopts weights, has no hooks; hash */
#include "zero_plugin/api_lend.h"    /* arrays that stay the host's: gradients, and weights back */
#include "zero_plugin/api_run.h"     /* the ranks of this machine, started and watched */
#include "zero_plugin/api_group.h"   /* groups of ranks */
#else
#error "zero_plugin/ is not beside zero_plugin.cu: `make drop DIR=...` writes the two files to copy"
#endif
