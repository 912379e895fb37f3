/* zero_plan.c - plans a training run without the machine: memory by kind at every stage
   and tier, what fits, bytes sent, time of a step, and a recommendation.

     ./zero_plan -e gpt2:d48 -pn 64 -dt bf16 --memory 80G
     ./zero_plan -e 7.5e9 -pn 64 -dt bf16
     ./zero_plan -e d12 -pn 2 -t 64 -b 4 --on cpu --machine build/machine.txt
     ./zero_plan --measure build/machine.txt -pn 2
     ./zero_plan -e gpt2:d48 -b 4 -dt bf16 --machine machine.txt --scale build/scale.csv

   Flags are the trainer's (train_options.h) wherever they mean the same; the planner's own are the
   table below. Every number comes from plan.h, which asks the plugin.
*/
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#ifdef _OPENMP
#include <omp.h>
#endif

#include "../report/report.h"
#include "../report/sentence.h"
#include "../system/regular_file.h"
#include "measure.h"
#include "../gpt2/experts.h"
#include "../gpt2/frozen.h"
#include "../report/run_note.h"
#include "auto.h"
#include "scale.h"

#define PROGRAM "zero_plan"

typedef struct plan_flags {
    const char *host_memory, *disk, *measure, *scale, *pictures;
    int on;
} plan_flags;

enum { PLAN_ON_AUTO = 0, PLAN_ON_GPU, PLAN_ON_CPU };

#define OWN(kind, short_name, long_name, member, usual, ...)                                       \
    {                                                                                              \
        .flag = (short_name), .name = (long_name), .type = OPTION_##kind,                          \
        .field = offsetof(plan_flags, member), .normal = (usual), __VA_ARGS__                      \
    }
static const option plan_table[] = {
    {.type = OPTION_HEADING, .help = "The planner's own"},
    OWN(TEXT, "-hm", "--host-memory", host_memory, "",
        .help = "CPU memory of each rank. Without this flag there is no limit"),
    OWN(TEXT, "-dm", "--disk", disk, "", .help = "space in files for each rank; the same"),
    OWN(WORD, "-on", "--on", on, "auto", .words = "auto gpu cpu",
        .help = "device of the ranks. auto: that of --machine, otherwise gpu"),
    OWN(PATH, "-ms", "--measure", measure, "",
        .help =
            "measures this machine with -pn ranks at once of -nt threads, in types f32 and bf16 "
            "or the one of -dt, the disk of -zfd, and writes such a file"),
    OWN(PATH, "-sc", "--scale", scale, "",
        .help =
            "file for a table of steps that are simulated at the rates of --machine: stage 3 of "
            "8 to 1024 ranks, 8 a node, over 100 and 400 Gbit/s, with and without -zs, -zh, "
            "-qw, -qg"),
    OWN(PATH, "-pic", "--pictures", pictures, "", .help = "with --scale: folder for its pictures"),
};
enum { PLAN_FLAGS = sizeof plan_table / sizeof *plan_table };

/* ---- arguments ----------------------------------------------------------------------------- */

static int plan_not_foreign(const char *argument) {
    (void)argument;
    return 0;
}

/* Returns 1 if the argument is one of the planner's own flags. *has_value: 1 if it contains the
   value too, as in --memory=80G. */
static int plan_is_own(const char *argument, int *has_value) {
    const size_t length = strcspn(argument, "=");
    *has_value = argument[length] == '=';
    for (int i = 1; i < PLAN_FLAGS; i++) {
        const option *d = &plan_table[i];
        if (strlen(d->name) == length && strncmp(d->name, argument, length) == 0) return 1;
        if (strcmp(d->flag, argument) == 0) return 1;
    }
    return 0;
}

