/* train_options.c - see train_options.h. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "train_options.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>

#include "../launch/launch.h"

#define BIG 9e15 /* whole numbers below are exact in a double */
#define HEADING(text)                                                                              \
    { .type = OPTION_HEADING, .help = (text) }
#define RANGE(from, to) .least = (from), .most = (to)
/* Where the plugin has it, and how. */
#define TO(as, member) .form = OPTION_AS_##as, .to = offsetof(ds_config, member)
/* What DeepSpeed calls it, and when the file's value counts. */
#define KEY(text, mark, when) .key = (text), .bit = (mark), .rule = OPTION_FILE_##when
#define ROW(kind, short_name, long_name, member, usual, ...)                                       \
    {                                                                                              \
        .flag = (short_name), .name = (long_name), .type = OPTION_##kind,                          \
        .field = offsetof(train_options, member), .normal = (usual), __VA_ARGS__                   \
    }

static const option train_table[] = {
    HEADING("Data and model"),
    ROW(PATH, "-i", "--train-data", train_path, "",
        .help = "token file to train on; without it tiny Shakespeare, by characters for char: "
                "models, else in GPT-2's tokens"),
    ROW(PATH, "-j", "--val-data", val_path, "", .help = "token file to validate on"),
    ROW(PATH, "-tf", "--tokenizer", tokenizer_path, "", .help = "tokenizer file, to print samples"),
    ROW(TEXT, "-e", "--model", model, "char:4x128x4", .compare = "char:6x384x6", .course = 1,
        .help = "model: char:LxCxH (layers, channels, heads), d12, gpt2:d48, gpt3:c768, or a file "
                "with its weights: llm.c's .bin, or Hugging Face's .safetensors"),
    ROW(INT, "-ut", "--untied", untied, "0", RANGE(0, 1), .course = 1,
        .help = "1: the classifier is a tensor of its own; from a file it begins as the embedding"),
    ROW(PATH, "-o", "--out-dir", log_dir, "",
        .help = "folder for main.log and checkpoints; without it neither"),
    HEADING("Batches"),
    ROW(INT, "-b", "--batch", batch, "0", .compare = "8", RANGE(0, 1e6), TO(INT, micro_batch),
        KEY("train_micro_batch_size_per_gpu", 0, ALWAYS), .unsaid = 1,
        .help = "windows per rank and micro-step; 0: what -d asks for, without -d 12 divided by "
                "the ranks"),
    ROW(INT, "-t", "--window", seq_len, "64", .compare = "256", RANGE(1, 1e6), .course = 1,
        .help = "tokens of a window"),
    ROW(LONG, "-d", "--step-tokens", step_tokens, "0", RANGE(0, BIG), TO(INT64, train_batch),
        .per = offsetof(train_options, seq_len),
        KEY("train_batch_size, times -t tokens:", 0, ALWAYS), .unsaid = 1,
        .help = "tokens of a step over all ranks and micro-steps; 0: one micro-step"),
    ROW(INT, "-sh", "--shuffle", order, "-1", RANGE(-1, 2), .course = 1,
        .help = "windows: 0 in the file's order, 1 shuffled every epoch, 2 at random offsets; -1: "
                "1 with -i, else 2"),
    ROW(INT, "-a", "--overfit", overfit, "0", RANGE(0, 1), .course = 1,
        .help = "1: train on one batch of the validation data for ever"),
    ROW(LONG, "-sd", "--seed", seed, "42", RANGE(0, BIG), .course = 1, TO(SIZE, zero.seed),
        .help = "seed of weights, windows and samples"),
    HEADING("DeepSpeed"),
    ROW(PATH, "-ds", "--deepspeed", ds_path, "",
        .help = "ds_config.json: its values in place of the flags' defaults; \"auto\" in it stands "
                "for the flag's; a flag that says otherwise is an error"),
    ROW(PATH, "-dso", "--deepspeed-out", ds_out, "",
        .help = "with -ds: file to write what it was resolved to"),
    HEADING("Types"),
    ROW(WORD, "-dt", "--type", type, "f32", .words = "f32 bf16 fp16", .course = 1,
        TO(INT, zero.type), KEY("fp16.enabled and bf16.enabled:", DS_GIVEN_TYPE, IF_GIVEN),
        .help = "parameters and activations are stored in"),
    ROW(INT, "-w", "--master", master, "1", RANGE(0, 1), .course = 1, TO(NOT, zero.no_master),
        KEY("bf16_master_weights_and_grads: -w", 0, IF_GIVEN),
        .help = "1: 16-bit weights have a copy in f32, which is updated; 0 (bf16 alone): they have "
                "none, and updates are rounded stochastically"),
    ROW(WORD, "-zg", "--grad-type", grads, "auto", .words = "auto f32 type", .course = 1,
        TO(INT, zero.grads), KEY("the gradients' type:", 0, IF_GIVEN),
        .help = "gradients are stored and sent in f32 or in the type of -dt; auto: in f32 where "
                "micro-steps add up"),
    ROW(REAL, "-ls", "--loss-scale", scale, "0", RANGE(0, 1e30), .course = 1,
        TO(FLOAT, zero.scaler.fixed), KEY("fp16.loss_scale", 0, IF_GIVEN),
        .help = "a loss scale that never changes; 0: dynamic for fp16, 1 for other types"),
    ROW(REAL, "-li", "--first-scale", first_scale, "65536", RANGE(1e-30, 1e30), .course = 1,
        TO(FLOAT, zero.scaler.initial), KEY("fp16.initial_scale_power: 2 to it is", 0, IF_GIVEN),
        .help = "first dynamic loss scale"),
    ROW(REAL, "-lm", "--least-scale", least_scale, "1", RANGE(1e-30, 1e30), .course = 1,
        TO(FLOAT, zero.scaler.minimum), KEY("fp16.min_loss_scale", 0, IF_GIVEN),
        .help = "least dynamic loss scale; an overflow at it ends the run"),
    ROW(INT, "-lw", "--scale-window", scale_window, "1000", RANGE(1, 2e9), .course = 1,
        TO(INT, zero.scaler.window), KEY("fp16.loss_scale_window", 0, IF_GIVEN),
        .help = "steps without overflow that double the scale"),
    ROW(INT, "-lh", "--hysteresis", hysteresis, "2", RANGE(1, 2e9), .course = 1,
        TO(INT, zero.scaler.hysteresis), KEY("fp16.hysteresis", 0, IF_GIVEN),
        .help = "overflows that halve the scale: from this one on"),
    ROW(INT, "-f", "--tf32", tf32, "1", RANGE(0, 1),
        .help = "1: CUDA's f32 products round what they multiply to TF32; the CPU has none"),
    ROW(INT, "-ao", "--any-order", any_order, "0", RANGE(0, 1),
        .help = "1: cuDNN adds attention's gradients in any order: faster, not the same bits each "
                "time"),
    ROW(PATH, "-pc", "--products", products_path, "",
        .help = "CPU, f32: file that says which way the product of each shape takes; if it is not "
                "there, rank 0 measures the ways and writes it. Without it a table by processor "
                "and shape; either way equal commands make equal bits"),
    HEADING("Optimizer"),
    ROW(WORD, "-op", "--optimizer", optimizer, "adamw",
        .words = "adamw adam sgd nesterov lion "
                 "adagrad lamb muon",
        .course = 1, TO(INT, zero.optimizer), KEY("optimizer.type", DS_GIVEN_OPTIMIZER, ALWAYS),
        .help = "update rule; muon moves the blocks' matrices orthogonally, and all else as adamw"),
    ROW(INT, "-x", "--steps", steps, "2000", .compare = "16", RANGE(-1, 2e9), .course = 1,
        .help = "steps; -1: one epoch; in a comparison timed steps per stage"),
    ROW(WORD, "-k", "--schedule", schedule, "cosine", .words = "cosine linear constant wsd",
        .course = 1, .help = "schedule of the learning rate"),
    ROW(REAL, "-l", "--lr", lr, "1e-3", RANGE(0, 1e3), .course = 1, TO(FLOAT, hyper.lr),
        KEY("optimizer.params.lr", DS_GIVEN_LR, ALWAYS), .help = "learning rate"),
    ROW(INT, "-u", "--warmup", warmup, "100", RANGE(0, 2e9), .course = 1,
        .help = "steps of linear warm-up"),
    ROW(REAL, "-q", "--final-fraction", final_fraction, "0.1", RANGE(0, 1), .course = 1,
        .help = "learning rate at the end, as a fraction of -l"),
    ROW(REAL, "-c", "--weight-decay", weight_decay, "0.1", RANGE(0, 1e3), .course = 1,
        TO(FLOAT, hyper.weight_decay), KEY("optimizer.params.weight_decay", DS_GIVEN_DECAY, ALWAYS),
        .help = "weight decay"),
    ROW(REAL, "-b1", "--beta1", beta1, "0.9", RANGE(0, 0.9999999), .course = 1,
        TO(FLOAT, hyper.beta1), KEY("optimizer.params: beta1 or momentum", DS_GIVEN_BETAS, ALWAYS),
        .help = "beta1; of sgd and nesterov the momentum"),
    ROW(REAL, "-b2", "--beta2", beta2, "0.99", RANGE(0, 0.9999999), .course = 1,
        TO(FLOAT, hyper.beta2), KEY("optimizer.params: beta2", DS_GIVEN_BETAS, ALWAYS),
        .help = "beta2"),
    ROW(REAL, "-ep", "--eps", eps, "1e-8", RANGE(0, 1), .course = 1, TO(FLOAT, hyper.eps),
        KEY("optimizer.params.eps", DS_GIVEN_EPS, ALWAYS), .help = "epsilon"),
    ROW(REAL, "-mm", "--momentum", momentum, "0.95", RANGE(1e-6, 0.9999999), .course = 1,
        TO(FLOAT, zero.muon.momentum), KEY("optimizer.params.momentum", DS_GIVEN_MOMENTUM, ALWAYS),
        .help = "muon: momentum"),
    ROW(REAL, "-ml", "--plain-lr", plain_lr, "1", RANGE(1e-9, 1e9), .course = 1,
        TO(FLOAT, zero.muon.plain_lr),
        KEY("optimizer.params: adam_lr over lr", DS_GIVEN_PLAIN_LR, ALWAYS),
        .help = "muon: the learning rate of what is no matrix, as a multiple of -l"),
    ROW(INT, "-mr", "--match-rms", match_rms, "0", RANGE(0, 1), .course = 1,
        TO(INT, zero.muon.match_rms), KEY("muon.match_rms", 0, IF_GIVEN),
        .help = "muon: 1: updates of matrices are as large as adamw's, and -l fits both"),
    ROW(REAL, "-tl", "--least-trust", trust_least, "0", RANGE(0, 1e30), .course = 1,
        TO(FLOAT, zero.trust_least),
        KEY("optimizer.params.min_coeff", DS_GIVEN_LEAST_TRUST, ALWAYS),
        .help = "lamb: least trust ratio; 0: no bound"),
    ROW(REAL, "-tm", "--most-trust", trust_most, "0", RANGE(0, 1e30), .course = 1,
        TO(FLOAT, zero.trust_most), KEY("optimizer.params.max_coeff", DS_GIVEN_MOST_TRUST, ALWAYS),
        .help = "lamb: most; 0: no bound"),
    ROW(REAL, "-cl", "--clip", clip, "1", RANGE(0, 1e30), .course = 1, TO(FLOAT, hyper.max_norm),
        KEY("gradient_clipping", DS_GIVEN_CLIPPING, UNLESS_TYPED),
        .help = "norm to clip the gradient to; 0: no clipping"),
    ROW(REAL, "-sl", "--skip-loss", skip_loss, "0", RANGE(0, 1e9), .course = 1,
        .help = "skip a step whose loss lies more standard deviations above the last 128; 0: none"),
    ROW(REAL, "-sg", "--skip-norm", skip_norm, "0", RANGE(0, 1e9), .course = 1,
        .help = "the same by the gradient's norm"),
    HEADING("Validation and samples"),
    ROW(INT, "-v", "--val-every", val_every, "250", RANGE(-1, 2e9),
        .help = "validate every so many steps, and at the end; 0: at the end only; -1: never"),
    ROW(INT, "-m", "--val-batches", val_batches, "0", RANGE(-1, 2e9),
        .help = "batches to validate on; 0 or -1: all of the file"),
    ROW(INT, "-s", "--sample-every", sample_every, "0", RANGE(0, 2e9),
        .help = "print a sample every so many steps, and at the end; 0: at the end only"),
    ROW(INT, "-g", "--sample-tokens", sample_tokens, "300", RANGE(0, 1e6),
        .help = "tokens of a sample; 0: no samples"),
    ROW(INT, "-h", "--hellaswag", evaluate, "0", RANGE(0, 1),
        .help = "1: evaluate on the examples of -hf whenever it validates, and at the end: four "
                "endings each, of which the one of least mean loss is the answer; -h alone is "
                "this help"),
    ROW(PATH, "-hf", "--hellaswag-data", eval_path, "dev/data/hellaswag/hellaswag_val.bin",
        .help = "its file, in llm.c's format"),
    HEADING("Output"),
    ROW(INT, "-lp", "--print-every", print_every, "0", RANGE(0, 2e9), TO(INT, steps_per_print),
        KEY("steps_per_print", DS_GIVEN_STEPS_PER_PRINT, IF_GIVEN),
        .help = "a line every so many steps, and for the first and the last; 0: on a terminal one "
                "line that is rewritten, elsewhere a line a step"),
    HEADING("What a run shows of itself"),
    ROW(TEXT, "-tr", "--trace", trace_path, "",
        .help = "file for a timeline of all ranks, which ui.perfetto.dev and chrome://tracing "
                "open, also of a run that was killed"),
    ROW(INT, "-tb", "--breakdown", breakdown_every, "0", RANGE(0, 2e9), TO(INT, breakdown),
        KEY("wall_clock_breakdown: -tb", DS_GIVEN_BREAKDOWN, IF_GIVEN),
        .help = "every so many steps, and of the whole run: where time goes, by forward, backward, "
                "exposed reductions, gathers and groups' calls, update, data, file; 0: never"),
    ROW(INT, "-tc", "--comms-log", comms_log, "0", RANGE(0, 1), TO(INT, comms_log),
        KEY("comms_logger.enabled: -tc", DS_GIVEN_COMMS, IF_GIVEN),
        .help = "1: in the end a table of collectives: count, mean, p50, p99, bandwidth, ranks"),
    ROW(INT, "-tk", "--profile-step", profile_step, "0", RANGE(0, 2e9), TO(INT, profile_step),
        KEY("flops_profiler.profile_step: -tk", DS_GIVEN_PROFILE, IF_GIVEN),
        .help = "operations and times of each layer in this step, without -pp; 0: none"),
    ROW(PATH, "-tbd", "--tensorboard-dir", tensorboard_dir, "",
        .help = "folder for TensorBoard's event files: loss, learning rate, loss scale, norm over "
                "samples, with -tb times"),
    ROW(PATH, "-tcd", "--csv-dir", csv_monitor_dir, "", .help = "folder for the same as CSV"),
    HEADING("Checkpoints"),
    ROW(INT, "-n", "--save-every", save_every, "0", RANGE(0, 2e9),
        .help =
            "save in the folder of -o every so many steps, at the end, and when Ctrl-C, SIGTERM or "
            "SIGUSR1 asks for it to stop; 0: never"),
    ROW(INT, "-nk", "--keep-last", keep_last, "0", RANGE(0, 2e9),
        .help = "newest checkpoints that are kept; 0: all"),
    ROW(INT, "-nm", "--keep-every", keep_every, "0", RANGE(0, 2e9),
        .help = "those of a multiple of so many steps are kept too; 0: none"),
    ROW(INT, "-na", "--save-aside", save_aside, "0", RANGE(0, 1),
        .help = "1: save aside: training waits for a copy of the state alone, which takes as much "
                "memory"),
    ROW(INT, "-nf", "--go-on", save_or_go_on, "0", RANGE(0, 1),
        .help =
            "a save that fails, or a line of main.log or of the output: 0 ends the run, 1 is told, "
            "and training goes on; the exit code is 1"),
    ROW(INT, "-y", "--resume", resume, "0", RANGE(0, 2),
        .help =
            "1: go on from the newest checkpoint in -o that is whole, on any number of ranks and "
            "at any stage; from the start if there is none. 2: end if the newest is damaged"),
    HEADING("Ranks"),
    ROW(INT, "-pn", "--ranks", ranks, "0", RANGE(0, 65536),
        .help = "ranks to start on this machine; 0: as mpirun, torchrun or srun say, else 1 (2 in "
                "a comparison)"),
    ROW(INT, "-pt", "--rank-threads", as_threads, "0", RANGE(0, 1),
        .help = "1: ranks of -pn are threads of one process; with CUDA so they are where GPUs are "
                "fewer"),
    ROW(INT, "-pe", "--elastic", elastic, "0", RANGE(0, 1),
        .help = "1: as -y 1; and when ranks of -pn die, those that are left go on from the newest "
                "checkpoint, as many of them as -d, -tp, -pp and -eg allow. The tokens of a step, "
                "-d, stay, and -b is the most windows of a rank. torchrun and others start ranks "
                "again themselves"),
    ROW(INT, "-pm", "--copies", copies, "0", RANGE(0, 2e9),
        .help =
            "with -pe 1 and -pn: every so many steps ranks copy what a checkpoint has of them to "
            "memory that outlives them, two copies in turn, and go on from the newest that all "
            "have made; 0: from checkpoints alone"),
    ROW(WORD, "-pi", "--rendezvous", method, "mpi", .words = "mpi tcp fs",
        .help = "how ranks find each other: mpi as mpirun, torchrun or srun say; tcp at -ps; fs "
                "through -pf; with those two -pn is the number of all ranks, and -pr this one's"),
    ROW(PATH, "-ps", "--server", server, "", .help = "tcp: name or address of rank 0's host"),
    ROW(PATH, "-pf", "--rendezvous-folder", folder, "/tmp",
        .help = "fs: folder that all ranks see"),
    ROW(RANK, "-pr", "--rank", rank, "0", RANGE(0, 1e6), .help = "tcp, fs: rank of this process"),
    ROW(INT, "-pg", "--ranks-per-host", per_node, "0", RANGE(0, 4096),
        .help = "tcp, fs: ranks per machine; 0: as host names tell"),
    ROW(INT, "-tp", "--tensor-parallel", tensor_parallel, "1", RANGE(1, 4096),
        TO(INT, tensor_parallel), KEY("tensor_parallel: -tp", DS_GIVEN_TENSOR_RANKS, IF_GIVEN),
        .help = "ranks that have one model in parts: heads, hidden channels and vocabulary; it "
                "divides the ranks, which are data-parallel beyond that: -b, -d and windows count "
                "those alone"),
    ROW(INT, "-pp", "--pipeline", pipeline, "1", RANGE(1, 512), TO(INT, pipeline),
        KEY("pipeline.stages: -pp", DS_GIVEN_PIPELINE, IF_GIVEN),
        .help = "stages that have the model's blocks one after the other, and run its micro-steps "
                "as a pipeline, one forward, one backward; -d gives the micro-steps: of m, (p-1)/m "
                "of the time is idle. With -en blocks go by twos"),
    ROW(INT, "-ppv", "--pipeline-chunks", pipeline_chunks, "1", RANGE(1, 512),
        .help = "chunks of blocks that each stage has, interleaved: a v-th of the idle time, for v "
                "times the messages; the stages divide the micro-steps then"),
    ROW(INT, "-sp", "--sequence-parallel", sequence_parallel, "0", RANGE(0, 1),
        TO(INT, sequence_parallel), KEY("partition_activations: -sp", DS_GIVEN_SEQUENCE, IF_GIVEN),
        .help = "1: with -tp, what lies between layers is in parts, too: 1/tp of its memory, as "
                "many bytes sent"),
    ROW(INT, "-en", "--experts", experts, "0", RANGE(0, 1024), .course = 1,
        .help =
            "experts, in place of the MLP of every second block, of which a token asks -ek: the "
            "mixtures of GShard and Switch; 0: none"),
    ROW(INT, "-ek", "--experts-asked", chosen, "1", RANGE(1, 2), .course = 1,
        TO(INT, experts_asked), KEY("expert_parallel.top_k: -ek", DS_GIVEN_EXPERTS_ASKED, IF_GIVEN),
        .help = "experts that a token asks: 1, by its gate, or 2, by their gates over their sum"),
    ROW(INT, "-eg", "--expert-group", expert_group, "1", RANGE(1, 65536), TO(INT, expert_group),
        KEY("expert_parallel.autoep_size: -eg", DS_GIVEN_EXPERT_GROUP, IF_GIVEN),
        .help = "data-parallel ranks that share a layer's experts: each has -en / -eg of them, and "
                "tokens travel; it divides both. Of -tp's ranks each has a part of every expert"),
    ROW(INT, "-ego", "--experts-apart", experts_apart, "0", RANGE(0, 1), TO(INT, experts_apart),
        KEY("use_data_before_expert_parallelism: -ego", DS_GIVEN_EXPERTS_APART, IF_GIVEN),
        .help = "0: the ranks of an expert group are neighbours; 1: those that have the same "
                "experts are"),
    ROW(REAL, "-ec", "--capacity", capacity, "1", RANGE(0.001, 1e6), .course = 1,
        .help = "choices that an expert takes of a rank's micro-step, over their mean number, at "
                "least 4; what is beyond that is dropped, and counted"),
    ROW(REAL, "-ea", "--auxiliary", aux, "0.01", RANGE(0, 1e6), .course = 1,
        .help = "factor of the auxiliary loss, which is least where all experts are asked alike"),
    ROW(INT, "-nt", "--threads", threads, "0", RANGE(0, 4096),
        .help = "threads of a rank; 0: the processors of this machine divided by its ranks"),
    ROW(INT, "-ns", "--node-size", node_size, "0", RANGE(0, 4096),
        .help = "ranks per node, in sums; 0: as the machines are"),
    HEADING("ZeRO"),
    ROW(STAGES, "-z", "--stage", stage, "0", TO(INT, zero.stage),
        KEY("zero_optimization.stage", DS_GIVEN_STAGE, IF_GIVEN),
        .help =
            "stage 0, 1, 2 or 3: on top of each other, optimizer state, gradients and parameters "
            "are sharded. A list (0,1,2,3) compares stages in one run, and writes -csv"),
    ROW(WORD, "-za", "--accumulate", accumulation, "auto", .words = "auto local sharded",
        .course = 1, TO(INT, zero.accumulation),
        .help = "gradients of micro-steps add up in a whole copy (local) or in shards; auto: local "
                "at stages 0 and 1 and in a pipeline without -zog file, sharded at 2 and 3 and in "
                "a comparison"),
    ROW(LONG, "-zb", "--bucket", bucket, "0", RANGE(0, BIG), TO(SIZE, zero.bucket_numel),
        .help = "elements reduced together; 0: the largest unit"),
    ROW(INT, "-zp", "--prefetch", prefetch, "1", RANGE(0, ZERO_PREFETCH_MOST),
        TO(COUNT, zero.prefetch),
        .help = "stage 3: gathered units have so many buffers and 2, and the next ones go ahead "
                "into all that are free; 0: none goes ahead"),
    ROW(LONG, "-zt", "--persistence", persistence, "-1", RANGE(-1, BIG),
        TO(COUNT64, zero.persistence_numel),
        KEY("zero_optimization.stage3_param_persistence_threshold", DS_GIVEN_PERSISTENCE, IF_GIVEN),
        .help = "stage 3: units whose tensors have at most so many elements stay whole on every "
                "rank; -1: those of vectors only"),
    ROW(INT, "-zo", "--overlap", overlap, "1", RANGE(0, 1), TO(NOT, zero.no_overlap),
        KEY("zero_optimization.overlap_comm", DS_GIVEN_OVERLAP, IF_GIVEN),
        .help = "1: communicate while computing; 0: in between"),
    ROW(INT, "-zm", "--mapping", mapping, "1", RANGE(0, 1), TO(NOT, zero.no_mapping),
        .help = "1: gather without a copy where ranks can see each other's memory"),
    ROW(INT, "-zs", "--shard-ranks", shard_ranks, "0", RANGE(0, 1e6), TO(INT, zero.shard_ranks),
        KEY("zero_optimization.mics_shard_size: -zs", DS_GIVEN_SHARD_RANKS, IF_GIVEN),
        .help = "stages 1 to 3: so many ranks, which follow one another, share one copy of what is "
                "sharded, and the others are replicas (MiCS, HSDP); divides the data-parallel "
                "ranks. 0: all of them"),
    ROW(INT, "-zh", "--second-ranks", second_ranks, "0", RANGE(0, 1e6), TO(INT, zero.second_ranks),
        KEY("zero_optimization.zero_hpz_partition_size: -zh", DS_GIVEN_SECOND_RANKS, IF_GIVEN),
        .help = "stage 3: a second shard of the parameters among so many ranks, from which all but "
                "the first gather of a step come (hpZ); where ranks see each other's memory there "
                "is none (-zm 0). 0: none"),
    ROW(INT, "-qw", "--weight-bits", weight_bits, "0", RANGE(0, 8), .course = 1,
        TO(INT, zero.weight_bits),
        KEY("zero_optimization.zero_quantized_weights: -qw", DS_GIVEN_WEIGHT_BITS, IF_GIVEN),
        .help = "stage 3: gathers of weights travel as integers of 8 or 4 bits, a scale for every "
                "128 of them (ZeRO++); masters and shards stay exact. 0: as they are stored"),
    ROW(INT, "-qg", "--gradient-bits", gradient_bits, "0", RANGE(0, 8), .course = 1,
        TO(INT, zero.gradient_bits),
        KEY("zero_optimization.zero_quantized_gradients: -qg", DS_GIVEN_GRADIENT_BITS, IF_GIVEN),
        .help =
            "stages 1 to 3: reductions of gradients travel so, inside nodes (-ns), then between "
            "them. 0: as they are stored"),
    ROW(REAL, "-qf", "--feedback", feedback, "0", RANGE(0, 0.9999999), .course = 1,
        TO(FLOAT, zero.feedback),
        KEY("zero_optimization.zeropp_loco_param.err_beta: -qf", DS_GIVEN_FEEDBACK, IF_GIVEN),
        .help = "-qg: what codes lost is kept, 2 bytes an element, and sent later, as a moving "
                "average with this beta (LoCo: 0.8); 0: lost"),
    ROW(INT, "-qr", "--feedback-reset", feedback_reset, "0", RANGE(0, 2e9), .course = 1,
        TO(INT, zero.feedback_reset),
        KEY("zero_optimization.zeropp_loco_param.reset_T: -qr", DS_GIVEN_FEEDBACK, IF_GIVEN),
        .help = "-qf: steps after which what is kept becomes zero; 0: never"),
    ROW(WORD, "-zos", "--optimizer-tier", optimizer_tier, "device", .words = "device host file",
        TO(INT, zero.optimizer_tier),
        KEY("zero_optimization.offload_optimizer.device: -zos", DS_GIVEN_OPTIMIZER_TIER, IF_GIVEN),
        .help = "where optimizer state and master weights are kept: on the device, in the host's "
                "memory (the CPU version: the same), or in a file, of which pieces pass through"),
    ROW(WORD, "-zog", "--gradient-tier", gradient_tier, "auto", .words = "device host file auto",
        .help = "stages 2 and 3: where a rank's shard of the reduced gradients waits for the "
                "update; auto: with -zos host and file the host's memory, with -zos file a file "
                "where memory does not suffice (not in a comparison), else the device"),
    ROW(WORD, "-zop", "--parameter-tier", parameter_tier, "device", .words = "device host file",
        TO(INT, zero.parameter_tier),
        KEY("zero_optimization.offload_param.device: -zop", DS_GIVEN_PARAMETER_TIER, IF_GIVEN),
        .help = "stage 3: where a rank's shard of the parameters is kept"),
    ROW(REAL, "-zor", "--offload-share", offload_share, "1", RANGE(0, 1),
        TO(FLOAT, zero.offload_share),
        KEY("zero_optimization.offload_optimizer.ratio", DS_GIVEN_SHARE, IF_GIVEN),
        .help = "share of the model, in whole units, that -zos, -zog and -zop are for; the rest "
                "stays on the device. 0: all of it does"),
    ROW(WORD, "-zou", "--update-on", update_on, "auto", .words = "auto host device",
        TO(INT, zero.update_on),
        .help = "CUDA, -zos host: who updates: the host's processors, or the device, which state "
                "goes through; auto: what takes less time by -zol and -zom; the plan tells both"),
    ROW(REAL, "-zol", "--link", link_gbs, "25", RANGE(0.001, 1e6), TO(FLOAT, zero.link_gbs),
        .help = "1e9 bytes a second between host and GPU, in one direction"),
    ROW(REAL, "-zom", "--host-memory-rate", memory_gbs, "60", RANGE(0.001, 1e6),
        TO(FLOAT, zero.memory_gbs),
        .help = "1e9 bytes a second of the host's memory, a rank's part of them"),
    ROW(PATH, "-zfd", "--offload-folder", offload_folder, ".",
        .help = "tier file: folder for a file per rank; it has no name, and is gone with the run"),
    ROW(INT, "-zfc", "--file-check", file_check, "1", RANGE(0, 1), TO(NOT, zero.no_file_check),
        .help = "1: pieces that come back from a file are compared with the checksums that they "
                "were written with"),
    ROW(INT, "-zod", "--delay-from", delay_from, "0", RANGE(0, 2e9), .course = 1,
        TO(INT, zero.delay_from),
        .help = "delayed update from this step on (ZeRO-Offload: 40): it runs beside the next "
                "step, which sees the weights of before it, and so do validation and samples; "
                "saves and copies keep it pending; 0: never"),
    ROW(INT, "-zl", "--tile-rows", tile_rows, "0", RANGE(0, 1e7), .course = 1,
        .help = "embedding and classifier go through the vocabulary in tiles of so many rows, or "
                "the next fewer that divide it: neither wte nor its gradient nor all logits are "
                "in memory at once; the same but for rounding. 0: in one piece"),
    ROW(REAL, "-zw", "--timeout", timeout, "600", RANGE(0.001, 1e9), TO(DOUBLE, zero.timeout_s),
        .help = "seconds to wait for another rank"),
    ROW(INT, "-r", "--recompute", recompute, "1", RANGE(0, 4), TO(INT, recompute),
        KEY("activation_checkpointing.cpu_checkpointing: -r", 0, IF_GIVEN),
        .help =
            "computed again in backward, to save memory: 0 nothing, 1 GELU, 2 layer norms too, "
            "3 whole blocks, 4 whole blocks whose inputs are kept in a file in -zfd (CUDA: in the "
            "host's memory) until then"),
    HEADING("Comparison of stages"),
    ROW(TEXT, "-layouts", "--layouts", layouts, "",
        .help = "compares layouts of the ranks in one run, at the stage of -z: \"dp4 tp2dp2\""),
    ROW(INT, "-rd", "--rounds", rounds, "8", RANGE(1, TRAIN_MAX_ROUNDS),
        .help = "rounds in which the stages take turns; divides -x"),
    ROW(PATH, "-csv", "--csv", csv_path, "build/compare.csv", .help = "file for the comparison"),
    HEADING("Debugging"),
    ROW(INT, "-db", "--print-batches", print_batches, "0", RANGE(0, 1),
        .help = "1: print a hash of each step's tokens"),
    HEADING("llm.c's flags that change nothing here"),
    ROW(INT, "-ge", "--gelu-fusion", gelu_fusion, "-1", RANGE(-1, 2),
        .help = "GELU within a matrix product; cuBLASLt's is taken wherever it has one",
        .idle = "GELU is fused with a matrix product wherever cuBLASLt offers it; the line "
                "'matrix products' says what was"),
    ROW(INT, "-lg", "--log-gpu", gpu_log, "-1", RANGE(-1, 2e9),
        .help = "log of the GPU's state; main.log (-o) has each step's time, tokens/s and memory",
        .idle = "main.log (-o) has each step's time, tokens/s and memory; clocks and power are "
                "what nvidia-smi dmon shows"),
};

