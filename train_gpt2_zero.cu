/* train_gpt2_zero.cu - trains GPT-2 with zero_plugin.h, on llm.c's command line.

     ./train_gpt2_zero                    nanoGPT's character run on tiny Shakespeare, one rank
     ./train_gpt2_zero -pn 2 -z 3         the same on two ranks, everything sharded
     ./train_gpt2_zero -z 0,1,2,3         compares the stages: speed, memory, traffic, weights
     ./train_gpt2_zero --help             every flag, with its default

   One source, two compilers: C11 (cc -x c) and CUDA C++ (nvcc). The loop is plain llm.c: windows of
   tokens, forward and backward of gpt2.h, AdamW. What ZeRO adds to it are the zero_ calls of
   take_step() and the hooks inside gpt2.h.

     1 options      the table of flags, parsing, help
     2 errors       one line per job, whoever finds it
     3 file         DeepSpeed's JSON in place of flags
     4 batches      which windows a step trains on, the same for any number of ranks
     5 reports      learning rate, outliers, main.log, progress
     6 device       CUDA's stream and memory; of the CPU there is nothing to say
     7 trainer      one stage: context, model, step, validation, sample, hash of the weights
     8 checkpoints  what is saved beside the plugin's state; going on from it
     9 training     the loop of one stage
    10 comparison   several stages that take turns
    11 main
*/
#ifndef _GNU_SOURCE
#define _GNU_SOURCE /* M_PI, glob, clock_gettime under -std=c11 */
#endif
#include <assert.h>
#include <errno.h>
#include <glob.h>
#include <math.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>
#ifdef _OPENMP
#include <omp.h>
#endif
#include <xxhash.h>

#include "adapters/checkpoint/checkpoint.h"
#include "adapters/checkpoint/gpt2_values.h"
#include "adapters/checkpoint/model_files.h"
#include "adapters/ds_config/ds_config.h"
#include "adapters/gpt2/gpt2.h"
#include "adapters/launch/launch.h"
#include "adapters/launch/memory.h"
#include "adapters/schedule/schedule.h"
#include "data/token_file.h"
#include "data/tokenizer.h"
#include "zero_plugin.h"

#define PROGRAM "train_gpt2_zero"
#ifndef MATMUL_ROUNDS
#define MATMUL_ROUNDS 3 /* of which the best counts: other programs may run as well. 0: a test */
#endif

enum {
    STAGES = 4,            /* ZeRO stages there are, and the most that one comparison takes */
    DEFAULT_WINDOWS = 12,  /* of a step, without -b and -d */
    COMPARE_RANKS = 2,     /* of a comparison, without -pn */
    MAX_ROUNDS = 1000,     /* of a comparison */
    HASH_CHUNK = 1 << 18,  /* elements read at once */
    SETTINGS = 6144,       /* bytes of all flags and their values as text */
    STREAM_WINDOWS = 1000, /* streams of gpt2_draw; below 1000 they are the model's */
    STREAM_SHUFFLE = 1001,
    STREAM_SAMPLE = 1002
};

/* ---- 1 options ----------------------------------------------------------------------------- */

enum { ORDER_FILE = 0, ORDER_SHUFFLED, ORDER_RANDOM }; /* -sh */
static const char *const order_words[] = {"in order", "shuffled every epoch", "at random offsets"};

typedef struct train_options {
    const char *train_path, *val_path, *tokenizer_path, *model, *log_dir, *csv_path;
    int stage[STAGES], stages;              /* -z; more than one: compare */
    const char *server, *folder;            /* -ps, -pf */
    int method, rank, per_node, as_threads; /* -pi, -pr, -pg, -pt */
    int ranks, node_size, threads;
    int batch, seq_len, steps;
    int64_t step_tokens; /* -d */
    int64_t seed;
    int order, overfit;
    int type, grads, master; /* -dt, -zg, -w */
    double scale, first_scale, least_scale;
    int scale_window, hysteresis;
    int optimizer, schedule, warmup;
    double lr, final_fraction, weight_decay, beta1, beta2, eps, clip;
    double skip_loss, skip_norm;                             /* -sl, -sg; 0: never */
    const char *ds_path, *ds_out;                            /* -ds, -dso */
    int consecutive_hysteresis, overflow_check, print_every; /* of a file; no flags */
    int val_every, val_batches, sample_every, sample_tokens;
    int save_every, keep_last, keep_every, save_aside, save_or_go_on, resume; /* -n..., -y */
    int recompute, tf32, any_order;
    int accumulation, prefetch, overlap, mapping;
    int64_t bucket, persistence;
    double timeout;
    int rounds;
    int print_batches;
    int help;
    unsigned char given[128]; /* by index in option_table: on the command line */
    char error[512];          /* what is wrong with the command line; "" nothing */
} train_options;

typedef enum option_type {
    OPTION_HEADING = 0, /* a line of --help */
    OPTION_INT,         /* int */
    OPTION_RANK,        /* int; differs between ranks */
    OPTION_LONG,        /* int64_t */
    OPTION_REAL,        /* double */
    OPTION_PATH,        /* const char *; may differ between ranks */
    OPTION_TEXT,        /* const char * */
    OPTION_WORD,        /* int: index into words */
    OPTION_STAGES,      /* stage, stages */
    OPTION_FIXED        /* not supported: accepts words alone, and stores nothing */
} option_type;

typedef struct option {
    const char *flag;
    option_type type;
    size_t field;
    const char *normal;  /* default, as it would be typed */
    const char *compare; /* default of a comparison; NULL: the same */
    double least, most;
    const char *words; /* separated by blanks */
    const char *help;
} option;

#define TYPE_WORDS      "f32 bf16 fp16" /* in the order of zero_type */
#define GRAD_WORDS      "auto f32 type"
#define OPTIMIZER_WORDS "adamw adam sgd nesterov lion" /* in that of zero_optimizer */
#define METHOD_WORDS    "mpi tcp fs"
#define AT(field)       offsetof(train_options, field)
#define BIG             9e15 /* whole numbers below are exact in a double */

static const option option_table[] = {
    {NULL, OPTION_HEADING, 0, NULL, NULL, 0, 0, NULL, "Data and model"},
    {"-i", OPTION_PATH, AT(train_path), "", NULL, 0, 0, NULL,
     "token file to train on; without it tiny Shakespeare, by characters for char: models, else in "
     "GPT-2's tokens"},
    {"-j", OPTION_PATH, AT(val_path), "", NULL, 0, 0, NULL, "token file to validate on"},
    {"-tf", OPTION_PATH, AT(tokenizer_path), "", NULL, 0, 0, NULL,
     "tokenizer file, to print samples"},
    {"-e", OPTION_TEXT, AT(model), "char:4x128x4", "char:6x384x6", 0, 0, NULL,
     "model: char:LxCxH (layers, channels, heads), d12, gpt2:d48, gpt3:c768, or a file with its "
     "weights: llm.c's .bin, or Hugging Face's .safetensors"},
    {"-o", OPTION_PATH, AT(log_dir), "", NULL, 0, 0, NULL,
     "folder for main.log and checkpoints; without it neither"},
    {NULL, OPTION_HEADING, 0, NULL, NULL, 0, 0, NULL, "Batches"},
    {"-b", OPTION_INT, AT(batch), "0", "8", 0, 1e6, NULL,
     "windows per rank and micro-step; 0: what -d asks for, without -d 12 divided by the ranks"},
    {"-t", OPTION_INT, AT(seq_len), "64", "256", 1, 1e6, NULL, "tokens of a window"},
    {"-d", OPTION_LONG, AT(step_tokens), "0", NULL, 0, BIG, NULL,
     "tokens of a step over all ranks and micro-steps; 0: one micro-step"},
    {"-sh", OPTION_INT, AT(order), "-1", NULL, -1, 2, NULL,
     "windows: 0 in the file's order, 1 shuffled every epoch, 2 at random offsets; -1: 1 with -i, "
     "else 2"},
    {"-a", OPTION_INT, AT(overfit), "0", NULL, 0, 1, NULL,
     "1: train on one batch of the validation data for ever"},
    {"-sd", OPTION_LONG, AT(seed), "42", NULL, 0, BIG, NULL,
     "seed of weights, windows and samples"},
    {NULL, OPTION_HEADING, 0, NULL, NULL, 0, 0, NULL, "DeepSpeed"},
    {"-ds", OPTION_PATH, AT(ds_path), "", NULL, 0, 0, NULL,
     "ds_config.json: its values in place of the flags' defaults; \"auto\" in it stands for the "
     "flag's; a flag that says otherwise is an error"},
    {"-dso", OPTION_PATH, AT(ds_out), "", NULL, 0, 0, NULL,
     "with -ds: file to write what it was resolved to"},
    {NULL, OPTION_HEADING, 0, NULL, NULL, 0, 0, NULL, "Types"},
    {"-dt", OPTION_WORD, AT(type), "f32", NULL, 0, 0, TYPE_WORDS,
     "parameters and activations are stored in"},
    {"-w", OPTION_INT, AT(master), "1", NULL, 0, 1, NULL,
     "1: 16-bit weights have a copy in f32, which is updated; 0 (bf16 alone): they have none, and "
     "updates are rounded stochastically"},
    {"-zg", OPTION_WORD, AT(grads), "auto", NULL, 0, 0, GRAD_WORDS,
     "gradients are stored and sent in f32 or in the type of -dt; auto: in f32 where micro-steps "
     "add up"},
    {"-ls", OPTION_REAL, AT(scale), "0", NULL, 0, 1e30, NULL,
     "a loss scale that never changes; 0: dynamic for fp16, 1 for other types"},
    {"-li", OPTION_REAL, AT(first_scale), "65536", NULL, 1e-30, 1e30, NULL,
     "first dynamic loss scale"},
    {"-lm", OPTION_REAL, AT(least_scale), "1", NULL, 1e-30, 1e30, NULL,
     "least dynamic loss scale; an overflow at it ends the run"},
    {"-lw", OPTION_INT, AT(scale_window), "1000", NULL, 1, 2e9, NULL,
     "steps without overflow that double the scale"},
    {"-lh", OPTION_INT, AT(hysteresis), "2", NULL, 1, 2e9, NULL,
     "overflows that halve the scale: from this one on"},
    {"-f", OPTION_INT, AT(tf32), "1", NULL, 0, 1, NULL,
     "1: CUDA's f32 products round what they multiply to TF32; the CPU has none"},
    {"-ao", OPTION_INT, AT(any_order), "0", NULL, 0, 1, NULL,
     "1: cuDNN adds attention's gradients in any order: faster, not the same bits each time"},
    {NULL, OPTION_HEADING, 0, NULL, NULL, 0, 0, NULL, "Optimizer"},
    {"-op", OPTION_WORD, AT(optimizer), "adamw", NULL, 0, 0, OPTIMIZER_WORDS, "update rule"},
    {"-x", OPTION_INT, AT(steps), "2000", "16", -1, 2e9, NULL,
     "steps; -1: one epoch; in a comparison timed steps per stage"},
    {"-k", OPTION_WORD, AT(schedule), "cosine", NULL, 0, 0, "cosine linear constant wsd",
     "schedule of the learning rate"},
    {"-l", OPTION_REAL, AT(lr), "1e-3", NULL, 0, 1e3, NULL, "learning rate"},
    {"-u", OPTION_INT, AT(warmup), "100", NULL, 0, 2e9, NULL, "steps of linear warm-up"},
    {"-q", OPTION_REAL, AT(final_fraction), "0.1", NULL, 0, 1, NULL,
     "learning rate at the end, as a fraction of -l"},
    {"-c", OPTION_REAL, AT(weight_decay), "0.1", NULL, 0, 1e3, NULL, "weight decay"},
    {"-b1", OPTION_REAL, AT(beta1), "0.9", NULL, 0, 0.9999999, NULL,
     "beta1; of sgd and nesterov the momentum"},
    {"-b2", OPTION_REAL, AT(beta2), "0.99", NULL, 0, 0.9999999, NULL, "beta2"},
    {"-ep", OPTION_REAL, AT(eps), "1e-8", NULL, 0, 1, NULL, "epsilon"},
    {"-cl", OPTION_REAL, AT(clip), "1", NULL, 0, 1e30, NULL,
     "norm to clip the gradient to; 0: no clipping"},
    {"-sl", OPTION_REAL, AT(skip_loss), "0", NULL, 0, 1e9, NULL,
     "skip a step whose loss lies more standard deviations above the last 128; 0: none"},
    {"-sg", OPTION_REAL, AT(skip_norm), "0", NULL, 0, 1e9, NULL, "the same by the gradient's norm"},
    {NULL, OPTION_HEADING, 0, NULL, NULL, 0, 0, NULL, "Validation and samples"},
    {"-v", OPTION_INT, AT(val_every), "250", NULL, -1, 2e9, NULL,
     "validate every so many steps, and at the end; 0: at the end only; -1: never"},
    {"-m", OPTION_INT, AT(val_batches), "0", NULL, -1, 2e9, NULL,
     "batches to validate on; 0 or -1: all of the file"},
    {"-s", OPTION_INT, AT(sample_every), "0", NULL, 0, 2e9, NULL,
     "print a sample every so many steps, and at the end; 0: at the end only"},
    {"-g", OPTION_INT, AT(sample_tokens), "300", NULL, 0, 1e6, NULL,
     "tokens of a sample; 0: no samples"},
    {NULL, OPTION_HEADING, 0, NULL, NULL, 0, 0, NULL, "Checkpoints"},
    {"-n", OPTION_INT, AT(save_every), "0", NULL, 0, 2e9, NULL,
     "save in the folder of -o every so many steps, at the end, and when SIGTERM or SIGUSR1 asks "
     "for it to stop; 0: never"},
    {"-nk", OPTION_INT, AT(keep_last), "0", NULL, 0, 2e9, NULL,
     "newest checkpoints that are kept; 0: all"},
    {"-nm", OPTION_INT, AT(keep_every), "0", NULL, 0, 2e9, NULL,
     "those of a multiple of so many steps are kept too; 0: none"},
    {"-na", OPTION_INT, AT(save_aside), "0", NULL, 0, 1, NULL,
     "1: save aside: training waits for a copy of the state alone, which takes as much memory"},
    {"-nf", OPTION_INT, AT(save_or_go_on), "0", NULL, 0, 1, NULL,
     "a save that fails: 0 ends the run, 1 is told, and training goes on"},
    {"-y", OPTION_INT, AT(resume), "0", NULL, 0, 2, NULL,
     "1: go on from the newest checkpoint in -o that is whole, on any number of ranks and at any "
     "stage; from the start if there is none. 2: end if the newest is damaged"},
    {NULL, OPTION_HEADING, 0, NULL, NULL, 0, 0, NULL, "Ranks"},
    {"-pn", OPTION_INT, AT(ranks), "0", NULL, 0, 65536, NULL,
     "ranks to start on this machine; 0: as mpirun, torchrun or srun say, else 1 (2 in a "
     "comparison)"},
    {"-pt", OPTION_INT, AT(as_threads), "0", NULL, 0, 1, NULL,
     "1: ranks of -pn are threads of one process; with CUDA so they are where GPUs are fewer"},
    {"-pi", OPTION_WORD, AT(method), "mpi", NULL, 0, 0, METHOD_WORDS,
     "how ranks find each other: mpi as mpirun, torchrun or srun say; tcp at -ps; fs through -pf; "
     "with those two -pn is the number of all ranks, and -pr this one's"},
    {"-ps", OPTION_PATH, AT(server), "", NULL, 0, 0, NULL, "tcp: name or address of rank 0's host"},
    {"-pf", OPTION_PATH, AT(folder), "/tmp", NULL, 0, 0, NULL, "fs: folder that all ranks see"},
    {"-pr", OPTION_RANK, AT(rank), "0", NULL, 0, 1e6, NULL, "tcp, fs: rank of this process"},
    {"-pg", OPTION_INT, AT(per_node), "0", NULL, 0, 4096, NULL,
     "tcp, fs: ranks per machine; 0: as host names tell"},
    {"-nt", OPTION_INT, AT(threads), "0", NULL, 0, 4096, NULL,
     "threads of a rank; 0: the processors of this machine divided by its ranks"},
    {"-ns", OPTION_INT, AT(node_size), "0", NULL, 0, 4096, NULL,
     "ranks per node, in sums; 0: as the machines are"},
    {NULL, OPTION_HEADING, 0, NULL, NULL, 0, 0, NULL, "ZeRO"},
    {"-z", OPTION_STAGES, AT(stage), "0", NULL, 0, 0, NULL,
     "stage 0, 1, 2 or 3: on top of each other, optimizer state, gradients and parameters are "
     "sharded. A list (0,1,2,3) compares stages in one run, and writes -csv"},
    {"-za", OPTION_WORD, AT(accumulation), "auto", NULL, 0, 0, "auto local sharded",
     "gradients of micro-steps add up in a whole copy (local) or in shards; auto: local at stages "
     "0 and 1, sharded at 2 and 3 and in a comparison"},
    {"-zb", OPTION_LONG, AT(bucket), "0", NULL, 0, BIG, NULL,
     "elements reduced together; 0: the largest unit"},
    {"-zp", OPTION_INT, AT(prefetch), "1", NULL, 0, 1000, NULL, "stage 3: units gathered ahead"},
    {"-zt", OPTION_LONG, AT(persistence), "-1", NULL, -1, BIG, NULL,
     "stage 3: units whose tensors have at most so many elements stay whole on every rank; -1: "
     "those of vectors only"},
    {"-zo", OPTION_INT, AT(overlap), "1", NULL, 0, 1, NULL,
     "1: communicate while computing; 0: in between"},
    {"-zm", OPTION_INT, AT(mapping), "1", NULL, 0, 1, NULL,
     "1: gather without a copy where ranks can see each other's memory"},
    {"-zw", OPTION_REAL, AT(timeout), "600", NULL, 0.001, 1e9, NULL,
     "seconds to wait for another rank"},
    {"-r", OPTION_INT, AT(recompute), "1", NULL, 0, 3, NULL,
     "computed again in backward, to save memory: 0 nothing, 1 GELU, 2 layer norms too, 3 whole "
     "blocks"},
    {NULL, OPTION_HEADING, 0, NULL, NULL, 0, 0, NULL, "Comparison of stages"},
    {"-rd", OPTION_INT, AT(rounds), "8", NULL, 1, MAX_ROUNDS, NULL,
     "rounds in which the stages take turns; divides -x"},
    {"-csv", OPTION_PATH, AT(csv_path), "build/compare.csv", NULL, 0, 0, NULL,
     "file for the comparison"},
    {NULL, OPTION_HEADING, 0, NULL, NULL, 0, 0, NULL, "Debugging"},
    {"-db", OPTION_INT, AT(print_batches), "0", NULL, 0, 1, NULL,
     "1: print a hash of each step's tokens"},
    {NULL, OPTION_HEADING, 0, NULL, NULL, 0, 0, NULL,
     "llm.c's flags that have no meaning here yet; only these values are accepted"},
    {"-ge", OPTION_FIXED, 0, NULL, NULL, 0, 0, "0 -1", "GELU fusion"},
    {"-h", OPTION_FIXED, 0, NULL, NULL, 0, 0, "0", "HellaSwag evaluation"},
    {"-lg", OPTION_FIXED, 0, NULL, NULL, 0, 0, "-1 0", "log of the GPU's state"},
};

