/* train_options.c - see train_options.h. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "train_options.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>

#include "../launch/launch.h"

/* Default -g of a GPT-2 model at stage 3, where each token of a sample gathers all parameters. */
enum { TRAIN_SAMPLE_AT_STAGE_3 = 16 };
#define BIG 9e15 /* whole numbers below are exact in a double */
/* A section of the help, with the word that selects it. */
#define HEADING(word, text)                                                                        \
    { .name = (word), .type = OPTION_HEADING, .help = (text) }
#define RANGE(from, to) .least = (from), .most = (to)
/* The field of the plugin's settings that the value is stored to, and its type there. */
#define TO(as, place)                                                                              \
    .form = OPTION_AS_##as, .to = offsetof(ds_config, place), .target_name = #place
/* DeepSpeed's name, and the rule for when the file's value is used. */
#define KEY(text, mark, when) .key = (text), .bit = (mark), .rule = OPTION_FILE_##when
#define ROW(kind, short_name, long_name, member, usual, ...)                                       \
    {                                                                                              \
        .flag = (short_name), .name = (long_name), .type = OPTION_##kind,                          \
        .field = offsetof(train_options, member), .normal = (usual), __VA_ARGS__                   \
    }

static const option train_table[] = {
    HEADING("data", "Data and model"),
    ROW(PATH, "-i", "--train-data", train_path, "",
        .brief = "token file to train on (default: tiny Shakespeare)",
        .help = "token file, or a quoted pattern of several, to train on. Default: tiny "
                "Shakespeare, as characters for char: "
                "models, otherwise as GPT-2 tokens"),
    ROW(PATH, "-j", "--val-data", val_path, "", .brief = "token file to validate on",
        .help = "token file to validate on"),
    ROW(PATH, "-tf", "--tokenizer", tokenizer_path, "",
        .help = "tokenizer file: turns the tokens of samples into text. Default: that of tiny "
                "Shakespeare. If that is missing and -i is given, samples are printed as token "
                "numbers"),
    ROW(TEXT, "-e", "--model", model, "char:4x128x4",
        .brief = "char:LxCxH, d12 (124M), gpt2:d48, gpt3:c768, or a file with weights",
        .compare = "char:6x384x6", .course = 1,
        .help = "model: char:LxCxH (layers, channels, heads), d12, gpt2:d48, gpt3:c768, or a file "
                "with its weights: llm.c's .bin, or Hugging Face's .safetensors. All except char: "
                "are GPT-2 models, which have the defaults of llm.c's train_gpt2.cu"),
    ROW(INT, "-ut", "--untied", untied, "0", RANGE(0, 1), .course = 1,
        .help = "1: untie the classifier from the token embedding: it has its own weights. A model "
                "from a file starts with a copy of the embedding"),
    ROW(WORD, "-sr", "--sparse-rows", sparse_rows, "0", .words = "0 1 auto", .course = 1,
        .help = "1: reduce only the rows of the embeddings' gradients that a batch touches, if "
                "that is less to send. Only with -ut 1: a tied classifier writes every row. On "
                "the CPU, bits do not change; on GPUs, these rows are added in rank order instead "
                "of NCCL's. auto: 1 on the CPU if the other flags allow it"),
    ROW(TEXT, "-tn", "--train", train, "", .course = 1,
        .help = "train only tensors with a name that matches a shell pattern of this list (commas "
                "between); "
                "the others are frozen: no gradient, no optimizer state, no reduction. Names are "
                "those of zero_ckpt show (qkvw: all layers), and h.3.qkvw for one layer: "
                "\"h.1[01].*,lnf*\""),
    ROW(TEXT, "-fz", "--freeze", freeze, "", .course = 1,
        .help = "freeze tensors with a name that matches a pattern of this list, as in --train: "
                "\"wte,wpe\""),
    ROW(INT, "-lo", "--lora", lora, "0", RANGE(0, 65536), .course = 1,
        .help = "fine-tune with low-rank adapters (LoRA) of this rank: all weights are frozen, "
                "except those of --train, and small matrices next to them are trained. 0: none"),
    ROW(REAL, "-loa", "--lora-alpha", lora_alpha, "0", RANGE(0, 1e6), .course = 1,
        .help = "the output of adapters is multiplied by this, divided by their rank. 0: the rank, "
                "so the factor is 1"),
    ROW(TEXT, "-lot", "--lora-on", lora_on, "qkv", .course = 1,
        .help = "the matrices that get adapters, with commas between them: qkv, proj, fc, fcproj"),
    ROW(PATH, "-o", "--out-dir", log_dir, "", .brief = "folder for main.log and checkpoints",
        .help = "folder for main.log and checkpoints. Without it the run writes neither"),
    HEADING("batches", "Batches"),
    ROW(INT, "-b", "--batch-size", batch, "0", .aliases = "--batch", .gpt2 = "4",
        .brief = "batch size: sequences per rank and micro-step", .compare = "8", RANGE(0, 1e6),
        TO(INT, micro_batch), KEY("train_micro_batch_size_per_gpu", 0, ALWAYS), .unsaid = 1,
        .help = "batch size: sequences per rank and micro-step. 0: computed from -d; without -d, "
                "12 divided by the number of ranks"),
    ROW(INT, "-t", "--sequence-length", seq_len, "64", .aliases = "--window", .gpt2 = "1024",
        .brief = "sequence length: tokens per sequence", .compare = "256", RANGE(1, 1e6),
        .course = 1, .help = "sequence length: tokens per sequence"),
    ROW(LONG, "-d", "--step-tokens", step_tokens, "0",
        .brief = "tokens per step; more than one micro-step means gradient accumulation",
        RANGE(0, BIG), TO(INT64, train_batch), .per = offsetof(train_options, seq_len),
        KEY("train_batch_size, times -t tokens:", 0, ALWAYS), .unsaid = 1,
        .help = "tokens per step, over all ranks and micro-steps. If that is more than one "
                "micro-step, gradients are accumulated (gradient accumulation). 0: one micro-step"),
    ROW(INT, "-vr", "--virtual-ranks", virtual_ranks, "0", RANGE(0, 65536), .course = 1,
        TO(INT, zero.virtual_ranks),
        .help = "the weights do not depend on the number of ranks: a step has this number of "
                "micro-steps over all ranks. Their gradients are added in a fixed order. -d is by "
                "default this number times -b times -t. The ranks must be a product of its first "
                "prime factors, the largest first, for example 1, 3, 6 or 12 of 12. Needs -nt. "
                "CPU, ranks of "
                "one machine. 0: off"),
    ROW(WORD, "-mo", "--micro-order", layer_order, "passes", .words = "passes layers", .course = 1,
        .help = "order of the micro-steps of gradient accumulation. passes: forward and backward "
                "of one after the other. layers: all pass a layer before the next one, so stage 3 "
                "gathers a layer twice in a step, its gradient is reduced once and is in memory "
                "only while its backward runs; activations are kept for all micro-steps (-r 3, -r "
                "4)"),
    ROW(INT, "-mog", "--micro-order-group", layer_group, "1", RANGE(1, 1024), .course = 1,
        .help = "-mo layers with -r 3 or -r 4: layers that a micro-step passes before the next "
                "one does. Only the input of the first of them is kept, or is in the file of -r 4. "
                "Their weights and gradients are in memory at once, and the activations of one "
                "micro-step"),
    ROW(INT, "-sh", "--shuffle", order, "-1", RANGE(-1, 2), .course = 1,
        .help = "order of sequences: 0 as in the file, 1 shuffled every epoch, 2 at random "
                "offsets; -1: 1 with -i, otherwise 2"),
    ROW(INT, "-a", "--overfit", overfit, "0", RANGE(0, 1), .course = 1,
        .help = "1: train on the same batch of the validation data in every step"),
    ROW(LONG, "-sd", "--seed", seed, "42", RANGE(0, BIG), .course = 1, TO(SIZE, zero.seed),
        .help = "seed of weights, sequences and samples"),
    HEADING("deepspeed", "DeepSpeed"),
    ROW(PATH, "-ds", "--deepspeed", ds_path, "",
        .brief = "DeepSpeed's ds_config.json instead of flags",
        .help = "ds_config.json: its values replace the defaults of the flags. \"auto\" in it "
                "means the value of the flag. A flag that contradicts it is an error"),
    ROW(PATH, "-dso", "--deepspeed-out", ds_out, "",
        .help = "with -ds: file to which the resolved configuration is written"),
    HEADING("types", "Types"),
    ROW(WORD, "-dt", "--dtype", type, "f32", .aliases = "--type",
        .brief = "mixed precision: f32, bf16 or fp16", .words = "f32 bf16 fp16", .course = 1,
        TO(INT, zero.type), KEY("fp16.enabled and bf16.enabled:", DS_GIVEN_TYPE, IF_GIVEN),
        .help = "type of parameters and activations; bf16 and fp16 are mixed precision"),
    ROW(WORD, "-w", "--master-weights", master, "auto", .aliases = "--master",
        .words = "auto 1 split 0", .course = 1, TO(INT, zero.master),
        KEY("bf16_master_weights_and_grads: -w", 0, IF_GIVEN),
        .help = "1: 16-bit weights have f32 master weights, which are updated. split (only bf16): "
                "the same f32, of which a weight is the upper half, rounded half up: 2 bytes less "
                "per parameter. 0 (only bf16): no master weights; updates are rounded "
                "stochastically. auto: split with bf16, otherwise 1"),
    ROW(WORD, "-os", "--optimizer-state", state_type, "f32", .words = "f32 bf16 8bit", .course = 1,
        TO(INT, zero.state_type), KEY("bf16_optimizer_states: -os", 0, IF_GIVEN),
        .help = "type in which the optimizer's state (moments, momentum) is kept. bf16: 2 bytes "
                "less for each array and parameter. 8bit (not adagrad): 3 bytes less, in codes "
                "with a scale for each 128 of them. Both are rounded stochastically"),
    ROW(WORD, "-oe", "--embedding-state", embedding_state, "same", .words = "same f32", .course = 1,
        .help = "f32: the optimizer's state of the embeddings and of an untied classifier (wte, "
                "wpe, lmheadw) is kept in f32 with any -os. same: as -os says"),
    ROW(WORD, "-zg", "--gradient-type", grads, "auto", .aliases = "--grad-type",
        .words = "auto f32 type", .course = 1, TO(INT, zero.grads),
        KEY("the gradients' type:", 0, IF_GIVEN),
        .help = "type in which gradients are stored and sent: f32, or the type of -dt. auto: f32 "
                "with gradient accumulation"),
    ROW(REAL, "-ls", "--loss-scale", scale, "0", RANGE(0, 1e30), .course = 1,
        TO(FLOAT, zero.scaler.fixed), KEY("fp16.loss_scale", 0, IF_GIVEN),
        .help = "a constant loss scale. 0: dynamic for fp16, 1 for other types"),
    ROW(REAL, "-li", "--first-scale", first_scale, "65536", RANGE(1e-30, 1e30), .course = 1,
        TO(FLOAT, zero.scaler.initial), KEY("fp16.initial_scale_power: 2 to it is", 0, IF_GIVEN),
        .help = "first dynamic loss scale"),
    ROW(REAL, "-lm", "--least-scale", least_scale, "1", RANGE(1e-30, 1e30), .course = 1,
        TO(FLOAT, zero.scaler.minimum), KEY("fp16.min_loss_scale", 0, IF_GIVEN),
        .help = "smallest dynamic loss scale. An overflow at this scale ends the run"),
    ROW(INT, "-lw", "--scale-window", scale_window, "1000", RANGE(1, 2e9), .course = 1,
        TO(INT, zero.scaler.window), KEY("fp16.loss_scale_window", 0, IF_GIVEN),
        .help = "steps without overflow after which the scale is doubled"),
    ROW(INT, "-lh", "--hysteresis", hysteresis, "2", RANGE(1, 2e9), .course = 1,
        TO(INT, zero.scaler.hysteresis), KEY("fp16.hysteresis", 0, IF_GIVEN),
        .help = "overflows until the dynamic loss scale is halved. 1: each overflow halves it. 2: "
                "the first one only skips its step, and each later one also halves the scale. The "
                "count starts again when the scale is doubled"),
    ROW(INT, "-f", "--tf32", tf32, "1", RANGE(0, 1),
        .help = "1: f32 products on CUDA round their factors to TF32. Has no effect on a CPU"),
    ROW(INT, "-ao", "--any-order", any_order, "0", RANGE(0, 1),
        .help = "1: allow cuDNN to add the gradients of attention in any order. This is faster, "
                "but runs are no longer deterministic: bits differ from run to run"),
    ROW(INT, "-cg", "--cuda-graphs", graphs, "0", RANGE(0, 1),
        .help = "1: CUDA replays each block's forward and backward by one launch, with bitwise "
                "identical results. This is faster if launches take longer than computing, as in "
                "small models. Has no effect on a CPU"),
    ROW(PATH, "-pc", "--gemm-algorithms", products_path, "", .aliases = "--products",
        .help =
            "CPU, f32: file with the GEMM algorithm for the matrix product of each shape. If the "
            "file does not exist, rank 0 measures the algorithms and writes it. Without -pc, a "
            "table by processor and shape decides. In both cases runs are deterministic"),
    HEADING("optimizer", "Optimizer"),
    ROW(WORD, "-op", "--optimizer", optimizer, "adamw",
        .words = "adamw adam sgd nesterov lion "
                 "adagrad lamb muon",
        .course = 1, TO(INT, zero.optimizer), KEY("optimizer.type", DS_GIVEN_OPTIMIZER, ALWAYS),
        .help = "optimizer. muon orthogonalizes the updates of the matrices of blocks and experts, "
                "with qkv as one matrix, and updates all other tensors as adamw"),
    ROW(INT, "-x", "--steps", steps, "2000", .gpt2 = "-1", .brief = "steps; -1: one epoch",
        .compare = "16", RANGE(-1, 2e9), .course = 1,
        .help = "steps. -1: one epoch. In a comparison: timed steps per stage"),
    ROW(WORD, "-k", "--schedule", schedule, "cosine", .words = "cosine linear constant wsd",
        .course = 1, .help = "schedule of the learning rate"),
    ROW(REAL, "-l", "--lr", lr, "1e-3", .gpt2 = "3e-4",
        .brief = "learning rate; -k schedule, -u warm-up, -c weight decay", RANGE(0, 1e3),
        .course = 1, TO(FLOAT, hyper.lr), KEY("optimizer.params.lr", DS_GIVEN_LR, ALWAYS),
        .help = "learning rate"),
    ROW(INT, "-u", "--warmup", warmup, "100", .gpt2 = "0", RANGE(0, 2e9), .course = 1,
        .help = "steps of linear warm-up"),
    ROW(REAL, "-q", "--final-fraction", final_fraction, "0.1", .gpt2 = "1", RANGE(0, 1),
        .course = 1, .help = "learning rate at the end, as a fraction of -l"),
    ROW(REAL, "-c", "--weight-decay", weight_decay, "0.1", .gpt2 = "0", RANGE(0, 1e3), .course = 1,
        TO(FLOAT, hyper.weight_decay), KEY("optimizer.params.weight_decay", DS_GIVEN_DECAY, ALWAYS),
        .help = "weight decay"),
    ROW(REAL, "-b1", "--beta1", beta1, "0.9", RANGE(0, 0.9999999), .course = 1,
        TO(FLOAT, hyper.beta1), KEY("optimizer.params: beta1 or momentum", DS_GIVEN_BETAS, ALWAYS),
        .help = "beta1; the momentum of sgd and nesterov"),
    ROW(REAL, "-b2", "--beta2", beta2, "0.99", .gpt2 = "0.95", RANGE(0, 0.9999999), .course = 1,
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
        .help = "muon: learning rate of tensors that are not matrices, as a multiple of -l"),
    ROW(INT, "-mr", "--match-rms", match_rms, "0", RANGE(0, 1), .course = 1,
        TO(INT, zero.muon.match_rms), KEY("muon.match_rms", 0, IF_GIVEN),
        .help = "muon: 1: updates of matrices have the size of adamw updates, so that one -l fits "
                "both"),
    ROW(INT, "-mp", "--polar-express", polar_express, "0", RANGE(0, 1), .course = 1,
        TO(INT, zero.muon.polar_express), KEY("muon.polar_express", 0, IF_GIVEN),
        .help = "muon: 1: the coefficients of Polar Express (Amsel et al. 2025), which come closer "
                "to an orthogonal matrix in the same 5 iterations"),
    ROW(REAL, "-mn", "--normuon", normuon, "0", RANGE(0, 0.9999999), .course = 1,
        TO(FLOAT, zero.muon.normalize), KEY("muon.normalize", 0, IF_GIVEN),
        .help = "muon: NorMuon (Li et al. 2025) divides rows of matrices by the root of their mean "
                "square, averaged over steps with this factor, such as 0.95. Not with -tp. 0: off"),
    ROW(INT, "-mh", "--per-head-muon", muon_heads, "0", RANGE(0, 1), .course = 1,
        TO(INT, per_head_muon), KEY("optimizer.params.per_head_muon", DS_GIVEN_MUON_HEADS, ALWAYS),
        .help = "muon: 1: the queries, keys and values of each attention head are matrices of "
                "their own. 0: all of a block are one matrix"),
    ROW(REAL, "-tl", "--least-trust", trust_least, "0", RANGE(0, 1e30), .course = 1,
        TO(FLOAT, zero.trust_least),
        KEY("optimizer.params.min_coeff", DS_GIVEN_LEAST_TRUST, ALWAYS),
        .help = "lamb: smallest trust ratio. 0: no bound"),
    ROW(REAL, "-tm", "--most-trust", trust_most, "0", RANGE(0, 1e30), .course = 1,
        TO(FLOAT, zero.trust_most), KEY("optimizer.params.max_coeff", DS_GIVEN_MOST_TRUST, ALWAYS),
        .help = "lamb: largest trust ratio. 0: no bound"),
    ROW(REAL, "-cl", "--clip", clip, "1", RANGE(0, 1e30), .course = 1, TO(FLOAT, hyper.max_norm),
        KEY("gradient_clipping", DS_GIVEN_CLIPPING, UNLESS_TYPED),
        .help = "gradient clipping: a gradient with a larger norm is scaled down to this norm. 0: "
                "no clipping"),
    ROW(REAL, "-sl", "--skip-loss", skip_loss, "0", RANGE(0, 1e9), .course = 1,
        .help = "skip a step if its loss lies more than this number of standard deviations above "
                "the last 128. 0: never"),
    ROW(REAL, "-sg", "--skip-norm", skip_norm, "0", RANGE(0, 1e9), .course = 1,
        .help = "skip a step if the norm of its gradient lies more than this number of standard "
                "deviations above the last 128. 0: never"),
    HEADING("validation", "Validation and samples"),
    ROW(INT, "-v", "--val-every", val_every, "250", .gpt2 = "20", .brief = "validate every N steps",
        RANGE(-1, 2e9),
        .help = "validate every N steps, and at the end. 0: only at the end. -1: never"),
    ROW(INT, "-m", "--val-batches", val_batches, "0", .gpt2 = "20", RANGE(-1, 2e9),
        .help = "batches per validation. 0 or -1: the whole file"),
    ROW(INT, "-s", "--sample-every", sample_every, "0", .gpt2 = "20", RANGE(0, 2e9),
        .help = "print a sample every N steps, and at the end. 0: only at the end"),
    ROW(INT, "-g", "--sample-tokens", sample_tokens, "300", .gpt2 = "64",
        .brief = "tokens per sample; 0: no samples", RANGE(0, 1e6),
        .help = "tokens per sample. 0: no samples. A GPT-2 model at stage 3 has 16 by default, "
                "because each token gathers all parameters"),
    ROW(INT, "-h", "--hellaswag", evaluate, "0", RANGE(0, 1),
        .help = "1: evaluate the examples of -hf at each validation and at the end. Each has four "
                "endings; the answer is the one with the smallest mean loss. -h without a value "
                "prints this help"),
    ROW(PATH, "-hf", "--hellaswag-data", eval_path, "dev/data/hellaswag/hellaswag_val.bin",
        .help = "file with the examples, in llm.c's format"),
    HEADING("output", "Output"),
    ROW(INT, "-lp", "--print-every", print_every, "0", RANGE(0, 2e9), TO(INT, steps_per_print),
        KEY("steps_per_print", DS_GIVEN_STEPS_PER_PRINT, IF_GIVEN),
        .help = "print a line every N steps, and for the first and the last one. 0: a terminal has "
                "one line that is rewritten; a file gets a line per step"),
    ROW(WORD, "-st", "--settings", settings, "short", .words = "short all",
        .help = "the table of settings before the first step: 12 rows, or all rows"),
    HEADING("observe", "Observing a run"),
    ROW(TEXT, "-tr", "--trace", trace_path, "",
        .help = "file for a timeline of all ranks, for ui.perfetto.dev or chrome://tracing. It can "
                "be opened even if the run was killed"),
    ROW(INT, "-tb", "--breakdown", breakdown_every, "0", RANGE(0, 2e9), TO(INT, breakdown),
        KEY("wall_clock_breakdown: -tb", DS_GIVEN_BREAKDOWN, IF_GIVEN),
        .help = "print a breakdown every N steps, and one of the whole run at the end: the time of "
                "forward, backward, update, data and file, and the time in which a rank only waits "
                "for communication (exposed communication). 0: never"),
    ROW(INT, "-tc", "--comms-log", comms_log, "0", RANGE(0, 1), TO(INT, comms_log),
        KEY("comms_logger.enabled: -tc", DS_GIVEN_COMMS, IF_GIVEN),
        .help =
            "1: at the end, print a table of collectives: count, mean, p50, p99, bandwidth, ranks"),
    ROW(INT, "-tk", "--profile-step", profile_step, "0", RANGE(0, 2e9), TO(INT, profile_step),
        KEY("flops_profiler.profile_step: -tk", DS_GIVEN_PROFILE, IF_GIVEN),
        .help =
            "print the operations and times of each layer in this step; not with -pp. 0: never"),
    ROW(PATH, "-tbd", "--tensorboard-dir", tensorboard_dir, "",
        .help = "folder for TensorBoard's event files: loss, learning rate, loss scale and norm "
                "over samples; with -tb also times"),
    ROW(PATH, "-tcd", "--csv-dir", csv_monitor_dir, "",
        .help = "folder for the same values as CSV"),
    HEADING("checkpoints", "Checkpoints"),
    ROW(INT, "-n", "--save-every", save_every, "0",
        .brief = "save a checkpoint to -o every N steps, and after Ctrl-C", RANGE(0, 2e9),
        .help = "save a checkpoint to the folder of -o every N steps, at the end, and after "
                "Ctrl-C, SIGTERM or SIGUSR1. 0: never"),
    ROW(INT, "-nk", "--keep-last", keep_last, "0", RANGE(0, 2e9),
        .help = "number of newest checkpoints to keep. 0: all"),
    ROW(INT, "-nm", "--keep-every", keep_every, "0", RANGE(0, 2e9),
        .help = "also keep the checkpoints of every N-th step. 0: none"),
    ROW(INT, "-na", "--async-save", save_aside, "0", .aliases = "--save-aside", RANGE(0, 1),
        .help = "1: asynchronous checkpoints: write them in the background. Training waits only "
                "for a copy of the state in memory, which takes that much memory"),
    ROW(INT, "-nz", "--save-frozen", save_frozen, "1", RANGE(0, 1),
        .help =
            "0: leave frozen tensors out of checkpoints, such as the weights that --lora adapts. "
            "-y 1 then takes them from -e: the same file, or the same name and seed"),
    ROW(INT, "-nf", "--continue-on-write-error", save_or_go_on, "0", .aliases = "--go-on",
        RANGE(0, 1),
        .help = "if a checkpoint, or a line of main.log or of the output, cannot be written: 0 "
                "ends the run; 1 warns, training continues, and the exit code is 1"),
    ROW(INT, "-y", "--resume", resume, "0", .brief = "1: resume from the newest checkpoint in -o",
        RANGE(0, 2),
        .help = "1: resume from the newest complete checkpoint in -o, with any number of ranks and "
                "any stage; start from the beginning if there is none. 2: end if the newest one is "
                "damaged"),
    HEADING("ranks", "Ranks"),
    ROW(RANK, "-pn", "--ranks", ranks, "0",
        .brief = "ranks to start on this machine (mpirun, torchrun and srun work, too)",
        RANGE(0, 65536),
        .help = "ranks to start on this machine. 0: those that mpirun, torchrun or srun has "
                "started; without them 1, or 2 in a comparison"),
    ROW(INT, "-pt", "--rank-threads", as_threads, "0", RANGE(0, 1),
        .help = "1: the ranks of -pn are threads of one process. This is also the default with "
                "CUDA if there are fewer GPUs than ranks"),
    ROW(INT, "-pe", "--elastic", elastic, "0", RANGE(0, 1),
        .help = "1: implies -y 1. If ranks of -pn die, the remaining ranks resume from the newest "
                "checkpoint, with the largest number that -d, -tp, -pp and -eg allow. The tokens "
                "per step, -d, stay the same; -b is the largest batch size of a rank. torchrun and "
                "other launchers restart ranks themselves"),
    ROW(INT, "-pm", "--copies", copies, "0", RANGE(0, 2e9),
        .help = "with -pe 1 and -pn: every N steps each rank copies its state to memory that stays "
                "when the rank dies. There are two copies, and ranks resume from the newest that "
                "all of them have finished. 0: resume only from checkpoints"),
    ROW(INT, "-ck", "--check-products", check_products, "0", RANGE(0, 2e9),
        .help = "in every N-th step, another data-parallel rank computes one block again, forward "
                "and backward of the first micro-step, and the bits are compared. A difference "
                "ends the run: a processor has computed wrongly. Three or more ranks find which "
                "one, and with -pe 1 the others go on. Weights do not change. 0: never"),
    ROW(PATH, "-pnf", "--ranks-file", ranks_file, "",
        .help =
            "a file that has the number of ranks of -pn: if you write another number, or send "
            "SIGTERM to a rank, ranks join or leave after the next step, in memory, without a "
            "restart. With -vr the weights are those of a run that keeps its ranks. If the number "
            "is not possible, the largest smaller one is used. CPU only. '': ranks stay"),
    ROW(PATH, "-pa", "--ranks-address", address, "",
        .help = "HOST:PORT at which other launchers of this machine join the job with -pj, also "
                "while it trains. Without HOST: 127.0.0.1; port 0: any. Ranks leave as with -pnf"),
    ROW(PATH, "-pj", "--join", join, "",
        .help =
            "HOST:PORT of a job with -pa: its command line, with -pj instead of -pa, adds -pn "
            "ranks to it. Those that it cannot use wait, and replace ranks that leave. SIGTERM or "
            "Ctrl-C here: they leave the job after a step"),
    ROW(WORD, "-pi", "--rendezvous", method, "mpi", .words = "mpi tcp fs",
        .help = "how ranks find each other. mpi: through the launcher (mpirun, torchrun, srun); "
                "tcp: at the address of -ps; fs: through the folder of -pf. With tcp and fs, -pn "
                "is the number of all ranks, and -pr is the rank of this process"),
    ROW(PATH, "-ps", "--server", server, "",
        .help =
            "tcp: name or address of the host of rank 0. Its port is the variable ZERO_PORT, or "
            "12345"),
    ROW(PATH, "-pf", "--rendezvous-folder", folder, "/tmp",
        .help = "fs: folder that all ranks can access"),
    ROW(RANK, "-pr", "--rank", rank, "0", RANGE(0, 1e6), .help = "tcp, fs: rank of this process"),
    ROW(INT, "-pg", "--ranks-per-host", per_node, "0", RANGE(0, 4096),
        .help = "tcp, fs: ranks per machine. 0: found by host name"),
    HEADING("parallel", "Tensor, pipeline and expert parallelism"),
    ROW(INT, "-tp", "--tensor-parallel", tensor_parallel, "1",
        .brief = "tensor-parallel ranks per model", RANGE(1, 4096), TO(INT, tensor_parallel),
        KEY("tensor_parallel: -tp", DS_GIVEN_TENSOR_RANKS, IF_GIVEN),
        .help = "tensor parallelism: number of ranks that share one model: heads, hidden channels "
                "and vocabulary. It divides the number of ranks; the rest is data parallel. -b, -d "
                "and sequences count only data-parallel ranks"),
    ROW(INT, "-pp", "--pipeline-parallel", pipeline, "1", .aliases = "--pipeline", RANGE(1, 512),
        TO(INT, pipeline), KEY("pipeline.stages: -pp", DS_GIVEN_PIPELINE, IF_GIVEN),
        .help = "pipeline parallelism: number of stages. Each stage is on other ranks, and has a "
                "part of the blocks; the micro-steps of a step run through the stages one after "
                "another (1F1B). Set the number of micro-steps with -d: with m micro-steps and p "
                "stages, ranks are idle for (p-1)/m of the computing time (the bubble). With -en, "
                "a stage has an even number of blocks"),
    ROW(INT, "-ppv", "--pipeline-chunks", pipeline_chunks, "1", RANGE(1, 512),
        .help = "interleaved pipeline: chunks of blocks per stage. With v chunks the bubble is 1/v "
                "as long, and there are v times as many messages. The number of stages must divide "
                "the number of micro-steps"),
    ROW(INT, "-sp", "--sequence-parallel", sequence_parallel, "0", RANGE(0, 1),
        TO(INT, sequence_parallel), KEY("partition_activations: -sp", DS_GIVEN_SEQUENCE, IF_GIVEN),
        .help = "sequence parallelism. 1: the ranks of -tp also divide the activations between "
                "layers: 1/tp of their memory, and as many bytes sent. DeepSpeed's "
                "sequence_parallel_size is -cp"),
    ROW(INT, "-cp", "--context-parallel", context_parallel, "1", RANGE(1, 4096),
        TO(INT, context_parallel),
        KEY("sequence_parallel_size: -cp", DS_GIVEN_CONTEXT_RANKS, IF_GIVEN),
        .help = "context parallelism: number of ranks that share sequences; each has 1/cp of the "
                "tokens and of the activations. It divides the number of ranks and -t. -b, -d and "
                "sequences count these ranks once; states are sharded over all ranks. It is "
                "DeepSpeed's sequence_parallel_size, and not -sp"),
    ROW(WORD, "-ca", "--context-attention", context_way, "auto", .words = "auto ulysses ring both",
        .help = "how the ranks of -cp divide attention. ulysses: by heads, which -cp must divide. "
                "ring: keys and values travel around the ranks, with any number of heads; -t is a "
                "multiple of 2 times -cp. both: groups of neighbours divide the heads, and the "
                "groups are a ring. auto: ulysses if -cp divides the heads, otherwise both or "
                "ring"),
    ROW(INT, "-en", "--moe-experts", experts, "0", .aliases = "--experts", RANGE(0, 1024),
        .course = 1,
        .help = "mixture of experts: experts per layer, which replace the MLP of every second "
                "block (GShard, Switch). 0: none"),
    ROW(INT, "-ek", "--moe-top-k", chosen, "1", .aliases = "--experts-asked", RANGE(1, 2),
        .course = 1, TO(INT, experts_asked),
        KEY("expert_parallel.top_k: -ek", DS_GIVEN_EXPERTS_ASKED, IF_GIVEN),
        .help = "the router sends each token to its top k experts: 1, weighted by its gate, or 2, "
                "each weighted by its gate over the sum of the gates that were not dropped"),
    ROW(INT, "-eg", "--expert-parallel", expert_group, "1", .aliases = "--expert-group",
        RANGE(1, 65536), TO(INT, expert_group),
        KEY("expert_parallel.autoep_size: -eg", DS_GIVEN_EXPERT_GROUP, IF_GIVEN),
        .help = "data-parallel ranks that share the experts of a layer. Each has -en / -eg of "
                "them, and tokens are sent. It divides both numbers. With -tp, each rank has a "
                "part of every expert"),
    ROW(INT, "-ego", "--experts-apart", experts_apart, "0", RANGE(0, 1), TO(INT, experts_apart),
        KEY("use_data_before_expert_parallelism: -ego", DS_GIVEN_EXPERTS_APART, IF_GIVEN),
        .help = "0: the ranks of an expert group are neighbours. 1: the ranks with the same "
                "experts are neighbours"),
    ROW(REAL, "-ec", "--capacity-factor", capacity, "1", .aliases = "--capacity", RANGE(0.001, 1e6),
        .course = 1,
        .help = "capacity factor: the most tokens that an expert accepts from a rank's micro-step, "
                "as a multiple of the mean, at least 4. Further tokens are dropped and counted"),
    ROW(REAL, "-ea", "--aux-loss-weight", aux, "0.01", .aliases = "--auxiliary", RANGE(0, 1e6),
        .course = 1,
        .help = "weight of the auxiliary loss, which is smallest if the router gives all experts "
                "the same number of tokens"),
    HEADING("threads", "Threads and nodes"),
    ROW(INT, "-nt", "--threads", threads, "0", RANGE(0, 4096),
        .help = "threads per rank. 0: the processors of this machine divided by its ranks"),
    ROW(INT, "-ns", "--node-size", node_size, "0", RANGE(0, 4096),
        .help =
            "ranks per node, for hierarchical sums. 0: the ranks of each machine; with NCCL: all "
            "ranks are one node, so set it for -qg on several machines"),
    HEADING("zero", "ZeRO"),
    ROW(STAGES, "-z", "--stage", stage, "0",
        .brief = "ZeRO stage: 1 shards optimizer state, 2 gradients, 3 parameters; auto",
        TO(INT, zero.stage), KEY("zero_optimization.stage", DS_GIVEN_STAGE, IF_GIVEN),
        .help =
            "stage 0 to 3: 1 shards the optimizer state, 2 also the gradients, 3 also the "
            "parameters. A list (0,1,2,3) compares stages in one run, and writes -csv. auto: the "
            "program chooses the stage and other settings, prints why, and the command line "
            "that repeats its choice (adapters/docs/plan.md)"),
    ROW(WORD, "-za", "--gradient-accumulation", accumulation, "auto", .aliases = "--accumulate",
        .words = "auto local sharded", .course = 1, TO(INT, zero.accumulation),
        .help = "gradient accumulation over micro-steps: in a whole copy (local) or in shards "
                "(sharded). auto: local at stages 0 and 1, and in every pipeline (except with -zog "
                "file); otherwise, and in a comparison, sharded"),
    ROW(LONG, "-zb", "--bucket-size", bucket, "0", .aliases = "--bucket", RANGE(0, BIG),
        TO(SIZE, zero.bucket_numel),
        .help = "elements of gradients that are reduced together (a bucket). 0: as many as the "
                "largest unit has"),
    ROW(INT, "-zp", "--prefetch", prefetch, "1", RANGE(0, ZERO_PREFETCH_MOST),
        TO(COUNT, zero.prefetch),
        .help = "stage 3: number of units that are gathered ahead of use. There are this number of "
                "buffers and 2 more. 0: none"),
    ROW(LONG, "-zt", "--persistence", persistence, "-1", RANGE(-1, BIG),
        TO(COUNT64, zero.persistence_numel),
        KEY("zero_optimization.stage3_param_persistence_threshold", DS_GIVEN_PERSISTENCE, IF_GIVEN),
        .help = "stage 3: keep units unsharded on every rank if their tensors have at most this "
                "number of elements. -1: units that have only vectors"),
    ROW(INT, "-zo", "--overlap", overlap, "1", RANGE(0, 1), TO(NOT, zero.no_overlap),
        KEY("zero_optimization.overlap_comm", DS_GIVEN_OVERLAP, IF_GIVEN),
        .help = "1: communication overlaps with computing. 0: it does not"),
    ROW(INT, "-zm", "--mapping", mapping, "1", RANGE(0, 1), TO(NOT, zero.no_mapping),
        .help = "1: gather without a copy if ranks can access each other's memory"),
    ROW(INT, "-zs", "--shard-ranks", shard_ranks, "0", RANGE(0, 1e6), TO(INT, zero.shard_ranks),
        KEY("zero_optimization.mics_shard_size: -zs", DS_GIVEN_SHARD_RANKS, IF_GIVEN),
        .help = "stages 1 to 3: this number of consecutive ranks share one copy of the sharded "
                "state; the other groups are replicas (MiCS, HSDP). It divides the data-parallel "
                "ranks. 0: all of them"),
    ROW(INT, "-zh", "--secondary-partition", second_ranks, "0", .aliases = "--second-ranks",
        RANGE(0, 1e6), TO(INT, zero.second_ranks),
        KEY("zero_optimization.zero_hpz_partition_size: -zh", DS_GIVEN_SECOND_RANKS, IF_GIVEN),
        .help = "stage 3: a secondary partition (hpZ) of the parameters over this number of ranks "
                "serves all gathers of a step except the first. Not used if ranks can access each "
                "other's memory (see -zm). 0: none"),
    ROW(INT, "-zi", "--integrity", integrity, "0", RANGE(0, 1), TO(INT, zero.integrity),
        .help = "1: keep hashes of weights, optimizer state and sums of gradients, and compare "
                "them at the next use and over the ranks. Memory or a message that changed by "
                "itself ends the run, with its rank, unit and step, before it changes a weight. "
                "Bits stay the same. CPU. 0: off"),
    HEADING("auto", "The program's choice: -z auto"),
    ROW(TEXT, "-me", "--memory", memory, "",
        .help = "most memory of a rank's device: 80G, 640M, 1.5T (GiB and so on) or 80GB (1e9). -z "
                "auto chooses among what fits into it and into the free memory of the machine. A "
                "run does not start if its plan needs more. zero_plan marks the rows that fit"),
    ROW(PATH, "-ma", "--machine", machine, "",
        .help = "file of the machine's rates (adapters/plan/machine.h), by which times are "
                "predicted. -z auto: if the file does not exist, the ranks measure the rates in "
                "at most 10 seconds and write it. Without -ma, that is machine.txt in the folder "
                "of -o; without -o, the rates are only printed"),
    ROW(INT, "-al", "--allow-lossy", lossy, "0", RANGE(0, 1),
        .help = "1: -z auto may also choose what changes the results by more than the order of "
                "sums: -os bf16 and 8bit, -qw 8, -qg 4"),
    HEADING("quantized", "Quantized communication"),
    ROW(INT, "-qw", "--quantize-weights", weight_bits, "0", .aliases = "--weight-bits", RANGE(0, 8),
        .course = 1, TO(INT, zero.weight_bits),
        KEY("zero_optimization.zero_quantized_weights: -qw", DS_GIVEN_WEIGHT_BITS, IF_GIVEN),
        .help = "stage 3: gather weights quantized to integers of 8 or 4 bits, with one scale per "
                "128 of them (ZeRO++). Master weights and shards stay exact. 0: not quantized"),
    ROW(INT, "-qwf", "--quantize-frozen-weights", frozen_weight_bits, "0", RANGE(0, 8), .course = 1,
        TO(INT, zero.frozen_weight_bits),
        KEY("zero_optimization.zero_quantized_nontrainable_weights: -qwf", DS_GIVEN_FROZEN_BITS,
            IF_GIVEN),
        .help =
            "stage 3: the same for frozen tensors alone (--train, --freeze, --lora). 0: as -qw"),
    ROW(INT, "-qg", "--quantize-gradients", gradient_bits, "0", .aliases = "--gradient-bits",
        RANGE(0, 8), .course = 1, TO(INT, zero.gradient_bits),
        KEY("zero_optimization.zero_quantized_gradients: -qg", DS_GIVEN_GRADIENT_BITS, IF_GIVEN),
        .help = "stages 1 to 3: reduce gradients quantized to integers of 8 or 4 bits, inside "
                "nodes (-ns), then between them. 0: not quantized"),
    ROW(REAL, "-qf", "--error-feedback", feedback, "0", .aliases = "--feedback",
        RANGE(0, 0.9999999), .course = 1, TO(FLOAT, zero.feedback),
        KEY("zero_optimization.zeropp_loco_param.err_beta: -qf", DS_GIVEN_FEEDBACK, IF_GIVEN),
        .help =
            "-qg: error feedback. Each rank keeps the rounding errors, 2 bytes per element (4 in "
            "fp16), and "
            "adds them to later gradients, as a moving average with this beta (LoCo: 0.8). 0: off"),
    ROW(INT, "-qr", "--error-feedback-reset", feedback_reset, "0", .aliases = "--feedback-reset",
        RANGE(0, 2e9), .course = 1, TO(INT, zero.feedback_reset),
        KEY("zero_optimization.zeropp_loco_param.reset_T: -qr", DS_GIVEN_FEEDBACK, IF_GIVEN),
        .help = "-qf: number of steps after which the kept errors are cleared. 0: never"),
    HEADING("offload", "Offload"),
    ROW(WORD, "-zos", "--offload-optimizer", optimizer_tier, "device",
        .aliases = "--optimizer-tier",
        .brief = "offload optimizer state: device (no offload), host or file",
        .words = "device host file", TO(INT, zero.optimizer_tier),
        KEY("zero_optimization.offload_optimizer.device: -zos", DS_GIVEN_OPTIMIZER_TIER, IF_GIVEN),
        .help = "offload of optimizer state and master weights: device (no offload), host (CPU "
                "memory; the same as device in the CPU version), or file (disk)"),
    ROW(WORD, "-zog", "--offload-gradients", gradient_tier, "auto", .aliases = "--gradient-tier",
        .words = "device host file auto", .target_name = "gradient_tier",
        .help = "offload, stages 2 and 3: where the shard of the reduced gradients stays until the "
                "update. auto: CPU memory with -zos host and file, but a file with -zos file if "
                "memory is too small (not in a comparison); otherwise the device"),
    ROW(WORD, "-zop", "--offload-parameters", parameter_tier, "device",
        .aliases = "--parameter-tier", .words = "device host file", TO(INT, zero.parameter_tier),
        KEY("zero_optimization.offload_param.device: -zop", DS_GIVEN_PARAMETER_TIER, IF_GIVEN),
        .help = "offload, stage 3: where the shard of the parameters is stored"),
    ROW(REAL, "-zor", "--offload-share", offload_share, "1", RANGE(0, 1),
        TO(FLOAT, zero.offload_share),
        KEY("zero_optimization.offload_optimizer.ratio", DS_GIVEN_SHARE, IF_GIVEN),
        .help = "share of the model, in whole units, to which -zos, -zog and -zop apply. The rest "
                "stays on the device. 0: no offload"),
    ROW(WORD, "-zou", "--update-on", update_on, "auto", .words = "auto host device",
        TO(INT, zero.update_on),
        .help = "CUDA, -zos host: whether the host (CPU) or the device (GPU) computes the update; "
                "for the device, the state is copied to it and back. auto: the faster one, by -zol "
                "and -zom. The plan prints both times"),
    ROW(REAL, "-zol", "--link-bandwidth", link_gbs, "25", .aliases = "--link", RANGE(0.001, 1e6),
        TO(FLOAT, zero.link_gbs),
        .help = "bandwidth between CPU and GPU in one direction, 1e9 bytes per second"),
    ROW(REAL, "-zom", "--host-memory-bandwidth", memory_gbs, "60", .aliases = "--host-memory-rate",
        RANGE(0.001, 1e6), TO(FLOAT, zero.memory_gbs),
        .help = "a rank's share of the bandwidth of CPU memory, 1e9 bytes per second"),
    ROW(PATH, "-zfd", "--offload-folder", offload_folder, ".",
        .help = "offload to a file: folder for one file per rank. The file has no name, and "
                "disappears when the run ends"),
    ROW(INT, "-zfc", "--file-check", file_check, "1", RANGE(0, 1), TO(NOT, zero.no_file_check),
        .help =
            "1: compare each piece that is read from a file with the checksum of what was written"),
    ROW(INT, "-zod", "--delayed-update", delay_from, "0", .aliases = "--delay-from", RANGE(0, 2e9),
        .course = 1, TO(INT, zero.delay_from),
        .help = "delayed update from this step on (ZeRO-Offload: 40): it overlaps with the next "
                "step, which uses the weights before the update, and so do validation and samples. "
                "Checkpoints and copies keep it pending. 0: never"),
    HEADING("memory", "Activation memory and time-outs"),
    ROW(INT, "-zl", "--tile-rows", tile_rows, "0", RANGE(0, 1e7), .course = 1,
        .help =
            "compute embedding and classifier in tiles of this number of vocabulary rows, or the "
            "next smaller number that divides the vocabulary. wte, its gradient and the logits are "
            "then never whole in memory; results are equal up to rounding. 0: no tiles"),
    ROW(REAL, "-zw", "--timeout", timeout, "600", RANGE(0.001, 1e9), TO(DOUBLE, zero.timeout_s),
        .help = "seconds to wait for another rank"),
    ROW(INT, "-r", "--recompute", recompute, "1", .aliases = "--activation-checkpointing",
        .brief = "activation checkpointing: 0 none, 1 GELU, 2 also norms, 3 whole blocks",
        RANGE(0, 4), TO(INT, recompute),
        KEY("activation_checkpointing.cpu_checkpointing: -r", 0, IF_GIVEN),
        .help = "activation checkpointing: recompute in backward to save memory: 0 nothing, 1 "
                "GELU, 2 also layer norms, 3 whole blocks, 4 whole blocks, with their inputs "
                "offloaded to a file in -zfd (CUDA: to CPU memory)"),
    ROW(INT, "-mt", "--mlp-rows", mlp_rows, "0", RANGE(0, 1e9),
        .help =
            "compute the MLP of a block in tiles of at most this number of tokens, in forward and "
            "again in backward, so that the MLP has no array with 4 C numbers for each token. It "
            "needs -r 3 or 4. Results are equal up to rounding. 0: all tokens together"),
    HEADING("compare", "Comparison of stages"),
    ROW(TEXT, "-layouts", "--layouts", layouts, "",
        .help = "compare layouts of the ranks in one run, at the stage of -z: \"dp4 tp2dp2\""),
    ROW(INT, "-rd", "--rounds", rounds, "8", RANGE(1, TRAIN_MAX_ROUNDS),
        .help =
            "rounds of a comparison; each runs a part of the steps of every stage. It divides -x"),
    ROW(PATH, "-csv", "--csv", csv_path, "build/compare.csv", .help = "file for the results"),
    HEADING("debug", "Debugging"),
    ROW(INT, "-db", "--print-batches", print_batches, "0", RANGE(0, 1),
        .help = "1: print a hash of each step's tokens"),
    HEADING("llmc", "llm.c's flags that change nothing here"),
    ROW(INT, "-ge", "--gelu-fusion", gelu_fusion, "-1", RANGE(-1, 2),
        .help = "GELU within a matrix product; used wherever cuBLASLt has it",
        .idle = "GELU is fused with a matrix product wherever cuBLASLt offers it; the line "
                "'matrix products' reports it"),
    ROW(INT, "-lg", "--log-gpu", gpu_log, "-1", RANGE(-1, 2e9),
        .help = "log of the GPU's state; main.log (-o) has each step's time, tokens/s and memory",
        .idle = "main.log (-o) has each step's time, tokens/s and memory; nvidia-smi dmon shows "
                "clocks and power"),
};