/* Copies the planner's own arguments to `own`, and the others to `rest`. Both have argc places. */
static void plan_split_arguments(int argc, char **argv, char **own, int *owns, char **rest,
                                 int *rests) {
    own[0] = rest[0] = argv[0];
    *owns = *rests = 1;
    for (int i = 1; i < argc; i++) {
        int has_value = 0;
        const int mine = plan_is_own(argv[i], &has_value);
        if (!mine) {
            rest[(*rests)++] = argv[i];
            continue;
        }
        own[(*owns)++] = argv[i];
        if (!has_value && i + 1 < argc) own[(*owns)++] = argv[++i];
    }
}

/* Reads a size. An empty text is 0, no limit. */
static int plan_size(const char *flag, const char *text, double *size, char *sentence,
                     size_t bytes) {
    *size = 0;
    if (!text[0] || !options_size(text, size)) return 0;
    return sentence_fail(sentence, bytes,
                         "%s: expected a size, for example 80G or 640M, found '%.60s'", flag, text);
}

static void plan_help(const option_set *own) {
    printf("usage: ./%s [FLAG VALUE]...\n\n", PROGRAM);
    options_print_wrapped(
        "Plans a training run without a machine: memory of a rank by kind at every stage, with "
        "and without offload, what fits, bytes sent and moved in a step, the largest model, and "
        "what to choose. -e also takes a number of parameters alone: 7.5e9. All flags of "
        "train_gpt2_zero work here (./train_gpt2_zero --help). Defaults: without -z all stages; "
        "without -t the model's longest sequence; without -b and -d one sequence.",
        0);
    options_help(own);
    printf("\nExamples\n  ./%s -e gpt2:d48 -pn 64 -dt bf16 --memory 80G\n"
           "  ./%s -e 7.5e9 -pn 64 -dt bf16\n"
           "  ./%s --measure machine.txt -pn 2\n"
           "  ./%s -e d12 -pn 2 -t 64 -b 4 --machine machine.txt\n",
           PROGRAM, PROGRAM, PROGRAM, PROGRAM);
}

/* ---- the request --------------------------------------------------------------------------- */

static void plan_note(void *user, const char *sentence) {
    (void)user;
    printf("%s\n", sentence);
}

/* Reads the file of -ds as the trainer does. */
static int plan_read_file(plan_request *r, char *sentence, size_t bytes) {
    train_options *o = &r->options;
    const ds_notes notes = {plan_note, NULL};
    ds_config said;
    char why[PLAN_SENTENCE];
    if (!o->ds_path[0]) return 0;
    const int channels = r->model.is_gpt2 ? r->model.gpt2.channels : 1;
    const ds_auto autos = train_autos(o, r->ranks, channels, &said);
    const int failed = ds_config_load(o->ds_path, &autos, &r->file, &notes, why, sizeof why);
    if (failed) (void)snprintf(sentence, bytes, "-ds: %s", why);
    if (failed || train_options_conflict(o, &r->file, sentence, bytes)) return 1;
    train_take(o, &r->file, &r->model.gpt2);
    return 0;
}