enum { OPTIONS = (int)(sizeof option_table / sizeof option_table[0]) };
static_assert(OPTIONS <= (int)sizeof((train_options *)0)->given, "a mark for every flag");

/* The index of text among the blank-separated words; -1: it is none of them. */
static int find_word(const char *words, const char *text) {
    size_t length = strlen(text);
    int index = 0;
    for (const char *at = words; *at; index++) {
        size_t word = strcspn(at, " ");
        if (word == length && memcmp(at, text, length) == 0) return index;
        at += word + (at[word] == ' ');
    }
    return -1;
}

/* The word of this index; its length comes back. */
static int word_at(const char *words, int index, const char **word) {
    *word = words;
    for (; index > 0; index--) *word += strcspn(*word, " ") + 1;
    return (int)strcspn(*word, " ");
}

static void option_error(train_options *o, const char *format, ...) LAUNCH_PRINTF(2, 3);
static void option_error(train_options *o, const char *format, ...) {
    va_list values;
    if (o->error[0]) return; /* the first one counts */
    va_start(values, format);
    vsnprintf(o->error, sizeof o->error, format, values);
    va_end(values);
}

static void parse_number(train_options *o, const option *d, const char *text) {
    char *field = (char *)o + d->field, *end = NULL;
    double value = strtod(text, &end);
    int whole = d->type != OPTION_REAL;
    if (end == text || *end || !isfinite(value) || (whole && value != floor(value)))
        option_error(o, "%s: expected a %snumber, found '%s'", d->flag, whole ? "whole " : "",
                     text);
    else if (value < d->least || value > d->most)
        option_error(o, "%s: expected %.10g to %.10g, found %s", d->flag, d->least, d->most, text);
    else if (d->type == OPTION_INT || d->type == OPTION_RANK)
        *(int *)(void *)field = (int)value;
    else if (d->type == OPTION_LONG)
        *(int64_t *)(void *)field = (int64_t)value;
    else
        *(double *)(void *)field = value;
}

static void parse_stages(train_options *o, const char *text) {
    o->stages = 0;
    for (const char *at = text;; at += 2) {
        int ends = at[0] == 0 ? 0 : at[1] == 0;
        if (at[0] < '0' || at[0] > '3' || (!ends && at[1] != ',') || o->stages == STAGES) {
            option_error(o,
                         "-z: expected a stage, 0 to 3, or up to four with commas between, found "
                         "'%s'",
                         text);
            return;
        }
        o->stage[o->stages++] = at[0] - '0';
        if (ends) return;
    }
}

static void parse_value(train_options *o, const option *d, const char *text) {
    char *field = (char *)o + d->field;
    switch (d->type) {
    case OPTION_INT:
    case OPTION_RANK:
    case OPTION_LONG:
    case OPTION_REAL: parse_number(o, d, text); break;
    case OPTION_PATH:
    case OPTION_TEXT: *(const char **)(void *)field = text; break;
    case OPTION_STAGES: parse_stages(o, text); break;
    case OPTION_WORD:
        *(int *)(void *)field = find_word(d->words, text);
        if (find_word(d->words, text) < 0)
            option_error(o, "%s: expected one of: %s; found '%s'", d->flag, d->words, text);
        break;
    case OPTION_FIXED:
        if (find_word(d->words, text) < 0)
            option_error(o, "%s %s is not supported yet (%s); accepted: %s", d->flag, text, d->help,
                         d->words);
        break;
    case OPTION_HEADING: break;
    }
}

static const option *find_option(const char *flag) {
    for (int i = 0; i < OPTIONS; i++)
        if (option_table[i].flag != NULL && strcmp(option_table[i].flag, flag) == 0)
            return &option_table[i];
    return NULL;
}

/* A comparison has defaults of its own, so it must be known before the defaults are set. */
static int asks_for_comparison(int argc, char **argv) {
    int compares = 0;
    for (int i = 1; i + 1 < argc; i++)
        if (strcmp(argv[i], "-z") == 0) compares = strchr(argv[i + 1], ',') != NULL;
    return compares;
}

static void parse_options(train_options *o, int argc, char **argv) {
    int compares = asks_for_comparison(argc, argv);
    memset(o, 0, sizeof *o);
    o->overflow_check = o->print_every = 1;
    for (int i = 0; i < OPTIONS; i++) {
        const option *d = &option_table[i];
        const char *value = compares && d->compare != NULL ? d->compare : d->normal;
        if (value != NULL) parse_value(o, d, value);
    }
    for (int i = 1; i < argc; i += 2) {
        const option *d = find_option(argv[i]);
        if (launch_adds_argument(argv[i])) {
            i--;
            continue;
        }
        if (strcmp(argv[i], "--help") == 0) {
            o->help = 1;
            return;
        }
        if (d == NULL)
            option_error(o, "unknown flag '%s'; --help lists all", argv[i]);
        else if (i + 1 >= argc)
            option_error(o,
                         "%s: expected a value, found the end of the line; --help lists all flags",
                         argv[i]);
        else
            parse_value(o, d, argv[i + 1]);
        if (d != NULL) o->given[d - option_table] = 1;
    }
}

static void print_wrapped(const char *text, int indent) {
    const int width = 99;
    int column = indent;
    while (*text) {
        int word = (int)strcspn(text, " ");
        if (column > indent && column + 1 + word > width) {
            printf("\n%*s", indent, "");
            column = indent;
        }
        column += printf("%s%.*s", column > indent ? " " : "", word, text);
        text += word + (text[word] == ' ');
    }
    printf("\n");
}

static void print_option(const option *d) {
    char text[512], values[128] = "";
    if (d->type == OPTION_HEADING) {
        printf("\n%s\n", d->help);
        return;
    }
    if (d->normal != NULL && d->compare != NULL)
        snprintf(values, sizeof values, " (default %s; in a comparison %s)", d->normal, d->compare);
    else if (d->normal != NULL && d->normal[0])
        snprintf(values, sizeof values, " (default %s)", d->normal);
    snprintf(text, sizeof text, "%s%s%s%s", d->help, d->words != NULL ? ": " : "",
             d->words != NULL ? d->words : "", values);
    printf("  %-5s ", d->flag);
    print_wrapped(text, 8);
}

static int print_help(void) {
    printf("usage: ./" PROGRAM " [FLAG VALUE]...\n\n");
    print_wrapped("Trains GPT-2 on one or several ranks with ZeRO. Without a flag: nanoGPT's "
                  "character run on tiny Shakespeare. Every flag takes a value.",
                  0);
    for (int i = 0; i < OPTIONS; i++) print_option(&option_table[i]);
    printf("\nThis build starts ranks with -pn, by torchrun and srun%s.\n",
           launch_has_mpi() ? ", and by mpirun" : "");
    return 0;
}

/* What all ranks must have been started with, for launch_same. */
static void render_options(const train_options *o, char *text, size_t bytes) {
    size_t used = (size_t)snprintf(text, bytes, "-ds %s\n", o->ds_path[0] ? "FILE" : "none");
    for (int i = 0; i < OPTIONS && used < bytes; i++) {
        const option *d = &option_table[i];
        const char *field = (const char *)o + d->field;
        size_t left = bytes - used;
        int n = 0;
        const char *word = "";
        if (d->type == OPTION_INT)
            n = snprintf(text + used, left, "%s %d\n", d->flag, *(const int *)(const void *)field);
        if (d->type == OPTION_WORD) {
            const int chars = word_at(d->words, *(const int *)(const void *)field, &word);
            n = snprintf(text + used, left, "%s %.*s\n", d->flag, chars, word);
        }
        if (d->type == OPTION_LONG)
            n = snprintf(text + used, left, "%s %lld\n", d->flag,
                         (long long)*(const int64_t *)(const void *)field);
        if (d->type == OPTION_REAL)
            n = snprintf(text + used, left, "%s %.17g\n", d->flag,
                         *(const double *)(const void *)field);
        if (d->type == OPTION_TEXT)
            n = snprintf(text + used, left, "%s %s\n", d->flag,
                         *(const char *const *)(const void *)field);
        for (int s = 0; d->type == OPTION_STAGES && s < o->stages && used + (size_t)n < bytes; s++)
            n += snprintf(text + used + n, left - (size_t)n, "%s%d%s", s ? "," : "-z ", o->stage[s],
                          s + 1 < o->stages ? "" : "\n");
        used += (size_t)n;
    }
}

/* ---- 2 errors ------------------------------------------------------------------------------ */

/* How a step's windows are dealt: global row (micro * ranks + rank) * rows + b. */
typedef struct batch_shape {
    int rows;    /* B: windows of a rank and micro-step */
    int seq_len; /* T: tokens of a window */
    int micro_steps;
    int64_t windows; /* of a step, over ranks and micro-steps */
    int64_t tokens;  /* of a step: windows * T */
} batch_shape;