enum { TRAIN_ROWS = (int)(sizeof train_table / sizeof train_table[0]) };
static_assert(TRAIN_ROWS <= (int)TRAIN_OPTIONS_MOST, "a mark for every flag");
static_assert(sizeof(zero_type) == sizeof(int) && sizeof(zero_optimizer) == sizeof(int)
                  && sizeof(zero_grad_type) == sizeof(int) && sizeof(zero_tier) == sizeof(int)
                  && sizeof(zero_accumulation) == sizeof(int) && sizeof(size_t) == sizeof(uint64_t),
              "OPTION_AS_INT stores enums, OPTION_AS_SIZE the seed");

/* Returns a view of the options. Only train_options_parse and _take write through it. */
static option_set train_view(const train_options *o) {
    train_options *all = (train_options *)(uintptr_t)o;
    const option_set view = {train_table, TRAIN_ROWS,        all,  all->given,
                             all->error,  sizeof all->error, NULL, 0};
    return view;
}

int train_is_gpt2(const char *model) { return strncmp(model, "char:", 5) != 0; }

/* Returns which defaults the command line means. This is needed before the defaults are set. */
static unsigned train_defaults(const option_set *view, int argc, char **argv) {
    const char *stages = options_value(view, argc, argv, "-z");
    const char *model = options_value(view, argc, argv, "-e");
    unsigned defaults = 0;
    if ((stages != NULL && strchr(stages, ',') != NULL)
        || options_value(view, argc, argv, "-layouts") != NULL)
        defaults |= OPTIONS_COMPARE;
    if (model != NULL && train_is_gpt2(model)) defaults |= OPTIONS_GPT2;
    return defaults;
}

