/* cuda_cases.h - the cases of test_cuda.cu: what they train, a line each.

   A line has words, in any order. Defaults are in brackets.
     self, local, nccl                     the communicator [local]
     ranks=N [2], stage=N [0], micro=N     micro: micro-steps of a step [1]
     type=f32|bf16|f16                     [f32]
     accumulate=local|sharded              [the plugin chooses]
     prefetch=N|none                       [0: the plugin chooses]
     buckets=N                             units that one bucket takes [0: the plugin chooses]
     eval=stepped|passed|reduced|all       an evaluation after zero_step; after the last pass,
                                           before zero_reduce; between zero_reduce and zero_step;
                                           all [none]
     overflow                              the second step overflows
     seeds=N                               of a thousand seeds, those that this case runs [20]
     a flag                                of CUDA_FLAGS */
#ifndef CUDA_CASES_H
#define CUDA_CASES_H

typedef struct cuda_case {
    const char *name;
    zero_comm_kind kind;
    int nranks, stage, micro_steps;
    zero_accumulation accumulation;
    zero_type type;
    int prefetch, buckets;
    int overflow;
    int evaluate; /* CUDA_EVAL_* */
    int64_t more; /* CUDA_* flags */
    int seeds;
} cuda_case;

enum { CUDA_EVAL_STEPPED = 1, CUDA_EVAL_PASSED = 2, CUDA_EVAL_REDUCED = 4, CUDA_EVAL_ALL = 7 };

/* FLAG(NAME, word, what a case with this flag does): the constant is CUDA_NAME. */
#define CUDA_FLAGS(FLAG)                                                                           \
    FLAG(NO_MAPPING, "no-mapping", "ranks of LOCAL copy; they do not map")                         \
    FLAG(NORM, "norm", "asks for the norm, and clips")                                             \
    FLAG(DEVICES, "devices", "a device per rank")                                                  \
    FLAG(DEFAULT, "default", "the trainer computes on the default stream")                         \
    FLAG(BLOCKING, "blocking", "the trainer's stream is a blocking one")                           \
    FLAG(NO_OVERLAP, "no-overlap", "config.no_overlap")                                            \
    FLAG(NO_WAIT, "no-wait", "the caller's communicator does not block")                           \
    FLAG(OLD_NCCL, "old-nccl", "NCCL without windows")                                             \
    FLAG(ALL_GATHERED, "all-gathered", "no unit is kept unsharded")                                \
    FLAG(RECOMPUTE, "recompute", "a backward pass runs the forward again")                         \
    FLAG(READS, "reads", "reads gradients between zero_reduce and zero_step")                      \
    FLAG(NO_MASTER, "no-master", "config.master is NONE")                                          \
    FLAG(SPLIT, "split", "config.master is SPLIT")                                                 \
    FLAG(STATES, "states", "config.state_type is BF16")                                            \
    FLAG(CODES, "codes", "config.state_type is 8BIT; at stage 3, wte has F32_STATE")               \
    FLAG(SKIPS, "skips", "drops the second step")                                                  \
    FLAG(SILENT, "silent", "no pass of training uses unit 3")                                      \
    FLAG(ORDERED, "ordered", "NCCL launches in the CPU's order")                                   \
    FLAG(SAVES, "saves", "copies the state, and goes on from the copy")                            \
    FLAG(NO_WINDOWS, "no-windows", "NCCL registers, but makes no windows of it")                   \
    FLAG(WRITES, "writes", "writes a tensor that other ranks still read")                          \
    FLAG(LEAVES, "leaves", "destroys the context while work runs")                                 \
    FLAG(LOOKS_LATE, "looks-late", "no KEEP; a forward after the last backward of a pass")         \
    FLAG(HOST, "host", "tier HOST: the same results as without")                                   \
    FLAG(HALF, "half", "offloads half of all elements")                                            \
    FLAG(REWRITES, "rewrites", "writes a gradient between zero_reduce and zero_step")              \
    FLAG(MANY, "many", "more units than a lane has places")                                        \
    FLAG(AHEAD, "ahead", "asks for the last step's report only")                                   \
    FLAG(DELAYS, "delays", "updates run during the next step")                                     \
    FLAG(FILE, "file", "tier FILE: the same results as without")                                   \
    FLAG(LARGE, "large", "units of several pieces, more than a ring has places")                   \
    FLAG(PARAMS, "params", "parameters are in the same tier")                                      \
    FLAG(THROUGH, "through", "the device updates state that is in CPU memory")                     \
    FLAG(SLOW, "slow", "the disk is slow, so lanes are late")                                      \
    FLAG(LAMB, "lamb", "the rule LAMB")                                                            \
    FLAG(MUON, "muon", "the rule Muon")                                                            \
    FLAG(GRADS, "grads", "reduced gradients are in the file")                                      \
    FLAG(ADAGRAD, "adagrad", "the rule Adagrad")                                                   \
    FLAG(SHARDS, "shards", "2 ranks share a copy; 1 if the number of ranks is odd")                \
    FLAG(SECOND, "second", "as many ranks keep a second shard")                                    \
    FLAG(PACKED, "packed", "gradients of 4 bits, at stage 3 weights of 8")                         \
    FLAG(NODES, "nodes", "a node has 2 ranks")                                                     \
    FLAG(TURNS, "turns", "one pass of all micro-steps, in an announced order")                     \
    FLAG(SLICES, "slices", "each matrix is cut over 2 ranks")                                      \
    FLAG(JOINS, "joins", "a second context, of every second rank, joins")                          \
    FLAG(PLAIN, "plain", "no hooks: all tensors are KEEP")                                         \
    FLAG(SENDS, "sends", "reduced gradients are in CPU memory")                                    \
    FLAG(ROWS, "rows", "backward touches few rows of wte and fc, which it announces")              \
    FLAG(DENSE, "dense", "with rows: a run that does not announce them has the same bits")