/* What all stages of a run share. */
typedef struct job {
    const train_options *opt;
    launch *l;
    int steps;   /* of the run; in a comparison, of each stage */
    int threads; /* of this rank */
    gpt2_config model;
    batch_shape batch;
    token_file train, val;
    tokenizer words;
    ds_config ds;                 /* of -ds; all 0 without */
    uint64_t ds_hash;             /* of what it was resolved to */
    int has_words;                /* the tokenizer fits the model */
    int order;                    /* ORDER_... */
    int64_t windows, epoch_steps; /* of the training file, in order or shuffled */
    uint32_t *shuffled;           /* [windows] of epoch */
    int64_t epoch;                /* -1: none yet */
    int *inputs, *targets;        /* [rows * T] */
    int *sample;                  /* [1 + sample_tokens] */
    float *logits;                /* [V] */
    char data[256];               /* the files' tokens and hashes, "NAME VALUE" a line */
    char settings[SETTINGS];      /* the same, with all flags: saved along in checkpoints */
    double matmul_rate;           /* operations per second of all ranks together, measured */
    double peak_rate;             /* the same as the GPUs' maker states it; 0: not known */
    void *stream;                 /* CUDA: what this rank computes on */
    char device[256];             /* its name, for the log */
    int sharers;                  /* ranks on the same device, this one included */
    size_t free_bytes;            /* CUDA: of the device, before anything was built */
    FILE *log;                    /* rank 0, with -o */
    int terminal;                 /* rank 0 writes to one */
} job;

/* For what every rank sees alike, or checks on its own before anything is built. COLLECTIVE. */
static void require(job *j, int ok, const char *format, ...) LAUNCH_PRINTF(3, 4);
static void require(job *j, int ok, const char *format, ...) {
    char sentence[LAUNCH_SENTENCE];
    va_list values;
    va_start(values, format);
    vsnprintf(sentence, sizeof sentence, format, values);
    va_end(values);
    launch_agree(j->l, ok, sentence);
}

/* Rank 0's output. */
static void say(const job *j, const char *format, ...) LAUNCH_PRINTF(2, 3);
static void say(const job *j, const char *format, ...) {
    va_list values;
    if (j->l->rank != 0) return;
    va_start(values, format);
    vprintf(format, values);
    va_end(values);
    fflush(stdout);
}

/* Errors come back as results, and are printed once; warnings are the rank's own; what the plugin
   chose by itself, rank 0 tells. */
static void on_log(void *user, zero_log_level level, const char *sentence) {
    const job *j = (const job *)user;
    if (level == ZERO_LOG_INFO) say(j, "%s\n", sentence);
    if (level == ZERO_LOG_WARNING)
        fprintf(stderr, PROGRAM ": warning of rank %d: %s\n", j->l->rank, sentence);
}