/* Sets the default of -g that follows from the stage. */
static void train_short_samples(train_options *o) {
    const option_set view = train_view(o);
    if (train_is_gpt2(o->model) && o->stage.at[0] == 3 && !options_given(&view, "-g"))
        o->sample_tokens = TRAIN_SAMPLE_AT_STAGE_3;
}

void train_options_parse(train_options *o, int argc, char **argv) {
    memset(o, 0, sizeof *o);
    option_set view = train_view(o);
    const unsigned defaults = train_defaults(&view, argc, argv);
    o->help = options_parse(&view, argc, argv, defaults, launch_adds_argument, &o->help_about);
    train_short_samples(o);
}

static void train_help_brief(const option_set *view, const char *program) {
    static const char *const examples[][2] = {
        {"", "a character model, half a minute on two cores"},
        {" --ranks 2 --stage 3", "the same on two ranks, everything sharded"},
        {" --ranks 2 --stage 0,1,2,3", "compares DDP with ZeRO: speed, memory"},
        {" -e d12 -i train.bin -j val.bin", "GPT-2 124M, with llm.c's defaults"},
        {" -o log -n 500 -y 1", "saves checkpoints, and resumes"},
    };
    printf(
        "usage: ./%s [FLAG VALUE]...\n\n"
        "Trains GPT-2 on one or several ranks with ZeRO. Every flag takes a value, and has a short "
        "and a\nlong name: -z 3, --stage 3 and --stage=3 are the same. The most frequent "
        "flags:\n\n",
        program);
    options_help_brief(view);
    printf("\nExamples\n");
    for (int i = 0; i < (int)(sizeof examples / sizeof *examples); i++)
        printf("  ./%s%-33s  %s\n", program, examples[i][0], examples[i][1]);
    printf("\nMore: --help all, --help FLAG, --version, or --help SECTION, one of\n");
    options_help_topics(view);
    printf("This build starts ranks with -pn, by torchrun and srun%s.\n",
           launch_has_mpi() ? ", and by mpirun" : "");
}