enum { TRAIN_ROWS = (int)(sizeof train_table / sizeof train_table[0]) };
static_assert(TRAIN_ROWS <= (int)TRAIN_OPTIONS_MOST, "a mark for every flag");
static_assert(sizeof(zero_type) == sizeof(int) && sizeof(zero_optimizer) == sizeof(int)
                  && sizeof(zero_grad_type) == sizeof(int) && sizeof(zero_tier) == sizeof(int)
                  && sizeof(zero_accumulation) == sizeof(int) && sizeof(size_t) == sizeof(uint64_t),
              "OPTION_AS_INT stores enums, OPTION_AS_SIZE the seed");

/* Reading alone: nothing is written through it. */
static option_set train_view(const train_options *o) {
    train_options *all = (train_options *)(uintptr_t)o;
    const option_set view = {train_table, TRAIN_ROWS,        all,  all->given,
                             all->error,  sizeof all->error, NULL, 0};
    return view;
}

/* A comparison has defaults of its own, so it must be known before the defaults are set. */
static int train_is_comparison(const option_set *view, int argc, char **argv) {
    const char *stages = options_value(view, argc, argv, "-z");
    return (stages != NULL && strchr(stages, ',') != NULL)
           || options_value(view, argc, argv, "-layouts") != NULL;
}