static double clock_s(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

static void *get_memory(job *j, size_t count, size_t size) {
    void *memory = calloc(count ? count : 1, size);
    require(j, memory != NULL, "rank %d: out of memory for %zu elements of %zu bytes", j->l->rank,
            count, size);
    return memory;
}

/* ---- 3 file -------------------------------------------------------------------------------- */

static void note_key(void *user, const char *sentence) { say((const job *)user, "%s\n", sentence); }

static int is_given(const train_options *o, const char *flag) {
    return o->given[find_option(flag) - option_table];
}

/* A flag that was typed must not say otherwise than the file. `words` NULL: numbers. */
static void require_same(job *j, const char *flag, double typed, double found, const char *words,
                         const char *key) {
    char a[32], b[32];
    const char *word;
    snprintf(a, sizeof a, "%.7g", typed);
    snprintf(b, sizeof b, "%.7g", found);
    for (int i = 0; i < 2 && words != NULL; i++) {
        const int length = word_at(words, (int)(i ? found : typed), &word);
        snprintf(i ? b : a, sizeof a, "%.*s", length, word);
    }
    require(j, !is_given(j->opt, flag) || typed == found,
            "%s %s, but %s gives %s %s: leave one of the two out", flag, a, j->opt->ds_path, key,
            b);
}

/* What the flags say, for "auto". A batch that no flag gives: the default's windows. */
static ds_auto make_autos(const job *j, const zero_hyper *hyper) {
    const train_options *o = j->opt;
    ds_auto a;
    memset(&a, 0, sizeof a);
    a.ranks = j->l->nranks;
    a.micro_batch = o->batch;
    a.train_batch = o->step_tokens / o->seq_len;
    if (a.train_batch == 0 && a.micro_batch == 0) a.train_batch = DEFAULT_WINDOWS;
    if (o->step_tokens > 0 && o->batch > 0)
        a.accumulation = (int)(a.train_batch / a.micro_batch / a.ranks);
    a.type = (zero_type)o->type;
    a.hyper = hyper;
    a.optimizer = (zero_optimizer)o->optimizer;
    a.warmup_steps = o->warmup;
    a.total_steps = o->steps > 0 ? o->steps : 0;
    a.hidden = j->model.channels;
    return a;
}

/* Flags that the file answers differently. */
static void require_no_conflict(job *j, const ds_config *ds) {
    const train_options *o = j->opt;
    const zero_hyper *h = &ds->hyper;
    const zero_scaler *s = &ds->zero.scaler;
    const unsigned given = ds->given;
    const struct {
        int in_file;
        const char *flag;
        double typed, found;
        const char *words, *key;
    } pairs[] = {
        {(given & DS_GIVEN_STAGE) != 0 && o->stages == 1, "-z", (double)o->stage[0],
         (double)ds->zero.stage, NULL, "zero_optimization.stage"},
        {(given & DS_GIVEN_TYPE) != 0, "-dt", (double)o->type, (double)ds->zero.type, TYPE_WORDS,
         "fp16.enabled and bf16.enabled:"},
        {(given & DS_GIVEN_LR) != 0, "-l", (float)o->lr, h->lr, NULL, "optimizer.params.lr"},
        {(given & DS_GIVEN_BETAS) != 0, "-b1", (float)o->beta1, h->beta1, NULL,
         "optimizer.params: beta1 or momentum"},
        {(given & DS_GIVEN_BETAS) != 0, "-b2", (float)o->beta2, h->beta2, NULL,
         "optimizer.params: beta2"},
        {(given & DS_GIVEN_EPS) != 0, "-ep", (float)o->eps, h->eps, NULL, "optimizer.params.eps"},
        {(given & DS_GIVEN_DECAY) != 0, "-c", (float)o->weight_decay, h->weight_decay, NULL,
         "optimizer.params.weight_decay"},
        {(given & DS_GIVEN_CLIPPING) != 0, "-cl", (float)o->clip, h->max_norm, NULL,
         "gradient_clipping"},
        {(given & DS_GIVEN_OPTIMIZER) != 0, "-op", (double)o->optimizer, (double)ds->zero.optimizer,
         OPTIMIZER_WORDS, "optimizer.type"},
        {o->batch > 0, "-b", (double)o->batch, (double)ds->micro_batch, NULL,
         "train_micro_batch_size_per_gpu"},
        {o->step_tokens > 0, "-d", (double)o->step_tokens, (double)ds->train_batch * o->seq_len,
         NULL, "train_batch_size, times -t tokens:"},
        {ds->zero.no_master, "-w", (double)o->master, 0, NULL, "bf16_master_weights_and_grads: -w"},
        {ds->zero.grads != ZERO_GRAD_AUTO, "-zg", (double)o->grads, (double)ds->zero.grads,
         GRAD_WORDS, "the gradients' type:"},
        {s->fixed != 0, "-ls", (float)o->scale, s->fixed, NULL, "fp16.loss_scale"},
        {s->initial != 0, "-li", (float)o->first_scale, s->initial, NULL,
         "fp16.initial_scale_power: 2 to it is"},
        {s->minimum != 0, "-lm", (float)o->least_scale, s->minimum, NULL, "fp16.min_loss_scale"},
        {s->window != 0, "-lw", (double)o->scale_window, (double)s->window, NULL,
         "fp16.loss_scale_window"},
        {s->hysteresis != 0, "-lh", (double)o->hysteresis, (double)s->hysteresis, NULL,
         "fp16.hysteresis"},
        {(given & DS_GIVEN_OVERLAP) != 0, "-zo", (double)o->overlap, (double)!ds->zero.no_overlap,
         NULL, "zero_optimization.overlap_comm"},
        {(given & DS_GIVEN_PERSISTENCE) != 0, "-zt", (double)o->persistence,
         ds->zero.persistence_numel > 0 ? (double)ds->zero.persistence_numel : 0, NULL,
         "zero_optimization.stage3_param_persistence_threshold"}};
    for (size_t i = 0; i < sizeof pairs / sizeof *pairs; i++)
        if (pairs[i].in_file)
            require_same(j, pairs[i].flag, pairs[i].typed, pairs[i].found, pairs[i].words,
                         pairs[i].key);
    require(j, !ds->has_schedule || (!is_given(o, "-k") && !is_given(o, "-q")),
            "%s has a scheduler: leave out -k and -q", o->ds_path);
    if (o->stages > 1 && given & DS_GIVEN_STAGE)
        say(j, "%s: zero_optimization.stage has no effect: -z compares stages\n", o->ds_path);
}

/* The file's values, where a flag has not said the same. */
static void take_file(train_options *o, const ds_config *ds) {
    const zero_scaler *s = &ds->zero.scaler;
    const zero_hyper *h = &ds->hyper;
    if (o->stages == 1 && ds->given & DS_GIVEN_STAGE) o->stage[0] = ds->zero.stage;
    if (ds->given & DS_GIVEN_TYPE) o->type = (int)ds->zero.type;
    if (ds->zero.grads != ZERO_GRAD_AUTO) o->grads = (int)ds->zero.grads;
    if (ds->zero.no_master) o->master = 0;
    if (s->fixed != 0) o->scale = (double)s->fixed;
    if (s->initial != 0) o->first_scale = (double)s->initial;
    if (s->minimum != 0) o->least_scale = (double)s->minimum;
    if (s->window != 0) o->scale_window = s->window;
    if (s->hysteresis != 0) o->hysteresis = s->hysteresis;
    o->consecutive_hysteresis = s->consecutive_hysteresis;
    o->overflow_check = !ds->zero.no_overflow_check;
    o->optimizer = (int)ds->zero.optimizer;
    o->lr = (double)h->lr;
    o->beta1 = (double)h->beta1;
    o->beta2 = (double)h->beta2;
    o->eps = (double)h->eps;
    o->weight_decay = (double)h->weight_decay;
    if (!is_given(o, "-cl") || ds->given & DS_GIVEN_CLIPPING) o->clip = (double)h->max_norm;
    o->batch = ds->micro_batch;
    o->step_tokens = ds->train_batch * o->seq_len;
    if (ds->given & DS_GIVEN_OVERLAP) o->overlap = !ds->zero.no_overlap;
    if (ds->given & DS_GIVEN_PERSISTENCE)
        o->persistence = ds->zero.persistence_numel > 0 ? ds->zero.persistence_numel : 0;
    if (!is_given(o, "-k") && !is_given(o, "-u")) { /* DeepSpeed without a scheduler: no warm-up */
        o->schedule = SCHEDULE_CONSTANT;
        o->warmup = 0;
    }
    if (ds->steps_per_print > 0) o->print_every = ds->steps_per_print;
}

static void write_resolved(job *j, const char *text) {
    const char *path = j->opt->ds_out;
    FILE *file = path[0] && j->l->rank == 0 ? fopen(path, "w") : NULL;
    int ok = file != NULL && fprintf(file, "%s\n", text) > 0;
    ok = file != NULL && fclose(file) == 0 && ok;
    require(j, !path[0] || j->l->rank != 0 || ok, "-dso: %s cannot be written: %s", path,
            strerror(errno));
}

/* -ds. The schedule, if there is one, goes to j->ds. */
static void read_file(job *j, train_options *o) {
    char sentence[512], *text;
    const zero_hyper hyper = {(float)o->lr,  (float)o->beta1,        (float)o->beta2,
                              (float)o->eps, (float)o->weight_decay, (float)o->clip};
    const ds_auto autos = make_autos(j, &hyper);
    const ds_notes notes = {note_key, j};
    require(j, o->ds_path[0] || !o->ds_out[0], "-dso %s: there is no -ds to resolve", o->ds_out);
    if (!o->ds_path[0]) return;
    const int failed =
        ds_config_load(o->ds_path, &autos, &j->ds, &notes, sentence, sizeof sentence);
    require(j, !failed, "-ds: %s", sentence);
    text = ds_config_print(&j->ds);
    require(j, text != NULL, "rank %d: out of memory for %s", j->l->rank, o->ds_path);
    launch_same(j->l, text);
    j->ds_hash = XXH64(text, strlen(text), 0);
    require_no_conflict(j, &j->ds);
    take_file(o, &j->ds);
    write_resolved(j, text);
    free(text);
}

/* ---- 4 batches ----------------------------------------------------------------------------- */

/* -b, -d and -t, with the number of ranks: any two of rows, micro-steps and windows give the third.
 */
static void resolve_batch(job *j) {
    const train_options *o = j->opt;
    batch_shape *s = &j->batch;
    int64_t ranks = j->l->nranks, T = o->seq_len;
    char rows_text[64] = "";
    if (o->batch > 0) snprintf(rows_text, sizeof rows_text, " with -b %d", o->batch);
    s->seq_len = o->seq_len;
    require(j, o->step_tokens % T == 0,
            "-d %lld: the tokens of a step do not divide into windows of -t %lld",
            (long long)o->step_tokens, (long long)T);
    s->windows = o->step_tokens > 0 ? o->step_tokens / T
                 : o->batch > 0     ? (int64_t)o->batch * ranks
                                    : (int64_t)DEFAULT_WINDOWS;
    int64_t rows = o->batch > 0 ? o->batch : s->windows / ranks;
    int64_t micro = rows > 0 ? s->windows / (rows * ranks) : 0;
    require(j, micro * rows * ranks == s->windows && micro > 0 && micro <= INT32_MAX,
            "the batch does not divide: a step of %lld windows (-t %lld tokens each) over %lld "
            "rank%s%s; choose -b (windows per rank) or -d (tokens per step) so that it does",
            (long long)s->windows, (long long)T, (long long)ranks, ranks > 1 ? "s" : "", rows_text);
    require(j, rows <= INT32_MAX / T, "-b %lld with -t %lld: more tokens than a rank can count",
            (long long)rows, (long long)T);
    s->rows = (int)rows;
    s->micro_steps = (int)micro;
    s->tokens = s->windows * T;
}

/* The one file that a pattern names; llm.c's flags take patterns. */
static void find_file(job *j, const char *flag, const char *pattern, char *path, size_t bytes) {
    glob_t found;
    int count = 1, code = glob(pattern, GLOB_NOCHECK, NULL, &found);
    if (code == 0) count = (int)found.gl_pathc;
    snprintf(path, bytes, "%s", code == 0 && count == 1 ? found.gl_pathv[0] : pattern);
    if (code == 0) globfree(&found);
    require(j, count == 1, "%s %s: expected one file, found %d: more are not supported yet", flag,
            pattern, count);
}

/* Opens a token file on every rank; without a path, tiny Shakespeare's. */
static void open_tokens(job *j, const char *flag, const char *pattern, const char *split,
                        token_file *file) {
    char path[1024], error[512];
    int given = pattern[0] != 0;
    if (given)
        find_file(j, flag, pattern, path, sizeof path);
    else
        snprintf(path, sizeof path, "build/data/tiny_%s_%s.bin",
                 strncmp(j->opt->model, "char:", 5) == 0 ? "char" : "gpt2", split);
    data_result result =
        token_file_open(file, path, (uint32_t)j->model.vocab_size, error, sizeof error);
    require(j, result == DATA_OK, "%s%s", error,
            result == DATA_SYSTEM && !given
                ? "; start in the repository's folder, after `make data`, or give -i and -j"
                : "");
    require(j, file->count > (size_t)j->batch.seq_len,
            "%s: a window of -t %d needs %d tokens, found %zu", path, j->batch.seq_len,
            j->batch.seq_len + 1, file->count);
}

/* A tokenizer that was asked for must be there; the one beside the default data may be missing
   where other data was given: then samples are printed as numbers, as llm.c does. */
static void open_tokenizer(job *j) {
    char path[1024], error[512];
    const train_options *o = j->opt;
    int given = o->tokenizer_path[0] != 0;
    if ((o->sample_tokens == 0 && !given) || o->stages > 1) return;
    if (given)
        snprintf(path, sizeof path, "%s", o->tokenizer_path);
    else
        snprintf(path, sizeof path, "build/data/tiny_%s_tokenizer.bin",
                 strncmp(o->model, "char:", 5) == 0 ? "char" : "gpt2");
    data_result result = tokenizer_open(&j->words, path, error, sizeof error);
    require(j, result == DATA_OK || (!given && o->train_path[0]), "%s%s", error,
            given ? "" : "; run: make data");
    if (result != DATA_OK) return;
    j->has_words = j->words.count <= (uint32_t)j->model.vocab_size;
    require(j, j->has_words || !given, "%s: expected at most %d tokens, found %u", path,
            j->model.vocab_size, (unsigned)j->words.count);
}

static void open_data(job *j) {
    const train_options *o = j->opt;
    const int overfits = o->overfit && o->val_path[0];
    if (o->overfit && !overfits)
        open_tokens(j, "-j", o->val_path, "val", &j->train);
    else
        open_tokens(j, overfits ? "-j" : "-i", overfits ? o->val_path : o->train_path, "train",
                    &j->train);
    open_tokens(j, "-j", o->val_path, "val", &j->val);
    open_tokenizer(j);
    j->order = o->order >= 0 ? o->order : o->train_path[0] ? ORDER_SHUFFLED : ORDER_RANDOM;
    j->windows = (int64_t)((j->train.count - 1) / (size_t)j->batch.seq_len);
    j->epoch_steps = j->windows / j->batch.windows;
    j->epoch = -1;
    require(j, j->epoch_steps > 0 || (j->order == ORDER_RANDOM && o->steps >= 0),
            "a step needs %lld windows of -t %d tokens, and the training data has %lld",
            (long long)j->batch.windows, j->batch.seq_len, (long long)j->windows);
    require(j, j->order != ORDER_SHUFFLED || j->windows <= (int64_t)UINT32_MAX,
            "the training data has %lld windows, more than can be shuffled", (long long)j->windows);
    j->shuffled = (uint32_t *)get_memory(j, j->order == ORDER_SHUFFLED ? (size_t)j->windows : 1,
                                         sizeof *j->shuffled);
    j->steps = o->steps >= 0 ? o->steps : (int)(j->epoch_steps < INT32_MAX ? j->epoch_steps : 0);
}

static void close_data(job *j) {
    token_file_close(&j->train);
    token_file_close(&j->val);
    tokenizer_close(&j->words);
    free(j->shuffled);
    free(j->inputs);
    free(j->targets);
    free(j->sample);
    free(j->logits);
}

/* Fisher and Yates's shuffle, from the seed and the number of the epoch alone. */
static void shuffle_windows(job *j, int64_t epoch) {
    uint64_t base = (uint64_t)epoch * (uint64_t)j->windows;
    for (int64_t i = 0; i < j->windows; i++) j->shuffled[i] = (uint32_t)i;
    for (int64_t i = j->windows - 1; i > 0; i--) {
        uint64_t draw = gpt2_draw((uint64_t)j->opt->seed, STREAM_SHUFFLE, base + (uint64_t)i);
        int64_t k = (int64_t)(draw % (uint64_t)(i + 1));
        uint32_t kept = j->shuffled[i];
        j->shuffled[i] = j->shuffled[k];
        j->shuffled[k] = kept;
    }
    j->epoch = epoch;
}

/* Where the window of a global row starts in the training file. Depends on the step's size, and not
   on how many ranks share it. Windows that do not fill a step at the end of an epoch are left out.
 */
static size_t window_start(job *j, int64_t step, int64_t row) {
    const batch_shape *s = &j->batch;
    if (j->opt->overfit) step = 0;
    if (j->order == ORDER_RANDOM) {
        uint64_t number = (uint64_t)step * (uint64_t)s->windows + (uint64_t)row;
        return (size_t)(gpt2_draw((uint64_t)j->opt->seed, STREAM_WINDOWS, number)
                        % (j->train.count - (size_t)s->seq_len));
    }
    int64_t epoch = step / j->epoch_steps;
    int64_t window = step % j->epoch_steps * s->windows + row;
    if (j->order == ORDER_SHUFFLED) {
        if (epoch != j->epoch) shuffle_windows(j, epoch);
        window = (int64_t)j->shuffled[window];
    }
    return (size_t)window * (size_t)s->seq_len;
}

/* Row b of inputs and targets: the window at `start`, and the same one token later. */
static void copy_window(job *j, const token_file *file, size_t start, int b) {
    size_t T = (size_t)j->batch.seq_len;
    int *x = j->inputs + (size_t)b * T, *y = j->targets + (size_t)b * T;
    for (size_t t = 0; t < T; t++) {
        x[t] = (int)file->tokens[start + t];
        y[t] = (int)file->tokens[start + t + 1];
    }
}

static void load_batch(job *j, int64_t step, int micro) {
    const batch_shape *s = &j->batch;
    int64_t first = ((int64_t)micro * j->l->nranks + j->l->rank) * s->rows;
    for (int b = 0; b < s->rows; b++)
        copy_window(j, &j->train, window_start(j, step, first + b), b);
}

/* -db: a hash of all windows of a step, whoever trains on them. */
static uint64_t hash_batch(job *j, int64_t step) {
    XXH64_hash_t hash = 0;
    for (int64_t row = 0; row < j->batch.windows; row++)
        hash = XXH64(j->train.tokens + window_start(j, step, row),
                     ((size_t)j->batch.seq_len + 1) * sizeof *j->train.tokens, hash);
    return hash;
}

/* ---- 5 reports ----------------------------------------------------------------------------- */

/* What -k, -l, -u and -q say. */
static void make_schedule(job *j, schedule *out) {
    const train_options *o = j->opt;
    char sentence[256];
    if (j->ds.has_schedule) {
        schedule_value v;
        *out = j->ds.lr_schedule;
        for (int step = 0; step < j->steps; step++) {
            schedule_at(out, step, &v);
            require(j, v.beta1 >= 0 && v.beta1 < 1,
                    "%s: %s gives beta1 %g in step %d, expected 0 to 1", o->ds_path,
                    schedule_name(out->kind), v.beta1, step + 1);
        }
        return;
    }
    schedule_defaults(out, (schedule_kind)o->schedule);
    out->lr = o->lr;
    out->beta1 = o->beta1;
    out->beta2 = o->beta2;
    out->warmup_steps = o->warmup;
    out->total_steps = j->steps > 0 ? j->steps : 1;
    out->final_fraction = o->final_fraction;
    require(j, schedule_check(out, sentence, sizeof sentence) == 0, "-k %s: %s",
            schedule_name(out->kind), sentence);
}

/* How unusual a value is among the last 128, in standard deviations. */
enum { OUTLIER_WINDOW = 128 };
typedef struct outliers {
    double values[OUTLIER_WINDOW];
    int64_t seen;
} outliers;

static double outlier_score(outliers *w, double value) {
    double mean = 0, variance = 0;
    if (!isfinite(value)) return NAN;
    w->values[w->seen++ % OUTLIER_WINDOW] = value;
    if (w->seen <= OUTLIER_WINDOW) return NAN; /* too few to tell */
    for (int i = 0; i < OUTLIER_WINDOW; i++) mean += w->values[i] / OUTLIER_WINDOW;
    for (int i = 0; i < OUTLIER_WINDOW; i++)
        variance += (w->values[i] - mean) * (w->values[i] - mean) / OUTLIER_WINDOW;
    return variance > 0 ? (value - mean) / sqrt(variance) : 0;
}

/* Where the first line of a later step starts, or the first one that is not whole: a run that was
   killed went on after its last checkpoint. */
static long log_end(FILE *log, int64_t step) {
    char line[256];
    long end = 0;
    long long found;
    while (fgets(line, sizeof line, log) != NULL && strchr(line, '\n') != NULL) {
        if (sscanf(line, "s:%lld ", &found) == 1 && found >= step) break;
        end = ftell(log);
    }
    return end;
}

/* A new log; or, of one that is there, the lines of the steps before `step`, which others follow.
 */
static FILE *open_log_at(const char *path, int64_t step) {
    FILE *log = step > 0 ? fopen(path, "r+") : NULL;
    if (log == NULL && step > 0 && errno != ENOENT) return NULL;
    if (log == NULL) return fopen(path, "w");
    const long end = log_end(log, step);
    if (fseek(log, end, SEEK_SET) == 0 && ftruncate(fileno(log), end) == 0) return log;
    fclose(log);
    return NULL;
}

static void open_log(job *j, int64_t step) {
    char path[1024];
    const char *folder = j->opt->log_dir;
    if (!folder[0]) return;
    snprintf(path, sizeof path, "%s/main.log", folder);
    if (j->l->rank == 0) {
        mkdir(folder, 0777); /* fopen tells if it is not there */
        j->log = open_log_at(path, step);
    }
    require(j, j->l->rank != 0 || j->log != NULL, "-o: %s cannot be written: %s", path,
            strerror(errno));
}

static void log_line(job *j, const char *format, ...) LAUNCH_PRINTF(2, 3);
static void log_line(job *j, const char *format, ...) {
    va_list values;
    if (j->log == NULL) return;
    va_start(values, format);
    vfprintf(j->log, format, values);
    va_end(values);
    fflush(j->log);
}

/* The bottom line of a terminal; `say` writes over it after clear_progress. */
static void clear_progress(const job *j) {
    if (j->terminal) say(j, "\r\033[K");
}

static void show_progress(const job *j, double done, double seconds) {
    int left = done > 0 ? (int)(seconds / done * (1 - done) + 0.5) : 0;
    if (!j->terminal) return;
    say(j, "%3.0f%% done", 100 * done);
    if (done > 0) say(j, " | %d min %02d s left", left / 60, left % 60);
}

static void table_line(const job *j) {
    say(j, "+----------------------+------------------------------------------------------+\n");
}

static void table_row(const job *j, const char *name, const char *format, ...) LAUNCH_PRINTF(3, 4);
static void table_row(const job *j, const char *name, const char *format, ...) {
    char text[256];
    va_list values;
    va_start(values, format);
    vsnprintf(text, sizeof text, format, values);
    va_end(values);
    say(j, "| %-20s | %-52s |\n", name, text);
}

/* ---- 6 device ------------------------------------------------------------------------------ */

#ifdef __CUDACC__

static size_t free_device_bytes(void) {
    size_t available = 0, total = 0;
    return cudaMemGetInfo(&available, &total) == cudaSuccess ? available : 0;
}

/* The stream that model and plugin share; not the default one, which others synchronise with. The
   launcher has chosen the device. */
static void open_device(job *j) {
    struct cudaDeviceProp card;
    cudaStream_t stream = NULL;
    int device = 0, devices = 0, version = 0;
    memset(&card, 0, sizeof card);
    cudaError_t code = cudaGetDevice(&device);
    if (code == cudaSuccess) code = cudaGetDeviceCount(&devices);
    if (code == cudaSuccess) code = cudaDriverGetVersion(&version);
    if (code == cudaSuccess) code = cudaGetDeviceProperties(&card, device);
    if (code == cudaSuccess) code = cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking);
    require(j, code == cudaSuccess, "rank %d: no CUDA device can be used: %s", j->l->rank,
            cudaGetErrorString(code));
    j->stream = stream;
    j->sharers = (j->l->local_ranks + devices - 1) / devices;
    j->free_bytes = free_device_bytes();
    snprintf(j->device, sizeof j->device, "%.100s, %.0f GiB, CUDA %d.%d of the driver", card.name,
             (double)card.totalGlobalMem / (1024.0 * 1024 * 1024), version / 1000,
             version / 10 % 100);
}