static int plan_resolve(plan_request *r, const plan_flags *f, machine *m, char *sentence,
                        size_t bytes) {
    train_options *o = &r->options;
    char why[PLAN_SENTENCE];
    if (r->options.machine[0] && machine_read(r->options.machine, m, why, sizeof why))
        return sentence_fail(sentence, bytes, "--machine: %s", why);
    r->machine = r->options.machine[0] ? m : NULL;
    r->on_gpus =
        f->on == PLAN_ON_AUTO ? (r->machine != NULL ? m->on_gpus : 1) : f->on == PLAN_ON_GPU;
    if (plan_size("--memory", r->options.memory, &r->most.device, sentence, bytes)
        || plan_size("--host-memory", f->host_memory, &r->most.host, sentence, bytes)
        || plan_size("--disk", f->disk, &r->most.file, sentence, bytes))
        return 1;
    const int windows = train_options_given(o, "-t");
    if (!train_options_given(o, "-b") && !train_chooses(o)) o->batch = 0;
    if (plan_model_read(o->model, windows ? o->seq_len : 0, &r->model, sentence, bytes)) return 1;
    if (train_mixture(o, r->model.is_gpt2 ? &r->model.gpt2 : NULL, sentence, bytes)) return 1;
    r->model.gpt2.untied = o->untied;
    if (!r->model.is_gpt2 && (o->train[0] || o->freeze[0]))
        return sentence_fail(sentence, bytes,
                             "%s: a number of parameters has no names; give a model with -e",
                             o->train[0] ? "--train" : "--freeze");
    if (!r->model.is_gpt2 && o->embedding_state)
        return sentence_fail(sentence, bytes,
                             "-oe f32: a number of parameters has no embeddings; give a model with "
                             "-e");
    if (r->model.is_gpt2 && train_frozen(o, &r->model.gpt2, sentence, bytes)) return 1;
    if (r->model.is_gpt2)
        r->model.numel = gpt2_numel(&r->model.gpt2) + experts_numel(&r->model.gpt2);
    if (!windows) o->seq_len = r->model.is_gpt2 ? r->model.gpt2.max_seq_len : 1024;
    r->ranks = o->ranks > 0 ? o->ranks : 1;
    if (o->node_size > 0 && r->ranks % o->node_size)
        return sentence_fail(sentence, bytes,
                             "-ns %d: the ranks per node do not divide the %d ranks; use a divisor",
                             o->node_size, r->ranks);
    return plan_read_file(r, sentence, bytes) || train_check(o, sentence, bytes)
           || train_sparse_rows(o, r->on_gpus, &r->model.gpt2, sentence, bytes);
}

static int plan_measure(const plan_request *r, const plan_flags *f, char *sentence, size_t bytes) {
    const train_options *o = &r->options;
    char comment[128];
    machine m;
    const unsigned types =
        train_options_given(o, "-dt") ? 1u << o->type : 1u << ZERO_F32 | 1u << ZERO_BF16;
    const measure_wish wish = {o->ranks > 0 ? o->ranks : 1, o->threads, types, o->offload_folder};
    FILE *first = fopen(f->measure, "a"); /* fails before the measurement, which takes a minute */
    if (first == NULL || fclose(first) != 0)
        return sentence_fail(sentence, bytes, "--measure: %.250s cannot be written: %s", f->measure,
                             strerror(errno));
    if (measure_machine(&wish, &m, sentence, bytes)) {
        struct stat made;
        if (stat(f->measure, &made) == 0 && made.st_size == 0) (void)remove(f->measure);
        return 1;
    }
    (void)snprintf(comment, sizeof comment, "rates of a rank, %d at once, by " PROGRAM " --measure",
                   wish.ranks);
    if (machine_write(f->measure, &m, comment, sentence, bytes)) return 1;
    printf("%s\n", f->measure);
    return 0;
}

/* Writes the flags that the user typed, without those of the choice and of zero_plan alone. */
static void plan_typed(int argc, char **argv, char text[RUN_NOTE_FLAGS]) {
    char **kept = (char **)calloc((size_t)argc + 1, sizeof *kept);
    int n = 1;
    text[0] = 0;
    if (kept == NULL) return;
    kept[0] = argv[0];
    for (int i = 1; i < argc; i++) {
        const size_t length = strcspn(argv[i], "=");
        const int has_value = argv[i][length] == '=';
        const int stage = length == strlen("--stage") && strncmp(argv[i], "--stage", length) == 0;
        if (strcmp(argv[i], "-z") != 0 && !stage) {
            kept[n++] = argv[i];
            if (!has_value && i + 1 < argc) kept[n++] = argv[++i];
        } else if (!has_value)
            i++;
    }
    run_note_flags(n, kept, text);
    free(kept);
}

/* -csv: writes all families. */
static int plan_write_choice(const plan_request *r, const auto_result *found, char *sentence,
                             size_t bytes) {
    FILE *csv = regular_file_stream(r->options.csv_path, "w");
    if (csv != NULL) auto_print_csv(r, found, csv);
    if (csv != NULL && fclose(csv) == 0) return 0;
    return sentence_fail(sentence, bytes, "-csv: %.250s cannot be written: %s", r->options.csv_path,
                         regular_file_error(errno));
}