void train_options_parse(train_options *o, int argc, char **argv) {
    memset(o, 0, sizeof *o);
    option_set view = train_view(o);
    const int compares = train_is_comparison(&view, argc, argv);
    o->help = options_parse(&view, argc, argv, compares, launch_adds_argument);
}

void train_options_help(const char *program) {
    static const char *const examples[][2] = {
        {"", "a character model on tiny Shakespeare, half a minute on two cores"},
        {" --ranks 2 --stage 3", "the same on two ranks, everything sharded"},
        {" --ranks 4 --tensor-parallel 2", "two data-parallel ranks of two with half a model each"},
        {" --ranks 2 --stage 0,1,2,3", "DDP against ZeRO: speed, memory, traffic, weights"},
        {" -e d12 -i train.bin -j val.bin -t 1024 -b 4",
         "GPT-2 124M, with llm.c's flags and files"},
        {" --out-dir log --save-every 500 --resume 1", "saves, and goes on where it was stopped"},
        {" --deepspeed ds_config.json --ranks 2", "DeepSpeed's configuration as it is"},
        {" -e gpt2.bin -t 256 -x 0 -g 0 -h 1 -hf hellaswag_val.bin", "evaluates a model"},
    };
    const option_set view = {train_table, TRAIN_ROWS, NULL, NULL, NULL, 0, NULL, 0};
    printf("usage: ./%s [FLAG VALUE]...\n\n", program);
    options_print_wrapped(
        "Trains GPT-2 on one or several ranks with ZeRO. Without a flag: nanoGPT's "
        "character run on tiny Shakespeare. Every flag takes a value, and has a short name, "
        "llm.c's where it has one, and a long one: -z 3, --stage 3 and --stage=3 are the same.",
        0);
    options_help(&view);
    printf("\nExamples\n");
    for (int i = 0; i < (int)(sizeof examples / sizeof *examples); i++)
        printf("  ./%s%s\n        %s\n", program, examples[i][0], examples[i][1]);
    printf("\nThis build starts ranks with -pn, by torchrun and srun%s.\n",
           launch_has_mpi() ? ", and by mpirun" : "");
}