static void close_device(job *j) { cudaStreamDestroy((cudaStream_t)j->stream); }

/* Until all that was enqueued is done: a clock is about to be read. */
static void wait_for_device(job *j) {
    const cudaError_t code = cudaStreamSynchronize((cudaStream_t)j->stream);
    if (code != cudaSuccess)
        launch_fail(j->l, "rank %d: CUDA: %s", j->l->rank, cudaGetErrorString(code));
}

/* What was taken of the device since it was opened, by all ranks on it. */
static void print_device_memory(const job *j, uint64_t planned) {
    const double gib = 1024.0 * 1024 * 1024;
    const size_t left = free_device_bytes();
    const double taken = left < j->free_bytes ? (double)(j->free_bytes - left) : 0;
    say(j, "device memory: %.3f GiB taken, %.3f GiB planned\n", taken / gib,
        (double)planned * j->sharers / gib);
}

/* Ends all ranks if those of a device together need more than it has. */
static void check_device_memory(job *j, uint64_t need) {
    size_t available = 0, total = 0;
    const cudaError_t code = cudaMemGetInfo(&available, &total);
    const uint64_t wanted = need * (uint64_t)j->sharers;
    require(j, code == cudaSuccess, "rank %d: the device's memory cannot be asked for: %s",
            j->l->rank, cudaGetErrorString(code));
    require(j, wanted <= available,
            "rank %d: the device has %llu bytes of memory free of %llu, and the %d rank%s on it "
            "need %llu: choose a higher -z, a smaller -b, or -r 3",
            j->l->rank, (unsigned long long)available, (unsigned long long)total, j->sharers,
            j->sharers > 1 ? "s" : "", (unsigned long long)wanted);
}

#else

static void open_device(job *j) {
    j->sharers = j->l->local_ranks;
    snprintf(j->device, sizeof j->device, "CPU");
}
static void close_device(job *j) { (void)j; }
static void wait_for_device(job *j) { (void)j; }
static void print_device_memory(const job *j, uint64_t planned) {
    (void)j;
    (void)planned;
}

#endif

/* ---- 7 trainer ----------------------------------------------------------------------------- */

/* One stage. */
typedef struct trainer {
    job *j;
    int stage;
    zero_ctx *z;
    gpt2_model *model;
    zero_tensor_desc table[GPT2_TENSORS];
    zero_plan plan;
    schedule lr;
    outliers losses, norms;
    int step;           /* steps made, skipped ones too */
    int64_t data_step;  /* the next one's data; of a run that goes on with other batches not step */
    int64_t updates;    /* that the optimizer made: the schedule's clock */
    int unsettled;      /* the last step's report was not asked for yet */
    checkpoint *saves;  /* -n, -y; else NULL */
    size_t saves_bytes; /* of host memory for them */
    int64_t saved;      /* step of the last save or load; -1: none */
    int64_t durable;    /* of the last that was said to be on the disk, or loaded */
    int stop;           /* a signal has asked for it, on any rank */
} trainer;

static void check(const trainer *t, zero_result result) {
    if (result == ZERO_OK) return;
    launch_fail_result(t->j->l, result, t->z != NULL ? zero_last_error(t->z) : "");
}

static void check_model(const trainer *t, zero_result result) {
    if (result != ZERO_OK) launch_fail_result(t->j->l, result, gpt2_last_error(t->model));
}

/* Units gathered ahead. A file says it in elements; a block has 12 C^2. */
static int prefetch_units(const job *j) {
    const int64_t block = 12 * (int64_t)j->model.channels * j->model.channels;
    const int64_t units = j->ds.prefetch_numel / block;
    if (!(j->ds.given & DS_GIVEN_PREFETCH) || is_given(j->opt, "-zp")) return j->opt->prefetch;
    return units < 64 ? (int)units : 64;
}

static zero_config make_config(const job *j, int stage) {
    const train_options *o = j->opt;
    zero_config c;
    memset(&c, 0, sizeof c);
    c.stage = stage;
    c.micro_steps = j->batch.micro_steps;
    c.accumulation = (zero_accumulation)o->accumulation;
    /* The two ways to accumulate round differently: stages can be compared at one of them. */
    if (o->stages > 1 && c.micro_steps > 1 && c.accumulation == ZERO_ACCUMULATE_AUTO)
        c.accumulation = ZERO_ACCUMULATE_SHARDED;
    const int prefetch = prefetch_units(j);
    c.prefetch = prefetch > 0 ? prefetch : ZERO_NONE;
    c.bucket_numel = (size_t)o->bucket;
    c.persistence_numel = o->persistence > 0 ? o->persistence : o->persistence < 0 ? 0 : ZERO_NONE;
    c.no_overlap = !o->overlap;
    c.no_mapping = !o->mapping;
    c.type = (zero_type)o->type;
    c.grads = (zero_grad_type)o->grads;
    c.no_master = !o->master;
    c.seed = (uint64_t)o->seed;
    c.optimizer = (zero_optimizer)o->optimizer;
    c.scaler.fixed = (float)o->scale;
    c.scaler.initial = (float)o->first_scale;
    c.scaler.minimum = (float)o->least_scale;
    c.scaler.window = o->scale_window;
    c.scaler.hysteresis = o->hysteresis;
    c.scaler.consecutive_hysteresis = o->consecutive_hysteresis;
    c.no_overflow_check = !o->overflow_check;
    c.threads = j->threads;
    c.stream = j->stream;
    c.timeout_s = o->timeout;
    c.log = on_log;
    c.log_user = (void *)j;
    return c;
}

/* Context and plan; nothing large is allocated yet. */
static void open_trainer(trainer *t, job *j, int stage, zero_comm *comm) {
    zero_config config = make_config(j, stage);
    memset(t, 0, sizeof *t);
    t->j = j;
    t->stage = stage;
    t->saved = t->durable = -1;
    comm->node_size = j->opt->node_size;
    make_schedule(j, &t->lr);
    check(t, zero_create(&t->z, &config, comm));
    gpt2_describe(&j->model, t->table);
    for (int i = 0; i < GPT2_TENSORS; i++) check(t, zero_tensor(t->z, &t->table[i]));
    zero_result planned = zero_query_plan(t->z, &t->plan);
    require(j, planned == ZERO_OK, "%s%s", j->opt->bucket > 0 ? "-zb: " : "",
            zero_last_error(t->z));
}

static gpt2_run make_run(const job *j) {
    gpt2_run run = {j->batch.rows,           j->batch.seq_len, j->opt->recompute,
                    (zero_type)j->opt->type, j->opt->tf32,     j->opt->any_order};
    return run;
}

static int is_model_file(const char *model) {
    return model_ends(model, ".bin") || model_ends(model, ".safetensors")
           || model_ends(model, ".json");
}

/* Weights, as a training starts with them. */
static void start_weights(trainer *t) {
    const job *j = t->j;
    gpt2_error error;
    zero_result result;
    if (is_model_file(j->opt->model))
        result = model_load(t->z, &j->model, j->opt->model, &error);
    else
        result = gpt2_init(t->z, &j->model, (uint64_t)j->opt->seed, &error);
    if (result != ZERO_OK) launch_fail_result(j->l, result, error.sentence);
}

static void create_model(trainer *t) {
    job *j = t->j;
    gpt2_run run = make_run(j);
    gpt2_error error;
    const zero_result result = gpt2_create(&t->model, t->z, &j->model, &run, &error);
    require(j, result == ZERO_OK, "%s", error.sentence);
}

static void close_trainer(trainer *t) {
    checkpoint_destroy(t->saves);
    gpt2_destroy(t->model);
    zero_destroy(t->z);
}

/* Bytes of a rank: what the context will allocate, and what the model will. */
static uint64_t plan_bytes(const zero_plan *p) {
    return (uint64_t)p->param_bytes + p->grad_bytes + p->optimizer_bytes + p->buffer_bytes;
}

/* Before anything is built: do all ranks of this machine, or of a GPU, fit into its memory? `host`:
   bytes of a rank that are the host's everywhere. */
static void check_memory(job *j, const zero_plan *plans, int count, size_t host) {
    gpt2_run run = make_run(j);
    uint64_t each = gpt2_activation_bytes(&j->model, &run), need = 0, shared = 0;
    require(j, each > 0, "-b %d: too many windows of -t %d tokens for the model's activations",
            run.batch, run.seq_len);
    each += (uint64_t)j->batch.rows * (uint64_t)j->batch.seq_len * 2 * sizeof(int);
    for (int i = 0; i < count; i++) {
        need += plan_bytes(&plans[i]) + each;
        shared += plan_bytes(&plans[i]) - plans[i].optimizer_bytes;
    }
#ifdef __CUDACC__
    (void)shared;
    (void)host;
    check_device_memory(j, need);
#else
    launch_check_memory(j->l, need + host, shared);
#endif
}

/* Tokens in, gradients out: all micro-steps of a step. On a GPU they are only enqueued. */
static void run_micro_steps(trainer *t) {
    job *j = t->j;
    const int micro_steps = j->batch.micro_steps;
    for (int micro = 0; micro < micro_steps; micro++) {
        load_batch(j, t->data_step, micro);
        check(t, zero_pass_begin(t->z, ZERO_TRAIN, micro, micro_steps));
        check_model(t, gpt2_train_step(t->model, j->inputs, j->targets,
                                       zero_loss_scale(t->z) / (float)micro_steps, NULL));
        check(t, zero_pass_end(t->z));
    }
}

/* What a step told. */
typedef struct step_values {
    double loss; /* mean over all ranks */
    double loss_z, norm_z;
    double lr;
    zero_step_report done;
} step_values;

/* The mean loss over the ranks, of the steps since it was last asked for. Ranks that a signal has
   reached tell the others by the way. */
static double take_loss(trainer *t) {
    double sums[2] = {0, launch_asked_to_stop() ? 1.0 : 0.0};
    check_model(t, gpt2_take_losses(t->model, &sums[0]));
    check(t, zero_all_sum(t->z, sums, 2));
    t->stop = t->stop || sums[1] > 0;
    return sums[0] / t->j->l->nranks;
}

/* Between steps: has a signal asked any rank to stop? */
static int must_stop(trainer *t) {
    double asked = launch_asked_to_stop() ? 1 : 0;
    if (t->j->opt->save_every > 0) check(t, zero_all_sum(t->z, &asked, 1));
    t->stop = t->stop || asked > 0;
    return t->stop;
}

/* -sl and -sg, as llm.c does it, between reduction and step: is it so far from the usual that it is
   left out? */
static int is_unusual(trainer *t, step_values *v) {
    const train_options *o = t->j->opt;
    double norm = 0;
    v->loss = take_loss(t);
    check(t, zero_norm(t->z, &norm));
    v->loss_z = outlier_score(&t->losses, v->loss);
    v->norm_z = outlier_score(&t->norms, norm);
    return (o->skip_loss > 0 && v->loss_z > o->skip_loss)
           || (o->skip_norm > 0 && v->norm_z > o->skip_norm);
}

/* Asks what the last step did, if that is not known yet. A skipped step does not move the schedule.
 */
static void settle(trainer *t, zero_step_report *done) {
    if (!t->unsettled) return;
    check(t, zero_step_result(t->z, done));
    t->updates = done->steps;
    t->unsettled = 0;
}

/* One step. v NULL: its values are not wanted; then the host waits for a GPU only to know whether
   the step before was skipped, and this one's work is enqueued by then. Otherwise it waits once,
   when all of the step is enqueued; or before the update, for -sl and -sg. */
static void take_step(trainer *t, step_values *v) {
    const train_options *o = t->j->opt;
    const int judged = v != NULL && (o->skip_loss > 0 || o->skip_norm > 0);
    zero_step_report done;
    schedule_value now;
    run_micro_steps(t);
    settle(t, &done);
    schedule_at(&t->lr, t->updates, &now);
    zero_hyper hyper = {(float)now.lr, (float)now.beta1,       (float)now.beta2,
                        (float)o->eps, (float)o->weight_decay, (float)o->clip};
    check(t, zero_reduce(t->z));
    if (judged && v != NULL && is_unusual(t, v))
        check(t, zero_skip_step(t->z));
    else
        check(t, zero_step(t->z, &hyper));
    t->step++;
    t->data_step++;
    t->unsettled = 1;
    if (v == NULL) return;
    v->lr = now.lr;
    if (!judged) v->loss = take_loss(t);
    settle(t, &v->done);
    if (judged) return;
    v->loss_z = outlier_score(&t->losses, v->loss);
    v->norm_z = outlier_score(&t->norms, v->done.norm);
}

/* Mean loss over the validation file; NaN if it had to stop. Its windows are dealt to the ranks in
   turn; a rank whose share is used up takes part with none. */
static double validate(trainer *t) {
    job *j = t->j;
    const int rows = j->batch.rows;
    int64_t windows = (int64_t)((j->val.count - 1) / (size_t)j->batch.seq_len);
    int64_t at_once = (int64_t)rows * j->l->nranks;
    int64_t wanted = j->opt->val_batches > 0 ? j->opt->val_batches * at_once : windows;
    double total = 0;
    if (windows > wanted) windows = wanted;
    for (int64_t first = 0; first < windows; first += at_once) {
        double sum = 0;
        if (must_stop(t)) return NAN;
        int64_t mine = first + (int64_t)j->l->rank * rows, left = windows - mine;
        int count = left <= 0 ? 0 : left < rows ? (int)left : rows;
        for (int b = 0; b < count; b++)
            copy_window(j, &j->val, (size_t)(mine + b) * (size_t)j->batch.seq_len, b);
        check(t, zero_pass_begin(t->z, ZERO_EVAL, 0, 1));
        check_model(t, gpt2_loss(t->model, j->inputs, j->targets, count, &sum));
        check(t, zero_pass_end(t->z));
        total += sum;
    }
    check(t, zero_all_sum(t->z, &total, 1));
    return total / ((double)windows * j->batch.seq_len);
}