enum {
#define FLAG(name, word, what) CUDA_BIT_##name,
    CUDA_FLAGS(FLAG)
#undef FLAG
};
#define FLAG(name, word, what) static const int64_t CUDA_##name = (int64_t)1 << CUDA_BIT_##name;
CUDA_FLAGS(FLAG)
#undef FLAG
static const int64_t CUDA_AWAY = CUDA_HOST | CUDA_FILE | CUDA_THROUGH;

static const struct {
    const char *name, *words;
} cuda_rows[] = {
    {"self-3", "self ranks=1 stage=3 type=f32 eval=all all-gathered"},
    {"local-0", "ranks=2 stage=0 type=f32 skips seeds=60"},
    {"local-0-f16", "ranks=2 stage=0 type=f16 buckets=2 overflow norm seeds=60"},
    {"local-1", "ranks=3 stage=1 micro=3 type=bf16 buckets=2 eval=stepped devices seeds=60"},
    {"local-1-f16", "ranks=2 stage=1 micro=3 accumulate=sharded type=f16 buckets=2 overflow "
                    "seeds=60"},
    {"local-2", "ranks=3 stage=2 type=f32 eval=all reads silent seeds=60"},
    {"local-2-bf16", "ranks=2 stage=2 micro=3 accumulate=local type=bf16 no-master seeds=60"},
    {"local-3-mapped", "ranks=3 stage=3 type=f32 eval=all all-gathered silent seeds=80"},
    {"local-3-passed", "ranks=2 stage=3 type=f32 eval=passed all-gathered seeds=120"},
    {"local-3", "ranks=3 stage=3 micro=3 type=f32 prefetch=2 eval=all no-mapping all-gathered "
                "silent seeds=80"},
    {"local-3-f16", "ranks=2 stage=3 type=f16 prefetch=none buckets=2 overflow eval=stepped "
                    "no-mapping devices recompute seeds=60"},
    {"local-3-default", "ranks=2 stage=3 type=bf16 prefetch=1 no-mapping default seeds=40"},
    {"local-3-written", "ranks=2 stage=3 type=f32 eval=stepped writes all-gathered"},
    {"local-3-leaves", "ranks=2 stage=3 type=f32 prefetch=2 leaves devices all-gathered seeds=40"},
    {"local-0-leaves", "ranks=2 stage=0 type=f32 leaves devices"},
    {"local-0-stepped", "ranks=2 stage=0 type=f32 eval=stepped leaves"},
    {"local-2-alone", "ranks=2 stage=2 type=f32 no-overlap blocking skips"},
    {"local-3-late", "ranks=2 stage=3 type=f32 eval=passed looks-late seeds=60"},
    {"packed-1", "ranks=3 stage=1 micro=3 type=bf16 buckets=2 packed norm"},
    {"packed-2", "ranks=3 stage=2 micro=3 type=f32 packed silent devices"},
    {"packed-3", "ranks=3 stage=3 type=f16 buckets=2 overflow eval=all packed all-gathered saves"},
    {"packed-3-host", "ranks=2 stage=3 type=bf16 prefetch=2 packed host params"},
    {"packed-nodes", "ranks=4 stage=2 micro=3 type=bf16 packed nodes"},
    {"packed-nccl-nodes", "nccl ranks=4 stage=3 type=bf16 packed nodes all-gathered"},
    {"packed-nccl-3", "nccl ranks=3 stage=3 micro=3 type=f32 eval=stepped packed all-gathered"},
    {"packed-nccl-hops", "nccl ranks=4 stage=3 micro=3 type=bf16 prefetch=1 packed nodes second "
                         "norm"},
    {"packed-nccl-shards", "nccl ranks=4 stage=3 type=bf16 prefetch=1 packed shards"},
    {"nccl-one", "nccl ranks=1 stage=2 type=f32"},
    {"nccl-0", "nccl ranks=2 stage=0 type=f16 buckets=2 overflow seeds=60"},
    {"nccl-1", "nccl ranks=3 stage=1 micro=3 type=bf16 buckets=2 eval=stepped no-wait no-windows "
               "seeds=60"},
    {"nccl-2", "nccl ranks=3 stage=2 micro=3 type=bf16 old-nccl norm seeds=80"},
    {"nccl-3", "nccl ranks=3 stage=3 micro=3 type=f32 prefetch=2 buckets=2 eval=all all-gathered "
               "reads silent seeds=80"},
    {"nccl-3-f16", "nccl ranks=2 stage=3 type=f16 prefetch=none overflow eval=stepped recompute "
                   "seeds=60"},
    {"nccl-2-alone", "nccl ranks=2 stage=2 type=f32 no-overlap default skips"},
    {"nccl-3-ordered", "nccl ranks=3 stage=3 type=bf16 prefetch=1 eval=all ordered all-gathered "
                       "seeds=40"},
    {"turns-1", "ranks=3 stage=1 micro=3 type=bf16 buckets=2 eval=stepped turns devices"},
    {"turns-2", "ranks=2 stage=2 micro=3 type=f16 buckets=2 overflow turns norm reads"},
    {"turns-3", "ranks=3 stage=3 micro=3 accumulate=local type=f32 prefetch=2 eval=all turns "
                "no-mapping all-gathered seeds=40"},
    {"turns-3-mapped", "ranks=2 stage=3 micro=3 type=f32 eval=passed turns all-gathered recompute "
                       "seeds=40"},
    {"turns-nccl-0", "nccl ranks=2 stage=0 micro=3 type=bf16 buckets=2 turns skips"},
    {"turns-nccl-3", "nccl ranks=2 stage=3 micro=3 accumulate=local type=bf16 prefetch=none "
                     "eval=all turns all-gathered silent seeds=40"},
    {"turns-nccl-3-sharded", "nccl ranks=3 stage=3 micro=3 type=f32 prefetch=2 buckets=2 turns "
                             "all-gathered saves seeds=40"},
    {"turns-nccl-second", "nccl ranks=4 stage=3 micro=3 type=bf16 prefetch=1 turns second "
                          "all-gathered no-wait"},
    {"split-0", "ranks=2 stage=0 type=bf16 buckets=2 eval=all split writes"},
    {"split-1", "ranks=3 stage=1 micro=3 type=bf16 buckets=2 eval=stepped split reads"},
    {"split-2", "ranks=3 stage=2 type=bf16 split saves skips"},
    {"split-3", "ranks=3 stage=3 type=bf16 eval=stepped split writes all-gathered no-mapping"},
    {"split-nccl-3", "nccl ranks=2 stage=3 type=bf16 prefetch=1 split saves all-gathered"},
    {"split-packed", "ranks=2 stage=3 type=bf16 prefetch=2 split packed host params"},
    {"split-shards", "ranks=4 stage=3 type=bf16 split shards second all-gathered saves"},
    {"split-host-2", "ranks=2 stage=2 micro=3 type=bf16 split host silent ahead seeds=40"},
    {"split-host-3", "ranks=3 stage=3 type=bf16 eval=stepped split host params writes saves"},
    {"split-host-half", "nccl ranks=2 stage=1 type=bf16 split host half saves norm"},
    {"split-host-delays", "ranks=2 stage=1 type=bf16 eval=stepped split host delays writes"},
    {"split-saved-delays", "ranks=2 stage=3 type=bf16 split host delays saves"},
    {"split-through-2", "ranks=2 stage=2 type=bf16 split through large ahead seeds=10"},
    {"split-through-3", "ranks=2 stage=3 type=bf16 eval=stepped split through writes half"},
    {"split-through-saved", "nccl ranks=2 stage=3 type=bf16 split through saves"},
    {"split-file-2", "ranks=2 stage=2 type=bf16 eval=stepped split file writes saves"},
    {"split-file-3", "ranks=3 stage=3 micro=3 type=bf16 prefetch=2 split file params grads saves"},
    {"split-file-delays", "ranks=3 stage=2 type=bf16 split file delays ahead"},
    {"split-lamb-host", "ranks=2 stage=2 type=bf16 split lamb host"},
    {"split-lamb-through", "ranks=3 stage=1 type=bf16 split lamb through half"},
    {"split-muon-3", "nccl ranks=2 stage=3 type=bf16 split muon all-gathered saves"},
    {"split-muon-through", "ranks=2 stage=3 type=bf16 split muon through ahead"},
    {"split-muon-file", "ranks=2 stage=3 type=bf16 split muon file params saves"},
    {"states-1", "ranks=3 stage=1 micro=3 buckets=2 eval=stepped states reads"},
    {"states-3", "nccl ranks=2 stage=3 type=bf16 split states saves all-gathered skips"},
    {"states-host-2", "ranks=2 stage=2 micro=3 type=bf16 states host silent ahead seeds=40"},
    {"states-host-3",
     "ranks=3 stage=3 type=bf16 eval=stepped split states host params writes saves"},
    {"states-through-2", "ranks=2 stage=2 states through large ahead seeds=10"},
    {"states-through-3", "ranks=2 stage=3 type=bf16 eval=stepped split states through writes half"},
    {"states-file-3",
     "ranks=3 stage=3 micro=3 type=bf16 prefetch=2 states file params grads saves"},
    {"states-file-delays", "ranks=3 stage=2 type=bf16 states file delays ahead"},
    {"states-lamb", "ranks=3 stage=1 type=bf16 states lamb through half"},
    {"states-muon", "ranks=2 stage=3 type=bf16 split states muon file params saves"},
    {"codes-1", "ranks=3 stage=1 micro=3 buckets=2 eval=stepped codes reads"},
    {"codes-3", "nccl ranks=2 stage=3 type=bf16 split codes saves all-gathered skips"},
    {"codes-host-3", "ranks=3 stage=3 type=bf16 eval=stepped split codes host params writes saves"},
    {"codes-through-2", "ranks=2 stage=2 codes through large ahead seeds=10"},
    {"codes-through-3", "ranks=2 stage=3 type=bf16 eval=stepped split codes through writes half"},
    {"codes-file-3", "ranks=3 stage=3 micro=3 type=bf16 prefetch=2 codes file params grads saves"},
    {"codes-file-delays", "ranks=3 stage=2 type=bf16 codes file delays ahead"},
    {"codes-lamb", "ranks=3 stage=1 type=bf16 codes lamb through half"},
    {"codes-muon", "ranks=2 stage=3 type=bf16 split codes muon file params saves"},
    {"saved-self", "self ranks=1 stage=3 type=bf16 saves all-gathered"},
    {"saved-0", "ranks=2 stage=0 type=f16 buckets=2 overflow saves norm"},
    {"saved-1", "ranks=3 stage=1 micro=3 type=bf16 buckets=2 eval=stepped saves devices"},
    {"saved-2", "ranks=3 stage=2 type=bf16 saves no-master skips"},
    {"saved-3", "ranks=3 stage=3 micro=3 type=f32 prefetch=2 saves no-mapping all-gathered"},
    {"saved-3-mapped", "ranks=2 stage=3 type=f32 eval=stepped saves all-gathered"},
    {"saved-nccl-0", "nccl ranks=2 stage=0 type=bf16 saves no-master"},
    {"saved-nccl-1", "nccl ranks=3 stage=1 micro=3 type=bf16 buckets=2 saves"},
    {"saved-nccl-2", "nccl ranks=2 stage=2 type=f32 saves skips"},
    {"saved-nccl-3", "nccl ranks=3 stage=3 type=f16 prefetch=2 overflow saves all-gathered"},
    {"shards-1", "ranks=4 stage=1 type=bf16 buckets=2 shards devices seeds=40"},
    {"shards-1-f16", "ranks=4 stage=1 micro=3 accumulate=sharded type=f16 buckets=2 overflow "
                     "shards norm seeds=40"},
    {"shards-2", "ranks=4 stage=2 micro=3 type=f32 eval=stepped shards reads silent seeds=40"},
    {"shards-3", "ranks=4 stage=3 type=bf16 eval=all shards second no-mapping all-gathered "
                 "recompute seeds=60"},
    {"second-3", "ranks=4 stage=3 micro=3 type=f32 prefetch=2 eval=all second no-mapping "
                 "all-gathered seeds=60"},
    {"shards-saved-3", "ranks=4 stage=3 type=f16 buckets=2 overflow shards saves no-mapping"},
    {"shards-leaves", "ranks=4 stage=3 type=f32 prefetch=2 shards second no-mapping leaves "
                      "all-gathered seeds=40"},
    {"shards-host-3", "ranks=4 stage=3 type=bf16 shards second host params all-gathered"},
    {"shards-host-delays", "ranks=4 stage=2 type=bf16 shards host delays"},
    {"shards-file-3", "ranks=4 stage=3 micro=3 type=f32 shards second file params grads "
                      "all-gathered"},
    {"shards-nccl-2", "nccl ranks=4 stage=2 micro=3 type=bf16 buckets=2 eval=stepped shards norm "
                      "seeds=40"},
    {"shards-nccl-3", "nccl ranks=4 stage=3 type=f32 prefetch=2 eval=all shards second "
                      "all-gathered reads seeds=40"},
    {"shards-nccl-f16", "nccl ranks=4 stage=1 type=f16 buckets=2 overflow shards saves seeds=40"},
    {"shards-nccl-host", "nccl ranks=4 stage=3 type=bf16 prefetch=1 shards second host params "
                         "all-gathered"},
    {"shards-nccl-file", "nccl ranks=4 stage=3 micro=3 type=f32 shards second file params grads "
                         "all-gathered"},
    {"second-nccl", "nccl ranks=4 stage=3 micro=3 type=bf16 prefetch=1 eval=all second "
                    "all-gathered old-nccl seeds=40"},
    {"host-self", "self ranks=1 stage=1 type=f32 eval=all host"},
    {"host-0", "ranks=2 stage=0 type=bf16 buckets=2 eval=all host skips silent seeds=40"},
    {"host-0-f16", "ranks=2 stage=0 type=f16 buckets=2 overflow host norm seeds=40"},
    {"host-1", "ranks=3 stage=1 micro=3 type=bf16 buckets=2 eval=stepped host devices silent "
               "seeds=40"},
    {"host-2", "ranks=3 stage=2 type=f32 eval=all host reads silent seeds=40"},
    {"host-2-bf16", "ranks=2 stage=2 micro=3 accumulate=local type=bf16 host no-master silent "
                    "seeds=40"},
    {"host-2-half", "ranks=3 stage=2 micro=3 type=bf16 host half norm skips seeds=40"},
    {"host-3-mapped", "ranks=3 stage=3 type=f32 eval=all host all-gathered silent seeds=40"},
    {"host-3", "ranks=3 stage=3 micro=3 type=bf16 prefetch=2 eval=all host no-mapping "
               "all-gathered rewrites seeds=40"},
    {"host-3-f16", "ranks=2 stage=3 type=f16 prefetch=none buckets=2 overflow eval=stepped host "
                   "no-mapping devices recompute seeds=40"},
    {"host-2-alone", "ranks=2 stage=2 type=f32 host no-overlap blocking skips"},
    {"host-3-written", "ranks=2 stage=3 type=bf16 eval=stepped host writes all-gathered no-master"},
    {"host-3-leaves", "ranks=2 stage=3 type=f32 prefetch=2 host leaves devices all-gathered"},
    {"host-0-leaves", "ranks=2 stage=0 type=bf16 eval=stepped host leaves"},
    {"host-2-leaves", "ranks=2 stage=2 type=bf16 host leaves ahead seeds=40"},
    {"host-3-many", "ranks=2 stage=3 type=bf16 host many all-gathered seeds=10"},
    {"host-0-ahead", "ranks=2 stage=0 type=f32 host ahead silent seeds=40"},
    {"host-3-ahead", "ranks=3 stage=3 micro=3 type=bf16 prefetch=1 host ahead silent no-mapping "
                     "seeds=40"},
    {"host-nccl-ahead", "nccl ranks=2 stage=2 type=bf16 host ahead silent seeds=40"},
    {"host-0-delays", "ranks=2 stage=0 type=f32 host delays silent seeds=40"},
    {"host-1-delays", "ranks=2 stage=1 micro=3 type=bf16 buckets=2 eval=stepped host delays "
                      "writes no-master seeds=40"},
    {"host-2-delays", "ranks=3 stage=2 type=bf16 host delays ahead devices seeds=40"},
    {"host-3-delays", "ranks=3 stage=3 micro=3 type=bf16 prefetch=2 host delays no-mapping "
                      "all-gathered seeds=40"},
    {"host-3-delays-f16", "ranks=2 stage=3 type=f16 buckets=2 overflow host delays no-mapping "
                          "norm seeds=40"},
    {"host-nccl-delays", "nccl ranks=2 stage=3 type=bf16 host delays all-gathered seeds=40"},
    {"host-nccl-0", "nccl ranks=2 stage=0 type=f16 buckets=2 overflow host seeds=40"},
    {"host-nccl-1", "nccl ranks=3 stage=1 micro=3 type=bf16 buckets=2 eval=stepped host no-wait "
                    "norm seeds=40"},
    {"host-nccl-3", "nccl ranks=3 stage=3 micro=3 type=f32 prefetch=2 buckets=2 eval=all host "
                    "all-gathered reads silent seeds=40"},
    {"host-nccl-alone", "nccl ranks=2 stage=2 type=bf16 host no-overlap default"},
    {"saved-host-0", "ranks=2 stage=0 type=f16 buckets=2 overflow host saves"},
    {"saved-host-2", "ranks=3 stage=2 type=bf16 host saves no-master skips"},
    {"saved-host-delays", "ranks=2 stage=2 type=bf16 host delays saves"},
    {"lamb-0", "ranks=2 stage=0 type=f32 lamb norm"},
    {"lamb-1", "ranks=2 stage=1 micro=3 accumulate=sharded type=f16 buckets=2 overflow lamb"},
    {"lamb-3", "ranks=3 stage=3 type=bf16 eval=all lamb no-master all-gathered"},
    {"lamb-nccl-2", "nccl ranks=3 stage=2 type=f32 lamb saves"},
    {"muon-0", "ranks=2 stage=0 type=f32 muon norm"},
    {"muon-1", "ranks=2 stage=1 micro=3 accumulate=sharded type=f16 buckets=2 overflow muon"},
    {"muon-2", "ranks=3 stage=2 type=bf16 eval=all muon skips no-overlap"},
    {"muon-3", "ranks=3 stage=3 type=bf16 eval=all muon no-master all-gathered"},
    {"muon-nccl-0", "nccl ranks=2 stage=0 type=f32 muon"},
    {"muon-nccl-3", "nccl ranks=3 stage=3 type=f32 muon saves"},
    {"lamb-host-0", "ranks=2 stage=0 type=f32 lamb host half"},
    {"lamb-host-2", "ranks=3 stage=2 type=f16 buckets=2 overflow lamb host"},
    {"lamb-host-3", "nccl ranks=2 stage=3 type=bf16 lamb host half saves"},
    {"muon-host-0", "ranks=2 stage=0 type=f32 muon host"},
    {"muon-host-2", "ranks=3 stage=2 type=f16 buckets=2 overflow muon host half skips"},
    {"muon-host-3", "nccl ranks=2 stage=3 type=bf16 muon host saves no-master"},
    {"lamb-host-ahead", "ranks=2 stage=2 type=bf16 lamb host ahead seeds=40"},
    {"muon-host-ahead", "ranks=2 stage=3 type=bf16 muon host ahead seeds=40"},
    {"lamb-host-delays", "ranks=2 stage=1 type=bf16 lamb host delays seeds=40"},
    {"muon-host-delays", "nccl ranks=2 stage=3 type=bf16 muon host delays all-gathered seeds=40"},
    {"lamb-file-0", "ranks=2 stage=0 type=f32 lamb file half"},
    {"lamb-file-2", "ranks=3 stage=2 type=f16 buckets=2 overflow lamb file"},
    {"lamb-file-3", "nccl ranks=2 stage=3 type=bf16 lamb file params saves"},
    {"lamb-file-delays", "ranks=2 stage=1 type=bf16 lamb file delays"},
    {"muon-file-2", "ranks=3 stage=2 type=f16 buckets=2 overflow muon file half skips"},
    {"muon-file-3", "nccl ranks=2 stage=3 type=bf16 muon file params saves no-master"},
    {"muon-file-ahead", "ranks=2 stage=3 type=bf16 muon file ahead large seeds=10"},
    {"muon-file-delays", "nccl ranks=2 stage=3 type=bf16 muon file delays all-gathered"},
    {"lamb-host-params", "ranks=2 stage=3 type=f32 lamb host params"},
    {"muon-host-params", "ranks=2 stage=3 type=bf16 muon host params ahead"},
    {"lamb-through-0", "ranks=2 stage=0 type=f32 lamb through half"},
    {"lamb-through-2", "ranks=3 stage=2 type=f16 buckets=2 overflow lamb through ahead"},
    {"lamb-through-3", "nccl ranks=2 stage=3 type=bf16 lamb through no-master saves"},
    {"lamb-through-large", "ranks=2 stage=2 type=f32 lamb through large seeds=10"},
    {"muon-through-0", "ranks=2 stage=0 type=f32 muon through norm"},
    {"muon-through-2", "ranks=3 stage=2 type=f16 buckets=2 overflow muon through half skips"},
    {"muon-through-3", "nccl ranks=2 stage=3 type=bf16 muon through ahead saves"},
    {"saved-host-3", "nccl ranks=2 stage=3 micro=3 type=bf16 prefetch=2 host saves all-gathered"},
    {"through-self", "self ranks=1 stage=1 type=f32 eval=all through"},
    {"through-0-f16", "ranks=2 stage=0 type=f16 buckets=2 overflow through norm seeds=40"},
    {"through-1", "ranks=3 stage=1 micro=3 type=bf16 buckets=2 eval=stepped through devices "
                  "silent seeds=40"},
    {"through-2-half", "ranks=3 stage=2 micro=3 type=bf16 through half norm skips seeds=40"},
    {"through-2-none", "ranks=2 stage=2 micro=3 accumulate=local type=bf16 through no-master "
                       "silent ahead seeds=40"},
    {"through-2-large", "ranks=2 stage=2 type=f32 through large ahead"},
    {"through-3", "ranks=3 stage=3 micro=3 type=bf16 prefetch=2 eval=all through no-mapping "
                  "all-gathered rewrites seeds=40"},
    {"through-3-written", "ranks=2 stage=3 type=bf16 eval=stepped through writes all-gathered "
                          "no-master"},
    {"through-3-ahead", "ranks=3 stage=3 type=f32 prefetch=1 through ahead silent seeds=60"},
    {"through-2-leaves", "ranks=2 stage=2 type=bf16 eval=stepped through leaves"},
    {"through-nccl-3", "nccl ranks=3 stage=3 micro=3 type=f32 prefetch=2 buckets=2 eval=all "
                       "through all-gathered reads silent seeds=40"},
    {"through-nccl-alone", "nccl ranks=2 stage=2 type=bf16 through no-overlap default"},
    {"saved-through-2", "ranks=3 stage=2 type=bf16 through saves skips"},
    {"saved-through-3", "nccl ranks=2 stage=3 micro=3 type=f16 prefetch=2 overflow through saves "
                        "all-gathered"},
    {"file-self", "self ranks=1 stage=1 type=f32 eval=all file"},
    {"file-0-f16", "ranks=2 stage=0 type=f16 buckets=2 overflow file norm"},
    {"file-1", "ranks=3 stage=1 micro=3 type=bf16 buckets=2 eval=stepped file devices silent"},
    {"file-2-half", "ranks=3 stage=2 micro=3 type=bf16 file half norm skips"},
    {"file-2-large", "ranks=2 stage=2 type=f32 file large seeds=10"},
    {"file-3", "ranks=3 stage=3 micro=3 type=bf16 prefetch=2 eval=all file no-mapping "
               "all-gathered rewrites"},
    {"file-3-written", "ranks=2 stage=3 type=bf16 eval=stepped file writes all-gathered no-master"},
    {"file-3-leaves", "ranks=2 stage=3 type=f32 prefetch=2 file leaves devices all-gathered"},
    {"file-2-leaves", "ranks=2 stage=2 type=bf16 file leaves ahead"},
    {"file-3-ahead", "ranks=3 stage=3 micro=3 type=bf16 prefetch=1 file ahead silent no-mapping"},
    {"file-2-delays", "ranks=3 stage=2 type=bf16 file delays ahead devices"},
    {"file-2-delays-slow", "ranks=2 stage=2 type=bf16 file delays ahead slow seeds=10"},
    {"file-3-slow-leaves", "ranks=2 stage=3 type=f32 prefetch=2 file params leaves devices "
                           "all-gathered slow seeds=10"},
    {"file-nccl-3", "nccl ranks=3 stage=3 micro=3 type=f32 prefetch=2 buckets=2 eval=all file "
                    "all-gathered reads silent"},
    {"file-nccl-alone", "nccl ranks=2 stage=2 type=bf16 file no-overlap default"},
    {"host-3-params", "ranks=3 stage=3 micro=3 type=bf16 prefetch=2 eval=all host params "
                      "all-gathered rewrites"},
    {"host-3-params-f32", "ranks=2 stage=3 type=f32 prefetch=1 eval=stepped host params writes "
                          "devices"},
    {"host-3-params-ahead", "ranks=2 stage=3 type=f16 prefetch=3 overflow host params ahead half"},
    {"host-nccl-params", "nccl ranks=3 stage=3 micro=3 type=f32 prefetch=2 buckets=2 eval=all "
                         "host params all-gathered reads silent"},
    {"file-self-params", "self ranks=1 stage=3 type=f32 eval=all file params"},
    {"file-3-params", "ranks=3 stage=3 micro=3 type=bf16 prefetch=2 eval=all file params "
                      "all-gathered rewrites"},
    {"file-3-params-none", "ranks=2 stage=3 type=bf16 prefetch=1 eval=stepped file params writes "
                           "no-master"},
    {"file-3-params-large", "ranks=2 stage=3 type=f32 prefetch=2 file params large ahead seeds=10"},
    {"file-3-params-leaves", "ranks=2 stage=3 type=f32 prefetch=2 file params leaves devices "
                             "all-gathered"},
    {"file-3-params-alone", "ranks=2 stage=3 type=f16 buckets=2 overflow file params no-overlap "
                            "default half recompute"},
    {"file-nccl-params", "nccl ranks=3 stage=3 micro=3 type=bf16 prefetch=2 buckets=2 file params "
                         "all-gathered ahead silent"},
    {"file-self-grads", "self ranks=1 stage=2 type=f32 eval=all file grads silent"},
    {"file-2-grads", "ranks=3 stage=2 type=bf16 file grads reads silent devices"},
    {"file-2-grads-f16", "ranks=2 stage=2 micro=3 accumulate=sharded type=f16 buckets=2 overflow "
                         "file grads norm"},
    {"file-3-grads", "ranks=3 stage=3 micro=3 type=f32 prefetch=2 eval=all file params grads "
                     "all-gathered rewrites"},
    {"file-3-grads-large", "ranks=2 stage=3 micro=3 type=f32 prefetch=2 file params grads large "
                           "ahead seeds=10"},
    {"file-3-grads-leaves", "ranks=2 stage=2 type=f32 prefetch=2 file grads leaves ahead"},
    {"file-2-grads-delays", "ranks=2 stage=2 type=bf16 file grads delays ahead slow seeds=10"},
    {"file-nccl-grads", "nccl ranks=3 stage=3 micro=3 type=f32 prefetch=2 buckets=2 file grads "
                        "all-gathered ahead silent"},
    {"file-2-grads-alone", "ranks=2 stage=2 type=f16 buckets=2 overflow file grads no-overlap "
                           "default half"},
    {"host-2-grads", "ranks=2 stage=2 micro=3 type=f32 eval=stepped host grads half skips"},
    {"host-3-grads-params", "ranks=2 stage=3 type=bf16 host params grads ahead"},
    {"sends-self", "self ranks=1 stage=2 micro=3 accumulate=sharded type=f32 eval=all host sends"},
    {"sends-0", "ranks=2 stage=0 type=bf16 buckets=2 eval=all host sends skips"},
    {"sends-1", "ranks=2 stage=1 micro=3 accumulate=sharded type=f32 buckets=2 host sends norm"},
    {"sends-2", "ranks=3 stage=2 type=f32 eval=all host sends reads silent devices seeds=40"},
    {"sends-2-adds", "ranks=2 stage=2 micro=3 type=f32 eval=stepped host sends skips norm "
                     "seeds=40"},
    {"sends-2-local", "ranks=2 stage=2 micro=3 accumulate=local type=bf16 host sends no-master "
                      "silent"},
    {"sends-2-f16", "ranks=3 stage=2 micro=3 accumulate=sharded type=f16 buckets=2 overflow host "
                    "sends norm half seeds=40"},
    {"sends-3-f16", "ranks=2 stage=3 type=f16 prefetch=none buckets=2 overflow host sends "
                    "no-mapping devices recompute seeds=40"},
    {"sends-3", "ranks=3 stage=3 micro=3 type=bf16 prefetch=2 eval=all host sends no-mapping "
                "all-gathered rewrites seeds=40"},
    {"sends-3-params", "ranks=2 stage=3 type=bf16 prefetch=1 host sends params ahead seeds=40"},
    {"sends-3-large", "ranks=2 stage=3 micro=3 type=f32 prefetch=2 host sends large ahead "
                      "seeds=10"},
    {"sends-2-alone", "ranks=2 stage=2 micro=3 type=f32 host sends no-overlap blocking"},
    {"sends-2-leaves", "ranks=2 stage=2 type=f32 host sends leaves ahead"},
    {"sends-2-many", "ranks=2 stage=2 type=bf16 host sends many seeds=10"},
    {"sends-2-delays", "ranks=2 stage=2 micro=3 type=f32 host sends delays ahead seeds=40"},
    {"sends-3-delays-f16", "ranks=2 stage=3 type=f16 buckets=2 overflow host sends delays "
                           "no-mapping norm seeds=40"},
    {"sends-nccl", "nccl ranks=3 stage=3 micro=3 type=f32 prefetch=2 buckets=2 eval=all host "
                   "sends all-gathered reads silent seeds=40"},
    {"sends-nccl-bf16", "nccl ranks=2 stage=2 type=bf16 host sends ahead silent seeds=40"},
    {"sends-file", "ranks=2 stage=3 micro=3 type=f32 prefetch=2 file params sends ahead"},
    {"sends-through", "ranks=2 stage=2 micro=3 type=f32 through sends skips"},
    {"sends-shards", "ranks=4 stage=2 micro=3 type=f32 shards host sends"},
    {"sends-lamb", "ranks=2 stage=2 micro=3 type=f32 lamb host sends"},
    {"sends-muon", "nccl ranks=2 stage=3 type=bf16 muon host sends delays"},
    {"sends-saved", "ranks=2 stage=3 micro=3 type=f32 prefetch=2 host sends saves"},
    {"lamb-grads", "ranks=2 stage=2 micro=3 type=f32 lamb file grads"},
    {"muon-grads", "nccl ranks=2 stage=3 type=bf16 muon host grads delays"},
    {"saved-file-grads", "ranks=2 stage=3 type=bf16 prefetch=2 file params grads saves"},
    {"saved-host-params", "ranks=2 stage=3 type=bf16 host params saves no-master"},
    {"saved-file-params", "ranks=2 stage=3 type=f16 prefetch=2 overflow file params saves "
                          "all-gathered"},
    {"slices-2", "ranks=4 stage=2 type=f32 slices muon"},
    {"slices-host", "ranks=4 stage=3 type=bf16 slices muon host ahead"},
    {"slices-nccl", "nccl ranks=4 stage=3 type=bf16 slices muon ordered"},
    {"slices-events", "nccl ranks=4 stage=2 type=f32 slices muon"},
    {"slices-leaves", "ranks=4 stage=2 type=f32 eval=stepped slices muon leaves"},
    {"slices-lamb", "ranks=4 stage=1 type=f32 slices lamb devices"},
    {"joins-0", "ranks=4 stage=0 type=f32 joins"},
    {"joins-2", "ranks=4 stage=2 type=f32 joins norm ahead"},
    {"joins-f16", "ranks=4 stage=1 micro=3 type=f16 buckets=2 overflow joins norm devices"},
    {"joins-nccl", "nccl ranks=4 stage=3 type=f32 joins norm"},
    {"joins-ordered", "nccl ranks=4 stage=3 type=f32 joins norm ordered"},
    {"rows-0", "ranks=3 stage=0 type=f32 rows dense buckets=2 seeds=60"},
    {"rows-0-f16", "ranks=2 stage=0 micro=3 type=f16 rows dense overflow large seeds=10"},
    {"rows-1", "ranks=3 stage=1 micro=3 type=bf16 buckets=2 rows dense devices norm seeds=40"},
    {"rows-2", "ranks=2 stage=2 micro=3 accumulate=sharded type=bf16 rows dense reads large "
               "seeds=10"},
    {"rows-2-alone", "ranks=2 stage=2 type=f32 no-overlap rows dense skips"},
    {"rows-3", "ranks=4 stage=3 type=f32 prefetch=2 rows dense eval=all all-gathered seeds=40"},
    {"rows-nodes", "ranks=4 stage=2 type=f32 rows dense nodes seeds=40"},
    {"rows-host", "ranks=2 stage=2 micro=3 type=bf16 rows dense host ahead"},
    {"rows-file", "ranks=2 stage=3 type=bf16 rows dense file params grads"},
    {"rows-delays", "ranks=2 stage=1 type=f32 rows dense host delays"},
    {"rows-shards", "ranks=4 stage=2 type=f32 rows dense shards seeds=40"},
    {"rows-turns", "ranks=2 stage=2 micro=3 type=f32 rows dense turns"},
    {"rows-saved", "ranks=2 stage=3 type=bf16 rows split saves all-gathered"},
    {"rows-leaves", "ranks=2 stage=2 type=f32 rows leaves"},
    {"rows-nccl-0", "nccl ranks=3 stage=0 type=f32 rows dense buckets=2 seeds=60"},
    {"rows-nccl-1", "nccl ranks=2 stage=1 micro=3 type=bf16 rows dense buckets=2 no-wait seeds=40"},
    {"rows-nccl-2", "nccl ranks=4 stage=2 type=f32 rows dense nodes old-nccl seeds=40"},
    {"rows-nccl-3", "nccl ranks=3 stage=3 micro=3 accumulate=sharded type=f16 rows dense overflow "
                    "prefetch=1 ordered large seeds=10"},
    {"rows-nccl-host", "nccl ranks=2 stage=2 type=bf16 rows dense host delays"},
    {"plain-1", "ranks=2 stage=1 micro=3 type=f32 plain"},
    {"plain-nccl", "nccl ranks=2 stage=2 type=bf16 plain ahead"},
    {"saved-file-0", "ranks=2 stage=0 type=f16 buckets=2 overflow file saves"},
    {"saved-file-2", "ranks=3 stage=2 type=bf16 file saves no-master skips"},
    {"saved-file-delays", "ranks=2 stage=2 type=bf16 file delays saves"},
};
enum { CUDA_CASES = sizeof cuda_rows / sizeof *cuda_rows };
static cuda_case cuda_cases[CUDA_CASES]; /* cuda_cases_read fills them */