int train_options_help(const train_options *o, const char *program, char *sentence, size_t bytes) {
    const option_set view = {train_table, TRAIN_ROWS, NULL, NULL, NULL, 0, NULL, 0};
    if (o->help == OPTIONS_VERSION)
        printf("%s %s\n", program, zero_version());
    else if (!o->help_about[0])
        train_help_brief(&view, program);
    else if (strcmp(o->help_about, "all") == 0)
        options_help(&view);
    else if (!options_help_topic(&view, o->help_about)) {
        (void)snprintf(sentence, bytes,
                       "--help: there is no section or flag '%.40s'; --help lists the sections",
                       o->help_about);
        return 1;
    }
    return 0;
}

size_t train_options_render(const train_options *o, char *text, size_t bytes) {
    const option_set view = train_view(o);
    const size_t used = (size_t)snprintf(text, bytes, "-ds %s\n", o->ds_path[0] ? "FILE" : "none");
    return used + options_render(&view, text + used, bytes - used);
}

void train_options_paths(const train_options *o, char *text, size_t bytes) {
    size_t used = 0;
    text[0] = 0;
    for (int i = 0; i < TRAIN_ROWS && used < bytes; i++) {
        const option *d = &train_table[i];
        const char *const *path = (const char *const *)(const void *)((const char *)o + d->field);
        if (d->type != OPTION_PATH || path == &o->ranks_file || path == &o->address
            || path == &o->join)
            continue;
        used += (size_t)snprintf(text + used, bytes - used, "%s %s\n", d->flag,
                                 (*path)[0] ? "PATH" : "(none)");
    }
}