/* The token at which the running sum of probabilities passes `coin`, 0 to 1. */
static int pick_token(const float *logits, int count, double coin) {
    double most = logits[0], sum = 0, passed = 0;
    for (int i = 1; i < count; i++)
        if (logits[i] > most) most = logits[i];
    for (int i = 0; i < count; i++) sum += exp(logits[i] - most);
    for (int i = 0; i < count; i++) {
        passed += exp(logits[i] - most);
        if (passed > coin * sum) return i;
    }
    return count - 1;
}

/* Bytes that could move a terminal's cursor are left out. */
static void print_token(const job *j, int token) {
    size_t length = 0;
    const unsigned char *bytes = NULL;
    if (j->l->rank != 0) return;
    if (j->has_words) bytes = tokenizer_bytes(&j->words, (uint32_t)token, &length);
    if (bytes == NULL) printf("%d ", token);
    for (size_t i = 0; i < length; i++)
        if (bytes[i] >= 32 || bytes[i] == '\n' || bytes[i] == '\t') putchar(bytes[i]);
    fflush(stdout);
}

/* Text that goes on from the end-of-text token, each token seeing the last T. All ranks take part,
   since at stage 3 none has the weights. */
static void print_sample(trainer *t) {
    job *j = t->j;
    const int T = j->batch.seq_len, V = j->model.vocab_size;
    const int known = j->has_words ? (int)j->words.count : V;
    j->sample[0] = j->has_words ? (int)j->words.end_of_text : V - 1;
    say(j, "generating:\n---\n");
    for (int n = 1; n <= j->opt->sample_tokens && !must_stop(t); n++) {
        int seen = n < T ? n : T;
        uint64_t draw = gpt2_draw((uint64_t)j->opt->seed, STREAM_SAMPLE, (uint64_t)n);
        check(t, zero_pass_begin(t->z, ZERO_EVAL, 0, 1));
        check_model(t, gpt2_logits(t->model, j->sample + n - seen, seen, j->logits));
        check(t, zero_pass_end(t->z));
        j->sample[n] = pick_token(j->logits, known, (double)(draw >> 11) / 9007199254740992.0);
        print_token(j, j->sample[n]);
    }
    say(j, "\n---\n");
}

/* XXH64 of all weights (f32 masters where there are any), tensor after tensor, read in chunks: no
 * rank ever holds a whole tensor.
 */
static uint64_t hash_weights(trainer *t) {
    XXH64_state_t *state = XXH64_createState();
    float *chunk = (float *)get_memory(t->j, HASH_CHUNK, sizeof *chunk);
    if (state == NULL) launch_fail(t->j->l, "rank %d: out of memory for a hash", t->j->l->rank);
    XXH64_reset(state, 0);
    for (int i = 0; i < GPT2_TENSORS; i++) {
        const zero_tensor_desc *d = &t->table[i];
        size_t total = d->numel * (size_t)(d->layers > 0 ? d->layers : 1);
        for (size_t first = 0; first < total; first += HASH_CHUNK) {
            size_t left = total - first, count = left < HASH_CHUNK ? left : (size_t)HASH_CHUNK;
            check(t, zero_read_tensor(t->z, d->name, ZERO_MASTER, first, count, chunk));
            XXH64_update(state, chunk, count * sizeof *chunk);
        }
    }
    uint64_t hash = XXH64_digest(state);
    XXH64_freeState(state);
    free(chunk);
    return hash;
}

/* ---- 8 checkpoints ------------------------------------------------------------------------- */

/* Flags, and lines of job.data and settings, that the course of a training depends on. */
#define COURSE_WORDS                                                                               \
    "-e -t -sh -a -sd -dt -w -zg -ls -li -lm -lw -lh -op -x -k -l -u -q -c -b1 -b2 -ep -cl -sl "   \
    "-sg -za tokens-per-step windows ds-config training-data validation-data"
#define COUNT_MOST (INT64_C(1) << 53)               /* of what a file counts */
enum { OUTLIERS_TEXT = 26 * (OUTLIER_WINDOW + 1) }; /* " -0x1.fffffffffffffp-1022" */

/* "SEEN VALUE VALUE ...", exact. */
static void print_outliers(const outliers *w, char text[OUTLIERS_TEXT]) {
    int used = snprintf(text, OUTLIERS_TEXT, "%lld", (long long)w->seen);
    for (int i = 0; i < OUTLIER_WINDOW && i < w->seen; i++)
        used += snprintf(text + used, OUTLIERS_TEXT - (size_t)used, " %a", w->values[i]);
}

static void parse_outliers(outliers *w, const char *text) {
    char *at = NULL;
    memset(w, 0, sizeof *w);
    w->seen = strtoll(text, &at, 10);
    if (w->seen < 0 || w->seen > COUNT_MOST) w->seen = 0;
    for (int i = 0; i < OUTLIER_WINDOW && i < w->seen; i++) w->values[i] = strtod(at, &at);
}

static void note_save(void *user, const char *sentence) {
    const job *j = (const job *)user;
    clear_progress(j);
    say(j, "%s\n", sentence);
}

static int saves_anything(const train_options *o) { return o->save_every > 0 || o->resume; }

static checkpoint_options make_checkpoint_options(trainer *t) {
    job *j = t->j;
    const train_options *o = j->opt;
    checkpoint_options c;
    memset(&c, 0, sizeof c);
    c.folder = o->log_dir;
    c.keep_last = o->keep_last;
    c.keep_every = o->keep_every;
    c.asynchronous = o->save_aside;
    c.refuse_damaged = o->resume == 2;
    c.config = j->settings;
    c.tensors = t->table;
    c.ntensors = GPT2_TENSORS;
    c.log = note_save;
    c.log_user = j;
    return c;
}

/* After open_trainer: what checkpoints take of the host's memory. */
static void plan_saves(trainer *t) {
    const train_options *o = t->j->opt;
    require(t->j, !saves_anything(o) || o->log_dir[0], "%s: checkpoints need a folder, -o",
            o->resume ? "-y" : "-n");
    require(t->j, !saves_anything(o) || o->stages == 1,
            "-n and -y: a comparison of stages has no checkpoints");
    if (!saves_anything(o)) return;
    const checkpoint_options options = make_checkpoint_options(t);
    t->saves_bytes = checkpoint_bytes(t->z, &options);
}

static void warn_of_save(const job *j, const char *why) {
    clear_progress(j);
    if (j->l->rank == 0) fprintf(stderr, PROGRAM ": warning: checkpoint: %s\n", why);
}

/* `last`: no other save will make good for it. */
static void check_saves(trainer *t, checkpoint_result result, int last) {
    job *j = t->j;
    const char *why = checkpoint_error(t->saves);
    if (result == CHECKPOINT_OK) return;
    if (result == CHECKPOINT_PLUGIN)
        launch_fail_result(j->l, checkpoint_plugin_result(t->saves), why);
    if (last || !j->opt->save_or_go_on) {
        char sentence[CHECKPOINT_SENTENCE];
        snprintf(sentence, sizeof sentence, "%s", why);
        (void)checkpoint_wait(t->saves); /* a later one may be on its way, and come to a good end */
        require(j, 0, "checkpoint: %s", sentence);
    }
    warn_of_save(j, why);
}

/* Where lines of "NAME VALUE" have the value of a name; NULL: nowhere. Its length comes back. */
static const char *find_setting(const char *lines, const char *name, int name_chars, int *length) {
    for (const char *at = lines; *at; at += strcspn(at, "\n"), at += *at == '\n') {
        if (strncmp(at, name, (size_t)name_chars) != 0 || at[name_chars] != ' ') continue;
        at += name_chars + 1;
        *length = (int)strcspn(at, "\n");
        return at;
    }
    return NULL;
}

/* What this run does otherwise than the one that it continues. */
static void print_differences(const trainer *t) {
    const char *before = checkpoint_config(t->saves), *now = t->j->settings;
    for (const char *word = COURSE_WORDS; *word; word += *word == ' ') {
        const int chars = (int)strcspn(word, " ");
        int a = 0, b = 0;
        const char *was = find_setting(before, word, chars, &a);
        const char *is = find_setting(now, word, chars, &b);
        if (was != NULL && is != NULL && (a != b || memcmp(was, is, (size_t)a) != 0))
            say(t->j, "it was saved with %.*s %.*s; now it is %.*s\n", chars, word, a, was, b, is);
        word += chars;
    }
}

/* Heads are in no shape, so that the tensors of another model may fit. */
static void require_same_model(trainer *t) {
    checkpoint_value v[GPT2_VALUES];
    int64_t number;
    gpt2_values(&t->j->model, v);
    for (int i = 0; i < GPT2_VALUES; i++)
        require(t->j, !checkpoint_get_int(t->saves, v[i].name, &number) || number == v[i].number,
                "-e: the checkpoint has another model: %s is %lld there, %lld here", v[i].name,
                (long long)number, (long long)v[i].number);
}

/* What the run counts by itself; checkpoints of other programs lack its own values. A step of other
   batches begins where the data was, rounded up to its own size; windows that an epoch left out at
   its end are not counted. */
static void take_values(trainer *t) {
    const int64_t step_tokens = t->j->batch.tokens;
    zero_counters counters;
    int64_t tokens;
    const char *text;
    if (checkpoint_get_counters(t->saves, &counters)) t->updates = counters.steps;
    t->data_step = t->step;
    if (checkpoint_get_int(t->saves, "data.tokens", &tokens) && tokens >= 0 && tokens <= COUNT_MOST)
        t->data_step = tokens / step_tokens + (tokens % step_tokens != 0);
    if (checkpoint_get_text(t->saves, "losses", &text)) parse_outliers(&t->losses, text);
    if (checkpoint_get_text(t->saves, "norms", &text)) parse_outliers(&t->norms, text);
}

/* -y. Returns whether there was something to go on from. */
static int resume_training(trainer *t) {
    job *j = t->j;
    const char *folder = j->opt->log_dir;
    const checkpoint_result result = checkpoint_load(t->saves, CHECKPOINT_NEWEST);
    if (result == CHECKPOINT_NONE) {
        say(j, "no checkpoint in %s: the training starts\n", folder);
        return 0;
    }
    check_saves(t, result, 1);
    require_same_model(t);
    const int64_t step = checkpoint_step(t->saves);
    require(j, step <= j->steps, "-x %d: the checkpoint in %s is of step %lld", j->steps, folder,
            (long long)step);
    t->step = (int)step;
    t->saved = t->durable = step;
    take_values(t);
    say(j, "going on from step %d in %s\n", t->step, folder);
    print_differences(t);
    return 1;
}

/* A run from the start, killed before its first save, would be taken for the one that left these.
 */
static void require_no_other(job *j) {
    char why[CHECKPOINT_SENTENCE];
    checkpoint_generation *list = NULL;
    int n = 0;
    if (checkpoint_list(j->opt->log_dir, &list, &n, why) != CHECKPOINT_OK)
        n = 0; /* not there yet */
    require(j, n == 0, "-o: %s has checkpoints already, the newest %s: -y 1 goes on from it",
            j->opt->log_dir, n > 0 ? list[0].name : "");
    free(list);
}

/* After the context is built. Returns whether the weights are there. */
static int open_saves(trainer *t) {
    job *j = t->j;
    if (j->opt->log_dir[0] && !j->opt->resume) require_no_other(j);
    if (!saves_anything(j->opt)) return 0;
    const checkpoint_options options = make_checkpoint_options(t);
    const checkpoint_result result = checkpoint_create(&t->saves, t->z, &options);
    require(j, t->saves != NULL, "rank %d: out of memory for checkpoints", j->l->rank);
    check_saves(t, result, 1);
    return j->opt->resume && resume_training(t);
}

/* -na 1: once it is known. */
static void print_durable(trainer *t) {
    checkpoint_report r;
    if (!t->j->opt->save_aside || t->saves == NULL) return;
    checkpoint_query(t->saves, &r);
    if (r.saved_step <= t->durable) return;
    t->durable = r.saved_step;
    clear_progress(t->j);
    say(t->j, "on the disk: the checkpoint of step %lld, written in %.1f ms\n",
        (long long)r.saved_step, 1e3 * r.write_s);
}

/* What a save took, and what of a step that is. */
static void print_save(trainer *t, double step_s) {
    checkpoint_report r;
    const job *j = t->j;
    print_durable(t);
    checkpoint_query(t->saves, &r);
    clear_progress(j);
    say(j, "checkpoint of step %d, %.1f MiB: ", t->step, (double)r.total_bytes / (1024 * 1024));
    say(j, j->opt->save_aside ? "copied in %.1f ms, being written" : "saved in %.1f ms",
        1e3 * (r.stall_s - r.waited_s));
    if (r.waited_s > 1e-3) say(j, ", after %.1f ms for the one before", 1e3 * r.waited_s);
    if (step_s > 0) say(j, ", %.1f%% of a step", 100 * r.stall_s / step_s);
    say(j, "\n");
}

/* step_s: mean seconds of a step so far; 0: not known. */
static void save_checkpoint(trainer *t, double step_s, int last) {
    if (t->j->log != NULL) (void)fsync(fileno(t->j->log)); /* or a power cut leaves a gap */
    char losses[OUTLIERS_TEXT], norms[OUTLIERS_TEXT];
    checkpoint_value v[GPT2_VALUES + 3];
    memset(v, 0, sizeof v);
    print_outliers(&t->losses, losses);
    print_outliers(&t->norms, norms);
    gpt2_values(&t->j->model, v);
    v[GPT2_VALUES].name = "data.tokens";
    v[GPT2_VALUES].number = t->data_step * t->j->batch.tokens;
    v[GPT2_VALUES + 1].name = "losses";
    v[GPT2_VALUES + 1].text = losses;
    v[GPT2_VALUES + 2].name = "norms";
    v[GPT2_VALUES + 2].text = norms;
    v[GPT2_VALUES + 1].kind = v[GPT2_VALUES + 2].kind = CHECKPOINT_TEXT;
    const checkpoint_result result = checkpoint_save(t->saves, t->step, v, GPT2_VALUES + 3);
    check_saves(t, result, last);
    if (result == CHECKPOINT_OK) {
        t->saved = t->step;
        print_save(t, step_s);
    }
    if (last) check_saves(t, checkpoint_wait(t->saves), 1);
}