/* Sets a field that a word like `ranks=3` or `eval=all` names. Returns 0 for other words. */
static int cuda_case_set_number(cuda_case *k, const char *word) {
    static const struct {
        const char *key;
        size_t at; /* offset of an int in cuda_case */
    } keys[] = {
        {"ranks=", offsetof(cuda_case, nranks)},      {"stage=", offsetof(cuda_case, stage)},
        {"micro=", offsetof(cuda_case, micro_steps)}, {"prefetch=", offsetof(cuda_case, prefetch)},
        {"buckets=", offsetof(cuda_case, buckets)},   {"eval=", offsetof(cuda_case, evaluate)},
        {"seeds=", offsetof(cuda_case, seeds)}};
    static const struct {
        const char *word;
        int value;
    } values[] = {{"prefetch=none", ZERO_NONE},
                  {"eval=stepped", CUDA_EVAL_STEPPED},
                  {"eval=passed", CUDA_EVAL_PASSED},
                  {"eval=reduced", CUDA_EVAL_REDUCED},
                  {"eval=all", CUDA_EVAL_ALL}};
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
        const size_t n = strlen(keys[i].key);
        char *end = NULL;
        if (strncmp(word, keys[i].key, n) != 0) continue;
        int *field = (int *)(void *)((char *)k + keys[i].at);
        for (size_t v = 0; v < sizeof values / sizeof *values; v++)
            if (!strcmp(word, values[v].word)) return *field = values[v].value, 1;
        *field = (int)strtol(word + n, &end, 10);
        return end > word + n && !*end;
    }
    return 0;
}