int train_changes_ranks(const train_options *o) {
    return o->ranks_file[0] || o->address[0] || o->join[0];
}

int train_options_given(const train_options *o, const char *flag) {
    const option_set view = train_view(o);
    return options_given(&view, flag);
}

int train_options_fixed(const train_options *o, const char *flag, const ds_config *file) {
    const option_set view = train_view(o);
    return options_fixed(&view, flag, file, file->given);
}

int train_options_set(train_options *o, const char *flag, const char *value) {
    option_set view = train_view(o);
    const int failed = options_set(&view, flag, value);
    train_short_samples(o);
    return failed;
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

void train_options_translate(const train_options *o, const char *sentence, char *out,
                             size_t bytes) {
    const option_set view = train_view(o);
    options_translate(&view, sentence, out, bytes);
}

int train_options_conflict(const train_options *o, const ds_config *file, char *sentence,
                           size_t bytes) {
    const option_set view = train_view(o);
    if (options_conflict(&view, file, file->given, o->ds_path, sentence, bytes)) return 1;
    if (file->folder[0] && options_given(&view, "-zfd")
        && strcmp(file->folder, o->offload_folder) != 0) {
        (void)snprintf(sentence, bytes,
                       "-zfd %.100s: %.100s gives nvme_path %.100s; leave one of the two out",
                       o->offload_folder, o->ds_path, file->folder);
        return 1;
    }
    if (!file->has_schedule || !(options_given(&view, "-k") || options_given(&view, "-q")))
        return 0;
    (void)snprintf(sentence, bytes, "-k and -q: %s has a scheduler; leave them out", o->ds_path);
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