/* ---- 9 training ---------------------------------------------------------------------------- */

/* What the step lines carry from one to the next. */
typedef struct report {
    int first;                    /* steps that were made before this run */
    double started, step_started; /* clock */
    double smooth_rate;           /* tokens per second, averaged as AdamW does its moments */
    double total_s;               /* of all steps but the first */
} report;

static void measure_matmul(trainer *t) {
    double best = 0;
    check(t, zero_barrier(t->z));
    for (int i = 0; i < MATMUL_ROUNDS; i++) {
        double rate = gpt2_matmul_rate((zero_type)t->j->opt->type, t->j->threads);
        if (rate > best) best = rate;
    }
    double rates[2] = {best, gpt2_peak_rate((zero_type)t->j->opt->type, t->j->opt->tf32)};
    rates[1] /= t->j->sharers;
    check(t, zero_all_sum(t->z, rates, 2));
    t->j->matmul_rate = rates[0];
    t->j->peak_rate = rates[1];
}

static void print_settings(const trainer *t) {
    const job *j = t->j;
    const train_options *o = j->opt;
    const gpt2_config *m = &j->model;
    const char *type, *rule;
    const int type_chars = word_at(TYPE_WORDS, o->type, &type);
    const int rule_chars = word_at(OPTIMIZER_WORDS, o->optimizer, &rule);
    table_line(j);
    table_row(j, "model", "%s", o->model);
    table_row(j, "parameters", "%zu", t->plan.numel);
    table_row(j, "layers, width, heads", "%d, %d, %d", m->layers, m->channels, m->heads);
    table_row(j, "vocabulary", "%d, padded %d", m->vocab_size, m->padded_vocab_size);
    table_row(j, "training tokens", "%zu, windows %s", j->train.count, order_words[j->order]);
    table_row(j, "validation tokens", "%zu", j->val.count);
    table_row(j, "tokens per step", "%lld = -b %d x -t %d x %d ranks x %d micro-steps",
              (long long)j->batch.tokens, j->batch.rows, j->batch.seq_len, j->l->nranks,
              j->batch.micro_steps);
    table_row(j, "steps", "%d", j->steps);
    table_row(j, "type", "%.*s, %s", type_chars, type,
              o->type == ZERO_F32 ? "which are their own master weights"
              : o->master         ? "f32 master weights"
                                  : "no master weights, stochastic rounding");
    if (o->type == ZERO_F16 && o->scale == 0)
        table_row(j, "loss scale", "dynamic, from %g, window %d", o->first_scale, o->scale_window);
    table_row(j, "overflow", "%s", o->overflow_check ? "checked in every step" : "not checked");
    if (j->ds.has_schedule)
        table_row(j, "learning rate", "%s, by %s", schedule_name(t->lr.kind), o->ds_path);
    else
        table_row(j, "learning rate", "%s, %g to %g, warm-up %d", schedule_name(t->lr.kind), o->lr,
                  t->lr.kind == SCHEDULE_CONSTANT ? o->lr : o->lr * o->final_fraction, o->warmup);
    table_row(j, "optimizer", "%.*s, betas %g %g, eps %g, decay %g, clip %g", rule_chars, rule,
              o->beta1, o->beta2, o->eps, o->weight_decay, o->clip);
    table_row(j, "ranks", "%d, started %s", j->l->nranks, launch_how(j->l));
    table_row(j, "device", "%s", j->device);
    table_row(j, "threads per rank", "%d", j->threads);
    if (j->l->note[0] && o->threads == 0) table_row(j, "", "%s", j->l->note);
    table_row(j, "matrix products", "%.1f GFLOP/s, all ranks; %s", j->matmul_rate * 1e-9,
              gpt2_product_path(t->model));
    if (j->peak_rate > 0) table_row(j, "  by their maker", "%.1f GFLOP/s", j->peak_rate * 1e-9);
    table_row(j, "attention", "%s", gpt2_attention_path(t->model));
    table_line(j);
}

static void print_plan(const trainer *t) {
    const job *j = t->j;
    const zero_plan *p = &t->plan;
    gpt2_run run = make_run(j);
    zero_config c;
    char bucket[64] = "the largest unit";
    zero_query_config(t->z, &c);
    if (c.bucket_numel > 0) snprintf(bucket, sizeof bucket, "%zu", c.bucket_numel);
    table_row(j, "ZeRO stage", "%d", t->stage);
    table_row(j, "micro-steps add up", "%s",
              c.accumulation == ZERO_ACCUMULATE_LOCAL ? "locally" : "in shards");
    table_row(j, "communication", "%s, bucket: %s, prefetch %d",
              c.no_overlap ? "in between" : "overlapped", bucket, c.prefetch > 0 ? c.prefetch : 0);
    table_row(j, "bytes of a rank", "%llu", (unsigned long long)plan_bytes(p));
    table_row(j, "  parameters", "%zu", p->param_bytes);
    table_row(j, "  gradients", "%zu", p->grad_bytes);
    table_row(j, "  optimizer state", "%zu", p->optimizer_bytes);
    table_row(j, "  buffers", "%zu", p->buffer_bytes);
    table_row(j, "  by the formula", "%zu, without buffers and padding", p->formula_bytes);
    table_row(j, "activations", "%zu bytes", gpt2_activation_bytes(&j->model, &run));
    if (t->saves_bytes > 0) table_row(j, "checkpoints", "%zu bytes of host memory", t->saves_bytes);
    table_row(j, "bytes sent per step", "%zu, formula %zu", p->sent_bytes, p->formula_sent_bytes);
    table_line(j);
}

/* Tokens per second of the last step, and averaged over steps. */
static double note_time(trainer *t, report *r, double *smooth) {
    double seconds = clock_s() - r->step_started, rate = (double)t->j->batch.tokens / seconds;
    const int made = t->step - r->first;
    *smooth = rate;
    if (made <= 1) return rate;
    r->total_s += seconds;
    r->smooth_rate = 0.95 * r->smooth_rate + 0.05 * rate;
    *smooth = r->smooth_rate / (1 - pow(0.95, made - 1));
    return rate;
}

/* Mean seconds of a step, without the first; 0: there are too few. */
static double mean_step(const trainer *t, const report *r) {
    const int made = t->step - r->first;
    return made > 1 ? r->total_s / (made - 1) : 0;
}

/* llm.c's line; what scaling and skipping add stands at its end. */
static void print_step(const trainer *t, const step_values *v, double rate, double smooth) {
    const job *j = t->j;
    const zero_step_report *done = &v->done;
    const double peak = j->peak_rate > 0 ? j->peak_rate : j->matmul_rate;
    double flops = 0;
    if (peak > 0) flops = rate * gpt2_flops_per_token(&j->model, j->batch.seq_len) / peak;
    say(j,
        "step %4d/%d | loss %7.6f (%+.2fz)| norm %6.4f (%+.2fz)| lr %.2e | %.2f ms | %.1f%% %s | "
        "%.0f tok/s",
        t->step, j->steps, v->loss, v->loss_z, done->norm, v->norm_z, v->lr,
        1e3 * (double)j->batch.tokens / rate, 100 * flops, j->peak_rate > 0 ? "MFU" : "of matmul",
        smooth);
    if (done->loss_scale != 1 || done->next_loss_scale != 1)
        say(j, " | scale %g", (double)done->loss_scale);
    if (done->next_loss_scale != done->loss_scale)
        say(j, ", next %g", (double)done->next_loss_scale);
    if (done->skipped > 0) say(j, " | skipped %lld", (long long)done->skipped);
    if (!done->stepped && done->bad_tensor == NULL) say(j, ": unusual");
    if (!done->stepped && done->bad_tensor != NULL)
        say(j, ": %s[%zu], owned by rank %d, is not finite", done->bad_tensor, done->bad_index,
            done->bad_rank);
    say(j, "\n");
}

static void train_step(trainer *t, report *r) {
    job *j = t->j;
    step_values v;
    double smooth;
    memset(&v, 0, sizeof v);
    if (j->opt->print_batches)
        say(j, "batch %d %016llx\n", t->step, (unsigned long long)hash_batch(j, t->data_step));
    r->step_started = clock_s();
    take_step(t, &v);
    const double rate = note_time(t, r, &smooth);
    clear_progress(j);
    const int scales = v.done.next_loss_scale != v.done.loss_scale;
    if (t->step % j->opt->print_every == 0 || t->step == j->steps || !v.done.stepped || scales)
        print_step(t, &v, rate, smooth);
    log_line(j, "s:%d trl:%.4f lr:%.6f norm:%.2f\n", t->step - 1, v.loss, v.lr, v.done.norm);
    show_progress(j, (double)(t->step - r->first) / (j->steps - r->first), clock_s() - r->started);
}

static void print_validation(trainer *t) {
    double loss = validate(t);
    clear_progress(t->j);
    if (t->stop) return;
    say(t->j, "val loss %.4f\n", loss);
    log_line(t->j, "s:%d tel:%.4f\n", t->step, loss);
}

/* Every so many steps, and at the end; `every` 0: at the end alone, below 0: never. */
static int is_due(const trainer *t, int every) {
    if (t->step == t->j->steps) return every >= 0;
    return every > 0 && t->step % every == 0;
}

/* What products fuse is found out when their shapes are first met, and so is what they need. */
static void print_first_step(const trainer *t, const report *r, const char *before) {
    const char *now = gpt2_product_path(t->model);
    const gpt2_run run = make_run(t->j);
    if (t->step != r->first + 1) return;
    if (strcmp(before, now) != 0) say(t->j, "matrix products: %s\n", now);
    print_device_memory(t->j, plan_bytes(&t->plan) + gpt2_activation_bytes(&t->j->model, &run));
}

/* Validation and sample, before the step that is due. */
static void look_at_model(trainer *t) {
    const train_options *o = t->j->opt;
    if (!t->stop && is_due(t, o->val_every)) print_validation(t);
    if (!t->stop && o->sample_tokens > 0 && (t->step > 0 || t->j->steps == 0)
        && is_due(t, o->sample_every))
        print_sample(t);
}

/* A run that stops, or has come to its end, has its last step on the disk before it says so: one
   that was being written aside, and failed, is saved again. */
static void save_if_due(trainer *t, const report *r) {
    const int every = t->j->opt->save_every, last = t->stop || t->step == t->j->steps;
    print_durable(t);
    if (every == 0) return;
    if (last) {
        const checkpoint_result aside = checkpoint_wait(t->saves);
        if (aside == CHECKPOINT_PLUGIN) check_saves(t, aside, 1);
        if (aside != CHECKPOINT_OK) {
            warn_of_save(t->j, checkpoint_error(t->saves));
            t->saved = -1;
        }
    }
    if (t->saved == t->step || (!last && t->step % every != 0)) return;
    save_checkpoint(t, mean_step(t, r), last);
}

static void train_all(trainer *t) {
    const job *j = t->j;
    report r;
    char products[256];
    snprintf(products, sizeof products, "%s", gpt2_product_path(t->model));
    memset(&r, 0, sizeof r);
    r.started = clock_s();
    r.first = t->step;
    for (;;) {
        look_at_model(t);
        if (t->step == j->steps || t->stop) break;
        train_step(t, &r);
        print_first_step(t, &r, products);
        save_if_due(t, &r);
    }
    save_if_due(t, &r); /* a signal came while the model was looked at */
    clear_progress(j);
    if (mean_step(t, &r) > 0)
        say(j, "total average iteration time: %f ms\n", 1e3 * mean_step(t, &r));
}

static int run_training(job *j) {
    trainer t;
    open_trainer(&t, j, j->opt->stage[0], &j->l->comm[0]);
    plan_saves(&t);
    check_memory(j, &t.plan, 1, t.saves_bytes);
    check(&t, zero_build(t.z));
    if (!open_saves(&t)) start_weights(&t);
    create_model(&t);
    open_log(j, t.step);
    measure_matmul(&t);
    print_settings(&t);
    print_plan(&t);
    train_all(&t);
    if (t.stop)
        say(j, "stopped by a signal after step %d: -y 1 goes on\n", t.step);
    else
        say(j, "weights %016llx\n", (unsigned long long)hash_weights(&t));
    close_trainer(&t);
    if (j->log != NULL) fclose(j->log);
    return 0;
}

/* ---- 10 comparison ------------------------------------------------------------------------- */

/* What the timed rounds of one stage gave. */
typedef struct contestant {
    trainer t;
    double rates[MAX_ROUNDS]; /* tokens per second */
    double median, ratio;     /* ratio: to stage 0, the median over rounds */
    uint64_t sent_bytes;      /* of one step */
    double exposed_s;         /* of all rounds, mean over ranks */
    double loss;              /* of the last step */
    uint64_t weights;
    zero_stats stats;
} contestant;