/* Sets a field by a word that stands for one value. Returns 0 for other words. */
static int cuda_case_set_choice(cuda_case *k, const char *word) {
    static const struct {
        const char *word;
        zero_comm_kind kind;
    } kinds[] = {{"self", ZERO_COMM_SELF}, {"local", ZERO_COMM_LOCAL}, {"nccl", ZERO_COMM_NCCL}};
    static const struct {
        const char *word;
        zero_type type;
    } types[] = {{"type=f32", ZERO_F32}, {"type=bf16", ZERO_BF16}, {"type=f16", ZERO_F16}};
    static const struct {
        const char *word;
        zero_accumulation accumulation;
    } ways[] = {{"accumulate=local", ZERO_ACCUMULATE_LOCAL},
                {"accumulate=sharded", ZERO_ACCUMULATE_SHARDED}};
    static const struct {
        const char *word;
        int64_t flag;
    } flags[] = {
#define FLAG(name, word, what) {word, CUDA_##name},
        CUDA_FLAGS(FLAG)
#undef FLAG
    };
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++)
        if (!strcmp(word, kinds[i].word)) return k->kind = kinds[i].kind, 1;
    for (size_t i = 0; i < sizeof types / sizeof *types; i++)
        if (!strcmp(word, types[i].word)) return k->type = types[i].type, 1;
    for (size_t i = 0; i < sizeof ways / sizeof *ways; i++)
        if (!strcmp(word, ways[i].word)) return k->accumulation = ways[i].accumulation, 1;
    for (size_t i = 0; i < sizeof flags / sizeof *flags; i++)
        if (!strcmp(word, flags[i].word)) return k->more |= flags[i].flag, 1;
    if (!strcmp(word, "overflow")) return k->overflow = 1, 1;
    return 0;
}

/* Reads a line of words. Returns the first word that it does not know, or NULL. */
static const char *cuda_case_read(cuda_case *k, const char *name, const char *words) {
    static char text[256];
    memset(k, 0, sizeof *k);
    k->name = name;
    k->kind = ZERO_COMM_LOCAL;
    k->nranks = 2;
    k->micro_steps = 1;
    k->seeds = 20;
    if (strlen(words) >= sizeof text) return words;
    memcpy(text, words, strlen(words) + 1);
    for (char *word = strtok(text, " "); word; word = strtok(NULL, " "))
        if (!cuda_case_set_number(k, word) && !cuda_case_set_choice(k, word)) return word;
    return NULL;
}

static int cuda_cases_read(void) {
    int good = 1;
    for (int i = 0; i < CUDA_CASES; i++) {
        const char *word = cuda_case_read(&cuda_cases[i], cuda_rows[i].name, cuda_rows[i].words);
        good &= test_check(!word, "case %s: '%s' is no word of cuda_cases.h", cuda_rows[i].name,
                           word ? word : "");
    }
    return good;
}

#endif