size_t train_options_render(const train_options *o, char *text, size_t bytes) {
    const option_set view = train_view(o);
    const size_t used = (size_t)snprintf(text, bytes, "-ds %s\n", o->ds_path[0] ? "FILE" : "none");
    return used + options_render(&view, text + used, bytes - used);
}

int train_options_given(const train_options *o, const char *flag) {
    const option_set view = train_view(o);
    return options_given(&view, flag);
}

void train_options_store(const train_options *o, ds_config *settings) {
    const option_set view = train_view(o);
    options_store(&view, settings);
}

void train_options_word(const train_options *o, const char *flag, char word[OPTION_WORD_BYTES]) {
    const option_set view = train_view(o);
    const option *d = options_find(&view, flag);
    option_word(d->words, *(const int *)(const void *)((const char *)o + d->field), word);
}

int train_options_conflict(const train_options *o, const ds_config *file, char *sentence,
                           size_t bytes) {
    const option_set view = train_view(o);
    if (options_conflict(&view, file, file->given, o->ds_path, sentence, bytes)) return 1;
    if (file->folder[0] && options_given(&view, "-zfd")
        && strcmp(file->folder, o->offload_folder) != 0) {
        (void)snprintf(sentence, bytes,
                       "-zfd %.100s, but %.100s gives nvme_path %.100s: leave one of the two out",
                       o->offload_folder, o->ds_path, file->folder);
        return 1;
    }
    if (!file->has_schedule || !(options_given(&view, "-k") || options_given(&view, "-q")))
        return 0;
    (void)snprintf(sentence, bytes, "%s has a scheduler: leave out -k and -q", o->ds_path);
    return 1;
}

void train_options_take(train_options *o, const ds_config *file) {
    option_set view = train_view(o);
    options_take(&view, file, file->given);
    if (options_given(&view, "-k") || options_given(&view, "-u")) return;
    o->schedule = SCHEDULE_CONSTANT; /* DeepSpeed without a scheduler: no warm-up */
    o->warmup = 0;
}

const char *train_options_course(int *row) {
    while (*row < TRAIN_ROWS)
        if (train_table[(*row)++].course) return train_table[*row - 1].flag;
    return NULL;
}

int train_options_idle(const train_options *o, int *row, char *sentence, size_t bytes) {
    const option_set view = train_view(o);
    return options_idle(&view, row, sentence, bytes);
}
