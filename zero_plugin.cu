/* zero_plugin.cu - the plugin's one translation unit; zero_plugin.h is its manual.

   One source for two compilers: nvcc makes the CUDA version, cc -x c the CPU version. Each
   element-wise kernel has one body, of which a macro makes a host loop and, for CUDA, a kernel.

   CONTENTS, a room each in the folder zero_plugin/, in order: a room includes those before it alone
     base       limits, clock, hash, lists, the first failure
     trace      what ran when, if anybody asks
     lane       a host thread that works off tasks; events of the host
     device     streams, events, copies, memory: device_cuda or device_cpu
     numbers    16-bit storage of f32 values
     kernels    the element-wise bodies
     exact      sums of squares that no order of adding changes
     update     what is around every update rule: spans, passes, rounding
     rules      the update rules, and how to add one
     matrix     a matrix is made orthogonal, nearly
     codec      how numbers travel packed: codes of a few bits, a scale for each block
     packing    they are packed, unpacked and added up
     group      ranks that do collectives together: the contract of a transport
     board      how ranks of one machine meet
     shared     how they see each other's memory
     pipe       messages between ranks of one machine
     local      SELF and LOCAL: one rank, the ranks of one machine
     mpi_cross  how MPI is waited for; collectives between nodes
     mpi        MPI: local inside a node, messages between nodes
     nccl       NCCL
     transport  the transports, a row each, and how to add one
     groups     ranks that communicate by themselves, on the host's own buffers
     layout     where a tensor, a unit and a shard begin
     schedule   which unit sits in which buffer
     uring      io_uring, where the build asked for it
     disk       the tier that is a disk: pieces, checksums, threads
     memory     the stages as data; arrays: what a rank keeps, and where
     ring       pieces of the optimizer's state on their way between disk and update
     config     what settings may be, and what zeros mean
     context    everything one rank owns
     order      the order of a pass's calls, as the host announces it
     names      tensors by their names and fields, slots by their layers
     tiers      which units are kept elsewhere than in memory
     host       the tier that is the host's memory, beside a GPU
     slices     whole tensors of which the ranks of another group have slices
     deal       what ranks make of whole tensors between the passes of a rule
     through    state of the host's tier on its way through the GPU
     hierarchy  groups inside the context's ranks: shard groups, replicas, near ones; second shards
     coded      which units travel packed, and what that takes
     plan       memory and traffic before anything is allocated
     check      misuse, in builds that ask for it
     build      agreement and allocation
     shards     shards between the file and where they are reduced or gathered
     world      ranks beside those that a context shards over: agreement, first sums
     replicas   shards of reduced gradients are summed over the copies of what is sharded
     pointers   what the host reads and writes a unit's tensors by
     hops       collectives whose numbers travel packed
     pass       hooks, gathers, buckets: a unit while a pass runs
     step       skip, clip, update
     access     tensors by name, and as state
     api        the functions of the header: contexts, passes, steps
     api_tensors  tensors are announced, and what is told of them
     api_order  the order of a pass, gathers and reductions by a schedule
     api_access  tensors by name, state, numbers, small collectives, statistics
     api_host   few lines for a host: weights that are adopted, a step without hooks, a hash
     api_lend   arrays that stay the host's: gradients are taken from them, weights come back
     api_run    the ranks of this machine, started and watched
     api_group  groups of ranks

   WHERE SOMETHING NEW GOES
     a stage      a row of zp_policies in memory; its number, in the header
     a codec      a row of zp_codecs in codec; how a block's codes lie: packing; who may ask: config
     an array     a value of the enum in memory, a line of its walk, a zp_plan_row in plan
     a tier       zero_tier; where a part lies and how it is opened: memory; its cost: tiers, plan;
                  its memory: build, or a room of its own, as host and disk are
     a transport  a row by the contract in group; transport says how one of your own is added
     a rule       a body, a line and a row in rules, a name in zero_optimizer; or a file of your own
     a setting    a row of the table in config, a field of zero_config
     a function   the header, then the api room of its subject
     an event     a word of ZERO_EVENTS, zp_slice_begin and _end around what is sent to the stream
     a room       an #include below and a line above, behind all that it uses

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
#include "zero_plugin/base.h"
#include "zero_plugin/trace.h"
#include "zero_plugin/lane.h"
#include "zero_plugin/device.h"
#include "zero_plugin/numbers.h"
#include "zero_plugin/kernels.h"
#include "zero_plugin/exact.h"
#include "zero_plugin/update.h"
#include "zero_plugin/rules.h"
#include "zero_plugin/matrix.h"
#include "zero_plugin/codec.h"
#include "zero_plugin/packing.h"
#include "zero_plugin/group.h"
#include "zero_plugin/board.h"
#include "zero_plugin/shared.h"
#include "zero_plugin/pipe.h"
#include "zero_plugin/local.h"
#include "zero_plugin/mpi_cross.h"
#include "zero_plugin/mpi.h"
#include "zero_plugin/nccl.h"
#include "zero_plugin/transport.h"
#include "zero_plugin/groups.h"
#include "zero_plugin/layout.h"
#include "zero_plugin/schedule.h"
#include "zero_plugin/uring.h"
#include "zero_plugin/disk.h"
#include "zero_plugin/memory.h"
#include "zero_plugin/ring.h"
#include "zero_plugin/config.h"
#include "zero_plugin/context.h"
#include "zero_plugin/order.h"
#include "zero_plugin/names.h"
#include "zero_plugin/tiers.h"
#include "zero_plugin/host.h"
#include "zero_plugin/slices.h"
#include "zero_plugin/deal.h"
#include "zero_plugin/through.h"
#include "zero_plugin/hierarchy.h"
#include "zero_plugin/coded.h"
#include "zero_plugin/plan.h"
#include "zero_plugin/check.h"
#include "zero_plugin/build.h"
#include "zero_plugin/shards.h"
#include "zero_plugin/world.h"
#include "zero_plugin/replicas.h"
#include "zero_plugin/pointers.h"
#include "zero_plugin/hops.h"
#include "zero_plugin/pass.h"
#include "zero_plugin/step.h"
#include "zero_plugin/access.h"
#include "zero_plugin/api.h"
#include "zero_plugin/api_tensors.h"
#include "zero_plugin/api_order.h"
#include "zero_plugin/api_access.h"
#include "zero_plugin/api_host.h"
#include "zero_plugin/api_lend.h"
#include "zero_plugin/api_run.h"
#include "zero_plugin/api_group.h"
#else
#error "zero_plugin/ is not beside zero_plugin.cu: `make drop DIR=...` writes the two files to copy"
#endif