static int compare_doubles(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median_of(const double *values, int count) {
    double sorted[MAX_ROUNDS];
    memcpy(sorted, values, (size_t)count * sizeof *values);
    qsort(sorted, (size_t)count, sizeof *sorted, compare_doubles);
    return 0.5 * (sorted[(count - 1) / 2] + sorted[count / 2]);
}

/* All ranks start together; the clock stops when the last communication has ended. */
static void run_round(contestant *c, int round, int steps) {
    trainer *t = &c->t;
    zero_stats before, after;
    check(t, zero_query_stats(t->z, &before));
    check(t, zero_barrier(t->z));
    double started = clock_s();
    for (int i = 0; i < steps; i++) take_step(t, NULL);
    check(t, zero_query_stats(t->z, &after));
    wait_for_device(t->j);
    check(t, zero_barrier(t->z));
    c->rates[round] = (double)t->j->batch.tokens * steps / (clock_s() - started);
    c->sent_bytes = (after.sent_bytes - before.sent_bytes) / (uint64_t)steps;
    c->exposed_s += after.exposed_s - before.exposed_s;
}

/* Every round begins with another stage, so that none always follows the same one. */
static void run_rounds(job *j, contestant *c, int count) {
    const int rounds = j->opt->rounds, steps = j->steps / rounds;
    const double started = clock_s();
    for (int round = 0; round < rounds; round++) {
        for (int i = 0; i < count; i++) {
            clear_progress(j);
            show_progress(j, (double)(round * count + i) / (rounds * count), clock_s() - started);
            run_round(&c[(round + i) % count], round, steps);
        }
        clear_progress(j);
        say(j, "round %d/%d | tok/s at stage", round + 1, rounds);
        for (int i = 0; i < count; i++)
            say(j, "%s%d: %.0f", i ? " | " : " ", c[i].t.stage, c[i].rates[round]);
        say(j, "\n");
    }
}

/* One step that is not timed: caches fill, pages are touched. */
static void warm_up(job *j, contestant *c, int count) {
    for (int i = 0; i < count; i++) {
        clear_progress(j);
        if (j->terminal) say(j, "warming up stage %d", c[i].t.stage);
        take_step(&c[i].t, NULL);
        check(&c[i].t, zero_barrier(c[i].t.z));
    }
    clear_progress(j);
}

/* Loss of a last step, which is not timed either; then memory, exposed time, weights. */
static void finish(job *j, contestant *c) {
    trainer *t = &c->t;
    step_values v;
    memset(&v, 0, sizeof v);
    (void)take_loss(t); /* of the steps before */
    take_step(t, &v);
    c->loss = v.loss;
    check(t, zero_query_stats(t->z, &c->stats));
    check(t, zero_all_sum(t->z, &c->exposed_s, 1));
    c->exposed_s /= j->l->nranks;
    c->weights = hash_weights(t);
}

static void write_csv(const job *j, FILE *csv, const contestant *c) {
    const zero_plan *p = &c->t.plan;
    fprintf(csv, "%d,%d,%.1f,%.4f,%zu,%zu,%zu,%zu,%zu,%llu,%zu,%.3f,%.6f,%016llx\n", c->t.stage,
            j->l->nranks, c->median, c->ratio, c->stats.param_bytes, c->stats.grad_bytes,
            c->stats.optimizer_bytes, c->stats.buffer_bytes, p->formula_bytes,
            (unsigned long long)c->sent_bytes, p->formula_sent_bytes, 1e3 * c->exposed_s / j->steps,
            c->loss, (unsigned long long)c->weights);
}

static void print_contestant(const job *j, const contestant *c) {
    const double mib = 1024 * 1024;
    say(j,
        "| %5d | %8.0f | %5.3f | %7.1f %7.1f %7.1f %7.1f | %7.1f | %6.1f %6.1f | %7.2f | %8.6f | "
        "%016llx |\n",
        c->t.stage, c->median, c->ratio, (double)c->stats.param_bytes / mib,
        (double)c->stats.grad_bytes / mib, (double)c->stats.optimizer_bytes / mib,
        (double)c->stats.buffer_bytes / mib, (double)c->t.plan.formula_bytes / mib,
        (double)c->sent_bytes / mib, (double)c->t.plan.formula_sent_bytes / mib,
        1e3 * c->exposed_s / j->steps, c->loss, (unsigned long long)c->weights);
}

/* Stages that ran in the same round had the same neighbours on the machine: ratios are taken round
   by round. The reference is stage 0, or the first. */
static void compare_rates(const job *j, contestant *c, int count) {
    double ratios[MAX_ROUNDS];
    const contestant *reference = &c[0];
    for (int i = count - 1; i >= 0; i--)
        if (c[i].t.stage == 0) reference = &c[i];
    for (int i = 0; i < count; i++) {
        for (int r = 0; r < j->opt->rounds; r++) ratios[r] = c[i].rates[r] / reference->rates[r];
        c[i].median = median_of(c[i].rates, j->opt->rounds);
        c[i].ratio = median_of(ratios, j->opt->rounds);
    }
}

static void print_comparison(const job *j, FILE *csv, const contestant *c, int count) {
    say(j, "|       |          |       |  MiB of a rank: param, grad, optim, buffer | formula |"
           "  MiB sent, by  | exposed |          |                  |\n"
           "| stage |    tok/s | ratio |  params   grads   optim buffers | no buf. |"
           "  step  formula | ms/step |     loss |          weights |\n");
    for (int i = 0; i < count; i++) {
        print_contestant(j, &c[i]);
        if (csv != NULL) write_csv(j, csv, &c[i]);
    }
}

static FILE *open_csv(job *j) {
    char folder[1024];
    FILE *csv = NULL;
    const char *path = j->opt->csv_path, *slash = strrchr(path, '/');
    if (j->l->rank == 0) {
        snprintf(folder, sizeof folder, "%.*s", slash != NULL ? (int)(slash - path) : 0, path);
        if (slash != NULL) mkdir(folder, 0777); /* fopen tells if it is not there */
        csv = fopen(path, "w");
    }
    require(j, j->l->rank != 0 || csv != NULL, "-csv: %s cannot be written: %s", path,
            strerror(errno));
    if (csv != NULL)
        fprintf(csv, "stage,ranks,tokens_per_s,ratio,param_bytes,grad_bytes,optimizer_bytes,"
                     "buffer_bytes,formula_bytes,sent_bytes,formula_sent_bytes,exposed_ms,loss,"
                     "weights\n");
    return csv;
}

static void require_equal_weights(job *j, const contestant *c, int count) {
    for (int i = 1; i < count; i++)
        require(j, c[i].weights == c[0].weights,
                "after the same %d steps, stage %d has weights %016llx, but stage %d has %016llx",
                c[i].t.step, c[i].t.stage, (unsigned long long)c[i].weights, c[0].t.stage,
                (unsigned long long)c[0].weights);
}

static int run_comparison(job *j) {
    const int count = j->opt->stages;
    zero_plan plans[STAGES];
    contestant *c = (contestant *)get_memory(j, STAGES, sizeof *c);
    FILE *csv = open_csv(j);
    memset(plans, 0, sizeof plans);
    require(j, j->steps > 0 && j->steps % j->opt->rounds == 0,
            "-x %d: the steps of a stage do not divide into -rd %d rounds", j->steps,
            j->opt->rounds);
    for (int i = 0; i < count; i++) {
        open_trainer(&c[i].t, j, j->opt->stage[i], &j->l->comm[i]);
        plan_saves(&c[i].t);
        plans[i] = c[i].t.plan;
    }
    check_memory(j, plans, count, 0);
    for (int i = 0; i < count; i++) {
        check(&c[i].t, zero_build(c[i].t.z));
        start_weights(&c[i].t);
        create_model(&c[i].t);
    }
    measure_matmul(&c[0].t);
    print_settings(&c[0].t);
    warm_up(j, c, count);
    run_rounds(j, c, count);
    for (int i = 0; i < count; i++) finish(j, &c[i]);
    compare_rates(j, c, count);
    print_comparison(j, csv, c, count);
    if (csv != NULL) fclose(csv);
    require_equal_weights(j, c, count);
    for (int i = 0; i < count; i++) close_trainer(&c[i].t);
    free(c);
    return 0;
}

/* ---- 11 main ------------------------------------------------------------------------------- */

static void resolve_model(job *j) {
    const train_options *o = j->opt;
    gpt2_error error;
    model_info info;
    memset(&info, 0, sizeof info);
    zero_result result = is_model_file(o->model)
                             ? model_info_read(o->model, &info, &error)
                             : gpt2_config_parse(o->model, 0, o->seq_len, &info.cfg, &error);
    require(j, result == ZERO_OK, "-e: %s", error.sentence);
    require(j, info.cfg.heads > 0,
            "-e: %s does not tell its number of heads: put its config.json beside it", o->model);
    j->model = info.cfg;
    require(j, o->seq_len <= j->model.max_seq_len, "-t %d: %s has positions for %d tokens",
            o->seq_len, o->model, j->model.max_seq_len);
}

/* Settings that do not go together, named by their flags. */
static void check_types(job *j) {
    const train_options *o = j->opt;
    const char *type;
    const int length = word_at(TYPE_WORDS, o->type, &type);
    require(j, o->master || o->type == ZERO_BF16,
            "-w 0: weights can do without a copy in f32 in bf16 alone, found -dt %.*s", length,
            type);
    require(j, o->type != ZERO_F16 || o->scale > 0 || o->first_scale >= o->least_scale,
            "-li %g: the first loss scale is below the least, -lm %g", o->first_scale,
            o->least_scale);
    require(j, o->eps > 0 || o->optimizer > ZERO_ADAM,
            "-ep 0: a weight whose gradient is zero would become 0/0; 1e-8 is usual");
    require(j, o->stages == 1 || (o->skip_loss == 0 && o->skip_norm == 0),
            "-sl and -sg: a comparison of stages skips no steps");
}

static void resolve_ranks(job *j) {
    const int node_size = j->opt->node_size, nranks = j->l->nranks;
    require(j, node_size == 0 || nranks % node_size == 0,
            "-ns %d: the ranks per node do not divide the %d rank%s", node_size, nranks,
            nranks > 1 ? "s" : "");
    j->threads = j->opt->threads > 0 ? j->opt->threads : launch_threads(j->l);
#ifdef _OPENMP
    omp_set_num_threads(j->threads);
#endif
}

/* XXH64 of a whole file, read in chunks. Returns 0 where it cannot be read. */
static int hash_file(const char *path, void *chunk, size_t bytes, uint64_t *hash) {
    XXH64_state_t *state = XXH64_createState();
    FILE *file = fopen(path, "rb");
    int ok = file != NULL && state != NULL && XXH64_reset(state, 0) == XXH_OK;
    size_t got = 0;
    while (ok && (got = fread(chunk, 1, bytes, file)) > 0) XXH64_update(state, chunk, got);
    ok = ok && !ferror(file);
    if (ok) *hash = XXH64_digest(state);
    if (file != NULL) fclose(file);
    XXH64_freeState(state);
    return ok;
}

/* By mpirun, ranks on several machines read files of their own. */
static void compare_model(job *j) {
    char text[LAUNCH_SENTENCE / 2];
    const char *path = j->opt->model;
    uint64_t hash = 0;
    if (!j->l->elsewhere || !is_model_file(path)) return;
    void *chunk = get_memory(j, HASH_CHUNK, sizeof(float));
    int ok = hash_file(path, chunk, HASH_CHUNK * sizeof(float), &hash);
    free(chunk);
    require(j, ok, "-e: %s: rank %d cannot read it: %s", path, j->l->rank, strerror(errno));
    snprintf(text, sizeof text, "-e %.400s of hash %016llx\n", path, (unsigned long long)hash);
    launch_same(j->l, text);
}

static void compare_data(job *j) {
    snprintf(j->data, sizeof j->data,
             "training-data %zu tokens of hash %016llx\n"
             "validation-data %zu tokens of hash %016llx\n",
             j->train.count,
             (unsigned long long)XXH64(j->train.tokens, j->train.count * sizeof(uint16_t), 0),
             j->val.count,
             (unsigned long long)XXH64(j->val.tokens, j->val.count * sizeof(uint16_t), 0));
    launch_same(j->l, j->data);
}

static void get_buffers(job *j) {
    size_t tokens = (size_t)j->batch.rows * (size_t)j->batch.seq_len;
    j->inputs = (int *)get_memory(j, tokens, sizeof *j->inputs);
    j->targets = (int *)get_memory(j, tokens, sizeof *j->targets);
    j->sample = (int *)get_memory(j, (size_t)j->opt->sample_tokens + 1, sizeof *j->sample);
    j->logits = (float *)get_memory(j, (size_t)j->model.vocab_size, sizeof *j->logits);
}

/* What a checkpoint's run can be told by: flags, with a file's values in their place. */
static void render_settings(job *j) {
    render_options(j->opt, j->settings, sizeof j->settings);
    const size_t used = strlen(j->settings);
    snprintf(j->settings + used, sizeof j->settings - used,
             "tokens-per-step %lld\nwindows %s\nds-config of hash %016llx\nranks %d\n%s",
             (long long)j->batch.tokens, order_words[j->order], (unsigned long long)j->ds_hash,
             j->l->nranks, j->data);
}

static int run_rank(launch *l, void *user) {
    job j; /* nothing is static: ranks can be threads of one process */
    train_options options = *(const train_options *)user,
                  *o = &options; /* a file may change them */
    if (o->help) return l->rank == 0 ? print_help() : 0;
    memset(&j, 0, sizeof j);
    j.opt = o;
    j.l = l;
    j.terminal = l->rank == 0 && !l->elsewhere && isatty(STDOUT_FILENO);
    render_options(o, j.settings, sizeof j.settings);
    launch_same(l, j.settings);
    resolve_ranks(&j);
    open_device(&j);
    resolve_model(&j);
    read_file(&j, o);
    check_types(&j);
    resolve_batch(&j);
    compare_model(&j);
    open_data(&j);
    compare_data(&j);
    get_buffers(&j);
    render_settings(&j);
    int code = o->stages > 1 ? run_comparison(&j) : run_training(&j);
    close_device(&j);
    close_data(&j);
    return code;
}

int main(int argc, char **argv) {
    train_options o;
    parse_options(&o, argc, argv);
    static const char *const methods[] = {"mpi", "tcp", "fs"}; /* METHOD_WORDS */
    launch_request request;
    memset(&request, 0, sizeof request);
    request.program = PROGRAM;
    request.ranks = o.ranks;
    request.default_ranks = o.stages > 1 ? COMPARE_RANKS : 1;
    request.groups = o.stages;
    request.usage_error = o.error[0] ? o.error : NULL;
    request.rank_main = run_rank;
    request.user = &o;
    request.method = methods[o.method];
    request.rank = o.rank;
    request.per_node = o.per_node;
    request.server = o.server[0] ? o.server : NULL;
    request.folder = o.folder;
    request.as_threads = o.as_threads;
    if (o.help) {
        request.ranks = 0; /* or as many as mpirun started: rank 0 prints */
        request.default_ranks = 1;
        request.usage_error = NULL;
    }
    if (o.stages < 1) request.groups = 1;
    request.stop = o.save_every > 0;
    return launch_run(&request);
}