/* -z auto: prints the choice. */
static int plan_choose(const plan_request *r, int argc, char **argv, char *sentence, size_t bytes) {
    char typed[RUN_NOTE_FLAGS], *text = (char *)malloc(AUTO_TABLE);
    auto_result *found = (auto_result *)malloc(sizeof *found);
    int failed = text == NULL || found == NULL;
    if (failed) (void)sentence_fail(sentence, bytes, "-z auto: out of memory");
    if (!failed) failed = auto_search(r, found, sentence, bytes);
    if (!failed) {
        plan_typed(argc, argv, typed);
        auto_print_table(r, found, "./train_gpt2_zero", typed, text, AUTO_TABLE);
        printf("%s", text);
        if (train_options_given(&r->options, "-csv"))
            failed = plan_write_choice(r, found, sentence, bytes);
    }
    if (!failed) {
        if (found->fitting == 0)
            failed = sentence_fail(sentence, bytes,
                                   "-z auto: no plan can be chosen; the table "
                                   "above has the reasons");
    }
    free(found);
    free(text);
    return failed;
}

/* Measures, simulates, or prints the plan, as the flags ask. */
static int plan_run(plan_request *r, const plan_flags *f, int argc, char **argv, char *sentence,
                    size_t bytes) {
    machine m;
    if (f->measure[0]) return plan_measure(r, f, sentence, bytes);
#ifdef _OPENMP
    const int ranks = r->options.ranks > 0 ? r->options.ranks : 1;
    const int share = (int)(sysconf(_SC_NPROCESSORS_ONLN) / ranks);
    omp_set_num_threads(r->options.threads > 0 ? r->options.threads : share > 1 ? share : 1);
#endif
    if (plan_resolve(r, f, &m, sentence, bytes)) return 1;
    if (f->scale[0]) return scale_print_note(r, f->scale, f->pictures, sentence, bytes);
    if (train_chooses(&r->options)) return plan_choose(r, argc, argv, sentence, bytes);
    return plan_print(r, sentence, bytes);
}

int main(int argc, char **argv) {
    plan_request *r = (plan_request *)calloc(1, sizeof *r);
    char **mine = (char **)calloc((size_t)argc + 1, sizeof *mine);
    char **rest = (char **)calloc((size_t)argc + 1, sizeof *rest);
    char sentence[2 * PLAN_SENTENCE] = "", text[2 * PLAN_SENTENCE] = "";
    unsigned char given[PLAN_FLAGS] = {0};
    int mines = 0, rests = 0, failed = 1, help = 0;
    plan_flags flags;
    memset(&flags, 0, sizeof flags);
    option_set own = {plan_table, PLAN_FLAGS, &flags, given, sentence, sizeof sentence, NULL, 0};
    if (report_begin() && r != NULL && mine != NULL && rest != NULL) {
        plan_split_arguments(argc, argv, mine, &mines, rest, &rests);
        (void)options_parse(&own, mines, mine, 0, plan_not_foreign, NULL);
        train_options_parse(&r->options, rests, rest);
        if (!sentence[0]) (void)snprintf(sentence, sizeof sentence, "%s", r->options.error);
        help = r->options.help;
        if (help == OPTIONS_VERSION) printf(PROGRAM " %s\n", zero_version());
        if (help == OPTIONS_HELP) plan_help(&own);
        failed =
            !help && (sentence[0] || plan_run(r, &flags, rests, rest, sentence, sizeof sentence));
        if (!failed) failed = report_end(sentence, sizeof sentence);
    }
    if (failed && r != NULL) train_options_translate(&r->options, sentence, text, sizeof text);
    if (failed) fprintf(stderr, PROGRAM ": %s\n", text[0] ? text : "out of memory");
    if (r != NULL) gpt2_frozen_free(r->model.gpt2.frozen);
    free(rest);
    free(mine);
    free(r);
    return failed;
}
